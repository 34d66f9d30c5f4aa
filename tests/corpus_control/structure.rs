//! The structure of graphs and plans of control flow: carried values, and the amount saved for a
//! gradient.

use anabranch::dsl::Graph;
use anabranch::dsl::function::{GraphFn, trace_fn};
use anabranch::dsl::ir::Node;
use anabranch::prelude::*;
use anabranch::{DType, TensorType};

type S = Tensor<f64>;
type I = Tensor<i32>;

fn traced<Args, F: GraphFn<Args>>(f: F, types: &[TensorType]) -> Graph {
    trace_fn("f", &f, types).unwrap_or_else(|e| panic!("{e}")).0.graph
}

/// Returns all control-flow nodes, outer nodes first.
fn constructs(graph: &Graph) -> Vec<Node> {
    let mut found = Vec::new();
    graph.visit_nodes(graph.root(), &mut |node| {
        if graph.as_cond(node).is_some() || graph.as_while(node).is_some() {
            found.push(node);
        }
    });
    found
}

fn f64s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F64, shape)
}

#[test]
fn what_a_body_does_not_change_is_captured() {
    fn one_of_three(x: S) -> S {
        while_loop((x, scalar(1.0), x * 2.0), |(i, _, _)| i.less(5.0), |(i, one, y)| (i + one + y, one, y)).0
    }
    #[graph]
    fn of_three_statements(x: S) -> S {
        let (mut i, mut one, mut y) = (x, scalar(1.0), x * 2.0);
        while i < 5.0 {
            (i, one, y) = (i + one + y, one, y);
        }
        i
    }
    for graph in [traced(one_of_three, &[f64s(&[])]), traced(of_three_statements, &[f64s(&[])])] {
        let [node] = constructs(&graph)[..] else { panic!("one loop: {graph}") };
        assert_eq!(graph.while_of(node).n_vars(), 1, "{graph}");
    }
}

#[test]
fn what_no_branch_changes_is_no_result() {
    #[graph]
    fn f(x: S, y: S) -> (S, S, S) {
        let (mut a, mut b, c) = (x, y, x * y);
        if x > 0.0 {
            a = a + c;
            b = y;
        } else {
            a = a - c;
        }
        (a, b, c)
    }
    let graph = traced(f, &[f64s(&[]), f64s(&[])]);
    let [node] = constructs(&graph)[..] else { panic!("one branch: {graph}") };
    assert_eq!(graph.node(node).results.len(), 1, "{graph}");
}

/// Returns a switch of `n` arms, each with a large value that its gradient reads.
fn arms(n: usize) -> impl Fn(I, S) -> S {
    move |i, x| {
        let arm = |k: usize| move || (x.matmul(x) * (k + 1) as f64).sin().exp().sum();
        let y = switch(i, (0..n).map(arm).collect::<Vec<_>>());
        gradients(y, x)
    }
}

/// Returns the size of the arena in bytes, read from the text of a plan.
fn arena_bytes(explained: &str) -> usize {
    let after = explained.split("in an arena of ").nth(1).unwrap_or_else(|| panic!("no arena in {explained}"));
    after.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no number in {after}"))
}

#[test]
fn branches_that_do_not_run_together_share_their_memory() {
    let bytes = |n: usize| {
        let session = Session::new().unwrap();
        let f = session.function(arms(n)).unwrap();
        let explained = f.explain(&[TensorType::new(DType::I32, ()), f64s(&[30, 30])]);
        arena_bytes(&explained.unwrap_or_else(|e| panic!("{e}")))
    };
    let (two, eight) = (bytes(2), bytes(8));
    assert!(two >= 7200, "the arms have tensors of 7200 bytes, the arena {two}");
    assert!(eight < two + 7200, "{eight} bytes for eight arms, {two} for two");
}

#[test]
fn a_branch_that_does_not_run_saves_nothing() {
    let graph = traced(arms(8), &[TensorType::new(DType::I32, ()), f64s(&[30, 30])]);
    // Saved values are pushed inside the arms, so only the arm that runs pushes.
    let root = graph.region(graph.root());
    let is_push = |n: &&Node| graph.node(**n).op.name() == "push";
    assert_eq!(root.nodes.iter().filter(is_push).count(), 0, "{graph}");
    let mut pushes = 0;
    graph.visit_nodes(graph.root(), &mut |node| pushes += usize::from(graph.node(node).op.name() == "push"));
    assert!(pushes >= 8, "{pushes} values are saved: {graph}");
}
