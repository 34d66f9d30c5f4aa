//! Lookups that kernels compute while reading tables, run by the interpreter.

use anabranch::DType;
use anabranch::dsl::fusion::{FuseEverything, Fusion, NodeRole};
use anabranch::dsl::passes::Pipeline;
use anabranch::dsl::trace::{self, WhileTrace, constant};
use anabranch::dsl::{AnyValue, Graph, HostTensor, interp};

fn traced(inputs: &[HostTensor], f: impl FnOnce(&[AnyValue]) -> Vec<AnyValue>) -> Graph {
    let traced = trace::trace("test", || {
        let params: Vec<AnyValue> = inputs.iter().map(|input| trace::input(input.ty(), None)).collect();
        f(&params)
    });
    traced.unwrap_or_else(|e| panic!("{e}")).graph
}

/// Runs a function with and without kernels. The outputs and errors must be the same. Returns the
/// outputs, and the number of lookups that kernels compute.
#[track_caller]
fn run(
    inputs: &[HostTensor],
    f: impl FnOnce(&[AnyValue]) -> Vec<AnyValue>,
) -> (Result<Vec<HostTensor>, String>, usize) {
    let mut graph = traced(inputs, f);
    let options = interp::InterpOptions::default();
    let expected = interp::run(&graph, inputs, &mut vec![], options);
    Pipeline::standard().run(&mut graph);
    let fusion = Fusion::find(&graph, &FuseEverything);
    for kernel in fusion.kernels() {
        assert_eq!(kernel.verify(&graph), Ok(()), "{}", kernel.text(&graph));
    }
    let mut n = 0;
    graph.visit_nodes(graph.root(), &mut |node| n += usize::from(fusion.role(node) == NodeRole::Check));
    let context = interp::RunContext { fusion: Some(&fusion), ..Default::default() };
    let fused = interp::run_in(&graph, inputs, &mut vec![], options, context);
    let [expected, fused] = [expected, fused].map(|outcome| outcome.map_err(|error| error.message));
    assert_eq!(fused, expected, "{graph}");
    (fused, n)
}

#[track_caller]
fn check(inputs: &[HostTensor], f: impl FnOnce(&[AnyValue]) -> Vec<AnyValue>) -> Result<Vec<HostTensor>, String> {
    run(inputs, f).0
}

fn numbers(shape: &[usize]) -> HostTensor {
    let n: usize = shape.iter().product();
    HostTensor::new(shape, (0..n).map(|i| ((i * 37) % 1009) as f64 / 500.0 - 1.0).collect::<Vec<f64>>())
}

fn converted(x: &HostTensor, dtype: DType) -> HostTensor {
    let graph = traced(std::slice::from_ref(x), |x| vec![x[0].cast(dtype)]);
    let results = interp::run(&graph, std::slice::from_ref(x), &mut vec![], interp::InterpOptions::default());
    results.unwrap_or_else(|e| panic!("{e}")).swap_remove(0)
}

/// Returns indices of a type, below an extent.
fn indices(dtype: DType, shape: &[usize], extent: usize) -> HostTensor {
    let n: usize = shape.iter().product();
    let ids = HostTensor::new(shape, (0..n).map(|i| (i * 29 + i / 7) as i32 % extent as i32).collect::<Vec<i32>>());
    converted(&ids, dtype)
}

/// Checks a function of a table, indices and another tensor, whose lookups are part of kernels.
#[track_caller]
fn check_fused(inputs: &[HostTensor], n: usize, f: impl FnOnce(&[AnyValue]) -> Vec<AnyValue>) {
    let (outcome, fused) = run(inputs, f);
    outcome.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(fused, n);
}

#[test]
fn rows_are_read_by_chains_and_reductions() {
    for [extent, n, width] in [[5, 7, 3], [9, 4, 1], [1, 3, 4], [6, 1, 5], [40, 33, 64]] {
        let inputs = [numbers(&[extent, width]), indices(DType::I32, &[n], extent), numbers(&[n, width])];
        check_fused(&inputs, 1, |x| vec![x[0].take(x[1], 0).mul(x[2]).add(x[2])]);
        check_fused(&inputs, 1, |x| vec![x[0].take(x[1], 0).mul(x[2]).sum_axis(1)]);
        check_fused(&inputs, 1, |x| vec![x[0].take(x[1], 0).mul(x[2]).sum_axis(0)]);
        check_fused(&inputs, 1, |x| vec![x[0].take(x[1], 0).sub(x[2]).abs().sum()]);
        check_fused(&inputs, 1, |x| vec![x[0].take(x[1], 0).sum_axis(0)]);
        check_fused(&inputs, 1, |x| vec![x[0].take(x[1], 0).max_axis(1)]);
    }
}

#[test]
fn a_kernel_reads_through_several_indices_of_any_type() {
    for dtype in [DType::I32, DType::I64, DType::U32, DType::U8] {
        let inputs = [numbers(&[50, 6]), indices(dtype, &[2, 3], 50), indices(dtype, &[2, 3], 40), numbers(&[2, 3, 6])];
        check_fused(&inputs, 2, |x| vec![x[0].take(x[1], 0).mul(x[0].take(x[2], 0)).add(x[3])]);
        // The first rows are also read without indices, and the indices as numbers.
        check_fused(&inputs, 1, |x| {
            let first = x[0].slice(0, 0, 1).broadcast_to([6, 6]).reshape([2, 3, 6]);
            vec![x[0].take(x[1], 0).add(first), x[1].cast(DType::F64).exp()]
        });
        let axis = [numbers(&[4, 50, 3]), inputs[1].clone(), numbers(&[4, 2, 3, 3])];
        check_fused(&axis, 1, |x| vec![x[0].take(x[1], 1).mul(x[2])]);
        let last = [numbers(&[4, 50]), inputs[1].clone(), numbers(&[4, 2, 3])];
        check_fused(&last, 1, |x| vec![x[0].take(x[1], 1).mul(x[2]), x[2].exp()]);
        let scalar = [numbers(&[50, 6]), indices(dtype, &[], 50), numbers(&[6])];
        check_fused(&scalar, 1, |x| vec![x[0].take(x[1], 0).mul(x[2])]);
    }
}

#[test]
fn each_element_has_an_index_of_its_own() {
    let inputs =
        [numbers(&[30, 7]), indices(DType::I32, &[30, 1], 7), indices(DType::I64, &[12, 7], 30), numbers(&[12, 7])];
    check_fused(&inputs, 1, |x| vec![x[0].take_along_axis(x[1], 1).neg().sum()]);
    check_fused(&inputs, 1, |x| vec![x[0].take_along_axis(x[2], 0).mul(x[3])]);
}

#[test]
fn tables_and_results_are_read_through_views() {
    let inputs = [numbers(&[8, 10]), indices(DType::I32, &[5], 4), numbers(&[8, 5]), numbers(&[5, 8])];
    check_fused(&inputs, 1, |x| vec![x[0].flip([1]).slice(1, 2, 10).slice(1, 1, 6).take(x[1], 1).mul(x[2])]);
    check_fused(&inputs, 1, |x| vec![x[0].permute([1, 0]).take(x[1], 0).mul(x[3])]);
    check_fused(&inputs, 1, |x| vec![x[0].take(x[1], 1).permute([1, 0]).mul(x[3]).sum_axis(0)]);
    check_fused(&inputs, 1, |x| vec![x[0].take(x[1].flip([0]), 1).flip([0, 1]).mul(x[2])]);
    // Each index selects the same element.
    let one = [numbers(&[8, 1]), inputs[1].clone(), numbers(&[8, 5])];
    check(&one, |x| vec![x[0].broadcast_to([8, 10]).take(x[1], 1).mul(x[2])]).unwrap();
}

#[test]
fn halves_are_looked_up_as_they_are() {
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let inputs = [converted(&numbers(&[20, 64]), dtype), indices(DType::I32, &[9], 20), numbers(&[9, 64])];
        check_fused(&inputs, 1, |x| vec![x[0].take(x[1], 0).cast(DType::F64).mul(x[2])]);
        check(&inputs, |x| vec![x[0].take(x[1], 0).add(x[2].cast(dtype)).exp()]).unwrap();
    }
}

#[test]
fn results_that_others_use_stay_in_memory() {
    let inputs = [numbers(&[8, 10]), indices(DType::I32, &[5], 8), numbers(&[5, 10])];
    check_fused(&inputs, 0, |x| {
        let rows = x[0].take(x[1], 0);
        vec![rows.mul(x[2]), rows]
    });
    check_fused(&inputs, 0, |x| {
        vec![x[0].take(x[1], 0).matmul(x[2].permute([1, 0])).add(x[2].matmul(x[2].permute([1, 0])))]
    });
}

#[test]
fn a_table_of_one_row_does_not_share_memory_with_the_result() {
    let inputs = [numbers(&[1, 70]), indices(DType::I32, &[1], 1), numbers(&[1, 70])];
    check_fused(&inputs, 1, |x| {
        let table = x[0].exp().mul(x[2]).sin();
        vec![table.take(x[1], 0).mul(x[2]).add(x[2]).sum_axis(0)]
    });
}

#[test]
fn tensors_without_elements_are_looked_up() {
    for [extent, n, width] in [[0, 0, 4], [3, 0, 4], [3, 2, 0], [0, 0, 0]] {
        let inputs = [numbers(&[extent, width]), indices(DType::I64, &[n], extent.max(1)), numbers(&[n, width])];
        check(&inputs, |x| vec![x[0].take(x[1], 0).mul(x[2]), x[0].take(x[1], 0).exp().sum_axis(0)]).unwrap();
    }
    let inputs = [numbers(&[0, 4]), indices(DType::I32, &[2], 1), numbers(&[2, 4])];
    let error = check(&inputs, |x| vec![x[0].take(x[1], 0).mul(x[2])]).expect_err("there is no row");
    assert!(error.starts_with("take: index 0 at [0] is out of bounds for axis 0 of extent 0"), "{error}");
}

#[test]
fn an_index_out_of_range_is_the_error_of_the_lookup() {
    let table = numbers(&[2, 6, 3]);
    for (ids, at) in
        [([0, 5, 6], "index 6 at [2]"), ([2, -1, 9], "index -1 at [1]"), ([i32::MIN, 0, 0], "index -2147483648 at [0]")]
    {
        let inputs = [table.clone(), HostTensor::new([3], ids.to_vec()), numbers(&[2, 3, 3])];
        let f = |x: &[AnyValue]| vec![x[0].take(x[1], 1).mul(x[2]).add(x[2]).sum()];
        let (outcome, n) = run(&inputs, f);
        let error = outcome.expect_err("an index is out of range");
        assert_eq!(n, 1);
        assert_eq!(error, format!("take: {at} is out of bounds for axis 1 of extent 6"));
        // The extent is that of the view.
        let f = |x: &[AnyValue]| vec![x[0].slice(1, 1, 5).take(x[1], 1).mul(x[2]).add(x[2]).sum()];
        assert!(check(&inputs, f).expect_err("an index is out of range").ends_with("for axis 1 of extent 4"));
    }
    // An operation that can fail reads the rows in memory.
    let inputs = [HostTensor::new([3], vec![4, 0, -2]), HostTensor::new([2], vec![2, 1])];
    let error = check(&inputs, |x| vec![x[1].div(x[0].take(x[1], 0))]).expect_err("it divides by zero");
    assert!(error.starts_with("div: "), "{error}");
    // The first error in the order of the graph is that of the lookup, although its rows are used
    // after the division.
    let inputs = [numbers(&[4, 2]), HostTensor::new([2], vec![0, 4]), HostTensor::new([2], vec![0, 0])];
    let error = check(&inputs, |x| {
        let rows = x[0].take(x[1], 0);
        let quotient = x[1].div(x[2]).cast(DType::F64).unsqueeze(1).broadcast_to([2, 2]);
        vec![rows.mul(quotient).sum()]
    });
    assert!(error.expect_err("an index is out of range").starts_with("take: index 4 at [1]"));
}

#[test]
fn tables_that_loops_change_are_read_as_they_were() {
    let inputs = [numbers(&[6, 40]), indices(DType::I32, &[3], 6), numbers(&[3, 40])];
    let f = |x: &[AnyValue]| {
        let number = |i: i32| constant(HostTensor::scalar(i));
        let (mut staged, v) = WhileTrace::begin(&[x[0], x[2], number(0), x[1]], &[]);
        let v = staged.begin_body(v[2].lt(number(4)));
        let rows = v[0].take(v[3], 0);
        // The table is updated before the rows are used.
        let table = v[0].scatter_add(v[3], v[1], 0);
        let sum = rows.mul(v[1]).add(v[1]);
        let results = staged.end(&[table, sum, v[2].add(number(1)), v[3]], &[]);
        results[..2].to_vec()
    };
    check(&inputs, f).unwrap_or_else(|e| panic!("{e}"));
}
