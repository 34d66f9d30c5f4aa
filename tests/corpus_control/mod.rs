//! The corpus of control flow: cases that have told right systems from wrong ones, run by every engine.
//!
//! Most were asked of other systems first: the tests of TensorFlow's `cond`, `while_loop`, `TensorArray`, `foldl`, `foldr`, `scan` and `map_fn`
//! (`control_flow_ops_py_test.py`, `while_v2_test.py`, `cond_v2_test.py`, `functional_ops_test.py`), of AutoGraph, of JAX's
//! `lax_control_flow_test.py`, and the errors that their users reported: a `NaN` from the branch that does not run, a loop
//! without trips, a capture that only the condition reads, a tangent that grows from zero. A [`Case`](engine::Case) is a function, inputs, the values that
//! it gives, its gradient and its second derivative, all found by hand; the engines are in `engine.rs`. Where it is about syntax,
//! the function is a `#[graph]`; else it is written with the functions of `anabranch::control`.
//!
//! What other files hold: errors of types that do not fit (`tests/control_functions.rs`, `tests/errors.rs`), host values
//! under a staged condition (`tests/ui/`), recursion and names of variables (`tests/control_flow.rs`), what a loop saves for its
//! gradient and which gradients are errors (`tests/gradients.rs`), more ways out of loops (`tests/jumps.rs`), more of lists (`tests/lists.rs`), steps of optimizers (`tests/sessions.rs`).
//!
//! What is left out, since there is nothing here that it is about:
//!
//! - graphs of bare `Switch`, `Merge`, `Enter` and `NextIteration` nodes, dead values and counts of pending inputs: structure stays, so a
//!   value of a branch that does not run has no name outside;
//! - control edges, and which loops have some between them: effects happen in program order;
//! - fetching a value from inside a branch or loop, and returning another number of loop variables: both do not compile;
//! - arms, loop bodies and gradients on several devices, frames of iterations, the number of iterations that run at once;
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
