//! Elements of queues as batches, and batches as elements.

use anabranch_dsl::queue::QueueOrder;
use anabranch_dsl::{Buffer, Bytes, Diagnostic, ErrorKind, HostTensor, Result, TensorType, bf16, f16, memory};

/// Stacks the tensors of elements along a new first axis. `types` are the types of the tensors of
/// an element.
///
/// # Errors
/// Fails if the tensors of elements differ in their extents, unless the order pads them, and if
/// there is no memory. Without elements, all extents must be known.
pub(super) fn stack(order: QueueOrder, types: &[TensorType], elements: &[Vec<HostTensor>]) -> Result<Vec<HostTensor>> {
    types.iter().enumerate().map(|(i, ty)| stack_tensors(order, ty, i, elements)).collect()
}

fn stack_tensors(order: QueueOrder, ty: &TensorType, i: usize, elements: &[Vec<HostTensor>]) -> Result<HostTensor> {
    let first = elements.first().map(|element| element[i].shape().to_vec());
    let Some(mut extents) = first.or_else(|| ty.shape.known()) else {
        let message = format!("a batch of no elements has no extents: tensor {} of an element is {ty}", i + 1);
        return Err(Diagnostic::new(message).help("remove one element at least, or create the queue with extents"));
    };
    for element in elements {
        let shape = element[i].shape();
        if shape != extents && order != QueueOrder::Padding {
            let message =
                format!("tensor {} of the elements has the extents {extents:?} and {shape:?} in one batch", i + 1);
            return Err(Diagnostic::new(message).help("`Queue::padding` pads the elements of a batch with zeros"));
        }
        extents.iter_mut().zip(shape).for_each(|(most, &n)| *most = n.max(*most));
    }
    let shape: Vec<usize> = std::iter::once(elements.len()).chain(extents.iter().copied()).collect();
    let n_bytes = shape.iter().try_fold(ty.dtype.size(), |n, &extent| n.checked_mul(extent));
    check_memory(elements.len(), n_bytes.map_or(u128::MAX, |n| n as u128))?;
    let mut batch = Buffer::zeros(ty.dtype, shape.iter().product());
    let stride: usize = extents.iter().product();
    for (at, element) in elements.iter().enumerate() {
        place(&mut batch, at * stride, &extents, &element[i]);
    }
    Ok(HostTensor::from_buffer(shape, batch))
}

/// Copies a tensor to the begin of a block of `extents`, which starts at an offset.
fn place(to: &mut Buffer, offset: usize, extents: &[usize], from: &HostTensor) {
    let shape = from.shape();
    let run = shape.last().copied().unwrap_or(1);
    let n_runs = from.len().checked_div(run).unwrap_or(0);
    let mut index = vec![0; shape.len().saturating_sub(1)];
    for r in 0..n_runs {
        let start = index.iter().zip(extents).fold(0, |start, (&i, &n)| start * n + i);
        let start = offset + start * extents.last().copied().unwrap_or(1);
        copy(to, start, from.buffer(), r * run, run);
        for (i, &n) in index.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < n {
                break;
            }
            *i = 0;
        }
    }
}

/// Copies `n` elements.
pub(super) fn copy(to: &mut Buffer, at: usize, from: &Buffer, start: usize, n: usize) {
    fn slice<T: Clone>(to: &mut [T], at: usize, from: &[T], start: usize, n: usize) {
        to[at..at + n].clone_from_slice(&from[start..start + n]);
    }
    match (to, from) {
        (Buffer::F32(to), Buffer::F32(from)) => slice::<f32>(to, at, from, start, n),
        (Buffer::F64(to), Buffer::F64(from)) => slice::<f64>(to, at, from, start, n),
        (Buffer::F16(to), Buffer::F16(from)) => slice::<f16>(to, at, from, start, n),
        (Buffer::BF16(to), Buffer::BF16(from)) => slice::<bf16>(to, at, from, start, n),
        (Buffer::I32(to), Buffer::I32(from)) => slice::<i32>(to, at, from, start, n),
        (Buffer::I64(to), Buffer::I64(from)) => slice::<i64>(to, at, from, start, n),
        (Buffer::U32(to), Buffer::U32(from)) => slice::<u32>(to, at, from, start, n),
        (Buffer::U8(to), Buffer::U8(from)) => slice::<u8>(to, at, from, start, n),
        (Buffer::Bool(to), Buffer::Bool(from)) => slice::<bool>(to, at, from, start, n),
        (Buffer::Bytes(to), Buffer::Bytes(from)) => slice::<Bytes>(to, at, from, start, n),
        (to, from) => panic!("elements of type {} are copied to {}", from.dtype(), to.dtype()),
    }
}

/// Returns the number of elements of a batch: the first extent of its tensors.
///
/// # Errors
/// Fails if the tensors have different first extents.
pub(super) fn count(batch: &[HostTensor]) -> Result<usize> {
    let n = batch[0].shape()[0];
    if let Some((i, other)) = batch.iter().enumerate().find(|(_, tensor)| tensor.shape()[0] != n) {
        let message =
            format!("a batch has {n} elements by its first tensor and {} by tensor {}", other.shape()[0], i + 1);
        return Err(Diagnostic::new(message).help("give all tensors of the batch the same first extent"));
    }
    Ok(n)
}

/// The approximate number of bytes that the tensor of an element takes besides its numbers.
const BYTES_PER_TENSOR: u128 = (size_of::<HostTensor>() + size_of::<Buffer>() + 4 * size_of::<usize>()) as u128;

/// Returns the elements of a batch of `n`: one for each index of the first axis.
///
/// # Errors
/// Fails if there is no memory for them.
pub(super) fn unstack(batch: &[HostTensor], n: usize) -> Result<Vec<Vec<HostTensor>>> {
    let numbers = batch.iter().map(|tensor| tensor.len() as u128 * tensor.dtype().size() as u128);
    let per_element = size_of::<Vec<HostTensor>>() as u128 + batch.len() as u128 * BYTES_PER_TENSOR;
    check_memory(n, numbers.sum::<u128>() + n as u128 * per_element)?;
    let element = |at: usize| batch.iter().map(|tensor| slice_at(tensor, at)).collect();
    Ok((0..n).map(element).collect())
}

/// Fails if there is no memory for the bytes of a batch.
fn check_memory(n_elements: usize, n_bytes: u128) -> Result<()> {
    memory::check(n_bytes).map_err(|missing| {
        Diagnostic::new(format!("out of memory: a batch of {n_elements} elements needs {} bytes", missing.bytes))
            .of_kind(ErrorKind::ResourceExhausted)
            .help(memory::SMALLER)
    })
}

fn slice_at(tensor: &HostTensor, at: usize) -> HostTensor {
    let shape = tensor.shape()[1..].to_vec();
    let n: usize = shape.iter().product();
    let mut data = Buffer::zeros(tensor.dtype(), n);
    copy(&mut data, 0, tensor.buffer(), at * n, n);
    HostTensor::from_buffer(shape, data)
}

/// Returns whether tensors are an element of these types.
pub(super) fn is_element(types: &[TensorType], tensors: &[HostTensor]) -> bool {
    let fits = |(ty, tensor): (&TensorType, &HostTensor)| ty.compatible(&tensor.ty());
    types.len() == tensors.len() && types.iter().zip(tensors).all(fits)
}
