//! Rows that share memory: values of one basic block whose uses do not overlap have one row.
//!
//! Fewer rows leave room for more lanes in the caches of a core.

use super::program::{
    BasicBlock, BlockEnd, ElementIndex, ElementSource, LaneOp, RowId, RowInfo, RowStart, UpdateValue,
};
use rustc_hash::FxHashMap;

/// The use of a row by an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowUse {
    Read,
    Written,
}

/// Calls a function with each row that an operation reads, and then with the row that it writes.
pub(super) fn rows_of(op: &mut LaneOp, f: &mut dyn FnMut(&mut RowId, RowUse)) {
    let of_index = |index: &mut Option<ElementIndex>, f: &mut dyn FnMut(&mut RowId, RowUse)| {
        index.iter_mut().for_each(|index| f(&mut index.row, RowUse::Read));
    };
    let written = match op {
        LaneOp::Function { args, dst, .. } => {
            args.iter_mut().for_each(|arg| f(arg, RowUse::Read));
            Some(dst)
        }
        LaneOp::DividePower { a: src, dst, .. }
        | LaneOp::Move { src, dst }
        | LaneOp::ReadList { index: src, dst, .. } => {
            f(src, RowUse::Read);
            Some(dst)
        }
        LaneOp::Require { a: src, .. }
        | LaneOp::RequireIndex { a: src, .. }
        | LaneOp::Assert { cond: src }
        | LaneOp::Fill { value: src, .. }
        | LaneOp::CheckList { index: src, .. } => {
            f(src, RowUse::Read);
            None
        }
        LaneOp::Push { src, at, .. } => {
            f(&mut at.depth, RowUse::Read);
            f(src, RowUse::Read);
            None
        }
        LaneOp::ReadElement { from, index, dst, .. } => {
            if let ElementSource::OfList { index, .. } = from {
                f(index, RowUse::Read);
            }
            of_index(index, f);
            Some(dst)
        }
        LaneOp::WriteElement { index, value, .. } => {
            of_index(index, f);
            f(value, RowUse::Read);
            None
        }
        LaneOp::PushPlace { at, index, .. } => {
            f(&mut at.depth, RowUse::Read);
            of_index(index, f);
            None
        }
        LaneOp::UpdateList { index, value, .. } => {
            f(index, RowUse::Read);
            if let UpdateValue::Row(row) = value {
                f(row, RowUse::Read);
            }
            None
        }
        LaneOp::Branches { .. } => panic!("rows are shared before basic blocks are joined"),
        LaneOp::Code { .. } => panic!("rows are shared before there is native code"),
        LaneOp::Pop { dst, at, .. } => {
            f(&mut at.depth, RowUse::Read);
            Some(dst)
        }
        LaneOp::CopyIn { .. } | LaneOp::Clear { .. } => None,
    };
    written.into_iter().for_each(|dst| f(dst, RowUse::Written));
}

/// Calls a function with each row that an operation uses, and whether it is written. Operations
/// inside come after the condition of their branch.
#[cfg(all(feature = "jit", target_arch = "x86_64"))]
pub(super) fn visit_rows(op: &LaneOp, f: &mut dyn FnMut(RowId, bool)) {
    match op {
        LaneOp::Branches { cond, arms } => {
            f(*cond, false);
            arms.iter().flatten().for_each(|op| visit_rows(op, f));
        }
        op => rows_of(&mut op.clone(), &mut |row, row_use| f(*row, row_use == RowUse::Written)),
    }
}

/// Lets values of one basic block share rows. Rows that are no longer used get no memory.
pub(super) fn share_rows(blocks: &mut [BasicBlock], rows: &mut Vec<RowInfo>) {
    let is_of_block = |row: RowId, rows: &[RowInfo]| {
        let info = &rows[usize::from(row)];
        !info.is_kept && info.start == RowStart::Nothing
    };
    let n_rows = rows.len();
    // The shared rows for elements of a size.
    let mut shared: FxHashMap<usize, Vec<RowId>> = FxHashMap::default();
    for block in blocks {
        let mut last_use: FxHashMap<RowId, usize> = FxHashMap::default();
        for (i, op) in block.ops.iter_mut().enumerate() {
            rows_of(op, &mut |row, _| _ = last_use.insert(*row, i));
        }
        if let BlockEnd::Branch { cond, .. } = block.end {
            last_use.insert(cond, usize::MAX);
        }
        let mut free: FxHashMap<usize, Vec<RowId>> = shared.clone();
        let mut row_of: FxHashMap<RowId, RowId> = FxHashMap::default();
        for (i, op) in block.ops.iter_mut().enumerate() {
            let mut ended: Vec<RowId> = Vec::new();
            rows_of(op, &mut |row, row_use| {
                let own = *row;
                if !is_of_block(own, rows) {
                    return;
                }
                // A value that is written again stays where it is.
                *row = *row_of.entry(own).or_insert_with(|| {
                    debug_assert_eq!(row_use, RowUse::Written, "a value is written before it is read");
                    let size = rows[usize::from(own)].size;
                    free.entry(size).or_default().pop().unwrap_or_else(|| {
                        rows.push(RowInfo { size, start: RowStart::Nothing, is_kept: false });
                        let new = rows.len() as RowId - 1;
                        shared.entry(size).or_default().push(new);
                        new
                    })
                });
                if last_use[&own] == i {
                    ended.push(own);
                }
            });
            // After the result has its row, which is thus none of the operands'.
            for own in ended {
                if let Some(row) = row_of.remove(&own) {
                    free.entry(rows[usize::from(own)].size).or_default().push(row);
                }
            }
        }
        if let BlockEnd::Branch { cond, .. } = &mut block.end
            && let Some(&row) = row_of.get(cond)
        {
            *cond = row;
        }
    }
    for info in rows[..n_rows].iter_mut().filter(|info| !info.is_kept && info.start == RowStart::Nothing) {
        info.size = 0;
    }
}
