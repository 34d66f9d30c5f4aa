//! Matmuls of square and of narrow matrices, called one after the other or after a pause each, and
//! the processor's rate of multiplications and additions, measured alternately. Those whose names
//! end with `_in_bf16` may round their operands, and are left out where the processor multiplies
//! numbers of 16 bits no faster.
//!
//! `cargo bench --bench products`, or with parts of names:
//! `cargo bench --bench products -- product_512x512x512`

use anabranch::{AnyValue, HostTensor};
use anabranch_runtime::{MatmulPrecision, Program};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Rows, inner extent and columns.
const SHAPES: &[[usize; 3]] = &[
    [64, 64, 64],
    [256, 256, 256],
    [512, 512, 512],
    [1024, 1024, 1024],
    [2048, 2048, 2048],
    [1, 1024, 1024],
    [1, 4096, 4096],
    [32, 512, 2048],
    [32, 2048, 512],
    [128, 1024, 1024],
    [128, 4096, 4096],
];
/// The number of rounds, of which the median and the best are shown.
const ROUNDS: usize = 11;
/// How long the caller sleeps before a call after a pause. Threads that spin have gone to sleep
/// then.
const PAUSE: Duration = Duration::from_millis(5);

fn main() {
    // `cargo test --benches` also runs this, and must not measure.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let asked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    println!(
        "f32, {threads} threads; GFLOP/s of calls one after the other: median (best), and the median's part of the"
    );
    println!("peak in the same run; then the median of calls after a pause of {PAUSE:?}");
    let precisions = [("", MatmulPrecision::Full), ("_in_bf16", MatmulPrecision::Bf16)];
    for (&[m, k, n], (suffix, precision)) in SHAPES.iter().flat_map(|shape| precisions.map(|p| (shape, p))) {
        let name = format!("product_{m}x{k}x{n}{suffix}");
        if !asked.is_empty() && !asked.iter().any(|part| name.contains(part)) {
            continue;
        }
        let flops = 2.0 * (m * k * n) as f64;
        let Some(mut product) = product([m, k, n], precision) else { continue };
        let repeat = (4e9 / flops).ceil() as usize;
        let (mut rates, mut peaks, mut rested) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            std::thread::sleep(PAUSE);
            peaks.push(peak(threads));
            std::thread::sleep(PAUSE);
            rested.push(rate(flops, 1, &mut product));
            rates.push(rate(flops, repeat, &mut product));
        }
        let [rate, peak, rested] = [&mut rates, &mut peaks, &mut rested].map(|all| {
            all.sort_by(f64::total_cmp);
            all[ROUNDS / 2]
        });
        let (best, part) = (rates[ROUNDS - 1], rate / peak * 100.0);
        println!("{name:<32}{rate:>6.1} ({best:>6.1}), {part:>3.0} % of {peak:.1}; after a pause {rested:>6.1}");
    }
}

/// Returns a matmul of two matrices whose result is in reused memory, or `None` if the processor
/// computes it in full precision although it may round the operands.
fn product([m, k, n]: [usize; 3], precision: MatmulPrecision) -> Option<impl FnMut()> {
    let matrix = |rows: usize, columns: usize| {
        let at = |i: usize| (i * 7919 % 101) as f32 / 50.0 - 1.0;
        HostTensor::new([rows, columns], (0..rows * columns).map(at).collect::<Vec<_>>())
    };
    let inputs = [matrix(m, k), matrix(k, n)];
    let types: Vec<_> = inputs.iter().map(HostTensor::ty).collect();
    let traced = anabranch::dsl::trace::trace("product", || {
        let inputs: Vec<AnyValue> = types.into_iter().map(|ty| anabranch::dsl::trace::input(ty, None)).collect();
        vec![inputs[0].matmul(inputs[1])]
    });
    let graph = traced.unwrap_or_else(|e| panic!("{e}")).graph;
    let program = Program::with_matmul_precision(graph, precision).unwrap_or_else(|e| panic!("{e}"));
    if precision != MatmulPrecision::Full && !program.explain().contains("of bf16") {
        return None;
    }
    let mut outputs = Vec::new();
    Some(move || program.run_into(&inputs, &mut Vec::new(), &mut outputs).unwrap_or_else(|e| panic!("{e}")))
}

/// Returns the rate, in billions of operations per second, of a function that performs `flops` of
/// them.
fn rate(flops: f64, repeat: usize, mut f: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..repeat).for_each(|_| f());
    flops * repeat as f64 / start.elapsed().as_secs_f64() * 1e-9
}

/// Returns the peak rate of multiplications and additions in registers, on this many threads.
fn peak(threads: usize) -> f64 {
    const TRIPS: usize = 1 << 20;
    let start = Instant::now();
    let flops: usize = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(|| chains(TRIPS))).collect();
        running.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
    });
    flops as f64 / start.elapsed().as_secs_f64() * 1e-9
}

/// Runs independent chains of fused multiply-adds on the widest vectors of this processor. Returns
/// the number of operations.
///
/// The vectors are written as such: the compiler may vectorize a loop over arrays across the
/// chains, which moves elements between vectors in each round.
fn chains(trips: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let has_fma = std::is_x86_feature_detected!("fma");
        if std::is_x86_feature_detected!("avx512f") {
            // SAFETY: the feature was detected above.
            return unsafe { x86::avx512(trips) };
        }
        if std::is_x86_feature_detected!("avx2") && has_fma {
            // SAFETY: the features were detected above.
            return unsafe { x86::avx2(trips) };
        }
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("neon") {
        // SAFETY: the feature was detected above.
        return unsafe { arm::neon(trips) };
    }
    let (a, b) = black_box((A, B));
    run::<f32, 8>(trips, 1, 0.5, |x| x * a + b)
}

/// The factor and the addend of each chain, with which its values stay small.
const A: f32 = 0.999;
const B: f32 = 0.001;

/// Runs `CHAINS` chains of steps on vectors of `lanes` elements. Returns the number of operations.
#[inline(always)]
fn run<V: Copy, const CHAINS: usize>(trips: usize, lanes: usize, start: V, step: impl Fn(V) -> V) -> usize {
    let mut sums = [start; CHAINS];
    // Chains that begin alike would be one.
    black_box(&mut sums);
    for _ in 0..trips {
        for sum in &mut sums {
            *sum = step(*sum);
        }
    }
    black_box(sums);
    2 * trips * CHAINS * lanes
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{A, B, run};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f")]
    pub(super) fn avx512(trips: usize) -> usize {
        let (a, b) = (_mm512_set1_ps(A), _mm512_set1_ps(B));
        run::<__m512, 16>(trips, 16, b, |x| _mm512_fmadd_ps(x, a, b))
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2(trips: usize) -> usize {
        let (a, b) = (_mm256_set1_ps(A), _mm256_set1_ps(B));
        run::<__m256, 12>(trips, 8, b, |x| _mm256_fmadd_ps(x, a, b))
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{A, B, run};
    use std::arch::aarch64::*;

    #[target_feature(enable = "neon")]
    pub(super) fn neon(trips: usize) -> usize {
        let (a, b) = (vdupq_n_f32(A), vdupq_n_f32(B));
        run::<float32x4_t, 24>(trips, 4, b, |x| vfmaq_f32(b, x, a))
    }
}
