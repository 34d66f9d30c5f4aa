//! The content of a queue for files, which have no lists of tensors that differ in extents.

use super::batch;
use anabranch_dsl::queue::AnyQueue;
use anabranch_dsl::{Buffer, Diagnostic, ErrorKind, HostTensor, Result, TensorType, memory};

/// The content of a queue at one moment between two steps.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueContent {
    /// The tensors of each element, in the order of the queue. The order in a shuffle queue
    /// determines, together with `random`, what it gives up next.
    pub elements: Vec<Vec<HostTensor>>,
    /// The state of the random numbers of a shuffle queue.
    pub random: Option<u64>,
    /// Whether the queue is closed.
    pub is_closed: bool,
    /// The error with which its producer has closed it.
    pub cause: Option<Box<Diagnostic>>,
}

/// One of the tensors of all elements of a queue.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueColumn {
    /// The values of all elements, one after the other.
    pub values: HostTensor,
    /// The extents of each element: an `i64[elements, rank]`.
    pub extents: HostTensor,
}

impl QueueContent {
    /// Returns the elements of a queue as columns, one for each tensor of an element. These need as
    /// much memory as the elements.
    ///
    /// # Errors
    /// Fails if there is not enough memory.
    pub fn columns(&self, queue: &AnyQueue) -> Result<Vec<QueueColumn>> {
        let column = |(i, ty): (usize, &TensorType)| {
            let tensors = || self.elements.iter().map(|element| &element[i]);
            let n: usize = tensors().map(HostTensor::len).sum();
            memory::check(n as u128 * ty.dtype.size() as u128).map_err(|missing| {
                let message =
                    format!("out of memory: saving the queue `{}` needs {} bytes", queue.name(), missing.bytes);
                Diagnostic::new(message).of_kind(ErrorKind::ResourceExhausted)
            })?;
            let mut values = Buffer::zeros(ty.dtype, n);
            let (mut extents, mut at) = (Vec::new(), 0);
            for tensor in tensors() {
                batch::copy(&mut values, at, tensor.buffer(), 0, tensor.len());
                at += tensor.len();
                extents.extend(tensor.shape().iter().map(|&n| n as i64));
            }
            let extents = HostTensor::new([self.elements.len(), ty.rank()], extents);
            Ok(QueueColumn { values: HostTensor::from_buffer(vec![at], values), extents })
        };
        queue.element().iter().enumerate().map(column).collect()
    }

    /// Returns the elements that columns from a file have, or what is wrong with these.
    pub fn elements_of(queue: &AnyQueue, columns: &[QueueColumn]) -> std::result::Result<Vec<Vec<HostTensor>>, String> {
        let types = queue.element();
        let mut elements: Vec<Vec<HostTensor>> = Vec::new();
        for (i, (QueueColumn { values, extents }, ty)) in columns.iter().zip(types).enumerate() {
            let wrong = |why: String| format!("tensor {} of the elements: {why}", i + 1);
            let rank = ty.rank();
            let n = match extents.shape() {
                [n, of_rank] if *of_rank == rank && (i == 0 || *n == elements.len()) => *n,
                shape => return Err(wrong(format!("the extents have the shape {shape:?}"))),
            };
            let all = extents.as_slice::<i64>().ok_or_else(|| wrong("the extents are not of type i64".to_owned()))?;
            if values.dtype() != ty.dtype || values.rank() != 1 {
                return Err(wrong(format!("the values are {}", values.ty())));
            }
            if rank == 0 && n != values.len() {
                // The extents of scalars need no memory, whatever their number.
                return Err(wrong(format!("there are {} values, but {n} elements", values.len())));
            }
            if i == 0 {
                elements.resize_with(n, Vec::new);
            }
            let mut at = 0;
            for (number, element) in elements.iter_mut().enumerate() {
                let shape = all[number * rank..][..rank].iter().map(|&extent| usize::try_from(extent));
                let shape: Option<Vec<usize>> = shape.collect::<std::result::Result<_, _>>().ok();
                let len = shape.as_ref().and_then(|shape| shape.iter().try_fold(1, |n: usize, &d| n.checked_mul(d)));
                let (Some(shape), Some(len)) = (shape, len.filter(|&len| len <= values.len() - at)) else {
                    return Err(wrong(format!("the extents of element {number} are damaged")));
                };
                let mut data = Buffer::zeros(ty.dtype, len);
                batch::copy(&mut data, 0, values.buffer(), at, len);
                at += len;
                element.push(HostTensor::from_buffer(shape, data));
            }
            if at != values.len() {
                return Err(wrong(format!("there are {} values, but the extents are those of {at}", values.len())));
            }
        }
        match elements.iter().position(|element| !batch::is_element(types, element)) {
            Some(number) => Err(format!("element {number} is not of the type of the queue")),
            None => Ok(elements),
        }
    }
}
