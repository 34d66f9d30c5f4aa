//! Optimizers, which update variables from their gradients.
//!
//! An [`Optimizer`] defines the next value of one variable; everything else is shared. The state of
//! an optimizer consists of variables that are created when a parameter is first seen, so the state
//! is stored and saved like parameters. A rule of your own keeps it in [`Slots`], as those here do.
//!
//! Where PyTorch has an optimizer, this one of the same name gives its numbers; the documentation
//! of each names the source of its formula and constants. Rates are `f32`.
//!
//! | part of a step | items |
//! |---|---|
//! | gradients | [`model_gradients`], [`Accumulator`] over micro-batches |
//! | their limits | [`clip_value`], [`clip_norm`], [`clip_global_norm`] |
//! | decoupled decay | [`ParamGroups::decay`], [`Adam::weight_decay`], [`Lion::weight_decay`] |
//! | decay in the gradient | [`l2_decay`] |
//! | rate | [`schedule`], [`ParamGroups::scale_rate`] |
//! | momentum that changes | [`Sgd::momentum_at`], [`Adam::momentum_at`] |
//! | update | [`Optimizer::apply`], or all at once [`Optimizer::minimize`] |
//! | after it | [`WeightAverage`] |
//!
//! [`Lbfgs`] is no [`Optimizer`]: it evaluates the loss as often as it needs to.
//!
//! All elements of a variable are updated, also rows of a table that have no gradient in a step.
//! Three rules leave such rows as they are: [`Sgd`] without momentum, [`AdaGrad`] and
//! [`Adam::lazy`]. On a CPU, their cost is in proportion to the rows that a step reads by
//! [`Tensor::take`], unless these are most rows of the table. A limit of the gradient's norm, a
//! decay, or a table of 16 bits makes it proportional to the table.
//!
//! The path of such a variable is that of the parameter in its model followed by the name of the
//! slot: `hidden.weight.adam_m`. So a saved state still fits a model to which layers were added
//! elsewhere. The model is the argument of [`prepare`](Optimizer::prepare) or
//! [`minimize`](Optimizer::minimize), or of [`model_gradients`] in the function that applies the
//! gradients. A parameter that is only known by a gradient has its name in place of a path. When a
//! parameter is dropped, so is its state.
//!
//! Paths do not depend on the order in which an optimizer sees models. A parameter of two models,
//! one inside the other, has its path in the outer model. If several parameters have the same
//! path, for example those of two separate models, all get a number in the order of their creation:
//! `hidden.weight#1.adam_m`, `hidden.weight#2.adam_m`.
//!
//! ```
//! use anabranch::{
//!     nn::{Init, Linear},
//!     optim::{Adam, Optimizer},
//!     prelude::*,
//! };
//!
//! let (init, adam) = (Init::new(0), Adam::new(0.1));
//! let model = [Linear::new(&init, 2, 3)];
//! adam.prepare(&model);
//! let paths: Vec<String> = adam.vars().into_iter().map(|(path, _)| path).collect();
//! assert_eq!(
//!     paths,
//!     ["steps", "0.weight.adam_m", "0.weight.adam_v", "0.bias.adam_m", "0.bias.adam_v"]
//! );
//! drop(model);
//! assert_eq!(adam.vars().len(), 1);
//! ```

mod accumulate;
mod adagrad;
mod adam;
mod average;
mod clip;
mod groups;
mod lbfgs;
mod lion;
mod momentum;
mod rows;
pub mod schedule;
mod sgd;
mod slots;

use crate::derivatives::trained_gradients;
use crate::trace::{DeviceScope, assign_var, called_at, device_scope, fail, note_var_path, read_var, trace};
use crate::{AnyValue, AnyVar, DType, Diagnostic, Float, Loc, Module, Operand, Tensor, Var};
pub use accumulate::Accumulator;
pub use adagrad::{AdaDelta, AdaGrad, RmsProp};
pub use adam::{AdaMax, Adam, NAdam};
pub use average::WeightAverage;
pub use clip::{clip_global_norm, clip_norm, clip_value};
pub use groups::{ParamGroups, l2_decay};
pub use lbfgs::{Lbfgs, LbfgsHistory};
pub use lion::Lion;
pub use momentum::AtMomentum;
pub use sgd::Sgd;
pub use slots::Slots;

/// A rule that updates variables from their gradients.
pub trait Optimizer {
    /// Returns the learning rate used by [`minimize`](Optimizer::minimize).
    fn rate(&self) -> f32;

    /// Starts an update of several variables, for example by counting the step. Each call of
    /// [`update`](Optimizer::update) receives the result.
    fn begin(&self) -> Option<AnyValue> {
        None
    }

    /// Returns whether an update leaves the rows without a gradient as they are, so that the
    /// variables must not decay.
    fn is_lazy(&self) -> bool {
        false
    }

    /// Returns the next value of `var` from its current `value` and its gradient `grad`. `rate` is
    /// a scalar.
    ///
    /// All three have the element type of the variable, but `f32` for floats of 16 bits: the result
    /// is rounded when it is assigned.
    fn update(&self, var: &AnyVar, value: AnyValue, grad: AnyValue, rate: AnyValue, step: Option<AnyValue>)
    -> AnyValue;

    /// Creates the state for the variables of `model`. Updating them does so as well, but loading a
    /// saved state requires it before.
    ///
    /// # Panics
    /// Panics in a function that is being traced.
    #[track_caller]
    fn prepare<M: Module + ?Sized>(&self, model: &M)
    where
        Self: Sized,
    {
        create_state(model, |gradients| self.apply(self.rate(), gradients));
    }

    /// Differentiates `loss` with respect to the variables of `model`, as [`model_gradients`] does,
    /// and updates them.
    ///
    /// ```
    /// use anabranch::optim::{Optimizer, Sgd};
    /// use anabranch::prelude::*;
    ///
    /// let w = Var::<f32>::new("w", [1.0, 2.0]);
    /// // The index of the largest element has no gradient.
    /// let error =
    ///     eval(|| Sgd::new(0.1).minimize(w.get().argmax(0).cast::<f32>(), &w)).unwrap_err();
    /// assert!(error.message.contains("`argmax` has no gradient"));
    /// ```
    #[track_caller]
    fn minimize<T: Float, M: Module + ?Sized>(&self, loss: Tensor<T>, model: &M)
    where
        Self: Sized,
    {
        self.minimize_at(self.rate(), loss, model);
    }

    /// Minimizes like [`minimize`](Optimizer::minimize) with another learning rate, which may be a
    /// tensor that a [`schedule`] computes.
    #[track_caller]
    fn minimize_at<T: Float, M: Module + ?Sized>(&self, rate: impl Operand<f32>, loss: Tensor<T>, model: &M)
    where
        Self: Sized,
    {
        self.apply(rate, &model_gradients(loss, model));
    }

    /// Updates variables by the given gradients.
    #[track_caller]
    fn apply(&self, rate: impl Operand<f32>, gradients: &[(AnyVar, AnyValue)])
    where
        Self: Sized,
    {
        update_all(self, rate, gradients);
    }
}

/// Updates variables by the given gradients, at the line of the caller.
#[track_caller]
fn update_all(optimizer: &impl Optimizer, rate: impl Operand<f32>, gradients: &[(AnyVar, AnyValue)]) {
    let here = Loc::caller();
    called_at(here, || {
        let rate = single("learning rate", rate, here);
        let step = optimizer.begin();
        for (var, grad) in gradients {
            let _scope = on_device_of(var);
            let dtype = var.ty().dtype;
            let wide = |x: AnyValue| x.cast(computed_in(dtype));
            let next = optimizer.update(var, wide(read_var(var)), wide(*grad), wide(rate), step);
            assign_var(var, next.cast(dtype));
        }
    });
}

/// Returns a number of an update, which must have no axes.
fn single(name: &str, number: impl Operand<f32>, here: Loc) -> AnyValue {
    let number = number.into_tensor().untyped();
    if number.rank() > 0 {
        let error = Diagnostic::new(format!("the {name} is not a scalar")).at(here, number.ty().to_string());
        fail(error.help("pass a number, or a tensor without axes"));
    }
    number
}

/// Returns the gradients of a loss with respect to all float variables of a model that are
/// [trained](AnyVar::is_trained). The gradient is zero for variables on which the loss does not
/// depend.
///
/// # Errors
/// Aborts the trace with the errors of [`gradients`](crate::gradients), and if no gradient reaches
/// any variable, so that nothing would be trained: the model has no trained variables, the loss
/// does not read them, or the operations on the path have no gradient.
#[track_caller]
pub fn model_gradients<T: Float, M: Module + ?Sized>(loss: Tensor<T>, model: &M) -> Vec<(AnyVar, AnyValue)> {
    let (paths, vars): (Vec<String>, Vec<AnyVar>) = float_vars(model).into_iter().unzip();
    let gradients = trained_gradients(loss, &vars);
    vars.iter().zip(paths).for_each(|(var, path)| note_var_path(var, path));
    vars.into_iter().zip(gradients).collect()
}

/// Creates state for the variables of a model: calls `update` in a trace that is discarded.
#[track_caller]
fn create_state<M: Module + ?Sized>(model: &M, update: impl FnOnce(&[(AnyVar, AnyValue)])) {
    let loc = Loc::caller();
    let traced = trace("prepare", || {
        let zeros = float_vars(model).into_iter().map(|(path, var)| {
            note_var_path(&var, path);
            let zero = read_var(&var).zeros_like();
            (var, zero)
        });
        called_at(loc, || update(&zeros.collect::<Vec<_>>()));
        Vec::new()
    });
    if let Err(error) = traced {
        fail(error);
    }
}

/// Returns the element type in which variables of a type are updated.
fn computed_in(dtype: DType) -> DType {
    if dtype.is_half() { DType::F32 } else { dtype }
}

/// Implements [`Module`] for an optimizer: its listed fields and its slots are its state.
macro_rules! state {
    ($name:ident $(: $($field:ident),*)?) => {
        impl $crate::Module for $name {
            fn visit(&self, path: &mut $crate::var::VarPath, visit: &mut dyn FnMut(&str, &$crate::AnyVar)) {
                $($(path.with(stringify!($field), |p| self.$field.visit(p, visit));)*)?
                self.slots.visit(path, visit);
            }
        }
    };
}
use state;

/// Enters the device of a variable, where its updates are computed.
fn on_device_of(var: &AnyVar) -> DeviceScope {
    DeviceScope::enter(var.devices().or(device_scope()))
}

/// Runs `f`, which computes on numbers of 64 bits, outside of the device scope: not every device
/// has them.
fn unconstrained<R>(f: impl FnOnce() -> R) -> R {
    let _scope = DeviceScope::enter(None);
    f()
}

/// Counts an update, and returns its number, from 1, as `f32`.
fn count_update(steps: &Var<i64>) -> AnyValue {
    unconstrained(|| {
        let step = steps.get() + 1;
        steps.set(step);
        step.cast::<f32>().untyped()
    })
}

/// Returns `1 - beta^step`, by which Adam and its kin correct a mean that started at zero. It is
/// as accurate in the first step as later, unlike a difference or a product of all steps.
fn bias_correction(beta: f64, step: AnyValue) -> AnyValue {
    -(step * beta.ln()).expm1()
}

/// Returns the trained float variables of a model, with their paths.
fn float_vars<M: Module + ?Sized>(model: &M) -> Vec<(String, AnyVar)> {
    let is_updated = |v: &AnyVar| v.is_trained() && v.ty().dtype.is_float();
    model.vars().into_iter().filter(|(_, v)| is_updated(v)).collect()
}
