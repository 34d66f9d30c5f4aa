//! Properties of every graph, checked on random ones: they verify, print and parse, and passes
//! preserve their results.

use crate::random::{RandomGraph, inputs, program, without_checkpoints};
use crate::random_config::config;
use anabranch_dsl::equality::{one_nan_each, same_number};
use anabranch_dsl::interp::{InterpOptions, run};
use anabranch_dsl::ir::{Op, verify};
use anabranch_dsl::passes::{Pipeline, specialize};
use anabranch_dsl::{Buffer, Graph, HostTensor};
use proptest::prelude::*;

/// Returns the outputs and variables after a run, with all NaNs made equal. The run must not fail.
fn results(graph: &Graph, vars: &[HostTensor]) -> (Vec<HostTensor>, Vec<HostTensor>) {
    let mut vars = vars.to_vec();
    let outputs = run(graph, &inputs(), &mut vars, InterpOptions::default()).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    (one_nan_each(&outputs), one_nan_each(&vars))
}

/// Returns whether floats differ only by rounding.
fn is_close(a: &HostTensor, b: &HostTensor) -> bool {
    let (Buffer::F32(x), Buffer::F32(y)) = (a.buffer(), b.buffer()) else { return false };
    let close = |(x, y): (&f32, &f32)| {
        same_number((*x).into(), (*y).into()) || (x - y).abs() <= 1e-4 * x.abs().max(y.abs()).max(1.0)
    };
    a.ty() == b.ty() && x.iter().zip(y).all(close)
}

#[track_caller]
fn check_verified(graph: &Graph) {
    if let Err(errors) = verify(graph) {
        let messages: Vec<&str> = errors.iter().map(|e| e.message.as_str()).collect();
        panic!("{}\n{graph}", messages.join("\n"));
    }
}

fn check_text(graph: &Graph) {
    let text = graph.to_string();
    let parsed = Graph::parse(&text, "random.ir").unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
    assert!(parsed.same_structure(graph), "{text}");
    assert_eq!(parsed.to_string(), text);
}

fn tape() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..800)
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn what_was_traced_is_verified_and_round_trips(tape in tape()) {
        let RandomGraph { graph, .. } = program(&tape);
        check_verified(&graph);
        check_text(&graph);
        let compact = graph.compact();
        prop_assert!(compact.same_structure(&graph), "{}", graph);
        prop_assert_eq!(compact.to_string(), graph.to_string());
    }

    #[test]
    fn passes_keep_what_is_computed(tape in tape()) {
        let RandomGraph { graph, vars } = program(&tape);
        let before = results(&graph, &vars);
        let mut optimized = graph.clone();
        Pipeline::standard().checked(true).run(&mut optimized);
        check_text(&optimized);
        prop_assert_eq!(&results(&optimized, &vars), &before, "{}\n{}", graph, optimized);
        let mut again = optimized.clone();
        Pipeline::standard().checked(true).run(&mut again);
        prop_assert_eq!(&results(&again, &vars), &before);
    }

    #[test]
    fn checkpoints_change_no_value_and_no_gradient(tape in tape()) {
        let (with, without) = (program(&tape), without_checkpoints(&tape));
        let ((a, vars), (b, expected)) = (results(&with.graph, &with.vars), results(&without.graph, &without.vars));
        prop_assert_eq!(vars, expected);
        for (a, b) in a.iter().zip(&b) {
            // A gradient may be summed in a different order.
            prop_assert!(a == b || is_close(a, b), "{:?}\n{:?}\n{}", a, b, with.graph);
        }
    }

    #[test]
    fn specializing_keeps_what_is_computed(tape in tape()) {
        let RandomGraph { graph, vars } = program(&tape);
        let types: Vec<_> = inputs().iter().map(HostTensor::ty).collect();
        let special = specialize(&graph, &types).unwrap_or_else(|e| panic!("{e}\n{graph}"));
        check_verified(&special);
        for &v in special.inputs().iter().chain(special.outputs()) {
            prop_assert!(special.ty(v).element().shape.known().is_some(), "{}\n{}", graph, special);
        }
        prop_assert_eq!(results(&special, &vars), results(&graph, &vars), "{}\n{}", graph, special);
    }

    #[test]
    fn no_text_makes_the_parser_panic(tape in tape(), edits in proptest::collection::vec((any::<prop::sample::Index>(), 0..8u8, ".{0,3}"), 1..6)) {
        let mut text = program(&tape).graph.to_string();
        for (index, kind, new) in edits {
            text = edited(&text, index, kind, &new);
        }
        // Any accepted text must behave like any other graph.
        if let Ok(graph) = Graph::parse(&text, "random.ir") {
            check_verified(&graph);
            check_text(&graph);
        }
    }

    #[test]
    fn arbitrary_text_is_refused_with_a_reason(text in "\\PC{0,80}|(graph|@f|\\(|\\)|\\{|\\}|%x|:|=|while|cond|f32|\\[|\\]|,|->|\\||yield|return| |\n){0,60}") {
        if let Err(errors) = Graph::parse(&text, "random.ir") {
            prop_assert!(!errors.is_empty());
        }
    }
}

/// A pass rewrites `x * -1` to `-x`, which changes the sign of a NaN.
#[test]
fn passes_may_change_the_sign_of_a_nan() {
    let text = "graph @f(%x: f32[]) -> f32[] { %m = constant -1 : f32[] %y = mul %x, %m return %y }";
    let graph = Graph::parse(text, "nan.ir").unwrap_or_else(|e| panic!("{}", e[0]));
    let mut optimized = graph.clone();
    Pipeline::standard().checked(true).run(&mut optimized);
    let run = |graph: &Graph| {
        let inputs = [HostTensor::scalar(f32::NAN)];
        run(graph, &inputs, &mut vec![], InterpOptions::default()).unwrap_or_else(|e| panic!("{e}"))
    };
    assert!(optimized.to_string().contains("neg"), "{optimized}");
    assert_eq!(one_nan_each(&run(&optimized)), one_nan_each(&run(&graph)));
}

/// Returns the text with one change: a character or word is removed, duplicated, replaced or
/// swapped with another.
fn edited(text: &str, index: prop::sample::Index, kind: u8, new: &str) -> String {
    let words: Vec<&str> = text.split_inclusive([' ', '\n', '(', ')', ',', '%']).collect();
    if words.is_empty() {
        return new.to_owned();
    }
    let i = index.index(words.len());
    let j = index.index(words.len().div_ceil(2));
    let replaced = |with: &str| [&words[..i].concat(), with, &words[i + 1..].concat()].concat();
    match kind {
        0 => replaced(""),
        1 => replaced(&words[i].repeat(2)),
        2 => replaced(words[j]),
        3 => replaced(new),
        4 => words[..i].concat(),
        5 => replaced(&format!("{new}{}", words[i])),
        6 => replaced(&words[i].chars().rev().collect::<String>()),
        _ => {
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            let i = index.index(lines.len());
            [&lines[..i].concat(), &lines[i + 1..].concat()[..]].concat()
        }
    }
}

#[test]
fn random_graphs_have_everything() {
    let (mut conds, mut whiles, mut stacks, mut assigns, mut deepest) = (0, 0, 0, 0, 0);
    let mut calls = std::collections::HashMap::new();
    let mut state = 1u64;
    for _ in 0..300 {
        let tape: Vec<u8> = (0..800)
            .map(|_| {
                // A linear congruential generator (Knuth, MMIX): the same tapes on every machine.
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 56) as u8
            })
            .collect();
        let graph = program(&tape).graph;
        graph.visit_nodes(graph.root(), &mut |n| {
            match graph.node(n).op {
                Op::Cond => conds += 1,
                _ if graph.as_while(n).is_some() => whiles += 1,
                Op::Stack(_) => stacks += 1,
                Op::Assign(_) => assigns += 1,
                Op::Call(kind) => *calls.entry(kind.name()).or_insert(0) += 1,
                _ => {}
            }
            let mut depth = 0;
            let mut region = graph.node(n).region;
            while let Some(owner) = graph.region(region).owner {
                depth += 1;
                region = graph.node(owner).region;
            }
            deepest = deepest.max(depth);
        });
    }
    assert!(conds > 100 && whiles > 100 && stacks > 100 && assigns > 20, "{conds} {whiles} {stacks} {assigns}");
    assert!(calls.len() == 3 && calls.values().all(|&n| n > 5), "{calls:?}");
    assert!(deepest >= 3, "{deepest}");
}
