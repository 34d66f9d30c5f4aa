//! Optimizers: graph code that gives variables their next values.
//!
//! An [`Optimizer`] says what the next value of one variable is; everything else is shared. Its own state are variables, made
//! when a parameter is first seen, so it lives where they live and is saved like them.

use crate::autodiff::trained_gradients;
use crate::device::{self, Scope};
use crate::trace::{assign_var, called_at, constant, fail, read_var};
use crate::var::Path;
use crate::{Any, AnyVar, Diagnostic, HostTensor, Loc, Module, Operand, Tensor};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// A rule by which variables follow their gradients.
pub trait Optimizer {
    /// The learning rate used by [`minimize`](Optimizer::minimize).
    fn rate(&self) -> f32;

    /// What every call begins with, such as counting steps: its result is given to each [`update`](Optimizer::update).
    fn begin(&self) -> Option<Any> {
        None
    }

    /// The next value of `var`, now `value`, with gradient `grad`; `rate` is a scalar of its element type.
    fn update(&self, var: &AnyVar, value: Any, grad: Any, rate: Any, step: Option<Any>) -> Any;

    /// Makes the state that it keeps for `var`, if there is none yet.
    fn prepare_var(&self, _var: &AnyVar) {}

    /// Makes the state that it keeps for the variables of `model`. Updating them does so as well; loading the state of an
    /// earlier run comes before that.
    fn prepare<M: Module + ?Sized>(&self, model: &M)
    where
        Self: Sized,
    {
        float_vars(model).iter().for_each(|var| self.prepare_var(var));
    }

    /// Differentiates `loss` with respect to the variables of `model` and updates them, as [`model_gradients`] says.
    ///
    /// ```
    /// use anabranch_dsl::optim::{Optimizer, Sgd};
    /// use anabranch_dsl::prelude::*;
    ///
    /// let w = Var::<f32>::new("w", [1.0, 2.0]);
    /// // The index of the largest element has no gradient.
    /// let error = eval(|| Sgd::new(0.1).minimize(w.get().argmax(0).cast::<f32>(), &w)).unwrap_err();
    /// assert!(error.message.contains("`argmax` has no gradient"));
    /// ```
    #[track_caller]
    fn minimize<M: Module + ?Sized>(&self, loss: Tensor, model: &M)
    where
        Self: Sized,
    {
        self.minimize_at(self.rate(), loss, model);
    }

    /// [`minimize`](Optimizer::minimize) with another learning rate, which may be a tensor that a schedule computes.
    #[track_caller]
    fn minimize_at<M: Module + ?Sized>(&self, rate: impl Operand<f32>, loss: Tensor, model: &M)
    where
        Self: Sized,
    {
        self.apply(rate, &model_gradients(loss, model));
    }

    /// Updates variables by gradients that are given.
    #[track_caller]
    fn apply(&self, rate: impl Operand<f32>, gradients: &[(AnyVar, Any)])
    where
        Self: Sized,
    {
        let here = Loc::caller();
        called_at(here, || {
            let rate = rate.into_tensor().untyped();
            if rate.rank() > 0 {
                fail(Diagnostic::new("the learning rate is not a scalar").at(here, rate.ty().to_string()));
            }
            let step = self.begin();
            for (var, grad) in gradients {
                // An update is computed where the variable is.
                let _scope = Scope::enter(var.devices().or(device::scope()));
                let next = self.update(var, read_var(var), *grad, rate.cast(var.ty().dtype), step);
                assign_var(var, next);
            }
        });
    }
}

/// The gradients of a loss with respect to all float variables of a model that are [trained](AnyVar::is_trained). Those of
/// variables on which the loss does not depend are zero, as long as there are others.
///
/// # Errors
/// End the trace: those of [`gradients`](crate::gradients), and if no gradient reaches any of the variables, which would train
/// nothing: the model has none that are trained, the loss does not read them, or what it is computed from has no gradient.
#[track_caller]
pub fn model_gradients<M: Module + ?Sized>(loss: Tensor, model: &M) -> Vec<(AnyVar, Any)> {
    let vars = float_vars(model);
    let gradients = trained_gradients(loss, &vars);
    vars.into_iter().zip(gradients).collect()
}

/// The variables of a model that are trained: those that have gradients, but for those that are to be left alone.
fn float_vars<M: Module + ?Sized>(model: &M) -> Vec<AnyVar> {
    model.vars().into_iter().map(|(_, v)| v).filter(|v| v.is_trained() && v.ty().dtype.is_float()).collect()
}

/// Scales gradients down together so that the root of the sum of all their squares is at most `max` (Pascanu et al. 2013).
#[track_caller]
pub fn clip_global_norm(gradients: &mut [(AnyVar, Any)], max: f32) {
    called_at(Loc::caller(), || {
        // Squares of 16-bit floats may be too large for the type, or too small.
        let wide = |g: Any| if g.dtype().is_half() { g.cast(crate::DType::F32) } else { g };
        let squares = gradients.iter().map(|(_, g)| wide(*g).square().sum_all().cast(crate::DType::F32));
        let Some(total) = squares.reduce(Any::add) else {
            return;
        };
        let max = constant(HostTensor::scalar(max));
        let scale = max.div(total.sqrt().maximum(max));
        for (_, g) in gradients {
            *g = g.mul(scale.cast(g.dtype()));
        }
    });
}

/// Variables that belong to other variables, made on first use.
#[derive(Debug, Default)]
struct Slots(Mutex<HashMap<u64, Vec<AnyVar>>>);

impl Slots {
    /// The slot variables of `var`, zeros of its type at first, and where it is.
    fn of<const N: usize>(&self, var: &AnyVar, names: [&str; N]) -> [AnyVar; N] {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = slots.entry(var.id()).or_insert_with(|| {
            let zeros = HostTensor::zeros(var.ty().dtype, var.init().shape());
            let slot = |name: &&str| AnyVar::new(format!("{}.{name}", var.name()), zeros.clone());
            names.iter().map(|name| slot(name).with_devices(var.devices())).collect()
        });
        std::array::from_fn(|i| slots[i].clone())
    }

    fn visit(&self, path: &mut Path, visit: &mut dyn FnMut(&str, &AnyVar)) {
        let slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = slots.iter().collect();
        all.sort_by_key(|(id, _)| **id);
        for (i, (_, vars)) in all.into_iter().enumerate() {
            for var in vars {
                path.with(&format!("{i}.{}", var.name()), |p| visit(p.as_str(), var));
            }
        }
    }
}

/// Stochastic gradient descent, with momentum if asked for (Sutskever et al. 2013).
#[derive(Debug)]
pub struct Sgd {
    rate: f32,
    momentum: f32,
    nesterov: bool,
    slots: Slots,
}

impl Sgd {
    /// `w -= rate * g`
    pub fn new(rate: f32) -> Sgd {
        Sgd { rate, momentum: 0.0, nesterov: false, slots: Slots::default() }
    }

    /// `v = momentum * v + g`, `w -= rate * v`
    #[must_use]
    pub fn momentum(mut self, momentum: f32) -> Sgd {
        self.momentum = momentum;
        self
    }

    /// Looks ahead: `w -= rate * (g + momentum * v)`.
    #[must_use]
    pub fn nesterov(mut self) -> Sgd {
        self.nesterov = true;
        self
    }

    fn velocity(&self, var: &AnyVar) -> AnyVar {
        let [velocity] = self.slots.of(var, ["velocity"]);
        velocity
    }
}

impl Optimizer for Sgd {
    fn rate(&self) -> f32 {
        self.rate
    }

    fn prepare_var(&self, var: &AnyVar) {
        if self.momentum != 0.0 {
            self.velocity(var);
        }
    }

    fn update(&self, var: &AnyVar, value: Any, grad: Any, rate: Any, _: Option<Any>) -> Any {
        if self.momentum == 0.0 {
            return value - rate * grad;
        }
        let velocity = self.velocity(var);
        let v = read_var(&velocity) * f64::from(self.momentum) + grad;
        assign_var(&velocity, v);
        let direction = if self.nesterov { grad + v * f64::from(self.momentum) } else { v };
        value - rate * direction
    }
}

impl Module for Sgd {
    fn visit(&self, path: &mut Path, visit: &mut dyn FnMut(&str, &AnyVar)) {
        self.slots.visit(path, visit);
    }
}

/// Adam (Kingma and Ba 2015), with decoupled weight decay if asked for (AdamW, Loshchilov and Hutter 2019).
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
    /// Adam with the constants of the paper: 0.9, 0.999, 1e-8.
    pub fn new(rate: f32) -> Adam {
        let steps = AnyVar::new("adam.steps", HostTensor::scalar(0i32));
        Adam { rate, betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.0, steps, slots: Slots::default() }
    }

    /// Decay rates of the two moments.
    #[must_use]
    pub fn betas(mut self, first: f64, second: f64) -> Adam {
        self.betas = (first, second);
        self
    }

    /// What is added to the root of the second moment.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> Adam {
        self.epsilon = epsilon;
        self
    }

    /// Decoupled weight decay: `w -= rate * decay * w`.
    #[must_use]
    pub fn weight_decay(mut self, decay: f64) -> Adam {
        self.weight_decay = decay;
        self
    }

    fn moments(&self, var: &AnyVar) -> [AnyVar; 2] {
        self.slots.of(var, ["adam_m", "adam_v"])
    }
}

impl Optimizer for Adam {
    fn rate(&self) -> f32 {
        self.rate
    }

    fn prepare_var(&self, var: &AnyVar) {
        self.moments(var);
    }

    fn begin(&self) -> Option<Any> {
        let step = read_var(&self.steps).add(constant(HostTensor::scalar(1i32)));
        assign_var(&self.steps, step);
        Some(step)
    }

    fn update(&self, var: &AnyVar, value: Any, grad: Any, rate: Any, step: Option<Any>) -> Any {
        let [first, second] = self.moments(var);
        let (b1, b2) = self.betas;
        let m = read_var(&first) * b1 + grad * (1.0 - b1);
        let v = read_var(&second) * b2 + grad * grad * (1.0 - b2);
        assign_var(&first, m);
        assign_var(&second, v);
        let t = step.expect("begin counts the steps").cast(value.dtype());
        let power = |beta: f64| -((t * beta.ln()).exp_m1());
        let rate_t = rate * power(b2).sqrt() / power(b1);
        // The bias corrections are folded into rate and epsilon, as in section 2 of the paper.
        let epsilon_t = power(b2).sqrt() * self.epsilon;
        let next = value - rate_t * m / (v.sqrt() + epsilon_t);
        if self.weight_decay == 0.0 { next } else { next - rate * value * self.weight_decay }
    }
}

impl Module for Adam {
    fn visit(&self, path: &mut Path, visit: &mut dyn FnMut(&str, &AnyVar)) {
        path.with("steps", |p| visit(p.as_str(), &self.steps));
        self.slots.visit(path, visit);
    }
}
