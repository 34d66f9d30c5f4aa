//! Checkpoints as the user writes them.

use crate::Loc;
use crate::ir::CallKind;
use crate::staged::{Carry, State};
use crate::trace::{self, CallTrace};

/// Runs `body`; a gradient keeps nothing of what it computes on the way, but computes it again from what it uses.
///
/// This saves memory where `body` is large and what goes into it is small, for the time of running it twice. The result,
/// and the gradient, are the same as without. What is seen from outside happens once: assertions are not repeated, and
/// variables that `body` assigns are assigned once. Random numbers are the same both times, since they follow from their
/// keys. In the body of a loop it makes the loop save what goes into the checkpoint in each iteration, and nothing that is computed
/// inside. A checkpoint may be in another one.
///
/// It is a technique of Griewank and Walther, "Algorithm 799: revolve", 2000; Chen et al., "Training deep nets with sublinear
/// memory cost", 2016, describe it for models.
///
/// ```
/// use anabranch_dsl::{checkpoint, prelude::*};
///
/// let dx = eval(|| {
///     let x = tensor([1.0f64, 2.0]);
///     let y = checkpoint(|| (x * x).exp());
///     gradients(y.sum(), x)
/// })?;
/// assert_eq!(dx.as_slice(), [2.0 * 1f64.exp(), 4.0 * 4f64.exp()]);
/// # Ok::<(), anabranch_dsl::Diagnostic>(())
/// ```
#[track_caller]
pub fn checkpoint<Y: Carry>(body: impl FnOnce() -> Y) -> Y {
    let (call, _) = trace::called_at(Loc::caller(), || CallTrace::begin(&[]));
    let results = State::of(&body());
    let tensors = call.end(CallKind::Checkpoint, results.tensors());
    results.with_tensors(&mut tensors.into_iter()).rebuild()
}
