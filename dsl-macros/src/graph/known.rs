//! Properties of methods and macros that follow from their names.

use syn::{Expr, ExprIf, ExprLit, Lit, Macro, UnOp};

/// Names of methods that modify nothing in any type of the standard library or of anabranch.
///
/// A `mut` variable of such a type is not carried just because it is the receiver of one of these
/// methods. A user's own type may have a method of such a name that modifies its receiver, so the
/// type decides, through the traits in `dsl/src/staged/receiver.rs`.
///
/// The list is sorted. It excludes names that some types use for methods that modify the receiver.
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

/// Methods of traits of the standard library that most types implement, and the traits by their
/// names in `dsl/src/staged/receiver.rs`.
///
/// Each method takes `&self` and no arguments.
const BY_TRAIT: &[(&str, &str)] =
    &[("clone", "CloneMethod"), ("to_owned", "ToOwnedMethod"), ("to_string", "ToStringMethod")];

/// The types that have a method of a certain name that leaves its receiver unmodified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// The types that implement this trait, unless they have a method of their own that takes
    /// precedence.
    ByTrait(&'static str),
    /// The types of the standard library and of anabranch.
    OfKnownTypes,
}

/// Returns which types have a method of this name that leaves its receiver unmodified, if any do.
pub(super) fn keeps_receiver(name: &str) -> Option<Keeps> {
    PURE_METHODS.binary_search(&name).ok()?;
    let by_trait = BY_TRAIT.iter().find(|(method, _)| *method == name);
    Some(by_trait.map_or(Keeps::OfKnownTypes, |&(_, of_trait)| Keeps::ByTrait(of_trait)))
}

/// Returns whether a method of this name returns a `bool` for every type.
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

/// Returns whether an expression is a `bool` by the name of the method that returns it.
pub(super) fn is_bool_by_name(e: &Expr) -> bool {
    match e {
        Expr::MethodCall(m) => gives_bool(&m.method.to_string()),
        Expr::Unary(e) => matches!(e.op, UnOp::Not(_)) && is_bool_by_name(&e.expr),
        Expr::Paren(e) => is_bool_by_name(&e.expr),
        _ => false,
    }
}

/// Returns whether an expression is not a tensor by its form: a string, a character or a rank. A
/// length is excluded, because the length of a list is a tensor.
pub(super) fn is_host_value(e: &Expr) -> bool {
    match e {
        Expr::Lit(ExprLit { lit: Lit::Str(_) | Lit::ByteStr(_) | Lit::Char(_), .. }) => true,
        Expr::MethodCall(m) => m.args.is_empty() && m.method == "rank",
        Expr::Paren(e) => is_host_value(&e.expr),
        _ => false,
    }
}

/// Returns whether an expression is a host iterator by its form, and neither a tensor nor a `range`
/// of the graph.
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

/// Returns whether an `if` can have a value, because its last `else` has no condition.
pub(super) fn ends_with_else(e: &ExprIf) -> bool {
    match e.else_branch.as_ref().map(|(_, e)| &**e) {
        Some(Expr::If(inner)) => ends_with_else(inner),
        otherwise => otherwise.is_some(),
    }
}

/// The treatment of a macro.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MacroKind {
    /// `vec!`: the elements are rewritten.
    Elements,
    /// `matches!`: the first argument is rewritten. The result is always a host value.
    Matches,
    /// `assert!` and, if true, `debug_assert!`.
    Assert(bool),
    /// `println!` and similar macros.
    Print {
        /// Whether the macro writes to the standard error stream.
        error: bool,
        /// Whether the macro ends the line.
        line: bool,
    },
    /// `dbg!`.
    Dbg,
    /// `format!`: the arguments are rewritten. The result is a host value.
    Format,
    /// A macro that panics.
    Panic,
    /// A constant, without any effect.
    Constant,
    /// Any other macro: it runs once, while tracing.
    Opaque,
}

/// Returns the last segment of the path of a macro.
pub(super) fn macro_name(mac: &Macro) -> Option<String> {
    mac.path.segments.last().map(|s| s.ident.to_string())
}

/// Returns the kind of a macro, given the last segment of its path.
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

/// Returns whether a macro of this name may expand to a jump.
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
