//! Attention computed by other operations.

use super::{Dce, Pass};
use crate::Graph;
use crate::ir::{GraphBuilder, InsertPoint, Op, Region};
use crate::ops::{InGraph, ValueCx, expanded_attention, prim};
use std::cell::RefCell;

/// Returns the graph with each attention and gradient of attention as matmuls and softmaxes, or
/// `None` if there is none.
///
/// It is for devices without a kernel for them. All scores of queries with keys are in memory then.
#[must_use]
pub fn expand_attention(graph: &Graph) -> Option<Graph> {
    let mut has_attention = false;
    graph.visit_nodes(graph.root(), &mut |node| has_attention |= is_attention(&graph.node(node).op));
    if !has_attention {
        return None;
    }
    let builder = RefCell::new(GraphBuilder::new(graph.clone()));
    expand(&builder, graph.root());
    let mut expanded = builder.into_inner().into_graph();
    Dce.run(&mut expanded);
    Some(expanded.compact())
}

fn is_attention(op: &Op) -> bool {
    matches!(op, Op::Prim(prim::ATTENTION | prim::ATTENTION_GRAD, _))
}

fn expand(builder: &RefCell<GraphBuilder>, region: Region) {
    let nodes = builder.borrow_mut().take_nodes(region);
    for node in nodes {
        builder.borrow_mut().update_operands(node);
        let data = builder.borrow().node(node).clone();
        data.regions.iter().for_each(|&inner| expand(builder, inner));
        match &data.op {
            Op::Prim(op, attrs) if is_attention(&data.op) => {
                builder.borrow_mut().at(InsertPoint::End(region), data.origin());
                let context = InGraph { builder };
                let operands: Vec<_> = data.operands.iter().map(|&v| context.value(v)).collect();
                let result = context.written_as(op.name, || expanded_attention(&operands, attrs));
                builder.borrow_mut().replace(data.results[0], result.value());
            }
            _ => builder.borrow_mut().append(node),
        }
    }
    builder.borrow_mut().update_yields(region);
}
