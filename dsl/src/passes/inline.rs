//! Functions with a gradient of their own, after the gradients are taken.

use super::Pass;
use crate::Graph;
use crate::ir::{CallKind, Node, Op, Region, Replacements, Value};

/// Puts the nodes of the forward region in the place of a `custom_gradient`: nobody asks for the gradient any more.
///
/// Before: verified. After: verified; there is no `custom_gradient` but those with a result whose type is less exact than
/// what the region yields, which [`specialize`](super::specialize()) does not leave behind. Checkpoints stay: what is in them is not to
/// be merged with what is outside.
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

    /// Puts nodes into `kept`, as nodes of `region`.
    fn nodes(&mut self, nodes: Vec<Node>, region: Region, kept: &mut Vec<Node>) {
        for node in nodes {
            self.graph.set_region_of(node, region);
            self.replaced.apply(&mut self.graph.node_mut(node).operands);
            let data = self.graph.node(node).clone();
            let forward = data.regions.first().map(|&r| self.graph.region(r).clone());
            let same = |(&a, &b): (&Value, &Value)| self.graph.ty(a) == self.graph.ty(b);
            match (&data.op, forward) {
                (Op::Call(CallKind::CustomGradient { .. }), Some(forward))
                    if data.results.iter().zip(&forward.yields).all(same)
                        && data.operands.iter().zip(&forward.params).all(same) =>
                {
                    for (&p, &v) in forward.params.iter().zip(&data.operands) {
                        self.replaced.replace(p, v);
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
