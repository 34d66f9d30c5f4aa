//! Vectors that grow while a run lasts, and count in its budget.

use super::stack::NoMemory;
use anabranch_dsl::memory::{self, HeldBytes};
use std::ops::{Deref, DerefMut};

/// A vector whose capacity counts in the budget of the run that made it, until it is dropped. It
/// grows by [`make_room`](Self::make_room) alone.
#[derive(Debug)]
pub(crate) struct CountedVec<T> {
    elements: Vec<T>,
    held: Option<HeldBytes>,
}

impl<T> Default for CountedVec<T> {
    fn default() -> CountedVec<T> {
        CountedVec { elements: Vec::new(), held: None }
    }
}

impl<T> Deref for CountedVec<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.elements
    }
}

impl<T> DerefMut for CountedVec<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.elements
    }
}

impl<T> CountedVec<T> {
    /// Makes room for `n` more elements, each of which counts as `bytes` bytes.
    ///
    /// Doubles the room for amortized constant time of a push. If that fails, tries smaller
    /// factors, which are still large enough that not every push moves all elements.
    pub(crate) fn make_room(&mut self, n: usize, bytes: usize) -> Result<(), NoMemory> {
        let (needed, present) = (self.len().saturating_add(n), self.capacity());
        if needed <= present {
            return Ok(());
        }
        for part in [1, 4, 16, 64] {
            let ample = needed.max(present.saturating_add(present / part)).max(8);
            let Ok(more) = memory::try_hold((ample - present).saturating_mul(bytes)) else { continue };
            let missing = ample - self.len();
            if self.elements.try_reserve_exact(missing).is_ok() {
                match (&self.held, more) {
                    (Some(held), Some(more)) => held.join(more),
                    (None, Some(more)) => self.held = Some(more),
                    (_, None) => {}
                }
                return Ok(());
            }
        }
        Err(NoMemory { bytes: needed.saturating_mul(bytes) })
    }
}

impl CountedVec<u64> {
    /// Grows the memory to at least `words` words.
    pub(crate) fn grow(&mut self, words: usize) -> Result<(), NoMemory> {
        self.make_room(words.saturating_sub(self.len()), 8)?;
        let words = self.capacity();
        self.resize(words, 0);
        Ok(())
    }
}
