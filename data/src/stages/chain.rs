//! Datasets one after another.
//!
//! Position: the index of the dataset that is being read, the number of elements that were skipped
//! before it, and the position in it. With access by index: the next index.

use crate::Dataset;
use crate::position::SavedWords;
use crate::stage::{Cursor, IndexCursor, IndexedStage, Stage};
use anabranch_dsl::Result;
use std::sync::Arc;

pub(crate) struct ChainStage<T> {
    /// Two or more, none of which is a chain.
    parts: Arc<[Dataset<T>]>,
    /// For access by index: the number of elements up to the end of each part.
    ends: Option<Arc<[u64]>>,
}

impl<T> Clone for ChainStage<T> {
    fn clone(&self) -> Self {
        ChainStage { parts: self.parts.clone(), ends: self.ends.clone() }
    }
}

impl<T: Send + 'static> ChainStage<T> {
    pub(crate) fn new(a: &Dataset<T>, b: &Dataset<T>) -> ChainStage<T> {
        let of = |dataset: &Dataset<T>| dataset.stage.chained().map_or_else(|| vec![dataset.clone()], <[_]>::to_vec);
        let parts: Arc<[Dataset<T>]> = [of(a), of(b)].concat().into();
        let mut sum = 0_u64;
        let ends = parts.iter().map(|part| {
            sum = sum.saturating_add(part.n_by_index()?);
            Some(sum)
        });
        ChainStage { ends: ends.collect(), parts }
    }
}

impl<T: Send + 'static> Stage<T> for ChainStage<T> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<T>>> {
        if self.ends.is_some() {
            return Ok(Box::new(IndexCursor::new(self.clone(), epoch, at)));
        }
        let part = at.number_below(self.parts.len());
        let skipped_before = at.word();
        let cursor = self.parts[part].stage.open(epoch, at)?;
        let parts = self.parts.clone();
        Ok(Box::new(ChainCursor { parts, part, cursor, skipped_before, epoch, has_failed: false }))
    }

    fn len(&self) -> Option<u64> {
        self.parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.stage.len()?))
    }

    fn describe(&self, text: &mut String) {
        self.parts[0].stage.describe(text);
        for part in &self.parts[1..] {
            *text += ", chain(";
            part.stage.describe(text);
            *text += ")";
        }
    }

    fn indexed(&self) -> Option<&dyn IndexedStage<T>> {
        self.ends.is_some().then_some(self as _)
    }

    fn chained(&self) -> Option<&[Dataset<T>]> {
        Some(&self.parts)
    }
}

impl<T: Send + 'static> IndexedStage<T> for ChainStage<T> {
    fn n(&self) -> u64 {
        self.ends.as_ref().and_then(|ends| ends.last().copied()).unwrap_or(0)
    }

    fn get(&self, epoch: u64, index: u64) -> Result<T> {
        let ends = self.ends.as_ref().expect("there is access by index");
        let part = ends.partition_point(|&end| end <= index);
        let first = part.checked_sub(1).map_or(0, |before| ends[before]);
        self.parts[part].at(epoch, index - first)
    }
}

struct ChainCursor<T> {
    parts: Arc<[Dataset<T>]>,
    /// The index of the dataset that is being read.
    part: usize,
    cursor: Box<dyn Cursor<T>>,
    /// The number of elements that were skipped in the datasets before.
    skipped_before: u64,
    epoch: u64,
    /// Whether the next dataset could not be opened.
    has_failed: bool,
}

impl<T: Send + 'static> Cursor<T> for ChainCursor<T> {
    fn next(&mut self) -> Option<Result<T>> {
        loop {
            if let Some(element) = self.cursor.next() {
                return Some(element);
            }
            let next = self.parts.get(self.part + 1).filter(|_| !self.has_failed)?;
            match next.stage.open(self.epoch, &mut SavedWords::start()) {
                Ok(cursor) => {
                    self.skipped_before += self.cursor.skipped();
                    self.cursor = cursor;
                    self.part += 1;
                }
                Err(error) => {
                    self.has_failed = true;
                    return Some(Err(error));
                }
            }
        }
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.extend([self.part as u64, self.skipped_before]);
        self.cursor.save(words);
    }

    fn skipped(&self) -> u64 {
        self.skipped_before + self.cursor.skipped()
    }
}
