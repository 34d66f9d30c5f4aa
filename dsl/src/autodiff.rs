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
//! and views are made again, and only what is left is saved: the forward construct is given one more loop variable, a stack, on which every
//! execution of the region pushes, and from which the backward region pops in reverse order. The stack is carried through
//! all enclosing constructs, so nesting needs no stacks of stacks, and a branch that is not taken saves nothing. What no rule
//! asks for is not saved ([`GradNode::x`]); asking twice, also in a second gradient, saves once (`Augmented`).
//!
//! Levels: level 0 are the regions that are open when the gradient is taken, whose values need no saving; level `k` is the
//! `k`-th forward region inside, paired with the backward region that is being traced for it.

mod earlier;

use crate::ir::{Attrs, Node, NodeData, Op, Region, StackOp, Value, ValueDef};
use crate::ops::{Effects, Grad, OpDef};
use crate::trace::{self, Any, CondTrace, WhileTrace};
use crate::{AnyVar, DType, Diagnostic, Float, HostTensor, Loc, Tensor, TensorType, Type};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

/// What autodiff has added to the control flow of a graph, so that it is added once.
#[derive(Debug, Default)]
pub(crate) struct Augmented {
    /// The result of a `while` that counts its trips.
    trips: HashMap<Node, Value>,
    /// The stack of a saved value, as seen from an enclosing region.
    stacks: HashMap<(Value, Region), Value>,
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
/// loop whose body is being traced.
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
    let latest: Vec<Any> = vars.iter().map(trace::read_var).collect();
    let versions: Vec<Vec<Any>> = vars
        .iter()
        .map(|var| {
            trace::with(|t| {
                let id = t.known_var(var).expect("the variable was just read");
                t.visible_versions(id)
                    .into_iter()
                    .map(|v| t.any(v))
                    .collect()
            })
        })
        .collect();
    // A later value may have been assigned since the loss was computed: look back for the one it was computed from.
    let depends = dependencies(loss.untyped());
    let wrt: Vec<Any> = latest
        .iter()
        .zip(&versions)
        .map(|(&now, versions)| {
            versions
                .iter()
                .copied()
                .find(|v| depends.contains(&v.value()))
                .unwrap_or(now)
        })
        .collect();
    scalar_gradients(loss.untyped(), &wrt, loc)
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

fn scalar_gradients(loss: Any, wrt: &[Any], loc: Loc) -> Vec<Any> {
    let ty = loss.tensor_type();
    if ty.rank() != 0 || !ty.dtype.is_float() {
        trace::fail(
            Diagnostic::new(format!(
                "gradients: the loss is {ty}, not a scalar f32 or f64"
            ))
            .at(loc, "differentiated here")
            .help("reduce it first, with `.sum()` or `.mean()`"),
        );
    }
    let one = trace::at_loc(loc, || {
        trace::constant(HostTensor::scalar(1.0f64)).cast(ty.dtype)
    });
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
    /// The stacks that pass through here.
    threads: Vec<Thread>,
    /// The backward loop, if it is one.
    bwd: Option<WhileTrace>,
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

    let here = trace::depth();
    if here > 0 {
        earlier::remember(seeds.iter().map(|&(y, _)| y), &wrt_values, loc);
    }
    let active = trace::with(|t| active_in(t, &wrt_values));
    let root = Level {
        fwd: Region::from_index(0),
        depth: here,
        map: HashMap::new(),
        threads: vec![],
        bwd: None,
    };
    let sweep = Sweep {
        active,
        levels: RefCell::new(vec![root]),
        came_from: RefCell::default(),
        wrt: wrt_values.iter().copied().collect(),
    };
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
    let zeros = |v: Value| trace::at_loc(loc, || zeros_of(trace::with(|t| t.any(v))));
    gradients
        .zip(&wrt_values)
        .map(|(g, &v)| g.unwrap_or_else(|| zeros(v)))
        .collect()
}

/// Zeros of the type of a value that can be seen here.
fn zeros_of(like: Any) -> Any {
    match like.ty() {
        Type::Tensor(ty) => {
            let zero = trace::constant(HostTensor::zeros(ty.dtype, vec![]));
            if ty.shape.dims().contains(&crate::Dim::Unknown) {
                zero.broadcast_like(like)
            } else {
                zero.broadcast_to(ty.shape)
            }
        }
        Type::Stack(_) => stack_op(StackOp::ZerosLike, &[like])[0],
    }
}

fn stack_op(op: StackOp, operands: &[Any]) -> Vec<Any> {
    trace::try_with(|t| t.emit_stack(op, operands))
}

fn graph<R>(f: impl FnOnce(&mut crate::Graph) -> R) -> R {
    trace::with(|t| f(&mut t.graph))
}

// Activity.

/// The values that depend on `wrt` through differentiable operations, in the open regions and all regions inside.
fn active_in(t: &trace::Tracer, wrt: &[Value]) -> HashSet<Value> {
    let mut active: HashSet<Value> = wrt.iter().copied().collect();
    for depth in 0..=t.depth_now() {
        if depth > 0 {
            for (param, outer) in t.open_params(depth) {
                if active.contains(&outer) {
                    active.insert(param);
                }
            }
        }
        activate(&t.graph, t.region_of_depth(depth), &mut active);
    }
    active
}

fn activate(graph: &crate::Graph, region: Region, active: &mut HashSet<Value>) {
    for &node in &graph.region(region).nodes {
        let data = graph.node(node);
        if !data.operands.iter().any(|v| active.contains(v)) {
            continue;
        }
        let bind = |from: &[Value], to: &[Value], active: &mut HashSet<Value>| {
            let mut changed = false;
            for (a, b) in from.iter().zip(to) {
                if active.contains(a) {
                    changed |= active.insert(*b);
                }
            }
            changed
        };
        match &data.op {
            Op::Prim(def, _) if matches!(def.grad, Grad::Zero(_)) => {}
            Op::Prim(..) | Op::Stack(_) => {
                for &r in &data.results {
                    if graph.ty(r).is_differentiable() {
                        active.insert(r);
                    }
                }
            }
            Op::Cond => {
                for &arm in &data.regions {
                    bind(&data.operands[1..], &graph.region(arm).params, active);
                    activate(graph, arm, active);
                    bind(&graph.region(arm).yields, &data.results, active);
                }
            }
            Op::While => {
                let body = graph.region(data.regions[1]);
                bind(&data.operands, &body.params, active);
                loop {
                    activate(graph, data.regions[1], active);
                    if !bind(&body.yields, &body.params, active) {
                        break;
                    }
                }
                bind(&body.params[..data.results.len()], &data.results, active);
            }
            Op::Constant(_) | Op::Read(_) | Op::Assign(_) | Op::Assert { .. } => {}
        }
    }
}

impl Sweep {
    fn is_active(&self, v: Value) -> bool {
        self.active.contains(&v)
    }

    /// Which values of `region` get a cotangent if `seeds` do.
    fn reached(
        &self,
        graph: &crate::Graph,
        region: Region,
        seeds: &mut dyn Iterator<Item = Value>,
    ) -> HashSet<Value> {
        let mut reached: HashSet<Value> = seeds.filter(|&v| self.is_active(v)).collect();
        for &node in graph.region(region).nodes.iter().rev() {
            let data = graph.node(node);
            if !data.results.iter().any(|r| reached.contains(r)) {
                continue;
            }
            let hit = |i: usize| reached.contains(&data.results[i]);
            let operands: Vec<Value> = match &data.op {
                Op::Prim(..) | Op::Stack(_) => data.operands.clone(),
                Op::Cond => {
                    let mut operands = Vec::new();
                    for &arm in &data.regions {
                        let arm_data = graph.region(arm);
                        let mut seeds = arm_data
                            .yields
                            .iter()
                            .enumerate()
                            .filter(|&(i, _)| hit(i))
                            .map(|(_, &v)| v);
                        let inner = self.reached(graph, arm, &mut seeds);
                        let pairs = arm_data.params.iter().zip(&data.operands[1..]);
                        operands.extend(pairs.filter(|(p, _)| inner.contains(p)).map(|(_, &v)| v));
                    }
                    operands
                }
                Op::While => {
                    let seeds = (0..data.results.len()).filter(|&i| hit(i)).collect();
                    let params = self.reached_params(graph, data, seeds);
                    params.into_iter().map(|i| data.operands[i]).collect()
                }
                Op::Constant(_) | Op::Read(_) | Op::Assign(_) | Op::Assert { .. } => vec![],
            };
            reached.extend(operands.into_iter().filter(|&v| self.is_active(v)));
        }
        reached
    }

    /// Which parameters of a loop get a cotangent if the results `seeds` do, in order. A loop variable gets one as well
    /// if a later trip gives it one.
    fn reached_params(
        &self,
        graph: &crate::Graph,
        data: &NodeData,
        seeds: Vec<usize>,
    ) -> Vec<usize> {
        let body = graph.region(data.regions[1]);
        let n = data.results.len();
        let mut hit: HashSet<usize> = seeds
            .into_iter()
            .filter(|&i| self.is_active(body.params[i]))
            .collect();
        loop {
            let mut seeds = hit.iter().filter(|&&i| i < n).map(|&i| body.yields[i]);
            let inner = self.reached(graph, data.regions[1], &mut seeds);
            let before = hit.len();
            hit.extend((0..body.params.len()).filter(|&i| inner.contains(&body.params[i])));
            if hit.len() == before {
                let mut hit: Vec<usize> = hit.into_iter().collect();
                hit.sort_unstable();
                return hit;
            }
        }
    }

    // The sweep.

    /// Adds to the cotangent of a forward value.
    fn add(&self, cot: &mut Cotangents, v: Value, dv: Any, from: Option<Node>) {
        if !self.is_active(v) {
            return;
        }
        if let Some(node) = from {
            self.came_from.borrow_mut().entry(v).or_insert(node);
        }
        let sum = match cot.get(&v) {
            None => dv,
            Some(&old) => match old.ty() {
                Type::Tensor(_) => old.add(dv),
                Type::Stack(_) => stack_op(StackOp::Add, &[old, dv])[0],
            },
        };
        cot.insert(v, sum);
    }

    /// Goes backwards through the nodes of a forward region.
    fn region(&self, level: usize, region: Region, cot: &mut Cotangents) {
        let nodes = graph(|g| g.region(region).nodes.clone());
        for node in nodes.into_iter().rev() {
            let data = graph(|g| {
                let data = g.node(node);
                let wanted = data.results.iter().any(|r| cot.contains_key(r))
                    && data.operands.iter().any(|&v| self.is_active(v));
                wanted.then(|| data.clone())
            });
            if let Some(data) = data {
                trace::at_loc(data.loc, || self.node(level, node, &data, cot));
            }
        }
    }

    fn node(&self, level: usize, node: Node, data: &NodeData, cot: &mut Cotangents) {
        match &data.op {
            Op::Prim(def, attrs) => {
                let Some(&dy) = cot.get(&data.results[0]) else {
                    return;
                };
                let rule = match def.grad {
                    Grad::Rule(rule) => rule,
                    Grad::Zero(_) => return,
                    Grad::Missing(why) => self.missing(def, why, node, data),
                };
                let element = |v: &Value| graph(|g| g.ty(*v).element().clone());
                let grad_node = GradNode {
                    sweep: self,
                    level,
                    data,
                    attrs,
                    types: data.operands.iter().map(element).collect(),
                    result_type: element(&data.results[0]),
                    dy,
                };
                let parts = rule(&grad_node);
                assert_eq!(
                    parts.len(),
                    data.operands.len(),
                    "{}: one gradient for each operand",
                    def.name
                );
                for (&v, part) in data.operands.iter().zip(parts) {
                    if let Some(part) = part {
                        self.add(cot, v, part, Some(node));
                    }
                }
            }
            Op::Stack(op) => self.stack(level, op, node, data, cot),
            Op::Cond => self.cond(level, node, data, cot),
            Op::While => self.while_loop(level, node, data, cot),
            Op::Constant(_) | Op::Read(_) | Op::Assign(_) | Op::Assert { .. } => {}
        }
    }

    fn stack(&self, level: usize, op: &StackOp, node: Node, data: &NodeData, cot: &mut Cotangents) {
        let d = |i: usize, cot: &Cotangents| cot.get(&data.results[i]).copied();
        match op {
            StackOp::Push => {
                let ds = d(0, cot).expect("a push has one result");
                let popped = stack_op(StackOp::Pop, &[ds]);
                self.add(cot, data.operands[0], popped[0], Some(node));
                self.add(cot, data.operands[1], popped[1], Some(node));
            }
            StackOp::Pop => {
                let below = d(0, cot).unwrap_or_else(|| self.zeros_left(level, data.results[0]));
                let top = d(1, cot).unwrap_or_else(|| self.zeros_of_type(level, data.results[1]));
                let pushed = stack_op(StackOp::Push, &[below, top])[0];
                self.add(cot, data.operands[0], pushed, Some(node));
            }
            StackOp::Add => {
                let ds = d(0, cot).expect("a sum has one result");
                self.add(cot, data.operands[0], ds, Some(node));
                self.add(cot, data.operands[1], ds, Some(node));
            }
            StackOp::New(_) | StackOp::ZerosLike => {}
        }
    }

    /// Zeros of the type of a forward value, which is only asked for if its extents are not known.
    fn zeros_of_type(&self, level: usize, v: Value) -> Any {
        let ty = graph(|g| g.ty(v).clone());
        match &ty {
            Type::Tensor(t) if !t.shape.dims().contains(&crate::Dim::Unknown) => {
                trace::constant(HostTensor::zeros(t.dtype, vec![])).broadcast_to(t.shape.clone())
            }
            Type::Stack(_) => self.zeros_of_stack(level, v),
            Type::Tensor(_) => zeros_of(self.map(level, v)),
        }
    }

    /// The cotangent of a stack that a construct of a backward region leaves behind, where nothing reads it.
    ///
    /// Such a construct pops all that was pushed since the stack was new, or it would hand the stack on and so give it a
    /// cotangent. So inside of another construct, where the stack itself cannot be had again, there is nothing left on it.
    fn zeros_left(&self, level: usize, v: Value) -> Any {
        match graph(|g| g.ty(v).clone()) {
            Type::Stack(element) if level > 0 => stack_op(StackOp::New(element), &[])[0],
            _ => self.zeros_of_type(level, v),
        }
    }

    /// Zeros for a stack, which is not saved: it has to come from outside of all forward regions.
    fn zeros_of_stack(&self, level: usize, v: Value) -> Any {
        if level == 0 {
            return zeros_of(trace::with(|t| t.any(v)));
        }
        match self.origin(v) {
            Origin::Outside(outer) => self.zeros_of_stack(level - 1, outer),
            _ => trace::fail(
                Diagnostic::new(
                    "gradients: a gradient that was taken in a loop, of a loop before it, in one more loop, \
                     cannot be differentiated",
                )
                .at(graph(|g| g.loc(v)), "this loop saves values for the gradient")
                .help("take the gradient beside the loop that it goes through"),
            ),
        }
    }

    fn cond(&self, level: usize, node: Node, data: &NodeData, cot: &mut Cotangents) {
        let regions: Vec<_> =
            graph(|g| data.regions.iter().map(|&r| g.region(r).clone()).collect());
        let pred = self.map(level, data.operands[0]);
        let mut bwd = CondTrace::begin(pred);
        let mut parts: [Vec<Option<Any>>; 2] = Default::default();
        let mut threads: [Vec<Thread>; 2] = Default::default();
        for (arm, region) in regions.iter().enumerate() {
            bwd.select(arm);
            self.push_level(data.regions[arm], None);
            let mut arm_cot = Cotangents::new();
            for (r, &y) in data.results.iter().zip(&region.yields) {
                if let Some(&dr) = cot.get(r) {
                    self.add(&mut arm_cot, y, dr, Some(node));
                }
            }
            self.region(level + 1, data.regions[arm], &mut arm_cot);
            parts[arm] = region
                .params
                .iter()
                .map(|p| arm_cot.get(p).copied())
                .collect();
            threads[arm] = self.pop_level().threads;
        }
        let captures = &data.operands[1..];
        let wanted: Vec<usize> = (0..captures.len())
            .filter(|&i| parts[0][i].is_some() || parts[1][i].is_some())
            .collect();
        let mut sides = [Vec::new(), Vec::new()];
        for (arm, side) in sides.iter_mut().enumerate() {
            bwd.select(arm);
            side.extend(
                wanted
                    .iter()
                    .map(|&i| parts[arm][i].unwrap_or_else(|| self.zeros_left(level, captures[i]))),
            );
        }
        for (arm, arm_threads) in threads.iter().enumerate() {
            for thread in arm_threads {
                sides[arm].push(thread.current);
                sides[1 - arm].push(thread.outer);
            }
        }
        let results = bwd.end(&sides[0], &sides[1], &[]);
        for (&i, &d) in wanted.iter().zip(&results) {
            self.add(cot, captures[i], d, Some(node));
        }
        let after = threads.iter().flatten().zip(&results[wanted.len()..]);
        self.hand_back(level, after.map(|(t, &r)| (t.saved, r)));
    }

    fn while_loop(&self, level: usize, node: Node, data: &NodeData, cot: &mut Cotangents) {
        let n = data.results.len();
        let body_region = data.regions[1];
        let seeds: Vec<usize> = (0..n)
            .filter(|&i| cot.contains_key(&data.results[i]))
            .collect();
        let reached = graph(|g| self.reached_params(g, data, seeds));
        // Positions of captures are those of now: counting the trips adds a loop variable before them.
        let body = graph(|g| g.region(body_region).clone());
        let trips = trace::with(|t| t.count_trips(node));
        let trips = self.map(level, trips);

        // The loop variables of the backward loop: trips left, then the cotangents of what is reached.
        let initial = |&i: &usize| {
            if i < n {
                cot.get(&data.results[i])
                    .copied()
                    .unwrap_or_else(|| self.zeros_left(level, data.results[i]))
            } else {
                self.zeros_of_type(level, data.operands[i])
            }
        };
        let mut init = vec![trips];
        init.extend(reached.iter().map(initial));
        let (mut bwd, params) = WhileTrace::begin(&init, &[]);
        let int = |x: i32| trace::constant(HostTensor::scalar(x));
        let params_in_body = bwd.begin_body(params[0].gt(int(0)));
        let left = params_in_body[0].sub(int(1));
        self.push_level(body_region, Some(bwd));
        let mut body_cot = Cotangents::new();
        for (&i, &d) in reached.iter().zip(&params_in_body[1..]) {
            if i < n {
                self.add(&mut body_cot, body.yields[i], d, Some(node));
            }
        }
        self.region(level + 1, body_region, &mut body_cot);
        let mut next = vec![left];
        for (&i, &d) in reached.iter().zip(&params_in_body[1..]) {
            let part = body_cot.get(&body.params[i]).copied();
            next.push(if i < n {
                part.unwrap_or_else(|| self.zeros_of_type(level + 1, body.params[i]))
            } else {
                match part {
                    None => d,
                    Some(part) if matches!(d.ty(), Type::Stack(_)) => {
                        stack_op(StackOp::Add, &[d, part])[0]
                    }
                    Some(part) => d.add(part),
                }
            });
        }
        let Level { threads, bwd, .. } = self.pop_level();
        let bwd = bwd.expect("the level is that of a loop");
        let extra: Vec<Any> = threads.iter().map(|t| t.current).collect();
        let results = bwd.end_with(&next, &extra, &[]);
        for (&i, &d) in reached.iter().zip(&results[1..]) {
            self.add(cot, data.operands[i], d, Some(node));
        }
        let after = threads.iter().zip(&results[next.len()..]);
        self.hand_back(level, after.map(|(t, &r)| (t.saved, r)));
    }

    fn push_level(&self, fwd: Region, bwd: Option<WhileTrace>) {
        let level = Level {
            fwd,
            depth: trace::depth(),
            map: HashMap::new(),
            threads: vec![],
            bwd,
        };
        self.levels.borrow_mut().push(level);
    }

    fn pop_level(&self) -> Level {
        self.levels
            .borrow_mut()
            .pop()
            .expect("levels are pushed and popped in pairs")
    }

    /// What a closed backward construct left on the stacks is what its surroundings go on with.
    fn hand_back(&self, level: usize, results: impl Iterator<Item = (Value, Any)>) {
        let mut levels = self.levels.borrow_mut();
        for (saved, stack) in results {
            if let Some(thread) = levels[level].threads.iter_mut().find(|t| t.saved == saved) {
                thread.current = stack;
            }
        }
    }

    // Forward values in backward regions.

    /// A value of the forward region of `level`, as its backward region sees it.
    fn map(&self, level: usize, v: Value) -> Any {
        if level == 0 {
            return trace::with(|t| t.any(v));
        }
        let (known, depth, fwd) = {
            let levels = self.levels.borrow();
            let l = &levels[level];
            (l.map.get(&v).copied(), l.depth, l.fwd)
        };
        if let Some(known) = known {
            return known;
        }
        assert_eq!(
            graph(|g| g.region_of(v)),
            fwd,
            "{v} is not in the region of level {level}"
        );
        let mapped = match self.origin(v) {
            Origin::Outside(outer) => self.map(level - 1, outer),
            Origin::Again(data) => {
                let operands: Vec<Any> =
                    data.operands.iter().map(|&x| self.map(level, x)).collect();
                trace::at_depth(depth, || match &data.op {
                    Op::Constant(t) => trace::constant(t.clone()),
                    Op::Prim(def, attrs) => trace::emit(def, &operands, attrs.clone()),
                    op => unreachable!("{} is not made again", op.name()),
                })
            }
            Origin::Saved => {
                let stack = self.thread(level, v);
                let popped = trace::at_depth(depth, || stack_op(StackOp::Pop, &[stack]));
                let mut levels = self.levels.borrow_mut();
                let thread = levels[level].threads.iter_mut().find(|t| t.saved == v);
                thread.expect("the stack passes through here").current = popped[0];
                popped[1]
            }
        };
        self.levels.borrow_mut()[level].map.insert(v, mapped);
        mapped
    }

    /// How a backward region gets at a value of its forward region.
    fn origin(&self, v: Value) -> Origin {
        graph(|g| match g.value(v).def {
            ValueDef::Param(region, i) => {
                let owner = g
                    .region(region)
                    .owner
                    .expect("a region inside has an owner");
                match g.node(owner).op {
                    Op::Cond => Origin::Outside(g.node(owner).operands[i as usize + 1]),
                    _ if i as usize >= g.n_carried(owner) => {
                        Origin::Outside(g.node(owner).operands[i as usize])
                    }
                    _ => Origin::Saved,
                }
            }
            ValueDef::Result(node, _) if is_view(&g.node(node).op) || is_invariant(g, v, 8) => {
                Origin::Again(Box::new(g.node(node).clone()))
            }
            ValueDef::Result(..) => Origin::Saved,
        })
    }

    /// The stack of a saved value as the backward region of `level` sees it.
    fn thread(&self, level: usize, saved: Value) -> Any {
        if level == 0 {
            return trace::with(|t| t.save(saved));
        }
        let known = self.levels.borrow()[level]
            .threads
            .iter()
            .find(|t| t.saved == saved)
            .map(|t| t.current);
        if let Some(known) = known {
            return known;
        }
        let outer = self.thread(level - 1, saved);
        let mut bwd = self.levels.borrow_mut()[level].bwd.take();
        let current = bwd.as_mut().map_or(outer, |bwd| bwd.add_carried(outer));
        let mut levels = self.levels.borrow_mut();
        levels[level].bwd = bwd;
        levels[level].threads.push(Thread {
            saved,
            outer,
            current,
        });
        current
    }

    // Enclosing constructs that are still being traced.

    /// Hands the cotangents of the parameters of an open construct to what they stand for.
    fn leave_open(&self, depth: usize, cot: &mut Cotangents, loc: Loc) {
        let params = trace::with(|t| t.open_params(depth));
        for (param, outer) in params {
            let Some(&d) = cot.get(&param) else { continue };
            let (carried, name) =
                trace::with(|t| (t.is_open_carried(depth, param), t.graph.value(param).name));
            if !carried {
                self.add(cot, outer, d, None);
            } else if self.is_active(outer) {
                trace::fail(earlier::error(name, loc));
            }
        }
    }

    fn missing(&self, def: &OpDef, why: &str, node: Node, data: &NodeData) -> ! {
        let came_from = self.came_from.borrow();
        let mut to_loss = Vec::new();
        let mut at = node;
        trace::with(|t| {
            while let Some(&next) = t
                .graph
                .node(at)
                .results
                .iter()
                .find_map(|r| came_from.get(r))
            {
                if next == at || to_loss.len() > 20 {
                    break;
                }
                at = next;
                to_loss.push(t.graph.node(at).op.name());
            }
        });
        let mut to_wrt = Vec::new();
        trace::with(|t| {
            let mut at = data.operands.iter().copied().find(|&v| self.is_active(v));
            while let Some(v) = at {
                let done = self.wrt.contains(&v) || to_wrt.len() > 20;
                if let Some(name) = t.graph.value(v).name
                    && (done || t.graph.producer(v).is_none())
                {
                    to_wrt.push(format!("`{name}`"));
                }
                at = if done {
                    None
                } else {
                    self.comes_from(&t.graph, v, &mut to_wrt)
                };
            }
        });
        let mut path = vec!["loss".to_owned()];
        path.extend(to_loss.iter().rev().map(|s| (*s).to_owned()));
        path.push(def.name.to_owned());
        path.extend(to_wrt);
        trace::fail(
            Diagnostic::new(format!("gradients: `{}` has no gradient: {why}", def.name))
                .at(data.loc, "the gradient is needed here")
                .help(format!(
                    "the way is {}; `stop_gradient()` cuts it",
                    path.join(" <- ")
                )),
        )
    }
}

impl Sweep {
    /// One step of the way from a value to what the gradient is taken with respect to; notes the operation that is passed.
    fn comes_from(&self, graph: &crate::Graph, v: Value, way: &mut Vec<String>) -> Option<Value> {
        match graph.value(v).def {
            ValueDef::Result(node, _) => {
                way.push(graph.node(node).op.name().to_owned());
                graph
                    .node(node)
                    .operands
                    .iter()
                    .copied()
                    .find(|&v| self.is_active(v))
            }
            ValueDef::Param(region, i) => {
                let owner = graph.node(graph.region(region).owner?);
                let offset = usize::from(matches!(owner.op, Op::Cond));
                Some(owner.operands[i as usize + offset]).filter(|&v| self.is_active(v))
            }
        }
    }
}

enum Origin {
    /// It is a capture of this value.
    Outside(Value),
    /// The same node gives it again.
    Again(Box<NodeData>),
    /// It has to be saved.
    Saved,
}

/// Operations that only look at their operand in another way: made again rather than saved, so that what is saved is small.
fn is_view(op: &Op) -> bool {
    matches!(op, Op::Prim(def, _) if matches!(def.name, "broadcast_to" | "reshape" | "permute"))
}

/// Whether a value of a region is computed from constants and captures alone by a few cheap operations.
fn is_invariant(graph: &crate::Graph, v: Value, fuel: usize) -> bool {
    let Some(node) = graph.producer(v) else {
        let ValueDef::Param(region, i) = graph.value(v).def else {
            unreachable!("no producer: a parameter")
        };
        return match graph.region(region).owner {
            Some(owner) => {
                matches!(graph.node(owner).op, Op::Cond) || i as usize >= graph.n_carried(owner)
            }
            None => true,
        };
    };
    let data = graph.node(node);
    match &data.op {
        Op::Constant(_) => true,
        Op::Prim(def, _) => {
            fuel > 0
                && def.effects == Effects::Pure
                && def.name != "matmul"
                && data
                    .operands
                    .iter()
                    .all(|&x| is_invariant(graph, x, fuel - 1))
        }
        _ => false,
    }
}

impl trace::Tracer {
    fn add_op(&mut self, name: &str) -> &'static OpDef {
        crate::ops::by_name(name).unwrap_or_else(|| panic!("there is no operation `{name}`"))
    }

    /// The number of trips of a `while`, as a value of the region it is in. The first call gives the loop a counter.
    fn count_trips(&mut self, node: Node) -> Value {
        if let Some(&v) = self.autodiff.trips.get(&node) {
            return v;
        }
        let ty = Type::tensor(DType::I32, ());
        let (region, loc) = (self.graph.node(node).region, self.graph.node(node).loc);
        let constant = |g: &mut crate::Graph, region, x: i32| {
            g.make_node(
                region,
                Op::Constant(HostTensor::scalar(x)),
                vec![],
                [Type::tensor(DType::I32, ())],
                loc,
            )
        };
        let zero = constant(&mut self.graph, region, 0);
        self.graph.insert_before(zero, node);
        let zero = self.graph.node(zero).results[0];
        let (param, result) = self.graph.add_loop_variable(node, zero);
        let body = self.graph.node(node).regions[1];
        let one = constant(&mut self.graph, body, 1);
        self.graph.append(one);
        let one = self.graph.node(one).results[0];
        let add = Op::Prim(self.add_op("add"), Attrs::none());
        let sum = self.graph.make_node(body, add, vec![param, one], [ty], loc);
        self.graph.append(sum);
        let sum = self.graph.node(sum).results[0];
        self.graph.region_mut(body).yields.push(sum);
        self.autodiff.trips.insert(node, result);
        result
    }

    /// The stack on which the executions of a region inside push `v`, as a handle in the open region around. The first call gives
    /// every construct between the two a stack.
    fn save(&mut self, v: Value) -> Any {
        // The constructs between, innermost first, each with the region that leads to `v`.
        let mut path: Vec<(Node, Region)> = Vec::new();
        let mut region = self.graph.region_of(v);
        while let Some(owner) = self.graph.region(region).owner {
            path.push((owner, region));
            region = self.graph.node(owner).region;
        }
        let base = region;
        // An owner is set when its construct closes, so the climb ends at an open region.
        if let Some(&stack) = self.autodiff.stacks.get(&(v, base)) {
            return self.any(stack);
        }
        path.reverse();
        let Type::Tensor(element) = self.graph.ty(v).clone() else {
            panic!(
                "autodiff saves tensors, not stacks: {v} of `{}`",
                self.graph.name
            )
        };
        let loc = self.graph.loc(v);
        let ty = Type::Stack(element.clone());
        let new = self.graph.make_node(
            base,
            Op::Stack(StackOp::New(element)),
            vec![],
            [ty.clone()],
            loc,
        );
        self.graph.insert_before(new, path[0].0);
        let mut stack = self.graph.node(new).results[0];
        let mut results = Vec::new();
        for &(node, region) in &path {
            let (param, result) = match self.graph.node(node).op {
                Op::While => self.graph.add_loop_variable(node, stack),
                _ => self.graph.add_cond_result(node, stack, region),
            };
            results.push(result);
            stack = param;
        }
        let (_, innermost) = path[path.len() - 1];
        let push = self.graph.make_node(
            innermost,
            Op::Stack(StackOp::Push),
            vec![stack, v],
            [ty],
            loc,
        );
        self.graph.append(push);
        let pushed = self.graph.node(push).results[0];
        let inner = results[1..].iter().copied().chain([pushed]);
        for (&(_, region), value) in path.iter().zip(inner) {
            self.graph.region_mut(region).yields.push(value);
        }
        self.autodiff.stacks.insert((v, base), results[0]);
        self.any(results[0])
    }
}

impl crate::Graph {
    /// Gives a `while` one more loop variable: its parameter in the body, and the result. The body has yet to yield it.
    fn add_loop_variable(&mut self, node: Node, init: Value) -> (Value, Value) {
        let n = self.n_carried(node);
        self.node_mut(node).operands.insert(n, init);
        let ty = self.ty(init).clone();
        let mut param = init;
        for region in self.node(node).regions.clone() {
            param = self.add_param(region, ty.clone(), None);
            let mut params = self.region(region).params.clone();
            params.pop();
            params.insert(n, param);
            self.set_params(region, params);
        }
        (param, self.add_result(node, ty))
    }

    /// Gives a `cond` one more result, which is the new capture `init` but for what the branch `region` makes of it: its parameter
    /// there, and the result. The branch has yet to yield it.
    fn add_cond_result(&mut self, node: Node, init: Value, region: Region) -> (Value, Value) {
        self.node_mut(node).operands.push(init);
        let ty = self.ty(init).clone();
        let mut inner = init;
        for arm in self.node(node).regions.clone() {
            let param = self.add_param(arm, ty.clone(), None);
            if arm == region {
                inner = param;
            } else {
                self.region_mut(arm).yields.push(param);
            }
        }
        (inner, self.add_result(node, ty))
    }
}
