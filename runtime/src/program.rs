//! A graph that can be run: its plan, and the memory of steps that run it.

use crate::cpu::list::List;
use crate::cpu::memory::{Vars, VarsMut};
use crate::cpu::stack::Stack;
use crate::native::Native;
use crate::plan::{self, Context, Held, Plan};
use crate::results::Results;
use crate::state::Guard;
use anabranch_dsl::interp::{self, Datum, Surroundings};
use anabranch_dsl::ir::dependence;
use anabranch_dsl::{DType, Diagnostic, Dim, Graph, HostTensor, Result, TensorType, Type, autodiff, passes};
use smallvec::SmallVec;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// How a graph is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Fail at the first operation that makes a value which is not finite out of finite operands.
    pub(crate) check_finite: bool,
    /// Run by the interpreter.
    pub(crate) interpreted: bool,
    /// Make native code of loops over numbers.
    pub(crate) native: bool,
    /// Compute several operations in one pass over memory.
    pub(crate) fuse: bool,
    /// Merge products in loops, and take them out.
    pub(crate) hoist: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { check_finite: false, interpreted: false, native: true, fuse: true, hoist: true }
    }
}

/// A graph compiled for the concrete types of its inputs.
///
/// It may run several times at once: every running step has memory of its own, which later steps use again.
pub struct Program {
    graph: Graph,
    plan: Option<Plan>,
    options: Options,
    /// Memory of results that callers have dropped.
    results: Arc<Results>,
    free: Mutex<Vec<Context>>,
}

/// What goes into a part of a graph, and comes out of it. A clone shares the memory.
#[derive(Clone, Debug)]
pub(crate) enum Contents {
    Datum(Datum),
    /// A list as plans have it.
    List(Arc<List>),
}

impl Contents {
    /// As the interpreter has it.
    pub(crate) fn into_datum(self) -> Datum {
        match self {
            Contents::Datum(datum) => datum,
            Contents::List(list) => Datum::List(Arc::new(list.to_host())),
        }
    }

    /// As plans have it: a list of an element type. Nothing is copied if nobody else has it.
    fn into_list(self, element: &TensorType) -> List {
        match self {
            Contents::List(list) => Arc::try_unwrap(list).unwrap_or_else(|shared| (*shared).clone()),
            Contents::Datum(Datum::List(host)) => {
                let mut list = List::new(element);
                list.set_host(&host);
                list
            }
            Contents::Datum(other) => panic!("{other:?} is no list"),
        }
    }
}

/// Memory of steps that is kept for later ones.
const MAX_FREE: usize = 64;

impl Program {
    /// Compiles a graph whose inputs have known shapes.
    ///
    /// ```
    /// use anabranch_dsl::{Graph, HostTensor};
    /// use anabranch_runtime::Program;
    ///
    /// let graph = Graph::parse("graph @f(%x: f32[]) -> (f32[]) { %y = mul %x, %x : f32[] return %y }", "f.ir");
    /// let program = Program::new(graph.expect("the text is right"))?;
    /// let outputs = program.run(&[HostTensor::scalar(3.0f32)], &mut vec![])?;
    /// assert_eq!(outputs, [HostTensor::scalar(9.0f32)]);
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    pub fn new(graph: Graph) -> Result<Program> {
        Program::with_options(graph, Options::default())
    }

    /// Compiles like [`new`](Self::new), without native code: each instruction is looked at when it is run. Results are the same,
    /// bit by bit.
    pub fn without_native_code(graph: Graph) -> Result<Program> {
        Program::with_options(graph, Options { native: false, ..Options::default() })
    }

    /// Compiles like [`new`](Self::new), without fusion: each operation goes through memory by itself, and new values of variables are
    /// copied. Sums may be rounded in another order.
    pub fn without_fusion(graph: Graph) -> Result<Program> {
        Program::with_options(graph, Options { fuse: false, ..Options::default() })
    }

    /// Compiles like [`new`](Self::new), with neither fusion nor native code. If the graph went through no passes, the plan does what
    /// the graph says, node by node.
    pub fn unoptimized(graph: Graph) -> Result<Program> {
        Program::with_options(graph, Options { fuse: false, native: false, ..Options::default() })
    }

    pub(crate) fn with_options(graph: Graph, options: Options) -> Result<Program> {
        Program::with_results(graph, options, Arc::default())
    }

    /// Compiles a graph; the memory of results comes from the given pool.
    pub(crate) fn with_results(graph: Graph, options: Options, results: Arc<Results>) -> Result<Program> {
        for ty in graph.inputs().iter().filter_map(|&v| graph.ty(v).as_tensor()) {
            if ty.shape.known().is_none() {
                let message = format!("`{}`: the shape of an input is not known: {ty}", graph.name);
                return Err(Diagnostic::new(message).help("specialize the graph to the types of the call"));
            }
        }
        let plan = match options.interpreted {
            true => None,
            false => {
                let how = plan::Options { check_finite: options.check_finite, fuse: options.fuse };
                // Where results are looked at one by one, those of 16-bit floats are, by their reference meaning.
                let wide = if options.check_finite { None } else { passes::widen(&graph) };
                let mut plan = plan::lower(wide.as_ref().unwrap_or(&graph), how)?;
                if options.native {
                    plan.native = Native::compile(&mut plan);
                }
                Some(plan)
            }
        };
        Ok(Program { graph, plan, options, results, free: Mutex::default() })
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Runs the graph. `vars` are the values of its variables in the order of [`Graph::vars`]; they are changed only if the
    /// run succeeds.
    pub fn run(&self, inputs: &[HostTensor], vars: &mut Vec<HostTensor>) -> Result<Vec<HostTensor>> {
        let surroundings = Surroundings::default();
        self.check_inputs(inputs)?;
        let Some(plan) = &self.plan else {
            return self.interpret(inputs, vars, surroundings);
        };
        let mut cx = self.context(plan)?;
        plan.run(&mut cx, inputs, Vars::Tensors(vars), surroundings, &self.results)?;
        let outputs = plan.finish(&mut cx, inputs, VarsMut::Tensors(vars), &self.results);
        self.give_back(cx);
        Ok(outputs)
    }

    /// Runs a graph without variables, whose inputs and outputs may be stacks and lists. `values` are the inputs, and then the outputs, in whatever
    /// `open` opens and `close` makes.
    pub(crate) fn run_part<B>(
        &self,
        values: &mut Vec<B>,
        open: impl Fn(B) -> Contents,
        close: impl Fn(Contents) -> B,
        surroundings: Surroundings<'_>,
    ) -> Result<()> {
        let plan = self.plan.as_ref().expect("a part of a graph is compiled, or given to the interpreter itself");
        let mut cx = self.context(plan)?;
        cx.stack_inputs.clear();
        cx.stack_outputs.resize_with(plan.n_stack_outputs, || None);
        let mut tensors: SmallVec<[HostTensor; 4]> = SmallVec::new();
        for (value, &v) in values.drain(..).zip(self.graph.inputs()) {
            let (tensor, held) = match open(value) {
                Contents::Datum(Datum::Tensor(tensor)) => (tensor, None),
                Contents::Datum(Datum::Stack(stack)) => (HostTensor::scalar(false), Some(Held::Stack(stack))),
                list => (HostTensor::scalar(false), Some(Held::List(list.into_list(self.graph.ty(v).element())))),
            };
            tensors.push(tensor);
            cx.stack_inputs.push(held);
        }
        let mut none = Vec::new();
        plan.run(&mut cx, &tensors, Vars::Tensors(&none), surroundings, &self.results)?;
        let mut outputs = plan.finish(&mut cx, &tensors, VarsMut::Tensors(&mut none), &self.results).into_iter();
        let mut held = cx.stack_outputs.drain(..);
        values.extend(self.graph.outputs().iter().map(|&v| match self.graph.ty(v) {
            Type::Tensor(_) => {
                close(Contents::Datum(Datum::Tensor(outputs.next().expect("the plan gave its tensors"))))
            }
            _ => close(match held.next().flatten().expect("the plan gave its stacks") {
                Held::Stack(stack) => Contents::Datum(Datum::Stack(stack)),
                Held::List(list) => Contents::List(Arc::new(list)),
            }),
        }));
        drop(held);
        cx.stacks.iter_mut().for_each(Stack::release);
        self.give_back(cx);
        Ok(())
    }

    /// Runs the graph on locked variables.
    pub(crate) fn step(
        &self,
        inputs: &[HostTensor],
        vars: &mut [Guard<'_>],
        surroundings: Surroundings<'_>,
    ) -> Result<Vec<HostTensor>> {
        self.check_inputs(inputs)?;
        let Some(plan) = &self.plan else {
            let mut values: Vec<HostTensor> = vars.iter().map(|g| g.tensor().clone()).collect();
            let outputs = self.interpret(inputs, &mut values, surroundings)?;
            for (guard, value) in vars.iter_mut().zip(values) {
                if let Guard::Write(tensor) = guard {
                    **tensor = value;
                }
            }
            return Ok(outputs);
        };
        let mut cx = self.context(plan)?;
        plan.run(&mut cx, inputs, Vars::Locked(vars), surroundings, &self.results)?;
        let outputs = plan.finish(&mut cx, inputs, VarsMut::Locked(vars), &self.results);
        self.give_back(cx);
        Ok(outputs)
    }

    /// Runs the graph on locked variables, with its outputs in the place of other tensors.
    pub(crate) fn step_into(
        &self,
        inputs: &[HostTensor],
        vars: &mut [Guard<'_>],
        surroundings: Surroundings<'_>,
        outputs: &mut [&mut HostTensor],
    ) -> Result<()> {
        let Some(plan) = &self.plan else {
            let new = self.step(inputs, vars, surroundings)?;
            outputs.iter_mut().zip(new).for_each(|(to, new)| **to = new);
            return Ok(());
        };
        self.check_inputs(inputs)?;
        let mut cx = self.context(plan)?;
        plan.run(&mut cx, inputs, Vars::Locked(vars), surroundings, &self.results)?;
        plan.finish_into(&mut cx, inputs, VarsMut::Locked(vars), &self.results, outputs);
        self.give_back(cx);
        Ok(())
    }

    /// Runs the graph like [`run`](Self::run), and puts the outputs into `outputs`, whose memory is used again where types fit: by this
    /// call or by the next one. So the third of three equal calls takes no memory from the allocator. If the run fails, `outputs` stays
    /// as it was.
    pub fn run_into(
        &self,
        inputs: &[HostTensor],
        vars: &mut Vec<HostTensor>,
        outputs: &mut Vec<HostTensor>,
    ) -> Result<()> {
        let Some(plan) = &self.plan else {
            *outputs = self.run(inputs, vars)?;
            return Ok(());
        };
        self.check_inputs(inputs)?;
        let surroundings = Surroundings::default();
        let mut cx = self.context(plan)?;
        plan.run(&mut cx, inputs, Vars::Tensors(vars), surroundings, &self.results)?;
        outputs.resize_with(plan.outputs.len(), || HostTensor::zeros(DType::U8, [0]));
        plan.finish_into(&mut cx, inputs, VarsMut::Tensors(vars), &self.results, outputs);
        self.give_back(cx);
        Ok(())
    }

    fn interpret(
        &self,
        inputs: &[HostTensor],
        vars: &mut Vec<HostTensor>,
        surroundings: Surroundings<'_>,
    ) -> Result<Vec<HostTensor>> {
        let options = interp::Options { check_finite: self.options.check_finite, ..Default::default() };
        interp::run_in(&self.graph, inputs, vars, options, surroundings)
    }

    fn check_inputs(&self, inputs: &[HostTensor]) -> Result<()> {
        let name = &self.graph.name;
        let expected = self.graph.inputs().len();
        if inputs.len() != expected {
            return Err(Diagnostic::new(format!("`{name}` takes {expected} inputs, given {}", inputs.len())));
        }
        for (i, (&param, input)) in self.graph.inputs().iter().zip(inputs).enumerate() {
            let ty = self.graph.ty(param).element();
            let same = ty.dtype == input.dtype()
                && ty.rank() == input.rank()
                && ty.shape.dims().iter().zip(input.shape()).all(|(d, &n)| *d == Dim::Known(n));
            if !same {
                let param = self.graph.value(param).name.map_or_else(|| format!("input {i}"), |n| format!("`{n}`"));
                return Err(Diagnostic::new(format!("`{name}`: {param} is {ty}, given {}", input.ty())));
            }
        }
        Ok(())
    }

    fn context(&self, plan: &Plan) -> Result<Context> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.map_or_else(|| Context::new(plan), Ok)
    }

    /// Keeps the memory of a step for a later one. That of a step that failed is freed instead: its stacks may have grown without
    /// bound.
    fn give_back(&self, cx: Context) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < MAX_FREE {
            free.push(cx);
        }
    }

    /// What the program does, as text: instructions, memory, inputs and outputs; for each loop whether its iterations depend
    /// on each other; and what loops and branches save for gradients.
    pub fn explain(&self) -> String {
        let mut text = match &self.plan {
            Some(plan) => plan.to_string(),
            None => format!("`{}` is interpreted\n", self.graph.name),
        };
        for (node, iterations) in dependence::all_loops(&self.graph) {
            text.push_str(&format!("  loop at {}: {iterations}\n", self.graph.node(node).loc));
        }
        text.push_str(&autodiff::saved(&self.graph).to_string());
        text
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("graph", &self.graph.name).finish_non_exhaustive()
    }
}
