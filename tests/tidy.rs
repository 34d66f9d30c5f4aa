//! Tidiness: properties of the repository that no compiler checks.
//!
//! Each rule is a function from the tree, or from texts, to a [`Report`]: the number of items
//! checked, and the problems found. A rule that finds nothing to check fails, because an empty
//! check always passes. A test of its own also violates each rule on purpose, on a small text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

mod examples;
mod imports;
mod packages;
mod text;

use examples::{inner_crates_in_documents, inner_crates_in_examples};
use imports::{circular_imports, imports_past_the_door, upward_imports};
use packages::{differing_profiles, incomplete_packages};
use text::{cargo_command, code_of, code_spans, fenced_blocks, fenced_lines, path_of, words};

/// Crates that would bring a device, a thread pool or a network into the language.
const NOT_IN_DSL: &[&str] = &["rayon", "wgpu", "tokio", "quinn", "faer"];

/// The maximum number of lines of a file. A longer file has more than one subject.
const LONGEST_SOURCE: usize = 1_200;

/// The maximum number of columns of comments and documents. rustfmt's 120 is for code.
const WIDEST: usize = 100;

/// The maximum number of lines of a file of `#[graph]`, whose stages are many small parts.
const LONGEST_OF_GRAPH: usize = 500;

/// The files and folders of the runtime, in levels, also those in the folder of the CPU engine.
/// None imports from a later level. Plans have native code and loops in lanes, which are made of
/// plans, so these three folders are one level.
const RUNTIME_LEVELS: &[&[&str]] = &[
    &["disjoint_sets", "guests", "id", "options", "spin"],
    &["threads"],
    &["cpu/element", "cpu/multiversion", "cpu/vector"],
    &["cpu/memory"],
    &["cpu/kernels", "cpu/x86"],
    &["cpu/compile", "cpu/lanes", "cpu/native"],
    &["cpu/program"],
    &["device"],
    &["gpu"],
    &["place"],
    &["flow"],
    &["peer"],
    &["session"],
];

/// Files and folders of the language, in levels. Below the tracer, nothing knows of a trace.
const LANGUAGE_LEVELS: &[&[&str]] = &[
    &["ir", "ops", "tensor", "device", "scalars"],
    &["autodiff", "fusion", "interp", "passes"],
    &["trace", "var"],
    &["function"],
    &["staged"],
    &["derivatives"],
    &["list", "control", "nn", "optim", "losses", "metrics"],
];

/// The files that know the layout of constructs: those that define, build, check and print it.
const LAYOUT: &[&str] = &[
    "dsl/src/ir/edit.rs",
    "dsl/src/ir/graph.rs",
    "dsl/src/ir/infer.rs",
    "dsl/src/ir/parse/control.rs",
    "dsl/src/ir/print.rs",
    "dsl/src/ir/regions.rs",
    "dsl/src/ir/verify.rs",
];

/// The files that define the table of nodes, and that add nodes to it.
const NODE_TABLE: &[&str] = &["dsl/src/ir/graph.rs", "dsl/src/ir/builder.rs"];

/// A test that compares times, in long runs only, one that prints a time for `BENCHMARKS.md`, and
/// tests of other processes, which are asked until they answer, and must be lost in time.
const TIMED: &[&str] = &[
    "dsl/tests/scale.rs",
    "runtime/src/place/tests.rs",
    "tests/peer_processes/failures.rs",
    "tests/peer_processes/processes.rs",
];

/// Type names that several files define with the same meaning.
const SHARED_NAMES: &[&str] = &["Dual", "Rng"];

// The rules, applied to this repository.

#[test]
fn no_source_is_unfinished() {
    check(unfinished(&sources()));
}

#[test]
fn only_the_runtime_is_unsafe() {
    check(unsafe_outside_runtime(&sources()));
}

#[test]
fn no_two_types_share_a_name() {
    check(shared_type_names(&sources()));
}

#[test]
fn no_test_sleeps_or_reads_a_clock() {
    check(waiting_tests(&sources()));
}

#[test]
fn the_language_depends_on_no_device_thread_or_network() {
    check(heavy_dependencies(&read("dsl/Cargo.toml")));
}

#[test]
fn every_source_is_short() {
    check(too_long(&sources(), "", LONGEST_SOURCE));
    check(too_long(&sources(), "dsl-macros/src/graph/", LONGEST_OF_GRAPH));
}

#[test]
fn comments_and_documents_wrap() {
    check(too_wide(&sources(), |line| line.trim_start().starts_with("//")));
    check(too_wide(&documents(), |_| true));
}

#[test]
fn no_files_of_the_macros_import_each_other_in_a_circle() {
    check(circular_imports(&sources(), "dsl-macros/src/"));
}

#[test]
fn folders_of_the_runtime_import_downwards() {
    check(upward_imports(&sources(), "runtime/src/", RUNTIME_LEVELS));
}

#[test]
fn folders_of_the_language_import_downwards() {
    check(upward_imports(&sources(), "dsl/src/", LANGUAGE_LEVELS));
}

#[test]
fn only_devices_know_the_engines() {
    check(imports_past_the_door(&sources(), "runtime/src/", "cpu", "device"));
}

#[test]
fn operations_are_handles_and_not_names() {
    let cases = entries(&root().join("tests/ops"));
    let names: Vec<_> = cases.iter().filter_map(|case| Some(case.file_stem()?.to_str()?.to_owned())).collect();
    check(operation_names(&sources(), &names));
}

#[test]
fn few_files_know_the_layout_of_constructs() {
    check(layout_of_constructs(&sources()));
}

#[test]
fn nodes_are_created_in_the_builder_alone() {
    check(created_nodes(&sources()));
}

#[test]
fn examples_in_documentation_use_the_facade() {
    check(inner_crates_in_examples(&sources()));
    let for_users = |path: &str| path.starts_with("docs/src/") || path.ends_with("README.md");
    let documents: Vec<_> = documents().into_iter().filter(|document| for_users(&document.path)).collect();
    check(inner_crates_in_documents(&documents));
}

#[test]
fn published_packages_have_licenses_and_a_readme() {
    let members = workspace_members(&read("Cargo.toml"));
    let folders: Vec<&str> = [""].into_iter().chain(members.iter().map(String::as_str)).collect();
    check(incomplete_packages(&folders, |path| fs::read_to_string(root().join(path)).ok()));
}

#[test]
fn the_profile_for_users_is_the_same_everywhere() {
    let texts = ["README.md", "docs/src/getting-started.md", "examples/template/Cargo.toml"];
    check(differing_profiles(&texts.map(|path| (path, read(path)))));
}

#[test]
fn good_examples_are_quotations_of_the_code() {
    check(invented_examples(&read("CONTRIBUTING.md"), &sources()));
}

#[test]
fn the_readme_of_each_library_has_a_tested_example() {
    for library in ["checkpoint", "data", "dsl", "dsl-macros", "runtime", "train"] {
        let readme = format!("{library}/README.md");
        check(untested_readme(&readme, &read(&readme), &read("src/lib.rs")));
    }
}

#[test]
fn paths_named_in_documents_exist() {
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        check(missing_paths(&read(document), exists));
    }
    let book: String = chapters().iter().map(|chapter| read(&format!("docs/src/{chapter}"))).collect();
    check(missing_paths(&book, exists));
}

#[test]
fn every_chapter_of_the_book_is_listed_and_tested() {
    check(unlisted_chapters(&chapters(), &read("docs/src/SUMMARY.md"), &read("src/lib.rs")));
}

#[test]
fn the_map_names_every_crate() {
    let members = workspace_members(&read("Cargo.toml"));
    check(unnamed_members(&read("ARCHITECTURE.md"), &members));
}

#[test]
fn the_commands_of_the_readme_are_those_of_ci() {
    check(commands(&read("README.md"), &read(".ci/run")));
}

#[test]
fn ci_runs_every_example() {
    check(examples_in_ci(&examples(), &read(".ci/run")));
}

#[test]
fn every_file_of_tests_is_part_of_a_test_program() {
    for (folder, manifest) in [
        ("tests", "tests"),
        ("checkpoint/tests", "checkpoint"),
        ("data/tests", "data"),
        ("dsl/tests", "dsl"),
        ("runtime/tests", "runtime"),
        ("train/tests", "train"),
    ] {
        let manifest = read(&format!("{manifest}/Cargo.toml"));
        check(unlisted_tests(&sources(), folder, &read(&format!("{folder}/main.rs")), &manifest));
    }
}

// The result of a rule.

/// The number of items that a rule checked, and the problems that it found.
#[derive(Debug, Default)]
struct Report {
    looked_at: usize,
    wrong: Vec<String>,
}

impl Report {
    /// Counts one checked item, and records `wrong` unless it is fine.
    fn look(&mut self, fine: bool, wrong: impl FnOnce() -> String) {
        self.looked_at += 1;
        if !fine {
            self.wrong.push(wrong());
        }
    }
}

#[track_caller]
fn check(report: Report) {
    assert!(report.looked_at > 0, "the rule found nothing to look at: it checks nothing");
    assert!(report.wrong.is_empty(), "\n{}\n", report.wrong.join("\n"));
}

// The rules.

/// No source contains a marker of unfinished work.
fn unfinished(sources: &[SourceFile]) -> Report {
    // Split, so that this file does not contain them.
    let markers = [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("FIX", "ME")];
    let mut report = Report::default();
    for source in sources {
        for (number, line) in (1..).zip(source.text.lines()) {
            let found = markers.iter().find(|&&marker| line.contains(marker));
            report.look(found.is_none(), || format!("{}:{number}: {}", source.path, line.trim()));
        }
    }
    report
}

/// `unsafe` appears as code only under `runtime/`. Comments, strings and the programs of
/// compile-fail tests may name it.
fn unsafe_outside_runtime(sources: &[SourceFile]) -> Report {
    let mut report = Report::default();
    for source in sources {
        if source.path.starts_with("runtime/") || source.path.contains("tests/messages/ui/") {
            continue;
        }
        for (number, line) in (1..).zip(code_of(&source.text).lines()) {
            report.look(!words(line).any(|word| word == "unsafe"), || {
                format!("{}:{number}: unsafe outside runtime/", source.path)
            });
        }
    }
    report
}

/// No two files of the libraries and of the tests' own tools define a type of the same name, except
/// [`SHARED_NAMES`].
fn shared_type_names(sources: &[SourceFile]) -> Report {
    let tools = ["tests/programs/", "tests/support/", "tests/corpus_control/"];
    let mut report = Report::default();
    let mut first = BTreeMap::new();
    for source in sources {
        let path = source.path.as_str();
        if !path.split('/').take(2).any(|folder| folder == "src") && !tools.iter().any(|tool| path.starts_with(tool)) {
            continue;
        }
        for line in source.text.lines() {
            let mut words = words(line).skip_while(|&word| word == "pub" || word == "crate" || word == "super");
            if line.starts_with(' ') || !matches!(words.next(), Some("struct" | "enum" | "trait")) {
                continue;
            }
            let Some(name) = words.next() else { continue };
            let other = *first.entry(name).or_insert(path);
            report.look(other == path || SHARED_NAMES.contains(&name), || {
                format!("{path}: `{name}` is also a type of {other}: name one by what is special about it")
            });
        }
    }
    report
}

/// No test sleeps or reads a clock, except those in [`TIMED`]: a test that waits is slow or fails
/// by chance.
fn waiting_tests(sources: &[SourceFile]) -> Report {
    let mut report = Report::default();
    for source in sources {
        let is_test = source.path.starts_with("tests/") || source.path.contains("/tests");
        if !is_test || TIMED.contains(&source.path.as_str()) {
            continue;
        }
        for (number, line) in (1..).zip(code_of(&source.text).lines()) {
            let waits = words(line).any(|word| ["sleep", "Instant", "SystemTime"].contains(&word));
            report.look(!waits, || format!("{}:{number}: a test that waits or reads a clock", source.path));
        }
    }
    report
}

/// The language's manifest names none of the crates in [`NOT_IN_DSL`], nor a part of one
/// (`quinn-proto`).
fn heavy_dependencies(manifest: &str) -> Report {
    let mut report = Report::default();
    let mut in_dependencies = false;
    for line in manifest.lines() {
        let line = line.split('#').next().unwrap_or_default();
        if line.starts_with('[') {
            in_dependencies = line.contains("dependencies");
        }
        if in_dependencies {
            let heavy = words(line).find(|word| {
                NOT_IN_DSL
                    .iter()
                    .any(|name| word.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-')))
            });
            report.look(heavy.is_none(), || format!("dsl/Cargo.toml: `{}` belongs to runtime", line.trim()));
        }
    }
    report
}

/// No source below a folder is longer than `longest` lines, except data of tests.
fn too_long(sources: &[SourceFile], folder: &str, longest: usize) -> Report {
    let mut report = Report::default();
    for source in sources.iter().filter(|source| source.path.starts_with(folder)) {
        if source.path.contains("tests/data/") {
            continue;
        }
        let lines = source.text.lines().count();
        report.look(lines <= longest, || {
            format!("{}: {lines} lines, more than {longest}: split it by subject", source.path)
        });
    }
    report
}

/// No line that is `text` is wider than [`WIDEST`], except rows of tables and lines with a URL.
fn too_wide(sources: &[SourceFile], text: impl Fn(&str) -> bool) -> Report {
    let mut report = Report::default();
    for source in sources {
        for (number, line) in (1..).zip(source.text.lines()).filter(|(_, line)| text(line)) {
            let is_row = line.trim_start_matches(['/', '!', ' ']).starts_with('|');
            let width = line.chars().count();
            report.look(width <= WIDEST || is_row || line.contains("://"), || {
                format!("{}:{number}: {width} columns, more than {WIDEST}", source.path)
            });
        }
    }
    report
}

/// No string in the code of the language and the runtime is the name of an operation. A misspelled
/// handle is a compile error, but a misspelled name would go unnoticed. Definitions and tests may
/// use names.
fn operation_names(sources: &[SourceFile], names: &[String]) -> Report {
    let mut report = Report::default();
    for source in sources {
        let is_code = source.path.starts_with("dsl/src/") || source.path.starts_with("runtime/src/");
        if !is_code || source.path.starts_with("dsl/src/ops/") {
            continue;
        }
        let code = source.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for (number, line) in (1..).zip(code.lines()).filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for name in names {
                report.look(!line.contains(&format!("\"{name}\"")), || {
                    format!("{}:{number}: write `prim::{}` for \"{name}\"", source.path, name.to_uppercase())
                });
            }
        }
    }
    report
}

/// Only the files in [`LAYOUT`] know which operand of a construct is which region parameter, and
/// which region is which. All others call the accessors in `dsl/src/ir/regions.rs`.
fn layout_of_constructs(sources: &[SourceFile]) -> Report {
    let mut report = Report::default();
    for source in sources {
        let is_code = source.path.starts_with("dsl/src/") || source.path.starts_with("runtime/src/");
        let is_operation = source.path.starts_with("dsl/src/ops/");
        if !is_code || is_operation || LAYOUT.contains(&source.path.as_str()) {
            continue;
        }
        for (number, line) in (1..).zip(code_of(&source.text).lines()) {
            let is_constant = |index: &str| index.starts_with(|c: char| c.is_ascii_digit() || c == '.');
            let is_shifted = |index: &str| index.contains(" + 1") || index.contains(" + first");
            let knows = indices(line, "regions[").any(is_constant)
                || indices(line, "operands[").chain(indices(line, "params[")).any(is_shifted);
            report.look(!knows, || format!("{}:{number}: ask `dsl/src/ir/regions.rs`: {}", source.path, line.trim()));
        }
    }
    report
}

/// Only the files in [`NODE_TABLE`] create nodes of a graph. All others call a `GraphBuilder`.
fn created_nodes(sources: &[SourceFile]) -> Report {
    let mut report = Report::default();
    for source in sources.iter().filter(|source| source.path.starts_with("dsl/src/")) {
        if NODE_TABLE.contains(&source.path.as_str()) {
            continue;
        }
        for (number, line) in (1..).zip(code_of(&source.text).lines()) {
            let creates = words(line).any(|word| word == "push_node");
            report.look(!creates, || format!("{}:{number}: use a `GraphBuilder`: {}", source.path, line.trim()));
        }
    }
    report
}

/// Returns the texts between `name`, which ends with a bracket, and the closing bracket.
fn indices<'a>(line: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    line.split(name).skip(1).filter_map(|rest| rest.split(']').next())
}

/// The Rust of `document` consists of good examples, and each is in the source that its first line
/// names, except for the indentation. Bad examples are text, since most do not compile.
fn invented_examples(document: &str, sources: &[SourceFile]) -> Report {
    let mut report = Report::default();
    for (language, lines) in fenced_blocks(document) {
        let Some((first, rest)) = lines.split_first() else { continue };
        match (language, first.strip_prefix("// GOOD, in ")) {
            ("rust", Some(path)) => {
                let source = sources.iter().find(|source| source.path == path);
                let quoted = source.is_some_and(|source| quotes(&source.text, rest));
                report.look(quoted, || format!("{path} does not contain `{}`", rest.join("\n")));
            }
            ("rust", None) => report.look(false, || format!("no source is named for `{first}`")),
            _ => {}
        }
    }
    report
}

/// Returns whether `text` contains `lines`, all indented equally.
fn quotes(text: &str, lines: &[&str]) -> bool {
    let all: Vec<&str> = text.lines().collect();
    !lines.is_empty()
        && all.windows(lines.len()).any(|window| {
            let indentation = &window[0][..window[0].len() - window[0].trim_start().len()];
            window.iter().zip(lines).all(|(line, quoted)| line.strip_prefix(indentation) == Some(quoted))
        })
}

/// The README of a library has an example that uses the facade and is a doctest of it.
fn untested_readme(path: &str, readme: &str, facade: &str) -> Report {
    let mut report = Report::default();
    let mut examples = fenced_blocks(readme).into_iter().filter(|(language, _)| *language == "rust");
    report.look(examples.any(|(_, lines)| lines.iter().any(|line| line.contains("use anabranch::"))), || {
        format!("{path}: no example that uses the facade")
    });
    report.look(facade.contains(&format!("#[doc = include_str!(\"../{path}\")]")), || {
        format!("src/lib.rs does not include {path}: its examples are not tested")
    });
    report
}

/// Every path that `document` names in backticks exists.
fn missing_paths(document: &str, exists: impl Fn(&str) -> bool) -> Report {
    let mut report = Report::default();
    let spans: BTreeSet<&str> = code_spans(document).collect();
    for path in spans.iter().filter_map(|span| path_of(span, &exists)) {
        report.look(exists(path), || format!("`{path}` does not exist"));
    }
    report
}

/// Each chapter of the book is in its summary, and its examples are doctests of the facade.
fn unlisted_chapters(chapters: &[String], summary: &str, facade: &str) -> Report {
    let mut report = Report::default();
    for chapter in chapters {
        report.look(summary.contains(&format!("]({chapter})")), || format!("SUMMARY.md does not list {chapter}"));
        report.look(facade.contains(&format!("docs/src/{chapter}\")")), || {
            format!("src/lib.rs does not include {chapter}: its examples are not tested")
        });
    }
    report
}

/// `document` names the folder of every crate of the workspace in backticks, with or without a `/`
/// at its end.
fn unnamed_members(document: &str, members: &[String]) -> Report {
    let folders: BTreeSet<&str> = code_spans(document).map(|span| span.trim_end_matches('/')).collect();
    let mut report = Report::default();
    for member in members {
        report.look(folders.contains(member.as_str()), || format!("the workspace crate `{member}/` is not named"));
    }
    report
}

/// Each file of a folder of tests, and each subfolder that is a module, is part of `main` or is a
/// test program of its own in `manifest`. Any other file would not be compiled, so its tests would
/// not run.
fn unlisted_tests(sources: &[SourceFile], folder: &str, main: &str, manifest: &str) -> Report {
    let mut report = Report::default();
    for source in sources {
        let Some(file) = source.path.strip_prefix(folder).and_then(|path| path.strip_prefix('/')) else { continue };
        let name = file.strip_suffix("/mod.rs").or_else(|| file.strip_suffix(".rs")).unwrap_or(file);
        if name == "main" || name.contains('/') {
            continue;
        }
        let (module, program) = (format!("mod {name};"), format!("name = \"{name}\""));
        let listed = main.lines().any(|line| line == module) || manifest.lines().any(|line| line == program);
        report.look(listed, || format!("{}: `{module}` is missing in {folder}/main.rs", source.path));
    }
    report
}

/// Checks that CI runs the commands of the README: each of its `cargo test` and `cargo run`
/// commands is a line of `.ci/run`.
/// There must be commands of both kinds. Arguments after `--` belong to the program and may differ.
fn commands(readme: &str, ci: &str) -> Report {
    let run_by_ci = ci_commands(ci);
    let told: BTreeSet<String> = code_spans(readme).chain(fenced_lines(readme)).filter_map(cargo_command).collect();
    let mut report = Report::default();
    for kind in ["cargo test", "cargo run"] {
        report.look(told.iter().any(|command| command.starts_with(kind)), || {
            format!("README.md gives no `{kind}` command")
        });
    }
    for command in &told {
        report.look(run_by_ci.contains(command), || format!("README.md tells to run `{command}`, .ci/run does not"));
    }
    report
}

/// Every example is run by a line of `.ci/run`: by cargo, or as a program that the tests built.
fn examples_in_ci(examples: &[String], ci: &str) -> Report {
    let lines: Vec<&str> = ci.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    let mut report = Report::default();
    for example in examples {
        let command = format!("cargo run --release --example {example}");
        let program = format!("\"$built/examples/{example}\"");
        // Options of the example may follow.
        let is_run = |line: &&str| line.contains(&program) || format!("{line} ").contains(&format!("{command} "));
        report.look(lines.iter().any(is_run), || format!(".ci/run does not run the example `{example}`"));
    }
    report
}

/// Returns the `cargo test` and `cargo run` commands of a script.
fn ci_commands(script: &str) -> BTreeSet<String> {
    let lines = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.filter_map(cargo_command).collect()
}

// Reading the tree.

/// A Rust source or document with its path from the root, with `/` on every system.
struct SourceFile {
    path: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn exists(path: &str) -> bool {
    root().join(path).exists()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns all Rust sources of the repository, sorted by path.
fn sources() -> Vec<SourceFile> {
    files(".rs")
}

/// Returns all documents of the repository, sorted by path.
fn documents() -> Vec<SourceFile> {
    files(".md")
}

/// Returns the files whose names end so, sorted by path.
fn files(end: &str) -> Vec<SourceFile> {
    let mut sources = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if name.ends_with(end) {
                let path = from_root(&path);
                let text = read(&path);
                sources.push(SourceFile { path, text });
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// Returns the names of the examples: `examples/<name>.rs` and `examples/<name>/main.rs`.
fn examples() -> Vec<String> {
    let sources = sources();
    let paths = sources.iter().filter_map(|source| {
        let path = source.path.strip_prefix("examples/")?;
        path.strip_suffix("/main.rs").or_else(|| path.strip_suffix(".rs"))
    });
    let names = paths.filter(|path| !path.contains('/'));
    names.map(str::to_owned).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("an entry of a readable folder").path());
    entries.collect()
}

/// Returns the file names of the book's chapters.
fn chapters() -> Vec<String> {
    let files = entries(&root().join("docs/src"));
    let names = files.iter().filter_map(|file| file.file_name()?.to_str());
    names.filter(|name| name.ends_with(".md") && *name != "SUMMARY.md").map(str::to_owned).collect()
}

fn from_root(path: &Path) -> String {
    let path = path.strip_prefix(root()).expect("a path under the root");
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("/")
}

/// Returns the folders in `members = [..]` of the root manifest.
fn workspace_members(manifest: &str) -> Vec<String> {
    let list =
        manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

// Each rule, violated on purpose.

#[track_caller]
fn check_wrong(report: &Report, expected: &[&str]) {
    assert!(report.looked_at > 0);
    assert_eq!(report.wrong, expected);
}

fn source(path: &str, text: &str) -> SourceFile {
    SourceFile { path: path.to_owned(), text: text.to_owned() }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

#[test]
fn a_chapter_that_is_not_listed_or_tested_is_found() {
    let facade = "#[doc = include_str!(\"../docs/src/a.md\")]\n/// `docs/src/b.md`";
    let expected = ["SUMMARY.md does not list b.md", "src/lib.rs does not include b.md: its examples are not tested"];
    check_wrong(&unlisted_chapters(&strings(&["a.md", "b.md"]), "- [A](a.md)\n", facade), &expected);
}

#[test]
fn a_good_example_that_is_no_quotation_is_found() {
    let example =
        |path: &str, lines: &str| format!("```rust\n// GOOD, in {path}\n{lines}\n```\n```text\n// BAD\nh(x)\n```\n");
    let document = [
        example("a.rs", "if x {\n    f(x);"),
        example("a.rs", "f(x);\ng(x);"),
        example("a.rs", "if x {\nf(x);"),
        example("b.rs", "f(x);"),
        "```rust\nf(x);\n```\n".to_owned(),
    ];
    let sources = [source("a.rs", "fn a() {\n    if x {\n        f(x);\n    }\n    g(x);\n}\n")];
    let expected = [
        "a.rs does not contain `f(x);\ng(x);`",
        "a.rs does not contain `if x {\nf(x);`",
        "b.rs does not contain `f(x);`",
        "no source is named for `f(x);`",
    ];
    check_wrong(&invented_examples(&document.concat(), &sources), &expected);
}

#[test]
fn a_readme_without_a_tested_example_is_found() {
    let readme = "```rust\nuse anabranch::prelude::*;\n```\n";
    let facade = "#[doc = include_str!(\"../a/README.md\")]";
    check_wrong(&untested_readme("a/README.md", readme, facade), &[]);
    let expected = "src/lib.rs does not include b/README.md: its examples are not tested";
    check_wrong(&untested_readme("b/README.md", readme, facade), &[expected]);
    let expected = "a/README.md: no example that uses the facade";
    check_wrong(&untested_readme("a/README.md", "```sh\nuse anabranch::prelude::*;\n```\n", facade), &[expected]);
}

#[test]
fn a_type_name_that_two_files_define_is_found() {
    let sources = [
        source("dsl/src/a.rs", "pub(crate) struct Window<T> {}\nstruct Rng;"),
        source("src/b.rs", "enum Window {}\nstruct Rng;"),
        source("dsl/tests/c.rs", "struct Window;"),
    ];
    let expected = ["src/b.rs: `Window` is also a type of dsl/src/a.rs: name one by what is special about it"];
    check_wrong(&shared_type_names(&sources), &expected);
}

#[test]
fn the_name_of_an_operation_in_a_string_is_found() {
    let text = "// \"add\"\nif op.name() == \"add\" {}\n#[cfg(test)]\nmod tests { const A: &str = \"add\"; }";
    let sources = [source("dsl/src/passes/fold.rs", text), source("dsl/src/ops/add.rs", text)];
    let expected = ["dsl/src/passes/fold.rs:2: write `prim::ADD` for \"add\""];
    check_wrong(&operation_names(&sources, &strings(&["add"])), &expected);
}

#[test]
fn index_arithmetic_on_a_construct_is_found() {
    let text = "// data.regions[1]\nlet body = data.regions[1];\nlet [a, b] = data.regions[..] else { panic!() };\n\
                let v = data.operands[i as usize + 1];\nlet w = data.operands[i];\nlet r = regions[i];";
    let sources = [source("runtime/src/flow/build.rs", text), source("dsl/src/ir/regions.rs", text)];
    let expected = [
        "runtime/src/flow/build.rs:2: ask `dsl/src/ir/regions.rs`: let body = data.regions[1];",
        "runtime/src/flow/build.rs:3: ask `dsl/src/ir/regions.rs`: let [a, b] = data.regions[..] else { panic!() };",
        "runtime/src/flow/build.rs:4: ask `dsl/src/ir/regions.rs`: let v = data.operands[i as usize + 1];",
    ];
    check_wrong(&layout_of_constructs(&sources), &expected);
}

#[test]
fn a_node_created_outside_the_builder_is_found() {
    let text = "// push_node\nlet node = graph.push_node(data);\n";
    let sources = [source("dsl/src/passes/a.rs", text), source("dsl/src/ir/builder.rs", text)];
    let expected = "dsl/src/passes/a.rs:2: use a `GraphBuilder`: let node = graph.push_node(data);";
    check_wrong(&created_nodes(&sources), &[expected]);
}

#[test]
fn a_rule_that_finds_nothing_to_look_at_fails() {
    let outcome = std::panic::catch_unwind(|| check(unfinished(&[])));
    assert!(outcome.is_err());
}

#[test]
fn a_marker_of_unfinished_work_is_found() {
    let text = ["fn f() {", concat!("    todo", "!()"), "}"].join("\n");
    let expected = concat!("dsl/src/lib.rs:2: todo", "!()");
    check_wrong(&unfinished(&[source("dsl/src/lib.rs", &text)]), &[expected]);
}

#[test]
fn unsafe_code_outside_the_runtime_is_found() {
    let text = "//! No unsafe.\n#![forbid(unsafe_code)]\nconst S: &str = \"unsafe\";\nunsafe impl Send for X {}\n";
    let report = unsafe_outside_runtime(&[
        source("dsl/src/a.rs", text),
        source("runtime/src/a.rs", text),
        source("tests/messages/ui/a.rs", text),
    ]);
    check_wrong(&report, &["dsl/src/a.rs:4: unsafe outside runtime/"]);
}

#[test]
fn a_test_that_sleeps_or_reads_a_clock_is_found() {
    let text = "// no sleep\nlet start = Instant::now();\nthread::sleep(TICK);\nlet asleep = 1;\n";
    let paths = ["runtime/tests/a.rs", "runtime/src/a/tests.rs", "runtime/src/a.rs", TIMED[0]];
    let report = waiting_tests(&paths.map(|path| source(path, text)));
    let wrong = |path, line| format!("{path}:{line}: a test that waits or reads a clock");
    assert_eq!(report.wrong, [(paths[0], 2), (paths[0], 3), (paths[1], 2), (paths[1], 3)].map(|(p, l)| wrong(p, l)));
}

#[test]
fn a_heavy_dependency_is_found_in_every_form() {
    let manifest = "[package]\ndescription = \"no tokio\"\n[dependencies]\n# rayon\nserde = \"1\"\nquinn-proto.workspace = true\n\
                    tokio-like = { package = \"rayon\" }\n[target.x.dev-dependencies.faer]\n";
    let expected = [
        "dsl/Cargo.toml: `quinn-proto.workspace = true` belongs to runtime",
        "dsl/Cargo.toml: `tokio-like = { package = \"rayon\" }` belongs to runtime",
        "dsl/Cargo.toml: `[target.x.dev-dependencies.faer]` belongs to runtime",
    ];
    check_wrong(&heavy_dependencies(manifest), &expected);
}

#[test]
fn a_long_source_is_found() {
    let sources = [
        source("dsl/src/a.rs", &"\n".repeat(LONGEST_SOURCE)),
        source("dsl/src/b.rs", &"\n".repeat(LONGEST_SOURCE + 1)),
        source("tests/data/c.rs", &"\n".repeat(LONGEST_SOURCE + 1)),
    ];
    let expected = "dsl/src/b.rs: 1201 lines, more than 1200: split it by subject";
    check_wrong(&too_long(&sources, "", LONGEST_SOURCE), &[expected]);
    check_wrong(&too_long(&sources[..2], "dsl/src/a", LONGEST_SOURCE), &[]);
    check_wrong(
        &too_long(&[source("dsl/src/c.rs", "\n\n")], "dsl/src/", 1),
        &["dsl/src/c.rs: 2 lines, more than 1: split it by subject"],
    );
}

#[test]
fn a_wide_comment_is_found() {
    let wide = |prefix: &str| format!("{prefix}{}", "x".repeat(WIDEST + 1 - prefix.len()));
    let lines =
        [wide("// "), wide("    //! "), wide("/// | "), wide("// https://"), wide("let x = "), "// é".repeat(25)];
    let report = too_wide(&[source("dsl/src/a.rs", &lines.join("\n"))], |line| line.trim_start().starts_with("//"));
    check_wrong(
        &report,
        &[1, 2].map(|line| format!("dsl/src/a.rs:{line}: 101 columns, more than 100")).each_ref().map(String::as_str),
    );
}

#[test]
fn a_circle_of_imports_is_found() {
    let mut sources = [
        source("m/src/lib.rs", "mod a; mod b; use a::{f, g};"),
        source("m/src/a/mod.rs", "mod tests; use crate::{b::{self, h}, c};"),
        source("m/src/a/tests.rs", "use crate::f;"),
        source("m/src/b.rs", "// crate::c\nfn h() { super::c::k() }\n#[cfg(test)]\nmod tests { use crate::c; }"),
        source("m/src/c.rs", "use super::a::f as g;"),
    ];
    let expected = [
        "m/src/: `a` imports itself through b, c",
        "m/src/: `b` imports itself through c",
        "m/src/: `c` imports itself through a",
    ];
    check_wrong(&circular_imports(&sources, "m/src/"), &expected);
    sources[4] = source("m/src/c.rs", "fn k() {}");
    check_wrong(&circular_imports(&sources, "m/src/"), &[]);
}

#[test]
fn an_import_from_a_later_folder_is_found() {
    let sources = [
        source("m/src/low/a.rs", "use crate::high::mid::T;"),
        source("m/src/low/b.rs", "fn f(x: crate::high::T) {}"),
        source("m/src/low/c.rs", "use crate::T;"),
        source("m/src/lib.rs", "pub use high::{mid, mid::T};"),
        source("m/src/high/mod.rs", "use crate::low::a;"),
        source("m/src/high/mid.rs", "use super::super::low::a;"),
    ];
    let expected = [("a", "high::mid"), ("b", "high"), ("c", "high::mid")]
        .map(|(file, target)| format!("m/src/: `low::{file}` imports from {target}"));
    let found = upward_imports(&sources, "m/src/", &[&["low"], &["high"]]);
    check_wrong(&found, &expected.each_ref().map(String::as_str));
    check_wrong(&upward_imports(&sources, "m/src/", &[&["high"], &["mid"]]), &[]);
    check_wrong(&upward_imports(&sources, "m/src/", &[&["low", "high"]]), &[]);
    let inside = &[&["high/mid"][..], &["low"], &["high"]];
    let expected = ["m/src/: `high::mid` imports from low::a", "m/src/: `low::b` imports from high"];
    check_wrong(&upward_imports(&sources, "m/src/", inside), &expected);
}

#[test]
fn an_import_past_the_door_is_found() {
    let sources = [
        source("m/src/lib.rs", "pub use inner::T;"),
        source("m/src/inner/mod.rs", "use crate::inner::a;"),
        source("m/src/inner/a.rs", "use super::T;"),
        source("m/src/door.rs", "pub use crate::inner::T;"),
        source("m/src/outer/a.rs", "use crate::door::T;"),
        source("m/src/outer/b.rs", "fn f(x: crate::inner::a::T) {}"),
    ];
    let found = imports_past_the_door(&sources, "m/src/", "inner", "door");
    check_wrong(&found, &["m/src/: `outer::b` imports from inner, past door"]);
}

#[test]
fn a_path_that_is_gone_is_found() {
    let document = "The graph is in `dsl/src/graph/`, its text in `dsl/src/print.rs`.\n```\n`dsl/gone.rs`\n```";
    let report = missing_paths(document, |path| ["dsl", "dsl/src/print.rs"].contains(&path));
    check_wrong(&report, &["`dsl/src/graph/` does not exist"]);
}

#[test]
fn a_crate_without_a_name_in_the_map_is_found() {
    let members = workspace_members("[workspace]\nmembers = [\n  \"dsl\", \"dsl-macros\",\n  \"runtime\",\n]\n");
    assert_eq!(members, ["dsl", "dsl-macros", "runtime"]);
    let report = unnamed_members("`dsl/` and `runtime`, not `dsl-macros/src/lib.rs`", &members);
    check_wrong(&report, &["the workspace crate `dsl-macros/` is not named"]);
}

#[test]
fn a_test_that_no_program_has_is_found() {
    let sources = ["main.rs", "a.rs", "b.rs", "c.rs", "d/mod.rs", "d/part.rs"];
    let sources = sources.map(|file| source(&format!("dsl/tests/{file}"), ""));
    let report = unlisted_tests(&sources, "dsl/tests", "#[macro_use]\nmod a;\n// mod c;\n", "[[test]]\nname = \"b\"\n");
    let expected = [
        "dsl/tests/c.rs: `mod c;` is missing in dsl/tests/main.rs",
        "dsl/tests/d/mod.rs: `mod d;` is missing in dsl/tests/main.rs",
    ];
    check_wrong(&report, &expected);
}

#[test]
fn a_command_that_ci_does_not_run_is_found() {
    let readme = "Run `cargo test --workspace`, then\n```sh\n$ cargo run --release --example digits\n```\n";
    let ci = "# cargo test --workspace\nstage x cargo run --release --example digits -- --small\n";
    let expected = "README.md tells to run `cargo test --workspace`, .ci/run does not";
    check_wrong(&commands(readme, ci), &[expected]);
    let expected = ["README.md gives no `cargo test` command"];
    check_wrong(&commands(&readme.replace("test", "bench"), ci), &expected);
}

#[test]
fn an_example_that_ci_does_not_run_is_found() {
    let ci = "stage w cargo run --release --example digits\n\
              stage x \"$built/examples/devices\" --small\n\
              # stage y \"$built/examples/newton\"\n\
              stage z \"$built/examples/newtons\"\n";
    let report = examples_in_ci(&strings(&["digits", "devices", "newton"]), ci);
    let expected = ".ci/run does not run the example `newton`";
    check_wrong(&report, &[expected]);
}
