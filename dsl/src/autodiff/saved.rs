//! Access to forward values in backward regions: read from outside, recomputed, exported or saved
//! on a stack.

use super::*;
use crate::ir::{InsertPoint, ParamSource};
use crate::ops::{Coverage, Effects, OpClass, prim};

impl Sweep {
    /// Returns a value of the forward region of `level` as seen by its backward region.
    pub(super) fn forward_value(&self, level: usize, v: Value) -> AnyValue {
        if level == 0 {
            return trace::with(|t| t.any(v));
        }
        let (known, depth, fwd) = {
            let levels = self.levels.borrow();
            let l = &levels[level];
            (l.map.get(&v).copied(), l.depth, l.fwd)
        };
        if let Some(known) = known {
            return known;
        }
        assert_eq!(graph(|g| g.region_of(v)), fwd, "{v} is not in the region of level {level}");
        let mapped = match self.origin(v) {
            SavedFrom::Outside(outer) => self.forward_value(level - 1, outer),
            SavedFrom::Again(data) => {
                let is_like = |i: usize| matches!(&data.op, Op::Prim(def, _) if !def.reads_elements_of(i));
                let operand = |(i, &x)| if is_like(i) { self.map_like(level, x) } else { self.forward_value(level, x) };
                let operands: Vec<AnyValue> = data.operands.iter().enumerate().map(operand).collect();
                trace::at_depth(depth, || match &data.op {
                    Op::Constant(t) => trace::constant(t.clone()),
                    Op::Prim(def, attrs) => trace::emit(*def, &operands, attrs.clone()),
                    op => unreachable!("{} is not recomputed", op.name()),
                })
            }
            SavedFrom::Last => {
                let path = self.path_out(v);
                let (last, levels_up) = trace::with(|t| t.export_invariant(v, path));
                self.forward_value(level - levels_up, last)
            }
            SavedFrom::Saved if graph(|g| matches!(g.ty(v), Type::List(_))) => self.restored(level, v),
            SavedFrom::Saved => {
                let stack = self.thread(level, v);
                let popped = trace::at_depth(depth, || stack_op(StackOp::Pop, &[stack]));
                let mut levels = self.levels.borrow_mut();
                levels[level].thread(v).expect("the stack passes through here").current = popped[0];
                popped[1]
            }
        };
        self.levels.borrow_mut()[level].map.insert(v, mapped);
        mapped
    }

    /// Returns a tensor of the shape of a forward value, as seen by the backward region of `level`.
    ///
    /// If the value would have to be saved, it is replaced by zeros, and at most its extents are
    /// saved.
    pub(super) fn map_like(&self, level: usize, v: Value) -> AnyValue {
        if level == 0 || !matches!(self.origin(v), SavedFrom::Saved) {
            return self.forward_value(level, v);
        }
        let ty = graph(|g| g.ty(v).element().clone());
        let depth = self.levels.borrow()[level].depth;
        if !ty.shape.is_definite() {
            let extents = trace::with(|t| t.query(v, Op::Prim(prim::EXTENTS, Attrs::none())));
            let extents = self.forward_value(level, extents);
            return trace::at_depth(depth, || extents.zeros_of(&ty));
        }
        trace::at_depth(depth, || trace::constant(HostTensor::zeros(ty.dtype, vec![])).broadcast_to(ty.shape))
    }

    /// Returns how a backward region obtains a value of its forward region.
    pub(super) fn origin(&self, v: Value) -> SavedFrom {
        graph(|g| match g.value(v).def {
            ValueDef::Param(..) => match g.source_of(v) {
                ParamSource::Capture(outer) => SavedFrom::Outside(outer),
                ParamSource::LoopVar(_) => SavedFrom::Saved,
                ParamSource::Input(_) | ParamSource::Own { .. } => panic!("{v} has no value outside its region"),
            },
            ValueDef::Result(node, _) if is_view(g, node) || is_cheap(g, v, 8) => {
                SavedFrom::Again(Box::new(g.node(node).clone()))
            }
            ValueDef::Result(..) if g.ty(v).as_tensor().is_none() => SavedFrom::Saved,
            ValueDef::Result(..) => {
                if self.are_invariant(g, g.region_of(v), &[v])[0] {
                    SavedFrom::Last
                } else {
                    SavedFrom::Saved
                }
            }
        })
    }

    /// Returns the path of constructs, innermost first, from a loop-invariant value to the
    /// outermost loop in which it is invariant.
    fn path_out(&self, v: Value) -> Vec<(Node, Region)> {
        graph(|g| {
            let mut path = Vec::new();
            let (mut region, mut out) = (g.region_of(v), 0);
            let mut needs = vec![v];
            while let Some(owner) = g.region(region).owner {
                path.push((owner, region));
                let outside = g.node(owner).region;
                if g.as_while(owner).is_some() {
                    out = path.len();
                }
                if g.region(outside).owner.is_some() {
                    needs = operands_needed(g, needs);
                    if out == path.len() && self.are_invariant(g, outside, &needs).contains(&false) {
                        break;
                    }
                }
                region = outside;
            }
            path.truncate(out);
            path
        })
    }

    /// Returns whether values of a region are invariant in the innermost enclosing loop. Without a
    /// loop, none is.
    fn are_invariant(&self, g: &crate::Graph, region: Region, values: &[Value]) -> Vec<bool> {
        if !self.invariant.borrow().contains_key(&region) {
            let found = self.find_invariant(g, region);
            self.invariant.borrow_mut().insert(region, found);
        }
        let known = self.invariant.borrow();
        values.iter().map(|v| known[&region].contains(v)).collect()
    }

    fn find_invariant(&self, g: &crate::Graph, region: Region) -> FxHashSet<Value> {
        let data = g.region(region);
        let Some(node) = data.owner else { return FxHashSet::default() };
        let owner = g.node(node);
        let same: Vec<bool> = if g.as_while(node).is_some() {
            data.params.iter().map(|&p| g.captured_by(p).is_some()).collect()
        } else {
            self.are_invariant(g, owner.region, g.entry_values(node))
        };
        let mut values: FxHashSet<Value> =
            data.params.iter().zip(same).filter(|(_, same)| *same).map(|(&p, _)| p).collect();
        let mut around = Some(node);
        while let Some(node) = around.filter(|&n| g.as_while(n).is_none()) {
            around = g.region(g.node(node).region).owner;
        }
        if around.is_some() {
            for &node in &data.nodes {
                if g.node(node).operands.iter().all(|v| values.contains(v)) {
                    values.extend(&g.node(node).results);
                }
            }
        }
        values
    }

    /// Returns the stack of a saved value as seen by the backward region of `level`.
    fn thread(&self, level: usize, saved: Value) -> AnyValue {
        if level == 0 {
            return trace::try_with(|t| t.save(saved));
        }
        let known = self.levels.borrow_mut()[level].thread(saved).map(|t| t.current);
        if let Some(known) = known {
            return known;
        }
        let outer = self.thread(level - 1, saved);
        let mut bwd = self.levels.borrow_mut()[level].bwd.take();
        let current = bwd.as_mut().map_or(outer, |bwd| bwd.add_carried(outer));
        let mut levels = self.levels.borrow_mut();
        levels[level].bwd = bwd;
        let n = levels[level].threads.len();
        levels[level].thread_of.insert(saved, n);
        levels[level].threads.push(ThreadedStack { saved, outer, current });
        current
    }
}

pub(super) enum SavedFrom {
    /// The value is a capture of this value.
    Outside(Value),
    /// Recomputes the value with this node.
    Again(Box<NodeData>),
    /// The value is loop-invariant: the loop exports it.
    Last,
    /// The value has to be saved.
    Saved,
}

/// Returns the operands of a region's owner on which values of the region depend.
fn operands_needed(g: &crate::Graph, values: Vec<Value>) -> Vec<Value> {
    let (mut seen, mut todo, mut operands) = (FxHashSet::default(), values, Vec::new());
    while let Some(v) = todo.pop() {
        if seen.insert(v) {
            match g.value(v).def {
                ValueDef::Result(node, _) => todo.extend(&g.node(node).operands),
                ValueDef::Param(..) => operands.extend(g.source_of(v).first()),
            }
        }
    }
    operands
}

/// Returns whether a value is a view of an operand that is not larger. Such a value is recomputed
/// rather than saved.
fn is_view(graph: &crate::Graph, node: Node) -> bool {
    matches!(&graph.node(node).op, Op::Prim(def, _) if matches!(def.class, OpClass::View(Coverage::Whole)))
}

/// Returns whether a few cheap operations compute a value from constants and captures alone.
///
/// An operation that may fail did not fail in the forward region, and the backward region runs the
/// same number of times.
fn is_cheap(graph: &crate::Graph, v: Value, fuel: usize) -> bool {
    let Some(node) = graph.producer(v) else {
        return !matches!(graph.source_of(v), ParamSource::LoopVar(_));
    };
    let data = graph.node(node);
    match &data.op {
        Op::Constant(_) => true,
        Op::Prim(def, _) => {
            fuel > 0
                && def.effects <= Effects::Fallible
                && !def.is_contraction()
                && data.operands.iter().all(|&x| is_cheap(graph, x, fuel - 1))
        }
        _ => false,
    }
}

/// Returns the error for zeros of a stack that another loop saved, if their extents are known only
/// at run time.
pub(super) fn stacks_are_not_saved(loc: Loc) -> Diagnostic {
    Diagnostic::new(
        "gradients: to differentiate a gradient taken in a loop, the values saved by an inner loop need known \
         extents",
    )
    .at(loc, "this saved value has unknown extents")
    .help("give it known extents, or take the gradient outside the loop")
}

impl trace::Tracer {
    /// Returns the result of an operation without attributes on a value, inserted right after its
    /// definition.
    ///
    /// Later, a list may have been updated in place, and a tensor may have been freed.
    pub(super) fn query(&mut self, of: Value, op: Op) -> Value {
        let key = (of, op.name());
        if let Some(&v) = self.autodiff.queries.get(&key) {
            return v;
        }
        let v = self.graph.after(of).emit(op, &[of]);
        self.autodiff.queries.insert(key, v);
        v
    }

    /// Returns the trip count of a `while`, as a value of the region that contains it. The first
    /// call adds a counter.
    pub(super) fn count_trips(&mut self, node: Node) -> Value {
        if let Some(&v) = self.autodiff.trips.get(&node) {
            return v;
        }
        let (origin, body) = (self.graph.node(node).origin(), self.graph.while_of(node).body());
        let graph = &mut self.graph;
        let zero = graph.before(node).constant(HostTensor::scalar(0i32));
        let (param, result) = graph.add_loop_var(node, zero);
        let one = graph.at(InsertPoint::End(body), origin).constant(HostTensor::scalar(1i32));
        let sum = graph.prim(prim::ADD, &[param, one], Attrs::none());
        graph.region_mut(body).yields.push(sum);
        self.autodiff.trips.insert(node, result);
        result
    }

    /// Exports a loop-invariant value through a path of constructs. Returns the result of the
    /// outermost construct, and the number of constructs in between.
    ///
    /// The value is threaded through the path from outside, so it persists through iterations that
    /// do not reach its definition. Nothing reads the result after zero iterations.
    fn export_invariant(&mut self, v: Value, mut path: Vec<(Node, Region)>) -> (Value, usize) {
        if let Some(&last) = self.autodiff.last.get(&v) {
            let to = self.graph.region_of(last);
            let n = path.iter().position(|&(node, _)| self.graph.node(node).region == to);
            return (last, n.expect("the result is of a construct around the value") + 1);
        }
        let n = path.len();
        path.reverse();
        let ty = self.graph.ty(v).element().clone();
        // Unknown extents are 0 at first, and may become any others: the type keeps them unknown.
        let known = |d: &crate::Dim| if *d == crate::Dim::Unknown { crate::Dim::Known(0) } else { d.clone() };
        let (zero, shape) = (HostTensor::zeros(ty.dtype, []), ty.shape.dims().iter().map(known).collect());
        let origin = self.graph.origin(v);
        let zeros = self.graph.at(InsertPoint::Before(path[0].0), origin).fill(zero, &shape);
        self.graph.value_mut(zeros).ty = ty.into();
        let last = self.thread_through(&path, zeros, |_, _| v);
        self.autodiff.last.insert(v, last);
        (last, n)
    }

    /// Threads a value through constructs, outermost first, each with its region that leads
    /// inwards.
    ///
    /// `innermost` computes the yield of the last region from its parameter. Returns the result of
    /// the first construct.
    fn thread_through(
        &mut self,
        path: &[(Node, Region)],
        init: Value,
        innermost: impl FnOnce(&mut Self, Value) -> Value,
    ) -> Value {
        let mut value = init;
        let mut results = Vec::new();
        for &(node, region) in path {
            let (param, result) = match self.graph.node(node).op {
                Op::While { .. } => self.graph.add_loop_var(node, value),
                Op::Cond => self.graph.add_cond_result(node, value, region),
                ref op => panic!("{} is swept as a copy: nothing in it is saved", op.name()),
            };
            results.push(result);
            value = param;
        }
        let inner = innermost(self, value);
        let yields = results[1..].iter().copied().chain([inner]);
        for (&(_, region), value) in path.iter().zip(yields) {
            self.graph.region_mut(region).yields.push(value);
        }
        results[0]
    }

    /// Returns the error for a list that a checkpoint in a loop reads, and that cannot be saved as
    /// one tensor.
    pub(super) fn list_is_not_saved(&self, list: Value) -> Diagnostic {
        let data = self.graph.value(list);
        let name = data.name.map_or_else(|| "a list".to_owned(), |name| format!("the list `{name}`"));
        let region = self.graph.region(self.graph.region_of(list));
        let loc = region.owner.map_or(self.graph.loc(list), |owner| self.graph.node(owner).loc);
        Diagnostic::new(format!(
            "gradients: a checkpoint saves the elements of {name}, which is modified in a loop, but their extents \
             are unknown"
        ))
        .at(loc, "in this loop")
        .help("use list elements with known extents, or remove `checkpoint_loop` and `checkpoint`")
    }

    /// Returns the stack to which the executions of an inner region push `v`, as a handle in the
    /// open region.
    ///
    /// The first call adds the stack to every construct in between.
    fn save(&mut self, v: Value) -> Result<AnyValue, Diagnostic> {
        // The constructs in between, innermost first, each with its region that leads to `v`.
        let mut path: Vec<(Node, Region)> = Vec::new();
        let mut region = self.graph.region_of(v);
        while let Some(owner) = self.graph.region(region).owner {
            path.push((owner, region));
            region = self.graph.node(owner).region;
        }
        let base = region;
        // An owner is set when its construct closes, so the search ends at an open region.
        if let Some(&stack) = self.autodiff.stacks.get(&(v, base)) {
            return Ok(self.any(stack));
        }
        path.reverse();
        let element = match self.graph.ty(v).clone() {
            Type::Tensor(element) => element,
            Type::List(_) => unreachable!("lists are saved as tensors"),
            Type::Stack(_) => return Err(stacks_are_not_saved(self.graph.loc(v))),
        };
        let origin = self.graph.origin(v);
        let new = Op::Stack(StackOp::New(element));
        let new = self.graph.at(InsertPoint::Before(path[0].0), origin).emit(new, &[]);
        let (_, innermost) = path[path.len() - 1];
        let stack = self.thread_through(&path, new, |t, stack| {
            t.graph.at(InsertPoint::End(innermost), origin).emit(Op::Stack(StackOp::Push), &[stack, v])
        });
        self.autodiff.stacks.insert((v, base), stack);
        Ok(self.any(stack))
    }
}
