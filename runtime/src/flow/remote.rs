//! A step whose subgraphs run in several processes, as one of these processes sees it.
//!
//! The process that called the function begins the step in all others and ends it: it is the
//! *caller*. The others are *participants*. Each process runs the executors of its own subgraphs.
//! [`Others`] sends messages to subgraphs of other processes, and a [`Mailbox`] receives theirs.
//!
//! Invariants:
//!
//! - R1. Values travel as tensors in host memory. Each process brings them to its devices.
//! - R2. What arrives is not trusted: a message that the step does not expect fails the step
//!   ([`Executor::admit`](super::executor::Executor::admit)).
//! - R3. A participant reports its end once, when all of its subgraphs have ended and all fences of
//!   its devices are complete, or when it has failed. The caller commits when all participants have
//!   ended without a failure.
//! - R4. A mailbox is bound to one step. Whatever arrives after the step is dropped.
//! - R5. What waits in a mailbox counts as held until the step takes it. So a step that is busy,
//!   and a process that sends more than it may, do not fill the memory.
//!
//! This module must not know sockets, addresses or encodings.

use super::executor::DeviceMessage;
use super::step_run::StepInputs;
use super::{Edge, Partition, SubgraphId};
use crate::device::{DeviceBuffer, DeviceId, Event, Step};
use anabranch_dsl::format::Stream;
use anabranch_dsl::ir::VarId;
use anabranch_dsl::memory::HeldBytes;
use anabranch_dsl::{Diagnostic, HostTensor, Result};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The position of a node in a sequential run: the index in its region of each enclosing node,
/// outermost first, with the iteration and the region entered, and then its own index. Positions
/// compare lexicographically.
pub(crate) type Position = Vec<u64>;

/// A process among those that run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ProcessId(pub(crate) u32);

impl ProcessId {
    /// The process that calls the function.
    pub(crate) const CALLER: ProcessId = ProcessId(0);
}

/// The processes of the devices of a program.
#[derive(Clone, Debug)]
pub(crate) struct Processes {
    /// The process that runs this code.
    pub(crate) own: ProcessId,
    of_device: Vec<ProcessId>,
}

impl Processes {
    /// Returns the map for devices that are all in this process, the caller.
    #[cfg(test)]
    pub(crate) fn only_caller() -> Processes {
        Processes { own: ProcessId::CALLER, of_device: Vec::new() }
    }

    /// Returns the map for devices with these processes, in order, as `own` sees it.
    pub(crate) fn new(own: ProcessId, of_device: Vec<ProcessId>) -> Processes {
        Processes { own, of_device }
    }

    /// Returns the process of a device.
    pub(crate) fn of(&self, device: DeviceId) -> ProcessId {
        self.of_device.get(device.index()).copied().unwrap_or(ProcessId::CALLER)
    }

    /// Returns whether a device is in this process.
    pub(crate) fn is_here(&self, device: DeviceId) -> bool {
        self.of(device) == self.own
    }
}

/// The failure of a step in one process.
#[derive(Clone, Debug)]
pub(crate) struct StepFailure {
    /// The position of the operation, if one failed.
    pub(crate) position: Option<Box<[u64]>>,
    pub(crate) error: Diagnostic,
}

impl From<Diagnostic> for StepFailure {
    fn from(error: Diagnostic) -> StepFailure {
        StepFailure { position: None, error }
    }
}

/// A message or report of another process during a step.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A message from a subgraph of `process` to a subgraph of this process.
    Message { process: ProcessId, from: SubgraphId, to: SubgraphId, message: DeviceMessage<HostTensor> },
    /// At a participant: an input of the graph.
    Input { index: u32, tensor: HostTensor },
    /// At the caller: an output of the graph that `process` has computed.
    Output { process: ProcessId, index: u32, tensor: HostTensor },
    /// At the caller: text that a participant printed.
    Print { stream: Stream, text: String },
    /// At the caller: a participant has ended, and all of its outputs have arrived.
    Ended { process: ProcessId },
    /// At the caller: a participant has failed. It has ended, too.
    Failed { process: ProcessId, failure: StepFailure },
    /// Another process is lost or misbehaves, so the step cannot end.
    Lost(Diagnostic),
}

/// The receiver of a step.
#[derive(Debug)]
pub(crate) struct Mailbox {
    arrivals: Mutex<VecDeque<(Arrival, Option<HeldBytes>)>>,
    step: Arc<Step>,
}

impl Mailbox {
    pub(crate) fn new(step: Arc<Step>) -> Mailbox {
        Mailbox { arrivals: Mutex::default(), step }
    }

    fn arrivals(&self) -> MutexGuard<'_, VecDeque<(Arrival, Option<HeldBytes>)>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an arrival, from any thread. Its bytes are held until the step takes it.
    pub(crate) fn push(&self, arrival: Arrival, held: Option<HeldBytes>) {
        let is_failure = matches!(arrival, Arrival::Failed { .. } | Arrival::Lost(_));
        self.arrivals().push_back((arrival, held));
        if is_failure {
            self.step.interrupt_waits();
        }
        self.step.wake();
    }

    /// Returns the number of arrivals that the step has not handled.
    #[cfg(feature = "peers")]
    pub(crate) fn len(&self) -> usize {
        self.arrivals().len()
    }

    /// Returns the next arrival.
    pub(crate) fn pop(&self) -> Option<Arrival> {
        self.arrivals().pop_front().map(|(arrival, _)| arrival)
    }

    /// Returns the step.
    pub(crate) fn step(&self) -> &Arc<Step> {
        &self.step
    }
}

/// The place where arrivals for a step wait until the step has a mailbox.
#[derive(Debug)]
pub(crate) enum StepInbox {
    /// The step has not begun here.
    Closed(Vec<(Arrival, Option<HeldBytes>)>),
    Open(Arc<Mailbox>),
}

impl Default for StepInbox {
    fn default() -> StepInbox {
        StepInbox::Closed(Vec::new())
    }
}

impl StepInbox {
    pub(crate) fn push(&mut self, arrival: Arrival, held: Option<HeldBytes>) {
        match self {
            StepInbox::Closed(waiting) => waiting.push((arrival, held)),
            StepInbox::Open(mailbox) => mailbox.push(arrival, held),
        }
    }

    /// Returns the number of arrivals that the step has not handled.
    #[cfg(feature = "peers")]
    pub(crate) fn len(&self) -> usize {
        match self {
            StepInbox::Closed(waiting) => waiting.len(),
            StepInbox::Open(mailbox) => mailbox.len(),
        }
    }

    /// Opens the inbox, once, and passes on what has arrived.
    pub(crate) fn open(&mut self, mailbox: &Arc<Mailbox>) {
        let before = std::mem::replace(self, StepInbox::Open(mailbox.clone()));
        let StepInbox::Closed(waiting) = before else { panic!("a process begins a step once") };
        waiting.into_iter().for_each(|(arrival, held)| mailbox.push(arrival, held));
    }
}

/// The other processes of a running step. It is dropped at the end of the step.
pub(crate) trait Others: Debug + Send {
    /// Sends a message from a subgraph of this process to a subgraph of another process.
    ///
    /// # Errors
    /// Fails if a value is too large to be sent, or too many bytes wait to be sent.
    fn send(
        &self,
        process: ProcessId,
        from: SubgraphId,
        to: SubgraphId,
        message: DeviceMessage<HostTensor>,
    ) -> Result<()>;

    /// Returns whether messages can be sent without too many of them waiting.
    fn has_room(&self) -> bool {
        true
    }

    /// Waits for the next event of the step for at most the given time. Returns early if something
    /// has arrived.
    fn wait(&self, step: &Step, at_most: Duration) -> Option<Event> {
        step.wait(at_most)
    }

    /// Returns the participants whose end this process awaits: all for the caller, none for a
    /// participant.
    fn awaited(&self) -> Vec<ProcessId>;

    /// Ends the step, which has succeeded here and in all awaited processes. Returns the new values
    /// of variables that other processes have assigned, as buffers of their devices.
    ///
    /// # Errors
    /// Fails if one of them was lost in the meantime.
    fn ended(&mut self) -> Result<Vec<(VarId, DeviceBuffer)>, StepFailure>;

    /// Ends the step everywhere, because it has failed here. Returns the failure to report: another
    /// process may have failed earlier in the order of a sequential run.
    fn failed(&mut self, failure: StepFailure) -> StepFailure;
}

/// The other processes that run subgraphs of a program, as the caller sees them.
pub(crate) trait OtherProcesses: Debug + Send + Sync {
    /// Begins a step in all other processes. Their messages go to the mailbox.
    fn begin(&self, inputs: &StepInputs, mailbox: &Arc<Mailbox>) -> Result<Box<dyn Others>>;
}

/// Checks the parts of a message that do not depend on the progress of the step.
///
/// # Errors
/// Fails if the sender or the receiver is wrong, or if a value has the wrong type. The error is the
/// predicate of a sentence about the message.
pub(crate) fn check_message(
    partition: &Partition,
    processes: &Processes,
    process: ProcessId,
    (from, to): (SubgraphId, SubgraphId),
    message: &DeviceMessage<HostTensor>,
) -> Result<(), String> {
    let part = |id: SubgraphId| partition.parts.get(id.index());
    let (Some(sender), Some(receiver)) = (part(from), part(to)) else {
        return Err("names a subgraph that does not exist".to_owned());
    };
    if processes.of(sender.device) != process || process == processes.own {
        return Err("does not come from the process that it names".to_owned());
    }
    if !processes.is_here(receiver.device) {
        return Err("is for another process".to_owned());
    }
    match message {
        DeviceMessage::Value { edge, value, .. } => {
            let Some(Edge { from: expected_from, to: expected_to, ty, .. }) = partition.edges.get(edge.index()) else {
                return Err("names an edge that does not exist".to_owned());
            };
            if (*expected_from, *expected_to) != (from, to) {
                return Err("is on an edge between other subgraphs".to_owned());
            }
            let expected = ty.as_tensor().ok_or("is on an edge of a value that is no tensor")?;
            match expected.compatible(&value.ty()) {
                true => Ok(()),
                false => Err(format!("has a value of type {} instead of {expected}", value.ty())),
            }
        }
        DeviceMessage::Credit { of, .. } => match partition.loops.get(of.index()) {
            None => Err("names a loop that does not exist".to_owned()),
            Some(of) if of.leader != to => {
                Err("reports iterations to a process that does not wait for them".to_owned())
            }
            Some(_) => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::HostSide;
    use anabranch_dsl::Loc;
    use anabranch_dsl::ir::{QueueId, QueueOp};
    use anabranch_dsl::queue::StepQueues;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Queues that note that their waits are to end.
    #[derive(Default)]
    struct Waiting(AtomicBool);

    impl StepQueues for Waiting {
        fn run(&self, _: QueueId, _: QueueOp, _: Vec<HostTensor>, _: Loc) -> Result<Vec<HostTensor>> {
            Ok(Vec::new())
        }

        fn interrupt(&self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn failures_of_other_processes_end_waits_for_queues() {
        let (process, error) = (ProcessId(1), Diagnostic::new("lost"));
        let interrupts = |arrival| {
            let queues = Arc::new(Waiting::default());
            let host = HostSide { queues: queues.clone(), ..HostSide::printing(Arc::new(|_, _| ())) };
            let mailbox = Mailbox::new(Step::new(host, Arc::default(), false, false));
            mailbox.push(arrival, None);
            queues.0.load(Ordering::Relaxed)
        };
        assert!(!interrupts(Arrival::Ended { process }));
        assert!(interrupts(Arrival::Failed { process, failure: error.clone().into() }));
        assert!(interrupts(Arrival::Lost(error)));
    }
}
