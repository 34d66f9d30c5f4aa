//! Reverse-mode differentiation: a graph transformation.
//!
//! [`differentiate`] appends nodes that compute gradients to a graph; a trace appends them to the
//! graph that it is recording. The nodes of a gradient are ordinary, so the result can be
//! differentiated again, and engines do not distinguish them from others. Gradient rules are
//! defined with the operations ([`Grad`]) and use only the public methods of [`GradValue`].
//!
//! **The builder.** All nodes are added through one [`GraphBuilder`], which the values of rules
//! borrow ([`InGraph`]). It is borrowed for one step at a time: no borrow outlives a call of a
//! method of a value. An error ends the differentiation by unwinding to its start.
//!
//! **Control flow** (Yu et al., EuroSys 2018, §5, on structured regions). The gradient of a `cond`
//! is a `cond` on the same predicate, whose branches contain the backward pass of each branch. The
//! gradient of a `while` is a `while` that counts the forward iterations down and runs the body's
//! backward pass. The backward loop carries the cotangents of the loop variables and sums those of
//! captures.
//!
//! **Saved values.** A backward region may need values of its forward region. Captures are read
//! from their source. Constants, views and cheap operations on captures are recomputed.
//! Loop-invariant values are exported once. Only the rest is saved: the forward construct gets an
//! additional loop variable, a stack, to which every execution of the region pushes and from which
//! the backward region pops in reverse order. The stack is carried through all enclosing
//! constructs. So nesting needs no stacks of stacks, and a branch that is not taken saves nothing.
//! Values that no rule asks for are not saved ([`GradNode::x`]). A value requested twice, even by a
//! second gradient, is saved once (`AddedValues`).
//!
//! **Lists.** The cotangent of a list is a list of the same type and length, in which unwritten
//! elements are zero. A construct that captures a list takes its cotangent as an operand and
//! returns it. Reads inside the construct add to that cotangent in place, so the gradient of a loop
//! that reads each element once takes time linear in their number. Rules only need indices or the
//! length of a list. A list is saved only if a checkpoint in a loop reads elements of a list from
//! before the checkpoint; it is then saved as one tensor and a flag per element.
//!
//! **Parts of tensors.** In a forward construct, an operation that reads elements of a tensor adds
//! to the cotangent that the tensor has so far ([`GradNode::cotangent_so_far`]). Backward loops,
//! branches and recomputations take the cotangent of such a tensor as an operand and return it, as
//! that of a list (`threaded.rs`). So the cost of an iteration does not depend on the size of the
//! tensor. Elements of a tensor from outside all forward regions are not saved: the backward pass
//! reads them again, at indices that the forward region has checked and saved.
//!
//! **Calls.** A checkpoint saves its operands. Its gradient is one region with a copy of its nodes
//! and their backward pass (`calls.rs`). For a function with a custom gradient, the nodes of its
//! second region are copied into the backward pass. A loop with checkpoints is a loop over
//! segments, each in a checkpoint; the tracer builds it when the loop closes.
//!
//! **Devices.** A node made for a forward node inherits its device constraint
//! ([`DeviceConstraint`](crate::DeviceConstraint)), so it runs on the same device. If there is
//! none, the node gets the constraint of the scope in which the gradient is taken. The cotangents
//! of a value are added on the device of the value, so those of a weight do not leave its device.
//!
//! **Levels.** Level 0 consists of the regions that are open when the gradient is taken, whose
//! values need no saving. Level `k` is the `k`-th nested forward region, paired with the backward
//! region being traced for it.

mod activity;
mod added;
mod backward;
mod calls;
mod earlier;
mod lists;
mod memory;
mod missing;
mod saved;
mod siblings;
mod sweep;
mod threaded;

use crate::diagnostic::{Abort, abort};
use crate::ir::{
    Attrs, Graph, GraphBuilder, InsertPoint, ListOp, Node, NodeData, Op, Origin, Region, StackOp, Value, ValueDef,
};
use crate::ops::{ForwardNode, Grad, GradNode, GradValue, InGraph};
use crate::{Diagnostic, HostTensor, Loc, Result, Type};
use activity::Active;
pub(crate) use activity::active_in;
pub(crate) use added::AddedValues;
use backward::BackwardLoop;
pub(crate) use calls::{OF_CHECKPOINT, check_repeatable};
pub use memory::{Saved, SavedPer, SavedSite, SavedValue, saved};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Appends the gradients of a graph's values to it: for each value of `wrt` the gradient of the sum
/// of `sum(dy * y)` over all pairs `(y, dy)` of `cotangents`. Returns the gradients.
///
/// All values are of the outermost region, and so are the new nodes, at its end. A node that
/// belongs to no forward node has the origin `at`.
///
/// # Errors
/// Fails if an operation on a path from some `y` to `wrt` has no gradient, or if zeros are needed
/// whose extents are known only when the graph runs. The graph then has some nodes that nothing
/// uses.
///
/// # Panics
/// Panics if a value is not of the outermost region.
///
/// ```
/// use anabranch::Graph;
/// use anabranch::extend::{GraphBuilder, Origin, differentiate};
///
/// let text = "graph @f(%x: f32[], %dy: f32[]) -> f32[] { %y = sin %x  return %y }";
/// let mut graph = Graph::parse(text, "f.ir").expect("the text is right");
/// let (x, dy, y) = (graph.inputs()[0], graph.inputs()[1], graph.outputs()[0]);
/// let dx = differentiate(&mut graph, &[(y, dy)], &[x], Origin::UNKNOWN)?;
/// GraphBuilder::edit(&mut graph, |graph| {
///     graph.replace(y, dx[0]);
///     graph.update_yields(graph.root());
/// });
/// let expected = "graph @f(%x: f32[], %dy: f32[]) -> f32[] {
///     %y = sin %x  %0 = cos %x  %1 = mul %dy, %0  return %1
/// }";
/// assert!(graph.same_structure(&Graph::parse(expected, "f.ir").expect("the text is right")));
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub fn differentiate(
    graph: &mut Graph,
    cotangents: &[(Value, Value)],
    wrt: &[Value],
    at: Origin,
) -> Result<Vec<Value>> {
    let given = cotangents.iter().flat_map(|&(y, dy)| [y, dy]).chain(wrt.iter().copied());
    for v in given {
        assert_eq!(graph.region_of(v), graph.root(), "{v} is not of the outermost region");
    }
    GraphBuilder::edit(graph, |builder| differentiate_in(builder, &mut AddedValues::default(), cotangents, wrt, at))
}

/// Appends gradients like [`differentiate`] to the innermost region that is being built. The values
/// are of the regions that are being built.
///
/// `added` are the values that earlier gradients have added to the graph.
pub(crate) fn differentiate_in(
    builder: &mut GraphBuilder,
    added: &mut AddedValues,
    cotangents: &[(Value, Value)],
    wrt: &[Value],
    at: Origin,
) -> Result<Vec<Value>> {
    let losses: Vec<Value> = cotangents.iter().map(|&(y, _)| y).collect();
    let here = builder.depth();
    if here > 0 {
        earlier::remember(builder, added, losses.iter().copied(), wrt, at.loc);
    }
    siblings::check(builder, &losses, wrt, at.loc)?;
    let active = Active(active_in(builder, wrt));
    let region = builder.region_at(here);
    builder.at(InsertPoint::End(region), at);

    let empty = GraphBuilder::new(Graph::new(""));
    let (cell, values) = (RefCell::new(std::mem::replace(builder, empty)), RefCell::new(std::mem::take(added)));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let root = Level::new(Region::from_index(0), here, None);
        let context = InGraph { builder: &cell };
        let sweep = Sweep::new(context, &values, active, wrt.iter().copied().collect(), at, root);
        sweep.gradients(cotangents, wrt, here)
    }));
    *builder = cell.into_inner();
    *added = values.into_inner();
    outcome.or_else(|payload| match payload.downcast::<Abort>() {
        // An operation that a rule uses wrongly is at the node whose rule it is.
        Ok(error) => Err(error.0.or_at(builder.next_origin().loc)),
        Err(panic) => resume_unwind(panic),
    })
}

/// The cotangents collected for the values of one forward region.
type Cotangents<'g> = FxHashMap<Value, GradValue<'g>>;

/// A forward region and the backward region that is being traced for it.
struct Level<'g> {
    fwd: Region,
    /// The depth of the backward region.
    depth: usize,
    /// Forward values as seen by the backward region.
    map: FxHashMap<Value, GradValue<'g>>,
    /// The stacks carried through the backward region, in order of their addition.
    threads: Vec<ThreadedStack<'g>>,
    /// The index of the stack of each saved value.
    thread_of: FxHashMap<Value, usize>,
    /// The backward loop, if this is one.
    bwd: Option<BackwardLoop>,
}

impl<'g> Level<'g> {
    fn new(fwd: Region, depth: usize, bwd: Option<BackwardLoop>) -> Level<'g> {
        Level { fwd, depth, map: FxHashMap::default(), threads: Vec::new(), thread_of: FxHashMap::default(), bwd }
    }

    fn thread(&mut self, saved: Value) -> Option<&mut ThreadedStack<'g>> {
        let &i = self.thread_of.get(&saved)?;
        Some(&mut self.threads[i])
    }
}

/// A stack of saved values carried through a backward region.
#[derive(Clone, Copy)]
struct ThreadedStack<'g> {
    /// The forward value that was saved.
    saved: Value,
    /// The stack outside the backward construct.
    outer: GradValue<'g>,
    /// The current state of the stack.
    current: GradValue<'g>,
}

/// The state of one gradient.
struct Sweep<'g> {
    context: InGraph<'g>,
    added: &'g RefCell<AddedValues>,
    /// The values that depend differentiably on `wrt`.
    active: Active,
    /// Whether the region of level 0 is inside of a forward construct, which this state recomputes.
    is_inside: bool,
    levels: RefCell<Vec<Level<'g>>>,
    /// The node through which the first cotangent of each value came.
    came_from: RefCell<FxHashMap<Value, Node>>,
    wrt: FxHashSet<Value>,
    /// The origin of nodes that belong to no forward node. Its device constraint is that of the
    /// nodes of forward nodes without one.
    at: Origin,
    /// The loop-invariant values of each region queried so far.
    invariant: RefCell<FxHashMap<Region, FxHashSet<Value>>>,
}

impl<'g> Sweep<'g> {
    fn new(
        context: InGraph<'g>,
        added: &'g RefCell<AddedValues>,
        active: Active,
        wrt: FxHashSet<Value>,
        at: Origin,
        root: Level<'g>,
    ) -> Sweep<'g> {
        Sweep {
            context,
            added,
            active,
            is_inside: false,
            levels: RefCell::new(vec![root]),
            came_from: RefCell::default(),
            wrt,
            at,
            invariant: RefCell::default(),
        }
    }

    /// Returns the gradients. `here` is the depth of the innermost region that is being built.
    fn gradients(&self, cotangents: &[(Value, Value)], wrt: &[Value], here: usize) -> Vec<Value> {
        let mut cot = Cotangents::default();
        for &(y, dy) in cotangents {
            self.add(&mut cot, y, self.value(dy), None);
        }
        // Visits the open regions, innermost first. Cotangents of their parameters propagate
        // outwards.
        for depth in (0..=here).rev() {
            let region = self.graph(|g| g.region_at(depth));
            self.region(0, region, &mut cot);
            if depth > 0 {
                self.leave_open(depth, &mut cot);
            }
        }
        let gradient = |v: &Value| cot.get(v).copied().unwrap_or_else(|| self.value(*v).zeros_like());
        wrt.iter().map(|v| gradient(v).value()).collect()
    }
}
