//! Conversions to and from 16-bit floats: hoisting and widening.

use super::Pass;
use crate::ir::{GraphBuilder, InsertPoint, Node, Op, Origin, Region, Value};
use crate::ops::attributes::Cast;
use crate::ops::{converted, prim, widened_attrs};
use crate::{DType, DeviceConstraint, Graph};
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
    graph: &'g mut GraphBuilder,
    /// Whether operations are widened. Conversions are hoisted in either case.
    widen: bool,
    /// The conversions made so far, by operand, element type and device constraint.
    converted: FxHashMap<(Value, DType, Option<DeviceConstraint>), Value>,
    changed: bool,
}

impl CastRewriter<'_> {
    fn run(graph: &mut Graph, widen: bool) -> bool {
        let has_halves = (0..graph.n_values()).any(|i| graph.ty(Value::from_index(i)).element().dtype.is_half());
        if !has_halves {
            return false;
        }
        GraphBuilder::edit(graph, |graph| {
            let mut rewrite = CastRewriter { graph, widen, converted: FxHashMap::default(), changed: false };
            rewrite.region(rewrite.graph.root());
            rewrite.changed
        })
    }

    fn region(&mut self, region: Region) {
        for node in self.graph.take_nodes(region) {
            self.graph.update_operands(node);
            for inner in self.graph.node(node).regions.clone() {
                self.region(inner);
            }
            if self.stays(node) {
                self.graph.append(node);
            }
        }
        self.graph.update_yields(region);
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
            self.graph.replace(result, converted);
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
        let attrs = widened_attrs(&attrs);
        let (op, operands) = if self.dtype(result).is_half() {
            let computed = self.graph.at(InsertPoint::End(region), origin).prim(def, &wide, attrs);
            (Op::Prim(prim::CAST, Cast { dtype: self.dtype(result) }.into()), vec![computed])
        } else {
            (Op::Prim(def, attrs), wide)
        };
        let data = self.graph.node_mut(node);
        (data.op, data.operands) = (op, operands);
        true
    }

    /// Returns the value that a parameter captures and the node that owns the region.
    fn outside(&self, v: Value) -> Option<(Value, Node)> {
        let outer = self.graph.captured_by(v)?;
        let owner = self.graph.region(self.graph.region_of(v)).owner?;
        let passes = self.graph.node(owner).op.is_construct() && self.graph.as_call(owner).is_none();
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
        let constant = self.graph.producer(v).and_then(|node| match &self.graph.node(node).op {
            Op::Constant(tensor) => Some(converted(tensor, dtype)),
            _ => None,
        });
        let here = InsertPoint::End(self.graph.region_of(v));
        let graph = self.graph.at(here, origin);
        match constant {
            Some(tensor) => graph.constant(tensor),
            None => graph.prim(prim::CAST, &[v], Cast { dtype }),
        }
    }
}
