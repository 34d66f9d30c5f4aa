//! Errors for invalid input: each states the problem, shows the user's line, and has no effect.

use crate::support::{check, error_of, errors_of};
use anabranch::dsl::function::{GraphFn, trace_fn};
use anabranch::dsl::{Array, HostTensor};
use anabranch::prelude::*;

type S = Tensor<f64>;

/// Checks that a rendered error contains all of `parts`, and a location in this file.
#[track_caller]
fn shows(error: &anabranch::Diagnostic, parts: &[&str]) {
    let text = error.to_string();
    for part in parts.iter().chain(&["tests/errors.rs:", "^"]) {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
}

#[test]
fn shapes_that_do_not_fit_show_both_and_the_line() {
    #[graph]
    fn f(x: Tensor, w: Tensor) -> Tensor {
        x.matmul(w)
    }
    let error = error_of(f, ([[1.0; 3]; 2], [[1.0; 5]; 4]));
    shows(&error, &["matmul", "f32[2, 3]", "f32[4, 5]", "x.matmul(w)", "help:"]);

    #[graph]
    fn g(x: Tensor, y: Tensor) -> Tensor {
        x + y
    }
    let error = error_of(g, ([1.0; 3], [1.0; 4]));
    shows(&error, &["add", "f32[3]", "f32[4]", "x + y"]);
}

#[test]
fn an_extent_that_only_the_data_determines_is_a_tensor() {
    /// Returns the mean and the number of the elements above a limit.
    #[graph]
    fn f(x: S, limit: S) -> (S, Tensor<i32>) {
        let mut all = List::new(());
        for x in x {
            if x > limit {
                all.push(x);
            }
        }
        let all = all.stack();
        let n = all.extent(0);
        assert_eq!(n, all.extent(-1));
        assert_eq!(x.extent(0), x.dim(0) as i32);
        (all.sum() / n.cast(), n)
    }
    check(f, ([1.0, 5.0, 2.0, 9.0], 1.5), &[16.0 / 3.0, 3.0]);
    check(|x, limit| gradients(f(x, limit).0, x), ([1.0, 5.0, 2.0, 9.0], 2.0), &[0.0, 0.5, 0.0, 0.5]);
    let error = error_of(|x: S| x.with_dynamic(0).dim(0) as f64 * x, [1.0]);
    shows(&error, &["dim: the extent of axis 0 is not known while tracing", "f64[?]", "help: `x.extent(axis)` is"]);
    let error = error_of(|x: S| x.extent(1), [1.0]);
    shows(&error, &["extent: axis 1 is out of bounds for a tensor of rank 1"]);
}

#[test]
fn a_slice_that_is_replaced_is_checked_as_one_that_is_read() {
    let x = [[1.0, 2.0], [3.0, 4.0]];
    check(|x: S| x.with_row(0, 5.0).with_index(-1, 1, tensor([6.0, 7.0])), x, &[5.0, 6.0, 3.0, 7.0]);
    check(|x: S, i: Tensor<i64>| x.with_row(i, x.row(0) * 2.0), (x, 1i64), &[1.0, 2.0, 2.0, 4.0]);
    check(|x: S| gradients((x.with_row(1, x.row(0) * 2.0) * x).sum(), x), x, &[8.0, 12.0, 2.0, 4.0]);
    let error = error_of(|x: S| x.with_row(2, 0.0), x);
    shows(&error, &["with_index: index 2 is out of bounds for axis 0 of extent 2", "help: indices are 0 to 1"]);
    let error = error_of(|x: S| x.with_index(-3, 1, 0.0), x);
    shows(&error, &["with_index: index -3 is out of bounds for axis 1 of extent 2"]);
    let error = error_of(|x: S| x.with_row(0, tensor([1.0, 2.0, 3.0])), x);
    shows(&error, &["[3]", "[2]"]);
    let error = error_of(|x: S, i: Tensor<i32>| x.with_row(i, 0.0), (x, 2));
    shows(&error, &["dynamic_update_slice: index 2 is out of bounds for axis 0 of extent 2"]);
}

#[test]
fn tensors_of_an_iterator_are_added_and_multiplied() {
    check(|x: S| (0..3).map(|i| x.row(i) * f64::from(i)).sum::<S>(), [5.0, 1.0, 2.0], &[5.0]);
    check(|xs: Vec<S>| xs.iter().product::<S>() + xs.iter().sum::<S>(), vec![[2.0, 3.0], [5.0, 7.0]], &[17.0, 31.0]);
    check(|x: S| x + [x; 0].into_iter().sum::<S>() + [x; 0].iter().product::<S>(), 2.0, &[3.0]);
    let error = error_of(|x: S| [x, x.sum_axis(0), x.slice(0, 0, 2)].into_iter().sum::<S>(), [1.0, 2.0, 3.0]);
    shows(&error, &["add: shapes [3] and [2] cannot be broadcast together", "x.slice(0, 0, 2)"]);
}

#[test]
fn an_extent_that_is_found_to_be_1_broadcasts_to_a_known_one() {
    check(|x: S| tensor([2.0]).with_dynamic(0) * x, [3.0, 4.0], &[6.0, 8.0]);
    check(|x: S| x - tensor([2.0]).with_dynamic(0), [3.0, 4.0], &[1.0, 2.0]);
    check(|x: S| tensor([2.0, 3.0]).with_dynamic(0) * x, [3.0, 4.0], &[6.0, 12.0]);
    check(|x: S, y: S| x.with_dynamic(0) + y, ([[1.0, 2.0]], [[1.0, 1.0], [3.0, 3.0]]), &[2.0, 3.0, 4.0, 5.0]);
    #[graph]
    fn chosen(x: S, y: S) -> S {
        let z = y.with_dynamic(0);
        (x > z).select(z, x)
    }
    check(chosen, ([3.0, 1.0], [2.0]), &[2.0, 1.0]);
    #[graph]
    fn looped(x: S, y: S) -> (S, S, S) {
        let mut z = x.with_dynamic(0);
        let mut i = scalar(0);
        while i < 3 {
            if i != 1 {
                z = (z * y).sum_axis(0).reshape([1]).with_dynamic(0);
            }
            i += 1;
        }
        let (dx, dy) = gradients(z.sum(), (x, y));
        (z.sum(), dx, dy)
    }
    // x (y0 + y1)^2
    check(looped, ([2.0], [3.0, 4.0]), &[98.0, 49.0, 28.0, 28.0]);
    let gradient = |x: S, y: S| {
        let (dx, dy) = gradients((x.with_dynamic(0) * y * y).sum(), (x, y));
        let second = gradients(dx.sum(), y);
        (dx, dy, second)
    };
    check(gradient, ([2.0], [3.0, 4.0]), &[25.0, 12.0, 16.0, 6.0, 8.0]);
    check(gradient, ([2.0, 1.0], [3.0, 4.0]), &[9.0, 16.0, 12.0, 8.0, 6.0, 8.0]);
}

#[test]
fn extents_that_are_unknown_while_tracing_do_not_broadcast_to_each_other_and_the_help_says_so() {
    let f = |x: S, y: S| x.with_dynamic(0) * y.with_dynamic(0);
    check(f, ([2.0, 3.0], [3.0, 4.0]), &[6.0, 12.0]);
    for args in [(vec![2.0], vec![3.0, 4.0]), (vec![3.0, 4.0], vec![2.0])] {
        let help = "unknown while tracing are assumed to be equal and are not broadcast";
        for (_, error) in errors_of(f, args) {
            shows(&error, &["mul", help, "`.broadcast_to(..)`", "`.broadcast_like(..)`", "with_dynamic(0) *"]);
        }
    }
    let differ = |x: S, y: S| x.with_dynamic(0) * y;
    for (_, error) in errors_of(differ, ([2.0, 3.0, 4.0], [3.0, 4.0])) {
        shows(&error, &["[3]", "[2]", "with_dynamic(0) *"]);
    }
    let stretched = |x: S, y: S| {
        let (x, y) = (x.with_dynamic(0), y.with_dynamic(0));
        let z = (x.broadcast_like(y) * y.broadcast_like(x)).sum();
        let (dx, dy) = gradients(z, (x, y));
        (z, dx, dy)
    };
    check(stretched, ([2.0], [3.0, 4.0]), &[14.0, 7.0, 2.0, 2.0]);
    check(stretched, ([2.0, 1.0], [3.0, 4.0]), &[10.0, 3.0, 4.0, 2.0, 1.0]);
}

#[test]
fn extents_that_differ_at_run_time_are_reported_by_the_operation_that_was_written() {
    fn names(op: &str, f: impl GraphFn<(S, S)>) {
        let errors = errors_of(f, ([2.0, 3.0, 4.0], [3.0, 4.0]));
        assert!(errors.len() >= 3);
        for (engine, error) in errors {
            assert!(error.message.starts_with(&format!("{op}: ")), "{engine}: {error}");
            shows(&error, &["[3]", "[2]", "// written here"]);
        }
    }
    names("add", |x: S, y: S| x.with_dynamic(0) + y); // written here
    names("sub", |x: S, y: S| y - x.with_dynamic(0)); // written here
    names("maximum", |x: S, y: S| x.with_dynamic(0).maximum(y)); // written here
    names("select", |x: S, y: S| scalar(true).select(x.with_dynamic(0), y)); // written here
    // The value of the operation is unused, or its factor is 1.
    names("add", |x: S, y: S| {
        let z = (x.with_dynamic(0) + y).sum(); // written here
        gradients(z, x)
    });
    names("mul", |d: S, x: S| {
        let (d, x) = (d.with_dynamic(0), x.with_dynamic(0));
        let z = (d * x).sum(); // written here
        gradients(z, d)
    });
    names("mul", |d: S, x: S| {
        let (e, y) = (d.with_dynamic(0), x.with_dynamic(0));
        let z = (e * y).sum(); // written here
        gradients(z, (d, x))
    });
    names("div", |d: S, x: S| {
        let (e, y) = (d.with_dynamic(0), x.with_dynamic(0));
        let z = (e / y).sum(); // written here
        gradients(z, d)
    });
    names("mul", |d: S, x: S| {
        let ones = scalar(1.0).broadcast_like(x.with_dynamic(0));
        d.with_dynamic(0) * ones // written here
    });
}

#[test]
fn an_axis_that_is_not_there() {
    #[graph]
    fn f(x: Tensor) -> Tensor {
        x.sum_axis(2)
    }
    shows(&error_of(f, [[1.0; 3]; 2]), &["sum", "axis 2", "x.sum_axis(2)"]);
}

#[test]
fn a_branch_that_changes_the_rank_names_the_variable_and_both_lines() {
    #[graph]
    fn f(x: S, c: S) -> S {
        let mut y = x.sum();
        if c > 0.0 {
            y = x * 2.0;
        }
        y
    }
    let error = error_of(f, ([1.0, 2.0], 1.0));
    shows(&error, &["`y`", "f64[2]", "f64[]", "y = x * 2.0", "let mut y = x.sum()"]);
    assert!(error.labels.len() >= 2, "both places: {error}");
}

#[test]
fn a_loop_that_changes_the_rank_names_the_variable_and_both_lines() {
    #[graph]
    fn f(x: S) -> S {
        let mut total = scalar(0.0);
        let mut i = scalar(0);
        while i < 3 {
            total += x;
            i += 1;
        }
        total
    }
    let error = error_of(f, [1.0, 2.0]);
    shows(&error, &["`total`", "f64[]", "before the loop", "f64[2]", "after one iteration", "total += x"]);
}

#[test]
fn a_condition_that_is_not_scalar() {
    #[graph]
    fn f(x: S) -> S {
        let mut y = x;
        while y < 3.0 {
            y += 1.0;
        }
        y
    }
    shows(&error_of(f, [1.0, 2.0]), &["bool[2]", ".any()"]);
}

#[test]
fn a_tensor_larger_than_any_memory() {
    let error = error_of(|| zeros::<f32>([1 << 40, 1 << 40]), ());
    shows(&error, &["broadcast_to", "more than any memory can hold", "zeros::<f32>"]);
    let error = error_of(|x: S| x.reshape([usize::MAX, 2]), [1.0, 2.0]);
    shows(&error, &["reshape", "f64[2]"]);
}

#[test]
fn an_index_out_of_range_is_found_at_run_time() {
    #[graph]
    fn f(x: S, i: Tensor<i32>) -> S {
        x.take(i, 0)
    }
    let error = error_of(f, ([1.0, 2.0, 3.0], [0, 5]));
    shows(&error, &["take", "5", "3", "x.take(i, 0)"]);
    let error = error_of(f, ([1.0, 2.0, 3.0], [0, -1]));
    shows(&error, &["take", "-1"]);
}

#[test]
fn integer_division_by_zero_is_found_at_run_time() {
    #[graph]
    fn f(x: Tensor<i32>, y: Tensor<i32>) -> Tensor<i32> {
        x / y
    }
    shows(&error_of(f, ([1, 2], [1, 0])), &["div", "zero", "x / y"]);
}

#[test]
fn an_assertion_reports_its_line_and_message() {
    #[graph]
    fn f(x: S) -> S {
        let mut i = scalar(0.0);
        while i < x {
            assert!(i < 2.0, "only two trips");
            i += 1.0;
        }
        i
    }
    shows(&error_of(f, 5.0), &["only two trips", "assert!"]);
}

#[test]
fn an_assertion_in_the_branch_not_taken_does_not_fire() {
    #[graph]
    fn f(x: S) -> S {
        let mut y = x;
        if x > 0.0 {
            assert!(x < 0.0);
            y = -x;
        }
        y
    }
    crate::support::check(f, -1.0, &[-1.0]);
    shows(&error_of(f, 1.0), &["assertion failed"]);
}

#[test]
fn nan_passes_and_the_check_names_the_first_node_that_made_one() -> anabranch::Result<()> {
    #[graph]
    fn f(x: S) -> S {
        let a = x * 2.0;
        let b = a.log();
        let c = b + 1.0;
        c.sqrt()
    }
    let session = Session::new()?;
    assert!(session.function(f)?.call(-1.0)?.item().is_nan());
    let checked = session.function(f)?.check_finite(true);
    shows(&checked.call(-1.0).unwrap_err(), &["log", "non-finite", "a.log()"]);
    assert!(checked.call(f64::NAN)?.item().is_nan(), "what comes in as NaN was not made here");
    assert_eq!(checked.call(1.0)?.item(), ((2.0f64).ln() + 1.0).sqrt());
    Ok(())
}

#[test]
fn wrong_inputs_name_the_parameter_what_was_expected_and_what_was_given() -> anabranch::Result<()> {
    #[graph]
    fn f(x: Tensor, steps: Tensor<i32>) -> Tensor {
        x * steps.cast()
    }
    let f = Session::new()?.function(f)?;
    let floats = HostTensor::scalar(1.0f32);
    let error = f.call_host(&[floats.clone(), floats.clone()]).unwrap_err().to_string();
    assert!(error.contains("i32") && error.contains("f32[]") && error.contains("input 1"), "{error}");
    let error = f.call_host(&[floats]).unwrap_err().to_string();
    assert!(error.contains("takes at least 2 tensors, but got 1: argument #2 is missing"), "{error}");
    Ok(())
}

#[derive(InOut)]
struct Layer {
    w: Tensor,
    b: (Tensor, Tensor<i32>),
}

#[test]
fn wrong_inputs_and_results_are_named_by_their_path() -> anabranch::Result<()> {
    let f = |x: Tensor, layers: Vec<Layer>| {
        let layer = layers.into_iter().next_back().unwrap();
        (x * 2.0, [layer])
    };
    let f = Session::new()?.function(f)?;
    let x = HostTensor::scalar(1.0f32);
    let message = |inputs: &[HostTensor]| f.call_host(inputs).unwrap_err().message;
    assert_eq!(
        message(&[&x; 7].map(Clone::clone)),
        "input 3 (argument #2, element 0, field `b`, element 1) has elements of type i32, but got f32[]"
    );
    let layers = |n: usize| {
        let b = (Array::new([], vec![1.0]), Array::new([], vec![1]));
        vec![LayerArrays { w: Array::new([n], vec![1.0; n]), b }]
    };
    let mut results = f.call((1.0, layers(2)))?;
    let error = f.call_into((1.0, layers(3)), &mut results).unwrap_err();
    let expected = "result 1, element 1, element 0, field `w` is f32[3], but `call_into` received f32[2]";
    assert!(error.message.ends_with(expected), "{error}");
    let f = Session::new()?.function(|(x,): (Tensor,)| x)?;
    let error = f.call_host(&[]).unwrap_err();
    assert_eq!(error.message, "the function takes at least 1 tensor, but got 0: argument #1, element 0 is missing");
    let error = f.call_host(&[x.clone(), x]).unwrap_err();
    assert_eq!(error.message, "the function takes 1 tensor, but got 2");
    Ok(())
}

#[test]
fn a_declared_shape_names_the_parameter() {
    #[graph]
    fn f(#[shape(batch, 3)] x: Tensor, #[shape(batch)] y: Tensor) -> Tensor {
        x.sum_axis(1) + y
    }
    crate::support::check(f, ([[1.0; 3]; 2], [1.0; 2]), &[4.0, 4.0]);
    let error = error_of(f, ([[1.0; 4]; 2], [1.0; 2]));
    shows(&error, &["the parameter `x` is f32[batch, 3], but got f32[2, 4]"]);
    let error = error_of(f, ([[1.0; 3]; 2], [1.0; 5]));
    shows(&error, &["the parameter `y` is f32[batch], but got f32[5]", "`batch` is 2 in `x`"]);
}

#[test]
fn a_tensor_that_leaves_its_branch_is_an_error() {
    let leak = std::sync::OnceLock::new();
    let f = |x: S| {
        let y = leaky(x, &leak);
        y + *leak.get().expect("the branch was traced")
    };
    #[graph]
    fn leaky(x: S, leak: &std::sync::OnceLock<S>) -> S {
        let mut y = x;
        if x > 0.0 {
            y = 2.0 * x;
            leak.get_or_init(|| y);
        }
        y
    }
    let error = error_of(f, 1.0);
    shows(&error, &["outside it", "declared before"]);
}

#[test]
fn a_tensor_of_another_trace_is_an_error() {
    let kept = std::cell::Cell::new(None);
    let _ = trace_fn(
        "first",
        &|x: S| {
            kept.set(Some(x));
            x
        },
        &[HostTensor::scalar(1.0).ty()],
    )
    .unwrap();
    let error = error_of(|x: S| x + kept.get().unwrap(), 1.0);
    shows(&error, &["outside the trace"]);
}

#[test]
#[should_panic(expected = "a tensor operation outside a graph function")]
fn a_tensor_outside_of_a_function_panics_with_the_place() {
    let _ = scalar(1.0f32);
}

#[test]
fn recursion_is_an_error_that_shows_the_chain() {
    #[graph]
    fn down(x: S) -> S {
        if x > 0.0 { up(x - 1.0) } else { x }
    }
    #[graph]
    fn up(x: S) -> S {
        down(x) + 1.0
    }
    let error = error_of(down, 1.0);
    shows(&error, &["`down`", "`up`", "cannot recurse"]);
}

/// Checks the error for a host loop that only the graph could end. The error shows the line of the
/// loop and says that tracing repeats the loop.
#[track_caller]
fn is_endless<F: anabranch::dsl::function::GraphFn<(S,)>>(f: F, line: &str) {
    let error = trace_fn("test", &f, &[HostTensor::scalar(1.0f64).ty()]).map(|_| ()).unwrap_err();
    shows(&error, &["was traced 10000 times", line, "no `break` or `return` exits this loop", "`break` or `return`"]);
}

#[test]
fn a_loop_that_only_a_panic_or_an_assertion_on_a_tensor_ends_is_not_traced_forever() {
    #[graph]
    fn panics(mut x: S) -> S {
        loop {
            x *= 2.0;
            if x > 100.0 {
                panic!("too large: {x}");
            }
        }
    }
    #[graph]
    fn unreachable(mut x: S) -> S {
        'outer: loop {
            x *= 2.0;
            if x > 100.0 {
                unreachable!();
            } else {
                continue 'outer;
            }
        }
    }
    #[graph]
    fn asserts(mut x: S) {
        loop {
            x += 1.0;
            assert!(x < 100.0, "too large");
        }
    }
    #[graph]
    fn compares(mut x: S) {
        loop {
            x += 1.0;
            assert_ne!(x, 100.0);
        }
    }
    #[expect(while_true, reason = "it is a loop without an end, too")]
    #[graph]
    fn on_a_constant(mut x: S) {
        while true {
            x += 1.0;
            debug_assert!(x < 100.0);
            assert!(x < 100.0);
        }
    }
    #[graph]
    fn nested(mut x: S) -> S {
        for i in 0..3 {
            if x > 3.0 {
                loop {
                    for _ in 0..2 {
                        x = x.sin();
                    }
                    while x < 1.0 {
                        x += 1.0;
                    }
                    assert!(x < 100.0, "{i}");
                }
            }
        }
        x
    }
    #[graph]
    fn without_an_end(mut x: S) -> S {
        loop {
            x += 1.0;
        }
    }
    #[graph]
    fn calls(x: S) -> S {
        if x > 0.0 { panics(x) } else { x }
    }
    is_endless(panics, "loop {");
    is_endless(unreachable, "'outer: loop {");
    is_endless(asserts, "loop {");
    is_endless(compares, "loop {");
    is_endless(on_a_constant, "while true {");
    is_endless(nested, "loop {");
    is_endless(without_an_end, "loop {");
    is_endless(calls, "loop {");
    is_endless(|x: S| panics(x), "loop {");
}

#[test]
fn an_assertion_in_a_host_loop_without_end_is_not_traced_forever() {
    #[graph]
    fn small(x: S) {
        assert!(x < 100.0, "too large");
    }
    #[graph]
    fn counts(mut x: S) {
        for _ in 0.. {
            x += 1.0;
            small(x);
        }
    }
    #[graph]
    fn waits(mut x: S, n: usize) {
        while n < 1 {
            x += 1.0;
            small(x);
        }
    }
    let error = error_of(counts, 1.0);
    shows(&error, &["one assertion on a tensor was traced 100000 times", "assert!(x < 100.0, \"too large\");"]);
    assert_eq!(error_of(|x: S| waits(x, 0), 1.0).message, error.message);
}

#[test]
fn a_loop_that_the_host_ends_is_unrolled_whatever_it_asserts() {
    #[graph]
    fn sums(mut x: S, times: usize) -> S {
        let mut i = 0;
        loop {
            if i == times {
                break;
            }
            x += 1.0;
            assert!(x < 100.0);
            i += 1;
        }
        let mut items = [1.0, 2.0].into_iter();
        let mut all = || -> Option<()> {
            loop {
                x += items.next()?;
                assert!(x < 100.0);
            }
        };
        let _ = all();
        loop {
            assert!(x < 100.0);
            if times > 0 {
                return x;
            }
        }
    }
    check(|x: S| sums(x, 12), 1.0, &[16.0]);
}

#[test]
fn host_work_in_a_loop_without_break_may_take_as_long_as_it_likes() {
    #[graph]
    fn searches(x: S) -> S {
        let mut n = 0u32;
        loop {
            n += 1;
            if n == 50_000 {
                panic!("the host ends it");
            }
            let _ = x;
        }
    }
    let outcome =
        std::panic::catch_unwind(|| trace_fn("test", &searches, &[HostTensor::scalar(1.0f64).ty()]).map(|_| ()));
    let panic = outcome.unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"the host ends it"));
}

#[test]
fn a_failing_step_leaves_the_variables_as_they_were() -> anabranch::Result<()> {
    #[graph]
    fn count(n: &Var<f64>, x: S) -> S {
        n.set(n.get() + 1.0);
        assert!(x > 0.0, "x must be positive");
        n.get()
    }
    let n = Var::<f64>::new("n", 0.0);
    let session = Session::new()?;
    let count = session.function(|x| count(&n, x))?;
    assert_eq!(count.call(1.0)?, 1.0);
    assert!(count.call(-1.0).is_err());
    assert_eq!(session.get(&n)?.item(), 1.0);
    assert_eq!(count.call(1.0)?, 2.0);
    Ok(())
}

#[test]
fn messages_show_tensors() {
    #[graph]
    fn asserted(x: Tensor) -> Tensor {
        assert!(x < 10.0, "x is {x}"); // asserted
        x
    }
    #[graph]
    fn panicked(x: Tensor) -> Tensor {
        if x > 10.0 {
            panic!("x is {}", x); // panicked
        }
        x
    }
    #[graph]
    fn of_the_host(x: Tensor, limit: f32) -> Tensor {
        assert!(x < limit, "not below {limit}");
        x
    }
    #[graph]
    fn of_a_row(x: Tensor, y: Tensor) -> Tensor {
        let mut k = scalar(0);
        while k < 3 {
            assert!(x < 10.0 || k == 0, "{k}: {:.1} of {y:?}, {{{}}}", x * 2.0, if x > 5.0 { x } else { y.sum() });
            k += 1;
        }
        x
    }
    #[graph]
    fn equal(x: Tensor, y: Tensor) -> Tensor {
        assert_eq!(x * 2.0, y, "in {}", "this");
        y
    }
    #[graph]
    fn unequal(x: Tensor<i32>) -> Tensor<i32> {
        assert_ne!(x, 3);
        x
    }
    #[graph]
    fn counted(n: Tensor<i32>) -> Tensor<i32> {
        let (mut i, mut x) = (scalar(0), scalar(0));
        while i < n {
            assert!(i < 5, "i = {i}, x = {x}");
            x += i;
            i += 1;
        }
        x
    }
    #[graph]
    fn only_the_host_fails(x: Tensor, on: bool) -> Tensor {
        assert!(on, "x is {x}"); // asserted
        x
    }
    let message = |f: fn(Tensor) -> Tensor| eval_with(f, 20.0f32).unwrap_err();
    let (asserted, panicked) = (message(asserted), message(panicked));
    assert_eq!([&*asserted.message, &panicked.message], ["assertion failed: x is 20"; 2]);
    assert!(asserted.to_string().contains("// asserted") && panicked.to_string().contains("// panicked"), "{asserted}");
    let row = [1.0f32, 2.5];
    let error = error_of(of_a_row, (20.0f32, row));
    assert_eq!(error.message, "assertion failed: 1: 40.0 of [1.0, 2.5], {20}");
    let error = error_of(equal, (row, row));
    let text = "assertion failed: assertion `x * 2.0 == y` failed: in this\n  left: [2.0, 5.0]\n right: [1.0, 2.5]";
    assert_eq!(error.message, text);
    let error = error_of(unequal, 3);
    assert_eq!(error.message, "assertion failed: assertion `x != 3` failed\n  left: 3\n right: 3");
    // A loop of scalars only, which is native code.
    let error = error_of(counted, 7);
    assert_eq!(error.message, "assertion failed: i = 5, x = 10");
    let error = eval_with(|x| only_the_host_fails(x, false), 20.0f32).unwrap_err().to_string();
    assert!(
        error.contains("a message under a host condition cannot show a tensor") && error.contains("// asserted"),
        "{error}"
    );
    let error = eval_with(|x| of_the_host(x, 1.5), 20.0f32).unwrap_err();
    assert_eq!(error.message, "assertion failed: not below 1.5");
}
