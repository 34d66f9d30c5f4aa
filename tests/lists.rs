//! Lists: what they hold, what they refuse, and their gradients, run on every engine.

#![allow(clippy::assign_op_pattern, reason = "both forms of assignment are staged")]

mod support;

use anabranch::prelude::*;
use support::check;

type S = Tensor<f64>;

// What a list holds.

#[test]
fn a_loop_pushes_as_often_as_the_data_says() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, Tensor<i32>) {
        let mut list = List::new(());
        let mut i = scalar(0);
        while i < n {
            list.push(x * i.cast::<f64>());
            i += 1;
        }
        (list.stack(), list.len())
    }
    check(f, (2.0, 4), &[0.0, 2.0, 4.0, 6.0, 4.0]);
    check(f, (2.0, 1), &[0.0, 1.0]);
    check(f, (2.0, 0), &[0.0]);
}

#[test]
fn elements_of_a_tensor_are_read_in_a_loop() {
    #[graph]
    fn f(x: S) -> S {
        let rows = List::unstack(x);
        let mut sum = zeros([2]);
        let mut i = scalar(0);
        while i < 3 {
            sum = sum * 10.0 + rows.read(i);
            i += 1;
        }
        sum
    }
    check(f, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], &[135.0, 246.0]);
}

#[test]
fn a_stack_of_tensors_in_a_list_pops_in_reverse() {
    #[graph]
    fn f(x: S) -> (S, Tensor<i32>) {
        let mut list = List::unstack(x);
        let mut all = List::new(());
        while list.len() > 1 {
            all.push(list.pop());
        }
        (all.stack(), list.len())
    }
    check(f, [1.0, 2.0, 3.0, 4.0], &[4.0, 3.0, 2.0, 1.0]);
}

#[test]
fn what_is_not_written_is_zero() {
    #[graph]
    fn f(x: S) -> S {
        let mut list = List::with_len(4, [2]);
        list.write(2, x);
        list.write(0, x * 2.0);
        list.stack()
    }
    check(f, [1.0, 2.0], &[2.0, 4.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
}

#[test]
fn a_list_that_is_forked_is_two_lists() {
    #[graph]
    fn f(x: S) -> (S, S) {
        let mut a = List::new(());
        a.push(x);
        let mut b = a;
        b.push(x * 2.0);
        a.push(x * 3.0);
        a.push(x * 4.0);
        (a.stack(), b.stack())
    }
    check(f, 1.0, &[1.0, 3.0, 4.0, 1.0, 2.0]);
}

#[test]
fn a_branch_changes_a_list_or_not() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, S) {
        let mut list = List::new(());
        list.push(x);
        let before = list;
        let mut i = scalar(0);
        while i < n {
            if i % 2 == 0 {
                list.push(list.read(i / 2) + 1.0);
            }
            i += 1;
        }
        (list.stack(), before.stack())
    }
    check(f, (0.5, 5), &[0.5, 1.5, 2.5, 3.5, 0.5]);
}

#[test]
fn parts_of_different_extents_are_joined_again() {
    #[graph]
    fn f(x: S, parts: Tensor<i32>) -> (S, Tensor<i32>, S) {
        let list = List::split(x, parts);
        (list.read(1), list.extents(), list.concat())
    }
    check(f, ([1.0, 2.0, 3.0, 4.0], [1, 3, 0]), &[2.0, 3.0, 4.0, 1.0, 3.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn several_elements_are_read_and_written_at_once() {
    #[graph]
    fn f(x: S, at: Tensor<i32>) -> (S, S) {
        let mut list = List::with_len(4, [2]);
        list.scatter(at, x);
        (list.gather(tensor([3, 3, 0])), list.concat())
    }
    let rows = [[1.0, 2.0], [3.0, 4.0]];
    check(f, (rows, [3, 1]), &[1.0, 2.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0, 1.0, 2.0]);
}
