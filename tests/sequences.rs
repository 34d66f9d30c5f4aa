//! Loops over sequences: the matmuls that passes move or merge produce the same values as the
//! original loop.

use anabranch::dsl::function::{GraphFn, trace_fn};
use anabranch::dsl::interp;
use anabranch::dsl::passes::Pipeline;
use anabranch::prelude::*;
use anabranch::{Graph, HostTensor, TensorType};

type S = Tensor<f64>;

/// Returns distinct values of moderate size.
fn numbers(shape: &[usize]) -> HostTensor {
    let n: usize = shape.iter().product();
    HostTensor::new(shape, (0..n).map(|i| ((i * 37 + 11) % 19) as f64 * 0.1 - 0.9).collect::<Vec<_>>())
}

fn matmuls(graph: &Graph, in_loops: bool) -> usize {
    let mut n = 0;
    graph.visit_nodes(graph.root(), &mut |node| {
        let data = graph.node(node);
        n += usize::from(data.op.name() == "matmul" && (data.region != graph.root()) == in_loops);
    });
    n
}

/// Checks values before and after the passes, on the interpreter and the plan. Returns the number
/// of matmuls inside and outside loops after the passes.
fn check<Args, F: GraphFn<Args>>(f: F, shapes: &[&[usize]]) -> [usize; 2] {
    let inputs: Vec<HostTensor> = shapes.iter().map(|shape| numbers(shape)).collect();
    let types: Vec<TensorType> = inputs.iter().map(HostTensor::ty).collect();
    let traced = trace_fn("f", &f, &types).unwrap_or_else(|e| panic!("{e}")).0;
    let interpreted = |graph: &Graph| {
        let found = interp::run(graph, &inputs, &mut Vec::new(), interp::InterpOptions::default());
        found.unwrap_or_else(|e| panic!("{e}"))
    };
    let expected = interpreted(&traced.graph);
    let session = Session::new().expect("a session on the CPU");
    let run = session.function(f).and_then(|f| f.call_host(&inputs)).unwrap_or_else(|e| panic!("{e}"));
    let mut graph = traced.graph;
    Pipeline::standard().run(&mut graph);
    let passed = interpreted(&graph);
    for (i, expected) in expected.iter().enumerate() {
        for (engine, found) in [("interpreter", &passed[i]), ("plan", &run[i])] {
            assert_eq!(found.ty(), expected.ty());
            for (a, b) in found.data::<f64>().iter().zip(expected.data::<f64>()) {
                assert!((a - b).abs() <= 1e-10 * b.abs().max(1.0), "{engine}, output {i}: {a}, not {b}\n{graph}");
            }
        }
    }
    [true, false].map(|in_loops| matmuls(&graph, in_loops))
}

#[graph]
fn recurrence(x: S, w: S, u: S) -> S {
    let mut h = zeros::<f64>([x.dim(1), u.dim(0)]);
    for row in x {
        h = (row.matmul(w) + h.matmul(u)).tanh();
    }
    (h * h).sum()
}

/// An LSTM with its gates in separate matrices.
#[graph]
fn gates(x: S, ws: [S; 4], us: [S; 4]) -> S {
    let mut h = zeros::<f64>([x.dim(1), us[0].dim(0)]);
    let mut c = h;
    let mut total = scalar(0.0);
    let mut t = scalar(0);
    while t < x.dim(0) as i32 {
        let row = x.index(t, 0);
        let gate = |i: usize| row.matmul(ws[i]) + h.matmul(us[i]);
        let (i, f, g, o) = (gate(0).sigmoid(), gate(1).sigmoid(), gate(2).tanh(), gate(3).sigmoid());
        c = f * c + i * g;
        h = o * c.tanh();
        total += (h * h).sum();
        t += 1;
    }
    total
}

/// A cell that no library has: the sequence backwards, a product with the transposed matrix, and
/// the state twice.
#[graph]
fn own_cell(x: S, w: S, u: S) -> S {
    let mut h = zeros::<f64>([x.dim(1), u.dim(0)]);
    let mut t = scalar(x.dim(0) as i32 - 1);
    while t >= 0 {
        let seen = x.index(t, 0).matmul(w.transpose(0, 1));
        let reset = (seen + h.matmul(u)).sigmoid();
        h = h * reset + (seen * (h * reset).matmul(u)).tanh() * (1.0 - reset);
        t -= 1;
    }
    h.sum()
}

#[test]
fn products_of_a_sequence_are_taken_out_of_the_loops() {
    let forward = check(recurrence, &[&[7, 2, 3], &[3, 5], &[5, 5]]);
    assert_eq!(forward, [1, 1], "what depends on the state stays");
    let with_gradients = |x: S, w: S, u: S| {
        let loss = recurrence(x, w, u);
        (loss, gradients(loss, (w, u)))
    };
    // In the loops: the matmul of the state, and the matmul that propagates its cotangent.
    assert_eq!(check(with_gradients, &[&[7, 2, 3], &[3, 5], &[5, 5]]), [2, 3]);
    // As many iterations as products are merged in: of a sum of different products one leaves, so
    // they stay apart.
    assert_eq!(check(with_gradients, &[&[12, 2, 3], &[3, 5], &[5, 5]]), [2, 3]);
    let with_all = |x: S, w: S, u: S| {
        let loss = recurrence(x, w, u);
        (loss, gradients(loss, (x, w, u)))
    };
    check(with_all, &[&[7, 2, 3], &[3, 5], &[5, 5]]);
}

#[test]
fn cells_of_users_have_the_same_values() {
    let with_gradients = |x: S, w: [S; 4], u: [S; 4]| {
        let loss = gates(x, w, u);
        (loss, gradients(loss, (w, u)))
    };
    let (w, u): (&[usize], &[usize]) = (&[3, 5], &[5, 5]);
    let [inside, outside] = check(with_gradients, &[&[9, 2, 3], w, w, w, w, u, u, u, u]);
    assert_eq!((inside, outside), (2, 3), "one product of the state there and one back, as in a cell with one matrix");
    let [inside, outside] = check(with_gradients, &[&[5, 2, 3], w, w, w, w, u, u, u, u]);
    assert_eq!((inside, outside), (8, 12), "in few iterations it does not pay to put matrices beside each other");
    let with_gradients = |x: S, w: S, u: S| {
        let loss = own_cell(x, w, u);
        (loss, gradients(loss, (w, u)))
    };
    check(with_gradients, &[&[6, 2, 3], &[5, 3], u]);
}

#[test]
fn merged_gates_have_the_bits_of_separate_ones() {
    let [x, w, u]: [&[usize]; 3] = [&[9, 2, 3], &[3, 5], &[5, 5]];
    let inputs: Vec<HostTensor> = [x, w, w, w, w, u, u, u, u].iter().map(|shape| numbers(shape)).collect();
    let run = |merged: bool| {
        let session = Session::builder().hoisting(merged).build().expect("a session on the CPU");
        let f = session.function(gates).unwrap_or_else(|e| panic!("{e}"));
        let found = f.call_host(&inputs).unwrap_or_else(|e| panic!("{e}"));
        found[0].data::<f64>()[0].to_bits()
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn second_derivatives_are_the_same() {
    let f = |x: S, w: S, u: S| {
        let dw = gradients(recurrence(x, w, u), w);
        gradients((dw * dw).sum(), (w, u))
    };
    check(f, &[&[4, 2, 3], &[3, 5], &[5, 5]]);
}

#[test]
fn a_sequence_of_unknown_length_stays_in_its_loop() {
    #[graph]
    fn stacked(x: S, w: S) -> S {
        let (mut list, mut i) = (List::<f64>::new([3]), scalar(0));
        while i < 5 {
            list.push(x * i.cast::<f64>());
            i += 1;
        }
        let rows = list.stack();
        let (mut s, mut j) = (zeros::<f64>([4]), scalar(0));
        while j < 5 {
            s = (s + rows.row(j).matmul(w)).tanh();
            j += 1;
        }
        s
    }
    assert_eq!(check(stacked, &[&[3], &[3, 4]]), [1, 0]);
}

#[test]
fn so_many_trips_that_their_products_have_no_size_change_nothing() {
    #[graph]
    fn many(go: S, a: S, b: S) -> S {
        let mut s = zeros::<f64>([4, 4]);
        if go > 1.0 {
            let mut i = scalar(0i64);
            while i < (1i64 << 61) {
                s += a.matmul(b);
                i += 1;
            }
        }
        s
    }
    check(many, &[&[], &[4, 1], &[1, 4]]);
}

#[test]
fn an_index_past_the_end_of_a_sequence_fails_where_it_is_read() {
    #[graph]
    fn rows(x: S, w: S, printed: &Var<i32>) -> S {
        let (mut s, mut i) = (zeros::<f64>([4]), scalar(0));
        while i < 6 {
            let row = x.row(i);
            println!("{i}");
            printed.set(printed.get() + 1);
            s = (s + row.matmul(w)).tanh();
            i += 1;
        }
        s
    }
    let inputs = [numbers(&[5, 3]), numbers(&[3, 4])];
    let errors = [true, false].map(|interpreted| {
        let lines = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
        let seen = lines.clone();
        let print = move |_, text: &str| seen.lock().expect("no print panics").push_str(text);
        let session = Session::builder().print_to(print).build().expect("a session on the CPU");
        let printed = Var::<i32>::new("printed", 0);
        let f = session.function(|x: S, w: S| rows(x, w, &printed)).unwrap_or_else(|e| panic!("{e}"));
        let error = f.interpreted(interpreted).call_host(&inputs).expect_err("there are 5 rows");
        let lines = lines.lock().expect("no print panics").clone();
        (error.message.clone(), error.loc().map(|loc| (loc.line, loc.column)), lines)
    });
    assert_eq!(errors[0], errors[1]);
    assert_eq!(errors[0].2, "0\n1\n2\n3\n4\n");
}

#[test]
fn trips_that_only_the_data_knows_change_nothing() {
    #[graph]
    fn some(x: S, w: S, u: S) -> S {
        let mut h = zeros::<f64>([x.dim(1), u.dim(0)]);
        let mut t = scalar(0);
        while t < 5 && h.sum() < 1.0 {
            h = (x.index(t, 0).matmul(w) + h.matmul(u)).tanh();
            t += 1;
        }
        h.sum()
    }
    let with_gradients = |x: S, w: S, u: S| {
        let loss = some(x, w, u);
        (loss, gradients(loss, (w, u)))
    };
    assert_eq!(check(with_gradients, &[&[7, 2, 3], &[3, 5], &[5, 5]])[1], 0);
}
