//! Expressions.

use super::marks::{has_no_value, is_sequence};
use super::places;
use super::state::Resolver;
use crate::graph::forms::{comparison, is_assignment, take};
use crate::graph::known;
use crate::graph::names::rt;
use crate::graph::tree::*;
use quote::quote;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::*;

impl Resolver {
    /// Resolves an expression in place. `is_value` tells whether its value is that of the code.
    pub(super) fn expr(&mut self, e: &mut Expr, is_value: bool) {
        self.canonical_expr(e);
        match e {
            Expr::If(_) => {
                let Expr::If(branch) = take(e) else { unreachable!() };
                let branch = self.branch(branch, false);
                self.node(e, TreeNode::If(Box::new(branch)), is_value);
            }
            Expr::Paren(inner) => self.expr(&mut inner.expr, is_value),
            Expr::Group(inner) => self.expr(&mut inner.expr, is_value),
            Expr::Block(_) => {
                let Expr::Block(b) = take(e) else { unreachable!() };
                let node = self.block(b);
                self.node(e, node, is_value);
            }
            Expr::Match(m) => self.match_expr(m, is_value),
            Expr::While(_) => {
                let Expr::While(w) = take(e) else { unreachable!() };
                let node = self.while_expr(w);
                self.node(e, node, is_value);
            }
            Expr::ForLoop(_) => {
                let Expr::ForLoop(f) = take(e) else { unreachable!() };
                let node = self.for_expr(f);
                self.node(e, node, is_value);
            }
            Expr::Loop(_) => {
                let Expr::Loop(l) = take(e) else { unreachable!() };
                let node = self.loop_expr(l);
                self.node(e, node, is_value);
            }
            Expr::Closure(_) => {
                let Expr::Closure(c) = take(e) else { unreachable!() };
                let node = self.closure(c);
                self.node(e, node, is_value);
            }
            Expr::Async(_) => {
                let Expr::Async(mut a) = take(e) else { unreachable!() };
                let body = self.without_jumps(|resolver| resolver.body(&mut a.block));
                self.node(e, TreeNode::Async(Box::new(Async { syntax: a, body, facts: Default::default() })), is_value);
            }
            Expr::Unsafe(u) => {
                let message = "a `#[graph]` function cannot contain an `unsafe` block: move it into a function \
                               without `#[graph]`, and call that";
                self.parts.push(Part::Error(Error::new_spanned(u.unsafe_token, message)));
            }
            Expr::Const(_) => {}
            Expr::Repeat(r) => self.expr(&mut r.expr, false),
            Expr::Binary(_) => self.binary(e, is_value),
            Expr::Tuple(t) => {
                t.elems.iter_mut().for_each(|e| self.pass(e, false));
                t.elems.iter_mut().for_each(|e| self.expr(e, false));
            }
            Expr::Array(a) => {
                a.elems.iter_mut().for_each(|e| self.pass(e, false));
                a.elems.iter_mut().for_each(|e| self.expr(e, false));
            }
            Expr::Struct(s) => {
                s.fields.iter_mut().for_each(|field| self.pass(&mut field.expr, false));
                visit_mut::visit_expr_struct_mut(self, s);
            }
            Expr::Assign(a) => {
                self.pass(&mut a.right, false);
                self.expr(&mut a.right, false);
                self.assigned(&mut a.left);
            }
            Expr::Reference(r) if r.mutability.is_some() => {
                self.change(&r.expr, Change::Exact, is_value);
                self.in_place(&mut r.expr);
            }
            Expr::RawAddr(r) => {
                if matches!(r.mutability, PointerMutability::Mut(_)) {
                    self.change(&r.expr, Change::Exact, false);
                }
                self.in_place(&mut r.expr);
            }
            Expr::MethodCall(m) => {
                self.method_call(m, is_value);
                self.call(e, is_value);
            }
            Expr::Call(c) => {
                bounds(c);
                self.callee(&c.func);
                self.call(e, is_value);
            }
            Expr::Cast(c) => {
                if is_host_cast(c) {
                    let operand = self.code(take(&mut c.expr));
                    let Expr::Cast(cast) = take(e) else { unreachable!() };
                    self.node(e, TreeNode::Cast(Box::new(Cast { syntax: cast, operand })), is_value);
                } else {
                    self.expr(&mut c.expr, false);
                }
            }
            Expr::Break(_) | Expr::Continue(_) | Expr::Return(_) => {
                let jump = self.jump(take(e));
                self.node(e, TreeNode::Jump(Box::new(jump)), is_value);
            }
            Expr::Await(_) => {
                let Expr::Await(mut a) = take(e) else { unreachable!() };
                let base = self.code(take(&mut a.base));
                let node = Await { syntax: a, base, facts: Default::default() };
                self.node(e, TreeNode::Await(Box::new(node)), is_value);
            }
            Expr::Macro(m) => {
                let call = self.macro_call(&m.mac);
                if !matches!(call, MacroCall::Kept) {
                    let Expr::Macro(m) = take(e) else { unreachable!() };
                    self.node(e, TreeNode::Macro(Box::new((m, call))), is_value);
                }
            }
            other => visit_mut::visit_expr_mut(self, other),
        }
    }

    /// Brings an expression to canonical form, but not the expressions inside it.
    pub(super) fn canonical_expr(&mut self, e: &mut Expr) {
        if !self.is_as_written {
            self.canonical.expr(&mut self.env, e);
        }
    }

    fn block(&mut self, mut b: ExprBlock) -> TreeNode {
        if let Some(label) = &b.label {
            let body = self.in_labeled(label, |resolver| resolver.body(&mut b.block));
            TreeNode::Labeled(Box::new(Labeled { syntax: b, body, facts: Default::default() }))
        } else if is_sequence(&b) {
            let is_unit = b.attrs.drain(..).any(|mark| has_no_value(&mark));
            let body = self.body(&mut b.block);
            let hidden = self.env.hidden();
            TreeNode::Sequence(Box::new(SequenceBlock { syntax: b, body, is_unit, hidden, facts: Default::default() }))
        } else {
            let body = self.body(&mut b.block);
            TreeNode::Block(Box::new((b, body)))
        }
    }

    fn match_expr(&mut self, m: &mut ExprMatch, is_value: bool) {
        let scrutinee = m.expr.clone();
        for arm in &m.arms {
            self.matched(&arm.pat, &m.expr);
        }
        self.pass(&mut m.expr, false);
        self.expr(&mut m.expr, false);
        for arm in &mut m.arms {
            let scope = self.env.enter();
            let declared = self.declare(|env| env.declare_matched(&arm.pat, &scrutinee));
            self.parts.push(Part::Declare(declared));
            if let Pat::Guard(guard) = &mut arm.pat {
                self.as_written(|resolver| resolver.host_condition(&mut guard.guard));
            }
            self.in_host_arm(|resolver| resolver.expr(&mut arm.body, is_value));
            self.env.leave(scope);
        }
    }

    fn closure(&mut self, mut c: ExprClosure) -> TreeNode {
        self.scoped(|resolver| {
            let declared = resolver.declare(|env| c.inputs.iter().for_each(|pat| env.declare_closure_parameter(pat)));
            let at = c.body.span();
            let body = resolver.without_jumps(|resolver| resolver.code(take(&mut c.body)));
            TreeNode::Closure(Box::new(Closure { syntax: c, declared, at, body, facts: Default::default() }))
        })
    }

    fn binary(&mut self, e: &mut Expr, is_value: bool) {
        self.canonical_condition(e);
        let is_host = self.is_host(e);
        let Expr::Binary(b) = e else { unreachable!("it is a binary operation") };
        if is_host {
            self.expr(&mut b.left, false);
            return match b.op {
                BinOp::And(_) | BinOp::Or(_) => self.in_construct(|resolver| resolver.expr(&mut b.right, false)),
                _ => self.expr(&mut b.right, false),
            };
        }
        if let Some((at, function)) = comparison(&b.op) {
            let (left, right) = (self.code(take(&mut b.left)), self.code(take(&mut b.right)));
            let place = if right.parts.is_empty() { None } else { self.place(&left.syntax) };
            let compare = CompareExpr { at, function, left, place, right, facts: Default::default() };
            self.node(e, TreeNode::Compare(Box::new(compare)), is_value);
        } else if matches!(b.op, BinOp::And(_) | BinOp::Or(_)) {
            let (op, left) = (b.op, self.code(take(&mut b.left)));
            self.around += 1;
            let right = self.in_construct(|resolver| resolver.code(take(&mut b.right)));
            self.around -= 1;
            self.node(
                e,
                TreeNode::Logical(Box::new(LogicalExpr { op, left, right, facts: Default::default() })),
                is_value,
            );
        } else if is_assignment(&b.op) {
            let is_right_first = places::is_right_first(&b.left, &b.right);
            let right = self.code(take(&mut b.right));
            if !is_right_first && right.parts.is_empty() {
                *b.right = right.syntax;
                return self.assigned(&mut b.left);
            }
            let place = self.place(&b.left);
            let left = self.code_of(take(&mut b.left), Resolver::assigned);
            let Expr::Binary(syntax) = take(e) else { unreachable!() };
            let update = UpdateExpr { syntax, left, place, right, is_right_first, facts: Default::default() };
            self.node(e, TreeNode::Update(Box::new(update)), is_value);
        } else {
            visit_mut::visit_expr_binary_mut(self, b);
        }
    }

    /// Resolves a call, whose arguments are passed on. It is a node if an argument has a construct.
    fn call(&mut self, e: &mut Expr, is_value: bool) {
        let outer = std::mem::take(&mut self.parts);
        let (callee, arguments) = match e {
            Expr::Call(c) => (&mut c.func, &mut c.args),
            Expr::MethodCall(m) => (&mut m.receiver, &mut m.args),
            _ => unreachable!("only calls come here"),
        };
        self.expr(callee, false);
        let of_callee = std::mem::replace(&mut self.parts, outer);
        let mut args = Vec::with_capacity(arguments.len());
        for argument in arguments.iter_mut() {
            let (hole, syntax) = self.hole();
            let code = self.passed_code(std::mem::replace(argument, syntax));
            args.push((hole, code));
        }
        let is_plain = |part: &Part| !matches!(part, Part::Node { node, .. } if !matches!(node, TreeNode::Variable(_)));
        if args.iter().flat_map(|(_, code)| &code.parts).all(is_plain) {
            self.parts.extend(of_callee);
            for (argument, (_, code)) in arguments.iter_mut().zip(args) {
                *argument = code.syntax;
                self.parts.extend(code.parts.into_iter().map(Part::nested));
            }
            return;
        }
        let args = args.into_iter().map(|(hole, code)| {
            let borrowed = match &code.syntax {
                Expr::Reference(r) if r.mutability.is_none() => self.place(&r.expr),
                _ => None,
            };
            let stays = match &code.syntax {
                Expr::Lit(_) | Expr::Reference(_) => true,
                e => matches!(code.node_in(e), Some(TreeNode::Closure(_))),
            };
            Argument { hole, code, borrowed, stays }
        });
        let args = args.collect();
        let (receiver, keeps_receiver) = match e {
            Expr::MethodCall(m) => (self.place(&m.receiver), known::keeps_receiver(&m.method.to_string()).is_some()),
            _ => (None, false),
        };
        let call = Code { syntax: take(e), parts: of_callee };
        let call = Call { call, receiver, keeps_receiver, args, facts: Default::default() };
        self.node(e, TreeNode::Call(Box::new(call)), is_value);
    }

    fn jump(&mut self, mut e: Expr) -> Jump {
        let (kind, at, label, value) = match &mut e {
            Expr::Break(b) => (JumpKind::Break, b.break_token.span, b.label.clone(), b.expr.as_mut()),
            Expr::Continue(c) => (JumpKind::Continue, c.continue_token.span, c.label.clone(), None),
            Expr::Return(r) => (JumpKind::Return, r.return_token.span, None, r.expr.as_mut()),
            _ => unreachable!("only jumps are passed here"),
        };
        let value = value.map(|value| self.code(take(value)));
        self.jumps.add(kind, label.as_ref(), value.is_some());
        Jump { kind, at, label, syntax: e, value, hidden: self.env.hidden(), facts: Default::default() }
    }
}

/// Returns whether an expression is `as` with a numeric type, whose operand must not be a tensor. A
/// literal is none.
fn is_host_cast(cast: &ExprCast) -> bool {
    fn is_literal(e: &Expr) -> bool {
        match e {
            Expr::Lit(_) => true,
            Expr::Unary(e) => is_literal(&e.expr),
            Expr::Paren(e) => is_literal(&e.expr),
            _ => false,
        }
    }
    !is_literal(&cast.expr) && matches!(&*cast.ty, Type::Path(p) if p.qself.is_none() && known::is_cast_target(&p.path))
}

/// Replaces `range(a..b)` by `range((a, b))`, because one end may be a tensor and the other a host
/// number.
fn bounds(call: &mut ExprCall) {
    if !known::is_range(&call.func) || call.args.len() != 1 {
        return;
    }
    if let Some(Expr::Range(ExprRange { start: Some(start), limits, end: Some(end), .. })) = call.args.first() {
        let bounds = match limits {
            RangeLimits::HalfOpen(_) => quote!((#start, #end)),
            RangeLimits::Closed(_) => {
                let inclusive = rt(limits.span(), "Inclusive");
                quote!(#inclusive(#start, #end))
            }
        };
        call.args[0] = parse_quote!(#bounds);
    }
}

impl VisitMut for Resolver {
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        self.expr(e, false);
    }
    /// A block of an expression that has no node of its own.
    fn visit_block_mut(&mut self, b: &mut Block) {
        let block = std::mem::replace(b, Block { brace_token: b.brace_token, stmts: Vec::new() });
        let mut e = Expr::Block(ExprBlock { attrs: Vec::new(), label: None, block });
        self.expr(&mut e, false);
        b.stmts.push(Stmt::Expr(e, None));
    }
    // None of these are part of the traced function.
    fn visit_item_mut(&mut self, _: &mut Item) {}
    fn visit_type_mut(&mut self, _: &mut Type) {}
    fn visit_pat_mut(&mut self, _: &mut Pat) {}
    fn visit_path_mut(&mut self, _: &mut Path) {}
    fn visit_attribute_mut(&mut self, _: &mut Attribute) {}
    fn visit_angle_bracketed_generic_arguments_mut(&mut self, _: &mut AngleBracketedGenericArguments) {}
}
