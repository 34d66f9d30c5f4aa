//! Random orders.
//!
//! With access by index the order is a permutation of all elements, and the position the next
//! index. Otherwise it permutes windows. Position: that below before the window, the number of the
//! window, and the index in it.

use crate::Dataset;
use crate::order::{Permutation, mix};
use crate::position::SavedWords;
use crate::stage::{Cursor, IndexCursor, IndexedStage, Stage};
use anabranch_dsl::Result;

pub(crate) struct ShuffleStage<T> {
    pub(crate) upstream: Dataset<T>,
    pub(crate) window: usize,
    pub(crate) seed: u64,
}

impl<T: Send + 'static> Stage<T> for ShuffleStage<T> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<T>>> {
        let ShuffleStage { window, seed, .. } = *self;
        if self.indexed().is_some() {
            let stage = ShuffleStage { upstream: self.upstream.clone(), window, seed };
            return Ok(Box::new(IndexCursor::new(stage, epoch, at)));
        }
        let (upstream, before) = at.words_of(|at| self.upstream.stage.open(epoch, at));
        let upstream = upstream?;
        let (number, next) = (at.word(), at.word());
        let mut cursor = WindowCursor {
            skipped: upstream.skipped(),
            upstream,
            before,
            number,
            window: Vec::new(),
            next: 0,
            max: window,
            seed,
            epoch,
        };
        if next > 0 {
            cursor.fill();
            // What was delivered is not needed.
            let delivered = usize::try_from(next).unwrap_or(usize::MAX).min(cursor.window.len());
            cursor.window[..delivered].iter_mut().for_each(|element| *element = None);
            cursor.next = delivered;
        }
        Ok(Box::new(cursor))
    }

    fn len(&self) -> Option<u64> {
        self.upstream.stage.len()
    }

    fn describe(&self, text: &mut String) {
        self.upstream.stage.describe(text);
        *text += &match self.indexed() {
            Some(_) => format!(", shuffle(seed {})", self.seed),
            None => format!(", shuffle(window {}, seed {})", self.window, self.seed),
        };
    }

    fn indexed(&self) -> Option<&dyn IndexedStage<T>> {
        self.upstream.n_by_index().map(|_| self as _)
    }
}

impl<T: Send + 'static> IndexedStage<T> for ShuffleStage<T> {
    fn n(&self) -> u64 {
        self.upstream.n_by_index().unwrap_or(0)
    }

    fn get(&self, epoch: u64, index: u64) -> Result<T> {
        self.upstream.at(epoch, Permutation::new(self.n(), self.seed, epoch).get(index))
    }
}

struct WindowCursor<T> {
    upstream: Box<dyn Cursor<T>>,
    /// The position below before the window.
    before: Vec<u64>,
    number: u64,
    /// In the order of delivery. Elements that were delivered are gone.
    window: Vec<Option<Result<T>>>,
    next: usize,
    max: usize,
    seed: u64,
    epoch: u64,
    /// The number of elements skipped below, before the window.
    skipped: u64,
}

impl<T> WindowCursor<T> {
    /// Reads the window that begins here.
    fn fill(&mut self) {
        let mut read: Vec<Option<Result<T>>> =
            std::iter::from_fn(|| self.upstream.next()).take(self.max).map(Some).collect();
        let n = read.len();
        let permutation = Permutation::new(n as u64, self.seed, mix(self.epoch, self.number));
        self.window = (0..n).map(|i| read[permutation.get(i as u64) as usize].take()).collect();
        self.next = 0;
    }
}

impl<T: Send> Cursor<T> for WindowCursor<T> {
    fn next(&mut self) -> Option<Result<T>> {
        if self.next == self.window.len() {
            if !self.window.is_empty() {
                self.before = self.upstream.words();
                self.skipped = self.upstream.skipped();
                self.number += 1;
            }
            self.fill();
            if self.window.is_empty() {
                (self.before, self.skipped) = (self.upstream.words(), self.upstream.skipped());
            }
        }
        let element = self.window.get_mut(self.next)?.take();
        self.next += 1;
        element
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.extend(&self.before);
        words.extend([self.number, self.next as u64]);
    }

    fn skipped(&self) -> u64 {
        self.skipped
    }
}
