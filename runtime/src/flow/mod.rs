//! One graph over several devices: lowered, cut into a part for each device, and run by one executor for each.
//!
//! ```text
//! Graph + device of each node --partition--> Partition: a Part for each device, edges between them
//!                                                │
//!                     driver: threads, clock  ◀──┴──▶  Executor of each part: a pure state machine
//! ```
//!
//! A part is a flat list of [`PartNode`]s in *blocks* and *frames*. What lies on one device and hangs together is one node,
//! [`FlowOp::Compute`], and is compiled as a whole; control flow that spans devices is lowered to `Switch`, `Merge`, `Enter`, `Exit` and
//! `NextIteration` (EuroSys'18, section 4). Because the graph was structured, these say less than they do in TensorFlow, and do it sooner:
//!
//! - A **block** is what runs or does not run together: a branch, a condition of a loop, a body. Each device that takes part in a construct
//!   has its blocks, and one `Switch` for the whole of it that learns the predicate. A value that is used in a branch goes to its users in the branch directly,
//!   and is dropped where the branch is dead. So deadness is a bit for each block, not a token for each edge; it costs nothing to
//!   pass over a dead branch, and nothing crosses between devices for it but the predicate, once for each device.
//! - A **frame** is the step or a running loop. Each device that takes part in a loop has the control loop of the paper's Figure 6: its
//!   `Switch` learns the predicate of iteration `k` and begins iteration `k + 1`, or lets the values go to the exits. There is no coordinator and
//!   no barrier: a device runs ahead as far as the window allows.
//! - The **window** of a loop, its `parallel_iterations`, holds over all devices: the one that computes the predicate begins an iteration only
//!   when all others have finished the one that lies so many before it. They report this from time to time (a *credit*). So the memory of a loop
//!   is bounded on each device by what the window's iterations need, however unequal the devices are.
//! - A loop in a dead branch is never begun, so there are no dead exits.
//!
//! Invariants:
//!
//! - F1. A device that takes part in a construct takes part in all that contain it.
//! - F2. A value goes to another device at most once for each time that it is computed, and only if a branch that is taken there uses it.
//! - F3. What a loop captures enters it once, not in each iteration.
//! - F4. Clusters do not wait for each other in a circle: each has a level, and depends on lower levels only.
//! - F5. Effects that the user sees (prints, assertions beside prints) are on one device, in the order of the program.
//!
//! Nothing here knows threads, clocks or sockets but `driver`.

mod build;
pub(crate) mod driver;
#[cfg(test)]
mod erase;
pub(crate) mod executor;
mod explain;
mod partition;
#[cfg(test)]
mod simulation;

use crate::id::id;
use crate::place::DeviceId;
use anabranch_dsl::ir::{Node, Region, Value, VarId};
use anabranch_dsl::{Graph, Type};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

pub(crate) use partition::{Options, partition};

id! {
    /// A part of a partition: what one device runs.
    PartId, "part"
}
id! {
    /// A node of a part.
    NodeId, "n"
}
id! {
    /// A block of a part.
    BlockId, "block"
}
id! {
    /// A frame of a part; the first is the step.
    FrameId, "frame"
}
id! {
    /// A value that goes from one part to another.
    EdgeId, "edge"
}
id! {
    /// A loop that several parts run together.
    LoopId, "loop"
}
id! {
    /// A graph that a part computes as a whole.
    KernelId, "kernel"
}

/// What a node of a part does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowOp {
    /// `() -> value`: what the step begins with.
    Source(Source),
    /// `(value)`: what the step ends with.
    Sink(Sink),
    /// `(values) -> values`: runs a kernel.
    Compute(KernelId),
    /// `(value)`: sends it to another part.
    Send { edge: EdgeId, to: PartId },
    /// `() -> value`: what another part sent. Its input comes by a message.
    Recv(EdgeId),
    /// `(predicate)`: makes one of two blocks live and the other dead.
    Switch { then: BlockId, otherwise: BlockId },
    /// `(predicate)`: the same for the body and the exits of a loop. If it is true, the next iteration begins, too.
    LoopSwitch { body: BlockId, exits: BlockId },
    /// `(value) -> value`: passes on the one input that comes: from the branch that was taken, or from outside of the loop in its first
    /// iteration and from the iteration before in all others.
    Merge,
    /// `(value) -> value`: gives what a branch yields to the merge.
    Yield,
    /// `()`: begins the inner frame, and is done when that is.
    Loop(FrameId),
    /// `(value) -> value`: brings a value into the first iteration of the frame.
    Enter(FrameId),
    /// `(value) -> value`: brings a value into all iterations of the frame.
    EnterConstant { frame: FrameId, constant: u32 },
    /// `(value) -> value`: brings a value out of the frame.
    Exit,
    /// `(value) -> value`: brings a value into the next iteration.
    NextIteration,
    /// `()`: computes nothing. Effects are put into order by it: it stands after some and before others.
    Order,
}

/// What a step is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    /// An input of the graph.
    Input(u32),
    /// The present value of a variable.
    Var(VarId),
}

/// What a step gives.
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
    /// Index in the inputs of an iteration of the node's frame.
    pub(crate) slot: u32,
}

/// A node of a part.
#[derive(Clone, Debug)]
pub(crate) struct PartNode {
    pub(crate) op: FlowOp,
    pub(crate) block: BlockId,
    /// Its inputs, as slots of an iteration of its frame.
    pub(crate) inputs: Range<u32>,
    /// What must have come before it runs: its inputs (one, of a merge), the nodes that it stands after, and its block.
    pub(crate) needs: u32,
    /// The users of each of its results. Of an exit they are in the outer frame, of what enters in the inner one.
    pub(crate) users: Vec<Vec<Target>>,
    /// The nodes of its frame that stand after it without using a result.
    pub(crate) before: Vec<NodeId>,
    /// The node of the graph that it was made for.
    pub(crate) origin: Option<Node>,
    /// Which of the node's loop variables or results it passes on.
    #[cfg_attr(not(test), expect(dead_code, reason = "only what takes partitions back has to know"))]
    pub(crate) position: u32,
}

/// Nodes that run together.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) frame: FrameId,
    pub(crate) nodes: Range<u32>,
    /// The slots of its nodes.
    pub(crate) slots: Range<u32>,
    /// All blocks inside of it that are of the same frame.
    pub(crate) inner: Vec<BlockId>,
}

/// The step, or a loop.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// The loop; none for the step.
    pub(crate) of: Option<LoopId>,
    pub(crate) parent: Option<FrameId>,
    /// Position among the frames that its parent contains.
    pub(crate) position: u32,
    /// Number of frames that are directly in it.
    pub(crate) n_inner: u32,
    pub(crate) nodes: Range<u32>,
    pub(crate) blocks: Range<u32>,
    pub(crate) n_slots: u32,
    /// The node of the outer frame that begins it.
    pub(crate) begun_by: Option<NodeId>,
    /// The nodes of the outer frame that bring values into it.
    pub(crate) enters: Vec<NodeId>,
    /// The users of each value that enters all iterations.
    pub(crate) constants: Vec<Vec<Target>>,
    /// How many iterations may run at once.
    pub(crate) window: u32,
    /// The other parts that run the loop, on the part that computes its predicate.
    pub(crate) followers: Vec<PartId>,
    /// The part that computes the predicate, on the others.
    pub(crate) leader: Option<PartId>,
}

/// What one device runs.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) device: DeviceId,
    pub(crate) nodes: Vec<PartNode>,
    pub(crate) blocks: Vec<Block>,
    /// The first is the step.
    pub(crate) frames: Vec<Frame>,
    /// For each loop of the partition its frame here, if it has one.
    pub(crate) frame_of: Vec<Option<FrameId>>,
    pub(crate) kernels: Vec<KernelGraph>,
    /// The node that receives each value which comes from another part.
    pub(crate) receivers: HashMap<EdgeId, NodeId>,
}

/// What a part computes as a whole.
#[derive(Clone, Debug)]
pub(crate) struct KernelGraph {
    /// Its inputs and outputs may be stacks and lists.
    pub(crate) graph: Graph,
    /// The nodes of the whole graph that it is made of, and those constants that it has copies of.
    pub(crate) members: Vec<Node>,
}

/// A value that goes from part to part.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) value: Value,
    pub(crate) ty: Type,
    pub(crate) from: PartId,
    pub(crate) to: PartId,
    /// The region that it is sent in, each time that runs.
    pub(crate) sent_in: Region,
}

/// A loop over several parts.
#[derive(Clone, Debug)]
pub(crate) struct LoopInfo {
    pub(crate) node: Node,
    pub(crate) leader: PartId,
}

/// A graph cut into parts.
#[derive(Clone, Debug)]
pub(crate) struct Partition {
    pub(crate) parts: Vec<Arc<Part>>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) loops: Vec<LoopInfo>,
}
