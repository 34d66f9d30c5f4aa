//! Plans do not allocate memory after their first runs, as a counting allocator checks.

#[expect(dead_code, reason = "the other tests use more of it")]
mod support;

use anabranch_dsl::ops::{AttentionMask, ConvOptions, PoolOptions};
use anabranch_dsl::{AnyValue, DType, Graph, HostTensor, derivatives, trace};
use anabranch_runtime::Program;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use support::while_loop;

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded to the system's allocator unchanged; counting uses a thread-local
// that needs no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller upholds the contract of `alloc`, which is that of `System`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above, so from `System`, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn constant(x: i32) -> AnyValue {
    trace::constant(HostTensor::scalar(x))
}

/// Returns the number of allocations in the third of three equal runs.
fn of_third_run(inputs: &[HostTensor], f: impl FnOnce(&[AnyValue]) -> Vec<AnyValue>) -> usize {
    let traced = support::traced(inputs, f);
    let mut vars: Vec<HostTensor> = traced.vars.iter().map(|v| v.init().clone()).collect();
    of_third_run_of(traced.graph, inputs, &mut vars)
}

fn of_third_run_of(graph: Graph, inputs: &[HostTensor], vars: &mut Vec<HostTensor>) -> usize {
    let program = Program::new(graph).unwrap_or_else(|e| panic!("{e}"));
    let mut outputs = Vec::new();
    let mut run = || program.run_into(inputs, vars, &mut outputs).unwrap_or_else(|e| panic!("{e}"));
    run();
    run();
    let before = COUNT.get();
    run();
    COUNT.get() - before
}

#[test]
fn counting_counts() {
    let before = COUNT.get();
    drop(std::hint::black_box(vec![1, 2, 3]));
    assert_eq!(COUNT.get() - before, 1);
}

#[test]
fn scalar_loops_take_no_memory() {
    let n = of_third_run(&[HostTensor::scalar(1000)], |x| {
        while_loop(
            &[constant(0), constant(1)],
            |s| s[0].lt(x[0]),
            |s| vec![s[0].add(constant(1)), s[1].mul(constant(3)).rem(constant(1001))],
        )
    });
    assert_eq!(n, 0);
}

#[test]
fn a_loop_over_tensors_and_its_gradient_take_no_memory() {
    let x = HostTensor::new([8, 8], (0..64).map(|i| f64::from(i) / 100.0).collect::<Vec<_>>());
    let n = of_third_run(&[x, HostTensor::scalar(20)], |x| {
        let r = while_loop(
            &[x[0], constant(0)],
            |s| s[1].lt(x[1]),
            |s| {
                let (a, b) = (s[0].matmul(x[0]).tanh(), s[0].softmax(-1));
                let c = AnyValue::concat(&[a.slice(0, 0, 4), b.slice(0, 4, 8)], 0);
                vec![c.add(a.sum_axis(0).broadcast_to([8, 8])).mul(x[0].permute([1, 0])), s[1].add(constant(1))]
            },
        );
        let loss = r[0].mul(r[0]).sum();
        let gradient = derivatives::vjp(&[(loss, loss.number(1.0))], &[x[0]]);
        [vec![loss], gradient].concat()
    });
    assert_eq!(n, 0);
}

/// Returns the number of allocations in the first run of a loop with `trips` iterations that counts
/// up or down and saves scalars and matrices for its gradient.
fn of_first_run(trips: i32, is_up: bool) -> usize {
    let inputs = [HostTensor::scalar(1.0f64), HostTensor::new([2, 2], vec![0.5f64; 4]), HostTensor::scalar(trips)];
    let traced = support::traced(&inputs, |x| {
        let (first, last, step) = if is_up { (constant(0), x[2], 1) } else { (x[2], constant(0), -1) };
        let r = while_loop(
            &[x[0], x[1], first],
            |s| if is_up { s[2].lt(last) } else { last.lt(s[2]) },
            |s| vec![s[0].mul(s[0]).sin(), s[1].mul(s[1]).tanh(), s[2].add(constant(step))],
        );
        let loss = r[0].add(r[1].sum());
        derivatives::vjp(&[(loss, loss.number(1.0))], &x[..2])
    });
    let program = Program::new(traced.graph).unwrap_or_else(|e| panic!("{e}"));
    let before = COUNT.get();
    program.run(&inputs, &mut vec![]).unwrap_or_else(|e| panic!("{e}"));
    COUNT.get() - before
}

#[test]
fn a_loop_that_counts_sizes_what_it_saves_at_its_entry() {
    // Excludes allocations that happen once per process.
    of_first_run(1, true);
    for is_up in [true, false] {
        let few = of_first_run(4, is_up);
        assert!(few > 0, "what the loop saves lies in memory");
        assert_eq!(of_first_run(3000, is_up), few, "stacks grow once, when the loop begins (up: {is_up})");
        assert!(of_first_run(0, is_up) <= few);
    }
}

#[test]
fn a_layer_norm_and_its_gradients_take_no_memory() {
    let numbers = |shape: &[usize]| {
        let n = shape.iter().product::<usize>();
        HostTensor::new(shape, (0..n).map(|i| (i % 7) as f32 - 3.0).collect::<Vec<_>>())
    };
    let n = of_third_run(&[numbers(&[60, 700]), numbers(&[700]), numbers(&[700])], |x| {
        let y = x[0].layer_norm(x[1], x[2], 1e-5);
        let loss = y.mul(y.softmax(-1)).sum();
        [vec![y, loss], derivatives::vjp(&[(loss, loss.number(1.0))], x)].concat()
    });
    assert_eq!(n, 0);
}

#[test]
fn convolutions_pooling_and_their_gradients_take_no_memory() {
    let numbers = |shape: &[usize]| {
        let n = shape.iter().product::<usize>();
        HostTensor::new(shape, (0..n).map(|i| (i % 7) as f32 - 3.0).collect::<Vec<_>>())
    };
    let n = of_third_run(&[numbers(&[5, 2, 6, 6]), numbers(&[4, 2, 3, 3])], |x| {
        let y = x[0].conv(x[1], &ConvOptions::<2>::new().padding(1).stride([2, 1]));
        let pooled = y.max_pool(&PoolOptions::new(2)).avg_pool(&PoolOptions::new([2]).padding(1));
        let loss = pooled.mul(pooled).sum();
        [vec![loss], derivatives::vjp(&[(loss, loss.number(1.0))], x)].concat()
    });
    assert_eq!(n, 0);
}

#[test]
fn a_loop_over_lists_and_its_gradient_takes_no_memory() {
    let text = "graph @f(%x: f64[100, 4], %n: i32[]) -> (f64[100, 4], i32[]) {
        %0 = constant 0 : i32[]
        %l = list_unstack %x
        %z = list_zeros_like %l
        %e = list_new %0 : list<f64[4]>
        %all, %dl, %i = while (%all = %e, %dl = %z, %i = %0 | %l = %l, %n = %n) cond {
            %p = lt %i, %n
            yield %p
        } body {
            %row = list_read %l, %i
            %y = tanh %row
            %more = list_push %all, %y
            %d = list_accumulate %dl, %i, %y
            %1 = constant 1 : i32[]
            %j = add %i, %1
            yield %more, %d, %j
        }
        %s = list_stack %dl : f64[100, 4]
        %rest, %last = list_pop %all
        %len = list_len %rest
        return %s, %len
    }";
    let graph = Graph::parse(text, "lists.ir").unwrap_or_else(|e| panic!("{}", e[0]));
    let x = HostTensor::new([100, 4], (0..400).map(|i| f64::from(i) / 100.0).collect::<Vec<_>>());
    assert_eq!(of_third_run_of(graph, &[x, HostTensor::scalar(100)], &mut vec![]), 0);
}

#[test]
fn variables_change_in_place() {
    let var = anabranch_dsl::AnyVar::new("w", HostTensor::new([100], vec![1.0f32; 100]));
    let n = of_third_run(&[HostTensor::scalar(0.5f32)], |x| {
        let w = trace::read_var(&var);
        trace::assign_var(&var, w.mul(x[0]));
        vec![w.sum()]
    });
    assert_eq!(n, 0);
}

/// A training step with `f32` parameters and `bf16` activations.
#[test]
fn a_step_of_mixed_precision_takes_no_memory() {
    let numbers = |shape: &[usize]| {
        let n = shape.iter().product::<usize>();
        HostTensor::new(shape, (0..n).map(|i| (i % 7) as f32 / 10.0 - 0.3).collect::<Vec<_>>())
    };
    let var = anabranch_dsl::AnyVar::new("w", numbers(&[20, 20]));
    let n = of_third_run(&[numbers(&[30, 20]), HostTensor::scalar(5)], |x| {
        let w = trace::read_var(&var);
        let r = while_loop(
            &[x[0].cast(DType::BF16), constant(0)],
            |s| s[1].lt(x[1]),
            |s| vec![s[0].matmul(w.cast(DType::BF16)).tanh(), s[1].add(constant(1))],
        );
        let loss = r[0].cast(DType::F32).square().sum();
        let slope = derivatives::vjp(&[(loss, loss.number(1.0))], &[w])[0];
        trace::assign_var(&var, w - slope * 0.01);
        vec![loss]
    });
    assert_eq!(n, 0);
}

#[test]
fn attention_and_its_gradients_take_no_memory() {
    let x = HostTensor::new([3, 5, 4], (0..60).map(|i| (i % 7) as f32 - 3.0).collect::<Vec<_>>());
    let n = of_third_run(&[x], |x| {
        let y = x[0].scaled_dot_product_attention(x[0], x[0], AttentionMask::Causal);
        let loss = y.mul(y).sum();
        [vec![loss], derivatives::vjp(&[(loss, loss.number(1.0))], x)].concat()
    });
    assert_eq!(n, 0);
}

#[test]
fn rows_added_to_a_variable_take_no_memory() {
    let text = "graph @f(%ids: i32[3], %rows: f32[3, 2]) -> f32[3, 2] {
        var @table: f32[50, 2]
        %table = read @table
        %y = take %table, %ids {axis=0}
        %next = scatter_add %table, %ids, %rows {axis=0}
        assign @table, %next
        return %y
    }";
    let graph = Graph::parse(text, "f.ir").unwrap_or_else(|e| panic!("{}", e[0]));
    let inputs = [HostTensor::new([3], vec![7, 0, 7]), HostTensor::new([3, 2], vec![1.0f32; 6])];
    let mut vars = vec![HostTensor::new([50, 2], vec![0.0f32; 100])];
    assert_eq!(of_third_run_of(graph, &inputs, &mut vars), 0);
    assert_eq!(vars[0].data::<f32>()[14], 6.0);
}
