//! Loops over closures.

use crate::staged::{Carry, FlatState, check_one_structure, leaf_sites};
use crate::trace::{self, Site, WhileTrace};
use crate::{AnyValue, Tensor, scalar};

/// Returns the first of the states `init`, `body(init)`, `body(body(init))`, ... for which
/// `condition` is false.
///
/// Runs `while` as a function.
///
/// The state is any [`Carry`]: tensors, tuples, arrays, structs with `#[derive(Carry)]`. The state
/// keeps its element types, shapes and structure. Both closures are called once, during tracing.
/// Tensors from outside that they use are captured. In a function with `#[graph(max_iterations =
/// n)]` the loop ends after `n` iterations.
///
/// # Errors
/// Aborts the trace if the condition has axes or assigns a variable, or if the body returns a state
/// of another type or structure. The message names the leaf.
///
/// ```
/// use anabranch::prelude::*;
///
/// // Squares until a bound; its gradient goes through as many trips as there were.
/// let f = |x: Tensor| {
///     let (y, trips) =
///         while_loop((x, scalar(0)), |(y, _)| y.less(100.0), |(y, n)| (y * y, n + 1));
///     (y, trips, gradients(y, x))
/// };
/// let (y, trips, dx) = eval_with(f, 2.0f32)?;
/// assert_eq!((y.item(), trips.item(), dx.item()), (256.0, 3, 1024.0));
///
/// let error = eval(|| {
///     while_loop((scalar(0), scalar(0)), |(i, _)| i.less(3), |(i, n)| (i + 1, n + tensor([1, 2])))
/// });
/// let message = error.err().unwrap().message;
/// assert_eq!(message, "`state.1` has type i32[] before the loop, but i32[2] after one iteration");
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn while_loop<S: Carry>(init: S, condition: impl FnOnce(S) -> Tensor<bool>, body: impl FnOnce(S) -> S) -> S {
    let int = |x: i64| scalar(x).untyped();
    // The number of iterations so far, if it is bounded.
    let limit = trace::max_iterations();
    let count: Vec<AnyValue> = limit.iter().map(|_| int(0)).collect();
    let condition = |count: &[AnyValue], state| {
        let go_on = condition(state);
        limit.map_or(go_on, |limit| Tensor::from_any(count[0].lt(int(limit)).and(go_on.untyped())))
    };
    let body =
        |_: &mut WhileTrace, count: &[AnyValue], state| (body(state), count.iter().map(|n| n.add(int(1))).collect());
    record(init, &count, condition, body).0
}

/// Records a `while` with additional loop variables, whose initial values are `own`.
///
/// The body returns the next state and the next values of these variables, followed by those of
/// variables that it added to the loop. So does this function for the final values.
#[track_caller]
pub(super) fn record<S: Carry>(
    init: S,
    own: &[AnyValue],
    condition: impl FnOnce(&[AnyValue], S) -> Tensor<bool>,
    body: impl FnOnce(&mut WhileTrace, &[AnyValue], S) -> (S, Vec<AnyValue>),
) -> (S, Vec<AnyValue>) {
    let site = Site::caller("state");
    let init = FlatState::of(&init);
    let n = init.tensors().len();
    let state = |tensors: &[AnyValue]| init.with_tensors(&mut tensors.iter().copied()).rebuild();
    let sites: Vec<Site> = leaf_sites(&init, site).collect();

    let (mut trace, params) = WhileTrace::begin(&[init.tensors(), own].concat(), &sites);
    let go_on = condition(&params[n..], state(&params));
    let params = trace.begin_body(go_on.untyped());
    let (next, mut own_next) = body(&mut trace, &params[n..], state(&params));
    let added = own_next.split_off(own.len());
    let next = FlatState::of(&next);
    check_one_structure(&init, &next, site, ["before the loop", "after one iteration"], "the state of this loop");
    let results = trace.end_with(&[next.tensors(), &own_next].concat(), &added, &sites);
    (state(&results), results[n..].to_vec())
}
