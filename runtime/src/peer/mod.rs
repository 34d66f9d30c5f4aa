//! Peers: nodes of a graph in other processes.
//!
//! `net` connects nodes and knows bytes only.

#[allow(dead_code, unused_imports, reason = "used by the layers that are built on it")]
mod net;
