//! Graph edits that passes share.

use super::{
    CallKind, Capture, Graph, GraphBuilder, LoopVar, Node, NodeData, Op, Region, RegionData, Value, ValueData, ValueDef,
};
use rustc_hash::FxHashMap;

impl Graph {
    /// Reorders or drops the results of a node. `results` are the remaining results.
    pub fn set_results(&mut self, node: Node, results: Vec<Value>) {
        for (i, &r) in results.iter().enumerate() {
            self.values[r.index()].def = ValueDef::Result(node, i as u32);
        }
        self.nodes[node.index()].results = results;
    }

    /// Sets the region of a node. The caller adds the node to that region's list.
    pub fn set_region_of(&mut self, node: Node, region: Region) {
        self.nodes[node.index()].region = region;
    }

    /// Adds a loop variable to a `while`. Returns its parameter in the body, and its result.
    ///
    /// The caller makes the body yield its next value.
    pub(crate) fn add_loop_var(&mut self, node: Node, init: Value) -> (Value, Value) {
        let n = self.while_of(node).n_vars();
        self.node_mut(node).operands.insert(n, init);
        let ty = self.ty(init).clone();
        let mut param = init;
        for region in self.node(node).regions.clone() {
            param = self.insert_param(region, n, ty.clone());
        }
        (param, self.add_result(node, ty))
    }

    /// Changes the next value of a loop variable.
    pub(crate) fn set_next(&mut self, var: LoopVar, next: Value) {
        let body = self.while_of(var.node).body();
        self.region_mut(body).yields[var.index] = next;
    }

    /// Adds a capture to a branch or loop.
    pub(crate) fn add_capture(&mut self, node: Node, outer: Value) -> Capture {
        self.node_mut(node).operands.push(outer);
        let [first, second] = self.node(node).regions[..] else {
            panic!("{} does not have two regions", self.node(node).op.name())
        };
        let params = [first, second].map(|region| self.add_param(region, self.ty(outer).clone(), None));
        Capture { outer, params }
    }

    /// Adds a result to a `cond`: the new capture `init`, updated by the branch `region`. Returns
    /// its parameter in that branch, and the result.
    ///
    /// The caller makes the branch yield the updated value.
    pub(crate) fn add_cond_result(&mut self, node: Node, init: Value, region: Region) -> (Value, Value) {
        let branches = self.cond_of(node).branches();
        let params = self.add_capture(node, init).params;
        let side = usize::from(branches[1] == region);
        self.region_mut(branches[1 - side]).yields.push(params[1 - side]);
        (params[side], self.add_result(node, self.ty(init).clone()))
    }

    /// Drops the results of a construct that do not stay, with their yields; in a loop also their
    /// initial values and parameters.
    pub(crate) fn retain_results(&mut self, node: Node, stays: &[bool]) {
        self.retain_yields(node, stays);
        if let Op::While { .. } = self.node(node).op {
            self.retain_entry(node, stays);
        }
    }

    /// Turns the loop variables that do not stay into captures, before the other captures. Drops
    /// the results and yields of those variables.
    pub(crate) fn retain_loop_vars(&mut self, node: Node, stays: &[bool]) {
        let (first, then): (Vec<usize>, Vec<usize>) =
            (0..self.node(node).operands.len()).partition(|&i| stays.get(i) == Some(&true));
        let order = [first, then].concat();
        for region in self.node(node).regions.clone() {
            let params = order.iter().map(|&i| self.region(region).params[i]).collect();
            self.set_params(region, params);
        }
        let operands = &self.node(node).operands;
        self.node_mut(node).operands = order.iter().map(|&i| operands[i]).collect();
        self.retain_yields(node, stays);
    }

    /// Drops the results of a construct that do not stay, with their yields.
    fn retain_yields(&mut self, node: Node, stays: &[bool]) {
        let results = kept(&self.node(node).results, stays);
        self.set_results(node, results);
        for region in self.result_regions(node).to_vec() {
            let yields = kept(&self.region(region).yields, stays);
            self.region_mut(region).yields = yields;
        }
    }

    /// Drops the captures of a construct that do not stay, with their parameters.
    ///
    /// # Panics
    /// Panics if the node is a `custom_gradient`, whose operands are not all captures.
    pub(crate) fn retain_captures(&mut self, node: Node, stays: &[bool]) {
        assert!(!matches!(self.node(node).op, Op::Call(CallKind::CustomGradient { .. })), "its arguments stay");
        let n_vars = self.entry_values(node).len() - stays.len();
        self.retain_entry(node, &[&vec![true; n_vars], stays].concat());
    }

    /// Drops parameters of all regions of a construct with the operands that they start with.
    /// Operands after the end of `stays` stay.
    fn retain_entry(&mut self, node: Node, stays: &[bool]) {
        for region in self.node(node).regions.clone() {
            let params = kept(&self.region(region).params, stays);
            self.set_params(region, params);
        }
        let data = self.node(node);
        let n_before = data.operands.len() - self.entry_values(node).len();
        let operands = [&data.operands[..n_before], &kept(self.entry_values(node), stays)].concat();
        self.node_mut(node).operands = operands;
    }

    /// Returns for each value the number of times that nodes and yields use it.
    pub(crate) fn use_counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.n_values()];
        let mut regions = vec![self.root()];
        while let Some(region) = regions.pop() {
            let data = self.region(region);
            for &node in &data.nodes {
                self.node(node).operands.iter().for_each(|v| counts[v.index()] += 1);
                regions.extend(&self.node(node).regions);
            }
            data.yields.iter().for_each(|v| counts[v.index()] += 1);
        }
        counts
    }

    /// Returns a copy of the graph without unreachable entities. Ids change.
    #[must_use]
    pub fn compact(&self) -> Graph {
        let mut out = Graph { vars: self.vars.clone(), ..Graph::new(self.name.clone()) };
        out.nodes.reserve(self.n_nodes());
        out.values.reserve(self.n_values());
        let (mut out, root) = (GraphBuilder::new(out), self.root());
        self.copy_region(root, &mut out, root, &mut vec![NO_COPY; self.n_values()]);
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
        self.copy_listed(nodes, &mut out, root, &mut map);
        out.region_mut(root).yields = outputs.iter().map(|v| map[v]).collect();
        out.into_graph()
    }

    /// Copies a region of a verified graph into an empty region of another graph. `map` maps each
    /// value to its copy.
    fn copy_region(&self, from: Region, out: &mut GraphBuilder, to: Region, map: &mut impl CopyMap) {
        let data = self.region(from);
        for &p in &data.params {
            let ValueData { ty, name, .. } = self.value(p);
            map.set(p, out.add_param(to, ty.clone(), *name));
        }
        self.copy_listed(&data.nodes, out, to, map);
        let RegionData { yields: to, .. } = out.region_mut(to);
        *to = data.yields.iter().map(|&v| map.copy_of(v)).collect();
    }

    /// Appends copies of nodes to a region of another graph.
    fn copy_listed(&self, nodes: &[Node], out: &mut GraphBuilder, to: Region, map: &mut impl CopyMap) {
        for &node in nodes {
            let NodeData { operands, results, regions, .. } = self.node(node);
            let operands = operands.iter().map(|&v| map.copy_of(v)).collect();
            let copy = out.copy_from(self, node, operands, to);
            for (&r, &result) in results.iter().zip(&out.node(copy).results) {
                map.set(r, result);
            }
            let copies: Vec<Region> = regions.iter().map(|_| out.add_region()).collect();
            for (&inner, &copy) in regions.iter().zip(&copies) {
                self.copy_region(inner, out, copy, map);
            }
            out.set_regions(copy, copies);
        }
    }
}

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

/// Returns the values that stay, which include all values after the end of `stays`.
fn kept(values: &[Value], stays: &[bool]) -> Vec<Value> {
    let stays = stays.iter().chain(std::iter::repeat(&true));
    values.iter().zip(stays).filter(|(_, stays)| **stays).map(|(&v, _)| v).collect()
}
