//! Runs programs on every engine and compares them with plain Rust.
//!
//! [`run`] is the `main` of a crate of programs. The function writes a line for each program as
//! soon as its result is known: `ok`, or `differs` with the difference. The function writes `empty`
//! for a program without an input that plain Rust can run.

use crate::dual::Dual;
use crate::plans::Plans;
use crate::rng::Rng;
use anabranch::dsl::equality::{one_nan_each, same_number};
use anabranch::dsl::{Buffer, function::trace_fn, interp, ir};
use anabranch::{DType, HostTensor, Tensor, TensorType, gradients};
use anabranch_runtime::{Program, RandomPlacement, RandomlyPlacedProgram};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The types of a program's parameters and results, for floats of type `$f` and integers of type
/// `$i`.
macro_rules! function {
    ($i:ty, $f:ty) => {
        fn($i, $i, $i, $f, $f) -> ($i, $f)
    };
}

/// The compiled texts of a program.
#[derive(Debug)]
#[expect(clippy::type_complexity, reason = "what the macro writes is read as its call")]
pub enum CompiledProgram {
    /// With `f32`.
    Values {
        /// The seed of the inputs.
        seed: u64,
        /// The plain function, which defines the result.
        plain: function!(i32, f32),
        /// The expansion over host values.
        host: Option<function!(i32, f32)>,
        /// The expansion over tensors.
        staged: function!(Tensor<i32>, Tensor<f32>),
    },
    /// With `f64`.
    Gradients {
        /// The seed of the inputs.
        seed: u64,
        /// The plain function, which defines the result.
        plain: function!(i32, Dual),
        /// The expansion over host values.
        host: Option<function!(i32, Dual)>,
        /// The expansion over tensors.
        staged: function!(Tensor<i32>, Tensor<f64>),
    },
}

/// ProgramInputs of a program.
#[derive(Clone, Copy, Debug)]
struct ProgramInputs {
    ints: [i32; 3],
    floats: [f64; 2],
}

/// The result of a program: the integer, the float, and its derivatives if they are requested.
#[derive(Clone, Debug)]
struct Computed {
    int: i32,
    float: f64,
    by: Option<[f64; 2]>,
}

/// One of so many programs runs on a GPU.
const ON_GPU: u64 = 4;

/// The iteration counts of the inputs.
const TRIPS: [i32; 6] = [0, 1, 2, 7, 3, 12];

/// Compares all programs, starting with the number in the first argument.
pub fn run(cases: &[CompiledProgram]) {
    let first = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    // Panics are caught and reported as differences.
    std::panic::set_hook(Box::new(|_| {}));
    for (i, case) in cases.iter().enumerate().skip(first) {
        let (word, text) = match catch(|| compare(case)) {
            Ok(Ok(Found { compared: 0, .. })) => ("empty", String::new()),
            Ok(Ok(found)) => ("ok", format!("{} {} {}", found.compared, found.without_gradient, found.nodes)),
            Ok(Err(text)) => ("differs", text),
            Err(panic) => ("differs", format!("panicked: {panic}")),
        };
        println!("{word} {i} {}", text.replace('\\', "\\\\").replace('\n', "\\n"));
    }
}

/// Counts of the comparisons.
#[derive(Debug, Default)]
struct Found {
    compared: usize,
    /// The number of inputs at which the derivative is too large to compare.
    without_gradient: usize,
    nodes: usize,
}

fn compare(case: &CompiledProgram) -> Result<Found, String> {
    let (seed, float) = match case {
        CompiledProgram::Values { seed, .. } => (seed, DType::F32),
        CompiledProgram::Gradients { seed, .. } => (seed, DType::F64),
    };
    let ints = [TensorType::new(DType::I32, []), TensorType::new(DType::I32, []), TensorType::new(DType::I32, [])];
    let floats = [TensorType::new(float, []), TensorType::new(float, [])];
    let signature: Vec<TensorType> = ints.into_iter().chain(floats).collect();
    let traced = match case {
        CompiledProgram::Values { staged, .. } => trace_fn("program", staged, &signature).map(|(t, _)| t),
        CompiledProgram::Gradients { staged, .. } => {
            let f = |a, b, n, x, y| {
                let (int, float) = staged(a, b, n, x, y);
                let (dx, dy) = gradients(float, (x, y));
                (int, float, dx, dy)
            };
            trace_fn("program", &f, &signature).map(|(t, _)| t)
        }
    };
    let traced = traced.map_err(|e| format!("tracing: {e}"))?;
    ir::verify(&traced.graph).map_err(|e| format!("the trace is broken: {e:?}\n{}", traced.graph))?;
    let Plans { optimized, all } = Plans::new(&traced.graph, &signature);
    let optimized = optimized.map_err(|e| format!("specializing: {e}"))?;
    let compiled =
        |(name, program): (_, anabranch::Result<Program>)| Ok((name, program.map_err(|e| format!("{name}: {e}"))?));
    let plans = all.into_iter().map(compiled).collect::<Result<Vec<_>, String>>()?;
    // Each program has its own random partition, and each of its nodes is on one of up to three
    // devices.
    let how = RandomPlacement {
        devices: 1 + (seed % 3) as u32,
        seed: *seed,
        parallel_iterations: [1, 2, 32][(seed / 3 % 3) as usize],
        lower_everything: seed % 2 == 0,
        interpreted: true,
        simulated: seed % 5 == 4,
        // None, some or all of the devices.
        opaque: (seed / 5 % 4) as u32,
        ..RandomPlacement::default()
    };
    let scatter = |how| RandomlyPlacedProgram::new(optimized.clone(), how).map_err(|e| format!("{how:?}: {e}"));
    let scattered_compiled = scatter(RandomPlacement { interpreted: false, ..how })?;
    // Long runs also try all other partitions of every program, each with some of the arguments.
    let mut ways = vec![how];
    if std::env::var_os("ANABRANCH_SLOW").is_some() {
        for (i, lower_everything) in (0..9).map(|i| (i, (i + seed) % 2 == 0)) {
            let (devices, parallel_iterations) = (1 + (i % 3) as u32, [1, 2, 32][(i / 3) as usize]);
            ways.push(RandomPlacement { devices, parallel_iterations, lower_everything, simulated: false, ..how });
        }
    }
    let scattered = ways.into_iter().map(|how| Ok((how, scatter(how)?))).collect::<Result<Vec<_>, String>>()?;
    // One of so many programs also runs on a GPU, which has no `f64`.
    let on_gpu = match float == DType::F32 && seed % ON_GPU == 0 && std::env::var_os("ANABRANCH_GPU").is_some() {
        true => Some(scatter(RandomPlacement {
            devices: 2,
            gpus: 1,
            prefers_gpu: true,
            seed: *seed,
            ..RandomPlacement::default()
        })?),
        false => None,
    };
    let graphs = [("interpreter", &traced.graph), ("interpreter, optimized", &optimized)];

    let mut found = Found { nodes: traced.graph.to_string().lines().count(), ..Found::default() };
    let mut rng = Rng::new(seed ^ 0x5EED);
    for (turn, trips) in TRIPS.into_iter().enumerate() {
        let at = arguments(&mut rng, trips);
        let Some(expected) = plain(case, &at) else { continue };
        found.compared += 1;
        let mut hold = |engine: &str, got: Result<Computed, String>| match got {
            Ok(got) => same(&got, &expected, &mut found)
                .map_err(|what| format!("{engine}: {what} at {at:?}: {got:?} is not {expected:?}")),
            Err(error) => Err(format!("{engine}: {error} at {at:?}: expected {expected:?}")),
        };
        if let Some(got) = on_host(case, &at) {
            hold("#[graph] on the host", got)?;
        }
        let inputs = inputs(&at, float);
        let options = interp::InterpOptions::new().max_iterations(1_000_000);
        for (engine, graph) in graphs {
            let got = catch(|| interp::run(graph, &inputs, &mut Vec::new(), options));
            hold(engine, got.and_then(|r| r.map_err(|e| e.to_string())).map(|o| outcome(&o)))?;
        }
        let exact = interp::run(&optimized, &inputs, &mut Vec::new(), options).map_err(|e| e.to_string())?;
        for (i, (how, scattered)) in scattered.iter().enumerate() {
            if i > 0 && i % TRIPS.len() != turn {
                continue;
            }
            let got = catch(|| scattered.run(&inputs, &mut [])).and_then(|r| r.map_err(|e| e.to_string()));
            match got {
                Ok(got) if one_nan_each(&got) == one_nan_each(&exact) => {}
                other => return Err(format!("{how:?} at {at:?}: {other:?} is not {exact:?}")),
            }
        }
        let got = catch(|| scattered_compiled.run(&inputs, &mut []));
        hold("several devices, compiled", got.and_then(|r| r.map_err(|e| e.to_string())).map(|o| outcome(&o)))?;
        if let Some(on_gpu) = &on_gpu {
            let got = catch(|| on_gpu.run(&inputs, &mut [])).and_then(|r| r.map_err(|e| e.to_string()));
            let got = got.map(|o| outcome(&o)).map_err(|error| format!("a GPU: {error} at {at:?}: {expected:?}"))?;
            let is_near = same_number(got.float, expected.float)
                || (got.float - expected.float).abs() <= 1e-4 * expected.float.abs().max(1.0);
            if got.int != expected.int || !is_near {
                return Err(format!("a GPU: at {at:?}: {got:?} is not {expected:?}"));
            }
        }
        for (engine, program) in &plans {
            let got = catch(|| program.run(&inputs, &mut Vec::new()));
            hold(engine, got.and_then(|r| r.map_err(|e| e.to_string())).map(|o| outcome(&o)))?;
        }
    }
    Ok(found)
}

fn arguments(rng: &mut Rng, trips: i32) -> ProgramInputs {
    let float = |rng: &mut Rng| (rng.below(1 << 20) as f64 / f64::from(1 << 18) - 2.0) * 0.97;
    let (x, y) = (float(rng), float(rng));
    let ints = [rng.between(-9, 9), rng.between(-4, 12), trips];
    ProgramInputs { ints, floats: [x, if rng.percent(15) { x } else { y }] }
}

/// Returns the result of plain Rust, unless it divides the least integer by -1.
fn plain(case: &CompiledProgram, at: &ProgramInputs) -> Option<Computed> {
    let [a, b, n] = at.ints;
    let [x, y] = at.floats;
    catch(|| match case {
        CompiledProgram::Values { plain, .. } => from_f32(plain(a, b, n, x as f32, y as f32)),
        CompiledProgram::Gradients { plain, .. } => from_dual(plain(a, b, n, Dual::input(x, 0), Dual::input(y, 1))),
    })
    .ok()
}

fn on_host(case: &CompiledProgram, at: &ProgramInputs) -> Option<Result<Computed, String>> {
    let [a, b, n] = at.ints;
    let [x, y] = at.floats;
    match case {
        CompiledProgram::Values { host, .. } => host.map(|f| catch(|| from_f32(f(a, b, n, x as f32, y as f32)))),
        CompiledProgram::Gradients { host, .. } => {
            host.map(|f| catch(|| from_dual(f(a, b, n, Dual::input(x, 0), Dual::input(y, 1)))))
        }
    }
}

fn from_f32((int, float): (i32, f32)) -> Computed {
    Computed { int, float: float.into(), by: None }
}

fn from_dual((int, float): (i32, Dual)) -> Computed {
    Computed { int, float: float.value, by: Some(float.by) }
}

fn inputs(at: &ProgramInputs, float: DType) -> Vec<HostTensor> {
    let ints = at.ints.into_iter().map(HostTensor::scalar);
    let floats = at.floats.into_iter().map(|x| match float {
        DType::F32 => HostTensor::scalar(x as f32),
        _ => HostTensor::scalar(x),
    });
    ints.chain(floats).collect()
}

fn outcome(outputs: &[HostTensor]) -> Computed {
    let float = |t: &HostTensor| match t.buffer() {
        Buffer::F32(d) => f64::from(d[0]),
        Buffer::F64(d) => d[0],
        other => panic!("a float is expected, given {other:?}"),
    };
    let Buffer::I32(int) = outputs[0].buffer() else { panic!("an integer is expected, given {}", outputs[0]) };
    let by = (outputs.len() == 4).then(|| [float(&outputs[2]), float(&outputs[3])]);
    Computed { int: int[0], float: float(&outputs[1]), by }
}

/// The largest derivative that is compared. Larger derivatives depend more on rounding than on the
/// gradient rules.
const LARGEST_SLOPE: f64 = 1e6;

/// Compares two results. The error names the difference.
fn same(got: &Computed, expected: &Computed, found: &mut Found) -> Result<(), &'static str> {
    if got.int != expected.int {
        return Err("another integer");
    }
    let exact = same_number(got.float, expected.float);
    match (got.by, expected.by) {
        (Some(got_by), Some(by)) => {
            let close = (got.float - expected.float).abs() <= 1e-9;
            if !exact && !close {
                return Err("another float");
            }
            for (g, e) in got_by.into_iter().zip(by) {
                // Both comparisons are false for NaN.
                let has_slope = e.abs() <= LARGEST_SLOPE;
                let close = (g - e).abs() <= 1e-8 * by[0].abs().max(by[1].abs()).max(1.0);
                if !has_slope {
                    found.without_gradient += 1;
                } else if !close {
                    return Err("another gradient");
                }
            }
        }
        _ if !exact => return Err("another float"),
        _ => {}
    }
    Ok(())
}

/// Runs a function that may panic. The error is the message.
fn catch<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        text.or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_else(|| "a panic".to_owned())
    })
}
