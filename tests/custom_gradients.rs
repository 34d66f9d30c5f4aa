//! Functions with custom gradient rules, on every engine.

use crate::support::{check, error_of};
use anabranch::prelude::*;

type S = Tensor<f64>;

#[graph]
fn same(x: S) -> S {
    x
}

/// The gradient of the identity, clipped to [-1, 1].
#[graph]
fn clipped(_x: S, _y: S, dy: S) -> S {
    dy.minimum(1.0).maximum(-1.0)
}

#[test]
fn a_gradient_is_clipped_on_its_way() {
    #[graph]
    fn f(x: S) -> (S, S) {
        let y = custom_gradient(same, clipped)(x);
        (y, gradients((y * tensor([0.5, 3.0, -7.0])).sum(), x))
    }
    check(f, [1.0, 2.0, 3.0], &[1.0, 2.0, 3.0, 0.5, 1.0, -1.0]);
}

#[test]
fn a_gradient_passes_straight_through_a_step() {
    #[graph]
    fn f(x: S) -> (S, S, S) {
        let through = custom_gradient(|x: S| x.round(), |_, _, dy| dy);
        let y = through(x);
        (y, gradients((y * y).sum(), x), gradients(x.round().sum(), x))
    }
    check(f, [0.4, 1.7], &[0.0, 2.0, 0.0, 4.0, 0.0, 0.0]);
}

/// Returns log(sum(exp(x))) by its definition, which overflows, with the gradient softmax(x), which
/// is computed with shifted inputs.
#[graph]
fn logsumexp(x: S) -> S {
    let shift = x.max().stop_gradient();
    shift + (x - shift).exp().sum().log()
}

#[graph]
fn logsumexp_gradient(x: S, y: S, dy: S) -> S {
    (x - y).exp() * dy
}

#[test]
fn logsumexp_with_a_stable_rule() {
    #[graph]
    fn f(x: S) -> (S, S) {
        let y = custom_gradient(logsumexp, logsumexp_gradient)(x);
        (y, gradients(y, x))
    }
    let y = 1000.0 + (1.0 + (-1.0f64).exp()).ln();
    check(f, [1000.0, 999.0], &[y, (1000.0 - y).exp(), (999.0 - y).exp()]);
}

#[test]
fn a_rule_that_reads_the_result_is_right_in_second_order() {
    // The rule names the result, whose gradient is the rule again: d softmax = diag(p) - p p^T.
    #[graph]
    fn f(x: S) -> (S, S) {
        let y = custom_gradient(logsumexp, logsumexp_gradient)(x);
        let p = gradients(y, x);
        let weighted = (p * tensor([2.0, -1.0, 0.5])).sum();
        (p, gradients(weighted, x))
    }
    let x = [0.3, -0.2, 1.0f64];
    let sum: f64 = x.iter().map(|x| x.exp()).sum();
    let p: Vec<f64> = x.iter().map(|x| x.exp() / sum).collect();
    let c = [2.0, -1.0, 0.5];
    let mean: f64 = p.iter().zip(c).map(|(p, c)| p * c).sum();
    let mut expected = p.clone();
    expected.extend(p.iter().zip(c).map(|(p, c)| p * (c - mean)));
    check(f, x, &expected);
}

#[test]
fn a_rule_has_a_rule_of_its_own() {
    // y = x, dy/dx = 3 by the outer rule, whose own gradient is by the inner rule: 7 for every dy.
    #[graph]
    fn f(x: S, w: S) -> (S, S) {
        let outer = custom_gradient(same, |x: S, _, dy: S| {
            let triple = custom_gradient(|v: (S, S)| v.0 * 3.0 + v.1 * 0.0, |v, _, d: S| (d * 7.0, v.1 * 0.0));
            triple((dy, x))
        });
        let dx = gradients(outer(x) * w, x);
        (dx, gradients(dx, w))
    }
    check(f, (2.0, 5.0), &[15.0, 7.0]);
}

#[test]
fn arguments_and_results_are_tuples_of_any_elements() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, Tensor<i32>, S, S) {
        let power = custom_gradient(
            |(x, w, n): (S, S, Tensor<i32>)| (x * w, n + 1),
            |(x, w, n), (y, m), (dy, dm)| {
                // The cotangent of an integer is zero, and the gradient returned for an integer is
                // ignored.
                (dy * w * 10.0 + y * 0.0, dy * x * 100.0 + (m + dm - n - 1).cast::<f64>(), dm)
            },
        );
        let w = x + 1.0;
        let (y, m) = power((x, w, n));
        let dx = gradients(y, x);
        (y, m, dx, gradients(y, w))
    }
    // y = x w; 10 w through x, 100 x through w.
    check(f, (2.0, 4), &[6.0, 5.0, 30.0 + 200.0, 200.0]);
}

#[test]
fn in_branches_and_loops() {
    #[graph]
    fn f(x: S, c: S) -> (S, S) {
        let double = custom_gradient(|x: S| x * 2.0, |_, y: S, dy: S| dy * y);
        let (mut y, mut i) = (x, scalar(0));
        while i < 3 {
            if c > 0.0 {
                y = double(y);
            } else {
                y = y * y;
            }
            i += 1;
        }
        (y, gradients(y, x))
    }
    // y = 8 x; the gradient is the product of the three results 2x, 4x, 8x.
    check(f, (3.0, 1.0), &[24.0, 6.0 * 12.0 * 24.0]);
    check(f, (3.0, -1.0), &[6561.0, 8.0 * 3f64.powi(7)]);
}

#[test]
fn a_loop_saves_what_the_rule_reads_and_nothing_else() {
    #[graph]
    fn f(x: S) -> S {
        let (mut y, mut i) = (x, scalar(0));
        while i < 3 {
            y = custom_gradient(|x: S| (x.exp() * x.tanh()).sin(), |_, _, dy: S| dy * 2.0)(y);
            i += 1;
        }
        gradients(y, x)
    }
    check(f, 0.5, &[8.0]);
    let traced = anabranch::dsl::function::trace_fn("f", &f, &[anabranch::TensorType::new(anabranch::DType::F64, ())]);
    let text = traced.unwrap().0.graph.to_string();
    assert!(!text.contains("push"), "{text}");
}

#[test]
fn it_is_a_function_of_plain_rust() {
    fn f(x: S) -> (S, S) {
        let square = custom_gradient(|x: S| x * x, |x, _, dy| x * dy * 20.0);
        let y = square(x) + square(x * 3.0);
        (y, gradients(y, x))
    }
    // 20 x + 3 * 20 * 3 x
    check(f, 2.0, &[40.0, 40.0 + 360.0]);
}

#[test]
fn a_captured_tensor_is_a_constant_or_an_error() {
    fn scale(x: S, w: S) -> S {
        custom_gradient(move |x: S| x * w, move |_, _, dy: S| dy * w)(x)
    }
    #[graph]
    fn constant(x: S, w: S) -> (S, S) {
        (gradients(scale(x, w), x), gradients(scale(x, w.stop_gradient()), w))
    }
    check(constant, (2.0, 5.0), &[5.0, 0.0]);
    #[graph]
    fn asked_for(x: S, w: S) -> S {
        gradients(scale(x, w), w)
    }
    let error = error_of(asked_for, (2.0, 5.0));
    let text = error.to_string();
    assert!(text.contains("custom_gradient: the function captures a tensor"), "{text}");
    assert!(text.contains("custom_gradients.rs") && text.contains("pass it as an argument"), "{text}");
    // The captures of a gradient function are ordinary operands of its results.
    #[graph]
    fn through_the_rule(x: S, w: S) -> S {
        let y = custom_gradient(|x: S| x, move |_, _, dy: S| dy * w * w)(x);
        gradients(gradients(y, x), w)
    }
    check(through_the_rule, (2.0, 5.0), &[10.0]);
}

#[test]
fn a_gradient_of_another_shape_is_an_error_where_the_function_is_made() {
    #[graph]
    fn f(x: S) -> S {
        custom_gradient(|x: S| x, |_, _, dy: S| dy.sum())(x)
    }
    let text = error_of(f, [1.0, 2.0]).to_string();
    assert!(text.contains("custom_gradient: the gradient of the argument is f64[], not f64[2]"), "{text}");
    assert!(text.contains("f64[] is created here"), "{text}");
    assert!(text.contains("custom_gradient(|x: S| x, |_, _, dy: S| dy.sum())(x)"), "{text}");

    #[graph]
    fn other_length(x: Vec<S>) -> Vec<S> {
        custom_gradient(
            |x: Vec<S>| x,
            |_, _, mut dy: Vec<S>| {
                dy.pop();
                dy
            },
        )(x)
    }
    let text = error_of(|x: S| other_length(vec![x, x]), 1.0).to_string();
    assert!(text.contains("the argument has 2 items, but its gradient has 1 item"), "{text}");
}

#[test]
fn a_rule_that_assigns_a_variable_is_an_error() {
    let n = Var::new("n", 0.0f64);
    let f = move |x: S| {
        let n = n.clone();
        custom_gradient(
            move |x: S| {
                n.set(x);
                x
            },
            |_, _, dy| dy,
        )(x)
    };
    let text = error_of(f, 1.0).to_string();
    assert!(text.contains("a function with a custom gradient cannot assign the variable `n`"), "{text}");
}

#[test]
fn gradients_may_be_taken_inside_of_both_functions() {
    #[graph]
    fn f(x: S) -> (S, S) {
        // d(x^3) = 3 x^2; as a rule, the gradient of that: 6 x.
        let g = custom_gradient(|x: S| gradients(x * x * x, x), |x, _, dy| dy * gradients(x * x * 3.0, x));
        (g(x), gradients(g(x), x))
    }
    check(f, 2.0, &[12.0, 12.0]);
}
