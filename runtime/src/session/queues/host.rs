//! Queues as the host sees them.

use super::content::{ElementRequest, QueueState, QueuedElement};
use super::transaction::not_an_element;
use super::{SharedQueue, WaitFailure, WaitLimits, batch};
use crate::session::Session;
use anabranch_dsl::function::{Arguments, Feed, Output, Rebuild};
use anabranch_dsl::queue::{AnyQueue, Queue, QueueElement};
use anabranch_dsl::{Diagnostic, HostTensor, Result};
use std::fmt;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// A queue of a session, for the host: created by [`Session::queue`]. Any thread may use it.
///
/// Elements that the host adds can be removed at once, and those that it removes do not return.
pub struct HostQueue<T: QueueElement> {
    pub(super) queue: Queue<T>,
    pub(super) shared: Arc<SharedQueue>,
    rebuild: Rebuild<<T as Output>::Host>,
}

impl<T: QueueElement> fmt::Debug for HostQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostQueue").field("queue", &self.queue).field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Session {
    /// Returns a queue of this session for the host.
    ///
    /// The waits of the host end with an error of the kind
    /// [`ErrorKind::Cancelled`](anabranch_dsl::ErrorKind) when the session ends: when its last
    /// handle and its last function are dropped. A queue for the host does not keep it.
    ///
    /// # Errors
    /// Fails if a function is being traced on this thread, or if the types of the queue are not
    /// those of its elements.
    ///
    /// ```
    /// use anabranch::{DType, Queue, Session, TensorType, prelude::*};
    ///
    /// let session = Session::new()?;
    /// let numbers = Queue::<Tensor>::fifo("numbers", 10, &[TensorType::new(DType::F32, [])])?;
    /// let squares = Queue::<Tensor>::fifo("squares", 10, &[TensorType::new(DType::F32, [])])?;
    /// let square = session.function(|| squares.enqueue(numbers.dequeue().square()))?;
    ///
    /// let (to, from) = (session.queue(&numbers)?, session.queue(&squares)?);
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| (0..5).try_for_each(|i| to.push(i as f32)));
    ///     (0..5).try_for_each(|_| square.call(()))
    /// })?;
    /// from.close()?;
    /// let all = from.iter().map(|x| Ok(x?.item())).collect::<anabranch::Result<Vec<f32>>>()?;
    /// assert_eq!(all, [0.0, 1.0, 4.0, 9.0, 16.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn queue<T: QueueElement>(&self, queue: &Queue<T>) -> Result<HostQueue<T>> {
        Ok(HostQueue { queue: queue.clone(), shared: self.queues.get(queue.any()), rebuild: queue.rebuild()? })
    }

    /// Ends the queues of this session, for good: all waits for them end, those of running calls
    /// too, with an error of the kind
    /// [`ErrorKind::Cancelled`](anabranch_dsl::ErrorKind::Cancelled), and later operations on them
    /// fail. What such calls have removed returns, as after any failure. Calls without queues go
    /// on.
    ///
    /// Functions keep their session, so dropping `Session` alone does not end the waits
    /// of their calls. Take snapshots of queues before: in later ones they are closed.
    ///
    /// ```
    /// use anabranch::prelude::*;
    /// use anabranch::{DType, ErrorKind, Queue, Session, TensorType};
    ///
    /// let numbers = Queue::<Tensor>::fifo("numbers", 10, &[TensorType::new(DType::F32, [])])?;
    /// let session = Session::new()?;
    /// let next = session.function(|| numbers.dequeue())?;
    /// std::thread::scope(|scope| {
    ///     let waiting = scope.spawn(|| next.call(()).unwrap_err());
    ///     session.close_queues();
    ///     assert_eq!(waiting.join().unwrap().kind, ErrorKind::Cancelled);
    /// });
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn close_queues(&self) {
        self.queues.close();
    }
}

impl<T: QueueElement> HostQueue<T> {
    /// Adds an element. Waits while the queue is full.
    ///
    /// # Errors
    /// Fails if the queue is closed, also during the wait, if the session ends, or if the tensors
    /// are not those of an element.
    pub fn push(&self, element: impl Feed<T>) -> Result<()> {
        self.push_until(None, element)
    }

    /// Adds an element like [`push`](Self::push), and waits no longer than `timeout`.
    ///
    /// # Errors
    /// Also fails, with the kind [`ErrorKind::DeadlineExceeded`](anabranch_dsl::ErrorKind), if the
    /// queue is still full then.
    pub fn push_timeout(&self, timeout: Duration, element: impl Feed<T>) -> Result<()> {
        self.push_until(Instant::now().checked_add(timeout), element)
    }

    fn push_until(&self, deadline: Option<Instant>, element: impl Feed<T>) -> Result<()> {
        let mut arguments = Arguments::default();
        element.feed(&mut arguments);
        let tensors = arguments.tensors().to_vec();
        let limits = WaitLimits { deadline, ..WaitLimits::default() };
        push_tensors(self.queue.any(), &self.shared, "push", tensors, limits, || {})
    }

    /// Removes an element. Waits until there is one. Returns `None` if the queue is closed and has
    /// no more.
    ///
    /// # Errors
    /// Fails if the queue was closed [with an error](Self::close_with) and has no more elements, or
    /// if the session ends.
    pub fn pop(&self) -> Result<Option<T::Host>> {
        self.pop_until(None)
    }

    /// Removes an element like [`pop`](Self::pop), and waits no longer than `timeout`.
    ///
    /// # Errors
    /// Also fails, with the kind [`ErrorKind::DeadlineExceeded`](anabranch_dsl::ErrorKind), if
    /// there is no element then.
    pub fn pop_timeout(&self, timeout: Duration) -> Result<Option<T::Host>> {
        self.pop_until(Instant::now().checked_add(timeout))
    }

    fn pop_until(&self, deadline: Option<Instant>) -> Result<Option<T::Host>> {
        let request = ElementRequest { n: 1, up_to: false };
        let poll = |state: &mut QueueState, waiter| {
            let outcome = state.take(waiter, request, 0);
            if let Poll::Ready(Ok(elements)) = &outcome {
                state.settle(elements);
            }
            outcome
        };
        let limits = WaitLimits { deadline, ..WaitLimits::default() };
        match self.shared.wait(QueueState::consumer, poll, limits, || {}) {
            Ok(elements) => {
                let tensors: Vec<HostTensor> =
                    elements.into_iter().flat_map(|QueuedElement { tensors, .. }| tensors).collect();
                Ok(Some((self.rebuild)(&mut tensors.into_iter())))
            }
            Err(WaitFailure::Queue(super::QueueFailure::HasTooFew { .. })) => Ok(None),
            Err(failure) => Err(self.shared.wait_failure("pop", failure)),
        }
    }

    /// Returns an iterator that [removes](Self::pop) elements until the queue is closed and has no
    /// more. It ends after an error.
    pub fn iter(&self) -> QueueIter<'_, T> {
        QueueIter { queue: self, has_ended: false }
    }

    /// Closes the queue: it takes no more elements. Calls that wait for room at this moment still
    /// add theirs. Closing a closed queue does nothing.
    ///
    /// # Errors
    /// Fails if the session has ended.
    pub fn close(&self) -> Result<()> {
        self.close_as(None, false)
    }

    /// Closes the queue, and ends the waits of those who wait for room with an error. The elements
    /// in it can still be removed.
    ///
    /// # Errors
    /// Fails if the session has ended.
    pub fn close_and_cancel(&self) -> Result<()> {
        self.close_as(None, true)
    }

    /// Closes the queue because its producer has failed. Whoever removes elements gets those in it,
    /// and then this error.
    ///
    /// # Errors
    /// Fails if the session has ended.
    ///
    /// ```
    /// use anabranch::{DType, Diagnostic, Queue, Session, TensorType, prelude::*};
    ///
    /// let session = Session::new()?;
    /// let lines = Queue::<Tensor>::fifo("lines", 10, &[TensorType::new(DType::F32, [])])?;
    /// let host = session.queue(&lines)?;
    /// host.push(1.0)?;
    /// host.close_with(Diagnostic::new("data.csv: row 2 is not a number"))?;
    /// let next = session.function(|| lines.dequeue())?;
    /// assert_eq!(next.call(())?, 1.0);
    /// let error = next.call(()).unwrap_err();
    /// assert!(error.message.ends_with("data.csv: row 2 is not a number"), "{error}");
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn close_with(&self, error: Diagnostic) -> Result<()> {
        self.close_as(Some(error), false)
    }

    fn close_as(&self, cause: Option<Diagnostic>, cancels: bool) -> Result<()> {
        let has_ended = self.shared.change(|state| {
            state.close(cause, cancels);
            state.has_session_ended()
        });
        match has_ended {
            true => Err(self.shared.failure("close", super::QueueFailure::SessionEnded)),
            false => Ok(()),
        }
    }

    /// Returns whether the queue is closed.
    pub fn is_closed(&self) -> bool {
        self.shared.state().is_closed()
    }

    /// Returns the number of elements. Elements that running calls have added or removed do not
    /// count.
    pub fn len(&self) -> usize {
        self.shared.state().len()
    }

    /// Returns the number of those who wait for room, and of those who wait for elements, so that
    /// tests can act while they wait.
    #[doc(hidden)]
    pub fn n_waiting(&self) -> (usize, usize) {
        let state = self.shared.state();
        (state.n_producers(), state.n_consumers())
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Adds an element, for the operation `op`. `added` is called while the queue is locked, in which
/// the element is from then on.
pub(super) fn push_tensors(
    queue: &AnyQueue,
    shared: &SharedQueue,
    op: &str,
    tensors: Vec<HostTensor>,
    limits: WaitLimits<'_>,
    added: impl FnOnce(),
) -> Result<()> {
    if !batch::is_element(queue.element(), &tensors) {
        return Err(not_an_element(queue, &tensors));
    }
    let poll = |state: &mut QueueState, waiter| state.reserve(waiter, 1, 0);
    let reserved = shared.wait(QueueState::producer, poll, limits, || {});
    reserved.map_err(|failure| shared.wait_failure(op, failure))?;
    shared.change(|state| {
        state.add(vec![tensors]);
        added();
    });
    Ok(())
}

/// The elements of a queue, for the host: see [`HostQueue::iter`].
#[derive(Debug)]
pub struct QueueIter<'a, T: QueueElement> {
    queue: &'a HostQueue<T>,
    has_ended: bool,
}

impl<T: QueueElement> Iterator for QueueIter<'_, T> {
    type Item = Result<T::Host>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let next = self.queue.pop().transpose();
        self.has_ended = !matches!(next, Some(Ok(_)));
        next
    }
}
