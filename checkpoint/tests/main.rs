//! The tests of weights and checkpoints.

mod checkpoints;
mod crashes;
mod files;
mod kills;
mod simulator;
mod support;
