//! Kinds of macros of the standard library.
//!
//! The kind of a macro follows from the last segment of its path. A macro of another name runs
//! once, while tracing, and may do anything.

use syn::Macro;

/// The treatment of a macro.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MacroKind {
    /// `vec!`: the elements are rewritten.
    Elements,
    /// `matches!`: the first argument is rewritten. The result is always a host value.
    Matches,
    /// `assert!` and, if true, `debug_assert!`.
    Assert(bool),
    /// `assert_eq!` or `assert_ne!`, or their `debug_` forms.
    AssertEquality {
        /// Whether the macro asserts that the sides are equal.
        equal: bool,
        debug: bool,
    },
    /// `println!` and similar macros.
    Print {
        /// Whether the macro writes to the standard error stream.
        error: bool,
        /// Whether the macro prints a newline at the end.
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
pub(crate) fn macro_name(mac: &Macro) -> Option<String> {
    mac.path.segments.last().map(|s| s.ident.to_string())
}

/// Returns the kind of a macro, given the last segment of its path.
pub(crate) fn macro_kind(name: &str) -> MacroKind {
    match name {
        "vec" => MacroKind::Elements,
        "matches" => MacroKind::Matches,
        "assert" => MacroKind::Assert(false),
        "debug_assert" => MacroKind::Assert(true),
        "assert_eq" | "assert_ne" | "debug_assert_eq" | "debug_assert_ne" => {
            MacroKind::AssertEquality { equal: name.ends_with("eq"), debug: name.starts_with("debug") }
        }
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
pub(crate) fn may_jump(name: &str) -> bool {
    macro_kind(name) == MacroKind::Opaque
}

/// Returns whether a macro of this name panics.
pub(crate) fn is_panic(name: &str) -> bool {
    macro_kind(name) == MacroKind::Panic
}

/// Returns whether a macro is `()` by its name.
pub(crate) fn is_unit_macro(mac: &Macro) -> bool {
    let kind = macro_name(mac).map(|name| macro_kind(&name));
    matches!(kind, Some(MacroKind::Print { .. } | MacroKind::Assert(_)))
}
