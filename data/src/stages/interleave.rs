//! Datasets made of elements, several at a time.
//!
//! Position: that below, the number of datasets before, the number of places in use, the current
//! place, the elements taken from it in this turn, and the elements skipped in the datasets that
//! have ended. Then for each place whether a dataset is open there, and if so the position below
//! before its element, its number and the position in the dataset.

use super::flat_map::{DatasetFn, Inner, Outer};
use crate::Dataset;
use crate::position::SavedWords;
use crate::stage::{Cursor, Stage};
use anabranch_dsl::Result;

pub(crate) struct InterleaveStage<T, U> {
    pub(crate) upstream: Dataset<T>,
    /// The number of datasets that are open at once.
    pub(crate) cycle: usize,
    /// The number of elements that each gives in its turn.
    pub(crate) block: usize,
    pub(crate) f: DatasetFn<T, U>,
}

impl<T: Send + 'static, U: Send + 'static> Stage<U> for InterleaveStage<T, U> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<U>>> {
        let outer = |upstream, n_before| Outer { upstream, f: self.f.clone(), epoch, n_before };
        let upstream = self.upstream.stage.open(epoch, at)?;
        let n_before = at.word();
        let n_places = at.count();
        let (place, taken, skipped) = (
            at.number_below(self.cycle.min(n_places.saturating_add(1))),
            at.number_below(self.block.saturating_add(1)),
            at.word(),
        );
        let mut places = Vec::new();
        for _ in 0..n_places {
            places.push(match at.word() {
                0 => None,
                _ => {
                    let (upstream, before) = at.words_of(|at| self.upstream.stage.open(epoch, at));
                    let mut outer = outer(upstream?, at.word());
                    Inner::reopen(&mut outer, before, at)?
                }
            });
        }
        let (cycle, block, has_outer_ended) = (self.cycle, self.block, false);
        let outer = outer(upstream, n_before);
        Ok(Box::new(InterleaveCursor { outer, has_outer_ended, places, place, taken, skipped, cycle, block }))
    }

    fn len(&self) -> Option<u64> {
        None
    }

    fn describe(&self, text: &mut String) {
        self.upstream.stage.describe(text);
        *text += &format!(", interleave({}, {})", self.cycle, self.block);
    }
}

struct InterleaveCursor<T, U> {
    outer: Outer<T, U>,
    /// Whether there are no more datasets to open.
    has_outer_ended: bool,
    /// Grows up to the number of datasets that may be open.
    places: Vec<Option<Inner<U>>>,
    /// The current place, or the number of places for a new one.
    place: usize,
    /// The number of elements taken in this turn.
    taken: usize,
    skipped: u64,
    cycle: usize,
    block: usize,
}

impl<T: Send + 'static, U: Send + 'static> InterleaveCursor<T, U> {
    fn turn(&mut self) {
        (self.place, self.taken) = if self.place + 1 == self.cycle { (0, 0) } else { (self.place + 1, 0) };
    }

    /// Opens the next dataset at the current place. Returns whether there is one.
    fn open_next(&mut self) -> Result<bool> {
        if self.has_outer_ended {
            return Ok(false);
        }
        let Some(inner) = self.outer.next() else {
            self.has_outer_ended = true;
            return Ok(false);
        };
        let inner = Some(inner?);
        match self.places.get_mut(self.place) {
            Some(place) => *place = inner,
            None => self.places.push(inner),
        }
        Ok(true)
    }
}

impl<T: Send + 'static, U: Send + 'static> Cursor<U> for InterleaveCursor<T, U> {
    fn next(&mut self) -> Option<Result<U>> {
        loop {
            if self.taken == self.block {
                self.turn();
            }
            if self.places.get(self.place).is_none_or(Option::is_none) {
                match self.open_next() {
                    Ok(true) => {}
                    Ok(false) if self.places.iter().all(Option::is_none) => return None,
                    Ok(false) => {
                        match self.place < self.places.len() {
                            true => self.turn(),
                            false => (self.place, self.taken) = (0, 0),
                        }
                        continue;
                    }
                    Err(error) => return Some(Err(error)),
                }
            }
            let inner = self.places[self.place].as_mut().expect("a dataset is open at the place");
            if let Some(element) = inner.cursor.next() {
                self.taken += 1;
                return Some(element);
            }
            self.skipped += inner.cursor.skipped();
            self.places[self.place] = None;
        }
    }

    fn save(&self, words: &mut Vec<u64>) {
        self.outer.upstream.save(words);
        words.push(self.outer.n_before);
        words.extend([self.places.len() as u64, self.place as u64, self.taken as u64, self.skipped]);
        for place in &self.places {
            words.push(u64::from(place.is_some()));
            if let Some(inner) = place {
                words.extend(&inner.before);
                words.push(inner.number);
                inner.cursor.save(words);
            }
        }
    }

    fn skipped(&self) -> u64 {
        let open: u64 = self.places.iter().flatten().map(|inner| inner.cursor.skipped()).sum();
        self.outer.upstream.skipped() + self.skipped + open
    }
}
