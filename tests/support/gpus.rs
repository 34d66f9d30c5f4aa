//! GPUs of this machine, and comparisons of their results.

use anabranch::{Array, GpuAdapter, gpu_adapters};

/// Returns an adapter, if this machine has one.
pub fn adapter() -> Option<GpuAdapter> {
    let adapter = gpu_adapters().into_iter().next();
    assert!(adapter.is_some() || std::env::var_os("ANABRANCH_GPU").is_none(), "this machine has no adapter");
    adapter
}

pub fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 7 % 11) as f32 / 11.0 - 0.5).collect()
}

#[track_caller]
pub fn assert_near(a: &Array<f32>, b: &Array<f32>) {
    assert_eq!(a.shape(), b.shape());
    for (a, b) in a.iter().zip(b.iter()) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} and {b}");
    }
}
