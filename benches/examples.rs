//! A `while` and an `if` for each example of a batch, and the same by hand: plain Rust, one example
//! after the other, on all cores.
//!
//! `cargo bench --bench examples`. A time divided by the number of examples is that of one.

use anabranch_benches::examples as programs;
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use rayon::prelude::*;

fn main() {
    divan::main();
}

macro_rules! staged {
    ($($name:ident: $n:expr;)*) => {$(
        #[divan::bench]
        fn $name(bencher: Bencher<'_, '_>) {
            let mut program = programs::$name().ready();
            bencher.counter(ItemsCount::new($n)).bench_local(|| program.call());
        }
    )*};
}

staged! {
    mandelbrot_1024: programs::POINTS;
    collatz_1_000_000: programs::NUMBERS;
    newton_1_000_000: programs::NUMBERS;
    newton_1_000_000_gradient: programs::NUMBERS;
    sequences_1000: programs::SEQUENCES;
    sequences_1000_gradient: programs::SEQUENCES;
    hidden_markov_1000: programs::SEQUENCES;
    hidden_markov_1000_gradient: programs::SEQUENCES;
    van_der_pol_1000: 1000usize;
    van_der_pol_1000_gradient: 1000usize;
}

/// Measures a function of each example on all cores.
fn by_hand<T: Send>(bencher: Bencher<'_, '_>, n: usize, f: impl Fn(usize) -> T + Sync) {
    bencher.counter(ItemsCount::new(n)).bench_local(|| {
        let results: Vec<T> = (0..n).into_par_iter().with_min_len(64).map(&f).collect();
        black_box(results)
    });
}

#[divan::bench]
fn plain_mandelbrot_1024(bencher: Bencher<'_, '_>) {
    by_hand(bencher, programs::POINTS, |i| {
        let [a, b] = programs::point(i);
        let (mut x, mut y, mut n) = (0.0f32, 0.0f32, 0);
        while n < 200 && x * x + y * y <= 4.0 {
            (x, y) = (x * x - y * y + a, 2.0 * x * y + b);
            n += 1;
        }
        n
    });
}

#[divan::bench]
fn plain_collatz_1_000_000(bencher: Bencher<'_, '_>) {
    by_hand(bencher, programs::NUMBERS, |i| {
        let (mut n, mut steps) = (i as i64 + 1, 0);
        while n != 1 {
            n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
            steps += 1;
        }
        steps
    });
}

#[divan::bench]
fn plain_newton_1_000_000(bencher: Bencher<'_, '_>) {
    by_hand(bencher, programs::NUMBERS, |i| {
        let a = programs::radicand(i);
        let mut x = if a > 1.0 { a } else { 1.0 };
        let mut change = a + 1.0;
        while change > 1e-5 * x {
            let next = 0.5 * (x + a / x);
            change = (next - x).abs();
            x = next;
        }
        x
    });
}

#[divan::bench]
fn plain_newton_1_000_000_gradient(bencher: Bencher<'_, '_>) {
    by_hand(bencher, programs::NUMBERS, |i| {
        let a = programs::radicand(i);
        let mut saved = Vec::with_capacity(16);
        let mut x = if a > 1.0 { a } else { 1.0 };
        let mut change = a + 1.0;
        while change > 1e-5 * x {
            saved.push(x);
            let next = 0.5 * (x + a / x);
            change = (next - x).abs();
            x = next;
        }
        let (mut dx, mut da) = (1.0f32, 0.0f32);
        for &x in saved.iter().rev() {
            let half = 0.5 * dx;
            da += half / x;
            dx = half - half * a / (x * x);
        }
        (x, da + if a > 1.0 { dx } else { 0.0 })
    });
}

/// Returns numbers for the sequences.
fn sequences() -> Vec<f32> {
    let n = programs::SEQUENCES * programs::MAX_LENGTH;
    (0..n).map(|i| (i * 7919 % 10_007) as f32 / 5000.0 - 1.0).collect()
}

#[divan::bench]
fn plain_sequences_1000(bencher: Bencher<'_, '_>) {
    let xs = sequences();
    by_hand(bencher, programs::SEQUENCES, |i| {
        let xs = &xs[i * programs::MAX_LENGTH..][..programs::length(i) as usize];
        xs.iter().fold(0.0f32, |state, &x| if x > 0.0 { (0.9 * state + x).tanh() } else { state * 0.5 })
    });
}

#[divan::bench]
fn plain_sequences_1000_gradient(bencher: Bencher<'_, '_>) {
    let xs = sequences();
    by_hand(bencher, programs::SEQUENCES, |i| {
        let xs = &xs[i * programs::MAX_LENGTH..][..programs::length(i) as usize];
        let mut states = Vec::with_capacity(xs.len() + 1);
        states.push(0.0f32);
        for &x in xs {
            let state = states[states.len() - 1];
            states.push(if x > 0.0 { (0.9 * state + x).tanh() } else { state * 0.5 });
        }
        let (mut d, mut dw, mut db) = (1.0f32, 0.0, 0.0);
        for (t, &x) in xs.iter().enumerate().rev() {
            if x > 0.0 {
                let inner = d * (1.0 - states[t + 1] * states[t + 1]);
                dw += inner * states[t];
                d = inner * 0.9;
            } else {
                db += d * states[t];
                d *= 0.5;
            }
        }
        (states[xs.len()], dw, db)
    });
}

type States = [f32; programs::STATES];

/// A hidden Markov model, or the gradient with respect to one.
#[derive(Clone, Default)]
struct Model {
    initial: States,
    transitions: [States; programs::STATES],
    emissions: [States; programs::SYMBOLS],
}

impl Model {
    fn new() -> Model {
        let row = |row: usize| std::array::from_fn(|i| programs::probability(row * programs::STATES + i));
        Model { initial: row(0), transitions: std::array::from_fn(row), emissions: std::array::from_fn(row) }
    }

    fn add(mut self, other: &Model) -> Model {
        let rows = |model: &mut Model| -> Vec<f32> {
            let Model { initial, transitions, emissions } = model;
            [&initial[..], transitions.as_flattened(), emissions.as_flattened()].concat()
        };
        let added = rows(&mut other.clone());
        let Model { initial, transitions, emissions } = &mut self;
        let own = initial.iter_mut().chain(transitions.as_flattened_mut()).chain(emissions.as_flattened_mut());
        own.zip(added).for_each(|(x, y)| *x += y);
        self
    }

    /// Returns the states after a transition, before the symbol.
    fn next(&self, from: &States) -> States {
        std::array::from_fn(|j| (0..programs::STATES).map(|i| from[i] * self.transitions[i][j]).sum())
    }

    /// Returns the logarithm of the probability of a sequence. Calls `save` for each transition
    /// with the sum of the states before it, these states scaled, and the states after it.
    fn probability(&self, symbols: &[i32], mut save: impl FnMut(f32, States, States)) -> (f32, States) {
        let emits =
            |x: States, symbol: i32| -> States { std::array::from_fn(|i| x[i] * self.emissions[symbol as usize][i]) };
        let mut alpha = emits(self.initial, symbols[0]);
        let mut log = 0.0;
        for &symbol in &symbols[1..] {
            let sum: f32 = alpha.iter().sum();
            log += sum.ln();
            let scaled = alpha.map(|x| x / sum);
            let next = self.next(&scaled);
            save(sum, scaled, next);
            alpha = emits(next, symbol);
        }
        (log + alpha.iter().sum::<f32>().ln(), alpha)
    }

    /// Adds the gradient of the logarithm of the probability of a sequence.
    fn differentiate(&self, symbols: &[i32], gradient: &mut Model) -> f32 {
        let mut saved = Vec::with_capacity(symbols.len());
        let (log, alpha) = self.probability(symbols, |sum, scaled, next| saved.push((sum, scaled, next)));
        let mut d: States = [1.0 / alpha.iter().sum::<f32>(); programs::STATES];
        for ((sum, scaled, next), &symbol) in saved.iter().zip(&symbols[1..]).rev() {
            let emission = &self.emissions[symbol as usize];
            let of_next: States = std::array::from_fn(|j| d[j] * emission[j]);
            let of_emission = &mut gradient.emissions[symbol as usize];
            (0..programs::STATES).for_each(|j| of_emission[j] += d[j] * next[j]);
            for (row, &x) in gradient.transitions.iter_mut().zip(scaled) {
                row.iter_mut().zip(of_next).for_each(|(sum, d)| *sum += x * d);
            }
            let d_scaled = self.transitions.map(|row| row.iter().zip(of_next).map(|(a, d)| a * d).sum::<f32>());
            let through_sum: f32 = d_scaled.iter().zip(scaled).map(|(d, x)| d * x).sum();
            d = d_scaled.map(|d| (d - through_sum + 1.0) / sum);
        }
        let first = symbols[0] as usize;
        (0..programs::STATES).for_each(|j| {
            gradient.emissions[first][j] += d[j] * self.initial[j];
            gradient.initial[j] += d[j] * self.emissions[first][j];
        });
        log
    }
}

/// Returns the sequences of symbols.
fn symbols() -> Vec<i32> {
    (0..programs::SEQUENCES * programs::MAX_LENGTH).map(programs::symbol).collect()
}

#[divan::bench]
fn plain_hidden_markov_1000(bencher: Bencher<'_, '_>) {
    let (model, xs) = (Model::new(), symbols());
    by_hand(bencher, programs::SEQUENCES, |i| {
        let xs = &xs[i * programs::MAX_LENGTH..][..programs::length(i) as usize];
        model.probability(xs, |_, _, _| {}).0
    });
}

#[divan::bench]
fn plain_hidden_markov_1000_gradient(bencher: Bencher<'_, '_>) {
    let (model, xs) = (Model::new(), symbols());
    bencher.counter(ItemsCount::new(programs::SEQUENCES)).bench_local(|| {
        let of_each = (0..programs::SEQUENCES).into_par_iter().with_min_len(64);
        let of_threads = of_each.fold(Default::default, |(log, mut gradient): (f32, Model), i| {
            let xs = &xs[i * programs::MAX_LENGTH..][..programs::length(i) as usize];
            (log + model.differentiate(xs, &mut gradient), gradient)
        });
        black_box(of_threads.reduce(Default::default, |a, b| (a.0 + b.0, a.1.add(&b.1))))
    });
}
