//! Methods that consist of several operations: values, gradients against finite differences, and
//! messages.

use anabranch_dsl::prelude::*;
use anabranch_dsl::random::Key;
use anabranch_dsl::{Diagnostic, Result, bf16, gradients, trace};

type T64 = Tensor<f64>;

/// Checks the gradient of a scalar function of one vector against finite differences in every
/// coordinate.
#[track_caller]
fn check_gradient(at: &[f64], f: impl Fn(T64) -> T64) {
    let point = |x: &[f64]| x.to_vec();
    let value = |x: Vec<f64>| eval_with(|x: T64| f(x), x).unwrap_or_else(|e| panic!("{e}")).item();
    let gradient = eval_with(|x: T64| gradients(f(x), x), point(at)).unwrap_or_else(|e| panic!("{e}"));
    for (i, &by_rule) in gradient.as_slice().iter().enumerate() {
        let moved = |step: f64| {
            let mut x = point(at);
            x[i] += step;
            value(x)
        };
        let h = 1e-3;
        let by_difference = (8.0 * (moved(h) - moved(-h)) - (moved(2.0 * h) - moved(-2.0 * h))) / (12.0 * h);
        let near = (by_rule - by_difference).abs() <= 1e-7 * by_rule.abs().max(1.0);
        assert!(near, "coordinate {i}: {by_rule} by rule, {by_difference} by differences");
    }
}

const SIX: [f64; 6] = [0.5, -1.0, 2.0, 1.5, 0.25, -0.75];

#[test]
fn layer_norm_gives_mean_and_deviation_of_its_parameters() -> Result<()> {
    let y = eval(|| {
        let x = tensor(SIX).reshape([2, 3]);
        x.layer_norm(full([3], 2.0), full([3], 1.0), 1e-12)
    })?;
    for row in y.as_slice().chunks(3) {
        let mean = row.iter().sum::<f64>() / 3.0;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 3.0;
        assert!((mean - 1.0).abs() < 1e-9 && (variance - 4.0).abs() < 1e-9, "{row:?}");
    }
    Ok(())
}

#[test]
fn rms_norm_has_the_right_gradient() {
    let scale = [1.5, -0.5, 0.8];
    let weights = || tensor([[1.0, -2.0, 0.5], [0.3, 0.7, -1.1]]);
    check_gradient(&SIX, |x| (x.reshape([2, 3]).rms_norm(tensor(scale), 1e-5) * weights()).sum());
    check_gradient(&scale, |s| (tensor(SIX).reshape([2, 3]).rms_norm(s, 1e-5) * weights()).sum());
}

#[test]
fn layer_norm_has_the_right_gradient() {
    let weights = || tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]]);
    let (scale, bias) = ([0.5, 2.0, -1.0], [0.1, 0.2, 0.3]);
    check_gradient(&SIX, |x| (x.reshape([2, 3]).layer_norm(tensor(scale), tensor(bias), 1e-5) * weights()).sum());
    check_gradient(&scale, |s| (tensor(SIX).reshape([2, 3]).layer_norm(s, tensor(bias), 1e-5) * weights()).sum());
    check_gradient(&bias, |b| (tensor(SIX).reshape([2, 3]).layer_norm(tensor(scale), b, 1e-5) * weights()).sum());
}

#[test]
fn cross_entropy_is_minus_the_log_of_the_softmax_at_the_label() -> Result<()> {
    let (loss, by_hand) = eval(|| {
        let logits = tensor(SIX).reshape([2, 3]);
        let labels = tensor([2, 0]);
        (logits.cross_entropy(labels), -(logits.softmax(-1) * labels.one_hot(3)).sum_axis(-1).log())
    })?;
    assert_eq!(loss.shape(), [2]);
    for (a, b) in loss.as_slice().iter().zip(by_hand.as_slice()) {
        assert!((a - b).abs() < 1e-14, "{a} {b}");
    }
    check_gradient(&SIX, |x| x.reshape([2, 3]).cross_entropy(tensor([2, 0])).mean());
    Ok(())
}

#[test]
fn a_label_that_is_no_class_fails_the_step_by_name_and_place() {
    let error = eval(|| tensor(SIX).reshape([2, 3]).cross_entropy(tensor([0, 3]))).unwrap_err();
    assert_eq!(error.message, "take_along_axis: index 3 at [1, 0] is out of bounds for axis 1 of extent 3");
    assert!(error.loc().expect("a place").file.ends_with("ops_composite.rs"));
}

#[test]
fn means_and_variances_have_the_right_gradients() {
    check_gradient(&SIX, |x| x.square().mean());
    check_gradient(&SIX, |x| (x.reshape([2, 3]).mean_axis(0) * tensor([1.0, 2.0, 3.0])).sum());
    check_gradient(&SIX, |x| (x.reshape([2, 3]).var_axis(-1) * tensor([1.0, 2.0])).sum());
    check_gradient(&SIX, |x| x.std_axis(0));
}

#[test]
fn the_deviation_of_equal_elements_has_a_gradient() -> Result<()> {
    let (value, gradient) = eval(|| {
        let x = tensor([[2.0, 2.0], [1.0, 3.0]]);
        let deviations = x.std_axis(1);
        (deviations, gradients(deviations.sum(), x))
    })?;
    assert_eq!(value.as_slice(), [0.0, 1.0]);
    assert_eq!(gradient.as_slice(), [0.0, 0.0, -0.5, 0.5]);
    Ok(())
}

#[test]
fn what_a_maximum_does_not_choose_has_no_gradient() -> Result<()> {
    // The slope of the root at 0 is infinite.
    let root = eval(|| {
        let x = tensor([-1.0, 4.0, 0.0]);
        gradients(x.maximum(0.0).sqrt().sum(), x)
    })?;
    assert_eq!(root.as_slice()[..2], [0.0, 0.25]);
    let log = eval(|| {
        let x = tensor([-1.0, 0.5, 2.0]);
        gradients(x.clamp(0.0, 1.0).log().sum(), x)
    })?;
    assert_eq!(log.as_slice(), [0.0, 2.0, 0.0]);
    let smaller = eval(|| {
        let x = tensor([3.0, 1.0, 2.0]);
        gradients((x.minimum(2.0) * tensor([f64::INFINITY, 5.0, 8.0])).sum(), x)
    })?;
    assert_eq!(smaller.as_slice(), [0.0, 5.0, 4.0]);
    Ok(())
}

#[test]
fn ids_of_bytes_have_one_place_among_many() -> Result<()> {
    let y = eval(|| tensor([0u8, 255]).one_hot::<f64>(600).reshape([1200]))?;
    let places: Vec<usize> = (0..1200).filter(|&i| y.as_slice()[i] != 0.0).collect();
    assert_eq!(places, [0, 600 + 255]);
    Ok(())
}

#[test]
fn random_numbers_of_unknown_extents_are_refused() {
    let error = eval(|| tensor([1.0, 2.0]).with_dynamic(0).dropout(0.5, Key::new(1))).unwrap_err();
    assert!(error.message.contains("random numbers of the unknown shape [?]"), "{error}");
    assert!(error.loc().expect("a place").file.ends_with("ops_composite.rs"), "{error}");
}

#[test]
fn parts_have_the_right_gradients() {
    check_gradient(&SIX, |x| x.reshape([2, 3]).index(1, -1).prod());
    check_gradient(&SIX, |x| x.reshape([2, 3]).row(scalar(1)).square().sum());
    check_gradient(&SIX, |x| x.reshape([2, 3]).column(-1).square().sum());
    check_gradient(&SIX, |x| (x.pad(0, 1, 2, 3.0) * tensor([9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0, 9.0])).sum());
    check_gradient(&SIX, |x| (stack(&[x, x * 2.0], 1) * stack(&[x, x.sin()], 1)).sum());
    check_gradient(&SIX, |x| x.reshape([2, 3]).transpose(0, 1).flatten().cumsum(0).square().sum());
}

#[test]
fn elementwise_composites_have_the_right_gradients() {
    check_gradient(&SIX, |x| x.clamp(-0.8, 1.6).square().sum());
    check_gradient(&SIX, |x| (x.powi(3) + x.powi(1) + x.powi(0)).sum());
    check_gradient(&SIX, |x| x.greater(0.3).select(x.exp(), 1.0).sum());
}

#[test]
fn operands_are_broadcast_both_ways_and_gradients_summed_back() {
    check_gradient(&SIX, |x| (x.unsqueeze(1) * x.unsqueeze(0)).sum());
    check_gradient(&[0.5, -1.0], |x| (x.unsqueeze(-1) / tensor([2.0, 4.0, 8.0]) - x.sum()).square().sum());
}

#[test]
fn matmul_takes_vectors_and_broadcasts_batches() -> Result<()> {
    let shape = |a: &'static [usize], b: &'static [usize]| {
        eval(move || zeros::<f32>(a).matmul(zeros(b))).map(|y| y.shape().to_vec())
    };
    assert_eq!(shape(&[3], &[3])?, [0; 0]);
    assert_eq!(shape(&[3], &[3, 4])?, [4]);
    assert_eq!(shape(&[2, 3], &[3])?, [2]);
    assert_eq!(shape(&[5, 2, 3], &[3])?, [5, 2]);
    assert_eq!(shape(&[5, 2, 3], &[3, 4])?, [5, 2, 4]);
    assert_eq!(shape(&[3], &[5, 3, 4])?, [5, 4]);
    assert_eq!(shape(&[6, 1, 2, 3], &[5, 3, 4])?, [6, 5, 2, 4]);
    check_gradient(&SIX, |x| x.reshape([3, 1, 2]).matmul(tensor([[1.0, 2.0], [3.0, -1.0]])).square().sum());
    check_gradient(&SIX, |x| {
        let batches = tensor([[[1.0], [2.0], [3.0]], [[0.5], [-1.0], [4.0]]]);
        x.reshape([2, 3]).matmul(batches).square().sum()
    });
    Ok(())
}

#[test]
fn halves_are_kept_with_their_probability_and_mean() -> Result<()> {
    let (rare, kept) = eval(|| {
        let [a, b] = Key::new(3).split(2)[..] else { unreachable!("two keys") };
        let rare: T64 = a.bernoulli(bf16::from_f32(0.001), [50_000]).cast();
        (rare.mean(), full([64], bf16::from_f32(1.8)).dropout(0.1, b))
    })?;
    // The numbers of `bf16` are multiples of 1/256.
    assert!((0.0003..0.0017).contains(&rare.item()), "{}", rare.item());
    // The factor 1 / 0.9 would be 1.109375 in 16 bits.
    let expected = [0.0, f32::from(bf16::from_f32(1.8)) / 0.9].map(bf16::from_f32);
    assert!(kept.as_slice().iter().all(|x| expected.contains(x)) && kept.as_slice().contains(&expected[1]), "{kept:?}");
    assert_ne!(expected[1], bf16::from_f32(1.8) * bf16::from_f32(1.0 / 0.9));
    Ok(())
}

#[test]
fn random_numbers_have_their_moments() -> Result<()> {
    let (uniform, normal, bernoulli) = eval(|| {
        let [a, b, c] = Key::new(3).split(3)[..] else { unreachable!("three keys") };
        let bernoulli: T64 = c.bernoulli(0.25, [20_000]).cast();
        (a.uniform::<f64>([20_000]), b.normal::<f64>([20_000]), bernoulli)
    })?;
    let moments = |x: &[f64]| {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        (mean, x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64)
    };
    // Five standard errors of 20,000 draws.
    let near =
        |(mean, variance): (f64, f64), (m, v): (f64, f64)| (mean - m).abs() < 0.036 && (variance - v).abs() < 0.05;
    assert!(near(moments(uniform.as_slice()), (0.5, 1.0 / 12.0)));
    assert!(near(moments(normal.as_slice()), (0.0, 1.0)));
    assert!(near(moments(bernoulli.as_slice()), (0.25, 0.1875)));
    assert!(normal.as_slice().iter().all(|x| x.is_finite()));
    Ok(())
}

#[test]
fn keys_of_different_numbers_and_parents_are_different() -> Result<()> {
    let keys = eval(|| {
        let root = Key::new(1);
        let mut keys = vec![root, root.fold_in(0), root.fold_in(1), root.fold_in(0).fold_in(0), Key::new(2).fold_in(0)];
        keys.extend(root.split(3).into_iter().skip(2));
        keys.into_iter().map(Key::into_tensor).collect::<Vec<_>>()
    })?;
    for (i, a) in keys.iter().enumerate() {
        assert!(keys[..i].iter().all(|b| a != b), "{a}");
    }
    Ok(())
}

// Messages.

#[track_caller]
fn check_message(error: Diagnostic, message: &str, label: &str, help: &str) {
    assert_eq!(error.message, message);
    let (loc, given) = error.labels.first().expect("a place");
    assert!(loc.file.ends_with("ops_composite.rs"), "{loc}");
    assert_eq!(given, label);
    assert_eq!(error.help.as_deref(), Some(help));
}

#[test]
fn messages_show_both_shapes_at_the_line_of_the_user() {
    check_message(
        eval(|| zeros::<f32>([32, 784]).matmul(zeros([10, 784]))).unwrap_err(),
        "matmul: inner dimensions differ, 784 and 10",
        "f32[32, 784] times f32[10, 784]",
        "transpose the second operand with `.t()`",
    );
    check_message(
        eval(|| zeros::<f32>([8, 2, 3]).matmul(zeros([2, 4]))).unwrap_err(),
        "matmul: inner dimensions differ, 3 and 2",
        "f32[8, 2, 3] times f32[2, 4]",
        "transpose the first operand with `.t()`",
    );
    check_message(
        eval(|| zeros::<f32>([2, 3]) + zeros::<f32>([4])).unwrap_err(),
        "add: shapes [2, 3] and [4] cannot be broadcast together",
        "f32[2, 3] with f32[4]",
        "shapes are aligned at their last axis; extents must be equal, or one of them must be 1",
    );
    check_message(
        eval(|| zeros::<f32>([2, 3]).sum_axis(2)).unwrap_err(),
        "sum_axis: axis 2 is out of bounds for a tensor of rank 2",
        "f32[2, 3]",
        "axes are 0 to 1, or -1 to -2 counted from the last",
    );
    check_message(
        eval(|| zeros::<f32>([2, 3]).reshape([4, -1])).unwrap_err(),
        "reshape: cannot reshape [2, 3] to [4, ?]: the element counts differ",
        "f32[2, 3]",
        "the products of the extents must be equal; an extent of -1 is inferred from the others",
    );
    check_message(
        eval(|| zeros::<f32>([2, 3]).squeeze(1)).unwrap_err(),
        "squeeze: the extent of axis 1 is 3, not 1",
        "f32[2, 3]",
        "select one element with `.index(i, axis)`",
    );
    check_message(
        eval(|| zeros::<f32>([2, 3]).cross_entropy(tensor([1]))).unwrap_err(),
        "cross_entropy: one label is needed for each row of logits",
        "f32[2, 3] with i32[1]",
        "labels must have one axis less than logits: [..] and [.., classes]",
    );
    check_message(
        eval(|| zeros::<f32>([3]).index(3, 0)).unwrap_err(),
        "index: index 3 is out of bounds for axis 0 of extent 3",
        "f32[3]",
        "indices are 0 to 2, or -1 to -3 counted from the end",
    );
}

/// The methods set the location of their caller, which closures in them do not know.
#[test]
fn every_node_of_a_method_has_the_place_of_its_call() {
    let x = || tensor(SIX).reshape([2, 3]);
    let key = || Key::new(1);
    let methods: [(&str, &dyn Fn() -> T64); 22] = [
        ("arithmetic", &|| (x() * 2.0 - x() / 3.0 + tensor([1.0, 2.0, 3.0])).powi(5) + x().powi(0)),
        ("clamp", &|| x().clamp(0.0, 1.0)),
        ("select", &|| x().less(0.0).select(x(), 1.0)),
        ("gelu", &|| x().gelu()),
        ("mean", &|| x().mean_axis(1)),
        ("std", &|| x().std_axis([0, 1])),
        ("layer_norm", &|| x().layer_norm(full([3], 1.0), full([3], 0.0), 1e-5)),
        ("rms_norm", &|| x().rms_norm(full([3], 1.0), 1e-5)),
        ("cross_entropy", &|| x().cross_entropy(tensor([0, 1]))),
        ("concat", &|| concat(&[x(), x()], 0)),
        ("stack", &|| stack(&[x(), x()], 0)),
        ("pad", &|| x().pad(0, 1, 1, 0.0)),
        ("index", &|| x().index(-1, 0)),
        ("row", &|| x().row(scalar(0))),
        ("one_hot", &|| tensor([0, 1]).one_hot(3)),
        ("transpose", &|| x().t().unsqueeze(0).squeeze(0)),
        ("matmul", &|| x().matmul(tensor([1.0, 2.0, 3.0]))),
        ("batched matmul", &|| x().matmul(zeros([4, 3, 2]))),
        ("split", &|| key().split(2)[1].uniform([2])),
        ("normal", &|| key().normal([2])),
        ("bernoulli", &|| key().bernoulli(0.5, [2]).cast()),
        ("cumsum", &|| x().cumsum(-1).flip(0).stop_gradient()),
    ];
    for (name, method) in methods {
        let graph = trace::trace(name, || vec![method().untyped()]).unwrap_or_else(|e| panic!("{e}")).graph;
        graph.visit_nodes(graph.root(), &mut |node| {
            let node = graph.node(node);
            assert!(node.loc.file.ends_with("ops_composite.rs"), "{name}: {} at {}", node.op.name(), node.loc);
        });
    }
}
