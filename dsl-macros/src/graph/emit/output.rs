//! The emission of a part of the tree.

/// A part of the tree, which becomes Rust.
pub(super) trait ToRust {
    /// The form of Rust that it becomes.
    type Output;

    /// Returns the code of the part.
    fn emit(self) -> Self::Output;
}
