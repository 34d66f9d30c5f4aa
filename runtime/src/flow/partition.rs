//! Partitioning: turns a graph and the device of each node into a [`Partition`].
//!
//! 1. *Homes*: each value is computed in one subgraph. A loop variable belongs to the subgraph that
//!    computes its next value, a result of a conditional to a subgraph whose branch computes it.
//!    Stacks and lists share a subgraph with all operations on them. Inputs of the graph are
//!    available everywhere.
//! 2. *Uses*: which subgraph needs which value in which block. A subgraph that sends a value in a
//!    branch participates in that branch and so needs its predicate. This step repeats until
//!    nothing is added.
//! 3. *Clusters*: connected nodes of one block, subgraph and level form one kernel. The level of a
//!    node is the maximum over all paths to it of the number of times that a value changes
//!    subgraph, passes through a lowered construct, or is used after it was also sent to another
//!    subgraph. An ordered effect has a higher level than the previous effect. Clusters therefore
//!    have no cyclic dependencies, and a send does not wait for local users of the value. Nodes
//!    that compute a value another subgraph waits for are separated from nodes that do not. Views
//!    of constants have the level of their first users.
//! 4. *Nodes*: creates the nodes block by block, then sends and receives, then connects them.
//!
//! A value used in a branch is sent within that branch. If two constructs that may both run need
//! it, it is sent once, before them.

use super::{Partition, SubgraphId};
use crate::device::DeviceId;
use crate::disjoint_sets::DisjointSets;
use crate::place::{Placement, ordered_effects};
use anabranch_dsl::Graph;
use anabranch_dsl::ir::{CallKind, Node, Op, Region, Value};
use anabranch_dsl::ops::OpClass;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Options of the partitioner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartitionOptions {
    /// Makes each node its own kernel and lowers all control flow, even within one device.
    pub(crate) lower_everything: bool,
    /// Lowers all control flow, even within one device, so that the cost of a kernel follows from
    /// its graph.
    pub(crate) lower_control: bool,
    /// Maximum number of concurrent iterations of a loop.
    pub(crate) parallel_iterations: u32,
}

impl Default for PartitionOptions {
    fn default() -> PartitionOptions {
        PartitionOptions { lower_everything: false, lower_control: false, parallel_iterations: 32 }
    }
}

/// A block before it has an index: a region, or the exits of a loop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum BlockKey {
    Region(Region),
    Exits(Node),
}

/// The subgraph that computes a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ValueOwner {
    Everywhere,
    In(SubgraphId),
}

/// Partitions a graph according to its placement.
pub(crate) fn partition(graph: &Graph, placement: &Placement, options: PartitionOptions) -> Partition {
    let mut cut = Partitioner::new(graph, placement, options);
    cut.homes(graph.root());
    cut.uses();
    cut.clusters();
    cut.build()
}

pub(super) struct Partitioner<'g> {
    pub(super) graph: &'g Graph,
    pub(super) options: PartitionOptions,
    /// The device of each subgraph.
    pub(super) devices: Vec<DeviceId>,
    /// The subgraph chosen for each node.
    pub(super) part: Vec<SubgraphId>,
    /// Nodes whose regions are lowered.
    pub(super) split: Vec<bool>,
    /// Whether each node is, or contains, an ordered effect. Effects are ordered if there are
    /// prints or operations on queues; assertions are then ordered with them.
    pub(super) ordered: Vec<bool>,
    /// The value that each region parameter or call result stands for.
    pub(super) alias: Vec<Option<Value>>,
    pub(super) home: Vec<Option<ValueOwner>>,
    /// The enclosing place of each lowered place, and the construct between them.
    pub(super) around: HashMap<BlockKey, (BlockKey, Node)>,
    /// The lowered place in which each value is computed.
    pub(super) made_in: Vec<Option<BlockKey>>,
    /// The subgraphs that participate in each construct.
    pub(super) members: BTreeMap<Node, BTreeSet<SubgraphId>>,
    pub(super) uses: BTreeMap<(Value, SubgraphId), BTreeSet<BlockKey>>,
    /// Captures of each loop, by loop and subgraph.
    pub(super) constants: BTreeMap<(Node, SubgraphId), BTreeSet<Value>>,
    /// The nodes of each cluster in program order. `cluster_of` is the cluster of each node.
    pub(super) clusters: Vec<Vec<Node>>,
    pub(super) cluster_of: Vec<Option<usize>>,
}

impl<'g> Partitioner<'g> {
    fn new(graph: &'g Graph, placement: &Placement, options: PartitionOptions) -> Partitioner<'g> {
        let devices = placement.devices(graph);
        let mut part = vec![SubgraphId(0); graph.n_nodes()];
        graph.visit_nodes(graph.root(), &mut |node| {
            let i = devices.binary_search(&placement.of(node)).expect("the device is one of those that are used");
            part[node.index()] = SubgraphId(i as u32);
        });
        let mut cut = Partitioner {
            graph,
            options,
            devices,
            part,
            split: vec![false; graph.n_nodes()],
            ordered: vec![false; graph.n_nodes()],
            alias: vec![None; graph.n_values()],
            home: vec![None; graph.n_values()],
            around: HashMap::new(),
            made_in: vec![None; graph.n_values()],
            members: BTreeMap::new(),
            uses: BTreeMap::new(),
            constants: BTreeMap::new(),
            clusters: Vec::new(),
            cluster_of: vec![None; graph.n_nodes()],
        };
        // F5: placement put all of these on one device.
        for effect in ordered_effects(graph) {
            cut.ordered[effect.index()] = true;
        }
        cut.split(graph.root());
        cut
    }

    /// Determines which constructs are lowered. Returns the subgraphs of all nodes in a region, and
    /// whether the region contains ordered effects.
    fn split(&mut self, region: Region) -> (BTreeSet<SubgraphId>, bool) {
        let (mut parts, mut ordered) = (BTreeSet::new(), false);
        for &node in &self.graph.region(region).nodes {
            if self.is_copied(node) {
                continue;
            }
            let data = self.graph.node(node);
            let mut inside = BTreeSet::from([self.part[node.index()]]);
            for inner in self.graph.running_regions(node) {
                let (parts, effects) = self.split(inner);
                inside.extend(parts);
                self.ordered[node.index()] |= effects;
            }
            let whole = matches!(data.op, Op::Call(CallKind::CustomGradient { .. }));
            let lowered = inside.len() > 1 || self.options.lower_everything || self.options.lower_control;
            let split = !data.regions.is_empty() && !whole && lowered;
            self.split[node.index()] = split;
            if !split {
                // A construct that is not lowered is in one subgraph, whatever was chosen for the
                // nodes inside.
                inside = BTreeSet::from([self.part[node.index()]]);
            }
            ordered |= self.ordered[node.index()];
            parts.extend(inside);
        }
        (parts, ordered)
    }

    /// Returns the value that defines `value` in the lowered graph.
    pub(super) fn resolve(&self, value: Value) -> Value {
        let mut value = value;
        while let Some(other) = self.alias[value.index()] {
            value = other;
        }
        value
    }

    /// Returns the place of a region. A call has no place of its own because its region always
    /// runs.
    pub(super) fn place(&self, region: Region) -> BlockKey {
        let mut region = region;
        while let Some(owner) = self.graph.region(region).owner
            && matches!(self.graph.node(owner).op, Op::Call(_))
        {
            region = self.graph.node(owner).region;
        }
        BlockKey::Region(region)
    }

    /// Returns whether a node is copied into each kernel that uses it.
    pub(super) fn is_copied(&self, node: Node) -> bool {
        matches!(self.graph.node(node).op, Op::Constant(_)) && !self.options.lower_everything
    }

    pub(super) fn home_of(&self, value: Value) -> ValueOwner {
        self.home[value.index()].unwrap_or_else(|| panic!("{value} has no home"))
    }

    fn here(&mut self, value: Value, home: ValueOwner, place: BlockKey) {
        (self.home[value.index()], self.made_in[value.index()]) = (Some(home), Some(place));
    }

    // Homes.

    /// Sets the homes of the values in a region. The homes or aliases of its parameters are known.
    fn homes(&mut self, region: Region) {
        let (graph, place) = (self.graph, self.place(region));
        if region == graph.root() {
            for &input in graph.inputs() {
                self.here(input, ValueOwner::Everywhere, place);
            }
        }
        for &node in &graph.region(region).nodes {
            let (data, own) = (graph.node(node), self.part[node.index()]);
            if !self.split[node.index()] {
                let home = if self.is_copied(node) { ValueOwner::Everywhere } else { ValueOwner::In(own) };
                data.results.iter().for_each(|&r| self.here(r, home, place));
                continue;
            }
            if !matches!(data.op, Op::Call(_)) {
                self.members.insert(node, BTreeSet::from([own]));
            }
            match data.op {
                Op::Cond => {
                    let cond = graph.cond_of(node);
                    for branch in cond.branches() {
                        self.around.insert(BlockKey::Region(branch), (place, node));
                        self.alias_captures(branch);
                        self.homes(branch);
                    }
                    for (i, &r) in data.results.iter().enumerate() {
                        let yields = cond.yields(i);
                        let kept = self.kept_in(yields[0]);
                        let made = || {
                            let mut yielded = cond.branches().into_iter().zip(yields);
                            yielded.find_map(|(branch, value)| self.made_inside(branch, value))
                        };
                        let home = kept.or_else(made).unwrap_or(own);
                        self.here(r, ValueOwner::In(home), place);
                    }
                }
                Op::While { .. } => {
                    let data = graph.while_of(node);
                    let (cond, body) = (data.cond(), data.body());
                    self.around.insert(BlockKey::Region(cond), (place, node));
                    self.around.insert(BlockKey::Region(body), (BlockKey::Region(cond), node));
                    self.around.insert(BlockKey::Exits(node), (BlockKey::Region(cond), node));
                    for var in data.vars() {
                        self.alias[var.body_param.index()] = Some(var.cond_param);
                        // Provisional: the home may change once the body has been processed.
                        let home = self.kept_in(var.init).unwrap_or(own);
                        self.here(var.cond_param, ValueOwner::In(home), BlockKey::Region(cond));
                    }
                    self.alias_captures(cond);
                    self.alias_captures(body);
                    self.homes(cond);
                    self.homes(body);
                    for var in data.vars() {
                        let made = || self.made_inside(body, var.next);
                        let home = self.kept_in(var.init).or_else(made).unwrap_or(own);
                        self.here(var.cond_param, ValueOwner::In(home), BlockKey::Region(cond));
                        self.here(var.result, ValueOwner::In(home), place);
                    }
                }
                Op::Call(_) => {
                    let inner = graph.call_of(node).forward();
                    self.alias_captures(inner);
                    self.homes(inner);
                    for (&r, &y) in data.results.iter().zip(&graph.region(inner).yields) {
                        self.alias[r.index()] = Some(y);
                    }
                }
                _ => panic!("{} has regions", data.op.name()),
            }
        }
    }

    /// Makes the captures of an inner region aliases of the values outside.
    fn alias_captures(&mut self, region: Region) {
        for (param, outer) in self.graph.captures_in(region) {
            self.alias[param.index()] = Some(outer);
        }
    }

    /// Returns the subgraph that owns a stack or list, or `None` for a tensor.
    fn kept_in(&self, value: Value) -> Option<SubgraphId> {
        match self.home_of(self.resolve(value)) {
            ValueOwner::In(part) if self.graph.ty(value).as_tensor().is_none() => Some(part),
            _ => None,
        }
    }

    /// Returns the subgraph that computes `value`, or `None` if it is computed outside `region`.
    fn made_inside(&self, region: Region, value: Value) -> Option<SubgraphId> {
        let value = self.resolve(value);
        self.graph.producer(value)?;
        let mut place = self.made_in[value.index()]?;
        let ValueOwner::In(part) = self.home_of(value) else { return None };
        while place != BlockKey::Region(region) {
            place = self.around.get(&place)?.0;
        }
        Some(part)
    }

    // Uses.

    /// Returns the root place of the frame that contains a place.
    fn frame_root(&self, place: BlockKey) -> BlockKey {
        let mut place = place;
        loop {
            match self.around.get(&place) {
                None => return place,
                Some((_, node)) if self.begins_frame(place, *node) => return place,
                Some((outer, _)) => place = *outer,
            }
        }
    }

    /// Returns whether a place is the condition of a loop.
    pub(super) fn begins_frame(&self, place: BlockKey, node: Node) -> bool {
        self.graph.as_while(node).is_some_and(|data| place == BlockKey::Region(data.cond()))
    }

    /// Records that a subgraph needs a value in a place. Returns whether that is new.
    fn need(&mut self, value: Value, part: SubgraphId, place: BlockKey) -> bool {
        let value = self.resolve(value);
        let made_in = self.made_in[value.index()].expect("a value is computed on some device");
        let root = self.frame_root(place);
        let mut new = self.join(part, place);
        if self.frame_root(made_in) != root {
            let (outer, node) = self.around[&root];
            new |= self.constants.entry((node, part)).or_default().insert(value);
            return self.need(value, part, outer) | new;
        }
        self.uses.entry((value, part)).or_default().insert(place) | new
    }

    /// Adds a subgraph to all constructs around a place. Returns whether the subgraph was new to
    /// one of them.
    fn join(&mut self, part: SubgraphId, place: BlockKey) -> bool {
        let (mut place, mut new) = (place, false);
        while let Some(&(outer, node)) = self.around.get(&place) {
            new |= self.members.get_mut(&node).expect("a lowered construct has members").insert(part);
            place = outer;
        }
        new
    }

    /// Collects all uses, up to the fixed point.
    fn uses(&mut self) {
        let graph = self.graph;
        let mut regions = vec![graph.root()];
        while let Some(region) = regions.pop() {
            let place = self.place(region);
            for &node in &graph.region(region).nodes {
                let (data, own) = (graph.node(node), self.part[node.index()]);
                if !self.split[node.index()] {
                    if !self.is_copied(node) {
                        self.join(own, place);
                    }
                    for &v in &data.operands {
                        // An assignment is not a kernel, so it has no copies of constants.
                        match data.op {
                            Op::Assign(_) => _ = self.need(v, own, place),
                            _ => self.need_operand(v, own, place),
                        }
                    }
                    continue;
                }
                let home_of_result = |cut: &Self, result: Value| match cut.home_of(result) {
                    ValueOwner::In(part) => part,
                    ValueOwner::Everywhere => panic!("a result has one home"),
                };
                match data.op {
                    Op::Cond => {
                        let cond = graph.cond_of(node);
                        for (i, &r) in data.results.iter().enumerate() {
                            let home = home_of_result(self, r);
                            for (branch, value) in cond.branches().into_iter().zip(cond.yields(i)) {
                                self.need(value, home, BlockKey::Region(branch));
                            }
                        }
                    }
                    Op::While { .. } => {
                        let data = graph.while_of(node);
                        for var in data.vars() {
                            let home = home_of_result(self, var.result);
                            self.join(home, BlockKey::Region(data.cond()));
                            self.need(var.init, home, place);
                            self.need(var.next, home, BlockKey::Region(data.body()));
                            self.need(var.cond_param, home, BlockKey::Exits(node));
                        }
                    }
                    _ => {}
                }
                regions.extend(graph.running_regions(node));
            }
        }
        for &v in graph.outputs() {
            if let ValueOwner::In(part) = self.home_of(self.resolve(v)) {
                self.need(v, part, BlockKey::Region(graph.root()));
            }
        }
        while self.uses_of_predicates() | self.uses_of_senders() {}
    }

    /// Records a use as an operand of a kernel, which contains copies of its constants.
    fn need_operand(&mut self, v: Value, part: SubgraphId, place: BlockKey) {
        if self.graph.producer(v).is_none_or(|n| !self.is_copied(n)) {
            self.need(v, part, place);
        }
    }

    /// Records that each subgraph of a construct needs its predicate.
    fn uses_of_predicates(&mut self) -> bool {
        let mut new = false;
        for (node, members) in self.members.clone() {
            let Some(predicate) = self.graph.predicate(node) else { continue };
            let place = self.place(self.graph.region_of(predicate));
            for part in members {
                new |= self.need(predicate, part, place);
            }
        }
        new
    }

    /// Records that a subgraph that sends a value in a place participates there.
    fn uses_of_senders(&mut self) -> bool {
        let mut new = false;
        for (value, part) in self.uses.keys().copied().collect::<Vec<_>>() {
            if let ValueOwner::In(home) = self.home_of(value)
                && home != part
            {
                for place in self.sent_in(value, part) {
                    new |= self.need(value, home, place);
                }
            }
        }
        new
    }

    /// Returns the places in which a value is sent to a subgraph. At most one of them is live.
    pub(super) fn sent_in(&self, value: Value, part: SubgraphId) -> Vec<BlockKey> {
        let made_in = self.made_in[value.index()].expect("a value is computed on some device");
        // The chain of places from each use up to the place that computes the value.
        let ways: Vec<Vec<BlockKey>> = self.uses[&(value, part)]
            .iter()
            .map(|&place| {
                let mut way = vec![place];
                let mut at = place;
                while at != made_in {
                    at = self.around[&at].0;
                    way.push(at);
                }
                way
            })
            .collect();
        let mut found = Vec::new();
        self.send_below(made_in, &ways, &mut found);
        found
    }

    fn send_below(&self, place: BlockKey, ways: &[Vec<BlockKey>], found: &mut Vec<BlockKey>) {
        if ways.iter().any(|way| way[0] == place) {
            return found.push(place);
        }
        // The next inner place of each chain.
        let next =
            |way: &Vec<BlockKey>| way[way.iter().position(|&p| p == place).expect("the path contains this block") - 1];
        let inside: BTreeSet<BlockKey> = ways.iter().map(next).collect();
        let constructs: BTreeSet<Node> = inside.iter().map(|p| self.around[p].1).collect();
        if constructs.len() > 1 {
            return found.push(place);
        }
        for inner in inside {
            let ways: Vec<Vec<BlockKey>> = ways.iter().filter(|way| next(way) == inner).cloned().collect();
            self.send_below(inner, &ways, found);
        }
    }

    // Clusters.

    fn clusters(&mut self) {
        let graph = self.graph;
        // Values that another subgraph waits for.
        let awaited: BTreeSet<Value> =
            self.uses.keys().filter(|&&(v, p)| self.home_of(v) != ValueOwner::In(p)).map(|&(v, _)| v).collect();
        // Only nodes of the same region are joined.
        let mut sets = DisjointSets::new(graph.n_nodes());
        let mut regions = vec![graph.root()];
        while let Some(region) = regions.pop() {
            let nodes = &graph.region(region).nodes;
            regions.extend(nodes.iter().filter(|n| self.split[n.index()]).flat_map(|&n| graph.running_regions(n)));
            let levels = self.levels(region, &awaited);
            // Nodes that an awaited value depends on, within the same level and subgraph.
            let mut urgent: HashMap<Node, bool> = HashMap::new();
            let mut mark: BTreeSet<Value> = BTreeSet::new();
            for &node in nodes.iter().rev() {
                let data = graph.node(node);
                let is_urgent = data.results.iter().any(|r| awaited.contains(r) || mark.contains(r));
                urgent.insert(node, is_urgent);
                if is_urgent && !self.split[node.index()] {
                    for &v in &data.operands {
                        let before = graph.producer(v).filter(|m| graph.node(*m).region == region);
                        let same =
                            |m: Node| self.part[m.index()] == self.part[node.index()] && levels[&m] == levels[&node];
                        if before.is_some_and(same) {
                            mark.insert(v);
                        }
                    }
                }
            }
            let is_single = |cut: &Self, n: Node| {
                cut.options.lower_everything
                    || cut.ordered[n.index()]
                    || matches!(graph.node(n).op, Op::Read(_) | Op::Assign(_))
            };
            for &node in nodes.iter().filter(|n| !self.split[n.index()] && !is_single(self, **n)) {
                for &v in &graph.node(node).operands {
                    let Some(before) = graph.producer(v).filter(|m| graph.node(*m).region == region) else { continue };
                    let key = |n: Node| (self.part[n.index()], levels[&n], urgent[&n]);
                    let fits = !self.split[before.index()] && !is_single(self, before) && !self.is_copied(before);
                    if fits && key(before) == key(node) {
                        sets.join(before.index(), node.index());
                    }
                }
            }
            let mut cluster_of_set: HashMap<usize, usize> = HashMap::new();
            for &node in nodes {
                let is_access = matches!(graph.node(node).op, Op::Read(_) | Op::Assign(_));
                if is_access || self.split[node.index()] || self.is_copied(node) {
                    continue;
                }
                let cluster = *cluster_of_set.entry(sets.root(node.index())).or_insert_with(|| {
                    self.clusters.push(Vec::new());
                    self.clusters.len() - 1
                });
                self.clusters[cluster].push(node);
                self.cluster_of[node.index()] = Some(cluster);
            }
        }
    }

    /// Returns the level of each node of a region: how often a value on a path to it has changed
    /// subgraph, passed through a lowered construct or an effect, or been sent.
    ///
    /// A send is thus not delayed by local users of the value.
    fn levels(&self, region: Region, awaited: &BTreeSet<Value>) -> HashMap<Node, u32> {
        let graph = self.graph;
        let mut levels: HashMap<Node, u32> = HashMap::new();
        // Effects run one after another.
        let mut last_effect = 0;
        for &node in &graph.region(region).nodes {
            // Such nodes have dependencies besides their operands and are never part of a larger
            // cluster.
            let apart = |n: Node| self.split[n.index()] || self.ordered[n.index()];
            let own = self.part[node.index()];
            let mut level = 0;
            for &v in &graph.node(node).operands {
                level = level.max(match graph.producer(v) {
                    Some(before) if self.is_copied(before) => 0,
                    Some(before) if !apart(node) && !apart(before) && self.part[before.index()] == own => {
                        levels[&before] + u32::from(awaited.contains(&v))
                    }
                    Some(before) => levels[&before] + 1,
                    None => u32::from(!matches!(self.home_of(self.resolve(v)), ValueOwner::In(p) if p == own)),
                });
            }
            if self.ordered[node.index()] {
                level = level.max(last_effect + 1);
                last_effect = level;
            }
            levels.insert(node, level);
        }
        self.raise_views(region, awaited, &mut levels);
        levels
    }

    /// Moves views of constants to the level of their first users, so that they need no memory:
    /// they become parts of the kernels of these users.
    fn raise_views(&self, region: Region, awaited: &BTreeSet<Value>, levels: &mut HashMap<Node, u32>) {
        let graph = self.graph;
        let nodes = &graph.region(region).nodes;
        let is_view =
            |node: Node| matches!(graph.node(node).op, Op::Prim(op, _) if matches!(op.class, OpClass::View(_)));
        let mut of_constants: BTreeSet<Node> = BTreeSet::new();
        for &node in nodes.iter().filter(|n| is_view(**n)) {
            let data = graph.node(node);
            let is_constant =
                |v: &Value| graph.producer(*v).is_some_and(|m| self.is_copied(m) || of_constants.contains(&m));
            if data.operands.iter().all(is_constant) && !awaited.contains(&data.results[0]) {
                of_constants.insert(node);
            }
        }
        let mut first_use: HashMap<Value, u32> = HashMap::new();
        for &node in nodes.iter().rev() {
            let data = graph.node(node);
            if of_constants.contains(&node)
                && let Some(&level) = first_use.get(&data.results[0])
            {
                levels.insert(node, level);
            }
            for &v in &data.operands {
                let level = first_use.entry(v).or_insert(levels[&node]);
                *level = levels[&node].min(*level);
            }
        }
    }
}
