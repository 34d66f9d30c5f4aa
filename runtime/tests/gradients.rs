//! Gradients through control flow: stacks in the plan, against the interpreter.

use crate::support::{branch, check, while_loop};
use anabranch_dsl::{AnyValue, DType, HostTensor, derivatives, trace};

fn floats(shape: &[usize]) -> HostTensor {
    let n: usize = shape.iter().product();
    HostTensor::new(shape, (0..n).map(|i| 0.3 + (i * 37 % 11) as f64 / 10.0).collect::<Vec<_>>())
}
fn int(x: i32) -> HostTensor {
    HostTensor::scalar(x)
}
fn constant(x: i32) -> AnyValue {
    trace::constant(HostTensor::scalar(x))
}

/// Returns `loss`, its gradients with respect to `wrt`, and the gradients of the sum of these.
fn two_orders(loss: AnyValue, wrt: &[AnyValue]) -> Vec<AnyValue> {
    let one = || loss.number(1.0);
    let first = derivatives::vjp(&[(loss, one())], wrt);
    let total = first.iter().map(|d| d.mul(*d).sum()).reduce(AnyValue::add).expect("some gradients");
    let second = derivatives::vjp(&[(total, one())], wrt);
    [vec![loss], first, second].concat()
}

#[test]
fn a_loop_over_a_tensor_saves_what_its_gradient_reads() {
    for n in [0, 1, 4] {
        check(&[floats(&[3]), floats(&[3, 3]), int(n)], |x| {
            let r = while_loop(
                &[x[0], constant(0)],
                |s| s[1].lt(x[2]),
                |s| vec![s[0].matmul(x[1]).tanh(), s[1].add(constant(1))],
            );
            two_orders(r[0].mul(r[0]).sum(), &[x[0], x[1]])
        })
        .expect("it runs");
    }
}

#[test]
fn nested_loops_with_branches_push_and_pop_in_step() {
    for n in [0, 1, 3] {
        check(&[floats(&[]), floats(&[2]), int(n)], |x| {
            let r = while_loop(
                &[x[0], x[1], constant(0)],
                |s| s[2].lt(x[2]),
                |s| {
                    let inner = while_loop(
                        &[s[0], s[1], constant(0)],
                        |t| t[2].lt(s[2]),
                        |t| {
                            let up = t[0].sin();
                            let y = branch(
                                up.gt(up.number(0.5)),
                                || vec![up.mul(t[0]), t[1].mul(up)],
                                || vec![up.add(x[0]), t[1].exp().mul(t[1])],
                            );
                            vec![y[0], y[1].mul(y[1].number(0.5)), t[2].add(constant(1))]
                        },
                    );
                    vec![inner[0].mul(x[0]), inner[1].cos(), s[2].add(constant(1))]
                },
            );
            two_orders(r[0].add(r[1].sum()), &[x[0], x[1]])
        })
        .expect("it runs");
    }
}

#[test]
fn a_loop_as_long_as_the_data_says() {
    for start in [0.1, 3.0, 200.0] {
        check(&[HostTensor::scalar(start)], |x| {
            let r = while_loop(
                &[x[0], constant(0)],
                |s| s[0].gt(s[0].number(1.0)),
                |s| vec![s[0].mul(s[0].number(0.5)).add(s[0].sqrt().mul(s[0].number(0.1))), s[1].add(constant(1))],
            );
            [two_orders(r[0].mul(r[0]), &[x[0]]), vec![r[1]]].concat()
        })
        .expect("it runs");
    }
}

#[test]
fn rows_are_read_in_a_loop_and_their_gradient_put_back() {
    check(&[floats(&[5, 2]), floats(&[2])], |x| {
        let r = while_loop(
            &[x[1], constant(0)],
            |s| s[1].lt(constant(5)),
            |s| {
                let row = x[0].slice_at(s[1], 0, 1).reshape([2]);
                vec![s[0].mul(row).add(row.tanh()), s[1].add(constant(1))]
            },
        );
        two_orders(r[0].sum(), &[x[0], x[1]])
    })
    .expect("it runs");
}

#[test]
fn single_precision_and_masks() {
    let x = HostTensor::new([4], vec![0.5f32, -1.0, 2.0, 0.25]);
    check(&[x], |x| {
        let r = while_loop(
            &[x[0], constant(0)],
            |s| s[1].lt(constant(3)),
            |s| {
                let positive = s[0].gt(s[0].number(0.0));
                vec![positive.select(s[0].mul(s[0]), s[0].neg().exp()), s[1].add(constant(1))]
            },
        );
        let loss = r[0].sum();
        assert_eq!(loss.dtype(), DType::F32);
        two_orders(loss, &[x[0]])
    })
    .expect("it runs");
}
