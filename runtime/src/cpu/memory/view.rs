//! Views: strided windows into buffers, registers and host tensors.

use super::storage::{BufferId, Reg};
use anabranch_dsl::DType;
use anabranch_dsl::fusion::Coord;

/// The storage that a view refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Base {
    /// A buffer of the arena.
    Buffer(BufferId),
    /// A register, read as one element.
    Reg(Reg),
    /// An input of the call.
    Input(u32),
    /// A constant of the plan.
    Constant(u32),
    /// The value of a variable at the beginning of the step.
    Var(u32),
}

/// A strided window. Element `[i, j, ..]` is element
/// `offset + i * strides[0] + j * strides[1] + ..` of its base.
///
/// Invariant: every element is inside the base. Strides may be 0 (broadcast) and negative (flip).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) base: Base,
    pub(crate) dtype: DType,
    pub(crate) offset: usize,
    pub(crate) shape: Vec<usize>,
    pub(crate) strides: Vec<isize>,
}

/// The memory layout of a tensor: the order of its axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryLayout {
    /// Row-major: `[batch, channels, ..]`.
    RowMajor,
    /// The second axis after all others: `[batch, .., channels]`.
    ChannelsLast,
}

impl MemoryLayout {
    /// Returns the axes of a tensor, outermost first.
    pub(crate) fn axes(self, rank: usize) -> Vec<usize> {
        match self {
            MemoryLayout::RowMajor => (0..rank).collect(),
            MemoryLayout::ChannelsLast => [0].into_iter().chain(2..rank).chain([1]).collect(),
        }
    }
}

/// Returns the strides of a row-major tensor.
pub(crate) fn row_major(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1) as isize;
    }
    strides
}

impl View {
    /// Returns a row-major view of a whole base.
    pub(crate) fn whole(base: Base, dtype: DType, shape: Vec<usize>) -> View {
        View { base, dtype, offset: 0, strides: row_major(&shape), shape }
    }

    /// Returns the number of elements.
    pub(crate) fn size(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the size of the elements in bytes.
    pub(crate) fn n_bytes(&self) -> usize {
        self.size() * self.dtype.size()
    }

    /// Returns whether the elements are contiguous in row-major order.
    pub(crate) fn is_contiguous(&self) -> bool {
        if self.shape.contains(&0) {
            return true;
        }
        let mut expected = 1;
        for (&n, &s) in self.shape.iter().zip(&self.strides).rev() {
            if n != 1 {
                if s != expected {
                    return false;
                }
                expected *= n as isize;
            }
        }
        true
    }

    /// Returns the view of a shape whose elements are at coordinates of this one.
    pub(crate) fn through(&self, map: &[Coord], shape: &[usize]) -> View {
        let mut strides = vec![0; shape.len()];
        let mut offset = self.offset as isize;
        for (coord, &stride) in map.iter().zip(&self.strides) {
            offset += coord.offset as isize * stride;
            if let Some((axis, scale)) = coord.term {
                strides[axis] += scale * stride;
            }
        }
        // A view without elements may begin outside of what it views.
        let offset = if shape.contains(&0) { self.offset } else { offset as usize };
        View { offset, strides, shape: shape.to_vec(), ..self.clone() }
    }

    /// Returns a view of the same elements, broadcast to `shape`.
    pub(crate) fn broadcast_to(&self, shape: &[usize]) -> View {
        let missing = shape.len() - self.shape.len();
        let strides = (0..shape.len())
            .map(|i| match i.checked_sub(missing) {
                Some(j) if self.shape[j] == shape[i] => self.strides[j],
                _ => 0,
            })
            .collect();
        View { shape: shape.to_vec(), strides, ..self.clone() }
    }

    /// Returns the view with its axes permuted.
    pub(crate) fn permute(&self, axes: &[usize]) -> View {
        View {
            shape: axes.iter().map(|&a| self.shape[a]).collect(),
            strides: axes.iter().map(|&a| self.strides[a]).collect(),
            ..self.clone()
        }
    }

    /// Returns `ChannelsLast` if the elements are contiguous only in that layout, otherwise
    /// `RowMajor`.
    pub(crate) fn order(&self) -> MemoryLayout {
        let is_last = || self.arranged(MemoryLayout::ChannelsLast).is_contiguous();
        if self.shape.len() > 2 && !self.is_contiguous() && is_last() {
            MemoryLayout::ChannelsLast
        } else {
            MemoryLayout::RowMajor
        }
    }

    /// Returns the view with its axes permuted into a memory layout.
    pub(crate) fn arranged(&self, order: MemoryLayout) -> View {
        self.permute(&order.axes(self.shape.len()))
    }

    /// Returns the inverse permutation of [`arranged`](View::arranged).
    pub(crate) fn restored(&self, order: MemoryLayout) -> View {
        let axes = order.axes(self.shape.len());
        let mut back = vec![0; axes.len()];
        axes.iter().enumerate().for_each(|(to, &from)| back[from] = to);
        self.permute(&back)
    }

    /// Returns `n` elements of one axis: `start`, `start + step` and so on.
    pub(crate) fn slice(&self, axis: usize, start: usize, n: usize, step: isize) -> View {
        let mut view = self.clone();
        if n > 0 && self.size() > 0 {
            view.offset = (view.offset as isize + start as isize * view.strides[axis]) as usize;
        }
        view.shape[axis] = n;
        view.strides[axis] *= step;
        view
    }

    /// Reshapes the view without copying. Returns `None` if strides cannot express the result.
    pub(crate) fn reshape(&self, shape: &[usize]) -> Option<View> {
        if self.size() == 0 || self.is_contiguous() {
            return Some(View { shape: shape.to_vec(), strides: row_major(shape), ..self.clone() });
        }
        // Ignore axes of extent 1. Each group of old axes must then be uniformly strided to be
        // split into a group of new axes.
        let old: Vec<(usize, isize)> =
            self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|&(n, _)| n != 1).collect();
        let mut strides = vec![0; shape.len()];
        let (mut i, mut j) = (0, 0);
        while i < old.len() {
            let (first_new, first_old) = (j, i);
            let mut n_old = old[i].0;
            i += 1;
            let mut n_new = 1;
            while n_new != n_old {
                if n_new < n_old {
                    n_new *= shape[j];
                    j += 1;
                } else {
                    n_old *= old[i].0;
                    i += 1;
                }
            }
            if old[first_old..i].windows(2).any(|w| w[0].1 != w[1].1 * w[1].0 as isize) {
                return None;
            }
            let mut stride = old[i - 1].1;
            for k in (first_new..j).rev() {
                strides[k] = stride;
                stride *= shape[k] as isize;
            }
        }
        Some(View { shape: shape.to_vec(), strides, ..self.clone() })
    }

    /// Iterates over the index in the base of every element, in row-major order.
    pub(crate) fn offsets(&self) -> ViewOffsets<'_> {
        ViewOffsets { view: self, index: vec![0; self.shape.len()], next: self.offset as isize, left: self.size() }
    }

    /// Returns whether another view refers to the same elements in the same order.
    pub(crate) fn same_places(&self, other: &View) -> bool {
        let steps = |v: &View| {
            v.shape.iter().zip(&v.strides).filter(|&(&n, _)| n != 1).map(|(&n, &s)| (n, s)).collect::<Vec<_>>()
        };
        self.base == other.base
            && self.offset == other.offset
            && self.dtype.size() == other.dtype.size()
            && steps(self) == steps(other)
    }
}

/// See [`View::offsets`].
pub(crate) struct ViewOffsets<'a> {
    view: &'a View,
    index: Vec<usize>,
    next: isize,
    left: usize,
}

impl Iterator for ViewOffsets<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let this = self.next;
        for axis in (0..self.index.len()).rev() {
            self.index[axis] += 1;
            self.next += self.view.strides[axis];
            if self.index[axis] < self.view.shape[axis] {
                break;
            }
            self.next -= self.view.strides[axis] * self.view.shape[axis] as isize;
            self.index[axis] = 0;
        }
        Some(this as usize)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(shape: &[usize]) -> View {
        View::whole(Base::Input(0), DType::F32, shape.to_vec())
    }
    fn offsets(v: &View) -> Vec<usize> {
        v.offsets().collect()
    }

    #[test]
    fn views_compose() {
        let v = view(&[2, 3]);
        assert_eq!(offsets(&v.permute(&[1, 0])), [0, 3, 1, 4, 2, 5]);
        assert_eq!(offsets(&v.slice(1, 2, 3, -1)), [2, 1, 0, 5, 4, 3]);
        let (last, images) = (view(&[2, 4, 5, 3]), view(&[2, 3, 4, 5]));
        assert_eq!(last.restored(MemoryLayout::ChannelsLast).shape, images.shape);
        assert_eq!(last.restored(MemoryLayout::ChannelsLast).arranged(MemoryLayout::ChannelsLast), last);
        assert_eq!([last.order(), images.order()], [MemoryLayout::RowMajor; 2]);
        assert_eq!(last.restored(MemoryLayout::ChannelsLast).order(), MemoryLayout::ChannelsLast);
        assert_eq!(
            view(&[2, 1, 4, 5]).arranged(MemoryLayout::ChannelsLast).order(),
            MemoryLayout::RowMajor,
            "it is both"
        );
        assert_eq!(offsets(&v.slice(1, 1, 2, 1)), [1, 2, 4, 5]);
        assert_eq!(offsets(&v.slice(0, 1, 1, 1).broadcast_to(&[2, 2, 3])), [3, 4, 5, 3, 4, 5, 3, 4, 5, 3, 4, 5]);
        assert!(v.is_contiguous() && !v.slice(0, 1, 2, -1).is_contiguous());
        assert!(v.slice(0, 1, 1, 1).is_contiguous());
    }

    #[test]
    fn reshape_is_a_view_where_strides_can_say_it() {
        let v = view(&[4, 6]);
        let t = v.slice(1, 0, 4, 1);
        assert_eq!(offsets(&t.reshape(&[2, 2, 2, 2]).expect("splits axes")), offsets(&t));
        assert_eq!(offsets(&t.reshape(&[4, 1, 4]).expect("adds an axis")), offsets(&t));
        assert!(t.reshape(&[16]).is_none(), "rows are apart");
        assert!(v.permute(&[1, 0]).reshape(&[24]).is_none());
        let b = view(&[3]).broadcast_to(&[2, 3]);
        assert_eq!(offsets(&b.reshape(&[2, 3, 1]).expect("keeps the broadcast")), offsets(&b));
        assert_eq!(view(&[0, 3]).reshape(&[3, 0]).map(|v| v.size()), Some(0));
    }
}
