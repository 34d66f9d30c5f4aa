//! Results of a graph that is split at one of its values: one part fetches the value, and the other
//! part is fed with it and computes the rest.

use super::engine::TracedCase;
use anabranch::Diagnostic;
use anabranch::dsl::ir::{Op, Value};
use anabranch::dsl::passes::{Assignments, Pipeline, PrunedGraph, prune, specialize};
use anabranch::dsl::{Graph, HostTensor, TensorType, interp};
use anabranch_runtime::Program;

/// The number of values of a graph to try.
const VALUES: usize = 2;

/// A graph that is split at some of its values, by the interpreter and by plans.
pub struct SplitGraph {
    splits: Vec<SplitAtValue>,
}

/// A graph that is split at one of its values.
struct SplitAtValue {
    value: Value,
    first: SplitPart,
    rest: SplitPart,
}

/// One part of a graph, with its plans for the types of its inputs so far.
struct SplitPart {
    pruned: PrunedGraph,
    plans: Vec<(Vec<TensorType>, Program)>,
}

impl SplitGraph {
    pub fn new(g: &Graph) -> Result<SplitGraph, String> {
        let nodes = g.region(g.root()).nodes.iter().filter(|&&n| !matches!(g.node(n).op, Op::Constant(_)));
        let results = nodes.flat_map(|&n| &g.node(n).results).copied();
        let values: Vec<Value> = results.filter(|&v| g.ty(v).as_tensor().is_some()).collect();
        let split = |&value: &Value| {
            let part = |feeds: &[Value], fetches: &[Value], assignments| {
                let pruned = prune(g, feeds, fetches, assignments).map_err(|e| at(g, value, &e.to_string()))?;
                Ok::<_, String>(SplitPart { pruned, plans: Vec::new() })
            };
            let first = part(g.inputs(), &[value], Assignments::Drop)?;
            let rest = part(&[g.inputs(), &[value]].concat(), g.outputs(), Assignments::Keep)?;
            Ok(SplitAtValue { value, first, rest })
        };
        let splits = values.iter().step_by(values.len().div_ceil(VALUES).max(1)).map(split);
        Ok(SplitGraph { splits: splits.collect::<Result<_, String>>()? })
    }

    /// Compares the results of the parts with those of the whole.
    ///
    /// The interpreter's results of both parts are bitwise identical to those of the whole graph.
    /// The second part assigns all variables that the whole graph assigns, and the first part none.
    pub fn check(&mut self, traced: &TracedCase, inputs: &[HostTensor], whole: &[HostTensor]) -> Result<(), String> {
        let mut vars = traced.vars.clone();
        interp::run(&traced.graph, inputs, &mut vars, interp::InterpOptions::default()).map_err(|e| e.to_string())?;
        for split in &mut self.splits {
            let value = split.value;
            split.check(traced, &vars, inputs, whole).map_err(|what| at(&traced.graph, value, &what))?;
        }
        Ok(())
    }
}

/// Returns a message that names the value.
fn at(g: &Graph, value: Value, what: &str) -> String {
    format!("{what}, cut at {value} of\n{g}")
}

impl SplitAtValue {
    fn check(
        &mut self,
        traced: &TracedCase,
        assigned_by_whole: &[HostTensor],
        inputs: &[HostTensor],
        whole: &[HostTensor],
    ) -> Result<(), String> {
        let (first, rest) = (&self.first.pruned, &self.rest.pruned);
        let (value, assigned) = run(first, inputs, &traced.vars)?;
        if assigned.iter().zip(&first.vars).any(|(a, id)| *a != traced.vars[id.index()]) {
            return Err("a fetch assigns a variable".to_owned());
        }
        let given = [inputs, &value].concat();
        let (outputs, assigned) = run(rest, &given, &traced.vars)?;
        if format!("{outputs:?}") != format!("{whole:?}") {
            return Err(format!("the rest gives {outputs:?}, the whole {whole:?}"));
        }
        let after =
            |i: usize| rest.vars.iter().position(|id| id.index() == i).map_or(&traced.vars[i], |k| &assigned[k]);
        if (0..assigned_by_whole.len()).any(|i| format!("{:?}", after(i)) != format!("{:?}", assigned_by_whole[i])) {
            return Err("the rest assigns other values".to_owned());
        }
        for (part, inputs) in [(&mut self.first, inputs), (&mut self.rest, &given)] {
            let mut vars = part.pruned.vars.iter().map(|id| traced.vars[id.index()].clone()).collect();
            part.plan(inputs)?.run(inputs, &mut vars).map_err(as_plan)?;
        }
        Ok(())
    }
}

fn as_plan(e: Diagnostic) -> String {
    format!("as a plan: {e}")
}

impl SplitPart {
    /// Returns the plan for inputs of these types.
    fn plan(&mut self, inputs: &[HostTensor]) -> Result<&Program, String> {
        let types: Vec<TensorType> = inputs.iter().map(HostTensor::ty).collect();
        let i = match self.plans.iter().position(|(of, _)| *of == types) {
            Some(i) => i,
            None => {
                let mut graph = specialize(&self.pruned.graph, &types).map_err(|e| e.to_string())?;
                Pipeline::standard().run(&mut graph);
                self.plans.push((types, Program::new(graph).map_err(as_plan)?));
                self.plans.len() - 1
            }
        };
        Ok(&self.plans[i].1)
    }
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
