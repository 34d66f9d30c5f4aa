//! The plan: what a graph becomes for one CPU. A flat list of instructions over registers, buffers, stacks and slots, with
//! control flow as jumps.
//!
//! ```text
//! Graph (optimized, shapes known) --lower--> Draft --liveness--> coalesced Draft --finish--> Plan --execute--> outputs
//! ```
//!
//! Where a value lives follows from its type alone:
//!
//! | type | place |
//! |---|---|
//! | tensor of rank 0 | a **register** of 64 bits |
//! | tensor of known shape | a **view** of a buffer of the arena, an input, a constant, a variable or a register |
//! | stack or list of tensors of known shape | a **stack**: one growing block of memory |
//! | anything whose shape only the data decides | a **slot**: a host tensor of its own, or a list of them |
//!
//! Invariants. The executor relies on them and panics where one is broken:
//!
//! - P1. Jump targets are indices of instructions or the end; the last instruction is followed by the end.
//! - P2. A register, buffer, stack or slot is written before it is read on every way through the code.
//! - P3. Storage that is live at the same time does not overlap; what is read after a loop began and was written before
//!   stays untouched through all its iterations.
//! - P4. A kernel never reads the buffer it writes, except an elementwise kernel at the very places it writes (in place). Of steps that run
//!   together none reads or writes what another one writes.
//! - P5. Inputs, constants and variables are never written while the instructions run: variables change at the end,
//!   together, and only if no instruction failed. What changes them cannot fail, and nothing stops it.
//! - P6. The constants of rank 0 lie in registers that no instruction writes.
//! - P7. A buffer that is all of an output lies in memory that the caller gets, from its first write to the end: a call that fails
//!   gives nothing of it away.
//! - P8. No instruction of a plan without slots takes memory from the allocator, except stacks and lists that grow
//!   beyond what any earlier step needed.

mod allocate;
mod draft;
mod exec;
mod explain;
mod finish;
mod lists;
mod liveness;
mod lower;
mod moves;
mod registers;
mod rows;
mod together;
mod updates;
mod view;

use crate::cpu::kernels::Kernel;
use crate::cpu::kernels::elementwise::Map;
use crate::cpu::memory::Region;
use crate::id::id;
use crate::native::{Native, WhyNot};
use anabranch_dsl::ir::Attrs;
use anabranch_dsl::ops::Prim;
use anabranch_dsl::passes::Count;
use anabranch_dsl::{DType, HostTensor, Loc, TensorType, Type};
use std::ops::Range;

pub(crate) use exec::{Context, Held};
pub(crate) use lower::{Options, lower};
pub(crate) use view::{Base, Order, View, row_major};

id! {
    /// A register: one element of any type.
    Reg, "r"
}
id! {
    /// A buffer: a region of the arena.
    BufferId, "b"
}
id! {
    /// A stack or list of tensors.
    StackId, "s"
}
id! {
    /// A slot: a tensor whose shape is not known before it runs.
    SlotId, "d"
}
id! {
    /// A tensor instruction, by index into [`Plan::steps`].
    StepId, "step"
}

/// An operand of a tensor instruction.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    /// A tensor of known shape.
    View(View),
    /// A tensor of unknown shape.
    Slot(SlotId),
}

impl Operand {
    /// The view. Only the reference kernel takes slots.
    pub(crate) fn view(&self) -> &View {
        match self {
            Operand::View(v) => v,
            Operand::Slot(s) => panic!("{s:?} given to a kernel that needs known shapes"),
        }
    }
}

/// Where a tensor instruction writes.
#[derive(Clone, Debug)]
pub(crate) enum Out {
    /// A view of a buffer. Contiguous, except for copies.
    View(View),
    /// Views of several buffers, each all of it.
    Views(Vec<View>),
    /// One element.
    Reg(Reg, DType),
    /// A tensor of unknown shape.
    Slot(SlotId),
    /// Nowhere: the instruction that names the step knows.
    Nothing,
}

/// The operation that a step computes from its operands: for errors, and for the reference kernel.
#[derive(Clone, Debug)]
pub(crate) struct Meaning {
    pub(crate) def: Prim,
    pub(crate) attrs: Attrs,
}

/// A tensor instruction, or what another instruction needs beside its registers.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) kernel: Kernel,
    pub(crate) operands: Vec<Operand>,
    pub(crate) out: Out,
    /// What it computes, for kernels that can fail.
    pub(crate) meaning: Option<Box<Meaning>>,
    /// The name of the node's operation.
    pub(crate) name: &'static str,
    pub(crate) loc: Loc,
}

/// An operation on registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScalarOp {
    pub(crate) op: Prim,
    /// The type of its operands; of those that it chooses from, if it is `select`.
    pub(crate) operand: DType,
    pub(crate) result: DType,
}

/// An instruction.
#[derive(Clone, Debug)]
pub(crate) enum Instr {
    /// `dst = f(a)`
    Unary { f: fn(u64) -> u64, dst: Reg, a: Reg },
    /// `dst = f(a, b)`
    Binary { f: fn(u64, u64) -> u64, dst: Reg, a: Reg, b: Reg },
    /// `dst = a ? b : c`
    Select { dst: Reg, a: Reg, b: Reg, c: Reg },
    /// Fails, in the words of the step's meaning, unless the register holds a valid operand.
    Require { valid: fn(u64) -> bool, a: Reg, step: StepId },
    /// `dst = src`
    Move { dst: Reg, src: Reg },
    /// Goes on at another instruction.
    Jump { to: u32 },
    /// Goes on at `entry`, in a loop of which there is native code.
    #[cfg_attr(not(feature = "jit"), expect(dead_code, reason = "no plan has native code"))]
    Native { function: u32, entry: u32 },
    /// Goes on at another instruction if the register holds true.
    JumpIf { cond: Reg, to: u32 },
    /// Goes on at another instruction if the register holds false.
    JumpUnless { cond: Reg, to: u32 },
    /// Goes on at another instruction if `f(a, b)` is `when`: a comparison and a jump in one.
    JumpCompare { f: fn(u64, u64) -> u64, a: Reg, b: Reg, to: u32, when: bool },
    /// Runs a tensor instruction.
    Run(StepId),
    /// Runs several, at most [`MAX_WRITTEN`](crate::cpu::memory::MAX_WRITTEN), at once; each writes one view.
    Together(Box<[StepId]>),
    /// Fails unless the register holds true.
    Assert { cond: Reg, step: StepId },
    /// Fails if the value is not finite while those it was made of are.
    CheckFinite(StepId),
    /// Empties a stack.
    StackNew(StackId),
    /// Makes a stack one of zeros without end.
    StackZeros(StackId),
    /// Makes a stack what an input is: of a part of a graph. See [`Plan::stack_outputs`].
    StackInput { stack: StackId, input: u32 },
    /// Gives a stack as an output.
    StackOutput { stack: StackId, output: u32 },
    /// Copies a stack or list; takes its content if the source is not used any more.
    StackMove { dst: StackId, src: StackId, take: bool },
    /// Makes room in a stack for what a loop will push.
    StackReserve { stack: StackId, pushed: Box<Pushed> },
    /// Pushes the operand of a step.
    StackPush { stack: StackId, step: StepId },
    /// Pops into the output of a step; fails if the stack is empty.
    StackPop { stack: StackId, step: StepId },
    /// Zeros the elements of a stack.
    StackZero(StackId),
    /// Adds another stack of the same length.
    StackAdd { dst: StackId, src: StackId, step: StepId },
    /// Runs the operation on lists that the kernel of a step says; some take another list.
    List { list: StackId, other: Option<StackId>, step: StepId },
    /// Shares the tensor of a slot.
    SlotMove { dst: SlotId, src: SlotId },
}

/// What a loop that counts pushes on a stack, as it is known when the loop begins.
#[derive(Clone, Debug)]
pub(crate) struct Pushed {
    pub(crate) count: Count,
    /// The counter, and the limit if it is no constant.
    pub(crate) first: Reg,
    pub(crate) limit: Option<Reg>,
    pub(crate) dtype: DType,
    /// How many elements an iteration pushes.
    pub(crate) in_each: usize,
}

/// The last operations of a step: they compute new values of variables in the place of the old ones, once nothing can fail any
/// more. See [`updates`].
#[derive(Debug)]
pub(crate) struct Update {
    pub(crate) map: Map,
    pub(crate) operands: Vec<Operand>,
    /// The variables that the results are, by their indices in the graph; all are different.
    pub(crate) vars: Vec<usize>,
    pub(crate) loc: Loc,
}

/// A change of a variable at the end of a step.
#[derive(Clone, Debug)]
pub(crate) struct Assign {
    /// Index of the variable in the graph.
    pub(crate) var: usize,
    /// What it becomes; lies in no variable.
    pub(crate) value: Operand,
}

/// A loop, for messages.
#[derive(Clone, Debug)]
pub(crate) struct LoopPlace {
    /// Its instructions.
    pub(crate) code: Range<u32>,
    /// The loop in the user's source.
    pub(crate) loc: Loc,
    /// Why it has no native code, unless it has, by itself or as a part of the loop around it.
    pub(crate) not_native: Option<WhyNot>,
}

/// A plan: see the [module](self).
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) code: Vec<Instr>,
    /// For each instruction the operation, if it is one on registers.
    pub(crate) ops: Vec<Option<ScalarOp>>,
    pub(crate) steps: Vec<Step>,
    pub(crate) loops: Vec<LoopPlace>,
    /// Where each buffer lies.
    pub(crate) regions: Vec<Region>,
    /// The outputs that are computed where the caller gets them: all of a buffer, whose region has the index in this list.
    pub(crate) results: Vec<usize>,
    pub(crate) arena_bytes: usize,
    /// What the registers hold when a step begins: the constants, then nothing of meaning.
    pub(crate) registers: Vec<u64>,
    /// Number of registers that hold constants; they come first.
    pub(crate) n_constant_registers: usize,
    /// Type of each stack and list.
    pub(crate) stacks: Vec<Type>,
    pub(crate) n_slots: usize,
    pub(crate) constants: Vec<HostTensor>,
    pub(crate) inputs: Vec<TensorType>,
    pub(crate) outputs: Vec<(Operand, TensorType)>,
    /// How many outputs are stacks. The inputs and outputs of a whole graph are tensors; those of a part that is a kernel may be stacks: the
    /// former are given as tensors that nobody reads, and beside them as stacks, the latter come beside the other outputs.
    pub(crate) n_stack_outputs: usize,
    /// What gives variables new values in place, in order; before the others.
    pub(crate) updates: Vec<Update>,
    pub(crate) assigns: Vec<Assign>,
    /// The steps whose last operand is added, when all instructions have run, to the variable that the first one is, in this order.
    /// No other operand of theirs lies in a variable.
    pub(crate) additions: Vec<StepId>,
    /// The name of the graph.
    pub(crate) name: String,
    /// The native code of its loops.
    pub(crate) native: Option<Native>,
}

impl Plan {
    /// What a register holds if it is one of the constants.
    #[cfg(feature = "jit")]
    pub(crate) fn constant(&self, r: Reg) -> Option<u64> {
        (r.index() < self.n_constant_registers).then(|| self.registers[r.index()])
    }

    /// The type of a result, and the view that is all of its buffer.
    pub(crate) fn result(&self, i: usize) -> (&View, &TensorType) {
        let (operand, ty) = &self.outputs[self.results[i]];
        (operand.view(), ty)
    }

    /// Whether memory of unknown size may be taken while it runs.
    pub(crate) fn is_dynamic(&self) -> bool {
        self.n_slots > 0
    }
}

/// The view of a register as a tensor without dimensions.
pub(crate) fn reg_view(reg: Reg, dtype: DType) -> View {
    View { base: Base::Reg(reg), dtype, offset: 0, shape: Vec::new(), strides: Vec::new() }
}
