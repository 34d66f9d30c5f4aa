//! Tracing: running a Rust function once to record a graph.
//!
//! One trace is active per thread. Operations on [`AnyValue`] handles append nodes to the open
//! region; staged control flow opens and closes regions. A value of an enclosing region that is
//! used inside becomes a capture: an operand of the construct and a parameter of its regions,
//! created on first use (`Tracer::resolve`).
//!
//! Variables are threaded as values. Reading one returns its current value, assigning it replaces
//! that, and constructs carry the variables that are assigned inside. The graph reads a variable
//! once, at its start, and assigns it once, at its end. So a step that fails leaves every variable
//! unmodified.
//!
//! An error ends the trace: [`fail`] unwinds, without printing, to [`trace`], which returns the
//! diagnostic.
//!
//! Invariants:
//!
//! - Regions close in the reverse order of opening.
//! - While a construct is open, its node is in no region's list, so nodes that are meanwhile
//!   appended outside precede it.

mod call;
mod call_node;
mod cond;
mod device_scope;
mod endless;
mod names;
mod segments;
mod variables;
mod while_loop;

use crate::diagnostic::{Abort, abort};
use crate::format::{Stream, Template, TemplatePiece};
use crate::ir::{
    FileOp, Graph, GraphBuilder, InsertPoint, ListOp, MAX_OPEN, Node, Op, Origin, QueueDecl, QueueId, QueueOp, Region,
    Value, ValueDef, VarDecl, VarId,
};
pub use crate::ops::emit;
use crate::ops::{AnyValue, InTrace, OpError, Prim, ValueCx};
use crate::passes::CommitLoop;
use crate::queue::AnyQueue;
use crate::var::AnyVar;
use crate::{DType, Diagnostic, HostTensor, Loc, Result, TensorType, Type, ir::Attrs};
pub(crate) use call::max_iterations;
pub use call::{CallGuard, Extent, bound_loops, enter, expect_shape, name_param, overlap_loops};
pub(crate) use call_node::CallTrace;
pub use cond::CondTrace;
pub(crate) use cond::{is_constant, take_unconditional, unconditional};
pub use device_scope::on;
pub(crate) use device_scope::{DeviceScope, device_scope, named_at};
pub use endless::count_endless;
pub(crate) use endless::count_unrolled;
pub use names::Named;
use rustc_hash::FxHashMap;
pub(crate) use segments::{Segments, segment_loop};
pub(crate) use variables::{note_var_path, var_path};
pub use while_loop::{WhileTrace, commit_each_iteration};

use call::OpenCall;
use endless::Repetitions;
use std::cell::RefCell;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

/// The name of a carried variable, and the location of its modification, as `#[graph]` saw them.
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
    /// Returns the caller's location.
    #[track_caller]
    pub fn caller(name: &'static str) -> Site {
        let Loc { file, line, column } = Loc::caller();
        Site { name, file, line, column }
    }

    /// Returns the name for messages. A variable that `#[graph]` created for the value of a jump is
    /// called after the jump.
    pub(crate) fn shown(&self) -> &'static str {
        [("__result", "return"), ("__broken", "break")]
            .into_iter()
            .find_map(|(helper, jump)| self.name.starts_with(helper).then_some(jump))
            .unwrap_or(self.name)
    }

    /// Returns the location.
    pub fn loc(&self) -> Loc {
        Loc { file: self.file, line: self.line, column: self.column }
    }
}

/// The result of a trace.
#[derive(Debug)]
pub struct Traced {
    /// The graph.
    pub graph: Graph,
    /// The variables of the graph, in the order of [`Graph::vars`].
    pub vars: Vec<AnyVar>,
    /// The queues of the graph, in the order of [`Graph::queues`].
    pub queues: Vec<AnyQueue>,
    /// The names that the program gave to values, in its order.
    pub names: Vec<Named>,
    /// The loop whose iterations are steps of their own.
    pub commit_loop: Option<CommitLoop>,
}

/// The kind of an open construct, with the state that only this kind has.
enum OpenKind {
    Cond,
    While(OpenWhile),
    Call {
        /// The parameters of the gradient region that correspond to no value outside of it.
        own: Vec<Value>,
    },
}

/// The state of an open `while`.
#[derive(Default)]
struct OpenWhile {
    /// The number of loop variables that the program declared. The parameters of declared loop
    /// variables come first.
    declared: usize,
    /// Parameters that are loop variables because of the tracer (variables of the function, and
    /// additions of autodiff).
    extra: Vec<usize>,
    /// The parameter through which a variable is read.
    var_params: FxHashMap<VarId, usize>,
    /// The value that the condition yields.
    pred: Option<Value>,
    /// The modifications by the condition.
    after_condition: Option<ConditionEffects>,
    /// Whether and how it runs in segments.
    segments: Option<Segments>,
    /// The number of iterations that may run at once.
    parallel_iterations: Option<NonZeroU32>,
    /// The place that asked for iterations that are steps of their own.
    commits: Option<Loc>,
}

/// The trace of a control-flow construct whose regions are open.
struct OpenConstruct {
    kind: OpenKind,
    loc: Loc,
    /// The current values of variables assigned in the regions.
    var_values: [FxHashMap<VarId, Value>; 2],
}

impl OpenConstruct {
    /// Returns the state of a `while`.
    fn as_while(&mut self) -> &mut OpenWhile {
        match &mut self.kind {
            OpenKind::While(open) => open,
            OpenKind::Cond | OpenKind::Call { .. } => panic!("the open construct at {} is no `while`", self.loc),
        }
    }
}

/// The values of the loop and function variables after the condition has run.
struct ConditionEffects {
    /// The values of the declared loop variables, or of none of them, followed by those of `vars`.
    values: Vec<Value>,
    /// The variables of the function that the condition assigns.
    vars: Vec<VarId>,
}

#[derive(Clone, Copy)]
struct VarState {
    /// The value at the start, read in the root region.
    read: Value,
    /// The current value in the root region.
    current: Value,
    /// Whether a step before the end of the function has assigned it.
    is_committed: bool,
}

/// The trace of one function.
pub(crate) struct Tracer {
    id: u32,
    pub(crate) graph: GraphBuilder,
    /// The open constructs of the builder.
    open: Vec<OpenConstruct>,
    /// Nodes are appended to the region at this depth: 0 is the root, `open.len()` the innermost.
    depth: usize,
    vars: Vec<AnyVar>,
    names: Vec<Named>,
    commit_loop: Option<CommitLoop>,
    var_ids: FxHashMap<u64, VarId>,
    /// The queues in the order of the graph.
    queues: Vec<AnyQueue>,
    /// The paths of variables in models whose gradients were asked for, by identity.
    var_paths: FxHashMap<u64, String>,
    var_state: Vec<VarState>,
    /// All values of each variable, oldest first.
    pub(crate) var_versions: Vec<Vec<Value>>,
    /// The values that autodiff has added to the control flow of this graph.
    pub(crate) added: crate::autodiff::AddedValues,
    /// The location for nodes of derived rules, if it is not the caller's.
    loc_override: Option<Loc>,
    /// The operation that the nodes are parts of.
    written: Option<&'static str>,
    calls: Vec<OpenCall>,
    /// The number of times that loops and assertions were traced.
    repetitions: Repetitions,
    /// A construct that user code left without closing it.
    abandoned: Option<Loc>,
    /// The condition of an `if` whose arm is unconditional.
    unconditional: Option<Value>,
}

thread_local! {
    static TRACER: RefCell<Option<Tracer>> = const { RefCell::new(None) };
}

static NEXT_TRACE: AtomicU32 = AtomicU32::new(0);

/// Ends the trace with an error.
///
/// Inside [`trace`] this unwinds to it without printing anything. Outside it panics with the
/// rendered error.
#[track_caller]
pub fn fail(error: Diagnostic) -> ! {
    if TRACER.with_borrow(|t| t.is_some()) {
        abort(error)
    }
    panic_any(error.to_string())
}

/// Runs `f` and records its operations as a graph called `name`.
///
/// `f` creates parameters by [`input`] and returns the outputs.
pub fn trace(name: &str, f: impl FnOnce() -> Vec<AnyValue>) -> Result<Traced> {
    if is_tracing() {
        return Err(Diagnostic::new("a function cannot be traced while another one is being traced").help(
            "call the function directly: inside a graph function, a `#[graph]` function is an ordinary function",
        ));
    }
    // The trace serves all callers, so it must not depend on the scope of one of them.
    let scope = DeviceScope::enter(None);
    TRACER.set(Some(Tracer::new(name)));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let outputs = f();
        with(|t| t.finish(&outputs))
    }));
    let tracer = TRACER.take();
    drop(scope);
    match outcome {
        Ok(result) => result.map(|()| {
            let tracer = tracer.expect("the tracer stays while it traces");
            {
                let Tracer { graph, vars, queues, names, commit_loop, .. } = tracer;
                Traced { graph: graph.into_graph(), vars, queues, names, commit_loop }
            }
        }),
        Err(payload) => match payload.downcast::<Abort>() {
            Ok(abort) => Err(abort.0),
            Err(panic) => resume_unwind(panic),
        },
    }
}

/// Records that an open construct is dropped. If it was not closed before, user code has left it by
/// `?`, which is a host jump. The error ends the trace; code that catches it would continue inside
/// of the construct.
fn abandoned(construct: usize) {
    if std::thread::panicking() {
        return;
    }
    TRACER.with_borrow_mut(|t| {
        if let Some(t) = t
            && t.open.len() > construct
        {
            let loc = t.open[construct].loc;
            t.abandoned.get_or_insert(loc);
        }
    });
}

/// Returns whether a trace is active on this thread.
pub fn is_tracing() -> bool {
    TRACER.with_borrow(Option::is_some)
}

/// Calls `f` with the active tracer. Fails outside a trace.
#[track_caller]
pub(crate) fn with<R>(f: impl FnOnce(&mut Tracer) -> R) -> R {
    let (mut f, mut result) = (Some(f), None);
    access(&mut |t| result = f.take().map(|f| f(t)));
    result.expect("`access` calls its argument")
}

/// Calls `f` with the active tracer. There are many small callers, so the checks and errors are
/// compiled once here.
#[track_caller]
fn access(f: &mut dyn FnMut(&mut Tracer)) {
    let loc = Loc::caller();
    let abandoned = TRACER.with_borrow(|t| t.as_ref().and_then(|t| t.abandoned));
    if let Some(construct) = abandoned {
        let mut error =
            Diagnostic::new("a staged `if` or loop was left early, but tracing continued").at(construct, "left by `?`");
        // The end of a function or arm has no location of its own in the program.
        if !loc.is_in_this_crate() {
            error = error.at(loc, "continued here");
        }
        fail(error.help("an error of `?` under a tensor condition ends the whole function: do not catch it"))
    }
    if TRACER.with_borrow_mut(|t| t.as_mut().map(f)).is_none() {
        fail(
            Diagnostic::new("a tensor operation outside a graph function")
                .at(loc, "no graph is being traced here")
                .help("tensors are symbols: use them inside a function given to `session.function(..)` or `eval(..)`"),
        )
    }
}

/// Calls a fallible `f` like [`with`].
#[track_caller]
pub(crate) fn try_with<R>(f: impl FnOnce(&mut Tracer) -> Result<R>) -> R {
    with(f).unwrap_or_else(|e| fail(e))
}

/// Adds an input to the graph that is being traced.
#[track_caller]
pub fn input(ty: TensorType, name: Option<&'static str>) -> AnyValue {
    with(|t| {
        let root = t.graph.root();
        let value = t.graph.add_param(root, ty.into(), name);
        t.any(value)
    })
}

/// Appends an operation on lists. Errors in the operands end the trace at the caller's location.
#[track_caller]
pub(crate) fn emit_list(op: ListOp, operands: &[AnyValue]) -> Vec<AnyValue> {
    let loc = Loc::caller();
    try_with(|t| t.emit(Op::List(op), operands, loc).map(|node| t.results(node)))
}

/// Appends a constant.
#[track_caller]
pub fn constant(tensor: HostTensor) -> AnyValue {
    let loc = Loc::caller();
    with(|t| t.constant(tensor, loc))
}

/// Returns zeros of a type, for a value that must exist and is not read. Unknown extents are 0, and
/// a list is empty.
#[track_caller]
pub(crate) fn placeholder(ty: Type) -> AnyValue {
    match ty {
        Type::Tensor(ty) => {
            let extents = ty.shape.dims().iter().map(|d| d.known().unwrap_or(0)).collect::<Vec<_>>();
            let zero = constant(HostTensor::zeros(ty.dtype, []));
            let unknown = ty.shape.dims().iter().enumerate().filter(|(_, d)| d.known().is_none());
            let unknown: Vec<isize> = unknown.map(|(i, _)| i as isize).collect();
            let zeros = if extents.is_empty() { zero } else { zero.broadcast_to(extents) };
            if unknown.is_empty() { zeros } else { zeros.with_dynamic(&unknown[..]) }
        }
        Type::List(element) => emit_list(ListOp::New(element), &[constant(HostTensor::scalar(0i32))])[0],
        Type::Stack(_) => unreachable!("stacks are not in the user's hands"),
    }
}

/// Appends an assertion on a `bool[]` (any other shape must hold for all elements).
#[track_caller]
pub fn assert(cond: AnyValue, message: String) {
    assert_showing(cond, Template::new([TemplatePiece::Text(message)]), &[]);
}

/// Appends an assertion whose message shows tensors at the placeholders of a template.
#[track_caller]
pub fn assert_showing(cond: AnyValue, message: Template, values: &[AnyValue]) {
    let loc = Loc::caller();
    let cond = if cond.rank() > 0 { cond.all() } else { cond };
    try_with(|t| {
        let v = t.resolve(cond, loc)?;
        if *t.graph.ty(v) != Type::tensor(DType::Bool, ()) {
            let error = Diagnostic::new(format!("assert!: the condition is {}, not bool", t.graph.ty(v)));
            return Err(error.at(loc, "asserted here").help("compare it, as in `x != 0`"));
        }
        t.count_assertion(t.loc_override.unwrap_or(loc))?;
        t.emit(Op::Assert { message }, &[&[cond], values].concat(), loc).map(|_| ())
    });
}

/// Appends a print of tensors at the placeholders of a template.
#[track_caller]
pub fn print(stream: Stream, template: Template, values: &[AnyValue]) {
    let loc = Loc::caller();
    try_with(|t| t.emit(Op::Print { stream, template }, values, loc).map(|_| ()));
}

/// Appends an operation on a queue, and returns its results.
#[track_caller]
pub(crate) fn queue_op(queue: &AnyQueue, op: QueueOp, operands: &[AnyValue]) -> Vec<AnyValue> {
    let loc = Loc::caller();
    try_with(|t| {
        let id = t.queue_id(queue);
        // It runs where the queue is, whatever the scope.
        let scope = DeviceScope::enter(None);
        let node = t.emit(Op::Queue(id, op), operands, loc);
        drop(scope);
        node.map(|node| t.results(node))
    })
}

/// Appends an operation on a file, and returns its results.
#[track_caller]
pub(crate) fn file_op(op: FileOp, operands: &[AnyValue]) -> Vec<AnyValue> {
    let loc = Loc::caller();
    try_with(|t| {
        // It runs where the files are, whatever the scope.
        let scope = DeviceScope::enter(None);
        let node = t.emit(Op::File(op), operands, loc);
        drop(scope);
        node.map(|node| t.results(node))
    })
}

/// Returns whether a staged `if`, `while`, `&&` or `||` is open, so that the code being traced may
/// run any number of times.
pub fn in_construct() -> bool {
    TRACER.with_borrow(|t| t.as_ref().is_some_and(|t| !t.open.is_empty()))
}

/// Returns the current value of a variable.
#[track_caller]
pub fn read_var(var: &AnyVar) -> AnyValue {
    let loc = Loc::caller();
    with(|t| {
        let v = t.read_var(var, loc);
        t.any(v)
    })
}

/// Assigns a variable.
#[track_caller]
pub fn assign_var(var: &AnyVar, value: AnyValue) {
    let loc = Loc::caller();
    try_with(|t| t.assign_var(var, value, loc))
}

/// Returns the location of nodes that are created now: that of [`at_loc`], else `loc`.
pub(crate) fn place(loc: Loc) -> Loc {
    TRACER.with_borrow(|t| t.as_ref().and_then(|t| t.loc_override).unwrap_or(loc))
}

/// Runs `f` with `loc` as the location of every node that it creates.
#[track_caller]
pub(crate) fn at_loc<R>(loc: Loc, f: impl FnOnce() -> R) -> R {
    let before = with(|t| t.loc_override.replace(loc));
    let r = f();
    with(|t| t.loc_override = before);
    r
}

/// Runs `f`, a part of an operation that was called at `loc`, with that as the location of every
/// node. Closures do not pass on the caller's location by themselves. If the operation is itself
/// part of another operation, the outer location stays.
#[track_caller]
pub(crate) fn called_at<R>(loc: Loc, f: impl FnOnce() -> R) -> R {
    at_loc(place(loc), f)
}

/// Runs `f` with nodes appended to the region at `depth`, not to the innermost region.
pub(crate) fn at_depth<R>(depth: usize, f: impl FnOnce() -> R) -> R {
    let before = with(|t| {
        assert!(depth <= t.open.len(), "no region is open at depth {depth}");
        std::mem::replace(&mut t.depth, depth)
    });
    let r = f();
    with(|t| t.depth = before);
    r
}

/// Returns the depth of the region that nodes are appended to.
pub(crate) fn depth() -> usize {
    with(|t| t.depth)
}

impl ValueCx for InTrace {
    fn current() -> InTrace {
        with(|t| InTrace { trace: t.id })
    }

    fn emit(self, op: Prim, operands: &[AnyValue], attrs: Attrs) -> AnyValue {
        let loc = Loc::caller();
        try_with(|t| {
            let node = t.emit(Op::Prim(op, attrs), operands, loc)?;
            Ok(t.any(t.graph.node(node).results[0]))
        })
    }

    fn emit_all(self, op: Op, operands: &[AnyValue]) -> Vec<AnyValue> {
        let loc = Loc::caller();
        try_with(|t| t.emit(op, operands, loc).map(|node| t.results(node)))
    }

    fn constant(self, tensor: HostTensor) -> AnyValue {
        constant(tensor)
    }

    fn type_of(self, value: Value) -> Type {
        let loc = Loc::caller();
        try_with(|t| {
            t.check_trace(AnyValue::new(value, self), loc)?;
            Ok(t.graph.ty(value).clone())
        })
    }

    fn written_as<R>(self, op: &'static str, f: impl FnOnce() -> R) -> R {
        let before = with(|t| {
            let written = t.written.or(Some(op));
            std::mem::replace(&mut t.written, written)
        });
        let r = f();
        with(|t| t.written = before);
        r
    }

    fn called_at<R>(self, loc: Loc, f: impl FnOnce() -> R) -> R {
        called_at(loc, f)
    }

    fn refuse(op: &str, error: OpError) -> ! {
        fail(error.at(op, place(Loc::caller())))
    }
}

impl Tracer {
    fn new(name: &str) -> Tracer {
        Tracer {
            id: NEXT_TRACE.fetch_add(1, Ordering::Relaxed),
            graph: GraphBuilder::new(Graph::new(name)),
            open: Vec::new(),
            depth: 0,
            vars: Vec::new(),
            names: Vec::new(),
            var_ids: FxHashMap::default(),
            queues: Vec::new(),
            commit_loop: None,
            var_paths: FxHashMap::default(),
            var_state: Vec::new(),
            var_versions: Vec::new(),
            added: Default::default(),
            loc_override: None,
            written: None,
            calls: Vec::new(),
            repetitions: Repetitions::default(),
            abandoned: None,
            unconditional: None,
        }
    }

    /// Returns a handle of a value.
    pub(crate) fn any(&self, value: Value) -> AnyValue {
        AnyValue::new(value, InTrace { trace: self.id })
    }

    fn check_trace(&self, any: AnyValue, loc: Loc) -> Result<()> {
        if any.context().trace == self.id {
            return Ok(());
        }
        Err(Diagnostic::new("a tensor is used outside the trace that created it")
            .at(loc, "used here")
            .help("a tensor is a symbol of the traced function: pass values between calls as arguments and results"))
    }

    /// Returns the value that `any` has in the current region, capturing it if necessary.
    pub(crate) fn resolve(&mut self, any: AnyValue, loc: Loc) -> Result<Value> {
        self.check_trace(any, loc)?;
        self.resolve_at(any.value(), self.depth, loc)
    }

    fn resolve_at(&mut self, value: Value, depth: usize, loc: Loc) -> Result<Value> {
        self.resolve_in(value, depth, self.graph.region_at(depth), loc)
    }

    /// Resolves a value in `region`, which is one of the regions of the construct at `depth`.
    fn resolve_in(&mut self, value: Value, depth: usize, region: Region, loc: Loc) -> Result<Value> {
        self.graph.seen_in(value, depth, region).ok_or_else(|| {
            let owner = self.graph.region(self.graph.region_of(value)).owner;
            let (place, help) = match owner.map(|n| &self.graph.node(n).op) {
                Some(Op::Call(kind)) => {
                    (format!("the body of a `{}`", kind.name()), "return it from the closure that is the body")
                }
                _ => {
                    ("a branch or loop body".to_owned(), "assign it to a variable declared before the `if` or `while`")
                }
            };
            Diagnostic::new(format!("a tensor of {place} is used outside it"))
                .at(loc, "used here")
                .at(self.graph.loc(value), "created here")
                .help(help)
        })
    }

    /// Returns the location that created a value, or for a parameter that of the value outside.
    fn origin(&self, value: Value) -> Loc {
        match self.graph.value(value).def {
            ValueDef::Result(..) => self.graph.loc(value),
            ValueDef::Param(..) => self.graph.outside(value).map_or(Loc::UNKNOWN, |outer| self.origin(outer)),
        }
    }

    /// Returns the value that `any` has for a gradient that is taken now.
    pub(crate) fn resolve_for_gradient(&mut self, any: AnyValue, loc: Loc) -> Result<Value> {
        self.check_trace(any, loc)?;
        // A value of an open region is differentiated where it is: the sweep visits all open
        // regions.
        let open = (0..=self.depth).any(|d| self.graph.region_at(d) == self.graph.region_of(any.value()));
        if open { Ok(any.value()) } else { self.resolve(any, loc) }
    }

    /// Returns the origin of a node that is traced now, for `loc`.
    pub(crate) fn origin_at(&self, loc: Loc) -> Origin {
        Origin { loc, written: self.written, on: device_scope() }
    }

    /// Continues at the end of the current region, with the origin of a node that is traced now.
    pub(crate) fn here(&mut self, loc: Loc) -> &mut GraphBuilder {
        let region = self.graph.region_at(self.depth);
        let origin = self.origin_at(self.loc_override.unwrap_or(loc));
        self.graph.at(InsertPoint::End(region), origin)
    }

    /// Appends an operation to the current region. Errors in the operands are at `loc`.
    pub(crate) fn emit(&mut self, op: Op, operands: &[AnyValue], loc: Loc) -> Result<Node> {
        let loc = self.loc_override.unwrap_or(loc);
        let values = operands.iter().map(|&a| self.resolve(a, loc)).collect::<Result<Vec<_>>>()?;
        let name = op.name();
        self.here(loc).try_emit(op, values).map_err(|error| error.at(name, loc))
    }

    /// Returns handles of the results of a node.
    pub(crate) fn results(&self, node: Node) -> Vec<AnyValue> {
        self.graph.node(node).results.iter().map(|&v| self.any(v)).collect()
    }

    fn constant(&mut self, tensor: HostTensor, loc: Loc) -> AnyValue {
        let value = self.here(loc).shared_constant(tensor);
        self.any(value)
    }

    fn open_construct(&mut self, kind: OpenKind, loc: Loc) -> Result<()> {
        assert_eq!(self.depth, self.open.len(), "control flow is opened in the innermost region");
        if self.open.len() == MAX_OPEN {
            return Err(self.too_deep(self.loc_override.unwrap_or(loc)));
        }
        self.graph.open();
        let loc = self.loc_override.unwrap_or(loc);
        self.open.push(OpenConstruct { kind, loc, var_values: Default::default() });
        self.depth += 1;
        Ok(())
    }

    /// Ends the trace of the innermost construct, which the caller closes next. Nodes are appended
    /// outside.
    fn pop_construct(&mut self) -> OpenConstruct {
        self.depth = self.open.len() - 1;
        self.open.pop().expect("the construct is open")
    }

    /// Returns the error of constructs that are nested too deeply.
    fn too_deep(&self, loc: Loc) -> Diagnostic {
        let message = format!("`if`s, loops and calls are nested more than {MAX_OPEN} levels deep");
        let mut error = Diagnostic::new(message).at(loc, "opened here, inside the others");
        let mut places = vec![loc];
        for c in self.open.iter().rev().take(16) {
            if places.len() < 4 && !places.contains(&c.loc) {
                places.push(c.loc);
                error = error.at(c.loc, "inside this");
            }
        }
        if !self.calls.is_empty() {
            error = error.at(Loc::UNKNOWN, format!("in {}", call::chain(&self.calls)));
        }
        error.help(
            "recursion under a tensor condition does not end during tracing, where all arms are traced: write a \
             `while` over tensors, or end the recursion by a host condition",
        )
    }

    fn finish(&mut self, outputs: &[AnyValue]) -> Result<()> {
        assert!(self.open.is_empty(), "a control-flow construct was left open");
        let outputs = outputs.iter().map(|&o| self.resolve(o, Loc::UNKNOWN)).collect::<Result<Vec<_>>>()?;
        let root = self.graph.root();
        self.graph.region_mut(root).yields = outputs;
        for (i, state) in self.var_state.clone().into_iter().enumerate() {
            if state.current != state.read || state.is_committed {
                let assign = Op::Assign(VarId::from_index(i));
                self.here(Loc::UNKNOWN).insert(assign, vec![state.current], []);
            }
        }
        Ok(())
    }
}
