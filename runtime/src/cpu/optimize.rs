//! Optimization of a traced graph before it is compiled.

use crate::cpu::program::CompileOptions;
use anabranch_dsl::passes::{Pipeline, specialize};
use anabranch_dsl::{Graph, Result, TensorType};

/// Optimizes a graph for inputs of the given types.
///
/// A graph that is interpreted, or whose values are checked one by one, stays as written. The
/// former is the reference for other engines, and errors of the latter name the user's operation.
pub(crate) fn optimize(graph: Graph, signature: &[TensorType], options: CompileOptions) -> Result<Graph> {
    if options.interpreted {
        return Ok(graph);
    }
    let mut graph = specialize(&graph, signature)?;
    if !options.check_finite {
        let pipeline = Pipeline::standard();
        let pipeline =
            if options.hoist { pipeline } else { pipeline.without("merge_products").without("hoist_matmuls") };
        pipeline.run(&mut graph);
    }
    Ok(graph)
}
