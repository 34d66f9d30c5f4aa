//! Lion.

use super::{Optimizer, Slots, state};
use crate::trace::{assign_var, read_var};
use crate::{AnyValue, AnyVar};

/// Lion (Chen et al. 2023, algorithm 2), which steps by the sign of an interpolated momentum:
/// `w -= rate * (sign(b1 * m + (1 - b1) * g) + decay * w)`, then `m = b2 * m + (1 - b2) * g`.
///
/// Each element moves by the rate, so the rate is 3 to 10 times smaller than that of Adam and the
/// decay larger by the same factor.
#[derive(Debug)]
pub struct Lion {
    rate: f32,
    betas: (f64, f64),
    weight_decay: f64,
    slots: Slots,
}

impl Lion {
    /// Creates the optimizer with the constants of the paper: 0.9, 0.99.
    pub fn new(rate: f32) -> Lion {
        Lion { rate, betas: (0.9, 0.99), weight_decay: 0.0, slots: Slots::default() }
    }

    /// Sets the share of the momentum in the direction, and its decay rate.
    #[must_use]
    pub fn betas(mut self, direction: f64, momentum: f64) -> Lion {
        self.betas = (direction, momentum);
        self
    }

    /// Sets the decoupled weight decay: `w -= rate * decay * w`.
    #[must_use]
    pub fn weight_decay(mut self, decay: f64) -> Lion {
        self.weight_decay = decay;
        self
    }
}

impl Optimizer for Lion {
    fn rate(&self) -> f32 {
        self.rate
    }

    fn update(&self, var: &AnyVar, value: AnyValue, grad: AnyValue, rate: AnyValue, _: Option<AnyValue>) -> AnyValue {
        let [momentum] = self.slots.of(var, ["lion_m"]);
        let (m, (b1, b2)) = (read_var(&momentum), self.betas);
        assign_var(&momentum, m * b2 + grad * (1.0 - b2));
        let next = value - rate * (m * b1 + grad * (1.0 - b1)).sign();
        if self.weight_decay == 0.0 { next } else { next - rate * value * self.weight_decay }
    }
}

state!(Lion);
