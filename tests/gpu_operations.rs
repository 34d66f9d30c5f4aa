//! All operations on a GPU, as far as there are shaders, and the list of those without one.

use super::support::gpus::adapter;
use anabranch::dsl::corpus;
use anabranch::dsl::ops::{self, Arity, GPU_ULPS, OpClass, prim};
use anabranch::dsl::{DType, Graph, HostTensor, interp};
use anabranch_runtime::{RandomPlacement, RandomlyPlacedProgram};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

/// Runs a graph, all nodes of which have shaders, on a GPU alone.
fn run(graph: &Graph, inputs: &[HostTensor]) -> anabranch::Result<Vec<HostTensor>> {
    let how = RandomPlacement { devices: 1, gpus: 1, prefers_gpu: true, ..RandomPlacement::default() };
    RandomlyPlacedProgram::new(graph.clone(), how)?.run(inputs, &mut [])
}

#[test]
fn every_case_of_an_operation_holds_there_or_is_known_to_have_no_shader() {
    if adapter().is_none() {
        return;
    }
    let (mut n_there, mut wrong) = (0, String::new());
    // The operations of which a case ran there.
    let mut there: BTreeSet<&str> = BTreeSet::new();
    let mut without: BTreeSet<(String, String)> = BTreeSet::new();
    for case in corpus::cases() {
        let Ok(graph) = case.graph() else { continue };
        let reasons = RandomlyPlacedProgram::without_shader(&graph);
        if !reasons.is_empty() {
            without.extend(reasons.into_iter().map(|(_, reason)| (case.op.name.to_owned(), reason)));
            continue;
        }
        n_there += 1;
        there.insert(case.op.name);
        if let Some(why) = case.verdict_on_gpu(&run(&graph, &case.inputs)) {
            writeln!(wrong, "{}: {}: {why}", case.op.name, case.name).expect("a string takes all text");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(n_there > 500, "only {n_there} cases ran on a GPU");
    let products = [prim::MATMUL, prim::CONV, prim::CONV_INPUT_GRAD, prim::CONV_WEIGHT_GRAD];
    for op in products.into_iter().chain([prim::ATTENTION, prim::ATTENTION_GRAD]) {
        assert!(there.contains(op.name), "no case of `{op}` ran on a GPU");
    }
    // An operation that gets a shader must leave the list.
    let mut now = String::new();
    for (op, reason) in without {
        writeln!(now, "{op}: {reason}").expect("a string takes all text");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/without_shader.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, now).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(golden == now, "{}: now\n{now}\nBLESS=1 writes the list as it is now", path.display());
}

/// Numbers of all magnitudes for which results are finite, and those where functions change.
fn numbers() -> Vec<f32> {
    let magnitudes = (-24..=12).flat_map(|e| [1.0f32, 1.3, 1.9].map(|x| x * 2f32.powi(e)));
    magnitudes.flat_map(|x| [x, -x]).chain([0.0]).collect()
}

#[test]
fn every_scalar_function_is_within_its_bound_there() {
    if adapter().is_none() {
        return;
    }
    let (mut n, x) = (0, numbers());
    let inputs = [HostTensor::new([x.len()], x.clone())];
    for op in ops::all() {
        let has_form = matches!(op.class, OpClass::Scalar(_)) && op.scalar_form(DType::F32).is_some();
        if !has_form || op.arity != Arity::Exactly(1) {
            continue;
        }
        let (name, ty) = (op.name, format!("f32[{}]", x.len()));
        let text = format!("graph @f(%x: {ty}) -> {ty} {{ %y = {name} %x  return %y }}");
        // Those that have attributes or another type are cases of the corpus.
        let Ok(graph) = Graph::parse(&text, "f.ir") else { continue };
        let expected =
            interp::run(&graph, &inputs, &mut vec![], interp::InterpOptions::default()).expect("it has a value");
        let given = run(&graph, &inputs).expect("it has a value");
        for ((x, expected), given) in x.iter().zip(expected[0].data::<f32>()).zip(given[0].data::<f32>()) {
            if !expected.is_finite() {
                continue;
            }
            let bound = GPU_ULPS * f64::from(f32::EPSILON);
            let bound = bound * f64::from(expected.abs().max(1.0)) * f64::from(x.abs().max(1.0));
            let error = (f64::from(*expected) - f64::from(*given)).abs();
            assert!(error <= bound, "{name}({x}) is {given}, not {expected}: {error:e} exceeds {bound:e}");
        }
        n += 1;
    }
    assert!(n > 20, "only {n} functions");
}
