//! Checkpoints as the user writes them.

use crate::ir::CallKind;
use crate::staged::{Carry, State};
use crate::trace::{self, CallTrace, Segments, segment_loop};
use crate::{Diagnostic, Loc};

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

/// In the body of a loop: asks that a gradient keep the state of the loop only now and then, and run what is between again.
///
/// The loop runs in segments of 1, 2, 3, .. iterations. A gradient saves the loop variables once for each segment, and then what it
/// needs of one segment at a time: of n iterations at most sqrt(2n) + 1 states and what sqrt(2n) + 1 iterations save, where it
/// saved what n iterations save without; the body runs twice. The number of iterations need not be known. Values, gradients and
/// effects are those of the plain loop. This may stand anywhere in the body; it holds for the innermost loop around it whose
/// condition is a tensor.
///
/// Two levels of checkpoints are the first step of Griewank, "Achieving logarithmic growth of temporal and spatial complexity in
/// reverse automatic differentiation", 1992; that segments grow keeps the bound where n is not known.
///
/// # Errors
/// End the trace if there is no such loop.
///
/// ```
/// use anabranch_dsl::{checkpoint_loop, prelude::*};
///
/// let dx = eval(|| {
///     let x = scalar(2.0f64);
///     // In a function with `#[graph]`: while y < 100.0 { checkpoint_loop(); y *= y; }
///     let body = |y: Tensor<f64>| {
///         checkpoint_loop();
///         y * y
///     };
///     let y = while_loop(x, |y| y.less(100.0), body);
///     gradients(y, x)
/// })?;
/// assert_eq!(dx, 1024.0);
/// # Ok::<(), anabranch_dsl::Diagnostic>(())
/// ```
#[track_caller]
pub fn checkpoint_loop() {
    segment_loop(Segments::Growing, Loc::caller());
}

/// Like [`checkpoint_loop`], with segments of `length` iterations each: for a loop of n iterations, sqrt(n) needs least memory.
///
/// # Errors
/// End the trace if there is no such loop, or if `length` is 0 or too large for an `i32`.
#[track_caller]
pub fn checkpoint_loop_every(length: usize) {
    let loc = Loc::caller();
    match i32::try_from(length) {
        Ok(length) if length > 0 => segment_loop(Segments::Of(length), loc),
        _ => trace::fail(
            Diagnostic::new(format!("a loop cannot run in segments of {length} iterations"))
                .at(loc, "this length")
                .help("give a number between 1 and 2147483647, about the square root of the number of iterations"),
        ),
    }
}
