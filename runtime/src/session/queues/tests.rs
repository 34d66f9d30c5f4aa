//! A model check of queues: random steps on random queues, in all kinds of interleavings. And
//! tests of what sessions do with queues that no caller outside can observe.

use super::content::{ElementRequest, QueueFailure, QueueState, QueuedElement, Waiter};
use super::saved::{QueueColumn, QueueContent};
use crate::session::Session;
use crate::threads;
use anabranch_dsl::queue::{AnyQueue, Queue, QueueOrder};
use anabranch_dsl::{Array, DType, Diagnostic, ErrorKind, HostTensor, Tensor, TensorType, Var, tensor};
use std::collections::BTreeSet;
use std::sync::mpsc;
use std::task::Poll;

mod interleavings;

/// A sequence of random numbers (xorshift64*, Vigna, "An experimental exploration of Marsaglia's
/// xorshift generators, scrambled", 2016).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

/// A queue under test, with all that its steps know of it.
struct Model {
    order: QueueOrder,
    queue: AnyQueue,
    state: QueueState,
    /// The elements that committed steps have added, and those that they have removed.
    added: BTreeSet<i64>,
    removed: BTreeSet<i64>,
}

/// A wait of a step for a queue.
#[derive(Clone, Copy)]
enum Wait {
    Room { queue: usize, waiter: Waiter, n: usize },
    Elements { queue: usize, waiter: Waiter, request: ElementRequest },
}

#[derive(Default)]
struct Running {
    wait: Option<Wait>,
    added: [Vec<i64>; 3],
    removed: [Vec<QueuedElement>; 3],
}

fn queue(order: QueueOrder, capacity: usize) -> AnyQueue {
    let types = [TensorType::new(DType::I64, ())];
    let made = match order {
        QueueOrder::Fifo => Queue::<Tensor<i64>>::fifo("q", capacity, &types),
        QueueOrder::Padding => Queue::<Tensor<i64>>::padding("q", capacity, &types),
        QueueOrder::Priority => Queue::<Tensor<i64>>::priority("q", capacity, &types),
        QueueOrder::Shuffle { min_left, seed } => Queue::<Tensor<i64>>::shuffle("q", capacity, min_left, seed, &types),
    };
    made.unwrap_or_else(|e| panic!("{e}")).any().clone()
}

fn value(element: &QueuedElement) -> i64 {
    element.tensors[0].data::<i64>()[0]
}

impl Model {
    fn new(random: &mut Random) -> Model {
        let capacity = 1 + random.below(4);
        let order = match random.below(4) {
            0 => QueueOrder::Padding,
            1 => QueueOrder::Priority,
            2 => QueueOrder::Shuffle { min_left: random.below(capacity), seed: random.below(100) as u64 },
            _ => QueueOrder::Fifo,
        };
        let queue = queue(order, capacity);
        let state = QueueState::new(&queue);
        Model { order, queue, state, added: BTreeSet::new(), removed: BTreeSet::new() }
    }

    /// Fails unless the content is what was added for good and not removed for good.
    fn check_content(&self, seed: u64) {
        let elements = self.state.content().elements;
        let values: BTreeSet<i64> = elements.iter().map(|element| element[0].data::<i64>()[0]).collect();
        assert_eq!(values.len(), elements.len(), "seed {seed}: an element is in the content twice");
        let expected: BTreeSet<i64> = self.added.difference(&self.removed).copied().collect();
        assert_eq!(values, expected, "seed {seed}: the content");
    }

    /// Returns a queue that has the content.
    fn restored(&self) -> QueueState {
        let mut state = QueueState::new(&self.queue);
        state.restore(self.state.content());
        state
    }
}

/// Takes all elements that are left.
fn drain(state: &mut QueueState) -> Vec<QueuedElement> {
    state.close(None, true);
    let mut all = Vec::new();
    loop {
        let waiter = state.consumer();
        match state.take(waiter, ElementRequest { n: 1, up_to: false }, 0) {
            Poll::Ready(Ok(elements)) => all.extend(elements),
            Poll::Ready(Err(QueueFailure::HasTooFew { n: 1, left: 0 })) => return all,
            other => panic!("{other:?}"),
        }
    }
}

/// Counts of events, to check that the histories cover enough.
#[derive(Debug, Default)]
struct SeenHistories {
    taken: usize,
    returned: usize,
    waits: usize,
    withdrawn: usize,
    refused: usize,
}

/// Runs one random history.
fn check(seed: u64, seen: &mut SeenHistories) {
    let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut models = [Model::new(random), Model::new(random), Model::new(random)];
    let mut steps: Vec<Running> = (0..1 + random.below(4)).map(|_| Running::default()).collect();
    let mut next = 0i64;
    for _ in 0..60 {
        let i = random.below(steps.len());
        let step = &mut steps[i];
        let q = random.below(3);
        match (step.wait, random.below(12)) {
            // A step that waits can only go on, or end.
            (Some(_), 1..) => {}
            (Some(Wait::Room { queue, waiter, .. } | Wait::Elements { queue, waiter, .. }), 0) => {
                models[queue].state.leave(waiter);
                end(&mut models, step, false, seen);
                seen.withdrawn += 1;
                continue;
            }
            (None, 0..=3) => {
                let n = 1 + random.below(3);
                let waiter = models[q].state.producer();
                step.wait = Some(Wait::Room { queue: q, waiter, n });
            }
            (None, 4..=7) => {
                let request = ElementRequest { n: 1 + random.below(4), up_to: random.below(2) == 0 };
                let waiter = models[q].state.consumer();
                step.wait = Some(Wait::Elements { queue: q, waiter, request });
            }
            (None, 8..=9) => end(&mut models, step, true, seen),
            (None, 10) => end(&mut models, step, false, seen),
            (None, _) => {
                if random.below(6) == 0 {
                    models[q].state.close(None, random.below(3) == 0);
                }
            }
        }
        proceed(&mut models, step, &mut next, seen);
        models.iter().for_each(|model| model.check_content(seed));
    }
    for step in &mut steps {
        if let Some(Wait::Room { queue, waiter, .. } | Wait::Elements { queue, waiter, .. }) = step.wait {
            models[queue].state.leave(waiter);
        }
        end(&mut models, step, false, seen);
    }
    for model in &mut models {
        let mut restored = model.restored();
        let left: Vec<QueuedElement> = drain(&mut model.state);
        let values = |elements: &[QueuedElement]| elements.iter().map(value).collect::<Vec<_>>();
        assert_eq!(values(&drain(&mut restored)), values(&left), "seed {seed}: the restored queue");
        let in_order = match model.order {
            QueueOrder::Fifo | QueueOrder::Padding => left.is_sorted_by_key(|element| element.number),
            QueueOrder::Priority => left.is_sorted_by_key(value),
            QueueOrder::Shuffle { .. } => true,
        };
        assert!(in_order, "seed {seed}: {:?} leaves {left:?}", model.order);
        let left_values: BTreeSet<i64> = left.iter().map(value).collect();
        assert_eq!(left_values.len(), left.len(), "seed {seed}: an element is there twice");
        assert!(left_values.is_disjoint(&model.removed), "seed {seed}: an element that was removed is there");
        let all: BTreeSet<i64> = left_values.union(&model.removed).copied().collect();
        assert_eq!(all, model.added, "seed {seed}: an element is lost");
    }
}

/// Polls the wait of a step.
fn proceed(models: &mut [Model; 3], step: &mut Running, next: &mut i64, seen: &mut SeenHistories) {
    match step.wait {
        None => {}
        Some(Wait::Room { queue, waiter, n }) => {
            let reserved = step.added[queue].len();
            match models[queue].state.reserve(waiter, n, reserved) {
                Poll::Pending => seen.waits += 1,
                Poll::Ready(Ok(())) => {
                    step.added[queue].extend((*next..).take(n));
                    *next += n as i64;
                    step.wait = None;
                }
                Poll::Ready(Err(_)) => {
                    seen.refused += 1;
                    step.wait = None;
                    end(models, step, false, seen);
                }
            }
        }
        Some(Wait::Elements { queue, waiter, request }) => {
            let reserved = step.added[queue].len();
            match models[queue].state.take(waiter, request, reserved) {
                Poll::Pending => seen.waits += 1,
                Poll::Ready(Ok(elements)) => {
                    assert!(elements.len() == request.n || request.up_to && !elements.is_empty());
                    if models[queue].order == QueueOrder::Priority {
                        assert!(elements.is_sorted_by_key(value), "{elements:?}");
                    }
                    seen.taken += elements.len();
                    step.removed[queue].extend(elements);
                    step.wait = None;
                }
                Poll::Ready(Err(_)) => {
                    seen.refused += 1;
                    step.wait = None;
                    end(models, step, false, seen);
                }
            }
        }
    }
}

/// Ends a step.
fn end(models: &mut [Model; 3], step: &mut Running, succeeds: bool, seen: &mut SeenHistories) {
    let Running { added, removed, .. } = std::mem::take(step);
    for ((model, added), removed) in models.iter_mut().zip(added).zip(removed) {
        if succeeds {
            model.added.extend(&added);
            for element in &removed {
                assert!(model.removed.insert(value(element)), "{element:?} is removed twice");
            }
            model.state.add(added.into_iter().map(|n| vec![HostTensor::scalar(n)]).collect());
            model.state.settle(&removed);
        } else {
            seen.returned += removed.len();
            model.state.free_room(added.len());
            model.state.give_back(removed);
        }
    }
}

#[test]
fn no_element_is_lost_or_seen_twice() {
    let n = if std::env::var_os("ANABRANCH_SLOW").is_some() { 100_000 } else { 10_000 };
    let mut seen = SeenHistories::default();
    (0..n).for_each(|seed| check(seed, &mut seen));
    let SeenHistories { taken, returned, waits, withdrawn, refused } = seen;
    for count in [taken, returned, waits, withdrawn, refused] {
        assert!(count as u64 > n / 4, "{seen:?}");
    }
}

#[test]
fn an_element_that_returns_is_before_later_ones() {
    let mut state = QueueState::new(&queue(QueueOrder::Fifo, 4));
    let waiter = state.producer();
    assert_eq!(state.reserve(waiter, 3, 0), Poll::Ready(Ok(())));
    state.add((0..3i64).map(|n| vec![HostTensor::scalar(n)]).collect());
    let take = |state: &mut QueueState| {
        let waiter = state.consumer();
        match state.take(waiter, ElementRequest { n: 1, up_to: false }, 0) {
            Poll::Ready(Ok(elements)) => elements,
            other => panic!("{other:?}"),
        }
    };
    let (first, second) = (take(&mut state), take(&mut state));
    assert_eq!((value(&first[0]), value(&second[0])), (0, 1));
    // The second one is consumed for good, the first one returns.
    state.give_back(first);
    assert_eq!([value(&take(&mut state)[0]), value(&take(&mut state)[0])], [0, 2]);
}

/// A batch has a later element when an earlier one returns.
#[test]
fn a_batch_that_waits_gets_the_elements_that_return_in_their_order() {
    let mut state = QueueState::new(&queue(QueueOrder::Fifo, 4));
    let add = |state: &mut QueueState, n: i64| {
        let waiter = state.producer();
        assert_eq!(state.reserve(waiter, 1, 0), Poll::Ready(Ok(())));
        state.add(vec![vec![HostTensor::scalar(n)]]);
    };
    let request = |n| ElementRequest { n, up_to: false };
    (0..3).for_each(|n| add(&mut state, n));
    let first = state.consumer();
    let Poll::Ready(Ok(first)) = state.take(first, request(2), 0) else { panic!("there are two elements") };
    let batch = state.consumer();
    assert!(state.take(batch, request(2), 0).is_pending());
    state.give_back(first);
    let outcome = state.take(batch, request(2), 0);
    assert!(matches!(&outcome, Poll::Ready(Ok(all)) if [value(&all[0]), value(&all[1])] == [0, 1]), "{outcome:?}");
    assert_eq!(drain(&mut state).iter().map(value).collect::<Vec<_>>(), [2]);
}

/// A large request is served before small ones that came later.
#[test]
fn waiters_are_served_in_the_order_in_which_they_came() {
    let mut state = QueueState::new(&queue(QueueOrder::Fifo, 4));
    let add = |state: &mut QueueState, n: i64| {
        let waiter = state.producer();
        assert_eq!(state.reserve(waiter, 1, 0), Poll::Ready(Ok(())));
        state.add(vec![vec![HostTensor::scalar(n)]]);
    };
    let (three, one) = (ElementRequest { n: 3, up_to: false }, ElementRequest { n: 1, up_to: false });
    let (large, small) = (state.consumer(), state.consumer());
    add(&mut state, 0);
    assert!(state.take(small, one, 0).is_pending() && state.take(large, three, 0).is_pending());
    add(&mut state, 1);
    add(&mut state, 2);
    assert!(state.take(small, one, 0).is_pending());
    assert!(matches!(state.take(large, three, 0), Poll::Ready(Ok(all)) if all.len() == 3));
    add(&mut state, 3);
    assert!(matches!(state.take(small, one, 0), Poll::Ready(Ok(all)) if value(&all[0]) == 3));
}

/// Closing lets those who wait for room add their elements, and consumers wait for these.
#[test]
fn those_who_wait_when_a_queue_is_closed_still_add() {
    let mut state = QueueState::new(&queue(QueueOrder::Fifo, 1));
    let first = state.producer();
    assert_eq!(state.reserve(first, 1, 0), Poll::Ready(Ok(())));
    let waiting = state.producer();
    assert!(state.reserve(waiting, 1, 0).is_pending());
    state.close(None, false);
    let late = state.producer();
    assert_eq!(state.reserve(late, 1, 0), Poll::Ready(Err(QueueFailure::TakesNone)));
    let (consumer, all) = (state.consumer(), ElementRequest { n: 3, up_to: true });
    assert!(state.take(consumer, all, 0).is_pending());
    state.add(vec![vec![HostTensor::scalar(1i64)]]);
    assert!(state.take(consumer, all, 0).is_pending());
    assert_eq!(state.reserve(waiting, 1, 0), Poll::Ready(Ok(())));
    assert!(state.take(consumer, all, 0).is_pending());
    state.add(vec![vec![HostTensor::scalar(2i64)]]);
    assert!(matches!(state.take(consumer, all, 0), Poll::Ready(Ok(elements)) if elements.len() == 2));

    let mut state = QueueState::new(&queue(QueueOrder::Fifo, 1));
    let first = state.producer();
    assert_eq!(state.reserve(first, 1, 0), Poll::Ready(Ok(())));
    let waiting = state.producer();
    assert!(state.reserve(waiting, 1, 0).is_pending());
    state.close(None, true);
    assert_eq!(state.reserve(waiting, 1, 0), Poll::Ready(Err(QueueFailure::TakesNone)));
}

/// Someone else waits for an element, and then a step that has added one itself.
#[test]
fn a_step_that_waits_for_itself_fails_behind_others_too() {
    let mut state = QueueState::new(&queue(QueueOrder::Fifo, 4));
    let one = ElementRequest { n: 1, up_to: false };
    let other = state.consumer();
    assert!(state.take(other, one, 0).is_pending());
    let waiter = state.producer();
    assert_eq!(state.reserve(waiter, 1, 0), Poll::Ready(Ok(())));
    let itself = state.consumer();
    assert_eq!(state.take(itself, one, 1), Poll::Ready(Err(QueueFailure::WaitsForItself { reserved: 1 })));
    state.free_room(1);
    assert!(state.take(other, one, 0).is_pending());
}

#[test]
fn a_queue_is_in_use_while_others_have_elements_or_room() {
    let mut state = QueueState::new(&queue(QueueOrder::Fifo, 4));
    let one = ElementRequest { n: 1, up_to: false };
    let (producer, consumer) = (state.producer(), state.consumer());
    assert!(state.take(consumer, one, 0).is_pending() && !state.is_in_use());
    state.leave(consumer);
    assert_eq!(state.reserve(producer, 1, 0), Poll::Ready(Ok(())));
    assert!(state.is_in_use());
    state.add(vec![vec![HostTensor::scalar(7i64)]]);
    assert!(!state.is_in_use());
    let many = state.consumer();
    assert!(state.take(many, ElementRequest { n: 2, up_to: false }, 0).is_pending());
    assert!(state.is_in_use());
    state.leave(many);
    assert!(!state.is_in_use());
    let consumer = state.consumer();
    let Poll::Ready(Ok(taken)) = state.take(consumer, one, 0) else { panic!("there is an element") };
    assert!(state.is_in_use());
    state.settle(&taken);
    assert!(!state.is_in_use());
}

/// A call has an element of one queue and waits for another one: its queues and variables are not
/// restored before it has ended, and then at once.
#[test]
fn queues_are_not_restored_under_a_running_call() {
    let session = Session::new().expect("a session");
    let queue = |name| Queue::<Tensor<i64>>::fifo(name, 4, &[TensorType::new(DType::I64, [])]).expect("a queue");
    let (a, b, w) = (queue("a"), queue("b"), Var::<i64>::new("w", 0));
    let both = session.function({
        let (a, b, w) = (a.clone(), b.clone(), w.clone());
        move || w.set(w.get() + a.dequeue() * b.dequeue())
    });
    let both = both.expect("a function");
    let (host_a, host_b) = (session.queue(&a).expect("a queue"), session.queue(&b).expect("a queue"));
    host_a.push(2).expect("room");
    let saved = session.snapshot_with_queues([], [a.any()]).expect("a snapshot").take_queues();
    let restore = || {
        let contents = vec![(a.any().clone(), saved[0].clone())];
        session.load_state_and_queues(&w, &[(String::new(), HostTensor::scalar(100i64))], contents)
    };
    std::thread::scope(|scope| {
        let call = scope.spawn(|| both.call(()));
        while session.queues.get(b.any()).state().n_consumers() == 0 {
            std::thread::yield_now();
        }
        let error = restore().expect_err("the call has an element");
        assert_eq!(error.message, "the queue `a` is restored while a running call uses it");
        host_b.push(5).expect("room");
        call.join().expect("no panic").expect("two elements");
    });
    assert_eq!(session.get(&w).expect("a value"), 10);
    restore().expect("no call");
    host_b.push(1).expect("room");
    both.call(()).expect("the element is there again");
    assert_eq!(session.get(&w).expect("a value"), 102);
}

/// The extents of scalars take no memory, so a small file may claim any number of them.
#[test]
fn saved_columns_have_as_many_scalars_as_they_say() {
    let queue = queue(QueueOrder::Fifo, 4);
    let extents = HostTensor::new([1 << 40, 0], Vec::<i64>::new());
    let column = QueueColumn { values: HostTensor::new([1], vec![1i64]), extents };
    let error = QueueContent::elements_of(&queue, &[column]).expect_err("there is one value");
    assert_eq!(error, "tensor 1 of the elements: there are 1 values, but 1099511627776 elements");
}

/// Two consumers of a queue with priorities are served in the order in which they came, also if the
/// first one waits before its step begins.
#[test]
fn a_call_that_waits_for_a_priority_is_not_overtaken() {
    let session = Session::new().expect("a session");
    let element = [TensorType::new(DType::I64, []), TensorType::new(DType::I64, [])];
    let queue = Queue::<(Tensor<i64>, Tensor<i64>)>::priority("p", 4, &element).expect("a queue");
    let take = session.function({
        let queue = queue.clone();
        move || queue.dequeue()
    });
    let (take, host) = (take.expect("a function"), session.queue(&queue).expect("a queue"));
    for _ in 0..100 {
        std::thread::scope(|scope| {
            let call = scope.spawn(|| take.call(()));
            while session.queues.get(queue.any()).state().n_consumers() < 1 {
                std::thread::yield_now();
            }
            let pop = scope.spawn(|| host.pop());
            while session.queues.get(queue.any()).state().n_consumers() < 2 {
                std::thread::yield_now();
            }
            host.push((0, 1)).expect("room");
            assert_eq!(call.join().expect("no panic").expect("an element").1, 1);
            host.push((0, 2)).expect("room");
            pop.join().expect("no panic").expect("an element");
        });
    }
}

#[test]
fn a_restored_queue_is_closed_with_its_error_or_open_again() {
    let mut state = QueueState::new(&queue(QueueOrder::Fifo, 4));
    let open = state.content();
    state.close(Some(Diagnostic::new("broken")), false);
    let closed = state.content();
    state.restore(open.clone());
    assert!(!state.is_closed() && state.content() == open);
    state.restore(closed);
    let (producer, consumer) = (state.producer(), state.consumer());
    assert!(matches!(state.reserve(producer, 1, 0), Poll::Ready(Err(QueueFailure::Producer(_)))));
    let outcome = state.take(consumer, ElementRequest { n: 1, up_to: false }, 0);
    assert!(matches!(outcome, Poll::Ready(Err(QueueFailure::Producer(e))) if e.message == "broken"));
}

/// Of two producers one ends, and then the other one fails.
#[test]
fn the_error_of_a_producer_is_kept_after_another_one_has_closed_the_queue() {
    let mut state = QueueState::new(&queue(QueueOrder::Fifo, 4));
    state.close(None, false);
    state.close(Some(Diagnostic::new("broken")), false);
    let waiter = state.consumer();
    let outcome = state.take(waiter, ElementRequest { n: 1, up_to: false }, 0);
    assert!(matches!(outcome, Poll::Ready(Err(QueueFailure::Producer(e))) if e.message == "broken"));
}

/// While two calls wait for elements, at the begin of their steps or in the middle, all threads are
/// free for the kernels of others.
#[test]
fn calls_that_wait_leave_all_threads_to_others() {
    for removes_first in [true, false] {
        let session = Session::builder().threads(2).build().expect("a session");
        let queue = Queue::<Tensor>::fifo("x", 2, &[TensorType::new(DType::F32, [100_000])]).expect("a queue");
        let sum = session.function({
            let queue = queue.clone();
            move |i: Tensor<i32>| match removes_first {
                true => queue.dequeue().sum(),
                false => {
                    // This fails for a wrong index, so it comes before the wait.
                    let first = tensor([1.0f32, 2.0]).take(i, 0);
                    queue.dequeue().sum() + first
                }
            }
        });
        let (sum, host) = (sum.expect("a function"), session.queue(&queue).expect("a queue"));
        let (ended, ends) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (ended, sum) = (ended.clone(), &sum);
                scope.spawn(move || {
                    sum.call(0).expect("an element");
                    ended.send(()).expect("a receiver");
                });
            }
            while session.queues.get(queue.any()).state().n_consumers() < 2 {
                std::thread::yield_now();
            }
            threads::testing::meet();
            for _ in 0..2 {
                host.push(Array::new([100_000], vec![0.5f32; 100_000])).expect("room");
                ends.recv().expect("a call");
            }
        });
    }
}

/// Rows without elements take no memory, so a batch may have any number of them.
#[test]
fn a_batch_of_any_size_fits_or_fails() {
    let session = Session::new().expect("a session");
    for (capacity, message, kind) in [
        (4, "enqueue_many: 1099511627776 elements never fit in the queue `rows` of capacity 4", ErrorKind::Invalid),
        (
            usize::MAX,
            "enqueue_many: out of memory: a batch of 1099511627776 elements needs ",
            ErrorKind::ResourceExhausted,
        ),
    ] {
        let queue = Queue::<Tensor>::fifo("rows", capacity, &[TensorType::new(DType::F32, [0])]).expect("a queue");
        let add = session.function({
            let queue = queue.clone();
            move |rows: Tensor| queue.enqueue_many(rows)
        });
        let add = add.expect("a function");
        let error = add.call(Array::new([1 << 40, 0], vec![])).expect_err("it is too large");
        assert!(error.message.starts_with(message), "{error}");
        assert_eq!(error.kind, kind);
        add.call(Array::new([3, 0], vec![])).expect("there is room");
        assert_eq!(session.queue(&queue).expect("a queue").len(), 3);
    }
}

#[test]
fn queues_of_an_ended_session_are_not_restored() {
    let session = Session::new().expect("a session");
    let queue = Queue::<Tensor<i64>>::fifo("a", 4, &[TensorType::new(DType::I64, [])]).expect("a queue");
    let (host, w) = (session.queue(&queue).expect("a queue"), Var::<i64>::new("w", 0));
    host.push(2).expect("room");
    let saved = session.snapshot_with_queues([], [queue.any()]).expect("a snapshot").take_queues();
    session.close_queues();
    let contents = vec![(queue.any().clone(), saved[0].clone())];
    let restored = session.load_state_and_queues(&w, &[(String::new(), HostTensor::scalar(100i64))], contents);
    let error = restored.expect_err("the queues have ended");
    assert_eq!(error.message, "restore: the session of the queue `a` has ended");
    assert_eq!(error.kind, ErrorKind::Cancelled);
    assert_eq!(session.get(&w).expect("a value"), 0);
    assert!(host.pop().is_err() && host.is_closed());
}

/// A feed is dropped when all of its elements are in the queue, but its iterator has not said so.
#[test]
fn a_feed_that_is_dropped_after_its_last_element_closes_the_queue_without_an_error() {
    for n in [3, 4] {
        let session = Session::new().expect("a session");
        let queue = Queue::<Tensor<i64>>::fifo("a", 8, &[TensorType::new(DType::I64, [])]).expect("a queue");
        let host = session.queue(&queue).expect("a queue");
        let (may_end, waits) = mpsc::channel::<()>();
        let elements = (0..n).map(move |i| {
            if i == 3 {
                waits.recv().expect("a sender");
            }
            Ok(i)
        });
        // With three elements, the iterator waits before it ends.
        let (may_end_too, waits_too) = mpsc::channel::<()>();
        let end = std::iter::from_fn(move || {
            waits_too.recv().expect("a sender");
            None::<anabranch_dsl::Result<i64>>
        });
        let feed = host.feed(elements.chain(end)).expect("a thread");
        while host.len() < 3 {
            std::thread::yield_now();
        }
        let progress = feed.progress();
        std::thread::scope(|scope| {
            scope.spawn(move || drop(feed));
            while !progress.lock().expect("no panic").is_dropped {
                std::thread::yield_now();
            }
            may_end.send(()).ok();
            may_end_too.send(()).ok();
        });
        let values: Vec<i64> = (0..3).map(|_| host.pop().expect("an element").expect("an element").item()).collect();
        assert_eq!(values, [0, 1, 2]);
        match n {
            3 => assert_eq!(host.pop().expect("the feed was complete").map(|x| x.item()), None),
            _ => {
                let error = host.pop().expect_err("an element is missing");
                assert!(error.message.ends_with("its feed was dropped before the last element"), "{error}");
            }
        }
    }
}
