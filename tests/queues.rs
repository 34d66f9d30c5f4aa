//! Queues, in steps and from the host, on every engine.

use crate::support::sessions::{each as sessions, numbers};
use crate::support::waits::{EndWaits, until};
use anabranch::data::Dataset;
use anabranch::prelude::*;
use anabranch::{
    CallOptions, CancelHandle, DType, Diagnostic, Dim, ErrorKind, HostQueue, HostTensor, Queue, Session, TensorType,
    graph, on,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::scope;
use std::time::Duration;

type Outcome = Result<(), Diagnostic>;

fn number() -> [TensorType; 1] {
    [TensorType::new(DType::I64, [])]
}

/// Closes the queue and returns what is in it.
fn rest(queue: &HostQueue<Tensor<i64>>) -> Result<Vec<i64>, Diagnostic> {
    queue.close()?;
    queue.iter().map(|n| Ok(n?.item())).collect()
}

#[test]
fn elements_leave_in_the_order_in_which_they_came() -> Outcome {
    for session in sessions() {
        let queue = Queue::<(Tensor, Tensor<i64>)>::fifo(
            "pairs",
            10,
            &[TensorType::new(DType::F32, [2]), TensorType::new(DType::I64, [])],
        )?;
        let add = session.function(|x: Tensor, n: Tensor<i64>| queue.enqueue((x, n)))?;
        let remove = session.function(|| queue.dequeue())?;
        let len = session.function(|| queue.len())?;
        for i in 0..5i64 {
            add.call(([i as f32, 0.5], i))?;
        }
        assert_eq!(len.call(())?, 5);
        for i in 0..5i64 {
            let (x, n) = remove.call(())?;
            assert_eq!((x.to_vec(), n.item()), (vec![i as f32, 0.5], i));
        }
        assert_eq!(len.call(())?, 0);
    }
    Ok(())
}

#[test]
fn several_operations_of_a_step_run_in_program_order() -> Outcome {
    for session in sessions() {
        let (from, to) = (numbers(10), numbers(10));
        let (from_host, to_host) = (session.queue(&from)?, session.queue(&to)?);
        (1..=6).try_for_each(|i| from_host.push(i))?;
        let f = session.function(|| {
            let (a, b) = (from.dequeue(), from.dequeue());
            to.enqueue(a * 10);
            to.enqueue(b * 10);
            let c = from.dequeue_many(2);
            to.enqueue_many(c);
            (a - b, c)
        })?;
        let (difference, batch) = f.call(())?;
        assert_eq!((difference.item(), batch.to_vec()), (-1, vec![3, 4]));
        assert_eq!(from_host.len(), 2);
        assert_eq!(rest(&to_host)?, [10, 20, 3, 4]);
    }
    Ok(())
}

/// Splits numbers by their sign.
#[graph]
fn split(x: Tensor<i64>, positive: Queue<Tensor<i64>>, other: Queue<Tensor<i64>>) {
    if x > 0 {
        positive.enqueue(x);
    } else {
        other.enqueue(-x);
    }
}

/// Sums elements until one is 0.
#[graph]
fn sum_until_zero(queue: Queue<Tensor<i64>>) -> Tensor<i64> {
    let mut sum = scalar(0i64);
    let mut x = queue.dequeue();
    while x != 0 {
        sum += x;
        x = queue.dequeue();
    }
    sum
}

#[test]
fn operations_run_inside_branches_and_loops() -> Outcome {
    for session in sessions() {
        let (positive, other) = (numbers(10), numbers(10));
        let f = session.function(|x: Tensor<i64>| split(x, positive.clone(), other.clone()))?;
        for x in [3, -1, 4, 0] {
            f.call(x)?;
        }
        let positive = session.queue(&positive)?;
        assert_eq!(rest(&positive)?, [3, 4]);
        let host = session.queue(&other)?;
        host.push(7)?;
        host.push(0)?;
        host.push(9)?;
        let sum = session.function(|| sum_until_zero(other.clone()))?;
        assert_eq!(sum.call(())?, 1);
        assert_eq!(sum.call(())?, 7);
        assert_eq!(rest(&host)?, [9]);
    }
    Ok(())
}

#[test]
fn a_step_that_fails_returns_its_elements_and_adds_none() -> Outcome {
    for session in sessions() {
        let (from, to) = (numbers(10), numbers(10));
        let (from_host, to_host) = (session.queue(&from)?, session.queue(&to)?);
        (1..=4).try_for_each(|i| from_host.push(i))?;
        let total = Var::<i64>::new("total", 0);
        let f = session.function(|limit: Tensor<i64>| failing(limit, from.clone(), to.clone(), total.clone()))?;
        let error = f.call(2).unwrap_err();
        assert_eq!(error.kind, ErrorKind::AssertionFailed, "{error}");
        assert_eq!((from_host.len(), to_host.len(), session.get(&total)?.item()), (4, 0, 0));
        f.call(10)?;
        assert_eq!((from_host.len(), to_host.len(), session.get(&total)?.item()), (2, 1, 3));
        assert_eq!((rest(&from_host)?, rest(&to_host)?), (vec![3, 4], vec![3]));
    }
    Ok(())
}

/// Moves the sum of two elements, unless it exceeds a limit.
#[graph]
fn failing(limit: Tensor<i64>, from: Queue<Tensor<i64>>, to: Queue<Tensor<i64>>, total: Var<i64>) {
    let sum = from.dequeue_many(2).sum();
    to.enqueue(sum);
    total.set(total.get() + sum);
    assert!(sum <= limit, "{sum} is too large");
}

#[test]
fn a_call_waits_for_elements_and_for_room() -> Outcome {
    for session in sessions() {
        let (from, to) = (numbers(2), numbers(1));
        let (from_host, to_host) = (session.queue(&from)?, session.queue(&to)?);
        let double = session.function(|| to.enqueue(from.dequeue() * 2))?;
        let received = scope(|scope| {
            scope.spawn(|| (0..50).try_for_each(|i| from_host.push(i)));
            scope.spawn(|| (0..50).try_for_each(|_| double.call(())));
            (0..50)
                .map(|_| Ok(to_host.pop()?.expect("the queue is open").item()))
                .collect::<Result<Vec<i64>, Diagnostic>>()
        })?;
        assert_eq!(received, (0..50).map(|i| i * 2).collect::<Vec<_>>());
        assert_eq!((from_host.len(), to_host.len()), (0, 0));
    }
    Ok(())
}

#[test]
fn a_batch_may_exceed_the_capacity() -> Outcome {
    for session in sessions() {
        let queue = numbers(2);
        let host = session.queue(&queue)?;
        let batch = session.function(|| queue.dequeue_many(7))?;
        let batch = scope(|scope| {
            scope.spawn(|| (0..7).try_for_each(|i| host.push(i)));
            batch.call(())
        })?;
        assert_eq!(batch.to_vec(), (0..7).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn a_closed_queue_gives_its_rest() -> Outcome {
    for session in sessions() {
        let queue = numbers(10);
        let host = session.queue(&queue)?;
        let many = session.function(|| queue.dequeue_many(3))?;
        let up_to = session.function(|| queue.dequeue_up_to(3))?;
        let add = session.function(|x: Tensor<i64>| queue.enqueue(x))?;
        (0..5).try_for_each(|i| host.push(i))?;
        host.close()?;
        host.close()?;
        assert_eq!(many.call(())?.to_vec(), [0, 1, 2]);
        let error = many.call(()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Closed);
        assert!(error.message.contains("`numbers` is closed and has 2 of 3 elements"), "{error}");
        assert!(error.loc().is_some_and(|loc| loc.file.ends_with("queues.rs")), "{error}");
        assert_eq!(up_to.call(())?.to_vec(), [3, 4]);
        assert_eq!(up_to.call(()).unwrap_err().kind, ErrorKind::Closed);
        for error in [add.call(1).unwrap_err(), host.push(1).unwrap_err()] {
            assert_eq!(error.kind, ErrorKind::Closed);
            assert!(error.message.ends_with("the queue `numbers` is closed"), "{error}");
        }
        assert_eq!(host.pop()?, None);
    }
    Ok(())
}

#[test]
fn a_step_closes_a_queue_when_it_succeeds() -> Outcome {
    for session in sessions() {
        let queue = numbers(10);
        let host = session.queue(&queue)?;
        let f = session.function(|limit: Tensor<i64>| add_and_close(limit, queue.clone()))?;
        assert!(f.call(0).is_err());
        assert!(!host.is_closed());
        f.call(10)?;
        assert!(host.is_closed());
        assert_eq!(rest(&host)?, [5]);
    }
    Ok(())
}

/// Adds a number and closes the queue, unless the number exceeds a limit.
#[graph]
fn add_and_close(limit: Tensor<i64>, queue: Queue<Tensor<i64>>) {
    queue.enqueue(scalar(5));
    queue.close();
    assert!(limit >= 5, "the limit is {limit}");
}

#[test]
fn the_error_of_a_producer_reaches_consumers() -> Outcome {
    for session in sessions() {
        let queue = numbers(10);
        let host = session.queue(&queue)?;
        let next = session.function(|| queue.dequeue())?;
        host.push(1)?;
        host.close_with(Diagnostic::new("a.csv: row 2 has no number").help("mend the file"))?;
        assert_eq!(next.call(())?, 1);
        let error = next.call(()).unwrap_err();
        let message = "dequeue: the queue `numbers` was closed by an error: a.csv: row 2 has no number";
        assert_eq!((error.message.as_str(), error.help.as_deref()), (message, Some("mend the file")));
        assert_eq!(host.pop().unwrap_err().message, message.replace("dequeue", "pop"));
        let of_iter: Vec<_> = host.iter().collect();
        assert!(matches!(&of_iter[..], [Err(_)]));
    }
    Ok(())
}

#[test]
fn deadlines_and_cancellations_end_waits_and_lose_nothing() -> Outcome {
    for session in sessions() {
        let (from, to) = (numbers(3), numbers(1));
        let (from_host, to_host) = (session.queue(&from)?, session.queue(&to)?);
        from_host.push(1)?;
        from_host.push(2)?;
        to_host.push(0)?;
        let three = session.function(|| from.dequeue_many(3))?;
        let move_one = session.function(|| to.enqueue(from.dequeue()))?;
        let soon = CallOptions::new().timeout(Duration::from_millis(20));
        for error in [three.call_with(&soon, ()).unwrap_err(), move_one.call_with(&soon, ()).unwrap_err()] {
            assert_eq!(error.kind, ErrorKind::DeadlineExceeded, "{error}");
            assert!(error.labels[0].1.starts_with("it waited here for the queue"), "{error}");
        }
        let cancel = CancelHandle::new();
        let options = CallOptions::new().cancelled_by(&cancel);
        let error = scope(|scope| {
            let call = scope.spawn(|| move_one.call_with(&options, ()));
            // The element is out of the queue while the call waits for room.
            while from_host.len() == 2 {
                std::thread::yield_now();
            }
            cancel.cancel();
            call.join().expect("the call does not panic").unwrap_err()
        });
        assert_eq!(error.kind, ErrorKind::Cancelled, "{error}");
        for error in [
            from_host.push(3).and_then(|()| from_host.push_timeout(Duration::from_millis(5), 4)).unwrap_err(),
            to_host.pop().and_then(|_| to_host.pop_timeout(Duration::from_millis(5))).unwrap_err(),
        ] {
            assert_eq!(error.kind, ErrorKind::DeadlineExceeded, "{error}");
        }
        assert_eq!(rest(&from_host)?, [1, 2, 3]);
    }
    Ok(())
}

#[test]
fn a_call_that_waits_for_itself_fails() -> Outcome {
    for session in sessions() {
        let queue = numbers(2);
        let host = session.queue(&queue)?;
        let itself = session.function(|| {
            queue.enqueue(scalar(1));
            queue.dequeue()
        })?;
        let error = itself.call(()).unwrap_err();
        assert!(error.message.contains("too few elements but for 1 that the call itself has added"), "{error}");
        let too_many = session.function(|| (0..3).for_each(|i| queue.enqueue(scalar(i))))?;
        let error = too_many.call(()).unwrap_err();
        assert!(error.message.contains("never fit in the queue `numbers` of capacity 2"), "{error}");
        let batch = session.function(|x: Tensor<i64>| queue.enqueue_many(x))?;
        let error = batch.call([1, 2, 3]).unwrap_err();
        assert!(error.message.contains("3 elements never fit"), "{error}");
        for n in [None, Some(1)] {
            let closing = session.function(|| {
                queue.close();
                n.map_or_else(|| queue.dequeue(), |n| queue.dequeue_up_to(n).sum())
            })?;
            let error = closing.call(()).unwrap_err();
            assert!(error.message.contains("too few elements, and the call itself closes it"), "{error}");
        }
        // An element of another call is no reason to fail.
        host.push(7)?;
        assert_eq!(itself.call(())?, 7);
        assert_eq!(rest(&host)?, [1]);
    }
    Ok(())
}

/// A call that assigns a variable waits for an element, and another one that assigns the same
/// variable adds it.
#[test]
fn a_call_that_waits_holds_no_variable() -> Outcome {
    for session in sessions() {
        let queue = numbers(1);
        let host = session.queue(&queue)?;
        let total = Var::<i64>::new("total", 0);
        let add = session.function(|| {
            let before = total.get();
            total.set(before + queue.dequeue());
            before
        })?;
        let produce = session.function(|| {
            total.set(total.get() + 100);
            queue.enqueue(scalar(5));
        })?;
        let before = scope(|scope| {
            let waiting = scope.spawn(|| add.call(()));
            produce.call(())?;
            waiting.join().expect("the call does not panic")
        })?;
        // It started again, since it had read the variable before the other call.
        assert_eq!((before.item(), session.get(&total)?.item(), host.len()), (100, 105, 0));
    }
    Ok(())
}

/// Returns a number for which a loop of `n` iterations is computed.
#[graph]
fn counted(n: Tensor<i64>) -> Tensor<i64> {
    let (mut i, mut x) = (scalar(0i64), scalar(3i64));
    while i < n {
        x = (x * 7 + 1) % 1000;
        i += 1;
    }
    x
}

/// While a call waits for an element on one device, another device computes a loop whose end
/// depends on a variable that is then assigned. The call starts again, and its options still hold.
#[test]
fn a_call_that_starts_again_is_not_cancelled_by_that() -> Outcome {
    let session = Session::builder().cpus(2).build()?;
    let (queue, n) = (numbers(1), Var::<i64>::new("n", i64::MAX));
    let host = session.queue(&queue)?;
    let f = session.function(|| {
        let x = on("/cpu:0", || counted(n.get()));
        (x, on("/cpu:1", || queue.dequeue() * 2))
    })?;
    scope(|scope| {
        let _guard = EndWaits(&session);
        let waiting = scope.spawn(|| f.call_timeout(Duration::from_secs(3600), ()));
        until("the call waits", || host.n_waiting().1 == 1);
        session.set(&n, 0)?;
        host.push(5)?;
        let (x, y) = waiting.join().expect("the call does not panic")?;
        assert_eq!((x.item(), y.item()), (3, 10));
        Ok(())
    })
}

/// While a call waits for an element on one device, an operation on another device fails.
#[test]
fn a_failure_on_another_device_ends_the_wait_for_a_queue() -> Outcome {
    let session = Session::builder().cpus(2).build()?;
    let queue = numbers(1);
    let host = session.queue(&queue)?;
    let f = session.function(|n: Tensor<i64>, by: Tensor<i64>| {
        let x = on("/cpu:0", || counted(n) / by);
        (x, on("/cpu:1", || queue.dequeue() * 2))
    })?;
    scope(|scope| -> Outcome {
        let _guard = EndWaits(&session);
        // The loop ends before the call waits, or after that.
        for n in [0, 1, 1_000_000, 1_000_001] {
            let f = &f;
            let waiting = scope.spawn(move || f.call((n, 0)));
            until("the call fails", || waiting.is_finished());
            let error = waiting.join().expect("the call does not panic").unwrap_err();
            assert!(error.message.contains("by zero"), "{error}");
            assert_eq!(host.n_waiting(), (0, 0));
        }
        Ok(())
    })?;
    host.push(4)?;
    let (x, y) = f.call((0, 1))?;
    assert_eq!((x.item(), y.item(), host.len()), (3, 8, 0));
    Ok(())
}

/// A call that starts again takes another way than before, and waits there for an element that
/// others add only when they get what the call had taken.
#[test]
fn a_call_that_starts_again_keeps_nothing_from_others_while_it_waits() -> Outcome {
    #[graph]
    fn either(
        way: Var<i64>,
        first: (&Queue<Tensor<i64>>, &Queue<Tensor<i64>>),
        second: &Queue<Tensor<i64>>,
    ) -> Tensor<i64> {
        let before = way.get();
        let taken = if before == 0 { first.0.dequeue() + first.1.dequeue() } else { second.dequeue() };
        way.set(before);
        taken
    }
    #[graph]
    fn adds_or_removes(way: Var<i64>, to: &Queue<Tensor<i64>>, from: &Queue<Tensor<i64>>) -> Tensor<i64> {
        let before = way.get();
        let mut taken = scalar(0);
        if before == 0 {
            to.enqueue(scalar(5));
        } else {
            taken = to.dequeue();
        }
        way.set(before);
        taken * 10 + from.dequeue()
    }
    let until_waits = |host: &HostQueue<Tensor<i64>>| until("the call waits", || host.n_waiting().1 == 1);
    for session in sessions() {
        let way = Var::<i64>::new("way", 0);
        // A call waits for the first queue, starts again, and waits for the second one.
        let check = |call: &(dyn Fn() -> Result<i64, Diagnostic> + Sync),
                     [first, second]: [&HostQueue<_>; 2],
                     end: &dyn Fn() -> Outcome,
                     result: i64| {
            session.set(&way, 0)?;
            scope(|scope| -> Outcome {
                let _guard = EndWaits(&session);
                let waiting = scope.spawn(call);
                until_waits(first);
                session.set(&way, 1)?;
                first.push(7)?;
                until_waits(second);
                end()?;
                assert_eq!(waiting.join().expect("the call does not panic")?, result);
                Ok(())
            })
        };
        let (a, b, c) = (numbers(1), numbers(1), numbers(1));
        let [of_a, of_b, of_c] = [&a, &b, &c].map(|queue| session.queue(queue));
        let (of_a, of_b, of_c) = (of_a?, of_b?, of_c?);
        let either = session.function(|| either(way.clone(), (&a, &b), &c))?;
        let moves = session.function(|| c.enqueue(a.dequeue()))?;
        of_a.push(3)?;
        check(&|| Ok(either.call(())?.item()), [&of_b, &of_c], &|| moves.call(()), 3)?;
        assert_eq!((of_a.len(), rest(&of_b)?, of_c.len()), (0, vec![7], 0));

        let (a, b) = (numbers(1), numbers(1));
        let (of_a, of_b) = (session.queue(&a)?, session.queue(&b)?);
        let flips = session.function(|| adds_or_removes(way.clone(), &a, &b))?;
        check(&|| Ok(flips.call(())?.item()), [&of_b, &of_a], &|| of_a.push(9), 97)?;
    }
    Ok(())
}

/// Actors read a weight and produce, learners consume and change the weight, all at once.
#[test]
fn actors_and_learners_lose_and_repeat_nothing() -> Outcome {
    let n: i64 = if std::env::var_os("ANABRANCH_SLOW").is_some() { 25_000 } else { 300 };
    for session in sessions() {
        let (tasks, results) = (numbers(1), numbers(1));
        let (tasks_host, results_host) = (session.queue(&tasks)?, session.queue(&results)?);
        let (weight, done) = (Var::<i64>::new("weight", 0), Var::<i64>::new("done", 0));
        let act = session.function(|| {
            let task = tasks.dequeue();
            done.set(done.get() + 1);
            results.enqueue(task + weight.get().minimum(0));
        })?;
        let learn = session.function(|| {
            let result = results.dequeue();
            weight.set(weight.get() + result);
            result
        })?;
        let (learned, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        scope(|scope| {
            scope.spawn(|| (1..=n).try_for_each(|i| tasks_host.push(i)).and_then(|()| tasks_host.close()));
            for thread in 0..2 {
                let (act, learn, learned, failed, results_host) = (&act, &learn, &learned, &failed, &results_host);
                scope.spawn(move || {
                    for i in thread.. {
                        // Some calls end early, wherever they are.
                        let soon = CallOptions::new().timeout(Duration::from_micros(50 * (i % 7)));
                        let outcome = if i % 3 == 0 { act.call_with(&soon, ()) } else { act.call(()) };
                        match outcome {
                            Err(e) if e.kind == ErrorKind::Closed => break,
                            Err(e) => assert_eq!(e.kind, ErrorKind::DeadlineExceeded, "{e}"),
                            Ok(()) => {}
                        }
                    }
                    // The last actor closes the results.
                    if failed.fetch_add(1, Ordering::Relaxed) == 1 {
                        results_host.close().unwrap_or_else(|e| panic!("{e}"));
                    }
                });
                scope.spawn(move || {
                    loop {
                        match learn.call(()) {
                            Ok(_) => learned.fetch_add(1, Ordering::Relaxed),
                            Err(e) if e.kind == ErrorKind::Closed => break,
                            Err(e) => panic!("{e}"),
                        };
                    }
                });
            }
        });
        assert_eq!((learned.into_inner() as i64, session.get(&done)?.item()), (n, n));
        assert_eq!(session.get(&weight)?, n * (n + 1) / 2);
    }
    Ok(())
}

#[test]
fn a_padding_queue_pads_each_batch_to_its_largest_element() -> Outcome {
    for session in sessions() {
        let types = [TensorType::new(DType::F32, [Dim::Unknown, Dim::Known(2)]), TensorType::new(DType::I64, [])];
        let queue = Queue::<(Tensor, Tensor<i64>)>::padding("rows", 10, &types)?;
        let host = session.queue(&queue)?;
        host.push((vec![[1.0, 2.0]], 1))?;
        host.push((vec![[3.0, 4.0], [5.0, 6.0]], 2))?;
        host.push((Array::new([0, 2], Vec::<f32>::new()), 0))?;
        host.push((vec![[7.0, 8.0]; 3], 3))?;
        let batch = session.function(|| queue.dequeue_many(3))?;
        let (rows, lengths) = batch.call(())?;
        assert_eq!(rows.shape(), [3, 2, 2]);
        assert_eq!(rows.to_vec(), [1.0, 2.0, 0.0, 0.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(lengths.to_vec(), [1, 2, 0]);
        let one = session.function(|| queue.dequeue().0)?;
        assert_eq!(one.call(())?.shape(), [3, 2]);

        let fifo = Queue::<Tensor>::fifo("vectors", 10, &[TensorType::new(DType::F32, [Dim::Unknown])])?;
        let host = session.queue(&fifo)?;
        host.push(vec![1.0])?;
        host.push(vec![1.0, 2.0])?;
        let batch = session.function(|| fifo.dequeue_many(2))?;
        let error = batch.call(()).unwrap_err();
        assert!(error.message.contains("has the extents [1] and [2] in one batch"), "{error}");
        assert_eq!(host.len(), 2);
    }
    Ok(())
}

#[test]
fn a_priority_queue_gives_the_smallest_first_and_equal_ones_in_order() -> Outcome {
    for session in sessions() {
        let types = [TensorType::new(DType::I64, []), TensorType::new(DType::I64, [])];
        let queue = Queue::<(Tensor<i64>, Tensor<i64>)>::priority("tasks", 100, &types)?;
        let host = session.queue(&queue)?;
        // 37 is coprime to 100, so all of 0..100 occur.
        (0..100).try_for_each(|i| host.push((i * 37 % 100 / 5, i)))?;
        let batch = session.function(|| queue.dequeue_many(20))?;
        let mut all = Vec::new();
        for _ in 0..5 {
            let (priorities, numbers) = batch.call(())?;
            all.extend(priorities.to_vec().into_iter().zip(numbers.to_vec()));
        }
        let mut sorted = all.clone();
        sorted.sort();
        assert_eq!(all, sorted);
    }
    Ok(())
}

#[test]
fn a_shuffling_queue_keeps_elements_until_it_is_closed() -> Outcome {
    let mut orders = Vec::new();
    for session in sessions() {
        for seed in [1, 2] {
            let queue = Queue::<Tensor<i64>>::shuffle("mixed", 100, 10, seed, &number())?;
            let host = session.queue(&queue)?;
            (0..20).try_for_each(|i| host.push(i))?;
            let batch = session.function(|| queue.dequeue_many(10))?;
            let mut order = batch.call(())?.to_vec();
            let soon = CallOptions::new().timeout(Duration::from_millis(5));
            let error = batch.call_with(&soon, ()).unwrap_err();
            assert_eq!((error.kind, host.len()), (ErrorKind::DeadlineExceeded, 10));
            host.close()?;
            order.extend(batch.call(())?.to_vec());
            orders.push(order);
        }
    }
    for pair in orders.windows(3) {
        assert!(pair[0] == pair[2] && pair[0] != pair[1], "{orders:?}");
    }
    let mut all = orders[0].clone();
    all.sort();
    assert_eq!(all, (0..20).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn wrong_elements_are_refused_where_they_are_written() -> Outcome {
    let session = Session::new()?;
    let queue = Queue::<Tensor>::fifo("vectors", 2, &[TensorType::new(DType::F32, [2])])?;
    let f = session.function(|x: Tensor| queue.enqueue(x))?;
    let error = f.call([1.0, 2.0, 3.0]).unwrap_err();
    assert!(error.message.contains("tensor 1 of an element of the queue `vectors` is f32[2]"), "{error}");
    assert!(error.loc().is_some_and(|loc| loc.file.ends_with("queues.rs")), "{error}");
    let host = session.queue(&queue)?;
    let error = host.push([1.0]).unwrap_err();
    assert_eq!(error.message, "an element of the queue `vectors` is f32[2], but got f32[1]");
    for (wrong, part) in [
        (Queue::<Tensor>::fifo("q", 0, &[TensorType::new(DType::F32, [])]).err(), "has a capacity of 0"),
        (Queue::<Tensor>::fifo("q", 1, &[TensorType::new(DType::I64, [])]).err(), "has elements of type f32"),
        (Queue::<Tensor>::fifo("q", 1, &[]).err(), "has elements without tensors"),
        (Queue::<Tensor>::shuffle("q", 3, 3, 0, &[TensorType::new(DType::F32, [])]).err(), "keeps 3 elements"),
        (Queue::<Tensor>::priority("q", 3, &[TensorType::new(DType::F32, [])]).err(), "start with f32[]"),
    ] {
        let error = wrong.expect("the queue makes no sense");
        assert!(error.message.contains(part), "{error}");
        assert!(error.labels.iter().any(|(loc, _)| loc.file.ends_with("queues.rs")), "{error}");
    }
    Ok(())
}

#[test]
fn the_end_of_a_session_ends_the_waits_of_the_host() -> Outcome {
    let queue = numbers(1);
    let session = Session::new()?;
    let host = session.queue(&queue)?;
    let error = scope(|scope| {
        let waiting = scope.spawn(|| host.pop());
        drop(session);
        waiting.join().expect("the wait does not panic").unwrap_err()
    });
    assert_eq!(error.kind, ErrorKind::Cancelled);
    assert_eq!(error.message, "pop: the session of the queue `numbers` has ended");
    assert!(host.push(1).is_err() && host.close().is_err());
    Ok(())
}

#[test]
fn closing_the_queues_of_a_session_ends_all_waits_and_leaves_other_sessions_alone() -> Outcome {
    let (empty, full, later) = (numbers(1), numbers(1), numbers(1));
    let (session, other) = (Session::new()?, Session::new()?);
    session.queue(&full)?.push(1)?;
    let bodies: [&(dyn Fn() -> Tensor<i64> + Sync); 4] = [
        &|| empty.dequeue(),
        &|| empty.dequeue_many(1).sum(),
        &|| {
            full.enqueue(scalar(2i64));
            scalar(0i64)
        },
        &|| {
            full.enqueue_many(tensor([2i64]));
            scalar(0i64)
        },
    ];
    let calls = bodies.map(|body| session.function(body).expect("a function"));
    let host = session.queue(&empty)?;
    scope(|scope| {
        let calls = calls.each_ref().map(|f| scope.spawn(|| f.call(()).unwrap_err()));
        let pop = scope.spawn(|| host.pop().unwrap_err());
        session.close_queues();
        for waiting in calls.into_iter().chain([pop]) {
            let error = waiting.join().expect("the wait does not panic");
            assert_eq!(error.kind, ErrorKind::Cancelled, "{error}");
            assert!(error.message.contains("has ended"), "{error}");
        }
    });
    // Queues that were not used before have ended, too.
    let error = session.function(|| later.dequeue())?.call(()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Cancelled);
    assert_eq!(session.function(|| scalar(1i64))?.call(())?.item(), 1);
    other.queue(&full)?.push(3)?;
    assert_eq!(other.function(|| full.dequeue())?.call(())?.item(), 3);
    Ok(())
}

#[test]
fn two_sessions_have_contents_of_their_own() -> Outcome {
    let queue = numbers(2);
    let (a, b) = (Session::new()?, Session::new()?);
    a.queue(&queue)?.push(1)?;
    b.queue(&queue)?.push(2)?;
    let next = a.function(|| queue.dequeue())?;
    assert_eq!((next.call(())?.item(), b.queue(&queue)?.pop()?.map(|n| n.item())), (1, Some(2)));
    Ok(())
}

#[test]
fn a_part_uses_queues_only_if_it_must() -> Outcome {
    for session in sessions() {
        let (from, to) = (numbers(4), numbers(4));
        let (from_host, to_host) = (session.queue(&from)?, session.queue(&to)?);
        (1..=3).try_for_each(|i| from_host.push(i))?;
        let f = session.function(|x: Tensor<i64>| {
            let y = (x * 2).named("y");
            to.enqueue(y);
            let z = (from.dequeue() + y).named("z");
            (y, z)
        })?;
        let (types, x) = (number(), HostTensor::scalar(5i64));
        let y = f.prune(&types, &["input 0"], &["y"])?;
        assert_eq!(y.call(std::slice::from_ref(&x))?, [HostTensor::scalar(10i64)]);
        assert_eq!((from_host.len(), to_host.len()), (3, 0));
        let z = f.prune(&types, &["input 0"], &["z"])?;
        assert_eq!(z.call(std::slice::from_ref(&x))?, [HostTensor::scalar(11i64)]);
        assert_eq!((from_host.len(), to_host.len()), (2, 0));
        let step = f.prune_step(&types, &["input 0"], &[])?;
        step.call(&[x])?;
        assert_eq!((rest(&from_host)?, rest(&to_host)?), (vec![3], vec![10]));
    }
    Ok(())
}

#[test]
fn a_part_keeps_operations_in_branches_if_it_is_a_step() -> Outcome {
    for session in sessions() {
        let (positive, other) = (numbers(10), numbers(10));
        let hosts = [session.queue(&positive)?, session.queue(&other)?];
        let f = session.function(|x: Tensor<i64>| {
            split(x, positive.clone(), other.clone());
            (x * 2).named("twice")
        })?;
        let (types, x) = (number(), HostTensor::scalar(5i64));
        let twice = f.prune(&types, &["input 0"], &["twice"])?;
        assert_eq!(twice.call(std::slice::from_ref(&x))?, [HostTensor::scalar(10i64)]);
        assert!(hosts.iter().all(HostQueue::is_empty));
        f.prune_step(&types, &["input 0"], &["twice"])?.call(&[x])?;
        assert_eq!([rest(&hosts[0])?, rest(&hosts[1])?], [vec![5], vec![]]);
    }
    Ok(())
}

/// A call that assigns nothing has the values that variables had when its element came.
#[test]
fn a_call_that_only_reads_variables_sees_them_as_its_element_came() -> Outcome {
    for session in sessions() {
        let queue = numbers(1);
        let host = session.queue(&queue)?;
        let weight = Var::<i64>::new("weight", 1);
        let consume = session.function(|| queue.dequeue() * weight.get())?;
        let produce = session.function(|| {
            weight.set(weight.get() + 1);
            queue.enqueue(scalar(10));
        })?;
        for i in 2..12 {
            let product = scope(|scope| {
                let waiting = scope.spawn(|| consume.call(()));
                produce.call(())?;
                waiting.join().expect("the call does not panic")
            })?;
            assert_eq!((product.item(), host.len()), (10 * i, 0));
        }
    }
    Ok(())
}

/// Sums the elements of a queue up to the first 0, which its condition removes.
#[graph]
fn condition_removes(queue: Queue<Tensor<i64>>) -> Tensor<i64> {
    let mut sum = scalar(0i64);
    let mut x = scalar(1i64);
    while {
        x = queue.dequeue();
        x != 0
    } {
        sum += x;
    }
    sum
}

#[graph]
fn condition_in_segments(queue: Queue<Tensor<i64>>, x: Tensor) -> Tensor {
    let mut y = x;
    while queue.dequeue() > 0 {
        checkpoint_loop();
        y *= x;
    }
    y
}

#[test]
fn what_is_computed_twice_cannot_use_a_queue() -> Outcome {
    let session = Session::new()?;
    let queue = numbers(4);
    let floats = Queue::<Tensor>::fifo("floats", 4, &[TensorType::new(DType::F32, [])])?;
    let errors = [
        session.function(|| condition_removes(queue.clone()))?.call(()).err(),
        session.function(|x: Tensor| gradients(checkpoint(|| floats.dequeue() * x), x))?.call(1.0).err(),
        session.function(|x: Tensor| gradients(condition_in_segments(queue.clone(), x), x))?.call(1.0).err(),
    ];
    for error in errors {
        let error = error.expect("an element would be removed twice");
        assert!(error.message.ends_with("twice, which an operation on a queue must not be"), "{error}");
        assert!(error.loc().is_some_and(|loc| loc.file.ends_with("queues.rs")), "{error}");
    }
    Ok(())
}

#[test]
fn no_gradient_flows_through_a_queue() -> Outcome {
    let session = Session::new()?;
    let queue = Queue::<Tensor>::fifo("values", 4, &[TensorType::new(DType::F32, [])])?;
    session.queue(&queue)?.push(3.0)?;
    let f = session.function(|x: Tensor| {
        let y = queue.dequeue();
        queue.enqueue(x * 100.0);
        gradients(x * x * y, x)
    })?;
    assert_eq!(f.call(2.0)?, 12.0);
    assert_eq!(f.call(2.0)?, 800.0);
    Ok(())
}

/// Multiplies by one element of the queue in each iteration.
#[graph]
fn weighted(n: Tensor<i32>, w: Tensor, queue: Queue<Tensor>) -> (Tensor, Tensor) {
    let (mut loss, mut i) = (scalar(0.0), scalar(0));
    while i < n {
        loss += queue.dequeue() * w;
        i += 1;
    }
    (loss, gradients(loss, w))
}

/// Multiplies once for each positive element.
#[graph]
fn multiplied(n: Tensor<i32>, w: Tensor, queue: Queue<Tensor>) -> (Tensor, Tensor) {
    let mut y = w;
    for _ in range(n) {
        if queue.dequeue() > 0.0 {
            y *= w;
        } else {
            y *= 2.0 * queue.dequeue_many(2).sum();
        }
    }
    (y, gradients(y, w))
}

/// Multiplies by elements of a loop inside of the loop.
#[graph]
fn nested(n: Tensor<i32>, w: Tensor, queue: Queue<Tensor>) -> (Tensor, Tensor) {
    let mut loss = scalar(0.0);
    for _ in range(n) {
        let (mut product, mut i) = (scalar(1.0), scalar(0));
        while i < 2 {
            product *= queue.dequeue();
            i += 1;
        }
        loss += product * w;
    }
    (loss, gradients(loss, w))
}

#[test]
fn a_gradient_has_the_elements_of_each_iteration() -> Outcome {
    for session in sessions() {
        let queue = Queue::<Tensor>::fifo("values", 8, &[TensorType::new(DType::F32, [])])?;
        let host = session.queue(&queue)?;
        let items = |(value, gradient): (Array<f32>, Array<f32>)| [value.item(), gradient.item()];
        let fill = |elements: &[f32]| elements.iter().try_for_each(|&element| host.push(element));
        let f = session.function(|n: Tensor<i32>, w: Tensor| weighted(n, w, queue.clone()))?;
        fill(&[1.0, 2.0, 3.0])?;
        assert_eq!(items(f.call((3, 10.0))?), [60.0, 6.0]);
        assert_eq!(items(f.call((0, 10.0))?), [0.0, 0.0]);
        let f = session.function(|n: Tensor<i32>, w: Tensor| multiplied(n, w, queue.clone()))?;
        fill(&[1.0, -1.0, 2.0, 3.0, 5.0])?;
        // 10 w^3
        assert_eq!(items(f.call((3, 2.0))?), [80.0, 120.0]);
        let f = session.function(|n: Tensor<i32>, w: Tensor| nested(n, w, queue.clone()))?;
        fill(&[1.0, 2.0, 3.0, 4.0])?;
        assert_eq!(items(f.call((2, 10.0))?), [140.0, 14.0]);
    }
    Ok(())
}

#[test]
fn a_dataset_feeds_a_queue_that_steps_empty() -> Outcome {
    for session in sessions() {
        let queue = Queue::<(Tensor, Tensor<i64>)>::fifo(
            "batches",
            2,
            &[TensorType::new(DType::F32, [Dim::Unknown]), TensorType::new(DType::I64, [])],
        )?;
        let data = Dataset::range(0..20).map(|i| (vec![0.5; i as usize % 3], i)).prefetch(2, 4);
        let feed = session.queue(&queue)?.feed(data.epoch(1))?;
        let next = session.function(|| {
            let (x, i) = queue.dequeue();
            (x.sum(), i)
        })?;
        for i in 0..20 {
            let (sum, n) = next.call(())?;
            assert_eq!((sum.item(), n.item()), ((i % 3) as f32 * 0.5, i));
        }
        assert_eq!(feed.wait()?, 20);
        assert_eq!(next.call(()).unwrap_err().kind, ErrorKind::Closed);
    }
    Ok(())
}

#[test]
fn the_error_of_a_fed_dataset_reaches_the_step_that_would_use_its_element() -> Outcome {
    let session = Session::new()?;
    let queue = Queue::<Tensor<i64>>::fifo("numbers", 4, &number())?;
    let broken = |i| if i == 3 { Err(Diagnostic::new("row 3 of a.csv is broken")) } else { Ok(i) };
    let feed = session.queue(&queue)?.feed(&Dataset::range(0..10).try_map(broken))?;
    let next = session.function(|| queue.dequeue())?;
    for i in 0..3 {
        assert_eq!(next.call(())?, i);
    }
    let error = next.call(()).unwrap_err();
    assert!(error.message.ends_with("row 3 of a.csv is broken"), "{error}");
    assert_eq!(feed.wait().unwrap_err().message, "row 3 of a.csv is broken");

    // An element of another type is an error of the producer, too.
    let queue = Queue::<Tensor<i64>>::fifo("numbers", 4, &number())?;
    let host = session.queue(&queue)?;
    let feed = host.feed([Ok(vec![1_i64, 2])])?;
    assert!(feed.wait().unwrap_err().message.contains("but got i64[2]"));
    assert!(host.pop().unwrap_err().message.contains("but got i64[2]"));
    Ok(())
}

#[test]
fn a_panic_of_a_fed_iterator_closes_the_queue() -> Outcome {
    let session = Session::new()?;
    let queue = Queue::<Tensor<i64>>::fifo("numbers", 4, &number())?;
    let host = session.queue(&queue)?;
    let feed = host.feed((0..3_i64).map(|i| if i == 1 { panic!("no {i}") } else { Ok(i) }))?;
    assert_eq!(host.pop()?.map(|n| n.item()), Some(0));
    assert!(host.pop().unwrap_err().message.ends_with("the iterator that feeds the queue `numbers` panicked"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| feed.wait())).is_err());
    Ok(())
}

/// Returns an endless iterator that holds the token.
fn endless(token: &Arc<()>) -> impl Iterator<Item = anabranch::Result<i64>> + Send + use<> {
    let token = token.clone();
    (0..).map(move |i| {
        assert!(Arc::strong_count(&token) > 0);
        Ok(i)
    })
}

#[test]
fn dropping_a_feed_or_its_session_ends_the_thread() -> Outcome {
    let token = Arc::new(());
    for _ in 0..100 {
        let session = Session::new()?;
        let queue = Queue::<Tensor<i64>>::fifo("numbers", 3, &number())?;
        let host = session.queue(&queue)?;
        let feed = host.feed(endless(&token))?;
        assert_eq!(host.pop()?.map(|n| n.item()), Some(0));
        drop(feed);
        assert_eq!(Arc::strong_count(&token), 1, "the thread has ended");
        let error = host.iter().find_map(Result::err).expect("the queue is closed by an error");
        assert!(error.message.ends_with("its feed was dropped before the last element"), "{error}");

        let queue = Queue::<Tensor<i64>>::fifo("numbers", 3, &number())?;
        let feed = session.queue(&queue)?.feed(endless(&token))?;
        drop(session);
        assert_eq!(feed.wait().unwrap_err().kind, ErrorKind::Cancelled);
        assert_eq!(Arc::strong_count(&token), 1, "the thread has ended");
    }
    Ok(())
}

#[test]
fn closing_a_queue_ends_its_feed_without_a_cause() -> Outcome {
    let session = Session::new()?;
    let queue = Queue::<Tensor<i64>>::fifo("numbers", 3, &number())?;
    let host = session.queue(&queue)?;
    let feed = host.feed(endless(&Arc::default()))?;
    host.close_and_cancel()?;
    assert_eq!(feed.wait().unwrap_err().kind, ErrorKind::Closed);
    assert!(host.iter().all(|n| n.is_ok()), "the end is no error");
    Ok(())
}
