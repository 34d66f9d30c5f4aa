//! Graph edits that passes share.

use super::{CallKind, Capture, Graph, LoopVar, Node, Op, Region, Value, ValueDef};

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
        if self.as_while(node).is_some() {
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
}

/// Returns the values that stay, which include all values after the end of `stays`.
fn kept(values: &[Value], stays: &[bool]) -> Vec<Value> {
    let stays = stays.iter().chain(std::iter::repeat(&true));
    values.iter().zip(stays).filter(|(_, stays)| **stays).map(|(&v, _)| v).collect()
}
