//! Reproductions: what is wrong today, each as the test that a right system passes.
#![allow(clippy::assign_op_pattern, reason = "both forms of assignment are staged")]

mod support;

use anabranch::prelude::*;
use anabranch::{List, checkpoint_loop_every};
use support::check;

type S = Tensor<f64>;
type I = Tensor<i32>;

/// A range runs as often as the host range, also where its length or its end does not fit its type. Today: 0 times, silently.
#[test]
fn ranges_up_to_the_largest_number_run() {
    #[graph]
    fn bytes(n: Tensor<u8>) -> I {
        let mut trips = scalar(0);
        for _ in range(250u8..=n) {
            trips += 1;
        }
        trips
    }
    check(bytes, 255u8, &[6.0]);
    #[graph]
    fn inclusive(a: I, b: I) -> I {
        let mut trips = scalar(0);
        for _ in range(a..=b) {
            trips += 1;
            if trips > 10 {
                break;
            }
        }
        trips
    }
    check(inclusive, (i32::MAX - 1, i32::MAX), &[2.0]);
    check(inclusive, (i32::MIN, i32::MAX), &[11.0]);
    #[graph]
    fn stepped(a: I, b: I) -> I {
        let mut sum = scalar(0);
        for _ in range(a..b).step_by(2_000_000_000) {
            sum += 1;
        }
        sum
    }
    check(stepped, (i32::MIN, i32::MAX), &[3.0]);
}

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
