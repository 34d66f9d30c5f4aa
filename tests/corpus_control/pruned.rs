//! Results of a graph that is split at one of its values: one part fetches the value, and the other
//! part is fed with it and computes the rest.

use super::engine::TracedCase;
use anabranch::dsl::ir::{Op, Value};
use anabranch::dsl::passes::{Assignments, Pipeline, PrunedGraph, prune, specialize};
use anabranch::dsl::{HostTensor, TensorType, interp};
use anabranch_runtime::Program;

/// The number of values of a graph to try.
const VALUES: usize = 2;

/// Splits the graph at some of its values, by the interpreter and by plans.
///
/// The interpreter's results of both parts are bitwise identical to those of the whole graph. The
/// second part assigns all variables that the whole graph assigns, and the first part none.
pub fn check(traced: &TracedCase, inputs: &[HostTensor], whole: &[HostTensor]) -> Result<(), String> {
    let g = &traced.graph;
    let mut vars = traced.vars.clone();
    interp::run(g, inputs, &mut vars, interp::InterpOptions::default()).map_err(|e| e.to_string())?;
    let nodes = g.region(g.root()).nodes.iter().filter(|&&n| !matches!(g.node(n).op, Op::Constant(_)));
    let results = nodes.flat_map(|&n| &g.node(n).results).copied();
    let values: Vec<Value> = results.filter(|&v| g.ty(v).as_tensor().is_some()).collect();
    for &v in values.iter().step_by(values.len().div_ceil(VALUES).max(1)) {
        let at = |what: &str| format!("{what}, cut at {v} of\n{g}");
        let first = prune(g, g.inputs(), &[v], Assignments::Drop).map_err(|e| at(&e.to_string()))?;
        let (value, assigned) = run(&first, inputs, &traced.vars).map_err(|e| at(&e))?;
        if assigned.iter().zip(&first.vars).any(|(a, id)| *a != traced.vars[id.index()]) {
            return Err(at("a fetch assigns a variable"));
        }
        let feeds = [g.inputs(), &[v]].concat();
        let given = [inputs, &value].concat();
        let rest = prune(g, &feeds, g.outputs(), Assignments::Keep).map_err(|e| at(&e.to_string()))?;
        let (outputs, assigned) = run(&rest, &given, &traced.vars).map_err(|e| at(&e))?;
        if format!("{outputs:?}") != format!("{whole:?}") {
            return Err(at(&format!("the rest gives {outputs:?}, the whole {whole:?}")));
        }
        let after =
            |i: usize| rest.vars.iter().position(|id| id.index() == i).map_or(&traced.vars[i], |k| &assigned[k]);
        if (0..vars.len()).any(|i| format!("{:?}", after(i)) != format!("{:?}", vars[i])) {
            return Err(at("the rest assigns other values"));
        }
        for (part, inputs) in [(first, inputs), (rest, &given)] {
            let types: Vec<TensorType> = inputs.iter().map(HostTensor::ty).collect();
            let mut graph = specialize(&part.graph, &types).map_err(|e| at(&e.to_string()))?;
            Pipeline::standard().run(&mut graph);
            let mut vars = part.vars.iter().map(|id| traced.vars[id.index()].clone()).collect();
            Program::new(graph).and_then(|p| p.run(inputs, &mut vars)).map_err(|e| at(&format!("as a plan: {e}")))?;
        }
    }
    Ok(())
}

/// Returns the outputs, and the variables after the run.
fn run(
    part: &PrunedGraph,
    inputs: &[HostTensor],
    vars: &[HostTensor],
) -> Result<(Vec<HostTensor>, Vec<HostTensor>), String> {
    let mut vars = part.vars.iter().map(|id| vars[id.index()].clone()).collect();
    let outputs = interp::run(&part.graph, inputs, &mut vars, interp::InterpOptions::default());
    outputs.map(|outputs| (outputs, vars)).map_err(|e| format!("{e}\n{}", part.graph))
}
