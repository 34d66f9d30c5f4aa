//! Simulation of partitions and executors under many schedules.
//!
//! Each seed determines a random graph with nested branches and loops, prints and assertions, its
//! devices and its windows. For each of [`STEPS`] schedules the simulation picks the next event at
//! random: an executor acts, an input is loaded, a predicate is read, a message arrives (messages
//! of one sender may overtake each other), a kernel runs, or its completion is reported. At the end
//!
//! - the outputs and the printed text are the interpreter's, or an assertion failed as it did in
//!   the interpreter. With prints it must be the same assertion; without prints any assertion,
//!   because assertions alone are unordered;
//! - no value was sent twice, no message is in flight, and no executor holds anything;
//! - no subgraph has more iteration states than its windows allow.
//!
//! All messages of correct executors pass the gate. In some steps a hostile process sends others,
//! which the gate rejects, or which end as errors or wrong values, never as a panic.
//!
//! If an assertion, a failing kernel or the caller ends the step early, then nothing is held
//! either, the error is that of the kernel, and the executors run the next step normally. To repeat
//! a failing seed, run `ANABRANCH_SCHEDULE=n cargo test -p anabranch-runtime --lib schedules`.
//! `ANABRANCH_SLOW=1` runs 120,000 schedules.

use super::executor::{Action, DeviceMessage, Executor, TaskId};
use super::{EdgeId, KernelGraph, KernelId, LoopId, OutputSource, Partition, PartitionOptions};
use super::{Sink, Source, SubgraphId, partition};
use crate::place::{ordered_effects, place_at_random};
use anabranch_dsl::format::Stream;
use anabranch_dsl::interp::{self, RunContext, StopFlag};
use anabranch_dsl::ir::{Op, Region, Value, verify};
use anabranch_dsl::ops::prim;
use anabranch_dsl::{Graph, HostTensor, corpus};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;

/// Number of schedules per graph.
const STEPS: usize = 20;

/// Random number generator (SplitMix64).
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// An integer or boolean value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TestNumber(i64);

/// GraphWriter of random graphs in text form.
struct GraphWriter<'a> {
    rng: &'a mut Rng,
    text: String,
    n: usize,
    budget: usize,
    /// Whether the graph contains prints and assertions.
    effects: bool,
}

impl GraphWriter<'_> {
    fn name(&mut self) -> String {
        self.n += 1;
        format!("%v{}", self.n)
    }

    /// Writes a few statements over known values. Returns all values known afterwards.
    fn block(&mut self, known: &[String], depth: usize) -> Vec<String> {
        let mut known = known.to_vec();
        for _ in 0..1 + self.rng.below(4) {
            if self.budget == 0 {
                break;
            }
            self.budget -= 1;
            let (a, b) = (self.pick(&known), self.pick(&known));
            if self.effects && self.rng.below(5) == 0 {
                self.effect(&a, &b);
                continue;
            }
            match self.rng.below(if depth < 3 { 9 } else { 5 }) {
                0 => {
                    let (c, v) = (self.rng.below(5), self.name());
                    writeln!(self.text, "{v} = constant {c} : i64[]").unwrap();
                    known.push(v);
                }
                1..5 => {
                    let op = [prim::ADD, prim::SUB, prim::MUL][self.rng.below(3)];
                    let v = self.name();
                    writeln!(self.text, "{v} = {op} {a}, {b} : i64[]").unwrap();
                    known.push(v);
                }
                5 | 6 => known.extend(self.cond(&known, depth, &a, &b)),
                _ => known.extend(self.while_loop(&known, depth, &a, &b)),
            }
        }
        known
    }

    fn effect(&mut self, a: &str, b: &str) {
        if self.rng.below(4) > 0 {
            return writeln!(self.text, "print stdout \"{{}}, \", {a}").unwrap();
        }
        let p = self.name();
        writeln!(self.text, "{p} = ne {a}, {b} : bool[]\nassert {p}, \"{a} is {{}}, and so is {b}\", {a}").unwrap();
    }

    fn pick(&mut self, known: &[String]) -> String {
        // Recent values are picked more often.
        let n = known.len();
        let i = n - 1 - self.rng.below(n).min(self.rng.below(n));
        known[i].clone()
    }

    fn cond(&mut self, known: &[String], depth: usize, a: &str, b: &str) -> Vec<String> {
        let p = self.name();
        writeln!(self.text, "{p} = lt {a}, {b} : bool[]").unwrap();
        let captured: Vec<String> = (0..1 + self.rng.below(3)).map(|_| self.pick(known)).collect();
        let n = self.rng.below(3);
        let results: Vec<String> = (0..n).map(|_| self.name()).collect();
        let types = vec!["i64[]"; n].join(", ");
        let equals = if n == 0 { "" } else { " = " };
        write!(self.text, "{}{equals}cond {p}, {} : ({types})", results.join(", "), captured.join(", ")).unwrap();
        for branch in ["then", "else"] {
            let params: Vec<String> = captured.iter().map(|_| self.name()).collect();
            writeln!(self.text, " {branch} ({}) {{", params.join(", ")).unwrap();
            let inside = self.block(&params, depth + 1);
            let yields: Vec<String> = (0..n).map(|_| self.pick(&inside)).collect();
            write!(self.text, "yield {} }}", yields.join(", ")).unwrap();
        }
        self.text.push('\n');
        results
    }

    fn while_loop(&mut self, known: &[String], depth: usize, a: &str, b: &str) -> Vec<String> {
        let (zero, trips, i, limit) = (self.name(), self.name(), self.name(), self.name());
        let n_trips = [0, 1, 2, 3, 5, 9][self.rng.below(6)];
        let n_trips = if depth > 0 { n_trips.min(3) } else { n_trips };
        writeln!(self.text, "{zero} = constant 0 : i64[]\n{trips} = constant {n_trips} : i64[]").unwrap();
        let n = 1 + self.rng.below(3);
        let inits: Vec<String> = (0..n).map(|k| [a, b][k % 2].to_owned()).collect();
        let captured: Vec<String> = (0..self.rng.below(3)).map(|_| self.pick(known)).collect();
        let state: Vec<String> = (0..n).map(|_| self.name()).collect();
        let constants: Vec<String> = captured.iter().map(|_| self.name()).collect();
        let results: Vec<String> = (0..=n).map(|_| self.name()).collect();
        let pairs = |names: &[String], values: &[String]| {
            names.iter().zip(values).map(|(n, v)| format!(", {n} = {v}")).collect::<String>()
        };
        write!(
            self.text,
            "{} = while ({i} = {zero}{} | {limit} = {trips}{})",
            results.join(", "),
            pairs(&state, &inits),
            pairs(&constants, &captured)
        )
        .unwrap();
        let types = vec!["i64[]"; n + 1].join(", ");
        let p = self.name();
        writeln!(self.text, " : ({types}) cond {{").unwrap();
        let inside: Vec<String> = state.iter().chain(&constants).cloned().chain([i.clone()]).collect();
        if self.rng.below(3) == 0 {
            self.block(&inside, 3);
        }
        writeln!(self.text, "{p} = lt {i}, {limit} : bool[] yield {p} }} body {{").unwrap();
        let inside = self.block(&inside, depth + 1);
        let (one, next) = (self.name(), self.name());
        writeln!(self.text, "{one} = constant 1 : i64[]\n{next} = add {i}, {one} : i64[]").unwrap();
        let yields: Vec<String> = (0..n).map(|_| self.pick(&inside)).collect();
        writeln!(self.text, "yield {next}, {} }}", yields.join(", ")).unwrap();
        results
    }
}

pub(super) fn random_graph(rng: &mut Rng) -> Graph {
    let inputs = ["%x".to_owned(), "%y".to_owned()];
    let (budget, effects) = (6 + rng.below(20), rng.below(3) == 0);
    let mut writer = GraphWriter { rng, text: String::new(), n: 0, budget, effects };
    let mut known = writer.block(&inputs, 0);
    while writer.budget > 0 {
        known = writer.block(&known, 0);
    }
    let outputs: Vec<String> = (0..1 + writer.rng.below(3)).map(|_| writer.pick(&known)).collect();
    let types = vec!["i64[]"; outputs.len()].join(", ");
    let text = writer.text;
    let text = format!("graph @g(%x: i64[], %y: i64[]) -> ({types}) {{\n{text}return {} }}", outputs.join(", "));
    let graph = Graph::parse(&text, "random.ir").unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    verify(&graph).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    graph
}

/// Runs a kernel on integers and appends its output to `printed`. The error is the message of a
/// failed assertion.
fn run_kernel(kernel: &KernelGraph, inputs: &[TestNumber], printed: &mut String) -> Result<Vec<TestNumber>, String> {
    let graph = &kernel.graph;
    let mut values: HashMap<Value, i64> = HashMap::new();
    values.extend(graph.inputs().iter().zip(inputs).map(|(&v, n)| (v, n.0)));
    run_region(graph, graph.root(), &mut values, printed)?;
    Ok(graph.outputs().iter().map(|v| TestNumber(values[v])).collect())
}

fn run_region(
    graph: &Graph,
    region: Region,
    values: &mut HashMap<Value, i64>,
    printed: &mut String,
) -> Result<(), String> {
    let render = |operands: &[i64]| operands.iter().map(|&n| HostTensor::scalar(n)).collect::<Vec<_>>();
    for &node in &graph.region(region).nodes {
        let data = graph.node(node);
        let operands: Vec<i64> = data.operands.iter().map(|v| values[v]).collect();
        let mut enter = |values: &mut HashMap<Value, i64>, region: Region, given: &[i64]| {
            values.extend(graph.region(region).params.iter().copied().zip(given.iter().copied()));
            run_region(graph, region, values, printed)?;
            Ok::<_, String>(graph.region(region).yields.iter().map(|v| values[v]).collect::<Vec<i64>>())
        };
        let results = match &data.op {
            Op::Constant(t) => vec![t.data::<i64>()[0]],
            Op::Prim(def, _) => {
                let (a, b) = (operands[0], operands[1]);
                vec![match *def {
                    prim::ADD => a.wrapping_add(b),
                    prim::SUB => a.wrapping_sub(b),
                    prim::MUL => a.wrapping_mul(b),
                    prim::LT => i64::from(a < b),
                    prim::NE => i64::from(a != b),
                    other => panic!("{other} is not in random graphs"),
                }]
            }
            Op::Print { template, .. } => {
                printed.push_str(&template.render(&render(&operands)));
                vec![]
            }
            Op::Assert { message } => match operands[0] {
                0 => return Err(message.render(&render(&operands[1..]))),
                _ => vec![],
            },
            Op::Cond => {
                let cond = graph.cond_of(node);
                let captured: Vec<i64> = graph.captured(node).iter().map(|v| values[v]).collect();
                let taken = cond.branch(values[&cond.predicate()] != 0);
                enter(values, taken, &captured)?
            }
            Op::While { .. } => {
                let construct = graph.while_of(node);
                let mut state = operands;
                while enter(values, construct.cond(), &state)? != [0] {
                    let next = enter(values, construct.body(), &state)?;
                    state.splice(..next.len(), next);
                }
                state.truncate(data.results.len());
                state
            }
            other => panic!("{} is not in random graphs", other.name()),
        };
        values.extend(data.results.iter().copied().zip(results));
    }
    Ok(())
}

/// A disturbance of a schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Disturbance {
    /// The step runs to its end.
    Nothing,
    /// The caller cancels the step at this event.
    Cancel(usize),
    /// The device fails when it runs the kernel with this number.
    Fail(usize),
    /// A hostile process sends messages of its own.
    Lie,
}

/// The error of a failing device.
const DEVICE_FAILED: &str = "the device failed";

/// The error of a correct message that comes after a lie that was believed.
const REFUSED: &str = "a message was refused";

/// The way in which a step ended.
#[derive(Clone, Debug, PartialEq)]
enum End {
    ByItself,
    Cancelled,
    Failed(String),
}

/// A pending operation.
enum Work {
    Load(usize, TaskId, TestNumber),
    Read(usize, TaskId, TestNumber),
    Message(SubgraphId, SubgraphId, DeviceMessage<TestNumber>),
    /// A kernel that has not run yet.
    Kernel(usize, TaskId, KernelId, Vec<TestNumber>),
    /// A kernel that has run without being reported to the executor.
    Ran(usize, TaskId, Vec<TestNumber>),
}

struct Simulation<'a> {
    rng: &'a mut Rng,
    partition: &'a Partition,
    inputs: [i64; 2],
    executors: Vec<Executor<TestNumber>>,
    /// Pending loads and reads, messages, and kernels.
    work: [Vec<Work>; 3],
    n_kernels: usize,
    printed: String,
    given: BTreeMap<Sink, TestNumber>,
    sent: HashSet<String>,
    /// The lies that the gates have admitted and rejected.
    believed: usize,
    rejected: usize,
}

impl Simulation<'_> {
    fn run(&mut self, plan: Disturbance) -> Result<End, String> {
        let mut events = 0;
        loop {
            events += 1;
            if plan == Disturbance::Cancel(events) {
                return Ok(End::Cancelled);
            }
            // Try a random kind of event first, so that one kind can starve the other kinds for a
            // while.
            let first = self.rng.below(4);
            let mut happened = false;
            for kind in (0..4).map(|k| (first + k) % 4) {
                happened = match kind {
                    0 => self.act(),
                    _ => match self.happen(kind - 1, plan) {
                        Ok(happened) => happened,
                        Err(error) => return Ok(End::Failed(error)),
                    },
                };
                if happened {
                    break;
                }
            }
            if !happened {
                break;
            }
            if events > 1_000_000 {
                return Err("it does not end".to_owned());
            }
        }
        if let Some(i) = self.executors.iter().position(|e| !e.is_finished()) {
            return Err(format!("part {i} is stuck"));
        }
        let held: usize = self.executors.iter().map(Executor::n_held).sum();
        if held > 0 {
            return Err(format!("{held} things are held"));
        }
        Ok(End::ByItself)
    }

    /// Completes a random pending operation of a kind, if there is one.
    fn happen(&mut self, kind: usize, plan: Disturbance) -> Result<bool, String> {
        if self.work[kind].is_empty() {
            return Ok(false);
        }
        let i = self.rng.below(self.work[kind].len());
        match self.work[kind].swap_remove(i) {
            Work::Load(part, task, value) => self.executors[part].loaded(task, value),
            Work::Read(part, task, value) => self.executors[part].on_predicate(task, value.0 != 0),
            Work::Message(from, to, message) => {
                if plan == Disturbance::Lie {
                    for _ in 0..self.rng.below(3) {
                        self.lie(&message);
                    }
                }
                if let Err(wrong) = self.executors[to.index()].admit(from, &message) {
                    assert_eq!(plan, Disturbance::Lie, "{message:?} from {from:?} to {to:?} {wrong}");
                    return Err(REFUSED.to_owned());
                }
                self.executors[to.index()].on_message(from, message);
            }
            Work::Kernel(part, task, kernel, inputs) => {
                self.n_kernels += 1;
                if plan == Disturbance::Fail(self.n_kernels) {
                    return Err(DEVICE_FAILED.to_owned());
                }
                let kernel = &self.partition.parts[part].kernels[kernel.index()];
                let results = run_kernel(kernel, &inputs, &mut self.printed)?;
                self.work[kind].push(Work::Ran(part, task, results));
            }
            Work::Ran(part, task, results) => self.executors[part].on_kernel_done(task, results),
        }
        Ok(true)
    }

    /// Sends a random message that resembles another one, if the gate admits it.
    fn lie(&mut self, like: &DeviceMessage<TestNumber>) {
        let (DeviceMessage::Value { tag, .. } | DeviceMessage::Credit { tag, .. }) = like;
        let mut tag = tag.clone();
        match self.rng.below(5) {
            0 => tag.push(self.rng.below(3) as u64),
            1 => drop(tag.pop()),
            2 => tag.iter_mut().for_each(|k| *k = k.wrapping_add(self.rng.below(5) as u64).wrapping_sub(2)),
            _ => {}
        }
        let message = match (like, self.rng.below(4)) {
            (DeviceMessage::Value { edge, value, .. }, 1..) => {
                DeviceMessage::Value { edge: *edge, tag, value: TestNumber(1 - value.0) }
            }
            (DeviceMessage::Credit { of, finished, .. }, 1..) => {
                DeviceMessage::Credit { of: *of, tag, finished: finished + self.rng.below(40) as u64 }
            }
            _ => match self.rng.below(2) {
                0 => {
                    let edge = EdgeId(self.rng.below(self.partition.edges.len() + 1) as u32);
                    DeviceMessage::Value { edge, tag, value: TestNumber(1) }
                }
                _ => {
                    let of = LoopId(self.rng.below(self.partition.loops.len() + 1) as u32);
                    DeviceMessage::Credit { of, tag, finished: self.rng.below(40) as u64 }
                }
            },
        };
        let (from, to) = (self.rng.below(self.executors.len()), self.rng.below(self.executors.len()));
        let from = SubgraphId(from as u32);
        match self.executors[to].admit(from, &message) {
            Ok(()) => {
                self.believed += 1;
                self.executors[to].on_message(from, message);
            }
            Err(_) => self.rejected += 1,
        }
    }

    /// Polls the executors for one action.
    fn act(&mut self) -> bool {
        let n = self.executors.len();
        let first = self.rng.below(n);
        let action = (0..n).map(|k| (first + k) % n).find_map(|i| Some((i, self.executors[i].poll()?)));
        let Some((i, action)) = action else { return false };
        let (kind, work) = match action {
            Action::Load { task, source: Source::Input(k) } => {
                (0, Work::Load(i, task, TestNumber(self.inputs[k as usize])))
            }
            Action::Load { source, .. } => panic!("{source:?} is not in random graphs"),
            Action::Read { task, predicate } => (0, Work::Read(i, task, predicate)),
            Action::Run { task, kernel, inputs } => (2, Work::Kernel(i, task, kernel, inputs)),
            Action::Send { to, message } => {
                if let DeviceMessage::Value { edge, tag, .. } = &message {
                    assert!(self.sent.insert(format!("{edge:?} {tag:?}")), "{edge:?} is sent twice in {tag:?}");
                }
                (1, Work::Message(SubgraphId(i as u32), to, message))
            }
            Action::Give { sink, value } => {
                assert!(self.given.insert(sink, value).is_none(), "{sink:?} is given twice");
                return true;
            }
        };
        self.work[kind].push(work);
        true
    }
}

/// Returns the result of the interpreter, outputs or the error of an assertion, and the printed
/// text.
fn expected(graph: &Graph, inputs: [i64; 2]) -> (Result<Vec<i64>, String>, String) {
    let printed = RefCell::new(String::new());
    let print = |_: Stream, text: &str| printed.borrow_mut().push_str(text);
    let run_context = RunContext { print: &print, stop: &StopFlag::new(), ..Default::default() };
    let tensors = inputs.map(HostTensor::scalar);
    let outputs = interp::run_in(graph, &tensors, &mut vec![], interp::InterpOptions::default(), run_context);
    let outputs = outputs.map(|o| o.iter().map(|t| t.data::<i64>()[0]).collect());
    (outputs.map_err(|e| e.message), printed.into_inner())
}

/// Counts of events, to check that the schedules cover enough.
#[derive(Debug, Default)]
struct Seen {
    graphs: usize,
    messages: usize,
    prints: usize,
    assertions: usize,
    failures: usize,
    cancelled: usize,
    lies: usize,
    believed: usize,
}

impl std::ops::Add for Seen {
    type Output = Seen;

    fn add(self, other: Seen) -> Seen {
        Seen {
            graphs: self.graphs + other.graphs,
            messages: self.messages + other.messages,
            prints: self.prints + other.prints,
            assertions: self.assertions + other.assertions,
            failures: self.failures + other.failures,
            cancelled: self.cancelled + other.cancelled,
            lies: self.lies + other.lies,
            believed: self.believed + other.believed,
        }
    }
}

/// Runs the schedules of one seed.
fn schedules(seed: u64) -> Result<Seen, String> {
    let mut rng = Rng(seed);
    let graph = random_graph(&mut rng);
    let n = 1 + rng.below(4);
    let placement = place_at_random(&graph, n, rng.next());
    let (lowered, parallel_iterations) = (rng.below(4), [1, 2, 3, 32][rng.below(4)]);
    let options = PartitionOptions { lower_everything: lowered < 2, lower_control: lowered == 2, parallel_iterations };
    let cut = partition(&graph, &placement, options);
    let inputs = [rng.below(7) as i64 - 3, rng.below(7) as i64 - 3];
    let (outputs, prints) = expected(&graph, inputs);
    let prints_anything = !ordered_effects(&graph).is_empty();
    let mut seen = Seen { graphs: 1, ..Seen::default() };
    let mut executors: Vec<Executor<TestNumber>> = cut.parts.iter().cloned().map(Executor::new).collect();
    // The executors are reused, also after a step that ended early.
    for step in 0..STEPS {
        let plan = match rng.below(8) {
            0 => Disturbance::Cancel(1 + rng.below(200)),
            1 => Disturbance::Fail(1 + rng.below(60)),
            2 => Disturbance::Lie,
            _ => Disturbance::Nothing,
        };
        executors.iter_mut().for_each(Executor::start);
        let mut simulation = Simulation {
            rng: &mut rng,
            partition: &cut,
            inputs,
            executors,
            work: Default::default(),
            n_kernels: 0,
            printed: String::new(),
            given: BTreeMap::new(),
            sent: HashSet::new(),
            believed: 0,
            rejected: 0,
        };
        let wrong = |e: String| format!("{e}\nstep {step}, {plan:?}, {options:?}, {n} devices\n{graph}");
        let end = simulation.run(plan);
        if plan == Disturbance::Lie {
            seen.lies += simulation.rejected;
            seen.believed += simulation.believed;
        }
        // After a lie that was believed, anything may happen but a panic.
        if simulation.believed > 0 {
            executors = simulation.executors;
            executors.iter_mut().for_each(Executor::abandon);
            continue;
        }
        let end = end.map_err(wrong)?;
        let outputs_of_step = (0..).zip(&cut.outputs).map(|(i, source)| match *source {
            OutputSource::Computed(_) => simulation.given.get(&Sink::Output(i)).map(|n| n.0),
            OutputSource::Input(input) => Some(inputs[input as usize]),
            OutputSource::Constant(node) => match &graph.node(node).op {
                Op::Constant(value) => Some(value.data::<i64>()[0]),
                op => panic!("`{}` is on no device", op.name()),
            },
        });
        let given: Vec<Option<i64>> = outputs_of_step.collect();
        let printed = simulation.printed;
        seen.messages += simulation.sent.len();
        executors = simulation.executors;
        for executor in &mut executors {
            let allowed: usize = executor.part().frames.iter().map(|f| f.window as usize).max().unwrap_or(1);
            if executor.largest_ring() > allowed {
                return Err(wrong(format!("{} iterations, allowed are {allowed}", executor.largest_ring())));
            }
            if end != End::ByItself {
                executor.abandon();
                assert_eq!(executor.n_held(), 0, "what is abandoned holds nothing");
            }
        }
        // Prints follow program order, whatever else happens.
        if !prints.starts_with(&printed) {
            return Err(wrong(format!("printed was {printed:?}, the interpreter prints {prints:?}")));
        }
        match (&end, &outputs) {
            (End::ByItself, Ok(outputs)) if given.iter().flatten().eq(outputs) && printed == prints => {
                seen.prints += usize::from(!prints.is_empty())
            }
            (End::Failed(error), Err(assertion))
                if assertion.contains(error.as_str()) || (!prints_anything && error != DEVICE_FAILED) =>
            {
                seen.assertions += 1
            }
            (End::Failed(error), _) if error == DEVICE_FAILED && matches!(plan, Disturbance::Fail(_)) => {
                seen.failures += 1
            }
            (End::Cancelled, _) => seen.cancelled += 1,
            _ => return Err(wrong(format!("{end:?} {given:?} {printed:?}, not {outputs:?} {prints:?}"))),
        }
    }
    Ok(seen)
}

#[test]
fn schedules_end_with_the_interpreters_values() {
    let slow = std::env::var_os("ANABRANCH_SLOW").is_some();
    let seeds = match std::env::var("ANABRANCH_SCHEDULE") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("`ANABRANCH_SCHEDULE` is a number");
            seed..seed + 1
        }
        Err(_) => {
            let first = corpus::seed();
            first..first + if slow { 6_000 } else { 150 }
        }
    };
    let run = |seed: u64| {
        let outcome = std::panic::catch_unwind(|| schedules(seed));
        outcome.unwrap_or_else(|e| Err(e.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".to_owned())))
    };
    use rayon::prelude::*;
    let outcomes: Vec<(u64, Result<Seen, String>)> = seeds.into_par_iter().map(|seed| (seed, run(seed))).collect();
    let wrong: Vec<_> = outcomes.iter().filter_map(|(seed, r)| r.as_ref().err().map(|e| (seed, e))).collect();
    if let Some((seed, e)) = wrong.first() {
        let repeat = format!("ANABRANCH_SCHEDULE={seed} cargo test -p anabranch-runtime --lib schedules");
        panic!("{} of {} graphs go wrong; {seed}: {e}\nrepeat it with: {repeat}", wrong.len(), outcomes.len());
    }
    let seen = outcomes.into_iter().filter_map(|(_, r)| r.ok()).fold(Seen::default(), |a, b| a + b);
    let enough = seen.messages > seen.graphs * STEPS
        && seen.prints > seen.graphs
        && [seen.assertions, seen.failures, seen.cancelled, seen.lies, seen.believed]
            .iter()
            .all(|&n| n > seen.graphs / 2);
    assert!(enough || seen.graphs == 1, "{seen:?} is too little to say anything");
}
