//! Scripts of operations on one queue of numbers: what each operation returns, and which of them
//! wait meanwhile.
//!
//! After each script the queue is closed and emptied. All numbers that were added must then have
//! been removed, each once.

use crate::support::waits::{EndWaits, until};
use anabranch::dsl::queue::QueueOrder;
use anabranch::prelude::*;
use anabranch::{CallOptions, CancelHandle, DType, Diagnostic, ErrorKind, HostQueue, Queue, Session, TensorType};
use std::thread::{ScopedJoinHandle, scope};

/// An operation of a call, or of the host.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    Enqueue(i64),
    EnqueueMany(&'static [i64]),
    Dequeue,
    DequeueMany(usize),
    DequeueUpTo(usize),
    /// Removes as many elements one by one in one call.
    DequeueEach(usize),
    /// Removes elements, and fails then.
    DequeueAndFail(usize),
    Close,
    Push(i64),
    Pop,
    HostClose,
    CloseAndCancel,
}

/// The outcome of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Gives {
    /// These elements. A queue that shuffles returns as many, in some order.
    Got(&'static [i64]),
    /// An error of this kind, whose message contains the text.
    Fails(ErrorKind, &'static str),
}

/// A line of a script.
#[derive(Clone, Copy, Debug)]
pub enum Line {
    /// The operation ends without any other.
    Now(Act, Gives),
    /// The operation waits. [`Ends`](Line::Ends) tells how it ends.
    Waits(Act),
    /// The operation waits, and is canceled.
    Canceled(Act),
    /// The operation that waits since the line of this index ends.
    Ends(usize, Gives),
    /// The waiting operation of the line of this index is canceled.
    Cancel(usize),
    /// The queue has this number of elements, sooner or later.
    Len(usize),
}

/// A case: a script for queues of several orders.
pub struct Case {
    /// A sentence, and the names of the cases of TensorFlow.
    pub name: &'static str,
    pub orders: &'static [QueueOrder],
    pub capacity: usize,
    pub lines: &'static [Line],
}

impl Case {
    /// Returns whether a line removes a batch.
    fn removes_batches(&self) -> bool {
        self.lines.iter().any(|line| {
            let (Line::Now(act, _) | Line::Waits(act) | Line::Canceled(act)) = line else { return false };
            matches!(act, Act::DequeueMany(_) | Act::DequeueUpTo(_))
        })
    }
}

/// Removes elements, and fails.
#[graph]
fn dequeue_and_fail(queue: Queue<Tensor<i64>>, n: usize) -> Tensor<i64> {
    let batch = queue.dequeue_many(n);
    let sum = batch.sum();
    assert!(sum < -1_000_000, "the step fails");
    batch
}

fn queue_of(order: QueueOrder, capacity: usize) -> Queue<Tensor<i64>> {
    let types = [TensorType::new(DType::I64, [])];
    let queue = match order {
        QueueOrder::Fifo => Queue::fifo("q", capacity, &types),
        QueueOrder::Padding => Queue::padding("q", capacity, &types),
        QueueOrder::Priority => Queue::priority("q", capacity, &types),
        QueueOrder::Shuffle { min_left, seed } => Queue::shuffle("q", capacity, min_left, seed, &types),
    };
    queue.unwrap_or_else(|e| panic!("{e}"))
}

/// How a call gets the number of elements that it removes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Count {
    /// A number of the host, which the graph contains.
    Host,
    /// A tensor, which the call is given.
    Tensor,
}

/// A queue under test, in a session.
struct Stage<'a> {
    case: &'static str,
    order: QueueOrder,
    count: Count,
    session: &'a Session,
    queue: Queue<Tensor<i64>>,
    host: HostQueue<Tensor<i64>>,
}

impl Stage<'_> {
    /// Runs an operation, and returns the elements that it removes.
    fn act(&self, act: Act, cancel: &CancelHandle) -> Result<Vec<i64>, Diagnostic> {
        let Stage { session, queue, host, count, .. } = self;
        let options = CallOptions::new().cancelled_by(cancel);
        let none = |()| Vec::new();
        match act {
            Act::Enqueue(x) => session.function(|x: Tensor<i64>| queue.enqueue(x))?.call_with(&options, x).map(none),
            Act::EnqueueMany(all) => {
                let add = session.function(|all: Tensor<i64>| queue.enqueue_many(all))?;
                add.call_with(&options, all.to_vec()).map(none)
            }
            Act::Dequeue => Ok(session.function(|| queue.dequeue())?.call_with(&options, ())?.to_vec()),
            Act::DequeueMany(n) if *count == Count::Tensor => {
                let batch = session.function(|n: Tensor<i32>| queue.dequeue_many(n))?;
                Ok(batch.call_with(&options, n as i32)?.to_vec())
            }
            Act::DequeueUpTo(n) if *count == Count::Tensor => {
                let batch = session.function(|n: Tensor<i32>| queue.dequeue_up_to(n))?;
                Ok(batch.call_with(&options, n as i32)?.to_vec())
            }
            Act::DequeueMany(n) => Ok(session.function(|| queue.dequeue_many(n))?.call_with(&options, ())?.to_vec()),
            Act::DequeueUpTo(n) => Ok(session.function(|| queue.dequeue_up_to(n))?.call_with(&options, ())?.to_vec()),
            Act::DequeueEach(n) => {
                let each = session.function(|| stack(&(0..n).map(|_| queue.dequeue()).collect::<Vec<_>>(), 0))?;
                Ok(each.call_with(&options, ())?.to_vec())
            }
            Act::DequeueAndFail(n) => {
                let fail = session.function(|| dequeue_and_fail(queue.clone(), n))?;
                Ok(fail.call_with(&options, ())?.to_vec())
            }
            Act::Close => session.function(|| queue.close())?.call_with(&options, ()).map(none),
            Act::Push(x) => host.push(x).map(none),
            Act::Pop => Ok(host.pop()?.into_iter().map(|x| x.item()).collect()),
            Act::HostClose => host.close().map(none),
            Act::CloseAndCancel => host.close_and_cancel().map(none),
        }
    }

    fn len(&self) -> Result<i64, Diagnostic> {
        Ok(self.session.function(|| self.queue.len())?.call(())?.item())
    }

    /// Fails unless the outcome is the expected one.
    fn check(&self, line: usize, act: Act, outcome: &Result<Vec<i64>, Diagnostic>, gives: Gives) {
        let fits = match (outcome, gives) {
            (Ok(got), Gives::Got(expected)) => match self.order {
                QueueOrder::Shuffle { .. } => got.len() == expected.len(),
                _ => got == expected,
            },
            (Err(e), Gives::Fails(kind, message)) => e.kind == kind && e.message.contains(message),
            _ => false,
        };
        let Stage { case, order, count, .. } = self;
        assert!(fits, "{case}: {order:?}: {count:?}: line {line}: {act:?} gives {outcome:?} instead of {gives:?}");
    }
}

/// The operations that a script has started and that have not ended.
type Started<'scope> = Vec<(usize, Act, CancelHandle, ScopedJoinHandle<'scope, Result<Vec<i64>, Diagnostic>>)>;

/// Plays a script on a queue of an order. Fails at the first line that is not as written.
fn play(case: &Case, order: QueueOrder, count: Count, session: &Session) {
    let queue = queue_of(order, case.capacity);
    let host = session.queue(&queue).unwrap_or_else(|e| panic!("{e}"));
    let stage = Stage { case: case.name, order, count, session, queue, host };
    let mut added: Vec<i64> = Vec::new();
    let mut removed: Vec<i64> = Vec::new();
    let mut record = |act: Act, outcome: &Result<Vec<i64>, Diagnostic>| {
        let Ok(got) = outcome else { return };
        removed.extend(got);
        match act {
            Act::Enqueue(x) | Act::Push(x) => added.push(x),
            Act::EnqueueMany(all) => added.extend(all),
            _ => {}
        }
    };
    scope(|scope| {
        let _guard = EndWaits(session);
        let stage = &stage;
        let start = |line: usize, act: Act| {
            let before = stage.host.n_waiting();
            let cancel = CancelHandle::new();
            let handle = scope.spawn({
                let cancel = cancel.clone();
                move || stage.act(act, &cancel)
            });
            until((stage.case, order, line, act, "waits"), || {
                let now = stage.host.n_waiting();
                assert!(!handle.is_finished(), "{}: {order:?}: line {line}: {act:?} does not wait", stage.case);
                now.0 > before.0 || now.1 > before.1
            });
            (line, act, cancel, handle)
        };
        let mut started: Started<'_> = Vec::new();
        for (line, written) in case.lines.iter().enumerate() {
            match *written {
                Line::Now(act, gives) => {
                    let outcome = stage.act(act, &CancelHandle::new());
                    stage.check(line, act, &outcome, gives);
                    record(act, &outcome);
                }
                Line::Waits(act) => started.push(start(line, act)),
                Line::Canceled(act) => {
                    assert!(!matches!(act, Act::Push(_) | Act::Pop), "waits of the host are not canceled");
                    let (line, act, cancel, handle) = start(line, act);
                    cancel.cancel();
                    let outcome = handle.join().expect("no panic");
                    stage.check(line, act, &outcome, Gives::Fails(ErrorKind::Cancelled, "was cancelled"));
                }
                Line::Ends(of, _) | Line::Cancel(of) => {
                    let i = started.iter().position(|(line, ..)| *line == of).expect("a line that waits");
                    let (_, act, cancel, handle) = started.remove(i);
                    let gives = match *written {
                        Line::Ends(_, gives) => gives,
                        _ => {
                            cancel.cancel();
                            Gives::Fails(ErrorKind::Cancelled, "was cancelled")
                        }
                    };
                    let outcome = handle.join().expect("no panic");
                    stage.check(line, act, &outcome, gives);
                    record(act, &outcome);
                }
                Line::Len(n) => {
                    until((stage.case, order, line, written), || stage.host.len() == n);
                    let len = stage.len().unwrap_or_else(|e| panic!("{e}"));
                    assert_eq!(len, n as i64, "{}: {order:?}: line {line}", stage.case);
                }
            }
        }
        assert!(started.is_empty(), "{}: a line that waits has no end", case.name);
    });
    stage.host.close().unwrap_or_else(|e| panic!("{e}"));
    let rest = stage.host.iter().map(|x| x.map(|x| x.item())).collect::<Result<Vec<i64>, _>>();
    removed.extend(rest.unwrap_or_else(|e| panic!("{e}")));
    added.sort();
    removed.sort();
    assert_eq!(removed, added, "{}: {order:?}: the elements that were removed, and those added", case.name);
}

/// Plays scripts on every engine. Those that remove batches are played with numbers of the host
/// and with tensors.
pub fn play_all(cases: &[Case]) {
    assert!(!cases.is_empty());
    for session in crate::support::sessions::each() {
        for case in cases {
            assert!(!case.orders.is_empty() && !case.lines.is_empty());
            let counts: &[Count] = if case.removes_batches() { &[Count::Host, Count::Tensor] } else { &[Count::Host] };
            for &order in case.orders {
                counts.iter().for_each(|&count| play(case, order, count, &session));
            }
        }
    }
}
