//! Averages of the weights of a model over its training.

use super::{Slots, count_update, create_state, float_vars, on_device_of, state, unconstrained};
use crate::trace::{assign_var, called_at, fail, note_var_path, read_var, var_path};
use crate::{AnyValue, AnyVar, Diagnostic, Loc, Module, Var};

/// The averages of a model's trained variables, in the form of PyTorch's `AveragedModel`: the first
/// update copies the values.
///
/// The state is a module: a count and, at the path of each variable, `average`. Call
/// [`update`](WeightAverage::update) once after each update of the optimizer, with the same model
/// each time: all variables share the count.
///
/// ```
/// use anabranch::optim::{Optimizer, Sgd, WeightAverage};
/// use anabranch::prelude::*;
///
/// let (w, sgd, average) = (Var::<f32>::new("w", 8.0), Sgd::new(0.5), WeightAverage::equal());
/// let session = Session::new()?;
/// let step = session.function(|| {
///     sgd.minimize(w.get() * w.get() * 0.5, &w); // halves w
///     average.update(&w);
/// })?;
/// let evaluate = session.function(|| average.with_averages(&w, || w.get() + 0.0))?;
/// for _ in 0..3 {
///     step.call(())?;
/// }
/// assert_eq!(evaluate.call(())?, (4.0 + 2.0 + 1.0) / 3.0);
/// assert_eq!(session.get(&w)?, 1.0);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Debug)]
pub struct WeightAverage {
    /// The weight of a new value, or `None` for that of the mean of all values.
    share: Option<f64>,
    count: Var<i64>,
    slots: Slots,
}

impl WeightAverage {
    /// Creates exponential moving averages: `a = decay * a + (1 - decay) * w`. PyTorch's default
    /// decay is 0.999.
    ///
    /// # Errors
    /// Aborts the trace, or panics outside one, at the caller's line unless `decay` is from 0 to 1.
    #[track_caller]
    pub fn exponential(decay: f64) -> WeightAverage {
        if !(0.0..=1.0).contains(&decay) {
            let error =
                Diagnostic::new(format!("the decay of an average is {decay}")).at(Loc::caller(), "created here");
            fail(error.help("use a number from 0 to 1"));
        }
        WeightAverage::with(Some(1.0 - decay))
    }

    /// Creates means of all values (SWA, Izmailov et al. 2018): `a += (w - a) / n` for the `n`-th.
    pub fn equal() -> WeightAverage {
        WeightAverage::with(None)
    }

    fn with(share: Option<f64>) -> WeightAverage {
        WeightAverage { share, count: Var::untrained("average.count", 0), slots: Slots::default() }
    }

    /// Takes the current values of the model's trained variables into the averages.
    #[track_caller]
    pub fn update<M: Module + ?Sized>(&self, model: &M) {
        called_at(Loc::caller(), || {
            let n = count_update(&self.count);
            for_each(model, |var| {
                let [average] = self.slots.of(var, ["average"]);
                let (a, dtype) = (read_var(&average), average.ty().dtype);
                let n = n.cast(dtype);
                let share = match self.share {
                    Some(share) => n.eq(n.number(1.0)).select(n.number(1.0), n.number(share)),
                    None => 1.0 / n,
                };
                assign_var(&average, a + (read_var(var).cast(dtype) - a) * share);
            });
        });
    }

    /// Calls `f` with the averages as values of the model's trained variables, which keep their own
    /// values. What `f` assigns to them is lost. Before the first update, `f` sees their own
    /// values.
    ///
    /// # Errors
    /// Aborts the trace if a variable has no average: the model, or a part of it, was neither
    /// [updated](WeightAverage::update) nor [prepared](WeightAverage::prepare).
    #[track_caller]
    pub fn with_averages<M: Module + ?Sized, R>(&self, model: &M, f: impl FnOnce() -> R) -> R {
        let loc = Loc::caller();
        let mut own = Vec::new();
        called_at(loc, || {
            for_each(model, |var| {
                own.push((var.clone(), read_var(var)));
                assign_var(var, self.average_of(var, loc));
            });
        });
        let result = f();
        called_at(loc, || own.iter().for_each(|(var, value)| assign_var(var, *value)));
        result
    }

    /// Exchanges the averages and the values of the model's trained variables. A second call undoes
    /// it. Before the first update, nothing changes.
    ///
    /// The average of a variable of 16 bits is rounded to its type, and the rounded value is what
    /// the second call stores. Use [`with_averages`](WeightAverage::with_averages) for these.
    ///
    /// # Errors
    /// Aborts the trace if a variable has no average, like
    /// [`with_averages`](WeightAverage::with_averages).
    #[track_caller]
    pub fn swap<M: Module + ?Sized>(&self, model: &M) {
        let loc = Loc::caller();
        called_at(loc, || {
            for_each(model, |var| {
                let average = self.average_of(var, loc);
                let [slot] = self.slots.of(var, ["average"]);
                assign_var(&slot, read_var(var).cast(slot.ty().dtype));
                assign_var(var, average);
            });
        });
    }

    /// Creates the averages for the variables of `model`, before a saved state is loaded.
    ///
    /// # Panics
    /// Panics in a function that is being traced.
    #[track_caller]
    pub fn prepare<M: Module + ?Sized>(&self, model: &M) {
        create_state(model, |_| self.update(model));
    }

    /// Returns the average of a variable, or its value if there is none yet.
    fn average_of(&self, var: &AnyVar, loc: Loc) -> AnyValue {
        if !self.slots.has(var) {
            fail(
                Diagnostic::new(format!("the variable `{}` has no average", var.name()))
                    .at(loc, "its average is read here")
                    .help("call `prepare` with the model first, or trace the function that calls `update`"),
            );
        }
        let [average] = self.slots.of(var, ["average"]);
        let is_first = unconstrained(|| self.count.get().equal(0).untyped());
        is_first.select(read_var(var), read_var(&average).cast(var.ty().dtype))
    }
}

/// Calls `f` for each trained float variable of a model, on its device.
fn for_each<M: Module + ?Sized>(model: &M, mut f: impl FnMut(&AnyVar)) {
    for (path, var) in float_vars(model) {
        // The path in the model whose gradients were taken stays: this may be a part of it.
        if var_path(&var).is_none() {
            note_var_path(&var, path);
        }
        let _scope = on_device_of(&var);
        f(&var);
    }
}

state!(WeightAverage: count);
