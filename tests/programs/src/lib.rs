//! Random structured programs: nested `if`, `while`, `loop`, `for`, `match`, jumps and returns over
//! small integers and floats.
//!
//! A tree ([`ast`]) is generated from a seed ([`generate`]) and printed as one text with two
//! meanings ([`print`](mod@print), [`words`]): plain Rust, which defines the result, and a
//! `#[graph]` function. A crate of many programs is compiled and run ([`crates`]). In it,
//! [`compare`] checks the values of every engine, with and without optimization, against plain
//! Rust, and gradients against dual numbers ([`dual`]). A program with a difference is shrunk
//! ([`shrink`]) and printed.
//!
//! This crate knows nothing of the implementation of `#[graph]`, passes and plans, except that they
//! preserve the semantics.

pub mod ast;
pub mod check;
pub mod compare;
pub mod crates;
pub mod dual;
pub mod generate;
pub mod plans;
pub mod print;
pub mod rng;
pub mod shrink;
pub mod words;
