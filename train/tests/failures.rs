//! Failures of producers reach the one who trains, and leave no thread. A program of its own, since
//! it counts the threads of its process.

#[expect(dead_code, reason = "the tests of checkpoints use more of it")]
#[path = "../../checkpoint/tests/support.rs"]
mod support;

use crate::support::{TestFolder, is_slow};
use anabranch::data::{Dataset, tfrecord};
use anabranch::prelude::*;
use anabranch::train::{ShowProgress, Trainer};
use anabranch::{DType, Diagnostic, ErrorKind, HostQueue, Queue, Session, TensorType};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the number of threads of this process, where the system tells it.
fn n_threads() -> Option<usize> {
    Some(fs::read_dir("/proc/self/task").ok()?.count())
}

/// Fails unless there are `n` threads, as soon as the system has forgotten those that have ended.
fn check_threads(n: usize, what: &str) {
    let is_there = (0..100_000).any(|_| {
        std::thread::yield_now();
        n_threads() == Some(n)
    });
    assert!(is_there, "{what}: there are {:?} threads and were {n}", n_threads());
}

/// Writes records of one number each, of which one is longer. Returns the file.
fn write_records(folder: &Path, long: usize) -> PathBuf {
    let mut bytes = Vec::new();
    for i in 0..40_usize {
        let record = if i == long { vec![0; 5] } else { (i as f32).to_le_bytes().to_vec() };
        tfrecord::write(&mut bytes, &record).expect("memory can be written");
    }
    let path = folder.join("numbers.tfrecord");
    fs::write(&path, bytes).expect("the folder can be written");
    path
}

/// Returns the numbers in a file, which are decoded on threads.
fn numbers(path: &Path) -> Dataset<f32> {
    let file = path.to_owned();
    let decode = move |(i, record): (i64, Vec<u8>)| {
        let number: [u8; 4] = record.try_into().map_err(|record: Vec<u8>| {
            // Each record is 20 bytes long.
            let at = 20 * i;
            Diagnostic::new(format!("`{}`, byte {at}: a number of {} bytes", file.display(), record.len()))
        })?;
        Ok(f32::from_le_bytes(number))
    };
    let records = tfrecord::records([path]);
    Dataset::range(0..40).zip(&records).map_parallel(2, decode).prefetch(2, 4)
}

fn quiet(session: &Session) -> Trainer<'_> {
    Trainer::new(session).progress(ShowProgress::Hidden)
}

/// Passes numbers on to a queue until one of them is an error, which closes the queue.
fn produce(data: &Dataset<f32>, queue: &HostQueue<Tensor>) -> Result<(), Diagnostic> {
    for number in data.iter() {
        match number {
            Ok(number) => queue.push(number)?,
            Err(error) => return queue.close_with(error),
        }
    }
    queue.close()
}

/// Trains on numbers of a file, of which one is broken: from the dataset, and through two queues.
fn fail(folder: &Path, long: usize) -> Result<[Diagnostic; 2], Diagnostic> {
    let (session, sum) = (Session::new()?, Var::untrained("sum", 0.0_f32));
    let data = numbers(&write_records(folder, long));
    let add = session.function(|x: Tensor| sum.set(sum.get() + x))?;
    let from_data = quiet(&session).fit(&data, |_, x| add.call(x)).expect_err("a record is broken");
    assert_eq!(session.get(&sum)?, (0..long).sum::<usize>() as f32);

    let number = [TensorType::new(DType::F32, [])];
    let (first, second) = (Queue::<Tensor>::fifo("first", 2, &number)?, Queue::<Tensor>::fifo("second", 2, &number)?);
    let pass = session.function(|| second.enqueue(first.dequeue()))?;
    let take = session.function(|| sum.set(sum.get() - second.dequeue()))?;
    let (to, between) = (session.queue(&first)?, session.queue(&second)?);
    let from_queues = std::thread::scope(|scope| {
        let producer = scope.spawn(|| produce(&data, &to));
        let stage = scope.spawn(|| {
            loop {
                if let Err(error) = pass.call(()) {
                    return between.close_with(error);
                }
            }
        });
        let error = quiet(&session).fit(&Dataset::range(0..100), |_, _| take.call(())).expect_err("it ends before");
        producer.join().expect("the producer does not panic")?;
        stage.join().expect("the stage does not panic")?;
        Ok::<_, Diagnostic>(error)
    })?;
    assert_eq!(session.get(&sum)?, 0.0, "each number before the broken one has arrived once");
    Ok([from_data, from_queues])
}

#[test]
fn a_broken_record_ends_the_training_with_its_file_and_place_and_leaves_no_thread() -> Result<(), Diagnostic> {
    let folder = TestFolder::new("failures");
    let n = if is_slow() { 1000 } else { 30 };
    let mut before = None;
    for i in 0..n {
        let long = i % 40;
        let [from_data, from_queues] = fail(&folder.path(""), long)?;
        let place = format!("numbers.tfrecord`, byte {}: a number of 5 bytes", 20 * long);
        assert!(from_data.message.ends_with(&place), "{from_data}");
        assert!(from_data.loc().is_some_and(|loc| loc.file.ends_with("failures.rs")), "{from_data}");
        assert_eq!(from_queues.kind, ErrorKind::Closed);
        assert!(from_queues.message.ends_with(&place), "{from_queues}");
        // The threads that all sessions share are there after the first time.
        if let Some(n) = before.or_else(n_threads) {
            before = Some(n);
            check_threads(n, &format!("after {} times", i + 1));
        }
    }
    Ok(())
}
