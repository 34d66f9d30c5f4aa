//! Partitioning of one graph over several devices, and the executors that run the subgraphs.
//!
//! ```text
//! Graph + device of each node --partition--> Partition: a Subgraph for each device, and edges
//!                                                │
//!              driver: threads, clock  ◀─────────┴──▶  Executor of each: a pure state machine
//! ```
//!
//! A subgraph ([`Subgraph`]) is a flat list of [`FlowNode`]s, grouped into *blocks* and *frames*.
//! Connected nodes of one device form one node, [`FlowOp::Compute`], which is compiled as a unit.
//! Control flow that spans devices is lowered to `Switch`, `Merge`, `Enter`, `Exit` and
//! `NextIteration` (EuroSys'18, section 4). Because the source graph is structured, these
//! operations are simpler than in TensorFlow:
//!
//! - A **block** is a set of nodes that run or are skipped together: a branch, a loop condition or
//!   a loop body. Each device that participates in a construct has its own blocks and one `Switch`
//!   for the whole construct, which reads the predicate. A value used in a branch is delivered
//!   directly to its users there and is dropped if the branch is dead. Deadness is therefore one
//!   bit per block rather than a token per edge. Skipping a dead branch costs nothing, and only the
//!   predicate crosses devices for it, once per device.
//! - A **frame** is the step or a running loop. Each device that participates in a loop has the
//!   control loop of Figure 6 of the paper: its `Switch` reads the predicate of iteration `k`, then
//!   either starts iteration `k + 1` or releases the values to the exits. There is no coordinator
//!   and no barrier: a device runs ahead as far as the window allows.
//! - A **decision** is a predicate that other subgraphs only decide by. The host reads it where it
//!   is computed, and no other device gets it as a tensor.
//! - The **window** of a loop is its `parallel_iterations` and holds across all devices. The device
//!   that computes the predicate starts iteration `k` only when every other device has finished
//!   iteration `k - window`. The others report their progress periodically (a *credit*). The memory
//!   of a loop is thus bounded on each device by the iterations in the window, however unequal the
//!   devices are.
//! - A loop in a dead branch is never started, so there are no dead exits.
//!
//! Invariants:
//!
//! - F1. A device that participates in a construct participates in every construct around it.
//! - F2. A value is sent to another device at most once per computation, and only if a taken branch
//!   there uses it.
//! - F3. A capture of a loop enters the loop once, not in each iteration.
//! - F4. Clusters have no cyclic dependencies: each has a level and depends only on lower levels.
//! - F5. Observable effects (prints, operations on queues, and assertions in graphs with one of
//!   these) are on one device, in program order.
//!
//! Only `driver` and `step_run` deal with threads and clocks. Nothing here knows sockets: other
//! processes are behind [`remote`].

mod build;
pub(crate) mod distributed;
pub(crate) mod driver;
pub(crate) mod executor;
mod explain;
#[cfg(all(feature = "peers", any(test, feature = "testing")))]
pub(crate) mod hostile;
#[cfg(feature = "testing")]
mod in_one_process;
mod partition;
#[cfg(feature = "testing")]
pub(crate) mod random_placement;
#[cfg(test)]
mod reconstruct;
#[cfg_attr(not(feature = "peers"), allow(dead_code, reason = "without the feature only tests have other processes"))]
pub(crate) mod remote;
#[cfg(test)]
mod simulation;
pub(crate) mod step_run;

use crate::device::DeviceId;
use crate::id::id;
use anabranch_dsl::ir::{Node, Region, Value, VarId};
use anabranch_dsl::{Graph, Type};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

pub(crate) use partition::{PartitionOptions, partition};

id! {
    /// Index of a subgraph in a partition: the part that one device runs.
    SubgraphId, "part"
}
id! {
    /// Index of a node in a subgraph.
    NodeId, "n"
}
id! {
    /// Index of a block in a subgraph.
    BlockId, "block"
}
id! {
    /// Index of a frame in a subgraph. Index 0 is the step.
    FrameId, "frame"
}
id! {
    /// Index of a cross-device transfer of one value.
    EdgeId, "edge"
}
id! {
    /// Index of a loop that several subgraphs run together.
    LoopId, "loop"
}
id! {
    /// Index of a kernel in a subgraph.
    KernelId, "kernel"
}

/// The operation of a [`FlowNode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowOp {
    /// `() -> value`: an input or variable that the step reads.
    Source(Source),
    /// `(value)`: an output or variable that the step writes.
    Sink(Sink),
    /// `(values) -> values`: runs a kernel.
    Compute(KernelId),
    /// `(value)`: sends a value to another subgraph.
    Send { edge: EdgeId, to: SubgraphId },
    /// `() -> value`: receives a value from another subgraph. A message delivers its input.
    Recv(EdgeId),
    /// `(predicate)`: makes one of two blocks live and the other dead.
    Switch { then: BlockId, otherwise: BlockId },
    /// `(predicate)`: chooses between the body and the exits of a loop. If the predicate is true,
    /// the next iteration also begins.
    LoopSwitch { body: BlockId, exits: BlockId },
    /// `(value) -> value`: forwards the one input that arrives.
    ///
    /// In a conditional it comes from the taken branch. In a loop it comes from outside in the
    /// first iteration and from the previous iteration afterwards.
    Merge,
    /// `(value) -> value`: passes a value that a branch yields to the merge.
    Yield,
    /// `()`: begins the inner frame, and completes when that frame ends.
    Loop(FrameId),
    /// `(value) -> value`: passes a value into the first iteration of the frame.
    Enter(FrameId),
    /// `(value) -> value`: passes a value into every iteration of the frame.
    EnterConstant { frame: FrameId, constant: u32 },
    /// `(value) -> value`: passes a value out of the frame.
    Exit,
    /// `(value) -> value`: passes a value to the next iteration.
    NextIteration,
    /// `()`: computes nothing. It orders effects: it runs after some nodes and before others.
    Order,
}

/// A value that a step reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    /// An input of the graph.
    Input(u32),
    /// The current value of a variable.
    Var(VarId),
}

/// A value that a step writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Sink {
    /// An output of the graph.
    Output(u32),
    /// The new value of a variable.
    Assign(VarId),
}

/// A use of a value: an input of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) node: NodeId,
    /// Index of the input slot within an iteration of the node's frame.
    pub(crate) slot: u32,
}

/// A node of a subgraph.
#[derive(Clone, Debug)]
pub(crate) struct FlowNode {
    pub(crate) op: FlowOp,
    pub(crate) block: BlockId,
    /// The input slots of this node within an iteration of its frame.
    pub(crate) inputs: Range<u32>,
    /// Number of dependencies: the inputs (one for a merge), the nodes ordered before this node,
    /// and the activation of its block.
    pub(crate) n_dependencies: u32,
    /// The users of each result. Users of an exit are in the outer frame, users of an enter in the
    /// inner frame.
    pub(crate) users: Vec<Vec<Target>>,
    /// Nodes of the same frame that run after this node without using a result.
    pub(crate) before: Vec<NodeId>,
    /// The graph node that this node was created for.
    pub(crate) origin: Option<Node>,
    /// Index of the loop variable or result of `origin` that this node forwards.
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests that reconstruct graphs read it"))]
    pub(crate) position: u32,
}

/// Nodes that run or are skipped together.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) frame: FrameId,
    pub(crate) nodes: Range<u32>,
    /// The input slots of the nodes.
    pub(crate) slots: Range<u32>,
    /// All nested blocks of the same frame.
    pub(crate) inner: Vec<BlockId>,
}

/// The step, or a loop.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// The loop, or `None` for the step.
    pub(crate) of: Option<LoopId>,
    pub(crate) parent: Option<FrameId>,
    /// Index among the frames nested directly in the parent.
    pub(crate) position: u32,
    /// Number of frames nested directly in this frame.
    pub(crate) n_inner: u32,
    pub(crate) nodes: Range<u32>,
    pub(crate) blocks: Range<u32>,
    pub(crate) n_slots: u32,
    /// The node of the outer frame that begins this frame.
    pub(crate) begun_by: Option<NodeId>,
    /// Nodes of the outer frame that pass values into this frame.
    pub(crate) enters: Vec<NodeId>,
    /// The users of each loop-invariant value.
    pub(crate) constants: Vec<Vec<Target>>,
    /// Maximum number of concurrent iterations.
    pub(crate) window: u32,
    /// The other subgraphs that run the loop. Set only in the subgraph that computes the predicate.
    pub(crate) followers: Vec<SubgraphId>,
    /// The subgraph that computes the predicate. Set only in the other subgraphs.
    pub(crate) leader: Option<SubgraphId>,
}

/// The subgraph of one device.
#[derive(Clone, Debug)]
pub(crate) struct Subgraph {
    pub(crate) device: DeviceId,
    pub(crate) nodes: Vec<FlowNode>,
    pub(crate) blocks: Vec<Block>,
    /// All frames. The first is the step.
    pub(crate) frames: Vec<Frame>,
    /// The frame of each loop of the partition, or `None` if this device does not participate.
    pub(crate) frame_of: Vec<Option<FrameId>>,
    pub(crate) kernels: Vec<KernelGraph>,
    /// The `Recv` node of each incoming edge.
    pub(crate) receivers: HashMap<EdgeId, NodeId>,
}

impl Subgraph {
    /// Returns whether switches, and nothing else, use the value of a node.
    fn is_decision(&self, node: NodeId) -> bool {
        let mut users = self.nodes[node.index()].users.iter().flatten().peekable();
        let decides = |op: FlowOp| matches!(op, FlowOp::Switch { .. } | FlowOp::LoopSwitch { .. });
        users.peek().is_some() && users.all(|user| decides(self.nodes[user.node.index()].op))
    }

    /// Returns whether a frame is another one, or inside of it.
    fn is_within(&self, mut frame: FrameId, outer: FrameId) -> bool {
        while frame != outer {
            let Some(parent) = self.frames[frame.index()].parent else { return false };
            frame = parent;
        }
        true
    }
}

/// A graph that a device compiles and runs as a unit.
#[derive(Clone, Debug)]
pub(crate) struct KernelGraph {
    /// The graph to compile. The inputs and outputs may be stacks and lists.
    pub(crate) graph: Graph,
    /// The nodes of the whole graph in this kernel, including the constants copied into it.
    pub(crate) members: Vec<Node>,
}

/// A value sent from one subgraph to another.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) value: Value,
    pub(crate) ty: Type,
    pub(crate) from: SubgraphId,
    pub(crate) to: SubgraphId,
    /// The region whose execution sends the value.
    pub(crate) sent_in: Region,
    /// Whether the receiver only decides by the value: it then gets what the host has read.
    pub(crate) decides: bool,
}

/// A loop that spans several subgraphs.
#[derive(Clone, Debug)]
pub(crate) struct LoopInfo {
    pub(crate) node: Node,
    pub(crate) leader: SubgraphId,
}

/// A graph divided into subgraphs, one per device.
#[derive(Clone, Debug)]
pub(crate) struct Partition {
    pub(crate) parts: Vec<Arc<Subgraph>>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) loops: Vec<LoopInfo>,
    /// The source of each output of the graph.
    pub(crate) outputs: Vec<OutputSource>,
}

/// Where an output of the graph comes from. Inputs and constants go from the host to the host, so
/// they are on no device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OutputSource {
    Computed(SubgraphId),
    Input(u32),
    Constant(Node),
}

impl Partition {
    /// Returns for each edge the place of the first use of its values among the nodes of the
    /// receiving subgraph, between 0 and 1.
    #[cfg(feature = "peers")]
    pub(crate) fn first_uses(&self) -> Vec<f32> {
        let of = |(edge, to): (u32, SubgraphId)| {
            let part = &self.parts[to.index()];
            part.receivers.get(&EdgeId(edge)).map_or(1.0, |&receiver| part.first_use(receiver))
        };
        (0..).zip(self.edges.iter().map(|edge| edge.to)).map(of).collect()
    }
}

impl Subgraph {
    /// Returns the place of the first use of the value of a node, between 0 and 1. Nodes of a block
    /// come in the order of a sequential run.
    #[cfg(feature = "peers")]
    pub(crate) fn first_use(&self, node: NodeId) -> f32 {
        let users = self.nodes[node.index()].users.iter().flatten().map(|user| user.node.index());
        users.min().map_or(1.0, |first| first as f32 / self.nodes.len() as f32)
    }
}
