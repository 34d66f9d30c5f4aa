//! Loops over small tensors become loops over scalars: values on every engine, and plans.
#![deny(warnings)]

use crate::support::check;
use anabranch::dsl::function::GraphFn;
use anabranch::prelude::*;
use anabranch::{DType, TensorType, gradients};

/// Returns the plan of a function of arguments of these types.
fn plan<Args, F: GraphFn<Args>>(f: F, types: &[TensorType]) -> String {
    let session = Session::new().expect("a session on the CPU");
    session.function(f).and_then(|f| f.explain(types)).unwrap_or_else(|e| panic!("{e}"))
}

/// Computes `n` Euler steps of the Lorenz system (Lorenz 1963, Deterministic Nonperiodic Flow).
#[graph]
fn lorenz(start: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
    let (mut at, mut i) = (start, scalar(0));
    while i < n {
        let (x, y, z) = (at.index(0, 0), at.index(1, 0), at.index(2, 0));
        let slope = stack(&[(y - x) * 10.0, x * (-z + 28.0) - y, x * y - z * (8.0 / 3.0)], 0);
        at += slope * 0.01;
        i += 1;
    }
    at
}

fn lorenz_of_numbers(mut at: [f64; 3], n: usize) -> [f64; 3] {
    for _ in 0..n {
        let [x, y, z] = at;
        let slope = [(y - x) * 10.0, x * (28.0 - z) - y, x * y - z * (8.0 / 3.0)];
        at = std::array::from_fn(|i| at[i] + slope[i] * 0.01);
    }
    at
}

#[test]
fn the_state_of_a_differential_equation_is_in_registers() {
    for n in [0, 1, 7, 500] {
        check(lorenz, ([1.0, 2.0, 3.0], n), &lorenz_of_numbers([1.0, 2.0, 3.0], n as usize));
    }
    let text = plan(lorenz, &[TensorType::new(DType::F64, [3]), TensorType::new(DType::I32, [])]);
    assert!(text.contains("natively"), "{text}");
}

#[test]
fn so_is_its_gradient_with_the_stacks() {
    fn sensitivity(start: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
        gradients(lorenz(start, n).sum(), start)
    }
    let expected: [f64; 3] = std::array::from_fn(|i| {
        let at = |step: f64| {
            let mut start = [1.0, 2.0, 3.0];
            start[i] += step;
            lorenz_of_numbers(start, 20).iter().sum::<f64>()
        };
        (at(1e-5) - at(-1e-5)) / 2e-5
    });
    let session = Session::new().expect("a session on the CPU");
    let found = session.function(sensitivity).and_then(|f| f.call(([1.0, 2.0, 3.0], 20))).unwrap();
    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6 * b.abs();
    assert!(found.as_slice().iter().zip(&expected).all(near), "{found:?} is not {expected:?}");
    check(sensitivity, ([1.0, 2.0, 3.0], 20), found.as_slice());
    let text = plan(sensitivity, &[TensorType::new(DType::F64, [3]), TensorType::new(DType::I32, [])]);
    assert_eq!(text.matches("natively").count(), 2, "{text}");
}

#[test]
fn matrices_reductions_and_branches_are_numbers_too() {
    /// Computes powers of a matrix until they are large or small, and sometimes shifts rows.
    #[graph]
    fn powers(a: Tensor<f64>, limit: Tensor<f64>) -> (Tensor<f64>, Tensor<i32>, Tensor<f64>) {
        let (mut p, mut n, mut least) = (a, scalar(0), a.min_keepdim(0));
        while p.abs().max() < limit && n < 40 {
            let q = p.matmul(a).transpose(0, 1);
            p = if n % 3 == 0 { concat(&[q.slice(0, 1, 2), q.slice(0, 0, 1)], 0).flip(1) } else { q + p * 0.5 };
            least = least.minimum(p.min_keepdim(0));
            n += 1;
        }
        (p, n, least)
    }
    let mut p = [[0.9_f64, -0.4], [0.3, 1.1]];
    let a = p;
    let (mut n, mut least) = (0, [0.3_f64, -0.4]);
    while p.as_flattened().iter().fold(0.0, |m: f64, x| m.max(x.abs())) < 10.0 && n < 40 {
        let product: [[f64; 2]; 2] =
            std::array::from_fn(|i| std::array::from_fn(|j| p[i][0] * a[0][j] + p[i][1] * a[1][j]));
        let q: [[f64; 2]; 2] = std::array::from_fn(|i| std::array::from_fn(|j| product[j][i]));
        p = std::array::from_fn(|i| {
            std::array::from_fn(|j| if n % 3 == 0 { q[1 - i][1 - j] } else { q[i][j] + p[i][j] * 0.5 })
        });
        least = std::array::from_fn(|j| least[j].min(p[0][j]).min(p[1][j]));
        n += 1;
    }
    let expected: Vec<f64> = p.as_flattened().iter().copied().chain([f64::from(n)]).chain(least).collect();
    let args = Array::new([2, 2], a.concat());
    check(powers, (&args, 10.0), &expected);
    let text = plan(powers, &[TensorType::new(DType::F64, [2, 2]), TensorType::new(DType::F64, [])]);
    assert!(text.contains("natively"), "{text}");
}

#[test]
fn a_loop_with_a_large_tensor_or_what_may_fail_stays_as_it_is() {
    #[graph]
    fn mixed(x: Tensor<f64>, y: Tensor<f64>, n: Tensor<i32>) -> (Tensor<f64>, Tensor<f64>) {
        let (mut x, mut y, mut i) = (x, y, scalar(0));
        while i < n {
            x = x.flip(0) * 0.5;
            y += x.sum();
            i += 1;
        }
        (x, y)
    }
    let y = vec![1.0; 32];
    let expected: Vec<f64> = [0.25, 0.5].into_iter().chain(vec![1.0 + 1.5 + 0.75; 32]).collect();
    check(mixed, ([1.0, 2.0], &y, 2), &expected);

    #[graph]
    fn divided(x: Tensor<i32>, by: Tensor<i32>) -> Tensor<i32> {
        let (mut x, mut i) = (x, scalar(3));
        while i > 0 {
            x /= by + i - 2;
            i -= 1;
        }
        x
    }
    let error = crate::support::error_of(divided, ([8, 9], [5, 1]));
    assert_eq!(error.message, "div: division of 4 by zero at [1]");
}

/// Sums begin with zero, so that zeros have the same sign as in the reference implementation.
#[test]
fn zeros_keep_the_sign_that_they_have_elsewhere() {
    #[graph]
    fn halves(x: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
        let (mut y, mut i) = (x, scalar(0));
        while i < n {
            y = y.sum_keepdim(0).broadcast_to([2]);
            i += 1;
        }
        scalar(1.0) / y
    }
    check(halves, ([-0.0, -0.0], 2), &[f64::INFINITY; 2]);
    check(halves, ([-0.0, -0.0], 0), &[f64::NEG_INFINITY; 2]);
    check(|x: Tensor<f64>| scalar(1.0) / x.sum_axis(Vec::<usize>::new()), -0.0, &[f64::NEG_INFINITY]);
}

/// A body with many exits and many scalars keeps the scalars in memory.
#[test]
fn a_long_body_with_many_stacks_is_compiled_soon_and_right() {
    #[graph]
    fn powers(x: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
        let (mut y, mut i) = (x, scalar(0));
        while i < n {
            for _ in 0..6 {
                y = (y.matmul(x) * 0.5).tanh();
            }
            i += 1;
        }
        y.sum()
    }
    fn slope(x: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
        gradients(powers(x, n), x)
    }
    let x = Array::new([4, 4], (0..16).map(|i| f64::from(i * 7 % 5) * 0.2 - 0.3).collect());
    let session = Session::builder().interpreted(true).build().expect("a session on the CPU");
    let expected = session.function(slope).and_then(|f| f.call((&x, 3))).unwrap_or_else(|e| panic!("{e}"));
    check(slope, (&x, 3), expected.as_slice());
}
