//! Constructs whose regions are still being built.
//!
//! A value of an enclosing region that is used inside is captured on first use: it becomes an
//! operand of the construct and a parameter of its regions.
//!
//! Invariants:
//!
//! - Constructs close in the reverse order of opening.
//! - While a construct is open, its node does not exist, so nodes that are meanwhile added outside
//!   precede it.
//! - Both regions of an open construct have the same parameters in the same order. Each has one
//!   value outside.

use super::builder::InsertPoint;
use super::infer::infer;
use super::{CallKind, GraphBuilder, Node, Op, Origin, Region, Value, ValueDef};
use rustc_hash::FxHashMap;
use std::num::NonZeroU32;

/// The maximum nesting depth of open constructs.
///
/// A deeper nest is recursion, and tracing it would overflow the stack. Programs without recursion
/// stay far below this limit. A thread's stack of 2 MiB suffices for this depth and for everything
/// that traverses the graph later, even in a build without optimization.
pub(crate) const MAX_OPEN: usize = 128;

/// The regions of an open construct.
#[derive(Debug)]
pub(crate) struct OpenRegions {
    /// The regions: then and else, cond and body, or the region of a call and of its custom
    /// gradient.
    pub(crate) regions: [Region; 2],
    /// The index of the region that is being built.
    pub(crate) current: usize,
    /// The value outside for each parameter.
    pub(crate) outer: Vec<Value>,
    /// The positions of the parameters that are loop variables, or may become some.
    vars: Vec<usize>,
    /// The parameter of each captured value.
    captures: FxHashMap<Value, usize>,
}

/// The state of a builder outside a construct.
struct OuterPosition {
    point: InsertPoint,
    origin: Origin,
    base: Region,
}

impl GraphBuilder {
    /// Opens a construct. The first region is current.
    pub(crate) fn open(&mut self) {
        let regions = [self.add_region(), self.add_region()];
        self.open.push(OpenRegions {
            regions,
            current: 0,
            outer: Vec::new(),
            vars: Vec::new(),
            captures: FxHashMap::default(),
        });
    }

    /// Returns an open construct, counted from the outermost.
    pub(crate) fn opened(&self, construct: usize) -> &OpenRegions {
        &self.open[construct]
    }

    /// Makes the first (0) or second (1) region of an open construct current.
    pub(crate) fn select(&mut self, construct: usize, region: usize) {
        self.open[construct].current = region;
    }

    /// Returns the region that is being built at a depth: 0 is the region around all open
    /// constructs.
    pub(crate) fn region_at(&self, depth: usize) -> Region {
        match depth.checked_sub(1) {
            None => self.base,
            Some(i) => self.open[i].regions[self.open[i].current],
        }
    }

    /// Returns the number of open constructs, which is the depth of the innermost region.
    pub(crate) fn depth(&self) -> usize {
        self.open.len()
    }

    /// Returns the parameters of the current region at a depth, each with the value outside. The
    /// outermost region has none.
    pub(crate) fn open_params(&self, depth: usize) -> Vec<(Value, Value)> {
        let Some(construct) = depth.checked_sub(1) else { return Vec::new() };
        let params = &self.region(self.region_at(depth)).params;
        params.iter().copied().zip(self.open[construct].outer.iter().copied()).collect()
    }

    /// Returns the value outside for a parameter of an open construct.
    pub(crate) fn outside(&self, param: Value) -> Option<Value> {
        let ValueDef::Param(region, i) = self.value(param).def else { return None };
        let open = self.open.iter().find(|open| open.regions.contains(&region))?;
        open.outer.get(i as usize).copied()
    }

    /// Adds a parameter for `outer` to both regions of an open construct. Returns its position.
    pub(crate) fn add_open_param(&mut self, construct: usize, outer: Value, name: Option<&'static str>) -> usize {
        let ty = self.ty(outer).clone();
        let name = name.or(self.value(outer).name);
        for region in self.open[construct].regions {
            self.add_param(region, ty.clone(), name);
        }
        let outer_values = &mut self.open[construct].outer;
        outer_values.push(outer);
        outer_values.len() - 1
    }

    /// Adds a parameter that is a loop variable or may become one, like
    /// [`GraphBuilder::add_open_param`].
    pub(crate) fn add_open_var(&mut self, construct: usize, outer: Value, name: Option<&'static str>) -> usize {
        let i = self.add_open_param(construct, outer, name);
        self.open[construct].vars.push(i);
        i
    }

    /// Returns whether a parameter of the open construct at a depth is a loop variable or may
    /// become one.
    pub(crate) fn is_open_var(&self, depth: usize, param: Value) -> bool {
        let ValueDef::Param(_, i) = self.value(param).def else { return false };
        self.open[depth - 1].vars.contains(&(i as usize))
    }

    /// Returns the value outside for a loop variable of the innermost construct if the body does
    /// not change it.
    pub(crate) fn unchanged(&self, var: usize, next: Value) -> Option<Value> {
        let OpenRegions { regions, outer, vars, .. } = self.open.last().expect("a construct is open");
        let ValueDef::Param(region, i) = self.value(next).def else { return None };
        let i = i as usize;
        let [_, body] = *regions;
        let is_same = region == body && (i == var || (!vars.contains(&i) && outer[i] == outer[var]));
        is_same.then_some(outer[var])
    }

    /// Returns a value as seen in the current region at a depth, or `None` if the value is of no
    /// enclosing region. Constructs in between capture the value.
    pub(crate) fn seen_at(&mut self, value: Value, depth: usize) -> Option<Value> {
        self.seen_in(value, depth, self.region_at(depth))
    }

    /// Returns a value as seen in `region`, one of the regions of the construct at `depth`.
    pub(crate) fn seen_in(&mut self, value: Value, depth: usize, region: Region) -> Option<Value> {
        if self.region_of(value) == region {
            return Some(value);
        }
        let construct = depth.checked_sub(1)?;
        let outer = self.seen_at(value, construct)?;
        let i = match self.open[construct].captures.get(&outer) {
            Some(&i) => i,
            None => {
                let i = self.add_open_param(construct, outer, None);
                self.open[construct].captures.insert(outer, i);
                i
            }
        };
        Some(self.region(region).params[i])
    }

    /// Returns a value as seen at the position of the next node. Open constructs in between capture
    /// the value.
    ///
    /// # Panics
    /// Panics if the value is of no region around the position.
    pub fn capture(&mut self, value: Value) -> Value {
        let here = self.region_here();
        if self.region_of(value) == here {
            return value;
        }
        let depth = (0..=self.open.len()).rev().find(|&depth| self.region_at(depth) == here);
        let seen = depth.and_then(|depth| self.seen_at(value, depth));
        seen.unwrap_or_else(|| panic!("{value} is of a region that is not around {here}"))
    }

    /// Returns values as seen at the position of the next node, like [`GraphBuilder::capture`].
    pub fn capture_all(&mut self, values: &[Value]) -> Vec<Value> {
        values.iter().map(|&v| self.capture(v)).collect()
    }

    /// Closes the innermost construct and adds its node. `predicate` is the first operand, if the
    /// construct has one. Each region that yields becomes a region of the node.
    ///
    /// # Panics
    /// Panics if the values do not fit together, such as those of two branches.
    pub(crate) fn close(
        &mut self,
        op: Op,
        predicate: Option<Value>,
        yields: impl IntoIterator<Item = Vec<Value>>,
    ) -> Node {
        let OpenRegions { regions, outer, .. } = self.open.pop().expect("a construct is open");
        let mut used = Vec::with_capacity(regions.len());
        for (region, yields) in regions.into_iter().zip(yields) {
            self.region_mut(region).yields = yields;
            used.push(region);
        }
        let operands: Vec<Value> = predicate.into_iter().chain(outer).collect();
        let types = infer(self, &op, &operands, &used);
        let types = types.unwrap_or_else(|broken| panic!("{}: {}", op.name(), broken.error.message));
        let node = self.insert(op, operands, types);
        self.set_regions(node, used);
        node
    }

    /// Closes the innermost construct as a loop. `vars` are the positions of the parameters that
    /// are loop variables, each with its next value; all other parameters are captures.
    pub(crate) fn close_while(
        &mut self,
        parallel_iterations: Option<NonZeroU32>,
        predicate: Value,
        vars: &[(usize, Value)],
    ) -> Node {
        let construct = self.open.len() - 1;
        let OpenRegions { regions, outer, .. } = &self.open[construct];
        let is_var = |i: &usize| vars.iter().any(|(var, _)| var == i);
        let captures = (0..outer.len()).filter(|i| !is_var(i));
        let order: Vec<usize> = vars.iter().map(|&(i, _)| i).chain(captures).collect();
        let outer = order.iter().map(|&i| outer[i]).collect();
        for region in *regions {
            let params = &self.region(region).params;
            let params = order.iter().map(|&i| params[i]).collect();
            self.set_params(region, params);
        }
        self.open[construct].outer = outer;
        let nexts = vars.iter().map(|&(_, next)| next).collect();
        self.close(Op::While { parallel_iterations }, None, [vec![predicate], nexts])
    }

    /// Closes the innermost construct as a loop, like [`GraphBuilder::close_while`]. Returns the
    /// values of the loop variables after it. One that the body does not change is a capture.
    pub(crate) fn close_loop(
        &mut self,
        parallel_iterations: Option<NonZeroU32>,
        predicate: Value,
        vars: &[(usize, Value)],
    ) -> Vec<Value> {
        let outside: Vec<Option<Value>> = vars.iter().map(|&(i, next)| self.unchanged(i, next)).collect();
        let changing = vars.iter().zip(&outside).filter(|(_, outside)| outside.is_none());
        let changing: Vec<(usize, Value)> = changing.map(|(&var, _)| var).collect();
        let node = self.close_while(parallel_iterations, predicate, &changing);
        self.results_or(node, outside)
    }

    /// Closes the innermost construct as a branch. Returns a value for each pair of values of the
    /// branches. A value that neither branch changes is the value outside.
    pub(crate) fn close_cond(&mut self, predicate: Value, values: [Vec<Value>; 2]) -> Vec<Value> {
        let OpenRegions { regions, outer, .. } = self.open.last().expect("a construct is open");
        let param = |v: Value| match self.value(v).def {
            ValueDef::Param(region, i) if regions.contains(&region) => Some(i as usize),
            _ => None,
        };
        let same = |(&x, &y): (&Value, &Value)| param(x).filter(|_| param(x) == param(y)).map(|i| outer[i]);
        let outside: Vec<Option<Value>> = values[0].iter().zip(&values[1]).map(same).collect();
        let yields = values.map(|values| changed(&values, &outside));
        let node = self.close(Op::Cond, Some(predicate), yields);
        self.results_or(node, outside)
    }

    /// Closes the innermost construct as a call with one region. Returns a value for each value of
    /// the region. One from outside is that value.
    pub(crate) fn close_call(&mut self, kind: CallKind, values: &[Value]) -> Vec<Value> {
        let outside: Vec<Option<Value>> = values.iter().map(|&v| self.outside(v)).collect();
        let yields = changed(values, &outside);
        let names: Vec<_> = yields.iter().map(|&v| self.value(v).name).collect();
        let node = self.close(Op::Call(kind), None, [yields]);
        let results = self.node(node).results.clone();
        for (&r, name) in results.iter().zip(names) {
            self.value_mut(r).name = name;
        }
        self.results_or(node, outside)
    }

    /// Returns the values outside, and the next result of a node where there is none.
    fn results_or(&self, node: Node, outside: Vec<Option<Value>>) -> Vec<Value> {
        let mut results = self.node(node).results.iter().copied();
        outside.into_iter().map(|v| v.or_else(|| results.next()).expect("there is a result for each value")).collect()
    }

    // Constructs as functions.

    /// Adds a branch. Each closure builds a branch and returns the values that it yields. Values
    /// from outside are captured.
    ///
    /// # Panics
    /// Panics if the branches yield values of different types.
    pub fn cond(
        &mut self,
        predicate: Value,
        then: impl FnOnce(&mut GraphBuilder) -> Vec<Value>,
        otherwise: impl FnOnce(&mut GraphBuilder) -> Vec<Value>,
    ) -> Node {
        let predicate = self.capture(predicate);
        let outside = self.enter(&[]);
        self.build(0, &outside);
        let yields = then(self);
        let yields = self.capture_all(&yields);
        self.build(1, &outside);
        let others = otherwise(self);
        let others = self.capture_all(&others);
        self.leave(outside).close(Op::Cond, Some(predicate), [yields, others])
    }

    /// Adds a loop. `cond` returns the predicate and `body` the next values of the loop variables;
    /// both get their values before. Other values from outside are captured.
    ///
    /// # Panics
    /// Panics if the body does not return one value for each initial value.
    pub fn while_loop(
        &mut self,
        init: &[Value],
        cond: impl FnOnce(&mut GraphBuilder, &[Value]) -> Value,
        body: impl FnOnce(&mut GraphBuilder, &[Value]) -> Vec<Value>,
    ) -> Node {
        let outside = self.enter(init);
        let vars = self.build(0, &outside);
        let predicate = cond(self, &vars);
        let predicate = self.capture(predicate);
        let vars = self.build(1, &outside);
        let next = body(self, &vars[..init.len()]);
        assert_eq!(next.len(), init.len(), "a loop has one next value for each loop variable");
        let next: Vec<(usize, Value)> = self.capture_all(&next).into_iter().enumerate().collect();
        self.leave(outside).close_while(None, predicate, &next)
    }

    /// Adds a call without a custom gradient. `body` gets the captured values `args` and returns
    /// the results. Other values from outside are captured.
    ///
    /// # Panics
    /// Panics if `kind` has a custom gradient, which is a second region.
    pub fn call(
        &mut self,
        kind: CallKind,
        args: &[Value],
        body: impl FnOnce(&mut GraphBuilder, &[Value]) -> Vec<Value>,
    ) -> Node {
        assert!(!matches!(kind, CallKind::CustomGradient { .. }), "{} has a second region", kind.name());
        let outside = self.enter(args);
        let args = self.build(0, &outside);
        let results = body(self, &args);
        let results = self.capture_all(&results);
        self.leave(outside).close(Op::Call(kind), None, [results])
    }

    /// Opens a construct whose first parameters are `values`.
    fn enter(&mut self, values: &[Value]) -> OuterPosition {
        let values = self.capture_all(values);
        let region = self.region_here();
        // Nodes that are added after the same node meanwhile must precede the construct.
        let point = match self.point {
            InsertPoint::After(previous) => {
                let mut nodes = self.region(region).nodes.iter().copied().skip_while(|&n| n != previous);
                nodes.nth(1).map_or(InsertPoint::End(region), InsertPoint::Before)
            }
            point => point,
        };
        let outside = OuterPosition { point, origin: self.origin, base: self.base };
        if self.open.is_empty() {
            self.base = region;
        }
        assert_eq!(
            self.region_at(self.depth()),
            region,
            "a construct is opened outside of the one that is being built"
        );
        self.open();
        let construct = self.open.len() - 1;
        for v in values {
            self.add_open_param(construct, v, None);
        }
        outside
    }

    /// Continues at the end of a region of the innermost construct. Returns its parameters.
    fn build(&mut self, region: usize, outside: &OuterPosition) -> Vec<Value> {
        let construct = self.open.len() - 1;
        self.select(construct, region);
        let region = self.region_at(construct + 1);
        self.at(InsertPoint::End(region), outside.origin);
        self.region(region).params.clone()
    }

    /// Continues at the position before the construct.
    fn leave(&mut self, outside: OuterPosition) -> &mut GraphBuilder {
        self.base = outside.base;
        self.at(outside.point, outside.origin)
    }
}

/// Returns the values that are not those outside.
fn changed(values: &[Value], outside: &[Option<Value>]) -> Vec<Value> {
    values.iter().zip(outside).filter(|(_, outside)| outside.is_none()).map(|(&v, _)| v).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Attrs;
    use crate::ir::builder::builds;
    use crate::ops::prim;
    use crate::{Graph, HostTensor};

    const NONE: fn() -> Attrs = Attrs::none;

    #[test]
    fn a_loop_captures_what_it_uses_from_outside() {
        builds(
            "graph @f(%x: f32[], %n: f32[]) -> f32[] { return %x }",
            |b| {
                let [x, n] = b.inputs()[..] else { panic!("there are two inputs") };
                let node = b.while_loop(
                    &[x],
                    |b, vars| b.prim(prim::LT, &[vars[0], n], NONE()),
                    |b, vars| {
                        let branch = |b: &mut GraphBuilder| vec![b.prim(prim::ADD, &[vars[0], x], NONE())];
                        let p = b.prim(prim::LT, &[x, n], NONE());
                        let node = b.cond(p, branch, |_| vec![n]);
                        b.node(node).results.clone()
                    },
                );
                let (root, result) = (b.root(), b.node(node).results[0]);
                b.region_mut(root).yields = vec![result];
            },
            "graph @f(%x: f32[], %n: f32[]) -> f32[] {
                %y = while (%s = %x | %n = %n, %x = %x) cond {
                    %p = lt %s, %n
                    yield %p
                } body {
                    %p = lt %x, %n
                    %t = cond %p, %s, %x, %n then (%s, %x, %n) {
                        %t = add %s, %x
                        yield %t
                    } else (%s, %x, %n) {
                        yield %n
                    }
                    yield %t
                }
                return %y
            }",
        );
    }

    #[test]
    fn a_construct_inside_a_region_captures_values_of_that_region() {
        let before = "graph @f(%x: f32[]) -> f32[] {
            %y = checkpoint (%x = %x) body { %y = tanh %x  yield %y }
            return %y
        }";
        let after = "graph @f(%x: f32[]) -> f32[] {
            %y = checkpoint (%x = %x) body {
                %y = tanh %x
                %z = checkpoint (%y = %y, %x = %x) body { %z = mul %y, %x  yield %z }
                yield %z
            }
            return %y
        }";
        let edit = |b: &mut GraphBuilder| {
            let region = b.call_of(b.region(b.root()).nodes[0]).forward();
            let (x, y) = (b.region(region).params[0], b.region(region).yields[0]);
            b.at(InsertPoint::End(region), Origin::UNKNOWN);
            let node = b.call(CallKind::Checkpoint, &[y], |b, args| vec![b.prim(prim::MUL, &[args[0], x], NONE())]);
            b.region_mut(region).yields = b.node(node).results.clone();
        };
        builds(before, edit, after);
    }

    #[test]
    fn a_node_that_is_added_outside_meanwhile_precedes_the_construct() {
        builds(
            "graph @f(%x: f32[]) -> f32[] { %y = exp %x  %z = neg %y  return %z }",
            |b| {
                let y = b.node(b.region(b.root()).nodes[0]).results[0];
                b.after(y);
                let node = b.call(CallKind::Checkpoint, &[], |b, _| {
                    let here = b.point();
                    let t = b.after(y).prim(prim::TANH, &[y], NONE());
                    vec![b.at(here, Origin::UNKNOWN).prim(prim::ABS, &[t], NONE())]
                });
                let after = b.prim(prim::NEG, &b.node(node).results.clone(), NONE());
                let root = b.root();
                b.region_mut(root).yields = vec![after];
            },
            "graph @f(%x: f32[]) -> f32[] {
                %y = exp %x
                %t = tanh %y
                %c = checkpoint (%t = %t) body { %a = abs %t  yield %a }
                %n = neg %c
                %z = neg %y
                return %n
            }",
        );
    }

    #[test]
    #[should_panic(expected = "outside of the one that is being built")]
    fn a_construct_is_opened_inside_the_one_that_is_being_built() {
        let mut b = GraphBuilder::new(Graph::new("f"));
        let root = b.root();
        b.call(CallKind::Checkpoint, &[], |b, _| {
            b.at(InsertPoint::End(root), Origin::UNKNOWN).call(CallKind::Checkpoint, &[], |_, _| vec![]);
            vec![]
        });
    }

    #[test]
    #[should_panic(expected = "is of a region that is not around")]
    fn a_value_of_a_closed_region_is_not_visible_outside() {
        let mut b = GraphBuilder::new(Graph::new("f"));
        let mut inner = None;
        b.call(CallKind::Checkpoint, &[], |b, _| {
            inner = Some(b.constant(HostTensor::scalar(1.0f32)));
            vec![]
        });
        b.prim(prim::NEG, &[inner.expect("the body ran")], NONE());
    }
}
