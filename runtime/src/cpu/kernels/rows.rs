//! A kernel of fused operations that iterate over the same rows.
//!
//! A row consists of the elements under one index of the leading axes. Stages are elementwise
//! chains, reductions and softmaxes of each row, chains that use reduced values, and reductions
//! over the rows that yield columns. A normalization and its gradient consist of such stages. The
//! kernel runs all stages for each block of rows, so each tensor is read from memory once, and
//! values used only by later stages stay in scratch memory of the thread. Consecutive stages of
//! chains and reductions go over a row together ([`TilePass`]).
//!
//! Rows are divided into chunks, and chunks into blocks, whose sizes depend only on the shapes. The
//! reduction of a row does not depend on other rows. Columns are reduced within each chunk, then
//! combined in the order of the chunks. Results do not depend on the number of threads.
//!
//! A stage may read values written by the kernel only as rows of earlier stages. A stage may read
//! operands that a result overwrites, at the same elements, up to the stage that writes the result.

use super::elementwise::{BLOCK, Map, Outs, with_scratch};
use super::map_reduce::{MapReduce, OfRows};
use super::row_tiles::{TileMemory, TilePass};
use super::softmax::Softmax;
use crate::cpu::memory::{MAX_WRITTEN, Sources};
use crate::cpu::memory::{TensorOperand, View};
use crate::threads;
use anabranch_dsl::DType;
use std::cell::RefCell;
use std::ops::Range;

/// Maximum number of stages.
pub(crate) const MAX_STAGES: usize = 24;
/// Maximum number of elements of a row.
pub(crate) const MAX_WIDTH: usize = 1 << 14;

/// Minimum number of elements for several threads. `CHUNK` is about the number of elements of a
/// chunk.
const PARALLEL: usize = 1 << 17;
const CHUNK: usize = 1 << 15;
/// Maximum number of chunks of a kernel with columns, which need memory per chunk.
const MAX_CHUNKS: usize = 16;
/// Maximum size of a block's rows in bytes, which fit in the L2 cache.
const BLOCK_BYTES: usize = 1 << 18;

/// The computation of a stage.
#[derive(Clone, Debug)]
pub(crate) enum RowStageKind {
    /// An elementwise chain.
    Map(Map),
    /// A reduction of each row or over the rows.
    Reduce(MapReduce),
    /// A softmax of each row, or a related function.
    Softmax(Softmax),
}

/// The location of an operand of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowStageInput {
    /// An operand of the kernel.
    Operand(u8),
    /// The result of an earlier stage.
    Value(u8),
    /// An operand that the result of this or a later stage overwrites.
    Before(u8),
}

/// The destination of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowStageDest {
    /// A result of the kernel.
    Out(u8),
    /// Scratch memory.
    Scratch,
    /// A result of the kernel that is complete after all rows. `chunks` is the result that holds
    /// the columns of each chunk.
    Columns { chunks: u8, out: u8 },
}

/// A stage of a row kernel.
#[derive(Clone, Debug)]
pub(crate) struct RowStage {
    pub(crate) work: RowStageKind,
    /// The operands as views over all rows. `inputs` are their locations.
    pub(crate) views: Vec<View>,
    pub(crate) inputs: Vec<RowStageInput>,
    pub(crate) to: RowStageDest,
    /// Number of result elements per row, or in total for columns.
    pub(crate) width: usize,
    /// Size of an element in bytes.
    pub(crate) size: usize,
}

impl RowStage {
    /// Returns the type of the floats that it computes, if it is a chain or a reduction.
    pub(super) fn float_type(&self) -> Option<DType> {
        let dtype = match &self.work {
            RowStageKind::Map(map) => map.ops().last()?.dtype,
            RowStageKind::Reduce(reduce) => reduce.dtype(),
            RowStageKind::Softmax(_) => return None,
        };
        matches!(dtype, DType::F32 | DType::F64).then_some(dtype)
    }

    /// Returns the size of the result per row in bytes.
    fn row_bytes(&self) -> usize {
        if let RowStageDest::Columns { .. } = self.to { 0 } else { self.width * self.size }
    }
}

/// Stages that are computed for a block of rows at a time.
#[derive(Clone, Debug)]
enum RowStep {
    Stage(usize),
    Tiles(TilePass),
}

/// Fused operations over the same rows; see the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct RowKernel {
    n_rows: usize,
    width: usize,
    stages: Vec<RowStage>,
    /// How the stages are computed, in their order.
    steps: Vec<RowStep>,
    /// Number of rows per chunk. `block` is the number per block.
    chunk: usize,
    block: usize,
    /// Size of the scratch memory of a block in bytes.
    scratch: usize,
}

/// Returns the number of rows per chunk.
fn rows_of_chunk(n_rows: usize, width: usize, has_columns: bool) -> usize {
    if n_rows * width < PARALLEL {
        return n_rows;
    }
    let of_size = (CHUNK / width).max(1);
    if has_columns { of_size.max(n_rows.div_ceil(MAX_CHUNKS)) } else { of_size }
}

impl RowKernel {
    /// Returns the number of chunks of a kernel with columns.
    pub(crate) fn n_chunks(n_rows: usize, width: usize) -> usize {
        n_rows.div_ceil(rows_of_chunk(n_rows, width, true))
    }

    /// Creates a kernel over `n_rows` rows of `width` elements.
    ///
    /// The stages hold ordinary kernels. Operands that are results of other stages are made local
    /// here.
    pub(crate) fn new(n_rows: usize, width: usize, stages: Vec<RowStage>) -> RowKernel {
        assert!(stages.len() <= MAX_STAGES && n_rows > 0 && width > 0);
        let has_columns = stages.iter().any(|s| matches!(s.to, RowStageDest::Columns { .. }));
        let mut rows = RowKernel { n_rows, width, stages, steps: Vec::new(), chunk: 0, block: 0, scratch: 0 };
        rows.chunk = rows_of_chunk(n_rows, width, has_columns);
        let mut seen = Vec::new();
        let mut bytes: usize = rows.stages.iter().map(RowStage::row_bytes).sum();
        for (view, input) in rows.stages.iter().flat_map(|s| s.views.iter().zip(&s.inputs)) {
            if view.size() == n_rows * width && matches!(input, RowStageInput::Operand(_)) && !seen.contains(input) {
                seen.push(*input);
                bytes += width * view.dtype.size();
            }
        }
        rows.block = (BLOCK_BYTES / bytes.max(1)).clamp(1, rows.chunk);
        let in_scratch = rows.stages.iter().filter(|s| s.to == RowStageDest::Scratch);
        rows.scratch = in_scratch.map(|s| (rows.block * s.row_bytes()).next_multiple_of(64)).sum();
        for k in 0..rows.stages.len() {
            rows.prepare(k);
        }
        rows.find_steps();
        rows
    }

    /// Determines which stages are computed together.
    fn find_steps(&mut self) {
        let mut k = 0;
        while k < self.stages.len() {
            let step = match TilePass::of(&self.stages, k, self.n_rows, self.width) {
                Some(pass) => RowStep::Tiles(pass),
                None => RowStep::Stage(k),
            };
            k = if let RowStep::Tiles(pass) = &step { pass.stages().end } else { k + 1 };
            self.steps.push(step);
        }
        if self.block == self.n_rows {
            return;
        }
        // The last pass over an operand prefetches it, so that nothing is prefetched twice.
        let mut prefetched = Vec::new();
        for step in self.steps.iter_mut().rev() {
            if let RowStep::Tiles(pass) = step {
                pass.prefetch_next_block(&self.stages, &mut prefetched);
            }
        }
    }

    /// Returns the same kernel, whose stages are computed one by one.
    #[cfg(test)]
    pub(super) fn one_by_one(mut self) -> RowKernel {
        self.steps = (0..self.stages.len()).map(RowStep::Stage).collect();
        self
    }

    #[cfg(test)]
    pub(super) fn passes(&self) -> impl Iterator<Item = &TilePass> {
        self.steps.iter().filter_map(|step| if let RowStep::Tiles(pass) = step { Some(pass) } else { None })
    }

    #[cfg(test)]
    pub(super) fn passes_mut(&mut self) -> impl Iterator<Item = &mut TilePass> {
        self.steps.iter_mut().filter_map(|step| if let RowStep::Tiles(pass) = step { Some(pass) } else { None })
    }

    /// Converts the kernel of a stage to one over rows.
    fn prepare(&mut self, k: usize) {
        let stage = &mut self.stages[k];
        let operands: Vec<TensorOperand> = stage.views.iter().cloned().map(TensorOperand::View).collect();
        let local: Vec<bool> = stage.inputs.iter().map(|i| !matches!(i, RowStageInput::Operand(_))).collect();
        let in_place: Vec<bool> = stage.inputs.iter().map(|i| *i == RowStageInput::Before(k as u8)).collect();
        match &mut stage.work {
            RowStageKind::Map(map) => {
                *map = Map::over_rows(map.ops().to_vec(), &operands, map.n(), &local, Some(&in_place));
            }
            RowStageKind::Reduce(reduce) => *reduce = reduce.over_rows(&operands, &local),
            RowStageKind::Softmax(_) => {}
        }
    }

    /// Returns the same kernel after storage was allocated to operands and results.
    pub(crate) fn placed(&self, operands: &[TensorOperand], outs: &[View]) -> RowKernel {
        let mut stages = self.stages.clone();
        let writer = |out: usize| self.stages.iter().position(|s| s.to == RowStageDest::Out(out as u8));
        for stage in &mut stages {
            for input in &mut stage.inputs {
                if let RowStageInput::Operand(i) = *input
                    && let Some(out) = outs.iter().position(|o| o.base == operands[i as usize].view().base)
                {
                    let writer = writer(out).expect("only row stages have rows as output");
                    *input = RowStageInput::Before(writer as u8);
                }
            }
        }
        RowKernel::new(self.n_rows, self.width, stages)
    }

    /// Returns whether an operand may share the buffer of a result: all of its rows are read in
    /// order, and none after the corresponding row of the result is written.
    pub(crate) fn may_lie_in(&self, operand: usize, out: usize) -> bool {
        let Some(writer) = self.stages.iter().position(|s| s.to == RowStageDest::Out(out as u8)) else { return false };
        self.stages.iter().enumerate().all(|(k, stage)| {
            stage.views.iter().zip(&stage.inputs).all(|(view, input)| {
                let is_rows = view.is_contiguous() && view.offset == 0 && view.size() == self.n_rows * self.width;
                let may_read = k < writer || (k == writer && matches!(stage.work, RowStageKind::Map(_)));
                *input != RowStageInput::Operand(operand as u8) || (is_rows && may_read)
            })
        }) && self.stages[writer].width == self.width
    }

    /// Returns the names of the operations in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        self.stages.iter().map(|stage| match &stage.work {
            RowStageKind::Map(map) => map.names().collect::<Vec<_>>().join("."),
            RowStageKind::Reduce(reduce) => reduce.names().chain([reduce.name()]).collect::<Vec<_>>().join("."),
            RowStageKind::Softmax(softmax) => softmax.op().to_string(),
        })
    }

    pub(crate) fn run(&self, operands: &[TensorOperand], mut outs: [&mut [u8]; MAX_WRITTEN], sources: &Sources<'_>) {
        let mut finals: [&mut [u8]; MAX_WRITTEN] = Default::default();
        for stage in &self.stages {
            if let RowStageDest::Columns { out, .. } = stage.to {
                finals[out as usize] = std::mem::take(&mut outs[out as usize]);
            }
        }
        let n_chunks = self.n_rows.div_ceil(self.chunk);
        let mut parts: [&mut [u8]; MAX_WRITTEN] = Default::default();
        outs.iter_mut().zip(&mut parts).for_each(|(out, part)| *part = &mut **out);
        self.run_chunks(operands, 0..n_chunks, parts, sources);
        for stage in &self.stages {
            if let (RowStageDest::Columns { chunks, out }, RowStageKind::Reduce(reduce)) = (stage.to, &stage.work) {
                reduce
                    .join_columns(&outs[chunks as usize][..n_chunks * stage.width * stage.size], finals[out as usize]);
            }
        }
    }

    /// Returns the size in bytes of a result for `n` rows in `n_chunks` chunks.
    fn out_bytes(&self, out: usize, n: usize, n_chunks: usize) -> usize {
        let bytes = |stage: &RowStage| match stage.to {
            RowStageDest::Out(o) if o as usize == out => Some(n * stage.row_bytes()),
            RowStageDest::Columns { chunks, .. } if chunks as usize == out => Some(n_chunks * stage.width * stage.size),
            _ => None,
        };
        self.stages.iter().find_map(bytes).unwrap_or(0)
    }

    /// Runs chunks in parallel. `outs` are their results.
    fn run_chunks(
        &self,
        operands: &[TensorOperand],
        chunks: Range<usize>,
        mut outs: [&mut [u8]; MAX_WRITTEN],
        sources: &Sources<'_>,
    ) {
        if chunks.len() == 1 {
            let rows = chunks.start * self.chunk..self.n_rows.min(chunks.end * self.chunk);
            return self.run_chunk(operands, rows, &mut outs, sources);
        }
        let cut = chunks.len() / 2;
        let mut right: [&mut [u8]; MAX_WRITTEN] = Default::default();
        for (k, out) in outs.iter_mut().enumerate() {
            let (left, rest) = std::mem::take(out).split_at_mut(self.out_bytes(k, cut * self.chunk, cut));
            (*out, right[k]) = (left, rest);
        }
        threads::join(
            || self.run_chunks(operands, chunks.start..chunks.start + cut, outs, sources),
            || self.run_chunks(operands, chunks.start + cut..chunks.end, right, sources),
        );
    }

    /// Runs the rows of a chunk, block by block.
    fn run_chunk(
        &self,
        operands: &[TensorOperand],
        rows: Range<usize>,
        outs: &mut [&mut [u8]; MAX_WRITTEN],
        sources: &Sources<'_>,
    ) {
        for stage in &self.stages {
            if let (RowStageDest::Columns { chunks, .. }, RowStageKind::Reduce(reduce)) = (stage.to, &stage.work) {
                reduce.clear_columns(&mut outs[chunks as usize][..stage.width * stage.size]);
            }
        }
        with_values(self.scratch, |scratch| {
            for first in rows.clone().step_by(self.block) {
                let n = self.block.min(rows.end - first);
                self.run_block(operands, first, n, first - rows.start, outs, scratch, sources);
            }
        });
    }

    /// Runs all stages for `n` rows. The rows begin `at` rows after the first row of `outs`.
    #[expect(clippy::too_many_arguments, reason = "rows by their numbers in the tensors and in the results")]
    fn run_block(
        &self,
        operands: &[TensorOperand],
        first: usize,
        n: usize,
        at: usize,
        outs: &mut [&mut [u8]; MAX_WRITTEN],
        mut scratch: &mut [u8],
        sources: &Sources<'_>,
    ) {
        let mut of_block: [&mut [u8]; MAX_WRITTEN] = Default::default();
        for (k, out) in outs.iter_mut().enumerate() {
            let (start, end) = (self.out_bytes(k, at, 0), self.out_bytes(k, at + n, 0));
            of_block[k] = if end > start { &mut out[start..end] } else { &mut **out };
        }
        let mut values: [&mut [u8]; MAX_STAGES] = Default::default();
        for (value, stage) in values.iter_mut().zip(&self.stages) {
            *value = match stage.to {
                RowStageDest::Out(out) => std::mem::take(&mut of_block[out as usize]),
                RowStageDest::Columns { chunks, .. } => {
                    &mut std::mem::take(&mut of_block[chunks as usize])[..stage.width * stage.size]
                }
                RowStageDest::Scratch => {
                    let bytes = n * stage.row_bytes();
                    let (mine, rest) = std::mem::take(&mut scratch).split_at_mut(bytes.next_multiple_of(64));
                    scratch = rest;
                    &mut mine[..bytes]
                }
            };
        }
        self.run_steps(operands, first, n, &mut values, sources);
    }

    /// Runs all stages for `n` rows. `values` are those of the stages for these rows.
    fn run_steps(
        &self,
        operands: &[TensorOperand],
        first: usize,
        n: usize,
        values: &mut [&mut [u8]; MAX_STAGES],
        sources: &Sources<'_>,
    ) {
        let operand = |i: usize| sources.bytes(operands[i].view().base);
        for step in &self.steps {
            let pass = match step {
                RowStep::Stage(k) => {
                    self.run_stage(*k, operands, first, n, values, sources);
                    continue;
                }
                RowStep::Tiles(pass) => pass,
            };
            pass.run(n, TileMemory { operand: &operand, stages: &mut values[..], first });
        }
    }

    /// Runs a stage for `n` rows. `values` are those of all stages for these rows.
    fn run_stage(
        &self,
        k: usize,
        operands: &[TensorOperand],
        first: usize,
        n: usize,
        values: &mut [&mut [u8]],
        sources: &Sources<'_>,
    ) {
        let stage = &self.stages[k];
        let (done, rest) = values.split_at_mut(k);
        let (out, later) = rest.split_first_mut().expect("there is a value of each stage");
        let bytes_of = |i: usize| -> &[u8] {
            match stage.inputs[i] {
                RowStageInput::Operand(j) => sources.bytes(operands[j as usize].view().base),
                RowStageInput::Value(s) => &*done[s as usize],
                RowStageInput::Before(s) => &*later[s as usize - k - 1],
            }
        };
        match &stage.work {
            RowStageKind::Map(map) => with_scratch(|scratch| {
                let (base, n) = (first * stage.width, n * stage.width);
                let walk = map.begin(n, base, bytes_of, scratch);
                let mut outs: Outs<'_> = Default::default();
                outs[0] = out;
                let outcome = map.walk_blocks(&walk, base, n, &mut outs, scratch);
                outcome.unwrap_or_else(|_| panic!("fused operations cannot fail"));
            }),
            RowStageKind::Reduce(reduce) => reduce.run_rows(OfRows { bytes_of: &bytes_of, first, n, out }),
            RowStageKind::Softmax(softmax) => {
                let view = &stage.views[0];
                let row = self.width * view.dtype.size();
                let start = match stage.inputs[0] {
                    RowStageInput::Operand(_) => view.offset * view.dtype.size() + first * row,
                    _ => 0,
                };
                softmax.run_rows(view.dtype, &bytes_of(0)[start..][..n * row], out);
            }
        }
    }
}

/// Calls `f` with `bytes` bytes of this thread's scratch memory for values.
fn with_values<R>(bytes: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    thread_local! {
        static MEMORY: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }
    MEMORY.with_borrow_mut(|memory| {
        if memory.len() < bytes.div_ceil(8) {
            memory.resize(bytes.div_ceil(8).next_multiple_of(BLOCK), 0);
        }
        f(&mut bytemuck::cast_slice_mut(memory)[..bytes])
    })
}
