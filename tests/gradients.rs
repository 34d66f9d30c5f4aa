//! Gradients through control flow: cases whose values were derived by hand, run on every engine.

#![allow(clippy::assign_op_pattern, reason = "both forms of assignment are staged")]

mod support;

use anabranch::prelude::*;
use support::{check, error_of};

type S = Tensor<f64>;

// Branches.

#[graph]
fn chosen(x: S, c: S) -> S {
    if c < 2.0 { 42.0 * x } else { 3.0 * x }
}

#[test]
fn a_branch_has_the_gradient_of_what_was_taken() {
    #[graph]
    fn f(x: S, c: S) -> (S, S) {
        let y = chosen(x, c);
        (y, gradients(y, x))
    }
    check(f, (10.0, 1.0), &[420.0, 42.0]);
    check(f, (10.0, 2.0), &[30.0, 3.0]);
}

#[test]
fn a_gradient_taken_inside_of_a_branch_sees_what_came_before() {
    #[graph]
    fn f(x: S, c: S) -> S {
        let y = 7.0 * x;
        if c < 2.0 { gradients(y * y, x) } else { 3.0 * x }
    }
    check(f, (10.0, 1.0), &[980.0]);
    check(f, (10.0, 2.0), &[30.0]);
}

#[test]
fn a_branch_without_the_tensor_gives_it_no_gradient() {
    #[graph]
    fn f(x: S, y: S, c: S) -> (S, S, S) {
        let z = if c < 2.0 { 2.0 * x * y } else { scalar(2.0) };
        let (dx, dy) = gradients(z, (x, y));
        (dx, dy, gradients(dx + dy, x))
    }
    check(f, (1.0, 2.0, 1.0), &[4.0, 2.0, 2.0]);
    check(f, (1.0, 2.0, 2.0), &[0.0, 0.0, 0.0]);
}

#[test]
fn a_branch_may_give_back_what_it_was_given() {
    #[graph]
    fn f(v: S, c: S) -> (S, S) {
        let w = if c < 2.0 { v } else { v.take(tensor([1, 1]), 0) };
        (w, gradients(w.sum(), v))
    }
    check(f, ([1.0, 42.0], 1.0), &[1.0, 42.0, 1.0, 1.0]);
    check(f, ([1.0, 42.0], 2.0), &[42.0, 42.0, 0.0, 2.0]);
}

#[test]
fn the_branch_not_taken_makes_no_nan() {
    #[graph]
    fn f(x: S) -> (S, S) {
        let y = if x < 1e-3 { scalar(1e-3) } else { x.sqrt() };
        (y, gradients(y, x))
    }
    check(f, 0.0, &[1e-3, 0.0]);
    check(f, 4.0, &[2.0, 0.25]);
}

#[test]
fn chained_branches_count_how_long_they_were_alive() {
    #[graph]
    fn f() -> Tensor<i32> {
        let (mut alive, mut count) = (scalar(true), scalar(0));
        for i in 0..10 {
            if alive {
                alive = scalar(i < 3);
                count += 1;
            }
        }
        count
    }
    check(f, (), &[4.0]);
}

// Loops.

#[test]
fn squaring_until_a_bound() {
    #[graph]
    fn f(x: S) -> (S, S, S, S) {
        let mut v = x;
        while v < 100.0 {
            v *= v;
        }
        (v, gradients(v, x), gradients(v * v, x), gradients(v + v, x))
    }
    check(f, 2.0, &[256.0, 1024.0, 524_288.0, 2048.0]);
}

#[test]
fn a_captured_factor_sums_its_gradient_over_the_trips() {
    #[graph]
    fn f(x: S, a: S) -> (S, S, S) {
        let mut v = x;
        while v < 100.0 {
            v *= a;
        }
        let (dx, da) = gradients(v, (x, a));
        (v, dx, da)
    }
    check(f, (2.0, 3.0), &[162.0, 81.0, 216.0]);
}

#[test]
fn a_factor_carried_unchanged_has_the_same_gradient_as_a_captured_one() {
    #[graph]
    fn f(x: S, a: S) -> (S, S) {
        let (mut v, mut b) = (x, a);
        while v < 100.0 {
            (v, b) = (v * b, b);
        }
        gradients(v, (x, a))
    }
    check(f, (2.0, 3.0), &[81.0, 216.0]);
}

#[test]
fn what_only_the_condition_reads_has_no_gradient() {
    #[graph]
    fn f(x: S, y: S) -> (S, S, S) {
        let mut v = x;
        while v + y < 9.0 {
            v *= 3.0;
        }
        let (dx, dy) = gradients(v, (x, y));
        (v, dx, dy)
    }
    check(f, (2.0, 1.0), &[18.0, 9.0, 0.0]);
}

#[test]
fn what_the_body_reads_has_one() {
    #[graph]
    fn f(x: S, y: S) -> (S, S, S) {
        let mut v = x;
        while v < 8.0 {
            v *= y;
        }
        let (dx, dy) = gradients(v, (x, y));
        (v, dx, dy)
    }
    check(f, (2.0, 3.0), &[18.0, 9.0, 12.0]);
}

#[test]
fn a_loop_without_trips_passes_the_gradient_through() {
    #[graph]
    fn f(x: S, a: S) -> (S, S, S) {
        let mut r = x;
        while scalar(1.0) < 0.0 {
            r *= a;
        }
        let (dx, da) = gradients((r + x * x).sum(), (x, a));
        (r, dx, da)
    }
    check(f, ([1.0, 2.0], 5.0), &[1.0, 2.0, 3.0, 5.0, 0.0]);
}

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
fn swapped_variables() {
    #[graph]
    fn f(x0: S, y0: S) -> (S, S, S) {
        let (mut x, mut y, mut i) = (x0, y0, scalar(0));
        while i < 3 {
            (x, y) = (y, x);
            i += 1;
        }
        let (dx, dy) = gradients(x, (x0, y0));
        (x, dx, dy)
    }
    check(f, (3.0, 5.0), &[5.0, 0.0, 1.0]);
}

#[test]
fn one_tensor_in_two_variables() {
    #[graph]
    fn f(x: S) -> (S, S) {
        let (mut a, mut b, mut i) = (x, x, scalar(0));
        while i < 2 {
            a = a * b;
            b += 1.0;
            i += 1;
        }
        (a, gradients(a, x))
    }
    // a = x * x * (x + 1)
    check(f, 2.0, &[12.0, 16.0]);
}

#[test]
fn the_second_of_two_results() {
    #[graph]
    fn f(x: S) -> (S, S) {
        let (mut n, mut v) = (scalar(0.0), x);
        while n < 3.0 {
            n += 1.0;
            v = v + n;
        }
        (v, gradients(v, x))
    }
    check(f, 1.0, &[7.0, 1.0]);
}

#[test]
fn an_integer_beside_a_float() {
    #[graph]
    fn f(x: S) -> (S, Tensor<i32>, S) {
        let (mut v, mut i) = (x, scalar(0));
        while i < 10 {
            v *= 2.0;
            i += 1;
        }
        (v, i, gradients(v, x))
    }
    check(f, 1.0, &[1024.0, 10.0, 1024.0]);
}

#[test]
fn a_body_that_forgets_its_variable() {
    #[graph]
    fn f(x: S) -> (S, S) {
        let (mut v, mut i) = (x, scalar(0));
        while i < 3 {
            v = scalar(12.0);
            i += 1;
        }
        (v, gradients(v, x))
    }
    check(f, 5.0, &[12.0, 0.0]);
}

#[test]
fn two_loops_in_series_and_side_by_side() {
    #[graph]
    fn doubled(x: S) -> S {
        let (mut v, mut i) = (x, scalar(0));
        while i < 5 {
            v *= 2.0;
            i += 1;
        }
        v
    }
    #[graph]
    fn f(x: S) -> (S, S) {
        (gradients(doubled(doubled(x)), x), gradients(doubled(x) + doubled(x), x))
    }
    check(f, 1.0, &[1024.0, 64.0]);
}

#[test]
fn stopped_gradients() {
    #[graph]
    fn f(x: S, y: S) -> (S, S, S) {
        let (mut x1, mut y1) = (x, y);
        while x1 < 100.0 {
            (x1, y1) = (x1 * x1 + y1 * y1, y1.stop_gradient() * y1.stop_gradient());
        }
        let (dx, dy) = gradients(x1, (x, y));
        (x1, dx, dy)
    }
    // 3, 2 -> 13, 4 -> 185: x1 = (x^2 + y^2)^2 + stop(y^2)^2
    check(f, (3.0, 2.0), &[185.0, 156.0, 104.0]);
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

// Nests.

#[test]
fn a_branch_in_a_loop() {
    #[graph]
    fn f(x: S) -> (S, S, S) {
        let mut v = x;
        while v < 100.0 {
            v = if v < 50.0 { v * v } else { v - 1.0 + 60.0 };
        }
        let d = gradients(v, x);
        (v, d, gradients(d, x))
    }
    check(f, 2.0, &[256.0, 1024.0, 3584.0]);
}

#[test]
fn a_loop_in_a_branch() {
    #[graph]
    fn f(x0: S, p: S) -> (S, S) {
        let mut x = x0;
        if p > 0.0 {
            while x < 10.0 {
                x += 1.0;
            }
        } else {
            x = 2.0 * x;
        }
        (x, gradients(x, x0))
    }
    check(f, (0.0, 1.0), &[10.0, 1.0]);
    check(f, (3.0, -1.0), &[6.0, 2.0]);
}

#[test]
fn a_gradient_of_a_whole_loop_inside_of_a_loop_body() {
    #[graph]
    fn f(x: S) -> S {
        let (mut i, mut d) = (scalar(0), scalar(0.0));
        while i < 2 {
            let mut n = scalar(1.0);
            while n < 10.0 {
                n += x;
            }
            d += gradients(n, x);
            i += 1;
        }
        d
    }
    check(f, 1.0, &[18.0]);
}

/// A nest with a branch in the inner loop, in plain Rust.
fn nest(mut x: f64) -> f64 {
    for _ in 0..3 {
        let mut y = x;
        for _ in 0..2 {
            y = 0.5 * y * y;
            if y > 0.7 {
                y *= 0.9;
            }
        }
        x = 0.3 * x + y;
    }
    x
}

#[test]
fn nested_loops_against_finite_differences_in_two_orders() {
    #[graph]
    fn f(x0: S) -> (S, S, S) {
        let (mut x, mut i) = (x0, scalar(0));
        while i < 3 {
            let (mut y, mut j) = (x, scalar(0));
            while j < 2 {
                y = 0.5 * y * y;
                if y > 0.7 {
                    y *= 0.9;
                }
                j += 1;
            }
            x = 0.3 * x + y;
            i += 1;
        }
        let d = gradients(x, x0);
        (x, d, gradients(d, x0))
    }
    for x in [0.9, 1.1, 1.3, 1.7] {
        let h = 1e-4;
        let d = |x: f64| (8.0 * (nest(x + h) - nest(x - h)) - (nest(x + 2.0 * h) - nest(x - 2.0 * h))) / (12.0 * h);
        let out = eval_with(f, x).unwrap();
        let dd = (d(x + h) - d(x - h)) / (2.0 * h);
        assert!((out.1.item() - d(x)).abs() < 1e-7 * d(x).abs().max(1.0), "{} is not {}", out.1.item(), d(x));
        assert!((out.2.item() - dd).abs() < 1e-4 * dd.abs().max(1.0), "{} is not {dd}", out.2.item());
        check(f, x, &[nest(x), out.1.item(), out.2.item()]);
    }
}

#[test]
fn second_order_through_a_loop_in_a_branch() {
    #[graph]
    fn f(x0: S, y: S) -> (S, S, S, S) {
        let mut x = x0;
        if y > 1.0 {
            while x > 1.0 {
                x = x * x / y;
            }
        }
        let d = gradients(x * y, x0);
        let (dd, dy) = gradients(d, (x0, y));
        (x, d, dd, dy)
    }
    // Two trips: x = x0^4 / y^3.
    check(f, (2.0, 3.0), &[16.0 / 27.0, 32.0 / 9.0, 48.0 / 9.0, -64.0 / 27.0]);
    check(f, (2.0, 0.5), &[2.0, 0.5, 0.0, 1.0]);
    check(f, (0.5, 2.0), &[0.5, 2.0, 0.0, 1.0]);
}

#[test]
fn a_gradient_in_a_loop_body_of_a_loop_in_it_is_differentiated() {
    #[graph]
    fn f(x: S) -> (S, S) {
        let (mut w, mut i) = (x, scalar(0));
        while i < 2 {
            let (mut cube, mut j) = (w, scalar(0));
            while j < 2 {
                cube *= w;
                j += 1;
            }
            w = gradients(cube, w);
            i += 1;
        }
        (w, gradients(w, x))
    }
    // x -> 3 x^2, twice: 27 x^4
    check(f, 2.0, &[432.0, 864.0]);
}

#[test]
fn a_gradient_in_a_loop_of_a_loop_before_it() {
    #[graph]
    fn f(x: S) -> (S, S) {
        let (mut cube, mut j) = (x, scalar(0));
        while j < 2 {
            cube *= x;
            j += 1;
        }
        let (mut sum, mut i) = (scalar(0.0), scalar(0));
        while i < 2 {
            sum += gradients(cube, x);
            i += 1;
        }
        (sum, gradients(sum, x))
    }
    check(f, 2.0, &[24.0, 24.0]);
}

#[test]
fn vectors_and_products_in_a_loop() {
    #[graph]
    fn f(w: Tensor<f64>, h0: Tensor<f64>) -> (S, Tensor<f64>, Tensor<f64>) {
        let (mut h, mut t) = (h0, scalar(0));
        while t < 2 {
            h = h.matmul(w);
            t += 1;
        }
        let (dw, dh) = gradients(h.sum(), (w, h0));
        (h.sum(), dw, dh)
    }
    // s = h W W 1: dh = W W 1, dW = h' (W 1)' + (h W)' 1'
    check(f, ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 1.0]]), &[54.0, 3.0 + 4.0, 7.0 + 4.0, 3.0 + 6.0, 7.0 + 6.0, 17.0, 37.0]);
}

// Variables.

#[test]
fn a_variable_read_in_a_loop() {
    let v = Var::<f64>::new("v", 2.0);
    let f = || cube(&v);
    #[graph]
    fn cube(v: &Var<f64>) -> (S, S) {
        let (mut y, mut i) = (scalar(1.0), scalar(0));
        while i < 3 {
            y *= v.get();
            i += 1;
        }
        (y, gradients(y, v.get()))
    }
    check(f, (), &[8.0, 12.0]);
}

#[test]
fn a_training_loop_inside_of_the_graph() {
    use anabranch::dsl::autodiff::var_gradients;
    let v = Var::<f64>::new("v", 2.0);
    #[graph]
    fn descend(v: &Var<f64>) -> S {
        let mut i = scalar(0);
        while i < 3 {
            let x = v.get();
            let loss = x * x;
            let dx = Tensor::<f64>::from_any(var_gradients(loss, &[v.any().clone()])[0]);
            v.set(x - 0.25 * dx);
            i += 1;
        }
        v.get()
    }
    check(|| descend(&v), (), &[0.25]);
}

#[test]
fn variables_assigned_in_a_loop_read_each_other_in_program_order() {
    let (a, b) = (Var::<f64>::new("a", 0.0), Var::<f64>::new("b", 0.0));
    #[graph]
    fn f(a: &Var<f64>, b: &Var<f64>) -> (S, S) {
        let mut i = scalar(0);
        while i < 10 {
            a.set(a.get() + 1.0);
            b.set(b.get() + a.get());
            i += 1;
        }
        (a.get(), b.get())
    }
    check(|| f(&a, &b), (), &[10.0, 55.0]);
}

#[test]
fn a_loop_in_a_branch_assigns_only_if_it_is_taken() {
    let v = Var::<i32>::new("v", -1);
    #[graph]
    fn f(v: &Var<i32>, p: Tensor<bool>) -> (Tensor<i32>, Tensor<i32>) {
        let mut r = scalar(5);
        if !p {
            let mut i = scalar(0);
            while i < 100 {
                v.set(i);
                i += 1;
            }
            r = scalar(6);
        }
        (r, v.get())
    }
    check(|p| f(&v, p), false, &[6.0, 99.0]);
    check(|p| f(&v, p), true, &[5.0, -1.0]);
}

// What is saved.

/// The text of the graph of `f`.
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
    // The captured factor is read where it is; the product's other side is saved.
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
    use anabranch::dsl::ir::Attrs;
    use anabranch::dsl::ops::{Arity, Effects, Exactness, Grad, OpDef};
    static STRANGE: OpDef = OpDef {
        name: "strange",
        arity: Arity::Exactly(1),
        attrs: &[],
        infer: |cx| Ok(cx.operands[0].clone()),
        eval: |cx| Ok(cx.operands[0].clone()),
        grad: Grad::Missing("nobody knows it"),
        exactness: Exactness::Exact,
        effects: Effects::Pure,
    };
    #[track_caller]
    fn strange(x: S) -> S {
        Tensor::from_any(anabranch::dsl::trace::emit(&STRANGE, &[x.untyped()], Attrs::none()))
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
        "`strange` has no gradient: nobody knows it",
        "strange(y * 2.0)",
        "loss <- sin <- while",
        "strange <- mul",
        "exp",
    ] {
        assert!(error.contains(part), "no `{part}` in:\n{error}");
    }
}

// What cannot be.

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
    assert!(error.message.contains("the way leads through `v`"), "{error}");
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
        let way = format!("the way leads through `{name}`");
        assert!(error.message.contains(&way), "{error}");
        assert!(error.to_string().contains("tests/gradients.rs"), "{error}");
    }
}

#[test]
fn a_gradient_in_a_loop_of_a_loop_before_it_in_one_more_loop_is_not_differentiated() {
    #[graph]
    fn f(x: S) -> S {
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
        gradients(w, x)
    }
    let error = error_of(f, 2.0);
    assert!(error.message.contains("cannot be differentiated"), "{error}");
    assert!(error.to_string().contains("while j < 2"), "{error}");
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
fn a_loss_that_is_not_scalar_is_an_error() {
    #[graph]
    fn f(x: S) -> S {
        gradients(x * x, x)
    }
    let error = error_of(f, [1.0, 2.0]);
    assert!(error.message.contains("the loss is f64[2]"), "{error}");
}
