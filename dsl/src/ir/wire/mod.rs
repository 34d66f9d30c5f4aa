//! The wire form of graphs: bytes for other processes.
//!
//! ```
//! use anabranch::Graph;
//! use anabranch::dsl::ir::wire::{WireLimits, decode, encode};
//!
//! let text = "graph @f(%x: f32[2]) -> f32[2] { %y = tanh %x  return %y }";
//! let graph = Graph::parse(text, "f.ir").expect("the text is right");
//! let bytes = encode(&graph);
//! assert_eq!(bytes.len(), 44);
//! let copy = decode(&bytes, &WireLimits::default())?;
//! assert!(copy.same_structure(&graph));
//!
//! // An error in another process names a node by its number, which both graphs share.
//! let node = copy.region(copy.root()).nodes[0];
//! assert_eq!(copy.node(node).loc.node(), Some(node));
//! assert_eq!(graph.node(node).loc.to_string(), "f.ir:1:34");
//! # Ok::<(), anabranch::Diagnostic>(())
//! ```
//!
//! Invariants:
//!
//! - **Numbers are kept.** Nodes, values, regions and variables have the same numbers on both
//!   sides, also next to numbers that passes left unused.
//! - **The bytes depend on the graph alone**, so their digest identifies it. Names of values,
//!   source locations, operations as written and device constraints are no part of them.
//! - **Operations are found by name** in the table and among the registered ones. Nothing of the
//!   bytes is interned, so decoding leaves no memory behind.
//! - **Any bytes can be decoded safely.** The result is an error or a graph that [`verify()`]
//!   accepts. Memory is at most a constant multiple of the bytes: each number, used or not, takes a
//!   byte at least, and a count is compared with the bytes before memory is taken for it. The
//!   tables agree by construction, since owners and definitions are no part of the bytes. The depth
//!   of nesting is known before anything recurses over regions.
//!
//! What a decoded graph *computes* is not bounded: it may loop without end, or compute a tensor
//! that is too large for the memory.
//!
//! | part | records |
//! |---|---|
//! | start | `anbr`, the [version](VERSION) in one byte, the name of the graph |
//! | sizes | the number of records of each part below, and of the bytes at the end |
//! | operations | the primitive operations in use, with the names of their attributes |
//! | types | the types of values |
//! | variables | name and type |
//! | queues | name and types of the tensors of an element |
//! | values | the position of the type plus one, or 0 for an unused number |
//! | regions | parameters, nodes and yields, or nothing for an unused number |
//! | nodes | operation, operands, results and regions, or nothing for an unused number |
//! | end | the elements of the constants, in the order of their nodes |
//!
//! The records are in `form.rs`, encoded by postcard.
//!
//! [`verify()`]: fn@super::verify

mod decode;
mod encode;
mod form;
#[cfg(test)]
mod tests;

use super::MAX_OPEN;
pub use decode::decode;
pub use encode::encode;

/// The first bytes of every graph in wire form.
const MAGIC: [u8; 4] = *b"anbr";

/// The version of the format. A graph of another version is an error.
pub const VERSION: u8 = 2;

/// Maximum axes of a tensor.
pub const MAX_RANK: usize = 64;

/// Maximum nesting depth of constructs. Code that works on graphs recurses over them.
pub const MAX_DEPTH: usize = MAX_OPEN;

/// Maximum bytes of a name: of the graph, a variable, an extent, an operation or an attribute.
///
/// Errors repeat names, in types for each axis.
pub const MAX_NAME: usize = 1024;

/// Limits on decoded graphs, in addition to [`MAX_RANK`], [`MAX_DEPTH`] and [`MAX_NAME`].
///
/// Decoding takes less than 256 bytes of memory for each of the [`bytes`](Self::bytes). With the
/// default limits, that and the constants are at most about 2 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireLimits {
    /// Maximum bytes of everything but the elements of constants.
    pub bytes: usize,
    /// Maximum bytes of the elements of all constants together.
    pub constant_bytes: usize,
    /// Maximum numbers of nodes, used or not.
    pub nodes: usize,
    /// Maximum numbers of values, used or not.
    pub values: usize,
    /// Maximum numbers of regions, used or not.
    pub regions: usize,
    /// Maximum variables.
    pub variables: usize,
    /// Maximum operands of one node, and maximum results.
    pub operands: usize,
}

impl Default for WireLimits {
    fn default() -> WireLimits {
        WireLimits {
            bytes: 32 << 20,
            constant_bytes: 256 << 20,
            nodes: 1 << 20,
            values: 1 << 21,
            regions: 1 << 18,
            variables: 1 << 16,
            operands: 1 << 16,
        }
    }
}
