//! Sessions whose peers are processes of their own, started by the program `anabranch`: what
//! happens when they are killed, stopped, asked to end, or not allowed.
//!
//! Each test has a deadline, after which it fails and its processes are killed. Tests wait for what
//! they need by asking, and sleep only if time itself is the subject. They use short failure
//! timeouts.
#![cfg(unix)]

mod admission;
mod failures;
mod launch;
mod leaving;
mod memory;
mod networks;
mod processes;
mod sharing;
