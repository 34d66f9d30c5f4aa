//! Golden files of plans, which reveal a lost fusion, an unnecessary copy or a larger arena.

use std::fmt::Write;
use std::path::Path;

/// Whether a golden file has the sizes of arenas that contain packed matrices. They depend on the
/// vectors of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArenasOfPacked {
    /// The file is for processors with the same vectors.
    Kept,
    /// The file is for all processors.
    LeftOut,
}

/// Compares titled plans with the golden file `name`, or writes the file if `BLESS=1`.
///
/// # Panics
/// Panics if the texts differ. The message shows the first line that differs.
#[track_caller]
pub fn check_plans(name: &str, plans: &[(String, String)], arenas: ArenasOfPacked) {
    assert!(!plans.is_empty(), "{name}: no plan");
    let mut now = String::new();
    for (title, plan) in plans {
        write!(now, "==== {title}\n{}\n", portable(plan, arenas)).expect("a string takes all text");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/plans/{name}.txt"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, now).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    if golden == now {
        return;
    }
    let mut title = "";
    for (i, (old, new)) in golden.lines().zip(now.lines()).enumerate() {
        if new.starts_with("==== ") {
            title = new;
        }
        assert!(
            old == new,
            "{}:{}: in {title}\n  file: {old}\n  now:  {new}\nBLESS=1 writes the plans as they are now",
            path.display(),
            i + 1
        );
    }
    panic!("{}: {} lines, now {}", path.display(), golden.lines().count(), now.lines().count());
}

/// Returns a plan without the parts that depend on the source location and the processor: source
/// locations, and the size of the arena if it contains a packed matrix, unless it is kept.
fn portable(plan: &str, arenas: ArenasOfPacked) -> String {
    let leaves_out = arenas == ArenasOfPacked::LeftOut && plan.lines().any(|line| line.contains(" = pack "));
    let line = |line: &str| {
        let (code, _) = line.split_once("  ; ").unwrap_or((line, ""));
        let words = code.split(' ').map(|word| if is_location(word) { ".." } else { word });
        let line = words.collect::<Vec<_>>().join(" ");
        match line.find(" bytes in an arena of ") {
            Some(_) if leaves_out => line.split("; ").next().unwrap_or_default().to_owned(),
            _ => line,
        }
    };
    // The kernels follow the plan. They have golden files of their own.
    plan.lines().take_while(|line| *line != "  fused kernels:").map(|l| line(l) + "\n").collect()
}

/// Returns whether a word is `file:line:column`, with or without a colon or comma at the end.
fn is_location(word: &str) -> bool {
    let mut parts = word.trim_end_matches([':', ',']).rsplit(':');
    let is_number = |part: Option<&str>| part.is_some_and(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
    is_number(parts.next()) && is_number(parts.next()) && parts.next().is_some_and(|file| file.ends_with(".rs"))
}

#[test]
fn a_plan_is_stripped_of_locations_and_sizes_of_packed_matrices() {
    let plan = "  2 registers; 1 buffers of 64 bytes in an arena of 64 bytes\n    0  b0 = add input0  ; a/b.rs:1:2\n  loop at a/b.rs:1:2: x\n";
    assert_eq!(
        portable(plan, ArenasOfPacked::LeftOut),
        "  2 registers; 1 buffers of 64 bytes in an arena of 64 bytes\n    0  b0 = add input0\n  loop at .. x\n"
    );
    let packed = format!("{plan}    1  b0 = pack input0");
    assert!(portable(&packed, ArenasOfPacked::LeftOut).starts_with("  2 registers\n"));
    assert!(portable(&packed, ArenasOfPacked::Kept).starts_with("  2 registers; 1 buffers of 64 bytes in an arena"));
}
