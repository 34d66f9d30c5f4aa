//! Calls that are interrupted by a deadline, or by a handle on another thread.
//!
//! A test that needs an exact moment cancels during the print of an iteration. A test of a deadline
//! checks that it ends an endless call, not how quickly.
#![deny(warnings)]

use anabranch::prelude::*;
use anabranch::{CallOptions, CancelHandle, Diagnostic, ErrorKind, gradients};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Long enough to compile a first call on a busy machine, so that the deadline interrupts the loop
/// itself.
const SOON: Duration = Duration::from_millis(200);

fn session(interpreted: bool) -> Session {
    Session::builder().interpreted(interpreted).build().unwrap()
}

/// Returns the line of the loop that an error names first.
#[track_caller]
fn named_line(error: &Diagnostic) -> u32 {
    let loc = error.loc().unwrap_or_else(|| panic!("no place: {error}"));
    assert_eq!(loc.file, file!());
    loc.line
}

#[test]
fn a_deadline_ends_an_endless_scalar_loop_and_names_it() {
    #[graph]
    fn f(mut x: Tensor<i32>) -> Tensor<i32> {
        while x >= 0 {
            x = (x + 1) % 1000;
        }
        x
    }
    let line = line!() - 5;
    for interpreted in [false, true] {
        let session = session(interpreted);
        let f = session.function(f).unwrap();
        for _ in 0..2 {
            let error = f.call_timeout(SOON, 1).unwrap_err();
            assert_eq!(error.kind, ErrorKind::DeadlineExceeded, "{error}");
            assert!(error.message.contains("`f` did not end before its deadline"), "{error}");
            assert_eq!(named_line(&error), line);
        }
        assert_eq!(f.call_timeout(Duration::from_secs(600), -1).unwrap(), -1);
        assert_eq!(f.call_timeout(Duration::MAX, -1).unwrap(), -1);
    }
}

#[test]
fn a_deadline_ends_endless_loops_of_every_form() {
    #[graph]
    fn with_a_jump(mut x: Tensor<i32>) -> Tensor<i32> {
        let mut more = x == x;
        while more {
            more = !more;
            more = !more;
            if x > 5 {
                x -= 1;
            }
        }
        x
    }
    #[graph]
    fn of_tensors(x: Tensor<i32>) -> Tensor<i32> {
        let mut y = x.broadcast_to([100]) * 2;
        while (y * y).sum() >= 0 {
            y = -y;
        }
        y.sum()
    }
    #[graph]
    fn without_variables(x: Tensor<i32>) -> Tensor<i32> {
        // An effect keeps the loop: a loop whose results are unused is removed.
        while x > 0 {
            print!("");
        }
        x
    }
    #[graph]
    fn nested(x: Tensor<i32>) -> Tensor<i32> {
        let mut i = x;
        while i > 0 {
            let mut j = scalar(0);
            while j < 3 {
                j += 1;
            }
            i = j;
        }
        i
    }
    for interpreted in [false, true] {
        let session = session(interpreted);
        for f in [with_a_jump as fn(Tensor<i32>) -> Tensor<i32>, of_tensors, without_variables, nested] {
            let f = session.function(f).unwrap();
            assert_eq!(f.call_timeout(SOON, 10).unwrap_err().kind, ErrorKind::DeadlineExceeded);
        }
    }
}

#[test]
fn the_error_names_the_loops_from_the_inside_out() {
    #[graph]
    fn f(x: Tensor<i32>) -> Tensor<i32> {
        let mut i = x;
        while i < 100 {
            let mut j = scalar(0);
            while j < 100 {
                j += 1;
                if i * 100 + j == 207 {
                    println!("here");
                }
            }
            i += 1;
        }
        i
    }
    let line = line!() - 12;
    for interpreted in [false, true] {
        let cancel = CancelHandle::new();
        let on_print = cancel.clone();
        let session = Session::builder().interpreted(interpreted).print_to(move |_, _| on_print.cancel());
        let f = session.build().and_then(|s| s.function(f)).unwrap();
        let error = f.call_with(&CallOptions::new().cancelled_by(&cancel), 0).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Cancelled);
        let lines: Vec<u32> = error.labels.iter().map(|(loc, _)| loc.line).collect();
        assert_eq!(lines, [line + 2, line], "{error}");
    }
}

#[test]
fn a_cancelled_step_changes_no_variable_and_later_steps_work() {
    for interpreted in [false, true] {
        let count = Var::<i32>::new("count", 0);
        let cancel = CancelHandle::new();
        let trips = Arc::new(AtomicU32::new(0));
        let (on_print, seen) = (cancel.clone(), trips.clone());
        let session = Session::builder().interpreted(interpreted).print_to(move |_, _| {
            if seen.fetch_add(1, Ordering::Relaxed) == 4 {
                on_print.cancel();
            }
        });
        let session = session.build().unwrap();
        #[graph]
        fn step(count: &Var<i32>, n: Tensor<i32>) -> Tensor<i32> {
            let mut i = scalar(0);
            while i < n {
                count.set(count.get() + 1);
                println!("{i}");
                i += 1;
            }
            count.get()
        }
        let f = session.function(|n: Tensor<i32>| step(&count, n)).unwrap();
        let options = CallOptions::new().cancelled_by(&cancel);
        assert_eq!(f.call_with(&options, 2).unwrap(), 2);
        assert!(!cancel.is_cancelled());
        assert_eq!(f.call_with(&options, 1_000_000).unwrap_err().kind, ErrorKind::Cancelled);
        assert_eq!(trips.load(Ordering::Relaxed), 5, "the loop ended where it was cancelled");
        assert_eq!(session.get(&count).unwrap(), 2);
        // The handle remains canceled, and calls without it are not affected.
        assert_eq!(f.call_with(&options, 1).unwrap_err().kind, ErrorKind::Cancelled);
        assert_eq!(f.call(3).unwrap(), 5);
    }
}

#[test]
fn a_loop_that_saves_for_its_gradient_is_ended_and_runs_again() {
    #[graph]
    fn f(x: Tensor, n: Tensor<i32>) -> Tensor {
        let mut y = x;
        let mut i = scalar(0);
        while i != n {
            y = (y * x).sin();
            i += 1;
        }
        let [dx] = gradients(y.sum(), [x]);
        dx
    }
    for interpreted in [false, true] {
        let session = session(interpreted);
        let f = session.function(f).unwrap();
        let expected = f.call(([1.0, 2.0], 3)).unwrap();
        assert_eq!(f.call_timeout(SOON, ([1.0, 2.0], -1)).unwrap_err().kind, ErrorKind::DeadlineExceeded);
        assert_eq!(f.call(([1.0, 2.0], 3)).unwrap(), expected);
    }
}

#[test]
fn another_thread_cancels() {
    #[graph]
    fn f(mut x: Tensor<i32>) -> Tensor<i32> {
        println!("begins");
        println!("{x}");
        while x > 0 {
            x = x * 3 % 1009;
        }
        x
    }
    let (began, begins) = std::sync::mpsc::channel();
    let session = Session::builder().print_to(move |_, _| began.send(()).unwrap()).build().unwrap();
    let f = session.function(f).unwrap();
    let cancel = CancelHandle::new();
    let options = CallOptions::new().cancelled_by(&cancel);
    let error = std::thread::scope(|scope| {
        let call = scope.spawn(|| f.call_with(&options, 1).unwrap_err());
        begins.recv().unwrap();
        cancel.cancel();
        call.join().unwrap()
    });
    assert_eq!(error.kind, ErrorKind::Cancelled);
    assert!(error.message.contains("was cancelled"), "{error}");
}

/// In a build that is not optimized, each of these operations takes minutes.
#[test]
fn one_long_operation_ends_too() {
    fn integers(x: Tensor<f32>) -> Tensor<f32> {
        let x = x.cast::<i32>().broadcast_to([4096, 4096]) + iota::<i32>(4096);
        x.matmul(x).cast()
    }
    fn floats(x: Tensor<f32>) -> Tensor<f32> {
        let x = x.broadcast_to([4096, 4096]) + iota::<f32>(4096);
        x.matmul(x).matmul(x).matmul(x).matmul(x)
    }
    fn convolution(x: Tensor<f32>) -> Tensor<f32> {
        let images = x.broadcast_to([1, 64, 512, 512]) + iota::<f32>(512);
        let filters = x.broadcast_to([64, 64, 15, 15]) + iota::<f32>(15);
        images.conv2d(filters, ConvOptions::new())
    }
    fn pooling(x: Tensor<f32>) -> Tensor<f32> {
        let image = x.broadcast_to([1, 1, 600, 600]) + iota::<f32>(600);
        image.avg_pool(PoolOptions::<2>::new(301).stride(1))
    }
    fn attention(x: Tensor<f32>) -> Tensor<f32> {
        let x = x.broadcast_to([1, 40_000, 512]) + iota::<f32>(512);
        x.scaled_dot_product_attention(x, x, AttentionMask::None)
    }
    fn is_ended(f: fn(Tensor<f32>) -> Tensor<f32>, name: &str) {
        let sum = |x: Tensor<f32>, devices: [&str; 2]| {
            let y = on(devices[0], || x + 1.0);
            on(devices[1], || f(y).sum())
        };
        // The first deadline may pass while the function is compiled.
        for (devices, n_calls) in [(["/cpu:0", "/cpu:0"], 2), (["/cpu:0", "/cpu:1"], 1)] {
            let session = Session::builder().cpus(2).build().unwrap();
            let f = session.function(|x: Tensor<f32>| sum(x, devices)).unwrap();
            for _ in 0..n_calls {
                let error = f.call_timeout(SOON, 1.0).unwrap_err();
                assert_eq!(error.kind, ErrorKind::DeadlineExceeded, "{name}: {error}");
            }
        }
    }
    is_ended(integers, "integers");
    is_ended(floats, "floats");
    is_ended(convolution, "convolution");
    is_ended(pooling, "pooling");
    is_ended(attention, "attention");
}

#[test]
fn waiting_for_a_variable_ends_too() {
    let w = Var::<i32>::new("w", 0);
    let (began, begins) = std::sync::mpsc::channel();
    let session = Session::builder().print_to(move |_, _| began.send(()).unwrap()).build().unwrap();
    #[graph]
    fn endless(w: &Var<i32>, x: Tensor<i32>) {
        println!("{x}");
        while w.get() >= 0 {
            w.set((w.get() + 1) % 100);
        }
    }
    let endless = session.function(|x: Tensor<i32>| endless(&w, x)).unwrap();
    let read = session.function(|| w.get()).unwrap();
    let write = session.function(|x: Tensor<i32>| w.set(x)).unwrap();
    let cancel = CancelHandle::new();
    let options = CallOptions::new().cancelled_by(&cancel);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| endless.call_with(&options, 1).unwrap_err());
        begins.recv().unwrap();
        assert_eq!(write.call_timeout(SOON, 5).unwrap_err().kind, ErrorKind::DeadlineExceeded);
        assert_eq!(read.call(()).unwrap(), 0, "a step that assigns nothing does not wait");
        cancel.cancel();
        assert_eq!(running.join().unwrap().kind, ErrorKind::Cancelled);
    });
    assert_eq!(read.call(()).unwrap(), 0);
}

#[test]
fn a_deadline_that_has_passed_runs_nothing() {
    let n = Var::<i32>::new("n", 0);
    let session = session(false);
    let f = session.function(|| n.set(n.get() + 1)).unwrap();
    let cancel = CancelHandle::new();
    cancel.cancel();
    assert!(f.call_with(&CallOptions::new().cancelled_by(&cancel), ()).is_err());
    assert_eq!(session.get(&n).unwrap(), 0);
}
