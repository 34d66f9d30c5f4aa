//! Opening and closing `while`.

use super::cond::mismatch;
use super::*;
use crate::autodiff::check_repeatable;
use crate::ops::Effects;

/// An open `while`: the tracing side of a staged loop.
#[must_use]
#[derive(Debug)]
pub struct WhileTrace {
    construct: usize,
}

impl WhileTrace {
    /// Opens the region of the condition. Returns the loop variables in it.
    #[track_caller]
    pub fn begin(init: &[AnyValue], sites: &[Site]) -> (WhileTrace, Vec<AnyValue>) {
        let loc = Loc::caller();
        try_with(|t| {
            let init = init.iter().map(|&a| t.resolve(a, loc)).collect::<Result<Vec<_>>>()?;
            let parallel_iterations = t.calls.last().and_then(|call| call.parallel_iterations);
            let open = OpenWhile { declared: init.len(), parallel_iterations, ..OpenWhile::default() };
            t.open_construct(OpenKind::While(open), loc)?;
            let construct = t.open.len() - 1;
            for (i, &v) in init.iter().enumerate() {
                t.graph.add_open_var(construct, v, sites.get(i).map(|s| s.name));
            }
            let params = t.params_of(construct, 0, init.len());
            Ok((WhileTrace { construct }, params))
        })
    }

    /// Closes the condition and opens the body. Returns the loop variables in it.
    #[track_caller]
    pub fn begin_body(&mut self, pred: AnyValue) -> Vec<AnyValue> {
        self.begin_body_after(pred, &[]).0
    }

    /// Closes a condition that may modify loop variables, and opens the body.
    ///
    /// `now` are the values after the condition, or empty if it modifies none. Returns the loop
    /// variables at the start of the body, before and after the condition.
    ///
    /// A condition yields nothing but its value. So if it modifies loop variables or variables of
    /// the function, the body starts with a copy of the condition, and so does the code after the
    /// loop. Effects run in the condition alone.
    #[track_caller]
    pub fn begin_body_after(&mut self, pred: AnyValue, now: &[AnyValue]) -> (Vec<AnyValue>, Vec<AnyValue>) {
        let loc = Loc::caller();
        try_with(|t| {
            assert_eq!(t.open.len(), self.construct + 1, "an inner construct was left open");
            let pred = t.predicate(pred, "while", loc)?;
            let mut values = now.iter().map(|&a| t.resolve(a, loc)).collect::<Result<Vec<_>>>()?;
            let [cond, body] = t.graph.opened(self.construct).regions;
            t.graph.select(self.construct, 1);
            let c = &mut t.open[self.construct];
            c.as_while().pred = Some(pred);
            let mut vars: Vec<(VarId, Value)> = c.var_values[0].iter().map(|(&id, &v)| (id, v)).collect();
            vars.sort();
            values.extend(vars.iter().map(|&(_, v)| v));
            let declared = c.as_while().declared;
            let mut start = Vec::new();
            if !values.is_empty() {
                check_repeatable(&t.graph, cond, "a condition that changes variables is computed")?;
                start = t.repeat_condition(cond, &values, t.graph.region(body).params.clone(), body);
                let vars: Vec<VarId> = vars.into_iter().map(|(id, _)| id).collect();
                for (&id, value) in vars.iter().zip(start.split_off(now.len())) {
                    t.set_var(id, t.depth, value);
                }
                t.open[self.construct].as_while().after_condition = Some(ConditionEffects { values, vars });
            }
            Ok((t.params_of(self.construct, 1, declared), start.into_iter().map(|v| t.any(v)).collect()))
        })
    }

    /// Adds a loop variable while the body is open. Returns its value in the body.
    #[track_caller]
    pub(crate) fn add_carried(&mut self, init: AnyValue) -> AnyValue {
        let loc = Loc::caller();
        try_with(|t| {
            let outer = {
                t.check_trace(init, loc)?;
                t.resolve_at(init.value(), self.construct, loc)?
            };
            let i = t.graph.add_open_var(self.construct, outer, None);
            t.open[self.construct].as_while().extra.push(i);
            let [_, body] = t.graph.opened(self.construct).regions;
            Ok(t.any(t.graph.region(body).params[i]))
        })
    }

    /// Adds a loop variable with initial zeros that are never read, whose next value is `next`.
    #[track_caller]
    pub(crate) fn add_late(&mut self, next: AnyValue) {
        let ty = next.ty();
        let init = at_depth(self.construct, || placeholder(ty));
        self.add_carried(init);
    }

    /// Closes the loop. `next[i]` is the next value of loop variable `i`. Returns the results in
    /// the same order; a variable that the body does not modify is returned as its initial value.
    #[track_caller]
    pub fn end(self, next: &[AnyValue], sites: &[Site]) -> Vec<AnyValue> {
        self.end_with(next, &[], sites)
    }

    /// Closes the loop. `extra` are the next values of the loop variables that were added while the
    /// body was open, in order.
    #[track_caller]
    pub(crate) fn end_with(self, next: &[AnyValue], extra: &[AnyValue], sites: &[Site]) -> Vec<AnyValue> {
        let loc = Loc::caller();
        try_with(|t| t.end_while(&self, next, extra, sites, loc))
    }
}

impl Drop for WhileTrace {
    fn drop(&mut self) {
        abandoned(self.construct);
    }
}

/// Returns the axes along which two tensors of one element type and rank differ, as Rust source
/// text.
fn changed_axes(before: &Type, after: &Type) -> Option<String> {
    let (Type::Tensor(before), Type::Tensor(after)) = (before, after) else { return None };
    if before.dtype != after.dtype || before.rank() != after.rank() {
        return None;
    }
    let pairs = before.shape.dims().iter().zip(after.shape.dims()).enumerate();
    let axes: Vec<usize> = pairs.filter(|(_, (b, a))| !a.fits(b)).map(|(i, _)| i).collect();
    Some(if let [axis] = axes[..] { axis.to_string() } else { format!("{axes:?}") })
}

/// Makes each iteration of the loop around it a step of its own, in a graph function.
///
/// The effects of an iteration on variables and queues are final when it ends: others see them, a
/// snapshot of the session has them, and they stay if the call fails later or ends early. So an
/// epoch of training can run inside of one call, and be watched, saved and stopped like one that
/// calls a step again and again.
///
/// The loop is the outermost of its function, and at most one loop of a function is so. It carries
/// and captures tensors alone, and no gradient flows through it. What is before and after it are
/// steps, too, and so is each evaluation of its condition: others may assign variables between the
/// condition and the body. The value that a variable had in an earlier step stays as it was;
/// [`get`](crate::Var::get) returns that of the step in which it is called.
///
/// # Errors
/// Aborts the trace at the caller's line if it is not called in the body of an outermost staged
/// `while`, `for` or `loop`, or inside of a branch of it.
///
/// ```
/// use anabranch::{Queue, Session, TensorType, DType, commit_each_iteration, prelude::*};
///
/// #[graph]
/// fn sum_up(queue: Queue<Tensor>, total: Var<f32>, n: Tensor<i32>) {
///     let mut i = scalar(0);
///     while i < n {
///         commit_each_iteration();
///         total.set(total.get() + queue.dequeue());
///         i += 1;
///     }
/// }
///
/// let queue = Queue::<Tensor>::fifo("q", 10, &[TensorType::new(DType::F32, [])])?;
/// let total = Var::<f32>::new("total", 0.0);
/// let session = Session::new()?;
/// let host = session.queue(&queue)?;
/// (1..=3).try_for_each(|x| host.push(x as f32))?;
/// host.close()?;
/// let f = session.function(|n: Tensor<i32>| sum_up(queue.clone(), total.clone(), n))?;
/// f.call(2)?;
/// assert_eq!(session.get(&total)?, 3.0);
/// // The second iteration fails, since the queue is closed. The first one stays.
/// assert!(f.call(2).is_err());
/// assert_eq!(session.get(&total)?, 6.0);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn commit_each_iteration() {
    let loc = Loc::caller();
    try_with(|t| {
        let is_body = t.open.len() == 1 && t.depth == 1 && t.graph.opened(0).current == 1;
        if !is_body || !matches!(t.open[0].kind, OpenKind::While(_)) {
            let what = match t.open.len() {
                0 => "outside of a staged loop",
                _ => "inside of a branch, of an inner loop or of a condition",
            };
            return Err(Diagnostic::new(format!("commit_each_iteration: called {what}"))
                .at(loc, "called here")
                .help("call it as the first statement of the body of the outermost loop"));
        }
        if let Some(CommitLoop { loc: first, .. }) = &t.commit_loop {
            return Err(Diagnostic::new("commit_each_iteration: the function has another such loop")
                .at(loc, "called here")
                .at(*first, "and here")
                .help("make two functions of it"));
        }
        t.open[0].as_while().commits = Some(loc);
        Ok(())
    });
}

impl Tracer {
    pub(super) fn params_of(&self, construct: usize, which: usize, n: usize) -> Vec<AnyValue> {
        let params = &self.graph.region(self.graph.opened(construct).regions[which]).params;
        params[..n].iter().map(|&p| self.any(p)).collect()
    }

    /// Copies the condition to another region with `given` for its parameters. Returns the loop
    /// variables after it.
    fn repeat_condition(&mut self, cond: Region, now: &[Value], given: Vec<Value>, to: Region) -> Vec<Value> {
        let params = self.graph.region(cond).params.iter().copied();
        let given = params.zip(given).collect();
        let yields = std::mem::replace(&mut self.graph.region_mut(cond).yields, now.to_vec());
        let is_effect = |op: &Op| op.effects() >= Effects::WritesState;
        let again = self.graph.copy_region(cond, to, given, &is_effect);
        self.graph.region_mut(cond).yields = yields;
        again
    }

    /// Reads the variables again that the function has not assigned: what follows is another step.
    fn read_again(&mut self) {
        for i in 0..self.var_state.len() {
            let state = self.var_state[i];
            if state.current == state.read && !state.is_committed {
                let read = self.here(Loc::UNKNOWN).emit(Op::Read(VarId::from_index(i)), &[]);
                self.var_state[i] = VarState { read, current: read, ..state };
                self.var_versions[i].push(read);
            }
        }
    }

    /// Notes the loop whose iterations are steps. `vars` are the variables that it uses and
    /// `changing` its loop variables, by the position while it was open. `params` are the
    /// parameters of both regions by that position.
    fn note_commit_loop(
        &mut self,
        node: Node,
        loc: Loc,
        vars: &[(VarId, usize)],
        changing: &[(usize, Value)],
        params: &[Vec<Value>; 2],
    ) {
        let position = |i: usize| changing.iter().position(|&(j, _)| j == i);
        let carried: Vec<(VarId, usize)> = vars.iter().filter_map(|&(id, i)| Some((id, position(i)?))).collect();
        let read = vars.iter().filter(|&&(_, i)| position(i).is_none());
        let read = read.map(|&(id, i)| (id, [params[0][i], params[1][i]])).collect();
        let states = self.var_state.iter().enumerate().filter(|(_, state)| state.current != state.read);
        let assigned_before: Vec<(VarId, Value)> =
            states.map(|(i, state)| (VarId::from_index(i), state.current)).collect();
        for (i, state) in self.var_state.iter_mut().enumerate() {
            let id = VarId::from_index(i);
            // Each step assigns what it changes, so the last one assigns even an old value.
            state.is_committed |= carried.iter().any(|&(of, _)| of == id) || assigned_before.iter().any(|a| a.0 == id);
        }
        let n_vars = changing.len();
        self.commit_loop = Some(CommitLoop { node, loc, vars: carried, read, assigned_before, n_vars });
    }

    fn end_while(
        &mut self,
        trace: &WhileTrace,
        next: &[AnyValue],
        extra: &[AnyValue],
        sites: &[Site],
        loc: Loc,
    ) -> Result<Vec<AnyValue>> {
        let construct = trace.construct;
        assert_eq!(self.open.len(), construct + 1, "an inner construct was left open");
        assert_eq!(
            next.len(),
            self.open[construct].as_while().declared,
            "there is one next value for each loop variable"
        );
        let [cond, body] = self.graph.opened(construct).regions;
        let next = next.iter().map(|&a| self.resolve(a, loc)).collect::<Result<Vec<_>>>()?;
        let extra_next = extra.iter().map(|&a| self.resolve(a, loc)).collect::<Result<Vec<_>>>()?;

        // All loop variables, each as parameter and next value.
        let mut carried: Vec<(usize, Value)> = next.iter().copied().enumerate().collect();
        let mut vars: Vec<(VarId, usize)> =
            self.open[construct].as_while().var_params.iter().map(|(&id, &i)| (id, i)).collect();
        vars.sort();
        let is_var = |i: usize| vars.iter().any(|&(_, p)| p == i);
        let added: Vec<usize> = self.open[construct].as_while().extra.iter().copied().filter(|&i| !is_var(i)).collect();
        assert_eq!(added.len(), extra_next.len(), "there is one next value for each added loop variable");
        carried.extend(added.into_iter().zip(extra_next));
        let n_results = carried.len();
        for &(id, i) in &vars {
            let written = self.open[construct].var_values[1].get(&id).copied();
            carried.push((i, written.unwrap_or(self.graph.region(body).params[i])));
        }

        let regions = [cond, body].map(|region| self.graph.region(region).params.clone());
        let of_params: Vec<(Value, Value)> =
            regions.iter().flat_map(|params| carried.iter().map(|&(i, next)| (params[i], next))).collect();
        self.added.check_gradients_of_one_iteration(&self.graph, &of_params)?;

        // Variables that change are results; the others are captures.
        let c = &self.open[construct];
        let outer = &self.graph.opened(construct).outer;
        let mut changing = Vec::new();
        let mut results = Vec::new();
        for (k, &(i, value)) in carried.iter().enumerate() {
            if let Some(outer) = self.graph.unchanged(i, value) {
                results.push(Err(outer));
                continue;
            }
            let (before, after) = (self.graph.ty(outer[i]), self.graph.ty(value));
            if !after.fits(before) {
                let words = ["before the loop", "after one iteration"];
                let (x, y) = ((before, self.origin(outer[i])), (after, self.origin(value)));
                let site = if k < next.len() { sites.get(k) } else { None };
                let error = mismatch("after one iteration", site, x, y, words).or_at(c.loc);
                return Err(match changed_axes(before, after) {
                    Some(axes) => {
                        let name = site.map_or("x", |s| s.name);
                        error.help(format!(
                            "if the extent is to change in the loop, declare it before the loop: \
                             `let mut {name} = {name}.with_dynamic({axes});`"
                        ))
                    }
                    None => error,
                });
            }
            results.push(Ok(changing.len()));
            changing.push((i, value));
        }
        if self.open[construct].as_while().segments.is_some() {
            for region in [cond, body] {
                check_repeatable(&self.graph, region, "`checkpoint_loop` computes iterations")?;
            }
        }
        let c = self.pop_construct();
        let OpenKind::While(open) = c.kind else { panic!("the construct is a `while`") };
        let predicate = open.pred.expect("begin_body was called");
        let loc = if c.loc.is_known() { c.loc } else { loc };
        let node = self.here(loc).close_while(open.parallel_iterations, predicate, &changing);
        if let Some(asked) = open.commits {
            let has_effects = open.after_condition.as_ref().is_some_and(|after| !after.vars.is_empty());
            if has_effects || open.segments.is_some() {
                let what = if has_effects { "its condition assigns a variable" } else { "it runs in segments" };
                return Err(Diagnostic::new(format!("commit_each_iteration: of a loop of which {what}"))
                    .at(asked, "called here")
                    .help("assign variables in the body, and use no `checkpoint_loop`"));
            }
            self.note_commit_loop(node, asked, &vars, &changing, &regions);
        }
        let captured = self.graph.captured(node).to_vec();
        let region = self.graph.node(node).region;
        let made = match open.segments {
            None => self.graph.node(node).results.clone(),
            Some(segments) => self.in_segments(node, segments),
        };
        let mut results: Vec<Value> = results
            .into_iter()
            .map(|r| match r {
                Ok(i) => made[i],
                Err(outer) => outer,
            })
            .collect();
        for (&(id, i), &value) in vars.iter().zip(&results[n_results..]) {
            if changing.iter().any(|&(j, _)| j == i) {
                self.set_var(id, self.depth, value);
            }
        }
        if open.commits.is_some() {
            self.read_again();
        }
        if let Some(ConditionEffects { values, vars }) = &open.after_condition {
            let mut after = self.repeat_condition(cond, values, [made, captured].concat(), region);
            for (&id, value) in vars.iter().zip(after.split_off(values.len() - vars.len())) {
                self.set_var(id, self.depth, value);
            }
            results.splice(..after.len(), after);
        }
        for (site, &r) in sites.iter().zip(&results) {
            self.graph.value_mut(r).name.get_or_insert(site.name);
        }
        Ok(results[..n_results].iter().map(|&v| self.any(v)).collect())
    }
}
