//! Positions of iterators, which can be stored.
//!
//! Each stage writes the words that describe where it is, after those of the stage that it reads,
//! and reads them in the same order. A stage that is at its start writes zeros alone, and zeros
//! are what it reads without a stored position. So no stage distinguishes the two.

use serde::{Deserialize, Serialize};

/// The position of an iterator over a [`Dataset`](crate::Dataset): which elements it has delivered.
///
/// Elements that were read ahead but not delivered do not count: they are read again. A position
/// can be stored in any format of `serde`, and be used by a later run of the program with
/// [`Dataset::resume`](crate::Dataset::resume).
///
/// ```
/// use anabranch::data::Dataset;
///
/// let numbers = Dataset::range(0..100).shuffle(100, 7).batch(8);
/// let mut epoch = numbers.epoch(3);
/// epoch.next();
/// let position = epoch.position();
/// let rest: Vec<_> = epoch.map(Result::unwrap).collect();
/// let resumed: Vec<_> = numbers.resume(&position)?.map(Result::unwrap).collect();
/// assert_eq!(rest, resumed);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DatasetPosition {
    /// The stages of the dataset, as text.
    pub(crate) pipeline: String,
    pub(crate) epoch: u64,
    pub(crate) words: Vec<u64>,
}

impl DatasetPosition {
    /// Returns the epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns whether no element of the epoch was delivered yet.
    pub fn is_start(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }
}

/// The largest word. No pass comes so far, and what is counted from it does not overflow.
const MAX_WORD: u64 = u64::MAX / 2;

/// The words of a position, as stages read them.
#[derive(Debug)]
pub(crate) struct SavedWords<'a> {
    /// The words that were not read yet.
    words: &'a [u64],
    /// The number of words that were read.
    n_read: usize,
    is_start: bool,
    is_wrong: bool,
}

impl<'a> SavedWords<'a> {
    /// Returns the position before the first element.
    pub(crate) fn start() -> SavedWords<'static> {
        SavedWords { words: &[], n_read: 0, is_start: true, is_wrong: false }
    }

    pub(crate) fn new(words: &'a [u64]) -> SavedWords<'a> {
        SavedWords { words, n_read: 0, is_start: false, is_wrong: false }
    }

    /// Returns the next word.
    pub(crate) fn word(&mut self) -> u64 {
        self.n_read += 1;
        match self.words.split_first() {
            Some((first, rest)) => {
                self.words = rest;
                self.is_wrong |= *first > MAX_WORD;
                (*first).min(MAX_WORD)
            }
            None => {
                self.is_wrong |= !self.is_start;
                0
            }
        }
    }

    /// Returns the next word as a number of things in memory, at most those that can have a word.
    pub(crate) fn count(&mut self) -> usize {
        let count = usize::try_from(self.word()).unwrap_or(usize::MAX);
        self.is_wrong |= count > self.words.len() && !self.is_start;
        if self.is_wrong { 0 } else { count }
    }

    /// Returns the next word, which must be less than `n`.
    pub(crate) fn number_below(&mut self, n: usize) -> usize {
        let number = usize::try_from(self.word()).ok().filter(|&number| number < n);
        self.is_wrong |= number.is_none();
        number.unwrap_or(0)
    }

    /// Returns the words that `read` reads.
    pub(crate) fn words_of<T>(&mut self, read: impl FnOnce(&mut SavedWords<'a>) -> T) -> (T, Vec<u64>) {
        let (words, n_before) = (self.words, self.n_read);
        let result = read(self);
        let n = self.n_read - n_before;
        // Words that are missing are zeros.
        (result, words.iter().copied().chain(std::iter::repeat(0)).take(n).collect())
    }

    /// Returns whether all words were read, and no others.
    pub(crate) fn is_complete(&self) -> bool {
        self.words.is_empty() && !self.is_wrong
    }
}
