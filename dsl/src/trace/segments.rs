//! Loops in segments, which replace a loop whose gradient saves its state only at checkpoints.
//!
//! ```text
//! while cond(s) { s = body(s) }
//!
//! more = cond(s)
//! while more {
//!     (more, s) = checkpoint {
//!         j = 0
//!         while more and j < length { s = body(s); more = cond(s); j += 1 }
//!     }
//!     length += 1                      // unless it is given
//! }
//! ```
//!
//! The condition runs as often as in the loop itself, and in the same order with the body. A
//! gradient saves the operands of the checkpoint once for each segment. In the backward pass it
//! runs a segment again, this time saving the values that it needs. With n iterations and segments
//! of length k, it saves n / k states and the values of k iterations. With segments that grow by
//! one it saves at most sqrt(2n) + 1 of each, without knowing n.

use super::*;
use crate::ir::CallKind;
use crate::ops::{Prim, prim};

/// The lengths of the segments of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segments {
    /// 1, 2, 3, ..
    Growing,
    /// All of this length.
    Of(i32),
}

/// Requests segments for the innermost loop whose body is being traced.
pub(crate) fn segment_loop(segments: Segments, loc: Loc) {
    try_with(|t| {
        // A loop whose condition is being traced is not meant.
        let mut bodies = t.open.iter_mut().rev().filter(|c| c.current == 1).filter_map(|c| match &mut c.kind {
            OpenKind::While(open) => Some(open),
            OpenKind::Cond | OpenKind::Call { .. } => None,
        });
        match bodies.next() {
            Some(open) => {
                open.segments = Some(segments);
                Ok(())
            }
            None => Err(Diagnostic::new("checkpoints of a loop are requested outside a loop")
                .at(loc, "not in the body of a loop with a tensor condition")
                .help("call it in the body of the loop; a loop over host values is unrolled, so use `checkpoint(..)` there")),
        }
    });
}

impl Tracer {
    /// Replaces a `while`, the last node of its region, by a `while` that runs in segments. Returns
    /// its results.
    pub(super) fn in_segments(&mut self, node: Node, segments: Segments) -> Vec<Value> {
        let data = self.graph.node(node).clone();
        let (cond, body) = (self.graph.while_of(node).cond(), self.graph.while_of(node).body());
        let (region, n) = (data.region, data.results.len());
        assert_eq!(self.graph.region_mut(region).nodes.pop(), Some(node), "the loop is the last node");
        let state_params = self.graph.region(body).params.clone();
        let names: Vec<Option<&'static str>> = state_params.iter().map(|&p| self.graph.value(p).name).collect();
        let at = LoopOrigin(data.origin());
        let first = at.copy(self, cond, region, &data.operands)[0];
        let length = at.int(self, region, if let Segments::Of(n) = segments { n } else { 1 });

        // All regions have the parameters `more`, a number, the state and the captures. In the
        // inner loop the number counts the iterations of the segment, whose length is one more
        // capture.
        let operands: Vec<Value> = [first, length].into_iter().chain(data.operands.iter().copied()).collect();
        let [outer_cond, outer_body, segment, inner_cond, inner_body] = std::array::from_fn(|i| {
            let region = self.graph.add_region();
            let mut params = vec![(self.graph.ty(first).clone(), None), (Type::tensor(DType::I32, ()), None)];
            params.extend(state_params.iter().zip(&names).map(|(&p, &name)| (self.graph.ty(p).clone(), name)));
            if i >= 3 {
                params.push((Type::tensor(DType::I32, ()), None));
            }
            for (ty, name) in params {
                self.graph.add_param(region, ty, name);
            }
            region
        });
        let params = |t: &Tracer, region: Region| t.graph.region(region).params.clone();

        let of = params(self, inner_cond);
        let shorter = at.prim(self, inner_cond, prim::LT, &[of[1], of[of.len() - 1]]);
        let goes_on = at.prim(self, inner_cond, prim::AND, &[of[0], shorter]);
        self.graph.region_mut(inner_cond).yields = vec![goes_on];

        let of = params(self, inner_body);
        let (state, captures) = of[2..of.len() - 1].split_at(n);
        let next = at.copy(self, body, inner_body, &[state, captures].concat());
        let more = at.copy(self, cond, inner_body, &[&next, captures].concat())[0];
        let one = at.int(self, inner_body, 1);
        let count = at.prim(self, inner_body, prim::ADD, &[of[1], one]);
        self.graph.region_mut(inner_body).yields = [vec![more, count], next].concat();

        let of = params(self, segment);
        let zero = at.int(self, segment, 0);
        let mut given = of.clone();
        given[1] = zero;
        given.push(of[1]);
        let inner = at.owner(self, segment, data.op.clone(), &given, &[inner_cond, inner_body], n + 2);
        self.graph.region_mut(segment).yields = [&inner[..1], &inner[2..]].concat();

        let of = params(self, outer_cond);
        self.graph.region_mut(outer_cond).yields = vec![of[0]];

        let of = params(self, outer_body);
        let after = at.owner(self, outer_body, Op::Call(CallKind::Checkpoint), &of, &[segment], n + 1);
        let mut yields = vec![after[0], of[1]];
        if segments == Segments::Growing {
            let one = at.int(self, outer_body, 1);
            yields[1] = at.prim(self, outer_body, prim::ADD, &[of[1], one]);
        }
        yields.extend(&after[1..]);
        self.graph.region_mut(outer_body).yields = yields;

        let results = at.owner(self, region, data.op.clone(), &operands, &[outer_cond, outer_body], n + 2);
        results[2..].to_vec()
    }
}

/// Appends nodes to regions, all with the location and the device constraint of the loop.
struct LoopOrigin(Origin);

impl LoopOrigin {
    /// Returns the builder at the end of a region.
    fn at<'t>(&self, t: &'t mut Tracer, region: Region) -> &'t mut GraphBuilder {
        t.graph.at(InsertPoint::End(region), self.0)
    }

    fn int(&self, t: &mut Tracer, region: Region, x: i32) -> Value {
        self.at(t, region).constant(HostTensor::scalar(x))
    }

    /// Appends an operation on two scalars. Returns its result.
    fn prim(&self, t: &mut Tracer, region: Region, op: Prim, operands: &[Value]) -> Value {
        self.at(t, region).prim(op, operands, Attrs::none())
    }

    /// Appends a node with regions, whose first parameters determine the types and names of the
    /// results. A checkpoint has no result for its second parameter.
    fn owner(
        &self,
        t: &mut Tracer,
        region: Region,
        op: Op,
        operands: &[Value],
        regions: &[Region],
        n: usize,
    ) -> Vec<Value> {
        let skipped = usize::from(!matches!(op, Op::While { .. }));
        let first = *regions.first().expect("the node has regions");
        let params = t.graph.region(first).params.clone();
        let params: Vec<Value> = params[..1].iter().chain(&params[1 + skipped..]).take(n).copied().collect();
        let types: Vec<Type> = params.iter().map(|&p| t.graph.ty(p).clone()).collect();
        let node = self.at(t, region).insert(op, operands.to_vec(), types);
        t.graph.set_regions(node, regions.to_vec());
        let results = t.graph.node(node).results.clone();
        for (&r, p) in results.iter().zip(params) {
            t.graph.value_mut(r).name = t.graph.value(p).name;
        }
        results
    }

    /// Copies the nodes of a region, with values for its parameters. Returns the yields.
    fn copy(&self, t: &mut Tracer, from: Region, to: Region, given: &[Value]) -> Vec<Value> {
        let params = t.graph.region(from).params.iter().copied();
        let given = params.zip(given.iter().copied()).collect();
        t.graph.copy_region(from, to, given, &|_| false)
    }
}
