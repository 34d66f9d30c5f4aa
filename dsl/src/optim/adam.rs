//! Adam and its variants.

use super::rows::UpdatedRows;
use super::{AtMomentum, Optimizer, Slots, bias_correction, count_update, state, unconstrained};
use crate::trace::{assign_var, fail, place, read_var};
use crate::{AnyValue, AnyVar, DType, Diagnostic, Loc, Operand, Tensor, Var};

/// Checks decay rates. Returns them.
#[track_caller]
fn decay_rates(first: f64, second: f64) -> (f64, f64) {
    if ![first, second].iter().all(|beta| (0.0..1.0).contains(beta)) {
        let error = Diagnostic::new(format!("the decay rates of an optimizer are {first} and {second}"));
        fail(error.at(Loc::caller(), "set here").help("use numbers from 0 to below 1"));
    }
    (first, second)
}

/// Adam (Kingma and Ba 2015), optionally with decoupled weight decay (AdamW, Loshchilov and Hutter
/// 2019), in the form of PyTorch's `Adam` and `AdamW`.
///
/// PyTorch's `AdamW` has a weight decay of 0.01 by default, this one none. The `weight_decay` of
/// PyTorch's `Adam` is [`l2_decay`](super::l2_decay).
///
/// All variables share one count of steps, by which the moments are corrected. So call
/// [`apply`](Optimizer::apply) once in a step, with the gradients of all variables, the same each
/// time. Parts of a model that are updated at different times need an optimizer each.
#[derive(Debug)]
pub struct Adam {
    rate: f32,
    betas: (f64, f64),
    epsilon: f64,
    weight_decay: f64,
    amsgrad: bool,
    is_lazy: bool,
    steps: Var<i64>,
    slots: Slots,
}

impl Adam {
    /// Creates the optimizer with the constants of the paper: 0.9, 0.999, 1e-8.
    pub fn new(rate: f32) -> Adam {
        Adam {
            rate,
            betas: (0.9, 0.999),
            epsilon: 1e-8,
            weight_decay: 0.0,
            amsgrad: false,
            is_lazy: false,
            steps: Var::untrained("adam.steps", 0),
            slots: Slots::default(),
        }
    }

    /// Sets the decay rates of the two moments.
    ///
    /// # Errors
    /// Aborts the trace, or panics outside one, at the caller's line unless both are from 0 to
    /// below 1.
    #[must_use]
    #[track_caller]
    pub fn betas(mut self, first: f64, second: f64) -> Adam {
        self.betas = decay_rates(first, second);
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

    /// Divides by the root of the largest second moment so far (AMSGrad, Reddi et al. 2018). As in
    /// PyTorch, the largest is taken before the correction of the bias.
    #[must_use]
    pub fn amsgrad(mut self) -> Adam {
        self.amsgrad = true;
        self
    }

    /// Leaves rows without a gradient as they are, with their moments, as PyTorch's `SparseAdam`
    /// does: rows of a table that a step did not read, along the first axis of a variable. A row
    /// whose gradient is zero in all elements counts as one of them.
    ///
    /// Without it, such a row goes on moving by the gradients of earlier steps. Lazy updates are
    /// another algorithm, not a faster form of the same one: moments decay with the updates of
    /// their row, but the bias is corrected by the number of all updates. An update with
    /// [`weight_decay`](Adam::weight_decay) or AMSGrad is then an error. Decay of a
    /// [`ParamGroups`](super::ParamGroups) changes all rows.
    ///
    /// ```
    /// use anabranch::optim::{Adam, Optimizer};
    /// use anabranch::prelude::*;
    ///
    /// let table = Var::<f32>::new("table", [[1.0, 1.0], [2.0, 2.0]]);
    /// let adam = Adam::new(0.5).lazy();
    /// let session = Session::new()?;
    /// let step = session.function(|row: Tensor<i32>| {
    ///     adam.minimize(table.get().index(row, 0).sum(), &table);
    /// })?;
    /// step.call(0)?;
    /// step.call(1)?;
    /// // The first row was updated in the first step only.
    /// assert!((session.get(&table)?.to_vec()[0] - 0.5).abs() < 1e-6);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[must_use]
    pub fn lazy(mut self) -> Adam {
        self.is_lazy = true;
        self
    }

    /// Returns the number of updates so far, for a [`schedule`](super::schedule): in a function
    /// that updates later, the number of the update, from 0.
    #[track_caller]
    pub fn steps(&self) -> Tensor<i64> {
        self.steps.get()
    }

    /// Returns this optimizer with another decay rate of the first moment for one update, which may
    /// be a tensor that [`one_cycle_momentum`](super::schedule::one_cycle_momentum) computes. It
    /// must be from 0 to below 1. The state is that of this optimizer. As in PyTorch, the bias is
    /// corrected as if all updates had had this rate.
    ///
    /// Groups are put around it in the function that updates:
    /// `ParamGroups::new(adam.momentum_at(momentum))`.
    ///
    /// # Errors
    /// Aborts the trace if the momentum has axes, or is a number that is not from 0 to below 1.
    #[track_caller]
    pub fn momentum_at(&self, momentum: impl Operand<f32>) -> AtMomentum<'_, Adam> {
        let changed = AtMomentum::new(self, momentum);
        if let Some(number) = changed.known() {
            decay_rates(number, self.betas.1);
        }
        changed
    }
}

/// The decay rate of the first moment of Adam.
#[derive(Clone, Copy)]
enum FirstDecay {
    Number(f64),
    Scalar(AnyValue),
}

impl FirstDecay {
    /// Returns the next moment.
    fn mix(self, last: AnyValue, grad: AnyValue) -> AnyValue {
        let kept = match self {
            FirstDecay::Number(b1) => last * b1,
            FirstDecay::Scalar(b1) => last * b1,
        };
        kept + self.rest_of(grad)
    }

    /// Returns the part of a number that a moment takes in.
    fn rest_of(self, x: AnyValue) -> AnyValue {
        match self {
            FirstDecay::Number(b1) => x * (1.0 - b1),
            FirstDecay::Scalar(b1) => x * (1.0 - b1),
        }
    }

    fn bias_correction(self, t: AnyValue) -> AnyValue {
        match self {
            FirstDecay::Number(b1) => bias_correction(b1, t),
            FirstDecay::Scalar(b1) => -(t * b1.log()).expm1(),
        }
    }
}

impl Optimizer for Adam {
    fn is_lazy(&self) -> bool {
        self.is_lazy
    }

    fn rate(&self) -> f32 {
        self.rate
    }

    fn begin(&self) -> Option<AnyValue> {
        Some(count_update(&self.steps))
    }

    fn update(
        &self,
        var: &AnyVar,
        value: AnyValue,
        grad: AnyValue,
        rate: AnyValue,
        step: Option<AnyValue>,
    ) -> AnyValue {
        self.with_decay(FirstDecay::Number(self.betas.0), var, value, grad, rate, step)
    }
}

impl Optimizer for AtMomentum<'_, Adam> {
    fn is_lazy(&self) -> bool {
        self.optimizer().is_lazy()
    }

    fn rate(&self) -> f32 {
        self.optimizer().rate()
    }

    fn begin(&self) -> Option<AnyValue> {
        self.optimizer().begin()
    }

    fn update(
        &self,
        var: &AnyVar,
        value: AnyValue,
        grad: AnyValue,
        rate: AnyValue,
        step: Option<AnyValue>,
    ) -> AnyValue {
        let first = FirstDecay::Scalar(self.momentum(value.dtype()));
        self.optimizer().with_decay(first, var, value, grad, rate, step)
    }
}

impl Adam {
    /// Returns the next value of a variable, with this decay rate of the first moment.
    fn with_decay(
        &self,
        decay: FirstDecay,
        var: &AnyVar,
        value: AnyValue,
        grad: AnyValue,
        rate: AnyValue,
        step: Option<AnyValue>,
    ) -> AnyValue {
        let [first, second] = self.slots.of(var, ["adam_m", "adam_v"]);
        let b2 = self.betas.1;
        if self.is_lazy && (self.weight_decay != 0.0 || self.amsgrad) {
            let other = if self.amsgrad { "AMSGrad" } else { "weight decay" };
            let error = Diagnostic::new(format!("lazy Adam with {other}")).at(place(Loc::caller()), "updated here");
            fail(error.help("both change rows without a gradient: leave out `lazy`"));
        }
        let t = step.expect("begin counts the steps").cast(value.dtype());
        let root = bias_correction(b2, t).sqrt();
        let rate_t = rate * root / decay.bias_correction(t);
        // The bias corrections are folded into rate and epsilon, as in section 2 of the paper.
        let epsilon_t = root * self.epsilon;
        let (last_m, last_v) = (read_var(&first), read_var(&second));
        if self.is_lazy {
            let rows = UpdatedRows::of(grad).with_gradient();
            let (g, m, v) = (rows.gradient(), rows.of_table(last_m), rows.of_table(last_v));
            // The mean moves by a part of its distance, as in `SparseAdam`.
            let (to_m, to_v) = (decay.rest_of(g - m), (g * g - v) * (1.0 - b2));
            assign_var(&first, rows.add(last_m, to_m));
            assign_var(&second, rows.add(last_v, to_v));
            return rows.add(value, -(rate_t * (m + to_m) / ((v + to_v).sqrt() + epsilon_t)));
        }
        let m = decay.mix(last_m, grad);
        let mut v = last_v * b2 + grad * grad * (1.0 - b2);
        assign_var(&first, m);
        assign_var(&second, v);
        if self.amsgrad {
            let [largest] = self.slots.of(var, ["adam_v_max"]);
            v = read_var(&largest).maximum(v);
            assign_var(&largest, v);
        }
        let next = value - rate_t * m / (v.sqrt() + epsilon_t);
        if self.weight_decay == 0.0 { next } else { next - rate * value * self.weight_decay }
    }
}

state!(Adam: steps);

/// AdaMax (Kingma and Ba 2015, section 7.1), in the form of PyTorch's `Adamax`: Adam with the
/// largest decayed gradient in place of the root of the second moment.
///
/// `u = max(b2 * u, |g| + epsilon)`, `w -= rate / (1 - b1^t) * m / u`.
#[derive(Debug)]
pub struct AdaMax {
    rate: f32,
    betas: (f64, f64),
    epsilon: f64,
    steps: Var<i64>,
    slots: Slots,
}

impl AdaMax {
    /// Creates the optimizer with PyTorch's constants: 0.9, 0.999, 1e-8. Its rate is 0.002.
    pub fn new(rate: f32) -> AdaMax {
        let steps = Var::untrained("adamax.steps", 0);
        AdaMax { rate, betas: (0.9, 0.999), epsilon: 1e-8, steps, slots: Slots::default() }
    }

    /// Sets the decay rates of the moment and of the largest gradient.
    ///
    /// # Errors
    /// Aborts the trace, or panics outside one, at the caller's line unless both are from 0 to
    /// below 1.
    #[must_use]
    #[track_caller]
    pub fn betas(mut self, first: f64, second: f64) -> AdaMax {
        self.betas = decay_rates(first, second);
        self
    }

    /// Sets the number that is added to the absolute gradient.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> AdaMax {
        self.epsilon = epsilon;
        self
    }

    /// Returns the number of updates so far, like [`Adam::steps`].
    #[track_caller]
    pub fn steps(&self) -> Tensor<i64> {
        self.steps.get()
    }
}

impl Optimizer for AdaMax {
    fn rate(&self) -> f32 {
        self.rate
    }

    fn begin(&self) -> Option<AnyValue> {
        Some(count_update(&self.steps))
    }

    fn update(
        &self,
        var: &AnyVar,
        value: AnyValue,
        grad: AnyValue,
        rate: AnyValue,
        step: Option<AnyValue>,
    ) -> AnyValue {
        let [moment, largest] = self.slots.of(var, ["adamax_m", "adamax_u"]);
        let (b1, b2) = self.betas;
        let m = read_var(&moment) * b1 + grad * (1.0 - b1);
        let u = (read_var(&largest) * b2).maximum(grad.abs() + self.epsilon);
        assign_var(&moment, m);
        assign_var(&largest, u);
        let t = step.expect("begin counts the steps").cast(value.dtype());
        value - rate / bias_correction(b1, t) * m / u
    }
}

state!(AdaMax: steps);

/// Adam with Nesterov momentum (Dozat 2016), in the form of PyTorch's `NAdam`.
///
/// The decay of the first moment grows with the step: `mu_t = b1 * (1 - 0.96^(t * psi) / 2)`. With
/// `d = sqrt(v / (1 - b2^t)) + epsilon` and the product `p_t` of `mu_1` to `mu_t`:
/// `w -= rate * ((1 - mu_t) / (1 - p_t) * g + mu_(t+1) / (1 - p_(t+1)) * m) / d`.
#[derive(Debug)]
pub struct NAdam {
    rate: f32,
    betas: (f64, f64),
    epsilon: f64,
    momentum_decay: f64,
    steps: Var<i64>,
    /// The product of the decay rates of the first moment so far.
    product: Var<f64>,
    slots: Slots,
}

impl NAdam {
    /// Creates the optimizer with PyTorch's constants: 0.9, 0.999, 1e-8, and 0.004 for `psi`. Its
    /// rate is 0.002.
    pub fn new(rate: f32) -> NAdam {
        NAdam {
            rate,
            betas: (0.9, 0.999),
            epsilon: 1e-8,
            momentum_decay: 0.004,
            steps: Var::untrained("nadam.steps", 0),
            product: Var::untrained("nadam.product", 1.0),
            slots: Slots::default(),
        }
    }

    /// Sets the decay rates of the two moments.
    ///
    /// # Errors
    /// Aborts the trace, or panics outside one, at the caller's line unless both are from 0 to
    /// below 1.
    #[must_use]
    #[track_caller]
    pub fn betas(mut self, first: f64, second: f64) -> NAdam {
        self.betas = decay_rates(first, second);
        self
    }

    /// Sets the number that is added to the root of the second moment.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> NAdam {
        self.epsilon = epsilon;
        self
    }

    /// Sets `psi`, which is 1 in Keras: how fast the decay rate of the first moment grows.
    #[must_use]
    pub fn momentum_decay(mut self, psi: f64) -> NAdam {
        self.momentum_decay = psi;
        self
    }

    /// Returns the number of updates so far, like [`Adam::steps`].
    #[track_caller]
    pub fn steps(&self) -> Tensor<i64> {
        self.steps.get()
    }

    /// Returns the decay rate of the first moment in step `t`.
    fn decay_rate(&self, t: AnyValue) -> AnyValue {
        (t * (self.momentum_decay * 0.96f64.ln())).exp() * (-0.5 * self.betas.0) + self.betas.0
    }
}

impl Optimizer for NAdam {
    fn rate(&self) -> f32 {
        self.rate
    }

    fn begin(&self) -> Option<AnyValue> {
        let step = count_update(&self.steps);
        unconstrained(|| {
            let product = read_var(self.product.any());
            assign_var(self.product.any(), product * self.decay_rate(step.cast(DType::F64)));
        });
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
        let [first, second] = self.slots.of(var, ["nadam_m", "nadam_v"]);
        let (b1, b2) = self.betas;
        let m = read_var(&first) * b1 + grad * (1.0 - b1);
        let v = read_var(&second) * b2 + grad * grad * (1.0 - b2);
        assign_var(&first, m);
        assign_var(&second, v);
        let t = step.expect("begin counts the steps").cast(value.dtype());
        let product = unconstrained(|| read_var(self.product.any()).cast(value.dtype()));
        let (mu, mu_next) = (self.decay_rate(t), self.decay_rate(t + 1.0));
        let of_grad = rate * (1.0 - mu) / (1.0 - product);
        let of_moment = rate * mu_next / (1.0 - product * mu_next);
        let denominator = (v / bias_correction(b2, t)).sqrt() + self.epsilon;
        value - (of_grad * grad + of_moment * m) / denominator
    }
}

state!(NAdam: steps, product);
