//! Many threads at a queue, and long sequences of operations.

use crate::support::sessions::{each as sessions, numbers};
use crate::support::waits::{EndWaits, until};
use anabranch::dsl::queue::QueueOrder;
use anabranch::prelude::*;
use anabranch::{DType, Diagnostic, Dim, ErrorKind, Queue, Session, TensorType, graph};
use std::thread::scope;

type Checked = Result<(), Diagnostic>;

/// Returns a queue of numbers of each order, which keeps no minimum.
fn of_each_order(capacity: usize) -> Result<[Queue<Tensor<i64>>; 4], Diagnostic> {
    let ty = [TensorType::new(DType::I64, [])];
    Ok([
        Queue::fifo("q", capacity, &ty)?,
        Queue::padding("q", capacity, &ty)?,
        Queue::priority("q", capacity, &ty)?,
        Queue::shuffle("q", capacity, 0, 3, &ty)?,
    ])
}

/// The two ways to add or to remove in one thread.
#[derive(Clone, Copy, Debug)]
enum Portion {
    Single,
    Batches(usize),
}

/// Adds `per_thread` numbers in each of `adding` threads, and removes all of them in `removing`
/// threads. Returns what each of these has removed.
fn exchange(
    session: &Session,
    queue: &Queue<Tensor<i64>>,
    per_thread: usize,
    (adding, add_as): (usize, Portion),
    (removing, remove_as): (usize, Portion),
) -> Result<Vec<Vec<i64>>, Diagnostic> {
    let one = session.function(|x: Tensor<i64>| queue.enqueue(x))?;
    let many = session.function(|x: Tensor<i64>| queue.enqueue_many(x))?;
    let next = session.function(|| queue.dequeue())?;
    let n = if let Portion::Batches(n) = remove_as { n } else { 1 };
    let batch = session.function(|| queue.dequeue_many(n))?;
    let removed = adding * per_thread / removing;
    assert!(removed.is_multiple_of(n) && removed * removing == adding * per_thread);
    scope(|scope| {
        let _guard = EndWaits(session);
        let consumers: Vec<_> = (0..removing)
            .map(|_| {
                scope.spawn(|| {
                    let mut all = Vec::new();
                    while all.len() < removed {
                        match remove_as {
                            Portion::Single => all.push(next.call(())?.item()),
                            Portion::Batches(_) => all.extend(batch.call(())?.to_vec()),
                        }
                    }
                    Ok(all)
                })
            })
            .collect();
        let producers: Vec<_> = (0..adding)
            .map(|thread| {
                let (one, many) = (&one, &many);
                let all: Vec<i64> = (thread * per_thread..).take(per_thread).map(|i| i as i64).collect();
                scope.spawn(move || match add_as {
                    Portion::Single => all.iter().try_for_each(|&x| one.call(x)),
                    Portion::Batches(n) => all.chunks(n).try_for_each(|some| many.call(some.to_vec())),
                })
            })
            .collect();
        producers.into_iter().try_for_each(|thread| thread.join().expect("no panic"))?;
        consumers.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// `testParallelEnqueue`, `testParallelDequeue`, `testParallelEnqueueMany`,
/// `testParallelDequeueMany`, `testParallelDequeueUpTo`, `testParallelEnqueueAndDequeue` and
/// `testRoundTripFillsCapacity..`: 20 threads add to and 20 remove from a queue with less room than
/// that.
#[test]
fn many_threads_lose_and_repeat_nothing() -> Checked {
    use Portion::{Batches, Single};
    for session in sessions() {
        for queue in of_each_order(10)? {
            for (add_as, remove_as) in
                [(Single, Single), (Batches(5), Single), (Single, Batches(5)), (Batches(4), Batches(5))]
            {
                let removed = exchange(&session, &queue, 10, (20, add_as), (20, remove_as))?;
                if queue.any().order() == QueueOrder::Fifo {
                    // Each thread adds in ascending order, and so they arrive.
                    for all in &removed {
                        let of = |thread: i64| all.iter().filter(move |&&x| x / 10 == thread);
                        assert!((0..20).all(|thread| of(thread).is_sorted()), "{add_as:?} {remove_as:?}: {all:?}");
                    }
                }
                let mut all = removed.concat();
                all.sort();
                assert_eq!(all, (0..200).collect::<Vec<_>>(), "{:?}: {add_as:?} {remove_as:?}", queue.any().order());
            }
        }
    }
    Ok(())
}

/// `testBlockingEnqueueManyToFullQueue` and its like: singles and batches of 250 elements from one
/// thread to another keep their order.
#[test]
fn mixed_portions_keep_the_order() -> Checked {
    use Portion::{Batches, Single};
    for session in sessions() {
        let queue = numbers(7);
        for add_as in [Single, Batches(7), Batches(3)] {
            for remove_as in [Single, Batches(50), Batches(2)] {
                let all = exchange(&session, &queue, 250, (1, add_as), (1, remove_as))?;
                assert_eq!(all.concat(), (0..250).collect::<Vec<_>>(), "{add_as:?} {remove_as:?}");
            }
        }
    }
    Ok(())
}

/// `testBigEnqueueMany`, `testBigDequeueMany`: one batch in, single elements out, and the reverse.
#[test]
fn large_batches_are_moved_at_once() -> Checked {
    for session in sessions() {
        let queue = Queue::<Tensor<i64>>::fifo("q", 2_000, &[TensorType::new(DType::I64, [])])?;
        let many = session.function(|x: Tensor<i64>| queue.enqueue_many(x))?;
        let batch = session.function(|| queue.dequeue_many(2_000))?;
        let host = session.queue(&queue)?;
        let all: Vec<i64> = (0..2_000).collect();
        many.call(&all)?;
        for &x in &all {
            assert_eq!(host.pop()?.map(|x| x.item()), Some(x));
        }
        all.iter().try_for_each(|&x| host.push(x))?;
        assert_eq!(batch.call(())?.to_vec(), all);
    }
    Ok(())
}

/// `testDoesNotLoseValue`: 500 readings of the length, inside and outside of calls.
#[test]
fn reading_the_length_loses_nothing() -> Checked {
    for session in sessions() {
        for queue in of_each_order(4)? {
            let (host, len) = (session.queue(&queue)?, session.function(|| queue.len())?);
            host.push(10)?;
            for _ in 0..500 {
                assert_eq!((len.call(())?.item(), host.len()), (1, 1));
            }
            assert_eq!(host.pop()?.map(|x| x.item()), Some(10));
        }
    }
    Ok(())
}

/// `testDequeueManyWithTensorParameter`: the number of elements comes from another queue, one by
/// one in a loop of the graph.
#[graph]
fn sum_of_as_many(counts: Queue<Tensor<i64>>, values: Queue<Tensor<i64>>) -> Tensor<i64> {
    let n = counts.dequeue();
    let mut sum = scalar(0i64);
    for _ in range(0..n) {
        sum += values.dequeue();
    }
    sum
}

#[test]
fn a_loop_removes_as_many_as_another_queue_says() -> Checked {
    for session in sessions() {
        let (counts, values) = (numbers(10), numbers(100));
        let (to_counts, to_values) = (session.queue(&counts)?, session.queue(&values)?);
        [3, 0, 5, 2].into_iter().try_for_each(|n| to_counts.push(n))?;
        (1..=10).try_for_each(|x| to_values.push(x))?;
        let sum = session.function(|| sum_of_as_many(counts.clone(), values.clone()))?;
        let sums = (0..4).map(|_| Ok(sum.call(())?.item())).collect::<Result<Vec<i64>, Diagnostic>>()?;
        assert_eq!((sums, to_values.len()), (vec![6, 0, 30, 19], 0));
    }
    Ok(())
}

/// `testDequeueManyWithTensorParameter`: the number of elements comes from another queue.
#[test]
fn a_batch_has_as_many_elements_as_another_queue_says() -> Checked {
    for session in sessions() {
        let (values, types) = (numbers(100), [TensorType::new(DType::I32, [])]);
        let counts = Queue::<Tensor<i32>>::fifo("counts", 10, &types)?;
        let (to_counts, to_values) = (session.queue(&counts)?, session.queue(&values)?);
        [3, 0, 5, 4, 2].into_iter().try_for_each(|n| to_counts.push(n))?;
        (1..=10).try_for_each(|x| to_values.push(x))?;
        let batch = session.function(|| values.dequeue_many(counts.dequeue()))?;
        let expected: [&[i64]; 3] = [&[1, 2, 3], &[], &[4, 5, 6, 7, 8]];
        for expected in expected {
            let batch = batch.call(())?;
            assert_eq!((batch.to_vec(), batch.shape()), (expected.to_vec(), &[expected.len()][..]));
        }
        to_values.close()?;
        let error = batch.call(()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Closed, "{error}");
        assert!(error.message.contains("has 2 of 4 elements"), "{error}");
        // The number returned to its queue, too.
        assert_eq!((to_counts.len(), to_values.len()), (2, 2));
        let rest = session.function(|| values.dequeue_up_to(counts.dequeue()))?;
        assert_eq!(rest.call(())?.to_vec(), [9, 10]);
    }
    Ok(())
}

/// Removes batches of 1, 2, 3 elements and so on in a loop, and returns the sum of each.
#[graph]
fn sums_of_growing_batches(n: Tensor<i32>, queue: Queue<Tensor<i64>>) -> Tensor<i64> {
    let mut sums = List::<i64>::new([]);
    for i in range(0..n) {
        sums.push(queue.dequeue_many(i + 1).sum());
    }
    sums.stack()
}

#[test]
fn a_loop_computes_the_sizes_of_its_batches() -> Checked {
    for session in sessions() {
        let queue = numbers(100);
        let host = session.queue(&queue)?;
        (1..=10).try_for_each(|x| host.push(x))?;
        let sums = session.function(|n: Tensor<i32>| sums_of_growing_batches(n, queue.clone()))?;
        assert_eq!(sums.call(4)?.to_vec(), [1, 2 + 3, 4 + 5 + 6, 7 + 8 + 9 + 10]);
        assert_eq!(host.len(), 0);
    }
    Ok(())
}

#[test]
fn a_negative_number_of_elements_is_an_error() -> Checked {
    for session in sessions() {
        let queue = numbers(10);
        let host = session.queue(&queue)?;
        host.push(7)?;
        let many = session.function(|n: Tensor<i32>| queue.dequeue_many(n))?;
        let up_to = session.function(|n: Tensor<i32>| queue.dequeue_up_to(n))?;
        for (name, error) in [("dequeue_many", many.call(-1)), ("dequeue_up_to", up_to.call(i32::MIN))] {
            let error = error.unwrap_err();
            assert!(error.message.starts_with(&format!("{name}: the number of elements is negative: -")), "{error}");
            assert!(error.loc().is_some_and(|loc| loc.file.ends_with("threads.rs")), "{error}");
        }
        assert_eq!((many.call(1)?.to_vec(), host.len()), (vec![7], 0));
    }
    Ok(())
}

/// A call that waits for a batch starts again when another one has assigned the variable with its
/// size. The elements that the smaller batch does not need return.
#[test]
fn a_batch_whose_size_changes_during_the_wait_has_the_new_size() -> Checked {
    for session in sessions() {
        let queue = numbers(10);
        let host = session.queue(&queue)?;
        let size = Var::<i32>::new("size", 5);
        let batch = session.function(|| queue.dequeue_many(size.get()))?;
        let change = session.function(|n: Tensor<i32>| size.set(n))?;
        (1..=3).try_for_each(|x| host.push(x))?;
        let got = scope(|scope| {
            let _guard = EndWaits(&session);
            let waiting = scope.spawn(|| batch.call(()));
            until("the call waits", || host.n_waiting().1 == 1);
            change.call(2)?;
            (4..=5).try_for_each(|x| host.push(x))?;
            waiting.join().expect("the call does not panic")
        })?;
        assert_eq!(got.to_vec(), [1, 2]);
        host.close()?;
        assert_eq!(host.iter().map(|x| Ok(x?.item())).collect::<Result<Vec<i64>, Diagnostic>>()?, [3, 4, 5]);
    }
    Ok(())
}

/// `testSelectQueue`: a branch chooses one of three queues.
#[graph]
fn enqueue_to(i: Tensor<i32>, x: Tensor<i64>, queues: [Queue<Tensor<i64>>; 3]) {
    match i {
        0 => queues[0].enqueue(x),
        1 => queues[1].enqueue(x),
        _ => queues[2].enqueue(x),
    }
}

#[test]
fn a_branch_selects_the_queue() -> Checked {
    for session in sessions() {
        let queues = [numbers(10), numbers(10), numbers(10)];
        let add = session.function(|i: Tensor<i32>, x: Tensor<i64>| enqueue_to(i, x, queues.clone()))?;
        for x in 0..9 {
            add.call((x as i32 % 3, x))?;
        }
        for (i, queue) in (0..).zip(&queues) {
            assert_eq!(session.function(|| queue.dequeue_many(3))?.call(())?.to_vec(), [i, i + 3, i + 6]);
        }
    }
    Ok(())
}

/// `testRoundTripInsertManyMultiThreadedReadOnceSorts`, `testRoundTripInsertOnceReadManySorts` and
/// the others: 20 threads add, and batches are sorted with those before them, each pair complete.
#[test]
fn priorities_from_many_threads_are_sorted() -> Checked {
    for session in sessions() {
        let types = [TensorType::new(DType::I64, []), TensorType::new(DType::I64, [])];
        let queue = Queue::<(Tensor<i64>, Tensor<i64>)>::priority("tasks", 1_000, &types)?;
        let one = session.function(|p: Tensor<i64>, x: Tensor<i64>| queue.enqueue((p, x)))?;
        let many = session.function(|p: Tensor<i64>, x: Tensor<i64>| queue.enqueue_many((p, x)))?;
        let batch = session.function(|| queue.dequeue_many(40))?;
        scope(|scope| {
            let _guard = EndWaits(&session);
            let threads: Vec<_> = (0..20i64)
                .map(|thread| {
                    let (one, many) = (&one, &many);
                    scope.spawn(move || {
                        // 7 is coprime to 50: some priorities are equal, in no order of threads.
                        let all: Vec<i64> = (0..20).map(|i| (thread * 20 + i) * 7 % 50).collect();
                        let doubles: Vec<i64> = all.iter().map(|p| p * 2).collect();
                        if thread % 2 == 0 {
                            return many.call((all, doubles));
                        }
                        all.iter().zip(&doubles).try_for_each(|(&p, &x)| one.call((p, x)))
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        let mut priorities = Vec::new();
        for _ in 0..10 {
            let (p, x) = batch.call(())?;
            let (p, x) = (p.to_vec(), x.to_vec());
            assert!(p.iter().zip(&x).all(|(p, x)| 2 * p == *x), "{p:?} {x:?}");
            priorities.extend(p);
        }
        let expected: Vec<i64> = (0..50).flat_map(|p| [p; 8]).collect();
        assert_eq!(priorities, expected);
    }
    Ok(())
}

/// Equal priorities are first in, first out, also if a step has returned some of them.
#[test]
fn equal_priorities_are_first_in_first_out() -> Checked {
    for session in sessions() {
        let types = [TensorType::new(DType::I64, []), TensorType::new(DType::I64, [])];
        let queue = Queue::<(Tensor<i64>, Tensor<i64>)>::priority("tasks", 100, &types)?;
        let host = session.queue(&queue)?;
        (0..8).try_for_each(|i| host.push((i % 2, i)))?;
        let fails = session.function(|| two_and_fail(queue.clone()))?;
        assert_eq!(fails.call(()).unwrap_err().kind, ErrorKind::AssertionFailed);
        host.push((0, 8))?;
        let (_, order) = session.function(|| queue.dequeue_many(9))?.call(())?;
        assert_eq!(order.to_vec(), [0, 2, 4, 6, 8, 1, 3, 5, 7]);
    }
    Ok(())
}

/// Removes two elements, and fails.
#[graph]
fn two_and_fail(queue: Queue<(Tensor<i64>, Tensor<i64>)>) {
    let (p, x) = queue.dequeue_many(2);
    assert!((p + x).sum() < -1, "the step fails");
}

/// `testDequeueInRandomOrder`, `testDequeueManyInRandomOrder`, `testDequeueUpToInRandomOrder`,
/// `testSharedQueueSameSeed..`: the same seed and operations give the same order in each session,
/// other seeds another one, and it is never that of the elements.
#[test]
fn the_seed_determines_the_order() -> Checked {
    let mut orders: Vec<Vec<Vec<i64>>> = Vec::new();
    for session in sessions() {
        let mut of_session = Vec::new();
        for seed in [0, 1, 87_654_321] {
            for n in [1, 5] {
                let queue = Queue::<Tensor<i64>>::shuffle("q", 20, 3, seed, &[TensorType::new(DType::I64, [])])?;
                let many = session.function(|x: Tensor<i64>| queue.enqueue_many(x))?;
                let batch = session.function(|| queue.dequeue_up_to(n))?;
                many.call((0..20).collect::<Vec<_>>())?;
                let mut order = Vec::new();
                while order.len() < 15 {
                    order.extend(batch.call(())?.to_vec());
                }
                session.queue(&queue)?.close()?;
                while order.len() < 20 {
                    order.extend(batch.call(())?.to_vec());
                }
                let mut sorted = order.clone();
                sorted.sort();
                assert_eq!(sorted, (0..20).collect::<Vec<_>>());
                assert!(!order.is_sorted());
                of_session.push(order);
            }
        }
        // A portion is no other order: elements are drawn one by one.
        assert!((0..3).all(|seed| of_session[2 * seed] == of_session[2 * seed + 1]));
        assert!(of_session[0] != of_session[2] && of_session[2] != of_session[4] && of_session[0] != of_session[4]);
        orders.push(of_session);
    }
    assert!(orders.windows(2).all(|pair| pair[0] == pair[1]), "{orders:?}");
    Ok(())
}

/// `testBlockingEnqueueToFullQueue` of the shuffle queue: an element that has waited for room is
/// not first, whatever the seed.
#[test]
fn an_element_without_room_is_not_drawn() -> Checked {
    let session = Session::new()?;
    for seed in 0..50 {
        let queue = Queue::<Tensor<i64>>::shuffle("q", 4, 0, seed, &[TensorType::new(DType::I64, [])])?;
        let host = session.queue(&queue)?;
        (1..=4).try_for_each(|x| host.push(x))?;
        scope(|scope| {
            let _guard = EndWaits(&session);
            let waiting = scope.spawn(|| host.push(5));
            until("the host waits", || host.n_waiting().0 == 1);
            assert_ne!(host.pop()?.map(|x| x.item()), Some(5));
            waiting.join().expect("no panic")
        })?;
        assert_eq!(host.len(), 4);
    }
    Ok(())
}

/// Each of 20 threads adds twice in one call. Calls that have room wait for more of it.
#[test]
fn calls_that_add_twice_do_not_wait_for_each_other() -> Checked {
    for session in sessions() {
        for queue in of_each_order(2)? {
            let host = session.queue(&queue)?;
            let twice = session.function(|x: Tensor<i64>| {
                queue.enqueue(x);
                queue.enqueue(x + 100);
            })?;
            let mut all = scope(|scope| {
                let _guard = EndWaits(&session);
                let threads: Vec<_> = (0..20)
                    .map(|x| {
                        let twice = &twice;
                        scope.spawn(move || twice.call(x))
                    })
                    .collect();
                let popped = (0..40).map(|_| Ok(host.pop()?.expect("the queue is open").item()));
                let all = popped.collect::<Result<Vec<i64>, Diagnostic>>()?;
                threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))?;
                Ok::<_, Diagnostic>(all)
            })?;
            all.sort();
            assert_eq!(all, (0..20).chain(100..120).collect::<Vec<_>>());
        }
    }
    Ok(())
}

/// A padding queue with unequal elements from many threads: `testParallelEnqueueMany`,
/// `testParallelDequeueMany` of the padding queue.
#[test]
fn padded_batches_from_many_threads_are_complete() -> Checked {
    for session in sessions() {
        let queue = Queue::<Tensor<i64>>::padding("q", 5, &[TensorType::new(DType::I64, [Dim::Unknown])])?;
        let one = session.function(|x: Tensor<i64>| queue.enqueue(x))?;
        let batch = session.function(|| queue.dequeue_many(4))?;
        let mut lengths = scope(|scope| {
            let _guard = EndWaits(&session);
            for thread in 0..20i64 {
                let one = &one;
                scope.spawn(move || (1..=2).try_for_each(|n| one.call(vec![1; (thread * n) as usize % 7])));
            }
            let mut lengths = Vec::new();
            for _ in 0..10 {
                let rows = batch.call(())?;
                let width = rows.shape()[1];
                let all = rows.to_vec();
                let of_batch = (0..4).map(|i| all[i * width..][..width].iter().sum::<i64>());
                let of_batch: Vec<i64> = of_batch.collect();
                assert_eq!(of_batch.iter().max(), Some(&(width as i64)));
                lengths.extend(of_batch);
            }
            Ok::<_, Diagnostic>(lengths)
        })?;
        lengths.sort();
        let mut expected: Vec<i64> = (0..20).flat_map(|thread| [thread % 7, thread * 2 % 7]).collect();
        expected.sort();
        assert_eq!(lengths, expected);
    }
    Ok(())
}
