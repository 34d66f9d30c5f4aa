//! Native code for loops over registers, stacks of numbers and elements of tensors.
//!
//! ```text
//! Plan --region: which loops--> --lower--> NativeSteps, one function for each loop nest
//!     --allocate, x86--> machine code of x86-64
//!     --by_cranelift--> machine code of other processors
//! ```
//!
//! A native function does the same as `compile::registers` for the instructions of one loop,
//! without the dispatch of each instruction in each iteration. The interpreter defines the
//! semantics. If native code reaches an instruction that fails, or is asked to stop, it returns the
//! index of that instruction, where the executor continues. Registers that are read from there on
//! have their values; others that the loop writes may hold anything.
//!
//! Invariants:
//!
//! - N1. A function accesses only registers and stacks of its plan, by indices within their number.
//!   In the memory of a stack, it accesses only existing elements, and reserved elements when it
//!   pushes. In the memory of a tensor, it accesses only elements of views of the plan (P3): at an
//!   index that it has checked, or the first one. It writes to buffers alone (P5).
//! - N2. Results are bitwise identical to those of the interpreter. A function consists of the
//!   primitives of its recorded form, in the same order. A function with a primitive that has no
//!   instruction is a call of the interpreter's function.
//! - N3. The code lives as long as the plan and is immutable.
//!
//! Code for x86-64 is made by this crate, as Cranelift would be a quarter of a first build.
//! With the cfg `anabranch_cranelift` it is made by Cranelift there as well, for comparison.
//! Without the feature `jit` there is no native code: loops are interpreted.
//!
//! This module must not depend on graphs or on the shapes of tensors.

#[cfg(all(feature = "jit", target_arch = "x86_64", not(anabranch_cranelift)))]
mod allocate;
#[cfg(all(feature = "jit", any(not(target_arch = "x86_64"), anabranch_cranelift)))]
mod by_cranelift;
#[cfg(feature = "jit")]
mod code;
#[cfg(all(feature = "jit", target_arch = "x86_64", not(anabranch_cranelift)))]
mod divide;
#[cfg(feature = "jit")]
mod functions;
#[cfg(feature = "jit")]
mod host;
#[cfg(feature = "jit")]
mod live_registers;
#[cfg(feature = "jit")]
mod lower;
mod region;
#[cfg(feature = "jit")]
#[cfg_attr(
    any(not(target_arch = "x86_64"), anabranch_cranelift),
    expect(dead_code, reason = "Cranelift finds registers by itself")
)]
mod steps;
#[cfg(all(feature = "jit", target_arch = "x86_64", not(anabranch_cranelift)))]
mod x86;

#[cfg(feature = "jit")]
pub(crate) use code::Native;
#[cfg(all(feature = "jit", target_arch = "x86_64"))]
pub(crate) use code::executable;
pub(crate) use region::{ElementAccess, ElementUse, MAX_BASES, access};
use std::fmt;
#[cfg(not(feature = "jit"))]
pub(crate) use without_jit::Native;

/// The reason that a loop has no native code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhyNot {
    /// Native code was turned off.
    TurnedOff,
    /// An instruction does not work on numbers alone, or leaves the loop for another place than
    /// its end.
    Instruction(u32),
    /// The loop is not entered by a jump.
    Entry,
    /// The loop accesses elements of more than [`MAX_BASES`] tensors.
    Tensors,
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
            WhyNot::Instruction(i) => write!(f, "instruction {i}"),
            WhyNot::Entry => f.write_str("no jump leads to it"),
            WhyNot::Tensors => write!(f, "it accesses elements of more than {MAX_BASES} tensors"),
            #[cfg(not(feature = "jit"))]
            WhyNot::Feature => f.write_str("anabranch was built without its feature `jit`"),
            #[cfg(feature = "jit")]
            WhyNot::Processor => f.write_str("there is no native code for this processor"),
            #[cfg(feature = "jit")]
            WhyNot::Memory => f.write_str("the system provided no memory for code"),
            #[cfg(feature = "jit")]
            WhyNot::Size => f.write_str("it is too large"),
        }
    }
}

#[cfg(not(feature = "jit"))]
mod without_jit {
    use super::{WhyNot, region};
    use crate::cpu::compile::Plan;
    use crate::cpu::memory::Base;
    use crate::cpu::memory::stack::StackStorage;
    use crate::options::NativeLimits;
    use anabranch_dsl::interp::StopFlag;

    /// The native code of a plan, in a build without native code.
    #[derive(Debug)]
    pub(crate) enum Native {}

    impl Native {
        /// Records for each loop that could be native why it is not.
        pub(crate) fn compile(
            plan: &mut Plan,
            _: NativeLimits,
            _: &dyn Fn() -> bool,
        ) -> Result<Option<Native>, String> {
            let regions = region::find(plan);
            region::refuse(plan, &regions, WhyNot::Feature);
            Ok(None)
        }

        pub(crate) fn bases(&self, _: u32) -> &[Base] {
            match *self {}
        }

        /// # Safety
        /// There is no such value.
        pub(crate) unsafe fn run(
            &self,
            _: u32,
            _: &mut [u64],
            _: &mut [StackStorage],
            _: &[*mut u8],
            _: &StopFlag,
        ) -> usize {
            match *self {}
        }
    }
}
