//! Inlining of functions with a custom gradient.

use super::Pass;
use crate::Graph;
use crate::ir::{CallKind, GraphBuilder, Node, Op, Region, Value};

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
        GraphBuilder::edit(graph, |graph| {
            let mut inliner = Inliner { graph, changed: false };
            inliner.region(inliner.graph.root());
            inliner.changed
        })
    }
}

struct Inliner<'g> {
    graph: &'g mut GraphBuilder,
    changed: bool,
}

impl Inliner<'_> {
    fn region(&mut self, region: Region) {
        let nodes = self.graph.take_nodes(region);
        self.nodes(nodes, region);
        self.graph.update_yields(region);
    }

    /// Returns whether the operands and results of a call have the types of the forward region.
    fn keeps_types(&self, node: Node) -> bool {
        let same = |(a, b): (Value, Value)| self.graph.ty(a) == self.graph.ty(b);
        let forward = self.graph.call_of(node).forward();
        let yields = self.graph.region(forward).yields.iter().copied();
        self.graph.entry(forward).all(same) && self.graph.node(node).results.iter().copied().zip(yields).all(same)
    }

    /// Appends nodes to `region`.
    fn nodes(&mut self, nodes: Vec<Node>, region: Region) {
        for node in nodes {
            self.graph.set_region_of(node, region);
            self.graph.update_operands(node);
            let data = self.graph.node(node).clone();
            match data.op {
                Op::Call(CallKind::CustomGradient { .. }) if self.keeps_types(node) => {
                    let inner = self.graph.call_of(node).forward();
                    let forward = self.graph.region(inner).clone();
                    for (param, outer) in self.graph.entry(inner).collect::<Vec<_>>() {
                        self.graph.replace(param, outer);
                    }
                    self.nodes(forward.nodes, region);
                    for (&r, &y) in data.results.iter().zip(&forward.yields) {
                        self.graph.replace_named(r, y);
                    }
                    self.changed = true;
                }
                _ => {
                    for inner in data.regions {
                        self.region(inner);
                    }
                    self.graph.append(node);
                }
            }
        }
    }
}
