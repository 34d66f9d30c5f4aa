//! Gradients through control flow: saved values, errors, and higher orders. The values are compared
//! in the corpus in `tests/corpus_control/`.

#![allow(clippy::assign_op_pattern, reason = "both forms of assignment are staged")]

use crate::support::{check, error_of};
use anabranch::extend::{
    Arity, Attrs, Effects, Effort, Exactness, Grad, GradRule, Halves, Laws, OpClass, OpDef, Origin, Prim, ValueCx,
    differentiate, emit, register,
};
use anabranch::optim::{Adam, Optimizer, Sgd};
use anabranch::prelude::*;
use anabranch::{AnyValue, DType, Graph, HostTensor, IntoArray, List};
use std::sync::LazyLock;

type S = Tensor<f64>;

// Loops.

#[test]
fn second_and_third_order_through_a_loop() {
    #[graph]
    fn f(x: S) -> (S, S, S, S) {
        let mut v = x;
        while v < 8.0 {
            v *= v;
        }
        let d = gradients(v, x);
        let dd = gradients(d, x);
        (v, d, dd, gradients(dd, x))
    }
    check(f, 2.0, &[16.0, 32.0, 48.0, 48.0]);
}

#[test]
fn no_gradient_backwards_through_integers() {
    #[graph]
    fn f(n: Tensor<i32>, x: S) -> (S, S) {
        let mut i = n;
        let mut total = scalar(0.0);
        while i > 0 {
            total += x * i.cast();
            i = i / 2;
        }
        (total, gradients(total, x))
    }
    check(f, (10, 2.0), &[36.0, 18.0]);
}

// Saved values.

/// Returns the text of the graph of `f`.
fn graph_of<Args, F: anabranch::dsl::function::GraphFn<Args>>(f: F, inputs: usize) -> String {
    let signature = vec![anabranch::TensorType::new(anabranch::DType::F64, ()); inputs];
    let (traced, _) = anabranch::dsl::function::trace_fn("f", &f, &signature).unwrap();
    traced.graph.to_string()
}

#[test]
fn only_what_the_gradient_reads_is_saved() {
    #[graph]
    fn scaled(x: S, c: S) -> S {
        let (mut v, mut i) = (x, scalar(0));
        while i < 5 {
            v *= c;
            i += 1;
        }
        let (dx, dc) = gradients(v, (x, c));
        dx + dc
    }
    // The captured factor is read directly; the other operand of the product is saved.
    assert_eq!(graph_of(scaled, 2).matches("= push ").count(), 1);

    #[graph]
    fn scaled_by_a_constant(x: S) -> S {
        let (mut v, mut i) = (x, scalar(0));
        while i < 5 {
            v = v * 3.0 + 1.0;
            i += 1;
        }
        gradients(v, x)
    }
    assert_eq!(graph_of(scaled_by_a_constant, 1).matches("= push ").count(), 0);

    #[graph]
    fn stopped(x: S) -> S {
        let (mut v, mut i) = (x, scalar(0));
        while i < 5 {
            v = 2.0 * v + (v * v).stop_gradient();
            i += 1;
        }
        gradients(v, x)
    }
    assert_eq!(graph_of(stopped, 1).matches("= push ").count(), 0);
}

#[test]
fn of_tensors_whose_shape_alone_matters_the_extents_are_saved() {
    #[graph]
    fn grown(x: S) -> (S, S) {
        let (mut all, mut i) = (x.with_dynamic(0), scalar(0));
        while i < 3 {
            all = concat(&[2.0 * all + x.sum(), x], 0);
            i += 1;
        }
        (all, gradients(all.sum(), x))
    }
    let signature = [anabranch::TensorType::new(anabranch::DType::F64, [2])];
    let (mut traced, _) = anabranch::dsl::function::trace_fn("f", &grown, &signature).unwrap();
    anabranch::dsl::passes::Pipeline::standard().run(&mut traced.graph);
    let saved = anabranch::dsl::autodiff::saved(&traced.graph);
    let types: Vec<String> = saved.places.iter().flat_map(|p| &p.values).map(|v| v.ty.to_string()).collect();
    assert!(!types.is_empty() && types.iter().all(|ty| ty.starts_with("i64[1]")), "{saved}");

    // Each iteration doubles all elements and adds the sum of `x` to each.
    let (x, mut all) = ([1.0, 2.0], vec![1.0, 2.0]);
    let mut slope = vec![[1.0, 0.0], [0.0, 1.0]];
    for _ in 0..3 {
        all = all.iter().map(|a| 2.0 * a + 3.0).chain(x).collect();
        slope = slope.iter().map(|s| s.map(|d| 2.0 * d + 1.0)).chain([[1.0, 0.0], [0.0, 1.0]]).collect();
    }
    all.extend([0, 1].map(|i| slope.iter().map(|s| s[i]).sum::<f64>()));
    check(grown, [1.0, 2.0], &all);
}

#[test]
fn a_second_gradient_saves_nothing_again() {
    fn squared(x: S, times: usize) -> S {
        let y = loop_of_squares(x);
        (0..times).fold(scalar(0.0), |sum, _| sum + gradients(y, x))
    }
    #[graph]
    fn loop_of_squares(x: S) -> S {
        let mut v = x;
        while v < 100.0 {
            v *= v;
        }
        v
    }
    for times in [1, 2, 3] {
        assert_eq!(graph_of(|x| squared(x, times), 1).matches("= push ").count(), 1, "{times} gradients");
    }
    check(|x| squared(x, 2), 2.0, &[2048.0]);
}

#[test]
fn an_operation_without_a_rule_is_named_with_its_line_and_the_way() {
    static STRANGE: LazyLock<Prim> = LazyLock::new(|| register(DEFINITION).unwrap());
    const DEFINITION: OpDef = OpDef {
        name: "test.strange",
        arity: Arity::Exactly(1),
        attrs: &[],
        infer: |cx| Ok(cx.operands[0].clone()),
        eval: |cx| Ok(cx.operands[0].clone()),
        grad: Grad::Missing("nobody knows it"),
        exactness: Exactness::Exact,
        class: OpClass::Opaque(Effort::SIMPLE),
        halves: Halves::Widened,
        effects: Effects::Pure,
        laws: Laws::NONE,
    };
    #[track_caller]
    fn strange(x: S) -> S {
        Tensor::from_any(emit(*STRANGE, &[x.untyped()], Attrs::none()))
    }
    #[graph]
    fn f(x: S) -> S {
        let mut y = x.exp().named("start");
        while y < 10.0 {
            y = strange(y * 2.0) + 1.0;
        }
        gradients(y.sin(), x)
    }
    let error = error_of(f, 1.0).to_string();
    for part in [
        "`test.strange` has no gradient: nobody knows it",
        "strange(y * 2.0)",
        "loss <- sin <- while",
        "test.strange <- mul",
        "exp",
    ] {
        assert!(error.contains(part), "no `{part}` in:\n{error}");
    }
}

/// An operation of one operand that doubles it, with a gradient rule.
const fn doubling(name: &'static str, grad: GradRule) -> OpDef {
    OpDef {
        name,
        arity: Arity::Exactly(1),
        attrs: &[],
        infer: |cx| Ok(cx.operands[0].clone()),
        eval: |cx| {
            let x = cx.operands[0];
            Ok(HostTensor::new(x.shape(), x.data::<f64>().iter().map(|x| 2.0 * x).collect::<Vec<f64>>()))
        },
        grad: Grad::Rule(grad),
        exactness: Exactness::Exact,
        class: OpClass::Opaque(Effort::SIMPLE),
        halves: Halves::Widened,
        effects: Effects::Pure,
        laws: Laws::NONE,
    }
}

#[test]
fn the_rule_of_a_registered_operation_works_with_and_without_a_trace() {
    static DOUBLED: LazyLock<Prim> =
        LazyLock::new(|| register(doubling("test.doubled", |n| vec![Some(doubled(n.dy()))])).unwrap());
    fn doubled<C: ValueCx>(x: AnyValue<C>) -> AnyValue<C> {
        emit(*DOUBLED, &[x], Attrs::none())
    }
    let y = |x: S| S::from_any(doubled(x.untyped()));
    let slope = anabranch::eval_with(|x: S| gradients(gradients(y(x) * x, x), x), 3.0).unwrap();
    assert_eq!(slope, 4.0);

    LazyLock::force(&DOUBLED);
    let text = "graph @f(%x: f64[2], %dy: f64[2]) -> f64[2] { %y = test.doubled %x  return %y }";
    let mut graph = Graph::parse(text, "f.ir").unwrap();
    let (x, dy, y) = (graph.inputs()[0], graph.inputs()[1], graph.outputs()[0]);
    let dx = differentiate(&mut graph, &[(y, dy)], &[x], Origin::UNKNOWN).unwrap();
    let root = graph.root();
    graph.region_mut(root).yields = dx;
    let expected = "graph @f(%x: f64[2], %dy: f64[2]) -> f64[2] {
        %y = test.doubled %x  %dx = test.doubled %dy  return %dx
    }";
    assert!(graph.same_structure(&Graph::parse(expected, "f.ir").unwrap()), "{graph}");
}

#[test]
fn an_operation_that_a_rule_uses_wrongly_is_an_error_at_the_forward_operation() {
    static WRONG: LazyLock<Prim> = LazyLock::new(|| {
        register(doubling("test.wrong", |n| vec![Some(n.dy().sum_axis(3) + n.dy().unsqueeze(0).matmul(n.dy()))]))
            .unwrap()
    });
    #[track_caller]
    fn wrong(x: S) -> S {
        S::from_any(emit(*WRONG, &[x.untyped()], Attrs::none()))
    }
    let error = error_of(|x: S| gradients(wrong(x), x), 1.0).to_string();
    for part in ["sum_axis", "gradients(wrong(x), x)"] {
        assert!(error.contains(part), "no `{part}` in:\n{error}");
    }

    // The graph stays usable.
    let text = "graph @f(%x: f64[]) -> f64[] { %y = test.wrong %x  return %y }";
    let mut graph = Graph::parse(text, "f.ir").unwrap();
    let (x, y) = (graph.inputs()[0], graph.outputs()[0]);
    let error = differentiate(&mut graph, &[(y, x)], &[x], Origin::UNKNOWN).unwrap_err();
    assert!(error.message.starts_with("sum_axis"), "{error}");
    assert!(graph.same_structure(&Graph::parse(text, "f.ir").unwrap()), "{graph}");
}

// Gradients that are rejected.

#[test]
fn a_backward_pass_that_is_nested_too_deeply_is_an_error() {
    fn deep(n: usize, inside: &dyn Fn() -> S) -> S {
        if n == 0 { inside() } else { anabranch::checkpoint(|| deep(n - 1, inside)) }
    }
    let error = error_of(
        |x: S| {
            let y = deep(70, &|| x.exp());
            deep(70, &|| gradients(y, x))
        },
        1.0,
    );
    assert!(error.message.contains("nested more than 128 levels deep"), "{error}");
    assert!(error.to_string().contains("tests/gradients.rs"), "{error}");
}

#[test]
fn a_way_through_the_loop_around_is_an_error() {
    #[graph]
    fn f(x: S) -> S {
        let mut v = x;
        while v < 10.0 {
            v = gradients(v * x, x);
        }
        v
    }
    let error = error_of(f, 1.0);
    assert!(error.message.contains("the loss depends on `v` from an earlier iteration"), "{error}");
    assert!(error.to_string().contains("tests/gradients.rs"), "{error}");
}

#[test]
fn a_way_through_earlier_iterations_is_an_error() {
    #[graph]
    fn power(x: S) -> S {
        let (mut v, mut i, mut d) = (scalar(1.0), scalar(0), scalar(0.0));
        while i < 3 {
            d += gradients(v * x, x);
            v *= x;
            i += 1;
        }
        d
    }
    #[graph]
    fn through_a_branch(x: S) -> S {
        let (mut u, mut v, mut i, mut d) = (scalar(1.0), scalar(1.0), scalar(0), scalar(0.0));
        while i < 3 {
            if i > 1 {
                d += gradients(v * x, x);
            }
            (u, v) = (u + x, u);
            i += 1;
        }
        d
    }
    #[graph]
    fn through_two_loops(x: S) -> S {
        let (mut u, mut i, mut d) = (scalar(1.0), scalar(0), scalar(0.0));
        while i < 3 {
            let (mut v, mut j) = (scalar(1.0), scalar(0));
            while j < 2 {
                d += gradients(v * x, x);
                v = u;
                j += 1;
            }
            u *= x;
            i += 1;
        }
        d
    }
    #[graph]
    fn in_the_condition(x: S) -> S {
        let mut v = scalar(1.0);
        while gradients(v * x, x) < 3.0 {
            v += x;
        }
        v
    }
    #[graph]
    fn with_respect_to_both(x: S) -> S {
        let (mut v, mut i, mut d) = (2.0 * x, scalar(0), scalar(0.0));
        while i < 3 {
            d += gradients(v * x, (v, x)).1;
            v += 1.0;
            i += 1;
        }
        d
    }
    for (f, name) in [
        (power as fn(S) -> S, "v"),
        (through_a_branch, "v"),
        (through_two_loops, "u"),
        (in_the_condition, "v"),
        (with_respect_to_both, "v"),
    ] {
        let error = error_of(f, 2.0);
        let way = format!("the loss depends on `{name}` from an earlier iteration");
        assert!(error.message.contains(&way), "{error}");
        assert!(error.to_string().contains("tests/gradients.rs"), "{error}");
    }
}

#[test]
fn a_gradient_in_a_loop_of_a_loop_before_it_in_one_more_loop() {
    /// `2 * d(w^3)/dw = 6 w^2`, twice: `6 (6 x^2)^2`, whose derivatives are 864 x^3 and 2592 x^2.
    #[graph]
    fn f(x: S) -> (S, S, S) {
        let (mut w, mut k) = (x, scalar(0));
        while k < 2 {
            let (mut cube, mut j) = (w, scalar(0));
            while j < 2 {
                cube *= w;
                j += 1;
            }
            let (mut sum, mut i) = (scalar(0.0), scalar(0));
            while i < 2 {
                sum += gradients(cube, w);
                i += 1;
            }
            w = sum;
            k += 1;
        }
        let d = gradients(w, x);
        (w, d, gradients(d, x))
    }
    check(f, 0.5, &[13.5, 108.0, 648.0]);
}

#[test]
fn a_gradient_with_respect_to_what_an_iteration_starts_from() {
    #[graph]
    fn f(x: S) -> (S, S) {
        let (mut v, mut i, mut d) = (x, scalar(0), scalar(0.0));
        while i < 3 {
            d += gradients(v * v * x, v);
            v = v * x - gradients(v * v, v).stop_gradient();
            i += 1;
        }
        (d, v)
    }
    // v: 2, 2 * 2 - 4 = 0, 0, 0
    check(f, 2.0, &[8.0, 0.0]);
}

#[test]
fn a_gradient_between_two_results_of_one_construct_is_an_error() {
    #[graph]
    fn branch(x: S, c: Tensor<bool>) -> S {
        let (mut y, mut z) = (x, x);
        if c {
            z = x * 2.0;
            y = z * z;
        }
        gradients(y, z)
    }
    #[graph]
    fn repeated(x: S, n: Tensor<i32>) -> S {
        let (mut y, mut z, mut i) = (x, x, scalar(0));
        while i < n {
            z = x * 2.0;
            y = z * z;
            i += 1;
        }
        gradients(2.0 * y, z)
    }
    for (error, construct) in [(error_of(branch, (3.0, true)), "branch"), (error_of(repeated, (3.0, 2)), "loop")] {
        let message = format!("the loss depends on `z` inside the {construct} that computes both");
        assert!(error.message.contains(&message), "{error}");
        assert!(error.to_string().contains("y, z)"), "{error}");
    }

    // In the other direction there is no dependence.
    #[graph]
    fn apart(x: S, n: Tensor<i32>) -> S {
        let (mut y, mut z, mut i) = (x, x, scalar(0));
        while i < n {
            z = x * 2.0;
            y = z * z;
            i += 1;
        }
        gradients(z * z * z, y) + gradients(y * y, y)
    }
    check(apart, (3.0, 2), &[72.0]);
}

#[test]
fn a_loss_that_is_not_scalar_is_an_error() {
    #[graph]
    fn f(x: S) -> S {
        gradients(x * x, x)
    }
    let error = error_of(f, [1.0, 2.0]);
    assert!(error.message.contains("the loss is f64[2]"), "{error}");
}

#[test]
fn a_match_with_many_arms_has_the_gradient_of_the_taken_one() {
    #[graph]
    fn f(n: Tensor<i32>, x: S) -> (S, S) {
        let y = match n {
            0 => x,
            1 => x * x,
            2 => x * x * x,
            3 => x.exp(),
            4 => x.sin(),
            5 => x.cos(),
            6 => x + 1.0,
            7 => x - 1.0,
            8 => x * 2.0,
            9 => x * 3.0,
            10 => x * 4.0,
            11 => x * 5.0,
            12 => x * 6.0,
            13 => x * 7.0,
            14 => x * 8.0,
            15 => x * 9.0,
            16 => x * 10.0,
            17 => x * 11.0,
            18 => x * 12.0,
            19 => x * 13.0,
            20 => x * 14.0,
            21..=40 => x * 100.0,
            41 | 43 | 45 => x * 200.0,
            _ => x * 0.0,
        };
        (y, gradients(y, x))
    }
    check(f, (2, 2.0), &[8.0, 12.0]);
    check(f, (30, 2.0), &[200.0, 100.0]);
    check(f, (43, 2.0), &[400.0, 200.0]);
    check(f, (42, 2.0), &[0.0, 0.0]);
}

// Losses whose gradient reaches no parameter of a model.

/// Checks that the error of a step that trains `model` contains all of `parts`.
#[track_caller]
fn trains_nothing(step: impl Fn(Tensor), parts: &[&str]) {
    let traced = anabranch::dsl::function::trace_fn("step", &step, &[anabranch::TensorType::new(DType::F32, [2])]);
    let error = traced.map(|_| ()).expect_err("a step that trains nothing").to_string();
    for part in parts.iter().chain(&["tests/gradients.rs:"]) {
        assert!(error.contains(part), "no `{part}` in:\n{error}");
    }
}

#[test]
fn a_loss_without_a_gradient_names_the_operation_the_reason_and_the_path() {
    let w = Var::<f32>::new("w", [1.0, 2.0]);
    let sgd = Sgd::new(0.1);
    let net = (w.clone(), Var::<f32>::new("b", 0.0));
    trains_nothing(
        |x| sgd.minimize(((x * w.get()).argmax(0).cast::<f32>() - 1.0).square().named("loss"), &net),
        &[
            "the loss `loss` reaches no trained variable of the model",
            "`argmax` has no gradient: an index has no gradient",
            "the path is loss <- mul <- sub <- cast <- argmax <- mul <- `w`",
            "sgd.minimize(",
        ],
    );
    let adam = Adam::new(0.1);
    #[graph]
    fn above(w: Tensor, x: Tensor) -> Tensor<bool> {
        w > x
    }
    trains_nothing(
        |x| adam.minimize_at(0.5, above(w.get(), x).cast::<f32>().mean(), &w),
        &["`gt` has no gradient: its result is a boolean", "<- cast <- gt <- `w`", "adam.minimize_at("],
    );
    trains_nothing(
        |x| drop(anabranch::optim::model_gradients((x * w.get().stop_gradient()).sum(), &w)),
        &["`stop_gradient` has no gradient: it stops gradients by definition", "model_gradients("],
    );
    trains_nothing(
        |x| sgd.minimize((x * w.get()).round().cast::<i32>().cast::<f32>().sum(), &w),
        &["`round` has no gradient: piecewise constant"],
    );
    trains_nothing(
        |x| sgd.minimize((x * w.get()).cast::<i32>().cast::<f32>().sum(), &w),
        &["`cast` has no gradient: its result is i32[2]"],
    );
}

#[test]
fn a_loss_without_a_gradient_is_found_in_branches_loops_and_lists() {
    let w = Var::<f32>::new("w", [1.0, 2.0]);
    let sgd = Sgd::new(0.1);
    #[graph]
    fn looped(w: Tensor, x: Tensor) -> Tensor {
        let (mut y, mut i) = (x, scalar(0));
        while i < 3 {
            if y.sum() > 0.0 {
                y = y + w.sign();
            } else {
                y = y * 2.0;
            }
            i += 1;
        }
        y.sum()
    }
    trains_nothing(|x| sgd.minimize(looped(w.get(), x), &w), &["`sign` has no gradient: piecewise constant", "<- `w`"]);
    #[graph]
    fn decides(w: Tensor, x: Tensor) -> Tensor {
        let mut y = x.sum();
        while y < w.sum() {
            y += 1.0;
        }
        y
    }
    trains_nothing(|x| sgd.minimize(decides(w.get(), x), &w), &["`lt` has no gradient"]);
    #[graph]
    fn listed(w: Tensor, x: Tensor) -> Tensor {
        let mut list = List::<i32>::new(());
        list.push(w.argmin(0));
        list.read(0).cast::<f32>() * x.sum()
    }
    trains_nothing(|x| sgd.minimize(listed(w.get(), x), &w), &["`argmin` has no gradient"]);
    #[graph]
    fn in_a_branch(w: &Var, sgd: &Sgd, x: Tensor) {
        if x.sum() > 0.0 {
            sgd.minimize((w.get().floor() * x).sum(), w);
        }
    }
    trains_nothing(|x| in_a_branch(&w, &sgd, x), &["`floor` has no gradient", "sgd.minimize("]);
    #[graph]
    fn in_a_loop(w: &Var, sgd: &Sgd, x: Tensor) {
        for _ in range(scalar(3)) {
            sgd.minimize((w.get().floor() * x).sum(), w);
        }
    }
    trains_nothing(|x| in_a_loop(&w, &sgd, x), &["`floor` has no gradient", "sgd.minimize("]);
    trains_nothing(
        |x| sgd.minimize(anabranch::checkpoint(|| (w.get().floor() * x).sum()), &w),
        &["`floor` has no gradient"],
    );
}

#[test]
fn a_loss_of_another_model_and_a_model_without_trained_variables_are_errors() {
    let (w, other) = (Var::<f32>::new("w", [1.0, 2.0]), Var::<f32>::new("other", [1.0, 2.0]));
    let sgd = Sgd::new(0.1);
    trains_nothing(
        |x| sgd.minimize((x * other.get()).sum().named("loss"), &w),
        &["the loss `loss` reads no trained variable of the model", "it reads `other`", "sgd.minimize("],
    );
    trains_nothing(
        |x| sgd.minimize(x.sum(), &w),
        &["reads no trained variable of the model", "it reads no variables at all"],
    );
    let mean = Var::<f32>::untrained("mean", [1.0, 2.0]);
    trains_nothing(|x| sgd.minimize((x * mean.get()).sum(), &mean), &["the model has no trained variables"]);
    let counts = Var::<i32>::new("counts", [1, 2]);
    trains_nothing(
        |x| sgd.minimize((x * counts.get().cast::<f32>()).sum(), &counts),
        &["the model has no trained variables"],
    );
}

#[test]
fn a_model_of_which_some_variables_reach_the_loss_is_trained() -> anabranch::Result<()> {
    let (w, unused) = (Var::<f32>::new("w", [1.0, 2.0]), Var::<f32>::new("unused", [3.0, 4.0]));
    let sgd = Sgd::new(0.5);
    #[graph]
    fn step(model: &(Var, Var), sgd: &Sgd, x: Tensor) {
        for _ in range(scalar(2)) {
            sgd.minimize((x * model.0.get()).sum() + model.1.get().floor().sum(), model);
        }
    }
    let model = (w, unused);
    for interpreted in [false, true] {
        let session = Session::builder().interpreted(interpreted).build()?;
        session.function(|x: Tensor| step(&model, &sgd, x))?.call([1.0, -1.0])?;
        assert_eq!(session.get(&model.0)?, [0.0, 3.0].into_array());
        assert_eq!(session.get(&model.1)?, [3.0, 4.0].into_array());
    }
    Ok(())
}

#[test]
fn a_gradient_with_respect_to_what_the_loss_does_not_read_is_zero() {
    check(|x: S, y: S| gradients(x * x, (x, y)), (3.0, 5.0), &[6.0, 0.0]);
    check(|x: S| gradients(x.floor(), x), 3.5, &[0.0]);
}
