//! The code that the programs of the other Rust frameworks share: the list of cases, and their
//! timing, like `peer.py` for those in Python.

use std::time::Instant;

pub const TRIPS: usize = 100_000;
pub const LSTMS: [(usize, usize); 4] = [(32, 50), (32, 200), (128, 50), (128, 200)];
pub const MATRICES: [usize; 4] = [256, 512, 1024, 2048];
pub const PERCEPTRON: &str = "mlp_784_1024_1024_10_batch_128";
const MIN_SECONDS: f64 = 1.0;
const MIN_RUNS: usize = 5;
const MAX_SECONDS: f64 = 8.0;

/// The cases that the arguments name, or all of them.
pub struct Cases {
    peer: &'static str,
    names: Vec<String>,
    quick: bool,
}

impl Cases {
    pub fn of(peer: &'static str) -> Cases {
        let (options, names) = std::env::args().skip(1).partition(|arg| arg.starts_with("--"));
        let options: Vec<String> = options;
        Cases { peer, names, quick: options.iter().any(|option| option == "--quick") }
    }

    /// Prepares a case and measures its time, if it is requested, and prints a line of JSON.
    ///
    /// The case `startup` runs one step of the MLP and prints the peak of memory.
    pub fn case<F: FnMut()>(&self, name: &str, prepare: impl FnOnce() -> F) {
        if name == PERCEPTRON && self.names == ["startup"] {
            prepare()();
            let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
            let peak = status.split("VmHWM:").nth(1).and_then(|rest| rest.split_whitespace().next()?.parse().ok());
            self.line("startup", &format!("\"peak\": {}", peak.unwrap_or(0usize) * 1024));
        } else if self.names.is_empty() || self.names.iter().any(|asked| asked == name) {
            let seconds = measure(prepare(), self.quick);
            let (median, best) = (seconds[seconds.len() / 2], seconds[0]);
            self.line(name, &format!("\"median\": {median:e}, \"best\": {best:e}"));
        }
    }

    fn line(&self, case: &str, numbers: &str) {
        println!("{{\"peer\": \"{}\", \"case\": \"{case}\", {numbers}}}", self.peer);
    }
}

/// Returns the durations of calls in seconds, sorted. Short calls are measured many at a time.
fn measure(mut run: impl FnMut(), quick: bool) -> Vec<f64> {
    let mut time = |at_once: usize| {
        let start = Instant::now();
        (0..at_once).for_each(|_| run());
        start.elapsed().as_secs_f64() / at_once as f64
    };
    time(1);
    let once = time(1);
    if quick {
        return vec![once];
    }
    let at_once = (1e-3 / once).max(1.0) as usize;
    let (mut seconds, start) = (Vec::new(), Instant::now());
    let passed = || start.elapsed().as_secs_f64();
    while passed() < MIN_SECONDS || (seconds.len() < MIN_RUNS && passed() < MAX_SECONDS) {
        seconds.push(time(at_once));
    }
    seconds.sort_by(f64::total_cmp);
    seconds
}

/// Returns row indices, spread over a table.
pub fn ids(n: usize, rows: u64) -> Vec<u32> {
    let mut state = 1u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % rows) as u32
    };
    (0..n).map(next).collect()
}
