//! Reverse-mode differentiation, graph to graph, while tracing.
//!
//! [`gradients`] appends to the graph that is being traced the nodes which compute the gradient of a scalar. The result
//! is ordinary nodes, so it can be differentiated again, and no engine can tell them from others. Rules stand with the operations
//! ([`Grad`]) and use only the public methods of [`Any`].
//!
//! **Control flow** (Yu et al., EuroSys 2018, §5, on structured regions). The gradient of a `cond` is a `cond` on the same
//! predicate, with the swept branch in each arm. The gradient of a `while` is a `while` that counts the forward trips
//! down and sweeps the body backwards; it carries the gradients of the loop variables and sums those of captures.
//!
//! **Saved values.** A backward region may need values of its forward region. Captures are read where they come from, constants
//! and views are made again, values that are the same in all iterations are handed out once, and only what is left is saved: the forward construct is given one more loop variable, a stack, on which every
//! execution of the region pushes, and from which the backward region pops in reverse order. The stack is carried through
//! all enclosing constructs, so nesting needs no stacks of stacks, and a branch that is not taken saves nothing. What no rule
//! asks for is not saved ([`GradNode::x`]); asking twice, also in a second gradient, saves once (`Augmented`).
//!
//! **Lists.** The gradient of a list is a list of the same type and length, in which what is not written is zero. A list that a
//! construct captures hands its gradient in and takes it out again: what is read inside adds to it in place, so that a loop which
//! reads each element once takes time in proportion to their number. What a rule needs of a list is an index, or the length. Only where a checkpoint
//! in a loop reads elements of a list from before it, the list is saved, as one tensor and a mark for each element.
//! **Calls.** A checkpoint saves what goes into it; its gradient is one region with a copy of its nodes and the sweep of them
//! (`calls.rs`). A function with its own gradient is asked for it: the nodes of its second region are copied to where the sweep
//! is. A loop with checkpoints is a loop over segments, each in a checkpoint; the tracer makes it so when the loop closes.
//!
//! **Devices.** What is made for a forward node has its constraint ([`On`]), and so runs where that runs; what has none has
//! that of the scope in which the gradient is asked for.
//!
//! Levels: level 0 are the regions that are open when the gradient is taken, whose values need no saving; level `k` is the
//! `k`-th forward region inside, paired with the backward region that is being traced for it.

mod activity;
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

use crate::ir::{Attrs, ListOp, Node, NodeData, Op, Region, StackOp, Value, ValueDef};
use crate::ops::Grad;
use crate::trace::{self, Any, CondTrace, WhileTrace};
use crate::{AnyVar, DType, Diagnostic, Float, HostTensor, Loc, On, Tensor, TensorType, Type, device};
use activity::active_in;
pub use checkpoint::{checkpoint, checkpoint_loop, checkpoint_loop_every};
pub use custom::custom_gradient;
pub use memory::{Each, Saved, SavedAt, SavedValue, saved};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

/// What autodiff has added to the control flow of a graph, so that it is added once.
#[derive(Debug, Default)]
pub(crate) struct Augmented {
    /// The result of a `while` that counts its trips.
    trips: HashMap<Node, Value>,
    /// The stack of a saved value, as seen from an enclosing region.
    stacks: HashMap<(Value, Region), Value>,
    /// What is asked of a value where it is made, by the name of the operation.
    queries: HashMap<(Value, &'static str), Value>,
    /// The result by which a loop hands out a value that is the same in all its iterations.
    last: HashMap<Value, Value>,
    /// Gradients in the bodies of loops that are still open.
    of_one_iteration: Vec<earlier::OfOneIteration>,
}

/// What a gradient rule sees of its node.
pub struct GradNode<'a> {
    sweep: &'a Sweep,
    level: usize,
    data: &'a NodeData,
    attrs: &'a Attrs,
    types: Vec<TensorType>,
    result_type: TensorType,
    dy: Any,
}

impl GradNode<'_> {
    /// The gradient of the result.
    pub fn dy(&self) -> Any {
        self.dy
    }

    /// Operand `i`, for use in the gradient. If the node is in a loop, this makes the loop save it: ask for what is needed.
    pub fn x(&self, i: usize) -> Any {
        self.sweep.map(self.level, self.data.operands[i])
    }

    /// A tensor of the shape of operand `i`, whose elements do not matter: a loop saves no more than its extents.
    pub fn like(&self, i: usize) -> Any {
        self.sweep.map_like(self.level, self.data.operands[i])
    }

    /// The result, for use in the gradient; saved like an operand.
    pub fn y(&self) -> Any {
        self.sweep.map(self.level, self.data.results[0])
    }

    /// The type of operand `i`.
    pub fn ty(&self, i: usize) -> &TensorType {
        &self.types[i]
    }

    /// The type of the result.
    pub fn result_ty(&self) -> &TensorType {
        &self.result_type
    }

    /// Number of operands.
    pub fn n_operands(&self) -> usize {
        self.data.operands.len()
    }

    /// The static arguments of the operation.
    pub fn attrs(&self) -> &Attrs {
        self.attrs
    }

    /// Whether the gradient of operand `i` is asked for. A rule may give `None` if not.
    pub fn needs(&self, i: usize) -> bool {
        self.sweep.active.contains(&self.data.operands[i])
    }
}

/// The gradients of a scalar with respect to tensors.
///
/// `wrt` is a tensor, or a tuple, array or vector of tensors; the result has the same structure and the same shapes. The gradient
/// with respect to a tensor on which `loss` does not depend is zero.
///
/// # Errors
/// End the trace: `loss` is not a scalar; an operation on the way has no rule; the way leads through the loop variables of a
/// loop whose body is being traced, or is inside of the branch or loop that gives both `loss` and `wrt`; it needs zeros of
/// extents that only the data decides.
///
/// ```
/// use anabranch_dsl::prelude::*;
///
/// let dx = eval(|| {
///     let x = scalar(3.0f32);
///     gradients(x * x * x, x)
/// })?;
/// assert_eq!(dx, 27.0);
/// # Ok::<(), anabranch_dsl::Diagnostic>(())
/// ```
#[track_caller]
pub fn gradients<T: Float, W: Wrt>(loss: Tensor<T>, wrt: W) -> W {
    let loc = Loc::caller();
    let mut tensors = Vec::new();
    wrt.tensors(&mut tensors);
    let grads = scalar_gradients(loss.untyped(), &tensors, loc);
    wrt.rebuild(&mut grads.into_iter())
}

/// The gradients of a scalar with respect to variables: to the latest value of each on which it depends.
#[track_caller]
pub fn var_gradients<T: Float>(loss: Tensor<T>, vars: &[AnyVar]) -> Vec<Any> {
    let loc = Loc::caller();
    let wrt = values_it_depends_on(loss.untyped(), vars);
    scalar_gradients(loss.untyped(), &wrt, loc)
}

/// [`var_gradients`] with respect to the trained variables of a model, of which at least one must get a gradient.
#[track_caller]
pub(crate) fn trained_gradients<T: Float>(loss: Tensor<T>, vars: &[AnyVar]) -> Vec<Any> {
    let loc = Loc::caller();
    check_scalar(loss.untyped(), loc);
    let wrt = values_it_depends_on(loss.untyped(), vars);
    unreached::check(loss.untyped(), vars, &wrt, loc);
    scalar_gradients(loss.untyped(), &wrt, loc)
}

/// For each variable the latest of its values on which `loss` depends, or its present value if there is none.
#[track_caller]
fn values_it_depends_on(loss: Any, vars: &[AnyVar]) -> Vec<Any> {
    let latest: Vec<Any> = vars.iter().map(trace::read_var).collect();
    let versions: Vec<Vec<Any>> = vars
        .iter()
        .map(|var| {
            trace::with(|t| {
                let id = t.known_var(var).expect("the variable was just read");
                t.visible_versions(id).into_iter().map(|v| t.any(v)).collect()
            })
        })
        .collect();
    // A later value may have been assigned since the loss was computed: look back for the one it was computed from.
    let depends = dependencies(loss);
    let used = |versions: &[Any]| versions.iter().copied().find(|v| depends.contains(&v.value()));
    latest.iter().zip(&versions).map(|(&now, versions)| used(versions).unwrap_or(now)).collect()
}

/// Sums of products: for every tensor of `wrt` the gradient of `sum(dy * y)` over all pairs, without asking that `y` be scalar.
#[track_caller]
pub fn vjp(outputs: &[(Any, Any)], wrt: &[Any]) -> Vec<Any> {
    differentiate(outputs, wrt, Loc::caller())
}

/// What gradients can be taken with respect to.
pub trait Wrt {
    /// Appends all tensors.
    fn tensors(&self, to: &mut Vec<Any>);
    /// The same structure with other tensors.
    fn rebuild(&self, from: &mut dyn Iterator<Item = Any>) -> Self;
}

impl<T: Float> Wrt for Tensor<T> {
    fn tensors(&self, to: &mut Vec<Any>) {
        to.push(self.untyped());
    }
    fn rebuild(&self, from: &mut dyn Iterator<Item = Any>) -> Self {
        Tensor::from_any(from.next().expect("one gradient for each tensor"))
    }
}
impl<W: Wrt, const N: usize> Wrt for [W; N] {
    fn tensors(&self, to: &mut Vec<Any>) {
        self.iter().for_each(|w| w.tensors(to));
    }
    fn rebuild(&self, from: &mut dyn Iterator<Item = Any>) -> Self {
        std::array::from_fn(|i| self[i].rebuild(from))
    }
}
impl<W: Wrt> Wrt for Vec<W> {
    fn tensors(&self, to: &mut Vec<Any>) {
        self.iter().for_each(|w| w.tensors(to));
    }
    fn rebuild(&self, from: &mut dyn Iterator<Item = Any>) -> Self {
        self.iter().map(|w| w.rebuild(from)).collect()
    }
}
macro_rules! wrt_tuples {
    ($($($w:ident $i:tt),+;)*) => {$(
        impl<$($w: Wrt),+> Wrt for ($($w,)+) {
            fn tensors(&self, to: &mut Vec<Any>) {
                $(self.$i.tensors(to);)+
            }
            fn rebuild(&self, from: &mut dyn Iterator<Item = Any>) -> Self {
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

fn check_scalar(loss: Any, loc: Loc) {
    let ty = loss.tensor_type();
    if ty.rank() != 0 || !ty.dtype.is_float() {
        trace::fail(
            Diagnostic::new(format!("gradients: the loss is {ty}, not a scalar float"))
                .at(loc, "differentiated here")
                .help("reduce it first, with `.sum()` or `.mean()`"),
        );
    }
}

fn scalar_gradients(loss: Any, wrt: &[Any], loc: Loc) -> Vec<Any> {
    check_scalar(loss, loc);
    let one = trace::at_loc(loc, || trace::constant(HostTensor::scalar(1.0f64)).cast(loss.dtype()));
    differentiate(&[(loss, one)], wrt, loc)
}

/// All values of the open regions on which `of` depends.
fn dependencies(of: Any) -> HashSet<Value> {
    trace::with(|t| {
        let mut seen = HashSet::new();
        let mut todo = vec![of.value()];
        while let Some(v) = todo.pop() {
            if !seen.insert(v) {
                continue;
            }
            match t.graph.value(v).def {
                ValueDef::Result(node, _) => todo.extend(&t.graph.node(node).operands),
                ValueDef::Param(region, i) => todo.extend(t.open_outer(region, i as usize)),
            }
        }
        seen
    })
}

/// The cotangents collected for the values of one forward region.
type Cotangents = HashMap<Value, Any>;

/// A forward region and the backward region that is being traced for it.
struct Level {
    fwd: Region,
    /// Depth of the backward region.
    depth: usize,
    /// Forward values as the backward region sees them.
    map: HashMap<Value, Any>,
    /// The stacks that pass through here, in the order in which they came.
    threads: Vec<Thread>,
    /// Which of them is the one of a saved value.
    thread_of: HashMap<Value, usize>,
    /// The backward loop, if it is one.
    bwd: Option<WhileTrace>,
}

impl Level {
    fn new(fwd: Region, depth: usize, bwd: Option<WhileTrace>) -> Level {
        Level { fwd, depth, map: HashMap::new(), threads: Vec::new(), thread_of: HashMap::new(), bwd }
    }

    fn thread(&mut self, saved: Value) -> Option<&mut Thread> {
        let &i = self.thread_of.get(&saved)?;
        Some(&mut self.threads[i])
    }
}

/// A stack of saved values on its way through a backward region.
#[derive(Clone, Copy)]
struct Thread {
    /// The forward value that was saved.
    saved: Value,
    /// The stack outside of the backward construct.
    outer: Any,
    /// The stack now.
    current: Any,
}

/// The state of one gradient.
struct Sweep {
    /// Values that depend on what the gradient is taken with respect to, and have gradients.
    active: HashSet<Value>,
    levels: RefCell<Vec<Level>>,
    /// Through which node a cotangent came first.
    came_from: RefCell<HashMap<Value, Node>>,
    wrt: HashSet<Value>,
    /// The scope that the gradient is asked for in: that of nodes whose forward nodes have none.
    on: Option<On>,
    /// For each region that was asked about: its values that are the same in all iterations of the loop around it.
    invariant: RefCell<HashMap<Region, HashSet<Value>>>,
}

impl Sweep {
    fn new(active: HashSet<Value>, wrt: HashSet<Value>, on: Option<On>, root: Level) -> Sweep {
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

fn differentiate(outputs: &[(Any, Any)], wrt: &[Any], loc: Loc) -> Vec<Any> {
    // What the present region sees.
    let see = |a: Any| {
        trace::try_with(|t| {
            let v = t.resolve_for_gradient(a, loc)?;
            Ok(v)
        })
    };
    let wrt_values: Vec<Value> = wrt.iter().map(|&w| see(w)).collect();
    let seeds: Vec<(Value, Any)> = outputs.iter().map(|&(y, dy)| (see(y), dy)).collect();

    let losses: Vec<Value> = seeds.iter().map(|&(y, _)| y).collect();

    let here = trace::depth();
    if here > 0 {
        earlier::remember(losses.iter().copied(), &wrt_values, loc);
    }
    trace::try_with(|t| siblings::check(t, &losses, &wrt_values, loc));
    let active = trace::with(|t| active_in(t, &wrt_values));
    let root = Level::new(Region::from_index(0), here, None);
    let sweep = Sweep::new(active, wrt_values.iter().copied().collect(), device::scope(), root);
    let mut cot = Cotangents::new();
    for (y, dy) in seeds {
        sweep.add(&mut cot, y, dy, None);
    }
    // The open regions, innermost first; their parameters hand the cotangents outwards.
    for depth in (0..=here).rev() {
        let region = trace::with(|t| t.region_of_depth(depth));
        sweep.region(0, region, &mut cot);
        if depth > 0 {
            sweep.leave_open(depth, &mut cot, loc);
        }
    }
    let gradients = wrt_values.iter().map(|v| cot.get(v).copied());
    let zeros = |v: Value| trace::at_loc(loc, || zeros_like(trace::with(|t| t.any(v))));
    gradients.zip(&wrt_values).map(|(g, &v)| g.unwrap_or_else(|| zeros(v))).collect()
}

/// Zeros of the type of a value that can be seen here.
fn zeros_like(like: Any) -> Any {
    match like.ty() {
        Type::Tensor(ty) => {
            let zero = trace::constant(HostTensor::zeros(ty.dtype, vec![]));
            if ty.shape.is_definite() { zero.broadcast_to(ty.shape) } else { zero.broadcast_like(like) }
        }
        Type::Stack(_) => stack_op(StackOp::ZerosLike, &[like])[0],
        Type::List(_) => trace::emit_list(ListOp::ZerosLike, &[like])[0],
    }
}

fn stack_op(op: StackOp, operands: &[Any]) -> Vec<Any> {
    trace::try_with(|t| t.emit_stack(op, operands))
}

fn graph<R>(f: impl FnOnce(&mut crate::Graph) -> R) -> R {
    trace::with(|t| f(&mut t.graph))
}
