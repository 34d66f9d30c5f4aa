//! Heavy steps that do not depend on each other run at once.
//!
//! A product of medium size is too small to be cut into parts for all threads, and the parts of a large one do not all end at the same time. So steps
//! of straight code whose work is at least [`HEAVY`], such as the products with the matrices of queries, keys and values, or the
//! two products of a gradient, become one item, and its steps are given to the threads together.
//!
//! Such an item stands where its first step stood. What a later one of its steps needs, as its packed matrix, moves before it; all else stays
//! behind it, in its order. Only steps that cannot fail move, and only [`REACH`] items far, so that little memory is used earlier than without.
//! What a step computes does not depend on what runs beside it.

use super::draft::{Draft, Item, Storage, Touch};
use super::{Instr, Step, StepId};
use crate::cpu::kernels::Kernel;
use crate::cpu::memory::MAX_WRITTEN;
use std::collections::{HashMap, HashSet};

/// Multiplications from which on a step is heavy: some ten microseconds, which is more than waking a thread takes.
const HEAVY: usize = 1 << 20;
/// How many items behind a heavy step others are looked for.
const REACH: usize = 24;

/// Makes items of steps that may run at once.
pub(super) fn join_steps(draft: &mut Draft) {
    let mut writes: HashMap<Storage, usize> = HashMap::new();
    for item in &draft.items {
        draft.touches(item, &mut |storage, touch| {
            if touch == Touch::Write {
                *writes.entry(storage).or_default() += 1;
            }
        });
    }
    // Straight code ends at labels and jumps, and before loops: so the items that loops and branches know by their places stay where they are.
    let mut ends = vec![false; draft.items.len() + 1];
    draft.labels.iter().for_each(|&l| ends[l as usize] = true);
    for (p, item) in draft.items.iter().enumerate() {
        if let Item::Steps(_) | Item::Instr(Instr::Jump { .. } | Instr::JumpIf { .. } | Instr::JumpUnless { .. }) = item
        {
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

/// Whether a step is worth a thread of its own.
pub(super) fn is_heavy(step: &Step) -> bool {
    step.kernel.multiplications() >= HEAVY
}

/// The heavy step that an item is.
fn heavy(draft: &Draft, p: usize) -> Option<StepId> {
    match draft.items[p] {
        Item::Instr(Instr::Run(step)) if is_heavy(draft.step(step)) => Some(step),
        _ => None,
    }
}

/// What an item touches.
struct Touched {
    reads: Vec<Storage>,
    writes: Vec<Storage>,
}

impl Touched {
    fn by(draft: &Draft, p: usize) -> Touched {
        let mut touched = Touched { reads: Vec::new(), writes: Vec::new() };
        draft.touches(&draft.items[p], &mut |storage, touch| match touch {
            Touch::Read => touched.reads.push(storage),
            Touch::Write => touched.writes.push(storage),
        });
        touched
    }
}

/// Joins a heavy step with those before item `until` that may run beside it. Returns by how many items it moved.
fn join_at(draft: &mut Draft, first: usize, until: usize, writes: &HashMap<Storage, usize>) -> usize {
    // What the steps or an item that stays behind them writes: what reads it stays behind, too.
    let mut behind: HashSet<Storage> = Touched::by(draft, first).writes.into_iter().collect();
    // Items that may move before the steps, by what they write.
    let mut movable: HashMap<Storage, usize> = HashMap::new();
    let mut steps = vec![first];
    let mut before: Vec<usize> = Vec::new();
    for p in first + 1..until {
        let touched = Touched::by(draft, p);
        let once = |s: &Storage| writes.get(s) == Some(&1);
        let moves = moves_freely(draft, p)
            && touched.writes.iter().all(once)
            && !touched.reads.iter().any(|s| behind.contains(s));
        if moves && heavy(draft, p).is_some() && steps.len() < MAX_WRITTEN {
            let mut needed: Vec<usize> = touched.reads.iter().filter_map(|s| movable.get(s).copied()).collect();
            while let Some(q) = needed.pop() {
                if !before.contains(&q) {
                    before.push(q);
                    needed.extend(Touched::by(draft, q).reads.iter().filter_map(|s| movable.get(s).copied()));
                }
            }
            steps.push(p);
            behind.extend(touched.writes);
        } else if moves && heavy(draft, p).is_none() {
            movable.extend(touched.writes.into_iter().map(|s| (s, p)));
        } else {
            behind.extend(touched.writes);
        }
    }
    let &[_, .., last] = &steps[..] else { return 0 };
    before.sort_unstable();
    let joined = steps.iter().map(|&p| heavy(draft, p).expect("looked at above")).collect();
    let stay = (first..=last).filter(|p| !steps.contains(p) && !before.contains(p));
    let order: Vec<usize> = before.iter().copied().chain(stay).collect();
    let moved = order.iter().map(|&p| (draft.items[p].clone(), draft.ops[p])).collect::<Vec<_>>();
    let (moved_before, stayed) = moved.split_at(before.len());
    let empty = std::iter::repeat_n((Item::Moves(Vec::new()), None), steps.len() - 1);
    let all =
        moved_before.iter().cloned().chain([(Item::Steps(joined), None)]).chain(stayed.iter().cloned()).chain(empty);
    for (p, (item, op)) in (first..=last).zip(all) {
        (draft.items[p], draft.ops[p]) = (item, op);
    }
    before.len()
}

/// Whether an item may run earlier than it stands, as far as its operands allow: it does nothing but compute, and cannot fail.
fn moves_freely(draft: &Draft, p: usize) -> bool {
    let Item::Instr(Instr::Run(step)) = draft.items[p] else { return false };
    match &draft.step(step).kernel {
        Kernel::Map(map) => map.is_total(),
        Kernel::Copy(_) | Kernel::Reduce(_) | Kernel::MapReduce(_) | Kernel::Rows(_) | Kernel::Pack(_) => true,
        kernel => kernel.multiplications() > 0,
    }
}
