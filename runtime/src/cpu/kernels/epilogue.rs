//! Elementwise operations on the result of a product, part by part, while each part is in cache.
//!
//! The product writes a part of its result where the step's result goes; the operations read it there and overwrite it. They are a
//! [`Map`] whose first operand is that place, so they have the same blocks and functions as any other map, and the same bits.

use super::elementwise::{Arg, Map, MapOp};
use crate::cpu::memory::Sources;
use crate::plan::{Operand, View};
use anabranch_dsl::ops::prim;

/// Elementwise operations behind a product.
#[derive(Clone, Debug)]
pub(crate) struct Epilogue {
    map: Map,
}

impl Epilogue {
    /// Operations that cannot fail, on operands whose first is the result of the product, `out` itself; of its type and shape is the value
    /// of the last one.
    pub(crate) fn new(ops: Vec<MapOp>, operands: &[Operand], out: &View) -> Epilogue {
        assert!(operands[0].view().same_places(out), "the result of the product is the first operand");
        let map = Map::new(ops, operands, out);
        assert!(map.is_total(), "fused operations cannot fail");
        Epilogue { map }
    }

    /// Whether it is but the sum of the product and one other operand, each of which has its own elements.
    pub(crate) fn is_sum(&self) -> bool {
        let sum = [[Arg::Operand(0), Arg::Operand(1)], [Arg::Operand(1), Arg::Operand(0)]];
        matches!(self.map.ops(), [op] if op.op == prim::ADD && sum.contains(&[op.args[0], op.args[1]]))
    }

    /// Names of the operations in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.map.names()
    }

    /// Does them on the elements from `first` on, which `part` holds. The first operand is not looked at.
    pub(crate) fn run(&self, operands: &[Operand], first: usize, part: &mut [u8], sources: &Sources<'_>) {
        let size = self.map.ops().last().expect("there is an operation").dtype.size();
        let n = part.len() / size;
        self.map.run_range(operands, first, n, part, sources).expect("the operations cannot fail");
    }
}
