//! The numbers of elements of the lanes' stacks, as rows.
//!
//! A row has the number of elements of a stack in each lane, as 32 bits. Loops push most values
//! together, and pop them together, so many stacks always have as many elements as others. Such
//! stacks share a row, which changes once for all of them: after the last push of a basic block,
//! and before the first pop.

use super::program::{LaneOp, LaneProgram, RowId, RowInfo, RowStart, StackPart};
use crate::cpu::kernels::ScalarOp;
use crate::cpu::kernels::functions::function;
use anabranch_dsl::DType;
use anabranch_dsl::ops::{Prim, prim};
use rustc_hash::FxHashMap;

/// A change of a stack by an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum StackChange {
    Push,
    Pop,
    Clear,
}

/// The changes of a stack in a basic block: the index of the block, their kind and their number.
type BlockChange = (usize, StackChange, u32);

/// Calls a function with each stack that an operation changes.
fn each_change(op: &LaneOp, f: &mut dyn FnMut(u16, StackChange)) {
    match *op {
        LaneOp::Push { stack, .. } | LaneOp::PushPlace { stack, .. } => f(stack, StackChange::Push),
        LaneOp::Pop { stack, .. } => f(stack, StackChange::Pop),
        LaneOp::Clear { stack } => f(stack, StackChange::Clear),
        _ => {}
    }
}

/// Returns the changes of each stack, or `None` for a stack that one basic block changes in several
/// ways.
fn changes(program: &LaneProgram) -> Vec<Option<Vec<BlockChange>>> {
    let mut all: Vec<Option<Vec<BlockChange>>> = vec![Some(Vec::new()); program.stacks.len()];
    for (b, block) in program.blocks.iter().enumerate() {
        for op in &block.ops {
            each_change(op, &mut |stack, change| {
                let Some(changes) = &mut all[usize::from(stack)] else { return };
                match changes.last_mut() {
                    Some((last, known, n)) if *last == b && *known == change => *n += 1,
                    Some((last, ..)) if *last == b => all[usize::from(stack)] = None,
                    _ => changes.push((b, change, 1)),
                }
            });
        }
    }
    all
}

/// The operations of one basic block on the stacks of a row.
#[derive(Clone, Copy, Debug, Default)]
struct BlockUse {
    /// The operations that are left.
    left: u32,
    /// Whether the row has changed, for pops.
    has_changed: bool,
}

struct Rewriter<'a> {
    program: &'a mut LaneProgram,
    /// The rows of constants.
    constants: FxHashMap<u32, RowId>,
    ops: Vec<LaneOp>,
}

impl Rewriter<'_> {
    fn constant(&mut self, x: u32) -> RowId {
        let rows = &mut self.program.rows;
        *self.constants.entry(x).or_insert_with(|| {
            let start = RowStart::Constant(u64::from(x));
            rows.push(RowInfo { size: size_of::<u32>(), start, is_kept: false });
            rows.len() as RowId - 1
        })
    }

    /// Adds an operation that changes a row by a number.
    fn change(&mut self, op: Prim, depth: RowId, n: u32) {
        let of_integers = ScalarOp { op, operand: DType::I32, result: DType::I32 };
        let f = function(op, DType::I32, DType::I32).expect("integers have it");
        let args = [depth, self.constant(n), depth];
        self.ops.push(LaneOp::Function { f: f.block, checked: None, op: of_integers, dst: depth, args });
    }
    /// Adds the operations of a basic block, with those that change rows.
    fn block(&mut self, b: usize, ops: Vec<LaneOp>, changes: &[Option<Vec<BlockChange>>]) {
        // For each row the operations on its stacks, and for each stack how many there were.
        let mut of_rows: FxHashMap<RowId, BlockUse> = FxHashMap::default();
        let mut of_stacks: FxHashMap<u16, u32> = FxHashMap::default();
        for op in &ops {
            each_change(op, &mut |stack, _| {
                of_rows.entry(self.program.stacks[usize::from(stack)].depth).or_default().left += 1;
            });
        }
        for mut op in ops {
            let mut changed = None;
            each_change(&op, &mut |stack, change| changed = changed.or(Some((stack, change))));
            let Some((stack, change)) = changed else {
                self.ops.push(op);
                continue;
            };
            let depth = self.program.stacks[usize::from(stack)].depth;
            // The number of operations on the stack before the row changes, and those before this.
            let at_once = changes[usize::from(stack)].as_ref().map(|changes| {
                let here = changes.iter().find(|&&(block, ..)| block == b);
                here.expect("the basic block changes the stack").2
            });
            let before = of_stacks.entry(stack).or_default();
            let (n, k) = at_once.map_or((1, 0), |n| (n, *before));
            *before += 1;
            let of_row = of_rows.get_mut(&depth).expect("it was counted");
            each_change(&op, &mut |_, _| of_row.left -= 1);
            let (is_last, is_first) = (of_row.left == 0, !std::mem::replace(&mut of_row.has_changed, true));
            match change {
                StackChange::Push => {
                    set_place(&mut op, depth, k, n);
                    self.ops.push(op);
                    if is_last || at_once.is_none() {
                        self.change(prim::ADD, depth, n);
                    }
                }
                StackChange::Pop => {
                    if is_first || at_once.is_none() {
                        self.change(prim::SUB, depth, n);
                    }
                    set_place(&mut op, depth, n - 1 - k, n);
                    self.ops.push(op);
                }
                StackChange::Clear => {
                    if is_first || at_once.is_none() {
                        let src = self.constant(0);
                        self.ops.push(LaneOp::Move { dst: depth, src });
                    }
                }
            }
        }
    }
}

fn set_place(op: &mut LaneOp, depth: RowId, above: u32, n: u32) {
    if let LaneOp::Push { at, .. } | LaneOp::Pop { at, .. } | LaneOp::PushPlace { at, .. } = op {
        (at.depth, at.above, at.n) = (depth, above, n);
    }
}

/// Gives each stack a row with the number of its elements, and adds the operations that change it.
pub(super) fn set_depths(program: &mut LaneProgram) {
    let changes = changes(program);
    let mut rows: FxHashMap<(&[BlockChange], StackPart), RowId> = FxHashMap::default();
    for (stack, changes) in program.stacks.iter_mut().zip(&changes) {
        let mut new_row = || {
            program.rows.push(RowInfo { size: size_of::<u32>(), start: RowStart::Nothing, is_kept: true });
            program.rows.len() as RowId - 1
        };
        stack.depth = match changes {
            Some(changes) => *rows.entry((changes, stack.part)).or_insert_with(new_row),
            None => new_row(),
        };
    }
    let blocks = std::mem::take(&mut program.blocks);
    let mut rewriter = Rewriter { program, constants: FxHashMap::default(), ops: Vec::new() };
    let blocks = blocks.into_iter().enumerate().map(|(b, mut block)| {
        rewriter.block(b, std::mem::take(&mut block.ops), &changes);
        block.ops = std::mem::take(&mut rewriter.ops);
        block
    });
    let blocks = blocks.collect();
    rewriter.program.blocks = blocks;
}
