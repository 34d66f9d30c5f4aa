//! Lists: their elements, their errors, and their gradients, on every engine.

#![allow(clippy::assign_op_pattern, reason = "both forms of assignment are staged")]

use crate::support::{check, check_each, error_of};
use anabranch::prelude::*;

type S = Tensor<f64>;

// Elements of lists.

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

/// An index that is computed in many ways is analyzed in time proportional to its operations.
#[test]
fn elements_are_written_at_an_index_of_many_sums() {
    #[graph]
    fn f(n: Tensor<i32>, z: Tensor<i32>, d: Tensor<i32>) -> S {
        let mut list = List::with_len(n, ());
        let mut i = scalar(0);
        while i < n {
            // A division can fail, so it stays in the loop.
            let mut t = z / d;
            for _ in [(); 40] {
                t = t + t;
            }
            list.write(i + t, i.cast::<f64>());
            i += 1;
        }
        list.stack()
    }
    check(f, (40, 0, 1), &(0..40).map(f64::from).collect::<Vec<_>>());
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

// Errors of lists.

/// Checks the message and the line of an error.
#[track_caller]
fn refused(error: &anabranch::Diagnostic, message: &str, line: &str) {
    assert_eq!(error.message, message);
    assert!(error.to_string().contains(line), "{error}");
}

#[test]
fn an_index_out_of_range_names_index_and_length() {
    #[graph]
    fn f(x: S, i: Tensor<i32>) -> S {
        List::unstack(x).read(i) // here
    }
    let message = |i: i32| format!("list_read: index {i} is out of bounds for a list of 2 elements");
    refused(&error_of(f, ([1.0, 2.0], 2)), &message(2), "read(i) // here");
    refused(&error_of(f, ([1.0, 2.0], -1)), &message(-1), "read(i) // here");
    check(f, ([1.0, 2.0], 1), &[2.0]);
}

#[test]
fn a_second_write_is_refused() {
    #[graph]
    fn f(x: S, i: Tensor<i32>) -> S {
        let mut list = List::with_len(3, ());
        list.write(1, x);
        list.write(i, x); // again
        list.stack()
    }
    refused(&error_of(f, (1.0, 1)), "list_write: element 1 of a list of 3 is already written", "// again");
    refused(&error_of(f, (1.0, 3)), "list_write: index 3 is out of bounds for a list of 3 elements", "// again");
    check(f, (1.0, 2), &[0.0, 1.0, 1.0]);

    #[graph]
    fn twice(x: S) -> S {
        let mut list = List::with_len(3, ());
        list.scatter(tensor([0, 2, 0]), x);
        list.stack()
    }
    let error = error_of(twice, [1.0, 2.0, 3.0]);
    refused(&error, "list_scatter: element 0 of a list of 3 is already written", "tensor([0, 2, 0])");
}

#[test]
fn an_empty_list_has_nothing_to_pop() {
    #[graph]
    fn f(n: Tensor<i32>) -> S {
        let mut list = List::with_len(n, ());
        list.pop()
    }
    refused(&error_of(f, 0), "list_pop: the list is empty", "list.pop()");
    refused(&error_of(f, -2), "list_new: the length -2 of a list is negative", "with_len");
    check(f, 1, &[0.0]);
}

#[test]
fn an_element_of_another_shape_is_refused_while_tracing_or_at_run_time() {
    #[graph]
    fn known(x: S) -> S {
        let mut list = List::new([3]);
        list.push(x);
        list.stack()
    }
    refused(&error_of(known, [1.0, 2.0]), "list_push: expected f64[3], but got f64[2]", "list.push(x)");

    #[graph]
    fn of_the_data(x: S, parts: Tensor<i32>) -> S {
        let mut list = List::new([2]);
        list.push(x.slice(0, 0, 2));
        list.push(List::split(x, parts).read(0)); // of any extent
        list.stack()
    }
    check(of_the_data, ([1.0, 2.0, 3.0], [2, 1]), &[1.0, 2.0, 1.0, 2.0]);
    let error = error_of(of_the_data, ([1.0, 2.0, 3.0], [1, 2]));
    refused(&error, "list_push: element 1 is f64[1], but the list has elements of type f64[2]", "// of any extent");

    #[graph]
    fn stacked(x: S, parts: Tensor<i32>) -> S {
        List::split(x, parts).stack()
    }
    check(stacked, ([1.0, 2.0], [1, 1]), &[1.0, 2.0]);
    let error = error_of(stacked, ([1.0, 2.0, 3.0], [1, 2]));
    refused(&error, "list_stack: element 1 is f64[2], but element 0 is f64[1]", "stack()");
    let error = error_of(stacked, ([1.0, 2.0, 3.0], [1, 1]));
    refused(&error, "list_split: the parts sum to 2, but the axis has extent 3", "split(x, parts)");
}

#[test]
fn a_length_that_was_promised_is_checked() {
    #[graph]
    fn f(n: Tensor<i32>) -> S {
        List::with_len(n, [2]).stack_exact(2).reshape([4])
    }
    check(f, 2, &[0.0; 4]);
    refused(&error_of(f, 3), "list_stack: the length is 3, not 2", "stack_exact(2)");
}

// Gradients.

#[test]
fn reads_of_one_element_sum_their_gradients() {
    #[graph]
    fn f(x: S) -> S {
        let rows = List::unstack(x);
        let weighted = rows.read(0) * tensor([2.0, 3.0]) + rows.read(0) * tensor([-1.5, 1.5]);
        gradients(weighted.sum(), x)
    }
    check(f, [[1.0, 2.0], [3.0, 4.0]], &[0.5, 4.5, 0.0, 0.0]);
}

#[test]
fn all_ways_to_read_a_list_sum_their_gradients() {
    #[graph]
    fn f(x: S, y: S) -> (S, S) {
        let mut list = List::with_len(2, [2]);
        list.write(0, x);
        list.write(1, y);
        let stacked = list.stack() * tensor([[20.0, 30.0], [40.0, 50.0]]);
        let joined = list.concat() * tensor([1.0, 3.0, 4.0, 4.0]);
        let loss = stacked.sum() + joined.sum() + (list.read(0) * tensor([0.5, 1.5])).sum();
        gradients(loss, (x, y))
    }
    check(f, ([1.0, 2.0], [3.0, 4.0]), &[21.5, 34.5, 44.0, 54.0]);
}

#[test]
fn elements_not_read_and_not_written_have_zero_gradients() {
    #[graph]
    fn f(x: S, y: S) -> (S, S, S) {
        let mut list = List::with_len(3, ());
        list.write(2, x);
        list.write(0, y);
        let loss = list.read(2) * 3.0 + list.read(1) * 5.0;
        let (dx, dy) = gradients(loss, (x, y));
        (loss, dx, dy)
    }
    check(f, (2.0, 4.0), &[6.0, 3.0, 0.0]);
}

#[test]
fn a_list_of_its_own_gradient() {
    #[graph]
    fn f(x: S) -> S {
        let list = List::unstack(x);
        let loss = list.read(0) * list.read(1);
        gradients(loss, list).stack()
    }
    check(f, [2.0, 3.0, 4.0], &[3.0, 2.0, 0.0]);
}

#[test]
fn a_second_gradient_of_a_list_does_not_add_to_the_first() {
    #[graph]
    fn f(x: S) -> (S, S, S) {
        let list = List::unstack(x);
        let y = list.read(0) * list.read(0);
        let a = gradients(y, x);
        let b = gradients(y, x);
        (a, b, gradients(a.sum(), x))
    }
    check(f, [3.0, 1.0], &[6.0, 0.0, 6.0, 0.0, 2.0, 0.0]);
}

/// `sum(w[i] * x[i]^2)` in a loop over the elements of a captured list.
#[graph]
fn weighted_squares(x: S, w: S, n: Tensor<i32>) -> S {
    let (xs, ws) = (List::unstack(x), List::unstack(w));
    let mut sum = scalar(0.0);
    let mut i = scalar(0);
    while i < n {
        sum += xs.read(i) * xs.read(i) * ws.read(i);
        i += 1;
    }
    sum
}

#[test]
fn a_captured_list_gets_its_gradient_from_every_trip() {
    #[graph]
    fn f(x: S, w: S, n: Tensor<i32>) -> (S, S, S, S) {
        let y = weighted_squares(x, w, n);
        let (dx, dw) = gradients(y, (x, w));
        (y, dx, dw, gradients((dx * dx).sum(), x))
    }
    let (x, w) = ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]);
    // dx = 2 w x, and of sum(dx^2) it is 8 w^2 x.
    check(f, (x, w, 3), &[78.0, 8.0, 20.0, 36.0, 1.0, 4.0, 9.0, 128.0, 400.0, 864.0]);
    check(f, (x, w, 1), &[4.0, 8.0, 0.0, 0.0, 1.0, 0.0, 0.0, 128.0, 0.0, 0.0]);
    check(f, (x, w, 0), &[0.0; 10]);
}

#[test]
fn a_recurrence_through_a_list_has_its_gradients() {
    #[graph]
    fn f(x: S, w: S, n: Tensor<i32>) -> (S, S, S, S) {
        let mut list = List::new(());
        list.push(x);
        let mut i = scalar(0);
        while i < n {
            list.push(list.read(i) * w);
            i += 1;
        }
        let last = list.pop();
        let loss = last + list.stack().sum();
        let (dx, dw) = gradients(loss, (x, w));
        (loss, dx, dw, gradients(dw, w))
    }
    // x (1 + w + .. + w^n)
    check(f, (2.0, 3.0, 3), &[80.0, 40.0, 68.0, 40.0]);
    check(f, (2.0, 3.0, 1), &[8.0, 4.0, 2.0, 0.0]);
    check(f, (2.0, 3.0, 0), &[2.0, 1.0, 0.0, 0.0]);
}

#[test]
fn a_list_through_branches_has_its_gradients() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, S, S) {
        let given = List::unstack(x);
        let mut list = List::new(());
        list.push(given.read(0));
        let mut i = scalar(0);
        while i < n {
            if i % 2 == 0 {
                list.push(list.read(i / 2) * given.read(1));
            } else {
                let top = list.pop();
                list.push(top * 2.0);
            }
            i += 1;
        }
        let loss = list.stack().sum();
        let dx = gradients(loss, x);
        (loss, dx, gradients(dx.sum(), x))
    }
    // n = 1: a + ab; 2: a + 2ab; 3: a + 2ab + 2ab^2; 4: a + 2ab + 4ab^2.
    check(f, ([3.0, 5.0, 7.0], 1), &[18.0, 6.0, 3.0, 0.0, 1.0, 1.0, 0.0]);
    check(f, ([3.0, 5.0, 7.0], 2), &[33.0, 11.0, 6.0, 0.0, 2.0, 2.0, 0.0]);
    check(f, ([3.0, 5.0, 7.0], 4), &[333.0, 111.0, 126.0, 0.0, 42.0, 66.0, 0.0]);
    check(f, ([3.0, 5.0, 7.0], 0), &[3.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn nested_loops_read_one_list() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, S, S) {
        let xs = List::unstack(x);
        let mut sum = scalar(0.0);
        let mut i = scalar(0);
        while i < n {
            let mut j = scalar(0);
            while j <= i {
                if i != j {
                    sum += xs.read(i) * xs.read(j);
                }
                j += 1;
            }
            i += 1;
        }
        let dx = gradients(sum, x);
        (sum, dx, gradients((dx * tensor([1.0, 10.0, 100.0])).sum(), x))
    }
    // The sum over all pairs.
    check(f, ([2.0, 3.0, 5.0], 3), &[31.0, 8.0, 7.0, 5.0, 110.0, 101.0, 11.0]);
    check(f, ([2.0, 3.0, 5.0], 1), &[0.0; 7]);
}

#[test]
fn a_list_replaced_in_a_loop_has_its_gradients() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, S) {
        let mut list = List::unstack(x);
        let mut i = scalar(0);
        while i < n {
            let mut next = List::new(());
            next.push(list.read(0) * list.read(1));
            next.push(list.read(1) * 2.0);
            list = next;
            i += 1;
        }
        let loss = list.read(0);
        (loss, gradients(loss, x))
    }
    // a b, then 2 a b^2.
    check(f, ([3.0, 5.0, 7.0], 0), &[3.0, 1.0, 0.0, 0.0]);
    check(f, ([3.0, 5.0, 7.0], 1), &[15.0, 5.0, 3.0, 0.0]);
    check(f, ([3.0, 5.0, 7.0], 2), &[150.0, 50.0, 60.0, 0.0]);
}

#[test]
fn gradients_of_parts_and_of_several_elements() {
    #[graph]
    fn f(x: S, parts: Tensor<i32>) -> (S, S) {
        let list = List::split(x, parts);
        let loss = (list.concat() * tensor([1.0, 2.0, 3.0, 4.0])).sum() + (list.read(1) * list.read(1)).sum();
        let dx = gradients(loss, x);
        (dx, gradients(dx.sum(), x))
    }
    check(f, ([1.0, 2.0, 3.0, 4.0], [1, 2, 1]), &[1.0, 6.0, 9.0, 4.0, 0.0, 2.0, 2.0, 0.0]);

    #[graph]
    fn g(x: S, at: Tensor<i32>) -> (S, S) {
        let mut list = List::with_len(4, ());
        list.scatter(at, x);
        let chosen = list.gather(tensor([3, 1, 3]));
        let dx = gradients((chosen * chosen * tensor([1.0, 2.0, 3.0])).sum(), x);
        (dx, gradients(dx.sum(), x))
    }
    check(g, ([5.0, 7.0], [3, 0]), &[40.0, 0.0, 8.0, 0.0]);
    check(g, ([5.0, 7.0], [1, 3]), &[20.0, 56.0, 4.0, 8.0]);
}

#[test]
fn a_for_goes_over_the_elements_of_a_list() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, S) {
        let (mut list, mut y) = (List::new(()), x);
        for _ in range(n) {
            list.push(y);
            y *= x;
        }
        let mut sum = scalar(0.0);
        for (i, y) in [10.0, 1.0].into_iter().zip([list, list]) {
            for y in y {
                if y > 5.0 {
                    break;
                }
                sum += i * y;
            }
        }
        (sum, gradients(sum, x))
    }
    check(f, (2.0, 4), &[11.0 * 6.0, 11.0 * 5.0]);
    check(f, (2.0, 0), &[0.0, 0.0]);
}

#[test]
fn a_list_is_not_printed() {
    #[graph]
    fn f(x: S) -> S {
        let list = List::unstack(x);
        println!("{list:?}");
        list.stack()
    }
    refused(&error_of(f, [1.0]), "a list cannot be printed", "a `List` is a symbol");
}

#[test]
fn an_argument_may_change_another_field_than_it_is_pushed_to() {
    #[derive(Clone, Carry)]
    struct UndoStack {
        items: List<f64>,
        left: Tensor<i32>,
        inner: Inner,
    }
    #[derive(Clone, Carry)]
    struct Inner {
        items: List<f64>,
        sum: S,
    }
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, Tensor<i32>) {
        let mut s = UndoStack { items: List::new(()), left: n, inner: Inner { items: List::new(()), sum: x } };
        s.items.push(x + 1.0);
        s.inner.items.push(x);
        for _ in 0..3 {
            s.items.push(if s.left > 0 {
                s.left -= 1;
                s.items.read(0)
            } else {
                x
            });
            s.inner.items.push(if s.left > 0 {
                s.inner.sum += 1.0;
                s.inner.items.read(0) + s.items.read(1)
            } else {
                s.inner.sum
            });
        }
        (s.items.stack().sum() + 100.0 * s.inner.items.stack().sum(), s.left)
    }
    // Items 4, 3, 3, 3; inner ones 3, 3, 3, 3.
    check(f, (3.0, 0), &[13.0 + 100.0 * 12.0, 0.0]);
    // Items 4, 4, 4, 3; inner ones 3, 3 + 4, 4, 4.
    check(f, (3.0, 2), &[15.0 + 100.0 * 18.0, 0.0]);
}

/// For host numbers, Rust evaluates the right side first.
#[test]
fn the_right_side_of_a_compound_assignment_may_read_the_place() {
    macro_rules! function {
        ($(#[$attribute:meta])* $name:ident, $of:ty, $int:ty, $one:expr) => {
            $(#[$attribute])*
            fn $name(i: $int, a: $of, b: $of) -> ($of, $of) {
                fn first(v: &mut [$of]) -> $of {
                    v[0] += 1.0;
                    v[1]
                }
                let mut v = vec![a, b];
                v[0] += if i == 0 { v[1] } else { v[0] };
                v[1] -= v[0];
                let mut k = 0;
                v[k] += {
                    k += 1;
                    if i > 0 { v[k] } else { v[0] }
                };
                v[1 - k] = first(&mut v);
                *v.last_mut().unwrap() *= if i == 0 { v[0] } else { v[1] };
                let mut pairs = vec![(v[0], v[1]), (v[1], a)];
                pairs[0].0 += if i == 1 {
                    pairs[1].1 += 1.0;
                    pairs[1].1
                } else {
                    pairs[0].1
                };
                let r = &mut pairs[0].0;
                *r += if i == 0 { *r * 2.0 } else { *r };
                let mut boxed = Box::new(*r);
                *boxed += if i == 0 { $one } else { *boxed };
                (*boxed, pairs[1].1 + v[0] - v[1])
            }
        };
    }
    function!(
        #[graph]
        staged,
        S,
        Tensor<i32>,
        scalar(1.0)
    );
    function!(plain, f64, i32, 1.0);
    let cases = [0, 1, 2].map(|i| {
        let (first, second) = plain(i, 0.5, 2.25);
        ((i, 0.5, 2.25), [first, second])
    });
    check_each(staged, cases);
}

/// The receiver of a method is borrowed before the arguments are evaluated, and used after them.
#[test]
fn an_argument_may_look_at_what_it_is_pushed_to() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, S) {
        let mut list = List::new(());
        let mut i = scalar(0);
        while i < n {
            list.push(if i == 0 { x } else { list.read(0) * 2.0 });
            list.push(list.read(i) + if i > 1 { list.read(1) } else { x });
            i += 1;
        }
        let sum = list.stack().sum();
        (sum, gradients(sum, x))
    }
    check(f, (3.0, 0), &[0.0, 0.0]);
    // 3, 6, and 6, 9 after them, and then 6 and 6 + 6.
    check(f, (3.0, 3), &[3.0 + 6.0 + 6.0 + 9.0 + 6.0 + 12.0, 14.0]);
}
