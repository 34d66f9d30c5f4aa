//! `while`.

use super::FlatState;
use super::condition::{self, CarriedPlace, CarriedPlaces, Changes, Condition, WhileParts};
use crate::trace::{self, Site, WhileTrace};
use crate::{AnyValue, HostTensor, Tensor};

/// A `while`. The type of its condition is inferred where it is tested.
#[must_use]
#[derive(Debug)]
pub struct While<C: Condition>(C::While);

impl<C: Condition> While<C> {
    /// Creates the state before the loop.
    #[inline]
    #[expect(clippy::new_without_default, reason = "only the expansion creates loops")]
    pub fn new() -> While<C> {
        While(C::While::default())
    }

    /// Borrows a place that the loop modifies.
    #[inline]
    pub fn place<'a, T: ?Sized>(&self, at: &'a mut T) -> CarriedPlace<'a, T>
    where
        C: Changes<T>,
    {
        CarriedPlace::new::<C>(at)
    }

    /// Returns whether to compute the condition, at the head of the loop. The trace of a staged
    /// loop passes the head twice: before the condition and after the body.
    #[inline]
    #[track_caller]
    pub fn more<P: CarriedPlaces>(&mut self, places: P, sites: &[Site]) -> bool {
        self.0.more(places, sites)
    }

    /// Returns whether to run the body.
    #[inline]
    #[track_caller]
    pub fn test<P: CarriedPlaces>(&mut self, condition: C, places: P, sites: &[Site]) -> bool {
        self.0.test(condition, places, sites)
    }
}

impl WhileParts<bool> for () {
    #[inline]
    fn more<P: CarriedPlaces>(&mut self, _places: P, _sites: &[Site]) -> bool {
        true
    }
    #[inline]
    fn test<P: CarriedPlaces>(&mut self, condition: bool, _places: P, _sites: &[Site]) -> bool {
        condition
    }
}

/// The state of a staged `while`: the part that is being traced, with the loop variables at its
/// start.
#[derive(Debug, Default)]
pub enum StagedWhile {
    /// Before the loop.
    #[default]
    Before,
    /// In the condition.
    Condition(WhileTrace, Vec<FlatState>, Option<Trips>),
    /// In the body.
    Body(WhileTrace, Vec<FlatState>, Option<Trips>),
    /// After the loop.
    After,
}

/// The bound of a loop in a function with `max_iterations`. The last loop variable counts the
/// iterations.
#[derive(Clone, Copy, Debug)]
pub struct Trips {
    /// The iterations so far, as a value of the part that is being traced.
    count: AnyValue,
    limit: i64,
}

impl Trips {
    /// Removes the counter, the last loop variable, from the parameters.
    fn taken(self, params: &mut Vec<AnyValue>) -> Trips {
        Trips { count: params.pop().expect("the counter is a loop variable"), ..self }
    }
}

fn int(x: i64) -> AnyValue {
    trace::constant(HostTensor::scalar(x))
}

impl WhileParts<Tensor<bool>> for StagedWhile {
    #[track_caller]
    fn more<P: CarriedPlaces>(&mut self, mut places: P, sites: &[Site]) -> bool {
        match std::mem::replace(self, StagedWhile::After) {
            StagedWhile::Before => {
                let init = condition::save(&places);
                let sites = condition::tensor_sites(&init, sites);
                let bound = trace::max_iterations().map(|limit| Trips { count: int(0), limit });
                let mut tensors = condition::tensors(&init);
                tensors.extend(bound.map(|b| b.count));
                let (trace, mut params) = WhileTrace::begin(&tensors, &sites);
                let bound = bound.map(|b| b.taken(&mut params));
                let params = condition::with_tensors(&init, params);
                places.load(&params);
                *self = StagedWhile::Condition(trace, params, bound);
                true
            }
            StagedWhile::Body(mut trace, params, bound) => {
                let mut next = condition::save(&places);
                // A place that was initialized before the loop and taken in it keeps its value.
                for (next, param) in next.iter_mut().zip(&params) {
                    if next.is_undefined() {
                        *next = param.clone();
                    }
                }
                // A place that is initialized in the loop becomes a loop variable with initial
                // zeros.
                let late = |i: usize| params[i].is_undefined() && !next[i].is_undefined();
                let split = |late_ones: bool| (0..next.len()).filter(move |&i| late(i) == late_ones);
                let of = |late_ones: bool| -> (Vec<FlatState>, Vec<FlatState>, Vec<Site>) {
                    let pick = |from: &[FlatState]| split(late_ones).map(|i| from[i].clone()).collect();
                    (pick(&params), pick(&next), split(late_ones).map(|i| sites[i]).collect())
                };
                let ((declared, declared_next, declared_sites), (_, late_next, _)) = (of(false), of(true));
                let words = ["before the loop", "after one iteration"];
                condition::check_structure(&declared, &declared_next, &declared_sites, words);
                let late_tensors = condition::tensors(&late_next);
                late_tensors.iter().for_each(|&t| trace.add_late(t));
                let tensor_sites = condition::tensor_sites(&declared_next, &declared_sites);
                let mut next_tensors = condition::tensors(&declared_next);
                let n_declared = next_tensors.len();
                next_tensors.extend(bound.map(|b| b.count.add(int(1))));
                let mut results = trace.end_with(&next_tensors, &late_tensors, &tensor_sites);
                if bound.is_some() {
                    results.remove(n_declared);
                }
                let mut results = results.into_iter();
                let mut ended: Vec<Option<FlatState>> = vec![None; next.len()];
                for i in split(false).chain(split(true)) {
                    ended[i] = Some(next[i].with_tensors(&mut results));
                }
                places.load(&ended.into_iter().flatten().collect::<Vec<_>>());
                false
            }
            StagedWhile::Condition(..) | StagedWhile::After => {
                unreachable!("the parts of a loop are staged in order")
            }
        }
    }

    #[track_caller]
    fn test<P: CarriedPlaces>(&mut self, condition: Tensor<bool>, mut places: P, sites: &[Site]) -> bool {
        let StagedWhile::Condition(mut trace, params, bound) = std::mem::replace(self, StagedWhile::After) else {
            unreachable!("the parts of a loop are staged in order")
        };
        let now = condition::save(&places);
        condition::check_structure(&params, &now, sites, ["before the loop", "after its condition"]);
        let condition = condition.untyped();
        let condition = bound.map_or(condition, |b| b.count.lt(int(b.limit)).and(condition));
        let changes = params.iter().zip(&now).any(|(before, now)| before.tensors() != now.tensors());
        let (mut in_body, start) = if changes {
            let (in_body, start) = trace.begin_body_after(condition, &condition::tensors(&now));
            (in_body, Some(start))
        } else {
            (trace.begin_body(condition), None)
        };
        let bound = bound.map(|b| b.taken(&mut in_body));
        let params = condition::with_tensors(&params, in_body);
        match start {
            Some(start) => places.load(&condition::with_tensors(&now, start)),
            None => places.load(&params),
        }
        *self = StagedWhile::Body(trace, params, bound);
        true
    }
}
