//! Large graphs: the work on a graph grows linearly with its size, not quadratically.
//!
//! Only the long runs (`ANABRANCH_SLOW=1`) compare times. The default run does the same work on the
//! small graphs.

use anabranch_dsl::ir::verify;
use anabranch_dsl::passes::{Assignments, Pipeline, prune, specialize};
use anabranch_dsl::trace::WhileTrace;
use anabranch_dsl::{DType, Dim, Graph, Tensor, TensorType, gradients, trace};
use std::time::Instant;

/// Returns a chain of about `n` nodes with constants, shared values and colliding names.
fn chain(n: usize) -> Graph {
    let ty = TensorType { dtype: DType::F32, shape: [Dim::Named("n".into())].into() };
    let traced = trace::trace("chain", || {
        let first = trace::input(ty, Some("x"));
        let mut x = first;
        for i in 0..n / 7 {
            let c = x.number((i % 5) as f64);
            let sum = x.add(c).named("h");
            let product = x.mul(first).add(c);
            x = sum.mul(product).tanh().named("x");
        }
        vec![x]
    });
    traced.expect("the chain is traced").graph
}

/// Does the work for `n`. In long runs, compares its time with that for `10 * n`: quadratic growth
/// would give a factor of a hundred.
#[expect(clippy::disallowed_methods, reason = "the time that passes is what is tested")]
fn check_growth(n: usize, work: fn(usize)) {
    if std::env::var_os("ANABRANCH_SLOW").is_none() {
        return work(n);
    }
    let time = |n: usize| {
        let start = Instant::now();
        work(n);
        start.elapsed()
    };
    // Other load only adds time, so the shortest times count, and more of them are taken while they
    // look bad. Quadratic growth looks bad in every round.
    let (mut small, mut large) = (time(n), time(10 * n));
    for _ in 0..12 {
        if large < small * 40 {
            return;
        }
        (small, large) = (small.min(time(n)), large.min(time(10 * n)));
    }
    panic!("{small:?} for {n}, {large:?} for {}", 10 * n);
}

/// Runs all steps that precede the execution of a graph.
fn all_steps(n: usize) {
    let graph = chain(n);
    verify(&graph).expect("what was traced is verified");
    let parsed = Graph::parse(&graph.to_string(), "chain.ir").expect("what was printed is parsed");
    assert!(parsed.same_structure(&graph));
    let mut special = specialize(&graph, &[TensorType::new(DType::F32, [64])]).expect("the input fits");
    Pipeline::standard().checked(false).run(&mut special);
    assert!(special.n_nodes() > n / 10, "{} nodes are left of {}", special.n_nodes(), graph.n_nodes());
}

#[test]
fn a_graph_ten_times_as_large_takes_about_ten_times_as_long() {
    check_growth(2_000, all_steps);
}

/// Traces the gradient of a loop whose body has `n` saved values.
fn gradient_of_a_loop(n: usize) {
    let traced = trace::trace("loop", || {
        let x = trace::input(TensorType::new(DType::F32, ()), Some("x"));
        let (mut body, params) = WhileTrace::begin(&[x], &[]);
        let mut y = body.begin_body(params[0].lt(x.number(10.0)))[0];
        for _ in 0..n {
            y = y.mul(y.tanh());
        }
        let y = body.end(&[y], &[])[0];
        vec![gradients(Tensor::<f32>::from_any(y), Tensor::<f32>::from_any(x)).untyped()]
    });
    let graph = traced.expect("the loop is traced").graph;
    assert!(graph.n_nodes() > 3 * n, "{} nodes", graph.n_nodes());
}

#[test]
fn a_gradient_that_saves_ten_times_as_much_takes_about_ten_times_as_long() {
    check_growth(500, gradient_of_a_loop);
}

/// Runs the passes on the gradient of a chain that reads its input `n` times.
fn passes_on_a_long_sum(n: usize) {
    let traced = trace::trace("sum", || {
        let x = trace::input(TensorType::new(DType::F32, [4]), Some("x"));
        let y = (0..n).fold(x, |y, i| if i % 2 == 0 { y.mul(x) } else { y.add(x) });
        let slices = (0..n).fold(y, |y, i| y.mul(x.slice(0, i % 4, i % 4 + 1).sum_axis(0).broadcast_like(y)));
        vec![gradients(Tensor::<f32>::from_any(slices).sum(), Tensor::<f32>::from_any(x)).untyped()]
    });
    let mut graph = traced.expect("the chain is traced").graph;
    let traced = graph.n_nodes();
    Pipeline::standard().checked(false).run(&mut graph);
    assert!(graph.n_nodes() < traced, "{} nodes are left of {traced}", graph.n_nodes());
}

#[test]
fn a_sum_of_ten_times_as_many_terms_takes_about_ten_times_as_long() {
    check_growth(500, passes_on_a_long_sum);
}

/// Prunes a graph with `n` assertions, of which each has a computation of its own.
fn prune_with_assertions(n: usize) {
    let checks: String = (0..n)
        .map(|i| format!("%a{i} = exp %h  %c{i} = lt %h, %a{i}  assert %c{i}, \"the exponential is larger\"\n"))
        .collect();
    let text = format!("graph @f(%x: f32[]) -> f32[] {{ %h = tanh %x  {checks} %y = sin %h  return %y }}");
    let graph = Graph::parse(&text, "f.ir").unwrap_or_else(|errors| panic!("{}", errors[0]));
    let (inputs, outputs) = (graph.inputs().to_vec(), graph.outputs().to_vec());
    let pruned = prune(&graph, &inputs, &outputs, Assignments::Drop).expect("the input is fed");
    assert_eq!(pruned.graph.n_nodes(), 3 * n + 2);
    let (h, y) = (graph.node(graph.region(graph.root()).nodes[0]).results[0], outputs[0]);
    let pruned = prune(&graph, &[h], &[y], Assignments::Drop).expect("the value between is fed");
    assert_eq!(pruned.graph.n_nodes(), 3 * n + 1);
}

#[test]
fn pruning_ten_times_as_many_assertions_takes_about_ten_times_as_long() {
    check_growth(400, prune_with_assertions);
}
