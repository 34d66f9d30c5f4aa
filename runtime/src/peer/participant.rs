//! A step at a participant.

use super::cluster::from_wire;
use super::net::Link;
use super::node::{Node, lock, send_held};
use super::proto::codec::pieces;
use super::proto::frame::{
    CallerFrame, OWNER, PartMessage, PeerFrame, PrintStream, ProcessNumber, SessionId, StepFault, StepMessage,
    StepNumber, WireFrame,
};
use super::proto::host::{Begin, StepEnd};
use super::proto::payload::hold_outgoing;
use super::server::{Server, to_wire};
use crate::byte_gauge::{ByteGauge, HeldBytes};
use crate::device::{DeviceBuffer, PrintTo, Step};
use crate::flow::executor::DeviceMessage;
use crate::flow::remote::{Arrival, Mailbox, Others, ProcessId, StepFailure, StepInbox};
use crate::flow::step_run::StepInputs;
use crate::flow::{EdgeId, LoopId, SubgraphId};
use anabranch_dsl::format::Stream;
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::ir::VarId;
use anabranch_dsl::{Diagnostic, ErrorKind, HostTensor, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

/// A step that runs at this peer.
#[derive(Debug, Default)]
pub(super) struct RunningStep {
    pub(super) inbox: Mutex<StepInbox>,
    pub(super) stop: Arc<StopFlag>,
    /// Set when the step has begun to run.
    pub(super) step: OnceLock<Arc<Step>>,
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
    /// The values of the session that wait to be sent.
    outgoing: Arc<ByteGauge>,
    stop: Arc<StopFlag>,
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes").field("session", &self.session).field("step", &self.step).finish_non_exhaustive()
    }
}

impl Routes {
    /// Sends a frame to the owner of the session. Without a link the step is being stopped.
    fn send_to_owner(&self, frame: CallerFrame, held: Option<HeldBytes>) {
        if let Some((_, link)) = self.links.iter().find(|(process, _)| *process == OWNER) {
            link.wait_for_room(|| self.stop.is_set());
            send_held(link, WireFrame::ToCaller { session: self.session, frame }, held);
        }
    }

    /// Checks that a value may be sent, and counts its bytes until they are.
    fn hold(&self, value: &HostTensor) -> Result<Option<HeldBytes>> {
        hold_outgoing(&self.outgoing, value).map_err(from_wire)
    }
}

impl Others for Routes {
    fn send(
        &self,
        process: ProcessId,
        from: SubgraphId,
        to: SubgraphId,
        message: DeviceMessage<HostTensor>,
    ) -> Result<()> {
        let held = match &message {
            DeviceMessage::Value { value, .. } => self.hold(value)?,
            DeviceMessage::Credit { .. } => None,
        };
        let message = step_message(self.step, self.own, from, to, message);
        if process == ProcessId::CALLER {
            self.send_to_owner(CallerFrame::Message(message), held);
        } else if let Some((_, link)) = self.links.iter().find(|(of, _)| of.0 == process.0) {
            link.wait_for_room(|| self.stop.is_set());
            send_held(link, WireFrame::ToPeer { session: self.session, frame: PeerFrame::Message(message) }, held);
        }
        Ok(())
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

/// Runs the part of a step that is at this peer, and sends its outputs.
pub(super) fn run(server: &Server, begin: Begin, running: &RunningStep) -> Result<StepEnd, StepFault> {
    let node = server.node().ok_or_else(|| fault(&closed().into()))?;
    run_in(server, &node, begin, running).map_err(|failure| fault(&failure))
}

fn closed() -> Diagnostic {
    Diagnostic::new("the peer is closing").of_kind(ErrorKind::Cancelled)
}

fn run_in(server: &Server, node: &Node, begin: Begin, running: &RunningStep) -> Result<StepEnd, StepFailure> {
    let Begin { key, session, program, you, routes, outgoing, start, .. } = begin;
    let internal = |what: &str| Diagnostic::new(what).of_kind(ErrorKind::Internal);
    let program = server.program(program).ok_or_else(|| internal("a step runs a program that is not loaded"))?;
    let mut vars = BTreeMap::new();
    for &(var, value) in &start.vars {
        let Some((ty, Some(device))) = program.vars.get(var as usize) else {
            return Err(internal("a step reads a variable that is not at this peer").into());
        };
        vars.insert(var, server.value(key.session, value, ty, device)?);
    }
    if let Some(var) = program.driver.reads().find(|var| !vars.contains_key(&(var.index() as u32))) {
        return Err(internal(&format!("a step begins without a value of {var}")).into());
    }
    let links = routes.iter().filter_map(|&(process, link)| Some((process, node.link(link)?))).collect();
    let routes = Arc::new(Routes { session, step: key.step, own: you, links, outgoing, stop: running.stop.clone() });
    let printed = Mutex::new(0);
    let print: PrintTo = Arc::new({
        let routes = routes.clone();
        move |stream, text: &str| {
            let stream = match stream {
                Stream::Stdout => PrintStream::Stdout,
                Stream::Stderr => PrintStream::Stderr,
            };
            let mut number = lock(&printed);
            for text in pieces(text) {
                let (step, text) = (routes.step, text.to_owned());
                routes.send_to_owner(CallerFrame::Print { step, number: *number, stream, text }, None);
                *number += 1;
            }
        }
    });
    let begin = |mailbox: &Arc<Mailbox>| -> Result<Box<dyn Others>> {
        let _ = running.step.set(mailbox.step().clone());
        lock(&running.inbox).open(mailbox);
        let Routes { session, step, own, ref links, ref outgoing, ref stop } = *routes;
        let (links, outgoing, stop) = (links.clone(), outgoing.clone(), stop.clone());
        Ok(Box::new(Routes { session, step, own, links, outgoing, stop }))
    };
    let inputs = StepInputs { inputs: &[], var: &|var| vars[&(var.index() as u32)].clone() };
    let results = program.driver.run(inputs, print, running.stop.clone(), Some(&begin), None)?;
    let mut end = StepEnd::default();
    for (index, output) in (0..).zip(results.outputs) {
        if let Some(tensor) = output {
            end.outputs += 1;
            let held = routes.hold(&tensor)?;
            routes.send_to_owner(CallerFrame::Output { step: key.step, index, tensor }, held);
        }
    }
    let mut assigned = Vec::new();
    for (var, buffer) in results.assigned {
        let var = var.index() as u32;
        let Some((_, Some(device))) = program.vars.get(var as usize) else {
            return Err(internal("a step assigned a variable that is not at this peer").into());
        };
        end.assigned.push((var, buffer.n_bytes()));
        assigned.push((var, device.clone(), buffer));
    }
    server.keep(key, assigned);
    Ok(end)
}
