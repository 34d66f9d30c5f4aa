//! Search for nodes that compute the same.

use crate::Graph;
use crate::ir::{ListForm, Node, NodeData, Op, Value};
use crate::ops::Effects;
use rustc_hash::{FxHashMap, FxHasher};
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};
use std::mem::discriminant;

/// Returns whether nodes of this operation with equal operands always compute the same tensor.
pub(super) fn is_mergeable(op: &Op) -> bool {
    match op {
        Op::Prim(def, _) => def.effects <= Effects::Fallible,
        Op::Constant(_) | Op::Read(_) => true,
        Op::List(op) => op.form() == ListForm::Query,
        _ => false,
    }
}

/// Distinct nodes, found by operation, operands and device constraint.
///
/// The nodes stay in the graph, and nothing of them is copied.
#[derive(Default)]
pub(super) struct NodeIndex {
    first: FxHashMap<u64, Node>,
    /// Further nodes with the same hash.
    others: FxHashMap<u64, Vec<Node>>,
}

impl NodeIndex {
    /// Creates an index with space for `n` nodes.
    pub(super) fn with_capacity(n: usize) -> NodeIndex {
        NodeIndex { first: FxHashMap::with_capacity_and_hasher(n, Default::default()), ..NodeIndex::default() }
    }

    /// Returns the node of the index that computes the same as a mergeable `node`. Adds `node` if
    /// there is none.
    ///
    /// `class` returns the representative of the values that equal an operand. The representative
    /// must not change for operands of the nodes in the index.
    pub(super) fn find_or_add(&mut self, g: &Graph, node: Node, class: impl Fn(Value) -> Value) -> Option<Node> {
        let data = g.node(node);
        let operands = || operands(data, &class);
        let mut hasher = FxHasher::default();
        hash_op(&data.op, &mut hasher);
        operands().for_each(|v| v.hash(&mut hasher));
        data.on.hash(&mut hasher);
        let hash = hasher.finish();
        let equals = |other: &Node| {
            let other = g.node(*other);
            data.op == other.op && data.on == other.on && operands().eq(self::operands(other, &class))
        };
        match self.first.entry(hash) {
            Entry::Vacant(entry) => {
                entry.insert(node);
                None
            }
            Entry::Occupied(entry) if equals(entry.get()) => Some(*entry.get()),
            Entry::Occupied(_) => {
                let others = self.others.entry(hash).or_default();
                let found = others.iter().copied().find(|other| equals(other));
                if found.is_none() {
                    others.push(node);
                }
                found
            }
        }
    }
}

/// Returns the classes of the operands of a node, in a fixed order if the operation is commutative.
fn operands(data: &NodeData, class: impl Fn(Value) -> Value) -> impl Iterator<Item = Value> {
    let swaps = match (&data.op, &data.operands[..]) {
        (Op::Prim(def, _), &[x, y]) => def.laws.commutative && class(y) < class(x),
        _ => false,
    };
    (0..data.operands.len()).map(move |i| class(data.operands[if swaps { 1 - i } else { i }]))
}

fn hash_op(op: &Op, state: &mut FxHasher) {
    discriminant(op).hash(state);
    match op {
        Op::Prim(def, attrs) => (def, attrs).hash(state),
        Op::Constant(tensor) => tensor.hash(state),
        Op::Read(var) => var.hash(state),
        Op::List(op) => op.hash(state),
        _ => {}
    }
}
