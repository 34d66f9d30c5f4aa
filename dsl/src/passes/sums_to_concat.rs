//! Sums of adjacent slices.

use super::Pass;
use crate::Graph;
use crate::ir::{GraphBuilder, Node, Op, Region, Value};
use crate::ops::attributes::{Along, SliceTarget};
use crate::ops::prim;
use rustc_hash::FxHashMap;

/// Replaces a sum of zero-padded adjacent slices by one `concat`.
///
/// Such a sum arises as the gradient of a tensor whose slices are each used once, for example the
/// gates of a recurrent cell.
///
/// Before: verified. After: verified. A negative zero in a slice stays negative, whereas the sum
/// with zeros would make it positive. The sum is left unused, for `Dce` to remove.
#[derive(Clone, Copy, Debug)]
pub struct SumsToConcat;

impl Pass for SumsToConcat {
    fn name(&self) -> &'static str {
        "sums_to_concat"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        let uses = graph.use_counts();
        GraphBuilder::edit(graph, |graph| {
            let mut join = SumJoiner { graph, uses, sums: FxHashMap::default(), changed: false };
            join.region(join.graph.root());
            join.changed
        })
    }
}

struct SumJoiner<'g> {
    graph: &'g mut GraphBuilder,
    uses: Vec<u32>,
    /// The sums and padded slices that are used once. A larger sum takes their terms over.
    sums: FxHashMap<Value, PaddedSum>,
    changed: bool,
}

/// A sum of slices that are padded with zeros along one axis.
struct PaddedSum {
    axis: usize,
    /// The sum of the extents of all terms along the axis.
    extent: usize,
    terms: Vec<PaddedTerm>,
}

/// A term of a sum: zeros, except for `value` from index `start` on.
struct PaddedTerm {
    start: usize,
    value: Value,
}

impl SumJoiner<'_> {
    fn region(&mut self, region: Region) {
        let nodes = self.graph.region(region).nodes.clone();
        for node in nodes {
            self.graph.update_operands(node);
            self.node(node);
            for inner in self.graph.node(node).regions.clone() {
                self.region(inner);
            }
        }
        self.graph.update_yields(region);
    }

    fn node(&mut self, node: Node) {
        let data = self.graph.node(node);
        let Op::Prim(def, attrs) = &data.op else { return };
        let (def, result) = (*def, data.results[0]);
        let sum = match (def, &data.operands[..]) {
            (prim::UPDATE_SLICE, &[zeros, value]) => self.term(zeros, value, SliceTarget::of(attrs)),
            (prim::ADD, &[a, b]) => self.sum(a, b),
            _ => None,
        };
        let Some(mut sum) = sum else { return };
        if def == prim::ADD && self.is_whole(result, &mut sum) {
            self.join(node, sum);
        } else if self.uses[result.index()] == 1 {
            self.sums.insert(result, sum);
        }
    }

    fn term(&self, zeros: Value, value: Value, target: SliceTarget) -> Option<PaddedSum> {
        let SliceTarget { axis, start, step } = target;
        let extent = self.graph.ty(value).element().shape.known()?[axis];
        let is_padded = step == 1 && super::is_zero(self.graph, zeros);
        is_padded.then(|| PaddedSum { axis, extent, terms: vec![PaddedTerm { start, value }] })
    }

    /// Moves the terms of two sums that are used once into one sum.
    fn sum(&mut self, a: Value, b: Value) -> Option<PaddedSum> {
        let (a, b) = (self.sums.remove(&a)?, self.sums.remove(&b)?);
        // The longer list keeps its place, so that long chains are not copied again and again.
        let (mut sum, rest) = if a.terms.len() >= b.terms.len() { (a, b) } else { (b, a) };
        if sum.axis != rest.axis {
            return None;
        }
        sum.extent += rest.extent;
        sum.terms.extend(rest.terms);
        Some(sum)
    }

    /// Returns whether the terms are adjacent and fill a value, and sorts them.
    fn is_whole(&self, value: Value, sum: &mut PaddedSum) -> bool {
        let Some(extents) = self.graph.ty(value).element().shape.known() else { return false };
        if self.uses[value.index()] == 0 || sum.extent != extents[sum.axis] {
            return false;
        }
        sum.terms.sort_by_key(|term| term.start);
        let mut end = 0;
        sum.terms.iter().all(|term| {
            let is_next = term.start == end;
            end += self.graph.ty(term.value).element().shape.known().map_or(0, |part| part[sum.axis]);
            is_next
        })
    }

    fn join(&mut self, node: Node, sum: PaddedSum) {
        let result = self.graph.node(node).results[0];
        let terms: Vec<Value> = sum.terms.iter().map(|term| term.value).collect();
        let joined = self.graph.before(node).prim(prim::CONCAT, &terms, Along { axis: sum.axis });
        self.graph.replace(result, joined);
        self.changed = true;
    }
}
