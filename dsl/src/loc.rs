//! Source locations.

use crate::ir::is_interned;
use std::fmt;
use std::panic::Location;

/// The file, line and column of the source that made a node, counted from 1.
///
/// Line 0 means that the location is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Loc {
    /// The path as the compiler saw it.
    pub file: &'static str,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1.
    pub column: u32,
}

impl Loc {
    /// An unknown location.
    pub const UNKNOWN: Loc = Loc { file: "", line: 0, column: 0 };

    /// Returns the caller's location, looking through every function marked `#[track_caller]`.
    #[track_caller]
    pub fn caller() -> Loc {
        let l = Location::caller();
        Loc { file: l.file(), line: l.line(), column: l.column() }
    }

    /// Returns whether the location is known.
    pub fn is_known(self) -> bool {
        self.line > 0
    }

    /// Returns whether the location may be in a file whose lines errors show: its name is one that
    /// the compiler recorded. The name of a parsed text is interned and may be any.
    pub(crate) fn is_in_file(self) -> bool {
        self.is_known() && !is_interned(self.file)
    }

    /// Whether it is a place in the source of this crate, which says nothing to a user.
    pub(crate) fn is_in_this_crate(self) -> bool {
        let folder = file!().strip_suffix("loc.rs").expect("this file is in the folder of the crate");
        self.file.starts_with(folder)
    }
}

impl fmt::Display for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_known() { write!(f, "{}:{}:{}", self.file, self.line, self.column) } else { f.write_str("?") }
    }
}
