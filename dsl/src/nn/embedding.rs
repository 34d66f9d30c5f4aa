//! Rows of a table by their number.

use super::{Init, module};
use crate::{Integer, Tensor, Var};

/// A table of vectors.
///
/// Its gradient is the rows that were read, not a table, as long as it is only added, negated, and scaled by one number: a step of plain
/// gradient descent ([`Sgd`](crate::optim::Sgd) without momentum) costs what the rows cost. Moments change in all rows at each step,
/// so [`Adam`](crate::optim::Adam) and momentum cost what the table costs.
#[derive(Debug)]
pub struct Embedding {
    /// `[entries, size]`
    pub table: Var,
}
module!(Embedding: table);

impl Embedding {
    /// A table of standard normal vectors.
    pub fn new(init: &Init, entries: usize, size: usize) -> Embedding {
        Embedding { table: Var::new("table", init.normal([entries, size], 1.0)) }
    }

    /// The vectors of `ids`: shape `[..]` to `[.., size]`. A number that is not in the table fails the step.
    #[track_caller]
    pub fn at<I: Integer>(&self, ids: Tensor<I>) -> Tensor {
        self.table.get().take(ids, 0)
    }
}
