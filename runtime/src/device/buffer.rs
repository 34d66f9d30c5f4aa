//! Values in the memory of a device.
//!
//! A [`DeviceBuffer`] tells everybody where a value is, its type and its bytes. Its memory is
//! opaque: a handle that only the device of its space can open. Invariants:
//!
//! - M1. A buffer is immutable, and a clone shares its memory.
//! - M2. A buffer is opened in its own [`MemorySpace`] only. A device that copies a buffer to
//!   another space makes memory of the kind that the other space has.
//! - M3. The bytes include those of stacks and lists, so that budgets can count them. A buffer that
//!   is counted in a budget is so until its last clone is opened or dropped, and longer for those
//!   who take [what it holds](DeviceBuffer::held).
//!
//! This module must not know any kind of memory.

use super::DeviceId;
use anabranch_dsl::Type;
use anabranch_dsl::memory::HeldBytes;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// The memory in which a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MemorySpace {
    /// The memory of this process, which holds the tensors of callers.
    Host,
    Device(DeviceId),
}

/// A handle of the memory of a value, in the form of one kind of device.
pub(crate) trait DeviceMemory: Any + Debug + Send + Sync {
    /// Returns the type of the value.
    fn ty(&self) -> Type;

    /// Returns the bytes that the value takes in memory.
    fn n_bytes(&self) -> u64;

    /// Returns the bytes that a step holds in its budget as long as it uses the value: those that
    /// do not count themselves.
    fn bytes_to_hold(&self) -> u64 {
        self.n_bytes()
    }

    /// Counts the memory no more in the budget of the run that made it.
    #[cfg(feature = "peers")]
    fn stop_counting(&self) {}
}

/// A value in a memory space. Clones share its memory.
#[derive(Clone, Debug)]
pub(crate) struct DeviceBuffer {
    space: MemorySpace,
    memory: Arc<dyn DeviceMemory>,
    /// The bytes that the value holds of the budget of its step.
    held: Option<Arc<HeldBytes>>,
}

impl DeviceBuffer {
    /// Returns a buffer for memory of a space.
    pub(crate) fn new(space: MemorySpace, memory: impl DeviceMemory) -> DeviceBuffer {
        DeviceBuffer { space, memory: Arc::new(memory), held: None }
    }

    /// Returns a buffer that shares memory of a space.
    pub(super) fn from_memory(space: MemorySpace, memory: Arc<dyn DeviceMemory>) -> DeviceBuffer {
        DeviceBuffer { space, memory, held: None }
    }

    /// Holds bytes of a budget, as long as the value is in use. `None` holds none any more.
    pub(crate) fn hold(&mut self, held: Option<HeldBytes>) {
        self.held = held.map(Arc::new);
    }

    /// Counts the value no more in the budget of the run that made it.
    #[cfg(feature = "peers")]
    pub(crate) fn stop_counting(&self) {
        self.memory.stop_counting();
    }

    /// Returns what the value holds of a budget.
    pub(crate) fn held(&self) -> Option<Arc<HeldBytes>> {
        self.held.clone()
    }

    /// Returns the space that stores the value.
    pub(crate) fn space(&self) -> MemorySpace {
        self.space
    }

    /// Returns the type of the value.
    pub(crate) fn ty(&self) -> Type {
        self.memory.ty()
    }

    /// Returns the bytes that the value takes in memory.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.memory.n_bytes()
    }

    /// See [`DeviceMemory::bytes_to_hold`].
    pub(crate) fn bytes_to_hold(&self) -> u64 {
        self.memory.bytes_to_hold()
    }

    /// Returns whether two buffers share their memory.
    pub(crate) fn is_same(&self, other: &DeviceBuffer) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
    }

    /// Returns the same memory as part of another space, which must be able to open it.
    pub(super) fn moved_to(self, space: MemorySpace) -> DeviceBuffer {
        DeviceBuffer { space, ..self }
    }

    /// Opens the memory, if it is of kind `M`; otherwise returns the buffer.
    ///
    /// # Panics
    /// Panics if the buffer is in another space than `space`.
    pub(crate) fn open<M: DeviceMemory>(self, space: MemorySpace) -> Result<Arc<M>, DeviceBuffer> {
        assert_eq!(self.space, space, "a value of type {} is used in its own memory space", self.ty());
        let is_of_kind = (&*self.memory as &dyn Any).is::<M>();
        if !is_of_kind {
            return Err(self);
        }
        let memory: Arc<dyn Any + Send + Sync> = self.memory;
        Ok(memory.downcast().expect("the kind was checked"))
    }
}
