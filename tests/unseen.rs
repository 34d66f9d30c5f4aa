//! Changes that the form of the code hides: seen all the same, or refused, never made whatever the condition is.

mod support;

use anabranch::prelude::*;
use support::check;

type S = Tensor<f64>;

#[derive(Carry, Clone, Copy)]
struct Pair {
    now: S,
    next: S,
}

impl Pair {
    fn new(x: S) -> Pair {
        Pair { now: x, next: x * 10.0 }
    }
    /// A name that methods have which change nothing.
    fn round(&mut self) {
        self.now = self.next;
    }
    fn get(&mut self) -> &mut S {
        &mut self.now
    }
    #[graph]
    fn round_if(&mut self, c: Tensor<bool>) {
        if c {
            self.round();
        }
    }
}

#[test]
fn methods_of_a_users_type_may_have_any_name() {
    #[graph]
    fn literal(x: S, c: Tensor<bool>) -> S {
        let mut pair = Pair { now: x, next: x * 10.0 };
        if c {
            pair.round();
        }
        pair.now
    }
    #[graph]
    fn made(x: S, c: Tensor<bool>) -> S {
        let mut pair = Pair::new(x);
        if c {
            *pair.get() = x * 10.0;
        }
        pair.now
    }
    #[graph]
    fn by_reference(pair: &mut Pair, c: Tensor<bool>) {
        if c {
            pair.round();
        }
    }
    fn of_self(x: S, c: Tensor<bool>) -> S {
        let mut pair = Pair::new(x);
        pair.round_if(c);
        pair.now
    }
    fn passed(x: S, c: Tensor<bool>) -> S {
        let mut pair = Pair::new(x);
        by_reference(&mut pair, c);
        pair.now
    }
    for (c, expected) in [(true, 10.0), (false, 1.0)] {
        check(literal, (1.0, c), &[expected]);
        check(made, (1.0, c), &[expected]);
        check(of_self, (1.0, c), &[expected]);
        check(passed, (1.0, c), &[expected]);
    }
}

/// Another name of tensors.
type Number = Tensor<f64>;

#[test]
fn methods_of_a_tensor_of_another_name_change_nothing() {
    #[graph]
    fn f(mut y: Number, c: Tensor<bool>) -> Number {
        y -= if c { y.abs() * 2.0 } else { y.sin() };
        y
    }
    check(f, (3.0, true), &[-3.0]);
    check(f, (3.0, false), &[3.0 - 3f64.sin()]);
}

#[test]
fn compound_assignment_to_truth_values() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> [Tensor<bool>; 3] {
        let (mut any, mut all, mut odd) = (x > 10.0, x > 0.0, x > 10.0);
        for i in range(n) {
            any |= i > 2;
            all &= i < 4;
            odd ^= i >= 0;
        }
        [any, all, odd]
    }
    for (n, expected) in [(0, [0.0, 1.0, 0.0]), (3, [0.0, 1.0, 1.0]), (4, [1.0, 1.0, 0.0]), (5, [1.0, 0.0, 1.0])] {
        check(f, (1.0, n), &expected);
    }
}

#[test]
fn headers_of_loops_that_only_the_host_leaves() {
    #[graph]
    fn f(x: S) -> (S, S) {
        let mut v = vec![x, x * 2.0, x * 3.0];
        let mut out = x;
        let mut trips = 0;
        while let Some(y) = v.pop() {
            out += y;
            trips += 1;
            if trips == 2 {
                break;
            }
        }
        let mut it = [1.0, 2.0, 3.0, 4.0].into_iter();
        for k in it.by_ref() {
            out += k;
            if k > 1.5 {
                break;
            }
        }
        (out, v.iter().fold(scalar(100.0), |a, b| a + *b) + it.next().unwrap_or(0.0))
    }
    check(f, 1.0, &[1.0 + 3.0 + 2.0 + 1.0 + 2.0, 101.0 + 3.0]);
}

#[test]
fn a_stack_of_the_host_that_a_tensor_leaves_is_an_error() {
    #[graph]
    fn f(x: S) -> (S, S) {
        let mut v = vec![x, x * 2.0, x * 3.0];
        let mut out = x;
        while let Some(y) = v.pop() {
            out += y;
            if out > 5.0 {
                break;
            }
        }
        (out, v.iter().fold(scalar(100.0), |a, b| a + *b))
    }
    let error = support::error_of(f, 1.5);
    assert!(error.to_string().contains("`v`"), "{error}");
}
