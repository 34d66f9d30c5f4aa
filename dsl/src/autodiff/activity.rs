//! Activity analysis: the values that depend on `wrt`, and those among them on which the loss
//! depends.

use super::*;
use crate::ir::CallKind;

/// Returns the values that depend differentiably on `wrt`, in the open regions and all inner
/// regions.
pub(super) fn active_in(t: &trace::Tracer, wrt: &[Value]) -> HashSet<Value> {
    let mut active: HashSet<Value> = wrt.iter().copied().collect();
    for depth in 0..=t.depth_now() {
        if depth > 0 {
            for (param, outer) in t.open_params(depth) {
                if active.contains(&outer) {
                    active.insert(param);
                }
            }
        }
        activate(&t.graph, t.region_of_depth(depth), &mut active);
    }
    active
}

pub(super) fn activate(graph: &crate::Graph, region: Region, active: &mut HashSet<Value>) {
    for &node in &graph.region(region).nodes {
        let data = graph.node(node);
        if !data.operands.iter().any(|v| active.contains(v)) {
            continue;
        }
        let bind = |from: &[Value], to: &[Value], active: &mut HashSet<Value>| {
            let mut changed = false;
            for (a, b) in from.iter().zip(to) {
                if active.contains(a) {
                    changed |= active.insert(*b);
                }
            }
            changed
        };
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
            Op::Cond => {
                for &arm in &data.regions {
                    bind(&data.operands[1..], &graph.region(arm).params, active);
                    activate(graph, arm, active);
                    bind(&graph.region(arm).yields, &data.results, active);
                }
            }
            Op::While { .. } => {
                let body = graph.region(data.regions[1]);
                bind(&data.operands, &body.params, active);
                loop {
                    activate(graph, data.regions[1], active);
                    if !bind(&body.yields, &body.params, active) {
                        break;
                    }
                }
                bind(&body.params[..data.results.len()], &data.results, active);
            }
            Op::Call(kind) => {
                bind(&data.operands, &graph.region(data.regions[0]).params, active);
                activate(graph, data.regions[0], active);
                bind(&graph.region(data.regions[0]).yields, &data.results, active);
                // A custom gradient may depend on an argument even if the function does not.
                if let CallKind::CustomGradient { args } = *kind
                    && data.operands[..args].iter().any(|v| active.contains(v))
                {
                    active.extend(data.results.iter().filter(|&&r| graph.ty(r).is_differentiable()));
                }
            }
            Op::Constant(_) | Op::Read(_) | Op::Assign(_) | Op::Assert { .. } | Op::Print { .. } => {}
        }
    }
}

impl Sweep {
    pub(super) fn is_active(&self, v: Value) -> bool {
        self.active.contains(&v)
    }

    /// Returns the values of `region` that get a cotangent if `seeds` do.
    pub(super) fn reached(
        &self,
        graph: &crate::Graph,
        region: Region,
        seeds: &mut dyn Iterator<Item = Value>,
    ) -> HashSet<Value> {
        let mut reached: HashSet<Value> = seeds.filter(|&v| self.is_active(v)).collect();
        for &node in graph.region(region).nodes.iter().rev() {
            let data = graph.node(node);
            if !data.results.iter().any(|r| reached.contains(r)) {
                continue;
            }
            let hit = |i: usize| reached.contains(&data.results[i]);
            let operands: Vec<Value> = match &data.op {
                Op::Prim(..) | Op::Stack(_) | Op::List(_) => data.operands.clone(),
                Op::Cond => {
                    let mut operands = Vec::new();
                    for &arm in &data.regions {
                        let arm_data = graph.region(arm);
                        let mut seeds = arm_data.yields.iter().enumerate().filter(|&(i, _)| hit(i)).map(|(_, &v)| v);
                        let inner = self.reached(graph, arm, &mut seeds);
                        let pairs = arm_data.params.iter().zip(&data.operands[1..]);
                        operands.extend(pairs.filter(|(p, _)| inner.contains(p)).map(|(_, &v)| v));
                    }
                    operands
                }
                Op::While { .. } => {
                    let seeds = (0..data.results.len()).filter(|&i| hit(i)).collect();
                    let params = self.reached_params(graph, data, seeds);
                    params.into_iter().map(|i| data.operands[i]).collect()
                }
                Op::Call(CallKind::Checkpoint | CallKind::Recompute) => {
                    let body = graph.region(data.regions[0]);
                    let mut seeds = body.yields.iter().enumerate().filter(|&(i, _)| hit(i)).map(|(_, &v)| v);
                    let inner = self.reached(graph, data.regions[0], &mut seeds);
                    let pairs = body.params.iter().zip(&data.operands);
                    pairs.filter(|(p, _)| inner.contains(p)).map(|(_, &v)| v).collect()
                }
                Op::Call(CallKind::CustomGradient { args }) => data.operands[..*args].to_vec(),
                Op::Constant(_) | Op::Read(_) | Op::Assign(_) | Op::Assert { .. } | Op::Print { .. } => vec![],
            };
            reached.extend(operands.into_iter().filter(|&v| self.is_active(v)));
        }
        reached
    }

    /// Returns the indices of the parameters of a loop that get a cotangent if the results `seeds`
    /// do, in order.
    ///
    /// A loop variable also gets one if a later iteration provides it.
    pub(super) fn reached_params(&self, graph: &crate::Graph, data: &NodeData, seeds: Vec<usize>) -> Vec<usize> {
        let body = graph.region(data.regions[1]);
        let n = data.results.len();
        let mut hit: HashSet<usize> = seeds.into_iter().filter(|&i| self.is_active(body.params[i])).collect();
        loop {
            let mut seeds = hit.iter().filter(|&&i| i < n).map(|&i| body.yields[i]);
            let inner = self.reached(graph, data.regions[1], &mut seeds);
            let before = hit.len();
            hit.extend((0..body.params.len()).filter(|&i| inner.contains(&body.params[i])));
            if hit.len() == before {
                let mut hit: Vec<usize> = hit.into_iter().collect();
                hit.sort_unstable();
                return hit;
            }
        }
    }
}
