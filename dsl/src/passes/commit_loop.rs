//! Functions with a loop whose iterations are steps of their own.
//!
//! [`commit_each_iteration`](crate::commit_each_iteration) marks the outermost loop of a function.
//! The function then runs as several steps: what is before the loop, then in turn the condition and
//! the body, then what is after the loop. Each step is a graph of its own. Between them, variables
//! keep the values that the loop carries for them, and the session keeps the others.
//!
//! Invariants:
//!
//! - A step assigns a variable if the function assigns it in that part. So what an iteration has
//!   assigned is committed when it ends.
//! - A step reads a variable itself where the function gets its value in that part. A value that
//!   the function has got in an earlier part stays what it was.
//!
//! The graph as it was traced computes the same in one step.

use super::prune::{drop_queues, drop_variables};
use crate::ir::copy::StepValue;
use crate::ir::{Graph, LoopVar, Node, Op, QueueId, Value, VarId};
use crate::{Diagnostic, Loc, Result};
use rustc_hash::{FxHashMap, FxHashSet};

/// The loop of a traced function whose iterations are steps.
#[derive(Clone, Debug)]
pub struct CommitLoop {
    /// The loop, in the root region.
    pub node: Node,
    /// The place in the program that asked for it.
    pub loc: Loc,
    /// The variables that it assigns, each with the position of the loop variable that carries it.
    pub vars: Vec<(VarId, usize)>,
    /// The variables that it only reads, each with the parameters of the condition and the body
    /// for it.
    pub read: Vec<(VarId, [Value; 2])>,
    /// The variables that the function has assigned before, each with its value then.
    pub assigned_before: Vec<(VarId, Value)>,
    /// The number of its loop variables when it was traced.
    pub n_vars: usize,
}

/// A step of such a function.
#[derive(Clone, Debug)]
pub struct PartialStep {
    /// The graph.
    pub graph: Graph,
    /// The variables of the traced graph that its variables are.
    pub vars: Vec<VarId>,
    /// The queues of the traced graph that its queues are.
    pub queues: Vec<QueueId>,
}

/// The steps of a function with a loop whose iterations are steps.
///
/// Values that a step leaves to others are *kept* between steps. The kept values of the loop are
/// those that it carries, followed by those that it captures.
#[derive(Clone, Debug)]
pub struct SteppedGraph {
    /// `(inputs) -> (carried, captured, kept for the end)`
    pub begin: PartialStep,
    /// `(carried, captured) -> bool[]`
    pub condition: PartialStep,
    /// `(carried, captured) -> carried`
    pub body: PartialStep,
    /// `(carried, kept for the end) -> outputs`
    pub end: PartialStep,
    /// The number of values that the loop carries.
    pub n_carried: usize,
    /// The number of values that it captures.
    pub n_captured: usize,
}

/// Drops reads of variables that nothing uses, so that a step does not depend on these variables.
fn drop_unused_reads(graph: &mut Graph) {
    let root = graph.root();
    let nodes = graph.region(root).nodes.clone();
    let operands = nodes.iter().flat_map(|&n| &graph.node(n).operands);
    let used: FxHashSet<Value> = operands.chain(graph.outputs()).copied().collect();
    let is_unused = |n: &Node| {
        let data = graph.node(*n);
        matches!(data.op, Op::Read(_)) && !used.contains(&data.results[0])
    };
    let kept = nodes.iter().copied().filter(|n| !is_unused(n)).collect();
    graph.region_mut(root).nodes = kept;
    *graph = graph.compact();
}

/// Splits a traced function into steps.
///
/// # Errors
/// Fails if a value that steps leave to others is a list, or if a gradient flows through the loop.
pub fn split(graph: &Graph, commit: &CommitLoop) -> Result<SteppedGraph> {
    let root = graph.root();
    let nodes = &graph.region(root).nodes;
    let at = nodes.iter().position(|&n| n == commit.node).filter(|_| graph.as_while(commit.node).is_some());
    let Some(at) = at.filter(|_| graph.while_of(commit.node).n_vars() == commit.n_vars) else {
        return Err(Diagnostic::new("a gradient flows through a loop whose iterations are steps of their own")
            .at(commit.loc, "asked for here")
            .help("take gradients inside of an iteration"));
    };
    let is_assign = |n: &Node| matches!(graph.node(*n).op, Op::Assign(_));
    let before: Vec<Node> = nodes[..at].iter().copied().filter(|n| !is_assign(n)).collect();
    let after: Vec<Node> = nodes[at + 1..].iter().copied().filter(|n| !is_assign(n)).collect();
    let looped = graph.while_of(commit.node);
    let var_of: FxHashMap<usize, VarId> = commit.vars.iter().map(|&(var, i)| (i, var)).collect();
    let carried: Vec<LoopVar> = looped.vars().filter(|v| !var_of.contains_key(&v.index)).collect();
    let of_vars: Vec<(VarId, LoopVar)> =
        looped.vars().filter_map(|v| var_of.get(&v.index).map(|&var| (var, v))).collect();

    // How a step after the first gets a value of the root region.
    let is_carried = |var: VarId| commit.vars.iter().any(|&(of, _)| of == var);
    let constant = |v: Value| graph.producer(v).filter(|&n| matches!(graph.node(n).op, Op::Constant(_)));
    let how = |v: Value| constant(v).map_or(StepValue::Input, StepValue::Constant);
    let read_by = |param: Value| commit.read.iter().find(|(_, params)| params.contains(&param)).map(|&(var, _)| var);
    let captured: Vec<(Value, Value, Value)> = {
        let params = |region| graph.region(region).params[looped.n_vars()..].iter().copied();
        let outer = graph.captured(commit.node).iter().copied();
        outer.zip(params(looped.cond())).zip(params(looped.body())).map(|((o, c), b)| (o, c, b)).collect()
    };
    let is_kept = |&(outer, cond, _): &(Value, Value, Value)| read_by(cond).is_none() && how(outer) == StepValue::Input;
    let mut captured_inputs: Vec<Value> = Vec::new();
    for &(outer, ..) in captured.iter().filter(|c| is_kept(c)) {
        if !captured_inputs.contains(&outer) {
            captured_inputs.push(outer);
        }
    }

    // The values that the end needs of those before the loop.
    let is_after: FxHashSet<Node> = after.iter().copied().collect();
    let last_assigns: Vec<(VarId, Value)> = nodes
        .iter()
        .filter_map(|&n| match graph.node(n).op {
            Op::Assign(var) => Some((var, graph.node(n).operands[0])),
            _ => None,
        })
        .collect();
    let is_of_end = |v: Value| graph.producer(v).is_some_and(|n| is_after.contains(&n) || n == commit.node);
    let result_of: FxHashMap<Value, VarId> = of_vars.iter().map(|(var, v)| (v.result, *var)).collect();
    let is_done = |(var, v): &(VarId, Value)| {
        result_of.get(v) == Some(var) || (!is_carried(*var) && commit.assigned_before.contains(&(*var, *v)))
    };
    let end_assigns: Vec<(VarId, Value)> = last_assigns.into_iter().filter(|assign| !is_done(assign)).collect();
    let mut for_end: Vec<Value> = Vec::new();
    let mut end_given: Vec<(Value, StepValue)> = Vec::new();
    let assigned = end_assigns.iter().map(|&(_, v)| v);
    let used = after.iter().flat_map(|&n| graph.node(n).operands.clone()).chain(graph.outputs().iter().copied());
    for v in used.chain(assigned) {
        if is_of_end(v) || for_end.contains(&v) || end_given.iter().any(|(given, _)| *given == v) {
            continue;
        }
        match how(v) {
            StepValue::Input => for_end.push(v),
            other => end_given.push((v, other)),
        }
    }

    // Each part.
    let inputs: Vec<(Value, StepValue)> = graph.inputs().iter().map(|&v| (v, StepValue::Input)).collect();
    let inits = carried.iter().map(|v| v.init);
    let outputs: Vec<Value> = inits.chain(captured_inputs.iter().copied()).chain(for_end.iter().copied()).collect();
    let begin = graph.extract_step(&inputs, &before, &outputs, &commit.assigned_before);

    let given_in = |param: &dyn Fn(&LoopVar) -> Value, of: &dyn Fn(&(Value, Value, Value)) -> Value| {
        let mut given: Vec<(Value, StepValue)> = carried.iter().map(|v| (param(v), StepValue::Input)).collect();
        let first = |outer: Value| captured.iter().find(|c| c.0 == outer && is_kept(c)).expect("it is captured");
        given.extend(captured_inputs.iter().map(|&outer| (of(first(outer)), StepValue::Input)));
        for c in &captured {
            let value = match read_by(c.1) {
                Some(var) => StepValue::Read(var),
                None if is_kept(c) => StepValue::SameAs(of(first(c.0))),
                None => how(c.0),
            };
            if value != StepValue::SameAs(of(c)) {
                given.push((of(c), value));
            }
        }
        given.extend(of_vars.iter().map(|(var, v)| (param(v), StepValue::Read(*var))));
        given
    };
    let of_cond = given_in(&|v| v.cond_param, &|c| c.1);
    let of_body = given_in(&|v| v.body_param, &|c| c.2);
    let condition = graph.extract_step(&of_cond, &graph.region(looped.cond()).nodes, &[looped.predicate()], &[]);
    let nexts: Vec<Value> = carried.iter().map(|v| v.next).collect();
    let body_assigns: Vec<(VarId, Value)> = of_vars.iter().map(|&(var, v)| (var, v.next)).collect();
    let body = graph.extract_step(&of_body, &graph.region(looped.body()).nodes, &nexts, &body_assigns);

    let mut given: Vec<(Value, StepValue)> = carried.iter().map(|v| (v.result, StepValue::Input)).collect();
    given.extend(for_end.iter().map(|&v| (v, StepValue::Input)));
    given.extend(end_given);
    given.extend(of_vars.iter().map(|(var, v)| (v.result, StepValue::Read(*var))));
    let end = graph.extract_step(&given, &after, graph.outputs(), &end_assigns);

    for part in [&begin, &condition, &body, &end] {
        let crossing = part.inputs().iter().chain(part.outputs());
        if let Some(list) = crossing.copied().find(|&v| part.ty(v).as_tensor().is_none()) {
            let message = format!("a loop whose iterations are steps of their own carries {}", part.ty(list).kind());
            return Err(Diagnostic::new(message)
                .at(commit.loc, "asked for here")
                .help("such a loop carries and captures tensors alone: stack the list, or use a queue"));
        }
    }
    let step = |mut graph: Graph| {
        drop_unused_reads(&mut graph);
        let (vars, queues) = (drop_variables(&mut graph), drop_queues(&mut graph));
        PartialStep { graph, vars, queues }
    };
    Ok(SteppedGraph {
        begin: step(begin),
        condition: step(condition),
        body: step(body),
        end: step(end),
        n_carried: carried.len(),
        n_captured: captured_inputs.len(),
    })
}
