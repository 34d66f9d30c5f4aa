//! Several threads at once: shared functions, shared variables.

use anabranch_dsl::prelude::*;
use anabranch_runtime::Session;

type Outcome = anabranch_dsl::Result<()>;

const THREADS: usize = 8;
const STEPS: usize = 200;

/// Runs `f(thread)` on several threads at once.
fn on_threads(f: impl Fn(usize) -> Outcome + Sync) -> Outcome {
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..THREADS)
            .map(|i| {
                scope.spawn({
                    let f = &f;
                    move || f(i)
                })
            })
            .collect();
        running.into_iter().try_for_each(|t| t.join().expect("the thread does not panic"))
    })
}

#[test]
fn one_function_runs_on_many_threads() -> Outcome {
    let session = Session::new()?;
    let f = session.function(|x: Tensor, y: Tensor| (x * y + 1.0).tanh().sum())?;
    on_threads(|thread| {
        for i in 0..STEPS {
            // Threads use several shapes, so that they also trace.
            let n = 1 + (thread + i) % 5;
            let (x, y) = (vec![thread as f32 * 0.1; n], i as f32 * 0.01);
            let expected: f32 = x.iter().map(|x| (x * y + 1.0).tanh()).sum();
            let got = f.call((&x, y))?.item();
            assert!((got - expected).abs() < 1e-5, "{got} is not {expected}");
        }
        Ok(())
    })
}

#[test]
fn no_step_is_lost() -> Outcome {
    let session = Session::new()?;
    let n = Var::<i64>::new("n", 0);
    let step = session.function(|by: Tensor<i64>| {
        n.set(n.get() + by);
        n.get()
    })?;
    on_threads(|_| (0..STEPS).try_for_each(|_| step.call(1).map(|_| ())))?;
    assert_eq!(session.get(&n)?, (THREADS * STEPS) as i64);
    Ok(())
}

#[test]
fn steps_over_several_variables_are_serializable() -> Outcome {
    let session = Session::new()?;
    let (a, b) = (Var::<f64>::new("a", [1.0, 1.0]), Var::<f64>::new("b", [1.0, 1.0]));
    // Written in both orders, so that locks acquired in program order would deadlock.
    let forth = session.function(|| {
        a.set(a.get() * 3.0);
        b.set(b.get() * 3.0);
    })?;
    let back = session.function(|| {
        b.set(b.get() / 3.0);
        a.set(a.get() / 3.0);
    })?;
    let difference = session.function(|| (a.get() - b.get()).abs().sum())?;
    on_threads(|thread| {
        for _ in 0..STEPS {
            match thread % 4 {
                0 => forth.call(())?,
                1 => back.call(())?,
                2 => assert_eq!(difference.call(())?, 0.0),
                _ => {
                    let state = session.state(&(a.clone(), b.clone()));
                    assert_eq!(state[0].1, state[1].1, "both variables are of one moment");
                }
            }
        }
        Ok(())
    })
}

#[test]
fn a_failing_step_on_one_thread_does_not_disturb_the_others() -> Outcome {
    let session = Session::new()?;
    let n = Var::<i64>::new("n", 0);
    let step = session.function(|divisor: Tensor<i64>| {
        n.set(n.get() + 1);
        1 / divisor
    })?;
    on_threads(|thread| {
        for i in 0..STEPS {
            let fails = (thread + i) % 2 == 0;
            assert_eq!(step.call(i64::from(!fails)).is_err(), fails);
        }
        Ok(())
    })?;
    assert_eq!(session.get(&n)?, (THREADS * STEPS / 2) as i64);
    Ok(())
}
