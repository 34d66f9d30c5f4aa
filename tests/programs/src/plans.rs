//! The plans of a graph that tests compare: of the graph as it was traced and after the passes,
//! with and without parts of the compiler.

use anabranch::dsl::passes::{Pipeline, specialize};
use anabranch::{Diagnostic, Graph, TensorType};
use anabranch_runtime::Program;

/// The plans of one graph.
#[derive(Debug)]
pub struct Plans {
    /// The graph after all passes.
    pub optimized: Result<Graph, Diagnostic>,
    /// The plans, with names for messages.
    pub all: Vec<(&'static str, Result<Program, Diagnostic>)>,
}

impl Plans {
    /// Compiles a graph for inputs of these types.
    pub fn new(traced: &Graph, types: &[TensorType]) -> Plans {
        let optimized = optimize(traced, types, Pipeline::standard());
        let without_hoisting = Pipeline::standard().without("merge_products").without("hoist_matmuls");
        let unhoisted = optimize(traced, types, without_hoisting);
        let all = vec![
            ("plan of the graph as it was traced", Program::new(traced.clone())),
            ("plan after all passes", optimized.clone().and_then(Program::new)),
            ("plan without fusion", optimized.clone().and_then(Program::without_fusion)),
            ("plan without native code", optimized.clone().and_then(Program::without_native_code)),
            ("plan in lanes", optimized.clone().and_then(|graph| Program::with_lanes(graph, 3))),
            (
                "plan in lanes with AVX2",
                optimized.clone().and_then(|graph| Program::with_lane_code_up_to_256_bits(graph, 3)),
            ),
            ("plan in lanes with native code", optimized.clone().and_then(|graph| Program::with_lane_code(graph, 3))),
            ("plan without hoisting", unhoisted.and_then(Program::new)),
            ("plan without passes and native code", Program::without_native_code(traced.clone())),
            ("plan without any of them", Program::unoptimized(traced.clone())),
        ];
        Plans { optimized, all }
    }
}

/// Specializes a graph and runs passes on it, with a check after each.
pub fn optimize(traced: &Graph, types: &[TensorType], pipeline: Pipeline) -> Result<Graph, Diagnostic> {
    specialize(traced, types).map(|mut graph| {
        pipeline.checked(true).run(&mut graph);
        graph
    })
}
