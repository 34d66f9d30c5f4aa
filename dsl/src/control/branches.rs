//! Conditional execution of closures.

use crate::staged::{Carry, Condition, If, Produces};
use crate::trace;
use crate::{Diagnostic, Integer, Loc, Tensor};

/// Returns `then()` if `condition` holds, else `otherwise()`: `if` as a function.
///
/// A scalar `Tensor<bool>` records a `cond` node: both closures are traced and one of them runs.
/// Values that only the other closure computes have no effect, not even on gradients. Both values
/// must be [`Carry`](crate::Carry) with the same types and structure. With a `bool`, only one of
/// the closures is called, during tracing, and the value may be anything.
///
/// # Errors
/// Aborts the trace if the condition has axes, or if the values differ in an element type, a rank
/// or their structure. The message names the leaf.
///
/// ```
/// use anabranch::prelude::*;
///
/// // The square root has no gradient at 0, but it is not what runs there.
/// let safe_sqrt = |x: Tensor| cond(x.less(1e-3), || scalar(1e-3f32), || x.sqrt());
/// let with_gradient = |x: Tensor| {
///     let y = safe_sqrt(x);
///     (y, gradients(y, x))
/// };
/// let (y, dy) = eval_with(with_gradient, 4.0f32)?;
/// assert_eq!((y.item(), dy.item()), (2.0, 0.25));
/// let (y, dy) = eval_with(with_gradient, 0.0f32)?;
/// assert_eq!((y.item(), dy.item()), (1e-3, 0.0));
///
/// let error = eval(|| {
///     cond(scalar(1).greater(0), || (scalar(1), scalar(2.0f32)), || (scalar(1), zeros([2])))
/// })
/// .unwrap_err();
/// assert_eq!(error.message, "`value.1` has type f32[] in one branch, but f32[2] in the other");
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn cond<C, T>(condition: C, then: impl FnOnce() -> T, otherwise: impl FnOnce() -> T) -> T
where
    C: Condition + Produces<T>,
{
    let mut branches = If::new(condition);
    let mut values = branches.values::<T>();
    if branches.then_arm((), &[]) {
        values.then = Some(then());
    }
    if branches.else_arm((), &[]) {
        values.otherwise = Some(otherwise());
    }
    branches.end_value((), &[], values)
}

/// The closures of a [`switch`]: an array, a `Vec` or a tuple.
pub trait Branches<T> {
    /// Returns the closures in order.
    fn into_list<'a>(self) -> Vec<Branch<'a, T>>
    where
        Self: 'a;
}

/// One of the closures of a [`switch`].
pub type Branch<'a, T> = Box<dyn FnOnce() -> T + 'a>;

impl<T, F: FnOnce() -> T> Branches<T> for Vec<F> {
    fn into_list<'a>(self) -> Vec<Branch<'a, T>>
    where
        Self: 'a,
    {
        self.into_iter().map(|f| Box::new(f) as Branch<'a, T>).collect()
    }
}

impl<T, F: FnOnce() -> T, const N: usize> Branches<T> for [F; N] {
    fn into_list<'a>(self) -> Vec<Branch<'a, T>>
    where
        Self: 'a,
    {
        self.into_iter().map(|f| Box::new(f) as Branch<'a, T>).collect()
    }
}

macro_rules! branches_of_tuples {
    ($($($f:ident $i:tt),+;)*) => {$(
        impl<T, $($f: FnOnce() -> T),+> Branches<T> for ($($f,)+) {
            fn into_list<'a>(self) -> Vec<Branch<'a, T>>
            where
                Self: 'a,
            {
                vec![$(Box::new(self.$i)),+]
            }
        }
    )*};
}
branches_of_tuples! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7;
}

/// Returns the value of the closure at `index`, of an array, a `Vec` or a tuple of up to 8
/// closures.
///
/// The index is clamped, as in JAX's `lax.switch`: an index below 0 selects the first closure, one
/// past the end the last. All closures are traced, and one runs. The branch is found in a tree of
/// `cond` nodes with a logarithmic number of comparisons. All values must be
/// [`Carry`](crate::Carry) with the same types and structure.
///
/// # Errors
/// Aborts the trace if there are no closures, if the index has axes, or if the values differ, as
/// for [`cond`].
///
/// ```
/// use anabranch::prelude::*;
///
/// let f = |i: Tensor<i32>, x: Tensor| switch(i, (|| x + 1.0, || x * 10.0, || -x));
/// for (i, y) in [(-7, 3.0), (0, 3.0), (1, 20.0), (2, -2.0), (9, -2.0)] {
///     assert_eq!(eval_with(f, (i, 2.0f32))?, y);
/// }
///
/// let power = |i: Tensor<i32>, x: Tensor<i32>| {
///     let powers: Vec<_> = (0..8).map(|n| move || (0..n).fold(scalar(1), |y, _| y * x)).collect();
///     switch(i, powers)
/// };
/// assert_eq!(eval_with(power, (5, 3))?, 243);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn switch<I: Integer, T: Carry>(index: Tensor<I>, branches: impl Branches<T>) -> T {
    let mut branches: Vec<Option<Branch<'_, T>>> = branches.into_list().into_iter().map(Some).collect();
    if branches.is_empty() {
        trace::fail(
            Diagnostic::new("a `switch` has no branches")
                .at(Loc::caller(), "an index selects one of the branches")
                .help("pass at least one closure"),
        );
    }
    if index.rank() > 0 {
        let message = format!("the index of `switch` is {}, not a scalar", index.untyped().ty());
        let help = "select elementwise with `condition.select(a, b)`, or pass one element of the index, `.index(i, \
                    0)`";
        trace::fail(Diagnostic::new(message).at(Loc::caller(), "this index").help(help));
    }
    // The number of branches may exceed the range of the index type, but not 64 bits.
    choose(index.cast::<i64>(), &mut branches, 0)
}

/// Returns the value of the branch at `index`, which must be in range. `first` is the index of the
/// first branch.
#[track_caller]
fn choose<T: Carry>(index: Tensor<i64>, branches: &mut [Option<Branch<'_, T>>], first: usize) -> T {
    if let [branch] = branches {
        return branch.take().expect("each branch is exactly one leaf of the tree")();
    }
    let (left, right) = branches.split_at_mut(branches.len() / 2);
    let middle = first + left.len();
    // `cond` with closures would lose the caller's location.
    let mut halves = If::new(index.less(middle as i64));
    let mut values = halves.values::<T>();
    if halves.then_arm((), &[]) {
        values.then = Some(choose(index, left, first));
    }
    if halves.else_arm((), &[]) {
        values.otherwise = Some(choose(index, right, middle));
    }
    halves.end_value((), &[], values)
}
