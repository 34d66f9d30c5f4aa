//! Tensors of strings: how they are moved, stored and carried, on every engine. The operations
//! themselves have cases in `tests/ops/`.

#![allow(clippy::assign_op_pattern, reason = "both forms of assignment are staged")]

use crate::support::{check_tensors, error_of};
use anabranch::prelude::*;
use anabranch::{Bytes, DType, Graph, HostTensor, Queue, SimulatedDevice, TensorType};

type S = Tensor<Bytes>;

/// Returns a tensor of strings.
fn strings<const N: usize>(shape: impl Into<Vec<usize>>, elements: [&str; N]) -> HostTensor {
    HostTensor::new(shape, elements.map(Bytes::from).to_vec())
}

#[test]
fn constants_and_arguments_are_returned_as_they_are() {
    let f = |x: S, y: S| (x, y, tensor(["c", "\0é"]), scalar(Bytes::from(b"\xff")), x);
    let bytes = HostTensor::scalar(Bytes::from(b"\xff"));
    let [a, b] = [strings([2], ["a", ""]), strings([], ["b"])];
    check_tensors(f, (["a", ""], "b"), &[a.clone(), b, strings([2], ["c", "\0é"]), bytes, a]);
}

#[test]
fn elements_are_moved_like_those_of_any_type() {
    let f = |x: S, i: Tensor<i32>| {
        let parts = (x.reshape([3, 2]), x.transpose(0, 1), x.slice(1, 1, 3), x.row(1), x.index(i, 1), x.flip(0));
        let more = (x.take(tensor([1, 1]), 0), concat(&[x, x.slice(0, 0, 1)], 0), stack(&[x.row(0), x.row(1)], 1));
        let wider = (x.row(0).broadcast_to([2, 3]), x.pad(1, 1, 0, "-"), full([2], Bytes::from("z")));
        (parts, (more, wider))
    };
    check_tensors(
        f,
        ([["a", "b", "c"], ["d", "e", "f"]], 2),
        &[
            strings([3, 2], ["a", "b", "c", "d", "e", "f"]),
            strings([3, 2], ["a", "d", "b", "e", "c", "f"]),
            strings([2, 2], ["b", "c", "e", "f"]),
            strings([3], ["d", "e", "f"]),
            strings([2], ["c", "f"]),
            strings([2, 3], ["d", "e", "f", "a", "b", "c"]),
            strings([2, 3], ["d", "e", "f", "d", "e", "f"]),
            strings([3, 3], ["a", "b", "c", "d", "e", "f", "a", "b", "c"]),
            strings([3, 2], ["a", "d", "b", "e", "c", "f"]),
            strings([2, 3], ["a", "b", "c", "a", "b", "c"]),
            strings([2, 4], ["-", "a", "b", "c", "-", "d", "e", "f"]),
            strings([2], ["z", "z"]),
        ],
    );
}

#[test]
fn comparisons_take_text_and_decide_branches() {
    #[graph]
    fn f(x: S, y: S) -> (S, Tensor<bool>, S) {
        let word = if x == "stop" {
            y.upper()
        } else if "m" <= x {
            y.join(x, "+")
        } else {
            x
        };
        let marks = y.not_equal(x);
        (word, marks, marks.select("other", y))
    }
    let marks = HostTensor::new([], vec![true]);
    let none = HostTensor::new([], vec![false]);
    check_tensors(f, ("stop", "a"), &[strings([], ["A"]), marks.clone(), strings([], ["other"])]);
    check_tensors(f, ("z", "a"), &[strings([], ["a+z"]), marks, strings([], ["other"])]);
    check_tensors(f, ("a", "a"), &[strings([], ["a"]), none, strings([], ["a"])]);
}

#[test]
fn loops_carry_strings_and_go_over_them() {
    #[graph]
    fn f(lines: S, n: Tensor<i32>) -> (S, S, Tensor<i32>, S) {
        let mut all = scalar(Bytes::default());
        let mut longest = scalar(Bytes::default());
        let mut total = scalar(0);
        for line in lines {
            if line.byte_len() > longest.byte_len() {
                longest = line;
            }
            if line == "skip" {
                continue;
            }
            all = all.join(line, ".");
            total += line.byte_len();
        }
        let mut i = scalar(0);
        let mut pair = (scalar(Bytes::from("left")), scalar(Bytes::from("right")));
        while i < n {
            pair = (pair.1, pair.0);
            i += 1;
        }
        (all, longest, total, pair.0)
    }
    let total = HostTensor::scalar(6);
    let (all, longest) = (strings([], [".one.two"]), strings([], ["skip"]));
    let args = |n| (["one", "skip", "two"], n);
    check_tensors(f, args(3), &[all.clone(), longest.clone(), total.clone(), strings([], ["right"])]);
    check_tensors(f, args(0), &[all, longest, total, strings([], ["left"])]);
}

#[test]
fn a_loop_over_a_table_of_strings_maps_its_rows() {
    let f = |x: S| {
        let joined = map(x, |row: S| row.reduce_join(0, "/"));
        (joined, scan(scalar(Bytes::from(">")), x.index(0, 1), |all: S, x: S| (all.join(x, ""), all)).1)
    };
    let expected = [strings([2], ["a/b", "c/d"]), strings([2], [">", ">a"])];
    check_tensors(f, [["a", "b"], ["c", "d"]], &expected);
}

#[test]
fn lists_hold_strings_of_known_and_of_unknown_shapes() {
    #[graph]
    fn f(line: S, n: Tensor<i32>) -> (S, S, Tensor<i32>, S, S) {
        let mut words = List::new(());
        let mut kept = List::<Bytes>::with_len(3, ());
        for word in line.split(" ") {
            if word.byte_len() > n {
                words.push(word.upper());
            }
        }
        kept.write(1, words.read(0));
        let last = words.pop();
        let mut lines = List::new(anabranch::Shape::from([anabranch::Dim::Unknown]));
        lines.push(line.split(" "));
        lines.push(line.split("o"));
        (words.stack(), last, words.len(), kept.stack(), lines.read(1))
    }
    check_tensors(
        f,
        ("pigs on the wing", 2),
        &[
            strings([2], ["PIGS", "THE"]),
            strings([], ["WING"]),
            HostTensor::scalar(2),
            strings([3], ["", "PIGS", ""]),
            strings([2], ["pigs ", "n the wing"]),
        ],
    );
}

#[test]
fn parts_of_unknown_number_go_on_as_tensors() {
    let f = |line: S| {
        let numbers = line.split(",").parse::<f32>();
        (numbers.sum(), numbers.format().reduce_join(0, ";"), line.split(",").substr(-1, 1))
    };
    let expected = [HostTensor::scalar(6.5f32), strings([], ["1;2.5;3"]), strings([3], ["1", "5", "3"])];
    check_tensors(f, "1,2.5,3", &expected);
}

#[test]
fn strings_beside_gradients_are_kept_for_them() {
    #[graph]
    fn f(x: Tensor, names: S) -> (Tensor, S) {
        let mut y = x;
        let mut seen = scalar(Bytes::default());
        for name in names {
            if name == "square" {
                y = y * y;
            } else {
                y = y * name.parse::<f32>();
            }
            seen = seen.join(name, " ");
        }
        (gradients(y, x), seen)
    }
    // y = (3 x)^2 * 2, and its derivative is 36 x.
    let expected = [HostTensor::scalar(18.0f32), strings([], [" 3 square 2"])];
    check_tensors(f, (0.5f32, ["3", "square", "2"]), &expected);
}

#[test]
fn errors_say_which_element_they_are_about() {
    let error = error_of(|x: S| x.substr(2, 1), ["abc", "a"]);
    assert_eq!(error.message, "substr: position 2 is out of bounds for b\"a\" at [1]");
    assert_eq!(error.help.as_deref(), Some("its positions are from -1 to 1"));
    assert_eq!(error.loc().expect("a location").file, file!());
    let error = error_of(|x: S| x.split_into(",", 2), ["1,2", "3"]);
    assert_eq!(error.message, "split_into: b\"3\" at [1] has 1 parts, not 2");
    let error = error_of(|x: S, y: Tensor<i32>| x.substr(y, 1), (["a", "b", "c"], [1, 2]));
    assert_eq!(error.message, "substr: shapes [3] and [2] cannot be broadcast together");
}

#[test]
fn variables_hold_strings_and_change_together() {
    let session = Session::new().expect("a session on the CPU");
    let last = Var::<Bytes>::new("last", "none");
    let seen = Var::<Bytes>::new("seen", ["", ""]);
    let step = {
        let (last, seen) = (last.clone(), seen.clone());
        session.function(move |line: S| {
            let before = last.get();
            last.set(line.upper());
            seen.set(stack(&[seen.get().row(1), line], 0));
            before
        })
    };
    let step = step.expect("the function is right");
    assert_eq!(step.call("a").expect("a step").item(), "none");
    assert_eq!(step.call("b").expect("a step").item(), "A");
    assert_eq!(session.get(&last).expect("a value").item(), "B");
    assert_eq!(session.get(&seen).expect("a value").as_slice(), ["a", "b"]);
    session.set(&last, "set").expect("a value");
    assert_eq!(step.call("c").expect("a step").item(), "set");
    let mut snapshot = session.snapshot([seen.any()]).expect("a snapshot");
    step.call("d").expect("a step");
    assert_eq!(snapshot.take(0).expect("a value"), strings([2], ["b", "c"]));
}

#[test]
fn the_text_of_a_graph_has_strings_in_quotes() {
    let f = |x: S| x.join(tensor(["a\"\n", "\\"]), scalar(Bytes::from(b"\xff'")));
    let graph = anabranch::dsl::function::trace_fn("f", &f, anabranch::dsl::function::Arguments::of("x").signature());
    let graph = graph.expect("the function is right").0.graph;
    let text = graph.to_string();
    assert!(text.contains(r#"constant [b"a\"\n", b"\\"] : bytes[2]"#), "{text}");
    assert!(text.contains(r#"constant b"\xff'" : bytes[]"#), "{text}");
    let again = Graph::parse(&text, "f.ir").expect("its own text");
    assert!(again.same_structure(&graph));
    for (wrong, message) in [
        (r#"b"\q""#, r#"`b"\q"` is not an element of type bytes"#),
        ("abc", "`abc` is not an element of type bytes"),
        ("b\"a", "unterminated string"),
    ] {
        let text = format!("graph @f() -> bytes[] {{ %x = constant {wrong} : bytes[]\n return %x }}");
        let errors = Graph::parse(&text, "f.ir").unwrap_err();
        assert!(errors.iter().any(|e| e.message == message), "{errors:?}");
    }
}

#[test]
fn prints_show_text_and_quoted_text() {
    let session = Session::builder().print_to(|_, text| assert_eq!(text, "é [b\"\\xc3\\xa9\"] \\xff\n")).build();
    let session = session.expect("a session on the CPU");
    #[graph]
    fn f(x: S) -> Tensor<i32> {
        println!("{} {:?} {}", x.row(0), x, Bytes::from(b"\xff"));
        x.byte_len().sum()
    }
    let n = session.function(f).expect("the function is right").call(["é"]).expect("a call");
    assert_eq!(n, 2);
}

#[test]
fn dynamic_types_know_strings() {
    assert_eq!(DType::from_name("bytes"), Some(DType::Bytes));
    assert!(!DType::Bytes.is_plain() && !DType::Bytes.is_numeric() && !DType::Bytes.is_float());
    assert_eq!(HostTensor::zeros(DType::Bytes, [2]), strings([2], ["", ""]));
    assert_eq!(HostTensor::scalar(Bytes::from("1")).to_f64(), None);
}

/// A session with a CPU and a GPU that would run anything else.
#[test]
fn no_gpu_has_strings_and_the_plan_says_so() {
    let device = |name: &str, rate| SimulatedDevice::new(name).flops(rate).bandwidth(rate);
    let session = Session::builder().simulated([device("/gpu:0", 1e12), device("/cpu:0", 1e6)]).build();
    let session = session.expect("two devices");
    let line = Var::<Bytes>::new("line", "1,2");
    let f = session.function(move |x: Tensor| {
        let scale = line.get().split(",").parse::<f32>().sum();
        line.set(line.get().join("3", ","));
        x.matmul(x) * scale
    });
    let f = f.expect("the function is right");
    let x = || anabranch::Array::new([64, 64], vec![0.125f32; 64 * 64]);
    assert_eq!(f.call(x()).expect("a call").as_slice()[0], 3.0);
    assert_eq!(f.call(x()).expect("a call").as_slice()[0], 6.0);
    let plan = f.explain(&[TensorType::new(DType::F32, [64, 64])]).expect("a plan");
    for operation in ["read @line", "split", "parse", "join", "assign @line"] {
        let row = plan.lines().find(|line| line.trim_start().starts_with(operation)).expect("a row of the plan");
        assert!(row.contains("/cpu:0") && row.ends_with("/gpu:0 has no bytes"), "{plan}");
    }

    // A wish does not change that.
    let upper = session.function(|x: S| on("/gpu:0", || x.upper())).expect("the function is right");
    assert_eq!(upper.call(["a"]).expect("a call").as_slice(), ["A"]);
    let plan = upper.explain(&[TensorType::new(DType::Bytes, [1])]).expect("a plan");
    assert!(plan.contains("/gpu:0 has no bytes"), "{plan}");
}

#[test]
fn queues_hold_strings_and_batches_of_them() {
    for builder in [Session::builder().interpreted(true), Session::builder(), Session::builder().cpus(2)] {
        let session = builder.build().expect("a session on CPUs");
        let element = [TensorType::new(DType::Bytes, []), TensorType::new(DType::I64, [])];
        let lines = Queue::<(S, Tensor<i64>)>::fifo("lines", 10, &element).expect("a queue");
        let add = session.function(|line: S, n: Tensor<i64>| lines.enqueue((line, n))).expect("a function");
        let add_all = session.function(|x: S, n: Tensor<i64>| lines.enqueue_many((x, n))).expect("a function");
        let take = session.function(|| lines.dequeue_many(3)).expect("a function");
        add.call(("a", 1)).expect("room");
        add_all.call((["", "longer"], [2, 3])).expect("room");
        let (taken, numbers) = take.call(()).expect("three elements");
        assert_eq!((taken.as_slice(), numbers.to_vec()), (&["a", "", "longer"].map(Bytes::from)[..], vec![1, 2, 3]));
    }
}

/// A constant that doubles with each operation.
#[test]
fn long_constant_strings_are_not_computed_when_a_function_is_compiled() {
    let session = Session::new().expect("a session on the CPU");
    let f = session.function(|| {
        let mut s = scalar(Bytes::from("ab"));
        for _ in 0..20 {
            s = s.join(s, "");
        }
        s.byte_len()
    });
    let f = f.unwrap_or_else(|e| panic!("{e}"));
    let graph = f.graph(&[]).unwrap_or_else(|e| panic!("{e}"));
    let text = graph.to_string();
    assert!(text.contains("join") && text.len() < 1 << 20, "{} bytes", text.len());
    assert_eq!(f.call(()).unwrap_or_else(|e| panic!("{e}")), 2 << 20);
}

#[test]
fn a_rewrite_that_needs_more_memory_than_there_is_is_an_error() {
    let f = |x: S, rewrite: S| x.regex_replace("a+", rewrite);
    for interpreted in [true, false] {
        let session = Session::builder().interpreted(interpreted).build().expect("a session on CPUs");
        let f = session.function(f).expect("the function is right");
        // 2^48 bytes, more than there are addresses.
        let error = f.call(("a".repeat(1 << 26), r"\0".repeat(1 << 22))).unwrap_err();
        assert!(error.message.contains("the strings of the result need 281474976710656 bytes"), "{error}");
        assert_eq!(error.kind, anabranch::ErrorKind::ResourceExhausted);
        // The same rewrite of a short string is short.
        assert_eq!(f.call(("a", r"\0".repeat(5))).expect("a call").as_slice(), ["aaaaa"]);
    }
}

#[test]
fn the_length_of_a_string_of_2_gib_is_an_error() {
    for interpreted in [true, false] {
        let session = Session::builder().interpreted(interpreted).build().expect("a session on CPUs");
        let f = session.function(|x: S| x.byte_len()).expect("the function is right");
        // The system provides no memory for zeros that nobody reads.
        let strings = anabranch::Array::new([2], vec![Bytes::from("a"), Bytes::from(vec![0; 1 << 31])]);
        let error = f.call(strings).unwrap_err();
        let message = "the length of a string of 2147483648 bytes at [1] is no i32";
        assert!(error.message.ends_with(message), "{error}");
    }
}

/// Returns whether a string keeps only its own bytes in memory.
fn is_compact(string: &Bytes) -> bool {
    string.compact().as_ptr() == string.as_ptr()
}

#[test]
fn what_is_stored_keeps_no_large_block_for_a_short_string() {
    let text = || format!("first,{},last", "x".repeat(10_000));
    let element = [TensorType::new(DType::Bytes, [])];
    for builder in [Session::builder().interpreted(true), Session::builder(), Session::builder().cpus(2)] {
        let session = builder.build().expect("a session on CPUs");
        let fields = |x: S| (x.split(",").index(0, 0), x.split(",").index(2, 0));
        let passed = session.function(fields).expect("the function is right").call(text()).expect("a call");
        assert!(!is_compact(&passed.0.as_slice()[0]), "a part shares the memory of the whole");

        let var = Var::<Bytes>::new("field", "");
        let set = session.function(|x: S| var.set(fields(x).1)).expect("the function is right");
        set.call(text()).expect("a call");
        let state = session.state(&var).expect("the variable can be read");
        assert!(is_compact(&state[0].1.as_slice::<Bytes>().expect("strings")[0]));
        session.load_state(&var, &[(String::new(), passed.0.clone().into_host())]).expect("it fits");
        let state = session.state(&var).expect("the variable can be read");
        assert!(is_compact(&state[0].1.as_slice::<Bytes>().expect("strings")[0]));

        let queue = Queue::<S>::fifo("fields", 10, &element).expect("a queue");
        let host = session.queue(&queue).expect("a queue of the session");
        host.push(passed.0.clone()).expect("room");
        session.function(|x: S| queue.enqueue(fields(x).1)).expect("a function").call(text()).expect("a call");
        for _ in 0..2 {
            let field = host.pop().expect("an element").expect("the queue is open");
            assert!(is_compact(&field.as_slice()[0]), "{field:?}");
        }
    }
}

#[test]
fn numbers_of_buckets_are_positive_and_fit() {
    for (n, expected) in [(0, "there are 0 buckets"), (usize::MAX, "would not fit in `i64`")] {
        let error = eval(|| tensor(["a", "b"]).hash_bucket(n)).unwrap_err();
        assert!(error.message.contains(expected), "{error}");
    }
    let bucket = eval(|| tensor(["a"]).hash_bucket((1 << 62) + 1)).unwrap();
    assert!(bucket.as_slice()[0] >= 0);
}
