//! CPU devices: thread pools that compute in host memory.

use super::DeviceId;
use super::cost::Costs;
use super::executable::Executable;
use super::optimize::optimize;
use super::whole::WholeGraph;
use super::{Device, DeviceBuffer, Event, LoadedKernel, MemorySpace, Progress, Step, Ticket, name_of, no_threads};
use crate::cpu::memory::results::ResultPool;
use crate::cpu::program::Program;
use crate::options::{CompileOptions, StopCheck};
use crate::threads::ThreadLimit;
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::interp::{self, RunContext, StopFlag};
use anabranch_dsl::ir::{Op, StackOp, Value};
use anabranch_dsl::ops::{Aliasing, OpClass};
use anabranch_dsl::{Graph, HostTensor, Loc, Result, TensorType, Type, memory, passes};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// A CPU device, which owns some threads of this machine. The threads start on first use.
#[derive(Debug)]
pub(crate) struct CpuDevice {
    id: DeviceId,
    name: Option<DeviceName>,
    n_threads: usize,
    threads: OnceLock<rayon::ThreadPool>,
    /// Memory of results that callers have dropped.
    results: Arc<ResultPool>,
}

thread_local! {
    /// Whether this thread belongs to a device.
    static IS_DEVICE: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread belongs to a device.
#[cfg(feature = "peers")]
pub(crate) fn is_thread_of_device() -> bool {
    IS_DEVICE.get()
}

/// If this thread belongs to a device, tries to run one queued task. Returns whether a task ran.
///
/// The print callback of a kernel may call a function. That call then waits on a thread of the
/// device, possibly for work queued for the same thread.
pub(super) fn run_queued_task() -> bool {
    IS_DEVICE.get() && rayon::yield_now() == Some(rayon::Yield::Executed)
}

impl CpuDevice {
    /// Creates a device with `n_threads` threads. Without a name, errors do not mention it.
    pub(crate) fn new(id: DeviceId, name: Option<DeviceName>, n_threads: usize) -> CpuDevice {
        CpuDevice { id, name, n_threads: n_threads.max(1), threads: OnceLock::new(), results: Arc::default() }
    }

    pub(super) fn place(&self) -> MemorySpace {
        MemorySpace::Device(self.id)
    }

    fn threads(&self) -> Result<&rayon::ThreadPool> {
        if let Some(threads) = self.threads.get() {
            return Ok(threads);
        }
        let (name, limit) = (name_of(self), Arc::new(ThreadLimit::new(self.n_threads)));
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(self.n_threads)
            .thread_name(move |i| format!("{name} thread {i}"))
            .start_handler(move |_| {
                IS_DEVICE.set(true);
                limit.clone().enter();
            })
            .build()
            .map_err(|e| no_threads(format_args!("the threads of {}", name_of(self)), e))?;
        Ok(self.threads.get_or_init(|| threads))
    }
}

impl Device for CpuDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn name(&self) -> Option<DeviceName> {
        self.name
    }

    fn is_simulated(&self) -> bool {
        false
    }

    fn compile(self: Arc<Self>, graph: &Graph, options: CompileOptions) -> Result<Option<Box<dyn Executable>>> {
        let program = Program::with_results(graph.clone(), options, self.results.clone())?;
        Ok(Some(Box::new(WholeGraph::new(program, self.place(), self.name))))
    }

    fn load(
        self: Arc<Self>,
        graph: Graph,
        options: CompileOptions,
        may_go_on: StopCheck<'_>,
    ) -> Result<Box<dyn LoadedKernel>> {
        Ok(Box::new(Loaded::new(CpuKernel::new(graph, options, may_go_on)?, self)))
    }

    fn shares_host_memory(&self) -> bool {
        true
    }

    // Copies complete immediately: CPU devices share host memory, and buffers are immutable.

    fn upload(&self, values: Vec<DeviceBuffer>, _: &Arc<Step>, _: Ticket) -> Progress {
        Progress::Complete(moved(values, self.place()))
    }

    fn download(&self, values: Vec<DeviceBuffer>, _: &Arc<Step>, _: Ticket) -> Progress {
        Progress::Complete(moved(values, MemorySpace::Host))
    }

    fn copy(
        &self,
        values: Vec<DeviceBuffer>,
        to: &dyn Device,
        _: &Arc<Step>,
        _: Ticket,
    ) -> std::result::Result<Progress, Vec<DeviceBuffer>> {
        match to.shares_host_memory() {
            true => Ok(Progress::Complete(moved(values, MemorySpace::Device(to.id())))),
            false => Err(values),
        }
    }

    fn store(&self, value: HostTensor) -> Result<DeviceBuffer> {
        Ok(DeviceBuffer::of_tensor(self.place(), value))
    }

    fn fetch(&self, value: DeviceBuffer) -> Result<HostTensor> {
        Ok(value.into_tensor(self.place()))
    }
}

/// Makes values in host memory part of another space that has it.
pub(super) fn moved(values: Vec<DeviceBuffer>, to: MemorySpace) -> Vec<DeviceBuffer> {
    values.into_iter().map(|value| value.moved_to(to)).collect()
}

/// A kernel loaded on a CPU device.
#[derive(Debug)]
pub(super) struct Loaded {
    kernel: Arc<CpuKernel>,
    device: Arc<CpuDevice>,
}

impl Loaded {
    pub(super) fn new(kernel: CpuKernel, device: Arc<CpuDevice>) -> Loaded {
        Loaded { kernel: Arc::new(kernel), device }
    }

    /// Runs the kernel on a thread of its device.
    pub(super) fn enqueue_on_thread(&self, inputs: Vec<DeviceBuffer>, step: &Arc<Step>, ticket: Ticket) -> Result<()> {
        let threads = self.device.threads()?;
        let (kernel, step, place) = (self.kernel.clone(), step.clone(), self.device.place());
        step.wait_for_thread(ticket, inputs);
        threads.spawn(move || {
            let Some(inputs) = step.begin(ticket) else { return };
            let begin = step.now();
            let run = || kernel.run_in_step(inputs, place, &step);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            step.complete(Event { ticket, outcome, begin, end: step.now() });
        });
        Ok(())
    }
}

impl LoadedKernel for Loaded {
    /// Runs a short kernel synchronously on the calling thread.
    fn enqueue(&self, inputs: Vec<DeviceBuffer>, step: &Arc<Step>, ticket: Ticket) -> Result<Progress> {
        if self.kernel.is_short() {
            return self.kernel.run_in_step(inputs, self.device.place(), step).map(Progress::Complete);
        }
        self.enqueue_on_thread(inputs, step, ticket).map(|()| Progress::Later)
    }

    fn working_bytes(&self) -> u64 {
        self.kernel.working_bytes()
    }

    fn is_brief(&self) -> bool {
        self.kernel.is_brief
    }
}

/// The program of a kernel.
#[derive(Debug)]
enum How {
    /// A plan, or the interpreter if the session requests it.
    Known(Box<Program>),
    /// A plan for each combination of input types, since some extent is not known in advance.
    BySignature(Mutex<Plans>),
}

type Plans = HashMap<Vec<TensorType>, Arc<Program>>;

/// Maximum number of plans kept for one kernel, for example for the iterations of a growing loop
/// variable.
const MAX_PLANS: usize = 256;

/// The same for a kernel of another process, as nobody counts their memory.
const MAX_PLANS_OF_GUEST: usize = 64;

/// A graph that is computed as a unit. The inputs and outputs may be stacks and lists.
#[derive(Debug)]
pub(crate) struct CpuKernel {
    graph: Graph,
    options: CompileOptions,
    how: How,
    /// Approximate nanoseconds of a run, or 0 before the first.
    nanos: AtomicU64,
    runs: AtomicU64,
    /// Whether a run may take long, as far as that is known before it runs.
    may_be_long: bool,
    /// Whether the trip count of a loop in it is unknown. Then earlier runs predict nothing, and a
    /// run may not terminate.
    may_not_end: bool,
    /// Whether it uses a queue. Then it runs on the thread of its step, since it may wait for long.
    may_wait: bool,
    /// Whether each run ends within microseconds, by the operations of all branches.
    is_brief: bool,
}

/// Maximum time of a kernel that runs synchronously, about the cost of passing it to another
/// thread.
const SHORT_NANOS: u64 = 20_000;

/// Maximum number of elements of a short kernel.
const FEW_ELEMENTS: usize = 4096;

/// Maximum work of a brief kernel: operations on numbers and bytes read or written, some tens of
/// microseconds.
const BRIEF_WORK: f64 = 500_000.0;

/// The work of passing from one operation to the next.
const WORK_PER_NODE: f64 = 200.0;

/// Returns whether a run ends within microseconds, whichever branches it takes.
///
/// Unlike the time of earlier runs, this holds for all inputs. Loops do not count as brief, and
/// neither do operations whose time the costs do not bound: those on windows, strings and lists,
/// those of users, and those that may wait.
fn is_brief(graph: &Graph) -> bool {
    let costs = Costs::new(graph);
    let bytes_of = |v: &Value| costs.bytes[v.index()];
    let (mut work, mut is_bounded) = (graph.outputs().iter().map(bytes_of).sum::<f64>(), true);
    graph.visit_nodes(graph.root(), &mut |node| {
        let data = graph.node(node);
        let cost = costs.work[node.index()];
        work += WORK_PER_NODE + cost.flops + cost.bytes;
        is_bounded &= data.operands.iter().chain(&data.results).all(|&v| {
            let ty = graph.ty(v).element();
            ty.dtype.is_plain() && ty.shape.known().is_some()
        });
        is_bounded &= match &data.op {
            Op::Prim(op, _) => {
                if op.aliasing() == Aliasing::Update {
                    // It copies what others own, too.
                    work += data.results.iter().map(bytes_of).sum::<f64>();
                }
                !op.is_registered() && !matches!(op.class, OpClass::Opaque(_) | OpClass::Window(_))
            }
            // These touch all elements, whose number is not in the type.
            Op::Stack(StackOp::Add | StackOp::ZerosLike) => false,
            Op::Constant(_) | Op::Read(_) | Op::Assign(_) | Op::Assert { .. } | Op::Cond | Op::Stack(_) => true,
            Op::While { .. } | Op::Call(_) | Op::List(_) | Op::Print { .. } | Op::Queue(..) | Op::File(_) => false,
        };
    });
    is_bounded && work <= BRIEF_WORK
}

impl CpuKernel {
    pub(crate) fn new(graph: Graph, options: CompileOptions, may_go_on: StopCheck<'_>) -> Result<CpuKernel> {
        let known = |&v: &Value| graph.ty(v).as_tensor().is_none_or(|ty| ty.shape.known().is_some());
        let how = match options.interpreted || graph.inputs().iter().all(known) {
            true => How::Known(Box::new(Program::new_while(graph.clone(), options, may_go_on)?)),
            false => How::BySignature(Mutex::default()),
        };
        let (mut may_be_long, mut may_not_end, mut may_wait) = (false, false, false);
        graph.visit_nodes(graph.root(), &mut |node| {
            let data = graph.node(node);
            may_wait |= matches!(data.op, Op::Queue(..));
            if graph.as_while(node).is_some() {
                may_be_long = true;
                may_not_end |= passes::trips(&graph, node).is_none();
            }
            for &v in data.operands.iter().chain(&data.results) {
                may_be_long |=
                    graph.ty(v).element().shape.known().is_none_or(|s| s.iter().product::<usize>() > FEW_ELEMENTS);
            }
        });
        let is_brief = matches!(how, How::Known(_)) && !options.interpreted && is_brief(&graph);
        Ok(CpuKernel {
            is_brief,
            graph,
            options,
            how,
            nanos: AtomicU64::new(0),
            runs: AtomicU64::new(0),
            may_be_long,
            may_not_end,
            may_wait,
        })
    }

    /// Returns whether the kernel should run synchronously. The choice affects timing, not results.
    pub(crate) fn is_short(&self) -> bool {
        match self.nanos.load(Ordering::Relaxed) {
            _ if self.may_wait => true,
            0 => !self.may_be_long,
            nanos => !self.may_not_end && nanos < SHORT_NANOS,
        }
    }

    /// See [`LoadedKernel::working_bytes`].
    fn working_bytes(&self) -> u64 {
        match &self.how {
            How::Known(program) => program.working_bytes(),
            How::BySignature(_) => 0,
        }
    }

    /// Runs the kernel in a step, within the budget of its memory.
    fn run_in_step(&self, values: Vec<DeviceBuffer>, place: MemorySpace, step: &Step) -> Result<Vec<DeviceBuffer>> {
        step.within_budget(|| self.run(values, place, step.run_context()))
    }

    /// Runs the kernel on values of a place. The run ends early if the stop flag is set.
    pub(crate) fn run(
        &self,
        mut values: Vec<DeviceBuffer>,
        place: MemorySpace,
        run_context: RunContext<'_>,
    ) -> Result<Vec<DeviceBuffer>> {
        // After the first four, every 16th run is timed.
        let runs = self.runs.fetch_add(1, Ordering::Relaxed);
        let timed = (runs < 4 || runs.is_multiple_of(16)).then(Instant::now);
        let open = |buffer: DeviceBuffer| buffer.into_contents(place);
        let close = |contents, ty: &Type| DeviceBuffer::of_contents(place, contents, ty);
        match &self.how {
            How::Known(program) => program.run_part(&mut values, open, close, run_context)?,
            How::BySignature(plans) => {
                let params = values.iter().zip(self.graph.inputs());
                let signature = params.map(|(buffer, &v)| match buffer.ty() {
                    Type::Tensor(ty) => ty,
                    _ => self.graph.ty(v).element().clone(),
                });
                // The plan stays after the run, so it does not count in its budget.
                let plan = || self.plan_for(plans, signature.collect(), run_context.stop);
                let program = memory::within(None, plan)?;
                let _working = program.hold_working_bytes()?;
                program.run_part(&mut values, open, close, run_context)?;
            }
        }
        if let Some(begin) = timed {
            let new = (begin.elapsed().as_nanos() as u64).max(1);
            let old = self.nanos.load(Ordering::Relaxed);
            // A run that was interrupted says little.
            self.nanos.store(
                if runs < 2 { new } else { (3 * old + new.min(2 * old.max(SHORT_NANOS))) / 4 },
                Ordering::Relaxed,
            );
        }
        Ok(values)
    }

    /// Returns the plan for the types of the inputs. If it must be made, that is a part of the
    /// step, which may be stopped.
    fn plan_for(&self, plans: &Mutex<Plans>, signature: Vec<TensorType>, stop: &StopFlag) -> Result<Arc<Program>> {
        let lock = || plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = lock().get(&signature) {
            return Ok(program.clone());
        }
        let may_go_on = || match stop.get() {
            Some(kind) => Err(interp::stopped(kind, &self.graph.name, [], Loc::UNKNOWN)),
            None => Ok(()),
        };
        let mut border = self.graph.inputs().iter().chain(self.graph.outputs());
        let graph = match border.all(|&v| self.graph.ty(v).as_tensor().is_some()) {
            true => optimize(self.graph.clone(), &signature, self.options, &may_go_on),
            // Passes require whole graphs, whose inputs and outputs are tensors.
            false => passes::specialize(&self.graph, &signature),
        };
        let program = match graph {
            Ok(graph) => Program::new_while(graph, self.options, &may_go_on)?,
            Err(error) if error.kind.is_stop() => return Err(error),
            // The graph does not fit the signature. The interpreter reports the error if that part
            // runs.
            Err(_) => Program::with_options(self.graph.clone(), CompileOptions { interpreted: true, ..self.options })?,
        };
        let program = Arc::new(program);
        let mut plans = lock();
        // Evict an arbitrary entry. If shapes recur in a cycle, evicting the least recently used
        // entry would always evict the entry needed next.
        let most = if self.options.is_of_guest { MAX_PLANS_OF_GUEST } else { MAX_PLANS };
        if plans.len() >= most
            && let Some(other) = plans.keys().next().cloned()
        {
            plans.remove(&other);
        }
        plans.insert(signature, program.clone());
        Ok(program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::program::Contents;
    use crate::device::step::HostSide;
    use crate::flow;
    use crate::place::place_at_random;
    use anabranch_dsl::interp::{RuntimeValue, Stack};
    use anabranch_dsl::memory::ByteGauge;
    use anabranch_dsl::{Bytes, DType, Diagnostic, ErrorKind};
    use std::cell::Cell;

    const HERE: MemorySpace = MemorySpace::Host;

    /// Extracts the kernel of the node with the given operation. Whole graphs cannot have stacks
    /// and lists as inputs and outputs.
    fn kernel(text: &str, op: &str) -> CpuKernel {
        let graph = Graph::parse(text, "kernel.ir").unwrap_or_else(|e| panic!("{e:?}"));
        let options = flow::PartitionOptions { lower_everything: true, ..flow::PartitionOptions::default() };
        let cut = flow::partition(&graph, &place_at_random(&graph, 1, 0), options);
        let mut kernels = cut.parts[0].kernels.iter();
        let named = kernels.find(|k| k.members.iter().any(|&n| graph.node(n).op.name() == op));
        CpuKernel::new(named.expect("there is such a node").graph.clone(), CompileOptions::default(), &|| Ok(()))
            .unwrap()
    }

    fn run(kernel: &CpuKernel, inputs: Vec<Contents>) -> Contents {
        run_buffer(kernel, inputs).into_contents(HERE)
    }

    fn run_buffer(kernel: &CpuKernel, inputs: Vec<Contents>) -> DeviceBuffer {
        let params = inputs.into_iter().zip(kernel.graph.inputs());
        let inputs = params.map(|(value, &v)| DeviceBuffer::of_contents(HERE, value, kernel.graph.ty(v))).collect();
        kernel.run(inputs, HERE, RunContext::default()).unwrap().remove(0)
    }

    fn index(i: i32) -> Contents {
        Contents::Value(RuntimeValue::Tensor(HostTensor::scalar(i)))
    }

    fn tensor(data: &[f32]) -> Contents {
        Contents::Value(RuntimeValue::Tensor(HostTensor::new(vec![data.len()], data.to_vec())))
    }

    fn rows(list: &Contents) -> Vec<Option<Vec<f32>>> {
        let RuntimeValue::List(list) = list.clone().into_value().unwrap() else { panic!("{list:?} is not a list") };
        list.items().map(|item| item.map(|t| t.data::<f32>().to_vec())).collect()
    }

    #[test]
    fn kernels_on_lists_are_compiled_and_hand_them_over() {
        let text = "graph @lists(%x: f32[2], %y: f32[2]) -> (f32[2]) {
             %n = constant 3 : i32[]  %i = constant 1 : i32[]
             %a = list_new %n : list<f32[2]>  %b = list_write %a, %i, %x  %c = list_push %b, %y
             %z = list_read %c, %i  return %z }";
        let [new, write, push] = ["list_new", "list_write", "list_push"].map(|op| kernel(text, op));
        assert!([&new, &write, &push].iter().all(|k| matches!(k.how, How::Known(_))));
        let made = run(&write, vec![run(&new, vec![index(3)]), index(1), tensor(&[1.0, 2.0])]);
        assert_eq!(rows(&made), [None, Some(vec![1.0, 2.0]), None]);
        // Other owners of the list do not see the push. A list of the interpreter behaves like one
        // of a plan.
        let one = run(&push, vec![made.clone(), tensor(&[3.0, 4.0])]);
        let other = run(&push, vec![Contents::Value(made.clone().into_value().unwrap()), tensor(&[5.0, 6.0])]);
        let last = |list: &Contents| rows(list).swap_remove(3);
        assert_eq!((rows(&made).len(), last(&one), last(&other)), (3, Some(vec![3.0, 4.0]), Some(vec![5.0, 6.0])));
        // A uniquely owned list is passed between kernels without a copy.
        let mut list = one;
        for i in 0..2_000 {
            list = run(&push, vec![list, tensor(&[i as f32, 0.0])]);
        }
        let Contents::List(whole) = &list else { panic!("a plan has lists of its own form") };
        assert_eq!((Arc::strong_count(whole), rows(&list).len()), (1, 2_004));
    }

    #[test]
    fn kernels_whose_time_their_types_bound_are_brief() {
        let is_brief = |body: &str| {
            let inputs = "%x: f32[1000000], %y: f32[4], %b: bool[], %s: bytes[2], %i: i32[]";
            let text = format!("graph @k({inputs}) -> (f32[4]) {{ {body} return %z }}");
            let graph = Graph::parse(&text, "kernel.ir").unwrap_or_else(|e| panic!("{e:?}"));
            CpuKernel::new(graph, CompileOptions::default(), &|| Ok(())).expect("the graph is valid").is_brief
        };
        assert!(is_brief("%z = add %y, %y"));
        let first = "slice %x {axis=0, start=5, end=9, step=1}";
        assert!(is_brief(&format!("%z = {first}")), "only the result is copied");
        let branch = |arm: &str| {
            format!(
                "%z = cond %b, %x, %y : (f32[4]) then (%x, %y) {{ {arm} %w = add %y, %a yield %w }}
                 else (%x, %y) {{ yield %y }}"
            )
        };
        assert!(is_brief(&branch(&format!("%a = {first}"))));
        let long = "%e = exp %x %a = slice %e {axis=0, start=5, end=9, step=1}";
        assert!(!is_brief(&branch(long)), "an arm counts, also if it does not run");
        let update = "%u = dynamic_update_slice %x, %y, %i {axis=0}";
        assert!(!is_brief(&format!("{update} %z = slice %u {{axis=0, start=5, end=9, step=1}}")), "others may own it");
        assert!(!is_brief(
            "%z, %n = while (%z = %y, %n = %i | %m = %i) : (f32[4], i32[]) cond { %c = lt %n, %m yield %c }
             body { %w = add %z, %z yield %w, %m }"
        ));
        let stack = |op| format!("%e = stack_new : stack<f32[4]> %p = push %e, %y %q = {op} %r, %z = pop %q");
        assert!(!is_brief(&stack("stack_add %p, %p")), "a stack has any depth");
        assert!(!is_brief("print stdout \"{}\", %i %z = add %y, %y"), "who prints may wait");
        assert!(!is_brief("%t = byte_len %s %z = add %y, %y"), "strings have any length");
    }

    #[test]
    fn the_compilation_of_one_kernel_can_be_stopped_between_its_stages() {
        let text = "graph @power(%n: i64[]) -> (i64[]) { %zero = constant 0 : i64[]  %one = constant 1 : i64[]
             %y, %i = while (%p = %n, %k = %n | %zero = %zero, %one = %one) : (i64[], i64[]) cond {
               %more = gt %k, %zero  yield %more
             } body { %less = sub %k, %one  %next = mul %p, %k  yield %next, %less }
             return %y }";
        let graph = Graph::parse(text, "kernel.ir").unwrap_or_else(|e| panic!("{e:?}"));
        let stages = |n: usize| {
            let left = Cell::new(n);
            let may_go_on = || match left.replace(left.get().saturating_sub(1)) {
                0 => Err(Diagnostic::new("enough").of_kind(ErrorKind::Cancelled)),
                _ => Ok(()),
            };
            CpuKernel::new(graph.clone(), CompileOptions::default(), &may_go_on)
        };
        let stopped = (0..).map(stages).take_while(|kernel| match kernel {
            Ok(_) => false,
            Err(error) => {
                assert_eq!((error.kind, &error.message[..]), (ErrorKind::Cancelled, "enough"));
                true
            }
        });
        assert!(stopped.count() >= 5);
    }

    #[test]
    fn a_plan_that_a_step_makes_ends_with_the_step() {
        let text = "graph @rows(%x: f32[?]) -> (f32[?]) { %y = add %x, %x  return %y }";
        let graph = Graph::parse(text, "kernel.ir").unwrap_or_else(|e| panic!("{e:?}"));
        let kernel = CpuKernel::new(graph, CompileOptions::default(), &|| Ok(())).expect("the graph is valid");
        let How::BySignature(plans) = &kernel.how else { panic!("an extent is unknown") };
        let run = |stop: &StopFlag| {
            let input = DeviceBuffer::of_contents(HERE, tensor(&[1.0, 2.0]), kernel.graph.ty(kernel.graph.inputs()[0]));
            kernel.run(vec![input], HERE, RunContext { stop, ..RunContext::default() })
        };
        let stop = StopFlag::new();
        stop.stop(ErrorKind::DeadlineExceeded);
        let error = run(&stop).expect_err("the step is stopped");
        assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
        assert!(plans.lock().expect("nothing panics").is_empty(), "no plan was made");
        run(&StopFlag::new()).expect("the step is not stopped");
        assert_eq!(plans.lock().expect("nothing panics").len(), 1);
    }

    #[test]
    fn buffers_of_stacks_and_lists_know_their_types_and_bytes() {
        let text = "graph @held(%x: f32[2]) -> (f32[2], f32[2]) { %n = constant 3 : i32[]  %i = constant 1 : i32[]
             %s = stack_new : stack<f32[2]>  %t = push %s, %x  %u, %v = pop %t
             %a = list_new %n : list<f32[2]>  %b = list_push %a, %x  %w = list_read %b, %i  return %v, %w }";
        let [new, push, list_new, list_push] =
            ["stack_new", "push", "list_new", "list_push"].map(|op| kernel(text, op));
        let one = run_buffer(&push, vec![run(&new, vec![]), tensor(&[1.0, 2.0])]);
        let two = run_buffer(&push, vec![one.clone().into_contents(HERE), tensor(&[3.0, 4.0])]);
        let element = TensorType::new(DType::F32, [2]);
        assert_eq!((one.n_bytes(), two.n_bytes(), two.ty()), (8, 16, Type::Stack(element.clone())));
        let list = run_buffer(&list_push, vec![run(&list_new, vec![index(3)]), tensor(&[1.0, 2.0])]);
        assert_eq!((list.n_bytes(), list.ty()), (32, Type::List(element.clone())));
        // A list of the interpreter has the same bytes.
        let hosted = Contents::Value(list.clone().into_contents(HERE).into_value().unwrap());
        assert_eq!(DeviceBuffer::of_contents(HERE, hosted, &list.ty()).n_bytes(), 32);
    }

    #[test]
    fn kernels_are_compiled_for_the_shapes_that_come() {
        let text = "graph @grow(%x: f32[n], %y: f32[n]) -> (f32[n], f32[?]) { %i = constant 0 : i32[]
             %s = stack_new : stack<f32[n]>  %t = push %s, %x  %u, %v = pop %t
             %a = list_new %i : list<f32[?]>  %b = list_push %a, %y  %w = list_read %b, %i  return %v, %w }";
        let [push, grow] = ["push", "list_push"].map(|op| kernel(text, op));
        assert!([&push, &grow].iter().all(|k| matches!(k.how, How::BySignature(_))));
        for n in [2, 3] {
            let x = vec![1.5f32; n];
            let element = TensorType::new(DType::F32, [n]);
            let stack = Contents::Value(RuntimeValue::Stack(Stack::new(element.clone(), [])));
            let list = Contents::List(Arc::new(crate::cpu::memory::list::ListStorage::new(&element)));
            let Contents::Value(RuntimeValue::Stack(stack)) = run(&push, vec![stack, tensor(&x)]) else {
                panic!("a stack")
            };
            assert_eq!(stack.items()[0].data::<f32>(), x);
            assert_eq!(rows(&run(&grow, vec![list, tensor(&x)])), [Some(x)]);
        }
    }

    /// Runs a loop over a value, given as its type and start, in a step that may use 1 MiB.
    fn run_loop(state: &str, body: &str, trips: i32, options: CompileOptions) -> Result<usize> {
        let budget = ByteGauge::new(1 << 20);
        let host = HostSide { budget: Some(budget.clone()), ..HostSide::printing(Arc::new(|_, _| ())) };
        let step = Step::new(host, Arc::default(), false, false);
        let [ty, start] = state.split('|').collect::<Vec<_>>()[..] else { panic!("a type and a start") };
        let text = format!(
            "graph @grow(%x: f32[1000], %s: bytes[], %n: i32[]) -> (i32[]) {{
               %i = constant 0 : i32[]  %start = {start} : {ty}
               %last, %end = while (%j = %i, %a = %start | %m = %n, %y = %x, %t = %s) : (i32[], {ty}) cond {{
                 %more = lt %j, %m : bool[]  yield %more
               }} body {{
                 %one = constant 1 : i32[]  %next = add %j, %one : i32[]
                 {body}
                 yield %next, %b
               }}
               return %last }}"
        );
        let graph = Graph::parse(&text, "grow.ir").unwrap_or_else(|e| panic!("{e:?}"));
        let kernel = CpuKernel::new(graph, options, &|| Ok(())).expect("it can be compiled");
        let inputs =
            [HostTensor::zeros(DType::F32, [1000]), HostTensor::scalar(Bytes::from("word")), HostTensor::scalar(trips)];
        let inputs = inputs.map(|input| DeviceBuffer::of_tensor(HERE, input)).to_vec();
        let outcome = kernel.run_in_step(inputs, HERE, &step);
        let outcome = outcome.map(|outputs| outputs.len());
        assert_eq!(budget.held(), 0, "nothing counts after the run");
        outcome
    }

    #[test]
    fn all_that_a_run_makes_counts_in_its_budget() {
        let cases = [
            ("stack<f32[1000]>|stack_new", "%z = exp %y : f32[1000]  %b = push %a, %z", 100, 400),
            ("stack<f32[?]>|stack_new", "%z = exp %y : f32[1000]  %b = push %a, %z", 100, 400),
            (
                "stack<f32[0]>|stack_new",
                "%none = slice %y {axis=0, start=0, end=0, step=1} : f32[0]  %b = push %a, %none",
                1000,
                100_000,
            ),
            ("list<f32[1000]>|list_new %i", "%z = exp %y : f32[1000]  %b = list_push %a, %z", 100, 400),
            ("list<f32[?]>|list_new %i", "%z = exp %y : f32[1000]  %b = list_push %a, %z", 100, 400),
            ("list<bytes[]>|list_new %i", "%b = list_push %a, %t", 1000, 100_000),
        ];
        for (state, body, few, many) in cases {
            // A plan only counts elements without bytes, so they take no memory there.
            let takes_memory = |interpreted: &bool| *interpreted || !state.starts_with("stack<f32[0]>");
            for interpreted in [false, true].into_iter().filter(takes_memory) {
                let options = CompileOptions { interpreted, is_of_guest: true, ..CompileOptions::default() };
                let run = |trips| run_loop(state, body, trips, options);
                let n = run(few).unwrap_or_else(|e| panic!("{state}: {e}"));
                assert_eq!(n, 1, "the last trip");
                let error = run(many).expect_err(state);
                assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{state}: {error}");
                assert!(error.to_string().contains("at most 1048576 may be"), "{state}: {error}");
            }
        }
    }
}
