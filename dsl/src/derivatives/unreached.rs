//! Errors of a loss from which no gradient reaches a model. Training would silently change nothing.

use super::*;
use crate::autodiff::active_in;
use crate::ir::{GraphBuilder, Op, ParamSource};
use crate::ops::Grad;
use crate::trace::Tracer;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Fails if no gradient of `loss` reaches any of `vars`, the trained variables of a model. `wrt`
/// are their values.
pub(super) fn check(loss: AnyValue, vars: &[AnyVar], wrt: &[AnyValue], loc: Loc) {
    let error = trace::try_with(|t| {
        let see = |t: &mut Tracer, a: AnyValue| t.resolve_for_gradient(a, loc);
        let loss = see(t, loss)?;
        let wrt = wrt.iter().map(|&w| see(t, w)).collect::<crate::Result<Vec<Value>>>()?;
        let active = active_in(&t.graph, &wrt);
        Ok((!active.contains(&loss)).then(|| Unreached { graph: &t.graph, loss, wrt, active }.error(vars, loc)))
    });
    if let Some(error) = error {
        trace::fail(error);
    }
}

/// A loss from which no gradient reaches the variables.
struct Unreached<'g> {
    graph: &'g GraphBuilder,
    loss: Value,
    wrt: Vec<Value>,
    /// The values that depend on the variables through operations with gradients.
    active: FxHashSet<Value>,
}

impl Unreached<'_> {
    fn error(&self, vars: &[AnyVar], loc: Loc) -> Diagnostic {
        let loss = self.name(self.loss);
        let at_loss = self.graph.loc(self.loss);
        if vars.is_empty() {
            return Diagnostic::new("gradients: the model has no trained variables")
                .at(loc, "differentiated here")
                .help("variables of integers or booleans, and those created by `Var::untrained`, are not trained");
        }
        let Some(to_node) = self.path(self.loss, |v| self.is_blocked(v), |_| true) else {
            let error = Diagnostic::new(format!("gradients: the loss {loss} reads no trained variable of the model"))
                .at(at_loss, "the loss")
                .at(loc, "differentiated here");
            let read = self.vars_read();
            return error.help(match read.is_empty() {
                true => "it reads no variables at all: compute it from `Var::get` of the model's variables".to_owned(),
                false => format!("it reads {}: pass the model from which it is computed", read.join(", ")),
            });
        };
        let blocked = *to_node.last().expect("a path has an end");
        let node = self.graph.producer(blocked).expect("the blocked value is the result of an operation");
        let data = self.graph.node(node);
        let operand = data.operands.iter().copied().find(|v| self.active.contains(v));
        let operand = operand.expect("an operand depends on a variable");
        let to_var = self.path(operand, |v| self.wrt.contains(&v), |v| self.active.contains(&v)).unwrap_or_default();
        let var = to_var.last().and_then(|v| self.wrt.iter().position(|w| w == v)).map(|i| vars[i].name());
        let name = data.op.name();
        let why = match &data.op {
            Op::Prim(def, _) => match def.grad {
                Grad::Zero(why) | Grad::Missing(why) => why.to_owned(),
                Grad::Rule(_) => format!("its result is {}", self.graph.ty(blocked)),
            },
            _ => format!("its result is {}", self.graph.ty(blocked)),
        };
        let through = to_node.iter().chain(&to_var).filter_map(|&v| self.operation(v));
        let steps: Vec<String> = std::iter::once("loss".to_owned())
            .chain(through.map(str::to_owned))
            .chain(var.map(|name| format!("`{name}`")))
            .collect();
        let message = format!(
            "gradients: the loss {loss} reaches no trained variable of the model, because `{name}` has no gradient: {why}"
        );
        Diagnostic::new(message)
            .at(data.loc, "gradients stop here")
            .at(at_loss, "the loss")
            .at(loc, "differentiated here")
            .help(format!("the path is {}", steps.join(" <- ")))
    }

    /// Returns the name of a value or of the operation that computes it.
    fn name(&self, v: Value) -> String {
        match (self.graph.value(v).name, self.operation(v)) {
            (Some(name), _) => format!("`{name}`"),
            (None, Some(operation)) => format!("(a result of `{operation}`)"),
            (None, None) => "(a parameter)".to_owned(),
        }
    }

    /// Returns the operation that computes a value, or `None` for a variable, which has a name.
    fn operation(&self, v: Value) -> Option<&'static str> {
        let op = &self.graph.node(self.graph.producer(v)?).op;
        (!matches!(op, Op::Read(_))).then(|| op.name())
    }

    /// Returns whether `v` is computed from the variables by an operation without a gradient.
    fn is_blocked(&self, v: Value) -> bool {
        let Some(node) = self.graph.producer(v).filter(|_| !self.active.contains(&v)) else { return false };
        let data = self.graph.node(node);
        let computes = matches!(data.op, Op::Prim(..) | Op::List(_) | Op::Stack(_));
        computes && data.operands.iter().any(|v| self.active.contains(v))
    }

    /// Returns the names of the variables that the loss reads.
    fn vars_read(&self) -> Vec<String> {
        let mut names = Vec::new();
        self.path(
            self.loss,
            |v| {
                let op = self.graph.producer(v).map(|node| &self.graph.node(node).op);
                if let Some(Op::Read(var)) = op {
                    names.push(format!("`{}`", self.graph.vars[var.index()].name));
                }
                false
            },
            |_| true,
        );
        names.sort_unstable();
        names
    }

    /// Returns a shortest path from a value back along its dependencies to the first value for
    /// which `ends` holds.
    fn path(
        &self,
        from: Value,
        mut ends: impl FnMut(Value) -> bool,
        goes: impl Fn(Value) -> bool,
    ) -> Option<Vec<Value>> {
        let mut came_from = FxHashMap::from_iter([(from, None)]);
        let mut todo = VecDeque::from([from]);
        while let Some(v) = todo.pop_front() {
            if ends(v) {
                let mut path: Vec<Value> = std::iter::successors(Some(v), |v| came_from[v]).collect();
                path.reverse();
                return Some(path);
            }
            for next in self.sources(v) {
                if goes(next) && !came_from.contains_key(&next) {
                    came_from.insert(next, Some(v));
                    todo.push_back(next);
                }
            }
        }
        None
    }

    /// Returns the direct dependencies of a value: operands, or the values outside or inside a
    /// construct.
    fn sources(&self, v: Value) -> Vec<Value> {
        let graph = self.graph;
        match graph.value(v).def {
            ValueDef::Result(node, i) => {
                let (data, i) = (graph.node(node), i as usize);
                let yields = graph.result_regions(node).iter().map(|&region| graph.region(region).yields[i]);
                let inside = graph.predicate(node).into_iter().chain(yields);
                match (graph.as_cond(node), graph.as_while(node)) {
                    (Some(_), _) => inside.collect(),
                    (_, Some(construct)) => inside.chain([construct.var(i).init]).collect(),
                    (None, None) => inside.chain(data.operands.iter().copied()).collect(),
                }
            }
            ValueDef::Param(..) => match (graph.outside(v), graph.source_of(v)) {
                (Some(outer), _) | (None, ParamSource::Capture(outer)) => vec![outer],
                (None, ParamSource::LoopVar(var)) => vec![var.next, var.init],
                (None, ParamSource::Input(_) | ParamSource::Own { .. }) => vec![],
            },
        }
    }
}
