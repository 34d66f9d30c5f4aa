//! Gradients taken in the body of an open loop, and their dependence on earlier iterations.
//!
//! Such a gradient covers one iteration and does not extend to earlier iterations. The gradient is
//! correct only if the loop variables that it reads do not depend on `wrt`. That is known only when
//! the loop closes, so each of these gradients is recorded until then, with the loop variables that
//! it reads.

use super::activity::{activate, active_in};
use super::{Active, AddedValues};
use crate::ir::{GraphBuilder, Value};
use crate::{Diagnostic, Loc};
use rustc_hash::FxHashSet;

/// A gradient taken in the body of a loop that is still open.
#[derive(Debug)]
pub(super) struct OpenLoopGradient {
    /// The loop variables of open loops on which the loss depends.
    reads: FxHashSet<Value>,
    wrt: Vec<Value>,
    loc: Loc,
}

/// Records a gradient for the enclosing loops.
pub(super) fn remember(
    graph: &GraphBuilder,
    added: &mut AddedValues,
    losses: impl Iterator<Item = Value>,
    wrt: &[Value],
    loc: Loc,
) {
    let reads = loop_variables_read(graph, losses.collect());
    if !reads.is_empty() {
        let wrt = wrt.to_vec();
        added.of_one_iteration.push(OpenLoopGradient { reads, wrt, loc });
    }
}

/// Returns the error for a gradient whose path goes through a loop variable.
pub(super) fn error(name: Option<&'static str>, loc: Loc) -> Diagnostic {
    let name = name.map_or_else(|| "a value".to_owned(), |name| format!("`{name}`"));
    Diagnostic::new(format!("gradients: the loss depends on {name} from an earlier iteration of the enclosing loop"))
        .at(loc, "a gradient taken inside a loop covers only the current iteration")
        .help("take the gradient after the loop, or cut the path with `stop_gradient()`")
}

/// Returns the loop variables of open loops on which `of` depends differentiably.
fn loop_variables_read(graph: &GraphBuilder, of: FxHashSet<Value>) -> FxHashSet<Value> {
    let depths = 1..=graph.depth();
    let variables: Vec<Value> = depths
        .flat_map(|depth| {
            let params = graph.open_params(depth).into_iter().map(|(param, _)| param);
            params.filter(move |&p| graph.is_open_var(depth, p))
        })
        .filter(|&p| graph.ty(p).is_differentiable())
        .collect();
    if variables.is_empty() {
        return FxHashSet::default();
    }
    let active = Active(active_in(graph, &variables));
    let mut reached = of;
    for depth in (0..=graph.depth()).rev() {
        let region = graph.region_at(depth);
        reached = active.reached(graph, region, &mut reached.into_iter());
        let outer = graph.open_params(depth).into_iter();
        let outer: Vec<_> = outer.filter(|(p, _)| reached.contains(p)).collect();
        reached.extend(outer.into_iter().map(|(_, outer)| outer));
    }
    variables.into_iter().filter(|v| reached.contains(v)).collect()
}

impl AddedValues {
    /// Checks the gradients taken in the body of the innermost open loop, which is about to close.
    ///
    /// `carried` holds the loop variables and their next values.
    pub(crate) fn check_gradients_of_one_iteration(
        &mut self,
        graph: &GraphBuilder,
        carried: &[(Value, Value)],
    ) -> Result<(), Diagnostic> {
        let depth = graph.depth();
        for mut gradient in std::mem::take(&mut self.of_one_iteration) {
            let read_here = gradient.reads.clone();
            // The next values of these loop variables may in turn read other loop variables.
            loop {
                let next = carried.iter().filter(|(p, _)| gradient.reads.contains(p));
                let more = loop_variables_read(graph, next.map(|&(_, next)| next).collect());
                let before = gradient.reads.len();
                gradient.reads.extend(more);
                if gradient.reads.len() == before {
                    break;
                }
            }
            let outside: Vec<_> = (0..depth).map(|d| graph.region_at(d)).collect();
            let wrt = gradient.wrt.iter().copied();
            let wrt: Vec<_> = wrt.filter(|&v| outside.contains(&graph.region_of(v))).collect();
            let mut active = active_in(graph, &wrt);
            loop {
                let active_next = carried.iter().filter(|(_, next)| active.contains(next));
                let params: Vec<Value> = active_next.map(|&(p, _)| p).collect();
                let before = active.len();
                active.extend(params);
                if active.len() == before {
                    break;
                }
                activate(graph, graph.region_at(depth), &mut active);
            }
            let way = carried.iter().find(|(p, _)| read_here.contains(p) && active.contains(p));
            if let Some(&(param, _)) = way {
                return Err(error(graph.value(param).name, gradient.loc));
            }
            let here = |v: &Value| carried.iter().any(|(p, _)| p == v);
            gradient.reads.retain(|v| !here(v));
            if !gradient.reads.is_empty() {
                self.of_one_iteration.push(gradient);
            }
        }
        Ok(())
    }
}
