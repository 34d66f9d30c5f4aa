//! The tests of weights and checkpoints.

mod actors;
mod checkpoints;
mod crashes;
mod epochs;
mod faults;
mod files;
mod fuzz;
mod hooked;
mod kills;
mod objects;
mod queues;
mod simulator;
mod support;
mod tensor_files;
mod victims;
