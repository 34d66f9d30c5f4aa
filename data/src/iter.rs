//! Passes over datasets, as users see them.

use crate::Dataset;
use crate::position::DatasetPosition;
use crate::stage::Cursor;
use anabranch_dsl::{Diagnostic, Result};

/// A pass over the elements of a [`Dataset`].
pub struct DatasetIter<T> {
    pipeline: String,
    epoch: u64,
    cursor: Opened<T>,
}

/// A cursor, or the error that it could not be opened with.
enum Opened<T> {
    Running(Box<dyn Cursor<T>>),
    Failed(Option<Diagnostic>),
}

impl<T> DatasetIter<T> {
    pub(crate) fn new(pipeline: String, epoch: u64, cursor: Result<Box<dyn Cursor<T>>>) -> DatasetIter<T> {
        let cursor = cursor.map_or_else(|error| Opened::Failed(Some(error)), Opened::Running);
        DatasetIter { pipeline, epoch, cursor }
    }

    /// Returns the position: behind the last element that [`next`](Iterator::next) has returned.
    pub fn position(&self) -> DatasetPosition {
        let words = match &self.cursor {
            Opened::Running(cursor) => cursor.words(),
            Opened::Failed(_) => Vec::new(),
        };
        DatasetPosition { pipeline: self.pipeline.clone(), epoch: self.epoch, words }
    }

    /// Returns the number of elements that [`Dataset::skip_errors`] has left out, from the start
    /// of the epoch to the last element that was returned. Those that a window of
    /// [`Dataset::shuffle`] has read are counted when the next window begins.
    pub fn skipped(&self) -> u64 {
        match &self.cursor {
            Opened::Running(cursor) => cursor.skipped(),
            Opened::Failed(_) => 0,
        }
    }
}

impl<T> Iterator for DatasetIter<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        match &mut self.cursor {
            Opened::Running(cursor) => cursor.next(),
            Opened::Failed(error) => error.take().map(Err),
        }
    }
}

impl<T> std::fmt::Debug for DatasetIter<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DatasetIter({}, epoch {})", self.pipeline, self.epoch)
    }
}

impl<T: Send + 'static> IntoIterator for &Dataset<T> {
    type Item = Result<T>;
    type IntoIter = DatasetIter<T>;

    fn into_iter(self) -> DatasetIter<T> {
        self.iter()
    }
}
