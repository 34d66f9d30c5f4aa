//! Stochastic gradient descent.

use super::{AtMomentum, Optimizer, Slots, state};
use crate::trace::{assign_var, fail, place, read_var};
use crate::{AnyValue, AnyVar, Diagnostic, Loc, Operand};

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

    /// Returns this optimizer with another momentum for one update, which may be a tensor that
    /// [`one_cycle_momentum`](super::schedule::one_cycle_momentum) computes. The state is that of
    /// this optimizer, whose own momentum counts only in that [`prepare`](Optimizer::prepare)
    /// creates the velocities if there is one.
    ///
    /// ```
    /// use anabranch::optim::{Optimizer, Sgd, schedule};
    /// use anabranch::prelude::*;
    ///
    /// let (w, sgd) = (Var::<f32>::new("w", 1.0), Sgd::new(0.1).momentum(0.9));
    /// let session = Session::new()?;
    /// let step = session.function(|t: Tensor<i64>| {
    ///     let momentum = schedule::one_cycle_momentum(t, 0.85, 0.95, 20);
    ///     let rate = schedule::one_cycle(t, sgd.rate(), 20);
    ///     sgd.momentum_at(momentum).minimize_at(rate, w.get().square(), &w);
    /// })?;
    /// for t in 0..20_i64 {
    ///     step.call(t)?;
    /// }
    /// assert!(session.get(&w)?.item().abs() < 1.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// # Errors
    /// Aborts the trace if the momentum has axes, or if this optimizer has none of its own.
    #[track_caller]
    pub fn momentum_at(&self, momentum: impl Operand<f32>) -> AtMomentum<'_, Sgd> {
        if self.momentum == 0.0 {
            let error = Diagnostic::new("another momentum for SGD without momentum").at(Loc::caller(), "set here");
            fail(error.help("set a momentum by `momentum`, too: without one `prepare` creates no velocities"));
        }
        AtMomentum::new(self, momentum)
    }

    /// Returns the next value of a variable. `times` multiplies by the momentum.
    fn with_velocity(
        &self,
        var: &AnyVar,
        value: AnyValue,
        grad: AnyValue,
        rate: AnyValue,
        times: impl Fn(AnyValue) -> AnyValue,
    ) -> AnyValue {
        let [velocity] = self.slots.of(var, ["velocity"]);
        let v = times(read_var(&velocity)) + grad;
        assign_var(&velocity, v);
        let direction = if self.nesterov { grad + times(v) } else { v };
        value - rate * direction
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
        self.with_velocity(var, value, grad, rate, |x| x * self.momentum)
    }
}

impl Optimizer for AtMomentum<'_, Sgd> {
    fn rate(&self) -> f32 {
        self.optimizer().rate()
    }

    fn update(&self, var: &AnyVar, value: AnyValue, grad: AnyValue, rate: AnyValue, _: Option<AnyValue>) -> AnyValue {
        let momentum = self.momentum(value.dtype());
        self.optimizer().with_velocity(var, value, grad, rate, |x| x * momentum)
    }
}

state!(Sgd);
