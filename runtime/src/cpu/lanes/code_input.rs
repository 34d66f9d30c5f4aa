//! The input of native code of loops in lanes: the operations that it is made of, and the blocks of
//! lanes on which it runs.

use super::program::{BasicBlock, RowId, RowInfo};
use super::rows::VectorBytes;
use crate::cpu::memory::{Base, StackId};
use anabranch_dsl::interp::StopFlag;
use std::sync::atomic::AtomicBool;

/// A block of lanes, as its code sees it.
#[cfg_attr(not(all(feature = "jit", target_arch = "x86_64")), expect(dead_code, reason = "there is no code"))]
pub(super) struct CodeBlock<'a> {
    /// The rows of the program, each with memory for the lanes of the block, rounded up to 16.
    pub(super) rows: &'a mut [Vec<VectorBytes>],
    /// Whether each lane is active, for as many lanes.
    pub(super) active: &'a [u8],
    /// All active lanes are before this one.
    pub(super) n: usize,
    /// The lane that each place of the rows has, and whether that is not always the same lane.
    pub(super) lane_of: &'a [u16],
    pub(super) has_moved: bool,
    /// Returns all elements of a tensor or list.
    pub(super) elements: &'a dyn Fn(CodeSource) -> &'a [u8],
    /// Returns the memory of a stack of the program, for how many elements of each lane there is
    /// room, and the number of lanes of a tile. Stacks that code pushes to may be changed.
    pub(super) stack: &'a mut dyn FnMut(u16) -> (*mut u8, usize, usize),
    pub(super) stop: &'a StopFlag,
    pub(super) has_declined: &'a AtomicBool,
}

/// The operations of a program, and their rows.
#[cfg_attr(not(all(feature = "jit", target_arch = "x86_64")), expect(dead_code, reason = "there is no code"))]
#[derive(Clone, Copy)]
pub(super) struct LaneBody<'a> {
    pub(super) rows: &'a [RowInfo],
    pub(super) blocks: &'a [BasicBlock],
    /// Whether rows may have numbers of one byte, other than bools.
    pub(super) has_byte_numbers: bool,
    /// The rows that are read after the last basic block.
    pub(super) read_at_end: &'a [RowId],
}

/// Where elements come from.
#[cfg_attr(not(all(feature = "jit", target_arch = "x86_64")), expect(dead_code, reason = "there is no code"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeSource {
    /// A tensor that the body does not write.
    Tensor(Base),
    /// The elements of a list, one after the other.
    List(StackId),
}
