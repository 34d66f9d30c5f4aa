//! The backward pass through calls: checkpoints and custom gradients.
//!
//! The gradient of a checkpoint is a `recompute`. The gradient is one region that takes the
//! operands of the checkpoint and the cotangents of its results. The `recompute` contains a copy of
//! the checkpoint's region, without observable operations such as assertions, followed by the
//! backward pass of that copy. So only the operands of the checkpoint are saved. Random numbers are
//! the same, since they depend on keys, which are operands or made inside. Within the region the
//! copy is level 0 of a separate backward pass: loops in it get their stacks there.

use super::*;
use crate::ir::{CallKind, GradientInput};
use crate::ops::Effects;

/// The begin of the error of a checkpoint whose region cannot be computed twice.
pub(crate) const OF_CHECKPOINT: &str = "`checkpoint` computes its values";

impl<'g> Sweep<'g> {
    pub(super) fn call(&self, level: usize, kind: CallKind, node: Node, data: &NodeData, cot: &mut Cotangents<'g>) {
        match kind {
            CallKind::Checkpoint | CallKind::Recompute => self.recompute(level, node, data, cot),
            CallKind::CustomGradient { .. } => self.custom_gradient(level, node, data, cot),
        }
    }

    fn recompute(&self, level: usize, node: Node, data: &NodeData, cot: &mut Cotangents<'g>) {
        let seeds: Vec<(usize, GradValue<'g>)> =
            data.results.iter().enumerate().filter_map(|(i, r)| Some((i, *cot.get(r)?))).collect();
        let inner = self.graph(|g| g.call_of(node).forward());
        self.graph(|g| check_repeatable(g, inner, OF_CHECKPOINT)).unwrap_or_else(|error| abort(error));
        let start = |(param, v): (Value, Value)| match self.graph(|g| g.ty(v).clone()) {
            Type::List(_) => self.start(level, v, inner, param),
            _ => self.forward_value(level, v),
        };
        let entry: Vec<(Value, Value)> = self.graph(|g| g.entry(inner).collect());
        let outer: Vec<Value> = entry.iter().map(|&(_, v)| v).collect();
        let threaded = self.threaded_captures(level, &outer, &[inner]).into_iter().enumerate();
        let threaded: Vec<(usize, GradValue<'g>)> = threaded.filter_map(|(i, v)| Some((i, *cot.get(&v?)?))).collect();
        let mut given: Vec<GradValue<'g>> = entry.into_iter().map(start).collect();
        let n = given.len();
        given.extend(seeds.iter().chain(&threaded).map(|&(_, d)| d));
        let params = self.open_call(&given);
        let (operands, rest) = params.split_at(n);
        let (gradients, sums) = rest.split_at(seeds.len());

        let (region, outputs) = self.added(|_, graph| {
            let params = graph.region(inner).params.iter().copied();
            let values = params.zip(operands.iter().map(|p| p.value())).collect();
            copy_here(graph, inner, values, &|op| op.effects() >= Effects::Observable)
        });
        let is_active = |&(p, &v): &(&GradValue<'g>, &Value)| {
            self.is_active(v) && self.graph(|g| g.ty(p.value()).is_differentiable())
        };
        let wrt = operands.iter().zip(&data.operands).filter(is_active).map(|(p, _)| p.value());
        let wrt: FxHashSet<Value> = wrt.collect();
        let mut active = wrt.clone();
        self.graph(|g| activity::activate(g, region, &mut active));
        let root = Level::new(region, self.graph(|g| g.depth()), None);
        let inner = Sweep::new(self.context, self.added, Active(active), wrt, self.at, root);
        let inner = Sweep { is_inside: self.is_inside(level), ..inner };
        let mut inner_cot = Cotangents::default();
        inner_cot.extend(threaded.iter().zip(sums).map(|(&(i, _), &d)| (operands[i].value(), d)));
        for (&(i, _), &d) in seeds.iter().zip(gradients) {
            inner.add(&mut inner_cot, outputs[i], d, None);
        }
        inner.region(0, region, &mut inner_cot);

        let parts = operands.iter().map(|p| inner_cot.get(&p.value()).copied());
        let parts = data.operands.iter().zip(parts).enumerate();
        let reached: Vec<(usize, Value, GradValue<'g>)> =
            parts.filter_map(|(i, (&v, part))| Some((i, v, part?))).collect();
        let yields: Vec<GradValue<'g>> = reached.iter().map(|&(.., part)| part).collect();
        let results = self.close_call(CallKind::Recompute, &yields);
        let is_whole = |i: usize| threaded.iter().any(|&(t, _)| t == i);
        let results = reached.iter().zip(&results).map(|(&(i, v, _), &d)| (v, d, is_whole(i)));
        self.propagate_results(cot, results, node);
    }

    fn custom_gradient(&self, level: usize, node: Node, data: &NodeData, cot: &mut Cotangents<'g>) {
        self.refuse_captured(node, data.loc);
        // Map only the values that the gradient reads.
        let (gradient, inputs, read) = self.graph(|g| {
            let call = g.call_of(node);
            let gradient = call.gradient().expect("a call with a custom gradient has a gradient region");
            let region = g.region(gradient);
            let operands = region.nodes.iter().flat_map(|&n| &g.node(n).operands);
            let read: FxHashSet<Value> = operands.chain(&region.yields).copied().collect();
            (gradient, call.gradient_inputs().collect::<Vec<_>>(), read)
        });
        let mut given = FxHashMap::default();
        for (param, input) in inputs.into_iter().filter(|(param, _)| read.contains(param)) {
            let seen = match input {
                GradientInput::Entry(v) => self.forward_value(level, v),
                GradientInput::Forward(i) => self.forward_value(level, data.results[i]),
                GradientInput::Cotangent(i) => {
                    let result = data.results[i];
                    cot.get(&result).copied().unwrap_or_else(|| self.zeros_of_type(level, result))
                }
            };
            given.insert(param, self.graph(|g| g.capture(seen.value())));
        }
        let (_, parts) = self.added(|_, graph| copy_here(graph, gradient, given, &|_| false));
        let takes: Vec<Value> = self.graph(|g| {
            let args = g.call_of(node).args().iter();
            args.copied().filter(|&v| g.ty(v).is_differentiable()).collect()
        });
        for (v, part) in takes.into_iter().zip(parts) {
            self.add(cot, v, self.value(part), Some(node));
        }
    }

    /// Rejects gradients of captures of the forward function, which a custom gradient does not
    /// provide.
    fn refuse_captured(&self, node: Node, loc: Loc) {
        let found = self.graph(|g| {
            let call = g.call_of(node);
            call.captures().filter(|&(_, v)| self.is_active(v)).find(|&(p, _)| {
                let mut active = FxHashSet::from_iter([p]);
                activity::activate(g, call.forward(), &mut active);
                g.region(call.forward()).yields.iter().any(|y| active.contains(y))
            })
        });
        let Some((p, v)) = found else { return };
        let name = self.graph(|g| g.value(p).name.map_or_else(|| "a tensor".to_owned(), |n| format!("`{n}`")));
        let mut error = Diagnostic::new(format!(
            "custom_gradient: the function captures {name}, for which a gradient is requested"
        ))
        .at(loc, "the gradient defined here covers only the arguments");
        let made = self.graph(|g| g.loc(v));
        if made.is_known() {
            error = error.at(made, "created here");
        }
        abort(error.help("pass it as an argument and return its gradient too, or cut the path with `stop_gradient()`"))
    }
}

/// Fails if a region that is computed twice removes elements from a queue or asks for their number,
/// or reads a file, which the second time would be others. `why` says what computes it.
pub(crate) fn check_repeatable(graph: &Graph, region: Region, why: &str) -> Result<()> {
    let mut found = None;
    graph.visit_nodes(region, &mut |node| {
        let data = graph.node(node);
        if data.op.is_of_session() && !data.results.is_empty() {
            let what = if matches!(data.op, Op::File(_)) { "file" } else { "queue" };
            found.get_or_insert((data.loc, what));
        }
    });
    let Some((loc, what)) = found else { return Ok(()) };
    let error = Diagnostic::new(format!("{why} twice, which an operation on a {what} must not be"));
    Err(error.at(loc, "used here").help(match what {
        "file" => "restore the tensor before, and pass it in",
        _ => {
            "use the queue before, and pass its element in; instead of in a condition, in the body: \
             `loop { let x = queue.dequeue(); if x == 0 { break; } .. }`"
        }
    }))
}

/// Appends a copy of the nodes of a region to the innermost region, with `given` replacing its
/// parameters. Returns the innermost region and the copies of the yielded values.
fn copy_here(
    graph: &mut GraphBuilder,
    from: Region,
    given: FxHashMap<Value, Value>,
    leave_out: &dyn Fn(&Op) -> bool,
) -> (Region, Vec<Value>) {
    let here = graph.region_at(graph.depth());
    (here, graph.copy_region(from, here, given, leave_out))
}
