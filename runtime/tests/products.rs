//! Matrix multiplications: all layouts of operands, epilogues, and operands that are packed before
//! loops.

use crate::support::{check, check_f32, check_threads, traced, while_loop};
use anabranch_dsl::ops::ConvOptions;
use anabranch_dsl::trace::constant;
use anabranch_dsl::{AnyValue, DType, HostTensor};
use anabranch_runtime::Program;

fn numbers(shape: &[usize], dtype: DType) -> HostTensor {
    let n: usize = shape.iter().product();
    let at = |i: usize| ((i * 7919 + 13) % 101) as f64 / 50.0 - 1.0;
    match dtype {
        DType::F32 => HostTensor::new(shape, (0..n).map(|i| at(i) as f32).collect::<Vec<_>>()),
        _ => HostTensor::new(shape, (0..n).map(at).collect::<Vec<_>>()),
    }
}

fn text(inputs: &[HostTensor], f: impl FnOnce(&[AnyValue]) -> Vec<AnyValue>) -> String {
    Program::new(traced(inputs, f).graph).unwrap_or_else(|e| panic!("{e}")).explain()
}

/// Row counts, inner extents and column counts around those of tiles, panels, slabs and blocks.
const SHAPES: &[[usize; 3]] = &[
    [1, 1, 1],
    [1, 40, 70],
    [2, 7, 3],
    [6, 16, 16],
    [7, 17, 33],
    [25, 31, 49],
    [64, 20, 5],
    [65, 12, 100],
    [3, 257, 18],
    [30, 520, 17],
    [100, 1, 97],
    [5, 0, 6],
];

#[test]
fn operands_in_rows_and_in_columns() {
    for &[m, k, n] in SHAPES {
        for dtype in [DType::F32, DType::F64] {
            let inputs = [[m, k], [k, n], [k, m], [n, k]].map(|shape| numbers(&shape, dtype));
            let f = |x: &[AnyValue]| {
                let [a, b, at, bt] = [x[0], x[1], x[2].permute([1, 0]), x[3].permute([1, 0])];
                vec![a.matmul(b), a.matmul(bt), at.matmul(b), at.matmul(bt)]
            };
            match dtype {
                DType::F32 => check_f32(&inputs, 1e-5, f),
                _ => check(&inputs, f).map(|_| ()).unwrap_or_else(|e| panic!("{m} {k} {n}: {e}")),
            }
        }
    }
}

#[test]
fn batches_with_one_matrix_for_all_or_some() {
    let inputs = [[2, 3, 5, 8], [1, 1, 8, 7], [2, 1, 8, 7], [1, 3, 8, 7]].map(|shape| numbers(&shape, DType::F64));
    check(&inputs, |x| {
        let wide = |w: AnyValue| w.broadcast_to([2, 3, 8, 7]);
        let of_columns = |w: AnyValue| w.permute([0, 1, 3, 2]);
        vec![
            x[0].matmul(wide(x[1])),
            x[0].matmul(wide(x[2])),
            x[0].matmul(wide(x[3])),
            of_columns(wide(x[2])).matmul(of_columns(x[0])),
            x[0].permute([1, 0, 2, 3]).matmul(wide(x[1]).permute([1, 0, 2, 3])),
        ]
    })
    .expect("it runs");
}

#[test]
fn elementwise_operations_run_behind_a_product() {
    for &[m, k, n] in &[[6, 5, 16], [3, 40, 200], [70, 33, 130], [40, 3, 1000]] {
        for dtype in [DType::F32, DType::F64] {
            let inputs = [vec![m, k], vec![k, n], vec![n], vec![m, n], vec![n, k]];
            let inputs: Vec<HostTensor> = inputs.iter().map(|shape| numbers(shape, dtype)).collect();
            let f = |x: &[AnyValue]| {
                let bias = || x[2].broadcast_to([m, n]);
                let product = || x[0].matmul(x[1]);
                let half = constant(HostTensor::scalar(0.5)).cast(dtype).broadcast_to([m, n]);
                vec![
                    product().add(bias()).tanh(),
                    bias().sub(product()).mul(half).relu(),
                    product().add(x[0].matmul(x[4].permute([1, 0]))).add(bias()),
                    product().add(x[3]),
                    product().mul(x[3]).sum_axis(0),
                    product().mul(x[3]).sum_axis(1),
                    product().lt(x[3]).cast(dtype),
                    x[0].matmul(x[4].permute([1, 0])).sub(x[3]).abs(),
                ]
            };
            match dtype {
                DType::F32 => check_f32(&inputs, 1e-5, f),
                _ => check(&inputs, f).map(|_| ()).unwrap_or_else(|e| panic!("{m} {k} {n}: {e}")),
            }
        }
    }
    let inputs = [[30, 40], [40, 50], [30, 50]].map(|shape| numbers(&shape, DType::F32));
    let explained = text(&inputs, |x| vec![x[0].matmul(x[1]).add(x[2]).tanh()]);
    assert!(explained.contains("= matmul.add.tanh"), "{explained}");
}

#[test]
fn elementwise_operations_run_behind_a_convolution() {
    let inputs = [&[3, 4, 9, 9][..], &[6, 4, 3, 3], &[6]].map(|shape| numbers(shape, DType::F64));
    let f = |x: &[AnyValue]| {
        let y = x[0].conv(x[1], &ConvOptions::<2>::new().padding(1));
        let bias = x[2].reshape([1, 6, 1, 1]).broadcast_to([3, 6, 9, 9]);
        vec![y.add(bias).relu()]
    };
    check(&inputs, f).expect("it runs");
    let explained = text(&inputs, f);
    assert!(explained.contains("= conv.add.relu"), "{explained}");
}

/// Applies `x = tanh(x w)` for `trips` iterations.
fn power(x: AnyValue, w: AnyValue, trips: i32) -> AnyValue {
    let zero = constant(HostTensor::scalar(0i32));
    while_loop(
        &[zero, x, w],
        |s| s[0].lt(constant(HostTensor::scalar(trips))),
        |s| vec![s[0].add(constant(HostTensor::scalar(1i32))), s[1].matmul(w).tanh(), s[2]],
    )[1]
}

#[test]
fn what_a_loop_does_not_change_is_packed_before_it() {
    for dtype in [DType::F32, DType::F64] {
        let inputs = [[9, 20], [20, 20]].map(|shape| numbers(&shape, dtype));
        for trips in [0, 1, 5] {
            check(&inputs, |x| vec![power(x[0], x[1], trips)]).expect("it runs");
        }
    }
    let inputs = [[9, 20], [20, 20]].map(|shape| numbers(&shape, DType::F32));
    let explained = text(&inputs, |x| vec![power(x[0], x[1], 5)]);
    let (pack, jump) = (explained.find("= pack"), explained.find("jump"));
    assert!(pack.is_some() && pack < jump, "{explained}");
    assert_eq!(explained.matches("= pack").count(), 1, "{explained}");
}

#[test]
fn what_an_outer_loop_changes_is_packed_again() {
    let inputs = [[4, 10], [10, 10]].map(|shape| numbers(&shape, DType::F64));
    check(&inputs, |x| {
        let one = || constant(HostTensor::scalar(1i32));
        let state = [constant(HostTensor::scalar(0i32)), x[0], x[1]];
        let less = |s: &[AnyValue]| s[0].lt(constant(HostTensor::scalar(3i32)));
        // Each iteration of the outer loop changes the matrix, and the inner loop does not.
        let result = while_loop(&state, less, |s| {
            let (y, w) = (power(s[1], s[2], 2), s[2].add(x[1]).tanh());
            vec![s[0].add(one()), y, w.matmul(x[1])]
        });
        vec![result[1], result[2]]
    })
    .expect("it runs");
}

#[test]
fn a_number_that_a_loop_changes_is_packed_in_it() {
    // One number is a matrix of one row and one column, and is in a register.
    let inputs = [[32, 1], [1, 8]].map(|shape| numbers(&shape, DType::F64));
    let trips = HostTensor::scalar(5i32);
    for on_the_left in [false, true] {
        let inputs = [inputs[0].clone(), inputs[1].clone(), trips.clone()];
        let outputs = check(&inputs, |x| {
            let y = if on_the_left { x[1] } else { x[0] };
            let half = constant(HostTensor::scalar(0.5f64));
            let state = [constant(HostTensor::scalar(0i32)), constant(HostTensor::scalar(1.0f64)), y];
            let result = while_loop(
                &state,
                |s| s[0].lt(x[2]),
                |s| {
                    let (number, one) = (s[1].mul(half), constant(HostTensor::scalar(1i32)));
                    let matrix = number.reshape([1, 1]);
                    let y = if on_the_left { matrix.matmul(s[2]) } else { s[2].matmul(matrix) };
                    vec![s[0].add(one), number, y]
                },
            );
            vec![result[2]]
        })
        .expect("it runs");
        let first = inputs[usize::from(on_the_left)].data::<f64>()[0];
        assert_eq!(outputs[0].data::<f64>()[0], first * 0.5f64.powi(15));
    }
}

#[test]
fn a_product_is_added_in_place() {
    let inputs = [[12, 7], [7, 11], [12, 11]].map(|shape| numbers(&shape, DType::F64));
    let f = |x: &[AnyValue]| {
        let state = [constant(HostTensor::scalar(0i32)), x[2], x[0]];
        let less = |s: &[AnyValue]| s[0].lt(constant(HostTensor::scalar(4i32)));
        let result = while_loop(&state, less, |s| {
            vec![s[0].add(constant(HostTensor::scalar(1i32))), s[1].add(s[2].matmul(x[1])), s[2].mul(s[2])]
        });
        vec![result[1]]
    };
    check(&inputs, f).expect("it runs");
    let explained = text(&inputs, f);
    let line = explained.lines().find(|l| l.contains("= matmul.add")).unwrap_or_else(|| panic!("{explained}"));
    let (to, from) = line.split_once("= matmul.add").expect("it was found");
    let place = to.split(' ').find(|word| word.starts_with('b')).expect("the result lies in a buffer");
    assert!(from.contains(place), "{explained}");
}

#[test]
fn a_sum_of_products_is_one_product() {
    let inputs = [[3, 5, 8], [3, 5, 6]].map(|shape| numbers(&shape, DType::F64));
    let f = |x: &[AnyValue]| vec![x[0].permute([0, 2, 1]).matmul(x[1]).sum_axis(0)];
    check(&inputs, f).expect("it runs");
    let explained = text(&inputs, f);
    let explained = crate::support::instructions(&explained);
    assert!(explained.contains("= matmul") && !explained.contains("= sum"), "{explained}");
    // Rows of different matrices are not contiguous here.
    check(&inputs, |x| vec![x[1].permute([0, 2, 1]).matmul(x[0].flip(0)).sum_keepdim(0)]).expect("it runs");
}

#[test]
fn threads_change_nothing() {
    let inputs = [&[150, 300][..], &[300, 170], &[170], &[170, 300]].map(|shape| numbers(shape, DType::F32));
    let f = |x: &[AnyValue]| {
        let bias = x[2].broadcast_to([150, 170]);
        let of_columns = x[0].slice(0, 0, 40).matmul(x[3].permute([1, 0]));
        vec![x[0].matmul(x[1]).add(bias).tanh(), of_columns, x[0].permute([1, 0]).matmul(x[0])]
    };
    let program = Program::new(traced(&inputs, f).graph).unwrap_or_else(|e| panic!("{e}"));
    check_threads(&program, &inputs);
}
