//! Saving and loading weights, and what a save beside the training costs its steps.
//!
//! `cargo bench --bench checkpoints --features checkpoints` prints:
//!
//! - the rates of saving a file of weights durably, of loading it, and of both without what the
//!   format does: writing and syncing the same bytes, and reading them into warm memory;
//! - the median and the longest time of steps without saves, and of the steps that run while a
//!   checkpoint is being written, with the time of taking its snapshot, and how much longer all
//!   steps beside a save take together than those just before it;
//! - the peak of the resident memory before the first save and after the last (`VmHWM`, so only on
//!   Linux).
//!
//! `ANABRANCH_BENCH_MIB` sets the size of the state, 1024 by default, and `ANABRANCH_BENCH_FOLDER`
//! the folder, whose disk is measured.

use anabranch::checkpoints::{Checkpoints, RunParts, StepRecord, WeightFile};
use anabranch::optim::{Adam, Optimizer};
use anabranch::prelude::*;
use anabranch::{Diagnostic, Module, Session};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;

/// The time between the begins of two saves.
const BETWEEN_SAVES: Duration = Duration::from_secs(90);

/// The extents of a layer, of which each has 4 MiB, and 12 MiB with the state of Adam.
const WIDTH: usize = 1024;

fn seconds(run: impl FnOnce() -> Result<(), Diagnostic>) -> Result<f64, Diagnostic> {
    let start = Instant::now();
    run().map(|()| start.elapsed().as_secs_f64())
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn print_rate(what: &str, bytes: f64, times: &mut [f64]) {
    let (middle, best) = (median(times), times[0]);
    println!("{what:<44}{:6.2} GB/s, best {:6.2}", bytes / middle / 1e9, bytes / best / 1e9);
}

fn io(outcome: std::io::Result<()>) -> Result<(), Diagnostic> {
    outcome.map_err(|error| Diagnostic::new(error.to_string()))
}

/// Returns the peak of the resident memory of this process in MiB.
fn peak_memory() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1024.0
}

/// Measures files of weights.
fn files(session: &Session, model: &impl Module, folder: &Path) -> Result<(), Diagnostic> {
    let (path, raw) = (folder.join("w.safetensors"), folder.join("raw"));
    let (mut save, mut cold, mut load) = (Vec::new(), Vec::new(), Vec::new());
    let (mut write, mut read) = (Vec::new(), Vec::new());
    let mut memory = Vec::new();
    for _ in 0..ROUNDS {
        save.push(seconds(|| WeightFile::new(&path).save(session, model))?);
        // A save removes the file from the page cache, where the libraries of others find theirs.
        cold.push(seconds(|| WeightFile::new(&path).load(session, model).map(drop))?);
        load.push(seconds(|| WeightFile::new(&path).load(session, model).map(drop))?);
        memory.clear();
        read.push(seconds(|| io(File::open(&path).and_then(|mut file| file.read_to_end(&mut memory).map(drop))))?);
        let _ = fs::remove_file(&raw);
        write.push(seconds(|| {
            io(File::create(&raw).and_then(|mut file| file.write_all(&memory).and_then(|()| file.sync_all())))
        })?);
    }
    let bytes = memory.len() as f64;
    print_rate("save a file of weights, synced", bytes, &mut save);
    print_rate("  the same bytes by one write and a sync", bytes, &mut write);
    print_rate("load a file of weights from the disk", bytes, &mut cold);
    print_rate("load it again, from the page cache", bytes, &mut load);
    print_rate("  the same bytes into memory, warm after once", bytes, &mut read);
    Ok(())
}

/// Measures steps with and without a save beside them.
fn beside(session: &Session, layers: &[Var], folder: &Path) -> Result<(), Diagnostic> {
    let adam = Adam::new(1e-3);
    adam.prepare(layers);
    let step = session.function(|x: Tensor| {
        let y = layers.iter().fold(x, |x, w| x.matmul(w.get()).tanh());
        adam.minimize(y.square().mean(), layers);
    })?;
    let x = vec![[0.5f32; WIDTH]; 8];
    for _ in 0..3 {
        step.call(&x)?;
    }
    let timed = || seconds(|| step.call(&x).map(drop));
    let parts = RunParts::new().module("layers", &layers).module("adam", &adam);
    let mut checkpoints = Checkpoints::new(folder.join("checkpoints")).keep_latest(1).open()?;
    let (mut alone, mut busy, mut first, mut snapshots, mut saves) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut costs, mut n_busy) = (Vec::new(), 0);
    let before = peak_memory();
    for round in 1..=ROUNDS as u64 {
        for _ in 0..10 {
            alone.push(timed()?);
        }
        let start = Instant::now();
        checkpoints.save(session, &parts, StepRecord::new(round))?;
        snapshots.push(start.elapsed().as_secs_f64());
        first.push(timed()?);
        while checkpoints.is_saving() {
            busy.push(timed()?);
        }
        let elapsed = start.elapsed().as_secs_f64();
        // The steps that would have run in this time, by those just before.
        let wanted = elapsed / alone[alone.len() - 10..].iter().sum::<f64>() * 10.0;
        costs.push(wanted / (1 + busy.len() - n_busy) as f64 - 1.0);
        n_busy = busy.len();
        saves.push(elapsed);
        // A save may rest for half of the time between two.
        while start.elapsed() < BETWEEN_SAVES {
            alone.push(timed()?);
        }
        checkpoints.wait()?;
    }
    println!("{:<44}{before:9.0} MiB before the saves, {:.0} after", "peak memory", peak_memory());
    costs.sort_by(f64::total_cmp);
    println!(
        "{:<44}{:8.1} %, highest {:8.1} %, of {ROUNDS}",
        "more time for the steps beside a save",
        median(&mut costs) * 100.0,
        costs[ROUNDS - 1] * 100.0
    );
    let ms = |times: &mut [f64]| (median(times) * 1e3, times.last().expect("there are times") * 1e3);
    for (what, times) in [
        ("steps without a save", &mut alone),
        ("the first step after a snapshot", &mut first),
        ("other steps beside a save", &mut busy),
        ("taking the snapshot", &mut snapshots),
        ("the save, beside steps", &mut saves),
    ] {
        let n = times.len();
        if n == 0 {
            // A small state is written within the first step.
            println!("{what:<44}     none");
            continue;
        }
        let (middle, longest) = ms(times);
        println!("{what:<44}{middle:9.2} ms, longest {longest:9.2}, of {n}");
    }
    Ok(())
}

fn main() -> Result<(), Diagnostic> {
    let mib = std::env::var("ANABRANCH_BENCH_MIB").ok().and_then(|n| n.parse().ok()).unwrap_or(1024);
    let parent = std::env::var_os("ANABRANCH_BENCH_FOLDER").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = parent.join(format!("anabranch-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| Diagnostic::new(error.to_string()))?;
    let session = Session::new()?;
    let layers = |mib: usize| -> Vec<Var> {
        let value = |i: usize| (i.wrapping_mul(2_654_435_761) % 1000) as f32 * 1e-4 - 0.05;
        let elements: Vec<f32> = (0..WIDTH * WIDTH).map(value).collect();
        let array = anabranch::Array::new([WIDTH, WIDTH], elements);
        (0..mib.div_ceil(4)).map(|i| Var::new(format!("layer{i}"), array.clone())).collect()
    };
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("state of {mib} MiB in {}; load of the machine before: {load}", folder.display());
    // Steps come first, so that the peak of the memory is theirs.
    let measured = beside(&session, &layers(mib / 3), &folder).and_then(|()| files(&session, &layers(mib), &folder));
    let _ = fs::remove_dir_all(&folder);
    measured
}
