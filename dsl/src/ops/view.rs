//! Views: operations whose result shows elements of the first operand at other indices.
//!
//! The definition of a view is a map: for each axis of the operand, the coordinate of an element as
//! a function of the index in the result. The reference implementation, fusion and devices read
//! through this map.

use super::elements::read;
use super::layout::strides;
use super::{EvalCx, OpError};
use crate::ir::Attrs;
use crate::{HostTensor, Shape};

/// The coordinate of a tensor along one of its axes, as a function of an index:
/// `offset + scale * index[axis]`, or `offset` if it depends on no axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coord {
    /// The coordinate at index 0.
    pub offset: usize,
    /// The axis of the index, and the distance between the elements of two adjacent indices.
    pub term: Option<(usize, isize)>,
}

impl Coord {
    /// The coordinate of a tensor of which element 0 is always read.
    pub const ZERO: Coord = Coord { offset: 0, term: None };

    /// Returns the coordinate that equals the index along an axis.
    pub fn axis(axis: usize) -> Coord {
        Coord { offset: 0, term: Some((axis, 1)) }
    }

    /// Returns the coordinate for an index that is itself computed from another one by a map.
    ///
    /// # Panics
    /// Panics if the coordinate of the first element is negative.
    #[must_use]
    pub fn of(self, map: &[Coord]) -> Coord {
        let Some((axis, scale)) = self.term else { return self };
        let Coord { offset, term } = map[axis];
        let offset = self.offset as isize + scale * offset as isize;
        let offset = usize::try_from(offset).expect("a coordinate is not negative");
        Coord { offset, term: term.map(|(axis, inner)| (axis, scale * inner)) }
    }

    /// Returns the smallest and the largest coordinate over all indices, or `None` if an axis is
    /// empty.
    pub fn range(self, axes: &[usize]) -> Option<[isize; 2]> {
        let first = self.offset as isize;
        let Some((axis, scale)) = self.term else { return Some([first, first]) };
        let last = first + scale * (axes[axis].checked_sub(1)? as isize);
        Some([first.min(last), first.max(last)])
    }
}

/// Returns the coordinates of the operand of a view at an index of its result, or `None` if an
/// extent that they depend on is not known.
pub type ViewMap = fn(&ViewCx<'_>) -> Option<Vec<Coord>>;

/// The definition of a view.
#[derive(Clone, Copy, Debug)]
pub struct ViewForm {
    /// The elements of the operand that the view contains.
    pub coverage: Coverage,
    /// Which element is at which index, or `None` for the elements in row-major order, whatever the
    /// shapes.
    pub map: Option<ViewMap>,
}

impl ViewForm {
    /// The elements in row-major order.
    pub const RESHAPED: ViewForm = ViewForm { coverage: Coverage::Whole, map: None };

    /// Returns a view of all elements.
    pub const fn whole(map: ViewMap) -> ViewForm {
        ViewForm { coverage: Coverage::Whole, map: Some(map) }
    }

    /// Returns a view of some elements.
    pub const fn part(map: ViewMap) -> ViewForm {
        ViewForm { coverage: Coverage::Part, map: Some(map) }
    }
}

/// The elements of the operand that a view contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// All of them, so the operand is not larger than the view.
    Whole,
    /// Some of them.
    Part,
}

/// The shapes and attributes of a view.
#[derive(Clone, Copy, Debug)]
pub struct ViewCx<'a> {
    /// The shapes of the operands.
    pub operands: &'a [&'a Shape],
    /// The shape of the result.
    pub result: &'a Shape,
    /// The static arguments.
    pub attrs: &'a Attrs,
}

impl ViewCx<'_> {
    /// Returns an extent of an operand.
    pub fn extent(&self, operand: usize, axis: usize) -> Option<usize> {
        self.operands[operand].dims()[axis].known()
    }

    /// Returns the coordinates of the index itself.
    pub(super) fn identity(&self) -> Vec<Coord> {
        (0..self.result.rank()).map(Coord::axis).collect()
    }
}

/// The reference implementation of all views.
pub(super) fn eval(cx: &EvalCx<'_>, form: ViewForm) -> Result<HostTensor, OpError> {
    let (x, shape) = (cx.operands[0], cx.shape());
    let Some(map) = form.map else { return Ok(x.reshaped(shape)) };
    let shapes: Vec<Shape> = cx.operands.iter().map(|operand| Shape::from(operand.shape().to_vec())).collect();
    let shapes: Vec<&Shape> = shapes.iter().collect();
    let map = map(&ViewCx { operands: &shapes, result: &cx.ty.shape, attrs: cx.attrs });
    let map = map.expect("the extents of operands are known");
    let (mut first, mut along) = (0, vec![0; shape.len()]);
    for (coord, stride) in map.iter().zip(strides(x.shape())) {
        first += coord.offset * stride;
        if let Some((axis, scale)) = coord.term {
            along[axis] += scale * stride as isize;
        }
    }
    Ok(read(cx, x, &mut signed_offsets(&shape, first, &along)))
}

/// Returns for every index of `shape`, in row-major order, its offset from the first one under
/// strides that may be negative.
fn signed_offsets(shape: &[usize], first: usize, strides: &[isize]) -> impl Iterator<Item = usize> {
    let mut index = vec![0; shape.len()];
    let mut offset = first as isize;
    let n: usize = shape.iter().product();
    (0..n).map(move |_| {
        let at = offset as usize;
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            offset += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            offset -= strides[axis] * index[axis] as isize;
            index[axis] = 0;
        }
        at
    })
}
