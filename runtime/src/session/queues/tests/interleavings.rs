//! A model check of queues: all interleavings of the operations of a few steps, and of their
//! commits, failures and cancellations.
//!
//! A [`World`] has queues and steps, and a step a short program. The search visits each world that
//! can be reached once. An action is as much as a thread does under one lock: it begins an
//! operation, polls a wait, marks a queue as one in which a waiting step has room, or commits to
//! one queue. So the commit of a step to several queues is interleaved with others, too.
//!
//! After each action:
//!
//! - The content of a queue is what was committed to it and not removed by a commit, in the order
//!   of commits, or of priorities and commits. So nothing is lost, there twice, or out of order.
//! - No element is with two steps, and elements leave a queue in its order.
//! - A step has room beyond the capacity only if all others that have room wait, and nothing can
//!   leave the queue.
//!
//! In a world in which no step can go on, each has a reason to wait that no rule of queues can
//! remove: it needs elements that nobody adds, or room that nobody makes by removing elements.

use super::{queue, value};
use crate::session::queues::content::{ElementRequest, QueueState, QueuedElement, Waiter};
use anabranch_dsl::HostTensor;
use anabranch_dsl::queue::QueueOrder;
use std::collections::{BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::task::Poll;

/// An operation of a step on the queue of an index, or of the host.
#[derive(Clone, Copy, Debug)]
enum SimOp {
    Add(usize, usize),
    Take(usize, usize),
    TakeUpTo(usize, usize),
    /// Closes the queue when the step is committed.
    Close(usize),
    HostClose(usize),
    CloseAndCancel(usize),
}

use SimOp::{Add, Close, CloseAndCancel, HostClose, Take, TakeUpTo};

/// The progress of a step.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
enum SimPhase {
    Runs,
    /// It waits, and has marked its room in the queues before the index, at last in all.
    Waits {
        marked: usize,
    },
    /// Its wait has ended, and it has removed the marks of the queues before the index.
    Resumes {
        cleared: usize,
        succeeds: bool,
    },
    /// It commits to, or returns from, the queues from the index on.
    Ends {
        at: usize,
        commits: bool,
    },
    Ended,
}

#[derive(Clone, Debug)]
struct SimStep {
    program: &'static [SimOp],
    /// The index of the next operation, or of the one that waits.
    at: usize,
    phase: SimPhase,
    waiter: Option<Waiter>,
    added: Vec<Vec<i64>>,
    removed: Vec<Vec<QueuedElement>>,
    closes: Vec<bool>,
    /// The room of the step that is marked as that of one which waits.
    marked: Vec<usize>,
}

#[derive(Clone)]
struct SimQueue {
    order: QueueOrder,
    capacity: usize,
    state: QueueState,
    /// The elements that were committed, in this order, and those that were removed.
    committed: Vec<i64>,
    removed: BTreeSet<i64>,
}

#[derive(Clone)]
struct World {
    queues: Vec<SimQueue>,
    steps: Vec<SimStep>,
}

/// An action of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SimAction {
    Proceed,
    /// Fails between two operations.
    Fail,
    /// Ends the wait.
    Cancel,
}

/// A case of the check: queues with their numbers of elements at first, and programs of steps.
#[derive(Clone, Debug)]
struct SimSetup {
    queues: Vec<(QueueOrder, usize, usize)>,
    programs: Vec<&'static [SimOp]>,
}

/// Counts of visited worlds, to check that the search covers enough.
#[derive(Debug, Default)]
struct Visited {
    worlds: usize,
    /// Worlds in which all steps have ended, and those in which steps wait for good.
    ends: usize,
    stuck: usize,
    returned: usize,
    beyond_capacity: usize,
}

fn request(op: SimOp) -> Option<(usize, ElementRequest)> {
    match op {
        Take(queue, n) => Some((queue, ElementRequest { n, up_to: false })),
        TakeUpTo(queue, n) => Some((queue, ElementRequest { n, up_to: true })),
        _ => None,
    }
}

impl SimQueue {
    /// Returns the elements that are expected in the content, in its order.
    fn expected(&self) -> Vec<i64> {
        let mut expected: Vec<i64> =
            self.committed.iter().copied().filter(|value| !self.removed.contains(value)).collect();
        if self.order == QueueOrder::Priority {
            expected.sort();
        }
        expected
    }

    fn content(&self) -> Vec<i64> {
        self.state.content().elements.iter().map(|element| element[0].data::<i64>()[0]).collect()
    }

    /// Fails unless the content is the expected one.
    fn check(&self) {
        let (mut content, mut expected) = (self.content(), self.expected());
        if let QueueOrder::Shuffle { .. } = self.order {
            content.sort();
            expected.sort();
        }
        assert_eq!(content, expected, "the content of a queue by {:?}", self.order);
    }

    /// Returns the place of an element in the order of the queue.
    fn place(&self, value: i64) -> i64 {
        match self.order {
            QueueOrder::Priority => value,
            _ => self.committed.iter().position(|&other| other == value).expect("it was committed") as i64,
        }
    }

    /// Fails unless a queue with an order has given up its first elements.
    fn check_order(&self, taken: &[QueuedElement]) {
        if let QueueOrder::Shuffle { .. } = self.order {
            return;
        }
        let places: Vec<i64> = taken.iter().map(|element| self.place(value(element))).collect();
        assert!(places.is_sorted(), "{places:?}");
        if let (Some(last), Some(first)) = (places.last(), self.state.first_value()) {
            assert!(*last < self.place(first), "an element overtakes {first}: {places:?}");
        }
    }
}

impl World {
    fn new(setup: &SimSetup) -> World {
        let n = setup.queues.len();
        let queues = setup.queues.iter().enumerate().map(|(q, &(order, capacity, n_elements))| {
            let mut state = QueueState::new(&queue(order, capacity));
            let committed: Vec<i64> = (0..n_elements as i64).map(|i| 100 * q as i64 + i).collect();
            let waiter = state.producer();
            assert_eq!(state.reserve(waiter, n_elements, 0), Poll::Ready(Ok(())));
            state.add(committed.iter().map(|&value| vec![HostTensor::scalar(value)]).collect());
            SimQueue { order, capacity, state, committed, removed: BTreeSet::new() }
        });
        let steps = setup.programs.iter().map(|&program| SimStep {
            program,
            at: 0,
            phase: SimPhase::Runs,
            waiter: None,
            added: vec![Vec::new(); n],
            removed: vec![Vec::new(); n],
            closes: vec![false; n],
            marked: vec![0; n],
        });
        World { queues: queues.collect(), steps: steps.collect() }
    }

    /// Returns a number for all on which later actions depend.
    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for queue in &self.queues {
            queue.state.fingerprint().hash(&mut hasher);
            queue.committed.hash(&mut hasher);
            queue.removed.hash(&mut hasher);
        }
        for step in &self.steps {
            let numbers = |all: &Vec<QueuedElement>| all.iter().map(|element| element.number).collect::<Vec<_>>();
            step.removed.iter().for_each(|all| numbers(all).hash(&mut hasher));
            (step.at, step.phase, &step.added, &step.closes, &step.marked).hash(&mut hasher);
            if let (Some(q), Some(waiter)) = (step.waits_for(), step.waiter) {
                self.queues[q].state.place_in_line(waiter).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// Returns the world after an action, or `None` if it does nothing or is impossible.
    fn after(&self, i: usize, action: SimAction, visited: &mut Visited) -> Option<World> {
        let phase = self.steps[i].phase;
        let mut world = self.clone();
        match (action, phase) {
            (_, SimPhase::Ended) => return None,
            (SimAction::Fail, SimPhase::Runs) => {
                world.end(i, 0, false, visited);
            }
            (SimAction::Cancel, SimPhase::Waits { marked: usize::MAX }) => {
                let q = self.steps[i].waits_for().expect("it waits for a queue");
                let waiter = self.steps[i].waiter.expect("it waits");
                world.queues[q].state.leave(waiter);
                world.unwait(i, phase, false);
            }
            (SimAction::Fail | SimAction::Cancel, _) => return None,
            (SimAction::Proceed, SimPhase::Runs) => world.begin(i, visited),
            (SimAction::Proceed, SimPhase::Waits { marked }) => {
                // A thread marks its room before it polls again.
                let step = &mut world.steps[i];
                if let Some(q) = (marked.min(self.queues.len())..self.queues.len()).find(|&q| !step.added[q].is_empty())
                {
                    step.marked[q] = step.added[q].len();
                    world.queues[q].state.stalls(step.marked[q]);
                    step.phase = SimPhase::Waits { marked: q + 1 };
                } else {
                    step.phase = SimPhase::Waits { marked: usize::MAX };
                    world.poll(i, visited);
                    if world.steps[i].phase == phase && world.key() == self.key() {
                        return None;
                    }
                }
            }
            (SimAction::Proceed, SimPhase::Resumes { cleared, succeeds }) => {
                world.resume(i, cleared, succeeds);
            }
            (SimAction::Proceed, SimPhase::Ends { at, commits }) => {
                world.end(i, at, commits, visited);
            }
        }
        world.normalize(i);
        Some(world)
    }

    /// Skips phases of a step that change nothing but the step: they could come at any time.
    fn normalize(&mut self, i: usize) {
        let step = &mut self.steps[i];
        let is_used = |q: usize| !step.added[q].is_empty() || !step.removed[q].is_empty() || step.closes[q];
        step.phase = match step.phase {
            SimPhase::Resumes { succeeds, .. } if step.marked.iter().all(|&n| n == 0) => {
                step.at += usize::from(succeeds);
                if succeeds { SimPhase::Runs } else { SimPhase::Ends { at: 0, commits: false } }
            }
            SimPhase::Waits { marked } if step.added.iter().skip(marked).all(Vec::is_empty) => {
                SimPhase::Waits { marked: usize::MAX }
            }
            other => other,
        };
        if let SimPhase::Ends { at, .. } = step.phase
            && !(at..step.closes.len()).any(is_used)
        {
            step.phase = SimPhase::Ended;
        }
    }

    /// Begins the next operation of a step, or its commit.
    fn begin(&mut self, i: usize, visited: &mut Visited) {
        let step = &mut self.steps[i];
        let Some(&op) = step.program.get(step.at) else {
            self.end(i, 0, true, visited);
            return;
        };
        match op {
            Add(q, _) => step.waiter = Some(self.queues[q].state.producer()),
            Take(q, _) | TakeUpTo(q, _) => step.waiter = Some(self.queues[q].state.consumer()),
            Close(q) => {
                step.closes[q] = true;
                step.at += 1;
                return;
            }
            HostClose(q) | CloseAndCancel(q) => {
                self.queues[q].state.close(None, matches!(op, CloseAndCancel(_)));
                step.at += 1;
                return;
            }
        }
        self.poll(i, visited);
    }

    /// Polls the operation of a step.
    fn poll(&mut self, i: usize, visited: &mut Visited) {
        let op = self.steps[i].program[self.steps[i].at];
        let waiter = self.steps[i].waiter.expect("it is registered");
        let before = self.steps[i].phase;
        let succeeds = match (op, request(op)) {
            (_, Some((q, request))) => {
                let reserved = self.steps[i].added[q].len();
                match self.queues[q].state.take(waiter, request, reserved) {
                    Poll::Pending => None,
                    Poll::Ready(Ok(taken)) => {
                        let n = taken.len();
                        assert!(n == request.n || request.up_to && (1..=request.n).contains(&n));
                        self.queues[q].check_order(&taken);
                        let elsewhere = |step: &SimStep| step.removed[q].iter().any(|one| taken.contains(one));
                        assert!(!self.steps.iter().any(elsewhere), "an element is with two steps: {taken:?}");
                        self.steps[i].removed[q].extend(taken);
                        Some(true)
                    }
                    Poll::Ready(Err(_)) => Some(false),
                }
            }
            (Add(q, n), None) => {
                let reserved = self.steps[i].added[q].len();
                let had = self.queues[q].state.len() + self.n_reserved(q);
                match self.queues[q].state.reserve(waiter, n, reserved) {
                    Poll::Pending => None,
                    Poll::Ready(Ok(())) => {
                        if had + n > self.queues[q].capacity {
                            self.check_beyond_capacity(q);
                            visited.beyond_capacity += 1;
                        }
                        // Each operation of each step adds values of its own, some of them smaller
                        // than those before, for priorities.
                        let base = 1_000 * (1 + i as i64) - 10 * self.steps[i].at as i64;
                        let values = (0..n as i64).map(|k| 10_000 * q as i64 + base + k);
                        self.steps[i].added[q].extend(values);
                        Some(true)
                    }
                    Poll::Ready(Err(_)) => Some(false),
                }
            }
            _ => unreachable!("{op:?} does not wait"),
        };
        match (succeeds, before) {
            (Some(succeeds), phase) => self.unwait(i, phase, succeeds),
            (None, SimPhase::Runs) => self.steps[i].phase = SimPhase::Waits { marked: 0 },
            (None, _) => {}
        }
    }

    fn n_reserved(&self, q: usize) -> usize {
        self.steps.iter().map(|step| step.added[q].len()).sum()
    }

    /// Fails unless an addition beyond the capacity was the only way to go on.
    fn check_beyond_capacity(&self, q: usize) {
        // Elements that returned may exceed the capacity, but they do not make room.
        let runs =
            |step: &&SimStep| !step.added[q].is_empty() && matches!(step.phase, SimPhase::Runs | SimPhase::Ends { .. });
        assert_eq!(self.steps.iter().find(runs).map(|step| step.phase), None, "a step that runs has room");
        let len = self.queues[q].state.len();
        assert!(len == 0 || self.waits_for_more(q), "{len} elements can leave the queue");
    }

    /// Returns whether the first consumer of a queue waits for more elements than it has.
    fn waits_for_more(&self, q: usize) -> bool {
        let queue = &self.queues[q];
        let first = self.steps.iter().filter(|step| step.waits_for() == Some(q)).find_map(|step| {
            let (_, request) = request(step.program[step.at])?;
            (queue.state.place_in_line(step.waiter?) == 0).then_some(request)
        });
        first.is_some_and(|request| match queue.order {
            QueueOrder::Fifo | QueueOrder::Padding => queue.state.len() == 0,
            QueueOrder::Priority => queue.state.len() < request.n,
            QueueOrder::Shuffle { min_left, .. } => {
                queue.state.len() <= if queue.state.is_closed() { 0 } else { min_left }
            }
        })
    }

    /// Ends an operation of a step. If it has waited, its marks are removed next.
    fn unwait(&mut self, i: usize, phase: SimPhase, succeeds: bool) {
        let step = &mut self.steps[i];
        step.waiter = None;
        match phase {
            SimPhase::Waits { .. } => step.phase = SimPhase::Resumes { cleared: 0, succeeds },
            _ if succeeds => step.at += 1,
            _ => step.phase = SimPhase::Ends { at: 0, commits: false },
        }
    }

    /// Removes a mark of a step whose wait has ended.
    fn resume(&mut self, i: usize, cleared: usize, succeeds: bool) {
        let step = &mut self.steps[i];
        let q = (cleared..self.queues.len()).find(|&q| step.marked[q] > 0).expect("a mark");
        self.queues[q].state.goes_on(std::mem::take(&mut step.marked[q]));
        step.phase = SimPhase::Resumes { cleared: q + 1, succeeds };
    }

    /// Ends a step in one queue.
    fn end(&mut self, i: usize, at: usize, commits: bool, visited: &mut Visited) {
        let step = &mut self.steps[i];
        let is_used = |q: &usize| !step.added[*q].is_empty() || !step.removed[*q].is_empty() || step.closes[*q];
        let Some(q) = (at..self.queues.len()).find(is_used) else {
            step.phase = SimPhase::Ended;
            return;
        };
        let (added, removed) = (std::mem::take(&mut step.added[q]), std::mem::take(&mut step.removed[q]));
        let closes = std::mem::take(&mut step.closes[q]);
        step.phase = SimPhase::Ends { at: q + 1, commits };
        let queue = &mut self.queues[q];
        if commits {
            queue.committed.extend(&added);
            for element in &removed {
                assert!(queue.removed.insert(value(element)), "{element:?} is removed twice");
            }
            queue.state.add(added.into_iter().map(|value| vec![HostTensor::scalar(value)]).collect());
            queue.state.settle(&removed);
            if closes {
                queue.state.close(None, false);
            }
        } else {
            visited.returned += removed.len();
            queue.state.free_room(added.len());
            queue.state.give_back(removed);
        }
    }

    /// Fails unless each step of a world in which none can go on has a reason to wait.
    fn check_stuck(&self) {
        for step in &self.steps {
            let Some(q) = step.waits_for() else {
                assert_eq!(step.phase, SimPhase::Ended);
                continue;
            };
            let queue = &self.queues[q];
            let (len, op) = (queue.state.len(), step.program[step.at]);
            if request(op).is_some() {
                assert!(self.waits_for_more(q), "{op:?} waits, but the first consumer can be served");
                assert!(step.added[q].is_empty(), "{op:?} waits for what its step has added");
                let may_come = self.n_reserved(q) > 0 || queue.state.n_producers() > 0;
                assert!(!queue.state.is_closed() || may_come, "{op:?} waits for a closed queue");
            } else {
                assert!(len > 0, "{op:?} waits for room in an empty queue");
                assert_eq!(queue.state.n_consumers(), 0, "{op:?} waits for room, and others for elements");
            }
        }
    }
}

impl SimStep {
    /// Returns the queue for which the step waits.
    fn waits_for(&self) -> Option<usize> {
        let SimPhase::Waits { .. } = self.phase else { return None };
        match self.program[self.at] {
            Add(q, _) | Take(q, _) | TakeUpTo(q, _) => Some(q),
            op => panic!("{op:?} does not wait"),
        }
    }
}

/// Visits all worlds of a setup.
fn visit(setup: &SimSetup, visited: &mut Visited) {
    let mut seen = HashSet::new();
    // The worlds that were reached, and the action that led to each, from which one.
    let mut trail: Vec<(usize, usize, SimAction)> = Vec::new();
    let mut todo = vec![(World::new(setup), usize::MAX)];
    while let Some((world, from)) = todo.pop() {
        let context = SimContext { setup, trail: &trail, from };
        world.queues.iter().for_each(SimQueue::check);
        if !seen.insert(world.key()) {
            continue;
        }
        let mut goes_on = false;
        let mut next = Vec::new();
        for i in 0..world.steps.len() {
            for action in [SimAction::Proceed, SimAction::Fail, SimAction::Cancel] {
                let last = [(from, i, action)];
                let _last = SimContext { setup, trail: &last, from: 0 };
                if let Some(after) = world.after(i, action, visited) {
                    goes_on |= action == SimAction::Proceed;
                    next.push((after, (from, i, action)));
                }
            }
        }
        if !goes_on {
            world.check_stuck();
            match world.steps.iter().all(|step| step.phase == SimPhase::Ended) {
                true => visited.ends += 1,
                false => visited.stuck += 1,
            }
        }
        drop(context);
        for (after, action) in next {
            trail.push(action);
            todo.push((after, trail.len() - 1));
        }
    }
    visited.worlds += seen.len();
}

/// Prints the setup and the actions that led to a world when the check fails.
struct SimContext<'a> {
    setup: &'a SimSetup,
    trail: &'a [(usize, usize, SimAction)],
    from: usize,
}

impl Drop for SimContext<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let mut actions = Vec::new();
        let mut at = self.from;
        while let Some(&(from, step, action)) = self.trail.get(at) {
            actions.push((step, action));
            at = from;
        }
        actions.reverse();
        eprintln!("{:?}, after the actions {actions:?}", self.setup);
    }
}

/// The programs of which pairs, and in long runs triples, run at once.
const PROGRAMS: &[&[SimOp]] = &[
    &[Add(0, 1)],
    &[Add(0, 2)],
    &[Take(0, 1)],
    &[Take(0, 2)],
    &[Take(0, 3)],
    &[TakeUpTo(0, 2)],
    &[Add(0, 1), Add(0, 1)],
    &[Take(0, 1), Take(0, 1)],
    &[Take(0, 1), Add(0, 1)],
    &[Add(0, 1), Take(0, 1)],
    &[Take(0, 1), Add(1, 1)],
    &[Take(1, 1), Add(0, 1)],
    &[Add(0, 1), Add(1, 1)],
    &[Add(1, 1), Add(0, 1)],
    &[Add(0, 1), Close(0)],
    &[HostClose(0)],
    &[CloseAndCancel(0)],
];

const SHUFFLED: QueueOrder = QueueOrder::Shuffle { min_left: 1, seed: 5 };

/// The two queues of pairs and triples of programs.
const QUEUES: [[(QueueOrder, usize, usize); 2]; 6] = [
    [(QueueOrder::Fifo, 1, 0), (QueueOrder::Fifo, 1, 0)],
    [(QueueOrder::Fifo, 2, 2), (QueueOrder::Fifo, 1, 1)],
    [(QueueOrder::Priority, 2, 1), (QueueOrder::Fifo, 1, 1)],
    [(QueueOrder::Priority, 2, 2), (QueueOrder::Padding, 1, 0)],
    [(SHUFFLED, 2, 1), (SHUFFLED, 2, 2)],
    [(SHUFFLED, 2, 2), (QueueOrder::Fifo, 1, 0)],
];

/// Larger cases, of up to four steps and three queues.
fn larger() -> Vec<SimSetup> {
    let fifo = |capacity, n| (QueueOrder::Fifo, capacity, n);
    let (priority, shuffled) = ((QueueOrder::Priority, 2, 1), (SHUFFLED, 2, 1));
    let setup = |queues: &[(QueueOrder, usize, usize)], programs: &[&'static [SimOp]]| SimSetup {
        queues: queues.to_vec(),
        programs: programs.to_vec(),
    };
    let twice: &[SimOp] = &[Add(0, 1), Add(0, 1)];
    vec![
        // A pipeline of two stages.
        setup(
            &[fifo(1, 1), fifo(1, 0), fifo(1, 0)],
            &[&[Add(0, 1)], &[Take(0, 1), Add(1, 1)], &[Take(1, 1), Add(2, 1)], &[Take(2, 1)]],
        ),
        // Steps that add twice, and one that removes all.
        setup(&[fifo(2, 0)], &[twice, twice, &[Take(0, 4)]]),
        setup(&[priority], &[twice, &[Add(0, 2)], &[Take(0, 3)]]),
        setup(&[shuffled], &[twice, &[Add(0, 2)], &[Take(0, 3)]]),
        // Room in two queues, in both orders, and consumers of both.
        setup(
            &[fifo(1, 0), fifo(1, 0)],
            &[&[Add(0, 1), Add(1, 1)], &[Add(1, 1), Add(0, 1)], &[Take(0, 2)], &[Take(1, 2)]],
        ),
        // Four who want what one of them can have.
        setup(&[fifo(2, 2)], &[&[Take(0, 1)], &[Take(0, 2)], &[TakeUpTo(0, 2)], &[HostClose(0)]]),
        // The end of the data, while producers wait.
        setup(&[priority], &[&[Add(0, 2)], &[Add(0, 1), Close(0)], &[TakeUpTo(0, 3)]]),
        setup(&[fifo(1, 1)], &[&[Add(0, 1)], &[Add(0, 1)], &[CloseAndCancel(0)], &[TakeUpTo(0, 3)]]),
        // A ring.
        setup(
            &[fifo(1, 1), fifo(1, 1), fifo(1, 1)],
            &[&[Take(0, 1), Add(1, 1)], &[Take(1, 1), Add(2, 1)], &[Take(2, 1), Add(0, 1)]],
        ),
    ]
}

#[test]
fn no_interleaving_loses_or_repeats_an_element_or_waits_in_vain() {
    let is_long = std::env::var_os("ANABRANCH_SLOW").is_some();
    let mut visited = Visited::default();
    for queues in QUEUES {
        for (i, &a) in PROGRAMS.iter().enumerate() {
            for (j, &b) in PROGRAMS.iter().enumerate().skip(i) {
                visit(&SimSetup { queues: queues.to_vec(), programs: vec![a, b] }, &mut visited);
                for &c in PROGRAMS.iter().skip(j).take(if is_long { PROGRAMS.len() } else { 0 }) {
                    visit(&SimSetup { queues: queues.to_vec(), programs: vec![a, b, c] }, &mut visited);
                }
            }
        }
    }
    larger().iter().for_each(|setup| visit(setup, &mut visited));
    let Visited { worlds, ends, stuck, returned, beyond_capacity } = visited;
    for count in [worlds / 100, ends / 10, stuck / 10, returned / 10, beyond_capacity] {
        assert!(count > 10, "{visited:?}");
    }
}
