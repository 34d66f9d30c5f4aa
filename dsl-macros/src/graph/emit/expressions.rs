//! Comparisons, logical operators, calls and other expressions.

use super::carried::Carried;
use super::code::{Fill, after_checks};
use super::output::ToRust;
use crate::graph::facts::{Closed, OperandFacts};
use crate::graph::forms::bare;
use crate::graph::names::{helper, helper_span, rt};
use crate::graph::tree::{Await, Call, Cast, CompareExpr, LogicalExpr, UpdateExpr};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{BinOp, Expr, ExprReference, Token, parse_quote};

/// Returns `Some(value)`, located at the value.
pub(super) fn some(value: &Expr) -> TokenStream {
    let value = bare(value);
    quote_spanned!(value.span()=> ::core::option::Option::Some(#value))
}

/// Returns a condition with a check of its type.
pub(super) fn checked_condition(at: Span, condition: &Expr) -> TokenStream {
    let (check, condition) = (rt(at, "condition"), bare(condition));
    quote_spanned!(at=> #check(#condition))
}

/// Returns the expansion of `left && right` or `left || right`.
fn logical(closed: &Closed, op: &BinOp, left: &Expr, right: &Expr) -> Expr {
    let (at, function) = match op {
        BinOp::And(t) => (t.spans[0], "and"),
        BinOp::Or(t) => (t.spans[0], "or"),
        _ => unreachable!("only `&&` and `||` are lazy"),
    };
    let Closed { name: construct, index, .. } = closed;
    let Carried { places, declaration, sites, uses } = Carried::new(closed);
    let function = Ident::new(function, at);
    let value = helper("right", *index, at);
    let logical = rt(at, "Logical");
    let left = checked_condition(at, left);
    let right = some(&Expr::Verbatim(checked_condition(at, right)));
    let new = quote_spanned!(at=> #logical::#function(#left));
    let call = quote_spanned!(at=> #construct.right(#places, #sites));
    let end = quote_spanned!(at=> #construct.end(#places, #sites, #value));
    Expr::Verbatim(quote! {{
        let mut #construct = #new;
        #declaration
        let mut #value = ::core::option::Option::None;
        #[allow(unreachable_code, reason = "an arm of the user may leave")]
        if #call { #value = #right; }
        #uses
        #end
    }})
}

/// Evaluates operands in order before an expression. Temporaries that they borrow live until the
/// end of the expression.
fn with_operands(e: &mut Expr, operands: Vec<(TokenStream, Expr)>, is_statement: bool) {
    if operands.is_empty() {
        return;
    }
    let whole = operands
        .into_iter()
        .rev()
        .fold(quote!(#e), |inner, (name, operand)| quote!(match #operand { #name => #inner }));
    let mut whole = proc_macro2::Group::new(
        // A part of an expression must not look like a statement.
        if is_statement { proc_macro2::Delimiter::Brace } else { proc_macro2::Delimiter::Parenthesis },
        whole,
    );
    whole.set_span(Span::mixed_site());
    *e = Expr::Verbatim(quote!(#whole));
}

/// Returns the call of `function` that compares `left` and `right`.
fn compare(at: Span, function: &str, left: &Expr, right: &Expr) -> Expr {
    let (compare, method) = (rt(at, "compare"), Ident::new(function, at));
    let (left, right) = (borrow(left), borrow(right));
    Expr::Verbatim(quote_spanned!(at=> #compare(#left, #right).#method()))
}

/// Returns `&expr`, with parentheses if needed.
pub(super) fn borrow(expr: &Expr) -> Expr {
    Expr::Reference(ExprReference {
        attrs: Vec::new(),
        and_token: Token![&](helper_span(expr.span())),
        mutability: None,
        expr: Box::new(expr.clone()),
    })
}

/// Returns the checks that a token is allowed in each of the given constructs.
///
/// The whole call has the hygiene of helpers, so that the compiler reports it at the token and not
/// at the attribute.
pub(super) fn checks(method: &str, at: Span, constructs: &[Ident]) -> Option<TokenStream> {
    let at = helper_span(at);
    let method = Ident::new(method, at);
    let checks = constructs.iter().map(|c| {
        let mut construct = c.clone();
        construct.set_span(at);
        quote_spanned!(at=> #construct.#method();)
    });
    (!constructs.is_empty()).then(|| quote!(#(#checks)*))
}

/// Names an operand that is evaluated first. Returns its name and value.
fn first(operand: &mut Expr, index: usize) -> (TokenStream, Expr) {
    let name = helper("operand", index, operand.span());
    let value = std::mem::replace(operand, parse_quote!(#name));
    (quote!(#name), value)
}

/// Replaces a place by its copy, if its type is `Copy`. Returns the pattern and the value of the
/// copy.
fn early(place: &mut Expr, index: usize, is_receiver: bool) -> (TokenStream, Expr) {
    let at = helper_span(place.span());
    let name = helper("early", index, at);
    let (kind, methods) = (rt(at, if is_receiver { "EarlyReceiver" } else { "EarlyOperand" }), rt(at, "MayCopyEarly"));
    let copy = quote_spanned!(at=> {
        #[allow(unused_imports, reason = "a type that is `Copy` has the method itself")]
        use #methods as _;
        #kind(&#place).early()
    });
    let (pattern, value) = match is_receiver {
        true => (quote!(mut #name), quote_spanned!(at=> (*#name.receiver(&mut #place)))),
        false => (quote!(#name), quote_spanned!(at=> (*#name.value(&#place)))),
    };
    *place = Expr::Verbatim(value);
    (pattern, Expr::Verbatim(copy))
}

impl ToRust for CompareExpr {
    type Output = Expr;

    fn emit(self) -> Expr {
        let (mut left, mut right) = (self.left.emit(), self.right.emit());
        let OperandFacts { bound, copies_left, early: copied, is_statement } = self.facts.get();
        if copies_left {
            left = parse_quote!({ #left });
        }
        let mut operands: Vec<_> = copied.into_iter().map(|index| early(&mut left, index, false)).collect();
        operands.extend(bound.into_iter().map(|(_, index)| first(&mut right, index)));
        let mut e = compare(self.at, self.function, &left, &right);
        with_operands(&mut e, operands, is_statement);
        e
    }
}

impl ToRust for LogicalExpr {
    type Output = Expr;

    fn emit(self) -> Expr {
        logical(&self.facts.get(), &self.op, &self.left.emit(), &self.right.emit())
    }
}

impl ToRust for UpdateExpr {
    type Output = Expr;

    fn emit(self) -> Expr {
        let mut update = self.syntax;
        (*update.left, *update.right) = (self.left.emit(), self.right.emit());
        let OperandFacts { bound, is_statement, .. } = self.facts.get();
        let operands = bound.into_iter().map(|(_, index)| first(&mut update.right, index)).collect();
        let mut e = Expr::Binary(update);
        with_operands(&mut e, operands, is_statement);
        e
    }
}

impl ToRust for Call {
    type Output = Expr;

    fn emit(self) -> Expr {
        let OperandFacts { bound, early: copied, is_statement, .. } = self.facts.get();
        let mut fill = Fill::new(self.call.parts);
        let mut operands = Vec::new();
        for (i, arg) in self.args.into_iter().enumerate() {
            let mut value = arg.code.emit();
            if let Some(&(_, index)) = bound.iter().find(|(position, _)| *position == i) {
                operands.push(first(&mut value, index));
            }
            fill.add(arg.hole, value);
        }
        let mut call = self.call.syntax;
        fill.visit(&mut call);
        if let (Some(index), Expr::MethodCall(m)) = (copied, &mut call) {
            operands.insert(0, early(&mut m.receiver, index, true));
        }
        with_operands(&mut call, operands, is_statement);
        call
    }
}

impl ToRust for Cast {
    type Output = Expr;

    /// The operand is checked not to be a tensor.
    fn emit(self) -> Expr {
        let (mut cast, expr) = (self.syntax, self.operand.emit());
        let at = cast.as_token.span;
        let (operand, methods) = (rt(at, "CastOperand"), rt(at, "HostCast"));
        let (expr, ty) = (bare(&expr), &cast.ty);
        *cast.expr = Expr::Verbatim(quote_spanned!(at=> ({
            #[allow(unused_imports, reason = "a tensor has the method itself")]
            use #methods as _;
            #operand(#expr).value::<#ty>()
        })));
        Expr::Cast(cast)
    }
}

impl ToRust for Await {
    type Output = Expr;

    fn emit(self) -> Expr {
        let (mut a, base) = (self.syntax, self.base.emit());
        *a.base = match checks("allows_await", a.await_token.span, &self.facts.get()) {
            Some(checks) => after_checks(checks, &base),
            None => base,
        };
        Expr::Await(a)
    }
}
