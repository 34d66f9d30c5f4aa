//! Axes as users specify them, and as attributes store them.
//!
//! Users count axes from the front (0, 1, ...) or from the end (-1, -2, ...). Attributes hold them
//! counted from the front, ascending and without duplicates. The methods of
//! [`AnyValue`](crate::AnyValue) convert them.

use super::OpError;
use crate::Shape;

/// One or several axes. A negative axis is counted from the end: `-1`, `[0, 2]`, `&axes[..]`.
#[diagnostic::on_unimplemented(
    message = "a value of type `{Self}` does not specify axes",
    label = "expected axes: host integers, where negative ones count from the last axis",
    note = "write one axis, such as `-1`, or several, such as `[0, 2]` or `&axes[..]`",
    note = "for an elementwise operation on two tensors write `x.minimum(y)`, `x.maximum(y)` or `x + y`"
)]
pub trait IntoAxes {
    /// Returns the axes as specified.
    fn to_axes(&self) -> Vec<isize>;
}

macro_rules! into_axes {
    ($($t:ty)*) => {$(
        impl IntoAxes for $t {
            fn to_axes(&self) -> Vec<isize> { vec![*self as isize] }
        }
        impl<const N: usize> IntoAxes for [$t; N] {
            fn to_axes(&self) -> Vec<isize> { self.iter().map(|&a| a as isize).collect() }
        }
        impl IntoAxes for &[$t] {
            fn to_axes(&self) -> Vec<isize> { self.iter().map(|&a| a as isize).collect() }
        }
        impl IntoAxes for Vec<$t> {
            fn to_axes(&self) -> Vec<isize> { self.iter().map(|&a| a as isize).collect() }
        }
    )*};
}
into_axes!(i32 isize usize);

/// The extents of a reshaped tensor. At most one extent is -1 and is inferred from the other
/// extents.
pub trait IntoExtents {
    /// Returns the shape, with the inferred extent unknown.
    fn to_shape(&self) -> Shape;
}

macro_rules! into_extents {
    ($($t:ty)*) => {$(
        impl<const N: usize> IntoExtents for [$t; N] {
            fn to_shape(&self) -> Shape { self.as_slice().to_shape() }
        }
        impl IntoExtents for Vec<$t> {
            fn to_shape(&self) -> Shape { self.as_slice().to_shape() }
        }
        impl IntoExtents for [$t] {
            fn to_shape(&self) -> Shape {
                let dim = |&n: &$t| usize::try_from(n).map_or(crate::Dim::Unknown, crate::Dim::Known);
                self.iter().map(dim).collect()
            }
        }
        impl IntoExtents for &[$t] {
            fn to_shape(&self) -> Shape { (**self).to_shape() }
        }
    )*};
}
into_extents!(i32 isize usize);

impl IntoExtents for Shape {
    fn to_shape(&self) -> Shape {
        self.clone()
    }
}
impl IntoExtents for &Shape {
    fn to_shape(&self) -> Shape {
        (*self).clone()
    }
}
impl IntoExtents for () {
    fn to_shape(&self) -> Shape {
        Shape::scalar()
    }
}

/// Returns an axis counted from the front.
pub(super) fn axis(axis: isize, rank: usize) -> Result<usize, OpError> {
    let counted = if axis < 0 { axis + rank as isize } else { axis };
    if (0..rank as isize).contains(&counted) {
        return Ok(counted as usize);
    }
    let error = OpError::new(format!("axis {axis} is out of bounds for a tensor of rank {rank}"));
    Err(match rank {
        0 => error.help("a scalar has no axes"),
        _ => error.help(format!("axes are 0 to {}, or -1 to -{rank} counted from the last", rank - 1)),
    })
}

/// Returns the help for an index that is out of bounds.
pub(super) fn indices(extent: usize) -> String {
    match extent.checked_sub(1) {
        None => "the axis has no elements".to_owned(),
        Some(last) => format!("indices are 0 to {last}"),
    }
}

/// Returns the help for a host index that is out of bounds, which may count from the end.
pub(super) fn host_indices(extent: usize) -> String {
    match extent {
        0 => indices(0),
        n => format!("{}, or -1 to -{n} counted from the end", indices(n)),
    }
}

/// Returns axes counted from the front, ascending and without duplicates.
pub(super) fn axes(axes: &[isize], rank: usize) -> Result<Vec<usize>, OpError> {
    let mut counted = axes.iter().map(|&a| axis(a, rank)).collect::<Result<Vec<_>, _>>()?;
    counted.sort_unstable();
    match counted.windows(2).find(|w| w[0] == w[1]) {
        Some(twice) => {
            let error = OpError::new(format!("axis {} is given twice in {axes:?}", twice[0]));
            Err(error.help("list each axis once; negative axes count from the last"))
        }
        None => Ok(counted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_axes_count_from_the_back() {
        assert_eq!(axes(&[-1, 0], 3), Ok(vec![0, 2]));
        assert_eq!(axis(-3, 3), Ok(0));
    }

    #[test]
    fn axes_out_of_range_name_axis_and_rank() {
        assert_eq!(axis(2, 2).unwrap_err().message, "axis 2 is out of bounds for a tensor of rank 2");
        assert_eq!(axis(-1, 0).unwrap_err().help.as_deref(), Some("a scalar has no axes"));
    }

    #[test]
    fn an_axis_given_twice_is_refused() {
        assert_eq!(axes(&[0, -2], 2).unwrap_err().message, "axis 0 is given twice in [0, -2]");
    }
}
