//! The body of a loop in lanes, as operations on rows.

use super::code::{self, LaneCode};
use super::code_input::LaneBody;
use crate::cpu::compile::TripCount;
use crate::cpu::kernels::ScalarOp;
use crate::cpu::kernels::functions::{BlockFn, OperandCheck};
use crate::cpu::memory::{Base, BufferId, Reg, StackId};
use crate::options::CodeVectors;
use anabranch_dsl::ir::ListOp;
use anabranch_dsl::{DType, Loc};
use std::sync::Arc;

/// Index of a row.
pub(super) type RowId = u16;

/// The initial elements of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RowStart {
    /// Unspecified.
    Nothing,
    /// The same bits in each lane.
    Constant(u64),
    /// The element of a register in each lane, unchanged by the body.
    Register(Reg),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RowInfo {
    /// The size of an element in bytes.
    pub(super) size: usize,
    pub(super) start: RowStart,
    /// Whether a basic block may read elements that another one wrote.
    pub(super) is_kept: bool,
}

/// A counter of the loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopCounter {
    pub(super) reg: Reg,
    pub(super) row: RowId,
    pub(super) step: i64,
    /// The size of the integer in bytes.
    pub(super) size: usize,
}

/// A sum over the iterations.
#[derive(Clone, Copy, Debug)]
pub(super) struct SumOverLanes {
    pub(super) reg: Reg,
    pub(super) row: RowId,
    pub(super) add: fn(u64, u64) -> u64,
    /// The number that changes no other number when it is added to it.
    pub(super) zero: u64,
}

/// A list of which each iteration writes one element, or adds to one.
#[derive(Clone, Debug)]
pub(super) struct ListUpdate {
    pub(super) list: StackId,
    pub(super) op: ListOp,
    /// The size of an element of the list in bytes.
    pub(super) bytes: usize,
    pub(super) loc: Loc,
}

/// A tensor that belongs to one iteration.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnTensor {
    /// Number of elements, and the size of one in bytes.
    pub(super) n: usize,
    pub(super) size: usize,
    /// Adds two elements as registers.
    pub(super) add: fn(u64, u64) -> u64,
}

/// A tensor to elements of which the iterations add.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddedTensor {
    pub(super) buffer: BufferId,
    pub(super) dtype: DType,
    /// Adds two elements as registers.
    pub(super) add: fn(u64, u64) -> u64,
    pub(super) record: AdditionStacks,
    /// The numbers that are recorded for each place: for the element there and for those after it.
    pub(super) numbers_per_place: usize,
}

/// The stacks of the program to which lanes push what they add to a tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdditionStacks {
    /// The places of elements, in 32 bits.
    pub(super) places: u16,
    pub(super) numbers: u16,
}

/// The tensor of which an element is read.
#[derive(Clone, Copy, Debug)]
pub(super) enum ElementSource {
    /// A tensor that the body does not write.
    Outside(Base),
    /// An element of a list, a tensor of `n` numbers, whose index is in a row.
    OfList { list: StackId, index: RowId, n: usize },
    /// A tensor of each iteration.
    Own(u16),
}

/// The value of an update of a list.
#[derive(Clone, Copy, Debug)]
pub(super) enum UpdateValue {
    Row(RowId),
    Own(u16),
}

/// The part of a stack in a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum StackPart {
    /// Iterations push to it.
    Pushed,
    /// Iterations pop from it what those of an earlier loop pushed.
    Popped,
    /// It belongs to one iteration.
    Own,
    /// It has what iterations add to a tensor, until all have ended.
    Recorded,
}

/// A stack of each lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopStack {
    /// The stack of the plan, if there is one.
    pub(super) stack: Option<StackId>,
    pub(super) size: usize,
    pub(super) part: StackPart,
    /// The number of elements of each lane, in 32 bits. Stacks that always have as many as others
    /// share a row.
    pub(super) depth: RowId,
    /// Whether native code uses it.
    pub(super) is_in_code: bool,
}

/// The place of an element in the stack of a lane: above so many more elements than the row says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StackPlace {
    pub(super) depth: RowId,
    pub(super) above: u32,
    /// So many elements above those that the row counts are pushed, or were popped, before the row
    /// changes.
    pub(super) n: u32,
}

/// An operation on rows.
#[derive(Clone, Debug)]
pub(super) enum LaneOp {
    /// Runs an elementwise function. Its check, if it has one, must hold for active lanes.
    Function {
        f: BlockFn,
        checked: Option<CheckedFunction>,
        op: ScalarOp,
        dst: RowId,
        args: [RowId; 3],
    },
    /// The quotient or remainder of a division by a power of two.
    DividePower {
        dst: RowId,
        a: RowId,
        dtype: DType,
        shift: u32,
        wants_remainder: bool,
    },
    Move {
        dst: RowId,
        src: RowId,
    },
    /// Fails unless the elements are valid operands.
    Require {
        valid: fn(u64) -> bool,
        a: RowId,
    },
    /// Fails unless the elements are indices below `n`.
    RequireIndex {
        a: RowId,
        dtype: DType,
        n: u64,
    },
    /// Fails unless the elements are true.
    Assert {
        cond: RowId,
    },
    /// Reads an element of a tensor, at an index along an axis with a stride.
    ReadElement {
        from: ElementSource,
        offset: usize,
        index: Option<ElementIndex>,
        dst: RowId,
    },
    /// Writes an element of a tensor of the iteration, or adds to one.
    WriteElement {
        to: u16,
        offset: usize,
        index: Option<ElementIndex>,
        value: RowId,
        adds: bool,
    },
    /// Pushes the place of an element of a tensor, to which a number is added when all iterations
    /// have ended. The number, and those for the elements after it, are pushed by [`LaneOp::Push`].
    PushPlace {
        stack: u16,
        at: StackPlace,
        offset: usize,
        index: Option<ElementIndex>,
    },
    /// Sets all elements of a tensor of the iteration.
    Fill {
        to: u16,
        value: RowId,
    },
    /// Sets the elements of a tensor of the iteration to those of a tensor that the body does not
    /// write, at these places in order.
    CopyIn {
        to: u16,
        base: Base,
        places: Box<[u32]>,
    },
    ReadList {
        list: StackId,
        index: RowId,
        dst: RowId,
    },
    /// Fails unless a list has elements at the indices.
    CheckList {
        list: StackId,
        index: RowId,
    },
    UpdateList {
        update: u16,
        index: RowId,
        value: UpdateValue,
    },
    /// Runs the first operations in the lanes in which the element is true, and the others in the
    /// other lanes.
    Branches {
        cond: RowId,
        arms: [Box<[LaneOp]>; 2],
    },
    /// Writes the element of a stack that is pushed. The row with the number of elements changes
    /// by an operation of its own.
    Push {
        stack: u16,
        at: StackPlace,
        src: RowId,
    },
    /// Reads the element of a stack that is popped.
    Pop {
        stack: u16,
        at: StackPlace,
        dst: RowId,
    },
    /// Removes all elements of a stack, before there are rows with their numbers.
    Clear {
        stack: u16,
    },
    /// Runs a function of the native code.
    #[cfg_attr(not(all(feature = "jit", target_arch = "x86_64")), expect(dead_code, reason = "there is no code"))]
    Code {
        function: u16,
    },
}

/// A function that traps for operands that fail its check.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedFunction {
    pub(super) check: OperandCheck,
    pub(super) scalar: fn(u64, u64) -> u64,
}

/// An index of an element of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ElementIndex {
    pub(super) row: RowId,
    pub(super) dtype: DType,
    /// The number of elements along the axis, and from one to the next.
    pub(super) n: usize,
    pub(super) stride: isize,
}

/// The end of a basic block. Targets are indices of basic blocks, or their number for the end of
/// the iteration.
#[derive(Clone, Copy, Debug)]
pub(super) enum BlockEnd {
    Jump(u16),
    /// Continues at `to` if the element of the row is `when`.
    Branch {
        cond: RowId,
        when: bool,
        to: u16,
        otherwise: u16,
    },
}

#[derive(Clone, Debug)]
pub(super) struct BasicBlock {
    pub(super) ops: Vec<LaneOp>,
    pub(super) end: BlockEnd,
    /// Whether a later basic block jumps to it.
    pub(super) begins_loop: bool,
    /// The row with the number of elements of a stack from which it pops, and the later basic block
    /// that leads to it and that lanes can run again while they wait for others with more elements.
    pub(super) aligned: Option<(RowId, u16)>,
}

/// The body of a loop, for many iterations side by side.
#[derive(Clone, Debug)]
pub(crate) struct LaneProgram {
    pub(super) trips: TripCount,
    pub(super) counters: Vec<LoopCounter>,
    pub(super) sums: Vec<SumOverLanes>,
    pub(super) updates: Vec<ListUpdate>,
    pub(super) tensors: Vec<OwnTensor>,
    pub(super) additions: Vec<AddedTensor>,
    pub(super) stacks: Vec<LoopStack>,
    pub(super) rows: Vec<RowInfo>,
    pub(super) blocks: Vec<BasicBlock>,
    /// The number of lanes of a tile of stacks.
    pub(super) tile: usize,
    /// The index of the instruction after the loop.
    pub(super) end: u32,
    /// The largest number of iterations in a block.
    pub(super) max_lanes: usize,
    /// The trip count from which on the loop runs in lanes.
    pub(super) min_trips: usize,
    /// Active lanes move together if at most one of so many is active.
    pub(super) gather_below: usize,
    /// Whether rows may have numbers of one byte, other than bools.
    pub(super) has_byte_numbers: bool,
    /// The same basic blocks, parts of which are native code.
    pub(super) code: Option<(Vec<BasicBlock>, Arc<LaneCode>)>,
}

impl LaneProgram {
    /// Returns the index of the instruction after the loop.
    pub(crate) fn end(&self) -> usize {
        self.end as usize
    }

    /// Compiles parts of the body to native code with vectors up to a limit.
    pub(super) fn compile(&mut self, limit: CodeVectors) {
        let mut read_at_end: Vec<RowId> = self.sums.iter().map(|sum| sum.row).collect();
        read_at_end.extend(self.stacks.iter().filter(|stack| stack.part != StackPart::Own).map(|stack| stack.depth));
        let body = LaneBody {
            rows: &self.rows,
            blocks: &self.blocks,
            has_byte_numbers: self.has_byte_numbers,
            read_at_end: &read_at_end,
        };
        let Some((blocks, code)) = code::compile(body, limit) else { return };
        code.stacks().for_each(|stack| self.stacks[usize::from(stack)].is_in_code = true);
        self.tile = code.tile();
        self.code = Some((blocks, Arc::new(code)));
    }

    /// Says which parts of the body are native code, if any are.
    pub(crate) fn native_parts(&self) -> Option<String> {
        self.code.as_ref().map(|(_, code)| code.to_string())
    }
}
