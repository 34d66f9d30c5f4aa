//! Branches and loops of GPUs whose predicates depend on data: in one workgroup where that is
//! possible, recorded ahead of predicates, driven by the host, and on a CPU.

use super::support::gpus::{adapter, assert_near, numbers};
use anabranch::dsl::function::Arguments;
use anabranch::prelude::*;
use anabranch::{Array, GpuAdapter, Session, gpu_adapters};

type Outcome = anabranch::Result<()>;

/// Programs whose branches and loops depend on data. Each takes three numbers.
mod data_dependent {
    use super::*;

    /// Returns more numbers than a shader has in variables for a whole loop.
    fn vector(x: Tensor) -> Tensor {
        x + iota::<f32>(17) * 0.046875
    }

    #[graph]
    pub fn a_loop_over_a_tensor(x: Tensor, limit: Tensor, step: Tensor) -> (Tensor, Tensor) {
        let mut y = vector(x);
        while y.sum() < limit {
            y = y * 1.125 + 0.25;
        }
        (y, step)
    }

    /// A gradient, whose forward loop saves values on stacks.
    #[graph]
    pub fn gradients_of_a_loop(x: Tensor, limit: Tensor, step: Tensor) -> (Tensor, Tensor) {
        let mut y = vector(x);
        while y.sum() < limit {
            y = y * ((y * 0.1 + step).tanh() * 0.5 + 1.0) + 0.5;
        }
        (gradients(y.sum(), x), gradients(y.sum(), step))
    }

    #[graph]
    pub fn branches_in_a_loop(x: Tensor, limit: Tensor, step: Tensor) -> (Tensor, Tensor) {
        let (mut y, mut z, mut i) = (vector(x), vector(step), scalar(0));
        while y.sum() < limit {
            if z.max() > 2.0 {
                (y, z) = (z, y - 1.0);
            } else if z.min() < 0.5 {
                z += 0.375;
            } else {
                y = y * 1.25 + 0.5;
            }
            i += 1;
            y += 0.03125;
            z += 0.125;
        }
        (y + i.cast::<f32>(), z)
    }

    /// Loops in a loop, whose trip counts differ, and values that change places.
    #[graph]
    pub fn loops_in_a_loop(x: Tensor, limit: Tensor, step: Tensor) -> (Tensor, Tensor) {
        let (mut y, mut other) = (vector(x), vector(step));
        while y.sum() < limit {
            let mut z = other * 0.0;
            while z.sum() < y.max().abs().minimum(0.75) * 10.0 {
                (z, other) = (other * 0.5 + 0.125, z + 0.25);
            }
            let mut w = z;
            while w.sum() > step {
                w *= 0.625;
            }
            y = y * 1.0625 + w.abs() + 0.125;
        }
        (y, other)
    }

    /// Loops over scalars, loops that count and branches with loops, in a loop.
    #[graph]
    pub fn many_kinds_in_a_loop(x: Tensor, limit: Tensor, step: Tensor) -> (Tensor, Tensor) {
        let (mut y, mut n) = (vector(x), scalar(0));
        while y.sum() < limit {
            let mut i = y.sum().cast::<i32>().abs() % 13;
            while i > 0 {
                i -= 2;
                n += 1;
            }
            for _ in range(0..3) {
                y += step * 0.125;
            }
            if y.max() > 3.0 {
                let mut z = y;
                while z.sum() > 4.0 {
                    z *= 0.5;
                    n += 1;
                }
                y += z.abs() + 0.25;
            } else {
                y += 0.5;
            }
        }
        (y, n.cast())
    }

    /// A loop that counts, with branches and loops that depend on data.
    #[graph]
    pub fn a_loop_that_counts(x: Tensor, limit: Tensor, step: Tensor) -> (Tensor, Tensor) {
        let mut y = vector(x);
        for i in range(0..9) {
            if y.sum() < limit {
                while y.sum() < i.cast::<f32>() * step {
                    y += 0.25;
                }
                y *= 1.5;
            } else {
                y *= 0.25;
            }
        }
        (y, limit)
    }

    /// An assertion, a division and an element at an index, which fail in some iterations and arms
    /// and would fail in those that do not run.
    #[graph]
    pub fn failures(x: Tensor, limit: Tensor, step: Tensor) -> (Tensor, Tensor) {
        let (mut y, mut i) = (vector(x), scalar(0));
        while y.sum() < limit {
            if y.max() > 3.0 {
                assert!(step < 0.75, "a step of {step} is too large in iteration {i}");
            }
            y += y.slice_at(60 / (10 - i) - 6, 0, 1).abs() + 0.5;
            i += 1;
        }
        (y, i.cast())
    }

    /// A failure in a loop in a loop, at a value that later iterations change.
    #[graph]
    pub fn failures_of_inner_loops(x: Tensor, limit: Tensor, step: Tensor) -> (Tensor, Tensor) {
        let mut y = vector(x);
        while y.sum() < limit {
            let (mut z, mut i) = (y, scalar(3));
            while z.sum() < 22.0 {
                assert!(step < 0.75 || i != 2, "{i} is bad");
                z += y.slice_at(i * 6, 0, 1).abs() + step;
                i = (i - 1).maximum(0);
            }
            y += z.abs() + 0.5;
        }
        (y, limit)
    }

    /// A loop whose condition has a loop.
    #[graph]
    pub fn a_loop_in_a_condition(x: Tensor, limit: Tensor, step: Tensor) -> (Tensor, Tensor) {
        let (mut y, mut n) = (vector(x), scalar(0.0f32));
        while {
            let mut z = y;
            while z.sum() > 4.0 {
                z *= 0.5;
            }
            z.sum() + n < limit
        } {
            y = (y * 1.125 + step).minimum(100.0);
            n += 20.0;
        }
        (y, n)
    }

    /// A failure in a loop in a condition: an index and an assertion.
    #[graph]
    pub fn failures_in_a_condition(x: Tensor, limit: Tensor, step: Tensor) -> (Tensor, Tensor) {
        let mut y = vector(x);
        while {
            let (mut z, mut i) = (y, scalar(0));
            while z.sum() > 0.0 {
                assert!(step < 0.75 || i != 5, "{i} is bad");
                z -= y.slice_at(i * 2, 0, 1) * 0.0 + step;
                i += 1;
            }
            z.max() < limit
        } {
            y += 1.0;
        }
        (y, limit)
    }

    #[graph]
    pub fn branches(x: Tensor, limit: Tensor, step: Tensor) -> (Tensor, Tensor) {
        let y = vector(x);
        let z = if y.sum() < limit { y * 2.0 } else { y };
        let z = if z.max() > step { if z.min() > 0.0 { z.sqrt() } else { z.abs() + 1.0 } } else { z - 1.0 };
        (z, limit)
    }
}

type DataDependent = fn(Tensor, Tensor, Tensor) -> (Tensor, Tensor);

/// Calls a function on a GPU that runs ahead of predicates, on one whose host decides them, on one
/// whose workgroups run loops, and on a CPU, and compares results and errors. Returns how often the
/// first two read values back, and the errors.
fn compare_predicates(
    name: &str,
    f: DataDependent,
    arguments: &[(f32, f32, f32)],
) -> anabranch::Result<Option<([u64; 2], Vec<String>)>> {
    let Some(adapter) = adapter().map(GpuAdapter::without_workgroup_loops) else { return Ok(None) };
    let of_host = gpu_adapters().remove(0).with_predicates_on_host();
    let on_gpu = |adapter| Session::builder().gpu(adapter).device("/gpu:0").build()?.function(f);
    let (ahead, driven, here) = (on_gpu(&adapter)?, on_gpu(&of_host)?, Session::new()?.function(f)?);
    let in_workgroups = on_gpu(&gpu_adapters().remove(0))?;
    let mut errors = Vec::new();
    for &arguments in arguments {
        match [ahead.call(arguments), driven.call(arguments), here.call(arguments)] {
            [Ok(ahead), Ok(driven), Ok(here)] => {
                assert_eq!(ahead, driven, "{name} {arguments:?}");
                assert_eq!(in_workgroups.call(arguments)?, driven, "{name} {arguments:?}");
                assert_near(&ahead.0, &here.0);
                assert_near(&ahead.1, &here.1);
            }
            [Err(ahead), Err(driven), Err(here)] => {
                assert_eq!(ahead.message, driven.message, "{name} {arguments:?}");
                assert_eq!(ahead.message, here.message, "{name} {arguments:?}");
                let in_workgroup = in_workgroups.call(arguments).expect_err("the other devices fail");
                assert_eq!(in_workgroup.message, here.message, "{name} {arguments:?}");
                errors.push(ahead.message);
            }
            other => panic!("{name} {arguments:?}: {other:?}"),
        }
    }
    Ok(Some(([adapter.readbacks(), of_host.readbacks()], errors)))
}

#[test]
fn branches_and_loops_recorded_ahead_are_those_that_the_host_drives() -> Outcome {
    use data_dependent::*;
    let programs: [(&str, DataDependent, u64); 8] = [
        ("a loop in a condition", a_loop_in_a_condition, 1),
        ("a loop over a tensor", a_loop_over_a_tensor, 3),
        ("gradients of a loop", gradients_of_a_loop, 1),
        ("branches in a loop", branches_in_a_loop, 6),
        ("loops in a loop", loops_in_a_loop, 10),
        ("many kinds in a loop", many_kinds_in_a_loop, 40),
        ("a loop that counts", a_loop_that_counts, 6),
        ("branches", branches, 3),
    ];
    let arguments = [(0.5, 12.0, 0.25), (0.0, 97.0, 0.5), (1.0, 4860.0, 1.0), (3.0, -12.0, 0.125), (-0.5, 730.0, 0.75)];
    for (name, f, factor) in programs {
        let Some(([ahead, driven], errors)) = compare_predicates(name, f, &arguments)? else { return Ok(()) };
        assert_eq!(errors, [""; 0], "{name}");
        assert!(ahead * factor <= driven, "{name}: {ahead} values are read back, {driven} by the host");
    }
    Ok(())
}

#[test]
fn failures_are_those_of_iterations_that_run() -> Outcome {
    let arguments = [(0.0, 48.0, 0.5), (0.0, 48.0, 0.8), (0.0, 0.0, 0.8), (0.0, 1e6, 0.5), (9.0, 170.0, 2.0)];
    let Some((_, errors)) = compare_predicates("failures", data_dependent::failures, &arguments)? else {
        return Ok(());
    };
    assert!(errors.len() >= 2, "{errors:?}");
    assert!(errors.iter().any(|error| error.contains("is too large in iteration")), "{errors:?}");
    assert!(errors.iter().any(|error| !error.contains("is too large")), "{errors:?}");
    let arguments = [(0.0, 48.0, 0.8), (0.0, 48.0, 0.5), (2.0, 97.0, 0.5)];
    let inner = compare_predicates("inner", data_dependent::failures_of_inner_loops, &arguments)?;
    let (_, errors) = inner.expect("this machine has an adapter");
    assert!(errors.len() >= 2, "{errors:?}");
    let arguments = [(0.0, -2.0, 0.5), (0.0, 48.0, 0.5), (3.0, 48.0, 0.25), (0.0, 48.0, 0.8), (6.0, 48.0, 0.8)];
    let in_condition = compare_predicates("in a condition", data_dependent::failures_in_a_condition, &arguments)?;
    let (_, errors) = in_condition.expect("this machine has an adapter");
    assert!(errors.iter().any(|error| error.contains("is bad")), "{errors:?}");
    assert!(errors.iter().any(|error| error.contains("out of bounds")), "{errors:?}");
    Ok(())
}

#[test]
fn explanations_show_shaders_loops_and_memory() -> Outcome {
    let Some(adapter) = adapter() else { return Ok(()) };
    let x = Array::new([8, 8], numbers(64));
    let explained = |adapter: &GpuAdapter, f: DataDependent| {
        let session = Session::builder().gpu(adapter).device("/gpu:0").build()?;
        session.function(f)?.explain(Arguments::of::<(Tensor, Tensor, Tensor)>((1.0, 1.0, 1.0)).signature())
    };
    let text = explained(&adapter.clone().without_workgroup_loops(), data_dependent::many_kinds_in_a_loop)?;
    let how = [
        "while at tests/gpu_control.rs",
        ": its iterations are recorded ahead of their predicates",
        ": one shader runs it",
        ": it counts, so its iterations are recorded ahead",
        "shader add (left out if the first value is known)",
        "if at tests/gpu_control.rs",
        "bytes at a time, without stacks, lists and iterations recorded ahead",
        "1x1x1 workgroups: %",
    ];
    for part in how {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let text = explained(&gpu_adapters().remove(0).with_predicates_on_host(), data_dependent::branches)?;
    assert!(text.contains(": the host decides"), "{text}");
    // An error for which the device has no memory names the operation.
    let session = Session::builder().gpu(&adapter.with_memory_budget(2048)).device("/gpu:0").build()?;
    let f = session.function(|x: Tensor| x.broadcast_to([100, 8, 8]).matmul(x).sin())?;
    let error = f.call(&x).expect_err("the budget is smaller");
    assert!(error.loc().is_some_and(|loc| loc.file.ends_with("gpu_control.rs")), "{error}");
    assert!(error.to_string().contains("in `"), "{error}");
    Ok(())
}
