//! Tracing and compiling: the time must grow linearly with the graph.
//!
//! `cargo bench --bench compile`

use anabranch::prelude::*;
use divan::Bencher;
use divan::counter::ItemsCount;

fn main() {
    divan::main();
}

/// A chain of `nodes` operations on a small vector, two kinds in turn, so that nothing folds or merges.
fn chain(x: Tensor, nodes: usize) -> Tensor {
    (0..nodes).fold(x, |y, i| if i % 2 == 0 { y * x } else { y + x })
}

#[divan::bench(args = [10, 1_000, 100_000])]
fn trace_and_compile(bencher: Bencher<'_, '_>, nodes: usize) {
    let session = Session::new().unwrap();
    let input = [anabranch::TensorType::new(anabranch::DType::F32, [8])];
    bencher.counter(ItemsCount::new(nodes)).bench(|| {
        let f = session.function(|x: Tensor| chain(x, nodes)).unwrap();
        f.compile(&input).unwrap();
    });
}

#[divan::bench(args = [10, 1_000, 100_000])]
fn trace_differentiate_and_compile(bencher: Bencher<'_, '_>, nodes: usize) {
    let session = Session::new().unwrap();
    let input = [anabranch::TensorType::new(anabranch::DType::F32, [8])];
    bencher.counter(ItemsCount::new(nodes)).bench(|| {
        let f = session.function(|x: Tensor| gradients(chain(x, nodes / 3).sum(), x)).unwrap();
        f.compile(&input).unwrap();
    });
}
