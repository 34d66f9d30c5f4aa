//! Loops whose iterations are steps of their own.

use crate::support::sessions::{each as sessions, numbers};
use anabranch::prelude::*;
use anabranch::{
    AnyVar, CallOptions, CancelHandle, DType, Diagnostic, ErrorKind, Queue, Session, TensorType, commit_each_iteration,
    graph,
};

type Outcome = Result<(), Diagnostic>;

/// Adds elements of a queue to a variable, and returns what it has seen.
#[graph]
fn sum_up(queue: Queue<Tensor<i64>>, total: Var<i64>, seen: Var<i64>, n: Tensor<i64>) -> (Tensor<i64>, Tensor<i64>) {
    let before = total.get();
    seen.set(seen.get() + 1);
    let twice = n * 2;
    let mut i = scalar(0i64);
    let mut largest = scalar(i64::MIN);
    while i < n {
        commit_each_iteration();
        let x = queue.dequeue();
        total.set(total.get() + x * twice);
        largest = largest.maximum(x);
        assert!(x >= 0, "{x} is negative");
        i += 1;
    }
    seen.set(seen.get() + 10);
    (total.get() - before, largest)
}

#[test]
fn an_iteration_that_has_ended_stays() -> Outcome {
    for session in sessions() {
        let queue = numbers(10);
        let (total, seen) = (Var::<i64>::new("total", 100), Var::<i64>::new("seen", 0));
        let host = session.queue(&queue)?;
        let f = session.function(|n: Tensor<i64>| sum_up(queue.clone(), total.clone(), seen.clone(), n))?;
        [1, 2, 3, 4, -1, 5].into_iter().try_for_each(|x| host.push(x))?;
        let (sum, largest) = f.call(2)?;
        assert_eq!((sum.item(), largest.item()), (12, 2));
        assert_eq!((session.get(&total)?.item(), session.get(&seen)?.item()), (112, 11));

        let error = f.call(3).unwrap_err();
        assert_eq!(
            (error.kind, error.message.contains("-1 is negative")),
            (ErrorKind::AssertionFailed, true),
            "{error}"
        );
        // Two iterations have ended, and the element of the third is in the queue again.
        assert_eq!((session.get(&total)?.item(), session.get(&seen)?.item(), host.len()), (112 + 7 * 6, 12, 2));
        let (nothing, _) = f.call(0)?;
        assert_eq!((nothing.item(), session.get(&seen)?.item()), (0, 23));
    }
    Ok(())
}

/// A call ends at its deadline, after the step before the loop and some iterations.
#[test]
fn an_error_of_a_stopped_call_says_what_stays() -> Outcome {
    for (n, iterations) in [(0, "no iteration"), (1, "1 iteration"), (2, "2 iterations")] {
        for session in sessions() {
            let queue = numbers(10);
            let (total, seen) = (Var::<i64>::new("total", 0), Var::<i64>::new("seen", 0));
            let host = session.queue(&queue)?;
            let f = session.function(|n: Tensor<i64>| sum_up(queue.clone(), total.clone(), seen.clone(), n))?;
            f.call(0)?;
            (0..n).try_for_each(|_| host.push(1))?;
            let error = f.call_timeout(std::time::Duration::from_millis(200), 3).unwrap_err();
            assert_eq!(error.kind, ErrorKind::DeadlineExceeded, "{error}");
            let help = format!(
                "what comes before the loop was committed, and {iterations} of it, and no variable has changed since \
                 then"
            );
            assert_eq!(error.help, Some(help));
            assert_eq!((session.get(&total)?.item(), session.get(&seen)?.item()), (n * 6, 12));
        }
    }
    Ok(())
}

/// Trains until a queue of batches is closed.
#[graph]
fn train(batches: Queue<Tensor>, w: Var<f32>, steps: Tensor<i32>) -> Tensor {
    let mut loss = scalar(0.0);
    for i in range(0..steps) {
        commit_each_iteration();
        let x = batches.dequeue();
        loss = (x * w.get() - 1.0).square().sum();
        w.set(w.get() - gradients(loss, w.get()) * 0.01 / (1 + i).cast::<f32>());
    }
    loss
}

/// A loop in one call gives what as many calls give.
#[test]
fn training_in_one_call_equals_training_in_many() -> Outcome {
    let batch = |i: usize| [0.5 + i as f32 * 0.1, 1.5 - i as f32 * 0.05];
    let mut results = Vec::new();
    for session in sessions() {
        let batches = Queue::<Tensor>::fifo("batches", 20, &[TensorType::new(DType::F32, [2])])?;
        let host = session.queue(&batches)?;
        (0..20).try_for_each(|i| host.push(batch(i)))?;
        let w = Var::<f32>::new("w", [0.3, -0.2]);
        let epoch = session.function(|n: Tensor<i32>| train(batches.clone(), w.clone(), n))?;
        let loss = epoch.call(20)?.item();
        let v = Var::<f32>::new("v", [0.3, -0.2]);
        let step = session.function(|x: Tensor, i: Tensor<i32>| {
            let loss = (x * v.get() - 1.0).square().sum();
            v.set(v.get() - gradients(loss, v.get()) * 0.01 / (1 + i).cast::<f32>());
            loss
        })?;
        let mut last = 0.0;
        for i in 0..20 {
            last = step.call((batch(i), i as i32))?.item();
        }
        assert_eq!((loss.to_bits(), session.get(&w)?), (last.to_bits(), session.get(&v)?));
        results.push((loss.to_bits(), session.get(&w)?.to_vec().into_iter().map(f32::to_bits).collect::<Vec<_>>()));
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{results:?}");
    Ok(())
}

/// While the loop waits, others see its iterations and change its variables, and a snapshot has the
/// variables of one moment between two iterations.
#[test]
fn others_take_part_between_iterations() -> Outcome {
    for session in sessions() {
        let queue = numbers(1);
        let (a, b) = (Var::<i64>::new("a", 0), Var::<i64>::new("b", 0));
        let host = session.queue(&queue)?;
        let f = session.function(|| both(queue.clone(), a.clone(), b.clone()))?;
        let add = session.function(|| {
            a.set(a.get() + 1000);
            b.set(b.get() + 1000);
        })?;
        let cancel = CancelHandle::new();
        let options = CallOptions::new().cancelled_by(&cancel);
        std::thread::scope(|scope| -> Outcome {
            let call = scope.spawn(|| f.call_with(&options, ()));
            for i in 1..=20i64 {
                host.push(i)?;
                let vars: [&AnyVar; 2] = [a.any(), b.any()];
                let mut snapshot = session.snapshot(vars)?;
                let (x, y) = (snapshot.take(0)?, snapshot.take(1)?);
                assert_eq!(x.data::<i64>(), y.data::<i64>());
                if i == 10 {
                    add.call(())?;
                }
            }
            while !host.is_empty() || session.get(&a)?.item() < 1210 {
                std::thread::yield_now();
            }
            cancel.cancel();
            let error = call.join().expect("the call does not panic").unwrap_err();
            assert_eq!(error.kind, ErrorKind::Cancelled, "{error}");
            Ok(())
        })?;
        assert_eq!((session.get(&a)?.item(), session.get(&b)?.item()), (1210, 1210));
    }
    Ok(())
}

/// Adds each element to two variables, without end.
#[graph]
fn both(queue: Queue<Tensor<i64>>, a: Var<i64>, b: Var<i64>) {
    let mut i = scalar(0i64);
    while i >= 0 {
        commit_each_iteration();
        let x = queue.dequeue();
        a.set(a.get() + x);
        b.set(b.get() + x);
        i += 1;
    }
}

/// Uses variables and values before, in and after the loop, and assigns variables in each part.
#[graph]
fn everywhere(
    x: Tensor,
    first: Var<f32>,
    looped: Var<f32>,
    last: Var<f32>,
    read: Var<f32>,
) -> (Tensor, Tensor, Tensor) {
    let old = looped.get();
    first.set(first.get() + x.sum());
    let scale = x * 2.0;
    let mut rows = scalar(0.0);
    let mut i = scalar(0);
    while i < 3 {
        commit_each_iteration();
        rows += (scale * read.get()).sum() + old + first.get();
        looped.set(looped.get() + rows);
        i += 1;
    }
    last.set(last.get() * looped.get() + old);
    (rows + scale.sum(), looped.get() + old, first.get() + read.get())
}

/// The graph in one step, which the interpreter of a trace runs, is the oracle.
#[test]
fn several_steps_compute_what_one_step_computes() -> Outcome {
    for session in sessions() {
        let vars: Vec<Var<f32>> = [1.0, 2.0, 3.0, 4.0]
            .iter()
            .zip(["first", "looped", "last", "read"])
            .map(|(x, n)| Var::new(n, *x))
            .collect();
        let f = |x: Tensor| {
            let [first, looped, last, read] = [0, 1, 2, 3].map(|i: usize| vars[i].clone());
            everywhere(x, first, looped, last, read)
        };
        let expected = eval_with(f, [0.5, 1.5])?;
        let function = session.function(f)?;
        let (a, b, c) = function.call([0.5, 1.5])?;
        assert_eq!((a, b, c), expected);
        let after: Vec<f32> = vars.iter().map(|var| Ok(session.get(var)?.item())).collect::<Result<_, Diagnostic>>()?;
        // first = 1 + 2; rows are 4 * 4 + 2 + 3 more each time; looped = 2 + 21 + 42 + 63.
        assert_eq!(after, [3.0, 128.0, 3.0 * 128.0 + 2.0, 4.0]);
        let text = function.explain(&[TensorType::new(DType::F32, [2])])?;
        assert!(text.contains("; iteration, a step of its own"), "{text}");
    }
    Ok(())
}

/// Returns its argument, so that a loop variable does not change.
fn unchanged(x: Tensor) -> Tensor {
    x
}

/// Uses values of variables that were taken before the loop, and assigns them after it.
#[graph]
fn old_values(x: Tensor, a: Var<f32>, b: Var<f32>, c: Var<f32>, d: Var<f32>) -> (Tensor, Tensor, Tensor) {
    let old = a.get();
    a.set(old + 1.0);
    let of_b = b.get();
    let zero = x * 0.0;
    c.set(zero);
    d.set(x);
    let same = x;
    let mut y = x;
    let mut sum = scalar(0.0);
    let mut i = scalar(0);
    while i < 3 {
        commit_each_iteration();
        y = unchanged(y);
        sum += old + a.get() + same * y * d.get();
        b.set(b.get() + 1.0);
        c.set(c.get() + 5.0);
        i += 1;
    }
    b.set(of_b);
    c.set(zero);
    (sum, old + a.get(), y)
}

#[test]
fn values_taken_before_the_loop_stay() -> Outcome {
    for session in sessions() {
        let vars: Vec<Var<f32>> =
            [1.0, 2.0, 3.0, 4.0].iter().zip(["a", "b", "c", "d"]).map(|(x, n)| Var::new(n, *x)).collect();
        let f = |x: Tensor| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|i: usize| vars[i].clone());
            old_values(x, a, b, c, d)
        };
        let expected = eval_with(f, 2.0)?;
        let function = session.function(f)?;
        assert_eq!(function.call(2.0)?, expected);
        let after: Vec<f32> = vars.iter().map(|var| Ok(session.get(var)?.item())).collect::<Result<_, Diagnostic>>()?;
        assert_eq!(after, [2.0, 2.0, 0.0, 2.0]);
        let error = function.prune_step(&[TensorType::new(DType::F32, [])], &["input 0"], &[]).unwrap_err();
        assert!(error.message.contains("a part of a function whose iterations are steps"), "{error}");
    }
    Ok(())
}

/// Two loops of steps.
#[graph]
fn two_loops() -> Tensor<i32> {
    let mut i = scalar(0);
    while i < 3 {
        commit_each_iteration();
        i += 1;
    }
    while i < 6 {
        commit_each_iteration();
        i += 1;
    }
    i
}

/// An inner loop of steps.
#[graph]
fn inner_loop() -> Tensor<i32> {
    let mut i = scalar(0);
    while i < 3 {
        let mut j = scalar(0);
        while j < i {
            commit_each_iteration();
            j += 1;
        }
        i += j + 1;
    }
    i
}

/// A gradient through a loop of steps.
#[graph]
fn gradient_through(x: Tensor) -> Tensor {
    let mut y = x;
    let mut i = scalar(0);
    while i < 3 {
        commit_each_iteration();
        y *= x;
        i += 1;
    }
    gradients(y, x)
}

/// A loop of steps that carries a list.
#[graph]
fn carries_a_list(x: Tensor) -> Tensor {
    let mut all = List::<f32>::new([]);
    let mut i = scalar(0);
    while i < 3 {
        commit_each_iteration();
        all.push(x);
        i += 1;
    }
    all.stack().sum()
}

#[test]
fn a_loop_that_cannot_run_as_steps_is_an_error_at_its_line() -> Outcome {
    let session = Session::new()?;
    let errors = [
        session.function(two_loops)?.call(()).err(),
        session.function(inner_loop)?.call(()).err(),
        session.function(|x: Tensor| gradient_through(x))?.call(2.0).err(),
        session.function(|x: Tensor| carries_a_list(x))?.call(2.0).err(),
        session
            .function(|x: Tensor| {
                commit_each_iteration();
                x
            })?
            .call(2.0)
            .err(),
    ];
    let parts = [
        "another such loop",
        "inside of a branch, of an inner loop",
        "a gradient flows",
        "carries a list",
        "outside of",
    ];
    for (error, part) in errors.into_iter().zip(parts) {
        let error = error.expect("the loop cannot run as steps");
        assert!(error.message.contains(part), "{error}");
        assert!(error.labels.iter().any(|(loc, _)| loc.file.ends_with("commit_loops.rs")), "{error}");
    }
    Ok(())
}
