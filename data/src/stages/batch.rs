//! Batches of elements.
//!
//! Position: that below. With access by index: the next batch.

use crate::Dataset;
use crate::position::SavedWords;
use crate::stage::{Cursor, IndexCursor, IndexedStage, Stage};
use anabranch_dsl::Result;
use std::sync::Arc;

/// A function that joins elements.
type JoinFn<T, B> = Arc<dyn Fn(Vec<T>) -> Result<B> + Send + Sync>;

pub(crate) struct BatchStage<T, B> {
    pub(crate) upstream: Dataset<T>,
    pub(crate) n: usize,
    /// Whether a smaller last batch is left out.
    pub(crate) exact: bool,
    pub(crate) collate: JoinFn<T, B>,
}

impl<T, B> Clone for BatchStage<T, B> {
    fn clone(&self) -> Self {
        BatchStage { upstream: self.upstream.clone(), n: self.n, exact: self.exact, collate: self.collate.clone() }
    }
}

impl<T, B> BatchStage<T, B> {
    /// Returns the number of batches of `len` elements.
    fn batches_of(&self, len: u64) -> u64 {
        let n = self.n as u64;
        if self.exact { len / n } else { len.div_ceil(n) }
    }
}

impl<T: Send + 'static, B: Send + 'static> Stage<B> for BatchStage<T, B> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<B>>> {
        if self.indexed().is_some() {
            return Ok(Box::new(IndexCursor::new(self.clone(), epoch, at)));
        }
        Ok(Box::new(BatchCursor { upstream: self.upstream.stage.open(epoch, at)?, batch: self.clone() }))
    }

    fn len(&self) -> Option<u64> {
        self.upstream.stage.len().map(|len| self.batches_of(len))
    }

    fn describe(&self, text: &mut String) {
        self.upstream.stage.describe(text);
        *text += &format!(", {}({})", if self.exact { "batch_exact" } else { "batch" }, self.n);
    }

    fn indexed(&self) -> Option<&dyn IndexedStage<B>> {
        self.upstream.n_by_index().map(|_| self as _)
    }
}

impl<T: Send + 'static, B: Send + 'static> IndexedStage<B> for BatchStage<T, B> {
    fn n(&self) -> u64 {
        self.upstream.n_by_index().map_or(0, |n| self.batches_of(n))
    }

    fn get(&self, epoch: u64, index: u64) -> Result<B> {
        let below = self.upstream.n_by_index().unwrap_or(0);
        let first = index * self.n as u64;
        let elements = (first..below.min(first + self.n as u64)).map(|i| self.upstream.at(epoch, i));
        (self.collate)(elements.collect::<Result<_>>()?)
    }
}

struct BatchCursor<T, B> {
    upstream: Box<dyn Cursor<T>>,
    batch: BatchStage<T, B>,
}

impl<T, B> Cursor<B> for BatchCursor<T, B> {
    fn next(&mut self) -> Option<Result<B>> {
        let BatchStage { n, exact, collate, .. } = &self.batch;
        // A batch consists of the same elements whether some are errors or not.
        let elements: Vec<Result<T>> = std::iter::from_fn(|| self.upstream.next()).take(*n).collect();
        if elements.is_empty() || *exact && elements.len() < *n {
            return None;
        }
        Some(elements.into_iter().collect::<Result<_>>().and_then(|elements| collate(elements)))
    }

    fn save(&self, words: &mut Vec<u64>) {
        self.upstream.save(words);
    }

    fn skipped(&self) -> u64 {
        self.upstream.skipped()
    }
}
