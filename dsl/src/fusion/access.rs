//! Access maps: the element of a tensor that a kernel reads at an index.

use super::AxisSet;
use crate::ir::{Graph, Op, Value};
use crate::ops::attributes::{Axes, Part, Slice};
use crate::ops::prim;

/// The coordinate of a tensor along one of its axes, as a function of the index of the kernel:
/// `offset + scale * index[axis]`, or `offset` if it depends on no axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coord {
    /// The coordinate at index 0.
    pub offset: usize,
    /// The axis of the kernel, and the distance between the elements of two adjacent indices.
    pub term: Option<(usize, isize)>,
}

impl Coord {
    /// The coordinate of a tensor of which element 0 is always read.
    pub const ZERO: Coord = Coord { offset: 0, term: None };

    /// Returns the coordinate that equals the index of an axis.
    pub fn axis(axis: usize) -> Coord {
        Coord { offset: 0, term: Some((axis, 1)) }
    }

    /// Returns the coordinate `start + step * self`.
    fn then(self, start: usize, step: isize) -> Coord {
        let offset = start as isize + step * self.offset as isize;
        let offset = usize::try_from(offset).expect("a coordinate is not negative");
        Coord { offset, term: self.term.map(|(axis, scale)| (axis, step * scale)) }
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

/// Returns the axes along which the element that is read varies.
pub(super) fn varies_along(map: &[Coord]) -> AxisSet {
    map.iter().filter_map(|coord| coord.term).map(|(axis, _)| axis).collect()
}

/// Returns the tensor of which a value of known shape is a view, and the coordinates of its element
/// for an element of the value. A value that is no view is a view of itself.
pub fn viewed(graph: &Graph, value: Value) -> (Value, Vec<Coord>) {
    let rank = graph.ty(value).element().shape.rank();
    through_views(graph, value, (0..rank).map(Coord::axis).collect())
}

/// Returns the tensor of which a value is a view, and the coordinates of its element for an element
/// of the value. Reshapes and operations other than views end the search, and so do views without
/// elements, which may begin outside of what they view.
pub(super) fn through_views(graph: &Graph, mut value: Value, mut map: Vec<Coord>) -> (Value, Vec<Coord>) {
    while let Some(node) = graph.producer(value)
        && let data = graph.node(node)
        && let Op::Prim(op, attrs) = &data.op
        && let Some(&operand) = data.operands.first()
        && let Some(shape) = graph.ty(operand).element().shape.known()
        && let Some(result) = graph.ty(value).element().shape.known()
        && !result.contains(&0)
    {
        match *op {
            prim::BROADCAST_TO | prim::BROADCAST_LIKE => {
                map.drain(..map.len() - shape.len());
                let repeats = shape.iter().zip(&result[result.len() - shape.len()..]).map(|(from, to)| from != to);
                map.iter_mut().zip(repeats).filter(|(_, repeats)| *repeats).for_each(|(coord, _)| *coord = Coord::ZERO);
            }
            prim::PERMUTE => {
                let mut of_operand = vec![Coord::ZERO; map.len()];
                Axes::of(attrs).axes.into_iter().zip(map).for_each(|(axis, coord)| of_operand[axis] = coord);
                map = of_operand;
            }
            prim::FLIP => {
                Axes::of(attrs).axes.into_iter().for_each(|axis| map[axis] = map[axis].then(shape[axis] - 1, -1));
            }
            prim::SLICE => {
                let Slice { axis, start, step, .. } = Slice::of(attrs);
                map[axis] = map[axis].then(start, step as isize);
            }
            prim::CONCAT_PART => {
                let Part { axis, part } = Part::of(attrs);
                let extent = |v: &Value| graph.ty(*v).element().shape.dims()[axis].known();
                let before = data.operands[1..=part].iter().map(extent).sum::<Option<usize>>();
                let Some(start) = before else { return (value, map) };
                map[axis] = map[axis].then(start, 1);
            }
            _ => return (value, map),
        }
        value = operand;
    }
    (value, map)
}
