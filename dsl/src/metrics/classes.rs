//! Confusion matrices, and the metrics that are functions of them.

use super::{add, clear, ratio};
use crate::losses::{check_same_shape, ignored_labels, refuse, without};
use crate::nn::module;
use crate::{AnyValue, Array, DType, Integer, Loc, Tensor, Var, iota, scalar, trace, zeros};

/// How the values of classes become one. Classes that occur neither as labels nor as predictions
/// are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassAverage {
    /// The value of the sums over classes. With one label for each example, precision, recall and
    /// F1 are then the accuracy.
    Micro,
    /// The mean over classes.
    Macro,
    /// The mean over classes, weighted by their number of labels.
    Weighted,
    /// No average: the value of each class, `[classes]`. Absent classes have the value 0.
    PerClass,
}

/// Counts pairs of predictions and labels.
#[track_caller]
fn counts(name: &str, predictions: AnyValue, labels: AnyValue, classes: usize, ignored: Option<i64>) -> AnyValue {
    check_same_shape(name, ("predictions", predictions), ("labels", labels));
    let mask = ignored.map(|label| ignored_labels(labels, label));
    let flat = |ids: AnyValue| {
        let ids = mask.map_or(ids, |mask| without(mask, ids)).reshape([-1]);
        // Reads each number at its own index, which fails for one that is no class.
        iota::<i64>(classes).untyped().take(ids, 0)
    };
    let at = flat(labels) * classes as f64 + flat(predictions);
    let one = scalar(1i64).untyped();
    let counted = match mask {
        Some(mask) => mask.not().reshape([-1]).cast(DType::I64),
        None => one.broadcast_like(at),
    };
    zeros::<i64>([classes * classes]).untyped().scatter_add(at, counted, 0).reshape([classes, classes])
}

/// Returns the confusion matrix of predicted classes and labels of equal shapes: element `[i, j]`
/// is the number of examples of class `i` that were predicted as `j`.
///
/// ```
/// use anabranch::{metrics::confusion_matrix, prelude::*};
///
/// let matrix = eval(|| confusion_matrix(tensor([0, 1, 1]), tensor([0, 0, 1]), 2))?;
/// assert_eq!(matrix.as_slice(), [1, 1, 0, 1]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// Aborts the trace if the shapes differ. A prediction or label that is no class fails the step.
#[track_caller]
#[must_use]
pub fn confusion_matrix<I: Integer, J: Integer>(
    predictions: Tensor<I>,
    labels: Tensor<J>,
    classes: usize,
) -> Tensor<i64> {
    trace::called_at(Loc::caller(), || {
        Tensor::from_any(counts("confusion_matrix", predictions.untyped(), labels.untyped(), classes, None))
    })
}

/// The counts of each class in a confusion matrix.
struct ClassCounts {
    correct: AnyValue,
    predicted: AnyValue,
    labelled: AnyValue,
}

impl ClassCounts {
    #[track_caller]
    fn of(name: &str, matrix: Tensor<i64>) -> ClassCounts {
        let matrix = matrix.untyped();
        let ty = matrix.tensor_type();
        match ty.shape.dims() {
            [a, b] if a.compatible(b) => {}
            _ => {
                let message = format!("{} is not the shape of a confusion matrix", ty.shape);
                refuse(name, &message, ty.to_string(), "pass the result of `confusion_matrix`, [classes, classes]");
            }
        }
        let classes = matrix.dim(0);
        let on_diagonal = iota::<i64>(classes).untyped();
        let correct = matrix.take_along_axis(on_diagonal.unsqueeze(-1), -1).squeeze(-1);
        ClassCounts { correct, predicted: matrix.sum_axis(0), labelled: matrix.sum_axis(1) }
    }

    /// Returns the average of ratios. `terms` are the numerator and the denominator of each class.
    fn average(&self, [numerator, denominator]: [AnyValue; 2], average: ClassAverage) -> Tensor<f64> {
        let per_class = ratio(numerator, denominator).untyped();
        let mean = |weights: AnyValue| ratio((per_class * weights.cast(DType::F64)).sum(), weights.sum());
        match average {
            ClassAverage::Micro => ratio(numerator.sum(), denominator.sum()),
            ClassAverage::Macro => mean(self.occurs()),
            ClassAverage::Weighted => mean(self.labelled),
            ClassAverage::PerClass => Tensor::from_any(per_class),
        }
    }

    /// Returns 1 for classes that occur as labels or predictions, and 0 for others.
    fn occurs(&self) -> AnyValue {
        let occurrences = self.predicted + self.labelled;
        occurrences.gt(occurrences.number(0.0)).cast(DType::I64)
    }
}

/// Returns the precision, the share of a class's predictions that are correct, from a
/// [confusion matrix](confusion_matrix). It is 0 for a class that is never predicted.
///
/// ```
/// use anabranch::metrics::{ClassAverage, precision};
/// use anabranch::prelude::*;
///
/// let matrix = || tensor([[1i64, 1], [0, 2]]);
/// let each = eval(|| precision(matrix(), ClassAverage::PerClass))?;
/// assert_eq!(each.as_slice(), [1.0, 2.0 / 3.0]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// Aborts the trace if the argument is not a square matrix of known extent.
#[track_caller]
#[must_use]
pub fn precision(matrix: Tensor<i64>, average: ClassAverage) -> Tensor<f64> {
    trace::called_at(Loc::caller(), || {
        let counts = ClassCounts::of("precision", matrix);
        counts.average([counts.correct, counts.predicted], average)
    })
}

/// Returns the recall, the share of a class's labels that are predicted, from a [confusion
/// matrix](confusion_matrix). It is 0 for a class without labels.
///
/// ```
/// use anabranch::metrics::{ClassAverage, recall};
/// use anabranch::prelude::*;
///
/// let matrix = || tensor([[1i64, 1], [0, 2]]);
/// assert_eq!(eval(|| recall(matrix(), ClassAverage::Macro))?, 0.75);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// Aborts the trace if the argument is not a square matrix of known extent.
#[track_caller]
#[must_use]
pub fn recall(matrix: Tensor<i64>, average: ClassAverage) -> Tensor<f64> {
    trace::called_at(Loc::caller(), || {
        let counts = ClassCounts::of("recall", matrix);
        counts.average([counts.correct, counts.labelled], average)
    })
}

/// Returns the F1 score, the harmonic mean of [`precision`] and [`recall`], from a [confusion
/// matrix](confusion_matrix). The averages are those of the scores of classes.
///
/// ```
/// use anabranch::metrics::{ClassAverage, f1};
/// use anabranch::prelude::*;
///
/// let matrix = || tensor([[1i64, 1], [0, 2]]);
/// assert_eq!(eval(|| f1(matrix(), ClassAverage::PerClass))?.as_slice(), [2.0 / 3.0, 0.8]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// Aborts the trace if the argument is not a square matrix of known extent.
#[track_caller]
#[must_use]
pub fn f1(matrix: Tensor<i64>, average: ClassAverage) -> Tensor<f64> {
    trace::called_at(Loc::caller(), || {
        let counts = ClassCounts::of("f1", matrix);
        counts.average([counts.correct * 2.0, counts.predicted + counts.labelled], average)
    })
}

/// Returns the mean intersection over union of classes, also known as the Jaccard index, from a
/// [confusion matrix](confusion_matrix). Classes that occur neither as labels nor as predictions
/// are left out.
///
/// ```
/// use anabranch::{metrics::mean_iou, prelude::*};
///
/// // One half, two thirds, and a class that is absent.
/// let matrix = || tensor([[1i64, 1, 0], [0, 2, 0], [0, 0, 0]]);
/// assert_eq!(eval(|| mean_iou(matrix()))?, (1.0 / 2.0 + 2.0 / 3.0) / 2.0);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// Aborts the trace if the argument is not a square matrix of known extent.
#[track_caller]
#[must_use]
pub fn mean_iou(matrix: Tensor<i64>) -> Tensor<f64> {
    trace::called_at(Loc::caller(), || {
        let counts = ClassCounts::of("mean_iou", matrix);
        let union = counts.predicted + counts.labelled - counts.correct;
        counts.average([counts.correct, union], ClassAverage::Macro)
    })
}

/// The [`confusion_matrix`] of many batches, of which [`precision`], [`recall`], [`f1`] and
/// [`mean_iou`] are functions.
///
/// ```
/// use anabranch::metrics::{ClassAverage, ConfusionMatrix, f1};
/// use anabranch::prelude::*;
///
/// let matrix = ConfusionMatrix::new(2).ignore_label(255);
/// let session = Session::new()?;
/// let update = session.function(|predictions: Tensor<i32>, labels: Tensor<i32>| {
///     matrix.update(predictions, labels);
///     f1(matrix.result(), ClassAverage::Macro)
/// })?;
/// update.call(([0, 1], [0, 0]))?;
/// assert_eq!(update.call(([1, 1, 0], [1, 1, 255]))?, (2.0 / 3.0 + 0.8) / 2.0);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Debug)]
pub struct ConfusionMatrix {
    /// The numbers of examples of each class that were predicted as each class, `[classes,
    /// classes]`.
    pub counts: Var<i64>,
    classes: usize,
    ignored: Option<i64>,
}
module!(ConfusionMatrix: counts);

impl ConfusionMatrix {
    /// Creates the matrix of a number of classes.
    pub fn new(classes: usize) -> ConfusionMatrix {
        let zeros = Array::new([classes, classes], vec![0i64; classes * classes]);
        ConfusionMatrix { counts: Var::untrained("counts", zeros), classes, ignored: None }
    }

    /// Sets a label whose examples do not count. It need not be a class index.
    #[must_use]
    pub fn ignore_label(self, label: i64) -> ConfusionMatrix {
        ConfusionMatrix { ignored: Some(label), ..self }
    }

    /// Adds a batch of predicted classes and labels of equal shapes.
    ///
    /// # Errors
    /// Aborts the trace if the shapes differ. A prediction or label that is no class fails the
    /// step.
    #[track_caller]
    pub fn update<I: Integer, J: Integer>(&self, predictions: Tensor<I>, labels: Tensor<J>) {
        trace::called_at(Loc::caller(), || {
            let (predictions, labels) = (predictions.untyped(), labels.untyped());
            add(&self.counts, counts("ConfusionMatrix", predictions, labels, self.classes, self.ignored));
        });
    }

    /// Returns the matrix since the last reset.
    #[track_caller]
    #[must_use]
    pub fn result(&self) -> Tensor<i64> {
        self.counts.get()
    }

    /// Forgets all batches.
    #[track_caller]
    pub fn reset(&self) {
        trace::called_at(Loc::caller(), || clear(&[self.counts.any()]));
    }
}
