//! Values that exist only on some paths through a function: the value of a `return` or `break`, and
//! that of a `let` without an initializer.
//!
//! In the graph every value exists on every path. So a slot that is empty on one path and full on
//! another is filled with zeros of the type on the full path. The zeros are never read: code that
//! reads the slot is under the flag of the jump that filled it.

use super::{Carry, FlatState, Reader};

/// A value that is present after the jump that sets it.
#[derive(Debug)]
pub struct Slot<T>(Option<T>);

impl<T> Slot<T> {
    /// Creates an empty slot.
    #[inline]
    #[expect(clippy::new_without_default, reason = "only the expansion creates slots")]
    pub fn new() -> Slot<T> {
        Slot(None)
    }

    /// Sets the value.
    #[inline]
    pub fn set(&mut self, value: T) {
        self.0 = Some(value);
    }

    /// Takes the value, if a jump has set one.
    #[inline]
    pub fn taken(&mut self) -> Option<T> {
        self.0.take()
    }

    /// Takes the value, after a jump that has set one.
    #[inline]
    pub fn take(&mut self) -> T {
        self.0.take().expect("the jump stored a value")
    }
}

impl<T: Carry> Carry for Slot<T> {
    fn flatten(&self, state: &mut FlatState) {
        match &self.0 {
            None => state.undefined(),
            Some(value) => value.flatten(state),
        }
    }
    fn rebuild(state: &mut Reader<'_>) -> Self {
        Slot((!state.undefined()).then(|| T::rebuild(state)))
    }
}
