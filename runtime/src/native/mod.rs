//! Native code for loops that work on registers and stacks of numbers, by Cranelift.
//!
//! ```text
//! Plan --region: which loops--> --translate--> machine code, one function for each loop nest
//! ```
//!
//! A function of this module does what `plan::registers` does with the instructions of one loop, without looking at each of
//! them again in each iteration. The interpreter stays the meaning: native code that comes to an instruction that fails, or
//! is asked to stop, writes all registers back and returns the index of that instruction, and the executor goes on there.
//!
//! Invariants:
//!
//! - N1. A function reads and writes registers and stacks of its plan only, by numbers that are smaller than how many there are, and
//!   of the memory of a stack the elements that it has, and those that it has room for when it pushes.
//! - N2. Results are those of the interpreter, bit by bit: arithmetic is that of IEEE 754 without contraction; exponentials are
//!   computed by the operations of `cpu::math` in their order; what else has no instruction of its own calls the function that the
//!   interpreter calls.
//! - N3. The code lives as long as the plan, and nothing changes it after it was made.
//!
//! Without the feature `jit` this crate has no Cranelift, and there is no native code: loops are interpreted.
//!
//! This module must never know what a graph is, nor which shapes tensors have.

#[cfg(feature = "jit")]
mod functions;
#[cfg(feature = "jit")]
mod host;
#[cfg(feature = "jit")]
mod jit;
mod region;
#[cfg(feature = "jit")]
mod translate;

#[cfg(feature = "jit")]
pub(crate) use jit::Native;
use std::fmt;
#[cfg(not(feature = "jit"))]
pub(crate) use without_jit::Native;

/// Why a loop has no native code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhyNot {
    /// It was not asked for.
    TurnedOff,
    /// This instruction does not work on numbers alone, or leaves the loop for another place than its end.
    Instruction(u32),
    /// The loop is not entered by a jump.
    Entry,
    #[cfg(not(feature = "jit"))]
    Feature,
    #[cfg(feature = "jit")]
    Processor,
    #[cfg(feature = "jit")]
    Memory,
    #[cfg(feature = "jit")]
    Size,
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyNot::TurnedOff => f.write_str("native code is turned off"),
            WhyNot::Instruction(i) => write!(f, "instruction {i} is not one on numbers"),
            WhyNot::Entry => f.write_str("no jump enters it"),
            #[cfg(not(feature = "jit"))]
            WhyNot::Feature => f.write_str("anabranch was built without its feature `jit`"),
            #[cfg(feature = "jit")]
            WhyNot::Processor => f.write_str("Cranelift does not support this processor"),
            #[cfg(feature = "jit")]
            WhyNot::Memory => f.write_str("the system gave no memory for code"),
            #[cfg(feature = "jit")]
            WhyNot::Size => f.write_str("it is too large for Cranelift"),
        }
    }
}

#[cfg(not(feature = "jit"))]
mod without_jit {
    use super::{WhyNot, region};
    use crate::cpu::stack::Stack;
    use crate::plan::Plan;
    use anabranch_dsl::interp::StopFlag;

    /// The native code of a plan, of which there is none.
    #[derive(Debug)]
    pub(crate) enum Native {}

    impl Native {
        /// Says of the loops that could be native why they are not.
        pub(crate) fn compile(plan: &mut Plan) -> Result<Option<Native>, String> {
            let regions = region::find(plan);
            region::refuse(plan, &regions, WhyNot::Feature);
            Ok(None)
        }

        pub(crate) fn run(&self, _: u32, _: &mut [u64], _: &mut [Stack], _: &StopFlag) -> usize {
            match *self {}
        }
    }
}
