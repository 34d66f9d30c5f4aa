//! Reverse-mode differentiation: a graph transformation that runs during tracing.
//!
//! [`gradients`] appends nodes that compute the gradient of a scalar to the graph being traced.
//! The nodes of a gradient are ordinary, so the result can be differentiated again, and engines do
//! not distinguish them from others. Gradient rules are defined with the operations ([`Grad`]) and
//! use only the public methods of [`AnyValue`].
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
//! **Calls.** A checkpoint saves its operands. Its gradient is one region with a copy of its nodes
//! and their backward pass (`calls.rs`). For a function with a custom gradient, the nodes of its
//! second region are copied into the backward pass. A loop with checkpoints is a loop over
//! segments, each in a checkpoint; the tracer builds it when the loop closes.
//!
//! **Devices.** A node made for a forward node inherits its device constraint
//! ([`DeviceConstraint`]), so it runs on the same device. If there is none, the node gets the
//! constraint of the scope in which the gradient is taken.
//!
//! **Levels.** Level 0 consists of the regions that are open when the gradient is taken, whose
//! values need no saving. Level `k` is the `k`-th nested forward region, paired with the backward
//! region being traced for it.

mod activity;
mod added;
mod calls;
mod checkpoint;
mod custom;
mod earlier;
mod lists;
mod memory;
mod missing;
mod saved;
mod siblings;
mod sweep;
mod unreached;

use crate::ir::{Attrs, GraphBuilder, ListOp, Node, NodeData, Op, Region, StackOp, Value, ValueDef};
use crate::ops::Grad;
use crate::trace::{self, AnyValue, CondTrace, WhileTrace};
use crate::{AnyVar, DeviceConstraint, Diagnostic, Float, HostTensor, Loc, Tensor, TensorType, Type, device};
use activity::active_in;
pub(crate) use added::AddedValues;
pub use checkpoint::{checkpoint, checkpoint_loop, checkpoint_loop_every};
pub use custom::custom_gradient;
pub use memory::{Saved, SavedPer, SavedSite, SavedValue, saved};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::RefCell;

/// The node for which a gradient rule is evaluated.
pub struct GradNode<'a> {
    sweep: &'a Sweep,
    level: usize,
    data: &'a NodeData,
    attrs: &'a Attrs,
    types: Vec<TensorType>,
    result_type: TensorType,
    dy: AnyValue,
}

impl GradNode<'_> {
    /// Returns the cotangent of the result.
    pub fn dy(&self) -> AnyValue {
        self.dy
    }

    /// Returns operand `i`, for use in the gradient.
    ///
    /// If the node is in a loop, this makes the loop save the operand, so request only what is
    /// needed.
    pub fn x(&self, i: usize) -> AnyValue {
        self.sweep.forward_value(self.level, self.data.operands[i])
    }

    /// Returns a tensor of the shape of operand `i`, whose elements must not be used.
    ///
    /// A loop saves at most its extents.
    pub fn like(&self, i: usize) -> AnyValue {
        self.sweep.map_like(self.level, self.data.operands[i])
    }

    /// Returns the result, for use in the gradient. The result is saved like an operand.
    pub fn y(&self) -> AnyValue {
        self.sweep.forward_value(self.level, self.data.results[0])
    }

    /// Returns the type of operand `i`.
    pub fn ty(&self, i: usize) -> &TensorType {
        &self.types[i]
    }

    /// Returns the type of the result.
    pub fn result_ty(&self) -> &TensorType {
        &self.result_type
    }

    /// Returns the number of operands.
    pub fn n_operands(&self) -> usize {
        self.data.operands.len()
    }

    /// Returns the static arguments of the operation.
    pub fn attrs(&self) -> &Attrs {
        self.attrs
    }

    /// Returns whether the cotangent of operand `i` is needed.
    ///
    /// A rule may return `None` for it otherwise.
    pub fn needs(&self, i: usize) -> bool {
        self.sweep.active.contains(&self.data.operands[i])
    }
}

/// Returns the gradients of a scalar with respect to tensors.
///
/// `wrt` is a tensor, or a tuple, array or vector of tensors. The result has the same structure and
/// the same shapes. The gradient with respect to a tensor on which `loss` does not depend is zero.
///
/// # Errors
/// Aborts the trace if
///
/// - `loss` is not a scalar;
/// - an operation on the path from the loss to `wrt` has no gradient rule;
/// - the path goes through the loop variables of a loop whose body is being traced;
/// - the path is inside a branch or loop that computes both `loss` and `wrt`;
/// - zeros are needed whose extents are known only at run time.
///
/// ```
/// use anabranch::prelude::*;
///
/// let dx = eval(|| {
///     let x = scalar(3.0f32);
///     gradients(x * x * x, x)
/// })?;
/// assert_eq!(dx, 27.0);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn gradients<T: Float, W: Wrt>(loss: Tensor<T>, wrt: W) -> W {
    let loc = Loc::caller();
    let mut tensors = Vec::new();
    wrt.tensors(&mut tensors);
    let grads = scalar_gradients(loss.untyped(), &tensors, loc);
    wrt.rebuild(&mut grads.into_iter())
}

/// Returns the gradients of a scalar with respect to variables.
///
/// Each is taken with respect to the latest value of the variable on which the loss depends.
#[track_caller]
pub fn var_gradients<T: Float>(loss: Tensor<T>, vars: &[AnyVar]) -> Vec<AnyValue> {
    let loc = Loc::caller();
    let wrt = values_it_depends_on(loss.untyped(), vars);
    scalar_gradients(loss.untyped(), &wrt, loc)
}

/// [`var_gradients`] with respect to the trained variables of a model, of which at least one must
/// get a gradient.
#[track_caller]
pub(crate) fn trained_gradients<T: Float>(loss: Tensor<T>, vars: &[AnyVar]) -> Vec<AnyValue> {
    let loc = Loc::caller();
    check_scalar(loss.untyped(), loc);
    let wrt = values_it_depends_on(loss.untyped(), vars);
    unreached::check(loss.untyped(), vars, &wrt, loc);
    scalar_gradients(loss.untyped(), &wrt, loc)
}

/// For each variable the latest of its values on which `loss` depends, or its present value if
/// there is none.
#[track_caller]
fn values_it_depends_on(loss: AnyValue, vars: &[AnyVar]) -> Vec<AnyValue> {
    let latest: Vec<AnyValue> = vars.iter().map(trace::read_var).collect();
    let versions: Vec<Vec<AnyValue>> = vars
        .iter()
        .map(|var| {
            trace::with(|t| {
                let id = t.known_var(var).expect("the variable was just read");
                t.visible_versions(id).into_iter().map(|v| t.any(v)).collect()
            })
        })
        .collect();
    // A later value may have been assigned since the loss was computed: look back for the value
    // that the loss was computed from.
    let depends = dependencies(loss);
    let used = |versions: &[AnyValue]| versions.iter().copied().find(|v| depends.contains(&v.value()));
    latest.iter().zip(&versions).map(|(&now, versions)| used(versions).unwrap_or(now)).collect()
}

/// Returns vector-Jacobian products: the gradient of the sum of `sum(dy * y)` over all pairs, for
/// every tensor of `wrt`.
///
/// `y` need not be scalar.
#[track_caller]
pub fn vjp(outputs: &[(AnyValue, AnyValue)], wrt: &[AnyValue]) -> Vec<AnyValue> {
    differentiate(outputs, wrt, Loc::caller())
}

/// Values with respect to which gradients can be taken.
pub trait Wrt {
    /// Appends all tensors.
    fn tensors(&self, to: &mut Vec<AnyValue>);
    /// Returns the same structure with other tensors.
    fn rebuild(&self, from: &mut dyn Iterator<Item = AnyValue>) -> Self;
}

impl<T: Float> Wrt for Tensor<T> {
    fn tensors(&self, to: &mut Vec<AnyValue>) {
        to.push(self.untyped());
    }
    fn rebuild(&self, from: &mut dyn Iterator<Item = AnyValue>) -> Self {
        Tensor::from_any(from.next().expect("there is one gradient for each tensor"))
    }
}
impl<W: Wrt, const N: usize> Wrt for [W; N] {
    fn tensors(&self, to: &mut Vec<AnyValue>) {
        self.iter().for_each(|w| w.tensors(to));
    }
    fn rebuild(&self, from: &mut dyn Iterator<Item = AnyValue>) -> Self {
        std::array::from_fn(|i| self[i].rebuild(from))
    }
}
impl<W: Wrt> Wrt for Vec<W> {
    fn tensors(&self, to: &mut Vec<AnyValue>) {
        self.iter().for_each(|w| w.tensors(to));
    }
    fn rebuild(&self, from: &mut dyn Iterator<Item = AnyValue>) -> Self {
        self.iter().map(|w| w.rebuild(from)).collect()
    }
}
macro_rules! wrt_tuples {
    ($($($w:ident $i:tt),+;)*) => {$(
        impl<$($w: Wrt),+> Wrt for ($($w,)+) {
            fn tensors(&self, to: &mut Vec<AnyValue>) {
                $(self.$i.tensors(to);)+
            }
            fn rebuild(&self, from: &mut dyn Iterator<Item = AnyValue>) -> Self {
                ($(self.$i.rebuild(from),)+)
            }
        }
    )*};
}
wrt_tuples! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
}

fn check_scalar(loss: AnyValue, loc: Loc) {
    let ty = loss.tensor_type();
    if ty.rank() != 0 || !ty.dtype.is_float() {
        trace::fail(
            Diagnostic::new(format!("gradients: the loss is {ty}, not a scalar float"))
                .at(loc, "differentiated here")
                .help("reduce it first, with `.sum()` or `.mean()`"),
        );
    }
}

fn scalar_gradients(loss: AnyValue, wrt: &[AnyValue], loc: Loc) -> Vec<AnyValue> {
    check_scalar(loss, loc);
    let one = trace::at_loc(loc, || trace::constant(HostTensor::scalar(1.0f64)).cast(loss.dtype()));
    differentiate(&[(loss, one)], wrt, loc)
}

/// Returns all values of the open regions on which `of` depends.
fn dependencies(of: AnyValue) -> FxHashSet<Value> {
    trace::with(|t| {
        let mut seen = FxHashSet::default();
        let mut todo = vec![of.value()];
        while let Some(v) = todo.pop() {
            if !seen.insert(v) {
                continue;
            }
            match t.graph.value(v).def {
                ValueDef::Result(node, _) => todo.extend(&t.graph.node(node).operands),
                ValueDef::Param(..) => todo.extend(t.graph.outside(v)),
            }
        }
        seen
    })
}

/// The cotangents collected for the values of one forward region.
type Cotangents = FxHashMap<Value, AnyValue>;

/// A forward region and the backward region that is being traced for it.
struct Level {
    fwd: Region,
    /// The depth of the backward region.
    depth: usize,
    /// Forward values as seen by the backward region.
    map: FxHashMap<Value, AnyValue>,
    /// The stacks carried through the backward region, in order of their addition.
    threads: Vec<ThreadedStack>,
    /// The index of the stack of each saved value.
    thread_of: FxHashMap<Value, usize>,
    /// The trace of the backward loop, if this is one.
    bwd: Option<WhileTrace>,
}

impl Level {
    fn new(fwd: Region, depth: usize, bwd: Option<WhileTrace>) -> Level {
        Level { fwd, depth, map: FxHashMap::default(), threads: Vec::new(), thread_of: FxHashMap::default(), bwd }
    }

    fn thread(&mut self, saved: Value) -> Option<&mut ThreadedStack> {
        let &i = self.thread_of.get(&saved)?;
        Some(&mut self.threads[i])
    }
}

/// A stack of saved values carried through a backward region.
#[derive(Clone, Copy)]
struct ThreadedStack {
    /// The forward value that was saved.
    saved: Value,
    /// The stack outside the backward construct.
    outer: AnyValue,
    /// The current state of the stack.
    current: AnyValue,
}

/// The state of one gradient.
struct Sweep {
    /// The values that depend differentiably on `wrt`.
    active: FxHashSet<Value>,
    levels: RefCell<Vec<Level>>,
    /// The node through which the first cotangent of each value came.
    came_from: RefCell<FxHashMap<Value, Node>>,
    wrt: FxHashSet<Value>,
    /// The device scope of the gradient call, used if a forward node has no constraint.
    on: Option<DeviceConstraint>,
    /// The loop-invariant values of each region queried so far.
    invariant: RefCell<FxHashMap<Region, FxHashSet<Value>>>,
}

impl Sweep {
    fn new(active: FxHashSet<Value>, wrt: FxHashSet<Value>, on: Option<DeviceConstraint>, root: Level) -> Sweep {
        Sweep {
            active,
            levels: RefCell::new(vec![root]),
            came_from: RefCell::default(),
            wrt,
            on,
            invariant: RefCell::default(),
        }
    }
}

fn differentiate(outputs: &[(AnyValue, AnyValue)], wrt: &[AnyValue], loc: Loc) -> Vec<AnyValue> {
    // Resolves a value in the current region.
    let see = |a: AnyValue| {
        trace::try_with(|t| {
            let v = t.resolve_for_gradient(a, loc)?;
            Ok(v)
        })
    };
    let wrt_values: Vec<Value> = wrt.iter().map(|&w| see(w)).collect();
    let seeds: Vec<(Value, AnyValue)> = outputs.iter().map(|&(y, dy)| (see(y), dy)).collect();

    let losses: Vec<Value> = seeds.iter().map(|&(y, _)| y).collect();

    let here = trace::depth();
    if here > 0 {
        earlier::remember(losses.iter().copied(), &wrt_values, loc);
    }
    trace::try_with(|t| siblings::check(&t.graph, &losses, &wrt_values, loc));
    let active = trace::with(|t| active_in(&t.graph, &wrt_values));
    let root = Level::new(Region::from_index(0), here, None);
    let sweep = Sweep::new(active, wrt_values.iter().copied().collect(), device::scope(), root);
    let mut cot = Cotangents::default();
    for (y, dy) in seeds {
        sweep.add(&mut cot, y, dy, None);
    }
    // Visits the open regions, innermost first. Cotangents of their parameters propagate outwards.
    for depth in (0..=here).rev() {
        let region = trace::with(|t| t.graph.region_at(depth));
        sweep.region(0, region, &mut cot);
        if depth > 0 {
            sweep.leave_open(depth, &mut cot, loc);
        }
    }
    let gradients = wrt_values.iter().map(|v| cot.get(v).copied());
    let zeros = |v: Value| trace::at_loc(loc, || zeros_like(trace::with(|t| t.any(v))));
    gradients.zip(&wrt_values).map(|(g, &v)| g.unwrap_or_else(|| zeros(v))).collect()
}

/// Returns zeros of the type of a value that is visible here.
fn zeros_like(like: AnyValue) -> AnyValue {
    match like.ty() {
        Type::Tensor(ty) => {
            let zero = trace::constant(HostTensor::zeros(ty.dtype, vec![]));
            if ty.shape.is_definite() { zero.broadcast_to(ty.shape) } else { zero.broadcast_like(like) }
        }
        Type::Stack(_) => stack_op(StackOp::ZerosLike, &[like])[0],
        Type::List(_) => trace::emit_list(ListOp::ZerosLike, &[like])[0],
    }
}

fn stack_op(op: StackOp, operands: &[AnyValue]) -> Vec<AnyValue> {
    trace::try_with(|t| t.emit(Op::Stack(op), operands, Loc::UNKNOWN).map(|node| t.results(node)))
}

/// Calls `f` with the values added to the graph that is being traced, and with the graph.
fn added<R>(f: impl FnOnce(&mut AddedValues, &mut GraphBuilder) -> R) -> R {
    trace::with(|t| f(&mut t.autodiff, &mut t.graph))
}

fn graph<R>(f: impl FnOnce(&mut crate::Graph) -> R) -> R {
    trace::with(|t| f(&mut t.graph))
}
