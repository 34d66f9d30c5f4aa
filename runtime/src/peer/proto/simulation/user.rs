//! The users of sessions: each owner connects, opens, registers, stores, begins steps, and closes.

use super::cluster::{ClusterEvent, ClusterModel, Dialer, ms};
use super::counters::Increment;
use super::work::{PartRun, n_outputs, receive, stamp, stamp_of, tensor_of};
use crate::peer::proto::Time;
use crate::peer::proto::caller::{BeginError, Caller, CallerArrival, CallerOutput, NewValue, ProgramOffer};
use crate::peer::proto::caller::{ProgramState, RequestResult, StepPlan};
use crate::peer::proto::frame::{Digest, OWNER, ProcessNumber, ProgramNumber, RequestNumber, SessionId};
use crate::peer::proto::frame::{StepFault, StepNumber, ValueId, WireErrorKind};
use anabranch_dsl::memory::HeldBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The user of a session.
#[derive(Debug)]
pub(super) struct User {
    pub(super) caller: Caller,
    /// The nodes of the peers. The first is process 1.
    pub(super) peers: Vec<usize>,
    /// The number of things to do before closing.
    pub(super) actions: usize,
    /// The values of variables, with their contents.
    vars: BTreeMap<(ProcessNumber, u32), (ValueId, i64)>,
    stores: BTreeMap<RequestNumber, (ProcessNumber, u32, ValueId, i64)>,
    fetches: BTreeMap<RequestNumber, i64>,
    steps: BTreeMap<StepNumber, UserStep>,
    pub(super) increments: Vec<Increment>,
    is_opening: bool,
    /// `Some` while the session opens and nothing goes wrong: whether some peer did not know yet
    /// that its link to another was lost.
    pub(super) calm_opening: Option<bool>,
    pub(super) is_closed: bool,
    pub(super) is_dead: bool,
    /// When the user last saw nothing in flight, for the check before closing.
    quiet_since: Option<Time>,
}

#[derive(Debug)]
struct UserStep {
    participants: Vec<ProcessNumber>,
    outputs: BTreeSet<(i64, u32)>,
    ended: BTreeSet<ProcessNumber>,
    must_end_by: Time,
    local_ended: bool,
}

/// The time within which any step ends: busy steps without progress end after 4 s at peers and 5 s
/// at owners, and there are few operations to make progress.
const BOUND: usize = 40_000;

impl User {
    pub(super) fn new(caller: Caller, peers: Vec<usize>, actions: usize) -> User {
        User {
            caller,
            peers,
            actions,
            vars: BTreeMap::new(),
            stores: BTreeMap::new(),
            fetches: BTreeMap::new(),
            steps: BTreeMap::new(),
            increments: Vec::new(),
            is_opening: false,
            calm_opening: None,
            is_closed: false,
            is_dead: false,
            quiet_since: None,
        }
    }

    pub(super) fn is_running(&self, session: SessionId, step: StepNumber) -> bool {
        self.caller.session() == session && self.steps.contains_key(&step)
    }
}

impl ClusterModel {
    /// Calls a method of a session, and does what it asks for.
    pub(super) fn call<R>(&mut self, node: usize, f: impl FnOnce(&mut Caller, Time, &mut Vec<CallerOutput>) -> R) -> R {
        let mut out = Vec::new();
        let now = self.now;
        let user = self.nodes[node].user.as_mut().expect("the node has a user");
        let result = f(&mut user.caller, now, &mut out);
        out.into_iter().for_each(|output| self.caller_acts(node, output));
        self.plan_tick(node);
        result
    }

    pub(super) fn user(&mut self, node: usize) -> &mut User {
        self.nodes[node].user.as_mut().expect("the node has a user")
    }

    /// Lets the user of a node do the next thing.
    pub(super) fn user_acts(&mut self, node: usize) {
        let user = self.user(node);
        if user.is_closed || user.is_dead {
            return;
        }
        self.decide_late(node);
        let user = self.user(node);
        if user.actions == 0 {
            self.close_when_quiet(node);
        } else {
            user.actions -= 1;
            match self.rng.below(20) {
                0..3 => self.connect_and_open(node),
                3..6 => self.register(node),
                6..9 => self.store(node),
                9 => self.fetch(node),
                10 => self.abort(node),
                11 if self.rng.below(5) == 0 => {
                    let program = self.any_program();
                    self.call(node, |caller, _, out| caller.unregister(program, out));
                }
                12 if self.rng.below(40) == 0 => self.close_session(node),
                12..15 => self.increment(node),
                _ => self.begin(node),
            }
        }
        let delay = 1 + [self.rng.below(40), self.rng.below(800)][usize::from(self.rng.below(4) == 0)];
        let incarnation = self.nodes[node].incarnation;
        self.after(delay, ClusterEvent::User { node, incarnation });
    }

    fn any_program(&mut self) -> ProgramNumber {
        ProgramNumber(self.rng.below(2) as u32)
    }

    fn any_peer(&mut self, node: usize) -> ProcessNumber {
        let n = self.user(node).peers.len();
        ProcessNumber(1 + self.rng.below(n) as u32)
    }

    fn connect_and_open(&mut self, node: usize) {
        let user = self.user(node);
        let peers: Vec<(ProcessNumber, usize)> = (1..).map(ProcessNumber).zip(user.peers.iter().copied()).collect();
        let closed: Vec<usize> =
            peers.iter().filter(|(process, _)| user.caller.link(*process).is_none()).map(|&(_, to)| to).collect();
        let incarnation = self.nodes[node].incarnation;
        for to in closed {
            let delay = 1 + self.rng.below(60);
            self.after(delay, ClusterEvent::Dial { from: node, incarnation, to, by: Dialer::Owner });
        }
        let user = self.user(node);
        if !user.is_opening || self.rng.below(4) == 0 {
            let calm = self.is_calm(node).then(|| self.has_stale_link(node));
            self.user(node).is_opening = true;
            self.user(node).calm_opening = calm;
            self.call(node, |caller, now, out| caller.open(now, out));
        }
    }

    /// Returns whether nothing goes wrong any more for a session: its peers run, and its links to
    /// them work.
    fn is_calm(&self, node: usize) -> bool {
        let user = self.nodes[node].user.as_ref().expect("the node has a user");
        let works = |(process, peer): (u32, &usize)| {
            let link = user.caller.link_of(ProcessNumber(process));
            !self.nodes[*peer].leaves && link.is_some_and(|link| self.is_up(node, link))
        };
        self.calm_from <= self.now && (1..).zip(&user.peers).all(works)
    }

    /// Returns whether a link between peers of a session is lost, and one of them does not know.
    fn has_stale_link(&self, node: usize) -> bool {
        let peers = &self.nodes[node].user.as_ref().expect("the node has a user").peers;
        let is_known =
            |side: &super::cluster::Side| side.is_lost || self.nodes[side.node].incarnation != side.incarnation;
        self.connections.iter().any(|connection| {
            let sides = &connection.sides;
            connection.is_cut && sides.iter().all(|side| peers.contains(&side.node)) && !sides.iter().all(is_known)
        })
    }

    fn register(&mut self, node: usize) {
        let program = self.any_program();
        let n = self.user(node).peers.len() as u32;
        let bytes: Arc<[u8]> = vec![program.0 as u8; 100 + 9_000 * program.0 as usize].into();
        for process in (1..=n).map(ProcessNumber) {
            let digest = Digest([program.0 as u8; 32]);
            let offer = ProgramOffer { bytes: &bytes, digest, cut: digest };
            let _ = self.call(node, |caller, now, out| caller.register(process, program, offer, now, out));
        }
    }

    fn store(&mut self, node: usize) {
        let process = self.any_peer(node);
        let variable = self.rng.below(3) as u32;
        let content = self.rng.next() as i64;
        let wait = 20 + self.rng.below(2_000);
        let stored =
            self.call(node, |caller, now, out| caller.store(process, tensor_of(content), (now, ms(wait)), out));
        if let Ok((request, value)) = stored {
            self.user(node).stores.insert(request, (process, variable, value, content));
        }
    }

    fn fetch(&mut self, node: usize) {
        let n = self.user(node).vars.len();
        if n == 0 {
            return;
        }
        let nth = self.rng.below(n);
        let Some((&(process, _), &(value, content))) = self.user(node).vars.iter().nth(nth) else { return };
        let wait = 20 + self.rng.below(2_000);
        let fetched = self.call(node, |caller, now, out| caller.fetch(process, value, (now, ms(wait)), out));
        if let Ok(request) = fetched {
            self.user(node).fetches.insert(request, content);
        }
    }

    fn abort(&mut self, node: usize) {
        let Some(&step) = self.user(node).steps.keys().next() else { return };
        let runs = &mut self.nodes[node].runs;
        let run = runs.iter_mut().find(|(_, run)| run.step == step && run.key.is_none());
        if let Some((&number, _)) = run {
            self.seen.aborts += 1;
            self.nodes[node].runs.remove(&number);
            let fault = StepFault::new(WireErrorKind::Cancelled, "cancelled by the user");
            self.end_local(node, step, Err(fault));
        }
    }

    fn begin(&mut self, node: usize) {
        let program = self.any_program();
        let n = self.user(node).peers.len() as u32;
        let caller = &self.user(node).caller;
        let is_ready = |process: &ProcessNumber| matches!(caller.program(*process, program), Some(ProgramState::Ready));
        let ready: Vec<ProcessNumber> = (1..=n).map(ProcessNumber).filter(is_ready).collect();
        let participants: Vec<ProcessNumber> = ready.into_iter().filter(|_| self.rng.below(5) > 0).collect();
        if participants.is_empty() {
            return;
        }
        let mut plan = StepPlan { program, participants, ..StepPlan::default() };
        for &process in &plan.participants {
            for variable in 0..3 {
                if let Some(&(value, _)) = self.user(node).vars.get(&(process, variable)) {
                    plan.reads.push((process, variable, value));
                }
                if self.rng.below(3) == 0 {
                    plan.assigns.push((process, variable));
                }
            }
            for index in 0..self.rng.below(3) as u32 {
                plan.inputs.push((process, index, tensor_of(self.rng.next() as i64)));
            }
        }
        let deadline = (self.rng.below(3) == 0).then(|| 20 + self.rng.below(1_500));
        plan.deadline = deadline.map(ms);
        let participants = plan.participants.clone();
        match self.call(node, |caller, now, out| caller.begin(now, plan, out)) {
            Ok(step) => {
                let must_end_by = self.now + ms(deadline.unwrap_or(BOUND) + 250);
                let user = self.user(node);
                let session = user.caller.session();
                let routes = participants.iter().map(|&p| (p, user.caller.link(p).expect("the peer is open")));
                let routes = routes.collect();
                let ended = BTreeSet::new();
                let state = UserStep {
                    participants: participants.clone(),
                    outputs: BTreeSet::new(),
                    ended,
                    must_end_by,
                    local_ended: false,
                };
                user.steps.insert(step, state);
                let all: Vec<ProcessNumber> = [OWNER].into_iter().chain(participants).collect();
                let run = PartRun::new(self, session, step, OWNER, &all, routes);
                self.add_run(node, run);
                self.seen.begun += 1;
            }
            Err(BeginError::LostVariables(lost)) => {
                self.seen.lost_variables += 1;
                let user = self.user(node);
                user.vars.retain(|variable, _| !lost.contains(variable));
            }
            Err(BeginError::Unavailable(_)) => self.seen.not_begun += 1,
        }
    }

    pub(super) fn end_owner_run(&mut self, node: usize, number: u64, outcome: Result<(), StepFault>) {
        let run = self.nodes[node].runs.remove(&number).expect("the run exists");
        self.end_local(node, run.step, outcome);
    }

    fn end_local(&mut self, node: usize, step: StepNumber, outcome: Result<(), StepFault>) {
        if let Some(state) = self.user(node).steps.get_mut(&step) {
            state.local_ended = outcome.is_ok();
        }
        self.call(node, |caller, now, out| caller.end_local(now, step, outcome, out));
    }

    /// Does what a session asks for.
    pub(super) fn caller_acts(&mut self, node: usize, output: CallerOutput) {
        match output {
            CallerOutput::Send { link, frame } => self.send(node, link, frame),
            CallerOutput::CloseLink { link, reason } => self.close(node, link, &reason),
            CallerOutput::Opened { failed } => {
                let user = self.user(node);
                user.is_opening = false;
                if let Some(was_stale) = user.calm_opening.take() {
                    self.seen.stale_links += usize::from(was_stale);
                    if let Some((process, error)) = failed.first() {
                        self.wrong(format!("the session does not open at process {process}: {}", error.message));
                    }
                }
                self.seen.opened += usize::from(failed.is_empty());
                self.seen.open_failures += failed.len();
            }
            CallerOutput::ProgramChanged { process, program } => {
                let state = self.user(node).caller.program(process, program).cloned();
                if let Some(ProgramState::Refused { error }) = state {
                    self.seen.refused += 1;
                    self.seen.wrong_cuts += usize::from(error.message.contains("divides the program"));
                    self.seen.slow_loads += usize::from(error.message.contains("did not load within"));
                }
            }
            CallerOutput::RequestDone { request, outcome } if self.increment_answered(node, request, &outcome) => {}
            CallerOutput::RequestDone { request, outcome } => {
                if let Err(error) = &outcome
                    && error.kind == WireErrorKind::Invalid
                {
                    self.wrong(format!("a request fails: {}", error.message));
                }
                let user = self.user(node);
                if let Some((process, variable, value, content)) = user.stores.remove(&request) {
                    if outcome.is_ok() {
                        self.commit(node, process, variable, value, content);
                    }
                } else if let Some(content) = user.fetches.remove(&request)
                    && let Ok(result) = outcome
                    && !matches!(&result, RequestResult::Value(tensor) if stamp_of(tensor) == content)
                {
                    self.wrong("a fetch yields another value".to_owned());
                } else {
                    self.seen.requests += 1;
                }
            }
            CallerOutput::Arrived { step, arrival, held } => self.step_arrival(node, step, arrival, held),
            CallerOutput::StepDone { step, outcome } => self.step_done(node, step, outcome),
            CallerOutput::PeerLost { .. } => self.seen.lost_peers += 1,
        }
    }

    /// Replaces the value of a variable, and releases the old one.
    fn commit(&mut self, node: usize, process: ProcessNumber, variable: u32, value: ValueId, content: i64) {
        let old = self.user(node).vars.insert((process, variable), (value, content));
        if let Some((old, _)) = old {
            self.call(node, |caller, _, out| caller.release(process, vec![old], out));
        }
    }

    fn step_arrival(&mut self, node: usize, step: StepNumber, arrival: CallerArrival, held: Option<HeldBytes>) {
        let session = self.user(node).caller.session();
        let Some(state) = self.user(node).steps.get_mut(&step) else {
            return self.wrong(format!("{arrival:?} arrives for a step that is done"));
        };
        let is_new = match &arrival {
            CallerArrival::Output { index, tensor, .. } => state.outputs.insert((stamp_of(tensor), *index)),
            CallerArrival::Ended { process } => state.ended.insert(*process),
            _ => true,
        };
        if !is_new {
            return self.wrong(format!("{arrival:?} arrives twice"));
        }
        let runs = &mut self.nodes[node].runs;
        let run = runs.iter_mut().find(|(_, run)| run.session == session && run.step == step && run.key.is_none());
        let Some((&number, run)) = run else { return };
        run.waiting.extend(held);
        match arrival {
            CallerArrival::Message(message) => match receive(run, &message) {
                true => self.schedule(node, number),
                false => self.wrong(format!("the owner receives twice, or wrongly: {message:?}")),
            },
            CallerArrival::Failed { .. } => self.stop_owner_run(node, number),
            _ => {}
        }
    }

    fn stop_owner_run(&mut self, node: usize, number: u64) {
        self.nodes[node].runs.get_mut(&number).expect("the run exists").stop();
        self.stop_run(node, number);
    }

    fn step_done(&mut self, node: usize, step: StepNumber, outcome: Result<Vec<NewValue>, StepFault>) {
        let now = self.now;
        let Some(state) = self.user(node).steps.remove(&step) else {
            return self.wrong(format!("step {step} is done twice"));
        };
        if now > state.must_end_by {
            self.wrong(format!("step {step} ends too late: {outcome:?}"));
        }
        let session = self.user(node).caller.session();
        match outcome {
            Ok(assigned) => {
                self.seen.committed += 1;
                let kept = self.kept.get(&(session, step)).cloned().unwrap_or_default();
                let all_kept = state.participants.iter().all(|process| kept.contains(process));
                let outputs: BTreeSet<(i64, u32)> = state
                    .participants
                    .iter()
                    .flat_map(|&process| {
                        (0..n_outputs(session, step, process))
                            .map(move |index| (stamp(session, step, [3, process.0.into(), index.into()]), index))
                    })
                    .collect();
                if !all_kept || !state.local_ended || state.ended.len() < state.participants.len() {
                    self.wrong(format!("step {step} is committed, but was ended by {kept:?} only"));
                }
                if outputs != state.outputs {
                    self.wrong(format!("step {step} is committed without all outputs"));
                }
                for new in assigned {
                    let content = stamp(session, step, [4, new.process.0.into(), new.variable.into()]);
                    self.commit(node, new.process, new.variable, new.value, content);
                }
            }
            Err(fault) => {
                self.seen.failed += 1;
                self.seen.positions += usize::from(fault.position.is_some());
                self.seen.slow_steps += usize::from(fault.error.message.contains("took longer than"));
                self.seen.deadlines += usize::from(fault.error.message.contains("the deadline of the call"));
                self.seen.stuck += usize::from(fault.error.message.contains("made progress for"));
                let lost = ["is dead", "is unreachable", "has left"];
                self.seen.lost_steps += usize::from(lost.iter().any(|lost| fault.error.message.contains(lost)));
                self.seen.exhausted += usize::from(fault.error.message.contains("exceed the"));
                self.seen.overflows += usize::from(fault.error.message.contains("have arrived for steps"));
                let runs = &mut self.nodes[node].runs;
                runs.retain(|_, run| run.step != step || run.session != session || run.key.is_some());
                if fault.error.message.contains("expects") || fault.error.kind == WireErrorKind::Internal {
                    self.wrong(format!("step {step} fails: {}", fault.error.message));
                }
            }
        }
    }

    /// Closes the session when nothing has been in flight for a while, after a check that the peers
    /// hold the values that this process knows, and no others.
    fn close_when_quiet(&mut self, node: usize) {
        let now = self.now;
        let user = self.user(node);
        if user.caller.in_flight() > 0 || user.is_opening || !user.increments.is_empty() {
            user.quiet_since = None;
            return;
        }
        let since = *user.quiet_since.get_or_insert(now);
        if now < since + ms(6_000) {
            return;
        }
        let (id, peers) = (user.caller.session(), user.peers.clone());
        for (process, peer) in (1..).map(ProcessNumber).zip(peers) {
            let Some(link) = self.user(node).caller.link(process) else { continue };
            let known = self.user(node).caller.values(process);
            let held = self.nodes[peer].host.values(id);
            if self.is_up(node, link) && held.as_ref() != Some(&known) {
                self.wrong(format!("node{peer} holds {held:?}, not {known:?}"));
            }
            if self.is_up(node, link) && self.nodes[peer].host.doubts_of(id) > 0 {
                self.wrong(format!("node{peer} was not told of a decision of node{node}"));
            }
            if self.is_up(node, link) {
                self.check_decided(node, peer);
            }
        }
        self.close_session(node);
    }

    fn close_session(&mut self, node: usize) {
        self.call(node, |caller, _, out| caller.close(out));
        self.user(node).is_closed = true;
        if !self.user(node).steps.is_empty() {
            self.wrong("a closed session has steps".to_owned());
        }
        self.nodes[node].runs.retain(|_, run| run.key.is_some());
    }

    /// Returns the ids of sessions for messages.
    pub(super) fn session_of(&self, node: usize) -> Option<SessionId> {
        self.nodes[node].user.as_ref().map(|user| user.caller.session())
    }
}
