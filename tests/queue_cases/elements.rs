//! Elements: their types, shapes and number of tensors, and how batches pad them.

use crate::support::sessions::each as sessions;
use crate::support::waits::{EndWaits, until};
use anabranch::prelude::*;
use anabranch::{Bytes, DType, Diagnostic, Dim, Queue, TensorType, bf16, f16};
use std::fmt::Debug;
use std::thread::scope;

type Checked = Result<(), Diagnostic>;

/// A type of numbers and letters.
type Pair = (Tensor<i32>, Tensor);

fn pairs(capacity: usize) -> Result<Queue<Pair>, Diagnostic> {
    Queue::fifo("pairs", capacity, &[TensorType::new(DType::I32, []), TensorType::new(DType::F32, [2])])
}

/// `testDtypes`, `testEnqueueHalf`, `testDequeueHalf`: adds values one by one and as a batch, and
/// removes them in both ways.
macro_rules! round_trip {
    ($t:ty, $dtype:ident, $values:expr) => {
        for session in sessions() {
            let values: Vec<$t> = $values.into();
            let scalar = TensorType::new(DType::$dtype, []);
            for queue in [
                Queue::<Tensor<$t>>::fifo("q", 100, std::slice::from_ref(&scalar))?,
                Queue::padding("q", 100, std::slice::from_ref(&scalar))?,
                Queue::shuffle("q", 100, 0, 1, std::slice::from_ref(&scalar))?,
            ] {
                let one = session.function(|x: Tensor<$t>| queue.enqueue(x))?;
                let many = session.function(|x: Tensor<$t>| queue.enqueue_many(x))?;
                let batch = session.function(|| queue.dequeue_many(values.len()))?;
                let next = session.function(|| queue.dequeue())?;
                values.iter().try_for_each(|x| one.call(x.clone()))?;
                let singly = batch.call(())?.to_vec();
                many.call(values.clone())?;
                let rest = values.iter().map(|_| Ok(next.call(())?.item()));
                let rest = rest.collect::<Result<Vec<$t>, Diagnostic>>()?;
                for got in [singly, rest] {
                    assert_eq!(in_order(&got), in_order(&values), "{}", stringify!($t));
                }
            }
        }
    };
}

/// Returns the elements in an order that is the same for each permutation of them.
fn in_order<T: Debug>(all: &[T]) -> Vec<String> {
    let mut all: Vec<String> = all.iter().map(|x| format!("{x:?}")).collect();
    all.sort();
    all
}

#[test]
fn queues_hold_numbers_of_each_type() -> Checked {
    round_trip!(f32, F32, [0.5, -1.0, f32::INFINITY, 0.0]);
    round_trip!(f64, F64, [0.1, -1e300, f64::MIN_POSITIVE, 0.0]);
    round_trip!(f16, F16, [0.5, -1.0, 65504.0].map(f16::from_f32));
    round_trip!(bf16, BF16, [0.5, -1.0, 1e38].map(bf16::from_f32));
    round_trip!(i32, I32, [0, i32::MIN, i32::MAX]);
    round_trip!(i64, I64, [0, i64::MIN, i64::MAX]);
    round_trip!(u32, U32, [0, 1, u32::MAX]);
    round_trip!(u8, U8, [0, 1, 255]);
    round_trip!(bool, Bool, [true, false, true]);
    round_trip!(Bytes, Bytes, ["", "a", "\0\u{e9}"].map(Bytes::from));
    Ok(())
}

/// `testMultiEnqueueAndDequeue`, `testMultiEnqueueMany`, `testMultiDequeueMany`,
/// `testMultiDequeueUpToNoBlocking`, `testDequeueUpToFromClosedQueueReturnsRemainder`.
#[test]
fn the_tensors_of_an_element_stay_together() -> Checked {
    for session in sessions() {
        let queue = pairs(10)?;
        let one = session.function(|n: Tensor<i32>, x: Tensor| queue.enqueue((n, x)))?;
        let many = session.function(|n: Tensor<i32>, x: Tensor| queue.enqueue_many((n, x)))?;
        let (next, batch) = (session.function(|| queue.dequeue())?, session.function(|| queue.dequeue_many(3))?);
        let up_to = session.function(|| queue.dequeue_up_to(3))?;
        one.call((5, [10.0, 11.0]))?;
        many.call(([6, 7, 8], [[20.0, 21.0], [30.0, 31.0], [40.0, 41.0]]))?;
        one.call((9, [50.0, 51.0]))?;
        let (n, x) = next.call(())?;
        assert_eq!((n.item(), x.to_vec()), (5, vec![10.0, 11.0]));
        let (n, x) = batch.call(())?;
        assert_eq!((n.to_vec(), x.shape()), (vec![6, 7, 8], &[3, 2][..]));
        assert_eq!(x.to_vec(), [20.0, 21.0, 30.0, 31.0, 40.0, 41.0]);
        session.queue(&queue)?.close()?;
        let (n, x) = up_to.call(())?;
        assert_eq!((n.to_vec(), x.to_vec(), x.shape()), (vec![9], vec![50.0, 51.0], &[1, 2][..]));
    }
    Ok(())
}

/// `testEmptyEnqueueMany`, `testEmptyDequeueMany`, `testEmptyDequeueUpTo`: batches of no elements
/// have the shapes of their elements.
#[test]
fn empty_batches_have_shapes() -> Checked {
    for session in sessions() {
        let queue = pairs(10)?;
        let host = session.queue(&queue)?;
        let many = session.function(|n: Tensor<i32>, x: Tensor| queue.enqueue_many((n, x)))?;
        let none = session.function(|| (queue.dequeue_many(0), queue.dequeue_up_to(0)))?;
        for _ in 0..3 {
            many.call((Vec::<i32>::new(), Array::new([0, 2], Vec::<f32>::new())))?;
            let ((n, x), (of_rest, rest)) = none.call(())?;
            assert_eq!((n.shape(), x.shape()), (&[0][..], &[0, 2][..]));
            assert_eq!((of_rest.shape(), rest.shape()), (&[0][..], &[0, 2][..]));
            host.push((1, [0.5, 0.5]))?;
        }
        assert_eq!(host.len(), 3);
    }
    Ok(())
}

/// `testEmptyDequeueManyWithNoShape`, `testEmptyDequeueUpToWithNoShape`: without elements, nothing
/// tells the unknown extents.
#[test]
fn empty_batches_of_unknown_extents_are_errors() -> Checked {
    for session in sessions() {
        for queue in [
            Queue::<Tensor>::fifo("vectors", 10, &[TensorType::new(DType::F32, [Dim::Unknown])])?,
            Queue::padding("vectors", 10, &[TensorType::new(DType::F32, [Dim::Unknown])])?,
        ] {
            let host = session.queue(&queue)?;
            for with_elements in [false, true] {
                let many = session.function(|| queue.dequeue_many(0))?.call(()).unwrap_err();
                let up_to = session.function(|| queue.dequeue_up_to(0))?.call(()).unwrap_err();
                for error in [many, up_to] {
                    assert!(error.message.contains("a batch of no elements has no extents"), "{error}");
                    assert!(error.loc().is_some_and(|loc| loc.file.ends_with("elements.rs")), "{error}");
                }
                if !with_elements {
                    host.push([1.0, 2.0, 3.0])?;
                }
            }
            let many = session.function(|| queue.dequeue_many(1))?;
            assert_eq!(many.call(())?.to_vec(), [1.0, 2.0, 3.0]);
        }
    }
    Ok(())
}

/// Elements of extent 0, and of no axes but a batch.
#[test]
fn elements_without_numbers_are_counted() -> Checked {
    for session in sessions() {
        let queue = Queue::<Tensor>::fifo("empty", 4, &[TensorType::new(DType::F32, [0, 3])])?;
        let host = session.queue(&queue)?;
        let one = session.function(|x: Tensor| queue.enqueue(x))?;
        let many = session.function(|x: Tensor| queue.enqueue_many(x))?;
        one.call(Array::new([0, 3], Vec::<f32>::new()))?;
        many.call(Array::new([3, 0, 3], Vec::<f32>::new()))?;
        assert_eq!(host.len(), 4);
        assert_eq!(session.function(|| queue.dequeue())?.call(())?.shape(), [0, 3]);
        assert_eq!(session.function(|| queue.dequeue_many(3))?.call(())?.shape(), [3, 0, 3]);
        assert!(host.is_empty());
    }
    Ok(())
}

/// `testHighDimension`: elements of four axes, as they are, in batches of batches.
#[test]
fn elements_have_four_axes() -> Checked {
    for session in sessions() {
        for dims in [[const { Dim::Known(4) }; 4], [Dim::Known(4), Dim::Unknown, Dim::Known(4), Dim::Unknown]] {
            let element = TensorType::new(DType::I32, dims);
            for queue in [
                Queue::<Tensor<i32>>::fifo("q", 10, std::slice::from_ref(&element))?,
                Queue::padding("q", 10, std::slice::from_ref(&element))?,
            ] {
                let many = session.function(|x: Tensor<i32>| queue.enqueue_many(x))?;
                let (next, batch) =
                    (session.function(|| queue.dequeue())?, session.function(|| queue.dequeue_many(9))?);
                let all: Vec<i32> = (0..10 * 256).collect();
                many.call(Array::new([10, 4, 4, 4, 4], all.clone()))?;
                let first = next.call(())?;
                assert_eq!((first.shape(), &first.to_vec()[..]), (&[4; 4][..], &all[..256]));
                let rest = batch.call(())?;
                assert_eq!((rest.shape(), &rest.to_vec()[..]), (&[9, 4, 4, 4, 4][..], &all[256..]));
            }
        }
    }
    Ok(())
}

/// `testEnqueueWithShape`, `testEnqueueManyWithShape`, `testEnqueueManyMismatchedComponentSizes`,
/// and the messages of the padding queue: both shapes are named, and nothing is added.
#[test]
fn elements_of_wrong_shapes_are_refused() -> Checked {
    for session in sessions() {
        let known = [TensorType::new(DType::F32, [3, 2])];
        let partly = [TensorType::new(DType::F32, [Dim::Unknown, Dim::Known(2)])];
        for (queue, expected) in [
            (Queue::<Tensor>::fifo("q", 10, &known)?, "f32[3, 2]"),
            (Queue::shuffle("q", 10, 0, 0, &known)?, "f32[3, 2]"),
            (Queue::padding("q", 10, &partly)?, "f32[?, 2]"),
        ] {
            let host = session.queue(&queue)?;
            let one = session.function(|x: Tensor| queue.enqueue(x))?;
            let many = session.function(|x: Tensor| queue.enqueue_many(x))?;
            one.call([[0.0, 1.0]; 3])?;
            many.call([[[0.0, 1.0]; 3]; 2])?;
            let errors = [
                (
                    one.call([[0.0]; 3]).unwrap_err(),
                    format!("an element of the queue `q` is {expected}, but got f32[3, 1]"),
                ),
                (one.call([0.0; 3]).unwrap_err(), format!("an element of the queue `q` is {expected}, but got f32[3]")),
                (many.call([[0.0, 1.0]; 2]).unwrap_err(), "but got f32[2, 2]".to_owned()),
                (many.call([[[0.0]; 3]; 2]).unwrap_err(), "but got f32[2, 3, 1]".to_owned()),
            ];
            for (error, text) in errors {
                assert!(error.message.contains(&text), "{error}");
                assert!(error.loc().is_some_and(|loc| loc.file.ends_with("elements.rs")), "{error}");
            }
            assert_eq!(
                host.push([[0.0]; 3]).unwrap_err().message,
                format!("an element of the queue `q` is {expected}, but got f32[3, 1]")
            );
            assert_eq!(host.len(), 3);
        }
        let queue = pairs(10)?;
        let many = session.function(|n: Tensor<i32>, x: Tensor| queue.enqueue_many((n, x)))?;
        let error = many.call(([1, 2, 3], [[0.0, 1.0]; 2])).unwrap_err();
        assert!(error.message.contains("3 elements by its first tensor and 2 by tensor 2"), "{error}");
        assert_eq!(session.queue(&queue)?.len(), 0);
    }
    Ok(())
}

/// Extents that are known only in the run: if they are wrong, nothing is added or removed.
#[test]
fn wrong_extents_of_the_run_are_errors_of_the_step() -> Checked {
    for session in sessions() {
        let lines = Queue::<Tensor>::padding("lines", 10, &[TensorType::new(DType::F32, [Dim::Unknown])])?;
        let pairs = Queue::<Tensor>::fifo("pairs", 10, &[TensorType::new(DType::F32, [2])])?;
        let (to, from) = (session.queue(&lines)?, session.queue(&pairs)?);
        let f = session.function(|| {
            pairs.enqueue(tensor([0.0, 0.0]));
            pairs.enqueue(lines.dequeue());
        })?;
        to.push(vec![1.0, 2.0, 3.0])?;
        let error = f.call(()).unwrap_err();
        assert_eq!(error.message, "enqueue: an element of the queue `pairs` is f32[2], but got f32[3]");
        assert!(error.loc().is_some_and(|loc| loc.file.ends_with("elements.rs")), "{error}");
        assert_eq!((to.len(), from.len()), (1, 0));
        assert_eq!(to.pop()?.map(|x| x.to_vec()), Some(vec![1.0, 2.0, 3.0]));
        to.push(vec![1.0, 3.0])?;
        f.call(())?;
        let both = session.function(|| pairs.dequeue_many(2))?.call(())?;
        assert_eq!(both.to_vec(), [0.0, 0.0, 1.0, 3.0]);
    }
    Ok(())
}

/// `testMultiEnqueueMany` of the padding queue: lines of words with their numbers.
#[test]
fn strings_and_numbers_are_padded() -> Checked {
    for session in sessions() {
        let types = [TensorType::new(DType::Bytes, [Dim::Unknown]), TensorType::new(DType::I32, [Dim::Unknown])];
        let queue = Queue::<(Tensor<Bytes>, Tensor<i32>)>::padding("lines", 10, &types)?;
        let one = session.function(|words: Tensor<Bytes>, n: Tensor<i32>| queue.enqueue((words, n)))?;
        let lines: [&[&str]; 6] =
            [&["a"], &["ab"], &["abc"], &["abc", "d"], &["abc", "d", "e"], &["abc", "d", "e", "f"]];
        for (i, words) in lines.iter().enumerate() {
            one.call((words.to_vec(), (0..=i as i32).map(|n| n + 1).collect::<Vec<_>>()))?;
        }
        let (words, numbers) = session.function(|| queue.dequeue_many(5))?.call(())?;
        assert_eq!((words.shape(), numbers.shape()), (&[5, 3][..], &[5, 5][..]));
        let padded = ["a", "", "", "ab", "", "", "abc", "", "", "abc", "d", "", "abc", "d", "e"].map(Bytes::from);
        assert_eq!(words.to_vec(), padded);
        let rows = [[1, 0, 0, 0, 0], [1, 2, 0, 0, 0], [1, 2, 3, 0, 0], [1, 2, 3, 4, 0], [1, 2, 3, 4, 5]];
        assert_eq!(numbers.to_vec(), rows.concat());
        // One element alone is not padded.
        let (words, numbers) = session.function(|| queue.dequeue())?.call(())?;
        assert_eq!((words.len(), numbers.to_vec()), (4, vec![1, 2, 3, 4, 5, 6]));
    }
    Ok(())
}

/// `testMultiDequeueManyWithPartiallyKnownShape` and its variants: unequal extents of two axes, and
/// extents of 0, in batches and in the rest of a closed queue.
#[test]
fn two_axes_are_padded() -> Checked {
    for session in sessions() {
        let element = [TensorType::new(DType::I32, [Dim::Unknown, Dim::Known(2), Dim::Unknown])];
        let queue = Queue::<Tensor<i32>>::padding("blocks", 10, &element)?;
        let one = session.function(|x: Tensor<i32>| queue.enqueue(x))?;
        let many = session.function(|x: Tensor<i32>| queue.enqueue_many(x))?;
        one.call([[[1], [2]]])?;
        one.call(Array::new([0, 2, 3], Vec::<i32>::new()))?;
        one.call([[[3, 4], [5, 6]], [[7, 8], [9, 10]]])?;
        many.call(Array::new([2, 1, 2, 1], vec![11, 12, 13, 14]))?;
        let batch = session.function(|| queue.dequeue_many(3))?.call(())?;
        assert_eq!(batch.shape(), [3, 2, 2, 3]);
        let rows = [
            [[1, 0, 0], [2, 0, 0], [0; 3], [0; 3]],
            [[0; 3], [0; 3], [0; 3], [0; 3]],
            [[3, 4, 0], [5, 6, 0], [7, 8, 0], [9, 10, 0]],
        ];
        assert_eq!(batch.to_vec(), rows.concat().concat());
        session.queue(&queue)?.close()?;
        let rest = session.function(|| queue.dequeue_up_to(4))?.call(())?;
        assert_eq!((rest.shape(), rest.to_vec()), (&[2, 1, 2, 1][..], vec![11, 12, 13, 14]));
    }
    Ok(())
}

/// A batch that waits is padded to the largest element that it has in the end.
#[test]
fn a_batch_is_padded_when_all_of_it_is_there() -> Checked {
    for session in sessions() {
        let queue = Queue::<Tensor<i32>>::padding("rows", 2, &[TensorType::new(DType::I32, [Dim::Unknown])])?;
        let host = session.queue(&queue)?;
        let batch = session.function(|| queue.dequeue_many(3))?;
        let rows = scope(|scope| {
            let _guard = EndWaits(&session);
            host.push(vec![1])?;
            host.push(vec![2])?;
            let waiting = scope.spawn(|| batch.call(()));
            until("the first two are taken", || host.is_empty());
            host.push(vec![3, 4, 5])?;
            waiting.join().expect("no panic")
        })?;
        assert_eq!((rows.shape(), rows.to_vec()), (&[3, 3][..], vec![1, 0, 0, 2, 0, 0, 3, 4, 5]));
    }
    Ok(())
}

/// `testInsertingNonInt64Fails`, `testInsertingNonScalarFails`.
#[test]
fn priorities_are_numbers() {
    for ty in [TensorType::new(DType::I32, []), TensorType::new(DType::I64, [1]), TensorType::new(DType::F32, [])] {
        let text = format!("has elements that start with {ty}");
        let error = match ty.dtype {
            DType::I32 => Queue::<Tensor<i32>>::priority("q", 4, &[ty]).err(),
            DType::I64 => Queue::<Tensor<i64>>::priority("q", 4, &[ty]).err(),
            _ => Queue::<Tensor>::priority("q", 4, &[ty]).err(),
        };
        let error = error.expect("no such priority");
        assert!(error.message.contains(&text), "{error}");
        assert_eq!(error.help.as_deref(), Some("the first tensor of an element is its priority, an i64[]"));
    }
}
