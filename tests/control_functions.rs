//! `cond`, `switch`, `while_loop`, folds, scans and `map`: they create the same nodes as
//! statements, accept any loop variables, report mismatches, and have gradients.

use crate::support::{check, error_of};
use anabranch::dsl::Graph;
use anabranch::dsl::function::{GraphFn, trace_fn};
use anabranch::prelude::*;

type S = Tensor<f64>;
type I = Tensor<i32>;

fn graph_of<Args, F: GraphFn<Args>>(f: F, signature: &[(anabranch::DType, &[usize])]) -> Graph {
    let types: Vec<_> = signature.iter().map(|&(dtype, shape)| anabranch::TensorType::new(dtype, shape)).collect();
    trace_fn("f", &f, &types).unwrap_or_else(|e| panic!("{e}")).0.graph
}

const F64: anabranch::DType = anabranch::DType::F64;

#[test]
fn functions_record_the_nodes_of_the_statements() {
    #[graph]
    fn statements(x: S) -> S {
        let mut y = x;
        while y < 100.0 {
            y = if y < 50.0 { y * y } else { y + 60.0 };
        }
        y
    }
    fn functions(x: S) -> S {
        while_loop(x, |y| y.less(100.0), |y| cond(y.less(50.0), || y * y, || y + 60.0))
    }
    let [a, b] = [graph_of(statements, &[(F64, &[])]), graph_of(functions, &[(F64, &[])])];
    assert!(a.same_structure(&b), "{a}\n{b}");
}

#[derive(Carry)]
struct Pair {
    sum: S,
    parts: Vec<S>,
    #[carry(host)]
    width: usize,
}

#[test]
fn a_state_is_any_carry() {
    fn f(x: S, n: I) -> (S, S, I) {
        let init = (Pair { sum: x, parts: vec![x, x * 2.0], width: 2 }, [scalar(0), n]);
        let (pair, [i, _]) = while_loop(
            init,
            |(_, [i, n])| i.less(n),
            |(p, [i, n])| {
                let parts = vec![p.parts[1], p.parts[0] * p.width as f64];
                (Pair { sum: p.sum + parts[0], parts, ..p }, [i + 1, n])
            },
        );
        (pair.sum, gradients(pair.sum, x), i)
    }
    // Sums 1, then 2, 2, 4, 4.
    check(f, (1.0, 4), &[13.0, 13.0, 4.0]);
    check(f, (1.0, 0), &[1.0, 1.0, 0.0]);
}

#[test]
fn a_host_condition_calls_one_closure_only() {
    let f = |x: S| cond(true, || x + 1.0, || panic!("this closure is not called"));
    check(f, 1.0, &[2.0]);
    // A host condition allows values of any type.
    let n: &str = cond(false, || "one", || "other");
    assert_eq!(n, "other");
}

#[test]
fn closures_in_graph_functions_are_staged_too() {
    #[graph]
    fn f(x: S, n: I) -> S {
        while_loop((x, n), |(_, n)| n > 0, |(x, n)| (if n % 2 == 0 { x * 3.0 } else { x + 1.0 }, n - 1)).0
    }
    // 3: +1, 2: *3, 1: +1
    check(f, (1.0, 3), &[7.0]);
}

#[test]
fn a_switch_clamps_its_index() {
    fn f(i: Tensor<u8>, x: S) -> (S, S) {
        let y = switch(i, (|| x + 1.0, || x * x, || x * x * x));
        (y, gradients(y, x))
    }
    check(f, (0u8, 3.0), &[4.0, 1.0]);
    check(f, (1u8, 3.0), &[9.0, 6.0]);
    check(f, (2u8, 3.0), &[27.0, 27.0]);
    check(f, (255u8, 3.0), &[27.0, 27.0]);
    let g = |i: Tensor<i64>| switch(i, [|| scalar(10)]);
    check(g, i64::MIN, &[10.0]);
    let h = |i: I| switch(i, (0..5).map(|k| move || scalar(k * k)).collect::<Vec<_>>());
    for (i, y) in [(i32::MIN, 0), (-1, 0), (0, 0), (1, 1), (2, 4), (3, 9), (4, 16), (5, 16), (i32::MAX, 16)] {
        check(h, i, &[f64::from(y)]);
    }
}

#[test]
fn only_the_chosen_branch_of_a_switch_runs() {
    #[graph]
    fn guarded(x: I, k: i32) -> I {
        assert!(x == k, "branch {k} ran");
        x
    }
    let f = |i: I, x: I| switch(i, (0..4).map(|k| move || guarded(x, k)).collect::<Vec<_>>());
    for i in 0..4 {
        check(f, (i, i), &[f64::from(i)]);
        let error = error_of(f, (i, i + 1));
        assert!(error.to_string().contains(&format!("branch {i} ran")), "{error}");
    }
}

#[test]
fn folds_go_in_both_directions_and_have_gradients() {
    fn f(xs: S, init: S) -> (S, S, S, S) {
        let left = fold_left(init, xs, |a, x| (a + x) * 2.0);
        let right = fold_right(init, xs, |a, x| (a + x) * 2.0);
        (left, right, gradients(left, init), gradients(right, xs).sum())
    }
    // With the first or last element as initial state, and with a separate initial state.
    let after_first = |xs: S, init: S| fold_left(init, xs, |a, x| (a + x) * 2.0);
    check(after_first, ([2.0, 3.0, 4.0, 5.0, 6.0], 1.0), &[208.0]);
    check(f, ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 10.0), &[880.0, 1282.0, 64.0, 126.0]);
    let none: [f64; 0] = [];
    check(f, (none, 10.0), &[10.0, 10.0, 1.0, 0.0]);
}

#[test]
fn folds_go_over_rows_of_several_tensors() {
    fn f(xs: S, ws: S) -> (S, S) {
        let sum = fold_left(zeros([2]), (xs, [ws]), |a, (x, [w])| a * w + x);
        (sum, gradients((sum * sum).sum(), ws))
    }
    // a = x0 * w1 * w2 + x1 * w2 + x2, so da/dw1 = x0 * w2 and da/dw2 = x0 * w1 + x1.
    let (xs, ws) = ([[1.0, 2.0], [3.0, 5.0], [7.0, 11.0]], [9.0, 0.5, 2.0]);
    check(f, (xs, ws), &[14.0, 23.0, 0.0, 28.0 * 2.0 + 46.0 * 4.0, 28.0 * 3.5 + 46.0 * 6.0]);
}

/// Returns the same scan, unrolled over the rows on the host: the graph has no loop.
fn unrolled<S: Carry, Y>(mut state: S, n: usize, f: impl Fn(S, usize) -> (S, Y)) -> (S, Vec<Y>) {
    let mut outputs = Vec::new();
    for i in 0..n {
        let (next, y) = f(state, i);
        state = next;
        outputs.push(y);
    }
    (state, outputs)
}

#[test]
fn a_scan_has_the_derivatives_of_its_unrolled_rows() {
    fn cell(h: S, x: S, w: S) -> (S, S) {
        let next = (h * w + x).tanh();
        (next, next * x)
    }
    fn derivatives(h: S, ys: S, wrt: (S, S, S)) -> [S; 8] {
        let loss = (h * h).sum() + (ys * ys).sum();
        let d = gradients(loss, wrt);
        let slope = (d.0 * d.0).sum() + d.1.sum() + (d.2 * d.2 * d.2).sum();
        let dd = gradients(slope, wrt);
        [h, ys, d.0, d.1, d.2, dd.0, dd.1, dd.2]
    }
    fn as_a_loop(xs: S, h0: S, w: S) -> [S; 8] {
        let (h, ys) = scan(h0, xs, |h, x| cell(h, x, w));
        derivatives(h, ys, (xs, h0, w))
    }
    fn by_the_host(xs: S, h0: S, w: S) -> [S; 8] {
        let (h, ys) = unrolled(h0, 3, |h, i| cell(h, xs.row(i), w));
        derivatives(h, stack(&ys, 0), (xs, h0, w))
    }
    fn reversed_loop(xs: S, h0: S, w: S) -> [S; 8] {
        let (h, ys) = scan_reverse(h0, xs, |h, x| cell(h, x, w));
        derivatives(h, ys, (xs, h0, w))
    }
    fn reversed_by_the_host(xs: S, h0: S, w: S) -> [S; 8] {
        let (h, mut ys) = unrolled(h0, 3, |h, i| cell(h, xs.row(2 - i), w));
        ys.reverse();
        derivatives(h, stack(&ys, 0), (xs, h0, w))
    }
    type F = fn(S, S, S) -> [S; 8];
    let pairs: [(F, F); 2] = [(as_a_loop, by_the_host), (reversed_loop, reversed_by_the_host)];
    let (xs, h0, w) = ([[0.3, -0.2], [0.9, 0.4], [-0.5, 0.1]], [0.2, 0.7], [1.1, -0.6]);
    for (staged, host) in pairs {
        let expected = eval_with(host, (xs, h0, w)).unwrap_or_else(|e| panic!("{e}"));
        let expected: Vec<f64> = expected.iter().flat_map(|a| a.as_slice().to_vec()).collect();
        check(staged, (xs, h0, w), &expected);
    }
}

#[test]
fn scans_and_maps_take_and_give_structures() {
    #[derive(Carry)]
    struct Row {
        x: S,
        n: I,
    }
    fn f(x: S, n: I) -> (S, S, I, S) {
        let over = Row { x, n };
        let out = map(over, |row: Row| Pair { sum: row.x * row.n.cast(), parts: vec![row.x, row.x + 1.0], width: 2 });
        let (count, rows) =
            scan_reverse(scalar(0), Row { x, n }, |i, row| (i + 1, Row { x: row.x, n: row.n * 10 + i }));
        (out.sum, out.parts[1] * out.width as f64, rows.n + count, rows.x)
    }
    check(f, ([0.5, 1.5], [2, 3]), &[1.0, 4.5, 3.0, 5.0, 2.0 + 21.0, 2.0 + 30.0, 0.5, 1.5]);
}

#[test]
fn no_rows_give_no_outputs() {
    fn f(xs: S) -> (S, S, S, S) {
        let (sum, sums) = scan(scalar(5.0), xs, |sum, x| (sum + x.sum(), [sum, sum * 2.0]));
        let doubled = map(xs, |x| x * 2.0);
        (sum, sums[0], doubled, gradients(sum + doubled.sum(), xs))
    }
    let none: [[f64; 2]; 0] = [];
    check(f, none, &[5.0]);
    check(f, [[1.0, 2.0]], &[8.0, 5.0, 2.0, 4.0, 3.0, 3.0]);
}

#[test]
fn rows_whose_number_only_the_data_decides() {
    /// Returns the numbers from 1 to `n` as a tensor whose extent is unknown while tracing.
    fn first(n: I) -> S {
        let push = |(i, mut list): (I, List<f64>)| {
            list.push((i + 1).cast::<f64>());
            (i + 1, list)
        };
        while_loop((scalar(0), List::new(())), |(i, _)| i.less(n), push).1.stack()
    }
    fn f(n: I) -> (S, S) {
        let xs = first(n);
        let (sum, sums) = scan_reverse(scalar(0.0), xs, |sum, x| (sum + x, sum + x));
        (sum, sums)
    }
    check(f, 3, &[6.0, 6.0, 5.0, 3.0]);
    check(f, 0, &[0.0]);
    fn two(n: I, m: I) -> S {
        map((first(n), first(m)), |(a, b)| a * b)
    }
    check(two, (2, 2), &[1.0, 4.0]);
    let error = error_of(two, (2, 3));
    assert!(error.to_string().contains("`map`: `rows.1` must have as many rows as the others"), "{error}");
    assert!(error.to_string().contains("control_functions.rs"), "{error}");
    #[graph]
    fn products(n: I, m: I) -> S {
        let mut sum = scalar(0.0);
        for (a, b) in (first(n), first(m)) {
            sum += a * b;
        }
        sum
    }
    check(products, (3, 3), &[14.0]);
    check(products, (0, 0), &[0.0]);
    let error = error_of(products, (2, 3)).to_string();
    assert!(error.contains("`for`: `rows.1` must have as many rows as the others"), "{error}");
    assert!(error.contains("for (a, b) in (first(n), first(m))"), "{error}");
    #[graph]
    fn of_two(x: S, y: S) -> S {
        let mut sum = scalar(0.0);
        for (a, b) in (x, y) {
            sum += a * b;
        }
        sum
    }
    let error = error_of(of_two, ([1.0, 2.0, 3.0], [1.0, 2.0])).to_string();
    assert!(error.contains("`for`: `rows.0` has 3 rows, but `rows.1` has 2"), "{error}");
    assert!(error.contains("for (a, b) in (x, y)"), "{error}");
    let error = error_of(of_two, ([1.0, 2.0, 3.0], 1.0)).to_string();
    assert!(error.contains("`for` iterates over rows, but `rows.1` is f64[] and has none"), "{error}");
}

#[test]
fn a_map_is_recognized_as_parallel_and_a_scan_is_not() {
    fn mapped(xs: S) -> S {
        map(xs, |x| cond(x.less(1.0), || x * 2.0, || x.sqrt()))
    }
    fn scanned(xs: S) -> S {
        scan(scalar(0.0), xs, |sum, x| (sum + x, sum)).1
    }
    #[graph]
    fn written_by_hand(xs: S) -> S {
        let rows = List::unstack(xs);
        let (mut out, mut i) = (List::with_len(3, ()), scalar(0));
        while i < 3 {
            out.write(2 - i, rows.read(i) * 2.0);
            i += 1;
        }
        out.stack()
    }
    fn gradient_of_a_map(xs: S) -> S {
        gradients(map(xs, |x| x * x.sin()).sum(), xs)
    }
    let explain = |f: fn(S) -> S| {
        let session = Session::new().unwrap();
        let types = [anabranch::TensorType::new(F64, [3])];
        session.function(f).unwrap().explain(&types).unwrap_or_else(|e| panic!("{e}"))
    };
    let independent = "its iterations are independent of each other";
    for f in [mapped as fn(S) -> S, written_by_hand] {
        let text = explain(f);
        assert!(text.contains("loop at tests/control_functions.rs"), "{text}");
        assert!(text.contains(independent) && !text.contains("depend on each other:"), "{text}");
    }
    let text = explain(scanned);
    assert!(text.contains("its iterations depend on each other: `state` is carried from one to the next"), "{text}");
    // Forwards, each iteration has its own saved values. Backwards, the row indices are saved
    // values, which the graph does not know to be distinct.
    let text = explain(gradient_of_a_map);
    assert_eq!(text.matches(independent).count(), 1, "{text}");
    assert_eq!(text.matches("is written at an index that may repeat").count(), 1, "{text}");
}

mod errors_name_the_leaf {
    use super::*;

    /// Checks the message, and that the location is in this file.
    #[track_caller]
    fn message<O: anabranch::dsl::function::Output>(f: impl Fn() -> O) -> String {
        let error = error_of(f, ());
        let place = error.loc().unwrap_or_else(|| panic!("no place: {error}"));
        assert!(place.file.ends_with("control_functions.rs"), "{error}");
        error.message
    }

    fn pair(n: usize) -> Pair {
        Pair { sum: scalar(0.0), parts: vec![scalar(0.0); n], width: n }
    }

    #[test]
    fn in_branches() {
        let c = || scalar(1).greater(0);
        let m = message(|| cond(c(), || scalar(1.0), || tensor([1.0])));
        assert_eq!(m, "the value has type f64[] in one branch, but f64[1] in the other");
        let m = message(|| cond(c(), || pair(2), || Pair { sum: zeros([3]), ..pair(2) }).sum);
        assert_eq!(m, "`value.sum` has type f64[] in one branch, but f64[3] in the other");
        let m = message(|| cond(c(), || pair(1), || pair(2)).sum);
        assert_eq!(m, "`value.parts` has 1 item in the first branch, but 2 items in the second");
        let m = message(|| cond(c(), || pair(1), || Pair { width: 3, ..pair(1) }).sum);
        assert_eq!(m, "`value.width` has the host value 1 in the first branch, but the host value 3 in the second");
        let m = message(|| cond(tensor([true, false]), || scalar(1), || scalar(2)));
        assert_eq!(m, "the condition of `if` is bool[2], not a scalar bool[]");
    }

    #[test]
    fn in_switches() {
        let branches = || vec![scalar(1.0), scalar(2.0), zeros([2])].into_iter().map(|v| move || v).collect::<Vec<_>>();
        let m = message(|| switch(scalar(0), branches()));
        assert_eq!(m, "the value has type f64[] in one branch, but f64[2] in the other");
        let m = message(|| switch(tensor([0, 1]), (|| scalar(1), || scalar(2))));
        assert_eq!(m, "the index of `switch` is i32[2], not a scalar");
        let m = message(|| switch(scalar(0), Vec::<fn() -> S>::new()));
        assert_eq!(m, "a `switch` has no branches");
    }

    #[test]
    fn in_loops() {
        let m = message(|| while_loop(pair(2), |p| p.sum.less(1.0), |p| Pair { parts: vec![p.sum], ..p }).sum);
        assert_eq!(m, "`state.parts` has 2 items before the loop, but 1 item after one iteration");
        let m = message(|| {
            let next = |p: Pair| Pair { parts: vec![p.sum, zeros([4])], ..p };
            while_loop(pair(2), |p| p.sum.less(1.0), next).sum
        });
        assert_eq!(m, "`state.parts.1` has type f64[] before the loop, but f64[4] after one iteration");
        let m = message(|| while_loop(zeros::<f64>([2]), |x| x.less(1.0), |x| x));
        assert_eq!(m, "the condition of `while` is bool[2], not a scalar bool[]");
    }

    #[test]
    fn in_folds() {
        let m = message(|| fold_left((scalar(0.0), scalar(0.0)), zeros([3]), |(a, b), x: S| (a + x, b + zeros([2]))).0);
        assert_eq!(m, "`state.1` has type f64[] before the loop, but f64[2] after one iteration");
        let m =
            message(|| fold_right(scalar(0.0), (zeros([3]), [zeros([3]), zeros([4])]), |a, (x, _): (S, [S; 2])| a + x));
        assert_eq!(m, "`fold_right`: `rows.0` has 3 rows, but `rows.1.1` has 4");
        let m = message(|| fold_left(scalar(0.0), (zeros([3]), scalar(1.0)), |a, (x, _): (S, S)| a + x));
        assert_eq!(m, "`fold_left` iterates over rows, but `rows.1` is f64[] and has none");
        let m = message(|| {
            let list = List::unstack(zeros::<f64>([3]));
            fold_left(scalar(0.0), (zeros([3]), list), |a, (x, _): (S, List<f64>)| a + x)
        });
        assert_eq!(m, "`fold_left` iterates over rows, but `rows.1` is list<f64[]>");
        let m = message(|| fold_left(scalar(0.0), (), |a, ()| a));
        assert_eq!(m, "`fold_left` iterates over rows, but `rows` contains no tensor");
    }

    #[test]
    fn in_scans_and_maps() {
        let m = message(|| map((zeros([3]), zeros([4])), |(a, b): (S, S)| a + b));
        assert_eq!(m, "`map`: `rows.0` has 3 rows, but `rows.1` has 4");
        let m = message(|| map(zeros::<f64>([3, 2]), |x| (x, List::unstack(x))).0);
        assert_eq!(m, "`map`: `value.1` is list<f64[]>, but only tensors can be stacked");
        let m = message(|| scan_reverse(zeros::<f64>([2]), zeros([3]), |a, x: S| (a.sum() + x, x)).0);
        assert_eq!(m, "`state` has type f64[2] before the loop, but f64[] after one iteration");
    }
}

mod recursion {
    use super::*;

    fn through_cond(x: S) -> S {
        cond(x.greater(0.0), || through_cond(x - 1.0), || x)
    }

    fn through_while(x: S) -> S {
        while_loop(x, |y| y.greater(0.0), |y| through_while(y) - 1.0)
    }

    fn one(x: S) -> S {
        cond(x.greater(0.0), || other(x - 1.0), || x)
    }

    fn other(x: S) -> S {
        while_loop(x, |y| y.greater(0.0), |y| one(y) - 1.0)
    }

    #[graph]
    fn caller(x: S) -> S {
        let y = x * 2.0;
        one(y)
    }

    #[test]
    fn through_closures_is_refused_before_the_stack_ends() {
        for f in [through_cond, through_while, one, caller] {
            let e = error_of(f, 3.0);
            assert!(e.message.contains("nested more than"), "{e}");
            let text = e.to_string();
            assert!(text.contains("recursion under a tensor condition does not end"), "{text}");
            assert!(e.loc().is_some_and(|loc| loc.file.ends_with("control_functions.rs")), "{text}");
        }
        assert!(error_of(caller, 3.0).to_string().contains("note: in `caller`"));
        assert!(error_of(one, 3.0).to_string().contains("inside this"));
    }

    #[test]
    fn that_a_host_value_ends_is_not_refused() {
        fn steps(x: S, depth: usize) -> S {
            if depth == 0 { x } else { cond(x.greater(0.0), || steps(x - 1.0, depth - 1), || x) }
        }
        assert_eq!(eval_with(|x| steps(x, 100), 90.0).unwrap(), 0.0);
    }
}
