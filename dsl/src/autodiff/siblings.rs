//! Gradients of one result of a construct with respect to another result.
//!
//! The dependence between the two is inside the construct, but a result is only the value outside
//! it. A backward pass that starts outside would yield zero, whereas the same program without the
//! construct yields the derivative. So this is an error.

use super::activity::{activate, active_in};
use crate::ir::{CallKind, GraphBuilder, Node, Op, Value, ValueDef};
use crate::{Diagnostic, Loc};

/// Rejects a gradient whose loss depends on a value of `wrt` inside the construct that computes it.
pub(super) fn check(graph: &GraphBuilder, losses: &[Value], wrt: &[Value], loc: Loc) -> Result<(), Diagnostic> {
    for &v in wrt {
        let ValueDef::Result(node, i) = graph.value(v).def else { continue };
        let siblings = computed_from(graph, node, i as usize);
        if siblings.is_empty() {
            continue;
        }
        let active = active_in(graph, &siblings);
        if losses.iter().any(|loss| active.contains(loss)) {
            let data = graph.node(node);
            let name = graph.value(v).name.map_or_else(|| "a value".to_owned(), |name| format!("`{name}`"));
            let what = match (graph.as_cond(node), graph.as_while(node)) {
                (Some(_), _) => "branch",
                (_, Some(_)) => "loop",
                (None, None) => "checkpoint",
            };
            return Err(Diagnostic::new(format!(
                "gradients: the loss depends on {name} inside the {what} that computes both"
            ))
            .at(loc, format!("with respect to {name}"))
            .at(data.loc, format!("this {what}"))
            .help(
                "take the gradient with respect to its inputs, or compute the loss after it: gradients between \
                 results of one construct are not supported",
            ));
        }
    }
    Ok(())
}

/// Returns the other results of a construct that depend on one of its results.
fn computed_from(graph: &GraphBuilder, node: Node, result: usize) -> Vec<Value> {
    let data = graph.node(node);
    if matches!(data.op, Op::Call(CallKind::CustomGradient { .. })) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for &region in graph.result_regions(node) {
        let yields = &graph.region(region).yields;
        let own = yields[result];
        // A value that only passes through is not computed by the construct.
        let passes = matches!(graph.value(own).def, ValueDef::Param(..));
        let mut active = [own].into_iter().collect();
        activate(graph, region, &mut active);
        for (j, y) in yields.iter().enumerate() {
            let alias = passes && *y == own;
            if j != result && active.contains(y) && !alias && !found.contains(&data.results[j]) {
                found.push(data.results[j]);
            }
        }
    }
    found
}
