//! Random programs are equivalent to plain Rust on every engine, with and without optimization, and
//! have its derivatives.
//!
//! `ANABRANCH_SLOW=1` runs 160 programs of each kind, otherwise there are fewer, and
//! `ANABRANCH_PROGRAMS=n` runs `n`. The first seed is that of [all random tests](corpus::seed). A
//! program with an error is shrunk and printed with the command that repeats it.
//! `ANABRANCH_FEATURES` is a list of the constructs that programs may have, separated by commas; by
//! default all are.
//!
//! ```sh
//! ANABRANCH_PROGRAM=values:17 cargo test -p anabranch-programs --test random -- --nocapture
//! ```

use anabranch_dsl::corpus;
use anabranch_programs::ast::{CheckMode, RandomProgram};
use anabranch_programs::crates::{Library, Verdict, library};
use anabranch_programs::generate::{Features, program};
use anabranch_programs::print::{Dialect, module};
use anabranch_programs::shrink::smaller;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of programs in a crate. Fewer need less memory of rustc, and more crates need more
/// time.
const IN_A_CRATE: usize = 40;

/// The number of errors that are shrunk and printed. Further errors are counted.
const SHOWN: usize = 3;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("random_programs")
}

fn features() -> Features {
    match std::env::var("ANABRANCH_FEATURES") {
        Ok(names) => Features::named(&names),
        Err(_) => Features::all(),
    }
}

fn name(kind: CheckMode) -> &'static str {
    match kind {
        CheckMode::Values => "values",
        CheckMode::Gradients => "gradients",
    }
}

/// Returns the seed in `ANABRANCH_PROGRAM`, if that names a program of this kind.
fn only(kind: CheckMode) -> Option<Result<u64, ()>> {
    let wanted = std::env::var("ANABRANCH_PROGRAM").ok()?;
    let (wanted_kind, seed) = wanted.split_once(':').expect("`ANABRANCH_PROGRAM` is KIND:SEED");
    Some(if wanted_kind == name(kind) { Ok(seed.parse().expect("the seed is a number")) } else { Err(()) })
}

/// Returns the number of programs of each kind.
fn count() -> usize {
    match std::env::var("ANABRANCH_PROGRAMS") {
        Ok(n) => n.parse().expect("`ANABRANCH_PROGRAMS` is a number"),
        Err(_) if std::env::var_os("ANABRANCH_SLOW").is_some() => 160,
        Err(_) => 30,
    }
}

fn check(kind: CheckMode) {
    let seeds: Vec<u64> = match only(kind) {
        Some(Ok(seed)) => vec![seed],
        Some(Err(())) => return,
        None => (corpus::seed()..).take(count()).collect(),
    };
    println!("{}: seeds {} to {}", name(kind), seeds[0], seeds[seeds.len() - 1]);
    let programs: Vec<RandomProgram> = seeds.iter().map(|&seed| program(seed, kind, &features())).collect();
    let library = library(&folder().join(name(kind)));
    let verdicts = all_verdicts(&library, kind, &programs);
    assert_eq!(verdicts.len(), programs.len());
    let (mut compared, mut without, mut nodes, mut empty) = (0, 0, 0, 0);
    for verdict in &verdicts {
        match verdict {
            Verdict::Agrees { compared: c, without_gradient: w, nodes: n } => {
                (compared, without, nodes) = (compared + c, without + w, nodes + n);
            }
            Verdict::Empty => empty += 1,
            _ => {}
        }
    }
    println!("{compared} runs compared, {without} gradients too large, {empty} programs without a run, {nodes} nodes");
    let wrong: Vec<(&RandomProgram, &Verdict)> = programs.iter().zip(&verdicts).filter(|(_, v)| v.is_error()).collect();
    let mut report = String::new();
    for (p, verdict) in wrong.iter().take(SHOWN) {
        report += &shown(&library, p, verdict);
    }
    let seeds: Vec<u64> = wrong.iter().map(|(p, _)| p.seed).collect();
    assert!(wrong.is_empty(), "{} of {} programs differ: seeds {seeds:?}\n{report}", wrong.len(), programs.len());
    assert!(
        compared >= 5 * programs.len(),
        "nearly every program can be compared at 6 inputs, but only {compared} were"
    );
    assert!(without * 5 <= compared, "{without} of {compared} gradients are too large to compare");
}

/// Compiles and runs crates on as many threads as there are processors.
fn all_verdicts(library: &Library, kind: CheckMode, programs: &[RandomProgram]) -> Vec<Verdict> {
    let chunks: Vec<&[RandomProgram]> = programs.chunks(IN_A_CRATE.min(programs.len().div_ceil(2))).collect();
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(chunks.len());
    let mut found: Vec<(usize, Vec<Verdict>)> = std::thread::scope(|scope| {
        let worker = || {
            let mut found = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(chunk) = chunks.get(i) else { return found };
                found.push((i, library.verdicts(&folder(), &format!("{}_{i}", name(kind)), chunk)));
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|w| w.join().expect("no worker panics")).collect()
    });
    found.sort_by_key(|(i, _)| *i);
    found.into_iter().flat_map(|(_, verdicts)| verdicts).collect()
}

/// The number of candidates that are tried at once when a program is shrunk.
const CANDIDATES: usize = 16;

/// The number of candidates that are tried for one program.
const TRIES: usize = 160;

/// Returns the text of the smallest program found that still shows the same kind of error.
fn shown(library: &Library, p: &RandomProgram, verdict: &Verdict) -> String {
    let (mut p, mut verdict) = (p.clone(), verdict.clone());
    // Printed immediately, since shrinking takes a while.
    println!("{}:{} {}", name(p.kind), p.seed, what(&verdict));
    let mut left = TRIES;
    let crate_name = format!("smaller_{}", name(p.kind));
    loop {
        let candidates = smaller(&p);
        let better = match verdict {
            Verdict::Refused(_) => candidates.into_iter().take(left).find_map(|candidate| {
                left -= 1;
                let message = library.refusal(&folder(), &crate_name, &candidate)?;
                Some((candidate, Verdict::Refused(message)))
            }),
            _ => candidates.chunks(CANDIDATES).take(left / CANDIDATES).find_map(|some| {
                left -= CANDIDATES;
                let verdicts = library.verdicts(&folder(), &crate_name, some);
                let i = verdicts.iter().position(|v| matches!(v, Verdict::Differs(_)))?;
                Some((some[i].clone(), verdicts[i].clone()))
            }),
        };
        match better {
            Some(found) => (p, verdict) = found,
            None => break,
        }
    }
    format!(
        "\n== {kind}, seed {seed}; repeat with\nANABRANCH_PROGRAM={kind}:{seed} cargo test -p anabranch-programs --test random -- --nocapture\n{}\n{}",
        what(&verdict),
        module(&p, Dialect::Staged),
        kind = name(p.kind),
        seed = p.seed,
    )
}

/// Returns the problem, shortened if it is long.
fn what(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Differs(text) | Verdict::Refused(text) => text.chars().take(2_000).collect(),
        Verdict::Agrees { .. } | Verdict::Empty => "nothing is wrong".to_owned(),
    }
}

#[test]
fn random_programs_have_the_values_of_plain_rust() {
    check(CheckMode::Values);
}

#[test]
fn random_programs_have_the_gradients_of_dual_numbers() {
    check(CheckMode::Gradients);
}
