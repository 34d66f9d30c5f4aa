//! Native code of loops in lanes, in a build without it or for a processor that has none.

use super::CodeVectors;
use super::code_input::{CodeBlock, LaneBody};
use super::program::BasicBlock;
use std::fmt;

/// The native code of a program. There is none.
#[derive(Debug)]
pub(super) enum LaneCode {}

/// Memory for runs of code.
#[derive(Default)]
pub(super) struct CodeMemory {}

/// Compiles nothing.
pub(super) fn compile(_: LaneBody<'_>, _: CodeVectors) -> Option<(Vec<BasicBlock>, LaneCode)> {
    None
}

impl LaneCode {
    pub(super) fn run(&self, _: u16, _: CodeBlock<'_>, _: &mut CodeMemory) -> bool {
        match *self {}
    }
}

impl fmt::Display for LaneCode {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}
