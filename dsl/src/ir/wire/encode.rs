//! From the tables of a graph to its wire form.

use super::form::*;
use super::{MAGIC, VERSION};
use crate::format::{FormatSpec, FormatTrait, Stream, Template, TemplatePiece};
use crate::ir::{Attr, CallKind, FileOp, Graph, ListOp, Op, QueueOp, StackOp, Value, ValueData};
use crate::ops::Prim;
use crate::{Buffer, Bytes, DType, Dim, Shape, TensorType, Type};
use rustc_hash::FxHashMap;
use serde::Serialize;

/// Returns the wire form of a verified graph. Equal graphs have equal bytes.
///
/// A graph that exceeds the limits of the receiver is encoded as well: [`decode`](super::decode())
/// rejects it.
pub fn encode(graph: &Graph) -> Vec<u8> {
    let used = Reachable::of(graph);
    let tables = Tables::of(graph, &used);
    let mut elements = Vec::new();
    for (data, _) in graph.nodes.iter().zip(&used.nodes).filter(|(_, used)| **used) {
        if let Op::Constant(tensor) = &data.op {
            push_elements(&mut elements, tensor.buffer());
        }
    }
    let mut out = Writer(MAGIC.to_vec());
    out.0.push(VERSION);
    out.put(&graph.name);
    out.put(&SizesForm {
        ops: number(tables.ops.len()),
        types: number(tables.types.len()),
        vars: number(graph.vars.len()),
        queues: number(graph.queues.len()),
        values: number(graph.n_values()),
        regions: number(graph.n_regions()),
        nodes: number(graph.n_nodes()),
        elements: elements.len() as u64,
    });
    for op in &tables.ops {
        out.put(&OpNameForm { name: op.name, attrs: op.attrs.iter().map(|(name, _)| *name).collect() });
    }
    for &ty in &tables.types {
        out.put(&match ty {
            Type::Tensor(t) => TypeForm::Tensor(tensor_type(t)),
            Type::Stack(t) => TypeForm::Stack(tensor_type(t)),
            Type::List(t) => TypeForm::List(tensor_type(t)),
        });
    }
    for var in &graph.vars {
        out.put(&VarForm { name: &var.name, ty: tensor_type(&var.ty) });
    }
    for queue in &graph.queues {
        out.put(&QueueForm { name: &queue.name, element: queue.element.iter().map(tensor_type).collect() });
    }
    for (data, used) in graph.values.iter().zip(used.values) {
        out.put(&if used { tables.type_index[&data.ty] + 1 } else { 0 });
    }
    for (data, used) in graph.regions.iter().zip(used.regions) {
        out.put(&used.then(|| RegionForm {
            params: ids(&data.params),
            nodes: data.nodes.iter().map(|n| n.0).collect(),
            yields: ids(&data.yields),
        }));
    }
    for (data, used) in graph.nodes.iter().zip(used.nodes) {
        out.put(&used.then(|| NodeForm {
            op: operation(&data.op, &tables),
            operands: ids(&data.operands),
            results: ids(&data.results),
            regions: data.regions.iter().map(|r| r.0).collect(),
        }));
    }
    out.0.extend_from_slice(&elements);
    out.0
}

struct Writer(Vec<u8>);

impl Writer {
    fn put<T: Serialize + ?Sized>(&mut self, record: &T) {
        let bytes = std::mem::take(&mut self.0);
        self.0 = postcard::to_extend(record, bytes).expect("a vector has room for every record");
    }
}

/// The entities that can be reached from the root: passes leave others behind.
struct Reachable {
    nodes: Vec<bool>,
    values: Vec<bool>,
    regions: Vec<bool>,
}

impl Reachable {
    fn of(graph: &Graph) -> Reachable {
        let mut used = Reachable {
            nodes: vec![false; graph.n_nodes()],
            values: vec![false; graph.n_values()],
            regions: vec![false; graph.n_regions()],
        };
        let mut todo = vec![graph.root()];
        while let Some(region) = todo.pop() {
            used.regions[region.index()] = true;
            let data = graph.region(region);
            data.params.iter().for_each(|p| used.values[p.index()] = true);
            for &node in &data.nodes {
                used.nodes[node.index()] = true;
                graph.node(node).results.iter().for_each(|r| used.values[r.index()] = true);
                todo.extend(&graph.node(node).regions);
            }
        }
        used
    }
}

/// The operations and types in use, in the order of their first use.
#[derive(Default)]
struct Tables<'g> {
    ops: Vec<Prim>,
    op_index: FxHashMap<Prim, u32>,
    types: Vec<&'g Type>,
    type_index: FxHashMap<&'g Type, u32>,
}

impl<'g> Tables<'g> {
    fn of(graph: &'g Graph, used: &Reachable) -> Tables<'g> {
        let mut tables = Tables::default();
        for (ValueData { ty, .. }, _) in graph.values.iter().zip(&used.values).filter(|(_, used)| **used) {
            tables.type_index.entry(ty).or_insert_with(|| {
                tables.types.push(ty);
                number(tables.types.len() - 1)
            });
        }
        for (data, _) in graph.nodes.iter().zip(&used.nodes).filter(|(_, used)| **used) {
            if let Op::Prim(op, _) = data.op {
                tables.op_index.entry(op).or_insert_with(|| {
                    tables.ops.push(op);
                    number(tables.ops.len() - 1)
                });
            }
        }
        tables
    }
}

/// Returns a count as it is sent. A larger one exceeds every limit.
fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn ids(values: &[Value]) -> Vec<u32> {
    values.iter().map(|v| v.0).collect()
}

fn dtype(dtype: DType) -> u8 {
    DType::ALL.iter().position(|&d| d == dtype).expect("the list has all element types") as u8
}

fn dim(dim: &Dim) -> DimForm<'_> {
    match dim {
        Dim::Known(n) => DimForm::Known(*n as u64),
        Dim::Named(name) => DimForm::Named(name),
        Dim::Unknown => DimForm::Unknown,
    }
}

fn shape(shape: &Shape) -> Axes<DimForm<'_>> {
    Axes(shape.dims().iter().map(dim).collect())
}

fn tensor_type(ty: &TensorType) -> TensorTypeForm<'_> {
    TensorTypeForm { dtype: dtype(ty.dtype), shape: shape(&ty.shape) }
}

fn operation<'g>(op: &'g Op, tables: &Tables<'_>) -> OpForm<'g> {
    match op {
        Op::Prim(op, attrs) => {
            OpForm::Prim { op: tables.op_index[op], attrs: attrs.iter().map(|(_, attr)| attribute(attr)).collect() }
        }
        Op::Constant(tensor) => OpForm::Constant {
            dtype: dtype(tensor.dtype()),
            extents: Axes(tensor.shape().iter().map(|&n| n as u64).collect()),
        },
        Op::Read(var) => OpForm::Read(var.0),
        Op::Assign(var) => OpForm::Assign(var.0),
        Op::Assert { message } => OpForm::Assert { message: pieces(message) },
        Op::Print { stream, template } => {
            OpForm::Print { is_error_stream: *stream == Stream::Stderr, template: pieces(template) }
        }
        Op::Stack(op) => stack_op(op),
        Op::List(op) => list_op(op),
        Op::Queue(queue, op) => OpForm::Queue { queue: queue.0, op: queue_op(*op) },
        Op::File(FileOp::Save(names)) => OpForm::Save(names.iter().map(String::as_str).collect()),
        Op::File(FileOp::Restore { name, ty }) => OpForm::Restore { name, ty: tensor_type(ty) },
        Op::Cond => OpForm::Cond,
        Op::While { parallel_iterations } => {
            OpForm::While { parallel_iterations: parallel_iterations.map_or(0, Into::into) }
        }
        Op::Call(CallKind::Checkpoint) => OpForm::Checkpoint,
        Op::Call(CallKind::Recompute) => OpForm::Recompute,
        Op::Call(CallKind::CustomGradient { args }) => OpForm::CustomGradient { args: number(*args) },
    }
}

fn stack_op(op: &StackOp) -> OpForm<'_> {
    match op {
        StackOp::New(element) => OpForm::StackNew(tensor_type(element)),
        StackOp::Zeros(element) => OpForm::StackZeros(tensor_type(element)),
        StackOp::Push => OpForm::StackPush,
        StackOp::Pop => OpForm::StackPop,
        StackOp::ZerosLike => OpForm::StackZerosLike,
        StackOp::Add => OpForm::StackAdd,
    }
}

fn queue_op(op: QueueOp) -> QueueOpForm {
    match op {
        QueueOp::Enqueue => QueueOpForm::Enqueue,
        QueueOp::EnqueueMany => QueueOpForm::EnqueueMany,
        QueueOp::Dequeue => QueueOpForm::Dequeue,
        QueueOp::DequeueMany(Some(n)) => QueueOpForm::DequeueMany(n as u64),
        QueueOp::DequeueMany(None) => QueueOpForm::DequeueManyByOperand,
        QueueOp::DequeueUpTo(Some(n)) => QueueOpForm::DequeueUpTo(n as u64),
        QueueOp::DequeueUpTo(None) => QueueOpForm::DequeueUpToByOperand,
        QueueOp::Close => QueueOpForm::Close,
        QueueOp::Len => QueueOpForm::Len,
    }
}

fn list_op(op: &ListOp) -> OpForm<'_> {
    match op {
        ListOp::New(element) => OpForm::ListNew(tensor_type(element)),
        ListOp::Push => OpForm::ListPush,
        ListOp::Pop => OpForm::ListPop,
        ListOp::Read => OpForm::ListRead,
        ListOp::Write => OpForm::ListWrite,
        ListOp::Gather => OpForm::ListGather,
        ListOp::Scatter => OpForm::ListScatter,
        ListOp::Stack(n) => OpForm::ListStack(dim(n)),
        ListOp::Unstack => OpForm::ListUnstack,
        ListOp::Concat(n) => OpForm::ListConcat(dim(n)),
        ListOp::Split(n) => OpForm::ListSplit(dim(n)),
        ListOp::Len => OpForm::ListLen,
        ListOp::Extents => OpForm::ListExtents,
        ListOp::ZerosLike => OpForm::ListZerosLike,
        ListOp::Add => OpForm::ListAdd,
        ListOp::Accumulate => OpForm::ListAccumulate,
        ListOp::Written => OpForm::ListWritten,
        ListOp::Restore => OpForm::ListRestore,
    }
}

fn attribute(attr: &Attr) -> AttrForm<'_> {
    match attr {
        Attr::Int(i) => AttrForm::Int(*i),
        Attr::Ints(list) => AttrForm::Ints(list.clone()),
        Attr::Float(x) => AttrForm::Float(*x),
        Attr::Bool(b) => AttrForm::Bool(*b),
        Attr::DType(d) => AttrForm::DType(dtype(*d)),
        Attr::Shape(s) => AttrForm::Shape(shape(s)),
    }
}

/// Appends elements, each in little-endian order. A `bool` is a 0 or a 1.
fn push_elements(out: &mut Vec<u8>, elements: &Buffer) {
    match elements {
        Buffer::F32(d) => out.extend(d.iter().flat_map(|x| x.to_le_bytes())),
        Buffer::F64(d) => out.extend(d.iter().flat_map(|x| x.to_le_bytes())),
        Buffer::F16(d) => out.extend(d.iter().flat_map(|x| x.to_le_bytes())),
        Buffer::BF16(d) => out.extend(d.iter().flat_map(|x| x.to_le_bytes())),
        Buffer::I32(d) => out.extend(d.iter().flat_map(|x| x.to_le_bytes())),
        Buffer::I64(d) => out.extend(d.iter().flat_map(|x| x.to_le_bytes())),
        Buffer::U32(d) => out.extend(d.iter().flat_map(|x| x.to_le_bytes())),
        Buffer::U8(d) => out.extend_from_slice(d),
        Buffer::Bool(d) => out.extend(d.iter().map(|&b| u8::from(b))),
        Buffer::Bytes(d) => Bytes::pack(d, out),
    }
}

fn pieces(template: &Template) -> Vec<PieceForm<'_>> {
    template.pieces().iter().map(piece).collect()
}

fn piece(piece: &TemplatePiece) -> PieceForm<'_> {
    match piece {
        TemplatePiece::Text(text) => PieceForm::Text(text),
        TemplatePiece::Value(spec) => PieceForm::Value(spec_form(spec)),
    }
}

fn spec_form(spec: &FormatSpec) -> SpecForm {
    SpecForm {
        format: match spec.kind {
            FormatTrait::Display => FormatForm::Display,
            FormatTrait::Debug => FormatForm::Debug,
            FormatTrait::LowerExp => FormatForm::LowerExp,
            FormatTrait::UpperExp => FormatForm::UpperExp,
        },
        fill: spec.fill,
        // Every other character aligns to the right.
        align: spec.align.map(|align| match align {
            '<' => AlignForm::Left,
            '^' => AlignForm::Center,
            _ => AlignForm::Right,
        }),
        plus: spec.plus,
        alternate: spec.alternate,
        zero: spec.zero,
        width: spec.width.map(number),
        precision: spec.precision.map(number),
    }
}
