//! Passes: graph to graph, with the same meaning.
//!
//! A pass gets a verified graph and leaves one, with the same inputs, outputs and variables; what else it promises stands with it.
//! [`Pipeline`] runs passes one after the other and, in debug builds, holds each to this.
//!
//! Two laws that all keep: an effect happens as often and in the same order as before; and nothing runs that did
//! not run before, since it might fail (a loop body may run zero times).
//!
//! The same meaning is equality as in [`equality`](crate::equality): a pass may change the sign and the payload of a NaN, and
//! nothing else of a number.

use crate::ir::{Node, Op, Region, Value, verify};
use crate::ops::{Prim, prim};
use crate::{Graph, HostTensor, TensorType, Type};

mod build;
mod casts;
mod cse;
mod dce;
mod fold;
mod identity;
mod inline;
mod licm;
mod merge_products;
mod merge_state;
mod parts;
mod products;
mod prune;
mod scalars;
mod scatters;
mod simplify;
mod specialize;
mod trips;

pub use casts::{Casts, Widen};
pub use cse::Cse;
pub use dce::Dce;
pub use fold::Fold;
pub use inline::Inline;
pub use licm::Licm;
pub use merge_products::MergeProducts;
pub use merge_state::MergeState;
pub use parts::Parts;
pub use products::Products;
pub use prune::{Assignments, PrunedGraph, prune};
pub use scalars::{Scalars, scalars};
pub use scatters::Scatters;
pub use simplify::Simplify;
pub use specialize::specialize;
pub use trips::{Count, Limit, count, trips};

/// A transformation of graphs that keeps their meaning.
pub trait Pass {
    /// The name in messages; also the folder of the golden files.
    fn name(&self) -> &'static str;

    /// Changes the graph; gives whether it did.
    fn run(&self, graph: &mut Graph) -> bool;
}

/// Passes in an order.
pub struct Pipeline {
    passes: Vec<Box<dyn Pass>>,
    check: bool,
}

impl Pipeline {
    /// The given passes, in this order. They are checked in debug builds.
    pub fn new(passes: Vec<Box<dyn Pass>>) -> Pipeline {
        Pipeline { passes, check: cfg!(debug_assertions) }
    }

    /// What every graph goes through before it is run.
    pub fn standard() -> Pipeline {
        Pipeline::new(vec![
            // First: gradients are taken, so what carries a gradient of its own is in the way of the others.
            Box::new(Inline),
            Box::new(Fold),
            // After folding, which finds the numbers that rules are about.
            Box::new(Simplify),
            // Before merging: of loop variables that became one the nodes are then merged in the same round.
            Box::new(MergeState),
            // After folding, which makes equal constants of different nodes.
            Box::new(Cse),
            // After merging, or equal nodes would move out as several captures; before `Products`, which looks for captures.
            Box::new(Licm),
            // After merging, so that what is used once is seen to be.
            Box::new(Parts),
            // After folding, which finds the zeros that rows are added to.
            Box::new(Scatters),
            // Before products, which look for operands that loops capture.
            Box::new(Casts),
            // After merging, or captures of one matrix would be several; before products that leave loops, so that they leave as one.
            Box::new(MergeProducts),
            Box::new(Products),
            // Last: the others leave behind what is no longer used.
            Box::new(Dce),
        ])
    }

    /// Checks the graph after every pass, or does not.
    #[must_use]
    pub fn checked(mut self, check: bool) -> Pipeline {
        self.check = check;
        self
    }

    /// Only the first `n` passes: to find the one that is wrong.
    #[must_use]
    pub fn stop_after(mut self, n: usize) -> Pipeline {
        self.passes.truncate(n);
        self
    }

    /// Without the passes of a name: to see what they do.
    #[must_use]
    pub fn without(mut self, name: &str) -> Pipeline {
        self.passes.retain(|pass| pass.name() != name);
        self
    }

    /// Runs the passes, again as long as they change something but at most a few times, and leaves a graph without unused
    /// table entries.
    ///
    /// # Panics
    /// If a pass that is checked breaks its promise: with its name, what is wrong, and the graph before and after.
    pub fn run(&self, graph: &mut Graph) {
        if self.check {
            self.check("what was given to the passes", None, graph);
        }
        let mut changed = true;
        for _ in 0..MAX_ROUNDS {
            if !std::mem::take(&mut changed) {
                break;
            }
            for pass in &self.passes {
                let before = self.check.then(|| graph.clone());
                changed |= pass.run(graph);
                if let Some(before) = before {
                    self.check(pass.name(), Some(&before), graph);
                }
            }
        }
        *graph = graph.compact();
    }

    fn check(&self, name: &str, before: Option<&Graph>, after: &Graph) {
        let mut wrong: Vec<String> = verify(after).err().unwrap_or_default().into_iter().map(|e| e.message).collect();
        if let Some(before) = before
            && wrong.is_empty()
            && signature(before) != signature(after)
        {
            wrong.push("the inputs, outputs or variables are others than before".to_owned());
        }
        if !wrong.is_empty() {
            let before = before.map(|g| format!("\n; ---- before\n{g}")).unwrap_or_default();
            panic!("{name}: the graph is broken\n{}\n{before}; ---- after\n{after}", wrong.join("\n"));
        }
    }
}

/// The graph without computation in 16-bit floats, if it has some; see [`Widen`].
pub fn widen(graph: &Graph) -> Option<Graph> {
    let mut wide = graph.clone();
    if !Widen.run(&mut wide) {
        return None;
    }
    // What is converted otherwise than before leaves behind what it was made of.
    Dce.run(&mut wide);
    Some(wide.compact())
}

/// The value outside of a region that its parameter is, unless it is a loop variable.
fn captured(g: &Graph, region: Region, i: usize) -> Option<Value> {
    let owner = g.region(region).owner?;
    let data = g.node(owner);
    match data.op {
        Op::While { .. } if i < g.n_carried(owner) => None,
        Op::Cond => Some(data.operands[i + 1]),
        // The gradient of a call has parameters besides.
        _ => data.operands.get(i).copied(),
    }
}

/// The operation of the table that computes a value, with its operands.
fn made_by(g: &Graph, v: Value) -> Option<(Prim, &[Value])> {
    match &g.node(g.producer(v)?).op {
        Op::Prim(def, _) => Some((*def, &g.node(g.producer(v)?).operands)),
        _ => None,
    }
}

/// Whether there is a product of matrices in a loop.
fn has_product(g: &Graph, node: Node) -> bool {
    let mut has = false;
    for &region in &g.node(node).regions {
        g.visit_nodes(region, &mut |inner| has |= g.node(inner).op.is(prim::MATMUL));
    }
    has
}

/// Whether all elements of a value are known to be zero.
fn is_zero(graph: &Graph, v: Value) -> bool {
    let Some(node) = graph.producer(v) else { return false };
    let data = graph.node(node);
    match &data.op {
        Op::Constant(t) => *t == HostTensor::zeros(t.dtype(), t.shape()),
        Op::Prim(def, _) if def == prim::BROADCAST_TO => is_zero(graph, data.operands[0]),
        _ => false,
    }
}

/// How often a pipeline runs at most: what a pass finds through another one is found in the second round, and rarely more.
const MAX_ROUNDS: usize = 3;

/// Types of inputs and outputs, and the variables.
type Signature<'a> = (Vec<&'a Type>, Vec<&'a Type>, Vec<(&'a str, &'a TensorType)>);

fn signature(graph: &Graph) -> Signature<'_> {
    (
        graph.inputs().iter().map(|&v| graph.ty(v)).collect(),
        graph.outputs().iter().map(|&v| graph.ty(v)).collect(),
        graph.vars.iter().map(|v| (v.name.as_str(), &v.ty)).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    struct DropsOutputs;
    impl Pass for DropsOutputs {
        fn name(&self) -> &'static str {
            "drops_outputs"
        }
        fn run(&self, graph: &mut Graph) -> bool {
            graph.region_mut(graph.root()).yields.clear();
            true
        }
    }

    struct DropsNodes;
    impl Pass for DropsNodes {
        fn name(&self) -> &'static str {
            "drops_nodes"
        }
        fn run(&self, graph: &mut Graph) -> bool {
            graph.region_mut(graph.root()).nodes.clear();
            true
        }
    }

    /// The message with which a pipeline of the standard passes and a wrong one panics.
    fn panic_of(pass: impl Pass + 'static) -> String {
        let text = "graph @f(%x: f32[2]) -> f32[2] { %y = tanh %x  return %y }";
        let graph = Graph::parse(text, "f.ir").unwrap();
        let mut passes = Pipeline::standard().passes;
        passes.insert(1, Box::new(pass));
        let pipeline = Pipeline::new(passes).checked(true);
        let run = std::panic::AssertUnwindSafe(|| pipeline.run(&mut graph.clone()));
        let payload = catch_unwind(run).expect_err("the pipeline finds the wrong pass");
        payload.downcast_ref::<String>().expect("the panic has a message").clone()
    }

    #[test]
    fn a_pass_that_breaks_the_graph_is_named() {
        let message = panic_of(DropsNodes);
        assert!(message.starts_with("drops_nodes: the graph is broken\nV1: return: `%y`"), "{message}");
        assert!(message.contains("; ---- before\ngraph @f"), "{message}");
    }

    #[test]
    fn a_pass_that_changes_the_signature_is_named() {
        let message = panic_of(DropsOutputs);
        assert!(message.starts_with("drops_outputs: the graph is broken\nthe inputs, outputs"), "{message}");
    }
}
