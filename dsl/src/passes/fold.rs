//! Constant folding.

use super::Pass;
use super::{identity, trips};
use crate::ir::dependence;
use crate::ir::{Attrs, CallKind, GraphBuilder, InsertPoint, LoopVar, Node, Op, Region, Value, ValueDef};
use crate::ops::{Effects, EvalCx, OpClass, Prim, prim};
use crate::{DType, Graph, HostTensor, Type, match_buffer};
use std::iter::repeat_n;

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

/// The maximum number of bytes of constant strings from which others are computed.
const MAX_STRING_BYTES: u64 = 1 << 16;

/// Results of at most this many elements may be larger than the operands.
pub(super) const SMALL: usize = 16;

impl Pass for Fold {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        let facts = vec![Fact::Unknown; graph.n_values()];
        let uses = graph.use_counts();
        GraphBuilder::edit(graph, |graph| {
            let mut folder = Folder { graph, facts, uses, changed: false };
            folder.region(folder.graph.root());
            folder.changed
        })
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
    graph: &'g mut GraphBuilder,
    facts: Vec<Fact>,
    /// The number of uses of each value at the start.
    uses: Vec<u32>,
    changed: bool,
}

impl Folder<'_> {
    fn region(&mut self, region: Region) {
        let nodes = self.graph.take_nodes(region);
        self.nodes(nodes, region);
        self.graph.update_yields(region);
    }

    /// Folds nodes and appends the remaining nodes to `region`.
    fn nodes(&mut self, nodes: Vec<Node>, region: Region) {
        for node in nodes {
            self.graph.set_region_of(node, region);
            self.graph.update_operands(node);
            let stays = match self.graph.node(node).op.clone() {
                Op::Constant(tensor) => {
                    let result = self.graph.node(node).results[0];
                    self.facts[result.index()] = fact_of(&tensor);
                    true
                }
                Op::Prim(def, attrs) => self.prim(node, def, &attrs),
                Op::Cond => self.cond(node, region),
                Op::While { .. } => self.while_loop(node),
                Op::Call(kind) => self.call(node, kind),
                Op::Read(_)
                | Op::Assign(_)
                | Op::Assert { .. }
                | Op::Print { .. }
                | Op::Stack(_)
                | Op::List(_)
                | Op::Queue(..)
                | Op::File(_) => true,
            };
            if stays {
                self.graph.append(node);
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

    /// Replaces a value by another value of the same type. Returns whether it did.
    fn replace(&mut self, old: Value, new: Value) -> bool {
        let same = self.graph.ty(old) == self.graph.ty(new);
        if same {
            self.graph.replace(old, new);
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
        if matches!(def.class, OpClass::View(_))
            && let Some(Some(scalar)) = fills.first()
        {
            self.facts[result.index()] = Fact::Fill(scalar.clone());
        }
        true
    }

    /// Returns whether a value is known to have the shape of all operands of an elementwise
    /// operation. Types do not say so of extents that are unknown: there the operation is a check,
    /// which fails if the shapes differ.
    fn has_shape_of_all(&self, value: Value, operands: &[Value]) -> bool {
        let is_like = |a: Value, b: Value| match self.graph.value(a).def {
            ValueDef::Result(node, _) => match &self.graph.node(node).op {
                Op::Prim(prim::BROADCAST_LIKE, _) => {
                    // A tensor with axes may be larger than the second operand.
                    let &[x, like] = &self.graph.node(node).operands[..] else { return false };
                    like == b && self.graph.ty(x).element().rank() == 0
                }
                _ => false,
            },
            ValueDef::Param(..) => false,
        };
        let is_definite = self.graph.ty(value).element().shape.is_definite();
        is_definite || operands.iter().all(|&x| x == value || is_like(x, value) || is_like(value, x))
    }

    /// Returns `x` if an operation that is its own inverse is applied to the same operation on `x`.
    fn undone(&self, def: Prim, operands: &[Value]) -> Option<Value> {
        if !def.laws.involution {
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
        // Strings may grow with each operation.
        let is_long = |t: &HostTensor| t.dtype() == DType::Bytes && t.n_bytes() > MAX_STRING_BYTES;
        if operands.iter().any(|t| is_long(t)) {
            return None;
        }
        let tensor = def.evaluate(&EvalCx { operands: &operands, attrs, ty }).ok()?;
        (tensor.ty() == *ty).then_some(tensor)
    }

    fn cond(&mut self, node: Node, region: Region) -> bool {
        let data = self.graph.node(node).clone();
        let cond = self.graph.cond_of(node);
        if let Some(truth) = self.truth(cond.predicate()) {
            let taken = cond.branch(truth);
            let branch = self.graph.region(taken).clone();
            let same = |(&r, &y): (&Value, &Value)| self.graph.ty(r) == self.graph.ty(y);
            if data.results.iter().zip(&branch.yields).all(same) {
                for (param, outer) in self.graph.captures_in(taken).collect::<Vec<_>>() {
                    self.graph.replace(param, outer);
                }
                self.nodes(branch.nodes, region);
                for (&r, &y) in data.results.iter().zip(&branch.yields) {
                    self.graph.replace_named(r, y);
                }
                return false;
            }
        }
        for &inner in &data.regions {
            self.captured_facts(inner);
            self.region(inner);
        }
        self.forward_captures(node);
        true
    }

    /// Copies the facts about captured values to the parameters. Nothing is known about loop
    /// variables.
    fn captured_facts(&mut self, region: Region) {
        for (param, outer) in self.graph.captures_in(region) {
            self.facts[param.index()] = self.facts[outer.index()].clone();
        }
    }

    /// Replaces results of a `cond` that are the same capture in both branches.
    fn forward_captures(&mut self, node: Node) {
        let results = self.graph.node(node).results.clone();
        for (i, result) in results.into_iter().enumerate() {
            let [then, otherwise] = self.graph.cond_of(node).yields(i).map(|v| self.graph.captured_by(v));
            // The result is left unused, for `Dce` to remove.
            if let Some(outer) = then.filter(|_| then == otherwise) {
                self.replace(result, outer);
            }
        }
    }

    fn call(&mut self, node: Node, kind: CallKind) -> bool {
        let data = self.graph.node(node).clone();
        for &inner in &data.regions {
            self.captured_facts(inner);
            self.region(inner);
        }
        if matches!(kind, CallKind::CustomGradient { .. }) {
            return true;
        }
        // The result is left unused, for `Dce` to remove.
        let forward = self.graph.call_of(node).forward();
        for (&r, &y) in data.results.iter().zip(&self.graph.region(forward).yields.clone()) {
            if let Some(outer) = self.graph.captured_by(y) {
                self.replace(r, outer);
            }
        }
        true
    }

    fn while_loop(&mut self, node: Node) -> bool {
        let data = self.graph.node(node).clone();
        for &inner in &data.regions {
            self.captured_facts(inner);
            self.region(inner);
        }
        let construct = self.graph.while_of(node);
        let (cond, inits) = (construct.cond(), construct.inits().to_vec());
        let never = self.truth(construct.predicate()) == Some(false);
        let silent =
            self.graph.region(cond).nodes.iter().all(|&n| self.graph.node(n).op.effects() <= Effects::Fallible);
        let plain = self.graph.region(cond).nodes.iter().all(|&n| self.graph.node(n).regions.is_empty());
        let same = |(&r, &v): (&Value, &Value)| self.graph.ty(r) == self.graph.ty(v);
        if never && silent && plain && data.results.iter().zip(&inits).all(same) {
            for (&r, &v) in data.results.iter().zip(&inits) {
                self.graph.replace(r, v);
            }
            return false;
        }
        self.count(node);
        self.capture_invariants(node);
        true
    }

    /// Replaces the final values of counters by constants, if the trip count is known.
    fn count(&mut self, node: Node) {
        let Some(trips) = trips::trips(self.graph, node) else { return };
        let (region, origin) = (self.graph.node(node).region, self.graph.node(node).origin());
        let vars: Vec<LoopVar> = self.graph.while_of(node).vars().collect();
        for var in vars {
            let result = var.result;
            if self.uses[result.index()] == 0 {
                continue;
            }
            let (first, step) = (dependence::integer(self.graph, var.init), dependence::step(self.graph, var));
            let (Some(first), Some(step)) = (first, step) else { continue };
            let Some(last) = trips.checked_mul(step).and_then(|way| first.checked_add(way)) else { continue };
            let last = match (self.graph.ty(result).element().dtype, i32::try_from(last)) {
                (DType::I64, _) => HostTensor::scalar(last),
                (DType::I32, Ok(last)) => HostTensor::scalar(last),
                _ => continue,
            };
            let constant = self.graph.at(InsertPoint::End(region), origin).constant(last.clone());
            self.facts.push(Fact::Constant(last));
            self.graph.replace_named(result, constant);
            self.changed = true;
        }
    }

    /// Turns loop variables that the body yields unchanged into captures.
    fn capture_invariants(&mut self, node: Node) {
        let vars: Vec<LoopVar> = self.graph.while_of(node).vars().collect();
        let stays = |var: &LoopVar| var.next != var.body_param || self.graph.ty(var.init) != self.graph.ty(var.result);
        let stays: Vec<bool> = vars.iter().map(stays).collect();
        if !stays.contains(&false) {
            return;
        }
        self.changed = true;
        self.graph.retain_loop_vars(node, &stays);
        for (var, _) in vars.iter().zip(stays).filter(|(_, stays)| !stays) {
            self.graph.replace(var.result, var.init);
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
    let first = match_buffer!(tensor.buffer(), d => HostTensor::new([], d[..1].to_vec()));
    let filled = match_buffer!(tensor.buffer(), d => HostTensor::new(tensor.shape(), repeat_n(&d[0], d.len()).cloned().collect()));
    (filled == *tensor).then_some(first)
}
