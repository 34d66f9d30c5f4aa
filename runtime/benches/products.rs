//! Matmuls of square and of narrow matrices, and the processor's rate of multiplications and
//! additions, measured alternately.
//!
//! `cargo bench --bench products`, or with parts of names:
//! `cargo bench --bench products -- product_512x512x512`

use anabranch::{AnyValue, HostTensor};
use anabranch_runtime::Program;
use std::time::Instant;

/// Rows, inner extent and columns.
const SHAPES: &[[usize; 3]] = &[
    [64, 64, 64],
    [256, 256, 256],
    [512, 512, 512],
    [1024, 1024, 1024],
    [2048, 2048, 2048],
    [1, 1024, 1024],
    [32, 512, 2048],
    [32, 2048, 512],
    [128, 1024, 1024],
];
/// The number of rounds, of which the median and the best are shown.
const ROUNDS: usize = 11;

fn main() {
    // `cargo test --benches` also runs this, and must not measure.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let asked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    println!("f32, {threads} threads; GFLOP/s: median (best), and the median's part of the peak in the same run");
    for &[m, k, n] in SHAPES {
        let name = format!("product_{m}x{k}x{n}");
        if !asked.is_empty() && !asked.iter().any(|part| name.contains(part)) {
            continue;
        }
        let flops = 2.0 * (m * k * n) as f64;
        let mut product = product(m, k, n);
        let repeat = (2e8 / flops).ceil() as usize;
        let (mut rates, mut peaks) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            peaks.push(peak(threads));
            rates.push(rate(flops, repeat, &mut product));
        }
        let [rate, peak] = [&mut rates, &mut peaks].map(|all| {
            all.sort_by(f64::total_cmp);
            all[ROUNDS / 2]
        });
        println!("{name:<24}{rate:>6.1} ({:>6.1}), {:>3.0} % of {peak:.1}", rates[ROUNDS - 1], rate / peak * 100.0);
    }
}

/// Returns a matmul of two matrices whose result is in reused memory.
fn product(m: usize, k: usize, n: usize) -> impl FnMut() {
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
    let program = Program::new(traced.unwrap_or_else(|e| panic!("{e}")).graph).unwrap_or_else(|e| panic!("{e}"));
    let mut outputs = Vec::new();
    move || program.run_into(&inputs, &mut Vec::new(), &mut outputs).unwrap_or_else(|e| panic!("{e}"))
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

/// Runs independent chains of multiplications and additions, one for each available register.
/// Returns their number.
fn chains(trips: usize) -> usize {
    const LANES: usize = 16;
    #[inline(always)]
    fn run<const CHAINS: usize>(trips: usize, step: impl Fn(f32, f32, f32) -> f32) -> usize {
        let (a, b) = std::hint::black_box((0.999f32, 0.001f32));
        let mut sums: [[f32; LANES]; CHAINS] = std::array::from_fn(|i| std::array::from_fn(|j| (i * LANES + j) as f32));
        for _ in 0..trips {
            for chain in &mut sums {
                chain.iter_mut().for_each(|x| *x = step(*x, a, b));
            }
        }
        std::hint::black_box(sums);
        2 * trips * CHAINS * LANES
    }
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,fma")]
        fn avx512(trips: usize) -> usize {
            run::<12>(trips, f32::mul_add)
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2(trips: usize) -> usize {
            run::<6>(trips, f32::mul_add)
        }
        let has_fma = std::is_x86_feature_detected!("fma");
        if std::is_x86_feature_detected!("avx512f") && has_fma {
            // SAFETY: the features were detected above.
            return unsafe { avx512(trips) };
        }
        if std::is_x86_feature_detected!("avx2") && has_fma {
            // SAFETY: the features were detected above.
            return unsafe { avx2(trips) };
        }
    }
    run::<6>(trips, |x, a, b| x * a + b)
}
