//! Several threads at once: shared functions, shared variables.

use anabranch_dsl::format::Stream;
use anabranch_dsl::prelude::*;
use anabranch_dsl::{ErrorKind, staged};
use anabranch_runtime::{Session, SessionBuilder, SimulatedDevice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

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
                    let state = session.state(&(a.clone(), b.clone()))?;
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

/// Returns the settings of a session for each engine.
fn engines() -> Vec<(&'static str, SessionBuilder)> {
    let gpus = [SimulatedDevice::new("/gpu:0"), SimulatedDevice::new("/gpu:1")];
    vec![
        ("a plan", Session::builder()),
        ("a plan with threads of its own", Session::builder().threads(1)),
        ("the interpreter", Session::builder().interpreted(true)),
        ("two CPUs", Session::builder().cpus(2).lower_everything(true)),
        ("simulated devices", Session::builder().simulated(gpus)),
    ]
}

/// Interrupts steps at their prints.
struct Breakpoint {
    reached: Receiver<String>,
    go_on: Sender<()>,
}

impl Breakpoint {
    /// Creates a session in which a step that prints waits until it may go on.
    fn new(builder: SessionBuilder) -> anabranch_dsl::Result<(Session, Breakpoint)> {
        let (at, reached) = channel();
        let (go_on, may_go_on) = channel();
        let may_go_on = Mutex::new(may_go_on);
        let wait = move |_: Stream, text: &str| {
            at.send(text.to_owned()).expect("the test waits for the print");
            may_go_on.lock().expect("no print panics").recv().expect("the test goes on");
        };
        Ok((builder.print_to(wait).build()?, Breakpoint { reached, go_on }))
    }

    /// Runs `f` while a step waits at its print. Returns the result of the step.
    fn during<T: Send>(&self, step: impl FnOnce() -> T + Send, f: impl FnOnce() -> Outcome) -> T {
        std::thread::scope(|scope| {
            let step = scope.spawn(step);
            self.reached.recv().expect("the step prints");
            let outcome = catch_unwind(AssertUnwindSafe(f));
            self.go_on.send(()).expect("the step waits");
            let result = step.join().expect("the step does not panic");
            match outcome {
                Ok(outcome) => outcome.unwrap_or_else(|e| panic!("{e}")),
                Err(panic) => std::panic::resume_unwind(panic),
            }
            result
        })
    }
}

fn print(x: Tensor) {
    staged::print(Stream::Stdout, format_args!("{x}"), "\n");
}

/// Long enough for any call that need not wait for another one.
const PATIENT: Duration = Duration::from_secs(60);

/// The time after which a call is taken to wait for another one.
const SOON: Duration = Duration::from_millis(20);

#[test]
fn readers_see_the_values_before_a_step_that_runs() -> Outcome {
    for (engine, builder) in engines() {
        let (session, breakpoint) = Breakpoint::new(builder)?;
        let (a, b) = (Var::<f32>::new("a", 1.0), Var::<f32>::new("b", [1.0, 1.0]));
        let write = session.function(|by: Tensor| {
            a.set(a.get() + by);
            print(a.get());
            b.set(b.get() + by);
            a.get() + b.get().sum()
        })?;
        let read = session.function(|| (a.get(), b.get()))?;
        read.call(())?;
        let sum = breakpoint.during(
            || write.call(1.0),
            || {
                let (got_a, got_b) = read.call_timeout(PATIENT, ())?;
                assert_eq!((got_a.item(), got_b.to_vec()), (1.0, vec![1.0, 1.0]), "{engine}");
                assert_eq!((session.get(&a)?.item(), session.get(&b)?.to_vec()), (1.0, vec![1.0, 1.0]), "{engine}");
                let state = session.state(&(a.clone(), b.clone()))?;
                assert_eq!(state[0].1.data::<f32>(), [1.0], "{engine}");
                Ok(())
            },
        )?;
        assert_eq!(sum, 6.0, "{engine}");
        assert_eq!(read.call(())?.0, 2.0, "{engine}");
    }
    Ok(())
}

#[test]
fn a_step_that_assigns_does_not_wait_for_readers() -> Outcome {
    for (engine, builder) in engines() {
        let (session, breakpoint) = Breakpoint::new(builder)?;
        let w = Var::<f32>::new("w", [1.0, 2.0]);
        let read = session.function(|x: Tensor| {
            print(x);
            w.get() * x
        })?;
        let write = session.function(|| w.set(w.get() * 3.0))?;
        write.call(())?;
        let product = breakpoint.during(
            || read.call(10.0),
            || {
                write.call_timeout(PATIENT, ())?;
                session.set(&w, [7.0, 8.0])?;
                write.call_timeout(PATIENT, ())?;
                assert_eq!(session.get(&w)?.to_vec(), [21.0, 24.0], "{engine}");
                Ok(())
            },
        )?;
        assert_eq!(product.to_vec(), [30.0, 60.0], "{engine}: the snapshot of the begin of the step");
    }
    Ok(())
}

#[test]
fn steps_that_assign_exclude_each_other_on_what_they_read() -> Outcome {
    for (engine, builder) in engines() {
        let (session, breakpoint) = Breakpoint::new(builder)?;
        let (a, b) = (Var::<f32>::new("a", 0.0), Var::<f32>::new("b", 0.0));
        let (c, d) = (Var::<f32>::new("c", 0.0), Var::<f32>::new("d", 0.0));
        let b_from_a = session.function(|x: Tensor| {
            print(x);
            b.set(a.get() + x);
        })?;
        let a_from_b = session.function(|x: Tensor| a.set(b.get() + x))?;
        let c_from_d = session.function(|x: Tensor| c.set(d.get() + x))?;
        let d_from_a = session.function(|x: Tensor| d.set(a.get() + x))?;
        a_from_b.call(0.0)?;
        c_from_d.call(0.0)?;
        d_from_a.call(0.0)?;
        breakpoint.during(
            || b_from_a.call(1.0),
            || {
                let error = a_from_b.call_timeout(SOON, 1.0).unwrap_err();
                assert_eq!(error.kind, ErrorKind::DeadlineExceeded, "{engine}: {error}");
                // Steps that share no variable, or only read a common one, run at the same time.
                c_from_d.call_timeout(PATIENT, 5.0).map(|_| ())?;
                d_from_a.call_timeout(PATIENT, 5.0).map(|_| ())
            },
        )?;
        let values = [&a, &b, &c, &d].map(|var| session.get(var).map(|x| x.item()));
        assert_eq!(values.into_iter().collect::<anabranch_dsl::Result<Vec<_>>>()?, [0.0, 1.0, 5.0, 5.0], "{engine}");
        a_from_b.call(1.0)?;
        assert_eq!(session.get(&a)?, 2.0, "{engine}");
    }
    Ok(())
}

#[test]
fn no_write_skew() -> Outcome {
    for (engine, builder) in engines() {
        let session = builder.build()?;
        let (a, b) = (Var::<i64>::new("a", 0), Var::<i64>::new("b", 1));
        let a_from_b = session.function(|| a.set(b.get() + 1))?;
        let b_from_a = session.function(|| b.set(a.get() + 1))?;
        let both = session.function(|| (a.get(), b.get()))?;
        // In any serial order, the variable that was assigned last is larger by one.
        let check = |a: i64, b: i64| assert_eq!((a - b).abs(), 1, "{engine}: {a} and {b}");
        on_threads(|thread| {
            for _ in 0..STEPS / 4 {
                match thread % 4 {
                    0 => a_from_b.call(())?,
                    1 => b_from_a.call(())?,
                    2 => {
                        let (a, b) = both.call(())?;
                        check(a.item(), b.item());
                    }
                    _ => {
                        let state = session.state(&(a.clone(), b.clone()))?;
                        check(state[0].1.data::<i64>()[0], state[1].1.data::<i64>()[0]);
                    }
                }
            }
            Ok(())
        })?;
        check(session.get(&a)?.item(), session.get(&b)?.item());
    }
    Ok(())
}

#[test]
fn two_functions_count_up_from_many_threads() -> Outcome {
    for (engine, builder) in engines() {
        let session = builder.build()?;
        let (n, ones) = (Var::<i64>::new("n", 0), Var::<i64>::new("ones", [0, 0]));
        let one = session.function(|| {
            n.set(n.get() + 1);
            ones.set(ones.get() + 1);
        })?;
        let ten = session.function(|| n.set(n.get() + 10))?;
        on_threads(|thread| {
            (0..STEPS / 4).try_for_each(|_| if thread % 2 == 0 { one.call(()) } else { ten.call(()) })
        })?;
        let each = (THREADS / 2 * (STEPS / 4)) as i64;
        assert_eq!((session.get(&n)?.item(), session.get(&ones)?.to_vec()), (11 * each, vec![each; 2]), "{engine}");
    }
    Ok(())
}

#[test]
fn a_step_that_panics_releases_its_locks() -> Outcome {
    for (engine, builder) in engines() {
        let unlucky = |_: Stream, text: &str| {
            if text.contains("13") {
                std::panic::resume_unwind(Box::new("unlucky"));
            }
        };
        let session = builder.print_to(unlucky).build()?;
        let (v, w) = (Var::<f32>::new("v", 0.0), Var::<f32>::new("w", 12.0));
        let step = session.function(|x: Tensor| {
            w.set(w.get() + x);
            print(w.get());
            v.set(w.get());
        })?;
        assert!(catch_unwind(AssertUnwindSafe(|| step.call(1.0))).is_err(), "{engine}");
        assert_eq!((session.get(&v)?.item(), session.get(&w)?.item()), (0.0, 12.0), "{engine}");
        step.call_timeout(PATIENT, 3.0)?;
        session.set(&v, 1.0)?;
        assert_eq!((session.get(&v)?.item(), session.get(&w)?.item()), (1.0, 15.0), "{engine}");
    }
    Ok(())
}

#[test]
fn weights_are_updated_in_place_unless_somebody_holds_them() -> Outcome {
    let session = Session::new()?;
    let w = Var::<f32>::new("w", vec![1.0; 1000]);
    let step = session.function(|by: Tensor| w.set(w.get() - by * w.get()))?;
    let read = session.function(|| w.get().sum())?;
    let address = || session.get(&w).map(|value| value.as_slice().as_ptr());
    // The variable itself holds its initial value.
    step.call(0.5)?;
    let first = address()?;
    step.call(0.5)?;
    assert_eq!(read.call(())?, 250.0);
    step.call(0.5)?;
    assert_eq!(address()?, first, "nobody holds the weights");
    let held = session.get(&w)?;
    step.call(0.5)?;
    assert_ne!(address()?, first, "the holder keeps its values");
    assert_eq!((held.as_slice()[0], session.get(&w)?.as_slice()[0]), (0.125, 0.0625));
    Ok(())
}
