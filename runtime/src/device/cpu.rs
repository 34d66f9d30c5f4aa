//! CPU devices: threads of their own, in the memory of the host.

use super::{Done, Events, Outside};
use crate::optimize::optimize;
use crate::program::{Options, Program};
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::interp::{self, Datum, Surroundings};
use anabranch_dsl::ir::{Op, Value};
use anabranch_dsl::{Diagnostic, Graph, HostTensor, Loc, Result, TensorType, Type};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// A CPU device: some threads of this machine. They start when they are first given something.
#[derive(Debug)]
pub(crate) struct CpuDevice {
    /// None of devices of which errors do not speak.
    name: Option<DeviceName>,
    n_threads: usize,
    threads: OnceLock<rayon::ThreadPool>,
}

impl CpuDevice {
    /// A device with so many threads.
    pub(crate) fn new(name: Option<DeviceName>, n_threads: usize) -> CpuDevice {
        CpuDevice { name, n_threads: n_threads.max(1), threads: OnceLock::new() }
    }

    /// Its name in messages.
    pub(crate) fn name(&self) -> String {
        self.name.map_or_else(|| "a device".to_owned(), |name| name.to_string())
    }

    /// An error of this device.
    pub(crate) fn error(&self, error: Diagnostic) -> Diagnostic {
        match self.name {
            Some(name) => error.at(Loc::UNKNOWN, format!("on {name}")),
            None => error,
        }
    }

    fn threads(&self) -> Result<&rayon::ThreadPool> {
        if let Some(threads) = self.threads.get() {
            return Ok(threads);
        }
        let name = self.name();
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(self.n_threads)
            .thread_name(move |i| format!("{name} thread {i}"))
            .build()
            .map_err(|e| Diagnostic::new(format!("the threads of {} did not start: {e}", self.name())))?;
        Ok(self.threads.get_or_init(|| threads))
    }

    /// Begins to run a kernel; the events are told when it is done.
    pub(crate) fn give<T: Send + 'static>(
        &self,
        kernel: &Arc<CpuKernel>,
        inputs: Vec<Datum>,
        outside: &Outside,
        work: T,
        events: &Arc<Events<T>>,
    ) -> Result<()> {
        let threads = self.threads()?;
        let (kernel, outside, events) = (kernel.clone(), outside.clone(), events.clone());
        threads.spawn(move || {
            let begin = Instant::now();
            let surroundings = Surroundings { print: &*outside.print, stop: &outside.stop };
            let run = || kernel.run(inputs, surroundings);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            let panicked = |_| Err(Diagnostic::new("a kernel panicked: this is a mistake in anabranch"));
            let outcome = outcome.unwrap_or_else(panicked);
            events.push(Done { work, outcome, begin, end: Instant::now() });
        });
        Ok(())
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
        let mut may_be_long = false;
        graph.visit_nodes(graph.root(), &mut |node| {
            let data = graph.node(node);
            may_be_long |= matches!(data.op, Op::While { .. });
            for &v in data.operands.iter().chain(&data.results) {
                may_be_long |=
                    graph.ty(v).element().shape.known().is_none_or(|s| s.iter().product::<usize>() > FEW_ELEMENTS);
            }
        });
        Ok(CpuKernel { graph, options, how, nanos: AtomicU64::new(0), runs: AtomicU64::new(0), may_be_long })
    }

    /// Whether it is better run at once than handed to a thread. That changes when it runs, not what it gives.
    pub(crate) fn is_short(&self) -> bool {
        match self.nanos.load(Ordering::Relaxed) {
            0 => !self.may_be_long,
            nanos => nanos < SHORT_NANOS,
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
