//! Computes a square root by Newton's method, iterated until it has converged, and its derivative
//! through the loop.
//!
//! `cargo run --release --example newton [a]..`

use anabranch::prelude::*;

/// Returns the square root of `a > 0`, and the number of iterations.
#[graph]
fn root(a: Tensor<f64>) -> (Tensor<f64>, Tensor<i32>) {
    let mut x = if a > 1.0 { a } else { scalar(1.0) };
    let mut change = a + 1.0;
    let mut iterations = scalar(0);
    while change > 1e-12 * x {
        let next = 0.5 * (x + a / x);
        change = (next - x).abs();
        x = next;
        iterations += 1;
    }
    (x, iterations)
}

/// Returns the root, its first and second derivative, and the number of iterations.
#[graph]
fn derivatives(a: Tensor<f64>) -> (Tensor<f64>, Tensor<f64>, Tensor<f64>, Tensor<i32>) {
    let (x, iterations) = root(a);
    let dx = gradients(x, a);
    let ddx = gradients(dx, a);
    (x, dx, ddx, iterations)
}

fn main() -> anabranch::Result<()> {
    let session = Session::from_args()?;
    let derivatives = session.function(derivatives)?;
    let given: Vec<f64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).filter(|&a| a > 0.0).collect();
    println!("{:>10} {:>14} {:>14} {:>14} {:>10}", "a", "sqrt(a)", "d/da", "d2/da2", "iterations");
    for a in if given.is_empty() { vec![0.01, 0.25, 2.0, 100.0, 1e6] } else { given } {
        let (x, dx, ddx, iterations) = derivatives.call(a)?;
        println!("{a:>10} {:>14.9} {:>14.9} {:>14.6e} {iterations:>10}", x.item(), dx.item(), ddx.item());
        let exact = (a.sqrt(), 0.5 / a.sqrt(), -0.25 / a.powf(1.5));
        for (got, want) in [(x.item(), exact.0), (dx.item(), exact.1), (ddx.item(), exact.2)] {
            assert!((got - want).abs() <= 1e-6 * want.abs(), "{got} is not {want}");
        }
    }
    Ok(())
}
