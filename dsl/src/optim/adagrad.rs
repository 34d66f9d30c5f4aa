//! Optimizers with a rate for each element: AdaGrad and those that forget old gradients.

use super::rows::UpdatedRows;
use super::{Optimizer, Slots, state};
use crate::trace::{assign_var, read_var};
use crate::{AnyValue, AnyVar};

/// AdaGrad (Duchi et al. 2011), in the form of PyTorch's `Adagrad`: `a += g * g`,
/// `w -= rate * g / (sqrt(a) + epsilon)`.
///
/// Rows of a table that have no gradient stay as they are, and if they are most rows, cost nothing:
/// see [the module](super). With an epsilon of 0, an element whose gradients were all zero becomes
/// `NaN`, as in PyTorch, unless its row is left out in this way.
///
/// Keras and TensorFlow start `a` at 0.1 and put epsilon under the root, so they give other
/// numbers.
#[derive(Debug)]
pub struct AdaGrad {
    rate: f32,
    epsilon: f64,
    slots: Slots,
}

impl AdaGrad {
    /// Creates the optimizer with PyTorch's constant, 1e-10. Its rate is 0.01.
    pub fn new(rate: f32) -> AdaGrad {
        AdaGrad { rate, epsilon: 1e-10, slots: Slots::default() }
    }

    /// Sets the number that is added to the root.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> AdaGrad {
        self.epsilon = epsilon;
        self
    }
}

impl Optimizer for AdaGrad {
    fn rate(&self) -> f32 {
        self.rate
    }

    fn update(&self, var: &AnyVar, value: AnyValue, grad: AnyValue, rate: AnyValue, _: Option<AnyValue>) -> AnyValue {
        let [sum] = self.slots.of(var, ["adagrad_sum"]);
        let (rows, last) = (UpdatedRows::of(grad), read_var(&sum));
        let g = rows.gradient();
        let a = rows.of_table(last) + g * g;
        assign_var(&sum, rows.add(last, g * g));
        rows.add(value, -(rate * g / (a.sqrt() + self.epsilon)))
    }
}

state!(AdaGrad);

/// AdaDelta (Zeiler 2012), in the form of PyTorch's `Adadelta`.
///
/// `v = rho * v + (1 - rho) * g * g`, `delta = sqrt(d + epsilon) / sqrt(v + epsilon) * g`,
/// `d = rho * d + (1 - rho) * delta * delta`, `w -= rate * delta`.
#[derive(Debug)]
pub struct AdaDelta {
    rate: f32,
    rho: f64,
    epsilon: f64,
    slots: Slots,
}

impl AdaDelta {
    /// Creates the optimizer with PyTorch's constants: 0.9 for `rho`, 1e-6. The rate of the paper
    /// and of PyTorch is 1.
    pub fn new(rate: f32) -> AdaDelta {
        AdaDelta { rate, rho: 0.9, epsilon: 1e-6, slots: Slots::default() }
    }

    /// Sets the decay rate of the two means.
    #[must_use]
    pub fn rho(mut self, rho: f64) -> AdaDelta {
        self.rho = rho;
        self
    }

    /// Sets the number that is added to the means under the roots.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> AdaDelta {
        self.epsilon = epsilon;
        self
    }
}

impl Optimizer for AdaDelta {
    fn rate(&self) -> f32 {
        self.rate
    }

    fn update(&self, var: &AnyVar, value: AnyValue, grad: AnyValue, rate: AnyValue, _: Option<AnyValue>) -> AnyValue {
        let [squares, deltas] = self.slots.of(var, ["adadelta_v", "adadelta_d"]);
        let (rho, d) = (self.rho, read_var(&deltas));
        let v = read_var(&squares) * rho + grad * grad * (1.0 - rho);
        let delta = (d + self.epsilon).sqrt() / (v + self.epsilon).sqrt() * grad;
        assign_var(&squares, v);
        assign_var(&deltas, d * rho + delta * delta * (1.0 - rho));
        value - rate * delta
    }
}

state!(AdaDelta);

/// RMSProp (Tieleman and Hinton 2012), in the form of PyTorch's `RMSprop`: epsilon is added to the
/// root, and the rate multiplies the velocity.
///
/// `v = alpha * v + (1 - alpha) * g * g`, `w -= rate * g / (sqrt(v) + epsilon)`.
#[derive(Debug)]
pub struct RmsProp {
    rate: f32,
    alpha: f64,
    epsilon: f64,
    momentum: f64,
    centered: bool,
    slots: Slots,
}

impl RmsProp {
    /// Creates the optimizer with PyTorch's constants: 0.99 for `alpha`, 1e-8. Its rate is 0.01.
    pub fn new(rate: f32) -> RmsProp {
        RmsProp { rate, alpha: 0.99, epsilon: 1e-8, momentum: 0.0, centered: false, slots: Slots::default() }
    }

    /// Sets the decay rate of the means.
    #[must_use]
    pub fn alpha(mut self, alpha: f64) -> RmsProp {
        self.alpha = alpha;
        self
    }

    /// Sets the number that is added to the root.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> RmsProp {
        self.epsilon = epsilon;
        self
    }

    /// Sets the momentum: `b = momentum * b + g / (sqrt(v) + epsilon)`, `w -= rate * b`.
    #[must_use]
    pub fn momentum(mut self, momentum: f64) -> RmsProp {
        self.momentum = momentum;
        self
    }

    /// Divides by the root of the variance, `v - mean(g)^2`, instead of the mean square.
    ///
    /// A variance that is negative by rounding counts as zero; PyTorch's result would be NaN.
    #[must_use]
    pub fn centered(mut self) -> RmsProp {
        self.centered = true;
        self
    }
}

impl Optimizer for RmsProp {
    fn rate(&self) -> f32 {
        self.rate
    }

    fn update(&self, var: &AnyVar, value: AnyValue, grad: AnyValue, rate: AnyValue, _: Option<AnyValue>) -> AnyValue {
        let [squares] = self.slots.of(var, ["rmsprop_v"]);
        let mut v = read_var(&squares) * self.alpha + grad * grad * (1.0 - self.alpha);
        assign_var(&squares, v);
        if self.centered {
            let [mean] = self.slots.of(var, ["rmsprop_mean"]);
            let g = read_var(&mean) * self.alpha + grad * (1.0 - self.alpha);
            assign_var(&mean, g);
            v = (v - g * g).maximum(v.number(0.0));
        }
        let direction = grad / (v.sqrt() + self.epsilon);
        if self.momentum == 0.0 {
            return value - rate * direction;
        }
        let [velocity] = self.slots.of(var, ["rmsprop_velocity"]);
        let b = read_var(&velocity) * self.momentum + direction;
        assign_var(&velocity, b);
        value - rate * b
    }
}

state!(RmsProp);
