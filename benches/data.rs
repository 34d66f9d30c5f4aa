//! Input pipelines: pictures that are decoded and augmented, records, and rows of CSV files.
//!
//! `benches/compare/data.py --make FOLDER` writes the files, and measures PyTorch's `DataLoader` on
//! them. `cargo bench --bench data --features data` prints records per second and CPU time per
//! record for the same work. `ANABRANCH_BENCH_FOLDER` is the folder of the files.
//!
//! - `jpeg`: decodes pictures of 256x256, crops 224x224 at random, flips half of them, and joins 32
//!   as `f32` from 0 to 1 in the order channels, height, width;
//! - `tfrecord`: reads records of 1 KiB with their checksums, and joins 128;
//! - `csv`: reads rows of eight numbers, shuffles windows of 10,000, and joins 256.
//!
//! Each is the median of five passes, after one that is not counted. `ANABRANCH_BENCH_THREADS` sets
//! the number of threads of `map`, 2 by default.

use anabranch::data::{Dataset, ElementRng, csv, files_in, images, tfrecord};
use anabranch::{Array, Diagnostic};
use std::path::PathBuf;
use std::time::Instant;

const ROUNDS: usize = 5;
const CROP: usize = 224;

/// Returns the CPU time of this process in seconds, with all its threads. Only Linux has it.
fn cpu_seconds() -> f64 {
    /// The unit of the kernel's text: `USER_HZ`.
    const TICKS: f64 = 100.0;
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the process is in parentheses, and may have spaces.
    let fields = text.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(2);
    fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS
}

/// Runs passes, and prints the rate and the CPU time of the records that they return.
fn measure<B: Send + 'static>(name: &str, data: &Dataset<B>, size: impl Fn(&B) -> usize) -> Result<(), Diagnostic> {
    let mut passes = Vec::new();
    for epoch in 0..=ROUNDS as u64 {
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let mut n = 0;
        for batch in data.epoch(epoch) {
            n += size(&batch?);
        }
        passes.push((n as f64 / start.elapsed().as_secs_f64(), (cpu_seconds() - cpu) / n as f64));
    }
    passes.remove(0);
    passes.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let (rate, cpu) = passes[ROUNDS / 2];
    println!("{name:<10}{rate:>12.0} records/s{:>10.2} µs of CPU time each", 1e6 * cpu);
    Ok(())
}

/// Crops a picture `[height, width, 3]` at random, and flips half of them.
fn augmented(picture: Array<u8>, rng: &mut ElementRng) -> Array<f32> {
    let [height, width] = [picture.shape()[0], picture.shape()[1]];
    let [top, left] = [height, width].map(|extent| rng.below(extent - CROP + 1));
    let is_flipped = rng.below(2) == 1;
    let pixels = picture.as_slice();
    let mut out = vec![0.0; 3 * CROP * CROP];
    for (row, y) in (top..top + CROP).enumerate() {
        let from = &pixels[(y * width + left) * 3..][..3 * CROP];
        for channel in 0..3 {
            let to = &mut out[(channel * CROP + row) * CROP..][..CROP];
            for (to, pixel) in to.iter_mut().zip(from.chunks_exact(3)) {
                *to = f32::from(pixel[channel]) / 255.0;
            }
            if is_flipped {
                to.reverse();
            }
        }
    }
    Array::new([3, CROP, CROP], out)
}

fn main() -> Result<(), Diagnostic> {
    let Some(folder) = std::env::var_os("ANABRANCH_BENCH_FOLDER").map(PathBuf::from) else {
        println!("set ANABRANCH_BENCH_FOLDER to a folder that benches/compare/data.py has made");
        return Ok(());
    };
    let threads = std::env::var("ANABRANCH_BENCH_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("threads: {threads}, load of the machine before: {}", load.trim());

    let pictures = images::files(files_in(folder.join("jpeg"), ".jpg")?).shuffle(1 << 20, 1);
    let pictures = pictures.map_random_parallel(threads, 2, |picture, rng| Ok(augmented(picture, rng)));
    measure("jpeg", &pictures.batch(32), |batch| batch.shape()[0])?;

    let records = tfrecord::records([folder.join("records.tfrecord")]).batch(128).prefetch(1, 8);
    measure("tfrecord", &records, |batch| batch.shape()[0])?;

    let rows = csv::rows::<[f32; 8]>([folder.join("rows.csv")]).shuffle(10_000, 3).batch(256).prefetch(1, 8);
    measure("csv", &rows, |batch| batch.shape()[0])
}
