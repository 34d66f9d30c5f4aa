//! Scope resolution, carried places, and the replacement of constructs, in one walk over the body.
//!
//! The walk keeps the constructs that are open around the present expression. A change of a place is noted in each of them
//! whose start came after the declaration of the variable; when a construct has been walked through, what it carries is
//! known, and it is replaced.
//!
//! Invariants: a variable is carried only by constructs inside of its scope; every block of the user is emitted once; items
//! and constants inside of the body stay as they are.

use super::emit::{self, Carried, IfParts, WhileParts};
use super::known::{self, MacroKind};
use super::place::{Place, Places, Projection, Written};
use super::scope::{self, Access, BindingId, Env};
use crate::ctxt::Ctxt;
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::*;

/// A rewritten function.
pub(super) struct Rewritten {
    pub(super) function: ItemFn,
    /// What each construct carries, in the order in which the constructs end.
    #[cfg_attr(not(test), allow(dead_code, reason = "the tests of the analysis read it"))]
    pub(super) carried: Vec<Vec<String>>,
}

/// Rewrites the body of a function.
pub(super) fn rewrite(cx: &Ctxt, mut function: ItemFn) -> Rewritten {
    let mut walk = Walk {
        cx,
        env: Env::default(),
        constructs: Vec::new(),
        targets: Vec::new(),
        function_start: 0,
        next_index: 0,
        carried: Vec::new(),
    };
    for parameter in &function.sig.inputs {
        walk.env.declare_parameter(parameter);
    }
    let expected = match &function.sig.output {
        ReturnType::Type(_, ty) => nameable(ty),
        ReturnType::Default => None,
    };
    walk.block(&mut function.block, Position { expected, ..Position::default() });
    let carried = walk.carried;
    Rewritten { function, carried }
}

/// A construct that is open around the present expression.
struct Construct {
    /// Its helper variable.
    name: Ident,
    /// Variables with a smaller id were declared before it.
    first_inside: BindingId,
    carried: Places,
    /// Places of variables that are not known to be mutable, as far as they are receivers and arguments in it.
    used: Vec<(BindingId, Written)>,
}

/// What a `break` or `continue` can leave.
struct Target {
    label: Option<String>,
    /// Whether it is a loop; otherwise it is a labelled block.
    is_loop: bool,
    /// Constructs from this index on are inside of it, itself included.
    first_inside: usize,
}

/// What an expression is for.
#[derive(Clone, Default)]
struct Position {
    /// Its type, where that is written nearby.
    expected: Option<Type>,
    /// Of how many of the innermost constructs it is the value.
    value_of: usize,
}

/// How a place is changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Assigned, or borrowed by `&mut`.
    Exact,
    /// Perhaps: the receiver of a method, or a callee, which may take it by `&mut`.
    Perhaps,
}

struct Walk<'a> {
    cx: &'a Ctxt,
    env: Env,
    constructs: Vec<Construct>,
    targets: Vec<Target>,
    /// Constructs from this index on are in the same function or closure as the present expression.
    function_start: usize,
    next_index: usize,
    carried: Vec<Vec<String>>,
}

impl Walk<'_> {
    fn index(&mut self) -> usize {
        self.next_index += 1;
        self.next_index - 1
    }

    fn open(&mut self, name: Ident) {
        let first_inside = self.env.next_id();
        self.constructs.push(Construct { name, first_inside, carried: Places::default(), used: Vec::new() });
    }

    fn close(&mut self, index: usize, at: Span) -> Carried {
        let construct = self.constructs.pop().expect("the construct is open");
        let is_carried = |id| {
            let mut places = construct.carried.iter();
            places.any(|p| p.binding == id && p.is_whole())
        };
        let used: Vec<Written> =
            construct.used.into_iter().filter(|&(id, _)| !is_carried(id)).map(|(_, written)| written).collect();
        self.carried.push(construct.carried.iter().map(Place::name).collect());
        Carried::new(&construct.carried, &used, &construct.name, index, at)
    }

    /// Notes that a place changes, in all but the `skip` innermost constructs.
    fn change(&mut self, written: Written, how: Change, skip: usize) {
        let Some(id) = self.env.resolve(&written.root.to_string()) else {
            return;
        };
        let binding = self.env.binding(id).clone();
        let whole_variable = written.projections.is_empty() && !written.indexed;
        let written = match how {
            // What a plain variable leads to cannot change, unless it is a reference that only its type shows.
            Change::Perhaps if binding.access == Access::Plain => return self.used(id, written),
            Change::Perhaps => written.whole(binding.access),
            Change::Exact if written.indexed => written.whole(binding.access),
            Change::Exact => written,
        };
        if binding.deferred && whole_variable && how == Change::Exact {
            self.initial_value(id, &written);
            return;
        }
        let open = self.constructs.len() - skip.min(self.constructs.len());
        for construct in self.constructs[..open].iter_mut().filter(|c| id < c.first_inside) {
            construct.carried.add(Place { written: written.clone(), binding: id });
        }
    }

    /// Notes that a place is used whose variable is not known to be mutable.
    fn used(&mut self, id: BindingId, written: Written) {
        let path = |w: &Written| w.prefixes().last().map(ToString::to_string);
        for construct in self.constructs.iter_mut().filter(|c| id < c.first_inside) {
            if !construct.used.iter().any(|(_, u)| path(u) == path(&written)) {
                construct.used.push((id, written.clone()));
            }
        }
    }

    /// The first assignment to a variable declared by `let x;`.
    fn initial_value(&mut self, id: BindingId, written: &Written) {
        if self.constructs.iter().any(|c| id < c.first_inside) {
            let name = &written.root;
            let message = format!(
                "`{name}` is used in an `if`, `while`, `&&` or `||` before its initial value: \
                 write `let {name} = if .. {{ .. }} else {{ .. }}`, or give it a value where it is declared"
            );
            self.cx.error(name, message);
        }
        self.env.binding(id).deferred = false;
    }

    /// Notes the places that an assignment changes, and walks through what is computed on its left side.
    fn assigned(&mut self, left: &mut Expr) {
        match left {
            Expr::Tuple(e) => e.elems.iter_mut().for_each(|e| self.assigned(e)),
            Expr::Array(e) => e.elems.iter_mut().for_each(|e| self.assigned(e)),
            Expr::Struct(e) => e.fields.iter_mut().for_each(|f| self.assigned(&mut f.expr)),
            Expr::Call(e) => e.args.iter_mut().for_each(|e| self.assigned(e)),
            Expr::Paren(e) => self.assigned(&mut e.expr),
            Expr::Group(e) => self.assigned(&mut e.expr),
            Expr::Infer(_) | Expr::Range(_) => {}
            place => {
                if let Some(written) = Written::of(place) {
                    self.change(written, Change::Exact, 0);
                }
                self.place(place);
            }
        }
    }

    /// Walks through what is computed in a place: indices, and what a call gives.
    fn place(&mut self, place: &mut Expr) {
        match place {
            Expr::Field(e) => self.place(&mut e.base),
            Expr::Index(e) => {
                self.place(&mut e.expr);
                self.visit_expr_mut(&mut e.index);
            }
            Expr::Unary(ExprUnary { op: UnOp::Deref(_), expr, .. }) => self.place(expr),
            Expr::Paren(e) => self.place(&mut e.expr),
            other => self.visit_expr_mut(other),
        }
    }

    fn block(&mut self, block: &mut Block, position: Position) {
        let scope = self.env.enter();
        let count = block.stmts.len();
        let mut stmts = Vec::with_capacity(count);
        for (i, stmt) in std::mem::take(&mut block.stmts).into_iter().enumerate() {
            match stmt {
                Stmt::Local(mut local) => {
                    self.local(&mut local);
                    stmts.push(Stmt::Local(local));
                }
                Stmt::Item(item) => stmts.push(Stmt::Item(item)),
                Stmt::Expr(Expr::If(e), semi) => {
                    let is_value = e.else_branch.is_some()
                        && match semi {
                            None => i + 1 == count,
                            Some(_) => arms_have_values(&e),
                        };
                    let position = if semi.is_none() { position.clone() } else { Position::default() };
                    stmts.push(Stmt::Expr(self.if_expr(e, is_value.then_some(position)), semi));
                }
                Stmt::Expr(mut e, semi) => {
                    let is_value = semi.is_none() && i + 1 == count;
                    self.expr(&mut e, if is_value { position.clone() } else { Position::default() });
                    stmts.push(Stmt::Expr(e, semi));
                }
                Stmt::Macro(m) => self.macro_statement(m, &mut stmts),
            }
        }
        block.stmts = stmts;
        self.env.leave(scope);
    }

    fn local(&mut self, local: &mut Local) {
        let expected = match &local.pat {
            Pat::Type(p) => nameable(&p.ty),
            _ => None,
        };
        if let Some(init) = &mut local.init {
            self.matched(&local.pat, &init.expr);
            let borrow = init.expr.clone();
            self.expr(&mut init.expr, Position { expected, ..Position::default() });
            if let Some((_, diverge)) = &mut init.diverge {
                self.visit_expr_mut(diverge);
            }
            self.env.declare_let(&local.pat, Some(&borrow));
        } else {
            self.env.declare_let(&local.pat, None);
        }
    }

    /// A pattern with `ref mut` borrows from what it matches.
    fn matched(&mut self, pat: &Pat, scrutinee: &Expr) {
        if scope::has_ref_mut(pat)
            && let Some(written) = Written::of(scrutinee)
        {
            self.change(written, Change::Exact, 0);
        }
    }

    fn macro_statement(&mut self, mut m: StmtMacro, stmts: &mut Vec<Stmt>) {
        match self.macro_call(&mut m.mac) {
            MacroResult::Replaced(e) => stmts.push(Stmt::Expr(e, m.semi_token)),
            MacroResult::Checked(checks) => {
                stmts.push(Stmt::Expr(Expr::Verbatim(checks), None));
                stmts.push(Stmt::Macro(m));
            }
            MacroResult::Kept => stmts.push(Stmt::Macro(m)),
        }
    }

    /// Walks through an expression and replaces it.
    fn expr(&mut self, e: &mut Expr, position: Position) {
        match e {
            Expr::If(_) => {
                let Expr::If(e_if) = std::mem::replace(e, Expr::Verbatim(TokenStream::new())) else { unreachable!() };
                let position = e_if.else_branch.is_some().then_some(position);
                *e = self.if_expr(e_if, position);
            }
            Expr::Paren(inner) => self.expr(&mut inner.expr, position),
            Expr::Group(inner) => self.expr(&mut inner.expr, position),
            Expr::Block(b) => {
                let labelled = b.label.is_some();
                if let Some(label) = &b.label {
                    self.target(Some(label), false);
                }
                self.block(&mut b.block, position);
                if labelled {
                    self.targets.pop();
                }
            }
            Expr::Match(m) => {
                let scrutinee = m.expr.clone();
                for arm in &m.arms {
                    self.matched(&arm.pat, &m.expr);
                }
                self.visit_expr_mut(&mut m.expr);
                for arm in &mut m.arms {
                    let scope = self.env.enter();
                    self.env.declare_matched(&arm.pat, &scrutinee);
                    if let Pat::Guard(guard) = &mut arm.pat {
                        self.visit_expr_mut(&mut guard.guard);
                    }
                    self.expr(&mut arm.body, position.clone());
                    self.env.leave(scope);
                }
            }
            Expr::While(_) => {
                let Expr::While(w) = std::mem::replace(e, Expr::Verbatim(TokenStream::new())) else { unreachable!() };
                *e = self.while_expr(w);
            }
            Expr::ForLoop(f) => {
                let source = f.expr.clone();
                self.visit_expr_mut(&mut f.expr);
                let scope = self.env.enter();
                self.env.declare_items(&f.pat, &source);
                self.target(f.label.as_ref(), true);
                self.block(&mut f.body, Position::default());
                self.targets.pop();
                self.env.leave(scope);
                *f.expr = emit::host_iter(f.expr.span(), &f.expr);
            }
            Expr::Loop(l) => {
                self.target(l.label.as_ref(), true);
                self.block(&mut l.body, Position::default());
                self.targets.pop();
            }
            Expr::Closure(c) => {
                let scope = self.env.enter();
                c.inputs.iter().for_each(|pat| self.env.declare_pat(pat));
                self.in_function(|walk| walk.visit_expr_mut(&mut c.body));
                self.env.leave(scope);
            }
            Expr::Async(a) => self.in_function(|walk| walk.block(&mut a.block, Position::default())),
            Expr::Unsafe(u) => self.cx.error(u.unsafe_token, "a graph function cannot have an `unsafe` block"),
            Expr::Const(_) => {}
            Expr::Repeat(r) => self.visit_expr_mut(&mut r.expr),
            Expr::Binary(_) if self.is_host(e) => visit_mut::visit_expr_mut(self, e),
            Expr::Binary(b) => {
                if let Some((at, function)) = emit::comparison(&b.op) {
                    self.visit_expr_mut(&mut b.left);
                    self.visit_expr_mut(&mut b.right);
                    *e = emit::compare(at, function, &b.left, &b.right);
                } else if matches!(b.op, BinOp::And(_) | BinOp::Or(_)) {
                    let Expr::Binary(b) = std::mem::replace(e, Expr::Verbatim(TokenStream::new())) else {
                        unreachable!()
                    };
                    *e = self.logical(b);
                } else if is_assignment(&b.op) {
                    self.visit_expr_mut(&mut b.right);
                    self.assigned(&mut b.left);
                } else {
                    visit_mut::visit_expr_binary_mut(self, b);
                }
            }
            Expr::Assign(a) => {
                self.visit_expr_mut(&mut a.right);
                self.assigned(&mut a.left);
            }
            Expr::Reference(r) if r.mutability.is_some() => {
                if let Some(written) = Written::of(&r.expr) {
                    self.change(written, Change::Exact, position.value_of);
                }
                self.place(&mut r.expr);
            }
            Expr::RawAddr(r) => {
                if matches!(r.mutability, PointerMutability::Mut(_))
                    && let Some(written) = Written::of(&r.expr)
                {
                    self.change(written, Change::Exact, 0);
                }
                self.place(&mut r.expr);
            }
            Expr::MethodCall(m) => {
                if !known::is_pure_method(&m.method.to_string())
                    && let Some(written) = Written::of(&m.receiver)
                {
                    // A borrow that is the value of an arm lives on; carrying its owner would end it.
                    let skip = if m.method.to_string().ends_with("_mut") { position.value_of } else { 0 };
                    self.change(written, Change::Perhaps, skip);
                }
                m.args.iter().for_each(|arg| self.passed(arg));
                visit_mut::visit_expr_method_call_mut(self, m);
            }
            Expr::Call(c) => {
                if let Some(written) = Written::of(&c.func) {
                    self.change(written, Change::Perhaps, 0);
                }
                c.args.iter().for_each(|arg| self.passed(arg));
                visit_mut::visit_expr_call_mut(self, c);
            }
            Expr::Break(b) => {
                if let Some(value) = &mut b.expr {
                    self.visit_expr_mut(value);
                }
                let from = self.jump_start(b.label.as_ref());
                self.jump(e, "allows_break", from);
            }
            Expr::Continue(c) => {
                let from = self.jump_start(c.label.as_ref());
                self.jump(e, "allows_continue", from);
            }
            Expr::Return(r) => {
                if let Some(value) = &mut r.expr {
                    self.visit_expr_mut(value);
                }
                self.jump(e, "allows_return", self.function_start);
            }
            Expr::Try(t) => {
                self.visit_expr_mut(&mut t.expr);
                let at = t.question_token.span;
                self.check_after(&mut t.expr, "allows_question", at);
            }
            Expr::Await(a) => {
                self.visit_expr_mut(&mut a.base);
                let at = a.await_token.span;
                self.check_after(&mut a.base, "allows_await", at);
            }
            Expr::Macro(m) => match self.macro_call(&mut m.mac) {
                MacroResult::Replaced(new) => *e = new,
                MacroResult::Checked(checks) => *e = after_checks(checks, m),
                MacroResult::Kept => {}
            },
            other => visit_mut::visit_expr_mut(self, other),
        }
    }

    /// A mutable reference that is passed on by its name is borrowed again.
    fn passed(&mut self, argument: &Expr) {
        if let Expr::Path(_) = argument
            && let Some(written) = Written::of(argument)
            && let Some(id) = self.env.resolve(&written.root.to_string())
        {
            match self.env.binding(id).access {
                Access::MutRef => {
                    let mut written = written;
                    written.projections.push(Projection::Deref);
                    self.change(written, Change::Exact, 0);
                }
                Access::Plain | Access::Item => self.used(id, written),
                Access::Mut => {}
            }
        }
    }

    /// Walks through a body whose `return` leaves only itself.
    fn in_function(&mut self, f: impl FnOnce(&mut Self)) {
        let start = std::mem::replace(&mut self.function_start, self.constructs.len());
        let targets = std::mem::take(&mut self.targets);
        f(self);
        self.targets = targets;
        self.function_start = start;
    }

    fn target(&mut self, label: Option<&Label>, is_loop: bool) {
        let label = label.map(|l| l.name.ident.to_string());
        self.targets.push(Target { label, is_loop, first_inside: self.constructs.len() });
    }

    /// The first construct that a `break` or `continue` leaves.
    fn jump_start(&self, label: Option<&Lifetime>) -> usize {
        let label = label.map(|l| l.ident.to_string());
        let target = self.targets.iter().rev().find(|t| match &label {
            Some(label) => t.label.as_ref() == Some(label),
            None => t.is_loop,
        });
        target.map_or(self.function_start, |t| t.first_inside)
    }

    /// The checks for something that leaves, or must not be in, the constructs from `from` on.
    fn checks(&self, function: &'static str, at: Span, from: usize) -> Option<TokenStream> {
        emit::checks(function, at, self.constructs[from..].iter().rev().map(|c| &c.name))
    }

    /// Puts checks before a jump.
    fn jump(&mut self, e: &mut Expr, function: &'static str, from: usize) {
        let at = match &*e {
            Expr::Break(b) => b.break_token.span,
            Expr::Continue(c) => c.continue_token.span,
            Expr::Return(r) => r.return_token.span,
            _ => unreachable!("only jumps come here"),
        };
        if let Some(checks) = self.checks(function, at, from) {
            *e = after_checks(checks, e);
        }
    }

    /// Puts checks around the operand of `?` or `.await`.
    fn check_after(&mut self, operand: &mut Expr, function: &'static str, at: Span) {
        if let Some(checks) = self.checks(function, at, self.function_start) {
            *operand = after_checks(checks, &*operand);
        }
    }

    fn if_expr(&mut self, e: ExprIf, position: Option<Position>) -> Expr {
        if has_let(&e.cond) || self.is_host(&e.cond) {
            return self.native_if(e, position);
        }
        let ExprIf { attrs, if_token, mut cond, mut then_branch, else_branch } = e;
        self.visit_expr_mut(&mut cond);
        let index = self.index();
        let construct = emit::helper("if", index, if_token.span);
        let arm_position = match &position {
            Some(p) => Position { expected: p.expected.clone(), value_of: p.value_of + 1 },
            None => Position::default(),
        };
        self.open(construct.clone());
        self.block(&mut then_branch, arm_position.clone());
        let else_arm = else_branch.map(|(_, e)| match *e {
            Expr::Block(mut b) => {
                self.block(&mut b.block, arm_position);
                b.block
            }
            Expr::If(inner) => {
                let span = inner.if_token.span;
                let inner = self.if_expr(inner, position.is_some().then_some(arm_position));
                Block { brace_token: token::Brace(span), stmts: vec![Stmt::Expr(inner, None)] }
            }
            other => unreachable!("an `else` is followed by a block or an `if`, not {}", other.to_token_stream()),
        });
        let carried = self.close(index, if_token.span);
        let parts =
            IfParts { construct, index, if_token: if_token.span, condition: *cond, then_arm: then_branch, else_arm };
        let expansion = match position {
            Some(p) => emit::if_value(parts, carried, p.expected),
            None => emit::if_statement(parts, carried),
        };
        with_attributes(&attrs, expansion)
    }

    /// An `if` that is certainly on a host value: `if let`, a chain with `let`, a literal.
    fn native_if(&mut self, mut e: ExprIf, position: Option<Position>) -> Expr {
        let scope = self.env.enter();
        self.host_condition(&mut e.cond);
        self.block(&mut e.then_branch, position.clone().unwrap_or_default());
        self.env.leave(scope);
        if let Some((_, branch)) = &mut e.else_branch {
            if let Expr::If(_) = **branch {
                let Expr::If(inner) = std::mem::replace(&mut **branch, Expr::Verbatim(TokenStream::new())) else {
                    unreachable!()
                };
                let inner = self.if_expr(inner, position);
                **branch = match inner {
                    native @ Expr::If(_) => native,
                    rewritten => parse_quote!({ #rewritten }),
                };
            } else {
                self.expr(branch, position.unwrap_or_default());
            }
        }
        Expr::If(e)
    }

    /// A condition with `let` in it: its `&&` stay, and its names are visible to the right and in the block.
    fn host_condition(&mut self, cond: &mut Expr) {
        match cond {
            Expr::Let(l) => {
                self.matched(&l.pat, &l.expr);
                let scrutinee = l.expr.clone();
                self.visit_expr_mut(&mut l.expr);
                self.env.declare_matched(&l.pat, &scrutinee);
            }
            Expr::Binary(b) if matches!(b.op, BinOp::And(_)) && (has_let(&b.left) || has_let(&b.right)) => {
                self.host_condition(&mut b.left);
                self.host_condition(&mut b.right);
            }
            other => self.visit_expr_mut(other),
        }
    }

    /// Whether an expression is a `bool` for certain, by its form: then it needs no dispatch, and what it decides stays
    /// native. Where the form misleads, the compiler finds a tensor in place of a `bool`.
    fn is_host(&self, e: &Expr) -> bool {
        match e {
            Expr::Lit(ExprLit { lit: Lit::Bool(_), .. }) => true,
            Expr::Path(p) => p.path.get_ident().is_some_and(|name| self.env.is_bool(&name.to_string())),
            Expr::Macro(m) => m.mac.path.is_ident("cfg") || m.mac.path.is_ident("matches"),
            Expr::MethodCall(m) => known::gives_bool(&m.method.to_string()),
            Expr::Unary(ExprUnary { op: UnOp::Not(_), expr, .. }) => self.is_host(expr),
            Expr::Paren(e) => self.is_host(&e.expr),
            Expr::Group(e) => self.is_host(&e.expr),
            Expr::Binary(b) if matches!(b.op, BinOp::And(_) | BinOp::Or(_)) => {
                self.is_host(&b.left) && self.is_host(&b.right)
            }
            Expr::Binary(b) => {
                emit::comparison(&b.op).is_some() && (known::is_host_value(&b.left) || known::is_host_value(&b.right))
            }
            _ => false,
        }
    }

    fn while_expr(&mut self, mut w: ExprWhile) -> Expr {
        if has_let(&w.cond) || self.is_host(&w.cond) {
            let scope = self.env.enter();
            self.target(w.label.as_ref(), true);
            self.host_condition(&mut w.cond);
            self.block(&mut w.body, Position::default());
            self.targets.pop();
            self.env.leave(scope);
            return Expr::While(w);
        }
        let while_token = w.while_token.span;
        let index = self.index();
        let construct = emit::helper("while", index, while_token);
        self.target(w.label.as_ref(), true);
        self.open(construct.clone());
        self.visit_expr_mut(&mut w.cond);
        self.block(&mut w.body, Position::default());
        let carried = self.close(index, while_token);
        self.targets.pop();
        let (label, condition, body) = (w.label, *w.cond, w.body);
        let expansion = emit::while_loop(WhileParts { construct, index, label, while_token, condition, body }, carried);
        with_attributes(&w.attrs, expansion)
    }

    fn logical(&mut self, b: ExprBinary) -> Expr {
        let ExprBinary { mut left, op, mut right, .. } = b;
        let at = op.span();
        self.visit_expr_mut(&mut left);
        let index = self.index();
        let construct = emit::helper("logical", index, at);
        self.open(construct.clone());
        self.visit_expr_mut(&mut right);
        let carried = self.close(index, at);
        emit::logical(construct, index, &op, (*left, *right), carried)
    }

    fn macro_call(&mut self, mac: &mut Macro) -> MacroResult {
        let Some(name) = mac.path.segments.last().map(|s| s.ident.clone()) else {
            return MacroResult::Kept;
        };
        match known::macro_kind(&name.to_string()) {
            MacroKind::Constant => MacroResult::Kept,
            MacroKind::Elements => {
                self.elements(mac);
                MacroResult::Kept
            }
            MacroKind::Matches => {
                let parser =
                    |input: parse::ParseStream<'_>| Ok((input.parse::<Expr>()?, input.parse::<TokenStream>()?));
                if let Ok((mut scrutinee, rest)) = parser.parse2(mac.tokens.clone()) {
                    self.visit_expr_mut(&mut scrutinee);
                    mac.tokens = quote!(#scrutinee #rest);
                }
                MacroResult::Kept
            }
            MacroKind::Assert(debug) => self.assert(mac, name.span(), debug),
            MacroKind::Panic => self.checked(name.span(), "allows_panic"),
            MacroKind::Opaque => self.checked(name.span(), "allows_macro"),
        }
    }

    fn checked(&self, at: Span, function: &'static str) -> MacroResult {
        match self.checks(function, at, self.function_start) {
            Some(checks) => MacroResult::Checked(checks),
            None => MacroResult::Kept,
        }
    }

    /// `vec![a, b]` or `vec![a; n]`.
    fn elements(&mut self, mac: &mut Macro) {
        let repeat = |input: parse::ParseStream<'_>| {
            Ok((input.parse::<Expr>()?, input.parse::<Token![;]>()?, input.parse::<Expr>()?))
        };
        if let Ok((mut value, semi, mut count)) = repeat.parse2(mac.tokens.clone()) {
            self.visit_expr_mut(&mut value);
            self.visit_expr_mut(&mut count);
            mac.tokens = quote!(#value #semi #count);
        } else if let Ok(mut list) = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(mac.tokens.clone()) {
            list.iter_mut().for_each(|e| self.visit_expr_mut(e));
            mac.tokens = list.to_token_stream();
        }
    }

    fn assert(&mut self, mac: &Macro, at: Span, debug: bool) -> MacroResult {
        let parser = |input: parse::ParseStream<'_>| {
            let condition: Expr = input.parse()?;
            input.parse::<Option<Token![,]>>()?;
            Ok((condition, input.parse::<TokenStream>()?))
        };
        match parser.parse2(mac.tokens.clone()) {
            Ok((mut condition, message)) => {
                let text = condition.to_token_stream().to_string();
                self.visit_expr_mut(&mut condition);
                let index = self.index();
                MacroResult::Replaced(emit::assert(index, at, debug, &condition, &text, &message))
            }
            // The compiler says what is wrong with it.
            Err(_) => MacroResult::Kept,
        }
    }
}

/// What becomes of a macro call.
enum MacroResult {
    /// It stays.
    Kept,
    /// It stays, after these checks.
    Checked(TokenStream),
    /// This stands in its place.
    Replaced(Expr),
}

impl VisitMut for Walk<'_> {
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        self.expr(e, Position::default());
    }
    fn visit_block_mut(&mut self, b: &mut Block) {
        self.block(b, Position::default());
    }
    // What is inside of these is not part of the traced function.
    fn visit_item_mut(&mut self, _: &mut Item) {}
    fn visit_type_mut(&mut self, _: &mut Type) {}
    fn visit_pat_mut(&mut self, _: &mut Pat) {}
    fn visit_path_mut(&mut self, _: &mut Path) {}
    fn visit_attribute_mut(&mut self, _: &mut Attribute) {}
    fn visit_angle_bracketed_generic_arguments_mut(&mut self, _: &mut AngleBracketedGenericArguments) {}
}

/// An expansion with the attributes of what it replaces.
fn with_attributes(attrs: &[Attribute], expansion: Expr) -> Expr {
    if attrs.is_empty() { expansion } else { Expr::Verbatim(quote!(#(#attrs)* #expansion)) }
}

/// `{ checks; expr }`
fn after_checks(checks: TokenStream, e: &(impl ToTokens + ?Sized)) -> Expr {
    Expr::Block(ExprBlock {
        attrs: Vec::new(),
        label: None,
        block: Block {
            brace_token: token::Brace(Span::mixed_site()),
            stmts: vec![
                Stmt::Expr(Expr::Verbatim(checks), None),
                Stmt::Expr(Expr::Verbatim(e.to_token_stream()), None),
            ],
        },
    })
}

/// A type that can be written on a local variable.
fn nameable(ty: &Type) -> Option<Type> {
    struct Opaque(bool);
    impl<'a> visit::Visit<'a> for Opaque {
        fn visit_type_impl_trait(&mut self, _: &'a TypeImplTrait) {
            self.0 = true;
        }
    }
    let mut opaque = Opaque(matches!(ty, Type::Never(_)));
    visit::Visit::visit_type(&mut opaque, ty);
    (!opaque.0).then(|| ty.clone())
}

/// Whether a condition has a `let` in its chain of `&&`.
fn has_let(cond: &Expr) -> bool {
    match cond {
        Expr::Let(_) => true,
        Expr::Binary(b) if matches!(b.op, BinOp::And(_)) => has_let(&b.left) || has_let(&b.right),
        _ => false,
    }
}

/// Whether an arm of an `if` ends in an expression.
fn arms_have_values(e: &ExprIf) -> bool {
    let ends_in_value = |b: &Block| matches!(b.stmts.last(), Some(Stmt::Expr(_, None)));
    ends_in_value(&e.then_branch)
        || match e.else_branch.as_ref().map(|(_, e)| &**e) {
            Some(Expr::Block(b)) => ends_in_value(&b.block),
            Some(Expr::If(e)) => arms_have_values(e),
            _ => false,
        }
}

fn is_assignment(op: &BinOp) -> bool {
    matches!(
        op,
        BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::MulAssign(_)
            | BinOp::DivAssign(_)
            | BinOp::RemAssign(_)
            | BinOp::BitXorAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::ShlAssign(_)
            | BinOp::ShrAssign(_)
    )
}

#[cfg(test)]
mod tests;
