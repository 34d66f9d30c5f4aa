//! Kernels, one family per file, with the stems of the operations' files.
//!
//! A kernel is data that was prepared when the plan was made: it holds everything that does not change from step to step.
//! It reads views and writes one region. The result does not depend on the number of threads: work is split into parts whose
//! sizes depend on the shapes only.

pub(crate) mod attention;
mod chain;
pub(crate) mod conv;
pub(crate) mod copy;
mod dense;
pub(crate) mod elementwise;
pub(crate) mod epilogue;
pub(crate) mod functions;
mod gemm;
mod halves;
pub(crate) mod index;
pub(crate) mod lanes;
pub(crate) mod map_reduce;
pub(crate) mod matmul;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod reference;
pub(crate) mod rows;
pub(crate) mod softmax;
pub(crate) mod walk;

use super::memory::Sources;
use crate::plan::Step;
use anabranch_dsl::format::{Stream, Template};
use anabranch_dsl::ir::ListOp;

/// What a step runs.
#[derive(Debug)]
pub(crate) enum Kernel {
    /// Nothing: the step is data of another instruction.
    Data,
    /// Nothing: the message of an assertion.
    Assert(Template),
    /// An operation on lists.
    List(ListOp),
    /// A print of the operands.
    Print(Stream, Template),
    /// Fused elementwise operations.
    Map(elementwise::Map),
    /// A copy to a part of a buffer.
    Copy(copy::Copy),
    /// A reduction over axes.
    Reduce(reduce::Reduce),
    /// A reduction of fused elementwise operations.
    MapReduce(map_reduce::MapReduce),
    /// Several of these over the same rows.
    Rows(rows::Rows),
    /// Something along one axis.
    Lanes(lanes::Lanes),
    /// Softmax and its relatives.
    Softmax(softmax::Softmax),
    /// A product of matrices.
    Matmul(matmul::Matmul),
    /// Arranges a matrix as products read it.
    Pack(matmul::Pack),
    /// Attention or its gradients.
    Attention(attention::Attention),
    /// A convolution or its transpose.
    Conv(conv::Gather),
    /// The same to a result in channels-last order.
    ChannelsLast(conv::ChannelsLast),
    /// The gradient of a convolution with respect to its filters.
    ConvWeights(conv::Weights),
    /// The same of tensors in channels-last order.
    ChannelsLastWeights(conv::ChannelsLastWeights),
    /// Pooling.
    Pool(pool::Pool),
    /// Reads at places.
    Take(index::Places),
    /// Adds at places to what the buffer holds.
    ScatterAdd(index::Places),
    /// Checks places; at them something is added to a variable when the step ends.
    AddAtEnd(index::Places),
    /// Reads a part whose start a register holds.
    ReadWindow(index::Window),
    /// Overwrites a part whose start a register holds.
    WriteWindow(index::Window),
    /// Random numbers.
    Random(random::Random),
    /// A key made of a key and a number.
    FoldIn,
    /// One element to a register.
    Load,
    /// A tensor to a slot.
    ToSlot,
    /// The tensor of a slot to where its shape is known.
    FromSlot,
    /// The operation's reference meaning, on host tensors.
    Reference,
}

impl Kernel {
    /// About how many multiplications one of the kernels with most work does; none for others.
    pub(crate) fn multiplications(&self) -> usize {
        match self {
            Kernel::Matmul(product) => product.multiplications(),
            Kernel::Attention(attention) => attention.multiplications(),
            Kernel::Conv(conv) => conv.multiplications(),
            Kernel::ChannelsLast(conv) => conv.multiplications(),
            Kernel::ConvWeights(conv) => conv.multiplications(),
            Kernel::ChannelsLastWeights(conv) => conv.multiplications(),
            _ => 0,
        }
    }
}

/// A kernel failed; the meaning of its step, run by the reference, says how.
#[derive(Debug)]
pub(crate) struct Failed;

/// Runs the kernel of a step into `out`: the whole buffer, or the bytes of a register's element.
pub(crate) fn run(step: &Step, out: &mut [u8], sources: &Sources<'_>) -> Result<(), Failed> {
    let operands = &step.operands[..];
    match &step.kernel {
        Kernel::Map(map) => return map.run(operands, [out], sources),
        Kernel::Copy(copy) => copy.run(operands[0].view(), out, sources),
        Kernel::Reduce(reduce) => reduce.run(operands[0].view(), out, sources),
        Kernel::MapReduce(reduce) => reduce.run(operands, out, sources),
        Kernel::Lanes(lanes) => lanes.run(operands[0].view(), out, sources),
        Kernel::Softmax(softmax) => softmax.run(operands[0].view(), out, sources),
        Kernel::Matmul(matmul) => matmul.run(operands, out, sources),
        Kernel::Pack(pack) => pack.run(operands[0].view(), out, sources),
        Kernel::Attention(attention) => attention.run(operands, out, sources),
        Kernel::Conv(conv) => conv.run(operands, out, sources),
        Kernel::ChannelsLast(conv) => conv.run(operands, out, sources),
        Kernel::ConvWeights(conv) => conv.run(operands, out, sources),
        Kernel::ChannelsLastWeights(conv) => conv.run(operands, out, sources),
        Kernel::Pool(pool) => pool.run(operands, out, sources),
        Kernel::Take(places) => return index::take(places, operands, out, sources),
        Kernel::ScatterAdd(places) => return index::scatter_add(places, operands, out, sources),
        Kernel::ReadWindow(window) => return window.read(operands, out, sources),
        Kernel::WriteWindow(window) => return window.write(operands, out, sources),
        Kernel::Random(random) => random::fill(*random, operands, out, sources),
        Kernel::FoldIn => random::fold_in(operands, out, sources),
        Kernel::Load => {
            let view = operands[0].view();
            let size = view.dtype.size();
            out.copy_from_slice(&sources.bytes(view.base)[view.offset * size..][..size]);
        }
        Kernel::Data
        | Kernel::Assert(_)
        | Kernel::Print(..)
        | Kernel::List(_)
        | Kernel::AddAtEnd(_)
        | Kernel::Rows(_)
        | Kernel::ToSlot
        | Kernel::FromSlot
        | Kernel::Reference => {
            panic!("`{}` has no kernel over bytes", step.name)
        }
    }
    Ok(())
}
