//! Immediate operands of instructions on floats.

/// Comparisons, without a signal for NaN. Those with NaN are false, except for `NOT_EQUAL`.
pub(crate) const EQUAL: u8 = 0x00;
pub(crate) const LESS: u8 = 0x11;
pub(crate) const AT_MOST: u8 = 0x12;
pub(crate) const NOT_EQUAL: u8 = 0x04;
pub(crate) const AT_LEAST: u8 = 0x1d;
/// One of them is NaN.
pub(crate) const UNORDERED: u8 = 0x03;

/// Roundings, without a signal for inexact results.
pub(crate) const NEAREST: u8 = 8;
pub(crate) const DOWN: u8 = 9;
pub(crate) const UP: u8 = 10;
