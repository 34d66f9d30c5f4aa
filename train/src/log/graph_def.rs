//! Graphs as TensorBoard shows them.
//!
//! The messages are those of TensorFlow's `graph.proto`, `node_def.proto`, `attr_value.proto` and
//! `types.proto`. A region of a construct is a name scope below it: its parameters are nodes that
//! read the operands, and the construct reads what its regions yield.

use anabranch_data::protobuf::{push_field, push_number};
use anabranch_dsl::ir::{CallKind, Node, NodeData, Op, Region, Value};
use anabranch_dsl::{DType, Dim, Graph, Type};
use std::collections::HashSet;

/// Returns a graph as a `GraphDef`.
pub(crate) fn encode(graph: &Graph) -> Vec<u8> {
    let names = vec![String::new(); graph.n_values()];
    let mut encoder = GraphEncoder { graph, names, vars: Vec::new(), taken: HashSet::new(), out: Vec::new() };
    for var in &graph.vars {
        let name = encoder.unused(scope_of(&var.name));
        encoder.push(&name, "variable", &[], &[&Type::Tensor(var.ty.clone())], None);
        encoder.vars.push(name);
    }
    for &input in graph.inputs() {
        encoder.parameter("", input, "input", &[]);
    }
    encoder.region("", graph.root());
    let outputs = encoder.names_of(graph.outputs());
    let name = encoder.unused("output".to_owned());
    encoder.push(&name, "output", &outputs, &[], None);
    encoder.out
}

struct GraphEncoder<'g> {
    graph: &'g Graph,
    /// The name of each value so far: that of its node, and the number of the result.
    names: Vec<String>,
    /// The name of each variable.
    vars: Vec<String>,
    taken: HashSet<String>,
    out: Vec<u8>,
}

impl GraphEncoder<'_> {
    fn names_of(&self, values: &[Value]) -> Vec<String> {
        values.iter().map(|value| self.names[value.index()].clone()).collect()
    }

    /// Returns a name of no other node, and takes it.
    fn unused(&mut self, first: String) -> String {
        let numbered = (1_u64..).map(|n| format!("{first}_{n}"));
        let mut names = std::iter::once(first.clone()).chain(numbered);
        names.find(|name| self.taken.insert(name.clone())).expect("some name is free")
    }

    /// Appends a node that is a parameter of a region.
    fn parameter(&mut self, scope: &str, param: Value, op: &str, inputs: &[String]) {
        let name = self.unused(within(scope, self.graph.value(param).name.unwrap_or(op)));
        self.push(&name, op, inputs, &[self.graph.ty(param)], None);
        self.names[param.index()] = name;
    }

    fn region(&mut self, scope: &str, region: Region) {
        for &node in &self.graph.region(region).nodes {
            self.node(scope, node);
        }
    }

    fn node(&mut self, scope: &str, node: Node) {
        let (graph, data) = (self.graph, self.graph.node(node));
        let user = data.results.first().and_then(|&result| graph.value(result).name);
        let name = match data.op {
            Op::Read(var) | Op::Assign(var) => self.unused(within(&self.vars[var.index()], data.op.name())),
            _ => self.unused(within(scope, user.unwrap_or(data.op.name()))),
        };
        let mut inputs = match data.op {
            Op::Cond => self.names_of(&[graph.cond_of(node).predicate()]),
            ref op if op.is_construct() => Vec::new(),
            Op::Read(var) => vec![self.vars[var.index()].clone()],
            _ => self.names_of(&data.operands),
        };
        for (&region, role) in data.regions.iter().zip(roles(&data.op)) {
            let scope = format!("{name}/{role}");
            let sources: Vec<Value> = graph.entry(region).map(|(_, source)| source).collect();
            for (i, &param) in graph.region(region).params.iter().enumerate() {
                let inputs: Vec<Value> = sources.get(i).copied().into_iter().collect();
                self.parameter(&scope, param, "parameter", &self.names_of(&inputs));
            }
            self.region(&scope, region);
            let yields = self.names_of(&graph.region(region).yields);
            let name = self.unused(within(&scope, "yield"));
            self.push(&name, "yield", &yields, &[], None);
            inputs.push(name);
        }
        let types: Vec<&Type> = data.results.iter().map(|&result| graph.ty(result)).collect();
        self.push(&name, data.op.name(), &inputs, &types, Some(data));
        for (i, result) in data.results.iter().enumerate() {
            self.names[result.index()] = if i == 0 { name.clone() } else { format!("{name}:{i}") };
        }
    }

    /// Appends a node, with the device and the source line of a node of the graph.
    fn push(&mut self, name: &str, op: &str, inputs: &[String], results: &[&Type], data: Option<&NodeData>) {
        let mut node = Vec::new();
        push_field(&mut node, 1, name.as_bytes());
        push_field(&mut node, 2, op.as_bytes());
        inputs.iter().for_each(|input| push_field(&mut node, 3, input.as_bytes()));
        if let Some(on) = data.and_then(|data| data.on) {
            push_field(&mut node, 4, on.devices().to_string().as_bytes());
        }
        let mut attribute = |key: &str, number: u64, value: &[u8]| {
            let (mut entry, mut wrapped) = (Vec::new(), Vec::new());
            push_field(&mut entry, 1, key.as_bytes());
            push_field(&mut wrapped, number, value);
            push_field(&mut entry, 2, &wrapped);
            push_field(&mut node, 5, &entry);
        };
        if let Some(data) = data.filter(|data| data.loc.is_known()) {
            attribute("source", 2, data.loc.to_string().as_bytes());
        }
        let (mut shapes, mut types) = (Vec::new(), Vec::new());
        for ty in results {
            let (Type::Tensor(ty) | Type::Stack(ty) | Type::List(ty)) = ty;
            let mut shape = Vec::new();
            for dim in ty.shape.dims() {
                let mut extent = Vec::new();
                push_number(&mut extent, 1, size(dim).cast_unsigned());
                push_field(&mut shape, 2, &extent);
            }
            push_field(&mut shapes, 7, &shape);
            push_number(&mut types, 6, data_type(ty.dtype));
        }
        if !results.is_empty() {
            attribute("_output_shapes", 1, &shapes);
            attribute("types", 1, &types);
        }
        push_field(&mut self.out, 1, &node);
    }
}

/// Returns the name of a variable: its modules are scopes.
fn scope_of(var: &str) -> String {
    var.split('.').fold("variables".to_owned(), |scope, part| within(&scope, part))
}

/// Returns a name in a scope, with the letters, digits and underscores of the name.
fn within(scope: &str, name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if scope.is_empty() { name } else { format!("{scope}/{name}") }
}

/// Returns the names of the regions of an operation.
fn roles(op: &Op) -> [&'static str; 2] {
    match op {
        Op::Cond => ["if_true", "if_false"],
        Op::Call(CallKind::CustomGradient { .. }) => ["forward", "gradient"],
        Op::Call(_) => ["body", ""],
        _ => ["condition", "body"],
    }
}

/// Returns an extent, or -1 if it is not known.
fn size(dim: &Dim) -> i64 {
    dim.known().and_then(|n| i64::try_from(n).ok()).unwrap_or(-1)
}

/// Returns the number of an element type in TensorFlow's `DataType`.
fn data_type(dtype: DType) -> u64 {
    match dtype {
        DType::F32 => 1,
        DType::F64 => 2,
        DType::I32 => 3,
        DType::U8 => 4,
        DType::Bytes => 7,
        DType::I64 => 9,
        DType::Bool => 10,
        DType::BF16 => 14,
        DType::F16 => 19,
        DType::U32 => 22,
    }
}
