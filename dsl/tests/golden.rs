//! Golden files: graphs as text, with what the library says of them beside it.
//!
//! | folder of `tests/golden` | what a file is |
//! |---|---|
//! | `text` | a graph that is its own printed form, or has its errors behind the lines, as `; error: message` |
//! | `verify` | a graph that breaks the invariant its name begins with, with all errors behind the lines |
//! | `passes/<pass>` | a graph, and after the line `; ---- after <pass>` what the pass makes of it |
//!
//! Lines that begin with `;` at the start of a file say what it is about. `BLESS=1 cargo test -p anabranch-dsl --test golden`
//! writes what the library says now into the files; read the difference before it is committed.

use anabranch_dsl::{Diagnostic, Graph};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

/// The golden files of a folder, in the order of their names.
fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let mut files: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    files.sort();
    for file in &files {
        assert_eq!(file.extension().and_then(|e| e.to_str()), Some("ir"), "{}: not a golden file", file.display());
    }
    files
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|s| s.to_str()).expect("names of golden files are text")
}

/// Compares a file with what it should be, or writes it.
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

#[track_caller]
fn finish(failures: &[String]) {
    assert!(failures.is_empty(), "BLESS=1 writes what is right now.\n\n{}\n", failures.join("\n\n"));
}

/// The comment lines at the start of a file, and the rest.
fn split_header(text: &str) -> (&str, &str) {
    let n: usize = text.lines().take_while(|l| l.starts_with(';') && !l.starts_with("; ----")).map(|l| l.len() + 1).sum();
    text.split_at(n.min(text.len()))
}

fn strip_errors(text: &str) -> String {
    let strip = |l: &str| l.split_once("; error:").map_or(l, |(code, _)| code).trim_end().to_owned() + "\n";
    text.lines().map(strip).collect()
}

/// The text with every error behind its line; those without a place are behind the head.
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

/// What a file of graph text should be.
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
            failures.push(format!("{}: by its name the text is {}:\n{expected}", path.display(), if is_error { "wrong" } else { "right" }));
            continue;
        }
        check(path, &expected, &mut failures);
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
        // Ids and owners are no part of the text; `verify`'s own tests break these two.
        let in_text = ![2, 7].contains(&number);
        let found = files.iter().any(|f| stem(f).starts_with(&format!("v{number:02}_")));
        assert_eq!(found, in_text, "files that break V{number}");
    }
}
