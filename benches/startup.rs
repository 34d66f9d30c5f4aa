//! The time from the start of a process to its first training step, and its peak memory.
//!
//! `cargo bench --bench startup` starts a process several times. The process creates an MLP
//! 784-1024-1024-10, compiles the Adam step for a batch of 128, and runs it once. The benchmark
//! prints the wall time from before the start of the process to its end, the peak of its resident
//! memory (`VmHWM` in `/proc/self/status`, so only on Linux), and the parts of both.

use anabranch::nn::Init;
use anabranch::optim::Adam;
use anabranch::prelude::*;
use anabranch_benches::training::{mlp, mlp_batch, mlp_step};
use std::process::Command;
use std::time::Instant;

/// The environment variable that marks the measured process.
const CHILD: &str = "ANABRANCH_STARTUP";
const RUNS: usize = 15;

/// Prints the time since `main` in milliseconds, and the current and peak memory of the process in
/// MiB.
fn report(start: Instant, what: &str) {
    let time = start.elapsed().as_secs_f64() * 1e3;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mib = |key: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(key)).unwrap_or("0");
        line.split_whitespace().next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1024.0
    };
    println!("{what}\t{time}\t{}\t{}", mib("VmRSS:"), mib("VmHWM:"));
}

fn child() {
    let start = Instant::now();
    report(start, "start");
    let init = Init::new(1);
    let layers = mlp(&init);
    let adam = Adam::new(0.001);
    report(start, "parameters");
    let (x, labels) = mlp_batch(&init);
    let session = Session::new().expect("a session on the CPU");
    let step = session.function(|x, labels| mlp_step(&layers, &adam, x, labels)).expect("the step can be traced");
    report(start, "session, batch");
    let loss = step.call((&x, &labels)).expect("the step runs");
    report(start, "compiled, first step");
    assert!((2.0..3.0).contains(&loss.item()), "the loss of a guess between ten is about 2.3, not {loss}");
}

fn main() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let this = std::env::current_exe().expect("the path of this program");
    let mut runs: Vec<(f64, String)> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            let output = Command::new(&this).env(CHILD, "1").output().expect("this program can be started");
            let time = start.elapsed().as_secs_f64() * 1e3;
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            (time, String::from_utf8(output.stdout).expect("text"))
        })
        .collect();
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (median, text) = &runs[RUNS / 2];
    println!("whole process: median {median:.1} ms, best {:.1} ms, of {RUNS}", runs[0].0);
    println!("{:<22}{:>12}{:>12}{:>12}", "after", "ms", "MiB now", "MiB peak");
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [what, numbers @ ..] = &fields[..] else { continue };
        let numbers: Vec<f64> = numbers.iter().filter_map(|n| n.parse().ok()).collect();
        if let [time, now, peak] = numbers[..] {
            println!("{what:<22}{time:>12.1}{now:>12.1}{peak:>12.1}");
        }
    }
}
