//! A pipeline as programs have it, from files to padded batches: its order is the same with any
//! number of threads and any delays, and it continues from each position.

use crate::files::Folder;
use crate::stored;
use anabranch::data::{
    BatchPadding, DataFile, DataStorage, Dataset, DatasetIter, DatasetPosition, ElementRng, tfrecord,
};
use anabranch::{Array, Diagnostic, Result};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Lets other threads run, for a time that differs from call to call.
fn delay() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let n = CALLS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    // Most calls do not wait, and some wait for long.
    let n_yields = if n.is_multiple_of(64) { 200 } else { (n % 8).saturating_sub(4) };
    (0..n_yields).for_each(|_| std::thread::yield_now());
}

/// The local file system, with delays.
struct DelayedFiles;

struct DelayedBytes(File);

impl Read for DelayedBytes {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        delay();
        // In small pieces, so that there are many of them.
        let n = to.len().min(100);
        self.0.read(&mut to[..n])
    }
}

impl DataStorage for DelayedFiles {
    fn len(&self, path: &Path) -> io::Result<u64> {
        Ok(std::fs::metadata(path)?.len())
    }

    fn open(&self, path: &Path, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        delay();
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(Box::new(DelayedBytes(file)))
    }
}

/// Writes files of about `n` records each: a number, and a sequence of 1 to 12 numbers. One file is
/// empty, one is compressed, and one has a damaged record.
fn write_files(folder: &Folder, n: usize) -> Vec<DataFile> {
    let storage: Arc<dyn DataStorage> = Arc::new(DelayedFiles);
    let file = |i: usize| {
        let n = if i == 5 { 0 } else { n + i * 7 % 11 };
        let mut bytes = Vec::new();
        for id in (0..n).map(|j| (1000 * i + j) as i64) {
            let sequence = (0..1 + id * 37 % 12).flat_map(|k| ((id * 12 + k) as f32).to_le_bytes());
            let record: Vec<u8> = id.to_le_bytes().into_iter().chain(sequence).collect();
            tfrecord::write(&mut bytes, &record).unwrap();
        }
        if i == 3 {
            // In the bytes of the first record.
            bytes[14] ^= 1;
        }
        let name = if i == 7 { "7.tfrecord.gz".to_owned() } else { format!("{i}.tfrecord") };
        DataFile::new(storage.clone(), folder.write(&name, &bytes))
    };
    (0..12).map(file).collect()
}

type Sample = (i64, Vec<f32>);

fn parse(record: &[u8]) -> Result<Sample> {
    let (id, sequence) = record.split_first_chunk::<8>().ok_or_else(|| Diagnostic::new("a short record"))?;
    let sequence = sequence.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().expect("four bytes")));
    Ok((i64::from_le_bytes(*id), sequence.collect()))
}

/// Takes a random part of a sequence.
fn crop((id, sequence): Sample, rng: &mut ElementRng) -> Result<Sample> {
    delay();
    let len = 1 + rng.below(sequence.len());
    let begin = rng.below(sequence.len() - len + 1);
    Ok((id, sequence[begin..begin + len].to_vec()))
}

type Padded = (Array<i64>, Array<f32>);

fn pipeline(files: &[DataFile], threads: usize) -> Dataset<Padded> {
    Dataset::new(files)
        .shuffle(files.len(), 1)
        .interleave(4, 2, |file| Ok(tfrecord::records([file])))
        .try_map(|record| parse(&record))
        .skip_errors()
        .shuffle(48, 2)
        .map_random_parallel(threads, 3, crop)
        .bucket_by_length([3, 6], [3, 2, 2], |(_, sequence)| sequence.len(), BatchPadding::zeros().value(1, -1.0))
        .prefetch(threads, 4)
}

const THREADS: [usize; 4] = [1, 2, 8, 33];

/// The elements of a pass, and how many were left out.
fn order_log(mut pass: DatasetIter<Padded>) -> (Vec<Padded>, u64) {
    let batches = pass.by_ref().map(|batch| batch.unwrap_or_else(|error| panic!("{error}"))).collect();
    (batches, pass.skipped())
}

#[test]
fn the_order_of_a_pipeline_does_not_depend_on_threads_and_delays() {
    let folder = Folder::new("acceptance_order");
    let files = write_files(&folder, 60);
    let logs = [0, 1, 2].map(|epoch| order_log(pipeline(&files, 1).epoch(epoch)));
    assert!(logs[0].0 != logs[1].0 && logs[1].0 != logs[2].0);
    for (epoch, log) in (0..).zip(&logs) {
        let mut ids: Vec<i64> = log.0.iter().flat_map(|(ids, _)| ids.to_vec()).collect();
        let n = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!((ids.len(), log.1), (n, 1), "each element once, but the damaged one");
        assert!(n > 600 && !ids.contains(&3000), "{n}");
        for threads in THREADS {
            for _ in 0..3 {
                let other = order_log(pipeline(&files, threads).epoch(epoch));
                assert!(other == *log, "epoch {epoch} with {threads} threads");
            }
        }
    }
}

#[test]
fn a_pipeline_continues_from_each_position_twice_and_at_the_ends_of_epochs() {
    let is_long = std::env::var_os("ANABRANCH_SLOW").is_some();
    let (n_records, least) = if is_long { (440, 2000) } else { (50, 250) };
    let folder = Folder::new("acceptance_positions");
    let files = write_files(&folder, n_records);
    let data = THREADS.map(|threads| pipeline(&files, threads));
    // A position is used with another number of threads than it was taken with.
    let with = |i: usize| &data[i % data.len()];
    let (epoch, n_threads) = (4, data.len());
    let (whole, skipped) = order_log(with(0).epoch(epoch));
    let positions_of = |data: &Dataset<Padded>| {
        let mut pass = data.epoch(epoch);
        let mut positions = vec![stored(&pass.position())];
        while pass.next().is_some() {
            positions.push(stored(&pass.position()));
        }
        positions
    };
    let positions: Vec<DatasetPosition> = positions_of(with(2));
    assert_eq!(positions.len(), whole.len() + 1);
    assert!(positions.len() > least, "{}", positions.len());
    let check = |(from, position): (usize, &DatasetPosition)| {
        let mut first = with(from).resume(position).unwrap();
        assert_eq!(stored(&first.position()), *position, "{from}");
        // A few batches later it is stopped and continued again, and then goes to the end.
        let more = (from * 7 % 13).min(whole.len() - from);
        for batch in &whole[from..from + more] {
            assert!(first.next().unwrap().unwrap() == *batch, "{from}");
        }
        let again = stored(&first.position());
        drop(first);
        assert_eq!(again, positions[from + more], "{from}");
        let (rest, of_epoch) = order_log(with(from + 1 + from / n_threads).resume(&again).unwrap());
        assert!(rest == whole[from + more..], "{from} and {more}");
        assert_eq!(of_epoch, skipped, "{from}");
    };
    // Half of the positions each, since one pass rarely needs two processors.
    std::thread::scope(|scope| {
        scope.spawn(|| positions.iter().enumerate().step_by(2).for_each(&check));
        positions.iter().enumerate().skip(1).step_by(2).for_each(&check);
    });

    // At the end of an epoch there are two positions, after the last batch and after the end was
    // seen, and there is nothing after either.
    let mut end = positions.last().unwrap().clone();
    for i in [1, 2] {
        let mut pass = with(i).resume(&end).unwrap();
        assert!(pass.next().is_none() && pass.next().is_none());
        assert_eq!(pass.skipped(), skipped);
        end = stored(&pass.position());
    }
    // The next epoch is another.
    let (next, _) = order_log(with(3).epoch(epoch + 1));
    assert!(next != whole);
    // In a dataset that repeats it is a position like others. Epoch 2 of that dataset consists of
    // epochs 4 and 5 of this one.
    let several = THREADS.map(|threads| pipeline(&files, threads).repeat(2));
    let (both, _) = order_log(several[0].epoch(epoch / 2));
    assert!(both == [whole.clone(), next].concat());
    let mut pass = several[1].epoch(epoch / 2);
    let before = whole.len() - 2;
    pass.by_ref().take(before).for_each(drop);
    for from in before..before + 5 {
        let resumed = several[from % several.len()].resume(&stored(&pass.position())).unwrap();
        assert!(order_log(resumed).0 == both[from..], "{from}");
        pass.next();
    }
}
