//! Properties that methods, macros, types and `range` have by their names alone.

mod macros;
mod methods;
mod types;

pub(crate) use macros::{MacroKind, is_panic, is_unit_macro, macro_kind, macro_name, may_jump};
pub(crate) use methods::{Keeps, Property, keeps_receiver, lends_by_name, method_is};
pub(crate) use types::{has_known_methods, is_bool, is_cast_target, is_mut_ref, is_number_type, is_tensor};

use syn::{Expr, ExprLit, Lit, UnOp};

/// Returns whether an expression is a `bool` by the name of the method that returns it.
pub(crate) fn is_bool_by_name(e: &Expr) -> bool {
    match e {
        Expr::MethodCall(m) => method_is(&m.method, Property::Bool),
        Expr::Unary(e) => matches!(e.op, UnOp::Not(_)) && is_bool_by_name(&e.expr),
        Expr::Paren(e) => is_bool_by_name(&e.expr),
        _ => false,
    }
}

/// Returns whether an expression is not a tensor, and is compared with none, by its form: a
/// character or a rank. Text is compared with tensors of strings.
pub(crate) fn is_host_value(e: &Expr) -> bool {
    match e {
        Expr::Lit(ExprLit { lit: Lit::Char(_), .. }) => true,
        Expr::MethodCall(m) => m.args.is_empty() && method_is(&m.method, Property::HostNumber),
        Expr::Paren(e) => is_host_value(&e.expr),
        _ => false,
    }
}

/// Returns whether an expression is a host iterator by its form, and neither a tensor nor a `range`
/// of the graph.
pub(crate) fn is_host_iterator(e: &Expr) -> bool {
    match e {
        Expr::Range(_) | Expr::Reference(_) | Expr::Array(_) | Expr::Repeat(_) => true,
        Expr::Macro(m) => macro_name(&m.mac).as_deref() == Some("vec"),
        Expr::Paren(e) => is_host_iterator(&e.expr),
        Expr::Group(e) => is_host_iterator(&e.expr),
        Expr::MethodCall(m) if method_is(&m.method, Property::Adapter) => is_host_iterator(&m.receiver),
        Expr::MethodCall(m) => method_is(&m.method, Property::Iterator),
        _ => false,
    }
}

/// Returns whether a function is `range`, by its name.
pub(crate) fn is_range(function: &Expr) -> bool {
    matches!(function, Expr::Path(p) if p.path.segments.last().is_some_and(|s| s.ident == "range"))
}
