//! Numbers that a step or an evaluation returns, and their means.

use anabranch_dsl::{Array, Diagnostic, Element, Loc, Result};
use serde::{Deserialize, Serialize};

/// Numbers with names, such as the loss and the accuracy of a step, in the order in which they were
/// added.
///
/// ```
/// use anabranch::train::StepMetrics;
///
/// let metrics = StepMetrics::new().with("loss", 0.25).with("accuracy", 0.9).weight(32.0);
/// assert_eq!(metrics.get("loss"), Some(0.25));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct StepMetrics {
    values: Vec<(String, f64)>,
    weight: f64,
    /// The first value that is no number.
    error: Option<Diagnostic>,
}

impl Default for StepMetrics {
    fn default() -> StepMetrics {
        StepMetrics::new()
    }
}

impl StepMetrics {
    /// Returns no numbers, of weight 1.
    pub fn new() -> StepMetrics {
        StepMetrics { values: Vec::new(), weight: 1.0, error: None }
    }

    /// Adds a number: one of Rust's, or an array of one element. An array of several elements, or a
    /// second number of the same name, is an error where the metrics are used.
    #[track_caller]
    pub fn with(mut self, name: impl Into<String>, value: impl MetricValue) -> StepMetrics {
        let name = name.into();
        let (message, help) = match value.number() {
            Some(x) if self.get(&name).is_none() => {
                self.values.push((name, x));
                return self;
            }
            Some(_) => (format!("there are two metrics `{name}`"), "give one of them another name"),
            None => (format!("the metric `{name}` is an array of several elements"), "return a mean or a sum"),
        };
        let error = Diagnostic::new(message).at(Loc::caller(), "added here").help(help);
        self.error.get_or_insert(error);
        self
    }

    /// Sets the weight of these numbers in means over steps, 1 by default. Use the number of
    /// examples if numbers are means over batches of different sizes.
    pub fn weight(mut self, weight: f64) -> StepMetrics {
        self.weight = weight;
        self
    }

    /// Returns whether means count these numbers.
    pub(crate) fn counts(&self) -> bool {
        self.weight != 0.0
    }

    /// Returns a number by its name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|(own, _)| *own == name).map(|(_, value)| value)
    }

    /// Returns all names and numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.values.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

/// Single numbers, as values of metrics.
pub trait MetricValue {
    /// Returns the number, or `None` if there are several.
    fn number(&self) -> Option<f64>;
}

macro_rules! numbers {
    ($($t:ty),*) => {$(
        impl MetricValue for $t {
            fn number(&self) -> Option<f64> {
                Some(*self as f64)
            }
        }
    )*};
}
numbers!(f32, f64, i32, i64, u32, u64, usize);

impl<T: Element> MetricValue for Array<T> {
    fn number(&self) -> Option<f64> {
        self.host().to_f64()
    }
}

/// Results of step functions: [`StepMetrics`], nothing, or a single number, which is the loss. So a
/// compiled function that returns its loss needs no conversion.
pub trait IntoMetrics {
    /// Returns the metrics.
    ///
    /// # Errors
    /// Fails if one of them is an array of several elements, or if two have the same name.
    fn into_metrics(self) -> Result<StepMetrics>;
}

impl IntoMetrics for StepMetrics {
    fn into_metrics(self) -> Result<StepMetrics> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }
}

impl IntoMetrics for () {
    fn into_metrics(self) -> Result<StepMetrics> {
        Ok(StepMetrics::new())
    }
}

macro_rules! losses {
    ($($t:ty),*) => {$(
        impl IntoMetrics for $t {
            fn into_metrics(self) -> Result<StepMetrics> {
                StepMetrics::new().with(LOSS, self).into_metrics()
            }
        }
    )*};
}
losses!(f32, f64);

impl<T: Element> IntoMetrics for Array<T> {
    fn into_metrics(self) -> Result<StepMetrics> {
        StepMetrics::new().with(LOSS, self).into_metrics()
    }
}

/// The name of a number without one.
pub(crate) const LOSS: &str = "loss";

/// The name of the number of elements that were left out because of errors.
pub(crate) const SKIPPED: &str = "skipped";

/// Weighted means of metrics over steps: the sums so far, which are part of checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct MetricMeans {
    /// The name, the weighted sum and the sum of the weights.
    sums: Vec<(String, f64, f64)>,
}

impl MetricMeans {
    pub fn add(&mut self, metrics: &StepMetrics) {
        // What does not count may be anything, also NaN.
        if !metrics.counts() {
            return;
        }
        for (name, value) in metrics.iter() {
            let i = self.sums.iter().position(|(own, ..)| own == name).unwrap_or_else(|| {
                self.sums.push((name.to_owned(), 0.0, 0.0));
                self.sums.len() - 1
            });
            self.sums[i].1 += value * metrics.weight;
            self.sums[i].2 += metrics.weight;
        }
    }

    /// Returns the means, and begins again.
    pub fn take(&mut self) -> Vec<(String, f64)> {
        std::mem::take(&mut self.sums).into_iter().map(|(name, sum, weight)| (name, sum / weight)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_count_weights_and_each_name_for_itself() {
        let mut means = MetricMeans::default();
        means.add(&StepMetrics::new().with("loss", 1.0).weight(3.0));
        means.add(&StepMetrics::new().with("loss", 5.0).with("rate", 0.5));
        means.add(&StepMetrics::new().with("loss", f64::NAN).weight(0.0));
        assert_eq!(means.take(), [("loss".to_owned(), 2.0), ("rate".to_owned(), 0.5)]);
        assert_eq!(means.take(), []);
    }

    #[test]
    fn a_second_metric_of_a_name_is_an_error_at_its_line() {
        let error = StepMetrics::new().with("loss", 1.0).with("loss", f64::NAN).into_metrics().unwrap_err();
        assert_eq!(error.message, "there are two metrics `loss`");
        assert!(error.loc().is_some_and(|loc| loc.file.ends_with("metrics.rs")), "{error}");
    }

    #[test]
    fn an_array_of_several_elements_is_an_error_at_its_line() {
        let error = StepMetrics::new().with("losses", Array::new([2], vec![1.0, 2.0])).into_metrics().unwrap_err();
        assert_eq!(error.message, "the metric `losses` is an array of several elements");
        assert!(error.loc().is_some_and(|loc| loc.file.ends_with("metrics.rs")), "{error}");
    }
}
