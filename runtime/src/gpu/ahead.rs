//! Branches and loops that are recorded ahead of their predicates.
//!
//! If only the device knows a predicate, the host need not wait for it: it records the shaders that
//! follow from either value *under a guard*. A guard is a row of words with workgroup counts, from
//! which these shaders are dispatched indirectly. The row consists of zeros until a shader finds
//! that the predicate holds and writes the counts (`guard.wgsl`), and a dispatch of no workgroups
//! does nothing.
//!
//! - A **branch**: both arms are recorded, each under its guard, and their results are copied to
//!   the same memory.
//! - A **loop** that the host drives: a chunk of iterations is recorded, each under the guard of
//!   its predicate, which is computed under the guard of the iteration before. The host keeps the
//!   state after each of them. It records the next chunk until the device has done the first one,
//!   reads back how many iterations of that have run, and takes the state after these. Chunks are
//!   short at first, so that the device begins early and few iterations are recorded in vain, and
//!   the last one ends where the loop ended in the last run.
//! - A **loop inside** of such a branch or loop: its state is in registers of the device, to which
//!   each iteration copies. If it needs more iterations than are recorded, it is *stuck*: all that
//!   follows is dead, and the host runs the iteration around it by itself.
//!
//! Whatever cannot be recorded ahead, such as the removal from an empty stack, ends a chunk, too:
//! the host runs the next iteration by itself, and finds the error if there is one.
//!
//! # Invariants
//!
//! - H1. Work under a guard that is not open changes nothing that other work reads. Transfers have
//!   no guard, but write only new memory.
//! - H2. No dispatch writes the buffer from which it is dispatched. Buffers of rows therefore
//!   belong to a depth and a role, and the roles alternate.
//! - H3. A row is used once, and its buffer is cleared before.

use super::handwritten::{COPY, GUARD};
use super::lower::{THREADS, groups};
use super::memory::{GpuTensor, GpuValue, StackItem, bytes_of_type};
use super::program::{CondProgram, GpuOp, LoopProgram, RegionProgram};
use super::queue::{CommandRecorder, GpuQueue, Workgroups};
use super::run::{CheckedReadback, ProgramRun};
use super::shader::CompiledShader;
use super::shader_loop::parallel_workgroups;
use anabranch_dsl::fusion::LOOP_STATES;
use anabranch_dsl::ir::{Graph, Value};
use anabranch_dsl::{DType, Diagnostic, ErrorKind, HostTensor, Result, TensorType};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The number of iterations of the first chunk if nothing is known of a loop.
const FIRST_ITERATIONS: usize = 4;

/// The number of iterations of the first chunk if the loop has run before. The device begins to
/// work after them, and few are recorded in vain if the loop ends earlier than before.
const FIRST_KNOWN_ITERATIONS: usize = 16;

/// The largest number of iterations of a chunk.
const MAX_ITERATIONS: usize = 64;

/// The bytes of states and stacks after which a chunk ends.
const MAX_CHUNK_BYTES: u64 = 64 << 20;

/// The largest number of trips of a loop inside of a guard that counts.
pub(super) const MAX_COUNTED: i64 = 256;

/// The largest number of shaders in the arms of a branch that are recorded both.
const MAX_BRANCH_SHADERS: usize = 64;

/// The number of constructs that are recorded inside of each other.
const MAX_DEPTH: usize = 4;

/// The number of iterations of loops inside of an iteration of a chunk that are recorded at most.
const MAX_INNER_ITERATIONS: usize = 1024;

/// The number of chunks without an iteration after which the host drives the rest of a loop.
const MAX_VAIN_CHUNKS: usize = 2;

/// No row.
const NONE: u32 = u32::MAX;

/// Marks in the second word of the progress of a chunk: its loop has ended, or a loop inside of it
/// needs more iterations than were recorded.
const ENDED: u32 = 1;
const STUCK: u32 = 2;

/// The workgroups of all shaders of a program that may run under a guard, in the order of a row.
#[derive(Debug, Default)]
pub(super) struct WorkgroupCounts {
    index: FxHashMap<[u32; 3], u32>,
    shaders: Option<GuardShaders>,
}

/// The shaders of guards, and the words of a row.
#[derive(Debug)]
struct GuardShaders {
    counts: Arc<GpuTensor>,
    guard: Arc<CompiledShader>,
    copy: Arc<CompiledShader>,
}

impl WorkgroupCounts {
    fn add(&mut self, workgroups: [u32; 3]) {
        let next = self.index.len() as u32;
        self.index.entry(workgroups).or_insert(next);
    }

    /// Returns the words of a row.
    fn n_words(&self) -> u32 {
        3 * self.index.len() as u32
    }

    fn shaders(&self) -> &GuardShaders {
        self.shaders.as_ref().expect("a program with guards has their shaders")
    }
}

/// Returns the workgroups that copy a value of the graph, unless it has no elements.
fn copies(graph: &Graph, value: Value) -> Option<[u32; 3]> {
    let n_bytes = bytes_of_type(graph.ty(value).element()).expect("the device runs operations of known shapes only");
    (n_bytes > 0).then(|| groups(((n_bytes / 4) as usize).div_ceil(THREADS)))
}

/// Facts of a region that decide whether it can be recorded under a guard.
#[derive(Clone, Copy, Debug)]
struct RegionFacts {
    can_be_guarded: bool,
    has_loops: bool,
    /// Whether there are loops whose trip counts depend on data.
    has_open_loops: bool,
    n_shaders: usize,
}

/// Decides which branches and loops of a program are recorded ahead of their predicates, and
/// collects the workgroups of all shaders.
///
/// # Errors
/// Fails if the device has no memory for the table of workgroups.
pub(super) fn plan(graph: &Graph, root: &mut RegionProgram, queue: &GpuQueue) -> Result<WorkgroupCounts> {
    let mut counts = WorkgroupCounts::default();
    counts.add([1; 3]);
    if !plan_region(graph, root, &mut counts).1 {
        return Ok(WorkgroupCounts::default());
    }
    let shared = queue.shared();
    let mut row = vec![0; counts.n_words() as usize];
    for (workgroups, &i) in &counts.index {
        row[3 * i as usize..][..3].copy_from_slice(workgroups);
    }
    let row = HostTensor::new([row.len()], row);
    counts.shaders = Some(GuardShaders {
        counts: queue.call(async move |recorder| recorder.upload(&row))?,
        guard: shared.shaders.get(&shared.device, GUARD.to_owned(), [2, 3])?,
        copy: shared.shaders.get(&shared.device, COPY.to_owned(), [1, 1])?,
    });
    Ok(counts)
}

/// Returns the facts of a region, and whether it has a construct that is recorded ahead.
fn plan_region(graph: &Graph, region: &mut RegionProgram, counts: &mut WorkgroupCounts) -> (RegionFacts, bool) {
    let mut facts = RegionFacts { can_be_guarded: true, has_loops: false, has_open_loops: false, n_shaders: 0 };
    let mut any_ahead = false;
    let mut include = |inner: RegionFacts| {
        facts.has_loops |= inner.has_loops;
        facts.has_open_loops |= inner.has_open_loops;
        facts.can_be_guarded &= inner.can_be_guarded;
        facts.n_shaders += inner.n_shaders;
    };
    let all_tensors = |values: &[Value]| values.iter().all(|&v| graph.ty(v).as_tensor().is_some());
    let alone = RegionFacts { can_be_guarded: true, has_loops: false, has_open_loops: false, n_shaders: 1 };
    for op in &mut region.ops {
        match op {
            // A check of finite values reads results back.
            GpuOp::Dispatch(dispatch) => {
                counts.add(dispatch.workgroups);
                include(RegionFacts { can_be_guarded: dispatch.checked.is_none(), ..alone });
            }
            GpuOp::Transfer(_) | GpuOp::Stack(..) => {}
            GpuOp::AddStacks(_, sum) => {
                counts.add(sum.workgroups);
                include(alone);
            }
            GpuOp::List(list) => {
                list.workgroups().into_iter().for_each(|workgroups| counts.add(workgroups));
                include(alone);
            }
            GpuOp::Cond(CondProgram { node, branches, ahead }) => {
                let [then, otherwise] = branches.each_mut().map(|branch| {
                    let (facts, any) = plan_region(graph, branch, counts);
                    any_ahead |= any;
                    facts
                });
                let results = &graph.node(*node).results;
                results.iter().filter_map(|&v| copies(graph, v)).for_each(|workgroups| counts.add(workgroups));
                let can_be_guarded = then.can_be_guarded && otherwise.can_be_guarded && all_tensors(results);
                let n_shaders = then.n_shaders + otherwise.n_shaders;
                let has_loops = then.has_loops || otherwise.has_loops;
                *ahead = can_be_guarded && !has_loops && n_shaders <= MAX_BRANCH_SHADERS;
                any_ahead |= *ahead;
                include(RegionFacts { can_be_guarded, ..then });
                include(RegionFacts { can_be_guarded, ..otherwise });
            }
            GpuOp::While(looped) => {
                let [cond, body] = [&mut looped.cond, &mut looped.body].map(|region| {
                    let (facts, any) = plan_region(graph, region, counts);
                    any_ahead |= any;
                    facts
                });
                let results = &graph.node(looped.node).results;
                results.iter().filter_map(|&v| copies(graph, v)).for_each(|workgroups| counts.add(workgroups));
                let of_iterations = looped.parallel.as_ref().and_then(|parallel| parallel.trips);
                of_iterations.and_then(parallel_workgroups).into_iter().for_each(|workgroups| counts.add(workgroups));
                looped.ahead = cond.can_be_guarded && body.can_be_guarded;
                any_ahead |= looped.ahead;
                // Such a loop would wait in each iteration if it were not under guards.
                if looped.ahead && body.has_open_loops {
                    looped.counted = None;
                }
                let can_be_guarded = looped.ahead && (looped.counted.is_some() || all_tensors(results));
                let has_open_loops = looped.counted.is_none();
                include(RegionFacts { can_be_guarded, has_loops: true, has_open_loops, ..cond });
                include(RegionFacts { can_be_guarded, ..body });
            }
            GpuOp::Call(_, callee) => {
                let (inner, any) = plan_region(graph, callee, counts);
                any_ahead |= any;
                include(inner);
            }
        }
    }
    (facts, any_ahead)
}

/// Words from which shaders are dispatched: a row of workgroup counts, or of zeros.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    rows: Arc<GpuTensor>,
    /// The first word of the row.
    first: u32,
    of: RowsOf,
}

impl Guard {
    fn is(&self, other: &Guard) -> bool {
        Arc::ptr_eq(&self.rows, &other.rows) && self.first == other.first
    }

    /// Returns where the number of workgroups of a shader is under the guard.
    pub(super) fn workgroups(&self, counts: &WorkgroupCounts, workgroups: [u32; 3]) -> Workgroups<'_> {
        let i = counts.index.get(&workgroups).expect("the counts of all shaders of a program are in its table");
        Workgroups::Indirect(&self.rows, u64::from(self.first + 3 * i))
    }
}

/// The use of a buffer of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RowsOf {
    /// The number of constructs around.
    depth: usize,
    role: RowRole,
    /// Whether it is the second of two buffers that alternate.
    is_second: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RowRole {
    /// Arms and iterations.
    Entry,
    /// The code after a construct with a loop that may be stuck.
    Exit,
}

/// The buffers of rows of a run.
#[derive(Debug, Default)]
pub(super) struct GuardRows {
    /// The buffer of each use, and its next free word.
    open: FxHashMap<RowsOf, (Arc<GpuTensor>, u32)>,
    /// The number of constructs around the one that is recorded.
    depth: usize,
    /// The progress of the chunk that is recorded.
    progress: Option<Arc<GpuTensor>>,
    /// The number of loops around whose state is in registers.
    register_loops: usize,
    /// The number of iterations of such loops in the iteration of a chunk that is recorded.
    n_inner: usize,
}

/// The bytes of a buffer of rows, unless a row is larger.
const ROWS_BYTES: u32 = 16 << 10;

impl GuardRows {
    /// Returns whether values may be in registers, which are written again.
    pub(super) fn has_registers(&self) -> bool {
        self.register_loops > 0
    }

    /// Returns a row that is not open, in another buffer than that of the guard around.
    fn row(
        &mut self,
        recorder: &CommandRecorder,
        n_words: u32,
        role: RowRole,
        around: Option<&Guard>,
    ) -> Result<Guard> {
        let first = RowsOf { depth: self.depth, role, is_second: false };
        let of = RowsOf { is_second: around.is_some_and(|guard| guard.of == first), ..first };
        let has_room = |(rows, next): &(Arc<GpuTensor>, u32)| u64::from(4 * (next + n_words)) <= rows.n_bytes();
        if !self.open.get(&of).is_some_and(has_room) {
            let rows = recorder.tensor(ROWS_BYTES.max(4 * n_words).into())?;
            recorder.clear(&rows);
            self.open.insert(of, (rows, 0));
        }
        let (rows, next) = self.open.get_mut(&of).expect("the buffer is there");
        let guard = Guard { rows: rows.clone(), first: *next, of };
        *next += n_words;
        Ok(guard)
    }
}

/// The guards that a predicate opens.
struct Opening<'a> {
    predicate: &'a Arc<GpuTensor>,
    /// The value that opens the first guard.
    expected: u32,
    guards: [Option<&'a Guard>; 2],
    /// The words to write to the progress of the chunk, unless they are 0: the first with the first
    /// guard, and the second with the second one.
    progress: [u32; 2],
}

/// The lengths of the chunks of a loop: they double, and end where the loop is expected to end.
struct ChunkLengths {
    /// The number of predicates that the host expects to be computed but has not recorded, or 0 if
    /// it expects nothing.
    n_expected: usize,
    next: usize,
    /// Whether the loop is expected to end in the chunk whose length was last returned.
    may_end: bool,
}

impl ChunkLengths {
    /// Begins with the number of predicates of the last run, or 0.
    fn new(n_expected: usize) -> ChunkLengths {
        let next = if n_expected == 0 { FIRST_ITERATIONS } else { FIRST_KNOWN_ITERATIONS };
        ChunkLengths { n_expected, next, may_end: false }
    }

    fn next(&mut self) -> usize {
        let is_expected = self.n_expected > 0;
        let length = if is_expected { self.next.min(self.n_expected) } else { self.next };
        self.next = (2 * self.next).min(MAX_ITERATIONS);
        self.n_expected = self.n_expected.saturating_sub(length);
        self.may_end = is_expected && self.n_expected == 0;
        length
    }
}

/// Iterations of a loop recorded ahead.
struct Chunk {
    /// The state before the first iteration, and after each of them.
    states: Vec<Vec<GpuValue>>,
    /// The guard of what follows.
    guard: Option<Guard>,
    /// Whether it ended before an iteration that cannot be recorded ahead.
    is_cut: bool,
    /// The words that tell the outcome, until they have been read.
    progress: Option<CheckedReadback>,
    /// The outcome, if it is known.
    outcome: Option<Result<ChunkOutcome>>,
}

/// The fate of the iterations of a chunk.
enum ChunkOutcome {
    /// All have run, and the loop goes on.
    Completed,
    /// The loop has ended after some iterations.
    Ended(usize),
    /// After some iterations, the host has to run one.
    Stopped(usize),
}

/// Returns the error of work that only the host can decide. It cuts a chunk, and is never reported.
pub(super) fn not_ahead() -> Diagnostic {
    Diagnostic::new("this work cannot be recorded ahead").of_kind(ErrorKind::Internal)
}

/// Returns the bytes that a new state keeps in addition to the one before.
fn bytes_of_step(before: &[GpuValue], after: &[GpuValue]) -> u64 {
    let bytes = |(before, after): (&GpuValue, &GpuValue)| match (before, after) {
        (GpuValue::Tensor(before), GpuValue::Tensor(after)) if Arc::ptr_eq(before, after) => 0,
        (GpuValue::List(before), GpuValue::List(after)) if Arc::ptr_eq(before.elements(), after.elements()) => 0,
        (GpuValue::Stack(before), GpuValue::Stack(after)) => {
            let [before, top] = [before, after].map(|stack| stack.items().next());
            let is_pushed = before.zip(top).is_none_or(|(before, top)| !before.is_same(top));
            top.filter(|_| is_pushed).map_or(0, StackItem::n_bytes)
        }
        (_, GpuValue::Tensor(after)) => after.allocated_bytes(),
        (_, GpuValue::List(after)) => after.n_bytes(),
        (_, GpuValue::Stack(_)) => panic!("a loop variable does not become a stack"),
    };
    before.iter().zip(after).map(bytes).sum()
}

impl<'a> ProgramRun<'a> {
    fn row(&mut self, role: RowRole) -> Result<Guard> {
        self.rows.row(self.recorder, self.counts.n_words(), role, self.guard.as_ref())
    }

    /// Returns the words for the progress of a chunk: the number of iterations that have begun, and
    /// a mark.
    fn new_progress(&self) -> Result<Arc<GpuTensor>> {
        let progress = self.recorder.tensor(8)?;
        self.recorder.clear(&progress);
        Ok(progress)
    }

    /// Opens guards by a predicate, under the current guard.
    fn open(&mut self, opening: &Opening<'_>) -> Result<()> {
        let progress = match &self.rows.progress {
            Some(progress) => progress.clone(),
            None => self.recorder.tensor(8)?,
        };
        let counts = self.counts;
        let [first, second] = opening.guards;
        let rows = |guard: Option<&Guard>, other: Option<&Guard>| {
            guard.or(other).map_or_else(|| progress.clone(), |guard| guard.rows.clone())
        };
        let tensors = [
            opening.predicate.clone(),
            counts.shaders().counts.clone(),
            rows(first, second),
            rows(second, first),
            progress.clone(),
        ];
        let first_words = [first, second].map(|guard| guard.map_or(NONE, |guard| guard.first));
        let parameters = [&[counts.n_words(), opening.expected][..], &first_words, &opening.progress].concat();
        self.dispatch(&counts.shaders().guard, &tensors, [1; 3], &parameters);
        Ok(())
    }

    /// Copies a tensor to another one, under the current guard.
    fn copy_under_guard(&self, from: &Arc<GpuTensor>, to: &Arc<GpuTensor>) {
        let n_words = (from.n_bytes() / 4) as usize;
        if n_words > 0 {
            let tensors = [from.clone(), to.clone()];
            let copy = &self.counts.shaders().copy;
            self.dispatch(copy, &tensors, groups(n_words.div_ceil(THREADS)), &[n_words as u32]);
        }
    }

    /// Records a region one level deeper, under a guard. Returns the guard of what follows it.
    async fn guarded_region(
        &mut self,
        region: &'a RegionProgram,
        arguments: Vec<GpuValue>,
        guard: Guard,
    ) -> Result<(Vec<GpuValue>, Guard)> {
        if self.rows.depth == MAX_DEPTH {
            return Err(not_ahead());
        }
        // Branches outside of chunks have a number of iterations each.
        if self.guard.is_none() {
            self.rows.n_inner = 0;
        }
        let outer = self.guard.replace(guard);
        self.rows.depth += 1;
        let results = self.region(region, arguments).await;
        self.rows.depth -= 1;
        let after = std::mem::replace(&mut self.guard, outer).expect("a guard is never left");
        Ok((results?, after))
    }

    /// Records both arms of a branch.
    ///
    /// # Errors
    /// Fails if an arm cannot be recorded ahead, too.
    pub(super) async fn branch_ahead(
        &mut self,
        CondProgram { branches, .. }: &'a CondProgram,
        predicate: &Arc<GpuTensor>,
        captures: Vec<GpuValue>,
    ) -> Result<Vec<GpuValue>> {
        let [first, second] = [self.row(RowRole::Entry)?, self.row(RowRole::Entry)?];
        let guards = [Some(&first), Some(&second)];
        self.open(&Opening { predicate, expected: 1, guards, progress: [0; 2] })?;
        let [then, otherwise] = branches;
        let (then, after_then) = self.guarded_region(then, captures.clone(), first.clone()).await?;
        let (otherwise, after_otherwise) = self.guarded_region(otherwise, captures, second.clone()).await?;
        let may_be_stuck = !after_then.is(&first) || !after_otherwise.is(&second);
        let outer = self.guard.clone();
        if may_be_stuck && outer.is_none() {
            return Err(not_ahead());
        }
        let exit = may_be_stuck.then(|| self.row(RowRole::Exit)).transpose()?;
        let mut results = Vec::new();
        for (then, otherwise) in then.iter().zip(&otherwise) {
            let (GpuValue::Tensor(then), GpuValue::Tensor(otherwise)) = (then, otherwise) else {
                return Err(not_ahead());
            };
            if Arc::ptr_eq(then, otherwise) {
                results.push(GpuValue::Tensor(then.clone()));
                continue;
            }
            let merged = self.recorder.tensor(then.n_bytes())?;
            for (from, guard) in [(then, &after_then), (otherwise, &after_otherwise)] {
                self.guard = Some(guard.clone());
                self.copy_under_guard(from, &merged);
            }
            self.guard.clone_from(&outer);
            results.push(GpuValue::Tensor(merged));
        }
        if let Some(exit) = exit {
            // Either end of the branch opens what follows it.
            for guard in [after_then, after_otherwise] {
                self.guard = Some(guard);
                self.open(&Opening { predicate, expected: 1, guards: [Some(&exit); 2], progress: [0; 2] })?;
            }
            self.guard = Some(exit);
        }
        Ok(results)
    }

    /// Runs a loop while its condition holds, in chunks of iterations that are recorded ahead.
    pub(super) async fn repeat_ahead(
        &mut self,
        looped: &'a LoopProgram,
        mut state: Vec<GpuValue>,
        captures: &[GpuValue],
    ) -> Result<Vec<GpuValue>> {
        // The iterations of the last run, and the predicate that ended it.
        let mut lengths = ChunkLengths::new(looped.expected.load(Ordering::Relaxed) as usize);
        let (mut n_trips, mut n_vain) = (0, 0);
        while n_vain < MAX_VAIN_CHUNKS {
            let mut chunk = self.first_chunk(looped, state, captures, lengths.next(), None).await?;
            let stopped_after = loop {
                let n_recorded = chunk.states.len() - 1;
                let last = chunk.states[n_recorded].clone();
                // Recorded while the device works on the chunk before.
                let next = match chunk.is_cut || lengths.may_end {
                    true => Ok(None),
                    false => self.chunk_after(&mut chunk, looped, captures, lengths.next()).await,
                };
                // An error of the next chunk matters only if this one has neither failed nor ended.
                match self.outcome(&mut chunk).await? {
                    ChunkOutcome::Ended(n) => {
                        looped.expect_trips(n_trips + n);
                        return Ok(chunk.states.swap_remove(n));
                    }
                    ChunkOutcome::Stopped(n) => {
                        // The host runs the next iteration in the memory of the others.
                        state = std::mem::take(&mut chunk.states).swap_remove(n);
                        break n;
                    }
                    ChunkOutcome::Completed => {
                        (n_trips, n_vain) = (n_trips + n_recorded, 0);
                        chunk = match next? {
                            Some(next) => next,
                            None => self.first_chunk(looped, last, captures, lengths.next(), chunk.guard).await?,
                        };
                    }
                }
            };
            n_vain = if stopped_after == 0 { n_vain + 1 } else { 0 };
            n_trips += stopped_after + 1;
            lengths = ChunkLengths::new(0);
            if !self.iterate(looped, &mut state, captures).await? {
                looped.expect_trips(n_trips - 1);
                return Ok(state);
            }
        }
        self.repeat_while(looped, n_trips, state, captures).await
    }

    /// Records a chunk of at most `length` iterations. If there were iterations before, their
    /// outcome is known, and they have left the given guard.
    async fn first_chunk(
        &mut self,
        looped: &'a LoopProgram,
        state: Vec<GpuValue>,
        captures: &[GpuValue],
        length: usize,
        guard: Option<Guard>,
    ) -> Result<Chunk> {
        let chunk = self.chunk(looped, state, captures, length, guard, None).await?;
        Ok(chunk.expect("only the outcome of a chunk before ends the recording"))
    }

    /// Records a chunk of at most `length` iterations after those of another one, unless the device
    /// has meanwhile found that these do not complete.
    async fn chunk_after(
        &mut self,
        before: &mut Chunk,
        looped: &'a LoopProgram,
        captures: &[GpuValue],
        length: usize,
    ) -> Result<Option<Chunk>> {
        let state = before.states.last().expect("a chunk has a first state").clone();
        let guard = before.guard.clone();
        self.chunk(looped, state, captures, length, guard, Some(before)).await
    }

    /// Records a chunk under a guard; see [`Self::first_chunk`] and [`Self::chunk_after`].
    async fn chunk(
        &mut self,
        looped: &'a LoopProgram,
        state: Vec<GpuValue>,
        captures: &[GpuValue],
        length: usize,
        guard: Option<Guard>,
        before: Option<&mut Chunk>,
    ) -> Result<Option<Chunk>> {
        let progress = self.new_progress()?;
        // A condition of another chunk may have a loop of its own.
        let outer = self.rows.progress.replace(progress.clone());
        self.guard = guard;
        let recorded = self.record_chunk(looped, state, captures, length, before).await;
        let guard = self.guard.take();
        self.rows.progress = outer;
        let Some((states, is_cut)) = recorded? else { return Ok(None) };
        let progress = Some(self.begin_download(&[(&progress, &TensorType::new(DType::U32, [2]))])?);
        Ok(Some(Chunk { states, guard, is_cut, progress, outcome: None }))
    }

    /// Records the iterations of a chunk under the current guard. Returns the states, and whether
    /// the next iteration cannot be recorded ahead.
    async fn record_chunk(
        &mut self,
        looped: &'a LoopProgram,
        state: Vec<GpuValue>,
        captures: &[GpuValue],
        length: usize,
        mut before: Option<&mut Chunk>,
    ) -> Result<Option<(Vec<Vec<GpuValue>>, bool)>> {
        let (mut states, mut is_cut, mut n_bytes) = (vec![state], false, 0);
        while states.len() <= length && n_bytes <= MAX_CHUNK_BYTES && !self.has_many_checks() {
            if let Some(chunk) = &mut before
                && self.has_outcome(chunk).await
            {
                if !matches!(chunk.outcome, Some(Ok(ChunkOutcome::Completed))) {
                    // These iterations do nothing, so their checks do not fail. All earlier checks
                    // are those of the chunk before.
                    self.forget_checks();
                    return Ok(None);
                }
                before = None;
            }
            let before = states.last().expect("a chunk has a first state");
            self.begin_iteration(looped.node).await?;
            self.rows.n_inner = 0;
            match self.iterate_ahead(looped, before, captures, states.len() as u32).await {
                Ok((after, guard)) => {
                    n_bytes += bytes_of_step(before, &after);
                    states.push(after);
                    self.guard = Some(guard);
                }
                // The condition of the first iteration may have read that a check has failed.
                Err(error) if error.kind.is_stop() || self.has_failed_check() => return Err(error),
                // The host finds the error again, if there is one.
                Err(_) => {
                    is_cut = true;
                    break;
                }
            }
        }
        self.recorder.check()?;
        Ok(Some((states, is_cut)))
    }

    /// Records an iteration of a chunk, the `number`th from 1 on. Returns the state after it, and
    /// the guard of what follows.
    async fn iterate_ahead(
        &mut self,
        looped: &'a LoopProgram,
        state: &[GpuValue],
        captures: &[GpuValue],
        number: u32,
    ) -> Result<(Vec<GpuValue>, Guard)> {
        let arguments = [state, captures].concat();
        let entry = self.row(RowRole::Entry)?;
        let predicate = self.unknown_predicate(&looped.cond, arguments.clone()).await?;
        let guards = [Some(&entry), None];
        self.open(&Opening { predicate: &predicate, expected: 1, guards, progress: [number, ENDED] })?;
        self.guarded_region(&looped.body, arguments, entry).await
    }

    /// Counts an iteration of a loop inside of an iteration of a chunk.
    ///
    /// # Errors
    /// Fails if there are too many to record.
    pub(super) fn count_inner_iteration(&mut self) -> Result<()> {
        if self.guard.is_some() {
            self.rows.n_inner += 1;
            if self.rows.n_inner > MAX_INNER_ITERATIONS {
                return Err(not_ahead());
            }
        }
        Ok(())
    }

    /// Records a condition under the current guard.
    ///
    /// # Errors
    /// Fails if the host knows its value: then it decides.
    async fn unknown_predicate(&mut self, cond: &'a RegionProgram, arguments: Vec<GpuValue>) -> Result<Arc<GpuTensor>> {
        self.rows.depth += 1;
        let results = self.region(cond, arguments).await;
        self.rows.depth -= 1;
        let mut results = results?;
        let Some(GpuValue::Tensor(predicate)) = results.pop() else { panic!("a predicate is a tensor") };
        if predicate.known().is_some() { Err(not_ahead()) } else { Ok(predicate) }
    }

    /// Returns whether the outcome of a chunk is known, or can be known without waiting. Then notes
    /// it.
    async fn has_outcome(&self, chunk: &mut Chunk) -> bool {
        if chunk.progress.as_ref().is_some_and(|progress| progress.has_arrived(self.recorder)) {
            chunk.outcome = Some(self.outcome(chunk).await);
        }
        chunk.outcome.is_some()
    }

    /// Waits for the outcome of a chunk.
    async fn outcome(&self, chunk: &mut Chunk) -> Result<ChunkOutcome> {
        let Some(progress) = chunk.progress.take() else {
            return chunk.outcome.take().expect("the outcome is noted when it has been read");
        };
        let progress = self.end_download(progress).await?;
        let &[n_begun, mark] = progress[0].data::<u32>() else { panic!("the progress has two words") };
        let n_begun = n_begun as usize;
        Ok(match mark {
            ENDED => ChunkOutcome::Ended(n_begun),
            // It may be stuck in the predicate after the last iteration, which then runs again.
            STUCK => ChunkOutcome::Stopped(n_begun.saturating_sub(1)),
            _ if chunk.is_cut => ChunkOutcome::Stopped(chunk.states.len() - 1),
            _ => ChunkOutcome::Completed,
        })
    }

    /// Records a loop under a guard.
    ///
    /// # Errors
    /// Fails if it cannot be recorded ahead, too.
    pub(super) async fn repeat_under_guard(
        &mut self,
        looped: &'a LoopProgram,
        mut state: Vec<GpuValue>,
        captures: &[GpuValue],
    ) -> Result<Vec<GpuValue>> {
        let Some(on_device) = &looped.on_device else {
            self.rows.register_loops += 1;
            let results = self.repeat_in_registers(looped, &state, captures).await;
            self.rows.register_loops -= 1;
            return results;
        };
        let exit = self.row(RowRole::Exit)?;
        let tensors = self.operands_of_loop(on_device, &state, captures)?;
        self.dispatch(&on_device.shader, &tensors, [1; 3], &[]);
        let words = tensors.last().expect("the words are the last binding");
        let guards = [Some(&exit), None];
        self.open(&Opening { predicate: words, expected: LOOP_STATES[0], guards, progress: [0, STUCK] })?;
        self.guard = Some(exit);
        self.state_of_words(on_device, words, &mut state)?;
        Ok(state)
    }

    /// Records a loop under a guard, with its state in registers.
    async fn repeat_in_registers(
        &mut self,
        looped: &'a LoopProgram,
        state: &[GpuValue],
        captures: &[GpuValue],
    ) -> Result<Vec<GpuValue>> {
        let exit = self.row(RowRole::Exit)?;
        let expected = looped.expected.load(Ordering::Relaxed) as usize;
        if expected > MAX_ITERATIONS {
            return Err(not_ahead());
        }
        let mut registers = Vec::new();
        for value in state {
            let GpuValue::Tensor(tensor) = value else { return Err(not_ahead()) };
            let register = self.recorder.tensor(tensor.n_bytes())?;
            self.copy_under_guard(tensor, &register);
            registers.push(register);
        }
        let arguments: Vec<GpuValue> =
            registers.iter().cloned().map(GpuValue::Tensor).chain(captures.iter().cloned()).collect();
        let length = if expected == 0 { FIRST_ITERATIONS } else { expected };
        for _ in 0..length {
            self.begin_iteration(looped.node).await?;
            self.count_inner_iteration()?;
            let predicate = self.unknown_predicate(&looped.cond, arguments.clone()).await?;
            let entry = self.row(RowRole::Entry)?;
            let guards = [Some(&entry), Some(&exit)];
            self.open(&Opening { predicate: &predicate, expected: 1, guards, progress: [0; 2] })?;
            let (results, after) = self.guarded_region(&looped.body, arguments.clone(), entry).await?;
            self.guard = Some(after);
            self.move_to(&registers, &results)?;
        }
        // One more predicate tells whether these iterations were enough.
        let predicate = self.unknown_predicate(&looped.cond, arguments).await?;
        let guards = [Some(&exit), None];
        self.open(&Opening { predicate: &predicate, expected: 0, guards, progress: [0, STUCK] })?;
        self.guard = Some(exit);
        Ok(registers.into_iter().map(GpuValue::Tensor).collect())
    }

    /// Copies values to registers at once: a value may be another register.
    fn move_to(&mut self, registers: &[Arc<GpuTensor>], values: &[GpuValue]) -> Result<()> {
        let mut moved = Vec::new();
        for (register, value) in registers.iter().zip(values) {
            let GpuValue::Tensor(value) = value else { return Err(not_ahead()) };
            if Arc::ptr_eq(register, value) {
                continue;
            }
            let mut value = value.clone();
            if registers.iter().any(|other| Arc::ptr_eq(other, &value)) {
                let copy = self.recorder.tensor(value.n_bytes())?;
                self.copy_under_guard(&value, &copy);
                value = copy;
            }
            moved.push((value, register));
        }
        for (value, register) in moved {
            self.copy_under_guard(&value, register);
        }
        Ok(())
    }
}
