//! A closure takes a state through the rows of tensors.

use super::while_loop::record;
use crate::staged::{Carry, State};
use crate::{Any, Diagnostic, Dim, Loc, Tensor, scalar, trace};

/// The order in which rows are visited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// From the first to the last.
    Forward,
    /// From the last to the first.
    Reverse,
}

/// Tensors with equally many rows.
struct Rows {
    state: State,
    n: usize,
}

impl Rows {
    /// The rows of all tensors in a value.
    #[track_caller]
    fn of(value: &impl Carry, function: &str) -> Rows {
        let loc = Loc::caller();
        let state = State::of(value);
        let mut first: Option<(usize, String)> = None;
        for (tensor, path) in state.tensors().iter().zip(state.paths()) {
            let (ty, leaf) = (tensor.ty(), format!("`rows{path}`"));
            let Some(extent) = tensor.shape().dims().first().cloned() else {
                let message = format!("`{function}` goes over rows, but {leaf} is {ty} and has none");
                trace::fail(
                    Diagnostic::new(message).at(loc, "here").help("capture it: closures see tensors from outside"),
                );
            };
            let Dim::Known(extent) = extent else {
                let message = format!("`{function}` goes over rows, but how many {leaf} has is not known");
                trace::fail(Diagnostic::new(message).at(loc, ty.to_string()));
            };
            match &first {
                None => first = Some((extent, leaf)),
                Some((n, of)) if *n != extent => {
                    let message = format!("`{function}`: {of} has {n} rows, but {leaf} has {extent}");
                    trace::fail(Diagnostic::new(message).at(loc, ty.to_string()).help("give all equally many rows"));
                }
                Some(_) => {}
            }
        }
        let Some((n, _)) = first else {
            let error = Diagnostic::new(format!("`{function}` goes over rows, but there is no tensor to give them"));
            trace::fail(error.at(loc, "here").help("go over `iota::<i32>(n)` for n iterations"));
        };
        Rows { state, n }
    }

    /// The rows at an index.
    #[track_caller]
    fn at<X: Carry>(&self, i: Tensor<i32>) -> X {
        let rows: Vec<Any> = self.state.tensors().iter().map(|x| crate::ScalarIndex::choose(i, *x, 0)).collect();
        self.state.with_tensors(&mut rows.into_iter()).rebuild()
    }
}

/// `f(.. f(f(init, x0), x1) .., xn)`: a state that goes through the rows of a tensor from the first to the last.
///
/// `over` is a tensor, or a tuple, an array or a struct of tensors with the same first extent; `f` gets the state and, in the
/// same structure, what is at one index of their first axes. Without rows, the result is `init`, and `f` is not called.
///
/// # Errors
/// End the trace: a tensor without dimensions in `over`; first extents that differ: the message names the tensors; a state that
/// `f` gives another type or structure.
///
/// ```
/// use anabranch_dsl::prelude::*;
///
/// let f = |xs: Tensor| fold_left(scalar(0.0), xs, |a, x| (a + x) * 2.0);
/// assert_eq!(eval_with(f, [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?, 240.0);
///
/// // Horner's rule, for two polynomials at different points.
/// let value = |c: Tensor, x: Tensor| fold_left(zeros([2]), c, |y, c| y * x + c);
/// let (c, x) = ([[1.0f32, 1.0], [0.0, 0.0], [-1.0, 2.0]], [3.0f32, 10.0]);
/// assert_eq!(eval_with(value, (c, x))?.as_slice(), [8.0, 102.0]);
///
/// let error = eval(|| fold_left(scalar(0), (zeros([3]), zeros([2])), |a, (x, y)| a + x + y)).unwrap_err();
/// assert_eq!(error.message, "`fold_left`: `rows.0` has 3 rows, but `rows.1` has 2");
/// # Ok::<(), anabranch_dsl::Diagnostic>(())
/// ```
#[track_caller]
pub fn fold_left<S: Carry, X: Carry>(init: S, over: X, f: impl FnOnce(S, X) -> S) -> S {
    fold(init, Rows::of(&over, "fold_left"), Order::Forward, f)
}

/// `f(.. f(f(init, xn), ..) .., x0)`: as [`fold_left`], from the last row to the first.
///
/// The state is the first argument of `f` here as well.
///
/// ```
/// use anabranch_dsl::prelude::*;
///
/// let f = |xs: Tensor| fold_right(scalar(0.0), xs, |a, x| (a + x) * 2.0);
/// assert_eq!(eval_with(f, [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?, 642.0);
/// # Ok::<(), anabranch_dsl::Diagnostic>(())
/// ```
#[track_caller]
pub fn fold_right<S: Carry, X: Carry>(init: S, over: X, f: impl FnOnce(S, X) -> S) -> S {
    fold(init, Rows::of(&over, "fold_right"), Order::Reverse, f)
}

#[track_caller]
fn fold<S: Carry, X: Carry>(init: S, rows: Rows, order: Order, f: impl FnOnce(S, X) -> S) -> S {
    if rows.n == 0 {
        return init;
    }
    let loc = Loc::caller();
    let n = i32::try_from(rows.n).expect("a tensor has fewer than 2^31 rows");
    let counter = |own: &[Any]| Tensor::<i32>::from_any(own[0]);
    let step = |_: &mut _, own: &[Any], state| {
        let (next, row) = trace::called_at(loc, || {
            let i = counter(own);
            let at = match order {
                Order::Forward => i,
                Order::Reverse => scalar(n - 1) - i,
            };
            (i + 1, rows.at(at))
        });
        (f(state, row), vec![next.untyped()])
    };
    let more = |own: &[Any], _| trace::called_at(loc, || counter(own).less(n));
    record(init, &[scalar(0).untyped()], more, step).0
}
