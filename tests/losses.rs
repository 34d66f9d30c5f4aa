//! Losses and their gradients on every engine: compared with PyTorch's numbers, finite differences,
//! and values at kinks and other edges.

use crate::support::fixture::Fixture;
use crate::support::{check, error_of, message_of_error_in};
use anabranch::dsl::function::trace_fn;
use anabranch::losses::{
    AbsoluteError, BinaryCrossEntropy, CosineEmbedding, CrossEntropy, Ctc, Focal, Hinge, Huber, KlDivergence,
    LossReduction, SmoothL1, SquaredError, TripletMargin, binary_cross_entropy, cosine_similarity, cross_entropy, ctc,
    focal, hinge, huber, kl_divergence, mae, mse, smooth_l1,
};
use anabranch::prelude::*;
use anabranch::{Array, DType, Float, TensorType};
use std::sync::LazyLock;

static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| Fixture::parse(include_str!("fixtures/losses.txt")));

/// Checks a loss of the fixture's tensor `x`, and the gradient of its sum, on all engines.
#[track_caller]
fn agrees<T: Float>(case: &str, x: &str, loss: impl Fn(Tensor<T>) -> Tensor<T> + Copy) {
    let expected = [FIXTURE.elements(case), FIXTURE.elements(&format!("{case}.gradient"))].concat();
    let with_gradient = |x: Tensor<T>| {
        let loss = loss(x);
        (loss, gradients(loss.sum(), x))
    };
    check(with_gradient, FIXTURE.floats::<T>(x), &expected);
}

fn floats<T: Float>(name: &str) -> Tensor<T> {
    tensor(FIXTURE.floats::<T>(name))
}

fn integers(name: &str) -> Tensor<i32> {
    tensor(FIXTURE.integers(name))
}

/// Returns the labels with 0 for the ignored ones.
fn kept() -> Tensor<i32> {
    integers("labels").maximum(0)
}

/// Makes a test of each function, which is generic in the element type, for all float types.
macro_rules! for_float_types {
    ($($test:ident $cases:ident;)*) => {$(
        #[test]
        fn $test() {
            $cases::<f64>();
            $cases::<f32>();
            $cases::<f16>();
            $cases::<bf16>();
        }
    )*};
}
for_float_types! {
    cross_entropy_is_that_of_pytorch cross_entropies;
    cross_entropy_of_probabilities_is_that_of_pytorch soft_cross_entropies;
    divergences_are_those_of_pytorch divergences;
    losses_of_decisions_are_those_of_pytorch decisions;
    losses_of_numbers_are_those_of_pytorch numbers;
    losses_of_embeddings_are_those_of_pytorch embeddings;
    ctc_is_that_of_pytorch ctcs;
}

const REDUCTIONS: [(&str, LossReduction); 3] =
    [("mean", LossReduction::Mean), ("sum", LossReduction::Sum), ("none", LossReduction::None)];

fn cross_entropies<T: Float>() {
    let all = || CrossEntropy::new().class_weights(floats::<T>("weights")).label_smoothing(0.125).ignore_label(-100);
    for (name, reduction) in REDUCTIONS {
        agrees::<T>(&format!("cross_entropy.{name}"), "logits", |x| {
            CrossEntropy::new().reduction(reduction).loss(x, kept())
        });
        agrees::<T>(&format!("cross_entropy.all.{name}"), "logits", |x| {
            all().reduction(reduction).loss(x, integers("labels"))
        });
    }
    agrees::<T>("cross_entropy.mean", "logits", |x| cross_entropy(x, kept()));
    agrees::<T>("cross_entropy.ignored", "logits", |x| {
        CrossEntropy::new().ignore_label(-100).loss(x, integers("labels").cast::<i64>())
    });
    agrees::<T>("cross_entropy.weighted", "logits", |x| {
        CrossEntropy::new().class_weights(floats::<f32>("weights")).loss(x, kept())
    });
    agrees::<T>("cross_entropy.smoothed", "logits", |x| CrossEntropy::new().label_smoothing(0.125).loss(x, kept()));
    // Axes before the classes are examples.
    agrees::<T>("cross_entropy.mean", "logits", |x| cross_entropy(x.reshape([2, 10, 5]), kept().reshape([2, 10])));
}

/// So it is compiled to the same kernels.
#[test]
fn the_mean_cross_entropy_without_options_is_that_of_the_method() {
    let graph_of = |f: fn(Tensor, Tensor<i32>) -> Tensor| {
        let types = [TensorType::new(DType::F32, [8, 1000]), TensorType::new(DType::I32, [8])];
        trace_fn("f", &f, &types).unwrap().0.graph.to_string()
    };
    assert_eq!(graph_of(cross_entropy), graph_of(|x, labels| x.cross_entropy(labels).mean()));
}

fn soft_cross_entropies<T: Float>() {
    agrees::<T>("cross_entropy.soft", "logits", |x| CrossEntropy::new().soft_loss(x, floats("probabilities")));
    agrees::<T>("cross_entropy.soft.all", "logits", |x| {
        let loss = CrossEntropy::new().class_weights(floats::<T>("weights")).label_smoothing(0.125);
        loss.reduction(LossReduction::None).soft_loss(x, floats("probabilities"))
    });
}

fn divergences<T: Float>() {
    agrees::<T>("kl_divergence.mean", "logits", |x| kl_divergence(x, floats("probabilities")));
    agrees::<T>("kl_divergence.none", "logits", |x| {
        KlDivergence::new().reduction(LossReduction::None).loss(x, floats("probabilities"))
    });
    agrees::<T>("kl_divergence.log", "logits", |x| KlDivergence::new().log_targets().loss(x, floats("log_targets")));
}

fn decisions<T: Float>() {
    let signs = || floats::<T>("decisions") * T::from_f64(2.0) - T::from_f64(1.0);
    agrees::<T>("binary.mean", "logits", |x| binary_cross_entropy(x, floats("decisions")));
    agrees::<T>("binary.soft", "logits", |x| {
        BinaryCrossEntropy::new().reduction(LossReduction::Sum).loss(x, floats("probabilities"))
    });
    agrees::<T>("binary.weighted", "logits", |x| {
        let loss = BinaryCrossEntropy::new().positive_weight(floats::<T>("weights"));
        loss.reduction(LossReduction::None).loss(x, floats("decisions"))
    });
    agrees::<T>("focal.mean", "logits", |x| focal(x, floats("decisions")));
    agrees::<T>("focal.unbalanced", "logits", |x| {
        Focal::new().alpha(None).gamma(0.5).reduction(LossReduction::None).loss(x, floats("decisions"))
    });
    agrees::<T>("binary.mean", "logits", |x| Focal::new().alpha(None).gamma(0.0).loss(x, floats("decisions")));
    agrees::<T>("hinge.mean", "scores", |x| hinge(x, signs()));
    agrees::<T>("hinge.squared", "scores", |x| {
        Hinge::new().margin(0.5).squared().reduction(LossReduction::None).loss(x, signs())
    });
}

fn numbers<T: Float>() {
    let y = || floats::<T>("numbers");
    for (name, reduction) in REDUCTIONS {
        agrees::<T>(&format!("mse.{name}"), "logits", |x| SquaredError::new().reduction(reduction).loss(x, y()));
    }
    agrees::<T>("mse.mean", "logits", |x| mse(x, y()));
    agrees::<T>("mae.mean", "logits", |x| mae(x, y()));
    agrees::<T>("huber.mean", "logits", |x| huber(x, y()));
    agrees::<T>("huber.delta", "logits", |x| Huber::new().delta(2.5).reduction(LossReduction::None).loss(x, y()));
    agrees::<T>("smooth_l1.mean", "logits", |x| smooth_l1(x, y()));
    agrees::<T>("smooth_l1.beta", "logits", |x| SmoothL1::new().beta(0.5).reduction(LossReduction::Sum).loss(x, y()));
    agrees::<T>("smooth_l1.zero", "logits", |x| SmoothL1::new().beta(0.0).loss(x, y()));
}

fn embeddings<T: Float>() {
    let (p, n) = (|| floats::<T>("positives"), || floats::<T>("negatives"));
    let same = || tensor(FIXTURE.flags("decisions")).index(0, 1);
    agrees::<T>("cosine_similarity", "anchors", |x| cosine_similarity(x, p()));
    agrees::<T>("cosine_embedding.mean", "anchors", |x| CosineEmbedding::new().loss(x, p(), same()));
    agrees::<T>("cosine_embedding.margin", "anchors", |x| {
        CosineEmbedding::new().margin(0.25).reduction(LossReduction::None).loss(x, p(), same())
    });
    agrees::<T>("triplet_margin.mean", "anchors", |x| TripletMargin::new().loss(x, p(), n()));
    agrees::<T>("triplet_margin.swap", "anchors", |x| {
        TripletMargin::new().margin(0.5).swap().reduction(LossReduction::None).loss(x, p(), n())
    });
}

fn ctcs<T: Float>() {
    let of = |loss: Ctc, x| loss.loss(x, integers("spelled"), integers("times"), integers("lengths"));
    for (name, reduction) in REDUCTIONS {
        agrees::<T>(&format!("ctc.{name}"), "frames", |x| of(Ctc::new().zero_infinity().reduction(reduction), x));
    }
    agrees::<T>("ctc.last_blank", "frames", |x| {
        let loss = Ctc::new().blank(3).zero_infinity().reduction(LossReduction::None);
        loss.loss(x, (integers("spelled") - 1).maximum(0), integers("times"), integers("lengths"))
    });
}

/// Checks the gradient of a loss in `f64` by central differences, and the gradient of a sum of its
/// gradient by those of the gradient.
#[track_caller]
fn differentiates(x: &str, loss: impl Fn(Tensor<f64>) -> Tensor<f64> + Copy) {
    let weights = |x: Tensor<f64>| (Tensor::<f64>::iota(x.shape(), 0) * 0.25 + 1.0).stop_gradient();
    let first = |x: Tensor<f64>| gradients(loss(x).sum(), x);
    let at = FIXTURE.floats::<f64>(x);
    let session = Session::new().unwrap();
    let value = session.function(move |x: Tensor<f64>| loss(x).sum()).unwrap();
    let slope = session.function(move |x: Tensor<f64>| (first(x) * weights(x)).sum()).unwrap();
    let both = session.function(move |x: Tensor<f64>| (first(x), gradients((first(x) * weights(x)).sum(), x))).unwrap();
    let (gradient, second) = both.call(&at).unwrap();
    for i in 0..at.len() {
        let moved = |by: f64| {
            let mut data = at.to_vec();
            data[i] += by;
            Array::new(at.shape(), data)
        };
        let difference = |f: &dyn Fn(Array<f64>) -> f64| {
            let step = 1e-5;
            (f(moved(step)) - f(moved(-step))) / (2.0 * step)
        };
        for (found, expected) in [
            (gradient.as_slice()[i], difference(&|x| value.call(x).unwrap().item())),
            (second.as_slice()[i], difference(&|x| slope.call(x).unwrap().item())),
        ] {
            assert!((found - expected).abs() < 1e-6 * (1.0 + expected.abs()), "{i}: {found}, not {expected}");
        }
    }
}

#[test]
fn gradients_of_losses_are_finite_differences_to_second_order() {
    let decisions = || floats::<f64>("decisions");
    differentiates("logits", |x| {
        let loss = CrossEntropy::new().class_weights(floats::<f64>("weights")).label_smoothing(0.1);
        loss.ignore_label(-100).loss(x, integers("labels"))
    });
    differentiates("logits", |x| CrossEntropy::new().label_smoothing(0.1).soft_loss(x, floats("probabilities")));
    differentiates("logits", |x| BinaryCrossEntropy::new().positive_weight(scalar(2.0f64)).loss(x, decisions()));
    differentiates("scores", |x| Focal::new().gamma(1.5).loss(x, decisions()));
    differentiates("logits", |x| kl_divergence(x.log_softmax(-1), floats("probabilities")));
    differentiates("logits", |x| KlDivergence::new().log_targets().loss(floats("log_targets"), x));
    differentiates("logits", |x| mse(x, floats("numbers")));
    // The differences are multiples of 1/8, away from the kinks.
    differentiates("scores", |x| Huber::new().delta(1.3).loss(x, floats("numbers")));
    differentiates("scores", |x| hinge(x, floats::<f64>("decisions") * 2.0 - 1.0));
    differentiates("anchors", |x| {
        CosineEmbedding::new().loss(x, floats("positives"), tensor(FIXTURE.flags("decisions")).index(0, 1))
    });
    differentiates("anchors", |x| TripletMargin::new().loss(x, floats("positives"), floats("negatives")));
    differentiates("frames", |x| {
        Ctc::new().zero_infinity().loss(x, integers("spelled"), integers("times"), integers("lengths"))
    });
}

// Edges.

#[test]
fn subgradients_at_kinks_are_those_of_the_documentation() {
    let at = |f: fn(Tensor<f64>) -> Tensor<f64>, x: f64, expected: f64| {
        check(move |x: Tensor<f64>| gradients(f(x.reshape([1])), x), x, &[expected]);
    };
    at(|x| mae(x, tensor([1.0f64])), 1.0, 0.0);
    at(|x| hinge(x, tensor([1.0f64])), 1.0, 0.0);
    at(|x| huber(x, tensor([1.0f64])), 2.0, 1.0);
    at(|x| huber(x, tensor([1.0f64])), 1.0, 0.0);
    at(|x| SmoothL1::new().beta(0.5).loss(x, tensor([1.0f64])), 0.5, -1.0);
    at(|x| SmoothL1::new().beta(0.0).loss(x, tensor([1.0f64])), 1.0, 0.0);
    // The cosine and the difference of the distances are the margin.
    let zero_of = |f: fn(Tensor<f64>) -> Tensor<f64>, x: [f64; 2]| {
        check(move |x: Tensor<f64>| gradients(f(x), x), x, &[0.0, 0.0]);
    };
    zero_of(|x| CosineEmbedding::new().loss(x, tensor([0.0, 1.0f64]), scalar(false)), [1.0, 0.0]);
    zero_of(|x| TripletMargin::new().margin(0.0).loss(x, tensor([3.0, 4.0f64]), tensor([3.0, 4.0])), [0.0, 0.0]);
}

#[test]
fn vectors_of_zeros_have_finite_gradients() {
    // The cosine is a · b / (1e-8 * 5), whose slope is b / 5e-8.
    let cosine = |x: Tensor<f64>| {
        let y = cosine_similarity(x, tensor([3.0, 4.0f64]));
        (y, gradients(y, x))
    };
    check(cosine, [0.0, 0.0], &[0.0, 6e7, 8e7]);
    // An anchor that is its positive example but for the offset of the distance.
    let triplet =
        |x: Tensor<f64>| gradients(TripletMargin::new().loss(x, tensor([1e-6, 1e-6f64]), tensor([0.25, 0.0])), x);
    let offset = [-0.25 + 1e-6, 1e-6];
    let distance = f64::hypot(offset[0], offset[1]);
    check(triplet, [0.0, 0.0], &offset.map(|x| -x / distance));
}

#[test]
fn saturated_logits_have_exact_losses_and_gradients() {
    let binary = |x: Tensor<f32>| {
        let z = tensor([1.0f32, 1.0, 0.0, 0.0, 0.0]);
        let loss = BinaryCrossEntropy::new().reduction(LossReduction::None).loss(x, z);
        (loss, gradients(loss.sum(), x))
    };
    let x = [1e4f32, -1e4, 1e4, -1e4, 0.0];
    check(binary, x, &[0.0, 1e4, 1e4, 0.0, std::f64::consts::LN_2, 0.0, -1.0, 1.0, 0.0, 0.5]);
    let focal = |x: Tensor<f32>| {
        let z = tensor([1.0f32, 1.0, 0.0, 0.0, 0.0]);
        let loss = Focal::new().alpha(None).gamma(0.5).reduction(LossReduction::Sum).loss(x, z);
        gradients(loss, x).is_finite()
    };
    check(focal, x, &[1.0; 5]);
}

#[test]
fn impossible_classes_cost_nothing_if_nothing_is_expected_of_them() {
    let inf = f64::INFINITY;
    let soft = |x: Tensor<f64>, p: Tensor<f64>| {
        let loss = CrossEntropy::new().soft_loss(x, p);
        let (dx, dp) = gradients(loss, (x, p));
        (loss, dx, dp)
    };
    let half = 0.5f64.ln();
    check(soft, ([0.0, 0.0, -inf], [0.5, 0.5, 0.0]), &[-half, 0.0, 0.0, 0.0, -half, -half, 0.0]);
    check(|x, p| soft(x, p).0, ([0.0, 0.0, -inf], [0.5, 0.0, 0.5]), &[inf]);
    let weightless = |x: Tensor<f64>| {
        let loss = CrossEntropy::new().class_weights(tensor([2.0f64, 1.0, 0.0])).label_smoothing(0.5);
        let loss = loss.reduction(LossReduction::Sum).loss(x, tensor([0, 2]));
        (loss, gradients(loss, x))
    };
    // Per example, 0.5 * w[y] and 0.5 / 3 * (2 + 1) of -half; the sum is pushed towards the labels.
    let expected = [-half * (1.0 + 0.5 + 0.5), 0.75 - 1.0 - 1.0 / 3.0, 0.75 - 1.0 / 6.0, 0.0];
    let second = [0.25 - 1.0 / 3.0, 0.25 - 1.0 / 6.0, 0.0];
    check(weightless, [[0.0, 0.0, -inf]; 2], &[&expected[..], &second].concat());
}

#[test]
fn targets_of_zero_have_no_divergence_and_no_gradient() {
    let inf = f64::INFINITY;
    let divergence = |log_q: Tensor<f64>, p: Tensor<f64>| {
        let loss = kl_divergence(log_q, p);
        let (dq, dp) = gradients(loss, (log_q, p));
        (loss, dq, dp)
    };
    check(divergence, ([0.0, -inf, -1.0], [1.0, 0.0, 0.0]), &[0.0, -1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
    let of_logs = |log_q: Tensor<f64>, log_p: Tensor<f64>| {
        let loss = KlDivergence::new().log_targets().loss(log_q, log_p);
        let (dq, dp) = gradients(loss, (log_q, log_p));
        (loss, dq, dp)
    };
    check(of_logs, ([0.0, -inf, -1.0], [0.0, -inf, -inf]), &[0.0, -1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn ignored_examples_do_not_matter_whatever_their_logits() {
    let nan = f64::NAN;
    let f = |x: Tensor<f64>| {
        let loss = CrossEntropy::new().ignore_label(9).label_smoothing(0.5).loss(x, tensor([0, 9]));
        (loss, gradients(loss, x))
    };
    check(f, [[0.0, 0.0], [nan, f64::NEG_INFINITY]], &[std::f64::consts::LN_2, 0.0 - 0.25, 0.25, 0.0, 0.0]);
    // The mean of nothing is 0.
    let nothing = |x: Tensor<f64>| {
        let loss = CrossEntropy::new().ignore_label(9).loss(x, tensor([9, 9]));
        (loss, gradients(loss, x))
    };
    check(nothing, [[0.0, 1.0], [nan, 2.0]], &[0.0; 5]);
    let weightless = |x: Tensor<f64>| {
        let loss = CrossEntropy::new().class_weights(tensor([0.0f64, 1.0])).loss(x, tensor([0, 0]));
        (loss, gradients(loss, x))
    };
    check(weightless, [[0.0, 1.0], [1.0, 2.0]], &[0.0; 5]);
    check(|x: Tensor<f64>| (mse(x, x), cross_entropy(x, zeros::<i32>([0]))), Array::new([0, 3], vec![]), &[0.0, 0.0]);
}

#[test]
fn means_over_unknown_extents_divide_by_their_number() {
    let f = |x: Tensor<f64>| {
        let x = x.with_dynamic(0);
        mse(x, x * 0.0)
    };
    check(f, [1.0, 3.0], &[5.0]);
    check(f, Array::<f64>::new([0], vec![]), &[0.0]);
}

#[test]
fn sums_of_16_bit_floats_do_not_overflow() {
    let f = |x: Tensor<f16>| mse(x, x * f16::from_f32(0.0));
    check(f, Array::new([100], vec![f16::from_f32(200.0); 100]), &[40_000.0]);
}

// CTC.

/// Returns the loss of one example.
fn ctc_of(logits: Tensor<f64>, labels: &[i32]) -> Tensor<f64> {
    let (time, classes, n) = (logits.dim(0), logits.dim(1), labels.len());
    let labels = tensor(Array::new([1, n], labels.to_vec()));
    let logits = logits.reshape([1, time, classes]);
    Ctc::new().reduction(LossReduction::Sum).loss(logits, labels, tensor([time as i32]), tensor([n as i32]))
}

#[test]
fn ctc_sums_the_probabilities_of_all_paths() {
    let uniform = |time: usize, classes: usize, labels: &'static [i32], expected: f64| {
        let f = move |x: Tensor<f64>| ctc_of(x, labels);
        let at = Array::new([time, classes], vec![0.0; time * classes]);
        let found = eval_with(f, at).unwrap().item();
        assert!(found == expected || (found - expected).abs() < 1e-6, "{labels:?}: {found}, not {expected}");
    };
    uniform(2, 2, &[1], 0.287_682_072);
    uniform(3, 3, &[1, 2], 1.686_398_954);
    uniform(3, 3, &[1, 1], 3.295_836_866);
    uniform(2, 2, &[1, 1], f64::INFINITY);
    uniform(3, 2, &[], 2.079_441_542);
    uniform(5, 4, &[1, 2, 1], 3.599_266_6);

    let logits = || {
        let x = (0..20).map(|i| (i / 4, i % 4)).map(|(t, c)| 0.1 * ((7 * t + 3 * c) % 11) as f64 - 0.4 * c as f64);
        Array::new([5, 4], x.collect::<Vec<_>>())
    };
    for (labels, expected) in
        [(&[1, 2][..], 2.775_954), (&[1, 1, 3], 5.044_015), (&[3, 3, 3], 7.800_977), (&[2], 3.424_790)]
    {
        let found = eval_with(|x: Tensor<f64>| ctc_of(x, labels), logits()).unwrap().item();
        assert!((found - expected).abs() < 1e-6, "{labels:?}: {found}, not {expected}");
    }
    let gradient = eval_with(|x: Tensor<f64>| gradients(ctc_of(x, &[1, 2]), x), logits()).unwrap();
    let expected = [[-0.12696, -0.32320, 0.23633, 0.21384], [-0.26283, 0.37329, -0.21219, 0.10173]].concat();
    for (found, expected) in gradient.as_slice()[..4].iter().chain(&gradient.as_slice()[16..]).zip(expected) {
        assert!((found - expected).abs() < 1e-5, "{found}, not {expected}");
    }
}

#[test]
fn ctc_of_a_long_sequence_stays_in_the_range_of_f32() {
    let labels: Vec<i32> = (0..50).map(|i| i % 29 + 1).collect();
    let f = Session::new()
        .unwrap()
        .function(move |x: Tensor| {
            let labels = tensor(Array::new([1, 50], labels.clone()));
            let loss = Ctc::new().reduction(LossReduction::Sum).loss(x, labels, tensor([1000]), tensor([50]));
            (loss, gradients(loss, x).is_finite().all())
        })
        .unwrap();
    let (loss, is_finite) = f.call(Array::new([1, 1000, 30], vec![0.0f32; 30_000])).unwrap();
    assert!((loss.item() / 3_074.152_9 - 1.0).abs() < 1e-5 && is_finite.item(), "{loss}");
}

#[test]
fn ctc_of_labels_that_do_not_fit_is_infinite_without_a_gradient() {
    let f = |x: Tensor<f64>| {
        let loss = ctc_of(x, &[1, 1]);
        (loss, gradients(loss, x))
    };
    check(f, [[0.0, 1.0], [2.0, 3.0]], &[f64::INFINITY, 0.0, 0.0, 0.0, 0.0]);
    // A class that is impossible, and with it every path.
    let f = |x: Tensor<f64>| {
        let loss = ctc_of(x, &[1]);
        (loss, gradients(loss, x))
    };
    let inf = f64::INFINITY;
    check(f, [[0.0, -inf]], &[inf, 0.0, 0.0]);
    check(f, [[0.0, -inf], [-inf, 0.0]], &[0.0; 5]);
    // A loss that is not a number is not one of labels that do not fit.
    let f = |x: Tensor<f64>| Ctc::new().zero_infinity().loss(x, tensor([[1]]), tensor([2]), tensor([1]));
    check(f, [[[0.0, f64::NAN], [0.0, 1.0]]], &[f64::NAN]);
}

#[test]
fn ctc_ignores_what_is_not_used() {
    let f = |x: Tensor<f64>| {
        let of = |x: Tensor<f64>, labels, times, lengths| {
            Ctc::new().reduction(LossReduction::Sum).loss::<f64, i32, i32>(x, labels, times, lengths)
        };
        let padded = of(x, tensor([[1, 0, -7]]), tensor([2]), tensor([1]));
        let short = of(x.slice(1, 0, 2), tensor([[1]]), tensor([2]), tensor([1]));
        let nothing = of(x, tensor([[-1, -1, -1]]), tensor([0]), tensor([0]));
        (padded - short, gradients(padded, x) - gradients(short, x), nothing)
    };
    check(f, [[[0.5, 1.0], [-1.0, 2.0], [f64::NAN, 3.0]]], &[0.0; 8]);
}

// Errors.

#[test]
fn wrong_arguments_are_errors_at_the_callers_line() {
    let x = || zeros::<f64>([2, 3]);
    for (f, expected) in [
        (
            &(|| cross_entropy(x(), tensor([0, 1, 2]))) as &dyn Fn() -> Tensor<f64>,
            "cross_entropy: one label is needed for each row of scores",
        ),
        (
            &|| CrossEntropy::new().class_weights(tensor([1.0f64, 2.0])).loss(x(), tensor([0, 1])),
            "cross_entropy: class weights of shape [2], but logits of 3 classes",
        ),
        (
            &|| CrossEntropy::new().label_smoothing(1.5).loss(x(), tensor([0, 1])),
            "cross_entropy: the label smoothing is 1.5",
        ),
        (
            &|| CrossEntropy::new().ignore_label(0).soft_loss(x(), x()),
            "cross_entropy: the label 0 cannot be ignored, since targets are probabilities",
        ),
        (
            &|| binary_cross_entropy(x(), zeros([3])),
            "binary_cross_entropy: logits of shape [2, 3], but targets of shape [3]",
        ),
        (
            &|| BinaryCrossEntropy::new().positive_weight(tensor([1.0f64, 2.0])).loss(x(), x()),
            "binary_cross_entropy: weights of shape [2] for logits of shape [2, 3]",
        ),
        (&|| Focal::new().gamma(-1.0).loss(x(), x()), "focal: alpha is Some(0.25) and gamma is -1"),
        (&|| mse(x(), zeros([2, 1])), "mse: predictions of shape [2, 3], but targets of shape [2, 1]"),
        (&|| AbsoluteError::new().loss(x(), scalar(0.0)), "mae: predictions of shape [2, 3], but targets of shape []"),
        (&|| Huber::new().delta(0.0).loss(x(), x()), "huber: delta is 0"),
        (&|| SmoothL1::new().beta(-1.0).loss(x(), x()), "smooth_l1: beta is -1"),
        (&|| kl_divergence(scalar(0.0), scalar(0.0)), "kl_divergence: a scalar is no distribution"),
        (&|| cosine_similarity(scalar(0.0), scalar(0.0)), "cosine_similarity: a scalar is no vector"),
        (
            &|| CosineEmbedding::new().loss(x(), x(), tensor([true])),
            "cosine_embedding: pairs of shape [2], but classes of shape [1]",
        ),
        (
            &|| TripletMargin::new().loss(x(), x(), zeros([2, 2])),
            "triplet_margin: anchors of shape [2, 3], but negatives of shape [2, 2]",
        ),
        (
            &|| ctc(x(), tensor([[1]]), tensor([1]), tensor([1])),
            "ctc: the shapes of logits, labels and lengths do not match",
        ),
        (
            &|| ctc(zeros([2, 3, 4]), tensor([[1]]), tensor([1, 1]), tensor([1, 1])),
            "ctc: the shapes of logits, labels and lengths do not match",
        ),
    ] {
        assert_eq!(message_of_error_in(file!(), f), expected);
    }
}

#[test]
fn labels_that_are_no_class_fail_the_step_on_every_engine() {
    let x = || zeros::<f32>([2, 3]);
    let error = error_of(|labels: Tensor<i32>| cross_entropy(x(), labels), [0, 3]);
    assert!(error.message.contains("index 3 at [1, 0] is out of bounds"), "{error}");
    let error = error_of(|labels: Tensor<i32>| CrossEntropy::new().ignore_label(-1).loss(x(), labels), [-1, -2]);
    assert!(error.message.contains("index -2 at [1, 0] is out of bounds"), "{error}");

    let of = |labels: Tensor<i32>, times: Tensor<i32>, lengths: Tensor<i32>| {
        ctc(zeros::<f32>([1, 4, 3]), labels, times, lengths)
    };
    for (labels, time, length, expected) in [
        ([1, 0], 4, 2, "a label is the blank, class 0"),
        ([1, 2], 5, 2, "the time of an example is not within 0 and 4"),
        ([1, 2], 4, 3, "the number of labels of an example is not within 0 and 2"),
        ([1, 3], 4, 2, "index 3"),
    ] {
        let error = error_of(of, ([labels], [time], [length]));
        assert!(error.message.contains(expected), "{error}");
    }
}
