//! Tables of vectors, and attention.
//!
//! `cargo bench --bench tables`

use anabranch_benches::tables as programs;
use divan::Bencher;

fn main() {
    divan::main();
}

#[divan::bench(sample_count = 200, sample_size = 1)]
fn gather_8192_of_100000_x_64(bencher: Bencher<'_, '_>) {
    let mut program = programs::gather_8192_of_100000_x_64().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 100, sample_size = 1)]
fn sgd_of_8192_of_100000_x_64(bencher: Bencher<'_, '_>) {
    let mut program = programs::sgd_of_8192_of_100000_x_64().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 40, sample_size = 1)]
fn descent_by_a_table_of_rates_of_8192_of_100000_x_64(bencher: Bencher<'_, '_>) {
    let mut program = programs::descent_by_a_table_of_rates_of_8192_of_100000_x_64().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 40, sample_size = 1, args = [false, true])]
fn adagrad_of_8192_of_100000_x_64(bencher: Bencher<'_, '_>, of_whole_table: bool) {
    let mut program = programs::adagrad_of_8192_of_100000_x_64(of_whole_table).ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 40, sample_size = 1, args = [false, true])]
fn lazy_adam_of_8192_of_100000_x_64(bencher: Bencher<'_, '_>, of_whole_table: bool) {
    let mut program = programs::lazy_adam_of_8192_of_100000_x_64(of_whole_table).ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn transformer_4_blocks_256_forward_and_backward(bencher: Bencher<'_, '_>) {
    let mut program = programs::transformer_4_blocks_256_forward_and_backward().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn causal_attention_8_heads_2048_positions(bencher: Bencher<'_, '_>) {
    let mut program = programs::causal_attention_8_heads_2048_positions().ready();
    bencher.bench_local(|| program.call());
}
