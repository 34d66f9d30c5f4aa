//! The cost model: operations, bytes and execution counts of the nodes of a graph.
//!
//! All costs are estimates derived from types. An unknown extent counts as [`ASSUMED_EXTENT`], a
//! loop of unknown trip count as [`ASSUMED_TRIPS`] iterations, and each branch of a conditional as
//! half an execution. Elementwise operations count as separate passes over memory, although devices
//! fuse them.

use super::DeviceInfo;
use anabranch_dsl::ir::{Graph, LoopVar, Node, Op, ParamSource, Region, Runs, Value, ValueDef};
use anabranch_dsl::ops::{ASSUMED_EXTENT, CostCx};
use anabranch_dsl::{Dim, Shape, Type, passes};

/// Instructions in the time of reading one more element from memory.
const INSTRUCTIONS_PER_ELEMENT: f64 = 4.0;

/// The trip count assumed for a loop of unknown trip count.
const ASSUMED_TRIPS: f64 = 16.0;

/// Minimum time in seconds of an operation that runs on several threads.
const PARALLEL_SECONDS: f64 = 50e-6;

/// The cost of one execution of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct NodeCost {
    /// Arithmetic on elements.
    pub(crate) flops: f64,
    /// Bytes read and written. Expensive elementwise functions count as more.
    pub(crate) bytes: f64,
    /// Whether the node executes at all. Nodes that only name or view values do not.
    pub(crate) runs: bool,
}

impl NodeCost {
    /// Returns the seconds on a device.
    pub(crate) fn seconds(&self, device: &DeviceInfo) -> f64 {
        self.seconds_alone(device, 1.0)
    }

    /// Returns the seconds on a device if parallel operations are faster by the factor `alone`.
    pub(crate) fn seconds_alone(&self, device: &DeviceInfo, alone: f64) -> f64 {
        let launch = if self.runs { device.launch } else { 0.0 };
        let work = (self.flops / device.flops).max(self.bytes / device.bandwidth);
        launch + if work > PARALLEL_SECONDS { work / alone } else { work }
    }
}

/// Cost estimates for a whole graph.
#[derive(Debug)]
pub(crate) struct Costs {
    /// The cost of each node.
    pub(crate) work: Vec<NodeCost>,
    /// The trip count of each loop, and 1 for other nodes.
    pub(crate) trips: Vec<f64>,
    /// The number of executions of each region per step.
    pub(crate) runs: Vec<f64>,
    /// The size of each value in bytes.
    pub(crate) bytes: Vec<f64>,
    /// The node that computes each value, traced through parameters and results of control flow, or
    /// `None` for inputs. For a loop variable, the node in the body.
    pub(crate) makers: Vec<Option<Node>>,
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
    pub(crate) fn new(graph: &Graph) -> Costs {
        let mut costs = Costs {
            work: vec![NodeCost::default(); graph.n_nodes()],
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
            self.work[node.index()] = self.of_node(graph, node);
            if graph.as_while(node).is_some() {
                self.trips[node.index()] = passes::trips(graph, node).map_or(ASSUMED_TRIPS, |n| n as f64);
            }
            for (inner, times) in self.running(graph, node) {
                self.region(graph, inner, runs * times);
            }
        }
    }

    /// Returns the regions of a node that may run, each with its expected number of runs in one
    /// execution of the node.
    pub(crate) fn running<'g>(&self, graph: &'g Graph, node: Node) -> impl Iterator<Item = (Region, f64)> + use<'g> {
        let trips = self.trips[node.index()];
        graph.region_uses(node).filter_map(move |(region, runs)| match runs {
            Runs::Never => None,
            Runs::AtMostOnce => Some((region, 0.5)),
            Runs::Once => Some((region, 1.0)),
            Runs::EachTest => Some((region, trips + 1.0)),
            Runs::EachIteration => Some((region, trips)),
        })
    }

    fn of_node(&self, graph: &Graph, node: Node) -> NodeCost {
        let data = graph.node(node);
        let size = |v: &Value| self.bytes[v.index()];
        let (flops, bytes) = match &data.op {
            Op::Prim(def, _) if def.is_free() => return NodeCost::default(),
            Op::Prim(def, attrs) => {
                let operands: Vec<_> = data.operands.iter().map(|&v| graph.ty(v).element()).collect();
                let result = graph.ty(data.results[0]).element();
                let cost = def.cost(&CostCx { operands: &operands, result, attrs, unknown_extent: ASSUMED_EXTENT });
                let special = cost.special / INSTRUCTIONS_PER_ELEMENT * result.dtype.size() as f64;
                (cost.operations, cost.bytes_read + cost.bytes_written + special)
            }
            Op::Constant(_) | Op::Read(_) | Op::Cond | Op::While { .. } | Op::Call(_) => return NodeCost::default(),
            Op::Assign(_) | Op::Assert { .. } | Op::Print { .. } | Op::Queue(..) | Op::File(_) => (0.0, 0.0),
            Op::Stack(_) | Op::List(_) => {
                // An update of a list or stack accesses one element.
                let tensors = data.operands.iter().chain(&data.results);
                (0.0, tensors.filter(|&&v| matches!(graph.ty(v), Type::Tensor(_))).map(size).sum::<f64>())
            }
        };
        NodeCost { flops, bytes, runs: true }
    }
}

fn extent(dim: &Dim) -> f64 {
    dim.known().unwrap_or(ASSUMED_EXTENT) as f64
}

fn elements(shape: &Shape) -> f64 {
    shape.dims().iter().map(extent).product()
}

/// Returns the size of a value in bytes. Stacks and lists count as an assumed number of elements.
fn bytes(ty: &Type) -> f64 {
    let element = ty.element();
    let one = elements(&element.shape) * element.dtype.size() as f64;
    if matches!(ty, Type::Tensor(_)) { one } else { one * ASSUMED_TRIPS }
}

fn maker(graph: &Graph, value: Value) -> Option<Node> {
    let mut v = value;
    for _ in 0..MAX_HOPS {
        v = match graph.value(v).def {
            ValueDef::Result(node, i) => {
                let Some(&region) = graph.result_regions(node).first() else { return Some(node) };
                graph.region(region).yields[i as usize]
            }
            ValueDef::Param(..) => match graph.source_of(v) {
                ParamSource::Capture(outer) => outer,
                ParamSource::LoopVar(LoopVar { init, body_param, next, .. }) if next == body_param => init,
                ParamSource::LoopVar(LoopVar { next, .. }) => next,
                ParamSource::Input(_) | ParamSource::Own { .. } => return None,
            },
        };
    }
    None
}
