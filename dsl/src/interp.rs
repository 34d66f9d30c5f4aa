//! The interpreter: the meaning of a graph, slow and obvious.
//!
//! It runs nodes one after the other, in program order, on host tensors, by [`OpDef::eval`](crate::ops::OpDef). Every
//! other engine is tested against it. It must never know a device, and never be made clever.

pub mod list;

use crate::ir::{Graph, ListForm, ListOp, Node, Op, Region, StackOp, Value};
use crate::ops::{EvalCx, InferCx};
use crate::{Diagnostic, Dim, HostTensor, Loc, Result, Shape, TensorType, Type};
use list::HostList;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// How to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Fail at the first node that makes a value which is not finite out of finite operands.
    pub check_finite: bool,
    /// Fail after so many loop iterations in all.
    pub max_trips: Option<u64>,
}

/// A stack as a persistent list: pushing shares what is below.
#[derive(Clone, Debug)]
struct Stack {
    element: TensorType,
    top: Option<Arc<Cell>>,
}

#[derive(Debug)]
struct Cell {
    tensor: HostTensor,
    below: Option<Arc<Cell>>,
}

impl Drop for Cell {
    /// Frees a long list without recursion.
    fn drop(&mut self) {
        let mut next = self.below.take();
        while let Some(mut cell) = next.and_then(Arc::into_inner) {
            next = cell.below.take();
        }
    }
}

impl Stack {
    fn push(&self, tensor: HostTensor) -> Stack {
        Stack { element: self.element.clone(), top: Some(Arc::new(Cell { tensor, below: self.top.clone() })) }
    }

    fn from_bottom(element: TensorType, items: impl IntoIterator<Item = HostTensor>) -> Stack {
        items.into_iter().fold(Stack { element, top: None }, |s, t| s.push(t))
    }

    /// The elements, top first.
    fn items(&self) -> Vec<HostTensor> {
        let mut items = Vec::new();
        let mut at = &self.top;
        while let Some(cell) = at {
            items.push(cell.tensor.clone());
            at = &cell.below;
        }
        items
    }
}

#[derive(Clone, Debug)]
enum Val {
    Tensor(HostTensor),
    Stack(Stack),
    List(Rc<HostList>),
}

struct Interp<'a> {
    graph: &'a Graph,
    env: Vec<Option<Val>>,
    vars: Vec<HostTensor>,
    dims: HashMap<Arc<str>, usize>,
    options: Options,
    trips: u64,
}

/// Runs a graph. `vars` are the values of its variables, in the order of [`Graph::vars`]; they are changed only if the
/// run succeeds.
pub fn run(
    graph: &Graph,
    inputs: &[HostTensor],
    vars: &mut Vec<HostTensor>,
    options: Options,
) -> Result<Vec<HostTensor>> {
    let mut interp = Interp {
        graph,
        env: vec![None; graph.n_values()],
        vars: vars.clone(),
        dims: HashMap::new(),
        options,
        trips: 0,
    };
    if inputs.len() != graph.inputs().len() {
        let (expected, given) = (graph.inputs().len(), inputs.len());
        return Err(Diagnostic::new(format!("`{}` takes {expected} inputs, given {given}", graph.name)));
    }
    for (i, (&param, input)) in graph.inputs().iter().zip(inputs).enumerate() {
        interp.bind_input(i, param, input)?;
    }
    interp.region(graph.root())?;
    let outputs = graph.outputs().iter().map(|&v| interp.tensor(v).clone()).collect();
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
            let message = format!("`{}`: {name} is {ty}, given {}", self.graph.name, input.ty());
            return Err(Diagnostic::new(message).help("named dimensions have one extent throughout a call"));
        }
        self.env[param.index()] = Some(Val::Tensor(input.clone()));
        Ok(())
    }

    fn val(&self, v: Value) -> &Val {
        self.env[v.index()]
            .as_ref()
            .unwrap_or_else(|| panic!("{v} is used before it is defined\n{:?}", self.graph.name))
    }

    fn tensor(&self, v: Value) -> &HostTensor {
        match self.val(v) {
            Val::Tensor(t) => t,
            other => panic!("{v} is {other:?}"),
        }
    }

    fn stack(&self, v: Value) -> &Stack {
        match self.val(v) {
            Val::Stack(s) => s,
            other => panic!("{v} is {other:?}"),
        }
    }

    fn list(&self, v: Value) -> &HostList {
        match self.val(v) {
            Val::List(l) => l,
            other => panic!("{v} is {other:?}"),
        }
    }

    fn is_true(&self, v: Value) -> bool {
        self.tensor(v).data::<bool>()[0]
    }

    fn bind(&mut self, to: &[Value], values: Vec<Val>) {
        for (&v, mut value) in to.iter().zip(values) {
            // A list that goes where a less exact type stands may then have elements of that type.
            if let (Val::List(list), Type::List(element)) = (&mut value, self.graph.ty(v)) {
                let element = TensorType { dtype: element.dtype, shape: self.concrete(&element.shape) };
                if *list.element() != element {
                    Rc::make_mut(list).set_element(element);
                }
            }
            self.env[v.index()] = Some(value);
        }
    }

    fn vals(&self, of: &[Value]) -> Vec<Val> {
        of.iter().map(|&v| self.val(v).clone()).collect()
    }

    fn region(&mut self, region: Region) -> Result<()> {
        let graph = self.graph;
        graph.region(region).nodes.iter().try_for_each(|&n| self.node(n))
    }

    fn node(&mut self, node: Node) -> Result<()> {
        let graph = self.graph;
        let data = graph.node(node);
        let results = match &data.op {
            Op::Prim(def, attrs) => {
                let operands: Vec<&HostTensor> = data.operands.iter().map(|&v| self.tensor(v)).collect();
                let types: Vec<Type> = operands.iter().map(|t| t.ty().into()).collect();
                let types: Vec<&Type> = types.iter().collect();
                let attrs = attrs.map_shapes(|s| self.concrete(s));
                let ty = (def.infer)(&InferCx { operands: &types, attrs: &attrs });
                let ty = ty.map_err(|e| e.at(def.name, data.loc))?;
                let ty = ty.as_tensor().expect("primitive operations give tensors");
                let result = (def.eval)(&EvalCx { operands: &operands, attrs: &attrs, ty });
                let result = result.map_err(|e| e.at(def.name, data.loc))?;
                debug_assert_eq!(result.ty(), *ty, "{}: eval and infer disagree", def.name);
                if self.options.check_finite && !is_finite(&result) && operands.iter().all(|t| is_finite(t)) {
                    return Err(not_finite(def.name, data.loc));
                }
                vec![Val::Tensor(result)]
            }
            Op::Constant(t) => vec![Val::Tensor(t.clone())],
            Op::Read(var) => vec![Val::Tensor(self.vars[var.index()].clone())],
            Op::Assign(var) => {
                self.vars[var.index()] = self.tensor(data.operands[0]).clone();
                vec![]
            }
            Op::Assert { message } => {
                if !self.is_true(data.operands[0]) {
                    return Err(assertion_failed(message, data.loc));
                }
                vec![]
            }
            Op::Stack(op) => self.stack_op(op, &data.operands, data.loc)?,
            Op::List(op) => self.list_op(op, node)?,
            Op::Cond => {
                let taken = data.regions[usize::from(!self.is_true(data.operands[0]))];
                self.bind(&graph.region(taken).params, self.vals(&data.operands[1..]));
                self.region(taken)?;
                self.vals(&graph.region(taken).yields)
            }
            Op::While => {
                let [cond, body] = data.regions[..] else { panic!("a while has two regions") };
                let n = data.results.len();
                let mut state = self.vals(&data.operands);
                loop {
                    self.bind(&graph.region(cond).params, state.clone());
                    self.region(cond)?;
                    if !self.is_true(graph.region(cond).yields[0]) {
                        break;
                    }
                    self.trips += 1;
                    if self.options.max_trips.is_some_and(|max| self.trips > max) {
                        let message = format!("more than {} loop iterations", self.trips - 1);
                        return Err(Diagnostic::new(message).at(data.loc, "in this loop"));
                    }
                    self.bind(&graph.region(body).params, state.clone());
                    self.region(body)?;
                    let next = self.vals(&graph.region(body).yields);
                    state.splice(..n, next);
                }
                state.truncate(n);
                state
            }
        };
        self.bind(&data.results, results);
        Ok(())
    }

    fn stack_op(&self, op: &StackOp, operands: &[Value], loc: Loc) -> Result<Vec<Val>> {
        let stack = match op {
            StackOp::New(element) => {
                let shape = self.concrete(&element.shape);
                Stack { element: TensorType::new(element.dtype, shape), top: None }
            }
            StackOp::Push => self.stack(operands[0]).push(self.tensor(operands[1]).clone()),
            StackOp::Pop => {
                let stack = self.stack(operands[0]);
                let Some(top) = &stack.top else {
                    return Err(Diagnostic::new("pop of an empty stack").at(loc, ""));
                };
                let below = Stack { element: stack.element.clone(), top: top.below.clone() };
                return Ok(vec![Val::Stack(below), Val::Tensor(top.tensor.clone())]);
            }
            StackOp::ZerosLike => {
                let stack = self.stack(operands[0]);
                let zeros = |t: HostTensor| HostTensor::zeros(t.dtype(), t.shape());
                Stack::from_bottom(stack.element.clone(), stack.items().into_iter().rev().map(zeros))
            }
            StackOp::Add => {
                let (a, b) = (self.stack(operands[0]), self.stack(operands[1]));
                let (x, y) = (a.items(), b.items());
                if x.len() != y.len() {
                    let message = format!("sum of stacks of {} and {} elements", x.len(), y.len());
                    return Err(Diagnostic::new(message).at(loc, ""));
                }
                let add = crate::ops::by_name("add").expect("there is an operation `add`");
                let sum = |(x, y): (&HostTensor, &HostTensor)| {
                    let cx = EvalCx { operands: &[x, y], attrs: &Default::default(), ty: &x.ty() };
                    (add.eval)(&cx).expect("addition of equal types does not fail")
                };
                Stack::from_bottom(a.element.clone(), x.iter().zip(&y).rev().map(sum).collect::<Vec<_>>())
            }
        };
        Ok(vec![Val::Stack(stack)])
    }

    fn list_op(&self, op: &ListOp, node: Node) -> Result<Vec<Val>> {
        let data = self.graph.node(node);
        let op = &op.map_shapes(|s| self.concrete(s));
        let tensors = |operands: &[Value]| operands.iter().map(|&v| self.tensor(v).clone()).collect::<Vec<_>>();
        let list = |list: HostList| Val::List(Rc::new(list));
        Ok(match op.form() {
            ListForm::Make if *op == ListOp::ZerosLike => vec![list(self.list(data.operands[0]).zeros_like())],
            ListForm::Make => {
                let element = self.graph.ty(data.results[0]).element();
                let element = TensorType { dtype: element.dtype, shape: self.concrete(&element.shape) };
                vec![list(HostList::make(op, element, &tensors(&data.operands), data.loc)?)]
            }
            ListForm::Query => {
                let found = self.list(data.operands[0]).query(op, &tensors(&data.operands[1..]), data.loc)?;
                vec![Val::Tensor(found)]
            }
            ListForm::Update => {
                let mut changed = self.list(data.operands[0]).clone();
                let (other, operands) = match op {
                    ListOp::Add => (Some(self.list(data.operands[1])), vec![]),
                    _ => (None, tensors(&data.operands[1..])),
                };
                let popped = changed.update(op, &operands, other, data.loc)?;
                std::iter::once(list(changed)).chain(popped.map(Val::Tensor)).collect()
            }
        })
    }

    /// The shape with named dimensions replaced by their extents.
    fn concrete(&self, shape: &Shape) -> Shape {
        let dim = |d: &Dim| match d {
            Dim::Named(n) => self.dims.get(n).map_or_else(|| d.clone(), |&n| Dim::Known(n)),
            _ => d.clone(),
        };
        Shape(shape.dims().iter().map(dim).collect())
    }
}

/// Whether all elements are finite; always true of integers.
pub fn is_finite(t: &HostTensor) -> bool {
    match t.buffer() {
        crate::Buffer::F32(d) => d.iter().all(|x| x.is_finite()),
        crate::Buffer::F64(d) => d.iter().all(|x| x.is_finite()),
        _ => true,
    }
}

/// The error of a failed assertion, the same for every engine.
pub fn assertion_failed(message: &str, loc: Loc) -> Diagnostic {
    Diagnostic::new(format!("assertion failed: {message}")).at(loc, "this was false")
}

/// The error of the check for finite values, the same for every engine.
pub fn not_finite(op: &str, loc: Loc) -> Diagnostic {
    Diagnostic::new(format!("{op}: made a value that is not finite out of finite operands"))
        .at(loc, "NaN or infinity was made here")
}
