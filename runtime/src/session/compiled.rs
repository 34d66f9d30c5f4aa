//! A traced graph compiled for given input types, with its session's variables. Functions and their
//! pruned parts call it.
//!
//! This module does not know the caller's representation of inputs and outputs: here both are lists
//! of tensors.

use crate::device::timeline::Timeline;
use crate::device::variables::{VarAccess, VarSet, YieldingLocks};
use crate::device::{Executable, HostSide, StepCx, optimize};
use crate::options::CompileOptions;
use crate::place::Placement;
use crate::session::Session;
use crate::session::call::{CallOptions, RunningCall};
use crate::session::devices::Devices;
use crate::session::files::{self, RunningFiles};
use crate::session::placed;
use crate::session::queues::{EndOfStep, FirstRemoval, RunningTransaction, UsedQueue};
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::interp::{self, StopFlag};
use anabranch_dsl::ir::Op;
use anabranch_dsl::queue::AnyQueue;
use anabranch_dsl::{AnyVar, Diagnostic, Dim, Graph, HostTensor, Loc, Result, TensorType, trace};
use std::sync::{Arc, Mutex, PoisonError};

/// A graph compiled for given input types.
pub(crate) struct Compiled {
    executable: Box<dyn Executable>,
    /// The placement, if there was a choice.
    placement: Option<Placement>,
    /// The only device, if there were others.
    on: Option<DeviceName>,
    /// The types of its inputs.
    pub(crate) signature: Vec<TensorType>,
    /// The name of the function, for messages.
    name: String,
    vars: Arc<VarSet>,
    queues: Vec<UsedQueue>,
    first_removal: Option<FirstRemoval>,
    uses_files: bool,
    /// The variables of the set. These handles keep the session from dropping the values as long as
    /// the function can be called.
    _handles: Vec<AnyVar>,
}

impl Compiled {
    /// Optimizes, places and compiles a graph for inputs of the given types. `vars` are its
    /// variables and `queues` its queues, in their order.
    pub(crate) fn new(
        session: &Session,
        graph: Graph,
        vars: &[AnyVar],
        queues: &[AnyQueue],
        signature: &[TensorType],
        options: CompileOptions,
    ) -> Result<Compiled> {
        let name = graph.name.clone();
        let graph = optimize(graph, signature, options, &|| Ok(()))?;
        let state = &session.state;
        let set = session.var_set(vars.iter().zip(accesses(&graph)))?;
        if options.interpreted
            && let Some(shared) = vars.iter().find_map(|var| var.shared_name())
        {
            let message = format!("`{name}` is interpreted, but uses the shared variable `{shared}`");
            return Err(Diagnostic::new(message).help("only compiled functions lock shared variables at their peers"));
        }
        let is_assigned =
            |(var, access): &(&AnyVar, VarAccess)| *access == VarAccess::Assign && var.shared_name().is_some();
        if let (Some(queue), Some((var, _))) = (queues.first(), vars.iter().zip(accesses(&graph)).find(is_assigned)) {
            let (queue, var) = (queue.name(), var.name());
            let message = format!("`{name}` uses the queue `{queue}` and assigns the shared variable `{var}`");
            return Err(Diagnostic::new(message).help(
                "a call that waited for a queue would keep other sessions from the variable: assign it in a function \
                 without queues",
            ));
        }
        let uses_files = files::uses_files(&graph, session.files.as_ref())?;
        let paths: Vec<Option<String>> = {
            let paths = state.paths();
            vars.iter().map(|v| paths.get(&v.id()).cloned()).collect()
        };
        let (executable, placement, on) = placed::compile(&graph, &session.devices, &set, &paths, options)?;
        let queues: Vec<UsedQueue> =
            queues.iter().map(|queue| UsedQueue::new(queue.clone(), session.queues.get(queue))).collect();
        let set = if queues.is_empty() { set } else { set.with_gate(session.queues.gate()) };
        let (vars, handles) = (Arc::new(set), vars.to_vec());
        // With such checks, any operation before the removal can fail.
        let first_removal = if options.check_finite { None } else { FirstRemoval::of(&graph) };
        let signature = signature.to_vec();
        Ok(Compiled {
            executable,
            placement,
            on,
            signature,
            name,
            vars,
            queues,
            first_removal,
            uses_files,
            _handles: handles,
        })
    }

    /// Returns the graph that is compiled.
    pub(crate) fn graph(&self) -> &Graph {
        self.executable.graph()
    }

    /// Returns the placement, if there was a choice, and the compiled graph as text.
    pub(crate) fn explain(&self, devices: &Devices) -> String {
        let crossings = self.executable.crossings().into_iter();
        let placed = self.placement.as_ref().map(|p| p.explain(self.graph(), &devices.topology, crossings));
        placed.unwrap_or_default() + &self.executable.explain()
    }

    /// Returns whether inputs have the types of the signature.
    pub(crate) fn accepts(&self, inputs: &[HostTensor]) -> bool {
        self.signature.len() == inputs.len()
            && self.signature.iter().zip(inputs).all(|(ty, t)| {
                ty.dtype == t.dtype()
                    && ty.rank() == t.rank()
                    && ty.shape.dims().iter().zip(t.shape()).all(|(d, &n)| *d == Dim::Known(n))
            })
    }

    /// Runs a step. The variables change only if the step succeeds.
    pub(crate) fn step(
        &self,
        session: &Session,
        inputs: &[HostTensor],
        call: Option<&RunningCall>,
    ) -> Result<Vec<HostTensor>> {
        self.with_vars(session, call, |vars, cx| self.executable.step(inputs, vars, cx))
    }

    /// Runs a step like [`step`](Self::step), and replaces other tensors by its outputs.
    pub(crate) fn step_into(
        &self,
        session: &Session,
        inputs: &[HostTensor],
        outputs: &mut [&mut HostTensor],
    ) -> Result<()> {
        self.with_vars(session, None, |vars, cx| self.executable.step_into(inputs, vars, cx, outputs))
    }

    /// Runs a step like [`step`](Self::step) and records a timeline.
    pub(crate) fn profile(&self, session: &Session, inputs: &[HostTensor]) -> Result<(Vec<HostTensor>, Timeline)> {
        self.with_vars(session, None, |vars, cx| self.executable.profile(inputs, vars, cx))
    }

    /// Adds the device to an error of a step.
    fn error(&self, error: Diagnostic) -> Diagnostic {
        match self.on {
            Some(name) => error.at(Loc::UNKNOWN, format!("on {name}")),
            None => error,
        }
    }

    /// Calls `f` with the variables of a step, unless the call ends before.
    fn with_vars<T: Send>(
        &self,
        session: &Session,
        call: Option<&RunningCall>,
        mut f: impl FnMut(&VarSet, &StepCx<'_>) -> Result<T> + Send,
    ) -> Result<T> {
        let stop = call.map(|call| &call.flag);
        if !self.queues.is_empty() {
            return self.with_queues(session, stop, f);
        }
        let _locks = match self.vars.assigns() {
            true => self.vars.lock(stop.map(|stop| &**stop)),
            false => None,
        };
        self.check_stop(stop)?;
        let (files, host) = self.files(session);
        let cx = StepCx { host: host.as_ref().unwrap_or(&session.host), stop };
        let outcome = session.limited(|| f(&self.vars, &cx)).map_err(|e| self.error(e));
        published(files, outcome)
    }

    /// Returns the files of a step, and the host side with them, if the graph uses files.
    fn files(&self, session: &Session) -> (Option<RunningFiles>, Option<HostSide>) {
        let files = session.files.clone().filter(|_| self.uses_files).map(RunningFiles::begin);
        let host = files.as_ref().map(|files| HostSide { files: files.files(), ..session.host.clone() });
        (files, host)
    }

    /// Calls `f` like [`with_vars`](Self::with_vars) for a graph with queues, again and again as
    /// long as another step assigns one of its variables while it waits.
    fn with_queues<T: Send>(
        &self,
        session: &Session,
        stop: Option<&Arc<StopFlag>>,
        mut f: impl FnMut(&VarSet, &StepCx<'_>) -> Result<T> + Send,
    ) -> Result<T> {
        let (gate, assigns) = (session.queues.gate(), self.vars.assigns());
        let transaction = RunningTransaction::begin(&self.name, &self.queues, stop.cloned(), gate, assigns);
        if let Some(first) = self.first_removal {
            transaction.wait_for(first)?;
        }
        loop {
            // A step that assigns nothing has locks, too, so that what it removes and what it reads
            // are of one moment.
            let locks = YieldingLocks::acquire(self.vars.clone(), stop.map(|stop| &**stop));
            self.check_stop(stop)?;
            transaction.attempt(locks.expect("only a stop keeps a step from its locks"));
            let (files, host) = self.files(session);
            let host = HostSide { queues: transaction.queues(), ..host.unwrap_or_else(|| session.host.clone()) };
            let cx = StepCx { host: &host, stop };
            let outcome = session.limited(|| f(&self.vars, &cx)).map_err(|e| self.error(e));
            if let EndOfStep::Ended(outcome) = transaction.end(outcome) {
                return published(files, outcome);
            }
            // All work of the attempt has ended.
            if let Some(stop) = stop {
                stop.begin_again();
            }
        }
    }

    /// Fails if the call was stopped. If step locks were not acquired, it was.
    fn check_stop(&self, stop: Option<&Arc<StopFlag>>) -> Result<()> {
        match stop.and_then(|stop| stop.get()) {
            Some(kind) => Err(interp::stopped(kind, &self.name, [], Loc::UNKNOWN)),
            None => Ok(()),
        }
    }
}

/// Publishes the files of a step that has succeeded.
fn published<T>(files: Option<RunningFiles>, outcome: Result<T>) -> Result<T> {
    match (files, outcome) {
        (Some(files), Ok(value)) => files.publish().map(|()| value),
        (_, outcome) => outcome,
    }
}

/// A cache of at most [`MAX_CACHED`] entries, most recently used first.
pub(crate) struct Cache<T> {
    made: Mutex<Vec<Arc<T>>>,
    /// Held while an entry is made, so that no other thread makes the same entry.
    making: Mutex<()>,
}

/// The maximum number of entries.
const MAX_CACHED: usize = 64;

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Cache { made: Mutex::default(), making: Mutex::default() }
    }
}

impl<T> Cache<T> {
    /// Returns the first matching entry.
    pub(crate) fn find(&self, fits: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let i = made.iter().position(|c| fits(c))?;
        made[..=i].rotate_right(1);
        Some(made[0].clone())
    }

    /// Returns the matching entry, or makes one. `name` is the name of the function, for messages.
    ///
    /// # Errors
    /// Returns the error of `make`. Also fails if a function is being traced on this thread,
    /// because making an entry needs a trace of its own.
    pub(crate) fn get_or_insert_with(
        &self,
        name: &str,
        fits: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        if trace::is_tracing() {
            let message = format!("`{name}` was called in its session while a function is being traced");
            return Err(Diagnostic::new(message)
                .help("call the Rust function itself: inside a graph function it is an ordinary function"));
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = self.find(fits) {
            return Ok(found);
        }
        let new = Arc::new(make()?);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.insert(0, new.clone());
        made.truncate(MAX_CACHED);
        Ok(new)
    }
}

/// Starts a call that its options may end.
pub(crate) fn begin(options: Option<&CallOptions>) -> Result<Option<RunningCall>> {
    options.map(CallOptions::begin).transpose()
}

/// Returns the access of a graph to each of its variables.
fn accesses(graph: &Graph) -> Vec<VarAccess> {
    let mut accesses = vec![VarAccess::Read; graph.vars.len()];
    graph.visit_nodes(graph.root(), &mut |node| {
        if let Op::Assign(var) = graph.node(node).op {
            accesses[var.index()] = VarAccess::Assign;
        }
    });
    accesses
}
