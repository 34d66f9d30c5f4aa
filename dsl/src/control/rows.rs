//! Folds, scans and maps over the rows of tensors.
//!
//! All of them record one loop. Its loop variables are a counter, the state, and for each output a
//! list with an element per row. The tensors are unstacked into lists before the loop. Each
//! iteration reads the rows at the counter, calls the closure and writes its outputs to the output
//! lists, which are stacked after the loop. So the gradient is linear in the number of rows, too:
//! the cotangents of the rows accumulate in one list, in place.
//!
//! Nothing marks a [`map`] in the graph. A [`map`] is recognized by its independent iterations
//! ([`crate::ir::dependence`]).

use super::while_loop::record;
use crate::ir::ListOp;
use crate::ops::AnyValue;
use crate::staged::{Carry, FlatState, RowLists};
use crate::trace::{self, WhileTrace};
use crate::{DType, Diagnostic, Loc, Tensor, Type, scalar};

/// The order in which rows are visited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RowOrder {
    /// From the first to the last.
    Forward,
    /// From the last to the first.
    Reverse,
}

impl RowLists {
    /// Records the loop. `f` takes the state and the rows at an index, and returns the next state
    /// and the outputs.
    #[track_caller]
    fn visit<S: Carry, X: Carry, Y: Carry>(
        &self,
        init: S,
        order: RowOrder,
        function: &str,
        f: impl FnOnce(S, X) -> (S, Y),
    ) -> (S, Y) {
        let loc = Loc::caller();
        let counter = |own: &[AnyValue]| Tensor::<i32>::from_any(own[0]);
        let more = |own: &[AnyValue], _| trace::called_at(loc, || counter(own).less(self.len));
        let mut outputs = FlatState::default();
        let body = |open: &mut WhileTrace, own: &[AnyValue], state| {
            let i = counter(own);
            let (at, rows) = trace::called_at(loc, || {
                let at = match (order, self.extent.known()) {
                    (RowOrder::Forward, _) => i,
                    (RowOrder::Reverse, Some(n)) => scalar(n as i32 - 1) - i,
                    (RowOrder::Reverse, None) => self.len - 1 - i,
                };
                (at, self.at(at))
            });
            let (state, y) = f(state, rows);
            outputs = FlatState::of(&y);
            let mut next = vec![trace::called_at(loc, || (i + 1).untyped())];
            for (&y, path) in outputs.tensors().iter().zip(outputs.paths()) {
                let Type::Tensor(element) = y.ty() else {
                    let message = format!("`{function}`: `value{path}` is {}, but only tensors can be stacked", y.ty());
                    trace::fail(Diagnostic::new(message).at(loc, "here").help("stack it in the closure"));
                };
                next.push(trace::called_at(loc, || {
                    let empty = trace::at_depth(trace::depth() - 1, || {
                        trace::emit_list(ListOp::New(element), &[self.len.untyped()])[0]
                    });
                    let list = open.add_carried(empty);
                    trace::emit_list(ListOp::Write, &[list, at.untyped(), y])[0]
                }));
            }
            (state, next)
        };
        let start = trace::called_at(loc, || trace::constant(crate::HostTensor::zeros(DType::I32, [])));
        let (state, ends) = record(init, &[start], more, body);
        let stack = |list: &AnyValue| trace::emit_list(ListOp::Stack(self.extent.clone()), &[*list])[0];
        let stacked: Vec<AnyValue> = trace::called_at(loc, || ends[1..].iter().map(stack).collect());
        (state, outputs.with_tensors(&mut stacked.into_iter()).rebuild())
    }
}

/// Folds the rows of tensors from first to last: `f(.. f(f(init, x0), x1) .., xn)`.
///
/// `over` is a tensor, or a tuple, an array or a struct of tensors with the same first extent. `f`
/// takes the state and, in the same structure, the slices at one index of the first axes. Without
/// rows, the result is `init`.
///
/// # Errors
/// Aborts the trace if a tensor in `over` has no axes, if the first extents differ (the message
/// names the tensors), or if `f` returns a state of another type or structure. Extents known only
/// at run time are compared then.
///
/// ```
/// use anabranch::prelude::*;
///
/// let f = |xs: Tensor| fold_left(scalar(0.0), xs, |a, x| (a + x) * 2.0);
/// assert_eq!(eval_with(f, [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?, 240.0);
///
/// // Horner's rule, for two polynomials at different points.
/// let value = |c: Tensor, x: Tensor| fold_left(zeros([2]), c, |y, c| y * x + c);
/// let (c, x) = ([[1.0f32, 1.0], [0.0, 0.0], [-1.0, 2.0]], [3.0f32, 10.0]);
/// assert_eq!(eval_with(value, (c, x))?.as_slice(), [8.0, 102.0]);
///
/// let error =
///     eval(|| fold_left(scalar(0), (zeros([3]), zeros([2])), |a, (x, y)| a + x + y)).unwrap_err();
/// assert_eq!(error.message, "`fold_left`: `rows.0` has 3 rows, but `rows.1` has 2");
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn fold_left<S: Carry, X: Carry>(init: S, over: X, f: impl FnOnce(S, X) -> S) -> S {
    let rows = RowLists::of(&over, "fold_left");
    rows.visit(init, RowOrder::Forward, "fold_left", |state, x| (f(state, x), ())).0
}

/// Folds the rows of tensors from last to first: `f(.. f(f(init, xn), ..) .., x0)`.
///
/// See [`fold_left`].
///
/// The state is the first argument of `f` here, too.
///
/// ```
/// use anabranch::prelude::*;
///
/// let f = |xs: Tensor| fold_right(scalar(0.0), xs, |a, x| (a + x) * 2.0);
/// assert_eq!(eval_with(f, [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?, 642.0);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn fold_right<S: Carry, X: Carry>(init: S, over: X, f: impl FnOnce(S, X) -> S) -> S {
    let rows = RowLists::of(&over, "fold_right");
    rows.visit(init, RowOrder::Reverse, "fold_right", |state, x| (f(state, x), ())).0
}

/// Folds rows with an output for each row.
///
/// Returns the last state, and the outputs stacked along a new first axis.
///
/// `over` and the state are as for [`fold_left`]. The output of `f` is any [`Carry`] of tensors,
/// each of which gets the new axis. `f` may be a host closure that captures tensors. To run `n`
/// iterations without rows, iterate over `iota::<i32>(n)`.
///
/// # Errors
/// Fails like [`fold_left`], and at run time if the shape of an output differs between rows.
///
/// ```
/// use anabranch::prelude::*;
///
/// // Running sums, and how many there were.
/// let f =
///     |xs: Tensor| scan((scalar(0.0), scalar(0)), xs, |(sum, n), x| ((sum + x, n + 1), sum + x));
/// let ((sum, n), sums) = eval_with(f, [1.0f32, 2.0, 3.0])?;
/// assert_eq!((sum.item(), n.item()), (6.0, 3));
/// assert_eq!(sums.as_slice(), [1.0, 3.0, 6.0]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn scan<S: Carry, X: Carry, Y: Carry>(init: S, over: X, f: impl FnOnce(S, X) -> (S, Y)) -> (S, Y) {
    RowLists::of(&over, "scan").visit(init, RowOrder::Forward, "scan", f)
}

/// Scans from the last row to the first, like [`scan`]. Each output has the position of its row.
///
/// ```
/// use anabranch::prelude::*;
///
/// // What is still to come.
/// let f = |xs: Tensor| scan_reverse(scalar(0.0), xs, |sum, x| (sum + x, sum)).1;
/// assert_eq!(eval_with(f, [1.0f32, 2.0, 3.0])?.as_slice(), [5.0, 3.0, 0.0]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn scan_reverse<S: Carry, X: Carry, Y: Carry>(init: S, over: X, f: impl FnOnce(S, X) -> (S, Y)) -> (S, Y) {
    RowLists::of(&over, "scan_reverse").visit(init, RowOrder::Reverse, "scan_reverse", f)
}

/// Returns the outputs of `f` for each row, stacked along a new first axis.
///
/// Rows and outputs are as for [`scan`]. Unlike an operation on whole tensors, `f` may contain
/// control flow, which runs separately for each row. The analysis of the graph finds that the
/// iterations are independent, and `explain` shows it. If `f` works on numbers and on elements of
/// rows, a CPU runs many rows side by side in vectors, on all threads, and so it does for the
/// gradient.
///
/// ```
/// use anabranch::prelude::*;
///
/// // The gradient at 0 is that of the branch that ran: it is finite.
/// let roots = |xs: Tensor| {
///     let y = map(xs, |x| cond(x.less(1e-3), || scalar(1e-3), || x.sqrt()));
///     (y, gradients(y.sum(), xs))
/// };
/// let (y, dy) = eval_with(roots, [0.0f32, 4.0])?;
/// assert_eq!(y.as_slice(), [1e-3, 2.0]);
/// assert_eq!(dy.as_slice(), [0.0, 0.25]);
///
/// // Several tensors in, several out.
/// let f = |xs: Tensor, n: Tensor<i32>| map((xs, n), |(x, n)| (x * n.cast(), [n + 1, n * n]));
/// let (products, [more, squares]) = eval_with(f, ([0.5f32, 1.5], [2, 3]))?;
/// assert_eq!(products.as_slice(), [1.0, 4.5]);
/// assert_eq!((more.as_slice(), squares.as_slice()), (&[3, 4][..], &[4, 9][..]));
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn map<X: Carry, Y: Carry>(over: X, f: impl FnOnce(X) -> Y) -> Y {
    RowLists::of(&over, "map").visit((), RowOrder::Forward, "map", |(), x| ((), f(x))).1
}
