//! Loops over numbers in lanes: many iterations side by side.
//!
//! ```text
//! LoopSpan of a Plan --translate--> LaneProgram --run--> effects of all iterations --> the step
//! ```
//!
//! A counted loop whose iterations can run in any order
//! ([`ParallelLoop`](crate::cpu::compile::ParallelLoop)), such as a map over rows with a `while` in
//! its body, runs in *blocks* of iterations, if its body works on numbers. An iteration
//! is a *lane*. A block has a *row* for each register of the body, with one element for each lane.
//! An instruction is one loop over rows, by the kernels of elementwise operations, which use the
//! full vectors of the processor. Threads divide the blocks. Tensors that belong to an iteration
//! are read and written by single elements.
//!
//! **Control flow.** A branch without loops inside runs both of its arms, each in the lanes that
//! take it. Otherwise each lane has the index of the basic block of instructions where it goes on.
//! The first basic block for which lanes wait runs next, and those lanes are *active* in it.
//! Instructions after a loop come after those inside, so lanes that leave early wait for the
//! others, and all go on together. When few lanes are left in a loop, they move to the first places
//! of the rows, so that instructions run over short rows.
//!
//! **Saved values.** What the iterations push to a stack stays in the lanes' own stacks
//! ([`LaneSegments`](crate::cpu::memory::segments::LaneSegments)), from which a backward loop in
//! lanes pops it again. Only instructions outside of lanes need it as one stack. The numbers of
//! elements on the stacks are rows ([`depths`]).
//!
//! **Tensors.** Vectors and matrices of a few elements are numbers here: the graph was scalarized
//! (`dsl/src/passes/scalarize.rs`). What iterations add to elements of a larger tensor is pushed to
//! stacks ([`additions`]), with one place for those of a row ([`places`]), and added when all have
//! ended.
//!
//! **Native code.** Where the processor has AVX-512 or AVX2, loops and runs of operations that work
//! on numbers alone are [native code](code), which keeps values in registers. Where its stacks need
//! more memory, the block runs again without it, and later blocks have that memory before.
//!
//! Invariants:
//!
//! - L1. Results are bitwise identical to those of the iterations one after the other. Sums over
//!   iterations, and what they add to elements of lists and tensors, are added in the order of the
//!   iterations.
//! - L2. A loop runs in lanes completely or not at all: iterations change nothing outside of their
//!   block, and the step changes after the last one. If an iteration fails, the step is stopped, a
//!   few lanes go on for long or their stacks take too much memory, nothing has happened. The loop
//!   then runs without lanes from its start, up to the error of the first iteration that fails.
//! - L3. An instruction changes the elements of active lanes only, except in rows that are used
//!   within one basic block. Instructions that could fail or trap for operands of other lanes skip
//!   these.
//!
//! This module must not depend on graphs. It knows a loop by its plan.

mod additions;
mod block;
mod buffers;
mod choose;
#[cfg(all(feature = "jit", target_arch = "x86_64"))]
mod code;
mod code_input;
mod depths;
mod join;
mod operations;
mod places;
mod program;
mod registers;
mod rows;
mod run;
mod share;
mod translate;

pub(crate) use choose::{install, programs};
pub(crate) use program::LaneProgram;

use std::fmt;

/// The reason that a parallel loop does not run in lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhyNotInLanes {
    /// Lanes were turned off.
    TurnedOff,
    /// An instruction does not work on numbers alone.
    Instruction(u32),
    /// The loop is not entered by a jump.
    Entry,
    /// It has too many instructions.
    Size,
    /// Its native code takes less time.
    Native,
}

impl fmt::Display for WhyNotInLanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyNotInLanes::TurnedOff => f.write_str("lanes are turned off"),
            WhyNotInLanes::Instruction(i) => write!(f, "instruction {i}"),
            WhyNotInLanes::Entry => f.write_str("no jump leads to it"),
            WhyNotInLanes::Native => f.write_str("its native code takes less time"),
            WhyNotInLanes::Size => f.write_str("it has too many instructions"),
        }
    }
}

/// The native code of a build without it, or for a processor that has none.
#[cfg(not(all(feature = "jit", target_arch = "x86_64")))]
mod code {
    use super::block::Declined;
    use super::code_input::{CodeBlock, LaneBody};
    use crate::cpu::lanes::program::BasicBlock;
    use crate::options::CodeVectors;
    use std::fmt;

    /// The native code of a program. There is none.
    #[derive(Debug)]
    pub(super) enum LaneCode {}

    /// Memory for runs of code.
    #[derive(Default)]
    pub(super) struct CodeMemory {}

    /// Compiles nothing.
    pub(super) fn compile(_: LaneBody<'_>, _: CodeVectors) -> Option<(Vec<BasicBlock>, LaneCode)> {
        None
    }

    impl LaneCode {
        pub(super) fn tile(&self) -> usize {
            match *self {}
        }

        pub(super) fn stacks(&self) -> std::iter::Empty<u16> {
            match *self {}
        }

        pub(super) fn run(&self, _: u16, _: CodeBlock<'_>, _: &mut CodeMemory) -> Result<(), Declined> {
            match *self {}
        }
    }

    impl fmt::Display for LaneCode {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            match *self {}
        }
    }
}
