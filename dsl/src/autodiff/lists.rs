//! The gradients of operations on lists.
//!
//! Invariant: the cotangent of a list is a list of the same type and length. An unwritten element
//! of it is zero.

use super::saved::SavedFrom;
use super::*;

impl<'g> Sweep<'g> {
    /// Runs the backward pass of an operation on lists.
    ///
    /// All reads of a cotangent come before it is passed on, so that it can be updated in place.
    pub(super) fn list(&self, level: usize, op: &ListOp, node: Node, data: &NodeData, cot: &mut Cotangents<'g>) {
        let d = |i: usize, cot: &Cotangents<'g>| cot.get(&data.results[i]).copied();
        let only = |cot: &Cotangents<'g>| d(0, cot).expect("an operation with one result gets its cotangent");
        let operands = &data.operands;
        let first_extent = |v: Value| self.graph(|g| g.ty(v).element().shape.dims()[0].clone());
        let emit = |op: ListOp, operands: &[GradValue<'g>]| self.list_op(op, operands)[0];
        match op {
            ListOp::New(_) | ListOp::ZerosLike | ListOp::Len | ListOp::Extents | ListOp::Written => {}
            ListOp::Push => {
                let popped = self.list_op(ListOp::Pop, &[only(cot)]);
                self.add(cot, operands[0], popped[0], Some(node));
                self.add_fitted(cot, operands[1], popped[1], node);
            }
            ListOp::Pop => {
                let below = d(0, cot).unwrap_or_else(|| self.zeros_of_list(level, data.results[0]));
                let top = d(1, cot).unwrap_or_else(|| self.zeros_of_type(level, data.results[1]));
                self.add(cot, operands[0], emit(ListOp::Push, &[below, top]), Some(node));
            }
            ListOp::Read | ListOp::Gather => {
                let (list, dy) = (operands[0], only(cot));
                if !self.is_active(list) {
                    return;
                }
                let index = self.forward_value(level, operands[1]);
                let before = cot.get(&list).copied().unwrap_or_else(|| self.zeros_of_list(level, list));
                self.came_from.borrow_mut().entry(list).or_insert(node);
                cot.insert(list, emit(ListOp::Accumulate, &[before, index, dy]));
            }
            ListOp::Write | ListOp::Scatter | ListOp::Accumulate => {
                let dl = only(cot);
                if self.is_active(operands[2]) {
                    let index = self.forward_value(level, operands[1]);
                    let op = if index.rank() == 0 { ListOp::Read } else { ListOp::Gather };
                    let dx = emit(op, &[dl, index]);
                    self.add_fitted(cot, operands[2], dx, node);
                }
                // The element was unwritten before, so its cotangent is irrelevant.
                self.add(cot, operands[0], dl, Some(node));
            }
            ListOp::Stack(_) => self.add(cot, operands[0], emit(ListOp::Unstack, &[only(cot)]), Some(node)),
            ListOp::Unstack | ListOp::Restore => {
                let dx = emit(ListOp::Stack(first_extent(operands[0])), &[only(cot)]);
                self.add_fitted(cot, operands[0], dx, node);
            }
            ListOp::Concat(_) => {
                let dy = only(cot);
                let extents = self.added(|values, g| values.query(g, operands[0], Op::List(ListOp::Extents)));
                let extents = self.forward_value(level, extents);
                let dl = emit(ListOp::Split(first_extent(operands[0])), &[dy, extents]);
                self.add(cot, operands[0], dl, Some(node));
            }
            ListOp::Split(_) => {
                let dx = emit(ListOp::Concat(first_extent(operands[0])), &[only(cot)]);
                self.add_fitted(cot, operands[0], dx, node);
            }
            ListOp::Add => {
                let dl = only(cot);
                self.add(cot, operands[0], dl, Some(node));
                self.add(cot, operands[1], dl, Some(node));
            }
        }
    }

    /// Returns the list for a checkpoint that is recomputed.
    ///
    /// If only its length matters there, it is a new list of this length, so that the list itself
    /// is neither saved nor kept alive.
    pub(super) fn start(&self, level: usize, list: Value, region: Region, param: Value) -> GradValue<'g> {
        if self.graph(|g| elements_matter(g, region, param)) {
            return self.forward_value(level, list);
        }
        let element = self.graph(|g| g.ty(list).element().clone());
        let len = self.length(level, list);
        self.list_op(ListOp::New(element), &[len])[0]
    }

    fn length(&self, level: usize, list: Value) -> GradValue<'g> {
        let len = self.added(|values, g| values.query(g, list, Op::List(ListOp::Len)));
        self.forward_value(level, len)
    }

    /// Restores a list of the forward region of `level` that changes in a loop.
    ///
    /// The saved values are its elements as one tensor, and flags for written elements.
    pub(super) fn restored(&self, level: usize, list: Value) -> GradValue<'g> {
        if self.graph(|g| !g.ty(list).element().shape.is_definite()) {
            abort(self.graph(|g| added::list_is_not_saved(g, list)));
        }
        let depth = self.levels.borrow()[level].depth;
        let parts = [ListOp::Stack(crate::Dim::Unknown), ListOp::Written];
        let parts = parts.map(|op| {
            let part = self.added(|values, g| values.query(g, list, Op::List(op)));
            self.forward_value(level, part)
        });
        self.at_depth(depth, || self.list_op(ListOp::Restore, &parts)[0])
    }

    /// Adds a list element to the cotangent of a tensor, whose extents may be known while those of
    /// the list are not.
    fn add_fitted(&self, cot: &mut Cotangents<'g>, v: Value, dv: GradValue<'g>, node: Node) {
        if !self.is_active(v) {
            return;
        }
        let shape = self.graph(|g| g.ty(v).element().shape.clone());
        let dv = if shape.is_definite() && dv.shape() != shape { dv.broadcast_to(shape) } else { dv };
        self.add(cot, v, dv, Some(node));
    }

    /// Returns zeros for a list: a new list of its length, so that the list itself need not be kept
    /// alive.
    pub(super) fn zeros_of_list(&self, level: usize, v: Value) -> GradValue<'g> {
        if level > 0
            && let SavedFrom::Outside(outer) = self.origin(v)
        {
            return self.zeros_of_list(level - 1, outer);
        }
        let element = self.graph(|g| g.ty(v).element().clone());
        if element.shape.is_definite() {
            let len = self.length(level, v);
            return self.list_op(ListOp::New(element), &[len])[0];
        }
        if level == 0 {
            return self.value(v).zeros_like();
        }
        abort(
            Diagnostic::new(format!(
                "gradients: the gradient needs zeros for the elements of a list, {element}, whose extents are \
                 unknown here"
            ))
            .at(self.graph(|g| g.loc(v)), "the list")
            .help("use list elements with known extents"),
        )
    }
}

/// Returns whether a region uses more than the length of a list. All lists in a construct that
/// takes it count as that list.
fn elements_matter(g: &crate::Graph, region: Region, list: Value) -> bool {
    let mut forms = FxHashSet::from_iter([list]);
    let mut matter = false;
    g.visit_nodes(region, &mut |node| {
        let data = g.node(node);
        if !data.operands.iter().any(|v| forms.contains(v)) {
            return;
        }
        match &data.op {
            Op::List(ListOp::Len) => {}
            Op::List(ListOp::Push | ListOp::Write | ListOp::Scatter) => {
                forms.insert(data.results[0]);
            }
            op if op.is_construct() => {
                let inside = data.regions.iter().flat_map(|&r| &g.region(r).params);
                forms.extend(inside.chain(&data.results).filter(|&&v| matches!(g.ty(v), Type::List(_))));
            }
            _ => matter = true,
        }
    });
    matter
}
