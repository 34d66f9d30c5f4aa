//! Branches in loops, loops in branches, loops in loops, and gradients in all of them.

use super::engine::{ControlCase, check_all, check_corpus, gives};
use anabranch::prelude::*;

type S = Tensor<f64>;
type I = Tensor<i32>;
type B = Tensor<bool>;

#[graph]
fn sums_of_sums() -> I {
    let mut x = scalar(0);
    while x < 200 {
        let (mut i, mut sum) = (scalar(0), scalar(0));
        while i < 10 {
            (sum, i) = (sum + i, i + 1);
        }
        x += sum;
    }
    x
}

#[graph]
fn branch_in_a_loop(n: I) -> I {
    let mut i = scalar(0);
    while i < 10 {
        if n > 0 {
            i += 1;
        } else {
            i += 5;
        }
    }
    i
}

#[graph]
fn loop_in_a_branch(p: B, x: S) -> S {
    let mut x = x;
    if p {
        while x < 10.0 {
            x += 1.0;
        }
    } else {
        x = 2.0 * x;
    }
    x
}

#[graph]
fn endless_in_a_branch(p: B, x: S) -> S {
    let mut y = x;
    if p {
        while y == y {
            let mut z = y;
            while z == z {
                z += 1.0;
            }
            y += z;
        }
    }
    y
}

#[graph]
fn squared_or_reduced(x: S) -> S {
    let mut v = x;
    while v < 100.0 {
        v = if v < 50.0 { v * v } else { v - 1.0 + 60.0 };
    }
    v
}

#[graph]
fn vector_squared_or_reduced(x: S) -> S {
    let mut v = x;
    while v.sum() < 100.0 {
        v = if v.sum() < 50.0 { v * v } else { v + 20.0 };
    }
    v
}

#[graph]
fn doubled_or_forgotten(p: B, x: S) -> S {
    let (mut v, mut i) = (x, scalar(0));
    while i < 3 {
        v = if p { 2.0 * v } else { scalar(2.0) };
        i += 1;
    }
    v
}

/// Counts up in steps of `x`, so that the slope is the trip count.
#[graph]
fn stepped(x: S) -> S {
    let mut n = scalar(1.0);
    while n < 10.0 {
        n += x;
    }
    n
}

#[graph]
fn gradient_of_a_loop_in_a_branch(p: B, x: S) -> S {
    if p { gradients(stepped(x), x) } else { x }
}

#[graph]
fn gradient_of_a_loop_in_a_loop(x: S) -> S {
    let (mut i, mut d) = (scalar(0), scalar(0.0));
    while i < 2 {
        d += gradients(stepped(x), x);
        i += 1;
    }
    d
}

#[graph]
fn loop_of_branch_in_loop(x: S) -> S {
    let (mut x, mut i) = (x, scalar(0));
    while i < 3 {
        let (mut y, mut j) = (x, scalar(0));
        while j < 2 {
            y = 0.5 * y * y;
            if y > 0.7 {
                y *= 0.9;
            }
            j += 1;
        }
        x = 0.3 * x + y;
        i += 1;
    }
    x
}

/// The loop above in plain Rust, with the first derivative of each number (`f64` with a dual part).
fn loop_of_branch_in_loop_with_slope(x: f64) -> (f64, f64) {
    let (mut x, mut dx) = (x, 1.0);
    for _ in 0..3 {
        let (mut y, mut dy) = (x, dx);
        for _ in 0..2 {
            (y, dy) = (0.5 * y * y, y * dy);
            if y > 0.7 {
                (y, dy) = (0.9 * y, 0.9 * dy);
            }
        }
        (x, dx) = (0.3 * x + y, 0.3 * dx + dy);
    }
    (x, dx)
}

#[graph]
fn quotients_in_a_branch(x: S, y: S) -> S {
    let mut v = x;
    if y > 1.0 {
        while v > 1.0 {
            v = v * v / y;
        }
    }
    v * y
}

#[graph]
fn slope_of_a_cube_twice(x: S) -> S {
    let (mut w, mut i) = (x, scalar(0));
    while i < 2 {
        let (mut cube, mut j) = (w, scalar(0));
        while j < 2 {
            cube *= w;
            j += 1;
        }
        w = gradients(cube, w);
        i += 1;
    }
    w
}

#[graph]
fn slope_of_a_loop_before(x: S) -> S {
    let (mut cube, mut j) = (x, scalar(0));
    while j < 2 {
        cube *= x;
        j += 1;
    }
    let (mut sum, mut i) = (scalar(0.0), scalar(0));
    while i < 2 {
        sum += gradients(cube, x);
        i += 1;
    }
    sum
}

#[graph]
fn tripled(x: S, n: I) -> S {
    let (mut v, mut i) = (x, scalar(0));
    while i < n {
        v *= 3.0;
        i += 1;
    }
    v
}

/// One function whose loop is in the graph three times: twice side by side, and nested in itself.
#[graph]
fn one_loop_in_itself(x: S, n: I) -> S {
    let (mut v, mut i) = (tripled(x, n) + tripled(x, n), scalar(0));
    while i < n {
        v = tripled(v, n);
        i += 1;
    }
    v
}

/// One step, which is repeated by a loop and unrolled. The step has a branch whose captures and
/// results the backward pass reads.
#[graph]
fn step(v: S, x: S) -> S {
    if v > 1.0 {
        let w = v * x;
        w * w * 0.1
    } else {
        let w = (v + x).exp();
        w * v
    }
}

fn steps_as_a_loop(x: S, n: I) -> S {
    while_loop((x * 0.5, scalar(0)), |(_, i)| i.less(n), |(v, i)| (step(v, x), i + 1)).0
}

fn steps_unrolled(x: S) -> S {
    (0..4).fold(x * 0.5, |v, _| step(v, x))
}

#[graph]
fn reads_an_outer_variable(n: I, x: S) -> S {
    let (mut outer, mut i) = (x, scalar(0));
    while i < n {
        let (mut inner, mut j) = (scalar(0.0), scalar(0));
        while j < i {
            // `outer` is from the previous iteration of the outer loop, `x` from before the loop.
            inner += outer * x;
            j += 1;
        }
        outer += inner;
        i += 1;
    }
    outer
}

fn cases() -> Vec<ControlCase> {
    let dual = loop_of_branch_in_loop_with_slope;
    let branchy = [0.9, 1.1, 1.3, 1.7].into_iter().fold(ControlCase::new("a branch in a loop in a loop"), |case, x| {
        case.at(loop_of_branch_in_loop, x, gives(&[dual(x).0]).first(&[dual(x).1]))
    });
    vec![
        branchy,
        ControlCase::new("sums of sums").at(sums_of_sums, (), gives(&[225.0])),
        ControlCase::new("a branch in a loop").at(branch_in_a_loop, 1, gives(&[10.0])).at(
            branch_in_a_loop,
            0,
            gives(&[10.0]),
        ),
        // The trip count changes at integers.
        ControlCase::new("a loop in a branch")
            .at(loop_in_a_branch, (true, 0.0), gives(&[10.0]).first(&[1.0]).not_smooth())
            .at(loop_in_a_branch, (true, 0.5), gives(&[10.5]).first(&[1.0]).second(&[0.0]))
            .at(loop_in_a_branch, (false, 0.0), gives(&[0.0]).first(&[2.0]))
            .at(loop_in_a_branch, (false, 3.0), gives(&[6.0]).first(&[2.0]).second(&[0.0])),
        ControlCase::new("endless loops in a branch that does not run")
            .at(endless_in_a_branch, (false, 1.0), gives(&[1.0]).first(&[1.0]))
            .at(endless_in_a_branch, (true, f64::NAN), gives(&[f64::NAN])),
        ControlCase::new("squared or reduced")
            .at(squared_or_reduced, 2.0, gives(&[256.0]).first(&[1024.0]).second(&[3584.0]))
            .at(squared_or_reduced, 7.0, gives(&[2401.0]).first(&[4.0 * 343.0]).second(&[12.0 * 49.0]).not_smooth())
            .at(squared_or_reduced, 60.0, gives(&[119.0]).first(&[1.0]).second(&[0.0])),
        ControlCase::new("a vector squared or reduced").at(
            vector_squared_or_reduced,
            [2.0, 3.0],
            gives(&[16.0 + 20.0, 81.0 + 20.0]).first(&[32.0, 108.0]).second(&[48.0, 108.0]).not_smooth(),
        ),
        ControlCase::new("doubled in each trip or forgotten")
            .at(doubled_or_forgotten, (true, 1.0), gives(&[8.0]).first(&[8.0]).second(&[0.0]))
            .at(doubled_or_forgotten, (false, 1.0), gives(&[2.0]).first(&[0.0]).second(&[0.0])),
        ControlCase::new("the gradient of a loop in a branch")
            .at(gradient_of_a_loop_in_a_branch, (true, 1.0), gives(&[9.0]))
            .at(gradient_of_a_loop_in_a_branch, (true, 1.1), gives(&[9.0]).first(&[0.0]))
            .at(gradient_of_a_loop_in_a_branch, (false, 1.0), gives(&[1.0]).first(&[1.0])),
        ControlCase::new("the gradient of a loop in a loop").at(gradient_of_a_loop_in_a_loop, 1.0, gives(&[18.0])),
        // Two iterations: x^4 / y^3, times y.
        ControlCase::new("second order through a loop in a branch")
            .at(
                quotients_in_a_branch,
                (2.0, 3.0),
                gives(&[16.0 / 9.0])
                    .first(&[32.0 / 9.0, -32.0 / 27.0])
                    .second(&[48.0 / 9.0 - 64.0 / 27.0, -64.0 / 27.0 + 96.0 / 81.0]),
            )
            .at(quotients_in_a_branch, (2.0, 0.5), gives(&[1.0]).first(&[0.5, 2.0]).second(&[1.0, 1.0]))
            .at(quotients_in_a_branch, (0.5, 2.0), gives(&[1.0]).first(&[2.0, 0.5]).second(&[1.0, 1.0])),
        // x -> 3 x^2, twice: 27 x^4.
        ControlCase::new("the slope of a loop as a loop variable").at(
            slope_of_a_cube_twice,
            2.0,
            gives(&[432.0]).first(&[864.0]).second(&[1296.0]),
        ),
        ControlCase::new("in a loop, the slope of a loop before it").at(
            slope_of_a_loop_before,
            2.0,
            gives(&[24.0]).first(&[24.0]),
        ),
        ControlCase::new("one loop three times")
            .at(one_loop_in_itself, (1.0, 2), gives(&[1458.0]).first(&[1458.0]))
            .at(one_loop_in_itself, (1.0, 0), gives(&[2.0]).first(&[2.0])),
        ControlCase::new("an inner loop that reads the outer one")
            .at(reads_an_outer_variable, (0, 2.0), gives(&[2.0]).first(&[1.0]).second(&[0.0]))
            // x (1 + x) (1 + 2 x)
            .at(reads_an_outer_variable, (3, 2.0), gives(&[30.0]).first(&[37.0]).second(&[30.0])),
    ]
}

#[test]
fn nests_are_right_on_every_engine() {
    check_corpus("nests", &cases(), 15);
}

#[test]
fn a_loop_has_the_derivatives_of_its_unrolled_steps() {
    for x in [0.3, 0.8, 1.4] {
        let unrolled = |x: S| {
            let y = steps_unrolled(x);
            let d = gradients(y, x);
            (y, d, gradients(d, x))
        };
        let (y, d, dd) = eval_with(unrolled, x).unwrap();
        let expected = gives(y.as_slice()).first(d.as_slice()).second(dd.as_slice());
        check_all(&[ControlCase::new("steps").at(steps_as_a_loop, (x, 4), expected)], 1);
    }
}
