//! Cotangents that backward constructs take as operands and return, so that reads inside add to
//! them in place.
//!
//! A loop that reads rows of a tensor must not build a gradient of the whole tensor in each
//! iteration: the sum of these would take time proportional to the trip count times the size of the
//! tensor. So the cotangent of the tensor enters the backward loop, and each read adds the
//! elements that it has read. The same holds for lists, and for branches and loops inside.

use super::*;
use crate::ops::{OpClass, prim};

impl<'g> Sweep<'g> {
    /// Returns the captures whose cotangents a backward construct takes as operands and returns,
    /// each at its first occurrence: lists, and inside of forward constructs tensors of which
    /// `regions` read parts.
    pub(super) fn threaded_captures(&self, level: usize, captures: &[Value], regions: &[Region]) -> Vec<Option<Value>> {
        let mut seen = FxHashSet::default();
        let is_threaded = |v: Value| {
            self.graph(|g| match g.ty(v) {
                Type::List(_) => true,
                Type::Stack(_) => false,
                Type::Tensor(ty) => {
                    let params = |r: Region| g.entry(r).filter(move |&(_, outer)| outer == v).map(move |(p, _)| (r, p));
                    self.is_inside(level)
                        && ty.rank() > 0
                        && regions.iter().flat_map(|&r| params(r)).any(|(r, p)| reads_parts(g, r, p))
                }
            })
        };
        captures.iter().map(|&v| (self.is_active(v) && is_threaded(v) && seen.insert(v)).then_some(v)).collect()
    }

    /// Returns whether the forward region of a level is inside of a construct.
    pub(super) fn is_inside(&self, level: usize) -> bool {
        level > 0 || self.is_inside
    }

    /// Applies the results of a backward construct: replaces cotangents that were threaded through
    /// it, and adds to all others.
    pub(super) fn propagate_results(
        &self,
        cot: &mut Cotangents<'g>,
        parts: impl Iterator<Item = (Value, GradValue<'g>, bool)> + Clone,
        node: Node,
    ) {
        for (v, d, _) in parts.clone().filter(|&(.., whole)| whole) {
            self.came_from.borrow_mut().entry(v).or_insert(node);
            cot.insert(v, d);
        }
        for (v, d, _) in parts.filter(|&(.., whole)| !whole) {
            self.add(cot, v, d, Some(node));
        }
    }
}

/// The largest part of a tensor, as a divisor of its size, for which a gradient of a slice adds to
/// that part alone. The gradient of a larger one is padded with zeros, which other passes know, and
/// costs at most this many times as much.
const SMALL_PART: usize = 8;

/// Returns whether an operation reads a part of its first operand whose gradient is added to the
/// elements that were read alone: at indices, or a small slice.
pub(super) fn reads_part(g: &crate::Graph, data: &NodeData) -> bool {
    let Op::Prim(def, _) = &data.op else { return false };
    let size = |v: Value| g.ty(v).element().shape.size();
    match def.class {
        OpClass::Gather => true,
        _ if def == prim::SLICE => match (size(data.operands[0]), size(data.results[0])) {
            (Some(whole), Some(part)) => part.saturating_mul(SMALL_PART) <= whole && whole > SMALL_TENSOR,
            _ => false,
        },
        _ => false,
    }
}

/// The largest number of elements for which operations on a whole tensor cost about as much as on
/// one element.
const SMALL_TENSOR: usize = 64;

/// Returns whether a region, or a construct in it, reads parts of a value of the region.
fn reads_parts(g: &crate::Graph, region: Region, v: Value) -> bool {
    g.region(region).nodes.iter().any(|&node| {
        let data = g.node(node);
        if !data.operands.contains(&v) {
            return false;
        }
        match &data.op {
            Op::Prim(..) => reads_part(g, data) && data.operands[0] == v,
            op if op.is_construct() => data.regions.iter().any(|&inner| {
                let mut params = g.entry(inner).filter(|&(_, outer)| outer == v);
                params.any(|(param, _)| reads_parts(g, inner, param))
            }),
            _ => false,
        }
    })
}
