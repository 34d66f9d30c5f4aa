//! Runs functions on every engine and compares the results.

use anabranch::DType;
use anabranch::dsl::HostTensor;
use anabranch::dsl::equality::{one_nan_each, same_number};
use anabranch::dsl::function::{Arguments, CallArgs, GraphFn, trace_fn};
use anabranch::prelude::*;
use engines::{Engines, Outcome};
use std::fmt::Debug;

#[macro_use]
pub mod agree;
pub mod dual;
pub mod engines;
pub mod fixture;
pub mod gpus;
pub mod plans;
pub mod random_placement;
pub mod real_peers;
pub mod sessions;
pub mod waits;
pub mod wgsl;

/// Calls `f` on the interpreter and on a compiled plan, each with the initial values of variables.
///
/// All results must be equal to `expected` (all elements of all outputs, in order) within a
/// relative error of 1e-9, or 1e-5 for `f32`, 1e-3 for `f16`, 1e-2 for `bf16`.
#[track_caller]
pub fn check<Args, F: GraphFn<Args>>(f: F, args: impl CallArgs<Args>, expected: &[f64]) {
    check_outcomes(run_all(f, &Arguments::of(args)), expected);
}

/// Calls a function like [`check`], for each of several arguments of the same types and what is
/// expected of them. It is compiled once.
#[track_caller]
pub fn check_each<Args, A: CallArgs<Args>, E: AsRef<[f64]>>(
    f: impl GraphFn<Args>,
    cases: impl IntoIterator<Item = (A, E)>,
) {
    let cases = cases.into_iter().map(|(args, expected)| (Arguments::of(args), expected));
    let cases: Vec<(Arguments, E)> = cases.collect();
    let (first, _) = cases.first().expect("there is something to run");
    let compiled = CompiledEverywhere::new(f, first).unwrap_or_else(|e| panic!("{e}"));
    for (arguments, expected) in &cases {
        assert_eq!(arguments.signature().types(), first.signature().types());
        check_outcomes(compiled.run(arguments), expected.as_ref());
    }
}

/// Calls a function like [`check`], whose outputs must be exactly these tensors, where all NaNs are
/// equal.
#[track_caller]
pub fn check_tensors<Args, F: GraphFn<Args>>(f: F, args: impl CallArgs<Args>, expected: &[HostTensor]) {
    for (engine, outputs) in run_all(f, &Arguments::of(args)) {
        let outputs = outputs.unwrap_or_else(|e| panic!("{engine}: {e}"));
        assert_eq!(one_nan_each(&outputs), one_nan_each(expected), "{engine}");
    }
}

/// Calls a function of tensors like [`check`], for each of several inputs of the same types. The
/// results must be those of some Rust functions, which have names for messages.
#[track_caller]
pub fn check_against_rust<Args, A: CallArgs<Args> + Copy + Debug>(
    staged: impl GraphFn<Args>,
    rust: &[(&str, &dyn Fn(A) -> i32)],
    inputs: impl IntoIterator<Item = A>,
) {
    let inputs: Vec<A> = inputs.into_iter().collect();
    let first = Arguments::of(*inputs.first().expect("there is something to run"));
    let compiled = CompiledEverywhere::new(staged, &first).unwrap_or_else(|e| panic!("{e}"));
    for input in inputs {
        let (_, plain) = rust[0];
        let expected = plain(input);
        for (name, version) in rust {
            assert_eq!(version(input), expected, "{name}, {input:?}");
        }
        check_outcomes(compiled.run(&Arguments::of(input)), &[expected.into()]);
    }
}

/// Checks that all engines returned these elements.
#[track_caller]
fn check_outcomes(outcomes: Vec<(&'static str, Outcome)>, expected: &[f64]) {
    for (engine, outputs) in outcomes {
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
    run_all(f, &Arguments::of(args))
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

/// Returns the message of the error of a trace, which must be placed in a file.
pub fn message_of_error_in(file: &str, f: &dyn Fn() -> Tensor<f64>) -> String {
    let error = eval(f).unwrap_err();
    assert_eq!(error.loc().expect("a location").file, file, "{error}");
    error.message
}

fn run_all<Args, F: GraphFn<Args>>(f: F, arguments: &Arguments) -> Vec<(&'static str, Outcome)> {
    match CompiledEverywhere::new(f, arguments) {
        Ok(compiled) => compiled.run(arguments),
        Err(e) => vec![("trace", Err(e))],
    }
}

/// A function compiled for every engine and by a session.
struct CompiledEverywhere<F: GraphFn<Args>, Args> {
    engines: Engines,
    vars: Vec<HostTensor>,
    session: anabranch::Result<Function<F, Args>>,
}

impl<Args, F: GraphFn<Args>> CompiledEverywhere<F, Args> {
    /// Traces the function for arguments of these types. Returns the error of the trace.
    fn new(f: F, arguments: &Arguments) -> anabranch::Result<CompiledEverywhere<F, Args>> {
        let signature = arguments.signature();
        let (traced, _) = trace_fn("test", &f, &signature)?;
        let verified = anabranch::dsl::ir::verify(&traced.graph);
        assert!(verified.is_ok(), "{}\n{verified:?}", traced.graph);
        Ok(CompiledEverywhere {
            engines: Engines::new(&traced.graph, signature.types()),
            vars: traced.vars.iter().map(|v| v.init().clone()).collect(),
            session: Session::new().expect("a session on the CPU").function(f),
        })
    }

    fn run(&self, arguments: &Arguments) -> Vec<(&'static str, Outcome)> {
        let mut outcomes = self.engines.run(arguments.tensors(), &self.vars);
        let function = self.session.as_ref().map_err(Clone::clone);
        outcomes.push(("session", function.and_then(|f| f.call_host(arguments.tensors()))));
        outcomes
    }
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
        Buffer::Bytes(_) => panic!("strings are no numbers"),
    }
}
