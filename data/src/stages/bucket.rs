//! Batches of elements of similar length.
//!
//! Position: that below, and for each bucket the number of elements in it, each with the position
//! below before it: these elements are read again.

use crate::position::SavedWords;
use crate::stage::{Cursor, Stage};
use crate::{BatchPadding, Dataset, PadTo};
use anabranch_dsl::Result;
use std::sync::Arc;

/// A function that returns the length of an element.
type LengthFn<T> = Arc<dyn Fn(&T) -> usize + Send + Sync>;

/// Which lengths a bucket has, and the sizes of batches.
#[derive(Clone, Debug)]
pub(crate) struct Buckets {
    boundaries: Vec<usize>,
    sizes: Vec<usize>,
}

impl Buckets {
    #[track_caller]
    pub(crate) fn new(boundaries: Vec<usize>, sizes: Vec<usize>) -> Buckets {
        assert!(boundaries.is_sorted_by(|a, b| a < b), "boundaries of buckets increase");
        assert!(sizes.len() == boundaries.len() + 1, "there is one more batch size than boundaries");
        assert!(sizes.iter().all(|&n| n > 0), "at least one element is in a batch");
        Buckets { boundaries, sizes }
    }
}

pub(crate) struct BucketStage<T> {
    pub(crate) upstream: Dataset<T>,
    pub(crate) buckets: Buckets,
    pub(crate) length: LengthFn<T>,
    pub(crate) padding: BatchPadding,
}

impl<T: PadTo> Stage<T::Batch> for BucketStage<T> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<T::Batch>>> {
        let upstream = self.upstream.stage.open(epoch, at)?;
        let mut waiting = Vec::new();
        for _ in &self.buckets.sizes {
            let mut bucket = Vec::new();
            for _ in 0..at.count() {
                let (cursor, before) = at.words_of(|at| self.upstream.stage.open(epoch, at));
                if let Some(element) = cursor?.next() {
                    bucket.push(Held { before, element: element? });
                }
            }
            waiting.push(bucket);
        }
        Ok(Box::new(BucketCursor {
            upstream,
            waiting,
            buckets: self.buckets.clone(),
            length: self.length.clone(),
            padding: self.padding.clone(),
        }))
    }

    fn len(&self) -> Option<u64> {
        None
    }

    fn describe(&self, text: &mut String) {
        self.upstream.stage.describe(text);
        *text += &format!(", bucket_by_length({:?}, {:?})", self.buckets.boundaries, self.buckets.sizes);
    }
}

/// An element that waits for its batch.
struct Held<T> {
    before: Vec<u64>,
    element: T,
}

struct BucketCursor<T> {
    upstream: Box<dyn Cursor<T>>,
    waiting: Vec<Vec<Held<T>>>,
    buckets: Buckets,
    length: LengthFn<T>,
    padding: BatchPadding,
}

impl<T: PadTo> Cursor<T::Batch> for BucketCursor<T> {
    fn next(&mut self) -> Option<Result<T::Batch>> {
        let full = loop {
            let before = self.upstream.words();
            let element = match self.upstream.next() {
                Some(Ok(element)) => element,
                Some(Err(error)) => return Some(Err(error)),
                None => break self.waiting.iter_mut().find(|bucket| !bucket.is_empty())?,
            };
            let length = (self.length)(&element);
            let i = self.buckets.boundaries.partition_point(|&boundary| boundary <= length);
            self.waiting[i].push(Held { before, element });
            if self.waiting[i].len() == self.buckets.sizes[i] {
                break &mut self.waiting[i];
            }
        };
        Some(self.padding.collate(full.drain(..).map(|held| held.element).collect()))
    }

    fn save(&self, words: &mut Vec<u64>) {
        self.upstream.save(words);
        for bucket in &self.waiting {
            words.push(bucket.len() as u64);
            bucket.iter().for_each(|held| words.extend(&held.before));
        }
    }

    fn skipped(&self) -> u64 {
        self.upstream.skipped()
    }
}
