//! Common subexpression elimination.

use super::Pass;
use super::node_index::{NodeIndex, is_mergeable};
use crate::ir::{CallKind, GraphBuilder, Node, Op, Region, Value};
use crate::{Graph, Type};
use rustc_hash::{FxHashMap, FxHashSet};

/// Merges equal nodes of a region, and captures of the same value with the same types.
///
/// Before: verified. After: verified, and no two equal nodes of a region always compute the same
/// value. Such nodes are constants, reads of a variable, and primitives (one that may fail has
/// failed the first time). Operands of a commutative operation may be in any order. The first node
/// is kept. Nodes with different device constraints are not equal.
///
/// Nodes of different regions are not merged, since a loop body may run zero times. Stacks and
/// lists are left alone, because engines update them in place while they have one use. Tensors read
/// from a list are merged like others.
#[derive(Clone, Copy, Debug)]
pub struct Cse;

impl Pass for Cse {
    fn name(&self) -> &'static str {
        "cse"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        GraphBuilder::edit(graph, |graph| {
            let mut cse = NodeMerger { graph, changed: false };
            cse.region(cse.graph.root());
            cse.changed
        })
    }
}

struct NodeMerger<'g> {
    graph: &'g mut GraphBuilder,
    changed: bool,
}

impl NodeMerger<'_> {
    fn region(&mut self, region: Region) {
        let nodes = self.graph.take_nodes(region);
        let mut index = NodeIndex::with_capacity(nodes.len());
        for node in nodes {
            self.graph.update_operands(node);
            self.captures(node);
            for inner in self.graph.node(node).regions.clone() {
                self.region(inner);
            }
            if is_mergeable(&self.graph.node(node).op)
                && let Some(first) = index.find_or_add(self.graph, node, |v| v)
            {
                let [new, old] = [first, node].map(|node| self.graph.node(node).results[0]);
                if self.graph.ty(new) == self.graph.ty(old) {
                    self.replace(old, new);
                    continue;
                }
            }
            self.graph.append(node);
        }
        self.graph.update_yields(region);
    }

    /// Replaces a value by an equal value, which takes over the name if it has none.
    fn replace(&mut self, old: Value, new: Value) {
        self.graph.replace_named(old, new);
        self.changed = true;
    }

    /// Merges parameters that capture the same value with the same types.
    fn captures(&mut self, node: Node) {
        let op = &self.graph.node(node).op;
        if !op.is_construct() || matches!(op, Op::Call(CallKind::CustomGradient { .. })) {
            return;
        }
        let captured = self.graph.captured(node);
        let mut seen = FxHashSet::default();
        if captured.iter().all(|&v| seen.insert(v)) {
            return;
        }
        let regions = self.graph.node(node).regions.clone();
        let params: Vec<Vec<Value>> =
            regions.iter().map(|&region| self.graph.captures_in(region).map(|(param, _)| param).collect()).collect();
        // The first capture with the same value and types: nodes may depend on a precise type.
        let mut first: FxHashMap<(Value, Vec<&Type>), usize> = FxHashMap::default();
        let types = |i: usize| params.iter().map(|params| self.graph.ty(params[i])).collect();
        let kept: Vec<usize> =
            captured.iter().enumerate().map(|(i, &v)| *first.entry((v, types(i))).or_insert(i)).collect();
        let stays: Vec<bool> = kept.iter().enumerate().map(|(i, &first)| i == first).collect();
        if !stays.contains(&false) {
            return;
        }
        for params in params {
            for (i, &first) in kept.iter().enumerate().filter(|&(i, &first)| i != first) {
                self.replace(params[i], params[first]);
            }
        }
        self.graph.retain_captures(node, &stays);
    }
}
