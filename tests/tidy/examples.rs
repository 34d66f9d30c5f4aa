//! Examples in the documentation: users paste them into programs that depend on the facade alone,
//! with no feature for the project's own tests.

use super::text::fenced_blocks;
use super::{Report, SourceFile, check_wrong, source};

/// The folders of the crates with documentation for users.
const LIBRARIES: [&str; 7] =
    ["checkpoint/src/", "data/src/", "dsl/src/", "dsl-macros/src/", "runtime/src/", "src/", "train/src/"];

/// The crates that the facade re-exports from.
const INNER: [&str; 6] = [
    "anabranch_checkpoint::",
    "anabranch_data::",
    "anabranch_dsl::",
    "anabranch_macros::",
    "anabranch_runtime::",
    "anabranch_train::",
];

/// The modules of the facade that only the feature `testing` has.
const ONLY_FOR_TESTS: [&str; 2] = ["dsl::", "runtime::"];

/// Code in documentation names no crate but the facade, since users depend on no other. It names
/// nothing that only the feature `testing` has, except in hidden modules and on hidden items, which
/// only the project itself uses.
pub(crate) fn inner_crates_in_examples(sources: &[SourceFile]) -> Report {
    let mut report = Report::default();
    let hidden = hidden_modules(sources);
    for source in sources.iter().filter(|source| is_of_library(source)) {
        let is_hidden = hidden.iter().any(|module| is_in(&source.path, module));
        let lines: Vec<&str> = source.text.lines().map(str::trim_start).collect();
        for (index, line) in lines.iter().enumerate() {
            if !line.starts_with("//") && !line.contains("#[doc") {
                continue;
            }
            let number = index + 1;
            report.look(!names_inner_crate(line), || {
                format!("{}:{number}: an example uses `anabranch` alone", source.path)
            });
            report.look(!names_module_for_tests(line) || is_hidden || is_on_hidden_item(&lines[index..]), || {
                format!("{}:{number}: an example needs the feature `testing`: {line}", source.path)
            });
        }
    }
    report
}

/// The Rust in documents for users names no crate but the facade, and nothing that only the feature
/// `testing` has.
pub(crate) fn inner_crates_in_documents(documents: &[SourceFile]) -> Report {
    let mut report = Report::default();
    for document in documents {
        let rust = fenced_blocks(&document.text).into_iter().filter(|(language, _)| language.starts_with("rust"));
        for line in rust.flat_map(|(_, lines)| lines) {
            report.look(!names_inner_crate(line) && !names_module_for_tests(line), || {
                format!("{}: an example uses `anabranch` alone: {line}", document.path)
            });
        }
    }
    report
}

fn is_of_library(source: &SourceFile) -> bool {
    LIBRARIES.iter().any(|folder| source.path.starts_with(folder))
}

fn names_inner_crate(line: &str) -> bool {
    // A link may name any crate.
    let line = line.replace("](anabranch_", "](");
    INNER.iter().any(|name| line.contains(name))
}

/// Returns whether a line names such a module by its path, or in a list of imports.
fn names_module_for_tests(line: &str) -> bool {
    let is_of_facade = |before: &str| before.ends_with("anabranch::") || before.ends_with(['{', ' ', ',']);
    ONLY_FOR_TESTS.iter().any(|module| line.match_indices(module).any(|(at, _)| is_of_facade(&line[..at])))
}

/// Returns the paths of modules that are hidden or that only the feature `testing` has, each
/// without `.rs`.
fn hidden_modules(sources: &[SourceFile]) -> Vec<String> {
    let mut modules = Vec::new();
    for source in sources.iter().filter(|source| is_of_library(source)) {
        let mut hidden = false;
        for line in source.text.lines().map(str::trim) {
            if line.starts_with("#[") {
                hidden |= hides(line);
            } else if !line.starts_with("//") {
                let name = line.strip_suffix(';').and_then(|line| line.rsplit_once("mod "));
                if let Some((_, name)) = name.filter(|_| hidden) {
                    let folder = ["/lib.rs", "/mod.rs", ".rs"].iter().find_map(|end| source.path.strip_suffix(end));
                    modules.push(format!("{}/{name}", folder.expect("the name of a source")));
                }
                hidden = false;
            }
        }
    }
    modules
}

/// Returns whether an attribute hides its item from users.
fn hides(attribute: &str) -> bool {
    attribute == "#[doc(hidden)]" || (attribute.starts_with("#[cfg(") && attribute.contains("feature = \"testing\""))
}

/// Returns whether a file is a module or is below it.
fn is_in(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Returns whether the item whose documentation begins with `lines` is hidden.
fn is_on_hidden_item(lines: &[&str]) -> bool {
    let head = lines.iter().take_while(|line| line.starts_with("///") || line.starts_with("#["));
    head.into_iter().any(|line| hides(line))
}

#[test]
fn an_inner_crate_in_an_example_is_found() {
    let text = "/// use anabranch::prelude::*;\n/// use anabranch_dsl::prelude::*;\nuse anabranch_dsl::Graph;\n\
                /// use anabranch_data::Dataset;\n/// See [`Dataset`](anabranch_data::Dataset).";
    let expected = [2, 4].map(|line| format!("runtime/src/a.rs:{line}: an example uses `anabranch` alone"));
    let report = inner_crates_in_examples(&[source("runtime/src/a.rs", text)]);
    check_wrong(&report, &expected.each_ref().map(String::as_str));
}

#[test]
fn an_example_that_needs_the_feature_of_tests_is_found() {
    let text = "/// use anabranch::dsl::ir::Attrs;\npub fn f() {}\n/// # use anabranch::{runtime::Program, Graph};\n\
                #[must_use]\npub fn g() {}\n/// let program: a::runtime::Program;\nlet x = anabranch::dsl::x;\n\
                /// use anabranch::dsl::ir::Attrs;\n#[doc(hidden)]\npub fn h() {}";
    let sources = [
        source("dsl/src/lib.rs", "mod a;\n#[doc(hidden)]\n#[cfg(unix)]\npub mod b;\npub mod bc;"),
        source("dsl/src/a.rs", text),
        source("dsl/src/b.rs", text),
        source("dsl/src/b/mod.rs", "#[cfg(feature = \"testing\")]\nmod d;\nmod e;"),
        source("dsl/src/b/e.rs", text),
        source("dsl/src/bc/mod.rs", "#[cfg(feature = \"testing\")]\nmod d;\nmod e;"),
        source("dsl/src/bc/d.rs", text),
        source("dsl/src/bc/e.rs", "//! use anabranch::{\n//!     dsl::Graph,\n//! };\n#[doc(hidden)]\nuse a;"),
    ];
    let expected = [
        "dsl/src/a.rs:1: an example needs the feature `testing`: /// use anabranch::dsl::ir::Attrs;",
        "dsl/src/a.rs:3: an example needs the feature `testing`: /// # use anabranch::{runtime::Program, Graph};",
        "dsl/src/bc/e.rs:2: an example needs the feature `testing`: //!     dsl::Graph,",
    ];
    check_wrong(&inner_crates_in_examples(&sources), &expected);
}

#[test]
fn an_inner_crate_in_a_document_is_found() {
    let text = "`anabranch_dsl::x`\n```rust\nuse anabranch_dsl::x;\nuse anabranch::{dsl::x, Graph};\n\
                use anabranch::Graph;\n```\n```text\nanabranch_dsl::x\n```\n```rust,no_run\nanabranch::runtime::x();\n```";
    let expected = ["use anabranch_dsl::x;", "use anabranch::{dsl::x, Graph};", "anabranch::runtime::x();"]
        .map(|line| format!("a.md: an example uses `anabranch` alone: {line}"));
    let report = inner_crates_in_documents(&[source("a.md", text)]);
    check_wrong(&report, &expected.each_ref().map(String::as_str));
}
