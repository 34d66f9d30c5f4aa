//! Row-major memory layouts: strides and offsets.

/// Returns the strides of a contiguous row-major tensor.
pub(super) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}

/// Returns for every index of `shape`, in row-major order, its offset under the given strides.
///
/// A stride of 0 maps all indices along an axis to the same offset.
pub(super) fn offsets(shape: &[usize], strides: Vec<usize>) -> Offsets {
    assert_eq!(shape.len(), strides.len(), "there is one stride for each axis");
    let left = shape.iter().product();
    Offsets { shape: shape.to_vec(), strides, index: vec![0; shape.len()], offset: 0, left }
}

/// The iterator of [`offsets`].
pub(super) struct Offsets {
    shape: Vec<usize>,
    strides: Vec<usize>,
    index: Vec<usize>,
    offset: usize,
    left: usize,
}

impl Iterator for Offsets {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let at = self.offset;
        for axis in (0..self.shape.len()).rev() {
            self.index[axis] += 1;
            self.offset += self.strides[axis];
            if self.index[axis] < self.shape[axis] {
                break;
            }
            self.offset -= self.strides[axis] * self.index[axis];
            self.index[axis] = 0;
        }
        Some(at)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

/// Returns the strides that read a tensor of shape `from` as one of shape `to`, to which it
/// broadcasts.
pub(super) fn broadcast_strides(from: &[usize], to: &[usize]) -> Vec<usize> {
    let own = strides(from);
    let missing = to.len() - from.len();
    (0..to.len()).map(|i| if i < missing || from[i - missing] == 1 { 0 } else { own[i - missing] }).collect()
}

/// Returns the offsets at which the slices along an axis start, and the stride along the axis.
pub(super) fn lanes(shape: &[usize], axis: usize) -> (impl Iterator<Item = usize> + use<>, usize) {
    let inner: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    let block = inner * shape[axis];
    ((0..outer).flat_map(move |o| (0..inner).map(move |i| o * block + i)), inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_dense_strides_count() {
        let shape = [2, 3, 4];
        assert!(offsets(&shape, strides(&shape)).eq(0..24));
    }

    #[test]
    fn offsets_of_a_transposed_matrix_go_down_its_columns() {
        assert_eq!(offsets(&[3, 2], vec![1, 3]).collect::<Vec<_>>(), [0, 3, 1, 4, 2, 5]);
    }

    #[test]
    fn a_shape_with_an_extent_of_zero_has_no_offsets() {
        assert_eq!(offsets(&[3, 0, 2], vec![0, 2, 1]).next(), None);
        assert_eq!(offsets(&[], vec![]).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn lanes_of_the_middle_axis_start_at_every_outer_and_inner_index() {
        let (starts, stride) = lanes(&[2, 3, 2], 1);
        assert_eq!((starts.collect::<Vec<_>>(), stride), (vec![0, 1, 6, 7], 2));
    }
}
