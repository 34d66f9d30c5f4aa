//! The type of a condition decides what a construct means.

use super::carry::{self, Difference};
use super::{Carry, Lazy, StagedIf, StagedLazy, StagedWhile, State};
use crate::ir::intern;
use crate::trace::{self, Site};
use crate::{Any, Diagnostic, Tensor};

/// What can stand between `if` and `{`: `bool`, with the meaning of Rust, or `Tensor<bool>`, which is staged.
#[diagnostic::on_unimplemented(
    message = "a condition is a `bool` or a `Tensor<bool>`, not `{Self}`",
    label = "not a condition",
    note = "compare it, as in `x != 0`, to get one"
)]
pub trait Condition: Sized {
    /// The same type. Where the compiler cannot know it, because the type is no condition, it says so once and is quiet about
    /// what follows.
    type Itself: Condition;
    /// The same value.
    fn itself(self) -> Self::Itself;
    /// What there is to go on with after a jump in an arm: nothing, so that no value exists, for a host condition, which
    /// leaves the arm natively.
    type Stays;
    /// Whether tracing goes on in this construct after a jump.
    fn stays() -> Option<Self::Stays>;
    /// The state of an `if` on it.
    type If: IfArms<Self>;
    /// The state of a `while` on it.
    type While: WhileParts<Self> + Default;
    /// The state of an `&&` or `||` with it on the left.
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

/// A condition, checked to be one.
#[inline]
pub fn condition<C: Condition<Itself = I>, I>(condition: C) -> I {
    condition.itself()
}

/// The phases of an `if`.
pub trait IfArms<C: Condition> {
    /// After the condition.
    fn begin(condition: C) -> Self;
    /// Whether tracing goes on in it after a jump.
    fn stays(&self) -> Option<C::Stays>;
    /// Whether to run the first arm.
    fn then_arm<P: Places>(&mut self, places: P) -> bool;
    /// Whether to run the second arm.
    fn else_arm<P: Places>(&mut self, places: P, sites: &[Site]) -> bool;
    /// After the arms, of which each has a value or none.
    fn end<P: Places, T>(&mut self, places: P, sites: &[Site], values: Values<T>) -> Option<T>;
}

/// The phases of a `while`.
pub trait WhileParts<C> {
    /// At the head of the loop: whether to compute the condition.
    fn more<P: Places>(&mut self, places: P, sites: &[Site]) -> bool;
    /// Whether to run the body.
    fn test<P: Places>(&mut self, condition: C, places: P, sites: &[Site]) -> bool;
}

/// The phases of `&&` and `||`.
pub trait LazyParts<C> {
    /// After the left side, which decides alone if it equals `decides`: `false` for `&&`, `true` for `||`.
    fn begin(left: C, decides: bool) -> Self;
    /// Whether to compute the right side.
    fn right<P: Places>(&mut self, places: P) -> bool;
}

/// The values that a construct with this condition may change or have: any for `bool`, a [`Carry`] for a tensor.
///
/// It is a trait of the condition, not of the value, so that a condition of unknown type leaves the question open.
pub trait Changes<T: ?Sized> {
    /// Takes a value apart; nothing is left of it for a host condition.
    fn save(value: &T) -> State;
    /// Replaces a value.
    fn load(value: &mut T, state: &State);
}

impl<T: ?Sized> Changes<T> for bool {
    #[inline]
    fn save(_value: &T) -> State {
        State::default()
    }
    #[inline]
    fn load(_value: &mut T, _state: &State) {}
}

impl<T: Carry> Changes<T> for Tensor<bool> {
    fn save(value: &T) -> State {
        State::of(value)
    }
    fn load(value: &mut T, state: &State) {
        *value = state.rebuild();
    }
}

#[diagnostic::do_not_recommend]
impl<T: Carry> Changes<[T]> for Tensor<bool> {
    fn save(value: &[T]) -> State {
        let mut state = State::default();
        state.items(value);
        state
    }
    fn load(value: &mut [T], state: &State) {
        state.rebuild_items(value);
    }
}

/// A value that an `if` can have whatever its tensor condition turns out to be.
#[diagnostic::on_unimplemented(
    message = "a staged `if` cannot produce the host value of type `{Self}`",
    label = "an `if` on a tensor has this value",
    note = "wrap it, as in `scalar(1)`, or decide on a host value",
    note = "for a struct of tensors, add `#[derive(Carry)]`"
)]
pub trait Product: Carry {}

#[diagnostic::do_not_recommend]
impl<T: Carry> Product for T {}

/// Conditions under which an `if` may have a value of type `T`.
pub trait Produces<T> {
    /// Takes a value apart.
    fn take_apart(value: &T) -> State;
    /// Puts a value together; `None` for host conditions, which leave it whole.
    fn put_together(state: &State) -> Option<T>;
}

impl<T> Produces<T> for bool {
    #[inline]
    fn take_apart(_value: &T) -> State {
        State::default()
    }
    #[inline]
    fn put_together(_state: &State) -> Option<T> {
        None
    }
}

impl<T: Product> Produces<T> for Tensor<bool> {
    fn take_apart(value: &T) -> State {
        State::of(value)
    }
    fn put_together(state: &State) -> Option<T> {
        Some(state.rebuild())
    }
}

/// The values of the arms of an `if`, each there if its arm ran to its end.
#[derive(Debug)]
pub struct Values<T> {
    /// Of the first arm.
    pub then: Option<T>,
    /// Of the second arm.
    pub otherwise: Option<T>,
    pub(super) take_apart: fn(&T) -> State,
    pub(super) put_together: fn(&State) -> Option<T>,
}

impl<T> Values<T> {
    /// No values yet, of an `if` with a condition of type `C`.
    #[inline]
    pub(super) fn new<C: Produces<T>>() -> Values<T> {
        Values { then: None, otherwise: None, take_apart: C::take_apart, put_together: C::put_together }
    }
}

/// A place that a construct changes.
#[derive(Debug)]
pub struct Place<'a, T: ?Sized> {
    at: &'a mut T,
    save: fn(&T) -> State,
    load: fn(&mut T, &State),
}

impl<'a, T: ?Sized> Place<'a, T> {
    /// A place that a construct with a condition of type `C` changes.
    #[inline]
    pub(super) fn new<C: Changes<T>>(at: &'a mut T) -> Place<'a, T> {
        Place { at, save: C::save, load: C::load }
    }
}

/// The places that a construct changes: `(a, (b, ()))`.
pub trait Places {
    /// Takes the values of the places apart, in order.
    fn save(&self, into: &mut Vec<State>);
    /// Replaces the values of the places.
    fn load(&mut self, from: &[State]);
}

impl Places for () {
    fn save(&self, _into: &mut Vec<State>) {}
    fn load(&mut self, _from: &[State]) {}
}

impl<T: ?Sized, R: Places> Places for (Place<'_, T>, R) {
    fn save(&self, into: &mut Vec<State>) {
        into.push((self.0.save)(self.0.at));
        self.1.save(into);
    }
    fn load(&mut self, from: &[State]) {
        let (first, rest) = from.split_first().expect("one state for each place");
        (self.0.load)(self.0.at, first);
        self.1.load(rest);
    }
}

/// A place that may turn out not to change has an empty state then.
impl<T: ?Sized, R: Places> Places for (Option<Place<'_, T>>, R) {
    fn save(&self, into: &mut Vec<State>) {
        into.push(self.0.as_ref().map(|place| (place.save)(place.at)).unwrap_or_default());
        self.1.save(into);
    }
    fn load(&mut self, from: &[State]) {
        let (first, rest) = from.split_first().expect("one state for each place");
        if let Some(place) = &mut self.0 {
            (place.load)(place.at, first);
        }
        self.1.load(rest);
    }
}

/// The states of the places.
pub(super) fn save(places: &impl Places) -> Vec<State> {
    let mut states = Vec::new();
    places.save(&mut states);
    states
}

/// All tensors of the states, in order.
pub(super) fn tensors(states: &[State]) -> Vec<Any> {
    states.iter().flat_map(State::tensors).copied().collect()
}

/// The states with other tensors in place of theirs.
pub(super) fn with_tensors(states: &[State], tensors: Vec<Any>) -> Vec<State> {
    let mut tensors = tensors.into_iter();
    states.iter().map(|s| s.with_tensors(&mut tensors)).collect()
}

/// For each tensor of a place the site of the place, with the name of the leaf that it is.
pub(super) fn tensor_sites(states: &[State], sites: &[Site]) -> Vec<Site> {
    states.iter().zip(sites).flat_map(|(state, site)| leaf_sites(state, *site)).collect()
}

/// The site of a value for each tensor in it, with the name of the leaf.
pub(crate) fn leaf_sites(state: &State, site: Site) -> impl Iterator<Item = Site> {
    state.paths().map(move |path| {
        let name = if path.is_empty() { site.name } else { intern(&format!("{}{path}", site.name)) };
        Site { name, ..site }
    })
}

/// Gives zeros to places of `a` that have no value yet and have one in `b`, in the present region.
#[track_caller]
pub(super) fn fill(a: &mut [State], b: &[State]) {
    for (a, b) in a.iter_mut().zip(b) {
        if a.is_undefined() && !b.is_undefined() {
            *a = b.zeros_like();
        }
    }
}

/// Ends the trace if the structure of a place differs between two moments, which `moments` gives words for.
pub(super) fn check_structure(a: &[State], b: &[State], sites: &[Site], moments: [&str; 2]) {
    for ((a, b), site) in a.iter().zip(b).zip(sites) {
        check_one_structure(a, b, *site, moments, "changed here, under a condition that is a tensor");
    }
}

/// Ends the trace if the structure of one value differs between two moments; `label` says what is to be seen at the site.
pub(crate) fn check_one_structure(a: &State, b: &State, site: Site, moments: [&str; 2], label: &str) {
    if a.has_err() || b.has_err() {
        trace::fail(carry::staged_err().at(site.loc(), label));
    }
    if let Some(Difference { path, words: [was, is], is_length }) = a.difference(b) {
        let error = format!("`{}{path}` has {was} {}, but {is} {}", site.shown(), moments[0], moments[1]);
        let help = match is_length {
            true => {
                "a vector has one length in the graph: a `List` of tensors grows there, with `push`, and `stack` joins it"
            }
            false => "lengths, options and host values are fixed in the graph; let only tensors change",
        };
        trace::fail(Diagnostic::new(error).at(site.loc(), label).help(help));
    }
}
