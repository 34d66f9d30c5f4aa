//! Dead-code elimination.

use super::Pass;
use crate::Graph;
use crate::ir::{CallKind, LoopVar, Node, Op, ParamSource, Region, Value, ValueDef};
use crate::ops::Effects;

/// Removes everything that no output and no effect depends on.
///
/// Before: verified. After: verified, and an output, assignment, print or assertion depends on
/// every node, directly or indirectly. The same holds for results of a `cond`, loop variables (one
/// that only feeds itself is removed) and captures.
///
/// Only a `custom_gradient` is kept whole. Unused operations that may fail and unused loops that
/// may not terminate are removed too.
#[derive(Clone, Copy, Debug)]
pub struct Dce;

impl Pass for Dce {
    fn name(&self) -> &'static str {
        "dce"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        let mut live = Live::new(graph);
        live.mark();
        let Live { values, nodes, .. } = live;
        let mut changed = false;
        sweep(graph, graph.root(), &values, &nodes, &mut changed);
        changed
    }
}

/// The live values and nodes of a graph.
pub(super) struct Live<'g> {
    pub(super) graph: &'g Graph,
    pub(super) values: Vec<bool>,
    pub(super) nodes: Vec<bool>,
    /// The live values and nodes in the order in which they were marked.
    pub(super) marked: Marked,
    /// Live values whose dependencies are not marked yet.
    todo: Vec<Value>,
}

/// Values and nodes in the order in which they were marked as live.
#[derive(Default)]
pub(super) struct Marked {
    pub(super) values: Vec<Value>,
    pub(super) nodes: Vec<Node>,
}

impl<'g> Live<'g> {
    /// Creates the marking of a graph, with nothing live.
    pub(super) fn new(graph: &'g Graph) -> Live<'g> {
        let (values, nodes) = (vec![false; graph.n_values()], vec![false; graph.n_nodes()]);
        Live { graph, values, nodes, marked: Marked::default(), todo: Vec::new() }
    }

    /// Removes all marks but the first ones, whose dependencies are marked.
    pub(super) fn unmark(&mut self, n_values: usize, n_nodes: usize) {
        assert!(self.todo.is_empty(), "the dependencies of all values are marked");
        for v in self.marked.values.drain(n_values..) {
            self.values[v.index()] = false;
        }
        for node in self.marked.nodes.drain(n_nodes..) {
            self.nodes[node.index()] = false;
        }
    }

    fn mark(&mut self) {
        let g = self.graph;
        self.values_needed(g.outputs());
        let mut effects = Vec::new();
        g.visit_nodes(g.root(), &mut |n| {
            if g.node(n).op.effects() >= Effects::WritesState {
                effects.push(n);
            }
        });
        for node in effects {
            self.effect(node);
        }
        self.settle();
    }

    /// Marks a node as live for its effect, along with its operands.
    pub(super) fn effect(&mut self, node: Node) {
        self.node(node);
        self.values_needed(&self.graph.node(node).operands);
    }

    /// Marks everything that the live values depend on.
    pub(super) fn settle(&mut self) {
        let g = self.graph;
        while let Some(v) = self.todo.pop() {
            match g.value(v).def {
                ValueDef::Result(node, i) => self.result(node, i as usize),
                ValueDef::Param(region, _) => self.param(region, v),
            }
        }
    }

    pub(super) fn values_needed(&mut self, values: &[Value]) {
        for &v in values {
            if !std::mem::replace(&mut self.values[v.index()], true) {
                self.marked.values.push(v);
                self.todo.push(v);
            }
        }
    }

    /// Marks a node and its enclosing nodes, along with the predicates that decide whether it runs.
    fn node(&mut self, node: Node) {
        let g = self.graph;
        let mut next = Some(node);
        while let Some(node) = next {
            if std::mem::replace(&mut self.nodes[node.index()], true) {
                return;
            }
            self.marked.nodes.push(node);
            let data = g.node(node);
            if let Some(predicate) = g.predicate(node) {
                self.values_needed(&[predicate]);
            }
            if let Op::Call(CallKind::CustomGradient { .. }) = data.op {
                self.whole(node);
            }
            next = g.region(data.region).owner;
        }
    }

    fn result(&mut self, node: Node, i: usize) {
        let g = self.graph;
        let data = g.node(node);
        self.node(node);
        match data.op {
            _ if g.as_while(node).is_some() => self.loop_var(g.while_of(node).var(i)),
            Op::Cond | Op::Call(CallKind::Checkpoint | CallKind::Recompute) => {
                for &region in g.result_regions(node) {
                    self.values_needed(&g.region(region).yields[i..=i]);
                }
            }
            Op::Call(CallKind::CustomGradient { .. }) => self.whole(node),
            _ => self.values_needed(&data.operands),
        }
    }

    fn param(&mut self, region: Region, param: Value) {
        if let Some(node) = self.graph.region(region).owner {
            self.node(node);
        }
        match self.graph.source_of(param) {
            ParamSource::LoopVar(var) => self.loop_var(var),
            ParamSource::Capture(outer) => self.values_needed(&[outer]),
            ParamSource::Input(_) | ParamSource::Own { .. } => {}
        }
    }

    /// Marks a `custom_gradient` call as a whole, since the values its gradient will need are
    /// unknown.
    fn whole(&mut self, node: Node) {
        let g = self.graph;
        let data = g.node(node);
        self.values_needed(&data.operands);
        self.values_needed(&data.results);
        for &region in &data.regions {
            self.values_needed(&g.region(region).params);
            self.values_needed(&g.region(region).yields);
        }
    }

    /// Marks a loop variable as a whole: initial value, parameters, next value and result.
    fn loop_var(&mut self, var: LoopVar) {
        self.values_needed(&[var.init, var.cond_param, var.body_param, var.next, var.result]);
    }
}

pub(super) fn sweep(graph: &mut Graph, region: Region, values: &[bool], nodes: &[bool], changed: &mut bool) {
    let before = graph.region(region).nodes.len();
    graph.region_mut(region).nodes.retain(|n| nodes[n.index()]);
    *changed |= graph.region(region).nodes.len() < before;
    for node in graph.region(region).nodes.clone() {
        if graph.node(node).regions.is_empty() {
            continue;
        }
        narrow(graph, node, values, changed);
        for inner in graph.node(node).regions.clone() {
            sweep(graph, inner, values, nodes, changed);
        }
    }
}

/// Drops the dead results and captures of a control-flow node.
fn narrow(graph: &mut Graph, node: Node, values: &[bool], changed: &mut bool) {
    let data = graph.node(node);
    if matches!(data.op, Op::Call(CallKind::CustomGradient { .. })) {
        return;
    }
    let is_live = |v: &Value| values[v.index()];
    let results: Vec<bool> = data.results.iter().map(is_live).collect();
    let mut captures = vec![false; graph.captured(node).len()];
    for &region in &data.regions {
        for (stays, (param, _)) in captures.iter_mut().zip(graph.captures_in(region)) {
            *stays |= is_live(&param);
        }
    }
    if results.contains(&false) {
        *changed = true;
        graph.retain_results(node, &results);
    }
    if captures.contains(&false) {
        *changed = true;
        graph.retain_captures(node, &captures);
    }
}
