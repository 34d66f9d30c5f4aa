//! Stochastic gradient descent.

use super::{Optimizer, Slots, state};
use crate::trace::{assign_var, fail, place, read_var};
use crate::{AnyValue, AnyVar, Diagnostic, Loc};

/// Stochastic gradient descent, optionally with momentum (Sutskever et al. 2013), in the form of
/// PyTorch's `SGD`: the rate multiplies the velocity and is not part of it.
#[derive(Debug)]
pub struct Sgd {
    rate: f32,
    momentum: f64,
    nesterov: bool,
    slots: Slots,
}

impl Sgd {
    /// Creates the optimizer without momentum: `w -= rate * g`.
    pub fn new(rate: f32) -> Sgd {
        Sgd { rate, momentum: 0.0, nesterov: false, slots: Slots::default() }
    }

    /// Sets the momentum: `v = momentum * v + g`, `w -= rate * v`.
    #[must_use]
    pub fn momentum(mut self, momentum: f64) -> Sgd {
        self.momentum = momentum;
        self
    }

    /// Uses Nesterov momentum: `w -= rate * (g + momentum * v)`. An update without momentum is then
    /// an error.
    #[must_use]
    pub fn nesterov(mut self) -> Sgd {
        self.nesterov = true;
        self
    }
}

impl Optimizer for Sgd {
    fn rate(&self) -> f32 {
        self.rate
    }

    fn update(&self, var: &AnyVar, value: AnyValue, grad: AnyValue, rate: AnyValue, _: Option<AnyValue>) -> AnyValue {
        if self.momentum == 0.0 {
            if self.nesterov {
                let error = Diagnostic::new("Nesterov momentum of 0").at(place(Loc::caller()), "updated here");
                fail(error.help("set the momentum by `momentum`, or leave out `nesterov`"));
            }
            return value - rate * grad;
        }
        let [velocity] = self.slots.of(var, ["velocity"]);
        let v = read_var(&velocity) * self.momentum + grad;
        assign_var(&velocity, v);
        let direction = if self.nesterov { grad + v * self.momentum } else { v };
        value - rate * direction
    }
}

state!(Sgd);
