//! The work of processes, as a stand-in: it takes some time, exchanges the messages of a plan, and
//! sometimes fails.

use super::cluster::{ClusterEvent, ClusterModel, ms};
use super::mix;
use crate::peer::proto::frame::WireErrorKind;
use crate::peer::proto::frame::{CallerFrame, Digest, OWNER, PartMessage, PeerFrame, PrintStream, WireFrame};
use crate::peer::proto::frame::{ProcessNumber, SessionId, StepFault, StepMessage, StepNumber, WireError};
use crate::peer::proto::host::{Begin, HostArrival, HostInput, HostOutput, LoadedAs, StepEnd, StepKey};
use crate::peer::proto::{LinkNumber, Time};
use anabranch_dsl::HostTensor;
use anabranch_dsl::memory::HeldBytes;
use std::collections::BTreeSet;

/// The part of a step that one process runs.
#[derive(Debug)]
pub(super) struct PartRun {
    pub(super) session: SessionId,
    pub(super) step: StepNumber,
    pub(super) process: ProcessNumber,
    /// The step at the host. `None` at the owner.
    pub(super) key: Option<StepKey>,
    routes: Vec<(ProcessNumber, LinkNumber)>,
    to_send: Vec<(ProcessNumber, u64)>,
    missing: BTreeSet<(ProcessNumber, u64)>,
    missing_inputs: BTreeSet<u32>,
    assigns: Vec<u32>,
    outputs: u32,
    /// What has arrived and was not taken.
    pub(super) waiting: Vec<HeldBytes>,
    /// The position of the operation that fails.
    fails_at: Option<Vec<u64>>,
    /// Whether an operation never ends by itself.
    hangs: bool,
    done: u64,
    is_scheduled: bool,
    is_stopped: bool,
}

/// Returns a number that identifies a message, or a value.
pub(super) fn stamp(session: SessionId, step: StepNumber, of: [u64; 3]) -> i64 {
    of.into_iter().fold(mix(session.0, step.0), mix) as i64
}

/// Returns a tensor that holds a stamp. Some are too large for a head.
pub(super) fn tensor_of(stamp: i64) -> HostTensor {
    let len = if mix(stamp as u64, 7).is_multiple_of(6) { 1_100 } else { 1 };
    HostTensor::new(vec![len], vec![stamp; len])
}

pub(super) fn stamp_of(tensor: &HostTensor) -> i64 {
    tensor.data::<i64>()[0]
}

/// Returns the number of messages from one process to another.
fn n_messages(session: SessionId, step: StepNumber, from: ProcessNumber, to: ProcessNumber) -> u64 {
    match from == to {
        true => 0,
        false => stamp(session, step, [1, from.0.into(), to.0.into()]) as u64 % 4,
    }
}

/// Returns the number of outputs of a process.
pub(super) fn n_outputs(session: SessionId, step: StepNumber, process: ProcessNumber) -> u32 {
    (stamp(session, step, [2, process.0.into(), 0]) as u64 % 3) as u32
}

impl PartRun {
    pub(super) fn new(
        cluster: &mut ClusterModel,
        session: SessionId,
        step: StepNumber,
        process: ProcessNumber,
        participants: &[ProcessNumber],
        routes: Vec<(ProcessNumber, LinkNumber)>,
    ) -> PartRun {
        let mut to_send = Vec::new();
        let mut missing = BTreeSet::new();
        for &other in participants {
            to_send.extend((0..n_messages(session, step, process, other)).map(|k| (other, k)));
            missing.extend((0..n_messages(session, step, other, process)).map(|k| (other, k)));
        }
        let rng = &mut cluster.rng;
        // A message that is never sent, by an error of the other process.
        if rng.below(80) == 0 {
            to_send.pop();
        }
        let fails_at = (rng.below(15) == 0).then(|| vec![rng.below(5) as u64, rng.below(5) as u64]);
        let hangs = rng.below(60) == 0;
        let outputs = if process == OWNER { 0 } else { n_outputs(session, step, process) };
        PartRun {
            session,
            step,
            process,
            key: None,
            routes,
            to_send,
            missing,
            missing_inputs: BTreeSet::new(),
            assigns: Vec::new(),
            outputs,
            waiting: Vec::new(),
            fails_at,
            hangs,
            done: 0,
            is_scheduled: false,
            is_stopped: false,
        }
    }

    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Returns whether there is something to do.
    fn can_advance(&self) -> bool {
        !self.to_send.is_empty() || (self.missing.is_empty() && self.missing_inputs.is_empty())
    }
}

impl ClusterModel {
    /// Does what a host asks for.
    pub(super) fn host_acts(&mut self, node: usize, output: HostOutput) {
        match output {
            HostOutput::Load { key, digest, .. } => {
                let outcome = match self.rng.below(12) {
                    0 => Err(WireError::new(WireErrorKind::Invalid, "an operation is unknown")),
                    // Another version of the program that cuts.
                    1 if key.0.is_multiple_of(3) => {
                        self.nodes[node].wrong_cuts.insert(key);
                        Ok(Digest([0xff; 32]))
                    }
                    _ => Ok(Digest(digest.0)),
                };
                let delay = self.rng.below(300);
                let outcome = outcome.map(|cut| LoadedAs { cut, bytes: 0 });
                self.later(node, delay, HostInput::Loaded { key, outcome });
            }
            HostOutput::StoreValue { key, value, tensor } => {
                let outcome = match self.rng.below(15) {
                    0 => Err(WireError::new(WireErrorKind::ResourceExhausted, "the device has no memory")),
                    _ => Ok(()),
                };
                if outcome.is_ok() {
                    self.nodes[node].values.insert((key.session, value), stamp_of(&tensor));
                }
                let delay = self.rng.below(30);
                self.later(node, delay, HostInput::Stored { key, outcome });
            }
            HostOutput::FetchValue { key, value } => {
                let outcome = match self.nodes[node].values.get(&(key.session, value)) {
                    Some(&stamp) => Ok(tensor_of(stamp)),
                    None => return self.wrong(format!("node{node} fetches a value that it does not have")),
                };
                let delay = self.rng.below(30);
                self.later(node, delay, HostInput::Fetched { key, outcome });
            }
            HostOutput::DropValues { session, values } => {
                for value in values {
                    if self.nodes[node].values.remove(&(session, value)).is_none() {
                        self.wrong(format!("node{node} drops a value that it does not have"));
                    }
                }
            }
            HostOutput::ShareValue { session, value, to } => {
                let Some(&stamp) = self.nodes[node].values.get(&(session, value)) else {
                    return self.wrong(format!("node{node} shares a value that it does not have"));
                };
                self.nodes[node].shared.insert(to, stamp);
            }
            HostOutput::LendValue { from, session, value } => {
                let Some(&stamp) = self.nodes[node].shared.get(&from) else {
                    return self.wrong(format!("node{node} lends a value that it does not have"));
                };
                self.nodes[node].values.insert((session, value), stamp);
            }
            HostOutput::DropShared { value } => {
                if self.nodes[node].shared.remove(&value).is_none() {
                    self.wrong(format!("node{node} drops a shared value that it does not have"));
                }
            }
            HostOutput::DropSession { session } => self.nodes[node].values.retain(|key, _| key.0 != session),
            HostOutput::Begin(begin) => self.begin_run(node, *begin),
            HostOutput::Deliver { key, arrival, held } => {
                let state = &mut self.nodes[node];
                let run = state.runs.iter_mut().find(|(_, run)| run.key == Some(key));
                let Some((&number, run)) = run.filter(|(_, run)| !run.is_stopped) else {
                    return self.wrong(format!("node{node} delivers to a step that does not run: {key:?}"));
                };
                let is_new = match &arrival {
                    HostArrival::Input { index, .. } => run.missing_inputs.remove(index),
                    HostArrival::Message(message) => receive(run, message),
                };
                run.waiting.push(held);
                if !is_new {
                    return self.wrong(format!("node{node} delivers twice, or wrongly: {arrival:?}"));
                }
                self.schedule(node, number);
            }
            HostOutput::Stop { key, .. } => {
                let run = self.nodes[node].runs.iter_mut().find(|(_, run)| run.key == Some(key));
                let Some((&number, run)) = run else {
                    return self.wrong(format!("node{node} stops a step that does not run: {key:?}"));
                };
                if std::mem::replace(&mut run.is_stopped, true) {
                    return self.wrong(format!("node{node} stops a step twice: {key:?}"));
                }
                self.stop_run(node, number);
            }
            HostOutput::Finish { key, keep } => self.finish_run(node, key, keep),
            HostOutput::Idle => self.seen.left += 1,
            HostOutput::Unload { .. } | HostOutput::Leaving { .. } | HostOutput::StatusReported { .. } => {}
            output => self.link_acts(node, output),
        }
    }

    fn later(&mut self, node: usize, delay: usize, input: HostInput) {
        let incarnation = self.nodes[node].incarnation;
        self.after(delay, ClusterEvent::Host { node, incarnation, input });
    }

    fn begin_run(&mut self, node: usize, begin: Begin) {
        let Begin { key, session, program, you, routes, start, .. } = begin;
        if self.nodes[node].wrong_cuts.contains(&program) {
            self.wrong(format!("node{node} runs a program that it has cut in another way"));
        }
        let mut run = PartRun::new(self, session, start.step, you, &start.participants, routes);
        run.key = Some(key);
        run.missing_inputs = start.inputs.iter().copied().collect();
        run.assigns = start.assigns.iter().map(|assign| assign.0).collect();
        for (_, value) in &start.vars {
            if !self.nodes[node].values.contains_key(&(key.session, *value)) {
                self.wrong(format!("node{node} begins a step with a value that it does not have"));
            }
        }
        self.add_run(node, run);
    }

    pub(super) fn add_run(&mut self, node: usize, run: PartRun) {
        self.next_run += 1;
        let number = self.next_run;
        self.nodes[node].runs.insert(number, run);
        self.schedule(node, number);
    }

    /// Lets a run advance after some time, if it can.
    pub(super) fn schedule(&mut self, node: usize, number: u64) {
        let delay = match self.rng.below(30) {
            0 => self.rng.below(900),
            _ => 1 + self.rng.below(20),
        };
        let state = &mut self.nodes[node];
        let Some(run) = state.runs.get_mut(&number) else { return };
        if !run.is_scheduled && !run.is_stopped && run.can_advance() {
            run.is_scheduled = true;
            let incarnation = state.incarnation;
            self.after(delay, ClusterEvent::Advance { node, incarnation, run: number });
        }
    }

    /// Ends a run that was told to stop, after some time.
    pub(super) fn stop_run(&mut self, node: usize, number: u64) {
        let delay = [self.rng.below(20), self.rng.below(2_000)][usize::from(self.rng.below(6) == 0)];
        let incarnation = self.nodes[node].incarnation;
        self.after(delay, ClusterEvent::Advance { node, incarnation, run: number });
    }

    pub(super) fn advance(&mut self, node: usize, number: u64) {
        let ends_well = self.rng.below(3) == 0;
        let Some(run) = self.nodes[node].runs.get_mut(&number) else { return };
        run.is_scheduled = false;
        run.waiting.clear();
        if run.is_stopped && ends_well {
            // It had ended already when it was told to stop.
            return self.end_run(node, number, Ok(()));
        }
        if run.is_stopped {
            let position = run.fails_at.clone().filter(|_| run.done > 2);
            let error = WireError::new(WireErrorKind::Cancelled, "stopped");
            return self.end_run(node, number, Err(StepFault { position, error }));
        }
        if run.hangs && run.to_send.len() <= 1 {
            // An operation that does not end. It ends when the step is stopped.
            run.is_scheduled = true;
            return;
        }
        run.done += 1;
        if let Some((to, k)) = run.to_send.pop() {
            let (session, step, from) = (run.session, run.step, run.process);
            let link = run.routes.iter().find(|route| route.0 == to).map(|route| route.1);
            let message =
                StepMessage { step, from, from_part: from.0, to_part: to.0, message: part(session, step, from, to, k) };
            let frame = match to {
                OWNER => WireFrame::ToCaller { session, frame: CallerFrame::Message(message) },
                _ => WireFrame::ToPeer { session, frame: PeerFrame::Message(message) },
            };
            match link {
                Some(link) => self.send(node, link, frame),
                None => self.wrong(format!("node{node} has no route to process {to}")),
            }
            return self.schedule(node, number);
        }
        if let Some(position) = run.fails_at.clone() {
            let error = WireError::new(WireErrorKind::AssertionFailed, "an assertion");
            return self.end_run(node, number, Err(StepFault { position: Some(position), error }));
        }
        if run.can_advance() {
            self.end_run(node, number, Ok(()));
        }
    }

    /// Ends a run: sends its outputs, and reports it.
    fn end_run(&mut self, node: usize, number: u64, outcome: Result<(), StepFault>) {
        let Some(run) = self.nodes[node].runs.get(&number) else { return };
        let (session, step, process) = (run.session, run.step, run.process);
        let Some(key) = run.key else { return self.end_owner_run(node, number, outcome) };
        let (outputs, assigns, to_owner) = (run.outputs, run.assigns.clone(), run.routes[0].1);
        let input = outcome.map(|()| {
            let print = CallerFrame::Print { step, number: 0, stream: PrintStream::Stdout, text: "done".to_owned() };
            self.send(node, to_owner, WireFrame::ToCaller { session, frame: print });
            for index in 0..outputs {
                let tensor = tensor_of(stamp(session, step, [3, process.0.into(), index.into()]));
                self.send(
                    node,
                    to_owner,
                    WireFrame::ToCaller { session, frame: CallerFrame::Output { step, index, tensor } },
                );
            }
            StepEnd { outputs, assigned: assigns.iter().map(|&variable| (variable, 8)).collect() }
        });
        // Whether the results are kept is decided by `Finish`.
        self.inform_host(node, HostInput::StepEnded { key, outcome: input });
        self.nodes[node].runs.remove(&number);
    }

    fn finish_run(&mut self, node: usize, key: StepKey, keep: Option<Vec<(u32, crate::peer::proto::frame::ValueId)>>) {
        let run = self.nodes[node].runs.values().find(|run| run.key == Some(key));
        let Some(run) = run else { return self.wrong(format!("node{node} finishes a step that does not run")) };
        let (session, step, process) = (run.session, run.step, run.process);
        let Some(keep) = keep else { return };
        for (variable, value) in keep {
            let content = stamp(session, step, [4, process.0.into(), variable.into()]);
            self.nodes[node].values.insert((key.session, value), content);
        }
        self.kept.entry((session, step)).or_default().push(process);
    }

    /// Tells a host, and an owner, how far their steps are.
    pub(super) fn report_progress(&mut self, node: usize) {
        let runs = self.nodes[node].runs.values();
        let progress: Vec<_> = runs.map(|run| (run.key, run.step, run.done, run.is_scheduled)).collect();
        let now: Time = self.now;
        for (key, step, done, is_busy) in progress {
            match (key, &mut self.nodes[node].user) {
                (Some(key), _) => self.inform_host(node, HostInput::Progressed { key, done, is_busy, last: None }),
                (None, Some(user)) => user.caller.progressed(now, step, done, is_busy),
                (None, None) => {}
            }
        }
    }
}

fn part(session: SessionId, step: StepNumber, from: ProcessNumber, to: ProcessNumber, k: u64) -> PartMessage {
    let stamp = stamp(session, step, [5 + k, from.0.into(), to.0.into()]);
    PartMessage::Value { edge: from.0, tag: vec![k], tensor: tensor_of(stamp) }
}

/// Notes a message. Returns whether it is expected, and new.
pub(super) fn receive(run: &mut PartRun, message: &StepMessage) -> bool {
    let PartMessage::Value { tag, .. } = &message.message else { return false };
    message.step == run.step
        && message.message == part(run.session, run.step, message.from, run.process, tag[0])
        && run.missing.remove(&(message.from, tag[0]))
}

#[test]
fn stamps_differ() {
    let stamps: BTreeSet<i64> = (0..1_000).map(|k| stamp(SessionId(1), StepNumber(2), [3, k, 4])).collect();
    assert_eq!((stamps.len(), ms(1_000)), (1_000, Time::from_secs(1)));
}
