//! Control flow without the macro, and the comparison of the plan with the interpreter.

pub mod functions;

use anabranch_dsl::equality::{one_nan_each, same_number};
use anabranch_dsl::ops::PoolOptions;
use anabranch_dsl::trace::{self, CondTrace, Traced, WhileTrace};
use anabranch_dsl::{AnyValue, Buffer, DType, HostTensor, TensorType, derivatives, interp};
use anabranch_runtime::Program;

/// Builds a staged loop over untyped handles.
#[track_caller]
pub fn while_loop(
    init: &[AnyValue],
    cond: impl Fn(&[AnyValue]) -> AnyValue,
    body: impl Fn(&[AnyValue]) -> Vec<AnyValue>,
) -> Vec<AnyValue> {
    let (mut t, params) = WhileTrace::begin(init, &[]);
    let pred = cond(&params);
    let params = t.begin_body(pred);
    let next = body(&params);
    t.end(&next, &[])
}

/// Builds a staged branch over untyped handles.
#[track_caller]
pub fn branch(
    pred: AnyValue,
    then: impl FnOnce() -> Vec<AnyValue>,
    otherwise: impl FnOnce() -> Vec<AnyValue>,
) -> Vec<AnyValue> {
    let mut t = CondTrace::begin(pred);
    let a = then();
    t.select(1);
    let b = otherwise();
    t.end(&a, &b, &[])
}

/// Traces a function of untyped handles.
pub fn traced(inputs: &[HostTensor], f: impl FnOnce(&[AnyValue]) -> Vec<AnyValue>) -> Traced {
    let types: Vec<TensorType> = inputs.iter().map(HostTensor::ty).collect();
    let t = trace::trace("test", || {
        let params: Vec<AnyValue> = types.into_iter().map(|ty| trace::input(ty, None)).collect();
        f(&params)
    });
    t.unwrap_or_else(|e| panic!("{e}"))
}

/// Runs a function by the interpreter and twice by its plan. The outputs, variables and errors must
/// be the same. Returns the outputs.
#[track_caller]
pub fn check(inputs: &[HostTensor], f: impl FnOnce(&[AnyValue]) -> Vec<AnyValue>) -> Result<Vec<HostTensor>, String> {
    check_traced(&traced(inputs, f), inputs)
}

/// See [`check`].
#[track_caller]
pub fn check_traced(traced: &Traced, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, String> {
    let init: Vec<HostTensor> = traced.vars.iter().map(|v| v.init().clone()).collect();
    let mut expected_vars = init.clone();
    let expected = interp::run(&traced.graph, inputs, &mut expected_vars, interp::InterpOptions::default());
    let fused = Program::new(traced.graph.clone()).unwrap_or_else(|e| panic!("{e}"));
    let single = Program::without_fusion(traced.graph.clone()).unwrap_or_else(|e| panic!("{e}"));
    let plain = Program::unoptimized(traced.graph.clone()).unwrap_or_else(|e| panic!("{e}"));
    let rounds = [("first", &fused), ("second", &fused), ("without fusion", &single), ("with all off", &plain)];
    for (round, program) in rounds {
        let mut vars = init.clone();
        let got = program.run(inputs, &mut vars);
        match (&got, &expected) {
            (Ok(got), Ok(expected)) => {
                assert_eq!(got.len(), expected.len());
                for (g, e) in got.iter().zip(expected).chain(vars.iter().zip(&expected_vars)) {
                    assert!(close(g, e), "{round}: {} is not {}\n{}", short(g), short(e), program.explain());
                }
            }
            (Err(got), Err(expected)) => {
                assert_eq!(got, expected, "{round}\n{}", program.explain());
                assert_eq!(vars, init, "a failing step changed a variable");
            }
            _ => panic!("{round}: {got:?} is not {expected:?}\n{}", program.explain()),
        }
    }
    expected.map_err(|e| e.message)
}

/// Returns whether two tensors have the same type and are equal within rounding.
pub fn close(a: &HostTensor, b: &HostTensor) -> bool {
    fn near(x: f64, y: f64, eps: f64) -> bool {
        same_number(x, y) || (x - y).abs() <= eps * x.abs().max(y.abs()).max(1.0)
    }
    a.ty() == b.ty()
        && match (a.buffer(), b.buffer()) {
            (Buffer::F32(x), Buffer::F32(y)) => x.iter().zip(y).all(|(&x, &y)| near(x.into(), y.into(), 1e-5)),
            (Buffer::F64(x), Buffer::F64(y)) => x.iter().zip(y).all(|(&x, &y)| near(x, y, 1e-10)),
            // Sums in a different order differ by about one rounding.
            (Buffer::F16(x), Buffer::F16(y)) => x.iter().zip(y).all(|(&x, &y)| near(x.into(), y.into(), 1e-3)),
            (Buffer::BF16(x), Buffer::BF16(y)) => x.iter().zip(y).all(|(&x, &y)| near(x.into(), y.into(), 8e-3)),
            _ => a == b,
        }
}

/// Runs a function on `n` threads.
pub fn on_threads<R: Send>(n: usize, f: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("threads").install(f)
}

/// Runs a program on one thread and on several: the outputs must be bitwise identical.
#[track_caller]
pub fn check_threads(program: &Program, inputs: &[HostTensor]) {
    let run = |n| {
        let outputs = on_threads(n, || program.run(inputs, &mut vec![])).unwrap_or_else(|e| panic!("{e}"));
        one_nan_each(&outputs)
    };
    let one = run(1);
    for n in [2, 3, 5, 7] {
        let shapes: Vec<_> = inputs.iter().map(HostTensor::shape).collect();
        assert!(
            run(n) == one,
            "{n} threads give something else for inputs of shapes {shapes:?}\n{}",
            program.explain()
        );
    }
}

/// Returns a tensor as text that fits into a message.
pub fn short(t: &HostTensor) -> String {
    t.to_string().chars().take(500).collect()
}

/// Runs an `f32` function by the interpreter and by its plan. Each output must be within
/// `tolerance` of its largest element, since rounding errors of sums scale with the largest terms.
#[track_caller]
pub fn check_f32(inputs: &[HostTensor], tolerance: f32, f: impl FnOnce(&[AnyValue]) -> Vec<AnyValue>) {
    let graph = traced(inputs, f).graph;
    let expected = interp::run(&graph, inputs, &mut vec![], interp::InterpOptions::default()).expect("it runs");
    let program = Program::new(graph).unwrap_or_else(|e| panic!("{e}"));
    for (given, expected) in program.run(inputs, &mut vec![]).expect("it runs").iter().zip(&expected) {
        let (given, expected) = (given.data::<f32>(), expected.data::<f32>());
        let largest = expected.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let far = given.iter().zip(expected).position(|(g, e)| (g - e).abs() > tolerance * largest);
        assert_eq!(
            far,
            None,
            "of shapes {:?}\n{}",
            inputs.iter().map(HostTensor::shape).collect::<Vec<_>>(),
            program.explain()
        );
    }
}

/// Returns irregular numbers around zero.
pub fn numbers(shape: &[usize], dtype: DType) -> HostTensor {
    let n: usize = shape.iter().product();
    let at = |i: usize| ((i * 7919 + 13) % 1009) as f64 / 500.0 - 1.0;
    match dtype {
        DType::F32 => HostTensor::new(shape, (0..n).map(|i| at(i) as f32).collect::<Vec<_>>()),
        _ => HostTensor::new(shape, (0..n).map(at).collect::<Vec<_>>()),
    }
}

/// Returns every pooling of a tensor, with first and second gradients.
pub fn pooled<const D: usize>(x: AnyValue, options: &PoolOptions<D>) -> Vec<AnyValue> {
    let mut results = Vec::new();
    for y in [x.max_pool(options), x.avg_pool(options), x.avg_pool(&options.count_padding(false))] {
        let loss = y.mul(y).mul(y + 1.0).sum();
        let dx = derivatives::vjp(&[(loss, loss.number(1.0))], &[x])[0];
        let slope = dx.mul(dx).sum();
        results.extend([y, dx, derivatives::vjp(&[(slope, slope.number(1.0))], &[x])[0]]);
    }
    results
}

/// Returns the instructions of a plan that is explained, without its fused kernels.
pub fn instructions(explained: &str) -> &str {
    explained.split_once("  fused kernels:").map_or(explained, |(instructions, _)| instructions)
}
