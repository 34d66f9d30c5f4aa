//! Training steps of whole models.
//!
//! `cargo bench --bench training`

use anabranch_benches::training as programs;
use divan::Bencher;

fn main() {
    divan::main();
}

#[divan::bench]
fn digits_step(bencher: Bencher<'_, '_>) {
    let mut program = programs::digits_step().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn lstm_512_of_separate_gates_batch_32_steps_50(bencher: Bencher<'_, '_>) {
    let mut program = programs::lstm_512_of_separate_gates_batch_32_steps_50().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn lstm_512_batch_32_steps_50(bencher: Bencher<'_, '_>) {
    let mut program = programs::lstm_512(32, 50).ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn lstm_512_batch_32_steps_200(bencher: Bencher<'_, '_>) {
    let mut program = programs::lstm_512(32, 200).ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn lstm_512_batch_128_steps_50(bencher: Bencher<'_, '_>) {
    let mut program = programs::lstm_512(128, 50).ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn lstm_512_batch_128_steps_200(bencher: Bencher<'_, '_>) {
    let mut program = programs::lstm_512(128, 200).ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn mlp_784_1024_1024_10_batch_128(bencher: Bencher<'_, '_>) {
    let mut program = programs::mlp_784_1024_1024_10_batch_128().ready();
    bencher.bench_local(|| program.call());
}
