//! Graph passes: transformations of a graph that preserve its semantics.
//!
//! A pass takes a verified graph and leaves a verified graph with the same inputs, outputs and
//! variables. Further guarantees are documented on each pass. [`Pipeline`] runs passes in order
//! and, in debug builds, verifies the graph after each pass.
//!
//! All passes keep two laws: an effect happens as often and in the same order as before; and
//! nothing runs that did not run before, since it might fail (a loop body may run zero times).
//!
//! A loop without effects whose results nobody uses is removed, even a loop that would never end.
//!
//! The semantics are preserved up to [`equality`](crate::equality): a pass may change the sign and
//! the payload of a NaN, and nothing else of a number.

use crate::ir::{Node, Op, Value, verify};
use crate::ops::{Prim, prim};
use crate::{Graph, HostTensor, Result, TensorType, Type};

mod casts;
mod commit_loop;
mod cse;
mod dce;
mod expand_attention;
mod fold;
mod hoist_matmuls;
mod identity;
mod inline;
mod licm;
mod matrix;
mod merge_loop_vars;
mod merge_products;
mod node_index;
mod prune;
mod scalarize;
mod scatters;
mod simplify;
mod specialize;
mod split_reductions;
mod sums_to_concat;
mod tables;
mod trips;

pub use casts::{HoistCasts, Widen};
pub use commit_loop::{CommitLoop, PartialStep, SteppedGraph, split as split_at_commits};
pub use cse::Cse;
pub use dce::Dce;
pub use expand_attention::expand_attention;
pub use fold::Fold;
pub use hoist_matmuls::HoistMatmuls;
pub use inline::Inline;
pub use licm::Licm;
pub use merge_loop_vars::MergeLoopVars;
pub use merge_products::MergeProducts;
pub use prune::{Assignments, PrunedGraph, prune};
pub use scalarize::{Scalarize, scalars};
pub use scatters::Scatters;
pub use simplify::Simplify;
pub use specialize::specialize;
pub use split_reductions::{parts_of_rows, split_reductions};
pub use sums_to_concat::SumsToConcat;
pub use trips::{CountedLoop, Limit, count, overwrites, trips};

/// A transformation of graphs that preserves their semantics.
pub trait Pass {
    /// The name of the pass, used in messages and for the folder of its golden files.
    fn name(&self) -> &'static str;

    /// Rewrites the graph. Returns whether anything changed.
    fn run(&self, graph: &mut Graph) -> bool;
}

/// An ordered sequence of passes.
pub struct Pipeline {
    passes: Vec<Box<dyn Pass>>,
    check: bool,
}

impl Pipeline {
    /// Creates a pipeline of the given passes, in this order.
    ///
    /// Checks are enabled in debug builds; see [`Pipeline::checked`].
    pub fn new(passes: Vec<Box<dyn Pass>>) -> Pipeline {
        Pipeline { passes, check: cfg!(debug_assertions) }
    }

    /// Returns the pipeline that every graph goes through before it runs.
    pub fn standard() -> Pipeline {
        Pipeline::with_hoisting(HoistMatmuls::default())
    }

    /// Returns this pipeline with another limit of hoisted matmuls.
    #[doc(hidden)]
    pub fn with_hoisting(hoist_matmuls: HoistMatmuls) -> Pipeline {
        Pipeline::new(vec![
            // First: gradients have been taken by now, and a `custom_gradient` only blocks the
            // other passes.
            Box::new(Inline),
            Box::new(Fold),
            // After folding, which exposes the constants that the rules match.
            Box::new(Simplify),
            // Before `Cse`, so that nodes that use merged loop variables are merged in the same
            // round.
            Box::new(MergeLoopVars),
            // After folding, which may produce equal constants from different nodes.
            Box::new(Cse),
            // After `Cse`, or equal nodes would be hoisted as separate captures. Before
            // `HoistMatmuls`, which looks for captures.
            Box::new(Licm),
            // After `Cse`, so that use counts are accurate.
            Box::new(SumsToConcat),
            // After folding, which exposes the zeros that rows are added to.
            Box::new(Scatters),
            // Before `HoistMatmuls`, which looks for captured operands.
            Box::new(HoistCasts),
            // After `Cse`, or one matrix could have several captures. Before `HoistMatmuls`, so
            // that merged matmuls are hoisted as one.
            Box::new(MergeProducts),
            Box::new(hoist_matmuls),
            // Last: the other passes leave unused nodes behind.
            Box::new(Dce),
        ])
    }

    /// Sets whether the graph is verified after every pass.
    #[must_use]
    pub fn checked(mut self, check: bool) -> Pipeline {
        self.check = check;
        self
    }

    /// Removes the passes of the given name, to see their effect.
    #[doc(hidden)]
    #[must_use]
    pub fn without(mut self, name: &str) -> Pipeline {
        self.passes.retain(|pass| pass.name() != name);
        self
    }

    /// Runs the passes and compacts the graph.
    ///
    /// The sequence is repeated while a pass changes something, up to a fixed number of rounds. The
    /// resulting graph has no unused table entries.
    ///
    /// # Panics
    /// Panics if a checked pass breaks the graph or changes its signature. The message names the
    /// pass and the error, and shows the graph before and after.
    pub fn run(&self, graph: &mut Graph) {
        self.run_while(graph, &|| Ok(())).expect("nothing ends the passes early");
    }

    /// Runs the passes like [`run`](Self::run), but returns the first error of `may_go_on`, which
    /// is asked before each pass.
    #[doc(hidden)]
    pub fn run_while(&self, graph: &mut Graph, may_go_on: &dyn Fn() -> Result<()>) -> Result<()> {
        if self.check {
            self.check("the graph before the passes", None, graph);
        }
        let mut changed = true;
        for _ in 0..MAX_ROUNDS {
            if !std::mem::take(&mut changed) {
                break;
            }
            for pass in &self.passes {
                may_go_on()?;
                let before = self.check.then(|| graph.clone());
                changed |= pass.run(graph);
                if let Some(before) = before {
                    self.check(pass.name(), Some(&before), graph);
                }
            }
        }
        *graph = graph.compact();
        Ok(())
    }

    fn check(&self, name: &str, before: Option<&Graph>, after: &Graph) {
        let mut wrong: Vec<String> = verify(after).err().unwrap_or_default().into_iter().map(|e| e.message).collect();
        if let Some(before) = before
            && wrong.is_empty()
            && signature(before) != signature(after)
        {
            wrong.push("the pass changed the inputs, outputs or variables".to_owned());
        }
        if !wrong.is_empty() {
            let before = before.map(|g| format!("\n; ---- before\n{g}")).unwrap_or_default();
            panic!("{name}: the graph is broken\n{}\n{before}; ---- after\n{after}", wrong.join("\n"));
        }
    }
}

/// Returns the graph with all computation in 16-bit floats widened to `f32`, or `None` if there is
/// none; see [`Widen`].
pub fn widen(graph: &Graph) -> Option<Graph> {
    let mut wide = graph.clone();
    if !Widen.run(&mut wide) {
        return None;
    }
    // Widening leaves the replaced conversions unused.
    Dce.run(&mut wide);
    Some(wide.compact())
}

/// Returns the primitive operation that computes a value and its operands, if there is one.
pub(crate) fn made_by(g: &Graph, v: Value) -> Option<(Prim, &[Value])> {
    match &g.node(g.producer(v)?).op {
        Op::Prim(def, _) => Some((*def, &g.node(g.producer(v)?).operands)),
        _ => None,
    }
}

/// Returns whether a control-flow node contains a matmul.
fn has_product(g: &Graph, node: Node) -> bool {
    let mut has = false;
    for &region in &g.node(node).regions {
        g.visit_nodes(region, &mut |inner| has |= g.node(inner).op.is(prim::MATMUL));
    }
    has
}

/// Returns whether all elements of a value are known to be zero.
pub(crate) fn is_zero(graph: &Graph, v: Value) -> bool {
    let Some(node) = graph.producer(v) else { return false };
    let data = graph.node(node);
    match &data.op {
        Op::Constant(t) => *t == HostTensor::zeros(t.dtype(), t.shape()),
        Op::Prim(def, _) if def == prim::BROADCAST_TO => is_zero(graph, data.operands[0]),
        _ => false,
    }
}

/// Returns the scalar that a value broadcasts, if it is a broadcast of a scalar.
pub(crate) fn broadcast_number(graph: &Graph, v: Value) -> Option<Value> {
    match made_by(graph, v) {
        Some((prim::BROADCAST_TO | prim::BROADCAST_LIKE, &[x, ..])) if graph.ty(x).element().rank() == 0 => Some(x),
        _ => None,
    }
}

/// Maximum rounds of a pipeline.
///
/// Opportunities that one pass exposes for another are usually found in the second round.
const MAX_ROUNDS: usize = 3;

/// The types of the inputs and outputs, and the variables.
type GraphSignature<'a> = (Vec<&'a Type>, Vec<&'a Type>, Vec<(&'a str, &'a TensorType)>);

fn signature(graph: &Graph) -> GraphSignature<'_> {
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

    /// Returns the panic message of the standard pipeline with a faulty pass inserted.
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
        assert!(
            message.starts_with("drops_outputs: the graph is broken\nthe pass changed the inputs, outputs"),
            "{message}"
        );
    }
}
