//! Comparisons in all forms of Rust: operators, patterns, `matches!` and ranges.

use crate::support::{check, check_each, error_of};
use anabranch::prelude::*;

type S = Tensor<f64>;

#[test]
fn references_to_tensors_are_compared_as_the_tensors() {
    #[graph]
    fn f(x: S, y: S) -> (S, S, S) {
        let (v, w) = (vec![x, y, x * 2.0], [y, x, x * 2.0]);
        let (mut greater, mut equal) = (scalar(0.0), scalar(0.0));
        for (a, b) in v.iter().zip(&w) {
            if a > b {
                greater += 1.0;
            }
            if *a == *b && &x <= a {
                equal += 10.0;
            }
        }
        for a in v.iter().filter(|a| a.rank() == 0) {
            if a == &x {
                equal += 1.0;
            }
            if a != y && 1.0 < a && a < &100.0 {
                greater += 100.0;
            }
        }
        let above = v.iter().map(|a| if a >= &y { *a } else { y }).fold(x, |sum, a| sum + a);
        (greater, equal, above)
    }
    check(f, (2.0, 3.0), &[201.0, 11.0, 12.0]);
    check(f, (3.0, 2.0), &[201.0, 11.0, 14.0]);
}

#[test]
fn parameters_of_closures_that_are_compared_need_no_type() {
    #[graph]
    fn f(x: S, y: S) -> (S, Tensor<bool>) {
        let larger = |z| if z > x { z } else { x };
        let smaller = |z| if x < z { x } else { z };
        let exceeds = |z| z > x;
        (larger(y) * 10.0 + smaller(y), exceeds(y))
    }
    check(f, (2.0, 3.0), &[32.0, 1.0]);
    check(f, (5.0, -3.0), &[47.0, 0.0]);
}

/// Constants in a module.
mod consts {
    pub const SIX: i32 = 6;
}
const A: i32 = 1;
const LIMIT: f64 = 2.5;

struct Codes;

impl Codes {
    const B: i32 = -4;

    #[graph]
    fn of(x: Tensor<i32>) -> Tensor<i32> {
        match x {
            A => scalar(10),
            Self::B | consts::SIX => scalar(20),
            i32::MAX => scalar(30),
            k if k > 100 => k,
            _ => scalar(40),
        }
    }
}

#[test]
fn patterns_of_a_match_may_be_constants() {
    #[derive(Clone, Copy)]
    enum Kind {
        First,
        B,
        Last,
    }
    #[graph]
    fn pair(x: Tensor<i32>, y: S) -> Tensor<i32> {
        let of_y = if let LIMIT = y { scalar(100) } else { scalar(0) };
        let mut sum = of_y;
        // Host variants, strings and constants of host types are compared on the host.
        for kind in [Kind::First, Kind::B, Kind::Last] {
            const NAME: &str = "name";
            sum += match kind {
                Kind::B => match "name" {
                    NAME => 1000,
                    _ => 0,
                },
                _ => 1,
            };
        }
        match (x, y) {
            (A, LIMIT) => sum + 1,
            (consts::SIX, _) => sum + 2,
            _ => sum + 3,
        }
    }
    let cases = [(1, 10), (-4, 20), (6, 20), (i32::MAX, 30), (200, 200), (2, 40)];
    check_each(Codes::of, cases.map(|(x, y)| (x, [f64::from(y)])));
    let cases = [(1, 2.5, 1103), (1, 2.0, 1005), (6, 2.5, 1104), (0, 0.0, 1005)];
    check_each(pair, cases.map(|(x, y, z)| ((x, y), [f64::from(z)])));
}

#[test]
fn matches_and_contains_test_tensors() {
    #[graph]
    fn f(x: Tensor<i32>, y: S, k: Tensor<i32>) -> (S, Tensor<bool>, Tensor<bool>) {
        let host = 3;
        let mut out = y;
        if matches!(x, 1..=3 | 7) && matches!(host, 3) {
            out += 1.0;
        }
        if !(0.5..k.cast()).contains(&y) || (..=host).contains(&5) {
            out += 10.0;
        }
        let is_a = matches!((x, host), (A, 3));
        (out, is_a, (1..).contains(&x))
    }
    let expected = |x: i32, y: f64, k: i32| {
        let out = y + f64::from(matches!(x, 1..=3 | 7)) + 10.0 * f64::from(!(0.5..f64::from(k)).contains(&y));
        [out, f64::from(x == 1), f64::from(x >= 1)]
    };
    let cases = [(1, 1.0, 2), (7, 2.0, 2), (4, 0.5, 2), (0, f64::NAN, 2), (3, -1.0, 0)];
    check_each(f, cases.map(|(x, y, k)| ((x, y, k), expected(x, y, k))));
}

#[test]
fn shapes_that_do_not_fit_are_an_error_at_the_comparison() {
    #[graph]
    fn f(x: S, y: S) -> S {
        let (a, b) = (&x, &y);
        if (a > b).all() { x } else { y }
    }
    let error = error_of(f, ([1.0, 2.0], [1.0, 2.0, 3.0])).to_string();
    assert!(
        error.contains("comparisons.rs") && error.contains("shapes [2] and [3] cannot be broadcast together"),
        "{error}"
    );
}
