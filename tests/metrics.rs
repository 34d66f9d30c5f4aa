//! Metrics on every engine, compared with scikit-learn's numbers, and their state over many
//! batches.

use crate::support::fixture::Fixture;
use crate::support::{check, error_of, message_of_error_in};
use anabranch::metrics::{
    Accuracy, BinnedAuc, ClassAverage, ConfusionMatrix, Perplexity, RunningMean, accuracy, auc, confusion_matrix, f1,
    mean_iou, perplexity, precision, recall, top_k_accuracy,
};
use anabranch::prelude::*;
use anabranch::{Array, Float, Module};
use std::sync::LazyLock;

static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| Fixture::parse(include_str!("fixtures/metrics.txt")));

/// The batches of the fixture.
const BATCHES: usize = 20;

/// The classes of the confusion matrix, one more than the logits have.
const CLASSES: usize = 5;

const AVERAGES: [(&str, ClassAverage); 4] = [
    ("micro", ClassAverage::Micro),
    ("macro", ClassAverage::Macro),
    ("weighted", ClassAverage::Weighted),
    ("per_class", ClassAverage::PerClass),
];

/// Returns the expected elements of several metrics, one after another.
fn expected(names: &[&str]) -> Vec<f64> {
    names.iter().flat_map(|name| FIXTURE.elements(name).to_vec()).collect()
}

/// Returns all examples of the fixture as one batch.
fn logits<T: Float>() -> Array<T> {
    FIXTURE.floats("logits")
}

fn metrics_of_one_batch<T: Float>(perplexity_digits: i32) {
    let f = |logits: Tensor<T>, labels: Tensor<i32>| {
        let first = logits.index(0, 2);
        let of_scores = (
            accuracy(logits, labels),
            top_k_accuracy(logits, labels, 2),
            top_k_accuracy(logits, labels.cast::<u8>(), 3),
            auc(first, labels.equal(0)),
        );
        (of_scores, confusion_matrix(logits.argmax(-1), labels.cast::<i64>(), CLASSES))
    };
    let names = ["accuracy", "top_2", "top_3", "auc.logits", "confusion"];
    check(f, (logits::<T>(), FIXTURE.integers("labels")), &expected(&names));
    let f = |logits: Tensor<T>, labels: Tensor<i32>| {
        // Rounded, because 32-bit logarithms are less exact than the result's type.
        let digits = 10f64.powi(perplexity_digits);
        (perplexity(logits, labels) * digits).round() / digits
    };
    let digits = 10f64.powi(perplexity_digits);
    let rounded = (FIXTURE.elements("perplexity")[0] * digits).round() / digits;
    check(f, (logits::<T>(), FIXTURE.integers("labels")), &[rounded]);
}

#[test]
fn metrics_of_one_batch_are_those_of_scikit_learn() {
    metrics_of_one_batch::<f64>(8);
    metrics_of_one_batch::<f32>(4);
    metrics_of_one_batch::<f16>(4);
    metrics_of_one_batch::<bf16>(4);
}

#[test]
fn averages_over_classes_are_those_of_scikit_learn() {
    for (name, average) in AVERAGES {
        let f = |logits: Tensor<f64>, labels: Tensor<i32>| {
            let matrix = confusion_matrix(logits.argmax(-1), labels, CLASSES);
            (precision(matrix, average), recall(matrix, average), f1(matrix, average), mean_iou(matrix))
        };
        let names = [&format!("precision.{name}"), &format!("recall.{name}"), &format!("f1.{name}"), "iou.macro"];
        let names = names.map(|name| name as &str);
        check(f, (logits::<f64>(), FIXTURE.integers("labels")), &expected(&names));
    }
}

/// All metrics that have a state.
#[derive(Module)]
struct All {
    accuracy: Accuracy,
    top: Accuracy,
    matrix: ConfusionMatrix,
    auc: BinnedAuc,
    perplexity: Perplexity,
    mean: RunningMean,
    weighted: RunningMean,
}

type Batch = (Tensor<f64>, Tensor<i32>, Tensor<f64>, Tensor<f64>);

impl All {
    fn new() -> All {
        All {
            accuracy: Accuracy::new(),
            top: Accuracy::top(2),
            matrix: ConfusionMatrix::new(CLASSES),
            auc: BinnedAuc::new(32),
            perplexity: Perplexity::new(),
            mean: RunningMean::new(),
            weighted: RunningMean::new(),
        }
    }

    fn update(&self, (logits, labels, probabilities, weights): Batch) {
        self.accuracy.update(logits, labels);
        self.top.update(logits, labels);
        self.matrix.update(logits.argmax(-1), labels);
        self.auc.update(probabilities, labels.equal(0));
        self.perplexity.update(logits, labels);
        self.mean.update(labels);
        self.weighted.update_weighted(probabilities, weights);
    }

    fn results(&self) -> [Tensor<f64>; 8] {
        let matrix = self.matrix.result();
        [
            self.accuracy.result(),
            self.top.result(),
            f1(matrix, ClassAverage::Macro),
            mean_iou(matrix),
            self.auc.result(),
            self.perplexity.result(),
            self.mean.result(),
            self.weighted.result(),
        ]
    }

    fn reset(&self) {
        self.accuracy.reset();
        self.top.reset();
        self.matrix.reset();
        self.auc.reset();
        self.perplexity.reset();
        self.mean.reset();
        self.weighted.reset();
    }
}

fn expected_of_all() -> Vec<f64> {
    let labels = FIXTURE.elements("labels");
    let mean = labels.iter().sum::<f64>() / labels.len() as f64;
    let first = ["accuracy", "top_2", "f1.macro", "iou.macro", "auc.binned", "perplexity"];
    [expected(&first), vec![mean], expected(&["mean.weighted"])].concat()
}

fn all_examples() -> (Array<f64>, Array<i32>, Array<f64>, Array<f64>) {
    let floats = |name| FIXTURE.floats::<f64>(name);
    (floats("logits"), FIXTURE.integers("labels"), floats("probabilities"), floats("weights"))
}

/// The state is carried by a loop in the graph, on every engine.
#[test]
fn state_over_batches_is_that_of_all_examples_in_a_staged_loop() {
    let all = All::new();
    #[graph]
    fn epoch(all: &All, batches: Batch) -> [Tensor<f64>; 8] {
        // Something to forget.
        all.update((batches.0.row(0), batches.1.row(0), batches.2.row(0), batches.3.row(0)));
        all.reset();
        for i in range(scalar(BATCHES as i32)) {
            all.update((batches.0.row(i), batches.1.row(i), batches.2.row(i), batches.3.row(i)));
        }
        all.results()
    }
    check(|a, b, c, d| epoch(&all, (a, b, c, d)), all_examples(), &expected_of_all());
}

#[track_caller]
fn near(found: &[Array<f64>; 8], expected: &[f64]) {
    let found = found.each_ref().map(|x| x.item());
    let all = found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-9 * e.abs().max(1.0));
    assert!(all && found.len() == expected.len(), "{found:?} is not {expected:?}");
}

#[test]
fn state_is_saved_and_loaded_in_the_middle_of_an_epoch() {
    let all = All::new();
    let (a, b, c, d) = all_examples();
    let [mut session, resumed] = [(); 2].map(|()| Session::new().unwrap());
    for i in 0..BATCHES as i32 {
        if i == 7 {
            let state = session.state(&all).unwrap();
            let paths: Vec<&str> = state.iter().map(|(path, _)| path.as_str()).collect();
            assert!(paths.contains(&"accuracy.correct") && paths.contains(&"auc.negative"), "{paths:?}");
            resumed.load_state(&all, &state).unwrap();
            // What happens in the first session is lost.
            let update = session.function(|a, b, c, d| all.update(row_of((a, b, c, d), scalar(0)))).unwrap();
            update.call((&a, &b, &c, &d)).unwrap();
            session = resumed.clone();
        }
        let update = session.function(|a, b, c, d, i: Tensor<i32>| all.update(row_of((a, b, c, d), i))).unwrap();
        update.call((&a, &b, &c, &d, i)).unwrap();
    }
    let result = session.function(|| all.results()).unwrap();
    near(&result.call(()).unwrap(), &expected_of_all());
    session.function(|| all.reset()).unwrap().call(()).unwrap();
    let after = result.call(()).unwrap();
    assert!(after[4].item().is_nan());
    for (i, nothing) in [(0, 0.0), (1, 0.0), (2, 0.0), (3, 0.0), (5, 1.0), (6, 0.0), (7, 0.0)] {
        assert_eq!(after[i].item(), nothing, "{i}");
    }
}

fn row_of((logits, labels, probabilities, weights): Batch, i: Tensor<i32>) -> Batch {
    (logits.row(i), labels.row(i), probabilities.row(i), weights.row(i))
}

#[test]
fn a_step_that_fails_adds_nothing() {
    let accuracy = Accuracy::new();
    let session = Session::new().unwrap();
    let update = session.function(|labels: Tensor<i32>| accuracy.update(tensor([[0.0, 1.0]]), labels)).unwrap();
    update.call([1]).unwrap();
    assert!(update.call([2]).is_err());
    assert_eq!((session.get(&accuracy.correct).unwrap().item(), session.get(&accuracy.total).unwrap().item()), (1, 1));
}

#[test]
fn optimizers_do_not_train_metrics() {
    assert!(All::new().vars().iter().all(|(_, var)| !var.is_trained()));
}

#[test]
fn ignored_labels_do_not_count() {
    let (accuracy, matrix, perplexity) = (
        Accuracy::new().ignore_label(-1),
        ConfusionMatrix::new(2).ignore_label(-1),
        Perplexity::new().ignore_token(-1),
    );
    let f = |scores: Tensor<f64>, labels: Tensor<i64>| {
        accuracy.update(scores, labels);
        matrix.update(scores.argmax(-1), labels);
        perplexity.update(scores, labels);
        (accuracy.result(), matrix.result(), perplexity.result())
    };
    let scores = [[0.0, 0.0], [1.0, 0.0], [f64::NAN, 0.0]];
    check(f, (scores, [0i64, -1, -1]), &[1.0, 1.0, 0.0, 0.0, 0.0, 2.0]);
    check(f, (scores, [-1i64, -1, -1]), &[0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn of_equal_scores_the_first_class_is_the_highest() {
    let f = |labels: Tensor<i32>| {
        let scores = || tensor([[1.0f32, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]);
        (accuracy(scores(), labels), top_k_accuracy(scores(), labels, 2), top_k_accuracy(scores(), labels, 9))
    };
    check(f, [0, 1, 2], &[1.0 / 3.0, 2.0 / 3.0, 1.0]);
    let nan = |labels: Tensor<i32>| accuracy(tensor([[f32::NAN, 1.0], [f32::NAN, 1.0]]), labels);
    check(nan, [0, 1], &[0.5]);
}

#[test]
fn the_exact_area_counts_ties_as_half() {
    let area = |scores: Tensor<f64>, labels: Tensor<bool>| auc(scores, labels);
    check(area, ([0.5, 0.5, 0.5, 0.2, 0.9], [false, true, true, false, true]), &[5.0 / 6.0]);
    check(area, ([0.1, 0.2], [true, true]), &[f64::NAN]);
    check(area, (Array::<f64>::new([0], vec![]), Array::<bool>::new([0], vec![])), &[f64::NAN]);
    // Logits and their probabilities have one order.
    let both = |scores: Tensor<f64>, labels: Tensor<bool>| auc(scores, labels) - auc(scores.sigmoid(), labels);
    check(both, ([-3.0, 8.0, 0.5, 7.5], [false, true, true, false]), &[0.0]);
}

#[test]
fn the_binned_area_rejects_logits() {
    let metric = BinnedAuc::new(4);
    let update = |scores: Tensor<f64>| {
        metric.update(scores, tensor([true, false, true]));
        metric.result()
    };
    // 1 belongs to the last bin.
    check(update, [1.0, 0.0, 0.3], &[1.0]);
    check(update, [0.8, 0.9, 0.0], &[0.25]);
    for wrong in [[0.5, 1.5, 0.0], [0.5, -0.1, 0.0], [0.5, f64::NAN, 0.0]] {
        let error = error_of(update, wrong);
        assert!(error.message.contains("a score is not within 0 and 1"), "{error}");
    }
}

#[test]
fn the_exact_area_sees_what_bins_do_not() {
    // Scores that a sigmoid has squeezed into one bin.
    let scores = [0.9991, 0.9992, 0.9993, 0.9994];
    let metric = BinnedAuc::new(200);
    let f = |scores: Tensor<f64>, labels: Tensor<bool>| {
        metric.update(scores, labels);
        (auc(scores, labels), metric.result())
    };
    check(f, (scores, [false, false, true, true]), &[1.0, 0.5]);
}

#[test]
fn a_mean_takes_all_element_types_and_no_numbers_of_weight_zero() {
    let mean = RunningMean::new();
    let f = |x: Tensor<f32>, n: Tensor<u8>| {
        mean.update(n);
        mean.update_weighted(x, n);
        mean.result()
    };
    check(f, ([f32::NAN, 2.0], [0u8, 4]), &[(0.0 + 4.0 + 4.0 * 2.0) / 6.0]);
}

#[test]
fn counts_stay_exact_beyond_the_integers_of_f32() {
    let accuracy = Accuracy::new();
    let session = Session::new().unwrap();
    session.set(&accuracy.correct, 1 << 40).unwrap();
    session.set(&accuracy.total, 1 << 40).unwrap();
    let update = session.function(|| accuracy.update(tensor([[0.0, 1.0]]), tensor([1]))).unwrap();
    update.call(()).unwrap();
    assert_eq!(session.get(&accuracy.total).unwrap().item(), (1 << 40) + 1);
}

#[test]
fn wrong_arguments_are_errors_at_the_callers_line() {
    let scores = || zeros::<f64>([2, 3]);
    for (f, expected) in [
        (
            &(|| accuracy(scores(), tensor([0]))) as &dyn Fn() -> Tensor<f64>,
            "accuracy: one label is needed for each row of scores",
        ),
        (&|| top_k_accuracy(scores(), tensor([0, 1]), 0), "top_k_accuracy: the 0 highest of 3 scores"),
        (&|| auc(scores(), tensor([true])), "auc: scores of shape [2, 3], but labels of shape [1]"),
        (
            &|| confusion_matrix(tensor([0, 1]), tensor([0]), 2).cast(),
            "confusion_matrix: predictions of shape [2], but labels of shape [1]",
        ),
        (
            &|| f1(tensor([[1i64, 2, 3], [1, 2, 3]]), ClassAverage::Micro),
            "f1: [2, 3] is not the shape of a confusion matrix",
        ),
    ] {
        assert_eq!(message_of_error_in(file!(), f), expected);
    }
}

#[test]
fn classes_out_of_range_fail_the_step_on_every_engine() {
    // The prediction 3 of label 0 would be the element of prediction 0 and label 1.
    let f = |predictions: Tensor<i32>, labels: Tensor<i32>| confusion_matrix(predictions, labels, 3);
    for (predictions, labels) in [([3, 0], [0, 0]), ([0, 0], [0, -1])] {
        let error = error_of(f, (predictions, labels));
        assert!(error.message.contains("is out of bounds for axis 0 of extent 3"), "{error}");
    }
}
