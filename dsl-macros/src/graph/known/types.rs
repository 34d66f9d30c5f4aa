//! Properties of types that follow from their names.

use syn::{Path, Type};

/// The host numbers, and whether `as` converts to them.
const NUMBERS: &[(&str, bool)] = &[
    ("i8", true),
    ("i16", true),
    ("i32", true),
    ("i64", true),
    ("isize", true),
    ("u8", true),
    ("u16", true),
    ("u32", true),
    ("u64", true),
    ("usize", true),
    ("f16", false),
    ("bf16", false),
    ("f32", true),
    ("f64", true),
];

/// Returns whether a type is a tensor.
pub(crate) fn is_tensor(ty: &Type) -> bool {
    matches!(ty, Type::Path(p) if p.path.segments.last().is_some_and(|s| s.ident == "Tensor"))
}

/// Returns whether a type is a tensor or a host number.
pub(crate) fn is_number_type(ty: &Type) -> bool {
    match ty {
        Type::Group(ty) => is_number_type(&ty.elem),
        Type::Paren(ty) => is_number_type(&ty.elem),
        Type::Path(p) => {
            let is_number = |name: &proc_macro2::Ident| NUMBERS.iter().any(|(number, _)| name == number);
            is_tensor(ty) || p.path.segments.last().is_some_and(|s| is_number(&s.ident))
        }
        _ => false,
    }
}

/// Returns whether a type is a tensor, a host number, a `bool` or a reference to such a type.
///
/// The table of methods holds for these types, so that the expansion need not check them.
pub(crate) fn has_known_methods(ty: &Type) -> bool {
    match ty {
        Type::Reference(r) => has_known_methods(&r.elem),
        Type::Path(p) => p.path.segments.last().is_some_and(|s| s.ident == "bool") || is_number_type(ty),
        _ => false,
    }
}

/// Returns whether `as` converts host values to the type of this name.
pub(crate) fn is_cast_target(ty: &Path) -> bool {
    NUMBERS.iter().any(|(name, is_target)| *is_target && ty.is_ident(name))
}

/// Returns whether a type is `bool`.
pub(crate) fn is_bool(ty: &Type) -> bool {
    matches!(ty, Type::Path(p) if p.qself.is_none() && p.path.is_ident("bool"))
}

/// Returns whether a type is written as `&mut T`.
pub(crate) fn is_mut_ref(ty: &Type) -> bool {
    matches!(ty, Type::Reference(r) if r.mutability.is_some())
}
