//! Datasets made of elements, one after the other.
//!
//! Position: that below before the element of the open dataset, the number of datasets before it,
//! whether a dataset is open, and if so the position in it. Then the elements skipped in the
//! datasets that have ended.
//!
//! Datasets have different epochs, so that equal ones have other orders and random numbers.

use crate::Dataset;
use crate::order::mix;
use crate::position::SavedWords;
use crate::stage::{Cursor, Stage};
use anabranch_dsl::Result;
use std::sync::Arc;

/// A function that makes a dataset of an element.
pub(super) type DatasetFn<T, U> = Arc<dyn Fn(T) -> Result<Dataset<U>> + Send + Sync>;

pub(crate) struct FlatMapStage<T, U> {
    pub(crate) upstream: Dataset<T>,
    pub(crate) f: DatasetFn<T, U>,
}

impl<T: Send + 'static, U: Send + 'static> Stage<U> for FlatMapStage<T, U> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<U>>> {
        let (upstream, before) = at.words_of(|at| self.upstream.stage.open(epoch, at));
        let mut outer = Outer { upstream: upstream?, f: self.f.clone(), epoch, n_before: at.word() };
        let open = match at.word() {
            0 => None,
            _ => Inner::reopen(&mut outer, before, at)?,
        };
        let skipped = at.word();
        Ok(Box::new(FlatMapCursor { outer, open, skipped }))
    }

    fn len(&self) -> Option<u64> {
        None
    }

    fn describe(&self, text: &mut String) {
        self.upstream.stage.describe(text);
        *text += ", flat_map";
    }
}

/// The elements of which datasets are made.
pub(super) struct Outer<T, U> {
    pub(super) upstream: Box<dyn Cursor<T>>,
    pub(super) f: DatasetFn<T, U>,
    pub(super) epoch: u64,
    /// The number of datasets before the next one.
    pub(super) n_before: u64,
}

/// An open dataset.
pub(super) struct Inner<U> {
    /// The number of datasets before it.
    pub(super) number: u64,
    /// The position below before the element of the dataset.
    pub(super) before: Vec<u64>,
    pub(super) cursor: Box<dyn Cursor<U>>,
}

impl<T: Send + 'static, U: Send + 'static> Outer<T, U> {
    /// Opens the dataset of the next element.
    pub(super) fn next(&mut self) -> Option<Result<Inner<U>>> {
        self.open(&mut SavedWords::start())
    }

    fn open(&mut self, at: &mut SavedWords<'_>) -> Option<Result<Inner<U>>> {
        let before = self.upstream.words();
        let dataset = self.upstream.next()?.and_then(|x| (self.f)(x));
        let number = self.n_before;
        self.n_before = number.wrapping_add(1);
        let cursor = dataset.and_then(|dataset| dataset.stage.open(mix(self.epoch, number), at));
        Some(cursor.map(|cursor| Inner { number, before, cursor }))
    }
}

impl<U: Send + 'static> Inner<U> {
    /// Opens the dataset of the next element of `outer` at a saved position. `before` is the
    /// position of `outer`. Returns `None` if there is no such element any more.
    pub(super) fn reopen<T: Send + 'static>(
        outer: &mut Outer<T, U>,
        before: Vec<u64>,
        at: &mut SavedWords<'_>,
    ) -> Result<Option<Inner<U>>> {
        match outer.open(at) {
            Some(inner) => Ok(Some(Inner { before, ..inner? })),
            None => Ok(None),
        }
    }
}

struct FlatMapCursor<T, U> {
    outer: Outer<T, U>,
    open: Option<Inner<U>>,
    /// The number of elements skipped in datasets that have ended.
    skipped: u64,
}

impl<T: Send + 'static, U: Send + 'static> Cursor<U> for FlatMapCursor<T, U> {
    fn next(&mut self) -> Option<Result<U>> {
        loop {
            if let Some(inner) = &mut self.open {
                if let Some(element) = inner.cursor.next() {
                    return Some(element);
                }
                self.skipped += inner.cursor.skipped();
                self.open = None;
            }
            match self.outer.next()? {
                Ok(inner) => self.open = Some(inner),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn save(&self, words: &mut Vec<u64>) {
        match &self.open {
            Some(inner) => {
                words.extend(&inner.before);
                words.extend([inner.number, 1]);
                inner.cursor.save(words);
            }
            None => {
                self.outer.upstream.save(words);
                words.extend([self.outer.n_before, 0]);
            }
        }
        words.push(self.skipped);
    }

    fn skipped(&self) -> u64 {
        self.outer.upstream.skipped() + self.skipped + self.open.as_ref().map_or(0, |inner| inner.cursor.skipped())
    }
}
