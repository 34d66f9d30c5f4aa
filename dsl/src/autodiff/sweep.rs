//! The backward pass over forward regions, node by node.

use super::saved::SavedFrom;
use super::threaded::reads_part;
use super::*;
use crate::Dim;
use crate::device::DeviceConstraint;
use crate::ir::LoopVar;
use std::cell::Cell;

impl<'g> Sweep<'g> {
    /// Adds to the cotangent of a forward value.
    pub(super) fn add(&self, cot: &mut Cotangents<'g>, v: Value, dv: GradValue<'g>, from: Option<Node>) {
        if !self.is_active(v) {
            return;
        }
        if let Some(node) = from {
            self.came_from.borrow_mut().entry(v).or_insert(node);
        }
        let sum = match cot.get(&v) {
            None => dv,
            Some(&old) => self.beside(v, || self.sum(old, dv)),
        };
        cot.insert(v, sum);
    }

    /// Returns the sum of two cotangents of one value.
    fn sum(&self, a: GradValue<'g>, b: GradValue<'g>) -> GradValue<'g> {
        match a.ty() {
            Type::Tensor(_) => a.add(b),
            Type::Stack(_) => self.stack_op(StackOp::Add, &[a, b])[0],
            Type::List(_) => self.list_op(ListOp::Add, &[a, b])[0],
        }
    }

    /// Calls `f`, which makes a cotangent of a forward value: on the device of the value, if it is
    /// constrained to one.
    fn beside<R>(&self, v: Value, f: impl FnOnce() -> R) -> R {
        let (on, here) = self.graph(|g| (device_of(g, v), g.next_origin()));
        match on {
            Some(_) => self.context.with_origin(Origin { on, ..here }, f),
            None => f(),
        }
    }

    /// Runs the backward pass over the nodes of a forward region.
    pub(super) fn region(&self, level: usize, region: Region, cot: &mut Cotangents<'g>) {
        let nodes = self.graph(|g| g.region(region).nodes.clone());
        for node in nodes.into_iter().rev() {
            let data = self.graph(|g| {
                let data = g.node(node);
                let wanted = data.results.iter().any(|r| cot.contains_key(r))
                    && data.operands.iter().any(|&v| self.is_active(v));
                wanted.then(|| data.clone())
            });
            if let Some(data) = data {
                // An error of a backward operation is one of the operation that read there.
                let reads = self.graph(|g| reads_part(g, &data));
                let written = if reads { Some(data.name_in_errors()) } else { data.written };
                let origin = Origin { on: data.on.or(self.at.on), written, ..data.origin() };
                self.context.with_origin(origin, || self.node(level, node, &data, cot));
            }
        }
    }

    fn node(&self, level: usize, node: Node, data: &NodeData, cot: &mut Cotangents<'g>) {
        match &data.op {
            Op::Prim(def, attrs) => {
                let Some(&dy) = cot.get(&data.results[0]) else {
                    return;
                };
                let rule = match def.grad {
                    Grad::Rule(rule) => rule,
                    Grad::Zero(_) => return,
                    Grad::Missing(why) => self.missing(*def, why, node, data),
                };
                let element = |v: &Value| self.graph(|g| g.ty(*v).element().clone());
                let forward = Forward { sweep: self, level, node, data, cot, continued: Cell::new(None) };
                let parts = rule(&GradNode {
                    forward: &forward,
                    attrs,
                    types: data.operands.iter().map(element).collect(),
                    result_type: element(&data.results[0]),
                    dy: dy.value(),
                });
                assert_eq!(parts.len(), data.operands.len(), "{}: one gradient for each operand", def.name);
                let parts: Vec<Option<Value>> = parts.into_iter().map(|part| part.map(|part| part.value())).collect();
                let continued = forward.continued.get();
                for (i, (&v, part)) in data.operands.iter().zip(parts).enumerate() {
                    let Some(part) = part.map(|part| self.value(part)) else { continue };
                    if continued == Some(i) {
                        self.came_from.borrow_mut().entry(v).or_insert(node);
                        cot.insert(v, part);
                    } else {
                        self.add(cot, v, part, Some(node));
                    }
                }
            }
            Op::Stack(op) => self.stack(level, op, node, data, cot),
            Op::List(op) => self.list(level, op, node, data, cot),
            Op::Cond => self.cond(level, node, data, cot),
            Op::While { .. } => self.while_loop(level, node, data, cot),
            Op::Call(kind) => self.call(level, *kind, node, data, cot),
            Op::Constant(_)
            | Op::Read(_)
            | Op::Assign(_)
            | Op::Assert { .. }
            | Op::Print { .. }
            | Op::Queue(..)
            | Op::File(_) => {}
        }
    }

    fn stack(&self, level: usize, op: &StackOp, node: Node, data: &NodeData, cot: &mut Cotangents<'g>) {
        let d = |i: usize, cot: &Cotangents<'g>| cot.get(&data.results[i]).copied();
        match op {
            StackOp::Push => {
                let ds = d(0, cot).expect("a push has one result");
                let popped = self.stack_op(StackOp::Pop, &[ds]);
                self.add(cot, data.operands[0], popped[0], Some(node));
                self.add(cot, data.operands[1], popped[1], Some(node));
            }
            StackOp::Pop => {
                let below = d(0, cot).unwrap_or_else(|| self.zeros_left(level, data.results[0]));
                let top = d(1, cot).unwrap_or_else(|| self.zeros_of_type(level, data.results[1]));
                let pushed = self.stack_op(StackOp::Push, &[below, top])[0];
                self.add(cot, data.operands[0], pushed, Some(node));
            }
            StackOp::Add => {
                let ds = d(0, cot).expect("a sum has one result");
                self.add(cot, data.operands[0], ds, Some(node));
                self.add(cot, data.operands[1], ds, Some(node));
            }
            StackOp::New(_) | StackOp::Zeros(_) | StackOp::ZerosLike => {}
        }
    }

    /// Returns zeros of the type of a forward value, which is used only if its extents are unknown.
    pub(super) fn zeros_of_type(&self, level: usize, v: Value) -> GradValue<'g> {
        let ty = self.graph(|g| g.ty(v).clone());
        match &ty {
            Type::Tensor(t) if t.shape.is_definite() => {
                self.constant(HostTensor::zeros(t.dtype, vec![])).broadcast_to(t.shape.clone())
            }
            Type::Stack(element) => self.zeros_of_stack(level, v, element.clone()),
            Type::List(_) => self.zeros_of_list(level, v),
            Type::Tensor(_) => self.map_like(level, v).zeros_like(),
        }
    }

    /// Returns the cotangent of a stack result that received none.
    ///
    /// If the extents of its elements are unknown, the zeros need the depth of the stack. A
    /// backward construct pops everything pushed since the stack was created; otherwise it would
    /// pass the stack on, which would give it a cotangent. So inside another construct, where the
    /// stack itself is not available, the stack is empty.
    fn zeros_left(&self, level: usize, v: Value) -> GradValue<'g> {
        match self.graph(|g| g.ty(v).clone()) {
            Type::Stack(element) if level > 0 && !element.shape.is_definite() => {
                self.stack_op(StackOp::New(element), &[])[0]
            }
            _ => self.zeros_of_type(level, v),
        }
    }

    /// Returns zeros for a stack.
    ///
    /// If the extents of its elements are unknown, they come from the stack itself. The stack then
    /// has to come from outside all forward regions, since a stack is not saved.
    fn zeros_of_stack(&self, level: usize, v: Value, element: crate::TensorType) -> GradValue<'g> {
        if element.shape.is_definite() {
            return self.stack_op(StackOp::Zeros(element), &[])[0];
        }
        if level == 0 {
            return self.value(v).zeros_like();
        }
        match self.origin(v) {
            SavedFrom::Outside(outer) => self.zeros_of_stack(level - 1, outer, element),
            _ => abort(super::added::stacks_are_not_saved(self.graph(|g| g.loc(v)))),
        }
    }

    fn cond(&self, level: usize, node: Node, data: &NodeData, cot: &mut Cotangents<'g>) {
        let (predicate, branches, captures) = self.graph(|g| {
            let cond = g.cond_of(node);
            (cond.predicate(), cond.branches(), g.captured(node).to_vec())
        });
        let regions = self.graph(|g| branches.map(|branch| g.region(branch).clone()));
        let pred = self.forward_value(level, predicate);
        let threaded: Vec<Option<GradValue<'g>>> = self
            .threaded_captures(level, &captures, &branches)
            .into_iter()
            .map(|v| v.and_then(|v| cot.get(&v).copied()))
            .collect();
        let pred = self.open_cond(pred);
        let mut parts: [Vec<Option<GradValue<'g>>>; 2] = Default::default();
        let mut threads: [Vec<ThreadedStack<'g>>; 2] = Default::default();
        for (arm, region) in regions.iter().enumerate() {
            self.select(arm);
            self.push_level(branches[arm], None);
            let mut arm_cot = Cotangents::default();
            arm_cot.extend(region.params.iter().zip(&threaded).filter_map(|(&p, &d)| Some((p, d?))));
            for (r, &y) in data.results.iter().zip(&region.yields) {
                if let Some(&dr) = cot.get(r) {
                    self.add(&mut arm_cot, y, dr, Some(node));
                }
            }
            self.region(level + 1, branches[arm], &mut arm_cot);
            parts[arm] = region.params.iter().map(|p| arm_cot.get(p).copied()).collect();
            threads[arm] = self.pop_level().threads;
        }
        // A threaded cotangent that both branches leave unchanged needs no result.
        let wanted: Vec<usize> =
            (0..captures.len()).filter(|&i| parts[0][i] != threaded[i] || parts[1][i] != threaded[i]).collect();
        let mut sides = [Vec::new(), Vec::new()];
        for (arm, side) in sides.iter_mut().enumerate() {
            self.select(arm);
            side.extend(wanted.iter().map(|&i| parts[arm][i].unwrap_or_else(|| self.zeros_left(level, captures[i]))));
        }
        for (arm, arm_threads) in threads.iter().enumerate() {
            for thread in arm_threads {
                sides[arm].push(thread.current);
                sides[1 - arm].push(thread.outer);
            }
        }
        let results = self.close_cond(pred, sides);
        self.propagate_results(
            cot,
            wanted.iter().zip(&results).map(|(&i, &d)| (captures[i], d, threaded[i].is_some())),
            node,
        );
        let after = threads.iter().flatten().zip(&results[wanted.len()..]);
        self.hand_back(level, after.map(|(t, &r)| (t.saved, r)));
    }

    fn while_loop(&self, level: usize, node: Node, data: &NodeData, cot: &mut Cotangents<'g>) {
        let (vars, captures) = self.graph(|g| self.active.reached_in_loop(g, node, |result| cot.contains_key(&result)));
        let (body, all): (Region, Vec<(Value, Value)>) = self.graph(|g| {
            let body = g.while_of(node).body();
            (body, g.captures_in(body).collect())
        });
        let outer: Vec<Value> = all.iter().map(|&(_, outer)| outer).collect();
        // The captures whose cotangents are threaded through the loop, by parameter of the body.
        let threaded = all.iter().zip(self.threaded_captures(level + 1, &outer, &[body]));
        let threaded: FxHashMap<Value, Value> = threaded.filter_map(|(&(param, _), v)| Some((param, v?))).collect();
        let trips = self.added(|values, g| values.count_trips(g, node));
        let trips = self.forward_value(level, trips);

        // The loop variables of the backward loop: the iterations left, then the cotangents of the
        // reached values.
        let of_var = |var: &LoopVar| {
            let zeros = || self.beside(var.next, || self.zeros_left(level, var.result));
            let d = cot.get(&var.result).copied().unwrap_or_else(zeros);
            as_general(d, &self.graph(|g| g.ty(var.result).clone()))
        };
        let of_capture = |(param, outer): &(Value, Value)| {
            let known = threaded.get(param).and_then(|v| cot.get(v).copied());
            known.unwrap_or_else(|| self.beside(*outer, || self.zeros_of_type(level, *outer)))
        };
        let mut init = vec![trips];
        init.extend(vars.iter().map(of_var));
        init.extend(captures.iter().map(of_capture));
        let int = |x: i32| self.constant(HostTensor::scalar(x));
        let (bwd, params_in_body) = self.open_while(&init, |params| params[0].gt(int(0)));
        let (left, cotangents) = params_in_body.split_first().expect("the remaining trip count is a loop variable");
        let left = left.sub(int(1));
        let (of_vars, of_captures) = cotangents.split_at(vars.len());
        self.push_level(body, Some(bwd));
        let mut body_cot = Cotangents::default();
        let is_threaded =
            |param: Value, d: GradValue<'g>| threaded.contains_key(&param) || matches!(d.ty(), Type::List(_));
        for (&(param, _), &d) in captures.iter().zip(of_captures).filter(|&(&(param, _), &d)| is_threaded(param, d)) {
            body_cot.insert(param, d);
        }
        for (var, &d) in vars.iter().zip(of_vars) {
            self.add(&mut body_cot, var.next, d, Some(node));
        }
        self.region(level + 1, body, &mut body_cot);
        let mut next = vec![left];
        for var in &vars {
            let part = body_cot.get(&var.body_param).copied();
            next.push(part.unwrap_or_else(|| self.zeros_of_type(level + 1, var.body_param)));
        }
        for ((param, outer), &d) in captures.iter().zip(of_captures) {
            next.push(match body_cot.get(param).copied() {
                None => d,
                // The previous cotangent is included already.
                Some(part) if is_threaded(*param, d) => part,
                Some(part) => self.beside(*outer, || self.sum(d, part)),
            });
        }
        let Level { threads, bwd, .. } = self.pop_level();
        let bwd = bwd.expect("the level is that of a loop");
        let Op::While { parallel_iterations } = data.op else { panic!("{} is not a loop", data.op.name()) };
        let vars_of_loop = next.len();
        next.extend(threads.iter().map(|t| t.current));
        let results = self.close_while(&bwd, parallel_iterations, &next);
        let of_vars = vars.iter().map(|var| (var.init, false));
        let of_captures = captures.iter().map(|(param, outer)| (*outer, threaded.contains_key(param)));
        let parts = of_vars.chain(of_captures).zip(&results[1..]);
        self.propagate_results(cot, parts.map(|((v, is_whole), &d)| (v, d, is_whole)), node);
        let after = threads.iter().zip(&results[vars_of_loop..]);
        self.hand_back(level, after.map(|(t, &r)| (t.saved, r)));
    }

    pub(super) fn push_level(&self, fwd: Region, bwd: Option<BackwardLoop>) {
        self.levels.borrow_mut().push(Level::new(fwd, self.graph(|g| g.depth()), bwd));
    }

    pub(super) fn pop_level(&self) -> Level<'g> {
        self.levels.borrow_mut().pop().expect("levels are pushed and popped in pairs")
    }

    /// Updates the current stacks of an enclosing level to the results of a closed backward
    /// construct.
    fn hand_back(&self, level: usize, results: impl Iterator<Item = (Value, GradValue<'g>)>) {
        let mut levels = self.levels.borrow_mut();
        for (saved, stack) in results {
            if let Some(thread) = levels[level].thread(saved) {
                thread.current = stack;
            }
        }
    }

    /// Propagates the cotangents of the parameters of an open construct to the outer values.
    pub(super) fn leave_open(&self, depth: usize, cot: &mut Cotangents<'g>) {
        let params = self.graph(|g| g.open_params(depth));
        for (param, outer) in params {
            let Some(&d) = cot.get(&param) else { continue };
            let (carried, name) = self.graph(|g| (g.is_open_var(depth, param), g.value(param).name));
            if !carried {
                self.add(cot, outer, d, None);
            } else if self.is_active(outer) {
                abort(earlier::error(name, self.at.loc));
            }
        }
    }
}

/// A forward node, as a gradient rule sees it.
struct Forward<'a, 'g> {
    sweep: &'a Sweep<'g>,
    level: usize,
    node: Node,
    data: &'a NodeData,
    cot: &'a Cotangents<'g>,
    /// The operand whose cotangent so far the rule was given.
    continued: Cell<Option<usize>>,
}

impl ForwardNode for Forward<'_, '_> {
    fn builder(&self) -> &RefCell<GraphBuilder> {
        self.sweep.context.builder
    }
    fn operand(&self, i: usize) -> Value {
        self.sweep.forward_operand(self.level, self.node, self.data, i).value()
    }
    fn like(&self, i: usize) -> Value {
        self.sweep.map_like(self.level, self.data.operands[i]).value()
    }
    fn result(&self) -> Value {
        self.sweep.forward_value(self.level, self.data.results[0]).value()
    }
    fn needs(&self, i: usize) -> bool {
        self.sweep.is_active(self.data.operands[i])
    }
    fn cotangent_so_far(&self, i: usize) -> Option<Value> {
        let v = self.data.operands[i];
        let is_inside = self.sweep.is_inside(self.level) && self.sweep.is_active(v);
        let known = self.cot.get(&v).filter(|_| is_inside && self.sweep.graph(|g| reads_part(g, self.data)))?;
        self.continued.set(Some(i));
        Some(known.value())
    }
}

/// Makes extents of a cotangent unknown if those of its loop variable are, since they may change in
/// the loop.
fn as_general<'g>(d: GradValue<'g>, ty: &Type) -> GradValue<'g> {
    let (Type::Tensor(own), Type::Tensor(ty)) = (d.ty(), ty) else { return d };
    let pairs = own.shape.dims().iter().zip(ty.shape.dims()).enumerate();
    let axes: Vec<usize> =
        pairs.filter(|(_, (own, dim))| **dim == Dim::Unknown && **own != Dim::Unknown).map(|(i, _)| i).collect();
    if axes.is_empty() { d } else { d.with_dynamic(axes) }
}

/// Returns the device constraint of a value: that of the variable whose value it is, or of the node
/// that makes it.
fn device_of(g: &Graph, v: Value) -> Option<DeviceConstraint> {
    let node = g.node(g.producer(super::added::captured(g, v))?);
    match node.op {
        Op::Read(var) => g.vars[var.index()].on,
        _ => node.on,
    }
}
