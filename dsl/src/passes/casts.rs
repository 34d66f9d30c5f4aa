//! Conversions to and from 16-bit floats: hoisting and widening.

use super::Pass;
use crate::ir::{Node, Op, Origin, Region, Replacements, Value, ValueDef};
use crate::ops::attributes::Cast;
use crate::ops::{converted, prim, widened_attrs};
use crate::{DType, DeviceConstraint, Graph, TensorType, Type};
use rustc_hash::FxHashMap;

/// Hoists conversions of captured values to or from a 16-bit float out of loops.
///
/// A conversion cannot fail, so it may run before a loop that has no iterations. For example, `f32`
/// parameters that a loop uses as `bf16` are converted once, and
/// [`HoistMatmuls`](super::HoistMatmuls) can then hoist matmuls with them.
///
/// Before: verified. After: verified, and no loop converts a captured value to or from a 16-bit
/// float.
#[derive(Clone, Copy, Debug)]
pub struct HoistCasts;

impl Pass for HoistCasts {
    fn name(&self) -> &'static str {
        "hoist_casts"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        CastRewriter::run(graph, false)
    }
}

/// Rewrites each operation on 16-bit floats to the same operation on `f32` between conversions.
///
/// The pass spells out the semantics of 16-bit floats (see [`halves`](crate::halves)) as nodes. An
/// engine then needs no functions on 16-bit floats except conversions, and fused operations round
/// exactly where the separate operations did.
///
/// A value is converted once in its region. Conversions of captured values are hoisted, as in
/// [`HoistCasts`]. Errors of operations name the types after widening.
///
/// Before: verified. After: verified, and 16-bit floats are only moved and converted, except in
/// sums of stacks and of list elements.
#[derive(Clone, Copy, Debug)]
pub struct Widen;

impl Pass for Widen {
    fn name(&self) -> &'static str {
        "widen"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        CastRewriter::run(graph, true)
    }
}

struct CastRewriter<'g> {
    graph: &'g mut Graph,
    /// Whether operations are widened. Conversions are hoisted in either case.
    widen: bool,
    /// The conversions made so far, by operand, element type and device constraint.
    converted: FxHashMap<(Value, DType, Option<DeviceConstraint>), Value>,
    replaced: Replacements,
    /// The regions around the current node, outermost first, with the nodes kept so far.
    open: Vec<(Region, Vec<Node>)>,
    changed: bool,
}

impl CastRewriter<'_> {
    fn run(graph: &mut Graph, widen: bool) -> bool {
        let has_halves = (0..graph.n_values()).any(|i| graph.ty(Value::from_index(i)).element().dtype.is_half());
        if !has_halves {
            return false;
        }
        let replaced = Replacements::new(graph);
        let mut rewrite =
            CastRewriter { graph, widen, converted: FxHashMap::default(), replaced, open: Vec::new(), changed: false };
        rewrite.region(rewrite.graph.root());
        rewrite.changed
    }

    fn region(&mut self, region: Region) {
        let nodes = std::mem::take(&mut self.graph.region_mut(region).nodes);
        self.open.push((region, Vec::with_capacity(nodes.len())));
        for node in nodes {
            self.replaced.apply(&mut self.graph.node_mut(node).operands);
            for inner in self.graph.node(node).regions.clone() {
                self.region(inner);
            }
            if self.stays(node) {
                self.keep(region, node);
            }
        }
        let (_, kept) = self.open.pop().expect("the region was opened above");
        let data = self.graph.region_mut(region);
        data.nodes = kept;
        self.replaced.apply(&mut data.yields);
    }

    /// Appends a node to an open region.
    fn keep(&mut self, region: Region, node: Node) {
        let open = self.open.iter_mut().rev().find(|(r, _)| *r == region);
        open.expect("values are used in their region or, through captures, inside it").1.push(node);
    }

    fn dtype(&self, v: Value) -> DType {
        self.graph.ty(v).element().dtype
    }

    /// Rewrites a node. Returns whether it is still needed.
    fn stays(&mut self, node: Node) -> bool {
        let data = self.graph.node(node);
        let Op::Prim(def, attrs) = data.op.clone() else { return true };
        let (region, origin, operands, result) = (data.region, data.origin(), data.operands.clone(), data.results[0]);
        let has_halves = operands.iter().chain([&result]).any(|&v| self.dtype(v).is_half());
        if !has_halves {
            return true;
        }
        if def == prim::CAST && self.is_of_loop(operands[0]) {
            let converted = self.converted(operands[0], self.dtype(result), origin);
            self.replaced.replace(result, converted);
            self.changed = true;
            return false;
        }
        if !self.widen || !def.widens() {
            return true;
        }
        self.changed = true;
        let wide: Vec<Value> = operands
            .iter()
            .map(|&v| if self.dtype(v).is_half() { self.converted(v, DType::F32, origin) } else { v })
            .collect();
        let op = Op::Prim(def, widened_attrs(&attrs));
        if !self.dtype(result).is_half() {
            let data = self.graph.node_mut(node);
            (data.op, data.operands) = (op, wide);
            return true;
        }
        let ty = self.with_dtype(result, DType::F32);
        let inner = self.graph.make_node(region, op, wide, [ty], origin);
        self.keep(region, inner);
        let computed = self.graph.node(inner).results[0];
        let rounding = cast(self.dtype(result));
        let data = self.graph.node_mut(node);
        (data.op, data.operands) = (rounding, vec![computed]);
        true
    }

    fn with_dtype(&self, v: Value, dtype: DType) -> Type {
        TensorType { dtype, shape: self.graph.ty(v).element().shape.clone() }.into()
    }

    /// Returns the value that a parameter captures and the node that owns the region.
    fn outside(&self, v: Value) -> Option<(Value, Node)> {
        let outer = self.graph.captured_by(v)?;
        let owner = self.graph.region(self.graph.region_of(v)).owner?;
        let passes = matches!(self.graph.node(owner).op, Op::While { .. } | Op::Cond);
        (passes && self.graph.ty(outer) == self.graph.ty(v)).then_some((outer, owner))
    }

    /// Returns whether a value is captured by an enclosing loop.
    fn is_of_loop(&self, mut v: Value) -> bool {
        while let Some((outer, owner)) = self.outside(v) {
            if self.graph.as_while(owner).is_some() {
                return true;
            }
            v = outer;
        }
        false
    }

    /// Returns a value converted to another type, in the same region.
    ///
    /// The conversion is made in the outermost region in which the value is available.
    fn converted(&mut self, v: Value, dtype: DType, origin: Origin) -> Value {
        if let Some(&done) = self.converted.get(&(v, dtype, origin.on)) {
            return done;
        }
        let made = match self.outside(v) {
            Some((outer, owner)) if self.is_of_loop(v) => {
                let converted = self.converted(outer, dtype, origin);
                self.capture(owner, converted, v, (dtype, origin.on))
            }
            _ => self.convert_here(v, dtype, origin),
        };
        self.converted.insert((v, dtype, origin.on), made);
        made
    }

    /// Adds a capture of `converted` to a branch or loop.
    ///
    /// In each region it is the conversion of the parameter of the capture to which `v` belongs.
    /// Returns the new parameter in the region of `v`.
    fn capture(
        &mut self,
        owner: Node,
        converted: Value,
        v: Value,
        (dtype, on): (DType, Option<DeviceConstraint>),
    ) -> Value {
        let before = self.graph.captures(owner).find(|capture| capture.params.contains(&v));
        let before = before.expect("the value is a parameter of the construct").params;
        let params = self.graph.add_capture(owner, converted).params;
        for (before, param) in before.into_iter().zip(params) {
            self.converted.insert((before, dtype, on), param);
        }
        if before[0] == v { params[0] } else { params[1] }
    }

    fn convert_here(&mut self, v: Value, dtype: DType, origin: Origin) -> Value {
        let region = match self.graph.value(v).def {
            ValueDef::Param(region, _) => region,
            ValueDef::Result(node, _) => self.graph.node(node).region,
        };
        let constant = self.graph.producer(v).and_then(|node| match &self.graph.node(node).op {
            Op::Constant(tensor) => Some(converted(tensor, dtype)),
            _ => None,
        });
        let ty = self.with_dtype(v, dtype);
        let node = match constant {
            Some(tensor) => self.graph.make_node(region, Op::Constant(tensor), vec![], [ty], origin),
            None => self.graph.make_node(region, cast(dtype), vec![v], [ty], origin),
        };
        self.keep(region, node);
        self.graph.node(node).results[0]
    }
}

fn cast(to: DType) -> Op {
    let def = prim::CAST;
    Op::Prim(def, Cast { dtype: to }.into())
}
