//! Lists in branches and loops, and functions that are built on lists: scans and maps.

use super::engine::{ControlCase, check_corpus, fails, gives};
use anabranch::prelude::*;

type S = Tensor<f64>;
type I = Tensor<i32>;
type B = Tensor<bool>;

#[graph]
fn one_of_three_written(x: S) -> S {
    let mut list = List::with_len(3, [2]);
    list.write(1, x);
    list.stack()
}

#[graph]
fn written_twice(x: S, i: I) -> S {
    let mut list = List::with_len(3, ());
    list.write(1, x);
    list.write(i, x * 2.0);
    list.stack()
}

/// Reads the same elements in three ways, whose gradients add up.
fn stacked_read_and_joined(a: S, b: S) -> S {
    let mut list = List::with_len(2, [2]);
    list.write(0, a);
    list.write(1, b);
    let stacked = list.stack() * tensor([[2.0, 3.0], [4.0, 5.0]]);
    let read = list.read(0) * tensor([-0.5, 1.5]);
    let joined = list.concat() * tensor([20.0, 30.0, 40.0, 50.0]);
    stacked.sum() + read.sum() + joined.sum()
}

fn one_row_twice(x: S) -> S {
    let list = List::unstack(x);
    (list.read(0) * tensor([2.0, 3.0])).sum() + (list.read(0) * tensor([-1.5, 1.5])).sum()
}

fn weights_of_one_element(x: S) -> S {
    let mut list = List::new(());
    list.push(x);
    [3.0, 4.0, 5.0].iter().fold(scalar(0.0), |sum, &w| sum + list.read(0) * w)
}

fn square_through_a_list(x: S) -> S {
    let mut list = List::new(());
    list.push(x * x);
    list.read(0)
}

#[graph]
fn pushed_and_popped(n: I) -> I {
    let (mut list, mut i) = (List::<i32>::new(()), scalar(0));
    while i < n {
        list.push(i);
        i += 1;
    }
    let mut sum = scalar(0);
    while list.len() > 0 {
        // Not a plain sum, so that the order matters.
        sum = sum * 2 + list.pop();
    }
    sum
}

/// After a fork, changes to one list do not affect the other.
#[graph]
fn forked(x: S, p: B, n: I) -> (S, S) {
    let mut a = List::new(());
    a.push(x);
    let (mut b, mut i) = (a, scalar(0));
    while i < n {
        if p {
            b.push(a.read(0) * 2.0);
        } else {
            b.push(b.read(i) * 3.0);
        }
        i += 1;
    }
    a.push(x * 10.0);
    (a.stack(), b.stack())
}

#[graph]
fn rows_read_in_an_order(x: S, order: I) -> S {
    let rows = List::unstack(x);
    let (mut out, mut i) = (List::new([2]), scalar(0));
    while i < 3 {
        let row = rows.read(order.index(i, 0));
        if row.sum() > 4.0 {
            out.push(row * row);
        }
        i += 1;
    }
    out.stack().sum_axis(0)
}

fn two_gradients(x: S) -> (S, S) {
    let y = map(x, |x| x * x * x).sum();
    (gradients(y, x), gradients(y, x))
}

fn roots(xs: S) -> S {
    map(xs, |x| cond(x.less(1e-3), || scalar(1e-3), || x.sqrt()))
}

fn doubled_or_ones(p: B, z: S) -> S {
    cond(p, || map(z, |z| 2.0 * z), || map(z, |_| scalar(1.0)))
}

/// Computes `x_ij^(i+1)` by a loop in a map in a map.
fn nested_map(x: S) -> S {
    let power = |x: S, n: I| while_loop((x, n), |(_, n)| n.greater(0), |(y, n)| (y * x, n - 1)).0;
    map((x, iota::<i32>(2)), |(row, n)| map(row, |x| power(x, n)))
}

fn captured_by_a_map(x: S, w: S) -> S {
    map(x, |x| x * w * x)
}

fn running_products(xs: S) -> (S, S) {
    scan(scalar(1.0), xs, |p, x| (p * x, p * x))
}

fn running_products_from_the_right(xs: S) -> (S, S) {
    scan_reverse(scalar(1.0), xs, |p, x| (p * x, p * x))
}

/// Without inputs: powers of `x`.
fn powers(x: S) -> S {
    scan(scalar(1.0), iota::<i32>(4), |p, _: I| (p * x, p)).1
}

/// Without outputs: a fold.
fn without_outputs(xs: S) -> S {
    scan(scalar(0.0), xs, |sum, x| (sum * 2.0 + x, ())).0
}

fn scan_of_scans(xs: S) -> S {
    let inner = |row: S, start: S| scan(start, row, |a, x| (a * x, a + x));
    let (last, sums) = scan(scalar(1.0), xs, |a, row| inner(row, a));
    sums.sum() * last
}

fn cases() -> Vec<ControlCase> {
    vec![
        ControlCase::new("an element that nobody writes is zeros").at(
            one_of_three_written,
            [1.0, 2.0],
            gives(&[0.0, 0.0, 1.0, 2.0, 0.0, 0.0]).first(&[1.0, 1.0]),
        ),
        ControlCase::new("a second write is an error")
            .at(written_twice, (7.0, 2), gives(&[0.0, 7.0, 14.0]).first(&[3.0]))
            .at(written_twice, (7.0, 1), fails("written"))
            .at(written_twice, (7.0, 3), fails("3"))
            .at(written_twice, (7.0, -1), fails("-1")),
        ControlCase::new("an element stacked, read and joined").at(
            stacked_read_and_joined,
            ([-1.0, 1.0], [-10.0, 10.0]),
            gives(&[1.0 + 10.0 + 2.0 + 10.0 + 100.0]).first(&[21.5, 34.5, 44.0, 55.0]),
        ),
        ControlCase::new("a row read twice").at(
            one_row_twice,
            [[1.0, 2.0], [3.0, 4.0]],
            gives(&[8.0 + 1.5]).first(&[0.5, 4.5, 0.0, 0.0]),
        ),
        ControlCase::new("weights of one element").at(weights_of_one_element, 2.0, gives(&[24.0]).first(&[12.0])),
        ControlCase::new("second order through a list").at(
            square_through_a_list,
            4.0,
            gives(&[16.0]).first(&[8.0]).second(&[2.0]),
        ),
        ControlCase::new("pushed by one loop and popped by another").at(pushed_and_popped, 4, gives(&[34.0])).at(
            pushed_and_popped,
            0,
            gives(&[0.0]),
        ),
        ControlCase::new("a list forked before a loop")
            .at(forked, (2.0, true, 2), gives(&[2.0, 20.0, 2.0, 4.0, 4.0]).first(&[11.0 + 5.0]))
            .at(forked, (2.0, false, 2), gives(&[2.0, 20.0, 2.0, 6.0, 18.0]).first(&[11.0 + 13.0]))
            .at(forked, (2.0, true, 0), gives(&[2.0, 20.0, 2.0]).first(&[12.0])),
        ControlCase::new("rows read in an order, and one of them twice").at(
            rows_read_in_an_order,
            ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [1, 0, 1]),
            gives(&[18.0, 32.0]).first(&[0.0, 0.0, 12.0, 16.0, 0.0, 0.0]).second(&[0.0, 0.0, 4.0, 4.0, 0.0, 0.0]),
        ),
        ControlCase::new("two gradients of one list do not add up").at(
            two_gradients,
            [2.0, 3.0],
            gives(&[12.0, 27.0, 12.0, 27.0]).first(&[24.0, 36.0]).second(&[12.0, 12.0]),
        ),
        ControlCase::new("a map of branches, none of which makes a NaN of the other")
            .at(roots, [0.0; 3], gives(&[1e-3; 3]).first(&[0.0; 3]).second(&[0.0; 3]))
            .at(
                roots,
                [4.0, 0.0, 16.0],
                gives(&[2.0, 1e-3, 4.0]).first(&[0.25, 0.0, 0.125]).second(&[-1.0 / 32.0, 0.0, -1.0 / 256.0]),
            ),
        ControlCase::new("a map in a branch")
            .at(doubled_or_ones, (true, [1.0, 2.0, 3.0]), gives(&[2.0, 4.0, 6.0]).first(&[2.0; 3]))
            .at(doubled_or_ones, (false, [1.0, 2.0, 3.0]), gives(&[1.0; 3]).first(&[0.0; 3])),
        ControlCase::new("a loop in a map in a map").at(
            nested_map,
            [[2.0, 3.0], [4.0, 5.0]],
            gives(&[2.0, 3.0, 16.0, 25.0]).first(&[1.0, 1.0, 8.0, 10.0]).second(&[0.0, 0.0, 2.0, 2.0]),
        ),
        ControlCase::new("a capture of a map sums its gradient").at(
            captured_by_a_map,
            ([1.0, 2.0, 3.0], 2.0),
            gives(&[2.0, 8.0, 18.0]).first(&[4.0, 8.0, 12.0, 14.0]).second(&[6.0, 8.0, 10.0, 12.0]),
        ),
        ControlCase::new("a scan").at(
            running_products,
            [2.0, 3.0, 4.0],
            gives(&[24.0, 2.0, 6.0, 24.0]).first(&[1.0 + 3.0 + 24.0, 2.0 + 16.0, 12.0]),
        ),
        ControlCase::new("a scan from the right").at(
            running_products_from_the_right,
            [2.0, 3.0, 4.0],
            gives(&[24.0, 24.0, 12.0, 4.0]).first(&[24.0, 4.0 + 16.0, 1.0 + 3.0 + 12.0]),
        ),
        ControlCase::new("a scan without inputs").at(
            powers,
            3.0,
            gives(&[1.0, 3.0, 9.0, 27.0]).first(&[1.0 + 6.0 + 27.0]).second(&[2.0 + 18.0]),
        ),
        ControlCase::new("a scan without outputs").at(
            without_outputs,
            [1.0, 2.0, 3.0],
            gives(&[11.0]).first(&[4.0, 2.0, 1.0]),
        ),
        // ((1 + a) + (a + b) + (a b + c) + (a b c + d)) a b c d
        ControlCase::new("a scan in a scan").at(
            scan_of_scans,
            [[2.0, 3.0], [4.0, 5.0]],
            gives(&[47.0 * 120.0]).first(&[4860.0, 3200.0, 2250.0, 1248.0]),
        ),
    ]
}

#[test]
fn lists_are_right_on_every_engine() {
    check_corpus("lists", &cases(), 19);
}
