//! Cutting a graph into parts: the graph and the device of each node in, a [`Partition`] out.
//!
//! 1. *Homes*: each value is made in one part. A loop variable lives where its next value is made, a result of a branch where one of its
//!    arms makes it; inputs of the graph are everywhere.
//! 2. *Uses*: which part needs which value in which block. A part that sends a value in a branch takes part in that branch, and so
//!    needs its predicate: this is repeated until nothing is added.
//! 3. *Clusters*: nodes of one block and part with one level are one kernel if they hang together. The level of a node counts how often a value
//!    has changed the part on its way there, so clusters do not wait for each other in a circle. What is needed for a value that another part waits
//!    for is not held up by what is not.
//! 4. *Nodes*: the parts, block by block; then what sends and receives; then who gives what to whom.
//!
//! A use of a value in a branch sends it in this branch. If two constructs that may both run need it, it is sent once, before them.

use super::{
    Block, BlockId, Edge, EdgeId, FlowOp, Frame, FrameId, KernelGraph, KernelId, LoopId, LoopInfo, NodeId, Part,
    PartId, PartNode, Partition, Sink, Source, Target,
};
use crate::place::{DeviceId, Placement};
use anabranch_dsl::Graph;
use anabranch_dsl::ir::{CallKind, Node, Op, Region, Value, ValueDef};
use anabranch_dsl::ops::Effects;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// How to cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Every node by itself, and all control flow lowered, even where one device has it all.
    pub(crate) lower_everything: bool,
    /// How many iterations of a loop may run at once.
    pub(crate) parallel_iterations: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { lower_everything: false, parallel_iterations: 32 }
    }
}

/// A block before it has a number: a region that runs or does not, or the exits of a loop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Place {
    Region(Region),
    Exits(Node),
}

/// Where a value is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Home {
    Everywhere,
    In(PartId),
}

/// Cuts a graph that was placed.
pub(crate) fn partition(graph: &Graph, placement: &Placement, options: Options) -> Partition {
    let mut cut = Cut::new(graph, placement, options);
    cut.homes(graph.root());
    cut.uses();
    cut.clusters();
    cut.build()
}

struct Cut<'g> {
    graph: &'g Graph,
    options: Options,
    /// The device of each part.
    devices: Vec<DeviceId>,
    /// The part that was chosen for a node.
    part: Vec<PartId>,
    /// Nodes whose regions are lowered.
    split: Vec<bool>,
    /// Whether prints are in order, and with them assertions; if so, for each node whether it or something inside is one.
    ordered: Vec<bool>,
    /// The value that a parameter of a branch, a body or a call stands for, and the one that a result of a call is.
    alias: Vec<Option<Value>>,
    home: Vec<Option<Home>>,
    /// For each place that is lowered, the place around it, and the node between them.
    around: HashMap<Place, (Place, Node)>,
    /// For a value that is made in a lowered place, that place.
    made_in: Vec<Option<Place>>,
    /// The parts that take part in a construct.
    members: BTreeMap<Node, BTreeSet<PartId>>,
    uses: BTreeMap<(Value, PartId), BTreeSet<Place>>,
    /// Values that enter all iterations of a loop, by loop and part.
    constants: BTreeMap<(Node, PartId), BTreeSet<Value>>,
    /// The nodes of each cluster, in program order, and the cluster of each node.
    clusters: Vec<Vec<Node>>,
    cluster_of: Vec<Option<usize>>,
}

impl<'g> Cut<'g> {
    fn new(graph: &'g Graph, placement: &Placement, options: Options) -> Cut<'g> {
        let (mut prints, mut first_effect) = (false, None);
        graph.visit_nodes(graph.root(), &mut |node| {
            prints |= matches!(graph.node(node).op, Op::Print { .. });
            if graph.node(node).op.effects() == Effects::Observable {
                first_effect = first_effect.or(Some(node));
            }
        });
        let devices = placement.devices(graph);
        let mut part = vec![PartId(0); graph.n_nodes()];
        graph.visit_nodes(graph.root(), &mut |node| {
            let i = devices.binary_search(&placement.of(node)).expect("the device is one of those that are used");
            part[node.index()] = PartId(i as u32);
        });
        let mut cut = Cut {
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
        // F5: effects are in order on the part of the first.
        if let (true, Some(first)) = (prints, first_effect) {
            let home = cut.part[first.index()];
            graph.visit_nodes(graph.root(), &mut |node| {
                if graph.node(node).op.effects() == Effects::Observable {
                    cut.part[node.index()] = home;
                    cut.ordered[node.index()] = true;
                }
            });
        }
        cut.split(graph.root());
        cut
    }

    /// Finds what is lowered; gives the parts of all nodes in a region, and whether effects are in it.
    fn split(&mut self, region: Region) -> (BTreeSet<PartId>, bool) {
        let (mut parts, mut ordered) = (BTreeSet::new(), false);
        for &node in &self.graph.region(region).nodes {
            if self.is_copied(node) {
                continue;
            }
            let data = self.graph.node(node);
            let mut inside = BTreeSet::from([self.part[node.index()]]);
            // The gradient of a call does not run.
            let n_run = if matches!(data.op, Op::Call(_)) { 1 } else { data.regions.len() };
            for &inner in &data.regions[..n_run] {
                let (parts, effects) = self.split(inner);
                inside.extend(parts);
                self.ordered[node.index()] |= effects;
            }
            let whole = matches!(data.op, Op::Call(CallKind::CustomGradient { .. }));
            let split = !data.regions.is_empty() && !whole && (inside.len() > 1 || self.options.lower_everything);
            self.split[node.index()] = split;
            if !split {
                // What is not lowered is in one part, whatever was chosen for what is inside.
                inside = BTreeSet::from([self.part[node.index()]]);
            }
            ordered |= self.ordered[node.index()];
            parts.extend(inside);
        }
        (parts, ordered)
    }

    /// The value that a value is, in the lowered graph.
    fn resolve(&self, value: Value) -> Value {
        let mut value = value;
        while let Some(other) = self.alias[value.index()] {
            value = other;
        }
        value
    }

    /// The place of a region. A call is no place of its own: what it runs, it always runs.
    fn place(&self, region: Region) -> Place {
        let mut region = region;
        while let Some(owner) = self.graph.region(region).owner
            && matches!(self.graph.node(owner).op, Op::Call(_))
        {
            region = self.graph.node(owner).region;
        }
        Place::Region(region)
    }

    /// Whether a node is copied into each kernel that uses it.
    fn is_copied(&self, node: Node) -> bool {
        matches!(self.graph.node(node).op, Op::Constant(_)) && !self.options.lower_everything
    }

    fn home_of(&self, value: Value) -> Home {
        self.home[value.index()].unwrap_or_else(|| panic!("{value} has no home"))
    }

    fn here(&mut self, value: Value, home: Home, place: Place) {
        (self.home[value.index()], self.made_in[value.index()]) = (Some(home), Some(place));
    }

    // Homes.

    /// Homes of what is made in a region whose parameters have theirs, or stand for others.
    fn homes(&mut self, region: Region) {
        let (graph, place) = (self.graph, self.place(region));
        if region == graph.root() {
            for &input in graph.inputs() {
                self.here(input, Home::Everywhere, place);
            }
        }
        for &node in &graph.region(region).nodes {
            let (data, own) = (graph.node(node), self.part[node.index()]);
            if !self.split[node.index()] {
                let home = if self.is_copied(node) { Home::Everywhere } else { Home::In(own) };
                data.results.iter().for_each(|&r| self.here(r, home, place));
                continue;
            }
            if !matches!(data.op, Op::Call(_)) {
                self.members.insert(node, BTreeSet::from([own]));
            }
            match data.op {
                Op::Cond => {
                    for &branch in &data.regions {
                        self.around.insert(Place::Region(branch), (place, node));
                        for (i, &p) in graph.region(branch).params.iter().enumerate() {
                            self.alias[p.index()] = Some(data.operands[i + 1]);
                        }
                        self.homes(branch);
                    }
                    for (i, &r) in data.results.iter().enumerate() {
                        let made = data.regions.iter().find_map(|&b| self.made_inside(b, graph.region(b).yields[i]));
                        self.here(r, Home::In(made.unwrap_or(own)), place);
                    }
                }
                Op::While => {
                    let (cond, body) = (data.regions[0], data.regions[1]);
                    self.around.insert(Place::Region(cond), (place, node));
                    self.around.insert(Place::Region(body), (Place::Region(cond), node));
                    self.around.insert(Place::Exits(node), (Place::Region(cond), node));
                    let n = graph.n_carried(node);
                    for (i, &p) in graph.region(cond).params.iter().enumerate() {
                        self.alias[graph.region(body).params[i].index()] = Some(p);
                        if i < n {
                            // Until the body has been seen.
                            self.here(p, Home::In(own), Place::Region(cond));
                        } else {
                            self.alias[p.index()] = Some(data.operands[i]);
                        }
                    }
                    self.homes(cond);
                    self.homes(body);
                    for i in 0..n {
                        let made = self.made_inside(body, graph.region(body).yields[i]).unwrap_or(own);
                        self.here(graph.region(cond).params[i], Home::In(made), Place::Region(cond));
                        self.here(data.results[i], Home::In(made), place);
                    }
                }
                Op::Call(_) => {
                    let inner = data.regions[0];
                    for (i, &p) in graph.region(inner).params.iter().enumerate() {
                        self.alias[p.index()] = Some(data.operands[i]);
                    }
                    self.homes(inner);
                    for (i, &r) in data.results.iter().enumerate() {
                        self.alias[r.index()] = Some(graph.region(inner).yields[i]);
                    }
                }
                _ => panic!("{} has regions", data.op.name()),
            }
        }
    }

    /// The part that makes a value which is made inside of a region, and not in what is around it.
    fn made_inside(&self, region: Region, value: Value) -> Option<PartId> {
        let value = self.resolve(value);
        self.graph.producer(value)?;
        let mut place = self.made_in[value.index()]?;
        let Home::In(part) = self.home_of(value) else { return None };
        while place != Place::Region(region) {
            place = self.around.get(&place)?.0;
        }
        Some(part)
    }

    // Uses.

    /// The place at the root of the frame that a place is in.
    fn frame_root(&self, place: Place) -> Place {
        let mut place = place;
        loop {
            match self.around.get(&place) {
                None => return place,
                Some((_, node))
                    if matches!(self.graph.node(*node).op, Op::While) && self.begins_frame(place, *node) =>
                {
                    return place;
                }
                Some((outer, _)) => place = *outer,
            }
        }
    }

    /// Whether a place is the condition of a loop.
    fn begins_frame(&self, place: Place, node: Node) -> bool {
        place == Place::Region(self.graph.node(node).regions[0]) && matches!(self.graph.node(node).op, Op::While)
    }

    /// Notes that a part needs a value in a place; gives whether that is new.
    fn need(&mut self, value: Value, part: PartId, place: Place) -> bool {
        let value = self.resolve(value);
        let made_in = self.made_in[value.index()].expect("a value is made somewhere");
        let root = self.frame_root(place);
        let mut new = self.join(part, place);
        if self.frame_root(made_in) != root {
            let (outer, node) = self.around[&root];
            new |= self.constants.entry((node, part)).or_default().insert(value);
            return self.need(value, part, outer) | new;
        }
        self.uses.entry((value, part)).or_default().insert(place) | new
    }

    /// Makes a part take part in all constructs around a place; gives whether it did not in one of them.
    fn join(&mut self, part: PartId, place: Place) -> bool {
        let (mut place, mut new) = (place, false);
        while let Some(&(outer, node)) = self.around.get(&place) {
            new |= self.members.get_mut(&node).expect("a lowered construct has members").insert(part);
            place = outer;
        }
        new
    }

    /// All uses, until there are no new ones.
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
                        self.need_operand(v, own, place);
                    }
                    continue;
                }
                let result_home = |cut: &Self, i: usize| match cut.home_of(data.results[i]) {
                    Home::In(part) => part,
                    Home::Everywhere => panic!("a result has one home"),
                };
                match data.op {
                    Op::Cond => {
                        for (i, _) in data.results.iter().enumerate() {
                            let home = result_home(self, i);
                            for &branch in &data.regions {
                                self.need(graph.region(branch).yields[i], home, Place::Region(branch));
                            }
                        }
                        regions.extend(&data.regions);
                    }
                    Op::While => {
                        let (cond, body) = (data.regions[0], data.regions[1]);
                        for i in 0..graph.n_carried(node) {
                            let home = result_home(self, i);
                            self.join(home, Place::Region(cond));
                            self.need(data.operands[i], home, place);
                            self.need(graph.region(body).yields[i], home, Place::Region(body));
                            self.need(graph.region(cond).params[i], home, Place::Exits(node));
                        }
                        regions.extend(&data.regions);
                    }
                    _ => regions.push(data.regions[0]),
                }
            }
        }
        for &v in graph.outputs() {
            let part = match self.home_of(self.resolve(v)) {
                Home::In(part) => part,
                Home::Everywhere => PartId(0),
            };
            self.need(v, part, Place::Region(graph.root()));
        }
        while self.uses_of_predicates() | self.uses_of_senders() {}
    }

    /// A use as an operand of a kernel, which has copies of constants.
    fn need_operand(&mut self, v: Value, part: PartId, place: Place) {
        if self.graph.producer(v).is_none_or(|n| !self.is_copied(n)) {
            self.need(v, part, place);
        }
    }

    /// Each part that takes part in a construct needs its predicate.
    fn uses_of_predicates(&mut self) -> bool {
        let mut new = false;
        for (node, members) in self.members.clone() {
            let (predicate, place) = match self.predicate(node) {
                Some(found) => found,
                None => continue,
            };
            for part in members {
                new |= self.need(predicate, part, place);
            }
        }
        new
    }

    /// What decides in a construct, and where it is used.
    fn predicate(&self, node: Node) -> Option<(Value, Place)> {
        let data = self.graph.node(node);
        match data.op {
            Op::Cond => Some((data.operands[0], self.place(data.region))),
            Op::While => Some((self.graph.region(data.regions[0]).yields[0], Place::Region(data.regions[0]))),
            _ => None,
        }
    }

    /// A part that sends a value in a place takes part there.
    fn uses_of_senders(&mut self) -> bool {
        let mut new = false;
        for (value, part) in self.uses.keys().copied().collect::<Vec<_>>() {
            if let Home::In(home) = self.home_of(value)
                && home != part
            {
                for place in self.sent_in(value, part) {
                    new |= self.need(value, home, place);
                }
            }
        }
        new
    }

    /// The places in which a value is sent to a part that uses it. One of them is live at most.
    fn sent_in(&self, value: Value, part: PartId) -> Vec<Place> {
        let made_in = self.made_in[value.index()].expect("a value is made somewhere");
        // From the place of each use up to where the value is made.
        let ways: Vec<Vec<Place>> = self.uses[&(value, part)]
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

    fn send_below(&self, place: Place, ways: &[Vec<Place>], found: &mut Vec<Place>) {
        if ways.iter().any(|way| way[0] == place) {
            return found.push(place);
        }
        // The next place inside, on each way.
        let next = |way: &Vec<Place>| way[way.iter().position(|&p| p == place).expect("the way leads here") - 1];
        let inside: BTreeSet<Place> = ways.iter().map(next).collect();
        let constructs: BTreeSet<Node> = inside.iter().map(|p| self.around[p].1).collect();
        if constructs.len() > 1 {
            return found.push(place);
        }
        for inner in inside {
            let ways: Vec<Vec<Place>> = ways.iter().filter(|way| next(way) == inner).cloned().collect();
            self.send_below(inner, &ways, found);
        }
    }

    // Clusters.

    fn clusters(&mut self) {
        let graph = self.graph;
        // Values that another part waits for.
        let awaited: BTreeSet<Value> =
            self.uses.keys().filter(|&&(v, p)| self.home_of(v) != Home::In(p)).map(|&(v, _)| v).collect();
        let mut regions = vec![graph.root()];
        while let Some(region) = regions.pop() {
            let nodes = &graph.region(region).nodes;
            regions.extend(nodes.iter().filter(|n| self.split[n.index()]).flat_map(|&n| self.lowered_regions(n)));
            let levels = self.levels(region);
            // What an awaited value is made of, as far as it is of the same level and part.
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
            let mut groups = Groups::new(nodes);
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
                        groups.join(before, node);
                    }
                }
            }
            let mut cluster_of_group: HashMap<Node, usize> = HashMap::new();
            for &node in nodes {
                let is_access = matches!(graph.node(node).op, Op::Read(_) | Op::Assign(_));
                if is_access || self.split[node.index()] || self.is_copied(node) {
                    continue;
                }
                let cluster = *cluster_of_group.entry(groups.find(node)).or_insert_with(|| {
                    self.clusters.push(Vec::new());
                    self.clusters.len() - 1
                });
                self.clusters[cluster].push(node);
                self.cluster_of[node.index()] = Some(cluster);
            }
        }
    }

    fn lowered_regions(&self, node: Node) -> &'g [Region] {
        let data = self.graph.node(node);
        if matches!(data.op, Op::Call(_)) { &data.regions[..1] } else { &data.regions }
    }

    /// How often a value has changed the part, or gone through a lowered construct, before each node of a region.
    fn levels(&self, region: Region) -> HashMap<Node, u32> {
        let graph = self.graph;
        let mut levels: HashMap<Node, u32> = HashMap::new();
        // Effects come one after the other.
        let mut last_effect = 0;
        for &node in &graph.region(region).nodes {
            let split = self.split[node.index()];
            let own = self.part[node.index()];
            let mut level = 0;
            for &v in &graph.node(node).operands {
                level = level.max(match graph.producer(v) {
                    Some(before) if self.is_copied(before) => 0,
                    Some(before) if !split && !self.split[before.index()] && self.part[before.index()] == own => {
                        levels[&before]
                    }
                    Some(before) => levels[&before] + 1,
                    None => u32::from(!matches!(self.home_of(self.resolve(v)), Home::In(p) if p == own)),
                });
            }
            if self.ordered[node.index()] {
                level = level.max(last_effect + 1);
                last_effect = level;
            }
            levels.insert(node, level);
        }
        levels
    }
}

/// Sets of nodes that are joined.
struct Groups(HashMap<Node, Node>);

impl Groups {
    fn new(nodes: &[Node]) -> Groups {
        Groups(nodes.iter().map(|&n| (n, n)).collect())
    }

    fn find(&mut self, node: Node) -> Node {
        let parent = self.0[&node];
        if parent == node {
            return node;
        }
        let root = self.find(parent);
        self.0.insert(node, root);
        root
    }

    /// The set is named by its first node.
    fn join(&mut self, a: Node, b: Node) {
        let (a, b) = (self.find(a), self.find(b));
        let (first, second) = (a.min(b), a.max(b));
        self.0.insert(second, first);
    }
}

/// A node of a part before it has a number.
struct Proto {
    make: Make,
    place: Place,
    /// The values it uses, each as it is known in a place. All of a merge go to one slot.
    inputs: Vec<(Value, Place)>,
    n_results: usize,
    /// What it needs besides its inputs and its block.
    more_needs: u32,
    users: Vec<Vec<(usize, u32)>>,
    before: Vec<usize>,
    origin: Option<Node>,
    position: u32,
}

/// What a node is to be.
#[derive(Clone, Copy)]
enum Make {
    Source(Source),
    Sink(Sink),
    Cluster(usize),
    Constant(Value),
    Send(EdgeId, PartId),
    Recv(EdgeId),
    Switch,
    LoopSwitch,
    Merge,
    Yield,
    Loop,
    Enter,
    EnterConstant,
    Exit,
    NextIteration,
    Token,
}

/// The nodes of a part.
#[derive(Default)]
struct Protos {
    nodes: Vec<Proto>,
    /// The node and result that gives a value in a place, and in the places inside of it.
    ports: HashMap<(Value, Place), (usize, usize)>,
}

impl Protos {
    fn add(&mut self, make: Make, place: Place, inputs: Vec<(Value, Place)>, n_results: usize) -> usize {
        self.nodes.push(Proto {
            make,
            place,
            inputs,
            n_results,
            more_needs: 0,
            users: vec![Vec::new(); n_results],
            before: Vec::new(),
            origin: None,
            position: 0,
        });
        self.nodes.len() - 1
    }

    /// A node of a lowered construct that passes on a value.
    fn add_for(&mut self, node: Node, make: Make, place: Place, inputs: Vec<(Value, Place)>, position: usize) -> usize {
        let n_results = usize::from(!matches!(make, Make::Switch | Make::LoopSwitch | Make::Loop | Make::Token));
        let id = self.add(make, place, inputs, n_results);
        (self.nodes[id].origin, self.nodes[id].position) = (Some(node), position as u32);
        id
    }

    /// One node stands after another one.
    fn order(&mut self, before: Option<usize>, after: usize) {
        if let Some(before) = before {
            self.nodes[before].before.push(after);
            self.nodes[after].more_needs += 1;
        }
    }
}

impl Cut<'_> {
    fn build(self) -> Partition {
        let mut build = Build {
            parts: self.devices.iter().map(|_| Protos::default()).collect(),
            cluster_nodes: vec![None; self.clusters.len()],
            edges: Vec::new(),
            cut: self,
        };
        build.sources();
        build.region(build.cut.graph.root(), None);
        build.outputs();
        build.sends();
        build.finish()
    }
}

struct Build<'g> {
    cut: Cut<'g>,
    parts: Vec<Protos>,
    cluster_nodes: Vec<Option<usize>>,
    edges: Vec<Edge>,
}

impl Build<'_> {
    /// What is everywhere: inputs and constants.
    fn sources(&mut self) {
        let graph = self.cut.graph;
        for &(value, part) in self.cut.uses.keys() {
            if self.cut.home_of(value) != Home::Everywhere {
                continue;
            }
            let place = self.cut.made_in[value.index()].expect("a value is made somewhere");
            let make = match graph.value(value).def {
                ValueDef::Param(_, i) => Make::Source(Source::Input(i)),
                ValueDef::Result(..) => Make::Constant(value),
            };
            let protos = &mut self.parts[part.index()];
            let id = protos.add(make, place, vec![], 1);
            protos.nodes[id].origin = graph.producer(value);
            protos.ports.insert((value, place), (id, 0));
        }
    }

    fn outputs(&mut self) {
        let graph = self.cut.graph;
        for (i, &v) in graph.outputs().iter().enumerate() {
            let value = self.cut.resolve(v);
            let part = if let Home::In(part) = self.cut.home_of(value) { part } else { PartId(0) };
            let place = Place::Region(graph.root());
            let make = Make::Sink(Sink::Output(i as u32));
            self.parts[part.index()].add(make, place, vec![(value, place)], 0);
        }
    }

    /// The nodes for a region. `last` is the effect after which the next one stands; gives the last one.
    fn region(&mut self, region: Region, last: Option<usize>) -> Option<usize> {
        let graph = self.cut.graph;
        let (place, mut last) = (self.cut.place(region), last);
        for &node in &graph.region(region).nodes {
            let (data, own) = (graph.node(node), self.cut.part[node.index()]);
            if self.cut.split[node.index()] {
                last = match data.op {
                    Op::Cond => self.cond(node, place, last),
                    Op::While => self.while_loop(node, place, last),
                    _ => self.region(data.regions[0], last),
                };
                continue;
            }
            let resolved = |cut: &Cut<'_>, v: Value| (cut.resolve(v), place);
            match data.op {
                Op::Read(var) => {
                    let protos = &mut self.parts[own.index()];
                    let id = protos.add(Make::Source(Source::Var(var)), place, vec![], 1);
                    protos.nodes[id].origin = Some(node);
                    protos.ports.insert((data.results[0], place), (id, 0));
                }
                Op::Assign(var) => {
                    let input = resolved(&self.cut, data.operands[0]);
                    let protos = &mut self.parts[own.index()];
                    let id = protos.add(Make::Sink(Sink::Assign(var)), place, vec![input], 0);
                    protos.nodes[id].origin = Some(node);
                }
                _ => {
                    let Some(cluster) = self.cut.cluster_of[node.index()] else { continue };
                    if self.cluster_nodes[cluster].is_some() {
                        continue;
                    }
                    let inputs = self.cluster_inputs(cluster).into_iter().map(|v| resolved(&self.cut, v)).collect();
                    let protos = &mut self.parts[own.index()];
                    let id = protos.add(Make::Cluster(cluster), place, inputs, 0);
                    protos.nodes[id].origin = Some(node);
                    self.cluster_nodes[cluster] = Some(id);
                    if self.cut.ordered[node.index()] {
                        protos.order(last, id);
                        last = Some(id);
                    }
                }
            }
        }
        last
    }

    /// What a cluster uses and does not make.
    fn cluster_inputs(&self, cluster: usize) -> Vec<Value> {
        let (graph, mut inputs) = (self.cut.graph, Vec::new());
        let mut seen = BTreeSet::new();
        for &node in &self.cut.clusters[cluster] {
            for &v in &graph.node(node).operands {
                let made = graph.producer(v);
                let own =
                    made.is_some_and(|m| self.cut.cluster_of[m.index()] == Some(cluster) || self.cut.is_copied(m));
                // What is a constant only through a parameter is given to the kernel.
                if !own && seen.insert(v) {
                    inputs.push(v);
                }
            }
        }
        inputs
    }

    fn cond(&mut self, node: Node, place: Place, last: Option<usize>) -> Option<usize> {
        let graph = self.cut.graph;
        let data = graph.node(node);
        let predicate = self.cut.resolve(data.operands[0]);
        let ordered = self.cut.ordered[node.index()];
        let effects = self.effects_part(node);
        for &part in &self.cut.members[&node] {
            let protos = &mut self.parts[part.index()];
            let id = protos.add_for(node, Make::Switch, place, vec![(predicate, place)], 0);
            if ordered && Some(part) == effects {
                protos.order(last, id);
            }
        }
        for (i, &result) in data.results.iter().enumerate() {
            let Home::In(home) = self.cut.home_of(result) else { panic!("a result has one home") };
            let protos = &mut self.parts[home.index()];
            let merge = protos.add_for(node, Make::Merge, place, vec![], i);
            protos.ports.insert((result, place), (merge, 0));
            for &branch in &data.regions {
                let (value, place) = (self.cut.resolve(graph.region(branch).yields[i]), Place::Region(branch));
                // What comes from around the construct comes only if the branch is taken.
                let yielded = protos.add_for(node, Make::Yield, place, vec![(value, place)], i);
                protos.nodes[yielded].users[0].push((merge, 0));
            }
        }
        let tails: Vec<(Region, Option<usize>)> = data.regions.iter().map(|&b| (b, self.region(b, None))).collect();
        if !ordered {
            return last;
        }
        let protos = &mut self.parts[effects.expect("effects are in a part").index()];
        let token = protos.add_for(node, Make::Token, place, vec![], 0);
        // It stands after the branch that is taken.
        protos.nodes[token].more_needs = 1;
        for (branch, tail) in tails {
            let tail = tail.unwrap_or_else(|| protos.add_for(node, Make::Token, Place::Region(branch), vec![], 0));
            protos.nodes[tail].before.push(token);
        }
        Some(token)
    }

    fn while_loop(&mut self, node: Node, place: Place, last: Option<usize>) -> Option<usize> {
        let graph = self.cut.graph;
        let data = graph.node(node);
        let (cond, body) = (data.regions[0], data.regions[1]);
        let (cond_place, body_place) = (Place::Region(cond), Place::Region(body));
        let predicate = self.cut.resolve(graph.region(cond).yields[0]);
        let ordered = self.cut.ordered[node.index()];
        let effects = self.effects_part(node);
        let (mut begun, mut switch) = (None, None);
        for &part in &self.cut.members[&node] {
            let protos = &mut self.parts[part.index()];
            let id = protos.add_for(node, Make::Loop, place, vec![], 0);
            let control = protos.add_for(node, Make::LoopSwitch, cond_place, vec![(predicate, cond_place)], 0);
            if ordered && Some(part) == effects {
                protos.order(last, id);
                (begun, switch) = (Some(id), Some(control));
            }
            for &value in self.cut.constants.get(&(node, part)).into_iter().flatten() {
                let id = protos.add_for(node, Make::EnterConstant, place, vec![(value, place)], 0);
                protos.nodes[id].more_needs = 1;
                protos.ports.insert((value, cond_place), (id, 0));
            }
        }
        for (i, &result) in data.results.iter().enumerate() {
            let Home::In(home) = self.cut.home_of(result) else { panic!("a result has one home") };
            let param = graph.region(cond).params[i];
            let next = self.cut.resolve(graph.region(body).yields[i]);
            let init = self.cut.resolve(data.operands[i]);
            let protos = &mut self.parts[home.index()];
            let enter = protos.add_for(node, Make::Enter, place, vec![(init, place)], i);
            protos.nodes[enter].more_needs = 1;
            let merge = protos.add_for(node, Make::Merge, cond_place, vec![], i);
            let next = protos.add_for(node, Make::NextIteration, body_place, vec![(next, body_place)], i);
            let exits = Place::Exits(node);
            let exit = protos.add_for(node, Make::Exit, exits, vec![(param, exits)], i);
            protos.nodes[enter].users[0].push((merge, 0));
            protos.nodes[next].users[0].push((merge, 0));
            protos.ports.insert((param, cond_place), (merge, 0));
            protos.ports.insert((result, place), (exit, 0));
        }
        let tail = self.region(cond, None);
        if let Some(switch) = switch {
            self.parts[effects.expect("effects are in a part").index()].order(tail, switch);
        }
        self.region(body, None);
        if ordered { begun } else { last }
    }

    /// The part in which effects are in order, if there are some in a node.
    fn effects_part(&self, node: Node) -> Option<PartId> {
        let mut found = None;
        for &region in &self.cut.graph.node(node).regions {
            self.cut.graph.visit_nodes(region, &mut |n| {
                let is_leaf = self.cut.graph.node(n).op.effects() == Effects::Observable;
                if is_leaf && self.cut.ordered[n.index()] {
                    found = Some(self.cut.part[n.index()]);
                }
            });
        }
        found
    }

    fn sends(&mut self) {
        let graph = self.cut.graph;
        for (value, part) in self.cut.uses.keys().copied().collect::<Vec<_>>() {
            let Home::In(home) = self.cut.home_of(value) else { continue };
            if home == part {
                continue;
            }
            for place in self.cut.sent_in(value, part) {
                let edge = EdgeId(self.edges.len() as u32);
                self.edges.push(Edge { value, ty: graph.ty(value).clone(), from: home });
                let protos = &mut self.parts[home.index()];
                protos.add(Make::Send(edge, part), place, vec![(value, place)], 0);
                let protos = &mut self.parts[part.index()];
                let recv = protos.add(Make::Recv(edge), place, vec![], 1);
                protos.ports.insert((value, place), (recv, 0));
            }
        }
    }

    fn finish(mut self) -> Partition {
        let loops: Vec<Node> =
            self.cut.members.keys().copied().filter(|&n| matches!(self.cut.graph.node(n).op, Op::While)).collect();
        let leaders: Vec<PartId> = loops.iter().map(|&node| self.leader(node)).collect();
        let protos = std::mem::take(&mut self.parts);
        let parts = protos.into_iter().enumerate();
        let parts = parts.map(|(i, protos)| Arc::new(self.part(PartId(i as u32), protos, &loops, &leaders))).collect();
        let loops = loops.into_iter().zip(leaders).map(|(node, leader)| LoopInfo { node, leader }).collect();
        Partition { parts, edges: self.edges, loops }
    }

    /// The part that lets the iterations of a loop begin.
    fn leader(&self, node: Node) -> PartId {
        let predicate = self.cut.graph.region(self.cut.graph.node(node).regions[0]).yields[0];
        match self.cut.home_of(self.cut.resolve(predicate)) {
            Home::In(part) if self.cut.members[&node].contains(&part) => part,
            _ => self.cut.part[node.index()],
        }
    }

    fn part(&self, id: PartId, mut protos: Protos, loops: &[Node], leaders: &[PartId]) -> Part {
        let cut = &self.cut;
        // What a cluster gives is what others use of it.
        let used: BTreeSet<Value> = protos.nodes.iter().flat_map(|p| p.inputs.iter().map(|i| i.0)).collect();
        let mut kernels: Vec<KernelGraph> = Vec::new();
        let mut kernel_of: Vec<Option<KernelId>> = vec![None; protos.nodes.len()];
        for i in 0..protos.nodes.len() {
            let (members, inputs, outputs) = match protos.nodes[i].make {
                Make::Cluster(cluster) => {
                    let members = cut.clusters[cluster].clone();
                    let results = members.iter().flat_map(|&n| cut.graph.node(n).results.clone());
                    let outputs: Vec<Value> = results.filter(|v| used.contains(v)).collect();
                    (members, self.cluster_inputs(cluster), outputs)
                }
                Make::Constant(value) => {
                    (vec![cut.graph.producer(value).expect("a constant is a node")], vec![], vec![value])
                }
                _ => continue,
            };
            let place = protos.nodes[i].place;
            for (k, &v) in outputs.iter().enumerate() {
                protos.ports.insert((v, place), (i, k));
            }
            (protos.nodes[i].n_results, protos.nodes[i].users) = (outputs.len(), vec![Vec::new(); outputs.len()]);
            kernel_of[i] = Some(KernelId(kernels.len() as u32));
            kernels.push(self.kernel(&members, &inputs, &outputs));
        }
        // Who gives what to whom.
        for i in 0..protos.nodes.len() {
            for (slot, (value, place)) in protos.nodes[i].inputs.clone().into_iter().enumerate() {
                let (node, result) = self.port(&protos, value, place);
                let slot = if matches!(protos.nodes[i].make, Make::Merge) { 0 } else { slot as u32 };
                protos.nodes[node].users[result].push((i, slot));
            }
        }
        Numbering::new(self, id, loops).part(protos, kernel_of, kernels, leaders)
    }

    /// The node and result that gives a value in a place.
    fn port(&self, protos: &Protos, value: Value, place: Place) -> (usize, usize) {
        let mut at = place;
        loop {
            if let Some(&port) = protos.ports.get(&(value, at)) {
                return port;
            }
            at = match self.cut.around.get(&at) {
                Some((outer, node)) if !self.cut.begins_frame(at, *node) => *outer,
                _ => panic!("{value} is not in {place:?}\n{}", self.cut.graph),
            };
        }
    }

    fn kernel(&self, members: &[Node], inputs: &[Value], outputs: &[Value]) -> KernelGraph {
        let graph = self.cut.graph;
        let mut copied = BTreeSet::new();
        for &node in members {
            let made = graph.node(node).operands.iter().filter_map(|&v| graph.producer(v));
            copied.extend(made.filter(|&m| self.cut.is_copied(m) && !members.contains(&m)));
        }
        let all: Vec<Node> = copied.into_iter().chain(members.iter().copied()).collect();
        KernelGraph { graph: graph.extract(&graph.name, &all, inputs, outputs), members: all }
    }
}

/// Frames, blocks and nodes of a part in the order of their numbers.
struct Numbering<'a> {
    build: &'a Build<'a>,
    part: PartId,
    loops: &'a [Node],
    /// The places inside of each place that the part takes part in.
    inside: BTreeMap<Place, Vec<Place>>,
    frames: Vec<Frame>,
    blocks: Vec<Block>,
    frame_of_place: HashMap<Place, FrameId>,
    block_of: HashMap<Place, BlockId>,
}

impl<'a> Numbering<'a> {
    fn new(build: &'a Build<'a>, part: PartId, loops: &'a [Node]) -> Numbering<'a> {
        let cut = &build.cut;
        let mut inside: BTreeMap<Place, Vec<Place>> = BTreeMap::new();
        let mut places: Vec<_> = cut.around.iter().collect();
        places.sort();
        for (&place, &(outer, node)) in places {
            if cut.members[&node].contains(&part) {
                inside.entry(outer).or_default().push(place);
            }
        }
        let mut numbering = Numbering {
            build,
            part,
            loops,
            inside,
            frames: Vec::new(),
            blocks: Vec::new(),
            frame_of_place: HashMap::new(),
            block_of: HashMap::new(),
        };
        numbering.frame(Place::Region(cut.graph.root()), None, 0);
        numbering
    }

    /// Numbers a frame, its blocks and then the frames inside.
    fn frame(&mut self, root: Place, parent: Option<FrameId>, position: u32) {
        let id = FrameId(self.frames.len() as u32);
        let cut = &self.build.cut;
        let node = cut.around.get(&root).map(|&(_, node)| node);
        let window = match node {
            None => 1,
            Some(node) if cut.ordered[node.index()] => 1,
            Some(_) => cut.options.parallel_iterations.max(1),
        };
        let of = node.map(|n| LoopId(self.loops.binary_search(&n).expect("a lowered loop is known") as u32));
        self.frame_of_place.insert(root, id);
        self.frames.push(Frame {
            of,
            parent,
            position,
            n_inner: 0,
            nodes: 0..0,
            blocks: 0..0,
            n_slots: 0,
            begun_by: None,
            enters: Vec::new(),
            constants: Vec::new(),
            window,
            followers: Vec::new(),
            leader: None,
        });
        let first = self.blocks.len() as u32;
        let mut frames_inside = Vec::new();
        self.block(root, id, &mut frames_inside);
        let frame = &mut self.frames[id.index()];
        frame.blocks = first..self.blocks.len() as u32;
        frame.n_inner = frames_inside.len() as u32;
        for (i, inner) in frames_inside.into_iter().enumerate() {
            self.frame(inner, Some(id), i as u32);
        }
    }

    fn block(&mut self, place: Place, frame: FrameId, frames_inside: &mut Vec<Place>) {
        let id = BlockId(self.blocks.len() as u32);
        self.block_of.insert(place, id);
        self.blocks.push(Block { frame, nodes: 0..0, slots: 0..0, inner: Vec::new() });
        for inner in self.inside.get(&place).cloned().unwrap_or_default() {
            if self.build.cut.begins_frame(inner, self.build.cut.around[&inner].1) {
                frames_inside.push(inner);
            } else {
                self.block(inner, frame, frames_inside);
            }
        }
        self.blocks[id.index()].inner = (id.0 + 1..self.blocks.len() as u32).map(BlockId).collect();
    }

    fn part(
        mut self,
        protos: Protos,
        kernel_of: Vec<Option<KernelId>>,
        kernels: Vec<KernelGraph>,
        leaders: &[PartId],
    ) -> Part {
        let cut = &self.build.cut;
        let block_of = |p: &Proto| self.block_of[&p.place];
        let mut order: Vec<usize> = (0..protos.nodes.len()).collect();
        order.sort_by_key(|&i| block_of(&protos.nodes[i]));
        let mut number = vec![NodeId(0); order.len()];
        let mut first_slot = vec![0; order.len()];
        for frame in &mut self.frames {
            (frame.nodes, frame.n_slots) = (0..0, 0);
        }
        for (n, &i) in order.iter().enumerate() {
            let (n, proto) = (n as u32, &protos.nodes[i]);
            number[i] = NodeId(n);
            let block = &mut self.blocks[self.block_of[&proto.place].index()];
            let frame = &mut self.frames[block.frame.index()];
            let n_slots = match proto.make {
                Make::Merge | Make::Recv(_) => 1,
                _ => proto.inputs.len() as u32,
            };
            first_slot[i] = frame.n_slots;
            if block.nodes.is_empty() {
                (block.nodes, block.slots) = (n..n, frame.n_slots..frame.n_slots);
            }
            if frame.nodes.is_empty() {
                frame.nodes = n..n;
            }
            frame.n_slots += n_slots;
            (block.nodes.end, frame.nodes.end, block.slots.end) = (n + 1, n + 1, frame.n_slots);
        }
        let mut nodes = Vec::with_capacity(order.len());
        let mut receivers = HashMap::new();
        for &i in &order {
            let proto = &protos.nodes[i];
            let frame_inside = |node: Node| self.frame_of_place[&Place::Region(cut.graph.node(node).regions[0])];
            let origin = || proto.origin.expect("a lowered construct is a node");
            let place = |region: usize| self.block_of[&Place::Region(cut.graph.node(origin()).regions[region])];
            let op = match proto.make {
                Make::Source(source) => FlowOp::Source(source),
                Make::Sink(sink) => FlowOp::Sink(sink),
                Make::Cluster(_) | Make::Constant(_) => FlowOp::Compute(kernel_of[i].expect("a cluster is a kernel")),
                Make::Send(edge, to) => FlowOp::Send { edge, to },
                Make::Recv(edge) => {
                    receivers.insert(edge, number[i]);
                    FlowOp::Recv(edge)
                }
                Make::Switch => FlowOp::Switch { then: place(0), otherwise: place(1) },
                Make::LoopSwitch => {
                    FlowOp::LoopSwitch { body: place(1), exits: self.block_of[&Place::Exits(origin())] }
                }
                Make::Merge => FlowOp::Merge,
                Make::Yield => FlowOp::Yield,
                Make::Loop => {
                    let frame = frame_inside(origin());
                    self.frames[frame.index()].begun_by = Some(number[i]);
                    FlowOp::Loop(frame)
                }
                Make::Enter => {
                    let frame = frame_inside(origin());
                    self.frames[frame.index()].enters.push(number[i]);
                    FlowOp::Enter(frame)
                }
                Make::EnterConstant => {
                    let frame = frame_inside(origin());
                    let data = &mut self.frames[frame.index()];
                    data.enters.push(number[i]);
                    let users = proto.users[0].iter();
                    data.constants.push(users.map(|&(n, slot)| target(&number, &first_slot, n, slot)).collect());
                    FlowOp::EnterConstant { frame, constant: data.constants.len() as u32 - 1 }
                }
                Make::Exit => FlowOp::Exit,
                Make::NextIteration => FlowOp::NextIteration,
                Make::Token => FlowOp::Token,
            };
            let n_slots = match proto.make {
                Make::Merge | Make::Recv(_) => 1,
                _ => proto.inputs.len() as u32,
            };
            let users = proto.users.iter();
            nodes.push(PartNode {
                op,
                block: self.block_of[&proto.place],
                inputs: first_slot[i]..first_slot[i] + n_slots,
                needs: n_slots + proto.more_needs + 1,
                users: users
                    .map(|u| u.iter().map(|&(n, slot)| target(&number, &first_slot, n, slot)).collect())
                    .collect(),
                before: proto.before.iter().map(|&n| number[n]).collect(),
                origin: proto.origin,
                position: proto.position,
            });
        }
        let mut frame_of = vec![None; self.loops.len()];
        for (i, frame) in self.frames.iter_mut().enumerate() {
            let Some(of) = frame.of else { continue };
            frame_of[of.index()] = Some(FrameId(i as u32));
            let leader = leaders[of.index()];
            if leader == self.part {
                let members = &cut.members[&self.loops[of.index()]];
                frame.followers = members.iter().copied().filter(|&p| p != leader).collect();
            } else {
                frame.leader = Some(leader);
            }
        }
        let mut sources: Vec<Source> = nodes.iter().filter_map(PartNode::source).collect();
        sources.sort_unstable();
        sources.dedup();
        Part {
            device: cut.devices[self.part.index()],
            sources,
            nodes,
            blocks: self.blocks,
            frames: self.frames,
            frame_of,
            kernels,
            receivers,
        }
    }
}

fn target(number: &[NodeId], first_slot: &[u32], node: usize, slot: u32) -> Target {
    Target { node: number[node], slot: first_slot[node] + slot }
}
