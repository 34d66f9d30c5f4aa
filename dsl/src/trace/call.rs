//! Calls of graph functions: nesting, names and declared shapes of parameters.

use super::{AnyValue, Site, TRACER, is_tracing, try_with};
use crate::{Diagnostic, Dim, Loc};
use rustc_hash::FxHashMap;
use std::num::NonZeroU32;

/// A call of a graph function that is being traced.
pub(super) struct OpenCall {
    pub(super) name: &'static str,
    loc: Loc,
    /// The extents that names in the shapes of its parameters have, and the parameter that
    /// determined each.
    dims: FxHashMap<&'static str, (Dim, &'static str)>,
    /// The maximum number of iterations of each of its loops.
    max_iterations: Option<i64>,
    /// The number of iterations of each of its loops that may run at once.
    pub(super) parallel_iterations: Option<NonZeroU32>,
}

/// One extent in the `#[shape(..)]` of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// `_`: any extent.
    Any,
    /// A known extent.
    Is(usize),
    /// A name: the same extent wherever the call's parameters use the name.
    Named(&'static str),
}

/// A guard for the call of a graph function. Calls that are nested too deeply are recursion, which
/// tracing cannot end.
#[must_use]
#[derive(Debug)]
pub struct CallGuard(bool);

/// The depth of nested calls at which recursion is assumed.
const MAX_CALLS: usize = 128;

/// Records that a graph function is being called.
pub fn enter(name: &'static str, site: Site) -> CallGuard {
    if !is_tracing() {
        return CallGuard(false);
    }
    try_with(|t| {
        t.calls.push(OpenCall {
            name,
            loc: site.loc(),
            dims: FxHashMap::default(),
            max_iterations: None,
            parallel_iterations: None,
        });
        if t.calls.len() > MAX_CALLS {
            return Err(Diagnostic::new(format!("`{name}` recurses endlessly while it is traced"))
                .at(site.loc(), format!("after {MAX_CALLS} nested calls: {}", chain(&t.calls)))
                .help(
                    "a graph cannot recurse: write a `while` over tensors, or end the recursion by a host condition",
                ));
        }
        Ok(CallGuard(true))
    })
}

/// Returns the innermost calls, for example `.. f -> g -> h`.
pub(super) fn chain(calls: &[OpenCall]) -> String {
    let names = calls.iter().rev().take(4).rev().map(|c| format!("`{}`", c.name)).collect::<Vec<_>>().join(" -> ");
    if calls.len() > 4 { format!(".. {names}") } else { names }
}

/// Limits the iterations of each staged loop of the graph function that was just entered.
pub fn bound_loops(max_iterations: usize) {
    if is_tracing() {
        try_with(|t| {
            let call = t.calls.last_mut().expect("a graph function is entered before its loops are bounded");
            call.max_iterations = Some(i64::try_from(max_iterations).unwrap_or(i64::MAX));
            Ok(())
        });
    }
}

/// Sets how many iterations of each staged loop of the graph function that was just entered may run
/// at once.
pub fn overlap_loops(parallel_iterations: usize, site: Site) {
    if !is_tracing() {
        return;
    }
    try_with(|t| {
        let call = t.calls.last_mut().expect("a graph function is entered before its loop options are set");
        let n = u32::try_from(parallel_iterations).unwrap_or(u32::MAX);
        let n = NonZeroU32::new(n).ok_or_else(|| {
            Diagnostic::new(format!("`{}`: `parallel_iterations` is 0", call.name))
                .at(site.loc(), "set to 0")
                .help("use at least 1; with 1, each iteration ends before the next begins")
        })?;
        call.parallel_iterations = Some(n);
        Ok(())
    });
}

/// Returns the iteration limit of staged loops in the graph function being traced.
pub(crate) fn max_iterations() -> Option<i64> {
    TRACER.with_borrow(|t| t.as_ref()?.calls.last()?.max_iterations)
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if self.0 {
            TRACER.with_borrow_mut(|t| {
                if let Some(t) = t {
                    t.calls.pop();
                }
            });
        }
    }
}

/// Names a parameter of the graph function that was just entered, for messages and printing.
pub fn name_param(param: AnyValue, name: &'static str) {
    if is_tracing() {
        param.described(name);
    }
}

/// Checks a parameter of the graph function that was just entered against its `#[shape(..)]`.
pub fn expect_shape(param: AnyValue, name: &'static str, extents: &[Extent], site: Site) {
    try_with(|t| {
        let ty = t.graph.ty(param.value()).element().clone();
        let call = t.calls.last_mut().expect("a graph function is entered before its parameters are checked");
        let mut fits = ty.rank() == extents.len();
        let mut because = String::new();
        for (dim, extent) in ty.shape.dims().iter().zip(extents) {
            let expected = match extent {
                Extent::Any => continue,
                Extent::Is(n) => Dim::Known(*n),
                Extent::Named(n) => {
                    let (expected, by) = call.dims.entry(n).or_insert((dim.clone(), name));
                    if !dim.compatible(expected) {
                        because = format!("`{n}` is {expected} in `{by}`");
                    }
                    expected.clone()
                }
            };
            fits &= dim.compatible(&expected);
        }
        if fits {
            return Ok(());
        }
        let show = |e: &Extent| match e {
            Extent::Any => "_".to_owned(),
            Extent::Is(n) => n.to_string(),
            Extent::Named(n) => (*n).to_owned(),
        };
        let extents: Vec<String> = extents.iter().map(show).collect();
        let expected = format!("{}[{}]", ty.dtype, extents.join(", "));
        let message = format!("`{}`: the parameter `{name}` is {expected}, but got {ty}", call.name);
        let error =
            Diagnostic::new(message).at(site.loc(), format!("expected {expected}")).at(call.loc, "in this function");
        let help = "pass a tensor of this shape, or change `#[shape(..)]`";
        Err(error.help(if because.is_empty() { help.to_owned() } else { format!("{because}: {help}") }))
    });
}
