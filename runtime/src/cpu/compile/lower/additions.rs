//! Rows added to a variable at the end of a step.
//!
//! `assign @v, scatter_add(read @v, ids, rows)` would copy the variable twice: to modify a copy,
//! and to assign the result. If the new value has no other users, the rows are kept until no
//! instruction can fail any more, and are then added to the variable in place. The cost is
//! proportional to the number of rows, and a failing step leaves the variable unmodified. Indices
//! are checked where the operation is in the program.

use super::{Kernel, Lower};
use crate::cpu::compile::Instr;
use crate::cpu::kernels::SourceOp;
use crate::cpu::kernels::index::IndexPattern;
use crate::cpu::memory::{Base, Out, TensorOperand, View};
use anabranch_dsl::ir::{Attrs, Graph, Node, Op, Users, Value, users};
use anabranch_dsl::ops::attributes::Along;
use anabranch_dsl::ops::{Prim, prim};
use anabranch_dsl::{Loc, Result};
use rustc_hash::FxHashMap;
use std::cell::LazyCell;

/// Returns the nodes that become additions at the end of the step, with the index of their
/// variable: the scatter operations and the assignment of the result.
pub(super) fn additions(graph: &Graph) -> FxHashMap<Node, usize> {
    // Most graphs add no rows to a variable.
    let users = LazyCell::new(|| users(graph));
    let users_of = |value: Value| users[value.index()];
    let mut touched = vec![[0; 2]; graph.vars.len()];
    graph.visit_nodes(graph.root(), &mut |node| match graph.node(node).op {
        Op::Read(var) => touched[var.index()][0] += 1,
        Op::Assign(var) => touched[var.index()][1] += 1,
        _ => {}
    });
    let mut found = FxHashMap::default();
    for &node in &graph.region(graph.root()).nodes {
        let data = graph.node(node);
        if let Op::Assign(var) = data.op
            && touched[var.index()] == [1, 1]
            && let Some(chain) = chain(graph, &users_of, node, data.operands[0])
            && graph.producer(chain.1).is_some_and(|read| graph.node(read).op == Op::Read(var))
        {
            found.extend(chain.0.into_iter().chain([node]).map(|node| (node, var.index())));
        }
    }
    found
}

/// Returns a chain of scatter operations, each applied to the result of the next, and the operand
/// of the last. `value` is the result of the first, and `user` its only user.
fn chain(
    graph: &Graph,
    users_of: &dyn Fn(Value) -> Users,
    mut user: Node,
    mut value: Value,
) -> Option<(Vec<Node>, Value)> {
    let mut chain = Vec::new();
    while let Some(node) = graph.producer(value)
        && let Op::Prim(def, _) = &graph.node(node).op
        && matches!(*def, prim::SCATTER_ADD | prim::SCATTER_ADD_ALONG_AXIS)
    {
        let is_known = |&v: &Value| graph.ty(v).element().shape.known().is_some();
        if users_of(value) != Users::Only(user) || !graph.node(node).operands.iter().all(is_known) {
            return None;
        }
        chain.push(node);
        (user, value) = (node, graph.node(node).operands[0]);
    }
    (!chain.is_empty()).then_some((chain, value))
}

impl Lower<'_> {
    /// Lowers a scatter operation to an addition to a variable at the end of the step.
    pub(super) fn addition(&mut self, var: usize, node: Node, def: Prim, attrs: &Attrs) -> Result<()> {
        let data = self.graph.node(node);
        let ty = &self.graph.vars[var].ty;
        let table =
            View::whole(Base::Var(var as u32), ty.dtype, ty.shape.known().expect("shapes of variables are known"));
        let ids = self.kept(data.operands[1], def.name, data.loc)?;
        let rows = self.kept(data.operands[2], def.name, data.loc)?;
        let axis = Along::of(attrs).axis;
        let places = match def {
            prim::SCATTER_ADD => IndexPattern::slices(&table.shape, axis),
            _ => IndexPattern::elements(&table.shape, &ids.shape, axis),
        };
        let operands = [table, ids, rows].map(TensorOperand::View).into();
        let meaning = SourceOp { def, attrs: attrs.clone(), name: data.name_in_errors() };
        let op = self.add_op(Kernel::AddAtEnd(places), operands, Out::Nothing, Some(meaning), def.name, data.loc);
        self.emit(Instr::Run(op));
        self.draft.additions.push(op);
        Ok(())
    }

    /// Returns a value as a contiguous view that keeps its value until variables are updated.
    fn kept(&mut self, value: Value, name: &'static str, loc: Loc) -> Result<View> {
        let view = self.known_view(value)?;
        let in_variable = matches!(view.base, Base::Var(_));
        Ok(if in_variable { self.copied(&view, name, loc) } else { self.contiguous(view, name, loc) })
    }
}
