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

use crate::derivatives::trained_gradients;
use crate::trace::{
    DeviceScope, assign_var, called_at, constant, device_scope, fail, note_var_path, read_var, var_path,
};
use crate::var::{DropWatcher, VarPath};
use crate::{AnyValue, AnyVar, Diagnostic, HostTensor, Loc, Module, Operand, Tensor};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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

/// Scales all gradients by one factor so that the root of the sum of all their squares is at most
/// `max` (Pascanu et al. 2013).
#[track_caller]
pub fn clip_global_norm(gradients: &mut [(AnyVar, AnyValue)], max: f32) {
    called_at(Loc::caller(), || {
        // Squares of 16-bit floats may overflow or underflow.
        let wide = |g: AnyValue| if g.dtype().is_half() { g.cast(crate::DType::F32) } else { g };
        let squares = gradients.iter().map(|(_, g)| wide(*g).square().sum().cast(crate::DType::F32));
        let Some(total) = squares.reduce(AnyValue::add) else {
            return;
        };
        let max = constant(HostTensor::scalar(max));
        let scale = max.div(total.sqrt().maximum(max));
        for (_, g) in gradients {
            *g = g.mul(scale.cast(g.dtype()));
        }
    });
}

/// Variables that belong to other variables. Such variables are created on first use and dropped
/// with their owners.
#[derive(Debug, Default)]
struct Slots(Arc<SlotTable>);

/// The slots of each variable, by its identity.
#[derive(Debug, Default)]
struct SlotTable(Mutex<BTreeMap<u64, SlotsOfVar>>);

#[derive(Debug)]
struct SlotsOfVar {
    /// The path of the variable in the outermost model that was seen, or else its name. Other
    /// variables may have the same path.
    path: String,
    /// Whether the path is from a model, and is not the name.
    of_model: bool,
    vars: Vec<(&'static str, AnyVar)>,
}

impl SlotTable {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, SlotsOfVar>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DropWatcher for SlotTable {
    fn dropped(&self, id: u64) {
        // Others may watch the slots' variables, so these are dropped after the table is unlocked.
        let slots = self.lock().remove(&id);
        drop(slots);
    }
}

impl Slots {
    /// Returns the slot variables of `var`, which start as zeros of its type and are on its device.
    /// `path` is the path of `var` in its model, if known.
    fn of<const N: usize>(&self, var: &AnyVar, path: Option<&str>, names: [&'static str; N]) -> [AnyVar; N] {
        let mut table = self.0.lock();
        // The path of a model that is one variable is empty.
        let path = path.filter(|path| !path.is_empty());
        let is_outer = |slots: &SlotsOfVar, path: &str| {
            let key = |path: &str| (std::cmp::Reverse(path.split('.').count()), path.to_owned());
            !slots.of_model || key(path) < key(&slots.path)
        };
        if table.get(&var.id()).is_none_or(|slots| path.is_some_and(|path| is_outer(slots, path))) {
            let slots = table.entry(var.id()).or_insert_with(|| {
                let watcher: Weak<dyn DropWatcher> = Arc::<SlotTable>::downgrade(&self.0);
                var.watch(watcher);
                let zeros = HostTensor::zeros(var.ty().dtype, var.init().shape());
                let slot = |&name: &&'static str| {
                    let slot = AnyVar::new(format!("{}.{name}", var.name()), zeros.clone());
                    (name, slot.with_devices(var.devices()))
                };
                SlotsOfVar { path: String::new(), of_model: false, vars: names.iter().map(slot).collect() }
            });
            (slots.path, slots.of_model) = (path.unwrap_or(var.name()).to_owned(), path.is_some());
        }
        let slots = &table[&var.id()].vars;
        std::array::from_fn(|i| slots[i].1.clone())
    }

    fn visit(&self, path: &mut VarPath, visit: &mut dyn FnMut(&str, &AnyVar)) {
        // The visitor may create slots, so the table must be unlocked.
        let all: Vec<(String, AnyVar)> = {
            let table = self.0.lock();
            let mut ids_of: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
            // Variables are created in the order of their identities.
            table.iter().for_each(|(&id, slots)| ids_of.entry(&slots.path).or_default().push(id));
            let unique = |id: u64, path: &str| match &ids_of[path][..] {
                [_] => path.to_owned(),
                ids => {
                    format!("{path}#{}", 1 + ids.iter().position(|&other| other == id).expect("the variable is listed"))
                }
            };
            let paths = table.iter().map(|(&id, slots)| (unique(id, &slots.path), slots));
            paths
                .flat_map(|(path, of)| of.vars.iter().map(move |(name, var)| (format!("{path}.{name}"), var.clone())))
                .collect()
        };
        for (name, var) in &all {
            path.with(name, |p| visit(p.as_str(), var));
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IntoArray, Var, gradients, trace};

    fn paths(optimizer: &impl Module) -> Vec<String> {
        optimizer.vars().into_iter().map(|(path, _)| path).collect()
    }

    /// A module with variables at these paths.
    struct Model(Vec<(&'static str, Var<f32>)>);

    impl Model {
        fn new(paths: &[&'static str]) -> Model {
            Model(paths.iter().map(|&path| (path, Var::new("w", 1.0))).collect())
        }

        fn loss(&self) -> Tensor {
            self.0.iter().map(|(_, w)| w.get() * w.get()).reduce(|a, b| a + b).expect("there are variables")
        }
    }

    impl Module for Model {
        fn visit(&self, path: &mut VarPath, visit: &mut dyn FnMut(&str, &AnyVar)) {
            self.0.iter().for_each(|(name, var)| path.with(name, |p| visit(p.as_str(), var.any())));
        }
    }

    fn step(f: impl Fn()) {
        trace::trace("step", || {
            f();
            Vec::new()
        })
        .unwrap_or_else(|e| panic!("{e}"));
    }

    #[test]
    fn slots_have_the_paths_of_their_variables() {
        let (before, after) = (Model::new(&["a.w", "b.w"]), Model::new(&["a.w", "new.w", "b.w"]));
        for model in [&before, &after] {
            let (sgd, applied, prepared) = [(); 3].map(|()| Sgd::new(0.1).momentum(0.9)).into();
            step(|| sgd.minimize(model.loss(), model));
            step(|| {
                let mut gradients = model_gradients(model.loss(), model);
                clip_global_norm(&mut gradients, 1.0);
                applied.apply(0.1, &gradients);
            });
            prepared.prepare(model);
            let expected: Vec<String> = model.0.iter().map(|(path, _)| format!("{path}.velocity")).collect();
            assert_eq!([paths(&sgd), paths(&applied), paths(&prepared)], [(); 3].map(|()| expected.clone()));
        }
    }

    #[test]
    fn a_model_gives_its_paths_to_slots_that_had_only_names() {
        let (model, sgd) = (Model::new(&["hidden.w"]), Sgd::new(0.1).momentum(0.9));
        step(|| {
            let w = &model.0[0].1;
            let gradient = gradients(model.loss(), w.get());
            sgd.apply(0.1, &[(w.any().clone(), gradient.untyped())]);
        });
        assert_eq!(paths(&sgd), ["w.velocity"]);
        let slot = sgd.vars()[0].1.id();
        sgd.prepare(&model);
        assert_eq!((paths(&sgd), sgd.vars()[0].1.id()), (vec!["hidden.w.velocity".to_owned()], slot));
        // The path in the outer model is used, whichever model comes first.
        sgd.prepare(&[&model]);
        assert_eq!(paths(&sgd), ["0.hidden.w.velocity"]);
        sgd.prepare(&model);
        assert_eq!(paths(&sgd), ["0.hidden.w.velocity"]);
    }

    #[test]
    fn equal_paths_of_two_models_get_numbers() {
        let (one, two, sgd) = (Model::new(&["w", "w_2"]), Model::new(&["w"]), Sgd::new(0.1).momentum(0.9));
        sgd.prepare(&one);
        sgd.prepare(&two);
        let expected = ["w#1.velocity", "w_2.velocity", "w#2.velocity"];
        assert_eq!(paths(&sgd), expected);
        // With the models in reverse order, too, the state of each model is kept apart.
        let reversed = Sgd::new(0.1).momentum(0.9);
        reversed.prepare(&two);
        reversed.prepare(&one);
        assert_eq!(paths(&reversed), expected);
        let bare = Var::<f32>::new("bare", [1.0].into_array());
        sgd.prepare(&bare);
        assert_eq!(paths(&sgd), [&expected[..], &["bare.velocity"]].concat());
        drop(one);
        let three = Model::new(&["w"]);
        sgd.prepare(&three);
        assert_eq!(paths(&sgd), ["w#1.velocity", "bare.velocity", "w#2.velocity"]);
    }

    #[test]
    fn slots_of_dropped_variables_are_dropped() {
        struct Count(Mutex<Vec<u64>>);
        impl DropWatcher for Count {
            fn dropped(&self, id: u64) {
                self.0.lock().unwrap().push(id);
            }
        }
        let (model, adam) = (Model::new(&["a", "b"]), Adam::new(0.1));
        adam.prepare(&model);
        let count = Arc::new(Count(Mutex::default()));
        let slots = adam.vars();
        for (_, slot) in &slots[1..] {
            let watcher: Weak<dyn DropWatcher> = Arc::<Count>::downgrade(&count);
            slot.watch(watcher);
        }
        let mut ids: Vec<u64> = slots[1..].iter().map(|(_, slot)| slot.id()).collect();
        drop(slots);
        drop(model);
        assert_eq!(paths(&adam), ["steps"]);
        let mut dropped = count.0.lock().unwrap().clone();
        dropped.sort_unstable();
        ids.sort_unstable();
        assert_eq!(dropped, ids);
    }
}
