//! Parallel execution of heavy, independent tensor operations.
//!
//! A matmul of medium size is too small to be divided among all threads, and the tiles of a large
//! matmul do not finish at the same time. Contractions in straight-line code whose cost is at least
//! [`HEAVY`], such as the query, key and value projections or the two matmuls of a gradient,
//! are therefore merged into one item whose operations run in parallel.
//!
//! The item is placed where its first operation was. Items that a later one of its operations
//! depends on, such as packing, move before it. All others stay after it in order. Only operations
//! that cannot fail move, and only by [`REACH`] items, so live ranges grow little. Results do not
//! depend on what runs in parallel.

use super::draft::{AccessKind, Draft, Item};
use super::{Instr, TensorOp, TensorOpId};
use crate::cpu::kernels::Kernel;
use crate::cpu::memory::MAX_WRITTEN;
use crate::cpu::memory::Storage;
use rustc_hash::{FxHashMap, FxHashSet};

/// Minimum multiplications and additions of a heavy operation, about 10 µs, which exceeds the
/// wake-up of a thread.
const HEAVY: f64 = (2 << 20) as f64;
/// Maximum distance in items from a heavy operation to others that may join it.
const REACH: usize = 24;

/// Merges operations that may run in parallel into items.
pub(super) fn join_ops(draft: &mut Draft) {
    let mut writes: FxHashMap<Storage, usize> = FxHashMap::default();
    for item in &draft.items {
        draft.touches(item, &mut |storage, touch| {
            if touch == AccessKind::Write {
                *writes.entry(storage).or_default() += 1;
            }
        });
    }
    // Straight-line code ends at labels, at jumps and before loops. Items to which loops and
    // branches refer by position therefore do not move.
    let mut ends = vec![false; draft.items.len() + 1];
    draft.labels.iter().for_each(|&l| ends[l as usize] = true);
    for (p, item) in draft.items.iter().enumerate() {
        if let Item::Ops(_) | Item::Instr(Instr::Jump { .. } | Instr::JumpIf { .. } | Instr::JumpUnless { .. }) = item {
            ends[p] = true;
        }
    }
    let mut p = 0;
    while p < draft.items.len() {
        if heavy(draft, p).is_some() {
            let reach = (p + REACH).min(draft.items.len());
            let until = (p + 1..reach).find(|&q| ends[q]).unwrap_or(reach);
            p += join_at(draft, p, until, &writes);
        }
        p += 1;
    }
}

/// Returns whether an operation is worth its own thread.
pub(super) fn is_heavy(op: &TensorOp) -> bool {
    op.cost.operations >= HEAVY
}

/// Returns the heavy operation of an item, or `None` for any other item.
fn heavy(draft: &Draft, p: usize) -> Option<TensorOpId> {
    match draft.items[p] {
        Item::Instr(Instr::Run(op)) if is_heavy(draft.op(op)) => Some(op),
        _ => None,
    }
}

/// The storage that an item accesses.
struct Touched {
    reads: Vec<Storage>,
    writes: Vec<Storage>,
}

impl Touched {
    fn by(draft: &Draft, p: usize) -> Touched {
        let mut touched = Touched { reads: Vec::new(), writes: Vec::new() };
        draft.touches(&draft.items[p], &mut |storage, touch| match touch {
            AccessKind::Read => touched.reads.push(storage),
            AccessKind::Write => touched.writes.push(storage),
        });
        touched
    }
}

/// Joins a heavy operation with independent operations before item `until`. Returns by how many
/// items it moved.
fn join_at(draft: &mut Draft, first: usize, until: usize, writes: &FxHashMap<Storage, usize>) -> usize {
    // Storage written by these operations, or by an item that stays after them. The readers of that
    // storage stay, too.
    let mut behind: FxHashSet<Storage> = Touched::by(draft, first).writes.into_iter().collect();
    // Items that may move before these operations, by the storage they write.
    let mut movable: FxHashMap<Storage, usize> = FxHashMap::default();
    let mut ops = vec![first];
    let mut before: Vec<usize> = Vec::new();
    for p in first + 1..until {
        let touched = Touched::by(draft, p);
        let once = |s: &Storage| writes.get(s) == Some(&1);
        let moves = moves_freely(draft, p)
            && touched.writes.iter().all(once)
            && !touched.reads.iter().any(|s| behind.contains(s));
        if moves && heavy(draft, p).is_some() && ops.len() < MAX_WRITTEN {
            let mut needed: Vec<usize> = touched.reads.iter().filter_map(|s| movable.get(s).copied()).collect();
            while let Some(q) = needed.pop() {
                if !before.contains(&q) {
                    before.push(q);
                    needed.extend(Touched::by(draft, q).reads.iter().filter_map(|s| movable.get(s).copied()));
                }
            }
            ops.push(p);
            behind.extend(touched.writes);
        } else if moves && heavy(draft, p).is_none() {
            movable.extend(touched.writes.into_iter().map(|s| (s, p)));
        } else {
            behind.extend(touched.writes);
        }
    }
    let &[_, .., last] = &ops[..] else { return 0 };
    before.sort_unstable();
    let joined = ops.iter().map(|&p| heavy(draft, p).expect("the cost was computed above")).collect();
    let stay = (first..=last).filter(|p| !ops.contains(p) && !before.contains(p));
    let order: Vec<usize> = before.iter().copied().chain(stay).collect();
    let moved = order.iter().map(|&p| (draft.items[p].clone(), draft.scalar_ops[p])).collect::<Vec<_>>();
    let (moved_before, stayed) = moved.split_at(before.len());
    let empty = std::iter::repeat_n((Item::Moves(Vec::new()), None), ops.len() - 1);
    let all =
        moved_before.iter().cloned().chain([(Item::Ops(joined), None)]).chain(stayed.iter().cloned()).chain(empty);
    for (p, (item, op)) in (first..=last).zip(all) {
        (draft.items[p], draft.scalar_ops[p]) = (item, op);
    }
    before.len()
}

/// Returns whether an item may run earlier, if its operands permit. Such an item only computes and
/// cannot fail.
fn moves_freely(draft: &Draft, p: usize) -> bool {
    let Item::Instr(Instr::Run(op)) = draft.items[p] else { return false };
    match &draft.op(op).kernel {
        Kernel::Map(map) => map.is_total(),
        Kernel::Copy(_) | Kernel::Reduce(_) | Kernel::MapReduce(_) | Kernel::Rows(_) | Kernel::Pack(_) => true,
        kernel => kernel.is_contraction(),
    }
}
