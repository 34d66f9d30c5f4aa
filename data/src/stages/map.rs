//! Functions of elements, one after the other.
//!
//! Position: the number of the next element, and the position below. With access by index: the next
//! index.

use crate::Dataset;
use crate::position::SavedWords;
use crate::stage::{Cursor, IndexCursor, IndexedStage, Stage};
use anabranch_dsl::Result;
use std::sync::Arc;

/// A function of an element, its epoch and its number.
pub(super) type ElementFn<T, U> = Arc<dyn Fn(T, u64, u64) -> Result<U> + Send + Sync>;

pub(crate) struct MapStage<T, U> {
    upstream: Dataset<T>,
    name: Arc<str>,
    f: ElementFn<T, U>,
}

impl<T, U> Clone for MapStage<T, U> {
    fn clone(&self) -> Self {
        MapStage { upstream: self.upstream.clone(), name: self.name.clone(), f: self.f.clone() }
    }
}

impl<T, U> MapStage<T, U> {
    pub(crate) fn new(
        upstream: Dataset<T>,
        name: &str,
        f: impl Fn(T, u64, u64) -> Result<U> + Send + Sync + 'static,
    ) -> MapStage<T, U> {
        MapStage { upstream, name: name.into(), f: Arc::new(f) }
    }
}

impl<T: Send + 'static, U: Send + 'static> Stage<U> for MapStage<T, U> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<U>>> {
        if self.indexed().is_some() {
            return Ok(Box::new(IndexCursor::new(self.clone(), epoch, at)));
        }
        let next = at.word();
        let upstream = self.upstream.stage.open(epoch, at)?;
        Ok(Box::new(MapCursor { upstream, f: self.f.clone(), epoch, next }))
    }

    fn len(&self) -> Option<u64> {
        self.upstream.stage.len()
    }

    fn describe(&self, text: &mut String) {
        self.upstream.stage.describe(text);
        *text += &format!(", {}", self.name);
    }

    fn indexed(&self) -> Option<&dyn IndexedStage<U>> {
        self.upstream.n_by_index().map(|_| self as _)
    }
}

impl<T: Send + 'static, U: Send + 'static> IndexedStage<U> for MapStage<T, U> {
    fn n(&self) -> u64 {
        self.upstream.n_by_index().unwrap_or(0)
    }

    fn get(&self, epoch: u64, index: u64) -> Result<U> {
        (self.f)(self.upstream.at(epoch, index)?, epoch, index)
    }
}

struct MapCursor<T, U> {
    upstream: Box<dyn Cursor<T>>,
    f: ElementFn<T, U>,
    epoch: u64,
    next: u64,
}

impl<T, U> Cursor<U> for MapCursor<T, U> {
    fn next(&mut self) -> Option<Result<U>> {
        let element = self.upstream.next()?;
        let number = self.next;
        self.next += 1;
        Some(element.and_then(|x| (self.f)(x, self.epoch, number)))
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.push(self.next);
        self.upstream.save(words);
    }

    fn skipped(&self) -> u64 {
        self.upstream.skipped()
    }
}
