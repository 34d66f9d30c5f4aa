//! Pairs of elements.
//!
//! Position: whether one dataset has ended, and those of both. With access by index: the next
//! index.

use crate::Dataset;
use crate::position::SavedWords;
use crate::stage::{Cursor, IndexCursor, IndexedStage, Stage};
use anabranch_dsl::Result;

pub(crate) struct ZipStage<T, U> {
    pub(crate) a: Dataset<T>,
    pub(crate) b: Dataset<U>,
}

impl<T, U> Clone for ZipStage<T, U> {
    fn clone(&self) -> Self {
        ZipStage { a: self.a.clone(), b: self.b.clone() }
    }
}

impl<T: Send + 'static, U: Send + 'static> Stage<(T, U)> for ZipStage<T, U> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<(T, U)>>> {
        if self.indexed().is_some() {
            return Ok(Box::new(IndexCursor::new(self.clone(), epoch, at)));
        }
        let has_ended = at.word() != 0;
        Ok(Box::new(ZipCursor { has_ended, a: self.a.stage.open(epoch, at)?, b: self.b.stage.open(epoch, at)? }))
    }

    fn len(&self) -> Option<u64> {
        Some(self.a.stage.len()?.min(self.b.stage.len()?))
    }

    fn describe(&self, text: &mut String) {
        self.a.stage.describe(text);
        *text += ", zip(";
        self.b.stage.describe(text);
        *text += ")";
    }

    fn indexed(&self) -> Option<&dyn IndexedStage<(T, U)>> {
        (self.a.n_by_index().is_some() && self.b.n_by_index().is_some()).then_some(self as _)
    }
}

impl<T: Send + 'static, U: Send + 'static> IndexedStage<(T, U)> for ZipStage<T, U> {
    fn n(&self) -> u64 {
        self.a.n_by_index().unwrap_or(0).min(self.b.n_by_index().unwrap_or(0))
    }

    fn get(&self, epoch: u64, index: u64) -> Result<(T, U)> {
        Ok((self.a.at(epoch, index)?, self.b.at(epoch, index)?))
    }
}

struct ZipCursor<T, U> {
    has_ended: bool,
    a: Box<dyn Cursor<T>>,
    b: Box<dyn Cursor<U>>,
}

impl<T, U> Cursor<(T, U)> for ZipCursor<T, U> {
    fn next(&mut self) -> Option<Result<(T, U)>> {
        if self.has_ended {
            return None;
        }
        let pair = self.a.next().and_then(|a| Some((a, self.b.next()?)));
        self.has_ended = pair.is_none();
        pair.map(|(a, b)| Ok((a?, b?)))
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.push(u64::from(self.has_ended));
        self.a.save(words);
        self.b.save(words);
    }

    fn skipped(&self) -> u64 {
        self.a.skipped() + self.b.skipped()
    }
}
