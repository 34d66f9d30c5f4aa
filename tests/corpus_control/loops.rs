//! Loops: their values, their gradients, and their trip counts, which are zero about as often as
//! they are positive.

use super::engine::{ControlCase, check_all, check_corpus, fails, gives};
use anabranch::prelude::*;

type S = Tensor<f64>;
type I = Tensor<i32>;

#[graph]
fn count_to(n: I) -> I {
    let mut i = scalar(0);
    while i < n {
        i += 1;
    }
    i
}

#[graph]
fn sum_below(n: I) -> I {
    let (mut i, mut sum) = (scalar(0), scalar(0));
    while i < n {
        (sum, i) = (sum + i, i + 1);
    }
    sum
}

#[graph]
fn four_variables() -> I {
    let (mut i, mut m, mut c, mut o) = (scalar(0), scalar(100), scalar(1), scalar(0));
    while i < 100 {
        (i, m, c, o) = (i + 1, m, c, o + m + c);
    }
    o
}

#[graph]
fn a_constant_is_the_result(n: I, x: S) -> (S, I) {
    let (mut v, mut i) = (x, scalar(0));
    while i < n {
        v = scalar(12.0);
        i += 1;
    }
    (v, i)
}

type Nested = ((I, [I; 1]), (I, I), I);

fn nested_structure() -> Nested {
    let init = ((scalar(0), [scalar(1)]), (scalar(2), scalar(3)), scalar(4));
    while_loop(init, |((a, _), _, _)| a.less(100), |((a, b), (c, d), e)| ((a + 1, b), (c + 1, d), e + 2))
}

#[graph]
fn squares(x: S) -> S {
    let mut v = x;
    while v < 100.0 {
        v *= v;
    }
    v
}

fn square_of_squares(x: S) -> S {
    let r = squares(x);
    r * r
}

fn sum_of_squares(x: S) -> S {
    let r = squares(x);
    r + r
}

#[graph]
fn powers(x: S, a: S) -> S {
    let mut v = x;
    while v < 100.0 {
        v *= a;
    }
    v
}

#[graph]
fn powers_of_a_variable(x: S, a: S) -> S {
    let (mut v, mut b) = (x, a);
    while v < 100.0 {
        (v, b) = (v * b, b);
    }
    v
}

#[graph]
fn read_by_the_condition_only(x: S, y: S) -> S {
    let mut v = x;
    while v + y < 9.0 {
        v *= 3.0;
    }
    v
}

#[graph]
fn read_by_the_body(x: S, y: S) -> S {
    let mut v = x;
    while v < 8.0 {
        v *= y;
    }
    v
}

#[graph]
fn never_entered(x: S, a: S) -> S {
    let mut r = x;
    while scalar(1.0) < 0.0 {
        r *= a;
    }
    r + x * x
}

#[graph]
fn as_often_as(n: I, x: S, a: S) -> S {
    let (mut v, mut i) = (x, scalar(0));
    while i < n {
        v = v * a + x;
        i += 1;
    }
    v
}

#[graph]
fn squared_twice(x: S) -> S {
    let (mut v, mut i) = (x, scalar(0));
    while i < 2 {
        v *= v;
        i += 1;
    }
    v
}

#[graph]
fn squares_below_eight(x: S) -> S {
    let mut v = x;
    while v < 8.0 {
        v *= v;
    }
    v
}

#[graph]
fn exchanged(n: I, x: S, y: S) -> S {
    let (mut x, mut y, mut i) = (x, y, scalar(0));
    while i < n {
        (x, y) = (y, x);
        i += 1;
    }
    x
}

#[graph]
fn one_tensor_twice(x: S) -> S {
    let (mut a, mut b, mut i) = (x, x, scalar(0));
    while i < 2 {
        a = a * b;
        b += 1.0;
        i += 1;
    }
    a
}

#[graph]
fn second_of_two(x: S) -> S {
    let (mut n, mut v) = (scalar(0.0), x);
    while n < 3.0 {
        n += 1.0;
        v = v + n;
    }
    v
}

/// The gradient of the result for `x` is zero after one iteration, and nonzero after two.
#[graph]
fn late_tangent(n: I, x: S) -> S {
    let (mut u, mut v, mut w, mut i) = (x, scalar(1.0), scalar(1.0), scalar(0));
    while i < n {
        (u, v, w) = (u * 2.0, v + u, w + v);
        i += 1;
    }
    w
}

#[graph]
fn an_integer_beside(x: S) -> (S, I) {
    let (mut v, mut i) = (x, scalar(0));
    while i < 10 {
        v *= 2.0;
        i += 1;
    }
    (v, i)
}

/// A path through an integer has no gradient. A parallel path has one.
#[graph]
fn through_an_integer(n: I, q: S) -> S {
    let (mut best, mut i) = (scalar(0), scalar(0));
    while i < n {
        best = q.argmax(0).cast::<i32>();
        i += 1;
    }
    best.cast::<f64>() + if n > 0 { q.sum() } else { scalar(0.0) }
}

fn doubled(x: S) -> S {
    while_loop((x, scalar(0)), |(_, i)| i.less(5), |(v, i)| (v * 2.0, i + 1)).0
}

fn in_series(x: S) -> S {
    doubled(doubled(x))
}

fn side_by_side(x: S) -> S {
    doubled(x) + doubled(x)
}

#[graph]
fn without_its_gradient(x: S) -> S {
    squares(x).stop_gradient() + x
}

#[graph]
fn sums_of_squares(x: S, y: S) -> (S, S) {
    let (mut x, mut y) = (x, y);
    while x < 100.0 {
        (x, y) = (x * x + y * y, y * y);
    }
    (x, y)
}

fn first_sum(x: S, y: S) -> S {
    sums_of_squares(x, y).0
}

fn second_sum(x: S, y: S) -> S {
    sums_of_squares(x, y).1
}

fn stopped_behind(x: S, y: S) -> S {
    let (x, y) = sums_of_squares(x, y);
    (x + y).stop_gradient()
}

#[graph]
fn stopped_inside(x: S, y: S) -> S {
    let (mut x, mut y) = (x, y);
    while x.sum() < 100.0 {
        let square = (y * y).stop_gradient();
        (x, y) = (x * x + square, square);
    }
    x
}

#[graph]
fn rows_added(x: S, n: I) -> S {
    let (mut v, mut i) = (x, scalar(0));
    while i < n {
        // The gradient of `sum_axis` is broadcast. Each iteration adds the gradient of `row` to it.
        v = v + v.row(i) * 0.5;
        i += 1;
    }
    v.sum_axis(0)
}

#[graph]
fn products(h: S, w: S) -> S {
    let (mut h, mut t) = (h, scalar(0));
    while t < 2 {
        h = h.matmul(w);
        t += 1;
    }
    h
}

#[graph]
fn joined_in_a_loop(h: S, x: S) -> S {
    let (mut sum, mut i) = (scalar(0.0), scalar(0));
    while i < 2 {
        sum += concat(&[h, x], 1).sum();
        i += 1;
    }
    sum
}

fn no_state(x: S) -> S {
    while_loop((), |()| scalar(false), |()| ());
    x
}

#[graph]
fn checks_only(x: S, n: I) -> S {
    let mut i = scalar(0);
    while i < n {
        assert!(i < 3, "three iterations are enough");
        i += 1;
    }
    x
}

#[graph]
fn masked(x: S, n: I) -> S {
    let key = anabranch::random::Key::new(7);
    let (mut v, mut i) = (x, scalar(0));
    while i < n {
        let mask = key.fold_in(i).bernoulli(0.7, [4]);
        v = mask.select(v, v * 0.5);
        i += 1;
    }
    v
}

#[graph]
fn condition_is_evaluated_once_more(n: I) -> I {
    let mut i = scalar(0);
    while {
        assert!(i <= 3, "evaluated with 4");
        i < n
    } {
        i += 1;
    }
    i
}

#[graph]
fn bounded_by_and(limit: I, x: S) -> S {
    let (mut v, mut i) = (x, scalar(0));
    while v > -1.0 && i < limit {
        v += 1.0;
        i += 1;
    }
    v
}

fn fold_doubled(xs: S, init: S) -> S {
    fold_left(init, xs, |a, x| (a + x) * 2.0)
}

fn fold_doubled_from_the_right(xs: S, init: S) -> S {
    fold_right(init, xs, |a, x| (a + x) * 2.0)
}

fn invariants(x: S) -> (S, S, S) {
    let init = (scalar(0.0), scalar(1.0), x);
    while_loop(init, |(i, _, _)| i.less(5.0), |(i, one, x)| (i + one, one, x))
}

fn cases() -> Vec<ControlCase> {
    let none: [f64; 0] = [];
    let six = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    // Many times the iterations that any engine has at once.
    let many = if std::env::var_os("ANABRANCH_SLOW").is_some() { 10_000 } else { 1000 };
    vec![
        ControlCase::new("counting").at(count_to, many, gives(&[f64::from(many)])).at(count_to, 0, gives(&[0.0])).at(
            count_to,
            -1,
            gives(&[0.0]),
        ),
        ControlCase::new("a sum of integers").at(sum_below, 10, gives(&[45.0])).at(sum_below, 0, gives(&[0.0])),
        ControlCase::new("two variables that do not change").at(four_variables, (), gives(&[10_100.0])),
        ControlCase::new("a body that forgets its variable")
            .at(a_constant_is_the_result, (10, 5.0), gives(&[12.0, 10.0]).first(&[0.0]))
            .at(a_constant_is_the_result, (0, 5.0), gives(&[5.0, 0.0]).first(&[1.0])),
        ControlCase::new("a state of tuples and arrays").at(
            nested_structure,
            (),
            gives(&[100.0, 1.0, 102.0, 3.0, 204.0]),
        ),
        ControlCase::new("squaring until a bound")
            .at(squares, 2.0, gives(&[256.0]).first(&[1024.0]).second(&[3584.0]))
            .at(squares, 200.0, gives(&[200.0]).first(&[1.0]).second(&[0.0])),
        ControlCase::new("the square of a loop's result").at(
            square_of_squares,
            2.0,
            gives(&[65_536.0]).first(&[524_288.0]),
        ),
        ControlCase::new("a loop's result twice").at(sum_of_squares, 2.0, gives(&[512.0]).first(&[2048.0])),
        ControlCase::new("a captured factor sums its gradient over the trips").at(
            powers,
            (2.0, 3.0),
            gives(&[162.0]).first(&[81.0, 216.0]).second(&[108.0, 324.0]),
        ),
        ControlCase::new("a factor carried unchanged is as good as a captured one").at(
            powers_of_a_variable,
            (2.0, 3.0),
            gives(&[162.0]).first(&[81.0, 216.0]).second(&[108.0, 324.0]),
        ),
        ControlCase::new("what only the condition reads has no gradient").at(
            read_by_the_condition_only,
            (2.0, 1.0),
            gives(&[18.0]).first(&[9.0, 0.0]).second(&[0.0, 0.0]),
        ),
        ControlCase::new("what the body reads has one").at(
            read_by_the_body,
            (2.0, 3.0),
            gives(&[18.0]).first(&[9.0, 12.0]).second(&[6.0, 10.0]),
        ),
        ControlCase::new("a loop that is never entered").at(
            never_entered,
            ([1.0, 2.0], 5.0),
            gives(&[2.0, 6.0]).first(&[3.0, 5.0, 0.0]).second(&[2.0, 2.0, 0.0]),
        ),
        ControlCase::new("zero, one, two and many trips")
            .at(as_often_as, (0, 2.0, 3.0), gives(&[2.0]).first(&[1.0, 0.0]).second(&[0.0, 0.0]))
            .at(as_often_as, (1, 2.0, 3.0), gives(&[8.0]).first(&[4.0, 2.0]).second(&[1.0, 1.0]))
            .at(as_often_as, (2, 2.0, 3.0), gives(&[26.0]).first(&[13.0, 14.0]).second(&[7.0, 11.0]))
            .at(
                as_often_as,
                (65, 2.0, 1.0),
                gives(&[132.0]).first(&[66.0, 4290.0]).second(&[2145.0, 2145.0 + 183_040.0]),
            ),
        ControlCase::new("a number of trips that is known").at(
            squared_twice,
            2.0,
            gives(&[16.0]).first(&[32.0]).second(&[48.0]),
        ),
        ControlCase::new("second order").at(squares_below_eight, 2.0, gives(&[16.0]).first(&[32.0]).second(&[48.0])),
        ControlCase::new("exchanged variables")
            .at(exchanged, (3, 3.0, 5.0), gives(&[5.0]).first(&[0.0, 1.0]))
            .at(exchanged, (2, 3.0, 5.0), gives(&[3.0]).first(&[1.0, 0.0]))
            .at(exchanged, (0, 3.0, 5.0), gives(&[3.0]).first(&[1.0, 0.0])),
        // x * x * (x + 1)
        ControlCase::new("one tensor in two variables").at(
            one_tensor_twice,
            2.0,
            gives(&[12.0]).first(&[16.0]).second(&[14.0]),
        ),
        ControlCase::new("the second of two results").at(
            second_of_two,
            1.0,
            gives(&[7.0]).first(&[1.0]).second(&[0.0]),
        ),
        ControlCase::new("a tangent that is zero for some trips")
            .at(late_tangent, (1, 3.0), gives(&[2.0]).first(&[0.0]))
            .at(late_tangent, (2, 3.0), gives(&[6.0]).first(&[1.0]))
            .at(late_tangent, (4, 3.0), gives(&[38.0]).first(&[11.0])),
        ControlCase::new("an integer beside a float").at(
            an_integer_beside,
            1.0,
            gives(&[1024.0, 10.0]).first(&[1024.0]),
        ),
        ControlCase::new("a way through an integer")
            .at(through_an_integer, (0, [7.0, 8.0]), gives(&[0.0]).first(&[0.0, 0.0]))
            .at(through_an_integer, (1, [7.0, 8.0]), gives(&[16.0]).first(&[1.0, 1.0])),
        ControlCase::new("two loops in series").at(in_series, 1.0, gives(&[1024.0]).first(&[1024.0])),
        ControlCase::new("two loops side by side").at(side_by_side, 1.0, gives(&[64.0]).first(&[64.0])),
        ControlCase::new("a loop whose gradient is stopped").at(
            without_its_gradient,
            2.0,
            gives(&[258.0]).first(&[1.0]).second(&[0.0]).not_smooth(),
        ),
        // 3, 2 -> 13, 4 -> 185, 16: the first is (x^2 + y^2)^2 + y^4, the second y^4.
        ControlCase::new("the first of two results that depend on each other").at(
            first_sum,
            (3.0, 2.0),
            gives(&[185.0]).first(&[156.0, 136.0]).second(&[172.0, 180.0]),
        ),
        ControlCase::new("the second of two results that depend on each other").at(
            second_sum,
            (3.0, 2.0),
            gives(&[16.0]).first(&[0.0, 32.0]).second(&[0.0, 48.0]),
        ),
        ControlCase::new("both results").at(sums_of_squares, (3.0, 2.0), gives(&[185.0, 16.0]).first(&[156.0, 168.0])),
        ControlCase::new("both results, stopped behind the loop").at(
            stopped_behind,
            (3.0, 2.0),
            gives(&[201.0]).first(&[0.0, 0.0]).not_smooth(),
        ),
        ControlCase::new("a square stopped inside")
            .at(stopped_inside, (3.0, 2.0), gives(&[185.0]).first(&[156.0, 0.0]).not_smooth())
            .at(
                stopped_inside,
                ([3.0, 4.0], [2.0, 3.0]),
                gives(&[185.0, 706.0]).first(&[156.0, 400.0, 0.0, 0.0]).not_smooth(),
            ),
        ControlCase::new("rows that are added to all rows")
            .at(rows_added, ([[1.0, 2.0], [3.0, 4.0]], 0), gives(&[4.0, 6.0]).first(&[1.0; 4]))
            .at(rows_added, ([[1.0, 2.0], [3.0, 4.0]], 1), gives(&[5.0, 8.0]).first(&[2.0, 2.0, 1.0, 1.0]))
            .at(rows_added, ([[1.0, 2.0], [3.0, 4.0]], 2), gives(&[8.5, 13.0]).first(&[2.5, 2.5, 2.0, 2.0])),
        // dh = W W 1, dW = h' (W 1)' + (h W)' 1'
        ControlCase::new("products of matrices").at(
            products,
            ([[1.0, 1.0]], [[1.0, 2.0], [3.0, 4.0]]),
            gives(&[22.0, 32.0]).first(&[17.0, 37.0, 7.0, 11.0, 9.0, 13.0]),
        ),
        ControlCase::new("tensors joined in every trip").at(
            joined_in_a_loop,
            ([[1.0, 2.0]], [[3.0]]),
            gives(&[12.0]).first(&[2.0, 2.0, 2.0]),
        ),
        ControlCase::new("no state and a condition that is false").at(no_state, 1.0, gives(&[1.0]).first(&[1.0])),
        ControlCase::new("a body that only checks").at(checks_only, (1.0, 3), gives(&[1.0]).first(&[1.0])).at(
            checks_only,
            (1.0, 4),
            fails("three iterations are enough"),
        ),
        ControlCase::new("the condition runs once more than the body")
            .at(condition_is_evaluated_once_more, 3, gives(&[3.0]))
            .at(condition_is_evaluated_once_more, 4, fails("evaluated with 4")),
        ControlCase::new("a bound on the trips of an endless loop")
            .at(bounded_by_and, (3, 1.0), gives(&[4.0]).first(&[1.0]))
            .at(bounded_by_and, (0, 1.0), gives(&[1.0]).first(&[1.0])),
        ControlCase::new("a fold")
            .at(fold_doubled, (six, 0.0), gives(&[240.0]).first(&[64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 64.0]))
            .at(fold_doubled, (six, 10.0), gives(&[880.0]))
            .at(fold_doubled, ([2.0, 3.0, 4.0, 5.0, 6.0], 1.0), gives(&[208.0]))
            .at(fold_doubled, (none, 3.0), gives(&[3.0]).first(&[1.0])),
        ControlCase::new("a fold from the right")
            .at(
                fold_doubled_from_the_right,
                (six, 10.0),
                gives(&[1282.0]).first(&[2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0]),
            )
            .at(fold_doubled_from_the_right, ([1.0, 2.0, 3.0, 4.0, 5.0], 6.0), gives(&[450.0])),
        ControlCase::new("variables that come back as they were").at(
            invariants,
            0.0,
            gives(&[5.0, 1.0, 0.0]).first(&[1.0]),
        ),
    ]
}

#[test]
fn loops_are_right_on_every_engine() {
    check_corpus("loops", &cases(), 39);
}

/// The masks are not recorded: the slope of an element is its factor in the mask, if the gradient
/// uses the same masks.
#[test]
fn a_random_mask_is_the_same_backwards() {
    fn factors(x: S, n: I) -> (S, S) {
        let v = masked(x, n);
        (v / x, gradients(v.sum(), x))
    }
    let x = [1.0, -2.0, 3.0, 0.5];
    let (forward, backward) = eval_with(factors, (x, 5)).unwrap();
    assert_eq!(forward, backward);
    assert!(forward.as_slice().iter().any(|&f| f < 1.0), "{forward:?}");
    let both = [forward.as_slice(), backward.as_slice()].concat();
    check_all(&[ControlCase::new("masks").at(factors, (x, 5), gives(&both))], 1);
}
