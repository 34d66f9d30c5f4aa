//! Guards against host loops that tracing would repeat forever.
//!
//! A host loop is unrolled while it is traced. A staged jump, panic or assertion in its body only
//! runs in the graph and does not end the trace. Without a limit, a loop that nothing else ends
//! would be traced until memory is exhausted.

use super::{Tracer, is_tracing, try_with};
use crate::{Diagnostic, Loc, Result};
use rustc_hash::FxHashMap;

/// The maximum number of traced iterations of a host loop that only a tensor or a panic may end.
const MAX_UNROLLED: usize = 10_000;

/// The maximum number of assertions traced at one location. A host loop that only an assertion ends
/// may have any form, and may be in another function. Loops that end by themselves stay far below.
const MAX_ASSERTIONS: usize = 100_000;

/// The number of times that locations of the program were traced.
#[derive(Default)]
pub(super) struct Repetitions {
    /// The iterations of each host loop, and the number of nodes at its last counted iteration.
    loops: FxHashMap<Loc, (usize, usize)>,
    assertions: FxHashMap<Loc, usize>,
}

/// Counts an iteration of a host loop that a jump under a tensor condition may end.
#[track_caller]
pub(crate) fn count_unrolled() {
    let loc = Loc::caller();
    try_with(|t| {
        t.count_iteration(loc, "only a tensor condition exits this loop", {
            "make it a loop of the graph: `loop`, `while` on a tensor, or `for i in range(..)`"
        })
    });
}

/// Counts an iteration of a host loop that, by its syntax, only a panic or an assertion ends.
#[track_caller]
pub fn count_endless() {
    let loc = Loc::caller();
    if is_tracing() {
        try_with(|t| {
            t.count_iteration(loc, "no `break` or `return` exits this loop", {
                "a panic or an assertion under a tensor condition stops a run of the graph, not the tracing of the \
                 loop: exit the loop with `break` or `return`, whose condition may be a tensor"
            })
        });
    }
}

impl Tracer {
    fn count_iteration(&mut self, loc: Loc, label: &str, help: &str) -> Result<()> {
        let nodes = self.graph.n_nodes();
        let (count, nodes_before) = self.repetitions.loops.entry(loc).or_default();
        // An iteration that traces nothing needs no memory, and host code may take any time.
        if *nodes_before == nodes {
            return Ok(());
        }
        *nodes_before = nodes;
        *count += 1;
        if *count <= MAX_UNROLLED {
            return Ok(());
        }
        let message = format!("the body of a host loop was traced {MAX_UNROLLED} times");
        Err(Diagnostic::new(message).at(loc, label).help(help))
    }

    /// Counts an assertion at `loc`.
    pub(super) fn count_assertion(&mut self, loc: Loc) -> Result<()> {
        let count = self.repetitions.assertions.entry(loc).or_default();
        *count += 1;
        if *count <= MAX_ASSERTIONS {
            return Ok(());
        }
        let message = format!("one assertion on a tensor was traced {MAX_ASSERTIONS} times");
        Err(Diagnostic::new(message).at(loc, "traced here").help(
            "an assertion stops a run of the graph, not the tracing of a host loop: exit the loop with `break` or \
             `return`",
        ))
    }
}
