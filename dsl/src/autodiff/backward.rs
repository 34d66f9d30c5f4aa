//! Access of a backward pass to the builder: nodes, and constructs that it opens and closes.

use super::*;
use crate::ir::{CallKind, MAX_OPEN};
use crate::ops::ValueCx;
use std::num::NonZeroU32;

/// A backward loop that is being built.
pub(super) struct BackwardLoop {
    construct: usize,
    predicate: Value,
    /// The number of loop variables from the start.
    declared: usize,
    /// The positions of the loop variables that were added while the body was built.
    extra: Vec<usize>,
}

impl<'g> Sweep<'g> {
    /// Calls `f` with the builder.
    pub(super) fn graph<R>(&self, f: impl FnOnce(&mut GraphBuilder) -> R) -> R {
        f(&mut self.context.builder.borrow_mut())
    }

    /// Calls `f` with the values added to the graph and with the builder, which may add nodes
    /// elsewhere.
    pub(super) fn added<R>(&self, f: impl FnOnce(&mut AddedValues, &mut GraphBuilder) -> R) -> R {
        self.graph(|g| {
            let (point, origin) = (g.point(), g.next_origin());
            let r = f(&mut self.added.borrow_mut(), g);
            g.at(point, origin);
            r
        })
    }

    /// Returns a value for use in a gradient.
    pub(super) fn value(&self, v: Value) -> GradValue<'g> {
        self.context.value(v)
    }

    pub(super) fn constant(&self, tensor: HostTensor) -> GradValue<'g> {
        self.context.constant(tensor)
    }

    pub(super) fn stack_op(&self, op: StackOp, operands: &[GradValue<'g>]) -> Vec<GradValue<'g>> {
        self.context.emit_all(Op::Stack(op), operands)
    }

    pub(super) fn list_op(&self, op: ListOp, operands: &[GradValue<'g>]) -> Vec<GradValue<'g>> {
        self.context.emit_all(Op::List(op), operands)
    }

    /// Runs `f` with nodes added to the region at a depth.
    pub(super) fn at_depth<R>(&self, depth: usize, f: impl FnOnce() -> R) -> R {
        let before = self.graph(|g| {
            let before = g.point();
            continue_at_depth(g, depth);
            before
        });
        let r = f();
        self.graph(|g| {
            let origin = g.next_origin();
            g.at(before, origin);
        });
        r
    }

    /// Opens a construct that the values enter, and continues in its first region. Returns the
    /// construct and the parameters there.
    fn open(
        &self,
        values: &[GradValue<'g>],
        add: impl Fn(&mut GraphBuilder, usize, Value) -> usize,
    ) -> (usize, Vec<GradValue<'g>>) {
        let params = self.graph(|g| {
            let values: Vec<Value> = values.iter().map(|v| g.capture(v.value())).collect();
            let construct = g.depth();
            if construct == MAX_OPEN {
                let message = format!("gradients: the backward pass is nested more than {MAX_OPEN} levels deep");
                abort(Diagnostic::new(message).at(g.next_origin().loc, "opened here, inside the others"));
            }
            g.open();
            for v in values {
                add(g, construct, v);
            }
            continue_at_depth(g, construct + 1);
            (construct, g.region(g.region_at(construct + 1)).params.clone())
        });
        (params.0, params.1.into_iter().map(|v| self.value(v)).collect())
    }

    /// Continues at the end of a region of the innermost construct.
    pub(super) fn select(&self, region: usize) {
        self.graph(|g| {
            let depth = g.depth();
            g.select(depth - 1, region);
            continue_at_depth(g, depth);
        });
    }

    /// Closes the innermost construct and continues after it.
    fn close(&self, close: impl FnOnce(&mut GraphBuilder) -> Vec<Value>) -> Vec<GradValue<'g>> {
        let results = self.graph(|g| {
            continue_at_depth(g, g.depth() - 1);
            close(g)
        });
        results.into_iter().map(|v| self.value(v)).collect()
    }

    /// Returns values as seen at the position of the next node.
    fn seen(&self, values: &[GradValue<'g>]) -> Vec<Value> {
        self.graph(|g| values.iter().map(|v| g.capture(v.value())).collect())
    }

    /// Opens a branch. The first region is current.
    pub(super) fn open_cond(&self, predicate: GradValue<'g>) -> Value {
        let predicate = self.graph(|g| g.capture(predicate.value()));
        self.open(&[], |g, construct, v| g.add_open_param(construct, v, None));
        predicate
    }

    /// Closes a branch. A value that neither side changes is the value outside.
    pub(super) fn close_cond(&self, predicate: Value, sides: [Vec<GradValue<'g>>; 2]) -> Vec<GradValue<'g>> {
        let [then, otherwise] = [0, 1].map(|side| {
            self.select(side);
            self.seen(&sides[side])
        });
        self.close(|g| g.close_cond(predicate, [then, otherwise]))
    }

    /// Opens a call of one region. Returns the parameters for the arguments.
    pub(super) fn open_call(&self, args: &[GradValue<'g>]) -> Vec<GradValue<'g>> {
        self.open(args, |g, construct, v| g.add_open_param(construct, v, None)).1
    }

    /// Closes a call of one region.
    pub(super) fn close_call(&self, kind: CallKind, yields: &[GradValue<'g>]) -> Vec<GradValue<'g>> {
        let yields = self.seen(yields);
        self.close(|g| g.close_call(kind, &yields))
    }

    /// Opens a loop. `predicate` gets the loop variables in the condition. Returns the loop
    /// variables in the body, which is current.
    pub(super) fn open_while(
        &self,
        init: &[GradValue<'g>],
        predicate: impl FnOnce(&[GradValue<'g>]) -> GradValue<'g>,
    ) -> (BackwardLoop, Vec<GradValue<'g>>) {
        let (construct, vars) = self.open(init, |g, construct, v| g.add_open_var(construct, v, None));
        let predicate = predicate(&vars);
        let predicate = self.graph(|g| g.capture(predicate.value()));
        self.select(1);
        let vars = self.graph(|g| g.region(g.region_at(construct + 1)).params[..init.len()].to_vec());
        let open = BackwardLoop { construct, predicate, declared: init.len(), extra: Vec::new() };
        (open, vars.into_iter().map(|v| self.value(v)).collect())
    }

    /// Adds a loop variable while the body is being built. Returns its value in the body.
    pub(super) fn add_loop_var(&self, open: &mut BackwardLoop, init: GradValue<'g>) -> GradValue<'g> {
        let param = self.graph(|g| {
            let outer = g.seen_at(init.value(), open.construct).expect("the value is of a region around the loop");
            let i = g.add_open_var(open.construct, outer, None);
            open.extra.push(i);
            let [_, body] = g.opened(open.construct).regions;
            g.region(body).params[i]
        });
        self.value(param)
    }

    /// Closes a loop. `next` are the next values of the loop variables, those that were added while
    /// the body was built last.
    pub(super) fn close_while(
        &self,
        open: &BackwardLoop,
        parallel_iterations: Option<NonZeroU32>,
        next: &[GradValue<'g>],
    ) -> Vec<GradValue<'g>> {
        let vars = (0..open.declared).chain(open.extra.iter().copied());
        let vars: Vec<(usize, Value)> = vars.zip(self.seen(next)).collect();
        self.graph(|g| {
            for &(i, next) in &vars {
                let (before, after) = (g.ty(g.opened(open.construct).outer[i]), g.ty(next));
                if !after.fits(before) {
                    let message = format!(
                        "gradients: a cotangent in this loop has type {before} at first, but {after} after an iteration"
                    );
                    let error = Diagnostic::new(message).at(g.next_origin().loc, "differentiated here");
                    abort(error.help("give the loop variables known extents"));
                }
            }
        });
        self.close(|g| g.close_loop(parallel_iterations, open.predicate, &vars))
    }
}

/// Continues at the end of the region at a depth, with the same origin.
fn continue_at_depth(g: &mut GraphBuilder, depth: usize) {
    let (region, origin) = (g.region_at(depth), g.next_origin());
    g.at(InsertPoint::End(region), origin);
}
