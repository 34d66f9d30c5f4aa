//! The third stage: turns a tree with its facts into Rust.
//!
//! Each file has the templates of some nodes, and the code that fills them. A template knows the
//! interface of the expansion, `anabranch::__rt`. This stage decides nothing: it reads neither
//! scopes nor types.
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

use super::tree::{FunctionTree, Node};
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

impl ToRust for Node {
    type Output = Expr;

    fn emit(self) -> Expr {
        match self {
            Node::Variable(passed) => passed.emit(),
            Node::If(branch) => branch.emit(),
            Node::Block(block) => {
                let (mut syntax, body) = *block;
                syntax.block = body.emit();
                Expr::Block(syntax)
            }
            Node::Labeled(block) => block.emit(),
            Node::Sequence(sequence) => sequence.emit(),
            Node::While(w) => w.emit(),
            Node::HostLoop(w) => w.emit(),
            Node::For(f) => f.emit(),
            Node::Loop(l) => l.emit(),
            Node::Closure(c) => c.emit(),
            Node::Async(a) => a.emit(),
            Node::Compare(compare) => compare.emit(),
            Node::Logical(logical) => logical.emit(),
            Node::Update(update) => update.emit(),
            Node::Call(call) => call.emit(),
            Node::Cast(cast) => cast.emit(),
            Node::Await(a) => a.emit(),
            Node::Jump(jump) => jump.emit(),
            Node::Macro(call) => call.emit(),
        }
    }
}
