//! `for`: over host iterators, over the leading axis of a tensor, and over a [`range`] of numbers that only the graph knows.
//!
//! A `for` expands to a `while` whose condition is [`Looping::test`]: for host iterators a `bool`, so the loop is unrolled while
//! tracing; for tensors and ranges a `Tensor<bool>`, so it is a loop of the graph, with the position as one more loop variable.

use super::Condition;
use crate::{Element, Integer, List, Tensor, scalar, trace};
use std::ops;

/// What a `for` can go over.
#[diagnostic::on_unimplemented(
    message = "a `for` goes over host iterators, tensors and `range(..)`, not over `{Self}`",
    label = "not something to go over",
    note = "count with `range(n)` up to a tensor `n`; `range(a..b)` starts at `a`"
)]
pub trait Iterable {
    /// Its state.
    type Looping: Looping;
    /// Starts.
    fn looping(self) -> Self::Looping;
}

/// The parts of a `for`.
pub trait Looping {
    /// `bool`, or `Tensor<bool>` for a loop of the graph.
    type Test: Condition;
    /// What changes from pass to pass.
    type Position;
    /// What the body gets.
    type Item;
    /// Before the first pass.
    fn start(&self) -> Self::Position;
    /// Whether there is another item.
    fn test(&mut self, position: &Self::Position) -> Self::Test;
    /// The item, after a test that held; moves on.
    fn item(&mut self, position: &mut Self::Position) -> Self::Item;
}

/// Starts a `for`.
#[inline]
#[track_caller]
pub fn looping<I: Iterable<Looping = L>, L>(iterable: I) -> L {
    iterable.looping()
}

/// A host iterator.
#[derive(Debug)]
pub struct HostLoop<I: Iterator> {
    iter: I,
    item: Option<I::Item>,
}

#[diagnostic::do_not_recommend]
impl<I: IntoIterator> Iterable for I {
    type Looping = HostLoop<I::IntoIter>;
    #[inline]
    fn looping(self) -> HostLoop<I::IntoIter> {
        HostLoop { iter: self.into_iter(), item: None }
    }
}

/// What a `for` goes over that is a host iterator by its form.
#[inline]
pub fn host_iter<I: Iterable<Looping = HostLoop<J>>, J: Iterator>(iterable: I) -> J {
    iterable.looping().iter
}

impl<I: Iterator> Looping for HostLoop<I> {
    type Test = bool;
    type Position = ();
    type Item = I::Item;
    #[inline]
    fn start(&self) {}
    #[inline]
    fn test(&mut self, _position: &()) -> bool {
        self.item = self.iter.next();
        self.item.is_some()
    }
    #[inline]
    fn item(&mut self, _position: &mut ()) -> I::Item {
        self.item.take().expect("the test held")
    }
}

/// The slices of a tensor along its leading axis.
///
/// They are read from a [`List`], so that their gradients are added to one list in place.
#[derive(Debug)]
pub struct Rows<T: Element> {
    of: List<T>,
    len: Tensor<i32>,
}

#[diagnostic::do_not_recommend]
impl<T: Element> Iterable for Tensor<T> {
    type Looping = Rows<T>;
    #[track_caller]
    fn looping(self) -> Rows<T> {
        let known = if self.rank() == 0 { Some(self.dim(0)) } else { self.shape().dims()[0].known() };
        let of = List::unstack(self);
        let len = match known {
            Some(n) => scalar(i32::try_from(n).expect("an axis is shorter than 2^31")),
            None => of.len(),
        };
        Rows { of, len }
    }
}

impl<T: Element> Looping for Rows<T> {
    type Test = Tensor<bool>;
    type Position = Tensor<i32>;
    type Item = Tensor<T>;
    fn start(&self) -> Tensor<i32> {
        scalar(0)
    }
    #[track_caller]
    fn test(&mut self, position: &Tensor<i32>) -> Tensor<bool> {
        Tensor::from_any(position.untyped().lt(self.len.untyped()))
    }
    #[track_caller]
    fn item(&mut self, position: &mut Tensor<i32>) -> Tensor<T> {
        let item = self.of.read(*position);
        *position += 1;
        item
    }
}

/// One end of a [`range`]: a tensor without dimensions, or a host number.
pub trait Bound<T: Integer>: Copy {
    /// The tensor.
    fn bound(self) -> Tensor<T>;
}
impl<T: Integer> Bound<T> for Tensor<T> {
    fn bound(self) -> Tensor<T> {
        self
    }
}
impl<T: Integer> Bound<T> for T {
    #[track_caller]
    fn bound(self) -> Tensor<T> {
        scalar(self)
    }
}

/// What [`range`] takes: an end, `start..end`, `start..=end`, or `(start, end)`.
pub trait Bounds<T: Integer> {
    /// The first number, `None` for 0, and the one after the last.
    fn bounds(self) -> (Option<Tensor<T>>, Tensor<T>);
}
impl<T: Integer> Bounds<T> for Tensor<T> {
    #[track_caller]
    fn bounds(self) -> (Option<Tensor<T>>, Tensor<T>) {
        (None, self)
    }
}
impl<T: Integer, A: Bound<T>> Bounds<T> for ops::Range<A> {
    #[track_caller]
    fn bounds(self) -> (Option<Tensor<T>>, Tensor<T>) {
        (Some(self.start.bound()), self.end.bound())
    }
}
impl<T: Integer, A: Bound<T>> Bounds<T> for ops::RangeInclusive<A> {
    #[track_caller]
    fn bounds(self) -> (Option<Tensor<T>>, Tensor<T>) {
        let (start, end) = self.into_inner();
        (Some(start.bound()), end.bound() + scalar(T::ONE))
    }
}
impl<T: Integer, A: Bound<T>, B: Bound<T>> Bounds<T> for (A, B) {
    #[track_caller]
    fn bounds(self) -> (Option<Tensor<T>>, Tensor<T>) {
        (Some(self.0.bound()), self.1.bound())
    }
}

/// `a..=b` with ends of different types.
#[derive(Clone, Copy, Debug)]
pub struct Inclusive<A, B>(pub A, pub B);

impl<T: Integer, A: Bound<T>, B: Bound<T>> Bounds<T> for Inclusive<A, B> {
    #[track_caller]
    fn bounds(self) -> (Option<Tensor<T>>, Tensor<T>) {
        (Some(self.0.bound()), self.1.bound() + scalar(T::ONE))
    }
}

/// Numbers counted by the graph, for a `for` in a `#[graph]` function: see [`range`].
#[must_use = "a range does nothing until a `for` goes over it"]
#[derive(Clone, Copy, Debug)]
pub struct Range<T: Integer = i32> {
    /// `None` for 0.
    first: Option<Tensor<T>>,
    /// How many numbers there are.
    count: Tensor<T>,
    /// The distance; `None` for 1.
    step: Option<Tensor<T>>,
    /// Whether the numbers go down.
    down: bool,
}

/// The numbers from 0 up to a tensor `n` without dimensions, or from `a` to `b`, for a `for` that runs in the graph.
///
/// `range(n)`, `range(a..b)`, `range(a..=b)`; where one end is a host number and the other a tensor, `range((0, n))`, which
/// in a `#[graph]` function may be written `range(0..n)`. [`step_by`](Range::step_by) and [`rev`](Range::rev) work
/// as on a host range. The bounds are computed once, before the loop. An empty range runs the body zero times.
///
/// The example is in the language of `#[graph]`, which is in the crate `anabranch`:
///
/// ```text
/// #[graph]
/// fn factorial(n: Tensor<i32>) -> Tensor<i32> {
///     let mut product = scalar(1);
///     for i in range(1..=n) {
///         product *= i;
///     }
///     product
/// }
/// ```
#[track_caller]
pub fn range<T: Integer>(bounds: impl Bounds<T>) -> Range<T> {
    let (first, end) = bounds.bounds();
    let Some(first) = first else { return Range { first, count: end, step: None, down: false } };
    // An end before the start gives a count that is not positive, or for unsigned numbers would wrap around.
    let (zero, empty) = (scalar(T::default()), end.untyped().le(first.untyped()));
    let count = Tensor::<bool>::from_any(empty).select(zero, end - first);
    Range { first: Some(first), count, step: None, down: false }
}

impl<T: Integer> Range<T> {
    /// Every `step`-th number, beginning with the first. `step` is positive; it may be a tensor.
    ///
    /// # Errors
    /// When the graph runs, a step that is not positive fails an assertion.
    #[track_caller]
    pub fn step_by(self, step: impl Bound<T>) -> Range<T> {
        let (step, zero, one) = (step.bound(), scalar(T::default()), scalar(T::ONE));
        let positive = step.untyped().gt(zero.untyped());
        trace::assert(positive, "the step of a range is positive".to_owned());
        let some = Tensor::<bool>::from_any(self.count.untyped().gt(zero.untyped()));
        // The assertion has failed for other steps; the division must not fail before it.
        let divisor = Tensor::<bool>::from_any(positive).select(step, one);
        let count = some.select((self.count - one) / divisor + one, zero);
        Range { count, step: Some(self.step.map_or(step, |s| s * step)), ..self }
    }

    /// The same numbers, last one first.
    #[track_caller]
    pub fn rev(self) -> Range<T> {
        let (zero, one) = (scalar(T::default()), scalar(T::ONE));
        let some = Tensor::<bool>::from_any(self.count.untyped().gt(zero.untyped()));
        let last = self.number(some.select(self.count - one, zero));
        Range { first: Some(last), down: !self.down, ..self }
    }

    /// The number at a position.
    #[track_caller]
    fn number(&self, position: Tensor<T>) -> Tensor<T> {
        let distance = self.step.map_or(position, |step| position * step);
        match (self.first, self.down) {
            (None, _) => distance,
            (Some(first), false) => first + distance,
            (Some(first), true) => first - distance,
        }
    }
}

#[diagnostic::do_not_recommend]
impl<T: Integer> Iterable for Range<T> {
    type Looping = Range<T>;
    fn looping(self) -> Range<T> {
        self
    }
}

impl<T: Integer> Looping for Range<T> {
    type Test = Tensor<bool>;
    type Position = Tensor<T>;
    type Item = Tensor<T>;
    #[track_caller]
    fn start(&self) -> Tensor<T> {
        scalar(T::default())
    }
    #[track_caller]
    fn test(&mut self, position: &Tensor<T>) -> Tensor<bool> {
        Tensor::from_any(position.untyped().lt(self.count.untyped()))
    }
    #[track_caller]
    fn item(&mut self, position: &mut Tensor<T>) -> Tensor<T> {
        let item = self.number(*position);
        *position += scalar(T::ONE);
        item
    }
}
