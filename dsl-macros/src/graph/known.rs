//! What is known of methods and macros by their names alone.

use syn::{Expr, ExprIf, ExprLit, Lit, Macro, UnOp};

/// Methods that change nothing, whatever declares them in the standard library or in anabranch: a `mut` variable of a type
/// from there is not carried because it is the receiver of one of them. A user's own type may have a method with such a name
/// that does change its receiver, so the type is asked, by the traits of `dsl/src/staged/receiver.rs`.
///
/// Sorted. Names that are used for both are not here.
const PURE_METHODS: &[&str] = &[
    "abs",
    "argmax",
    "argmin",
    "as_bytes",
    "as_deref",
    "as_ptr",
    "as_ref",
    "as_slice",
    "as_str",
    "binary_search",
    "borrow",
    "bytes",
    "capacity",
    "cast",
    "ceil",
    "chars",
    "checked_add",
    "checked_div",
    "checked_mul",
    "checked_sub",
    "chunks",
    "chunks_exact",
    "clamp",
    "clone",
    "cloned",
    "cmp",
    "concat",
    "contains",
    "contains_key",
    "copied",
    "cos",
    "count_ones",
    "deref",
    "dim",
    "div_ceil",
    "dtype",
    "ends_with",
    "enumerate",
    "eq",
    "exp",
    "first",
    "floor",
    "fract",
    "ge",
    "get",
    "gt",
    "hash",
    "is_alphabetic",
    "is_empty",
    "is_err",
    "is_finite",
    "is_infinite",
    "is_nan",
    "is_negative",
    "is_none",
    "is_none_or",
    "is_ok",
    "is_ok_and",
    "is_positive",
    "is_power_of_two",
    "is_some",
    "is_some_and",
    "iter",
    "join",
    "keys",
    "last",
    "le",
    "leading_zeros",
    "len",
    "lines",
    "ln",
    "log10",
    "log2",
    "lt",
    "map",
    "max",
    "max_by",
    "min",
    "mul_add",
    "ne",
    "neg",
    "next_power_of_two",
    "not",
    "ok_or",
    "ok_or_else",
    "partial_cmp",
    "pow",
    "powf",
    "powi",
    "product",
    "rank",
    "recip",
    "rem_euclid",
    "repeat",
    "rev",
    "round",
    "saturating_sub",
    "shape",
    "signum",
    "sin",
    "split_at",
    "sqrt",
    "starts_with",
    "sum",
    "tan",
    "tanh",
    "to_lowercase",
    "to_owned",
    "to_string",
    "to_uppercase",
    "to_vec",
    "total_cmp",
    "trailing_zeros",
    "transpose",
    "trim",
    "trunc",
    "unwrap",
    "unwrap_or",
    "unwrap_or_default",
    "unwrap_or_else",
    "values",
    "windows",
    "wrapping_add",
    "wrapping_mul",
    "wrapping_sub",
    "zip",
];

/// The traits of the standard library that most types implement, as they are called in `dsl/src/staged/receiver.rs`, and
/// the method of each, which takes `&self` and no arguments.
const BY_TRAIT: &[(&str, &str)] =
    &[("clone", "CloneMethod"), ("to_owned", "ToOwnedMethod"), ("to_string", "ToStringMethod")];

/// Which types have a method of a certain name that leaves its receiver unmodified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Those that implement this trait, unless they have a method of their own that comes before it.
    ByTrait(&'static str),
    /// Those of the standard library and of anabranch.
    OfKnownTypes,
}

/// Returns which types have a method of this name that leaves its receiver unmodified, if any do.
pub(super) fn keeps_receiver(name: &str) -> Option<Keeps> {
    PURE_METHODS.binary_search(&name).ok()?;
    let by_trait = BY_TRAIT.iter().find(|(method, _)| *method == name);
    Some(by_trait.map_or(Keeps::OfKnownTypes, |&(_, of_trait)| Keeps::ByTrait(of_trait)))
}

/// Whether a method of this name gives a `bool`, whatever declares it.
pub(super) fn gives_bool(name: &str) -> bool {
    let names = [
        "contains_key",
        "ends_with",
        "is_empty",
        "is_err",
        "is_none",
        "is_none_or",
        "is_ok",
        "is_ok_and",
        "is_some",
        "is_some_and",
        "starts_with",
    ];
    names.contains(&name)
}

/// Whether an expression is a `bool` because of the name of the method that gives it.
pub(super) fn is_bool_by_name(e: &Expr) -> bool {
    match e {
        Expr::MethodCall(m) => gives_bool(&m.method.to_string()),
        Expr::Unary(e) => matches!(e.op, UnOp::Not(_)) && is_bool_by_name(&e.expr),
        Expr::Paren(e) => is_bool_by_name(&e.expr),
        _ => false,
    }
}

/// Whether an expression is no tensor, by its form: a text, a character, a rank. A length may be that of a list, which is one.
pub(super) fn is_host_value(e: &Expr) -> bool {
    match e {
        Expr::Lit(ExprLit { lit: Lit::Str(_) | Lit::ByteStr(_) | Lit::Char(_), .. }) => true,
        Expr::MethodCall(m) => m.args.is_empty() && m.method == "rank",
        Expr::Paren(e) => is_host_value(&e.expr),
        _ => false,
    }
}

/// Whether an expression is a host iterator by its form: not a tensor, nor a range that the graph counts.
pub(super) fn is_host_iterator(e: &Expr) -> bool {
    let names = [
        "bytes",
        "chain",
        "chars",
        "chunks",
        "chunks_exact",
        "cloned",
        "copied",
        "drain",
        "enumerate",
        "filter",
        "into_iter",
        "iter",
        "iter_mut",
        "keys",
        "lines",
        "values",
        "values_mut",
        "windows",
        "zip",
    ];
    match e {
        Expr::Range(_) | Expr::Reference(_) | Expr::Array(_) | Expr::Repeat(_) => true,
        Expr::Macro(m) => macro_name(&m.mac).as_deref() == Some("vec"),
        Expr::Paren(e) => is_host_iterator(&e.expr),
        Expr::Group(e) => is_host_iterator(&e.expr),
        Expr::MethodCall(m) if ["rev", "step_by"].iter().any(|name| m.method == name) => is_host_iterator(&m.receiver),
        Expr::MethodCall(m) => names.iter().any(|name| m.method == name),
        _ => false,
    }
}

/// Whether an `if` can have a value: its last `else` has no condition.
pub(super) fn ends_with_else(e: &ExprIf) -> bool {
    match e.else_branch.as_ref().map(|(_, e)| &**e) {
        Some(Expr::If(inner)) => ends_with_else(inner),
        otherwise => otherwise.is_some(),
    }
}

/// How a macro is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MacroKind {
    /// `vec!`: its elements are rewritten.
    Elements,
    /// `matches!`: its first argument is rewritten; always a host value.
    Matches,
    /// `assert!` and, if true, `debug_assert!`.
    Assert(bool),
    /// `println!` and its relatives.
    Print {
        /// Whether it writes to the standard error.
        error: bool,
        /// Whether a line ends after it.
        line: bool,
    },
    /// `dbg!`.
    Dbg,
    /// `format!`: its arguments are rewritten; it makes a host value.
    Format,
    /// Panics when it is reached.
    Panic,
    /// A constant: nothing happens in it.
    Constant,
    /// Anything else: runs once, while tracing.
    Opaque,
}

/// The last segment of the path of a macro.
pub(super) fn macro_name(mac: &Macro) -> Option<String> {
    mac.path.segments.last().map(|s| s.ident.to_string())
}

/// The kind of a macro by the last segment of its path.
pub(super) fn macro_kind(name: &str) -> MacroKind {
    match name {
        "vec" => MacroKind::Elements,
        "matches" => MacroKind::Matches,
        "assert" => MacroKind::Assert(false),
        "debug_assert" => MacroKind::Assert(true),
        "print" | "println" | "eprint" | "eprintln" => {
            MacroKind::Print { error: name.starts_with('e'), line: name.ends_with("ln") }
        }
        "dbg" => MacroKind::Dbg,
        "format" => MacroKind::Format,
        "panic" | "todo" | "unimplemented" | "unreachable" => MacroKind::Panic,
        "cfg" | "column" | "concat" | "env" | "file" | "include_bytes" | "include_str" | "line" | "module_path"
        | "option_env" | "stringify" => MacroKind::Constant,
        _ => MacroKind::Opaque,
    }
}

/// Whether a macro of this name may expand to a jump.
pub(super) fn may_jump(name: &str) -> bool {
    let is_assertion = matches!(name.strip_prefix("debug_").unwrap_or(name), "assert_eq" | "assert_ne");
    !is_assertion && macro_kind(name) == MacroKind::Opaque
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(PURE_METHODS.is_sorted());
        for (name, of_trait) in BY_TRAIT {
            assert_eq!(keeps_receiver(name), Some(Keeps::ByTrait(of_trait)), "{name}");
        }
        for name in ["len", "abs", "zip"] {
            assert_eq!(keeps_receiver(name), Some(Keeps::OfKnownTypes), "{name}");
        }
        assert!(["push", "next", "any"].iter().all(|name| keeps_receiver(name).is_none()));
    }
}
