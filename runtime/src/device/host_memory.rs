//! Values in the memory of this process: tensors of callers, and all values of devices that compute
//! there.

use super::{DeviceBuffer, DeviceMemory, MemorySpace};
use crate::cpu::program::Contents;
use anabranch_dsl::interp::RuntimeValue;
use anabranch_dsl::{HostTensor, TensorType, Type};
use std::sync::Arc;

impl DeviceMemory for HostTensor {
    fn ty(&self) -> Type {
        Type::Tensor(HostTensor::ty(self))
    }

    fn n_bytes(&self) -> u64 {
        self.memory_bytes()
    }

    fn bytes_to_hold(&self) -> u64 {
        self.uncounted_bytes() as u64
    }

    #[cfg(feature = "peers")]
    fn stop_counting(&self) {
        HostTensor::stop_counting(self);
    }
}

/// A stack or list.
#[derive(Clone, Debug)]
struct Container {
    ty: Type,
    contents: Contents,
}

impl DeviceMemory for Container {
    fn ty(&self) -> Type {
        self.ty.clone()
    }

    fn n_bytes(&self) -> u64 {
        match &self.contents {
            Contents::Value(value) => bytes_of_value(value),
            Contents::List(list) => match list.as_host() {
                Some(host) => bytes_of_list(host.element(), host.len(), host.items()),
                None => bytes_of_list(list.element(), list.len(), std::iter::empty()),
            },
        }
    }

    /// Stacks and lists count themselves.
    fn bytes_to_hold(&self) -> u64 {
        0
    }
}

/// Returns the bytes that a value takes in memory.
pub(super) fn bytes_of_value(value: &RuntimeValue) -> u64 {
    match value {
        RuntimeValue::Tensor(tensor) => tensor.memory_bytes(),
        RuntimeValue::Stack(stack) => stack.items().iter().map(HostTensor::memory_bytes).sum(),
        RuntimeValue::List(list) => bytes_of_list(list.element(), list.len(), list.items()),
    }
}

/// Returns the bytes that a list takes in memory. Elements that are not written are zeros, which
/// count if their extents are known.
fn bytes_of_list<'a>(element: &TensorType, len: usize, items: impl Iterator<Item = Option<&'a HostTensor>>) -> u64 {
    match element.n_bytes().filter(|_| element.dtype.is_plain()) {
        Some(bytes) => len as u64 * bytes as u64,
        None => items.flatten().map(HostTensor::memory_bytes).sum(),
    }
}

impl DeviceBuffer {
    /// Returns a buffer of a tensor in host memory, in a space that has this memory.
    pub(super) fn of_tensor(space: MemorySpace, tensor: HostTensor) -> DeviceBuffer {
        DeviceBuffer::new(space, tensor)
    }

    /// Returns a buffer for the tensor of a caller.
    pub(crate) fn from_host(tensor: HostTensor) -> DeviceBuffer {
        DeviceBuffer::new(MemorySpace::Host, tensor)
    }

    /// Returns the tensor of a buffer on the host.
    pub(crate) fn into_host(self) -> HostTensor {
        self.into_tensor(MemorySpace::Host)
    }

    /// Returns the tensor of a buffer in a space that has host memory.
    pub(super) fn into_tensor(self, space: MemorySpace) -> HostTensor {
        let tensor = self.open::<HostTensor>(space);
        Arc::unwrap_or_clone(tensor.unwrap_or_else(|other| panic!("{} is not a tensor in host memory", other.ty())))
    }

    /// Returns a buffer of a value of this type.
    pub(super) fn of_contents(space: MemorySpace, contents: Contents, ty: &Type) -> DeviceBuffer {
        match contents {
            Contents::Value(RuntimeValue::Tensor(tensor)) => DeviceBuffer::new(space, tensor),
            contents => DeviceBuffer::new(space, Container { ty: ty.clone(), contents }),
        }
    }

    /// Returns the value of a buffer in a space that has host memory.
    pub(super) fn into_contents(self, space: MemorySpace) -> Contents {
        match self.open::<HostTensor>(space) {
            Ok(tensor) => Contents::Value(RuntimeValue::Tensor(Arc::unwrap_or_clone(tensor))),
            Err(other) => {
                let container = other.open::<Container>(space);
                let container = container.unwrap_or_else(|other| panic!("{} is not in host memory", other.ty()));
                Arc::unwrap_or_clone(container).contents
            }
        }
    }
}
