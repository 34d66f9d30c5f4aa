//! The tree that the stages share.
//!
//! [`resolve`](super::resolve) makes it, [`analyze`](super::analyze) fills in the [`facts`], and
//! [`emit`](super::emit) turns it into code.
//!
//! The tree is small because the macro need not interpret most of Rust. Rust code is [`Code`]:
//! syntax that stays as it is, with a hole for each [`TreeNode`] in it, and the list of its parts
//! in the order in which they are evaluated. The analysis reads that list.
//!
//! Invariants:
//! - Each hole has a number of its own, and exactly one part of its code has that number.
//! - A variable is an id. Names are resolved, so that no later stage knows scopes.

use super::facts::{
    BlockFacts, FactCell, FunctionFacts, GuardFacts, IfFacts, JumpFacts, LogicalFacts, LoopFacts, OperandFacts,
    PanicFacts, SequenceFacts,
};
use super::place::{PlaceExpr, ReceiverExpr};
use super::variables::{Hidden, VarId, Variable};
use proc_macro2::{Ident, Span, TokenStream};
use quote::ToTokens;
use std::rc::Rc;
use syn::punctuated::Punctuated;
use syn::{
    Attribute, BinOp, Expr, ExprAsync, ExprAwait, ExprBinary, ExprBlock, ExprCast, ExprClosure, ExprField, ExprForLoop,
    ExprIf, ExprLoop, ExprMacro, ExprWhile, Item, Label, Lifetime, Local, StmtMacro, Token, Type, token,
};
use syn::{Index, Member};

/// A function.
pub(crate) struct FunctionTree {
    /// All variables. The parameters come first.
    pub(crate) variables: Vec<Variable>,
    /// The number of variables that the parameters declare.
    pub(crate) parameters: usize,
    pub(crate) name: Ident,
    /// The type of the result, if it can be written on a local variable.
    pub(crate) expected: Option<Rc<Type>>,
    pub(crate) returns_unit: bool,
    pub(crate) body: Body,
    pub(crate) facts: FactCell<FunctionFacts>,
}

/// Rust code with holes.
pub(crate) struct Code {
    pub(crate) syntax: Expr,
    /// In the order of evaluation.
    pub(crate) parts: Vec<Part>,
}

/// The number of a hole.
pub(crate) type HoleId = u32;

/// Returns the expression for a hole: a field of nothing, which Rust does not have. It has no
/// tokens, whose creation the compiler would have to be asked for.
pub(crate) fn hole(number: HoleId) -> Expr {
    Expr::Field(ExprField {
        attrs: Vec::new(),
        base: Box::new(Expr::Verbatim(TokenStream::new())),
        dot_token: Token![.](Span::call_site()),
        member: Member::Unnamed(Index { index: number, span: Span::call_site() }),
    })
}

/// Returns the number of the hole, if the expression is a hole.
pub(crate) fn number_of_hole(e: &Expr) -> Option<HoleId> {
    let Expr::Field(ExprField { base, member: Member::Unnamed(number), .. }) = e else { return None };
    matches!(&**base, Expr::Verbatim(nothing) if nothing.is_empty()).then_some(number.index)
}

/// A part of Rust code that the analysis reads.
pub(crate) enum Part {
    /// A node that fills a hole in the code. `is_value` tells whether its value is that of the
    /// code.
    Node { hole: HoleId, node: TreeNode, is_value: bool },
    /// The place may be modified. `is_value` tells whether a borrow of it is the value of the code.
    Change { place: LocalPlace, how: Change, is_value: bool },
    /// The variables are declared.
    Declare(Vec<VarId>),
    /// The code is wrong.
    Error(syn::Error),
}

impl Part {
    /// Returns the part as a part of larger code, of which it is not the value.
    pub(crate) fn nested(mut self) -> Part {
        if let Part::Node { is_value, .. } | Part::Change { is_value, .. } = &mut self {
            *is_value = false;
        }
        self
    }
}

/// A place of a local variable.
#[derive(Clone)]
pub(crate) struct LocalPlace {
    pub(crate) expr: PlaceExpr,
    pub(crate) variable: VarId,
}

/// How a place is modified.
#[derive(Clone, PartialEq)]
pub(crate) enum Change {
    /// Assigned, or borrowed by `&mut`.
    Exact,
    /// Possibly modified: the receiver of a method, or a callee, which may be taken by `&mut`.
    Perhaps,
    /// Modified if the receiver has a type whose method of a known name may do so.
    Unless(ReceiverExpr),
}

/// Code that the macro may change.
///
/// The nodes are boxed: the stages recurse, and the stack of the compiler is limited.
pub(crate) enum TreeNode {
    Variable(Box<Passed>),
    If(Box<IfExpr>),
    Block(Box<(ExprBlock, Body)>),
    Labeled(Box<Labeled>),
    Sequence(Box<SequenceBlock>),
    While(Box<WhileExpr>),
    HostLoop(Box<HostLoopExpr>),
    For(Box<For>),
    Loop(Box<Loop>),
    Closure(Box<Closure>),
    Async(Box<Async>),
    Compare(Box<CompareExpr>),
    Logical(Box<LogicalExpr>),
    Update(Box<UpdateExpr>),
    Call(Box<Call>),
    Cast(Box<Cast>),
    Await(Box<Await>),
    Jump(Box<Jump>),
    Macro(Box<(ExprMacro, MacroCall)>),
}

/// A variable that is passed to a function, a pattern or a part of a value.
pub(crate) struct Passed {
    pub(crate) syntax: Expr,
    pub(crate) place: LocalPlace,
    /// Whether the variable is a mutable reference that is reborrowed here.
    pub(crate) is_reborrowed: FactCell<bool>,
}

/// The statements of a block.
pub(crate) struct Body {
    pub(crate) brace: token::Brace,
    pub(crate) stmts: Vec<Statement>,
}

/// A statement.
pub(crate) struct Statement {
    pub(crate) kind: StatementKind,
    /// Whether the value of the block is that of the statement.
    pub(crate) is_end: bool,
    /// Whether the statement certainly jumps.
    pub(crate) jumps: bool,
    /// The statements after this one, if a jump in it may skip them.
    pub(crate) rest: Option<RestOfBlock>,
    /// The facts of the guard around the rest, if a jump skips it.
    pub(crate) guard: FactCell<GuardFacts>,
}

pub(crate) enum StatementKind {
    Let(Box<Let>),
    Expr(Code, Option<Token![;]>),
    Macro(Box<(StmtMacro, MacroCall)>),
    Item(Item),
}

/// The statements after a statement that a jump may leave, as far as their form shows.
pub(crate) struct RestOfBlock {
    /// The statement before them.
    pub(crate) at: Span,
    /// Whether they certainly jump.
    pub(crate) jumps: bool,
    pub(crate) value: EndValue,
    /// The labels of the jumps in them, and whether each jump has a value.
    pub(crate) labels: Vec<(String, bool)>,
}

/// The value at the end of a block, as far as the form of its statements shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndValue {
    /// The block certainly jumps, and has no final expression with a value.
    None,
    /// The value may be `()`, or the block ends in arms that all jump.
    Unknown,
    /// There is a final expression with a value other than `()`. If the block certainly jumps, the
    /// value is never computed, but it gives the block its type.
    Some,
}

/// `let pattern = init else { diverge };`
pub(crate) struct Let {
    pub(crate) syntax: Local,
    pub(crate) expected: Option<Rc<Type>>,
    pub(crate) init: Option<Code>,
    pub(crate) diverge: Option<Code>,
    pub(crate) declared: Vec<VarId>,
}

/// An `if`.
pub(crate) struct IfExpr {
    /// Without its condition and blocks.
    pub(crate) syntax: ExprIf,
    pub(crate) condition: Code,
    pub(crate) then: Body,
    pub(crate) otherwise: Option<Otherwise>,
    /// Whether the `if` has a value by its form.
    pub(crate) is_value: bool,
    /// Whether the `if` is a statement, which has no value where the block has none.
    pub(crate) is_statement: bool,
    /// The facts, or `None` if the condition is a host value by its form.
    pub(crate) staged: Option<StagedIfExpr>,
}

/// An `if` whose condition may be a tensor.
pub(crate) struct StagedIfExpr {
    /// Whether the condition has the type of that of the `if` around it.
    pub(crate) has_kind_of_outer: bool,
    /// The arms that certainly jump.
    pub(crate) jumps: [bool; 2],
    /// The values of the arms.
    pub(crate) values: [EndValue; 2],
    pub(crate) facts: FactCell<IfFacts>,
}

pub(crate) enum Otherwise {
    Block(Body),
    If(Box<IfExpr>),
}

/// A labeled block.
pub(crate) struct Labeled {
    /// Without its statements.
    pub(crate) syntax: ExprBlock,
    pub(crate) body: Body,
    pub(crate) facts: FactCell<BlockFacts>,
}

/// A block of a long sequence of jumps.
pub(crate) struct SequenceBlock {
    /// Without its statements.
    pub(crate) syntax: ExprBlock,
    pub(crate) body: Body,
    pub(crate) is_unit: bool,
    pub(crate) hidden: Vec<Hidden>,
    pub(crate) facts: FactCell<SequenceFacts>,
}

/// A `while` whose condition may be a tensor.
pub(crate) struct WhileExpr {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) at: Span,
    pub(crate) label: Option<Label>,
    pub(crate) condition: Code,
    pub(crate) body: Body,
    /// Whether a jump ends the loop.
    pub(crate) stops: bool,
    pub(crate) facts: FactCell<LoopFacts>,
}

/// A `while` on a host value.
pub(crate) struct HostLoopExpr {
    /// Without its condition and body.
    pub(crate) syntax: ExprWhile,
    pub(crate) condition: Code,
    pub(crate) body: Body,
    /// Whether a jump under a construct ends the loop.
    pub(crate) stops: bool,
    /// Whether only a panic ends the loop.
    pub(crate) is_endless: bool,
    pub(crate) facts: FactCell<LoopFacts>,
}

/// A `for`.
pub(crate) struct For {
    /// Without its iterable and body.
    pub(crate) syntax: ExprForLoop,
    pub(crate) iterable: Code,
    /// Whether the iterable is a host iterator by its form.
    pub(crate) is_host: bool,
    /// Whether the expression is certainly iterable by its form, so that its type need not be
    /// checked.
    pub(crate) is_iterable: bool,
    pub(crate) declared: Vec<VarId>,
    pub(crate) body: Body,
    /// Whether a jump ends the loop.
    pub(crate) stops: bool,
    /// Whether a jump under a construct ends the loop.
    pub(crate) stops_under_construct: bool,
    pub(crate) facts: FactCell<LoopFacts>,
}

/// A `loop`.
pub(crate) struct Loop {
    /// The expression without its body.
    pub(crate) syntax: ExprLoop,
    pub(crate) body: Body,
    /// Whether a jump under a construct ends the loop.
    pub(crate) stops: bool,
    /// Whether only a panic ends the loop.
    pub(crate) is_endless: bool,
    /// Whether a `break` ends this very loop.
    pub(crate) is_broken: bool,
    pub(crate) facts: FactCell<LoopFacts>,
}

/// A closure. The facts are the slot for its result, if a jump needs it.
pub(crate) struct Closure {
    /// The expression without its body.
    pub(crate) syntax: ExprClosure,
    pub(crate) declared: Vec<VarId>,
    pub(crate) at: Span,
    pub(crate) body: Code,
    pub(crate) facts: FactCell<FunctionFacts>,
}

/// An `async` block. The facts are as for a closure.
pub(crate) struct Async {
    /// Without its statements.
    pub(crate) syntax: ExprAsync,
    pub(crate) body: Body,
    pub(crate) facts: FactCell<FunctionFacts>,
}

/// A comparison.
pub(crate) struct CompareExpr {
    pub(crate) at: Span,
    pub(crate) function: &'static str,
    pub(crate) left: Code,
    /// The place on the left side, if it is one that the right side may modify.
    pub(crate) place: Option<LocalPlace>,
    pub(crate) right: Code,
    pub(crate) facts: FactCell<OperandFacts>,
}

/// `left && right` or `left || right`.
pub(crate) struct LogicalExpr {
    pub(crate) op: BinOp,
    pub(crate) left: Code,
    pub(crate) right: Code,
    pub(crate) facts: FactCell<LogicalFacts>,
}

/// `left op= right`
pub(crate) struct UpdateExpr {
    /// Without its sides.
    pub(crate) syntax: ExprBinary,
    pub(crate) left: Code,
    /// The place on the left side, if it is one.
    pub(crate) place: Option<LocalPlace>,
    pub(crate) right: Code,
    /// Whether the left side borrows what the right side reads.
    pub(crate) is_right_first: bool,
    pub(crate) facts: FactCell<OperandFacts>,
}

/// A call of a function or method that has constructs in its arguments.
pub(crate) struct Call {
    /// The call with a hole for each argument. Its parts are those of the receiver or callee.
    pub(crate) call: Code,
    /// The receiver, if it is a place.
    pub(crate) receiver: Option<LocalPlace>,
    /// Whether the method leaves its receiver unmodified, by its name.
    pub(crate) keeps_receiver: bool,
    pub(crate) args: Vec<Argument>,
    pub(crate) facts: FactCell<OperandFacts>,
}

/// An argument of a call.
pub(crate) struct Argument {
    pub(crate) hole: HoleId,
    pub(crate) code: Code,
    /// The place that the argument borrows.
    pub(crate) borrowed: Option<LocalPlace>,
    /// Whether the argument need not be evaluated first: it has no effects, or gets its type from
    /// the call.
    pub(crate) stays: bool,
}

/// `as` with a numeric type, whose operand must not be a tensor.
pub(crate) struct Cast {
    /// Without its operand.
    pub(crate) syntax: ExprCast,
    pub(crate) operand: Code,
}

/// `.await`
pub(crate) struct Await {
    /// Without its operand.
    pub(crate) syntax: ExprAwait,
    pub(crate) base: Code,
    /// The constructs that must allow it.
    pub(crate) facts: FactCell<Vec<Ident>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum JumpKind {
    Break,
    Continue,
    Return,
}

/// A jump.
pub(crate) struct Jump {
    pub(crate) kind: JumpKind,
    pub(crate) at: Span,
    pub(crate) label: Option<Lifetime>,
    /// Without its value.
    pub(crate) syntax: Expr,
    pub(crate) value: Option<Code>,
    pub(crate) hidden: Vec<Hidden>,
    pub(crate) facts: FactCell<JumpFacts>,
}

/// The treatment of the call of a macro.
pub(crate) enum MacroCall {
    /// The call stays as it is.
    Kept,
    /// The call stays, with other arguments.
    Arguments(MacroArguments),
    /// `vec![value; count]`
    Repeat(Code, Token![;], Code),
    /// `matches!`: the matched value, and the tokens after it.
    Matches(Code, TokenStream),
    Assert {
        at: Span,
        debug: bool,
        condition: Code,
        text: String,
        message: CheckMessage,
        index: FactCell<usize>,
    },
    AssertEquality {
        at: Span,
        debug: bool,
        equal: bool,
        sides: [Code; 2],
        texts: [String; 2],
        message: CheckMessage,
        index: FactCell<usize>,
    },
    /// `println!` and similar macros.
    Print {
        at: Span,
        error: bool,
        line: bool,
        arguments: MacroArguments,
    },
    /// `dbg!`, with the source text of each value.
    Dbg(Span, Vec<(TokenStream, Code)>),
    /// A macro that panics. There are no facts if it is under no construct.
    Panic(Ident, FactCell<PanicFacts>),
    /// A macro that runs once, while tracing. The facts name the constructs around it that must
    /// permit it.
    Opaque(Span, FactCell<Vec<Ident>>),
}

/// The message of an assertion.
pub(crate) enum CheckMessage {
    Arguments(MacroArguments),
    /// The compiler reports the error.
    Wrong(TokenStream),
}

/// Arguments of a macro, with holes.
pub(crate) struct MacroArguments {
    pub(crate) syntax: Punctuated<MacroArgument, Token![,]>,
    pub(crate) parts: Vec<Part>,
}

/// A macro argument with an optional name.
pub(crate) struct MacroArgument {
    pub(crate) name: Option<(Ident, Token![=])>,
    pub(crate) value: Expr,
}

impl ToTokens for MacroArgument {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        if let Some((name, equals)) = &self.name {
            name.to_tokens(tokens);
            equals.to_tokens(tokens);
        }
        self.value.to_tokens(tokens);
    }
}
