//! Matmuls whose operands are rounded to `bf16`, by the unit of this processor and by plain loops.

use crate::support::{check_threads, numbers, short, traced, while_loop};
use anabranch_dsl::trace::constant;
use anabranch_dsl::{AnyValue, DType, HostTensor, bf16};
use anabranch_runtime::{MatmulPrecision, Program};

/// Returns a tensor rounded to `bf16`.
fn rounded(x: &HostTensor) -> HostTensor {
    let numbers = x.data::<f32>().iter().map(|&x| bf16::from_f32(x).to_f32());
    HostTensor::new(x.shape(), numbers.collect::<Vec<_>>())
}

/// Runs a function of matmuls with rounded operands, and compares it with one of full precision
/// whose inputs were rounded before. Returns the descriptions of the programs of this processor
/// and of the emulated unit.
#[track_caller]
fn check(inputs: &[HostTensor], f: impl FnOnce(&[AnyValue]) -> Vec<AnyValue>) -> [String; 2] {
    let graph = traced(inputs, f).graph;
    let exact: Vec<HostTensor> = inputs.iter().map(rounded).collect();
    let full = Program::new(graph.clone()).unwrap_or_else(|e| panic!("{e}"));
    let expected = full.run(&exact, &mut vec![]).expect("it runs");
    let here = Program::with_matmul_precision(graph.clone(), MatmulPrecision::Bf16).unwrap_or_else(|e| panic!("{e}"));
    let emulated = Program::with_emulated_tiles(graph).unwrap_or_else(|e| panic!("{e}"));
    let [first, last] = [&here, &emulated].map(|program| {
        // Operands of full precision are rounded, and those that are rounded stay as they are.
        let [given, same] = [inputs, &exact].map(|inputs| program.run(inputs, &mut vec![]).expect("it runs"));
        if program.explain().contains("of bf16") {
            assert_eq!(given, same, "{}", program.explain());
        }
        for (same, expected) in same.iter().zip(&expected) {
            let [a, b] = [same, expected].map(|x| x.data::<f32>());
            let largest = b.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let is_near = a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * largest);
            assert!(is_near, "{} is not {}\n{}", short(same), short(expected), program.explain());
        }
        same
    });
    if here.explain().contains("of bf16") {
        assert_eq!(first, last, "the unit computes what the loops compute\n{}", here.explain());
    }
    [here.explain(), emulated.explain()]
}

/// Extents around those of tiles and blocks.
const SHAPES: &[[usize; 3]] = &[
    [16, 16, 16],
    [17, 40, 70],
    [32, 32, 32],
    [33, 31, 49],
    [65, 100, 16],
    [20, 257, 33],
    [300, 64, 40],
    [40, 20, 600],
];

#[test]
fn operands_in_rows_and_in_columns() {
    for &[m, k, n] in SHAPES {
        let inputs = [[m, k], [k, n], [k, m], [n, k]].map(|shape| numbers(&shape, DType::F32));
        let [_, explained] = check(&inputs, |x| {
            let [a, b, at, bt] = [x[0], x[1], x[2].permute([1, 0]), x[3].permute([1, 0])];
            vec![a.matmul(b), a.matmul(bt), at.matmul(b), at.matmul(bt)]
        });
        assert_eq!(explained.matches("= matmul of bf16").count(), 4, "{explained}");
    }
}

#[test]
fn batches_with_one_matrix_for_all_or_some() {
    let inputs = [[2, 3, 18, 20], [1, 1, 20, 17], [2, 1, 20, 17], [1, 3, 20, 17]];
    let inputs = inputs.map(|shape| numbers(&shape, DType::F32));
    let [_, explained] = check(&inputs, |x| {
        let wide = |w: AnyValue| w.broadcast_to([2, 3, 20, 17]);
        vec![x[0].matmul(wide(x[1])), x[0].matmul(wide(x[2])), x[0].matmul(wide(x[3]))]
    });
    assert_eq!(explained.matches("= matmul of bf16").count(), 3, "{explained}");
}

#[test]
fn elementwise_operations_run_behind_a_product() {
    let inputs = [vec![33, 40], vec![40, 50], vec![50], vec![33, 50]];
    let inputs: Vec<HostTensor> = inputs.iter().map(|shape| numbers(shape, DType::F32)).collect();
    let [_, explained] = check(&inputs[..2], |x| {
        let product = || x[0].matmul(x[1]);
        vec![product().tanh(), product().sum_axis(0), product().relu().sum_axis(1)]
    });
    assert!(explained.contains("= matmul.tanh of bf16"), "{explained}");
    // An addend of a product is not rounded.
    let graph = traced(&inputs, |x| vec![x[0].matmul(x[1]).add(x[3]), x[2].broadcast_to([33, 50]).add(x[3])]).graph;
    let program = Program::with_emulated_tiles(graph).unwrap_or_else(|e| panic!("{e}"));
    let zeros = [[33, 40], [40, 50]].map(|shape| HostTensor::new(shape, vec![0.0f32; shape[0] * shape[1]]));
    let given = [zeros[0].clone(), zeros[1].clone(), inputs[2].clone(), inputs[3].clone()];
    let outputs = program.run(&given, &mut vec![]).expect("it runs");
    assert_eq!(outputs[0], inputs[3], "{}", program.explain());
}

#[test]
fn a_product_is_added_in_place() {
    let inputs = [[20, 24], [24, 20], [20, 20]].map(|shape| rounded(&numbers(&shape, DType::F32)));
    let [_, explained] = check(&inputs, |x| {
        let state = [constant(HostTensor::scalar(0i32)), x[2]];
        let less = |s: &[AnyValue]| s[0].lt(constant(HostTensor::scalar(4i32)));
        let one = || constant(HostTensor::scalar(1i32));
        vec![while_loop(&state, less, |s| vec![s[0].add(one()), s[1].add(x[0].matmul(x[1]))])[1]]
    });
    assert!(explained.contains("= matmul.add of bf16"), "{explained}");
}

/// Applies `x = x w / 4` for 5 iterations.
fn power(x: AnyValue, w: AnyValue) -> AnyValue {
    let number = |x: i32| constant(HostTensor::scalar(x));
    let quarter = constant(HostTensor::scalar(0.25f32));
    let less = |s: &[AnyValue]| s[0].lt(number(5));
    while_loop(&[number(0), x, w], less, |s| vec![s[0].add(number(1)), s[1].matmul(w).mul(quarter), s[2]])[1]
}

#[test]
fn what_a_loop_does_not_change_is_packed_before_it() {
    // Few rows are worth it, since the other matrix is packed once.
    let inputs = [[2, 64], [64, 64]].map(|shape| numbers(&shape, DType::F32));
    let graph = traced(&inputs, |x| vec![power(x[0], x[1])]).graph;
    let explained = Program::with_emulated_tiles(graph).unwrap_or_else(|e| panic!("{e}")).explain();
    let (pack, jump) = (explained.find("= pack"), explained.find("jump"));
    assert!(pack.is_some() && pack < jump && explained.contains("of bf16"), "{explained}");
    assert_eq!(explained.matches("= pack").count(), 2, "{explained}");
}

#[test]
fn small_products_and_those_of_f64_are_of_full_precision() {
    for ([m, k, n], dtype) in
        [([15, 64, 64], DType::F32), ([64, 64, 15], DType::F32), ([64, 15, 64], DType::F32), ([64, 64, 64], DType::F64)]
    {
        let inputs = [[m, k], [k, n]].map(|shape| numbers(&shape, dtype));
        let graph = traced(&inputs, |x| vec![x[0].matmul(x[1])]).graph;
        let outputs = [Program::new(graph.clone()), Program::with_emulated_tiles(graph)]
            .map(|program| program.and_then(|p| p.run(&inputs, &mut vec![])).unwrap_or_else(|e| panic!("{e}")));
        assert_eq!(outputs[0], outputs[1]);
    }
}

#[test]
fn threads_change_nothing() {
    let inputs = [[300, 400], [400, 300]].map(|shape| numbers(&shape, DType::F32));
    let f = |x: &[AnyValue]| vec![x[0].matmul(x[1]).tanh(), x[1].permute([1, 0]).matmul(x[0].permute([1, 0]))];
    let program = Program::with_matmul_precision(traced(&inputs, f).graph, MatmulPrecision::Bf16);
    check_threads(&program.unwrap_or_else(|e| panic!("{e}")), &inputs);
}
