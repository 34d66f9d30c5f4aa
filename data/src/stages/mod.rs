//! The stages of pipelines. Each file says what the position of its stages consists of.

pub(crate) mod batch;
pub(crate) mod bucket;
pub(crate) mod cache;
pub(crate) mod chain;
pub(crate) mod filter;
pub(crate) mod flat_map;
pub(crate) mod interleave;
pub(crate) mod map;
pub(crate) mod parallel;
pub(crate) mod part;
pub(crate) mod repeat;
pub(crate) mod shuffle;
pub(crate) mod zip;
