//! Rust's text of types, bounds and generics that rustdoc's JSON describes.

use super::{Docs, text};
use serde_json::Value;

/// Writes declarations of items of one crate.
pub(super) struct DeclarationWriter<'a> {
    pub(super) docs: &'a Docs,
    /// The index of the crate.
    pub(super) of: usize,
}

impl DeclarationWriter<'_> {
    /// Returns a list as an array, and an absent list as an empty array.
    fn list<'v>(&self, value: &'v Value) -> &'v [Value] {
        match value {
            Value::Null => &[],
            Value::Array(list) => list,
            other => self.docs.unknown(&format!("list: {other}")),
        }
    }

    fn join(&self, list: &Value, separator: &str, write: impl Fn(&Value) -> String) -> String {
        self.list(list).iter().map(write).collect::<Vec<_>>().join(separator)
    }

    pub(super) fn ty(&self, ty: &Value) -> String {
        let Some((kind, of)) = ty.as_object().and_then(|kinds| kinds.iter().next()) else {
            return if ty == "infer" { "_".to_owned() } else { self.docs.unknown(&format!("type: {ty}")) };
        };
        match kind.as_str() {
            "resolved_path" => self.path(of),
            "generic" | "primitive" => text(of),
            "tuple" => match self.list(of) {
                [one] => format!("({},)", self.ty(one)),
                _ => format!("({})", self.join(of, ", ", |ty| self.ty(ty))),
            },
            "slice" => format!("[{}]", self.ty(of)),
            "array" => format!("[{}; {}]", self.ty(&of["type"]), text(&of["len"])),
            "borrowed_ref" => {
                let lifetime = of["lifetime"].as_str().map_or_else(String::new, |lifetime| format!("{lifetime} "));
                let mutable = if of["is_mutable"] == true { "mut " } else { "" };
                format!("&{lifetime}{mutable}{}", self.target(&of["type"]))
            }
            "raw_pointer" => {
                let mutable = if of["is_mutable"] == true { "mut" } else { "const" };
                format!("*{mutable} {}", self.target(&of["type"]))
            }
            "impl_trait" => format!("impl {}", self.bounds(of)),
            "dyn_trait" => {
                let traits = self.join(&of["traits"], " + ", |bound| self.trait_bound(bound));
                match of["lifetime"].as_str() {
                    Some("'_") | None => format!("dyn {traits}"),
                    Some(lifetime) => format!("dyn {traits} + {lifetime}"),
                }
            }
            "function_pointer" => {
                let inputs = self.join(&of["sig"]["inputs"], ", ", |input| self.ty(&input[1]));
                format!("{}fn({inputs}){}", self.binder(&of["generic_params"]), self.output(&of["sig"]["output"]))
            }
            "qualified_path" => {
                let (of_type, name) = (self.ty(&of["self_type"]), text(&of["name"]));
                let args = self.args(&of["args"]);
                // Without the trait if it has no name, or if a type parameter's bounds name it.
                if of["trait"].is_null() || of["trait"]["path"] == "" || of["self_type"]["generic"].is_string() {
                    format!("{of_type}::{name}{args}")
                } else {
                    format!("<{of_type} as {}>::{name}{args}", self.path(&of["trait"]))
                }
            }
            _ => self.docs.unknown(&format!("type: {ty}")),
        }
    }

    /// Returns the type behind a reference or pointer: several bounds are in parentheses.
    fn target(&self, ty: &Value) -> String {
        let target = self.ty(ty);
        let has_bounds = target.starts_with("dyn ") || target.starts_with("impl ");
        if has_bounds && target.contains(" + ") { format!("({target})") } else { target }
    }

    /// Returns a type or trait with its arguments.
    pub(super) fn path(&self, path: &Value) -> String {
        format!("{}{}", self.docs.name(self.of, path), self.args(&path["args"]))
    }

    pub(super) fn args(&self, args: &Value) -> String {
        if let Some(call) = args.get("parenthesized") {
            let inputs = self.join(&call["inputs"], ", ", |ty| self.ty(ty));
            return format!("({inputs}){}", self.output(&call["output"]));
        }
        let list = &args["angle_bracketed"];
        let mut all: Vec<String> = Vec::new();
        for arg in self.list(&list["args"]) {
            all.push(match arg.as_object().and_then(|kinds| kinds.iter().next()) {
                Some((kind, ty)) if kind == "type" => self.ty(ty),
                Some((kind, lifetime)) if kind == "lifetime" => text(lifetime),
                Some((kind, constant)) if kind == "const" => text(&constant["expr"]),
                _ => self.ty(arg),
            });
        }
        for constraint in self.list(&list["constraints"]) {
            let name = format!("{}{}", text(&constraint["name"]), self.args(&constraint["args"]));
            let binding = &constraint["binding"];
            all.push(match binding.get("constraint") {
                Some(bounds) => format!("{name}: {}", self.bounds(bounds)),
                None => format!("{name} = {}", self.ty(&binding["equality"]["type"])),
            });
        }
        if all.is_empty() { String::new() } else { format!("<{}>", all.join(", ")) }
    }

    fn bounds(&self, bounds: &Value) -> String {
        self.join(bounds, " + ", |bound| {
            if let Some(of) = bound.get("trait_bound") {
                let maybe = if of["modifier"] == "maybe" { "?" } else { "" };
                format!("{maybe}{}", self.trait_bound(of))
            } else if let Some(lifetime) = bound.get("outlives") {
                text(lifetime)
            } else if let Some(captured) = bound.get("use") {
                format!(
                    "use<{}>",
                    self.join(captured, ", ", |name| text(name.get("lifetime").unwrap_or(&name["param"])))
                )
            } else {
                self.docs.unknown(&format!("bound: {bound}"))
            }
        })
    }

    /// Returns `: A + B`, or nothing.
    pub(super) fn annotation(&self, bounds: &Value) -> String {
        let bounds = self.bounds(bounds);
        if bounds.is_empty() { bounds } else { format!(": {bounds}") }
    }

    fn trait_bound(&self, bound: &Value) -> String {
        format!("{}{}", self.binder(&bound["generic_params"]), self.path(&bound["trait"]))
    }

    /// Returns `for<'a> `, or nothing.
    fn binder(&self, params: &Value) -> String {
        let params = self.join(params, ", ", |param| text(&param["name"]));
        if params.is_empty() { params } else { format!("for<{params}> ") }
    }

    /// Returns ` -> T`, or nothing.
    fn output(&self, output: &Value) -> String {
        if output.is_null() { String::new() } else { format!(" -> {}", self.ty(output)) }
    }

    /// Returns the parameters in angle brackets, or nothing.
    pub(super) fn params(&self, generics: &Value) -> String {
        let mut params = Vec::new();
        for param in self.list(&generics["params"]) {
            let (name, kind) = (text(&param["name"]), &param["kind"]);
            if let Some(lifetime) = kind.get("lifetime") {
                let outlives = self.join(&lifetime["outlives"], " + ", text);
                params.push(if outlives.is_empty() { name } else { format!("{name}: {outlives}") });
            } else if let Some(constant) = kind.get("const") {
                let default = constant["default"].as_str().map_or_else(String::new, |value| format!(" = {value}"));
                params.push(format!("const {name}: {}{default}", self.ty(&constant["type"])));
            } else if kind["type"]["is_synthetic"] == false {
                let (bounds, default) = (self.annotation(&kind["type"]["bounds"]), &kind["type"]["default"]);
                let default = if default.is_null() { String::new() } else { format!(" = {}", self.ty(default)) };
                params.push(format!("{name}{bounds}{default}"));
            }
        }
        if params.is_empty() { String::new() } else { format!("<{}>", params.join(", ")) }
    }

    /// Returns the bounds of the parameters as predicates, for a declaration that does not list the
    /// parameters: a method is declared below the parameters of its `impl`.
    pub(super) fn params_as_predicates(&self, generics: &Value) -> Vec<String> {
        let mut predicates = Vec::new();
        for param in self.list(&generics["params"]) {
            let bounds = self.annotation(&param["kind"]["type"]["bounds"]);
            if !bounds.is_empty() {
                predicates.push(format!("{}{bounds}", text(&param["name"])));
            }
        }
        predicates.extend(self.predicates(generics));
        predicates
    }

    /// Returns the predicates of a `where` clause.
    pub(super) fn predicates(&self, generics: &Value) -> Vec<String> {
        let predicate = |predicate: &Value| {
            if let Some(of) = predicate.get("bound_predicate") {
                let binder = self.binder(&of["generic_params"]);
                format!("{binder}{}: {}", self.ty(&of["type"]), self.bounds(&of["bounds"]))
            } else if let Some(of) = predicate.get("lifetime_predicate") {
                format!("{}: {}", text(&of["lifetime"]), self.join(&of["outlives"], " + ", text))
            } else {
                self.docs.unknown(&format!("predicate: {predicate}"))
            }
        };
        self.list(&generics["where_predicates"]).iter().map(predicate).collect()
    }

    /// Returns a function after its visibility. `path` includes its name, `predicates` are those of
    /// its `impl`.
    pub(super) fn function(&self, path: &str, fields: &Value, predicates: Vec<String>) -> String {
        let header = &fields["header"];
        let mut words = String::new();
        for (fact, word) in [("is_const", "const "), ("is_async", "async "), ("is_unsafe", "unsafe ")] {
            if header[fact] == true {
                words.push_str(word);
            }
        }
        if header["abi"] != "Rust" {
            words.push_str(&format!("extern {} ", header["abi"]));
        }
        let inputs = self.join(&fields["sig"]["inputs"], ", ", |input| {
            let (name, ty) = (text(&input[0]), self.ty(&input[1]));
            match (name.as_str(), ty.as_str()) {
                ("self", "Self") => "self".to_owned(),
                ("self", "&Self") => "&self".to_owned(),
                ("self", "&mut Self") => "&mut self".to_owned(),
                _ => format!("{name}: {ty}"),
            }
        });
        let generics = &fields["generics"];
        let clause = where_clause(predicates.into_iter().chain(self.predicates(generics)).collect());
        let output = self.output(&fields["sig"]["output"]);
        format!("{words}fn {path}{}({inputs}){output}{clause}", self.params(generics))
    }
}

/// Returns ` where ..`, or nothing.
pub(super) fn where_clause(predicates: Vec<String>) -> String {
    if predicates.is_empty() { String::new() } else { format!(" where {}", predicates.join(", ")) }
}
