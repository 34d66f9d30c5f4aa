//! Stages of a row kernel that are computed together, tile by tile.
//!
//! A [`TilePass`] consists of consecutive stages whose values are chains of one float type, and
//! their reductions. Its instructions are those of the [chains](super::chain), on tiles of a few
//! vectors of one row. So each element of a row is read once for all of these stages.
//!
//! A stage that reads what a reduction of rows yields begins another pass. Results are bitwise
//! identical to those of the stages one by one: the lanes of a row are those of
//! [`ReduceLoops`](super::reduce::ReduceLoops), and columns get the rows in their order.

use super::chain::{self, Chain, Opcode, With};
use super::elementwise::Arg;
use super::reduce::{LANES, PartialResults, Reduction};
use super::rows::{MAX_STAGES, RowStage, RowStageDest, RowStageInput, RowStageKind};
use super::walk::{Axis, merged};
use crate::cpu::memory::View;
use crate::cpu::vector::{InstructionSet, Lane, Task, Vector, prefetch_for_later};
use anabranch_dsl::DType;
use std::mem::MaybeUninit;
use std::ops::Range;

/// The number of vectors of a tile. All lanes of a row fill at most so many.
const VECTORS: usize = 8;

/// Minimum number of elements of a row that is worth tiles.
const MIN_WIDTH: usize = 64;

/// The same for a single chain, which saves no pass, but goes over a row without dividing it.
const MIN_WIDTH_OF_MAP: usize = 256;

/// Maximum number of reductions of rows in a pass.
const MAX_REDUCTIONS: usize = 4;

/// Maximum numbers of instructions of a pass, and of values that stay within a tile.
const MAX_INSTRS: usize = 48;
const MAX_TEMPS: usize = 8;

/// Where an instruction finds elements.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TileOperand {
    Nothing,
    Number(f64),
    /// Elements of each row, `stride` elements after those of the row before, which may be 0.
    Rows {
        from: ElementsOf,
        offset: usize,
        stride: usize,
    },
    /// One element for each row.
    Ones {
        from: ElementsOf,
        offset: usize,
        stride: usize,
    },
    /// Elements of the tile alone.
    Temp(u8),
}

/// The owner of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElementsOf {
    /// An operand of the kernel, with all rows.
    Operand(u8),
    /// A stage, with the rows of the block.
    Stage(u8),
}

/// The operation of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TileOpcode {
    /// An instruction of a chain.
    Chain(Opcode),
    /// Combines the accumulator with the lanes of a reduction of rows.
    Reduce { slot: u8, by: FloatCombine },
    /// Combines the accumulator with columns, row by row.
    Columns(FloatCombine),
}

/// The reductions of floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FloatCombine {
    Add,
    Mul,
    Larger,
    Smaller,
}

impl FloatCombine {
    fn of(reduction: Reduction) -> Option<FloatCombine> {
        Some(match reduction {
            Reduction::Sum => FloatCombine::Add,
            Reduction::Prod => FloatCombine::Mul,
            Reduction::Max => FloatCombine::Larger,
            Reduction::Min => FloatCombine::Smaller,
            Reduction::All | Reduction::Any => return None,
        })
    }

    /// Returns the number with which the lanes of a reduction begin.
    fn start(self) -> f64 {
        match self {
            FloatCombine::Add => 0.0,
            FloatCombine::Mul => 1.0,
            FloatCombine::Larger => f64::NEG_INFINITY,
            FloatCombine::Smaller => f64::INFINITY,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct TileInstr {
    opcode: TileOpcode,
    operand: TileOperand,
}

/// A reduction of rows: its stage, how it combines, and the function that yields its result.
#[derive(Clone, Copy, Debug)]
struct RowReduction {
    stage: u8,
    by: FloatCombine,
    total: fn(&PartialResults, &mut [u8]),
}

/// Consecutive stages; see the [module](self).
#[derive(Clone, Debug)]
pub(super) struct TilePass {
    stages: Range<usize>,
    instrs: Vec<TileInstr>,
    /// The stages that reduce rows, with how they do.
    reductions: Vec<RowReduction>,
    /// The instructions whose operands are prefetched for the next block of rows.
    ahead: Vec<usize>,
    dtype: DType,
    width: usize,
    instruction_set: InstructionSet,
}

/// The memory of a block of rows.
pub(super) struct TileMemory<'a, 's, 'v> {
    /// The bytes of an operand of the kernel.
    pub(super) operand: &'a dyn Fn(usize) -> &'s [u8],
    /// The values of the stages for the rows of the block.
    pub(super) stages: &'a mut [&'v mut [u8]],
    /// The first row of the block among all rows.
    pub(super) first: usize,
}

impl TilePass {
    /// Returns the longest pass from a stage on, if there is one. `n_rows` is the number of all
    /// rows of the kernel, and `width` that of their elements.
    pub(super) fn of(stages: &[RowStage], first: usize, n_rows: usize, width: usize) -> Option<TilePass> {
        if width < MIN_WIDTH || !width.is_multiple_of(LANES) {
            return None;
        }
        let dtype = stages[first].float_type()?;
        let (instrs, reductions, ahead, instruction_set) = (Vec::new(), Vec::new(), Vec::new(), InstructionSet::best());
        let mut pass = TilePass { stages: first..first, instrs, reductions, ahead, dtype, width, instruction_set };
        while pass.stages.end < stages.len() && pass.add(stages, n_rows).is_some() {
            pass.stages.end += 1;
        }
        let is_worth = match (pass.stages.len(), &stages[first].work) {
            (0, _) => false,
            // Rows alone are added four at a time.
            (1, RowStageKind::Reduce(reduce)) => !reduce.ops().is_empty(),
            (1, RowStageKind::Map(_)) => width >= MIN_WIDTH_OF_MAP,
            _ => true,
        };
        is_worth.then_some(pass)
    }

    /// Adds the next stage. Returns `None`, and changes nothing, if it does not belong to the pass.
    fn add(&mut self, stages: &[RowStage], n_rows: usize) -> Option<()> {
        let (k, width) = (self.stages.end, self.width);
        let stage = &stages[k];
        if stage.float_type() != Some(self.dtype) {
            return None;
        }
        let operand = |i: usize| -> Option<TileOperand> {
            if stage.views[i].dtype != self.dtype {
                return None;
            }
            match stage.inputs[i] {
                RowStageInput::Operand(j) => operand_of(&stage.views[i], j, n_rows, width),
                // A reduction is complete after the pass.
                RowStageInput::Value(s) if usize::from(s) >= self.stages.start && stages[s as usize].width != width => {
                    None
                }
                RowStageInput::Value(s) | RowStageInput::Before(s) => {
                    let from = ElementsOf::Stage(s);
                    Some(match stages[s as usize].width == width {
                        true => TileOperand::Rows { from, offset: 0, stride: width },
                        false => TileOperand::Ones { from, offset: 0, stride: 1 },
                    })
                }
            }
        };
        let (ops, at_end) = match &stage.work {
            RowStageKind::Map(map) if stage.width == width => {
                let rows = TileOperand::Rows { from: ElementsOf::Stage(k as u8), offset: 0, stride: width };
                (map.ops(), TileInstr { opcode: TileOpcode::Chain(Opcode::Store), operand: rows })
            }
            RowStageKind::Reduce(reduce) => {
                let by = FloatCombine::of(reduce.reduction())?;
                (
                    reduce.ops(),
                    match stage.to {
                        RowStageDest::Columns { .. } => {
                            let columns = TileOperand::Rows { from: ElementsOf::Stage(k as u8), offset: 0, stride: 0 };
                            TileInstr { opcode: TileOpcode::Columns(by), operand: columns }
                        }
                        _ => {
                            let opcode = TileOpcode::Reduce { slot: self.reductions.len() as u8, by };
                            TileInstr { opcode, operand: TileOperand::Nothing }
                        }
                    },
                )
            }
            _ => return None,
        };
        let last = ops.len().wrapping_sub(1);
        let mut temps: Vec<u8> = Vec::new();
        let mut own = Vec::new();
        if ops.is_empty() {
            own.push(TileInstr { opcode: TileOpcode::Chain(Opcode::Load), operand: operand(0)? });
        } else {
            let (chain, n) = Chain::of(ops, 0, |op| op == last);
            if n != ops.len() {
                return None;
            }
            let (end, instrs) = chain.instrs().split_last().expect("a chain has a result");
            debug_assert_eq!(end.opcodes[0], Opcode::Store);
            for instr in instrs {
                let operand = match instr.with {
                    With::Nothing => TileOperand::Nothing,
                    With::Number(x) => TileOperand::Number(x),
                    With::Value(Arg::Operand(i)) => operand(i as usize)?,
                    With::Value(Arg::Result(op)) => {
                        let temp = temps.iter().position(|&of| of == op).unwrap_or_else(|| {
                            temps.push(op);
                            temps.len() - 1
                        });
                        TileOperand::Temp(temp as u8)
                    }
                };
                let [many, one] = instr.opcodes;
                let is_many = matches!(operand, TileOperand::Rows { .. } | TileOperand::Temp(_));
                own.push(TileInstr { opcode: TileOpcode::Chain(if is_many { many } else { one }), operand });
            }
        }
        own.push(at_end);
        // The accumulator has what was stored last.
        if let (Some(TileInstr { opcode: TileOpcode::Chain(Opcode::Store), operand: stored }), [first, ..]) =
            (self.instrs.last(), &own[..])
            && (first.opcode, first.operand) == (TileOpcode::Chain(Opcode::Load), *stored)
        {
            own.remove(0);
        }
        let reduction = match (at_end.opcode, &stage.work) {
            (TileOpcode::Reduce { by, .. }, RowStageKind::Reduce(reduce)) => {
                Some(RowReduction { stage: k as u8, by, total: reduce.total() })
            }
            _ => None,
        };
        if self.instrs.len() + own.len() > MAX_INSTRS
            || temps.len() > MAX_TEMPS
            || self.reductions.len() + usize::from(reduction.is_some()) > MAX_REDUCTIONS
        {
            return None;
        }
        self.instrs.extend(own);
        self.reductions.extend(reduction);
        Some(())
    }

    /// Prefetches the rows of operands and results for the next block, up to their last whole tile,
    /// while those of a block are computed. Processors prefetch within pages of memory by
    /// themselves, and a row is often as long as one. `prefetched` are those that other passes
    /// prefetch.
    pub(super) fn prefetch_next_block(&mut self, stages: &[RowStage], prefetched: &mut Vec<ElementsOf>) {
        for (k, instr) in self.instrs.iter().enumerate() {
            let TileOperand::Rows { from, stride: 1.., .. } = instr.operand else { continue };
            let is_of_all_rows = match from {
                ElementsOf::Operand(_) => true,
                ElementsOf::Stage(s) => matches!(stages[usize::from(s)].to, RowStageDest::Out(_)),
            };
            if is_of_all_rows && !prefetched.contains(&from) {
                prefetched.push(from);
                self.ahead.push(k);
            }
        }
    }

    /// Returns the stages.
    pub(super) fn stages(&self) -> Range<usize> {
        self.stages.clone()
    }

    /// Computes the stages for the `n` rows of a block.
    pub(super) fn run(&self, n: usize, memory: TileMemory<'_, '_, '_>) {
        match self.dtype {
            DType::F32 => self.run_as::<f32>(n, memory),
            DType::F64 => self.run_as::<f64>(n, memory),
            other => panic!("tiles of {other}"),
        }
    }

    fn run_as<T: Lane>(&self, n: usize, memory: TileMemory<'_, '_, '_>) {
        // Each stage is borrowed once, so that all places in it stay valid.
        let mut stages = [(std::ptr::null_mut(), 0); MAX_STAGES];
        for (of, bytes) in stages.iter_mut().zip(memory.stages.iter_mut()) {
            *of = (bytes.as_mut_ptr(), bytes.len());
        }
        let mut places = [TilePlace { at: std::ptr::null_mut(), stride: 0 }; MAX_INSTRS];
        for (place, instr) in places.iter_mut().zip(&self.instrs) {
            let (from, offset, stride, width) = match instr.operand {
                TileOperand::Rows { from, offset, stride } => (from, offset, stride, self.width),
                TileOperand::Ones { from, offset, stride } => (from, offset, stride, 1),
                TileOperand::Nothing | TileOperand::Number(_) | TileOperand::Temp(_) => continue,
            };
            let (at, len, first) = match from {
                ElementsOf::Operand(i) => {
                    let bytes = (memory.operand)(usize::from(i));
                    (bytes.as_ptr().cast_mut(), bytes.len(), memory.first)
                }
                ElementsOf::Stage(s) => (stages[usize::from(s)].0, stages[usize::from(s)].1, 0),
            };
            let start = offset + first * stride;
            let end = start + (n - 1) * stride + width;
            assert!(end * size_of::<T>() <= len, "the rows are in their memory");
            *place = TilePlace { at: at.cast::<T>().wrapping_add(start), stride };
        }
        let mut totals = |slot: usize, row: usize, lanes: &[T; LANES]| {
            let RowReduction { stage, total, .. } = self.reductions[slot];
            let out = &mut memory.stages[usize::from(stage)][row * size_of::<T>()..][..size_of::<T>()];
            total(&PartialResults::of_lanes(bytemuck::cast_slice(lanes)), out);
        };
        self.instruction_set.run(Tiles { pass: self, places: &places, n_rows: n, totals: &mut totals });
    }
}

/// Returns how a pass reads an operand of the kernel.
fn operand_of(view: &View, operand: u8, n_rows: usize, width: usize) -> Option<TileOperand> {
    let (from, offset) = (ElementsOf::Operand(operand), view.offset);
    let stride = |stride: isize| usize::try_from(stride).ok();
    Some(match merged(&view.shape, [&view.strides])[..] {
        [Axis { n, strides: [1] }] if n == n_rows * width => TileOperand::Rows { from, offset, stride: width },
        [Axis { n, strides: [0] }] if n == n_rows * width => TileOperand::Ones { from, offset, stride: 0 },
        [Axis { n: r, strides: [s] }, Axis { n: w, strides: [1] }] if (r, w) == (n_rows, width) => {
            TileOperand::Rows { from, offset, stride: stride(s)? }
        }
        [Axis { n: r, strides: [s] }, Axis { n: w, strides: [0] }] if (r, w) == (n_rows, width) => {
            TileOperand::Ones { from, offset, stride: stride(s)? }
        }
        _ => return None,
    })
}

/// Where the elements of the first row of a block are, and how far apart rows are.
#[derive(Clone, Copy)]
struct TilePlace<T> {
    at: *mut T,
    stride: usize,
}

/// An instruction with a resolved operand.
#[derive(Clone, Copy)]
struct BoundTileInstr<T> {
    opcode: TileOpcode,
    /// The elements of the row.
    at: *mut T,
    /// 1 if each tile has elements of its own, 0 if all have the same.
    step: usize,
    /// The only element.
    one: T,
}

/// The tiles of rows.
struct Tiles<'a, T> {
    pass: &'a TilePass,
    places: &'a [TilePlace<T>; MAX_INSTRS],
    n_rows: usize,
    /// Receives the lanes of a reduction of a row.
    totals: &'a mut dyn FnMut(usize, usize, &[T; LANES]),
}

impl<T: Lane> Task<T> for Tiles<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T = T>, const ROWS: usize, const COLUMNS: usize>(self) {
        let Tiles { pass, places, n_rows, totals } = self;
        let mut temps = [const { MaybeUninit::<[T; VECTORS * LANES]>::uninit() }; MAX_TEMPS];
        let mut bound = [const { MaybeUninit::<BoundTileInstr<T>>::uninit() }; MAX_INSTRS];
        // SAFETY: the caller guarantees that the processor supports the instructions.
        let mut reductions = unsafe { [[V::splat(T::default()); VECTORS]; MAX_REDUCTIONS] };
        for row in 0..n_rows {
            for ((bound, instr), place) in bound.iter_mut().zip(&pass.instrs).zip(places) {
                let opcode = instr.opcode;
                let one = |one| BoundTileInstr { opcode, at: std::ptr::null_mut(), step: 0, one };
                let many = |at, step| BoundTileInstr { opcode, at, step, one: T::default() };
                let at = place.at.wrapping_add(row * place.stride);
                bound.write(match instr.operand {
                    TileOperand::Nothing => one(T::default()),
                    TileOperand::Number(x) => one(T::default().number(x)),
                    TileOperand::Temp(t) => many(temps[usize::from(t)].as_mut_ptr().cast(), 0),
                    TileOperand::Rows { .. } => many(at, 1),
                    // SAFETY: the element of the row is in memory, as was checked.
                    TileOperand::Ones { .. } => one(unsafe { *at }),
                });
            }
            // SAFETY: the first `instrs.len()` elements were written. The caller guarantees that
            // the processor supports the instructions. Places were checked for all rows.
            unsafe {
                let instrs = bound[..pass.instrs.len()].assume_init_ref();
                for (lanes, reduction) in reductions.iter_mut().zip(&pass.reductions) {
                    lanes[..LANES / V::N].fill(V::splat(T::default().number(reduction.by.start())));
                }
                let mut k = 0;
                while k + VECTORS * V::N <= pass.width {
                    for &instr in &pass.ahead {
                        let TilePlace { at, stride } = places[instr];
                        prefetch_for_later(at.wrapping_add((row + n_rows) * stride + k), VECTORS * V::N);
                    }
                    tile::<V, VECTORS>(instrs, k, &mut reductions);
                    k += VECTORS * V::N;
                }
                while k < pass.width {
                    // As many vectors as all lanes.
                    match const { LANES / V::N } {
                        1 => tile::<V, 1>(instrs, k, &mut reductions),
                        2 => tile::<V, 2>(instrs, k, &mut reductions),
                        4 => tile::<V, 4>(instrs, k, &mut reductions),
                        _ => tile::<V, VECTORS>(instrs, k, &mut reductions),
                    }
                    k += LANES;
                }
                for (slot, lanes) in reductions[..pass.reductions.len()].iter().enumerate() {
                    let mut all = [T::default(); LANES];
                    for (v, lanes) in lanes[..LANES / V::N].iter().enumerate() {
                        lanes.store(all.as_mut_ptr().add(v * V::N));
                    }
                    totals(slot, row, &all);
                }
            }
        }
    }
}

/// Executes all instructions for the tile of `W` vectors from element `k` on.
///
/// # Safety
/// The processor must support the instructions of `V`. The operands of the instructions must be
/// valid for these elements. A tile consists of whole groups of [`LANES`].
#[inline(always)]
unsafe fn tile<V: Vector, const W: usize>(
    instrs: &[BoundTileInstr<V::T>],
    k: usize,
    reductions: &mut [[V; VECTORS]; MAX_REDUCTIONS],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut acc = [V::splat(V::T::default()); W];
        for instr in instrs {
            let at = instr.at.wrapping_add(k * instr.step);
            macro_rules! reduce {
                ($slot:expr, |$a:ident, $b:ident| $e:expr) => {{
                    let lanes = &mut reductions[usize::from($slot)];
                    for v in 0..W {
                        let lane = v % const { LANES / V::N };
                        let ($a, $b) = (lanes[lane], acc[v]);
                        lanes[lane] = $e;
                    }
                }};
            }
            macro_rules! columns {
                (|$a:ident, $b:ident| $e:expr) => {{
                    for v in 0..W {
                        let at = at.wrapping_add(v * V::N);
                        let ($a, $b) = (V::load(at), acc[v]);
                        $e.store(at);
                    }
                }};
            }
            match instr.opcode {
                TileOpcode::Chain(opcode) => chain::execute(opcode, &mut acc, at, instr.one),
                TileOpcode::Reduce { slot, by: FloatCombine::Add } => reduce!(slot, |a, b| a.add(b)),
                TileOpcode::Reduce { slot, by: FloatCombine::Mul } => reduce!(slot, |a, b| a.mul(b)),
                TileOpcode::Reduce { slot, by: FloatCombine::Larger } => reduce!(slot, |a, b| a.larger(b)),
                TileOpcode::Reduce { slot, by: FloatCombine::Smaller } => reduce!(slot, |a, b| a.smaller(b)),
                TileOpcode::Columns(FloatCombine::Add) => columns!(|a, b| a.add(b)),
                TileOpcode::Columns(FloatCombine::Mul) => columns!(|a, b| a.mul(b)),
                TileOpcode::Columns(FloatCombine::Larger) => columns!(|a, b| a.larger(b)),
                TileOpcode::Columns(FloatCombine::Smaller) => columns!(|a, b| a.smaller(b)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::elementwise::{Map, MapFn, MapOp};
    use super::super::functions::function;
    use super::super::map_reduce::{MapReduce, ReducedLayout};
    use super::super::rows::RowKernel;
    use super::*;
    use crate::cpu::element::bytes_of;
    use crate::cpu::memory::{Base, BufferId, TensorOperand};
    use crate::cpu::memory::{ExternalTensors, MAX_WRITTEN, Sources, Vars};
    use anabranch_dsl::HostTensor;
    use anabranch_dsl::ops::{Arity, Prim, prim};

    const OPS: [Prim; 8] =
        [prim::ADD, prim::SUB, prim::MUL, prim::DIV, prim::MAXIMUM, prim::RELU, prim::SQRT, prim::NEG];

    /// A generator of numbers below a bound.
    struct RandomNumbers(u64);
    impl RandomNumbers {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % n
        }
    }

    /// A kernel of random stages, and what it reads.
    struct RandomKernel {
        stages: Vec<RowStage>,
        inputs: Vec<HostTensor>,
        operands: Vec<TensorOperand>,
        /// The sizes of the results in elements.
        outs: Vec<usize>,
        /// The result that overwrites the second operand.
        before: Option<usize>,
    }

    fn random_kernel(random: &mut RandomNumbers, dtype: DType, rows: usize, width: usize) -> RandomKernel {
        let number = |random: &mut RandomNumbers| random.below(2000) as f64 / 100.0 - 9.0;
        let tensor = |random: &mut RandomNumbers, n: usize| {
            let numbers = (0..n).map(|_| number(random));
            match dtype {
                DType::F32 => HostTensor::new([n], numbers.map(|x| x as f32).collect::<Vec<_>>()),
                _ => HostTensor::new([n], numbers.collect::<Vec<_>>()),
            }
        };
        let inputs: Vec<HostTensor> =
            [rows * width, rows * width, width, rows, 1].into_iter().map(|n| tensor(random, n)).collect();
        // Rows, rows in another tensor, columns, an element of each row, one element.
        let w = width as isize;
        let strides = [[w, 1], [w, 1], [0, 1], [1, 0], [0, 0]];
        let all =
            |base, [a, b]: [isize; 2]| View { base, dtype, offset: 0, shape: vec![rows, width], strides: vec![a, b] };
        let operands: Vec<View> =
            strides.into_iter().enumerate().map(|(i, strides)| all(Base::Input(i as u32), strides)).collect();
        let (mut stages, mut outs): (Vec<RowStage>, Vec<usize>) = (Vec::new(), Vec::new());
        for _ in 0..1 + random.below(7) {
            let k = stages.len();
            let of_values = |s: usize| {
                let base = Base::Buffer(BufferId(s as u32));
                all(base, if stages[s].width == width { [w, 1] } else { [1, 0] })
            };
            let readable: Vec<usize> =
                (0..k).filter(|&s| !matches!(stages[s].to, RowStageDest::Columns { .. })).collect();
            let (mut views, mut places): (Vec<View>, Vec<RowStageInput>) = Default::default();
            for _ in 0..1 + random.below(3) {
                let (view, place) = match random.below(2) {
                    0 if !readable.is_empty() => {
                        let s = readable[random.below(readable.len())];
                        (of_values(s), RowStageInput::Value(s as u8))
                    }
                    _ => {
                        let i = random.below(operands.len());
                        (operands[i].clone(), RowStageInput::Operand(i as u8))
                    }
                };
                views.push(view);
                places.push(place);
            }
            let n_ops = random.below(5);
            let kind = random.below(3);
            let ops: Vec<MapOp> = (0..if kind == 0 { n_ops.max(1) } else { n_ops })
                .map(|op| {
                    let mut arg = || match random.below(3) {
                        0 if op > 0 => Arg::Result(op as u8 - 1),
                        1 if op > 0 => Arg::Result(random.below(op) as u8),
                        _ => Arg::Operand(random.below(views.len()) as u8),
                    };
                    let (a, b) = (arg(), arg());
                    let op = OPS[random.below(OPS.len())];
                    let b = if op.arity == Arity::Exactly(1) { a } else { b };
                    let function = function(op, dtype, dtype).expect("an operation on floats");
                    MapOp { work: MapFn::Function(function), args: [a, b, a], dtype, op }
                })
                .collect();
            // Without operations, only rows are reduced.
            if ops.is_empty() && !matches!(places[0], RowStageInput::Operand(0 | 1)) {
                (views, places) = (vec![operands[0].clone()], vec![RowStageInput::Operand(0)]);
            }
            let given: Vec<TensorOperand> = views.iter().cloned().map(TensorOperand::View).collect();
            let by = [Reduction::Sum, Reduction::Max, Reduction::Min, Reduction::Prod][random.below(4)];
            let reduce = |layout| {
                let map = Map::without_result(ops.clone(), &given, rows * width);
                RowStageKind::Reduce(MapReduce::new(by, map, dtype, layout))
            };
            let out = |outs: &mut Vec<usize>, n| {
                outs.push(n);
                outs.len() as u8 - 1
            };
            let (work, to, of_row) = match kind {
                0 => {
                    let to = if outs.len() < 3 && random.below(2) == 0 {
                        RowStageDest::Out(out(&mut outs, rows * width))
                    } else {
                        RowStageDest::Scratch
                    };
                    let whole = all(Base::Buffer(BufferId(99)), [w, 1]);
                    (RowStageKind::Map(Map::new(ops.clone(), &given, &whole)), to, width)
                }
                1 => (reduce(ReducedLayout::Trailing { n: width }), RowStageDest::Scratch, 1),
                _ if outs.len() + 2 <= MAX_WRITTEN => {
                    let chunks = out(&mut outs, RowKernel::n_chunks(rows, width) * width);
                    let to = RowStageDest::Columns { chunks, out: out(&mut outs, width) };
                    (reduce(ReducedLayout::Leading { n: rows, row: width }), to, width)
                }
                _ => continue,
            };
            stages.push(RowStage { work, views, inputs: places, to, width: of_row, size: dtype.size() });
        }
        // Something shows what the last stages computed.
        let shown = stages.iter().rposition(|s| s.to == RowStageDest::Scratch);
        if let (Some(k), true) = (shown, outs.len() < MAX_WRITTEN) {
            outs.push(rows * stages[k].width);
            stages[k].to = RowStageDest::Out(outs.len() as u8 - 1);
        }
        let mut before = None;
        let writer = stages.iter().position(|s| matches!(s.to, RowStageDest::Out(_)) && s.width == width);
        let second = RowStageInput::Operand(1);
        if let Some(writer) = writer
            && stages.iter().rposition(|s| s.inputs.contains(&second)).is_some_and(|last| last <= writer)
        {
            let RowStageDest::Out(out) = stages[writer].to else { panic!("a result was looked for") };
            before = Some(usize::from(out));
            let places = stages.iter_mut().flat_map(|stage| &mut stage.inputs);
            places.filter(|place| **place == second).for_each(|place| *place = RowStageInput::Before(writer as u8));
        }
        let operands = operands.into_iter().map(TensorOperand::View).collect();
        RandomKernel { stages, inputs, operands, outs, before }
    }

    fn results(kernel: &RowKernel, of: &RandomKernel, dtype: DType) -> Vec<Vec<u8>> {
        let mut outs: Vec<Vec<u64>> = of.outs.iter().map(|n| vec![0; (n * dtype.size()).div_ceil(8)]).collect();
        if let Some(out) = of.before {
            bytemuck::cast_slice_mut(&mut outs[out]).copy_from_slice(bytes_of(of.inputs[1].buffer()));
        }
        let foreign = ExternalTensors { inputs: &of.inputs, constants: &[], vars: Vars::Tensors(&[]) };
        let sources = Sources::new(&[], &[], &[], &[], foreign);
        let mut bytes: [&mut [u8]; MAX_WRITTEN] = Default::default();
        for ((bytes, out), n) in bytes.iter_mut().zip(&mut outs).zip(&of.outs) {
            *bytes = &mut bytemuck::cast_slice_mut(out)[..n * dtype.size()];
        }
        kernel.run(&of.operands, bytes, &sources);
        outs.into_iter().map(|out| bytemuck::cast_slice(&out).to_vec()).collect()
    }

    /// Returns the numbers of bytes, with one NaN.
    fn numbers(dtype: DType, bytes: &[u8]) -> Vec<u64> {
        let one_nan = |x: f64, bits: u64| if x.is_nan() { u64::MAX } else { bits };
        match dtype {
            DType::F32 => {
                bytemuck::cast_slice(bytes).iter().map(|&x: &f32| one_nan(x.into(), x.to_bits().into())).collect()
            }
            _ => bytemuck::cast_slice(bytes).iter().map(|&x: &f64| one_nan(x, x.to_bits())).collect(),
        }
    }

    #[test]
    fn tiles_have_the_bits_of_the_stages_one_by_one_with_all_instructions() {
        let mut random = RandomNumbers(3);
        let (mut n_together, mut n_in_place) = (0, 0);
        for round in 0..150 {
            let dtype = [DType::F32, DType::F64][round % 2];
            // Some have several chunks.
            let is_large = round % 50 == 0;
            let rows = if is_large { 300 } else { [1, 7, 20, 33][random.below(4)] };
            let width = if is_large { 528 } else { [64, 80, 128, 512][random.below(4)] };
            let case = random_kernel(&mut random, dtype, rows, width);
            if case.outs.is_empty() {
                continue;
            }
            let kernel = RowKernel::new(rows, width, case.stages.clone());
            n_together += usize::from(kernel.passes().any(|pass| pass.stages.len() > 1));
            n_in_place += usize::from(case.before.is_some());
            let expected = results(&kernel.clone().one_by_one(), &case, dtype);
            for instruction_set in InstructionSet::all() {
                let mut kernel = kernel.clone();
                kernel.passes_mut().for_each(|pass| pass.instruction_set = instruction_set);
                for (found, expected) in results(&kernel, &case, dtype).iter().zip(&expected) {
                    let same = numbers(dtype, found) == numbers(dtype, expected);
                    assert!(same, "round {round}, {rows} rows of {width} {dtype}, {instruction_set:?}\\n{kernel:#?}");
                }
            }
        }
        assert!(n_together > 40, "{n_together} kernels have stages that are computed together");
        assert!(n_in_place > 5, "{n_in_place} kernels overwrite an operand");
    }
}
