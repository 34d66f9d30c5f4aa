//! Windows over the last axes of a tensor, shared by convolutions and pooling.
//!
//! Along each of these axes a window has an extent and moves by a stride, and its elements are
//! `dilation` apart. The tensor is padded on both sides. Element `j` of the window at position `i`
//! is element `i * stride + j * dilation - low` of the tensor, or padding if there is no such
//! element.

use super::{Attrs, Conv, InGraph, OpError, Pool, ValueCx, refuse};
use crate::{Dim, Shape, TensorType};

/// A number for each of `D` axes: `2` is the same for all, `[2, 1]` differs per axis.
pub trait PerAxis<const D: usize> {
    /// Returns the number for each axis.
    fn per_axis(self) -> [usize; D];
}

impl<const D: usize> PerAxis<D> for usize {
    fn per_axis(self) -> [usize; D] {
        [self; D]
    }
}
impl<const D: usize> PerAxis<D> for [usize; D] {
    fn per_axis(self) -> [usize; D] {
        self
    }
}

/// The extent of a window: `3` along the last two axes, as of images, or `[3]`, `[3, 2]`,
/// `[3, 2, 2]` along as many axes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a window over {D} axes",
    label = "expected one extent for each of {D} axes",
    note = "a single number is a window over two axes; for one or three axes write one number for each, as in `[3]` \
            and `[3, 3, 3]`"
)]
pub trait WindowExtent<const D: usize> {
    /// The extent along each axis.
    fn extents(self) -> [usize; D];
}

impl WindowExtent<2> for usize {
    fn extents(self) -> [usize; 2] {
        [self; 2]
    }
}
impl<const D: usize> WindowExtent<D> for [usize; D] {
    fn extents(self) -> [usize; D] {
        self
    }
}

/// The padding of a tensor before its windows are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Padding<const D: usize> {
    /// The amount of padding before and after each axis.
    Sides([(usize, usize); D]),
    /// The amount that yields one window for every `stride` elements.
    Same,
}

impl<const D: usize> Padding<D> {
    pub(super) fn symmetric(padding: impl PerAxis<D>) -> Padding<D> {
        Padding::Sides(padding.per_axis().map(|p| (p, p)))
    }

    /// Returns the padding before and after each axis, for windows of these extents.
    ///
    /// If the total is odd, the extra element is padded at the end.
    #[track_caller]
    pub(super) fn of<C: ValueCx>(
        self,
        op: &str,
        x: &TensorType,
        window: &[Dim],
        strides: [usize; D],
        dilation: [usize; D],
    ) -> [(usize, usize); D] {
        let Padding::Same = self else {
            let Padding::Sides(sides) = self else { unreachable!("the other variant") };
            return sides;
        };
        let first = x.rank().saturating_sub(D);
        std::array::from_fn(|i| {
            let extent = x.shape.dims().get(first + i).and_then(Dim::known);
            let reach = window.get(i).and_then(Dim::known).map(|n| dilation[i].saturating_mul(n.saturating_sub(1)));
            let total = match (extent, reach) {
                (_, Some(reach)) if strides[i] == 1 => reach,
                (Some(n), Some(reach)) => {
                    let last = n.div_ceil(strides[i].max(1)).saturating_sub(1) * strides[i];
                    last.saturating_add(reach).saturating_add(1).saturating_sub(n)
                }
                _ => {
                    let error = OpError::new(format!("`same` padding needs a known extent of axis {}", first + i));
                    refuse::<C>(op, error.label(x.to_string()).help("specify the padding of each side"))
                }
            };
            (total / 2, total - total / 2)
        })
    }
}

/// Returns the padding before and after each axis, in order.
pub(super) fn sides<const D: usize>(padding: [(usize, usize); D]) -> Vec<usize> {
    padding.into_iter().flat_map(|(low, high)| [low, high]).collect()
}

/// Windows over the last axes of a tensor.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    pub(super) strides: Vec<usize>,
    pub(super) padding: Vec<(usize, usize)>,
    pub(super) dilation: Vec<usize>,
}

impl Windows {
    /// Creates windows from checked attributes.
    pub(super) fn new(strides: Vec<usize>, padding: &[usize], dilation: Vec<usize>) -> Windows {
        Windows { strides, padding: padding.chunks(2).map(|s| (s[0], s[s.len() - 1])).collect(), dilation }
    }

    /// Returns the windows of a convolution.
    pub(super) fn of_conv(attrs: &Attrs) -> Windows {
        let Conv { strides, padding, dilation, .. } = Conv::of(attrs);
        Windows::new(strides, &padding, dilation)
    }

    /// Returns the windows of a pooling.
    pub(super) fn of_pool(attrs: &Attrs) -> Windows {
        let Pool { strides, padding, .. } = Pool::of(attrs);
        let dilation = vec![1; strides.len()];
        Windows::new(strides, &padding, dilation)
    }

    /// Checks attributes and creates windows from them.
    pub(super) fn checked(strides: Vec<usize>, padding: &[usize], dilation: Vec<usize>) -> Result<Windows, OpError> {
        let n = strides.len();
        if !(1..=3).contains(&n) {
            let error = OpError::new(format!("windows must have 1 to 3 axes, not {n}"));
            return Err(error.help("give a stride for each axis of the window"));
        }
        if dilation.len() != n || padding.len() != 2 * n {
            let error = OpError::new("strides, padding and dilation must have the same number of axes");
            return Err(error.help("padding has two numbers for each axis: before and after"));
        }
        for (name, numbers) in [("strides", &strides), ("dilation", &dilation)] {
            if numbers.contains(&0) {
                let error = OpError::new(format!("{name} {numbers:?} must be at least 1"));
                return Err(error.help("1 is the default"));
            }
        }
        Ok(Windows::new(strides, padding, dilation))
    }

    /// Returns the number of axes.
    pub(super) fn rank(&self) -> usize {
        self.strides.len()
    }

    /// Returns the number of windows of extent `window` along an axis of extent `n`, or `None` if
    /// none fits.
    pub(super) fn count(&self, axis: usize, n: usize, window: usize) -> Option<usize> {
        let (low, high) = self.padding[axis];
        let reach = self.dilation[axis].checked_mul(window.checked_sub(1)?)?.checked_add(1)?;
        let room = (n.checked_add(low)?.checked_add(high)?).checked_sub(reach)?;
        Some(room / self.strides[axis] + 1)
    }

    /// Returns the number of window positions along each axis.
    pub(super) fn counts(&self, x: &[Dim], window: &[Dim], ty: &TensorType) -> Result<Vec<Dim>, OpError> {
        let count = |i: usize| match (&x[i], &window[i]) {
            (_, Dim::Known(0)) => {
                let error = OpError::new(format!("the window has extent 0 along axis {}", ty.rank() - self.rank() + i));
                Err(error.label(ty.to_string()).help("the extents of a window are at least 1"))
            }
            (Dim::Known(n), Dim::Known(k)) => match self.count(i, *n, *k) {
                Some(count) => Ok(Dim::Known(count)),
                None => {
                    let (axis, (low, high)) = (ty.rank() - self.rank() + i, self.padding[i]);
                    let reach = self.dilation[i].saturating_mul(k - 1).saturating_add(1);
                    let all = n.saturating_add(low).saturating_add(high);
                    let padded = if all > *n { format!(" padded to {all}") } else { String::new() };
                    let error = OpError::new(format!(
                        "a window that covers {reach} elements does not fit into axis {axis} of extent {n}{padded}"
                    ));
                    Err(error.label(ty.to_string()).help("pad the tensor, or use a smaller window"))
                }
            },
            // One window for each element, even if the extent is unknown.
            (dim, Dim::Known(k))
                if self.strides[i] == 1
                    && self.padding[i].0.checked_add(self.padding[i].1) == self.dilation[i].checked_mul(k - 1) =>
            {
                Ok(dim.clone())
            }
            _ => Ok(Dim::Unknown),
        };
        (0..self.rank()).map(count).collect()
    }

    /// Calls `f(position, element of the window, element of the tensor)` for every pair of a window
    /// element and a tensor element.
    ///
    /// Each argument is an offset in a contiguous tensor of the given extents. Positions are
    /// visited in order, and the elements of each window in order.
    pub(super) fn for_each(
        &self,
        positions: &[usize],
        window: &[usize],
        x: &[usize],
        f: &mut dyn FnMut(usize, usize, usize),
    ) {
        let rank = self.rank();
        let index = |extents: &[usize], mut offset: usize| {
            let mut index = [0; 3];
            for axis in (0..rank).rev() {
                index[axis] = offset % extents[axis];
                offset /= extents[axis];
            }
            index
        };
        for position in 0..positions.iter().product() {
            let at = index(positions, position);
            for element in 0..window.iter().product() {
                let within = index(window, element);
                let meets = (0..rank).try_fold(0, |offset, axis| {
                    let i = at[axis] * self.strides[axis] + within[axis] * self.dilation[axis];
                    let i = i.checked_sub(self.padding[axis].0).filter(|&i| i < x[axis])?;
                    Some(offset * x[axis] + i)
                });
                if let Some(meets) = meets {
                    f(position, element, meets);
                }
            }
        }
    }
}

/// Returns extents that a gradient needs as an attribute.
#[track_caller]
pub(super) fn extents_for_gradient(op: &str, ty: &TensorType, from: usize) -> Shape {
    let extents = Shape::from(&ty.shape.dims()[from..]);
    if !extents.is_definite() {
        let error = OpError::new(format!("the gradient needs known extents, not {extents}")).label(ty.to_string());
        refuse::<InGraph<'_>>(op, error.help("give the function a concrete signature"));
    }
    extents
}

/// Checks that a tensor has the rank for windows over its last axes, with some axes before them.
pub(super) fn check_rank(ty: &TensorType, windows: &Windows, before: &str) -> Result<(), OpError> {
    let (n, d) = (windows.rank(), ty.rank());
    let error = match before {
        "" if d < n => OpError::new(format!("rank {d} is less than the {n} axes of the window")),
        "" => return Ok(()),
        _ if d != n + 2 => {
            OpError::new(format!("rank {d}, not {}: expected {before} and the axes of the window", n + 2))
        }
        _ => return Ok(()),
    };
    Err(error.label(ty.to_string()).help("insert missing axes with `.unsqueeze(axis)`"))
}
