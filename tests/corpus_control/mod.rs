//! The corpus of control flow: cases that have exposed bugs in other systems, run by every engine.
//!
//! Most are from the tests of other systems: those of TensorFlow's `cond`, `while_loop`,
//! `TensorArray`, `foldl`, `foldr`, `scan` and `map_fn` (`control_flow_ops_py_test.py`,
//! `while_v2_test.py`, `cond_v2_test.py`, `functional_ops_test.py`), of AutoGraph and of JAX's
//! `lax_control_flow_test.py`. Other cases are from errors that their users reported: a `NaN` from
//! the branch that does not run, a loop without iterations, a capture that only the condition
//! reads, a tangent that grows from zero.
//!
//! A [`ControlCase`](engine::ControlCase) is a function, its inputs, its results, its gradient and
//! its second derivative, all found by hand. The engines are in `engine.rs`. If a case is about
//! syntax, the function is a `#[graph]`; otherwise it is written with the functions of
//! `anabranch::control`.
//!
//! Other files have cases of mismatched types (`tests/control_functions.rs`, `tests/errors.rs`),
//! host values under a staged condition (`tests/messages/ui/`), recursion and names of variables
//! (`tests/control_flow.rs`), values that a loop saves for its gradient and gradients that are
//! errors (`tests/gradients.rs`), more exits from loops (`tests/jumps.rs`), more lists
//! (`tests/lists.rs`) and steps of optimizers (`tests/sessions.rs`).
//!
//! Not included, because they have no counterpart here:
//!
//! - graphs of bare `Switch`, `Merge`, `Enter` and `NextIteration` nodes, dead values and counts of
//!   pending inputs: graphs are structured, so a value of a branch that does not run has no name
//!   outside;
//! - control edges, and loops with control edges between them: effects happen in program order;
//! - fetching a value from inside a branch or loop, and returning another number of loop variables:
//!   neither compiles;
//! - arms, loop bodies and gradients on several devices, frames of iterations, the number of
//!   iterations that run at once;
//! - queues;
//! - forward mode, batching transformations (`vmap`), and their errors.
#![allow(clippy::assign_op_pattern, reason = "both forms of assignment are staged")]

mod branches;
mod engine;
#[macro_use]
mod language;
mod jumps;
mod lists;
mod loops;
mod nests;
mod pruned;
mod state;
mod structure;
