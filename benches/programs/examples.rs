//! A `while` and an `if` for each example of a batch.

use super::{BenchInput, Benchmark};
use anabranch::HostTensor;
use anabranch::prelude::*;

/// Number of points of the Mandelbrot set, a square of 1,024.
pub const POINTS: usize = 1 << 20;
/// Numbers whose Collatz sequences are followed, and whose roots are found.
pub const NUMBERS: usize = 1 << 20;
/// Number of sequences.
pub const SEQUENCES: usize = 1000;
/// The largest length of a sequence.
pub const MAX_LENGTH: usize = 300;

/// Returns the point with an index.
pub fn point(i: usize) -> [f32; 2] {
    let (x, y) = (i % 1024, i / 1024);
    [x as f32 * (3.0 / 1024.0) - 2.25, y as f32 * (2.5 / 1024.0) - 1.25]
}

#[graph]
fn escape_time(a: Tensor, b: Tensor) -> Tensor<i32> {
    let (mut x, mut y) = (scalar(0.0), scalar(0.0));
    let mut n = scalar(0);
    while n < 200 && x * x + y * y <= 4.0 {
        (x, y) = (x * x - y * y + a, 2.0 * x * y + b);
        n += 1;
    }
    n
}

/// Counts the iterations until points leave the Mandelbrot set, at most 200.
pub fn mandelbrot_1024() -> Benchmark {
    let column = |axis: usize| (0..POINTS).map(|i| point(i)[axis]).collect::<Vec<f32>>();
    let inputs = [0, 1].map(|axis| BenchInput::Value(HostTensor::new([POINTS], column(axis))));
    Benchmark::new(|a: Tensor, b: Tensor| map((a, b), |(a, b)| escape_time(a, b)), inputs.into())
}

#[graph]
fn collatz(n: Tensor<i32>) -> Tensor<i32> {
    let (mut n, mut steps) = (n.cast::<i64>(), scalar(0));
    while n != 1 {
        n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
        steps += 1;
    }
    steps
}

/// Counts the steps of the Collatz sequences of the numbers from 1 on.
pub fn collatz_1_000_000() -> Benchmark {
    let numbers = (1..=NUMBERS as i32).collect();
    Benchmark::new(|xs: Tensor<i32>| map(xs, collatz), vec![BenchInput::Integers(numbers)])
}

/// Returns a number between 0.1 and about 1,000.
pub fn radicand(i: usize) -> f32 {
    (i * 7919 % 10_007) as f32 * 0.1 + 0.1
}

#[graph]
fn root(a: Tensor) -> Tensor {
    let mut x = if a > 1.0 { a } else { scalar(1.0) };
    let mut change = a + 1.0;
    while change > 1e-5 * x {
        let next = 0.5 * (x + a / x);
        change = (next - x).abs();
        x = next;
    }
    x
}

fn radicands() -> Vec<BenchInput> {
    vec![BenchInput::Value(HostTensor::new([NUMBERS], (0..NUMBERS).map(radicand).collect::<Vec<f32>>()))]
}

/// Finds square roots by Newton's method, each to its own convergence.
pub fn newton_1_000_000() -> Benchmark {
    Benchmark::new(|a: Tensor| map(a, root), radicands())
}

/// The same with the derivative of each root through its loop.
pub fn newton_1_000_000_gradient() -> Benchmark {
    let f = |a: Tensor| {
        let roots = map(a, root);
        (gradients(roots.sum(), a), roots)
    };
    Benchmark::new(f, radicands())
}

#[graph]
fn filtered(w: Tensor, b: Tensor, xs: Tensor, n: Tensor<i32>) -> Tensor {
    let (mut state, mut t) = (scalar(0.0), scalar(0));
    while t < n {
        let x = xs.row(t);
        state = if x > 0.0 { (w * state + x).tanh() } else { state * b };
        t += 1;
    }
    state
}

/// Returns the length of a sequence, from 5 to [`MAX_LENGTH`].
pub fn length(i: usize) -> i32 {
    5 + (i * 7919 % (MAX_LENGTH - 4)) as i32
}

/// Returns the weights, the sequences and their lengths.
fn sequences() -> Vec<BenchInput> {
    let number = |x: f32| BenchInput::Value(HostTensor::scalar(x));
    let lengths = (0..SEQUENCES).map(length).collect();
    vec![number(0.9), number(0.5), BenchInput::Normal(vec![SEQUENCES, MAX_LENGTH], 1.0), BenchInput::Integers(lengths)]
}

/// Filters 1,000 sequences of 5 to 300 numbers, with a branch for each number.
pub fn sequences_1000() -> Benchmark {
    let f = |w: Tensor, b: Tensor, xs: Tensor, n: Tensor<i32>| map((xs, n), |(xs, n)| filtered(w, b, xs, n)).sum();
    Benchmark::new(f, sequences())
}

/// The same with the gradient with respect to the weights.
pub fn sequences_1000_gradient() -> Benchmark {
    let f = |w: Tensor, b: Tensor, xs: Tensor, n: Tensor<i32>| {
        let sum = map((xs, n), |(xs, n)| filtered(w, b, xs, n)).sum();
        (gradients(sum, (w, b)), sum)
    };
    Benchmark::new(f, sequences())
}

/// Number of states of the hidden Markov model.
pub const STATES: usize = 4;

/// Number of symbols that it emits.
pub const SYMBOLS: usize = 8;

/// The scaled forward algorithm: the logarithm of the probability of a sequence.
#[graph]
pub fn forward_algorithm(
    initial: Tensor,
    transitions: Tensor,
    emissions: Tensor,
    symbols: Tensor<i32>,
    n: Tensor<i32>,
) -> Tensor {
    let mut alpha = initial * emissions.row(symbols.row(0));
    let (mut log, mut t) = (scalar(0.0), scalar(1));
    while t < n {
        let sum = alpha.sum();
        log += sum.log();
        alpha = (alpha / sum).matmul(transitions) * emissions.row(symbols.row(t));
        t += 1;
    }
    log + alpha.sum().log()
}

/// Returns a probability that is not scaled.
pub fn probability(i: usize) -> f32 {
    (i * 7919 % 13 + 1) as f32 / 13.0
}

/// Returns a symbol of a sequence.
pub fn symbol(i: usize) -> i32 {
    (i * 7919 % 10_007 % SYMBOLS) as i32
}

/// Returns the model, the sequences and their lengths.
fn hidden_markov_model() -> Vec<BenchInput> {
    let probabilities = |shape: &[usize]| {
        let size = shape.iter().product();
        BenchInput::Value(HostTensor::new(shape, (0..size).map(probability).collect::<Vec<f32>>()))
    };
    let symbols = (0..SEQUENCES * MAX_LENGTH).map(symbol).collect::<Vec<i32>>();
    vec![
        probabilities(&[STATES]),
        probabilities(&[STATES, STATES]),
        probabilities(&[SYMBOLS, STATES]),
        BenchInput::Value(HostTensor::new([SEQUENCES, MAX_LENGTH], symbols)),
        BenchInput::Integers((0..SEQUENCES).map(length).collect()),
    ]
}

/// Computes the probability of 1,000 sequences of 5 to 300 symbols.
pub fn hidden_markov_1000() -> Benchmark {
    let f = |pi: Tensor, a: Tensor, b: Tensor, xs: Tensor<i32>, n: Tensor<i32>| {
        map((xs, n), |(xs, n)| forward_algorithm(pi, a, b, xs, n)).sum()
    };
    Benchmark::new(f, hidden_markov_model())
}

/// The same with the gradient with respect to the model.
pub fn hidden_markov_1000_gradient() -> Benchmark {
    let f = |pi: Tensor, a: Tensor, b: Tensor, xs: Tensor<i32>, n: Tensor<i32>| {
        let sum = map((xs, n), |(xs, n)| forward_algorithm(pi, a, b, xs, n)).sum();
        (gradients(sum, (pi, a, b)), sum)
    };
    Benchmark::new(f, hidden_markov_model())
}

#[graph]
fn van_der_pol(mu: Tensor) -> Tensor {
    let (mut x, mut v) = (scalar(2.0), scalar(0.0));
    let (mut t, mut h) = (scalar(0.0), scalar(0.05));
    while t < 5.0 {
        // A step of Heun's method, and its difference from Euler's.
        let step = if t + h > 5.0 { 5.0 - t } else { h };
        let (dx, dv) = (v, mu * (1.0 - x * x) * v - x);
        let (x1, v1) = (x + step * dx, v + step * dv);
        let (dx1, dv1) = (v1, mu * (1.0 - x1 * x1) * v1 - x1);
        let half = 0.5 * step;
        let (x2, v2) = (x + half * (dx + dx1), v + half * (dv + dv1));
        let error = (x2 - x1).abs() + (v2 - v1).abs();
        if error <= 1e-3 {
            (x, v) = (x2, v2);
            t += step;
        }
        h = step * (0.9 * (1e-3 / (error + 1e-9)).sqrt()).maximum(0.3).minimum(2.0);
    }
    x
}

fn oscillators() -> Vec<BenchInput> {
    vec![BenchInput::Value(HostTensor::new([1000], (0..1000).map(|i| i as f32 * 0.005).collect::<Vec<f32>>()))]
}

/// Integrates 1,000 Van der Pol oscillators, each with its own step control.
pub fn van_der_pol_1000() -> Benchmark {
    Benchmark::new(|mu: Tensor| map(mu, van_der_pol), oscillators())
}

/// The same with the derivative of each end with respect to its parameter.
pub fn van_der_pol_1000_gradient() -> Benchmark {
    let f = |mu: Tensor| {
        let ends = map(mu, van_der_pol);
        (gradients(ends.sum(), mu), ends)
    };
    Benchmark::new(f, oscillators())
}
