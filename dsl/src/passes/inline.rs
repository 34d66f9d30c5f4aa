//! Inlining of functions with a custom gradient.

use super::Pass;
use crate::Graph;
use crate::ir::{CallKind, Node, Op, Region, Replacements, Value};

/// Replaces a `custom_gradient` by the nodes of its forward region.
///
/// Gradients have been taken when passes run, so the gradient region is not needed any more.
///
/// Before: verified. After: verified, and the only `custom_gradient` nodes left have a result whose
/// type is less precise than the yielded value, which [`specialize`](super::specialize()) rules
/// out. Checkpoints stay, so that their nodes are not merged with nodes outside.
#[derive(Clone, Copy, Debug)]
pub struct Inline;

impl Pass for Inline {
    fn name(&self) -> &'static str {
        "inline"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        let replaced = Replacements::new(graph);
        let mut inliner = Inliner { graph, replaced, changed: false };
        inliner.region(inliner.graph.root());
        inliner.changed
    }
}

struct Inliner<'g> {
    graph: &'g mut Graph,
    replaced: Replacements,
    changed: bool,
}

impl Inliner<'_> {
    fn region(&mut self, region: Region) {
        let nodes = std::mem::take(&mut self.graph.region_mut(region).nodes);
        let mut kept = Vec::with_capacity(nodes.len());
        self.nodes(nodes, region, &mut kept);
        let data = self.graph.region_mut(region);
        data.nodes = kept;
        self.replaced.apply(&mut data.yields);
    }

    /// Returns whether the operands and results of a call have the types of the forward region.
    fn keeps_types(&self, node: Node) -> bool {
        let same = |(a, b): (Value, Value)| self.graph.ty(a) == self.graph.ty(b);
        let forward = self.graph.call_of(node).forward();
        let yields = self.graph.region(forward).yields.iter().copied();
        self.graph.entry(forward).all(same) && self.graph.node(node).results.iter().copied().zip(yields).all(same)
    }

    /// Moves nodes to `kept`, as nodes of `region`.
    fn nodes(&mut self, nodes: Vec<Node>, region: Region, kept: &mut Vec<Node>) {
        for node in nodes {
            self.graph.set_region_of(node, region);
            self.replaced.apply(&mut self.graph.node_mut(node).operands);
            let data = self.graph.node(node).clone();
            match data.op {
                Op::Call(CallKind::CustomGradient { .. }) if self.keeps_types(node) => {
                    let inner = self.graph.call_of(node).forward();
                    let forward = self.graph.region(inner).clone();
                    for (param, outer) in self.graph.entry(inner) {
                        self.replaced.replace(param, outer);
                    }
                    self.nodes(forward.nodes, region, kept);
                    for (&r, &y) in data.results.iter().zip(&forward.yields) {
                        let name = self.graph.value(r).name;
                        let y = self.replaced.get(y);
                        let named = self.graph.value_mut(y);
                        named.name = named.name.or(name);
                        self.replaced.replace(r, y);
                    }
                    self.changed = true;
                }
                _ => {
                    for inner in data.regions {
                        self.region(inner);
                    }
                    kept.push(node);
                }
            }
        }
    }
}
