//! Counts the Collatz steps from `n` to 1: a loop whose length depends on the data.
//!
//! `cargo run --release --example collatz [n]..`

use anabranch::prelude::*;

#[graph]
fn collatz(mut n: Tensor<i64>) -> Tensor<i64> {
    let mut steps = scalar(0);
    while n != 1 {
        n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
        steps += 1;
    }
    steps
}

fn main() -> anabranch::Result<()> {
    let session = Session::from_args()?;
    let collatz = session.function(collatz)?;
    let given: Vec<i64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).filter(|&n| n > 0).collect();
    for n in if given.is_empty() { vec![1, 27, 97, 871, 6171, 837_799] } else { given } {
        println!("{n:>8}: {} steps", collatz.call(n)?);
    }
    Ok(())
}
