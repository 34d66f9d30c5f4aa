//! Vectors that grow while a run lasts, and count in its budget.

use super::stack::NoMemory;
use anabranch_dsl::memory::{self, HeldBytes};
use std::ops::{Deref, DerefMut};

/// A vector whose capacity counts in the budget of the run that made it, until it is dropped. Who
/// adds elements [makes room](Self::make_room) before.
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
        let bytes_needed = needed.saturating_mul(bytes);
        // The system first, as its answer is the same for every run.
        if memory::check_system(bytes_needed as u128).is_err() {
            return Err(NoMemory { bytes: bytes_needed });
        }
        for part in [1, 4, 16, 64] {
            let ample = needed.max(present.saturating_add(present / part)).max(8);
            let Ok(more) = memory::try_hold((ample - present).saturating_mul(bytes)) else { continue };
            let missing = ample - self.len();
            if self.elements.try_reserve_exact(missing).is_ok() {
                // Elements that were counted in another budget count there no more.
                let apart = match &self.held {
                    Some(held) => more.and_then(|more| held.join(more)),
                    None => more,
                };
                if apart.is_some() {
                    self.held = apart;
                }
                return Ok(());
            }
        }
        Err(NoMemory { bytes: bytes_needed })
    }
}

impl<T: Copy> CountedVec<T> {
    /// Returns a copy of elements, each of which counts as its size.
    pub(crate) fn copy_of(elements: &[T]) -> Result<CountedVec<T>, NoMemory> {
        let mut copy = CountedVec::default();
        if !elements.is_empty() {
            copy.make_room(elements.len(), size_of::<T>())?;
            copy.extend_from_slice(elements);
        }
        Ok(copy)
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
