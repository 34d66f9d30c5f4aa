//! Optimizers, which update variables from their gradients.
//!
//! An [`Optimizer`] defines the next value of one variable; everything else is shared. The state of
//! an optimizer consists of variables that are created when a parameter is first seen, so the state
//! is stored and saved like parameters.
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

mod adam;
mod clip;
mod sgd;
mod slots;

use crate::derivatives::trained_gradients;
use crate::trace::{DeviceScope, assign_var, called_at, device_scope, fail, note_var_path, read_var};
use crate::{AnyValue, AnyVar, Diagnostic, Loc, Module, Operand, Tensor};
pub use adam::Adam;
pub use clip::clip_global_norm;
pub use sgd::Sgd;

/// A rule that updates variables from their gradients.
pub trait Optimizer {
    /// Returns the learning rate used by [`minimize`](Optimizer::minimize).
    fn rate(&self) -> f32;

    /// Starts an update of several variables, for example by counting the step. Each call of
    /// [`update`](Optimizer::update) receives the result.
    fn begin(&self) -> Option<AnyValue> {
        None
    }

    /// Returns the next value of `var` from its current `value` and its gradient `grad`. `rate` is
    /// a scalar of its element type.
    fn update(&self, var: &AnyVar, value: AnyValue, grad: AnyValue, rate: AnyValue, step: Option<AnyValue>)
    -> AnyValue;

    /// Creates the state for `var`, if there is none yet. `path` is the path of the variable in its
    /// model.
    fn prepare_var(&self, _path: &str, _var: &AnyVar) {}

    /// Creates the state for the variables of `model`. Updating them does so as well, but loading a
    /// saved state requires it before.
    fn prepare<M: Module + ?Sized>(&self, model: &M)
    where
        Self: Sized,
    {
        float_vars(model).iter().for_each(|(path, var)| self.prepare_var(path, var));
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
    fn minimize<M: Module + ?Sized>(&self, loss: Tensor, model: &M)
    where
        Self: Sized,
    {
        self.minimize_at(self.rate(), loss, model);
    }

    /// Minimizes like [`minimize`](Optimizer::minimize) with another learning rate, which may be a
    /// tensor that a schedule computes.
    #[track_caller]
    fn minimize_at<M: Module + ?Sized>(&self, rate: impl Operand<f32>, loss: Tensor, model: &M)
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
        let here = Loc::caller();
        called_at(here, || {
            let rate = rate.into_tensor().untyped();
            if rate.rank() > 0 {
                let error = Diagnostic::new("the learning rate is not a scalar").at(here, rate.ty().to_string());
                fail(error.help("pass a number, or a tensor without axes"));
            }
            let step = self.begin();
            for (var, grad) in gradients {
                // An update is computed on the device of the variable.
                let _scope = DeviceScope::enter(var.devices().or(device_scope()));
                let next = self.update(var, read_var(var), *grad, rate.cast(var.ty().dtype), step);
                assign_var(var, next);
            }
        });
    }
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
pub fn model_gradients<M: Module + ?Sized>(loss: Tensor, model: &M) -> Vec<(AnyVar, AnyValue)> {
    let (paths, vars): (Vec<String>, Vec<AnyVar>) = float_vars(model).into_iter().unzip();
    let gradients = trained_gradients(loss, &vars);
    vars.iter().zip(paths).for_each(|(var, path)| note_var_path(var, path));
    vars.into_iter().zip(gradients).collect()
}

/// Returns the trained float variables of a model, with their paths.
fn float_vars<M: Module + ?Sized>(model: &M) -> Vec<(String, AnyVar)> {
    let is_updated = |v: &AnyVar| v.is_trained() && v.ty().dtype.is_float();
    model.vars().into_iter().filter(|(_, v)| is_updated(v)).collect()
}
