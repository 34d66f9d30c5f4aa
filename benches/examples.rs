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
