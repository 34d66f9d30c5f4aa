//! Branches, of which exactly one runs.

use super::engine::{ControlCase, check_corpus, fails, gives};
use anabranch::prelude::*;

type S = Tensor<f64>;
type I = Tensor<i32>;
type B = Tensor<bool>;

#[graph]
fn up_or_down(p: B, x: S) -> S {
    if p { x + 1.0 } else { x - 1.0 }
}

#[graph]
fn up_twice(p: B, q: B, x: S) -> S {
    if p { if q { x + 2.0 } else { x - 1.0 } } else { x - 2.0 }
}

#[graph]
fn chain() -> I {
    let (mut alive, mut count) = (scalar(true), scalar(0));
    for i in 0..10 {
        if alive {
            alive = scalar(i < 3);
            count += 1;
        }
    }
    count
}

#[graph]
fn chosen_by_a_value(x: S, c: Tensor<f32>) -> S {
    if c < 2.0 { 42.0 * x } else { 3.0 * x }
}

#[graph]
fn gradient_inside(x: S, c: Tensor<f32>) -> S {
    let y = 7.0 * x;
    if c < 2.0 { gradients(y * y, x) } else { 3.0 * x }
}

#[graph]
fn product_or_constant(x: S, y: S, z: S, p: B) -> S {
    // Neither branch uses `z`.
    let _ = z;
    if p { 2.0 * x * y } else { scalar(2.0) }
}

#[graph]
fn itself_or_gathered(v: S, p: B) -> S {
    if p { v } else { v.take(tensor([1, 1]), 0) }
}

#[graph]
fn safe_root(x: S) -> S {
    if x < 1e-3 { scalar(1e-3) } else { x.sqrt() }
}

/// The branch guards the division. Inside it there is no other guard.
#[graph]
fn safe_quotient(a: I, b: I) -> I {
    if b == 0 { scalar(-1) } else { a / b }
}

#[graph]
fn only_what_is_taken_is_checked(p: B, x: I) -> I {
    if p {
        assert!(x > 0, "the first arm ran");
    } else {
        assert!(x < 0, "the second arm ran");
    }
    x
}

#[graph]
fn captured_and_changed_later(x: S, p: B) -> (S, S) {
    let kept = if p { x } else { x * 2.0 };
    let mut y = kept;
    // An update that seems possible in place must not affect the value of the branch.
    y = y.update_slice(tensor([100.0]), 0, 0);
    (kept, y)
}

fn twice_differentiated_alike(x: S, p: B) -> (S, S) {
    let y = cond(p, || x * x * x, || x * 5.0);
    (gradients(y, x), gradients(y, x))
}

#[graph]
fn gradient_of_one_arm_in_an_arm(x: S, p: B, q: B) -> S {
    if p {
        let y = if q { x * x } else { x * 3.0 };
        gradients(y, x) * x
    } else {
        x
    }
}

#[graph]
fn elementwise_condition(x: S) -> S {
    if tensor([true, false]) { x } else { x }
}

fn eight(i: I, x: S) -> S {
    switch(i, (0..8).map(|n| move || (0..n).fold(scalar(1.0), |y, _| y * x)).collect::<Vec<_>>())
}

fn pair_of_types(p: B, x: S, n: I) -> (S, I, [B; 1]) {
    cond(p, || (x * 2.0, n, [scalar(true)]), || (x, n * 3, [n.greater(4)]))
}

fn nothing(p: B, x: S) -> S {
    cond(p, || (), || ());
    x
}

fn cases() -> Vec<ControlCase> {
    vec![
        ControlCase::new("one more or one less").at(up_or_down, (true, 10.0), gives(&[11.0]).first(&[1.0])).at(
            up_or_down,
            (false, 10.0),
            gives(&[9.0]).first(&[1.0]),
        ),
        ControlCase::new("a branch in a branch")
            .at(up_twice, (true, true, 10.0), gives(&[12.0]).first(&[1.0]).second(&[0.0]))
            .at(up_twice, (true, false, 10.0), gives(&[9.0]))
            .at(up_twice, (false, true, 10.0), gives(&[8.0])),
        ControlCase::new("ten branches in a chain, alive for four").at(chain, (), gives(&[4.0])),
        ControlCase::new("the gradient is that of the branch that runs")
            .at(chosen_by_a_value, (10.0, 1.0f32), gives(&[420.0]).first(&[42.0]).second(&[0.0]))
            .at(chosen_by_a_value, (10.0, 2.0f32), gives(&[30.0]).first(&[3.0]).second(&[0.0])),
        // A gradient of what came before, whose own gradient goes back there.
        ControlCase::new("a gradient taken in a branch")
            .at(gradient_inside, (10.0, 1.0f32), gives(&[980.0]).first(&[98.0]))
            .at(gradient_inside, (10.0, 2.0f32), gives(&[30.0]).first(&[3.0])),
        ControlCase::new("a branch that does not read what the other one reads")
            .at(
                product_or_constant,
                (1.0, 2.0, 5.0, true),
                gives(&[4.0]).first(&[4.0, 2.0, 0.0]).second(&[2.0, 2.0, 0.0]),
            )
            .at(product_or_constant, (1.0, 2.0, 5.0, false), gives(&[2.0]).first(&[0.0; 3]).second(&[0.0; 3])),
        ControlCase::new("a tensor given back as it was, or gathered from")
            .at(itself_or_gathered, ([1.0, 42.0], true), gives(&[1.0, 42.0]).first(&[1.0, 1.0]))
            .at(itself_or_gathered, ([1.0, 42.0], false), gives(&[42.0, 42.0]).first(&[0.0, 2.0])),
        ControlCase::new("no NaN from the branch that does not run")
            .at(safe_root, 0.0, gives(&[1e-3]).first(&[0.0]).second(&[0.0]))
            .at(safe_root, -1.0, gives(&[1e-3]).first(&[0.0]).second(&[0.0]))
            .at(safe_root, 4.0, gives(&[2.0]).first(&[0.25]).second(&[-1.0 / 32.0])),
        ControlCase::new("no division by zero in the branch that does not run")
            .at(safe_quotient, (6, 3), gives(&[2.0]))
            .at(safe_quotient, (6, 0), gives(&[-1.0])),
        ControlCase::new("what fails in a branch fails only if it runs")
            .at(only_what_is_taken_is_checked, (true, 1), gives(&[1.0]))
            .at(only_what_is_taken_is_checked, (false, -1), gives(&[-1.0]))
            .at(only_what_is_taken_is_checked, (true, -1), fails("the first arm ran"))
            .at(only_what_is_taken_is_checked, (false, 1), fails("the second arm ran")),
        ControlCase::new("a captured tensor is the branch's value and is changed afterwards")
            .at(captured_and_changed_later, ([1.0, 2.0], true), gives(&[1.0, 2.0, 100.0, 2.0]).first(&[1.0, 2.0]))
            .at(captured_and_changed_later, ([1.0, 2.0], false), gives(&[2.0, 4.0, 100.0, 4.0]).first(&[2.0, 4.0])),
        ControlCase::new("two gradients of one branch are equal")
            .at(twice_differentiated_alike, (2.0, true), gives(&[12.0, 12.0]).first(&[24.0]).second(&[12.0]))
            .at(twice_differentiated_alike, (2.0, false), gives(&[5.0, 5.0]).first(&[0.0])),
        ControlCase::new("a gradient in a branch of a branch in it")
            .at(gradient_of_one_arm_in_an_arm, (3.0, true, true), gives(&[18.0]).first(&[12.0]).second(&[4.0]))
            .at(gradient_of_one_arm_in_an_arm, (3.0, true, false), gives(&[9.0]).first(&[3.0]))
            .at(gradient_of_one_arm_in_an_arm, (3.0, false, true), gives(&[3.0]).first(&[1.0])),
        ControlCase::new("a condition with dimensions").at(elementwise_condition, 1.0, fails("bool[2], not a scalar")),
        ControlCase::new("a switch of eight clamps its index")
            .at(eight, (i32::MIN, 2.0), gives(&[1.0]).first(&[0.0]).second(&[0.0]))
            .at(eight, (0, 2.0), gives(&[1.0]).first(&[0.0]))
            .at(eight, (1, 2.0), gives(&[2.0]).first(&[1.0]).second(&[0.0]))
            .at(eight, (3, 2.0), gives(&[8.0]).first(&[12.0]).second(&[12.0]))
            .at(eight, (7, 2.0), gives(&[128.0]).first(&[448.0]).second(&[1344.0]))
            .at(eight, (8, 2.0), gives(&[128.0]).first(&[448.0]))
            .at(eight, (i32::MAX, 2.0), gives(&[128.0])),
        ControlCase::new("values of several types")
            .at(pair_of_types, (true, 1.5, 2), gives(&[3.0, 2.0, 1.0]).first(&[2.0]))
            .at(pair_of_types, (false, 1.5, 2), gives(&[1.5, 6.0, 0.0]).first(&[1.0])),
        ControlCase::new("a branch of nothing").at(nothing, (true, 1.0), gives(&[1.0]).first(&[1.0])),
    ]
}

#[test]
fn branches_are_right_on_every_engine() {
    check_corpus("branches", &cases(), 17);
}
