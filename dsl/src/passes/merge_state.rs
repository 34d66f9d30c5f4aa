//! Equal state of loops.

use super::Pass;
use super::cse::{Key, is_mergeable};
use crate::Graph;
use crate::ir::{CallKind, Node, Op, Region, Replacements, Value};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

/// Makes one of loop variables that are always equal, and of equal results of a `cond` or a checkpoint.
///
/// Before: verified. After: verified; loop variables that begin with equal tensors, and of which the body makes equal tensors
/// if they were equal before, are one. So are results of which all regions yield equal tensors. What computed the others is left to
/// the pass that removes such, and what was equal by them to the one that merges nodes.
///
/// Variables that swap are one variable then, which the body does not change: that is for [`Fold`](super::Fold). Stacks and lists
/// stay apart: engines change them in place while they have one use.
///
/// This is value numbering with an assumption that is proved by induction over the iterations. All candidates are taken
/// to be equal, the body is numbered, and classes whose next values differ are split until none is: the coarsest
/// partition that holds, as of the states of an automaton by Hopcroft and by Moore. A loop whose classes are still split after
/// 16 rounds, as of a delay line, is left alone. If that has to be repeated in nested loops more often than on the average
/// 16 times for each node, nothing is merged; so the work grows with the size of the graph.
#[derive(Clone, Copy, Debug)]
pub struct MergeState;

/// So often classes of one loop are split.
const MAX_ROUNDS: usize = 16;

/// So often a node is numbered on the average.
const MAX_VISITS: usize = 16;

impl Pass for MergeState {
    fn name(&self) -> &'static str {
        "merge_state"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        let first: Vec<Value> = (0..graph.n_values()).map(Value::from_index).collect();
        let visits = MAX_VISITS * graph.n_nodes();
        let mut numbering = Numbering { graph, first, visits };
        if numbering.region(graph.root()).is_none() {
            return false;
        }
        let first = numbering.first;
        let replaced = Replacements::new(graph);
        let mut merge = Merge { graph, first, replaced, changed: false };
        merge.region(merge.graph.root());
        merge.changed
    }
}

/// Which values of a region are equal.
struct Numbering<'g> {
    graph: &'g Graph,
    /// For each value, the first one of its region that is equal to it.
    first: Vec<Value>,
    /// So many nodes may be looked at yet.
    visits: usize,
}

/// Of each item the first one with the same key.
fn firsts<K: Eq + Hash>(keys: impl Iterator<Item = K>) -> Vec<usize> {
    let mut seen = HashMap::new();
    keys.enumerate().map(|(i, key)| *seen.entry(key).or_insert(i)).collect()
}

impl Numbering<'_> {
    /// Numbers a region whose parameters are numbered. `None` if it takes too long.
    fn region(&mut self, region: Region) -> Option<()> {
        let g = self.graph;
        let mut seen: HashMap<Key, Node> = HashMap::new();
        for &node in &g.region(region).nodes {
            self.visits = self.visits.checked_sub(1)?;
            let data = g.node(node);
            for &result in &data.results {
                self.first[result.index()] = result;
            }
            match data.op {
                Op::While { .. } => self.while_loop(node)?,
                Op::Cond => {
                    for &region in &data.regions {
                        self.inside(region, &data.operands[1..])?;
                    }
                    self.results(node, &data.regions);
                }
                Op::Call(CallKind::Checkpoint | CallKind::Recompute) => {
                    self.inside(data.regions[0], &data.operands)?;
                    self.results(node, &data.regions);
                }
                Op::Call(CallKind::CustomGradient { .. }) => {
                    for &region in &data.regions {
                        self.apart(region);
                        self.region(region)?;
                    }
                }
                _ if is_mergeable(&data.op) => {
                    let operands = data.operands.iter().map(|v| self.first[v.index()]).collect();
                    match seen.entry(Key(data.op.clone(), operands, data.on)) {
                        Entry::Vacant(e) => {
                            e.insert(node);
                        }
                        Entry::Occupied(e) => {
                            let (old, new) = (g.node(*e.get()).results[0], data.results[0]);
                            if g.ty(old) == g.ty(new) {
                                self.first[new.index()] = old;
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        Some(())
    }

    /// No parameter of a region is known to be another one.
    fn apart(&mut self, region: Region) {
        for &p in &self.graph.region(region).params {
            self.first[p.index()] = p;
        }
    }

    /// Makes parameters equal by the number of the first one.
    fn equate(&mut self, region: Region, params: &[usize]) {
        let all = &self.graph.region(region).params;
        for (&p, &first) in all.iter().zip(params) {
            self.first[p.index()] = all[first];
        }
    }

    /// Numbers a region that runs once with these operands.
    fn inside(&mut self, region: Region, given: &[Value]) -> Option<()> {
        let params = &self.graph.region(region).params;
        let key = |(v, &p): (&Value, &Value)| (self.first[v.index()], self.graph.ty(p));
        let classes = firsts(given.iter().zip(params).map(key));
        self.equate(region, &classes);
        self.region(region)
    }

    /// Numbers the results of a node by what its regions yield.
    fn results(&mut self, node: Node, regions: &[Region]) {
        let g = self.graph;
        let results = &g.node(node).results;
        let yielded = |(i, &r): (usize, &Value)| {
            let of = |&region: &Region| self.first[g.region(region).yields[i].index()];
            (self.own(r), g.ty(r), regions.iter().map(of).collect::<Vec<Value>>())
        };
        let classes = firsts(results.iter().enumerate().map(yielded));
        for (&r, first) in results.iter().zip(classes) {
            self.first[r.index()] = results[first];
        }
    }

    /// What keeps stacks and lists apart.
    fn own(&self, v: Value) -> Option<Value> {
        self.graph.ty(v).as_tensor().is_none().then_some(v)
    }

    fn while_loop(&mut self, node: Node) -> Option<()> {
        let g = self.graph;
        let data = g.node(node);
        let [cond, body] = data.regions[..] else { panic!("a loop has two regions") };
        let (inner, n) = (g.region(body), g.n_carried(node));
        // Loop variables and captures are kept apart: what is equal to a capture is not changed, which is found elsewhere.
        let key = |(i, v): (usize, &Value)| {
            let p = inner.params[i];
            (self.first[v.index()], g.ty(p), data.results.get(i).map(|&r| g.ty(r)), self.own(p))
        };
        let mut classes = firsts(data.operands.iter().enumerate().map(key));
        for round in 0.. {
            self.equate(body, &classes);
            self.region(body)?;
            let next = |(i, &v): (usize, &Value)| (classes[i], self.first[v.index()]);
            let split = firsts(inner.yields.iter().enumerate().map(next));
            if split == classes[..n] {
                break;
            }
            let split = if round < MAX_ROUNDS { split } else { (0..n).collect() };
            classes.splice(..n, split);
        }
        self.equate(cond, &classes);
        self.region(cond)?;
        for (&r, &first) in data.results.iter().zip(&classes) {
            self.first[r.index()] = data.results[first];
        }
        Some(())
    }
}

struct Merge<'g> {
    graph: &'g mut Graph,
    first: Vec<Value>,
    replaced: Replacements,
    changed: bool,
}

impl Merge<'_> {
    fn region(&mut self, region: Region) {
        for node in self.graph.region(region).nodes.clone() {
            self.replaced.apply(&mut self.graph.node_mut(node).operands);
            let is_whole = matches!(self.graph.node(node).op, Op::Call(CallKind::CustomGradient { .. }));
            let regions = self.graph.node(node).regions.clone();
            if !regions.is_empty() && !is_whole {
                self.drop_results(node, &regions);
            }
            for inner in regions {
                self.region(inner);
            }
        }
        self.replaced.apply(&mut self.graph.region_mut(region).yields);
    }

    /// Drops results that another one stands for, and what belongs to them.
    fn drop_results(&mut self, node: Node, regions: &[Region]) {
        let is_loop = matches!(self.graph.node(node).op, Op::While { .. });
        let results = self.graph.node(node).results.clone();
        let stays: Vec<bool> = results.iter().map(|&r| self.first[r.index()] == r).collect();
        if !stays.contains(&false) {
            return;
        }
        self.changed = true;
        let kept = |values: &[Value]| {
            let stays = stays.iter().copied().chain(std::iter::repeat(true));
            values.iter().zip(stays).filter(|(_, stays)| *stays).map(|(&v, _)| v).collect::<Vec<Value>>()
        };
        let place: HashMap<Value, usize> = results.iter().enumerate().map(|(i, &r)| (r, i)).collect();
        for (i, &r) in results.iter().enumerate().filter(|(i, _)| !stays[*i]) {
            let first = self.first[r.index()];
            self.replace(r, first);
            for &region in regions.iter().filter(|_| is_loop) {
                let params = &self.graph.region(region).params;
                self.replace(params[i], params[place[&first]]);
            }
        }
        self.graph.set_results(node, kept(&results));
        for (i, &region) in regions.iter().enumerate() {
            if is_loop {
                let params = kept(&self.graph.region(region).params);
                self.graph.set_params(region, params);
            }
            if !is_loop || i == 1 {
                let yields = kept(&self.graph.region(region).yields);
                self.graph.region_mut(region).yields = yields;
            }
        }
        if is_loop {
            let operands = kept(&self.graph.node(node).operands);
            self.graph.node_mut(node).operands = operands;
        }
    }

    /// The name of a value that goes is kept if the other one has none.
    fn replace(&mut self, old: Value, new: Value) {
        let name = self.graph.value(old).name;
        let data = self.graph.value_mut(new);
        data.name = data.name.or(name);
        self.replaced.replace(old, new);
    }
}
