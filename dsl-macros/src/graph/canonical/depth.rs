//! Nesting depth of constructs: long chains and long sequences of jumps become trees.
//!
//! The code after a jump moves into the other arm of its `if`. Without this module, each jump of a
//! sequence would nest one level deeper than the one before, and so would each `else if` of a
//! chain.
//!
//! - A chain of conditions that compare one variable with numbers, like the arms of a `match`,
//!   becomes a tree of `if`s.
//! - Any other chain of `else if`s becomes a labeled block that its arms leave:
//!   `'chain: { if a { break 'chain x; } .. z }`. This is a sequence of jumps.
//! - In a sequence of jumps, a few neighbors become a block, a few of these blocks another block,
//!   and so on. The code after a block is under its flag, so the depth grows with the logarithm of
//!   the length. A variable that is used after a block is declared outside it. If that leaves too
//!   many jumps side by side, the block returns the variable.

use super::*;
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;

/// The maximum number of arms, or of successive jumps, that stay nested.
const MAX_NESTED: usize = 16;

/// The maximum number of arms in a leaf of a tree.
const PER_LEAF: usize = 4;

/// The maximum number of jumps, or blocks of jumps, in a block.
///
/// A jump checks whether each construct that it leaves is staged, so few levels of nesting are more
/// important than few blocks.
const PER_BLOCK: usize = 4;

/// The maximum number of jumps side by side whose blocks need not return variables.
///
/// Under a tensor condition, a block can return only variables that a graph can have.
const MAX_WITHOUT_VALUES: usize = 32;

/// The arms of an `if`: those with a condition, without their `else`, and the last one.
pub(super) struct Chain {
    pub(super) arms: Vec<ExprIf>,
    pub(super) last: Option<Expr>,
}

impl Chain {
    /// Takes an `if` apart if it is a long chain.
    pub(super) fn of_long(e: &mut Expr) -> Option<Chain> {
        let mut n = 0;
        let mut next = Some(&*e);
        while let Some(Expr::If(arm)) = next {
            n += 1;
            next = arm.else_branch.as_ref().map(|(_, e)| &**e);
        }
        if n <= MAX_NESTED {
            return None;
        }
        let mut chain = Chain { arms: Vec::with_capacity(n), last: None };
        let mut next = Some(std::mem::replace(e, Expr::Verbatim(TokenStream::new())));
        while let Some(e) = next.take() {
            match e {
                Expr::If(mut arm) => {
                    next = arm.else_branch.take().map(|(_, e)| *e);
                    chain.arms.push(arm);
                }
                last => chain.last = Some(last),
            }
        }
        Some(chain)
    }

    /// Returns the expression: nested `if`s for few arms, else a tree of `if`s or a block. `name`
    /// returns the names in the block.
    pub(super) fn build(self, name: impl FnMut(Span) -> (Lifetime, Ident)) -> Expr {
        if self.arms.len() <= MAX_NESTED {
            self.nested()
        } else if one_subject(&self.arms) {
            self.marked_tree()
        } else {
            self.block(name)
        }
    }

    /// Returns a tree in which each `if` but the outermost has the mark that [`has_kind_of_outer`]
    /// looks for.
    fn marked_tree(mut self) -> Expr {
        let attributes = std::mem::take(&mut self.arms[0].attrs);
        self.arms.iter_mut().for_each(|arm| arm.attrs.push(kind_of_outer()));
        let mut tree = self.tree();
        if let Expr::If(outermost) = &mut tree {
            outermost.attrs = attributes;
        }
        tree
    }

    /// Splits the arms in half until few are left.
    ///
    /// One condition tests whether the arm is in the first half. This is possible because the tests
    /// have no side effects.
    fn tree(mut self) -> Expr {
        if self.arms.len() <= PER_LEAF {
            return self.nested();
        }
        let second = self.arms.split_off(self.arms.len() / 2);
        let if_token = self.arms[0].if_token;
        let any = any_of(&self.arms);
        let last = self.arms.pop().expect("half of many arms are some");
        let first = Chain { arms: self.arms, last: Some(block_expr(last.then_branch)) }.tree();
        let second = Chain { arms: second, last: self.last }.tree();
        Expr::If(ExprIf {
            attrs: vec![kind_of_outer()],
            if_token,
            cond: Box::new(any),
            then_branch: block_of(first),
            else_branch: Some((Token![else](if_token.span), Box::new(block_expr(block_of(second))))),
        })
    }

    fn nested(self) -> Expr {
        let chain = self.arms.into_iter().rev().fold(self.last, |rest, mut arm| {
            let token = Token![else](arm.if_token.span);
            arm.else_branch = rest.map(|rest| (token, Box::new(rest)));
            Some(Expr::If(arm))
        });
        chain.expect("a chain has arms")
    }

    fn block(mut self, mut name: impl FnMut(Span) -> (Lifetime, Ident)) -> Expr {
        let first = self.arms.first_mut().expect("a long chain has arms");
        let (attrs, at) = (std::mem::take(&mut first.attrs), first.if_token.span);
        let (label, _) = name(at);
        let mut is_left = false;
        let mut stmts: Vec<Stmt> = Vec::with_capacity(self.arms.len() + 1);
        for mut arm in self.arms {
            if !block_jumps(&arm.then_branch) {
                let (_, value) = name(arm.if_token.span);
                leave_at_end(&mut arm.then_branch, &label, value);
                is_left = true;
            }
            stmts.push(Stmt::Expr(Expr::If(arm), None));
        }
        stmts.extend(self.last.map(block_of).into_iter().flat_map(|last| last.stmts));
        let block = Block { brace_token: token::Brace(at), stmts };
        let label = is_left.then(|| emit::label_of(&label));
        under_attributes(attrs, Expr::Block(ExprBlock { attrs: Vec::new(), label, block }))
    }
}

/// Returns whether all conditions compare one variable with numbers.
fn one_subject(arms: &[ExprIf]) -> bool {
    fn subject<'e>(cond: &'e Expr, found: &mut Vec<&'e Ident>) -> bool {
        match cond {
            Expr::Paren(e) => subject(&e.expr, found),
            Expr::Binary(b) if matches!(b.op, BinOp::BitAnd(_) | BinOp::BitOr(_)) => {
                subject(&b.left, found) && subject(&b.right, found)
            }
            Expr::Binary(b) if emit::comparison(&b.op).is_some() => match (&*b.left, &*b.right) {
                (Expr::Path(p), number) if is_number(number) => {
                    found.extend(p.path.get_ident());
                    p.path.get_ident().is_some()
                }
                _ => false,
            },
            _ => false,
        }
    }
    let mut found = Vec::new();
    arms.iter().all(|arm| subject(&arm.cond, &mut found)) && found.iter().all(|name| *name == found[0])
}

/// Returns the condition that one of the arms applies.
fn any_of(arms: &[ExprIf]) -> Expr {
    let equals: Option<Vec<i128>> = arms.iter().map(|arm| equals_number(&arm.cond)).collect();
    // Consecutive numbers are a range.
    if let Some(equals) = equals
        && equals.windows(2).all(|w| w[1] == w[0] + 1)
        && let (Some(first), Some(last)) = (arms.first(), arms.last())
        && let (Expr::Binary(first), Expr::Binary(last)) = (&*first.cond, &*last.cond)
    {
        let (subject, low, high) = (&first.left, &first.right, &last.right);
        return parse_quote!((#subject >= #low) & (#subject <= #high));
    }
    match arms {
        [one] => (*one.cond).clone(),
        arms => {
            let (a, b) = arms.split_at(arms.len() / 2);
            let (a, b) = (any_of(a), any_of(b));
            parse_quote!((#a) | (#b))
        }
    }
}

/// Returns the integer in a condition `x == integer`.
fn equals_number(cond: &Expr) -> Option<i128> {
    fn integer(e: &Expr) -> Option<i128> {
        match e {
            Expr::Lit(ExprLit { lit: Lit::Int(n), .. }) => n.base10_parse().ok(),
            Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }) => integer(expr).map(|n| -n),
            _ => None,
        }
    }
    match cond {
        Expr::Binary(b) if matches!(b.op, BinOp::Eq(_)) => integer(&b.right),
        _ => None,
    }
}

/// Ends an arm with a `break` that has its value.
fn leave_at_end(arm: &mut Block, label: &Lifetime, name: Ident) {
    let at = name.span();
    let leave = |value: Option<Expr>| -> Stmt {
        Stmt::Expr(
            Expr::Break(ExprBreak {
                attrs: Vec::new(),
                break_token: Token![break](at),
                label: Some(label.clone()),
                expr: value.map(Box::new),
            }),
            Some(Token![;](at)),
        )
    };
    match arm.stmts.pop() {
        // The compiler and the tracer know that a panic never reaches the end of the arm.
        Some(Stmt::Macro(m)) if known::macro_name(&m.mac).is_some_and(|n| is_panic(&n)) => {
            arm.stmts.push(Stmt::Macro(m))
        }
        Some(Stmt::Macro(StmtMacro { attrs, mac, semi_token: None })) => {
            arm.stmts.push(leave(Some(Expr::Macro(ExprMacro { attrs, mac }))));
        }
        Some(Stmt::Expr(value, None)) if is_structured(&value) => {
            if is_unit(&value) {
                arm.stmts.extend([Stmt::Expr(value, None), leave(None)]);
            } else {
                arm.stmts.push(parse_quote!(let #name = #value;));
                arm.stmts.push(leave(Some(parse_quote!(#name))));
            }
        }
        Some(Stmt::Expr(value, None)) => arm.stmts.push(leave(Some(value))),
        last => {
            arm.stmts.extend(last);
            arm.stmts.push(leave(None));
        }
    }
}

fn is_panic(name: &str) -> bool {
    matches!(known::macro_kind(name), known::MacroKind::Panic)
}

/// Returns whether a structured expression is `()` by its form.
fn is_unit(e: &Expr) -> bool {
    match e {
        Expr::While(_) | Expr::ForLoop(_) => true,
        Expr::If(e) => e.else_branch.is_none(),
        _ => false,
    }
}

/// A statement of a sequence.
struct Step {
    stmt: Stmt,
    /// Whether a conditional jump leaves the statement.
    jumps: bool,
    /// The names that the statement declares for those after it.
    declares: Vec<Ident>,
    /// The index of the last statement that uses one of the names.
    last_use: usize,
    /// Whether a block can return the declared variables.
    is_value: bool,
}

/// Returns the statements of a block, grouped into blocks if many of them jump.
pub(super) fn in_blocks(stmts: Vec<Stmt>) -> Vec<Stmt> {
    let jumps: Vec<bool> = stmts.iter().map(leaves_under_construct).collect();
    let has_macro = || stmts.iter().any(|stmt| matches!(stmt, Stmt::Item(Item::Macro(_))));
    if jumps.iter().filter(|&&j| j).count() <= MAX_NESTED || has_macro() {
        return stmts;
    }
    // Items are visible in the whole block.
    let is_item = |(stmt, _): &(Stmt, bool)| matches!(stmt, Stmt::Item(_));
    let (mut items, stmts): (Vec<_>, Vec<_>) = stmts.into_iter().zip(jumps).partition(is_item);
    let mut steps: Vec<Step> = stmts.into_iter().map(|(stmt, jumps)| Step::new(stmt, jumps)).collect();
    // The last statement may be the value of the block.
    let value = match steps.last() {
        Some(Step { stmt: Stmt::Expr(_, None) | Stmt::Macro(StmtMacro { semi_token: None, .. }), .. }) => steps.pop(),
        _ => None,
    };
    for (most, with_values) in [(PER_BLOCK, false), (MAX_WITHOUT_VALUES, true)] {
        loop {
            let n = count(&steps);
            if n <= most {
                break;
            }
            steps = one_level(steps, value.as_ref(), with_values);
            if count(&steps) == n {
                break;
            }
        }
    }
    items.extend(steps.into_iter().chain(value).map(|step| (step.stmt, step.jumps)));
    items.into_iter().map(|(stmt, _)| stmt).collect()
}

fn count(steps: &[Step]) -> usize {
    steps.iter().filter(|s| s.jumps).count()
}

fn leaves_under_construct(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Local(Local { pat, init: Some(LocalInit { expr, diverge: Some((_, diverge)), .. }), .. }) => {
            let pat = if let Pat::Type(p) = pat { &p.pat } else { pat };
            Jumps::leaving_expr(expr).under_construct
                || (has_test(pat, numbers(expr).as_ref()) == Some(true) && Jumps::leaving_expr(diverge).any)
        }
        Stmt::Local(Local { init: Some(init), .. }) => Jumps::leaving_expr(&init.expr).under_construct,
        Stmt::Expr(e, _) => Jumps::leaving_expr(e).under_construct,
        _ => false,
    }
}

impl Step {
    fn new(stmt: Stmt, jumps: bool) -> Step {
        let (mut declares, mut is_value) = (Vec::new(), false);
        if let Stmt::Local(local) = &stmt {
            let mut find = DeclaredNames(Vec::new(), true);
            find.visit_pat(&local.pat);
            (declares, is_value) = (find.0, find.1);
            is_value &= local.init.as_ref().is_some_and(|init| {
                init.diverge.is_none() && !matches!(*init.expr, Expr::Reference(_) | Expr::Closure(_))
            });
        }
        Step { stmt, jumps, declares, last_use: 0, is_value }
    }

    /// Returns whether the statement must stay outside blocks: its declarations are not known,
    /// or no use of them is found.
    fn stays(&self) -> bool {
        match &self.stmt {
            Stmt::Local(local) => local.init.is_none() || (!self.declares.is_empty() && self.last_use == 0),
            Stmt::Macro(m) => known::macro_name(&m.mac)
                .is_none_or(|name| matches!(known::macro_kind(&name), known::MacroKind::Opaque)),
            _ => false,
        }
    }
}

/// The names that a pattern declares, and whether all of them own the values that they are bound
/// to.
struct DeclaredNames(Vec<Ident>, bool);

impl<'a> Visit<'a> for DeclaredNames {
    fn visit_pat_ident(&mut self, p: &'a PatIdent) {
        self.0.push(p.ident.clone());
        self.1 &= p.by_ref.is_none();
        visit::visit_pat_ident(self, p);
    }
    fn visit_pat_type(&mut self, p: &'a PatType) {
        self.1 &= !matches!(*p.ty, Type::Reference(_));
        self.visit_pat(&p.pat);
    }
    fn visit_expr(&mut self, _: &'a Expr) {}
}

/// Finds the last use of the variables of each statement. `value` follows the statements.
fn find_last_uses(steps: &mut [Step], value: Option<&Step>) {
    // The statements are visited from the end, so the first use found of a name is its last one.
    let mut used = HashMap::new();
    let end = steps.len();
    if let Some(value) = value {
        note_names(value.stmt.to_token_stream(), &mut |name| {
            used.insert(name, end);
        });
    }
    for i in (0..end).rev() {
        let step = &mut steps[i];
        step.last_use = 0;
        for name in &step.declares {
            step.last_use = step.last_use.max(used.remove(&name.to_string()).unwrap_or(0));
        }
        let mut note = |name| {
            used.entry(name).or_insert(i);
        };
        match &step.stmt {
            Stmt::Local(local) => {
                let init = local.init.as_ref();
                note_names(init.map(|init| init.expr.to_token_stream()).unwrap_or_default(), &mut note);
                let diverge = init.and_then(|init| init.diverge.as_ref());
                note_names(diverge.map(|(_, e)| e.to_token_stream()).unwrap_or_default(), &mut note);
            }
            stmt => note_names(stmt.to_token_stream(), &mut note),
        }
    }
}

/// Passes the names in code to `note`, including those in format strings.
pub(in super::super) fn note_names(code: TokenStream, note: &mut impl FnMut(String)) {
    for token in code {
        match token {
            TokenTree::Ident(ident) => note(ident.to_string()),
            TokenTree::Group(group) => note_names(group.stream(), note),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.contains('{') {
                    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
                    words.filter(|w| !w.is_empty()).for_each(|w| note(w.to_owned()));
                }
            }
            TokenTree::Punct(_) => {}
        }
    }
}

/// Groups neighbors into blocks. Their variables must not be used after the block or, if
/// `with_values`, can be returned by it.
fn one_level(mut steps: Vec<Step>, value: Option<&Step>, with_values: bool) -> Vec<Step> {
    find_last_uses(&mut steps, value);
    let mut out = Vec::with_capacity(steps.len());
    let mut rest: VecDeque<Step> = steps.into();
    let mut start = 0;
    while !rest.is_empty() {
        let n = block_length(&rest, start, with_values);
        if n == 0 {
            out.extend(rest.pop_front());
            start += 1;
        } else {
            out.push(block_of_steps(rest.drain(..n).collect(), start + n));
            start += n;
        }
    }
    out
}

/// Returns how many of the next statements become a block. The first of them has the index `start`.
fn block_length(steps: &VecDeque<Step>, start: usize, with_values: bool) -> usize {
    let (mut jumps, mut last_use, mut found) = (0, 0, 0);
    for (i, step) in steps.iter().enumerate() {
        if step.stays() || jumps == PER_BLOCK {
            break;
        }
        jumps += usize::from(step.jumps);
        last_use = last_use.max(step.last_use);
        let may_end = || {
            let used_behind = || steps.iter().take(i + 1).filter(|s| s.last_use > start + i);
            last_use <= start + i || (with_values && step.jumps && used_behind().all(|s| s.is_value))
        };
        if jumps > 1 && may_end() {
            found = i + 1;
        }
    }
    found
}

/// Returns a block of statements. It returns the variables that are used from index `end` on.
fn block_of_steps(steps: Vec<Step>, end: usize) -> Step {
    let mut shown: Vec<PatIdent> = Vec::new();
    let mut stmts: Vec<Stmt> = Vec::with_capacity(steps.len() + 1);
    let mut last_use = 0;
    for step in steps {
        let mut stmt = step.stmt;
        if step.last_use >= end
            && let Stmt::Local(local) = &mut stmt
        {
            last_use = last_use.max(step.last_use);
            let mut find = Idents(Vec::new());
            find.visit_pat(&local.pat);
            shown.retain(|p| find.0.iter().all(|new| new.ident != p.ident));
            shown.extend(find.0);
            local.attrs.push(parse_quote!(#[allow(unused_mut, reason = "it may change behind the block")]));
        }
        stmts.push(stmt);
    }
    let sequence = |mark, stmts| {
        let block = Block { brace_token: Default::default(), stmts };
        Expr::Block(ExprBlock { attrs: vec![mark], label: None, block })
    };
    if shown.is_empty() {
        let block = sequence(parse_quote!(#[sequence]), stmts);
        return Step::new(Stmt::Expr(block, None), true);
    }
    let (pat, value) = in_tuples(shown.into_iter().map(|p| (Pat::Ident(p.clone()), path(p.ident))).collect());
    stmts.push(Stmt::Expr(value, None));
    let block = sequence(parse_quote!(#[sequence_with_value]), stmts);
    Step::new(parse_quote!(#[allow(unused_mut, reason = "it may have changed in the block")] let #pat = #block;), true)
}

fn kind_of_outer() -> Attribute {
    parse_quote!(#[kind_of_outer])
}

/// Removes the mark of an `if` in a tree, and returns whether it was there.
///
/// The condition of a marked `if` compares the same variable with numbers as the enclosing `if`, so
/// both conditions have the same type.
pub(in super::super) fn has_kind_of_outer(e: &mut ExprIf) -> bool {
    let is_marked = e.attrs.iter().any(|attr| attr.path().is_ident("kind_of_outer"));
    e.attrs.retain(|attr| !attr.path().is_ident("kind_of_outer"));
    is_marked
}

/// Returns whether a block is marked as one of a long sequence.
pub(in super::super) fn is_sequence(block: &ExprBlock) -> bool {
    let is_mark = |attr: &Attribute| has_no_value(attr) || attr.path().is_ident("sequence_with_value");
    matches!(&block.attrs[..], [attr] if is_mark(attr))
}

/// Returns whether an attribute marks a block without a value.
pub(in super::super) fn has_no_value(mark: &Attribute) -> bool {
    mark.path().is_ident("sequence")
}

fn path(name: Ident) -> Expr {
    parse_quote!(#name)
}

/// Returns a tuple of the patterns and a tuple of their values. If there are more than twelve
/// items, both consist of tuples.
fn in_tuples(mut items: Vec<(Pat, Expr)>) -> (Pat, Expr) {
    while items.len() > 1 {
        let tuples = items.chunks(12).map(|items| {
            let (pats, values): (Vec<_>, Vec<_>) = items.iter().cloned().unzip();
            (parse_quote!((#(#pats),*,)), parse_quote!((#(#values),*,)))
        });
        items = tuples.collect();
    }
    items.pop().expect("the stack of items is not empty")
}

struct Idents(Vec<PatIdent>);

impl<'a> Visit<'a> for Idents {
    fn visit_pat_ident(&mut self, p: &'a PatIdent) {
        self.0.push(PatIdent { subpat: None, ..p.clone() });
        visit::visit_pat_ident(self, p);
    }
    fn visit_expr(&mut self, _: &'a Expr) {}
}
