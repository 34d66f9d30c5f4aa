//! What is wrong with a peer, in words.
//!
//! | the peer is | when |
//! |---|---|
//! | dead | nothing listens at its address, or its process closed the connection or was started again |
//! | unreachable | no packet arrives from it |
//! | stuck | it is connected, but is silent, or its part of a step makes no progress |
//! | slow | it makes progress, but the call's deadline has passed |
//!
//! An error names the peer with its key and address, the operation that ran there last, if it is
//! known, or that it was to run, and what waited for it.

use super::events::LinkLoss;
use super::peer::CallerPeer;
use super::step::{CallerStep, Participant};
use super::{Caller, ProcessNumber, StepFault, StepNumber, Time, WireError, WireErrorKind};
use super::{prefix, seconds, unavailable};

/// The end of the trust in a peer, or of the way to it.
#[derive(Clone, Debug)]
pub(super) enum PeerLoss {
    Link(LinkLoss),
    /// Another process of the peer has introduced itself.
    Restarted,
    /// It has sent nothing for so long.
    Silent(Time),
    NotOpening,
    Violation(String),
    /// It said that it leaves, and why.
    Left(String),
}

impl PeerLoss {
    /// Returns a predicate of the peer. `heard` is how long ago it last sent something.
    pub(super) fn predicate(&self, heard: Time) -> String {
        match self {
            PeerLoss::Link(LinkLoss::Refused) => "is dead: its process does not listen any more".to_owned(),
            PeerLoss::Link(LinkLoss::Closed(reason)) => {
                format!("is dead: its process closed the connection: {}", prefix(reason, 1_000))
            }
            PeerLoss::Link(LinkLoss::TimedOut) => {
                format!("is unreachable: it was last heard of {} ago, and no packet comes from it", seconds(heard))
            }
            PeerLoss::Link(LinkLoss::Local(reason)) => {
                format!("was disconnected by this process: {}", prefix(reason, 1_000))
            }
            PeerLoss::Restarted => "is dead: its process was started again".to_owned(),
            PeerLoss::Silent(silent) => format!("is stuck: it is connected, but sent nothing for {}", seconds(*silent)),
            PeerLoss::NotOpening => "is stuck: it is connected, but did not open the session in time".to_owned(),
            PeerLoss::Violation(what) => format!("broke the protocol: {}", prefix(what, 1_000)),
            PeerLoss::Left(reason) => format!("has left: {}", prefix(reason, 1_000)),
        }
    }
}

impl CallerStep {
    /// Says in an error which operation ran last at a peer, and what waits for it.
    pub(super) fn explain(&self, now: Time, peer: &CallerPeer, of: &Participant, error: WireError) -> WireError {
        let name = format!("`{}`", prefix(&peer.address.name, 200));
        let error = match (of.progress.last, of.runs_last) {
            (Some(node), _) => error.at(Some(node), format!("the last operation known to run at {name}")),
            (None, Some(node)) => error.at(Some(node), format!("the operation of {name} that was waited for")),
            (None, None) => error,
        };
        let awaited = match of.ended {
            None => "the end of its part".to_owned(),
            Some(n) if (of.outputs.len() as u32) < n => format!("{} of its {n} outputs", n - of.outputs.len() as u32),
            Some(_) => "the other processes".to_owned(),
        };
        let (since, before) = (seconds(now.saturating_sub(self.begun)), seconds(now.saturating_sub(of.progress_at)));
        error.at(
            None,
            format!(
                "the call of `{}`, begun {since} ago, waited for {awaited}, whose last progress was {before} ago",
                prefix(&self.name, 200)
            ),
        )
    }
}

impl Caller {
    /// Says in an error about a peer what waits for it in a step.
    pub(super) fn explain(&self, now: Time, step: StepNumber, process: ProcessNumber, error: WireError) -> WireError {
        let Some((state, peer)) = self.steps.get(&step).zip(self.peer(process)) else { return error };
        match state.participants.iter().find(|participant| participant.process == process) {
            Some(participant) => state.explain(now, peer, participant, error),
            None => error,
        }
    }

    /// Names the peer in the failure of a participant that has lost the link to it. The participant
    /// has said so before, and knows only the key and the address of the other.
    pub(super) fn with_lost_link(
        &self,
        now: Time,
        process: ProcessNumber,
        step: StepNumber,
        failure: StepFault,
    ) -> StepFault {
        let is_loss = failure.position.is_none() && failure.error.kind == WireErrorKind::Unavailable;
        let Some((state, peer)) = self.steps.get(&step).zip(self.peer(process)).filter(|_| is_loss) else {
            return failure;
        };
        let Some(&other) = peer.unlinked.iter().find(|&&other| state.involves(other)) else { return failure };
        let message = format!("{} is unreachable from {}: {}", self.name(other), peer.name(), failure.error.message);
        StepFault { position: None, error: self.explain(now, step, other, unavailable(message)) }
    }

    /// Returns the error of a step that makes no progress anywhere.
    pub(super) fn why_stuck(&self, now: Time, step: StepNumber) -> WireError {
        let state = &self.steps[&step];
        let without = seconds(now.saturating_sub(state.last_progress()));
        let waiting = || state.participants.iter().filter(|participant| !participant.is_done);
        // A participant whose outputs are missing is the likeliest cause.
        let first = waiting().find(|participant| participant.ended.is_some()).or_else(|| waiting().next());
        let Some(first) = first else {
            return unavailable(format!(
                "`{}` made no progress in this process for {without}",
                prefix(&state.name, 200)
            ));
        };
        let others = waiting().filter(|participant| participant.process != first.process);
        [first].into_iter().chain(others).take(3).fold(
            unavailable(format!(
                "{} is stuck: it answers, but no process of the step made progress for {without}",
                self.name(first.process)
            )),
            |error, participant| match self.peer(participant.process) {
                Some(peer) => state.explain(now, peer, participant, error),
                None => error,
            },
        )
    }

    /// Returns whom a step waits for when its deadline has passed, as the labels of an error.
    pub(crate) fn why_slow(&self, now: Time, step: StepNumber) -> Vec<(Option<u32>, String)> {
        let Some(state) = self.steps.get(&step) else { return Vec::new() };
        let mut error = unavailable("");
        for participant in state.participants.iter().filter(|participant| !participant.is_done).take(3) {
            let Some(peer) = self.peer(participant.process) else { continue };
            let heard = seconds(now.saturating_sub(peer.last_heard));
            let text = format!("{} is slow: it was last heard of {heard} ago, and its part has not ended", peer.name());
            error = error.at(None, text);
            error = state.explain(now, peer, participant, error);
        }
        error.labels
    }

    /// Returns the error of a peer whose link was lost before it had introduced itself.
    pub(crate) fn lost_early(&self, process: ProcessNumber, loss: LinkLoss) -> WireError {
        unavailable(format!("{} {}", self.name(process), PeerLoss::Link(loss).predicate(Time::ZERO)))
    }

    /// Returns the error of something that was asked of a peer and cannot be had, if so.
    pub(crate) fn why_unavailable(&self, process: ProcessNumber) -> Option<WireError> {
        self.peer(process)?.why_unavailable()
    }
}
