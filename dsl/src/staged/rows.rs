//! Rows of several tensors at one index, and `for` over the rows of a tuple.

use super::carry::FlatState;
use super::{Carry, Iterable, Looping};
use crate::ir::ListOp;
use crate::{AnyValue, Diagnostic, Dim, Loc, Tensor, Type, scalar, trace};

/// The rows of one or several tensors.
pub(crate) struct RowLists {
    /// The value that contains the tensors.
    state: FlatState,
    /// The list of rows of each tensor.
    lists: Vec<AnyValue>,
    /// The number of rows, as far as it is known.
    pub(crate) extent: Dim,
    /// The number of rows at run time.
    pub(crate) len: Tensor<i32>,
}

impl RowLists {
    /// Returns the rows of all tensors in a value. Errors name `function`.
    #[track_caller]
    pub(crate) fn of(value: &impl Carry, function: &str) -> RowLists {
        let loc = Loc::caller();
        let fail = |message: String, label: String, help: &str| -> ! {
            trace::fail(Diagnostic::new(format!("`{function}`{message}")).at(loc, label).help(help))
        };
        let state = FlatState::of(value);
        // The number of rows found so far, and the tensor it comes from.
        let mut known: Option<(Dim, String)> = None;
        for (tensor, path) in state.tensors().iter().zip(state.paths()) {
            let (ty, leaf) = (tensor.ty(), format!("`rows{path}`"));
            let Type::Tensor(tensor) = &ty else {
                fail(
                    format!(" iterates over rows, but {leaf} is {ty}"),
                    ty.to_string(),
                    "pass `list.stack()`, or read the list inside by an index",
                );
            };
            let Some(extent) = tensor.shape.dims().first() else {
                let help = "read it inside as it is: a body sees tensors from outside";
                fail(format!(" iterates over rows, but {leaf} is {ty} and has none"), ty.to_string(), help);
            };
            known = Some(match known {
                None => (extent.clone(), leaf),
                Some((n, of)) if !n.compatible(extent) => {
                    let message = format!(": {of} has {n} rows, but {leaf} has {extent}");
                    fail(message, ty.to_string(), "all tensors must have the same number of rows");
                }
                Some((n, of)) if n.known().is_some() => (n, of),
                Some((n, _)) => (n.meet(extent), leaf),
            });
        }
        let Some((extent, _)) = known else {
            let help = "iterate over `iota::<i32>(n)` for n iterations";
            fail(" iterates over rows, but `rows` contains no tensor".to_owned(), "here".to_owned(), help);
        };
        if extent.known().is_some_and(|n| i32::try_from(n).is_err()) {
            fail(
                format!(" iterates over {extent} rows"),
                "too many".to_owned(),
                "a loop has at most 2147483647 iterations",
            );
        }

        let unstack = |x: &AnyValue| trace::emit_list(ListOp::Unstack, &[*x])[0];
        let lists: Vec<AnyValue> = trace::called_at(loc, || state.tensors().iter().map(unstack).collect());
        let len = |list: AnyValue| Tensor::<i32>::from_any(trace::emit_list(ListOp::Len, &[list])[0]);
        let first = trace::called_at(loc, || match extent.known() {
            Some(n) => scalar(n as i32),
            None => len(lists[0]),
        });
        for (tensor, (list, path)) in state.tensors().iter().zip(lists.iter().zip(state.paths())) {
            if tensor.shape().dims()[0].known().is_none() {
                let message = format!("`{function}`: `rows{path}` must have as many rows as the others");
                trace::called_at(loc, || trace::assert(len(*list).equal(first).untyped(), message));
            }
        }
        RowLists { state, lists, extent, len: first }
    }

    /// Returns the rows at an index.
    #[track_caller]
    pub(crate) fn at<X: Carry>(&self, i: Tensor<i32>) -> X {
        let rows = self.lists.iter().map(|&list| trace::emit_list(ListOp::Read, &[list, i.untyped()])[0]);
        self.state.with_tensors(&mut rows.collect::<Vec<_>>().into_iter()).rebuild()
    }
}

/// Values whose tensors have rows, for a `for` over a tuple.
#[diagnostic::on_unimplemented(
    message = "a `for` over a tuple iterates over the rows of tensors at the same index, not over `{Self}`",
    label = "not a tuple of tensors",
    note = "write `for (a, b) in (x, y)` for tensors, without references; use other values in the body",
    note = "for the index of a row, iterate over `(iota::<i32>(n), x)`"
)]
pub trait HasRows: Carry {}

#[diagnostic::do_not_recommend]
impl<X: Carry> HasRows for X {}

/// The operand of a `for` that is a tuple: the rows of its tensors at each index.
pub struct RowsOfTuple<X> {
    rows: RowLists,
    at: fn(&RowLists, Tensor<i32>) -> X,
}

/// Returns the operand of a `for` that is a tuple.
#[track_caller]
pub fn rows_of_tuple<X: HasRows>(tuple: X) -> RowsOfTuple<X> {
    RowsOfTuple { rows: RowLists::of(&tuple, "for"), at: RowLists::at }
}

#[diagnostic::do_not_recommend]
impl<X> Iterable for RowsOfTuple<X> {
    type Looping = RowsOfTuple<X>;
    fn looping(self) -> RowsOfTuple<X> {
        self
    }
}

impl<X> Looping for RowsOfTuple<X> {
    type Test = Tensor<bool>;
    type Position = Tensor<i32>;
    type Item = X;
    fn start(&self) -> Tensor<i32> {
        scalar(0)
    }
    #[track_caller]
    fn test(&mut self, position: &Tensor<i32>) -> Tensor<bool> {
        position.less(self.rows.len)
    }
    #[track_caller]
    fn item(&mut self, position: &mut Tensor<i32>) -> X {
        let item = (self.at)(&self.rows, *position);
        *position += 1;
        item
    }
}
