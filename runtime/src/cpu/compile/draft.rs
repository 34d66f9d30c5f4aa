//! The draft of a plan: the result of lowering, before storage is allocated.
//!
//! A draft has separate registers, buffers and stacks for each value. Simultaneous moves, such as
//! the update of all loop variables, form one item. Jumps refer to labels.

use super::{BufferId, Instr, ParallelLoop, Reg, ScalarOp, SlotId, StackId, TensorOp, TensorOpId, View};
use crate::cpu::kernels::Kernel;
use crate::cpu::memory::Storage;
use anabranch_dsl::ir::ListForm;
use anabranch_dsl::{HostTensor, Loc, Type};
use std::ops::Range;

/// The number of each kind of storage, from which each piece gets an index among all.
#[derive(Clone, Copy, Debug)]
pub(super) struct StorageIds {
    pub(super) registers: usize,
    pub(super) buffers: usize,
    pub(super) stacks: usize,
    pub(super) slots: usize,
}

impl StorageIds {
    /// Returns the number of pieces of storage.
    pub(super) fn len(&self) -> usize {
        self.registers + self.buffers + self.stacks + self.slots
    }

    /// Returns the index of a piece of storage.
    pub(super) fn of(&self, storage: Storage) -> usize {
        match storage {
            Storage::Reg(r) => r.index(),
            Storage::Buffer(b) => self.registers + b.index(),
            Storage::Stack(s) => self.registers + self.buffers + s.index(),
            Storage::Slot(s) => self.registers + self.buffers + self.stacks + s.index(),
        }
    }

    /// Returns the piece of storage with an index.
    pub(super) fn storage(&self, id: usize) -> Storage {
        let [buffers, stacks] = [self.registers, self.registers + self.buffers];
        let slots = stacks + self.stacks;
        match id {
            _ if id < buffers => Storage::Reg(Reg(id as u32)),
            _ if id < stacks => Storage::Buffer(BufferId((id - buffers) as u32)),
            _ if id < slots => Storage::Stack(StackId((id - stacks) as u32)),
            _ => Storage::Slot(SlotId((id - slots) as u32)),
        }
    }
}

/// One of several simultaneous moves.
#[derive(Clone, Debug)]
pub(crate) enum Move {
    Reg {
        dst: Reg,
        src: Reg,
    },
    /// A copy of a tensor. The destination is a whole buffer.
    Tensor {
        dst: View,
        src: View,
    },
    Stack {
        dst: StackId,
        src: StackId,
    },
    Slot {
        dst: SlotId,
        src: SlotId,
    },
}

/// An item of code.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// An instruction. Its jump target is a label.
    Instr(Instr),
    /// Simultaneous moves: all sources are read before any destination is written.
    Moves(Vec<Move>),
    /// Independent tensor operations: those before a loop, or [heavy ones](super::parallel_ops).
    Ops(Vec<TensorOpId>),
}

/// The items of a loop, from the first of its body to the jump back.
#[derive(Clone, Debug)]
pub(crate) struct DraftLoop {
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) parent: Option<u32>,
    /// The preceding [`Item::Steps`]. `n_buffers` is the number of buffers at that point.
    pub(crate) before: u32,
    pub(crate) n_buffers: u32,
    /// The item that updates the loop variables.
    pub(crate) back_edge: u32,
    /// The location in the source.
    pub(crate) loc: Loc,
    /// The roles of its variables, if its iterations can run in any order.
    pub(crate) parallel: Option<ParallelLoop>,
}

/// The items of one branch of a conditional. The first branch includes the jump after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftArm {
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// The enclosing branch.
    pub(crate) parent: Option<u32>,
    /// 0 or 1. The branches of a conditional are adjacent in the list.
    pub(crate) side: usize,
}

/// The draft of a plan.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) items: Vec<Item>,
    /// The register operation of each item, or `None` for other items.
    pub(crate) scalar_ops: Vec<Option<ScalarOp>>,
    /// The innermost loop around each item.
    pub(crate) item_loops: Vec<Option<u32>>,
    pub(crate) loops: Vec<DraftLoop>,
    /// The innermost branch around each item.
    pub(crate) item_arms: Vec<Option<u32>>,
    /// All branches, outer before inner.
    pub(crate) arms: Vec<DraftArm>,
    /// The item after each label.
    pub(crate) labels: Vec<u32>,
    pub(crate) tensor_ops: Vec<TensorOp>,
    pub(crate) n_regs: u32,
    /// Registers that hold constants.
    pub(crate) constant_regs: Vec<(Reg, u64)>,
    /// The size of each buffer in bytes.
    pub(crate) buffers: Vec<usize>,
    pub(crate) stacks: Vec<Type>,
    pub(crate) n_slots: u32,
    pub(crate) constants: Vec<HostTensor>,
    /// The operations whose rows are added to variables at the end.
    pub(crate) additions: Vec<TensorOpId>,
    /// The items of the parts of each kernel of rows.
    pub(crate) row_kernels: Vec<Range<usize>>,
    /// The storage of each loop variable, with its loop.
    pub(crate) carried: Vec<(Storage, u32)>,
}

/// A kind of access to storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessKind {
    Read,
    Write,
}

impl Draft {
    pub(super) fn storage_ids(&self) -> StorageIds {
        StorageIds {
            registers: self.n_regs as usize,
            buffers: self.buffers.len(),
            stacks: self.stacks.len(),
            slots: self.n_slots as usize,
        }
    }

    pub(crate) fn op(&self, id: TensorOpId) -> &TensorOp {
        &self.tensor_ops[id.index()]
    }

    /// Calls `f` for all storage that an item reads, then for all that it writes.
    pub(crate) fn touches(&self, item: &Item, f: &mut dyn FnMut(Storage, AccessKind)) {
        match item {
            Item::Moves(moves) => {
                for m in moves {
                    match m {
                        Move::Reg { src, .. } => f(Storage::Reg(*src), AccessKind::Read),
                        Move::Tensor { src, .. } => src.storage().into_iter().for_each(|s| f(s, AccessKind::Read)),
                        Move::Stack { src, .. } => f(Storage::Stack(*src), AccessKind::Read),
                        Move::Slot { src, .. } => f(Storage::Slot(*src), AccessKind::Read),
                    }
                }
                for m in moves {
                    f(m.destination(), AccessKind::Write);
                }
            }
            Item::Ops(ops) => {
                ops.iter().for_each(|&op| op_touches(&self.tensor_ops, op, f, AccessKind::Write));
            }
            Item::Instr(instr) => instr_touches(&self.tensor_ops, instr, f),
        }
    }
}

/// Calls `f` for all storage that an instruction reads, then for all that it writes.
pub(crate) fn instr_touches(ops: &[TensorOp], instr: &Instr, f: &mut dyn FnMut(Storage, AccessKind)) {
    use AccessKind::{Read, Write};
    match instr {
        Instr::Unary { dst, a, .. } => {
            f(Storage::Reg(*a), Read);
            f(Storage::Reg(*dst), Write);
        }
        Instr::Binary { dst, a, b, .. } => {
            [a, b].into_iter().for_each(|r| f(Storage::Reg(*r), Read));
            f(Storage::Reg(*dst), Write);
        }
        Instr::Select { dst, a, b, c } => {
            [a, b, c].into_iter().for_each(|r| f(Storage::Reg(*r), Read));
            f(Storage::Reg(*dst), Write);
        }
        Instr::Require { op, .. } | Instr::RequireIndex { op, .. } => {
            let operands = &ops[op.index()].operands;
            operands.iter().filter_map(super::TensorOperand::storage).for_each(|s| f(s, Read));
        }
        Instr::JumpCompare { a, b, .. } => [a, b].into_iter().for_each(|r| f(Storage::Reg(*r), Read)),
        Instr::Move { dst, src } => {
            f(Storage::Reg(*src), Read);
            f(Storage::Reg(*dst), Write);
        }
        Instr::Jump { .. } | Instr::Native { .. } | Instr::Lanes { .. } => {}
        Instr::JumpIf { cond, .. } | Instr::JumpUnless { cond, .. } => f(Storage::Reg(*cond), Read),
        Instr::Assert { cond, op } => {
            f(Storage::Reg(*cond), Read);
            op_touches(ops, *op, f, Write);
        }
        Instr::Run(op) => op_touches(ops, *op, f, Write),
        Instr::RunParallel(together) => together.iter().for_each(|&op| op_touches(ops, op, f, Write)),
        Instr::CheckFinite(op) => op_touches(ops, *op, f, Read),
        Instr::StackNew(s) | Instr::StackZeros(s) | Instr::StackInput { stack: s, .. } => {
            f(Storage::Stack(*s), Write);
        }
        Instr::StackOutput { stack, .. } => f(Storage::Stack(*stack), Read),
        Instr::StackMove { dst, src, .. } => {
            f(Storage::Stack(*src), Read);
            f(Storage::Stack(*dst), Write);
        }
        Instr::StackReserve { stack, pushed } => {
            [Some(pushed.trips.first), pushed.trips.limit].into_iter().flatten().for_each(|r| f(Storage::Reg(r), Read));
            f(Storage::Stack(*stack), Read);
            f(Storage::Stack(*stack), Write);
        }
        Instr::StackPush { stack, op } | Instr::StackPop { stack, op } => {
            f(Storage::Stack(*stack), Read);
            op_touches(ops, *op, f, Write);
            f(Storage::Stack(*stack), Write);
        }
        Instr::StackZero(s) => {
            f(Storage::Stack(*s), Read);
            f(Storage::Stack(*s), Write);
        }
        Instr::StackAdd { dst, src, .. } => {
            f(Storage::Stack(*dst), Read);
            f(Storage::Stack(*src), Read);
            f(Storage::Stack(*dst), Write);
        }
        Instr::List { list, other, op } => {
            let Kernel::List(list_op) = &ops[op.index()].kernel else { panic!("a list without an operation") };
            if list_op.form() != ListForm::Make {
                f(Storage::Stack(*list), Read);
            }
            if let Some(other) = other {
                f(Storage::Stack(*other), Read);
            }
            op_touches(ops, *op, f, Write);
            if list_op.form() != ListForm::Query {
                f(Storage::Stack(*list), Write);
            }
        }
        Instr::SlotMove { dst, src } => {
            f(Storage::Slot(*src), Read);
            f(Storage::Slot(*dst), Write);
        }
    }
}

fn op_touches(ops: &[TensorOp], op: TensorOpId, f: &mut dyn FnMut(Storage, AccessKind), out: AccessKind) {
    let op = &ops[op.index()];
    op.operands.iter().filter_map(super::TensorOperand::storage).for_each(|s| f(s, AccessKind::Read));
    op.out.storage().for_each(|s| f(s, out));
}

impl Move {
    pub(crate) fn destination(&self) -> Storage {
        match self {
            Move::Reg { dst, .. } => Storage::Reg(*dst),
            Move::Tensor { dst, .. } => dst.storage().expect("a tensor is moved to a buffer"),
            Move::Stack { dst, .. } => Storage::Stack(*dst),
            Move::Slot { dst, .. } => Storage::Slot(*dst),
        }
    }
}
