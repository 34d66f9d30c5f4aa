//! Sessions over several processes.
//!
//! | folder | contents | knows |
//! |---|---|---|
//! | `proto/` | frames, and the state machines of peers and of sessions | time as a number, and nothing of the system |
//! | `net/` | links between nodes: keys, TLS, QUIC | bytes |

#[allow(dead_code, unused_imports, reason = "used by the layers that are built on it")]
mod net;
#[expect(dead_code, reason = "sessions do not use other processes yet")]
mod proto;
