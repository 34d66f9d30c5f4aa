//! Errors that point at the user's source.

use crate::Loc;
use std::collections::HashMap;
use std::fmt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An error message with source locations, and help on what to write instead.
///
/// [`Display`](fmt::Display) renders it with the source lines at its locations, if the files can be
/// read. Only the files of Rust source are read: an error in the text form of a graph has its lines
/// with it, since a text may have the name of any file.
///
/// ```text
/// error: matmul: inner dimensions differ, 784 and 10
///   --> examples/mnist.rs:14:13
///    |
/// 14 |     let h = matmul(x, b);
///    |             ^ f32[32, 784] times f32[10, 784]
///    = help: transpose the second operand
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The problem, in one line without a final dot.
    pub message: String,
    /// Locations with explanations. The first label is the location of the error. A label without a
    /// location is a note.
    pub labels: Vec<(Loc, String)>,
    /// Help on what to write instead.
    pub help: Option<String>,
    /// The kind of the error, for programs.
    pub kind: ErrorKind,
    /// The lines of a parsed text at the locations of the labels.
    pub(crate) quoted: Vec<(Loc, Arc<str>)>,
}

/// The kinds of errors that a program may want to distinguish. For example, a server responds to
/// each of them in its own way.
///
/// | kind | origin | is a retry useful |
/// |---|---|---|
/// | [`Invalid`](ErrorKind::Invalid) | the caller or the program | no |
/// | [`AssertionFailed`](ErrorKind::AssertionFailed) | the data, as the program checks it | with other data |
/// | [`DeadlineExceeded`](ErrorKind::DeadlineExceeded), [`Cancelled`](ErrorKind::Cancelled) | the caller's time limit or request | yes |
/// | [`ResourceExhausted`](ErrorKind::ResourceExhausted) | the machine, or an input that is too large | with less, or later |
/// | [`Unavailable`](ErrorKind::Unavailable) | another process, or the way to it | later, or with other processes |
/// | [`Internal`](ErrorKind::Internal) | a bug in anabranch: please report it | no |
///
/// In each of these cases the session stays usable, and no variable has changed. Of a function that
/// [commits each iteration](crate::commit_each_iteration), the steps before the one that failed
/// stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A program, an argument, a name or a setting is invalid. Mismatched shapes and types are
    /// found before anything runs; values for which an operation is undefined are found during a
    /// run (an index out of bounds, an integer division by zero).
    #[default]
    Invalid,
    /// An assertion or `panic!` of the program failed while the graph ran, or the session's check
    /// for finite values did.
    AssertionFailed,
    /// A call did not end before its deadline.
    DeadlineExceeded,
    /// A call was cancelled.
    Cancelled,
    /// A queue is closed: it takes no more elements, or has no more.
    Closed,
    /// The machine lacks a resource, such as memory for a value or a thread.
    ResourceExhausted,
    /// Another process is lost, unreachable or does not respond, or the values that it kept are
    /// lost.
    Unavailable,
    /// A bug in anabranch: a valid program cannot be compiled.
    Internal,
}

impl ErrorKind {
    /// Returns whether a call was ended from outside, by its deadline or by a handle.
    pub fn is_stop(self) -> bool {
        matches!(self, ErrorKind::DeadlineExceeded | ErrorKind::Cancelled)
    }
}

/// The result of everything that can receive invalid input.
pub type Result<T, E = Diagnostic> = std::result::Result<T, E>;

impl Diagnostic {
    /// Creates an error without a location, of the kind [`Invalid`](ErrorKind::Invalid).
    pub fn new(message: impl Into<String>) -> Diagnostic {
        let (message, kind) = (message.into(), ErrorKind::Invalid);
        Diagnostic { message, labels: Vec::new(), help: None, kind, quoted: Vec::new() }
    }

    /// Adds a location. The first label is the location of the error.
    #[must_use]
    pub fn at(mut self, loc: Loc, label: impl Into<String>) -> Diagnostic {
        self.labels.push((loc, label.into()));
        self
    }

    /// Adds help on what to write instead.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }

    /// Sets the kind of the error.
    #[must_use]
    pub fn of_kind(self, kind: ErrorKind) -> Diagnostic {
        Diagnostic { kind, ..self }
    }

    /// Adds a location if the error has none.
    pub(crate) fn or_at(mut self, loc: Loc) -> Diagnostic {
        if self.loc().is_none() {
            let label = if self.labels.is_empty() { String::new() } else { self.labels.remove(0).1 };
            self.labels.insert(0, (loc, label));
        }
        self
    }

    /// Returns the errors in a text with its lines. `file` is the name of the text in locations.
    pub(crate) fn quoting(errors: Vec<Diagnostic>, file: &str, text: &str) -> Vec<Diagnostic> {
        let lines: Vec<&str> = text.lines().collect();
        // Errors of one line share it, since it may be long.
        let mut shared: HashMap<u32, Option<Arc<str>>> = HashMap::new();
        let mut line = |loc: Loc| {
            let at = || (loc.line as usize).checked_sub(1).and_then(|i| lines.get(i));
            shared.entry(loc.line).or_insert_with(|| at().map(|line| line.trim_end().into())).clone()
        };
        let quote = |mut error: Diagnostic| {
            let locs = error.labels.iter().map(|(loc, _)| *loc).filter(|loc| loc.file == file);
            error.quoted = locs.filter_map(|loc| Some((loc, line(loc)?))).collect();
            error
        };
        errors.into_iter().map(quote).collect()
    }

    /// Returns the source line at a location, if there is one.
    fn source_line(&self, loc: Loc) -> Option<Arc<str>> {
        let quoted = self.quoted.iter().find(|(at, _)| *at == loc).map(|(_, line)| line.clone());
        quoted.or_else(|| line_of_file(loc))
    }

    /// Returns the location of the error.
    pub fn loc(&self) -> Option<Loc> {
        self.labels.first().map(|(loc, _)| *loc).filter(|l| l.is_known())
    }
}

/// The payload of a panic that is an error of the user's program.
pub(crate) struct Abort(pub(crate) Diagnostic);

/// Unwinds with an error, without printing anything, to the caller that turns it into a result.
pub(crate) fn abort(error: Diagnostic) -> ! {
    if cfg!(panic = "abort") {
        eprintln!("{error}");
    }
    resume_unwind(Box::new(Abort(error)))
}

impl std::error::Error for Diagnostic {}

/// Renders the error like [`Display`](fmt::Display), since this is shown if `main` returns it.
impl fmt::Debug for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error: {}", self.message)?;
        let labels: Vec<_> = self.labels.iter().filter(|(l, _)| l.is_known()).collect();
        let width = labels.iter().map(|(l, _)| l.line.to_string().len()).max().unwrap_or(1);
        for (i, (loc, label)) in labels.iter().enumerate() {
            writeln!(f, "{:width$}{} {loc}", "", if i == 0 { "-->" } else { ":::" })?;
            match self.source_line(*loc) {
                Some(line) => {
                    let indent: String = line
                        .chars()
                        .take(loc.column.saturating_sub(1) as usize)
                        .map(|c| if c == '\t' { '\t' } else { ' ' })
                        .collect();
                    writeln!(f, "{:width$} |", "")?;
                    writeln!(f, "{:width$} | {line}", loc.line)?;
                    let space = if label.is_empty() { "" } else { " " };
                    writeln!(f, "{:width$} | {indent}^{space}{label}", "")?;
                }
                None if !label.is_empty() => writeln!(f, "{:width$} | {label}", "")?,
                None => {}
            }
        }
        for (_, note) in self.labels.iter().filter(|(l, note)| !l.is_known() && !note.is_empty()) {
            writeln!(f, "{:width$} = note: {note}", "")?;
        }
        if let Some(help) = &self.help {
            writeln!(f, "{:width$} = help: {help}", "")?;
        }
        Ok(())
    }
}

/// Returns the line at `loc` of a file of Rust source, if the file can be found.
///
/// The compiler's paths are relative to the workspace root, while tests run in their package's
/// folder. So the parent folders are searched as well.
fn line_of_file(loc: Loc) -> Option<Arc<str>> {
    if !loc.is_in_file() {
        return None;
    }
    let find = |base: &Path| base.ancestors().map(|dir| dir.join(loc.file)).find(|p| p.is_file());
    let path: PathBuf =
        find(&std::env::current_dir().ok()?).or_else(|| find(Path::new(&std::env::var_os("CARGO_MANIFEST_DIR")?)))?;
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().nth(loc.line as usize - 1).map(|line| line.trim_end().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp::{self, InterpOptions};
    use crate::{Graph, HostTensor};

    #[test]
    fn no_line_of_a_rendered_error_ends_in_a_space() {
        let text = Diagnostic::new("wrong").at(Loc::caller(), "").at(Loc::caller(), "here").to_string();
        assert!(text.contains("^\n") && text.contains("^ here\n"), "{text}");
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    }

    /// The first line of this file.
    fn first_line() -> &'static str {
        include_str!("diagnostic.rs").lines().next().expect("this file has lines")
    }

    #[test]
    fn errors_in_a_text_quote_the_text_and_not_a_file_of_its_name() {
        let wrong = "graph @f(%x: f32[]) -> f32[] {\n    %y = tahn %x\n    return %y\n}";
        for name in [file!(), concat!(env!("CARGO_MANIFEST_DIR"), "/src/diagnostic.rs")] {
            // The file can be found: an error in Rust source shows its line.
            let in_rust = Diagnostic::new("wrong").at(Loc { file: name, line: 1, column: 1 }, "").to_string();
            assert!(in_rust.contains(first_line()), "{in_rust}");

            let errors = Graph::parse(wrong, name).unwrap_err();
            let rendered = errors[0].to_string();
            assert!(rendered.contains("2 |     %y = tahn %x\n  |          ^\n"), "{rendered}");
            // Invariants are checked after parsing.
            let errors = Graph::parse("graph @f() { %s = stack_new : stack<f32[]>  return %s }", name).unwrap_err();
            let rendered = errors[0].to_string();
            assert!(rendered.contains("V11") && rendered.contains("1 | graph @f() {"), "{rendered}");
            assert!(!rendered.contains(first_line()), "{rendered}");
        }
    }

    #[test]
    fn errors_of_a_run_read_no_file_with_the_name_of_the_graph() {
        let text = "graph @f(%x: i32[]) -> i32[] { %y = div %x, %x  return %y }";
        let graph = Graph::parse(text, file!()).unwrap();
        let zero = [HostTensor::scalar(0)];
        let error = interp::run(&graph, &zero, &mut vec![], InterpOptions::default()).unwrap_err().to_string();
        assert!(error.contains(&format!("--> {}:1:32\n", file!())), "{error}");
        assert!(!error.contains(first_line()), "{error}");
    }

    #[test]
    fn many_errors_in_one_line_share_it() {
        let text = format!("graph @f() {{ {} return }}", "%a = nothing %b ".repeat(1000));
        let errors = Graph::parse(&text, "long.ir").unwrap_err();
        let quoted: Vec<_> = errors.iter().flat_map(|e| &e.quoted).collect();
        assert!(!quoted.is_empty() && quoted.iter().all(|(_, line)| Arc::ptr_eq(line, &quoted[0].1)), "{}", errors[0]);
    }
}
