//! Control flow, stacks and lists.

use super::{Instr, Item, Kernel, Lower, LoweredValue, Move, Out, TensorOperand};
use crate::cpu::compile::{ParallelLoop, PushCount, TripCount};
use crate::cpu::memory::Storage;
use anabranch_dsl::ir::dependence;
use anabranch_dsl::ir::{FileOp, Graph, ListForm, ListOp, LoopVar, Node, Op, QueueId, QueueOp, StackOp, Value};
use anabranch_dsl::passes::{self, Limit};
use anabranch_dsl::{Loc, Result, Type};

impl Lower<'_> {
    /// ```text
    ///     jump unless pred, L1
    ///     then; results = yields; jump L2
    /// L1: else; results = yields
    /// L2:
    /// ```
    pub(super) fn cond(&mut self, node: Node) -> Result<()> {
        let graph = self.graph;
        let data = graph.node(node);
        // Compute expressions before the branches, since both may use them.
        let construct = graph.cond_of(node);
        let captures = graph.captured(node).iter().map(|&v| self.place(v)).collect::<Result<Vec<_>>>()?;
        let cond = self.reg(construct.predicate())?;
        let results: Vec<LoweredValue> = data.results.iter().map(|&r| self.new_place(graph.ty(r))).collect();
        let (otherwise, end) = (self.new_label(), self.new_label());
        self.emit(Instr::JumpUnless { cond, to: otherwise });
        let (arms, around) = (self.open_arms(), self.current_arm);
        for (side, region) in construct.branches().into_iter().enumerate() {
            let arm = arms + side as u32;
            self.current_arm = Some(arm);
            self.draft.arms[arm as usize].start = self.here();
            for ((param, _), place) in graph.captures_in(region).zip(&captures) {
                self.places[param.index()] = Some(place.clone());
            }
            self.region(region)?;
            self.move_all(&results, &graph.region(region).yields, data.loc)?;
            if side == 0 {
                self.emit(Instr::Jump { to: end });
                self.set_label(otherwise);
            }
            self.draft.arms[arm as usize].end = self.here();
        }
        self.current_arm = around;
        self.set_label(end);
        self.bind(&data.results, results);
        Ok(())
    }

    /// ```text
    ///     pack loop-invariant operands; carried = initial values; jump L2
    /// L1: body; carried = yields
    /// L2: cond; jump if pred, L1
    /// ```
    pub(super) fn while_loop(&mut self, node: Node) -> Result<()> {
        let graph = self.graph;
        let (data, construct) = (graph.node(node), graph.while_of(node));
        let captures = graph.captured(node).iter().map(|&v| self.place(v)).collect::<Result<Vec<_>>>()?;
        // Buffers allocated so far are loop-invariant.
        let (before, n_buffers) = (self.here(), self.draft.buffers.len() as u32);
        self.emit_item(Item::Ops(Vec::new()));
        let carried: Vec<LoweredValue> = data.results.iter().map(|&r| self.new_place(graph.ty(r))).collect();
        self.begin_variables(node, &carried, data.loc)?;
        let vars = construct.vars().map(|var| [var.cond_param, var.body_param]);
        let params = vars.chain(graph.captures(node).map(|capture| capture.params));
        for (params, place) in params.zip(carried.iter().chain(&captures)) {
            params.iter().for_each(|param| self.places[param.index()] = Some(place.clone()));
        }
        let trips = self.trips(node, &carried)?;
        self.reserve(node, &carried, trips);
        let (again, test) = (self.new_label(), self.new_label());
        self.emit(Instr::Jump { to: test });
        let id = self.open_loop(data.loc, before, n_buffers);
        let storage = |place: &LoweredValue| match place {
            LoweredValue::Reg(r) => Storage::Reg(*r),
            LoweredValue::View(v) => v.storage().expect("loop variables are stored in buffers"),
            LoweredValue::Slot(s) => Storage::Slot(*s),
            LoweredValue::Stack(s) => Storage::Stack(*s),
        };
        let carried_in: Vec<Storage> = carried.iter().map(storage).collect();
        self.draft.carried.extend(carried_in.iter().map(|&storage| (storage, id)));
        if let (Some(trips), Some(roles)) = (trips, dependence::roles(graph, node)) {
            let vars = roles.into_iter().zip(carried_in).collect();
            self.draft.loops[id as usize].parallel = Some(ParallelLoop { trips, vars });
        }
        self.set_label(again);
        self.region(construct.body())?;
        self.move_all(&carried, construct.nexts(), data.loc)?;
        // If no loop variable moves, the back edge is the point before the condition.
        self.draft.loops[id as usize].back_edge =
            self.here().saturating_sub(1).max(self.draft.loops[id as usize].start);
        self.set_label(test);
        self.region(construct.cond())?;
        let pred = self.reg(construct.predicate())?;
        self.emit(Instr::JumpIf { cond: pred, to: again });
        self.draft.loops[id as usize].end = self.here() - 1;
        self.current_loop = self.draft.loops[id as usize].parent;
        self.bind(&data.results, carried);
        Ok(())
    }

    /// Moves the initial values of loop variables to their places, but for those that the loop
    /// overwrites. A checked run would find the values that are there before.
    fn begin_variables(&mut self, node: Node, carried: &[LoweredValue], loc: Loc) -> Result<()> {
        let may_skip = self.options.fuse && !self.options.check_finite;
        let (mut places, mut inits) = (Vec::new(), Vec::new());
        for (var, place) in self.graph.while_of(node).vars().zip(carried) {
            match place {
                LoweredValue::View(view) if may_skip && passes::overwrites(self.graph, var) => {
                    let out = Out::View(view.clone());
                    let op = self.add_op(Kernel::Unspecified, Vec::new(), out, None, "unspecified", loc);
                    self.emit(Instr::Run(op));
                }
                _ => {
                    places.push(place.clone());
                    inits.push(var.init);
                }
            }
        }
        self.move_all(&places, &inits, loc)
    }

    /// Returns the trip count of a loop, if the loop is counted.
    fn trips(&mut self, node: Node, carried: &[LoweredValue]) -> Result<Option<TripCount>> {
        let Some(count) = passes::count(self.graph, node) else { return Ok(None) };
        let LoweredValue::Reg(first) = carried[count.variable] else { return Ok(None) };
        let limit = match count.limit {
            Limit::Number(_) => None,
            Limit::Before(limit) => Some(self.reg(limit)?),
        };
        Ok(Some(TripCount { count, first, limit }))
    }

    /// Reserves capacity in the stacks that a counted loop pushes to. Only for outermost loops:
    /// inside a loop, stacks reuse the memory of earlier iterations.
    fn reserve(&mut self, node: Node, carried: &[LoweredValue], trips: Option<TripCount>) {
        let graph = self.graph;
        let Some(trips) = trips.filter(|_| self.current_loop.is_none()) else { return };
        for (i, place) in carried.iter().enumerate() {
            if let (LoweredValue::Stack(stack), Some(in_each)) = (place, pushes(graph, graph.while_of(node).var(i))) {
                let pushed = Box::new(PushCount { trips, in_each });
                self.emit(Instr::StackReserve { stack: *stack, pushed });
            }
        }
    }

    /// Inlines the region of a call: its parameters use the storage of the operands, the results
    /// that of the yields.
    pub(super) fn call(&mut self, node: Node) -> Result<()> {
        let graph = self.graph;
        let data = graph.node(node);
        let forward = graph.call_of(node).forward();
        let body = graph.region(forward);
        let operands = graph.entry_values(node).iter().map(|&v| self.place(v)).collect::<Result<Vec<_>>>()?;
        self.bind(&body.params, operands);
        self.region(forward)?;
        let mut results = Vec::with_capacity(data.results.len());
        for (&r, &y) in data.results.iter().zip(&body.yields) {
            let mut place = self.place(y)?;
            // The extents of a result may be unknown although they are known inside the region.
            if let (LoweredValue::View(_), Type::Tensor(ty)) = (&place, graph.ty(r))
                && ty.shape.known().is_none()
            {
                let operand = self.operand(y)?;
                let slot = self.new_slot();
                let op = self.add_op(Kernel::ToSlot, vec![operand], Out::Slot(slot), None, "copy", data.loc);
                self.emit(Instr::Run(op));
                place = LoweredValue::Slot(slot);
            }
            results.push(place);
        }
        self.bind(&data.results, results);
        Ok(())
    }

    fn bind(&mut self, results: &[Value], places: Vec<LoweredValue>) {
        for (&r, place) in results.iter().zip(places) {
            self.places[r.index()] = Some(place);
        }
    }

    /// Emits simultaneous moves of values to places.
    fn move_all(&mut self, to: &[LoweredValue], from: &[Value], loc: Loc) -> Result<()> {
        let sources = from.iter().map(|&v| self.place(v)).collect::<Result<Vec<_>>>()?;
        let mut moves = Vec::new();
        for ((dst, src), &value) in to.iter().zip(sources).zip(from) {
            moves.push(match (dst.clone(), src) {
                (LoweredValue::Reg(dst), LoweredValue::Reg(src)) => Move::Reg { dst, src },
                (LoweredValue::Stack(dst), LoweredValue::Stack(src)) => Move::Stack { dst, src },
                (LoweredValue::Slot(dst), LoweredValue::Slot(src)) => Move::Slot { dst, src },
                (LoweredValue::View(dst), LoweredValue::View(src)) => Move::Tensor { dst, src },
                (LoweredValue::Slot(dst), LoweredValue::View(_) | LoweredValue::Reg(_)) => {
                    let operand = self.operand(value)?;
                    let src = self.new_slot();
                    let op = self.add_op(Kernel::ToSlot, vec![operand], Out::Slot(src), None, "copy", loc);
                    self.emit(Instr::Run(op));
                    Move::Slot { dst, src }
                }
                (LoweredValue::View(dst), LoweredValue::Slot(src)) => {
                    let view = self.new_buffer(dst.dtype, dst.shape.clone());
                    self.unpack(TensorOperand::Slot(src), Out::View(view.clone()), loc);
                    Move::Tensor { dst, src: view }
                }
                (dst, src) => panic!("a move from {src:?} to {dst:?}: types differ"),
            });
        }
        self.emit_moves(moves);
        Ok(())
    }

    /// Copies the tensor of a slot to a place of known shape. Another shape is a run-time error.
    fn unpack(&mut self, operand: TensorOperand, out: Out, loc: Loc) {
        let op = self.add_op(Kernel::FromSlot, vec![operand], out, None, "copy", loc);
        self.emit(Instr::Run(op));
    }

    pub(super) fn stack_op(&mut self, node: Node, op: &StackOp) -> Result<()> {
        let graph = self.graph;
        let data = graph.node(node);
        if let StackOp::New(_) | StackOp::Zeros(_) = op {
            let stack = self.new_stack(graph.ty(data.results[0]).clone());
            let make = if let StackOp::New(_) = op { Instr::StackNew } else { Instr::StackZeros };
            self.emit(make(stack));
            self.places[data.results[0].index()] = Some(LoweredValue::Stack(stack));
            return Ok(());
        }
        // Stacks have value semantics: the operation modifies a copy, which coalescing eliminates
        // at the last use.
        let others = data.operands[1..].iter().map(|&v| self.place(v)).collect::<Result<Vec<_>>>()?;
        let LoweredValue::Stack(src) = self.place(data.operands[0])? else {
            panic!("the operand of {} is not a stack", op_name(op))
        };
        let stack = self.new_stack(graph.ty(data.results[0]).clone());
        self.emit_item(Item::Moves(vec![Move::Stack { dst: stack, src }]));
        let name = op_name(op);
        match op {
            StackOp::New(_) | StackOp::Zeros(_) => unreachable!("handled above"),
            StackOp::Push => {
                let operand = self.operand_in_rows(data.operands[1])?;
                // For a value saved for a gradient, use the location of the value, or else of the
                // loop.
                let around = graph.region(data.region).owner.map_or(Loc::UNKNOWN, |owner| graph.node(owner).loc);
                let places = [data.loc, graph.loc(data.operands[1]), around];
                let loc = places.into_iter().find(|loc| loc.is_known()).unwrap_or(Loc::UNKNOWN);
                let op = self.add_op(Kernel::Data, vec![operand], Out::Nothing, None, name, loc);
                self.emit(Instr::StackPush { stack, op });
            }
            StackOp::Pop => {
                let (top, out) = self.new_out(data.results[1]);
                let op = self.add_op(Kernel::Data, vec![], out, None, name, data.loc);
                self.emit(Instr::StackPop { stack, op });
                self.places[data.results[1].index()] = Some(top);
            }
            StackOp::ZerosLike => self.emit(Instr::StackZero(stack)),
            StackOp::Add => {
                let LoweredValue::Stack(src) = others[0] else { panic!("the second operand of {name} is not a stack") };
                let op = self.add_op(Kernel::Data, vec![], Out::Nothing, None, name, data.loc);
                self.emit(Instr::StackAdd { dst: stack, src, op });
            }
        }
        self.places[data.results[0].index()] = Some(LoweredValue::Stack(stack));
        Ok(())
    }

    /// Allocates storage for a tensor that an operation writes.
    fn new_out(&mut self, value: Value) -> (LoweredValue, Out) {
        let ty = self.graph.ty(value);
        let place = self.new_place(ty);
        let out = match &place {
            LoweredValue::Reg(r) => Out::Reg(*r, ty.element().dtype),
            LoweredValue::View(v) => Out::View(v.clone()),
            LoweredValue::Slot(s) => Out::Slot(*s),
            LoweredValue::Stack(_) => panic!("{value} of `{}` is not a tensor", self.graph.name),
        };
        (place, out)
    }

    pub(super) fn list_op(&mut self, node: Node, op: &ListOp) -> Result<()> {
        let graph = self.graph;
        let data = graph.node(node);
        let (mut lists, mut operands) = (Vec::new(), Vec::new());
        for &v in &data.operands {
            match self.place(v)? {
                LoweredValue::Stack(s) => lists.push(s),
                _ => operands.push(self.operand_in_rows(v)?),
            }
        }
        let found = data.results.iter().copied().find(|&r| graph.ty(r).as_tensor().is_some());
        let (found, out) = match found {
            Some(v) => {
                let (place, out) = self.new_out(v);
                (Some((v, place)), out)
            }
            None => (None, Out::Nothing),
        };
        let list = match op.form() {
            ListForm::Query => lists[0],
            ListForm::Make => self.new_stack(graph.ty(data.results[0]).clone()),
            ListForm::Update => {
                // Lists have value semantics, like stacks.
                let list = self.new_stack(graph.ty(data.results[0]).clone());
                self.emit_item(Item::Moves(vec![Move::Stack { dst: list, src: lists.remove(0) }]));
                list
            }
        };
        let other = lists.pop().filter(|_| op.form() != ListForm::Query);
        let id = self.add_op(Kernel::List(op.clone()), operands, out, None, op.name(), data.loc);
        self.emit(Instr::List { list, other, op: id });
        if op.form() != ListForm::Query {
            self.places[data.results[0].index()] = Some(LoweredValue::Stack(list));
        }
        if let Some((v, place)) = found {
            self.places[v.index()] = Some(place);
        }
        Ok(())
    }

    /// Lowers an operation on a file.
    pub(super) fn file_op(&mut self, node: Node, file_op: &FileOp) -> Result<()> {
        let data = self.graph.node(node);
        let operands = data.operands.iter().map(|&v| self.operand(v)).collect::<Result<Vec<_>>>()?;
        let kernel = Kernel::File(file_op.clone());
        let out = match data.results.first() {
            None => Out::Nothing,
            Some(&result) => {
                let (place, out) = self.new_out(result);
                self.places[result.index()] = Some(place);
                out
            }
        };
        let op = self.add_op(kernel, operands, out, None, file_op.name(), data.loc);
        self.emit(Instr::Run(op));
        Ok(())
    }

    /// Lowers an operation on a queue: one instruction runs it and stores its first result, and one
    /// for each further result stores that.
    pub(super) fn queue_op(&mut self, node: Node, queue: QueueId, queue_op: QueueOp) -> Result<()> {
        let data = self.graph.node(node);
        let mut operands = data.operands.iter().map(|&v| self.operand(v)).collect::<Result<Vec<_>>>()?;
        let mut kernel = Kernel::Queue(queue, queue_op);
        if data.results.is_empty() {
            let op = self.add_op(kernel, operands, Out::Nothing, None, queue_op.name(), data.loc);
            self.emit(Instr::Run(op));
            return Ok(());
        }
        for &result in &data.results {
            let (place, out) = self.new_out(result);
            let op = self.add_op(kernel, operands, out, None, queue_op.name(), data.loc);
            self.emit(Instr::Run(op));
            self.places[result.index()] = Some(place);
            (kernel, operands) = (Kernel::QueueResult, vec![]);
        }
        Ok(())
    }
}

/// Returns the number of elements that each iteration pushes to a stack, if it does nothing else
/// with it.
fn pushes(graph: &Graph, var: LoopVar) -> Option<usize> {
    let (mut at, mut n) = (var.next, 0);
    while at != var.body_param {
        let push = graph.node(graph.producer(at)?);
        if push.op != Op::Stack(StackOp::Push) {
            return None;
        }
        (at, n) = (push.operands[0], n + 1);
    }
    (n > 0 && matches!(graph.ty(at), Type::Stack(_))).then_some(n)
}

fn op_name(op: &StackOp) -> &'static str {
    anabranch_dsl::ir::Op::Stack(op.clone()).name()
}
