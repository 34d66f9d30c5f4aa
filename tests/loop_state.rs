//! Loop variables: extents that change between iterations or differ between branches, and bounds on
//! the trip count, on every engine.
#![deny(warnings)]

use crate::support::{check, error_of};
use anabranch::gradients;
use anabranch::prelude::*;

#[test]
fn concat_in_a_loop_grows_a_dynamic_dimension() {
    #[graph]
    fn f(x: Tensor<i32>, n: Tensor<i32>) -> Tensor<i32> {
        let mut all = x.with_dynamic(0);
        let mut i = scalar(1);
        while i <= n {
            all = concat(&[all, i.reshape([1])], 0);
            i += 1;
        }
        all
    }
    check(f, ([0], 6), &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    check(f, ([0], 0), &[0.0]);
}

#[test]
fn without_it_the_error_names_the_variable_both_shapes_and_what_to_write() {
    #[graph]
    fn f(x: Tensor<i32>) -> Tensor<i32> {
        let mut all = x.unsqueeze(0);
        let mut i = scalar(0);
        while i < 3 {
            all = concat(&[all, all], 1);
            i += 1;
        }
        all
    }
    let error = error_of(f, [1, 2]);
    assert_eq!(error.message, "`all` has type i32[1, 2] before the loop, but i32[1, 4] after one iteration");
    let help =
        "if the extent is to change in the loop, declare it before the loop: `let mut all = all.with_dynamic(1);`";
    assert_eq!(error.help.as_deref(), Some(help));
    assert_eq!(error.labels[0].0.line, line!() - 10, "{error}");
}

#[test]
fn element_type_and_rank_stay_those_of_the_start() {
    #[graph]
    fn rank(x: Tensor, n: Tensor<i32>) -> Tensor {
        let mut y = x.with_dynamic(0);
        let mut i = scalar(0);
        while i < n {
            y = y.unsqueeze(0);
            i += 1;
        }
        y
    }
    let error = error_of(rank, ([1.0, 2.0], 2));
    assert!(error.message.starts_with("`y` has type f32[?] before the loop, but f32[1, ?]"), "{error}");
    assert!(error.help.unwrap().contains("rank of the other"));
}

#[test]
fn a_known_extent_fits_a_dynamic_dimension() {
    #[graph]
    fn f(x: Tensor, n: Tensor<i32>) -> Tensor {
        let mut y = x.with_dynamic(0);
        let mut i = scalar(0);
        while i < n {
            y = tensor([1.0, 2.0, 3.0]) * y.sum();
            i += 1;
        }
        y
    }
    check(f, ([5.0, 6.0], 0), &[5.0, 6.0]);
    check(f, ([5.0, 6.0], 2), &[66.0, 132.0, 198.0]);
}

#[test]
fn the_gradient_of_a_growing_loop_uses_the_shapes_of_each_iteration() {
    // y grows by (sum(y^2) * x), so that each iteration reads earlier results.
    #[graph]
    fn f(x: Tensor<f64>, n: Tensor<i32>) -> (Tensor<f64>, Tensor<f64>) {
        let mut y = x.with_dynamic(0);
        let mut i = scalar(0);
        while i < n {
            y = concat(&[(y * y).sum() * x, y * 0.5], 0);
            i += 1;
        }
        let loss = (y * y.sum()).sum();
        let [dx] = gradients(loss, [x]);
        (loss, dx)
    }
    fn plain(x: &[f64], n: usize) -> f64 {
        let mut y = x.to_vec();
        for _ in 0..n {
            let squares: f64 = y.iter().map(|a| a * a).sum();
            y = x.iter().map(|a| a * squares).chain(y.iter().map(|a| a * 0.5)).collect();
        }
        y.iter().sum::<f64>().powi(2)
    }
    let x = [0.3, -0.4];
    for n in 0..4 {
        let mut expected = vec![plain(&x, n)];
        for k in 0..x.len() {
            let at = |h: f64| {
                let mut x = x;
                x[k] += h;
                plain(&x, n)
            };
            let h = 1e-3;
            // Central differences of fourth order.
            expected.push((8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * h));
        }
        check(f, (x, n as i32), &expected);
    }
}

#[test]
fn the_cotangent_of_a_growing_loop_may_have_a_known_shape() {
    #[graph]
    fn f(x: Tensor<f64>) -> Tensor<f64> {
        let mut y = x.with_dynamic(0);
        let mut i = scalar(0);
        while i < 2 {
            y = concat(&[y, y * 3.0], 0);
            i += 1;
        }
        let weights = tensor([1.0, 2.0, 3.0, 4.0]);
        let [dx] = gradients((y.reshape([4]) * weights).sum(), [x]);
        dx
    }
    check(f, [1.0], &[1.0 + 2.0 * 3.0 + 3.0 * 3.0 + 4.0 * 9.0]);
}

#[test]
fn a_gradient_of_a_growing_loop_can_be_differentiated() {
    #[graph]
    fn f(x: Tensor<f64>) -> Tensor<f64> {
        let mut y = x.with_dynamic(0);
        let mut i = scalar(0);
        while i < 2 {
            y = concat(&[y * y, y], 0);
            i += 1;
        }
        let [dx] = gradients(y.sum(), [x]);
        let [ddx] = gradients(dx.sum(), [x]);
        ddx
    }
    // x^4 + x^2 + x^2 + x
    check(f, [2.0], &[12.0 * 4.0 + 4.0]);
}

#[test]
fn branches_that_differ_in_extents_give_a_dynamic_dimension() {
    #[graph]
    fn f(x: Tensor<f64>) -> (Tensor<f64>, Tensor<f64>) {
        let mut y = x;
        if x.sum() > 0.0 {
            y = concat(&[x, x * x], 0);
        }
        let loss = (y * y).sum();
        let [dx] = gradients(loss, [x]);
        (y, dx)
    }
    check(f, [1.0, 2.0], &[1.0, 2.0, 1.0, 4.0, 2.0 + 4.0, 4.0 + 4.0 * 8.0]);
    check(f, [-1.0, -2.0], &[-1.0, -2.0, -2.0, -4.0]);
    let traced = Session::new().unwrap().function(f).unwrap();
    let graph = traced.graph(&[anabranch::TensorType::new(anabranch::DType::F64, [2])]).unwrap();
    assert_eq!(graph.ty(graph.outputs()[0]).to_string(), "f64[?]");
}
#[test]
fn a_loop_ends_after_so_many_iterations() {
    const MOST: usize = 3;
    #[graph(max_iterations = MOST)]
    fn f(s: Tensor<i32>) -> (Tensor<i32>, Tensor<i32>) {
        let mut s = s;
        let mut i = scalar(0);
        while s.sum() < 1000 {
            s += 1;
            i += 1;
        }
        (s, i)
    }
    check(f, [1, 2, 3, 4, 5], &[4.0, 5.0, 6.0, 7.0, 8.0, 3.0]);
    check(f, [998, 0], &[999.0, 1.0, 1.0]);
    check(f, [1000, 0], &[1000.0, 0.0, 0.0]);
}

#[test]
fn each_loop_has_the_bound_and_host_loops_have_none() {
    #[graph(max_iterations = 2)]
    fn f(x: Tensor<i32>) -> Tensor<i32> {
        let mut sum = scalar(0);
        let mut i = scalar(0);
        while i < x {
            let mut j = scalar(0);
            while j < x {
                sum += 1;
                j += 1;
            }
            i += 1;
        }
        for _ in 0..5 {
            sum += 100;
        }
        sum
    }
    check(f, 7, &[504.0]);
    check(f, 1, &[501.0]);
}

#[test]
fn a_called_function_has_its_own_bound() {
    #[graph]
    fn count(n: Tensor<i32>) -> Tensor<i32> {
        let mut i = scalar(0);
        while i < n {
            i += 1;
        }
        i
    }
    #[graph(max_iterations = 2)]
    fn f(n: Tensor<i32>) -> (Tensor<i32>, Tensor<i32>) {
        let all = count(n);
        let mut i = scalar(0);
        while i < n {
            i += 1;
        }
        (all, i)
    }
    check(f, 9, &[9.0, 2.0]);
}

#[test]
fn the_gradient_runs_as_often_as_the_loop() {
    #[graph(max_iterations = 3)]
    fn f(x: Tensor<f64>) -> (Tensor<f64>, Tensor<f64>) {
        let mut y = x;
        while y < 1e6 {
            y *= x;
        }
        let [dx] = gradients(y, [x]);
        (y, dx)
    }
    check(f, 2.0, &[16.0, 32.0]);
    check(f, 1e4, &[1e8, 2e4]);
}

#[test]
fn a_bound_holds_beside_a_break_and_in_the_gradient() {
    #[graph(max_iterations = 3)]
    fn f(x: Tensor<f64>, limit: Tensor<f64>) -> (Tensor<f64>, Tensor<i32>, Tensor<f64>) {
        let (mut y, mut i) = (x, scalar(0));
        while {
            y *= x;
            y < 1000.0
        } {
            i += 1;
            if y > limit {
                break;
            }
            y += 1.0;
        }
        (y, i, gradients(y, x))
    }
    // Three iterations give (((x^2 + 1) x + 1) x + 1) x.
    let x = 2.0f64;
    check(f, (x, 100.0), &[46.0, 3.0, 5.0 * x.powi(4) + 3.0 * x.powi(2) + 2.0 * x + 1.0]);
    // The second call leaves the loop after (x^2 + 1) x.
    check(f, (x, 5.0), &[10.0, 2.0, 3.0 * x.powi(2) + 1.0]);
}

#[test]
fn a_bound_holds_for_the_function_while_loop() {
    #[graph(max_iterations = 3)]
    fn f(x: Tensor<f64>) -> (Tensor<f64>, Tensor<f64>) {
        let y = while_loop(x, |y| y.less(1000.0), |y| y * x);
        (y, gradients(y, x))
    }
    check(f, 2.0, &[16.0, 32.0]);
    check(f, 100.0, &[10_000.0, 200.0]);
}
