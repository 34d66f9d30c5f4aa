//! Stochastic gradient descent.

use super::Optimizer;
use super::slots::Slots;
use crate::trace::{assign_var, read_var, var_path};
use crate::var::VarPath;
use crate::{AnyValue, AnyVar, Module};

/// Stochastic gradient descent, optionally with momentum (Sutskever et al. 2013).
#[derive(Debug)]
pub struct Sgd {
    rate: f32,
    momentum: f32,
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
    pub fn momentum(mut self, momentum: f32) -> Sgd {
        self.momentum = momentum;
        self
    }

    /// Uses Nesterov momentum: `w -= rate * (g + momentum * v)`.
    #[must_use]
    pub fn nesterov(mut self) -> Sgd {
        self.nesterov = true;
        self
    }

    fn velocity(&self, var: &AnyVar, path: Option<&str>) -> AnyVar {
        let [velocity] = self.slots.of(var, path, ["velocity"]);
        velocity
    }
}

impl Optimizer for Sgd {
    fn rate(&self) -> f32 {
        self.rate
    }

    fn prepare_var(&self, path: &str, var: &AnyVar) {
        if self.momentum != 0.0 {
            self.velocity(var, Some(path));
        }
    }

    fn update(&self, var: &AnyVar, value: AnyValue, grad: AnyValue, rate: AnyValue, _: Option<AnyValue>) -> AnyValue {
        if self.momentum == 0.0 {
            return value - rate * grad;
        }
        let velocity = self.velocity(var, var_path(var).as_deref());
        let v = read_var(&velocity) * f64::from(self.momentum) + grad;
        assign_var(&velocity, v);
        let direction = if self.nesterov { grad + v * f64::from(self.momentum) } else { v };
        value - rate * direction
    }
}

impl Module for Sgd {
    fn visit(&self, path: &mut VarPath, visit: &mut dyn FnMut(&str, &AnyVar)) {
        self.slots.visit(path, visit);
    }
}
