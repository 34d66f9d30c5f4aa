//! Operands that Rust copies before it evaluates later operands.
//!
//! A construct in a later operand mutably borrows the places that it may modify, so an earlier
//! operand that is such a place cannot be borrowed meanwhile. Rust has copied an operand of a
//! `Copy` type by then, and so does the expansion. It uses any other operand after the later ones,
//! which can only read it.

use super::receiver::Known;

/// The left side of a comparison.
#[derive(Debug)]
pub struct EarlyOperand<'a, T: ?Sized>(pub &'a T);

/// The receiver of a method whose name suggests that it modifies nothing.
#[derive(Debug)]
pub struct EarlyReceiver<'a, T: ?Sized>(pub &'a T);

/// A copy of an operand.
#[derive(Debug)]
pub struct EarlyCopy<T>(T);

/// Stands for an operand that is not copied.
#[derive(Debug)]
pub struct NoEarlyCopy;

impl<T: Copy> EarlyOperand<'_, T> {
    /// Copies the operand. This inherent method takes precedence over that of [`MayCopyEarly`].
    #[inline]
    pub fn early(&self) -> EarlyCopy<T> {
        EarlyCopy(*self.0)
    }
}

impl<T: Copy + Known> EarlyReceiver<'_, T> {
    /// Copies the receiver. This inherent method takes precedence over that of [`MayCopyEarly`].
    #[inline]
    pub fn early(&self) -> EarlyCopy<T> {
        EarlyCopy(*self.0)
    }
}

/// Operands that may have to be copied.
pub trait MayCopyEarly {
    /// Returns a mark that the operand is not copied.
    #[inline]
    fn early(&self) -> NoEarlyCopy {
        NoEarlyCopy
    }
}
impl<T: ?Sized> MayCopyEarly for EarlyOperand<'_, T> {}
impl<T: ?Sized> MayCopyEarly for EarlyReceiver<'_, T> {}

impl<T> EarlyCopy<T> {
    /// Returns the copy.
    #[inline]
    pub fn value<'a>(&'a self, _place: &'a T) -> &'a T {
        &self.0
    }
    /// Returns the copy, as a receiver.
    #[inline]
    pub fn receiver<'a>(&'a mut self, _place: &'a mut T) -> &'a mut T {
        &mut self.0
    }
}

impl NoEarlyCopy {
    /// Returns the operand itself.
    #[inline]
    pub fn value<'a, T: ?Sized>(&'a self, place: &'a T) -> &'a T {
        place
    }
    /// Returns the receiver itself.
    #[inline]
    pub fn receiver<'a, T: ?Sized>(&'a mut self, place: &'a mut T) -> &'a mut T {
        place
    }
}
