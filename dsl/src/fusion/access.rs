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
    while let Some(node) = graph.producer(value)
        && graph.ty(value).element().shape.known().is_some_and(|shape| !shape.contains(&0))
        && let Some(view) = view_map(graph, graph.node(node))
    {
        map = view.into_iter().map(|coord| coord.of(&map)).collect();
        value = graph.node(node).operands[0];
    }
    (value, map)
}
