//! Epilogues: elementwise operations on the result of a matmul or convolution, part by part, while
//! each part is in cache.
//!
//! The matmul writes a part of its result to the output buffer. The epilogue reads it there and
//! overwrites it. An epilogue is a [`Map`] whose first operand is this buffer, so its blocks,
//! functions and results are the same as for any other map.

use super::elementwise::{Arg, Map, MapOp};
use crate::cpu::memory::Sources;
use crate::cpu::memory::{TensorOperand, View};
use anabranch_dsl::ops::prim;

/// The epilogue of a matmul or convolution.
#[derive(Clone, Debug)]
pub(crate) struct Epilogue {
    map: Map,
}

impl Epilogue {
    /// Creates an epilogue from operations that cannot fail.
    ///
    /// The first operand is the result of the matmul, which is stored in `out`. The last operation
    /// must have the type and shape of `out`.
    pub(crate) fn new(ops: Vec<MapOp>, operands: &[TensorOperand], out: &View) -> Epilogue {
        assert!(operands[0].view().same_places(out), "the result of the product is the first operand");
        let map = Map::new(ops, operands, out);
        assert!(map.is_total(), "fused operations cannot fail");
        Epilogue { map }
    }

    /// Returns whether the epilogue is the sum of the matmul and one other operand, each element
    /// used once.
    pub(crate) fn is_sum(&self) -> bool {
        let sum = [[Arg::Operand(0), Arg::Operand(1)], [Arg::Operand(1), Arg::Operand(0)]];
        matches!(self.map.ops(), [op] if op.op == prim::ADD && sum.contains(&[op.args[0], op.args[1]]))
    }

    /// Returns the names of the operations in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.map.names()
    }

    /// Applies the epilogue to the elements from `first` on, stored in `part`. The first operand is
    /// ignored.
    pub(crate) fn run(&self, operands: &[TensorOperand], first: usize, part: &mut [u8], sources: &Sources<'_>) {
        let size = self.map.ops().last().expect("the map has an operation").dtype.size();
        let n = part.len() / size;
        self.map.run_range(operands, first, n, part, sources).expect("the operations cannot fail");
    }
}
