//! The protocol between the processes of a session: frames, their encoding, and the state machines
//! of both sides.
//!
//! | file | contents |
//! |---|---|
//! | `frame.rs` | the frames |
//! | `codec.rs` | frames to bytes and back, with a limit for each length |
//! | `payload.rs` | tensors and bytes of frames |
//! | `host/` | [`Host`]: a peer process with all of its links and sessions |
//! | `caller/` | [`Caller`]: one session at its owner |
//!
//! The state machines receive inputs and return outputs. Time is an input, too: a [`Time`] since
//! some start that the process chooses. So whole clusters run in a simulation, many thousand of
//! them in a minute (`simulation/`).
//!
//! This folder must not know sockets, clocks, threads, randomness, devices or graphs.

pub(crate) mod caller;
pub(crate) mod codec;
pub(crate) mod frame;
#[cfg(test)]
mod golden;
pub(crate) mod host;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod hostile;
pub(crate) mod payload;
#[cfg(any(test, feature = "testing"))]
mod random;
#[cfg(test)]
mod simulation;

use std::time::Duration;

/// A time since some start.
pub(crate) type Time = Duration;

/// A link, as the process that holds it numbers it. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LinkNumber(pub(crate) u64);
