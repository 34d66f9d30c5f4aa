//! Search for the device of each group among its feasible devices.
//!
//! Minimizing the time is NP-hard already for two equal devices without messages. This is a
//! heuristic in the manner of list scheduling on clusters (Sarkar, "Partitioning and scheduling
//! parallel programs for multiprocessors", 1989, for the clusters; Topcuoglu, Hariri and Wu,
//! "Performance-effective and low-complexity task scheduling for heterogeneous computing", 2002,
//! for the order). Groups that cost more to separate than to run sequentially are merged into
//! *clusters*. The clusters are list-scheduled, heaviest first. Then single clusters move while the
//! estimated time of a step decreases.
//!
//! A loop is one cluster unless constraints inside it conflict. The loop is split only if that
//! saves at least a fifth, because a loop over several devices has a cost per iteration. Finally,
//! the result is compared with the best single device, which wins unless the gain is at least a
//! tenth.
//!
//! The search is deterministic: ties go to the first candidate. The work of the search is bounded
//! by the number of nodes that estimates visit.

use super::estimate::{Estimate, Estimator};
use super::groups::{Feasible, GroupId, Groups};
use crate::device::cost::Costs;
use crate::device::{DeviceId, Topology};
use crate::disjoint_sets::DisjointSets;
use anabranch_dsl::device::DevicePattern;
use anabranch_dsl::ir::Graph;
use std::cmp::Ordering;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

/// Maximum ratio of the time on several devices to the time on the best single device.
const WORTH_SPLITTING: f64 = 0.9;

/// Maximum ratio of the time with split loops to the time with whole loops.
const WORTH_BREAKING_LOOPS: f64 = 0.8;

/// Maximum number of clusters on the finest level.
const MAX_CLUSTERS: usize = 96;

/// Maximum weight of a cluster, relative to an equal share of the work per device.
const FAIR_SHARE: f64 = 1.1;

/// Maximum number of nodes that estimates visit, besides one estimate per start.
const MAX_WALKED: usize = 500_000;

/// The reason for the device of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlacementReason {
    /// A constraint on the group.
    Asked,
    /// A constraint on a group in the same cluster: separating them would cost more.
    With(GroupId),
    /// The graph runs on the best single device.
    Single,
    /// The lowest estimated time.
    Spread,
}

/// The chosen devices of all groups.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) devices: Vec<DeviceId>,
    pub(super) why: Vec<PlacementReason>,
    pub(super) estimate: Estimate,
    /// The estimate for the best single device, if constraints permit one.
    pub(super) single: Option<(DeviceId, Estimate)>,
}

/// Chooses the devices that constraints leave open.
pub(super) fn choose(
    graph: &Graph,
    groups: &Groups,
    feasible: &Feasible,
    topology: &Topology,
    costs: &Costs,
) -> Choice {
    let mut chooser = Chooser { groups, feasible, topology, estimator: Estimator::new(graph, topology, groups, costs) };
    chooser.choose(graph, costs)
}

struct Chooser<'a> {
    groups: &'a Groups,
    feasible: &'a Feasible,
    topology: &'a Topology,
    estimator: Estimator<'a>,
}

/// A value computed by one group and used by another, with the seconds of its transfer.
struct GroupEdge {
    from: GroupId,
    to: GroupId,
    seconds: f64,
    /// Whether either group runs more than once per step.
    repeated: bool,
}

/// Groups placed together.
struct Cluster {
    groups: Vec<GroupId>,
    devices: Vec<DeviceId>,
    /// Seconds on each device.
    seconds: Vec<f64>,
    /// Neighboring clusters, with the seconds of the transfers.
    near: Vec<(usize, f64)>,
}

/// The result of a search: the devices of all groups, and the finest clusters.
struct SearchResult {
    devices: Vec<DeviceId>,
    estimate: Estimate,
    clusters: Vec<Cluster>,
}

impl Cluster {
    fn weight(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

impl Chooser<'_> {
    fn choose(&mut self, graph: &Graph, costs: &Costs) -> Choice {
        let free = |g: GroupId| self.feasible.of(g).len() == self.topology.devices.len();
        let ids: Vec<GroupId> = self.groups.ids().collect();
        // The best of the devices on which every group may run.
        let mut best: Option<(DeviceId, Estimate)> = None;
        for d in self.topology.ids() {
            if ids.iter().all(|&g| free(g) || self.feasible.of(g).contains(&d)) {
                let estimate = self.estimator.single(d);
                if best.is_none_or(|(_, b)| estimate.seconds < b.seconds) {
                    best = Some((d, estimate));
                }
            }
        }
        let why_single = |g: &GroupId| {
            if self.feasible.causes[g.index()].is_empty() { PlacementReason::Single } else { PlacementReason::Asked }
        };
        let single = best.map(|(d, estimate)| Choice {
            devices: vec![d; ids.len()],
            why: ids.iter().map(why_single).collect(),
            estimate,
            single: best,
        });
        // A graph that takes no longer than a few messages is not split.
        let latency = self.fastest().1;
        match single {
            Some(single) if single.estimate.seconds < 4.0 * latency || self.topology.devices.len() == 1 => single,
            _ => {
                let edges = self.edges(graph, costs);
                let loops = self.whole_loops(graph);
                let single_device = best.map(|(d, _)| d);
                let mut found = self.search(&edges, &loops, single_device);
                if !loops.is_empty() {
                    let broken = self.search(&edges, &[], single_device);
                    if broken.estimate.seconds <= WORTH_BREAKING_LOOPS * found.estimate.seconds {
                        found = broken;
                    }
                }
                let SearchResult { devices, clusters, estimate } = found;
                match single {
                    Some(single) if estimate.seconds > WORTH_SPLITTING * single.estimate.seconds => single,
                    _ => Choice { why: self.reasons(&clusters), devices, estimate, single: best },
                }
            }
        }
    }

    fn reasons(&self, clusters: &[Cluster]) -> Vec<PlacementReason> {
        let mut why = vec![PlacementReason::Spread; self.groups.len()];
        let asked = |g: &GroupId| !self.feasible.causes[g.index()].is_empty();
        for cluster in clusters {
            let first = cluster.groups.iter().copied().find(asked);
            for &g in &cluster.groups {
                why[g.index()] = if asked(&g) {
                    PlacementReason::Asked
                } else {
                    first.map_or(PlacementReason::Spread, PlacementReason::With)
                };
            }
        }
        why
    }

    /// Returns the largest bandwidth and the lowest latency between two devices.
    fn fastest(&self) -> (f64, f64) {
        let ids = || self.topology.ids();
        let pairs = ids().flat_map(|a| ids().map(move |b| (a, b))).filter(|(a, b)| a != b);
        pairs.map(|(a, b)| self.topology.link(a, b)).fold((1.0, f64::INFINITY), |(bandwidth, latency), link| {
            (link.bandwidth.max(bandwidth), link.latency.min(latency))
        })
    }

    fn edges(&self, graph: &Graph, costs: &Costs) -> Vec<GroupEdge> {
        let (bandwidth, latency) = self.fastest();
        let mut seen = HashSet::new();
        let mut edges: Vec<GroupEdge> = Vec::new();
        for node in self.estimator.nodes() {
            let data = graph.node(node);
            if !data.regions.is_empty() {
                continue;
            }
            let to = self.groups.of(node).expect("the node is in the graph");
            for &v in &data.operands {
                let Some(maker) = costs.makers[v.index()] else { continue };
                let Some(from) = self.groups.of(maker).filter(|&from| from != to) else { continue };
                if seen.insert((maker, to)) {
                    let runs = |n| costs.runs[graph.node(n).region.index()];
                    let seconds = runs(maker).min(runs(node)) * (latency + costs.bytes[v.index()] / bandwidth);
                    let repeated = runs(maker).max(runs(node)) > 1.0;
                    edges.push(GroupEdge { from, to, seconds, repeated });
                }
            }
        }
        // The sort is stable, so ties stay in program order.
        edges.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        edges
    }

    /// Returns the groups of each branch, loop and call of the root, unless constraints inside
    /// conflict.
    fn whole_loops(&self, graph: &Graph) -> Vec<Vec<GroupId>> {
        let mut all = Vec::new();
        for &node in &graph.region(graph.root()).nodes {
            if !graph.node(node).op.is_construct() {
                continue;
            }
            let mut inner = Vec::new();
            inner.extend(self.groups.of(node));
            for &region in &graph.node(node).regions {
                graph.visit_nodes(region, &mut |n| inner.extend(self.groups.of(n)));
            }
            let merged = inner.iter().try_fold(DevicePattern::ANY, |p, &g| p.merge(&self.feasible.pattern(g)));
            if merged.is_some_and(|p| !self.topology.matching(&p).is_empty()) {
                all.push(inner);
            }
        }
        all
    }

    /// Returns clusterings from coarse to fine. Each level refines the previous level.
    fn levels(&mut self, edges: &[GroupEdge], joined: &[Vec<GroupId>]) -> Vec<Vec<Cluster>> {
        let patterns = self.groups.ids().map(|g| self.feasible.pattern(g)).collect();
        let seconds = self.seconds();
        let mut merging = Merging::new(self.topology, patterns, &seconds);
        for inner in joined {
            for pair in inner.windows(2) {
                merging.join(pair[0].index(), pair[1].index());
            }
        }
        // Outside loops, a chain in which each node is the only user of the previous node has no
        // parallelism. In a loop, parts of a chain may work on different iterations.
        let (mut after, mut before): (HashMap<GroupId, Option<GroupId>>, HashMap<GroupId, Option<GroupId>>) =
            Default::default();
        for e in edges {
            after.entry(e.from).and_modify(|only| *only = None).or_insert(Some(e.to));
            before.entry(e.to).and_modify(|only| *only = None).or_insert(Some(e.from));
        }
        for e in edges.iter().filter(|e| !e.repeated) {
            let is_node = |g: GroupId| self.groups.members[g.index()].len() == 1;
            let only = after[&e.from] == Some(e.to) && before[&e.to] == Some(e.from);
            if only && is_node(e.from) && is_node(e.to) {
                merging.join(e.from.index(), e.to.index());
            }
        }
        // A cluster that takes less time than the transfer joins its heaviest neighbor.
        for e in edges {
            let (a, b) = (merging.sets.root(e.from.index()), merging.sets.root(e.to.index()));
            if a != b && merging.weight[a].min(merging.weight[b]) <= e.seconds {
                merging.join(a, b);
            }
        }
        // Now repeatedly merge the pair that gains least by separation, down to one cluster per
        // device. A cluster is identified by one of its groups. The cluster with fewer neighbors
        // adopts the identifier of the other cluster.
        let mut near = merging.near(edges);
        let mut queue = BinaryHeap::new();
        for (&a, of_a) in &near {
            queue.extend(of_a.range(a + 1..).map(|(&b, &seconds)| merging.pair(a, b, seconds)));
        }
        let mut levels = Vec::new();
        let mut limit = MAX_CLUSTERS;
        let total: f64 = seconds.iter().map(|s| s.iter().copied().fold(f64::INFINITY, f64::min)).sum();
        let heaviest = FAIR_SHARE * total / self.topology.devices.len() as f64;
        loop {
            if merging.count <= limit {
                levels.push(merging.clusters(&seconds, edges));
                limit = merging.count.div_ceil(2).max(self.topology.devices.len());
            }
            if merging.count <= self.topology.devices.len() {
                break;
            }
            let Some(pair) = queue.pop() else { break };
            let Some(&between) = near.get(&pair.a).and_then(|of_a| of_a.get(&pair.b)) else { continue };
            let now = merging.pair(pair.a, pair.b, between);
            if now.urgency < pair.urgency {
                queue.push(now);
                continue;
            }
            if merging.weight_of(pair.a) + merging.weight_of(pair.b) > heaviest || !merging.join(pair.a, pair.b) {
                continue;
            }
            let (mut stays, mut goes) = (pair.a, pair.b);
            if near[&stays].len() < near[&goes].len() {
                std::mem::swap(&mut stays, &mut goes);
            }
            for (other, seconds) in near.remove(&goes).expect("the merged group had a neighbor") {
                near.get_mut(&other).expect("neighbors know each other").remove(&goes);
                if other != stays {
                    let sum =
                        near.get_mut(&stays).expect("the remaining group has neighbors").entry(other).or_default();
                    *sum += seconds;
                    let sum = *sum;
                    near.get_mut(&other).expect("neighbors know each other").insert(stays, sum);
                    queue.push(merging.pair(stays, other, sum));
                }
            }
        }
        levels.push(merging.clusters(&seconds, edges));
        levels.reverse();
        levels
    }

    /// Returns the seconds per step of each group on each device.
    fn seconds(&self) -> Vec<Vec<f64>> {
        let mut seconds = vec![vec![0.0; self.topology.devices.len()]; self.groups.len()];
        for node in self.estimator.nodes() {
            let g = self.groups.of(node).expect("the node is in the graph");
            for (d, s) in self.topology.ids().zip(&mut seconds[g.index()]) {
                *s += self.estimator.seconds(node, d);
            }
        }
        seconds
    }

    /// Returns the best placement found if the groups in `joined` stay together.
    ///
    /// The clusters of each level are list-scheduled. Starting from the best result, single
    /// clusters move on each level.
    fn search(&mut self, edges: &[GroupEdge], joined: &[Vec<GroupId>], single: Option<DeviceId>) -> SearchResult {
        let levels = self.levels(edges, joined);
        let order = |clusters: &[Cluster]| {
            let mut order: Vec<usize> = (0..clusters.len()).collect();
            order.sort_by(|&a, &b| clusters[b].weight().total_cmp(&clusters[a].weight()));
            order
        };
        let mut starts = Vec::new();
        for clusters in &levels {
            starts.push(self.spread(clusters, &self.list_schedule(clusters, &order(clusters))));
        }
        // All unconstrained clusters on one device.
        let finest = levels.last().expect("there is at least one level");
        for d in single.into_iter().chain(self.topology.ids().take(if single.is_some() { 0 } else { 16 })) {
            let at: Vec<DeviceId> =
                finest.iter().map(|c| if c.devices.contains(&d) { d } else { c.devices[0] }).collect();
            starts.push(self.spread(finest, &at));
        }
        let mut found: Option<(Vec<DeviceId>, Estimate)> = None;
        for start in starts {
            let estimate = self.estimator.of(&start);
            if found.as_ref().is_none_or(|(_, f)| estimate.score() < f.score()) {
                found = Some((start, estimate));
            }
        }
        let (mut devices, mut estimate) = found.expect("there is at least one start");
        for (i, clusters) in levels.iter().enumerate() {
            let limit = self.estimator.walked + MAX_WALKED / levels.len();
            let order = order(clusters);
            let mut improved = true;
            while std::mem::take(&mut improved) {
                for &c in &order {
                    let cluster = &clusters[c];
                    let at = devices[cluster.groups[0].index()];
                    // At the start, the groups of a cluster may be on different devices.
                    if cluster.groups.iter().any(|g| devices[g.index()] != at) && i + 1 < levels.len() {
                        continue;
                    }
                    for &d in &cluster.devices {
                        let at = devices[cluster.groups[0].index()];
                        if d == at || self.estimator.walked + self.estimator.size() > limit {
                            continue;
                        }
                        cluster.groups.iter().for_each(|g| devices[g.index()] = d);
                        let moved = self.estimator.of(&devices);
                        // Ignore gains due to rounding.
                        if moved.score() < estimate.score() * (1.0 - 1e-9) {
                            estimate = moved;
                            improved = true;
                        } else {
                            cluster.groups.iter().for_each(|g| devices[g.index()] = at);
                        }
                    }
                }
            }
        }
        SearchResult {
            devices,
            estimate,
            clusters: levels.into_iter().next_back().expect("there is at least one level"),
        }
    }

    /// Assigns clusters, heaviest first, each to the device that finishes it and its transfers
    /// soonest.
    fn list_schedule(&self, clusters: &[Cluster], order: &[usize]) -> Vec<DeviceId> {
        let mut load = vec![0.0; self.topology.devices.len()];
        let mut at: Vec<Option<DeviceId>> = vec![None; clusters.len()];
        for &i in order {
            let c = &clusters[i];
            let end = |d: DeviceId| {
                let apart = |&&(other, _): &&(usize, f64)| at[other].is_some_and(|o| o != d);
                let messages: f64 = c.near.iter().filter(apart).map(|(_, s)| s).sum();
                load[d.index()] + c.seconds[d.index()] + messages
            };
            let d =
                *c.devices.iter().min_by(|&&a, &&b| end(a).total_cmp(&end(b))).expect("at least one device remains");
            load[d.index()] += c.seconds[d.index()];
            at[i] = Some(d);
        }
        at.into_iter().map(|d| d.expect("each cluster was assigned a device")).collect()
    }

    fn spread(&self, clusters: &[Cluster], at: &[DeviceId]) -> Vec<DeviceId> {
        let mut devices = vec![DeviceId::from_index(0); self.groups.len()];
        for (c, &d) in clusters.iter().zip(at) {
            c.groups.iter().for_each(|g| devices[g.index()] = d);
        }
        devices
    }
}

/// The state of clustering.
struct Merging<'a> {
    topology: &'a Topology,
    sets: DisjointSets,
    /// The merged constraint of each set, indexed by its root.
    patterns: Vec<DevicePattern>,
    /// The seconds of each set on its best device, indexed by its root.
    weight: Vec<f64>,
    count: usize,
    matching: HashMap<DevicePattern, Vec<DeviceId>>,
}

/// A pair of clusters that may be merged, each identified by one of its groups.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ClusterPair {
    /// The squared transfer time between the clusters, divided by the product of their weights.
    ///
    /// Light clusters are merged first, and none absorbs all others (the rating of Holtgrewe,
    /// Sanders and Schulz, "Engineering a scalable high quality graph partitioner", 2010).
    urgency: f64,
    a: usize,
    b: usize,
}

impl Eq for ClusterPair {}

impl Ord for ClusterPair {
    fn cmp(&self, other: &ClusterPair) -> Ordering {
        self.urgency.total_cmp(&other.urgency).then((other.a, other.b).cmp(&(self.a, self.b)))
    }
}

impl PartialOrd for ClusterPair {
    fn partial_cmp(&self, other: &ClusterPair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'a> Merging<'a> {
    fn new(topology: &'a Topology, patterns: Vec<DevicePattern>, seconds: &[Vec<f64>]) -> Merging<'a> {
        let least = |s: &Vec<f64>| s.iter().copied().fold(f64::INFINITY, f64::min);
        let (count, weight) = (seconds.len(), seconds.iter().map(least).collect());
        Merging { topology, sets: DisjointSets::new(count), patterns, weight, count, matching: HashMap::new() }
    }

    /// Merges two sets if a device remains feasible. Returns whether it merged them.
    fn join(&mut self, a: usize, b: usize) -> bool {
        let (a, b) = (self.sets.root(a), self.sets.root(b));
        let Some(merged) = self.patterns[a].merge(&self.patterns[b]).filter(|_| a != b) else { return false };
        if self.matching(merged).is_empty() {
            return false;
        }
        let weight = self.weight[a] + self.weight[b];
        self.sets.join(a, b);
        let root = self.sets.root(a);
        (self.patterns[root], self.weight[root]) = (merged, weight);
        self.count -= 1;
        true
    }

    fn matching(&mut self, pattern: DevicePattern) -> &[DeviceId] {
        self.matching.entry(pattern).or_insert_with(|| self.topology.matching(&pattern))
    }

    fn pair(&mut self, a: usize, b: usize, seconds: f64) -> ClusterPair {
        let weights = self.weight[self.sets.root(a)].max(1e-9) * self.weight[self.sets.root(b)].max(1e-9);
        ClusterPair { urgency: seconds * seconds / weights, a: a.min(b), b: a.max(b) }
    }

    fn weight_of(&mut self, group: usize) -> f64 {
        self.weight[self.sets.root(group)]
    }

    /// Returns the neighbors of each cluster with the transfer seconds, indexed by roots.
    fn near(&mut self, edges: &[GroupEdge]) -> BTreeMap<usize, BTreeMap<usize, f64>> {
        let mut near: BTreeMap<usize, BTreeMap<usize, f64>> = BTreeMap::new();
        for e in edges {
            let (a, b) = (self.sets.root(e.from.index()), self.sets.root(e.to.index()));
            if a != b {
                *near.entry(a).or_default().entry(b).or_default() += e.seconds;
                *near.entry(b).or_default().entry(a).or_default() += e.seconds;
            }
        }
        near
    }

    /// Returns the current sets in the order of their first groups.
    fn clusters(&mut self, seconds: &[Vec<f64>], edges: &[GroupEdge]) -> Vec<Cluster> {
        let mut index: HashMap<usize, usize> = HashMap::new();
        let mut clusters: Vec<Cluster> = Vec::new();
        for (g, of_group) in (0..).zip(seconds) {
            let root = self.sets.root(g as usize);
            if let Entry::Vacant(new) = index.entry(root) {
                new.insert(clusters.len());
                let devices = self.matching(self.patterns[root]).to_vec();
                clusters.push(Cluster {
                    groups: Vec::new(),
                    devices,
                    seconds: vec![0.0; of_group.len()],
                    near: Vec::new(),
                });
            }
            let cluster = &mut clusters[index[&root]];
            cluster.groups.push(GroupId(g));
            cluster.seconds.iter_mut().zip(of_group).for_each(|(sum, s)| *sum += s);
        }
        for (a, of_a) in self.near(edges) {
            clusters[index[&a]].near.extend(of_a.iter().map(|(b, &seconds)| (index[b], seconds)));
        }
        clusters
    }
}
