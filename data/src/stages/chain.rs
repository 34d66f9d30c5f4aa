//! One dataset after another.
//!
//! Position: whether the second one is being read, and the position in the one that is. With access
//! by index: the next index.

use crate::Dataset;
use crate::position::SavedWords;
use crate::stage::{Cursor, IndexCursor, IndexedStage, Stage};
use anabranch_dsl::Result;

pub(crate) struct ChainStage<T> {
    pub(crate) a: Dataset<T>,
    pub(crate) b: Dataset<T>,
}

impl<T> Clone for ChainStage<T> {
    fn clone(&self) -> Self {
        ChainStage { a: self.a.clone(), b: self.b.clone() }
    }
}

impl<T: Send + 'static> Stage<T> for ChainStage<T> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<T>>> {
        if self.indexed().is_some() {
            return Ok(Box::new(IndexCursor::new(self.clone(), epoch, at)));
        }
        let is_second = at.word() != 0;
        let skipped_before = at.word();
        let cursor = if is_second { &self.b } else { &self.a }.stage.open(epoch, at)?;
        Ok(Box::new(ChainCursor {
            second: (!is_second).then(|| self.b.clone()),
            cursor,
            skipped_before,
            epoch,
            has_failed: false,
        }))
    }

    fn len(&self) -> Option<u64> {
        self.a.stage.len()?.checked_add(self.b.stage.len()?)
    }

    fn describe(&self, text: &mut String) {
        self.a.stage.describe(text);
        *text += &format!(", chain({})", self.b.pipeline());
    }

    fn indexed(&self) -> Option<&dyn IndexedStage<T>> {
        (self.a.indexed().is_some() && self.b.indexed().is_some()).then_some(self as _)
    }
}

impl<T: Send + 'static> IndexedStage<T> for ChainStage<T> {
    fn n(&self) -> u64 {
        let n = |dataset: &Dataset<T>| dataset.indexed().map_or(0, IndexedStage::n);
        n(&self.a).saturating_add(n(&self.b))
    }

    fn get(&self, epoch: u64, index: u64) -> Result<T> {
        let n = self.a.indexed().map_or(0, IndexedStage::n);
        if index < n { self.a.at(epoch, index) } else { self.b.at(epoch, index - n) }
    }
}

struct ChainCursor<T> {
    /// The dataset to be read next.
    second: Option<Dataset<T>>,
    cursor: Box<dyn Cursor<T>>,
    /// The number of elements that were skipped in the first dataset, once it has ended.
    skipped_before: u64,
    epoch: u64,
    /// Whether the second dataset could not be opened.
    has_failed: bool,
}

impl<T: Send + 'static> Cursor<T> for ChainCursor<T> {
    fn next(&mut self) -> Option<Result<T>> {
        if let Some(element) = self.cursor.next() {
            return Some(element);
        }
        let second = self.second.as_ref().filter(|_| !self.has_failed)?;
        match second.stage.open(self.epoch, &mut SavedWords::start()) {
            Ok(cursor) => {
                self.skipped_before = self.cursor.skipped();
                (self.second, self.cursor) = (None, cursor);
                self.cursor.next()
            }
            Err(error) => {
                self.has_failed = true;
                Some(Err(error))
            }
        }
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.extend([u64::from(self.second.is_none()), self.skipped_before]);
        self.cursor.save(words);
    }

    fn skipped(&self) -> u64 {
        self.skipped_before + self.cursor.skipped()
    }
}
