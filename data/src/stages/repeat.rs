//! Epochs inside of an epoch.
//!
//! Position: the number of the repetition, the elements skipped in those before, how many in a row
//! had no element, and the position below. With access by index: the next index.
//!
//! An endless dataset ends when two repetitions, one after the other, have no element.

use crate::Dataset;
use crate::position::SavedWords;
use crate::stage::{Cursor, IndexCursor, IndexedStage, Stage};
use anabranch_dsl::Result;

pub(crate) struct RepeatStage<T> {
    pub(crate) upstream: Dataset<T>,
    /// Endless without a number.
    pub(crate) n: Option<u64>,
}

impl<T> Clone for RepeatStage<T> {
    fn clone(&self) -> Self {
        RepeatStage { upstream: self.upstream.clone(), n: self.n }
    }
}

impl<T> RepeatStage<T> {
    /// Returns the epoch below. Repetitions of finite repeats continue to count, so `repeat(3)` and
    /// three epochs have the same order.
    fn epoch(&self, epoch: u64, repetition: u64) -> u64 {
        epoch.wrapping_mul(self.n.unwrap_or(1 << 32)).wrapping_add(repetition)
    }
}

impl<T: Send + 'static> Stage<T> for RepeatStage<T> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<T>>> {
        if self.indexed().is_some() {
            return Ok(Box::new(IndexCursor::new(self.clone(), epoch, at)));
        }
        let (repetition, skipped_before, n_empty) = (at.word(), at.word(), at.word());
        let cursor = self.upstream.stage.open(self.epoch(epoch, repetition), at)?;
        let repeat = self.clone();
        Ok(Box::new(RepeatCursor {
            repeat,
            epoch,
            repetition,
            skipped_before,
            cursor,
            n_empty,
            has_element: true,
            has_failed: false,
        }))
    }

    fn len(&self) -> Option<u64> {
        match (self.upstream.stage.len(), self.n) {
            (Some(0), _) | (_, Some(0)) => Some(0),
            (Some(len), Some(n)) => len.checked_mul(n),
            _ => None,
        }
    }

    fn describe(&self, text: &mut String) {
        self.upstream.stage.describe(text);
        *text += &match self.n {
            Some(n) => format!(", repeat({n})"),
            None => ", repeat_endlessly".to_owned(),
        };
    }

    fn indexed(&self) -> Option<&dyn IndexedStage<T>> {
        let len = self.upstream.n_by_index()?.checked_mul(self.n?);
        len.map(|_| self as _)
    }
}

impl<T: Send + 'static> IndexedStage<T> for RepeatStage<T> {
    fn n(&self) -> u64 {
        self.upstream.n_by_index().unwrap_or(0) * self.n.unwrap_or(0)
    }

    fn get(&self, epoch: u64, index: u64) -> Result<T> {
        let n = self.upstream.n_by_index().unwrap_or(1);
        self.upstream.at(self.epoch(epoch, index / n), index % n)
    }
}

struct RepeatCursor<T> {
    repeat: RepeatStage<T>,
    epoch: u64,
    repetition: u64,
    skipped_before: u64,
    cursor: Box<dyn Cursor<T>>,
    /// The number of repetitions in a row that had no element.
    n_empty: u64,
    /// Whether this repetition has an element. A pass is opened at the start or behind an element.
    has_element: bool,
    /// Whether the next repetition could not be opened.
    has_failed: bool,
}

impl<T: Send + 'static> Cursor<T> for RepeatCursor<T> {
    fn next(&mut self) -> Option<Result<T>> {
        if self.repeat.n == Some(0) || self.has_failed {
            return None;
        }
        loop {
            if self.repeat.n.is_none() && self.n_empty >= 2 {
                return None;
            }
            if let Some(element) = self.cursor.next() {
                (self.n_empty, self.has_element) = (0, true);
                return Some(element);
            }
            if self.repeat.n.is_some_and(|n| self.repetition + 1 >= n) {
                return None;
            }
            self.n_empty += u64::from(!self.has_element);
            let epoch = self.repeat.epoch(self.epoch, self.repetition + 1);
            match self.repeat.upstream.stage.open(epoch, &mut SavedWords::start()) {
                Ok(cursor) => {
                    self.skipped_before += self.cursor.skipped();
                    self.repetition += 1;
                    (self.cursor, self.has_element) = (cursor, false);
                }
                Err(error) => {
                    self.has_failed = true;
                    return Some(Err(error));
                }
            }
        }
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.extend([self.repetition, self.skipped_before, self.n_empty]);
        self.cursor.save(words);
    }

    fn skipped(&self) -> u64 {
        self.skipped_before + self.cursor.skipped()
    }
}
