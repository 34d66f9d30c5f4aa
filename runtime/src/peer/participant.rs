//! A step at a participant.

use super::cluster::from_wire;
use super::net::Link;
use super::node::{lock, send_value};
use super::proto::codec::pieces;
use super::proto::frame::{
    CallerFrame, OWNER, PartMessage, PeerFrame, PrintStream, ProcessNumber, SessionId, StepFault, StepMessage,
    StepNumber, WireFrame,
};
use super::proto::host::{Begin, StepEnd, StepKey};
use super::proto::payload::hold_outgoing;
use super::server::{LoadedProgram, Server, to_wire};
use crate::device::{DeviceBuffer, HostSide, PrintTo, Step};
use crate::flow::driver::StepResults;
use crate::flow::executor::DeviceMessage;
use crate::flow::remote::{Arrival, Mailbox, Others, ProcessId, StepFailure, StepInbox};
use crate::flow::step_run::{Progressed, StepInputs, StepRun};
use crate::flow::{EdgeId, LoopId, SubgraphId};
use anabranch_dsl::format::Stream;
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::ir::VarId;
use anabranch_dsl::memory::{ByteGauge, HeldBytes};
use anabranch_dsl::{Diagnostic, ErrorKind, HostTensor, Result};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// How long a step runs on the thread of the net before it gets a thread of its own.
const AT_ONCE: Duration = Duration::from_micros(100);

/// A step that runs at this peer.
#[derive(Debug, Default)]
pub(super) struct RunningStep {
    pub(super) inbox: Mutex<StepInbox>,
    pub(super) stop: Arc<StopFlag>,
    /// The bytes of bodies that have arrived for the step.
    pub(super) received: Arc<AtomicU64>,
    /// Set when the step has begun to run.
    pub(super) step: OnceLock<Arc<Step>>,
    /// The step while it waits for an arrival and occupies no thread.
    parked: Mutex<Option<Participation>>,
}

impl RunningStep {
    /// Creates a step that has not begun. `received` counts the bytes of bodies that arrive for it.
    pub(super) fn new(received: Arc<AtomicU64>) -> RunningStep {
        RunningStep { received, ..RunningStep::default() }
    }

    fn park(&self, participation: Participation) {
        *lock(&self.parked) = Some(participation);
    }

    /// Returns whether the step has something to do.
    fn has_arrivals(&self) -> bool {
        lock(&self.inbox).len() > 0 || self.stop.is_set()
    }

    /// Returns the step if it occupies no thread.
    pub(super) fn unpark(&self) -> Option<Participation> {
        lock(&self.parked).take()
    }
}

/// The part of a step that is at this peer.
#[derive(Debug)]
pub(super) struct Participation {
    run: StepRun,
    program: Arc<LoadedProgram>,
    key: StepKey,
    routes: Arc<Routes>,
}

/// What has become of a participation that ran without waiting.
pub(super) enum Advanced {
    Ended(Result<StepEnd, StepFault>),
    /// It waits for an arrival.
    Parked,
    /// It needs a thread for its kernels.
    Working(Box<Participation>),
}

/// Converts a failure for another process.
pub(super) fn fault(failure: &StepFailure) -> StepFault {
    StepFault { position: failure.position.as_ref().map(|position| position.to_vec()), error: to_wire(&failure.error) }
}

/// Converts a message of another process.
pub(super) fn message(message: StepMessage) -> Arrival {
    let StepMessage { from, from_part, to_part, message, .. } = message;
    let message = match message {
        PartMessage::Value { edge, tag, tensor } => {
            DeviceMessage::Value { edge: EdgeId(edge), tag: tag.into(), value: tensor }
        }
        PartMessage::Credit { of, tag, finished } => {
            DeviceMessage::Credit { of: LoopId(of), tag: tag.into(), finished }
        }
    };
    Arrival::Message { process: ProcessId(from.0), from: SubgraphId(from_part), to: SubgraphId(to_part), message }
}

/// Converts a message for another process.
pub(super) fn step_message(
    step: StepNumber,
    own: ProcessNumber,
    from: SubgraphId,
    to: SubgraphId,
    message: DeviceMessage<HostTensor>,
) -> StepMessage {
    let message = match message {
        DeviceMessage::Value { edge, tag, value } => {
            PartMessage::Value { edge: edge.0, tag: tag.to_vec(), tensor: value }
        }
        DeviceMessage::Credit { of, tag, finished } => PartMessage::Credit { of: of.0, tag: tag.to_vec(), finished },
    };
    StepMessage { step, from: own, from_part: from.0, to_part: to.0, message }
}

/// The other processes of a step, as a participant sees them.
struct Routes {
    session: SessionId,
    step: StepNumber,
    own: ProcessNumber,
    links: Vec<(ProcessNumber, Link)>,
    /// The priority of each edge.
    priorities: Arc<[i32]>,
    /// The values of the session that wait to be sent.
    outgoing: Arc<ByteGauge>,
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes").field("session", &self.session).field("step", &self.step).finish_non_exhaustive()
    }
}

impl Routes {
    /// Sends a frame to the owner of the session. Without a link the step is being stopped.
    fn send_to_owner(&self, frame: CallerFrame, priority: i32, held: Option<HeldBytes>) {
        if let Some((_, link)) = self.links.iter().find(|(process, _)| *process == OWNER) {
            send_value(link, WireFrame::ToCaller { session: self.session, frame }, priority, held);
        }
    }

    /// Waits until the owner can take more prints, unless `is_stopped`.
    fn wait_for_room(&self, is_stopped: impl Fn() -> bool) {
        if let Some((_, link)) = self.links.iter().find(|(process, _)| *process == OWNER) {
            link.wait_for_room(is_stopped);
        }
    }

    /// Checks that a value may be sent, and counts its bytes until they are.
    fn hold(&self, value: &HostTensor) -> Result<Option<HeldBytes>> {
        hold_outgoing(&self.outgoing, value).map_err(from_wire)
    }
}

impl Others for Arc<Routes> {
    fn send(
        &self,
        process: ProcessId,
        from: SubgraphId,
        to: SubgraphId,
        message: DeviceMessage<HostTensor>,
    ) -> Result<()> {
        let (priority, held) = match &message {
            DeviceMessage::Value { edge, value, .. } => (self.priorities[edge.index()], self.hold(value)?),
            DeviceMessage::Credit { .. } => (0, None),
        };
        let message = step_message(self.step, self.own, from, to, message);
        if process == ProcessId::CALLER {
            self.send_to_owner(CallerFrame::Message(message), priority, held);
        } else if let Some((_, link)) = self.links.iter().find(|(of, _)| of.0 == process.0) {
            let frame = PeerFrame::Message(message);
            send_value(link, WireFrame::ToPeer { session: self.session, frame }, priority, held);
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.links.iter().all(|(_, link)| link.has_room())
    }

    fn awaited(&self) -> Vec<ProcessId> {
        Vec::new()
    }

    fn ended(&mut self) -> Result<Vec<(VarId, DeviceBuffer)>, StepFailure> {
        Ok(Vec::new())
    }

    fn failed(&mut self, failure: StepFailure) -> StepFailure {
        failure
    }
}

fn closed() -> Diagnostic {
    Diagnostic::new("the peer is closing").of_kind(ErrorKind::Cancelled)
}

impl Participation {
    /// Begins the part of a step that is at this peer.
    pub(super) fn begin(server: &Server, begin: Begin, running: &RunningStep) -> Result<Participation> {
        let Begin { key, session, program, you, routes, outgoing, working, start, .. } = begin;
        let node = server.node().ok_or_else(closed)?;
        let internal = |what: &str| Diagnostic::new(what).of_kind(ErrorKind::Internal);
        let program = server.program(program).ok_or_else(|| internal("a step runs a program that is not loaded"))?;
        let mut vars = vec![None; program.vars.len()];
        for &(var, value) in &start.vars {
            let Some((ty, Some(device))) = program.vars.get(var as usize) else {
                return Err(internal("a step reads a variable that is not at this peer"));
            };
            vars[var as usize] = Some(server.value(key.session, value, ty, device)?);
        }
        if let Some(var) = program.driver.reads().find(|var| vars[var.index()].is_none()) {
            return Err(internal(&format!("a step begins without a value of {var}")));
        }
        let links = routes.iter().filter_map(|&(process, link)| Some((process, node.link(link)?))).collect();
        let priorities = program.priorities.clone();
        let routes = Arc::new(Routes { session, step: key.step, own: you, links, priorities, outgoing });
        let open = |_: &StepInputs, mailbox: &Arc<Mailbox>| -> Result<Box<dyn Others>> {
            let _ = running.step.set(mailbox.step().clone());
            lock(&running.inbox).open(mailbox);
            Ok(Box::new(routes.clone()))
        };
        let inputs = StepInputs { inputs: vec![None; program.driver.n_inputs()], vars };
        let print = HostSide::printing(printer(routes.clone(), running.stop.clone()));
        let host = HostSide { budget: Some(working), ..print };
        let run = program.driver.begin(inputs, host, running.stop.clone(), Some(&open), false)?;
        Ok(Participation { run, program, key, routes })
    }

    /// Runs without waiting, for a short time.
    pub(super) fn advance(self, server: &Server, running: &RunningStep) -> Advanced {
        let Participation { run, program, key, routes } = self;
        match run.advance(AT_ONCE) {
            Progressed::Ended(results) => Advanced::Ended(end(server, &program, key, &routes, results)),
            Progressed::Waiting(run) => {
                running.park(Participation { run, program, key, routes });
                Advanced::Parked
            }
            Progressed::Working(run) => Advanced::Working(Box::new(Participation { run, program, key, routes })),
        }
    }

    /// Runs to the end.
    pub(super) fn run(self, server: &Server) -> Result<StepEnd, StepFault> {
        let results = self.run.run(None);
        end(server, &self.program, self.key, &self.routes, results)
    }

    /// Runs on a thread of its own until the step ends, or waits for an arrival and is parked.
    pub(super) fn work(mut self, server: &Server, running: &RunningStep) -> Option<Result<StepEnd, StepFault>> {
        loop {
            let Participation { run, program, key, routes } = self;
            let run = match run.work() {
                Progressed::Ended(results) => return Some(end(server, &program, key, &routes, results)),
                Progressed::Waiting(run) => run,
                Progressed::Working(_) => panic!("a step works until it ends or waits"),
            };
            running.park(Participation { run, program, key, routes });
            // Nobody goes on with the step for something that arrived before it was parked.
            self = running.has_arrivals().then(|| running.unpark()).flatten()?;
        }
    }
}

/// Returns a receiver of printed text that sends it to the owner of the session.
fn printer(routes: Arc<Routes>, stop: Arc<StopFlag>) -> PrintTo {
    let printed = Mutex::new(0);
    Arc::new(move |stream, text: &str| {
        let stream = match stream {
            Stream::Stdout => PrintStream::Stdout,
            Stream::Stderr => PrintStream::Stderr,
        };
        let mut number = lock(&printed);
        for text in pieces(text) {
            let (step, text) = (routes.step, text.to_owned());
            routes.wait_for_room(|| stop.is_set());
            routes.send_to_owner(CallerFrame::Print { step, number: *number, stream, text }, 0, None);
            *number += 1;
        }
    })
}

/// Sends the outputs of a step that has ended, and keeps what it assigned.
fn end(
    server: &Server,
    program: &LoadedProgram,
    key: StepKey,
    routes: &Routes,
    results: Result<StepResults, StepFailure>,
) -> Result<StepEnd, StepFault> {
    let results = results.map_err(|failure| fault(&failure))?;
    let mut end = StepEnd::default();
    for (index, output) in (0..).zip(results.outputs) {
        if let Some(tensor) = output {
            end.outputs += 1;
            let held = routes.hold(&tensor).map_err(|error| fault(&error.into()))?;
            // It counts as what waits to be sent.
            tensor.stop_counting();
            routes.send_to_owner(CallerFrame::Output { step: key.step, index, tensor }, 0, held);
        }
    }
    server.free(results.inputs);
    let mut assigned = Vec::new();
    for (var, mut buffer) in results.assigned {
        // It counts as a variable.
        buffer.hold(None);
        buffer.stop_counting();
        let var = var.index() as u32;
        let Some((_, Some(device))) = program.vars.get(var as usize) else {
            let error = Diagnostic::new("a step assigned a variable that is not at this peer");
            return Err(fault(&error.of_kind(ErrorKind::Internal).into()));
        };
        end.assigned.push((var, buffer.n_bytes()));
        assigned.push((var, device.clone(), buffer));
    }
    server.keep(key, assigned);
    Ok(end)
}
