//! The type of a condition decides what a construct means.

use super::{Carry, State};
use crate::trace::{self, Site};
use crate::{Any, Diagnostic, Tensor};

/// What can stand between `if` and `{`: `bool`, with the meaning of Rust, or `Tensor<bool>`, which is staged.
#[diagnostic::on_unimplemented(
    message = "a condition is a `bool` or a `Tensor<bool>`, not `{Self}`",
    label = "not a condition",
    note = "compare it, as in `x != 0`, to get one"
)]
pub trait Condition: Sized {
    /// The state of an `if` on it.
    type If: IfArms<Self>;
    /// The state of a `while` on it.
    type While: WhileParts<Self> + Default;
    /// The state of an `&&` or `||` with it on the left.
    type Lazy: LazyParts<Self>;
}

/// The phases of an `if`.
pub trait IfArms<C> {
    /// After the condition.
    fn begin(condition: C) -> Self;
    /// Whether to run the first arm.
    fn then_arm<R: Refs<C>>(&mut self, refs: R) -> bool;
    /// Whether to run the second arm.
    fn else_arm<R: Refs<C>>(&mut self, refs: R, sites: &[Site]) -> bool;
    /// After the arms, of which each has a value or none.
    fn end<R: Refs<C>, T: ProducedBy<C>>(self, refs: R, sites: &[Site], values: (Option<T>, Option<T>)) -> Option<T>;
}

/// The phases of a `while`.
pub trait WhileParts<C> {
    /// At the head of the loop: whether to compute the condition.
    fn more<R: Refs<C>>(&mut self, refs: R, sites: &[Site]) -> bool;
    /// Whether to run the body.
    fn test<R: Refs<C>>(&mut self, condition: C, refs: R, sites: &[Site]) -> bool;
}

/// The phases of `&&` and `||`.
pub trait LazyParts<C> {
    /// After the left side, which decides alone if it equals `decides`: `false` for `&&`, `true` for `||`.
    fn begin(left: C, decides: bool) -> Self;
    /// Whether to compute the right side.
    fn right<R: Refs<C>>(&mut self, refs: R) -> bool;
}

/// A value that a construct with a condition of type `C` may change: any value for `bool`, a [`Carry`] for a tensor.
#[diagnostic::on_unimplemented(
    message = "a staged `if` or `while` cannot change the host value of type `{Self}`",
    label = "changed under a condition that is a tensor",
    note = "make it a tensor with `scalar(..)`, or decide on a host value",
    note = "for a struct of tensors, add `#[derive(Carry)]`"
)]
pub trait CarriedBy<C> {
    /// Takes it apart.
    fn save(&self) -> State {
        State::default()
    }
    /// Replaces it.
    fn load(&mut self, _state: &State) {}
}

impl<T: ?Sized> CarriedBy<bool> for T {}

#[diagnostic::do_not_recommend]
impl<T: Carry> CarriedBy<Tensor<bool>> for T {
    fn save(&self) -> State {
        State::of(self)
    }
    #[track_caller]
    fn load(&mut self, state: &State) {
        *self = state.rebuild();
    }
}

/// A value that an `if` with a condition of type `C` may have: any value for `bool`, a [`Carry`] for a tensor.
#[diagnostic::on_unimplemented(
    message = "a staged `if` cannot produce the host value of type `{Self}`",
    label = "the value of an `if` on a tensor",
    note = "wrap it, as in `scalar(1)`, or decide on a host value",
    note = "for a struct of tensors, add `#[derive(Carry)]`"
)]
pub trait ProducedBy<C>: Sized {
    /// Takes it apart.
    fn take_apart(&self) -> State {
        State::default()
    }
    /// Puts it together; only for staged conditions.
    fn put_together(_state: &State) -> Option<Self> {
        None
    }
}

impl<T> ProducedBy<bool> for T {}

#[diagnostic::do_not_recommend]
impl<T: Carry> ProducedBy<Tensor<bool>> for T {
    fn take_apart(&self) -> State {
        State::of(self)
    }
    #[track_caller]
    fn put_together(state: &State) -> Option<Self> {
        Some(state.rebuild())
    }
}

/// Mutable references to the places that a construct changes: `(&mut a, (&mut b, ()))`.
pub trait Refs<C> {
    /// Takes the values of the places apart, in order.
    fn save(&self, into: &mut Vec<State>);
    /// Replaces the values of the places.
    fn load(&mut self, from: &[State]);
}

impl<C> Refs<C> for () {
    fn save(&self, _into: &mut Vec<State>) {}
    fn load(&mut self, _from: &[State]) {}
}

#[diagnostic::do_not_recommend]
impl<C, T: CarriedBy<C> + ?Sized, R: Refs<C>> Refs<C> for (&mut T, R) {
    fn save(&self, into: &mut Vec<State>) {
        into.push(<T as CarriedBy<C>>::save(&*self.0));
        self.1.save(into);
    }
    #[track_caller]
    fn load(&mut self, from: &[State]) {
        let (first, rest) = from.split_first().expect("one state for each place");
        <T as CarriedBy<C>>::load(&mut *self.0, first);
        self.1.load(rest);
    }
}

/// The states of the places.
pub(super) fn save<C>(refs: &impl Refs<C>) -> Vec<State> {
    let mut states = Vec::new();
    refs.save(&mut states);
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

/// The site of the place for each tensor in it.
pub(super) fn tensor_sites(states: &[State], sites: &[Site]) -> Vec<Site> {
    let repeat = |(state, site): (&State, &Site)| std::iter::repeat_n(*site, state.tensors().len());
    states.iter().zip(sites).flat_map(repeat).collect()
}

/// Ends the trace if the structure of a place differs between two moments, which `moments` gives words for.
pub(super) fn check_structure(a: &[State], b: &[State], sites: &[Site], moments: [&str; 2]) {
    for ((a, b), site) in a.iter().zip(b).zip(sites) {
        if let Some((was, is)) = a.difference(b) {
            let error = format!("`{}` has {was} {}, but {is} {}", site.name, moments[0], moments[1]);
            trace::fail(
                Diagnostic::new(error)
                    .at(site.loc(), "changed here, under a condition that is a tensor")
                    .help("lengths, options and host values are fixed in the graph; let only tensors change"),
            );
        }
    }
}
