//! The names that a program gives to values, and lookup of values by name.
//!
//! A name given by `named` is stored with its line next to the graph. The graph itself has one name
//! for each value, for printing, which may come from a parameter of a called function. Lookup uses
//! such a name only for inputs of the graph. Whether a name is unique is checked at lookup: a layer
//! that names its values may be called twice.

use super::{AnyValue, Traced, try_with};
use crate::edit_distance::edit_distance;
use crate::ir::{Op, Value, intern};
use crate::{Diagnostic, Loc, Result};

/// A name that the program gave to a value.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The name.
    pub name: &'static str,
    /// The value, in any region.
    pub value: Value,
    /// The location of the call of `named`.
    pub loc: Loc,
}

impl AnyValue {
    /// Names the value so that it can be fed and fetched; see [`Traced::value_named`]. If the value
    /// has no name yet, printing and messages use this name.
    #[track_caller]
    pub fn named(self, name: impl AsRef<str>) -> AnyValue {
        let name = intern(name.as_ref());
        let loc = Loc::caller();
        try_with(|t| {
            t.check_trace(self, loc)?;
            let positions = ["input ", "result "].iter().any(|p| name.strip_prefix(p).is_some_and(is_number));
            if name.is_empty() || positions {
                let error = Diagnostic::new(format!("`{name}` is a reserved name")).at(loc, "named here");
                return Err(error.help("`input 0`, `result 0` and so on name parameters and results"));
            }
            t.names.push(Named { name, value: self.value(), loc });
            Ok(())
        });
        self.described(name)
    }

    /// Names the value for printing and messages, if it has no name.
    pub(super) fn described(self, name: &'static str) -> AnyValue {
        super::with(|t| {
            let data = t.graph.value_mut(self.value());
            data.name = data.name.or(Some(name));
        });
        self
    }
}

/// Returns whether a text is a decimal number without leading zeros.
fn is_number(text: &str) -> bool {
    text == "0" || (!text.is_empty() && !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()))
}

impl Traced {
    /// Returns the tensor of the outermost region with this name. A name is one given with `named`,
    /// that of a parameter, or a position such as `input 0` or `result 0`.
    ///
    /// # Errors
    /// Fails if no value or several values have this name; the value is inside a branch, loop or
    /// call and has no value outside; or it is a list. The error shows the existing names.
    ///
    /// ```
    /// use anabranch::{DType, TensorType, dsl::function::trace_fn, prelude::*};
    ///
    /// let f = |x: Tensor| x.exp().named("hidden").sum();
    /// let (traced, _) = trace_fn("f", &f, &[TensorType::new(DType::F32, [3])])?;
    /// let hidden = traced.value_named("hidden")?;
    /// assert_eq!(traced.graph.ty(hidden).to_string(), "f32[3]");
    /// let error = traced.value_named("hiden").unwrap_err();
    /// assert_eq!(error.message, "`f` has no value named `hiden`");
    /// assert_eq!(error.help.as_deref(), Some("available: `hidden`, `input 0`, `result 0`"));
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn value_named(&self, name: &str) -> Result<Value> {
        let graph = &self.graph;
        if let Some(value) = self.at_position(name) {
            return Ok(value);
        }
        let mut found: Vec<(Value, Loc)> = Vec::new();
        let params = graph.inputs().iter().filter(|&&v| graph.value(v).name == Some(name));
        let params = params.map(|&v| (v, Loc::UNKNOWN));
        for (value, loc) in params.chain(self.names.iter().filter(|n| n.name == name).map(|n| (n.value, n.loc))) {
            if found.iter().all(|(v, _)| *v != value) {
                found.push((value, loc));
            }
        }
        let (value, loc) = match found[..] {
            [] => return Err(self.unknown(name)),
            [one] => one,
            _ => return Err(self.ambiguous(name, &found)),
        };
        if graph.region_of(value) != graph.root() {
            return Err(self.inside(name, value, loc));
        }
        if graph.ty(value).as_tensor().is_none() {
            let message = format!("`{name}` is a list, but only tensors can be fed and fetched");
            return Err(Diagnostic::new(message)
                .at(loc, graph.ty(value).to_string())
                .help("name the stacked tensor instead, `list.stack()`"));
        }
        Ok(value)
    }

    fn at_position(&self, name: &str) -> Option<Value> {
        let at = |prefix: &str, values: &[Value]| {
            let number = name.strip_prefix(prefix).filter(|n| is_number(n))?;
            values.get(number.parse::<usize>().ok()?).copied()
        };
        at("input ", self.graph.inputs()).or_else(|| at("result ", self.graph.outputs()))
    }

    fn unknown(&self, name: &str) -> Diagnostic {
        let graph = &self.graph;
        let named = self.names.iter().filter(|n| graph.region_of(n.value) == graph.root()).map(|n| n.name.to_owned());
        let input = |(i, &v): (usize, &Value)| graph.value(v).name.map_or_else(|| format!("input {i}"), str::to_owned);
        let inputs = graph.inputs().iter().enumerate().map(input);
        let results = (0..graph.outputs().len()).map(|i| format!("result {i}"));
        let mut there: Vec<String> = Vec::new();
        for name in named.chain(inputs).chain(results) {
            if !there.contains(&name) {
                there.push(name);
            }
        }
        there.sort_by_key(|other| edit_distance(name, other));
        let there: Vec<String> = there.iter().map(|name| format!("`{name}`")).collect();
        Diagnostic::new(format!("`{}` has no value named `{name}`", graph.name))
            .help(format!("available: {}", there.join(", ")))
    }

    fn ambiguous(&self, name: &str, found: &[(Value, Loc)]) -> Diagnostic {
        let mut error =
            Diagnostic::new(format!("`{name}` is ambiguous: it names {} values of `{}`", found.len(), self.graph.name));
        for (i, &(value, loc)) in found.iter().enumerate() {
            error = match self.graph.inputs().iter().position(|&v| v == value) {
                Some(input) if !loc.is_known() => error.at(loc, format!("`{name}` is the parameter `input {input}`")),
                _ => error.at(loc, if i == 0 { "named here" } else { "and here" }),
            };
        }
        error.help("give them different names; a parameter also has the name of its position, such as `input 0`")
    }

    fn inside(&self, name: &str, value: Value, loc: Loc) -> Diagnostic {
        let graph = &self.graph;
        let owner = graph.region(graph.region_of(value)).owner.map(|n| graph.node(n));
        let (of, help) = match owner.map(|node| &node.op) {
            Some(Op::Cond) => {
                ("a branch", "assign it to a variable declared before the `if`, and name that variable after the `if`")
            }
            Some(Op::Call(_)) => {
                ("a call with a custom gradient or a checkpoint", "return it as a result, and name the result")
            }
            _ => ("a loop", "assign it to a variable declared before the loop, and name that variable after the loop"),
        };
        let error =
            Diagnostic::new(format!("`{name}` is inside {of} and has no value outside it")).at(loc, "named here");
        let error = match owner {
            Some(node) => error.at(node.loc, "inside this"),
            None => error,
        };
        error.help(help)
    }
}
