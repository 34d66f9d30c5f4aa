//! Marks that the canonical form puts on the code that it makes, as attributes.
//!
//! They are removed when the code is resolved, so the tree has none.

use syn::{Attribute, ExprBlock, ExprIf, parse_quote};

/// Returns the mark of an `if` in a tree, see [`has_kind_of_outer`].
pub(super) fn kind_of_outer() -> Attribute {
    parse_quote!(#[kind_of_outer])
}

/// Returns the mark of a block without a value in a long sequence of jumps.
pub(super) fn sequence() -> Attribute {
    parse_quote!(#[sequence])
}

/// Returns the mark of a block in a long sequence of jumps that returns variables.
pub(super) fn sequence_with_value() -> Attribute {
    parse_quote!(#[sequence_with_value])
}

/// Removes the mark of an `if` in a tree, and returns whether it was there.
///
/// The condition of a marked `if` compares the same variable with numbers as the enclosing `if`, so
/// both conditions have the same type.
pub(super) fn has_kind_of_outer(e: &mut ExprIf) -> bool {
    let is_marked = e.attrs.iter().any(|attr| attr.path().is_ident("kind_of_outer"));
    e.attrs.retain(|attr| !attr.path().is_ident("kind_of_outer"));
    is_marked
}

/// Returns whether a block is marked as a block of a long sequence.
pub(super) fn is_sequence(block: &ExprBlock) -> bool {
    let is_mark = |attr: &Attribute| has_no_value(attr) || attr.path().is_ident("sequence_with_value");
    matches!(&block.attrs[..], [attr] if is_mark(attr))
}

/// Returns whether an attribute marks a block without a value.
pub(super) fn has_no_value(mark: &Attribute) -> bool {
    mark.path().is_ident("sequence")
}
