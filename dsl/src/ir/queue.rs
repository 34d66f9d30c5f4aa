//! Operations on queues.

use super::infer::{Broken, broken};
use crate::ops::Arity;
use crate::{DType, Dim, Shape, TensorType, Type};

/// A queue that a graph uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDecl {
    /// The name, unique among the queues of the graph.
    pub name: String,
    /// The types of the tensors of an element. Extents are numbers or unknown.
    pub element: Vec<TensorType>,
}

/// An operation on a queue.
///
/// It runs in program order with the other effects of its step. See [`Queue`](crate::Queue) for the
/// semantics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueOp {
    /// `(tensors)`: adds an element.
    Enqueue,
    /// `(tensors)`: adds an element for each index of the first axis.
    EnqueueMany,
    /// `() -> tensors`: removes an element.
    Dequeue,
    /// `() -> tensors`: removes this number of elements, stacked along a new first axis. Without a
    /// number, `(n) -> tensors`: the number is an `i32[]`.
    DequeueMany(Option<usize>),
    /// `() -> tensors`: removes this number of elements, or fewer if the queue is closed and has
    /// no more. Without a number, `(n) -> tensors`: the number is an `i32[]`.
    DequeueUpTo(Option<usize>),
    /// `()`: closes the queue when the step is committed.
    Close,
    /// `() -> i64[]`: the number of elements.
    Len,
}

impl QueueOp {
    /// The names of all operations in the text form.
    pub(crate) const NAMES: [&str; 7] =
        ["enqueue", "enqueue_many", "dequeue", "dequeue_many", "dequeue_up_to", "close_queue", "queue_len"];

    /// Returns the name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            QueueOp::Enqueue => "enqueue",
            QueueOp::EnqueueMany => "enqueue_many",
            QueueOp::Dequeue => "dequeue",
            QueueOp::DequeueMany(_) => "dequeue_many",
            QueueOp::DequeueUpTo(_) => "dequeue_up_to",
            QueueOp::Close => "close_queue",
            QueueOp::Len => "queue_len",
        }
    }

    /// Returns the operation with a name. `n` is its number of elements, if that is no operand.
    pub(crate) fn by_name(name: &str, n: Option<usize>) -> Option<QueueOp> {
        Some(match name {
            "enqueue" => QueueOp::Enqueue,
            "enqueue_many" => QueueOp::EnqueueMany,
            "dequeue" => QueueOp::Dequeue,
            "dequeue_many" => QueueOp::DequeueMany(n),
            "dequeue_up_to" => QueueOp::DequeueUpTo(n),
            "close_queue" => QueueOp::Close,
            "queue_len" => QueueOp::Len,
            _ => return None,
        })
    }

    /// Returns the number of elements that the operation names.
    pub fn count(self) -> Option<usize> {
        match self {
            QueueOp::DequeueMany(n) | QueueOp::DequeueUpTo(n) => n,
            _ => None,
        }
    }

    /// Returns whether the operation removes a batch, so that it has a number of elements.
    pub(crate) fn removes_batch(self) -> bool {
        matches!(self, QueueOp::DequeueMany(_) | QueueOp::DequeueUpTo(_))
    }

    pub(crate) fn arity(self) -> Arity {
        match self {
            QueueOp::Enqueue | QueueOp::EnqueueMany => Arity::AtLeast(1),
            QueueOp::DequeueMany(None) | QueueOp::DequeueUpTo(None) => Arity::Exactly(1),
            _ => Arity::Exactly(0),
        }
    }

    /// Returns the types of the results, or the fault of the operands.
    pub(crate) fn result_types(self, queue: &QueueDecl, operands: &[&Type]) -> Result<Vec<Type>, Broken> {
        let batches = |n: Dim| queue.element.iter().map(|ty| Type::Tensor(batch_of(ty, n.clone()))).collect();
        match self {
            QueueOp::Enqueue => self.check(queue, operands, queue.element.clone()).map(|()| Vec::new()),
            QueueOp::EnqueueMany => {
                let batches = queue.element.iter().map(|ty| batch_of(ty, Dim::Unknown));
                self.check(queue, operands, batches.collect()).map(|()| Vec::new())
            }
            QueueOp::Dequeue => Ok(queue.element.iter().cloned().map(Type::Tensor).collect()),
            QueueOp::DequeueMany(Some(n)) => Ok(batches(Dim::Known(n))),
            QueueOp::DequeueUpTo(Some(_)) => Ok(batches(Dim::Unknown)),
            QueueOp::DequeueMany(None) | QueueOp::DequeueUpTo(None) => {
                let number = Type::Tensor(TensorType::new(DType::I32, ()));
                match operands {
                    [given] if **given == number => Ok(batches(Dim::Unknown)),
                    _ => {
                        let given: Vec<String> = operands.iter().map(ToString::to_string).collect();
                        let message = format!("the number of elements is an {number}, but got {}", given.join(", "));
                        Err(broken(14, message))
                    }
                }
            }
            QueueOp::Close => Ok(Vec::new()),
            QueueOp::Len => Ok(vec![Type::Tensor(TensorType::new(DType::I64, ()))]),
        }
    }

    fn check(self, queue: &QueueDecl, operands: &[&Type], expected: Vec<TensorType>) -> Result<(), Broken> {
        let QueueDecl { name, .. } = queue;
        if operands.len() != expected.len() {
            let message = format!(
                "an element of the queue `{name}` has {}, but got {}",
                super::count(expected.len(), "tensor"),
                operands.len()
            );
            return Err(broken(14, message));
        }
        for (i, (given, expected)) in operands.iter().zip(expected).enumerate() {
            if !given.compatible(&Type::Tensor(expected.clone())) {
                let of = if self == QueueOp::EnqueueMany { "a batch of elements" } else { "an element" };
                let message = format!("tensor {} of {of} of the queue `{name}` is {expected}, but got {given}", i + 1);
                return Err(broken(14, message));
            }
        }
        Ok(())
    }
}

/// Returns the type of `n` stacked tensors.
fn batch_of(ty: &TensorType, n: Dim) -> TensorType {
    let dims = std::iter::once(n).chain(ty.shape.dims().iter().cloned());
    TensorType { dtype: ty.dtype, shape: dims.collect::<Shape>() }
}
