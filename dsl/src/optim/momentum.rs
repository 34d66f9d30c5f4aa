//! Optimizers with a momentum that changes from update to update.

use super::single;
use crate::ir::Op;
use crate::trace::{called_at, with};
use crate::{AnyValue, DType, Loc, Operand};
use std::fmt;

/// An optimizer with another momentum, for one update in one function:
/// [`Sgd::momentum_at`](super::Sgd::momentum_at) or
/// [`Adam::momentum_at`](super::Adam::momentum_at).
#[must_use]
pub struct AtMomentum<'a, O> {
    optimizer: &'a O,
    momentum: AnyValue,
}

impl<'a, O> AtMomentum<'a, O> {
    #[track_caller]
    pub(super) fn new(optimizer: &'a O, momentum: impl Operand<f32>) -> AtMomentum<'a, O> {
        let here = Loc::caller();
        AtMomentum { optimizer, momentum: called_at(here, || single("momentum", momentum, here)) }
    }

    pub(super) fn optimizer(&self) -> &O {
        self.optimizer
    }

    /// Returns the momentum, if it is a number that is known while tracing.
    pub(super) fn known(&self) -> Option<f64> {
        with(|t| match &t.graph.node(t.graph.producer(self.momentum.value())?).op {
            Op::Constant(number) => number.to_f64(),
            _ => None,
        })
    }

    /// Returns the momentum in the element type of an update.
    pub(super) fn momentum(&self, dtype: DType) -> AnyValue {
        self.momentum.cast(dtype)
    }
}

impl<O: fmt::Debug> fmt::Debug for AtMomentum<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtMomentum").field("optimizer", self.optimizer).finish_non_exhaustive()
    }
}
