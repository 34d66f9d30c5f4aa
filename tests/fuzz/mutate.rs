//! Runs the bodies of the targets on seeded mutations: `mutate TARGET INPUTS [SEED]`.
//!
//! `mutate TARGET seeds FOLDER` writes the valid inputs to a folder, for example `corpus/graph`,
//! from which the fuzzer starts.

#[path = "bodies/checkpoint.rs"]
mod checkpoint;
#[path = "bodies/data.rs"]
mod data;
#[path = "bodies/graph.rs"]
mod graph;
mod mutations;
#[path = "bodies/strings.rs"]
mod strings;

use anabranch_dsl::Graph;
use anabranch_dsl::ir::wire;
use anabranch_runtime::testing::FuzzTarget;
use mutations::Mutator;
use std::path::Path;

/// The target that is not one of the runtime.
const GRAPH: FuzzTarget = FuzzTarget { name: "graph", run: graph::run, inputs: graphs };

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: u64| args.get(i).map_or(default, |n| n.parse().expect("a number"));
    let others = data::TARGETS.into_iter().chain(checkpoint::TARGETS).chain(strings::TARGETS);
    let others = others.map(|(name, run, inputs)| FuzzTarget { name, run, inputs });
    let targets: Vec<FuzzTarget> = FuzzTarget::ALL.into_iter().chain([GRAPH]).chain(others).collect();
    let target = targets.iter().find(|target| args.first().is_some_and(|arg| arg == target.name));
    let Some(FuzzTarget { name, run, inputs: seeds }) = target else {
        let names: Vec<&str> = targets.iter().map(|target| target.name).collect();
        eprintln!("mutate TARGET INPUTS [SEED], with one of the targets {}", names.join(", "));
        std::process::exit(2);
    };
    if let [_, word, folder] = &args[..]
        && word == "seeds"
    {
        std::fs::create_dir_all(folder).expect("the folder can be made");
        for (i, seed) in seeds().iter().enumerate() {
            std::fs::write(Path::new(folder).join(i.to_string()), seed).expect("the folder can be written");
        }
        return;
    }
    let (inputs, seed, seeds) = (number(1, 100_000), number(2, 0), seeds());
    let mut mutator = Mutator::new(seed);
    let (mut input, mut accepted) = (Vec::new(), 0u64);
    for i in 0..inputs {
        mutator.mutate(&seeds, &mut input);
        let outcome = std::panic::catch_unwind(|| run(&input));
        let Ok(valid) = outcome else {
            let hex: String = input.iter().map(|b| format!("{b:02x}")).collect();
            eprintln!("{name}: input {i} of seed {seed} panics:\n{hex}");
            std::process::exit(1);
        };
        accepted += u64::from(valid);
    }
    println!("{name}: {inputs} inputs from {} valid ones with seed {seed}, {accepted} accepted, no panic", seeds.len());
}

/// A graph of strings. Golden graphs have few.
const STRINGS: &str = "graph @strings(%x: bytes[2], %n: i32[2]) -> (bytes[2], i32[2]) {
    %c = constant [b\"a\", b\"bc\"] : bytes[2]
    %same = eq %x, %c : bool[2]
    %y = select %same, %x, %c : bytes[2]
    %part = substr %y, %n, %n : bytes[2]
    %lengths = byte_len %part : i32[2]
    print stdout \"{}\", %y
    return %y, %lengths
}";

/// Returns the golden graphs in wire form, and one of strings.
fn graphs() -> Vec<Vec<u8>> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden")];
    let mut graphs = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "ir") {
                let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                let source = text.split("; ----").next().unwrap_or_default();
                graphs.extend(Graph::parse(source, "golden.ir").map(|graph| wire::encode(&graph)));
            }
        }
    }
    let strings = Graph::parse(STRINGS, "strings.ir").unwrap_or_else(|errors| panic!("{errors:?}"));
    graphs.push(wire::encode(&strings));
    assert!(graphs.len() > 50, "only {} graphs were found", graphs.len());
    graphs
}
