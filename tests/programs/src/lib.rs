//! Random structured programs: nested `if`, `while`, `loop`, `for`, `match`, jumps and returns over
//! small integers and floats.
//!
//! One tree ([`ast`]), made from a seed ([`generate`]), is printed as one text that is read twice
//! ([`print`](mod@print), [`words`]): as plain Rust, which says what it means, and as a `#[graph]`
//! function. Many programs make a crate, which is compiled and run ([`crates`]); in it, [`compare`]
//! holds every engine, with optimization and without, to the values of plain Rust, and gradients to
//! those of dual numbers ([`dual`]). What differs is made smaller ([`shrink`]) and shown.
//!
//! This crate knows nothing of how `#[graph]` works, nor of passes and plans but that they keep the
//! meaning.

pub mod ast;
pub mod check;
pub mod compare;
pub mod crates;
pub mod dual;
pub mod generate;
pub mod print;
pub mod rng;
pub mod shrink;
pub mod words;
