//! Effects of a graph: prints, in program order, each time that their part of the program runs.
//!
//! Every program runs on the interpreter and on a plan, and both must print the same.
#![deny(warnings)]

use anabranch::dsl::format::Stream;
use anabranch::dsl::function::{CallArgs, GraphFn};
use anabranch::prelude::*;
use anabranch::{Carry, Diagnostic, gradients};
use std::sync::{Arc, Mutex};

/// Returns the output of `f` in order, after comparing the engines.
#[track_caller]
fn printed<Args, F: GraphFn<Args> + Copy, A: CallArgs<Args> + Clone>(f: F, args: A) -> Vec<(Stream, String)> {
    let run = |interpreted: bool| {
        let log = Arc::new(Mutex::new(Vec::new()));
        let to = log.clone();
        let print_to = move |stream, text: &str| to.lock().unwrap().push((stream, text.to_owned()));
        let session = Session::builder().interpreted(interpreted).print_to(print_to).build()?;
        let f = session.function(f)?;
        f.call(args.clone())?;
        let first = std::mem::take(&mut *log.lock().unwrap());
        // Every call prints, not only the call that traces.
        f.call(args.clone())?;
        assert_eq!(*log.lock().unwrap(), first, "the second call prints the same");
        Ok::<_, Diagnostic>(first)
    };
    let [interpreter, plan] = [true, false].map(|engine| run(engine).unwrap_or_else(|e| panic!("{e}")));
    assert_eq!(interpreter, plan, "interpreter and plan");
    plan
}

/// Returns the text on the standard output.
#[track_caller]
fn text<Args, F: GraphFn<Args> + Copy, A: CallArgs<Args> + Clone>(f: F, args: A) -> String {
    let all = printed(f, args);
    assert!(all.iter().all(|(stream, _)| *stream == Stream::Stdout), "{all:?}");
    all.into_iter().map(|(_, text)| text).collect()
}

#[test]
fn placeholders_of_every_form_show_values() {
    #[graph]
    fn f(x: Tensor, n: Tensor<i32>) {
        let (host, width) = ("host", 7);
        println!("{} {host} {x:.2} {1:>5}|{0:?} {n:>width$} {:+} {{}} {name}", x, n, name = x * 2.0);
        print!("{n}");
        print!(" {:e}\n", x);
        println!("{x:8.3}|{x:<8}|{x:^+9.1}|{x:08.2}|{n:*^5}");
    }
    let expected = "[1.5, -2] host [1.50, -2.00]     3|[1.5, -2.0]       3 +3 {} [3, -4]\n";
    assert_eq!(text(f, ([1.5, -2.0], 3)).lines().next(), Some(expected.trim_end()));
    let expected = format!("1.5 host 1.50     3|1.5       3 +3 {{}} 3\n3 {:e}\n", 1.5f32)
        + &format!("{0:8.3}|{0:<8}|{0:^+9.1}|{0:08.2}|{1:*^5}\n", 1.5f32, 3);
    assert_eq!(text(f, (1.5, 3)), expected);
}

#[test]
fn every_element_type_and_rank_is_shown() {
    #[graph]
    fn f(a: Tensor<bool>, b: Tensor<i64>, c: Tensor<f64>, d: Tensor<u32>) {
        println!("{a} {b} {c} {d} {}", a.cast::<u8>());
    }
    let args = (true, [[1i64, 2], [3, 4]], [[[0.5f64], [1.0]]], [[7u32; 0]; 1]);
    assert_eq!(text(f, args), "true [[1, 2],\n [3, 4]] [[[0.5],\n  [1]]] [[]] 1\n");
}

#[test]
fn prints_in_branches_and_loops_happen_once_for_each_taken_trip() {
    #[graph]
    fn f(n: Tensor<i32>) {
        let mut i = scalar(0);
        println!("start {n}");
        while {
            println!("test {i}");
            i < n
        } {
            if i % 2 == 0 {
                println!("even {i}");
            } else if i == 3 {
                println!("three");
            }
            let mut j = scalar(0);
            while j < i {
                print!("{j} ");
                j += 1;
            }
            i += 1;
        }
        println!("end");
    }
    let expected = "start 4\ntest 0\neven 0\ntest 1\n0 test 2\neven 2\n0 1 test 3\nthree\n0 1 2 test 4\nend\n";
    // The last line has no tensor and is outside constructs: it is printed while tracing.
    assert_eq!(text(f, 4), expected.strip_suffix("end\n").unwrap());
    assert_eq!(text(f, 0), "start 0\ntest 0\n");
}

#[test]
fn the_right_side_of_a_lazy_operator_prints_only_if_it_is_evaluated() {
    #[graph]
    fn f(x: Tensor<i32>) -> Tensor<bool> {
        x > 0 && {
            println!("right of {x}");
            x < 10
        }
    }
    assert_eq!(text(f, 5), "right of 5\n");
    assert_eq!(text(f, -5), "");
}

#[test]
fn what_only_prints_is_kept_when_no_output_is_fetched() {
    #[graph]
    fn f(x: Tensor) -> Tensor {
        let mut sum = x;
        let mut i = scalar(0);
        while i < 3 {
            sum *= 2.0;
            println!("{sum}");
            i += 1;
        }
        x
    }
    assert_eq!(text(f, 1.0), "2\n4\n8\n");
}

#[test]
fn a_condition_that_changes_a_variable_prints_once_for_each_evaluation() {
    #[graph]
    fn f(x: Tensor<f64>) -> (Tensor<f64>, Tensor<f64>) {
        let mut y = x;
        while {
            y *= x;
            println!("{y}");
            y < 10.0
        } {
            y += x;
        }
        (y, gradients(y, x))
    }
    assert_eq!(text(f, 2.0), "4\n12\n");
    // ((x^2) + x) x = x^3 + x^2
    let session = Session::new().unwrap();
    let (y, dy) = session.function(f).unwrap().call(2.0).unwrap();
    assert_eq!((y.item(), dy.item()), (12.0, 16.0));
}

#[test]
fn equal_prints_are_not_merged() {
    #[graph]
    fn f(x: Tensor) {
        println!("{x}");
        println!("{x}");
    }
    assert_eq!(text(f, 1.0), "1\n1\n");
}

#[test]
fn prints_see_the_values_at_their_place() {
    #[graph]
    fn f(x: Tensor) -> Tensor {
        let mut a = x;
        let mut b = x + 1.0;
        let mut i = scalar(0);
        while i < 2 {
            println!("{a} {b}");
            (a, b) = (b * 2.0, a);
            println!("{a} {b}");
            i += 1;
        }
        a + b
    }
    assert_eq!(text(f, [1.0, 2.0]), "[1, 2] [2, 3]\n[4, 6] [1, 2]\n[4, 6] [1, 2]\n[2, 4] [4, 6]\n");
    assert_eq!(text(f, 1.0), "1 2\n4 1\n4 1\n2 4\n");
}

#[test]
fn the_gradient_of_a_loop_prints_no_more_than_the_loop() {
    #[graph]
    fn f(x: Tensor) -> Tensor {
        let mut y = x;
        let mut i = scalar(0);
        while i < 3 {
            y = y * y;
            if y > 10.0 {
                println!("{i}: {y}");
            }
            i += 1;
        }
        let [dx] = gradients(y, [x]);
        println!("gradient {dx}");
        dx
    }
    assert_eq!(text(f, 2.0), "1: 16\n2: 256\ngradient 1024\n");
}

#[test]
fn print_and_assertion_stay_in_order() {
    #[graph]
    fn f(x: Tensor) {
        println!("before");
        if x > 0.0 {
            println!("in");
            assert!(x < 10.0, "too large");
            println!("after");
        }
    }
    for interpreted in [true, false] {
        let log = Arc::new(Mutex::new(String::new()));
        let to = log.clone();
        let session = Session::builder().interpreted(interpreted).print_to(move |_, t| to.lock().unwrap().push_str(t));
        let f = session.build().and_then(|s| s.function(f)).unwrap();
        assert!(f.call(11.0).unwrap_err().message.contains("too large"));
        assert_eq!(*log.lock().unwrap(), "in\n");
        f.call(1.0).unwrap();
        assert_eq!(*log.lock().unwrap(), "in\nin\nafter\n");
    }
}

#[test]
fn dbg_gives_the_value_back_and_shows_its_place() {
    #[graph]
    fn f(x: Tensor) -> Tensor {
        let mut y = x;
        if x > 0.0 {
            y = dbg!(x * 2.0) + dbg!(1.0f32);
            let (a, b) = dbg!(y, 7);
            y = a + b as f32;
            dbg!();
        }
        y
    }
    let line = line!() - 7;
    let all = printed(f, 2.0);
    assert!(all.iter().all(|(stream, _)| *stream == Stream::Stderr));
    let lines: Vec<String> = all.iter().map(|(_, text)| text.clone()).collect();
    let place = |more: u32, column: u32| format!("[tests/effects.rs:{}:{column}]", line + more);
    let expected = [
        format!("{} x * 2.0 = 4.0\n", place(0, 17)),
        format!("{} 1.0f32 = 1.0\n", place(0, 33)),
        format!("{} y = 5.0\n", place(1, 26)),
        format!("{} 7 = 7\n", place(1, 26)),
        format!("{}\n", place(3, 13)),
    ];
    assert_eq!(lines, expected);
    assert_eq!(eval_with(|x: Tensor| f(x), -1.0).unwrap(), -1.0);
}

#[test]
fn tensors_inside_of_host_values_are_shown() {
    #[derive(Clone, Copy, Debug, Carry)]
    struct Pair {
        left: Tensor<i32>,
        right: Option<Tensor<i32>>,
    }
    #[graph]
    fn f(x: Tensor<i32>) {
        let list = vec![x, x + 1];
        println!("{list:?} {:?} {:?}", Pair { left: x, right: Some(x * 2) }, (x, "x"));
        println!("{:#?}", Some(x));
    }
    assert_eq!(text(f, 3), "[3, 4] Pair { left: 3, right: Some(6) } (3, \"x\")\nSome(\n    3,\n)\n");
}

#[test]
fn control_flow_in_arguments_is_staged() {
    #[graph]
    fn f(x: Tensor<i32>) {
        println!("{} {}", if x > 2 { x } else { -x }, x > 2);
    }
    assert_eq!(text(f, 3), "3 true\n");
    assert_eq!(text(f, 1), "-1 false\n");
}

#[test]
fn host_values_are_printed_in_the_trip_that_is_taken() {
    #[graph]
    fn f(x: Tensor<i32>, host: bool) {
        for name in ["a", "b"] {
            if x > 0 {
                println!("{name}");
            }
            if host && x > 1 {
                let text = format!("{name}!");
                println!("{text}");
            }
        }
    }
    assert_eq!(text(|x| f(x, true), 2), "a\na!\nb\nb!\n");
    assert_eq!(text(|x| f(x, true), 1), "a\nb\n");
    assert_eq!(text(|x| f(x, false), 2), "a\nb\n");
}

#[test]
fn a_tensor_in_a_host_text_is_an_error() {
    let error = eval_with(|x: Tensor| x.named(format!("{x}").leak()), 1.0).unwrap_err();
    assert!(error.message.contains("no value"), "{error}");
    assert!(error.help.unwrap().contains("println!"));
}

#[test]
fn prints_are_part_of_the_text_of_a_graph() {
    #[graph]
    fn f(x: Tensor) {
        println!("x = {x:.1}, {{\"{}\"}}", x + 1.0);
        eprint!("{}", x);
    }
    let session = Session::new().unwrap();
    let f = session.function(f).unwrap();
    let graph = f.trace_for(&[anabranch::TensorType::new(anabranch::DType::F32, ())]).unwrap().graph;
    let text = graph.to_string();
    assert!(text.contains(r#"print stdout "x = {:.1}, {{\"{}\"}}\n", %x, %"#), "{text}");
    assert!(text.contains(r#"print stderr "{}", %x"#), "{text}");
    let parsed = anabranch::Graph::parse(&text, "f.ir").unwrap_or_else(|e| panic!("{e:?}"));
    assert!(parsed.same_structure(&graph));
}
