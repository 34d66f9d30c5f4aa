//! Runs functions on every engine and compares the results.

use anabranch::DType;
use anabranch::dsl::HostTensor;
use anabranch::dsl::equality::same_number;
use anabranch::dsl::function::{Arguments, CallArgs, GraphFn, trace_fn};
use anabranch::prelude::*;
use engines::{Engines, Outcome};

pub mod engines;
pub mod plans;
pub mod random_placement;

/// Calls `f` on the interpreter and on a compiled plan, each with the initial values of variables.
///
/// All results must be equal to `expected` (all elements of all outputs, in order) within a
/// relative error of 1e-9, or 1e-5 for `f32`, 1e-3 for `f16`, 1e-2 for `bf16`.
#[track_caller]
pub fn check<Args, F: GraphFn<Args>>(f: F, args: impl CallArgs<Args>, expected: &[f64]) {
    for (engine, outputs) in run_all(f, args) {
        let outputs = outputs.unwrap_or_else(|e| panic!("{engine}: {e}"));
        let mut got = Vec::new();
        let mut tolerance = 1e-9;
        for t in &outputs {
            tolerance = match t.dtype() {
                DType::F32 => 1e-5,
                DType::F16 => 1e-3,
                DType::BF16 => 1e-2,
                _ => tolerance,
            };
            got.extend(numbers(t));
        }
        assert_eq!(got.len(), expected.len(), "{engine}: {got:?} is not {expected:?}");
        for (g, e) in got.iter().zip(expected) {
            let same = same_number(*g, *e) || (g - e).abs() <= tolerance * e.abs().max(1.0);
            assert!(same, "{engine}: {got:?} is not {expected:?}");
        }
    }
}

/// Returns the errors of a call: that of the trace, or those of each engine at run time.
#[track_caller]
pub fn errors_of<Args, F: GraphFn<Args>>(
    f: F,
    args: impl CallArgs<Args>,
) -> Vec<(&'static str, anabranch::Diagnostic)> {
    run_all(f, args)
        .into_iter()
        .map(|(engine, r)| (engine, r.err().unwrap_or_else(|| panic!("{engine}: an error was expected"))))
        .collect()
}

/// Returns the error of a call: that of the trace, or the common one of all engines at run time.
#[track_caller]
pub fn error_of<Args, F: GraphFn<Args>>(f: F, args: impl CallArgs<Args>) -> anabranch::Diagnostic {
    let mut errors = errors_of(f, args);
    let (_, first) = errors.remove(0);
    for (engine, other) in errors {
        assert_eq!(first, other, "{engine} has another error");
    }
    first
}

fn run_all<Args, F: GraphFn<Args>>(f: F, args: impl CallArgs<Args>) -> Vec<(&'static str, Outcome)> {
    let arguments = Arguments::of(args);
    let (inputs, signature) = (arguments.tensors().to_vec(), arguments.signature());
    let traced = match trace_fn("test", &f, &signature) {
        Ok((traced, _)) => traced,
        Err(e) => return vec![("trace", Err(e))],
    };
    let verified = anabranch::dsl::ir::verify(&traced.graph);
    assert!(verified.is_ok(), "{}\n{verified:?}", traced.graph);
    let vars: Vec<HostTensor> = traced.vars.iter().map(|v| v.init().clone()).collect();
    let mut outcomes = Engines::new(&traced.graph, signature.types()).run(&inputs, &vars);
    let session = Session::new().expect("a session on the CPU");
    outcomes.push(("session", session.function(f).and_then(|f| f.call_host(&inputs))));
    outcomes
}

/// Returns all elements as `f64`.
pub fn numbers(t: &HostTensor) -> Vec<f64> {
    use anabranch::dsl::Buffer;
    match t.buffer() {
        Buffer::F32(d) => d.iter().map(|&x| x.into()).collect(),
        Buffer::F64(d) => d.clone(),
        Buffer::F16(d) => d.iter().map(|&x| x.into()).collect(),
        Buffer::BF16(d) => d.iter().map(|&x| x.into()).collect(),
        Buffer::I32(d) => d.iter().map(|&x| x.into()).collect(),
        Buffer::I64(d) => d.iter().map(|&x| x as f64).collect(),
        Buffer::U32(d) => d.iter().map(|&x| x.into()).collect(),
        Buffer::U8(d) => d.iter().map(|&x| x.into()).collect(),
        Buffer::Bool(d) => d.iter().map(|&x| f64::from(u8::from(x))).collect(),
    }
}
