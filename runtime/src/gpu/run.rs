//! Runs of programs.
//!
//! The thread of the device records what a program does. It decides branches and loops whose
//! predicates it knows, and records loops that count ahead of the device. Others are recorded under
//! guards (`ahead.rs`), or their predicates are read back. A loop over scalars is a shader that
//! runs many iterations.

use super::ahead::{Guard, GuardRows, MAX_COUNTED, WorkgroupCounts, not_ahead};
use super::list;
use super::memory::{GpuStack, GpuTensor, GpuValue, SavedElement, StackItem, bytes_of_type};
use super::program::{CondProgram, Dispatch, GpuOp, LoopProgram, RegionProgram, StackSum, Transfer};
use super::queue::{CommandRecorder, Readback, Workgroups};
use super::shader::CompiledShader;
use super::shader_loop::{Assumption, Refuted, advanced};
use anabranch_dsl::interp::{self, RunContext, assertion_failed, empty_stack, not_finite, stacks_differ, stopped};
use anabranch_dsl::ir::{Graph, Node, Op, StackOp, Value};
use anabranch_dsl::ops::EvalCx;
use anabranch_dsl::passes::{CountedLoop, Limit};
use anabranch_dsl::{Buffer, DType, Diagnostic, HostTensor, Result, TensorType};
use std::cell::{Cell, OnceCell};
use std::sync::Arc;

/// A check of a run whose outcome is not known yet.
pub(super) struct OpenCheck {
    node: Node,
    /// The index of the first operand from which the error follows.
    first: usize,
    /// These operands.
    operands: Vec<Arc<GpuTensor>>,
    /// The number of elements of the list, if the node is an operation on one.
    list_len: Option<usize>,
    /// The assumption about the node, if it is a loop.
    assumption: Option<Assumption>,
}

impl OpenCheck {
    /// Returns the check of indices of a list: its operands are the indices, and the marks of the
    /// elements before if they are kept.
    pub(super) fn of_list(node: Node, operands: Vec<Arc<GpuTensor>>, len: usize) -> OpenCheck {
        OpenCheck { node, first: 1, operands, list_len: Some(len), assumption: None }
    }

    /// Returns the check that the shader of a loop is not stuck.
    pub(super) fn of_loop(node: Node, operands: Vec<Arc<GpuTensor>>, assumption: Assumption) -> OpenCheck {
        OpenCheck { node, first: 0, operands, list_len: None, assumption: Some(assumption) }
    }
}

/// The number of bytes that open checks keep in memory before their outcome is asked for.
const MAX_CHECKED_BYTES: u64 = 64 << 20;

/// The number of open checks after which their outcome is asked for.
const MAX_OPEN_CHECKS: usize = 256;

/// A run of a program.
pub(super) struct ProgramRun<'a> {
    pub(super) graph: &'a Graph,
    pub(super) recorder: &'a CommandRecorder,
    cx: &'a RunContext<'a>,
    values: Vec<Option<GpuValue>>,
    checks: OpenChecks,
    /// The workgroups of the program under guards.
    pub(super) counts: &'a WorkgroupCounts,
    /// The guard under which shaders are recorded, if their predicate is not known.
    pub(super) guard: Option<Guard>,
    pub(super) rows: GuardRows,
    /// The assumptions that the run does not make: earlier runs, or earlier attempts of this one,
    /// have shown that they are wrong.
    pub(super) wrong: &'a [Assumption],
    /// Why this attempt is of no use, if it is.
    pub(super) refuted: OnceCell<Refuted>,
    /// The operations of each node, if they are traced.
    #[cfg(feature = "testing")]
    flops: OnceCell<Vec<f64>>,
}

/// The end of an attempt to run a program.
pub(super) enum RunAttempt {
    Completed(Vec<GpuValue>),
    Refuted(Refuted),
}

/// The checks of a run whose outcome is not known yet, in the order of the program.
#[derive(Default)]
struct OpenChecks {
    open: Vec<OpenCheck>,
    /// The bytes of their operands.
    n_bytes: u64,
    /// The word of failures: 0, or the number of the first check that has failed. Earlier checks
    /// have larger numbers.
    failure: Option<Arc<GpuTensor>>,
    /// Whether the host has read that one has failed.
    has_failed: Cell<bool>,
}

/// Checks that a run has made, and copies of tensors after them.
pub(super) struct CheckedReadback {
    open: Vec<OpenCheck>,
    readback: Readback,
}

impl CheckedReadback {
    /// Returns whether the device has made the copies, so that nobody waits for them.
    pub(super) fn has_arrived(&self, recorder: &CommandRecorder) -> bool {
        recorder.has_arrived(&self.readback)
    }
}

/// Returns how often a loop runs, given the first value of its counter and, if that is a tensor,
/// the limit.
fn trips_between(counted: &CountedLoop, bounds: &[&HostTensor]) -> Option<i64> {
    let integer = |tensor: &HostTensor| match tensor.buffer() {
        Buffer::I32(x) => i64::from(x[0]),
        Buffer::I64(x) => x[0],
        other => panic!("a counter is an integer, not {}", other.dtype()),
    };
    let limit = match (counted.limit, bounds) {
        (Limit::Number(n), _) => n,
        (Limit::Before(_), [_, limit]) => integer(limit),
        (Limit::Before(_), _) => panic!("the limit is a tensor"),
    };
    counted.trips(integer(bounds[0]), limit)
}

impl<'a> ProgramRun<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        recorder: &'a CommandRecorder,
        cx: &'a RunContext<'a>,
        counts: &'a WorkgroupCounts,
        wrong: &'a [Assumption],
    ) -> ProgramRun<'a> {
        ProgramRun {
            graph,
            recorder,
            cx,
            values: vec![None; graph.n_values()],
            checks: OpenChecks::default(),
            counts,
            guard: None,
            rows: GuardRows::default(),
            wrong,
            refuted: OnceCell::new(),
            #[cfg(feature = "testing")]
            flops: OnceCell::new(),
        }
    }

    /// Runs the program to its end.
    pub(super) async fn run(mut self, root: &'a RegionProgram, inputs: Vec<GpuValue>) -> Result<RunAttempt> {
        let mut results = self.region(root, inputs).await;
        if !results.as_ref().is_err_and(|error| error.kind.is_stop()) {
            // An error may have ended work under a guard.
            self.guard = None;
            // A check that was made before another failure has failed before it. A device that
            // failed does not know.
            results = match self.recorder.check() {
                Ok(()) => self.settle().await.and(results),
                Err(error) => results.and(Err(error)),
            };
        }
        match self.refuted.take() {
            // Any error may follow from wrong values.
            Some(refuted) if !results.as_ref().is_err_and(|error| error.kind.is_stop()) => {
                Ok(RunAttempt::Refuted(refuted))
            }
            _ => results.map(RunAttempt::Completed),
        }
    }

    pub(super) fn value(&self, value: Value) -> &GpuValue {
        self.values[value.index()].as_ref().expect("a value is computed before it is used")
    }

    /// Takes a value that is not used any more.
    pub(super) fn take(&mut self, value: Value) -> GpuValue {
        self.values[value.index()].take().expect("a value is computed before it is used")
    }

    pub(super) fn tensor(&self, value: Value) -> Arc<GpuTensor> {
        let GpuValue::Tensor(tensor) = self.value(value) else { panic!("{value} is a tensor") };
        tensor.clone()
    }

    fn stack(&self, value: Value) -> GpuStack {
        let GpuValue::Stack(stack) = self.value(value) else { panic!("{value} is a stack") };
        stack.clone()
    }

    pub(super) fn set(&mut self, value: Value, to: GpuValue) {
        self.values[value.index()] = Some(to);
    }

    /// Allocates the memory of a tensor.
    fn allocate(&mut self, value: Value) -> Result<Arc<GpuTensor>> {
        let tensor = self.memory(value)?;
        self.set(value, GpuValue::Tensor(tensor.clone()));
        Ok(tensor)
    }

    /// Returns memory for a tensor or for an element of a stack.
    pub(super) fn memory(&mut self, value: Value) -> Result<Arc<GpuTensor>> {
        let n_bytes = bytes_of_type(self.graph.ty(value).element());
        self.recorder.tensor(n_bytes.expect("the device runs operations of known shapes only"))
    }

    /// Returns the number of elements of a tensor, or of an element of a stack or list.
    pub(super) fn size(&self, value: Value) -> usize {
        self.graph.ty(value).element().shape.size().expect("the device runs operations of known shapes only")
    }

    /// Returns whether nothing else has the memory of a tensor, so that it can be written again.
    /// Under a guard, the registers of loops have it.
    fn is_unique(&self, value: Value) -> bool {
        let GpuValue::Tensor(tensor) = self.value(value) else { panic!("{value} is a tensor") };
        self.guard.is_none() && tensor.known().is_none() && Arc::strong_count(tensor) == 1
    }

    /// Records a region. Its values are forgotten afterwards, also if it fails.
    pub(super) async fn region(
        &mut self,
        program: &'a RegionProgram,
        arguments: Vec<GpuValue>,
    ) -> Result<Vec<GpuValue>> {
        self.region_without(program, arguments, None).await
    }

    /// Records a region. `advances` are an operation that is left out and the index of the loop
    /// variable that it would advance, which the region then yields as it was.
    async fn region_without(
        &mut self,
        program: &'a RegionProgram,
        arguments: Vec<GpuValue>,
        advances: Option<(usize, usize)>,
    ) -> Result<Vec<GpuValue>> {
        for (&param, argument) in program.params.iter().zip(arguments) {
            self.set(param, argument);
        }
        let left_out = advances.map(|(op, variable)| {
            self.set(program.yields[variable], self.value(program.params[variable]).clone());
            op
        });
        for (i, (op, dead)) in program.ops.iter().zip(&program.dead).enumerate() {
            if left_out != Some(i)
                && let Err(error) = self.op(op, dead).await
            {
                let begun = program.ops[..=i].iter().flat_map(|op| op.values(self.graph));
                for value in begun.chain(program.params.iter().chain(&program.yields).copied()) {
                    self.values[value.index()] = None;
                }
                let data = self.graph.node(program.origins[i]);
                let is_located = error.loc().is_some();
                let of_node = |e: Diagnostic| e.at(data.loc, format!("in `{}`", data.name_in_errors()));
                return Err(if is_located { error } else { of_node(error) });
            }
            for value in dead {
                self.values[value.index()] = None;
            }
        }
        let results = program.yields.iter().map(|&v| self.value(v).clone()).collect();
        for value in program.yields.iter().chain(&program.params) {
            self.values[value.index()] = None;
        }
        Ok(results)
    }

    /// Tells the model of separate queues which product the next shader computes.
    #[cfg(feature = "testing")]
    fn trace_product(&self, node: Node) {
        let mut trace = self.recorder.shared.counters.trace.lock().expect("no thread panics with the trace");
        if trace.is_on {
            trace.begin(self.flops.get_or_init(|| super::modelled::flops(self.graph))[node.index()]);
        }
    }

    /// Records an operation. `dead` are the values that are not used afterwards.
    async fn op(&mut self, op: &'a GpuOp, dead: &[Value]) -> Result<()> {
        match op {
            GpuOp::Dispatch(dispatch) => {
                #[cfg(feature = "testing")]
                dispatch.product.into_iter().for_each(|node| self.trace_product(node));
                let Dispatch { shader, inputs, outputs, workgroups, parameters, checked, check, .. } = dispatch;
                let mut tensors: Vec<Arc<GpuTensor>> = inputs.iter().map(|&v| self.tensor(v)).collect();
                for &output in outputs {
                    tensors.push(match &self.values[output.index()] {
                        Some(GpuValue::Tensor(tensor)) => tensor.clone(),
                        _ => self.allocate(output)?,
                    });
                }
                if let Some(check) = check {
                    let operands = check.operands.iter().map(|&v| self.tensor(v)).collect();
                    let open =
                        OpenCheck { node: check.node, first: check.first, operands, list_len: None, assumption: None };
                    let (failure, number) = self.open_check(open)?;
                    tensors.push(failure);
                    let parameters = [&parameters[..], &[number]].concat();
                    self.dispatch(shader, &tensors, *workgroups, &parameters);
                    if self.guard.is_none() && self.has_many_checks() {
                        self.settle().await?;
                    }
                } else {
                    self.dispatch(shader, &tensors, *workgroups, parameters);
                }
                if let Some(node) = *checked
                    && !self.are_finite(outputs).await?
                    && self.are_finite(inputs).await?
                {
                    let data = self.graph.node(node);
                    return Err(not_finite(data.op.name(), data.loc));
                }
            }
            GpuOp::Transfer(Transfer::Share { from, to }) => self.set(*to, self.value(*from).clone()),
            GpuOp::Transfer(Transfer::Copy { from, to }) => {
                if dead.contains(from) && self.is_unique(*from) {
                    let tensor = self.take(*from);
                    self.set(*to, tensor);
                    return Ok(());
                }
                let (from, to) = (self.tensor(*from), self.allocate(*to)?);
                self.recorder.copy(&from, &to);
            }
            GpuOp::Transfer(Transfer::Zeros { to }) => {
                let tensor = self.allocate(*to)?;
                self.recorder.clear(&tensor);
            }
            GpuOp::Transfer(Transfer::Uninitialized { to }) => drop(self.allocate(*to)?),
            GpuOp::Transfer(Transfer::Constant { tensor, to }) => self.set(*to, GpuValue::Tensor(tensor.clone())),
            GpuOp::Stack(op, node) => {
                let stack = self.graph.node(*node).operands.first();
                match (op, stack) {
                    (StackOp::Pop, Some(&stack)) => self.split(stack, 1).await?,
                    (StackOp::ZerosLike, Some(&stack)) => self.split(stack, usize::MAX).await?,
                    _ => {}
                }
                self.stack_op(op, *node)?;
            }
            GpuOp::AddStacks(node, sum) => {
                for &operand in &self.graph.node(*node).operands {
                    self.split(operand, usize::MAX).await?;
                }
                self.add_stacks(*node, sum)?;
            }
            GpuOp::List(list) => {
                Box::pin(self.list_op(list, dead)).await?;
                if self.guard.is_none() && self.has_many_checks() {
                    self.settle().await?;
                }
            }
            GpuOp::Cond(cond) => {
                let mut operands = self.last_operands(cond.node, dead, usize::MAX);
                let captures = operands.split_off(1);
                let results = Box::pin(self.cond(cond, &operands[0], captures)).await?;
                self.set_results(cond.node, results);
            }
            GpuOp::While(looped) => {
                let n_vars = self.graph.while_of(looped.node).n_vars();
                let mut state = self.last_operands(looped.node, dead, n_vars);
                let captures = state.split_off(n_vars);
                let results = Box::pin(self.while_loop(looped, state, &captures)).await?;
                self.set_results(looped.node, results);
                if self.guard.is_none() && self.has_many_checks() {
                    self.settle().await?;
                }
            }
            GpuOp::Call(node, region) => {
                let operands = self.last_operands(*node, dead, usize::MAX);
                let results = Box::pin(self.region(region, operands)).await?;
                self.set_results(*node, results);
            }
        }
        Ok(())
    }

    /// Runs a shader, under the current guard if there is one.
    pub(super) fn dispatch(
        &self,
        shader: &CompiledShader,
        tensors: &[Arc<GpuTensor>],
        workgroups: [u32; 3],
        parameters: &[u32],
    ) {
        let workgroups = match &self.guard {
            Some(guard) => guard.workgroups(self.counts, workgroups),
            None => Workgroups::Direct(workgroups),
        };
        self.recorder.dispatch(shader, tensors, workgroups, parameters);
    }

    /// Returns whether the checks whose outcome is not known are many, or keep much memory.
    pub(super) fn has_many_checks(&self) -> bool {
        self.checks.n_bytes > MAX_CHECKED_BYTES || self.checks.open.len() >= MAX_OPEN_CHECKS
    }

    async fn cond(
        &mut self,
        cond: &'a CondProgram,
        predicate: &GpuValue,
        captures: Vec<GpuValue>,
    ) -> Result<Vec<GpuValue>> {
        let GpuValue::Tensor(tensor) = predicate else { panic!("a predicate is a tensor") };
        if tensor.known().is_none() && (self.guard.is_some() || cond.ahead) {
            let results = self.branch_ahead(cond, tensor, captures.clone()).await;
            match results {
                // The host decides, and finds the error if it is one.
                Err(error) if self.guard.is_none() && !error.kind.is_stop() => self.recorder.check()?,
                results => return results,
            }
        }
        let [then, otherwise] = &cond.branches;
        let branch = if self.predicate(predicate).await? { then } else { otherwise };
        self.region(branch, captures).await
    }

    async fn while_loop(
        &mut self,
        looped: &'a LoopProgram,
        mut state: Vec<GpuValue>,
        captures: &[GpuValue],
    ) -> Result<Vec<GpuValue>> {
        let parallel = looped.parallel.as_ref().filter(|parallel| self.assumes(&parallel.assumption));
        let counted = parallel.map(|parallel| &parallel.counted).or(looped.counted.as_ref());
        let mut trips = match counted {
            // Such a shader finds them by itself.
            Some(counted) if looped.on_device.is_some() => self.known_trips(counted, &state),
            Some(counted) => self.trips(counted, &state).await?,
            None => None,
        };
        if let (Some(parallel), Some(n)) = (parallel, trips)
            && self.can_run_in_parallel(parallel, n, &state)
        {
            return self.run_in_parallel(looped.node, parallel, n as u32, state, captures).await;
        }
        if looped.on_device.is_some() || looped.counted.is_none() {
            trips = None;
        }
        if self.guard.is_some() {
            return match trips {
                Some(n) if n > MAX_COUNTED => Err(not_ahead()),
                Some(n) => self.repeat(looped, n, state, captures).await,
                None => self.repeat_under_guard(looped, state, captures).await,
            };
        }
        if let Some(on_device) = &looped.on_device {
            // The shader is stuck before an iteration, which runs by itself.
            while !self.repeat_on_device(looped.node, on_device, &mut state, captures).await?
                && self.iterate(looped, &mut state, captures).await?
            {}
            return Ok(state);
        }
        match trips {
            Some(n) => self.repeat(looped, n, state, captures).await,
            None if looped.ahead => self.repeat_ahead(looped, state, captures).await,
            None => self.repeat_while(looped, 0, state, captures).await,
        }
    }

    fn stack_op(&mut self, op: &StackOp, node: Node) -> Result<()> {
        let data = self.graph.node(node);
        match op {
            StackOp::New(_) | StackOp::Zeros(_) => {
                let stack = GpuStack::new([], matches!(op, StackOp::Zeros(_)));
                self.set(data.results[0], GpuValue::Stack(stack));
            }
            StackOp::Push => {
                let element = self.recorder.stacked(self.tensor(data.operands[1]));
                let stack = self.stack(data.operands[0]).push(StackItem::One(element));
                self.set(data.results[0], GpuValue::Stack(stack));
            }
            StackOp::Pop => {
                let stack = self.stack(data.operands[0]);
                let (below, top) = match stack.pop() {
                    Some((below, StackItem::One(top))) => {
                        let top = self.recorder.unstacked(&top)?;
                        self.recorder.bring_back_ahead(&below)?;
                        (below, top)
                    }
                    Some((_, StackItem::OfIterations(_))) => panic!("the elements of iterations have been split"),
                    None if stack.has_zeros_below() => (stack, self.zeros(data.results[1])?),
                    None => return Err(empty_stack(data.loc)),
                };
                self.set(data.results[0], GpuValue::Stack(below));
                self.set(data.results[1], GpuValue::Tensor(top));
            }
            StackOp::ZerosLike => {
                let stack = self.stack(data.operands[0]);
                // The elements have the same shape.
                let zeros = Arc::new(SavedElement::new(self.zeros(data.results[0])?));
                let items = stack.elements().map(|_| zeros.clone());
                let stack = GpuStack::new(items, stack.has_zeros_below());
                self.set(data.results[0], GpuValue::Stack(stack));
            }
            StackOp::Add => panic!("a sum of stacks has a shader"),
        }
        Ok(())
    }

    /// Returns zeros of the type of a tensor or of the elements of a stack.
    fn zeros(&mut self, value: Value) -> Result<Arc<GpuTensor>> {
        let tensor = self.memory(value)?;
        self.recorder.clear(&tensor);
        Ok(tensor)
    }

    /// Adds the elements of two stacks from the top. The shorter one may have zeros below.
    fn add_stacks(&mut self, node: Node, sum: &StackSum) -> Result<()> {
        let data = self.graph.node(node);
        let [a, b] = [0, 1].map(|i| self.stack(data.operands[i]));
        let [n_a, n_b] = [&a, &b].map(|stack| stack.elements().count());
        let (longer, shorter) = if n_a < n_b { (&b, &a) } else { (&a, &b) };
        if n_a != n_b && !shorter.has_zeros_below() {
            return Err(stacks_differ(n_a, n_b, data.loc));
        }
        let mut items = Vec::new();
        for (x, y) in a.elements().zip(b.elements()) {
            let [x, y] = [self.recorder.unstacked(x)?, self.recorder.unstacked(y)?];
            let tensors = [x, y, self.memory(data.results[0])?];
            self.dispatch(&sum.shader, &tensors, sum.workgroups, &[sum.size]);
            let [_, _, result] = tensors;
            items.push(self.recorder.stacked(result));
        }
        items.extend(longer.elements().skip(n_a.min(n_b)).cloned());
        let zeros_below = a.has_zeros_below() && b.has_zeros_below();
        self.set(data.results[0], GpuValue::Stack(GpuStack::new(items.into_iter().rev(), zeros_below)));
        Ok(())
    }

    /// Returns whether all elements of some tensors are finite.
    async fn are_finite(&mut self, values: &[Value]) -> Result<bool> {
        for &value in values {
            let ty = self.graph.ty(value).element();
            if ty.dtype.is_float() {
                let tensor = self.tensor(value);
                let elements = self.recorder.download(&[(&tensor, ty)]).await?;
                if !interp::is_finite(&elements[0]) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Reads a predicate back.
    async fn predicate(&mut self, value: &GpuValue) -> Result<bool> {
        let GpuValue::Tensor(tensor) = value else { panic!("a predicate is a tensor") };
        if let Some(known) = tensor.known() {
            return Ok(known.data::<bool>()[0]);
        }
        let predicate = self.download(&[(tensor, &TensorType::new(DType::Bool, []))]).await?;
        Ok(predicate[0].data::<bool>()[0])
    }

    /// Opens a check. Returns the word of failures and the number of the check.
    pub(super) fn open_check(&mut self, mut check: OpenCheck) -> Result<(Arc<GpuTensor>, u32)> {
        if self.rows.has_registers() && check.assumption.is_none() {
            // An operand may be a register of a loop, which is written again.
            for operand in &mut check.operands {
                let copy = self.recorder.tensor(operand.n_bytes())?;
                self.recorder.copy(operand, &copy);
                *operand = copy;
            }
        }
        let failure = match &self.checks.failure {
            Some(failure) => failure.clone(),
            None => {
                let failure = self.recorder.tensor(4)?;
                self.recorder.clear(&failure);
                self.checks.failure.insert(failure).clone()
            }
        };
        self.checks.n_bytes += check.operands.iter().map(|tensor| tensor.allocated_bytes()).sum::<u64>();
        self.checks.open.push(check);
        Ok((failure, u32::MAX - (self.checks.open.len() - 1) as u32))
    }

    /// Waits for the outcome of all open checks.
    async fn settle(&mut self) -> Result<()> {
        self.download(&[]).await.map(drop)
    }

    /// Copies tensors to the host, and fails if a check has failed that the program makes before.
    pub(super) async fn download(&mut self, tensors: &[(&GpuTensor, &TensorType)]) -> Result<Vec<HostTensor>> {
        let readback = self.begin_download(tensors)?;
        self.end_download(readback).await
    }

    /// Records copies of tensors to the host, and the outcome of all open checks.
    pub(super) fn begin_download(&mut self, tensors: &[(&GpuTensor, &TensorType)]) -> Result<CheckedReadback> {
        // The predicates of a download are not known under a guard.
        assert!(self.guard.is_none(), "nothing is read back under a guard");
        let open = std::mem::take(&mut self.checks.open);
        self.checks.n_bytes = 0;
        let (failure, word) = (self.checks.failure.clone(), TensorType::new(DType::U32, []));
        let failure = failure.as_deref().filter(|_| !open.is_empty()).map(|tensor| (tensor, &word));
        let tensors: Vec<_> = tensors.iter().copied().chain(failure).collect();
        Ok(CheckedReadback { open, readback: self.recorder.begin_download(&tensors)? })
    }

    /// Waits for copies. Fails if one of the checks before them has failed.
    pub(super) async fn end_download(&self, readback: CheckedReadback) -> Result<Vec<HostTensor>> {
        let CheckedReadback { open, readback } = readback;
        let mut downloaded = self.recorder.end_download(readback).await?;
        if !open.is_empty() {
            let number = downloaded.pop().expect("the word is the last tensor").data::<u32>()[0];
            if number != 0 {
                self.checks.has_failed.set(true);
                return Err(self.failure(&open[(u32::MAX - number) as usize]).await?);
            }
        }
        Ok(downloaded)
    }

    /// Forgets the open checks, which are known not to fail.
    pub(super) fn forget_checks(&mut self) {
        self.checks.open.clear();
        self.checks.n_bytes = 0;
    }

    /// Returns whether the host has read that a check has failed, which ends the run.
    pub(super) fn has_failed_check(&self) -> bool {
        self.checks.has_failed.get()
    }

    /// Returns the error of a failed check: that of the operation on the host.
    async fn failure(&self, failed: &OpenCheck) -> Result<Diagnostic> {
        let data = self.graph.node(failed.node);
        if let Some(assumption) = &failed.assumption {
            self.refute(assumption, &failed.operands).await?;
            // Nobody sees this error, since the run begins again.
            return Ok(not_ahead());
        }
        if let (Op::List(op), Some(len)) = (&data.op, failed.list_len) {
            let ids = self.graph.ty(data.operands[failed.first]).element();
            let types = [ids, &TensorType::new(DType::Bool, [len])];
            let tensors: Vec<_> = failed.operands.iter().map(|tensor| &**tensor).zip(types).collect();
            let known = self.recorder.download(&tensors).await?;
            let written = known.get(1).map(|written| written.data::<bool>());
            return Ok(list::failure(op, known[0].data::<i32>(), written, len, data.loc));
        }
        let checked = data.operands.iter().skip(failed.first);
        let types = checked.map(|&v| self.graph.ty(v).element());
        let tensors: Vec<_> = failed.operands.iter().map(|tensor| &**tensor).zip(types).collect();
        let known = self.recorder.download(&tensors).await?;
        let (op, attrs) = match &data.op {
            Op::Assert { message } => return Ok(assertion_failed(&message.render(&known[1..]), data.loc)),
            Op::Prim(op, attrs) => (op, attrs),
            op => panic!("`{}` makes no check", op.name()),
        };
        // The error does not depend on the elements of the other operands.
        let zeros = data.operands.iter().map(|&v| {
            let ty = self.graph.ty(v).element();
            HostTensor::zeros(ty.dtype, ty.shape.known().expect("the shapes are known"))
        });
        let mut operands: Vec<HostTensor> = zeros.collect();
        operands.splice(failed.first..failed.first + known.len(), known);
        let operands: Vec<&HostTensor> = operands.iter().collect();
        let ty = self.graph.ty(data.results[0]).element();
        let error = op.evaluate(&EvalCx { operands: &operands, attrs, ty }).expect_err("the check has failed");
        Ok(error.at(data.name_in_errors(), data.loc))
    }

    /// Returns the operands of a node with regions. Of the first `n`, those that are not used
    /// afterwards are taken, so that they can be written in place. A region that runs several times
    /// must not take its captures.
    fn last_operands(&mut self, node: Node, dead: &[Value], n: usize) -> Vec<GpuValue> {
        let operands = &self.graph.node(node).operands;
        let is_last = |v: Value| dead.contains(&v) && operands.iter().filter(|&&other| other == v).count() == 1;
        let operand = |(i, &v)| if i < n && is_last(v) { self.take(v) } else { self.value(v).clone() };
        operands.iter().enumerate().map(operand).collect()
    }

    fn set_results(&mut self, node: Node, results: Vec<GpuValue>) {
        for (&result, value) in self.graph.node(node).results.iter().zip(results) {
            self.set(result, value);
        }
    }

    /// Returns how often a counted loop runs. Reads its bounds if the host does not know them.
    async fn trips(&mut self, counted: &CountedLoop, state: &[GpuValue]) -> Result<Option<i64>> {
        let bounds = self.bounds(counted, state);
        if self.guard.is_some() || bounds.iter().flatten().all(|bound| bound.known().is_some()) {
            return Ok(self.known_trips(counted, state));
        }
        let ty = TensorType::new(counted.dtype, []);
        let read: Vec<_> = bounds.iter().flatten().map(|bound| (&**bound, &ty)).collect();
        let read = self.download(&read).await?;
        Ok(trips_between(counted, &read.iter().collect::<Vec<_>>()))
    }

    /// Returns how often a counted loop runs, if the host knows its bounds.
    fn known_trips(&self, counted: &CountedLoop, state: &[GpuValue]) -> Option<i64> {
        let bounds = self.bounds(counted, state);
        let known: Option<Vec<&HostTensor>> = bounds.iter().flatten().map(|bound| bound.known()).collect();
        trips_between(counted, &known?)
    }

    /// Returns the first value of the counter of a loop, and the limit if that is a tensor.
    fn bounds(&self, counted: &CountedLoop, state: &[GpuValue]) -> [Option<Arc<GpuTensor>>; 2] {
        let GpuValue::Tensor(first) = &state[counted.variable] else { panic!("a counter is a tensor") };
        let limit = match counted.limit {
            Limit::Number(_) => None,
            Limit::Before(value) => Some(self.tensor(value)),
        };
        [Some(first.clone()), limit]
    }

    /// Fails if the step is to stop.
    pub(super) fn check_stop(&self, node: Node) -> Result<()> {
        let loc = self.graph.node(node).loc;
        self.cx.stop.get().map_or(Ok(()), |kind| Err(stopped(kind, &self.graph.name, [loc], loc)))
    }

    /// Runs a loop a number of times, ahead of the device.
    async fn repeat(
        &mut self,
        looped: &'a LoopProgram,
        trips: i64,
        mut state: Vec<GpuValue>,
        captures: &[GpuValue],
    ) -> Result<Vec<GpuValue>> {
        // A counter that nothing else reads is advanced at once.
        let counter = looped.counted.as_ref().zip(looped.advances).and_then(|(counted, op)| {
            let GpuValue::Tensor(first) = &state[counted.variable] else { panic!("a counter is a tensor") };
            Some((op, counted.variable, advanced(first.known()?, counted.step, trips as u32)))
        });
        let advances = counter.as_ref().map(|&(op, variable, _)| (op, variable));
        for _ in 0..trips {
            self.begin_iteration(looped.node).await?;
            self.count_inner_iteration()?;
            state.extend_from_slice(captures);
            state = self.region_without(&looped.body, state, advances).await?;
        }
        if let Some((_, variable, last)) = counter {
            state[variable] = GpuValue::Tensor(self.recorder.upload(&last)?);
        }
        Ok(state)
    }

    /// Runs a loop while its condition holds, which is read back each time, after a number of
    /// iterations that were recorded ahead.
    pub(super) async fn repeat_while(
        &mut self,
        looped: &'a LoopProgram,
        mut n_trips: usize,
        mut state: Vec<GpuValue>,
        captures: &[GpuValue],
    ) -> Result<Vec<GpuValue>> {
        while self.iterate(looped, &mut state, captures).await? {
            n_trips += 1;
        }
        looped.expect_trips(n_trips);
        Ok(state)
    }

    /// Runs an iteration of a loop. Returns whether its condition held.
    pub(super) async fn iterate(
        &mut self,
        looped: &'a LoopProgram,
        state: &mut Vec<GpuValue>,
        captures: &[GpuValue],
    ) -> Result<bool> {
        self.begin_iteration(looped.node).await?;
        let predicate = self.region(&looped.cond, [&state[..], captures].concat()).await?;
        let holds = self.predicate(&predicate[0]).await?;
        if holds {
            // The region alone has the state, so that it can write in place.
            let mut arguments = std::mem::take(state);
            arguments.extend_from_slice(captures);
            *state = self.region(&looped.body, arguments).await?;
        }
        Ok(holds)
    }

    /// Fails if the step is to stop, and waits if the loop is far ahead of the device.
    pub(super) async fn begin_iteration(&self, node: Node) -> Result<()> {
        self.check_stop(node)?;
        self.check_assumptions()?;
        self.recorder.keep_pace().await
    }
}
