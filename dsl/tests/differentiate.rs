//! Gradients of graphs that were read from text: no function is traced here.

use crate::ops::{agree, dot, gradient_cases, interpret, name_of, noise, value_graph};
use anabranch_dsl::autodiff::differentiate;
use anabranch_dsl::ir::{Graph, GraphBuilder, InsertPoint, Origin, Value, verify};
use anabranch_dsl::{DType, HostTensor};

fn parsed(text: &str) -> Graph {
    Graph::parse(text, "f.ir").unwrap_or_else(|errors| panic!("{}\n{text}", errors[0]))
}

/// Returns the graph of the gradient, with respect to the inputs, of the weighted sum of all
/// outputs of a graph, and checks it against finite differences at a point.
#[track_caller]
fn gradient(name: &str, what: &str, text: &str, point: &[HostTensor]) -> String {
    let graph = parsed(text);
    let run =
        |graph: &Graph, inputs: &[HostTensor]| interpret(graph, inputs).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    let weights: Vec<HostTensor> = run(&graph, point).iter().zip(100..).map(|(y, i)| noise(y, i)).collect();

    let mut backward = graph.clone();
    let (root, outputs, inputs) = (backward.root(), backward.outputs().to_vec(), backward.inputs().to_vec());
    let constants: Vec<Value> = GraphBuilder::edit(&mut backward, |g| {
        g.at(InsertPoint::End(root), Origin::UNKNOWN);
        weights.iter().map(|w| g.constant(w.clone())).collect()
    });
    let pairs: Vec<(Value, Value)> = outputs.into_iter().zip(constants).collect();
    let gradients = differentiate(&mut backward, &pairs, &inputs, Origin::UNKNOWN);
    let gradients = gradients.unwrap_or_else(|e| panic!("{name}: {e}"));
    backward.region_mut(root).yields = gradients;
    verify(&backward).unwrap_or_else(|errors| panic!("{name}: {}\n{backward}", errors[0]));

    let direction: Vec<HostTensor> = point.iter().zip(0..).map(|(x, i)| noise(x, i)).collect();
    let at = |step: f64| {
        let moved = |(x, d): (&HostTensor, &HostTensor)| {
            let data = x.data::<f64>().iter().zip(d.data::<f64>()).map(|(x, d)| x + step * d).collect();
            HostTensor::new(x.shape(), data)
        };
        let inputs: Vec<HostTensor> = point.iter().zip(&direction).map(moved).collect();
        dot(&run(&graph, &inputs), &weights)
    };
    let h = 1e-3;
    let slope = (8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * h);
    agree(name, what, dot(&run(&backward, point), &direction), slope);
    backward.to_string()
}

#[test]
fn every_rule_works_on_text_and_on_its_own_gradient() {
    let cases = gradient_cases();
    assert!(cases.len() > 100, "{} cases", cases.len());
    for case in cases {
        let (graph, point) = value_graph(&case);
        let name = name_of(&case);
        let first = gradient(&name, "first", &graph.to_string(), &point);
        gradient(&name, "second", &first, &point);
    }
}

fn scalars(x: [f64; 2]) -> Vec<HostTensor> {
    x.map(HostTensor::scalar).to_vec()
}

/// Checks the first two gradients of a graph of two scalars.
#[track_caller]
fn twice(name: &str, text: &str, point: [f64; 2]) {
    let first = gradient(name, "first", text, &scalars(point));
    gradient(name, "second", &first, &scalars(point));
}

#[test]
fn a_loop_with_a_branch_on_text_is_differentiated_twice() {
    let text = "graph @f(%x: f64[], %w: f64[]) -> f64[] {
        %zero = constant 0 : i32[]
        %y, %n = while (%s = %x, %i = %zero | %w = %w, %x = %x) cond {
            %five = constant 5 : i32[]
            %more = lt %i, %five
            yield %more
        } body {
            %half = constant 0.5 : f64[]
            %p = lt %s, %half
            %t = cond %p, %s, %w, %x then (%s, %w, %x) {
                %a = mul %s, %w
                %b = exp %a
                yield %b
            } else (%s, %w, %x) {
                %a = sin %s
                %b = mul %a, %x
                yield %b
            }
            %one = constant 1 : i32[]
            %j = add %i, %one
            yield %t, %j
        }
        return %y
    }";
    twice("loop", text, [0.3, 0.8]);
}

#[test]
fn a_checkpoint_in_nested_loops_on_text_is_differentiated_twice() {
    let text = "graph @f(%x: f64[], %w: f64[]) -> f64[] {
        %zero = constant 0 : i32[]
        %y, %n = while (%s = %x, %i = %zero | %w = %w) cond {
            %three = constant 3 : i32[]
            %more = lt %i, %three
            yield %more
        } body {
            %zero = constant 0 : i32[]
            %t, %m = while (%t = %s, %k = %zero | %w = %w, %i = %i) cond {
                %more = le %k, %i
                yield %more
            } body {
                %u = checkpoint (%t = %t, %w = %w) body {
                    %a = mul %t, %w
                    %b = tanh %a
                    %c = add %b, %t
                    yield %c
                }
                %one = constant 1 : i32[]
                %l = add %k, %one
                yield %u, %l
            }
            %one = constant 1 : i32[]
            %j = add %i, %one
            yield %t, %j
        }
        return %y
    }";
    twice("checkpoint", text, [0.4, 0.7]);
}

#[test]
fn a_custom_gradient_on_text_is_used() {
    // The gradient says 3 w dy for x, whatever the function.
    let text = "graph @f(%x: f64[], %w: f64[]) -> f64[] {
        %y = custom_gradient (%x = %x, %w = %w) forward {
            %y = mul %x, %w
            yield %y
        } gradient (%y: f64[], %dy: f64[]) {
            %three = constant 3.0 : f64[]
            %a = mul %dy, %three
            %b = mul %a, %w
            %c = mul %dy, %x
            yield %b, %c
        }
        return %y
    }";
    let mut graph = parsed(text);
    let (inputs, y) = (graph.inputs().to_vec(), graph.outputs()[0]);
    let one = GraphBuilder::edit(&mut graph, |g| g.constant(HostTensor::scalar(1.0f64)));
    let gradients = differentiate(&mut graph, &[(y, one)], &inputs, Origin::UNKNOWN).unwrap();
    let root = graph.root();
    graph.region_mut(root).yields = gradients;
    let results = interpret(&graph, &scalars([2.0, 5.0])).unwrap();
    assert_eq!(results, scalars([15.0, 2.0]));
}

#[test]
fn nodes_of_a_gradient_derive_their_place_from_the_forward_nodes() {
    let text = "graph @f(%x: f64[], %w: f64[]) -> f64[] {
        %y = mul %x, %w on \"/cpu:1\"
        return %y
    }";
    let mut graph = parsed(text);
    let (x, w, y) = (graph.inputs()[0], graph.inputs()[1], graph.outputs()[0]);
    let dx = differentiate(&mut graph, &[(y, w)], &[x], Origin::UNKNOWN).unwrap()[0];
    let of = |v: Value| graph.node(graph.producer(v).expect("a result")).on.map(|on| on.devices().to_string());
    assert_eq!(of(dx), of(y));
    assert!(of(dx).is_some());
}

#[test]
fn branches_are_differentiated_as_deep_as_they_are_read() {
    let mut inner = "%y = exp %x  yield %y".to_owned();
    for _ in 0..126 {
        inner = format!("%y = cond %p, %x, %p then (%x, %p) {{ {inner} }} else (%x, %p) {{ yield %x }}  yield %y");
    }
    let text = format!(
        "graph @f(%x: f64[], %p: bool[]) -> f64[] {{
            %y = cond %p, %x, %p then (%x, %p) {{ {inner} }} else (%x, %p) {{ yield %x }}
            return %y
        }}"
    );
    let mut graph = parsed(&text);
    let (x, y) = (graph.inputs()[0], graph.outputs()[0]);
    let dx = differentiate(&mut graph, &[(y, x)], &[x], Origin::UNKNOWN).unwrap();
    assert!(graph.producer(dx[0]).is_some());
    verify(&graph).unwrap();
}

#[test]
fn a_value_on_which_nothing_depends_has_a_gradient_of_zeros() {
    let mut graph = parsed("graph @f(%x: f64[2], %y: f64[3]) -> f64[2] { return %x }");
    let (x, y) = (graph.inputs()[0], graph.inputs()[1]);
    let zeros = differentiate(&mut graph, &[(x, x)], &[y], Origin::UNKNOWN).unwrap()[0];
    let root = graph.root();
    graph.region_mut(root).yields = vec![zeros];
    let inputs = [2, 3].map(|n| HostTensor::zeros(DType::F64, [n]));
    assert_eq!(interpret(&graph, &inputs).unwrap(), [HostTensor::zeros(DType::F64, [3])]);
}

#[test]
fn operations_on_lists_in_text_are_differentiated_twice() {
    let text = "graph @f(%x: f64[3, 2], %w: f64[2]) -> (f64[2], f64[3, 2]) {
        %zero = constant 0 : i32[]
        %one = constant 1 : i32[]
        %three = constant 3 : i32[]
        %ids = constant [2, 0] : i32[2]
        %parts = constant [1, 2] : i32[2]
        %in = list_unstack %x
        %none = list_new %zero : list<f64[2]>
        %out, %last, %n = while (%out = %none, %s = %w, %i = %zero | %in = %in, %three = %three) cond {
            %more = lt %i, %three
            yield %more
        } body {
            %a = list_read %in, %i
            %b = mul %a, %s
            %c = sin %b
            %d = list_push %out, %c
            %one = constant 1 : i32[]
            %j = add %i, %one
            yield %d, %c, %j
        }
        %rest, %top = list_pop %out
        %two = list_gather %in, %ids
        %some = list_new %three : list<f64[2]>
        %written = list_scatter %some, %ids, %two
        %first = list_read %rest, %zero
        %full = list_write %written, %one, %first
        %sum = list_add %full, %in
        %split = list_split %x, %parts
        %back = list_concat %split : f64[3, 2]
        %a = list_stack %sum : f64[?, 2]
        %b = mul %back, %back
        %c = mul %top, %last
        %d = mul %a, %b
        return %c, %d
    }";
    let numbers = |stream: u32, shape: &[usize]| noise(&HostTensor::zeros(DType::F64, shape), stream);
    let point = [numbers(1, &[3, 2]), numbers(2, &[2])];
    let first = gradient("lists", "first", text, &point);
    gradient("lists", "second", &first, &point);
}

#[test]
fn a_checkpoint_that_uses_a_queue_is_rejected() {
    let text = "graph @f(%x: f32[2]) -> f32[2] {
        queue @q: f32[2]
        %y = checkpoint (%x = %x) body {
            %a = dequeue @q
            %b = mul %a, %x
            yield %b
        }
        return %y
    }";
    let mut graph = parsed(text);
    let (x, y) = (graph.inputs()[0], graph.outputs()[0]);
    let error = differentiate(&mut graph, &[(y, x)], &[x], Origin::UNKNOWN).unwrap_err();
    let expected = "`checkpoint` computes its values twice, which an operation on a queue must not be";
    assert_eq!(error.message, expected);
}

#[test]
fn reductions_that_leave_unknown_extents_are_differentiated_twice() {
    // No two elements are so close that a difference exchanges the larger one.
    let point = [HostTensor::new([3, 2, 4], (0..24).map(|i| 0.05 * f64::from(1 + 7 * i % 24)).collect())];
    for op in ["sum", "max", "min"] {
        for axes in ["[2]", "[1]", "[0]"] {
            let text = format!(
                "graph @f(%x: f64[3, 2, 4]) -> f64[?, ?] {{
                    %a = sin %x
                    %b = with_dynamic %a {{axes=[0, 1, 2]}}
                    %c = mul %b, %b
                    %y = {op} %c {{axes={axes}, keepdim=false}}
                    return %y
                }}"
            );
            let name = format!("{op} over {axes}");
            let first = gradient(&name, "first", &text, &point);
            gradient(&name, "second", &first, &point);
        }
    }
}

#[test]
fn a_loop_with_a_long_chain_of_views_is_differentiated() {
    let n = 20_000;
    let of_values: String = (0..n).map(|i| format!("%v{} = flip %v{i} {{axes=[0]}}\n", i + 1)).collect();
    let of_indices: String = (0..n).map(|i| format!("%k{} = reshape %k{i} {{shape=[]}}\n", i + 1)).collect();
    let text = format!(
        "graph @f(%x: f64[2]) -> f64[2] {{
            %zero = constant 0 : i32[]
            %y, %i = while (%v0 = %x, %k0 = %zero) cond {{
                %two = constant 2 : i32[]
                %more = lt %k0, %two
                yield %more
            }} body {{
                {of_values}
                {of_indices}
                %part = dynamic_slice %v{n}, %k{n} {{axis=0, size=1}}
                %all = broadcast_to %part {{shape=[2]}}
                %t = sin %v{n}
                %u = mul %t, %all
                %one = constant 1 : i32[]
                %j = add %k0, %one
                yield %u, %j
            }}
            return %y
        }}"
    );
    gradient("views", "first", &text, &[HostTensor::new([2], vec![0.3, 0.9])]);
}
