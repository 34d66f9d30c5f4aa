//! Adam.

use super::Optimizer;
use super::slots::Slots;
use crate::trace::{assign_var, constant, read_var, var_path};
use crate::var::VarPath;
use crate::{AnyValue, AnyVar, HostTensor, Module};

/// Adam (Kingma and Ba 2015), optionally with decoupled weight decay (AdamW, Loshchilov and Hutter
/// 2019).
#[derive(Debug)]
pub struct Adam {
    rate: f32,
    betas: (f64, f64),
    epsilon: f64,
    weight_decay: f64,
    steps: AnyVar,
    slots: Slots,
}

impl Adam {
    /// Creates the optimizer with the constants of the paper: 0.9, 0.999, 1e-8.
    pub fn new(rate: f32) -> Adam {
        let steps = AnyVar::new("adam.steps", HostTensor::scalar(0i32));
        Adam { rate, betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.0, steps, slots: Slots::default() }
    }

    /// Sets the decay rates of the two moments.
    #[must_use]
    pub fn betas(mut self, first: f64, second: f64) -> Adam {
        self.betas = (first, second);
        self
    }

    /// Sets the number that is added to the root of the second moment.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> Adam {
        self.epsilon = epsilon;
        self
    }

    /// Sets the decoupled weight decay: `w -= rate * decay * w`.
    #[must_use]
    pub fn weight_decay(mut self, decay: f64) -> Adam {
        self.weight_decay = decay;
        self
    }

    fn moments(&self, var: &AnyVar, path: Option<&str>) -> [AnyVar; 2] {
        self.slots.of(var, path, ["adam_m", "adam_v"])
    }
}

impl Optimizer for Adam {
    fn rate(&self) -> f32 {
        self.rate
    }

    fn prepare_var(&self, path: &str, var: &AnyVar) {
        self.moments(var, Some(path));
    }

    fn begin(&self) -> Option<AnyValue> {
        let step = read_var(&self.steps).add(constant(HostTensor::scalar(1i32)));
        assign_var(&self.steps, step);
        Some(step)
    }

    fn update(
        &self,
        var: &AnyVar,
        value: AnyValue,
        grad: AnyValue,
        rate: AnyValue,
        step: Option<AnyValue>,
    ) -> AnyValue {
        let [first, second] = self.moments(var, var_path(var).as_deref());
        let (b1, b2) = self.betas;
        let m = read_var(&first) * b1 + grad * (1.0 - b1);
        let v = read_var(&second) * b2 + grad * grad * (1.0 - b2);
        assign_var(&first, m);
        assign_var(&second, v);
        let t = step.expect("begin counts the steps").cast(value.dtype());
        let power = |beta: f64| -((t * beta.ln()).expm1());
        let rate_t = rate * power(b2).sqrt() / power(b1);
        // The bias corrections are folded into rate and epsilon, as in section 2 of the paper.
        let epsilon_t = power(b2).sqrt() * self.epsilon;
        let next = value - rate_t * m / (v.sqrt() + epsilon_t);
        if self.weight_decay == 0.0 { next } else { next - rate * value * self.weight_decay }
    }
}

impl Module for Adam {
    fn visit(&self, path: &mut VarPath, visit: &mut dyn FnMut(&str, &AnyVar)) {
        path.with("steps", |p| visit(p.as_str(), &self.steps));
        self.slots.visit(path, visit);
    }
}
