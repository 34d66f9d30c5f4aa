//! Helpers for passes that add nodes.

use crate::ir::{Attrs, Node, Op, Origin, Region, Value};
use crate::ops::Prim;
use crate::ops::attributes::{Along, Axes, DynamicSlice, Shaped, Slice};
use crate::{Graph, Type};

/// An insertion point for a new node.
#[derive(Clone, Copy)]
pub(super) enum InsertPoint {
    Before(Node),
    /// At the end of a region.
    End(Region),
}

/// Adds a primitive operation that cannot fail for these operands. Returns its result.
pub(super) fn add(g: &mut Graph, at: InsertPoint, op: Prim, operands: &[Value], attrs: Attrs, origin: Origin) -> Value {
    add_node(g, at, Op::Prim(op, attrs), operands, origin)
}

/// Adds a node with one result. Returns the result.
pub(super) fn add_node(g: &mut Graph, at: InsertPoint, op: Op, operands: &[Value], origin: Origin) -> Value {
    let region = match at {
        InsertPoint::Before(node) => g.node(node).region,
        InsertPoint::End(region) => region,
    };
    let node = g.make_node(region, op, operands.to_vec(), [], origin);
    let types = crate::ir::result_types(g, node).unwrap_or_else(|e| panic!("{}: {e:?}", g.node(node).op.name()));
    let result = g.add_result(node, types.into_iter().next().expect("the operation has a result"));
    match at {
        InsertPoint::Before(before) => g.insert_before(node, before),
        InsertPoint::End(_) => g.append(node),
    }
    result
}

/// Returns the extents of a matrix of floats.
pub(super) fn matrix(ty: &Type) -> Option<[usize; 2]> {
    let ty = ty.as_tensor().filter(|ty| ty.dtype.is_float())?;
    ty.shape.known()?.try_into().ok()
}

pub(super) fn shape(extents: &[usize]) -> Attrs {
    Shaped { shape: extents.to_vec().into() }.into()
}

pub(super) fn transposed() -> Attrs {
    Axes { axes: vec![1, 0] }.into()
}

pub(super) fn along(axis: usize) -> Attrs {
    Along { axis }.into()
}

pub(super) fn first_axis(size: Option<usize>) -> Attrs {
    match size {
        Some(size) => DynamicSlice { axis: 0, size }.into(),
        None => along(0),
    }
}

/// Returns the attributes of a slice of `n` columns of a matrix, from `start` on.
pub(super) fn columns(start: usize, n: usize) -> Attrs {
    Slice { axis: 1, start, end: start + n, step: 1 }.into()
}
