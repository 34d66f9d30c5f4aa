//! Construction of the nodes of each subgraph, the last phase of the
//! [partitioner](mod@super::partition).
//!
//! First creates all nodes with the values that they use, then the sends and receives. Then looks
//! up which node provides each value in each place, and finally numbers frames, blocks and nodes.

use super::partition::{BlockKey, Partitioner, ValueOwner};
use super::{
    Block, BlockId, Edge, EdgeId, FlowNode, FlowOp, Frame, FrameId, KernelGraph, KernelId, LoopId, LoopInfo, NodeId,
    OutputSource, Partition, Sink, Source, Subgraph, SubgraphId, Target,
};
use anabranch_dsl::ir::{LoopVar, Node, Op, Region, Value, ValueDef, WhileNode};
use anabranch_dsl::ops::Effects;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A node of a subgraph before it has an index.
struct Proto {
    make: Make,
    place: BlockKey,
    /// The values used, each with the place of the use. All inputs of a merge share one slot.
    inputs: Vec<(Value, BlockKey)>,
    /// Number of dependencies besides the inputs and the block.
    more_needs: u32,
    users: Vec<Vec<(usize, u32)>>,
    before: Vec<usize>,
    origin: Option<Node>,
    position: u32,
}

impl Proto {
    /// Returns the number of input slots.
    fn n_slots(&self) -> u32 {
        match self.make {
            Make::Merge | Make::Recv(_) => 1,
            _ => self.inputs.len() as u32,
        }
    }
}

/// The operation of a node to be created.
#[derive(Clone, Copy)]
enum Make {
    Source(Source),
    Sink(Sink),
    Cluster(usize),
    Constant(Value),
    Send(EdgeId, SubgraphId),
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
    Order,
}

/// The nodes of a subgraph.
#[derive(Default)]
struct Protos {
    nodes: Vec<Proto>,
    /// The node and result index that provide a value in a place and all places nested in it.
    ports: HashMap<(Value, BlockKey), (usize, usize)>,
}

impl Protos {
    fn add(&mut self, make: Make, place: BlockKey, inputs: Vec<(Value, BlockKey)>, n_results: usize) -> usize {
        self.nodes.push(Proto {
            make,
            place,
            inputs,
            more_needs: 0,
            users: vec![Vec::new(); n_results],
            before: Vec::new(),
            origin: None,
            position: 0,
        });
        self.nodes.len() - 1
    }

    /// Adds a node of a lowered construct that forwards the value at `position`.
    fn add_for(
        &mut self,
        node: Node,
        make: Make,
        place: BlockKey,
        inputs: Vec<(Value, BlockKey)>,
        position: usize,
    ) -> usize {
        let n_results = usize::from(!matches!(make, Make::Switch | Make::LoopSwitch | Make::Loop | Make::Order));
        let id = self.add(make, place, inputs, n_results);
        (self.nodes[id].origin, self.nodes[id].position) = (Some(node), position as u32);
        id
    }

    /// Orders a node after another.
    fn order(&mut self, before: Option<usize>, after: usize) {
        if let Some(before) = before {
            self.nodes[before].before.push(after);
            self.nodes[after].more_needs += 1;
        }
    }
}

impl Partitioner<'_> {
    pub(super) fn build(self) -> Partition {
        let mut build = Build {
            parts: self.devices.iter().map(|_| Protos::default()).collect(),
            cluster_nodes: vec![None; self.clusters.len()],
            edges: Vec::new(),
            cut: self,
        };
        build.sources();
        build.region(build.cut.graph.root(), None);
        let outputs = build.outputs();
        build.sends();
        build.finish(outputs)
    }
}

struct Build<'g> {
    cut: Partitioner<'g>,
    parts: Vec<Protos>,
    cluster_nodes: Vec<Option<usize>>,
    edges: Vec<Edge>,
}

impl Build<'_> {
    /// Creates nodes for values available everywhere: inputs and constants.
    fn sources(&mut self) {
        let graph = self.cut.graph;
        for &(value, part) in self.cut.uses.keys() {
            if self.cut.home_of(value) != ValueOwner::Everywhere {
                continue;
            }
            let place = self.cut.made_in[value.index()].expect("a value is computed on some device");
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

    /// Creates nodes for the outputs that are computed. Returns the source of each output.
    fn outputs(&mut self) -> Vec<OutputSource> {
        let graph = self.cut.graph;
        let source = |(i, &v): (usize, &Value)| {
            let value = self.cut.resolve(v);
            match (self.cut.home_of(value), graph.value(value).def) {
                (ValueOwner::In(part), _) => {
                    let place = BlockKey::Region(graph.root());
                    let make = Make::Sink(Sink::Output(i as u32));
                    self.parts[part.index()].add(make, place, vec![(value, place)], 0);
                    OutputSource::Computed(part)
                }
                (ValueOwner::Everywhere, ValueDef::Param(_, input)) => OutputSource::Input(input),
                (ValueOwner::Everywhere, ValueDef::Result(node, _)) => OutputSource::Constant(node),
            }
        };
        graph.outputs().iter().enumerate().map(source).collect()
    }

    /// Creates the nodes of a region. `last` is the last ordered effect before the region. Returns
    /// the last ordered effect after it.
    fn region(&mut self, region: Region, last: Option<usize>) -> Option<usize> {
        let graph = self.cut.graph;
        let (place, mut last) = (self.cut.place(region), last);
        for &node in &graph.region(region).nodes {
            let (data, own) = (graph.node(node), self.cut.part[node.index()]);
            if self.cut.split[node.index()] {
                last = match data.op {
                    Op::Cond => self.cond(node, place, last),
                    _ if graph.as_while(node).is_some() => self.while_loop(node, place, last),
                    _ => self.region(graph.call_of(node).forward(), last),
                };
                continue;
            }
            let resolved = |cut: &Partitioner<'_>, v: Value| (cut.resolve(v), place);
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

    /// Returns the values that a cluster uses and does not compute.
    fn cluster_inputs(&self, cluster: usize) -> Vec<Value> {
        let (graph, mut inputs) = (self.cut.graph, Vec::new());
        let mut seen = BTreeSet::new();
        for &node in &self.cut.clusters[cluster] {
            for &v in &graph.node(node).operands {
                let made = graph.producer(v);
                let own =
                    made.is_some_and(|m| self.cut.cluster_of[m.index()] == Some(cluster) || self.cut.is_copied(m));
                // A constant reached only through a region parameter is passed to the kernel as an
                // input.
                if !own && seen.insert(v) {
                    inputs.push(v);
                }
            }
        }
        inputs
    }

    fn cond(&mut self, node: Node, place: BlockKey, last: Option<usize>) -> Option<usize> {
        let graph = self.cut.graph;
        let data = graph.node(node);
        let cond = graph.cond_of(node);
        let predicate = self.cut.resolve(cond.predicate());
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
            let ValueOwner::In(home) = self.cut.home_of(result) else { panic!("a result has one home") };
            let protos = &mut self.parts[home.index()];
            let merge = protos.add_for(node, Make::Merge, place, vec![], i);
            protos.ports.insert((result, place), (merge, 0));
            for (branch, value) in cond.branches().into_iter().zip(cond.yields(i)) {
                let (value, place) = (self.cut.resolve(value), BlockKey::Region(branch));
                // A `Yield` makes a value from outside the construct arrive only if the branch is
                // taken.
                let yielded = protos.add_for(node, Make::Yield, place, vec![(value, place)], i);
                protos.nodes[yielded].users[0].push((merge, 0));
            }
        }
        let tails = cond.branches().map(|branch| (branch, self.region(branch, None)));
        if !ordered {
            return last;
        }
        let protos = &mut self.parts[effects.expect("effects are in a part").index()];
        let order = protos.add_for(node, Make::Order, place, vec![], 0);
        // The merge runs after the branch that is taken.
        protos.nodes[order].more_needs = 1;
        for (branch, tail) in tails {
            let tail = tail.unwrap_or_else(|| protos.add_for(node, Make::Order, BlockKey::Region(branch), vec![], 0));
            protos.nodes[tail].before.push(order);
        }
        Some(order)
    }

    fn while_loop(&mut self, node: Node, place: BlockKey, last: Option<usize>) -> Option<usize> {
        let graph = self.cut.graph;
        let data = graph.while_of(node);
        let (cond_place, body_place) = (BlockKey::Region(data.cond()), BlockKey::Region(data.body()));
        let predicate = self.cut.resolve(data.predicate());
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
        for LoopVar { index: i, init, cond_param: param, next, result, .. } in data.vars() {
            let ValueOwner::In(home) = self.cut.home_of(result) else { panic!("a result has one home") };
            let (init, next) = (self.cut.resolve(init), self.cut.resolve(next));
            let protos = &mut self.parts[home.index()];
            let enter = protos.add_for(node, Make::Enter, place, vec![(init, place)], i);
            protos.nodes[enter].more_needs = 1;
            let merge = protos.add_for(node, Make::Merge, cond_place, vec![], i);
            let next = protos.add_for(node, Make::NextIteration, body_place, vec![(next, body_place)], i);
            let exits = BlockKey::Exits(node);
            let exit = protos.add_for(node, Make::Exit, exits, vec![(param, exits)], i);
            protos.nodes[enter].users[0].push((merge, 0));
            protos.nodes[next].users[0].push((merge, 0));
            protos.ports.insert((param, cond_place), (merge, 0));
            protos.ports.insert((result, place), (exit, 0));
        }
        let tail = self.region(data.cond(), None);
        if let Some(switch) = switch {
            self.parts[effects.expect("effects are in a part").index()].order(tail, switch);
        }
        self.region(data.body(), None);
        if ordered { begun } else { last }
    }

    /// Returns the subgraph of the ordered effects inside a node, if there are any.
    fn effects_part(&self, node: Node) -> Option<SubgraphId> {
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
            let ValueOwner::In(home) = self.cut.home_of(value) else { continue };
            if home == part {
                continue;
            }
            for place in self.cut.sent_in(value, part) {
                let edge = EdgeId(self.edges.len() as u32);
                let sent_in = match place {
                    BlockKey::Region(region) => region,
                    BlockKey::Exits(node) => graph.node(node).region,
                };
                self.edges.push(Edge {
                    value,
                    ty: graph.ty(value).clone(),
                    from: home,
                    to: part,
                    sent_in,
                    decides: false,
                });
                let protos = &mut self.parts[home.index()];
                protos.add(Make::Send(edge, part), place, vec![(value, place)], 0);
                let protos = &mut self.parts[part.index()];
                let recv = protos.add(Make::Recv(edge), place, vec![], 1);
                protos.ports.insert((value, place), (recv, 0));
            }
        }
    }

    fn finish(mut self, outputs: Vec<OutputSource>) -> Partition {
        let loops: Vec<Node> =
            self.cut.members.keys().copied().filter(|&n| self.cut.graph.as_while(n).is_some()).collect();
        let leaders: Vec<SubgraphId> = loops.iter().map(|&node| self.leader(node)).collect();
        let protos = std::mem::take(&mut self.parts);
        let parts = protos.into_iter().enumerate();
        let parts: Vec<Arc<Subgraph>> =
            parts.map(|(i, protos)| Arc::new(self.part(SubgraphId(i as u32), protos, &loops, &leaders))).collect();
        for (i, edge) in self.edges.iter_mut().enumerate() {
            let part = &parts[edge.to.index()];
            edge.decides = part.receivers.get(&EdgeId(i as u32)).is_some_and(|&node| part.is_decision(node));
        }
        let loops = loops.into_iter().zip(leaders).map(|(node, leader)| LoopInfo { node, leader }).collect();
        Partition { parts, edges: self.edges, loops, outputs }
    }

    /// Returns the subgraph that controls when iterations of a loop begin.
    fn leader(&self, node: Node) -> SubgraphId {
        let predicate = self.cut.graph.while_of(node).predicate();
        match self.cut.home_of(self.cut.resolve(predicate)) {
            ValueOwner::In(part) if self.cut.members[&node].contains(&part) => part,
            _ => self.cut.part[node.index()],
        }
    }

    fn part(&self, id: SubgraphId, mut protos: Protos, loops: &[Node], leaders: &[SubgraphId]) -> Subgraph {
        let cut = &self.cut;
        // The outputs of a cluster are the values that other nodes use.
        let used: BTreeSet<Value> = protos.nodes.iter().flat_map(|p| p.inputs.iter().map(|i| i.0)).collect();
        let mut kernels: Vec<KernelGraph> = Vec::new();
        let mut kernel_of: Vec<Option<KernelId>> = vec![None; protos.nodes.len()];
        for (i, kernel) in kernel_of.iter_mut().enumerate() {
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
            protos.nodes[i].users = vec![Vec::new(); outputs.len()];
            *kernel = Some(KernelId(kernels.len() as u32));
            kernels.push(self.kernel(&members, &inputs, &outputs));
        }
        // Connect each input to the node that provides it.
        for i in 0..protos.nodes.len() {
            for (slot, (value, place)) in protos.nodes[i].inputs.clone().into_iter().enumerate() {
                let (node, result) = self.port(&protos, value, place);
                let slot = if matches!(protos.nodes[i].make, Make::Merge) { 0 } else { slot as u32 };
                protos.nodes[node].users[result].push((i, slot));
            }
        }
        IndexAssignment::new(self, id, loops).part(protos, kernel_of, kernels, leaders)
    }

    /// Returns the node and result index that provide a value in a place.
    fn port(&self, protos: &Protos, value: Value, place: BlockKey) -> (usize, usize) {
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

/// The frames, blocks and nodes of a subgraph in the order of their indices.
struct IndexAssignment<'a> {
    build: &'a Build<'a>,
    part: SubgraphId,
    loops: &'a [Node],
    /// The places nested directly in each place, where the subgraph participates.
    inside: BTreeMap<BlockKey, Vec<BlockKey>>,
    frames: Vec<Frame>,
    blocks: Vec<Block>,
    frame_of_place: HashMap<BlockKey, FrameId>,
    block_of: HashMap<BlockKey, BlockId>,
}

impl<'a> IndexAssignment<'a> {
    fn new(build: &'a Build<'a>, part: SubgraphId, loops: &'a [Node]) -> IndexAssignment<'a> {
        let cut = &build.cut;
        let mut inside: BTreeMap<BlockKey, Vec<BlockKey>> = BTreeMap::new();
        let mut places: Vec<_> = cut.around.iter().collect();
        places.sort();
        for (&place, &(outer, node)) in places {
            if cut.members[&node].contains(&part) {
                inside.entry(outer).or_default().push(place);
            }
        }
        let mut numbering = IndexAssignment {
            build,
            part,
            loops,
            inside,
            frames: Vec::new(),
            blocks: Vec::new(),
            frame_of_place: HashMap::new(),
            block_of: HashMap::new(),
        };
        numbering.frame(BlockKey::Region(cut.graph.root()), None, 0);
        numbering
    }

    /// Numbers a frame, its blocks and then its nested frames.
    fn frame(&mut self, root: BlockKey, parent: Option<FrameId>, position: u32) {
        let id = FrameId(self.frames.len() as u32);
        let cut = &self.build.cut;
        let node = cut.around.get(&root).map(|&(_, node)| node);
        let window = match node {
            None => 1,
            Some(node) if cut.ordered[node.index()] => 1,
            Some(node) => match cut.graph.as_while(node).and_then(WhileNode::parallel_iterations) {
                Some(n) => n.get(),
                None => cut.options.parallel_iterations.max(1),
            },
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

    fn block(&mut self, place: BlockKey, frame: FrameId, frames_inside: &mut Vec<BlockKey>) {
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
        leaders: &[SubgraphId],
    ) -> Subgraph {
        let cut = &self.build.cut;
        let block_of = |p: &Proto| self.block_of[&p.place];
        let mut order: Vec<usize> = (0..protos.nodes.len()).collect();
        order.sort_by_key(|&i| block_of(&protos.nodes[i]));
        let mut number = vec![NodeId(0); order.len()];
        let mut first_slot = vec![0; order.len()];
        for (n, &i) in order.iter().enumerate() {
            let (n, proto) = (n as u32, &protos.nodes[i]);
            number[i] = NodeId(n);
            let block = &mut self.blocks[self.block_of[&proto.place].index()];
            let frame = &mut self.frames[block.frame.index()];
            first_slot[i] = frame.n_slots;
            if block.nodes.is_empty() {
                (block.nodes, block.slots) = (n..n, frame.n_slots..frame.n_slots);
            }
            if frame.nodes.is_empty() {
                frame.nodes = n..n;
            }
            frame.n_slots += proto.n_slots();
            (block.nodes.end, frame.nodes.end, block.slots.end) = (n + 1, n + 1, frame.n_slots);
        }
        let mut nodes = Vec::with_capacity(order.len());
        let mut receivers = HashMap::new();
        for &i in &order {
            let proto = &protos.nodes[i];
            let frame_inside = |node: Node| self.frame_of_place[&BlockKey::Region(cut.graph.while_of(node).cond())];
            let origin = || proto.origin.expect("a lowered construct is a node");
            let block = |region: Region| self.block_of[&BlockKey::Region(region)];
            let op = match proto.make {
                Make::Source(source) => FlowOp::Source(source),
                Make::Sink(sink) => FlowOp::Sink(sink),
                Make::Cluster(_) | Make::Constant(_) => FlowOp::Compute(kernel_of[i].expect("a cluster is a kernel")),
                Make::Send(edge, to) => FlowOp::Send { edge, to },
                Make::Recv(edge) => {
                    receivers.insert(edge, number[i]);
                    FlowOp::Recv(edge)
                }
                Make::Switch => {
                    let [then, otherwise] = cut.graph.cond_of(origin()).branches().map(block);
                    FlowOp::Switch { then, otherwise }
                }
                Make::LoopSwitch => {
                    let body = block(cut.graph.while_of(origin()).body());
                    FlowOp::LoopSwitch { body, exits: self.block_of[&BlockKey::Exits(origin())] }
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
                Make::Order => FlowOp::Order,
            };
            let (n_slots, users) = (proto.n_slots(), proto.users.iter());
            nodes.push(FlowNode {
                op,
                block: self.block_of[&proto.place],
                inputs: first_slot[i]..first_slot[i] + n_slots,
                n_dependencies: n_slots + proto.more_needs + 1,
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
        Subgraph {
            device: cut.devices[self.part.index()],
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
