//! `if` and `else`.

use super::condition::{self, Condition, IfArms, Produces, Refs, Values};
use super::{Lazy, State};
use crate::trace::{self, CondTrace, Site};
use crate::{Diagnostic, Tensor};

/// An `if` between its condition and its end.
#[must_use]
#[derive(Debug)]
pub struct If<C: Condition>(C::If);

impl<C: Condition> If<C> {
    /// After the condition.
    #[inline]
    #[track_caller]
    pub fn new(condition: C) -> If<C> {
        If(C::If::begin(condition))
    }

    /// Whether to run the first arm.
    #[inline]
    #[track_caller]
    pub fn then_arm<R: Refs<C>>(&mut self, refs: R, _sites: &[Site]) -> bool {
        self.0.then_arm(refs)
    }

    /// Whether to run the second arm.
    #[inline]
    #[track_caller]
    pub fn else_arm<R: Refs<C>>(&mut self, refs: R, sites: &[Site]) -> bool {
        self.0.else_arm(refs, sites)
    }

    /// A place for the values of the arms.
    #[inline]
    pub fn values<T>(&self) -> Values<T>
    where
        C: Produces<T>,
    {
        Values::new::<C>()
    }

    /// The end of an `if` that has no value.
    #[inline]
    #[track_caller]
    pub fn end<R: Refs<C>>(self, refs: R, sites: &[Site])
    where
        C: Produces<()>,
    {
        self.0.end(refs, sites, Values { then: Some(()), otherwise: Some(()), ..Values::new::<C>() });
    }

    /// The end of an `if` that has a value: that of the arm that ran.
    #[inline]
    #[track_caller]
    pub fn end_value<R: Refs<C>, T>(self, refs: R, sites: &[Site], values: Values<T>) -> T {
        self.0.end(refs, sites, values).expect("one of the arms ran to its end")
    }
}

impl Condition for bool {
    type Itself = bool;
    #[inline]
    fn itself(self) -> bool {
        self
    }
    type If = bool;
    type While = ();
    type Lazy = Lazy<bool>;
}

impl IfArms<bool> for bool {
    #[inline]
    fn begin(condition: bool) -> bool {
        condition
    }
    #[inline]
    fn then_arm<R: Refs<bool>>(&mut self, _refs: R) -> bool {
        *self
    }
    #[inline]
    fn else_arm<R: Refs<bool>>(&mut self, _refs: R, _sites: &[Site]) -> bool {
        !*self
    }
    #[inline]
    fn end<R: Refs<bool>, T>(self, _refs: R, _sites: &[Site], values: Values<T>) -> Option<T> {
        if self { values.then } else { values.otherwise }
    }
}

/// The state of a staged `if`.
#[derive(Debug)]
pub struct StagedIf {
    trace: CondTrace,
    before: Vec<State>,
    /// The values after the first arm, once the second one has begun.
    then: Option<Vec<State>>,
}

impl IfArms<Tensor<bool>> for StagedIf {
    #[track_caller]
    fn begin(condition: Tensor<bool>) -> StagedIf {
        StagedIf { trace: CondTrace::begin(condition.any()), before: Vec::new(), then: None }
    }

    fn then_arm<R: Refs<Tensor<bool>>>(&mut self, refs: R) -> bool {
        self.before = condition::save(&refs);
        true
    }

    #[track_caller]
    fn else_arm<R: Refs<Tensor<bool>>>(&mut self, mut refs: R, _sites: &[Site]) -> bool {
        self.then = Some(condition::save(&refs));
        refs.load(&self.before);
        self.trace.select(1);
        true
    }

    #[track_caller]
    fn end<R: Refs<Tensor<bool>>, T>(mut self, mut refs: R, sites: &[Site], values: Values<T>) -> Option<T> {
        if self.then.is_none() {
            self.trace.select(1);
        }
        let now = condition::save(&refs);
        // Without an `else` the second arm leaves everything as it was.
        let (mut then, mut otherwise) = match self.then {
            Some(then) => (then, now),
            None => (now, self.before),
        };
        condition::check_structure(&then, &otherwise, sites, ["after the first branch", "after the second"]);
        let tensor_sites = condition::tensor_sites(&then, sites);
        let (Some(a), Some(b)) = (values.then, values.otherwise) else {
            trace::fail(Diagnostic::new("a branch of a staged `if` does not come to its end"));
        };
        let (a, b) = ((values.take_apart)(&a), (values.take_apart)(&b));
        if let Some((a, b)) = a.difference(&b) {
            trace::fail(
                Diagnostic::new(format!("the branches of a staged `if` have values of different structure: {a} and {b}"))
                    .at(crate::Loc::caller(), "the value of this `if`")
                    .help("lengths, options and host values are fixed in the graph; let only tensors differ"),
            );
        }
        then.push(a);
        otherwise.push(b);
        let results = self.trace.end(&condition::tensors(&then), &condition::tensors(&otherwise), &tensor_sites);
        let mut results = condition::with_tensors(&then, results);
        let value = results.pop().expect("the value was pushed");
        refs.load(&results);
        (values.put_together)(&value)
    }
}
