//! Which stored value a variable gets, by its path, and which content a queue, by its name:
//! strictly unless the caller says otherwise.

use crate::error::{listed, shown};
use crate::queues::QueueType;
use crate::run::RunState;
use crate::strings::{joined, names_of, owner_of};
use anabranch_dsl::queue::AnyQueue;
use anabranch_dsl::var::VarPath;
use anabranch_dsl::{AnyVar, DType, Diagnostic, HostTensor, Loc, Module, Result};
use anabranch_runtime::{QueueContent, Session};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

/// The rule for variables and queues of the program that are not those of a file.
///
/// By default each variable must have a value and each value a variable, and the error lists all
/// that do not. A value of another element type or shape is an error in any case. The same holds
/// for queues and their contents.
#[derive(Clone, Default)]
#[must_use]
pub struct Restore {
    keep_missing: bool,
    ignore_unused: bool,
    keep_queues: bool,
    rename: Option<Arc<Renaming>>,
}

/// A function from the path of a variable to the name of its value.
type Renaming = dyn Fn(&str) -> String + Send + Sync;

impl fmt::Debug for Restore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Restore { keep_missing, ignore_unused, keep_queues, rename } = self;
        let mut fields = f.debug_struct("Restore");
        fields.field("keep_missing", keep_missing).field("ignore_unused", ignore_unused);
        fields.field("keep_queues", keep_queues).field("renames", &rename.is_some()).finish()
    }
}

impl Restore {
    /// Restores all variables from all values.
    pub fn strict() -> Restore {
        Restore::default()
    }

    /// Keeps the current values of variables, and contents of queues, that are not in the file.
    pub fn keep_missing(self) -> Restore {
        Restore { keep_missing: true, ..self }
    }

    /// Ignores values in the file that have no variable, and contents that have no queue.
    pub fn ignore_unused(self) -> Restore {
        Restore { ignore_unused: true, ..self }
    }

    /// Keeps the contents of all queues, and ignores those in the file.
    pub fn keep_queues(self) -> Restore {
        Restore { keep_queues: true, ..self }
    }

    /// Looks for the value of a variable under another name: `rename` returns it from the path of
    /// the variable. Several variables may have the value of one name.
    pub fn rename(self, rename: impl Fn(&str) -> String + Send + Sync + 'static) -> Restore {
        Restore { rename: Some(Arc::new(rename)), ..self }
    }
}

/// Which variables and queues were restored, and which were not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// The paths of the variables that have values of the file now, each with the name of its value
    /// there.
    pub restored: Vec<(String, String)>,
    /// The paths of the variables for which the file has no value. They are as they were.
    pub missing: Vec<String>,
    /// The names of the values that no variable has received.
    pub unused: Vec<String>,
    /// The names of the queues that have the contents of the file now.
    pub restored_queues: Vec<String>,
    /// The names of the queues for which the file has no content. They are as they were.
    pub missing_queues: Vec<String>,
    /// The names of the contents that no queue has received.
    pub unused_queues: Vec<String>,
}

impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} variables restored", self.restored.len())?;
        let lists = [
            ("without a value", &self.missing),
            ("left over", &self.unused),
            ("queues", &self.restored_queues),
            ("queues without a content", &self.missing_queues),
            ("queues left over", &self.unused_queues),
        ];
        let lists = lists.into_iter().filter(|(_, names)| !names.is_empty());
        lists.map(|(what, names)| (what, all_of(names))).try_for_each(|(what, names)| write!(f, "; {what}: {names}"))
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

/// The values and contents of a file.
#[derive(Debug, Default)]
pub(crate) struct StoredTypes {
    pub vars: BTreeMap<String, StoredType>,
    pub queues: BTreeMap<String, QueueType>,
}

/// The variables that receive values, by the names of these, and the queues that receive contents.
pub(crate) struct Matched {
    pub queues: Vec<(String, AnyQueue)>,
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

/// Returns names as one line.
fn all_of(names: &[String]) -> String {
    listed(names.iter().map(String::as_str))
}

/// Returns the names that are there more than once.
fn repeated<'n>(names: impl IntoIterator<Item = &'n String>) -> Vec<String> {
    let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
    names.into_iter().for_each(|name| *counts.entry(name).or_default() += 1);
    counts.into_iter().filter(|(_, n)| *n > 1).map(|(name, _)| name.clone()).collect()
}

/// Returns an error if two variables have the same path, or a part of one has that of another, or
/// if two queues have the same name.
pub(crate) fn check_paths(RunState { vars, queues }: &RunState) -> Result<()> {
    let strings = vars.iter().filter(|(_, var)| !var.ty().dtype.is_plain());
    let parts: Vec<String> = strings.flat_map(|(path, _)| names_of(path)).collect();
    let paths = repeated(vars.iter().map(|(path, _)| path).chain(&parts));
    if !paths.is_empty() {
        return Err(Diagnostic::new(format!("several variables have the same path: {}", all_of(&paths)))
            .help("values are identified by their paths: give the parts of the module different names"));
    }
    let names = repeated(queues.iter().map(|(name, _)| name));
    if !names.is_empty() {
        return Err(Diagnostic::new(format!("several queues have the same name: {}", all_of(&names)))
            .help("contents are identified by the names in `RunParts::queue`: give each queue another one"));
    }
    Ok(())
}

/// Finds the value of each variable and the content of each queue. `source` names the file or
/// folder in errors.
pub(crate) fn match_names(source: &str, state: &RunState, types: &StoredTypes, how: &Restore) -> Result<Matched> {
    check_paths(state)?;
    let (vars, stored) = (&state.vars, &types.vars);
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
    let mut matched = Matched { queues: Vec::new(), targets, strings, report };
    let unused = stored.keys().filter(|name| !matched.wants(name)).cloned().collect();
    matched.report.unused = unused;
    let of_queues = matched.match_queues(&state.queues, &types.queues, how);
    let report = &matched.report;
    let mut of_vars = Vec::new();
    if !report.missing.is_empty() && !how.keep_missing {
        of_vars.push(format!("no value for {}", all_of(&report.missing)));
    }
    if !report.unused.is_empty() && !how.ignore_unused {
        of_vars.push(format!("no variable for {}", all_of(&report.unused)));
    }
    of_vars.extend(mistyped);
    let what = match (of_vars.is_empty(), of_queues.is_empty()) {
        (true, true) => return Ok(matched),
        (false, true) => "variables of the module",
        (true, false) => "queues of the run",
        (false, false) => "variables and queues of the run",
    };
    let error = Diagnostic::new(format!("{source} does not have the {what}"));
    let wrong = of_vars.into_iter().chain(of_queues);
    let error = wrong.fold(error, |error, wrong| error.at(Loc::UNKNOWN, wrong));
    Err(error.help(
        "restore with `Restore::strict()` changed by `keep_missing()`, `ignore_unused()`, `keep_queues()` or \
         `rename(..)` if this is intended. An optimizer has variables for a model only after `prepare(&model)`",
    ))
}

/// Returns the error of something whose files have the right checksums.
pub(crate) fn damaged_value(what: &str, name: &str, why: &str) -> Diagnostic {
    Diagnostic::new(format!("the {what} {} is damaged: {why}", shown(name)))
        .help("restore an earlier checkpoint, or write the file again")
}

impl Matched {
    /// Finds the content of each queue, and returns what is wrong.
    fn match_queues(
        &mut self,
        queues: &[(String, AnyQueue)],
        stored: &BTreeMap<String, QueueType>,
        how: &Restore,
    ) -> Vec<String> {
        if how.keep_queues {
            return Vec::new();
        }
        let mut wrong = Vec::new();
        let RestoreReport { restored_queues, missing_queues, unused_queues, .. } = &mut self.report;
        for (name, queue) in queues {
            let (ty, Some(found)) = (QueueType::of(queue), stored.get(name)) else {
                missing_queues.push(name.clone());
                continue;
            };
            if ty != *found {
                wrong.push(format!("the queue {} is {ty}, but the content is of {found}", shown(name)));
            }
            restored_queues.push(name.clone());
            self.queues.push((name.clone(), queue.clone()));
        }
        let is_used = |name: &String| queues.iter().any(|(used, _)| used == name);
        unused_queues.extend(stored.keys().filter(|name| !is_used(name)).cloned());
        if !missing_queues.is_empty() && !how.keep_missing {
            wrong.push(format!("no content for the queue {}", all_of(missing_queues)));
        }
        if !unused_queues.is_empty() && !how.ignore_unused {
            wrong.push(format!("no queue for the content {}", all_of(unused_queues)));
        }
        wrong
    }

    /// Returns whether some variable gets the stored tensor of this name, or strings of which it
    /// is a part.
    pub fn wants(&self, name: &str) -> bool {
        let is_part = owner_of(name).is_some_and(|owner| self.strings.contains(owner));
        is_part || (self.targets.contains_key(name) && !self.strings.contains(name))
    }

    /// Sets all matched variables and the queues of a session at once, or none if there is an
    /// error.
    pub fn assign(
        self,
        session: &Session,
        values: Vec<(String, HostTensor)>,
        contents: Vec<(AnyQueue, QueueContent)>,
    ) -> Result<RestoreReport> {
        let mut values: HashMap<String, HostTensor> = values.into_iter().collect();
        for name in self.strings {
            let [data, offsets] = names_of(&name);
            let strings = joined(&values[&data], &values[&offsets]);
            let strings = strings.map_err(|why| damaged_value("variable of strings", &name, &why))?;
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
        session.load_state_and_queues(&Targets(vars), &new, contents)?;
        Ok(self.report)
    }
}
