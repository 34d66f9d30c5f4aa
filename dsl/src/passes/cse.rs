//! Common subexpression elimination.

use super::Pass;
use super::node_index::{NodeIndex, is_mergeable};
use crate::Graph;
use crate::ir::{CallKind, Node, Op, Region, Replacements, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::hash_map::Entry;

/// Merges equal nodes of a region, and captures of the same value.
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
        let replaced = Replacements::new(graph);
        let mut cse = NodeMerger { graph, replaced, changed: false };
        cse.region(cse.graph.root());
        cse.changed
    }
}

struct NodeMerger<'g> {
    graph: &'g mut Graph,
    replaced: Replacements,
    changed: bool,
}

impl NodeMerger<'_> {
    fn region(&mut self, region: Region) {
        let nodes = std::mem::take(&mut self.graph.region_mut(region).nodes);
        let mut index = NodeIndex::with_capacity(nodes.len());
        let mut kept = Vec::with_capacity(nodes.len());
        for node in nodes {
            self.replaced.apply(&mut self.graph.node_mut(node).operands);
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
            kept.push(node);
        }
        self.graph.region_mut(region).nodes = kept;
        let yields = &mut self.graph.region_mut(region).yields;
        self.replaced.apply(yields);
    }

    /// Replaces a value by an equal value, which takes over the name if it has none.
    fn replace(&mut self, old: Value, new: Value) {
        if self.graph.value(new).name.is_none() {
            self.graph.value_mut(new).name = self.graph.value(old).name;
        }
        self.replaced.replace(old, new);
        self.changed = true;
    }

    /// Merges parameters that capture the same value.
    fn captures(&mut self, node: Node) {
        if !matches!(
            self.graph.node(node).op,
            Op::Cond | Op::While { .. } | Op::Call(CallKind::Checkpoint | CallKind::Recompute)
        ) {
            return;
        }
        let mut seen = FxHashSet::default();
        let stays: Vec<bool> = self.graph.captured(node).iter().map(|&v| seen.insert(v)).collect();
        if !stays.contains(&false) {
            return;
        }
        for region in self.graph.node(node).regions.clone() {
            let mut first: FxHashMap<Value, Value> = FxHashMap::default();
            for (param, outer) in self.graph.captures_in(region).collect::<Vec<_>>() {
                match first.entry(outer) {
                    Entry::Vacant(e) => _ = e.insert(param),
                    Entry::Occupied(e) => self.replace(param, *e.get()),
                }
            }
        }
        self.graph.retain_captures(node, &stays);
    }
}
