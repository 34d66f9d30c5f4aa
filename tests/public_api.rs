//! The public interface of `anabranch`, as a golden file: one line for each public path, and for
//! each member of a type or trait. All types in signatures have a public path, and flags are not
//! bare `bool` arguments.
//!
//! The list comes from rustdoc's JSON, whose format is unstable. Only its most stable fields are
//! read, as plain JSON values; an unknown layout fails with a message that shows the format
//! version. The run takes a minute, because rustdoc needs its own build folder, so the test is
//! ignored by default and `.ci/run` names it. With `BLESS=1` it rewrites the file.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The golden file, relative to the root of the repository.
const GOLDEN: &str = "tests/golden/public-api.txt";

/// The facade and the crates that it re-exports from.
const CRATES: [&str; 3] = ["anabranch", "anabranch_dsl", "anabranch_runtime"];

/// The command that runs the test below.
const COMMAND: &str = "cargo test -p anabranch-tests public_interface -- --ignored";

/// Methods with a `bool` argument that is the value of a `Tensor<bool>`, not a flag.
const VALUES: [&str; 1] = ["anabranch::extend::CondNode::branch"];

/// Types whose methods are operations. On all others, a method `(self, bool) -> Self` is the setter
/// of a builder.
const HANDLES: [&str; 3] = ["anabranch::AnyValue::", "anabranch::List::", "anabranch::Tensor::"];

#[test]
#[ignore = "rustdoc needs a minute: `cargo test -p anabranch-tests public_interface -- --ignored`"]
fn public_interface_is_that_of_the_golden_file_and_names_its_types() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in a folder of the repository");
    let docs = Docs::read(&rustdoc_json(root));
    let exports = docs.exports();
    let now = docs.lines(&exports);
    assert!(now.len() > 100, "rustdoc's JSON lists only {} public items", now.len());
    docs.check_signatures(&exports);
    let golden = root.join(GOLDEN);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&golden, now.iter().map(|line| format!("{line}\n")).collect::<String>()).expect("a writable file");
        return;
    }
    let before = fs::read_to_string(&golden).unwrap_or_default();
    let before: BTreeSet<&str> = before.lines().collect();
    let now: BTreeSet<&str> = now.iter().map(String::as_str).collect();
    let removed = before.difference(&now).map(|line| format!("- {line}\n"));
    let added = now.difference(&before).map(|line| format!("+ {line}\n"));
    let changes: String = removed.chain(added).collect();
    assert!(
        changes.is_empty(),
        "the public interface differs from {GOLDEN}:\n{changes}If this is intended, run \
         `BLESS=1 {COMMAND}` and commit the file."
    );
}

/// Runs rustdoc for each of the crates. Returns the folder of its output.
fn rustdoc_json(root: &Path) -> PathBuf {
    let target = root.join("target/public-api");
    for name in CRATES {
        let output = Command::new(env!("CARGO"))
            .current_dir(root)
            // Stable rustdoc has JSON output only as an unstable option.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_TARGET_DIR", &target)
            // The feature `jit` adds no public items and takes long to build.
            .args(["rustdoc", "--lib", "--no-default-features", "-p", &name.replace('_', "-")])
            .args(["--", "-Zunstable-options", "--output-format", "json", "--document-hidden-items"])
            .output()
            .expect("cargo starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rustdoc cannot write the JSON of {name}:\n{stderr}");
    }
    target.join("doc")
}

/// An item: the index of its crate in [`CRATES`], and its id there.
type Id = (usize, String);

/// The item that a name in a module refers to.
enum Target {
    Item(Id),
    /// An item of a crate that is not in [`CRATES`], by its kind.
    External(String),
}

/// The public items of the facade.
#[derive(Default)]
struct Exports {
    /// The paths of each item, with the number of their segments. The first is the shortest.
    paths: BTreeMap<Id, BTreeSet<(usize, String)>>,
    /// A line for each path, without members.
    lines: BTreeSet<String>,
}

impl Exports {
    /// Returns each item with its shortest path.
    fn shortest(&self) -> impl Iterator<Item = (&Id, &str)> {
        self.paths.iter().map(|(id, paths)| (id, &*paths.first().expect("an item was entered with a path").1))
    }
}

/// The JSON of the crates.
struct Docs(Vec<Value>);

impl Docs {
    fn read(folder: &Path) -> Docs {
        let read = |name: &str| {
            let path = folder.join(format!("{name}.json"));
            let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        Docs(CRATES.map(read).into())
    }

    /// Panics because the JSON lacks something.
    fn unknown(&self, missing: &str) -> ! {
        let version = &self.0[0]["format_version"];
        panic!("version {version} of rustdoc's JSON has no {missing}: adapt tests/public_api.rs")
    }

    fn root(&self, docs: usize) -> Id {
        (docs, text(&self.0[docs]["root"]))
    }

    /// Returns an item, unless the crate defines no such item.
    fn item(&self, (docs, id): &Id) -> Option<&Value> {
        self.0[*docs]["index"].get(id)
    }

    /// Returns the kind of an item and the fields of that kind.
    fn inner<'a>(&self, item: &'a Value) -> (&'a str, &'a Value) {
        let inner = item["inner"].as_object().and_then(|inner| inner.iter().next());
        inner.map_or_else(|| self.unknown("field `inner`"), |(kind, fields)| (kind.as_str(), fields))
    }

    /// Returns the items that a list of ids names.
    fn items(&self, docs: usize, ids: &Value) -> Vec<(Id, &Value)> {
        let Some(ids) = ids.as_array() else { self.unknown("list of ids") };
        let ids = ids.iter().map(|id| (docs, text(id)));
        ids.filter_map(|id| self.item(&id).map(|item| (id.clone(), item))).collect()
    }

    /// Returns the visible items of a module with their names there.
    fn children(&self, module: &Id, visible: fn(&Value) -> bool) -> Vec<(String, Target)> {
        let Some((_, fields)) = self.item(module).map(|item| self.inner(item)) else { return Vec::new() };
        let mut children = Vec::new();
        for (id, item) in self.items(module.0, &fields["items"]) {
            if !visible(item) {
                continue;
            }
            match self.inner(item) {
                ("use", fields) => match self.target(id.0, fields) {
                    // A name may also be that of a private module, which no `use` exports.
                    Target::Item(of) if self.item(&of).is_some_and(|item| item["visibility"] != "public") => {}
                    Target::Item(of) if fields["is_glob"] == true => children.extend(self.children(&of, visible)),
                    target => children.push((text(&fields["name"]), target)),
                },
                // Methods are listed with their types.
                ("impl", _) => {}
                _ => children.push((text(&item["name"]), Target::Item(id))),
            }
        }
        children
    }

    /// Returns the item that a `use` names: of the same crate by its id, of another by its path.
    fn target(&self, docs: usize, fields: &Value) -> Target {
        let id = (docs, text(&fields["id"]));
        if self.item(&id).is_some() {
            return Target::Item(id);
        }
        let source = text(&fields["source"]);
        let mut path = source.split("::");
        match path.next().and_then(|first| CRATES.iter().position(|name| *name == first)) {
            Some(of) => path.fold(Target::Item(self.root(of)), |module, name| {
                let Target::Item(module) = module else { return module };
                let mut children = self.children(&module, |_| true).into_iter();
                children.find(|(child, _)| child == name).map_or_else(|| self.unknown(&source), |(_, target)| target)
            }),
            None => Target::External(text(&self.0[docs]["paths"][&id.1]["kind"])),
        }
    }

    /// Returns the public items of the first crate.
    fn exports(&self) -> Exports {
        let mut exports = Exports::default();
        let mut modules = vec![(CRATES[0].to_owned(), self.root(0))];
        while let Some((path, module)) = modules.pop() {
            for (name, target) in self.children(&module, is_public) {
                let path = format!("{path}::{name}");
                let id = match target {
                    Target::External(kind) => {
                        exports.lines.insert(format!("{path} ({kind})"));
                        continue;
                    }
                    Target::Item(id) => id,
                };
                let (kind, _) = self.inner(self.item(&id).unwrap_or_else(|| self.unknown(&path)));
                exports.lines.insert(format!("{path} ({kind})"));
                if kind == "module" {
                    modules.push((path, id));
                } else {
                    exports.paths.entry(id).or_default().insert((path.matches("::").count(), path));
                }
            }
        }
        exports
    }

    /// Returns a line for each public path, sorted, and below the shortest path of a type or trait
    /// its members.
    fn lines(&self, exports: &Exports) -> Vec<String> {
        let mut lines = exports.lines.clone();
        for (id, path) in exports.shortest() {
            lines.extend(self.members(id).into_iter().map(|(_, member)| format!("{path}{}", self.member(member))));
        }
        lines.into_iter().collect()
    }

    /// Checks that the signatures of all public items name only public types, and that no argument
    /// is a flag.
    fn check_signatures(&self, exports: &Exports) {
        let defined_at = |docs: usize, id: &Value| self.0[docs]["paths"][text(id)]["path"].clone();
        let named: Vec<Value> = exports.paths.keys().map(|(docs, id)| defined_at(*docs, &Value::from(&**id))).collect();
        let mut faults = BTreeSet::new();
        for (id, path) in exports.shortest() {
            let item = self.item(id).expect("an exported item");
            let members =
                self.members(id).into_iter().map(|(id, member)| (format!("{path}{}", self.member(member)), id, member));
            for (path, (docs, _), item) in std::iter::once((path.to_owned(), id.clone(), item)).chain(members) {
                let (kind, fields) = self.inner(item);
                let mut mentioned = Vec::new();
                match kind {
                    "struct" | "enum" => paths_in(&fields["generics"], &mut mentioned),
                    "variant" => {
                        for (_, field) in self.items(docs, &Value::Array(ids_in(&fields["kind"]))) {
                            paths_in(self.inner(field).1, &mut mentioned);
                        }
                    }
                    "trait" => {
                        paths_in(&fields["generics"], &mut mentioned);
                        paths_in(&fields["bounds"], &mut mentioned);
                    }
                    _ => paths_in(fields, &mut mentioned),
                }
                for id in mentioned {
                    let at = defined_at(docs, id);
                    let ours = CRATES.iter().any(|name| at[0] == *name);
                    // A trait that seals another has no public path on purpose.
                    let seals = at.as_array().is_some_and(|at| at.last().is_some_and(|name| name == "Sealed"));
                    if ours && !seals && !named.contains(&at) {
                        faults.insert(format!("{path}: no public path names {at}"));
                    }
                }
                let inputs = fields["sig"]["inputs"].as_array().map_or(&[][..], Vec::as_slice);
                let returns_own_type = fields["sig"]["output"]["generic"] == "Self"
                    || text(&fields["sig"]["output"]["resolved_path"]["id"]) == id.1;
                let is_handle = HANDLES.iter().any(|handle| path.starts_with(handle));
                let setter = returns_own_type && inputs.len() == 2 && inputs[0][0] == "self" && !is_handle;
                let flag = inputs.iter().any(|input| input[1]["primitive"] == "bool");
                if flag && !setter && !VALUES.iter().any(|value| path.starts_with(value)) {
                    faults.insert(format!("{path}: a flag is a bare `bool`"));
                }
            }
        }
        assert!(faults.is_empty(), "{}", faults.into_iter().collect::<Vec<_>>().join("\n"));
    }

    /// Returns the public fields, variants, and methods of a type, or the items of a trait.
    fn members(&self, id: &Id) -> Vec<(Id, &Value)> {
        let Some((kind, fields)) = self.item(id).map(|item| self.inner(item)) else { return Vec::new() };
        let mut members = match kind {
            "struct" => self.items(id.0, &Value::Array(ids_in(&fields["kind"]))),
            "enum" => self.items(id.0, &fields["variants"]),
            "trait" => self.items(id.0, &fields["items"]),
            _ => Vec::new(),
        };
        if let Some(impls) = fields.get("impls") {
            for (_, item) in self.items(id.0, impls) {
                let (_, fields) = self.inner(item);
                if fields["trait"].is_null() {
                    members.extend(self.items(id.0, &fields["items"]));
                }
            }
        }
        let of_type = kind == "struct";
        members.retain(|(_, item)| {
            // Variants and the items of traits are as visible as their owner.
            !is_hidden(item) && (item["visibility"] == "public" || (!of_type && item["visibility"] == "default"))
        });
        members
    }

    /// Returns the name of a member, with the names of parameters.
    fn member(&self, item: &Value) -> String {
        let name = text(&item["name"]);
        match self.inner(item) {
            ("struct_field", _) => format!(".{name}"),
            ("function", fields) => {
                let Some(inputs) = fields["sig"]["inputs"].as_array() else { self.unknown("parameters of a method") };
                let inputs: Vec<String> = inputs.iter().map(|input| text(&input[0])).collect();
                format!("::{name}({})", inputs.join(", "))
            }
            (kind, _) => format!("::{name} ({kind})"),
        }
    }
}

/// Returns the ids of the fields of a struct, of whatever kind.
fn ids_in(kind: &Value) -> Vec<Value> {
    match kind {
        Value::Number(_) => vec![kind.clone()],
        Value::Array(all) => all.iter().flat_map(ids_in).collect(),
        Value::Object(all) => all.values().flat_map(ids_in).collect(),
        _ => Vec::new(),
    }
}

/// Collects the ids of the types and traits that a signature or type mentions.
fn paths_in<'a>(value: &'a Value, to: &mut Vec<&'a Value>) {
    match value {
        Value::Array(all) => all.iter().for_each(|value| paths_in(value, to)),
        Value::Object(all) => {
            if all.contains_key("path") && all.contains_key("args") {
                to.extend(all.get("id"));
            }
            all.values().for_each(|value| paths_in(value, to));
        }
        _ => {}
    }
}

/// Returns an id or a name as text.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn is_public(item: &Value) -> bool {
    item["visibility"] == "public" && !is_hidden(item)
}

/// Returns whether an item is `#[doc(hidden)]`.
fn is_hidden(item: &Value) -> bool {
    let attrs = item["attrs"].to_string();
    attrs.contains("doc(hidden)") || attrs.contains("\"hidden\"")
}
