//! Steps of several processes on one thread, whose schedule comes from bytes, with arrivals that a
//! process made up: the body of a fuzz target.
//!
//! Whatever arrives, each process ends its step with a result or with an error, and its program can
//! run another step. Reports that only the protocol can make (a participant has ended, failed or is
//! lost) are not made up.

use super::driver::{Driver, StepResults};
use super::executor::hostile::bytes_from;
use super::executor::{DeviceMessage, Tag};
use super::remote::{Arrival, Mailbox, Others, ProcessId, StepFailure, StepInbox};
use super::step_run::{Progressed, StepInputs, StepRun};
use super::{EdgeId, LoopId, SubgraphId};
use crate::device::{DeviceBuffer, HostSide};
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::ir::VarId;
use anabranch_dsl::{ErrorKind, HostTensor, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a process runs before it is the turn of another.
const TURN: Duration = Duration::from_millis(1);

/// The kind of entry of a schedule that is followed by an arrival that nobody should send.
const LIE: u8 = 7;

/// A program that several processes have loaded.
#[derive(Debug)]
pub(crate) struct HostileProgram {
    /// The program as each process sees it, the caller first.
    pub(crate) drivers: Vec<Arc<Driver>>,
    pub(crate) inputs: Vec<HostTensor>,
    /// The outputs that the interpreter computes.
    pub(crate) outputs: Vec<HostTensor>,
}

/// Arrivals on their way, by process.
#[derive(Debug, Default)]
struct InFlight(Mutex<VecDeque<(ProcessId, Arrival)>>);

impl InFlight {
    fn send(&self, to: ProcessId, arrival: Arrival) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back((to, arrival));
    }

    /// Returns one of the arrivals: the first if `choice` is 0, and otherwise any, as messages with
    /// bodies overtake each other.
    fn take(&self, choice: usize) -> Option<(ProcessId, Arrival)> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = choice.checked_rem(waiting.len())?;
        waiting.remove(at)
    }
}

/// The other processes of a step, as one of them sees them.
#[derive(Debug)]
struct ViewOfOthers {
    own: ProcessId,
    n_processes: u32,
    in_flight: Arc<InFlight>,
}

impl Others for ViewOfOthers {
    fn send(
        &self,
        to_process: ProcessId,
        from: SubgraphId,
        to: SubgraphId,
        message: DeviceMessage<HostTensor>,
    ) -> Result<()> {
        self.in_flight.send(to_process, Arrival::Message { process: self.own, from, to, message });
        Ok(())
    }

    fn awaited(&self) -> Vec<ProcessId> {
        let participants = if self.own == ProcessId::CALLER { 1..self.n_processes } else { 0..0 };
        participants.map(ProcessId).collect()
    }

    fn ended(&mut self) -> Result<Vec<(VarId, DeviceBuffer)>, StepFailure> {
        Ok(Vec::new())
    }

    fn failed(&mut self, failure: StepFailure) -> StepFailure {
        failure
    }
}

/// The part of a step that runs in one process.
struct ProcessOfStep {
    id: ProcessId,
    inbox: StepInbox,
    stop: Arc<StopFlag>,
    state: ProcessState,
}

enum ProcessState {
    Running(Box<StepRun>),
    Ended(Result<StepResults, StepFailure>),
}

impl ProcessOfStep {
    fn begin(id: ProcessId, program: &HostileProgram, in_flight: &Arc<InFlight>) -> ProcessOfStep {
        let driver = &program.drivers[id.0 as usize];
        let n_processes = program.drivers.len() as u32;
        let inbox = Mutex::<StepInbox>::default();
        let open = |_: &StepInputs, mailbox: &Arc<Mailbox>| -> Result<Box<dyn Others>> {
            inbox.lock().unwrap_or_else(PoisonError::into_inner).open(mailbox);
            Ok(Box::new(ViewOfOthers { own: id, n_processes, in_flight: in_flight.clone() }))
        };
        let given = |input: &HostTensor| (id == ProcessId::CALLER).then(|| input.clone());
        let inputs = StepInputs { inputs: program.inputs.iter().map(given).collect(), vars: Vec::new() };
        let stop = Arc::new(StopFlag::new());
        let host = HostSide::printing(Arc::new(|_, _| ()));
        let run = driver.begin(inputs, host, stop.clone(), Some(&open), false).expect("a step begins");
        let inbox = inbox.into_inner().unwrap_or_else(PoisonError::into_inner);
        ProcessOfStep { id, inbox, stop, state: ProcessState::Running(Box::new(run)) }
    }

    /// Runs for a turn.
    fn advance(self, in_flight: &InFlight) -> ProcessOfStep {
        let ProcessOfStep { id, inbox, stop, state } = self;
        let ProcessState::Running(run) = state else { return ProcessOfStep { id, inbox, stop, state } };
        let progressed = match run.advance(TURN) {
            Progressed::Working(run) => run.work(),
            progressed => progressed,
        };
        let state = match progressed {
            Progressed::Ended(outcome) => {
                if id != ProcessId::CALLER {
                    report(id, &outcome, in_flight);
                }
                ProcessState::Ended(outcome)
            }
            Progressed::Waiting(run) => ProcessState::Running(Box::new(run)),
            Progressed::Working(_) => panic!("a step works until it ends or waits"),
        };
        ProcessOfStep { id, inbox, stop, state }
    }
}

/// Reports the end of a participant to the caller.
fn report(process: ProcessId, outcome: &Result<StepResults, StepFailure>, in_flight: &InFlight) {
    let end = match outcome {
        Ok(results) => {
            for (index, output) in (0..).zip(&results.outputs) {
                if let Some(tensor) = output.clone() {
                    in_flight.send(ProcessId::CALLER, Arrival::Output { process, index, tensor });
                }
            }
            Arrival::Ended { process }
        }
        Err(failure) => Arrival::Failed { process, failure: failure.clone() },
    };
    in_flight.send(ProcessId::CALLER, end);
}

/// A step of all processes.
struct HostileStep {
    processes: Vec<ProcessOfStep>,
    in_flight: Arc<InFlight>,
}

impl HostileStep {
    fn begin(program: &HostileProgram) -> HostileStep {
        let in_flight = Arc::new(InFlight::default());
        let ids = (0..program.drivers.len() as u32).map(ProcessId);
        let processes: Vec<ProcessOfStep> = ids.map(|id| ProcessOfStep::begin(id, program, &in_flight)).collect();
        for process in &processes[1..] {
            for (index, tensor) in (0..).zip(program.inputs.iter().cloned()) {
                in_flight.send(process.id, Arrival::Input { index, tensor });
            }
        }
        HostileStep { processes, in_flight }
    }

    fn advance(&mut self, process: usize) {
        let process = process % self.processes.len();
        let last = self.processes.len() - 1;
        self.processes.swap(process, last);
        let advanced = self.processes.pop().expect("there are processes").advance(&self.in_flight);
        self.processes.push(advanced);
        self.processes.swap(process, last);
    }

    /// Lets something arrive. Returns false if nothing waits. The caller hears of the end of a
    /// participant after its outputs.
    fn arrive(&mut self, choice: usize) -> bool {
        let Some((to, arrival)) = self.in_flight.take(choice) else { return false };
        if choice > 0 && matches!(arrival, Arrival::Ended { .. }) {
            self.in_flight.send(to, arrival);
            return true;
        }
        self.processes[to.0 as usize].inbox.push(arrival, None);
        true
    }

    /// Runs the step to its end, and stops processes that wait for what never comes. Returns the
    /// outputs, unless the step failed.
    fn end(mut self) -> Option<Vec<HostTensor>> {
        loop {
            while self.arrive(0) {}
            (0..self.processes.len()).for_each(|process| self.advance(process));
            let is_quiet = self.in_flight.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
            if is_quiet && self.processes.iter().all(|process| process.inbox.len() == 0) {
                break;
            }
            // A process that has ended drops its arrivals.
            for process in &mut self.processes {
                if matches!(process.state, ProcessState::Ended(_)) {
                    process.inbox = StepInbox::default();
                }
            }
        }
        for process in &self.processes {
            process.stop.stop(ErrorKind::Cancelled);
        }
        (0..self.processes.len()).for_each(|process| self.advance(process));
        let mut outcomes = self.processes.into_iter().map(|process| match process.state {
            ProcessState::Ended(outcome) => outcome.ok(),
            ProcessState::Running(_) => panic!("{:?} does not stop", process.id),
        });
        let outputs = outcomes.next().expect("there is a caller")?.outputs;
        outcomes.all(|outcome| outcome.is_some()).then(|| outputs.into_iter().flatten().collect())
    }
}

/// Returns an arrival for a process that nobody should send. Most numbers in it exist.
fn lie(program: &HostileProgram, receiver: ProcessId, mut next: impl FnMut() -> usize) -> Arrival {
    let partition = &program.drivers[0].partition;
    let number = |byte: usize, n: usize| if byte == 255 { u32::MAX } else { (byte % (n + 1)) as u32 };
    let process = ProcessId(number(next(), program.drivers.len()));
    let tensor = |byte: usize| match byte % 8 {
        0 => HostTensor::scalar(byte as i64 / 8 - 4),
        1 => HostTensor::scalar(byte >= 128),
        2 => HostTensor::new([2], vec![byte as f32, f32::NAN]),
        3 => HostTensor::new([2], vec![byte as i32, -1]),
        4 => HostTensor::new([0], Vec::<i64>::new()),
        5 => HostTensor::new([1, 1], vec![byte as i64]),
        _ => program.inputs[byte / 8 % program.inputs.len()].clone(),
    };
    let (kind, index, value) = (next(), next(), tensor(next()));
    match kind % 4 {
        0 if receiver != ProcessId::CALLER => {
            Arrival::Input { index: number(index, program.inputs.len()), tensor: value }
        }
        0 => Arrival::Output { process, index: number(index, program.outputs.len()), tensor: value },
        _ => {
            let count = |byte: usize| if byte == 255 { u64::MAX } else { byte as u64 % 16 };
            let tag: Tag = (0..next() % 4).map(|_| count(next())).collect();
            let (from, to, message) = if kind % 4 < 3 {
                let edge = number(index, partition.edges.len());
                let ends = partition.edges.get(edge as usize).map(|edge| (edge.from, edge.to));
                let (from, to) = ends.unwrap_or((SubgraphId(0), SubgraphId(0)));
                (from, to, DeviceMessage::Value { edge: EdgeId(edge), tag, value })
            } else {
                let of = number(index, partition.loops.len());
                let leader = partition.loops.get(of as usize).map_or(SubgraphId(0), |of| of.leader);
                let from = SubgraphId(number(next(), partition.parts.len()));
                (from, leader, DeviceMessage::Credit { of: LoopId(of), tag, finished: count(next()) })
            };
            // The ends are mostly right.
            let to = if kind >= 240 { SubgraphId(number(next(), partition.parts.len())) } else { to };
            Arrival::Message { process, from, to, message }
        }
    }
}

/// Runs the schedule that arbitrary bytes describe. Returns whether the step ended without an
/// error.
///
/// # Panics
/// Panics if a process breaks a promise.
pub(crate) fn fuzz_step(programs: &[HostileProgram], mut input: &[u8]) -> bool {
    let mut take = || {
        let (&byte, rest) = input.split_first()?;
        input = rest;
        Some(byte)
    };
    let program = &programs[usize::from(take().unwrap_or_default()) % programs.len()];
    let (mut step, mut has_lies) = (HostileStep::begin(program), false);
    while let Some(what) = take() {
        let choice = usize::from(what / 8);
        match what % 8 {
            LIE => {
                has_lies = true;
                let to = choice % program.drivers.len();
                let arrival = lie(program, ProcessId(to as u32), || take().unwrap_or_default().into());
                step.processes[to].inbox.push(arrival, None);
            }
            0..4 => step.advance(choice),
            _ => drop(step.arrive(choice)),
        }
    }
    let outputs = step.end();
    assert!(has_lies || outputs.as_ref() == Some(&program.outputs), "{outputs:?}, not {:?}", program.outputs);
    let again = HostileStep::begin(program).end();
    assert!(again.as_ref() == Some(&program.outputs), "{again:?}, not {:?}", program.outputs);
    outputs.is_some()
}

/// Returns inputs of [`fuzz_step`], most of them without arrivals that a process made up.
pub(crate) fn step_schedules() -> Vec<Vec<u8>> {
    let mut next = bytes_from(1);
    let honest = |byte: u8| if byte % 8 == LIE { byte - 1 } else { byte };
    let schedule =
        |i: usize| (0..20 + 2 * i).map(|_| if i.is_multiple_of(4) { next() } else { honest(next()) }).collect();
    (0..100).map(schedule).collect()
}
