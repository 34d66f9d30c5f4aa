//! Elements that others send.
//!
//! Position: the number of elements received. Only the start can be opened again.

use crate::Dataset;
use crate::position::SavedWords;
use crate::stage::{Cursor, Stage};
use anabranch_dsl::{Diagnostic, Result};
use std::sync::Arc;

type ReceiveFn<T> = Arc<dyn Fn() -> Result<Option<T>> + Send + Sync>;

struct ChannelStage<T> {
    name: String,
    receive: ReceiveFn<T>,
}

impl<T: Send + 'static> Dataset<T> {
    /// Returns the elements that a function receives, such as those of a queue, until it returns
    /// `None` or an error. `name` is the name of the source in messages and stored positions.
    ///
    /// An element that was received is gone. So unlike those of other sources, the elements are the
    /// same neither in two epochs nor in two passes, which share them. A pass cannot be continued
    /// from a position behind its first element: [`resume`](Dataset::resume) returns an error.
    /// Resume the producer instead.
    ///
    /// A pass with stages that have threads, such as `prefetch`, waits for these when it is
    /// dropped. So close the queue before, if nothing else ends the wait of the function.
    ///
    /// ```
    /// use anabranch::data::Dataset;
    /// use anabranch::{DType, Queue, Session, TensorType, prelude::*};
    ///
    /// let session = Session::new()?;
    /// let scores = Queue::<Tensor>::fifo("scores", 4, &[TensorType::new(DType::F32, [])])?;
    /// let feed = session.queue(&scores)?.feed(&Dataset::range(0..10).map(|i| i as f32))?;
    /// let from = session.queue(&scores)?;
    /// let batches = Dataset::from_channel("scores", move || from.pop()).batch(4);
    /// let sizes = batches.iter().map(|batch| Ok(batch?.len()));
    /// assert_eq!(sizes.collect::<anabranch::Result<Vec<usize>>>()?, [4, 4, 2]);
    /// # drop(feed);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn from_channel(name: &str, receive: impl Fn() -> Result<Option<T>> + Send + Sync + 'static) -> Dataset<T> {
        Dataset::of(ChannelStage { name: name.to_owned(), receive: Arc::new(receive) })
    }
}

impl<T: Send + 'static> Stage<T> for ChannelStage<T> {
    fn open(&self, _epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<T>>> {
        let received = at.word();
        if received > 0 {
            let message =
                format!("`{}` cannot be continued: {received} elements were received, and are gone", self.name);
            return Err(Diagnostic::new(message).help("resume the producer of the elements, and start a new pass"));
        }
        Ok(Box::new(ChannelCursor { receive: Some(self.receive.clone()), received }))
    }

    fn len(&self) -> Option<u64> {
        None
    }

    fn describe(&self, text: &mut String) {
        *text += &format!("channel `{}`", self.name);
    }
}

struct ChannelCursor<T> {
    /// Nothing behind the end.
    receive: Option<ReceiveFn<T>>,
    received: u64,
}

impl<T> Cursor<T> for ChannelCursor<T> {
    fn next(&mut self) -> Option<Result<T>> {
        let element = self.receive.as_ref()?().transpose();
        match &element {
            Some(Ok(_)) => self.received += 1,
            // Whoever sends knows whether more will come after an error, but cannot say it.
            Some(Err(_)) | None => self.receive = None,
        }
        element
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.push(self.received);
    }

    fn skipped(&self) -> u64 {
        0
    }
}
