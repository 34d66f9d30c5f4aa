//! Properties of the wire form: every graph keeps its structure, its numbers and its values, and
//! any bytes can be decoded safely.

use crate::golden::check_file;
use crate::random::{RandomGraph, inputs, program};
use crate::random_config::config;
use anabranch_dsl::corpus::{self, cases};
use anabranch_dsl::equality::one_nan_each;
use anabranch_dsl::interp::{InterpOptions, run};
use anabranch_dsl::ir::wire::{WireLimits, decode, encode};
use anabranch_dsl::ir::{Attr, Attrs, Node, Op, Region, Value};
use anabranch_dsl::ops::{self, Arity, Effects, Exactness, Grad, Halves, Laws, OpClass, OpDef, prim};
use anabranch_dsl::passes::{Cse, Dce, Fold, Pass, Pipeline};
use anabranch_dsl::{Diagnostic, Graph, HostTensor, Loc, TensorType, trace};
use mutations::Mutator;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../tests/fuzz/bodies/graph.rs"]
mod body;
#[path = "../../tests/fuzz/mutations.rs"]
pub(crate) mod mutations;

/// Returns the graphs of the golden files, each with the name of its file.
fn golden_graphs() -> Vec<(String, Graph)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let mut folders: Vec<PathBuf> = vec![root.clone()];
    let mut graphs = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "ir") {
                let text = fs::read_to_string(&path).unwrap();
                let name = path.strip_prefix(&root).unwrap().display().to_string();
                // The others are about errors.
                graphs.extend(Graph::parse(source(&text), &name).map(|graph| (name, graph)));
            }
        }
    }
    graphs.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(graphs.len() > 50, "only {} graphs were found", graphs.len());
    graphs
}

/// Returns the part of a golden file before the output.
fn source(text: &str) -> &str {
    text.split("; ----").next().unwrap_or_default()
}

/// Returns the graph without what is not sent: names of values and device constraints.
fn without_names(graph: &Graph) -> Graph {
    let mut plain = graph.clone();
    (0..plain.n_values()).for_each(|i| plain.value_mut(Value::from_index(i)).name = None);
    (0..plain.n_nodes()).for_each(|i| plain.node_mut(Node::from_index(i)).on = None);
    plain.vars.iter_mut().for_each(|var| var.on = None);
    plain
}

/// Checks that a region has the same entities with the same numbers in both graphs.
#[track_caller]
fn check_same_numbers(a: &Graph, b: &Graph, region: Region) {
    let (x, y) = (a.region(region), b.region(region));
    assert_eq!((&x.params, &x.nodes, &x.yields, x.owner), (&y.params, &y.nodes, &y.yields, y.owner));
    for &p in &x.params {
        assert_eq!((a.ty(p), a.value(p).def), (b.ty(p), b.value(p).def));
    }
    for &node in &x.nodes {
        let (x, y) = (a.node(node), b.node(node));
        assert_eq!((&x.op, &x.operands, &x.results), (&y.op, &y.operands, &y.results));
        assert_eq!((&x.regions, x.region), (&y.regions, y.region));
        assert_eq!((y.loc, y.written, y.on), (Loc::of_node(node), None, None));
        for &r in &x.results {
            assert_eq!((a.ty(r), a.value(r).def, b.value(r).name), (b.ty(r), b.value(r).def, None));
        }
        x.regions.iter().for_each(|&inner| check_same_numbers(a, b, inner));
    }
}

/// Returns the graph after a round trip, which has been compared with it.
#[track_caller]
fn round_trip(graph: &Graph) -> Graph {
    let bytes = encode(graph);
    let decoded = decode(&bytes, &WireLimits::default()).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    let size = |g: &Graph| (g.n_nodes(), g.n_values(), g.n_regions());
    assert_eq!(size(&decoded), size(graph));
    check_same_numbers(graph, &decoded, graph.root());
    let plain = without_names(graph);
    assert!(decoded.same_structure(&plain), "{plain}\n{decoded}");
    assert_eq!(decoded.to_string(), plain.to_string());
    assert_eq!(encode(&decoded), bytes, "{graph}");
    decoded
}

/// FNV-1a, which is easy to compute elsewhere.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &b| (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn golden_graphs_keep_everything_and_have_the_recorded_bytes() {
    let mut table = String::new();
    for (name, graph) in golden_graphs() {
        round_trip(&graph);
        let bytes = encode(&graph);
        table += &format!("{name}: {} bytes, {:016x}\n", bytes.len(), digest(&bytes));
    }
    check_file("wire.txt", &table);
}

#[test]
fn the_cases_of_all_operations_keep_their_results() {
    let mut n = 0;
    for case in cases() {
        // Some cases are about errors of the trace.
        let Ok(graph) = case.graph() else { continue };
        let decoded = round_trip(&graph);
        let results = |graph: &Graph| run(graph, &case.inputs, &mut vec![], InterpOptions::default());
        match (results(&graph), results(&decoded)) {
            (Ok(a), Ok(b)) => assert_eq!(one_nan_each(&a), one_nan_each(&b), "{}: {}", case.op, case.name),
            (a, b) => {
                let (a, b) = (a.unwrap_err(), b.unwrap_err());
                assert_eq!(a.message, b.message);
                // The number of the node leads back to the source.
                let node = b.loc().and_then(Loc::node).expect("the error has the location of a node");
                assert_eq!(a.loc(), Some(graph.node(node).loc));
            }
        }
        n += 1;
    }
    assert!(n > 500, "only {n} cases");
}

#[test]
fn graphs_keep_numbers_next_to_those_that_passes_left_unused() {
    let text = "graph @f(%x: f32[2], %p: bool[]) -> f32[2] {
        %unused = tanh %x
        %never = constant false : bool[]
        %a = cond %never, %x then (%x) { %e = exp %x  yield %e } else (%x) { %n = neg %x  yield %n }
        %b = add %a, %a
        return %b
    }";
    let mut graph = Graph::parse(text, "f.ir").unwrap();
    let before = encode(&graph).len();
    // A pipeline of passes would compact the graph at its end.
    assert!(Fold.run(&mut graph) && Dce.run(&mut graph));
    let mut used = 0;
    graph.visit_nodes(graph.root(), &mut |_| used += 1);
    assert!(used < graph.n_nodes() && graph.n_regions() > 1, "no number is unused:\n{graph}");
    let decoded = round_trip(&graph);
    assert!(encode(&decoded).len() < before);
    // A number that is not used belongs to no region, and new nodes get new numbers.
    assert_eq!(decoded.compact().to_string(), without_names(&graph).compact().to_string());
}

#[test]
fn every_byte_of_a_small_graph_is_known() {
    let graph = Graph::parse("graph @f(%x: f32[2]) -> f32[2] { %y = tanh %x  return %y }", "f.ir").unwrap();
    let expected = [
        &b"anbr\x02\x01f"[..],
        &[1, 1, 0, 0, 2, 1, 1, 0], // one operation and type, two values, one region and node
        b"\x04tanh\x00",
        &[0, 0, 1, 0, 2],             // a tensor of f32 with one axis of extent 2
        &[1, 1],                      // the types of both values
        &[1, 1, 0, 1, 0, 1, 1],       // parameters, nodes and yields of the region
        &[1, 0, 0, 0, 1, 0, 1, 1, 0], // operation 0 without attributes, operands, results, regions
    ]
    .concat();
    assert_eq!(encode(&graph), expected);
}

#[test]
fn names_locations_and_constraints_do_not_change_the_bytes() {
    let graph = |x: &str, on: &str| {
        let text = format!("graph @f(%{x}: f32[2]) -> f32[2] {{ %y{x} = tanh %{x}{on}  return %y{x} }}");
        Graph::parse(&text, x).unwrap()
    };
    assert_eq!(encode(&graph("a", "")), encode(&graph("long_name", " on \"/cpu:1\"")));
}

#[test]
fn registered_operations_are_found_by_name_or_named_in_the_error() {
    let def = || OpDef {
        name: "wire_tests.twice",
        arity: Arity::Exactly(1),
        attrs: &[],
        infer: |cx| Ok(cx.operands[0].clone()),
        eval: |cx| Ok(HostTensor::scalar(2.0 * cx.operands[0].data::<f32>()[0])),
        grad: Grad::Zero("a test"),
        exactness: Exactness::Exact,
        class: OpClass::Move,
        halves: Halves::Widened,
        effects: Effects::Pure,
        laws: Laws::NONE,
    };
    let op = ops::register(def()).unwrap();
    let traced = trace::trace("f", || {
        let x = trace::input(TensorType::new(anabranch_dsl::DType::F32, ()), None);
        vec![trace::emit(op, &[x], Default::default())]
    });
    let graph = traced.unwrap().graph;
    let decoded = round_trip(&graph);
    let results = run(&decoded, &[HostTensor::scalar(1.5f32)], &mut vec![], InterpOptions::default());
    assert_eq!(results.unwrap(), [HostTensor::scalar(3.0f32)]);

    let rename = |from: &[u8], to: &[u8]| {
        let mut bytes = encode(&graph);
        let at = bytes.windows(from.len()).position(|w| w == from).expect("the name is there");
        bytes.splice(at..at + from.len(), to.iter().copied());
        decode(&bytes, &WireLimits::default()).unwrap_err()
    };
    let error = rename(b"wire_tests.twice", b"wire_tests.TWICE");
    assert_eq!(error.message, "the operation `wire_tests.TWICE` is not known in this process");
    assert!(error.help.is_some());
    let error = rename(b"\x10wire_tests.twice\0", b"\x10wire_tests.twice\x01\x01a");
    assert_eq!(error.message, "the operation `wire_tests.twice` has other attributes in this process: []");
}

#[test]
fn the_error_of_a_large_graph_is_short() {
    let operands = vec!["%x"; 1000].join(", ");
    let concat = format!("%c = concat {operands} {{axis=0}} ");
    let text = format!("graph @f(%x: f32[1]) {{ {} return }}", concat.clone() + &concat.replace("%c", "%d"));
    let mut graph = Graph::parse(&text, "f.ir").unwrap_or_else(|e| panic!("{}", e[0]));
    for node in graph.region(graph.root()).nodes.clone() {
        graph.node_mut(node).op = Op::Prim(prim::CONCAT, Attrs::none().with("axis", Attr::Int(5)));
    }
    let error = decode(&encode(&graph), &WireLimits::default()).unwrap_err();
    assert!(error.message.starts_with("V3: concat: "), "{error}");
    assert_eq!(error.loc().and_then(Loc::node), Some(Node::from_index(0)));
    assert!(error.to_string().len() < 500, "{error}");
}

fn tape() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..800)
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn random_graphs_keep_everything(tape in tape()) {
        let RandomGraph { graph, vars } = program(&tape);
        let (mut optimized, mut sparse) = (graph.clone(), graph.clone());
        Pipeline::standard().checked(false).run(&mut optimized);
        for pass in [&Fold as &dyn Pass, &Cse, &Dce] {
            pass.run(&mut sparse);
        }
        for graph in [&graph, &optimized, &sparse] {
            let decoded = round_trip(graph);
            let results = |graph: &Graph| {
                let mut vars = vars.clone();
                let outputs = run(graph, &inputs(), &mut vars, InterpOptions::default());
                let outputs = outputs.unwrap_or_else(|e: Diagnostic| panic!("{e}\n{graph}"));
                (one_nan_each(&outputs), one_nan_each(&vars))
            };
            prop_assert_eq!(results(graph), results(&decoded));
        }
        let names = |graph: &Graph| graph.vars.iter().map(|var| var.name.clone()).collect::<Vec<_>>();
        prop_assert_eq!(names(&round_trip(&graph)), names(&graph));
    }

    #[test]
    fn random_bytes_are_refused_with_a_reason(bytes in proptest::collection::vec(any::<u8>(), 0..200), valid_start in any::<bool>()) {
        let bytes = if valid_start { [&b"anbr\x02\x01f"[..], &bytes].concat() } else { bytes };
        body::run(&bytes);
    }
}

/// The number of mutated graphs, unless `ANABRANCH_INPUTS` sets it.
fn n_inputs() -> u64 {
    let given = std::env::var("ANABRANCH_INPUTS").ok().map(|n| n.parse().expect("`ANABRANCH_INPUTS` is a number"));
    given.unwrap_or(if std::env::var_os("ANABRANCH_SLOW").is_some() { 1_000_000 } else { 5_000 })
}

#[test]
fn mutated_graphs_are_refused_or_verified() {
    let mut seeds: Vec<Vec<u8>> = golden_graphs().iter().map(|(_, graph)| encode(graph)).collect();
    seeds.extend(cases().iter().filter_map(|case| case.graph().ok()).step_by(7).map(|graph| encode(&graph)));
    let mut mutator = Mutator::new(corpus::seed());
    let (mut input, mut accepted) = (Vec::new(), 0);
    for i in 0..n_inputs() {
        mutator.mutate(&seeds, &mut input);
        let outcome = std::panic::catch_unwind(|| body::run(&input));
        accepted += u64::from(outcome.unwrap_or_else(|_| panic!("input {i} panics: {input:02x?}")));
    }
    assert!(accepted > n_inputs() / 100, "only {accepted} mutations were accepted");
}
