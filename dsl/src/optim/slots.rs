//! The state that optimizers have for each variable.

use super::computed_in;
use crate::trace::{is_tracing, var_path};
use crate::var::{DropWatcher, VarPath};
use crate::{AnyVar, HostTensor, Module};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The state of an optimizer: variables that belong to the variables that it updates.
///
/// A slot is created when it is first asked for and dropped with the variable that it belongs to.
/// Its path is that of its owner in the model, followed by the name of the slot.
///
/// ```
/// use anabranch::extend::{assign_var, read_var};
/// use anabranch::optim::Slots;
/// use anabranch::prelude::*;
///
/// let (w, slots) = (Var::<f32>::new("w", [1.0, 2.0]), Slots::default());
/// eval(|| {
///     let [sum] = slots.of(w.any(), ["sum"]);
///     assign_var(&sum, read_var(&sum) + w.get().untyped());
///     Tensor::<f32>::from_any(read_var(&sum))
/// })?;
/// assert_eq!(slots.vars()[0].0, "w.sum");
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Debug, Default)]
pub struct Slots(Arc<SlotTable>);

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
    /// Returns the slots of `var` with these names. They start as zeros of its shape and are on its
    /// device. Their element type is that of `var`, but `f32` for floats of 16 bits, of which sums
    /// and means would soon stop changing.
    ///
    /// The path of `var` is the one in the model whose gradients were taken last in the function
    /// that is being traced, and else the name of `var`.
    pub fn of<const N: usize>(&self, var: &AnyVar, names: [&'static str; N]) -> [AnyVar; N] {
        let path = if is_tracing() { var_path(var) } else { None };
        let mut table = self.0.lock();
        let slots = table.entry(var.id()).or_insert_with(|| {
            let watcher: Weak<dyn DropWatcher> = Arc::<SlotTable>::downgrade(&self.0);
            var.watch(watcher);
            SlotsOfVar { path: var.name().to_owned(), of_model: false, vars: Vec::new() }
        });
        let order = |path: &str| (Reverse(path.split('.').count()), path.to_owned());
        if let Some(path) = path.filter(|path| !slots.of_model || order(path) < order(&slots.path)) {
            (slots.path, slots.of_model) = (path, true);
        }
        names.map(|name| {
            if let Some((_, slot)) = slots.vars.iter().find(|(other, _)| *other == name) {
                return slot.clone();
            }
            let zeros = HostTensor::zeros(computed_in(var.ty().dtype), var.init().shape());
            let slot = AnyVar::untrained(format!("{}.{name}", var.name()), zeros).with_devices(var.devices());
            slots.vars.push((name, slot.clone()));
            slot
        })
    }

    /// Returns whether a variable has slots.
    pub(super) fn has(&self, var: &AnyVar) -> bool {
        self.0.lock().contains_key(&var.id())
    }
}

impl Module for Slots {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::{Adam, Optimizer, Sgd, clip_global_norm, model_gradients};
    use crate::{IntoArray, Tensor, Var, gradients, trace};

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
