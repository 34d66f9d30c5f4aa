//! The CPU backend: typed access to the memory of a plan, and kernels.

pub(crate) mod element;
pub(crate) mod kernels;
pub(crate) mod list;
pub(crate) mod math;
pub(crate) mod memory;
pub(crate) mod parallel;
pub(crate) mod stack;
pub(crate) mod vector;
