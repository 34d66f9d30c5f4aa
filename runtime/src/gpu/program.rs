//! Programs of a device, and their runs.
//!
//! A branch or loop is driven by the thread of the device. A loop that counts is recorded ahead of
//! the device; for others, the predicate is read back, unless the host has uploaded it. A loop over
//! scalars is a shader that runs many iterations.

use super::lower;
use super::memory::{GpuStack, GpuTensor, GpuValue};
use super::queue::{CommandRecorder, GpuQueue};
use super::shader::CompiledShader;
use crate::device::CompileOptions;
use anabranch_dsl::fusion::LOOP_STATES;
use anabranch_dsl::interp::{RunContext, assertion_failed, empty_stack, not_finite, stacks_differ, stopped};
use anabranch_dsl::ir::{Graph, Node, Op, StackOp, Value};
use anabranch_dsl::ops::EvalCx;
use anabranch_dsl::passes::{CountedLoop, Limit};
use anabranch_dsl::{Buffer, DType, Diagnostic, HostTensor, Result, TensorType, Type};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;

/// A compiled graph.
#[derive(Debug)]
pub(super) struct GpuProgram {
    graph: Graph,
    root: RegionProgram,
}

/// A compiled region.
#[derive(Debug)]
pub(super) struct RegionProgram {
    params: Vec<Value>,
    ops: Vec<GpuOp>,
    /// After each operation, the values that are not used any more.
    dead: Vec<Vec<Value>>,
    yields: Vec<Value>,
}

/// An operation of a program.
#[derive(Debug)]
pub(super) enum GpuOp {
    Dispatch(Dispatch),
    Transfer(Transfer),
    /// An operation on stacks that is not their sum.
    Stack(StackOp, Node),
    AddStacks(Node, StackSum),
    Cond(Node, [RegionProgram; 2]),
    While {
        node: Node,
        cond: RegionProgram,
        body: RegionProgram,
        /// The counter of the loop, if its condition only compares one.
        counted: Option<CountedLoop>,
        /// The shader that runs many iterations, if it is a loop over scalars.
        on_device: Option<ScalarLoop>,
    },
    Call(Node, RegionProgram),
}

/// A run of a shader. An output that is in memory already is written in part.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) shader: Arc<CompiledShader>,
    pub(super) inputs: Vec<Value>,
    pub(super) outputs: Vec<Value>,
    pub(super) workgroups: [u32; 3],
    pub(super) parameters: Vec<u32>,
    /// The node of which the results are checked for values that are not finite, if they are.
    pub(super) checked: Option<Node>,
    /// The error that the shader may report.
    pub(super) check: Option<ShaderCheck>,
}

/// A loop that a shader runs by itself, with its state in an array of words.
#[derive(Debug)]
pub(super) struct ScalarLoop {
    pub(super) shader: Arc<CompiledShader>,
    pub(super) n_words: usize,
}

/// The error that a shader may report: that of a node. The last binding of the shader is the word
/// of the run for failures, and its last parameter the number of the check.
#[derive(Clone, Debug)]
pub(super) struct ShaderCheck {
    pub(super) node: Node,
    /// The operands from which the error follows, and the index of the first of them.
    pub(super) operands: SmallVec<[Value; 2]>,
    pub(super) first: usize,
}

/// A check of a run whose outcome is not known yet.
struct OpenCheck<'a> {
    check: &'a ShaderCheck,
    /// The operands of the check.
    operands: Vec<Arc<GpuTensor>>,
}

/// The number of bytes that open checks keep in memory before their outcome is asked for.
const MAX_CHECKED_BYTES: u64 = 64 << 20;

/// The number of open checks after which their outcome is asked for.
const MAX_OPEN_CHECKS: usize = 256;

/// The sum of two stacks, with a run of a shader for each element.
#[derive(Debug)]
pub(super) struct StackSum {
    pub(super) shader: Arc<CompiledShader>,
    pub(super) workgroups: [u32; 3],
    /// The number of elements of a tensor.
    pub(super) size: u32,
}

/// A value that needs no shader.
#[derive(Debug)]
pub(super) enum Transfer {
    /// A value that shares the memory of another one.
    Share { from: Value, to: Value },
    /// A copy.
    Copy { from: Value, to: Value },
    /// Zeros.
    Zeros { to: Value },
    /// Memory for a tensor of which dispatches write all parts.
    Uninitialized { to: Value },
    /// A constant, which the program keeps in memory.
    Constant { tensor: Arc<GpuTensor>, to: Value },
}

impl GpuOp {
    fn reads(&self, graph: &Graph) -> Vec<Value> {
        match self {
            // Outputs that are written in part are in memory before.
            GpuOp::Dispatch(dispatch) => {
                let checked = dispatch.check.iter().flat_map(|check| &check.operands);
                dispatch.inputs.iter().chain(&dispatch.outputs).chain(checked).copied().collect()
            }
            GpuOp::Transfer(Transfer::Share { from, to } | Transfer::Copy { from, to }) => vec![*from, *to],
            GpuOp::Transfer(
                Transfer::Zeros { to } | Transfer::Uninitialized { to } | Transfer::Constant { to, .. },
            ) => {
                vec![*to]
            }
            GpuOp::Stack(_, node)
            | GpuOp::AddStacks(node, _)
            | GpuOp::Cond(node, _)
            | GpuOp::While { node, .. }
            | GpuOp::Call(node, _) => {
                let data = graph.node(*node);
                [&data.operands[..], &data.results].concat()
            }
        }
    }
}

impl RegionProgram {
    pub(super) fn new(params: Vec<Value>, ops: Vec<GpuOp>, yields: Vec<Value>) -> RegionProgram {
        RegionProgram { params, ops, dead: Vec::new(), yields }
    }

    /// Finds the last use of each value.
    fn find_dead(&mut self, graph: &Graph) {
        let mut last: FxHashMap<Value, usize> = FxHashMap::default();
        for (i, op) in self.ops.iter_mut().enumerate() {
            last.extend(op.reads(graph).into_iter().map(|v| (v, i)));
            match op {
                GpuOp::Cond(_, branches) => branches.iter_mut().for_each(|region| region.find_dead(graph)),
                GpuOp::While { cond, body, .. } => [cond, body].into_iter().for_each(|region| region.find_dead(graph)),
                GpuOp::Call(_, region) => region.find_dead(graph),
                GpuOp::Dispatch(_) | GpuOp::Transfer(_) | GpuOp::Stack(..) | GpuOp::AddStacks(..) => {}
            }
        }
        self.dead = vec![Vec::new(); self.ops.len()];
        for (value, i) in last {
            if !self.yields.contains(&value) {
                self.dead[i].push(value);
            }
        }
    }
}

impl GpuProgram {
    /// Compiles a graph whose operations the device supports.
    ///
    /// # Errors
    /// Fails if the driver does not accept a shader.
    pub(super) fn new(graph: Graph, options: CompileOptions, queue: &GpuQueue) -> Result<GpuProgram> {
        lower::lower(graph, options, queue)
    }

    pub(super) fn from_parts(graph: Graph, mut root: RegionProgram) -> GpuProgram {
        root.find_dead(&graph);
        GpuProgram { graph, root }
    }

    /// Returns the types of the outputs.
    pub(super) fn output_types(&self) -> impl Iterator<Item = &Type> {
        self.graph.outputs().iter().map(|&v| self.graph.ty(v))
    }

    /// Runs the program.
    ///
    /// # Errors
    /// Fails if an operation fails, if the device has no memory left or is lost, or if the step is
    /// stopped.
    pub(super) async fn run(
        &self,
        recorder: &CommandRecorder,
        inputs: impl Iterator<Item = GpuValue>,
        cx: &RunContext<'_>,
    ) -> Result<Vec<GpuValue>> {
        let values = vec![None; self.graph.n_values()];
        let (graph, checks) = (&self.graph, OpenChecks::default());
        let mut run = ProgramRun { graph, recorder, cx, values, checks };
        let results = run.region(&self.root, inputs.collect()).await;
        // A check that was made before another failure has failed before it.
        match results {
            Err(error) if error.kind.is_stop() => Err(error),
            results => run.settle().await.and(results),
        }
    }
}

struct ProgramRun<'a> {
    graph: &'a Graph,
    recorder: &'a CommandRecorder,
    cx: &'a RunContext<'a>,
    values: Vec<Option<GpuValue>>,
    checks: OpenChecks<'a>,
}

/// The checks of a run whose outcome is not known yet, in the order of the program.
#[derive(Default)]
struct OpenChecks<'a> {
    open: Vec<OpenCheck<'a>>,
    /// The bytes of their operands.
    n_bytes: u64,
    /// The word of failures: 0, or the number of the first check that has failed. Earlier checks
    /// have larger numbers.
    failure: Option<Arc<GpuTensor>>,
}

impl<'a> ProgramRun<'a> {
    fn value(&self, value: Value) -> &GpuValue {
        self.values[value.index()].as_ref().expect("a value is computed before it is used")
    }

    fn tensor(&self, value: Value) -> Arc<GpuTensor> {
        let GpuValue::Tensor(tensor) = self.value(value) else { panic!("{value} is a tensor") };
        tensor.clone()
    }

    fn stack(&self, value: Value) -> GpuStack {
        let GpuValue::Stack(stack) = self.value(value) else { panic!("{value} is a stack") };
        stack.clone()
    }

    fn set(&mut self, value: Value, to: GpuValue) {
        self.values[value.index()] = Some(to);
    }

    /// Allocates the memory of a tensor.
    fn allocate(&mut self, value: Value) -> Result<Arc<GpuTensor>> {
        let tensor = self.memory(value)?;
        self.set(value, GpuValue::Tensor(tensor.clone()));
        Ok(tensor)
    }

    /// Returns memory for a tensor or for an element of a stack.
    fn memory(&mut self, value: Value) -> Result<Arc<GpuTensor>> {
        let ty = self.graph.ty(value).element();
        let size = ty.shape.size().expect("the device runs operations of known shapes only");
        self.recorder.tensor(4 * size as u64)
    }

    async fn region(&mut self, program: &'a RegionProgram, arguments: Vec<GpuValue>) -> Result<Vec<GpuValue>> {
        for (&param, argument) in program.params.iter().zip(arguments) {
            self.set(param, argument);
        }
        for (op, dead) in program.ops.iter().zip(&program.dead) {
            self.op(op).await?;
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

    async fn op(&mut self, op: &'a GpuOp) -> Result<()> {
        match op {
            GpuOp::Dispatch(Dispatch { shader, inputs, outputs, workgroups, parameters, checked, check }) => {
                let mut tensors: Vec<Arc<GpuTensor>> = inputs.iter().map(|&v| self.tensor(v)).collect();
                for &output in outputs {
                    tensors.push(match &self.values[output.index()] {
                        Some(GpuValue::Tensor(tensor)) => tensor.clone(),
                        _ => self.allocate(output)?,
                    });
                }
                if let Some(check) = check {
                    let (failure, number) = self.open_check(check)?;
                    tensors.push(failure);
                    let parameters = [&parameters[..], &[number]].concat();
                    self.recorder.dispatch(shader, &tensors, *workgroups, &parameters);
                    if self.checks.n_bytes > MAX_CHECKED_BYTES || self.checks.open.len() >= MAX_OPEN_CHECKS {
                        self.settle().await?;
                    }
                } else {
                    self.recorder.dispatch(shader, &tensors, *workgroups, parameters);
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
                let (from, to) = (self.tensor(*from), self.allocate(*to)?);
                self.recorder.copy(&from, &to);
            }
            GpuOp::Transfer(Transfer::Zeros { to }) => {
                let tensor = self.allocate(*to)?;
                self.recorder.clear(&tensor);
            }
            GpuOp::Transfer(Transfer::Uninitialized { to }) => drop(self.allocate(*to)?),
            GpuOp::Transfer(Transfer::Constant { tensor, to }) => self.set(*to, GpuValue::Tensor(tensor.clone())),
            GpuOp::Stack(op, node) => self.stack_op(op, *node)?,
            GpuOp::AddStacks(node, sum) => self.add_stacks(*node, sum)?,
            GpuOp::Cond(node, [then, otherwise]) => {
                let mut operands = self.operands(*node);
                let captures = operands.split_off(1);
                let branch = if self.predicate(&operands[0]).await? { then } else { otherwise };
                let results = Box::pin(self.region(branch, captures)).await?;
                self.set_results(*node, results);
            }
            GpuOp::While { node, cond, body, counted, on_device } => {
                let mut state = self.operands(*node);
                let captures = state.split_off(self.graph.while_of(*node).n_vars());
                if let Some(scalar_loop) = on_device {
                    // The shader is stuck before an iteration, which runs by itself.
                    while !self.repeat_on_device(*node, scalar_loop, &mut state, &captures).await?
                        && Box::pin(self.iterate(*node, [cond, body], &mut state, &captures)).await?
                    {
                    }
                    self.set_results(*node, state);
                    return Ok(());
                }
                let trips = match counted {
                    Some(counted) => self.trips(counted, &state).await?,
                    None => None,
                };
                let state = match trips {
                    Some(n) => Box::pin(self.repeat(*node, n, body, state, &captures)).await?,
                    None => Box::pin(self.repeat_while(*node, [cond, body], state, &captures)).await?,
                };
                self.set_results(*node, state);
            }
            GpuOp::Call(node, region) => {
                let results = Box::pin(self.region(region, self.operands(*node))).await?;
                self.set_results(*node, results);
            }
        }
        Ok(())
    }

    fn stack_op(&mut self, op: &StackOp, node: Node) -> Result<()> {
        let data = self.graph.node(node);
        match op {
            StackOp::New(_) | StackOp::Zeros(_) => {
                let stack = GpuStack::new([], matches!(op, StackOp::Zeros(_)));
                self.set(data.results[0], GpuValue::Stack(stack));
            }
            StackOp::Push => {
                let stack = self.stack(data.operands[0]).push(self.tensor(data.operands[1]));
                self.set(data.results[0], GpuValue::Stack(stack));
            }
            StackOp::Pop => {
                let stack = self.stack(data.operands[0]);
                let (below, top) = match stack.pop() {
                    Some(popped) => popped,
                    None if stack.has_zeros_below() => (stack, self.zeros(data.results[1])?),
                    None => return Err(empty_stack(data.loc)),
                };
                self.set(data.results[0], GpuValue::Stack(below));
                self.set(data.results[1], GpuValue::Tensor(top));
            }
            StackOp::ZerosLike => {
                let stack = self.stack(data.operands[0]);
                // The elements have the same shape.
                let zeros = self.zeros(data.results[0])?;
                let items = stack.items().map(|_| zeros.clone());
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
        let [n_a, n_b] = [&a, &b].map(|stack| stack.items().count());
        let (longer, shorter) = if n_a < n_b { (&b, &a) } else { (&a, &b) };
        if n_a != n_b && !shorter.has_zeros_below() {
            return Err(stacks_differ(n_a, n_b, data.loc));
        }
        let mut items = Vec::new();
        for (x, y) in a.items().zip(b.items()) {
            let tensors = [x.clone(), y.clone(), self.memory(data.results[0])?];
            self.recorder.dispatch(&sum.shader, &tensors, sum.workgroups, &[sum.size]);
            let [_, _, result] = tensors;
            items.push(result);
        }
        items.extend(longer.items().skip(n_a.min(n_b)).cloned());
        let zeros_below = a.has_zeros_below() && b.has_zeros_below();
        self.set(data.results[0], GpuValue::Stack(GpuStack::new(items.into_iter().rev(), zeros_below)));
        Ok(())
    }

    /// Returns whether all elements of some tensors are finite.
    async fn are_finite(&mut self, values: &[Value]) -> Result<bool> {
        for &value in values {
            let ty = self.graph.ty(value).element();
            if ty.dtype == DType::F32 {
                let tensor = self.tensor(value);
                let elements = self.recorder.download(&[(&tensor, ty)]).await?;
                if !elements[0].data::<f32>().iter().all(|x| x.is_finite()) {
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
    fn open_check(&mut self, check: &'a ShaderCheck) -> Result<(Arc<GpuTensor>, u32)> {
        let operands: Vec<Arc<GpuTensor>> = check.operands.iter().map(|&v| self.tensor(v)).collect();
        let failure = match &self.checks.failure {
            Some(failure) => failure.clone(),
            None => {
                let failure = self.recorder.tensor(4)?;
                self.recorder.clear(&failure);
                self.checks.failure.insert(failure).clone()
            }
        };
        self.checks.n_bytes += operands.iter().map(|tensor| tensor.allocated_bytes()).sum::<u64>();
        self.checks.open.push(OpenCheck { check, operands });
        Ok((failure, u32::MAX - (self.checks.open.len() - 1) as u32))
    }

    /// Waits for the outcome of all open checks.
    async fn settle(&mut self) -> Result<()> {
        self.download(&[]).await.map(drop)
    }

    /// Copies tensors to the host, and fails if a check has failed that the program makes before.
    async fn download(&mut self, tensors: &[(&GpuTensor, &TensorType)]) -> Result<Vec<HostTensor>> {
        let open = std::mem::take(&mut self.checks.open);
        self.checks.n_bytes = 0;
        let (failure, word) = (self.checks.failure.clone(), TensorType::new(DType::U32, []));
        let failure = failure.as_deref().filter(|_| !open.is_empty()).map(|tensor| (tensor, &word));
        let tensors: Vec<_> = tensors.iter().copied().chain(failure).collect();
        let mut downloaded = if tensors.is_empty() { Vec::new() } else { self.recorder.download(&tensors).await? };
        if failure.is_some() {
            let number = downloaded.pop().expect("the word is the last tensor").data::<u32>()[0];
            if number != 0 {
                return Err(self.failure(&open[(u32::MAX - number) as usize]).await?);
            }
        }
        Ok(downloaded)
    }

    /// Returns the error of a failed check: that of the operation on the host.
    async fn failure(&self, failed: &OpenCheck<'_>) -> Result<Diagnostic> {
        let data = self.graph.node(failed.check.node);
        let types = failed.check.operands.iter().map(|&v| self.graph.ty(v).element());
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
        operands.splice(failed.check.first..failed.check.first + known.len(), known);
        let operands: Vec<&HostTensor> = operands.iter().collect();
        let ty = self.graph.ty(data.results[0]).element();
        let error = op.evaluate(&EvalCx { operands: &operands, attrs, ty }).expect_err("the check has failed");
        Ok(error.at(data.name_in_errors(), data.loc))
    }

    fn operands(&self, node: Node) -> Vec<GpuValue> {
        self.graph.node(node).operands.iter().map(|&v| self.value(v).clone()).collect()
    }

    fn set_results(&mut self, node: Node, results: Vec<GpuValue>) {
        for (&result, value) in self.graph.node(node).results.iter().zip(results) {
            self.set(result, value);
        }
    }

    /// Returns how often a counted loop runs. Reads its bounds if the host does not know them.
    async fn trips(&mut self, counted: &CountedLoop, state: &[GpuValue]) -> Result<Option<i64>> {
        let integer = |tensor: &HostTensor| match tensor.buffer() {
            Buffer::I32(x) => i64::from(x[0]),
            Buffer::I64(x) => x[0],
            other => panic!("a counter is an integer, not {}", other.dtype()),
        };
        let GpuValue::Tensor(first) = &state[counted.variable] else { panic!("a counter is a tensor") };
        let (limit, constant) = match counted.limit {
            Limit::Number(n) => (None, n),
            Limit::Before(value) => (Some(self.tensor(value)), 0),
        };
        let bounds: Vec<&GpuTensor> = [Some(&**first), limit.as_deref()].into_iter().flatten().collect();
        let known: Option<Vec<i64>> = bounds.iter().map(|bound| bound.known().map(integer)).collect();
        let bounds = match known {
            Some(known) => known,
            None => {
                let ty = TensorType::new(counted.dtype, []);
                let bounds: Vec<_> = bounds.into_iter().map(|bound| (bound, &ty)).collect();
                self.download(&bounds).await?.iter().map(integer).collect()
            }
        };
        Ok(counted.trips(bounds[0], bounds.get(1).copied().unwrap_or(constant)))
    }

    /// Fails if the step is to stop.
    fn check_stop(&self, node: Node) -> Result<()> {
        let loc = self.graph.node(node).loc;
        self.cx.stop.get().map_or(Ok(()), |kind| Err(stopped(kind, &self.graph.name, [loc], loc)))
    }

    /// Runs a loop over scalars by its shader. Returns whether it has ended. If it has not, the
    /// state is that before an iteration that the shader cannot run.
    async fn repeat_on_device(
        &mut self,
        node: Node,
        ScalarLoop { shader, n_words }: &ScalarLoop,
        state: &mut [GpuValue],
        captures: &[GpuValue],
    ) -> Result<bool> {
        let words = self.recorder.tensor(4 * *n_words as u64)?;
        for (i, operand) in state.iter().chain(captures).enumerate() {
            let GpuValue::Tensor(tensor) = operand else { panic!("the operands are scalars") };
            self.recorder.copy_words([tensor, &words], [0, i + 1], 1);
        }
        let [ends, goes_on, _] = LOOP_STATES;
        let mut reached = goes_on;
        while reached == goes_on {
            self.check_stop(node)?;
            self.recorder.dispatch(shader, std::slice::from_ref(&words), [1; 3], &[]);
            let after = self.download(&[(&words, &TensorType::new(DType::U32, [*n_words]))]).await?;
            reached = after[0].data::<u32>()[0];
        }
        for (i, variable) in state.iter_mut().enumerate() {
            let value = self.recorder.tensor(4)?;
            self.recorder.copy_words([&words, &value], [i + 1, 0], 1);
            *variable = GpuValue::Tensor(value);
        }
        Ok(reached == ends)
    }

    /// Runs a loop a number of times, ahead of the device.
    async fn repeat(
        &mut self,
        node: Node,
        trips: i64,
        body: &'a RegionProgram,
        mut state: Vec<GpuValue>,
        captures: &[GpuValue],
    ) -> Result<Vec<GpuValue>> {
        for _ in 0..trips {
            self.check_stop(node)?;
            self.recorder.keep_pace().await?;
            state.extend_from_slice(captures);
            state = self.region(body, state).await?;
        }
        Ok(state)
    }

    /// Runs a loop while its condition holds, which is read back each time.
    async fn repeat_while(
        &mut self,
        node: Node,
        [cond, body]: [&'a RegionProgram; 2],
        mut state: Vec<GpuValue>,
        captures: &[GpuValue],
    ) -> Result<Vec<GpuValue>> {
        while self.iterate(node, [cond, body], &mut state, captures).await? {}
        Ok(state)
    }

    /// Runs an iteration of a loop. Returns whether its condition held.
    async fn iterate(
        &mut self,
        node: Node,
        [cond, body]: [&'a RegionProgram; 2],
        state: &mut Vec<GpuValue>,
        captures: &[GpuValue],
    ) -> Result<bool> {
        self.check_stop(node)?;
        self.recorder.keep_pace().await?;
        let mut arguments = state.clone();
        arguments.extend_from_slice(captures);
        let predicate = self.region(cond, arguments.clone()).await?;
        let holds = self.predicate(&predicate[0]).await?;
        if holds {
            *state = self.region(body, arguments).await?;
        }
        Ok(holds)
    }
}
