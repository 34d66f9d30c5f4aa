//! `if` and `else`.

use super::FlatState;
use super::condition::{self, CarriedPlace, CarriedPlaces, Changes, Condition, IfArms, Produces, Values};
use crate::Tensor;
use crate::trace::{self, CondTrace, Site};

/// An `if` between its condition and its end.
#[must_use]
#[derive(Debug)]
pub struct If<C: Condition>(C::If);

impl<C: Condition> If<C> {
    /// Starts the `if` after its condition.
    #[inline]
    #[track_caller]
    pub fn new(condition: C) -> If<C> {
        If(C::If::begin(condition))
    }

    /// Borrows a place that the `if` modifies.
    #[inline]
    pub fn place<'a, T: ?Sized>(&self, at: &'a mut T) -> CarriedPlace<'a, T>
    where
        C: Changes<T>,
    {
        CarriedPlace::new::<C>(at)
    }

    /// Returns whether to run the first arm.
    #[inline]
    #[track_caller]
    pub fn then_arm<P: CarriedPlaces>(&mut self, places: P, _sites: &[Site]) -> bool {
        self.0.then_arm(places)
    }

    /// Returns whether to run the second arm.
    #[inline]
    #[track_caller]
    pub fn else_arm<P: CarriedPlaces>(&mut self, places: P, sites: &[Site]) -> bool {
        self.0.else_arm(places, sites)
    }

    /// Creates a place for the values of the arms.
    #[inline]
    pub fn values<T>(&self) -> Values<T>
    where
        C: Produces<T>,
    {
        Values::new::<C>()
    }

    /// Ends an `if` without a value.
    #[inline]
    #[track_caller]
    pub fn end<P: CarriedPlaces>(&mut self, places: P, sites: &[Site])
    where
        C: Produces<()>,
    {
        self.0.end(places, sites, Values { then: Some(()), otherwise: Some(()), ..Values::new::<C>() });
    }

    /// Ends an `if` with a value, which it returns: that of the arm that ran.
    #[inline]
    #[track_caller]
    pub fn end_value<P: CarriedPlaces, T>(&mut self, places: P, sites: &[Site], values: Values<T>) -> T {
        self.0.end(places, sites, values).expect("one of the arms ran to its end")
    }

    /// Returns the proof if tracing goes on after a jump.
    #[inline]
    pub(super) fn stays(&self) -> Option<C::Stays> {
        self.0.stays()
    }

    /// Ends an `if` with jumps in its arms. Returns `None` if each arm that ran was left.
    #[inline]
    #[track_caller]
    pub fn end_unless_left<P: CarriedPlaces, T>(&mut self, places: P, sites: &[Site], values: Values<T>) -> Option<T> {
        self.0.end(places, sites, values)
    }
}

impl IfArms<bool> for bool {
    #[inline]
    fn begin(condition: bool) -> bool {
        condition
    }
    #[inline]
    fn stays(&self) -> Option<std::convert::Infallible> {
        None
    }
    #[inline]
    fn then_arm<P: CarriedPlaces>(&mut self, _places: P) -> bool {
        *self
    }
    #[inline]
    fn else_arm<P: CarriedPlaces>(&mut self, _places: P, _sites: &[Site]) -> bool {
        !*self
    }
    #[inline]
    fn end<P: CarriedPlaces, T>(&mut self, _places: P, _sites: &[Site], values: Values<T>) -> Option<T> {
        if *self { values.then } else { values.otherwise }
    }
}

/// The state of a staged `if`.
#[derive(Debug)]
pub struct StagedIf {
    /// The trace until the end, or `None` if the first arm is unconditional.
    trace: Option<CondTrace>,
    is_unconditional: bool,
    before: Vec<FlatState>,
    /// The values after the first arm, once the second arm has begun.
    then: Option<Vec<FlatState>>,
}

const ENDS_ONCE: &str = "an `if` ends once";

impl StagedIf {
    fn trace(&mut self) -> &mut CondTrace {
        self.trace.as_mut().expect(ENDS_ONCE)
    }
}

impl IfArms<Tensor<bool>> for StagedIf {
    #[track_caller]
    fn begin(condition: Tensor<bool>) -> StagedIf {
        let is_unconditional = trace::take_unconditional(condition.untyped());
        let trace = if is_unconditional { None } else { Some(CondTrace::begin(condition.untyped())) };
        StagedIf { trace, is_unconditional, before: Vec::new(), then: None }
    }

    fn stays(&self) -> Option<()> {
        (!self.is_unconditional).then_some(())
    }

    fn then_arm<P: CarriedPlaces>(&mut self, places: P) -> bool {
        if !self.is_unconditional {
            self.before = condition::save(&places);
        }
        true
    }

    #[track_caller]
    fn else_arm<P: CarriedPlaces>(&mut self, mut places: P, _sites: &[Site]) -> bool {
        if self.is_unconditional {
            return false;
        }
        self.then = Some(condition::save(&places));
        places.load(&self.before);
        self.trace().select(1);
        true
    }

    #[track_caller]
    fn end<P: CarriedPlaces, T>(&mut self, mut places: P, sites: &[Site], values: Values<T>) -> Option<T> {
        if self.is_unconditional {
            return values.then;
        }
        if self.then.is_none() {
            self.trace().select(1);
        }
        let now = condition::save(&places);
        // Without an `else`, the second arm modifies nothing.
        let (mut then, mut otherwise) = match self.then.take() {
            Some(then) => (then, now),
            None => (now, std::mem::take(&mut self.before)),
        };
        // A value that only one arm has: the other arm has left, or has not assigned it.
        let mut value = [values.then, values.otherwise].map(|v| v.map(|v| (values.take_apart)(&v)));
        self.trace().select(0);
        condition::fill(&mut then, &otherwise);
        if let [gap @ None, Some(given)] = &mut value {
            *gap = Some(given.zeros_like());
        }
        self.trace().select(1);
        condition::fill(&mut otherwise, &then);
        if let [Some(given), gap @ None] = &mut value {
            *gap = Some(given.zeros_like());
        }
        condition::check_structure(&then, &otherwise, sites, ["after the first branch", "after the second"]);
        let mut tensor_sites = condition::tensor_sites(&then, sites);
        // If both arms were left, there is no value.
        let has_value = value[0].is_some();
        if let [Some(a), Some(b)] = value {
            let site = Site::caller("value");
            let moments = ["in the first branch", "in the second"];
            condition::check_one_structure(&a, &b, site, moments, "the value of these branches");
            if a.paths().any(|path| !path.is_empty()) {
                tensor_sites.extend(condition::leaf_sites(&a, site));
            }
            then.push(a);
            otherwise.push(b);
        }
        let results = self.trace.take().expect(ENDS_ONCE).end(
            &condition::tensors(&then),
            &condition::tensors(&otherwise),
            &tensor_sites,
        );
        let mut results = condition::with_tensors(&then, results);
        let value = if has_value { results.pop() } else { None };
        places.load(&results);
        value.and_then(|value| (values.put_together)(&value))
    }
}
