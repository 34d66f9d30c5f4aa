//! Where elements come from.

pub(crate) mod channel;
pub(crate) mod files;
pub(crate) mod memory;
