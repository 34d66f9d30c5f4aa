//! Control flow as functions: `if`, `match`, `while` and `for` of `#[graph]`, for closures.
//!
//! | function | semantics |
//! |---|---|
//! | [`cond`], [`switch`] | one of several closures runs |
//! | [`while_loop`] | a closure runs as long as a condition closure returns true |
//! | [`fold_left`], [`fold_right`] | a closure updates a state for each row of tensors |
//! | [`scan`], [`scan_reverse`] | the same, with an output for each row |
//! | [`map`] | a closure returns an output for each row |
//!
//! These functions record the same `cond` and `while` nodes as the statements do, through the same
//! code ([`crate::staged`] flattens values, [`crate::trace`] opens and closes regions). So
//! gradients of all orders, passes and plans need no special cases for them. Each closure is called
//! exactly once, during tracing. A closure may use any tensor from outside, which becomes a
//! capture. Values are [`Carry`]: tensors, tuples, arrays, vectors and structs of tensors with
//! `#[derive(Carry)]`.
//!
//! Values that must have the same type and structure, for example those of two branches, are
//! compared leaf by leaf. An error names the leaf that differs, for example `state.1.h`.
//!
//! [`Carry`]: crate::Carry

mod branches;
mod host_folds;
mod rows;
mod while_loop;

pub use branches::{Branches, cond, switch};
pub use rows::{fold_left, fold_right, map, scan, scan_reverse};
pub use while_loop::while_loop;

// The traits of the arguments of `cond`, of `range` and of its `step_by`.
pub use crate::staged::{Bounds, Condition, Produces, RangeEnd};
