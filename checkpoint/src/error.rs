//! Errors of files: each names the file, and says what to do.

pub(crate) use anabranch_dsl::safetensors::shown;
use anabranch_dsl::{Diagnostic, ErrorKind, Loc};
use std::io;
use std::path::Path;

/// Returns the error of an operation on a file or folder. `what` is a verb: `write`.
pub fn failed(what: &str, path: &Path, error: &io::Error) -> Diagnostic {
    let message = format!("could not {what} {}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            let error = Diagnostic::new(message).of_kind(ErrorKind::ResourceExhausted);
            error.help("free some space, keep fewer checkpoints, or use another folder")
        }
        io::ErrorKind::OutOfMemory => Diagnostic::new(message).of_kind(ErrorKind::ResourceExhausted),
        _ => Diagnostic::new(message),
    }
}

/// An error of reading a file.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The contents are damaged, or there is no such file.
    Damaged(Diagnostic),
    /// The storage failed, or there is too little memory: nothing can be said of the file.
    Failed(Diagnostic),
}

impl ReadError {
    /// Returns the error with this text, of an operation of the storage.
    pub fn of(error: &io::Error, text: Diagnostic) -> ReadError {
        match error.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::InvalidData => ReadError::Damaged(text),
            _ => ReadError::Failed(text),
        }
    }

    /// Returns the outcome of reading a file, with what is damaged of it as an inner error.
    pub fn split<T>(read: Result<T, ReadError>) -> anabranch_dsl::Result<anabranch_dsl::Result<T>> {
        match read {
            Ok(value) => Ok(Ok(value)),
            Err(ReadError::Damaged(error)) => Ok(Err(error)),
            Err(ReadError::Failed(error)) => Err(error),
        }
    }
}

impl From<ReadError> for Diagnostic {
    fn from(error: ReadError) -> Diagnostic {
        let (ReadError::Damaged(error) | ReadError::Failed(error)) = error;
        error
    }
}

/// Returns the error that the contents of a file are damaged or foreign.
pub(crate) fn damaged(path: &Path, why: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::new(format!("{}: {why}", path.display()))
}

/// Returns the error with the caller's location, unless it has one.
pub fn called_at(loc: Loc, label: &str, mut error: Diagnostic) -> Diagnostic {
    if error.loc().is_none() {
        error.labels.insert(0, (loc, label.to_owned()));
    }
    error
}

/// Returns names as one line.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(shown).collect::<Vec<_>>().join(", ")
}
