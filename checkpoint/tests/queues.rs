//! Contents of queues in checkpoints.

use crate::support::{TestFolder, is_slow};
use anabranch::checkpoints::{Checkpoints, Restore, RunParts, StepRecord, restore_latest};
use anabranch::prelude::*;
use anabranch::{
    Bytes, CallOptions, DType, Diagnostic, Dim, ErrorKind, HostQueue, Queue, Session, SessionBuilder, TensorType,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::Duration;

type Outcome = Result<(), Diagnostic>;

/// The interpreter, the plan, two devices with each node on its own, and a device whose memory the
/// host cannot see.
pub const KINDS_OF_SESSIONS: [fn() -> Session; 4] = [
    || built(Session::builder().interpreted(true)),
    || built(Session::builder()),
    || built(Session::builder().cpus(2).lower_everything(true)),
    || built(Session::builder().opaque_devices(1)),
];

fn built(builder: SessionBuilder) -> Session {
    builder.build().unwrap_or_else(|e| panic!("{e}"))
}

fn number() -> [TensorType; 1] {
    [TensorType::new(DType::I64, [])]
}

pub fn numbers(capacity: usize) -> Queue<Tensor<i64>> {
    Queue::fifo("numbers", capacity, &number()).unwrap_or_else(|e| panic!("{e}"))
}

/// Saves parts in a new folder.
fn save(folder: &Path, session: &Session, parts: &RunParts<'_>) -> Outcome {
    let mut checkpoints = Checkpoints::new(folder).open()?;
    checkpoints.save(session, parts, StepRecord::new(1))?;
    checkpoints.wait()
}

/// Restores parts in a new session.
pub fn restored(folder: &Path, parts: &RunParts<'_>) -> Result<Session, Diagnostic> {
    let session = Session::new()?;
    restore_latest(folder, &session, parts, &Restore::strict())?.expect("there is a checkpoint");
    Ok(session)
}

/// Removes all numbers that a queue gives up without waiting.
pub fn rest(queue: &HostQueue<Tensor<i64>>) -> Vec<i64> {
    let next = || queue.pop_timeout(Duration::ZERO).ok().flatten();
    std::iter::from_fn(next).map(|n| n.item()).collect()
}

#[test]
fn elements_of_every_type_are_restored_in_their_order() -> Outcome {
    type Element = (Tensor<Bytes>, Tensor<f64>, Tensor<f16>, Tensor<bool>, Tensor<u8>);
    let folder = TestFolder::new("queue_types");
    let types = [
        TensorType::new(DType::Bytes, [Dim::Unknown]),
        TensorType::new(DType::F64, [2.into(), Dim::Unknown]),
        TensorType::new(DType::F16, []),
        TensorType::new(DType::Bool, [1]),
        TensorType::new(DType::U8, [Dim::Unknown]),
    ];
    let queue = Queue::<Element>::padding("elements", 10, &types)?;
    let empty = Queue::<Element>::padding("empty", 10, &types)?;
    let session = Session::new()?;
    let host = session.queue(&queue)?;
    let add = |words: &[&[u8]], x: Array<f64>, n: f32, flag: bool, bytes: Vec<u8>| {
        let words = Array::new([words.len()], words.iter().map(|word| Bytes::from(*word)).collect());
        host.push((words, x, f16::from_f32(n), [flag], bytes))
    };
    add(&[b"one", b"\xff\0"], Array::new([2, 1], vec![0.1, f64::NEG_INFINITY]), 1.5, true, vec![7, 8])?;
    add(&[], Array::new([2, 0], vec![]), -2.0, false, vec![])?;
    add(&[b""], Array::new([2, 2], vec![1.0, 2.0, 3.0, 4.0]), 0.0, true, vec![9])?;
    let parts = RunParts::new().queue("elements", &queue).queue("none", &empty);
    save(&folder.path(""), &session, &parts)?;

    let other = restored(&folder.path(""), &parts)?;
    let (host, copy) = (session.queue(&queue)?, other.queue(&queue)?);
    assert_eq!((copy.len(), copy.is_closed(), other.queue(&empty)?.len()), (3, false, 0));
    for _ in 0..3 {
        assert_eq!(copy.pop()?, host.pop()?);
    }
    Ok(())
}

#[test]
fn a_restored_queue_gives_up_the_same_elements_in_each_order() -> Outcome {
    let types = [TensorType::new(DType::I64, []), TensorType::new(DType::I64, [])];
    type Pair = (Tensor<i64>, Tensor<i64>);
    let queues = [
        Queue::<Pair>::fifo("fifo", 100, &types)?,
        Queue::<Pair>::shuffle("shuffle", 100, 5, 9, &types)?,
        Queue::<Pair>::priority("priority", 100, &types)?,
    ];
    for (i, queue) in queues.iter().enumerate() {
        let folder = TestFolder::new(&format!("queue_order_{i}"));
        let parts = RunParts::new().queue("q", queue);
        let session = Session::new()?;
        let host = session.queue(queue)?;
        (0..60i64).try_for_each(|n| host.push((n % 7, n)))?;
        // The random numbers of a shuffle queue go on from here.
        for _ in 0..20 {
            host.pop()?;
        }
        save(&folder.path(""), &session, &parts)?;
        let other = restored(&folder.path(""), &parts)?;
        let copy = other.queue(queue)?;
        for n in 60..70i64 {
            host.push((n % 7, n))?;
            copy.push((n % 7, n))?;
        }
        host.close()?;
        copy.close()?;
        let (left, expected) =
            (copy.iter().collect::<Result<Vec<_>, _>>()?, host.iter().collect::<Result<Vec<_>, _>>()?);
        assert_eq!(left.len(), 50);
        assert!(left == expected, "{}: {left:?} is not {expected:?}", queue.any().name());
    }
    Ok(())
}

#[test]
fn a_closed_queue_is_restored_with_its_error() -> Outcome {
    let (plain, failed) = (numbers(4), numbers(4));
    let parts = RunParts::new().queue("plain", &plain).queue("failed", &failed);
    let folder = TestFolder::new("queue_closed");
    let session = Session::new()?;
    session.queue(&plain)?.push(1)?;
    session.queue(&plain)?.close()?;
    let error = Diagnostic::new("data.csv: row 2 is not a number").help("mend the row");
    session.queue(&failed)?.close_with(error)?;
    save(&folder.path(""), &session, &parts)?;

    // In a session where they are in use and open.
    let other = Session::new()?;
    other.queue(&failed)?.push(7)?;
    restore_latest(folder.path(""), &other, &parts, &Restore::strict())?;
    assert_eq!(rest(&other.queue(&plain)?), [1]);
    assert!(other.queue(&plain)?.is_closed());
    let error = other.queue(&failed)?.pop().unwrap_err();
    assert!(error.kind == ErrorKind::Closed && error.message.ends_with("data.csv: row 2 is not a number"), "{error}");
    assert_eq!(error.help.as_deref(), Some("mend the row"));
    Ok(())
}

#[test]
fn one_error_lists_all_queues_that_do_not_match() -> Outcome {
    let folder = TestFolder::new("queue_errors");
    let (a, b, n) = (numbers(4), numbers(4), Var::<i64>::new("n", 3));
    let session = Session::new()?;
    session.queue(&a)?.push(1)?;
    let saved = RunParts::new().queue("a", &a).queue("b", &b).module("n", &n);
    save(&folder.path(""), &session, &saved)?;

    let large = numbers(5);
    let session = Session::new()?;
    session.set(&n, 5)?;
    let parts = RunParts::new().queue("a", &large).queue("c", &b).module("n", &n);
    let error = restore_latest(folder.path(""), &session, &parts, &Restore::strict()).unwrap_err();
    let text = error.to_string();
    assert!(error.message.ends_with("does not have the queues of the run"), "{text}");
    assert!(error.loc().is_some_and(|loc| loc.file.ends_with("tests/queues.rs")), "{text}");
    let wrong = "the queue `a` is fifo, capacity 5, of (i64[]), but the content is of fifo, capacity 4, of (i64[])";
    for line in [wrong, "no content for the queue `c`", "no queue for the content `b`"] {
        assert!(text.contains(line), "{text}");
    }
    // Nothing has changed.
    assert_eq!((session.get(&n)?.item(), session.queue(&large)?.len()), (5, 0));
    // A wrong type is an error in any case.
    let lax = || Restore::strict().keep_missing().ignore_unused();
    let error = restore_latest(folder.path(""), &session, &parts, &lax()).unwrap_err();
    assert!(error.to_string().contains(wrong) && !error.to_string().contains("no content"), "{error}");

    let parts = RunParts::new().queue("a", &a).queue("c", &b).module("n", &n);
    let resumed = restore_latest(folder.path(""), &session, &parts, &lax())?.expect("there is a checkpoint");
    let report = &resumed.report;
    assert_eq!(
        (&report.restored_queues[..], &report.missing_queues[..], &report.unused_queues[..]),
        (&["a".to_owned()][..], &["c".to_owned()][..], &["b".to_owned()][..])
    );
    let text = "1 variables restored; queues: `a`; queues without a content: `c`; queues left over: `b`";
    assert_eq!(report.to_string(), text);
    assert_eq!((session.get(&n)?.item(), rest(&session.queue(&a)?)), (3, vec![1]));

    session.set(&n, 5)?;
    let keep = Restore::strict().keep_queues();
    restore_latest(folder.path(""), &session, &RunParts::new().queue("x", &a).module("n", &n), &keep)?;
    assert_eq!((session.get(&n)?.item(), session.queue(&a)?.len()), (3, 0));

    let twice = RunParts::new().queue("a", &a).queue("a", &b);
    let error = save(&folder.path("twice"), &session, &twice).unwrap_err();
    assert_eq!(error.message, "several queues have the same name: `a`");
    Ok(())
}

#[test]
fn orders_and_types_of_elements_must_be_the_same() -> Outcome {
    let folder = TestFolder::new("queue_other");
    let queue = Queue::<Tensor<i64>>::shuffle("q", 8, 2, 1, &number())?;
    save(&folder.path(""), &Session::new()?, &RunParts::new().queue("q", &queue))?;
    let saved = "shuffle, at least 2 left, seed 1, capacity 8, of (i64[])";
    let others = [
        (Queue::<Tensor<i64>>::fifo("q", 8, &number())?, "fifo, capacity 8, of (i64[])"),
        (
            Queue::<Tensor<i64>>::shuffle("q", 8, 3, 1, &number())?,
            "shuffle, at least 3 left, seed 1, capacity 8, of (i64[])",
        ),
        (
            Queue::<Tensor<i64>>::shuffle("q", 8, 2, 2, &number())?,
            "shuffle, at least 2 left, seed 2, capacity 8, of (i64[])",
        ),
        (
            Queue::<Tensor<i64>>::shuffle("q", 8, 2, 1, &[TensorType::new(DType::I64, [1])])?,
            "shuffle, at least 2 left, seed 1, capacity 8, of (i64[1])",
        ),
    ];
    for (other, text) in others {
        let error = restored(&folder.path(""), &RunParts::new().queue("q", &other)).unwrap_err();
        assert!(
            error.to_string().contains(&format!("the queue `q` is {text}, but the content is of {saved}")),
            "{error}"
        );
    }
    Ok(())
}

/// Moves an element, and counts it.
fn move_one(from: &Queue<Tensor<i64>>, to: &Queue<Tensor<i64>>, moved: &Var<i64>, sum: &Var<i64>) {
    let x = from.dequeue();
    to.enqueue(x);
    moved.set(moved.get() + 1);
    sum.set(sum.get() + x);
}

#[test]
fn a_step_that_waits_has_not_happened_in_a_checkpoint() -> Outcome {
    for session in KINDS_OF_SESSIONS.map(|new_session| new_session()) {
        let folder = TestFolder::new("queue_in_flight");
        let (from, full, moved) = (numbers(3), numbers(1), Var::<i64>::new("moved", 0));
        let parts = RunParts::new().queue("from", &from).queue("full", &full).module("moved", &moved);
        let (host, to) = (session.queue(&from)?, session.queue(&full)?);
        (0..3i64).try_for_each(|n| host.push(n))?;
        to.push(-1)?;
        let step = session.function(|| {
            let x = from.dequeue_many(2).sum();
            full.enqueue(x);
            moved.set(moved.get() + 1);
        })?;
        scope(|scope| {
            let running = scope.spawn(|| step.call(()));
            // It has removed two, and waits for room; or soon.
            while host.len() != 1 {
                std::thread::yield_now();
            }
            // Now there are more elements than the capacity, with those of the step.
            host.push(3)?;
            host.push(4)?;
            save(&folder.path(""), &session, &parts)?;
            assert_eq!(to.pop()?.expect("the queue is open"), -1);
            running.join().expect("the call does not panic")
        })?;
        assert_eq!((session.get(&moved)?.item(), rest(&host), rest(&to)), (1, vec![2, 3, 4], vec![1]));

        let other = restored(&folder.path(""), &parts)?;
        assert_eq!(other.get(&moved)?, 0);
        assert_eq!(rest(&other.queue(&full)?), [-1]);
        let copy = other.queue(&from)?;
        assert_eq!(copy.push_timeout(Duration::ZERO, 5).unwrap_err().kind, ErrorKind::DeadlineExceeded);
        assert_eq!(rest(&copy), [0, 1, 2, 3, 4]);
    }
    Ok(())
}

/// Makes calls with short deadlines until a flag is set.
fn repeat(has_ended: &AtomicBool, call: impl Fn(&CallOptions) -> Outcome) -> Outcome {
    let soon = CallOptions::new().timeout(Duration::from_millis(2));
    while !has_ended.load(Ordering::Relaxed) {
        match call(&soon) {
            Err(error) if error.kind != ErrorKind::DeadlineExceeded => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Sets a flag when it is dropped, also in a panic.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// While steps move elements between two queues, each checkpoint has each element once, and
/// variables that count those moves.
#[test]
fn variables_and_queues_in_a_checkpoint_are_of_one_moment() -> Outcome {
    let n_saves = if is_slow() { 400 } else { 25 };
    for session in KINDS_OF_SESSIONS.map(|new_session| new_session()) {
        let folder = TestFolder::new("queue_moment");
        let (a, b) = (numbers(8), numbers(8));
        let [there, back, sum] = ["there", "back", "sum"].map(|name| Var::<i64>::new(name, 0));
        let vars = (&there, &back, &sum);
        let parts = RunParts::new().queue("a", &a).queue("b", &b).module("vars", &vars);
        (1..=5i64).try_for_each(|n| session.queue(&a)?.push(n))?;
        let forth = session.function(|| move_one(&a, &b, &there, &sum))?;
        let return_ = session.function(|| {
            let x = b.dequeue();
            a.enqueue(x);
            back.set(back.get() + 1);
            sum.set(sum.get() - x);
        })?;
        // Steps without variables commit, too.
        let rotate = session.function(|| a.enqueue(a.dequeue_many(1).sum()))?;
        let (has_ended, mut checkpoints) = (AtomicBool::new(false), Checkpoints::new(folder.path("")).open()?);
        scope(|scope| {
            let threads = [
                scope.spawn(|| repeat(&has_ended, |options| forth.call_with(options, ()))),
                scope.spawn(|| repeat(&has_ended, |options| return_.call_with(options, ()))),
                scope.spawn(|| repeat(&has_ended, |options| rotate.call_with(options, ()))),
            ];
            let _end = SetAtEnd(&has_ended);
            for step in 1..=n_saves {
                checkpoints.save(&session, &parts, StepRecord::new(step))?;
                checkpoints.wait()?;
                let other = restored(&folder.path(""), &parts)?;
                let (in_a, in_b) = (rest(&other.queue(&a)?), rest(&other.queue(&b)?));
                let moved = other.get(&there)?.item() - other.get(&back)?.item();
                assert_eq!((in_b.len() as i64, in_b.iter().sum::<i64>()), (moved, other.get(&sum)?.item()));
                let mut all = [in_a, in_b].concat();
                all.sort_unstable();
                assert_eq!(all, [1, 2, 3, 4, 5]);
            }
            has_ended.store(true, Ordering::Relaxed);
            threads.into_iter().try_for_each(|thread| thread.join().expect("no call panics"))
        })?;
        assert!(session.get(&there)?.item() > 0);
    }
    Ok(())
}
