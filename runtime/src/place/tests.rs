//! Placement of small and of model-like graphs.

use super::*;
use crate::device::{DeviceInfo, LinkSpeed};
use anabranch_dsl::ir::{GraphBuilder, Op};
use anabranch_dsl::ops::prim;
use anabranch_dsl::{TensorType, corpus, trace};
use std::fmt::Write;

#[allow(dead_code, reason = "the tests of the language use the rest")]
#[path = "../../../dsl/tests/random/mod.rs"]
mod random;

fn parse(text: &str) -> Graph {
    Graph::parse(text, "f.ir").unwrap_or_else(|e| panic!("{}", e[0]))
}

fn placed(graph: &Graph, topology: &Topology) -> Placement {
    place(graph, topology, &Rules::new(), Outside::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// Returns the device of the node that computes a named value.
fn device_of(graph: &Graph, placement: &Placement, name: &str) -> usize {
    let mut found = None;
    graph.visit_nodes(graph.root(), &mut |node| {
        if graph.node(node).results.iter().any(|&r| graph.value(r).name == Some(name)) {
            found = Some(placement.of(node).index());
        }
    });
    found.unwrap_or_else(|| panic!("no `%{name}` in\n{graph}"))
}

/// Checks properties of every placement of a graph that has nodes: a variable has one device, a
/// predicate is on the device of its construct, and all constraints of ordinary nodes hold.
fn check_laws(graph: &Graph, topology: &Topology, placement: &Placement, constrained: bool) {
    assert!(check_each_node(graph, topology, placement, constrained) > 0);
}

/// Checks the same of any graph. Returns the number of nodes.
fn check_each_node(graph: &Graph, topology: &Topology, placement: &Placement, constrained: bool) -> usize {
    let mut checked = 0;
    graph.visit_nodes(graph.root(), &mut |node| {
        checked += 1;
        let data = graph.node(node);
        let device = placement.of(node);
        assert!(device.index() < topology.devices.len());
        let decides = match data.op {
            Op::Read(var) | Op::Assign(var) => {
                assert_eq!(device, placement.of_var(var), "{graph}");
                None
            }
            _ => graph.predicate(node).and_then(|predicate| graph.producer(predicate)),
        };
        if let Some(decides) = decides {
            assert_eq!(device, placement.of(decides), "{graph}");
        }
        if let Some(on) = data.on.filter(|_| constrained && matches!(data.op, Op::Prim(..) | Op::Constant(_))) {
            assert!(on.devices().matches(&topology.device(device).name), "{graph}");
        }
    });
    checked
}

/// Returns a graph of `chains` chains of `n` matmuls of `extent` x `extent` matrices, joined at the
/// end.
fn chains(chains: usize, n: usize, extent: usize) -> Graph {
    let ty = format!("f32[{extent}, {extent}]");
    let mut text = format!("graph @chains(%x: {ty}) -> {ty} {{\n");
    for c in 0..chains {
        for i in 0..n {
            let from = if i == 0 { "x".to_owned() } else { format!("c{c}.{}", i - 1) };
            let _ = writeln!(text, "    %c{c}.{i} = matmul %{from}, %{from} : {ty}");
        }
    }
    let mut sum = format!("c0.{}", n - 1);
    for c in 1..chains {
        let _ = writeln!(text, "    %sum{c} = add %{sum}, %c{c}.{} : {ty}", n - 1);
        sum = format!("sum{c}");
    }
    parse(&format!("{text}    return %{sum}\n}}\n"))
}

/// Returns a placement as text, with the transfers of its partition.
fn explained(placement: &Placement, graph: &Graph, topology: &Topology) -> String {
    let cut = crate::flow::partition(graph, placement, crate::flow::PartitionOptions::default());
    placement.explain(graph, topology, cut.crossings())
}

#[test]
fn two_chains_of_heavy_products_share_two_devices() {
    let (graph, topology) = (chains(2, 4, 512), Topology::cpus(2));
    let placement = placed(&graph, &topology);
    let of = |c: usize| (0..4).map(|i| device_of(&graph, &placement, &format!("c{c}.{i}"))).collect::<Vec<_>>();
    assert_eq!(
        (of(0), of(1)),
        (vec![of(0)[0]; 4], vec![1 - of(0)[0]; 4]),
        "{}",
        explained(&placement, &graph, &topology)
    );
    check_laws(&graph, &topology, &placement, true);
    // Eight chains on three devices: three, three and two.
    let (graph, topology) = (chains(8, 2, 512), Topology::cpus(3));
    let placement = placed(&graph, &topology);
    let mut loads = [0; 3];
    (0..8).for_each(|c| loads[device_of(&graph, &placement, &format!("c{c}.1"))] += 1);
    loads.sort_unstable();
    assert_eq!(loads, [2, 3, 3]);
}

#[test]
fn a_small_graph_and_a_single_chain_are_not_split() {
    for graph in [chains(2, 4, 16), chains(1, 8, 512), chains(4, 1, 32)] {
        let topology = Topology::cpus(4);
        let placement = placed(&graph, &topology);
        assert_eq!(
            placement.devices(&graph),
            [DeviceId::from_index(0)],
            "{}",
            explained(&placement, &graph, &topology)
        );
    }
}

#[test]
fn a_graph_without_nodes_is_on_the_first_device() {
    let graph = Graph::parse("graph @f(%x: f32[2]) -> f32[2] { return %x }", "f.ir").unwrap();
    assert_eq!(placed(&graph, &Topology::cpus(2)).devices(&graph), [DeviceId::from_index(0)]);
}

#[test]
fn the_best_single_device_is_the_fastest() {
    let mut devices = Topology::cpus(3).devices;
    devices[1].flops *= 20.0;
    devices[1].bandwidth *= 20.0;
    let topology = Topology::new(devices, |_, _| LinkSpeed::LOCAL);
    let graph = chains(1, 4, 512);
    assert_eq!(placed(&graph, &topology).devices(&graph), [DeviceId::from_index(1)]);
    // With a slow link, nothing is split.
    let slow = LinkSpeed { bandwidth: 1e6, latency: 1e-3 };
    let graph = chains(2, 1, 256);
    let topology = Topology::new(Topology::cpus(2).devices, |_, _| slow);
    assert_eq!(placed(&graph, &topology).devices(&graph).len(), 1);
}

/// Returns an LSTM of several layers in one loop over time, with optional devices for the weights.
fn lstm(layers: usize, units: usize, batch: usize, device: impl Fn(usize) -> Option<String>) -> Graph {
    use anabranch_dsl::prelude::*;
    let vars: Vec<[Var<f32>; 2]> = (0..layers)
        .map(|i| {
            let make = || {
                let zeros = || vec![0.0f32; units * 4 * units];
                let shaped = |name: &str| {
                    let array = Array::new([units, 4 * units], zeros());
                    Var::<f32>::new(format!("layer{i}.{name}"), array)
                };
                [shaped("input"), shaped("state")]
            };
            match device(i) {
                Some(device) => on(device, make),
                None => make(),
            }
        })
        .collect();
    let traced = trace::trace("lstm", || {
        let ty = TensorType::new(anabranch_dsl::DType::F32, [64, batch, units]);
        let xs = Tensor::<f32>::from_any(trace::input(ty, Some("xs")));
        let zeros = || (0..layers).map(|_| zeros::<f32>([batch, units])).collect::<Vec<_>>();
        let weights: Vec<[Tensor; 2]> = vars.iter().map(|v| [v[0].get(), v[1].get()]).collect();
        let start = (scalar(0i32), zeros(), zeros());
        let (_, hidden, _) = while_loop(
            start,
            |(t, _, _)| t.less(64),
            |(t, hs, cs)| {
                let mut x = xs.row(t);
                let (mut next_h, mut next_c) = (Vec::new(), Vec::new());
                for (i, [w, u]) in weights.iter().enumerate() {
                    let z = x.matmul(*w) + hs[i].matmul(*u);
                    let gate = |k: usize| z.slice(-1, k * units, (k + 1) * units);
                    let c = gate(0).sigmoid() * cs[i] + gate(1).sigmoid() * gate(2).tanh();
                    x = gate(3).sigmoid() * c.tanh();
                    next_h.push(x);
                    next_c.push(c);
                }
                (t + 1, next_h, next_c)
            },
        );
        let loss = hidden[layers - 1].sum();
        let all: Vec<Tensor> = weights.iter().flatten().copied().collect();
        let grads = gradients(loss, all);
        for (var, g) in vars.iter().flatten().zip(grads) {
            var.set(var.get() - g * 0.1);
        }
        vec![loss.untyped()]
    });
    let mut graph = traced.unwrap_or_else(|e| panic!("{e}")).graph;
    anabranch_dsl::passes::Pipeline::standard().run(&mut graph);
    graph
}

/// Returns for each layer the devices of the matmuls in loops that use its weights.
fn devices_of_products(graph: &Graph, placement: &Placement) -> Vec<usize> {
    let costs = Costs::new(graph);
    let mut all = Vec::new();
    graph.visit_nodes(graph.root(), &mut |node| {
        let data = graph.node(node);
        let reads = |v: &anabranch_dsl::ir::Value| {
            costs.makers[v.index()].is_some_and(|m| matches!(graph.node(m).op, Op::Read(_)))
        };
        if data.op.is(prim::MATMUL) && data.region != graph.root() && data.operands.iter().any(reads) {
            all.push(placement.of(node).index());
        }
    });
    all
}

#[test]
fn the_layers_of_a_heavy_lstm_follow_their_variables() {
    let graph = lstm(4, 512, 64, |i| Some(format!("/cpu:{i}")));
    let topology = Topology::cpus(4);
    let placement = placed(&graph, &topology);
    // Each layer has one forward matmul of its input and one of its state. The matmul of the first
    // input is hoisted out of the loop.
    let expected = [0, 1, 1, 2, 2, 3, 3];
    assert_eq!(devices_of_products(&graph, &placement), expected, "{}", explained(&placement, &graph, &topology));
    check_laws(&graph, &topology, &placement, true);
}

#[test]
fn a_heavy_lstm_without_devices_is_split_and_a_light_one_stays_whole() {
    let topology = Topology::cpus(4);
    let graph = lstm(4, 512, 64, |_| None);
    let placement = placed(&graph, &topology);
    let Some(Reasons { seconds, single: Some((_, single)), .. }) = placement.reasons else { panic!("it was chosen") };
    assert!(seconds < 0.5 * single, "{}", explained(&placement, &graph, &topology));
    assert_eq!(placement.devices(&graph).len(), 4);
    check_laws(&graph, &topology, &placement, true);
    let graph = lstm(4, 16, 4, |_| None);
    assert_eq!(placed(&graph, &topology).devices(&graph).len(), 1);
}

#[test]
fn the_same_graph_is_placed_the_same_way() {
    let topology = Topology::cpus(3);
    let graph = lstm(2, 256, 32, |i| (i == 1).then(|| "/cpu:2".to_owned()));
    let first = placed(&graph, &topology);
    assert!(first.devices(&graph).len() > 1);
    assert_eq!(placed(&graph, &topology), first);
    assert_eq!(
        placed(&parse(&graph.to_string()), &topology).nodes,
        placed(&parse(&graph.to_string()), &topology).nodes
    );
}

/// Variables, branches, nested loops, lists and stacks. Two variables have device constraints.
const CONTROL: &str = "graph @f(%x: f32[4], %n: i32[]) -> (f32[4], f32[]) {
    var @w: f32[4] on \"/cpu:1\"
    var @b: f32[4]
    %w = read @w : f32[4]
    %b = read @b : f32[4]
    %zero = constant 0 : i32[]
    %list = list_new %n : list<f32[4]>
    %stack = stack_new : stack<f32[4]>
    %y, %i, %all, %saved = while (%y = %x, %i = %zero, %all = %list, %saved = %stack | %w = %w, %b = %b, %n = %n) cond {
        %more = lt %i, %n : bool[] on \"/cpu:2\"
        yield %more
    } body {
        %z = mul %y, %w : f32[4] on \"/cpu:0\"
        %s = sum %z {axes=[0], keepdim=false} : f32[] on \"/cpu:1\"
        %c = constant 1.0 : f32[]
        %big = gt %s, %c : bool[]
        %next = cond %big, %z, %b : f32[4] on \"/cpu:2\" then (%z, %b) {
            %less = sub %z, %b : f32[4] on \"/cpu:1\"
            yield %less
        } else (%z, %b) {
            yield %z
        }
        %pushed = push %saved, %z : stack<f32[4]> on \"/cpu:0\"
        %written = list_write %all, %i, %next : list<f32[4]>
        %one = constant 1 : i32[]
        %j = add %i, %one : i32[]
        yield %next, %j, %written, %pushed
    }
    %rest, %top = pop %saved : (stack<f32[4]>, f32[4]) on \"/cpu:2\"
    %total = list_stack %all : f32[?, 4] on \"/cpu:2\"
    %sum = sum %total {axes=[0, 1], keepdim=false} : f32[]
    %new = add %w, %top : f32[4]
    assign @w, %new
    return %y, %sum
}
";

#[test]
fn what_belongs_together_is_together_also_at_random() {
    let graph = parse(CONTROL);
    let mut seen = std::collections::HashSet::new();
    for seed in 0..200 {
        let topology = Topology::cpus(1 + seed as usize % 4);
        let placement = place_at_random(&graph, topology.devices.len(), seed);
        check_laws(&graph, &topology, &placement, false);
        // A stack or list stays on its device in all regions.
        for (made, used) in [("stack", "pushed"), ("stack", "rest"), ("list", "written"), ("list", "total")] {
            assert_eq!(device_of(&graph, &placement, made), device_of(&graph, &placement, used), "{made}, {used}");
        }
        assert_eq!(place_at_random(&graph, topology.devices.len(), seed), placement);
        if topology.devices.len() == 4 {
            seen.insert(["z", "next", "w", "b", "stack"].map(|v| device_of(&graph, &placement, v)));
        }
    }
    assert!(seen.len() > 30, "only {} of 50 placements differ", seen.len());
    let all = place_all_on(&graph, DeviceId::from_index(2));
    assert_eq!(all.devices(&graph), [DeviceId::from_index(2)]);
}

#[test]
fn constraints_hold_and_wishes_give_way() {
    let (graph, topology) = (parse(CONTROL), Topology::cpus(3));
    let placement = placed(&graph, &topology);
    check_laws(&graph, &topology, &placement, true);
    let of = |name: &str| device_of(&graph, &placement, name);
    assert_eq!([of("w"), of("more"), of("z"), of("s"), of("less")], [1, 2, 0, 1, 1]);
    // The loop has no constraint and follows its predicate.
    assert_eq!(of("i"), 2);
    // The first constraint on the stack is that of the push, then that of the pop. The list has
    // only that of `list_stack`.
    assert_eq!([of("stack"), of("pushed"), of("rest"), of("list"), of("written"), of("total")], [0, 0, 0, 2, 2, 2]);
    let one = place(&graph, &Topology::cpus(1), &Rules::new(), Outside::default()).unwrap_err();
    assert_eq!(one.message, "there is no device /cpu:1");
}

#[test]
fn rules_place_variables_by_name_and_by_path() {
    let graph = parse(
        "graph @f(%x: f32[4]) -> f32[4] {
    var @weight: f32[4]
    var @weight_2: f32[4]
    %a = read @weight : f32[4]
    %b = read @weight_2 : f32[4]
    %y = mul %a, %b : f32[4]
    assign @weight, %y
    return %y
}
",
    );
    let rules = Rules::new().with("*", "/cpu:1").unwrap().with("model.layer{i}.*", "/cpu:{i}").unwrap();
    let topology = Topology::cpus(3);
    let paths = [Some("model.layer2.weight".to_owned()), None];
    let placement = place(&graph, &topology, &rules, Outside { paths: &paths, ..Outside::default() }).unwrap();
    assert_eq!([0, 1].map(|v| placement.of_var(VarId::from_index(v)).index()), [2, 1]);
    check_laws(&graph, &topology, &placement, true);
}

/// Returns the text of an error without source lines.
#[track_caller]
fn error_of(text: &str, topology: &Topology, rules: &Rules, paths: &[Option<String>]) -> String {
    let error =
        place(&parse(text), topology, rules, Outside { paths, ..Outside::default() }).expect_err("it cannot be placed");
    error.to_string()
}

#[test]
fn an_error_shows_the_chain_of_constraints() {
    let topology = Topology::cpus(2);
    let text = "graph @f(%x: f32[4]) -> f32[4] {
    var @w: f32[4] on \"/cpu:0\"
    %w = read @w : f32[4]
    %y = mul %x, %w : f32[4] on \"/gpu\"
    return %y
}
";
    assert_eq!(
        error_of(text, &topology, &Rules::new(), &[]),
        "error: there is no device /gpu
 --> f.ir:4:30
  | /gpu for `mul` at f.ir:4:5
  = help: available: /cpu:0, /cpu:1
"
    );
    let text = text.replace("on \"/gpu\"", "").replace("return", "assign @w, %y on \"/cpu:1\"\n    return");
    assert_eq!(
        error_of(&text, &topology, &Rules::new().with("w", "/cpu").unwrap(), &[]),
        "error: conflicting device constraints: no device matches /cpu:0 and /cpu and /cpu:1
 --> f.ir:5:19
  | /cpu:1 for `assign` at f.ir:5:5, which is where the variable `w` is
 ::: f.ir:2:20
  | /cpu:0 for the variable `w`
  = note: /cpu for the variable `w` by the rule \"w\" -> \"/cpu\"
  = help: available: /cpu:0, /cpu:1
"
    );
    let rules = Rules::new().with("*", "/cpu:1").unwrap();
    assert_eq!(
        error_of(&text, &topology, &rules, &[]),
        "error: conflicting device constraints: no device matches /cpu:0 and /cpu:1
 --> f.ir:2:20
  | /cpu:0 for the variable `w`
  = note: /cpu:1 for the variable `w` by the rule \"*\" -> \"/cpu:1\"
  = help: available: /cpu:0, /cpu:1
"
    );
}

#[test]
fn an_explanation_is_a_table_of_nodes_and_of_what_crosses() {
    let graph = parse(CONTROL);
    let topology = Topology::cpus(3);
    let text = explained(&placed(&graph, &topology), &graph, &topology);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/place/control.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(path).unwrap());
}

/// Returns a graph of many chains of matmuls, with occasional links between neighbors.
fn large(chains: usize, n: usize) -> Graph {
    let mut graph = GraphBuilder::new(Graph::new("large"));
    let ty = anabranch_dsl::Type::tensor(anabranch_dsl::DType::F32, [64usize, 64]);
    let root = graph.root();
    let x = graph.add_param(root, ty, Some("x"));
    let [matmul, add] = [prim::MATMUL, prim::ADD];
    let mut ends = vec![x; chains];
    for i in 0..n {
        for c in 0..chains {
            let (op, other) = if i % 16 == 15 { (add, ends[(c + 1) % chains]) } else { (matmul, ends[c]) };
            ends[c] = graph.prim(op, &[ends[c], other], anabranch_dsl::ir::Attrs::none());
        }
    }
    graph.region_mut(root).yields = ends;
    graph.into_graph()
}

#[test]
fn a_large_graph_is_spread_over_all_devices() {
    let topology = Topology::cpus(4);
    let slow = std::env::var_os("ANABRANCH_SLOW").is_some();
    let graph = large(100, if slow { 1000 } else { 40 });
    let start = std::time::Instant::now();
    let placement = placed(&graph, &topology);
    // For BENCHMARKS.md: no test depends on the clock.
    println!("{} nodes placed in {:?}", graph.n_nodes(), start.elapsed());
    check_laws(&graph, &topology, &placement, true);
    assert_eq!(placement.devices(&graph).len(), 4);
    let Some(Reasons { seconds, single: Some((_, single)), .. }) = placement.reasons else { panic!("it was chosen") };
    assert!(seconds < 0.5 * single, "{seconds} of {single}");
}

#[test]
fn random_graphs_are_placed_by_the_laws() {
    let cases = if std::env::var_os("ANABRANCH_SLOW").is_some() { 2000 } else { 100 };
    let topology = Topology::cpus(3);
    let (mut several, mut constrained, mut checked) = (0, 0, 0);
    let mut state = 0x2545_f491_4f6c_dd1du64 ^ corpus::seed();
    for case in 0..cases {
        let mut byte = || {
            // xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators,
            // scrambled", 2016).
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
        };
        let tape: Vec<u8> = (0..600).map(|_| byte()).collect();
        let graph = random::program(&tape).graph;
        let placement = placed(&graph, &topology);
        // A few random graphs have no node.
        let n = check_each_node(&graph, &topology, &placement, true);
        assert_eq!(placed(&graph, &topology), placement, "case {case}");
        several += usize::from(placement.devices(&graph).len() > 1);
        graph.visit_nodes(graph.root(), &mut |node| constrained += usize::from(graph.node(node).on.is_some()));
        let at_random = place_at_random(&graph, 3, case);
        assert_eq!(check_each_node(&graph, &topology, &at_random, false), n);
        assert!(!explained(&placement, &graph, &topology).is_empty());
        checked += n;
    }
    assert!(several > cases as usize / 25 && constrained > 5 * cases as usize, "{several}, {constrained}");
    assert!(checked > constrained);
}

#[test]
fn the_estimate_of_one_device_is_that_of_a_walk() {
    let topology = Topology::cpus(2);
    for graph in [parse(CONTROL), lstm(2, 32, 8, |_| None), chains(3, 4, 64)] {
        let (groups, costs) = (Groups::new(&graph), Costs::new(&graph));
        let mut estimator = estimate::Estimator::new(&graph, &topology, &groups, &costs);
        let device = DeviceId::from_index(1);
        let [walked, summed] = [estimator.of(&vec![device; groups.len()]), estimator.single(device)];
        assert!((walked.seconds / summed.seconds - 1.0).abs() < 1e-9, "{walked:?} {summed:?}");
        assert_eq!(walked.transfers, 0.0);
    }
}

#[test]
fn devices_that_share_cores_are_not_split_over_for_what_threads_share_anyway() {
    let graph = chains(4, 8, 512);
    let mut topology = Topology::cpus(2);
    assert_eq!(placed(&graph, &topology).devices(&graph).len(), 2, "two devices of their own share the work");
    topology.alone = 2.0;
    assert_eq!(placed(&graph, &topology).devices(&graph).len(), 1, "one device has the cores of both");
    // Small operations run on one thread, so a second device helps.
    let small = chains(4, 200, 64);
    assert_eq!(placed(&small, &topology).devices(&small).len(), 2);
}

/// Returns a loop whose body is a chain of heavy matmuls on several devices. Only the counter is
/// carried.
fn pipeline(stages: usize, trips: usize) -> Graph {
    let mut text = format!(
        "graph @pipeline(%x: f32[256, 256]) -> f32[256, 256] {{
    %zero = constant 0 : i32[] on \"/cpu:0\"
    %start = constant 0.0 : f32[256, 256] on \"/cpu:0\"
    %i, %last = while (%i = %zero, %last = %start | %x = %x) cond {{
        %n = constant {trips} : i32[] on \"/cpu:0\"
        %more = lt %i, %n : bool[] on \"/cpu:0\"
        yield %more
    }} body {{
        %one = constant 1 : i32[] on \"/cpu:0\"
        %j = add %i, %one : i32[] on \"/cpu:0\"\n"
    );
    for stage in 0..stages {
        let from = if stage == 0 { "x".to_owned() } else { format!("y{}", stage - 1) };
        let _ = writeln!(text, "        %y{stage} = matmul %{from}, %x : f32[256, 256] on \"/cpu:{stage}\"");
    }
    parse(&format!("{text}        yield %j, %y{}\n    }}\n    return %last\n}}\n", stages - 1))
}

#[test]
fn iterations_of_a_pipeline_overlap_in_the_estimate() {
    let topology = Topology::cpus(8);
    let of = |stages: usize, trips: usize| {
        let graph = pipeline(stages, trips);
        placed(&graph, &topology).reasons.expect("it was chosen").seconds
    };
    let (one, eight) = (of(1, 100), of(8, 100));
    // About the time of one stage plus the seven that fill the pipeline, apart from messages.
    assert!(eight > one && eight < 1.5 * one, "{one} {eight}");
    // Each further iteration takes as long as one stage.
    let more = of(8, 1100) / 1000.0 - eight / 1000.0;
    assert!((more / (one / 100.0) - 1.0).abs() < 0.3, "{more} {one}");
}

#[test]
fn a_number_without_a_peer_is_a_device_of_this_process() {
    let topology = Topology::with_peers();
    let on = |constraint: &str| {
        let graph = parse(&format!("graph @f(%x: f32[2]) -> f32[2] {{ %y = exp %x on \"{constraint}\"  return %y }}"));
        let placement = placed(&graph, &topology);
        topology.device(DeviceId::from_index(device_of(&graph, &placement, "y"))).name.to_string()
    };
    assert_eq!(on("/cpu:1"), "/cpu:1");
    assert_eq!(on("/peer:local"), "/cpu:0");
    assert_eq!(on("/peer:1/cpu:1"), "/peer:1/cpu:1");
    assert_eq!(on("/peer:1"), "/peer:1/cpu:0");
    assert_eq!(on("/cpu"), "/cpu:0");
}

#[test]
fn constraints_are_absolute_before_they_are_merged() {
    let topology = Topology::with_peers();
    let text = |var: &str, node: &str| {
        format!(
            "graph @f(%x: f32[]) -> f32[] {{
                var @w: f32[] on \"{var}\"
                %v = read @w : f32[] on \"{node}\"
                %y = mul %v, %x
                return %y
            }}"
        )
    };
    let placed = |var: &str, node: &str| {
        let graph = parse(&text(var, node));
        place(&graph, &topology, &Rules::new(), Outside::default())
    };
    // Of any process, with one of them.
    assert!(placed("/peer:0", "/cpu").is_ok() && placed("/peer:local", "/cpu:1").is_ok());
    let error = placed("/peer:0", "/cpu:1").expect_err("one is of this process, the other of a peer");
    assert_eq!(error.message, "conflicting device constraints: no device matches /peer:0 and /cpu:1");
    let help = error.help.expect("it says what there is");
    assert!(help.ends_with("; without a peer, `/cpu:1` is a device of this process"), "{help}");
    let error = placed("/cpu:2", "/cpu").expect_err("only some peers could have it");
    assert_eq!(error.message, "there is no device /cpu:2");
    // The device of the session and its rules are names like others.
    let rules = Rules::new().with("w", "/cpu:1").expect("a rule");
    let graph =
        parse("graph @f(%x: f32[]) -> f32[] { var @w: f32[]  %v = read @w : f32[]  %y = mul %v, %x  return %y }");
    let placement = place(&graph, &topology, &rules, Outside::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(placement.of_var(VarId::from_index(0)).index(), 1);
    let missing = Rules::new().with("w", "/cpu:2").expect("a rule").check(&topology).unwrap_err();
    assert_eq!(missing.message, "the rule \"w\" -> \"/cpu:2\" matches no device");
    let gpu = Rules::new().with_default(Some("/gpu:0".parse().expect("a pattern"))).check(&topology).unwrap_err();
    assert_eq!(gpu.message, "the session has no device /gpu:0");
}

#[test]
fn work_goes_to_a_peer_only_over_a_fast_link() {
    let devices = |link: LinkSpeed| {
        let (own, name) = (DeviceInfo::cpu(0), DeviceInfo::cpu(0).name.of_peer("0").expect("a name"));
        let topology = Topology::new(vec![own, DeviceInfo { name, ..own }], |_, _| link);
        let graph = chains(2, 4, 512);
        placed(&graph, &topology).devices(&graph).len()
    };
    assert_eq!(devices(LinkSpeed { bandwidth: 10e9, latency: 10e-6 }), 2);
    assert_eq!(devices(LinkSpeed { bandwidth: 1e6, latency: 10e-6 }), 1, "a megabyte takes a second");
    assert_eq!(devices(LinkSpeed { bandwidth: 10e9, latency: 1.0 }), 1, "a message takes a second");
}

#[test]
fn inputs_outputs_and_predicates_count_with_the_link_to_the_host() {
    let fast = DeviceInfo { flops: 20e12, bandwidth: 1e12, ..DeviceInfo::cpu(1) };
    let slow_link = LinkSpeed { bandwidth: 1e6, latency: 10e-6 };
    // The second device is faster by far.
    let device_for = |graph: &Graph, link: Option<LinkSpeed>| {
        let topology = Topology::new(vec![DeviceInfo::cpu(0), fast], |_, _| link.unwrap_or(LinkSpeed::LOCAL));
        let topology = topology.with_host_links(|id| link.filter(|_| id.index() == 1));
        placed(graph, &topology).devices(graph)
    };
    let [first, second] = [0, 1].map(DeviceId::from_index);
    let products = chains(1, 4, 512);
    assert_eq!(device_for(&products, None), [second]);
    assert_eq!(device_for(&products, Some(LinkSpeed { bandwidth: 10e9, latency: 10e-6 })), [second]);
    assert_eq!(device_for(&products, Some(slow_link)), [first], "a megabyte takes a second");
    // The body is light, and data decides each iteration.
    let looped = parse(
        "graph @f(%x: f32[100, 100]) -> f32[] {
            %zero = constant 0.0 : f32[]
            %r = while (%a = %zero | %m = %x) : (f32[]) cond {
                %s = sum %m {axes=[0, 1], keepdim=false} : f32[]
                %p = lt %a, %s : bool[]
                yield %p
            } body {
                %t = sum %m {axes=[0, 1], keepdim=false} : f32[]
                %n = add %a, %t : f32[]
                yield %n
            }
            return %r
        }",
    );
    assert_eq!(device_for(&looped, None), [second]);
    assert_eq!(device_for(&looped, Some(LinkSpeed { bandwidth: 10e9, latency: 1e-3 })), [first]);
}
