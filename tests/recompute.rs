//! Checkpoints: gradients that recompute values instead of saving them.

#![allow(clippy::assign_op_pattern, reason = "both forms of assignment are staged")]

use crate::support::{check, check_each, error_of};
use anabranch::dsl::function::{GraphFn, trace_fn};
use anabranch::dsl::passes::Pipeline;
use anabranch::prelude::*;
use anabranch::random::Key;
use anabranch::{DType, Dim, List, TensorType};

type S = Tensor<f64>;

/// Returns the optimized graph of a function of `f64` tensors with the given shapes.
fn graph_of<Args, F: GraphFn<Args>>(f: F, shapes: &[&[usize]]) -> anabranch::Graph {
    let signature: Vec<TensorType> = shapes.iter().map(|s| TensorType::new(DType::F64, s.to_vec())).collect();
    let mut graph = trace_fn("f", &f, &signature).unwrap_or_else(|e| panic!("{e}")).0.graph;
    Pipeline::standard().run(&mut graph);
    graph
}

fn pushes(graph: &anabranch::Graph) -> usize {
    graph.to_string().matches(" push ").count()
}

#[test]
fn a_checkpoint_changes_neither_value_nor_gradient() {
    #[graph]
    fn f(x: S, w: S) -> (S, S, S) {
        let y = checkpoint(|| {
            let u = (x * w).tanh();
            u * u + w
        });
        let (dx, dw) = gradients(y.sum(), (x, w));
        (y, dx, dw)
    }
    let (x, w) = (0.7f64, 1.3f64);
    let u = (x * w).tanh();
    let du = 2.0 * u * (1.0 - u * u);
    check(f, (x, w), &[u * u + w, du * w, du * x + 1.0]);
}

#[test]
fn in_second_order_and_one_in_another() {
    #[graph]
    fn f(x: S) -> (S, S, S) {
        let y = checkpoint(|| {
            let u = checkpoint(|| x * x);
            u * x
        });
        let dx = gradients(y, x);
        let ddx = gradients(dx, x);
        (dx, ddx, gradients(ddx, x))
    }
    check(f, 2.0, &[12.0, 12.0, 6.0]);
}

#[test]
fn several_results_of_several_types_and_what_is_given_back() {
    #[graph]
    fn f(x: S) -> (S, S, Tensor<i32>, S) {
        let (a, b, n) = checkpoint(|| (x * 3.0, x, scalar(4)));
        (a, b, n, gradients(a * b, x))
    }
    check(f, 2.0, &[6.0, 2.0, 4.0, 12.0]);
}

#[test]
fn a_body_with_branches_and_loops_in_a_loop() {
    #[graph]
    fn step(x: S, w: S) -> S {
        let (mut y, mut i) = (x, scalar(0));
        while i < 3 {
            if y > 1.0 {
                y = y * w;
            } else {
                y = y + w * w;
            }
            i += 1;
        }
        y
    }
    #[graph]
    fn plain(x: S, w: S, n: Tensor<i32>) -> (S, S, S) {
        let (mut y, mut i) = (x, scalar(0));
        while i < n {
            y = step(y, w);
            i += 1;
        }
        let (dx, dw) = gradients(y, (x, w));
        (y, dx, dw)
    }
    #[graph]
    fn again(x: S, w: S, n: Tensor<i32>) -> (S, S, S) {
        let (mut y, mut i) = (x, scalar(0));
        while i < n {
            y = checkpoint(|| step(y, w));
            i += 1;
        }
        let (dx, dw) = gradients(y, (x, w));
        (y, dx, dw)
    }
    let cases = [0, 1, 2, 7].map(|n| {
        let expected = anabranch::eval_with(plain, (0.3, 0.9, n)).unwrap();
        ((0.3, 0.9, n), [expected.0.item(), expected.1.item(), expected.2.item()])
    });
    check_each(plain, cases);
    check_each(again, cases);
}

#[test]
fn a_loop_saves_the_carried_state_alone() {
    #[graph]
    fn plain(x: S, w: S) -> (S, S) {
        let (mut y, mut i) = (x, scalar(0));
        while i < 10 {
            y = ((y * w).sin().exp() * y).tanh();
            i += 1;
        }
        gradients(y.sum(), (x, w))
    }
    #[graph]
    fn again(x: S, w: S) -> (S, S) {
        let (mut y, mut i) = (x, scalar(0));
        while i < 10 {
            y = checkpoint(|| ((y * w).sin().exp() * y).tanh());
            i += 1;
        }
        gradients(y.sum(), (x, w))
    }
    let shapes: [&[usize]; 2] = [&[5], &[5]];
    assert!(pushes(&graph_of(plain, &shapes)) >= 3);
    let graph = graph_of(again, &shapes);
    assert_eq!(pushes(&graph), 1, "{graph}");
    let x = [0.1, 0.2, 0.3, 0.4, 0.5];
    let expected = anabranch::eval_with(plain, (x, x)).unwrap();
    let expected: Vec<f64> = expected.0.as_slice().iter().chain(expected.1.as_slice()).copied().collect();
    check(again, (x, x), &expected);
}

/// Returns the `explain` text of a function of `f64` tensors.
fn explained<Args, F: GraphFn<Args>>(f: F, shapes: &[&[usize]]) -> String {
    let session = Session::new().unwrap();
    let signature: Vec<TensorType> = shapes.iter().map(|s| TensorType::new(DType::F64, s.to_vec())).collect();
    session.function(f).unwrap().explain(&signature).unwrap()
}

/// Returns the size of the arena in bytes, read from the text of `explain`.
fn arena<Args, F: GraphFn<Args>>(f: F, shape: &[usize]) -> usize {
    let text = explained(f, &[shape]);
    let line = text.lines().find(|l| l.contains("in an arena of")).expect("a line about the arena");
    let rest = line.split("in an arena of ").nth(1).unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn memory_falls_since_nothing_inside_is_kept() {
    fn layer(x: S) -> S {
        (0..6).fold(x, |x, _| x.matmul(x).sin())
    }
    fn plain(x: S) -> S {
        gradients((0..6).fold(x, |x, _| layer(x)).sum(), x)
    }
    fn again(x: S) -> S {
        gradients((0..6).fold(x, |x, _| checkpoint(|| layer(x))).sum(), x)
    }
    let (plain, again) = (arena(plain, &[16, 16]), arena(again, &[16, 16]));
    // 36 products and as many sines against 6 inputs and the 12 values of one layer.
    assert!(2 * again < plain, "{again} bytes with checkpoints, {plain} without");
}

#[test]
fn random_numbers_are_the_same_again() {
    fn drop(x: S, key: Key) -> S {
        let keep = key.bernoulli(0.5f64, [64]);
        keep.select(x * 2.0, x * 0.0)
    }
    fn f(x: S) -> (S, S) {
        let key = Key::new(3);
        let y = checkpoint(|| drop(x, key.fold_in(1)) * x);
        (y, gradients(y.sum(), x))
    }
    let x = vec![1.0; 64];
    let (y, dx) = anabranch::eval_with(f, x.clone()).unwrap();
    let (kept, n) = (y.as_slice(), y.as_slice().iter().filter(|&&y| y > 0.0).count());
    assert!((10..54).contains(&n), "{n} of 64 are kept");
    let expected: Vec<f64> = kept.iter().map(|y| 2.0 * y).collect();
    assert_eq!(dx.as_slice(), expected);
    let all: Vec<f64> = kept.iter().copied().chain(expected).collect();
    check(f, x, &all);
}

#[test]
fn assertions_and_assignments_happen_once() {
    let calls = Var::new("calls", 0.0f64);
    let counter = calls.clone();
    let f = move |x: S| {
        let y = checkpoint(|| {
            counter.set(counter.get() + 1.0);
            anabranch::dsl::trace::assert(x.untyped().gt(anabranch::scalar(0.0f64).untyped()), "positive".into());
            (x * counter.get()).exp()
        });
        (y, gradients(y, x), counter.get())
    };
    let e = 2f64.exp();
    check(&f, 2.0, &[e, e, 1.0]);
    let graph = graph_of(&f, &[&[]]);
    assert_eq!(graph.to_string().matches("assert").count(), 1, "{graph}");
    assert_eq!(error_of(&f, -1.0).message, "assertion failed: positive");
}

#[test]
fn a_tensor_does_not_leave_a_checkpoint_by_a_side_door() {
    let cell = std::cell::Cell::new(None);
    let f = |x: S| {
        let z = checkpoint(|| {
            cell.set(Some(x * 2.0));
            x
        });
        cell.get().expect("the body ran") + z
    };
    let text = error_of(f, 1.0).to_string();
    assert!(text.contains("a tensor of the body of a `checkpoint` is used outside it"), "{text}");
    assert!(text.contains("return it from the closure"), "{text}");
}

// Loops in segments.

#[graph]
fn recurrence(x: S, w: S, n: Tensor<i32>) -> (S, Tensor<i32>) {
    let (mut y, mut i) = (x, scalar(0));
    while i < n {
        y = (y * w).sin() + y * 0.5;
        i += 1;
    }
    (y, i)
}

#[graph]
fn in_growing_segments(x: S, w: S, n: Tensor<i32>) -> (S, Tensor<i32>) {
    let (mut y, mut i) = (x, scalar(0));
    while i < n {
        checkpoint_loop();
        y = (y * w).sin() + y * 0.5;
        i += 1;
    }
    (y, i)
}

#[graph]
fn in_segments_of_8(x: S, w: S, n: Tensor<i32>) -> (S, Tensor<i32>) {
    let (mut y, mut i) = (x, scalar(0));
    while i < n {
        y = (y * w).sin() + y * 0.5;
        checkpoint_loop_every(8);
        i += 1;
    }
    (y, i)
}

/// Returns the value, the trip count, the first derivatives, and a second derivative.
fn derivatives(y: (S, Tensor<i32>), x: S, w: S) -> (S, Tensor<i32>, S, S, S) {
    let (dx, dw) = gradients(y.0, (x, w));
    (y.0, y.1, dx, dw, gradients(dx, w))
}

#[test]
fn segments_have_the_gradients_of_the_plain_loop() {
    let plain = |x, w, n| derivatives(recurrence(x, w, n), x, w);
    let cases = [0, 1, 2, 7, 64, 65].map(|n| {
        let (y, i, dx, dw, dxw) = anabranch::eval_with(plain, (0.3, 1.2, n)).unwrap();
        let expected = [y.item(), i.item().into(), dx.item(), dw.item(), dxw.item()];
        assert_eq!(expected[1], f64::from(n));
        ((0.3, 1.2, n), expected)
    });
    check_each(plain, cases);
    check_each(|x, w, n| derivatives(in_growing_segments(x, w, n), x, w), cases);
    check_each(|x, w, n| derivatives(in_segments_of_8(x, w, n), x, w), cases);
}

#[test]
fn segments_with_loops_inside_and_around() {
    #[graph]
    fn nest(x: S, segments: bool) -> (S, S) {
        let (mut y, mut i) = (x, scalar(0));
        while i < 3 {
            let mut j = scalar(0);
            while j < 5 {
                if segments {
                    checkpoint_loop();
                }
                let mut k = scalar(0);
                while k < j {
                    if segments {
                        checkpoint_loop_every(2);
                    }
                    y = y + (y * 0.3).sin();
                    k += 1;
                }
                y = y * 0.9;
                j += 1;
            }
            i += 1;
        }
        (y, gradients(y, x))
    }
    let expected = anabranch::eval_with(|x| nest(x, false), 0.4).unwrap();
    let expected = [expected.0.item(), expected.1.item()];
    check(|x| nest(x, false), 0.4, &expected);
    check(|x| nest(x, true), 0.4, &expected);
}

#[test]
fn a_loop_in_segments_has_its_effects_once_and_in_order() {
    let log = Var::new("log", 0.0f64);
    let counter = log.clone();
    #[graph]
    fn f(x: S, n: Tensor<i32>, log: &Var<f64>) -> (S, S, S) {
        let (mut y, mut i) = (x, scalar(0));
        while i < n {
            checkpoint_loop_every(3);
            assert!(y < 100.0, "y grew");
            log.set(log.get() * 2.0 + 1.0);
            y = y * y;
            i += 1;
        }
        (y, gradients(y, x), log.get())
    }
    // Each iteration doubles the value and adds one.
    check(|x, n| f(x, n, &counter), (1.0, 5), &[1.0, 32.0, 31.0]);
    let error = error_of(|x, n| f(x, n, &counter), (2.0, 5));
    assert_eq!(error.message, "assertion failed: y grew");
}

#[test]
fn a_loop_in_segments_saves_its_state_once_for_each() {
    let shapes: [&[usize]; 2] = [&[], &[]];
    let plain = graph_of(|x, w| gradients(recurrence(x, w, scalar(64)).0, (x, w)), &shapes);
    let segments = graph_of(|x, w| gradients(in_growing_segments(x, w, scalar(64)).0, (x, w)), &shapes);
    // Outside the recomputed code: the loop variables and counters, in the loop over segments.
    let text = segments.to_string();
    let forward = text.split("recompute").next().unwrap();
    assert!(forward.matches(" push ").count() <= 4, "{text}");
    assert!(pushes(&plain) >= 1);
}

#[test]
fn a_list_that_changes_in_a_loop_in_segments() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> S {
        let (mut list, mut y, mut i) = (List::new(()), x, scalar(0));
        while i < n {
            checkpoint_loop_every(2);
            y = y * x;
            list.push(y);
            i += 1;
        }
        list.stack().sum()
    }
    check(f, (2.0, 3), &[28.0]);
    check(|x: S, n: Tensor<i32>| gradients(f(x, n), x), (2.0, 3), &[48.0]);
}

#[test]
fn a_list_of_unknown_extents_is_not_saved() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> S {
        let (mut list, mut y, mut i) = (List::new([Dim::Unknown]), x, scalar(0));
        while i < n {
            checkpoint_loop_every(2);
            list.push(y.reshape([1]).with_dynamic(0));
            y = y * list.read(i / 2).sum();
            i += 1;
        }
        y
    }
    check(f, (2.0, 3), &[32.0]);
    let error = error_of(|x: S, n: Tensor<i32>| gradients(f(x, n), x), (2.0, 3));
    assert!(error.message.contains("saves the elements of the list `list`, which is modified in a loop"), "{error}");
    assert!(error.to_string().contains("while i < n"), "{error}");
}

#[test]
fn checkpoints_of_no_loop_are_an_error() {
    let text = error_of(
        |x: S| {
            checkpoint_loop();
            x
        },
        1.0,
    )
    .to_string();
    assert!(text.contains("checkpoints of a loop are requested outside a loop"), "{text}");
    #[graph]
    fn f(mut x: S) -> S {
        while x < 10.0 {
            checkpoint_loop_every(0);
            x = x * 2.0;
        }
        x
    }
    let text = error_of(f, 1.0).to_string();
    assert!(text.contains("a loop cannot run in segments of 0 iterations"), "{text}");
}

// Descriptions of saved values.

/// Returns the last section of `explain`, with line numbers of this file relative to the first line
/// number in it.
fn saved_part(text: &str) -> String {
    let from = text.find("  saved for gradients").unwrap_or_else(|| panic!("{text}"));
    let file = "tests/recompute.rs:";
    let mut first = None;
    let line = |l: &str| {
        let mut parts = l.split(file);
        let mut out = parts.next().unwrap().to_owned();
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap();
            let line: usize = part[..end].parse().unwrap();
            let rest = part[end..].trim_start_matches(|c: char| c == ':' || c.is_ascii_digit());
            let offset = line - *first.get_or_insert(line);
            let colon = if part[end..].matches(':').count() > 1 { ":" } else { "" };
            out += &format!("{file}L{offset}{colon}{rest}");
        }
        out
    };
    let lines: Vec<String> = text[from..].lines().map(line).collect();
    format!("\n{}\n", lines.join("\n"))
}

#[test]
fn explain_says_what_a_loop_saves() {
    #[graph]
    fn f(x: S, w: S) -> S {
        let (mut y, mut i) = (x, scalar(0));
        while i < 10 {
            let u = y * w;
            if u.sum() > 0.0 {
                y = u.sin();
            } else {
                y = u * 2.0;
            }
            i += 1;
        }
        gradients(y.sum(), w)
    }
    let text = explained(f, &[&[5], &[5]]);
    // The predicate, u for its sine and y for the gradient of w, but not the loop-invariant w.
    let expected = "
  saved for gradients
    loop at tests/recompute.rs:L0: 81 bytes in each iteration
      1 byte: the result of gt, bool[], of tests/recompute.rs:L2
      40 bytes: the result of mul, f64[5], of tests/recompute.rs:L1
      40 bytes: `y`, f64[5], of tests/recompute.rs:L0
";
    assert_eq!(saved_part(&text), expected, "{text}");
}

#[test]
fn explain_says_what_segments_and_checkpoints_save() {
    let text = explained(|x, w| gradients(in_growing_segments(x, w, scalar(64)).0, (x, w)), &[&[], &[]]);
    let expected = "
  saved for gradients
    loop at tests/recompute.rs:L0: 17 bytes in each segment, whose iterations are rerun
      1 byte: a loop variable, bool[], of tests/recompute.rs:L0
      4 bytes: a loop variable, i32[], of tests/recompute.rs:L0
      8 bytes: `y`, f64[], of tests/recompute.rs:L0
      4 bytes: `i`, i32[], of tests/recompute.rs:L0
    loop at tests/recompute.rs:L0: 16 bytes in each iteration, while a checkpoint is recomputed
      8 bytes: the result of mul, f64[], of tests/recompute.rs:L2
      8 bytes: `y`, f64[], of tests/recompute.rs:L0
";
    assert_eq!(saved_part(&text), expected, "{text}");
    let text = explained(|x: S| gradients((x * x).sum(), x), &[&[5]]);
    assert!(text.ends_with("  no loop or branch saves anything for a gradient\n"), "{text}");
}

// Loop-invariant values.

#[test]
fn nothing_that_no_iteration_changes_is_saved() {
    #[graph]
    fn quotient(x: S, w: S) -> (S, S) {
        let (mut y, mut i) = (x, scalar(0));
        while i < 3 {
            y = y * (w / (w + 1.0)) % 7.0;
            i += 1;
        }
        gradients(y.sum(), (x, w))
    }
    // Only the left operand of the product. The quotient and its operands are recomputed.
    let graph = graph_of(quotient, &[&[2], &[2]]);
    assert!(pushes(&graph) <= 2, "{graph}");
    let q = |w: f64| (w / (w + 1.0)).powi(3);
    let dq = |w: f64| 3.0 * (w / (w + 1.0)).powi(2) / (w + 1.0).powi(2);
    check(quotient, ([1.0, 2.0], [3.0, 4.0]), &[q(3.0), q(4.0), dq(3.0), 2.0 * dq(4.0)]);

    // A matmul and a long chain, which are not recomputed but saved once, outside the loop.
    fn chain(w: S) -> S {
        (0..12).fold(w, |u, _| (u * 0.5).sin() + w).matmul(w)
    }
    #[graph]
    fn handed_out(x: S, w: S, n: Tensor<i32>) -> (S, S) {
        let (mut y, mut i) = (x, scalar(0));
        while i < n {
            let u = chain(w);
            y = y * u + u.sin();
            i += 1;
        }
        gradients(y.sum(), (x, w))
    }
    #[graph]
    fn outside(x: S, w: S, n: Tensor<i32>) -> (S, S) {
        let (mut y, mut i) = (x, scalar(0));
        let u = chain(w);
        while i < n {
            y = y * u + u.sin();
            i += 1;
        }
        gradients(y.sum(), (x, w))
    }
    let three = |f: fn(S, S, Tensor<i32>) -> (S, S)| move |x, w| f(x, w, scalar(3));
    let graph = graph_of(three(handed_out), &[&[2, 2], &[2, 2]]);
    assert_eq!(pushes(&graph), 1, "{graph}");
    let cases = [0, 1, 3].map(|n| {
        let args = || ([[0.1, 0.2], [0.3, 0.4]], [[0.5, -0.6], [0.7, 0.8]], n);
        let (dx, dw) = anabranch::eval_with(outside, args()).unwrap();
        let expected: Vec<f64> = dx.as_slice().iter().chain(dw.as_slice()).copied().collect();
        (args(), expected)
    });
    check_each(handed_out, cases);
}

#[test]
fn what_is_the_same_is_handed_out_of_branches_and_nests_and_differentiated_again() {
    fn chain(w: S) -> S {
        (0..12).fold(w, |u, _| (u * 0.5).sin() + w)
    }
    #[graph]
    fn f(x: S, w: S, inside: bool, up: bool) -> (S, S, S) {
        let before = chain(w);
        let (mut y, mut i) = (x, scalar(0));
        while i < 4 {
            let mut j = scalar(0);
            let n = if up { i } else { 2 - i };
            while j < n {
                if y > 0.5 {
                    let u = if inside { chain(w) } else { before };
                    y = (y * u).sin();
                } else {
                    y = y + 0.4;
                }
                j += 1;
            }
            i += 1;
        }
        let dw = gradients(y, w);
        (y, dw, gradients(dw, w))
    }
    // The inner trip count grows or shrinks between iterations, down to zero.
    for up in [true, false] {
        let cases = [0.1, 0.9].map(|x| {
            let (y, dw, ddw) = anabranch::eval_with(|x, w| f(x, w, false, up), (x, 0.7)).unwrap();
            ((x, 0.7), [y.item(), dw.item(), ddw.item()])
        });
        check_each(|x, w| f(x, w, false, up), cases);
        check_each(|x, w| f(x, w, true, up), cases);
    }
    // The predicate, y, the inner trip count, and the product, for which too much would have to be
    // recomputed. The chain is not saved.
    let saved = |inside| {
        let graph = graph_of(|x, w| f(x, w, inside, true).1, &[&[], &[]]);
        pushes(&graph)
    };
    assert_eq!((saved(true), saved(false)), (4, 3));
}

#[test]
fn in_a_nest_that_a_labeled_break_leaves_with_a_list_in_second_order() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, S) {
        let mut l = List::new(());
        let mut i = scalar(0);
        'outer: loop {
            let mut j = scalar(0);
            while j < i {
                let y = checkpoint(|| (x * j.cast::<f64>()).sin());
                l.push(y);
                j += 1;
                if l.len() >= n {
                    break 'outer;
                }
            }
            i += 1;
        }
        let s = l.stack().sum();
        let d = gradients(s, x);
        (d, gradients(d, x))
    }
    let x = 0.3f64;
    let mut js = vec![];
    'o: for i in 0.. {
        for j in 0..i {
            js.push(j as f64);
            if js.len() >= 7 {
                break 'o;
            }
        }
    }
    let d: f64 = js.iter().map(|j| j * (x * j).cos()).sum();
    let dd: f64 = js.iter().map(|j| -j * j * (x * j).sin()).sum();
    check(f, (x, 7), &[d, dd]);
}

#[test]
fn a_loop_in_segments_whose_condition_changes_a_variable() {
    #[graph]
    fn g(x: S, n: Tensor<i32>) -> (S, S) {
        let (mut y, mut i) = (x, scalar(0));
        while {
            i += 1;
            i < n
        } {
            checkpoint_loop();
            if y > 100.0 {
                break;
            }
            y *= x + y * 0.1;
        }
        let d = gradients(y, x);
        (d, gradients(d, x))
    }
    let h = |x: f64| {
        let mut y = x;
        let mut i = 0;
        while {
            i += 1;
            i < 5
        } {
            if y > 100.0 {
                break;
            }
            y *= x + y * 0.1;
        }
        y
    };
    let e = 1e-4;
    let d1 = |x: f64| (h(x + e) - h(x - e)) / (2.0 * e);
    let d2 = (h(1.1 + e) - 2.0 * h(1.1) + h(1.1 - e)) / (e * e);
    let got = eval_with(g, (1.1, 5)).unwrap();
    assert!((got.0.item() - d1(1.1)).abs() < 1e-5 && (got.1.item() - d2).abs() < 1e-4, "{got:?} {} {}", d1(1.1), d2);
}

// Lists that change in a loop in which a checkpoint starts from them.

#[graph]
fn list_in_segments(x: S, n: Tensor<i32>) -> (S, S) {
    let mut seen = List::new(());
    let (mut y, mut i) = (x, scalar(0));
    while i < n {
        checkpoint_loop_every(2);
        seen.push(y);
        y = (y * x).sin() + seen.read(i / 2);
        i += 1;
    }
    let sum = (seen.stack() * seen.stack()).sum() + y;
    let d = gradients(sum, x);
    (d, gradients(d, x))
}

#[graph]
fn list_in_a_loop(x: S, n: Tensor<i32>) -> (S, S) {
    let mut seen = List::new(());
    let (mut y, mut i) = (x, scalar(0));
    while i < n {
        seen.push(y);
        y = (y * x).sin() + seen.read(i / 2);
        i += 1;
    }
    let sum = (seen.stack() * seen.stack()).sum() + y;
    let d = gradients(sum, x);
    (d, gradients(d, x))
}

#[test]
fn a_list_that_is_read_in_segments() {
    let cases = [0, 1, 2, 5, 8].map(|n| {
        let plain = anabranch::eval_with(list_in_a_loop, (0.7, n)).unwrap();
        ((0.7, n), [plain.0.item(), plain.1.item()])
    });
    check_each(list_in_segments, cases);
}

/// A list whose elements are written and read in any order. Some remain unwritten.
#[graph]
fn written_in_checkpoints(x: S, n: Tensor<i32>) -> (S, S) {
    let mut list: List<f64> = List::with_len(8, ());
    let mut y = x;
    for i in range(n) {
        (list, y) = checkpoint(|| {
            let mut list = list;
            list.write((i * 3) % 8, y * x);
            let y = y.sin() + list.read((i * 5) % 8);
            (list, y)
        });
    }
    let sum = (list.stack() * list.stack()).sum() * y;
    let d = gradients(sum, x);
    (d, gradients(d, x))
}

#[test]
fn elements_not_written_are_not_written_in_a_checkpoint_either() {
    let h = |x: f64, n: usize| {
        let (mut list, mut y) = ([0.0; 8], x);
        for i in 0..n {
            list[(i * 3) % 8] = y * x;
            y = y.sin() + list[(i * 5) % 8];
        }
        list.iter().map(|e| e * e).sum::<f64>() * y
    };
    let e = 1e-4;
    for n in [0, 1, 4, 8] {
        let d = (h(0.6 + e, n) - h(0.6 - e, n)) / (2.0 * e);
        let dd = (h(0.6 + e, n) - 2.0 * h(0.6, n) + h(0.6 - e, n)) / (e * e);
        let got = anabranch::eval_with(written_in_checkpoints, (0.6, n as i32)).unwrap();
        assert!((got.0.item() - d).abs() < 1e-5 && (got.1.item() - dd).abs() < 1e-4, "{n}: {got:?}, {d} {dd}");
    }
}

/// If a checkpoint only adds elements to a list, it needs only the list's initial length.
#[test]
fn a_list_that_is_only_written_is_not_saved() {
    #[graph]
    fn pushed(x: S, n: Tensor<i32>) -> S {
        let mut list = List::new(());
        let (mut y, mut i) = (x, scalar(0));
        while i < n {
            checkpoint_loop_every(4);
            y = (y * x).sin();
            if y > 0.0 {
                list.push(y);
            }
            i += 1;
        }
        gradients(list.stack().sum(), x)
    }
    let types = [TensorType::new(DType::F64, ()), TensorType::new(DType::I32, ())];
    let text = trace_fn("pushed", &pushed, &types).unwrap().0.graph.to_string();
    assert!(text.contains("recompute") && !text.contains("list_restore"), "{text}");
    let mut y = 0.5f64;
    let (mut dy, mut sum) = (1.0, 0.0);
    for _ in 0..9 {
        (y, dy) = ((y * 0.5).sin(), (y * 0.5).cos() * (dy * 0.5 + y));
        if y > 0.0 {
            sum += dy;
        }
    }
    let got = anabranch::eval_with(pushed, (0.5, 9)).unwrap().item();
    assert!((got - sum).abs() < 1e-12, "{got} {sum}");
}
