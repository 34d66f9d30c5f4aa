//! The answers of the CPU to [`Fusion::find`](anabranch_dsl::fusion::Fusion::find): the operations
//! that it computes and fuses.
//!
//! - Functions of elements: those that have loops. 16-bit floats have loops for a few operations
//!   only, and all others are computed by the reference.
//! - Sizes: an elementwise kernel has a fixed number of operands and operations.
//! - Reductions: over leading or trailing axes, whose elements are contiguous or one row apart.
//!   Others are computed without their operand's operations.
//! - Rows: of contiguous elements. Those of images may be channels, which a convolution may store
//!   last. The sums of columns need memory for the parts of threads, too.
//! - Epilogues: in a loop, a small result stays in the L1 cache anyway, and a separate kernel can
//!   update a loop variable in place. So only a sum, which a product can begin with, is worth it
//!   there.
//! - The gradient of the filters of a convolution is computed in parts for the threads, and their
//!   sum has no epilogue. So it is no stage of a kernel.
//! - With a check of finite values, every value is computed at its node.

use super::LowerOptions;
use crate::cpu::kernels::elementwise::{MAX_OPERANDS, MAX_OPS};
use crate::cpu::kernels::functions::{ElementFunction, function};
use crate::cpu::kernels::map_reduce::ReducedLayout;
use crate::cpu::kernels::rows::{MAX_STAGES, MAX_WIDTH};
use crate::cpu::memory::MAX_WRITTEN;
use anabranch_dsl::fusion::{AxisSet, FusedKernel, FusionTarget, RowLimits, row_axes};
use anabranch_dsl::ir::{Graph, Node, NodeData, Op, Value};
use anabranch_dsl::ops::{OpClass, function_dtype, prim};

/// Maximum size in bytes of a result that stays in the L1 cache.
const SMALL_BYTES: u128 = 1 << 15;

/// Maximum number of operands of a kernel of rows.
const MAX_ROW_OPERANDS: usize = 48;

/// The CPU as the target of fusion.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuFusion {
    pub(super) options: LowerOptions,
}

/// Returns the elementwise function of a node, or `None` for any other node.
pub(super) fn function_of(graph: &Graph, node: &NodeData) -> Option<ElementFunction> {
    let Op::Prim(op, _) = &node.op else { return None };
    function(*op, function_dtype(graph, node), graph.ty(node.results[0]).element().dtype)
}

impl FusionTarget for CpuFusion {
    fn computes(&self, graph: &Graph, node: Node) -> bool {
        let data = graph.node(node);
        let Op::Prim(op, _) = data.op else { return false };
        let is_half = |&v: &Value| graph.ty(v).element().dtype.is_half();
        if op.widens() && data.operands.iter().chain(&data.results).any(is_half) {
            return false;
        }
        match op.class {
            // Registers hold values of rank 0.
            OpClass::Scalar(_) => graph.ty(data.results[0]).element().rank() > 0 && function_of(graph, data).is_some(),
            OpClass::Contract(_) => op.is_product() && op != prim::CONV_WEIGHT_GRAD,
            OpClass::Reduce(_) | OpClass::Random(_) | OpClass::Rowwise(_) => self.options.fuse,
            _ => false,
        }
    }

    fn fuses(&self) -> bool {
        self.options.fuse && !self.options.check_finite
    }

    fn max_inputs(&self) -> usize {
        MAX_OPERANDS
    }

    fn max_operations(&self) -> usize {
        MAX_OPS
    }

    fn accepts(&self, _: &Graph, kernel: &FusedKernel) -> bool {
        // Rows are copied at the speed of memory, and read from the caches by the next kernel.
        !kernel.has_indexed()
    }

    fn reduces(&self, shape: &[usize], over: AxisSet) -> bool {
        ReducedLayout::of(shape, &over.iter().collect::<Vec<_>>()).is_some()
    }

    fn fuses_epilogue(&self, graph: &Graph, kernel: &FusedKernel, is_in_loop: bool) -> bool {
        let ty = |stage: usize| graph.ty(graph.node(kernel.stages[stage].node).results[0]).element();
        let is_sum = kernel.stages.len() == 2 && graph.node(kernel.stages[1].node).op.is(prim::ADD);
        let is_small = ty(0).n_bytes().is_some_and(|n| n <= SMALL_BYTES);
        (!is_in_loop || is_sum || !is_small) && ty(kernel.stages.len() - 1).dtype == ty(0).dtype
    }

    fn sums_batches(&self) -> bool {
        true
    }

    fn rows(&self) -> Option<RowLimits> {
        let (width, parts, inputs) = (MAX_WIDTH, MAX_STAGES, MAX_ROW_OPERANDS);
        Some(RowLimits { width, parts, inputs, outputs: MAX_WRITTEN, columns: 2 })
    }

    fn row_axes(&self, shape: &[usize], over: AxisSet) -> Option<AxisSet> {
        let channels: AxisSet = [1].into_iter().collect();
        let others = AxisSet::first(shape.len()).without(channels);
        row_axes(shape, over).or_else(|| (over == channels || over == others).then_some(others))
    }
}
