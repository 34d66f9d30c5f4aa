//! Convolutions and small convolutional networks.
//!
//! `cargo bench --bench vision`

use anabranch_benches::vision as programs;
use divan::Bencher;

fn main() {
    divan::main();
}

#[divan::bench(sample_count = 40, sample_size = 1)]
fn conv_3x3_64_on_56x56_batch_8_forward(bencher: Bencher<'_, '_>) {
    let mut program = programs::conv_3x3_64_on_56x56_batch_8_forward().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 40, sample_size = 1)]
fn conv_3x3_64_on_56x56_batch_8_forward_backward(bencher: Bencher<'_, '_>) {
    let mut program = programs::conv_3x3_64_on_56x56_batch_8_forward_backward().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn two_conv_3x3_relu_forward(bencher: Bencher<'_, '_>) {
    let mut program = programs::two_conv_3x3_relu_forward().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn two_conv_3x3_relu_forward_backward(bencher: Bencher<'_, '_>) {
    let mut program = programs::two_conv_3x3_relu_forward_backward().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn separable_block_forward(bencher: Bencher<'_, '_>) {
    let mut program = programs::separable_block_forward().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn separable_block_forward_backward(bencher: Bencher<'_, '_>) {
    let mut program = programs::separable_block_forward_backward().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn lenet_batch_64_sgd(bencher: Bencher<'_, '_>) {
    let mut program = programs::lenet_batch_64_sgd().ready();
    bencher.bench_local(|| program.call());
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn cifar_quick_batch_100_sgd(bencher: Bencher<'_, '_>) {
    let mut program = programs::cifar_quick_batch_100_sgd().ready();
    bencher.bench_local(|| program.call());
}
