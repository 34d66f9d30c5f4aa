//! The corpus of operations through plans: unchanged, optimized, and inside a loop.

use crate::support::while_loop;
use anabranch_dsl::corpus::{self, Outcome, cases, parameters};
use anabranch_dsl::passes::Pipeline;
use anabranch_dsl::{DType, Graph, HostTensor, Result, TensorType, trace};
use anabranch_runtime::{Program, RandomPlacement, RandomlyPlacedProgram};

fn run(graph: &Graph, inputs: &[HostTensor]) -> Result<Vec<HostTensor>> {
    let program = Program::new(graph.clone())?;
    let first = program.run(inputs, &mut vec![]);
    let second = program.run(inputs, &mut vec![]);
    assert_eq!(first, second, "two runs give the same\n{}", program.explain());
    first
}

#[test]
fn every_case_by_its_plan() {
    corpus::check(run);
}

#[test]
fn every_case_without_fusion() {
    corpus::check(|graph, inputs| Program::without_fusion(graph.clone())?.run(inputs, &mut vec![]));
}

#[test]
fn every_case_with_all_parts_of_the_compiler_off() {
    corpus::check(|graph, inputs| Program::unoptimized(graph.clone())?.run(inputs, &mut vec![]));
}

#[test]
fn every_case_without_native_code() {
    corpus::check(|graph, inputs| Program::without_native_code(graph.clone())?.run(inputs, &mut vec![]));
}

#[test]
fn every_case_on_devices_whose_memory_the_host_cannot_see() {
    for (devices, opaque, lower_everything) in [(1, 1, false), (2, 2, true), (2, 1, true)] {
        let how = RandomPlacement { devices, opaque, lower_everything, seed: 3, ..RandomPlacement::default() };
        corpus::check(|graph, inputs| RandomlyPlacedProgram::new(graph.clone(), how)?.run(inputs, &mut []));
    }
}

#[test]
fn every_case_optimized() {
    corpus::check(|graph, inputs| {
        let mut graph = graph.clone();
        Pipeline::standard().run(&mut graph);
        run(&graph, inputs)
    });
}

/// Inside a loop the operands are captured, and the result is computed repeatedly into the same
/// memory, with each part of the compiler enabled and disabled.
#[test]
fn every_case_in_a_loop() {
    let mut n = 0;
    for case in cases() {
        let Ok(single) = case.graph() else { continue };
        if !matches!(case.outcome, Outcome::Output(_)) {
            continue;
        }
        let types: Vec<TensorType> = case.inputs.iter().map(HostTensor::ty).collect();
        let traced = trace::trace("loop", || {
            let x = parameters(&types);
            let constant = |i: i32| trace::constant(HostTensor::scalar(i));
            let start = case.emit(&x);
            let r = while_loop(
                &[constant(0), start],
                |s| s[0].lt(constant(2)),
                |s| vec![s[0].add(constant(1)), case.emit(&x)],
            );
            r[1..].to_vec()
        });
        let traced = traced.unwrap_or_else(|e| panic!("{e}"));
        let expected = run(&single, &case.inputs);
        assert_eq!(run(&traced.graph, &case.inputs), expected, "{}: {}", case.op.name, case.name);
        let optimized = |pipeline: Pipeline| {
            let mut graph = traced.graph.clone();
            pipeline.run(&mut graph);
            graph
        };
        let unhoisted = || optimized(Pipeline::standard().without("merge_products").without("hoist_matmuls"));
        let engines = [
            ("optimized", Program::new(optimized(Pipeline::standard()))),
            ("without hoisting", Program::new(unhoisted())),
            ("without fusion", Program::without_fusion(optimized(Pipeline::standard()))),
            ("without native code", Program::without_native_code(optimized(Pipeline::standard()))),
            ("with all of these off", Program::unoptimized(unhoisted())),
        ];
        for (engine, program) in engines {
            let given = program.and_then(|program| program.run(&case.inputs, &mut vec![]));
            let wrong = case.verdict(&given);
            assert!(wrong.is_none(), "{engine}: {}: {}: {wrong:?}", case.op.name, case.name);
        }
        n += 1;
    }
    assert!(n > 100, "only {n} cases");
}

/// With known shapes, no operation of the table runs its reference implementation. `with_dynamic`,
/// which hides shapes, and `zeros_of`, which makes tensors from shapes, are exempt, and operations
/// on strings, whose tensors are in slots.
#[test]
fn every_operation_has_a_kernel() {
    for case in cases() {
        let Ok(graph) = case.graph() else { continue };
        let values = || graph.inputs().iter().chain(graph.outputs());
        let has_strings = values().any(|&v| graph.ty(v).element().dtype == DType::Bytes);
        if has_strings || ["with_dynamic", "zeros_of"].contains(&case.op.name) {
            continue;
        }
        let text = Program::new(graph).unwrap_or_else(|e| panic!("{e}")).explain();
        assert!(!text.contains("reference"), "{}: {}\n{text}", case.op.name, case.name);
    }
}
