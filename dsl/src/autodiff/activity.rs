//! Activity analysis: the values that depend on `wrt`, and those among them on which the loss
//! depends.

use super::*;
use crate::ir::{CallKind, LoopVar};

/// Returns the values that depend differentiably on `wrt`, in the open regions and all inner
/// regions.
pub(crate) fn active_in(graph: &GraphBuilder, wrt: &[Value]) -> FxHashSet<Value> {
    let mut active: FxHashSet<Value> = wrt.iter().copied().collect();
    for depth in 0..=graph.depth() {
        pass_on(graph.open_params(depth).into_iter(), &mut active);
        activate(graph, graph.region_at(depth), &mut active);
    }
    active
}

pub(super) fn activate(graph: &crate::Graph, region: Region, active: &mut FxHashSet<Value>) {
    for &node in &graph.region(region).nodes {
        let data = graph.node(node);
        if !data.operands.iter().any(|v| active.contains(v)) {
            continue;
        }
        match &data.op {
            Op::Prim(def, _) if matches!(def.grad, Grad::Zero(_)) => {}
            Op::List(ListOp::ZerosLike) => {}
            Op::Prim(..) | Op::Stack(_) | Op::List(_) => {
                for &r in &data.results {
                    if graph.ty(r).is_differentiable() {
                        active.insert(r);
                    }
                }
            }
            Op::While { .. } => {
                let data = graph.while_of(node);
                pass_on(graph.entry(data.body()), active);
                loop {
                    activate(graph, data.body(), active);
                    if !pass_on(data.vars().map(|var| (var.body_param, var.next)), active) {
                        break;
                    }
                }
                pass_on(data.vars().map(|var| (var.result, var.body_param)), active);
            }
            Op::Cond | Op::Call(_) => {
                for &inner in graph.result_regions(node) {
                    pass_on(graph.entry(inner), active);
                    activate(graph, inner, active);
                    let yields = graph.region(inner).yields.iter().copied();
                    pass_on(data.results.iter().copied().zip(yields), active);
                }
                // A custom gradient may depend on an argument even if the function does not.
                let args = graph.as_call(node).map_or(&[][..], |call| call.args());
                if args.iter().any(|v| active.contains(v)) {
                    active.extend(data.results.iter().filter(|&&r| graph.ty(r).is_differentiable()));
                }
            }
            Op::Constant(_)
            | Op::Read(_)
            | Op::Assign(_)
            | Op::Assert { .. }
            | Op::Print { .. }
            | Op::Queue(..)
            | Op::File(_) => {}
        }
    }
}

/// Adds the first value of each pair whose second value is active. Returns whether any is new.
fn pass_on(pairs: impl Iterator<Item = (Value, Value)>, active: &mut FxHashSet<Value>) -> bool {
    let mut is_new = false;
    for (to, from) in pairs {
        is_new |= active.contains(&from) && active.insert(to);
    }
    is_new
}

impl Sweep<'_> {
    pub(super) fn is_active(&self, v: Value) -> bool {
        self.active.0.contains(&v)
    }
}

/// The parameters of the bodies of loops that get a cotangent, as far as they are known.
type ReachedInLoops = FxHashMap<Node, FxHashSet<Value>>;

/// The values that depend differentiably on `wrt`.
pub(super) struct Active(pub(super) FxHashSet<Value>);

impl Active {
    fn contains(&self, v: Value) -> bool {
        self.0.contains(&v)
    }

    /// Returns the values of `region` that get a cotangent if `seeds` do.
    pub(super) fn reached(
        &self,
        graph: &crate::Graph,
        region: Region,
        seeds: &mut dyn Iterator<Item = Value>,
    ) -> FxHashSet<Value> {
        self.reached_from(graph, region, seeds, &mut FxHashMap::default())
    }

    /// Returns what [`reached`](Self::reached) does. `known` has what was found for fewer seeds.
    fn reached_from(
        &self,
        graph: &crate::Graph,
        region: Region,
        seeds: &mut dyn Iterator<Item = Value>,
        known: &mut ReachedInLoops,
    ) -> FxHashSet<Value> {
        let mut reached: FxHashSet<Value> = seeds.filter(|&v| self.contains(v)).collect();
        for &node in graph.region(region).nodes.iter().rev() {
            let data = graph.node(node);
            if !data.results.iter().any(|r| reached.contains(r)) {
                continue;
            }
            let hit = |i: usize| reached.contains(&data.results[i]);
            let operands: Vec<Value> = match &data.op {
                Op::Prim(..) | Op::Stack(_) | Op::List(_) => data.operands.clone(),
                Op::While { .. } => {
                    let (vars, captures) = self.reached_in_loop_from(graph, node, |r| reached.contains(&r), known);
                    let inits = vars.iter().map(|var| var.init);
                    inits.chain(captures.iter().map(|&(_, outer)| outer)).collect()
                }
                Op::Cond | Op::Call(CallKind::Checkpoint | CallKind::Recompute) => {
                    let mut operands = Vec::new();
                    for &inner in graph.result_regions(node) {
                        let yields = graph.region(inner).yields.iter().enumerate();
                        let mut seeds = yields.filter(|&(i, _)| hit(i)).map(|(_, &v)| v);
                        let reached = self.reached_from(graph, inner, &mut seeds, known);
                        let pairs = graph.entry(inner).filter(|(param, _)| reached.contains(param));
                        operands.extend(pairs.map(|(_, outer)| outer));
                    }
                    operands
                }
                Op::Call(CallKind::CustomGradient { .. }) => graph.call_of(node).args().to_vec(),
                Op::Constant(_)
                | Op::Read(_)
                | Op::Assign(_)
                | Op::Assert { .. }
                | Op::Print { .. }
                | Op::Queue(..)
                | Op::File(_) => vec![],
            };
            reached.extend(operands.into_iter().filter(|&v| self.contains(v)));
        }
        reached
    }

    /// Returns the loop variables that get a cotangent if results do, and the captures that do,
    /// each as parameter of the body and value outside.
    ///
    /// A loop variable also gets one if a later iteration provides it.
    pub(super) fn reached_in_loop(
        &self,
        graph: &crate::Graph,
        node: Node,
        is_seed: impl Fn(Value) -> bool,
    ) -> (Vec<LoopVar>, Vec<(Value, Value)>) {
        self.reached_in_loop_from(graph, node, is_seed, &mut FxHashMap::default())
    }

    fn reached_in_loop_from(
        &self,
        graph: &crate::Graph,
        node: Node,
        is_seed: impl Fn(Value) -> bool,
        known: &mut ReachedInLoops,
    ) -> (Vec<LoopVar>, Vec<(Value, Value)>) {
        let data = graph.while_of(node);
        let params = &graph.region(data.body()).params;
        let seeds = data.vars().filter(|var| is_seed(var.result)).map(|var| var.body_param);
        // Loops around this one come here again with more seeds. To begin with what was found
        // before keeps the time of nested loops from doubling with each level.
        let mut hit = known.remove(&node).unwrap_or_default();
        hit.extend(seeds.filter(|&param| self.contains(param)));
        loop {
            let mut seeds = data.vars().filter(|var| hit.contains(&var.body_param)).map(|var| var.next);
            let inner = self.reached_from(graph, data.body(), &mut seeds, known);
            let before = hit.len();
            hit.extend(params.iter().filter(|param| inner.contains(param)));
            if hit.len() == before {
                let vars = data.vars().filter(|var| hit.contains(&var.body_param)).collect();
                let captures = graph.captures_in(data.body()).filter(|(param, _)| hit.contains(param)).collect();
                known.insert(node, hit);
                return (vars, captures);
            }
        }
    }
}
