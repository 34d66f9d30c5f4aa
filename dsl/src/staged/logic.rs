//! `&&` and `||`, which compute their right side only if the left side does not decide the result.

use super::FlatState;
use super::condition::{self, CarriedPlace, CarriedPlaces, Changes, Condition, LazyParts};
use crate::trace::{self, CondTrace, Site};
use crate::{AnyValue, Diagnostic, HostTensor, Tensor, scalar};

/// An `&&` or `||` between its sides.
///
/// A scalar tensor on the left stages a branch around the right side. A tensor of higher rank is
/// combined with the right side elementwise.
#[must_use]
#[derive(Debug)]
pub struct Logical<L: Condition>(L::Lazy);

impl<L: Condition> Logical<L> {
    /// Starts an `&&` after its left side.
    #[inline]
    #[track_caller]
    pub fn and(left: L) -> Logical<L> {
        Logical(L::Lazy::begin(left, false))
    }

    /// Starts an `||` after its left side.
    #[inline]
    #[track_caller]
    pub fn or(left: L) -> Logical<L> {
        Logical(L::Lazy::begin(left, true))
    }

    /// Borrows a place that the right side modifies.
    #[inline]
    pub fn place<'a, T: ?Sized>(&self, at: &'a mut T) -> CarriedPlace<'a, T>
    where
        L: Changes<T>,
    {
        CarriedPlace::new::<L>(at)
    }

    /// Returns whether to compute the right side.
    #[inline]
    #[track_caller]
    pub fn right<P: CarriedPlaces>(&mut self, places: P, _sites: &[Site]) -> bool {
        self.0.right(places)
    }

    /// Returns the result, given the right side if it was computed.
    #[inline]
    #[track_caller]
    pub fn end<P: CarriedPlaces, V: Condition>(
        &mut self,
        places: P,
        sites: &[Site],
        right: Option<V>,
    ) -> <L::Lazy as Join<L, V>>::Output
    where
        L::Lazy: Join<L, V>,
    {
        self.0.join(places, sites, right)
    }
}

/// The combination of the sides of an `&&` or `||`. The result is a `bool` only if both sides are.
pub trait Join<L, V> {
    /// `bool` or `Tensor<bool>`.
    type Output;
    /// Combines the sides.
    fn join<P: CarriedPlaces>(&mut self, places: P, sites: &[Site], right: Option<V>) -> Self::Output;
}

/// The state of `&&` or `||` with a left side of type `L`.
#[derive(Debug)]
pub struct Lazy<L> {
    left: L,
    decides: bool,
}

impl LazyParts<bool> for Lazy<bool> {
    #[inline]
    fn begin(left: bool, decides: bool) -> Self {
        Lazy { left, decides }
    }
    #[inline]
    fn right<P: CarriedPlaces>(&mut self, _places: P) -> bool {
        self.left != self.decides
    }
}

impl Join<bool, bool> for Lazy<bool> {
    type Output = bool;
    #[inline]
    fn join<P: CarriedPlaces>(&mut self, _places: P, _sites: &[Site], right: Option<bool>) -> bool {
        right.unwrap_or(self.decides)
    }
}

impl Join<bool, Tensor<bool>> for Lazy<bool> {
    type Output = Tensor<bool>;
    #[track_caller]
    fn join<P: CarriedPlaces>(&mut self, _places: P, _sites: &[Site], right: Option<Tensor<bool>>) -> Tensor<bool> {
        match right {
            Some(right) => right,
            None => scalar(self.decides),
        }
    }
}

/// The state of `&&` or `||` with a tensor on the left.
#[derive(Debug)]
pub struct StagedLazy {
    left: AnyValue,
    decides: bool,
    before: Vec<FlatState>,
    /// The branch around the right side, if the left side is a scalar.
    branch: Option<CondTrace>,
}

impl LazyParts<Tensor<bool>> for StagedLazy {
    #[track_caller]
    fn begin(left: Tensor<bool>, decides: bool) -> Self {
        let left = left.untyped();
        StagedLazy { left, decides, before: Vec::new(), branch: None }
    }

    #[track_caller]
    fn right<P: CarriedPlaces>(&mut self, places: P) -> bool {
        self.before = condition::save(&places);
        if self.left.rank() == 0 {
            let mut branch = CondTrace::begin(self.left);
            branch.select(self.right_branch());
            self.branch = Some(branch);
        }
        true
    }
}

impl StagedLazy {
    /// Returns the branch of the right side: `&&` computes it if the left side holds, `||` if it
    /// does not.
    fn right_branch(&self) -> usize {
        usize::from(self.decides)
    }

    /// Combines the sides. `right` is in the branch of the right side, if there is one.
    #[track_caller]
    fn join_tensor<P: CarriedPlaces>(&mut self, mut places: P, sites: &[Site], right: AnyValue) -> Tensor<bool> {
        let now = condition::save(&places);
        condition::check_structure(&self.before, &now, sites, ["on the left of `&&` or `||`", "on the right"]);
        let right_branch = self.right_branch();
        let Some(mut branch) = self.branch.take() else {
            for ((a, b), site) in self.before.iter().zip(&now).zip(sites) {
                if a.tensors() != b.tensors() {
                    trace::fail(
                        Diagnostic::new(format!(
                            "the right side of an elementwise `&&` or `||` modifies `{}`",
                            site.name
                        ))
                        .at(site.loc(), "modified here")
                        .help(
                            "the left side is not a scalar, so both sides are always evaluated: modify the variable \
                             before",
                        ),
                    );
                }
            }
            let value = if self.decides { self.left.or(right) } else { self.left.and(right) };
            return Tensor::from_any(value);
        };
        let shape = right.shape();
        branch.select(1 - right_branch);
        let mut decided = trace::constant(HostTensor::scalar(self.decides));
        if shape.rank() > 0 {
            decided = decided.broadcast_to(shape);
        }
        let tensor_sites = condition::tensor_sites(&now, sites);
        let (mut with, mut without) = (condition::tensors(&now), condition::tensors(&self.before));
        with.push(right);
        without.push(decided);
        let mut results = match right_branch {
            0 => branch.end(&with, &without, &tensor_sites),
            _ => branch.end(&without, &with, &tensor_sites),
        };
        let value = results.pop().expect("the value was pushed");
        places.load(&condition::with_tensors(&now, results));
        Tensor::from_any(value)
    }
}

const COMPUTED: &str = "a staged `&&` or `||` computes its right side";

impl Join<Tensor<bool>, Tensor<bool>> for StagedLazy {
    type Output = Tensor<bool>;
    #[track_caller]
    fn join<P: CarriedPlaces>(&mut self, places: P, sites: &[Site], right: Option<Tensor<bool>>) -> Tensor<bool> {
        self.join_tensor(places, sites, right.expect(COMPUTED).untyped())
    }
}

impl Join<Tensor<bool>, bool> for StagedLazy {
    type Output = Tensor<bool>;
    #[track_caller]
    fn join<P: CarriedPlaces>(&mut self, places: P, sites: &[Site], right: Option<bool>) -> Tensor<bool> {
        let right = trace::constant(HostTensor::scalar(right.expect(COMPUTED)));
        self.join_tensor(places, sites, right)
    }
}
