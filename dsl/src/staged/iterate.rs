//! `for` over host iterators, over the leading axis of a tensor, over lists, and over a [`range`]
//! of the graph.
//!
//! A `for` expands to a `while` with the condition [`Looping::test`]. For host iterators this is a
//! `bool`, so the loop is unrolled while tracing. For tensors, lists and ranges it is a
//! `Tensor<bool>`, so the loop is part of the graph, with the position as an additional loop
//! variable.

use super::OutsideOfGraph;
use super::carry::{FlatState, Reader};
use super::{Carry, Condition};
use crate::{AnyValue, DType, Diagnostic, Element, Integer, List, Loc, Tensor, scalar, trace};
use std::marker::PhantomData;
use std::ops;

/// A value that a `for` can iterate over.
#[diagnostic::on_unimplemented(
    message = "a `for` iterates over host iterators, tensors and `range(..)`, not over `{Self}`",
    label = "cannot be iterated",
    note = "use `range(n)` to count up to a tensor `n`, or `range(a..b)` to start at `a`",
    note = "`for row in x` iterates over the rows of a tensor, and `for (a, b) in (x, y)` over those of two"
)]
pub trait Iterable {
    /// The state of the iteration.
    type Looping: Looping;
    /// Starts the iteration.
    fn looping(self) -> Self::Looping;
}

/// The parts of a `for`.
pub trait Looping {
    /// The type of the test: `bool`, or `Tensor<bool>` for a loop of the graph.
    type Test: Condition;
    /// The position, which changes from iteration to iteration.
    type Position;
    /// The item that the body receives.
    type Item;
    /// Returns the position before the first iteration.
    fn start(&self) -> Self::Position;
    /// Returns whether there is another item.
    fn test(&mut self, position: &Self::Position) -> Self::Test;
    /// Returns the item after a test that held, and advances the position.
    fn item(&mut self, position: &mut Self::Position) -> Self::Item;
}

/// Returns the operand of a `for`, after its type is checked.
#[inline]
pub fn iterable<I: Iterable>(iterable: I) -> I {
    iterable
}

/// Starts a `for`.
#[inline]
#[track_caller]
pub fn looping<I: Iterable<Looping = L>, L>(iterable: I) -> L {
    iterable.looping()
}

/// The iteration over a host iterator.
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

/// A `for` over a host iterator.
#[diagnostic::on_unimplemented(
    message = "this `for` looks like a host loop, but it iterates over a value of the graph",
    label = "not a host iterator",
    note = "bind it first, so that its type is known: `let rows = x.method(); for row in rows {{ .. }}`"
)]
pub trait HostLooping {
    /// The iterator.
    type Iter: Iterator;
    /// Returns the iterator.
    fn iter(self) -> Self::Iter;
}

impl<I: Iterator> HostLooping for HostLoop<I> {
    type Iter = I;
    #[inline]
    fn iter(self) -> I {
        self.iter
    }
}

/// Returns the iterator of a `for` operand that is a host iterator by its syntax.
#[inline]
pub fn host_iter<I: Iterable<Looping = L>, L: HostLooping>(iterable: I) -> L::Iter {
    iterable.looping().iter()
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

/// The slices of a tensor along its leading axis, or the elements of a list.
///
/// Slices are read from a [`List`], so that their cotangents are added to one list in place.
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
            Some(n) => match i32::try_from(n) {
                Ok(n) => scalar(n),
                Err(_) => trace::fail(
                    Diagnostic::new(format!("this `for` iterates over {n} slices of a tensor"))
                        .at(Loc::caller(), "too many")
                        .help("a loop has at most 2147483647 iterations"),
                ),
            },
            None => of.len(),
        };
        Rows { of, len }
    }
}

#[diagnostic::do_not_recommend]
impl<T: Element> Iterable for List<T> {
    type Looping = Rows<T>;
    #[track_caller]
    fn looping(self) -> Rows<T> {
        Rows { of: self, len: self.len() }
    }
}

/// Tensors with a host iterator: none, because the elements of a tensor exist only in the graph.
#[diagnostic::on_unimplemented(
    message = "a tensor cannot be iterated on the host",
    label = "its rows exist only in the graph",
    note = "write `for row in x`, which is a loop of the graph; to count, use a variable or `for i in range(n)`",
    note = "for a loop that is unrolled while tracing, iterate over host numbers: `for i in 0..x.dim(0) {{ let row = \
            x.index(i, 0); .. }}`"
)]
pub trait HostRows<T: Element> {
    /// Returns the rows along the first axis.
    fn rows(self) -> std::vec::IntoIter<Tensor<T>>;
}

/// These methods exist for their error, which says what to write instead.
impl<T: Element> Tensor<T> {
    #[doc(hidden)]
    pub fn iter(&self) -> std::vec::IntoIter<Tensor<T>>
    where
        Tensor<T>: HostRows<T>,
    {
        self.rows()
    }

    #[doc(hidden)]
    pub fn enumerate(self) -> std::iter::Enumerate<std::vec::IntoIter<Tensor<T>>>
    where
        Tensor<T>: HostRows<T>,
    {
        self.rows().enumerate()
    }

    #[doc(hidden)]
    pub fn zip<I: IntoIterator>(self, other: I) -> std::iter::Zip<std::vec::IntoIter<Tensor<T>>, I::IntoIter>
    where
        Tensor<T>: HostRows<T>,
    {
        self.rows().zip(other)
    }

    #[doc(hidden)]
    #[expect(clippy::should_implement_trait, reason = "the trait would be looked for in every `for` over a tensor")]
    pub fn into_iter(self) -> std::vec::IntoIter<Tensor<T>>
    where
        Tensor<T>: HostRows<T>,
    {
        self.rows()
    }
}

/// A bound that no type satisfies, for host iterators over values of the graph. The bound makes the
/// compiler explain every `for` over a tensor outside `#[graph]`. The bound is on [`Iterator`],
/// through which the compiler finds [`IntoIterator`]. See [`Compares`](super::Compares).
#[diagnostic::on_unimplemented(
    message = "the host cannot iterate over `{X}`: its items are known only when the graph runs",
    label = "a loop outside `#[graph]`, or a host iterator",
    note = "add `#[graph]` to the function: there, `for` iterates over the rows of a tensor, the items of a list or \
            a `range`",
    note = "for a loop that is unrolled while tracing, iterate over host numbers: `for i in 0..x.dim(0) {{ let row = \
            x.index(i, 0); .. }}`"
)]
pub trait Iterates<X> {
    /// The next item.
    fn item<I>(of: &mut X) -> Option<I>;
}

macro_rules! iterated_in_graphs {
    ($([$($g:tt)*] $of:ty, $item:ty;)*) => {$(
        impl<$($g)*> Iterator for $of
        where
            OutsideOfGraph: Iterates<$of>,
        {
            type Item = $item;
            fn next(&mut self) -> Option<$item> {
                OutsideOfGraph::item(self)
            }
        }
    )*};
}
iterated_in_graphs! {
    [T: Element] Tensor<T>, Tensor<T>;
    [T: Element] List<T>, Tensor<T>;
    [T: Integer] Range<T>, Tensor<T>;
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

/// One end of a [`range`]: a scalar tensor or a host number.
pub trait RangeEnd<T: Integer>: Copy {
    /// Returns the tensor whose rows are the items.
    #[doc(hidden)]
    fn bound(self) -> Tensor<T>;
    /// Returns the number of a host end.
    #[doc(hidden)]
    fn known(self) -> Option<T>;
}
impl<T: Integer> RangeEnd<T> for Tensor<T> {
    fn bound(self) -> Tensor<T> {
        self
    }
    fn known(self) -> Option<T> {
        None
    }
}
impl<T: Integer> RangeEnd<T> for T {
    #[track_caller]
    fn bound(self) -> Tensor<T> {
        scalar(self)
    }
    fn known(self) -> Option<T> {
        Some(self)
    }
}

/// Both ends of a [`range`].
#[derive(Clone, Copy, Debug)]
pub struct Ends<T: Integer> {
    /// The first number, `None` for 0.
    first: Option<Tensor<T>>,
    /// Whether the difference of the ends fits the type for every end.
    distance_fits: bool,
    end: Tensor<T>,
    /// Whether the end is included.
    inclusive: bool,
}

impl<T: Integer> Ends<T> {
    #[track_caller]
    fn new(first: impl RangeEnd<T>, end: impl RangeEnd<T>, inclusive: bool) -> Ends<T> {
        let distance_fits = first.known().is_some_and(|a| a > T::default() || (a == T::default() && !inclusive));
        Ends { first: Some(first.bound()), distance_fits, end: end.bound(), inclusive }
    }
}

/// The argument of [`range`]: an end, a count, `start..end`, `start..=end`, or `(start, end)`.
#[diagnostic::on_unimplemented(
    message = "`range` takes a tensor of integers or a `usize`, not `{Self}`",
    label = "expected a tensor of integers, a `usize`, or `a..b`",
    note = "for a host loop write `for i in 0..n`; for a loop of the graph `range(0..n)`, where `n` is an `i32`, or \
            `range(n as usize)`"
)]
pub trait Bounds<T: Integer> {
    /// Returns both ends of the range.
    #[doc(hidden)]
    fn bounds(self) -> Ends<T>;
}
impl<T: Integer> Bounds<T> for Tensor<T> {
    #[track_caller]
    fn bounds(self) -> Ends<T> {
        Ends { first: None, distance_fits: true, end: self, inclusive: false }
    }
}
/// A number of the host is a count, such as an extent.
impl Bounds<i32> for usize {
    #[track_caller]
    fn bounds(self) -> Ends<i32> {
        let Ok(end) = i32::try_from(self) else {
            let error = Diagnostic::new(format!("range: {self} is more than an i32 can count"));
            trace::fail(error.at(Loc::caller(), "the numbers of this range are i32").help("write `range(0..n as i64)`"))
        };
        scalar(end).bounds()
    }
}
impl<T: Integer, A: RangeEnd<T>> Bounds<T> for ops::Range<A> {
    #[track_caller]
    fn bounds(self) -> Ends<T> {
        Ends::new(self.start, self.end, false)
    }
}
impl<T: Integer, A: RangeEnd<T>> Bounds<T> for ops::RangeInclusive<A> {
    #[track_caller]
    fn bounds(self) -> Ends<T> {
        let (start, end) = self.into_inner();
        Ends::new(start, end, true)
    }
}
impl<T: Integer, A: RangeEnd<T>, B: RangeEnd<T>> Bounds<T> for (A, B) {
    #[track_caller]
    fn bounds(self) -> Ends<T> {
        Ends::new(self.0, self.1, false)
    }
}

/// `a..=b` with ends of different types.
#[derive(Clone, Copy, Debug)]
pub struct Inclusive<A, B>(pub A, pub B);

impl<T: Integer, A: RangeEnd<T>, B: RangeEnd<T>> Bounds<T> for Inclusive<A, B> {
    #[track_caller]
    fn bounds(self) -> Ends<T> {
        Ends::new(self.0, self.1, true)
    }
}

/// Numbers counted by the graph, for a `for` in a `#[graph]` function; see [`range`].
///
/// All its values have one element type: `T` if the count of positions always fits, else `i64`.
#[must_use = "a range does nothing until a `for` iterates over it"]
#[derive(Clone, Copy, Debug)]
pub struct Range<T: Integer = i32> {
    /// The first number, `None` for 0.
    first: Option<AnyValue>,
    /// The count of numbers.
    count: AnyValue,
    /// The step, `None` for 1.
    step: Option<AnyValue>,
    /// Whether the numbers decrease.
    down: bool,
    element: PhantomData<T>,
}

/// Ranges of the graph with the methods of an iterator: none.
#[diagnostic::on_unimplemented(
    message = "`range(..)` counts in the graph and is not a host iterator",
    label = "its numbers exist only in the graph",
    note = "write `for i in range(n)` instead of a chain of adapters; `range(n)` has `step_by` and `rev`",
    note = "for a loop that is unrolled while tracing, iterate over host numbers: `for i in 0..3`"
)]
pub trait HostCounts<T> {
    /// Returns the numbers of the range.
    fn counts(self) -> std::vec::IntoIter<Tensor<T>>
    where
        T: Element;
}

macro_rules! no_iterator {
    ($($name:ident)*) => {
        /// These methods exist for their error, which says what to write instead.
        impl<T: Integer> Range<T> {
            $(#[doc(hidden)]
            pub fn $name<A>(self, _argument: A) -> std::vec::IntoIter<Tensor<T>>
            where
                Range<T>: HostCounts<T>,
            {
                self.counts()
            })*
            #[doc(hidden)]
            pub fn enumerate(self) -> std::iter::Enumerate<std::vec::IntoIter<Tensor<T>>>
            where
                Range<T>: HostCounts<T>,
            {
                self.counts().enumerate()
            }
            #[doc(hidden)]
            pub fn zip<I: IntoIterator>(self, other: I) -> std::iter::Zip<std::vec::IntoIter<Tensor<T>>, I::IntoIter>
            where
                Range<T>: HostCounts<T>,
            {
                self.counts().zip(other)
            }
        }
    };
}
no_iterator!(map filter skip take skip_while take_while);

/// An end of a host range in the head of a `for`.
#[diagnostic::on_unimplemented(
    message = "a host range cannot start or end at `{Self}`",
    label = "not a host number",
    note = "count in the graph with `range(a..b)`, which has `step_by` and `rev`"
)]
pub trait HostEnd {
    /// The same type. If a type cannot be an end, the compiler reports that before it compares the
    /// two ends.
    type Itself;
    /// Returns the same value.
    fn itself(self) -> Self::Itself;
}

macro_rules! host_ends {
    ($($t:ty)*) => {$(
        impl HostEnd for $t {
            type Itself = $t;
            #[inline]
            fn itself(self) -> $t {
                self
            }
        }
    )*};
}
host_ends!(i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize char);

/// Returns the same value.
#[inline]
pub fn host_end<T: HostEnd<Itself = I>, I>(end: T) -> I {
    end.itself()
}

/// The next position in a [`Range`].
#[derive(Clone, Copy, Debug)]
pub struct Position(AnyValue);

#[diagnostic::do_not_recommend]
impl Carry for Position {
    fn flatten(&self, state: &mut FlatState) {
        state.tensor(self.0);
    }
    fn rebuild(state: &mut Reader<'_>) -> Self {
        Position(state.tensor())
    }
}

/// Returns the numbers from 0 up to `n`, or from `a` to `b`, for a `for` that runs in the graph.
///
/// `range` is called as `range(n)`, `range(a..b)` or `range(a..=b)`. `n` is a scalar tensor or a
/// `usize`, such as `x.dim(0)`; the numbers up to a `usize` are `i32`. The ends `a` and `b` are
/// scalar tensors or numbers of their element types. If one end is a host number and the other a
/// tensor, the call is `range((0, n))`, which may be written `range(0..n)` in a `#[graph]`
/// function. [`step_by`](Range::step_by) and [`rev`](Range::rev) work as on a host range.
///
/// The bounds are computed once, before the loop. An empty range runs the body zero times. A range
/// up to the largest number of its type, such as `range(250u8..=n)`, runs as often as on the host.
///
/// The example uses `#[graph]` of the crate `anabranch`:
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
    let Ends { first, distance_fits, end, inclusive } = bounds.bounds();
    let of = |first, count| Range { first, count, step: None, down: false, element: PhantomData };
    let Some(first) = first else { return of(None, end.untyped()) };
    let dtype = if distance_fits { T::DTYPE } else { DType::I64 };
    let [first, end] = [first, end].map(|x| x.untyped().cast(dtype));
    let (zero, one) = (small::<T>(dtype, false), small::<T>(dtype, true));
    // If the end is before the start, the count is negative, or wraps around for unsigned numbers.
    let empty = if inclusive { end.lt(first) } else { end.le(first) };
    let mut count = if inclusive { end - first + one } else { end - first };
    if !distance_fits && T::DTYPE == DType::I64 {
        // More numbers than `i64` can count: no loop reaches their end.
        count = count.le(zero).select(scalar(i64::MAX).untyped(), count);
    }
    of(Some(first), empty.select(zero, count))
}

/// Returns 0 or 1.
#[track_caller]
fn small<T: Integer>(dtype: DType, one: bool) -> AnyValue {
    match dtype == T::DTYPE {
        true => scalar(if one { T::ONE } else { T::default() }).untyped(),
        false => scalar(i64::from(one)).untyped(),
    }
}

impl<T: Integer> Range<T> {
    /// Keeps every `step`-th number, beginning with the first. `step` is positive and may be a
    /// tensor.
    ///
    /// # Errors
    /// Fails at run time, by an assertion, if a step is not positive.
    #[track_caller]
    pub fn step_by(self, step: impl RangeEnd<T>) -> Range<T> {
        let dtype = self.count.dtype();
        let (step, zero, one) = (step.bound().untyped().cast(dtype), self.small(false), self.small(true));
        let positive = step.gt(zero);
        trace::assert(positive, "the step of a range must be positive".to_owned());
        // The assertion has failed for other steps; the division must not fail before it.
        let divisor = positive.select(step, one);
        let count = self.count.gt(zero).select((self.count - one) / divisor + one, zero);
        Range { count, step: Some(self.step.map_or(step, |s| s * step)), ..self }
    }

    /// Reverses the numbers.
    #[track_caller]
    pub fn rev(self) -> Range<T> {
        let (zero, one) = (self.small(false), self.small(true));
        let last = self.number(self.count.gt(zero).select(self.count - one, zero));
        Range { first: Some(last), down: !self.down, ..self }
    }

    /// Returns 0 or 1 in the type of the positions.
    #[track_caller]
    fn small(&self, one: bool) -> AnyValue {
        small::<T>(self.count.dtype(), one)
    }

    /// Returns the number at a position.
    #[track_caller]
    fn number(&self, position: AnyValue) -> AnyValue {
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
    type Position = Position;
    type Item = Tensor<T>;
    #[track_caller]
    fn start(&self) -> Position {
        Position(self.small(false))
    }
    #[track_caller]
    fn test(&mut self, position: &Position) -> Tensor<bool> {
        Tensor::from_any(position.0.lt(self.count))
    }
    #[track_caller]
    fn item(&mut self, position: &mut Position) -> Tensor<T> {
        let item = self.number(position.0);
        position.0 = position.0 + self.small(true);
        Tensor::from_any(item.cast(T::DTYPE))
    }
}
