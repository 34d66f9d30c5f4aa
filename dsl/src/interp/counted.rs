//! Tensors in stacks and lists, which count in the budget of the run.

use crate::HostTensor;
use crate::memory::{self, HeldBytes, OutOfMemory};

/// The bytes as which an element of a stack or list counts beside its tensor: its handle, the
/// extents, and what the allocator adds.
#[doc(hidden)]
pub const ELEMENT_BYTES: usize = 128;

/// A tensor in a stack or list. Its strings do not keep large blocks of memory of which they are
/// small parts.
///
/// It counts with its elements, unless they count themselves.
#[derive(Debug)]
pub(super) struct CountedTensor {
    tensor: HostTensor,
    #[expect(dead_code, reason = "the bytes count until it is dropped")]
    held: Option<HeldBytes>,
}

impl CountedTensor {
    pub(super) fn new(tensor: HostTensor) -> CountedTensor {
        let tensor = tensor.compacted().unwrap_or(tensor);
        CountedTensor { held: memory::hold(|| bytes_of(&tensor)), tensor }
    }

    /// Checks that the budget of the run has room to store a tensor.
    pub(super) fn check_room(tensor: &HostTensor) -> Result<(), OutOfMemory> {
        memory::check_budget(|| bytes_of(tensor) as u128)
    }

    pub(super) fn tensor(&self) -> &HostTensor {
        &self.tensor
    }
}

/// Returns the bytes as which a stored tensor counts.
fn bytes_of(tensor: &HostTensor) -> usize {
    ELEMENT_BYTES + tensor.uncounted_bytes()
}
