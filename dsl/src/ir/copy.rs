//! Copies of nodes and regions, within a graph and between graphs.

use super::{
    Graph, GraphBuilder, InsertPoint, Node, NodeData, Op, Origin, Region, RegionData, Value, ValueData, VarId,
};
use rustc_hash::FxHashMap;

/// The copy of each value that was copied.
trait CopyMap {
    fn set(&mut self, value: Value, copy: Value);
    fn copy_of(&self, value: Value) -> Value;
}

/// The entry of a value without a copy. No graph has that many values.
const NO_COPY: Value = Value(u32::MAX);

/// For the copy of a whole graph: indexed by value.
impl CopyMap for Vec<Value> {
    fn set(&mut self, value: Value, copy: Value) {
        self[value.index()] = copy;
    }
    fn copy_of(&self, value: Value) -> Value {
        let copy = self[value.index()];
        debug_assert_ne!(copy, NO_COPY, "{value} is used before it is defined");
        copy
    }
}

/// A map for the copy of a part of a graph, which may be small.
impl CopyMap for FxHashMap<Value, Value> {
    fn set(&mut self, value: Value, copy: Value) {
        self.insert(value, copy);
    }
    fn copy_of(&self, value: Value) -> Value {
        self[&value]
    }
}

/// Returns whether operations of a kind are left out of a copy.
type LeaveOut<'a> = &'a dyn Fn(&Op) -> bool;

const KEEP_ALL: LeaveOut<'static> = &|_| false;

impl GraphBuilder {
    /// Appends a copy of a node to a region, without its regions: the operation, its origin, and
    /// the types and names of its results. `from` is the graph of the node, if it is another.
    pub(crate) fn copy(&mut self, from: Option<&Graph>, node: Node, operands: Vec<Value>, to: Region) -> Node {
        let data = from.unwrap_or(self).node(node);
        let (op, origin, n_results) = (data.op.clone(), data.origin(), data.results.len());
        let copy = self.at(InsertPoint::End(to), origin).insert(op, operands, []);
        for i in 0..n_results {
            let graph = from.unwrap_or(self);
            let ValueData { ty, name, .. } = graph.value(graph.node(node).results[i]).clone();
            let result = self.add_result(copy, ty);
            self.value_mut(result).name = name;
        }
        copy
    }

    /// Appends copies of the nodes of a region to another region of the graph.
    ///
    /// `given` maps the first parameters to the values that replace them. Operations for which
    /// `leave_out` is true are left out; they must have no results. Returns the copies of the
    /// yielded values. The position of the next node stays.
    pub(crate) fn copy_region(
        &mut self,
        from: Region,
        to: Region,
        mut given: FxHashMap<Value, Value>,
        leave_out: LeaveOut<'_>,
    ) -> Vec<Value> {
        let before = (self.point, self.origin);
        self.copy_nodes(None, &self.region(from).nodes.clone(), to, &mut given, leave_out);
        (self.point, self.origin) = before;
        self.region(from).yields.iter().map(|v| given[v]).collect()
    }

    /// Appends copies of nodes, which are in dependency order, to a region. `map` has the copies of
    /// the values that they use, and gets those of their results.
    fn copy_nodes(
        &mut self,
        from: Option<&Graph>,
        nodes: &[Node],
        to: Region,
        map: &mut impl CopyMap,
        leave_out: LeaveOut<'_>,
    ) {
        for &node in nodes {
            let NodeData { op, operands, results, regions, .. } = from.unwrap_or(self).node(node);
            if leave_out(op) {
                assert!(results.is_empty(), "{}: removed nodes have no results", op.name());
                continue;
            }
            // The gradient of a call has not run yet: copy all of it.
            let is_call = matches!(op, Op::Call(_));
            let leave_out_of = |i: usize| if is_call && i > 0 { KEEP_ALL } else { leave_out };
            let (operands, regions) = (operands.iter().map(|&v| map.copy_of(v)).collect(), regions.clone());
            let copy = self.copy(from, node, operands, to);
            for (&r, &copy) in from.unwrap_or(self).node(node).results.iter().zip(&self.node(copy).results) {
                map.set(r, copy);
            }
            let copies: Vec<Region> = regions.iter().map(|_| self.add_region()).collect();
            for (i, (&inner, &copy)) in regions.iter().zip(&copies).enumerate() {
                self.copy_whole_region(from, inner, copy, map, leave_out_of(i));
            }
            self.set_regions(copy, copies);
        }
    }

    /// Copies the parameters, nodes and yields of a region to an empty region.
    fn copy_whole_region(
        &mut self,
        from: Option<&Graph>,
        region: Region,
        to: Region,
        map: &mut impl CopyMap,
        leave_out: LeaveOut<'_>,
    ) {
        let RegionData { params, nodes, .. } = from.unwrap_or(self).region(region).clone();
        for p in params {
            let ValueData { ty, name, .. } = from.unwrap_or(self).value(p).clone();
            map.set(p, self.add_param(to, ty, name));
        }
        self.copy_nodes(from, &nodes, to, map, leave_out);
        let yields = from.unwrap_or(self).region(region).yields.iter().map(|&v| map.copy_of(v)).collect();
        self.region_mut(to).yields = yields;
    }
}

impl Graph {
    /// Returns a copy of the graph without unreachable entities. Ids change.
    #[must_use]
    pub fn compact(&self) -> Graph {
        let mut out = Graph { vars: self.vars.clone(), queues: self.queues.clone(), ..Graph::new(self.name.clone()) };
        out.nodes.reserve(self.n_nodes());
        out.values.reserve(self.n_values());
        let (mut out, root) = (GraphBuilder::new(out), self.root());
        out.copy_whole_region(Some(self), root, root, &mut vec![NO_COPY; self.n_values()], KEEP_ALL);
        out.into_graph()
    }

    /// Returns a graph of some nodes of this graph, from any regions and in dependency order.
    ///
    /// The inputs and outputs of the new graph may be stacks and lists, unlike those of a whole
    /// graph. The new graph reads and assigns no variables.
    ///
    /// ```
    /// use anabranch::Graph;
    ///
    /// let text =
    ///     "graph @f(%x: f32[]) -> f32[] { %a = exp %x  %b = tanh %a  %c = neg %b  return %c }";
    /// let graph = Graph::parse(text, "f.ir").expect("the text is right");
    /// let nodes = &graph.region(graph.root()).nodes;
    /// let [a, b] = [0, 1].map(|i| graph.node(nodes[i]).results[0]);
    /// let part = graph.extract("part", &[nodes[1]], &[a], &[b]);
    /// let expected =
    ///     Graph::parse("graph @part(%a: f32[]) -> f32[] { %b = tanh %a  return %b }", "part.ir");
    /// assert!(part.same_structure(&expected.expect("the text is right")));
    /// ```
    #[must_use]
    pub fn extract(&self, name: &str, nodes: &[Node], inputs: &[Value], outputs: &[Value]) -> Graph {
        let mut out = GraphBuilder::new(Graph::new(name));
        let root = out.root();
        let mut map: FxHashMap<Value, Value> = FxHashMap::default();
        for &v in inputs {
            let ValueData { ty, name, .. } = self.value(v);
            map.insert(v, out.add_param(root, ty.clone(), *name));
        }
        out.copy_nodes(Some(self), nodes, root, &mut map, KEEP_ALL);
        out.region_mut(root).yields = outputs.iter().map(|v| map[v]).collect();
        out.into_graph()
    }

    /// Returns a graph of some nodes of this graph, from any regions and in dependency order, with
    /// the variables and queues of this graph. `given` are the values from outside that the nodes
    /// use, and `assigns` the values that are assigned to variables at the end.
    pub(crate) fn extract_step(
        &self,
        given: &[(Value, StepValue)],
        nodes: &[Node],
        outputs: &[Value],
        assigns: &[(VarId, Value)],
    ) -> Graph {
        let (vars, queues) = (self.vars.clone(), self.queues.clone());
        let mut out = GraphBuilder::new(Graph { vars, queues, ..Graph::new(self.name.clone()) });
        let root = out.root();
        let mut map: FxHashMap<Value, Value> = FxHashMap::default();
        let mut reads: FxHashMap<VarId, Value> = FxHashMap::default();
        for &(v, how) in given {
            let ValueData { ty, name, .. } = self.value(v);
            let value = match how {
                StepValue::Input => out.add_param(root, ty.clone(), *name),
                StepValue::Read(var) => *reads
                    .entry(var)
                    .or_insert_with(|| out.at(InsertPoint::End(root), Origin::UNKNOWN).emit(Op::Read(var), &[])),
                StepValue::SameAs(other) => map[&other],
                StepValue::Constant(node) => {
                    let copy = out.copy(Some(self), node, Vec::new(), root);
                    out.node(copy).results[0]
                }
            };
            map.insert(v, value);
        }
        out.copy_nodes(Some(self), nodes, root, &mut map, KEEP_ALL);
        for (var, value) in assigns {
            out.at(InsertPoint::End(root), Origin::UNKNOWN).insert(Op::Assign(*var), vec![map[value]], []);
        }
        out.region_mut(root).yields = outputs.iter().map(|v| map[v]).collect();
        out.into_graph()
    }
}

/// How a step gets a value of the graph that it is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepValue {
    /// As its next input.
    Input,
    /// As the current value of a variable.
    Read(VarId),
    /// As the constant that this node is.
    Constant(Node),
    /// As another value, which is given before.
    SameAs(Value),
}
