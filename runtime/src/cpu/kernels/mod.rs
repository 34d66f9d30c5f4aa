//! Kernels, one family per file, with the stems of the operations' files.
//!
//! A kernel is data that was prepared when the plan was made: it holds everything that does not change from step to step.
//! It reads views and writes one region. The result does not depend on the number of threads: work is split into parts whose
//! sizes depend on the shapes only.

pub(crate) mod copy;
pub(crate) mod elementwise;
pub(crate) mod reference;
pub(crate) mod walk;

use super::memory::Sources;
use crate::plan::Step;

/// What a step runs.
#[derive(Debug)]
pub(crate) enum Kernel {
    /// Nothing: the step is data of another instruction.
    Data,
    /// Nothing: the message of an assertion.
    Assert(String),
    /// Fused elementwise operations.
    Map(elementwise::Map),
    /// A copy to a part of a buffer.
    Copy(copy::Copy),
    /// One element to a register.
    Load,
    /// A tensor to a slot.
    ToSlot,
    /// The tensor of a slot to where its shape is known.
    FromSlot,
    /// The operation's reference meaning, on host tensors.
    Reference,
}

/// A kernel failed; the meaning of its step, run by the reference, says how.
#[derive(Debug)]
pub(crate) struct Failed;

/// Runs the kernel of a step into `out`: the whole buffer, or the bytes of a register's element.
pub(crate) fn run(step: &Step, out: &mut [u8], sources: &Sources<'_>) -> Result<(), Failed> {
    match &step.kernel {
        Kernel::Map(map) => return map.run(&step.operands, out, sources),
        Kernel::Copy(copy) => copy.run(step.operands[0].view(), out, sources),
        Kernel::Load => {
            let view = step.operands[0].view();
            let size = view.dtype.size();
            out.copy_from_slice(&sources.bytes(view.base)[view.offset * size..][..size]);
        }
        Kernel::Data | Kernel::Assert(_) | Kernel::ToSlot | Kernel::FromSlot | Kernel::Reference => {
            panic!("`{}` has no kernel over bytes", step.name)
        }
    }
    Ok(())
}
