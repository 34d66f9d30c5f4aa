//! The tables of a graph and its entities.

use super::{Attrs, ListOp};
use crate::format::{Stream, Template};
use crate::ops::{Effects, Prim};
use crate::{HostTensor, Loc, On, TensorType, Type};
use std::fmt;
use std::num::NonZeroU32;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// Index into the table of the graph.
            pub fn index(self) -> usize {
                self.0 as usize
            }

            /// The entity with that index.
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

/// What a node does.
#[derive(Clone, Debug)]
pub enum Op {
    /// An operation from the table, with its static arguments. One result.
    Prim(Prim, Attrs),
    /// A constant. No operands, one result.
    Constant(HostTensor),
    /// The present value of a variable. No operands, one result.
    Read(VarId),
    /// Gives a variable a new value. One operand, no result.
    Assign(VarId),
    /// Fails the step unless the first operand, a `bool[]`, is true. No result.
    Assert {
        /// What it says then, with the other operands in its places.
        message: Template,
    },
    /// Writes the operands in the places of a template. No result.
    Print {
        /// Where the text goes.
        stream: Stream,
        /// The text, with a place for each operand.
        template: Template,
    },
    /// Saved values of a loop.
    Stack(StackOp),
    /// Lists of the user.
    List(ListOp),
    /// Runs one of two regions.
    Cond,
    /// Runs a region as long as another yields true.
    While {
        /// How many iterations may run at once where the loop is on several devices; none leaves that to the session. It changes no value.
        parallel_iterations: Option<NonZeroU32>,
    },
    /// Runs its first region once, with the operands as its parameters.
    Call(CallKind),
}

/// What a call means to a gradient and to passes. What it computes is in all cases what its first region computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// A gradient keeps nothing of what is computed inside: it computes it again from the operands.
    Checkpoint,
    /// What was in a checkpoint, computed again for a gradient, with the gradient itself. Nothing moves in or out of it and
    /// nothing in it is merged with what is outside, or what was to be forgotten would be kept.
    Recompute,
    /// The gradient is what the second region computes: from the operands, the results and the gradients of the results, those of
    /// the arguments.
    CustomGradient {
        /// So many operands are arguments; the others are captured.
        args: usize,
    },
}

impl CallKind {
    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            CallKind::Checkpoint => "checkpoint",
            CallKind::Recompute => "recompute",
            CallKind::CustomGradient { .. } => "custom_gradient",
        }
    }
}

/// Operations on stacks. A stack is a value: pushing makes a new one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StackOp {
    /// `() -> stack`: an empty stack.
    New(TensorType),
    /// `() -> stack`: zeros without end, of known extents: the cotangent of a stack, of any depth, from which no gradient came.
    Zeros(TensorType),
    /// `(stack, tensor) -> stack`
    Push,
    /// `(stack) -> (stack, tensor)`: fails on an empty stack that has no zeros below.
    Pop,
    /// `(stack) -> stack`: as many zeros.
    ZerosLike,
    /// `(stack, stack) -> stack`: elementwise sum from the top, of stacks of one length but for one that has zeros below.
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
            (Op::Cond, Op::Cond) => true,
            (Op::While { parallel_iterations: a }, Op::While { parallel_iterations: b }) => a == b,
            (Op::Call(a), Op::Call(b)) => a == b,
            _ => false,
        }
    }
}
impl Eq for Op {}

impl Op {
    /// The name in the text form.
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
            Op::Cond => "cond",
            Op::While { .. } => "while",
            Op::Call(kind) => kind.name(),
        }
    }

    /// Returns whether this is the operation `op` of the table.
    pub fn is(&self, op: Prim) -> bool {
        matches!(self, Op::Prim(own, _) if *own == op)
    }

    /// What the op itself may do besides computing its results; for control flow, without what its regions do.
    pub fn effects(&self) -> Effects {
        match self {
            Op::Prim(def, _) => def.effects,
            Op::Constant(_) | Op::Cond | Op::While { .. } | Op::Call(_) => Effects::Pure,
            Op::Read(_) => Effects::ReadsState,
            Op::Assign(_) => Effects::WritesState,
            Op::Assert { .. } | Op::Print { .. } => Effects::Observable,
            Op::Stack(StackOp::Pop | StackOp::Add) => Effects::Fallible,
            Op::Stack(_) => Effects::Pure,
            Op::List(op) if op.is_fallible() => Effects::Fallible,
            Op::List(_) => Effects::Pure,
        }
    }
}

/// One node.
#[derive(Clone, Debug)]
pub struct NodeData {
    /// What it does.
    pub op: Op,
    /// What it uses, all defined earlier in the same region.
    pub operands: Vec<Value>,
    /// What it defines.
    pub results: Vec<Value>,
    /// Regions it owns.
    pub regions: Vec<Region>,
    /// The region it is in.
    pub region: Region,
    /// The user's source that made it.
    pub loc: Loc,
    /// The devices it may be on; of a node with regions, the device that decides. It changes no value.
    pub on: Option<On>,
}

impl NodeData {
    /// What a node takes over that is made from this one.
    pub fn origin(&self) -> Origin {
        Origin { loc: self.loc, on: self.on }
    }
}

/// What a node has of where it comes from: a node that a pass or a gradient makes takes it over from the one it is made for.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The user's source.
    pub loc: Loc,
    /// The devices it may be on.
    pub on: Option<On>,
}

impl Origin {
    /// No place, and any device.
    pub const UNKNOWN: Origin = Origin { loc: Loc::UNKNOWN, on: None };
}

/// A place of the source alone, for a node that may be on any device.
impl From<Loc> for Origin {
    fn from(loc: Loc) -> Origin {
        Origin { loc, on: None }
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueDef {
    /// A parameter of a region, by position.
    Param(Region, u32),
    /// A result of a node, by position.
    Result(Node, u32),
}

/// One value.
#[derive(Clone, Debug)]
pub struct ValueData {
    /// Its type.
    pub ty: Type,
    /// Where it comes from.
    pub def: ValueDef,
    /// The user's name for it, for messages and for printing.
    pub name: Option<&'static str>,
}

/// One region.
#[derive(Clone, Debug, Default)]
pub struct RegionData {
    /// Values that the owner gives.
    pub params: Vec<Value>,
    /// Nodes in program order.
    pub nodes: Vec<Node>,
    /// Values that the owner gets.
    pub yields: Vec<Value>,
    /// The node that holds the region; none for the root.
    pub owner: Option<Node>,
}

/// A variable that a graph uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VarDecl {
    /// Its name, unique in the graph.
    pub name: String,
    /// Type of its value.
    pub ty: TensorType,
    /// The devices it may be on.
    pub on: Option<On>,
}

/// A dataflow graph: see the [module](super).
#[derive(Clone, Debug)]
pub struct Graph {
    /// Its name, printed as `@name`.
    pub name: String,
    /// The variables it uses.
    pub vars: Vec<VarDecl>,
    pub(crate) nodes: Vec<NodeData>,
    pub(crate) values: Vec<ValueData>,
    pub(crate) regions: Vec<RegionData>,
}

impl Graph {
    /// A graph with an empty root region.
    pub fn new(name: impl Into<String>) -> Graph {
        Graph {
            name: name.into(),
            vars: Vec::new(),
            nodes: Vec::new(),
            values: Vec::new(),
            regions: vec![RegionData::default()],
        }
    }

    /// The outermost region: its parameters are the inputs, what it yields are the outputs.
    pub fn root(&self) -> Region {
        Region(0)
    }

    /// The data of a node.
    pub fn node(&self, node: Node) -> &NodeData {
        &self.nodes[node.index()]
    }

    /// The data of a node, for changing it.
    pub fn node_mut(&mut self, node: Node) -> &mut NodeData {
        &mut self.nodes[node.index()]
    }

    /// The data of a value.
    pub fn value(&self, value: Value) -> &ValueData {
        &self.values[value.index()]
    }

    /// The data of a value, for changing it.
    pub fn value_mut(&mut self, value: Value) -> &mut ValueData {
        &mut self.values[value.index()]
    }

    /// The type of a value.
    pub fn ty(&self, value: Value) -> &Type {
        &self.values[value.index()].ty
    }

    /// The data of a region.
    pub fn region(&self, region: Region) -> &RegionData {
        &self.regions[region.index()]
    }

    /// The data of a region, for changing it.
    pub fn region_mut(&mut self, region: Region) -> &mut RegionData {
        &mut self.regions[region.index()]
    }

    /// Number of nodes ever made, those no longer in a region included: one more than the largest index.
    pub fn n_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Number of values ever made: one more than the largest index.
    pub fn n_values(&self) -> usize {
        self.values.len()
    }

    /// Number of regions ever made: one more than the largest index.
    pub fn n_regions(&self) -> usize {
        self.regions.len()
    }

    /// The inputs.
    pub fn inputs(&self) -> &[Value] {
        &self.regions[0].params
    }

    /// The outputs.
    pub fn outputs(&self) -> &[Value] {
        &self.regions[0].yields
    }

    /// The region in which a value is defined.
    pub fn region_of(&self, value: Value) -> Region {
        match self.value(value).def {
            ValueDef::Param(region, _) => region,
            ValueDef::Result(node, _) => self.node(node).region,
        }
    }

    /// The node that defines a value, if it is not a parameter.
    pub fn producer(&self, value: Value) -> Option<Node> {
        match self.value(value).def {
            ValueDef::Result(node, _) => Some(node),
            ValueDef::Param(..) => None,
        }
    }

    /// The place of the source that made a value.
    pub fn loc(&self, value: Value) -> Loc {
        self.producer(value).map_or(Loc::UNKNOWN, |n| self.node(n).loc)
    }

    /// The place and the devices of the node that made a value; none for a parameter.
    pub fn origin(&self, value: Value) -> Origin {
        self.producer(value).map_or(Origin::UNKNOWN, |node| self.node(node).origin())
    }

    /// Number of loop variables of a `while` node: its first operands, its results, and what its body yields.
    pub fn n_carried(&self, node: Node) -> usize {
        self.node(node).results.len()
    }

    /// Adds an empty region without an owner.
    pub fn add_region(&mut self) -> Region {
        self.regions.push(RegionData::default());
        Region::from_index(self.regions.len() - 1)
    }

    /// Adds a parameter at the end of a region's list.
    pub fn add_param(&mut self, region: Region, ty: Type, name: Option<&'static str>) -> Value {
        let value = Value::from_index(self.values.len());
        let position = self.regions[region.index()].params.len() as u32;
        self.values.push(ValueData { ty, def: ValueDef::Param(region, position), name });
        self.regions[region.index()].params.push(value);
        value
    }

    /// Adds a parameter to a region before the one at `position`; the work is that of the parameters behind it.
    pub(crate) fn insert_param(&mut self, region: Region, position: usize, ty: Type) -> Value {
        let value = self.add_param(region, ty, None);
        let params = &mut self.regions[region.index()].params;
        params[position..].rotate_right(1);
        for (i, &p) in (position..).zip(&params[position..]) {
            self.values[p.index()].def = ValueDef::Param(region, i as u32);
        }
        value
    }

    /// Puts the parameters of a region into another order or drops some: `params` are the ones that stay.
    pub fn set_params(&mut self, region: Region, params: Vec<Value>) {
        for (i, &p) in params.iter().enumerate() {
            self.values[p.index()].def = ValueDef::Param(region, i as u32);
        }
        self.regions[region.index()].params = params;
    }

    /// Makes a node that is in `region` but not yet in its list of nodes.
    pub fn make_node(
        &mut self,
        region: Region,
        op: Op,
        operands: Vec<Value>,
        result_types: impl IntoIterator<Item = Type>,
        origin: impl Into<Origin>,
    ) -> Node {
        let Origin { loc, on } = origin.into();
        let node = Node::from_index(self.nodes.len());
        self.nodes.push(NodeData { op, operands, results: Vec::new(), regions: Vec::new(), region, loc, on });
        for ty in result_types {
            self.add_result(node, ty);
        }
        node
    }

    /// Adds a result to a node.
    pub fn add_result(&mut self, node: Node, ty: Type) -> Value {
        let value = Value::from_index(self.values.len());
        let position = self.nodes[node.index()].results.len() as u32;
        self.values.push(ValueData { ty, def: ValueDef::Result(node, position), name: None });
        self.nodes[node.index()].results.push(value);
        value
    }

    /// Gives a node its regions.
    pub fn set_regions(&mut self, node: Node, regions: Vec<Region>) {
        for r in &regions {
            self.regions[r.index()].owner = Some(node);
        }
        self.nodes[node.index()].regions = regions;
    }

    /// Puts a node at the end of its region.
    pub fn append(&mut self, node: Node) {
        let region = self.nodes[node.index()].region;
        self.regions[region.index()].nodes.push(node);
    }

    /// Puts a node before another one of the same region.
    pub fn insert_before(&mut self, node: Node, before: Node) {
        let region = self.nodes[before.index()].region;
        assert_eq!(self.nodes[node.index()].region, region, "insert_before: nodes of different regions");
        let list = &mut self.regions[region.index()].nodes;
        let at = list.iter().rposition(|&n| n == before).expect("insert_before: the node is not in its region");
        list.insert(at, node);
    }

    /// Calls `f` for every node of a region and of the regions inside it, in program order.
    pub fn visit_nodes(&self, region: Region, f: &mut impl FnMut(Node)) {
        for &node in &self.region(region).nodes {
            f(node);
            for &inner in &self.node(node).regions {
                self.visit_nodes(inner, f);
            }
        }
    }

    /// Whether the two have the same structure: equal but for the numbering of their entities, for names and for
    /// source places.
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
            && same_region(self, self.root(), other, other.root(), &mut vec![None; self.n_values()])
    }
}
