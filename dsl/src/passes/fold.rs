//! Constant folding.

use super::Pass;
use super::{identity, trips};
use crate::ir::{Attrs, CallKind, Node, Op, Region, Replacements, Value, ValueDef};
use crate::ops::{Effects, EvalCx, OpClass, Prim, prim};
use crate::{DType, Graph, HostTensor, Type, match_buffer};

/// Folds constants, takes branches with a constant predicate and removes operations that change
/// nothing.
///
/// Before: verified. After: verified, and
///
/// - an operation on small constants is a constant, computed by its [reference
///   implementation](crate::ops::OpDef::eval), unless that fails (the step fails if it gets there)
///   or the result is larger than the operands;
/// - a `cond` with a constant predicate is replaced by the nodes of its branch, and a `while` whose
///   predicate is false from the start by its initial values;
/// - an operation whose result is bitwise identical to an operand is replaced by that operand:
///   `x * 1`, but not `x + 0.0`, which turns `-0.0` into `0.0`;
/// - a result of a `cond` that is the same capture in both branches, and a result of a checkpoint
///   that is a capture, is replaced by the captured value;
/// - a loop variable that the body does not change is a capture;
/// - the final value of a counter is a constant, if the trip count of its loop is known.
///
/// A value is only replaced by one of the same type, so all other types stay valid.
#[derive(Clone, Copy, Debug)]
pub struct Fold;

/// Constants with more elements are not folded.
const MAX_ELEMENTS: usize = 1024;

/// Results of at most this many elements may be larger than the operands.
pub(super) const SMALL: usize = 16;

impl Pass for Fold {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        let replaced = Replacements::new(graph);
        let facts = vec![Fact::Unknown; graph.n_values()];
        let uses = graph.use_counts();
        let mut folder = Folder { graph, replaced, facts, uses, changed: false };
        folder.region(folder.graph.root());
        folder.changed
    }
}

/// Compile-time knowledge about a value.
#[derive(Clone)]
enum Fact {
    Unknown,
    /// The elements of the value.
    Constant(HostTensor),
    /// A scalar that every element equals. The number of elements may be unknown.
    Fill(HostTensor),
}

struct Folder<'g> {
    graph: &'g mut Graph,
    replaced: Replacements,
    facts: Vec<Fact>,
    /// The number of uses of each value at the start.
    uses: Vec<u32>,
    changed: bool,
}

impl Folder<'_> {
    fn region(&mut self, region: Region) {
        let nodes = std::mem::take(&mut self.graph.region_mut(region).nodes);
        let mut kept = Vec::with_capacity(nodes.len());
        self.nodes(nodes, region, &mut kept);
        let data = self.graph.region_mut(region);
        data.nodes = kept;
        self.replaced.apply(&mut data.yields);
    }

    /// Folds nodes and moves the remaining ones to `kept`, as nodes of `region`.
    fn nodes(&mut self, nodes: Vec<Node>, region: Region, kept: &mut Vec<Node>) {
        for node in nodes {
            self.graph.set_region_of(node, region);
            self.replaced.apply(&mut self.graph.node_mut(node).operands);
            let stays = match self.graph.node(node).op.clone() {
                Op::Constant(tensor) => {
                    let result = self.graph.node(node).results[0];
                    self.facts[result.index()] = fact_of(&tensor);
                    true
                }
                Op::Prim(def, attrs) => self.prim(node, def, &attrs),
                Op::Cond => self.cond(node, region, kept),
                Op::While { .. } => self.while_loop(node, kept),
                Op::Call(kind) => self.call(node, kind),
                Op::Read(_) | Op::Assign(_) | Op::Assert { .. } | Op::Print { .. } | Op::Stack(_) | Op::List(_) => true,
            };
            if stays {
                kept.push(node);
            } else {
                self.changed = true;
            }
        }
    }

    /// Returns the elements of a value, if they are known and few.
    fn constant(&self, value: Value) -> Option<&HostTensor> {
        match &self.facts[value.index()] {
            Fact::Constant(t) => Some(t),
            _ => None,
        }
    }

    /// Returns the scalar that every element of a value equals, if there is one.
    fn fill(&self, value: Value) -> Option<HostTensor> {
        match &self.facts[value.index()] {
            Fact::Fill(scalar) => Some(scalar.clone()),
            Fact::Constant(t) => uniform(t),
            Fact::Unknown => None,
        }
    }

    fn truth(&self, value: Value) -> Option<bool> {
        self.constant(value).map(|t| t.data::<bool>()[0])
    }

    /// Replaces a value by another one if their types are equal. Returns whether it did.
    fn replace(&mut self, old: Value, new: Value) -> bool {
        let same = self.graph.ty(old) == self.graph.ty(new);
        if same {
            self.replaced.replace(old, new);
        }
        same
    }

    fn prim(&mut self, node: Node, def: Prim, attrs: &Attrs) -> bool {
        let data = self.graph.node(node);
        let result = data.results[0];
        let operands = data.operands.clone();
        if def.effects > Effects::Fallible {
            return true;
        }
        if let Some(tensor) = self.evaluate(def, attrs, &operands, result) {
            self.facts[result.index()] = fact_of(&tensor);
            let data = self.graph.node_mut(node);
            data.op = Op::Constant(tensor);
            data.operands.clear();
            self.changed = true;
            return true;
        }
        let fills: Vec<Option<HostTensor>> = operands.iter().map(|&v| self.fill(v)).collect();
        let types: Vec<&Type> = operands.iter().map(|&v| self.graph.ty(v)).collect();
        let same = identity::operand_given_back(def, attrs, &types, self.graph.ty(result), &fills);
        if let Some(i) = same
            && self.has_shape_of_all(operands[i], &operands)
            && self.replace(result, operands[i])
        {
            return false;
        }
        if let Some(inner) = self.undone(def, &operands)
            && self.replace(result, inner)
        {
            return false;
        }
        if matches!(def.class, OpClass::View)
            && let Some(Some(scalar)) = fills.first()
        {
            self.facts[result.index()] = Fact::Fill(scalar.clone());
        }
        true
    }

    /// Returns whether a value is known to have the shape of all operands of an elementwise operation.
    /// Types do not say so of extents that are unknown: there the operation is a check, which fails
    /// if the shapes differ.
    fn has_shape_of_all(&self, value: Value, operands: &[Value]) -> bool {
        let is_like = |a: Value, b: Value| match self.graph.value(a).def {
            ValueDef::Result(node, _) => match &self.graph.node(node).op {
                Op::Prim(prim::BROADCAST_LIKE, _) => self.graph.node(node).operands[1] == b,
                _ => false,
            },
            ValueDef::Param(..) => false,
        };
        let is_definite = self.graph.ty(value).element().shape.is_definite();
        is_definite || operands.iter().all(|&x| x == value || is_like(x, value) || is_like(value, x))
    }

    /// Returns `x` if an operation that is its own inverse is applied to the same operation on `x`.
    fn undone(&self, def: Prim, operands: &[Value]) -> Option<Value> {
        if !identity::is_involution(def) {
            return None;
        }
        let ValueDef::Result(inner, _) = self.graph.value(operands[0]).def else {
            return None;
        };
        match &self.graph.node(inner).op {
            Op::Prim(d, _) if *d == def => Some(self.graph.node(inner).operands[0]),
            _ => None,
        }
    }

    fn evaluate(&self, def: Prim, attrs: &Attrs, operands: &[Value], result: Value) -> Option<HostTensor> {
        let Type::Tensor(ty) = self.graph.ty(result) else {
            return None;
        };
        let operands: Vec<&HostTensor> = operands.iter().map(|&v| self.constant(v)).collect::<Option<_>>()?;
        let size = ty.shape.size()?;
        let given: usize = operands.iter().map(|t| t.len()).sum();
        if size > MAX_ELEMENTS || size > given.max(SMALL) {
            return None;
        }
        let tensor = def.evaluate(&EvalCx { operands: &operands, attrs, ty }).ok()?;
        (tensor.ty() == *ty).then_some(tensor)
    }

    fn cond(&mut self, node: Node, region: Region, kept: &mut Vec<Node>) -> bool {
        let data = self.graph.node(node).clone();
        if let Some(truth) = self.truth(data.operands[0]) {
            let taken = data.regions[usize::from(!truth)];
            let branch = self.graph.region(taken).clone();
            let same = |(&r, &y): (&Value, &Value)| self.graph.ty(r) == self.graph.ty(y);
            if data.results.iter().zip(&branch.yields).all(same) {
                for (&p, &v) in branch.params.iter().zip(&data.operands[1..]) {
                    self.replaced.replace(p, v);
                }
                self.nodes(branch.nodes, region, kept);
                for (&r, &y) in data.results.iter().zip(&branch.yields) {
                    let y = self.replaced.get(y);
                    self.take_name(y, r);
                    self.replaced.replace(r, y);
                }
                return false;
            }
        }
        for &inner in &data.regions {
            self.captured_facts(inner, &data.operands[1..], 0);
            self.region(inner);
        }
        self.forward_captures(node);
        true
    }

    /// Copies the facts about captured values to the parameters. Nothing is known about loop
    /// variables.
    fn captured_facts(&mut self, region: Region, given: &[Value], n_carried: usize) {
        let captures = self.graph.region(region).params.iter().zip(given).skip(n_carried);
        for (p, v) in captures {
            self.facts[p.index()] = self.facts[v.index()].clone();
        }
    }

    /// Gives an unnamed value the user's name of the value that it replaces.
    fn take_name(&mut self, value: Value, replaced: Value) {
        let name = self.graph.value(replaced).name;
        let data = self.graph.value_mut(value);
        data.name = data.name.or(name);
    }

    /// Replaces results of a `cond` that are the same capture in both branches.
    fn forward_captures(&mut self, node: Node) {
        let data = self.graph.node(node);
        let [then, otherwise] = data.regions[..] else { panic!("a cond has two regions") };
        let captured = |region: Region, i: usize| {
            let v = self.graph.region(region).yields[i];
            match self.graph.value(v).def {
                ValueDef::Param(r, p) if r == region => Some(data.operands[p as usize + 1]),
                _ => None,
            }
        };
        let outer: Vec<Option<Value>> =
            (0..data.results.len()).map(|i| captured(then, i).filter(|v| captured(otherwise, i) == Some(*v))).collect();
        let results = data.results.clone();
        // The result is left unused, for `Dce` to remove.
        for (r, v) in results.into_iter().zip(outer) {
            if let Some(v) = v {
                self.replace(r, v);
            }
        }
    }

    fn call(&mut self, node: Node, kind: CallKind) -> bool {
        let data = self.graph.node(node).clone();
        for &inner in &data.regions {
            self.captured_facts(inner, &data.operands, 0);
            self.region(inner);
        }
        if matches!(kind, CallKind::CustomGradient { .. }) {
            return true;
        }
        // The result is left unused, for `Dce` to remove.
        for (&r, &y) in data.results.iter().zip(&self.graph.region(data.regions[0]).yields.clone()) {
            if let ValueDef::Param(_, i) = self.graph.value(y).def {
                self.replace(r, data.operands[i as usize]);
            }
        }
        true
    }

    fn while_loop(&mut self, node: Node, kept: &mut Vec<Node>) -> bool {
        let data = self.graph.node(node).clone();
        for &inner in &data.regions {
            self.captured_facts(inner, &data.operands, data.results.len());
            self.region(inner);
        }
        let [cond, body] = data.regions[..] else { panic!("a loop has two regions") };
        let never = self.truth(self.graph.region(cond).yields[0]) == Some(false);
        let silent =
            self.graph.region(cond).nodes.iter().all(|&n| self.graph.node(n).op.effects() <= Effects::Fallible);
        let plain = self.graph.region(cond).nodes.iter().all(|&n| self.graph.node(n).regions.is_empty());
        let same = |(&r, &v): (&Value, &Value)| self.graph.ty(r) == self.graph.ty(v);
        if never && silent && plain && data.results.iter().zip(&data.operands).all(same) {
            for (&r, &v) in data.results.iter().zip(&data.operands) {
                self.replaced.replace(r, v);
            }
            return false;
        }
        self.count(node, kept);
        self.capture_invariants(node, cond, body);
        true
    }

    /// Replaces the final values of counters by constants, if the trip count is known.
    fn count(&mut self, node: Node, kept: &mut Vec<Node>) {
        let Some(trips) = trips::trips(self.graph, node) else { return };
        let data = self.graph.node(node).clone();
        for (i, &result) in data.results.iter().enumerate() {
            if self.uses[result.index()] == 0 {
                continue;
            }
            let (first, step) = (trips::integer(self.graph, data.operands[i]), trips::step(self.graph, node, i));
            let (Some(first), Some(step)) = (first, step) else { continue };
            let Some(last) = trips.checked_mul(step).and_then(|way| first.checked_add(way)) else { continue };
            let ty = self.graph.ty(result).clone();
            let last = match (ty.element().dtype, i32::try_from(last)) {
                (DType::I64, _) => HostTensor::scalar(last),
                (DType::I32, Ok(last)) => HostTensor::scalar(last),
                _ => continue,
            };
            let constant = self.graph.make_node(data.region, Op::Constant(last.clone()), vec![], [ty], data.origin());
            let value = self.graph.node(constant).results[0];
            self.facts.push(Fact::Constant(last));
            self.take_name(value, result);
            self.replaced.replace(result, value);
            kept.push(constant);
            self.changed = true;
        }
    }

    /// Turns loop variables that the body yields unchanged into captures.
    fn capture_invariants(&mut self, node: Node, cond: Region, body: Region) {
        let data = self.graph.node(node).clone();
        let yields = self.graph.region(body).yields.clone();
        let stays = |i: usize| {
            let (param, before) = (self.graph.region(body).params[i], data.operands[i]);
            yields[i] != param || self.graph.ty(before) != self.graph.ty(data.results[i])
        };
        let stays: Vec<bool> = (0..data.results.len()).map(stays).collect();
        if !stays.contains(&false) {
            return;
        }
        self.changed = true;
        let n = data.operands.len();
        let is_carried = |i: &usize| stays.get(*i) == Some(&true);
        let order: Vec<usize> = (0..n).filter(is_carried).chain((0..n).filter(|i| !is_carried(i))).collect();
        for region in [cond, body] {
            let params = &self.graph.region(region).params;
            let params = order.iter().map(|&i| params[i]).collect();
            self.graph.set_params(region, params);
        }
        self.graph.node_mut(node).operands = order.iter().map(|&i| data.operands[i]).collect();
        let carried: Vec<usize> = (0..data.results.len()).filter(is_carried).collect();
        self.graph.region_mut(body).yields = carried.iter().map(|&i| yields[i]).collect();
        self.graph.set_results(node, carried.iter().map(|&i| data.results[i]).collect());
        for (i, &r) in data.results.iter().enumerate() {
            if !stays[i] {
                self.replaced.replace(r, data.operands[i]);
            }
        }
    }
}

fn fact_of(tensor: &HostTensor) -> Fact {
    if tensor.len() <= MAX_ELEMENTS {
        return Fact::Constant(tensor.clone());
    }
    uniform(tensor).map_or(Fact::Unknown, Fact::Fill)
}

/// Returns the scalar that every element of a tensor is bitwise identical to, if there is one.
pub(super) fn uniform(tensor: &HostTensor) -> Option<HostTensor> {
    if tensor.is_empty() {
        return None;
    }
    let first = match_buffer!(tensor.buffer(), d => HostTensor::scalar(d[0]));
    let filled = match_buffer!(tensor.buffer(), d => HostTensor::new(tensor.shape(), vec![d[0]; d.len()]));
    (filled == *tensor).then_some(first)
}
