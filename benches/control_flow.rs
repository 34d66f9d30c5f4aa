//! Scalar loops and calls: the cost of an iteration and of a call.
//!
//! `cargo bench --bench control_flow`. A loop's time divided by its trips is the cost of one
//! iteration.

use anabranch::prelude::*;
use anabranch_benches::control_flow as programs;
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};

fn main() {
    divan::main();
}

#[divan::bench]
fn scalar_while(bencher: Bencher<'_, '_>) {
    let mut program = programs::scalar_while().ready();
    bencher.counter(ItemsCount::new(programs::TRIPS as usize)).bench_local(|| program.call());
}

#[divan::bench]
fn nested_while_with_a_branch(bencher: Bencher<'_, '_>) {
    let mut program = programs::nested_while_with_a_branch().ready();
    bencher.counter(ItemsCount::new(100usize * 100)).bench_local(|| program.call());
}

#[divan::bench]
fn gradient_of_1000_trips(bencher: Bencher<'_, '_>) {
    let mut program = programs::gradient_of_1000_trips().ready();
    bencher.counter(ItemsCount::new(1000usize)).bench_local(|| program.call());
}

#[divan::bench]
fn call_of_one_op(bencher: Bencher<'_, '_>) {
    let session = Session::new().unwrap();
    let f = session.function(|x: Tensor| x + 1.0).unwrap();
    bencher.bench(|| f.call(black_box(1.0)).unwrap());
}

#[divan::bench]
fn tanh_of_a_64x64_product_in_a_while(bencher: Bencher<'_, '_>) {
    let mut program = programs::tanh_of_a_64x64_product_in_a_while().ready();
    bencher.counter(ItemsCount::new(2000usize)).bench_local(|| program.call());
}

#[divan::bench]
fn lorenz_1000_steps(bencher: Bencher<'_, '_>) {
    let mut program = programs::lorenz_1000_steps().ready();
    bencher.counter(ItemsCount::new(1000usize)).bench_local(|| program.call());
}

#[divan::bench]
fn lorenz_gradient_of_1000_steps(bencher: Bencher<'_, '_>) {
    let mut program = programs::lorenz_gradient_of_1000_steps().ready();
    bencher.counter(ItemsCount::new(1000usize)).bench_local(|| program.call());
}

#[divan::bench]
fn reading_40000_rows(bencher: Bencher<'_, '_>) {
    let mut program = programs::reading_40000_rows().ready();
    bencher.counter(ItemsCount::new(40000usize)).bench_local(|| program.call());
}

#[divan::bench]
fn gradient_of_reading_5000_rows(bencher: Bencher<'_, '_>) {
    let mut program = programs::gradient_of_reading_5000_rows().ready();
    bencher.counter(ItemsCount::new(5000usize)).bench_local(|| program.call());
}

#[divan::bench]
fn gradient_of_reading_40000_rows(bencher: Bencher<'_, '_>) {
    let mut program = programs::gradient_of_reading_40000_rows().ready();
    bencher.counter(ItemsCount::new(40000usize)).bench_local(|| program.call());
}

#[divan::bench]
fn gradient_of_reading_40000_rows_of_32(bencher: Bencher<'_, '_>) {
    let mut program = programs::gradient_of_reading_40000_rows_of_32().ready();
    bencher.counter(ItemsCount::new(40000usize)).bench_local(|| program.call());
}
