//! Programs of a device, and their runs.
//!
//! A branch or loop is driven by the thread of the device, which reads the predicate back.

use super::lower;
use super::memory::{GpuStack, GpuTensor, GpuValue};
use super::queue::{CommandRecorder, GpuQueue};
use super::shader::CompiledShader;
use crate::device::CompileOptions;
use anabranch_dsl::interp::{RunContext, empty_stack, not_finite, stacks_differ, stopped};
use anabranch_dsl::ir::{Graph, Node, StackOp, Value};
use anabranch_dsl::{DType, Result, TensorType, Type};
use rustc_hash::FxHashMap;
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
}

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
            GpuOp::Dispatch(dispatch) => [&dispatch.inputs[..], &dispatch.outputs].concat(),
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
    /// Fails if the device has no memory left or is lost, or if the step is stopped.
    pub(super) async fn run(
        &self,
        recorder: &CommandRecorder,
        inputs: impl Iterator<Item = GpuValue>,
        cx: &RunContext<'_>,
    ) -> Result<Vec<GpuValue>> {
        let mut run = ProgramRun { graph: &self.graph, recorder, cx, values: vec![None; self.graph.n_values()] };
        run.region(&self.root, inputs.collect()).await
    }
}

struct ProgramRun<'a> {
    graph: &'a Graph,
    recorder: &'a CommandRecorder,
    cx: &'a RunContext<'a>,
    values: Vec<Option<GpuValue>>,
}

impl ProgramRun<'_> {
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

    async fn region(&mut self, program: &RegionProgram, arguments: Vec<GpuValue>) -> Result<Vec<GpuValue>> {
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

    async fn op(&mut self, op: &GpuOp) -> Result<()> {
        match op {
            GpuOp::Dispatch(Dispatch { shader, inputs, outputs, workgroups, parameters, checked }) => {
                let mut tensors: Vec<Arc<GpuTensor>> = inputs.iter().map(|&v| self.tensor(v)).collect();
                for &output in outputs {
                    tensors.push(match &self.values[output.index()] {
                        Some(GpuValue::Tensor(tensor)) => tensor.clone(),
                        _ => self.allocate(output)?,
                    });
                }
                self.recorder.dispatch(shader, &tensors, *workgroups, parameters);
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
            GpuOp::While { node, cond, body } => Box::pin(self.repeat(*node, cond, body)).await?,
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
    async fn predicate(&self, value: &GpuValue) -> Result<bool> {
        let GpuValue::Tensor(tensor) = value else { panic!("a predicate is a tensor") };
        let predicate = self.recorder.download(&[(tensor, &TensorType::new(DType::Bool, []))]).await?;
        Ok(predicate[0].data::<bool>()[0])
    }

    fn operands(&self, node: Node) -> Vec<GpuValue> {
        self.graph.node(node).operands.iter().map(|&v| self.value(v).clone()).collect()
    }

    fn set_results(&mut self, node: Node, results: Vec<GpuValue>) {
        for (&result, value) in self.graph.node(node).results.iter().zip(results) {
            self.set(result, value);
        }
    }

    async fn repeat(&mut self, node: Node, cond: &RegionProgram, body: &RegionProgram) -> Result<()> {
        let mut state = self.operands(node);
        let captures = state.split_off(self.graph.while_of(node).n_vars());
        loop {
            if let Some(kind) = self.cx.stop.get() {
                let loc = self.graph.node(node).loc;
                return Err(stopped(kind, &self.graph.name, [loc], loc));
            }
            let arguments: Vec<GpuValue> = state.iter().chain(&captures).cloned().collect();
            let predicate = self.region(cond, arguments.clone()).await?;
            if !self.predicate(&predicate[0]).await? {
                break;
            }
            state = self.region(body, arguments).await?;
        }
        self.set_results(node, state);
        Ok(())
    }
}
