//! Training of embedding tables: the cost of a step depends on the rows that are read, and the
//! results equal those of updates to the whole table.

use crate::support::gpus::adapter;
use anabranch::nn::Embedding;
use anabranch::optim::{AdaGrad, Adam, Optimizer, Sgd, model_gradients};
use anabranch::prelude::*;
use anabranch::{DType, SessionBuilder, TensorType, gradients};
use std::sync::{Arc, Mutex};

const ENTRIES: usize = 1000;
const SIZE: usize = 4;

/// Returns small integers, whose sums are exact in any order.
fn whole(shape: [usize; 2]) -> Array<f32> {
    Array::new(shape, (0..shape[0] * shape[1]).map(|i| ((i * 37 + 5) % 23) as f32 - 11.0).collect())
}

fn table() -> Embedding {
    Embedding { table: Var::new("table", whole([ENTRIES, SIZE])) }
}

/// Returns `table - rate * gradient` for the rows that are read with the given gradients.
fn expected(rate: f32, rows: &[(i32, [f32; SIZE])]) -> Vec<f32> {
    let mut table = whole([ENTRIES, SIZE]).to_vec();
    for (id, gradient) in rows {
        for (x, g) in table[*id as usize * SIZE..].iter_mut().zip(gradient) {
            *x -= rate * g;
        }
    }
    table
}

fn ty(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType::new(dtype, shape)
}

/// Returns the size of the arena in bytes, read from the text of a plan.
fn arena_bytes(plan: &str) -> usize {
    let text = plan.split("in an arena of ").nth(1).and_then(|rest| rest.split(' ').next());
    text.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("the size of the arena is in the plan\n{plan}"))
}

#[test]
fn a_step_of_gradient_descent_changes_the_rows_that_were_read_and_holds_no_table() {
    for interpreted in [false, true] {
        let (table, sgd) = (table(), Sgd::new(0.25));
        let session = Session::new().unwrap();
        let step = |ids: Tensor<i32>, others: Tensor<i64>, by: Tensor| {
            let (a, b) = (table.forward(ids), table.forward(others));
            let loss = (a * by).sum() - (b * 2.0).sum();
            sgd.minimize(loss, &table);
            loss
        };
        let step = session.function(step).unwrap().interpreted(interpreted);
        let by = whole([3, SIZE]);
        // Row 7 is read three times: twice by one look-up and once by the other look-up.
        step.call(([7, 999, 7], [7i64, 0], &by)).unwrap();
        let gradient = |i: usize| std::array::from_fn(|j| by.to_vec()[i * SIZE + j]);
        let rows = [(7, gradient(0)), (999, gradient(1)), (7, gradient(2)), (7, [-2.0; SIZE]), (0, [-2.0; SIZE])];
        assert_eq!(session.get(&table.table).unwrap().to_vec(), expected(0.25, &rows));
        if !interpreted {
            let types = [ty(DType::I32, &[3]), ty(DType::I64, &[2]), ty(DType::F32, &[3, SIZE])];
            let plan = step.explain(&types).unwrap();
            assert!(arena_bytes(&plan) < ENTRIES, "{plan}");
            assert_eq!(plan.matches("variable0: f32[1000, 4] += ").count(), 2, "{plan}");
        }
    }
}

#[test]
fn a_table_that_is_also_a_matrix_gets_both_gradients() {
    let outcomes = [false, true].map(|interpreted| {
        let (table, sgd) = (table(), Sgd::new(0.25));
        let session = Session::new().unwrap();
        let step = |ids: Tensor<i32>| {
            let x = table.forward(ids);
            let scores = x.matmul(table.table.get().transpose(0, 1));
            sgd.minimize(scores.sum(), &table);
        };
        let step = session.function(step).unwrap().interpreted(interpreted);
        step.call([3, 3, 8]).unwrap();
        session.get(&table.table).unwrap().to_vec()
    });
    assert_eq!(outcomes[0], outcomes[1]);
    assert_ne!(outcomes[0], whole([ENTRIES, SIZE]).to_vec());
}

#[test]
fn optimizers_with_moments_are_those_on_the_whole_table() {
    fn trained(optimizer: impl Optimizer, interpreted: bool) -> Vec<f32> {
        let table = table();
        let session = Session::new().unwrap();
        let step = |ids: Tensor<i32>| {
            let rows = table.forward(ids);
            let loss = (rows * rows).sum();
            optimizer.minimize(loss, &table);
        };
        let step = session.function(step).unwrap().interpreted(interpreted);
        for ids in [[1, 2, 1], [3, 1, 1], [2, 2, 2]] {
            step.call(ids).unwrap();
        }
        session.get(&table.table).unwrap().to_vec()
    }
    fn compare(plan: Vec<f32>, interpreted: Vec<f32>) {
        assert_ne!(plan, whole([ENTRIES, SIZE]).to_vec());
        for (p, i) in plan.iter().zip(&interpreted) {
            assert!((p - i).abs() <= 1e-5 * i.abs().max(1.0), "{p} is not {i}");
        }
    }
    let momentum = || Sgd::new(0.1).momentum(0.9).nesterov();
    compare(trained(momentum(), false), trained(momentum(), true));
    compare(trained(Adam::new(0.1), false), trained(Adam::new(0.1), true));
}

/// Trains a table by a rule that leaves rows without a gradient as they are, three steps. Returns
/// its bits, and the plan of a step if it is not interpreted. If `is_hidden`, the gradient is also
/// an operand of an operation that does not show that most of its rows are zero.
fn trained_rows(optimizer: &impl Optimizer, interpreted: bool, is_hidden: bool, shape: &[usize]) -> (Vec<u32>, String) {
    let size: usize = shape[1..].iter().product();
    let number = |i: usize| if i.is_multiple_of(3) { -0.0 } else { (i * 37 % 23) as f32 / 7.0 - 1.5 };
    let start = Array::new(shape, (0..shape[0] * size).map(number).collect());
    let table = Var::<f32>::new("table", start);
    let session = Session::builder().interpreted(interpreted).build().unwrap();
    let step = |ids: Tensor<i32>, others: Tensor<i64>, ones: Tensor| {
        let (a, b) = (table.get().take(ids, 0), table.get().take(others, 0));
        let loss = a.square().sum() / 3.0 - (b * 0.7).sin().sum();
        let mut gradients = model_gradients(loss, &table);
        if is_hidden {
            gradients[0].1 = gradients[0].1 * ones.untyped();
        }
        optimizer.apply(0.1, &gradients);
    };
    let step = session.function(step).unwrap();
    let ones = Array::new(shape, vec![1.0f32; shape[0] * size]);
    // Rows are read again, in a step and in later steps. The gradient of row 0 is zero.
    let all_ids = [([[1, 5, 1], [39, 5, 0]], [5i64, 7]), ([[0, 1, 2], [3, 4, 5]], [7, 7]), ([[9; 3]; 2], [1, 9])];
    for (ids, others) in all_ids {
        step.call((ids, others, &ones)).unwrap();
    }
    let plan = || step.explain(&[ty(DType::I32, &[2, 3]), ty(DType::I64, &[2]), ty(DType::F32, shape)]).unwrap();
    let bits = session.get(&table).unwrap().to_vec().into_iter().map(f32::to_bits).collect();
    (bits, if interpreted { String::new() } else { plan() })
}

#[test]
fn rules_that_leave_unread_rows_have_the_bits_and_not_the_cost_of_whole_tables() {
    fn check<O: Optimizer>(optimizer: fn() -> O, n_vars: usize) {
        for shape in [&[1000, 4][..], &[500], &[400, 2, 3]] {
            for interpreted in [false, true] {
                let (rows, plan) = trained_rows(&optimizer(), interpreted, false, shape);
                let (whole, _) = trained_rows(&optimizer(), interpreted, true, shape);
                assert_eq!(rows, whole, "{shape:?}");
                if !interpreted {
                    assert_eq!(plan.matches(" += ").count(), n_vars, "{plan}");
                    assert!(arena_bytes(&plan) < 2 * shape.iter().product::<usize>(), "{plan}");
                }
            }
        }
    }
    check(|| AdaGrad::new(0.1), 2);
    check(|| Adam::new(0.1).lazy(), 3);
}

#[test]
fn a_step_that_fails_leaves_all_tables_as_they_were() {
    let (a, b) = (table(), table());
    let session = Session::new().unwrap();
    let step = |ids: Tensor<i32>, others: Tensor<i32>| {
        let add =
            |t: &Embedding, ids: Tensor<i32>| t.table.set(t.table.get().scatter_add(ids, full([2, SIZE], 1.0), 0));
        add(&a, ids);
        add(&b, others);
    };
    let run = session.function(step).unwrap();
    let error = run.call(([1, 2], [3, 1000])).unwrap_err();
    assert!(error.message.contains("index 1000 at [1] is out of bounds"), "{error}");
    let same = session.function(step).unwrap().interpreted(true).call(([1, 2], [3, 1000])).unwrap_err();
    assert_eq!(error, same);
    for t in [&a, &b] {
        assert_eq!(session.get(&t.table).unwrap().to_vec(), whole([ENTRIES, SIZE]).to_vec());
    }
    run.call(([1, 2], [3, 999])).unwrap();
    let rows = [(3, [-1.0; SIZE]), (999, [-1.0; SIZE])];
    assert_eq!(session.get(&b.table).unwrap().to_vec(), expected(1.0, &rows));
}

#[test]
fn a_new_value_that_is_seen_is_computed_where_it_stands() {
    let table = table();
    let session = Session::new().unwrap();
    let step = |ids: Tensor<i32>| {
        table.table.set(table.table.get().scatter_add(ids, full([1, SIZE], 3.0), 0));
        table.forward(ids)
    };
    let step = session.function(step).unwrap();
    let first = whole([ENTRIES, SIZE]).to_vec()[..SIZE].to_vec();
    for times in [3.0, 6.0] {
        let want: Vec<f32> = first.iter().map(|x| x + times).collect();
        assert_eq!(step.call([0]).unwrap().to_vec(), want);
    }
}

#[test]
fn rows_and_their_numbers_may_lie_in_variables_that_change_too() {
    let (table, ids, rows) =
        (table(), Var::<i32>::new("ids", [5, 6]), Var::<f32>::new("rows", [[1.0; SIZE], [2.0; SIZE]]));
    let session = Session::new().unwrap();
    let step = || {
        let (at, add) = (ids.get(), rows.get());
        rows.set(add * 10.0);
        ids.set(at + 1);
        table.table.set(table.table.get().scatter_add(at, add, 0));
    };
    let step = session.function(step).unwrap();
    step.call(()).unwrap();
    step.call(()).unwrap();
    let want = [(5, [-1.0; SIZE]), (6, [-2.0; SIZE]), (6, [-10.0; SIZE]), (7, [-20.0; SIZE])];
    assert_eq!(session.get(&table.table).unwrap().to_vec(), expected(1.0, &want));
}

#[test]
fn look_ups_in_a_loop_add_rows_in_each_iteration() {
    #[graph]
    fn total(table: &Embedding, ids: Tensor<i32>) -> Tensor {
        let mut sum = scalar(0.0);
        for id in ids {
            let row = table.forward(id);
            sum += (row * row).sum();
        }
        sum
    }
    let outcomes = [false, true].map(|interpreted| {
        let (table, sgd) = (table(), Sgd::new(0.25));
        let session = Session::new().unwrap();
        let step = |ids: Tensor<i32>| sgd.minimize(total(&table, ids), &table);
        let step = session.function(step).unwrap().interpreted(interpreted);
        step.call([4, 0, 4, 9]).unwrap();
        let graph = step.graph(&[ty(DType::I32, &[4])]).unwrap().to_string();
        assert!(interpreted || !graph.contains("= add %table"), "{graph}");
        session.get(&table.table).unwrap().to_vec()
    });
    assert_eq!(outcomes[0], outcomes[1]);
}

#[test]
fn an_index_that_is_out_of_range_fails_before_a_later_print() {
    #[graph]
    fn looked_up(table: Tensor, ids: Tensor<i32>) -> Tensor {
        let rows = table.take(ids, 0);
        println!("after the lookup of {}", ids);
        (rows * 2.0 + 1.0).sum_axis(1)
    }
    let run = |interpreted: bool, ids: [i32; 2]| {
        let log = Arc::new(Mutex::new(String::new()));
        let to = log.clone();
        let print_to = move |_, text: &str| to.lock().unwrap().push_str(text);
        let session = Session::builder().interpreted(interpreted).print_to(print_to).build().unwrap();
        let rows = session.function(looked_up).unwrap().call((whole([4, 3]), ids));
        let printed = log.lock().unwrap().clone();
        (rows.map(|rows| rows.to_vec()), printed)
    };
    for ids in [[0, 3], [1, 4], [-1, 0]] {
        let (rows, printed) = run(false, ids);
        assert_eq!((&rows, &printed), (&run(true, ids).0, &run(true, ids).1));
        assert_eq!(rows.is_ok(), !printed.is_empty(), "{rows:?} after {printed}");
    }
}

#[test]
fn bags_of_rows_are_looked_up_in_maps_and_loops() {
    #[graph]
    fn bags(table: Tensor, bags: Tensor<i32>, by: Tensor) -> (Tensor, Tensor, Tensor) {
        let sums = map(bags, |ids| (table.take(ids, 0) * by).sum_axis(0));
        let (mut total, mut changed) = (by, table);
        for i in range(0..3) {
            let rows = changed.take(bags.row(i), 0);
            changed = changed.scatter_add(bags.row(i), by, 0);
            total = rows * 0.5 + total;
        }
        (sums, total, gradients((table.take(bags.row(1), 0) * by).square().sum(), table))
    }
    let table: Array<f32> = whole([7, 40]);
    let of = |rows: [[i32; 4]; 3]| Array::new([3, 4], rows.concat());
    for rows in
        [[[0, 1, 6, 1], [2, 2, 2, 2], [5, 4, 3, 0]], [[0, 1, 2, 3], [0, 7, 0, 0], [0; 4]], [[0; 4], [0; 4], [-3; 4]]]
    {
        let run = |builder: SessionBuilder| {
            let session = builder.build().unwrap();
            session.function(bags).unwrap().call((&table, of(rows), whole([4, 40])))
        };
        let expected = run(Session::builder().interpreted(true));
        let on_gpu = adapter().map(|adapter| Session::builder().gpu(&adapter).device("/gpu:0"));
        for builder in [Session::builder()].into_iter().chain(on_gpu) {
            match (run(builder), &expected) {
                (Ok(a), Ok(b)) => assert_eq!(a, *b),
                (Err(a), Err(b)) => assert_eq!((&a.message, a.loc()), (&b.message, b.loc())),
                (a, b) => panic!("{a:?} and {b:?}"),
            }
        }
    }
}
