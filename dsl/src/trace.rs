//! Tracing: running a Rust function once to record the graph it stands for.
//!
//! One trace is active per thread. Operations on [`Any`] handles append nodes to the region that is open; staged
//! control flow opens and closes regions. A value of an enclosing region that is used inside becomes a capture: an operand of
//! the construct and a parameter of its regions, made on first use ([`Tracer::resolve`]).
//!
//! Variables are threaded as values: reading one gives its present value, assigning gives it a new one, and constructs
//! carry the variables that are assigned inside. The graph reads a variable once, at its start, and assigns it once, at its
//! end; so a step that fails leaves every variable as it was.
//!
//! An error ends the trace: [`fail`] unwinds, without printing, to [`trace`], which returns the diagnostic.
//!
//! Invariants: regions close in the order opposite to opening; while a construct is open its node is in no region's list, so
//! that whatever is emitted outside meanwhile comes before it.

use crate::ir::{Graph, Node, Op, Region, Value, ValueDef, VarDecl, VarId};
use crate::ops::{InferCx, OpDef};
use crate::var::AnyVar;
use crate::{DType, Diagnostic, Dim, HostTensor, Loc, Result, Shape, TensorType, Type, ir::Attrs};
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

/// An untyped handle of a value in the trace that is active on this thread. [`Tensor`](crate::Tensor) is this with an
/// element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Any {
    trace: u32,
    value: Value,
}

/// The name of a carried variable and the place where it is changed, as `#[graph]` saw them.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// The variable, or the path of fields.
    pub name: &'static str,
    /// File of the assignment.
    pub file: &'static str,
    /// Line of the assignment.
    pub line: u32,
    /// Column of the assignment.
    pub column: u32,
}

impl Site {
    /// The place.
    pub fn loc(&self) -> Loc {
        Loc {
            file: self.file,
            line: self.line,
            column: self.column,
        }
    }
}

/// What a trace gives.
#[derive(Debug)]
pub struct Traced {
    /// The graph.
    pub graph: Graph,
    /// The variables of the graph, in the order of [`Graph::vars`].
    pub vars: Vec<AnyVar>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Cond,
    While,
}

/// A control-flow construct whose regions are open.
struct Construct {
    kind: Kind,
    loc: Loc,
    /// then and else, or cond and body.
    regions: [Region; 2],
    /// Index of the region in which nodes are appended.
    current: usize,
    /// The value outside for each parameter; the parameters of both regions stand in this order.
    outer: Vec<Value>,
    /// Which parameter stands for a captured value.
    captures: HashMap<Value, usize>,
    /// `while`: number of parameters of loop variables that the program declared; they come first.
    declared: usize,
    /// `while`: parameters that are loop variables because of the tracer (variables, and what autodiff adds).
    extra: Vec<usize>,
    /// `while`: the parameter through which a variable is read.
    var_params: HashMap<VarId, usize>,
    /// The present value of variables assigned in the regions.
    var_values: [HashMap<VarId, Value>; 2],
    /// What the condition yields.
    pred: Option<Value>,
}

#[derive(Clone, Copy)]
struct VarState {
    /// The value at the start, read in the root region.
    read: Value,
    /// The value in the root region now.
    current: Value,
}

/// The trace of one function.
pub(crate) struct Tracer {
    id: u32,
    pub(crate) graph: Graph,
    open: Vec<Construct>,
    /// Nodes are appended to the region at this depth: 0 is the root, `open.len()` the innermost.
    depth: usize,
    vars: Vec<AnyVar>,
    var_ids: HashMap<u64, VarId>,
    var_state: Vec<VarState>,
    /// Every value a variable has had, oldest first.
    pub(crate) var_versions: Vec<Vec<Value>>,
    /// What autodiff has added to the control flow of this graph.
    pub(crate) autodiff: crate::autodiff::Augmented,
    /// The location for nodes made by derived rules, if it is not that of the caller.
    loc_override: Option<Loc>,
    scalars: HashMap<(Region, HostTensor), Value>,
    calls: Vec<Call>,
}

/// A call of a graph function that is being traced.
struct Call {
    name: &'static str,
    loc: Loc,
    /// What the names in the shapes of its parameters stand for, and which parameter said so.
    dims: HashMap<&'static str, (Dim, &'static str)>,
}

/// One extent in the `#[shape(..)]` of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// `_`: any.
    Any,
    /// A number.
    Is(usize),
    /// A name: the same extent wherever the call's parameters use the name.
    Named(&'static str),
}

thread_local! {
    static TRACER: RefCell<Option<Tracer>> = const { RefCell::new(None) };
}

static NEXT_TRACE: AtomicU32 = AtomicU32::new(0);

/// The payload with which [`fail`] unwinds.
struct Abort(Diagnostic);

/// Ends the trace with an error.
///
/// Inside of [`trace`] this unwinds to it without printing anything; outside it panics with the rendered error.
#[track_caller]
pub fn fail(error: Diagnostic) -> ! {
    if TRACER.with_borrow(|t| t.is_some()) {
        if cfg!(panic = "abort") {
            eprintln!("{error}");
        }
        resume_unwind(Box::new(Abort(error)))
    }
    panic_any(error.to_string())
}

/// Runs `f` and records the graph `name` of what it does.
///
/// `f` gets what it needs of parameters from [`input`] and gives its outputs as handles.
pub fn trace(name: &str, f: impl FnOnce() -> Vec<Any>) -> Result<Traced> {
    if is_tracing() {
        return Err(Diagnostic::new("a function was traced while another one was being traced")
            .help("call the function directly: a `#[graph]` function is an ordinary function to another one"));
    }
    TRACER.set(Some(Tracer::new(name)));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let outputs = f();
        with(|t| t.finish(&outputs))
    }));
    let tracer = TRACER.take();
    match outcome {
        Ok(result) => result.map(|()| {
            let tracer = tracer.expect("the tracer stays while it traces");
            Traced {
                graph: tracer.graph,
                vars: tracer.vars,
            }
        }),
        Err(payload) => match payload.downcast::<Abort>() {
            Ok(abort) => Err(abort.0),
            Err(panic) => resume_unwind(panic),
        },
    }
}

/// Whether a trace is active on this thread.
pub fn is_tracing() -> bool {
    TRACER.with_borrow(Option::is_some)
}

/// Access to the active tracer; errors outside of a trace.
#[track_caller]
pub(crate) fn with<R>(f: impl FnOnce(&mut Tracer) -> R) -> R {
    let loc = Loc::caller();
    TRACER.with_borrow_mut(|t| t.as_mut().map(f)).unwrap_or_else(|| {
        fail(
            Diagnostic::new("a tensor operation outside of a graph function")
                .at(loc, "no graph is being traced here")
                .help("tensors are symbols: use them inside a function given to `session.function(..)` or `eval(..)`"),
        )
    })
}

/// Like [`with`] for what can fail.
#[track_caller]
pub(crate) fn try_with<R>(f: impl FnOnce(&mut Tracer) -> Result<R>) -> R {
    with(f).unwrap_or_else(|e| fail(e))
}

/// Adds an input to the graph that is being traced.
#[track_caller]
pub fn input(ty: TensorType, name: Option<&'static str>) -> Any {
    with(|t| {
        let root = t.graph.root();
        let value = t.graph.add_param(root, ty.into(), name);
        t.any(value)
    })
}

/// Appends a node for an operation of the table; errors in the operands end the trace at the caller's place.
#[track_caller]
pub fn emit(def: &'static OpDef, operands: &[Any], attrs: Attrs) -> Any {
    let loc = Loc::caller();
    try_with(|t| t.emit(def, operands, attrs, loc))
}

/// Appends a constant.
#[track_caller]
pub fn constant(tensor: HostTensor) -> Any {
    let loc = Loc::caller();
    with(|t| t.constant(tensor, loc))
}

/// Appends an assertion on a `bool[]` (any other shape must hold for all elements).
#[track_caller]
pub fn assert(cond: Any, message: String) {
    let loc = Loc::caller();
    let cond = if cond.rank() > 0 { cond.all() } else { cond };
    try_with(|t| {
        let v = t.resolve(cond, loc)?;
        if *t.graph.ty(v) != Type::tensor(DType::Bool, ()) {
            return Err(Diagnostic::new(format!(
                "assert!: the condition is {}, not bool",
                t.graph.ty(v)
            ))
            .at(loc, ""));
        }
        t.append(Op::Assert { message }, vec![v], [], loc);
        Ok(())
    });
}

/// The present value of a variable.
#[track_caller]
pub fn read_var(var: &AnyVar) -> Any {
    let loc = Loc::caller();
    with(|t| {
        let v = t.read_var(var, loc);
        t.any(v)
    })
}

/// Gives a variable a new value.
#[track_caller]
pub fn assign_var(var: &AnyVar, value: Any) {
    let loc = Loc::caller();
    try_with(|t| t.assign_var(var, value, loc))
}

/// Runs `f` with `loc` as the place of every node it makes.
pub(crate) fn at_loc<R>(loc: Loc, f: impl FnOnce() -> R) -> R {
    let before = with(|t| std::mem::replace(&mut t.loc_override, Some(loc)));
    let r = f();
    with(|t| t.loc_override = before);
    r
}

/// Runs `f`, a part of an operation that was called at `loc`, with that as the place of every node: closures do not pass on the
/// caller's place by themselves. If the operation is itself a part of another one, the outer place stays.
pub(crate) fn called_at<R>(loc: Loc, f: impl FnOnce() -> R) -> R {
    let outer = with(|t| t.loc_override);
    at_loc(outer.unwrap_or(loc), f)
}

/// Runs `f` with nodes appended to the region at `depth` instead of the innermost one.
pub(crate) fn at_depth<R>(depth: usize, f: impl FnOnce() -> R) -> R {
    let before = with(|t| {
        assert!(depth <= t.open.len(), "no region is open at depth {depth}");
        std::mem::replace(&mut t.depth, depth)
    });
    let r = f();
    with(|t| t.depth = before);
    r
}

/// Depth of the region that nodes are appended to.
pub(crate) fn depth() -> usize {
    with(|t| t.depth)
}

/// Guards the call of a graph function: nested too deep is recursion, which tracing cannot end.
#[must_use]
#[derive(Debug)]
pub struct CallGuard(bool);

/// Depth of nested calls at which recursion is assumed.
const MAX_CALLS: usize = 128;

/// Notes that a graph function is being called.
pub fn enter(name: &'static str, site: Site) -> CallGuard {
    if !is_tracing() {
        return CallGuard(false);
    }
    try_with(|t| {
        t.calls.push(Call {
            name,
            loc: site.loc(),
            dims: HashMap::new(),
        });
        if t.calls.len() > MAX_CALLS {
            let chain: Vec<_> = t
                .calls
                .iter()
                .rev()
                .take(4)
                .rev()
                .map(|c| format!("`{}`", c.name))
                .collect();
            return Err(Diagnostic::new(format!("`{name}` calls itself without end while it is traced"))
                .at(site.loc(), format!("after {MAX_CALLS} nested calls: .. {}", chain.join(" -> ")))
                .help("a graph has no recursion: write it as a `while` over tensors, or let host values end it"));
        }
        Ok(CallGuard(true))
    })
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if self.0 {
            TRACER.with_borrow_mut(|t| {
                if let Some(t) = t {
                    t.calls.pop();
                }
            });
        }
    }
}

/// Names a parameter of the graph function that was just entered, for messages and printing.
pub fn name_param(param: Any, name: &'static str) {
    if is_tracing() {
        param.named(name);
    }
}

/// Checks a parameter of the graph function that was just entered against its `#[shape(..)]`.
pub fn expect_shape(param: Any, name: &'static str, extents: &[Extent], site: Site) {
    try_with(|t| {
        let ty = t.graph.ty(param.value).element().clone();
        let call = t
            .calls
            .last_mut()
            .expect("a graph function is entered before its parameters are checked");
        let mut fits = ty.rank() == extents.len();
        let mut because = String::new();
        for (dim, extent) in ty.shape.dims().iter().zip(extents) {
            let expected = match extent {
                Extent::Any => continue,
                Extent::Is(n) => Dim::Known(*n),
                Extent::Named(n) => {
                    let (expected, by) = call.dims.entry(n).or_insert((dim.clone(), name));
                    if !dim.compatible(expected) {
                        because = format!("`{n}` is {expected} in `{by}`");
                    }
                    expected.clone()
                }
            };
            fits &= dim.compatible(&expected);
        }
        if fits {
            return Ok(());
        }
        let show = |e: &Extent| match e {
            Extent::Any => "_".to_owned(),
            Extent::Is(n) => n.to_string(),
            Extent::Named(n) => (*n).to_owned(),
        };
        let extents: Vec<String> = extents.iter().map(show).collect();
        let expected = format!("{}[{}]", ty.dtype, extents.join(", "));
        let message = format!(
            "`{}`: the parameter `{name}` is {expected}, given {ty}",
            call.name
        );
        let error = Diagnostic::new(message)
            .at(site.loc(), format!("expected {expected}"))
            .at(call.loc, "in this function");
        Err(if because.is_empty() {
            error
        } else {
            error.help(because)
        })
    });
}

impl Any {
    /// The type of the value.
    #[track_caller]
    pub fn ty(self) -> Type {
        let loc = Loc::caller();
        try_with(|t| {
            t.check_trace(self, loc)?;
            Ok(t.graph.ty(self.value).clone())
        })
    }

    /// The type of the tensor.
    #[track_caller]
    pub fn tensor_type(self) -> TensorType {
        self.ty()
            .as_tensor()
            .expect("a user's handle is a tensor")
            .clone()
    }

    /// The shape.
    #[track_caller]
    pub fn shape(self) -> Shape {
        self.tensor_type().shape
    }

    /// The element type.
    #[track_caller]
    pub fn dtype(self) -> DType {
        self.ty().element().dtype
    }

    /// Number of dimensions.
    #[track_caller]
    pub fn rank(self) -> usize {
        self.shape().rank()
    }

    /// The value in the graph being traced.
    pub fn value(self) -> Value {
        self.value
    }

    /// Names the value for messages and printing, if it has no name.
    pub fn named(self, name: &'static str) -> Any {
        with(|t| {
            let data = t.graph.value_mut(self.value);
            data.name = data.name.or(Some(name));
        });
        self
    }
}

impl Tracer {
    fn new(name: &str) -> Tracer {
        Tracer {
            id: NEXT_TRACE.fetch_add(1, Ordering::Relaxed),
            graph: Graph::new(name),
            open: Vec::new(),
            depth: 0,
            vars: Vec::new(),
            var_ids: HashMap::new(),
            var_state: Vec::new(),
            var_versions: Vec::new(),
            autodiff: Default::default(),
            loc_override: None,
            scalars: HashMap::new(),
            calls: Vec::new(),
        }
    }

    /// A handle of a value.
    pub(crate) fn any(&self, value: Value) -> Any {
        Any {
            trace: self.id,
            value,
        }
    }

    fn check_trace(&self, any: Any, loc: Loc) -> Result<()> {
        if any.trace == self.id {
            return Ok(());
        }
        Err(Diagnostic::new("a tensor of another trace")
            .at(loc, "used here")
            .help("a tensor is a symbol of the function that made it: pass values between calls as arguments and results"))
    }

    /// The region in which nodes are appended at `depth`.
    fn region_at(&self, depth: usize) -> Region {
        match depth.checked_sub(1) {
            None => self.graph.root(),
            Some(i) => self.open[i].regions[self.open[i].current],
        }
    }

    /// The value by which the present region sees `any`, capturing it where needed.
    pub(crate) fn resolve(&mut self, any: Any, loc: Loc) -> Result<Value> {
        self.check_trace(any, loc)?;
        self.resolve_at(any.value, self.depth, loc)
    }

    fn resolve_at(&mut self, value: Value, depth: usize, loc: Loc) -> Result<Value> {
        self.resolve_in(value, depth, self.region_at(depth), loc)
    }

    /// Resolves in `region`, which is one of the regions of the construct at `depth`.
    fn resolve_in(
        &mut self,
        value: Value,
        depth: usize,
        region: Region,
        loc: Loc,
    ) -> Result<Value> {
        if self.graph.region_of(value) == region {
            return Ok(value);
        }
        if depth == 0 {
            return Err(
                Diagnostic::new("a tensor of a branch or loop body is used outside of it")
                    .at(loc, "used here")
                    .at(self.graph.loc(value), "made here")
                    .help("assign it to a variable declared before the `if` or `while`"),
            );
        }
        let outer = self.resolve_at(value, depth - 1, loc)?;
        let which = usize::from(self.open[depth - 1].regions[1] == region);
        let index = match self.open[depth - 1].captures.get(&outer) {
            Some(&i) => i,
            None => {
                let i = self.add_construct_param(depth - 1, outer, None);
                self.open[depth - 1].captures.insert(outer, i);
                i
            }
        };
        Ok(self
            .graph
            .region(self.open[depth - 1].regions[which])
            .params[index])
    }

    /// The place that made a value, or for a parameter the value outside.
    fn origin(&self, value: Value) -> Loc {
        let ValueDef::Param(region, i) = self.graph.value(value).def else {
            return self.graph.loc(value);
        };
        self.open_outer(region, i as usize)
            .map_or(Loc::UNKNOWN, |outer| self.origin(outer))
    }

    /// Adds a parameter for `outer` to both regions of an open construct.
    fn add_construct_param(
        &mut self,
        construct: usize,
        outer: Value,
        name: Option<&'static str>,
    ) -> usize {
        let ty = self.graph.ty(outer).clone();
        let name = name.or(self.graph.value(outer).name);
        for region in self.open[construct].regions {
            self.graph.add_param(region, ty.clone(), name);
        }
        self.open[construct].outer.push(outer);
        self.open[construct].outer.len() - 1
    }

    /// Appends a node to the present region.
    pub(crate) fn append(
        &mut self,
        op: Op,
        operands: Vec<Value>,
        results: impl IntoIterator<Item = Type>,
        loc: Loc,
    ) -> Node {
        let region = self.region_at(self.depth);
        let loc = self.loc_override.unwrap_or(loc);
        let node = self.graph.make_node(region, op, operands, results, loc);
        self.graph.append(node);
        node
    }

    fn emit(
        &mut self,
        def: &'static OpDef,
        operands: &[Any],
        attrs: Attrs,
        loc: Loc,
    ) -> Result<Any> {
        let loc = self.loc_override.unwrap_or(loc);
        let values = operands
            .iter()
            .map(|&a| self.resolve(a, loc))
            .collect::<Result<Vec<_>>>()?;
        let types: Vec<&Type> = values.iter().map(|&v| self.graph.ty(v)).collect();
        let ty = (def.infer)(&InferCx {
            operands: &types,
            attrs: &attrs,
        })
        .map_err(|e| {
            let mut diagnostic = e.at(def.name, loc);
            if diagnostic.labels[0].1.is_empty() {
                let types: Vec<_> = types.iter().map(|t| t.to_string()).collect();
                diagnostic.labels[0].1 = types.join(", ");
            }
            diagnostic
        })?;
        let node = self.append(Op::Prim(def, attrs), values, [ty], loc);
        Ok(self.any(self.graph.node(node).results[0]))
    }

    fn constant(&mut self, tensor: HostTensor, loc: Loc) -> Any {
        let region = self.region_at(self.depth);
        let is_scalar = tensor.rank() == 0;
        if is_scalar && let Some(&v) = self.scalars.get(&(region, tensor.clone())) {
            return self.any(v);
        }
        let node = self.append(
            Op::Constant(tensor.clone()),
            vec![],
            [tensor.ty().into()],
            loc,
        );
        let value = self.graph.node(node).results[0];
        if is_scalar {
            self.scalars.insert((region, tensor), value);
        }
        self.any(value)
    }

    // Variables.

    fn var_id(&mut self, var: &AnyVar, loc: Loc) -> VarId {
        if let Some(&id) = self.var_ids.get(&var.id()) {
            return id;
        }
        let id = VarId::from_index(self.vars.len());
        let taken = |name: &str| self.graph.vars.iter().any(|v| v.name == name);
        let mut name = var.name().to_owned();
        if taken(&name) {
            name = (2..)
                .map(|i| format!("{}_{i}", var.name()))
                .find(|n| !taken(n))
                .expect("some number is free");
        }
        self.graph.vars.push(VarDecl {
            name,
            ty: var.ty().clone(),
        });
        self.vars.push(var.clone());
        self.var_ids.insert(var.id(), id);
        let depth = std::mem::replace(&mut self.depth, 0);
        let node = self.append(Op::Read(id), vec![], [var.ty().clone().into()], loc);
        self.depth = depth;
        let read = self.graph.node(node).results[0];
        self.var_state.push(VarState {
            read,
            current: read,
        });
        self.var_versions.push(vec![read]);
        id
    }

    /// The id of a variable if this trace has used it.
    pub(crate) fn known_var(&self, var: &AnyVar) -> Option<VarId> {
        self.var_ids.get(&var.id()).copied()
    }

    fn read_var(&mut self, var: &AnyVar, loc: Loc) -> Value {
        let id = self.var_id(var, loc);
        self.var_at(id, self.depth)
    }

    /// The present value of a variable, seen from the region at `depth`.
    fn var_at(&mut self, id: VarId, depth: usize) -> Value {
        if depth == 0 {
            return self.var_state[id.index()].current;
        }
        let c = &self.open[depth - 1];
        if let Some(&v) = c.var_values[c.current].get(&id) {
            return v;
        }
        if c.kind == Kind::Cond {
            let outer = self.var_at(id, depth - 1);
            return self
                .resolve_at(outer, depth, Loc::UNKNOWN)
                .expect("values of enclosing regions are visible");
        }
        let index = match c.var_params.get(&id) {
            Some(&i) => i,
            None => {
                let outer = self.var_at(id, depth - 1);
                let i = self.add_construct_param(depth - 1, outer, None);
                self.open[depth - 1].extra.push(i);
                self.open[depth - 1].var_params.insert(id, i);
                for region in self.open[depth - 1].regions {
                    let version = self.graph.region(region).params[i];
                    self.var_versions[id.index()].push(version);
                }
                i
            }
        };
        self.graph.region(self.region_at(depth)).params[index]
    }

    fn assign_var(&mut self, var: &AnyVar, value: Any, loc: Loc) -> Result<()> {
        let v = self.resolve(value, loc)?;
        if *self.graph.ty(v) != Type::Tensor(var.ty().clone()) {
            return Err(
                Diagnostic::new(format!("the variable `{}` is {}", var.name(), var.ty()))
                    .at(loc, format!("assigned {}", self.graph.ty(v)))
                    .help("a variable keeps its element type and shape"),
            );
        }
        let id = self.var_id(var, loc);
        // Reading first makes the variable a parameter of every enclosing loop.
        self.var_at(id, self.depth);
        self.set_var(id, self.depth, v);
        Ok(())
    }

    fn set_var(&mut self, id: VarId, depth: usize, value: Value) {
        self.var_versions[id.index()].push(value);
        match depth.checked_sub(1) {
            None => self.var_state[id.index()].current = value,
            Some(i) => {
                let current = self.open[i].current;
                self.open[i].var_values[current].insert(id, value);
            }
        }
    }

    /// Values a variable has had that are visible now, latest first.
    pub(crate) fn visible_versions(&self, id: VarId) -> Vec<Value> {
        let visible: Vec<Region> = (0..=self.depth).map(|d| self.region_at(d)).collect();
        let versions = self.var_versions[id.index()].iter().rev();
        versions
            .copied()
            .filter(|&v| visible.contains(&self.graph.region_of(v)))
            .collect()
    }

    // What autodiff asks.

    /// The value by which the present region sees `any`.
    pub(crate) fn resolve_for_gradient(&mut self, any: Any, loc: Loc) -> Result<Value> {
        self.check_trace(any, loc)?;
        // A value of an open region is differentiated where it is: the sweep goes through all of them.
        let open = (0..=self.depth).any(|d| self.region_at(d) == self.graph.region_of(any.value));
        if open {
            Ok(any.value)
        } else {
            self.resolve(any, loc)
        }
    }

    pub(crate) fn depth_now(&self) -> usize {
        self.depth
    }

    /// The region at `depth` in which nodes are appended.
    pub(crate) fn region_of_depth(&self, depth: usize) -> Region {
        self.region_at(depth)
    }

    /// Parameters of the present region of the open construct at `depth`, each with the value outside.
    pub(crate) fn open_params(&self, depth: usize) -> Vec<(Value, Value)> {
        let params = &self.graph.region(self.region_at(depth)).params;
        params
            .iter()
            .copied()
            .zip(self.open[depth - 1].outer.iter().copied())
            .collect()
    }

    /// The value outside for a parameter of an open region.
    pub(crate) fn open_outer(&self, region: Region, param: usize) -> Option<Value> {
        self.open
            .iter()
            .find(|c| c.regions.contains(&region))
            .map(|c| c.outer[param])
    }

    /// Whether a parameter of the open construct at `depth` is a loop variable, or may become one.
    pub(crate) fn is_open_carried(&self, depth: usize, param: Value) -> bool {
        let c = &self.open[depth - 1];
        let ValueDef::Param(_, i) = self.graph.value(param).def else {
            return false;
        };
        c.kind == Kind::While && ((i as usize) < c.declared || c.extra.contains(&(i as usize)))
    }

    /// Appends a stack operation whose operands fit.
    pub(crate) fn emit_stack(
        &mut self,
        op: crate::ir::StackOp,
        operands: &[Any],
    ) -> Result<Vec<Any>> {
        use crate::ir::StackOp;
        let values = operands
            .iter()
            .map(|&a| self.resolve(a, Loc::UNKNOWN))
            .collect::<Result<Vec<_>>>()?;
        let stack = values.first().map(|&v| self.graph.ty(v).clone());
        let types = match (&op, stack) {
            (StackOp::New(element), _) => vec![Type::Stack(element.clone())],
            (StackOp::Pop, Some(Type::Stack(element))) => {
                vec![Type::Stack(element.clone()), Type::Tensor(element)]
            }
            (StackOp::Push | StackOp::ZerosLike | StackOp::Add, Some(stack @ Type::Stack(_))) => {
                vec![stack]
            }
            (op, ty) => panic!("{op:?} of {ty:?}"),
        };
        let node = self.append(Op::Stack(op), values, types, Loc::UNKNOWN);
        Ok(self
            .graph
            .node(node)
            .results
            .iter()
            .map(|&v| self.any(v))
            .collect())
    }

    // Constructs.

    fn open_construct(&mut self, kind: Kind, loc: Loc) {
        assert_eq!(
            self.depth,
            self.open.len(),
            "control flow is opened in the innermost region"
        );
        let regions = [self.graph.add_region(), self.graph.add_region()];
        self.open.push(Construct {
            kind,
            loc: self.loc_override.unwrap_or(loc),
            regions,
            current: 0,
            outer: Vec::new(),
            captures: HashMap::new(),
            declared: 0,
            extra: Vec::new(),
            var_params: HashMap::new(),
            var_values: Default::default(),
            pred: None,
        });
        self.depth += 1;
    }

    fn finish(&mut self, outputs: &[Any]) -> Result<()> {
        assert!(
            self.open.is_empty(),
            "a control-flow construct was left open"
        );
        let outputs = outputs
            .iter()
            .map(|&o| self.resolve(o, Loc::UNKNOWN))
            .collect::<Result<Vec<_>>>()?;
        let root = self.graph.root();
        self.graph.region_mut(root).yields = outputs;
        for (i, state) in self.var_state.clone().into_iter().enumerate() {
            if state.current != state.read {
                self.append(
                    Op::Assign(VarId::from_index(i)),
                    vec![state.current],
                    [],
                    Loc::UNKNOWN,
                );
            }
        }
        Ok(())
    }
}

fn mismatch(
    what: &str,
    site: Option<&Site>,
    before: (&Type, Loc),
    after: (&Type, Loc),
    words: [&str; 2],
) -> Diagnostic {
    let name = site.map_or_else(|| "the value".to_owned(), |s| format!("`{}`", s.name));
    let help = if before.0.element().dtype != after.0.element().dtype {
        "give it the same element type on both sides, with `.cast()`"
    } else if before.0.element().rank() != after.0.element().rank() {
        "give it the same number of dimensions on both sides, with `.broadcast_to(..)` or `.reshape(..)`"
    } else {
        "give it the same shape on both sides"
    };
    let mut d = Diagnostic::new(format!(
        "{name} has type {} {}, but {} {}",
        before.0, words[0], after.0, words[1]
    ));
    let place = site.map_or(after.1, Site::loc);
    d = d.at(
        if after.1.is_known() { after.1 } else { place },
        format!("{} {what}", after.0),
    );
    if before.1.is_known() {
        d = d.at(before.1, format!("{} here", before.0));
    }
    d.help(help)
}

/// An open `cond`: the tracing side of a staged `if`.
#[must_use]
#[derive(Debug)]
pub struct CondTrace {
    construct: usize,
    pred: Value,
}

impl CondTrace {
    /// Opens the region of the first branch.
    #[track_caller]
    pub fn begin(pred: Any) -> CondTrace {
        let loc = Loc::caller();
        try_with(|t| {
            let pred = t.predicate(pred, "if", loc)?;
            t.open_construct(Kind::Cond, loc);
            Ok(CondTrace {
                construct: t.open.len() - 1,
                pred,
            })
        })
    }

    /// Makes the first (0) or second (1) branch the one to which nodes are appended.
    pub fn select(&mut self, branch: usize) {
        with(|t| {
            assert_eq!(
                t.open.len(),
                self.construct + 1,
                "an inner construct was left open"
            );
            t.open[self.construct].current = branch;
        });
    }

    /// Closes the construct. `then[i]` and `otherwise[i]` are the two values of the i-th result; a value that neither branch
    /// changed comes back as it was. `sites` names the first results for messages.
    #[track_caller]
    pub fn end(self, then: &[Any], otherwise: &[Any], sites: &[Site]) -> Vec<Any> {
        let loc = Loc::caller();
        try_with(|t| t.end_cond(self, then, otherwise, sites, loc))
    }
}

impl Tracer {
    fn predicate(&mut self, pred: Any, construct: &str, loc: Loc) -> Result<Value> {
        let pred = self.resolve(pred, loc)?;
        let ty = self.graph.ty(pred);
        if *ty == Type::tensor(DType::Bool, ()) {
            return Ok(pred);
        }
        let message = format!("the condition of `{construct}` is {ty}, not a scalar bool[]");
        let help = "reduce it with `.all()` or `.any()`, or choose elementwise with `condition.select(a, b)`";
        Err(Diagnostic::new(message).at(loc, ty.to_string()).help(help))
    }

    fn end_cond(
        &mut self,
        cond: CondTrace,
        then: &[Any],
        otherwise: &[Any],
        sites: &[Site],
        loc: Loc,
    ) -> Result<Vec<Any>> {
        assert_eq!(
            then.len(),
            otherwise.len(),
            "the branches of a cond give equally many values"
        );
        assert_eq!(
            self.open.len(),
            cond.construct + 1,
            "an inner construct was left open"
        );
        let depth = self.open.len();
        let [r0, r1] = self.open[cond.construct].regions;
        let mut sides = [Vec::new(), Vec::new()];
        for (side, (region, values)) in [(r0, then), (r1, otherwise)].into_iter().enumerate() {
            for &any in values {
                self.check_trace(any, loc)?;
                let value = self.resolve_in(any.value, depth, region, loc)?;
                sides[side].push(value);
            }
        }
        let c = &self.open[cond.construct];
        let mut written: Vec<VarId> = c.var_values[0]
            .keys()
            .chain(c.var_values[1].keys())
            .copied()
            .collect();
        written.sort();
        written.dedup();
        for &id in &written {
            let outer = self.var_at(id, depth - 1);
            for (side, region) in [r0, r1].into_iter().enumerate() {
                let value = match self.open[cond.construct].var_values[side].get(&id) {
                    Some(&v) => v,
                    None => self.resolve_in(outer, depth, region, loc)?,
                };
                sides[side].push(value);
            }
        }
        let [a, b] = sides;

        // A result that both branches take unchanged from outside is that value.
        let mut results = Vec::new();
        let (mut yields, mut types) = ([Vec::new(), Vec::new()], Vec::new());
        for (i, (&x, &y)) in a.iter().zip(&b).enumerate() {
            let param = |v: Value| match self.graph.value(v).def {
                ValueDef::Param(r, p) if r == r0 || r == r1 => Some(p),
                _ => None,
            };
            if let (Some(p), Some(q)) = (param(x), param(y))
                && p == q
            {
                results.push(Err(self.open[cond.construct].outer[p as usize]));
                continue;
            }
            let (tx, ty) = (self.graph.ty(x).clone(), self.graph.ty(y).clone());
            if !tx.compatible(&ty) {
                let words = ["in one branch", "in the other"];
                let (x, y) = ((&tx, self.origin(x)), (&ty, self.origin(y)));
                return Err(mismatch("here", sites.get(i), x, y, words)
                    .or_at(self.open[cond.construct].loc));
            }
            results.push(Ok(types.len()));
            yields[0].push(x);
            yields[1].push(y);
            // Either branch may run, so an extent is known only if it is the same in both.
            types.push(tx.join(&ty).expect("compatible types have a common one"));
        }
        let c = self.open.pop().expect("the construct is open");
        self.depth -= 1;
        let [y0, y1] = yields;
        self.graph.region_mut(r0).yields = y0;
        self.graph.region_mut(r1).yields = y1;
        let operands = std::iter::once(cond.pred)
            .chain(c.outer.iter().copied())
            .collect();
        let loc = if c.loc.is_known() { c.loc } else { loc };
        let node = self.append(Op::Cond, operands, types, loc);
        self.graph.set_regions(node, vec![r0, r1]);
        let results: Vec<Value> = results
            .into_iter()
            .map(|r| match r {
                Ok(i) => self.graph.node(node).results[i],
                Err(outer) => outer,
            })
            .collect();
        for (&id, &value) in written.iter().zip(&results[then.len()..]) {
            self.set_var(id, self.depth, value);
        }
        for (site, &r) in sites.iter().zip(&results) {
            self.graph.value_mut(r).name.get_or_insert(site.name);
        }
        Ok(results[..then.len()].iter().map(|&v| self.any(v)).collect())
    }
}

impl Diagnostic {
    /// Makes sure that the error has a known first place.
    fn or_at(mut self, loc: Loc) -> Diagnostic {
        if self.loc().is_none() {
            let label = if self.labels.is_empty() {
                String::new()
            } else {
                self.labels.remove(0).1
            };
            self.labels.insert(0, (loc, label));
        }
        self
    }
}

/// An open `while`: the tracing side of a staged loop.
#[must_use]
#[derive(Debug)]
pub struct WhileTrace {
    construct: usize,
}

impl WhileTrace {
    /// Opens the region of the condition; gives the loop variables as it sees them.
    #[track_caller]
    pub fn begin(init: &[Any], sites: &[Site]) -> (WhileTrace, Vec<Any>) {
        let loc = Loc::caller();
        try_with(|t| {
            let init = init
                .iter()
                .map(|&a| t.resolve(a, loc))
                .collect::<Result<Vec<_>>>()?;
            t.open_construct(Kind::While, loc);
            let construct = t.open.len() - 1;
            for (i, &v) in init.iter().enumerate() {
                t.add_construct_param(construct, v, sites.get(i).map(|s| s.name));
            }
            t.open[construct].declared = init.len();
            let params = t.params_of(construct, 0, init.len());
            Ok((WhileTrace { construct }, params))
        })
    }

    /// Closes the condition and opens the body; gives the loop variables as it sees them.
    #[track_caller]
    pub fn begin_body(&mut self, pred: Any) -> Vec<Any> {
        let loc = Loc::caller();
        try_with(|t| {
            assert_eq!(
                t.open.len(),
                self.construct + 1,
                "an inner construct was left open"
            );
            let pred = t.predicate(pred, "while", loc)?;
            if let Some(&id) = t.open[self.construct].var_values[0].keys().next() {
                let name = &t.graph.vars[id.index()].name;
                return Err(Diagnostic::new(format!(
                    "the condition of a staged `while` assigns the variable `{name}`"
                ))
                .at(loc, "in this condition")
                .help("assign it in the body"));
            }
            let c = &mut t.open[self.construct];
            c.pred = Some(pred);
            c.current = 1;
            Ok(t.params_of(self.construct, 1, t.open[self.construct].declared))
        })
    }

    /// Adds a loop variable while the body is open: the handle of its value in the body.
    #[track_caller]
    pub(crate) fn add_carried(&mut self, init: Any) -> Any {
        let loc = Loc::caller();
        try_with(|t| {
            let outer = {
                t.check_trace(init, loc)?;
                t.resolve_at(init.value, self.construct, loc)?
            };
            let i = t.add_construct_param(self.construct, outer, None);
            t.open[self.construct].extra.push(i);
            let param = t.graph.region(t.open[self.construct].regions[1]).params[i];
            Ok(t.any(param))
        })
    }

    /// Closes the loop. `next[i]` is the next value of the i-th declared loop variable; `extra` gives the next values of those
    /// that [`add_carried`](Self::add_carried) added, in order. The results come in the same order; a variable that the body
    /// does not change comes back as its initial value.
    #[track_caller]
    pub fn end(self, next: &[Any], sites: &[Site]) -> Vec<Any> {
        self.end_with(next, &[], sites)
    }

    #[track_caller]
    pub(crate) fn end_with(self, next: &[Any], extra: &[Any], sites: &[Site]) -> Vec<Any> {
        let loc = Loc::caller();
        try_with(|t| t.end_while(self, next, extra, sites, loc))
    }
}

impl Tracer {
    fn params_of(&self, construct: usize, which: usize, n: usize) -> Vec<Any> {
        let params = &self
            .graph
            .region(self.open[construct].regions[which])
            .params;
        params[..n].iter().map(|&p| self.any(p)).collect()
    }

    fn end_while(
        &mut self,
        trace: WhileTrace,
        next: &[Any],
        extra: &[Any],
        sites: &[Site],
        loc: Loc,
    ) -> Result<Vec<Any>> {
        let construct = trace.construct;
        assert_eq!(
            self.open.len(),
            construct + 1,
            "an inner construct was left open"
        );
        assert_eq!(
            next.len(),
            self.open[construct].declared,
            "one next value for each loop variable"
        );
        let depth = self.open.len();
        let [cond, body] = self.open[construct].regions;
        let next = next
            .iter()
            .map(|&a| self.resolve(a, loc))
            .collect::<Result<Vec<_>>>()?;
        let extra_next = extra
            .iter()
            .map(|&a| self.resolve(a, loc))
            .collect::<Result<Vec<_>>>()?;

        // All loop variables: parameter and next value.
        let mut carried: Vec<(usize, Value)> = next.iter().copied().enumerate().collect();
        let mut vars: Vec<(VarId, usize)> = self.open[construct]
            .var_params
            .iter()
            .map(|(&id, &i)| (id, i))
            .collect();
        vars.sort();
        let is_var = |i: usize| vars.iter().any(|&(_, p)| p == i);
        let added: Vec<usize> = self.open[construct]
            .extra
            .iter()
            .copied()
            .filter(|&i| !is_var(i))
            .collect();
        assert_eq!(
            added.len(),
            extra_next.len(),
            "one next value for each added loop variable"
        );
        carried.extend(added.into_iter().zip(extra_next));
        let n_results = carried.len();
        for &(id, i) in &vars {
            let written = self.open[construct].var_values[1].get(&id).copied();
            carried.push((i, written.unwrap_or(self.graph.region(body).params[i])));
        }

        // Those that change are results; the others are captures.
        let c = &self.open[construct];
        let mut changing = Vec::new();
        let mut results = Vec::new();
        for (k, &(i, value)) in carried.iter().enumerate() {
            let unchanged = match self.graph.value(value).def {
                ValueDef::Param(r, p) => {
                    r == body
                        && (p as usize == i || {
                            let p = p as usize;
                            p >= c.declared && !c.extra.contains(&p) && c.outer[p] == c.outer[i]
                        })
                }
                ValueDef::Result(..) => false,
            };
            if unchanged {
                results.push(Err(c.outer[i]));
                continue;
            }
            let (before, after) = (self.graph.ty(c.outer[i]), self.graph.ty(value));
            if before != after {
                let words = ["before the loop", "after one iteration"];
                let (x, y) = (
                    (before, self.origin(c.outer[i])),
                    (after, self.origin(value)),
                );
                let site = if k < next.len() { sites.get(k) } else { None };
                return Err(mismatch("after one iteration", site, x, y, words).or_at(c.loc));
            }
            results.push(Ok(changing.len()));
            changing.push((i, value));
        }
        let c = self.open.pop().expect("the construct is open");
        self.depth = depth - 1;

        // Loop variables first, then captures.
        let is_changing = |i: usize| changing.iter().any(|&(j, _)| j == i);
        let order: Vec<usize> = changing
            .iter()
            .map(|&(i, _)| i)
            .chain((0..c.outer.len()).filter(|&i| !is_changing(i)))
            .collect();
        for region in c.regions {
            let params = &self.graph.region(region).params;
            let params = order.iter().map(|&i| params[i]).collect();
            self.graph.set_params(region, params);
        }
        self.graph.region_mut(cond).yields = vec![c.pred.expect("begin_body was called")];
        self.graph.region_mut(body).yields = changing.iter().map(|&(_, v)| v).collect();
        let operands = order.iter().map(|&i| c.outer[i]).collect();
        let types: Vec<Type> = changing
            .iter()
            .map(|&(i, _)| self.graph.ty(c.outer[i]).clone())
            .collect();
        let loc = if c.loc.is_known() { c.loc } else { loc };
        let node = self.append(Op::While, operands, types, loc);
        self.graph.set_regions(node, vec![cond, body]);
        let results: Vec<Value> = results
            .into_iter()
            .map(|r| match r {
                Ok(i) => self.graph.node(node).results[i],
                Err(outer) => outer,
            })
            .collect();
        for (&(id, i), &value) in vars.iter().zip(&results[n_results..]) {
            if is_changing(i) {
                self.set_var(id, self.depth, value);
            }
        }
        for (site, &r) in sites.iter().zip(&results) {
            self.graph.value_mut(r).name.get_or_insert(site.name);
        }
        Ok(results[..n_results].iter().map(|&v| self.any(v)).collect())
    }
}
