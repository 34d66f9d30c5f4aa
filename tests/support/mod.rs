//! Runs a function on every engine and compares.

use anabranch::dsl::function::{CallArgs, GraphFn, trace_fn};
use anabranch::dsl::{HostTensor, TensorType, interp};
use anabranch::prelude::*;

/// Calls `f` on the interpreter and on a compiled plan, each with variables as they are initially; all results must be
/// equal to `expected` (all elements of all outputs, in order) within a relative error of 1e-9, or 1e-5 for `f32`.
#[track_caller]
pub fn check<Args, F: GraphFn<Args>>(f: F, args: impl CallArgs<Args>, expected: &[f64]) {
    for (engine, outputs) in run_all(f, args) {
        let outputs = outputs.unwrap_or_else(|e| panic!("{engine}: {e}"));
        let mut got = Vec::new();
        let mut tolerance = 1e-9;
        for t in &outputs {
            if t.dtype() == anabranch::DType::F32 {
                tolerance = 1e-5;
            }
            got.extend(numbers(t));
        }
        assert_eq!(got.len(), expected.len(), "{engine}: {got:?} is not {expected:?}");
        for (g, e) in got.iter().zip(expected) {
            let same = g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= tolerance * e.abs().max(1.0);
            assert!(same, "{engine}: {got:?} is not {expected:?}");
        }
    }
}

/// The error of a call: of the trace, or the same one of all engines at run time.
#[track_caller]
pub fn error_of<Args, F: GraphFn<Args>>(f: F, args: impl CallArgs<Args>) -> anabranch::Diagnostic {
    let mut errors: Vec<(&str, anabranch::Diagnostic)> = run_all(f, args)
        .into_iter()
        .map(|(engine, r)| (engine, r.err().unwrap_or_else(|| panic!("{engine}: an error was expected"))))
        .collect();
    let (_, first) = errors.remove(0);
    for (engine, other) in errors {
        assert_eq!(first, other, "{engine} has another error");
    }
    first
}

type Outcome = Result<Vec<HostTensor>, anabranch::Diagnostic>;

fn run_all<Args, F: GraphFn<Args>>(f: F, args: impl CallArgs<Args>) -> Vec<(&'static str, Outcome)> {
    let mut inputs = Vec::new();
    args.feed_all(&mut inputs);
    let signature: Vec<TensorType> = inputs.iter().map(HostTensor::ty).collect();
    let traced = match trace_fn("test", &f, &signature) {
        Ok((traced, _)) => traced,
        Err(e) => return vec![("trace", Err(e))],
    };
    let verified = anabranch::dsl::ir::verify(&traced.graph);
    assert!(verified.is_ok(), "{}\n{verified:?}", traced.graph);
    let mut vars: Vec<HostTensor> = traced.vars.iter().map(|v| v.init().clone()).collect();
    let interpreted = interp::run(&traced.graph, &inputs, &mut vars, interp::Options::default());
    let f = &f;
    let compiled = |session: anabranch_runtime::Builder| {
        session.build().and_then(|s| s.function(f)).and_then(|f| f.call_host(&inputs))
    };
    let mut vars: Vec<HostTensor> = traced.vars.iter().map(|v| v.init().clone()).collect();
    let portable = anabranch_runtime::Program::without_native_code(traced.graph);
    let portable = portable.and_then(|program| program.run(&inputs, &mut vars));
    vec![
        ("interpreter", interpreted),
        ("plan", compiled(Session::builder())),
        ("plan without fusion", compiled(Session::builder().fusion(false))),
        ("plan without hoisting", compiled(Session::builder().hoisting(false))),
        ("plan without native code", compiled(Session::builder().native_code(false))),
        ("plan with nothing", compiled(Session::builder().fusion(false).hoisting(false).native_code(false))),
        ("plan of what was traced, without native code", portable),
    ]
}

/// All elements as `f64`.
pub fn numbers(t: &HostTensor) -> Vec<f64> {
    use anabranch::dsl::Buffer;
    match t.buffer() {
        Buffer::F32(d) => d.iter().map(|&x| x.into()).collect(),
        Buffer::F64(d) => d.clone(),
        Buffer::I32(d) => d.iter().map(|&x| x.into()).collect(),
        Buffer::I64(d) => d.iter().map(|&x| x as f64).collect(),
        Buffer::U32(d) => d.iter().map(|&x| x.into()).collect(),
        Buffer::U8(d) => d.iter().map(|&x| x.into()).collect(),
        Buffer::Bool(d) => d.iter().map(|&x| f64::from(u8::from(x))).collect(),
    }
}
