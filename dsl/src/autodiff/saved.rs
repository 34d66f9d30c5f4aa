//! Access to forward values in backward regions: read from outside, recomputed, exported or saved
//! on a stack.

use super::added::{captured, slices};
use super::*;
use crate::Dim;
use crate::ir::{ParamSource, dependence};
use crate::ops::{Coverage, Effects, Effort, OpClass, ValueCx, prim};

impl<'g> Sweep<'g> {
    /// Returns a value of the forward region of `level` as seen by its backward region.
    pub(super) fn forward_value(&self, level: usize, v: Value) -> GradValue<'g> {
        if level == 0 {
            return self.value(v);
        }
        let known = |v: Value| self.levels.borrow()[level].map.get(&v).copied();
        // Chains of recomputed values may be long, so they are not followed by recursion. A value
        // that is left has the node that recomputes it, once its operands are left after it.
        let mut left: Vec<(Value, Option<Node>)> = vec![(v, None)];
        while let Some((v, node)) = left.pop() {
            if known(v).is_some() {
                continue;
            }
            let mapped = match node {
                Some(node) => self.recomputed(level, node),
                None => match self.origin(v) {
                    SavedFrom::Again(node) => {
                        left.push((v, Some(node)));
                        left.extend(self.recomputed_from(level, node).into_iter().rev().map(|v| (v, None)));
                        continue;
                    }
                    from => self.brought(level, v, from),
                },
            };
            self.levels.borrow_mut()[level].map.insert(v, mapped);
        }
        known(v).expect("the value was found")
    }

    /// Returns a value that is not recomputed as seen by the backward region of `level`.
    fn brought(&self, level: usize, v: Value, from: SavedFrom) -> GradValue<'g> {
        let (depth, fwd) = self.place_of(level);
        assert_eq!(self.graph(|g| g.region_of(v)), fwd, "{v} is not in the region of level {level}");
        match from {
            SavedFrom::Outside(outer) => self.forward_value(level - 1, outer),
            SavedFrom::Again(node) => self.recomputed(level, node),
            SavedFrom::Last => {
                let path = self.path_out(v);
                let (last, levels_up) = self.added(|values, g| values.export_invariant(g, v, path));
                self.forward_value(level - levels_up, last)
            }
            SavedFrom::Saved if self.graph(|g| matches!(g.ty(v), Type::List(_))) => self.restored(level, v),
            SavedFrom::Saved => {
                let stack = self.thread(level, v);
                let popped = self.at_depth(depth, || self.stack_op(StackOp::Pop, &[stack]));
                let mut levels = self.levels.borrow_mut();
                levels[level].thread(v).expect("the stack passes through here").current = popped[0];
                popped[1]
            }
        }
    }

    /// Recomputes the result of a forward node in the backward region of `level`.
    fn recomputed(&self, level: usize, node: Node) -> GradValue<'g> {
        let (depth, fwd) = self.place_of(level);
        let data = self.graph(|g| g.node(node).clone());
        assert_eq!(data.region, fwd, "`{}` is not in the region of level {level}", data.op.name());
        let operand = |i: usize| match is_like(&data.op, i) {
            true => self.map_like(level, data.operands[i]),
            false => self.forward_operand(level, node, &data, i),
        };
        let operands: Vec<GradValue<'g>> = (0..data.operands.len()).map(operand).collect();
        self.at_depth(depth, || match &data.op {
            Op::Constant(t) => self.constant(t.clone()),
            Op::Prim(def, attrs) => self.context.emit(*def, &operands, attrs.clone()),
            Op::List(ListOp::Read) => self.list_op(ListOp::Read, &operands)[0],
            op => unreachable!("{} is not recomputed", op.name()),
        })
    }

    /// Returns the operands of a forward node that the backward region of `level` needs to
    /// recompute it. It replaces other operands by zeros or by checked indices.
    fn recomputed_from(&self, level: usize, node: Node) -> Vec<Value> {
        let data = self.graph(|g| g.node(node).clone());
        let is_needed = |i: usize, v: Value| match is_like(&data.op, i) {
            true => !matches!(self.origin(v), SavedFrom::Saved),
            false => !self.is_checked_index(level, &data, i),
        };
        data.operands.iter().enumerate().filter(|&(i, &v)| is_needed(i, v)).map(|(_, &v)| v).collect()
    }

    /// Returns the depth of the backward region of `level`, and its forward region.
    fn place_of(&self, level: usize) -> (usize, Region) {
        let levels = self.levels.borrow();
        (levels[level].depth, levels[level].fwd)
    }

    /// Returns an operand of a forward node as seen by the backward region of `level`.
    ///
    /// An index that differs between iterations is checked in the forward region and saved. So the
    /// first one that is wrong fails, as an error of the operation that the user wrote. The
    /// backward region would meet the last one first.
    pub(super) fn forward_operand(&self, level: usize, node: Node, data: &NodeData, i: usize) -> GradValue<'g> {
        if self.is_checked_index(level, data, i) {
            let checked = self.added(|values, g| values.checked_index(g, node));
            return self.forward_value(level, checked);
        }
        self.forward_value(level, data.operands[i])
    }

    /// Returns whether an operand of a forward node is an index that the backward region of `level`
    /// takes from the forward region, which checks it.
    fn is_checked_index(&self, level: usize, data: &NodeData, i: usize) -> bool {
        let is_index = i == 1
            && match &data.op {
                Op::Prim(def, _) => matches!(def.class, OpClass::Gather),
                Op::List(ListOp::Read) => !self.graph(|g| counts_below(g, data.operands[1], data.operands[0])),
                _ => false,
            };
        is_index && self.needs_saved(level, data.operands[1])
    }

    /// Returns whether a value of the forward region of `level` has to be saved, or is recomputed
    /// from one that has to.
    fn needs_saved(&self, level: usize, v: Value) -> bool {
        let (mut seen, mut left) = (FxHashSet::default(), vec![(level, v)]);
        while let Some((level, v)) = left.pop() {
            if level == 0 || !seen.insert(v) {
                continue;
            }
            match self.origin(v) {
                SavedFrom::Saved => return true,
                SavedFrom::Last => {}
                SavedFrom::Outside(outer) => left.push((level - 1, outer)),
                SavedFrom::Again(node) => {
                    left.extend(self.graph(|g| g.node(node).operands.clone()).into_iter().map(|v| (level, v)));
                }
            }
        }
        false
    }

    /// Returns a tensor of the shape of a forward value, as seen by the backward region of `level`.
    ///
    /// If the value would have to be saved, it is replaced by zeros, and at most its extents are
    /// saved.
    pub(super) fn map_like(&self, level: usize, v: Value) -> GradValue<'g> {
        if level == 0 || !matches!(self.origin(v), SavedFrom::Saved) {
            return self.forward_value(level, v);
        }
        let ty = self.graph(|g| g.ty(v).element().clone());
        let depth = self.levels.borrow()[level].depth;
        if !ty.shape.is_definite() {
            let extents = self.added(|values, g| values.query(g, v, Op::Prim(prim::EXTENTS, Attrs::none())));
            let extents = self.forward_value(level, extents);
            return self.at_depth(depth, || extents.zeros_of(&ty));
        }
        self.at_depth(depth, || self.constant(HostTensor::zeros(ty.dtype, vec![])).broadcast_to(ty.shape))
    }

    /// Returns how a backward region obtains a value of its forward region.
    pub(super) fn origin(&self, v: Value) -> SavedFrom {
        self.graph(|g| match g.value(v).def {
            ValueDef::Param(..) => match g.source_of(v) {
                ParamSource::Capture(outer) => SavedFrom::Outside(outer),
                ParamSource::LoopVar(_) => SavedFrom::Saved,
                ParamSource::Input(_) | ParamSource::Own { .. } => panic!("{v} has no value outside its region"),
            },
            ValueDef::Result(node, _) if is_view(g, node) || is_cheap(g, v, 8) || self.reads_outside(g, node) => {
                SavedFrom::Again(node)
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

    /// Returns whether a node reads elements, at indices, of a tensor from outside all forward
    /// regions, or of a view of one, or one of its slices from a list.
    ///
    /// The tensor is read again where the elements are needed, so only the indices are saved.
    fn reads_outside(&self, g: &crate::Graph, node: Node) -> bool {
        let data = g.node(node);
        let outermost = self.levels.borrow()[0].fwd;
        match &data.op {
            Op::Prim(def, _) if matches!(def.class, OpClass::Gather) => {}
            Op::List(ListOp::Read) => {
                return slices(g, data.operands[0]).is_some_and(|(list, _)| g.region_of(list) == outermost);
            }
            _ => return false,
        }
        let mut v = data.operands[0];
        loop {
            if g.region_of(v) == outermost {
                return true;
            }
            v = match g.value(v).def {
                ValueDef::Param(..) => match g.source_of(v) {
                    ParamSource::Capture(outer) => outer,
                    _ => return false,
                },
                ValueDef::Result(node, _) if is_view(g, node) => g.node(node).operands[0],
                ValueDef::Result(..) => return false,
            };
        }
    }

    /// Returns the path of constructs, innermost first, from a loop-invariant value to the
    /// outermost loop in which it is invariant.
    fn path_out(&self, v: Value) -> Vec<(Node, Region)> {
        self.graph(|g| {
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
                if g.node(node).operands.iter().all(|v| values.contains(v)) && !asks_session(g, node) {
                    values.extend(&g.node(node).results);
                }
            }
        }
        values
    }

    /// Returns the stack of a saved value as seen by the backward region of `level`.
    fn thread(&self, level: usize, saved: Value) -> GradValue<'g> {
        if level == 0 {
            return self.value(self.added(|values, g| values.save(g, saved)).unwrap_or_else(|error| abort(error)));
        }
        let known = self.levels.borrow_mut()[level].thread(saved).map(|t| t.current);
        if let Some(known) = known {
            return known;
        }
        let outer = self.thread(level - 1, saved);
        let mut bwd = self.levels.borrow_mut()[level].bwd.take();
        let current = bwd.as_mut().map_or(outer, |bwd| self.add_loop_var(bwd, outer));
        let mut levels = self.levels.borrow_mut();
        levels[level].bwd = bwd;
        let n = levels[level].threads.len();
        levels[level].thread_of.insert(saved, n);
        levels[level].threads.push(ThreadedStack { saved, outer, current });
        current
    }
}

/// Returns whether an operation uses only the shape of an operand.
fn is_like(op: &Op, i: usize) -> bool {
    matches!(op, Op::Prim(def, _) if !def.reads_elements_of(i))
}

/// Returns whether a node uses queues or files, which may return something else in each iteration
/// of a loop.
fn asks_session(g: &crate::Graph, node: Node) -> bool {
    let mut asks = g.node(node).op.is_of_session();
    for &region in &g.node(node).regions {
        g.visit_nodes(region, &mut |inner| asks |= g.node(inner).op.is_of_session());
    }
    asks
}

pub(super) enum SavedFrom {
    /// The value is a capture of this value.
    Outside(Value),
    /// Recomputes the value with this node.
    Again(Node),
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

/// Returns whether an index counts up from 0 or more in a loop that ends before the number of
/// slices in a list.
fn counts_below(g: &crate::Graph, index: Value, list: Value) -> bool {
    let index = captured(g, index);
    let ValueDef::Param(region, _) = g.value(index).def else { return false };
    let Some(w) = g.region(region).owner.and_then(|node| g.as_while(node)) else { return false };
    let Some(var) = w.vars().find(|var| var.body_param == index) else { return false };
    let starts = dependence::integer(g, var.init).is_some_and(|first| first >= 0);
    let rises = dependence::step(g, var).is_some_and(|step| step > 0);
    starts && rises && slices(g, list).is_some_and(|list| is_below(g, w.predicate(), var.cond_param, &list))
}

/// Returns whether a condition is true only while a counter is below the number of slices in a
/// list.
fn is_below(g: &crate::Graph, condition: Value, counter: Value, list: &(Value, Dim)) -> bool {
    let Some(node) = g.producer(captured(g, condition)) else { return false };
    let data = g.node(node);
    match &data.op {
        Op::Prim(prim::LT, _) => {
            let bound = captured(g, data.operands[1]);
            let of_list = g.producer(bound).map(|node| g.node(node)).filter(|data| data.op == Op::List(ListOp::Len));
            let is_len = of_list.is_some_and(|data| captured(g, data.operands[0]) == list.0);
            let known = dependence::integer(g, bound).zip(list.1.known());
            captured(g, data.operands[0]) == counter && (is_len || known.is_some_and(|(bound, n)| bound <= n as i64))
        }
        // The condition of a loop with a `break`.
        Op::Cond => data.regions.iter().all(|&arm| {
            let result = g.region(arm).yields[0];
            let constant = g.producer(captured(g, result)).map(|node| &g.node(node).op);
            let is_false = matches!(constant, Some(Op::Constant(t)) if *t == HostTensor::scalar(false));
            is_false || is_below(g, result, counter, list)
        }),
        _ => false,
    }
}

/// Returns whether a value is a view of an operand that is not larger. Such a value is recomputed
/// rather than saved.
fn is_view(graph: &crate::Graph, node: Node) -> bool {
    matches!(&graph.node(node).op, Op::Prim(def, _) if matches!(def.class, OpClass::View(view) if view.coverage == Coverage::Whole))
}

/// The most terms of a sum, for each element of a value, that are added again instead of saving the
/// value. A product counts twice.
const CHEAP: Effort = Effort::FUNCTION;

/// Returns whether a few cheap operations compute a value from constants and captures alone. Cheap
/// are functions, whose effort has a bound, and small sums.
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
        // It would fail for the last wrong index first.
        Op::Prim(def, _) if def == prim::CHECK_INDEX => false,
        Op::Prim(def, _) => {
            fuel > 0
                && def.effects <= Effects::Fallible
                && graph.cost_of(node).is_some_and(|(cost, n)| {
                    // The effort of a user's operation has no bound.
                    let is_estimated = def.is_registered() || matches!(def.class, OpClass::Opaque(_));
                    let effort = if is_estimated { cost.effort() } else { cost.operations };
                    effort <= f64::from(CHEAP.0) * n
                })
                && data.operands.iter().all(|&x| is_cheap(graph, x, fuel - 1))
        }
        _ => false,
    }
}
