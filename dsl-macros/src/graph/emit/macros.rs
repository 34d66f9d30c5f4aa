//! Macros of the standard library.

use super::code::after_checks;
use super::expressions::{borrow, checked_condition, checks};
use super::jumps::fail;
use super::output::ToRust;
use crate::graph::facts::PanicFacts;
use crate::graph::names::{helper, helper_span, rt};
use crate::graph::tree::{CheckMessage, MacroCall};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{Expr, ExprMacro, Macro};

/// Returns the message of a macro that panics.
fn panic_message(name: &str, at: Span, tokens: &TokenStream) -> TokenStream {
    let prefix = match name {
        "todo" => "not yet implemented",
        "unimplemented" => "not implemented",
        "unreachable" => "internal error: entered unreachable code",
        _ => "explicit panic",
    };
    match (tokens.is_empty(), name) {
        (true, _) => message_from(at, prefix),
        (false, "panic") => message_of(at, tokens),
        (false, _) => {
            let (prefix, message) = (message_from(at, &format!("{prefix}: ")), message_of(at, tokens));
            quote!(#prefix.then(#message))
        }
    }
}

/// Returns a message with a fixed text.
fn message_from(at: Span, text: &str) -> TokenStream {
    let message = rt(at, "Message");
    quote!(#message::from(#text))
}

/// Returns a message from a format string and its arguments.
fn message_of(at: Span, tokens: &TokenStream) -> TokenStream {
    let message = rt(at, "message");
    quote_spanned!(at=> #message(::core::format_args!(#tokens)))
}

/// Returns the expansion of `assert!`, or of `debug_assert!` if `debug` is true.
fn assert(index: usize, at: Span, debug: bool, condition: &Expr, text: &str, message: &TokenStream) -> Expr {
    let assertion = helper("assert", index, at);
    let new = rt(at, "Assert");
    let condition = checked_condition(at, condition);
    let new = quote_spanned!(at=> #new::new(#condition));
    let message = if message.is_empty() {
        message_from(at, &format!("assertion failed: {text}"))
    } else {
        message_of(at, message)
    };
    let check = quote_spanned!(at=> #assertion.check(#message););
    let guard = debug.then(|| quote!(if ::core::cfg!(debug_assertions)));
    Expr::Verbatim(quote! {
        {
            #guard {
                let #assertion = #new;
                if #assertion.needs_message() { #check }
            }
        }
    })
}

/// Returns the expansion of `assert_eq!`, or of `assert_ne!` if `equal` is false. If `debug` is
/// true, it applies to debug builds only.
fn assert_equality(
    index: usize,
    at: Span,
    (debug, equal): (bool, bool),
    [left, right]: &[Expr; 2],
    [left_text, right_text]: &[String; 2],
    message: &TokenStream,
) -> Expr {
    let [assertion, a, b] = ["assert", "left", "right"].map(|name| helper(name, index, at));
    let (new, sides) = (rt(at, "Assert"), rt(at, "Sides"));
    let (compare, check) = (rt(at, "compare"), rt(at, "condition"));
    let new = quote_spanned!(at=> #new::new(#check(#compare(#a, #b).eq())));
    let message = match message.is_empty() {
        true => quote!(::core::option::Option::None),
        false => {
            let message = message_of(at, message);
            quote!(::core::option::Option::Some(&|| #message))
        }
    };
    let sides = quote_spanned!(at=> #sides {
        equal: #equal,
        written: [#left_text, #right_text],
        values: [&#a, &#b],
        message: #message,
    });
    let call = quote_spanned!(at=> #assertion.check_equality(&#sides););
    let guard = debug.then(|| quote!(if ::core::cfg!(debug_assertions)));
    let (left, right) = (borrow(left), borrow(right));
    Expr::Verbatim(quote! {
        {
            #guard {
                match (#left, #right) {
                    (#a, #b) => {
                        let #assertion = #new;
                        #call
                    }
                }
            }
        }
    })
}

/// Returns the expansion of `print!` and similar macros. The arguments begin with the format
/// string.
fn print(at: Span, error: bool, line: bool, arguments: &TokenStream) -> Expr {
    let (print, stream) = (rt(at, "print"), rt(at, "Stream"));
    let stream_name = Ident::new(if error { "Stderr" } else { "Stdout" }, at);
    let end = if line { "\n" } else { "" };
    let arguments = if arguments.is_empty() { quote!("") } else { arguments.clone() };
    Expr::Verbatim(quote_spanned!(at=> #print(#stream::#stream_name, ::core::format_args!(#arguments), #end)))
}

/// Returns the expansion of `dbg!(value)`. `written` is the source text of the value.
fn dbg(at: Span, written: &TokenStream, value: &Expr) -> Expr {
    let (dbg, name) = (rt(at, "dbg"), Ident::new("__debugged", helper_span(at)));
    Expr::Verbatim(quote_spanned!(at=>
        match #value {
            #name => {
                #dbg(::core::stringify!(#written), &#name);
                #name
            }
        }
    ))
}

/// Returns the expansion of `dbg!()`.
fn dbg_here(at: Span) -> Expr {
    let dbg_here = rt(at, "dbg_here");
    Expr::Verbatim(quote_spanned!(at=> #dbg_here()))
}

/// The code of the call of a macro.
pub(super) enum Emitted {
    Macro(Macro),
    /// The macro after these checks.
    Checked(TokenStream, Macro),
    /// The expression that replaces the call.
    Expr(Expr),
}

impl ToRust for (ExprMacro, MacroCall) {
    type Output = Expr;

    fn emit(self) -> Expr {
        let (ExprMacro { attrs, mac }, call) = self;
        match macro_call(mac, call) {
            Emitted::Macro(mac) => Expr::Macro(ExprMacro { attrs, mac }),
            Emitted::Checked(checks, mac) => after_checks(checks, &Expr::Macro(ExprMacro { attrs, mac })),
            Emitted::Expr(e) => e,
        }
    }
}

/// Returns the code of the call of a macro.
pub(super) fn macro_call(mac: Macro, call: MacroCall) -> Emitted {
    let with = |tokens| Emitted::Macro(Macro { tokens, ..mac.clone() });
    match call {
        MacroCall::Kept => Emitted::Macro(mac),
        MacroCall::Arguments(arguments) => with(arguments.emit()),
        MacroCall::Repeat(value, semi, count) => {
            let (value, count) = (value.emit(), count.emit());
            with(quote!(#value #semi #count))
        }
        MacroCall::Matches(scrutinee, rest) => {
            let scrutinee = scrutinee.emit();
            with(quote!(#scrutinee #rest))
        }
        MacroCall::Assert { at, debug, condition, text, message, index } => {
            let (condition, message) = (condition.emit(), message.emit());
            Emitted::Expr(assert(index.get(), at, debug, &condition, &text, &message))
        }
        MacroCall::AssertEquality { at, debug, equal, sides, texts, message, index } => {
            let (sides, message) = (sides.map(ToRust::emit), message.emit());
            Emitted::Expr(assert_equality(index.get(), at, (debug, equal), &sides, &texts, &message))
        }
        MacroCall::Print { at, error, line, arguments } => Emitted::Expr(print(at, error, line, &arguments.emit())),
        MacroCall::Dbg(at, values) => {
            let one = |(written, value): (TokenStream, _)| dbg(at, &written, &ToRust::emit(value));
            let values: Vec<Expr> = values.into_iter().map(one).collect();
            Emitted::Expr(match &values[..] {
                [] => dbg_here(at),
                [value] => value.clone(),
                values => Expr::Verbatim(quote!((#(#values),*))),
            })
        }
        MacroCall::Panic(name, facts) => match facts.maybe() {
            Some(facts) => Emitted::Expr(panic(&mac, &name, &facts)),
            None => Emitted::Macro(mac),
        },
        MacroCall::Opaque(at, constructs) => match checks("allows_macro", at, &constructs.get()) {
            Some(checks) => Emitted::Checked(checks, mac),
            None => Emitted::Macro(mac),
        },
    }
}

impl ToRust for CheckMessage {
    type Output = TokenStream;

    fn emit(self) -> TokenStream {
        match self {
            CheckMessage::Arguments(arguments) => arguments.emit(),
            CheckMessage::Wrong(tokens) => tokens,
        }
    }
}

/// Returns the expansion of a macro that panics under constructs.
fn panic(mac: &Macro, name: &Ident, facts: &PanicFacts) -> Expr {
    let at = name.span();
    let checks = checks("allows_nested_jump", at, &facts.checks);
    let message = panic_message(&name.to_string(), at, &mac.tokens);
    let leave: TokenStream = facts.arms.iter().map(|arm| fail(arm, at, &message)).collect();
    Expr::Verbatim(quote!({ #checks #leave #mac }))
}
