//! Queues: named channels of elements between the steps of a session, and between steps and the
//! host.
//!
//! A queue is an identity with the types of its elements, a capacity and an order. Its content is
//! stored in a session. So several sessions can use the same queue, each with its own content.
//!
//! The language knows a queue only by the operations of a graph on it ([`QueueOp`]). Engines run
//! these through [`StepQueues`], which belongs to the session.

use crate::function::{Feed, Input, Inputs, Output, Rebuild, Signature, trace_fn};
use crate::ir::{QueueId, QueueOp};
use crate::trace;
use crate::var::DropWatcher;
use crate::{AnyValue, DType, Diagnostic, Dim, HostTensor, Loc, Result, Tensor, TensorType};
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The order in which a queue gives up its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueOrder {
    /// First in, first out.
    Fifo,
    /// First in, first out. Elements may differ in extents that the queue leaves unknown: a batch
    /// of them is padded with zeros to the largest of its elements.
    Padding,
    /// Uniformly at random.
    Shuffle {
        /// The number of elements that stay in a queue that is not closed, so that elements are
        /// mixed.
        min_left: usize,
        /// The seed. Together with the sequence of operations it determines the order.
        seed: u64,
    },
    /// The element with the smallest first tensor, an `i64[]`, first. Equal elements are first in,
    /// first out.
    Priority,
}

/// A queue whose elements are known by their types only. Cloning returns another handle of the same
/// queue.
#[derive(Clone, Debug)]
pub struct AnyQueue(Arc<QueueInner>);

#[derive(Debug)]
struct QueueInner {
    id: u64,
    name: String,
    order: QueueOrder,
    capacity: usize,
    element: Vec<TensorType>,
    watchers: Mutex<Vec<Weak<dyn DropWatcher>>>,
}

impl Drop for QueueInner {
    fn drop(&mut self) {
        let watchers = self.watchers.get_mut().unwrap_or_else(PoisonError::into_inner);
        watchers.drain(..).filter_map(|watcher| watcher.upgrade()).for_each(|watcher| watcher.dropped(self.id));
    }
}

impl AnyQueue {
    /// Returns the identity, unique among the queues of the process.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns the name in messages and graphs. A name need not be unique.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the order of its elements.
    pub fn order(&self) -> QueueOrder {
        self.0.order
    }

    /// Returns the number of elements above which it takes no more.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Returns the types of the tensors of an element. Extents are numbers or unknown.
    pub fn element(&self) -> &[TensorType] {
        &self.0.element
    }

    /// Notifies `watcher`, if it still exists then, when the last handle of the queue is dropped.
    #[doc(hidden)]
    pub fn watch(&self, watcher: Weak<dyn DropWatcher>) {
        let mut watchers = self.0.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|other| other.strong_count() > 0);
        if !watchers.iter().any(|other| other.ptr_eq(&watcher)) {
            watchers.push(watcher);
        }
    }
}

/// A type of elements of queues: a tensor, or a tuple, array, `Vec`, `Option` or struct with
/// `#[derive(InOut)]` of tensors.
pub trait QueueElement: Input + Output<Host: Feed<Self>> + 'static {}
impl<T: Input + Output<Host: Feed<T>> + 'static> QueueElement for T {}

/// A queue of elements of type `T`. Cloning returns another handle of the same queue.
///
/// Its content belongs to a session. Graph functions add elements with [`enqueue`](Self::enqueue)
/// and remove them with [`dequeue`](Self::dequeue), in program order with their other effects, also
/// inside `if` and `while`. The host does the same through the session.
///
/// A call of a function is a transaction:
///
/// - Elements that it removes are out of the queue at once, for all others. If the call fails or is
///   cancelled, they return: to a FIFO queue in their old order, before all that were added later.
///   So no element is lost, and none is seen by two calls that succeed.
/// - Elements that it adds appear when it succeeds, together with its assignments. From the moment
///   at which it adds them they count against the capacity, so it waits while the queue is full.
///   It waits for others to remove elements, and not if that is in vain: if the queue is empty, or
///   the first of those who wait for elements needs more than there are, and all calls that have
///   added elements wait themselves, then it adds beyond the capacity.
/// - A call that removes from a queue without elements, or adds to a full one, waits for another
///   call or for the host. A deadline, a cancellation or the end of the queues of the session ends
///   the wait. It is an error instead if the call itself has added elements that it would wait for,
///   or more than the whole capacity: it does not wait for what others may add meanwhile.
/// - While a call waits, others may assign the variables that it uses. It then starts again, with
///   the elements and the room that it has.
///
/// A [closed](Self::close) queue takes no more elements. Those in it can be removed. Removing more
/// is an error of the kind [`ErrorKind::Closed`](crate::ErrorKind::Closed).
pub struct Queue<T: QueueElement> {
    any: AnyQueue,
    signature: Signature,
    element: PhantomData<fn(T) -> T>,
}

impl<T: QueueElement> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Queue { any: self.any.clone(), signature: self.signature.clone(), element: PhantomData }
    }
}

impl<T: QueueElement> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.any).finish()
    }
}

impl<T: QueueElement> Queue<T> {
    /// Creates a queue that gives up its elements in the order in which they were added.
    ///
    /// `element` lists the types of the tensors of an element, in the order in which `T` contains
    /// them. An unknown extent may differ between elements.
    ///
    /// # Errors
    /// Fails if the capacity is 0, or if the types are not those of a `T`.
    ///
    /// ```
    /// use anabranch::{DType, Queue, Session, TensorType, prelude::*};
    ///
    /// let types = [TensorType::new(DType::F32, [2]), TensorType::new(DType::I64, [])];
    /// let examples = Queue::<(Tensor, Tensor<i64>)>::fifo("examples", 100, &types)?;
    /// let session = Session::new()?;
    /// let host = session.queue(&examples)?;
    /// host.push(([1.0, 2.0], 7))?;
    /// let sum = session.function(|| {
    ///     let (x, label) = examples.dequeue();
    ///     (x.sum(), label)
    /// })?;
    /// assert_eq!(sum.call(())?.0, 3.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn fifo(name: impl Into<String>, capacity: usize, element: impl Into<Signature>) -> Result<Queue<T>> {
        Queue::new(name.into(), QueueOrder::Fifo, capacity, element.into())
    }

    /// Creates a queue like [`fifo`](Self::fifo) whose elements may differ in unknown extents.
    /// [`dequeue_many`](Self::dequeue_many) and [`dequeue_up_to`](Self::dequeue_up_to) pad each
    /// tensor with zeros to the largest extents among the elements that they return.
    ///
    /// # Errors
    /// Like [`fifo`](Self::fifo).
    ///
    /// ```
    /// use anabranch::{DType, Dim, Queue, Session, TensorType, prelude::*};
    ///
    /// let words = TensorType::new(DType::I64, [Dim::Unknown]);
    /// let lines = Queue::<Tensor<i64>>::padding("lines", 100, &[words])?;
    /// let session = Session::new()?;
    /// let host = session.queue(&lines)?;
    /// host.push(vec![1])?;
    /// host.push(vec![2, 3])?;
    /// let batch = session.function(|| lines.dequeue_many(2))?;
    /// assert_eq!(batch.call(())?.to_vec(), [1, 0, 2, 3]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn padding(name: impl Into<String>, capacity: usize, element: impl Into<Signature>) -> Result<Queue<T>> {
        Queue::new(name.into(), QueueOrder::Padding, capacity, element.into())
    }

    /// Creates a queue that gives up its elements in random order. While it is open, it keeps
    /// `min_left` elements: one is removed only if that many are left.
    ///
    /// # Errors
    /// Like [`fifo`](Self::fifo). Also fails if `min_left` is not less than the capacity: then no
    /// element could be removed.
    ///
    /// ```
    /// use anabranch::{DType, Queue, Session, TensorType, prelude::*};
    ///
    /// let number = TensorType::new(DType::I64, []);
    /// let queue = Queue::<Tensor<i64>>::shuffle("numbers", 100, 10, 1, &[number])?;
    /// let session = Session::new()?;
    /// let host = session.queue(&queue)?;
    /// for i in 0..20 {
    ///     host.push(i)?;
    /// }
    /// host.close()?;
    /// let numbers = host.iter().map(|n| Ok(n?.item()));
    /// let mut numbers = numbers.collect::<anabranch::Result<Vec<i64>>>()?;
    /// assert_ne!(numbers, (0..20).collect::<Vec<_>>());
    /// numbers.sort();
    /// assert_eq!(numbers, (0..20).collect::<Vec<_>>());
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn shuffle(
        name: impl Into<String>,
        capacity: usize,
        min_left: usize,
        seed: u64,
        element: impl Into<Signature>,
    ) -> Result<Queue<T>> {
        Queue::new(name.into(), QueueOrder::Shuffle { min_left, seed }, capacity, element.into())
    }

    /// Creates a queue that gives up the element with the smallest first tensor first. The first
    /// tensor of an element is an `i64[]`, its priority.
    ///
    /// # Errors
    /// Like [`fifo`](Self::fifo). Also fails if the first tensor is not an `i64[]`.
    ///
    /// ```
    /// use anabranch::{DType, Queue, Session, TensorType, prelude::*};
    ///
    /// let types = [TensorType::new(DType::I64, []), TensorType::new(DType::F32, [])];
    /// let queue = Queue::<(Tensor<i64>, Tensor)>::priority("tasks", 10, &types)?;
    /// let session = Session::new()?;
    /// let host = session.queue(&queue)?;
    /// host.push((2, 0.5))?;
    /// host.push((1, 1.5))?;
    /// let first = host.pop()?.expect("the queue is open");
    /// assert_eq!(first.1, 1.5);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn priority(name: impl Into<String>, capacity: usize, element: impl Into<Signature>) -> Result<Queue<T>> {
        Queue::new(name.into(), QueueOrder::Priority, capacity, element.into())
    }

    #[track_caller]
    fn new(name: String, order: QueueOrder, capacity: usize, element: Signature) -> Result<Queue<T>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let loc = Loc::caller();
        let wrong = |what: String, help: &str| {
            Err(Diagnostic::new(format!("the queue `{name}` {what}")).at(loc, "created here").help(help))
        };
        if capacity == 0 {
            return wrong("has a capacity of 0".to_owned(), "give it room for one element or more");
        }
        if let QueueOrder::Shuffle { min_left, .. } = order
            && min_left >= capacity
        {
            let what = format!("keeps {min_left} elements, but has a capacity of {capacity}");
            return wrong(what, "keep fewer elements than fit in it, so that some can be removed");
        }
        let types = element.types();
        if types.is_empty() {
            return wrong("has elements without tensors".to_owned(), "list the types of the tensors of an element");
        }
        if let Some(ty) = types.iter().find(|ty| ty.shape.dims().iter().any(|d| matches!(d, Dim::Named(_)))) {
            return wrong(format!("has elements of type {ty}"), "an extent of an element is a number or unknown");
        }
        let is_priority = |ty: &TensorType| ty.dtype == DType::I64 && ty.rank() == 0;
        if order == QueueOrder::Priority && !is_priority(&types[0]) {
            let what = format!("has elements that start with {}", types[0]);
            return wrong(what, "the first tensor of an element is its priority, an i64[]");
        }
        let signature = element.with_lengths(T::LAYOUT).map_err(|e| e.at(loc, "created here"))?;
        let types = signature.types().to_vec();
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let any =
            AnyQueue(Arc::new(QueueInner { id, name, order, capacity, element: types, watchers: Mutex::default() }));
        let queue = Queue { any, signature, element: PhantomData };
        if !trace::is_tracing() {
            let _checked = queue.rebuild().map_err(|e| e.at(loc, "created here"))?;
        }
        Ok(queue)
    }

    /// Returns the untyped handle.
    pub fn any(&self) -> &AnyQueue {
        &self.any
    }

    /// Returns a function that makes the host value of an element from its tensors.
    #[doc(hidden)]
    pub fn rebuild(&self) -> Result<Rebuild<T::Host>> {
        Ok(trace_fn(self.any.name(), &|element: T| element, self.signature.clone())?.1)
    }

    /// Adds an element, in a graph function.
    #[track_caller]
    pub fn enqueue(&self, element: T) {
        self.add(QueueOp::Enqueue, element);
    }

    /// Adds an element for each index of the first axis of its tensors, in a graph function. All
    /// tensors have the same first extent. They are added together: either there is room for all,
    /// or the call waits.
    #[track_caller]
    pub fn enqueue_many(&self, elements: T) {
        self.add(QueueOp::EnqueueMany, elements);
    }

    #[track_caller]
    fn add(&self, op: QueueOp, element: T) {
        let mut tensors = Vec::new();
        element.flatten(&mut tensors);
        trace::queue_op(&self.any, op, &tensors);
    }

    /// Removes an element, in a graph function. Waits until there is one.
    #[track_caller]
    pub fn dequeue(&self) -> T {
        self.remove(QueueOp::Dequeue, &[])
    }

    /// Removes `n` elements, in a graph function, and returns their tensors stacked along a new
    /// first axis. Waits until all have been there. `n` may exceed the capacity.
    ///
    /// If `n` is a tensor, the extent of the first axis is unknown in the graph, and the call fails
    /// if `n` is negative.
    ///
    /// If the queue is closed before, the call fails, and the elements stay in the queue.
    ///
    /// ```
    /// use anabranch::{DType, Queue, Session, TensorType, prelude::*};
    ///
    /// let queue = Queue::<Tensor<i64>>::fifo("numbers", 100, &[TensorType::new(DType::I64, [])])?;
    /// let session = Session::new()?;
    /// let host = session.queue(&queue)?;
    /// (1..=5).try_for_each(|i| host.push(i))?;
    /// let two = session.function(|| queue.dequeue_many(2))?;
    /// assert_eq!(two.call(())?.to_vec(), [1, 2]);
    /// let some = session.function(|n: Tensor<i32>| queue.dequeue_many(n))?;
    /// assert_eq!(some.call(3)?.to_vec(), [3, 4, 5]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn dequeue_many(&self, n: impl ElementCount) -> T {
        self.remove_batch(QueueOp::DequeueMany, n)
    }

    /// Removes `n` elements like [`dequeue_many`](Self::dequeue_many). If the queue is closed and
    /// has fewer left, removes these, at least one.
    #[track_caller]
    pub fn dequeue_up_to(&self, n: impl ElementCount) -> T {
        self.remove_batch(QueueOp::DequeueUpTo, n)
    }

    #[track_caller]
    fn remove_batch(&self, op: impl Fn(Option<usize>) -> QueueOp, n: impl ElementCount) -> T {
        let operand = n.tensor().map(Tensor::untyped);
        self.remove(op(n.known()), operand.as_slice())
    }

    #[track_caller]
    fn remove(&self, op: QueueOp, operands: &[AnyValue]) -> T {
        let tensors = trace::queue_op(&self.any, op, operands);
        let element = Inputs::with_values(&self.signature, tensors, |inputs| T::trace(inputs));
        element.unwrap_or_else(|e| trace::fail(e.at(Loc::caller(), "removed here")))
    }

    /// Closes the queue when the call succeeds, in a graph function: it takes no more elements from
    /// later calls. Calls that wait for room at that time still add their elements. Closing a
    /// closed queue does nothing.
    #[track_caller]
    pub fn close(&self) {
        trace::queue_op(&self.any, QueueOp::Close, &[]);
    }

    /// Returns the number of elements in the queue, an `i64[]`, in a graph function. Elements that
    /// calls which are still running have added or removed do not count.
    #[track_caller]
    pub fn len(&self) -> Tensor<i64> {
        Tensor::from_any(trace::queue_op(&self.any, QueueOp::Len, &[])[0])
    }
}

/// A number of elements to remove: a host number or a scalar tensor.
pub trait ElementCount: Copy {
    /// Returns the number, unless it is a tensor.
    fn known(self) -> Option<usize>;

    /// Returns the tensor, unless it is a host number.
    fn tensor(self) -> Option<Tensor<i32>>;
}

impl ElementCount for usize {
    fn known(self) -> Option<usize> {
        Some(self)
    }

    fn tensor(self) -> Option<Tensor<i32>> {
        None
    }
}

impl ElementCount for Tensor<i32> {
    fn known(self) -> Option<usize> {
        None
    }

    fn tensor(self) -> Option<Tensor<i32>> {
        Some(self)
    }
}

/// The queues of a running step, as an engine sees them. The session provides them.
pub trait StepQueues: Send + Sync {
    /// Runs an operation, which may wait. `queue` is the number in the graph of the whole function.
    ///
    /// Returns the results of the operation.
    ///
    /// # Errors
    /// Fails if the queue is closed, if the wait ends, or if the operands are no elements of the
    /// queue.
    fn run(&self, queue: QueueId, op: QueueOp, operands: Vec<HostTensor>, loc: Loc) -> Result<Vec<HostTensor>>;

    /// Ends the waits of running and later operations with an error, because another part of the
    /// step has failed. Any thread may call it.
    fn interrupt(&self) {}

    /// Returns whether the error of an operation since the last call is that of an
    /// [interrupted](Self::interrupt) wait.
    fn take_interruption(&self) -> bool {
        false
    }
}

/// The queues of a run without a session.
#[derive(Debug)]
pub struct NoQueues;

impl StepQueues for NoQueues {
    fn run(&self, _: QueueId, op: QueueOp, _: Vec<HostTensor>, loc: Loc) -> Result<Vec<HostTensor>> {
        Err(Diagnostic::new(format!("{}: there are no queues outside a session", op.name()))
            .at(loc, "used here")
            .help("call the function in a session: `session.function(f)?.call(..)`"))
    }
}
