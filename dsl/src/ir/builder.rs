//! Building graphs: the one place that creates nodes.
//!
//! A [`GraphBuilder`] is a graph with a position at which nodes are added, and the [`Origin`] that
//! they get. The tracer, the passes, gradients and the parser create nodes with it and in no other
//! way.
//!
//! Invariants:
//!
//! - A new node uses only values of its own region, and its results have the types that inference
//!   yields. Only copies, and nodes that the text form annotates, have given types.
//! - Nodes that are added one after another at the same position are in this order in the graph.
//! - A replaced value is replaced once, by another value.
//!
//! A builder knows the operations and their inference. It must never know who uses it: nothing of a
//! trace, of variables, names or calls, of gradients, or of devices beyond the constraint in an
//! origin.

use super::infer::infer;
use super::open::OpenRegions;
use super::{Attrs, Graph, Node, NodeData, Op, Origin, Region, Value, ValueDef};
use crate::ops::attributes::Shaped;
use crate::ops::{OpError, Prim, prim};
use crate::{DeviceConstraint, HostTensor, Shape, Type};
use rustc_hash::FxHashMap;
use std::ops::{Deref, DerefMut};

/// A position at which nodes are added to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertPoint {
    /// Before a node.
    Before(Node),
    /// After a node, and after the nodes that were added there.
    After(Node),
    /// At the end of a region.
    End(Region),
}

/// A graph to which nodes are added at a position, with an [`Origin`] and inferred types.
///
/// Passes edit a graph with it. Values of enclosing regions that a construct uses are captured.
///
/// ```
/// use anabranch::Graph;
/// use anabranch::extend::{Attrs, GraphBuilder, prim};
///
/// let text = "graph @f(%x: f32[2]) -> f32[2] { %y = exp %x  %z = neg %y  return %z }";
/// let mut graph = Graph::parse(text, "f.ir").expect("the text is right");
/// GraphBuilder::edit(&mut graph, |graph| {
///     let z = graph.outputs()[0];
///     let neg = graph.producer(z).expect("the output is a result");
///     let y = graph.node(neg).operands[0];
///     let tanh = graph.before(neg).prim(prim::TANH, &[y], Attrs::none());
///     graph.replace(z, tanh);
///     graph.update_region(graph.root());
/// });
/// let expected = "graph @f(%x: f32[2]) -> f32[2] {
///     %y = exp %x  %t = tanh %y  %z = neg %y  return %t
/// }";
/// assert!(graph.same_structure(&Graph::parse(expected, "f.ir").expect("the text is right")));
/// ```
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
    pub(super) point: InsertPoint,
    pub(super) origin: Origin,
    /// The constructs whose regions are being built, outermost first.
    pub(super) open: Vec<OpenRegions>,
    /// The region around the open constructs.
    pub(super) base: Region,
    /// The replacement of each value, if it has one. Values after the end have none.
    replaced: Vec<Option<Value>>,
    /// The scalar constants that later nodes of their region may use, too.
    scalars: FxHashMap<(Region, Option<DeviceConstraint>, HostTensor), Value>,
}

impl Deref for GraphBuilder {
    type Target = Graph;
    fn deref(&self) -> &Graph {
        &self.graph
    }
}
impl DerefMut for GraphBuilder {
    fn deref_mut(&mut self) -> &mut Graph {
        &mut self.graph
    }
}

impl GraphBuilder {
    /// Creates a builder that adds nodes at the end of the graph.
    pub fn new(graph: Graph) -> GraphBuilder {
        let base = graph.root();
        let (point, origin) = (InsertPoint::End(base), Origin::UNKNOWN);
        GraphBuilder {
            graph,
            point,
            origin,
            open: Vec::new(),
            base,
            replaced: Vec::new(),
            scalars: FxHashMap::default(),
        }
    }

    /// Calls `f` with a builder of a graph. If `f` panics, the graph is lost.
    pub fn edit<R>(graph: &mut Graph, f: impl FnOnce(&mut GraphBuilder) -> R) -> R {
        let mut builder = GraphBuilder::new(graph.take());
        let result = f(&mut builder);
        *graph = builder.into_graph();
        result
    }

    /// Returns the graph.
    pub fn into_graph(self) -> Graph {
        self.graph
    }

    // Nodes.

    /// Sets the position and the origin of the next nodes.
    pub fn at(&mut self, point: InsertPoint, origin: impl Into<Origin>) -> &mut GraphBuilder {
        (self.point, self.origin) = (point, origin.into());
        self
    }

    /// Continues before a node, with its origin.
    pub fn before(&mut self, node: Node) -> &mut GraphBuilder {
        let origin = self.graph.node(node).origin();
        self.at(InsertPoint::Before(node), origin)
    }

    /// Continues at the first position at which a value can be used, with its origin.
    pub fn after(&mut self, value: Value) -> &mut GraphBuilder {
        let point = match self.graph.value(value).def {
            ValueDef::Result(node, _) => InsertPoint::After(node),
            ValueDef::Param(region, _) => {
                let first = self.graph.region(region).nodes.first();
                first.map_or(InsertPoint::End(region), |&node| InsertPoint::Before(node))
            }
        };
        self.at(point, self.graph.origin(value))
    }

    /// Returns the position of the next node.
    pub fn point(&self) -> InsertPoint {
        self.point
    }

    /// Returns the origin of the next node.
    pub fn next_origin(&self) -> Origin {
        self.origin
    }

    /// Returns the region of the next node.
    pub fn region_here(&self) -> Region {
        match self.point {
            InsertPoint::Before(node) | InsertPoint::After(node) => self.graph.node(node).region,
            InsertPoint::End(region) => region,
        }
    }

    /// Adds a node without regions. Operands from outside an open construct are captured.
    ///
    /// # Errors
    /// Fails if the operation does not admit the operands. No node is added then, but captures
    /// stay.
    pub fn try_emit(&mut self, op: Op, mut operands: Vec<Value>) -> Result<Node, OpError> {
        operands.iter_mut().for_each(|v| *v = self.capture(*v));
        let types = infer(&self.graph, &op, &operands, &[]).map_err(|broken| broken.error)?;
        Ok(self.insert(op, operands, types))
    }

    /// Adds a node with one result and returns the result.
    ///
    /// # Panics
    /// Panics if the operation does not admit the operands.
    pub fn emit(&mut self, op: Op, operands: &[Value]) -> Value {
        let name = op.name();
        let node = self.try_emit(op, operands.to_vec()).unwrap_or_else(|e| panic!("{name}: {}", e.message));
        let [result] = self.graph.node(node).results[..] else { panic!("{name} does not have one result") };
        result
    }

    /// Adds a primitive operation and returns its result.
    ///
    /// # Panics
    /// Panics if the operation does not admit the operands.
    pub fn prim(&mut self, op: Prim, operands: &[Value], attrs: impl Into<Attrs>) -> Value {
        self.emit(Op::Prim(op, attrs.into()), operands)
    }

    /// Adds a constant and returns it.
    pub fn constant(&mut self, tensor: HostTensor) -> Value {
        self.emit(Op::Constant(tensor), &[])
    }

    /// Returns a constant at the end of a region. Equal scalars on one device are one node.
    ///
    /// # Panics
    /// Panics if the position is not the end of a region: a constant that was added there may come
    /// later.
    pub(crate) fn shared_constant(&mut self, tensor: HostTensor) -> Value {
        let InsertPoint::End(region) = self.point else { panic!("a constant is shared with later nodes only") };
        if tensor.rank() > 0 {
            return self.constant(tensor);
        }
        let key = (region, self.origin.on, tensor);
        if let Some(&v) = self.scalars.get(&key) {
            return v;
        }
        let value = self.constant(key.2.clone());
        self.scalars.insert(key, value);
        value
    }

    /// Adds a tensor of which every element is `scalar`, and returns it.
    ///
    /// # Panics
    /// Panics if `shape` has unknown extents.
    pub fn fill(&mut self, scalar: HostTensor, shape: &Shape) -> Value {
        let scalar = self.constant(scalar);
        if shape.rank() == 0 {
            return scalar;
        }
        self.prim(prim::BROADCAST_TO, &[scalar], Shaped { shape: shape.clone() })
    }

    /// Adds a tensor of the shape of `like` of which every element is `scalar`, and returns it.
    pub fn fill_like(&mut self, scalar: HostTensor, like: Value) -> Value {
        let shape = self.graph.ty(like).element().shape.clone();
        if shape.is_definite() {
            return self.fill(scalar, &shape);
        }
        let scalar = self.constant(scalar);
        self.prim(prim::BROADCAST_LIKE, &[scalar, like], Attrs::none())
    }

    /// Adds a node with results of the given types, which inference would yield.
    pub(crate) fn insert(&mut self, op: Op, operands: Vec<Value>, types: impl IntoIterator<Item = Type>) -> Node {
        let region = self.region_here();
        let Origin { loc, written, on } = self.origin;
        let (results, regions) = (Vec::new(), Vec::new());
        let node = self.graph.push_node(NodeData { op, operands, results, regions, region, loc, written, on });
        for ty in types {
            self.graph.add_result(node, ty);
        }
        let nodes = &mut self.graph.region_mut(region).nodes;
        // Most positions are near the end.
        let position = |of: Node| nodes.iter().rposition(|&n| n == of).expect("the node is in the list of its region");
        match self.point {
            InsertPoint::Before(next) => {
                let at = position(next);
                nodes.insert(at, node);
            }
            InsertPoint::After(previous) => {
                let at = position(previous) + 1;
                nodes.insert(at, node);
                self.point = InsertPoint::After(node);
            }
            InsertPoint::End(_) => nodes.push(node),
        }
        node
    }

    // Replacing values.

    /// Replaces `old` by `new` in all uses that [`GraphBuilder::update_operands`] and
    /// [`GraphBuilder::update_yields`] visit from now on.
    ///
    /// # Panics
    /// Panics if `old` is replaced already, or if `new` was replaced by `old`.
    pub fn replace(&mut self, old: Value, new: Value) {
        let new = self.replacement(new);
        assert_ne!(old, new, "a value replaced by itself");
        if self.replaced.len() <= old.index() {
            self.replaced.resize(self.graph.n_values(), None);
        }
        let before = self.replaced[old.index()].replace(new);
        assert_eq!(before, None, "a value replaced twice");
    }

    /// Replaces a value like [`GraphBuilder::replace`]. The new value takes over the user's name if
    /// it has none.
    pub fn replace_named(&mut self, old: Value, new: Value) {
        let new = self.replacement(new);
        let name = self.graph.value(old).name;
        let data = self.graph.value_mut(new);
        data.name = data.name.or(name);
        self.replace(old, new);
    }

    /// Returns the value that replaces a value now: itself, unless it was replaced.
    pub fn replacement(&self, value: Value) -> Value {
        let mut value = value;
        while let Some(new) = self.replaced.get(value.index()).copied().flatten() {
            value = new;
        }
        value
    }

    /// Replaces values among the operands of a node.
    pub fn update_operands(&mut self, node: Node) {
        if self.replaced.is_empty() {
            return;
        }
        let mut operands = std::mem::take(&mut self.graph.node_mut(node).operands);
        operands.iter_mut().for_each(|v| *v = self.replacement(*v));
        self.graph.node_mut(node).operands = operands;
    }

    /// Replaces values among those that a region yields.
    pub fn update_yields(&mut self, region: Region) {
        let mut yields = std::mem::take(&mut self.graph.region_mut(region).yields);
        yields.iter_mut().for_each(|v| *v = self.replacement(*v));
        self.graph.region_mut(region).yields = yields;
    }

    /// Replaces values in a region and all regions inside.
    pub fn update_region(&mut self, region: Region) {
        for node in self.graph.region(region).nodes.clone() {
            self.update_operands(node);
            for inner in self.graph.node(node).regions.clone() {
                self.update_region(inner);
            }
        }
        self.update_yields(region);
    }

    /// Empties a region to fill it anew, and returns its nodes. [`Graph::append`] puts back those
    /// that stay; new nodes at the end of the region come between them.
    pub(crate) fn take_nodes(&mut self, region: Region) -> Vec<Node> {
        let nodes = &mut self.graph.region_mut(region).nodes;
        let capacity = nodes.len();
        std::mem::replace(nodes, Vec::with_capacity(capacity))
    }
}

/// Asserts that `edit` turns one graph into another.
#[cfg(test)]
#[track_caller]
pub(crate) fn builds(before: &str, edit: impl FnOnce(&mut GraphBuilder), after: &str) {
    let parsed = |text: &str| Graph::parse(text, "f.ir").unwrap();
    let mut graph = parsed(before);
    GraphBuilder::edit(&mut graph, edit);
    super::verify(&graph).unwrap();
    assert!(graph.same_structure(&parsed(after)), "{graph}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::attributes::Along;

    #[test]
    fn nodes_added_at_one_position_keep_their_order() {
        builds(
            "graph @f(%x: f32[]) -> f32[] { %y = exp %x  %z = neg %y  return %z }",
            |b| {
                let [x, z] = [b.inputs()[0], b.outputs()[0]];
                let [exp, neg] = b.region(b.root()).nodes[..] else { panic!("there are two nodes") };
                let y = b.node(exp).results[0];
                let a = b.after(y).prim(prim::TANH, &[y], Attrs::none());
                b.prim(prim::ABS, &[a], Attrs::none());
                let c = b.before(neg).prim(prim::SIN, &[y], Attrs::none());
                b.prim(prim::COS, &[c], Attrs::none());
                b.after(x).prim(prim::SQRT, &[x], Attrs::none());
                b.after(z).prim(prim::LOG, &[z], Attrs::none());
            },
            "graph @f(%x: f32[]) -> f32[] {
                %0 = sqrt %x
                %y = exp %x
                %1 = tanh %y
                %2 = abs %1
                %3 = sin %y
                %4 = cos %3
                %z = neg %y
                %5 = log %z
                return %z
            }",
        );
    }

    #[test]
    fn a_scalar_is_broadcast_to_the_shape_of_a_value() {
        builds(
            "graph @f(%x: f32[], %y: f32[2], %z: f32[?]) -> f32[] { return %x }",
            |b| {
                let like = b.inputs().to_vec();
                like.into_iter().for_each(|v| _ = b.fill_like(HostTensor::scalar(2.0f32), v));
            },
            "graph @f(%x: f32[], %y: f32[2], %z: f32[?]) -> f32[] {
                %0 = constant 2.0 : f32[]
                %1 = constant 2.0 : f32[]
                %2 = broadcast_to %1 {shape=[2]}
                %3 = constant 2.0 : f32[]
                %4 = broadcast_like %3, %z
                return %x
            }",
        );
    }

    #[test]
    fn an_operation_that_does_not_admit_its_operands_is_not_added() {
        let mut graph = Graph::parse("graph @f(%x: f32[2], %y: f32[3]) -> f32[2] { return %x }", "f.ir").unwrap();
        let error = GraphBuilder::edit(&mut graph, |b| {
            let operands = b.inputs().to_vec();
            b.try_emit(Op::Prim(prim::ADD, Attrs::none()), operands).unwrap_err()
        });
        assert_eq!(error.label, "f32[2] with f32[3]");
        assert_eq!((graph.n_nodes(), graph.region(graph.root()).nodes.len()), (0, 0));
    }

    #[test]
    #[should_panic(expected = "concat")]
    fn an_operation_that_must_fit_panics_if_it_does_not() {
        let mut b = GraphBuilder::new(Graph::new("f"));
        let [x, y] = [1.0f32, 2.0].map(|x| b.constant(HostTensor::scalar(x)));
        b.prim(prim::CONCAT, &[x, y], Along { axis: 0 });
    }

    #[test]
    #[should_panic(expected = "a value replaced twice")]
    fn a_value_is_replaced_once() {
        let mut b = GraphBuilder::new(Graph::new("f"));
        let [x, y, z] = [1.0f32, 2.0, 3.0].map(|x| b.constant(HostTensor::scalar(x)));
        b.replace(x, y);
        b.replace(x, z);
    }

    #[test]
    fn replaced_values_are_replaced_by_the_last_replacement() {
        builds(
            "graph @f(%x: f32[]) -> f32[] { %y = exp %x  %z = neg %y  %w = abs %z  return %w }",
            |b| {
                let nodes = b.region(b.root()).nodes.clone();
                let [x, y, z] = [b.inputs()[0], b.node(nodes[0]).results[0], b.node(nodes[1]).results[0]];
                b.replace(z, y);
                b.replace(y, x);
                b.update_region(b.root());
            },
            "graph @f(%x: f32[]) -> f32[] { %y = exp %x  %z = neg %x  %w = abs %x  return %w }",
        );
    }
}
