//! Which rows are read later, before they are written, in the lanes that go on from a place.

use super::LaneBody;
use crate::cpu::lanes::program::{BasicBlock, BlockEnd, LaneOp, RowId};
use crate::cpu::lanes::share::visit_rows;
use rustc_hash::FxHashSet;

pub(super) type Rows = FxHashSet<RowId>;

/// The rows that are live before each basic block, and after the last one.
#[derive(Debug)]
pub(super) struct RowLiveness {
    before: Vec<Rows>,
}

/// Changes the rows that are live after operations to those that are live before them.
pub(super) fn before(ops: &[LaneOp], live: &mut Rows) {
    ops.iter().rev().for_each(|op| before_one(op, live));
}

/// Changes the rows that are live after an operation to those that are live before it.
pub(super) fn before_one(op: &LaneOp, live: &mut Rows) {
    if let LaneOp::Branches { cond, arms: [first, second] } = op {
        let mut of_second = live.clone();
        before(first, live);
        before(second, &mut of_second);
        live.extend(of_second);
        live.insert(*cond);
        return;
    }
    let mut read = Vec::new();
    visit_rows(op, &mut |row, is_written| {
        if is_written {
            live.remove(&row);
        } else {
            read.push(row);
        }
    });
    live.extend(read);
}

impl RowLiveness {
    pub(super) fn new(body: LaneBody<'_>) -> RowLiveness {
        let n = body.blocks.len();
        let mut liveness = RowLiveness { before: vec![Rows::default(); n + 1] };
        liveness.before[n].extend(body.read_at_end);
        let mut has_changed = true;
        while has_changed {
            has_changed = false;
            for (i, block) in body.blocks.iter().enumerate().rev() {
                let mut live = liveness.after(block);
                before(&block.ops, &mut live);
                // Lanes may go back from its start.
                live.extend(block.aligned.iter().flat_map(|&(_, to)| &liveness.before[usize::from(to)]));
                has_changed |= live.len() != liveness.before[i].len();
                liveness.before[i] = live;
            }
        }
        liveness
    }

    /// Returns the rows that are live before a basic block.
    pub(super) fn before(&self, block: u16) -> &Rows {
        &self.before[usize::from(block)]
    }

    /// Returns the rows that are live after a basic block.
    pub(super) fn after_end(&self, block: &BasicBlock) -> Rows {
        match block.end {
            BlockEnd::Jump(to) => self.before(to).clone(),
            BlockEnd::Branch { to, otherwise, .. } => self.before(to).union(self.before(otherwise)).copied().collect(),
        }
    }

    /// Returns the rows that are live at the end of the operations of a basic block.
    pub(super) fn after(&self, block: &BasicBlock) -> Rows {
        let mut live = self.after_end(block);
        if let BlockEnd::Branch { cond, .. } = block.end {
            live.insert(cond);
        }
        live
    }
}
