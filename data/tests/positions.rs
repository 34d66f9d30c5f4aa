//! Every pass can be continued from every position, exactly.

use crate::{all, messages, stored};
use anabranch::data::{BatchPadding, Dataset};
use anabranch::{Diagnostic, Result};
use std::fmt::Debug;

/// Checks for some epochs that the tail from each position is that of the whole pass, and that
/// elements are the same again. Returns the number of positions.
pub fn check<T: PartialEq + Debug + Send + 'static>(data: &Dataset<T>, epochs: &[u64]) -> usize {
    let mut n = 0;
    for &epoch in epochs {
        let whole = all(data, epoch);
        assert!(whole.len() < 1000, "the pass ends");
        assert_eq!(all(data, epoch), whole, "{data:?}");
        let mut pass = data.epoch(epoch);
        for from in 0..=whole.len() {
            let position = stored(&pass.position());
            let resumed = data.resume(&position).unwrap_or_else(|error| panic!("{data:?} at {from}: {error}"));
            assert_eq!(resumed.position(), position, "{data:?} at {from}");
            assert_eq!(resumed.skipped(), pass.skipped(), "{data:?} at {from}");
            assert_eq!(messages(resumed), whole[from..], "{data:?} at {from}");
            let next = pass.next().map(|element| element.map_err(|error| error.message));
            assert_eq!(next.as_ref(), whole.get(from), "{data:?}");
            n += 1;
        }
        // It stays at its end.
        let end = (pass.position(), pass.skipped());
        assert!(pass.next().is_none() && pass.next().is_none(), "{data:?}");
        assert_eq!((pass.position(), pass.skipped()), end, "{data:?}");
    }
    n
}

/// A source without access by index, with two elements that are errors.
fn stream(n: i64) -> Dataset<i64> {
    let fail = |x| if x % 11 == 7 { Err(Diagnostic::new(format!("{x} is broken"))) } else { Ok(x) };
    Dataset::range(0..n).try_map(fail).filter(|x| x % 5 != 3)
}

/// Pipelines of each stage over each kind of source.
fn over(source: &Dataset<i64>) -> Vec<Dataset<i64>> {
    let sum = |batch: anabranch::Array<i64>| batch.iter().sum::<i64>();
    let several = |x: i64| Ok(Dataset::range(x..x + x % 4));
    let broken = |x: i64| if x % 6 == 2 { Err(Diagnostic::new("no dataset")) } else { Ok(stream(x % 9)) };
    vec![
        source.clone(),
        source.map(|x| x * 2),
        source.map_random(3, |x, rng| x + rng.below(1000) as i64),
        source.map_parallel(3, |x| Ok(x * 2)),
        source.map_random_parallel(2, 3, |x, rng| Ok(x + rng.below(1000) as i64)),
        source.prefetch(2, 5),
        source.filter(|x| x % 3 == 0),
        source.skip_errors(),
        source.flat_map(several),
        source.flat_map(broken),
        source.interleave(3, 2, several),
        source.interleave(4, 1, broken),
        source.zip(&stream(20)).map(|(a, b)| a * 1000 + b),
        source.chain(&stream(9)),
        stream(9).chain(source),
        source.chain(&stream(3).chain(source)).chain(&stream(9).skip_errors()),
        source.skip_errors().zip(&source.skip_errors().prefetch(1, 2).take(3)).map(|(a, b)| a * 1000 + b),
        source.interleave(usize::MAX, 2, several),
        source.shuffle(7, 1),
        source.shuffle(100, 1),
        source.take(13),
        source.skip(4),
        source.shard(1, 3),
        source.repeat(3),
        source.repeat_endlessly().take(57),
        source.cache(),
        source.batch(4).map(sum),
        source.batch_exact(4).map(sum),
        source.padded_batch(4, BatchPadding::zeros()).map(sum),
        source
            .map(|x| vec![x; (x % 7) as usize])
            .bucket_by_length([2, 5], [3, 2, 4], Vec::len, BatchPadding::zeros())
            .map(move |batch| sum(batch.clone()) + 10_000 * batch.len() as i64),
    ]
}

#[test]
fn each_stage_continues_from_each_position() {
    let mut n = 0;
    for source in [Dataset::range(0..23), stream(30), Dataset::range(0..0), stream(1)] {
        for data in over(&source) {
            n += check(&data, &[0, 1, 5]);
        }
    }
    assert!(n > 3000, "{n}");
}

#[test]
fn two_stages_continue_from_each_position() {
    let is_long = std::env::var_os("ANABRANCH_SLOW").is_some();
    let (sources, n_elements) =
        (if is_long { vec![Dataset::range(0..11), stream(14)] } else { vec![stream(9)] }, if is_long { 20 } else { 9 });
    let mut n = 0;
    for source in sources {
        for first in over(&source) {
            for data in over(&first.take(n_elements)) {
                n += check(&data, &[1]);
            }
        }
    }
    assert!(n > 3000, "{n}");
}

#[test]
fn a_long_pipeline_continues_from_each_position() {
    let data = |threads| {
        Dataset::range(0..40)
            .shuffle(40, 1)
            .interleave(3, 2, |i| Ok(stream(i % 13)))
            .shuffle(16, 2)
            .map_random_parallel(threads, 3, |x, rng| Ok((x, vec![rng.below(1000) as i64; rng.below(6)])))
            .skip_errors()
            .bucket_by_length([2, 4], [4, 4, 4], |(_, word)| word.len(), BatchPadding::zeros().value(1, 9.0))
            .prefetch(1, 3)
    };
    let expected = all(&data(1), 2);
    for threads in [2, 8, 33] {
        assert_eq!(all(&data(threads), 2), expected, "{threads} threads");
    }
    assert!(check(&data(3), &[0, 2]) > 40);
    assert!(data(3).iter().last().is_some());
    let mut pass = data(4).epoch(2);
    pass.by_ref().for_each(drop);
    assert!(pass.skipped() > 0);
}

#[test]
fn a_position_continues_with_and_without_elements_read_ahead() {
    for source in [Dataset::range(0..20), stream(20)] {
        let data = source.shuffle(8, 2).batch(2);
        let ahead = data.prefetch(2, 3);
        for [from, to] in [[&data, &ahead], [&ahead, &data]] {
            let mut pass = from.epoch(1);
            pass.nth(3);
            let rest = to.resume(&pass.position()).unwrap();
            assert_eq!(messages(rest), messages(pass));
        }
        // Behind it there is no access by index.
        let position = |data: &Dataset<i64>| format!("{:?}", data.take(3));
        assert_eq!(position(&source) == position(&source.prefetch(1, 1)), source.len().is_none());
    }
}

#[test]
fn datasets_of_many_parts_are_read_at_the_cost_of_one() {
    let parts = (0..3000).map(|i| Dataset::range(i * 10..i * 10 + 10));
    let chain = parts.reduce(|a, b| a.chain(&b)).unwrap();
    assert!(all(&chain, 0).iter().zip(0..).all(|(x, i)| *x == Ok(i)));
    let streams = (0..3000).map(|i| Dataset::range(i..i + 1).filter(|_| true));
    let chain = streams.reduce(|a, b| b.chain(&a)).unwrap();
    assert_eq!(all(&chain, 0).len(), 3000);
    let few = Dataset::range(0..3).interleave(1 << 40, 1, |i| Ok(Dataset::range(0..i + 1)));
    assert_eq!(all(&few, 0), [0, 0, 0, 1, 1, 2].map(Ok));
}

#[test]
fn the_end_of_a_pass_does_not_depend_on_threads() {
    let data = stream(60).skip_errors().zip(&Dataset::range(0..20)).map_parallel(8, |(a, b)| Ok(a + b));
    let end = |_| {
        let mut pass = data.iter();
        pass.by_ref().for_each(drop);
        (pass.position(), pass.skipped())
    };
    let ends: Vec<_> = (0..200).map(end).collect();
    assert!(ends.iter().all(|end| *end == ends[0]), "{:?}", ends[0]);
}

#[test]
fn a_position_continues_with_another_number_of_threads() {
    let data = |threads| Dataset::range(0..50).map_parallel(threads, |x| Ok(x + 1)).batch(3);
    let mut pass = data(2).epoch(1);
    pass.nth(4);
    let rest: Result<Vec<_>> = data(5).resume(&pass.position()).unwrap().collect();
    assert_eq!(rest.unwrap(), pass.map(Result::unwrap).collect::<Vec<_>>());
}

#[test]
fn a_position_of_a_function_continues_with_the_function_on_threads() {
    for source in [Dataset::range(0..20), stream(20)] {
        let mut pass = source.map(|x| x + 1).iter();
        pass.nth(5);
        let rest = source.map_parallel(2, |x| Ok(x + 1)).resume(&pass.position()).unwrap();
        assert_eq!(messages(rest), messages(pass));
    }
}

#[test]
fn batches_of_a_function_and_of_the_function_on_threads_have_other_positions() {
    let batches = |source: &Dataset<i64>| {
        let (map, parallel) = (source.map(|x| x + 1), source.map_parallel(2, |x| Ok(x + 1)));
        [map.batch(3), parallel.batch(3)]
    };
    let position = |data: &Dataset<anabranch::Array<i64>>| {
        let mut pass = data.iter();
        pass.nth(4);
        pass.position()
    };
    // One counts batches, and the other one elements.
    let [map, parallel] = batches(&Dataset::range(0..50));
    for (data, other) in [(&map, &parallel), (&parallel, &map)] {
        let error = other.resume(&position(data)).unwrap_err();
        assert!(error.message.starts_with("the position is of the dataset"), "{error}");
    }
    // Without access by index both count elements.
    let [map, parallel] = batches(&stream(30));
    assert_eq!(messages(parallel.resume(&position(&map)).unwrap()), messages(map.resume(&position(&map)).unwrap()));
}

#[test]
fn an_endless_dataset_continues_behind_repetitions_without_elements() {
    let data = Dataset::range(0..1).map_random(2, |_, rng| rng.below(2)).filter(|x| *x == 0).repeat_endlessly();
    let whole = all(&data, 0);
    assert!(whole.len() > 1 && whole.len() < 1000, "{}", whole.len());
    let mut pass = data.iter();
    for from in 0..=whole.len() {
        assert_eq!(messages(data.resume(&pass.position()).unwrap()), whole[from..], "{from}");
        pass.next();
    }
    assert!(pass.next().is_none());
    assert!(data.resume(&pass.position()).unwrap().next().is_none());
}

#[test]
fn elements_skipped_at_the_end_are_counted() {
    let broken = |x| if x >= 3 { Err(Diagnostic::new("broken")) } else { Ok(x) };
    let source = Dataset::range(0..8).try_map(broken).skip_errors();
    let cached = source.cache();
    for data in [&source, &source.prefetch(2, 3), &source.shuffle(2, 1), &cached, &cached] {
        let mut pass = data.iter();
        assert_eq!(pass.by_ref().count(), 3);
        assert_eq!(pass.skipped(), 5, "{data:?}");
    }
    let none = Dataset::range(3..8).try_map(broken).skip_errors().shuffle(2, 1);
    let mut pass = none.iter();
    assert_eq!((pass.next().is_none(), pass.skipped()), (true, 5));
}

#[test]
fn a_position_of_another_pipeline_is_an_error() {
    let position = Dataset::range(0..10).shuffle(10, 1).iter().position();
    let error = Dataset::range(0..10).shuffle(10, 2).resume(&position).unwrap_err();
    assert!(error.message.contains("range(0..10), shuffle(seed 1)"), "{error}");
    assert!(error.message.contains("range(0..10), shuffle(seed 2)"), "{error}");
}

#[test]
fn damaged_positions_are_errors_or_positions() {
    let mut n_words = 0;
    for data in over(&stream(9)) {
        let mut pass = data.iter();
        pass.nth(3);
        let text = serde_json::to_string(&pass.position()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let words: Vec<u64> = serde_json::from_value(value["words"].clone()).unwrap();
        n_words += words.len();
        let resume = |words: &[u64]| {
            let mut value = value.clone();
            value["words"] = serde_json::to_value(words).unwrap();
            data.resume(&serde_json::from_value(value).unwrap()).map(|rest| rest.take(100).count())
        };
        assert!(resume(&words).is_ok());
        // Without words it is the start.
        for i in 1..words.len() {
            assert!(resume(&words[..i]).is_err(), "{data:?}, {i} words");
        }
        for i in 0..words.len() {
            for other in [0, 1, 7, u64::MAX / 2, u64::MAX] {
                let mut words = words.clone();
                words[i] = other;
                // It must neither panic nor take memory for what is not there.
                let _ = resume(&words);
            }
        }
        assert!(resume(&[&words[..], &[0]].concat()).is_err(), "{data:?}");
    }
    assert!(n_words > 80, "{n_words}");
}

#[test]
fn a_channel_is_shared_and_continues_only_from_its_start() {
    let numbers = std::sync::Mutex::new(0..10_i64);
    let data = Dataset::from_channel("numbers", move || match numbers.lock().unwrap().next() {
        Some(4) => Err(Diagnostic::new("4 is broken")),
        next => Ok(next),
    });
    let mut pass = data.batch(2).iter();
    let start = stored(&pass.position());
    assert_eq!(pass.next().unwrap().unwrap().to_vec(), [0, 1]);
    assert_eq!(data.batch(2).resume(&start).unwrap().next().unwrap().unwrap().to_vec(), [2, 3]);
    let error = data.batch(2).resume(&stored(&pass.position())).unwrap_err();
    assert_eq!(error.message, "`numbers` cannot be continued: 2 elements were received, and are gone");
    // After an error there is nothing more in this pass.
    let rest = data.iter().map(|x| x.map_err(|error| error.message));
    assert_eq!(rest.collect::<Vec<_>>(), [Err("4 is broken".to_owned())]);
    assert_eq!(messages(data.iter()), (5..10).map(Ok).collect::<Vec<_>>());
}
