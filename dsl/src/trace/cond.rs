//! Recording of `cond`, and the errors for arms whose values do not match.

use super::*;
use crate::ir::either;
use crate::{Tensor, scalar};

/// An open `cond`: the tracing side of a staged `if`.
#[must_use]
#[derive(Debug)]
pub struct CondTrace {
    construct: usize,
    pred: Value,
}

impl CondTrace {
    /// Opens the region of the first branch.
    #[track_caller]
    pub fn begin(pred: AnyValue) -> CondTrace {
        let loc = Loc::caller();
        try_with(|t| {
            let pred = t.predicate(pred, "if", loc)?;
            t.open_construct(OpenKind::Cond, loc)?;
            Ok(CondTrace { construct: t.open.len() - 1, pred })
        })
    }

    /// Selects the first (0) or second (1) branch as that to which nodes are appended.
    #[track_caller]
    pub fn select(&mut self, branch: usize) {
        with(|t| {
            assert_eq!(t.open.len(), self.construct + 1, "an inner construct was left open");
            t.graph.select(self.construct, branch);
        });
    }

    /// Closes the construct. `then[i]` and `otherwise[i]` are the two values of result `i`. A value
    /// that neither branch modified is returned as it was before. `sites` names the first results
    /// for messages.
    #[track_caller]
    pub fn end(self, then: &[AnyValue], otherwise: &[AnyValue], sites: &[Site]) -> Vec<AnyValue> {
        let loc = Loc::caller();
        try_with(|t| t.end_cond(&self, then, otherwise, sites, loc))
    }
}

/// Returns whether a value is this constant.
#[track_caller]
pub(crate) fn is_constant(any: AnyValue, constant: &HostTensor) -> bool {
    with(|t| match t.graph.value(any.value()).def {
        ValueDef::Result(node, _) => matches!(&t.graph.node(node).op, Op::Constant(c) if c == constant),
        ValueDef::Param(..) => false,
    })
}

/// Returns the condition of the next `if`, and marks its arm as unconditional.
#[track_caller]
pub(crate) fn unconditional() -> Tensor<bool> {
    let holds = scalar(true);
    with(|t| t.unconditional = Some(holds.untyped().value()));
    holds
}

/// Returns whether the next `if` is unconditional, if it is on this condition. Clears the mark.
#[track_caller]
pub(crate) fn take_unconditional(condition: AnyValue) -> bool {
    with(|t| t.unconditional.take() == Some(condition.value()))
}

impl Drop for CondTrace {
    fn drop(&mut self) {
        abandoned(self.construct);
    }
}

impl Tracer {
    pub(super) fn predicate(&mut self, pred: AnyValue, construct: &str, loc: Loc) -> Result<Value> {
        let pred = self.resolve(pred, loc)?;
        let ty = self.graph.ty(pred);
        if *ty == Type::tensor(DType::Bool, ()) {
            return Ok(pred);
        }
        let message = format!("the condition of `{construct}` is {ty}, not a scalar bool[]");
        let help = "reduce it with `.all()` or `.any()`, or select elementwise with `condition.select(a, b)`";
        Err(Diagnostic::new(message).at(loc, ty.to_string()).help(help))
    }

    fn end_cond(
        &mut self,
        cond: &CondTrace,
        then: &[AnyValue],
        otherwise: &[AnyValue],
        sites: &[Site],
        loc: Loc,
    ) -> Result<Vec<AnyValue>> {
        assert_eq!(then.len(), otherwise.len(), "the branches of a cond yield different numbers of values");
        assert_eq!(self.open.len(), cond.construct + 1, "an inner construct was left open");
        let depth = self.open.len();
        let [r0, r1] = self.graph.opened(cond.construct).regions;
        let mut sides = [Vec::new(), Vec::new()];
        for (side, (region, values)) in [(r0, then), (r1, otherwise)].into_iter().enumerate() {
            for &any in values {
                self.check_trace(any, loc)?;
                let value = self.resolve_in(any.value(), depth, region, loc)?;
                sides[side].push(value);
            }
        }
        let c = &self.open[cond.construct];
        let mut written: Vec<VarId> = c.var_values[0].keys().chain(c.var_values[1].keys()).copied().collect();
        written.sort();
        written.dedup();
        for &id in &written {
            let outer = self.var_at(id, depth - 1);
            for (side, region) in [r0, r1].into_iter().enumerate() {
                let value = match self.open[cond.construct].var_values[side].get(&id) {
                    Some(&v) => v,
                    None => self.resolve_in(outer, depth, region, loc)?,
                };
                sides[side].push(value);
            }
        }
        for (i, (&x, &y)) in sides[0].iter().zip(&sides[1]).enumerate() {
            let (tx, ty) = (self.graph.ty(x), self.graph.ty(y));
            if either(tx, ty).is_none() {
                let words = ["in one branch", "in the other"];
                let (x, y) = ((tx, self.origin(x)), (ty, self.origin(y)));
                return Err(mismatch("here", sites.get(i), x, y, words).or_at(self.open[cond.construct].loc));
            }
        }
        let c = self.pop_construct();
        let loc = if c.loc.is_known() { c.loc } else { loc };
        let results = self.here(loc).close_cond(cond.pred, sides);
        for (&id, &value) in written.iter().zip(&results[then.len()..]) {
            self.set_var(id, self.depth, value);
        }
        for (site, &r) in sites.iter().zip(&results) {
            self.graph.value_mut(r).name.get_or_insert(site.name);
        }
        Ok(results[..then.len()].iter().map(|&v| self.any(v)).collect())
    }
}

pub(super) fn mismatch(
    what: &str,
    site: Option<&Site>,
    before: (&Type, Loc),
    after: (&Type, Loc),
    words: [&str; 2],
) -> Diagnostic {
    let name = site.map_or_else(|| "the value".to_owned(), |s| format!("`{}`", s.shown()));
    let help = if before.0.element().dtype != after.0.element().dtype {
        "convert one of them to the element type of the other with `.cast()`"
    } else if before.0.element().rank() != after.0.element().rank() {
        "convert one of them to the rank of the other with `.broadcast_to(..)` or `.reshape(..)`"
    } else {
        "make the shapes equal"
    };
    let mut d = Diagnostic::new(format!("{name} has type {} {}, but {} {}", before.0, words[0], after.0, words[1]));
    let place = site.map_or(after.1, Site::loc);
    d = d.at(if after.1.is_known() { after.1 } else { place }, format!("{} {what}", after.0));
    if before.1.is_known() {
        d = d.at(before.1, format!("{} here", before.0));
    }
    d.help(help)
}
