//! The interpreter, which defines the semantics of a graph.
//!
//! The interpreter runs nodes in program order, on host tensors, by
//! [`OpDef::eval`](crate::ops::OpDef). Every other engine is tested against it. The interpreter
//! knows no device and is never optimized.

mod counted;
pub mod list;

use crate::files::{NoFiles, StepFiles};
use crate::format::Stream;
use crate::fusion::{self, Fusion, KernelId, NodeRole};
use crate::ir::{Graph, ListForm, ListOp, Node, Op, Region, StackOp, Value};
use crate::memory::{OutOfMemory, SMALLER};
use crate::ops::{EvalCx, InferCx, prim};
use crate::queue::{NoQueues, StepQueues};
pub use crate::stop::{StopFlag, stopped};
use crate::{Diagnostic, Dim, ErrorKind, HostTensor, Loc, Result, Shape, TensorType, Type};
use counted::CountedTensor;
#[doc(hidden)]
pub use counted::ELEMENT_BYTES;
use list::HostList;
use std::collections::HashMap;
use std::sync::Arc;

/// Options of a run.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct InterpOptions {
    check_finite: bool,
    max_iterations: Option<u64>,
}

impl InterpOptions {
    /// Creates options without checks and limits.
    pub fn new() -> InterpOptions {
        InterpOptions::default()
    }

    /// Sets whether the run fails at the first node that computes a value that is not finite from
    /// finite operands.
    pub fn check_finite(self, check_finite: bool) -> InterpOptions {
        InterpOptions { check_finite, ..self }
    }

    /// Sets the number of loop iterations, of all loops together, after which the run fails. The
    /// default is no limit.
    pub fn max_iterations(self, n: u64) -> InterpOptions {
        InterpOptions { max_iterations: Some(n), ..self }
    }
}

/// The surroundings of a run: the print callback, the queues and files, the stop flag and the
/// kernels.
#[derive(Clone, Copy)]
pub struct RunContext<'a> {
    /// Receives the text of each print, in program order.
    pub print: &'a dyn Fn(Stream, &str),
    /// The queues of the graph.
    pub queues: &'a dyn StepQueues,
    /// The files of the session.
    pub files: &'a dyn StepFiles,
    /// Ends the run with an error soon after it is set.
    pub stop: &'a StopFlag,
    /// The fused kernels of the graph, which then compute their nodes. Without them, and with a
    /// check of finite values, the interpreter computes node by node.
    pub fusion: Option<&'a Fusion>,
}

static NEVER: StopFlag = StopFlag::new();

impl Default for RunContext<'_> {
    /// Prints to the streams of this process, has no queues and no files, and never stops the run.
    fn default() -> Self {
        RunContext { print: &Stream::write, queues: &NoQueues, files: &NoFiles, stop: &NEVER, fusion: None }
    }
}

impl std::fmt::Debug for RunContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunContext").finish_non_exhaustive()
    }
}

/// A stack as a persistent linked list. A push shares the elements below.
#[derive(Clone, Debug)]
pub struct Stack {
    element: TensorType,
    top: Option<Arc<StackCell>>,
    /// Whether there are endless zeros below the elements.
    zeros_below: bool,
}

#[derive(Debug)]
struct StackCell {
    item: CountedTensor,
    below: Option<Arc<StackCell>>,
}

impl Drop for StackCell {
    /// Frees a long list without recursion.
    fn drop(&mut self) {
        let mut next = self.below.take();
        while let Some(mut cell) = next.and_then(Arc::into_inner) {
            next = cell.below.take();
        }
    }
}

impl Stack {
    /// Creates a stack of elements, given from the bottom.
    pub fn new(element: TensorType, items: impl IntoIterator<Item = HostTensor>) -> Stack {
        let empty = Stack { element, top: None, zeros_below: false };
        items.into_iter().fold(empty, |stack, tensor| stack.push(tensor))
    }

    /// Sets whether there are endless zeros below the elements. The default is no.
    #[must_use]
    pub fn zeros_below(self, zeros_below: bool) -> Stack {
        Stack { zeros_below, ..self }
    }

    /// Returns whether there are endless zeros below the elements.
    pub fn has_zeros_below(&self) -> bool {
        self.zeros_below
    }

    /// Returns the stack with one more element.
    #[must_use]
    pub fn push(&self, tensor: HostTensor) -> Stack {
        let cell = StackCell { item: CountedTensor::new(tensor), below: self.top.clone() };
        Stack { top: Some(Arc::new(cell)), ..self.clone() }
    }

    /// Returns the stack without its top element, and that element. Returns `None` if there is
    /// none; endless zeros do not count.
    pub fn pop(&self) -> Option<(Stack, HostTensor)> {
        let top = self.top.as_ref()?;
        Some((Stack { top: top.below.clone(), ..self.clone() }, top.item.tensor().clone()))
    }

    /// Returns a stack of the same kind with other elements, given from the bottom.
    fn with(&self, items: impl IntoIterator<Item = HostTensor>) -> Stack {
        items.into_iter().fold(Stack { top: None, ..self.clone() }, |s, t| s.push(t))
    }

    /// Returns the elements, top first.
    pub fn items(&self) -> Vec<HostTensor> {
        let cells = std::iter::successors(self.top.as_deref(), |cell| cell.below.as_deref());
        cells.map(|cell| cell.item.tensor().clone()).collect()
    }
}

/// A value during a run. Cloning shares the elements.
#[derive(Clone, Debug)]
pub enum RuntimeValue {
    /// A tensor.
    Tensor(HostTensor),
    /// A stack.
    Stack(Stack),
    /// A list.
    List(Arc<HostList>),
}

impl RuntimeValue {
    /// Returns the tensor, or `None` for other values.
    pub fn as_tensor(&self) -> Option<&HostTensor> {
        if let RuntimeValue::Tensor(t) = self { Some(t) } else { None }
    }
}

struct Interp<'a> {
    graph: &'a Graph,
    env: Vec<Option<RuntimeValue>>,
    vars: Vec<HostTensor>,
    dims: HashMap<Arc<str>, usize>,
    options: InterpOptions,
    run_context: RunContext<'a>,
    trips: u64,
    /// The locations of the running loops, outermost first.
    loops: Vec<Loc>,
}

/// Runs a graph.
///
/// `vars` are the values of its variables, in the order of [`Graph::vars`]. The variables change
/// only if the run succeeds.
pub fn run(
    graph: &Graph,
    inputs: &[HostTensor],
    vars: &mut Vec<HostTensor>,
    options: InterpOptions,
) -> Result<Vec<HostTensor>> {
    run_in(graph, inputs, vars, options, RunContext::default())
}

/// Runs a graph like [`run`], with a print callback and a stop flag. Text printed before an error
/// stays printed.
///
/// ```
/// use anabranch::{Graph, HostTensor, dsl::interp};
/// use std::cell::RefCell;
///
/// let text = r#"graph @f(%x: f32[]) { print stdout "x = {:.1}\n", %x return }"#;
/// let graph = Graph::parse(text, "f.ir").expect("the text is right");
/// let printed = RefCell::new(String::new());
/// let print = |_stream, text: &str| printed.borrow_mut().push_str(text);
/// let context = interp::RunContext { print: &print, ..Default::default() };
/// let options = interp::InterpOptions::new();
/// interp::run_in(&graph, &[HostTensor::scalar(0.25f32)], &mut vec![], options, context)?;
/// assert_eq!(printed.into_inner(), "x = 0.2\n");
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub fn run_in(
    graph: &Graph,
    inputs: &[HostTensor],
    vars: &mut Vec<HostTensor>,
    options: InterpOptions,
    run_context: RunContext<'_>,
) -> Result<Vec<HostTensor>> {
    let data: Vec<RuntimeValue> = inputs.iter().cloned().map(RuntimeValue::Tensor).collect();
    let outputs = run_data(graph, &data, vars, options, run_context)?;
    let tensor = |d| if let RuntimeValue::Tensor(t) = d { t } else { panic!("an output of a graph is a tensor") };
    Ok(outputs.into_iter().map(tensor).collect())
}

/// Runs a graph like [`run_in`]. Its inputs and outputs may also be stacks and lists, because a
/// subgraph can have such inputs and outputs.
pub fn run_data(
    graph: &Graph,
    inputs: &[RuntimeValue],
    vars: &mut Vec<HostTensor>,
    options: InterpOptions,
    run_context: RunContext<'_>,
) -> Result<Vec<RuntimeValue>> {
    let mut interp = Interp {
        graph,
        env: vec![None; graph.n_values()],
        vars: vars.clone(),
        dims: HashMap::new(),
        options,
        run_context,
        trips: 0,
        loops: Vec::new(),
    };
    if inputs.len() != graph.inputs().len() {
        let (expected, given) = (graph.inputs().len(), inputs.len());
        let message = format!("`{}` takes {expected} inputs, but got {given}", graph.name);
        return Err(Diagnostic::new(message).help("pass one value for each input, in their order"));
    }
    for (i, (&param, input)) in graph.inputs().iter().zip(inputs).enumerate() {
        match input {
            RuntimeValue::Tensor(t) => interp.bind_input(i, param, t)?,
            other => interp.bind(&[param], vec![other.clone()]),
        }
    }
    interp.region(graph.root())?;
    let outputs = interp.vals(graph.outputs());
    *vars = interp.vars;
    Ok(outputs)
}

impl Interp<'_> {
    fn bind_input(&mut self, i: usize, param: Value, input: &HostTensor) -> Result<()> {
        let ty = self.graph.ty(param);
        let mut fits = ty.compatible(&input.ty().into());
        if fits {
            for (dim, &n) in ty.element().shape.dims().iter().zip(input.shape()) {
                if let Dim::Named(name) = dim {
                    fits &= *self.dims.entry(name.clone()).or_insert(n) == n;
                }
            }
        }
        if !fits {
            let name = self.graph.value(param).name.map_or_else(|| format!("input {i}"), |n| format!("`{n}`"));
            let message = format!("`{}`: {name} is {ty}, but got {}", self.graph.name, input.ty());
            return Err(Diagnostic::new(message).help("a named dimension has the same extent throughout a call"));
        }
        self.env[param.index()] = Some(RuntimeValue::Tensor(input.clone()));
        Ok(())
    }

    fn val(&self, v: Value) -> &RuntimeValue {
        self.env[v.index()]
            .as_ref()
            .unwrap_or_else(|| panic!("{v} is used before it is defined\n{:?}", self.graph.name))
    }

    fn tensor(&self, v: Value) -> &HostTensor {
        match self.val(v) {
            RuntimeValue::Tensor(t) => t,
            other => panic!("{v} is {other:?}"),
        }
    }

    fn stack(&self, v: Value) -> &Stack {
        match self.val(v) {
            RuntimeValue::Stack(s) => s,
            other => panic!("{v} is {other:?}"),
        }
    }

    fn list(&self, v: Value) -> &HostList {
        match self.val(v) {
            RuntimeValue::List(l) => l,
            other => panic!("{v} is {other:?}"),
        }
    }

    fn is_true(&self, v: Value) -> bool {
        self.tensor(v).data::<bool>()[0]
    }

    fn bind(&mut self, to: &[Value], values: Vec<RuntimeValue>) {
        for (&v, mut value) in to.iter().zip(values) {
            // A list that is passed to a value of a less exact type may then have elements of that
            // type.
            if let (RuntimeValue::List(list), Type::List(element)) = (&mut value, self.graph.ty(v)) {
                let element = TensorType { dtype: element.dtype, shape: self.concrete(&element.shape) };
                if *list.element() != element {
                    Arc::make_mut(list).set_element(element);
                }
            }
            self.env[v.index()] = Some(value);
        }
    }

    fn vals(&self, of: &[Value]) -> Vec<RuntimeValue> {
        of.iter().map(|&v| self.val(v).clone()).collect()
    }

    fn region(&mut self, region: Region) -> Result<()> {
        let graph = self.graph;
        let fusion = self.run_context.fusion.filter(|_| !self.options.check_finite);
        for &node in &graph.region(region).nodes {
            match fusion.map_or(NodeRole::Alone, |fusion| fusion.role(node)) {
                // A check computes the lookup, which fails if an index is out of range.
                NodeRole::Alone | NodeRole::Check => self.node(node)?,
                NodeRole::Inside => {}
                NodeRole::Kernel(id) => {
                    self.kernel(id)?;
                    let views = fusion.map_or(&[][..], |fusion| fusion.views_after(id));
                    views.iter().try_for_each(|&view| self.node(view))?;
                }
            }
        }
        Ok(())
    }

    fn kernel(&mut self, id: KernelId) -> Result<()> {
        let kernel = self.run_context.fusion.expect("the kernel is one of a fusion").kernel(id);
        let outputs = fusion::run_kernel(self.graph, kernel, &|v| self.tensor(v))?;
        for (i, output) in outputs.into_iter().enumerate() {
            self.env[kernel.output(self.graph, i).index()] = Some(RuntimeValue::Tensor(output));
        }
        Ok(())
    }

    /// Fails if the run must stop before the node at `next`.
    fn check_stop(&self, next: Loc) -> Result<()> {
        let Some(kind) = self.run_context.stop.get() else {
            return Ok(());
        };
        Err(stopped(kind, &self.graph.name, self.loops.iter().rev().copied(), next))
    }

    fn node(&mut self, node: Node) -> Result<()> {
        let graph = self.graph;
        let data = graph.node(node);
        self.check_stop(data.loc)?;
        let results = match &data.op {
            Op::Prim(def, attrs) => {
                let operands: Vec<&HostTensor> = data.operands.iter().map(|&v| self.tensor(v)).collect();
                let types: Vec<Type> = operands.iter().map(|t| t.ty().into()).collect();
                let types: Vec<&Type> = types.iter().collect();
                let attrs = attrs.map_shapes(|s| self.concrete(s));
                let ty = (def.infer)(&InferCx { operands: &types, attrs: &attrs });
                let ty = ty.map_err(|e| e.at(data.name_in_errors(), data.loc))?;
                let ty = ty.as_tensor().expect("the result of a primitive operation is a tensor");
                let result = def.evaluate(&EvalCx { operands: &operands, attrs: &attrs, ty });
                let result = result.map_err(|e| e.at(data.name_in_errors(), data.loc))?;
                debug_assert!(
                    result.ty().fits(ty),
                    "{}: eval returned {}, but infer returned {ty}",
                    def.name,
                    result.ty()
                );
                if self.options.check_finite && !is_finite(&result) && operands.iter().all(|t| is_finite(t)) {
                    return Err(not_finite(def.name, data.loc));
                }
                vec![RuntimeValue::Tensor(result)]
            }
            Op::Constant(t) => vec![RuntimeValue::Tensor(t.clone())],
            Op::Read(var) => vec![RuntimeValue::Tensor(self.vars[var.index()].clone())],
            Op::Assign(var) => {
                self.vars[var.index()] = self.tensor(data.operands[0]).clone();
                vec![]
            }
            Op::Assert { message } => {
                if !self.is_true(data.operands[0]) {
                    let values: Vec<HostTensor> = data.operands[1..].iter().map(|&v| self.tensor(v).clone()).collect();
                    return Err(assertion_failed(&message.render(&values), data.loc));
                }
                vec![]
            }
            Op::Print { stream, template } => {
                let values: Vec<HostTensor> = data.operands.iter().map(|&v| self.tensor(v).clone()).collect();
                (self.run_context.print)(*stream, &template.render(&values));
                vec![]
            }
            Op::Queue(queue, op) => {
                let operands = data.operands.iter().map(|&v| self.tensor(v).clone()).collect();
                let results = self.run_context.queues.run(*queue, *op, operands, data.loc)?;
                results.into_iter().map(RuntimeValue::Tensor).collect()
            }
            Op::File(op) => {
                let operands = data.operands.iter().map(|&v| self.tensor(v).clone()).collect();
                let results = self.run_context.files.run(op, operands, data.loc)?;
                results.into_iter().map(RuntimeValue::Tensor).collect()
            }
            Op::Stack(op) => self.stack_op(op, &data.operands, data.loc)?,
            Op::List(op) => self.list_op(op, node)?,
            Op::Cond => {
                let cond = graph.cond_of(node);
                let taken = cond.branch(self.is_true(cond.predicate()));
                self.bind(&graph.region(taken).params, self.vals(graph.entry_values(node)));
                self.region(taken)?;
                self.vals(&graph.region(taken).yields)
            }
            Op::While { .. } => {
                let construct = graph.while_of(node);
                let (cond, body, predicate, n) =
                    (construct.cond(), construct.body(), construct.predicate(), construct.n_vars());
                let mut state = self.vals(graph.entry_values(node));
                self.loops.push(data.loc);
                loop {
                    self.check_stop(data.loc)?;
                    self.bind(&graph.region(cond).params, state.clone());
                    self.region(cond)?;
                    if !self.is_true(predicate) {
                        break;
                    }
                    self.trips += 1;
                    if self.options.max_iterations.is_some_and(|max| self.trips > max) {
                        let message = format!("a call ran more than {} loop iterations", self.trips - 1);
                        let error = Diagnostic::new(message).at(data.loc, "in this loop");
                        return Err(error.help("if that is intended, raise `InterpOptions::max_iterations`"));
                    }
                    self.bind(&graph.region(body).params, state.clone());
                    self.region(body)?;
                    let next = self.vals(construct.nexts());
                    state.splice(..n, next);
                }
                self.loops.pop();
                state.truncate(n);
                state
            }
            Op::Call(_) => {
                let forward = graph.call_of(node).forward();
                self.bind(&graph.region(forward).params, self.vals(graph.entry_values(node)));
                self.region(forward)?;
                self.vals(&graph.region(forward).yields)
            }
        };
        self.bind(&data.results, results);
        Ok(())
    }

    fn stack_op(&self, op: &StackOp, operands: &[Value], loc: Loc) -> Result<Vec<RuntimeValue>> {
        let stack = match op {
            StackOp::New(element) | StackOp::Zeros(element) => {
                let shape = self.concrete(&element.shape);
                let zeros_below = matches!(op, StackOp::Zeros(_));
                Stack { element: TensorType::new(element.dtype, shape), top: None, zeros_below }
            }
            StackOp::Push => {
                let (stack, tensor) = (self.stack(operands[0]), self.tensor(operands[1]));
                let room = CountedTensor::check_room(tensor);
                room.map_err(|missing| no_memory("push", &tensor.ty(), missing, loc))?;
                stack.push(tensor.clone())
            }
            StackOp::Pop => {
                let stack = self.stack(operands[0]);
                let Some((below, top)) = stack.pop() else {
                    let shape = stack.element.shape.known().filter(|_| stack.zeros_below);
                    let Some(shape) = shape else { return Err(empty_stack(loc)) };
                    let zeros = HostTensor::try_zeros(stack.element.dtype, shape);
                    let zeros = zeros.map_err(|missing| no_memory("pop", &stack.element, missing, loc))?;
                    return Ok(vec![RuntimeValue::Stack(stack.clone()), RuntimeValue::Tensor(zeros)]);
                };
                return Ok(vec![RuntimeValue::Stack(below), RuntimeValue::Tensor(top)]);
            }
            StackOp::ZerosLike => {
                let stack = self.stack(operands[0]);
                let zeros = |t: HostTensor| {
                    let zeros = HostTensor::try_zeros(t.dtype(), t.shape());
                    zeros.map_err(|missing| no_memory("stack_zeros_like", &t.ty(), missing, loc))
                };
                stack.with(stack.items().into_iter().rev().map(zeros).collect::<Result<Vec<_>>>()?)
            }
            StackOp::Add => {
                let (a, b) = (self.stack(operands[0]), self.stack(operands[1]));
                let (x, y) = (a.items(), b.items());
                let longer = if x.len() < y.len() { b } else { a };
                let shorter = if x.len() < y.len() { a } else { b };
                if x.len() != y.len() && !shorter.zeros_below {
                    return Err(stacks_differ(x.len(), y.len(), loc));
                }
                let add = prim::ADD;
                let sum = |(x, y): (&HostTensor, &HostTensor)| {
                    let cx = EvalCx { operands: &[x, y], attrs: &Default::default(), ty: &x.ty() };
                    add.evaluate(&cx).map_err(|e| e.at("stack_add", loc))
                };
                let n = x.len().min(y.len());
                let mut items = x.iter().zip(&y).map(sum).collect::<Result<Vec<HostTensor>>>()?;
                items.extend_from_slice(&longer.items()[n..]);
                let zeros_below = a.zeros_below && b.zeros_below;
                Stack { zeros_below, ..a.with(items.into_iter().rev()) }
            }
        };
        Ok(vec![RuntimeValue::Stack(stack)])
    }

    fn list_op(&self, op: &ListOp, node: Node) -> Result<Vec<RuntimeValue>> {
        let data = self.graph.node(node);
        let op = &op.map_shapes(|s| self.concrete(s));
        let tensors = |operands: &[Value]| operands.iter().map(|&v| self.tensor(v).clone()).collect::<Vec<_>>();
        let list = |list: HostList| RuntimeValue::List(Arc::new(list));
        Ok(match op.form() {
            ListForm::Make if *op == ListOp::ZerosLike => vec![list(self.list(data.operands[0]).zeros_like(data.loc)?)],
            ListForm::Make => {
                let element = self.graph.ty(data.results[0]).element();
                let element = TensorType { dtype: element.dtype, shape: self.concrete(&element.shape) };
                vec![list(HostList::make(op, element, &tensors(&data.operands), data.loc)?)]
            }
            ListForm::Query => {
                let found = self.list(data.operands[0]).query(op, &tensors(&data.operands[1..]), data.loc)?;
                vec![RuntimeValue::Tensor(found)]
            }
            ListForm::Update => {
                let mut changed = self.list(data.operands[0]).clone();
                let (other, operands) = match op {
                    ListOp::Add => (Some(self.list(data.operands[1])), vec![]),
                    _ => (None, tensors(&data.operands[1..])),
                };
                let popped = changed.update(op, &operands, other, data.loc)?;
                std::iter::once(list(changed)).chain(popped.map(RuntimeValue::Tensor)).collect()
            }
        })
    }

    /// Returns the shape with named dimensions replaced by their extents.
    fn concrete(&self, shape: &Shape) -> Shape {
        let dim = |d: &Dim| match d {
            Dim::Named(n) => self.dims.get(n).map_or_else(|| d.clone(), |&n| Dim::Known(n)),
            _ => d.clone(),
        };
        shape.dims().iter().map(dim).collect()
    }
}

/// Returns the error of an operation for whose result there is no memory.
pub fn no_memory(op: &str, ty: &TensorType, missing: OutOfMemory, loc: Loc) -> Diagnostic {
    Diagnostic::new(format!("{op}: out of memory: {ty} needs {} bytes", missing.bytes))
        .of_kind(ErrorKind::ResourceExhausted)
        .at(loc, "computed here")
        .help(SMALLER)
}

/// Returns whether all elements are finite. Integers always are.
pub fn is_finite(t: &HostTensor) -> bool {
    match t.buffer() {
        crate::Buffer::F32(d) => d.iter().all(|x| x.is_finite()),
        crate::Buffer::F64(d) => d.iter().all(|x| x.is_finite()),
        crate::Buffer::F16(d) => d.iter().all(|x| x.is_finite()),
        crate::Buffer::BF16(d) => d.iter().all(|x| x.is_finite()),
        _ => true,
    }
}

/// Returns the error of a pop from a stack without elements, which is the same for every engine.
pub fn empty_stack(loc: Loc) -> Diagnostic {
    Diagnostic::new("pop from an empty stack").at(loc, "there are more pops than pushes")
}

/// Returns the error of a sum of stacks of different lengths, which is the same for every engine.
pub fn stacks_differ(a: usize, b: usize, loc: Loc) -> Diagnostic {
    let message = format!("stacks of {a} and {b} elements cannot be added");
    Diagnostic::new(message).at(loc, "their lengths differ")
}

/// Returns the error of a failed assertion, which is the same for every engine.
pub fn assertion_failed(message: &str, loc: Loc) -> Diagnostic {
    Diagnostic::new(format!("assertion failed: {message}"))
        .of_kind(ErrorKind::AssertionFailed)
        .at(loc, "this was false")
}

/// Returns the error of the check for finite values, which is the same for every engine.
pub fn not_finite(op: &str, loc: Loc) -> Diagnostic {
    Diagnostic::new(format!("{op}: produced a non-finite value from finite operands"))
        .of_kind(ErrorKind::AssertionFailed)
        .at(loc, "NaN or infinity produced here")
        .help("print the operands; common causes are division by 0, the logarithm of 0 and the overflow of `exp`")
}
