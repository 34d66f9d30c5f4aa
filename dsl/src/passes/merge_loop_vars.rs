//! Merging of equal loop variables.

use super::Pass;
use super::node_index::{NodeIndex, is_mergeable};
use crate::Graph;
use crate::ir::{CallKind, GraphBuilder, Node, Op, Region, Value};
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// Merges loop variables that are always equal, and equal results of a `cond` or a checkpoint.
///
/// Before: verified. After: verified. Two loop variables are merged if their initial values are
/// equal and the body computes equal next values whenever they were equal before. Results are
/// merged if every region yields equal tensors for them. Nodes that computed the others are left
/// unused for `Dce`, and nodes that have become equal are left for `Cse`.
///
/// Two variables that swap become one variable that the body does not change, which
/// [`Fold`](super::Fold) handles. Stacks and lists are not merged, because engines update them in
/// place while they have one use.
///
/// The algorithm is optimistic value numbering, proved by induction over the iterations. All
/// candidates are assumed equal, the body is numbered, and classes whose next values differ are
/// split until a fixed point is reached. The result is the coarsest valid partition, as in
/// Hopcroft's and Moore's minimization of automata.
///
/// A loop whose classes still split after 16 rounds, for example a delay line, is left alone.
/// Nothing is merged if nested loops take more than 16 visits per node on average, so the work is
/// linear in the size of the graph.
#[derive(Clone, Copy, Debug)]
pub struct MergeLoopVars;

/// Maximum rounds of splitting the classes of one loop.
const MAX_ROUNDS: usize = 16;

/// Maximum average number of visits per node.
const MAX_VISITS: usize = 16;

impl Pass for MergeLoopVars {
    fn name(&self) -> &'static str {
        "merge_loop_vars"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        // Without control flow there is nothing to merge, and numbering takes time.
        if graph.n_regions() == 1 {
            return false;
        }
        let first: Vec<Value> = (0..graph.n_values()).map(Value::from_index).collect();
        let visits = MAX_VISITS * graph.n_nodes();
        let mut numbering = ValueNumbering { graph, first, visits };
        if numbering.region(graph.root()).is_none() {
            return false;
        }
        let first = numbering.first;
        GraphBuilder::edit(graph, |graph| {
            let mut merge = LoopVarMerger { graph, first, changed: false };
            merge.region(merge.graph.root());
            merge.changed
        })
    }
}

/// Value numbering of a graph.
struct ValueNumbering<'g> {
    graph: &'g Graph,
    /// For each value, the first value of its region that equals it.
    first: Vec<Value>,
    /// The remaining number of node visits.
    visits: usize,
}

/// Returns for each item the index of the first item with the same key.
fn firsts<K: Eq + Hash>(keys: impl Iterator<Item = K>) -> Vec<usize> {
    let mut seen = FxHashMap::default();
    keys.enumerate().map(|(i, key)| *seen.entry(key).or_insert(i)).collect()
}

impl ValueNumbering<'_> {
    /// Numbers a region whose parameters are numbered. Returns `None` when the visits run out.
    fn region(&mut self, region: Region) -> Option<()> {
        let g = self.graph;
        let nodes = &g.region(region).nodes;
        let mut index = NodeIndex::with_capacity(nodes.len());
        for &node in nodes {
            self.visits = self.visits.checked_sub(1)?;
            let data = g.node(node);
            for &result in &data.results {
                self.first[result.index()] = result;
            }
            match data.op {
                Op::While { .. } => self.while_loop(node)?,
                Op::Cond | Op::Call(CallKind::Checkpoint | CallKind::Recompute) => {
                    for &region in &data.regions {
                        self.inside(region)?;
                    }
                    self.results(node);
                }
                Op::Call(CallKind::CustomGradient { .. }) => {
                    for &region in &data.regions {
                        self.apart(region);
                        self.region(region)?;
                    }
                }
                _ if is_mergeable(&data.op) => {
                    if let Some(first) = index.find_or_add(g, node, |v| self.first[v.index()]) {
                        let (old, new) = (g.node(first).results[0], data.results[0]);
                        if g.ty(old) == g.ty(new) {
                            self.first[new.index()] = old;
                        }
                    }
                }
                _ => {}
            }
        }
        Some(())
    }

    /// Makes all parameters of a region distinct.
    fn apart(&mut self, region: Region) {
        for &p in &self.graph.region(region).params {
            self.first[p.index()] = p;
        }
    }

    /// Assigns each parameter the class of the parameter at the given index.
    fn equate(&mut self, region: Region, params: &[usize]) {
        let all = &self.graph.region(region).params;
        for (&p, &first) in all.iter().zip(params) {
            self.first[p.index()] = all[first];
        }
    }

    /// Numbers a region that runs once.
    fn inside(&mut self, region: Region) -> Option<()> {
        let key = |(p, outer): (Value, Value)| (self.first[outer.index()], self.graph.ty(p));
        let classes = firsts(self.graph.entry(region).map(key));
        self.equate(region, &classes);
        self.region(region)
    }

    /// Numbers the results of a node by the values that its regions yield.
    fn results(&mut self, node: Node) {
        let g = self.graph;
        let (results, regions) = (&g.node(node).results, g.result_regions(node));
        let yielded = |(i, &r): (usize, &Value)| {
            let of = |&region: &Region| self.first[g.region(region).yields[i].index()];
            (self.own(r), g.ty(r), regions.iter().map(of).collect::<Vec<Value>>())
        };
        let classes = firsts(results.iter().enumerate().map(yielded));
        for (&r, first) in results.iter().zip(classes) {
            self.first[r.index()] = results[first];
        }
    }

    /// Returns a key that keeps a stack or list distinct from all other values.
    fn own(&self, v: Value) -> Option<Value> {
        self.graph.ty(v).as_tensor().is_none().then_some(v)
    }

    fn while_loop(&mut self, node: Node) -> Option<()> {
        let g = self.graph;
        let data = g.while_of(node);
        let (cond, body, n) = (data.cond(), data.body(), data.n_vars());
        // Loop variables and captures are never merged: a variable equal to a capture does not
        // change, which `Fold` detects.
        let results = data.vars().map(|var| Some(var.result)).chain(std::iter::repeat(None));
        let key = |((p, outer), result): ((Value, Value), Option<Value>)| {
            (self.first[outer.index()], g.ty(p), result.map(|r| g.ty(r)), self.own(p))
        };
        let mut classes = firsts(g.entry(body).zip(results).map(key));
        for round in 0.. {
            self.equate(body, &classes);
            self.region(body)?;
            let next = |(i, &v): (usize, &Value)| (classes[i], self.first[v.index()]);
            let split = firsts(data.nexts().iter().enumerate().map(next));
            if split == classes[..n] {
                break;
            }
            let split = if round < MAX_ROUNDS { split } else { (0..n).collect() };
            classes.splice(..n, split);
        }
        self.equate(cond, &classes);
        self.region(cond)?;
        let results = &g.node(node).results;
        for (&r, &first) in results.iter().zip(&classes) {
            self.first[r.index()] = results[first];
        }
        Some(())
    }
}

struct LoopVarMerger<'g> {
    graph: &'g mut GraphBuilder,
    first: Vec<Value>,
    changed: bool,
}

impl LoopVarMerger<'_> {
    fn region(&mut self, region: Region) {
        for node in self.graph.region(region).nodes.clone() {
            self.graph.update_operands(node);
            let is_whole = matches!(self.graph.node(node).op, Op::Call(CallKind::CustomGradient { .. }));
            let regions = self.graph.node(node).regions.clone();
            if !regions.is_empty() && !is_whole {
                self.drop_results(node);
            }
            for inner in regions {
                self.region(inner);
            }
        }
        self.graph.update_yields(region);
    }

    /// Drops results that another result replaces, with their parameters, yields and operands.
    fn drop_results(&mut self, node: Node) {
        let results = self.graph.node(node).results.clone();
        let stays: Vec<bool> = results.iter().map(|&r| self.first[r.index()] == r).collect();
        if !stays.contains(&false) {
            return;
        }
        self.changed = true;
        let place: FxHashMap<Value, usize> = results.iter().enumerate().map(|(i, &r)| (r, i)).collect();
        for (i, &r) in results.iter().enumerate().filter(|(i, _)| !stays[*i]) {
            let first = self.first[r.index()];
            self.graph.replace_named(r, first);
            if let Some(data) = self.graph.as_while(node) {
                let (old, new) = (data.var(i), data.var(place[&first]));
                self.graph.replace_named(old.cond_param, new.cond_param);
                self.graph.replace_named(old.body_param, new.body_param);
            }
        }
        self.graph.retain_results(node, &stays);
    }
}
