//! Sessions over several processes.
//!
//! | folder | contents | knows |
//! |---|---|---|
//! | `proto/` | frames, and the state machines of peers and of sessions | time as a number, and nothing of the system |

#[expect(dead_code, reason = "sessions do not use other processes yet")]
mod proto;

#[cfg(feature = "testing")]
pub use proto::hostile::fuzz_frame;
