//! How resolved code ends, by the form of its tree: whether it certainly jumps, and whether it has
//! a value. A block may do both: a value after a jump is never computed, but has a type.

use crate::graph::forms::is_unit;
use crate::graph::known;
use crate::graph::tree::{
    Body, Code, EndValue, IfExpr, Otherwise, Part, Statement, StatementKind, TreeNode, number_of_hole,
};
use syn::{Expr, StmtMacro};

impl Code {
    /// Returns the node in a hole of the syntax, if the expression is a hole.
    pub(super) fn node_in(&self, e: &Expr) -> Option<&TreeNode> {
        let number = number_of_hole(e)?;
        self.parts.iter().find_map(|part| match part {
            Part::Node { hole, node, .. } if *hole == number => Some(node),
            _ => None,
        })
    }

    /// Returns whether the code certainly jumps out of itself.
    fn jumps(&self) -> bool {
        self.expr_jumps(&self.syntax)
    }

    fn expr_jumps(&self, e: &Expr) -> bool {
        match e {
            Expr::Match(m) => !m.arms.is_empty() && m.arms.iter().all(|arm| self.expr_jumps(&arm.body)),
            Expr::Paren(e) => self.expr_jumps(&e.expr),
            e => match self.node_in(e) {
                Some(TreeNode::Jump(_)) => true,
                Some(TreeNode::Block(block)) => block.1.jumps(),
                Some(TreeNode::Sequence(block)) => block.body.jumps(),
                Some(TreeNode::If(branch)) => branch.jumps(),
                _ => false,
            },
        }
    }

    /// Returns whether the code is `()` by its form.
    fn is_unit(&self) -> bool {
        match self.node_in(&self.syntax) {
            Some(TreeNode::While(_) | TreeNode::HostLoop(_) | TreeNode::For(_) | TreeNode::Update(_)) => true,
            Some(TreeNode::If(branch)) => branch.otherwise.is_none(),
            Some(TreeNode::Macro(call)) => known::is_unit_macro(&call.0.mac),
            _ => is_unit(&self.syntax),
        }
    }

    /// Returns the value of an expression. Blocks and `if`s have the values of their ends.
    fn end_value(&self, e: &Expr) -> EndValue {
        match e {
            Expr::Match(m) if self.expr_jumps(e) => of_arms(m.arms.iter().map(|arm| self.end_value(&arm.body))),
            Expr::Paren(e) => self.end_value(&e.expr),
            e => match self.node_in(e) {
                Some(TreeNode::Jump(_)) => EndValue::None,
                Some(TreeNode::Block(block)) => of_arms([block.1.end_value()]),
                Some(TreeNode::Sequence(block)) => of_arms([block.body.end_value()]),
                Some(TreeNode::If(branch)) => branch.end_value(),
                _ if self.is_unit() => EndValue::Unknown,
                _ => EndValue::Some,
            },
        }
    }
}

/// Returns the value of code that ends in these arms.
fn of_arms(arms: impl IntoIterator<Item = EndValue>) -> EndValue {
    if arms.into_iter().any(|arm| arm == EndValue::Some) { EndValue::Some } else { EndValue::Unknown }
}

impl StatementKind {
    /// Returns whether the statement certainly jumps.
    pub(super) fn jumps(&self) -> bool {
        match self {
            StatementKind::Expr(code, _) => code.jumps(),
            StatementKind::Let(local) => local.init.as_ref().is_some_and(Code::jumps),
            StatementKind::Macro(_) | StatementKind::Item(_) => false,
        }
    }

    /// Returns the value of a block that ends with the statement.
    fn end_value(&self) -> EndValue {
        match self {
            StatementKind::Expr(code, None) => code.end_value(&code.syntax),
            StatementKind::Macro(call) => match &call.0 {
                StmtMacro { mac, semi_token: None, .. } if !known::is_unit_macro(mac) => EndValue::Some,
                _ => EndValue::Unknown,
            },
            _ if self.jumps() => EndValue::None,
            _ => EndValue::Unknown,
        }
    }
}

/// Returns whether statements certainly jump.
pub(super) fn jump(stmts: &[Statement]) -> bool {
    stmts.iter().any(|stmt| stmt.jumps)
}

/// Returns the value of statements.
pub(super) fn end_value(stmts: &[Statement]) -> EndValue {
    let Some((last, before)) = stmts.split_last() else { return EndValue::Unknown };
    match last.kind.end_value() {
        EndValue::Unknown if jump(before) => EndValue::None,
        value => value,
    }
}

impl Body {
    /// Returns whether the block certainly jumps out of itself.
    pub(super) fn jumps(&self) -> bool {
        jump(&self.stmts)
    }

    /// Returns the value of the block.
    pub(super) fn end_value(&self) -> EndValue {
        end_value(&self.stmts)
    }

    fn ends_in_expression(&self) -> bool {
        matches!(self.stmts.last(), Some(Statement { kind: StatementKind::Expr(_, None), .. }))
    }
}

impl IfExpr {
    fn jumps(&self) -> bool {
        self.then.jumps() && self.otherwise.as_ref().is_some_and(Otherwise::jumps)
    }

    fn end_value(&self) -> EndValue {
        match &self.otherwise {
            None => EndValue::Unknown,
            Some(otherwise) => of_arms([self.then.end_value(), otherwise.end_value()]),
        }
    }

    /// Returns whether an arm ends in an expression.
    pub(super) fn arms_have_values(&self) -> bool {
        self.then.ends_in_expression()
            || match &self.otherwise {
                Some(Otherwise::Block(body)) => body.ends_in_expression(),
                Some(Otherwise::If(inner)) => inner.arms_have_values(),
                None => false,
            }
    }

    /// Notes that the `if` has no value.
    pub(super) fn set_no_value(&mut self) {
        self.is_value = false;
        if let Some(Otherwise::If(inner)) = &mut self.otherwise {
            inner.set_no_value();
        }
    }
}

impl Otherwise {
    /// Returns whether the `else` certainly jumps out of itself.
    pub(super) fn jumps(&self) -> bool {
        match self {
            Otherwise::Block(body) => body.jumps(),
            Otherwise::If(inner) => inner.jumps(),
        }
    }

    /// Returns the value of the `else`.
    pub(super) fn end_value(&self) -> EndValue {
        match self {
            Otherwise::Block(body) => body.end_value(),
            Otherwise::If(inner) => inner.end_value(),
        }
    }
}
