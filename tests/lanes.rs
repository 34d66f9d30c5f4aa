//! Loops in lanes: iterations of a parallel loop side by side. All results are bitwise identical to
//! those of the iterations one after the other.

use crate::support::error_of;
use anabranch::dsl::equality::one_nan_each;
use anabranch::dsl::function::{Arguments, CallArgs, GraphFn, trace_fn};
use anabranch::dsl::memory::{self, ByteGauge};
use anabranch::dsl::passes::Pipeline;
use anabranch::prelude::*;
use anabranch::{Array, Diagnostic, Float, Graph, HostTensor};
use anabranch_benches::examples::forward_algorithm;
use anabranch_programs::plans::optimize;
use anabranch_runtime::Program;

/// Returns the graph of a function after all passes.
#[track_caller]
fn graph_of<Args, F: GraphFn<Args>>(f: F, args: &Arguments) -> Graph {
    let types: Vec<_> = args.tensors().iter().map(HostTensor::ty).collect();
    let (traced, _) = trace_fn("function", &f, args.signature()).unwrap_or_else(|e| panic!("{e}"));
    optimize(&traced.graph, &types, Pipeline::standard()).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs a function one iteration after the other, and in blocks of several sizes. All results and
/// errors must be the same. Returns the result, and how many loops run in lanes.
#[track_caller]
fn in_lanes<Args, F: GraphFn<Args>>(f: F, args: impl CallArgs<Args>) -> (Result<Vec<HostTensor>, Diagnostic>, usize) {
    let args = Arguments::of(args);
    let graph = graph_of(f, &args);
    let run = |program: &Program| program.run(args.tensors(), &mut vec![]);
    let one_by_one = Program::with_lanes(graph.clone(), 0).unwrap_or_else(|e| panic!("{e}"));
    assert!(!one_by_one.explain().contains("in lanes"), "{}", one_by_one.explain());
    let expected = run(&one_by_one);
    let mut n = 0;
    for compile in [Program::with_lanes, Program::with_lane_code, Program::with_lane_code_up_to_256_bits] {
        for lanes in [1, 3, 16, 40, 256] {
            let program = compile(graph.clone(), lanes).unwrap_or_else(|e| panic!("{e}"));
            n = program.explain().matches("in lanes").count();
            for _ in 0..2 {
                match (run(&program), &expected) {
                    (Ok(given), Ok(expected)) => {
                        assert_eq!(one_nan_each(&given), one_nan_each(expected), "{lanes}\n{}", program.explain());
                    }
                    (given, expected) => {
                        let text =
                            |e: &Result<Vec<HostTensor>, Diagnostic>| e.as_ref().map_err(ToString::to_string).cloned();
                        assert_eq!(text(&given), text(expected), "{lanes}");
                    }
                }
            }
        }
    }
    (expected, n)
}

/// Checks a function like [`in_lanes`], of which so many loops run in lanes.
#[track_caller]
fn agree<Args, F: GraphFn<Args>>(f: F, args: impl CallArgs<Args>, n_loops: usize) -> Vec<HostTensor> {
    let (result, n) = in_lanes(f, args);
    assert_eq!(n, n_loops, "loops in lanes");
    result.unwrap_or_else(|e| panic!("{e}"))
}

/// Returns the native code that `explain` finds in the loops in lanes of a function.
#[cfg(target_arch = "x86_64")]
#[track_caller]
fn native_code_of<Args, F: GraphFn<Args>>(f: F, args: impl CallArgs<Args>) -> Vec<String> {
    let graph = graph_of(f, &Arguments::of(args));
    let text = Program::new(graph).unwrap_or_else(|e| panic!("{e}")).explain();
    text.lines().filter_map(|line| Some(line.split_once("; native code of ")?.1.to_owned())).collect()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn loops_in_lanes_are_native_code_with_the_widest_vectors() {
    let has_avx512 = std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512vl");
    let has_avx2 = std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
    let code = native_code_of(|xs: Tensor| map(xs, newton), numbers(300));
    let expected = match (has_avx512, has_avx2) {
        (true, _) => vec!["1 loop and 2 runs of operations, AVX-512"],
        (false, true) => vec!["1 loop and 2 runs of operations, AVX2"],
        (false, false) => vec![],
    };
    assert_eq!(code, expected);
}

/// Returns numbers between 0.3 and 60 in no order.
fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + 11) % 199) as f32 * 0.3 + 0.3).collect()
}

#[graph]
fn newton(a: Tensor) -> (Tensor, Tensor<i32>) {
    let mut x = a;
    let mut n = scalar(0);
    while (x * x - a).abs() > 1e-6 * a && n < 50 {
        x = (x + a / x) * 0.5;
        n += 1;
    }
    (if x > 3.0 { x * 2.0 } else { x }, n)
}

#[test]
fn a_map_over_a_while_has_the_bits_of_plain_rust() {
    let root = |a: f32| {
        let (mut x, mut n) = (a, 0);
        while (x * x - a).abs() > 1e-6 * a && n < 50 {
            x = (x + a / x) * 0.5;
            n += 1;
        }
        (if x > 3.0 { x * 2.0 } else { x }, n)
    };
    for n in [0, 1, 2, 15, 16, 17, 255, 256, 257, 700] {
        let xs = numbers(n);
        let outputs = agree(|xs: Tensor| map(xs, newton), &xs, 1);
        let (roots, trips): (Vec<f32>, Vec<i32>) = xs.iter().map(|&a| root(a)).unzip();
        assert_eq!((outputs[0].data::<f32>(), outputs[1].data::<i32>()), (&roots[..], &trips[..]), "{n}");
    }
}

#[test]
fn gradients_pop_what_the_lanes_pushed() {
    let f = |xs: Tensor| {
        let y = map(xs, |x| newton(x).0);
        (gradients(y.square().sum(), xs), y)
    };
    for n in [1, 16, 33, 300] {
        agree(f, numbers(n), 2);
    }
    #[graph]
    fn decays(w: Tensor, x: Tensor) -> Tensor {
        let mut x = x;
        while x > 1.0 {
            let mut k = scalar(0);
            // Lanes push any number of values in each trip.
            while k.cast::<f32>() < x * 0.1 {
                x *= w.sin();
                k += 1;
            }
            x *= w;
        }
        x
    }
    // The gradient of a captured number is a sum over all iterations, in their order.
    let shared = |xs: Tensor, w: Tensor| {
        let y = map(xs, |x| decays(w, x));
        gradients(y.sum(), (xs, w))
    };
    agree(shared, (numbers(300), 0.7f32), 2);
    // Third and fourth loops, which go over the iterations in the first order again.
    let second = |xs: Tensor, w: Tensor| {
        let y = map(xs, |x| decays(w, x));
        let dw = gradients(y.sum(), w);
        gradients(dw.square(), (xs, w))
    };
    let (result, n) = in_lanes(second, (numbers(70), 0.7f32));
    result.unwrap_or_else(|e| panic!("{e}"));
    assert!(n >= 2, "{n} loops run in lanes");
}

#[test]
fn a_loop_that_declines_leaves_nothing_for_its_gradient() {
    #[graph]
    fn powers(x: Tensor, n: Tensor<i32>) -> Tensor {
        let (mut y, mut t) = (x, scalar(0));
        while t < n {
            y = y * (x + y).sin();
            t += 1;
        }
        y
    }
    let f = |xs: Tensor, n: Tensor<i32>| {
        let y = map((xs, n), |(x, n)| powers(x, n));
        (gradients(y.sum(), xs), y)
    };
    // One lane goes on for long.
    let n: Vec<i32> = (0..300).map(|i| if i == 299 { 17_000 } else { i % 7 }).collect();
    agree(f, (numbers(300), n), 2);
}

#[test]
fn branches_and_jumps_send_lanes_apart_and_together() {
    #[graph]
    fn steps(x: Tensor<i32>) -> Tensor<i64> {
        let (mut x, mut n, mut odd) = (x, scalar(0i64), scalar(0i64));
        while x != 1 {
            if n > 100 {
                return scalar(-1i64);
            }
            x = match x % 4 {
                0 => x / 4,
                1 | 3 => {
                    odd += 1;
                    if odd > 40 {
                        break;
                    }
                    3 * x + 1
                }
                _ => x / 2,
            };
            n += 1;
            if x == 7 {
                continue;
            }
            n += 1;
        }
        n * 1000 + odd
    }
    let xs: Vec<i32> = (1..600).collect();
    agree(|xs: Tensor<i32>| map(xs, steps), &xs, 1);
}

#[test]
fn sums_are_added_in_order() {
    #[graph]
    fn total(xs: Tensor) -> (Tensor, Tensor<i32>, Tensor) {
        let (mut sum, mut n, mut product) = (scalar(0.1), scalar(7), scalar(1.0));
        for x in xs {
            let mut y = x;
            while y > 1.0 {
                y = y.sqrt() - 0.1;
            }
            sum += y;
            n += y.cast::<i32>() + 1;
        }
        product += sum;
        (sum, n, product)
    }
    for n in [1, 3, 17, 900] {
        agree(total, numbers(n), 1);
    }
    // Backwards in the order of the rows.
    let reverse = |xs: Tensor| fold_right(scalar(0.0), xs, |sum, x| sum + x.sin());
    agree(reverse, numbers(100), 1);
    // A product is no sum.
    let (result, n) = in_lanes(|xs: Tensor| fold_left(scalar(1.0), xs, |product, x| product * x.cos()), numbers(100));
    result.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(n, 0);
}

#[test]
fn numbers_of_all_types_and_captured_tensors() {
    let ints = |xs: Tensor<i64>, ys: Tensor<u32>, t: Tensor<f64>| {
        map((xs, ys), |(x, y)| {
            let i = (x % 5).abs();
            let at = t.row(i.cast::<i32>());
            let z = cond(x.greater(3i64), || y * 3, || y / (y - y + 2));
            ((at * 2.0).cast::<f32>(), z, x.greater(at.cast::<i64>()), (y % 7).cast::<u8>())
        })
    };
    let xs: Vec<i64> = (-60..60).collect();
    let ys: Vec<u32> = (0..120).map(|i| i * 35_000_000).collect();
    agree(ints, (&xs, &ys, [1.5f64, -2.0, 0.25, 1e9, 7.0]), 1);
}

#[test]
fn the_first_iteration_that_fails_has_the_error() {
    #[graph]
    fn looked_up(t: Tensor, x: Tensor<i32>) -> Tensor {
        assert!(x < 50, "too large: {x}");
        t.row(x) * 2.0
    }
    let f = |xs: Tensor<i32>, t: Tensor| map(xs, |x| looked_up(t, x));
    let mut xs: Vec<i32> = (0..100).map(|i| i % 5).collect();
    let t = [1.0f32, 2.0, 3.0, 4.0, 5.0];
    agree(f, (&xs, t), 1);
    xs[70] = 99;
    xs[41] = 9;
    let (result, n) = in_lanes(f, (&xs, t));
    assert_eq!(n, 1);
    let error = result.expect_err("two iterations fail").to_string();
    assert!(error.contains('9') && !error.contains("too large"), "{error}");
    // Divisors of lanes that are elsewhere do not count.
    let divide = |xs: Tensor<i32>| map(xs, |x| cond(x.not_equal(0), || scalar(100) / x, || scalar(-1)));
    agree(divide, &xs, 1);
    let error = error_of(|xs: Tensor<i32>| map(xs, |x| scalar(100) / x), &xs);
    assert!(error.to_string().contains("zero"), "{error}");
}

#[test]
fn a_stack_of_lanes_is_one_stack_for_others() {
    // The backward loop multiplies cotangents in a way that lanes do not.
    let f = |xs: Tensor| {
        let last = fold_left(scalar(1.0), xs, |state, x| {
            let y = cond(x.greater(20.0), || x.sqrt(), || x.sin());
            state * 0.5 + y
        });
        gradients(last, xs)
    };
    in_lanes(f, numbers(50)).0.unwrap_or_else(|e| panic!("{e}"));
    // Lanes push, and the backward loop cannot run in lanes.
    let g = |xs: Tensor, table: Tensor| {
        let y = map(xs, |x| table.row(x.cast::<i32>() % 3) * x);
        gradients(y.sum(), (xs, table))
    };
    in_lanes(g, (numbers(50), [1.0f32, 2.0, 3.0])).0.unwrap_or_else(|e| panic!("{e}"));
}

#[graph]
fn filtered(w: Tensor, xs: Tensor, n: Tensor<i32>) -> Tensor {
    let mut s = scalar(0.0);
    let mut t = scalar(0);
    while t < n {
        let x = xs.row(t);
        s = if x > 5.0 { (s * w + x * 0.1).tanh() } else { s * 0.5 - x };
        t += 1;
    }
    s
}

#[test]
fn sequences_of_different_lengths_are_read_in_lanes() {
    for n in [3, 20, 260] {
        let xs = Array::new([n, 7], numbers(7 * n).iter().map(|x| x * 0.2).collect());
        let lengths: Vec<i32> = (0..n).map(|i| (i * 5 % 8) as i32).collect();
        let f = |w: Tensor, xs: Tensor, n: Tensor<i32>| map((xs, n), |(x, n)| filtered(w, x, n));
        agree(f, (0.9f32, &xs, &lengths), 1);
        let g = |w: Tensor, xs: Tensor, n: Tensor<i32>| {
            let y = map((xs, n), |(x, n)| filtered(w, x, n));
            gradients(y.square().sum(), (w, xs))
        };
        agree(g, (0.9f32, &xs, &lengths), 2);
    }
    let xs = Array::new([40, 7], numbers(280));
    let mut lengths = vec![5; 40];
    lengths[33] = 8;
    let f = |w: Tensor, xs: Tensor, n: Tensor<i32>| map((xs, n), |(x, n)| filtered(w, x, n));
    let (result, _) = in_lanes(f, (0.9f32, &xs, &lengths));
    result.expect_err("one row is too short");
}

#[test]
fn additions_of_lanes_count_in_the_budget_of_the_run() {
    #[graph]
    fn grown(x: Tensor, table: Tensor) -> Tensor {
        let row = x.cast::<i32>() % 3;
        let mut y = x;
        while y < 1e4 {
            y = y * 1.2 + table.row(row);
        }
        y
    }
    let f = |xs: Tensor, table: Tensor| gradients(map(xs, |x| grown(x, table)).sum(), table);
    let args = Arguments::of::<(Tensor, Tensor)>((numbers(2_000), [1.0f32, 2.0, 3.0]));
    let graph = graph_of(f, &args);
    let run = |limit: u64| {
        let program = Program::with_lanes(graph.clone(), 64).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(program.explain().matches("in lanes").count(), 2, "{}", program.explain());
        let budget = ByteGauge::new(limit);
        let result = memory::within(Some(budget.clone()), || program.run(args.tensors(), &mut vec![]));
        let result = result.map(|outputs| outputs[0].data::<f32>().to_vec()).map_err(|e| e.message);
        (result, budget.take_refusal())
    };
    let (expected, refusal) = run(1 << 21);
    assert_eq!(refusal, None);
    // The additions do not fit, so that the loop runs without lanes.
    let (result, refusal) = run(500_000);
    assert!(refusal.is_some() && result.is_ok() && result == expected, "{result:?}");
}

/// The initial probabilities, transitions and emissions of a model, sequences and their lengths.
type ModelAndSequences = (Array<f32>, Array<f32>, Array<f32>, Array<i32>, Array<i32>);

/// Returns a hidden Markov model of `n` states and 6 symbols, and 90 sequences with their lengths.
fn hidden_markov_model(n: usize) -> ModelAndSequences {
    let probabilities = |shape: &[usize]| {
        let size: usize = shape.iter().product();
        Array::new(shape, (0..size).map(|i| ((i * 7919) % 13 + 1) as f32 / 20.0).collect::<Vec<_>>())
    };
    let symbols = Array::new([90, 12], (0..90 * 12).map(|i| (i * i + i / 7) % 6).collect::<Vec<i32>>());
    let lengths = Array::new([90], (0..90).map(|i| 1 + i * 5 % 12).collect::<Vec<i32>>());
    (probabilities(&[n]), probabilities(&[n, n]), probabilities(&[6, n]), symbols, lengths)
}

#[test]
fn small_vectors_and_matrices_are_numbers_in_lanes() {
    let probability = |pi: Tensor, a: Tensor, b: Tensor, xs: Tensor<i32>, n: Tensor<i32>| {
        map((xs, n), |(xs, n)| forward_algorithm(pi, a, b, xs, n))
    };
    // Iterations add to rows of the emissions, in their order.
    let gradient = |pi: Tensor, a: Tensor, b: Tensor, xs: Tensor<i32>, n: Tensor<i32>| {
        gradients(probability(pi, a, b, xs, n).sum(), (pi, a, b))
    };
    for states in [1, 3, 4] {
        let arguments = hidden_markov_model(states);
        let outputs = agree(probability, arguments.clone(), 1);
        assert_eq!(outputs[0].shape(), [90]);
        agree(gradient, arguments, 2);
    }
    // A symbol that no row of the emissions belongs to, in the middle of a sequence.
    let (pi, a, b, xs, _) = hidden_markov_model(3);
    let mut symbols = xs.to_vec();
    symbols[12 * 40 + 5] = 6;
    let arguments = (pi, a, b, Array::new([90, 12], symbols), Array::new([90], vec![12; 90]));
    let (result, _) = in_lanes(gradient, arguments);
    let error = result.expect_err("the index is past the end").to_string();
    assert!(error.contains("index 6"), "{error}");
}

/// Adds numbers that shrink with each round to a tensor, at places that the rounds choose. A few
/// iterations have far more rounds than the others.
#[test]
fn iterations_add_to_elements_of_a_tensor_in_their_order() {
    #[graph]
    fn histogram<T: Float>(n: Tensor<i32>, rounds: Tensor<i32>, start: Tensor<T>) -> Tensor<T> {
        let mut sums = start;
        for i in range(n) {
            let mut k = scalar(0);
            while k < rounds.row(i) {
                let x = (i + k * 7).cast::<T>() * scalar(0.37).cast::<T>();
                if (i + k) % 3 != 0 {
                    sums = sums.scatter_add(((i * k) % 20).reshape([1]), x.reshape([1]), 0);
                }
                k += 1;
            }
            sums = sums.scatter_add((i % 20).reshape([1]), i.cast::<T>().reshape([1]), 0);
        }
        sums
    }
    let rounds: Vec<i32> = (0..120).map(|i| if i % 50 == 9 { 90 } else { i % 5 }).collect();
    let start: Vec<f32> = (0..20).map(|i| i as f32 * 0.1).collect();
    let outputs = agree(histogram::<f32>, (120, &rounds, &start), 1);
    let mut sums = start.clone();
    for (i, &rounds) in rounds.iter().enumerate() {
        for k in 0..rounds as usize {
            if (i + k) % 3 != 0 {
                sums[i * k % 20] += (i + k * 7) as f32 * 0.37;
            }
        }
        sums[i % 20] += i as f32;
    }
    assert_eq!(outputs[0].data::<f32>(), &sums[..]);
    agree(histogram::<f64>, (120, &rounds, start.iter().map(|&x| x.into()).collect::<Vec<f64>>()), 1);
    #[graph]
    fn histogram_of_integers(n: Tensor<i32>, rounds: Tensor<i32>, start: Tensor<i64>) -> Tensor<i64> {
        let mut sums = start;
        for i in range(n) {
            sums = sums.scatter_add((rounds.row(i) % 20).reshape([1]), i.cast::<i64>().reshape([1]), 0);
        }
        sums
    }
    agree(histogram_of_integers, (120, &rounds, vec![i64::MAX; 20]), 1);
}

/// Adds rows of a table to rows that the iterations choose, which may be the same ones.
#[test]
fn iterations_add_rows_to_a_table_in_their_order() {
    #[graph]
    fn add_rows<T: Float>(n: Tensor<i32>, table: Tensor<T>, start: Tensor<T>) -> Tensor<T> {
        let mut sums = start;
        for i in range(n) {
            let [to, next] = [i * 3 % 7, (i + 4) * 3 % 7].map(|to| to.reshape([1]));
            let [first, second] = [0, 1].map(|k| table.row((i + k) % 5).unsqueeze(0));
            sums = sums.scatter_add(to, first, 0).scatter_add(next, second * i.cast(), 0);
        }
        sums
    }
    for width in [1, 3, 4, 8, 12] {
        let table: Vec<f32> = (0..5 * width).map(|i| (i * 13 % 31) as f32 * 0.17 - 1.0).collect();
        let start: Vec<f32> = (0..7 * width).map(|i| (i * 11 % 29) as f32 * 0.1).collect();
        let args = (120, Array::new([5, width], table.clone()), Array::new([7, width], start.clone()));
        let outputs = agree(add_rows::<f32>, args, 1);
        let mut sums = start.clone();
        for i in 0..120 {
            for (to, from, factor) in [(i * 3 % 7, i % 5, 1.0), ((i + 4) * 3 % 7, (i + 1) % 5, i as f32)] {
                (0..width).for_each(|k| sums[to * width + k] += table[from * width + k] * factor);
            }
        }
        assert_eq!(outputs[0].data::<f32>(), &sums[..], "{width}");
        let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<_>>();
        agree(add_rows::<f64>, (120, Array::new([5, width], wide(table)), Array::new([7, width], wide(start))), 1);
    }
}

#[test]
fn iterations_may_have_vectors_as_results() {
    #[graph]
    fn turned(x: Tensor, axis: Tensor) -> Tensor {
        let mut x = x;
        let mut n = scalar(0);
        while x.index(0, 0) > -1.0 && n < 20 {
            let [y, z] = [x, axis].map(|x| concat(&[x.slice(0, 1, 3), x.slice(0, 0, 1)], 0));
            x = x + 0.2 * (y * axis - x * z) / (1.0 + x.square().sum());
            n += 1;
        }
        x
    }
    let points: Vec<f32> = (0..3 * 80).map(|i| ((i * 31 + 5) % 41) as f32 * 0.1 - 2.0).collect();
    let points = Array::new([80, 3], points);
    let axis = Array::new([3], vec![0.3f32, -0.8, 0.5]);
    let f = |xs: Tensor, axis: Tensor| map(xs, |x| turned(x, axis));
    agree(f, (points.clone(), axis.clone()), 1);
    let gradient = |xs: Tensor, axis: Tensor| gradients(f(xs, axis).square().sum(), (xs, axis));
    agree(gradient, (points, axis), 2);
}

#[test]
fn a_gradient_in_an_iteration_has_stacks_of_its_own() {
    #[graph]
    fn halved(x: Tensor) -> Tensor {
        let mut y = x * x;
        while y > 1.0 {
            y = y * 0.5 + 0.1 * x.sin();
        }
        y
    }
    let slopes = |xs: Tensor| map(xs, |x| gradients(halved(x), x));
    agree(slopes, numbers(300), 1);
}

#[test]
fn divisions_by_powers_of_two_round_towards_zero() {
    let halves = |a: Tensor<i32>, b: Tensor<i64>, c: Tensor<u32>, d: Tensor<u8>| {
        map((a, b, c, d), |(a, b, c, d)| {
            ((a / 4, a % 4, a / 1), (b / 8, b % 8), (c / 2, c % 2), (d / 16, d % 16), (a / 3, a % -4))
        })
    };
    let a: Vec<i32> = (-20..20).chain([i32::MIN, i32::MAX, i32::MIN + 1]).collect();
    let b: Vec<i64> = a.iter().map(|&x| if x == i32::MIN { i64::MIN } else { i64::from(x) * 3 }).collect();
    let c: Vec<u32> = a.iter().map(|&x| x.cast_unsigned()).collect();
    let d: Vec<u8> = a.iter().map(|&x| x as u8).collect();
    agree(halves, (&a, &b, &c, &d), 1);
}

#[test]
fn loops_in_lanes_in_other_loops_and_in_branches() {
    #[graph]
    fn repeated(xs: Tensor, n: Tensor<i32>) -> Tensor {
        let (mut xs, mut i) = (xs, scalar(0));
        while i < n {
            if xs.sum() > 300.0 {
                xs = map(xs, |x| newton(x).0 * 0.9);
            } else {
                xs = map(xs, |x| x + newton(x + 1.0).0);
            }
            i += 1;
        }
        xs
    }
    agree(repeated, (numbers(50), 6), 2);
    // The rows of rows: the inner loop runs in lanes.
    let rows = |xs: Tensor| map(xs, |row| map(row, |x| newton(x).0).sum());
    let (result, n) = in_lanes(rows, Array::new([5, 40], numbers(200)));
    result.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(n, 1);
}

#[test]
fn a_deadline_ends_lanes() {
    #[graph]
    fn endless(x: Tensor) -> Tensor {
        let mut y = x;
        while y >= 0.0 {
            y += 0.0 * x;
        }
        y
    }
    let session = Session::new().unwrap();
    let f = session.function(|xs: Tensor| map(xs, endless)).unwrap();
    let types = [anabranch::TensorType::new(anabranch::DType::F32, [100])];
    assert!(f.explain(&types).unwrap().contains("in lanes"));
    let error = f.call_timeout(std::time::Duration::from_millis(50), numbers(100)).unwrap_err();
    assert_eq!(error.kind, anabranch::ErrorKind::DeadlineExceeded, "{error}");
}

#[test]
fn few_lanes_that_go_on_for_long_go_on_alone() {
    #[graph]
    fn slow(x: Tensor) -> (Tensor, Tensor<i32>) {
        let (mut y, mut k) = (x, scalar(0));
        while y > 1.0 && k < 40_000 {
            y = y * 0.5 + x.floor() * 0.5;
            k += 1;
        }
        (y, k)
    }
    // One number takes all trips, and the others few.
    let mut xs: Vec<f32> = numbers(60).iter().map(|x| x / 100.0).collect();
    xs[20] = 3.0;
    let f = |xs: Tensor| {
        let (y, k) = map(xs, slow);
        (gradients(y.sum(), xs), k)
    };
    agree(f, &xs, 2);
}

#[test]
fn an_iteration_fails_before_a_later_one_that_never_ends() {
    #[graph]
    fn endless_at_zero(x: Tensor) -> Tensor {
        let mut y = x;
        while y < 10.0 {
            y += x;
        }
        assert!(x < 5.0, "too large: {x}");
        y
    }
    let mut xs = vec![1.0f32; 100];
    (xs[3], xs[7]) = (9.0, 0.0);
    let error = error_of(|xs: Tensor| map(xs, endless_at_zero), &xs);
    assert!(error.to_string().contains("too large: 9"), "{error}");
}
