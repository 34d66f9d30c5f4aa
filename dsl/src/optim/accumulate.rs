//! Gradients accumulated over micro-batches.

use super::{Slots, create_state, on_device_of, state, unconstrained};
use crate::control::cond;
use crate::trace::{assign_var, called_at, fail, read_var};
use crate::{AnyValue, AnyVar, Diagnostic, Loc, Module, Operand, Var};

/// Sums of gradients over several micro-batches, for one update by their mean.
///
/// Each micro-batch counts by the number of its examples (or tokens), so the mean is that of one
/// large batch even if the micro-batches differ in size. The sums, their weight and the number of
/// micro-batches are variables, so a run can be resumed between two updates.
///
/// ```
/// use anabranch::optim::{Accumulator, Adam, Optimizer, clip_global_norm, model_gradients};
/// use anabranch::prelude::*;
///
/// let (w, adam, sums) = (Var::<f32>::new("w", 1.0), Adam::new(0.1), Accumulator::new(4));
/// let session = Session::new()?;
/// let micro_step = session.function(|x: Tensor| {
///     let loss = (x * w.get()).square().mean();
///     let examples = x.dim(0) as f32;
///     sums.add(examples, &model_gradients(loss, &w), |gradients| {
///         clip_global_norm(gradients, 1.0);
///         adam.apply(adam.rate(), gradients);
///     });
///     adam.steps()
/// })?;
/// for i in 0..8 {
///     let updates = micro_step.call([1.0, 2.0])?.item();
///     assert_eq!(updates, (i + 1) / 4);
/// }
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Debug)]
pub struct Accumulator {
    every: i64,
    /// The number of micro-batches in the sums.
    batches: Var<i64>,
    /// The number of examples in the sums.
    examples: Var<f32>,
    slots: Slots,
}

impl Accumulator {
    /// Creates sums over `every` micro-batches.
    ///
    /// # Errors
    /// Aborts the trace, or panics outside one, at the caller's line if `every` is 0.
    #[track_caller]
    pub fn new(every: usize) -> Accumulator {
        if every == 0 {
            let error = Diagnostic::new("an accumulation over 0 micro-batches").at(Loc::caller(), "created here");
            fail(error.help("use at least 1"));
        }
        Accumulator {
            every: every as i64,
            batches: Var::untrained("accumulator.batches", 0),
            examples: Var::untrained("accumulator.examples", 0.0),
            slots: Slots::default(),
        }
    }

    /// Adds the gradients of the mean loss of a micro-batch with `examples` examples. If it is the
    /// last one of an update, runs `update` with the means over all examples, and starts again
    /// from zero.
    ///
    /// `update` is called once, while tracing. It becomes a branch that runs only then, so the
    /// steps that an optimizer, a schedule or an average counts in it are updates. If no
    /// micro-batch has examples, the means are zero. The gradients of a micro-batch without
    /// examples do not count, also if they are NaN.
    #[track_caller]
    pub fn add(
        &self,
        examples: impl Operand<f32>,
        gradients: &[(AnyVar, AnyValue)],
        update: impl FnOnce(&mut [(AnyVar, AnyValue)]),
    ) {
        let loc = Loc::caller();
        let added = examples.into_tensor();
        let total = called_at(loc, || self.examples.get() + added);
        let (batches, is_last) = unconstrained(|| {
            called_at(loc, || {
                let batches = self.batches.get() + 1;
                (batches, batches.greater_equal(self.every))
            })
        });
        let sums: Vec<(AnyVar, AnyValue)> = called_at(loc, || {
            let sum = |(var, grad): &(AnyVar, AnyValue)| {
                let _scope = on_device_of(var);
                let [slot] = self.slots.of(var, ["gradient_sum"]);
                let dtype = slot.ty().dtype;
                let weighted = grad.cast(dtype) * added.untyped().cast(dtype);
                let weighted = added.equal(0.0).untyped().select(weighted.number(0.0), weighted);
                let sum = read_var(&slot) + weighted;
                (slot, sum)
            };
            gradients.iter().map(sum).collect()
        });
        let on_last = || {
            let mut means: Vec<(AnyVar, AnyValue)> = called_at(loc, || {
                let divisor = total.equal(0.0).select(1.0, total).untyped();
                let mean = |((var, _), (slot, sum)): (&(AnyVar, AnyValue), &(AnyVar, AnyValue))| {
                    let _scope = on_device_of(var);
                    (var.clone(), (*sum / divisor.cast(slot.ty().dtype)).cast(var.ty().dtype))
                };
                gradients.iter().zip(&sums).map(mean).collect()
            });
            update(&mut means);
            called_at(loc, || {
                for (slot, sum) in &sums {
                    let _scope = on_device_of(slot);
                    assign_var(slot, sum.zeros_like());
                }
                self.examples.set(crate::scalar(0.0));
                self.batches.set(crate::scalar(0));
            });
        };
        let on_others = || {
            called_at(loc, || {
                sums.iter().for_each(|(slot, sum)| assign_var(slot, *sum));
                self.examples.set(total);
                self.batches.set(batches);
            });
        };
        cond(is_last, on_last, on_others);
    }

    /// Creates the sums for the variables of `model`, before a saved state is loaded.
    ///
    /// # Panics
    /// Panics in a function that is being traced.
    #[track_caller]
    pub fn prepare<M: Module + ?Sized>(&self, model: &M) {
        create_state(model, |gradients| self.add(1.0, gradients, |_| {}));
    }
}

state!(Accumulator: batches, examples);
