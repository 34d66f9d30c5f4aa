//! A compiled graph: its plan, and the memory of its steps.

use crate::cpu::compile::{self, Context, Plan, PlanProfile, PlanTimes, StackOrList};
use crate::cpu::kernels::tiles::TileUnit;
use crate::cpu::lanes;
use crate::cpu::memory::list::ListStorage;
use crate::cpu::memory::results::ResultPool;
use crate::cpu::memory::stack::StackStorage;
use crate::cpu::memory::{Variables, Vars};
use crate::cpu::native::Native;
use crate::guests::KeptMemory;
#[cfg(all(feature = "testing", feature = "jit"))]
use crate::options::NativeLimits;
#[cfg(feature = "testing")]
use crate::options::{CodeVectors, CpuOptions};
use crate::options::{CompileOptions, MatmulPrecision, StopCheck};
use anabranch_dsl::interp::{self, RunContext, RuntimeValue};
use anabranch_dsl::ir::dependence;
use anabranch_dsl::memory::{self, HeldBytes, OutOfMemory};
use anabranch_dsl::{DType, Diagnostic, Dim, ErrorKind, Graph, HostTensor, Result, TensorType, Type, autodiff, passes};
use smallvec::SmallVec;
use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A graph compiled for the concrete types of its inputs.
///
/// Several steps may run at the same time. Each has memory of its own, which later steps reuse.
pub struct Program {
    graph: Graph,
    plan: Option<Plan>,
    options: CompileOptions,
    /// The pool of results that callers have dropped.
    results: Arc<ResultPool>,
    free: FreeContexts,
}

/// The contexts of steps that have ended, for later ones.
struct FreeContexts {
    #[expect(clippy::vec_box, reason = "each step borrows one: only a pointer is moved")]
    contexts: Mutex<Vec<Box<Context>>>,
    /// The memory of the contexts, and that of each.
    kept: KeptMemory,
    bytes_of_each: u64,
}

impl FreeContexts {
    fn new(plan: Option<&Plan>, is_of_guest: bool) -> FreeContexts {
        let bytes_of_each = plan.map_or(0, |plan| plan.working_bytes() as u64);
        FreeContexts { contexts: Mutex::default(), kept: KeptMemory::new(is_of_guest), bytes_of_each }
    }

    fn take(&self) -> Option<Box<Context>> {
        let context = self.contexts.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        self.kept.release(self.bytes_of_each);
        Some(context)
    }

    /// Keeps a context, unless there are enough.
    fn keep(&self, context: Box<Context>) {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if contexts.len() < MAX_FREE && self.kept.keep(self.bytes_of_each) {
            contexts.push(context);
        }
    }
}

impl Drop for FreeContexts {
    fn drop(&mut self) {
        let contexts = self.contexts.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.kept.release(contexts.len() as u64 * self.bytes_of_each);
    }
}

/// An input or output of a part of a graph. A clone shares the memory.
#[derive(Clone, Debug)]
pub(crate) enum Contents {
    Value(RuntimeValue),
    /// A list in the representation of plans.
    List(Arc<ListStorage>),
}

impl Contents {
    /// Converts to the representation of the interpreter.
    ///
    /// # Errors
    /// Fails if there is no memory for it.
    pub(crate) fn into_value(self) -> Result<RuntimeValue, OutOfMemory> {
        Ok(match self {
            Contents::Value(datum) => datum,
            Contents::List(list) => RuntimeValue::List(Arc::new(list.to_host()?)),
        })
    }

    /// Converts to the representation of plans: a list of this element type. Copies only shared
    /// data.
    fn into_list(self, element: &TensorType) -> Result<ListStorage, OutOfMemory> {
        match self {
            Contents::List(list) => match Arc::try_unwrap(list) {
                Ok(list) => Ok(list),
                Err(shared) => shared.copied(),
            },
            Contents::Value(RuntimeValue::List(host)) => {
                let mut list = ListStorage::new(element);
                list.set_host(&host)?;
                Ok(list)
            }
            Contents::Value(other) => panic!("{other:?} is not a list"),
        }
    }
}

/// The maximum number of bytes of results that are computed before the runs of a program of another
/// process. There is a limit to the number of programs and of their operations.
const MAX_EVALUATED_OF_GUEST: u128 = 2 << 10;

/// The maximum number of step contexts that are kept for later steps.
const MAX_FREE: usize = 64;

impl Program {
    /// Compiles a graph whose inputs have known shapes.
    ///
    /// ```
    /// use anabranch::extend::Program;
    /// use anabranch::{Graph, HostTensor};
    ///
    /// let graph = Graph::parse(
    ///     "graph @f(%x: f32[]) -> (f32[]) { %y = mul %x, %x : f32[] return %y }",
    ///     "f.ir",
    /// );
    /// let program = Program::new(graph.expect("the text is right"))?;
    /// let outputs = program.run(&[HostTensor::scalar(3.0f32)], &mut vec![])?;
    /// assert_eq!(outputs, [HostTensor::scalar(9.0f32)]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn new(graph: Graph) -> Result<Program> {
        Program::with_options(graph, CompileOptions::default())
    }

    /// Compiles a graph like [`new`](Self::new), with matmuls of `f32` of a precision: see
    /// [`SessionBuilder::matmul_precision`](crate::SessionBuilder::matmul_precision).
    pub fn with_matmul_precision(graph: Graph, matmul_precision: MatmulPrecision) -> Result<Program> {
        Program::with_options(graph, CompileOptions { matmul_precision, ..CompileOptions::default() })
    }

    /// Compiles a graph with matmuls whose operands are rounded to `bf16`, and with plain loops in
    /// place of the unit that multiplies tiles.
    #[cfg(feature = "testing")]
    pub fn with_emulated_tiles(graph: Graph) -> Result<Program> {
        let cpu = CpuOptions { emulates_tiles: true, ..CpuOptions::default() };
        let matmul_precision = MatmulPrecision::Bf16;
        Program::with_options(graph, CompileOptions { matmul_precision, cpu, ..CompileOptions::default() })
    }

    /// Compiles a graph like [`new`](Self::new), without native code: loops run instruction by
    /// instruction. Results are bitwise identical.
    #[cfg(feature = "testing")]
    pub fn without_native_code(graph: Graph) -> Result<Program> {
        Program::with_options(graph, CompileOptions::default().with_native(false))
    }

    /// Compiles a graph like [`new`](Self::new), with native code that has only so many registers
    /// of the processor for values of each kind. Results are bitwise identical.
    #[cfg(all(feature = "testing", feature = "jit"))]
    pub fn with_few_registers(graph: Graph, registers: usize) -> Result<Program> {
        let native_limits = NativeLimits { registers: Some(registers), ..NativeLimits::default() };
        Program::on_cpu(graph, CpuOptions { native_limits, ..CpuOptions::default() })
    }

    /// Compiles a graph like [`new`](Self::new), with native code that keeps numbers of the plan in
    /// memory, as that of very large loops. Results are bitwise identical.
    #[cfg(all(feature = "testing", feature = "jit"))]
    pub fn with_numbers_in_memory(graph: Graph) -> Result<Program> {
        let native_limits = NativeLimits { variables_at_exits: Some(0), ..NativeLimits::default() };
        Program::on_cpu(graph, CpuOptions { native_limits, ..CpuOptions::default() })
    }

    /// Compiles a graph like [`new`](Self::new), without native code, and with so many iterations
    /// of a parallel loop side by side, from as many iterations on. With 0, iterations run one by
    /// one. Results are bitwise identical.
    #[cfg(feature = "testing")]
    pub fn with_lanes(graph: Graph, lanes: usize) -> Result<Program> {
        Program::with_code_of_lanes(graph, lanes, CodeVectors::None)
    }

    /// Compiles a graph like [`with_lanes`](Self::with_lanes), with native code of what iterations
    /// side by side do.
    #[cfg(feature = "testing")]
    pub fn with_lane_code(graph: Graph, lanes: usize) -> Result<Program> {
        Program::with_code_of_lanes(graph, lanes, CodeVectors::Widest)
    }

    /// Compiles a graph like [`with_lane_code`](Self::with_lane_code), with vectors of at most 256
    /// bits.
    #[cfg(feature = "testing")]
    pub fn with_lane_code_up_to_256_bits(graph: Graph, lanes: usize) -> Result<Program> {
        Program::with_code_of_lanes(graph, lanes, CodeVectors::UpTo256)
    }

    #[cfg(feature = "testing")]
    fn with_code_of_lanes(graph: Graph, lanes: usize, lane_code: CodeVectors) -> Result<Program> {
        Program::on_cpu(graph, CpuOptions { native: false, lanes, lane_code, ..CpuOptions::default() })
    }

    #[cfg(feature = "testing")]
    fn on_cpu(graph: Graph, cpu: CpuOptions) -> Result<Program> {
        Program::with_options(graph, CompileOptions { cpu, ..CompileOptions::default() })
    }

    /// Compiles a graph like [`new`](Self::new), without fusion: each operation is a pass over
    /// memory, and new values of variables are copied. Sums may be rounded in another order.
    #[cfg(feature = "testing")]
    pub fn without_fusion(graph: Graph) -> Result<Program> {
        Program::with_options(graph, CompileOptions { fuse: false, ..CompileOptions::default() })
    }

    /// Compiles a graph like [`new`](Self::new), with neither fusion nor native code. If the graph
    /// went through no passes, the plan runs it node by node.
    #[cfg(feature = "testing")]
    pub fn unoptimized(graph: Graph) -> Result<Program> {
        Program::with_options(graph, CompileOptions { fuse: false, ..CompileOptions::default().with_native(false) })
    }

    pub(crate) fn with_options(graph: Graph, options: CompileOptions) -> Result<Program> {
        Program::new_while(graph, options, &|| Ok(()))
    }

    /// Compiles a graph with a pool for the memory of results.
    pub(crate) fn with_results(graph: Graph, options: CompileOptions, results: Arc<ResultPool>) -> Result<Program> {
        Program::compiled(graph, options, results, &|| Ok(()))
    }

    /// Compiles a graph with a pool of its own, unless the check fails between two stages.
    pub(crate) fn new_while(graph: Graph, options: CompileOptions, may_go_on: StopCheck<'_>) -> Result<Program> {
        Program::compiled(graph, options, Arc::new(ResultPool::new(options.is_of_guest)), may_go_on)
    }

    fn compiled(
        graph: Graph,
        options: CompileOptions,
        results: Arc<ResultPool>,
        may_go_on: StopCheck<'_>,
    ) -> Result<Program> {
        for ty in graph.inputs().iter().filter_map(|&v| graph.ty(v).as_tensor()) {
            if ty.shape.known().is_none() && !options.interpreted {
                let message = format!("`{}`: the shape of an input is unknown: {ty}", graph.name);
                return Err(Diagnostic::new(message).help("specialize the graph to the types of the call"));
            }
        }
        let plan = if options.interpreted { None } else { compile(&graph, options, may_go_on)? };
        let free = FreeContexts::new(plan.as_ref(), options.is_of_guest);
        Ok(Program { graph, plan, options, results, free })
    }

    /// Returns the graph as it was optimized and compiled.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Runs the graph.
    ///
    /// `vars` are the values of its variables in the order of [`Graph::vars`]. The variables change
    /// only if the run succeeds.
    pub fn run(&self, inputs: &[HostTensor], vars: &mut Vec<HostTensor>) -> Result<Vec<HostTensor>> {
        self.run_in(inputs, vars, RunContext::default())
    }

    /// Runs the graph like [`run`](Self::run), for a caller with its own print callback and stop
    /// flag.
    pub(crate) fn run_in(
        &self,
        inputs: &[HostTensor],
        vars: &mut Vec<HostTensor>,
        run_context: RunContext<'_>,
    ) -> Result<Vec<HostTensor>> {
        self.check_inputs(inputs)?;
        self.check_vars(vars)?;
        let Some(plan) = &self.plan else {
            return self.interpret(inputs, vars, run_context);
        };
        let mut cx = self.context(plan)?;
        plan.run(&mut cx, inputs, Vars::Tensors(vars), run_context, &self.results)?;
        let outputs = plan.finish(&mut cx, inputs, &mut vars[..], &self.results);
        self.give_back(cx);
        Ok(outputs)
    }

    /// Runs a graph without variables whose inputs and outputs may be stacks and lists. `values`
    /// are first the inputs, then the outputs, in a type that `open` unpacks and `close` creates
    /// from a value and its type.
    pub(crate) fn run_part<B>(
        &self,
        values: &mut Vec<B>,
        open: impl Fn(B) -> Contents,
        close: impl Fn(Contents, &Type) -> B,
        run_context: RunContext<'_>,
    ) -> Result<()> {
        let Some(plan) = &self.plan else {
            let inputs = values.drain(..).map(|value| open(value).into_value());
            let inputs: Result<Vec<RuntimeValue>, OutOfMemory> = inputs.collect();
            let inputs = inputs.map_err(|missing| compile::no_memory_for_list(&self.graph.name, missing))?;
            let outputs = interp::run_data(&self.graph, &inputs, &mut vec![], self.interpreter_options(), run_context)?;
            let types = self.graph.outputs().iter().map(|&v| self.graph.ty(v));
            values.extend(outputs.into_iter().zip(types).map(|(datum, ty)| close(Contents::Value(datum), ty)));
            return Ok(());
        };
        let mut cx = self.context(plan)?;
        cx.stack_inputs.clear();
        cx.stack_outputs.resize_with(plan.n_stack_outputs, || None);
        let mut tensors: SmallVec<[HostTensor; 4]> = SmallVec::new();
        for (value, &v) in values.drain(..).zip(self.graph.inputs()) {
            let (tensor, held) = match open(value) {
                Contents::Value(RuntimeValue::Tensor(tensor)) => (tensor, None),
                Contents::Value(RuntimeValue::Stack(stack)) => {
                    (HostTensor::scalar(false), Some(StackOrList::Stack(stack)))
                }
                list => {
                    let list = list.into_list(self.graph.ty(v).element());
                    let list = list.map_err(|missing| compile::no_memory_for_list(&self.graph.name, missing))?;
                    (HostTensor::scalar(false), Some(StackOrList::List(list)))
                }
            };
            tensors.push(tensor);
            cx.stack_inputs.push(held);
        }
        plan.run(&mut cx, &tensors, Vars::Tensors(&[]), run_context, &self.results)?;
        let mut outputs = plan.finish(&mut cx, &tensors, &mut [][..], &self.results).into_iter();
        let mut held = cx.stack_outputs.drain(..);
        values.extend(self.graph.outputs().iter().map(|&v| {
            let ty = self.graph.ty(v);
            let contents = match ty {
                Type::Tensor(_) => {
                    Contents::Value(RuntimeValue::Tensor(outputs.next().expect("the plan returned its tensors")))
                }
                _ => match held.next().flatten().expect("the plan returned its stacks") {
                    StackOrList::Stack(stack) => Contents::Value(RuntimeValue::Stack(stack)),
                    StackOrList::List(list) => Contents::List(Arc::new(list)),
                },
            };
            close(contents, ty)
        }));
        drop(held);
        cx.stacks.iter_mut().for_each(StackStorage::release);
        self.give_back(cx);
        Ok(())
    }

    /// Returns the bytes of the memory and the outputs of the plan. Stacks and lists come on top.
    pub(crate) fn working_bytes(&self) -> u64 {
        self.plan.as_ref().map_or(0, |plan| plan.working_bytes() as u64)
    }

    /// Counts the bytes of the memory and the outputs of the plan in the budget of the run.
    pub(crate) fn hold_working_bytes(&self) -> Result<Option<HeldBytes>> {
        let Some(plan) = &self.plan else { return Ok(None) };
        memory::try_hold(plan.working_bytes()).map_err(|_| plan.too_large())
    }

    /// Returns whether the interpreter runs the graph.
    pub(crate) fn is_interpreted(&self) -> bool {
        self.plan.is_none()
    }

    fn plan(&self) -> &Plan {
        self.plan.as_ref().unwrap_or_else(|| panic!("`{}` is interpreted", self.graph.name))
    }

    /// Runs the plan on the variables of a session.
    pub(crate) fn step(
        &self,
        inputs: &[HostTensor],
        vars: &mut impl Variables,
        run_context: RunContext<'_>,
    ) -> Result<Vec<HostTensor>> {
        self.check_inputs(inputs)?;
        let plan = self.plan();
        let mut cx = self.context(plan)?;
        plan.run(&mut cx, inputs, vars.values(), run_context, &self.results)?;
        let outputs = plan.finish(&mut cx, inputs, vars, &self.results);
        self.give_back(cx);
        Ok(outputs)
    }

    /// Runs the plan like [`step`](Self::step). Also returns its work, whose times count from
    /// `start`.
    pub(crate) fn profile(
        &self,
        inputs: &[HostTensor],
        vars: &mut impl Variables,
        run_context: RunContext<'_>,
        start: Instant,
    ) -> Result<(Vec<HostTensor>, PlanTimes)> {
        self.check_inputs(inputs)?;
        let plan = self.plan();
        let mut cx = self.context(plan)?;
        cx.profile = Some(Box::new(PlanProfile::new(start)));
        plan.run(&mut cx, inputs, vars.values(), run_context, &self.results)?;
        let outputs = plan.finish(&mut cx, inputs, vars, &self.results);
        let profile = cx.profile.take().expect("it was set");
        self.give_back(cx);
        Ok((outputs, profile.finish(plan)))
    }

    /// Runs the plan on the variables of a session, and replaces other tensors by its outputs.
    pub(crate) fn step_into(
        &self,
        inputs: &[HostTensor],
        vars: &mut impl Variables,
        run_context: RunContext<'_>,
        outputs: &mut [&mut HostTensor],
    ) -> Result<()> {
        let plan = self.plan();
        self.check_inputs(inputs)?;
        let mut cx = self.context(plan)?;
        plan.run(&mut cx, inputs, vars.values(), run_context, &self.results)?;
        plan.finish_into(&mut cx, inputs, vars, &self.results, outputs);
        self.give_back(cx);
        Ok(())
    }

    /// Runs the graph like [`run`](Self::run), and replaces `outputs`.
    ///
    /// The memory of the replaced tensors is reused if types match, by this call or the next call.
    /// So from the third of several equal calls on, the allocator is not used. If the run fails,
    /// `outputs` is unchanged.
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
        self.check_vars(vars)?;
        let run_context = RunContext::default();
        let mut cx = self.context(plan)?;
        plan.run(&mut cx, inputs, Vars::Tensors(vars), run_context, &self.results)?;
        outputs.resize_with(plan.outputs.len(), || HostTensor::zeros(DType::U8, [0]));
        plan.finish_into(&mut cx, inputs, &mut vars[..], &self.results, outputs);
        self.give_back(cx);
        Ok(())
    }

    fn interpret(
        &self,
        inputs: &[HostTensor],
        vars: &mut Vec<HostTensor>,
        run_context: RunContext<'_>,
    ) -> Result<Vec<HostTensor>> {
        interp::run_in(&self.graph, inputs, vars, self.interpreter_options(), run_context)
    }

    fn interpreter_options(&self) -> interp::InterpOptions {
        interp::InterpOptions::new().check_finite(self.options.check_finite)
    }

    fn check_inputs(&self, inputs: &[HostTensor]) -> Result<()> {
        let name = &self.graph.name;
        let expected = self.graph.inputs().len();
        if inputs.len() != expected {
            let message = format!("`{name}` takes {expected} inputs, but got {}", inputs.len());
            return Err(Diagnostic::new(message).help("pass one tensor for each input, in their order"));
        }
        for (i, (&param, input)) in self.graph.inputs().iter().zip(inputs).enumerate() {
            let ty = self.graph.ty(param).element();
            let same = ty.dtype == input.dtype()
                && ty.rank() == input.rank()
                && ty.shape.dims().iter().zip(input.shape()).all(|(d, &n)| *d == Dim::Known(n));
            if !same {
                let param = self.graph.value(param).name.map_or_else(|| format!("input {i}"), |n| format!("`{n}`"));
                let message = format!("`{name}`: {param} is {ty}, but got {}", input.ty());
                return Err(Diagnostic::new(message).help("specialize the graph to the types of the call"));
            }
        }
        Ok(())
    }

    /// Native code relies on the sizes of variables.
    fn check_vars(&self, vars: &[HostTensor]) -> Result<()> {
        let declared = &self.graph.vars;
        // Nothing is allocated for variables that fit.
        let fits = |ty: &TensorType, value: &HostTensor| {
            let mut dims = ty.shape.dims().iter().zip(value.shape());
            ty.dtype == value.dtype() && ty.rank() == value.rank() && dims.all(|(d, &n)| *d == Dim::Known(n))
        };
        let wrong = declared.iter().zip(vars).find(|(var, value)| !fits(&var.ty, value));
        let message = match wrong {
            Some((var, value)) => format!("the variable `{}` is {}, but got {}", var.name, var.ty, value.ty()),
            None if declared.len() == vars.len() => return Ok(()),
            None => format!("the graph has {} variables, but got {}", declared.len(), vars.len()),
        };
        let message = format!("`{}`: {message}", self.graph.name);
        Err(Diagnostic::new(message).help("pass a value of the declared type for each variable, in their order"))
    }

    fn context(&self, plan: &Plan) -> Result<Box<Context>> {
        self.free.take().map_or_else(|| Context::new(plan).map(Box::new), Ok)
    }

    /// Keeps the context of a step for a later step. The context of a failed step is dropped
    /// instead, because its stacks may have grown without bound.
    fn give_back(&self, mut cx: Box<Context>) {
        cx.release_slots();
        if let (true, Some(plan)) = (self.options.is_of_guest, &self.plan) {
            // They are not counted.
            cx.free_grown(plan);
        }
        self.free.keep(cx);
    }

    /// Returns a description of the program as text: instructions, memory, inputs and outputs; for
    /// each loop, whether its iterations depend on each other; the values that loops and branches
    /// save for gradients; and the fused kernels of several operations.
    pub fn explain(&self) -> String {
        let mut text = match &self.plan {
            Some(plan) => plan.to_string(),
            None => format!("`{}` is interpreted\n", self.graph.name),
        };
        for (node, iterations) in dependence::all_loops(&self.graph) {
            text.push_str(&format!("  loop at {}: {iterations}\n", self.graph.node(node).loc));
        }
        text.push_str(&autodiff::saved(&self.graph).to_string());
        if self.plan.is_some() {
            let graph = prepared(&self.graph, self.options, &|| Ok(())).expect("nothing stops it");
            text.push_str(&compile::kernels_text(&graph, lower_options(self.options)));
        }
        text
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("graph", &self.graph.name).finish_non_exhaustive()
    }
}

fn lower_options(options: CompileOptions) -> compile::LowerOptions {
    let max_evaluated = if options.is_of_guest { MAX_EVALUATED_OF_GUEST } else { u128::MAX };
    let CompileOptions { check_finite, fuse, .. } = options;
    compile::LowerOptions { check_finite, fuse, max_evaluated, tiles: TileUnit::of(&options) }
}

/// Returns the graph from which a plan is made.
fn prepared<'g>(graph: &'g Graph, options: CompileOptions, may_go_on: StopCheck<'_>) -> Result<Cow<'g, Graph>> {
    // If results are checked one by one, so are those on 16-bit floats, by their reference
    // semantics.
    if options.check_finite {
        return Ok(Cow::Borrowed(graph));
    }
    may_go_on()?;
    let wide = passes::widen(graph);
    may_go_on()?;
    let apart = if options.fuse { passes::scalars(wide.as_ref().unwrap_or(graph)) } else { None };
    Ok(apart.or(wide).map_or(Cow::Borrowed(graph), Cow::Owned))
}

/// Compiles the plan of a graph. Returns `None` if the compiler fails and the interpreter is to run
/// the graph.
///
/// A failure of the compiler is our bug: a broken invariant, which panics, or code that is
/// rejected. Such a failure becomes an error of the call, so that other functions of the session
/// keep working. A mistake in the graph is an error in any case.
fn compile(graph: &Graph, options: CompileOptions, may_go_on: StopCheck<'_>) -> Result<Option<Plan>> {
    let lower = || {
        #[cfg(test)]
        tests::fail_at(tests::FailureStage::Plan);
        let graph = prepared(graph, options, may_go_on)?;
        may_go_on()?;
        compile::lower(&graph, lower_options(options))
    };
    // A failed compilation drops everything it works on except for the graph, which it only reads.
    let mut plan = match catch_unwind(AssertUnwindSafe(lower)) {
        Ok(plan) => plan?,
        Err(_) if options.fallback => return Ok(None),
        Err(panic) => return Err(failure(graph, "plan", &message(panic))),
    };
    may_go_on()?;
    // Before native code replaces jumps.
    let programs = || if options.cpu.lanes > 0 { lanes::programs(&mut plan, options.cpu.lanes) } else { Vec::new() };
    let programs = match catch_unwind(AssertUnwindSafe(programs)) {
        Ok(programs) => programs,
        Err(_) if options.fallback => Vec::new(),
        Err(panic) => return Err(failure(graph, "lanes", &message(panic))),
    };
    if options.cpu.native {
        let native = || {
            #[cfg(test)]
            tests::fail_at(tests::FailureStage::NativeCode);
            Native::compile(&mut plan, options.cpu.native_limits, &|| may_go_on().is_err())
        };
        let native = catch_unwind(AssertUnwindSafe(native)).unwrap_or_else(|panic| Err(message(panic)));
        // The check fails again if native code was not finished because of it.
        may_go_on()?;
        match native {
            Ok(native) => plan.native = native,
            // The instructions exist and are unchanged.
            Err(_) if options.fallback => {}
            Err(what) => return Err(failure(graph, "native code", &what)),
        }
    }
    lanes::install(&mut plan, programs, options.cpu.lane_code);
    Ok(Some(plan))
}

/// Returns the message of a panic. Resumes a panic without a message.
fn message(panic: Box<dyn Any + Send>) -> String {
    let panic = match panic.downcast::<String>() {
        Ok(text) => return *text,
        Err(panic) => panic,
    };
    match panic.downcast::<&'static str>() {
        Ok(text) => (*text).to_owned(),
        Err(panic) => resume_unwind(panic),
    }
}

fn failure(graph: &Graph, what: &str, why: &str) -> Diagnostic {
    let message = format!("`{}` cannot be compiled because of an internal error: no {what}: {why}", graph.name);
    let help =
        "please report this; `Session::builder().interpreter_fallback(true)` runs such functions in the interpreter";
    Diagnostic::new(message).of_kind(ErrorKind::Internal).help(help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The stages at which tests make the compiler fail.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum FailureStage {
        Plan,
        NativeCode,
    }

    thread_local! {
        static FAILS: Cell<Option<FailureStage>> = const { Cell::new(None) };
    }

    pub(super) fn fail_at(stage: FailureStage) {
        assert_ne!(FAILS.get(), Some(stage), "an error on purpose");
    }

    /// Compiles a loop over numbers and runs it on 3, while the compiler fails at a stage.
    fn run(stage: Option<FailureStage>, fallback: bool) -> Result<(Program, Vec<HostTensor>)> {
        let text = "graph @square_up(%n: i32[]) -> i32[] {
            %0 = constant 2 : i32[]
            %x, %i = while (%x = %0, %i = %n) : (i32[], i32[]) cond {
                %1 = constant 0 : i32[]
                %p = gt %i, %1 : bool[]
                yield %p
            } body {
                %y = mul %x, %x : i32[]
                %2 = constant 1 : i32[]
                %j = sub %i, %2 : i32[]
                yield %y, %j
            }
            return %x
        }";
        let graph = Graph::parse(text, "square_up.ir").expect("the text is right");
        FAILS.set(stage);
        let program = Program::with_options(graph, CompileOptions { fallback, ..CompileOptions::default() });
        FAILS.set(None);
        let program = program?;
        let outputs = program.run(&[HostTensor::scalar(3)], &mut vec![])?;
        Ok((program, outputs))
    }

    #[test]
    fn a_plan_that_cannot_be_compiled_is_an_error_that_says_what_failed() {
        for (stage, what) in [(FailureStage::Plan, "no plan"), (FailureStage::NativeCode, "no native code")] {
            let error = run(Some(stage), false).expect_err("the compiler fails");
            assert_eq!(error.kind, ErrorKind::Internal, "{stage:?}: {error}");
            let error = error.to_string();
            for part in ["`square_up` cannot be compiled", what, "an error on purpose", "interpreter_fallback(true)"] {
                assert!(error.contains(part), "{stage:?}: no `{part}` in: {error}");
            }
        }
    }

    #[test]
    fn the_interpreter_runs_what_cannot_be_compiled_if_it_is_asked_to() {
        for (stage, is_interpreted) in
            [(None, false), (Some(FailureStage::Plan), true), (Some(FailureStage::NativeCode), false)]
        {
            let (program, outputs) = run(stage, true).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(outputs, [HostTensor::scalar(256)], "{stage:?}");
            assert_eq!(program.explain().contains("is interpreted"), is_interpreted, "{stage:?}");
            let has_native_code = program.plan.as_ref().is_some_and(|plan| plan.native.is_some());
            assert_eq!(has_native_code, cfg!(feature = "jit") && stage.is_none(), "{stage:?}");
            let mut values = vec![RuntimeValue::Tensor(HostTensor::scalar(3))];
            let part = program.run_part(
                &mut values,
                Contents::Value,
                |contents, _| contents.into_value().expect("there is memory"),
                RunContext::default(),
            );
            part.unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(values[0].as_tensor(), Some(&HostTensor::scalar(256)), "{stage:?}: as a part of a graph");
        }
    }

    #[test]
    fn a_session_goes_on_after_a_function_that_cannot_be_compiled() {
        let call = |session: &crate::Session, stage: Option<FailureStage>| {
            let f = session.function(|x: anabranch_dsl::Tensor| x * x).expect("the function is right");
            FAILS.set(stage);
            let result = f.call(3.0f32);
            FAILS.set(None);
            result.map(|y| y.item())
        };
        let session = crate::Session::new().expect("a session on the CPU");
        assert!(call(&session, Some(FailureStage::Plan)).is_err());
        assert_eq!(call(&session, None).expect("nothing fails"), 9.0);
        let session = crate::Session::builder().interpreter_fallback(true).build().expect("a session on the CPU");
        assert_eq!(call(&session, Some(FailureStage::Plan)).expect("the interpreter runs it"), 9.0);
    }
}
