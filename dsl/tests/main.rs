//! The tests of the language, in one program: each file is a module.

mod golden;
mod ops;
mod ops_composite;
mod random;
mod random_graphs;
mod scale;
