//! Where a plan stores values: the indices of registers, buffers, stacks and slots, and what
//! kernels read and write in them.

use super::view::{Base, View};
use crate::id::id;
use anabranch_dsl::DType;

id! {
    /// Index of a register, which holds one element of any type.
    Reg, "r"
}
id! {
    /// Index of a buffer, a region of the arena.
    BufferId, "b"
}
id! {
    /// Index of a stack or list of tensors.
    StackId, "s"
}
id! {
    /// Index of a slot, a tensor whose shape is unknown until it is computed.
    SlotId, "d"
}

/// A register, buffer, stack or slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Storage {
    Reg(Reg),
    Buffer(BufferId),
    Stack(StackId),
    Slot(SlotId),
}

/// An operand of a tensor operation.
#[derive(Clone, Debug)]
pub(crate) enum TensorOperand {
    /// A tensor of known shape.
    View(View),
    /// A tensor of unknown shape.
    Slot(SlotId),
}

impl TensorOperand {
    /// Returns the view. Only the reference kernel accepts slots.
    pub(crate) fn view(&self) -> &View {
        match self {
            TensorOperand::View(v) => v,
            TensorOperand::Slot(s) => panic!("{s:?} given to a kernel that needs known shapes"),
        }
    }
}

/// The destination of a tensor operation.
#[derive(Clone, Debug)]
pub(crate) enum Out {
    /// A view of a buffer. A view is contiguous, except for copies.
    View(View),
    /// Views of several buffers, each of which covers its buffer.
    Views(Vec<View>),
    /// One element.
    Reg(Reg, DType),
    /// A tensor of unknown shape.
    Slot(SlotId),
    /// No destination here: the instruction that refers to the operation knows it.
    Nothing,
}

impl View {
    /// Returns the storage of the view if the plan writes it.
    pub(crate) fn storage(&self) -> Option<Storage> {
        match self.base {
            Base::Buffer(b) => Some(Storage::Buffer(b)),
            Base::Reg(r) => Some(Storage::Reg(r)),
            _ => None,
        }
    }
}

impl TensorOperand {
    /// Returns the storage of the operand if the plan writes it.
    pub(crate) fn storage(&self) -> Option<Storage> {
        match self {
            TensorOperand::View(v) => v.storage(),
            TensorOperand::Slot(s) => Some(Storage::Slot(*s)),
        }
    }
}

impl Out {
    /// Returns the storage that is written.
    pub(crate) fn storage(&self) -> impl Iterator<Item = Storage> {
        let (one, several): (Option<Storage>, &[View]) = match self {
            Out::View(v) => (v.storage(), &[]),
            Out::Views(views) => (None, views),
            Out::Reg(r, _) => (Some(Storage::Reg(*r)), &[]),
            Out::Slot(s) => (Some(Storage::Slot(*s)), &[]),
            Out::Nothing => (None, &[]),
        };
        one.into_iter().chain(several.iter().filter_map(View::storage))
    }
}
