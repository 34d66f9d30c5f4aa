//! The tests of the language, in one program: each file is a module.

mod accuracy;
mod differentiate;
mod fuzz;
mod golden;
mod laws;
mod ops;
mod ops_composite;
mod random;
#[path = "random/config.rs"]
mod random_config;
mod random_graphs;
mod scale;
mod wire;
