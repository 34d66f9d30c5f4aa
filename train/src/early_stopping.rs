//! Early stopping.

use anabranch_checkpoint::Goal;
use serde::{Deserialize, Serialize};

/// When a run ends because the monitored metric does not improve any more.
///
/// A value is an improvement if it is better than the best so far by more than `min_delta`. The run
/// ends after `patience` values in a row that are none. NaN never is one. The rule and the
/// defaults, `min_delta` 0 and `patience` 3, are those of `EarlyStopping` of PyTorch Lightning.
///
/// ```
/// use anabranch::train::EarlyStopping;
///
/// let stopping = EarlyStopping::new().patience(5).min_delta(1e-4);
/// # let _ = stopping;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct EarlyStopping {
    min_delta: f64,
    patience: u64,
}

impl Default for EarlyStopping {
    fn default() -> EarlyStopping {
        EarlyStopping { min_delta: 0.0, patience: 3 }
    }
}

impl EarlyStopping {
    /// Returns the defaults.
    pub fn new() -> EarlyStopping {
        EarlyStopping::default()
    }

    /// Sets by how much a value must be better than the best so far.
    pub fn min_delta(self, min_delta: f64) -> EarlyStopping {
        EarlyStopping { min_delta, ..self }
    }

    /// Sets after how many values without an improvement the run ends, at least 1.
    pub fn patience(self, patience: u64) -> EarlyStopping {
        EarlyStopping { patience: patience.max(1), ..self }
    }

    /// Counts a value.
    pub(crate) fn count(&self, goal: Goal, value: f64, so_far: &mut StoppingState) {
        let improves = match (so_far.best, goal) {
            _ if value.is_nan() => false,
            (None, _) => true,
            (Some(best), Goal::Min) => value + self.min_delta < best,
            (Some(best), Goal::Max) => value - self.min_delta > best,
        };
        if improves {
            *so_far = StoppingState { best: Some(value), waited: 0 };
        } else {
            so_far.waited += 1;
        }
    }

    /// Returns whether the run ends.
    pub(crate) fn is_over(&self, so_far: &StoppingState) -> bool {
        so_far.waited >= self.patience
    }
}

/// The best value so far, and how many have come after it. It is part of checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoppingState {
    pub best: Option<f64>,
    pub waited: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns after how many values a run ends.
    fn ends_after(stopping: EarlyStopping, goal: Goal, values: &[f64]) -> Option<usize> {
        let mut so_far = StoppingState::default();
        (1..).zip(values).find_map(|(n, &value)| {
            stopping.count(goal, value, &mut so_far);
            stopping.is_over(&so_far).then_some(n)
        })
    }

    #[test]
    fn values_in_a_row_without_improvement_end_the_run() {
        let stopping = EarlyStopping::new();
        assert_eq!(ends_after(stopping, Goal::Min, &[3.0, 3.0, 2.0, 2.0, 2.5, 2.0]), Some(6));
        assert_eq!(ends_after(stopping, Goal::Max, &[1.0, 2.0, 3.0, 2.0, 2.0, 4.0]), None);
        assert_eq!(ends_after(stopping.patience(1), Goal::Max, &[1.0, 1.0]), Some(2));
        assert_eq!(ends_after(stopping, Goal::Min, &[f64::NAN; 3]), Some(3));
        assert_eq!(ends_after(stopping, Goal::Min, &[f64::NAN, 1.0, f64::NAN]), None);
    }

    #[test]
    fn an_improvement_of_less_than_the_minimum_is_none() {
        let stopping = EarlyStopping::new().min_delta(0.5).patience(2);
        // The value to beat is the last improvement, not the smallest value.
        assert_eq!(ends_after(stopping, Goal::Min, &[2.0, 1.75, 1.25, 1.0, 0.75]), Some(5));
        assert_eq!(ends_after(stopping, Goal::Max, &[1.0, 1.5, 1.5]), Some(3));
    }
}
