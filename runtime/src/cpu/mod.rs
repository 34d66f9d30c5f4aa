//! The CPU engine: compiles a graph to a plan, and runs it with native code and kernels.

pub(crate) mod compile;
pub(crate) mod element;
pub(crate) mod kernels;
pub(crate) mod lanes;
pub(crate) mod memory;
pub(crate) mod multiversion;
pub(crate) mod native;
pub(crate) mod program;
pub(crate) mod vector;
#[cfg(all(feature = "jit", target_arch = "x86_64"))]
pub(crate) mod x86;
