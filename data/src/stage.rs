//! What a stage of a pipeline is to the others.
//!
//! A [`Stage`] is a description: it can be opened any number of times, at any position of any
//! epoch. A [`Cursor`] is one pass over its elements. Some stages can compute any of their elements
//! from its index; these are [`IndexedStage`], and stages on top of them keep that where they can.
//!
//! Invariants:
//!
//! - S1. The elements of a stage and their order depend on the epoch alone: not on threads, time or
//!   how often it was opened.
//! - S2. A cursor that is opened with the words that another one saved delivers what that one would
//!   have delivered next.
//! - S3. The words of a stage at its start are zeros.
//! - S4. After an error a cursor goes on behind the element that could not be made, or ends.
//!   Elements with errors count for positions like others.
//!
//! Stages know nothing of graphs and sessions.

use crate::Dataset;
use crate::position::SavedWords;
use anabranch_dsl::Result;

/// A description of elements in an order.
pub(crate) trait Stage<T>: Send + Sync {
    /// Starts a pass over the elements of an epoch at a saved position.
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<T>>>;

    /// Returns the number of elements in each epoch, if it is known without reading them.
    fn len(&self) -> Option<u64>;

    /// Appends the stages as text: what positions of equal texts mean is equal.
    fn describe(&self, text: &mut String);

    /// Describes the stages as text if none is behind this one.
    fn describe_last(&self, text: &mut String) {
        self.describe(text);
    }

    /// Returns access by index, if the stage has it.
    fn indexed(&self) -> Option<&dyn IndexedStage<T>> {
        None
    }

    /// Returns the datasets that are one after another, if the stage is a chain.
    fn chained(&self) -> Option<&[Dataset<T>]> {
        None
    }
}

/// A pass over the elements of a stage.
pub(crate) trait Cursor<T>: Send {
    /// Returns the next element.
    fn next(&mut self) -> Option<Result<T>>;

    /// Appends the words of the position before the next element.
    fn save(&self, words: &mut Vec<u64>);

    /// Returns the number of elements that were skipped because of errors.
    fn skipped(&self) -> u64;

    /// Returns the words of the position before the next element.
    fn words(&self) -> Vec<u64> {
        let mut words = Vec::new();
        self.save(&mut words);
        words
    }
}

/// Elements by index.
pub(crate) trait IndexedStage<T>: Send + Sync {
    /// Returns the number of elements.
    fn n(&self) -> u64;

    /// Returns an element of an epoch. The index must be less than the number of elements.
    fn get(&self, epoch: u64, index: u64) -> Result<T>;
}

/// A pass over elements with indices. Its position is the next index.
pub(crate) struct IndexCursor<S> {
    stage: S,
    epoch: u64,
    next: u64,
}

impl<S> IndexCursor<S> {
    pub(crate) fn new(stage: S, epoch: u64, at: &mut SavedWords<'_>) -> IndexCursor<S> {
        IndexCursor { stage, epoch, next: at.word() }
    }
}

impl<T, S: IndexedStage<T>> Cursor<T> for IndexCursor<S> {
    fn next(&mut self) -> Option<Result<T>> {
        let index = self.next;
        (index < self.stage.n()).then(|| {
            self.next += 1;
            self.stage.get(self.epoch, index)
        })
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.push(self.next);
    }

    fn skipped(&self) -> u64 {
        0
    }
}
