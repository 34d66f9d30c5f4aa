//! Bytes that no graph has, and graphs that exceed a limit.

use super::form::*;
use super::*;
use crate::ir::{Graph, GraphBuilder, Op, StackOp};
use crate::{DType, ErrorKind, HostTensor, Loc, TensorType};
use serde::Serialize;

/// The records of a graph without operations of the table and without variables.
#[derive(Default)]
struct Crafted {
    types: Vec<TypeForm<'static>>,
    values: Vec<u32>,
    regions: Vec<Option<RegionForm>>,
    nodes: Vec<Option<NodeForm<'static>>>,
    elements: Vec<u8>,
}

impl Crafted {
    fn bytes(&self) -> Vec<u8> {
        fn put<T: Serialize + ?Sized>(out: &mut Vec<u8>, record: &T) {
            *out = postcard::to_extend(record, std::mem::take(out)).unwrap();
        }
        let mut out = [&MAGIC[..], &[VERSION]].concat();
        put(&mut out, "crafted");
        put(
            &mut out,
            &SizesForm {
                ops: 0,
                types: self.types.len() as u32,
                vars: 0,
                queues: 0,
                values: self.values.len() as u32,
                regions: self.regions.len() as u32,
                nodes: self.nodes.len() as u32,
                elements: self.elements.len() as u64,
            },
        );
        self.types.iter().for_each(|ty| put(&mut out, ty));
        self.values.iter().for_each(|value| put(&mut out, value));
        self.regions.iter().for_each(|region| put(&mut out, region));
        self.nodes.iter().for_each(|node| put(&mut out, node));
        out.extend_from_slice(&self.elements);
        out
    }

    fn decode(&self) -> crate::Result<Graph> {
        decode(&self.bytes(), &WireLimits::default())
    }

    /// Returns the message of the error.
    #[track_caller]
    fn error(&self) -> String {
        self.decode().expect_err("the graph is wrong").message
    }
}

fn region(nodes: &[u32]) -> Option<RegionForm> {
    Some(RegionForm { params: vec![], nodes: nodes.to_vec(), yields: vec![] })
}

fn node(op: OpForm<'static>, regions: &[u32]) -> Option<NodeForm<'static>> {
    Some(NodeForm { op, operands: vec![], results: vec![], regions: regions.to_vec() })
}

fn scalar() -> TensorTypeForm<'static> {
    TensorTypeForm { dtype: 0, shape: Axes(vec![]) }
}

/// A node without operands that defines the values `results`, which are stacks.
fn stack(results: &[u32]) -> Option<NodeForm<'static>> {
    let op = OpForm::StackNew(scalar());
    Some(NodeForm { op, operands: vec![], results: results.to_vec(), regions: vec![] })
}

/// Calls that contain each other, this many levels deep.
fn nest(depth: u32) -> Crafted {
    let mut crafted = Crafted::default();
    for i in 0..depth {
        crafted.regions.push(region(&[i]));
        crafted.nodes.push(node(OpForm::Checkpoint, &[i + 1]));
    }
    crafted.regions.push(region(&[]));
    crafted
}

#[test]
fn the_empty_graph_is_these_bytes() {
    let graph = Graph::new("f");
    let bytes = encode(&graph);
    assert_eq!(bytes, b"anbr\x02\x01f\0\0\0\0\0\x01\0\0\x01\0\0\0");
    assert!(decode(&bytes, &WireLimits::default()).unwrap().same_structure(&graph));
}

#[test]
fn the_start_of_the_bytes_is_checked() {
    let bytes = encode(&Graph::new("f"));
    let message = |bytes: &[u8]| decode(bytes, &WireLimits::default()).unwrap_err().message;
    assert_eq!(message(b""), "the bytes are no graph in wire form");
    assert_eq!(message(b"anbs\x01"), "the bytes are no graph in wire form");
    assert_eq!(message(b"anbr"), "the bytes end after the first four");
    assert_eq!(message(b"anbr\x01"), "the graph has version 1 of the wire form, but this program has 2");
    assert_eq!(message(&[&bytes[..], b"xyz"].concat()), "3 bytes belong to nothing in the graph");
    for n in 5..bytes.len() {
        assert!(message(&bytes[..n]).starts_with("the bytes are no graph: "), "{n} bytes");
    }
}

#[test]
fn nesting_is_bounded_before_anything_recurses() {
    let deepest = nest(MAX_DEPTH as u32).decode().unwrap();
    assert_eq!(deepest.n_regions(), MAX_DEPTH + 1);
    for depth in [MAX_DEPTH as u32 + 1, 100_000] {
        let error = nest(depth).decode().unwrap_err();
        assert_eq!(error.message, "the graph has constructs that are nested more than 128 levels deep");
        assert_eq!(error.kind, ErrorKind::ResourceExhausted);
        assert_eq!(error.loc().and_then(Loc::node).map(|n| n.index()), Some(MAX_DEPTH));
    }
}

#[test]
fn entities_appear_exactly_once() {
    let call = || node(OpForm::Checkpoint, &[1]);
    let crafted = |regions, nodes| Crafted { regions, nodes, ..Crafted::default() };
    assert_eq!(crafted(vec![], vec![]).error(), "there is no region 0");
    assert_eq!(crafted(vec![None], vec![]).error(), "there is no region 0");
    assert_eq!(crafted(vec![region(&[0])], vec![]).error(), "there is no node 0");
    assert_eq!(crafted(vec![region(&[0])], vec![None]).error(), "there is no node 0");
    assert_eq!(crafted(vec![region(&[0])], vec![call()]).error(), "there is no region 1");
    assert_eq!(crafted(vec![region(&[0, 0]), region(&[])], vec![call()]).error(), "node 0 appears twice");
    assert_eq!(crafted(vec![region(&[0, 1]), region(&[])], vec![call(), call()]).error(), "region 1 appears twice");
    assert_eq!(crafted(vec![region(&[])], vec![stack(&[])]).error(), "node 0 appears nowhere");
    assert_eq!(crafted(vec![region(&[]), region(&[])], vec![]).error(), "region 1 appears nowhere");
    let owns_root = crafted(vec![region(&[0])], vec![node(OpForm::Checkpoint, &[0])]);
    assert_eq!(owns_root.error(), "region 0 appears twice");
    // Two regions whose nodes own each other.
    let circle = vec![node(OpForm::Checkpoint, &[2]), node(OpForm::Checkpoint, &[1])];
    assert_eq!(crafted(vec![region(&[]), region(&[0]), region(&[1])], circle).error(), "2 regions contain themselves");
}

#[test]
fn values_are_defined_exactly_once() {
    let crafted = |values: &[u32], nodes: Vec<Option<NodeForm<'static>>>| {
        let all: Vec<u32> = (0..nodes.len() as u32).collect();
        let types = vec![TypeForm::Stack(scalar())];
        Crafted { types, values: values.to_vec(), regions: vec![region(&all)], nodes, ..Crafted::default() }
    };
    assert!(crafted(&[0, 1], vec![stack(&[1])]).decode().is_ok());
    assert_eq!(crafted(&[2], vec![stack(&[0])]).error(), "a value has type 1 of 1");
    assert_eq!(crafted(&[], vec![stack(&[0])]).error(), "there is no value 0");
    assert_eq!(crafted(&[0], vec![stack(&[0])]).error(), "there is no value 0");
    assert_eq!(crafted(&[1, 1], vec![stack(&[0])]).error(), "value 1 appears nowhere");
    assert_eq!(crafted(&[1], vec![stack(&[0]), stack(&[0])]).error(), "value 0 appears twice");
    let uses = |operand| NodeForm { operands: vec![operand], results: vec![1], ..stack(&[]).unwrap() };
    let uses = |operand| Some(NodeForm { op: OpForm::StackZerosLike, ..uses(operand) });
    assert!(crafted(&[1, 1], vec![stack(&[0]), uses(0)]).decode().is_ok());
    assert_eq!(crafted(&[1, 1], vec![stack(&[0]), uses(2)]).error(), "there is no value 2");
    // The verifier checks the order, and names the node.
    let error = crafted(&[1, 1], vec![stack(&[0]), uses(1)]).decode().unwrap_err();
    let rendered = "error: V1: stack_zeros_like: a value of type stack<f32[]> is defined later\n --> node1\n";
    assert!(error.to_string().starts_with(rendered), "{error}");
    let mut yields = crafted(&[1], vec![stack(&[0])]);
    yields.regions = vec![Some(RegionForm { params: vec![], nodes: vec![0], yields: vec![7] })];
    assert_eq!(yields.error(), "there is no value 7");
    yields.regions = vec![Some(RegionForm { params: vec![0], nodes: vec![0], yields: vec![] })];
    assert_eq!(yields.error(), "value 0 appears twice");
}

#[test]
fn types_are_bounded() {
    let with = |dims: Vec<DimForm<'static>>, dtype| {
        let types = vec![TypeForm::Tensor(TensorTypeForm { dtype, shape: Axes(dims) })];
        Crafted { types, regions: vec![region(&[])], ..Crafted::default() }
    };
    let ones = |n| (0..n).map(|_| DimForm::Known(1)).collect::<Vec<_>>();
    assert!(with(ones(MAX_RANK), 0).decode().is_ok());
    assert!(with(ones(MAX_RANK + 1), 0).error().starts_with("the bytes are no graph: "));
    assert_eq!(with(vec![], 10).error(), "there is no element type 10");
    let large = || DimForm::Known(1 << 40);
    assert!(with(vec![large()], 0).decode().is_ok());
    assert_eq!(with(vec![large(), large()], 0).error(), "the shape [1099511627776, 1099511627776] is too large");
    let name = |n: usize| DimForm::Named(Box::leak("n".repeat(n).into_boxed_str()));
    assert!(with(vec![name(MAX_NAME)], 0).decode().is_ok());
    assert_eq!(with(vec![name(MAX_NAME + 1)], 0).error(), "the graph has 1025 bytes in a name, but the limit is 1024");
}

/// Returns a constant that defines value 0.
fn constant(dtype: u8, extents: &[u64]) -> Option<NodeForm<'static>> {
    let op = OpForm::Constant { dtype, extents: Axes(extents.to_vec()) };
    Some(NodeForm { op, operands: vec![], results: vec![0], regions: vec![] })
}

#[test]
fn constants_have_the_bytes_of_their_type() {
    let with = |dtype, extents: &[u64], elements: &[u8]| {
        let dims = extents.iter().map(|&n| DimForm::Known(n)).collect();
        let types = vec![TypeForm::Tensor(TensorTypeForm { dtype, shape: Axes(dims) })];
        let nodes = vec![constant(dtype, extents)];
        Crafted { types, values: vec![1], regions: vec![region(&[0])], nodes, elements: elements.to_vec() }
    };
    assert!(with(8, &[2], &[0, 1]).decode().is_ok());
    assert_eq!(with(8, &[2], &[0, 2]).error(), "2 is no bool");
    assert_eq!(with(0, &[2], &[0; 7]).error(), "7 bytes are left for a constant f32[2]");
    assert_eq!(with(0, &[2], &[0; 9]).error(), "1 bytes belong to nothing in the graph");
    assert_eq!(with(0, &[1 << 30], &[0; 4]).error(), "4 bytes are left for a constant f32[1073741824]");
    assert!(with(0, &[0, 1 << 30], &[]).decode().is_ok());
    let strings = [&1u64.to_le_bytes()[..], &2u64.to_le_bytes(), b"abc"].concat();
    let graph = with(9, &[2], &strings).decode().expect("two strings");
    assert!(graph.to_string().contains(r#"constant [b"a", b"bc"] : bytes[2]"#), "{graph}");
    assert_eq!(with(9, &[2], &strings[..18]).error(), "too few bytes for a constant bytes[2]");
    assert_eq!(with(9, &[2], &[0xff; 64]).error(), "too few bytes for a constant bytes[2]");
    assert_eq!(with(9, &[1], &strings).error(), "10 bytes belong to nothing in the graph");
    assert!(with(9, &[0, 1 << 30], &[]).decode().is_ok());
    let sizes = SizesForm { ops: 0, types: 0, vars: 0, queues: 0, values: 0, regions: 1, nodes: 0, elements: u64::MAX };
    let bytes = postcard::to_extend(&sizes, encode(&Graph::new("f"))[..7].to_vec()).unwrap();
    let error = decode(&bytes, &WireLimits::default()).unwrap_err();
    assert_eq!(error.message, "the bytes are no graph: they end before the elements of its constants");
}

#[test]
fn placeholders_are_no_wider_than_the_standard_library_allows() {
    let with = |width, precision| {
        let (format, fill, align) = (FormatForm::Display, Some('}'), Some(AlignForm::Center));
        let spec = SpecForm { format, fill, align, plus: true, alternate: true, zero: true, width, precision };
        let op = OpForm::Print { is_error_stream: true, template: vec![PieceForm::Text("x"), PieceForm::Value(spec)] };
        let print = NodeForm { op, operands: vec![0], results: vec![], regions: vec![] };
        let types = vec![TypeForm::Tensor(scalar())];
        let nodes = vec![constant(0, &[]), Some(print)];
        Crafted { types, values: vec![1], regions: vec![region(&[0, 1])], nodes, elements: vec![0; 4] }
    };
    let graph = with(Some(65_535), Some(65_535)).decode().unwrap();
    let bytes = encode(&graph);
    assert!(decode(&bytes, &WireLimits::default()).unwrap().same_structure(&graph));
    for (width, precision) in [(Some(65_536), None), (None, Some(u32::MAX))] {
        assert!(with(width, precision).error().ends_with("characters in a placeholder, but the limit is 65535"));
    }
}

#[test]
fn every_limit_is_checked() {
    let mut builder = GraphBuilder::new(Graph::new("f"));
    let constants: Vec<_> = (0..3).map(|i| builder.constant(HostTensor::scalar(i))).collect();
    builder.emit(Op::Stack(StackOp::New(TensorType::new(DType::F32, ()))), &[]);
    let root = builder.root();
    builder.region_mut(root).yields = constants;
    let mut graph = builder.into_graph();
    graph.vars.push(crate::ir::VarDecl { name: "w".into(), ty: TensorType::new(DType::F32, ()), on: None });
    let bytes = encode(&graph);
    let exact = WireLimits {
        // The start and the sizes are not counted.
        bytes: bytes.len() - 12 - 15,
        constant_bytes: 12,
        nodes: 4,
        values: 4,
        regions: 1,
        variables: 1,
        operands: 1,
    };
    assert!(decode(&bytes, &exact).is_ok());
    type Limit = fn(&mut WireLimits) -> &mut usize;
    let limits: [(Limit, &str); 7] = [
        (|l| &mut l.bytes, "bytes, but the limit"),
        (|l| &mut l.constant_bytes, "bytes of constants, but the limit"),
        (|l| &mut l.nodes, "nodes, but the limit"),
        (|l| &mut l.values, "values, but the limit"),
        (|l| &mut l.regions, "regions, but the limit"),
        (|l| &mut l.variables, "variables, but the limit"),
        (|l| &mut l.operands, "results, but the limit"),
    ];
    for (limit, message) in limits {
        let mut less = exact;
        *limit(&mut less) -= 1;
        let error = decode(&bytes, &less).unwrap_err();
        assert!(error.message.contains(message), "{error}");
        assert_eq!(error.kind, ErrorKind::ResourceExhausted);
    }
}

#[test]
fn counts_are_not_trusted() {
    let start = encode(&Graph::new("f"))[..7].to_vec();
    // All sizes are at most the limits, and no records follow.
    let sizes =
        SizesForm { ops: 0, types: 0, vars: 0, queues: 0, values: 0, regions: 1 << 18, nodes: 1 << 20, elements: 0 };
    let bytes = postcard::to_extend(&sizes, start).unwrap();
    assert!(decode(&bytes, &WireLimits::default()).unwrap_err().message.starts_with("the bytes are no graph: "));
}
