//! The tables and entities of a graph.

use super::{Attrs, FileOp, ListOp, QueueDecl, QueueOp};
use crate::format::{Stream, Template};
use crate::ops::{Effects, Prim};
use crate::{DeviceConstraint, HostTensor, Loc, TensorType, Type};
use std::fmt;
use std::num::NonZeroU32;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// Returns the index into the table of the graph.
            pub fn index(self) -> usize {
                self.0 as usize
            }

            /// Returns the entity with the given index.
            pub fn from_index(index: usize) -> $name {
                $name(u32::try_from(index).expect("more than 2^32 entities in a graph"))
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id! {
    /// A value: a parameter of a region or a result of a node.
    Value, "%"
}
id! {
    /// An application of an operation.
    Node, "node"
}
id! {
    /// A block of nodes with parameters and yielded values.
    Region, "region"
}
id! {
    /// A variable that the graph reads or assigns.
    VarId, "@"
}
id! {
    /// A queue that the graph uses.
    QueueId, "@"
}

/// The operation of a node.
#[derive(Clone, Debug)]
pub enum Op {
    /// A primitive operation from the table, with its static arguments. One result.
    Prim(Prim, Attrs),
    /// A constant. No operands, one result.
    Constant(HostTensor),
    /// Reads the current value of a variable. No operands, one result.
    Read(VarId),
    /// Assigns a new value to a variable. One operand, no result.
    Assign(VarId),
    /// Fails the step unless the first operand, a `bool[]`, is true. No result.
    Assert {
        /// The error message, with a placeholder for each of the other operands.
        message: Template,
    },
    /// Writes the operands, formatted with a template. No result.
    Print {
        /// The output stream.
        stream: Stream,
        /// The text, with a placeholder for each operand.
        template: Template,
    },
    /// An operation on a stack of values saved by a loop.
    Stack(StackOp),
    /// An operation on a list of the user.
    List(ListOp),
    /// An operation on a queue.
    Queue(QueueId, QueueOp),
    /// An operation on a file of tensors.
    File(FileOp),
    /// Runs one of two regions.
    Cond,
    /// Runs a region as long as another region yields true.
    While {
        /// The number of iterations that may run concurrently if the loop spans several devices.
        ///
        /// `None` leaves the choice to the session. The number affects no value.
        parallel_iterations: Option<NonZeroU32>,
    },
    /// Runs its first region once, with the operands as its parameters.
    Call(CallKind),
}

/// The treatment of a call by gradients and passes.
///
/// The call always computes what its first region computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// Gradient checkpoint: a gradient saves no value computed inside, but rematerializes it from
    /// the operands.
    Checkpoint,
    /// The rematerialization of a checkpoint along with its gradient.
    ///
    /// Nothing is moved into or out of it or merged with nodes outside, since that would keep the
    /// values that the checkpoint discards.
    Recompute,
    /// A function with a custom gradient.
    ///
    /// The second region computes the gradient: from the operands, the results and the cotangents
    /// of the results it computes the cotangents of the arguments.
    CustomGradient {
        /// The number of operands that are arguments. The others are captures.
        args: usize,
    },
}

impl CallKind {
    /// Returns the name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            CallKind::Checkpoint => "checkpoint",
            CallKind::Recompute => "recompute",
            CallKind::CustomGradient { .. } => "custom_gradient",
        }
    }
}

/// An operation on stacks. A stack is a value: pushing creates a new one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StackOp {
    /// `() -> stack`: an empty stack.
    New(TensorType),
    /// `() -> stack`: infinitely many zeros, of known extents.
    ///
    /// Represents the cotangent of a stack of any depth that received no gradient.
    Zeros(TensorType),
    /// `(stack, tensor) -> stack`
    Push,
    /// `(stack) -> (stack, tensor)`: fails on an empty stack without infinite zeros.
    Pop,
    /// `(stack) -> stack`: a stack with a zero for each element.
    ZerosLike,
    /// `(stack, stack) -> stack`: elementwise sum from the top. The depths must be equal unless one
    /// stack has infinite zeros.
    Add,
}

impl PartialEq for Op {
    fn eq(&self, other: &Op) -> bool {
        match (self, other) {
            (Op::Prim(a, x), Op::Prim(b, y)) => a == b && x == y,
            (Op::Constant(a), Op::Constant(b)) => a == b,
            (Op::Read(a), Op::Read(b)) | (Op::Assign(a), Op::Assign(b)) => a == b,
            (Op::Assert { message: a }, Op::Assert { message: b }) => a == b,
            (Op::Print { stream: a, template: x }, Op::Print { stream: b, template: y }) => a == b && x == y,
            (Op::Stack(a), Op::Stack(b)) => a == b,
            (Op::List(a), Op::List(b)) => a == b,
            (Op::Queue(a, x), Op::Queue(b, y)) => a == b && x == y,
            (Op::File(a), Op::File(b)) => a == b,
            (Op::Cond, Op::Cond) => true,
            (Op::While { parallel_iterations: a }, Op::While { parallel_iterations: b }) => a == b,
            (Op::Call(a), Op::Call(b)) => a == b,
            _ => false,
        }
    }
}
impl Eq for Op {}

impl Op {
    /// Returns the name in the text form.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Prim(def, _) => def.name,
            Op::Constant(_) => "constant",
            Op::Read(_) => "read",
            Op::Assign(_) => "assign",
            Op::Assert { .. } => "assert",
            Op::Print { .. } => "print",
            Op::Stack(StackOp::New(_)) => "stack_new",
            Op::Stack(StackOp::Zeros(_)) => "stack_zeros",
            Op::Stack(StackOp::Push) => "push",
            Op::Stack(StackOp::Pop) => "pop",
            Op::Stack(StackOp::ZerosLike) => "stack_zeros_like",
            Op::Stack(StackOp::Add) => "stack_add",
            Op::List(op) => op.name(),
            Op::Queue(_, op) => op.name(),
            Op::File(op) => op.name(),
            Op::Cond => "cond",
            Op::While { .. } => "while",
            Op::Call(kind) => kind.name(),
        }
    }

    /// Returns whether this is the primitive operation `op`.
    pub fn is(&self, op: Prim) -> bool {
        matches!(self, Op::Prim(own, _) if *own == op)
    }

    /// Returns whether nodes of the operation own regions.
    pub fn is_construct(&self) -> bool {
        matches!(self, Op::Cond | Op::While { .. } | Op::Call(_))
    }

    /// Returns whether this is an operation on what the session has outside of the graph: a queue
    /// or a file.
    pub fn is_of_session(&self) -> bool {
        matches!(self, Op::Queue(..) | Op::File(_))
    }

    /// Returns the effects of the operation besides computing its results.
    ///
    /// Excludes those of inner regions.
    pub fn effects(&self) -> Effects {
        match self {
            Op::Prim(def, _) => def.effects,
            Op::Constant(_) | Op::Cond | Op::While { .. } | Op::Call(_) => Effects::Pure,
            Op::Read(_) => Effects::ReadsState,
            Op::Assign(_) => Effects::WritesState,
            Op::Assert { .. } | Op::Print { .. } | Op::Queue(..) | Op::File(_) => Effects::Observable,
            Op::Stack(StackOp::Pop | StackOp::Add) => Effects::Fallible,
            Op::Stack(_) => Effects::Pure,
            Op::List(op) if op.is_fallible() => Effects::Fallible,
            Op::List(_) => Effects::Pure,
        }
    }
}

/// The data of a node.
#[derive(Clone, Debug)]
pub struct NodeData {
    /// The operation.
    pub op: Op,
    /// The operands, all defined earlier in the same region.
    pub operands: Vec<Value>,
    /// The values that the node defines.
    pub results: Vec<Value>,
    /// The regions that the node owns.
    pub regions: Vec<Region>,
    /// The region that contains the node.
    pub region: Region,
    /// The source location in the user's code.
    pub loc: Loc,
    /// The operation that the user wrote there, if the node is a part of it.
    pub written: Option<&'static str>,
    /// The device constraint. For a node with regions, it applies to the predicate. A constraint
    /// affects no value.
    pub on: Option<DeviceConstraint>,
}

impl NodeData {
    /// Returns the properties that nodes derived from this node inherit.
    pub fn origin(&self) -> Origin {
        Origin { loc: self.loc, written: self.written, on: self.on }
    }

    /// Returns the name of the operation in errors: that of the operation that the user wrote.
    pub fn name_in_errors(&self) -> &'static str {
        self.written.unwrap_or_else(|| self.op.name())
    }
}

/// The properties that nodes made by passes and gradients inherit from the original node.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The source location in the user's code.
    pub loc: Loc,
    /// The operation that the user wrote there, if the node is a part of it.
    pub written: Option<&'static str>,
    /// The device constraint.
    pub on: Option<DeviceConstraint>,
}

impl Origin {
    /// The origin without a source location or a device constraint.
    pub const UNKNOWN: Origin = Origin { loc: Loc::UNKNOWN, written: None, on: None };
}

/// The origin with a source location and no device constraint.
impl From<Loc> for Origin {
    fn from(loc: Loc) -> Origin {
        Origin { loc, ..Origin::UNKNOWN }
    }
}

/// The definition of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueDef {
    /// A parameter of a region, by position.
    Param(Region, u32),
    /// A result of a node, by position.
    Result(Node, u32),
}

/// The data of a value.
#[derive(Clone, Debug)]
pub struct ValueData {
    /// The type of the value.
    pub ty: Type,
    /// The definition of the value.
    pub def: ValueDef,
    /// The user's name for the value, used in messages and for printing.
    pub name: Option<&'static str>,
}

/// The data of a region.
#[derive(Clone, Debug, Default)]
pub struct RegionData {
    /// The region parameters, whose values the owner provides.
    pub params: Vec<Value>,
    /// The nodes in program order.
    pub nodes: Vec<Node>,
    /// The values that the region yields to its owner.
    pub yields: Vec<Value>,
    /// The node that owns the region, or `None` for the root.
    pub owner: Option<Node>,
}

/// A variable that a graph uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VarDecl {
    /// The name, unique in the graph.
    pub name: String,
    /// The type of the value.
    pub ty: TensorType,
    /// The device constraint.
    pub on: Option<DeviceConstraint>,
}

/// A dataflow graph: see the [module](super).
#[derive(Clone, Debug)]
pub struct Graph {
    /// The name, printed as `@name`.
    pub name: String,
    /// The variables that the graph uses.
    pub vars: Vec<VarDecl>,
    /// The queues that the graph uses.
    pub queues: Vec<QueueDecl>,
    pub(super) nodes: Vec<NodeData>,
    pub(super) values: Vec<ValueData>,
    pub(super) regions: Vec<RegionData>,
}

impl Graph {
    /// Creates a graph with an empty root region.
    pub fn new(name: impl Into<String>) -> Graph {
        Graph {
            name: name.into(),
            vars: Vec::new(),
            queues: Vec::new(),
            nodes: Vec::new(),
            values: Vec::new(),
            regions: vec![RegionData::default()],
        }
    }

    /// Moves the graph out. What is left has no root: the caller replaces it.
    pub(super) fn take(&mut self) -> Graph {
        let name = String::new();
        let empty = Graph { name, vars: vec![], queues: vec![], nodes: vec![], values: vec![], regions: vec![] };
        std::mem::replace(self, empty)
    }

    /// Returns the outermost region. Its parameters are the inputs, and it yields the outputs.
    pub fn root(&self) -> Region {
        Region(0)
    }

    /// Returns the data of a node.
    pub fn node(&self, node: Node) -> &NodeData {
        &self.nodes[node.index()]
    }

    /// Returns the data of a node for modification.
    pub fn node_mut(&mut self, node: Node) -> &mut NodeData {
        &mut self.nodes[node.index()]
    }

    /// Returns the data of a value.
    pub fn value(&self, value: Value) -> &ValueData {
        &self.values[value.index()]
    }

    /// Returns the data of a value for modification.
    pub fn value_mut(&mut self, value: Value) -> &mut ValueData {
        &mut self.values[value.index()]
    }

    /// Returns the type of a value.
    pub fn ty(&self, value: Value) -> &Type {
        &self.values[value.index()].ty
    }

    /// Returns the data of a region.
    pub fn region(&self, region: Region) -> &RegionData {
        &self.regions[region.index()]
    }

    /// Returns the data of a region for modification.
    pub fn region_mut(&mut self, region: Region) -> &mut RegionData {
        &mut self.regions[region.index()]
    }

    /// Returns the number of nodes ever created, which is one more than the largest index.
    ///
    /// The count includes nodes that are no longer in a region.
    pub fn n_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of values ever created, which is one more than the largest index.
    pub fn n_values(&self) -> usize {
        self.values.len()
    }

    /// Returns the number of regions ever created, which is one more than the largest index.
    pub fn n_regions(&self) -> usize {
        self.regions.len()
    }

    /// Returns the inputs of the graph.
    pub fn inputs(&self) -> &[Value] {
        &self.regions[0].params
    }

    /// Returns the outputs of the graph.
    pub fn outputs(&self) -> &[Value] {
        &self.regions[0].yields
    }

    /// Returns the region in which a value is defined.
    pub fn region_of(&self, value: Value) -> Region {
        match self.value(value).def {
            ValueDef::Param(region, _) => region,
            ValueDef::Result(node, _) => self.node(node).region,
        }
    }

    /// Returns the node that defines a value, or `None` for a parameter.
    pub fn producer(&self, value: Value) -> Option<Node> {
        match self.value(value).def {
            ValueDef::Result(node, _) => Some(node),
            ValueDef::Param(..) => None,
        }
    }

    /// Returns the source location of a value.
    pub fn loc(&self, value: Value) -> Loc {
        self.producer(value).map_or(Loc::UNKNOWN, |n| self.node(n).loc)
    }

    /// Returns the origin of the node that defines a value, or [`Origin::UNKNOWN`] for a parameter.
    pub fn origin(&self, value: Value) -> Origin {
        self.producer(value).map_or(Origin::UNKNOWN, |node| self.node(node).origin())
    }

    /// Adds an empty region without an owner.
    pub fn add_region(&mut self) -> Region {
        self.regions.push(RegionData::default());
        Region::from_index(self.regions.len() - 1)
    }

    /// Appends a parameter to a region.
    pub fn add_param(&mut self, region: Region, ty: Type, name: Option<&'static str>) -> Value {
        let value = Value::from_index(self.values.len());
        let position = self.regions[region.index()].params.len() as u32;
        self.values.push(ValueData { ty, def: ValueDef::Param(region, position), name });
        self.regions[region.index()].params.push(value);
        value
    }

    /// Inserts a parameter of a region at `position`, in time linear in the number of later
    /// parameters.
    pub(crate) fn insert_param(&mut self, region: Region, position: usize, ty: Type) -> Value {
        let value = self.add_param(region, ty, None);
        let params = &mut self.regions[region.index()].params;
        params[position..].rotate_right(1);
        for (i, &p) in (position..).zip(&params[position..]) {
            self.values[p.index()].def = ValueDef::Param(region, i as u32);
        }
        value
    }

    /// Reorders or drops the parameters of a region. `params` are the remaining parameters.
    pub fn set_params(&mut self, region: Region, params: Vec<Value>) {
        for (i, &p) in params.iter().enumerate() {
            self.values[p.index()].def = ValueDef::Param(region, i as u32);
        }
        self.regions[region.index()].params = params;
    }

    /// Adds a node to the table and to no region. Only the builder calls this.
    pub(super) fn push_node(&mut self, data: NodeData) -> Node {
        self.nodes.push(data);
        Node::from_index(self.nodes.len() - 1)
    }

    /// Appends a result to a node.
    pub fn add_result(&mut self, node: Node, ty: Type) -> Value {
        let value = Value::from_index(self.values.len());
        let position = self.nodes[node.index()].results.len() as u32;
        self.values.push(ValueData { ty, def: ValueDef::Result(node, position), name: None });
        self.nodes[node.index()].results.push(value);
        value
    }

    /// Sets the regions of a node.
    pub fn set_regions(&mut self, node: Node, regions: Vec<Region>) {
        for r in &regions {
            self.regions[r.index()].owner = Some(node);
        }
        self.nodes[node.index()].regions = regions;
    }

    /// Appends a node to the list of its region, from which it was taken.
    pub fn append(&mut self, node: Node) {
        let region = self.nodes[node.index()].region;
        self.regions[region.index()].nodes.push(node);
    }

    /// Calls `f` for every node of a region and its inner regions, in program order.
    pub fn visit_nodes(&self, region: Region, f: &mut impl FnMut(Node)) {
        for &node in &self.region(region).nodes {
            f(node);
            for &inner in &self.node(node).regions {
                self.visit_nodes(inner, f);
            }
        }
    }

    /// Returns whether two graphs are equal except for entity ids, names and source locations.
    pub fn same_structure(&self, other: &Graph) -> bool {
        fn same_region(a: &Graph, ra: Region, b: &Graph, rb: Region, map: &mut [Option<Value>]) -> bool {
            let (da, db) = (a.region(ra), b.region(rb));
            fn bind(a: &Graph, xs: &[Value], b: &Graph, ys: &[Value], map: &mut [Option<Value>]) -> bool {
                xs.len() == ys.len()
                    && xs.iter().zip(ys).all(|(&x, &y)| {
                        map[x.index()] = Some(y);
                        a.ty(x) == b.ty(y)
                    })
            }
            fn equal(xs: &[Value], ys: &[Value], map: &[Option<Value>]) -> bool {
                xs.len() == ys.len() && xs.iter().zip(ys).all(|(x, y)| map[x.index()] == Some(*y))
            }
            bind(a, &da.params, b, &db.params, map)
                && da.nodes.len() == db.nodes.len()
                && da.nodes.iter().zip(&db.nodes).all(|(&na, &nb)| {
                    let (na, nb) = (a.node(na), b.node(nb));
                    na.op == nb.op
                        && na.on == nb.on
                        && equal(&na.operands, &nb.operands, map)
                        && na.regions.len() == nb.regions.len()
                        && na.regions.iter().zip(&nb.regions).all(|(&x, &y)| same_region(a, x, b, y, map))
                        && bind(a, &na.results, b, &nb.results, map)
                })
                && equal(&da.yields, &db.yields, map)
        }
        self.name == other.name
            && self.vars == other.vars
            && self.queues == other.queues
            && same_region(self, self.root(), other, other.root(), &mut vec![None; self.n_values()])
    }
}
