//! The public interface of `anabranch`, as a golden file: one line for each declaration, in Rust's
//! words and sorted by path. Paths in signatures are relative to `anabranch`. All types in
//! signatures have a public path, and only setters of builders have flags as bare `bool` arguments.
//!
//! The file begins with the interface with default features. The lines that an optional feature
//! adds follow, each after its `#[cfg(feature = "..")]`, and last, under `several`, those that only
//! several features together add.
//!
//! The list comes from rustdoc's JSON, whose format is unstable. The JSON is read as plain values;
//! an unknown layout fails with a message that shows the format version. The first run takes
//! minutes, because rustdoc needs its own build folder, so the test is ignored by default and
//! `.ci/run` names it. It compares the interface with default and with optional features. With
//! `BLESS=1` it rewrites the file, one feature after another.

use serde_json::Value;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

mod declaration;

use declaration::{DeclarationWriter, where_clause};

/// The golden file, relative to the root of the repository.
const GOLDEN: &str = "tests/golden/public-api.txt";

/// The facade and the crates that it re-exports from.
const CRATES: [&str; 6] =
    ["anabranch", "anabranch_checkpoint", "anabranch_data", "anabranch_dsl", "anabranch_runtime", "anabranch_train"];

/// The features that are not enabled by default.
const OPTIONAL: [&str; 9] =
    ["checkpoints", "gpu", "images", "ndarray", "object_store", "parquet", "peers", "train", FOR_TESTS];

/// The feature whose functions may have types without a public path if others are enabled as well.
const FOR_TESTS: &str = "testing";

/// The command that runs the test below.
const COMMAND: &str = "cargo test -p anabranch-tests public_interface -- --ignored";

/// Methods with a `bool` argument that is the value of a `Tensor<bool>`, not a flag.
const VALUES: [&str; 1] = ["anabranch::extend::CondNode::branch"];

/// Types whose methods are operations. On all others, a method `(self, bool) -> Self` is the setter
/// of a builder.
const HANDLES: [&str; 3] = ["anabranch::AnyValue", "anabranch::List", "anabranch::Tensor"];

/// Traits that only the compiler implements and uses.
const INTERNAL: [&str; 2] = ["StructuralPartialEq", "TrivialClone"];

/// The prefix of declarations that optional features add, while they are compared.
const OPTIONAL_MARK: &str = "with a feature: ";

/// The declarations, each after its path, which orders them.
type Lines = BTreeSet<(String, String)>;

#[test]
#[ignore = "rustdoc needs minutes: `cargo test -p anabranch-tests public_interface -- --ignored`"]
fn public_interface_is_that_of_the_golden_file_and_names_its_types() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in a folder of the repository");
    let lines = |features: &[&str]| {
        let docs = Docs::read(&rustdoc_json(root, features));
        docs.check_signatures();
        docs.lines()
    };
    let by_default = lines(&[]);
    assert!(by_default.len() > 100, "rustdoc's JSON lists only {} public items", by_default.len());
    let (for_tests, for_users) = OPTIONAL.split_last().expect("there are optional features");
    let with_features = || &lines(for_users) | &lines(&[for_tests]);
    let golden = root.join(GOLDEN);
    if std::env::var_os("BLESS").is_some() {
        let mut text: Vec<String> = by_default.iter().map(|(_, line)| format!("{line}\n")).collect();
        // A feature that enables others has the lines that these do not have.
        let mut seen = by_default;
        for feature in OPTIONAL {
            let added: Lines = lines(&[feature]).difference(&seen).cloned().collect();
            text.extend(added.iter().map(|(_, line)| format!("#[cfg(feature = \"{feature}\")] {line}\n")));
            seen.extend(added);
        }
        for (_, line) in with_features().difference(&seen) {
            text.push(format!("#[cfg(feature = \"several\")] {line}\n"));
        }
        fs::write(&golden, text.concat()).expect("a writable file");
        return;
    }
    // Which feature adds a line is found out only when the file is written: each feature takes
    // another run of the compiler.
    let line = |(_, line): &(String, String)| line.trim_end().to_owned();
    let with_features = with_features();
    let optional = with_features.difference(&by_default).map(|entry| format!("{OPTIONAL_MARK}{}", line(entry)));
    let now: BTreeSet<String> = by_default.iter().map(line).chain(optional).collect();
    let before = fs::read_to_string(&golden).unwrap_or_default();
    let before: BTreeSet<String> = before
        .lines()
        .map(|line| match line.strip_prefix("#[cfg(feature = ").and_then(|rest| rest.split_once(")] ")) {
            Some((_, declaration)) => format!("{OPTIONAL_MARK}{declaration}"),
            None => line.to_owned(),
        })
        .collect();
    let removed = before.difference(&now).map(|line| format!("- {line}\n"));
    let added = now.difference(&before).map(|line| format!("+ {line}\n"));
    let changes: String = removed.chain(added).collect();
    assert!(
        changes.is_empty(),
        "the public interface differs from {GOLDEN}:\n{changes}If this is intended, run \
         `BLESS=1 {COMMAND}` and commit the file."
    );
}

/// Runs rustdoc for the crates, with the default and some other features. Returns the folder of its
/// output.
fn rustdoc_json(root: &Path, features: &[&str]) -> PathBuf {
    let target = root.join("target/public-api");
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root).args(["doc", "--lib", "--no-deps"]);
    for name in CRATES {
        command.args(["-p", &name.replace('_', "-")]);
    }
    for feature in features {
        command.args(["--features", &format!("{}/{feature}", CRATES[0])]);
    }
    let output = command
        .env("CARGO_TARGET_DIR", &target)
        // Stable rustdoc has JSON output only as an unstable option.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTDOCFLAGS", "-Zunstable-options --output-format json --document-hidden-items")
        .output()
        .expect("cargo starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "rustdoc cannot write JSON:\n{stderr}");
    target.join("doc")
}

/// An item: the index of its crate in [`CRATES`], and its id there.
type Id = (usize, String);

/// The item that a name in a module refers to.
enum NamedItem {
    Item(Id),
    /// An item of a crate that is not in [`CRATES`], by its kind and its path there.
    External(String, String),
}

/// The public items of the facade.
#[derive(Default)]
struct Exports {
    /// The paths of each item, with the number of their segments. The first is the shortest.
    paths: BTreeMap<Id, BTreeSet<(usize, String)>>,
    /// The shortest path of each item, by the path of its definition.
    by_definition: BTreeMap<String, String>,
    /// The names of all items.
    names: BTreeSet<String>,
    /// Modules, and items of crates that are not in [`CRATES`].
    lines: Lines,
}

impl Exports {
    /// Returns each item with its shortest path.
    fn shortest(&self) -> impl Iterator<Item = (&Id, &str)> {
        self.paths.iter().map(|(id, paths)| (id, &*paths.first().expect("an item was entered with a path").1))
    }
}

/// The JSON of the crates.
struct Docs {
    crates: Vec<Value>,
    exports: OnceCell<Exports>,
}

impl Docs {
    fn read(folder: &Path) -> Docs {
        let read = |name: &str| {
            let path = folder.join(format!("{name}.json"));
            let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        Docs { crates: CRATES.map(read).into(), exports: OnceCell::new() }
    }

    /// Panics because the JSON lacks something.
    fn unknown(&self, missing: &str) -> ! {
        let version = &self.crates[0]["format_version"];
        panic!("version {version} of rustdoc's JSON has no {missing}: adapt tests/public_api.rs")
    }

    fn root(&self, docs: usize) -> Id {
        (docs, text(&self.crates[docs]["root"]))
    }

    /// Returns an item, unless the crate defines no such item.
    fn item(&self, (docs, id): &Id) -> Option<&Value> {
        self.crates[*docs]["index"].get(id)
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
    fn children(&self, module: &Id, visible: fn(&Value) -> bool) -> Vec<(String, NamedItem)> {
        let Some((_, fields)) = self.item(module).map(|item| self.inner(item)) else { return Vec::new() };
        let mut children = Vec::new();
        for (id, item) in self.items(module.0, &fields["items"]) {
            if !visible(item) {
                continue;
            }
            match self.inner(item) {
                ("use", fields) => match self.target(id.0, fields) {
                    // A name may also be that of a private module, which no `use` exports.
                    NamedItem::Item(of) if self.item(&of).is_some_and(|item| item["visibility"] != "public") => {}
                    NamedItem::Item(of) if fields["is_glob"] == true => children.extend(self.children(&of, visible)),
                    target => children.push((text(&fields["name"]), target)),
                },
                // Methods are listed with their types.
                ("impl", _) => {}
                _ => children.push((text(&item["name"]), NamedItem::Item(id))),
            }
        }
        children
    }

    /// Returns the item that a `use` names: of the same crate by its id, of another by its path.
    fn target(&self, docs: usize, fields: &Value) -> NamedItem {
        let id = (docs, text(&fields["id"]));
        if self.item(&id).is_some() {
            return NamedItem::Item(id);
        }
        let source = text(&fields["source"]);
        let mut path = source.split("::");
        match path.next().and_then(|first| CRATES.iter().position(|name| *name == first)) {
            Some(of) => path.fold(NamedItem::Item(self.root(of)), |module, name| {
                let NamedItem::Item(module) = module else { return module };
                let mut children = self.children(&module, |_| true).into_iter();
                children.find(|(child, _)| child == name).map_or_else(|| self.unknown(&source), |(_, target)| target)
            }),
            None => NamedItem::External(text(&self.crates[docs]["paths"][&id.1]["kind"]), source.clone()),
        }
    }

    /// Returns the public items of the first crate.
    fn exports(&self) -> &Exports {
        self.exports.get_or_init(|| {
            let mut exports = Exports::default();
            let mut modules = vec![(CRATES[0].to_owned(), self.root(0))];
            while let Some((path, module)) = modules.pop() {
                for (name, target) in self.children(&module, is_public) {
                    let path = format!("{path}::{name}");
                    let id = match target {
                        NamedItem::External(kind, source) => {
                            let line = match kind.as_str() {
                                "proc_attribute" => format!("#[{path}]"),
                                "proc_derive" => format!("#[derive({path})]"),
                                _ => format!("pub use {source} as {path}"),
                            };
                            exports.lines.insert((path, line));
                            continue;
                        }
                        NamedItem::Item(id) => id,
                    };
                    let (kind, _) = self.inner(self.item(&id).unwrap_or_else(|| self.unknown(&path)));
                    if kind == "module" {
                        exports.lines.insert((path.clone(), format!("pub mod {path}")));
                        modules.push((path, id));
                    } else {
                        exports.names.insert(name);
                        exports.paths.entry(id).or_default().insert((path.matches("::").count(), path));
                    }
                }
            }
            let definitions = exports.shortest().map(|(id, path)| (self.definition(id.0, &id.1), path.to_owned()));
            exports.by_definition = definitions.collect();
            exports
        })
    }

    /// Returns the path of the definition of an item that is or is not in [`CRATES`].
    fn definition(&self, docs: usize, id: &str) -> String {
        let path = self.crates[docs]["paths"][id]["path"].as_array();
        path.map_or_else(String::new, |path| path.iter().map(text).collect::<Vec<_>>().join("::"))
    }

    /// Returns the public path of a type or trait that a signature mentions, if it has one.
    fn public_path(&self, docs: usize, id: &Value) -> Option<&str> {
        self.exports().by_definition.get(&self.definition(docs, &text(id))).map(String::as_str)
    }

    /// Returns the name of a type or trait in a signature.
    fn name(&self, docs: usize, path: &Value) -> String {
        if let Some(public) = self.public_path(docs, &path["id"]) {
            return public.strip_prefix("anabranch::").unwrap_or(public).to_owned();
        }
        let written = text(&path["path"]);
        let name = written.rsplit("::").next().unwrap_or_default();
        // The full path where the name alone is that of another type.
        let definition = self.definition(docs, &text(&path["id"]));
        if self.exports().names.contains(name) && !definition.is_empty() { definition } else { name.to_owned() }
    }

    /// Returns the declarations of all public items, their members and their implementations.
    fn lines(&self) -> Lines {
        let exports = self.exports();
        let mut lines = exports.lines.clone();
        for (id, path) in exports.shortest() {
            let item = self.item(id).expect("an exported item");
            lines.insert((path.to_owned(), self.declaration(id.0, path, item)));
            for member in self.members(id) {
                let key = format!("{path}::{}", text(&member.item["name"]));
                lines.insert((key, self.member(id.0, path, &member)));
            }
            for (_, other) in exports.paths[id].iter().skip(1) {
                lines.insert((other.clone(), format!("pub use {path} as {other}")));
            }
        }
        lines.extend(self.implementations());
        lines
    }

    /// Returns the writer of the declarations of a crate.
    fn writer(&self, docs: usize) -> DeclarationWriter<'_> {
        DeclarationWriter { docs: self, of: docs }
    }

    /// Returns the declaration of an item that is not a member of another.
    fn declaration(&self, docs: usize, path: &str, item: &Value) -> String {
        let (kind, fields) = self.inner(item);
        let rust = self.writer(docs);
        let generics = &fields["generics"];
        let params = rust.params(generics);
        let clause = where_clause(rust.predicates(generics));
        let declared = match kind {
            "struct" => {
                let body = match &fields["kind"] {
                    Value::Object(kind) if kind.contains_key("tuple") => {
                        format!("({})", self.tuple(docs, &fields["kind"]["tuple"]))
                    }
                    Value::Object(kind) if kind["plain"]["has_stripped_fields"] == true => " { .. }".to_owned(),
                    _ => String::new(),
                };
                format!("struct {path}{params}{body}{clause}")
            }
            "enum" => format!("enum {path}{params}{clause}"),
            "trait" => {
                let bounds = rust.annotation(&fields["bounds"]);
                let is_unsafe = if fields["is_unsafe"] == true { "unsafe " } else { "" };
                format!("{is_unsafe}trait {path}{params}{bounds}{clause}")
            }
            "function" => rust.function(path, fields, Vec::new()),
            "type_alias" => format!("type {path}{params}{clause} = {}", rust.ty(&fields["type"])),
            "constant" => format!("const {path}: {}", rust.ty(&fields["type"])),
            "macro" => format!("macro {path}!"),
            _ => self.unknown(&format!("declaration of {kind}s")),
        };
        let exhaustive = if item["attrs"].to_string().contains("non_exhaustive") { "#[non_exhaustive] " } else { "" };
        format!("{exhaustive}pub {declared}")
    }

    /// Returns the types of the fields of a tuple, with `_` for private fields.
    fn tuple(&self, docs: usize, fields: &Value) -> String {
        let Some(fields) = fields.as_array() else { self.unknown("fields of a tuple") };
        let ty = |id: &Value| match self.item(&(docs, text(id))) {
            Some(field) => self.writer(docs).ty(self.inner(field).1),
            None => "_".to_owned(),
        };
        fields.iter().map(ty).collect::<Vec<_>>().join(", ")
    }

    /// Returns the declaration of a member of the type or trait `owner`.
    fn member(&self, docs: usize, owner: &str, member: &TypeMember) -> String {
        let (kind, fields) = self.inner(member.item);
        let rust = self.writer(docs);
        let (of, predicates) = match member.of {
            Some(of) => (rust.args(&of["for"]["resolved_path"]["args"]), rust.params_as_predicates(&of["generics"])),
            None => (String::new(), Vec::new()),
        };
        let path = format!("{owner}{of}::{}", text(&member.item["name"]));
        // The items of a trait are as public as the trait.
        let public = if member.item["visibility"] == "public" { "pub " } else { "" };
        match kind {
            "struct_field" => format!("pub {path}: {}", rust.ty(fields)),
            "variant" => match &fields["kind"] {
                Value::Object(kind) if kind.contains_key("tuple") => {
                    format!("{path}({})", self.tuple(docs, &fields["kind"]["tuple"]))
                }
                Value::Object(_) => {
                    let fields = self.items(docs, &fields["kind"]["struct"]["fields"]);
                    let field = |(_, field): &(Id, &Value)| {
                        format!("{}: {}", text(&field["name"]), rust.ty(self.inner(field).1))
                    };
                    format!("{path} {{ {} }}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
                }
                _ => path,
            },
            "function" => {
                let provided = if public.is_empty() && fields["has_body"] == true { " { .. }" } else { "" };
                format!("{public}{}{provided}", rust.function(&path, fields, predicates))
            }
            "assoc_type" => {
                let bounds = rust.annotation(&fields["bounds"]);
                let default = &fields["type"];
                let default = if default.is_null() { String::new() } else { format!(" = {}", rust.ty(default)) };
                format!("{public}type {path}{}{bounds}{default}", rust.params(&fields["generics"]))
            }
            "assoc_const" => {
                let provided = if public.is_empty() && fields["value"].is_string() { " = .." } else { "" };
                format!("{public}const {path}: {}{provided}", rust.ty(&fields["type"]))
            }
            _ => self.unknown(&format!("member that is a {kind}")),
        }
    }

    /// Returns the implementations of public traits for public types. Implementations that Rust
    /// derives from the fields (`Send`) or from a generic implementation are not included.
    fn implementations(&self) -> Lines {
        let mut lines = Lines::new();
        for docs in 0..CRATES.len() {
            let Some(index) = self.crates[docs]["index"].as_object() else { self.unknown("index") };
            for item in index.values().filter(|item| !is_hidden(item)) {
                let ("impl", fields) = self.inner(item) else { continue };
                let (of, ty) = (&fields["trait"], &fields["for"]);
                if of.is_null() || fields["is_synthetic"] == true || !fields["blanket_impl"].is_null() {
                    continue;
                }
                let mut mentioned = Vec::new();
                paths_in(of, &mut mentioned);
                paths_in(ty, &mut mentioned);
                let is_ours = |id: &Value| self.is_ours(&self.definition(docs, &text(id)));
                let hidden = |id: &&Value| is_ours(id) && self.public_path(docs, id).is_none();
                // An implementation of a foreign trait for a foreign type concerns an argument of
                // the trait.
                let subject =
                    [&ty["resolved_path"]["id"], &of["id"]].into_iter().find_map(|id| self.public_path(docs, id));
                let subject = subject.or_else(|| mentioned.iter().find_map(|id| self.public_path(docs, id)));
                let internal = INTERNAL.iter().any(|name| of["path"] == *name);
                let Some(subject) = subject.filter(|_| !internal && !mentioned.iter().any(hidden)) else { continue };
                let rust = self.writer(docs);
                let items = self.items(docs, &fields["items"]).into_iter();
                let types: String = items
                    .filter_map(|(_, item)| {
                        let ("assoc_type", fields) = self.inner(item) else { return None };
                        Some(format!("type {} = {}; ", text(&item["name"]), rust.ty(&fields["type"])))
                    })
                    .collect();
                let types = if types.is_empty() { types } else { format!(" {{ {types}}}") };
                let (params, clause) = (rust.params(&fields["generics"]), rust.predicates(&fields["generics"]));
                let not = if fields["is_negative"] == true { "!" } else { "" };
                let (of, ty) = (rust.path(of), rust.ty(ty));
                let line = format!("impl{params} {not}{of} for {ty}{}{types}", where_clause(clause));
                lines.insert((subject.to_owned(), line));
            }
        }
        lines
    }

    /// Returns whether an item is defined in one of [`CRATES`], given the path of its definition.
    fn is_ours(&self, definition: &str) -> bool {
        definition.split("::").next().is_some_and(|first| CRATES.contains(&first))
    }

    /// Checks that the signatures of all public items name only public types, and that no argument
    /// is a flag.
    fn check_signatures(&self) {
        let mut faults = BTreeSet::new();
        for (id, path) in self.exports().shortest() {
            let item = self.item(id).expect("an exported item");
            let members = self.members(id);
            let members = members.iter().map(|of| (format!("{path}::{}", text(&of.item["name"])), of.item));
            for (path, item) in std::iter::once((path.to_owned(), item)).chain(members) {
                let (kind, fields) = self.inner(item);
                let mut mentioned = Vec::new();
                match kind {
                    "struct" | "enum" => paths_in(&fields["generics"], &mut mentioned),
                    "variant" => {
                        for (_, field) in self.items(id.0, &Value::Array(ids_in(&fields["kind"]))) {
                            paths_in(self.inner(field).1, &mut mentioned);
                        }
                    }
                    "trait" => {
                        paths_in(&fields["generics"], &mut mentioned);
                        paths_in(&fields["bounds"], &mut mentioned);
                    }
                    _ => paths_in(fields, &mut mentioned),
                }
                for mentioned in mentioned {
                    let at = self.definition(id.0, &text(mentioned));
                    // A trait that seals another has no public path on purpose.
                    let seals = at.ends_with("::Sealed");
                    if self.is_ours(&at) && !seals && self.public_path(id.0, mentioned).is_none() {
                        faults.insert(format!("{path}: no public path names {at}"));
                    }
                }
                let inputs = fields["sig"]["inputs"].as_array().map_or(&[][..], Vec::as_slice);
                let returns_own_type = fields["sig"]["output"]["generic"] == "Self"
                    || text(&fields["sig"]["output"]["resolved_path"]["id"]) == id.1;
                let is_handle = path.rsplit_once("::").is_some_and(|(owner, _)| HANDLES.contains(&owner));
                let setter = returns_own_type && inputs.len() == 2 && inputs[0][0] == "self" && !is_handle;
                let flag = inputs.iter().any(|input| input[1]["primitive"] == "bool");
                if flag && !setter && !VALUES.contains(&path.as_str()) {
                    faults.insert(format!("{path}: a flag is a bare `bool`"));
                }
            }
        }
        assert!(faults.is_empty(), "{}", faults.into_iter().collect::<Vec<_>>().join("\n"));
    }

    /// Returns the public fields, variants, and methods of a type, or the items of a trait.
    fn members(&self, id: &Id) -> Vec<TypeMember<'_>> {
        let Some((kind, fields)) = self.item(id).map(|item| self.inner(item)) else { return Vec::new() };
        let own = match kind {
            // A declaration shows all fields of a tuple.
            "struct" => self.items(id.0, &Value::Array(ids_in(&fields["kind"]["plain"]))),
            "enum" => self.items(id.0, &fields["variants"]),
            "trait" => self.items(id.0, &fields["items"]),
            _ => Vec::new(),
        };
        let mut members: Vec<_> = own.into_iter().map(|(_, item)| TypeMember { item, of: None }).collect();
        if let Some(impls) = fields.get("impls") {
            for (_, item) in self.items(id.0, impls) {
                let (_, fields) = self.inner(item);
                if fields["trait"].is_null() {
                    let items = self.items(id.0, &fields["items"]).into_iter();
                    members.extend(items.map(|(_, item)| TypeMember { item, of: Some(fields) }));
                }
            }
        }
        let of_type = kind == "struct";
        members.retain(|TypeMember { item, .. }| {
            // Variants and the items of traits are as visible as their owner.
            !is_hidden(item) && (item["visibility"] == "public" || (!of_type && item["visibility"] == "default"))
        });
        members
    }
}

/// A field, variant or method of a type, or an item of a trait.
struct TypeMember<'a> {
    item: &'a Value,
    /// The `impl` block that contains the item.
    of: Option<&'a Value>,
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
