//! Places in the user's source.

use std::fmt;
use std::panic::Location;

/// File, line and column (both from 1) of the source that made a node. Line 0 means that no place is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Loc {
    /// Path as the compiler saw it.
    pub file: &'static str,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

impl Loc {
    /// No place.
    pub const UNKNOWN: Loc = Loc { file: "", line: 0, column: 0 };

    /// The place that called the function which calls this, through every function marked `#[track_caller]`.
    #[track_caller]
    pub fn caller() -> Loc {
        let l = Location::caller();
        Loc { file: l.file(), line: l.line(), column: l.column() }
    }

    /// Whether a place is known.
    pub fn is_known(self) -> bool {
        self.line > 0
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
