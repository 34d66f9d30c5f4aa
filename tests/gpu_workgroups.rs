//! Loops of GPUs over small tensors that one workgroup runs, next to the same loops shader by
//! shader, driven by the host, and on a CPU.

use super::support::gpus::{adapter, numbers};
use anabranch::dsl::function::Arguments;
use anabranch::prelude::*;
use anabranch::{Array, GpuAdapter, Session};

type Outcome = anabranch::Result<()>;

/// Programs of a vector, a matrix and a number of iterations.
mod small {
    use super::*;

    /// A recurrent cell that reads a row of its input in each iteration.
    #[graph]
    pub fn recurrent(x: Tensor, w: Tensor, n: Tensor<i32>) -> Tensor {
        let mut h = x.row(0);
        let mut t = scalar(0);
        while t < n {
            h = (h.matmul(w) + x.row(t)).tanh();
            t += 1;
        }
        h
    }

    /// The largest eigenvalue, until the vector hardly changes.
    #[graph]
    pub fn power_iteration(x: Tensor, w: Tensor, _n: Tensor<i32>) -> Tensor {
        let m = w.matmul(w.t());
        let mut v = x.row(1) + 2.0;
        let mut difference = scalar(1.0);
        let mut i = scalar(0);
        while difference > 1e-4 {
            let next = m.matmul(v.reshape([24, 1])).reshape([24]);
            let next = next / next.square().sum().sqrt();
            difference = (next - v).abs().max();
            v = next;
            i += 1;
        }
        concat(&[v, i.cast::<f32>().reshape([1])], 0)
    }

    /// Rows, columns, branches, loops in loops, and values that change places.
    #[graph]
    pub fn many_kinds(x: Tensor, w: Tensor, n: Tensor<i32>) -> Tensor {
        let (mut a, mut b) = (x, x * 0.5 + 1.0);
        let mut i = scalar(0);
        while i < n {
            if a.mean() > b.mean() {
                (a, b) = (b, a.softmax(-1) + 0.25);
            } else {
                let mut k = scalar(0);
                while k < i % 3 {
                    b = b * 0.75 + a.sum_axis(0) * 0.015625;
                    k += 1;
                }
                a += b.max_axis(1).reshape([7, 1]) * 0.125;
            }
            let gates = a.matmul(w.slice(1, 0, 12));
            let sigmoid = gates.slice(1, 0, 6).sigmoid();
            a = concat(&[sigmoid * gates.slice(1, 6, 12), a.slice(1, 6, 24)], 1);
            i += 1;
        }
        a + b.t().t()
    }

    /// Elements at many indices, parts that are replaced, and integers that are divided.
    #[graph]
    pub fn indices(x: Tensor, w: Tensor, n: Tensor<i32>) -> Tensor {
        let ids = (iota::<i32>(100) * 7) % 24;
        let mut y = w.sum_axis(0);
        let mut i = scalar(0);
        while i < n {
            let taken = (y + i.cast::<f32>()).take(ids, 0);
            let part = (taken.mean() + x.row(i).sum()).reshape([1]);
            y = y.update_slice_at(part, i * 5 / (i + 1), 0).update_slice(part * 0.5, 0, 3);
            i += 1;
        }
        y
    }

    /// Indices that are out of bounds in some iteration.
    #[graph]
    pub fn out_of_bounds(x: Tensor, _w: Tensor, n: Tensor<i32>) -> Tensor {
        let mut sum = x.row(0) * 0.0;
        let mut t = scalar(0);
        while t < n {
            sum += x.row(t * 2).exp();
            t += 1;
        }
        sum
    }

    /// More iterations than a run of the shader makes.
    #[graph]
    pub fn long(x: Tensor, w: Tensor, n: Tensor<i32>) -> Tensor {
        let mut y = x.slice(1, 0, 24).mean_axis(0);
        let mut i = scalar(0);
        while i < n * 1000 {
            y = y * 0.999 + w.mean_axis(0) * 0.001;
            i += 1;
        }
        y
    }
}

type Small = fn(Tensor, Tensor, Tensor<i32>) -> Tensor;

fn arguments() -> (Array<f32>, Array<f32>) {
    let w = numbers(24 * 24).into_iter().enumerate().map(|(i, x)| x * 0.3 + (i % 5) as f32 * 0.01).collect();
    (Array::new([7, 24], numbers(7 * 24)), Array::new([24, 24], w))
}

fn on_gpu(adapter: &GpuAdapter) -> anabranch::Result<Session> {
    Session::builder().gpu(adapter).device("/gpu:0").build()
}

#[track_caller]
fn assert_near(name: &str, a: &Array<f32>, b: &Array<f32>) {
    assert_eq!(a.shape(), b.shape(), "{name}");
    for (a, b) in a.iter().zip(b.iter()) {
        assert!((a - b).abs() <= 2e-4 * b.abs().max(1.0), "{name}: {a} and {b}");
    }
}

#[test]
fn loops_of_workgroups_are_those_of_the_host() -> Outcome {
    let Some(adapter) = adapter() else { return Ok(()) };
    let programs: [(&str, Small, &[i32]); 5] = [
        ("indices", small::indices, &[0, 1, 6]),
        ("recurrent", small::recurrent, &[0, 1, 5, 7]),
        ("power iteration", small::power_iteration, &[1]),
        ("many kinds", small::many_kinds, &[0, 1, 2, 9, 40]),
        ("long", small::long, &[1, 12]),
    ];
    let (x, w) = arguments();
    for (name, f, trips) in programs {
        let ways = [
            on_gpu(&adapter)?.function(f)?,
            on_gpu(&adapter.clone().without_workgroup_loops())?.function(f)?,
            on_gpu(&adapter.clone().with_predicates_on_host())?.function(f)?,
        ];
        let here = Session::new()?.function(f)?;
        let signature = Arguments::of::<(Tensor, Tensor, Tensor<i32>)>((&x, &w, 1)).signature();
        let text = ways[0].explain(signature)?;
        assert!(text.contains(": one workgroup runs it"), "{name}:\n{text}");
        for &n in trips {
            let expected = here.call((&x, &w, n))?;
            for way in &ways {
                assert_near(name, &way.call((&x, &w, n))?, &expected);
            }
        }
    }
    Ok(())
}

#[test]
fn failures_in_a_workgroup_are_those_of_the_operation() -> Outcome {
    let Some(adapter) = adapter() else { return Ok(()) };
    let (x, w) = arguments();
    let on_device = on_gpu(&adapter)?.function(small::out_of_bounds)?;
    let here = Session::new()?.function(small::out_of_bounds)?;
    for n in [2, 5, 4, 9] {
        match [on_device.call((&x, &w, n)), here.call((&x, &w, n))] {
            [Ok(found), Ok(expected)] => assert_near("rows", &found, &expected),
            [Err(found), Err(expected)] => {
                assert!(n > 4, "{found}");
                assert_eq!(found.message, expected.message);
                assert_eq!(found.loc(), expected.loc());
            }
            other => panic!("{n}: {other:?}"),
        }
    }
    Ok(())
}

#[test]
fn a_loop_of_a_workgroup_waits_for_no_iteration() -> Outcome {
    let Some(adapter) = adapter() else { return Ok(()) };
    let (x, w) = arguments();
    let f = on_gpu(&adapter)?.function(small::power_iteration)?;
    f.call((&x, &w, 1))?;
    let before = adapter.readbacks();
    f.call((&x, &w, 1))?;
    // Its results, and that no check has failed.
    assert_eq!(adapter.readbacks() - before, 2);
    Ok(())
}
