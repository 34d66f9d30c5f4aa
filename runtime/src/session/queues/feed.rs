//! Threads that add the elements of an iterator to a queue.

use super::content::QueueState;
use super::host::{HostQueue, push_tensors};
use super::{SharedQueue, WaitLimits};
use anabranch_dsl::function::{Arguments, Feed};
use anabranch_dsl::queue::{AnyQueue, QueueElement};
use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A thread that adds elements to a queue: created by [`HostQueue::feed`]. Dropping it ends the
/// thread.
#[must_use = "dropping it ends the thread that adds elements"]
pub struct QueueFeed {
    shared: Arc<SharedQueue>,
    progress: Arc<Mutex<FeedProgress>>,
    /// The thread, whose result is the number of elements that it has added.
    thread: Option<JoinHandle<Fed>>,
}

/// The outcome of a thread: a number of elements, an error, or the panic of the iterator.
type Fed = Result<Result<u64>, Box<dyn Any + Send>>;

/// The progress of a feed. It is locked only while its queue is, so that the queue has the element
/// from the moment on in which the feed no longer has it.
#[derive(Default)]
pub(super) struct FeedProgress {
    stage: FeedStage,
    /// Whether the handle of the feed was dropped while the iterator computed.
    pub(super) is_dropped: bool,
}

#[derive(Default)]
enum FeedStage {
    /// The iterator computes an element, or finds that there are no more.
    #[default]
    Computing,
    /// The thread has an element that is not in the queue.
    Adding,
    /// The iterator has ended, or has failed.
    Ended,
}

fn locked(progress: &Mutex<FeedProgress>) -> MutexGuard<'_, FeedProgress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for QueueFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (queue, is_finished) = (&self.shared.name, self.is_finished());
        f.debug_struct("QueueFeed").field("queue", queue).field("is_finished", &is_finished).finish()
    }
}

impl<T: QueueElement> HostQueue<T> {
    /// Adds the elements of an iterator on a thread of its own, which waits while the queue is
    /// full. A pass over a dataset is such an iterator, and so is `&dataset`.
    ///
    /// When the iterator ends, the queue is [closed](Self::close). At its first error, or if it
    /// panics, the queue is closed [with the error](Self::close_with), which is what consumers get
    /// after the elements before it. The thread also ends when the session ends, when somebody else
    /// closes the queue, and when the result is dropped. If elements are missing then, the queue is
    /// closed with an error.
    ///
    /// Elements that are in the queue count as delivered for the iterator. A run that must continue
    /// exactly where it was iterates over the dataset itself, and saves its position.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    ///
    /// ```
    /// use anabranch::{DType, Queue, Session, TensorType, prelude::*};
    ///
    /// let session = Session::new()?;
    /// let numbers = Queue::<Tensor>::fifo("numbers", 2, &[TensorType::new(DType::F32, [])])?;
    /// let feed = session.queue(&numbers)?.feed((0..10).map(|i| Ok(i as f32)))?;
    /// let sum = session.function(|| numbers.dequeue_many(5).sum())?;
    /// assert_eq!(sum.call(())?, 10.0);
    /// assert_eq!(sum.call(())?, 35.0);
    /// assert_eq!(feed.wait()?, 10);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn feed<E, I>(&self, elements: I) -> Result<QueueFeed>
    where
        E: Feed<T>,
        I: IntoIterator<Item = Result<E>, IntoIter: Send + 'static>,
    {
        let (queue, shared, elements) = (self.queue.any().clone(), self.shared.clone(), elements.into_iter());
        let progress = Arc::<Mutex<FeedProgress>>::default();
        let of_thread = progress.clone();
        let work = move || feed_all(&queue, &shared, &of_thread, elements);
        let thread = std::thread::Builder::new().name("anabranch-feed".to_owned()).spawn(work);
        let thread = thread.map_err(|error| {
            let message = format!("could not start a thread that adds elements to a queue: {error}");
            Diagnostic::new(message).of_kind(ErrorKind::ResourceExhausted)
        })?;
        Ok(QueueFeed { shared: self.shared.clone(), progress, thread: Some(thread) })
    }
}

/// Adds all elements, and closes the queue.
fn feed_all<T: QueueElement, E: Feed<T>>(
    queue: &AnyQueue,
    shared: &SharedQueue,
    progress: &Mutex<FeedProgress>,
    mut elements: impl Iterator<Item = Result<E>>,
) -> Fed {
    let mut n_added = 0;
    let fed = catch_unwind(AssertUnwindSafe(|| -> Result<()> {
        for element in &mut elements {
            let mut arguments = Arguments::default();
            element?.feed(&mut arguments);
            begin_adding(shared, progress)?;
            let added = || locked(progress).stage = FeedStage::Computing;
            push_tensors(queue, shared, "feed", arguments.tensors().to_vec(), WaitLimits::default(), added)?;
            n_added += 1;
        }
        Ok(())
    }));
    let cause = match &fed {
        Ok(outcome) => outcome.as_ref().err().cloned(),
        Err(_) => {
            let message = format!("the iterator that feeds the queue `{}` panicked", queue.name());
            Some(Diagnostic::new(message).of_kind(ErrorKind::Internal))
        }
    };
    shared.change(|state| {
        locked(progress).stage = FeedStage::Ended;
        // If somebody else has closed it, that is why there was an error.
        if !state.is_closed() {
            state.close(cause, false);
        }
    });
    fed.map(|fed| fed.map(|()| n_added))
}

/// Notes that the thread has an element, which is missing if the feed ends now.
fn begin_adding(shared: &SharedQueue, progress: &Mutex<FeedProgress>) -> Result<()> {
    let is_dropped = {
        let _state = shared.state();
        let mut progress = locked(progress);
        progress.stage = FeedStage::Adding;
        progress.is_dropped
    };
    if is_dropped {
        shared.change(close_incomplete);
        return Err(dropped());
    }
    Ok(())
}

/// Closes a queue that lacks elements of a feed that was dropped.
fn close_incomplete(state: &mut QueueState) {
    // All waits for room end, that of the thread, too.
    state.close((!state.is_closed()).then(dropped), true);
}

fn dropped() -> Diagnostic {
    Diagnostic::new("its feed was dropped before the last element")
        .help("keep the result of `feed` until it is finished")
}

impl QueueFeed {
    /// Returns the progress, for tests.
    #[cfg(test)]
    pub(super) fn progress(&self) -> Arc<Mutex<FeedProgress>> {
        self.progress.clone()
    }

    /// Returns whether the thread has ended: all elements are in the queue, or there was an error.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until all elements are in the queue, and returns their number.
    ///
    /// # Errors
    /// Fails with the error of the iterator, if it had one. Fails if the queue was closed or the
    /// session has ended before all elements were in it.
    ///
    /// # Panics
    /// Continues the panic of the iterator, if it panicked.
    pub fn wait(mut self) -> Result<u64> {
        let thread = self.thread.take().expect("only this method and the drop take it");
        match thread.join() {
            Ok(Ok(fed)) => fed,
            Ok(Err(panic)) | Err(panic) => resume_unwind(panic),
        }
    }
}

impl Drop for QueueFeed {
    /// Ends the thread, after the element that its iterator is computing. If there is such an
    /// element, the queue is closed with an error, since its elements are not complete.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.change(|state| {
            let mut progress = locked(&self.progress);
            match progress.stage {
                // Whether an element is missing is known when the iterator returns.
                FeedStage::Computing => progress.is_dropped = true,
                FeedStage::Adding => close_incomplete(state),
                FeedStage::Ended => {}
            }
        });
        // The thread catches the panics of its iterator.
        let _ = thread.join();
    }
}
