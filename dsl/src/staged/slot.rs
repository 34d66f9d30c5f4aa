//! Values that exist only on some ways through the function: of a `return` or `break` with a value, and of a `let` without one.
//!
//! In the graph every value exists on every way, so where a slot is empty on one way and full on another, the empty one is
//! filled with zeros of the other's type. They are never looked at: what reads the slot stands under the flag of the jump
//! that filled it.

use super::{Carry, Reader, State};

/// A value that is there after the jump that gives it.
#[derive(Debug)]
pub struct Slot<T>(Option<T>);

impl<T> Slot<T> {
    /// Without a value.
    #[inline]
    #[expect(clippy::new_without_default, reason = "only the expansion makes one")]
    pub fn new() -> Slot<T> {
        Slot(None)
    }

    /// Gives it a value.
    #[inline]
    pub fn set(&mut self, value: T) {
        self.0 = Some(value);
    }

    /// Takes the value, if a jump has given one.
    #[inline]
    pub fn taken(&mut self) -> Option<T> {
        self.0.take()
    }

    /// Takes the value, after a jump that has given one.
    #[inline]
    pub fn take(&mut self) -> T {
        self.0.take().expect("the jump gave a value")
    }
}

impl<T: Carry> Carry for Slot<T> {
    fn flatten(&self, state: &mut State) {
        match &self.0 {
            None => state.undefined(),
            Some(value) => value.flatten(state),
        }
    }
    fn rebuild(state: &mut Reader<'_>) -> Self {
        Slot((!state.undefined()).then(|| T::rebuild(state)))
    }
}
