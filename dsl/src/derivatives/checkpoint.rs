//! The user interface of gradient checkpoints.

use crate::ir::CallKind;
use crate::staged::{Carry, FlatState};
use crate::trace::{self, CallTrace, Segments, segment_loop};
use crate::{Diagnostic, Loc};

/// Runs `body` as a gradient checkpoint: a gradient saves no intermediate values of it, but
/// recomputes them.
///
/// A checkpoint saves memory if `body` is large and its inputs are small, at the cost of running it
/// twice. The result and the gradient are the same as without a checkpoint. Observable effects
/// happen once: assertions are not repeated, and variables that `body` assigns are assigned once.
/// Random numbers are the same both times, since they depend on their keys. In the body of a loop,
/// each iteration saves only the inputs of the checkpoint. Checkpoints can be nested.
///
/// The technique is due to Griewank and Walther, "Algorithm 799: revolve", 2000. Chen et al.,
/// "Training deep nets with sublinear memory cost", 2016, describe it for models.
///
/// ```
/// use anabranch::{checkpoint, prelude::*};
///
/// let dx = eval(|| {
///     let x = tensor([1.0f64, 2.0]);
///     let y = checkpoint(|| (x * x).exp());
///     gradients(y.sum(), x)
/// })?;
/// let exact = [2.0 * 1f64.exp(), 4.0 * 4f64.exp()];
/// assert!(dx.as_slice().iter().zip(exact).all(|(x, exact)| (x - exact).abs() < 1e-12 * exact));
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn checkpoint<Y: Carry>(body: impl FnOnce() -> Y) -> Y {
    let (call, _) = trace::called_at(Loc::caller(), || CallTrace::begin(&[]));
    let results = FlatState::of(&body());
    let tensors = call.end(CallKind::Checkpoint, results.tensors());
    results.with_tensors(&mut tensors.into_iter()).rebuild()
}

/// Makes a gradient of the enclosing loop save its state only once per segment, and recompute the
/// iterations in between.
///
/// The loop runs in segments of 1, 2, 3, ... iterations. A gradient saves the loop variables once
/// for each segment, and the values it needs of only one segment at a time. For n iterations it
/// saves at most sqrt(2n) + 1 states plus the values of sqrt(2n) + 1 iterations, instead of the
/// values of n iterations. The body runs twice. The number of iterations need not be known. Values,
/// gradients and effects are those of the plain loop. The call may be anywhere in the body. A
/// checkpoint applies to the innermost enclosing loop whose condition is a tensor.
///
/// The two levels of checkpoints are the first step of Griewank, "Achieving logarithmic growth of
/// temporal and spatial complexity in reverse automatic differentiation", 1992. Growing segments
/// keep the bound if n is unknown.
///
/// # Errors
/// Aborts the trace if there is no such loop.
///
/// ```
/// use anabranch::{checkpoint_loop, prelude::*};
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
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn checkpoint_loop() {
    segment_loop(Segments::Growing, Loc::caller());
}

/// Makes a gradient save the loop's state every `length` iterations, like [`checkpoint_loop`].
///
/// For a loop of n iterations, a length of sqrt(n) needs the least memory.
///
/// # Errors
/// Aborts the trace if there is no such loop, or if `length` is 0 or too large for an `i32`.
#[track_caller]
pub fn checkpoint_loop_every(length: usize) {
    let loc = Loc::caller();
    match i32::try_from(length) {
        Ok(length) if length > 0 => segment_loop(Segments::Of(length), loc),
        _ => trace::fail(
            Diagnostic::new(format!("a loop cannot run in segments of {length} iterations"))
                .at(loc, "this length")
                .help("use a number between 1 and 2147483647, about the square root of the number of iterations"),
        ),
    }
}
