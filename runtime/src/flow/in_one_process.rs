//! Several processes of a step, simulated in one: a driver for each, on a thread of its own, with
//! mailboxes in memory. For tests of all that does not need sockets.

use super::SubgraphId;
use super::driver::{Driver, StepResults};
use super::executor::DeviceMessage;
use super::remote::{Arrival, Mailbox, Others, ProcessId, StepFailure, StepInbox};
use super::step_run::StepInputs;
use crate::device::{DeviceBuffer, HostSide, PrintTo};
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::ir::VarId;
use anabranch_dsl::{Diagnostic, ErrorKind, HostTensor, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The processes of one step.
#[derive(Debug)]
struct ThreadCluster {
    inboxes: Vec<Mutex<StepInbox>>,
    stops: Vec<Arc<StopFlag>>,
    assigned: Mutex<Vec<(VarId, DeviceBuffer)>>,
}

impl ThreadCluster {
    fn inbox(&self, process: ProcessId) -> MutexGuard<'_, StepInbox> {
        self.inboxes[process.0 as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deliver(&self, process: ProcessId, arrival: Arrival) {
        self.inbox(process).push(arrival, None);
    }

    /// Runs a participant and reports its end.
    fn participate(self: &Arc<Self>, process: ProcessId, driver: &Arc<Driver>, vars: &[DeviceBuffer]) {
        let this = self.clone();
        let print: PrintTo = Arc::new(move |stream, text: &str| {
            this.deliver(ProcessId::CALLER, Arrival::Print { stream, text: text.to_owned() });
        });
        let begin = |_: &StepInputs, mailbox: &Arc<Mailbox>| -> Result<Box<dyn Others>> {
            self.inbox(process).open(mailbox);
            Ok(Box::new(ProcessView { own: process, cluster: self.clone() }))
        };
        let inputs = vec![None; driver.graph.inputs().len()];
        let inputs = StepInputs { inputs, vars: vars.iter().cloned().map(Some).collect() };
        let stop = self.stops[process.0 as usize].clone();
        let run = driver.begin(inputs, HostSide::printing(print), stop, Some(&begin), false);
        let end = match run.map_err(StepFailure::from).and_then(|run| run.run(None)) {
            Ok(StepResults { outputs, assigned, .. }) => {
                for (index, tensor) in (0..).zip(outputs) {
                    if let Some(tensor) = tensor {
                        self.deliver(ProcessId::CALLER, Arrival::Output { process, index, tensor });
                    }
                }
                self.assigned.lock().unwrap_or_else(PoisonError::into_inner).extend(assigned);
                Arrival::Ended { process }
            }
            Err(failure) => Arrival::Failed { process, failure },
        };
        self.deliver(ProcessId::CALLER, end);
    }
}

/// The cluster as one process sees it.
#[derive(Debug)]
struct ProcessView {
    own: ProcessId,
    cluster: Arc<ThreadCluster>,
}

impl Others for ProcessView {
    fn send(
        &self,
        process: ProcessId,
        from: SubgraphId,
        to: SubgraphId,
        message: DeviceMessage<HostTensor>,
    ) -> Result<()> {
        self.cluster.deliver(process, Arrival::Message { process: self.own, from, to, message });
        Ok(())
    }

    fn awaited(&self) -> Vec<ProcessId> {
        let n = self.cluster.inboxes.len() as u32;
        (1..n).map(ProcessId).filter(|_| self.own == ProcessId::CALLER).collect()
    }

    fn ended(&mut self) -> Result<Vec<(VarId, DeviceBuffer)>, StepFailure> {
        let mut assigned = self.cluster.assigned.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match self.own {
            ProcessId::CALLER => std::mem::take(&mut *assigned),
            _ => Vec::new(),
        })
    }

    fn failed(&mut self, failure: StepFailure) -> StepFailure {
        if self.own == ProcessId::CALLER {
            self.cluster.stops.iter().skip(1).for_each(|stop| stop.stop(ErrorKind::Cancelled));
        }
        failure
    }
}

/// Runs a step of a program whose first driver is the caller's and whose other drivers are those of
/// participants.
pub(super) fn run(
    drivers: &[Arc<Driver>],
    inputs: &[HostTensor],
    vars: &[DeviceBuffer],
    print: PrintTo,
) -> Result<StepResults, StepFailure> {
    let cluster = Arc::new(ThreadCluster {
        inboxes: drivers.iter().map(|_| Mutex::default()).collect(),
        stops: drivers.iter().map(|_| Arc::default()).collect(),
        assigned: Mutex::default(),
    });
    std::thread::scope(|scope| {
        let begin = |_: &StepInputs, mailbox: &Arc<Mailbox>| -> Result<Box<dyn Others>> {
            cluster.inbox(ProcessId::CALLER).open(mailbox);
            for (process, driver) in (0..).map(ProcessId).zip(drivers).skip(1) {
                let cluster = cluster.clone();
                let thread = std::thread::Builder::new();
                let spawned = thread.spawn_scoped(scope, move || cluster.participate(process, driver, vars));
                spawned.map_err(|e| Diagnostic::new(format!("a participant has no thread: {e}")))?;
            }
            for (index, input) in (0..).zip(inputs) {
                for process in (1..drivers.len() as u32).map(ProcessId) {
                    cluster.deliver(process, Arrival::Input { index, tensor: input.clone() });
                }
            }
            Ok(Box::new(ProcessView { own: ProcessId::CALLER, cluster: cluster.clone() }))
        };
        let inputs = inputs.iter().cloned().map(Some).collect();
        let inputs = StepInputs { inputs, vars: vars.iter().cloned().map(Some).collect() };
        drivers[0].begin(inputs, HostSide::printing(print), cluster.stops[0].clone(), Some(&begin), false)?.run(None)
    })
}
