//! Stacks of values that loops save, each in one growing block of memory.
//!
//! Invariant: `address` and `capacity` describe `words`. Native code uses them to push numbers
//! directly if capacity suffices, and to pop them.

use super::Sources;
use super::counted::CountedVec;
use super::segments::{LaneSegments, LaneStack};
use crate::cpu::memory::View;
use anabranch_dsl::interp::ELEMENT_BYTES;
use anabranch_dsl::{DType, HostTensor, TensorType, bf16, f16, interp, memory};
use std::cmp::Ordering;

/// A stack of tensors. Clearing it keeps its memory.
#[derive(Debug, Default)]
pub(crate) struct StackStorage {
    /// Type and size of an element, or `None` if shapes are unknown or elements are strings.
    /// `words` holds `len` contiguous elements.
    element: Option<StackElement>,
    /// The extents of an element, if they are known.
    shape: Vec<usize>,
    words: CountedVec<u64>,
    /// The address of `words`. `capacity` is the number of elements that fit.
    address: usize,
    capacity: usize,
    len: usize,
    /// Whether an infinite number of zeros is below the elements.
    zeros_below: bool,
    /// The elements, if there is no `element`.
    tensors: CountedVec<HostTensor>,
    /// Elements below, shared with their previous owner. Pushing and popping do not copy these
    /// elements.
    below: Option<interp::Stack>,
    /// Elements below, as the iterations of a loop in lanes left them. There are none together with
    /// `below` or `zeros_below`.
    segments: Option<Box<LaneSegments>>,
    /// Memory of earlier segments.
    spare: Vec<CountedVec<u64>>,
}

#[derive(Clone, Copy, Debug)]
struct StackElement {
    dtype: DType,
    bytes: usize,
}

/// Maximum number of bytes reserved in advance.
const MAX_PREPARED: usize = 1 << 28;

/// The error of an allocation of this many bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoMemory {
    pub(crate) bytes: usize,
}

/// Checks that there is memory for tensors of this many bytes.
fn check_room(bytes: usize) -> Result<(), NoMemory> {
    memory::check(bytes as u128).map_err(|_| NoMemory { bytes })
}

impl StackStorage {
    /// The offsets at which native code accesses the fields of a stack.
    #[cfg(feature = "jit")]
    pub(crate) const ADDRESS: usize = std::mem::offset_of!(StackStorage, address);
    #[cfg(feature = "jit")]
    pub(crate) const CAPACITY: usize = std::mem::offset_of!(StackStorage, capacity);
    #[cfg(feature = "jit")]
    pub(crate) const LEN: usize = std::mem::offset_of!(StackStorage, len);

    /// Creates an empty stack.
    pub(crate) fn new(ty: &TensorType) -> StackStorage {
        let Some(shape) = ty.shape.known().filter(|_| ty.dtype.is_plain()) else {
            return StackStorage::default();
        };
        let bytes = shape.iter().product::<usize>() * ty.dtype.size();
        StackStorage { element: Some(StackElement { dtype: ty.dtype, bytes }), shape, ..StackStorage::default() }
    }

    /// Returns whether the elements are host tensors, of any shape or of strings.
    pub(crate) fn is_dynamic(&self) -> bool {
        self.element.is_none()
    }

    /// Returns the number of elements, without shared elements.
    pub(crate) fn len(&self) -> usize {
        if self.is_dynamic() { self.tensors.len() } else { self.len }
    }

    /// Removes all elements, including shared elements and the zeros below.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.tensors.clear();
        self.zeros_below = false;
        self.below = None;
        if let Some(segments) = self.segments.take() {
            self.spare.extend(segments.blocks.into_iter().map(LaneStack::into_memory));
        }
    }

    /// Takes the memory of earlier segments.
    pub(crate) fn take_spare(&mut self) -> Vec<CountedVec<u64>> {
        std::mem::take(&mut self.spare)
    }

    /// Returns whether there is no element at all.
    pub(crate) fn is_cleared(&self) -> bool {
        self.len() == 0 && !self.zeros_below && self.below.is_none() && self.segments.is_none()
    }

    /// Replaces an empty stack by what the iterations of a loop in lanes left.
    pub(crate) fn set_segments(&mut self, segments: LaneSegments) {
        assert!(self.is_cleared() && !self.is_dynamic(), "there are no elements below");
        self.segments = Some(Box::new(segments));
    }

    /// Returns all elements, if they are as the iterations of a loop in lanes left them.
    pub(crate) fn segments(&self) -> Option<&LaneSegments> {
        self.segments.as_deref().filter(|_| self.len == 0)
    }

    /// Makes one stack of what the iterations of a loop in lanes left.
    pub(crate) fn join_segments(&mut self) -> Result<(), NoMemory> {
        let Some(segments) = self.segments.take() else { return Ok(()) };
        let outcome = segments.in_order().and_then(|below| {
            let (used, n) = (self.used(), below.len());
            self.reserve((used + n).div_ceil(8))?;
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
            bytes.copy_within(..used, n);
            bytes[..n].copy_from_slice(&below);
            self.len += n / self.element_bytes().max(1);
            Ok(())
        });
        if outcome.is_err() {
            self.segments = Some(segments);
        }
        outcome
    }

    /// Sets the stack to infinitely many zeros. The shape must be known.
    pub(crate) fn set_zeros(&mut self) {
        self.clear();
        self.zeros_below = true;
    }

    /// Replaces the content by a stack of the interpreter, whose elements are shared.
    pub(crate) fn set(&mut self, other: interp::Stack) {
        self.clear();
        self.zeros_below = other.has_zeros_below();
        self.below = Some(other);
    }

    /// Converts the stack to one of the interpreter, if there is memory for it.
    ///
    /// # Panics
    /// Panics if the elements are those of a loop in lanes.
    pub(crate) fn to_host(&self, element: &TensorType) -> Result<interp::Stack, NoMemory> {
        assert!(self.segments.is_none(), "the segments were joined");
        let bytes = self.element.map_or(0, |element| element.bytes).saturating_add(ELEMENT_BYTES);
        check_room(self.len().saturating_mul(bytes))?;
        let below = self.below.clone();
        let below = below.unwrap_or_else(|| interp::Stack::new(element.clone(), []).zeros_below(self.zeros_below));
        Ok(self.own().fold(below, |stack, tensor| stack.push(tensor)))
    }

    /// Iterates over the elements that are not shared, from the bottom.
    fn own(&self) -> impl Iterator<Item = HostTensor> {
        let all: &[u8] = bytemuck::cast_slice(&self.words);
        let known = self.element.into_iter().flat_map(move |StackElement { dtype, bytes }| {
            (0..self.len).map(move |i| {
                let data = crate::cpu::element::to_buffer(dtype, &all[i * bytes..][..bytes]);
                HostTensor::from_buffer(self.shape.clone(), data)
            })
        });
        known.chain(self.tensors.iter().cloned())
    }

    /// Replaces shared elements by copies.
    pub(crate) fn own_all(&mut self) -> Result<(), NoMemory> {
        self.join_segments()?;
        let Some(below) = self.below.take() else { return Ok(()) };
        let (own, zeros_below): (Vec<_>, _) = (self.own().collect(), self.zeros_below);
        self.clear();
        self.zeros_below = zeros_below;
        below.items().into_iter().rev().chain(own).try_for_each(|tensor| self.push_host(tensor))
    }

    /// Releases the shared elements, and what a loop in lanes left.
    pub(crate) fn release(&mut self) {
        self.below = None;
        self.segments = None;
    }

    fn pop_shared(&mut self) -> Option<HostTensor> {
        let (below, tensor) = self.below.as_ref()?.pop()?;
        self.below = Some(below);
        Some(tensor)
    }

    /// Returns whether there is an element to pop.
    pub(crate) fn is_poppable(&self) -> bool {
        self.len() > 0
            || self.zeros_below
            || self.below.as_ref().is_some_and(|below| below.pop().is_some())
            || self.segments.as_ref().is_some_and(|segments| !segments.is_empty())
    }

    /// Returns whether the stacks can be added: neither lacks elements that the other has.
    pub(crate) fn is_addable(&self, other: &StackStorage) -> bool {
        match self.len().cmp(&other.len()) {
            Ordering::Less => self.zeros_below,
            Ordering::Equal => true,
            Ordering::Greater => other.zeros_below,
        }
    }

    fn element_bytes(&self) -> usize {
        self.element.expect("the shapes are known").bytes
    }

    fn used(&self) -> usize {
        self.len * self.element_bytes()
    }

    /// Grows the memory to at least `words` words.
    fn reserve(&mut self, words: usize) -> Result<(), NoMemory> {
        let present = self.words.len();
        if words <= present {
            return Ok(());
        }
        self.words.grow(words)?;
        self.address = self.words.as_mut_ptr().expose_provenance();
        // Elements of size zero need no memory. Native code pushes them by calls.
        self.capacity = (8 * self.words.len()).checked_div(self.element_bytes()).unwrap_or(0);
        Ok(())
    }

    /// Reserves capacity for `elements` more elements, if memory is available. Failure is not an
    /// error, because a loop may end before it pushes them all.
    pub(crate) fn prepare(&mut self, elements: usize) {
        let Some(StackElement { bytes, .. }) = self.element else { return };
        let bytes = elements.saturating_add(self.len).saturating_mul(bytes);
        if bytes <= MAX_PREPARED {
            // If memory is insufficient, the push fails later.
            _ = self.reserve(bytes.div_ceil(8));
        }
    }

    /// Adds an element of unspecified content and returns its bytes.
    fn grow(&mut self) -> Result<&mut [u8], NoMemory> {
        let (start, n) = (self.used(), self.element_bytes());
        self.reserve((start + n).div_ceil(8))?;
        self.len += 1;
        Ok(&mut bytemuck::cast_slice_mut(&mut self.words)[start..start + n])
    }

    /// Pushes the elements of a view.
    pub(crate) fn push(&mut self, view: &View, sources: &Sources<'_>) -> Result<(), NoMemory> {
        let size = view.dtype.size();
        let bytes = sources.bytes(view.base);
        let to = self.grow()?;
        if view.is_contiguous() {
            to.copy_from_slice(&bytes[view.offset * size..][..to.len()]);
        } else {
            for (to, at) in to.chunks_exact_mut(size).zip(view.offsets()) {
                to.copy_from_slice(&bytes[at * size..][..size]);
            }
        }
        Ok(())
    }

    /// Pops into the memory of one element. The stack must not be empty, and its segments joined.
    pub(crate) fn pop(&mut self, to: &mut [u8]) {
        if self.len == 0 {
            if let Some(tensor) = self.pop_shared() {
                return to.copy_from_slice(crate::cpu::element::bytes_of(tensor.buffer()));
            }
            assert!(self.zeros_below, "the stack is not empty");
            return to.fill(0);
        }
        self.len -= 1;
        let (start, n) = (self.used(), self.element_bytes());
        to.copy_from_slice(&bytemuck::cast_slice(&self.words)[start..start + n]);
    }

    /// Pushes a number, given as a register. The elements must be scalars.
    #[inline]
    #[cfg(any(feature = "jit", test))]
    pub(crate) fn push_number(&mut self, value: u64) -> Result<(), NoMemory> {
        let to = self.grow()?;
        to.copy_from_slice(&value.to_ne_bytes()[..to.len()]);
        Ok(())
    }

    /// Pops a number as a register. The elements must be scalars.
    #[inline]
    #[cfg(any(feature = "jit", test))]
    pub(crate) fn pop_number(&mut self) -> Option<u64> {
        // Without memory, the executor fails at the same instruction.
        if !self.is_poppable() || self.join_segments().is_err() {
            return None;
        }
        let mut value = [0; 8];
        let n = self.element_bytes();
        self.pop(&mut value[..n]);
        Some(u64::from_ne_bytes(value))
    }

    /// Pushes a host tensor.
    pub(crate) fn push_host(&mut self, tensor: HostTensor) -> Result<(), NoMemory> {
        if self.is_dynamic() {
            self.tensors.make_room(1, ELEMENT_BYTES)?;
            self.tensors.push(tensor.compacted().unwrap_or(tensor));
        } else {
            self.grow()?.copy_from_slice(crate::cpu::element::bytes_of(tensor.buffer()));
        }
        Ok(())
    }

    /// Pops a tensor of unknown shape. The stack must not be empty.
    pub(crate) fn pop_host(&mut self) -> HostTensor {
        self.tensors.pop().or_else(|| self.pop_shared()).expect("the stack is not empty")
    }

    /// Sets all elements to zero.
    pub(crate) fn zero(&mut self) -> Result<(), NoMemory> {
        self.own_all()?;
        if self.is_dynamic() {
            for tensor in self.tensors.iter_mut() {
                let zeros = HostTensor::try_zeros(tensor.dtype(), tensor.shape());
                *tensor = zeros.map_err(|missing| NoMemory { bytes: missing.bytes as usize })?;
            }
        } else {
            let used = self.used();
            bytemuck::cast_slice_mut::<u64, u8>(&mut self.words)[..used].fill(0);
        }
        Ok(())
    }

    /// Adds the elements of another stack, aligned at the top. See
    /// [`is_addable`](Self::is_addable).
    pub(crate) fn add(&mut self, other: &StackStorage) -> Result<(), NoMemory> {
        let Some(StackElement { dtype, .. }) = self.element else {
            for (a, b) in self.tensors.iter_mut().zip(other.tensors.iter()) {
                check_room(a.n_bytes() as usize)?;
                let (dtype, shape) = (a.dtype(), a.shape().to_vec());
                let mut sum = crate::cpu::element::bytes_of(a.buffer()).to_vec();
                add_bytes(dtype, &mut sum, crate::cpu::element::bytes_of(b.buffer()));
                *a = HostTensor::from_buffer(shape, crate::cpu::element::to_buffer(dtype, &sum));
            }
            return Ok(());
        };
        let n = self.element_bytes();
        let missing = other.len.saturating_sub(self.len);
        self.reserve(other.used().div_ceil(8))?;
        self.zeros_below &= other.zeros_below;
        if missing > 0 {
            let used = self.used();
            for _ in 0..missing {
                self.grow()?.fill(0);
            }
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
            bytes[..used + missing * n].rotate_right(missing * n);
        }
        let (used, added) = (self.used(), other.used());
        let to = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut self.words)[used - added..used];
        add_bytes(dtype, to, &bytemuck::cast_slice(&other.words)[..added]);
        Ok(())
    }

    /// Replaces the content by a copy of a stack of the same type, or of known shapes if those of
    /// this stack are unknown.
    pub(crate) fn copy_from(&mut self, other: &mut StackStorage) -> Result<(), NoMemory> {
        other.join_segments()?;
        self.clear();
        self.zeros_below = other.zeros_below;
        self.below = other.below.clone();
        if let (None, Some(StackElement { dtype, bytes, .. })) = (&self.element, &other.element) {
            let all: &[u8] = bytemuck::cast_slice(&other.words);
            check_room(other.len * bytes)?;
            self.tensors.make_room(other.len, ELEMENT_BYTES)?;
            for i in 0..other.len {
                let data = crate::cpu::element::to_buffer(*dtype, &all[i * bytes..][..*bytes]);
                self.tensors.push(HostTensor::from_buffer(other.shape.clone(), data));
            }
            return Ok(());
        }
        self.tensors.make_room(other.tensors.len(), ELEMENT_BYTES)?;
        self.tensors.extend_from_slice(&other.tensors);
        if self.element.is_some() {
            let words = other.used().div_ceil(8);
            self.reserve(words)?;
            self.words[..words].copy_from_slice(&other.words[..words]);
        }
        self.len = other.len;
        Ok(())
    }
}

/// Adds elements stored as bytes of any alignment.
pub(super) fn add_bytes(dtype: DType, to: &mut [u8], from: &[u8]) {
    match dtype {
        DType::F32 => add_each(to, from, |a: f32, b| a + b),
        DType::F64 => add_each(to, from, |a: f64, b| a + b),
        DType::I32 => add_each(to, from, i32::wrapping_add),
        DType::I64 => add_each(to, from, i64::wrapping_add),
        DType::U32 => add_each(to, from, u32::wrapping_add),
        DType::U8 => add_each(to, from, u8::wrapping_add),
        DType::F16 => add_each(to, from, |a: f16, b: f16| f16::from_f32(a.to_f32() + b.to_f32())),
        DType::BF16 => add_each(to, from, |a: bf16, b: bf16| bf16::from_f32(a.to_f32() + b.to_f32())),
        DType::Bool | DType::Bytes => panic!("a sum of {dtype}"),
    }
}

fn add_each<T: bytemuck::Pod>(to: &mut [u8], from: &[u8], add: impl Fn(T, T) -> T) {
    let n = size_of::<T>();
    for (a, b) in to.chunks_exact_mut(n).zip(from.chunks_exact(n)) {
        let sum = add(bytemuck::pod_read_unaligned(a), bytemuck::pod_read_unaligned(b));
        a.copy_from_slice(bytemuck::bytes_of(&sum));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_for_which_there_is_no_memory_stays_as_it_was() {
        let mut stack = StackStorage::new(&TensorType::new(DType::F32, []));
        stack.push_number(7).expect("there is a little memory");
        let NoMemory { bytes } = stack.reserve(1 << 59).expect_err("nobody has so much memory");
        assert_eq!(bytes, 1 << 62);
        assert_eq!((stack.len(), stack.pop_number(), stack.pop_number()), (1, Some(7), None));
    }

    #[test]
    fn room_that_is_made_is_there_and_too_much_is_not_asked_for() {
        let mut stack = StackStorage::new(&TensorType::new(DType::F32, []));
        stack.prepare(1000);
        let address = stack.address;
        (0..1000).for_each(|i| stack.push_number(i).expect("there is room"));
        assert_eq!((stack.capacity, stack.address), (1000, address));
        for elements in [1 << 40, usize::MAX] {
            stack.prepare(elements);
        }
        assert_eq!((stack.capacity, stack.address), (1000, address), "it waits until so many are pushed");
    }

    fn numbers(stack: &interp::Stack) -> Vec<i32> {
        stack.items().iter().rev().map(|t| t.data::<i32>()[0]).collect()
    }

    #[test]
    fn what_is_given_is_shared_until_all_of_it_changes() {
        let ty = TensorType::new(DType::I32, []);
        let given = interp::Stack::new(ty.clone(), (0..4).map(HostTensor::scalar));
        let mut stack = StackStorage::new(&ty);
        stack.set(given.clone());
        stack.push_number(4).unwrap();
        assert_eq!(stack.len(), 1, "a push does not copy what is below");
        assert_eq!(numbers(&stack.to_host(&ty).unwrap()), [0, 1, 2, 3, 4]);
        assert_eq!([stack.pop_number(), stack.pop_number()], [Some(4), Some(3)]);
        stack.push_number(7).unwrap();
        assert_eq!(stack.len(), 1);
        assert_eq!(numbers(&stack.to_host(&ty).unwrap()), [0, 1, 2, 7]);
        let mut copy = StackStorage::new(&ty);
        copy.copy_from(&mut stack).unwrap();
        stack.own_all().unwrap();
        assert_eq!((stack.len(), numbers(&stack.to_host(&ty).unwrap())), (4, vec![0, 1, 2, 7]));
        copy.own_all().unwrap();
        assert!(copy.is_addable(&stack));
        copy.add(&stack).unwrap();
        assert_eq!(numbers(&copy.to_host(&ty).unwrap()), [0, 2, 4, 14]);
        copy.set(given.clone());
        copy.zero().unwrap();
        assert_eq!(numbers(&copy.to_host(&ty).unwrap()), [0; 4]);
        assert_eq!(numbers(&given), [0, 1, 2, 3], "who gave it does not notice");
        stack.set(interp::Stack::new(ty, []).zeros_below(true));
        assert_eq!([stack.pop_number(), stack.pop_number()], [Some(0), Some(0)]);
    }
}
