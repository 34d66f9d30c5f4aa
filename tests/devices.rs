//! `on`: the device constraints of nodes are preserved through control flow, gradients and passes,
//! and do not change any value.

use anabranch::AnyValue;
use anabranch::dsl::ir::{Graph, Op};
use anabranch::dsl::passes::{Pipeline, specialize};
use anabranch::dsl::trace;
use anabranch::dsl::{TensorType, interp};
use anabranch::prelude::*;
use anabranch::{Diagnostic, HostTensor, optim, optim::Optimizer};

/// Traces a function of one tensor.
fn traced(f: impl FnOnce(Tensor) -> Tensor) -> Result<Graph, Diagnostic> {
    let traced = trace::trace("f", || {
        let x = Tensor::from_any(trace::input(TensorType::new(anabranch::DType::F32, [3usize]), Some("x")));
        vec![f(x).untyped()]
    })?;
    Ok(traced.graph)
}

/// Returns the operations of a graph that have devices, as `op@device`, in program order.
/// Operations without devices are omitted.
fn stamped(graph: &Graph) -> Vec<String> {
    let mut all = Vec::new();
    graph.visit_nodes(graph.root(), &mut |node| {
        let data = graph.node(node);
        all.extend(data.on.map(|on| format!("{}@{}", data.op.name(), on.devices())));
    });
    all
}

fn count(graph: &Graph, name: &str, device: Option<&str>) -> usize {
    let mut n = 0;
    graph.visit_nodes(graph.root(), &mut |node| {
        let data = graph.node(node);
        let on = data.on.map(|on| on.devices().to_string());
        n += usize::from(data.op.name() == name && on.as_deref() == device);
    });
    n
}

/// Control flow and a tuple in a scope, a scope in a branch, and host `?` in a scope.
#[graph]
fn layers(x: Tensor, trips: usize) -> Tensor {
    let device = format!("/cpu:{}", trips - 1);
    let (mut y, z) = on("/peer:a", || {
        let mut y = x;
        let mut n = scalar(0.0);
        while y.sum() < 10.0 {
            y *= 2.0;
            n += 1.0;
        }
        (y, n)
    });
    if z > 3.0 {
        y = on(&device, || y.exp());
    }
    y = on("/peer:a", || on("/gpu:1", || y.tanh()) + on("/gpu", || y.sin()));
    y.cos()
}

#[test]
fn a_scope_marks_what_is_recorded_in_it_and_lets_tensors_through() {
    let graph = traced(|x| layers(x, 3)).unwrap();
    assert_eq!(count(&graph, "while", Some("/peer:a")), 1);
    assert_eq!(count(&graph, "mul", Some("/peer:a")), 1);
    assert_eq!(count(&graph, "exp", Some("/cpu:2")), 1);
    assert_eq!(count(&graph, "cond", None), 1);
    assert_eq!(count(&graph, "tanh", Some("/peer:a/gpu:1")), 1);
    assert_eq!(count(&graph, "sin", Some("/peer:a/gpu")), 1);
    assert_eq!(count(&graph, "add", Some("/peer:a")), 2, "the counter and the sum of the two");
    assert_eq!(count(&graph, "cos", None), 1);
    let mut at = Vec::new();
    graph.visit_nodes(graph.root(), &mut |node| {
        let data = graph.node(node);
        at.extend(data.on.filter(|_| data.op.name() == "exp").map(|on| (on.loc().file, on.loc().line)));
    });
    let source = include_str!("devices.rs");
    let line = 1 + source.lines().position(|l| l.contains("on(&device")).unwrap();
    assert_eq!(at.len(), 1);
    assert_eq!((at[0].0.ends_with("devices.rs"), at[0].1 as usize), (true, line));
}

#[test]
fn devices_change_no_value() {
    let with = eval(|| layers(tensor([0.5f32, 1.0, -0.25]), 1)).unwrap();
    let graph = traced(|x| layers(x, 1)).unwrap();
    let mut without = graph.clone();
    let mut nodes = Vec::new();
    without.visit_nodes(without.root(), &mut |node| nodes.push(node));
    for node in nodes {
        without.node_mut(node).on = None;
    }
    assert!(!without.same_structure(&graph), "devices are a part of the structure");
    let x = HostTensor::new([3], vec![0.5f32, 1.0, -0.25]);
    let expected = interp::run(&without, std::slice::from_ref(&x), &mut vec![], Default::default()).unwrap();
    assert_eq!(interp::run(&graph, &[x], &mut vec![], Default::default()).unwrap(), expected);
    assert_eq!(with.into_host(), expected[0]);
}

#[test]
fn the_gradient_of_an_operation_is_where_the_operation_is() {
    let graph = traced(|x| {
        let y = on("/cpu:1", || x.tanh());
        let z = on("/cpu:2", || (y * y).exp());
        let free = z.sin().sum();
        on("/cpu:3", || gradients(free, x))
    })
    .unwrap();
    // tanh: dy (1 - y^2); exp: dz z; the square: two products. All other nodes get the constraint
    // of the gradient.
    assert_eq!(count(&graph, "cos", Some("/cpu:3")), 1, "of the sine\n{graph}");
    assert!(count(&graph, "mul", Some("/cpu:2")) >= 3, "{graph}");
    assert!(count(&graph, "mul", Some("/cpu:1")) >= 1, "{graph}");
    let mut none = Vec::new();
    graph.visit_nodes(graph.root(), &mut |node| {
        if graph.node(node).on.is_none() {
            none.push(graph.node(node).op.name());
        }
    });
    assert_eq!(none, ["sin", "sum"], "{graph}");
}

#[test]
fn gradients_through_loops_and_checkpoints_keep_devices() {
    #[graph]
    fn powers(x: Tensor) -> Tensor {
        let mut y = x;
        for _ in range(scalar(3)) {
            y = on("/cpu:1", || y.sin());
            y = on("/cpu:2", || anabranch::checkpoint(|| y.exp()));
        }
        gradients(y.sum(), x)
    }
    let graph = traced(powers).unwrap();
    // The sine saves its operand where it is computed: device 1 pushes it on a stack of its own and
    // pops it again.
    assert_eq!(count(&graph, "cos", Some("/cpu:1")), 1, "{graph}");
    assert_eq!(count(&graph, "recompute", Some("/cpu:2")), 1, "{graph}");
    assert_eq!(count(&graph, "exp", Some("/cpu:2")), 2, "{graph}");
    let [exp, sin] = ["exp", "sin"].map(|op| count(&graph, op, None));
    assert_eq!((exp, sin), (0, 0));
    // Values that autodiff counts or saves in a loop have no device, or that of the saved value.
    assert_eq!(count(&graph, "while", None), 2);
    let parsed = Graph::parse(&graph.to_string(), "f.ir").unwrap();
    assert!(parsed.same_structure(&graph), "{graph}");
}

#[test]
fn passes_keep_devices() {
    let mut graph = traced(|x| {
        let a = on("/cpu:1", || x.tanh() * 2.0);
        let b = on("/cpu:2", || x.tanh() * 2.0);
        let again = on("/cpu:1", || x.tanh() * 2.0);
        a + b + again
    })
    .unwrap();
    graph = specialize(&graph, &[TensorType::new(anabranch::DType::F32, [3usize])]).unwrap();
    Pipeline::standard().checked(true).run(&mut graph);
    let mut found: Vec<String> = stamped(&graph).into_iter().filter(|s| !s.starts_with("constant")).collect();
    found.sort();
    let of = |d: &str| ["mul", "tanh"].map(|op| format!("{op}@/cpu:{d}"));
    let mut expected: Vec<String> = of("1").into_iter().chain(of("2")).collect();
    expected.sort();
    assert_eq!(found, expected, "{graph}");
}

#[test]
fn variables_have_devices_of_their_own() {
    let a = Var::<f32>::new("a", [1.0, 2.0, 3.0]).on("/cpu:1");
    let b = on("/peer:p", || Var::<f32>::new("b", [1.0, 2.0, 3.0]).on("/gpu:2"));
    let sgd = optim::Sgd::new(0.1).momentum(0.9);
    let graph = traced(|x| {
        let loss = on("/cpu:5", || (x * a.get() * b.get()).sum());
        sgd.minimize(loss, &(&a, &b));
        x
    })
    .unwrap();
    let text = graph.to_string();
    for line in [
        "var @a: f32[3] on \"/cpu:1\"",
        "var @b: f32[3] on \"/peer:p/gpu:2\"",
        "var @a.velocity: f32[3] on \"/cpu:1\"",
        "var @b.velocity: f32[3] on \"/peer:p/gpu:2\"",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    // Reads and assignments need no constraint, because they run where the variable is. Updates
    // also run there.
    let mut state = 0;
    graph.visit_nodes(graph.root(), &mut |node| {
        let data = graph.node(node);
        if matches!(data.op, Op::Read(_) | Op::Assign(_)) {
            state += 1;
            assert_eq!(data.on, None);
        }
    });
    assert_eq!(state, 8);
    assert!(count(&graph, "sub", Some("/cpu:1")) == 1 && count(&graph, "sub", Some("/peer:p/gpu:2")) == 1, "{text}");
}

#[test]
fn a_wrong_name_is_an_error_at_the_line_of_the_scope() {
    let error = traced(|x| on("/tpu:1", || x.exp())).unwrap_err();
    assert_eq!(
        error.message,
        "\"/tpu:1\" is not a valid device name: \"tpu\" is not a device kind, expected `cpu` or `gpu`"
    );
    let source = include_str!("devices.rs");
    let line = 1 + source.lines().position(|l| l.contains("on(\"/tpu:1\"")).unwrap();
    let loc = error.loc().unwrap();
    assert_eq!((loc.line as usize, loc.file.ends_with("devices.rs")), (line, true));
    assert!(error.to_string().contains("this device"), "{error}");

    let shared = Var::<f32>::new("w", 1.0);
    let error = traced(|x| x * shared.clone().on("/cpu:1").get()).unwrap_err();
    assert_eq!(error.message, "the variable `w` is already in use");
}

#[test]
fn a_scope_around_a_session_does_not_reach_into_its_functions() {
    let graph = on("/cpu:7", || traced(|x| x.exp())).unwrap();
    assert_eq!(stamped(&graph), [""; 0]);
    // An error in a scope ends the scope.
    traced(|x| on("/cpu:7", || x.reshape([5]))).unwrap_err();
    assert_eq!(stamped(&traced(|x| x.exp()).unwrap()), [""; 0]);
}

/// Handles in a scope are the same as outside it.
#[test]
fn scopes_nest_with_constructs_in_any_order() {
    let graph = traced(|x| {
        let one_of = |p: Tensor<bool>, a: AnyValue, b: AnyValue| {
            cond(p, || on("/cpu:1", || Tensor::<f32>::from_any(a).exp()), || Tensor::from_any(b))
        };
        on("/cpu:2", || one_of(x.sum().greater(0.0), x.untyped(), (x * 2.0).untyped()))
    })
    .unwrap();
    assert_eq!(count(&graph, "exp", Some("/cpu:1")), 1, "{graph}");
    assert_eq!(count(&graph, "cond", Some("/cpu:2")), 1, "{graph}");
}

#[test]
fn constraints_are_looked_at_in_every_session() {
    let w = Var::<f32>::new("w5", 1.0);
    let times = |x: Tensor| x * w.get();
    let on_gpu = |x: Tensor| on("/gpu:3", || x * 2.0);
    let error = |session: anabranch::Result<Session>, f: &dyn Fn(Tensor) -> Tensor| {
        let session = session.expect("the session can be made");
        session.function(f).and_then(|f| f.call(1.0)).expect_err("there is no such device").to_string()
    };
    let rule = || Session::builder().place("w{i}", "/cpu:{i}");
    for session in [rule().build(), rule().interpreted(true).build(), rule().cpus(2).build()] {
        assert!(error(session, &times).contains("no device"));
    }
    let session = Session::builder().interpreted(true).cpus(2).build();
    assert!(error(session, &on_gpu).contains("no device"));
    let none = Session::builder().simulated([]).build().expect_err("there is no device");
    assert!(none.message.contains("at least one simulated device"), "{none}");
}
