//! Solves ordinary differential equations with an adaptive step size, and differentiates through
//! the solver.
//!
//! The solver is a staged `while`. A step of the method of Dormand and Prince (1980,
//! <https://doi.org/10.1016/0771-050X(80)90013-3>) computes a solution of order 5 and the error of
//! one of order 4. An `if` accepts the step or retries with a shorter step, by the usual rule
//! (Hairer, Nørsett and Wanner, Solving Ordinary Differential Equations I, section II.4). The
//! number of steps depends on the data.
//!
//! First the program solves a harmonic oscillator, whose solution and derivatives are known. Then
//! it finds the rates of a predator-prey model (Lotka 1925, Volterra 1926) from observations, by
//! gradient descent through the solver.
//!
//! `cargo run --release --example ode`

use anabranch::optim::{Adam, Optimizer};
use anabranch::prelude::*;

type S = Tensor<f64>;
type I = Tensor<i32>;

/// The stages of the method: each row has the weights of the previous slopes. The last row is the
/// solution of order 5.
const STAGES: [&[f64]; 6] = [
    &[1.0 / 5.0],
    &[3.0 / 40.0, 9.0 / 40.0],
    &[44.0 / 45.0, -56.0 / 15.0, 32.0 / 9.0],
    &[19372.0 / 6561.0, -25360.0 / 2187.0, 64448.0 / 6561.0, -212.0 / 729.0],
    &[9017.0 / 3168.0, -355.0 / 33.0, 46732.0 / 5247.0, 49.0 / 176.0, -5103.0 / 18656.0],
    &[35.0 / 384.0, 0.0, 500.0 / 1113.0, 125.0 / 192.0, -2187.0 / 6784.0, 11.0 / 84.0],
];
/// The weights of the solution of order 5 minus those of order 4.
const ERROR: [f64; 7] =
    [71.0 / 57600.0, 0.0, -71.0 / 16695.0, 71.0 / 1920.0, -17253.0 / 339200.0, 22.0 / 525.0, -1.0 / 40.0];

fn weighted(weights: &[f64], slopes: &[S]) -> S {
    let terms = weights.iter().zip(slopes).filter(|(w, _)| **w != 0.0).map(|(&w, &slope)| slope * w);
    terms.reduce(|a, b| a + b).expect("some weight is not zero")
}

/// Solves `y' = slope_at(y)` from `y = start` at time 0. Returns `y` at time `until`, and the
/// numbers of accepted and rejected steps. `tolerance` is the error of one step, relative to
/// `1 + |y|`.
#[graph]
fn solve(slope_at: impl Fn(S) -> S, start: S, until: S, tolerance: S) -> (S, I, I) {
    let (mut t, mut y, mut slope) = (scalar(0.0), start, slope_at(start));
    // Try the whole interval first. Step lengths are not differentiated, because they only change
    // the error of the solution. The end of the last step, `until`, is.
    let mut length = until.stop_gradient();
    let (mut accepted, mut rejected) = (scalar(0), scalar(0));
    while t < until {
        assert!(accepted + rejected < 10_000, "the steps have become too short");
        let next_t = (t + length).minimum(until);
        let h = next_t - t;
        let (mut next, mut slopes) = (y, vec![slope]);
        for weights in STAGES {
            next = y + h * weighted(weights, &slopes);
            slopes.push(slope_at(next));
        }
        let scaled = h * weighted(&ERROR, &slopes) / (tolerance * (1.0 + y.abs().maximum(next.abs())));
        let error = (scaled * scaled).mean().sqrt().stop_gradient();
        if error <= 1.0 {
            (t, y, slope) = (next_t, next, slopes[6]);
            accepted += 1;
        } else {
            rejected += 1;
        }
        length *= (0.9 * error.pow(-0.2)).clamp(0.2, 5.0);
    }
    (y, accepted, rejected)
}

/// Returns the position and speed of the oscillator `x'' = -w^2 x`, and the derivatives of the
/// position with respect to `w`, the start and the time.
#[graph]
fn oscillator(w: S, start: S, until: S, tolerance: S) -> (S, [S; 3], I, I) {
    let (end, accepted, rejected) =
        solve(|y| stack(&[y.index(1, 0), -w * w * y.index(0, 0)], 0), start, until, tolerance);
    let (dw, dstart, duntil) = gradients(end.index(0, 0), (w, start, until));
    (end, [dw, dstart, duntil], accepted, rejected)
}

/// The logarithms of `a, b, c, d` in `prey' = a prey - b prey predators`,
/// `predators' = c prey predators - d predators`.
#[derive(Module)]
struct LotkaVolterra {
    log_rates: Var<f64>,
}

/// Returns the mean squared distance to observations `[n, 2]` at intervals of one time unit. The
/// first observation is the start.
#[graph]
fn train_step(model: &LotkaVolterra, adam: &Adam, observed: S) -> (S, I, I) {
    let rates = model.log_rates.get().exp();
    let [a, b, c, d] = std::array::from_fn(|i| rates.index(i, 0));
    let slope_at = |y: S| {
        let (prey, predators) = (y.index(0, 0), y.index(1, 0));
        let met = prey * predators;
        stack(&[a * prey - b * met, c * met - d * predators], 0)
    };
    let (mut y, mut squares) = (observed.row(0), scalar(0.0));
    let (mut accepted, mut rejected) = (scalar(0), scalar(0));
    for row in observed.slice(0, 1, observed.dim(0)) {
        let (next, yes, no) = solve(slope_at, y, scalar(1.0), scalar(1e-6));
        y = next;
        squares += (y - row).square().mean();
        (accepted, rejected) = (accepted + yes, rejected + no);
    }
    let loss = squares / (observed.dim(0) - 1) as f64;
    adam.minimize(loss, model);
    (loss, accepted, rejected)
}

/// The solution of the model in plain Rust, by 1,000 steps of fixed length of the classical
/// Runge-Kutta method for each observation.
fn observe(rates: [f64; 4], n: usize) -> Vec<[f64; 2]> {
    let [a, b, c, d] = rates;
    let slope_at = |[x, y]: [f64; 2]| [a * x - b * x * y, c * x * y - d * y];
    let along = |y: [f64; 2], h: f64, k: [f64; 2]| [y[0] + h * k[0], y[1] + h * k[1]];
    let step = |y: [f64; 2], h: f64| {
        let k1 = slope_at(y);
        let k2 = slope_at(along(y, h / 2.0, k1));
        let k3 = slope_at(along(y, h / 2.0, k2));
        let k4 = slope_at(along(y, h, k3));
        std::array::from_fn(|i| y[i] + h / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]))
    };
    let next = |y: &[f64; 2]| Some((0..1000).fold(*y, |y, _| step(y, 1e-3)));
    std::iter::successors(Some([1.0, 0.5]), next).take(n).collect()
}

fn main() -> anabranch::Result<()> {
    let session = Session::from_args()?;

    println!("x'' = -w^2 x with w = 2, to the time 5: errors of the position and of its derivatives");
    let header = ["tolerance", "accepted", "rejected", "x", "dx/dw", "dx/dx(0)", "dx/dv(0)", "dx/dt"];
    println!("{}", header.map(|h| format!("{h:>9}")).join(" "));
    let oscillator = session.function(oscillator)?;
    let (w, t, x0, v0) = (2.0f64, 5.0, 1.0, -0.5);
    let (sin, cos) = (w * t).sin_cos();
    let exact = [
        x0 * cos + v0 / w * sin,
        -x0 * t * sin - v0 / (w * w) * sin + v0 * t / w * cos,
        cos,
        sin / w,
        v0 * cos - x0 * w * sin,
    ];
    for tolerance in [1e-3, 1e-5, 1e-7, 1e-9] {
        let (end, [dw, dstart, dt], accepted, rejected) = oscillator.call((w, [x0, v0], t, tolerance))?;
        let got = [end.as_slice()[0], dw.item(), dstart.as_slice()[0], dstart.as_slice()[1], dt.item()];
        let errors: [f64; 5] = std::array::from_fn(|i| (got[i] - exact[i]).abs());
        let shown = errors.map(|e| format!("{e:>9.1e}")).join(" ");
        println!("{tolerance:>9.0e} {accepted:>9} {rejected:>9} {shown}");
        assert!(errors.iter().all(|&e| e < 100.0 * tolerance), "{got:?} is not {exact:?}");
        assert!(rejected.item() > 0, "the first step goes all the way, and is too long");
    }

    let rates = [1.1, 0.7, 0.5, 0.8];
    let observed = observe(rates, 21);
    let model = LotkaVolterra { log_rates: Var::new("log_rates", [0.0; 4]) };
    let adam = Adam::new(0.02);
    let step = session.function(|observed| train_step(&model, &adam, observed))?;
    println!("\nprey and predators, {} observations, found rates", observed.len());
    println!("{:>9} {:>9} {:>9} {:>9}  a, b, c, d", "round", "accepted", "rejected", "loss");
    let mut last = f64::INFINITY;
    for round in 0..=500 {
        let before = session.get(&model.log_rates)?;
        let (loss, accepted, rejected) = step.call(&observed)?;
        last = loss.item();
        if round % 100 == 0 {
            let found: Vec<_> = before.as_slice().iter().map(|x| format!("{:.4}", x.exp())).collect();
            println!("{round:>9} {accepted:>9} {rejected:>9} {last:>9.1e}  {}", found.join(", "));
        }
    }
    println!("{:>39}  {}", "exact:", rates.map(|x| format!("{x:.4}")).join(", "));
    let found = session.get(&model.log_rates)?.to_vec();
    assert!(last < 1e-4, "the loss is {last}");
    assert!(found.iter().zip(rates).all(|(x, rate)| (x.exp() - rate).abs() < 0.01), "the rates are not found");
    Ok(())
}
