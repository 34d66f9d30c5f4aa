//! Calls from inside thread pools of the caller, and sessions with threads of their own.
#![deny(warnings)]

use anabranch_dsl::ops::{AttentionMask, ConvOptions};
use anabranch_dsl::prelude::*;
use anabranch_dsl::{Array, HostTensor};
use anabranch_runtime::{Session, SessionBuilder};
use rayon::prelude::*;

/// Concurrent calls from a pool that assign one variable. Each of them is large enough to be
/// divided among the threads.
#[test]
fn steps_of_one_variable_may_run_in_the_callers_pool() -> anabranch_dsl::Result<()> {
    let total = Var::<f32>::new("total", 0.0);
    let session = Session::new()?;
    let step = session.function(|x: Tensor| {
        let y = x.matmul(x).matmul(x).tanh();
        total.set(total.get() + 1.0);
        (y * 0.0).sum()
    })?;
    let x = Array::new([256, 256], vec![0.01f32; 256 * 256]);
    // There are more threads than threads waiting for the variable: some can take over chunks of
    // another thread's work.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build().expect("there are threads");
    pool.install(|| (0..16).into_par_iter().try_for_each(|_| step.call(&x).map(|_| ())))?;
    assert_eq!(session.get(&total)?, 16.0);
    Ok(())
}

/// Calls that only read lock variables, too. A waiting one must not take over a call that assigns
/// the variable that it reads.
#[test]
fn reading_steps_may_run_in_the_callers_pool_beside_writing_ones() -> anabranch_dsl::Result<()> {
    let total = Var::<f32>::new("total", 0.0);
    let session = Session::new()?;
    let heavy = |x: Tensor| (x.matmul(x).matmul(x).tanh() * 0.0).sum();
    let write = session.function(|x: Tensor| {
        total.set(total.get() + 1.0);
        heavy(x)
    })?;
    let read = session.function(|x: Tensor| total.get() + heavy(x))?;
    let x = Array::new([256, 256], vec![0.01f32; 256 * 256]);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build().expect("there are threads");
    pool.install(|| {
        (0..64).into_par_iter().with_max_len(1).try_for_each(|i| match i % 2 {
            0 => write.call(&x).map(|_| ()),
            _ => read.call(&x).map(|_| ()),
        })
    })?;
    assert_eq!(session.get(&total)?, 32.0);
    Ok(())
}

/// Returns a session with the default number of threads, and sessions with 1, 2 and 3 threads.
fn limited(build: impl Fn() -> SessionBuilder) -> Vec<Session> {
    let limits = [1, 2, 3].map(|n| build().threads(n));
    std::iter::once(build()).chain(limits).map(|b| b.build().unwrap_or_else(|e| panic!("{e}"))).collect()
}

fn numbers(shape: &[usize]) -> Array<f32> {
    let n = shape.iter().product::<usize>();
    Array::new(shape, (0..n).map(|i| ((i * 37 + 11) % 101) as f32 / 50.0 - 1.0).collect())
}

fn bits(results: Vec<Array<f32>>) -> Vec<Vec<u32>> {
    results.iter().map(|a| a.iter().map(|x| x.to_bits()).collect()).collect()
}

#[test]
fn results_do_not_depend_on_the_threads_of_the_session() -> anabranch_dsl::Result<()> {
    type Case<'a> = (&'a str, &'a [&'a [usize]], fn(&[Tensor]) -> Vec<Tensor>);
    let cases: [Case<'_>; 6] = [
        ("products", &[&[150, 100], &[100, 150]], |x| {
            let y = x[0].matmul(x[1]).tanh();
            let [a, b] = gradients((y * y).sum(), [x[0], x[1]]);
            vec![y, a, b]
        }),
        ("reductions", &[&[400, 400]], |x| vec![x[0].sum(), x[0].mean_axis(0), x[0].exp().sum_axis(1), x[0].max()]),
        ("rows", &[&[200, 700]], |x| {
            let y = x[0].softmax(-1);
            vec![y, gradients((y * x[0]).sum(), x[0])]
        }),
        ("convolutions", &[&[4, 3, 24, 24], &[8, 3, 3, 3]], |x| {
            let y = x[0].conv2d(x[1], ConvOptions::new().padding(1)).relu();
            let [a, b] = gradients((y * y).sum(), [x[0], x[1]]);
            vec![y, a, b]
        }),
        ("attention", &[&[2, 120, 32]], |x| {
            let y = x[0].scaled_dot_product_attention(x[0], x[0], AttentionMask::Causal);
            vec![y, gradients((y * y).sum(), x[0])]
        }),
        ("tables", &[&[400, 64]], |x| {
            let ids = tensor((0..1000).map(|i| (i * 7) % 400).collect::<Vec<i32>>());
            let y = x[0].take(ids, 0);
            vec![y.sum(), gradients((y * y).sum(), x[0])]
        }),
    ];
    for (name, shapes, f) in cases {
        let inputs: Vec<HostTensor> = shapes.iter().map(|shape| numbers(shape).into_host()).collect();
        let array = |i: usize| Array::<f32>::from_host(inputs[i].clone()).expect("an array of f32");
        let run = |session: &Session| -> anabranch_dsl::Result<_> {
            Ok(bits(match shapes.len() {
                1 => session.function(move |a: Tensor| f(&[a]))?.call(array(0))?,
                _ => session.function(move |a: Tensor, b: Tensor| f(&[a, b]))?.call((array(0), array(1)))?,
            }))
        };
        for build in
            [Session::builder, || Session::builder().cpus(2), || Session::builder().cpus(3).lower_everything(true)]
        {
            let results: Vec<_> = limited(build).iter().map(run).collect::<anabranch_dsl::Result<_>>()?;
            assert!(results.iter().all(|r| *r == results[0]), "{name}");
        }
    }
    Ok(())
}

/// A step from a plain thread needs threads for its kernels and its commit. Calls that wait for its
/// variables on all threads of rayon's own pool must not keep them.
#[test]
fn a_step_of_a_plain_thread_ends_beside_calls_on_all_threads_of_the_global_pool() -> anabranch_dsl::Result<()> {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let n = 1 << 18;
        let w = Var::<f32>::new("w", vec![0.0f32; n]);
        let session = Session::new().expect("the default devices exist");
        let train = session.function(|x: Tensor| w.set(w.get() * 0.5 + x)).expect("it is a graph function");
        let predict = session.function(|x: Tensor| w.get().sum() + x).expect("it is a graph function");
        let x = Array::new([n], vec![1.0f32; n]);
        std::thread::scope(|scope| {
            let calls = scope.spawn(|| (0..300).for_each(|_| train.call(&x).expect("it runs")));
            (0..600).into_par_iter().for_each(|i| match i % 3 {
                0 => train.call(&x).expect("it runs"),
                _ => assert!(predict.call(1.0).expect("it runs").as_slice()[0] >= 1.0),
            });
            calls.join().expect("no call fails");
        });
        done.send(session.get(&w).expect("it has a value").as_slice()[0]).expect("the test waits");
    });
    // Two seconds are usual.
    let value = is_done.recv_timeout(std::time::Duration::from_secs(120)).expect("no call waits forever");
    assert_eq!(value, 2.0);
    Ok(())
}
