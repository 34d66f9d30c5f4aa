//! Scope resolution, carried places, and the replacement of constructs, in one walk over the body.
//!
//! The walk keeps a stack of the constructs around the current expression. A modification of a
//! place is recorded in each of them that starts after the declaration of the variable. At the end
//! of a construct its carried places are known, and the construct is replaced.
//!
//! Invariants:
//! - A variable is carried only by constructs inside its scope.
//! - Every block of the user is emitted once.
//! - Items and constants inside the body stay as they are.
//!
//! Jumps are in [`jumps`], loops in [`loops`], the order of operands in [`operands`].

mod jumps;
mod loops;
mod operands;
use super::canonical::canonical;
use super::emit::{self, Arm, ArmValue, Carried, IfParts};
use super::format;
use super::forms::{comparison, ends_with_else, has_let, is_assignment};
use super::jumps::{Jumps, block_jumps, expr_jumps};
use super::known::{self, MacroKind, Property};
use super::marks::{has_kind_of_outer, is_sequence};
use super::names;
use super::place::{Place, Places, Projection, Receiver, Written};
use super::scope::{self, Access, BindingId, Env};
use crate::ctxt::Ctxt;
use jumps::{Flag, Sequence, Target, TargetKind};
use operands::{Changed, Changes};
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::*;

pub(super) struct Rewritten {
    pub(super) function: ItemFn,
    /// The places that each construct carries, in the order in which the constructs end.
    #[cfg_attr(not(test), allow(dead_code, reason = "the tests of the analysis read it"))]
    pub(super) carried: Vec<Vec<String>>,
}

pub(super) fn rewrite(cx: &Ctxt, mut function: ItemFn) -> Rewritten {
    canonical(&function.sig, &mut function.block);
    let mut walk = Walk {
        cx,
        env: Env::default(),
        constructs: Vec::new(),
        targets: Vec::new(),
        flags: Vec::new(),
        sequences: Vec::new(),
        kinds: Vec::new(),
        function_start: 0,
        next_index: 0,
        carried: Vec::new(),
        changed: Vec::new(),
    };
    for parameter in &function.sig.inputs {
        walk.env.declare_parameter(parameter);
    }
    let expected = match &function.sig.output {
        ReturnType::Type(_, ty) => nameable(ty),
        ReturnType::Default => None,
    };
    let slot = walk.function_target(function.sig.ident.span());
    walk.targets[0].returns_unit = match &function.sig.output {
        ReturnType::Default => true,
        ReturnType::Type(_, ty) => matches!(&**ty, Type::Tuple(t) if t.elems.is_empty()),
    };
    walk.block(&mut function.block, Position { expected: expected.clone(), ..Position::tail_of(0) });
    if walk.targets[0].slot_used {
        function.block.stmts.insert(0, Stmt::Expr(Expr::Verbatim(emit::slot(&slot, expected.as_ref())), None));
    }
    let carried = walk.carried;
    Rewritten { function, carried }
}

/// The kind of a construct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConstructKind {
    If,
    While,
    /// A `loop`: a `while` whose body runs at least once.
    Loop,
    Logical,
}

/// A construct around the current expression.
struct Construct {
    /// The helper variable of the construct.
    name: Ident,
    index: usize,
    /// The index of the construct whose condition has the same type: this one, or an enclosing one.
    kind_by: usize,
    kind: ConstructKind,
    /// Variables with a smaller id are declared before the construct.
    first_inside: BindingId,
    /// The places that change in the first arm or the loop body, and in the second arm.
    carried: [Places; 2],
    /// Places used inside as receivers and arguments, if their variables may be immutable.
    used: Vec<(BindingId, emit::Used)>,
    /// The index of the arm that contains the current expression.
    arm: usize,
    /// The arms that a jump leaves.
    left: [bool; 2],
    /// The arms that certainly jump.
    jumps: [bool; 2],
    has_value: bool,
    /// The target that ends with the construct, if nothing follows it there.
    tail: Option<usize>,
    /// Whether the construct is a part of a larger expression.
    nested: bool,
    /// Variables declared by `let x;` that are initialized inside, and the arms that do so.
    deferred: Vec<(Ident, [bool; 2])>,
}

impl Construct {
    /// Returns the label of the current arm.
    fn label(&self) -> Lifetime {
        names::label(["arm", "other"][self.arm], self.index, self.name.span())
    }

    /// Returns the slot of a variable that is initialized in the construct.
    fn slot_of(&self, var: &Ident) -> Ident {
        names::helper(&format!("{var}_"), self.index, var.span())
    }
}

/// The context of an expression.
#[derive(Clone, Default)]
struct Position {
    /// The type of the expression, if it is written nearby.
    expected: Option<Type>,
    /// The number of innermost constructs whose value the expression is.
    value_of: usize,
    /// The target that ends with the expression.
    tail: Option<usize>,
    /// Whether the expression is a statement or its value, so that a jump in it leaves no enclosing
    /// expression half evaluated.
    is_statement: bool,
    /// Whether the value is known to be `()`.
    is_unit: bool,
}

impl Position {
    fn statement() -> Position {
        Position { is_statement: true, ..Position::default() }
    }

    fn tail_of(target: usize) -> Position {
        Position { tail: Some(target), ..Position::statement() }
    }

    /// Returns the position of the arms of an `if`, which provide its value if `is_value`.
    fn of_arms(&self, is_value: bool) -> Position {
        let (expected, value_of) = if is_value { (self.expected.clone(), self.value_of + 1) } else { (None, 0) };
        Position { expected, value_of, tail: self.tail, is_statement: self.is_statement, is_unit: self.is_unit }
    }
}

/// How a place is modified.
#[derive(Clone, PartialEq)]
enum Change {
    /// Assigned, or borrowed by `&mut`.
    Exact,
    /// Possibly modified: the receiver of a method, or a callee, which may be taken by `&mut`.
    Perhaps,
    /// Modified if the receiver has a type whose method of a known name may do so.
    Unless(Receiver),
}

pub(super) struct Walk<'a> {
    cx: &'a Ctxt,
    env: Env,
    constructs: Vec<Construct>,
    /// The targets of jumps in the current function. The first one is the function itself.
    targets: Vec<Target>,
    flags: Vec<Flag>,
    sequences: Vec<Sequence>,
    /// For each construct whose kind a flag needs: its index, and the declaring flag's index.
    kinds: Vec<(usize, usize)>,
    /// Constructs from this index on are in the same function or closure as the current expression.
    function_start: usize,
    next_index: usize,
    carried: Vec<Vec<String>>,
    /// The modifications so far, in order.
    changed: Vec<Changed>,
}

impl Walk<'_> {
    fn index(&mut self) -> usize {
        self.next_index += 1;
        self.next_index - 1
    }

    /// Opens a construct. Returns its index and name.
    fn open(&mut self, kind: ConstructKind, at: Span, position: &Position) -> (usize, Ident) {
        let index = self.index();
        let text = match kind {
            ConstructKind::If => "if",
            ConstructKind::While | ConstructKind::Loop => "while",
            ConstructKind::Logical => "logical",
        };
        let name = names::helper(text, index, at);
        self.constructs.push(Construct {
            name: name.clone(),
            index,
            kind_by: index,
            kind,
            first_inside: self.env.next_id(),
            carried: Default::default(),
            used: Vec::new(),
            arm: 0,
            left: [false; 2],
            jumps: [false; 2],
            has_value: false,
            tail: position.tail,
            nested: !position.is_statement,
            deferred: Vec::new(),
        });
        (index, name)
    }

    /// Closes the innermost construct.
    fn close(&mut self, at: Span) -> Closed {
        self.env.forget_given(self.constructs.len());
        let mut construct = self.constructs.pop().expect("the construct is open");
        let [mut carried, second] = std::mem::take(&mut construct.carried);
        for place in second.iter() {
            // The construct may be the end of a function or loop body. The variables declared there
            // go out of scope, so no common value is needed after the construct.
            let dies = construct.tail.is_some_and(|t| place.binding >= self.targets[t].first_binding)
                && place.is_owned(self.env.binding(place.binding).access)
                && self.dies_around(place);
            if !dies || carried.iter().any(|p| p.overlaps(place)) {
                carried.add(place.clone());
            }
        }
        let mut deferred = Vec::new();
        for (var, given_in) in std::mem::take(&mut construct.deferred) {
            let id = self.env.resolve(&var.to_string()).expect("the variable was resolved when it was assigned");
            let is_mut = self.env.binding(id).access == Access::Mut;
            let own = [0, 1].map(|arm| given_in[arm] && self.stays_in_arm(&construct, arm, id));
            if given_in == own {
                deferred.push(emit::Deferred { var, is_mut, given_in, own, slot: None });
                continue;
            }
            if !self.constructs.iter().any(|c| id < c.first_inside) {
                self.env.binding(id).deferred = false;
            }
            let slot = self.lives_after(&construct, id).then(|| construct.slot_of(&var));
            if let Some(slot) = &slot {
                self.env.binding(id).given = Some(self.constructs.len());
                let written = Written::variable(slot, var.span());
                carried.add(Place { written, binding: BindingId::MAX - deferred.len(), receivers: Vec::new() });
            }
            deferred.push(emit::Deferred { var, is_mut, given_in, own, slot });
        }
        let is_carried = |id| carried.iter().any(|p| p.binding == id && p.is_whole() && p.is_certain());
        let used: Vec<emit::Used> =
            construct.used.drain(..).filter(|&(id, _)| !is_carried(id)).map(|(_, used)| used).collect();
        self.carried.push(carried.iter().map(Place::described).collect());
        let label = |arm: usize| {
            construct.arm = arm;
            construct.left[arm].then(|| construct.label())
        };
        let labels = [0, 1].map(label);
        let kind = self.kinds.iter().any(|&(i, _)| i == construct.index);
        let kind = kind.then(|| names::helper("kind", construct.index, at));
        Closed { carried: Carried::new(&carried, &used, &construct.name, construct.index, at), labels, deferred, kind }
    }

    /// Returns whether the enclosing constructs need no value of a place either: each of them is in
    /// its second arm, and its first arm does not modify the place.
    fn dies_around(&self, place: &Place) -> bool {
        let mut around = self.constructs.iter().filter(|c| place.binding < c.first_inside);
        around.all(|c| c.arm == 1 && !c.carried[0].iter().any(|p| p.overlaps(place)))
    }

    /// Returns whether a variable from outside a construct is in scope after it. A variable
    /// declared in the function or body that ends with the construct is not.
    fn lives_after(&self, construct: &Construct, id: BindingId) -> bool {
        construct.tail.is_none_or(|t| id < self.targets[t].first_binding)
    }

    /// Returns whether nothing after the construct sees the value that a deferred variable gets in
    /// an arm.
    ///
    /// This holds if the arm jumps to the end of a function or a labeled block and provides its
    /// value. It does not hold in a `loop`, which passes first values out of its body.
    fn stays_in_arm(&self, construct: &Construct, arm: usize, id: BindingId) -> bool {
        let in_loop = || self.constructs.iter().any(|c| c.kind == ConstructKind::Loop && id < c.first_inside);
        construct.jumps[arm] && self.lives_after(construct, id) && !in_loop()
    }

    /// Records that a place is modified, in all but the `skip` innermost constructs.
    fn change(&mut self, written: Written, how: Change, skip: usize) {
        let Some(id) = self.env.resolve(&written.root.to_string()) else {
            return;
        };
        let binding = self.env.binding(id).clone();
        let whole_variable = written.projections.is_empty() && !written.indexed;
        let receiver = match &how {
            Change::Unless(receiver) => Some(receiver.clone()),
            _ => None,
        };
        if receiver.is_some() && binding.access == Access::Mut && !binding.is_known {
            // The variable may hold mutable references and hand them out.
            self.used(id, written.clone(), receiver.clone());
        }
        let is_exact = how == Change::Exact;
        let written = match how {
            Change::Unless(_) if binding.is_known => return,
            // Nothing is modified through a plain variable, unless it is a mutable reference.
            Change::Perhaps | Change::Unless(_) if binding.access == Access::Plain => {
                return self.used(id, written, receiver);
            }
            Change::Perhaps | Change::Unless(_) => written.whole(binding.access),
            Change::Exact if written.indexed => written.whole(binding.access),
            Change::Exact => written,
        };
        if binding.deferred && binding.given.is_none() && how == Change::Exact {
            if whole_variable {
                self.initial_value(id, &written);
            }
            return;
        }
        let constructs = self.constructs.len();
        self.changed.push(Changed { binding: id, written: written.clone(), constructs, is_exact });
        // A deferred variable has no value outside the construct that initializes it.
        let first = binding.given.unwrap_or(0);
        let open = self.constructs.len() - skip.min(self.constructs.len());
        for construct in self.constructs[..open].iter_mut().skip(first).filter(|c| id < c.first_inside) {
            let receivers = receiver.iter().cloned().collect();
            construct.carried[construct.arm].add(Place { written: written.clone(), binding: id, receivers });
        }
    }

    /// Records the use of a place whose variable is not known to be mutable. `receiver` is given if
    /// the use is a call of a method with a known name.
    fn used(&mut self, id: BindingId, written: Written, receiver: Option<Receiver>) {
        let path = |w: &Written| w.prefixes().last().map(ToString::to_string);
        let first = self.env.binding(id).given.unwrap_or(0);
        for construct in self.constructs.iter_mut().skip(first).filter(|c| id < c.first_inside) {
            let covers = |u: &emit::Used| u.receiver.is_none() || u.receiver == receiver;
            if !construct.used.iter().any(|(_, u)| covers(u) && path(&u.written) == path(&written)) {
                construct.used.push((id, emit::Used { written: written.clone(), receiver: receiver.clone() }));
            }
        }
    }

    /// Records the initialization of a variable declared by `let x;`.
    fn initial_value(&mut self, id: BindingId, written: &Written) {
        let name = &written.root;
        let around = || self.constructs.iter().filter(|c| id < c.first_inside);
        if around().any(|c| matches!(c.kind, ConstructKind::While | ConstructKind::Logical)) {
            let message = format!(
                "`{name}` is initialized inside a `while`, `for`, `&&` or `||`, which may not run: initialize it \
                 where it is declared"
            );
            self.cx.error(name, message);
            self.env.binding(id).deferred = false;
            return;
        }
        if around().next().is_none() {
            self.env.binding(id).deferred = false;
            return;
        }
        self.env.binding(id).given = Some(self.constructs.len());
        let stays_in = self.constructs.iter().rposition(|c| id < c.first_inside && self.stays_in_arm(c, c.arm, id));
        let first = stays_in.unwrap_or(0);
        for construct in self.constructs[first..].iter_mut().filter(|c| id < c.first_inside) {
            match construct.deferred.iter_mut().find(|(var, _)| var == name) {
                Some((_, given_in)) => given_in[construct.arm] = true,
                None => construct.deferred.push((name.clone(), [construct.arm == 0, construct.arm == 1])),
            }
        }
    }

    /// Records the places that an assignment modifies, and rewrites the left side.
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

    /// Rewrites the expressions inside a place: indices and calls.
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

    /// Rewrites a block. Returns whether it ends in statements guarded by a flag that have a value.
    fn block(&mut self, block: &mut Block, position: Position) -> bool {
        let scope = self.env.enter();
        let (stmts, has_value) = self.statements(std::mem::take(&mut block.stmts), position);
        block.stmts = stmts;
        self.env.leave(scope);
        has_value
    }

    fn statements(&mut self, stmts: Vec<Stmt>, position: Position) -> (Vec<Stmt>, bool) {
        let mut out = Vec::with_capacity(stmts.len());
        let mut rest = stmts.into_iter();
        // Statements after one that certainly jumps never run.
        let mut is_dead = false;
        while let Some(stmt) = rest.next() {
            let last = rest.as_slice().is_empty();
            if is_dead {
                self.statement(stmt, None, true, &mut out);
                continue;
            }
            is_dead = certainly_jumps(&stmt);
            let may_leave = !last && !is_dead && Jumps::leaving(&stmt).under_construct;
            let end = last.then_some(&position);
            if !may_leave {
                self.statement(stmt, end, false, &mut out);
                continue;
            }
            let start = out.len();
            self.lower_flag(stmt.span(), None);
            self.statement(stmt, end, false, &mut out);
            let Some(flag) = self.take_flag() else {
                continue;
            };
            out.insert(start, Stmt::Expr(Expr::Verbatim(flag.declaration.clone()), None));
            let rest: Vec<Stmt> = rest.collect();
            // A block that certainly jumps has any type.
            let never_ends = position.tail.is_none() && ends_in_jump(&rest);
            let (guarded, has_value) = self.guarded(&flag, rest, position);
            out.push(guarded);
            if never_ends && !has_value {
                out.push(Stmt::Expr(self.leave(flag.name.span()), None));
            }
            return (out, has_value);
        }
        (out, false)
    }

    /// Rewrites a statement and appends the result to `out`. A dead statement is never run.
    ///
    /// `end` is the position of the block if this is its last statement.
    fn statement(&mut self, stmt: Stmt, end: Option<&Position>, is_dead: bool, out: &mut Vec<Stmt>) {
        match stmt {
            Stmt::Local(mut local) => {
                self.local(&mut local);
                out.push(Stmt::Local(local));
            }
            Stmt::Item(item) => out.push(Stmt::Item(item)),
            Stmt::Expr(mut e, semi) => {
                let end = end.filter(|_| semi.is_none());
                let position = end.cloned().unwrap_or_else(Position::statement);
                if let Expr::If(e_if) = e {
                    let is_value = ends_with_else(&e_if)
                        && !position.is_unit
                        && (end.is_some() || ((semi.is_some() || is_dead) && arms_have_values(&e_if)));
                    out.push(Stmt::Expr(self.if_expr(e_if, is_value, position), semi));
                } else {
                    if end.is_some() {
                        self.value(&mut e, position.value_of);
                    }
                    self.expr(&mut e, position);
                    out.push(Stmt::Expr(e, semi));
                }
            }
            Stmt::Macro(m) => self.macro_statement(m, out),
        }
    }

    fn local(&mut self, local: &mut Local) {
        let expected = match &local.pat {
            Pat::Type(p) => nameable(&p.ty),
            _ => None,
        };
        if let Some(init) = &mut local.init {
            self.matched(&local.pat, &init.expr);
            let borrow = init.expr.clone();
            self.value(&mut init.expr, 0);
            self.expr(&mut init.expr, Position { expected, ..Position::statement() });
            if let Some((_, diverge)) = &mut init.diverge {
                self.expr(diverge, Position::statement());
            }
            self.env.declare_let(&local.pat, Some(&borrow));
        } else {
            self.env.declare_let(&local.pat, None);
            // A construct may combine several assignments into one, so that `mut` is unused.
            local.attrs.push(parse_quote!(#[allow(unused_mut, reason = "its arms may change it")]));
        }
    }

    /// Records the mutable borrow of the matched place if a pattern has a `ref mut`.
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

    /// Rewrites an expression in place.
    fn expr(&mut self, e: &mut Expr, position: Position) {
        match e {
            Expr::If(_) => {
                let Expr::If(e_if) = take(e) else { unreachable!() };
                let is_value = ends_with_else(&e_if);
                *e = self.if_expr(e_if, is_value, position);
            }
            Expr::Paren(inner) => self.expr(&mut inner.expr, position),
            Expr::Group(inner) => self.expr(&mut inner.expr, position),
            Expr::Block(b) if b.label.is_some() => {
                let Expr::Block(b) = take(e) else { unreachable!() };
                *e = self.labelled_block(b, position);
            }
            Expr::Block(b) if is_sequence(b) => {
                let Expr::Block(b) = take(e) else { unreachable!() };
                *e = self.sequence(b, position);
            }
            Expr::Block(b) => {
                self.block(&mut b.block, position);
            }
            Expr::Match(m) => {
                let scrutinee = m.expr.clone();
                for arm in &m.arms {
                    self.matched(&arm.pat, &m.expr);
                }
                self.value(&mut m.expr, 0);
                self.visit_expr_mut(&mut m.expr);
                for arm in &mut m.arms {
                    let scope = self.env.enter();
                    self.env.declare_matched(&arm.pat, &scrutinee);
                    if let Pat::Guard(guard) = &mut arm.pat {
                        self.host_condition(&mut guard.guard);
                    }
                    self.expr(&mut arm.body, position.clone());
                    self.env.leave(scope);
                }
            }
            Expr::While(_) => {
                let Expr::While(w) = take(e) else { unreachable!() };
                *e = self.while_expr(w);
            }
            Expr::ForLoop(_) => {
                let Expr::ForLoop(f) = take(e) else { unreachable!() };
                *e = self.for_expr(f);
            }
            Expr::Loop(_) => {
                let Expr::Loop(l) = take(e) else { unreachable!() };
                *e = self.loop_expr(l, position);
            }
            Expr::Closure(c) => {
                let scope = self.env.enter();
                c.inputs.iter().for_each(|pat| self.env.declare_pat(pat));
                let at = c.body.span();
                let slot = self.in_function(at, |walk| walk.expr(&mut c.body, Position::tail_of(0)));
                if let Some(slot) = slot {
                    let (declaration, body) = (emit::slot(&slot, None), &c.body);
                    *c.body = Expr::Verbatim(quote!({ #declaration #body }));
                }
                self.env.leave(scope);
            }
            Expr::Async(a) => {
                let at = a.async_token.span;
                let slot = self.in_function(at, |walk| {
                    walk.block(&mut a.block, Position::tail_of(0));
                });
                if let Some(slot) = slot {
                    a.block.stmts.insert(0, Stmt::Expr(Expr::Verbatim(emit::slot(&slot, None)), None));
                }
            }
            Expr::Unsafe(u) => self.cx.error(u.unsafe_token, "a `#[graph]` function cannot contain an `unsafe` block"),
            Expr::Const(_) => {}
            Expr::Repeat(r) => self.visit_expr_mut(&mut r.expr),
            Expr::Binary(_) if self.is_host(e) => visit_mut::visit_expr_mut(self, e),
            Expr::Binary(b) => {
                if let Some((at, function)) = comparison(&b.op) {
                    self.visit_expr_mut(&mut b.left);
                    let start = self.changed.len();
                    self.visit_expr_mut(&mut b.right);
                    let mut operands = Vec::new();
                    match self.changes_since(start, &b.left) {
                        Changes::No => {}
                        Changes::Exact => {
                            let left = &b.left;
                            *b.left = parse_quote!({ #left });
                        }
                        Changes::Perhaps => {
                            let name = names::helper("operand", self.index(), b.right.span());
                            operands.push((name.clone(), std::mem::replace(&mut *b.right, parse_quote!(#name))));
                        }
                    }
                    *e = emit::compare(at, function, &b.left, &b.right);
                    emit::with_operands(e, operands, position.is_statement);
                } else if matches!(b.op, BinOp::And(_) | BinOp::Or(_)) {
                    let Expr::Binary(b) = take(e) else { unreachable!() };
                    *e = self.logical(b);
                } else if is_assignment(&b.op) {
                    let start = self.changed.len();
                    let is_right_first = operands::is_right_first(&b.left, &b.right);
                    self.visit_expr_mut(&mut b.right);
                    let mut operands = Vec::new();
                    if is_right_first || self.changes_since(start, &b.left) != Changes::No {
                        // Rust evaluates the right side first if both sides are numbers.
                        let name = names::helper("operand", self.index(), b.right.span());
                        operands.push((name.clone(), std::mem::replace(&mut *b.right, parse_quote!(#name))));
                    }
                    self.assigned(&mut b.left);
                    emit::with_operands(e, operands, position.is_statement);
                } else {
                    visit_mut::visit_expr_binary_mut(self, b);
                }
            }
            Expr::Tuple(t) => {
                t.elems.iter_mut().for_each(|e| self.value(e, 0));
                visit_mut::visit_expr_tuple_mut(self, t);
            }
            Expr::Array(a) => {
                a.elems.iter_mut().for_each(|e| self.value(e, 0));
                visit_mut::visit_expr_array_mut(self, a);
            }
            Expr::Struct(s) => {
                for field in &mut s.fields {
                    self.value(&mut field.expr, 0);
                    if !matches!(field.expr, Expr::Path(_)) {
                        field.colon_token.get_or_insert_default();
                    }
                }
                visit_mut::visit_expr_struct_mut(self, s);
            }
            Expr::Assign(a) => {
                self.value(&mut a.right, 0);
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
                let name = m.method.to_string();
                if let Some(written) = Written::of(&m.receiver) {
                    let how = match known::keeps_receiver(&name) {
                        Some(known::Keeps::ByTrait(of_trait)) if m.args.is_empty() && m.turbofish.is_none() => {
                            let expr = emit::typed_receiver(&m.receiver, m.method.span());
                            Change::Unless(Receiver::OfTrait { method: m.method.clone(), of_trait, expr })
                        }
                        Some(known::Keeps::OfKnownTypes) if written.indexed => Change::Unless(Receiver::Item),
                        Some(known::Keeps::OfKnownTypes) => Change::Unless(Receiver::Itself),
                        Some(known::Keeps::ByTrait(_)) | None => Change::Perhaps,
                    };
                    // A borrow that is the value of an arm outlives the construct. Carrying its
                    // owner would end the borrow.
                    let skip = if known::lends_by_name(&name) { position.value_of } else { 0 };
                    self.change(written, how, skip);
                }
                self.visit_expr_mut(&mut m.receiver);
                let operands = self.operands(Some(&m.receiver), m.args.iter_mut());
                emit::with_operands(e, operands, position.is_statement);
            }
            Expr::Cast(c) => {
                visit_mut::visit_expr_cast_mut(self, c);
                emit::cast_operand(c);
            }
            Expr::Call(c) => {
                emit::bounds(c);
                if let Some(written) = Written::of(&c.func) {
                    self.change(written, Change::Perhaps, 0);
                }
                self.visit_expr_mut(&mut c.func);
                let operands = self.operands(None, c.args.iter_mut());
                emit::with_operands(e, operands, position.is_statement);
            }
            Expr::Break(_) | Expr::Continue(_) | Expr::Return(_) => *e = self.jump_expr(take(e)),
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

    /// Reports a closure that modifies a captured variable and is moved into a construct: it would
    /// modify the variable whatever the condition is.
    fn moved(&mut self, name: &Ident, id: BindingId) {
        let Some(changed) = self.env.binding(id).changes.clone() else { return };
        if self.constructs.iter().any(|c| id < c.first_inside) {
            let message = format!(
                "the closure `{name}` modifies `{changed}` and cannot be moved under a tensor condition: write its \
                 body here, or pass `{changed}` as an argument"
            );
            self.cx.error(name, message);
        }
    }

    /// Rewrites a variable that is passed to a function, a pattern or a part of a value.
    ///
    /// A mutable reference is reborrowed, because its target may be modified there. A variable that
    /// may be one by its type alone is checked.
    fn value(&mut self, e: &mut Expr, skip: usize) {
        match e {
            Expr::Paren(inner) => return self.value(&mut inner.expr, skip),
            Expr::Group(inner) => return self.value(&mut inner.expr, skip),
            Expr::Path(_) => {}
            _ => return,
        }
        let Some(mut written) = Written::of(e) else { return };
        let Some(id) = self.env.resolve(&written.root.to_string()) else { return };
        let binding = self.env.binding(id).clone();
        let has_value = !binding.deferred || binding.given.is_some();
        if !has_value || !self.constructs.iter().any(|c| id < c.first_inside) {
            return;
        }
        if binding.access == Access::MutRef {
            written.projections.push(Projection::Deref);
            let at = Span::mixed_site().located_at(written.span);
            self.change(written, Change::Exact, skip);
            *e = parse_quote_spanned!(at=> &mut *#e);
        } else if skip == 0 {
            self.moved(&written.root, id);
            if !binding.is_known {
                self.used(id, written, None);
            }
        }
    }

    /// Returns calls of the check `function` for the constructs from index `from` on.
    fn checks(&self, function: &'static str, at: Span, from: usize) -> Option<TokenStream> {
        emit::checks(function, at, self.constructs[from..].iter().rev().map(|c| &c.name))
    }

    /// Puts checks around the operand of `.await`.
    fn check_after(&mut self, operand: &mut Expr, function: &'static str, at: Span) {
        if let Some(checks) = self.checks(function, at, self.function_start) {
            *operand = after_checks(checks, &*operand);
        }
    }

    fn if_expr(&mut self, mut e: ExprIf, is_value: bool, position: Position) -> Expr {
        let has_kind_of_outer = has_kind_of_outer(&mut e);
        if has_let(&e.cond) || self.is_host(&e.cond) {
            return self.native_if(e, is_value, position);
        }
        let ExprIf { attrs, if_token, mut cond, mut then_branch, else_branch } = e;
        self.visit_expr_mut(&mut cond);
        let jumps = [block_jumps(&then_branch), else_branch.as_ref().is_some_and(|(_, e)| expr_jumps(e))];
        let has_value = [
            !ends_in_jump(&then_branch.stmts),
            !matches!(&else_branch, Some((_, e)) if matches!(&**e, Expr::Block(b) if ends_in_jump(&b.block.stmts))),
        ];
        // If both arms jump, the `if` has no value, unless it ends a function or labeled block,
        // whose value the jumps provide.
        let never_ends = jumps == [true; 2] && position.tail.is_none_or(|t| self.targets[t].kind == TargetKind::Loop);
        let is_value = is_value && !never_ends;
        let at = if_token.span;
        let kind_of_outer = self.constructs.last().map(|c| c.kind_by).filter(|_| has_kind_of_outer);
        let (index, construct) = self.open(ConstructKind::If, at, &position);
        self.innermost().kind_by = kind_of_outer.unwrap_or(index);
        self.innermost().has_value = is_value;
        self.innermost().jumps = jumps;
        let arm_position = position.of_arms(is_value);
        let mut given = [self.block(&mut then_branch, arm_position.clone()), false];
        self.other_arm();
        let else_arm = else_branch.map(|(_, e)| match *e {
            Expr::Block(mut b) => {
                given[1] = self.block(&mut b.block, arm_position);
                b.block
            }
            Expr::If(inner) => {
                let span = inner.if_token.span;
                let inner = self.if_expr(inner, is_value, arm_position);
                Block { brace_token: token::Brace(span), stmts: vec![Stmt::Expr(inner, None)] }
            }
            other => unreachable!("an `else` is followed by a block or an `if`, not {}", other.to_token_stream()),
        });
        let Closed { carried, labels: [then_label, else_label], deferred, kind } = self.close(at);
        let leave = (is_value && (then_label.is_some() || else_label.is_some())).then(|| self.leave(at));
        let arms = [
            Some(Arm {
                block: then_branch,
                label: then_label,
                value: ArmValue::some_if(is_value && (has_value[0] || given[0])),
                ends: !jumps[0],
            }),
            else_arm.map(|block| Arm {
                block,
                label: else_label,
                value: ArmValue::some_if(is_value && (has_value[1] || given[1])),
                ends: !jumps[1],
            }),
        ];
        self.check_given(&deferred, jumps);
        let parts = IfParts { construct, index, at, condition: *cond, arms, deferred, kind };
        let mut expansion = match is_value {
            true => emit::if_value(parts, carried, position.expected, leave),
            false => emit::if_statement(parts, carried),
        };
        if never_ends {
            let leave = self.leave(at);
            expansion = Expr::Verbatim(quote!({ #expansion #leave }));
        }
        with_attributes(&attrs, expansion)
    }

    /// Reports variables that are used after an `if` and initialized in only one of its arms,
    /// although the other arm may reach its end.
    fn check_given(&self, deferred: &[emit::Deferred], jumps: [bool; 2]) {
        for d in deferred.iter().filter(|d| d.slot.is_some()) {
            if (0..2).any(|arm| !d.given_in[arm] && !jumps[arm]) {
                let name = &d.var;
                let message = format!(
                    "`{name}` is initialized in only one arm of this `if`: initialize it in both arms, or where it \
                     is declared"
                );
                self.cx.error(name, message);
            }
        }
    }

    /// Proceeds to the second arm of the innermost construct.
    fn other_arm(&mut self) {
        self.env.forget_given(self.constructs.len());
        self.innermost().arm = 1;
    }

    fn innermost(&mut self) -> &mut Construct {
        self.constructs.last_mut().expect("a construct is open")
    }

    /// Rewrites an `if` on a certain host value: `if let`, a `let` chain, a literal.
    fn native_if(&mut self, mut e: ExprIf, is_value: bool, position: Position) -> Expr {
        let position = if is_value { position } else { Position { expected: None, value_of: 0, ..position } };
        let scope = self.env.enter();
        self.host_condition(&mut e.cond);
        self.block(&mut e.then_branch, position.clone());
        self.env.leave(scope);
        if let Some((_, branch)) = &mut e.else_branch {
            if let Expr::If(_) = **branch {
                let Expr::If(inner) = take(branch) else { unreachable!() };
                let inner = self.if_expr(inner, is_value, position);
                **branch = match inner {
                    native @ Expr::If(_) => native,
                    rewritten => parse_quote!({ #rewritten }),
                };
            } else {
                self.expr(branch, position);
            }
        }
        Expr::If(e)
    }

    /// Rewrites a condition that is certainly a host value: a `let`, whose names are in scope to
    /// its right and in the block, a `&&` chain with a `let`, or the guard of a `match`.
    fn host_condition(&mut self, cond: &mut Expr) {
        match cond {
            Expr::Let(l) => {
                self.matched(&l.pat, &l.expr);
                let scrutinee = l.expr.clone();
                self.value(&mut l.expr, 0);
                self.visit_expr_mut(&mut l.expr);
                self.env.declare_matched(&l.pat, &scrutinee);
            }
            Expr::Binary(b) if matches!(b.op, BinOp::And(_) | BinOp::Or(_)) => {
                self.host_condition(&mut b.left);
                self.host_condition(&mut b.right);
            }
            Expr::Paren(e) => self.host_condition(&mut e.expr),
            Expr::Unary(e) if matches!(e.op, UnOp::Not(_)) && self.is_host(&e.expr) => self.host_condition(&mut e.expr),
            Expr::MethodCall(m) if known::method_is(&m.method, Property::Bool) => {
                let at = m.method.span();
                self.visit_expr_mut(cond);
                *cond = emit::named_bool(at, cond);
            }
            other if self.is_host(other) => self.visit_expr_mut(other),
            other => {
                let at = other.span();
                self.visit_expr_mut(other);
                *other = emit::host_bool(at, other);
            }
        }
    }

    /// Returns whether an expression is certainly a `bool` by its form.
    ///
    /// Such a condition needs no dispatch, and the code that it controls stays native. If the form
    /// misleads, the compiler reports a tensor where it expects a `bool`.
    fn is_host(&self, e: &Expr) -> bool {
        match e {
            Expr::Lit(ExprLit { lit: Lit::Bool(_), .. }) => true,
            Expr::Path(p) => p.path.get_ident().is_some_and(|name| self.env.is_bool(&name.to_string())),
            Expr::Macro(m) => matches!(known::macro_name(&m.mac).as_deref(), Some("cfg" | "matches")),
            Expr::MethodCall(m) => known::method_is(&m.method, Property::Bool),
            Expr::Unary(ExprUnary { op: UnOp::Not(_), expr, .. }) => self.is_host(expr),
            Expr::Paren(e) => self.is_host(&e.expr),
            Expr::Group(e) => self.is_host(&e.expr),
            Expr::Binary(b) if matches!(b.op, BinOp::And(_) | BinOp::Or(_)) => {
                self.is_host(&b.left) && self.is_host(&b.right)
            }
            Expr::Binary(b) => {
                comparison(&b.op).is_some() && (known::is_host_value(&b.left) || known::is_host_value(&b.right))
            }
            _ => false,
        }
    }

    fn logical(&mut self, b: ExprBinary) -> Expr {
        let ExprBinary { mut left, op, mut right, .. } = b;
        let at = op.span();
        self.visit_expr_mut(&mut left);
        let (index, construct) = self.open(ConstructKind::Logical, at, &Position::default());
        self.visit_expr_mut(&mut right);
        let carried = self.close(at).carried;
        emit::logical(construct, index, &op, (*left, *right), carried)
    }

    fn macro_call(&mut self, mac: &mut Macro) -> MacroResult {
        let Some(name) = mac.path.segments.last().map(|s| s.ident.clone()) else {
            return MacroResult::Kept;
        };
        let debug = name.to_string().strip_prefix("debug_").map(str::to_owned);
        let (debug, text) = (debug.is_some(), debug.unwrap_or_else(|| name.to_string()));
        if let "assert_eq" | "assert_ne" = &*text {
            return self.assert_equality(mac, name.span(), debug, text == "assert_eq");
        }
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
            MacroKind::Print { error, line } => format::print(self, mac, name.span(), error, line),
            MacroKind::Dbg => format::dbg(self, mac, name.span()),
            MacroKind::Format => format::format(self, mac),
            MacroKind::Panic => match self.panic(mac, &name) {
                Some(e) => MacroResult::Replaced(e),
                None => MacroResult::Kept,
            },
            // Constructs outside a closure count as well: the macro may modify captures.
            MacroKind::Opaque => self.checked(name.span(), "allows_macro", 0),
        }
    }

    fn checked(&self, at: Span, function: &'static str, from: usize) -> MacroResult {
        match self.checks(function, at, from) {
            Some(checks) => MacroResult::Checked(checks),
            None => MacroResult::Kept,
        }
    }

    /// Rewrites the elements of `vec![a, b]` or `vec![a; n]`.
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

    /// Rewrites the message of an assertion. The compiler reports one that cannot be parsed.
    fn message(&mut self, message: TokenStream) -> TokenStream {
        format::rewrite_arguments(self, message.clone()).unwrap_or(message)
    }

    fn assert_equality(&mut self, mac: &Macro, at: Span, debug: bool, equal: bool) -> MacroResult {
        let parser = |input: parse::ParseStream<'_>| {
            let left: Expr = input.parse()?;
            input.parse::<Token![,]>()?;
            let right: Expr = input.parse()?;
            input.parse::<Option<Token![,]>>()?;
            Ok(([left, right], input.parse::<TokenStream>()?))
        };
        match parser.parse2(mac.tokens.clone()) {
            Ok((mut sides, message)) => {
                let texts = [0, 1].map(|i| sides[i].to_token_stream().to_string());
                sides.iter_mut().for_each(|side| self.visit_expr_mut(side));
                let message = self.message(message);
                let index = self.index();
                MacroResult::Replaced(emit::assert_equality(index, at, (debug, equal), &sides, &texts, &message))
            }
            // The compiler reports the error.
            Err(_) => MacroResult::Kept,
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
                let message = self.message(message);
                let index = self.index();
                MacroResult::Replaced(emit::assert(index, at, debug, &condition, &text, &message))
            }
            // The compiler reports the error.
            Err(_) => MacroResult::Kept,
        }
    }
}

/// The result of closing a construct.
struct Closed {
    carried: Carried,
    /// The labels of the arms that a jump leaves.
    labels: [Option<Lifetime>; 2],
    deferred: Vec<emit::Deferred>,
    /// The variable that receives the type of the condition, if a flag needs it.
    kind: Option<Ident>,
}

/// Moves the expression out and leaves an empty one.
fn take(e: &mut Expr) -> Expr {
    std::mem::replace(e, Expr::Verbatim(TokenStream::new()))
}

/// The result of rewriting a macro call.
pub(super) enum MacroResult {
    /// The call stays.
    Kept,
    /// The call stays, after these checks.
    Checked(TokenStream),
    /// The expression that replaces the call.
    Replaced(Expr),
}

impl VisitMut for Walk<'_> {
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        self.expr(e, Position::default());
    }
    fn visit_block_mut(&mut self, b: &mut Block) {
        self.block(b, Position::default());
    }
    // None of these are part of the traced function.
    fn visit_item_mut(&mut self, _: &mut Item) {}
    fn visit_type_mut(&mut self, _: &mut Type) {}
    fn visit_pat_mut(&mut self, _: &mut Pat) {}
    fn visit_path_mut(&mut self, _: &mut Path) {}
    fn visit_attribute_mut(&mut self, _: &mut Attribute) {}
    fn visit_angle_bracketed_generic_arguments_mut(&mut self, _: &mut AngleBracketedGenericArguments) {}
}

/// Returns an expansion with the attributes of the expression that it replaces.
fn with_attributes(attrs: &[Attribute], expansion: Expr) -> Expr {
    if attrs.is_empty() { expansion } else { Expr::Verbatim(quote!(#(#attrs)* #expansion)) }
}

/// Returns `{ checks; expr }`.
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

/// Returns a type if it can be written on a local variable.
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

fn certainly_jumps(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Expr(e, _) => expr_jumps(e),
        Stmt::Local(Local { init: Some(init), .. }) => expr_jumps(&init.expr),
        _ => false,
    }
}

/// Returns whether statements certainly jump, other than by a final value.
fn ends_in_jump(stmts: &[Stmt]) -> bool {
    let Some((last, before)) = stmts.split_last() else { return false };
    let is_value = matches!(last, Stmt::Expr(Expr::If(_) | Expr::Match(_) | Expr::Block(_), None));
    before.iter().any(certainly_jumps) || (certainly_jumps(last) && !is_value)
}

/// Returns whether an arm of an `if` ends in an expression.
fn arms_have_values(e: &ExprIf) -> bool {
    let ends_in_value = |b: &Block| matches!(b.stmts.last(), Some(Stmt::Expr(_, None)));
    ends_in_value(&e.then_branch)
        || match e.else_branch.as_ref().map(|(_, e)| &**e) {
            Some(Expr::Block(b)) => ends_in_value(&b.block),
            Some(Expr::If(e)) => arms_have_values(e),
            _ => false,
        }
}

#[cfg(test)]
mod tests;
