//! The attention kernel against the interpreter, in shapes that reach every code path.

use crate::support::{check, check_f32, check_threads, traced};
use anabranch_dsl::ops::AttentionMask;
use anabranch_dsl::{AnyValue, DType, HostTensor, derivatives};
use anabranch_runtime::Program;

/// Returns irregular numbers around zero.
fn numbers(shape: &[usize], dtype: DType) -> HostTensor {
    let n: usize = shape.iter().product();
    let at = |i: usize| ((i * 7919 + 13) % 1009) as f64 / 400.0 - 1.2;
    match dtype {
        DType::F32 => HostTensor::new(shape, (0..n).map(|i| at(i) as f32).collect::<Vec<_>>()),
        _ => HostTensor::new(shape, (0..n).map(at).collect::<Vec<_>>()),
    }
}

/// Returns attention and its gradients, for a loss that depends differently on each element.
fn all(x: &[AnyValue], mask: AttentionMask) -> Vec<AnyValue> {
    let y = x[0].scaled_dot_product_attention(x[1], x[2], mask);
    let loss = y.mul(y).mul(y + 1.0).sum();
    [vec![y], derivatives::vjp(&[(loss, loss.number(1.0))], x)].concat()
}

/// Checks queries `[.., n, size]`, keys `[.., m, size]` and values `[.., m, width]`.
#[track_caller]
fn attention(shapes: [&[usize]; 3], mask: AttentionMask) {
    let inputs = shapes.map(|shape| numbers(shape, DType::F64));
    check(&inputs, |x| all(x, mask)).expect("it runs");
    attention_f32(shapes, mask);
}

#[track_caller]
fn attention_f32(shapes: [&[usize]; 3], mask: AttentionMask) {
    let inputs = shapes.map(|shape| numbers(shape, DType::F32));
    check_f32(&inputs, 2e-5, |x| all(x, mask));
}

#[test]
fn matrices_of_every_shape() {
    for (n, m, size, width) in [(1, 1, 1, 1), (3, 5, 2, 4), (64, 64, 8, 8), (65, 70, 17, 3), (130, 33, 5, 40)] {
        attention([&[n, size], &[m, size], &[m, width]], AttentionMask::None);
        attention([&[2, n, size], &[2, n, size], &[2, n, width]], AttentionMask::Causal);
    }
}

#[test]
fn leading_axes_are_broadcast() {
    attention([&[2, 3, 5, 4], &[3, 6, 4], &[2, 1, 6, 2]], AttentionMask::None);
    attention([&[4, 3], &[2, 4, 3], &[4, 5]], AttentionMask::Causal);
}

#[test]
fn several_blocks_of_keys() {
    attention([&[2, 5, 2], &[2, 2100, 2], &[2, 2100, 3]], AttentionMask::None);
    attention_f32([&[1040, 1], &[1040, 1], &[1040, 1]], AttentionMask::Causal);
}

#[test]
fn nothing_at_all() {
    for [n, m, width] in [[0, 3, 2], [3, 0, 2], [3, 3, 0]] {
        attention([&[2, n, 4], &[2, m, 4], &[2, m, width]], AttentionMask::None);
    }
}

#[test]
fn heads_need_no_copy_and_scores_no_memory() {
    let shape = [2, 300, 4, 8];
    let inputs = [(); 3].map(|()| numbers(&shape, DType::F32));
    let heads = |x: &[AnyValue]| -> Vec<AnyValue> { x.iter().map(|x| x.permute([0, 2, 1, 3])).collect() };
    check(&inputs, |x| vec![heads(x)[0].scaled_dot_product_attention(heads(x)[1], heads(x)[2], AttentionMask::Causal)])
        .expect("it runs");
    let graph = traced(&inputs, |x| all(&heads(x), AttentionMask::None)).graph;
    let plan = Program::new(graph).unwrap_or_else(|e| panic!("{e}")).explain();
    let arena = plan.split("in an arena of ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
    let scores = 2 * 4 * 300 * 300 * 4;
    assert!(arena.is_some_and(|bytes| bytes < scores / 2), "{plan}");
    assert_eq!(plan.matches("= attention").count(), 2, "{plan}");
    assert!(!plan.contains("= reference"), "{plan}");
}

#[test]
fn keys_that_do_not_count_leave_no_trace_in_later_blocks() {
    let mut keys = vec![f64::NEG_INFINITY; 1100];
    keys[1099] = 0.5;
    let inputs = [
        HostTensor::new([2, 1], vec![1.0, 2.0]),
        HostTensor::new([1100, 1], keys),
        HostTensor::new([1100, 1], (0..1100).map(f64::from).collect::<Vec<_>>()),
    ];
    let y =
        check(&inputs, |x| vec![x[0].scaled_dot_product_attention(x[1], x[2], AttentionMask::None)]).expect("it runs");
    assert_eq!(y[0].data::<f64>(), [1099.0, 1099.0]);
}

#[test]
fn threads_change_nothing() {
    let inputs = [[3, 150, 16], [3, 150, 16], [3, 150, 12]].map(|shape| numbers(&shape, DType::F32));
    let program =
        Program::new(traced(&inputs, |x| all(x, AttentionMask::Causal)).graph).unwrap_or_else(|e| panic!("{e}"));
    check_threads(&program, &inputs);
}
