//! The places of elements of a tensor to which lanes add: one for elements beside each other.

use super::program::{BasicBlock, ElementIndex, LaneOp, LaneProgram, RowId, RowInfo, RowStart};
use super::share::{RowUse, rows_of};
use anabranch_dsl::DType;
use anabranch_dsl::ops::prim;
use rustc_hash::FxHashMap;

/// Records one place for additions to elements beside each other, as those of a row. For each
/// tensor it is one place for so many numbers as all such additions have in common.
pub(super) fn join_places(program: &mut LaneProgram) {
    let LaneProgram { rows, blocks, additions, .. } = program;
    for added in additions {
        let places = added.record.places;
        let runs: Vec<Vec<PlaceRun>> = blocks.iter_mut().map(|block| runs_of(block, places, rows)).collect();
        let lengths = runs.iter().flatten().map(|run| run.places.len());
        let n = lengths.reduce(greatest_common_divisor).unwrap_or(1);
        added.numbers_per_place = n;
        for (block, runs) in blocks.iter_mut().zip(runs) {
            let mut is_left = vec![false; block.ops.len()];
            for places in runs.iter().flat_map(|run| run.places.chunks(n)) {
                let [(first, least), .., (_, most)] = *places else { continue };
                is_left[first] = true;
                let LaneOp::PushPlace { index: Some(index), .. } = &mut block.ops[first] else { continue };
                // The other indices are valid, too.
                let above = usize::try_from(most - least).expect("the last index is the largest");
                index.n = index.n.saturating_sub(above);
            }
            if n > 1 {
                let mut is_left = is_left.into_iter();
                block.ops.retain(|op| is_left.next() == Some(true) || !is_place(op, places));
            }
        }
    }
}

fn is_place(op: &LaneOp, places: u16) -> bool {
    matches!(*op, LaneOp::PushPlace { stack, .. } if stack == places)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// A place of an element in a tensor: so many elements after that of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlaceAfter {
    index: Option<ElementIndex>,
    n: isize,
}

/// Operations of a basic block that push places, each of them behind the one before.
#[derive(Clone, Debug)]
struct PlaceRun {
    /// The operations, and what they add to the same index.
    places: Vec<(usize, i64)>,
    end: PlaceAfter,
}

/// Returns the runs of operations of a basic block that push places to a stack.
fn runs_of(block: &mut BasicBlock, places: u16, rows: &[RowInfo]) -> Vec<PlaceRun> {
    let mut runs: Vec<PlaceRun> = Vec::new();
    // The rows that are the sum of another one and a constant.
    let mut sums: FxHashMap<RowId, (RowId, i64)> = FxHashMap::default();
    for (i, op) in block.ops.iter_mut().enumerate() {
        if let LaneOp::PushPlace { stack, offset, index, .. } = *op
            && stack == places
        {
            let (row, more) = index.map_or((0, 0), |index| *sums.get(&index.row).unwrap_or(&(index.row, 0)));
            let index = index.map(|index| ElementIndex { row, ..index });
            let n = offset as isize + index.map_or(0, |index| index.stride) * more as isize;
            let end = PlaceAfter { index, n: n + 1 };
            match runs.last_mut() {
                Some(run)
                    if run.end == (PlaceAfter { index, n }) && run.places.iter().all(|&(_, last)| last <= more) =>
                {
                    run.places.push((i, more));
                    run.end = end;
                }
                _ => runs.push(PlaceRun { places: vec![(i, more)], end }),
            }
        }
        rows_of(op, &mut |&mut row, used| {
            if used == RowUse::Written {
                sums.retain(|&sum, &mut (of, _)| sum != row && of != row);
                // Later places with this row as index are others.
                if let Some(run) = runs.last_mut()
                    && run.end.index.is_some_and(|index| index.row == row)
                {
                    run.end.n = isize::MIN;
                }
            }
        });
        if let LaneOp::Function { op, dst, args: [a, b, _], .. } = *op
            && op.op == prim::ADD
            && matches!(op.operand, DType::I32 | DType::I64)
            && a != dst
            && let RowStart::Constant(bits) = rows[usize::from(b)].start
        {
            let more = if op.operand == DType::I32 { i64::from(bits as i32) } else { bits.cast_signed() };
            // Larger ones are no difference of two valid indices.
            if i32::try_from(more).is_ok() {
                sums.insert(dst, (a, more));
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::super::program::{BlockEnd, StackPlace};
    use super::*;
    use crate::cpu::kernels::ScalarOp;
    use crate::cpu::kernels::functions::function;

    const PLACES: u16 = 3;

    /// A row of which the constant is the largest number.
    const LARGEST: RowId = 20;

    /// Returns rows of which those from 10 on are constants: how much they are above 10.
    fn rows() -> Vec<RowInfo> {
        let start = |i: u64| match i {
            0..10 => RowStart::Nothing,
            10..20 => RowStart::Constant(i - 10),
            _ => RowStart::Constant(i64::MAX.cast_unsigned()),
        };
        (0..=u64::from(LARGEST)).map(|i| RowInfo { size: 4, start: start(i), is_kept: false }).collect()
    }

    fn place(offset: usize, row: RowId) -> LaneOp {
        let index = Some(ElementIndex { row, dtype: DType::I32, n: 24, stride: 1 });
        LaneOp::PushPlace { stack: PLACES, at: StackPlace::default(), offset, index }
    }

    fn add(dst: RowId, a: RowId, b: RowId) -> LaneOp {
        let dtype = if b == LARGEST { DType::I64 } else { DType::I32 };
        let op = ScalarOp { op: prim::ADD, operand: dtype, result: dtype };
        let f = function(op.op, op.operand, op.result).expect("integers have it").block;
        LaneOp::Function { f, checked: None, op, dst, args: [a, b, a] }
    }

    /// Returns the numbers of operations of the runs.
    fn lengths(ops: Vec<LaneOp>) -> Vec<usize> {
        let mut block = BasicBlock { ops, end: BlockEnd::Jump(1), begins_loop: false, aligned: None };
        runs_of(&mut block, PLACES, &rows()).iter().map(|run| run.places.len()).collect()
    }

    #[test]
    fn places_behind_each_other_are_a_run() {
        assert!(lengths(vec![]).is_empty());
        assert_eq!(lengths(vec![place(0, 1), place(1, 1), place(2, 1)]), [3]);
        // Indices that are sums of one index and constants.
        let (sum, next) = (|dst: RowId, more: RowId| add(dst, 1, 10 + more), |k| place(0, k));
        assert_eq!(lengths(vec![next(1), sum(2, 1), next(2), sum(3, 2), next(3)]), [3]);
        assert_eq!(lengths(vec![sum(2, 4), next(2), sum(3, 5), place(0, 3), place(1, 3)]), [3]);
        // Gaps, other indices, and the same place again.
        assert_eq!(lengths(vec![place(0, 1), place(2, 1), place(3, 2), place(3, 2)]), [1, 1, 1, 1]);
        // A smaller index of a larger element is not checked together with it.
        assert_eq!(lengths(vec![sum(2, 1), place(0, 2), place(2, 1)]), [1, 1]);
        assert_eq!(lengths(vec![place(0, 1), add(2, 1, LARGEST), place(8, 2)]), [1, 1]);
        // The index, or what it is a sum of, changes.
        assert_eq!(lengths(vec![place(0, 1), add(1, 4, 10), place(1, 1)]), [1, 1]);
        assert_eq!(lengths(vec![next(1), sum(2, 1), add(1, 4, 10), next(2)]), [1, 1]);
        assert_eq!(lengths(vec![next(1), sum(2, 1), add(2, 2, 11), next(2)]), [1, 1]);
    }
}
