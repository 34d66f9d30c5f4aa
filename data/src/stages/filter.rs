//! Stages that leave elements out.
//!
//! Position of `filter`: that below. Position of `skip_errors`: the number of elements left out,
//! and the position below.

use crate::Dataset;
use crate::position::SavedWords;
use crate::stage::{Cursor, Stage};
use anabranch_dsl::Result;
use std::sync::Arc;

pub(crate) struct FilterStage<T> {
    pub(crate) upstream: Dataset<T>,
    pub(crate) keep: Arc<dyn Fn(&T) -> bool + Send + Sync>,
}

impl<T: Send + 'static> Stage<T> for FilterStage<T> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<T>>> {
        Ok(Box::new(FilterCursor { upstream: self.upstream.stage.open(epoch, at)?, keep: self.keep.clone() }))
    }

    fn len(&self) -> Option<u64> {
        None
    }

    fn describe(&self, text: &mut String) {
        self.upstream.stage.describe(text);
        *text += ", filter";
    }
}

struct FilterCursor<T> {
    upstream: Box<dyn Cursor<T>>,
    keep: Arc<dyn Fn(&T) -> bool + Send + Sync>,
}

impl<T> Cursor<T> for FilterCursor<T> {
    fn next(&mut self) -> Option<Result<T>> {
        loop {
            match self.upstream.next()? {
                Ok(element) if !(self.keep)(&element) => {}
                other => return Some(other),
            }
        }
    }

    fn save(&self, words: &mut Vec<u64>) {
        self.upstream.save(words);
    }

    fn skipped(&self) -> u64 {
        self.upstream.skipped()
    }
}

pub(crate) struct SkipErrorsStage<T> {
    pub(crate) upstream: Dataset<T>,
}

impl<T: Send + 'static> Stage<T> for SkipErrorsStage<T> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<T>>> {
        let skipped = at.word();
        Ok(Box::new(SkipCursor { upstream: self.upstream.stage.open(epoch, at)?, skipped }))
    }

    fn len(&self) -> Option<u64> {
        None
    }

    fn describe(&self, text: &mut String) {
        self.upstream.stage.describe(text);
        *text += ", skip_errors";
    }
}

struct SkipCursor<T> {
    upstream: Box<dyn Cursor<T>>,
    skipped: u64,
}

impl<T> Cursor<T> for SkipCursor<T> {
    fn next(&mut self) -> Option<Result<T>> {
        loop {
            match self.upstream.next()? {
                Err(_) => self.skipped += 1,
                element => return Some(element),
            }
        }
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.push(self.skipped);
        self.upstream.save(words);
    }

    fn skipped(&self) -> u64 {
        self.upstream.skipped() + self.skipped
    }
}
