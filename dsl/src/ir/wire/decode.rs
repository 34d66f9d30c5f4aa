//! From the wire form to the tables of a graph.

use super::form::*;
use super::{MAGIC, MAX_DEPTH, MAX_NAME, VERSION, WireLimits};
use crate::format::{FormatSpec, FormatTrait, MAX_WIDTH, Stream, Template, TemplatePiece};
use crate::ir::infer::is_countable;
use crate::ir::verify::verify_first;
use crate::ir::{
    Attr, Attrs, CallKind, FileOp, Graph, ListOp, Node, NodeData, Op, QueueDecl, QueueId, QueueOp, Region, RegionData,
    StackOp, Value, ValueData, ValueDef, VarDecl, VarId,
};
use crate::ops::{self, Prim};
use crate::{
    Buffer, Bytes, DType, Diagnostic, Dim, ErrorKind, HostTensor, Loc, Result, Shape, TensorType, Type, bf16, f16,
};
use serde::Deserialize;
use std::num::NonZeroU32;

/// Returns the graph of a wire form. The location of each node [stands for it](Loc::of_node).
///
/// # Errors
/// Fails if the bytes are no such form, if the graph exceeds a limit
/// ([`ErrorKind::ResourceExhausted`]), if it has an operation that is not registered here, or if it
/// violates an invariant of graphs.
pub fn decode(bytes: &[u8], limits: &WireLimits) -> Result<Graph> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or_else(|| invalid("the bytes are no graph in wire form"))?;
    match rest.split_first() {
        None => Err(invalid("the bytes end after the first four")),
        Some((&VERSION, rest)) => {
            let graph = Decoder { rest, elements: &[], limits, ops: Vec::new(), types: Vec::new() }.graph()?;
            verify_first(&graph)?;
            Ok(graph)
        }
        Some((version, _)) => {
            let message = format!("the graph has version {version} of the wire form, but this program has {VERSION}");
            Err(invalid(message).help("use the same version of anabranch in all processes"))
        }
    }
}

fn invalid(message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(message)
}

fn check_limit(what: &str, n: usize, limit: usize) -> Result<()> {
    if n <= limit {
        return Ok(());
    }
    let message = format!("the graph has {n} {what}, but the limit is {limit}");
    Err(Diagnostic::new(message).of_kind(ErrorKind::ResourceExhausted))
}

/// The definition of a value that is not defined, or not yet.
const UNDEFINED: ValueDef = ValueDef::Param(Region(0), u32::MAX);

struct Decoder<'a> {
    /// The bytes of the records that have not been read.
    rest: &'a [u8],
    /// The elements of the constants that have not been read.
    elements: &'a [u8],
    limits: &'a WireLimits,
    ops: Vec<Prim>,
    types: Vec<Type>,
}

impl<'a> Decoder<'a> {
    fn record<T: Deserialize<'a>>(&mut self) -> Result<T> {
        let taken = postcard::take_from_bytes(self.rest);
        let (record, rest) = taken.map_err(|error| invalid(format!("the bytes are no graph: {error}")))?;
        self.rest = rest;
        Ok(record)
    }

    /// Reads one record after the other.
    fn records<T: Deserialize<'a>, U>(
        &mut self,
        n: u32,
        mut read: impl FnMut(&mut Self, u32, T) -> Result<U>,
    ) -> Result<Vec<U>> {
        // The number is not trusted, but each record takes a byte at least.
        let mut all = Vec::with_capacity(self.rest.len().min(n as usize));
        for i in 0..n {
            let record = self.record()?;
            all.push(read(self, i, record)?);
        }
        Ok(all)
    }

    fn graph(&mut self) -> Result<Graph> {
        let name = self.record::<&str>().and_then(checked_name)?.to_owned();
        let sizes: SizesForm = self.record()?;
        let limits = self.limits;
        for (what, n, limit) in [
            ("operations", sizes.ops, limits.nodes),
            ("types", sizes.types, limits.values),
            ("variables", sizes.vars, limits.variables),
            ("queues", sizes.queues, limits.variables),
            ("values", sizes.values, limits.values),
            ("regions", sizes.regions, limits.regions),
            ("nodes", sizes.nodes, limits.nodes),
        ] {
            check_limit(what, n as usize, limit)?;
        }
        self.split_off_elements(sizes.elements)?;
        self.ops = self.records(sizes.ops, |_, _, op| registered(&op))?;
        self.types = self.records(sizes.types, |_, _, ty| ty_of(ty))?;
        let vars = self.records(sizes.vars, |_, _, var: VarForm<'_>| {
            Ok(VarDecl { name: checked_name(var.name)?.to_owned(), ty: tensor_type(var.ty)?, on: None })
        })?;
        let queues = self.records(sizes.queues, |decoder, _, queue: QueueForm<'_>| {
            check_limit("tensors of an element", queue.element.len(), decoder.limits.operands)?;
            let element = queue.element.into_iter().map(tensor_type).collect::<Result<_>>()?;
            Ok(QueueDecl { name: checked_name(queue.name)?.to_owned(), element })
        })?;
        let (mut value_ids, mut region_ids, mut node_ids) = (IdTable::new(), IdTable::new(), IdTable::new());
        let values = self.records(sizes.values, |decoder, _, ty: u32| {
            value_ids.add(ty > 0);
            decoder.value(ty)
        })?;
        let regions = self.records(sizes.regions, |_, _, region: Option<RegionForm>| {
            region_ids.add(region.is_some());
            Ok(region.map_or_else(RegionData::default, |region| RegionData {
                params: region.params.into_iter().map(Value).collect(),
                nodes: region.nodes.into_iter().map(Node).collect(),
                yields: region.yields.into_iter().map(Value).collect(),
                owner: None,
            }))
        })?;
        let nodes = self.records(sizes.nodes, |decoder, i, node: Option<NodeForm<'_>>| {
            node_ids.add(node.is_some());
            node.map_or_else(|| Ok(unused_node()), |node| decoder.node(Node(i), node))
        })?;
        let left = self.rest.len() + self.elements.len();
        if left > 0 {
            return Err(invalid(format!("{left} bytes belong to nothing in the graph")));
        }
        let mut graph = Graph { name, vars, queues, nodes, values, regions };
        link(&mut graph, &mut value_ids, &mut region_ids, &mut node_ids)?;
        check_nesting(&graph, &region_ids)?;
        Ok(graph)
    }

    /// Separates the records from the last `n` bytes, which are elements of constants.
    fn split_off_elements(&mut self, n: u64) -> Result<()> {
        let n = usize::try_from(n).ok().filter(|&n| n <= self.rest.len());
        let n = n.ok_or_else(|| invalid("the bytes are no graph: they end before the elements of its constants"))?;
        check_limit("bytes of constants", n, self.limits.constant_bytes)?;
        check_limit("bytes", self.rest.len() - n, self.limits.bytes)?;
        (self.rest, self.elements) = self.rest.split_at(self.rest.len() - n);
        Ok(())
    }

    fn value(&self, ty: u32) -> Result<ValueData> {
        let ty = match ty.checked_sub(1) {
            None => TensorType::new(DType::F32, ()).into(),
            Some(i) => {
                let ty = self.types.get(i as usize);
                ty.cloned().ok_or_else(|| invalid(format!("a value has type {i} of {}", self.types.len())))?
            }
        };
        Ok(ValueData { ty, def: UNDEFINED, name: None })
    }

    fn node(&mut self, node: Node, form: NodeForm<'_>) -> Result<NodeData> {
        let loc = Loc::of_node(node);
        for (what, list) in [("operands", &form.operands), ("results", &form.results)] {
            check_limit(what, list.len(), self.limits.operands).map_err(|e| e.at(loc, ""))?;
        }
        Ok(NodeData {
            op: self.operation(form.op).map_err(|e| e.at(loc, ""))?,
            operands: form.operands.into_iter().map(Value).collect(),
            results: form.results.into_iter().map(Value).collect(),
            regions: form.regions.into_iter().map(Region).collect(),
            region: Region(0),
            loc,
            written: None,
            on: None,
        })
    }

    fn operation(&mut self, form: OpForm<'_>) -> Result<Op> {
        Ok(match form {
            OpForm::Prim { op, attrs } => {
                let known = self.ops.get(op as usize);
                let op = *known.ok_or_else(|| invalid(format!("operation {op} of {}", self.ops.len())))?;
                Op::Prim(op, attributes(op, attrs)?)
            }
            OpForm::Constant { dtype, extents } => Op::Constant(self.constant(dtype, extents)?),
            OpForm::Read(var) => Op::Read(VarId(var)),
            OpForm::Assign(var) => Op::Assign(VarId(var)),
            OpForm::Assert { message } => Op::Assert { message: template(message)? },
            OpForm::Print { is_error_stream, template: pieces } => {
                let stream = if is_error_stream { Stream::Stderr } else { Stream::Stdout };
                Op::Print { stream, template: template(pieces)? }
            }
            OpForm::StackNew(element) => Op::Stack(StackOp::New(tensor_type(element)?)),
            OpForm::StackZeros(element) => Op::Stack(StackOp::Zeros(tensor_type(element)?)),
            OpForm::StackPush => Op::Stack(StackOp::Push),
            OpForm::StackPop => Op::Stack(StackOp::Pop),
            OpForm::StackZerosLike => Op::Stack(StackOp::ZerosLike),
            OpForm::StackAdd => Op::Stack(StackOp::Add),
            OpForm::ListNew(element) => Op::List(ListOp::New(tensor_type(element)?)),
            OpForm::ListPush => Op::List(ListOp::Push),
            OpForm::ListPop => Op::List(ListOp::Pop),
            OpForm::ListRead => Op::List(ListOp::Read),
            OpForm::ListWrite => Op::List(ListOp::Write),
            OpForm::ListGather => Op::List(ListOp::Gather),
            OpForm::ListScatter => Op::List(ListOp::Scatter),
            OpForm::ListStack(n) => Op::List(ListOp::Stack(dim(n)?)),
            OpForm::ListUnstack => Op::List(ListOp::Unstack),
            OpForm::ListConcat(n) => Op::List(ListOp::Concat(dim(n)?)),
            OpForm::ListSplit(n) => Op::List(ListOp::Split(dim(n)?)),
            OpForm::ListLen => Op::List(ListOp::Len),
            OpForm::ListExtents => Op::List(ListOp::Extents),
            OpForm::ListZerosLike => Op::List(ListOp::ZerosLike),
            OpForm::ListAdd => Op::List(ListOp::Add),
            OpForm::ListAccumulate => Op::List(ListOp::Accumulate),
            OpForm::ListWritten => Op::List(ListOp::Written),
            OpForm::ListRestore => Op::List(ListOp::Restore),
            OpForm::Cond => Op::Cond,
            OpForm::While { parallel_iterations } => {
                Op::While { parallel_iterations: NonZeroU32::new(parallel_iterations) }
            }
            OpForm::Checkpoint => Op::Call(CallKind::Checkpoint),
            OpForm::Recompute => Op::Call(CallKind::Recompute),
            OpForm::CustomGradient { args } => Op::Call(CallKind::CustomGradient { args: args as usize }),
            OpForm::Queue { queue, op } => Op::Queue(QueueId(queue), queue_op(op)?),
            OpForm::Save(names) => {
                let names = names.into_iter().map(|name| checked_name(name).map(str::to_owned));
                Op::File(FileOp::Save(names.collect::<Result<_>>()?))
            }
            OpForm::Restore { name, ty } => {
                Op::File(FileOp::Restore { name: checked_name(name)?.to_owned(), ty: tensor_type(ty)? })
            }
        })
    }

    fn constant(&mut self, number: u8, extents: Axes<u64>) -> Result<HostTensor> {
        let dims = extents.0.into_iter().map(DimForm::Known).collect();
        let ty = tensor_type(TensorTypeForm { dtype: number, shape: Axes(dims) })?;
        let extents = ty.shape.known().expect("the extents of a constant are numbers");
        if ty.dtype == DType::Bytes {
            let strings = ty.shape.size().and_then(|n| Bytes::unpack(n, self.elements));
            let (strings, left) = strings.ok_or_else(|| invalid(format!("too few bytes for a constant {ty}")))?;
            self.elements = left;
            return Ok(HostTensor::from_buffer(extents, Buffer::Bytes(strings)));
        }
        let n = ty.n_bytes().and_then(|n| usize::try_from(n).ok()).filter(|&n| n <= self.elements.len());
        let n = n.ok_or_else(|| invalid(format!("{} bytes are left for a constant {ty}", self.elements.len())))?;
        let (bytes, left) = self.elements.split_at(n);
        self.elements = left;
        Ok(HostTensor::from_buffer(extents, elements_of(ty.dtype, bytes)?))
    }
}

/// The numbers of one table: which are unused, and which have been found in the graph.
struct IdTable(Vec<EntityState>);

#[derive(Clone, Copy, PartialEq)]
enum EntityState {
    Unused,
    Expected,
    Found,
}

impl IdTable {
    fn new() -> IdTable {
        IdTable(Vec::new())
    }

    fn add(&mut self, used: bool) {
        self.0.push(if used { EntityState::Expected } else { EntityState::Unused });
    }

    /// Checks that a number is one of an entity.
    fn check(&self, what: &str, i: usize) -> Result<()> {
        match self.0.get(i) {
            None | Some(EntityState::Unused) => Err(invalid(format!("there is no {what} {i}"))),
            Some(_) => Ok(()),
        }
    }

    /// Records the only place of an entity.
    fn find(&mut self, what: &str, i: usize) -> Result<()> {
        self.check(what, i)?;
        if std::mem::replace(&mut self.0[i], EntityState::Found) == EntityState::Found {
            return Err(invalid(format!("{what} {i} appears twice")));
        }
        Ok(())
    }

    fn check_all_found(&self, what: &str) -> Result<()> {
        match self.0.iter().position(|&state| state == EntityState::Expected) {
            Some(i) => Err(invalid(format!("{what} {i} appears nowhere"))),
            None => Ok(()),
        }
    }
}

/// Records the region of each node, the owner of each region and the definition of each value.
/// Fails unless each has exactly one.
fn link(graph: &mut Graph, values: &mut IdTable, regions: &mut IdTable, nodes: &mut IdTable) -> Result<()> {
    regions.find("region", 0)?;
    let Graph { nodes: node_table, values: value_table, regions: region_table, .. } = graph;
    for (i, data) in (0..).zip(&*region_table) {
        for (position, p) in (0..).zip(&data.params) {
            values.find("value", p.index())?;
            value_table[p.index()].def = ValueDef::Param(Region(i), position);
        }
        for node in &data.nodes {
            nodes.find("node", node.index())?;
            node_table[node.index()].region = Region(i);
        }
    }
    for (i, data) in (0..).zip(&*node_table) {
        let mut link = || -> Result<()> {
            for (position, r) in (0..).zip(&data.results) {
                values.find("value", r.index())?;
                value_table[r.index()].def = ValueDef::Result(Node(i), position);
            }
            for region in &data.regions {
                regions.find("region", region.index())?;
                region_table[region.index()].owner = Some(Node(i));
            }
            Ok(())
        };
        link().map_err(|e| e.at(data.loc, ""))?;
    }
    for data in &*region_table {
        data.yields.iter().try_for_each(|v| values.check("value", v.index()))?;
    }
    for data in &*node_table {
        let operands = data.operands.iter().try_for_each(|v| values.check("value", v.index()));
        operands.map_err(|e| e.at(data.loc, ""))?;
    }
    values.check_all_found("value")?;
    regions.check_all_found("region")?;
    nodes.check_all_found("node")
}

/// Checks that all regions are inside the root, and not too deep for recursion.
fn check_nesting(graph: &Graph, regions: &IdTable) -> Result<()> {
    let mut left = regions.0.iter().filter(|&&state| state != EntityState::Unused).count();
    let mut todo = vec![(graph.root(), 0)];
    while let Some((region, depth)) = todo.pop() {
        left -= 1;
        for &node in &graph.region(region).nodes {
            let data = graph.node(node);
            if !data.regions.is_empty() && depth == MAX_DEPTH {
                let message = format!("the graph has constructs that are nested more than {MAX_DEPTH} levels deep");
                return Err(invalid(message).at(data.loc, "").of_kind(ErrorKind::ResourceExhausted));
            }
            todo.extend(data.regions.iter().map(|&inner| (inner, depth + 1)));
        }
    }
    // Every region has one owner, so the others contain each other in a circle.
    if left > 0 { Err(invalid(format!("{left} regions contain themselves"))) } else { Ok(()) }
}

/// The entry of the table for a number that is not used. No region contains the node.
fn unused_node() -> NodeData {
    NodeData {
        op: Op::Stack(StackOp::Push),
        operands: Vec::new(),
        results: Vec::new(),
        regions: Vec::new(),
        region: Region(0),
        loc: Loc::UNKNOWN,
        written: None,
        on: None,
    }
}

fn checked_name(name: &str) -> Result<&str> {
    check_limit("bytes in a name", name.len(), MAX_NAME)?;
    Ok(name)
}

fn queue_op(form: QueueOpForm) -> Result<QueueOp> {
    Ok(match form {
        QueueOpForm::Enqueue => QueueOp::Enqueue,
        QueueOpForm::EnqueueMany => QueueOp::EnqueueMany,
        QueueOpForm::Dequeue => QueueOp::Dequeue,
        QueueOpForm::DequeueMany(n) => QueueOp::DequeueMany(Some(extent(n)?)),
        QueueOpForm::DequeueManyByOperand => QueueOp::DequeueMany(None),
        QueueOpForm::DequeueUpTo(n) => QueueOp::DequeueUpTo(Some(extent(n)?)),
        QueueOpForm::DequeueUpToByOperand => QueueOp::DequeueUpTo(None),
        QueueOpForm::Close => QueueOp::Close,
        QueueOpForm::Len => QueueOp::Len,
    })
}

/// Returns the operation of a name.
fn registered(form: &OpNameForm<'_>) -> Result<Prim> {
    let name = checked_name(form.name)?;
    let op = ops::by_name(name).ok_or_else(|| {
        let error = invalid(format!("the operation `{name}` is not known in this process"));
        if name.contains('.') { error.help("register it here, too, before the graph arrives") } else { error }
    })?;
    if form.attrs.iter().ne(op.attrs.iter().map(|(name, _)| name)) {
        let here: Vec<&str> = op.attrs.iter().map(|(name, _)| *name).collect();
        let message = format!("the operation `{name}` has other attributes in this process: [{}]", here.join(", "));
        return Err(invalid(message).help("use the same version of its definition in all processes"));
    }
    Ok(op)
}

fn dtype(number: u8) -> Result<DType> {
    let dtype = DType::ALL.get(usize::from(number)).copied();
    dtype.ok_or_else(|| invalid(format!("there is no element type {number}")))
}

fn extent(n: u64) -> Result<usize> {
    usize::try_from(n).map_err(|_| invalid(format!("the extent {n} is too large")))
}

fn dim(form: DimForm<'_>) -> Result<Dim> {
    Ok(match form {
        DimForm::Known(n) => Dim::Known(extent(n)?),
        DimForm::Named(name) => Dim::Named(checked_name(name)?.into()),
        DimForm::Unknown => Dim::Unknown,
    })
}

fn shape(form: Axes<DimForm<'_>>) -> Result<Shape> {
    let shape = Shape::from(form.0.into_iter().map(dim).collect::<Result<Vec<_>>>()?);
    if is_countable(&shape) { Ok(shape) } else { Err(invalid(format!("the shape {shape} is too large"))) }
}

fn tensor_type(form: TensorTypeForm<'_>) -> Result<TensorType> {
    Ok(TensorType { dtype: dtype(form.dtype)?, shape: shape(form.shape)? })
}

fn ty_of(form: TypeForm<'_>) -> Result<Type> {
    Ok(match form {
        TypeForm::Tensor(t) => Type::Tensor(tensor_type(t)?),
        TypeForm::Stack(t) => Type::Stack(tensor_type(t)?),
        TypeForm::List(t) => Type::List(tensor_type(t)?),
    })
}

/// Returns attributes with the names in the definition. The verifier checks their types.
fn attributes(op: Prim, forms: Vec<AttrForm<'_>>) -> Result<Attrs> {
    if forms.len() != op.attrs.len() {
        return Err(invalid(format!("{op}: {} attributes of {}", forms.len(), op.attrs.len())));
    }
    let mut attrs = Attrs::none();
    for (form, &(name, _)) in forms.into_iter().zip(op.attrs) {
        let attr = match form {
            AttrForm::Int(i) => Attr::Int(i),
            AttrForm::Ints(list) => Attr::Ints(list),
            AttrForm::Float(x) => Attr::Float(x),
            AttrForm::Bool(b) => Attr::Bool(b),
            AttrForm::DType(d) => Attr::DType(dtype(d)?),
            AttrForm::Shape(s) => Attr::Shape(shape(s)?),
        };
        attrs = attrs.with(name, attr);
    }
    Ok(attrs)
}

/// Returns the elements of some bytes.
fn elements_of(dtype: DType, bytes: &[u8]) -> Result<Buffer> {
    macro_rules! numbers {
        ($variant:ident, $t:ty) => {
            Buffer::$variant(bytes.as_chunks().0.iter().map(|&b| <$t>::from_le_bytes(b)).collect())
        };
    }
    Ok(match dtype {
        DType::F32 => numbers!(F32, f32),
        DType::F64 => numbers!(F64, f64),
        DType::F16 => numbers!(F16, f16),
        DType::BF16 => numbers!(BF16, bf16),
        DType::I32 => numbers!(I32, i32),
        DType::I64 => numbers!(I64, i64),
        DType::U32 => numbers!(U32, u32),
        DType::U8 => Buffer::U8(bytes.to_vec()),
        DType::Bool => match bytes.iter().find(|&&b| b > 1) {
            Some(b) => return Err(invalid(format!("{b} is no bool"))),
            None => Buffer::Bool(bytes.iter().map(|&b| b == 1).collect()),
        },
        DType::Bytes => panic!("strings are not of one size"),
    })
}

fn template(pieces: Vec<PieceForm<'_>>) -> Result<Template> {
    let piece = |form| match form {
        PieceForm::Text(text) => Ok(TemplatePiece::Text(text.to_owned())),
        PieceForm::Value(spec) => spec_of(&spec).map(TemplatePiece::Value),
    };
    Ok(Template::new(pieces.into_iter().map(piece).collect::<Result<Vec<_>>>()?))
}

fn spec_of(form: &SpecForm) -> Result<FormatSpec> {
    let width = |n: Option<u32>| {
        let n = n.map(|n| n as usize);
        n.map_or(Ok(()), |n| check_limit("characters in a placeholder", n, MAX_WIDTH)).map(|()| n)
    };
    Ok(FormatSpec {
        kind: match form.format {
            FormatForm::Display => FormatTrait::Display,
            FormatForm::Debug => FormatTrait::Debug,
            FormatForm::LowerExp => FormatTrait::LowerExp,
            FormatForm::UpperExp => FormatTrait::UpperExp,
        },
        fill: form.fill,
        align: form.align.map(|align| match align {
            AlignForm::Left => '<',
            AlignForm::Center => '^',
            AlignForm::Right => '>',
        }),
        plus: form.plus,
        alternate: form.alternate,
        zero: form.zero,
        width: width(form.width)?,
        precision: width(form.precision)?,
    })
}
