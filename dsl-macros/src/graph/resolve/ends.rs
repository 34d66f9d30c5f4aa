//! How resolved code ends, by the form of its tree: whether it certainly jumps, and whether it has
//! a value.

use crate::graph::forms::is_assignment;
use crate::graph::known;
use crate::graph::tree::{Body, Code, IfExpr, Otherwise, Part, Statement, StatementKind, TreeNode, number_of_hole};
use syn::{Expr, StmtMacro};

impl Code {
    /// Returns the node in a hole of the syntax, if the expression is a hole.
    fn node_in(&self, e: &Expr) -> Option<&TreeNode> {
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
        match &self.syntax {
            Expr::Assign(_) => true,
            Expr::Binary(b) => is_assignment(&b.op),
            Expr::Macro(m) => known::is_unit_macro(&m.mac),
            e => match self.node_in(e) {
                Some(TreeNode::While(_) | TreeNode::HostLoop(_) | TreeNode::For(_) | TreeNode::Update(_)) => true,
                Some(TreeNode::If(branch)) => branch.otherwise.is_none(),
                Some(TreeNode::Macro(call)) => known::is_unit_macro(&call.0.mac),
                _ => false,
            },
        }
    }

    /// Returns whether the code is a branch or block, whose arms have ends of their own.
    fn has_arms(&self) -> bool {
        matches!(self.syntax, Expr::Match(_))
            || matches!(
                self.node_in(&self.syntax),
                Some(TreeNode::If(_) | TreeNode::Block(_) | TreeNode::Labeled(_) | TreeNode::Sequence(_))
            )
    }
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

    /// Returns whether the statement has a value that is not `()` by its form.
    fn has_value(&self) -> bool {
        match self {
            StatementKind::Expr(code, None) => !code.is_unit() && !code.jumps(),
            StatementKind::Macro(call) => {
                matches!(&call.0, StmtMacro { mac, semi_token: None, .. } if !known::is_unit_macro(mac))
            }
            _ => false,
        }
    }
}

/// Returns whether statements have a value that is not `()` by its form.
pub(super) fn have_value(stmts: &[Statement]) -> bool {
    stmts.last().is_some_and(|last| last.kind.has_value())
}

/// Returns whether statements certainly jump, other than by a final value.
pub(super) fn end_in_jump(stmts: &[Statement]) -> bool {
    let Some((last, before)) = stmts.split_last() else { return false };
    let is_value = matches!(&last.kind, StatementKind::Expr(code, None) if code.has_arms());
    before.iter().any(|stmt| stmt.jumps) || (last.jumps && !is_value)
}

impl Body {
    /// Returns whether the block certainly jumps out of itself.
    pub(super) fn jumps(&self) -> bool {
        self.stmts.iter().any(|stmt| stmt.jumps)
    }

    fn ends_in_expression(&self) -> bool {
        matches!(self.stmts.last(), Some(Statement { kind: StatementKind::Expr(_, None), .. }))
    }
}

impl IfExpr {
    fn jumps(&self) -> bool {
        self.then.jumps() && self.otherwise.as_ref().is_some_and(Otherwise::jumps)
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
}
