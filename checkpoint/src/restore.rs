//! Which stored value a variable gets: by its path, strictly unless the caller says otherwise.

use crate::error::{listed, shown};
use crate::strings::{joined, names_of, owner_of};
use anabranch_dsl::var::VarPath;
use anabranch_dsl::{AnyVar, DType, Diagnostic, HostTensor, Loc, Module, Result};
use anabranch_runtime::Session;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

/// The rule for variables of the program that are not those of a file.
///
/// By default each variable must have a value and each value a variable, and the error lists all
/// that do not. A value of another element type or shape is an error in any case.
#[derive(Clone, Default)]
#[must_use]
pub struct Restore {
    keep_missing: bool,
    ignore_unused: bool,
    rename: Option<Arc<Renaming>>,
}

/// A function from the path of a variable to the name of its value.
type Renaming = dyn Fn(&str) -> String + Send + Sync;

impl fmt::Debug for Restore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Restore { keep_missing, ignore_unused, rename } = self;
        let mut fields = f.debug_struct("Restore");
        fields.field("keep_missing", keep_missing).field("ignore_unused", ignore_unused);
        fields.field("renames", &rename.is_some()).finish()
    }
}

impl Restore {
    /// Restores all variables from all values.
    pub fn strict() -> Restore {
        Restore::default()
    }

    /// Keeps the current values of variables that have no value in the file.
    pub fn keep_missing(self) -> Restore {
        Restore { keep_missing: true, ..self }
    }

    /// Ignores values in the file that have no variable.
    pub fn ignore_unused(self) -> Restore {
        Restore { ignore_unused: true, ..self }
    }

    /// Looks for the value of a variable under another name: `rename` returns it from the path of
    /// the variable. Several variables may have the value of one name.
    pub fn rename(self, rename: impl Fn(&str) -> String + Send + Sync + 'static) -> Restore {
        Restore { rename: Some(Arc::new(rename)), ..self }
    }
}

/// Which variables were restored, and which were not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// The paths of the variables that have values of the file now, each with the name of its value
    /// there.
    pub restored: Vec<(String, String)>,
    /// The paths of the variables for which the file has no value. They are as they were.
    pub missing: Vec<String>,
    /// The names of the values that no variable has received.
    pub unused: Vec<String>,
}

impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} variables restored", self.restored.len())?;
        if !self.missing.is_empty() {
            write!(f, "; without a value: {}", listed(self.missing.iter().map(String::as_str)))?;
        }
        if !self.unused.is_empty() {
            write!(f, "; left over: {}", listed(self.unused.iter().map(String::as_str)))?;
        }
        Ok(())
    }
}

/// The type of a stored value, as its file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredType {
    pub dtype: Option<DType>,
    pub shape: Vec<usize>,
    /// The type for messages.
    pub text: String,
}

/// The variables that receive values, by the names of these.
pub(crate) struct Matched {
    targets: BTreeMap<String, Vec<(String, AnyVar)>>,
    /// The names of those values that are strings, stored as two tensors.
    strings: BTreeSet<String>,
    report: RestoreReport,
}

impl StoredType {
    /// Returns the type of a value of strings, if both of its parts are there.
    fn of_strings(name: &str, stored: &BTreeMap<String, StoredType>) -> Option<StoredType> {
        let [data, offsets] = names_of(name).map(|part| stored.get(&part));
        let (data, offsets) = (data?, offsets?);
        let is_strings = data.dtype == Some(DType::U8) && offsets.dtype == Some(DType::I64);
        let text = format!("{}{:?}", DType::Bytes, offsets.shape);
        is_strings.then(|| StoredType { dtype: Some(DType::Bytes), shape: offsets.shape.clone(), text })
    }
}

/// Variables as a module.
struct Targets(Vec<(String, AnyVar)>);

impl Module for Targets {
    fn visit(&self, path: &mut VarPath, visit: &mut dyn FnMut(&str, &AnyVar)) {
        self.0.iter().for_each(|(name, var)| path.with(name, |path| visit(path.as_str(), var)));
    }
}

/// Returns an error if two variables have the same path, or a part of one has that of another.
pub(crate) fn check_paths(vars: &[(String, AnyVar)]) -> Result<()> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let strings = vars.iter().filter(|(_, var)| !var.ty().dtype.is_plain());
    let parts: Vec<String> = strings.flat_map(|(path, _)| names_of(path)).collect();
    let paths = vars.iter().map(|(path, _)| path).chain(&parts);
    paths.for_each(|path| *counts.entry(path).or_default() += 1);
    let double: Vec<&str> = counts.into_iter().filter(|(_, n)| *n > 1).map(|(path, _)| path).collect();
    if double.is_empty() {
        return Ok(());
    }
    Err(Diagnostic::new(format!("several variables have the same path: {}", listed(double)))
        .help("values are identified by their paths: give the parts of the module different names"))
}

/// Finds the value of each variable. `source` names the file or folder in errors.
pub(crate) fn match_names(
    source: &str,
    vars: &[(String, AnyVar)],
    stored: &BTreeMap<String, StoredType>,
    how: &Restore,
) -> Result<Matched> {
    check_paths(vars)?;
    let mut report = RestoreReport::default();
    let mut targets: BTreeMap<String, Vec<(String, AnyVar)>> = BTreeMap::new();
    let mut strings = BTreeSet::new();
    let mut mistyped = Vec::new();
    for (path, var) in vars {
        let name = how.rename.as_ref().map_or_else(|| path.clone(), |rename| rename(path));
        let ty = var.ty();
        let parts = if ty.dtype.is_plain() { None } else { StoredType::of_strings(&name, stored) };
        if parts.is_some() {
            strings.insert(name.clone());
        }
        let Some(found) = parts.as_ref().or_else(|| stored.get(&name)) else {
            report.missing.push(path.clone());
            continue;
        };
        if (found.dtype, Some(&found.shape)) != (Some(ty.dtype), ty.shape.known().as_ref()) {
            let (var, value) = (format!("{} is {ty}", shown(path)), &found.text);
            mistyped.push(if name == *path {
                format!("{var}, but the value is {value}")
            } else {
                format!("{var}, but the value {} is {value}", shown(&name))
            });
        }
        report.restored.push((path.clone(), name.clone()));
        targets.entry(name).or_default().push((path.clone(), var.clone()));
    }
    let matched = Matched { targets, strings, report };
    let unused = stored.keys().filter(|name| !matched.wants(name)).cloned().collect();
    let Matched { targets, strings, mut report } = matched;
    report.unused = unused;
    let missing_is_wrong = !report.missing.is_empty() && !how.keep_missing;
    let unused_is_wrong = !report.unused.is_empty() && !how.ignore_unused;
    if !(missing_is_wrong || unused_is_wrong || !mistyped.is_empty()) {
        return Ok(Matched { targets, strings, report });
    }
    let mut error = Diagnostic::new(format!("{source} does not have the variables of the module"));
    if missing_is_wrong {
        let missing = listed(report.missing.iter().map(String::as_str));
        error = error.at(Loc::UNKNOWN, format!("no value for {missing}"));
    }
    if unused_is_wrong {
        let unused = listed(report.unused.iter().map(String::as_str));
        error = error.at(Loc::UNKNOWN, format!("no variable for {unused}"));
    }
    let error = mistyped.into_iter().fold(error, |error, wrong| error.at(Loc::UNKNOWN, wrong));
    Err(error.help(
        "restore with `Restore::strict()` changed by `keep_missing()`, `ignore_unused()` or `rename(..)` if this is \
         intended. An optimizer has variables for a model only after `prepare(&model)`",
    ))
}

impl Matched {
    /// Returns whether some variable gets the stored tensor of this name, or strings of which it
    /// is a part.
    pub fn wants(&self, name: &str) -> bool {
        let is_part = owner_of(name).is_some_and(|owner| self.strings.contains(owner));
        is_part || (self.targets.contains_key(name) && !self.strings.contains(name))
    }

    /// Sets all matched variables of a session at once, or none if there is an error.
    pub fn assign(self, session: &Session, values: Vec<(String, HostTensor)>) -> Result<RestoreReport> {
        let mut values: HashMap<String, HostTensor> = values.into_iter().collect();
        for name in self.strings {
            let [data, offsets] = names_of(&name);
            let strings = joined(&values[&data], &values[&offsets]);
            let strings = strings.map_err(|why| {
                let error = Diagnostic::new(format!("the strings of {} are damaged: {why}", shown(&name)));
                error.help("restore an earlier checkpoint, or write the file again")
            })?;
            values.insert(name, strings);
        }
        let mut vars = Vec::new();
        let mut new = Vec::new();
        for (name, targets) in self.targets {
            for (path, var) in targets {
                new.push((path.clone(), values[&name].clone()));
                vars.push((path, var));
            }
        }
        session.load_state(&Targets(vars), &new)?;
        Ok(self.report)
    }
}
