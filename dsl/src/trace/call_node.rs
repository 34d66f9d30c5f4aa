//! Opening and closing calls: one region that runs once, and a second one for a custom gradient.

use super::*;
use crate::autodiff::{OF_CHECKPOINT, check_repeatable};
use crate::ir::CallKind;

/// An open call.
#[must_use]
#[derive(Debug)]
pub(crate) struct CallTrace {
    construct: usize,
    args: usize,
    /// The values that the forward region yields, once it is closed.
    results: Vec<Value>,
}

/// The parameters of the gradient region of a call.
pub(crate) struct GradientParams {
    pub(crate) args: Vec<AnyValue>,
    pub(crate) results: Vec<AnyValue>,
    /// The cotangent of each result, if it has one.
    pub(crate) gradients: Vec<Option<AnyValue>>,
}

impl CallTrace {
    /// Opens the region. Returns its parameters for `args`. Other values that it uses are captured.
    #[track_caller]
    pub(crate) fn begin(args: &[AnyValue]) -> (CallTrace, Vec<AnyValue>) {
        let loc = Loc::caller();
        try_with(|t| {
            let args = args.iter().map(|&a| t.resolve(a, loc)).collect::<Result<Vec<_>>>()?;
            t.open_construct(OpenKind::Call { own: Vec::new() }, loc)?;
            let construct = t.open.len() - 1;
            for &v in &args {
                t.graph.add_open_param(construct, v, None);
            }
            let params = t.params_of(construct, 0, args.len());
            Ok((CallTrace { construct, args: args.len(), results: Vec::new() }, params))
        })
    }

    /// Closes a call of one region with its results. Variables that were assigned inside have their
    /// new values outside.
    #[track_caller]
    pub(crate) fn end(self, kind: CallKind, yields: &[AnyValue]) -> Vec<AnyValue> {
        let loc = Loc::caller();
        try_with(|t| t.end_call(&self, kind, yields, loc))
    }

    /// Closes the forward region and opens the gradient region.
    #[track_caller]
    pub(crate) fn begin_gradient(&mut self, yields: &[AnyValue]) -> GradientParams {
        let loc = Loc::caller();
        try_with(|t| {
            self.results = t.yields_of_call(self.construct, yields, loc)?;
            t.graph.select(self.construct, 1);
            let [_, region] = t.graph.opened(self.construct).regions;
            let own = |t: &mut Tracer, result: Value| {
                let data = t.graph.value(result).clone();
                // The parameter gets its position when the call closes and all captures are known.
                let param = t.graph.add_param(region, data.ty, data.name);
                t.graph.value_mut(param).def = ValueDef::Param(region, u32::MAX);
                t.graph.region_mut(region).params.pop();
                own_params(&mut t.open[self.construct].kind).push(param);
                t.any(param)
            };
            let results = self.results.iter().map(|&r| own(t, r)).collect();
            let gradients =
                self.results.iter().map(|&r| t.graph.ty(r).is_differentiable().then(|| own(t, r))).collect();
            Ok(GradientParams { args: t.params_of(self.construct, 1, self.args), results, gradients })
        })
    }

    /// Closes the call with the cotangents of the arguments that have one.
    #[track_caller]
    pub(crate) fn end_gradient(self, gradients: &[AnyValue]) -> Vec<AnyValue> {
        let loc = Loc::caller();
        try_with(|t| {
            let gradients = t.yields_of_call(self.construct, gradients, loc)?;
            let [_, gradient] = t.graph.opened(self.construct).regions;
            let mut c = t.pop_construct();
            let params = t.graph.region(gradient).params.iter().chain(&*own_params(&mut c.kind)).copied().collect();
            t.graph.set_params(gradient, params);
            let kind = CallKind::CustomGradient { args: self.args };
            let node = t.here(c.loc).close(Op::Call(kind), None, [self.results, gradients]);
            Ok(t.results(node))
        })
    }
}

/// Returns the parameters of the gradient region of a call without a value outside.
fn own_params(kind: &mut OpenKind) -> &mut Vec<Value> {
    match kind {
        OpenKind::Call { own } => own,
        OpenKind::Cond | OpenKind::While(_) => panic!("the construct is a call"),
    }
}

impl Tracer {
    fn yields_of_call(&mut self, construct: usize, yields: &[AnyValue], loc: Loc) -> Result<Vec<Value>> {
        assert_eq!(self.open.len(), construct + 1, "an inner construct was left open");
        let yields = yields.iter().map(|&y| self.resolve(y, loc)).collect::<Result<Vec<_>>>()?;
        let c = &self.open[construct];
        if let Some(&id) = c.var_values[self.graph.opened(construct).current].keys().min() {
            let name = &self.graph.vars[id.index()].name;
            let message = format!("a function with a custom gradient cannot assign the variable `{name}`");
            return Err(Diagnostic::new(message)
                .at(c.loc, "called here")
                .help("return the value as a result, and assign it outside"));
        }
        Ok(yields)
    }

    fn end_call(&mut self, call: &CallTrace, kind: CallKind, yields: &[AnyValue], loc: Loc) -> Result<Vec<AnyValue>> {
        assert_eq!(self.open.len(), call.construct + 1, "an inner construct was left open");
        let mut values = yields.iter().map(|&y| self.resolve(y, loc)).collect::<Result<Vec<_>>>()?;
        let mut written: Vec<(VarId, Value)> =
            self.open[call.construct].var_values[0].iter().map(|(&id, &v)| (id, v)).collect();
        written.sort_by_key(|&(id, _)| id);
        values.extend(written.iter().map(|&(_, v)| v));
        if kind == CallKind::Checkpoint {
            let [body, _] = self.graph.opened(call.construct).regions;
            check_repeatable(&self.graph, body, OF_CHECKPOINT)?;
        }
        let c = self.pop_construct();
        let results = self.here(c.loc).close_call(kind, &values);
        for (&(id, _), &value) in written.iter().zip(&results[yields.len()..]) {
            self.set_var(id, self.depth, value);
        }
        Ok(results[..yields.len()].iter().map(|&v| self.any(v)).collect())
    }
}
