//! Where elements come from.

pub(crate) mod files;
pub(crate) mod memory;
