//! Loops with independent iterations on GPUs: one shader with a thread for each iteration.

use super::support::gpus::{adapter, assert_near, numbers};
use anabranch::dsl::function::Arguments;
use anabranch::prelude::*;
use anabranch::{Array, GpuAdapter, Session};
use anabranch_benches::examples::forward_algorithm;

type Outcome = anabranch::Result<()>;

/// A session on a GPU of this machine, and the adapter that counts what it reads back.
fn session() -> anabranch::Result<Option<(Session, GpuAdapter)>> {
    let Some(adapter) = adapter() else { return Ok(None) };
    Ok(Some((Session::builder().gpu(&adapter).device("/gpu:0").build()?, adapter)))
}

/// Returns positive numbers in no order.
fn positive(n: usize) -> Array<f32> {
    Array::new([n], numbers(n).into_iter().map(|x| (x + 0.6) * 40.0).collect::<Vec<_>>())
}

/// Asserts how many loops of a function have a thread for each iteration.
macro_rules! assert_parallel {
    ($f:expr, $types:ty, $args:expr, $n:expr) => {
        let text = $f.explain(Arguments::of::<$types>($args).signature())?;
        assert_eq!(text.matches("with a thread for each iteration").count(), $n, "{text}");
    };
}

#[graph]
fn root(a: Tensor) -> (Tensor, Tensor<i32>) {
    let (mut x, mut n) = (a, scalar(0));
    while (x * x - a).abs() > 1e-4 * a && n < 50 {
        x = (x + a / x) * 0.5;
        n += 1;
    }
    (if x > 3.0 { x * 2.0 } else { x }, n)
}

#[test]
fn a_map_over_a_loop_is_one_shader() -> Outcome {
    let Some((session, adapter)) = session()? else { return Ok(()) };
    let f = |xs: Tensor| map(xs, root);
    let (there, here) = (session.function(f)?, Session::new()?.function(f)?);
    assert_parallel!(there, (Tensor,), positive(3), 1);
    for n in [0, 1, 2, 63, 64, 65, 1000] {
        let xs = positive(n);
        there.call(&xs)?;
        let before = adapter.readbacks();
        let (roots, steps) = there.call(&xs)?;
        // Both results, and at the end of the program whether a thread was stuck.
        assert!(adapter.readbacks() - before <= 3, "{n}: {} values are read back", adapter.readbacks() - before);
        let expected = here.call(&xs)?;
        assert_near(&roots, &expected.0);
        assert_eq!(steps, expected.1);
    }
    Ok(())
}

#[graph]
fn filtered(w: Tensor, xs: Tensor, n: Tensor<i32>) -> Tensor {
    let (mut state, mut t) = (scalar(0.0), scalar(0));
    while t < n {
        let x = xs.row(t);
        state = if x > 0.0 { (state * w + x * 0.5).tanh() } else { state * 0.5 - x };
        t += 1;
    }
    state
}

#[test]
fn iterations_read_rows_and_small_vectors_and_add_to_sums() -> Outcome {
    let Some((session, _)) = session()? else { return Ok(()) };
    let cpu = Session::new()?;
    #[graph]
    fn of_rows(w: Tensor, xs: Tensor, n: Tensor<i32>) -> (Tensor, Tensor<i32>) {
        let (mut sum, mut total) = (scalar(0.5), scalar(3));
        for (x, n) in (xs, n) {
            sum += filtered(w, x, n);
            total += n;
        }
        (sum, total)
    }
    let (there, here) = (session.function(of_rows)?, cpu.function(of_rows)?);
    let n = 130;
    let lengths = Array::new([n], (0..n).map(|i| (i * 5 % 8) as i32).collect::<Vec<_>>());
    let arguments = (0.9, Array::new([n, 7], numbers(7 * n)), lengths);
    assert_parallel!(there, (Tensor, Tensor, Tensor<i32>), arguments.clone(), 1);
    let (a, b) = (there.call(arguments.clone())?, here.call(arguments)?);
    assert_near(&a.0, &b.0);
    assert_eq!(a.1, b.1);

    let markov = |pi: Tensor, a: Tensor, b: Tensor, xs: Tensor<i32>, n: Tensor<i32>| {
        map((xs, n), |(xs, n)| forward_algorithm(pi, a, b, xs, n))
    };
    let probabilities = |shape: &[usize]| {
        let size: usize = shape.iter().product();
        Array::new(shape, (0..size).map(|i| ((i * 7919) % 13 + 1) as f32 / 20.0).collect::<Vec<_>>())
    };
    let symbols = Array::new([90, 12], (0..90 * 12).map(|i| (i * i + i / 7) % 6).collect::<Vec<i32>>());
    let lengths = Array::new([90], (0..90).map(|i| 1 + i * 5 % 12).collect::<Vec<i32>>());
    let arguments = (probabilities(&[4]), probabilities(&[4, 4]), probabilities(&[6, 4]), symbols, lengths);
    let (there, here) = (session.function(markov)?, cpu.function(markov)?);
    assert_parallel!(there, (Tensor, Tensor, Tensor, Tensor<i32>, Tensor<i32>), arguments.clone(), 1);
    assert_near(&there.call(arguments.clone())?, &here.call(arguments)?);
    Ok(())
}

#[test]
fn more_iterations_than_a_dispatch_has_are_added() -> Outcome {
    #[graph]
    fn total(n: Tensor<i32>) -> (Tensor<i32>, Tensor<i32>) {
        let (mut sum, mut i) = (scalar(5), scalar(0));
        while i < n {
            sum += i % 7;
            i += 2;
        }
        (sum, i)
    }
    let Some((session, _)) = session()? else { return Ok(()) };
    let (there, here) = (session.function(total)?, Session::new()?.function(total)?);
    assert_parallel!(there, (Tensor<i32>,), 3, 1);
    for n in [0, 1, 2 << 18, (2 << 18) + 9] {
        assert_eq!(there.call(n)?, here.call(n)?, "{n}");
    }
    Ok(())
}

#[test]
fn the_first_iteration_that_fails_has_the_error() -> Outcome {
    #[graph]
    fn looked_up(t: Tensor, x: Tensor<i32>) -> Tensor {
        assert!(x < 50, "too large: {x}");
        let mut y = t.row(x);
        while y > 1.0 {
            y *= 0.5;
        }
        y + (20 / (x - 3)).cast::<f32>()
    }
    let Some((session, _)) = session()? else { return Ok(()) };
    let f = |xs: Tensor<i32>, t: Tensor| map(xs, |x| looked_up(t, x));
    let (there, here) = (session.function(f)?, Session::new()?.function(f)?);
    let good: Vec<i32> = (0..70).map(|i| i % 3).collect();
    let table = [1.0f32, 2.0, 3.0, 4.0, 5.0];
    assert_parallel!(there, (Tensor<i32>, Tensor), (&good, table), 1);
    let with = |places: &[(usize, i32)]| {
        let mut xs = good.clone();
        places.iter().for_each(|&(i, x)| xs[i] = x);
        xs
    };
    let mut n_errors = 0;
    for xs in [&[(60, 99), (41, 9)][..], &[(60, 99)], &[(20, 3)], &[], &[(69, -1)], &[(3, 4)]].map(with) {
        match (there.call((&xs, table)), here.call((&xs, table))) {
            (Ok(a), Ok(b)) => assert_near(&a, &b),
            (Err(a), Err(b)) => {
                assert_eq!((a.kind, a.message), (b.kind, b.message));
                n_errors += 1;
            }
            (a, b) => panic!("{a:?} and {b:?}"),
        }
    }
    assert_eq!(n_errors, 4);
    Ok(())
}

#[test]
fn a_loop_over_a_small_vector_is_one_shader() -> Outcome {
    #[graph]
    fn grow(x: Tensor, table: Tensor) -> (Tensor, Tensor<i32>) {
        let (mut y, mut n) = (x, scalar(0));
        while y.sum() < 100.0 {
            y = y * 1.25 + table.row(n % 20) * 0.125;
            n += 1;
        }
        (y, n)
    }
    let Some((session, adapter)) = session()? else { return Ok(()) };
    let (there, here) = (session.function(grow)?, Session::new()?.function(grow)?);
    let arguments = ([1.0f32, 0.5, -0.25], Array::new([20], numbers(20)));
    let text = there.explain(Arguments::of::<(Tensor, Tensor)>(arguments.clone()).signature())?;
    assert!(text.contains(": one shader runs it\n"), "{text}");
    let (before, (a, n)) = (adapter.readbacks(), there.call(arguments.clone())?);
    assert!(adapter.readbacks() - before <= 3, "{} values are read back", adapter.readbacks() - before);
    let expected = here.call(arguments)?;
    assert_near(&a, &expected.0);
    assert_eq!(n, expected.1);
    Ok(())
}

#[test]
fn iterations_of_too_many_steps_run_in_another_way() -> Outcome {
    #[graph]
    fn counted(n: Tensor<i32>) -> Tensor<i32> {
        let mut i = scalar(0);
        while i < n {
            i += 3;
        }
        i
    }
    let Some((session, _)) = session()? else { return Ok(()) };
    let f = |xs: Tensor<i32>| (map(xs, counted), counted(xs.sum()));
    let (there, here) = (session.function(f)?, Session::new()?.function(f)?);
    // Twice, since the second run knows of the first one.
    for n in [5, 4_000_000, 4_000_000, 7] {
        let xs = [1, 2, n];
        assert_eq!(there.call(xs)?, here.call(xs)?, "{n}");
    }
    Ok(())
}

#[test]
fn maps_run_in_branches_and_loops_that_are_recorded_ahead() -> Outcome {
    #[graph]
    fn model(xs: Tensor, limit: Tensor) -> (Tensor, Tensor) {
        let (mut y, mut n) = (xs, scalar(0.0));
        while y.sum() < limit {
            y = map(y, |x| root(x).0 + 0.75);
            if y.max() > 4.0 {
                y = map(y, |x| root(x * 0.5).0 + 1.0);
            }
            n += 1.0;
        }
        (y, n)
    }
    let Some((session, _)) = session()? else { return Ok(()) };
    let (there, here) = (session.function(model)?, Session::new()?.function(model)?);
    assert_parallel!(there, (Tensor, Tensor), (positive(40), 90.0), 2);
    for limit in [0.0, 90.0, 110.0] {
        let (a, b) = (there.call((positive(40), limit))?, here.call((positive(40), limit))?);
        assert_near(&a.0, &b.0);
        assert_near(&a.1, &b.1);
    }
    Ok(())
}

#[graph]
fn decays(w: Tensor, x: Tensor) -> Tensor {
    let mut x = x;
    while x > 1.0 {
        let mut k = scalar(0);
        // Any number of values are saved in each iteration.
        while k.cast::<f32>() < x * 0.2 {
            x *= w.sin();
            k += 1;
        }
        x *= w;
    }
    x
}

#[test]
fn gradients_pop_what_the_iterations_pushed() -> Outcome {
    let Some((session, adapter)) = session()? else { return Ok(()) };
    let cpu = Session::new()?;
    let model = |xs: Tensor, w: Tensor| {
        let y = map(xs, |x| decays(w, x));
        (gradients(y.square().sum(), (xs, w)), y)
    };
    let (there, here) = (session.function(model)?, cpu.function(model)?);
    assert_parallel!(there, (Tensor, Tensor), (positive(3), 0.9), 2);
    for n in [1, 40, 300] {
        // The first call may find that there is too little memory for the values of an iteration.
        there.call((positive(n), 0.98))?;
        let before = adapter.readbacks();
        let (a, b) = (there.call((positive(n), 0.98))?, here.call((positive(n), 0.98))?);
        assert!(adapter.readbacks() - before <= 4, "{n}: {} values are read back", adapter.readbacks() - before);
        assert_near(&a.0.0, &b.0.0);
        assert_near(&a.0.1, &b.0.1);
        assert_near(&a.1, &b.1);
    }
    // The backward loop adds to elements of a list, to each in one iteration or in several.
    let of_list = |xs: Tensor, ids: Tensor<i32>, rows: Tensor| {
        let list = List::unstack(rows);
        let y = map((xs, ids), |(x, id)| (list.read(id) * x + 0.5).sqrt());
        gradients(y.sum(), (xs, rows))
    };
    let (there, here) = (session.function(of_list)?, cpu.function(of_list)?);
    for factor in [3, 0] {
        let ids: Vec<i32> = (0..8).map(|i| i * factor % 8).collect();
        let arguments = (positive(8), ids, positive(9));
        let (a, b) = (there.call(arguments.clone())?, here.call(arguments)?);
        assert_near(&a.0, &b.0);
        assert_near(&a.1, &b.1);
    }
    // The backward loop adds to elements of the table, and splits what iterations have pushed.
    let of_table = |xs: Tensor, table: Tensor| {
        let y = map(xs, |x| (table.row(x.cast::<i32>() % 3) * x).sin());
        gradients(y.sum(), (xs, table))
    };
    let (there, here) = (session.function(of_table)?, cpu.function(of_table)?);
    let table = [1.0f32, 2.0, 3.0];
    let (a, b) = (there.call((positive(20), table))?, here.call((positive(20), table))?);
    assert_near(&a.0, &b.0);
    assert_near(&a.1, &b.1);
    Ok(())
}

#[test]
fn loops_whose_bodies_make_lists_are_not_shaders() -> Outcome {
    #[graph]
    fn polynomial(c: Tensor, x: Tensor) -> Tensor {
        let mut x = x;
        while x < 10.0 {
            let mut y = scalar(0.0);
            for a in c {
                y = y * x + a;
            }
            x += y.abs() + 1.0;
        }
        x
    }
    #[graph]
    fn squares(row: Tensor) -> Tensor {
        let mut sum = scalar(0.0);
        for x in row {
            sum += x * x;
        }
        sum
    }
    let Some((session, _)) = session()? else { return Ok(()) };
    let cpu = Session::new()?;
    let c = || Array::new([4], vec![0.5f32, -1.0, 0.25, 0.125]);
    let rows = || Array::new([5, 4], numbers(20));
    assert_near(&session.function(polynomial)?.call((c(), 0.5))?, &cpu.function(polynomial)?.call((c(), 0.5))?);
    let sums = |xs: Tensor| map(xs, squares);
    assert_near(&session.function(sums)?.call(rows())?, &cpu.function(sums)?.call(rows())?);
    let nested = |xs: Tensor| map(xs, |row| map(row, |x| root(x.abs() + 0.5).0));
    assert_near(&session.function(nested)?.call(rows())?, &cpu.function(nested)?.call(rows())?);
    Ok(())
}

#[test]
fn a_gradient_pops_over_loops_that_pushed_nothing() -> Outcome {
    #[graph]
    fn shrunk(x: Tensor, table: Tensor) -> Tensor {
        let mut y = x;
        while y > 1.0 {
            y = y * table.row(y.cast::<i32>() % 3).sin();
        }
        y
    }
    #[graph]
    fn of_rows(xs: Tensor, table: Tensor) -> Tensor {
        let mut t = scalar(0.0);
        for row in xs {
            let y = map(row, |x| shrunk(x, table));
            t = (t + y.sum()).tanh();
        }
        gradients(t, table)
    }
    let Some((session, _)) = session()? else { return Ok(()) };
    let (there, here) = (session.function(of_rows)?, Session::new()?.function(of_rows)?);
    for low in [0, 1, 2] {
        // The rows from this one on push nothing.
        let xs = Array::new([3, 3], (0..9).map(|i| if i / 3 < low { 3.0 + i as f32 } else { 0.1 }).collect::<Vec<_>>());
        let arguments = (xs, [0.5f32, 0.7, 0.9]);
        assert_near(&there.call(arguments.clone())?, &here.call(arguments)?);
    }
    Ok(())
}

#[test]
fn a_long_sum_into_a_list_has_all_elements() -> Outcome {
    let Some((session, _)) = session()? else { return Ok(()) };
    let f = |x: Tensor, ids: Tensor<i32>| gradients(List::unstack(x).gather(ids).sum(), x);
    let arguments = || ([1.0f32, 2.0, 3.0], (0..70_000).map(|i| i % 3).collect::<Vec<i32>>());
    assert_eq!(session.function(f)?.call(arguments())?, Session::new()?.function(f)?.call(arguments())?);
    Ok(())
}
