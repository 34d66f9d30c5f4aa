//! Loops over elements for `eval`.
//!
//! The loops receive the function of one element as a pointer, and so are compiled once for its
//! types instead of once for each operation. The reference implementation need not be fast, but it
//! is a large part of this crate.

use super::EvalCx;
use crate::{HostTensor, match_buffer};

/// Applies a function to each element.
pub(super) fn map<T: Copy, R>(x: &[T], f: fn(T) -> R) -> Vec<R> {
    x.iter().map(|&x| f(x)).collect()
}

/// Applies a function to each pair of elements.
pub(super) fn zip<T: Copy, R>(a: &[T], b: &[T], f: fn(T, T) -> R) -> Vec<R> {
    a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()
}

/// Returns the result whose elements are those of `x` at the given offsets.
pub(super) fn read(cx: &EvalCx<'_>, x: &HostTensor, at: &mut dyn Iterator<Item = usize>) -> HostTensor {
    match_buffer!(x.buffer(), d => cx.result(at.map(|o| &d[o]).cloned().collect()))
}
