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
use crate::ops::prim;

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
        let graph = &t.graph;
        let mut bodies = t.open.iter_mut().enumerate().rev().filter_map(|(i, c)| match &mut c.kind {
            OpenKind::While(open) if graph.opened(i).current == 1 => Some(open),
            _ => None,
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
        let graph = &mut self.graph;
        let data = graph.node(node).clone();
        assert_eq!(graph.region_mut(data.region).nodes.pop(), Some(node), "the loop is the last node");
        let (cond, body) = (graph.while_of(node).cond(), graph.while_of(node).body());
        let (state, captures) = data.operands.split_at(data.results.len());
        let (n, op) = (state.len(), &data.op);
        let names: Vec<_> = graph.region(body).params[..n].iter().map(|&p| graph.value(p).name).collect();
        let name = |b: &mut GraphBuilder, state: &[Value]| {
            state.iter().zip(&names).for_each(|(&v, &name)| b.value_mut(v).name = name);
        };

        let b = graph.at(InsertPoint::End(data.region), data.origin());
        let first = copy(b, cond, &data.operands)[0];
        let length = int(b, if let Segments::Of(n) = segments { n } else { 1 });
        // The loops carry `more`, a number and the state. In the inner loop the number counts the
        // iterations of the segment.
        let outer = b.while_loop(
            &[&[first, length], state].concat(),
            |_, vars| vars[0],
            |b, vars| {
                name(b, &vars[2..]);
                let segment = b.call(CallKind::Checkpoint, &[vars, captures].concat(), |b, given| {
                    let (length, captures) = (given[1], &given[n + 2..]);
                    let zero = int(b, 0);
                    let inner = b.while_loop(
                        &[&[given[0], zero], &given[2..n + 2]].concat(),
                        |b, vars| {
                            // The length is the last capture, after those of the loop.
                            b.capture_all(captures);
                            let shorter = b.prim(prim::LT, &[vars[1], length], Attrs::none());
                            b.prim(prim::AND, &[vars[0], shorter], Attrs::none())
                        },
                        |b, vars| {
                            name(b, &vars[2..]);
                            let captures = b.capture_all(captures);
                            let next = copy(b, body, &[&vars[2..], &captures].concat());
                            let more = copy(b, cond, &[&next[..], &captures].concat())[0];
                            let one = int(b, 1);
                            let count = b.prim(prim::ADD, &[vars[1], one], Attrs::none());
                            [vec![more, count], next].concat()
                        },
                    );
                    b.node_mut(inner).op = op.clone();
                    let after = b.node(inner).results.clone();
                    name(b, &after[2..]);
                    [&after[..1], &after[2..]].concat()
                });
                let after = b.node(segment).results.clone();
                name(b, &after[1..]);
                let mut length = vars[1];
                if segments == Segments::Growing {
                    let one = int(b, 1);
                    length = b.prim(prim::ADD, &[length, one], Attrs::none());
                }
                [&[after[0], length], &after[1..]].concat()
            },
        );
        b.node_mut(outer).op = op.clone();
        let after = b.node(outer).results[2..].to_vec();
        name(b, &after);
        after
    }
}

fn int(b: &mut GraphBuilder, x: i32) -> Value {
    b.constant(HostTensor::scalar(x))
}

/// Copies the nodes of a region to the end of the current region, with values for its parameters.
/// Returns what the region yields.
fn copy(b: &mut GraphBuilder, from: Region, given: &[Value]) -> Vec<Value> {
    let given = b.region(from).params.iter().copied().zip(given.iter().copied()).collect();
    b.copy_region(from, b.region_here(), given, &|_| false)
}
