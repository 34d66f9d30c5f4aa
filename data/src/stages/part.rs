//! Parts of datasets.
//!
//! With access by index the position is the next index. Otherwise it is:
//!
//! - `take`: the number of elements taken, and the position below;
//! - `skip`: the number of elements left out, and the position below;
//! - `shard`: the index below divided by the number of parts (the remainder), and the position
//!   below.

use crate::Dataset;
use crate::position::SavedWords;
use crate::stage::{Cursor, IndexCursor, IndexedStage, Stage};
use anabranch_dsl::Result;

pub(crate) struct TakeStage<T> {
    pub(crate) upstream: Dataset<T>,
    pub(crate) n: u64,
}

impl<T: Send + 'static> Stage<T> for TakeStage<T> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<T>>> {
        if self.indexed().is_some() {
            return Ok(Box::new(IndexCursor::new(TakeStage { upstream: self.upstream.clone(), n: self.n }, epoch, at)));
        }
        let taken = at.word();
        Ok(Box::new(TakeCursor { upstream: self.upstream.stage.open(epoch, at)?, taken, n: self.n }))
    }

    fn len(&self) -> Option<u64> {
        match self.upstream.stage.len() {
            Some(len) => Some(len.min(self.n)),
            None => (self.n == 0).then_some(0),
        }
    }

    fn describe(&self, text: &mut String) {
        self.upstream.stage.describe(text);
        *text += &format!(", take({})", self.n);
    }

    fn indexed(&self) -> Option<&dyn IndexedStage<T>> {
        self.upstream.n_by_index().map(|_| self as _)
    }
}

impl<T: Send + 'static> IndexedStage<T> for TakeStage<T> {
    fn n(&self) -> u64 {
        self.upstream.n_by_index().map_or(0, |n| n.min(self.n))
    }

    fn get(&self, epoch: u64, index: u64) -> Result<T> {
        self.upstream.at(epoch, index)
    }
}

struct TakeCursor<T> {
    upstream: Box<dyn Cursor<T>>,
    taken: u64,
    n: u64,
}

impl<T> Cursor<T> for TakeCursor<T> {
    fn next(&mut self) -> Option<Result<T>> {
        if self.taken >= self.n {
            return None;
        }
        let element = self.upstream.next()?;
        self.taken += 1;
        Some(element)
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.push(self.taken);
        self.upstream.save(words);
    }

    fn skipped(&self) -> u64 {
        self.upstream.skipped()
    }
}

pub(crate) struct SkipStage<T> {
    pub(crate) upstream: Dataset<T>,
    pub(crate) n: u64,
}

impl<T: Send + 'static> Stage<T> for SkipStage<T> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<T>>> {
        if self.indexed().is_some() {
            return Ok(Box::new(IndexCursor::new(SkipStage { upstream: self.upstream.clone(), n: self.n }, epoch, at)));
        }
        let left_out = at.word();
        Ok(Box::new(LeaveOutCursor { upstream: self.upstream.stage.open(epoch, at)?, left_out, n: self.n }))
    }

    fn len(&self) -> Option<u64> {
        self.upstream.stage.len().map(|len| len.saturating_sub(self.n))
    }

    fn describe(&self, text: &mut String) {
        self.upstream.stage.describe(text);
        *text += &format!(", skip({})", self.n);
    }

    fn indexed(&self) -> Option<&dyn IndexedStage<T>> {
        self.upstream.n_by_index().map(|_| self as _)
    }
}

impl<T: Send + 'static> IndexedStage<T> for SkipStage<T> {
    fn n(&self) -> u64 {
        self.upstream.n_by_index().map_or(0, |n| n.saturating_sub(self.n))
    }

    fn get(&self, epoch: u64, index: u64) -> Result<T> {
        self.upstream.at(epoch, index + self.n)
    }
}

struct LeaveOutCursor<T> {
    upstream: Box<dyn Cursor<T>>,
    left_out: u64,
    n: u64,
}

impl<T> Cursor<T> for LeaveOutCursor<T> {
    fn next(&mut self) -> Option<Result<T>> {
        while self.left_out < self.n {
            drop(self.upstream.next()?);
            self.left_out += 1;
        }
        self.upstream.next()
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.push(self.left_out);
        self.upstream.save(words);
    }

    fn skipped(&self) -> u64 {
        self.upstream.skipped()
    }
}

pub(crate) struct ShardStage<T> {
    pub(crate) upstream: Dataset<T>,
    pub(crate) i: u64,
    pub(crate) n: u64,
}

impl<T> ShardStage<T> {
    /// Returns the size of the part of a dataset of `len` elements.
    fn part_of(&self, len: u64) -> u64 {
        len / self.n + u64::from(self.i < len % self.n)
    }
}

impl<T: Send + 'static> Stage<T> for ShardStage<T> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<T>>> {
        let ShardStage { i, n, .. } = *self;
        if self.indexed().is_some() {
            return Ok(Box::new(IndexCursor::new(ShardStage { upstream: self.upstream.clone(), i, n }, epoch, at)));
        }
        let remainder = at.word();
        Ok(Box::new(ShardCursor { upstream: self.upstream.stage.open(epoch, at)?, remainder, i, n }))
    }

    fn len(&self) -> Option<u64> {
        self.upstream.stage.len().map(|len| self.part_of(len))
    }

    fn describe(&self, text: &mut String) {
        self.upstream.stage.describe(text);
        *text += &format!(", shard({}, {})", self.i, self.n);
    }

    fn indexed(&self) -> Option<&dyn IndexedStage<T>> {
        self.upstream.n_by_index().map(|_| self as _)
    }
}

impl<T: Send + 'static> IndexedStage<T> for ShardStage<T> {
    fn n(&self) -> u64 {
        self.upstream.n_by_index().map_or(0, |n| self.part_of(n))
    }

    fn get(&self, epoch: u64, index: u64) -> Result<T> {
        self.upstream.at(epoch, index * self.n + self.i)
    }
}

struct ShardCursor<T> {
    upstream: Box<dyn Cursor<T>>,
    remainder: u64,
    i: u64,
    n: u64,
}

impl<T> Cursor<T> for ShardCursor<T> {
    fn next(&mut self) -> Option<Result<T>> {
        loop {
            let element = self.upstream.next()?;
            let is_in_part = self.remainder == self.i;
            self.remainder = (self.remainder + 1) % self.n;
            if is_in_part {
                return Some(element);
            }
        }
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.push(self.remainder);
        self.upstream.save(words);
    }

    fn skipped(&self) -> u64 {
        self.upstream.skipped()
    }
}
