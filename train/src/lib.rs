//! A trainer: the loop around a training step.
#![forbid(unsafe_code)]

mod log;

pub use log::{EventFile, JsonLines};
