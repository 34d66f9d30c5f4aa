//! Lists of tensors in host memory.
//!
//! These functions define the semantics of the [operations on lists](crate::ir::ListOp), and the
//! errors that every engine returns in the same words.
//!
//! Invariant: a written element has the element type of the list and a shape that its type allows.

use super::counted::{CountedTensor, ELEMENT_BYTES};
use crate::ir::ListOp;
use crate::memory::{self, HeldBytes, OutOfMemory, SMALLER};
use crate::ops::{EvalCx, prim};
use crate::{Buffer, DType, Diagnostic, Dim, ErrorKind, HostTensor, Loc, Result, TensorType, match_buffer};
use std::sync::Arc;

/// A list of tensors.
#[derive(Debug)]
pub struct HostList {
    element: TensorType,
    /// The elements, `None` for those that are not written. If the element type has a known shape,
    /// these are zeros.
    items: Items,
    /// The bytes of `items` that count in the budget of the run.
    held: Option<HeldBytes>,
}

/// The elements of lists that are copies share their tensors.
type Items = Vec<Option<Arc<CountedTensor>>>;

/// The bytes as which an element of [`Items`] counts.
const ITEM_BYTES: usize = size_of::<Option<Arc<CountedTensor>>>();

impl Clone for HostList {
    fn clone(&self) -> HostList {
        HostList::of(self.element.clone(), self.items.clone())
    }
}

/// Returns the error of a list operation.
fn error(op: &ListOp, message: impl std::fmt::Display, loc: Loc) -> Diagnostic {
    Diagnostic::new(format!("{}: {message}", op.name())).at(loc, "in this operation")
}

/// Returns the error of a list operation for which there is not enough memory.
fn exhausted(op: &ListOp, message: impl std::fmt::Display, loc: Loc) -> Diagnostic {
    error(op, message, loc).of_kind(ErrorKind::ResourceExhausted)
}

/// Returns the error of an index that is negative or not less than the length.
pub fn out_of_range(op: &ListOp, index: i32, len: usize, loc: Loc) -> Diagnostic {
    let elements = if len == 1 { "element" } else { "elements" };
    error(op, format_args!("index {index} is out of bounds for a list of {len} {elements}"), loc)
        .help("indices count from 0")
}

/// Returns the error of an element that is written a second time.
pub fn written_twice(op: &ListOp, index: i32, len: usize, loc: Loc) -> Diagnostic {
    error(op, format_args!("element {index} of a list of {len} is already written"), loc)
        .help("an element can be written only once; in a tensor it can change: `x = x.with_row(i, value)`")
}

/// Returns the error of an element whose shape the type of the list does not allow.
pub fn wrong_shape(op: &ListOp, given: &TensorType, element: &TensorType, index: usize, loc: Loc) -> Diagnostic {
    error(op, format_args!("element {index} is {given}, but the list has elements of type {element}"), loc)
        .help("an extent of `Dim::Unknown` in the shape of a list matches elements of any extent")
}

/// Returns the error of reading an element of an empty list.
pub fn empty(op: &ListOp, loc: Loc) -> Diagnostic {
    error(op, "the list is empty", loc).help("check that `list.len()` is greater than 0")
}

/// Returns the error of a list of negative length.
pub fn negative_length(op: &ListOp, len: i32, loc: Loc) -> Diagnostic {
    error(op, format_args!("the length {len} of a list is negative"), loc).help("a length is at least 0")
}

/// Returns the error of lists of different lengths.
pub fn lengths_differ(op: &ListOp, a: usize, b: usize, loc: Loc) -> Diagnostic {
    error(op, format_args!("the lengths differ, {a} and {b}"), loc).help("both must have the same length")
}

/// Returns the error of indices and values of different numbers.
pub fn wrong_count(op: &ListOp, indices: usize, values: usize, loc: Loc) -> Diagnostic {
    error(op, format_args!("{indices} indices, but {values} values"), loc)
        .help("pass one index for each slice of the values along axis 0")
}

/// Returns the error of a result whose extent is not that of the operation.
pub fn wrong_extent(op: &ListOp, extent: usize, expected: &Dim, loc: Loc) -> Diagnostic {
    let (what, help) = match op {
        ListOp::Split(_) => ("a part has extent", "each part needs the extent that the type of the list has"),
        ListOp::Concat(_) => {
            ("the elements have the total extent", "the result needs the sum of the extents of the elements")
        }
        _ => ("the length is", "pass the number that the list has, or use `stack()`, which accepts every length"),
    };
    error(op, format_args!("{what} {extent}, not {expected}"), loc).help(help)
}

/// Returns the error of parts whose extents do not add up to that of the axis.
pub fn wrong_parts(op: &ListOp, sum: i64, extent: usize, loc: Loc) -> Diagnostic {
    error(op, format_args!("the parts sum to {sum}, but the axis has extent {extent}"), loc)
        .help("split into parts that cover the whole axis")
}

/// Returns the error of a part of negative extent.
pub fn negative_part(op: &ListOp, part: i32, index: usize, loc: Loc) -> Diagnostic {
    error(op, format_args!("part {index} has the negative extent {part}"), loc).help("an extent is at least 0")
}

/// Returns the error of a list of `len` elements, for which there is no memory.
pub fn too_many(op: &ListOp, len: usize, element: &TensorType, missing: OutOfMemory, loc: Loc) -> Diagnostic {
    let mut error = exhausted(op, format_args!("out of memory: {len} elements need {} bytes", missing.bytes), loc);
    error.labels[0].1 = format!("the elements: {element}");
    error.help("use a shorter list or smaller elements")
}

/// Checks that there is memory for a tensor that an operation makes of elements.
pub fn check_memory(op: &ListOp, result: &TensorType, loc: Loc) -> Result<()> {
    let bytes = result.n_bytes().expect("the shape of a result is known");
    memory::check(bytes).map_err(|missing| {
        exhausted(op, format_args!("out of memory: {result} needs {} bytes", missing.bytes), loc).help(SMALLER)
    })
}

/// Returns the index if it is in range for a list of this length.
pub fn check_index(op: &ListOp, index: i32, len: usize, loc: Loc) -> Result<usize> {
    usize::try_from(index).ok().filter(|&i| i < len).ok_or_else(|| out_of_range(op, index, len, loc))
}

/// Checks an extent against that of the operation. A named extent matches all.
pub fn check_extent(op: &ListOp, extent: usize, expected: &Dim, loc: Loc) -> Result<()> {
    match expected {
        Dim::Known(n) if *n != extent => Err(wrong_extent(op, extent, expected, loc)),
        _ => Ok(()),
    }
}

/// Checks the parts that an axis is split into.
pub fn check_parts(op: &ListOp, parts: &[i32], extent: usize, expected: &Dim, loc: Loc) -> Result<()> {
    for (i, &part) in parts.iter().enumerate() {
        let n = usize::try_from(part).map_err(|_| negative_part(op, part, i, loc))?;
        check_extent(op, n, expected, loc)?;
    }
    let sum: i64 = parts.iter().map(|&n| i64::from(n)).sum();
    if sum == extent as i64 { Ok(()) } else { Err(wrong_parts(op, sum, extent, loc)) }
}

/// Returns a tensor as it is stored.
fn stored(item: HostTensor) -> Arc<CountedTensor> {
    Arc::new(CountedTensor::new(item))
}

/// Returns `n` rows of a tensor from `start`, as a tensor of the given shape.
fn rows(tensor: &HostTensor, start: usize, n: usize, shape: Vec<usize>) -> HostTensor {
    let stride: usize = tensor.shape()[1..].iter().product();
    let range = start * stride..(start + n) * stride;
    match_buffer!(tensor.buffer(), d => HostTensor::new(shape, d[range].to_vec()))
}

/// The shape and the tensor of an element that is read. `None` is an unwritten element, which is
/// zeros.
#[derive(Clone, Copy)]
struct ListElement<'a> {
    shape: &'a [usize],
    tensor: Option<&'a HostTensor>,
}

/// Returns elements of one element type, concatenated, as a tensor of the given shape.
fn joined(op: &ListOp, dtype: DType, parts: &[ListElement<'_>], shape: Vec<usize>, loc: Loc) -> Result<HostTensor> {
    check_memory(op, &TensorType::new(dtype, shape.clone()), loc)?;
    let mut all = Buffer::zeros(dtype, shape.iter().product());
    let mut start = 0;
    for part in parts {
        let range = start..start + part.shape.iter().product::<usize>();
        start = range.end;
        match (&mut all, part.tensor.map(HostTensor::buffer)) {
            (_, None) => {}
            (Buffer::F32(a), Some(Buffer::F32(b))) => a[range].copy_from_slice(b),
            (Buffer::F64(a), Some(Buffer::F64(b))) => a[range].copy_from_slice(b),
            (Buffer::F16(a), Some(Buffer::F16(b))) => a[range].copy_from_slice(b),
            (Buffer::BF16(a), Some(Buffer::BF16(b))) => a[range].copy_from_slice(b),
            (Buffer::I32(a), Some(Buffer::I32(b))) => a[range].copy_from_slice(b),
            (Buffer::I64(a), Some(Buffer::I64(b))) => a[range].copy_from_slice(b),
            (Buffer::U32(a), Some(Buffer::U32(b))) => a[range].copy_from_slice(b),
            (Buffer::U8(a), Some(Buffer::U8(b))) => a[range].copy_from_slice(b),
            (Buffer::Bool(a), Some(Buffer::Bool(b))) => a[range].copy_from_slice(b),
            (Buffer::Bytes(a), Some(Buffer::Bytes(b))) => a[range].clone_from_slice(b),
            (a, Some(b)) => panic!("elements of {} and {} in one list", a.dtype(), b.dtype()),
        }
    }
    Ok(HostTensor::from_buffer(shape, all))
}

fn sum(op: &ListOp, a: &HostTensor, b: &HostTensor, loc: Loc) -> Result<HostTensor> {
    let add = prim::ADD;
    let cx = EvalCx { operands: &[a, b], attrs: &Default::default(), ty: &a.ty() };
    add.evaluate(&cx).map_err(|e| e.at(op.name(), loc))
}

/// Returns a vector with capacity for `n` elements. Fails if the elements would not fit into memory
/// once written.
fn with_capacity(op: &ListOp, n: usize, element: &TensorType, loc: Loc) -> Result<Items> {
    let mut items = Vec::new();
    let bytes = n as u128 * ITEM_BYTES as u128;
    let room = memory::check(n as u128 * element.n_bytes().unwrap_or(0))
        .and_then(|()| match op {
            ListOp::New(_) => memory::check_budget(|| bytes),
            _ => memory::check_budget(|| bytes + n as u128 * ELEMENT_BYTES as u128),
        })
        .and_then(|()| items.try_reserve_exact(n).map_err(|_| OutOfMemory { bytes }));
    room.map_err(|missing| too_many(op, n, element, missing, loc))?;
    Ok(items)
}

impl HostList {
    /// Creates an empty list.
    pub fn new(element: TensorType) -> HostList {
        HostList::from_items(element, Vec::new())
    }

    /// Creates a list of elements.
    pub fn from_items(element: TensorType, items: Vec<Option<HostTensor>>) -> HostList {
        HostList::of(element, items.into_iter().map(|item| item.map(stored)).collect())
    }

    fn of(element: TensorType, items: Items) -> HostList {
        let held = memory::hold(|| items.len() * ITEM_BYTES);
        HostList { element, items, held }
    }

    /// Returns the elements, `None` for those that are not written.
    pub fn items(&self) -> impl ExactSizeIterator<Item = Option<&HostTensor>> {
        (0..self.len()).map(|i| self.written(i))
    }

    /// Returns an element, if it is written.
    fn written(&self, i: usize) -> Option<&HostTensor> {
        self.items[i].as_ref().map(|item| item.tensor())
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the type of the elements.
    pub fn element(&self) -> &TensorType {
        &self.element
    }

    /// Sets a less exact type of the elements.
    pub fn set_element(&mut self, element: TensorType) {
        self.element = element;
    }

    /// Returns the list that an operation makes from tensors. Supports all but
    /// [`ListOp::ZerosLike`].
    pub fn make(op: &ListOp, element: TensorType, operands: &[HostTensor], loc: Loc) -> Result<HostList> {
        let items = match op {
            ListOp::New(_) => {
                let n = operands[0].data::<i32>()[0];
                let n = usize::try_from(n).map_err(|_| negative_length(op, n, loc))?;
                let mut items = with_capacity(op, n, &element, loc)?;
                items.resize(n, None);
                items
            }
            ListOp::Unstack => {
                let x = &operands[0];
                check_memory(op, &x.ty(), loc)?;
                let n = x.shape()[0];
                let mut items = with_capacity(op, n, &element, loc)?;
                items.extend((0..n).map(|i| Some(stored(rows(x, i, 1, x.shape()[1..].to_vec())))));
                items
            }
            ListOp::Restore => {
                let (x, written) = (&operands[0], operands[1].data::<bool>());
                if x.shape()[0] != written.len() {
                    return Err(lengths_differ(op, x.shape()[0], written.len(), loc));
                }
                let row =
                    |(i, &is_there): (usize, &bool)| is_there.then(|| stored(rows(x, i, 1, x.shape()[1..].to_vec())));
                check_memory(op, &x.ty(), loc)?;
                let mut items = with_capacity(op, written.len(), &element, loc)?;
                items.extend(written.iter().enumerate().map(row));
                items
            }
            ListOp::Split(extent) => {
                let (x, parts) = (&operands[0], operands[1].data::<i32>());
                check_parts(op, parts, x.shape()[0], extent, loc)?;
                let mut start = 0;
                let part = |&n: &i32| {
                    let n = n as usize;
                    start += n;
                    Some(stored(rows(x, start - n, n, [&[n], &x.shape()[1..]].concat())))
                };
                check_memory(op, &x.ty(), loc)?;
                let mut items = with_capacity(op, parts.len(), &element, loc)?;
                items.extend(parts.iter().map(part));
                items
            }
            op => panic!("{} makes no list from tensors", op.name()),
        };
        Ok(HostList::of(element, items))
    }

    /// Returns a list of zeros, with the lengths and shapes of this list.
    pub fn zeros_like(&self, loc: Loc) -> Result<HostList> {
        let op = &ListOp::ZerosLike;
        let mut items = with_capacity(op, self.len(), &self.element, loc)?;
        for item in self.items() {
            let item = item.filter(|_| self.element.shape.known().is_none());
            let zeros = item.map(|item| joined(op, item.dtype(), &[], item.shape().to_vec(), loc));
            items.push(zeros.transpose()?.map(stored));
        }
        Ok(HostList::of(self.element.clone(), items))
    }

    /// Returns the result of an operation that reads the list.
    pub fn query(&self, op: &ListOp, operands: &[HostTensor], loc: Loc) -> Result<HostTensor> {
        match op {
            ListOp::Read => self.item(op, check_index(op, operands[0].data::<i32>()[0], self.len(), loc)?, loc),
            ListOp::Gather => {
                let indices = operands[0].data::<i32>();
                let known = self.element.shape.known();
                let chosen =
                    |&i: &i32| self.element_at(op, check_index(op, i, self.len(), loc)?, known.as_deref(), loc);
                let items = indices.iter().map(chosen).collect::<Result<Vec<_>>>()?;
                self.stacked(op, &items, loc)
            }
            ListOp::Stack(extent) => {
                check_extent(op, self.len(), extent, loc)?;
                let known = self.element.shape.known();
                self.stacked(op, &self.all(op, known.as_deref(), loc)?, loc)
            }
            ListOp::Concat(extent) => {
                let known = self.element.shape.known();
                let items = self.all(op, known.as_deref(), loc)?;
                let rest = match items.first() {
                    Some(first) => first.shape[1..].to_vec(),
                    None => self.shape_of_none(op, 1, loc)?,
                };
                for (i, item) in items.iter().enumerate() {
                    if item.shape[1..] != rest {
                        return Err(self.shapes_differ(op, &items, i, loc));
                    }
                }
                let n = items.iter().map(|x| x.shape[0]).sum();
                check_extent(op, n, extent, loc)?;
                joined(op, self.element.dtype, &items, [&[n], &rest[..]].concat(), loc)
            }
            ListOp::Len => Ok(HostTensor::scalar(self.len() as i32)),
            ListOp::Written => {
                let written: Vec<bool> = self.items.iter().map(Option::is_some).collect();
                Ok(HostTensor::new([written.len()], written))
            }
            ListOp::Extents => {
                let known = self.element.shape.known();
                let items = self.all(op, known.as_deref(), loc)?;
                let extents: Vec<i32> = items.iter().map(|x| x.shape[0] as i32).collect();
                Ok(HostTensor::new([extents.len()], extents))
            }
            op => panic!("{} reads no list", op.name()),
        }
    }

    /// Modifies the list. Returns the popped element. `other` is the second list of
    /// [`ListOp::Add`].
    pub fn update(
        &mut self,
        op: &ListOp,
        operands: &[HostTensor],
        other: Option<&HostList>,
        loc: Loc,
    ) -> Result<Option<HostTensor>> {
        match op {
            ListOp::Push => {
                self.fits(op, &operands[0], self.len(), loc)?;
                let item = self.stored(op, operands[0].clone(), loc)?;
                self.items.push(Some(item));
                self.held = memory::hold(|| self.items.len() * ITEM_BYTES);
            }
            ListOp::Pop => {
                let last = self.len().checked_sub(1).ok_or_else(|| empty(op, loc))?;
                let item = self.item(op, last, loc)?;
                self.items.pop();
                return Ok(Some(item));
            }
            ListOp::Write => self.write(op, operands[0].data::<i32>()[0], operands[1].clone(), loc)?,
            ListOp::Scatter => {
                let values = self.named_rows(op, &operands[0], &operands[1], loc)?;
                for (&i, value) in operands[0].data::<i32>().iter().zip(values) {
                    self.write(op, i, value, loc)?;
                }
            }
            ListOp::Accumulate => {
                let values = self.named_rows(op, &operands[0], &operands[1], loc)?;
                for (&i, value) in operands[0].data::<i32>().iter().zip(values) {
                    let i = check_index(op, i, self.len(), loc)?;
                    self.fits(op, &value, i, loc)?;
                    self.add_to(op, i, &value, loc)?;
                }
            }
            ListOp::Add => {
                let other = other.expect("a sum has two operands");
                if self.len() != other.len() {
                    return Err(lengths_differ(op, self.len(), other.len(), loc));
                }
                for (i, item) in other.items().enumerate() {
                    if let Some(item) = item {
                        self.add_to(op, i, item, loc)?;
                    }
                }
            }
            op => panic!("{} changes no list", op.name()),
        }
        Ok(None)
    }

    fn add_to(&mut self, op: &ListOp, i: usize, value: &HostTensor, loc: Loc) -> Result<()> {
        let all = match self.written(i) {
            Some(old) if old.shape() == value.shape() => sum(op, old, value, loc)?,
            Some(old) => return Err(wrong_shape(op, &value.ty(), &old.ty(), i, loc)),
            None => value.clone(),
        };
        self.items[i] = Some(self.stored(op, all, loc)?);
        Ok(())
    }

    /// Returns a tensor as an element, if the budget of the run has room for it.
    fn stored(&self, op: &ListOp, item: HostTensor, loc: Loc) -> Result<Arc<CountedTensor>> {
        let room = CountedTensor::check_room(&item);
        room.map_err(|missing| too_many(op, self.len() + 1, &self.element, missing, loc))?;
        Ok(stored(item))
    }

    fn write(&mut self, op: &ListOp, index: i32, value: HostTensor, loc: Loc) -> Result<()> {
        let i = check_index(op, index, self.len(), loc)?;
        self.fits(op, &value, i, loc)?;
        if self.items[i].is_some() {
            return Err(written_twice(op, index, self.len(), loc));
        }
        self.items[i] = Some(self.stored(op, value, loc)?);
        Ok(())
    }

    /// Returns the value for each of several indices, which are along its first axis. For a scalar
    /// index this is the value itself.
    fn named_rows(&self, op: &ListOp, indices: &HostTensor, values: &HostTensor, loc: Loc) -> Result<Vec<HostTensor>> {
        if indices.rank() == 0 {
            return Ok(vec![values.clone()]);
        }
        let n = indices.len();
        if values.shape()[0] != n {
            return Err(wrong_count(op, n, values.shape()[0], loc));
        }
        Ok((0..n).map(|i| rows(values, i, 1, values.shape()[1..].to_vec())).collect())
    }

    fn fits(&self, op: &ListOp, value: &HostTensor, index: usize, loc: Loc) -> Result<()> {
        let ty = value.ty();
        if ty.compatible(&self.element) { Ok(()) } else { Err(wrong_shape(op, &ty, &self.element, index, loc)) }
    }

    fn item(&self, op: &ListOp, i: usize, loc: Loc) -> Result<HostTensor> {
        let known = self.element.shape.known();
        let element = self.element_at(op, i, known.as_deref(), loc)?;
        match element.tensor {
            Some(tensor) => Ok(tensor.clone()),
            None => joined(op, self.element.dtype, &[], element.shape.to_vec(), loc),
        }
    }

    /// Returns an element for reading. `known` is the shape of the elements, if the type of the
    /// list has it.
    fn element_at<'a>(
        &'a self,
        op: &ListOp,
        i: usize,
        known: Option<&'a [usize]>,
        loc: Loc,
    ) -> Result<ListElement<'a>> {
        match (self.written(i), known) {
            (Some(item), _) => Ok(ListElement { shape: item.shape(), tensor: Some(item) }),
            (None, Some(shape)) => Ok(ListElement { shape, tensor: None }),
            (None, None) => {
                let n = self.len();
                let message = format_args!("element {i} of a list of {n} is not written, and its shape is unknown");
                let mut error = error(op, message, loc);
                error.labels[0].1 = format!("the elements: {}", self.element);
                Err(error.help("write the element before it is read, or give the list a known shape"))
            }
        }
    }

    fn all<'a>(&'a self, op: &ListOp, known: Option<&'a [usize]>, loc: Loc) -> Result<Vec<ListElement<'a>>> {
        (0..self.len()).map(|i| self.element_at(op, i, known, loc)).collect()
    }

    fn stacked(&self, op: &ListOp, items: &[ListElement<'_>], loc: Loc) -> Result<HostTensor> {
        let shape = match items.first() {
            Some(first) => first.shape.to_vec(),
            None => self.shape_of_none(op, 0, loc)?,
        };
        if let Some(i) = items.iter().position(|x| x.shape != shape) {
            return Err(self.shapes_differ(op, items, i, loc));
        }
        joined(op, self.element.dtype, items, [&[items.len()], &shape[..]].concat(), loc)
    }

    fn shapes_differ(&self, op: &ListOp, items: &[ListElement<'_>], i: usize, loc: Loc) -> Diagnostic {
        let ty = |item: &ListElement<'_>| TensorType::new(self.element.dtype, item.shape);
        let help = match op {
            ListOp::Gather => "`gather` needs elements of equal shape",
            ListOp::Concat(_) => "`concat` needs elements that differ only in axis 0",
            _ => "`stack` needs elements of equal shape; `concat` joins elements that differ in axis 0",
        };
        error(op, format_args!("element {i} is {}, but element 0 is {}", ty(&items[i]), ty(&items[0])), loc).help(help)
    }

    /// Returns the extents of an element from an axis on, for a list without elements.
    fn shape_of_none(&self, op: &ListOp, from: usize, loc: Loc) -> Result<Vec<usize>> {
        let known = self.element.shape.dims()[from..].iter().map(Dim::known).collect::<Option<Vec<_>>>();
        known.ok_or_else(|| {
            let message = format_args!("the list is empty, and the shape of {} is unknown", self.element);
            error(op, message, loc).help("give the list a shape with known extents, or push an element first")
        })
    }
}
