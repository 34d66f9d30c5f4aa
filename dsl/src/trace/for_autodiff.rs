//! The interface of a trace for autodiff: open regions.

use super::*;

impl Tracer {
    /// Returns the value that `any` has in the current region.
    pub(crate) fn resolve_for_gradient(&mut self, any: AnyValue, loc: Loc) -> Result<Value> {
        self.check_trace(any, loc)?;
        // A value of an open region is differentiated where it is: the sweep visits all open
        // regions.
        let open = (0..=self.depth).any(|d| self.graph.region_at(d) == self.graph.region_of(any.value));
        if open { Ok(any.value) } else { self.resolve(any, loc) }
    }

    /// Returns whether a parameter of the open construct at `depth` is a loop variable or may
    /// become one.
    pub(crate) fn is_open_carried(&self, depth: usize, param: Value) -> bool {
        let c = &self.open[depth - 1];
        let ValueDef::Param(_, i) = self.graph.value(param).def else {
            return false;
        };
        matches!(&c.kind, OpenKind::While(open) if open.is_carried(i as usize))
    }
}
