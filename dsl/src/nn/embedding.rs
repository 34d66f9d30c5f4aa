//! Embedding tables.

use super::{Init, module};
use crate::{Integer, Tensor, Var};

/// An embedding table.
///
/// As long as its gradient is only added, negated and scaled by scalars, a step of plain gradient
/// descent ([`Sgd`](crate::optim::Sgd) without momentum), of [`AdaGrad`](crate::optim::AdaGrad) or
/// of [lazy Adam](crate::optim::Adam::lazy) updates only the rows that were read, and costs in
/// proportion to them. Moments change in all rows at each step, so [`Adam`](crate::optim::Adam) and
/// momentum cost in proportion to the table.
#[derive(Debug)]
pub struct Embedding {
    /// The table, `[entries, size]`.
    pub table: Var,
}
module!(Embedding: table);

impl Embedding {
    /// Creates a table of standard normal vectors.
    pub fn new(init: &Init, entries: usize, size: usize) -> Embedding {
        Embedding { table: Var::new("table", init.normal([entries, size], 1.0)) }
    }

    /// Returns the vectors of `ids`: shape `[..]` to `[.., size]`.
    ///
    /// An id out of range fails the step.
    #[track_caller]
    pub fn forward<I: Integer>(&self, ids: Tensor<I>) -> Tensor {
        self.table.get().take(ids, 0)
    }
}
