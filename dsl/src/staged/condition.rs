//! Conditions, whose type decides the semantics of a construct.

use super::carry::{self, Difference};
use super::{Carry, FlatState, Lazy, StagedIf, StagedLazy, StagedWhile};
use crate::ir::intern;
use crate::trace::{self, Site};
use crate::{AnyValue, Diagnostic, Tensor};

/// A type of conditions: `bool`, as in Rust, or `Tensor<bool>`, which is staged.
#[diagnostic::on_unimplemented(
    message = "a condition must be a `bool` or a `Tensor<bool>`, not `{Self}`",
    label = "not a condition",
    note = "compare it, as in `x != 0`"
)]
pub trait Condition: Sized {
    /// The same type. If a type is not a condition, the compiler reports that once, and no
    /// follow-up errors.
    #[doc(hidden)]
    type Itself: Condition;
    /// Returns the same value.
    #[doc(hidden)]
    fn itself(self) -> Self::Itself;
    /// The proof that tracing goes on in an arm after a jump. For a host condition it has no value,
    /// because the jump leaves the arm natively.
    #[doc(hidden)]
    type Stays;
    /// Returns the proof if tracing goes on in this construct after a jump.
    #[doc(hidden)]
    fn stays() -> Option<Self::Stays>;
    /// The state of an `if` with this condition.
    #[doc(hidden)]
    type If: IfArms<Self>;
    /// The state of a `while` with this condition.
    #[doc(hidden)]
    type While: WhileParts<Self> + Default;
    /// The state of an `&&` or `||` with this condition on the left.
    #[doc(hidden)]
    type Lazy: LazyParts<Self>;
}

impl Condition for bool {
    type Itself = bool;
    #[inline]
    fn itself(self) -> bool {
        self
    }
    type Stays = std::convert::Infallible;
    #[inline]
    fn stays() -> Option<std::convert::Infallible> {
        None
    }
    type If = bool;
    type While = ();
    type Lazy = Lazy<bool>;
}

#[diagnostic::do_not_recommend]
impl Condition for Tensor<bool> {
    type Itself = Tensor<bool>;
    fn itself(self) -> Tensor<bool> {
        self
    }
    type Stays = ();
    fn stays() -> Option<()> {
        Some(())
    }
    type If = StagedIf;
    type While = StagedWhile;
    type Lazy = StagedLazy;
}

/// Returns a condition, after its type is checked to be one.
#[inline]
pub fn condition<C: Condition<Itself = I>, I>(condition: C) -> I {
    condition.itself()
}

/// The phases of an `if`.
pub trait IfArms<C: Condition> {
    /// Starts the `if` after its condition.
    fn begin(condition: C) -> Self;
    /// Returns the proof if tracing goes on after a jump.
    fn stays(&self) -> Option<C::Stays>;
    /// Returns whether to run the first arm.
    fn then_arm<P: CarriedPlaces>(&mut self, places: P) -> bool;
    /// Returns whether to run the second arm.
    fn else_arm<P: CarriedPlaces>(&mut self, places: P, sites: &[Site]) -> bool;
    /// Ends the `if` after its arms, each of which has a value or was left.
    fn end<P: CarriedPlaces, T>(&mut self, places: P, sites: &[Site], values: Values<T>) -> Option<T>;
}

/// The phases of a `while`.
pub trait WhileParts<C> {
    /// Returns whether to compute the condition, at the head of the loop.
    fn more<P: CarriedPlaces>(&mut self, places: P, sites: &[Site]) -> bool;
    /// Returns whether to run the body.
    fn test<P: CarriedPlaces>(&mut self, condition: C, places: P, sites: &[Site]) -> bool;
}

/// The phases of `&&` and `||`.
pub trait LazyParts<C> {
    /// Starts after the left side, which decides alone if it equals `decides`: `false` for `&&`,
    /// `true` for `||`.
    fn begin(left: C, decides: bool) -> Self;
    /// Returns whether to compute the right side.
    fn right<P: CarriedPlaces>(&mut self, places: P) -> bool;
}

/// The values that a construct with this condition may modify or produce: any for `bool`, a
/// [`Carry`] for a tensor.
///
/// The condition implements this trait, not the value, so that the compiler defers the choice while
/// the type of the condition is unknown.
pub trait Changes<T: ?Sized> {
    /// Flattens a value. For a host condition the result is empty.
    fn save(value: &T) -> FlatState;
    /// Replaces a value.
    fn load(value: &mut T, state: &FlatState);
}

impl<T: ?Sized> Changes<T> for bool {
    #[inline]
    fn save(_value: &T) -> FlatState {
        FlatState::default()
    }
    #[inline]
    fn load(_value: &mut T, _state: &FlatState) {}
}

impl<T: Carry> Changes<T> for Tensor<bool> {
    fn save(value: &T) -> FlatState {
        FlatState::of(value)
    }
    fn load(value: &mut T, state: &FlatState) {
        *value = state.rebuild();
    }
}

#[diagnostic::do_not_recommend]
impl<T: Carry> Changes<[T]> for Tensor<bool> {
    fn save(value: &[T]) -> FlatState {
        let mut state = FlatState::default();
        state.items(value);
        state
    }
    fn load(value: &mut [T], state: &FlatState) {
        state.rebuild_items(value);
    }
}

/// A value that a staged `if` can produce.
#[diagnostic::on_unimplemented(
    message = "a staged `if` cannot produce a host value of type `{Self}`",
    label = "the value of an `if` on a tensor",
    note = "make it a tensor, as in `scalar(1)`, or use a host condition",
    note = "for a struct of tensors, add `#[derive(Carry)]`"
)]
pub trait ProducedByIf: Carry {}

#[diagnostic::do_not_recommend]
impl<T: Carry> ProducedByIf for T {}

/// Conditions under which an `if` may have a value of type `T`.
pub trait Produces<T> {
    /// Flattens a value.
    #[doc(hidden)]
    fn take_apart(value: &T) -> FlatState;
    /// Rebuilds a value. Returns `None` for host conditions, for which values are not flattened.
    #[doc(hidden)]
    fn put_together(state: &FlatState) -> Option<T>;
}

impl<T> Produces<T> for bool {
    #[inline]
    fn take_apart(_value: &T) -> FlatState {
        FlatState::default()
    }
    #[inline]
    fn put_together(_state: &FlatState) -> Option<T> {
        None
    }
}

impl<T: ProducedByIf> Produces<T> for Tensor<bool> {
    fn take_apart(value: &T) -> FlatState {
        FlatState::of(value)
    }
    fn put_together(state: &FlatState) -> Option<T> {
        Some(state.rebuild())
    }
}

/// The values of the arms of an `if`, each present if its arm ran to its end.
#[derive(Debug)]
pub struct Values<T> {
    /// The value of the first arm.
    pub then: Option<T>,
    /// The value of the second arm.
    pub otherwise: Option<T>,
    pub(super) take_apart: fn(&T) -> FlatState,
    pub(super) put_together: fn(&FlatState) -> Option<T>,
}

impl<T> Values<T> {
    /// Creates an empty pair of values for an `if` with a condition of type `C`.
    #[inline]
    pub(super) fn new<C: Produces<T>>() -> Values<T> {
        Values { then: None, otherwise: None, take_apart: C::take_apart, put_together: C::put_together }
    }
}

/// A place that a construct modifies.
#[derive(Debug)]
pub struct CarriedPlace<'a, T: ?Sized> {
    at: &'a mut T,
    save: fn(&T) -> FlatState,
    load: fn(&mut T, &FlatState),
}

impl<'a, T: ?Sized> CarriedPlace<'a, T> {
    /// Creates a place that a construct with a condition of type `C` modifies.
    #[inline]
    pub(super) fn new<C: Changes<T>>(at: &'a mut T) -> CarriedPlace<'a, T> {
        CarriedPlace { at, save: C::save, load: C::load }
    }
}

/// The places that a construct modifies: `(a, (b, ()))`.
pub trait CarriedPlaces {
    /// Flattens the values of the places, in order.
    fn save(&self, into: &mut Vec<FlatState>);
    /// Replaces the values of the places.
    fn load(&mut self, from: &[FlatState]);
}

impl CarriedPlaces for () {
    fn save(&self, _into: &mut Vec<FlatState>) {}
    fn load(&mut self, _from: &[FlatState]) {}
}

impl<T: ?Sized, R: CarriedPlaces> CarriedPlaces for (CarriedPlace<'_, T>, R) {
    fn save(&self, into: &mut Vec<FlatState>) {
        into.push((self.0.save)(self.0.at));
        self.1.save(into);
    }
    fn load(&mut self, from: &[FlatState]) {
        let (first, rest) = from.split_first().expect("there is one state for each place");
        (self.0.load)(self.0.at, first);
        self.1.load(rest);
    }
}

/// A place whose type decides that it is not modified has an empty state.
impl<T: ?Sized, R: CarriedPlaces> CarriedPlaces for (Option<CarriedPlace<'_, T>>, R) {
    fn save(&self, into: &mut Vec<FlatState>) {
        into.push(self.0.as_ref().map(|place| (place.save)(place.at)).unwrap_or_default());
        self.1.save(into);
    }
    fn load(&mut self, from: &[FlatState]) {
        let (first, rest) = from.split_first().expect("there is one state for each place");
        if let Some(place) = &mut self.0 {
            (place.load)(place.at, first);
        }
        self.1.load(rest);
    }
}

/// Returns the states of the places.
pub(super) fn save(places: &impl CarriedPlaces) -> Vec<FlatState> {
    let mut states = Vec::new();
    places.save(&mut states);
    states
}

/// Returns all tensors of the states, in order.
pub(super) fn tensors(states: &[FlatState]) -> Vec<AnyValue> {
    states.iter().flat_map(FlatState::tensors).copied().collect()
}

/// Returns the states with their tensors replaced.
pub(super) fn with_tensors(states: &[FlatState], tensors: Vec<AnyValue>) -> Vec<FlatState> {
    let mut tensors = tensors.into_iter();
    states.iter().map(|s| s.with_tensors(&mut tensors)).collect()
}

/// Returns the site of each tensor: that of its place, with the name of the leaf.
pub(super) fn tensor_sites(states: &[FlatState], sites: &[Site]) -> Vec<Site> {
    states.iter().zip(sites).flat_map(|(state, site)| leaf_sites(state, *site)).collect()
}

/// Returns the site of each tensor in a value, with the name of the leaf.
pub(crate) fn leaf_sites(state: &FlatState, site: Site) -> impl Iterator<Item = Site> {
    state.paths().map(move |path| {
        let name = if path.is_empty() { site.name } else { intern(&format!("{}{path}", site.name)) };
        Site { name, ..site }
    })
}

/// Initializes places of `a` that are undefined, and defined in `b`, with zeros in the current
/// region.
#[track_caller]
pub(super) fn fill(a: &mut [FlatState], b: &[FlatState]) {
    for (a, b) in a.iter_mut().zip(b) {
        if a.is_undefined() && !b.is_undefined() {
            *a = b.zeros_like();
        }
    }
}

/// Ends the trace if the structure of a place differs between two moments, which are named by
/// `moments`.
pub(super) fn check_structure(a: &[FlatState], b: &[FlatState], sites: &[Site], moments: [&str; 2]) {
    for ((a, b), site) in a.iter().zip(b).zip(sites) {
        check_one_structure(a, b, *site, moments, "modified here, under a tensor condition");
    }
}

/// Ends the trace if the structure of one value differs between two moments. `label` is shown at
/// the site.
pub(crate) fn check_one_structure(a: &FlatState, b: &FlatState, site: Site, moments: [&str; 2], label: &str) {
    if a.has_err() || b.has_err() {
        trace::fail(carry::staged_err().at(site.loc(), label));
    }
    if let Some(Difference { path, words: [was, is], is_length }) = a.difference(b) {
        let error = format!("`{}{path}` has {was} {}, but {is} {}", site.shown(), moments[0], moments[1]);
        let help = match is_length {
            true => {
                "the length of a `Vec` is fixed in the graph: use a `List` of tensors, which grows with `push` and \
                 is joined by `stack`"
            }
            false => "lengths, options and host values are fixed in the graph: modify only tensors",
        };
        trace::fail(Diagnostic::new(error).at(site.loc(), label).help(help));
    }
}
