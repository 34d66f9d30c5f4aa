//! Reproductions: what is wrong today, each as the test that a right system passes.
#![allow(clippy::assign_op_pattern, reason = "both forms of assignment are staged")]

mod support;

use anabranch::prelude::*;
use anabranch::{List, checkpoint_loop_every};
use support::check;

type S = Tensor<f64>;
type I = Tensor<i32>;

/// The gradient of a loop in segments that pushes to a list. Today: an error, without a place, about a "loop before it, in one more loop".
#[test]
fn a_loop_in_segments_pushes_to_a_list() {
    #[graph]
    fn f(x: S, n: I) -> (S, S) {
        let (mut list, mut y, mut i) = (List::new(()), x, scalar(0));
        while i < n {
            checkpoint_loop_every(2);
            y = y * x;
            list.push(y);
            i += 1;
        }
        let sum = list.stack().sum();
        (sum, gradients(sum, x))
    }
    // x^2 + x^3 + x^4
    check(f, (2.0, 3), &[28.0, 4.0 + 12.0 + 32.0]);
}

/// A method that changes its receiver and has a name from the standard library. Today: it happens whatever the condition is.
#[derive(Carry, Clone, Copy)]
struct Pair {
    now: S,
    next: S,
}
impl Pair {
    fn select(&mut self) {
        self.now = self.next;
    }
}

#[test]
fn a_method_named_like_a_pure_one_changes_its_receiver() {
    #[graph]
    fn f(x: S, c: Tensor<bool>) -> S {
        let mut pair = Pair { now: x, next: x * 10.0 };
        if c {
            pair.select();
        }
        pair.now
    }
    check(f, (1.0, true), &[10.0]);
    check(f, (1.0, false), &[1.0]);
}

/// A gradient with respect to what the same `if` or `while` gives: 12 with a host condition. Today: zero, silently.
#[test]
fn a_gradient_between_two_results_of_one_construct_is_right_or_an_error() {
    #[graph]
    fn branch(x: S, c: Tensor<bool>) -> S {
        let (mut y, mut z) = (x, x);
        if c {
            z = x * 2.0;
            y = z * z;
        }
        gradients(y, z)
    }
    #[graph]
    fn repeated(x: S, n: I) -> S {
        let (mut y, mut z, mut i) = (x, x, scalar(0));
        while i < n {
            z = x * 2.0;
            y = z * z;
            i += 1;
        }
        gradients(y, z)
    }
    for (what, got) in [("if", eval_with(branch, (3.0, true))), ("while", eval_with(repeated, (3.0, 2)))] {
        if let Ok(got) = got {
            assert_eq!(got.item(), 12.0, "{what}");
        }
    }
}

/// A `Cell` under a condition that is a tensor. Today: set whatever the condition is.
#[test]
fn a_cell_is_not_changed_under_a_tensor() {
    #[graph]
    fn f(x: S, c: Tensor<bool>) -> S {
        let (cell, y) = (std::cell::Cell::new(x), x * 2.0);
        if c {
            cell.set(y);
        }
        cell.get()
    }
    if let Ok(got) = eval_with(f, (1.0, false)) {
        assert_eq!(got.item(), 1.0);
    }
}

/// A condition of a `while` that changes a variable, as in Rust. Today: an error that asks to write it twice.
#[test]
fn a_condition_of_a_while_changes_a_variable() {
    #[graph]
    fn f(x: S, n: I) -> (S, I) {
        let (mut y, mut i) = (x, scalar(0));
        while {
            i += 1;
            i < n
        } {
            y *= x;
        }
        (y, i)
    }
    check(f, (2.0, 4), &[16.0, 4.0]);
    #[graph]
    fn popped(x: S) -> S {
        let mut list = List::unstack(x);
        let mut sum = scalar(0.0);
        while list.pop() > 1.0 {
            sum += 1.0;
        }
        sum
    }
    check(popped, [1.0, 2.0, 3.0], &[2.0]);
}

/// Recursion through closures of `cond`, in functions that are not `#[graph]`. Today: the stack overflows and the process ends.
#[test]
#[ignore = "it ends the process"]
fn recursion_through_closures_is_an_error() {
    fn factorial(n: I) -> I {
        anabranch::control::cond(n.less(2), || scalar(1), || n * factorial(n - 1))
    }
    support::error_of(factorial, 5);
}
