//! Golden files: graphs as text, with the library's output.
//!
//! | folder of `tests/golden` | what a file is |
//! |---|---|
//! | `text` | a graph in its printed form, or with its errors after the lines, as `; error: message` |
//! | `verify` | a graph that breaks the invariant in its name, with all errors after the lines |
//! | `passes/<pass>` | a graph, and after the line `; ---- after <pass>` the output of the pass |
//! | `passes/specialize` | the same, with the types of the inputs in the first line: `; inputs: f32[2]` |
//! | `kernels` | a graph, and after the line `; ---- kernels` its fused kernels, whose shaders are in the file `.wgsl` |
//! | `operations.txt` | a table of the facts that the definition of each operation states |
//!
//! Lines that begin with `;` at the start of a file describe it.
//! `BLESS=1 cargo test -p anabranch-dsl golden` writes the current output to the files; read the
//! difference before committing it.

use anabranch_dsl::fusion::{FuseEverything, Fusion};
use anabranch_dsl::ir::verify;
use anabranch_dsl::ops::{self, Contraction, Grad, OpClass};
use anabranch_dsl::passes::{
    Cse, Dce, Fold, HoistCasts, HoistMatmuls, Inline, Licm, MergeLoopVars, MergeProducts, Pass, Scalarize, Scatters,
    Simplify, SumsToConcat, Widen, specialize,
};
use anabranch_dsl::{Diagnostic, Graph, TensorType};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

/// Returns the golden files of a folder, sorted by name. The shaders beside them have a test of
/// their own.
fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let mut files: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    files.retain(|file| file.extension().is_none_or(|e| e != "wgsl"));
    files.sort();
    for file in &files {
        assert_eq!(file.extension().and_then(|e| e.to_str()), Some("ir"), "{}: not a golden file", file.display());
    }
    files
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|s| s.to_str()).expect("names of golden files are text")
}

/// Compares a file with its expected content, or writes it.
fn check(path: &Path, expected: &str, failures: &mut Vec<String>) {
    let found = fs::read_to_string(path).unwrap();
    if found == expected {
        return;
    }
    if std::env::var_os("BLESS").is_some() {
        fs::write(path, expected).unwrap();
        return;
    }
    let differ = |(i, (a, b)): (usize, (&str, &str))| (a != b).then(|| format!("{}:\n  file: {a}\n  now:  {b}", i + 1));
    let first = found.lines().zip(expected.lines()).enumerate().find_map(differ);
    let first = first.unwrap_or_else(|| "one is longer than the other".to_owned());
    failures.push(format!("{}:{first}", path.display()));
}

/// Compares a golden file with its expected content.
#[track_caller]
pub(crate) fn check_file(name: &str, expected: &str) {
    let mut failures = Vec::new();
    check(&root().join(name), expected, &mut failures);
    finish(&failures);
}

#[track_caller]
fn finish(failures: &[String]) {
    assert!(failures.is_empty(), "BLESS=1 writes what is right now.\n\n{}\n", failures.join("\n\n"));
}

/// Splits a file into the comment lines at its start and the rest.
fn split_header(text: &str) -> (&str, &str) {
    let n: usize =
        text.lines().take_while(|l| l.starts_with(';') && !l.starts_with("; ----")).map(|l| l.len() + 1).sum();
    text.split_at(n.min(text.len()))
}

fn strip_errors(text: &str) -> String {
    let strip = |l: &str| l.split_once("; error:").map_or(l, |(code, _)| code).trim_end().to_owned() + "\n";
    text.lines().map(strip).collect()
}

/// Returns the text with every error after its line. Errors without a location follow the head.
fn with_errors(text: &str, errors: &[Diagnostic]) -> String {
    let head = 1 + text.lines().position(|l| l.starts_with("graph")).unwrap_or(0);
    let mut out = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        out.push_str(line);
        for error in errors.iter().filter(|e| e.loc().map_or(head, |l| l.line as usize) == number) {
            out.push_str(if out.ends_with(' ') { "" } else { "   " });
            out.push_str(&format!("; error: {}", error.message));
        }
        out.push('\n');
    }
    out
}

/// Returns the expected content of a file of graph text.
fn expected_text(path: &Path) -> String {
    let found = fs::read_to_string(path).unwrap();
    let source = strip_errors(&found);
    match Graph::parse(&source, &path.display().to_string()) {
        Ok(graph) => format!("{}{graph}", split_header(&source).0),
        Err(errors) => with_errors(&source, &errors),
    }
}

#[test]
fn text_is_its_own_printed_form_or_says_what_is_wrong() {
    let files = files("text");
    assert!(files.len() >= 6, "only {} files were found", files.len());
    let mut failures = Vec::new();
    for path in &files {
        let expected = expected_text(path);
        let is_error = stem(path).starts_with("error_");
        if expected.contains("; error:") != is_error {
            failures.push(format!(
                "{}: by its name the text is {}:\n{expected}",
                path.display(),
                if is_error { "wrong" } else { "right" }
            ));
            continue;
        }
        check(path, &expected, &mut failures);
    }
    finish(&failures);
}

#[test]
fn the_example_of_the_page_on_the_text_form_is_its_own_printed_form() {
    let page = include_str!("../../docs/ir.md");
    let example =
        page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).expect("the page has an example");
    let graph = Graph::parse(example, "docs/ir.md").unwrap_or_else(|e| panic!("{}", e[0]));
    assert_eq!(graph.to_string(), example);
}

#[test]
fn kernels_are_as_recorded() {
    let files = files("kernels");
    assert!(files.len() >= 9, "only {} files were found", files.len());
    let mut failures = Vec::new();
    for path in &files {
        let found = fs::read_to_string(path).unwrap();
        let source = found.split("; ---- kernels").next().expect("a file begins with a graph");
        let graph = Graph::parse(source, &path.display().to_string()).unwrap_or_else(|e| panic!("{}", e[0]));
        let fusion = Fusion::find(&graph, &FuseEverything);
        let kernels: Vec<String> = fusion.kernels().iter().map(|kernel| kernel.text(&graph).to_string()).collect();
        let header = split_header(source).0;
        check(path, &format!("{header}{graph}; ---- kernels\n{}", kernels.join("\n")), &mut failures);
    }
    finish(&failures);
}

/// Returns a row for each operation: its name, its attributes and the facts that it states.
fn operations() -> String {
    let laws = |op: ops::Prim| {
        let laws = op.laws;
        let all = [
            (laws.commutative, "commutative"),
            (laws.idempotent, "idempotent"),
            (laws.involution, "involution"),
            (laws.identity.is_some(), "identity"),
            (laws.absorbing.is_some(), "absorbing"),
        ];
        let stated: Vec<&str> = all.into_iter().filter_map(|(holds, law)| holds.then_some(law)).collect();
        stated.join(", ")
    };
    let mut rows = vec![
        ["operation", "class", "aliasing", "exactness", "halves", "effects", "laws", "gradient", "attributes"]
            .map(str::to_owned),
    ];
    rows.extend(ops::all().map(|op| {
        let attrs: Vec<String> = op.attrs.iter().map(|(name, kind)| format!("{name}: {kind:?}")).collect();
        let class = match op.class {
            OpClass::Contract(Contraction::Product(_)) => "Contract(Product)".to_owned(),
            OpClass::Contract(Contraction::Composite(_)) => "Contract(Composite)".to_owned(),
            OpClass::View(view) => format!("View({:?})", view.coverage),
            OpClass::Scalar(_) => format!("Scalar({})", op.scalar_effort().expect("it is elementwise").0),
            class => format!("{class:?}"),
        };
        let gradient = match op.grad {
            Grad::Rule(_) => "rule".to_owned(),
            Grad::Zero(reason) => format!("zero: {reason}"),
            Grad::Missing(reason) => format!("missing: {reason}"),
        };
        let (exactness, halves, effects) = (op.exactness, op.halves, op.effects);
        let aliasing = op.aliasing();
        let facts = [format!("{aliasing:?}"), format!("{exactness:?}"), format!("{halves:?}"), format!("{effects:?}")];
        let [aliasing, exactness, halves, effects] = facts;
        [op.name.to_owned(), class, aliasing, exactness, halves, effects, laws(op), gradient, attrs.join(", ")]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0) + 2;
    let widths: [usize; 9] = std::array::from_fn(width);
    let line = |row: &[String; 9]| {
        let cells: String = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.trim_end())
    };
    rows.iter().map(line).collect()
}

#[test]
fn facts_of_operations_equal_the_table() {
    let mut failures = Vec::new();
    check(&root().join("operations.txt"), &operations(), &mut failures);
    finish(&failures);
}

/// Returns the graph after a pass, which is verified, or the text of the error.
fn apply(pass: &str, source: &str, path: &Path) -> String {
    let parse = |text: &str| Graph::parse(text, &path.display().to_string());
    let mut graph = parse(source).unwrap_or_else(|e| panic!("{}: {}", path.display(), e[0]));
    let passes: Box<dyn Pass> = match pass {
        "hoist_casts" => Box::new(HoistCasts),
        "widen" => Box::new(Widen),
        "cse" => Box::new(Cse),
        "dce" => Box::new(Dce),
        "fold" => Box::new(Fold),
        "inline" => Box::new(Inline),
        "licm" => Box::new(Licm),
        "merge_products" => Box::new(MergeProducts),
        "merge_loop_vars" => Box::new(MergeLoopVars),
        "simplify" => Box::new(Simplify),
        "sums_to_concat" => Box::new(SumsToConcat),
        "scalarize" => Box::new(Scalarize),
        "scatters" => Box::new(Scatters),
        "hoist_matmuls" => Box::new(HoistMatmuls::default()),
        "specialize" => {
            return match specialize(&graph, &input_types(source)) {
                Ok(special) => printed(&special, path),
                Err(error) => format!("; error: {}\n", error.message),
            };
        }
        _ => panic!("{}: there is no pass `{pass}`", path.display()),
    };
    let before = graph.clone();
    let changed = passes.run(&mut graph);
    assert!(changed || before.same_structure(&graph), "{}: a change that is not said", path.display());
    printed(&graph.compact(), path)
}

fn printed(graph: &Graph, path: &Path) -> String {
    verify(graph).unwrap_or_else(|e| panic!("{}: {}\n{graph}", path.display(), e[0]));
    graph.to_string()
}

/// Returns the types in the header line `; inputs: ..`, parsed as the parameters of a graph.
fn input_types(source: &str) -> Vec<TensorType> {
    let types = source.lines().find_map(|l| l.strip_prefix("; inputs: ")).expect("a line `; inputs: f32[2]`");
    let params: Vec<String> = types.split("; ").enumerate().map(|(i, ty)| format!("%{i}: {ty}")).collect();
    let graph = Graph::parse(&format!("graph @g({}) {{ return }}", params.join(", ")), "inputs").unwrap();
    graph.inputs().iter().map(|&v| graph.ty(v).element().clone()).collect()
}

#[test]
fn passes_do_what_their_files_say() {
    let mut failures = Vec::new();
    let of_graphs = [
        "hoist_casts",
        "cse",
        "dce",
        "fold",
        "inline",
        "sums_to_concat",
        "hoist_matmuls",
        "scatters",
        "specialize",
        "widen",
    ];
    for pass in of_graphs.into_iter().chain(["licm", "merge_products", "merge_loop_vars", "scalarize", "simplify"]) {
        let files = files(&format!("passes/{pass}"));
        assert!(files.len() >= 3, "only {} files of {pass} were found", files.len());
        for path in &files {
            let text = fs::read_to_string(path).unwrap();
            let source = text.split("; ----").next().unwrap_or_default().trim_end();
            let expected = format!("{source}\n\n; ---- after {pass}\n{}", apply(pass, source, path));
            check(path, &expected, &mut failures);
        }
    }
    finish(&failures);
}

#[test]
fn every_invariant_is_broken_by_a_file() {
    let files = files("verify");
    let mut failures = Vec::new();
    for path in &files {
        let expected = expected_text(path);
        let number: usize = stem(path)[1..3].parse().expect("names begin with an invariant, as v07_");
        if !expected.contains(&format!("; error: V{number}: ")) {
            failures.push(format!("{}: does not break V{number}:\n{expected}", path.display()));
            continue;
        }
        check(path, &expected, &mut failures);
    }
    finish(&failures);
    let text = include_str!("../src/ir/verify.rs");
    let listed: Vec<usize> =
        text.lines().filter_map(|l| l.strip_prefix("//! - **V")?.split_once("**")?.0.parse().ok()).collect();
    assert_eq!(listed, (1..=listed.len()).collect::<Vec<_>>(), "the list of invariants");
    for number in listed {
        // Ids and owners are not part of the text; `verify`'s own tests break these two invariants.
        let in_text = ![2, 7].contains(&number);
        let found = files.iter().any(|f| stem(f).starts_with(&format!("v{number:02}_")));
        assert_eq!(found, in_text, "files that break V{number}");
    }
}
