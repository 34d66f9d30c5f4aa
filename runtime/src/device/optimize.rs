//! Optimization of a traced graph before it is compiled.

use crate::options::{CompileOptions, StopCheck};
use anabranch_dsl::passes::{HoistMatmuls, Pipeline, specialize};
use anabranch_dsl::{Graph, Result, TensorType};

/// Optimizes a graph for inputs of the given types.
///
/// A graph that is interpreted, or whose values are checked one by one, stays as written. The
/// former is the reference for other engines, and errors of the latter name the user's operation.
///
/// # Errors
/// Fails if the graph does not fit the types, or with the error of the check, which is made before
/// each pass.
pub(crate) fn optimize(
    graph: Graph,
    signature: &[TensorType],
    options: CompileOptions,
    may_go_on: StopCheck<'_>,
) -> Result<Graph> {
    if options.interpreted {
        return Ok(graph);
    }
    let mut graph = specialize(&graph, signature)?;
    if !options.check_finite {
        let pipeline = Pipeline::with_hoisting(HoistMatmuls { max_bytes: options.max_hoisted_bytes });
        let pipeline =
            if options.hoist { pipeline } else { pipeline.without("merge_products").without("hoist_matmuls") };
        pipeline.run_while(&mut graph, may_go_on)?;
    }
    Ok(graph)
}
