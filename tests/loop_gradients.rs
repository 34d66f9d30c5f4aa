//! Gradients of loops that read parts of tensors and lists: an iteration of the backward loop adds
//! to the elements that were read, and touches no other. So it costs what an iteration of the
//! forward loop costs, whatever the size of the tensor.

#![allow(clippy::assign_op_pattern, reason = "both forms of assignment are staged")]

use crate::support::{check, error_of};
use anabranch::dsl::function::{Arguments, trace_fn};
use anabranch::prelude::*;
use anabranch::{DType, List, TensorType};

type S = Tensor<f64>;

/// The rows and columns of the tensors that are read. No other tensor has as many rows.
const SHAPE: [usize; 2] = [23, 4];

/// Returns multiples of a quarter, of which sums and products of two are exact.
fn quarters(shape: &[usize]) -> Array<f64> {
    let n: usize = shape.iter().product();
    Array::new(shape, (0..n).map(|i| ((i * 37 + 11) % 19) as f64 * 0.25 - 2.0).collect())
}

/// Returns the gradient of a polynomial of at most second degree in each element, by differences of
/// its values. They are exact.
fn differences(f: fn(S) -> S, x: &Array<f64>) -> Vec<f64> {
    let session = Session::new().expect("a session on the CPU");
    let f = session.function(f).map(|f| f.interpreted(true)).unwrap_or_else(|e| panic!("{e}"));
    let at = |i: usize, step: f64| {
        let mut values = x.to_vec();
        values[i] += step;
        f.call(Array::new(x.shape(), values)).unwrap_or_else(|e| panic!("{e}")).to_vec()[0]
    };
    (0..x.to_vec().len()).map(|i| (at(i, 0.5) - at(i, -0.5)) / 1.0).collect()
}

/// Returns the instructions in loops of the plan of the gradient that touch a whole tensor of the
/// type of `x`, other than to read or add a part of it in place.
fn whole_tensor_work(f: fn(S) -> S, x: &Array<f64>) -> Vec<String> {
    let session = Session::new().expect("a session on the CPU");
    let gradient = session.function(move |x: S| gradients(f(x), x)).unwrap_or_else(|e| panic!("{e}"));
    let plan = gradient.explain(Arguments::of::<(S,)>(x).signature()).unwrap_or_else(|e| panic!("{e}"));
    let code: Vec<(usize, &str)> = plan
        .lines()
        .filter_map(|line| line.trim_start().split_once(' ').and_then(|(n, rest)| Some((n.parse().ok()?, rest.trim()))))
        .collect();
    let jump = |&(at, text): &(usize, &str)| {
        let to: usize = text.rsplit_once("jump ").and_then(|(_, to)| to.trim().parse().ok())?;
        (to < at).then_some(to..at)
    };
    let loops: Vec<_> = code.iter().filter_map(jump).collect();
    assert!(loops.len() >= 2, "a forward and a backward loop\n{plan}");
    let shape = format!("f64{:?}", x.shape());
    let touches = |text: &str| {
        let Some((out, rest)) = text.split_once(" = ") else { return text.contains(&shape) };
        let name = rest.split(' ').next().unwrap_or_default();
        let in_place = name.starts_with("scatter_add") && rest.split(' ').nth(1) == out.split(' ').next();
        let reads = name.starts_with("dynamic_slice") || name.starts_with("take");
        !in_place && (!reads || out.contains(&shape)) && text.contains(&shape)
    };
    let in_loops = code.iter().filter(|(at, text)| loops.iter().any(|l| l.contains(at)) && touches(text));
    in_loops.map(|(at, text)| format!("{at} {text}")).collect()
}

/// Checks values of the gradient on every engine, and that no iteration works on all of `x`.
#[track_caller]
fn adds_in_place(f: fn(S) -> S, x: &Array<f64>) {
    check(move |x: S| gradients(f(x), x), x, &differences(f, x));
    assert_eq!(whole_tensor_work(f, x), Vec::<String>::new());
}

#[test]
fn rows_are_added_in_place() {
    #[graph]
    fn f(x: S) -> S {
        let (mut s, mut t) = (zeros::<f64>([4]), scalar(0));
        while t < 9 {
            s = s * 0.5 + x.row(t + 2);
            t += 1;
        }
        s.sum()
    }
    adds_in_place(f, &quarters(&SHAPE));
}

#[test]
fn the_same_row_is_added_in_every_iteration() {
    #[graph]
    fn f(x: S) -> S {
        let (mut s, mut t) = (scalar(0.0), scalar(0));
        while t < 9 {
            s = s * 0.5 + x.row(t / 4).sum();
            t += 1;
        }
        s
    }
    adds_in_place(f, &quarters(&SHAPE));
}

#[test]
fn rows_that_a_product_needs_are_read_again() {
    #[graph]
    fn f(x: S) -> S {
        let (mut s, mut t) = (scalar(0.0), scalar(0));
        while t < 9 {
            s = s * 0.5 + (x.row(t) * x.row(t + 11)).sum();
            t += 1;
        }
        s
    }
    let x = quarters(&SHAPE);
    adds_in_place(f, &x);
    let signature = Arguments::of::<(S,)>(&x).signature();
    let graph = trace_fn("f", &|x: S| gradients(f(x), x), &signature).unwrap().0.graph.to_string();
    assert_eq!(graph.matches("= push ").count(), graph.matches("stack<i32[]>\n").count() - 2, "{graph}");
    assert!(!graph.contains("stack<f64"), "only indices are saved\n{graph}");
}

#[test]
fn elements_columns_and_ranges() {
    #[graph]
    fn elements(x: S) -> S {
        let (mut s, mut t) = (scalar(0.0), scalar(0));
        while t < 30 {
            s = s * 0.5 + x.index(t, 0) * x.index(t + 60, 0);
            t += 1;
        }
        s
    }
    adds_in_place(elements, &quarters(&[95]));

    #[graph]
    fn columns(x: S) -> S {
        let (mut s, mut t) = (zeros::<f64>([23]), scalar(0));
        while t < 4 {
            s = s * 0.5 + x.column(t);
            t += 1;
        }
        s.sum()
    }
    adds_in_place(columns, &quarters(&SHAPE));

    #[graph]
    fn ranges(x: S) -> S {
        let (mut s, mut t) = (zeros::<f64>([3, 4]), scalar(0));
        while t < 8 {
            s = s * 0.5 + x.slice_at(t * 2, 0, 3);
            t += 1;
        }
        s.sum()
    }
    adds_in_place(ranges, &quarters(&SHAPE));

    #[graph]
    fn starts_of_bytes(x: S) -> S {
        let (mut s, mut t) = (zeros::<f64>([100]), scalar(0));
        while t < 3 {
            s = s * 0.5 + x.slice_at((t * 95).cast::<u8>(), 0, 100);
            t += 1;
        }
        s.sum()
    }
    adds_in_place(starts_of_bytes, &quarters(&[290]));
}

#[test]
fn rows_and_elements_at_several_indices() {
    #[graph]
    fn take(x: S) -> S {
        let (mut s, mut t) = (scalar(0.0), scalar(0));
        while t < 9 {
            s = s * 0.5 + x.take(stack(&[t, t + 5, t], 0), 0).sum();
            t += 1;
        }
        s
    }
    adds_in_place(take, &quarters(&SHAPE));

    #[graph]
    fn along(x: S) -> S {
        let (mut s, mut t) = (scalar(0.0), scalar(0));
        while t < 9 {
            s = s * 0.5 + x.take_along_axis(stack(&[t, t + 5, t, t + 1], 0).reshape([1, 4]), 0).sum();
            t += 1;
        }
        s
    }
    adds_in_place(along, &quarters(&SHAPE));
}

#[test]
fn a_small_slice_at_a_place_that_is_known() {
    #[graph]
    fn f(x: S) -> S {
        let (mut s, mut t) = (scalar(0.0), scalar(0));
        while t < 9 {
            s = s * x.index(3, 0).sum() * 0.125 + t.cast::<f64>() * x.slice(0, 5, 7).sum();
            t += 1;
        }
        s
    }
    // The value is a polynomial of a high degree in row 3.
    assert_eq!(whole_tensor_work(f, &quarters(&SHAPE)), Vec::<String>::new());
    #[graph]
    fn of_first_degree(x: S) -> S {
        let (mut s, mut t) = (scalar(0.0), scalar(0));
        while t < 9 {
            s = s * 0.5 + t.cast::<f64>() * x.slice(0, 5, 7).sum();
            t += 1;
        }
        s
    }
    adds_in_place(of_first_degree, &quarters(&SHAPE));
}

#[test]
fn nested_loops_and_branches() {
    #[graph]
    fn nested(x: S) -> S {
        let (mut s, mut i) = (scalar(0.0), scalar(0));
        while i < 3 {
            let mut j = scalar(0);
            while j < 4 {
                s = s * 0.5 + (x.row(i * 4 + j) * x.row(i)).sum();
                j += 1;
            }
            i += 1;
        }
        s
    }
    adds_in_place(nested, &quarters(&SHAPE));

    #[graph]
    fn branches(x: S) -> S {
        let (mut s, mut i) = (scalar(0.0), scalar(0));
        while i < 9 {
            if i % 3 == 0 {
                s += x.row(i).sum() * 0.5;
            } else if i % 3 == 1 {
                s = s * 0.5;
            } else {
                s += x.index(i, 0).index(2, 0);
            }
            i += 1;
        }
        s
    }
    adds_in_place(branches, &quarters(&SHAPE));
}

/// Each level of a nest adds to the time of its gradient, and does not double it.
#[test]
fn a_deep_nest_of_loops_has_a_gradient() {
    #[graph]
    fn once(y: S, x: S, inner: &dyn Fn(S) -> S) -> S {
        let (mut y, mut i) = (y, scalar(0));
        while i < 1 {
            y = inner(y) * x;
            i += 1;
        }
        y
    }
    fn nest(depth: usize, y: S, x: S) -> S {
        if depth == 0 { y } else { once(y, x, &|y| nest(depth - 1, y, x)) }
    }
    check(|x: S| gradients(nest(24, x, x), x), 1.0, &[25.0]);
}

#[test]
fn a_loop_over_checkpoints() {
    #[graph]
    fn f(x: S) -> S {
        let (mut s, mut t) = (scalar(0.0), scalar(0));
        while t < 16 {
            checkpoint_loop();
            s = s * 0.5 + (x.row(t) * x.row(t + 5)).sum();
            t += 1;
        }
        s
    }
    adds_in_place(f, &quarters(&SHAPE));
}

#[test]
fn a_table_that_the_loop_changes_is_read() {
    #[graph]
    fn f(x: S) -> S {
        let (mut table, mut t) = (x, scalar(1));
        while t < 23 {
            let row = table.row(t - 1) * 0.5 + table.row(t);
            table = table.update_slice_at(row.unsqueeze(0), t, 0);
            t += 1;
        }
        table.row(22).sum()
    }
    let x = quarters(&SHAPE);
    check(|x: S| gradients(f(x), x), &x, &differences(f, &x));
}

#[test]
fn second_order() {
    #[graph]
    fn f(x: S) -> S {
        let (mut s, mut t) = (scalar(0.0), scalar(0));
        while t < 9 {
            s = s * 0.5 + (x.row(t) * x.row(t + 11)).sum() + x.index(t, 0).index(t % 4, 0);
            t += 1;
        }
        s
    }
    fn slope(x: S) -> S {
        let d = gradients(f(x), x);
        (d * d).sum()
    }
    let x = quarters(&SHAPE);
    check(|x: S| gradients(slope(x), x), &x, &differences(slope, &x));
}

#[test]
fn sums_of_half_precision() {
    #[graph]
    fn f(x: Tensor<anabranch::f16>) -> Tensor<anabranch::f16> {
        let (mut s, mut t) = (zeros::<anabranch::f16>([4]), scalar(0));
        while t < 5 {
            s = s + x.row(t) + x.row(2);
            t += 1;
        }
        gradients(s.sum(), x)
    }
    let x = Array::new(SHAPE, vec![anabranch::f16::from_f32(0.5); 92]);
    let row = |r: usize| [if r < 5 { 1.0 } else { 0.0 } + if r == 2 { 5.0 } else { 0.0 }; 4];
    let expected: Vec<f64> = (0..23).flat_map(row).collect();
    check(f, &x, &expected);
}

// Errors.

/// Checks the error of a gradient alone, which needs nothing that the forward loop reads.
#[track_caller]
fn fails(f: impl Fn(S) -> S + Copy, x: &Array<f64>, message: &str) {
    let error = error_of(move |x: S| gradients(f(x), x), x);
    assert_eq!(error.message, message, "{error}");
    assert!(error.loc().expect("a location").file.ends_with("loop_gradients.rs"), "{error}");
}

#[test]
fn the_first_wrong_index_is_an_error_of_the_operation_that_read_there() {
    #[graph]
    fn rows(x: S) -> S {
        let (mut s, mut t) = (zeros::<f64>([4]), scalar(0));
        while t < 40 {
            s = s * 0.5 + x.row(t);
            t += 1;
        }
        s.sum()
    }
    let x = quarters(&SHAPE);
    fails(rows, &x, "dynamic_slice: index 23 is out of bounds for axis 0 of extent 23");

    #[graph]
    fn columns(x: S) -> S {
        let (mut s, mut t) = (zeros::<f64>([23]), scalar(0));
        while t < 40 {
            s = s * 0.5 + x.column(t * -2);
            t += 1;
        }
        s.sum()
    }
    fails(columns, &x, "dynamic_slice: index -2 is out of bounds for axis 1 of extent 4");

    #[graph]
    fn ranges(x: S) -> S {
        let (mut s, mut t) = (zeros::<f64>([3, 4]), scalar(0));
        while t < 40 {
            s = s * 0.5 + x.slice_at(t, 0, 3);
            t += 1;
        }
        s.sum()
    }
    fails(ranges, &x, "dynamic_slice: the range 21..24 is out of bounds for axis 0 of extent 23");

    #[graph]
    fn take(x: S) -> S {
        let (mut s, mut t) = (scalar(0.0), scalar(0));
        while t < 40 {
            s = s * 0.5 + x.take(stack(&[t, t + 5], 0), 0).sum();
            t += 1;
        }
        s
    }
    fails(take, &x, "take: index 23 at [1] is out of bounds for axis 0 of extent 23");

    #[graph]
    fn nested(x: S) -> S {
        let (mut s, mut i) = (scalar(0.0), scalar(0));
        while i < 3 {
            let mut j = scalar(0);
            while j < 9 {
                if j % 2 == 1 {
                    s = s * 0.5 + x.row(i * 9 + j).sum();
                }
                j += 1;
            }
            i += 1;
        }
        s
    }
    fails(nested, &x, "dynamic_slice: index 23 is out of bounds for axis 0 of extent 23");

    /// A list of the rows of a tensor is read again for the gradient of `w`.
    #[graph]
    fn list(w: S, x: S, up: bool) -> S {
        let (list, mut s, mut t) = (List::unstack(x), scalar(0.0), scalar(0));
        while t < 40 {
            let i = if up { t } else { 30 - t };
            s += w * list.read(i).sum();
            t += 1;
        }
        s
    }
    for (up, index) in [(true, 23), (false, 30)] {
        let error = error_of(move |w: S, x: S| gradients(list(w, x, up), w), (0.5, &x));
        assert!(error.message.contains(&format!("index {index} ")), "{error}");
        assert!(error.loc().expect("a location").file.ends_with("loop_gradients.rs"), "{error}");
    }
}

// Lists.

/// Rows of an input are read again for the gradient, and are not saved.
#[test]
fn rows_of_lists_from_outside_are_not_saved() -> Result<(), anabranch::Diagnostic> {
    #[graph]
    fn rows(x: S, w: S) -> S {
        let mut s = scalar(0.0);
        for row in x {
            if s > 100.0 {
                break;
            }
            s = (s + (row * w).sum()).sin() * row.sum();
        }
        s
    }
    let mapped = |x: S, w: S| map(x, |row| (row * w).sum().sin()).sum();
    let x = quarters(&SHAPE);
    let w = Array::new([4], vec![0.5, -1.0, 0.25, 2.0]);
    let session = anabranch::Session::new()?;
    for f in [rows, mapped] {
        let gradient = session.function(move |x: S, w: S| gradients(f(x, w), (x, w)))?;
        gradient.call((&x, &w))?;
        let text = gradient.explain(&[TensorType::new(DType::F64, SHAPE), TensorType::new(DType::F64, [4])][..])?;
        assert!(text.contains("pop") && !text.contains("stack<f64[4]>"), "{text}");
    }
    Ok(())
}

#[test]
fn elements_of_lists_are_accumulated() {
    #[graph]
    fn f(x: S) -> S {
        let mut list = List::new(());
        for row in x {
            list.push(row.sum());
        }
        let (mut s, mut t) = (scalar(0.0), scalar(0));
        while t < 11 {
            s = s * 0.5 + list.read(t) * list.read(t + 12);
            t += 1;
        }
        s
    }
    let x = quarters(&SHAPE);
    check(|x: S| gradients(f(x), x), &x, &differences(f, &x));
}

#[test]
fn numbers_of_a_gradient_are_those_of_differences() {
    // The helper above is exact: the gradient of x² at multiples of a quarter is 2 x.
    let x = quarters(&[5]);
    let square = |x: S| (x * x).sum();
    let doubled: Vec<f64> = x.to_vec().iter().map(|x| 2.0 * x).collect();
    assert_eq!(differences(square, &x), doubled);
}
