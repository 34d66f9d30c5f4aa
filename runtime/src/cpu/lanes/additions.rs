//! Additions to elements of a tensor, which lanes push to stacks until all iterations have ended.

use super::block::{Declined, LoopInputs};
use super::program::{AddedTensor, BasicBlock, ElementIndex, LaneOp, LaneProgram, RowId, RowInfo, RowStart};
use super::rows::{by_size, register};
use super::share::{RowUse, rows_of};
use crate::cpu::memory::segments::LaneStack;
use anabranch_dsl::ops::prim;
use anabranch_dsl::{DType, memory};
use bytemuck::Pod;
use rustc_hash::FxHashMap;
use std::ops::AddAssign;

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
            sums.insert(dst, (a, more));
        }
    }
    runs
}

/// The additions of a block to one tensor, in the order of the iterations.
#[derive(Clone, Debug)]
pub(super) struct OrderedAdditions {
    places: Vec<u32>,
    /// The numbers for each place, one after the other, as bytes with the alignment of all numbers.
    numbers: Vec<u64>,
}

impl OrderedAdditions {
    /// Puts what the lanes of a block have pushed into the order of the iterations.
    pub(super) fn new(
        places: &LaneStack,
        numbers: &LaneStack,
        numbers_per_place: usize,
        inputs: &LoopInputs<'_>,
    ) -> Result<OrderedAdditions, Declined> {
        let (depths, size, per_place) = (places.depths(), numbers.size(), numbers_per_place);
        // Where the additions of each lane begin.
        let mut all = 0;
        let mut starts: Vec<usize> = depths.iter().map(|&depth| depth as usize).collect();
        let mut add_up = |start: &mut usize| all += std::mem::replace(start, all);
        match inputs.shape.is_reversed {
            true => starts.iter_mut().rev().for_each(&mut add_up),
            false => starts.iter_mut().for_each(&mut add_up),
        }
        let held = memory::try_hold(all * (size_of::<u32>() + per_place * size)).map_err(|_| Declined::Loop)?;
        if let (Some(recorded), Some(more)) = (&inputs.recorded, held) {
            recorded.join(more);
        }
        let mut ordered =
            OrderedAdditions { places: vec![0; all], numbers: vec![0; (all * per_place * size).div_ceil(8)] };
        let from: &[u32] = bytemuck::cast_slice(places.bytes());
        for (tile, depths) in depths.chunks(places.tile()).enumerate() {
            let first = tile * places.tile();
            for d in 0..depths.iter().copied().max().unwrap_or(0) {
                let from = &from[places.place(first, d as usize)..][..depths.len()];
                for (lane, (&place, _)) in from.iter().zip(depths).enumerate().filter(|&(_, (_, &depth))| d < depth) {
                    ordered.places[starts[first + lane] + d as usize] = place;
                }
            }
        }
        by_size!(size, T => {
            let to: &mut [T] = bytemuck::cast_slice_mut(&mut ordered.numbers);
            match per_place {
                n if n % 8 == 0 => order::<T, 8>(numbers, (depths, &starts), n, to),
                n if n % 4 == 0 => order::<T, 4>(numbers, (depths, &starts), n, to),
                n => order::<T, 1>(numbers, (depths, &starts), n, to),
            }
        });
        Ok(ordered)
    }

    /// Returns the number of bytes that they take.
    pub(super) fn n_bytes(&self) -> usize {
        size_of_val(&self.places[..]) + size_of_val(&self.numbers[..])
    }

    /// Adds them to the elements of a tensor.
    pub(super) fn add_to(&self, tensor: &mut [u8], added: AddedTensor) {
        let AddedTensor { dtype, add, numbers_per_place: n, .. } = added;
        match dtype {
            DType::F32 => self.add_floats::<f32>(tensor, n),
            DType::F64 => self.add_floats::<f64>(tensor, n),
            _ => {
                let (size, numbers) = (dtype.size(), bytemuck::cast_slice(&self.numbers));
                for (k, &place) in self.places.iter().enumerate() {
                    for (i, element) in tensor[place as usize * size..].chunks_exact_mut(size).take(n).enumerate() {
                        let sum = add(register(element, size, 0), register(numbers, size, k * n + i));
                        element.copy_from_slice(&sum.to_ne_bytes()[..size]);
                    }
                }
            }
        }
    }

    fn add_floats<T: Pod + AddAssign>(&self, tensor: &mut [u8], n: usize) {
        let (tensor, numbers) = (bytemuck::cast_slice_mut(tensor), bytemuck::cast_slice(&self.numbers));
        match n {
            n if n % 8 == 0 => self.add_groups::<T, 8>(tensor, numbers, n / 8),
            n if n % 4 == 0 => self.add_groups::<T, 4>(tensor, numbers, n / 4),
            n => self.add_groups::<T, 1>(tensor, numbers, n),
        }
    }

    /// Adds `n` groups of `K` numbers for each place.
    fn add_groups<T: Pod + AddAssign, const K: usize>(&self, tensor: &mut [T], numbers: &[T], n: usize) {
        let mut groups = numbers.as_chunks::<K>().0.chunks_exact(n);
        for (&place, groups) in self.places.iter().zip(&mut groups) {
            let elements = tensor[place as usize..][..n * K].as_chunks_mut::<K>().0;
            for (elements, group) in elements.iter_mut().zip(groups) {
                (0..K).for_each(|i| elements[i] += group[i]);
            }
        }
    }
}

/// Puts `n` numbers for each place, a multiple of `K`, into their order. The places of a lane are
/// as many as its depth, and begin with that of a number in the result.
fn order<T: Pod, const K: usize>(numbers: &LaneStack, (depths, starts): (&[u32], &[usize]), n: usize, to: &mut [T]) {
    let (from, tile) = (bytemuck::cast_slice::<u8, T>(numbers.bytes()), numbers.tile());
    let to = to.as_chunks_mut::<K>().0;
    for (t, depths) in depths.chunks(tile).enumerate() {
        let first = t * tile;
        for (d, k) in (0..depths.iter().copied().max().unwrap_or(0)).flat_map(|d| (0..n / K).map(move |k| (d, k))) {
            let from = &from[numbers.place(first, d as usize * n + k * K)..];
            let rows: [&[T]; K] = std::array::from_fn(|i| &from[i * tile..][..depths.len()]);
            for (lane, _) in depths.iter().enumerate().filter(|&(_, &depth)| d < depth) {
                to[(starts[first + lane] + d as usize) * (n / K) + k] = rows.map(|row| row[lane]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::program::{BlockEnd, StackPlace};
    use super::*;
    use crate::cpu::kernels::ScalarOp;
    use crate::cpu::kernels::functions::function;

    const PLACES: u16 = 3;

    /// Returns rows of which those from 10 on are constants: how much they are above 10.
    fn rows() -> Vec<RowInfo> {
        let start = |i: u64| if i < 10 { RowStart::Nothing } else { RowStart::Constant(i - 10) };
        (0..20).map(|i| RowInfo { size: 4, start: start(i), is_kept: false }).collect()
    }

    fn place(offset: usize, row: RowId) -> LaneOp {
        let index = Some(ElementIndex { row, dtype: DType::I32, n: 24, stride: 1 });
        LaneOp::PushPlace { stack: PLACES, at: StackPlace::default(), offset, index }
    }

    fn add(dst: RowId, a: RowId, b: RowId) -> LaneOp {
        let op = ScalarOp { op: prim::ADD, operand: DType::I32, result: DType::I32 };
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
        // The index, or what it is a sum of, changes.
        assert_eq!(lengths(vec![place(0, 1), add(1, 4, 10), place(1, 1)]), [1, 1]);
        assert_eq!(lengths(vec![next(1), sum(2, 1), add(1, 4, 10), next(2)]), [1, 1]);
        assert_eq!(lengths(vec![next(1), sum(2, 1), add(2, 2, 11), next(2)]), [1, 1]);
    }
}
