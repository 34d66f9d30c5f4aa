//! Estimate of the time of a step for a placement: a simulation in program order, in which each
//! device runs one node at a time and each link carries one message at a time.
//!
//! A construct whose nodes are on one device is a single task. A loop over several devices is
//! simulated for three iterations, which pass the loop variables from one to the next. The time
//! between the ends of the second and the third iteration is assumed for every further iteration.
//! Iterations thus overlap as far as their dependencies permit, a loop-invariant value is sent
//! once, and every device waits for the predicate of each iteration.
//!
//! Inputs come from the host, and outputs go there: to and from a device with memory of its own,
//! over its link to the host. Such a device also takes a message for each predicate that data
//! decides, in branches and in loops that do not count.

use super::groups::{GroupId, Groups};
use crate::device::cost::{Costs, NodeCost};
use crate::device::{DeviceId, LinkSpeed, Topology};
use anabranch_dsl::ir::{Graph, Node, Op, Region, Value};
use anabranch_dsl::passes::count;
use std::collections::HashMap;

/// Scheduling overhead in seconds of a node inside a construct over several devices, and of each
/// end of a message.
const SCHEDULED: f64 = 0.5e-6;

/// Number of simulated iterations. The first fills the devices; the others show the steady state.
const WALKED: usize = 3;

/// The estimated cost of a placement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Estimate {
    /// Seconds from the start of a step to its end.
    pub(super) seconds: f64,
    /// Total seconds of all messages, which mostly overlap with work.
    pub(super) transfers: f64,
}

impl Estimate {
    /// Returns the objective to minimize. Among equally fast placements, fewer transfers are
    /// better.
    pub(super) fn score(&self) -> f64 {
        self.seconds + 0.1 * self.transfers
    }
}

/// The location and time of a value.
#[derive(Clone, Copy, Debug)]
struct Whereabouts {
    /// The device, or `None` if the value is on the host.
    home: Option<DeviceId>,
    /// The time at which the value is available there.
    ready: f64,
    /// The value of which this is an alias.
    origin: Value,
}

/// An estimator of any number of placements of one graph.
pub(super) struct Estimator<'a> {
    graph: &'a Graph,
    topology: &'a Topology,
    groups: &'a Groups,
    costs: &'a Costs,
    /// The rate class of each device: an index into `whole` and `alone`.
    class: Vec<usize>,
    /// Seconds of one execution of a node, by class, with its regions if all are on the device.
    whole: Vec<Vec<f64>>,
    /// Seconds of a step if one device runs the whole graph, by class.
    alone: Vec<f64>,
    /// All nodes that may run, with their owners. Owners come first.
    order: Vec<(Node, Option<Node>)>,
    /// Whether each node is on one device together with all nodes inside it.
    uniform: Vec<bool>,
    values: Vec<Whereabouts>,
    free: Vec<f64>,
    link_free: Vec<f64>,
    /// For each value sent to a device: the time at which it was ready, and the time of its
    /// arrival.
    sent: HashMap<(Value, DeviceId), (f64, f64)>,
    /// The groups in each region, computed on demand.
    inside: HashMap<Region, Vec<GroupId>>,
    transfers: f64,
    /// The number of times that the current iteration represents.
    times: f64,
    /// The number of enclosing constructs that span several devices.
    lowered: usize,
    /// Number of nodes visited so far for all placements.
    pub(super) walked: usize,
}

impl<'a> Estimator<'a> {
    pub(super) fn new(graph: &'a Graph, topology: &'a Topology, groups: &'a Groups, costs: &'a Costs) -> Estimator<'a> {
        let mut classes: Vec<DeviceId> = Vec::new();
        let mut class = Vec::new();
        for id in topology.ids() {
            let rates = |id: DeviceId| {
                let d = topology.device(id);
                (d.flops, d.bandwidth, d.launch, topology.host_link(id))
            };
            let known = classes.iter().position(|&c| rates(c) == rates(id));
            class.push(known.unwrap_or_else(|| {
                classes.push(id);
                classes.len() - 1
            }));
        }
        let n = topology.devices.len();
        let nowhere = |v| Whereabouts { home: None, ready: 0.0, origin: Value::from_index(v) };
        let mut estimator = Estimator {
            graph,
            topology,
            groups,
            costs,
            class,
            whole: vec![Vec::new(); classes.len()],
            alone: vec![0.0; classes.len()],
            order: Vec::new(),
            uniform: vec![true; graph.n_nodes()],
            values: (0..graph.n_values()).map(nowhere).collect(),
            free: vec![0.0; n],
            link_free: vec![0.0; (n + 1) * (n + 1)],
            sent: HashMap::new(),
            inside: HashMap::new(),
            transfers: 0.0,
            times: 1.0,
            lowered: 0,
            walked: 0,
        };
        estimator.list(graph.root(), None);
        for (i, &device) in classes.iter().enumerate() {
            let predicate = topology.host_link(device).map_or(0.0, |link| link.latency);
            let device = topology.device(device);
            estimator.whole[i] = estimator.with_regions(predicate, |work| work.seconds(device));
            let alone = estimator.with_regions(predicate, |work| work.seconds_alone(device, topology.alone));
            estimator.alone[i] = estimator.sum(&alone, graph.root());
        }
        estimator
    }

    fn list(&mut self, region: Region, owner: Option<Node>) {
        for &node in &self.graph.region(region).nodes {
            self.order.push((node, owner));
            for region in self.graph.running_regions(node) {
                self.list(region, Some(node));
            }
        }
    }

    /// Returns the seconds of one execution of each node with its regions, given those of one
    /// predicate that data decides, and those of one operation.
    fn with_regions(&self, predicate: f64, seconds: impl Fn(&NodeCost) -> f64) -> Vec<f64> {
        let mut whole = vec![0.0; self.graph.n_nodes()];
        for &(node, _) in self.order.iter().rev() {
            let inner = |(r, times)| times * self.sum(&whole, r);
            let inner: f64 = self.costs.running(self.graph, node).map(inner).sum();
            let predicates = match self.graph.node(node).op {
                Op::Cond => 1.0,
                Op::While { .. } if count(self.graph, node).is_none() => self.costs.trips[node.index()] + 1.0,
                _ => 0.0,
            };
            whole[node.index()] = seconds(&self.costs.work[node.index()]) + predicates * predicate + inner;
        }
        whole
    }

    fn sum(&self, whole: &[f64], region: Region) -> f64 {
        self.graph.region(region).nodes.iter().map(|n| whole[n.index()]).sum()
    }

    /// Returns the minimum number of nodes visited per placement.
    pub(super) fn size(&self) -> usize {
        self.order.len()
    }

    /// Returns the seconds per step of a node on a device, without its regions.
    pub(super) fn seconds(&self, node: Node, device: DeviceId) -> f64 {
        let data = self.graph.node(node);
        self.costs.work[node.index()].seconds(self.topology.device(device)) * self.costs.runs[data.region.index()]
    }

    /// Returns the nodes that may run.
    pub(super) fn nodes(&self) -> impl Iterator<Item = Node> + '_ {
        self.order.iter().map(|&(node, _)| node)
    }

    /// Returns the cost of a step on one device, which then has all shared cores. Otherwise the
    /// result equals that of [`of`](Self::of).
    pub(super) fn single(&mut self, device: DeviceId) -> Estimate {
        match self.topology.host_link(device) {
            Some(_) => self.of(&vec![device; self.groups.len()]),
            None => Estimate { seconds: self.alone[self.class[device.index()]], transfers: 0.0 },
        }
    }

    /// Returns the cost of a step with each group on its device.
    pub(super) fn of(&mut self, devices: &[DeviceId]) -> Estimate {
        self.uniform.fill(true);
        let groups = self.groups;
        let device = |node: Node| groups.of(node).map(|g| devices[g.index()]);
        for &(node, owner) in self.order.iter().rev() {
            if let Some(owner) = owner
                && (!self.uniform[node.index()] || device(node) != device(owner))
            {
                self.uniform[owner.index()] = false;
            }
        }
        for &input in self.graph.inputs() {
            self.values[input.index()] = Whereabouts { home: None, ready: 0.0, origin: input };
        }
        self.free.fill(0.0);
        self.link_free.fill(0.0);
        self.sent.clear();
        (self.transfers, self.times, self.lowered) = (0.0, 1.0, 0);
        self.region(self.graph.root(), devices, 1.0);
        let mut end = self.free.iter().chain(&self.link_free).copied().fold(0.0, f64::max);
        for &output in self.graph.outputs() {
            let output = self.values[output.index()];
            if let Some((device, link)) = output.home.and_then(|home| Some((home, self.topology.host_link(home)?))) {
                end = end.max(self.transfer(output, device.index() * self.n_places() + self.free.len(), link));
            }
        }
        Estimate { seconds: end, transfers: self.transfers }
    }

    fn device(&self, node: Node, devices: &[DeviceId]) -> DeviceId {
        devices[self.groups.of(node).expect("the node is in the graph").index()]
    }

    fn region(&mut self, region: Region, devices: &[DeviceId], scale: f64) {
        let graph = self.graph;
        for &node in &graph.region(region).nodes {
            self.walked += 1;
            let data = graph.node(node);
            if self.uniform[node.index()] {
                let device = self.device(node, devices);
                let mut start = self.free[device.index()];
                for &v in &data.operands {
                    start = self.arrival(v, device).max(start);
                }
                let own = self.whole[self.class[device.index()]][node.index()];
                let end = start + scale * (own + if self.lowered > 0 { SCHEDULED } else { 0.0 });
                self.free[device.index()] = end;
                for &r in &data.results {
                    self.values[r.index()] = Whereabouts { home: Some(device), ready: end, origin: r };
                }
                continue;
            }
            self.lowered += 1;
            match data.op {
                Op::While { .. } => self.split_loop(node, devices, scale),
                Op::Cond => {
                    let cond = graph.cond_of(node);
                    let mut yielded: Vec<Vec<Whereabouts>> = Vec::new();
                    for inner in cond.branches() {
                        self.bind(&graph.region(inner).params, graph.captured(node));
                        self.wait_for(cond.predicate(), inner, devices);
                        self.region(inner, devices, 0.5 * scale);
                        yielded.push(graph.region(inner).yields.iter().map(|y| self.values[y.index()]).collect());
                    }
                    for (i, &r) in data.results.iter().enumerate() {
                        // A result is on the device of a branch that computes it. The other branch
                        // sends its value there.
                        let made = |(value, y): (Value, &Vec<Whereabouts>)| graph.producer(value).and(y[i].home);
                        let made = cond.yields(i).into_iter().zip(&yielded).find_map(made);
                        let home = made.unwrap_or_else(|| self.device(node, devices));
                        let ready = yielded.iter().map(|y| self.moved(y[i], home)).fold(0.0, f64::max);
                        self.values[r.index()] = Whereabouts { home: Some(home), ready, origin: r };
                    }
                }
                _ => {
                    let inner = graph.call_of(node).forward();
                    self.bind(&graph.region(inner).params, graph.entry_values(node));
                    self.region(inner, devices, scale);
                    self.bind(&data.results, &graph.region(inner).yields);
                }
            }
            self.lowered -= 1;
        }
    }

    fn split_loop(&mut self, node: Node, devices: &[DeviceId], scale: f64) {
        let graph = self.graph;
        let construct = graph.while_of(node);
        let trips = self.costs.trips[node.index()];
        let (cond, body) = (construct.cond(), construct.body());
        let taking_part = self.taking_part(&[cond, body], devices);
        self.bind(&graph.region(cond).params, graph.entry_values(node));
        self.bind(&graph.region(body).params, graph.entry_values(node));
        let mut state: Vec<Whereabouts> = construct.inits().iter().map(|v| self.values[v.index()]).collect();
        let (times, mut ends) = (self.times, Vec::new());
        let walked = WALKED.min(trips as usize);
        for i in 0..walked {
            if i + 1 == WALKED {
                self.times = times * (trips - WALKED as f64 + 1.0);
            }
            self.region(cond, devices, scale);
            let pred = self.values[construct.predicate().index()];
            self.announce(pred, &taking_part);
            self.region(body, devices, scale);
            let next: Vec<Whereabouts> = construct.nexts().iter().map(|v| self.values[v.index()]).collect();
            if i == 0 {
                // A loop variable is on the device that computes its next value.
                for (init, next) in state.iter().zip(&next) {
                    next.home.map(|home| self.moved(*init, home));
                }
            }
            state = next;
            for (var, &s) in construct.vars().zip(&state) {
                self.values[var.cond_param.index()] = s;
                self.values[var.body_param.index()] = s;
            }
            ends.push(taking_part.iter().map(|d| self.free[d.index()]).fold(0.0, f64::max));
        }
        self.times = times;
        if walked == WALKED {
            let later = (ends[2] - ends[1]) * (trips - WALKED as f64);
            taking_part.iter().for_each(|d| self.free[d.index()] += later);
            state.iter_mut().filter(|s| s.home.is_some()).for_each(|s| s.ready += later);
        }
        for (var, s) in construct.vars().zip(state) {
            self.values[var.result.index()] = s;
        }
    }

    /// Returns the devices of the nodes in regions, in order.
    fn taking_part(&mut self, regions: &[Region], devices: &[DeviceId]) -> Vec<DeviceId> {
        let mut all = Vec::new();
        for &region in regions {
            let inside = self.inside.entry(region).or_insert_with(|| {
                let mut groups = Vec::new();
                self.graph.visit_nodes(region, &mut |n| groups.extend(self.groups.of(n)));
                groups.sort_unstable();
                groups.dedup();
                groups
            });
            all.extend(inside.iter().map(|g| devices[g.index()]));
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Makes all devices of a branch wait for the predicate.
    fn wait_for(&mut self, pred: Value, region: Region, devices: &[DeviceId]) {
        let taking_part = self.taking_part(&[region], devices);
        self.announce(self.values[pred.index()], &taking_part);
    }

    fn announce(&mut self, pred: Whereabouts, to: &[DeviceId]) {
        for &d in to {
            let latency = match pred.home {
                Some(home) if home != d => self.topology.link(home, d).latency,
                _ => 0.0,
            };
            self.transfers += latency * self.times;
            self.free[d.index()] = self.free[d.index()].max(pred.ready + latency);
        }
    }

    fn bind(&mut self, params: &[Value], given: &[Value]) {
        for (p, v) in params.iter().zip(given) {
            self.values[p.index()] = self.values[v.index()];
        }
    }

    /// Returns the time at which a value is available on a device.
    fn arrival(&mut self, v: Value, device: DeviceId) -> f64 {
        self.moved(self.values[v.index()], device)
    }

    /// Returns the time at which a value is available on a device. A value is sent to a device at
    /// most once.
    fn moved(&mut self, value: Whereabouts, device: DeviceId) -> f64 {
        let Whereabouts { home, ready, origin } = value;
        if home == Some(device) {
            return ready;
        }
        let link = match home {
            Some(home) => self.topology.link(home, device),
            None => match self.topology.host_link(device) {
                Some(link) => link,
                None => return ready,
            },
        };
        if let Some(&(then, arrival)) = self.sent.get(&(origin, device))
            && then == ready
        {
            return arrival;
        }
        // Both ends of a transfer between devices have overhead.
        if let Some(home) = home {
            self.free[home.index()] += SCHEDULED;
            self.free[device.index()] += SCHEDULED;
        }
        let from = home.map_or(self.free.len(), |home| home.index());
        let arrival = self.transfer(value, from * self.n_places() + device.index(), link);
        self.sent.insert((origin, device), (ready, arrival));
        arrival
    }

    /// Returns the number of devices, and the host.
    fn n_places(&self) -> usize {
        self.free.len() + 1
    }

    /// Sends a value over a link, by its index in `link_free`. Returns the time of its arrival.
    fn transfer(&mut self, value: Whereabouts, index: usize, link: LinkSpeed) -> f64 {
        let seconds = self.costs.bytes[value.origin.index()] / link.bandwidth;
        let free = &mut self.link_free[index];
        *free = value.ready.max(*free) + seconds;
        let arrival = *free + link.latency;
        self.transfers += (link.latency + seconds) * self.times;
        arrival
    }
}
