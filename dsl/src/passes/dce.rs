//! Dead-code elimination.

use super::Pass;
use crate::Graph;
use crate::ir::{CallKind, Node, Op, Region, Value, ValueDef};
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
#[derive(Clone)]
pub(super) struct Live<'g> {
    pub(super) graph: &'g Graph,
    pub(super) values: Vec<bool>,
    pub(super) nodes: Vec<bool>,
    /// Live values whose dependencies are not marked yet.
    todo: Vec<Value>,
}

impl<'g> Live<'g> {
    /// Creates the marking of a graph, with nothing live.
    pub(super) fn new(graph: &'g Graph) -> Live<'g> {
        let (values, nodes) = (vec![false; graph.n_values()], vec![false; graph.n_nodes()]);
        Live { graph, values, nodes, todo: Vec::new() }
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
                ValueDef::Param(region, i) => self.param(region, i as usize),
            }
        }
    }

    pub(super) fn values_needed(&mut self, values: &[Value]) {
        for &v in values {
            if !std::mem::replace(&mut self.values[v.index()], true) {
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
            let data = g.node(node);
            match data.op {
                Op::Cond => self.values_needed(&data.operands[..1]),
                Op::While { .. } => self.values_needed(&g.region(data.regions[0]).yields),
                Op::Call(CallKind::CustomGradient { .. }) => self.whole(node),
                _ => {}
            }
            next = g.region(data.region).owner;
        }
    }

    fn result(&mut self, node: Node, i: usize) {
        let g = self.graph;
        let data = g.node(node);
        self.node(node);
        match data.op {
            Op::Cond => {
                for &region in &data.regions {
                    self.values_needed(&g.region(region).yields[i..=i]);
                }
            }
            Op::While { .. } => self.carried(node, i),
            Op::Call(CallKind::Checkpoint | CallKind::Recompute) => {
                self.values_needed(&g.region(data.regions[0]).yields[i..=i]);
            }
            Op::Call(CallKind::CustomGradient { .. }) => self.whole(node),
            _ => self.values_needed(&data.operands),
        }
    }

    fn param(&mut self, region: Region, i: usize) {
        let g = self.graph;
        let Some(node) = g.region(region).owner else {
            return;
        };
        self.node(node);
        let data = g.node(node);
        match data.op {
            Op::While { .. } if i < g.n_carried(node) => self.carried(node, i),
            Op::While { .. } | Op::Call(_) => self.values_needed(data.operands.get(i..=i).unwrap_or_default()),
            _ => self.values_needed(&data.operands[i + 1..=i + 1]),
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
    fn carried(&mut self, node: Node, i: usize) {
        let g = self.graph;
        let data = g.node(node);
        let [cond, body] = data.regions[..] else { panic!("a loop has two regions") };
        let whole = [
            data.operands[i],
            g.region(cond).params[i],
            g.region(body).params[i],
            g.region(body).yields[i],
            data.results[i],
        ];
        self.values_needed(&whole);
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
    let op = graph.node(node).op.clone();
    if matches!(op, Op::Call(CallKind::CustomGradient { .. })) {
        return;
    }
    let is_cond = op == Op::Cond;
    let regions = graph.node(node).regions.clone();
    let results = graph.node(node).results.clone();
    let stays: Vec<bool> = results.iter().map(|r| values[r.index()]).collect();
    if stays.contains(&false) {
        *changed = true;
        graph.set_results(node, kept(&results, &stays));
        let yielding = if matches!(op, Op::While { .. }) { &regions[1..] } else { &regions[..] };
        for &region in yielding {
            let yields = kept(&graph.region(region).yields, &stays);
            graph.region_mut(region).yields = yields;
        }
    }
    let n = graph.region(regions[0]).params.len();
    let is_needed = |i: usize| regions.iter().any(|&r| values[graph.region(r).params[i].index()]);
    let stays: Vec<bool> = (0..n).map(is_needed).collect();
    if stays.contains(&false) {
        *changed = true;
        for &region in &regions {
            let params = kept(&graph.region(region).params, &stays);
            graph.set_params(region, params);
        }
        let first = usize::from(is_cond);
        let operands = &graph.node(node).operands;
        let operands = [&operands[..first], &kept(&operands[first..], &stays)].concat();
        graph.node_mut(node).operands = operands;
    }
}

fn kept(values: &[Value], stays: &[bool]) -> Vec<Value> {
    values.iter().zip(stays).filter(|(_, stays)| **stays).map(|(v, _)| *v).collect()
}
