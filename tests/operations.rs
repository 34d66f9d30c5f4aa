//! Every operation is complete, or says why it is not: documentation, cases, a gradient or the reason for none. That each has a
//! kernel is tested in `runtime/tests/corpus.rs`, that each gradient rule is checked against finite differences in
//! `dsl/tests/ops.rs`.

use anabranch::dsl::ops::{self, Grad};
use std::fs;

/// The sources of the operations.
fn sources() -> String {
    let files = fs::read_dir("dsl/src/ops").expect("tests run in the folder of the package");
    files.map(|f| fs::read_to_string(f.expect("a readable folder").path()).expect("a readable file")).collect()
}

#[test]
fn every_operation_is_complete_or_says_why_not() {
    let sources = sources();
    let lines: Vec<&str> = sources.lines().collect();
    let mut missing = Vec::new();
    let mut found = 0;
    for def in ops::all() {
        found += 1;
        let name = def.name;
        let constant = name.to_uppercase();
        let definition = lines.iter().position(|l| {
            let words: Vec<&str> =
                l.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).collect();
            let at = words.iter().position(|w| *w == constant);
            at.is_some_and(|i| i > 0 && (words[i - 1] == "static" || words[i - 1] == name))
        });
        match definition {
            None => missing.push(format!("{name}: no definition `{constant}` in dsl/src/ops/")),
            Some(i) => {
                let above = lines[..i].iter().rev().map(|l| l.trim_start()).find(|l| !l.starts_with("#["));
                if !above.is_some_and(|l| l.starts_with("///")) {
                    missing.push(format!("{name}: its definition says nothing"));
                }
            }
        }
        if !fs::exists(format!("tests/ops/{name}.toml")).unwrap_or(false) {
            missing.push(format!("{name}: no cases in tests/ops/"));
        }
        if let Grad::Zero(why) | Grad::Missing(why) = def.grad
            && why.len() < 10
        {
            missing.push(format!("{name}: `{why}` does not say why it has no gradient"));
        }
    }
    assert!(found >= 80, "{found} operations");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_method_has_an_example_that_runs() {
    let sources = sources();
    let mut missing = Vec::new();
    let mut found = 0;
    let (mut docs, mut in_tensor) = (String::new(), false);
    for line in sources.lines() {
        let line_start = line.trim_start();
        if line.starts_with("impl") || line == "}" {
            in_tensor = line.contains("Tensor<");
        }
        if let Some(doc) = line_start.strip_prefix("///") {
            docs.push_str(doc);
            docs.push('\n');
            continue;
        }
        // Rows of a macro bring their documentation along: there the name is a variable.
        if in_tensor
            && let Some(rest) = line_start.strip_prefix("pub fn ")
            && !rest.starts_with('$')
        {
            found += 1;
            if !docs.contains("```") {
                missing.push(rest.to_owned());
            }
        }
        if !line_start.starts_with("#[") {
            docs.clear();
        }
    }
    assert!(found >= 40, "{found} methods");
    assert!(missing.is_empty(), "no example:\n{}", missing.join("\n"));
}
