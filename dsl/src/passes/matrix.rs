//! Matrices, for the passes that rearrange matmuls.

use crate::Type;
use crate::ops::attributes::{Axes, Slice};

/// Returns the extents of a matrix of floats.
pub(super) fn matrix(ty: &Type) -> Option<[usize; 2]> {
    let ty = ty.as_tensor().filter(|ty| ty.dtype.is_float())?;
    ty.shape.known()?.try_into().ok()
}

/// Returns the attributes of the permutation that transposes a matrix.
pub(super) fn transposed() -> Axes {
    Axes { axes: vec![1, 0] }
}

/// Returns the attributes of a slice of `n` columns of a matrix, from `start` on.
pub(super) fn columns(start: usize, n: usize) -> Slice {
    Slice { axis: 1, start, end: start + n, step: 1 }
}
