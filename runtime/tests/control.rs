//! Control flow: the plan against the interpreter.

use crate::support::{branch, check, traced, while_loop};
use anabranch_dsl::{AnyValue, HostTensor, trace};
use anabranch_runtime::Program;

fn int(x: i32) -> HostTensor {
    HostTensor::scalar(x)
}
fn floats(x: &[f32]) -> HostTensor {
    HostTensor::new([x.len()], x.to_vec())
}
fn constant(x: i32) -> AnyValue {
    trace::constant(HostTensor::scalar(x))
}

#[test]
fn a_scalar_loop_counts() {
    for n in [0, 1, 7] {
        let outputs = check(&[int(n)], |x| {
            while_loop(
                &[constant(0), constant(1)],
                |s| s[0].lt(x[0]),
                |s| vec![s[0].add(constant(1)), s[1].mul(constant(3))],
            )
        });
        assert_eq!(outputs, Ok(vec![int(n), int(3i32.pow(n as u32))]));
    }
}

#[test]
fn collatz_takes_111_steps_from_27() {
    let outputs = check(&[int(27)], |x| {
        let r = while_loop(
            &[x[0], constant(0)],
            |s| s[0].ne(constant(1)),
            |s| {
                let even = s[0].rem(constant(2)).eq(constant(0));
                let next =
                    branch(even, || vec![s[0].div(constant(2))], || vec![s[0].mul(constant(3)).add(constant(1))]);
                vec![next[0], s[1].add(constant(1))]
            },
        );
        vec![r[1]]
    });
    assert_eq!(outputs, Ok(vec![int(111)]));
}

#[test]
fn the_explanation_says_why_a_loop_is_not_native_code() {
    let numbers = |x: &[AnyValue]| while_loop(&[x[0]], |s| s[0].lt(constant(100)), |s| vec![s[0].add(constant(1))]);
    let graph = traced(&[int(1)], numbers).graph;
    let off = Program::without_native_code(graph.clone()).expect("it compiles").explain();
    assert!(off.contains("no native code of instructions") && off.contains("native code is turned off"), "{off}");
    let on = Program::new(graph).expect("it compiles").explain();
    if cfg!(feature = "jit") {
        assert!(on.contains("natively") && !on.contains("no native code"), "{on}");
    } else {
        assert!(on.contains("built without its feature `jit`"), "{on}");
    }
    // Too many elements for registers.
    let tensors = |x: &[AnyValue]| while_loop(&[x[0]], |s| s[0].sum().lt(x[1]), |s| vec![s[0].add(s[0])]);
    let graph = traced(&[floats(&[1.0; 1000]), HostTensor::scalar(1e6f32)], tensors).graph;
    let text = Program::new(graph).expect("it compiles").explain();
    let reason = text.lines().find(|line| line.contains("no native code of instructions")).unwrap_or(&text);
    assert!(reason.contains("control.rs") && reason.contains(" computes `add` at "), "{text}");
    assert!(reason.ends_with(" with f32[1000]"), "{text}");
}

#[test]
fn loop_variables_may_be_exchanged() {
    for n in 0..5 {
        let (a, b) = (floats(&[1.0, 2.0]), floats(&[3.0, 4.0]));
        let outputs = check(&[a.clone(), b.clone(), int(n)], |x| {
            while_loop(
                &[x[0], x[1], constant(10), constant(20), constant(0)],
                |s| s[4].lt(x[2]),
                |s| vec![s[1], s[0], s[3], s[2], s[4].add(constant(1))],
            )
        });
        let outputs = outputs.expect("it runs");
        assert_eq!(outputs[..2], if n % 2 == 0 { [a, b] } else { [b, a] });
        assert_eq!(outputs[2..4], if n % 2 == 0 { [int(10), int(20)] } else { [int(20), int(10)] });
    }
}

#[test]
fn three_tensors_go_round_while_one_of_them_changes() {
    let inputs = [floats(&[1.0, 2.0]), floats(&[3.0, 4.0]), floats(&[5.0, 6.0])];
    check(&inputs, |x| {
        while_loop(
            &[x[0], x[1], x[2], constant(0)],
            |s| s[3].lt(constant(7)),
            |s| vec![s[1], s[2].add(s[0]), s[0], s[3].add(constant(1))],
        )
    })
    .expect("it runs");
}

#[test]
fn a_loop_variable_computed_from_its_own_transpose_is_not_overwritten_early() {
    let m = HostTensor::new([3, 3], (0..9).map(|i| i as f32).collect::<Vec<_>>());
    check(&[m], |x| {
        while_loop(
            &[x[0], constant(0)],
            |s| s[1].lt(constant(3)),
            |s| vec![s[0].add(s[0].permute([1, 0])), s[1].add(constant(1))],
        )
    })
    .expect("it runs");
}

#[test]
fn a_loop_variable_may_become_its_own_transpose() {
    let m = HostTensor::new([2, 2], vec![1.0f32, 2.0, 3.0, 4.0]);
    check(&[m], |x| {
        while_loop(
            &[x[0], constant(0)],
            |s| s[1].lt(constant(3)),
            |s| vec![s[0].permute([1, 0]), s[1].add(constant(1))],
        )
    })
    .expect("it runs");
}

#[test]
fn branches_give_tensors_captures_and_constants() {
    for p in [true, false] {
        let inputs = [HostTensor::scalar(p), floats(&[1.0, 2.0]), floats(&[3.0, 4.0])];
        check(&inputs, |x| {
            let r = branch(
                x[0],
                || vec![x[1].add(x[2]), x[1], constant(1), x[2].mul(x[2])],
                || vec![x[1], x[2].exp(), constant(2), x[1].neg()],
            );
            vec![r[0], r[1], r[2], r[3], r[0].add(r[1]).mul(r[3])]
        })
        .expect("it runs");
    }
}

#[test]
fn loops_nest_and_hold_branches() {
    for n in 0..4 {
        check(&[int(n), floats(&[0.5, -0.5, 2.0])], |x| {
            while_loop(
                &[constant(0), x[1], constant(0)],
                |s| s[0].lt(x[0]),
                |s| {
                    let inner = while_loop(
                        &[constant(0), s[1], s[2]],
                        |t| t[0].lt(s[0]),
                        |t| {
                            let odd = t[0].rem(constant(2)).eq(constant(1));
                            let y = branch(
                                odd,
                                || vec![t[1].add(x[1]), t[2]],
                                || vec![t[1].mul(s[1]), t[2].add(constant(1))],
                            );
                            vec![t[0].add(constant(1)), y[0], y[1]]
                        },
                    );
                    vec![s[0].add(constant(1)), inner[1].sub(x[1]), inner[2]]
                },
            )
        })
        .expect("it runs");
    }
}

#[test]
fn a_value_made_before_a_loop_is_intact_after_it() {
    check(&[floats(&[1.0, 2.0, 3.0]), int(5)], |x| {
        let kept = x[0].mul(x[0]).cos();
        let also = kept.add(x[0]);
        let r = while_loop(
            &[also, constant(0)],
            |s| s[1].lt(x[1]),
            |s| {
                let t = s[0].sin().add(kept);
                let u = t.cos().mul(t);
                vec![u.add(s[0]), s[1].add(constant(1))]
            },
        );
        vec![r[0], kept, also, kept.add(r[0])]
    })
    .expect("it runs");
}

#[test]
fn a_failing_assertion_says_so_and_where() {
    let error = check(&[int(3)], |x| {
        while_loop(
            &[constant(0)],
            |s| s[0].lt(constant(5)),
            |s| {
                trace::assert(s[0].lt(x[0]), "less than the limit".to_owned());
                vec![s[0].add(constant(1))]
            },
        )
    });
    assert_eq!(error, Err("assertion failed: less than the limit".to_owned()));
}

#[test]
fn division_of_integers_by_zero_is_the_same_error_everywhere() {
    assert!(check(&[int(3), int(0)], |x| vec![x[0].div(x[1])]).unwrap_err().contains("by zero"));
    let (a, b) = (HostTensor::new([3], vec![1, 2, 3]), HostTensor::new([3], vec![1, 0, 3]));
    assert!(check(&[a, b], |x| vec![x[0].add(x[1]).rem(x[1])]).unwrap_err().contains("[1]"));
}
