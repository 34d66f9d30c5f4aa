//! Loops over small tensors become loops over scalars: values on every engine, and plans.
#![deny(warnings)]

use crate::support::{check, check_each, error_of};
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
    let start = [1.0, 2.0, 3.0];
    check_each(lorenz, [0, 1, 7, 500].map(|n| ((start, n), lorenz_of_numbers(start, n as usize))));
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
    // Also if they have a single term.
    #[graph]
    fn kept(x: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
        let (mut y, mut i) = (x, scalar(0));
        while i < n {
            y = y.sum_keepdim(0);
            i += 1;
        }
        scalar(1.0) / y
    }
    check(kept, ([[-0.0, -0.0]], 2), &[f64::INFINITY; 2]);
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

/// Returns multiples of an eighth.
fn eighths(shape: &[usize]) -> Array<f64> {
    let n: usize = shape.iter().product();
    Array::new(shape, (0..n).map(|i| ((i * 37 + 11) % 19) as f64 * 0.125 - 1.0).collect())
}

#[test]
fn rows_of_a_large_tensor_are_read_in_native_code() {
    #[graph]
    fn f(x: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
        let (mut s, mut t) = (zeros::<f64>([3]), scalar(0));
        while t < n {
            s = s * 0.5 + x.row(t);
            t += 1;
        }
        s
    }
    fn gradient(x: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
        gradients(f(x, n).sum(), x)
    }
    let x = eighths(&[100, 3]);
    let mut expected = [0.0; 3];
    for row in x.to_vec().chunks(3).take(90) {
        expected = std::array::from_fn(|i| expected[i] * 0.5 + row[i]);
    }
    check(f, (&x, 90), &expected);
    let weight = |t: i32| if t < 90 { 0.5f64.powi(89 - t) } else { 0.0 };
    check(gradient, (&x, 90), &(0..300).map(|i| weight(i / 3)).collect::<Vec<_>>());
    let types = [TensorType::new(DType::F64, [100, 3]), TensorType::new(DType::I32, [])];
    let text = plan(f, &types);
    assert!(text.contains("natively") && !text.contains("no native code"), "{text}");
    let text = plan(gradient, &types);
    assert!(text.matches("natively").count() == 2 && !text.contains("no native code"), "{text}");
}

#[test]
fn elements_at_two_indices_are_read_in_native_code() {
    #[graph]
    fn f(x: Tensor<f64>, columns: Tensor<u8>) -> Tensor<f64> {
        let (mut s, mut t) = (scalar(0.0), scalar(0i64));
        while t < 50 {
            if t % 3 == 0 {
                s = s * 0.5 + x.row(t).row(columns.row(t));
            } else {
                let at = x.row(t);
                s -= at.index(30, 0) * at.index(columns.row(t), 0);
            }
            t += 1;
        }
        s
    }
    let (x, columns) =
        (eighths(&[50, 40]), Array::new([50], (0..50u8).map(|i| i % 10 * 4 + i % 3).collect::<Vec<_>>()));
    let mut expected = 0.0;
    for (t, (row, &column)) in x.to_vec().chunks(40).zip(&columns.to_vec()).enumerate() {
        let y = row[usize::from(column)];
        expected = if t % 3 == 0 { expected * 0.5 + y } else { expected - row[30] * y };
    }
    check(f, (&x, &columns), &[expected]);
}

#[test]
fn a_table_is_written_in_native_code() {
    /// Counts the ways to sums of coins, modulo a number.
    #[graph]
    fn f(coins: Tensor<i32>) -> Tensor<i32> {
        let mut ways = zeros::<i32>([101]).update_slice(tensor([1]), 0, 0);
        let mut c = scalar(0);
        while c < 3 {
            let coin = coins.row(c);
            let mut at = coin;
            while at <= 100 {
                let sum = (ways.row(at) + ways.row(at - coin)) % 9973;
                ways = ways.update_slice_at(sum.unsqueeze(0), at, 0);
                at += 1;
            }
            c += 1;
        }
        ways
    }
    let mut ways = [0; 101];
    ways[0] = 1;
    for coin in [3, 7, 10] {
        (coin..=100).for_each(|at| ways[at] = (ways[at] + ways[at - coin]) % 9973);
    }
    check(f, [3, 7, 10], &ways.map(f64::from));
    let text = plan(f, &[TensorType::new(DType::I32, [3])]);
    assert!(text.contains("natively") && !text.contains("no native code"), "{text}");
}

#[test]
fn a_table_is_written_in_native_code_with_constants_and_elements_of_tensors() {
    /// Counts the primes below 100, with a penalty for each composite number that is crossed out.
    #[graph]
    fn f(penalties: Tensor<i32>) -> Tensor<i32> {
        let (mut composite, mut cost) = (full([100], false), zeros::<i32>([100]));
        let (mut i, mut primes) = (scalar(2), scalar(0));
        while i < 100 {
            if !composite.row(i) {
                primes += 1;
                let mut j = i * 2;
                while j < 100 {
                    composite = composite.update_slice_at(tensor([true]), j, 0);
                    cost = cost.update_slice_at(penalties.slice(0, 1, 2), j, 0);
                    j += i;
                }
            }
            i += 1;
        }
        stack(&[primes, cost.sum()], 0)
    }
    check(f, [5, 7], &[25.0, 7.0 * 73.0]);
    let text = plan(f, &[TensorType::new(DType::I32, [2])]);
    assert!(text.contains("natively") && !text.contains("no native code"), "{text}");
}

/// Rows that are small themselves, are carried and written, and are parts of tables.
#[test]
fn rows_that_are_tables_themselves_are_computed_as_in_the_interpreter() {
    #[graph]
    fn log_of_states(n: Tensor<i32>) -> Tensor<f64> {
        let (mut state, mut log, mut t) = (zeros::<f64>([1, 4]), zeros::<f64>([100, 4]), scalar(0));
        while t < n {
            state = state.update_slice_at(t.cast::<f64>().reshape([1, 1]), t % 4, 1);
            log = log.update_slice_at(state, t, 0);
            t += 1;
        }
        log
    }
    let (mut state, mut log) = ([0.0; 4], vec![0.0; 400]);
    for t in 0..90 {
        state[t % 4] = t as f64;
        log[t * 4..][..4].copy_from_slice(&state);
    }
    check(log_of_states, 90, &log);

    #[graph]
    fn flat_log_of_states(n: Tensor<i32>) -> Tensor<f64> {
        let (mut state, mut log, mut t) = (zeros::<f64>([4]), zeros::<f64>([400]), scalar(0));
        while t < n {
            state = state.update_slice_at(t.cast::<f64>().reshape([1]), t % 4, 0);
            log = log.update_slice_at(state, t * 4, 0);
            t += 1;
        }
        log
    }
    check(flat_log_of_states, 90, &log);

    #[graph]
    fn inner_loop_over_a_row(x: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
        let (mut s, mut i) = (scalar(0.0), scalar(0));
        while i < n {
            let row = x.slice_at(i, 0, 1);
            let mut j = scalar(0);
            while j < 40 {
                if j % 3 == 0 {
                    s += row.slice_at(j, 1, 1).reshape(());
                }
                j += 1;
            }
            i += 1;
        }
        s
    }
    let x = eighths(&[50, 40]);
    let read = x.to_vec().chunks(40).take(45).flat_map(|row| row.iter().step_by(3)).sum::<f64>();
    check(inner_loop_over_a_row, (&x, 45), &[read]);

    #[graph]
    fn rows_that_change(x: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
        let (mut x, mut t) = (x, scalar(0));
        while t < n {
            let row = x.slice_at(t * 4, 0, 4);
            let changed = row.update_slice_at(t.cast::<f64>().reshape([1]), t % 4, 0);
            x = x.update_slice_at(changed, t * 4, 0);
            t += 1;
        }
        x
    }
    let flat = eighths(&[400]);
    let mut expected = flat.to_vec();
    (0..90).for_each(|t| expected[t * 4 + t % 4] = t as f64);
    check(rows_that_change, (&flat, 90), &expected);

    #[graph]
    fn dynamic(x: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
        let (mut y, mut t) = (x.with_dynamic(0), scalar(0));
        while t < n {
            y = y.update_slice_at(t.cast::<f64>().reshape([1]), t, 0);
            t += 1;
        }
        y
    }
    let mut expected = flat.to_vec();
    (0..90).for_each(|t| expected[t] = t as f64);
    check(dynamic, (&flat, 90), &expected);
}

#[test]
fn an_index_out_of_bounds_in_native_code_is_the_error_of_the_operation() {
    #[graph]
    fn rows(x: Tensor<f64>) -> Tensor<f64> {
        let (mut s, mut t) = (zeros::<f64>([2, 3]), scalar(0));
        while t < 40 {
            s = s * 0.5 + x.slice_at(t * 2, 0, 2);
            t += 1;
        }
        s
    }
    let error = error_of(rows, eighths(&[7, 3]));
    assert_eq!(error.message, "dynamic_slice: the range 6..8 is out of bounds for axis 0 of extent 7");

    #[graph]
    fn sums(x: Tensor<f64>) -> Tensor<f64> {
        let (mut sums, mut t) = (x, scalar(0));
        while t < 40 {
            sums = sums.scatter_add(t.unsqueeze(0), x.row(t % 5).unsqueeze(0), 0);
            t += 1;
        }
        sums
    }
    let error = error_of(sums, eighths(&[7, 3]));
    assert_eq!(error.message, "scatter_add: index 7 at [0] is out of bounds for axis 0 of extent 7");

    #[graph]
    fn writes(x: Tensor<f64>) -> Tensor<f64> {
        let (mut y, mut t) = (x, scalar(3));
        while t > -9 {
            y = y.update_slice_at(y.row(t + 1).unsqueeze(0) * 2.0, t, 0);
            t -= 1;
        }
        y
    }
    let error = error_of(writes, eighths(&[7, 3]));
    assert_eq!(error.message, "dynamic_update_slice: index -1 is out of bounds for axis 0 of extent 7");
}
