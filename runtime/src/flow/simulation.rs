//! Partitions and executors under many schedules: random graphs, cut at random, whose messages and kernels arrive in any order.
//!
//! A number makes a graph with branches and loops in one another, chooses devices and windows, and for each of [`STEPS`] schedules what
//! happens next each time: an executor does something, a message arrives (those of one sender may overtake each other), a kernel ends. At the end
//!
//! - the outputs are the interpreter's,
//! - no value was sent twice, none is on its way, and nothing is held by any executor,
//! - no part has more states of an iteration than windows allow;
//!
//! and if the step is broken off in the middle, by an error or by the caller, nothing is held either. A wrong one is repeated by
//! `ANABRANCH_SCHEDULE=n cargo test -p anabranch-runtime --lib schedules`. `ANABRANCH_SLOW=1` runs 120,000 schedules.

use super::executor::{Action, Executor, Message, TaskId, Token};
use super::{KernelGraph, Options, PartId, Partition, Sink, Source, partition};
use crate::place::place_at_random;
use anabranch_dsl::ir::{Op, Value, verify};
use anabranch_dsl::{Graph, HostTensor, interp};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;

/// The schedules of one graph.
const STEPS: usize = 20;

/// Random numbers (SplitMix64).
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

/// An integer, or a truth value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number(i64);

impl Token for Number {
    fn truth(&self) -> bool {
        self.0 != 0
    }
}

/// Writes random graphs.
struct Writer<'a> {
    rng: &'a mut Rng,
    text: String,
    n: usize,
    budget: usize,
}

impl Writer<'_> {
    fn name(&mut self) -> String {
        self.n += 1;
        format!("%v{}", self.n)
    }

    /// A few statements on values that are known; gives those known then.
    fn block(&mut self, known: &[String], depth: usize) -> Vec<String> {
        let mut known = known.to_vec();
        for _ in 0..1 + self.rng.below(4) {
            if self.budget == 0 {
                break;
            }
            self.budget -= 1;
            let (a, b) = (self.pick(&known), self.pick(&known));
            match self.rng.below(if depth < 3 { 9 } else { 5 }) {
                0 => {
                    let (c, v) = (self.rng.below(5), self.name());
                    writeln!(self.text, "{v} = constant {c} : i64[]").unwrap();
                    known.push(v);
                }
                1..5 => {
                    let op = ["add", "sub", "mul"][self.rng.below(3)];
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

    fn pick(&mut self, known: &[String]) -> String {
        // What was made last is used more often.
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
    let budget = 6 + rng.below(20);
    let mut writer = Writer { rng, text: String::new(), n: 0, budget };
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

/// Runs a kernel on numbers.
fn run_kernel(kernel: &KernelGraph, inputs: &[Number]) -> Vec<Number> {
    let graph = &kernel.graph;
    let mut values: HashMap<Value, i64> = HashMap::new();
    values.extend(graph.inputs().iter().zip(inputs).map(|(&v, n)| (v, n.0)));
    run_region(graph, graph.root(), &mut values);
    graph.outputs().iter().map(|v| Number(values[v])).collect()
}

fn run_region(graph: &Graph, region: anabranch_dsl::ir::Region, values: &mut HashMap<Value, i64>) {
    for &node in &graph.region(region).nodes {
        let data = graph.node(node);
        let operands: Vec<i64> = data.operands.iter().map(|v| values[v]).collect();
        let mut enter = |region: anabranch_dsl::ir::Region, given: &[i64]| {
            values.extend(graph.region(region).params.iter().copied().zip(given.iter().copied()));
            run_region(graph, region, values);
            graph.region(region).yields.iter().map(|v| values[v]).collect::<Vec<i64>>()
        };
        let results = match &data.op {
            Op::Constant(t) => vec![t.data::<i64>()[0]],
            Op::Prim(def, _) => {
                let (a, b) = (operands[0], operands[1]);
                vec![match def.name {
                    "add" => a.wrapping_add(b),
                    "sub" => a.wrapping_sub(b),
                    "mul" => a.wrapping_mul(b),
                    "lt" => i64::from(a < b),
                    other => panic!("{other} is not in random graphs"),
                }]
            }
            Op::Cond => enter(data.regions[usize::from(operands[0] == 0)], &operands[1..]),
            Op::While { .. } => {
                let mut state = operands;
                while enter(data.regions[0], &state)[0] != 0 {
                    let next = enter(data.regions[1], &state);
                    state.splice(..next.len(), next);
                }
                state.truncate(data.results.len());
                state
            }
            other => panic!("{} is not in random graphs", other.name()),
        };
        values.extend(data.results.iter().copied().zip(results));
    }
}

/// How a schedule ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    ByItself,
    /// After so many events.
    BrokenOff(usize),
}

struct Simulation<'a> {
    rng: &'a mut Rng,
    partition: &'a Partition,
    executors: Vec<Executor<Number>>,
    on_their_way: Vec<(PartId, PartId, Message<Number>)>,
    running: Vec<(usize, TaskId, Vec<Number>)>,
    given: BTreeMap<Sink, Number>,
    sent: HashSet<String>,
}

impl Simulation<'_> {
    fn run(&mut self, end: End) -> Result<(), String> {
        let mut events = 0;
        loop {
            events += 1;
            if end == End::BrokenOff(events) {
                return Ok(());
            }
            // Each kind of event is tried first now and then, so that one kind can starve the others for a while.
            let first = self.rng.below(3);
            if !(0..3).any(|k| self.event((first + k) % 3)) {
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
        Ok(())
    }

    fn event(&mut self, kind: usize) -> bool {
        match kind {
            0 => {
                let n = self.executors.len();
                let first = self.rng.below(n);
                (0..n).any(|k| self.act((first + k) % n))
            }
            1 if !self.on_their_way.is_empty() => {
                let i = self.rng.below(self.on_their_way.len());
                let (from, to, message) = self.on_their_way.swap_remove(i);
                self.executors[to.index()].arrived(from, message);
                true
            }
            2 if !self.running.is_empty() => {
                let i = self.rng.below(self.running.len());
                let (part, task, results) = self.running.swap_remove(i);
                self.executors[part].done(task, results);
                true
            }
            _ => false,
        }
    }

    fn act(&mut self, i: usize) -> bool {
        let Some(action) = self.executors[i].poll() else { return false };
        match action {
            Action::Run { task, kernel, inputs } => {
                let results = run_kernel(&self.partition.parts[i].kernels[kernel.index()], &inputs);
                self.running.push((i, task, results));
            }
            Action::Send { to, message } => {
                if let Message::Value { edge, tag, .. } = &message {
                    assert!(self.sent.insert(format!("{edge:?} {tag:?}")), "{edge:?} is sent twice in {tag:?}");
                }
                self.on_their_way.push((PartId(i as u32), to, message));
            }
            Action::Give { sink, value } => {
                assert!(self.given.insert(sink, value).is_none(), "{sink:?} is given twice");
            }
        }
        true
    }
}

/// Runs the schedules of one number; gives how many messages of values there were.
fn schedules(seed: u64) -> Result<usize, String> {
    let mut rng = Rng(seed);
    let graph = random_graph(&mut rng);
    let n = 1 + rng.below(4);
    let placement = place_at_random(&graph, n, rng.next());
    let options = Options { lower_everything: rng.below(2) == 0, parallel_iterations: [1, 2, 3, 32][rng.below(4)] };
    let cut = partition(&graph, &placement, options);
    let inputs = [rng.below(7) as i64 - 3, rng.below(7) as i64 - 3];
    let tensors = inputs.map(HostTensor::scalar);
    let expected = interp::run(&graph, &tensors, &mut vec![], interp::Options::default()).map_err(|e| e.to_string())?;
    let expected: Vec<i64> = expected.iter().map(|t| t.data::<i64>()[0]).collect();
    let mut executors: Vec<Executor<Number>> = cut.parts.iter().cloned().map(Executor::new).collect();
    let mut messages = 0;
    // The executors are used again, after a step that was broken off, too.
    for step in 0..STEPS {
        let end = if rng.below(4) == 0 { End::BrokenOff(1 + rng.below(200)) } else { End::ByItself };
        for executor in &mut executors {
            let sources = inputs.iter().enumerate().map(|(i, &x)| (Source::Input(i as u32), Number(x)));
            executor.start(sources.collect());
        }
        let mut simulation = Simulation {
            rng: &mut rng,
            partition: &cut,
            executors,
            on_their_way: Vec::new(),
            running: Vec::new(),
            given: BTreeMap::new(),
            sent: HashSet::new(),
        };
        let wrong = |e: String| format!("{e}\nstep {step}, {end:?}, {options:?}, {n} devices\n{graph}");
        simulation.run(end).map_err(wrong)?;
        let done = simulation.executors.iter().all(Executor::is_finished);
        messages += simulation.sent.len();
        let given: Vec<i64> = simulation.given.values().map(|n| n.0).collect();
        executors = simulation.executors;
        for executor in &mut executors {
            let allowed: usize = executor.part().frames.iter().map(|f| f.window as usize).max().unwrap_or(1);
            if executor.largest_ring() > allowed {
                return Err(wrong(format!("{} iterations, allowed are {allowed}", executor.largest_ring())));
            }
            if !done {
                executor.abandon();
                assert_eq!(executor.n_held(), 0, "what is abandoned holds nothing");
            }
        }
        if done && given != expected {
            return Err(wrong(format!("{given:?} is not {expected:?}")));
        }
    }
    Ok(messages)
}

#[test]
fn schedules_end_with_the_interpreters_values() {
    let slow = std::env::var_os("ANABRANCH_SLOW").is_some();
    let seeds = match std::env::var("ANABRANCH_SCHEDULE") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("`ANABRANCH_SCHEDULE` is a number");
            seed..seed + 1
        }
        Err(_) => 0..if slow { 6_000 } else { 150 },
    };
    let run = |seed: u64| {
        let outcome = std::panic::catch_unwind(|| schedules(seed));
        outcome.unwrap_or_else(|e| Err(e.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".to_owned())))
    };
    use rayon::prelude::*;
    let outcomes: Vec<(u64, Result<usize, String>)> = seeds.into_par_iter().map(|seed| (seed, run(seed))).collect();
    let wrong: Vec<_> = outcomes.iter().filter_map(|(seed, r)| r.as_ref().err().map(|e| (seed, e))).collect();
    if let Some((seed, e)) = wrong.first() {
        let repeat = format!("ANABRANCH_SCHEDULE={seed} cargo test -p anabranch-runtime --lib schedules");
        panic!("{} of {} graphs go wrong; {seed}: {e}\nrepeat it with: {repeat}", wrong.len(), outcomes.len());
    }
    let messages: usize = outcomes.iter().map(|(_, r)| *r.as_ref().unwrap_or(&0)).sum();
    assert!(
        messages > outcomes.len() * STEPS || outcomes.len() == 1,
        "{messages} messages are too few to say anything"
    );
}
