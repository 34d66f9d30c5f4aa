//! Control flow as functions: what `#[graph]` writes as `if`, `match`, `while` and `for`, for closures.
//!
//! | function | is |
//! |---|---|
//! | [`cond`], [`switch`] | one of several closures runs |
//! | [`while_loop`] | a closure runs as long as another one says so |
//! | [`fold_left`], [`fold_right`] | a closure takes a state through the rows of tensors |
//! | [`scan`], [`scan_reverse`] | the same, with an output for each row |
//! | [`map`] | a closure gives an output for each row |
//!
//! They record the same `cond` and `while` nodes as the statements do, with the same parts ([`crate::staged`] takes values
//! apart, [`crate::trace`] opens and closes regions); so gradients of all orders, passes and plans need to know nothing of them.
//! Each closure is called exactly once, while tracing. It may use any tensor from outside, which becomes a capture. Values are
//! [`Carry`]: tensors, tuples, arrays, vectors and structs of tensors with `#[derive(Carry)]`.
//!
//! Values that must have one type and one structure, as those of two branches, are compared leaf by leaf; an error names the leaf
//! that differs, as in `state.1.h`.
//!
//! [`Carry`]: crate::Carry

mod branches;
mod rows;
mod while_loop;

pub use branches::{Branches, cond, switch};
pub use rows::{fold_left, fold_right, map, scan, scan_reverse};
pub use while_loop::while_loop;
