//! Basic blocks that are joined, so that lanes are sent apart and together less often.

use super::program::{BasicBlock, BlockEnd, LaneOp, RowId, RowInfo};

/// Returns the basic blocks that may follow one.
fn successors(end: BlockEnd) -> impl Iterator<Item = u16> {
    let (first, second) = match end {
        BlockEnd::Jump(to) => (to, None),
        BlockEnd::Branch { to, otherwise, .. } => (to, Some(otherwise)),
    };
    std::iter::once(first).chain(second)
}

/// Joins branches without loops inside, and basic blocks that always follow each other, to one
/// basic block each. Joined blocks are removed.
pub(super) fn join_blocks(blocks: &mut Vec<BasicBlock>) {
    let end = blocks.len() as u16;
    let mut n_before = vec![0u32; blocks.len() + 1];
    n_before[0] = 1;
    blocks.iter().for_each(|block| successors(block.end).for_each(|to| n_before[usize::from(to)] += 1));
    let mut is_joined = vec![false; blocks.len()];
    // Inner branches come after the block that ends with an outer one.
    for here in (0..blocks.len()).rev() {
        loop {
            // A block that only this one leads to, with the one that it always leads to.
            let follows = |to: u16, blocks: &[BasicBlock]| match blocks.get(usize::from(to)).map(|block| block.end) {
                Some(BlockEnd::Jump(next)) if n_before[usize::from(to)] == 1 && usize::from(to) > here => Some(next),
                _ => None,
            };
            match blocks[here].end {
                BlockEnd::Jump(to) if to < end && n_before[usize::from(to)] == 1 && usize::from(to) > here => {
                    let to = usize::from(to);
                    let ops = std::mem::take(&mut blocks[to].ops);
                    blocks[here].ops.extend(ops);
                    blocks[here].end = blocks[to].end;
                    is_joined[to] = true;
                }
                BlockEnd::Branch { cond, when, to, otherwise } if to != otherwise => {
                    let next = [follows(to, blocks), follows(otherwise, blocks)];
                    let (arms, next) = match next {
                        [Some(a), Some(b)] if a == b => ([Some(to), Some(otherwise)], a),
                        [Some(a), _] if a == otherwise => ([Some(to), None], otherwise),
                        [_, Some(b)] if b == to => ([None, Some(otherwise)], to),
                        _ => break,
                    };
                    let mut arms = arms.map(|arm| {
                        arm.map_or_else(Vec::new, |arm| {
                            is_joined[usize::from(arm)] = true;
                            std::mem::take(&mut blocks[usize::from(arm)].ops)
                        })
                        .into_boxed_slice()
                    });
                    if !when {
                        arms.reverse();
                    }
                    blocks[here].ops.push(LaneOp::Branches { cond, arms });
                    blocks[here].end = BlockEnd::Jump(next);
                    // Both ways lead there, and are one now.
                    n_before[usize::from(next)] -= 1;
                }
                _ => break,
            }
        }
    }
    let mut index = vec![0; blocks.len() + 1];
    let mut n = 0;
    for (i, &joined) in is_joined.iter().chain([&false]).enumerate() {
        index[i] = n;
        n += u16::from(!joined);
    }
    let mut joined = is_joined.into_iter();
    blocks.retain(|_| !joined.next().expect("there is one for each block"));
    for block in blocks {
        match &mut block.end {
            BlockEnd::Jump(to) => *to = index[usize::from(*to)],
            BlockEnd::Branch { to, otherwise, .. } => {
                [to, otherwise].into_iter().for_each(|to| *to = index[usize::from(*to)]);
            }
        }
    }
}

/// Returns whether a basic block that leads back to a loop changes nothing when it runs again.
pub(super) fn can_run_again(block: &BasicBlock, rows: &[RowInfo]) -> bool {
    let mut read: Vec<RowId> = Vec::new();
    block.ops.iter().all(|op| {
        let (args, dst) = match op {
            LaneOp::Function { args, dst, .. } => (*args, *dst),
            LaneOp::Move { src, dst } | LaneOp::DividePower { a: src, dst, .. } => ([*src; 3], *dst),
            _ => return false,
        };
        read.extend(args);
        !rows[usize::from(dst)].is_kept || !read.contains(&dst)
    })
}
