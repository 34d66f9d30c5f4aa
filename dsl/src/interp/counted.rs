//! Tensors in stacks and lists, which count in the budget of the run.

use crate::HostTensor;
use crate::memory::{self, HeldBytes, OutOfMemory};
use std::sync::Arc;

/// The bytes as which an element of a stack or list counts beside its tensor: its handle, the
/// extents, and what the allocator adds.
#[doc(hidden)]
pub const ELEMENT_BYTES: usize = 128;

/// A tensor in a stack or list. Its strings do not keep large blocks of memory of which they are
/// small parts.
///
/// It counts with its elements, unless they count themselves. Elements that several have count
/// once.
#[derive(Debug)]
pub(super) struct CountedTensor {
    tensor: HostTensor,
    #[expect(dead_code, reason = "the bytes count until it is dropped")]
    held: Option<(HeldBytes, Option<Arc<HeldBytes>>)>,
}

impl CountedTensor {
    pub(super) fn new(tensor: HostTensor) -> CountedTensor {
        let tensor = tensor.compacted().unwrap_or(tensor);
        let held = memory::hold(|| ELEMENT_BYTES).map(|own| (own, tensor.hold_stored()));
        CountedTensor { tensor, held }
    }

    /// Checks that the budget of the run has room to store a tensor.
    pub(super) fn check_room(tensor: &HostTensor) -> Result<(), OutOfMemory> {
        memory::check_budget(|| (ELEMENT_BYTES + tensor.bytes_to_store()) as u128)
    }

    pub(super) fn tensor(&self) -> &HostTensor {
        &self.tensor
    }
}
