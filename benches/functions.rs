//! Elementwise functions of many numbers, one at a time.
//!
//! `cargo bench --bench functions`

use anabranch::prelude::*;
use divan::Bencher;

fn main() {
    divan::main();
}

const FUNCTIONS: [&str; 10] = ["exp", "log", "tanh", "sigmoid", "silu", "gelu", "erf", "sin", "pow", "softplus"];

fn apply(name: &str, x: Tensor) -> Tensor {
    match name {
        "exp" => x.exp(),
        // Of positive numbers.
        "log" => (x * x).log(),
        "tanh" => x.tanh(),
        "sigmoid" => x.sigmoid(),
        "silu" => x.silu(),
        "gelu" => x.gelu(),
        "erf" => x.erf(),
        "sin" => x.sin(),
        "pow" => (x * x).pow(1.7),
        "softplus" => x.softplus(),
        other => panic!("`{other}` is not measured"),
    }
}

fn measure(bencher: Bencher<'_, '_>, name: &'static str, n: usize) {
    let session = Session::new().expect("the default devices exist");
    let f = session.function(move |x: Tensor| apply(name, x)).expect("the function is valid");
    // From -4 to 4, in a mixed order.
    let x = Array::new([n], (0..n).map(|i| (i * 7919 % 8192) as f32 / 1024.0 - 4.0).collect::<Vec<f32>>());
    bencher.bench_local(|| f.call(&x).expect("it runs"));
}

#[divan::bench(args = FUNCTIONS, sample_count = 20, sample_size = 1)]
fn of_10_million_numbers(bencher: Bencher<'_, '_>, name: &'static str) {
    measure(bencher, name, 10_000_000);
}

/// Numbers that stay in the cache of a core.
#[divan::bench(args = FUNCTIONS, sample_count = 100, sample_size = 10)]
fn of_10000_numbers(bencher: Bencher<'_, '_>, name: &'static str) {
    measure(bencher, name, 10_000);
}
