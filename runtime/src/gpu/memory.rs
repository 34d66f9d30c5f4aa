//! Values in the memory of a GPU, and the reuse of their memory.

use super::list::GpuList;
use crate::device::DeviceMemory;
use anabranch_dsl::{DType, HostTensor, TensorType, Type};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A value in the memory of a GPU.
#[derive(Debug)]
pub(super) struct GpuMemory {
    pub(super) ty: Type,
    pub(super) value: GpuValue,
}

impl DeviceMemory for GpuMemory {
    fn ty(&self) -> Type {
        self.ty.clone()
    }

    fn n_bytes(&self) -> u64 {
        match &self.value {
            GpuValue::Tensor(tensor) => tensor.n_bytes,
            GpuValue::Stack(stack) => stack.items().map(StackItem::bytes_on_device).sum(),
            GpuValue::List(list) => list.n_bytes(),
        }
    }
}

/// Returns the bytes of a tensor, padded to words, or `None` if its shape is not known.
pub(super) fn bytes_of_type(ty: &TensorType) -> Option<u64> {
    let of_element = if ty.dtype == DType::Bool { 4 } else { ty.dtype.size() };
    Some((ty.shape.size()? as u64 * of_element as u64).next_multiple_of(4))
}

/// The memory of a value. Clones share it.
#[derive(Clone, Debug)]
pub(super) enum GpuValue {
    Tensor(Arc<GpuTensor>),
    Stack(GpuStack),
    List(GpuList),
}

/// A stack: the host has its structure, and the device its tensors but for those that were moved to
/// the host (`swap.rs`). A push shares the elements below.
#[derive(Clone, Debug)]
pub(super) struct GpuStack {
    top: Option<Arc<StackEntry>>,
    zeros_below: bool,
}

#[derive(Debug)]
struct StackEntry {
    item: StackItem,
    below: Option<Arc<StackEntry>>,
}

/// One or more elements of a stack.
#[derive(Clone, Debug)]
pub(super) enum StackItem {
    One(Arc<SavedElement>),
    /// All elements that the iterations of a parallel loop have pushed, with those of the last one
    /// at the top.
    OfIterations(Arc<PushedElements>),
}

/// The elements that the iterations of a parallel loop have pushed to a stack. They are words.
#[derive(Debug)]
pub(super) struct PushedElements {
    pub(super) n_iterations: u32,
    /// Rows of elements, one for each place in the parts of the iterations, from the bottom. Stacks
    /// of one loop share them.
    pub(super) elements: Arc<SavedElement>,
    /// Rows with the number of elements of each iteration.
    pub(super) depths: Arc<SavedElement>,
    /// The first of these rows that belongs to the stack.
    pub(super) first_row: u32,
    pub(super) row_of_depths: u32,
}

impl StackItem {
    fn bytes_on_device(&self) -> u64 {
        match self {
            StackItem::One(element) => element.bytes_on_device(),
            StackItem::OfIterations(pushed) => pushed.elements.bytes_on_device() + pushed.depths.bytes_on_device(),
        }
    }

    /// Returns the bytes of the elements.
    pub(super) fn n_bytes(&self) -> u64 {
        match self {
            StackItem::One(element) => element.n_bytes(),
            StackItem::OfIterations(pushed) => pushed.elements.n_bytes() + pushed.depths.n_bytes(),
        }
    }

    pub(super) fn is_same(&self, other: &StackItem) -> bool {
        match (self, other) {
            (StackItem::One(a), StackItem::One(b)) => Arc::ptr_eq(a, b),
            (StackItem::OfIterations(a), StackItem::OfIterations(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// An element of stacks.
#[derive(Debug)]
pub(super) struct SavedElement {
    n_bytes: u64,
    place: Mutex<ElementPlace>,
}

/// The memory where an element is.
#[derive(Debug)]
pub(super) enum ElementPlace {
    OnDevice(Arc<GpuTensor>),
    /// Memory of the host that the device reads and writes.
    OnHost(Arc<GpuTensor>),
    /// Both, since the element came back before it was popped.
    Both {
        tensor: Arc<GpuTensor>,
        on_host: Arc<GpuTensor>,
    },
}

impl SavedElement {
    pub(super) fn new(tensor: Arc<GpuTensor>) -> SavedElement {
        SavedElement { n_bytes: tensor.n_bytes, place: Mutex::new(ElementPlace::OnDevice(tensor)) }
    }

    /// Returns the element that has a tensor, or makes one. So a tensor that is pushed to several
    /// stacks is one element. Returns whether it is new, too.
    pub(super) fn of_tensor(tensor: Arc<GpuTensor>) -> (Arc<SavedElement>, bool) {
        let mut saved = tensor.saved.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(element) = saved.upgrade() {
            return (element, false);
        }
        let element = Arc::new(SavedElement::new(tensor.clone()));
        *saved = Arc::downgrade(&element);
        drop(saved);
        (element, true)
    }

    pub(super) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    pub(super) fn place(&self) -> MutexGuard<'_, ElementPlace> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bytes_on_device(&self) -> u64 {
        match &*self.place() {
            ElementPlace::OnDevice(_) | ElementPlace::Both { .. } => self.n_bytes,
            ElementPlace::OnHost(_) => 0,
        }
    }
}

impl GpuStack {
    /// Creates a stack of elements, given from the bottom. `zeros_below` tells whether there are
    /// endless zeros below them.
    pub(super) fn new(items: impl IntoIterator<Item = Arc<SavedElement>>, zeros_below: bool) -> GpuStack {
        items
            .into_iter()
            .fold(GpuStack { top: None, zeros_below }, |stack, element| stack.push(StackItem::One(element)))
    }

    /// Returns whether there are endless zeros below the elements.
    pub(super) fn has_zeros_below(&self) -> bool {
        self.zeros_below
    }

    pub(super) fn push(&self, item: StackItem) -> GpuStack {
        GpuStack { top: Some(Arc::new(StackEntry { item, below: self.top.clone() })), ..*self }
    }

    /// Returns the stack below the item at the top, and the item. Endless zeros do not count.
    pub(super) fn pop(&self) -> Option<(GpuStack, StackItem)> {
        let top = self.top.as_ref()?;
        Some((GpuStack { top: top.below.clone(), ..*self }, top.item.clone()))
    }

    /// Returns the items from the top.
    pub(super) fn items(&self) -> impl Iterator<Item = &StackItem> {
        let entries = std::iter::successors(self.top.as_deref(), |entry| entry.below.as_deref());
        entries.map(|entry| &entry.item)
    }

    /// Returns the elements from the top of a stack that has no others.
    pub(super) fn elements(&self) -> impl Iterator<Item = &Arc<SavedElement>> {
        self.items().map(|item| match item {
            StackItem::One(element) => element,
            StackItem::OfIterations(_) => panic!("the elements of iterations have been taken apart"),
        })
    }
}

impl Drop for StackEntry {
    /// Drops entries one after another: a recursion over a deep stack would need too much stack.
    fn drop(&mut self) {
        let mut next = self.below.take();
        while let Some(mut entry) = next.and_then(Arc::into_inner) {
            next = entry.below.take();
        }
    }
}

/// A tensor in the memory of a GPU. When it is dropped, its memory may be used again, since later
/// commands take effect after the earlier ones that use it.
#[derive(Debug)]
pub(super) struct GpuTensor {
    buffer: Option<wgpu::Buffer>,
    /// The bytes of the elements. The buffer may be larger.
    n_bytes: u64,
    /// The only element, if the host has uploaded it.
    known: Option<HostTensor>,
    /// The element of stacks that has the tensor.
    saved: Mutex<Weak<SavedElement>>,
    pool: Arc<BufferPool>,
}

impl GpuTensor {
    pub(super) fn buffer(&self) -> &wgpu::Buffer {
        self.buffer.as_ref().expect("a tensor has its buffer until it is dropped")
    }

    /// Returns the bytes of the elements.
    pub(super) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Returns the bytes of the buffer.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.buffer().size()
    }

    /// Returns the only element, if the host knows it.
    pub(super) fn known(&self) -> Option<&HostTensor> {
        self.known.as_ref()
    }

    /// Notes what has been uploaded, if that is one element.
    pub(super) fn remember(&mut self, uploaded: &HostTensor) {
        self.known = (uploaded.len() == 1).then(|| uploaded.clone());
    }

    /// Returns the bytes to bind or copy. They are never 0.
    pub(super) fn bound_bytes(&self) -> u64 {
        self.n_bytes.max(4)
    }

    /// Drops the buffer, so that no other tensor gets it. The tensor must not be used any more.
    pub(super) fn drop_buffer(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.remove(&buffer);
        }
    }
}

impl Drop for GpuTensor {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.free(buffer);
        }
    }
}

/// The buffers of a device: those that no tensor has, by size, and the bytes of all.
#[derive(Debug, Default)]
pub(super) struct BufferPool {
    free: Mutex<FreeBuffers>,
}

/// The number of bytes that a pool keeps at any rate.
const KEPT_BYTES: u64 = 1 << 30;

#[derive(Debug, Default)]
struct FreeBuffers {
    by_size: BTreeMap<u64, Vec<wgpu::Buffer>>,
    n_bytes: u64,
    /// The bytes of all buffers, also of those that tensors have.
    n_allocated: u64,
    /// The most bytes that tensors have had since buffers were dropped.
    most_in_use: u64,
    /// The number of times that buffers were dropped.
    generation: u64,
}

impl FreeBuffers {
    fn take(&mut self, size: u64) -> Option<wgpu::Buffer> {
        let buffer = self.by_size.get_mut(&size)?.pop()?;
        self.n_bytes -= size;
        Some(buffer)
    }

    /// Adds a buffer that a tensor had. Drops others if they are more than the next step needs, if
    /// it is like the ones before, with some for other sizes.
    fn add(&mut self, buffer: wgpu::Buffer) {
        self.most_in_use = self.most_in_use.max(self.n_allocated - self.n_bytes);
        if self.n_bytes + buffer.size() > KEPT_BYTES.max(2 * self.most_in_use) {
            self.clear();
        }
        self.n_bytes += buffer.size();
        self.by_size.entry(buffer.size()).or_default().push(buffer);
    }

    /// Drops all buffers.
    fn clear(&mut self) {
        *self = FreeBuffers {
            n_allocated: self.n_allocated - self.n_bytes,
            generation: self.generation + 1,
            ..FreeBuffers::default()
        };
    }
}

impl BufferPool {
    fn lock(&self) -> MutexGuard<'_, FreeBuffers> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a tensor with elements of `n_bytes` bytes, which have any values. `create` makes a
    /// buffer of a given size, at most `max_size`.
    ///
    /// # Errors
    /// Returns the error of `create`.
    pub(super) fn tensor<E>(
        self: &Arc<Self>,
        n_bytes: u64,
        max_size: u64,
        create: impl FnOnce(u64) -> Result<wgpu::Buffer, E>,
    ) -> Result<GpuTensor, E> {
        let size = size_class(n_bytes).min(max_size / 4 * 4).max(n_bytes.next_multiple_of(4));
        let free = self.lock().take(size);
        let buffer = match free {
            Some(buffer) => buffer,
            None => {
                let buffer = create(size)?;
                self.lock().n_allocated += size;
                buffer
            }
        };
        Ok(GpuTensor { buffer: Some(buffer), n_bytes, known: None, saved: Mutex::default(), pool: self.clone() })
    }

    fn free(&self, buffer: wgpu::Buffer) {
        self.lock().add(buffer);
    }

    /// Forgets a buffer that a tensor had.
    fn remove(&self, buffer: &wgpu::Buffer) {
        self.lock().n_allocated -= buffer.size();
    }

    /// Returns the bytes of all buffers.
    pub(super) fn n_allocated(&self) -> u64 {
        self.lock().n_allocated
    }

    /// Returns the bytes of the buffers that tensors have.
    pub(super) fn n_in_use(&self) -> u64 {
        let free = self.lock();
        free.n_allocated - free.n_bytes
    }

    /// Returns the number of times that buffers were dropped.
    pub(super) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Drops all buffers that no tensor has.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }
}

/// Returns the size of a buffer for a number of bytes: one of four sizes between two powers of two,
/// so that few sizes are used and at most a fifth is lost.
pub(super) fn size_class(n_bytes: u64) -> u64 {
    let n_bytes = n_bytes.max(256);
    let quarter = (n_bytes.next_power_of_two() / 8).max(64);
    n_bytes.div_ceil(quarter) * quarter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_hold_their_bytes_and_waste_at_most_a_quarter() {
        for n in (0..5000).chain([1 << 20, (1 << 20) + 1, 3 << 29]) {
            let size = size_class(n);
            assert!(size >= n && size.is_multiple_of(64) && size <= (n.max(256) * 5).div_ceil(4), "{n}: {size}");
            assert_eq!(size_class(size), size, "{n}");
        }
    }
}
