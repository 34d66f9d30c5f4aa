//! The third stage: turns a tree with its facts into Rust.
//!
//! Each file has the templates of some nodes, and the code that fills them. A template knows the
//! interface of the expansion, `anabranch::__rt`. This stage decides nothing: it reads no scopes,
//! and a written type is only copied into a declaration.
//!
//! Invariant: code that is emitted in place of a token has the location of that token, so that
//! messages of the compiler and of the tracer point to it.

mod branches;
mod carried;
mod code;
mod expressions;
mod function;
mod jumps;
mod loops;
mod macros;
mod output;
mod statements;

pub(crate) use function::{bound_loops, expect_shape, guard, name_param, overlap_loops};

use super::tree::{FunctionTree, TreeNode};
use output::ToRust;
use syn::{Expr, Stmt};

/// Returns the statements of a function.
pub(crate) fn emit(function: FunctionTree) -> Vec<Stmt> {
    let mut stmts = function.body.emit().stmts;
    if let Some(slot) = function.facts.get() {
        stmts.insert(0, Stmt::Expr(Expr::Verbatim(jumps::slot(&slot, function.expected.as_deref())), None));
    }
    stmts
}

impl ToRust for TreeNode {
    type Output = Expr;

    fn emit(self) -> Expr {
        match self {
            TreeNode::Variable(passed) => passed.emit(),
            TreeNode::If(branch) => branch.emit(),
            TreeNode::Block(block) => {
                let (mut syntax, body) = *block;
                syntax.block = body.emit();
                Expr::Block(syntax)
            }
            TreeNode::Labeled(block) => block.emit(),
            TreeNode::Sequence(sequence) => sequence.emit(),
            TreeNode::While(w) => w.emit(),
            TreeNode::HostLoop(w) => w.emit(),
            TreeNode::For(f) => f.emit(),
            TreeNode::Loop(l) => l.emit(),
            TreeNode::Closure(c) => c.emit(),
            TreeNode::Async(a) => a.emit(),
            TreeNode::Compare(compare) => compare.emit(),
            TreeNode::Logical(logical) => logical.emit(),
            TreeNode::Update(update) => update.emit(),
            TreeNode::Call(call) => call.emit(),
            TreeNode::Cast(cast) => cast.emit(),
            TreeNode::Await(a) => a.emit(),
            TreeNode::Jump(jump) => jump.emit(),
            TreeNode::Macro(call) => call.emit(),
        }
    }
}
