//! Common subexpression elimination.

use super::Pass;
use crate::ir::{CallKind, ListForm, Node, Op, Region, Replacements, Value};
use crate::ops::Effects;
use crate::{DeviceConstraint, Graph};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};

/// Merges equal nodes of a region, and captures of the same value.
///
/// Before: verified. After: verified, and no two equal nodes of a region always compute the same
/// value. These are constants, reads of a variable, and primitives (one that may fail has failed
/// the first time). The first node is kept. Nodes with different device constraints are not equal.
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

/// Returns whether nodes of this operation with equal operands always compute the same tensor.
pub(super) fn is_mergeable(op: &Op) -> bool {
    match op {
        Op::Prim(def, _) => def.effects <= Effects::Fallible,
        Op::Constant(_) | Op::Read(_) => true,
        Op::List(op) => op.form() == ListForm::Query,
        _ => false,
    }
}

struct NodeMerger<'g> {
    graph: &'g mut Graph,
    replaced: Replacements,
    changed: bool,
}

/// The operation, operands and device constraint of a node: equal keys compute equal values.
pub(super) struct NodeKey(pub(super) Op, pub(super) Vec<Value>, pub(super) Option<DeviceConstraint>);

impl PartialEq for NodeKey {
    fn eq(&self, other: &NodeKey) -> bool {
        self.0 == other.0 && self.1 == other.1 && self.2 == other.2
    }
}
impl Eq for NodeKey {}

impl Hash for NodeKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name().hash(state);
        match &self.0 {
            Op::Prim(_, attrs) => attrs.hash(state),
            Op::Constant(tensor) => tensor.hash(state),
            Op::Read(var) => var.hash(state),
            Op::List(op) => op.hash(state),
            _ => {}
        }
        self.1.hash(state);
        self.2.hash(state);
    }
}

impl NodeMerger<'_> {
    fn region(&mut self, region: Region) {
        let mut first: HashMap<NodeKey, Node> = HashMap::new();
        let nodes = std::mem::take(&mut self.graph.region_mut(region).nodes);
        let mut kept = Vec::with_capacity(nodes.len());
        for node in nodes {
            self.replaced.apply(&mut self.graph.node_mut(node).operands);
            self.captures(node);
            for inner in self.graph.node(node).regions.clone() {
                self.region(inner);
            }
            let data = self.graph.node(node);
            if is_mergeable(&data.op) {
                match first.entry(NodeKey(data.op.clone(), data.operands.clone(), data.on)) {
                    Entry::Vacant(e) => {
                        e.insert(node);
                    }
                    Entry::Occupied(e) => {
                        let (new, old) = (self.graph.node(*e.get()).results[0], data.results[0]);
                        if self.graph.ty(new) == self.graph.ty(old) {
                            self.replace(old, new);
                            continue;
                        }
                    }
                }
            }
            kept.push(node);
        }
        self.graph.region_mut(region).nodes = kept;
        let yields = &mut self.graph.region_mut(region).yields;
        self.replaced.apply(yields);
    }

    /// Replaces a value by an equal one, which takes over the name if it has none.
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
        let mut seen = HashSet::new();
        let stays: Vec<bool> = self.graph.captured(node).iter().map(|&v| seen.insert(v)).collect();
        if !stays.contains(&false) {
            return;
        }
        for region in self.graph.node(node).regions.clone() {
            let mut first: HashMap<Value, Value> = HashMap::new();
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
