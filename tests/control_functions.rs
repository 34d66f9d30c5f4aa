//! `cond`, `switch`, `while_loop`, folds, scans and `map`: that they are the same nodes as the statements, carry any state, say what
//! does not fit, and have gradients.

mod support;

use anabranch::dsl::Graph;
use anabranch::dsl::function::{GraphFn, trace_fn};
use anabranch::prelude::*;
use support::{check, error_of};

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
    // The value may then be anything.
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
    // With the first (last) element in place of a first state, and with one beside all elements.
    let after_first = |xs: S, init: S| fold_left(init, xs, |a, x| (a + x) * 2.0);
    check(after_first, ([2.0, 3.0, 4.0, 5.0, 6.0], 1.0), &[208.0]);
    check(f, ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 10.0), &[880.0, 1282.0, 64.0, 126.0]);
    let none: [f64; 0] = [];
    check(f, (none, 10.0), &[10.0, 10.0, 1.0, 0.0]);
}

#[test]
fn folds_go_over_rows_of_several_tensors() {
    fn f(xs: S, ws: S) -> (S, S, S) {
        let sum = fold_left(zeros([2]), (xs, [ws]), |a, (x, [w])| a * w + x);
        let total = (sum * sum).sum();
        let dw = gradients(total, ws);
        (sum, dw, gradients((dw * dw).sum(), xs))
    }
    // a = x0 * w1 * w2 + x1 * w2 + x2, with finite differences for the rest in the corpus of operations.
    let xs = [[1.0, 2.0], [3.0, 5.0], [7.0, 11.0]];
    let ws: [f64; 3] = [9.0, 0.5, 2.0];
    let a: Vec<f64> = (0..2).map(|k| (xs[0][k] * ws[1] + xs[1][k]) * ws[2] + xs[2][k]).collect();
    let dw1: f64 = (0..2).map(|k| 2.0 * a[k] * xs[0][k] * ws[2]).sum();
    let dw2: f64 = (0..2).map(|k| 2.0 * a[k] * (xs[0][k] * ws[1] + xs[1][k])).sum();
    // d/dx of dw1^2 + dw2^2, where a and (x0 w1 + x1) depend on x.
    let b: Vec<f64> = (0..2).map(|k| xs[0][k] * ws[1] + xs[1][k]).collect();
    let mut ddx = [[0.0; 2]; 3];
    for k in 0..2 {
        let da = [ws[1] * ws[2], ws[2], 1.0];
        let db = [ws[1], 1.0, 0.0];
        for (row, (da, db)) in ddx.iter_mut().zip(da.into_iter().zip(db)) {
            let direct = if db == ws[1] { 2.0 * a[k] * ws[2] } else { 0.0 };
            row[k] =
                2.0 * dw1 * (2.0 * da * xs[0][k] * ws[2] + direct) + 2.0 * dw2 * (2.0 * da * b[k] + 2.0 * a[k] * db);
        }
    }
    let expected: Vec<f64> = a.iter().copied().chain([0.0, dw1, dw2]).chain(ddx.into_iter().flatten()).collect();
    check(f, (xs, ws), &expected);
}

mod errors_name_the_leaf {
    use super::*;

    /// The message, and that the place is in this file.
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
        assert_eq!(m, "`fold_left` goes over rows, but `rows.1` is f64[] and has none");
        let m = message(|| fold_left(scalar(0.0), (), |a, ()| a));
        assert_eq!(m, "`fold_left` goes over rows, but there is no tensor to give them");
    }
}
