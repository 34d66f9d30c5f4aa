//! Guards against host loops that tracing would repeat forever.
//!
//! A host loop is unrolled while it is traced. What is staged in its body, a jump, a panic or an assertion, only runs in the
//! graph and does not end the tracing. Without a limit, a loop that nothing else ends would be traced until memory ends.

use super::{Tracer, is_tracing, try_with};
use crate::{Diagnostic, Loc, Result};
use std::collections::HashMap;

/// Limit on the iterations traced of one host loop that a tensor may end, or that nothing ends but a panic.
const MAX_UNROLLED: usize = 10_000;

/// Limit on the assertions traced at one place. A host loop that only an assertion ends may have any form, and may stand in another
/// function; loops that end by themselves stay far below.
const MAX_ASSERTIONS: usize = 100_000;

/// How often places of the program were traced.
#[derive(Default)]
pub(super) struct Repetitions {
    /// The iterations of a host loop, and the number of nodes after the last one that was counted.
    loops: HashMap<Loc, (usize, usize)>,
    assertions: HashMap<Loc, usize>,
}

/// Counts an iteration of a host loop that a jump under a tensor condition may end.
#[track_caller]
pub(crate) fn count_unrolled() {
    let loc = Loc::caller();
    try_with(|t| {
        t.count_iteration(loc, "only a tensor ends this loop", {
            "let it run in the graph: `loop`, `while` on a tensor, or `for i in range(..)`"
        })
    });
}

/// Counts an iteration of a host loop that, by its form, nothing ends but a panic or an assertion.
#[track_caller]
pub fn count_endless() {
    let loc = Loc::caller();
    if is_tracing() {
        try_with(|t| {
            t.count_iteration(loc, "no `break` or `return` ends this loop", {
                "a panic or an assertion on a tensor ends the step that runs, not the loop that is traced: \
                 end the loop by `break` or `return`, under a condition that may be a tensor"
            })
        });
    }
}

impl Tracer {
    fn count_iteration(&mut self, loc: Loc, label: &str, help: &str) -> Result<()> {
        let nodes = self.graph.n_nodes();
        let (count, nodes_before) = self.repetitions.loops.entry(loc).or_default();
        // An iteration that traces nothing costs nothing but time, and host code may take as much as it likes.
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
        let message = format!("an assertion on a tensor was traced {MAX_ASSERTIONS} times at one place");
        Err(Diagnostic::new(message)
            .at(loc, "traced here")
            .help("it ends the step that runs, not the host loop that is traced: end the loop by `break` or `return`"))
    }
}
