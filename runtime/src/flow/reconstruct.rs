//! Reconstruction of a graph from its partition: without devices, `Send` and `Recv` they are equal.
//!
//! Both are represented as *facts*, one per node: its location, its operation, and the origin of
//! each operand. A capture is replaced by the captured value. The facts of a partition are derived
//! only from the connections in its subgraphs.

use super::simulation::{Rng, random_graph};
use super::{BlockId, EdgeId, FlowOp, NodeId, OutputSource, Partition, PartitionOptions, Sink, Source, partition};
use crate::place::place_at_random;
use anabranch_dsl::Graph;
use anabranch_dsl::ir::{Node, Op, ParamSource, Region, Value, ValueDef};
use std::collections::{BTreeMap, HashMap};

/// The origin of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Made {
    Source(Source),
    Result(Node, usize),
    LoopVariable(Node, usize),
}

/// The region that contains a node, given as owner and region index, or `None` for the root.
type ParentRegion = Option<(Node, usize)>;

#[derive(PartialEq, Debug)]
enum GraphFact {
    /// A node with its operation, printed as a graph of its own, and its operands.
    Does(ParentRegion, String, Vec<Made>),
    /// A conditional: its predicate and the pairs of values that its branches yield.
    Cond(ParentRegion, Made, Vec<[Made; 2]>),
    /// A loop: the initial and next value of each loop variable, and the predicate.
    While(ParentRegion, Vec<[Made; 2]>, Made),
    Assign(Made),
}

/// The location of a construct, its predicate, and the inputs of each of its merges.
type ConstructParts = (ParentRegion, Option<Made>, BTreeMap<usize, [Made; 2]>);

#[derive(PartialEq, Debug, Default)]
struct GraphFacts {
    nodes: BTreeMap<Node, GraphFact>,
    outputs: Vec<Made>,
}

/// Returns the text of one node and its regions.
fn text_of(graph: &Graph, node: Node) -> String {
    let data = graph.node(node);
    let mut inputs = data.operands.clone();
    inputs.sort();
    inputs.dedup();
    // Inputs in order of first use, so that value indices do not matter.
    inputs.sort_by_key(|v| data.operands.iter().position(|o| o == v));
    graph.extract("node", &[node], &inputs, &data.results).to_string()
}

// Facts of a graph.

fn made(graph: &Graph, split: &dyn Fn(Node) -> bool, value: Value) -> Made {
    match graph.value(value).def {
        ValueDef::Result(node, i) => Made::Result(node, i as usize),
        ValueDef::Param(region, _) => {
            assert!(
                graph.region(region).owner.is_none_or(split),
                "regions of nodes that are whole are not looked into"
            );
            match graph.source_of(value) {
                ParamSource::Input(i) => Made::Source(Source::Input(i as u32)),
                ParamSource::Capture(outer) => made(graph, split, outer),
                ParamSource::LoopVar(var) => Made::LoopVariable(var.node, var.index),
                ParamSource::Own { .. } => panic!("{value}: gradients of calls do not run"),
            }
        }
    }
}

fn facts_of_graph(graph: &Graph, split: &dyn Fn(Node) -> bool, region: Region, facts: &mut GraphFacts) {
    let place = graph
        .region(region)
        .owner
        .map(|node| (node, graph.node(node).regions.iter().position(|&r| r == region).expect("its owner has it")));
    let made = |v: &Value| made(graph, split, *v);
    for &node in &graph.region(region).nodes {
        let data = graph.node(node);
        let fact = match data.op {
            Op::Cond if split(node) => {
                let cond = graph.cond_of(node);
                let both = (0..data.results.len()).map(|i| cond.yields(i).map(|v| made(&v))).collect();
                GraphFact::Cond(place, made(&cond.predicate()), both)
            }
            _ if split(node) && graph.as_while(node).is_some() => {
                let data = graph.while_of(node);
                let both = data.vars().map(|var| [var.init, var.next].map(|v| made(&v))).collect();
                GraphFact::While(place, both, made(&data.predicate()))
            }
            _ => GraphFact::Does(place, text_of(graph, node), data.operands.iter().map(made).collect()),
        };
        facts.nodes.insert(node, fact);
        if split(node) {
            data.regions.iter().for_each(|&r| facts_of_graph(graph, split, r, facts));
        }
    }
    if place.is_none() {
        facts.outputs = graph.outputs().iter().map(made).collect();
    }
}

// Facts of a partition.

struct Erase<'a> {
    partition: &'a Partition,
    /// The nodes and results that provide each input, by subgraph, user and slot.
    givers: HashMap<(usize, NodeId, u32), Vec<(NodeId, usize)>>,
    senders: HashMap<EdgeId, (usize, NodeId)>,
}

impl<'a> Erase<'a> {
    fn new(partition: &'a Partition) -> Erase<'a> {
        let (mut givers, mut senders) = (HashMap::<_, Vec<_>>::new(), HashMap::new());
        for (p, part) in partition.parts.iter().enumerate() {
            for (n, node) in part.nodes.iter().enumerate() {
                if let FlowOp::Send { edge, .. } = node.op {
                    let other = senders.insert(edge, (p, NodeId(n as u32)));
                    assert!(other.is_none(), "{edge:?} has two senders");
                }
                for (k, users) in node.users.iter().enumerate() {
                    for user in users {
                        givers.entry((p, user.node, user.slot)).or_default().push((NodeId(n as u32), k));
                    }
                }
            }
        }
        Erase { partition, givers, senders }
    }

    /// Returns the origin of an input of a node.
    fn input(&self, p: usize, node: NodeId, i: u32) -> Made {
        let slot = self.partition.parts[p].nodes[node.index()].inputs.start + i;
        let [(giver, result)] = self.givers[&(p, node, slot)][..] else { panic!("an input has one giver") };
        self.made(p, giver, result)
    }

    /// Returns the origin of a result of a node.
    fn made(&self, p: usize, node: NodeId, result: usize) -> Made {
        let part = &self.partition.parts[p];
        let data = &part.nodes[node.index()];
        let origin = || data.origin.expect("it was made for a node");
        match data.op {
            FlowOp::Source(source) => Made::Source(source),
            FlowOp::Compute(kernel) => {
                let kernel = &part.kernels[kernel.index()];
                let value = kernel.graph.outputs()[result];
                let ValueDef::Result(inner, i) = kernel.graph.value(value).def else {
                    panic!("a kernel makes its outputs")
                };
                Made::Result(self.member(p, data.op, inner), i as usize)
            }
            FlowOp::Recv(edge) => {
                let (p, sender) = self.senders[&edge];
                self.input(p, sender, 0)
            }
            FlowOp::Merge if self.is_loop_merge(p, node) => Made::LoopVariable(origin(), self.position(p, node)),
            FlowOp::Merge | FlowOp::Exit => Made::Result(origin(), self.position(p, node)),
            FlowOp::EnterConstant { .. } | FlowOp::Yield => self.input(p, node, 0),
            other => panic!("{other:?} makes nothing"),
        }
    }

    /// Returns the node of the whole graph that a node of a kernel stands for.
    fn member(&self, p: usize, op: FlowOp, inner: Node) -> Node {
        let FlowOp::Compute(kernel) = op else { panic!("only kernels have members") };
        let kernel = &self.partition.parts[p].kernels[kernel.index()];
        let nodes = &kernel.graph.region(kernel.graph.root()).nodes;
        kernel.members[nodes.iter().position(|&n| n == inner).expect("it is in the kernel")]
    }

    fn is_loop_merge(&self, p: usize, node: NodeId) -> bool {
        let part = &self.partition.parts[p];
        let slot = part.nodes[node.index()].inputs.start;
        let givers = &self.givers[&(p, node, slot)];
        givers.iter().any(|(g, _)| matches!(part.nodes[g.index()].op, FlowOp::Enter(_)))
    }

    /// Returns the recorded position of a loop variable or result. The structure of the subgraphs
    /// does not determine it.
    fn position(&self, p: usize, node: NodeId) -> usize {
        self.partition.parts[p].nodes[node.index()].position as usize
    }

    /// Returns the region of a block. The exits of a loop count as an additional region.
    fn place(&self, p: usize, block: BlockId) -> ParentRegion {
        let part = &self.partition.parts[p];
        for node in &part.nodes {
            match node.op {
                FlowOp::Switch { then, .. } if then == block => return Some((node.origin?, 0)),
                FlowOp::Switch { otherwise, .. } if otherwise == block => return Some((node.origin?, 1)),
                FlowOp::LoopSwitch { body, .. } if body == block => return Some((node.origin?, 1)),
                FlowOp::LoopSwitch { exits, .. } if exits == block => return Some((node.origin?, 2)),
                FlowOp::Loop(frame) if part.frames[frame.index()].blocks.start == block.0 => {
                    return Some((node.origin?, 0));
                }
                _ => {}
            }
        }
        assert_eq!(block, BlockId(0), "every other block is one of a construct");
        None
    }

    fn facts(&self) -> GraphFacts {
        let mut facts = GraphFacts::default();
        let mut outputs: BTreeMap<u32, Made> = BTreeMap::new();
        let mut add = |node: Node, fact: GraphFact| {
            if let Some(before) = facts.nodes.get(&node) {
                assert_eq!(*before, fact, "two parts say different things");
            }
            facts.nodes.insert(node, fact);
        };
        let mut conds: BTreeMap<Node, ConstructParts> = BTreeMap::new();
        let mut whiles = conds.clone();
        for (p, part) in self.partition.parts.iter().enumerate() {
            for (n, data) in part.nodes.iter().enumerate() {
                let id = NodeId(n as u32);
                let place = self.place(p, data.block);
                match data.op {
                    FlowOp::Compute(kernel) => {
                        let kernel = &part.kernels[kernel.index()];
                        let graph = &kernel.graph;
                        let nodes = &graph.region(graph.root()).nodes;
                        for (&inner, &member) in nodes.iter().zip(&kernel.members) {
                            let made = |v: &Value| match graph.value(*v).def {
                                ValueDef::Param(_, i) => self.input(p, id, i),
                                ValueDef::Result(n, i) => Made::Result(self.member(p, data.op, n), i as usize),
                            };
                            let made = graph.node(inner).operands.iter().map(made).collect();
                            // Constants are copied to the kernels that use them, so their region is
                            // ignored.
                            let is_constant = matches!(graph.node(inner).op, Op::Constant(_));
                            let place = if is_constant { None } else { place };
                            add(member, GraphFact::Does(place, text_of(graph, inner), made));
                        }
                    }
                    FlowOp::Sink(Sink::Output(i)) => {
                        outputs.insert(i, self.input(p, id, 0));
                    }
                    FlowOp::Sink(Sink::Assign(_)) => {
                        add(data.origin.expect("an assignment is a node"), GraphFact::Assign(self.input(p, id, 0)));
                    }
                    FlowOp::Switch { .. } => {
                        let cond =
                            conds.entry(data.origin.expect("of a node")).or_insert((place, None, BTreeMap::new()));
                        cond.1 = Some(self.input(p, id, 0));
                    }
                    FlowOp::Loop(_) => {
                        whiles.entry(data.origin.expect("of a node")).or_insert((place, None, BTreeMap::new())).0 =
                            place;
                    }
                    FlowOp::LoopSwitch { .. } => {
                        let entry = whiles.entry(data.origin.expect("of a node"));
                        entry.or_insert((place, None, BTreeMap::new())).1 = Some(self.input(p, id, 0));
                    }
                    FlowOp::Merge => {
                        // For a loop: the initial and the next value. For a conditional: the two
                        // branches, in block order.
                        let mut givers = self.givers[&(p, id, data.inputs.start)].clone();
                        givers.sort_by_key(|(g, _)| (part.nodes[g.index()].block, *g));
                        let both = [0, 1].map(|k| self.input(p, givers[k].0, 0));
                        let all = if self.is_loop_merge(p, id) { &mut whiles } else { &mut conds };
                        let entry =
                            all.entry(data.origin.expect("of a node")).or_insert((place, None, BTreeMap::new()));
                        entry.2.insert(self.position(p, id), both);
                    }
                    _ => {}
                }
            }
        }
        for (node, (place, predicate, both)) in conds {
            add(node, GraphFact::Cond(place, predicate.expect("a cond has a switch"), both.into_values().collect()));
        }
        for (node, (place, predicate, both)) in whiles {
            add(node, GraphFact::While(place, both.into_values().collect(), predicate.expect("a loop has a switch")));
        }
        for (i, source) in (0..).zip(&self.partition.outputs) {
            let made = match *source {
                OutputSource::Computed(_) => continue,
                OutputSource::Input(input) => Made::Source(Source::Input(input)),
                OutputSource::Constant(node) => Made::Result(node, 0),
            };
            assert_eq!(outputs.insert(i, made), None, "an output that is given is not computed");
        }
        facts.outputs = outputs.into_values().collect();
        facts
    }
}

#[test]
fn without_devices_a_partition_is_the_graph() {
    let mut cut_loops = 0;
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let graph = random_graph(&mut rng);
        let n = 1 + rng.below(4);
        let placement = place_at_random(&graph, n, rng.next());
        let options = PartitionOptions { lower_everything: seed % 2 == 0, ..PartitionOptions::default() };
        let cut = partition(&graph, &placement, options);
        cut_loops += cut.loops.len();
        let erased = Erase::new(&cut).facts();
        let is_split = |node: Node| matches!(erased.nodes.get(&node), Some(GraphFact::Cond(..) | GraphFact::While(..)));
        let mut facts = GraphFacts::default();
        facts_of_graph(&graph, &is_split, graph.root(), &mut facts);
        let mut erased = Erase::new(&cut).facts();
        for (node, fact) in &mut facts.nodes {
            if let (GraphFact::Does(place, ..), Op::Constant(_)) = (fact, &graph.node(*node).op) {
                *place = None;
            }
            // A constant without users is not computed anywhere.
            if matches!(graph.node(*node).op, Op::Constant(_)) && !erased.nodes.contains_key(node) {
                erased.nodes.insert(*node, GraphFact::Does(None, text_of(&graph, *node), vec![]));
            }
        }
        assert_eq!(erased, facts, "seed {seed}, {n} devices\n{graph}");
    }
    assert!(cut_loops > 100, "{cut_loops} loops over several parts are too few");
}
