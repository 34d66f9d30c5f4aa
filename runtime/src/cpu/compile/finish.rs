//! Conversion of a draft to a plan: allocates storage, orders moves and resolves labels.

use super::allocate::{Request, allocate};
use super::draft::{Draft, Item, Move};
use super::liveness::Liveness;
use super::moves::{Ordered, in_order};
use super::parallel_ops::is_heavy;
use super::rows::join_rows;
use super::{
    Assign, Base, BufferId, Instr, LoopSpan, Out, ParallelLoop, Plan, Reg, ScalarOp, SlotId, StackId, TensorOp,
    TensorOpId, TensorOperand, TripCount, Update, View,
};
use crate::cpu::kernels::Kernel;
use crate::cpu::kernels::copy::Copy;
use crate::cpu::lanes::WhyNotInLanes;
use crate::cpu::memory::Storage;
use crate::cpu::memory::{BufferLocation, MAX_WRITTEN};
use crate::cpu::native::WhyNot;
use anabranch_dsl::ops::OpCost;
use anabranch_dsl::{DType, Loc, Result, TensorType, Type};
use rustc_hash::FxHashMap;

/// Consecutive indices for storage classes of one kind, in order of first use.
#[derive(Default)]
struct StorageIndices {
    of: FxHashMap<Storage, u32>,
}

impl StorageIndices {
    fn get(&mut self, class: Storage) -> u32 {
        let next = self.of.len() as u32;
        *self.of.entry(class).or_insert(next)
    }
}

struct Finish<'a> {
    draft: &'a Draft,
    live: Liveness,
    regs: StorageIndices,
    buffers: StorageIndices,
    stacks: StorageIndices,
    slots: StorageIndices,
    requests: Vec<Request>,
    /// The element size of each buffer in bytes, or 0 if its views disagree.
    element_sizes: Vec<usize>,
    stack_types: Vec<Type>,
    tensor_ops: Vec<TensorOp>,
    code: Vec<Instr>,
    scalar_ops: Vec<Option<ScalarOp>>,
    /// The comparison fused with the following jump.
    compared: Option<ScalarOp>,
    /// Whether a label precedes each item.
    labeled: Vec<bool>,
}

/// Returns the operands read after all items.
fn last<'a>(
    draft: &'a Draft,
    outputs: &'a [(TensorOperand, TensorType)],
    assigns: &'a [Assign],
    updates: &'a [Update],
) -> impl Iterator<Item = &'a TensorOperand> {
    let at_end = draft.additions.iter().flat_map(|&op| &draft.op(op).operands);
    let last = outputs.iter().map(|(o, _)| o).chain(assigns.iter().map(|a| &a.value));
    last.chain(updates.iter().flat_map(|u| &u.operands)).chain(at_end)
}

/// Fuses operations over the same rows.
pub(super) fn join(draft: &mut Draft, outputs: &[(TensorOperand, TensorType)], assigns: &[Assign], updates: &[Update]) {
    let last: Vec<TensorOperand> = last(draft, outputs, assigns, updates).cloned().collect();
    join_rows(draft, last.iter());
}

/// Converts a draft to a plan.
pub(super) fn finish(
    mut draft: Draft,
    name: String,
    inputs: Vec<TensorType>,
    outputs: Vec<(TensorOperand, TensorType)>,
    assigns: Vec<Assign>,
    updates: Vec<Update>,
) -> Result<Plan> {
    let mut live = Liveness::new(&draft, last(&draft, &outputs, &assigns, &updates));
    live.coalesce(&draft);

    let ops = std::mem::take(&mut draft.tensor_ops);
    let constants = std::mem::take(&mut draft.constants);
    let mut finish = Finish {
        draft: &draft,
        live,
        regs: StorageIndices::default(),
        buffers: StorageIndices::default(),
        stacks: StorageIndices::default(),
        slots: StorageIndices::default(),
        requests: Vec::new(),
        element_sizes: Vec::new(),
        stack_types: Vec::new(),
        tensor_ops: Vec::new(),
        code: Vec::new(),
        scalar_ops: Vec::new(),
        compared: None,
        labeled: vec![false; draft.items.len() + 1],
    };
    draft.labels.iter().for_each(|&l| finish.labeled[l as usize] = true);
    // Registers of constants come first.
    for &(r, _) in &draft.constant_regs {
        finish.reg(r);
    }
    finish.tensor_ops = ops.into_iter().map(|op| finish.op(op)).collect();

    // The index of the first instruction of each item.
    let mut starts = Vec::with_capacity(draft.items.len() + 1);
    for p in 0..draft.items.len() {
        starts.push(finish.code.len() as u32);
        finish.item(p);
    }
    starts.push(finish.code.len() as u32);
    finish.scalar_ops.resize(finish.code.len(), None);
    for instr in &mut finish.code {
        if let Instr::Jump { to }
        | Instr::JumpIf { to, .. }
        | Instr::JumpUnless { to, .. }
        | Instr::JumpCompare { to, .. } = instr
        {
            *to = starts[draft.labels[*to as usize] as usize];
        }
    }

    let in_code = |l: &super::draft::DraftLoop| starts[l.start as usize]..starts[l.end as usize + 1];
    let loop_span = |l: &super::draft::DraftLoop| LoopSpan {
        code: in_code(l),
        loc: l.loc,
        not_native: Some(WhyNot::TurnedOff),
        parallel: l.parallel.clone().map(|parallel| finish.parallel(parallel)),
        not_in_lanes: l.parallel.as_ref().map(|_| WhyNotInLanes::TurnedOff),
    };
    let loops = draft.loops.iter().map(loop_span).collect();
    let outputs: Vec<_> = outputs.into_iter().map(|(o, ty)| (finish.operand(o), ty)).collect();
    let assigns = assigns.into_iter().map(|a| Assign { value: finish.operand(a.value), ..a }).collect();
    let place = |o: Vec<TensorOperand>, finish: &mut Finish<'_>| o.into_iter().map(|o| finish.operand(o)).collect();
    let updates = updates.into_iter().map(|u| Update { operands: place(u.operands, &mut finish), ..u }).collect();
    let (mut results, mut regions) = (Vec::new(), FxHashMap::default());
    for (i, (operand, _)) in outputs.iter().enumerate() {
        if let Some(b) = finish.is_result(operand)
            && !regions.contains_key(&b.index())
        {
            finish.requests[b.index()].bytes = 0;
            regions.insert(b.index(), BufferLocation::Result(results.len() as u32));
            results.push(i);
        }
    }
    let (ranges, arena_bytes) = allocate(&finish.requests);
    let place = |(i, range)| regions.remove(&i).unwrap_or(BufferLocation::Arena(range));
    let regions = ranges.into_iter().enumerate().map(place).collect();
    let mut registers = vec![0; finish.regs.of.len()];
    for &(r, bits) in &draft.constant_regs {
        registers[finish.reg(r).index()] = bits;
    }
    Ok(Plan {
        code: finish.code,
        scalar_ops: finish.scalar_ops,
        tensor_ops: finish.tensor_ops,
        loops,
        regions,
        results,
        arena_bytes,
        registers,
        n_constant_registers: draft.constant_regs.len(),
        stacks: finish.stack_types,
        n_slots: finish.slots.of.len(),
        constants,
        inputs,
        outputs,
        n_stack_outputs: 0,
        assigns,
        updates,
        additions: draft.additions.clone(),
        name,
        native: None,
        lanes: Vec::new(),
    })
}

impl Finish<'_> {
    fn reg(&mut self, r: Reg) -> Reg {
        Reg(self.regs.get(self.live.representative(Storage::Reg(r))))
    }

    fn trips(&mut self, trips: TripCount) -> TripCount {
        TripCount { first: self.reg(trips.first), limit: trips.limit.map(|r| self.reg(r)), ..trips }
    }

    fn parallel(&mut self, ParallelLoop { trips, vars }: ParallelLoop) -> ParallelLoop {
        let mut place = |storage| match storage {
            Storage::Reg(r) => Storage::Reg(self.reg(r)),
            Storage::Stack(s) => Storage::Stack(self.stack(s)),
            Storage::Buffer(b) => Storage::Buffer(self.buffer(b)),
            Storage::Slot(s) => Storage::Slot(self.slot(s)),
        };
        let vars = vars.into_iter().map(|(role, storage)| (role, place(storage))).collect();
        ParallelLoop { trips: self.trips(trips), vars }
    }

    fn slot(&mut self, s: SlotId) -> SlotId {
        SlotId(self.slots.get(self.live.representative(Storage::Slot(s))))
    }

    fn stack(&mut self, s: StackId) -> StackId {
        let id = self.stacks.get(self.live.representative(Storage::Stack(s)));
        if id as usize == self.stack_types.len() {
            self.stack_types.push(self.draft.stacks[s.index()].clone());
        }
        StackId(id)
    }

    fn buffer(&mut self, b: BufferId) -> BufferId {
        let storage = Storage::Buffer(b);
        let id = self.buffers.get(self.live.representative(storage));
        if id as usize == self.requests.len() {
            let live = self.live.live_range(storage).unwrap_or((0, 0));
            self.requests.push(Request { bytes: self.draft.buffers[b.index()], live });
            self.element_sizes.push(usize::MAX);
        }
        BufferId(id)
    }

    fn view(&mut self, view: View) -> View {
        let base = match view.base {
            Base::Buffer(b) => {
                let (b, size) = (self.buffer(b), view.dtype.size());
                let sizes = &mut self.element_sizes[b.index()];
                *sizes = if *sizes == usize::MAX || *sizes == size { size } else { 0 };
                Base::Buffer(b)
            }
            Base::Reg(r) => Base::Reg(self.reg(r)),
            other => other,
        };
        View { base, ..view }
    }

    /// Returns the buffer of an output that covers it and has one element size. Booleans are
    /// excluded because not all bytes are valid.
    fn is_result(&self, output: &TensorOperand) -> Option<BufferId> {
        let TensorOperand::View(view) = output else { return None };
        let Base::Buffer(b) = view.base else { return None };
        let is_whole = view.offset == 0 && view.is_contiguous() && view.n_bytes() == self.requests[b.index()].bytes;
        let fits = view.size() > 0 && view.dtype != DType::Bool && self.element_sizes[b.index()] == view.dtype.size();
        (is_whole && fits).then_some(b)
    }

    fn operand(&mut self, operand: TensorOperand) -> TensorOperand {
        match operand {
            TensorOperand::View(v) => TensorOperand::View(self.view(v)),
            TensorOperand::Slot(s) => TensorOperand::Slot(self.slot(s)),
        }
    }

    fn op(&mut self, mut op: TensorOp) -> TensorOp {
        op.operands = op.operands.into_iter().map(|o| self.operand(o)).collect();
        op.out = match op.out {
            Out::View(v) => Out::View(self.view(v)),
            Out::Views(views) => Out::Views(views.into_iter().map(|v| self.view(v)).collect()),
            Out::Reg(r, dtype) => Out::Reg(self.reg(r), dtype),
            Out::Slot(s) => Out::Slot(self.slot(s)),
            Out::Nothing => Out::Nothing,
        };
        match (&op.kernel, &op.out) {
            (Kernel::Map(map), Out::View(out)) => op.kernel = Kernel::Map(map.placed(&op.operands, out)),
            (Kernel::Matmul(product), Out::View(out)) => {
                op.kernel = Kernel::Matmul(product.placed(&op.operands, out));
            }
            _ => {}
        }
        if let (Kernel::Rows(rows), Out::Views(outs)) = (&op.kernel, &op.out) {
            op.kernel = Kernel::Rows(rows.placed(&op.operands, outs));
        }
        op
    }

    fn item(&mut self, p: usize) {
        let draft = self.draft;
        match &draft.items[p] {
            Item::Moves(moves) => self.moves(p, moves),
            Item::Ops(ops) => self.ops_of_item(ops),
            Item::Instr(instr) => {
                let instr = match instr.clone() {
                    Instr::Unary { f, dst, a } => Instr::Unary { f, dst: self.reg(dst), a: self.reg(a) },
                    Instr::Binary { f, dst, a, b } => {
                        Instr::Binary { f, dst: self.reg(dst), a: self.reg(a), b: self.reg(b) }
                    }
                    Instr::Select { dst, a, b, c } => {
                        Instr::Select { dst: self.reg(dst), a: self.reg(a), b: self.reg(b), c: self.reg(c) }
                    }
                    Instr::Require { valid, a, op } => Instr::Require { valid, a: self.reg(a), op },
                    Instr::RequireIndex { a, dtype, n, op } => Instr::RequireIndex { a: self.reg(a), dtype, n, op },
                    Instr::JumpCompare { .. } => panic!("comparisons and jumps are joined here"),
                    Instr::Move { dst, src } => Instr::Move { dst: self.reg(dst), src: self.reg(src) },
                    Instr::JumpIf { cond, to } => self.jump(p, cond, to, true),
                    Instr::JumpUnless { cond, to } => self.jump(p, cond, to, false),
                    Instr::Assert { cond, op } => Instr::Assert { cond: self.reg(cond), op },
                    Instr::StackNew(s) => Instr::StackNew(self.stack(s)),
                    Instr::StackZeros(s) => Instr::StackZeros(self.stack(s)),
                    Instr::StackInput { stack, input } => Instr::StackInput { stack: self.stack(stack), input },
                    Instr::StackOutput { stack, output } => Instr::StackOutput { stack: self.stack(stack), output },
                    Instr::StackMove { dst, src, take } => {
                        Instr::StackMove { dst: self.stack(dst), src: self.stack(src), take }
                    }
                    Instr::StackReserve { stack, mut pushed } => {
                        pushed.trips = self.trips(pushed.trips);
                        Instr::StackReserve { stack: self.stack(stack), pushed }
                    }
                    Instr::StackPush { stack, op } => Instr::StackPush { stack: self.stack(stack), op },
                    Instr::StackPop { stack, op } => Instr::StackPop { stack: self.stack(stack), op },
                    Instr::StackZero(s) => Instr::StackZero(self.stack(s)),
                    Instr::StackAdd { dst, src, op } => {
                        Instr::StackAdd { dst: self.stack(dst), src: self.stack(src), op }
                    }
                    Instr::List { list, other, op } => {
                        Instr::List { list: self.stack(list), other: other.map(|o| self.stack(o)), op }
                    }
                    Instr::SlotMove { dst, src } => Instr::SlotMove { dst: self.slot(dst), src: self.slot(src) },
                    other @ (Instr::Jump { .. } | Instr::Run(_) | Instr::RunParallel(_) | Instr::CheckFinite(_)) => {
                        other
                    }
                    Instr::Native { .. } | Instr::Lanes { .. } => panic!("native code and lanes are made of the plan"),
                };
                self.code.push(instr);
                self.scalar_ops.resize(self.code.len() - 1, None);
                self.scalar_ops.push(self.compared.take().or(draft.scalar_ops[p]));
            }
        }
    }

    /// Emits operations that may run in parallel. Operations run in parallel if all are heavy.
    fn ops_of_item(&mut self, ops: &[TensorOpId]) {
        if ops.len() > 1 && ops.iter().all(|op| is_heavy(&self.tensor_ops[op.index()])) {
            self.code.extend(ops.chunks(MAX_WRITTEN).map(|ops| Instr::RunParallel(ops.into())));
        } else {
            self.code.extend(ops.iter().map(|&op| Instr::Run(op)));
        }
    }

    /// Returns a conditional jump, fused with the preceding comparison if that has no other use.
    fn jump(&mut self, p: usize, cond: Reg, to: u32, when: bool) -> Instr {
        let compared = self.reg(cond);
        let joins = p > 0
            && matches!(self.draft.items[p - 1], Item::Instr(Instr::Binary { .. }))
            && !self.labeled[p]
            && !self.live.is_live_after(Storage::Reg(cond), p);
        if let Some(&Instr::Binary { f, dst, a, b }) = self.code.last()
            && joins
            && dst == compared
        {
            self.code.pop();
            self.compared = self.scalar_ops.pop().flatten();
            return Instr::JumpCompare { f, a, b, to, when };
        }
        if when { Instr::JumpIf { cond: compared, to } } else { Instr::JumpUnless { cond: compared, to } }
    }

    /// Emits the moves left after coalescing, sequentialized.
    fn moves(&mut self, p: usize, moves: &[Move]) {
        let left: Vec<&Move> = moves.iter().filter(|m| !self.is_nothing(m)).collect();
        let pairs: Vec<(Storage, Option<Storage>)> = left
            .iter()
            .map(|m| {
                let src = match m {
                    Move::Reg { src, .. } => Some(Storage::Reg(*src)),
                    Move::Tensor { src, .. } => src.storage(),
                    Move::Stack { src, .. } => Some(Storage::Stack(*src)),
                    Move::Slot { src, .. } => Some(Storage::Slot(*src)),
                };
                (self.live.representative(m.destination()), src.map(|s| self.live.representative(s)))
            })
            .collect();
        let mut saved: FxHashMap<usize, SavedSource> = FxHashMap::default();
        for order in in_order(&pairs) {
            match order {
                Ordered::Save(i) => {
                    let s = self.save(left[i], p);
                    saved.insert(i, s);
                }
                Ordered::Do(i) => {
                    let readers = pairs.iter().filter(|(_, src)| *src == pairs[i].1).count();
                    let take = readers == 1 && pairs[i].1.is_some_and(|src| !self.live.is_live_after(src, p));
                    self.do_move(left[i], saved.get(&i), take);
                }
            }
        }
    }

    /// Returns whether a move copies storage to itself.
    fn is_nothing(&self, m: &Move) -> bool {
        match m {
            Move::Reg { dst, src } => self.live.same(Storage::Reg(*dst), Storage::Reg(*src)),
            Move::Stack { dst, src } => self.live.same(Storage::Stack(*dst), Storage::Stack(*src)),
            Move::Slot { dst, src } => self.live.same(Storage::Slot(*dst), Storage::Slot(*src)),
            Move::Tensor { dst, src } => match (dst.storage(), src.storage()) {
                (Some(d), Some(s)) => {
                    let same_base = matches!(src.base, Base::Buffer(_)) && self.live.same(d, s);
                    same_base && View { base: dst.base, ..src.clone() }.same_places(dst)
                }
                _ => false,
            },
        }
    }

    fn save(&mut self, m: &Move, p: usize) -> SavedSource {
        match m {
            Move::Reg { src, .. } => {
                let dst = Reg(self.new_number(NumberOf::Regs));
                let src = self.reg(*src);
                self.code.push(Instr::Move { dst, src });
                SavedSource::Reg(dst)
            }
            Move::Tensor { src, .. } => {
                let id = BufferId(self.new_number(NumberOf::Buffers));
                let view = View::whole(Base::Buffer(id), src.dtype, src.shape.clone());
                self.requests.push(Request { bytes: view.n_bytes(), live: (2 * p as u32, 2 * p as u32 + 1) });
                self.element_sizes.push(usize::MAX);
                let src = self.view(src.clone());
                self.copy(src, view.clone());
                SavedSource::View(view)
            }
            Move::Stack { src, .. } => {
                let dst = StackId(self.new_number(NumberOf::Stacks));
                self.stack_types.push(self.draft.stacks[src.index()].clone());
                let src = self.stack(*src);
                self.code.push(Instr::StackMove { dst, src, take: false });
                SavedSource::Stack(dst)
            }
            Move::Slot { src, .. } => {
                let dst = SlotId(self.new_number(NumberOf::Slots));
                let src = self.slot(*src);
                self.code.push(Instr::SlotMove { dst, src });
                SavedSource::Slot(dst)
            }
        }
    }

    fn do_move(&mut self, m: &Move, saved: Option<&SavedSource>, take: bool) {
        match m {
            Move::Reg { dst, src } => {
                let src = if let Some(SavedSource::Reg(r)) = saved { *r } else { self.reg(*src) };
                let dst = self.reg(*dst);
                self.code.push(Instr::Move { dst, src });
            }
            Move::Tensor { dst, src } => {
                let src = if let Some(SavedSource::View(v)) = saved { v.clone() } else { self.view(src.clone()) };
                let dst = self.view(dst.clone());
                self.copy(src, dst);
            }
            Move::Stack { dst, src } => {
                let (src, take) = match saved {
                    Some(SavedSource::Stack(s)) => (*s, true),
                    _ => (self.stack(*src), take),
                };
                let dst = self.stack(*dst);
                let take = take && self.stack_types[dst.index()] == self.stack_types[src.index()];
                self.code.push(Instr::StackMove { dst, src, take });
            }
            Move::Slot { dst, src } => {
                let src = if let Some(SavedSource::Slot(s)) = saved { *s } else { self.slot(*src) };
                let dst = self.slot(*dst);
                self.code.push(Instr::SlotMove { dst, src });
            }
        }
    }

    fn copy(&mut self, src: View, dst: View) {
        let kernel = Kernel::Copy(Copy::new(&src, &dst));
        let (operands, out) = (vec![TensorOperand::View(src)], Out::View(dst));
        let cost = OpCost::default();
        self.tensor_ops.push(TensorOp { kernel, operands, out, meaning: None, cost, name: "move", loc: Loc::UNKNOWN });
        self.code.push(Instr::Run(TensorOpId(self.tensor_ops.len() as u32 - 1)));
    }

    /// Returns an index that belongs to no class of the draft. Its key is beyond the draft's
    /// storage.
    fn new_number(&mut self, of: NumberOf) -> u32 {
        let fresh = |numbers: &StorageIndices| u32::MAX - numbers.of.len() as u32;
        match of {
            NumberOf::Regs => {
                let key = Storage::Reg(Reg(fresh(&self.regs)));
                self.regs.get(key)
            }
            NumberOf::Buffers => {
                let key = Storage::Buffer(BufferId(fresh(&self.buffers)));
                self.buffers.get(key)
            }
            NumberOf::Stacks => {
                let key = Storage::Stack(StackId(fresh(&self.stacks)));
                self.stacks.get(key)
            }
            NumberOf::Slots => {
                let key = Storage::Slot(SlotId(fresh(&self.slots)));
                self.slots.get(key)
            }
        }
    }
}

/// A saved source of a move.
enum SavedSource {
    Reg(Reg),
    View(View),
    Stack(StackId),
    Slot(SlotId),
}

#[derive(Clone, Copy)]
enum NumberOf {
    Regs,
    Buffers,
    Stacks,
    Slots,
}
