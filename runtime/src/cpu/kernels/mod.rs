//! Kernels, one family per file, with the same stems as the files of the operations.
//!
//! A kernel is data prepared when the plan is built: everything that does not change between steps.
//! A kernel reads views and writes one region. Results do not depend on the number of threads,
//! because work is divided into parts whose sizes depend only on the shapes.

pub(crate) mod attention;
pub(crate) mod axis;
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
pub(crate) mod map_reduce;
pub(crate) mod matmul;
mod occurrences;
mod op;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod reference;
mod row_tiles;
pub(crate) mod rows;
pub(crate) mod softmax;
#[cfg_attr(
    not(all(target_arch = "x86_64", target_os = "linux")),
    allow(dead_code, unused_variables, reason = "no unit is known there")
)]
pub(crate) mod tiles;
pub(crate) mod walk;

pub(crate) use op::{ScalarOp, SourceOp, TensorOp};

use super::memory::Sources;
use anabranch_dsl::format::{Stream, Template};
use anabranch_dsl::ir::{FileOp, ListOp, QueueId, QueueOp};

/// The kernel of a tensor operation.
#[derive(Debug)]
pub(crate) enum Kernel {
    /// No kernel: the operation is data of another instruction.
    Data,
    /// No kernel: the result has arbitrary values, all of which are overwritten before anything
    /// reads them.
    Unspecified,
    /// No kernel: the message of an assertion.
    Assert(Template),
    /// A list operation.
    List(ListOp),
    /// Printing of the operands.
    Print(Stream, Template),
    /// An operation on a queue, with its first result.
    Queue(QueueId, QueueOp),
    /// A further result of the operation on a queue that ran before.
    QueueResult,
    /// An operation on a file of tensors.
    File(FileOp),
    /// Fused elementwise operations.
    Map(elementwise::Map),
    /// A copy to a part of a buffer.
    Copy(copy::Copy),
    /// A reduction over axes.
    Reduce(reduce::Reduce),
    /// A reduction of fused elementwise operations.
    MapReduce(map_reduce::MapReduce),
    /// Several of the above, fused over the same rows.
    Rows(rows::RowKernel),
    /// An operation along one axis.
    Axis(axis::AxisKernel),
    /// Softmax and related functions.
    Softmax(softmax::Softmax),
    /// A matmul.
    Matmul(matmul::Matmul),
    /// Packing of a matrix for matmuls.
    Pack(matmul::Pack),
    /// Attention or its gradients.
    Attention(attention::Attention),
    /// A convolution or transposed convolution.
    Conv(conv::ImplicitGemm),
    /// A convolution or transposed convolution to a channels-last result.
    ChannelsLast(conv::ChannelsLast),
    /// The gradient of a convolution with respect to its filters.
    ConvWeights(conv::WeightGrad),
    /// The filter gradient of a convolution of channels-last tensors.
    ChannelsLastWeights(conv::ChannelsLastWeightGrad),
    /// Pooling or its gradients.
    Pool(pool::Pool),
    /// A gather of elements or slices at indices.
    Take(index::IndexPattern),
    /// A scatter-add at indices, into the content of the buffer.
    ScatterAdd(index::IndexPattern),
    /// The index check of a scatter-add to a variable, which runs when the step ends.
    AddAtEnd(index::IndexPattern),
    /// A read of one element at an index in a register.
    ReadElement {
        /// The axis of the index.
        axis: usize,
    },
    /// A write of a number in a register, at an index in a register.
    WriteElement {
        /// The axis of the index.
        axis: usize,
    },
    /// An addition of a number in a register to an element at an index in a register.
    AddElement {
        /// The axis of the index.
        axis: usize,
    },
    /// The index of the first equal element.
    FirstOccurrences,
    /// A check of indices.
    CheckIndices {
        /// The indices are below it.
        extent: usize,
    },
    /// A read of a slice whose start is in a register.
    ReadWindow(index::DynamicSliceCopy),
    /// A write of a slice whose start is in a register.
    WriteWindow(index::DynamicSliceCopy),
    /// Random numbers.
    Random(random::RandomKernel),
    /// A key derived from a key and a number.
    FoldIn,
    /// A load of one element into a register.
    Load,
    /// A copy of a tensor to a slot.
    ToSlot,
    /// A copy from a slot to storage of known shape.
    FromSlot,
    /// The reference implementation, on host tensors.
    Reference,
}

impl Kernel {
    /// Returns whether the kernel computes sums of products, which takes most of the time of its
    /// graph operation.
    pub(crate) fn is_contraction(&self) -> bool {
        matches!(
            self,
            Kernel::Matmul(_)
                | Kernel::Attention(_)
                | Kernel::Conv(_)
                | Kernel::ChannelsLast(_)
                | Kernel::ConvWeights(_)
                | Kernel::ChannelsLastWeights(_)
        )
    }
}

/// The failure of a kernel. The reference implementation of the operation determines the error.
#[derive(Debug)]
pub(crate) struct KernelFailed;

/// Runs the kernel of an operation into `out`: the whole buffer, or the bytes of a register's
/// element.
pub(crate) fn run(op: &TensorOp, out: &mut [u8], sources: &Sources<'_>) -> Result<(), KernelFailed> {
    let operands = &op.operands[..];
    match &op.kernel {
        Kernel::Map(map) => return map.run(operands, [out], sources),
        Kernel::Copy(copy) => copy.run(operands[0].view(), out, sources),
        Kernel::Reduce(reduce) => reduce.run(operands[0].view(), out, sources),
        Kernel::MapReduce(reduce) => reduce.run(operands, out, sources),
        Kernel::Axis(lanes) => lanes.run(operands[0].view(), out, sources),
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
        Kernel::ReadElement { axis } => return index::read_element(*axis, operands, out, sources),
        Kernel::WriteElement { axis } => return index::write_element(*axis, operands, out, sources),
        Kernel::AddElement { axis } => return index::add_element(*axis, operands, out, sources),
        Kernel::FirstOccurrences => occurrences::first_occurrences(operands[0].view(), out, sources),
        Kernel::Random(random) => random::fill(*random, operands, out, sources),
        Kernel::FoldIn => random::fold_in(operands, out, sources),
        Kernel::Load => {
            let view = operands[0].view();
            let size = view.dtype.size();
            out.copy_from_slice(&sources.bytes(view.base)[view.offset * size..][..size]);
        }
        Kernel::Unspecified => {}
        Kernel::Data
        | Kernel::Assert(_)
        | Kernel::Print(..)
        | Kernel::Queue(..)
        | Kernel::QueueResult
        | Kernel::File(_)
        | Kernel::List(_)
        | Kernel::AddAtEnd(_)
        | Kernel::CheckIndices { .. }
        | Kernel::Rows(_)
        | Kernel::ToSlot
        | Kernel::FromSlot
        | Kernel::Reference => {
            panic!("`{}` has no kernel over bytes", op.name)
        }
    }
    Ok(())
}
