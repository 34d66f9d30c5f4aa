//! Errors that point at the user's source.

use crate::Loc;
use std::fmt;
use std::path::{Path, PathBuf};

/// What was wrong, where, and what to do about it.
///
/// [`Display`](fmt::Display) renders it with the source lines it points at, as far as the files can be read:
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
    /// What was wrong, in one line without a final dot.
    pub message: String,
    /// Places with what is to be seen there; the first one is where the error is. A label without a place is a note.
    pub labels: Vec<(Loc, String)>,
    /// What to do.
    pub help: Option<String>,
    /// What kind of error it is, for programs.
    pub kind: ErrorKind,
}

/// The kinds of errors that a program may want to tell apart: a server, say, answers each of them
/// in its own way.
///
/// | kind | whose fault it is | is a second call worth it |
/// |---|---|---|
/// | [`Invalid`](ErrorKind::Invalid) | the caller's, or the program's | no |
/// | [`AssertionFailed`](ErrorKind::AssertionFailed) | the data's, by the program's own words | with other data |
/// | [`DeadlineExceeded`](ErrorKind::DeadlineExceeded), [`Cancelled`](ErrorKind::Cancelled) | nobody's | yes |
/// | [`ResourceExhausted`](ErrorKind::ResourceExhausted) | the machine's, or that of too large an input | with less, or later |
/// | [`Internal`](ErrorKind::Internal) | ours: please report it | no |
///
/// In each of these cases the session stays usable, and no variable has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A program, an argument, a name or a setting is wrong: a shape or a type that does not fit,
    /// found before anything runs, or a value on which an operation is not defined, found while it
    /// runs (an index out of bounds, a division of an integer by zero).
    #[default]
    Invalid,
    /// An assertion of the program failed, or a `panic!` of it was reached, while the graph ran; or
    /// a value was not finite where the session checks for that.
    AssertionFailed,
    /// A call did not end before its deadline.
    DeadlineExceeded,
    /// A call was cancelled.
    Cancelled,
    /// The machine does not have what is needed: memory for a value, a thread.
    ResourceExhausted,
    /// A fault of anabranch itself: a right program cannot be compiled.
    Internal,
}

impl ErrorKind {
    /// Whether a call was ended from outside: by its deadline, or by a handle.
    pub fn is_stop(self) -> bool {
        matches!(self, ErrorKind::DeadlineExceeded | ErrorKind::Cancelled)
    }
}

/// The result of everything that can meet bad input.
pub type Result<T, E = Diagnostic> = std::result::Result<T, E>;

impl Diagnostic {
    /// An error without a place, of the kind [`Invalid`](ErrorKind::Invalid).
    pub fn new(message: impl Into<String>) -> Diagnostic {
        Diagnostic { message: message.into(), labels: Vec::new(), help: None, kind: ErrorKind::Invalid }
    }

    /// Adds a place; the first one added is the place of the error.
    #[must_use]
    pub fn at(mut self, loc: Loc, label: impl Into<String>) -> Diagnostic {
        self.labels.push((loc, label.into()));
        self
    }

    /// Adds what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }

    /// Says of what kind the error is.
    #[must_use]
    pub fn of_kind(self, kind: ErrorKind) -> Diagnostic {
        Diagnostic { kind, ..self }
    }

    /// The place of the error.
    pub fn loc(&self) -> Option<Loc> {
        self.labels.first().map(|(loc, _)| *loc).filter(|l| l.is_known())
    }
}

impl std::error::Error for Diagnostic {}

/// The same as [`Display`](fmt::Display): it is what a program shows whose `main` returns the error.
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
            match source_line(loc) {
                Some(line) => {
                    let indent: String = line
                        .chars()
                        .take(loc.column.saturating_sub(1) as usize)
                        .map(|c| if c == '\t' { '\t' } else { ' ' })
                        .collect();
                    writeln!(f, "{:width$} |", "")?;
                    writeln!(f, "{:width$} | {line}", loc.line)?;
                    writeln!(f, "{:width$} | {indent}^ {label}", "")?;
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

/// The line of source at `loc`, if its file can be found from here.
///
/// The compiler gives paths relative to the workspace root, while tests run in their package's folder, so the folders
/// above are tried as well.
fn source_line(loc: &Loc) -> Option<String> {
    let find = |base: &Path| base.ancestors().map(|dir| dir.join(loc.file)).find(|p| p.is_file());
    let path: PathBuf =
        find(&std::env::current_dir().ok()?).or_else(|| find(Path::new(&std::env::var_os("CARGO_MANIFEST_DIR")?)))?;
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().nth(loc.line as usize - 1).map(|l| l.trim_end().to_owned())
}
