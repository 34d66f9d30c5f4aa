//! A report of the values that a graph saves for its gradients.
//!
//! Saved values are those pushed on stacks. A value is counted where it is pushed: per iteration
//! of the innermost loop or, outside all loops, per execution of the enclosing branch.

use crate::ir::{CallKind, Graph, Node, Op, Region, StackOp, Value};
use crate::ops::prim;
use crate::{Loc, TensorType};
use std::fmt;

/// The values that a graph saves for its gradients; see [`saved`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The constructs that save something, in program order.
    pub places: Vec<SavedSite>,
}

/// The values that a loop or a branch saves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedSite {
    /// The source location of the loop or branch.
    pub loc: Loc,
    /// The unit in which values are counted.
    pub each: SavedPer,
    /// Whether the values are saved while a checkpoint is recomputed. Such values are freed after
    /// the recomputation.
    pub again: bool,
    /// The saved values.
    pub values: Vec<SavedValue>,
}

/// The unit in which saved values are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedPer {
    /// Per iteration of a loop.
    Iteration,
    /// Per segment of a loop with [checkpoints](crate::checkpoint_loop).
    Segment,
    /// Per execution of the branch.
    Branch,
}

/// A saved value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedValue {
    /// The user's name for the value, if it has one.
    pub name: Option<&'static str>,
    /// The operation that computes the value, or `None` for a loop variable.
    pub op: Option<&'static str>,
    /// The type of the value.
    pub ty: TensorType,
    /// The source location of the value.
    pub loc: Loc,
    /// Whether the value is saved only in iterations that take a branch.
    pub in_branch: bool,
}

impl SavedValue {
    /// Returns the size in bytes, if the extents are known.
    pub fn bytes(&self) -> Option<usize> {
        Some(self.ty.shape.size()? * self.ty.dtype.size())
    }
}

impl SavedSite {
    /// Returns the bytes per iteration, segment or taken branch, counting only known extents.
    ///
    /// The sum is an upper bound if branches inside save values, too.
    pub fn bytes(&self) -> usize {
        self.values.iter().filter_map(SavedValue::bytes).sum()
    }
}

/// Reports the values that a graph saves for its gradients.
///
/// Passes remove stacks that nothing pops, so pass the graph as it runs.
///
/// ```
/// use anabranch::{Graph, dsl::autodiff::saved};
///
/// let text = "
///     graph @f(%x: f32[8], %n: i32[]) -> f32[8] {
///         %0 = stack_new : stack<f32[8]>
///         %y, %s = while (%y = %x, %s = %0 | %n = %n) cond {
///             %zero = constant 0 : i32[]
///             %more = lt %zero, %n
///             yield %more
///         } body {
///             %t = push %s, %y
///             %e = exp %y
///             yield %e, %t
///         }
///         return %y
///     }";
/// let saved = saved(&Graph::parse(text, "f.ir").unwrap());
/// assert_eq!(saved.places[0].bytes(), 32);
/// assert!(saved.to_string().contains("32 bytes in each iteration"));
/// ```
#[doc(hidden)]
pub fn saved(graph: &Graph) -> Saved {
    let mut walk = SavedWalk { graph, places: Vec::new() };
    walk.region(graph.root(), &WalkContext::default());
    let places = walk.places.into_iter().map(|(_, place)| place).collect();
    Saved { places }
}

/// The surroundings of a region.
#[derive(Clone, Copy, Default)]
struct WalkContext {
    /// The construct to which saved values are attributed.
    of: Option<(Node, SavedPer)>,
    again: bool,
    in_branch: bool,
}

struct SavedWalk<'g> {
    graph: &'g Graph,
    places: Vec<(Node, SavedSite)>,
}

impl SavedWalk<'_> {
    fn region(&mut self, region: Region, around: &WalkContext) {
        for &node in &self.graph.region(region).nodes {
            let data = self.graph.node(node);
            let mut inside = *around;
            match data.op {
                Op::Stack(StackOp::Push) => self.pushed(data.operands[1], data.loc, around),
                Op::While { .. } => {
                    let each = if self.has_segments(node) { SavedPer::Segment } else { SavedPer::Iteration };
                    (inside.of, inside.in_branch) = (Some((node, each)), false);
                }
                Op::Cond if around.of.is_some() => inside.in_branch = true,
                Op::Cond => inside.of = Some((node, SavedPer::Branch)),
                Op::Call(CallKind::Recompute) => inside.again = true,
                _ => {}
            }
            for &inner in &data.regions {
                self.region(inner, &inside);
            }
        }
    }

    fn pushed(&mut self, value: Value, loc: Loc, around: &WalkContext) {
        let g = self.graph;
        let Some((node, each)) = around.of else { return };
        // Indices are saved after a check.
        let checked = g.producer(value).map(|n| g.node(n)).filter(|data| data.op.is(prim::CHECK_INDEX));
        let value = checked.map_or(value, |check| check.operands[0]);
        let made = [g.loc(value), loc, g.node(node).loc];
        let saved = SavedValue {
            name: g.value(value).name,
            op: g.producer(value).map(|n| g.node(n).op.name()),
            ty: g.ty(value).element().clone(),
            loc: made.into_iter().find(|l| l.is_known()).unwrap_or(Loc::UNKNOWN),
            in_branch: around.in_branch,
        };
        match self.places.iter_mut().find(|(n, _)| *n == node) {
            Some((_, place)) => place.values.push(saved),
            None => {
                let place = SavedSite { loc: g.node(node).loc, each, again: around.again, values: vec![saved] };
                self.places.push((node, place));
            }
        }
    }

    /// Returns whether a loop iterates over the segments of another loop, which has the same source
    /// location.
    fn has_segments(&self, node: Node) -> bool {
        let g = self.graph;
        let is_loop = |n: &Node| g.as_while(*n).is_some() && g.node(*n).loc == g.node(node).loc;
        let mut inside = g.region(g.while_of(node).body()).nodes.iter();
        inside.any(|&call| {
            g.node(call).op == Op::Call(CallKind::Checkpoint)
                && g.region(g.call_of(call).forward()).nodes.iter().any(is_loop)
        })
    }
}

impl fmt::Display for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.places.is_empty() {
            return writeln!(f, "  no loop or branch saves anything for a gradient");
        }
        writeln!(f, "  saved for gradients")?;
        for place in &self.places {
            let (what, each) = match place.each {
                SavedPer::Iteration => ("loop", "in each iteration"),
                SavedPer::Segment => ("loop", "in each segment, whose iterations are rerun"),
                SavedPer::Branch => ("branch", "if it is taken"),
            };
            let unknown = place.values.iter().any(|v| v.bytes().is_none());
            let more = if unknown { " and a data-dependent amount" } else { "" };
            let at_most = if place.values.iter().any(|v| v.in_branch) { "at most " } else { "" };
            let again = if place.again { ", while a checkpoint is recomputed" } else { "" };
            writeln!(f, "    {what} at {}: {at_most}{} bytes{more} {each}{again}", place.loc, place.bytes())?;
            for value in &place.values {
                writeln!(f, "      {value}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for SavedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() {
            Some(1) => write!(f, "1 byte: ")?,
            Some(bytes) => write!(f, "{bytes} bytes: ")?,
            None => write!(f, "? bytes: ")?,
        }
        match (self.name, self.op) {
            (Some(name), _) => write!(f, "`{name}`")?,
            (None, Some(op)) => write!(f, "the result of {op}")?,
            (None, None) => write!(f, "a loop variable")?,
        }
        write!(f, ", {}", self.ty)?;
        if self.loc.is_known() {
            write!(f, ", of {}", self.loc)?;
        }
        if self.in_branch { write!(f, ", if its branch is taken") } else { Ok(()) }
    }
}
