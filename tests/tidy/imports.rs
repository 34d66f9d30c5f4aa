//! The imports between the files of a crate: paths that begin with `crate`, `super` or `self`, and
//! paths through a child module. Tests are left out.

use super::text::code_of;
use super::{Report, SourceFile};
use std::collections::{BTreeMap, BTreeSet};

/// A module, as a path from the crate, for example `["graph", "tree"]`.
type ModulePath = Vec<String>;

/// The modules of a crate, and those that each of them imports.
type ImportGraph = BTreeMap<ModulePath, BTreeSet<ModulePath>>;

/// No file below `folder` imports itself through others.
pub(crate) fn circular_imports(sources: &[SourceFile], folder: &str) -> Report {
    let graph = imports(sources, folder);
    let mut report = Report::default();
    for module in graph.keys() {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&ModulePath> = graph[module].iter().collect();
        while let Some(next) = open.pop() {
            if reached.insert(next) {
                open.extend(&graph[next]);
            }
        }
        report.look(!reached.contains(module), || {
            let back = graph[module].iter().filter(|next| reaches(&graph, next, module)).map(|next| next.join("::"));
            format!("{folder}: `{}` imports itself through {}", module.join("::"), back.collect::<Vec<_>>().join(", "))
        });
    }
    report
}

fn reaches(graph: &ImportGraph, from: &ModulePath, to: &ModulePath) -> bool {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(next) = open.pop() {
        if next == to {
            return true;
        }
        if seen.insert(next) {
            open.extend(&graph[next]);
        }
    }
    false
}

/// No file or folder of a level imports one of a later level. Those of one level may import each
/// other. A level that names a file in a folder takes it out of the level of the folder.
pub(crate) fn upward_imports(sources: &[SourceFile], folder: &str, levels: &[&[&str]]) -> Report {
    let level = |module: &ModulePath| {
        let position = |path: &str| levels.iter().position(|level| level.contains(&path));
        (1..=module.len()).rev().find_map(|n| position(&module[..n].join("/")))
    };
    let mut report = Report::default();
    for (module, imported) in imports(sources, folder) {
        let Some(own) = level(&module) else { continue };
        let above: BTreeSet<String> =
            imported.iter().filter(|target| level(target) > Some(own)).map(|target| target.join("::")).collect();
        report.look(above.is_empty(), || {
            let above: Vec<&str> = above.iter().map(String::as_str).collect();
            format!("{folder}: `{}` imports from {}", module.join("::"), above.join(", "))
        });
    }
    report
}

/// No file imports from the folder `inner`, except those of `inner`, of `door` and the root.
pub(crate) fn imports_past_the_door(sources: &[SourceFile], folder: &str, inner: &str, door: &str) -> Report {
    let room_of = |module: &ModulePath| module.first().cloned();
    let mut report = Report::default();
    for (module, imported) in imports(sources, folder) {
        let Some(own) = room_of(&module).filter(|own| own != inner && own != door) else { continue };
        let past = imported.iter().any(|target| room_of(target).is_some_and(|room| room == inner && room != own));
        report.look(!past, || format!("{folder}: `{}` imports from {inner}, past {door}", module.join("::")));
    }
    report
}

/// Returns the imports between the files below `folder`, which is the source folder of a crate.
fn imports(sources: &[SourceFile], folder: &str) -> ImportGraph {
    let is_test = |module: &ModulePath| module.last().is_some_and(|name| name == "tests" || name == "growth");
    let files: Vec<(ModulePath, &str)> = sources
        .iter()
        .filter_map(|source| {
            let path = source.path.strip_prefix(folder)?.strip_suffix(".rs")?;
            let parts = path.split('/').filter(|part| !["mod", "lib", ""].contains(part));
            Some((parts.map(str::to_owned).collect(), source.text.as_str()))
        })
        .filter(|(module, _)| !is_test(module))
        .collect();
    let modules: BTreeSet<&ModulePath> = files.iter().map(|(module, _)| module).collect();
    // The names that the root re-exports, and where from.
    let root = files.iter().filter(|(module, _)| module.is_empty()).flat_map(|(_, text)| paths(&code_of(text)));
    let exported: BTreeMap<String, ModulePath> = root.filter_map(|path| Some((path.last()?.clone(), path))).collect();
    let imports_of = |(module, text): &(ModulePath, &str)| {
        let code = code_of(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default());
        let targets = paths(&code).into_iter().filter_map(|path| {
            let mut target = absolute(&path, module, &modules)?;
            if let [name, ..] = &target[..]
                && !modules.contains(&vec![name.clone()])
                && let Some(path) = exported.get(name)
            {
                target = absolute(path, &Vec::new(), &modules)?;
            }
            // The file that defines a path is its longest prefix that is a module.
            while !modules.contains(&target) {
                target.pop()?;
            }
            Some(target).filter(|target| target != module)
        });
        (module.clone(), targets.collect())
    };
    files.iter().map(imports_of).collect()
}

/// Returns a path from the crate, if the path is one within it.
fn absolute(path: &[String], module: &ModulePath, modules: &BTreeSet<&ModulePath>) -> Option<ModulePath> {
    let (first, rest) = path.split_first()?;
    let (mut base, mut rest) = match first.as_str() {
        "crate" => return Some(rest.to_vec()),
        "self" | "super" => (module.clone(), path),
        child => {
            let mut target = module.clone();
            target.push(child.to_owned());
            return modules.contains(&target).then(|| module.iter().chain(path).cloned().collect());
        }
    };
    while let Some((first, after)) = rest.split_first()
        && ["self", "super"].contains(&first.as_str())
    {
        if first == "super" {
            base.pop()?;
        }
        rest = after;
    }
    base.extend_from_slice(rest);
    Some(base)
}

/// Returns the paths in code: those of `use` declarations, with groups expanded, and others.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(start) = rest.find(|c: char| c.is_alphanumeric() || c == '_') {
        rest = &rest[start..];
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let end = rest.find(|c: char| !is_path(c)).unwrap_or(rest.len());
        let word = &rest[..end];
        rest = &rest[end..];
        if word == "use" {
            let end = rest.find(';').unwrap_or(rest.len());
            expand(rest[..end].trim(), &mut Vec::new(), &mut found);
            rest = &rest[end..];
        } else if word == "pub" && rest.starts_with("(in ") {
            rest = &rest[rest.find(')').unwrap_or(0)..];
        } else if word.contains("::") {
            found.push(segments(word));
        }
    }
    found
}

fn segments(path: &str) -> Vec<String> {
    path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Adds the paths of a `use` tree after a prefix.
fn expand(tree: &str, prefix: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let length = prefix.len();
    if let Some((before, group)) = tree.split_once('{') {
        prefix.extend(segments(before.trim()));
        let group = group.trim_end().strip_suffix('}').unwrap_or(group);
        let (mut depth, mut start) = (0, 0);
        for (i, c) in group.char_indices().chain([(group.len(), ',')]) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    let item = group[start..i].trim();
                    if !item.is_empty() {
                        expand(item, prefix, found);
                    }
                    start = i + 1;
                }
                _ => {}
            }
        }
    } else {
        let path = tree.split(" as ").next().unwrap_or_default();
        prefix.extend(segments(path.trim()).into_iter().filter(|part| part != "*"));
        found.push(prefix.clone());
    }
    prefix.truncate(length);
}
