//! Source locations.

use crate::ir::{Node, is_interned};
use std::fmt;
use std::panic::Location;

/// The file name of locations that stand for a node. No file is ever looked for under this name.
const NODE_FILE: &str = "<node>";

/// The file, line and column of the source that made a node, counted from 1.
///
/// Line 0 means that the location is unknown. A location can also stand for the number of a node,
/// in a graph without source locations.
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

    /// Returns the location that stands for a node, printed as `node7`.
    ///
    /// Errors in a graph that came from another process have such locations. Whoever has the
    /// original graph can replace them by those of its nodes.
    #[doc(hidden)]
    pub fn of_node(node: Node) -> Loc {
        Loc { file: NODE_FILE, line: 1, column: node.0 }
    }

    /// Returns the node for which the location stands, if it is not one of source code.
    #[doc(hidden)]
    pub fn node(self) -> Option<Node> {
        (self.file == NODE_FILE && self.line == 1).then_some(Node(self.column))
    }

    /// Returns whether the location is known.
    pub fn is_known(self) -> bool {
        self.line > 0
    }

    /// Returns whether the location may be in a file whose lines errors show: its name is one that
    /// the compiler recorded. The name of a parsed text is interned and may be any.
    pub(crate) fn is_in_file(self) -> bool {
        self.is_known() && self.node().is_none() && !is_interned(self.file)
    }

    /// Whether it is a place in the source of this crate, which says nothing to a user.
    pub(crate) fn is_in_this_crate(self) -> bool {
        let folder = file!().strip_suffix("loc.rs").expect("this file is in the folder of the crate");
        self.file.starts_with(folder)
    }
}

impl fmt::Display for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node() {
            Some(node) => write!(f, "{node}"),
            None if self.is_known() => write!(f, "{}:{}:{}", self.file, self.line, self.column),
            None => f.write_str("?"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Diagnostic;

    #[test]
    fn a_location_stands_for_any_node() {
        for number in [0, 7, u32::MAX] {
            let loc = Loc::of_node(Node(number));
            assert_eq!(loc.node(), Some(Node(number)));
            assert!(loc.is_known() && !loc.is_in_file());
            assert_eq!(loc.to_string(), format!("node{number}"));
        }
        assert_eq!((Loc::caller().node(), Loc::UNKNOWN.node()), (None, None));
    }

    #[test]
    fn an_error_at_a_node_names_it() {
        let error = Diagnostic::new("div: division by zero").at(Loc::of_node(Node(12)), "i32[], i32[]");
        let error = error.at(Loc::of_node(Node(3)), "").help("check the divisor");
        let rendered =
            "error: div: division by zero\n --> node12\n  | i32[], i32[]\n ::: node3\n  = help: check the divisor\n";
        assert_eq!(error.to_string(), rendered);
    }
}
