//! Lists of tensors of one shape in one growing block of memory, or of host tensors if the shape is
//! unknown or the elements are strings.
//!
//! Invariants: `words` holds the bytes of every element, zeros for unwritten elements, and
//! `written` has one entry per element. Checks and error messages are those of the interpreter.

use super::counted::CountedVec;
use super::stack::{NoMemory, add_bytes};
use crate::cpu::element::{bytes_of, to_buffer};
use crate::cpu::multiversion::wide;
use anabranch_dsl::interp::ELEMENT_BYTES;
use anabranch_dsl::interp::list as meaning;
use anabranch_dsl::interp::list::HostList;
use anabranch_dsl::ir::ListOp;
use anabranch_dsl::memory::{self, OutOfMemory};
use anabranch_dsl::{DType, Diagnostic, HostTensor, Loc, Result, TensorType};

/// Returns whether each index is by one larger than the one before it.
pub(crate) fn is_run(indices: &[i32]) -> bool {
    let Some(&first) = indices.first() else { return true };
    wide(
        #[inline(always)]
        || {
            let differs = |(i, &index): (usize, &i32)| index != first.wrapping_add(i as i32);
            !indices.iter().enumerate().map(differs).fold(false, |any, differs| any | differs)
        },
    )
}

/// A list. Clearing it keeps its memory.
#[derive(Debug)]
pub(crate) struct ListStorage {
    /// The element type.
    element: TensorType,
    /// The extents of an element, if they are known and elements are plain.
    shape: Option<Vec<usize>>,
    /// Size of an element in bytes.
    bytes: usize,
    words: CountedVec<u64>,
    written: CountedVec<bool>,
    /// The elements, if there is no `shape`.
    host: HostList,
}

impl ListStorage {
    /// Creates an empty list.
    pub(crate) fn new(element: &TensorType) -> ListStorage {
        let shape = element.shape.known().filter(|_| element.dtype.is_plain());
        let bytes = element.n_bytes().map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let host = HostList::new(element.clone());
        ListStorage {
            element: element.clone(),
            shape,
            bytes,
            words: CountedVec::default(),
            written: CountedVec::default(),
            host,
        }
    }

    /// Replaces this list by another list, with its elements. The type of the other list may be
    /// more or less precise about their shapes, but the elements have the type of this list.
    pub(crate) fn set(&mut self, other: ListStorage) -> std::result::Result<(), OutOfMemory> {
        if self.shape == other.shape {
            let element = std::mem::replace(&mut self.element, other.element.clone());
            *self = ListStorage { element, ..other };
            self.host.set_element(self.element.clone());
        } else if self.is_dynamic() {
            self.copy_from(&other)?;
        } else {
            self.set_host(&other.host)?;
        }
        Ok(())
    }

    /// Replaces the content by that of a list of the interpreter.
    pub(crate) fn set_host(&mut self, other: &HostList) -> std::result::Result<(), OutOfMemory> {
        if self.is_dynamic() {
            self.host = other.clone();
            self.host.set_element(self.element.clone());
            return Ok(());
        }
        let words = (other.len() * self.bytes).div_ceil(8);
        self.make_room(words, other.len()).map_err(|missing| OutOfMemory { bytes: missing.bytes as u128 })?;
        self.words[..words].fill(0);
        self.written.clear();
        self.written.resize(other.len(), false);
        for (i, item) in other.items().enumerate() {
            if let Some(tensor) = item {
                self.written[i] = true;
                self.item_mut(i).copy_from_slice(bytes_of(tensor.buffer()));
            }
        }
        Ok(())
    }

    /// Converts the list to one of the interpreter, if there is memory for it.
    pub(crate) fn to_host(&self) -> std::result::Result<HostList, OutOfMemory> {
        let Some(shape) = &self.shape else { return Ok(self.host.clone()) };
        memory::check(self.len() as u128 * self.bytes.saturating_add(ELEMENT_BYTES) as u128)?;
        let item = |i: usize| {
            let data = || to_buffer(self.element.dtype, self.item(i));
            self.written[i].then(|| HostTensor::from_buffer(shape.clone(), data()))
        };
        Ok(HostList::from_items(self.element.clone(), (0..self.len()).map(item).collect()))
    }

    /// Returns whether the elements are host tensors of any shape.
    pub(crate) fn is_dynamic(&self) -> bool {
        self.shape.is_none()
    }

    /// Returns the list of host tensors, if the shape of the elements is unknown.
    pub(crate) fn as_host(&self) -> Option<&HostList> {
        self.is_dynamic().then_some(&self.host)
    }

    /// Returns the number of elements of a list of known shape.
    pub(crate) fn len(&self) -> usize {
        self.written.len()
    }

    /// Returns the extents of an element.
    ///
    /// # Panics
    ///
    /// Panics if they are unknown.
    pub(crate) fn shape(&self) -> &[usize] {
        self.shape.as_ref().expect("the shape is known")
    }

    /// Returns the common type of the elements.
    pub(crate) fn element(&self) -> &TensorType {
        &self.element
    }

    /// Runs an operation on a list of unknown shapes. Returns the tensor that it reads or removes.
    pub(crate) fn on_host(&mut self, op: &ListOp, operands: &[HostTensor], loc: Loc) -> Result<Option<HostTensor>> {
        use anabranch_dsl::ir::ListForm::{Make, Query, Update};
        match op.form() {
            Make => {
                self.host = HostList::make(op, self.element.clone(), operands, loc)?;
                Ok(None)
            }
            Query => self.host.query(op, operands, loc).map(Some),
            Update => self.host.update(op, operands, None, loc),
        }
    }

    /// Runs an operation with a second list of the same type.
    pub(crate) fn with_other(&mut self, op: &ListOp, other: &ListStorage, loc: Loc) -> Result<()> {
        match op {
            ListOp::ZerosLike if self.is_dynamic() => self.host = other.host.zeros_like(loc)?,
            ListOp::ZerosLike => {
                self.resize(op, 0, loc)?;
                self.resize(op, other.len(), loc)?;
            }
            ListOp::Add if self.is_dynamic() => {
                self.host.update(op, &[], Some(&other.host), loc)?;
            }
            ListOp::Add => {
                if self.len() != other.len() {
                    return Err(meaning::lengths_differ(op, self.len(), other.len(), loc));
                }
                for i in (0..self.len()).filter(|&i| other.written[i]) {
                    self.add_item(i, other.item(i));
                }
            }
            op => panic!("{} takes one list", op.name()),
        }
        Ok(())
    }

    /// Resizes the list. New elements are zeros. Fails with an error of `op` if memory is
    /// insufficient.
    fn resize(&mut self, op: &ListOp, len: usize, loc: Loc) -> Result<()> {
        let before = self.len() * self.bytes;
        let after = len.checked_mul(self.bytes).ok_or_else(|| self.too_large(op, len, loc))?;
        let words = after.div_ceil(8);
        self.make_room(words, len).map_err(|_| self.too_large(op, len, loc))?;
        self.written.resize(len, false);
        if after > before {
            bytemuck::cast_slice_mut::<u64, u8>(&mut self.words[..])[before..after].fill(0);
        }
        Ok(())
    }

    /// Makes room for elements of this many words and for their marks.
    fn make_room(&mut self, words: usize, len: usize) -> std::result::Result<(), NoMemory> {
        if words > self.words.len() {
            self.words.grow(words)?;
        }
        let missing = len.saturating_sub(self.written.len());
        self.written.make_room(missing, 1)
    }

    fn too_large(&self, op: &ListOp, len: usize, loc: Loc) -> Diagnostic {
        let missing = OutOfMemory { bytes: len as u128 * self.bytes.max(1) as u128 };
        meaning::too_many(op, len, &self.element, missing, loc)
    }

    /// Returns whether a write of, or an addition to, an element would succeed.
    pub(crate) fn is_free(&self, op: &ListOp, index: i32) -> bool {
        let written = usize::try_from(index).ok().and_then(|i| self.written.get(i));
        written.is_some_and(|&written| *op == ListOp::Accumulate || !written)
    }

    /// Returns [`is_free`](Self::is_free) of `n` elements from an index on.
    pub(crate) fn is_free_from(&self, op: &ListOp, first: i32, n: usize) -> bool {
        let written = usize::try_from(first).ok().and_then(|first| self.written.get(first..)?.get(..n));
        written.is_some_and(|written| *op == ListOp::Accumulate || written.iter().all(|&written| !written))
    }

    /// Writes or adds to elements for each of which that [`is_free`](Self::is_free), from the first
    /// to the last or in reverse.
    pub(crate) fn update_lanes(&mut self, op: &ListOp, indices: &[i32], data: &[u8], is_reversed: bool, loc: Loc) {
        let n = indices.len();
        if is_run(indices)
            && let first = indices.first().map_or(0, |&first| first as usize)
            && self.written[first..first + n].iter().all(|&written| !written)
        {
            bytemuck::cast_slice_mut::<u64, u8>(&mut self.words[..])[first * self.bytes..][..data.len()]
                .copy_from_slice(data);
            self.written[first..first + n].fill(true);
            return;
        }
        let one = |k: usize| {
            let outcome = self.update(op, &indices[k..=k], &data[k * self.bytes..][..self.bytes], loc);
            outcome.expect("the element is free");
        };
        if is_reversed { (0..n).rev().for_each(one) } else { (0..n).for_each(one) }
    }

    /// Returns the bytes of the elements of a list of known shape.
    pub(crate) fn all(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words[..])[..self.len() * self.bytes]
    }

    fn item(&self, i: usize) -> &[u8] {
        &bytemuck::cast_slice(&self.words[..])[i * self.bytes..][..self.bytes]
    }

    fn item_mut(&mut self, i: usize) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words[..])[i * self.bytes..][..self.bytes]
    }

    /// Adds to an element. An unwritten element is set instead.
    fn add_item(&mut self, i: usize, from: &[u8]) {
        let dtype = self.element.dtype;
        match std::mem::replace(&mut self.written[i], true) {
            true => add_bytes(dtype, self.item_mut(i), from),
            false => self.item_mut(i).copy_from_slice(from),
        }
    }

    /// Modifies the list.
    ///
    /// `data` contains the contiguous bytes of one element per index. For `Unstack`, the only index
    /// is the number of elements. For `Split`, the caller has checked the parts. For `Restore`, the
    /// indices are flags of the written elements.
    pub(crate) fn update(&mut self, op: &ListOp, indices: &[i32], data: &[u8], loc: Loc) -> Result<()> {
        match op {
            ListOp::New(_) => {
                let n = indices[0];
                let n = usize::try_from(n).map_err(|_| meaning::negative_length(op, n, loc))?;
                self.resize(op, 0, loc)?;
                self.resize(op, n, loc)?;
            }
            ListOp::Unstack => {
                self.resize(op, 0, loc)?;
                self.fill_with(op, indices[0] as usize, data, loc)?;
            }
            ListOp::Restore => {
                let n = data.len().checked_div(self.bytes).unwrap_or(indices.len());
                if n != indices.len() {
                    return Err(meaning::lengths_differ(op, n, indices.len(), loc));
                }
                self.resize(op, 0, loc)?;
                self.fill_with(op, n, data, loc)?;
                self.written.iter_mut().zip(indices).for_each(|(written, &mark)| *written = mark != 0);
            }
            ListOp::Split(_) => {
                self.resize(op, 0, loc)?;
                self.fill_with(op, indices.len(), data, loc)?;
            }
            ListOp::Push => {
                let i = self.len();
                self.resize(op, i + 1, loc)?;
                self.item_mut(i).copy_from_slice(data);
                self.written[i] = true;
            }
            ListOp::Write | ListOp::Scatter => {
                for (k, &index) in indices.iter().enumerate() {
                    let i = meaning::check_index(op, index, self.len(), loc)?;
                    if std::mem::replace(&mut self.written[i], true) {
                        return Err(meaning::written_twice(op, index, self.len(), loc));
                    }
                    let from = &data[k * self.bytes..][..self.bytes];
                    self.item_mut(i).copy_from_slice(from);
                }
            }
            ListOp::Accumulate => {
                for (k, &index) in indices.iter().enumerate() {
                    let i = meaning::check_index(op, index, self.len(), loc)?;
                    self.add_item(i, &data[k * self.bytes..][..self.bytes]);
                }
            }
            op => panic!("{} changes no list by elements", op.name()),
        }
        Ok(())
    }

    fn fill_with(&mut self, op: &ListOp, n: usize, data: &[u8], loc: Loc) -> Result<()> {
        self.resize(op, n, loc)?;
        bytemuck::cast_slice_mut::<u64, u8>(&mut self.words[..])[..n * self.bytes].copy_from_slice(data);
        self.written.fill(true);
        Ok(())
    }

    /// Removes the last element and passes its bytes to `to`.
    pub(crate) fn pop(&mut self, op: &ListOp, loc: Loc, to: impl FnOnce(&[u8])) -> Result<()> {
        let last = self.len().checked_sub(1).ok_or_else(|| meaning::empty(op, loc))?;
        to(self.item(last));
        self.written.pop();
        Ok(())
    }

    /// Returns the shape of the result of a query.
    pub(crate) fn query_shape(&self, op: &ListOp, indices: &[i32], loc: Loc) -> Result<Vec<usize>> {
        let shape = self.shape();
        let len = self.len();
        Ok(match op {
            ListOp::Read => shape.to_vec(),
            ListOp::Gather => [&[indices.len()], shape].concat(),
            ListOp::Stack(extent) => {
                meaning::check_extent(op, len, extent, loc)?;
                [&[len], shape].concat()
            }
            ListOp::Concat(extent) => {
                meaning::check_extent(op, len * shape[0], extent, loc)?;
                [&[len * shape[0]], &shape[1..]].concat()
            }
            ListOp::Len => vec![],
            ListOp::Extents | ListOp::Written => vec![len],
            op => panic!("{} reads no list", op.name()),
        })
    }

    /// Writes the result of a query.
    pub(crate) fn query(&self, op: &ListOp, indices: &[i32], loc: Loc, to: &mut [u8]) -> Result<()> {
        match op {
            ListOp::Read | ListOp::Gather => {
                for (k, &index) in indices.iter().enumerate() {
                    let i = meaning::check_index(op, index, self.len(), loc)?;
                    to[k * self.bytes..][..self.bytes].copy_from_slice(self.item(i));
                }
            }
            ListOp::Stack(extent) => {
                meaning::check_extent(op, self.len(), extent, loc)?;
                self.all_to(to);
            }
            ListOp::Concat(extent) => {
                let first = self.shape()[0];
                meaning::check_extent(op, self.len() * first, extent, loc)?;
                self.all_to(to);
            }
            ListOp::Len => to.copy_from_slice(&(self.len() as i32).to_ne_bytes()),
            ListOp::Written => {
                to.iter_mut().zip(self.written.iter()).for_each(|(to, &written)| *to = u8::from(written))
            }
            ListOp::Extents => {
                let first = self.shape()[0] as i32;
                to.chunks_exact_mut(4).for_each(|to| to.copy_from_slice(&first.to_ne_bytes()));
            }
            op => panic!("{} reads no list", op.name()),
        }
        Ok(())
    }

    fn all_to(&self, to: &mut [u8]) {
        to.copy_from_slice(self.all());
    }

    /// Returns the element type of the result of a query.
    pub(crate) fn query_dtype(&self, op: &ListOp) -> DType {
        match op {
            ListOp::Len | ListOp::Extents => DType::I32,
            ListOp::Written => DType::Bool,
            _ => self.element.dtype,
        }
    }

    /// Returns a copy.
    pub(crate) fn copied(&self) -> std::result::Result<ListStorage, OutOfMemory> {
        let mut copy = ListStorage::new(&self.element);
        copy.copy_from(self)?;
        Ok(copy)
    }

    /// Becomes a copy of a list of the same type, or of a type with more known extents.
    pub(crate) fn copy_from(&mut self, other: &ListStorage) -> std::result::Result<(), OutOfMemory> {
        let bytes = other.len() * other.bytes;
        if self.is_dynamic() {
            self.host = other.to_host()?;
            self.host.set_element(self.element.clone());
            return Ok(());
        }
        let no_memory = |_| OutOfMemory { bytes: bytes as u128 };
        let words = &other.words[..bytes.div_ceil(8)];
        match self.words.get_mut(..words.len()) {
            Some(present) => present.copy_from_slice(words),
            None => self.words = CountedVec::copy_of(words).map_err(no_memory)?,
        }
        self.written.clear();
        self.written.make_room(other.len(), 1).map_err(no_memory)?;
        self.written.extend_from_slice(&other.written);
        Ok(())
    }
}
