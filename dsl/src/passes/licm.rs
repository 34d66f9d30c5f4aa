//! Loop-invariant code motion.

use super::Pass;
use crate::Graph;
use crate::ir::{GraphBuilder, Node, Op, Region, Value};
use crate::ops::{Effects, Effort, OpCost, Prim};
use rustc_hash::FxHashMap;

/// Hoists loop-invariant operations out of as many loops as possible.
///
/// The loop captures their results.
///
/// Before: verified. After: verified, and no body or condition of a `while` contains an operation
/// on captures that is worth hoisting.
///
/// Only operations that cannot fail are hoisted, since a body may run zero times:
/// [pure](Effects::Pure) primitives on tensors of known extents, and `cond`s that contain nothing
/// else. Loops, which may not terminate, and calls are not hoisted.
///
/// A hoisted result occupies memory for the whole run of the loop, so hoisting has to pay off:
///
/// - Constants and views of captures stay: they cost nothing inside the loop. Results of more than
///   256 MiB stay too.
/// - Matmuls, convolutions, random numbers and other expensive operations are hoisted.
/// - Cheap arithmetic is hoisted if its result has at most 4 KiB or is at most half the size of its
///   operands, so that the loop reads less.
/// - Other operations are hoisted if the result is not larger than their operands.
///
/// An operation that is not worth hoisting is copied before the loop if a hoisted operation depends
/// on it. If the loop no longer uses it, it is moved.
///
/// Operations inside the branches and calls of a loop are not hoisted.
#[derive(Clone, Copy, Debug)]
pub struct Licm;

/// Larger results are not hoisted.
const MAX_BYTES: usize = 1 << 28;

/// Results up to this size are hoisted, whatever they cost to compute.
const SMALL_BYTES: usize = 4096;

impl Pass for Licm {
    fn name(&self) -> &'static str {
        "licm"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        GraphBuilder::edit(graph, |graph| {
            let mut motion = Motion {
                graph,
                invariants: Vec::new(),
                used_inside: Vec::new(),
                used_outside: Vec::new(),
                outside: Vec::new(),
                changed: false,
            };
            motion.region(motion.graph.root());
            motion.changed
        })
    }
}

/// The state of the pass. All tables are indexed by value; a value belongs to one loop at a time.
struct Motion<'g> {
    graph: &'g mut GraphBuilder,
    /// For each loop-invariant value, the number of bytes read to compute it.
    invariants: Vec<Option<usize>>,
    /// Whether an operation that stays in the loop uses the value.
    used_inside: Vec<bool>,
    /// Whether an operation before the loop uses the value.
    used_outside: Vec<bool>,
    /// The corresponding value before the loop.
    outside: Vec<Option<Value>>,
    changed: bool,
}

/// The cost of an operation per element of its result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HoistCost {
    /// Free: a view, or one scalar in every element.
    Free,
    /// One instruction, which the consumer can fuse.
    Light,
    /// Several instructions.
    Medium,
    /// Many instructions.
    Heavy,
}

impl HoistCost {
    /// Returns the class of an operation, from its cost for each element of its result.
    fn of(op: Prim, cost: &OpCost, per_element: f64) -> HoistCost {
        if cost.is_free() {
            return HoistCost::Free;
        }
        match op.is_elementwise() {
            true if per_element < f64::from(Effort::DIVISION.0) => HoistCost::Light,
            // More than moving elements.
            false if per_element > f64::from(Effort::SIMPLE.0) => HoistCost::Heavy,
            _ => HoistCost::Medium,
        }
    }
}

impl Motion<'_> {
    /// Processes inner loops first, since their hoisted nodes end up in the body of the outer loop.
    fn region(&mut self, region: Region) {
        for node in self.graph.take_nodes(region) {
            for inner in self.graph.node(node).regions.clone() {
                self.region(inner);
            }
            if self.graph.as_while(node).is_some() {
                for inner in self.graph.node(node).regions.clone() {
                    self.empty(node, inner);
                }
            }
            self.graph.append(node);
        }
    }

    /// Hoists nodes out of a region of a loop, to the end of the nodes before the loop.
    fn empty(&mut self, owner: Node, region: Region) {
        let n = self.graph.n_values();
        self.invariants.resize(n, None);
        self.used_inside.resize(n, false);
        self.used_outside.resize(n, false);
        self.outside.resize(n, None);
        let captures: Vec<(Value, Value)> = self.graph.captures_in(region).collect();
        for (param, outer) in captures {
            self.invariants[param.index()] = self.bytes(param);
            self.outside[param.index()] = Some(outer);
        }
        let nodes = self.graph.region(region).nodes.clone();
        let moves: Vec<bool> = nodes.iter().map(|&node| self.is_worth_moving(node)).collect();
        if !moves.contains(&true) {
            return;
        }
        self.changed = true;
        self.mark_uses(region, &nodes, &moves);
        let mut left = Vec::with_capacity(nodes.len());
        for (&node, moves) in nodes.iter().zip(moves) {
            let is_used = |by: &[bool]| self.graph.node(node).results.iter().any(|r| by[r.index()]);
            match (moves || is_used(&self.used_outside), !moves && is_used(&self.used_inside)) {
                (false, _) => left.push(node),
                (true, false) => self.move_out(owner, node),
                (true, true) => {
                    self.copy_out(owner, node);
                    left.push(node);
                }
            }
        }
        self.capture(owner, region, &left);
        self.graph.region_mut(region).nodes = left;
    }

    /// Returns the size in bytes of a tensor of known extents.
    fn bytes(&self, v: Value) -> Option<usize> {
        let ty = self.graph.ty(v).as_tensor()?;
        Some(ty.shape.size()?.saturating_mul(ty.dtype.size()))
    }

    /// Returns whether a node is worth hoisting, and records whether its results are
    /// loop-invariant.
    fn is_worth_moving(&mut self, node: Node) -> bool {
        let data = self.graph.node(node);
        let mut read = 0usize;
        for (i, v) in data.operands.iter().enumerate() {
            let Some(bytes) = self.invariants[v.index()] else { return false };
            let is_again = i < 4 && data.operands[..i].contains(v);
            read = if is_again { read } else { read.saturating_add(bytes) };
        }
        if !self.cannot_fail(node) {
            return false;
        }
        let mut size = 0usize;
        for &result in &data.results {
            let Some(bytes) = self.bytes(result) else { return false };
            size = size.saturating_add(bytes);
        }
        let (cost, read) = match &data.op {
            Op::Constant(t) => (HoistCost::Free, if t.len() > 1 { size } else { 0 }),
            Op::Prim(def, _) => {
                let (cost, elements) = self.graph.cost_of(node).expect("the node is a primitive operation");
                match HoistCost::of(*def, &cost, cost.effort() / elements) {
                    HoistCost::Free => {
                        let whole = data.operands.first().and_then(|v| self.invariants[v.index()]).unwrap_or(0);
                        (HoistCost::Free, whole.min(size))
                    }
                    cost => (cost, read),
                }
            }
            _ => (HoistCost::Heavy, read),
        };
        let is_worth = match cost {
            HoistCost::Free => false,
            HoistCost::Light => size <= SMALL_BYTES || size.saturating_mul(2) <= read,
            HoistCost::Medium => size <= SMALL_BYTES || size <= read,
            HoistCost::Heavy => true,
        };
        let is_worth = is_worth && size <= MAX_BYTES;
        if !is_worth && data.op == Op::Cond {
            return false;
        }
        for result in data.results.clone() {
            self.invariants[result.index()] = if is_worth { self.bytes(result) } else { Some(read) };
        }
        is_worth
    }

    /// Returns whether a node cannot fail, so that it may run where it did not run before.
    fn cannot_fail(&self, node: Node) -> bool {
        let data = self.graph.node(node);
        // Unknown extents are checked at run time, which may fail.
        let is_known = |&v: &Value| self.bytes(v).is_some();
        let is_pure = match &data.op {
            Op::Prim(..) | Op::Constant(_) => data.op.effects() == Effects::Pure,
            Op::Cond => {
                let mut regions = data.regions.iter().map(|&r| self.graph.region(r));
                regions.all(|r| r.nodes.iter().all(|&n| self.cannot_fail(n)))
            }
            _ => false,
        };
        is_pure && data.operands.iter().chain(&data.results).all(is_known)
    }

    /// Records for each value whether it is used inside the loop, before it, or both.
    fn mark_uses(&mut self, region: Region, nodes: &[Node], moves: &[bool]) {
        for v in &self.graph.region(region).yields {
            self.used_inside[v.index()] = true;
        }
        for (&node, &moves) in nodes.iter().zip(moves).rev() {
            let data = self.graph.node(node);
            let is_used = |by: &[bool]| data.results.iter().any(|r| by[r.index()]);
            let outside = moves || is_used(&self.used_outside);
            let inside = !moves && (!outside || is_used(&self.used_inside));
            for v in &data.operands {
                self.used_inside[v.index()] |= inside;
                self.used_outside[v.index()] |= outside;
            }
        }
    }

    fn outer_operands(&self, node: Node) -> Vec<Value> {
        let outer = |v: &Value| self.outside[v.index()].expect("operands of a moved node are defined before the loop");
        self.graph.node(node).operands.iter().map(outer).collect()
    }

    fn move_out(&mut self, owner: Node, node: Node) {
        let operands = self.outer_operands(node);
        let region = self.graph.node(owner).region;
        self.graph.set_region_of(node, region);
        self.graph.node_mut(node).operands = operands;
        for &result in &self.graph.node(node).results {
            self.outside[result.index()] = Some(result);
            // The node is now in the body of the enclosing loop, for which nothing is recorded yet.
            self.invariants[result.index()] = None;
            self.used_inside[result.index()] = false;
            self.used_outside[result.index()] = false;
        }
        self.graph.append(node);
    }

    fn copy_out(&mut self, owner: Node, node: Node) {
        let (operands, region) = (self.outer_operands(node), self.graph.node(owner).region);
        let copy = self.graph.copy(None, node, operands, region);
        for (&result, &outer) in self.graph.node(node).results.iter().zip(&self.graph.node(copy).results) {
            self.outside[result.index()] = Some(outer);
        }
    }

    /// Captures the hoisted values that the remaining nodes use.
    fn capture(&mut self, owner: Node, region: Region, left: &[Node]) {
        let mut params: FxHashMap<Value, Value> = FxHashMap::default();
        let mut uses: Vec<Value> = left.iter().flat_map(|&n| self.graph.node(n).operands.clone()).collect();
        uses.extend(&self.graph.region(region).yields);
        for v in uses {
            if self.graph.region_of(v) == region || params.contains_key(&v) {
                continue;
            }
            let name = self.graph.value(v).name;
            for param in self.graph.add_capture(owner, v).params {
                self.graph.value_mut(param).name = name;
                if self.graph.region_of(param) == region {
                    params.insert(v, param);
                }
            }
        }
        let inner = |v: &mut Value| *v = params.get(v).copied().unwrap_or(*v);
        for &node in left {
            self.graph.node_mut(node).operands.iter_mut().for_each(inner);
        }
        self.graph.region_mut(region).yields.iter_mut().for_each(inner);
    }
}
