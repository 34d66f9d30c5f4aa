//! Running a partition on devices of modelled time.
//!
//! Kernels are run when they are given to a device, by the caller's thread; that they are done is told to the executor at the modelled time. Events are
//! taken in the order of time, those of one time in the order in which they were made: so a run is the same each time.

use super::PartId;
use super::executor::{Action, Executor, Message, TaskId};
use crate::flow::driver::Run;
use crate::place::{DeviceId, Topology};
use crate::timeline::Span;
use anabranch_dsl::Result;
use anabranch_dsl::interp::Datum;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

/// What happens at some time.
enum Event {
    Done(PartId, TaskId, Vec<Datum>),
    Arrived(PartId, PartId, Message<Datum>),
}

struct World {
    now: f64,
    /// Keys of events in the order of time, in picoseconds, and then of their making.
    order: BinaryHeap<Reverse<(u128, u64)>>,
    events: HashMap<u64, Event>,
    n_events: u64,
    /// When each device, and each link, is free.
    free: BTreeMap<(DeviceId, DeviceId), f64>,
}

impl World {
    fn at(&mut self, time: f64, event: Event) {
        self.order.push(Reverse(((time * 1e12) as u128, self.n_events)));
        self.events.insert(self.n_events, event);
        self.n_events += 1;
    }

    /// Takes a device or a link for some seconds as soon as it is free; gives from when to when.
    fn take(&mut self, what: (DeviceId, DeviceId), seconds: f64) -> (f64, f64) {
        let free = self.free.entry(what).or_insert(0.0);
        let begin = free.max(self.now);
        *free = begin + seconds;
        (begin, begin + seconds)
    }
}

/// Runs a step; gives the seconds that it takes.
pub(super) fn drive(
    run: &mut Run<'_>,
    executors: &mut [Executor<Datum>],
    topology: &Topology,
    seconds: &[Vec<f64>],
) -> Result<f64> {
    let mut world =
        World { now: 0.0, order: BinaryHeap::new(), events: HashMap::new(), n_events: 0, free: BTreeMap::new() };
    loop {
        let mut idle = false;
        while !idle {
            idle = true;
            for i in 0..executors.len() {
                while let Some(action) = executors[i].poll() {
                    idle = false;
                    run.check_stop()?;
                    act(run, &mut world, executors, i, action, topology, seconds)?;
                }
            }
        }
        let Some(Reverse((time, key))) = world.order.pop() else { break };
        world.now = time as f64 * 1e-12;
        match world.events.remove(&key).expect("each event happens once") {
            Event::Done(part, task, results) => executors[part.index()].done(task, results),
            Event::Arrived(from, to, message) => executors[to.index()].arrived(from, message),
        }
    }
    assert!(executors.iter().all(Executor::is_finished), "a step is stuck");
    Ok(world.now)
}

fn act(
    run: &mut Run<'_>,
    world: &mut World,
    executors: &[Executor<Datum>],
    i: usize,
    action: Action<Datum>,
    topology: &Topology,
    seconds: &[Vec<f64>],
) -> Result<()> {
    let device = |part: usize| run.driver.partition().parts[part].device;
    let span = |begin: f64, end: f64, device: String, name: String, iterations: &[u32]| Span {
        device,
        name,
        loc: anabranch_dsl::Loc::UNKNOWN,
        iterations: iterations.to_vec(),
        begin: duration(begin),
        end: duration(end),
    };
    match action {
        Action::Run { task, kernel, inputs } => {
            let (begin, end) = world.take((device(i), device(i)), seconds[i][kernel.index()]);
            if let Some(spans) = &mut run.spans {
                let name = topology.device(device(i)).name.to_string();
                let mut span = span(begin, end, name, run.driver.kernel_name(i, kernel), &executors[i].tag_of(task));
                span.loc = run.driver.kernel_loc(i, kernel);
                spans.push(span);
            }
            let results = run.compute(i, kernel, inputs)?;
            world.at(end, Event::Done(PartId(i as u32), task, results));
        }
        Action::Send { to, message } => {
            let pair = (device(i), device(to.index()));
            let link = topology.link(pair.0, pair.1);
            let bytes = match &message {
                Message::Value { value, .. } => size_of_datum(value),
                Message::Credit { .. } => 0,
            };
            let (begin, sent) = world.take(pair, bytes as f64 / link.bandwidth);
            if let (Some(spans), Message::Value { edge, tag, .. }) = (&mut run.spans, &message) {
                let (from, to) = (topology.device(pair.0).name, topology.device(pair.1).name);
                let value = run.driver.partition().edges[edge.index()].value;
                spans.push(span(begin, sent + link.latency, format!("{from} -> {to}"), value.to_string(), tag));
            }
            world.at(sent + link.latency, Event::Arrived(PartId(i as u32), to, message));
        }
        Action::Give { sink, value } => run.give(sink, value),
    }
    Ok(())
}

/// The longest there is for what a clock cannot tell: devices may be modelled as slow as one likes.
pub(super) fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

fn size_of_datum(value: &Datum) -> usize {
    value.as_tensor().map_or(0, |t| t.shape().iter().product::<usize>() * t.dtype().size())
}
