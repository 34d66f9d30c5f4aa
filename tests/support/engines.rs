//! The engines: each of them runs a graph and must return what the others return.

use super::random_placement::RandomPlacements;
use anabranch::dsl::fusion::{FuseEverything, FuseNothing, Fusion, FusionTarget};
use anabranch::dsl::ir::Node;
use anabranch::dsl::ir::wire::{WireLimits, decode, encode};
use anabranch::dsl::passes::{Pass, Pipeline};
use anabranch::dsl::{Graph, HostTensor, TensorType, interp};
use anabranch::{Diagnostic, dsl::equality::one_nan_each};
use anabranch_programs::plans::{Plans, optimize};
use anabranch_runtime::Program;

pub type Outcome = Result<Vec<HostTensor>, Diagnostic>;

/// A graph with its kernels.
type FusedGraph = (Graph, Fusion);

/// A graph, compiled for inputs of one type by every engine: the interpreter and the plan, each
/// before and after the passes, the interpreter also of the graph's wire form, plans with one part
/// of the compiler disabled, and several devices.
pub struct Engines {
    types: Vec<TensorType>,
    traced: Graph,
    text: String,
    interpreted: Vec<(&'static str, Result<Graph, Diagnostic>)>,
    /// The kernels of the optimized graph, which the interpreter runs.
    fused: Vec<(&'static str, Result<FusedGraph, Diagnostic>)>,
    planned: Vec<(&'static str, Result<Program, Diagnostic>)>,
    placed: Result<RandomPlacements, Diagnostic>,
}

impl Engines {
    pub fn new(traced: &Graph, types: &[TensorType]) -> Engines {
        let Plans { optimized, all } = Plans::new(traced, types);
        let fused = |target: &dyn FusionTarget| optimized.clone().map(|graph| with_kernels(graph, target));
        Engines {
            types: types.to_vec(),
            traced: traced.clone(),
            text: traced.to_string(),
            interpreted: vec![
                ("interpreter", Ok(traced.clone())),
                ("interpreter of the wire form", Ok(through_wire(traced))),
                ("interpreter after all passes", optimized.clone()),
                (
                    "interpreter of the wire form after all passes",
                    optimized.as_ref().map(through_wire).map_err(Clone::clone),
                ),
            ],
            fused: vec![
                ("interpreter of fused kernels", fused(&FuseEverything)),
                ("interpreter of elementwise kernels", fused(&FuseNothing)),
            ],
            planned: all,
            placed: optimized.map(RandomPlacements::new),
        }
    }

    /// Adds the interpreter after one pass alone.
    pub fn after(mut self, name: &'static str, pass: Box<dyn Pass>) -> Engines {
        let graph = optimize(&self.traced, &self.types, Pipeline::new(vec![pass]));
        self.interpreted.push((name, graph));
        self
    }

    /// Returns whether these are the engines of this graph for inputs of these types.
    pub fn are_of(&self, traced: &Graph, types: &[TensorType]) -> bool {
        self.types == types && self.text == traced.to_string()
    }

    /// Runs every engine, and each plan twice: the second run reuses the memory of the first run.
    /// The interpreter of the graph as it was traced comes first.
    pub fn run(&self, inputs: &[HostTensor], vars: &[HostTensor]) -> Vec<(&'static str, Outcome)> {
        let interpret = |graph: &Result<Graph, Diagnostic>| {
            let graph = graph.as_ref().map_err(Clone::clone)?;
            interp::run(graph, inputs, &mut vars.to_vec(), interp::InterpOptions::default())
        };
        let run_plan = |name: &str, program: &Result<Program, Diagnostic>| {
            let program = program.as_ref().map_err(Clone::clone)?;
            let first = program.run(inputs, &mut vars.to_vec());
            let second = program.run(inputs, &mut vars.to_vec());
            match (&first, &second) {
                (Ok(a), Ok(b)) => {
                    assert_eq!(one_nan_each(a), one_nan_each(b), "{name}: the second run has other results");
                }
                (a, b) => assert_eq!(a.as_ref().err(), b.as_ref().err(), "{name}: the second run has another error"),
            }
            first
        };
        let mut outcomes: Vec<_> = self.interpreted.iter().map(|(name, graph)| (*name, interpret(graph))).collect();
        outcomes.extend(self.fused.iter().map(|(name, fused)| {
            let run = |(graph, fusion): &FusedGraph| {
                let context = interp::RunContext { fusion: Some(fusion), ..Default::default() };
                interp::run_in(graph, inputs, &mut vars.to_vec(), interp::InterpOptions::default(), context)
            };
            (*name, fused.as_ref().map_err(Clone::clone).and_then(run))
        }));
        outcomes.extend(self.planned.iter().map(|(name, program)| (*name, run_plan(name, program))));
        match &self.placed {
            Ok(placements) => outcomes.extend(placements.run(inputs, vars)),
            Err(e) => outcomes.push(("all passes", Err(e.clone()))),
        }
        outcomes
    }
}

/// Returns the graph that another process would get.
fn through_wire(graph: &Graph) -> Graph {
    let bytes = encode(graph);
    let decoded = decode(&bytes, &WireLimits::default()).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    let size = |g: &Graph| (g.n_nodes(), g.n_values(), g.n_regions());
    assert_eq!(size(&decoded), size(graph), "{graph}");
    assert_eq!(encode(&decoded), bytes, "{graph}");
    // Errors name nodes by number. The process that has the original graph puts in its places.
    let mut decoded = decoded;
    for node in (0..graph.n_nodes()).map(Node::from_index) {
        let data = graph.node(node);
        let copy = decoded.node_mut(node);
        (copy.loc, copy.written) = (data.loc, data.written);
    }
    decoded
}

/// Finds the kernels of a graph and checks their invariants.
fn with_kernels(graph: Graph, target: &dyn FusionTarget) -> FusedGraph {
    let fusion = Fusion::find(&graph, target);
    for kernel in fusion.kernels() {
        if let Err(broken) = kernel.verify(&graph) {
            panic!("{broken}\n{}\n{graph}", kernel.text(&graph));
        }
    }
    (graph, fusion)
}
