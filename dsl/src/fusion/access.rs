//! Access maps: the element of a tensor that a kernel reads at an index.

use super::AxisSet;
use crate::Shape;
use crate::ir::Op;
use crate::ir::{Graph, NodeData, Value};
use crate::ops::{Coord, OpClass, ViewCx};

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

/// Returns the coordinates of the first operand of a view at an index of its result, or `None` for
/// reshapes, other operations and unknown extents.
pub fn view_map(graph: &Graph, node: &NodeData) -> Option<Vec<Coord>> {
    let Op::Prim(op, attrs) = &node.op else { return None };
    let OpClass::View(view) = op.class else { return None };
    let shape = |v: &Value| &graph.ty(*v).element().shape;
    let operands: Vec<&Shape> = node.operands.iter().map(shape).collect();
    let result = shape(&node.results[0]);
    operands[0].known().and(result.known())?;
    (view.map?)(&ViewCx { operands: &operands, result, attrs })
}

/// Returns the tensor of which a value is a view, and the coordinates of its element for an element
/// of the value. Reshapes and operations other than views end the search, and so do views without
/// elements, which may begin outside of what they view.
pub(super) fn through_views(graph: &Graph, mut value: Value, mut map: Vec<Coord>) -> (Value, Vec<Coord>) {
    while let Some((operand, view)) = view_of(graph, value) {
        map = view.into_iter().map(|coord| coord.of(&map)).collect();
        value = operand;
    }
    (value, map)
}

/// Returns the operand of a view with elements, and its coordinates.
fn view_of(graph: &Graph, value: Value) -> Option<(Value, Vec<Coord>)> {
    let node = graph.node(graph.producer(value)?);
    graph.ty(value).element().shape.known().filter(|shape| !shape.contains(&0))?;
    let map = view_map(graph, node)?;
    Some((node.operands[0], map))
}

/// Like [`through_views`], for a tensor that is read at an index along an axis: also returns the
/// axis of the tensor that is found, and the factor of the index in its coordinate. Returns `None`
/// if a view does not depend on the index along the axis.
pub(super) fn through_indexed_views(
    graph: &Graph,
    mut value: Value,
    mut map: Vec<Coord>,
    (mut axis, mut scale): (usize, isize),
) -> Option<(Value, Vec<Coord>, (usize, isize))> {
    while let Some((operand, view)) = view_of(graph, value) {
        let along = |coord: &Coord| coord.term.filter(|(of, _)| *of == axis);
        let mut depends = view.iter().enumerate().filter_map(|(i, coord)| Some((i, along(coord)?.1)));
        let (Some((to, factor)), None) = (depends.next(), depends.next()) else { return None };
        map = view.iter().map(|coord| coord.of(&map)).collect();
        (value, axis, scale) = (operand, to, scale * factor);
    }
    Some((value, map, (axis, scale)))
}
