//! Groups of variables with rates and decays of their own, and weight decay in the gradient.

use super::{Optimizer, update_all};
use crate::trace::{called_at, fail, place, read_var, var_path};
use crate::var::VarPath;
use crate::{AnyValue, AnyVar, Diagnostic, Loc, Module, Operand};
use std::fmt;

/// An optimizer with another rate or weight decay for some variables: the parameter groups of
/// PyTorch.
///
/// A group is a predicate on the path of a variable in its model and on the variable. Of several
/// groups with a variable the last one counts. The state is that of the optimizer inside.
///
/// The weight decay is decoupled, `w -= rate * decay * w` before the step of the optimizer, with
/// the rate of the group. So each optimizer can have it, and Adam becomes AdamW.
///
/// ```
/// use anabranch::nn::{Init, Linear};
/// use anabranch::optim::{Adam, Optimizer, ParamGroups};
/// use anabranch::prelude::*;
///
/// let (init, adam) = (Init::new(0), Adam::new(1e-3));
/// let model = [Linear::new(&init, 2, 8), Linear::new(&init, 8, 1)];
/// let optimizer = ParamGroups::new(adam)
///     .decay(|_, var| var.ty().rank() > 1, 0.01) // weights, but no biases
///     .scale_rate(|path, _| path.starts_with("0."), 0.1);
/// let session = Session::new()?;
/// let step = session.function(|x: Tensor| {
///     let loss = model[1].forward(model[0].forward(x).tanh()).square().mean();
///     optimizer.minimize(loss, &model);
///     loss
/// })?;
/// let first = step.call([[1.0, 2.0]])?.item();
/// assert!(step.call([[1.0, 2.0]])?.item() < first);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub struct ParamGroups<O> {
    optimizer: O,
    rates: Vec<ParamGroup>,
    decays: Vec<ParamGroup>,
}

/// A predicate on variables and their paths.
type Selection = Box<dyn Fn(&str, &AnyVar) -> bool + Send + Sync>;

/// A set of variables with a number.
struct ParamGroup {
    contains: Selection,
    number: f64,
    loc: Loc,
}

impl<O: Optimizer> ParamGroups<O> {
    /// Creates an optimizer without groups, which does as `optimizer` does.
    pub fn new(optimizer: O) -> ParamGroups<O> {
        ParamGroups { optimizer, rates: Vec::new(), decays: Vec::new() }
    }

    /// Multiplies the rate of the variables in a group by `factor`.
    #[must_use]
    #[track_caller]
    pub fn scale_rate(
        mut self,
        group: impl Fn(&str, &AnyVar) -> bool + Send + Sync + 'static,
        factor: f64,
    ) -> ParamGroups<O> {
        self.rates.push(ParamGroup { contains: Box::new(group), number: factor, loc: Loc::caller() });
        self
    }

    /// Sets the decoupled weight decay of the variables in a group. A lazy optimizer must not have
    /// any.
    #[must_use]
    #[track_caller]
    pub fn decay(
        mut self,
        group: impl Fn(&str, &AnyVar) -> bool + Send + Sync + 'static,
        decay: f64,
    ) -> ParamGroups<O> {
        self.decays.push(ParamGroup { contains: Box::new(group), number: decay, loc: Loc::caller() });
        self
    }

    /// Returns the optimizer inside.
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }
}

/// Returns the path of a variable, as groups see it.
fn path_of(var: &AnyVar) -> String {
    var_path(var).unwrap_or_else(|| var.name().to_owned())
}

/// Returns the last group with a variable.
fn group_of<'g>(groups: &'g [ParamGroup], var: &AnyVar) -> Option<&'g ParamGroup> {
    let path = path_of(var);
    groups.iter().rev().find(|group| (group.contains)(&path, var))
}

impl<O: Optimizer> Optimizer for ParamGroups<O> {
    fn rate(&self) -> f32 {
        self.optimizer.rate()
    }

    fn begin(&self) -> Option<AnyValue> {
        self.optimizer.begin()
    }

    fn is_lazy(&self) -> bool {
        self.optimizer.is_lazy()
    }

    fn update(
        &self,
        var: &AnyVar,
        mut value: AnyValue,
        grad: AnyValue,
        mut rate: AnyValue,
        step: Option<AnyValue>,
    ) -> AnyValue {
        if let Some(group) = group_of(&self.rates, var) {
            rate = rate * group.number;
        }
        if let Some(group) = group_of(&self.decays, var).filter(|group| group.number != 0.0) {
            if self.is_lazy() {
                let error = Diagnostic::new("a lazy optimizer with weight decay in a parameter group");
                let error = error.at(group.loc, "this group").at(place(Loc::caller()), "updated here");
                fail(error.help("decay changes rows without a gradient: leave out `lazy`, or this variable"));
            }
            value = value - rate * value * group.number;
        }
        self.optimizer.update(var, value, grad, rate, step)
    }

    /// Updates variables by the given gradients.
    ///
    /// # Errors
    /// Aborts the trace if a group has none of the variables: its predicate is wrong, or is for
    /// another model.
    #[track_caller]
    fn apply(&self, rate: impl Operand<f32>, gradients: &[(AnyVar, AnyValue)]) {
        for group in self.rates.iter().chain(&self.decays) {
            if !gradients.iter().any(|(var, _)| (group.contains)(&path_of(var), var)) {
                let paths: Vec<String> = gradients.iter().map(|(var, _)| path_of(var)).collect();
                fail(
                    Diagnostic::new("a parameter group has none of the variables that are updated")
                        .at(group.loc, "this group")
                        .at(place(Loc::caller()), format!("updates {}", paths.join(", ")))
                        .help("a group is chosen by the path of a variable in the model, and by the variable"),
                );
            }
        }
        update_all(self, rate, gradients);
    }
}

impl<O: Module> Module for ParamGroups<O> {
    fn visit(&self, path: &mut VarPath, visit: &mut dyn FnMut(&str, &AnyVar)) {
        self.optimizer.visit(path, visit);
    }
}

impl<O: fmt::Debug> fmt::Debug for ParamGroups<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = |groups: &[ParamGroup]| groups.iter().map(|group| group.number).collect::<Vec<_>>();
        f.debug_struct("ParamGroups")
            .field("optimizer", &self.optimizer)
            .field("rates", &numbers(&self.rates))
            .field("decays", &numbers(&self.decays))
            .finish()
    }
}

/// Adds `decay * w` to the gradient of each variable, the gradient of a penalty of
/// `decay / 2 * w * w`. This is the `weight_decay` of PyTorch's optimizers, except `AdamW`.
///
/// ```
/// use anabranch::optim::{l2_decay, model_gradients};
/// use anabranch::prelude::*;
///
/// let w = Var::<f32>::new("w", [3.0, -0.5]);
/// let decayed = eval(|| {
///     let mut gradients = model_gradients(w.get().sum(), &w);
///     l2_decay(&mut gradients, 0.5);
///     Tensor::<f32>::from_any(gradients[0].1)
/// })?;
/// assert_eq!(decayed.as_slice(), [2.5, 0.75]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn l2_decay(gradients: &mut [(AnyVar, AnyValue)], decay: f64) {
    called_at(Loc::caller(), || {
        for (var, g) in gradients {
            *g = *g + read_var(var) * decay;
        }
    });
}
