//! Executors whose schedule comes from bytes, with messages of a process that lies: the body of a
//! fuzz target.
//!
//! Whatever a process sends, the gate rejects it, or the executor takes it without a panic and
//! holds no more than the windows of its loops allow. After the step the executor can begin
//! another one. A value has no content but its truth as a predicate.

use super::{Action, DeviceMessage, Executor, Tag, TaskId};
use crate::flow::{EdgeId, LoopId, Partition, PartitionOptions, Subgraph, SubgraphId, partition};
use crate::place::place_at_random_where;
use anabranch_dsl::Graph;
use std::sync::{Arc, OnceLock};

/// Graphs with branches and loops in each other.
const GRAPHS: [&str; 3] = [
    "graph @nest(%x: i64[], %n: i64[]) -> (i64[]) {
        %zero = constant 0 : i64[]
        %i, %y = while (%k = %zero, %s = %x | %m = %n) : (i64[], i64[]) cond {
            %go = lt %k, %m : bool[]
            yield %go
        } body {
            %odd = lt %s, %m : bool[]
            %t = cond %odd, %s, %m : (i64[]) then (%a, %b) {
                %nil = constant 0 : i64[]
                %j, %u = while (%l = %nil, %v = %a | %w = %b) : (i64[], i64[]) cond {
                    %on = lt %l, %w : bool[]
                    yield %on
                } body {
                    %p = mul %v, %w : i64[]
                    %one = constant 1 : i64[]
                    %q = add %l, %one : i64[]
                    %r = add %p, %q : i64[]
                    yield %q, %r
                }
                yield %u
            } else (%a, %b) {
                %d = sub %a, %b : i64[]
                yield %d
            }
            %one = constant 1 : i64[]
            %next = add %k, %one : i64[]
            %sum = add %t, %next : i64[]
            yield %next, %sum
        }
        %z = add %y, %i : i64[]
        return %z
    }",
    "graph @branch(%x: i64[], %n: i64[]) -> (i64[], i64[]) {
        %p = lt %x, %n : bool[]
        %a, %b = cond %p, %x, %n : (i64[], i64[]) then (%c, %d) {
            %e = mul %c, %d : i64[]
            %q = lt %e, %d : bool[]
            %f = cond %q, %e, %c : (i64[]) then (%g, %h) {
                %i = add %g, %h : i64[]
                yield %i
            } else (%g, %h) {
                %j = sub %g, %h : i64[]
                yield %j
            }
            yield %e, %f
        } else (%c, %d) {
            %k = add %c, %d : i64[]
            yield %k, %c
        }
        %z = add %a, %b : i64[]
        return %z, %a
    }",
    "graph @line(%x: i64[], %n: i64[]) -> (i64[]) {
        %zero = constant 0 : i64[]
        %i, %y = while (%k = %zero, %s = %x | %m = %n) : (i64[], i64[]) cond {
            %go = lt %k, %m : bool[]
            yield %go
        } body {
            %one = constant 1 : i64[]
            %next = add %k, %one : i64[]
            %t = mul %s, %m : i64[]
            %u = sub %t, %next : i64[]
            yield %next, %u
        }
        return %y
    }",
];

/// The graphs, cut in several ways.
fn partitions() -> &'static [Partition] {
    static PARTITIONS: OnceLock<Vec<Partition>> = OnceLock::new();
    PARTITIONS.get_or_init(|| {
        let cut = |(i, text): (usize, &&str)| {
            let graph = Graph::parse(text, "gate.ir").expect("the text is a graph");
            (0..8).map(move |seed| {
                let placement = place_at_random_where(&graph, 2 + i % 2, seed, |_, _| true);
                let options = PartitionOptions {
                    lower_everything: seed % 2 == 0,
                    lower_control: true,
                    parallel_iterations: [1, 2, 3, 5][seed as usize % 4],
                };
                partition(&graph, &placement, options)
            })
        };
        GRAPHS.iter().enumerate().flat_map(cut).filter(|cut| cut.parts.len() > 1).collect()
    })
}

/// A step whose executors get true and false messages.
struct Schedule {
    parts: Vec<Arc<Subgraph>>,
    executors: Vec<Executor<bool>>,
    /// Messages of correct executors that have not arrived.
    messages: Vec<(SubgraphId, SubgraphId, DeviceMessage<bool>)>,
    /// What devices work on.
    work: Vec<(usize, TaskId, DeviceWork)>,
    /// Whether a lie was admitted. Then correct messages may be rejected.
    is_deceived: bool,
}

/// The work of a device for a node.
enum DeviceWork {
    Load,
    Read(bool),
    /// A kernel with this number of results.
    Kernel(usize),
}

impl Schedule {
    fn new(cut: &Partition) -> Schedule {
        let executors = cut.parts.iter().cloned().map(Executor::new).collect();
        let mut schedule = Schedule {
            parts: cut.parts.clone(),
            executors,
            messages: Vec::new(),
            work: Vec::new(),
            is_deceived: false,
        };
        schedule.executors.iter_mut().for_each(Executor::start);
        schedule
    }

    /// Takes the next action of an executor.
    fn act(&mut self, part: usize) {
        let Some(action) = self.executors[part].poll() else { return };
        match action {
            Action::Load { task, .. } => self.work.push((part, task, DeviceWork::Load)),
            Action::Read { task, predicate } => self.work.push((part, task, DeviceWork::Read(predicate))),
            Action::Run { task, kernel, .. } => {
                let n = self.parts[part].kernels[kernel.index()].graph.outputs().len();
                self.work.push((part, task, DeviceWork::Kernel(n)));
            }
            Action::Send { to, message } => self.messages.push((SubgraphId(part as u32), to, message)),
            Action::Give { .. } => {}
        }
    }

    /// Completes some work. `truth` is what it computes.
    fn complete(&mut self, choice: usize, truth: bool) {
        if self.work.is_empty() {
            return;
        }
        let (part, task, work) = self.work.swap_remove(choice % self.work.len());
        let executor = &mut self.executors[part];
        match work {
            DeviceWork::Load => executor.loaded(task, truth),
            DeviceWork::Read(predicate) => executor.on_predicate(task, predicate),
            DeviceWork::Kernel(n) => executor.on_kernel_done(task, vec![truth; n]),
        }
    }

    /// Lets a message of a correct executor arrive.
    fn arrive(&mut self, choice: usize) {
        if self.messages.is_empty() {
            return;
        }
        let (from, to, message) = self.messages.swap_remove(choice % self.messages.len());
        match self.executors[to.index()].admit(from, &message) {
            Ok(()) => self.executors[to.index()].on_message(from, message),
            Err(wrong) => assert!(self.is_deceived, "{message:?} from {from:?} to {to:?} {wrong}"),
        }
    }

    /// Sends a message that nobody should send. Returns whether it was admitted.
    fn lie(&mut self, from: SubgraphId, to: usize, message: DeviceMessage<bool>) -> bool {
        let is_admitted = self.executors[to].admit(from, &message).is_ok();
        if is_admitted {
            self.is_deceived = true;
            self.executors[to].on_message(from, message);
        }
        is_admitted
    }

    /// Checks that the executors are within their bounds.
    fn check(&self) {
        for (part, executor) in self.parts.iter().zip(&self.executors) {
            let window = part.frames.iter().map(|frame| frame.window as usize).max().unwrap_or(1);
            assert!(
                executor.largest_ring() <= window,
                "{} iterations in a window of {window}",
                executor.largest_ring()
            );
            assert!(executor.largest_ring() == 0 || executor.state_bytes() > 0, "the states are not counted");
            let bound = most_held(part);
            assert!(executor.n_held() <= bound, "{} things are held, of at most {bound}", executor.n_held());
            assert!(!executor.is_finished() || executor.n_held() == 0, "{} things are held", executor.n_held());
        }
    }
}

/// Returns a bound of what an executor holds: in each frame, the values and nodes of the iterations
/// that run, and the values for those that may begin.
fn most_held(part: &Subgraph) -> usize {
    let iterations = |frame: &crate::flow::Frame| {
        let mut n = 1;
        let mut around = Some(frame);
        while let Some(frame) = around {
            n *= 2 * frame.window as usize + 1;
            around = frame.parent.map(|parent| &part.frames[parent.index()]);
        }
        n
    };
    part.frames.iter().map(|frame| (frame.n_slots as usize + 3 * frame.nodes.len() + 1) * iterations(frame)).sum()
}

/// Runs the schedule that arbitrary bytes describe. Returns whether a lie was admitted.
///
/// # Panics
/// Panics if an executor breaks a promise.
pub(crate) fn fuzz_gate(mut input: &[u8]) -> bool {
    let mut take = || {
        let (&byte, rest) = input.split_first()?;
        input = rest;
        Some(usize::from(byte))
    };
    let cuts = partitions();
    let cut = &cuts[take().unwrap_or_default() % cuts.len()];
    let (n, mut schedule) = (cut.parts.len(), Schedule::new(cut));
    let mut is_admitted = false;
    while let Some(what) = take() {
        let choice = what / 8;
        match what % 8 {
            0..=2 => schedule.act(choice % n),
            3 | 4 => schedule.complete(choice, what >= 128),
            5 => schedule.arrive(choice),
            kind => {
                // A number of a loop or an edge, and the iterations. Some do not exist.
                let (of, around) = (take().unwrap_or_default(), take().unwrap_or_default());
                let number = |byte: usize| if byte == 255 { u64::MAX } else { byte as u64 };
                let tag: Tag = (0..around % 5).map(|_| number(take().unwrap_or_default())).collect();
                let message = match kind {
                    6 => {
                        let edge = EdgeId((of % (cut.edges.len() + 1)) as u32);
                        DeviceMessage::Value { edge, tag, value: around >= 128 }
                    }
                    _ => {
                        let of = LoopId((of % (cut.loops.len() + 1)) as u32);
                        DeviceMessage::Credit { of, tag, finished: number(around / 5) }
                    }
                };
                let from = SubgraphId((choice / n % (n + 1)) as u32);
                is_admitted |= schedule.lie(from, choice % n, message);
            }
        }
        schedule.check();
    }
    // The driver discards a step that is not finished.
    for executor in &mut schedule.executors {
        if !executor.is_finished() {
            executor.abandon();
        }
        executor.start();
    }
    is_admitted
}

/// Returns a generator of bytes.
pub(crate) fn bytes_from(mut state: u32) -> impl FnMut() -> u8 {
    move || {
        // Numerical Recipes' linear congruential generator; its upper bits are random enough.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    }
}

/// Returns inputs of [`fuzz_gate`]. Any bytes are a schedule; these are long enough to get far.
pub(crate) fn schedules() -> Vec<Vec<u8>> {
    let mut next = bytes_from(1);
    (0..200).map(|i| (0..20 + 2 * i).map(|_| next()).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a step to its end with correct messages. All predicates are false.
    fn run_to_end(schedule: &mut Schedule) {
        while !schedule.executors.iter().all(Executor::is_finished) {
            (0..schedule.executors.len()).for_each(|part| schedule.act(part));
            schedule.complete(0, false);
            schedule.arrive(0);
            schedule.check();
        }
    }

    #[test]
    fn executors_reject_or_take_arbitrary_messages() {
        let inputs = schedules();
        let admitted = inputs.iter().filter(|input| fuzz_gate(input)).count();
        assert!(admitted > 20 && admitted < inputs.len(), "{admitted} schedules with admitted lies");
    }

    #[test]
    fn values_for_iterations_that_never_begin_are_dropped_with_the_iterations_around_them() {
        let (mut cases, mut early) = (0, 0);
        for cut in partitions() {
            for (edge, data) in cut.edges.iter().enumerate() {
                let to = &cut.parts[data.to.index()];
                let node = to.receivers[&EdgeId(edge as u32)];
                let frame = to.blocks[to.nodes[node.index()].block.index()].frame;
                if frame.index() == 0 {
                    continue;
                }
                let mut depth = 0;
                let mut around = Some(frame);
                while let Some(inner) = around {
                    around = to.frames[inner.index()].parent;
                    depth += usize::from(around.is_some());
                }
                let mut schedule = Schedule::new(cut);
                // The loops have no second iteration.
                let tag: Tag = (0..depth).map(|k| u64::from(k + 1 == depth)).collect();
                let lie = DeviceMessage::Value { edge: EdgeId(edge as u32), tag, value: true };
                assert!(schedule.lie(data.from, data.to.index(), lie), "{edge} of {}", cut.parts.len());
                early += schedule.executors[data.to.index()].n_held();
                run_to_end(&mut schedule);
                schedule.executors.iter_mut().for_each(Executor::start);
                cases += 1;
            }
        }
        assert!(cases > 20 && early > cases, "{cases} cases with {early} values are too few");
    }
}
