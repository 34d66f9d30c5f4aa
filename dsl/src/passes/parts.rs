//! Sums of adjacent slices.

use super::{Pass, made_by};
use crate::Graph;
use crate::ir::{Node, Op, Region, Replacements, Value};
use crate::ops::attributes::{Along, SliceTarget};
use crate::ops::prim;

/// Replaces a sum of zero-padded adjacent slices by one `concat`.
///
/// Such a sum arises as the gradient of a tensor whose slices are each used once, for example the
/// gates of a recurrent cell.
///
/// Before: verified. After: verified. A negative zero in a slice stays negative, whereas the sum
/// with zeros would make it positive. The sum is left unused, for `Dce` to remove.
#[derive(Clone, Copy, Debug)]
pub struct Parts;

impl Pass for Parts {
    fn name(&self) -> &'static str {
        "parts"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        let uses = graph.use_counts();
        let replaced = Replacements::new(graph);
        let mut join = Join { graph, uses, replaced, changed: false };
        join.region(join.graph.root());
        join.changed
    }
}

struct Join<'g> {
    graph: &'g mut Graph,
    uses: Vec<u32>,
    replaced: Replacements,
    changed: bool,
}

/// A term of a sum: zeros, except for `value` from index `start` on.
struct Part {
    start: usize,
    value: Value,
}

impl Join<'_> {
    fn region(&mut self, region: Region) {
        let nodes = self.graph.region(region).nodes.clone();
        for node in nodes {
            self.replaced.apply(&mut self.graph.node_mut(node).operands);
            self.node(node);
            for inner in self.graph.node(node).regions.clone() {
                self.region(inner);
            }
        }
        self.replaced.apply(&mut self.graph.region_mut(region).yields);
    }

    fn node(&mut self, node: Node) {
        let data = self.graph.node(node);
        let &[sum] = &data.results[..] else { return };
        // The last sum of a chain has all its terms.
        let is_sum = |v: Value| matches!(made_by(self.graph, v), Some((prim::ADD, _)));
        if !is_sum(sum) || self.uses[sum.index()] == 0 {
            return;
        }
        let mut parts = Vec::new();
        let Some(axis) = self.terms(sum, true, None, &mut parts) else { return };
        parts.sort_by_key(|p| p.start);
        let Some(extents) = self.graph.ty(sum).element().shape.known() else { return };
        let mut end = 0;
        for part in &parts {
            if part.start != end {
                return;
            }
            end += self.graph.ty(part.value).element().shape.known().map_or(0, |part| part[axis]);
        }
        if end != extents[axis] {
            return;
        }
        let (region, origin, ty) = (data.region, data.origin(), self.graph.ty(sum).clone());
        let def = prim::CONCAT;
        let attrs = Along { axis }.into();
        let operands = parts.iter().map(|p| p.value).collect();
        let concat = self.graph.make_node(region, Op::Prim(def, attrs), operands, [ty], origin);
        self.graph.insert_before(concat, node);
        let joined = self.graph.node(concat).results[0];
        self.replaced.replace(sum, joined);
        self.changed = true;
    }

    /// Collects the terms of a sum. Returns the axis along which all of them are padded.
    ///
    /// Inner sums must have exactly one use.
    fn terms(&self, v: Value, is_last: bool, axis: Option<usize>, parts: &mut Vec<Part>) -> Option<usize> {
        if !is_last && self.uses.get(v.index()) != Some(&1) {
            return None;
        }
        match made_by(self.graph, v)? {
            (prim::ADD, &[a, b]) => {
                let axis = self.terms(a, false, axis, parts)?;
                self.terms(b, false, Some(axis), parts)
            }
            (prim::UPDATE_SLICE, &[zeros, value]) => {
                let Op::Prim(_, attrs) = &self.graph.node(self.graph.producer(v)?).op else { return None };
                let SliceTarget { axis: own, start, step } = SliceTarget::of(attrs);
                let fits = axis.is_none_or(|axis| axis == own) && step == 1;
                if !fits || !super::is_zero(self.graph, zeros) {
                    return None;
                }
                parts.push(Part { start, value });
                Some(own)
            }
            _ => None,
        }
    }
}
