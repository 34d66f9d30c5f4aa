//! Rows of a table by their number.

use super::{Init, module};
use crate::{Integer, Tensor, Var};

/// A table of vectors.
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
