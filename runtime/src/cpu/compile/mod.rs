//! The execution plan of a graph on one CPU: a flat list of instructions over registers, buffers,
//! stacks and slots, with control flow as jumps.
//!
//! ```text
//! Graph (optimized, shapes known) --lower--> Draft --liveness--> coalesced Draft
//!     --finish--> Plan --execute--> outputs
//! ```
//!
//! The storage of a value follows from its type alone:
//!
//! | type | storage |
//! |---|---|
//! | tensor of rank 0 | a **register** of 64 bits |
//! | tensor of known shape | a **view** of a buffer of the arena, an input, a constant, a variable or a register |
//! | stack or list of tensors of known shape | a **stack**: one growing block of memory |
//! | strings, and anything whose shape depends on data | a **slot**: a separate host tensor, or a list of them |
//!
//! Invariants, on which the executor relies. Debug builds check P1 to P7 for each plan that they
//! compile ([`verify`]):
//!
//! - P1. Jump targets are indices of instructions or the end. After the last instruction comes the
//!   end.
//! - P2. A register, buffer, stack or slot is written before it is read on every path through the
//!   code.
//! - P3. Storage that is live at the same time does not overlap. Storage that is written before a
//!   loop and read inside it stays unmodified through all iterations.
//! - P4. A kernel never reads the buffer it writes, except that an elementwise kernel may read
//!   exactly the elements it writes (in place). The first operand of a scatter-add or of a write of
//!   a slice may be its result, into which it writes. No tensor operation that runs in parallel
//!   with others reads or writes storage that one of the others writes.
//! - P5. Inputs, constants and variables are never written while the instructions run. All
//!   variables are updated together at the end, and only if no instruction failed. These updates
//!   cannot fail or be interrupted. An update reads no variable that an earlier one has written,
//!   unless it is to read the new value. What is assigned or added is in no variable.
//! - P6. Constants of rank 0 are in registers that no instruction writes.
//! - P7. A buffer that makes up a whole output is in memory that the caller receives, from its
//!   first write to the end. A failed call does not expose it.
//! - P8. No instruction of a plan without slots allocates, except that stacks and lists may grow
//!   beyond the size that earlier steps needed, and that a loop in lanes allocates what its
//!   iterations leave.

mod allocate;
mod draft;
mod exec;
mod explain;
mod finish;
mod fuse;
mod lists;
mod liveness;
mod lower;
mod moves;
mod parallel_ops;
mod profile;
mod registers;
mod rows;
mod updates;
mod verify;

use crate::cpu::kernels::elementwise::Map;
use crate::cpu::kernels::{ScalarOp, SourceOp, TensorOp};
use crate::cpu::lanes::{LaneProgram, WhyNotInLanes};
use crate::cpu::memory::{
    Base, BufferId, BufferLocation, MemoryLayout, Out, Reg, SlotId, StackId, Storage, TensorOperand, View,
};
use crate::cpu::native::{Native, WhyNot};
use crate::id::id;
use anabranch_dsl::ir::dependence::LoopVarRole;
use anabranch_dsl::passes::CountedLoop;
use anabranch_dsl::{DType, HostTensor, Loc, TensorType, Type};
use std::ops::Range;

#[cfg(feature = "jit")]
pub(crate) use draft::{AccessKind, instr_touches};
pub(crate) use exec::{Context, StackOrList, no_memory_for_list};
pub(crate) use explain::kernels_text;
pub(crate) use lower::{LowerOptions, lower};
pub(crate) use profile::{PlanProfile, PlanTimes, TimedWork, WorkText};

id! {
    /// Index of a tensor operation in [`Plan::tensor_ops`].
    TensorOpId, "op"
}

/// An instruction of a plan.
#[derive(Clone, Debug)]
pub(crate) enum Instr {
    /// `dst = f(a)`
    Unary { f: fn(u64) -> u64, dst: Reg, a: Reg },
    /// `dst = f(a, b)`
    Binary { f: fn(u64, u64) -> u64, dst: Reg, a: Reg, b: Reg },
    /// `dst = a ? b : c`
    Select { dst: Reg, a: Reg, b: Reg, c: Reg },
    /// Fails with the error of the graph operation unless the register holds a valid operand.
    Require { valid: fn(u64) -> bool, a: Reg, op: TensorOpId },
    /// Fails with the error of the graph operation unless the register holds an index below `n`.
    RequireIndex { a: Reg, dtype: DType, n: u64, op: TensorOpId },
    /// `dst = src`
    Move { dst: Reg, src: Reg },
    /// Jumps.
    Jump { to: u32 },
    /// Runs a loop in lanes. If it cannot run so, goes on with the native code of the loop, or
    /// without one at `entry`.
    Lanes { program: u32, entry: u32, native: Option<u32> },
    /// Goes on at `entry`, in a loop of which there is native code.
    #[cfg_attr(not(feature = "jit"), expect(dead_code, reason = "no plan has native code"))]
    Native { function: u32, entry: u32 },
    /// Jumps if the register is true.
    JumpIf { cond: Reg, to: u32 },
    /// Jumps if the register is false.
    JumpUnless { cond: Reg, to: u32 },
    /// Jumps if `f(a, b)` is `when`: a fused comparison and jump.
    JumpCompare { f: fn(u64, u64) -> u64, a: Reg, b: Reg, to: u32, when: bool },
    /// Runs a tensor operation.
    Run(TensorOpId),
    /// Runs up to [`MAX_WRITTEN`](crate::cpu::memory::MAX_WRITTEN) tensor operations in parallel,
    /// each of which writes one view.
    RunParallel(Box<[TensorOpId]>),
    /// Fails unless the register is true.
    Assert { cond: Reg, op: TensorOpId },
    /// Fails if the value is not finite although all of its operands are.
    CheckFinite(TensorOpId),
    /// Empties a stack.
    StackNew(StackId),
    /// Sets a stack to an infinite stack of zeros.
    StackZeros(StackId),
    /// Initializes a stack from an input of a subgraph. See [`Plan::n_stack_outputs`].
    StackInput { stack: StackId, input: u32 },
    /// Returns a stack as an output.
    StackOutput { stack: StackId, output: u32 },
    /// Copies a stack or list, or moves its content if the source is not used afterwards.
    StackMove { dst: StackId, src: StackId, take: bool },
    /// Reserves capacity for the elements that a loop will push.
    StackReserve { stack: StackId, pushed: Box<PushCount> },
    /// Pushes the operand of a tensor operation.
    StackPush { stack: StackId, op: TensorOpId },
    /// Pops into the output of a tensor operation. Fails if the stack is empty.
    StackPop { stack: StackId, op: TensorOpId },
    /// Sets all elements of a stack to zero.
    StackZero(StackId),
    /// Adds another stack of the same length elementwise.
    StackAdd { dst: StackId, src: StackId, op: TensorOpId },
    /// Runs the list operation that the kernel specifies. Some take a second list.
    List { list: StackId, other: Option<StackId>, op: TensorOpId },
    /// Shares the tensor of a slot.
    SlotMove { dst: SlotId, src: SlotId },
}

impl Instr {
    /// Returns the instruction to which this one jumps.
    pub(crate) fn target(&self) -> Option<u32> {
        match *self {
            Instr::Jump { to }
            | Instr::JumpIf { to, .. }
            | Instr::JumpUnless { to, .. }
            | Instr::JumpCompare { to, .. } => Some(to),
            _ => None,
        }
    }
}

/// The number of iterations of a counted loop, evaluated when the loop begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TripCount {
    pub(crate) count: CountedLoop,
    /// The counter. `limit` is a register if the limit is not a constant.
    pub(crate) first: Reg,
    pub(crate) limit: Option<Reg>,
}

/// The number of pushes of a counted loop.
#[derive(Clone, Debug)]
pub(crate) struct PushCount {
    pub(crate) trips: TripCount,
    /// Number of elements pushed per iteration.
    pub(crate) in_each: usize,
}

/// A counted loop whose iterations can run in any order, if their effects on the loop variables are
/// combined afterwards.
#[derive(Clone, Debug)]
pub(crate) struct ParallelLoop {
    pub(crate) trips: TripCount,
    /// The role and the place of each loop variable.
    pub(crate) vars: Vec<(LoopVarRole, Storage)>,
}

/// The last operations of a step, which compute new values of variables in place once nothing can
/// fail. See [`updates`].
#[derive(Debug)]
pub(crate) struct Update {
    pub(crate) map: Map,
    pub(crate) operands: Vec<TensorOperand>,
    /// The variables that receive the results, as distinct indices in the graph.
    pub(crate) vars: Vec<usize>,
    /// The variables among the operands whose new values are read. Earlier updates have written
    /// them. Of all others, the value before the step is read.
    pub(crate) new_values: Vec<usize>,
    pub(crate) loc: Loc,
}

/// An assignment of a variable at the end of a step.
#[derive(Clone, Debug)]
pub(crate) struct Assign {
    /// Index of the variable in the graph.
    pub(crate) var: usize,
    /// The new value, which is not stored in a variable.
    pub(crate) value: TensorOperand,
}

/// The instructions and location of a loop, for error messages.
#[derive(Clone, Debug)]
pub(crate) struct LoopSpan {
    /// The range of its instructions.
    pub(crate) code: Range<u32>,
    /// The loop in the user's source.
    pub(crate) loc: Loc,
    /// Why it has no native code, unless it has, by itself or as a part of the loop around it.
    pub(crate) not_native: Option<WhyNot>,
    /// The roles of its variables, if its iterations can run in any order.
    pub(crate) parallel: Option<ParallelLoop>,
    /// Why a parallel loop does not run in lanes, unless it does.
    pub(crate) not_in_lanes: Option<WhyNotInLanes>,
}

/// An execution plan: see the [module](self).
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) code: Vec<Instr>,
    /// The register operation of each instruction, or `None` for other instructions.
    pub(crate) scalar_ops: Vec<Option<ScalarOp>>,
    pub(crate) tensor_ops: Vec<TensorOp>,
    pub(crate) loops: Vec<LoopSpan>,
    /// The location of each buffer.
    pub(crate) regions: Vec<BufferLocation>,
    /// The outputs computed directly in memory that the caller receives, each a whole buffer. The
    /// region of that buffer holds the index into this list.
    pub(crate) results: Vec<usize>,
    pub(crate) arena_bytes: usize,
    /// The initial contents of the registers: the constants, then unspecified values.
    pub(crate) registers: Vec<u64>,
    /// Number of registers that hold constants. They come first.
    pub(crate) n_constant_registers: usize,
    /// The type of each stack and list.
    pub(crate) stacks: Vec<Type>,
    pub(crate) n_slots: usize,
    pub(crate) constants: Vec<HostTensor>,
    pub(crate) inputs: Vec<TensorType>,
    pub(crate) outputs: Vec<(TensorOperand, TensorType)>,
    /// Number of outputs that are stacks or lists.
    ///
    /// Inputs and outputs of a whole graph are tensors; those of a subgraph may be stacks. Stack
    /// inputs are passed separately, with an unused tensor in their place. Stack outputs are
    /// returned separately from other outputs.
    pub(crate) n_stack_outputs: usize,
    /// In-place updates of variables, in order. The updates run before `assigns`.
    pub(crate) updates: Vec<Update>,
    pub(crate) assigns: Vec<Assign>,
    /// The tensor operations whose last operand is added to the variable given as the first
    /// operand, after all instructions have run, in this order.
    ///
    /// The other operands of updates are not in variables.
    pub(crate) additions: Vec<TensorOpId>,
    /// The name of the graph.
    pub(crate) name: String,
    /// The native code of loops.
    pub(crate) native: Option<Native>,
    /// The programs of the loops that run in lanes.
    pub(crate) lanes: Vec<LaneProgram>,
}

impl Plan {
    /// Returns the value of a constant register, or `None` for any other register.
    pub(crate) fn constant(&self, r: Reg) -> Option<u64> {
        (r.index() < self.n_constant_registers).then(|| self.registers[r.index()])
    }

    /// Returns the view and type of result `i`. The view covers its buffer.
    pub(crate) fn result(&self, i: usize) -> (&View, &TensorType) {
        let (operand, ty) = &self.outputs[self.results[i]];
        (operand.view(), ty)
    }

    /// Returns whether a run may allocate memory of unknown size.
    pub(crate) fn is_dynamic(&self) -> bool {
        self.n_slots > 0
    }
}

/// Returns the view of a register as a tensor of rank 0.
pub(crate) fn reg_view(reg: Reg, dtype: DType) -> View {
    View { base: Base::Reg(reg), dtype, offset: 0, shape: Vec::new(), strides: Vec::new() }
}
