//! CPU devices: threads of their own, in the memory of the host.

use super::{Buffer, Device, Event, Kernel, Place, Progress, Step, Ticket, name_of};
use crate::optimize::optimize;
use crate::place::DeviceId;
use crate::program::{Options, Program};
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::interp::{self, Datum, Surroundings};
use anabranch_dsl::ir::{Op, Value};
use anabranch_dsl::{Diagnostic, Graph, HostTensor, Result, TensorType, Type, passes};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// A CPU device: some threads of this machine. They start when they are first given something.
#[derive(Debug)]
pub(crate) struct CpuDevice {
    id: DeviceId,
    name: Option<DeviceName>,
    n_threads: usize,
    threads: OnceLock<rayon::ThreadPool>,
}

impl CpuDevice {
    /// A device with so many threads; without a name, errors do not speak of it.
    pub(crate) fn new(id: DeviceId, name: Option<DeviceName>, n_threads: usize) -> CpuDevice {
        CpuDevice { id, name, n_threads: n_threads.max(1), threads: OnceLock::new() }
    }

    pub(super) fn place(&self) -> Place {
        Place::Device(self.id)
    }

    fn threads(&self) -> Result<&rayon::ThreadPool> {
        if let Some(threads) = self.threads.get() {
            return Ok(threads);
        }
        let name = name_of(self);
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(self.n_threads)
            .thread_name(move |i| format!("{name} thread {i}"))
            .build()
            .map_err(|e| Diagnostic::new(format!("the threads of {} did not start: {e}", name_of(self))))?;
        Ok(self.threads.get_or_init(|| threads))
    }
}

impl Device for CpuDevice {
    fn name(&self) -> Option<DeviceName> {
        self.name
    }

    fn is_modelled(&self) -> bool {
        false
    }

    fn load(self: Arc<Self>, graph: Graph, options: Options) -> Result<Arc<dyn Kernel>> {
        Ok(Arc::new(Loaded::new(CpuKernel::new(graph, options)?, self)))
    }

    /// CPU devices share the memory of the host: what never changes is handed over, and nothing is moved.
    fn copy(&self, mut values: Vec<Buffer>, to: Place, _: &Arc<Step>, _: Ticket) -> Progress {
        values.iter_mut().for_each(|value| value.place = to);
        Progress::Complete(values)
    }
}

/// A kernel that a CPU device has loaded.
#[derive(Debug)]
pub(super) struct Loaded {
    kernel: CpuKernel,
    device: Arc<CpuDevice>,
}

impl Loaded {
    pub(super) fn new(kernel: CpuKernel, device: Arc<CpuDevice>) -> Loaded {
        Loaded { kernel, device }
    }

    fn run(&self, inputs: Vec<Buffer>, step: &Step) -> Result<Vec<Buffer>> {
        let place = self.device.place();
        let inputs = inputs.into_iter().map(|b| b.at(place)).collect();
        let outputs = self.kernel.run(inputs, step.surroundings())?;
        Ok(outputs.into_iter().map(|datum| Buffer::new(place, datum)).collect())
    }

    /// Runs it on a thread of its device.
    pub(super) fn enqueue_on_thread(
        self: Arc<Self>,
        inputs: Vec<Buffer>,
        step: &Arc<Step>,
        ticket: Ticket,
    ) -> Result<()> {
        let (kernel, step) = (self.clone(), step.clone());
        self.device.threads()?.spawn(move || {
            let begin = step.now();
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| kernel.run(inputs, &step)));
            step.complete(Event { ticket, outcome, begin, end: step.now() });
        });
        Ok(())
    }
}

impl Kernel for Loaded {
    /// A short kernel is run at once, by the thread that asks.
    fn enqueue(self: Arc<Self>, inputs: Vec<Buffer>, step: &Arc<Step>, ticket: Ticket) -> Result<Progress> {
        if self.kernel.is_short() {
            return self.run(inputs, step).map(Progress::Complete);
        }
        self.enqueue_on_thread(inputs, step, ticket).map(|()| Progress::Later)
    }
}

/// How a kernel runs.
#[derive(Debug)]
enum How {
    /// By a plan.
    Compiled(Box<Program>),
    /// By a plan for each combination of types of its inputs, those used last first: some extent is not known before.
    BySignature(Mutex<Vec<(Vec<TensorType>, Arc<Program>)>>),
    /// By the interpreter.
    Interpreted,
}

/// Plans that are kept for one kernel.
const MAX_PLANS: usize = 16;

/// A graph that is computed as a whole. Its inputs and outputs may be stacks and lists.
#[derive(Debug)]
pub(crate) struct CpuKernel {
    graph: Graph,
    options: Options,
    how: How,
    /// About how many nanoseconds a run takes; 0 before the first.
    nanos: AtomicU64,
    runs: AtomicU64,
    /// Whether it may take long, as far as one can see before it runs.
    may_be_long: bool,
    /// Whether nobody can say how often a loop in it runs. What earlier runs took says nothing then, and whoever runs it may never come back.
    may_not_end: bool,
}

/// What takes less than this is run where it is needed: to hand it over costs about as much.
const SHORT_NANOS: u64 = 20_000;

/// A kernel on so few elements is short.
const FEW_ELEMENTS: usize = 4096;

impl CpuKernel {
    pub(crate) fn new(graph: Graph, options: Options) -> Result<CpuKernel> {
        let is_tensor = |v: &Value| graph.ty(*v).as_tensor().is_some();
        let is_list = |v: &Value| matches!(graph.ty(*v), Type::List(_));
        let is_known = |v: &Value| graph.ty(*v).element().shape.known().is_some();
        let mut border = graph.inputs().iter().chain(graph.outputs());
        let known = graph.inputs().iter().all(is_known);
        let how = if options.interpreted || border.any(|v| is_list(v) || (!known && !is_tensor(v))) {
            How::Interpreted
        } else if known {
            How::Compiled(Box::new(Program::with_options(graph.clone(), options)?))
        } else {
            How::BySignature(Mutex::default())
        };
        let (mut may_be_long, mut may_not_end) = (false, false);
        graph.visit_nodes(graph.root(), &mut |node| {
            let data = graph.node(node);
            if matches!(data.op, Op::While { .. }) {
                may_be_long = true;
                may_not_end |= passes::trips(&graph, node).is_none();
            }
            for &v in data.operands.iter().chain(&data.results) {
                may_be_long |=
                    graph.ty(v).element().shape.known().is_none_or(|s| s.iter().product::<usize>() > FEW_ELEMENTS);
            }
        });
        Ok(CpuKernel {
            graph,
            options,
            how,
            nanos: AtomicU64::new(0),
            runs: AtomicU64::new(0),
            may_be_long,
            may_not_end,
        })
    }

    /// Whether it is better run at once than handed to a thread. That changes when it runs, not what it gives.
    pub(crate) fn is_short(&self) -> bool {
        match self.nanos.load(Ordering::Relaxed) {
            0 => !self.may_be_long,
            nanos => !self.may_not_end && nanos < SHORT_NANOS,
        }
    }

    /// Runs it. It ends early when the stop flag of its surroundings says so.
    pub(crate) fn run(&self, inputs: Vec<Datum>, surroundings: Surroundings<'_>) -> Result<Vec<Datum>> {
        // After the first runs, one in 16 is timed.
        let runs = self.runs.fetch_add(1, Ordering::Relaxed);
        let timed = (runs < 4 || runs.is_multiple_of(16)).then(Instant::now);
        let outputs = match &self.how {
            How::Interpreted => self.interpret(&inputs, surroundings),
            How::Compiled(program) => program.run_data(inputs, surroundings),
            How::BySignature(plans) => {
                let tensors = inputs.iter().map(|d| d.as_tensor().expect("such a kernel has no others"));
                let signature: Vec<TensorType> = tensors.map(HostTensor::ty).collect();
                self.plan_for(plans, signature)?.run_data(inputs, surroundings)
            }
        };
        if let Some(begin) = timed {
            let new = (begin.elapsed().as_nanos() as u64).max(1);
            let old = self.nanos.load(Ordering::Relaxed);
            self.nanos.store(if runs < 2 { new } else { (3 * old + new) / 4 }, Ordering::Relaxed);
        }
        outputs
    }

    fn interpret(&self, inputs: &[Datum], surroundings: Surroundings<'_>) -> Result<Vec<Datum>> {
        let options = interp::Options { check_finite: self.options.check_finite, ..Default::default() };
        interp::run_data(&self.graph, inputs, &mut vec![], options, surroundings)
    }

    fn plan_for(
        &self,
        plans: &Mutex<Vec<(Vec<TensorType>, Arc<Program>)>>,
        signature: Vec<TensorType>,
    ) -> Result<Arc<Program>> {
        let lock = || plans.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut plans = lock();
            if let Some(i) = plans.iter().position(|(s, _)| *s == signature) {
                plans[..=i].rotate_right(1);
                return Ok(plans[0].1.clone());
            }
        }
        let graph = optimize(self.graph.clone(), &signature, self.options)?;
        let program = Arc::new(Program::with_options(graph, self.options)?);
        let mut plans = lock();
        plans.insert(0, (signature, program.clone()));
        plans.truncate(MAX_PLANS);
        Ok(program)
    }
}
