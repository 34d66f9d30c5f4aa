//! Variables that branches and loops read and assign.

use super::engine::{ControlCase, check_corpus, fails, gives};
use anabranch::dsl::derivatives::var_gradients;
use anabranch::prelude::*;

type S = Tensor<f64>;
type I = Tensor<i32>;
type B = Tensor<bool>;

#[graph]
fn cube(v: &Var<f64>) -> (S, S) {
    let (mut y, mut i) = (scalar(1.0), scalar(0));
    while i < 3 {
        y *= v.get();
        i += 1;
    }
    (y, gradients(y, v.get()))
}

#[graph]
fn two_sums(a: &Var<f64>, b: &Var<f64>) -> (S, S) {
    let mut i = scalar(0);
    while i < 10 {
        a.set(a.get() + 1.0);
        b.set(b.get() + a.get());
        i += 1;
    }
    (a.get(), b.get())
}

#[graph]
fn counted_in_a_branch(v: &Var<i32>, p: B) -> (I, I) {
    let mut r = scalar(5);
    if !p {
        let mut i = scalar(0);
        while i < 100 {
            v.set(i);
            i += 1;
        }
        r = scalar(6);
    }
    (r, v.get())
}

#[graph]
fn assigned_in_one_arm(v: &Var<i32>, p: B) -> I {
    if p {
        v.set(scalar(1));
    }
    v.get()
}

#[graph]
fn assigned_without_being_read(v: &Var<i32>, n: I) -> I {
    let mut i = scalar(0);
    while i < n {
        v.set(i * 2);
        i += 1;
    }
    v.get()
}

/// Three rounds of gradient descent on `x^2`.
#[graph]
fn descent(v: &Var<f64>) -> S {
    let mut i = scalar(0);
    while i < 3 {
        let x = v.get();
        let dx = S::from_any(var_gradients(x * x, &[v.any().clone()])[0]);
        v.set(x - 0.25 * dx);
        i += 1;
    }
    v.get()
}

#[graph]
fn fails_late(v: &Var<i32>, n: I) -> I {
    let mut i = scalar(0);
    while i < n {
        v.set(v.get() + 1);
        assert!(v.get() < 4, "the variable reached 4");
        i += 1;
    }
    v.get()
}

#[graph]
fn used_in_an_inner_loop(v: &Var<f64>, n: I) -> S {
    let (mut i, mut sum) = (scalar(0), scalar(0.0));
    while i < n {
        let mut j = scalar(0);
        while j < i {
            sum += v.get();
            v.set(v.get() + 1.0);
            j += 1;
        }
        i += 1;
    }
    sum
}

/// A variable that counts the evaluations of the condition.
#[graph]
fn counted_in_a_condition(v: &Var<i32>, n: I) -> (I, I) {
    let (mut i, mut seen) = (scalar(0), scalar(0));
    while {
        v.set(v.get() + 1);
        i < n
    } {
        seen = seen * 10 + v.get();
        i += 1;
    }
    (v.get(), seen)
}

/// The condition assigns one variable in a branch, and the body assigns the other one. The
/// condition also changes `k`.
#[graph]
fn assigned_in_condition_and_body(a: &Var<f64>, b: &Var<f64>, n: I) -> (S, S, S) {
    let (mut k, mut x) = (scalar(0), scalar(0.0));
    while {
        k += 1;
        if k > 1 {
            a.set(a.get() * 2.0 + b.get());
        }
        k <= n && a.get() < 100.0
    } {
        b.set(b.get() + 1.0);
        x += a.get() * b.get();
        let mut j = scalar(0);
        while {
            b.set(b.get() * 0.5);
            j < 1
        } {
            j += 1;
        }
    }
    let d = S::from_any(var_gradients(x, &[a.any().clone()])[0]);
    (a.get(), b.get(), d)
}

fn cases() -> Vec<ControlCase> {
    let float = |name: &str, x: f64| Var::<f64>::new(name, x);
    let int = |name: &str, x: i32| Var::<i32>::new(name, x);
    vec![
        ControlCase::new("read in a loop").at(
            {
                let v = float("v", 2.0);
                move || cube(&v)
            },
            (),
            gives(&[8.0, 12.0]),
        ),
        ControlCase::new("two that are assigned in program order").at(
            {
                let (a, b) = (float("a", 0.0), float("b", 0.0));
                move || two_sums(&a, &b)
            },
            (),
            gives(&[10.0, 55.0]),
        ),
        ControlCase::new("assigned by a loop in a branch")
            .at(
                {
                    let v = int("v", -1);
                    move |p| counted_in_a_branch(&v, p)
                },
                false,
                gives(&[6.0, 99.0]),
            )
            .at(
                {
                    let v = int("v", -1);
                    move |p| counted_in_a_branch(&v, p)
                },
                true,
                gives(&[5.0, -1.0]),
            ),
        ControlCase::new("assigned in one arm and read behind it")
            .at(
                {
                    let v = int("v", 7);
                    move |p| assigned_in_one_arm(&v, p)
                },
                true,
                gives(&[1.0]),
            )
            .at(
                {
                    let v = int("v", 7);
                    move |p| assigned_in_one_arm(&v, p)
                },
                false,
                gives(&[7.0]),
            ),
        ControlCase::new("assigned in a loop that does not read it")
            .at(
                {
                    let v = int("v", 7);
                    move |n| assigned_without_being_read(&v, n)
                },
                3,
                gives(&[4.0]),
            )
            .at(
                {
                    let v = int("v", 7);
                    move |n| assigned_without_being_read(&v, n)
                },
                0,
                gives(&[7.0]),
            ),
        ControlCase::new("counted in a condition")
            .at(
                {
                    let v = int("v", 7);
                    move |n| counted_in_a_condition(&v, n)
                },
                3,
                gives(&[11.0, 900.0]),
            )
            .at(
                {
                    let v = int("v", 7);
                    move |n| counted_in_a_condition(&v, n)
                },
                0,
                gives(&[8.0, 0.0]),
            ),
        {
            let host = |n: i32| {
                // `a` and `x`, each with its derivative by the first `a`.
                let (mut a, mut b, mut k, mut x) = ((1.0, 1.0), 3.0, 0, (0.0, 0.0));
                loop {
                    k += 1;
                    if k > 1 {
                        a = (a.0 * 2.0 + b, a.1 * 2.0);
                    }
                    if k > n || a.0 >= 100.0 {
                        return [a.0, b, x.1];
                    }
                    b += 1.0;
                    x = (x.0 + a.0 * b, x.1 + a.1 * b);
                    b *= 0.25;
                }
            };
            let case = ControlCase::new("assigned in a condition and in the body");
            [0, 1, 2, 5, 50].into_iter().fold(case, |case, n| {
                let (a, b) = (float("a", 1.0), float("b", 3.0));
                case.at(move |n| assigned_in_condition_and_body(&a, &b, n), n, gives(&host(n)))
            })
        },
        ControlCase::new("descent inside of the graph").at(
            {
                let v = float("v", 2.0);
                move || descent(&v)
            },
            (),
            gives(&[0.25]),
        ),
        ControlCase::new("a step that fails in an iteration")
            .at(
                {
                    let v = int("v", 0);
                    move |n| fails_late(&v, n)
                },
                3,
                gives(&[3.0]),
            )
            .at(
                {
                    let v = int("v", 0);
                    move |n| fails_late(&v, n)
                },
                4,
                fails("the variable reached 4"),
            ),
        ControlCase::new("changed by an inner loop")
            // 1 in the second iteration, 2 and 3 in the third.
            .at(
                {
                    let v = float("v", 1.0);
                    move |n| used_in_an_inner_loop(&v, n)
                },
                3,
                gives(&[6.0]),
            )
            .at(
                {
                    let v = float("v", 1.0);
                    move |n| used_in_an_inner_loop(&v, n)
                },
                1,
                gives(&[0.0]),
            ),
    ]
}

#[test]
fn variables_are_right_on_every_engine() {
    check_corpus("state", &cases(), 8);
}
