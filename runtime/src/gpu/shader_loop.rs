//! Loops that shaders run by themselves: loops over scalars in one thread, loops over small tensors
//! in one workgroup, and loops with independent iterations in a thread each.
//!
//! Such a shader is *stuck* if an iteration fails or if its loops take too many steps. A run of a
//! program assumes that none is, so that nothing waits for the outcome of a loop: like a failed
//! check, a stuck shader is found when the run reads something back, at its end at the latest. The
//! [`Assumption`] is then wrong, all that the run has computed is dropped, and the program runs
//! again, with that loop in another way. Unless the loop has failed, some runs after it take this
//! way at once.

use super::ahead::not_ahead;
use super::lower::groups;
use super::memory::{GpuTensor, GpuValue, PushedElements, SavedElement, StackItem};
use super::queue::bytes_of;
use super::run::{OpenCheck, ProgramRun};
use super::shader::CompiledShader;
use anabranch_dsl::fusion::{LOOP_STATES, PARALLEL_LOOP_THREADS};
use anabranch_dsl::ir::dependence::LoopVarRole;
use anabranch_dsl::ir::{Node, Value};
use anabranch_dsl::passes::CountedLoop;
use anabranch_dsl::{DType, HostTensor, Result, TensorType};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The steps of a thread of a parallel loop. A driver may end a dispatch that takes seconds, and
/// one that computes on a CPU ends loops early.
const MAX_STEPS: [u32; 2] = [1 << 16, 1 << 15];

/// The iterations of a dispatch. A step can be stopped between two of them.
const AT_ONCE: u32 = 1 << 18;

/// The threads that add the terms of a sum.
const SUM_THREADS: u64 = 256;

/// The elements of an iteration for which a stack has memory at first.
const FIRST_CAPACITY: u32 = 16;

/// The part of the memory budget of a device that the elements which a loop pushes may have. A loop
/// that pushes more runs one iteration after another, and its elements may move to the host.
const MAX_PART_OF_BUDGET: u64 = 4;

/// The runs after one whose assumption was wrong that do not make it. One that makes it in vain
/// runs twice.
const SUSPENDED_RUNS: u32 = 64;

/// That the shader of a loop is not stuck, and how many elements its iterations push.
#[derive(Clone, Debug, Default)]
pub(super) struct Assumption(Arc<AssumedOfLoop>);

#[derive(Debug, Default)]
struct AssumedOfLoop {
    /// The number of runs that will not make the assumption.
    n_suspended: AtomicU32,
    /// The most elements of an iteration for each stack.
    capacities: Vec<AtomicU32>,
}

impl Assumption {
    /// Returns the first assumption of a loop that pushes to so many stacks.
    pub(super) fn new(n_stacks: usize) -> Assumption {
        let capacities = (0..n_stacks).map(|_| AtomicU32::new(FIRST_CAPACITY)).collect();
        Assumption(Arc::new(AssumedOfLoop { n_suspended: AtomicU32::new(0), capacities }))
    }

    /// Returns whether a run that begins makes the assumption.
    pub(super) fn begin_run(&self) -> bool {
        let fewer = |n: u32| n.checked_sub(1);
        self.0.n_suspended.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_err()
    }

    /// Lets some later runs not make the assumption, because it was wrong.
    pub(super) fn suspend(&self) {
        self.0.n_suspended.store(SUSPENDED_RUNS, Ordering::Relaxed);
    }

    fn capacities(&self) -> Vec<u32> {
        self.0.capacities.iter().map(|capacity| capacity.load(Ordering::Relaxed)).collect()
    }

    /// Assumes at least as many elements as were needed.
    fn raise(&self, needed: &[u32]) {
        for (capacity, needed) in self.0.capacities.iter().zip(needed) {
            capacity.fetch_max(needed.checked_next_power_of_two().unwrap_or(u32::MAX), Ordering::Relaxed);
        }
    }

    fn is(&self, other: &Assumption) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Why an attempt to run a program is of no use.
#[derive(Debug)]
pub(super) enum Refuted {
    /// The shader of a loop was stuck.
    Stuck(Assumption),
    /// There was no memory for what an iteration pushed. The next attempt has more.
    NeedsMemory,
}

/// A loop over scalars or small tensors, with its state in an array of words.
#[derive(Debug)]
pub(super) struct LoopOnDevice {
    pub(super) shader: Arc<CompiledShader>,
    /// Whether several threads run it.
    pub(super) is_of_workgroup: bool,
    /// Reports a failed check unless the first word says that the loop has ended.
    pub(super) has_ended: Arc<CompiledShader>,
    /// The operands that the shader reads in memory.
    pub(super) in_memory: Vec<usize>,
    /// The words of the operands, and those of lists for their lengths.
    pub(super) operands: Vec<Option<Range<usize>>>,
    /// The first words, with the constants of the loop.
    pub(super) initial: Vec<u32>,
    pub(super) n_words: usize,
    pub(super) assumption: Assumption,
}

/// A loop with a thread for each iteration.
#[derive(Debug)]
pub(super) struct ParallelLoopProgram {
    pub(super) shader: Arc<CompiledShader>,
    /// The captures that the shader reads in memory, as operands of the node.
    pub(super) in_memory: Vec<usize>,
    /// The roles of the loop variables, and the shaders that add the terms of sums.
    pub(super) variables: Vec<(LoopVarRole, Option<Arc<CompiledShader>>)>,
    /// For each stack that is popped from its group: stacks to which one loop has pushed.
    pub(super) groups: Vec<usize>,
    /// The lists of which iterations claim elements, as operands of the node.
    pub(super) claimed: Vec<usize>,
    pub(super) counted: CountedLoop,
    /// The trip count, if the graph determines it.
    pub(super) trips: Option<i64>,
    pub(super) assumption: Assumption,
}

/// The memory that a parallel loop has written.
struct IterationOutputs {
    /// The number of iterations.
    n: u32,
    /// For each sum its terms.
    terms: Vec<Option<Arc<GpuTensor>>>,
    /// The counters after the last iteration.
    counters: Arc<GpuTensor>,
    /// For each stack that is pushed to the number of its rows of elements.
    capacities: Vec<u32>,
    /// The elements of these stacks, and their depths.
    saved: Option<[Arc<SavedElement>; 2]>,
}

/// Returns the workgroups of a parallel loop that a single dispatch runs.
pub(super) fn parallel_workgroups(trips: i64) -> Option<[u32; 3]> {
    let trips = u32::try_from(trips).ok().filter(|n| (1..=AT_ONCE).contains(n))?;
    Some(groups((trips as usize).div_ceil(PARALLEL_LOOP_THREADS)))
}

/// Returns numbers of 32 bits, or `bool`s, as words.
pub(super) fn words_of(tensor: &HostTensor) -> Vec<u32> {
    let word = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().expect("a word has four bytes"));
    bytes_of(tensor.buffer()).chunks(4).map(word).collect()
}

/// Returns a counter after some iterations.
pub(super) fn advanced(first: &HostTensor, step: i64, n: u32) -> HostTensor {
    let after = words_of(first)[0].wrapping_add((step as u32).wrapping_mul(n));
    match first.dtype() {
        DType::I32 => HostTensor::new(first.shape(), vec![after as i32]),
        _ => HostTensor::new(first.shape(), vec![after]),
    }
}

/// The memory of a tensor or of the elements of a list.
fn memory_of(value: &GpuValue) -> Arc<GpuTensor> {
    match value {
        GpuValue::Tensor(tensor) => tensor.clone(),
        GpuValue::List(list) => list.elements().clone(),
        GpuValue::Stack(_) => panic!("a shader reads no stack"),
    }
}

impl<'a> ProgramRun<'a> {
    /// Returns whether the run makes an assumption.
    pub(super) fn assumes(&self, assumption: &Assumption) -> bool {
        !self.wrong.iter().any(|wrong| wrong.is(assumption))
    }

    /// Runs a loop by its shader. Returns whether it has ended. If it has not, the state is that
    /// before an iteration that the shader cannot run.
    pub(super) async fn repeat_on_device(
        &mut self,
        node: Node,
        looped: &LoopOnDevice,
        state: &mut [GpuValue],
        captures: &[GpuValue],
    ) -> Result<bool> {
        let tensors = self.operands_of_loop(looped, state, captures)?;
        let words = tensors.last().expect("the words are the last binding");
        if self.assumes(&looped.assumption) {
            self.check_stop(node)?;
            self.dispatch(&looped.shader, &tensors, [1; 3], &[]);
            let (failure, number) = self.open_check(OpenCheck::of_loop(node, Vec::new(), looped.assumption.clone()))?;
            self.dispatch(&looped.has_ended, &[words.clone(), failure], [1; 3], &[number]);
            self.state_of_words(looped, words, state)?;
            return Ok(true);
        }
        let [ends, goes_on, _] = LOOP_STATES;
        let mut reached = goes_on;
        while reached == goes_on {
            self.check_stop(node)?;
            self.dispatch(&looped.shader, &tensors, [1; 3], &[]);
            let first = self.copy_of_words(words, 0..1)?;
            let after = self.download(&[(&first, &TensorType::new(DType::U32, []))]).await?;
            reached = after[0].data::<u32>()[0];
        }
        self.state_of_words(looped, words, state)?;
        Ok(reached == ends)
    }

    /// Returns the bindings of the shader of a loop. The last one are its words.
    pub(super) fn operands_of_loop(
        &self,
        looped: &LoopOnDevice,
        state: &[GpuValue],
        captures: &[GpuValue],
    ) -> Result<Vec<Arc<GpuTensor>>> {
        let operands: Vec<&GpuValue> = state.iter().chain(captures).collect();
        let mut tensors: Vec<_> = looped.in_memory.iter().map(|&i| memory_of(operands[i])).collect();
        let places = looped.operands.iter().zip(operands);
        let places = places.filter_map(|(words, operand)| Some((words.clone()?, operand)));
        let initial = self.words(places, looped.initial.clone())?;
        tensors.push(if looped.n_words == looped.initial.len() {
            initial
        } else {
            let words = self.recorder.tensor(4 * looped.n_words as u64)?;
            self.recorder.copy_words([&initial, &words], [0, 0], looped.initial.len() as u64);
            words
        });
        Ok(tensors)
    }

    /// Returns words, with those of operands at some places: the elements, or the length of a list.
    /// A tensor of another size stays as it is.
    fn words<'v>(
        &self,
        operands: impl Iterator<Item = (Range<usize>, &'v GpuValue)>,
        mut words: Vec<u32>,
    ) -> Result<Arc<GpuTensor>> {
        let mut unknown = Vec::new();
        for (place, operand) in operands {
            match operand {
                GpuValue::Tensor(tensor) => match tensor.known() {
                    Some(number) => words[place].copy_from_slice(&words_of(number)),
                    None if tensor.n_bytes() == 4 * place.len() as u64 => unknown.push((place, tensor)),
                    None => {}
                },
                GpuValue::List(list) => words[place.start] = list.len() as u32,
                GpuValue::Stack(_) => {}
            }
        }
        let words = self.recorder.upload(&HostTensor::new([words.len()], words))?;
        for (place, tensor) in unknown {
            self.recorder.copy_words([tensor, &words], [0, place.start], place.len() as u64);
        }
        Ok(words)
    }

    /// Sets the state of a loop to that of its words.
    pub(super) fn state_of_words(
        &self,
        looped: &LoopOnDevice,
        words: &GpuTensor,
        state: &mut [GpuValue],
    ) -> Result<()> {
        for (variable, place) in state.iter_mut().zip(&looped.operands) {
            let place = place.clone().expect("loop variables have words");
            *variable = GpuValue::Tensor(self.copy_of_words(words, place)?);
        }
        Ok(())
    }

    /// Returns some words as a tensor.
    fn copy_of_words(&self, words: &GpuTensor, place: Range<usize>) -> Result<Arc<GpuTensor>> {
        let value = self.recorder.tensor(4 * place.len() as u64)?;
        self.recorder.copy_words([words, &value], [place.start, 0], place.len() as u64);
        Ok(value)
    }

    /// Returns a word as a tensor.
    fn one_word(&self, words: &GpuTensor, place: usize) -> Result<Arc<GpuTensor>> {
        self.copy_of_words(words, place..place + 1)
    }

    /// Returns whether a parallel loop can run with so many iterations, and with its stacks.
    pub(super) fn can_run_in_parallel(&self, looped: &ParallelLoopProgram, trips: i64, state: &[GpuValue]) -> bool {
        let Some(n) = i32::try_from(trips).ok().filter(|&n| n > 0).map(|n| n as u64) else { return false };
        // Under a guard, the workgroups of the program are known.
        if self.guard.is_some() && (looped.trips != Some(trips) || parallel_workgroups(trips).is_none()) {
            return false;
        }
        let limits = &self.recorder.shared.limits;
        let has_sums = looped.variables.iter().any(|(_, sum)| sum.is_some());
        let adds_too_long = limits.max_iterations.is_some_and(|most| n.div_ceil(SUM_THREADS) > most as u64);
        // A stack has more rows of elements than of depths.
        let rows = looped.assumption.capacities().into_iter().map(u64::from).sum::<u64>().max(u64::from(has_sums));
        let of_budget = self.recorder.shared.memory_budget.map_or(u64::MAX, |budget| budget / MAX_PART_OF_BUDGET);
        let fits = rows.saturating_mul(4 * n) <= limits.max_bytes.min(i32::MAX as u64).min(of_budget);
        let has_pushed = |pushed: &Arc<PushedElements>| u64::from(pushed.n_iterations) == n;
        let can_pop = || self.popped(looped, state).is_some_and(|groups| groups.iter().flatten().all(has_pushed));
        fits && !(has_sums && adds_too_long) && can_pop()
    }

    /// Returns what is at the top of the stacks that a parallel loop pops from, by group, if loops
    /// have pushed it as the shader expects.
    fn popped(&self, looped: &ParallelLoopProgram, state: &[GpuValue]) -> Option<Vec<Vec<Arc<PushedElements>>>> {
        let mut groups: Vec<Vec<Arc<PushedElements>>> = Vec::new();
        let stacks = looped.variables.iter().zip(state).filter(|((role, _), _)| *role == LoopVarRole::Popped);
        for ((_, value), &group) in stacks.zip(&looped.groups) {
            let GpuValue::Stack(stack) = value else { panic!("a stack is popped from") };
            let Some(StackItem::OfIterations(pushed)) = stack.items().next() else { return None };
            groups.resize(groups.len().max(group + 1), Vec::new());
            let is_of_group = |first: &Arc<PushedElements>| Arc::ptr_eq(&first.elements, &pushed.elements);
            if !groups[group].first().is_none_or(is_of_group) {
                return None;
            }
            groups[group].push(pushed.clone());
        }
        Some(groups)
    }

    /// Runs all iterations of a parallel loop, which can run.
    pub(super) async fn run_in_parallel(
        &mut self,
        node: Node,
        looped: &ParallelLoopProgram,
        n: u32,
        state: Vec<GpuValue>,
        captures: &[GpuValue],
    ) -> Result<Vec<GpuValue>> {
        let groups = self.popped(looped, &state).expect("the loop can run");
        let capacities = looped.assumption.capacities();
        let operands: Vec<&GpuValue> = state.iter().chain(captures).collect();
        let mut tensors = vec![self.words_of_iterations(looped, &operands, &groups, &capacities, n)?];
        tensors.extend(looped.in_memory.iter().map(|&i| memory_of(operands[i])));
        for pushed in groups.iter().map(|group| &group[0]) {
            tensors.push(self.recorder.unstacked(&pushed.elements)?);
            tensors.push(self.recorder.unstacked(&pushed.depths)?);
        }
        let mut after = Vec::new();
        for (i, value) in state.into_iter().enumerate() {
            after.push(match value {
                GpuValue::List(list) => {
                    let n_words = self.size(self.graph.node(node).operands[i]);
                    let len = list.len();
                    let list = self.own_list(list, n_words, len, true)?;
                    tensors.push(list.elements().clone());
                    tensors.push(list.marks().expect("a list of its own has marks").clone());
                    if looped.claimed.contains(&i) {
                        let claims = self.recorder.tensor(4 * len as u64)?;
                        self.recorder.clear(&claims);
                        tensors.push(claims);
                    }
                    GpuValue::List(list)
                }
                other => other,
            });
        }
        let mut terms = Vec::new();
        for (_, sum) in &looped.variables {
            terms.push(sum.as_ref().map(|_| self.recorder.tensor(4 * u64::from(n))).transpose()?);
        }
        tensors.extend(terms.iter().flatten().cloned());
        let n_counters = looped.variables.iter().filter(|(role, _)| matches!(role, LoopVarRole::Counter(_))).count();
        let counters = self.recorder.tensor(4 * n_counters as u64)?;
        tensors.push(counters.clone());
        let n_rows = capacities.iter().sum::<u32>();
        let mut checked = Vec::new();
        let mut saved = None;
        if !capacities.is_empty() {
            let elements = self.recorder.tensor(4 * u64::from(n_rows) * u64::from(n))?;
            let depths = self.recorder.tensor(4 * capacities.len() as u64 * u64::from(n))?;
            let needed = self.recorder.tensor(4 * capacities.len() as u64)?;
            self.recorder.clear(&needed);
            tensors.extend([elements.clone(), depths.clone(), needed.clone()]);
            checked.push(needed);
            saved = Some([elements, depths].map(|tensor| self.recorder.stacked(tensor)));
        }
        let (failure, number) = self.open_check(OpenCheck::of_loop(node, checked, looped.assumption.clone()))?;
        tensors.push(failure);
        let max_steps = MAX_STEPS[usize::from(self.recorder.shared.is_software)];
        for first in (0..n).step_by(AT_ONCE as usize) {
            // Nothing waits under a guard.
            if self.guard.is_none() {
                self.begin_iteration(node).await?;
            }
            let workgroups = parallel_workgroups((n - first).min(AT_ONCE).into()).expect("there are iterations");
            self.dispatch(&looped.shader, &tensors, workgroups, &[n, first, max_steps, number]);
        }
        self.after_iterations(looped, after, IterationOutputs { n, terms, counters, capacities, saved })
    }

    /// Returns the state of a parallel loop after its iterations, given the state before with the
    /// lists after them.
    fn after_iterations(
        &self,
        looped: &ParallelLoopProgram,
        mut state: Vec<GpuValue>,
        outputs: IterationOutputs,
    ) -> Result<Vec<GpuValue>> {
        let IterationOutputs { n, mut terms, counters, capacities, saved } = outputs;
        let (mut next_counter, mut first_row, mut row_of_depths) = (0, 0, 0);
        for (i, (role, sum)) in looped.variables.iter().enumerate() {
            match (role, &state[i]) {
                (LoopVarRole::Counter(step), GpuValue::Tensor(first)) => {
                    state[i] = GpuValue::Tensor(match first.known() {
                        // A loop that counts up to it need not wait.
                        Some(first) => self.recorder.upload(&advanced(first, *step, n))?,
                        None => self.one_word(&counters, next_counter)?,
                    });
                    next_counter += 1;
                }
                (LoopVarRole::Sum, GpuValue::Tensor(first)) => {
                    let terms = terms[i].take().expect("a sum has terms");
                    let (shader, y) = (sum.as_ref().expect("a sum has a shader"), self.recorder.tensor(4)?);
                    self.dispatch(shader, &[first.clone(), terms, y.clone()], [1; 3], &[n]);
                    state[i] = GpuValue::Tensor(y);
                }
                (LoopVarRole::Pushed, GpuValue::Stack(stack)) => {
                    let [elements, depths] = saved.clone().expect("the loop pushes");
                    let pushed = PushedElements { n_iterations: n, elements, depths, first_row, row_of_depths };
                    first_row += capacities[row_of_depths as usize];
                    row_of_depths += 1;
                    state[i] = GpuValue::Stack(stack.push(StackItem::OfIterations(Arc::new(pushed))));
                }
                (LoopVarRole::Popped, GpuValue::Stack(stack)) => {
                    let (below, _) = stack.pop().expect("the loop can run");
                    state[i] = GpuValue::Stack(below);
                }
                _ => {}
            }
        }
        Ok(state)
    }

    /// Returns the words of a parallel loop; see the module of its shader.
    fn words_of_iterations(
        &self,
        looped: &ParallelLoopProgram,
        operands: &[&GpuValue],
        groups: &[Vec<Arc<PushedElements>>],
        capacities: &[u32],
        n: u32,
    ) -> Result<Arc<GpuTensor>> {
        let mut known = vec![0; operands.len()];
        let mut capacities = capacities.iter();
        let mut popped: Vec<_> = groups.iter().map(|group| group.iter()).collect();
        let mut of_popped = looped.groups.iter();
        for (i, (role, _)) in looped.variables.iter().enumerate() {
            match role {
                LoopVarRole::Pushed => known[i] = *capacities.next().expect("each stack has a capacity"),
                LoopVarRole::Popped => {
                    let group = *of_popped.next().expect("each stack has a group");
                    let pushed = popped[group].next().expect("each stack has elements");
                    known[i] = pushed.first_row * n;
                    known.push(pushed.row_of_depths * n);
                }
                _ => {}
            }
        }
        let places = operands.iter().enumerate().map(|(i, operand)| (i..i + 1, *operand));
        self.words(places, known)
    }

    /// Splits what iterations of parallel loops have pushed to a stack into single elements, until
    /// so many are on top. Iterations may have pushed nothing.
    pub(super) async fn split(&mut self, value: Value, n_elements: usize) -> Result<()> {
        let is_one = |item: &StackItem| matches!(item, StackItem::One(_));
        let GpuValue::Stack(stack) = self.value(value) else { panic!("{value} is a stack") };
        if stack.items().take(n_elements).all(is_one) {
            return Ok(());
        }
        if self.guard.is_some() {
            return Err(not_ahead());
        }
        let mut below = stack.clone();
        let mut from_top = Vec::new();
        while from_top.len() < n_elements {
            let Some((rest, item)) = below.pop() else { break };
            below = rest;
            match item {
                StackItem::One(element) => from_top.push(element),
                StackItem::OfIterations(pushed) => self.split_item(&pushed, &mut from_top).await?,
            }
        }
        let split = from_top.into_iter().rev().fold(below, |stack, element| stack.push(StackItem::One(element)));
        self.set(value, GpuValue::Stack(split));
        Ok(())
    }

    /// Adds the elements that iterations have pushed, from the top.
    async fn split_item(&mut self, pushed: &PushedElements, to: &mut Vec<Arc<SavedElement>>) -> Result<()> {
        let elements = self.recorder.unstacked(&pushed.elements)?;
        let depths = self.recorder.unstacked(&pushed.depths)?;
        let n = pushed.n_iterations as usize;
        let ty = TensorType::new(DType::U32, [(depths.n_bytes() / 4) as usize]);
        let known = self.download(&[(&depths, &ty)]).await?;
        let depths = &known[0].data::<u32>()[pushed.row_of_depths as usize * n..][..n];
        for (iteration, &depth) in depths.iter().enumerate().rev() {
            self.recorder.keep_pace().await?;
            for row in (0..depth as usize).rev() {
                let element = self.one_word(&elements, (pushed.first_row as usize + row) * n + iteration)?;
                to.push(self.recorder.stacked(element));
            }
        }
        Ok(())
    }

    /// Notes that this attempt is of no use, since the shader of a loop was stuck. If there is an
    /// operand, it tells how many elements iterations would have pushed.
    pub(super) async fn refute(&self, assumption: &Assumption, operands: &[Arc<GpuTensor>]) -> Result<()> {
        let mut refuted = Refuted::Stuck(assumption.clone());
        if let [needed] = operands {
            let ty = TensorType::new(DType::U32, [(needed.n_bytes() / 4) as usize]);
            let needed = self.recorder.download(&[(needed, &ty)]).await?;
            let needed = needed[0].data::<u32>();
            if needed.iter().any(|&n| n > 0) {
                assumption.raise(needed);
                refuted = Refuted::NeedsMemory;
            }
        }
        // The first one that is found is that of the first loop.
        let _ = self.refuted.set(refuted);
        Ok(())
    }

    /// Fails if an assumption of the run is wrong.
    pub(super) fn check_assumptions(&self) -> Result<()> {
        if self.refuted.get().is_some() { Err(not_ahead()) } else { Ok(()) }
    }
}
