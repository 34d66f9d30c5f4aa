//! Machine code for x86-64: the encoding of instructions, and the choice of registers.
//!
//! Its users, [`native`](super::native) and [`lanes`](super::lanes), decide which instructions
//! there are. This folder must not know plans, loops or lanes.

#[cfg(test)]
mod decoded;
pub(crate) mod encode;
#[cfg_attr(anabranch_cranelift, expect(dead_code, reason = "loops of single numbers are Cranelift's"))]
pub(crate) mod general;
pub(crate) mod immediates;
pub(crate) mod linear_scan;
#[cfg(any(not(anabranch_cranelift), test))]
pub(crate) mod scalar;
