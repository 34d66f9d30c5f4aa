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
//! - A replaced value is replaced once. Replacements are resolved when recorded, so chains stay
//!   short.
//!
//! A builder knows the operations and their inference. It must never know who uses it: nothing of a
//! trace, of variables, names or calls, of gradients, or of devices beyond the constraint in an
//! origin.

use super::infer::infer;
use super::open::OpenRegions;
use super::{Attrs, Graph, Node, NodeData, Op, Origin, Region, Value, ValueDef};
use crate::ops::attributes::Shaped;
use crate::ops::{OpError, Prim, prim};
use crate::{HostTensor, Shape, Type};
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

/// A graph to which nodes are added: see the module `builder` of the graph.
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
        GraphBuilder { graph, point, origin, open: Vec::new(), base, replaced: Vec::new() }
    }

    /// Calls `f` with a builder of a graph.
    pub fn edit<R>(graph: &mut Graph, f: impl FnOnce(&mut GraphBuilder) -> R) -> R {
        let mut builder = GraphBuilder::new(std::mem::replace(graph, Graph::new("")));
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

    /// Returns the position of the next node.
    pub fn point(&self) -> InsertPoint {
        self.point
    }

    /// Returns the first position at which a value can be used.
    pub fn after_value(&self, value: Value) -> InsertPoint {
        match self.graph.value(value).def {
            ValueDef::Result(node, _) => InsertPoint::After(node),
            ValueDef::Param(region, _) => {
                let first = self.graph.region(region).nodes.first();
                first.map_or(InsertPoint::End(region), |&node| InsertPoint::Before(node))
            }
        }
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
    /// Fails if the operation does not admit the operands. Nothing is added then.
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

    /// Adds a node with results of the given types, which inference would yield.
    pub(crate) fn insert(&mut self, op: Op, operands: Vec<Value>, types: impl IntoIterator<Item = Type>) -> Node {
        let region = self.region_here();
        let Origin { loc, written, on } = self.origin;
        let node = Node::from_index(self.graph.nodes.len());
        let (results, regions) = (Vec::new(), Vec::new());
        self.graph.nodes.push(NodeData { op, operands, results, regions, region, loc, written, on });
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

    // Copies.

    /// Appends a copy of a node to a region, without its regions: the operation, its origin, and
    /// the types and names of its results.
    pub(crate) fn copy(&mut self, node: Node, operands: Vec<Value>, to: Region) -> Node {
        let data = self.graph.node(node);
        let (op, origin) = (data.op.clone(), data.origin());
        let result = |&r: &Value| (self.graph.ty(r).clone(), self.graph.value(r).name);
        let results: Vec<_> = data.results.iter().map(result).collect();
        self.at(InsertPoint::End(to), origin).insert_copy(op, operands, results.into_iter())
    }

    /// Appends a copy of a node of another graph, like [`GraphBuilder::copy`].
    pub(crate) fn copy_from(&mut self, graph: &Graph, node: Node, operands: Vec<Value>, to: Region) -> Node {
        let data = graph.node(node);
        let results = data.results.iter().map(|&r| (graph.ty(r).clone(), graph.value(r).name));
        self.at(InsertPoint::End(to), data.origin()).insert_copy(data.op.clone(), operands, results)
    }

    fn insert_copy(
        &mut self,
        op: Op,
        operands: Vec<Value>,
        results: impl Iterator<Item = (Type, Option<&'static str>)>,
    ) -> Node {
        let copy = self.insert(op, operands, []);
        for (ty, name) in results {
            let result = self.graph.add_result(copy, ty);
            self.graph.value_mut(result).name = name;
        }
        copy
    }

    /// Appends copies of the nodes of a region to another region.
    ///
    /// `given` maps the first parameters to the values that replace them. Operations for which
    /// `leave` is true are left out; they must have no results. Returns the copies of the yielded
    /// values. The position of the next node stays.
    pub(crate) fn copy_region(
        &mut self,
        from: Region,
        to: Region,
        mut given: FxHashMap<Value, Value>,
        leave: &dyn Fn(&Op) -> bool,
    ) -> Vec<Value> {
        let before = (self.point, self.origin);
        let yields = self.copy_nodes(from, to, &mut given, leave);
        (self.point, self.origin) = before;
        yields
    }

    fn copy_nodes(
        &mut self,
        from: Region,
        to: Region,
        map: &mut FxHashMap<Value, Value>,
        leave: &dyn Fn(&Op) -> bool,
    ) -> Vec<Value> {
        let copied = |values: &[Value], map: &FxHashMap<Value, Value>| values.iter().map(|v| map[v]).collect();
        for node in self.graph.region(from).nodes.clone() {
            let NodeData { op, operands, results, regions, .. } = self.graph.node(node);
            if leave(op) {
                assert!(results.is_empty(), "{}: removed nodes have no results", op.name());
                continue;
            }
            let (operands, regions) = (copied(operands, map), regions.clone());
            let copy = self.copy(node, operands, to);
            map.extend(
                self.graph.node(node).results.iter().copied().zip(self.graph.node(copy).results.iter().copied()),
            );
            let mut copies = Vec::with_capacity(regions.len());
            for (i, &inner) in regions.iter().enumerate() {
                let copy = self.graph.add_region();
                for p in self.graph.region(inner).params.clone() {
                    let param = self.graph.value(p).clone();
                    map.insert(p, self.graph.add_param(copy, param.ty, param.name));
                }
                // The gradient of a call has not run yet: copy all of it.
                let keep_all = |_: &Op| false;
                let of_gradient = i > 0 && matches!(self.graph.node(node).op, Op::Call(_));
                let leave = if of_gradient { &keep_all } else { leave };
                let yields = self.copy_nodes(inner, copy, map, leave);
                self.graph.region_mut(copy).yields = yields;
                copies.push(copy);
            }
            self.graph.set_regions(copy, copies);
        }
        copied(&self.graph.region(from).yields, map)
    }

    // Replacing values.

    /// Replaces `old` by `new` in all uses that [`GraphBuilder::update_operands`] and
    /// [`GraphBuilder::update_yields`] visit from now on. `old` must not be replaced already.
    pub fn replace(&mut self, old: Value, new: Value) {
        let new = self.replacement(new);
        debug_assert_ne!(old, new, "a value replaced by itself");
        if self.replaced.len() <= old.index() {
            self.replaced.resize(self.graph.n_values(), None);
        }
        self.replaced[old.index()] = Some(new);
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
