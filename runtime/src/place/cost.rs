//! The cost model: operations, bytes and execution counts of the nodes of a graph.
//!
//! All costs are estimates derived from types. An unknown extent counts as [`EXTENT`], a loop of
//! unknown trip count as [`TRIPS`] iterations, and each branch of a conditional as half an
//! execution. Elementwise operations count as separate passes over memory, although devices fuse
//! them.

use super::topology::DeviceInfo;
use anabranch_dsl::ir::{CallKind, Graph, Node, Op, Region, Value, ValueDef};
use anabranch_dsl::ops::{Prim, prim};
use anabranch_dsl::{Dim, Shape, Type, passes};

/// The extent assumed for an unknown dimension.
const EXTENT: f64 = 32.0;

/// The trip count assumed for a loop of unknown trip count.
const TRIPS: f64 = 16.0;

/// Minimum time in seconds of an operation that runs on several threads.
const SHARED: f64 = 50e-6;

/// The cost of one execution of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    /// Floating-point operations of matmuls, convolutions and attention.
    pub(super) flops: f64,
    /// Bytes read and written. Expensive elementwise functions count as more.
    pub(super) bytes: f64,
    /// Whether the node executes at all. Nodes that only name or view values do not.
    pub(super) runs: bool,
}

impl Work {
    /// Returns the seconds on a device.
    pub(super) fn seconds(&self, device: &DeviceInfo) -> f64 {
        self.seconds_alone(device, 1.0)
    }

    /// Returns the seconds on a device if parallel operations are faster by the factor `alone`.
    pub(super) fn seconds_alone(&self, device: &DeviceInfo, alone: f64) -> f64 {
        let launch = if self.runs { device.launch } else { 0.0 };
        let work = (self.flops / device.flops).max(self.bytes / device.bandwidth);
        launch + if work > SHARED { work / alone } else { work }
    }
}

/// Cost estimates for a whole graph.
#[derive(Debug)]
pub(super) struct Costs {
    /// The cost of each node.
    pub(super) work: Vec<Work>,
    /// The trip count of each loop, and 1 for other nodes.
    pub(super) trips: Vec<f64>,
    /// The number of executions of each region per step.
    pub(super) runs: Vec<f64>,
    /// The size of each value in bytes.
    pub(super) bytes: Vec<f64>,
    /// The node that computes each value, traced through parameters and results of control flow, or
    /// `None` for inputs. For a loop variable, the node in the body.
    pub(super) makers: Vec<Option<Node>>,
}

/// Returns the seconds that a device needs for a kernel, as the sum over its operations.
///
/// Placement is based on the same costs.
pub(crate) fn kernel_seconds(graph: &Graph, device: &DeviceInfo) -> f64 {
    let costs = Costs::new(graph);
    let mut seconds = 0.0;
    graph.visit_nodes(graph.root(), &mut |node| {
        seconds += costs.runs[graph.node(node).region.index()] * costs.work[node.index()].seconds(device);
    });
    seconds
}

/// Maximum number of constructs traversed to find the node that computes a value.
const MAX_HOPS: usize = 64;

impl Costs {
    /// Estimates the costs of a graph.
    pub(super) fn new(graph: &Graph) -> Costs {
        let mut costs = Costs {
            work: vec![Work::default(); graph.n_nodes()],
            trips: vec![1.0; graph.n_nodes()],
            runs: vec![0.0; graph.n_regions()],
            bytes: (0..graph.n_values()).map(|v| bytes(graph.ty(Value::from_index(v)))).collect(),
            makers: Vec::new(),
        };
        costs.region(graph, graph.root(), 1.0);
        costs.makers = (0..graph.n_values()).map(|v| maker(graph, Value::from_index(v))).collect();
        costs
    }

    fn region(&mut self, graph: &Graph, region: Region, runs: f64) {
        self.runs[region.index()] = runs;
        for &node in &graph.region(region).nodes {
            let data = graph.node(node);
            self.work[node.index()] = self.of_node(graph, node);
            match data.op {
                Op::While { .. } => {
                    let trips = passes::trips(graph, node).map_or(TRIPS, |n| n as f64);
                    self.trips[node.index()] = trips;
                    self.region(graph, data.regions[0], runs * (trips + 1.0));
                    self.region(graph, data.regions[1], runs * trips);
                }
                Op::Cond => data.regions.iter().for_each(|&r| self.region(graph, r, runs * 0.5)),
                // The second region of a call is its gradient. Differentiation is already done, so
                // it never runs.
                Op::Call(CallKind::Checkpoint | CallKind::Recompute | CallKind::CustomGradient { .. }) => {
                    self.region(graph, data.regions[0], runs);
                }
                _ => {}
            }
        }
    }

    fn of_node(&self, graph: &Graph, node: Node) -> Work {
        let data = graph.node(node);
        let size = |v: &Value| self.bytes[v.index()];
        let all = || data.operands.iter().chain(&data.results).map(size).sum::<f64>();
        let result = || data.results.iter().map(size).sum::<f64>();
        let (flops, bytes) = match &data.op {
            Op::Prim(def, _) => {
                let shape = |v: Value| &graph.ty(v).element().shape;
                match *def {
                    prim::MATMUL => {
                        let depth = shape(data.operands[0]).dims().last().map_or(1.0, extent);
                        (2.0 * depth * elements(shape(data.results[0])), all())
                    }
                    prim::CONV | prim::CONV_INPUT_GRAD | prim::CONV_WEIGHT_GRAD => {
                        let (y, w) = match *def {
                            prim::CONV => (data.results[0], data.operands[1]),
                            prim::CONV_INPUT_GRAD => (data.operands[0], data.operands[1]),
                            _ => (data.operands[1], data.results[0]),
                        };
                        let filters = shape(w).dims().first().map_or(1.0, extent).max(1.0);
                        (2.0 * elements(shape(y)) * elements(shape(w)) / filters, all())
                    }
                    prim::ATTENTION | prim::ATTENTION_GRAD => {
                        let (q, k) = (shape(data.operands[0]), shape(data.operands[1]));
                        let last = |s: &Shape, i: usize| s.dims().iter().rev().nth(i).map_or(1.0, extent);
                        let products = if def == prim::ATTENTION { 2.0 } else { 5.0 };
                        (2.0 * products * elements(q) * last(k, 1), all())
                    }
                    // These only view their operand, or are fused into their users.
                    prim::RESHAPE
                    | prim::RESHAPE_LIKE
                    | prim::STOP_GRADIENT
                    | prim::WITH_DYNAMIC
                    | prim::EXTENTS
                    | prim::BROADCAST_TO
                    | prim::BROADCAST_LIKE => return Work::default(),
                    // Only a part of the large operand is read or written.
                    prim::TAKE | prim::SLICE | prim::DYNAMIC_SLICE | prim::CONCAT_PART | prim::TAKE_ALONG_AXIS => {
                        (0.0, 2.0 * result())
                    }
                    prim::SCATTER_ADD | prim::UPDATE_SLICE | prim::DYNAMIC_UPDATE_SLICE => {
                        (0.0, data.operands[1..].iter().map(size).sum::<f64>() * 2.0)
                    }
                    _ => (0.0, all() + passes_for(*def) * result()),
                }
            }
            Op::Constant(_) | Op::Read(_) | Op::Cond | Op::While { .. } | Op::Call(_) => return Work::default(),
            Op::Assign(_) | Op::Assert { .. } | Op::Print { .. } => (0.0, 0.0),
            Op::Stack(_) | Op::List(_) => {
                // An update of a list or stack accesses one element.
                let tensors = data.operands.iter().chain(&data.results);
                (0.0, tensors.filter(|&&v| matches!(graph.ty(v), Type::Tensor(_))).map(size).sum::<f64>())
            }
        };
        Work { flops, bytes, runs: true }
    }
}

/// Returns the additional passes over the result that account for a function of several
/// instructions.
fn passes_for(def: Prim) -> f64 {
    match def {
        prim::EXP | prim::LOG | prim::SQRT | prim::RSQRT | prim::DIV => 2.0,
        prim::TANH
        | prim::SIGMOID
        | prim::SIN
        | prim::COS
        | prim::ERF
        | prim::GELU
        | prim::POW
        | prim::LOG_1P
        | prim::EXP_M1
        | prim::SOFTPLUS => 6.0,
        prim::SOFTMAX | prim::LOG_SOFTMAX | prim::LOGSUMEXP => 6.0,
        prim::RANDOM_BITS | prim::RANDOM_UNIFORM => 4.0,
        _ => 0.0,
    }
}

fn extent(dim: &Dim) -> f64 {
    dim.known().map_or(EXTENT, |n| n as f64)
}

fn elements(shape: &Shape) -> f64 {
    shape.dims().iter().map(extent).product()
}

/// Returns the size of a value in bytes. Stacks and lists count as an assumed number of elements.
fn bytes(ty: &Type) -> f64 {
    let element = ty.element();
    let one = elements(&element.shape) * element.dtype.size() as f64;
    if matches!(ty, Type::Tensor(_)) { one } else { one * TRIPS }
}

fn maker(graph: &Graph, value: Value) -> Option<Node> {
    let mut v = value;
    for _ in 0..MAX_HOPS {
        v = match graph.value(v).def {
            ValueDef::Result(node, i) => {
                let data = graph.node(node);
                match data.op {
                    Op::While { .. } => graph.region(data.regions[1]).yields[i as usize],
                    Op::Cond | Op::Call(_) => graph.region(data.regions[0]).yields[i as usize],
                    _ => return Some(node),
                }
            }
            ValueDef::Param(region, i) => {
                let (owner, i) = (graph.region(region).owner?, i as usize);
                let data = graph.node(owner);
                match data.op {
                    Op::Cond => data.operands[i + 1],
                    Op::While { .. } if i < data.results.len() => match graph.region(data.regions[1]).yields[i] {
                        next if next == graph.region(data.regions[1]).params[i] => data.operands[i],
                        next => next,
                    },
                    _ => *data.operands.get(i)?,
                }
            }
        };
    }
    None
}
