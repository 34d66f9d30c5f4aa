//! Steps do not leak memory, however many there are: an allocator counts the live memory of the
//! process.
//!
//! Each case warms up for as many steps as are measured. A container that grows by one element per
//! step then either allocates in each step or doubles its memory once during the measurement. Both
//! are detected. There is only one test function, because other tests would be counted as well.
//!
//! A measurement is 96 steps by default, 1,000 with `ANABRANCH_SLOW=1`, and `n` with
//! `ANABRANCH_STEPS=n`, for example 100,000. Few steps suffice, because live memory is counted
//! exactly and not sampled: a case fails if every eighth step leaves a block behind, or if a step
//! leaves 11 bytes behind, and 4 bytes in long runs. More steps find only what happens less often.
//!
//! GPUs are no cases here: the live memory of `wgpu` goes up and down with the work in flight.
//! `tests/gpu_memory.rs` counts the memory of their tensors.

use anabranch_dsl::format::Stream;
use anabranch_dsl::prelude::*;
use anabranch_dsl::{DType, Diagnostic, Graph, HostTensor, TensorType, control, staged};
use anabranch_runtime::{
    CallOptions, CancelHandle, Program, RandomPlacement, RandomlyPlacedProgram, Session, SimulatedDevice,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);
static LIVE_BYTES: AtomicIsize = AtomicIsize::new(0);

fn count(allocations: isize, bytes: isize) {
    LIVE.fetch_add(allocations, Ordering::Relaxed);
    LIVE_BYTES.fetch_add(bytes, Ordering::Relaxed);
}

// SAFETY: every call is forwarded to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as isize);
        // SAFETY: the caller upholds the contract of `alloc`, which is that of `System`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-1, -(layout.size() as isize));
        // SAFETY: `ptr` came from `alloc` above, so from `System`, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The default number of measured steps.
const STEPS: isize = 96;

/// The pace of a case: a case whose steps wait for a time to pass runs fewer of them.
#[derive(Clone, Copy, PartialEq)]
enum Pace {
    Full,
    Waits,
}

/// Fails if steps leak memory in each of three measurements, each of which is twice as long as the
/// previous. One-time allocations, for example at the start of a thread, affect only one
/// measurement.
fn check(case: &str, pace: Pace, mut step: impl FnMut()) {
    let mut steps: isize = match pace {
        Pace::Full => match std::env::var("ANABRANCH_STEPS") {
            Ok(steps) => steps.parse().expect("`ANABRANCH_STEPS` is a number"),
            Err(_) if std::env::var_os("ANABRANCH_SLOW").is_some() => 1_000,
            Err(_) => STEPS,
        },
        Pace::Waits => 16,
    };
    (0..steps).for_each(|_| step());
    for last in [false, false, true] {
        let (live, bytes) = (LIVE.load(Ordering::Relaxed), LIVE_BYTES.load(Ordering::Relaxed));
        (0..steps).for_each(|_| step());
        let live = LIVE.load(Ordering::Relaxed) - live;
        let bytes = LIVE_BYTES.load(Ordering::Relaxed) - bytes;
        // The number of blocks in queues between threads varies over time.
        if live < steps / 8 && bytes < (4 * steps).max(1024) {
            return;
        }
        assert!(!last, "{case}: {steps} steps leave {live} allocations, {bytes} bytes");
        steps *= 2;
    }
}

/// Returns a session of each engine, with its name and its devices.
fn sessions() -> Vec<(String, Session, [&'static str; 2])> {
    let silent = || Session::builder().print_to(|_: Stream, _: &str| ());
    let gpus = || [SimulatedDevice::new("/gpu:0"), SimulatedDevice::new("/gpu:1")];
    let (cpu, cpus, simulated) = (["/cpu:0"; 2], ["/cpu:0", "/cpu:1"], ["/gpu:0", "/gpu:1"]);
    let made = [
        ("interpreted", silent().interpreted(true), cpu),
        ("a plan", silent(), cpu),
        ("a plan without native code", silent().native_code(false), cpu),
        ("a plan without fusion", silent().fusion(false), cpu),
        ("finite values", silent().check_finite(true), cpu),
        ("two CPUs", silent().cpus(2), cpus),
        ("two interpreted CPUs", silent().cpus(2).interpreted(true), cpus),
        ("two CPUs, everything lowered", silent().cpus(2).lower_everything(true), cpus),
        ("simulated devices", silent().simulated(gpus()), simulated),
        ("two opaque devices", silent().opaque_devices(2), simulated),
    ];
    made.into_iter().map(|(name, b, on)| (name.to_owned(), b.build().unwrap_or_else(|e| panic!("{e}")), on)).collect()
}

/// A loop over two devices that computes a square root, with a gradient, prints, assertions and a
/// variable.
fn program(x: Tensor, w: &Var<f32>, [first, second]: [&str; 2]) -> (Tensor, Tensor, Tensor<i32>) {
    let y = on(first, || x + 1.0);
    let (root, n) = control::while_loop(
        (on(second, || y * 0.0 + 1.0), scalar(0)),
        |(_, n)| n.less(6),
        |(root, n)| (on(second, || (root + y / root) / 2.0), n + 1),
    );
    staged::print(Stream::Stdout, format_args!("{}", root.sum()), "\n");
    let sum = control::cond(root.sum().greater(4.0), || on(first, || root.exp().sum()), || on(second, || root.sum()));
    w.set(on(first, || w.get() * 0.5 + 1.0));
    (sum.named("sum"), gradients(sum, x), n)
}

fn ok<T>(result: Result<T, Diagnostic>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn steps_leave_no_memory_behind() {
    for (engine, session, on_both) in sessions() {
        let case = |what: &str| format!("{engine}, {what}");
        let w = Var::<f32>::new("w", 1.0);

        let simple = ok(session.function(|x: Tensor| {
            let y = on(on_both[0], || x + 1.0);
            on(on_both[1], || y * 2.0)
        }));
        check(&case("two operations"), Pace::Full, || drop(ok(simple.call([1.0, 2.0]))));

        let f = ok(session.function(|x: Tensor| program(x, &w, on_both)));
        check(&case("calls"), Pace::Full, || drop(ok(f.call([1.0, 2.0]))));
        let mut results = ok(f.call([1.0, 2.0]));
        check(&case("calls into results"), Pace::Full, || ok(f.call_into([1.0, 2.0], &mut results)));
        check(&case("timelines"), Pace::Full, || drop(ok(f.profile([1.0, 2.0]))));
        let in_time = CallOptions::new().timeout(Duration::from_secs(3600));
        check(&case("calls with a deadline"), Pace::Full, || drop(ok(f.call_with(&in_time, [1.0, 2.0]))));
        let handle = CancelHandle::new();
        let watched = CallOptions::new().cancelled_by(&handle);
        check(&case("calls with a handle"), Pace::Full, || drop(ok(f.call_with(&watched, [1.0, 2.0]))));
        let late = CallOptions::new().timeout(Duration::ZERO);
        check(&case("calls that are too late"), Pace::Full, || drop(f.call_with(&late, [1.0, 2.0])));
        handle.cancel();
        let cancelled = || drop(f.call_with(&watched, [1.0, 2.0]).unwrap_err());
        check(&case("calls that are cancelled"), Pace::Full, cancelled);

        let signature = [TensorType::new(DType::F32, [2])];
        let input = [HostTensor::new([2], vec![1.0f32, 2.0])];
        let part = ok(f.prune(&signature, &["input 0"], &["sum"]));
        check(&case("a pruned function"), Pace::Full, || drop(ok(part.call(&input))));
        let again = || drop(ok(f.prune(&signature, &["input 0"], &["sum"])));
        check(&case("pruning again"), Pace::Full, again);
        let step = ok(f.prune_step(&signature, &["input 0"], &[]));
        check(&case("a pruned step"), Pace::Full, || drop(ok(step.call(&input))));

        let fails = ok(session.function(|x: Tensor| {
            let y = on(on_both[0], || x + 1.0);
            let z = on(on_both[1], || y.log());
            staged::Assert::new(z.sum().greater(100.0)).check(staged::message(format_args!("{}", z.sum())));
            z
        }));
        check(&case("calls that fail"), Pace::Full, || drop(fails.call([1.0, 2.0]).unwrap_err()));
        check(&case("calls of other types"), Pace::Full, || {
            drop(f.call_host(&[HostTensor::scalar(1i64)]).unwrap_err())
        });

        let endless = ok(session.function(|x: Tensor| {
            control::while_loop(
                on(on_both[0], || x + 1.0),
                |x| x.sum().greater(0.0),
                |x| on(on_both[1], || x.cos() + 2.0),
            )
        }));
        let soon = Duration::from_millis(2);
        check(&case("loops past their deadline"), Pace::Waits, || {
            drop(endless.call_timeout(soon, [1.0, 2.0]).unwrap_err());
        });
    }

    let panics =
        ok(Session::builder().cpus(2).print_to(|_: Stream, _: &str| std::panic::resume_unwind(Box::new(()))).build());
    let f = ok(panics.function(|x: Tensor| {
        let y = on("/cpu:1", || x * 2.0);
        staged::print(Stream::Stdout, format_args!("{y}"), "\n");
        on("/cpu:0", || y + 1.0)
    }));
    check("a print that panics", Pace::Full, || {
        assert!(catch_unwind(AssertUnwindSafe(|| f.call(1.0))).is_err());
    });

    parts();
    models();
}

/// Checks programs without sessions, both whole and randomly partitioned.
fn parts() {
    let text = "graph @f(%x: f32[2], %n: i32[]) -> (f32[2], i32[]) {
        var @w: f32[2]
        %w = read @w
        %0 = constant 0 : i32[]
        %y, %i = while (%y = %x, %i = %0 | %n = %n, %w = %w) : (f32[2], i32[]) cond {
            %p = lt %i, %n : bool[]
            yield %p
        } body {
            %1 = constant 1 : i32[]
            %j = add %i, %1 : i32[]
            %s = sin %y : f32[2]
            %z = mul %s, %w : f32[2]
            yield %z, %j
        }
        assign @w, %y
        return %y, %i
    }";
    let graph = Graph::parse(text, "f.ir").unwrap_or_else(|e| panic!("{}", e[0]));
    let inputs = [HostTensor::new([2], vec![0.5f32, 1.0]), HostTensor::scalar(5)];
    let var = || HostTensor::new([2], vec![1.0f32, 1.0]);
    let program = ok(Program::new(graph.clone()));
    let mut vars = vec![var()];
    check("a program", Pace::Full, || drop(ok(program.run(&inputs, &mut vars))));
    for seed in 0..4 {
        for (lower_everything, simulated, opaque) in
            [(false, false, 0), (true, false, 0), (true, true, 0), (false, false, 2), (true, false, 2)]
        {
            let how = RandomPlacement {
                devices: 3,
                seed,
                parallel_iterations: 2,
                lower_everything,
                simulated,
                opaque,
                ..RandomPlacement::default()
            };
            let program = ok(RandomlyPlacedProgram::new(graph.clone(), how));
            let mut vars = [var()];
            check(&format!("{how:?}"), Pace::Full, || drop(ok(program.run(&inputs, &mut vars))));
        }
    }
}

/// Checks a session and an optimizer with many successive models.
fn models() {
    use anabranch_dsl::nn::{Init, Linear};
    use anabranch_dsl::optim::{Adam, Optimizer};
    let (session, adam, init) = (ok(Session::new()), Adam::new(0.1), Init::new(0));
    let step = || {
        let model = Linear::new(&init, 2, 2);
        session.name_variables("model", &model);
        adam.prepare(&model);
        let state = ok(session.state(&adam));
        ok(session.load_state(&adam, &state));
    };
    check("one model after the other", Pace::Waits, step);
}
