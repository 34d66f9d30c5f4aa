//! The executor: a loop over the instructions of a plan.

use super::lists::Scratch;
use super::profile::{PlanProfile, PlanWork};
use super::{
    Base, BufferId, Instr, LoopSpan, Out, Plan, PushCount, Reg, SlotId, StackId, TensorOp, TensorOpId, TensorOperand,
    TripCount, View, reg_view, registers,
};
use crate::cpu::element::{CpuElement, bytes_of, bytes_of_mut, reg_to_scalar, scalar_to_reg, to_buffer, write_buffer};
use crate::cpu::kernels::index;
use crate::cpu::kernels::{self, Kernel, reference};
use crate::cpu::memory::counted::CountedVec;
use crate::cpu::memory::list::ListStorage;
use crate::cpu::memory::results::ResultPool;
use crate::cpu::memory::stack::{NoMemory, StackStorage};
use crate::cpu::memory::{
    Arena, BufferLocation, ExternalTensors, MAX_WRITTEN, Memory, Sources, Variables, Vars, VarsMut,
};
use crate::cpu::native::MAX_BASES;
use crate::threads;
use anabranch_dsl::interp::{self, RunContext};
use anabranch_dsl::memory::{OutOfMemory, SMALLER};
use anabranch_dsl::passes::Limit;
use anabranch_dsl::{Buffer, DType, Diagnostic, ErrorKind, HostTensor, Loc, Result, TensorType, Type, memory};
use rustc_hash::FxHashMap;
use std::borrow::BorrowMut;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Instant;

/// The memory of a running step, reused by later steps of the same plan.
pub(crate) struct Context {
    arena: Arena,
    /// Memory of the results. An entry is empty while the caller owns its memory.
    results: Vec<Buffer>,
    pub(crate) regs: Vec<u64>,
    /// The stacks. Entries of lists are empty.
    pub(crate) stacks: Vec<StackStorage>,
    /// The lists, indexed as the stacks.
    pub(crate) lists: Vec<Option<ListStorage>>,
    /// Memory for the stacks of loops in lanes that do not stay, by the end of the loop.
    pub(crate) lane_memory: FxHashMap<u32, Vec<Vec<CountedVec<u64>>>>,
    pub(super) slots: Vec<Option<HostTensor>>,
    pub(super) scratch: Scratch,
    /// The results of an operation on a queue that are not stored yet.
    queue_results: VecDeque<HostTensor>,
    /// Placeholders for variables while they are written.
    spare: Vec<HostTensor>,
    /// The inputs and outputs that are stacks and lists, by position.
    pub(crate) stack_inputs: Vec<Option<StackOrList>>,
    pub(crate) stack_outputs: Vec<Option<StackOrList>>,
    /// The times of a run that is profiled.
    pub(crate) profile: Option<Box<PlanProfile>>,
}

/// A stack or list that is an input or output of a subgraph.
pub(crate) enum StackOrList {
    Stack(interp::Stack),
    List(ListStorage),
}

impl Context {
    /// Allocates memory for a plan. The error refers to the largest value if the system lacks
    /// memory for the arena, or for copies of the outputs besides it.
    pub(crate) fn new(plan: &Plan) -> Result<Context> {
        let n_output_bytes = plan.n_output_bytes();
        let arena = Arena::new(plan.arena_bytes);
        let (Some(arena), Ok(())) = (arena, memory::check_system(n_output_bytes as u128)) else {
            return Err(plan.too_large());
        };
        Ok(Context {
            arena,
            results: plan.results.iter().map(|_| NO_MEMORY).collect(),
            regs: plan.registers.clone(),
            stacks: plan.stacks.iter().map(|ty| StackStorage::new(ty.element())).collect(),
            lists: plan.stacks.iter().map(list_of).collect(),
            lane_memory: FxHashMap::default(),
            slots: vec![None; plan.n_slots],
            scratch: Scratch::default(),
            queue_results: VecDeque::new(),
            spare: vec![
                HostTensor::zeros(DType::U8, [0]);
                plan.updates.iter().map(|u| u.vars.len()).max().unwrap_or(0)
            ],
            stack_inputs: Vec::new(),
            stack_outputs: Vec::new(),
            profile: None,
        })
    }

    /// Frees what stacks, lists and scratch memory have grown to.
    pub(crate) fn free_grown(&mut self, plan: &Plan) {
        self.scratch = Scratch::default();
        self.stacks = plan.stacks.iter().map(|ty| StackStorage::new(ty.element())).collect();
        self.lists = plan.stacks.iter().map(list_of).collect();
    }

    /// Returns the addresses of tensors, those of buffers for writing. The rest is null.
    fn addresses(&mut self, plan: &Plan, foreign: ExternalTensors<'_>, bases: &[Base]) -> [*mut u8; MAX_BASES] {
        let mut addresses = [std::ptr::null_mut(); MAX_BASES];
        let arena = self.arena.bytes_mut().as_mut_ptr();
        for (address, base) in addresses.iter_mut().zip(bases) {
            *address = match base {
                Base::Buffer(b) => match &plan.regions[b.index()] {
                    // The range is inside of the arena.
                    BufferLocation::Arena(range) => arena.wrapping_add(range.start),
                    BufferLocation::Result(i) => bytes_of_mut(&mut self.results[*i as usize]).as_mut_ptr(),
                },
                Base::Input(i) => bytes_of(foreign.inputs[*i as usize].buffer()).as_ptr().cast_mut(),
                Base::Constant(i) => bytes_of(foreign.constants[*i as usize].buffer()).as_ptr().cast_mut(),
                Base::Var(i) => bytes_of(foreign.vars.get(*i as usize).buffer()).as_ptr().cast_mut(),
                Base::Reg(_) => panic!("a register has no address"),
            };
        }
        addresses
    }

    fn memory<'a>(&'a mut self, plan: &'a Plan, foreign: ExternalTensors<'a>) -> Memory<'a> {
        Memory {
            arena: self.arena.bytes_mut(),
            results: &mut self.results,
            regs: &mut self.regs,
            regions: &plan.regions,
            foreign,
        }
    }

    pub(crate) fn sources<'a>(&'a self, plan: &'a Plan, foreign: ExternalTensors<'a>) -> Sources<'a> {
        Sources::new(self.arena.bytes(), &self.results, &self.regs, &plan.regions, foreign)
    }

    /// Gives up the tensors in slots, which may be of somebody else or keep large records.
    /// Returns the time, if the run is profiled.
    fn now(&self) -> Option<Instant> {
        self.profile.as_ref().map(|_| Instant::now())
    }

    /// Notes work that has begun at a time, if the run is profiled, and ends now.
    fn note(&mut self, work: PlanWork, begin: Option<Instant>) {
        if let (Some(profile), Some(begin)) = (&mut self.profile, begin) {
            profile.add(work, begin);
        }
    }

    pub(crate) fn release_slots(&mut self) {
        self.slots.fill(None);
    }

    /// Allocates memory for the results where it is missing.
    fn prepare(&mut self, plan: &Plan, pool: &ResultPool) -> Result<()> {
        for (i, buffer) in self.results.iter_mut().enumerate() {
            let (view, _) = plan.result(i);
            let n = view.size();
            if buffer.len() != n || buffer.dtype() != view.dtype {
                *buffer = pool.take(view.dtype, n).ok_or_else(|| plan.too_large())?;
            }
        }
        Ok(())
    }
}

impl TripCount {
    /// Returns the number of iterations of a loop that begins, or `None` if it does not end by
    /// counting.
    pub(crate) fn trips(&self, regs: &[u64]) -> Option<usize> {
        let number = |r: Reg| match self.count.dtype {
            DType::I32 => i64::from(i32::from_reg(regs[r.index()])),
            _ => i64::from_reg(regs[r.index()]),
        };
        let limit = match (self.count.limit, self.limit) {
            (Limit::Number(limit), _) => limit,
            (Limit::Before(_), limit) => number(limit.expect("a bound that is not a number is in a register")),
        };
        usize::try_from(self.count.trips(number(self.first), limit)?).ok()
    }
}

impl PushCount {
    /// Returns the number of elements that the loop will push.
    fn elements(&self, regs: &[u64]) -> usize {
        self.trips.trips(regs).unwrap_or(0).saturating_mul(self.in_each)
    }
}

/// The placeholder for memory that was moved out.
const NO_MEMORY: Buffer = Buffer::U8(Vec::new());

impl Plan {
    fn n_output_bytes(&self) -> usize {
        let outputs = self.outputs.iter().map(|(o, _)| if let TensorOperand::View(v) = o { v.n_bytes() } else { 0 });
        outputs.fold(0, usize::saturating_add)
    }

    /// Returns the bytes of the arena and of the outputs.
    pub(crate) fn working_bytes(&self) -> usize {
        self.arena_bytes.saturating_add(self.n_output_bytes())
    }

    /// Returns the error of a plan that does not fit in memory.
    pub(crate) fn too_large(&self) -> Diagnostic {
        let bytes = self.working_bytes();
        let error = Diagnostic::new(format!("out of memory: `{}` needs {bytes} bytes", self.name))
            .of_kind(ErrorKind::ResourceExhausted);
        let views =
            self.tensor_ops.iter().filter_map(|op| if let Out::View(v) = &op.out { Some((op, v)) } else { None });
        match views.max_by_key(|(_, view)| view.n_bytes()) {
            Some((op, view)) => error.at(op.loc, format!("the largest value: {}{:?}", view.dtype, view.shape)),
            None => error,
        }
        .help(SMALLER)
    }

    /// Runs the instructions. Afterwards the context holds the outputs and the new values of
    /// variables.
    pub(crate) fn run(
        &self,
        cx: &mut Context,
        inputs: &[HostTensor],
        vars: Vars<'_>,
        run_context: RunContext<'_>,
        pool: &ResultPool,
    ) -> Result<()> {
        cx.prepare(self, pool)?;
        let foreign = ExternalTensors { inputs, constants: &self.constants, vars };
        threads::stop::within(run_context.stop, || self.run_code(cx, foreign, run_context))
    }

    fn run_code(&self, cx: &mut Context, foreign: ExternalTensors<'_>, run_context: RunContext<'_>) -> Result<()> {
        let code = &self.code[..];
        let mut pc = 0;
        loop {
            pc = registers::run(code, &mut cx.regs, pc, run_context.stop);
            let Some(instr) = code.get(pc) else {
                return Ok(());
            };
            if let Some(kind) = run_context.stop.get() {
                return Err(self.stopped(kind, pc));
            }
            let begin = cx.now();
            match instr {
                Instr::Native { function, .. } => {
                    let next = self.run_native(cx, *function, foreign, run_context);
                    cx.note(PlanWork::Instr(pc), begin);
                    pc = next;
                    continue;
                }
                Instr::Lanes { program, entry, native } => {
                    let program = &self.lanes[*program as usize];
                    let next = match native {
                        _ if program.run(self, cx, foreign, run_context.stop) => program.end(),
                        Some(function) => self.run_native(cx, *function, foreign, run_context),
                        None => *entry as usize,
                    };
                    cx.note(PlanWork::Instr(pc), begin);
                    pc = next;
                    continue;
                }
                Instr::Run(op) => self.run_op(cx, &self.tensor_ops[op.index()], foreign, run_context)?,
                Instr::RunParallel(ops) => self.together(cx, ops, foreign)?,
                Instr::Require { op, .. } | Instr::RequireIndex { op, .. } => {
                    return Err(self.failure(cx, &self.tensor_ops[op.index()], foreign));
                }
                Instr::Assert { op, .. } => {
                    let op = &self.tensor_ops[op.index()];
                    let Kernel::Assert(message) = &op.kernel else { panic!("an assertion without a message") };
                    let message = message.render(&self.operands(cx, op, foreign)?);
                    return Err(interp::assertion_failed(&message, op.loc));
                }
                Instr::CheckFinite(op) => self.check_finite(cx, &self.tensor_ops[op.index()], foreign)?,
                Instr::StackNew(s) => cx.stacks[s.index()].clear(),
                Instr::StackZeros(s) => cx.stacks[s.index()].set_zeros(),
                Instr::StackInput { stack, input } => {
                    let i = stack.index();
                    match (
                        cx.stack_inputs[*input as usize].take().expect("the caller passed a stack"),
                        &mut cx.lists[i],
                    ) {
                        (StackOrList::Stack(given), _) => cx.stacks[i].set(given),
                        (StackOrList::List(given), Some(list)) => {
                            list.set(given).map_err(|missing| no_memory_for_list(&self.name, missing))?
                        }
                        (StackOrList::List(_), None) => panic!("{stack:?} is not a list"),
                    }
                }
                Instr::StackOutput { stack, output } => {
                    let (i, ty) = (stack.index(), &self.stacks[stack.index()]);
                    let given = match list_of(ty) {
                        Some(empty) => StackOrList::List(cx.lists[i].replace(empty).expect("the output is a list")),
                        None => {
                            cx.stacks[i].join_segments().map_err(|e| self.no_memory(e, Loc::UNKNOWN))?;
                            let stack = cx.stacks[i].to_host(ty.element());
                            StackOrList::Stack(stack.map_err(|e| self.no_memory(e, Loc::UNKNOWN))?)
                        }
                    };
                    cx.stack_outputs[*output as usize] = Some(given);
                }
                Instr::StackMove { dst, src, take } if matches!(self.stacks[dst.index()], Type::List(_)) => {
                    move_list(&mut cx.lists, *dst, *src, *take)
                        .map_err(|missing| no_memory_for_list(&self.name, missing))?;
                }
                Instr::StackMove { dst, src, take } => {
                    move_stack(&mut cx.stacks, *dst, *src, *take).map_err(|e| self.no_memory(e, Loc::UNKNOWN))?;
                }
                Instr::List { list, other, op } => {
                    self.list_op(cx, *list, *other, &self.tensor_ops[op.index()], foreign)?;
                }
                Instr::StackReserve { stack, pushed } => {
                    cx.stacks[stack.index()].prepare(pushed.elements(&cx.regs));
                }
                Instr::StackPush { stack, op } => self.push(cx, *stack, &self.tensor_ops[op.index()], foreign)?,
                Instr::StackPop { stack, op } => self.pop(cx, *stack, &self.tensor_ops[op.index()])?,
                Instr::StackZero(s) => {
                    cx.stacks[s.index()].zero().map_err(|e| self.no_memory(e, Loc::UNKNOWN))?;
                }
                Instr::StackAdd { dst, src, op } => {
                    let [dst, src] = cx
                        .stacks
                        .get_disjoint_mut([dst.index(), src.index()])
                        .expect("a stack is not added to itself in place");
                    let loc = self.tensor_ops[op.index()].loc;
                    src.own_all().and(dst.own_all()).map_err(|e| self.no_memory(e, loc))?;
                    if !dst.is_addable(src) {
                        return Err(interp::stacks_differ(dst.len(), src.len(), loc));
                    }
                    dst.add(src).map_err(|e| self.no_memory(e, loc))?;
                }
                Instr::SlotMove { dst, src } => cx.slots[dst.index()] = cx.slots[src.index()].clone(),
                Instr::Unary { .. }
                | Instr::Binary { .. }
                | Instr::Select { .. }
                | Instr::Move { .. }
                | Instr::Jump { .. }
                | Instr::JumpIf { .. }
                | Instr::JumpUnless { .. }
                | Instr::JumpCompare { .. } => panic!("{instr:?} was left over"),
            }
            cx.note(PlanWork::Instr(pc), begin);
            // Its result may be incomplete.
            if let Some(kind) = run_context.stop.get() {
                return Err(self.stopped(kind, pc));
            }
            pc += 1;
        }
    }

    /// Runs a function of native code. Returns the index of the next instruction.
    fn run_native(
        &self,
        cx: &mut Context,
        function: u32,
        foreign: ExternalTensors<'_>,
        run_context: RunContext<'_>,
    ) -> usize {
        let native = self.native.as_ref().expect("the plan has native code");
        let bases = native.bases(function);
        let addresses = cx.addresses(self, foreign, bases);
        let addresses = &addresses[..bases.len()];
        let (regs, stacks) = (&mut cx.regs, &mut cx.stacks);
        // SAFETY: the addresses are those of this run. The context is borrowed, and `foreign` is
        // shared, so nothing else writes there.
        unsafe { native.run(function, regs, stacks, addresses, run_context.stop) }
    }

    /// Returns the error of a run that was stopped at instruction `pc`.
    fn stopped(&self, kind: ErrorKind, pc: usize) -> Diagnostic {
        let mut around: Vec<&LoopSpan> = self.loops.iter().filter(|l| l.code.contains(&(pc as u32))).collect();
        around.sort_by_key(|l| l.code.len());
        let next = match self.code[pc] {
            Instr::Run(op) | Instr::Assert { op, .. } | Instr::Require { op, .. } | Instr::RequireIndex { op, .. } => {
                self.tensor_ops[op.index()].loc
            }
            Instr::RunParallel(ref ops) => self.tensor_ops[ops[0].index()].loc,
            _ => Loc::UNKNOWN,
        };
        interp::stopped(kind, &self.name, around.iter().map(|l| l.loc), next)
    }

    fn run_op(
        &self,
        cx: &mut Context,
        op: &TensorOp,
        foreign: ExternalTensors<'_>,
        run_context: RunContext<'_>,
    ) -> Result<()> {
        match &op.kernel {
            Kernel::Print(stream, template) => {
                (run_context.print)(*stream, &template.render(&self.operands(cx, op, foreign)?));
                Ok(())
            }
            Kernel::Queue(queue, queue_op) => {
                let operands = self.operands(cx, op, foreign)?;
                let results = run_context.queues.run(*queue, *queue_op, operands, op.loc)?;
                cx.queue_results = results.into();
                match op.out {
                    Out::Nothing => Ok(()),
                    _ => self.store_queue_result(cx, op),
                }
            }
            Kernel::QueueResult => self.store_queue_result(cx, op),
            Kernel::File(file_op) => {
                let operands = self.operands(cx, op, foreign)?;
                match run_context.files.run(file_op, operands, op.loc)?.pop() {
                    Some(restored) => self.store(cx, op, restored),
                    None => Ok(()),
                }
            }
            Kernel::Reference => {
                let operands = self.operands(cx, op, foreign)?;
                let result = reference::eval(op, &operands)?;
                self.store(cx, op, result)
            }
            Kernel::AddAtEnd(_) | Kernel::CheckIndices { .. } => {
                let (ids, extent) = match &op.kernel {
                    Kernel::AddAtEnd(places) => (op.operands[1].view(), places.extent()),
                    Kernel::CheckIndices { extent } => (op.operands[0].view(), *extent),
                    _ => unreachable!("matched above"),
                };
                let outcome = index::check(ids, extent, &cx.sources(self, foreign));
                outcome.map_err(|kernels::KernelFailed| self.failure(cx, op, foreign))
            }
            Kernel::ToSlot | Kernel::FromSlot => {
                let tensor = self.try_host(cx, op, &op.operands[0], foreign)?;
                self.store(cx, op, tensor)
            }
            _ => {
                let outcome = match &op.out {
                    Out::Views(outs) => {
                        let Kernel::Rows(rows) = &op.kernel else { panic!("`{}` has one result", op.name) };
                        let mut buffers = [BufferId(0); MAX_WRITTEN];
                        for (buffer, out) in buffers.iter_mut().zip(outs) {
                            let Base::Buffer(b) = out.base else { panic!("an operation writes {:?}", out.base) };
                            *buffer = b;
                        }
                        let mut memory = cx.memory(self, foreign);
                        memory.with_split(&buffers[..outs.len()], |outs, sources| {
                            rows.run(&op.operands, outs, sources);
                        });
                        Ok(())
                    }
                    Out::View(out) => {
                        let Base::Buffer(b) = out.base else { panic!("an operation writes {:?}", out.base) };
                        let mut memory = cx.memory(self, foreign);
                        let (out, sources) = memory.split(b);
                        kernels::run(op, out, &sources)
                    }
                    Out::Reg(r, dtype) => {
                        let mut element = [0u64];
                        let out = &mut bytemuck::cast_slice_mut(&mut element)[..dtype.size()];
                        let outcome = kernels::run(op, out, &cx.sources(self, foreign));
                        cx.regs[r.index()] = element[0];
                        outcome
                    }
                    Out::Slot(_) | Out::Nothing => panic!("`{}` writes no bytes", op.name),
                };
                outcome.map_err(|kernels::KernelFailed| self.failure(cx, op, foreign))
            }
        }
    }

    /// Stores the next result of an operation on a queue.
    fn store_queue_result(&self, cx: &mut Context, op: &TensorOp) -> Result<()> {
        let result = cx.queue_results.pop_front().expect("the operation has this result");
        self.store(cx, op, result)
    }

    /// Runs tensor operations in parallel.
    fn together(&self, cx: &mut Context, ids: &[TensorOpId], foreign: ExternalTensors<'_>) -> Result<()> {
        let mut buffers = [BufferId(0); MAX_WRITTEN];
        for (buffer, id) in buffers.iter_mut().zip(ids) {
            let Out::View(View { base: Base::Buffer(b), .. }) = self.tensor_ops[id.index()].out else {
                panic!("{id:?} writes no view of a buffer")
            };
            *buffer = b;
        }
        let mut memory = cx.memory(self, foreign);
        let outcome = memory
            .with_split(&buffers[..ids.len()], |mut outs, sources| self.run_all(ids, &mut outs[..ids.len()], sources));
        outcome.map_err(|id| self.failure(cx, &self.tensor_ops[id.index()], foreign))
    }

    /// Runs tensor operations in parallel. Returns the first operation that fails.
    fn run_all(&self, ids: &[TensorOpId], outs: &mut [&mut [u8]], sources: &Sources<'_>) -> Result<(), TensorOpId> {
        if let ([id], [out]) = (ids, &mut *outs) {
            return kernels::run(&self.tensor_ops[id.index()], out, sources).map_err(|kernels::KernelFailed| *id);
        }
        let half = ids.len() / 2;
        let (first, second) = (ids.split_at(half), outs.split_at_mut(half));
        let (a, b) =
            threads::join(|| self.run_all(first.0, second.0, sources), || self.run_all(first.1, second.1, sources));
        a.and(b)
    }

    /// Returns the value of an operand as a separate tensor.
    fn host(&self, cx: &Context, operand: &TensorOperand, foreign: ExternalTensors<'_>) -> HostTensor {
        match operand {
            TensorOperand::View(View { base: Base::Reg(r), dtype, shape, .. }) if shape.is_empty() => {
                reg_to_scalar(cx.regs[r.index()], *dtype)
            }
            // Handles to the same tensor share its memory.
            TensorOperand::View(v @ View { base: Base::Input(i), .. })
                if v.is_contiguous() && v.size() == foreign.inputs[*i as usize].len() =>
            {
                foreign.inputs[*i as usize].reshaped(&v.shape[..])
            }
            TensorOperand::View(v) if !v.dtype.is_plain() => foreign.tensor(v.base).clone(),
            TensorOperand::View(v) => cx.sources(self, foreign).host(v),
            TensorOperand::Slot(s) => slot(cx, *s).clone(),
        }
    }

    /// Returns an operand as a separate tensor, if there is memory for it: a view may have far more
    /// elements than the tensor it refers to.
    fn try_host(
        &self,
        cx: &Context,
        op: &TensorOp,
        operand: &TensorOperand,
        foreign: ExternalTensors<'_>,
    ) -> Result<HostTensor> {
        if let TensorOperand::View(v) = operand {
            let ty = TensorType::new(v.dtype, &v.shape[..]);
            memory::check(v.n_bytes() as u128).map_err(|missing| interp::no_memory(op.name, &ty, missing, op.loc))?;
        }
        Ok(self.host(cx, operand, foreign))
    }

    pub(super) fn operands(
        &self,
        cx: &Context,
        op: &TensorOp,
        foreign: ExternalTensors<'_>,
    ) -> Result<Vec<HostTensor>> {
        op.operands.iter().map(|o| self.try_host(cx, op, o, foreign)).collect()
    }

    /// Returns the reference implementation's error for an operation whose kernel failed.
    fn failure(&self, cx: &Context, op: &TensorOp, foreign: ExternalTensors<'_>) -> Diagnostic {
        match self.operands(cx, op, foreign).and_then(|operands| reference::eval(op, &operands)) {
            Err(error) => error,
            Ok(_) => panic!("the kernel of `{}` failed where its reference does not", op.name),
        }
    }

    /// Writes a host tensor to the destination of an operation.
    pub(super) fn store(&self, cx: &mut Context, op: &TensorOp, tensor: HostTensor) -> Result<()> {
        match &op.out {
            Out::Slot(s) => cx.slots[s.index()] = Some(tensor),
            Out::Reg(r, _) => {
                fits(op, &tensor, &[])?;
                cx.regs[r.index()] = scalar_to_reg(&tensor);
            }
            Out::View(v) => {
                fits(op, &tensor, &v.shape)?;
                let Base::Buffer(b) = v.base else { panic!("an operation writes {:?}", v.base) };
                self.buffer_mut(cx, b).copy_from_slice(bytes_of(tensor.buffer()));
            }
            Out::Nothing | Out::Views(_) => panic!("`{}` has not one result", op.name),
        }
        Ok(())
    }

    pub(crate) fn buffer_mut<'a>(&self, cx: &'a mut Context, b: BufferId) -> &'a mut [u8] {
        self.region_mut(&mut cx.arena, &mut cx.results, b)
    }

    fn region_mut<'a>(&self, arena: &'a mut Arena, results: &'a mut [Buffer], b: BufferId) -> &'a mut [u8] {
        match &self.regions[b.index()] {
            BufferLocation::Arena(range) => &mut arena.bytes_mut()[range.clone()],
            BufferLocation::Result(i) => bytes_of_mut(&mut results[*i as usize]),
        }
    }

    fn check_finite(&self, cx: &Context, op: &TensorOp, foreign: ExternalTensors<'_>) -> Result<()> {
        let result = match &op.out {
            Out::View(v) => cx.sources(self, foreign).host(v),
            Out::Slot(s) => slot(cx, *s).clone(),
            Out::Reg(r, dtype) => cx.sources(self, foreign).host(&reg_view(*r, *dtype)),
            Out::Nothing | Out::Views(_) => return Ok(()),
        };
        if interp::is_finite(&result) {
            return Ok(());
        }
        reference::check_finite(op, &self.operands(cx, op, foreign)?, &result)
    }

    /// Returns the error of a loop whose saved values do not fit in memory.
    fn no_memory(&self, NoMemory { bytes }: NoMemory, loc: Loc) -> Diagnostic {
        let name = &self.name;
        Diagnostic::new(format!(
            "out of memory: `{name}` needs {bytes} bytes for values that a loop saves for its gradient"
        ))
        .of_kind(ErrorKind::ResourceExhausted)
        .at(loc, "saved here in each iteration")
        .help("put the body into a `checkpoint`, call `checkpoint_loop`, or run fewer iterations")
    }

    fn push(&self, cx: &mut Context, stack: StackId, op: &TensorOp, foreign: ExternalTensors<'_>) -> Result<()> {
        let mut to = std::mem::take(&mut cx.stacks[stack.index()]);
        let outcome = match &op.operands[0] {
            TensorOperand::View(v) if !to.is_dynamic() => {
                to.push(v, &cx.sources(self, foreign)).map_err(|e| self.no_memory(e, op.loc))
            }
            operand => self.try_host(cx, op, operand, foreign).and_then(|tensor| {
                let element = self.stacks[stack.index()].element();
                if element.compatible(&tensor.ty()) {
                    to.push_host(tensor).map_err(|e| self.no_memory(e, op.loc))
                } else {
                    let message = format!("{} cannot be pushed to a stack of {element}", tensor.ty());
                    Err(Diagnostic::new(message)
                        .at(op.loc, "pushed here")
                        .help("push tensors of the type of the elements"))
                }
            }),
        };
        cx.stacks[stack.index()] = to;
        outcome
    }

    fn pop(&self, cx: &mut Context, stack: StackId, op: &TensorOp) -> Result<()> {
        if !cx.stacks[stack.index()].is_poppable() {
            return Err(interp::empty_stack(op.loc));
        }
        cx.stacks[stack.index()].join_segments().map_err(|e| self.no_memory(e, op.loc))?;
        if cx.stacks[stack.index()].is_dynamic() {
            let tensor = cx.stacks[stack.index()].pop_host();
            return self.store(cx, op, tensor);
        }
        match &op.out {
            Out::View(v) => {
                let Base::Buffer(b) = v.base else { panic!("an operation writes {:?}", v.base) };
                let Context { arena, results, stacks, .. } = cx;
                stacks[stack.index()].pop(self.region_mut(arena, results, b));
            }
            Out::Reg(r, dtype) => {
                let mut element = [0u64];
                let size = dtype.size();
                cx.stacks[stack.index()].pop(&mut bytemuck::cast_slice_mut(&mut element)[..size]);
                cx.regs[r.index()] = element[0];
            }
            Out::Slot(_) | Out::Nothing | Out::Views(_) => {
                panic!("the element of a stack of known shapes has a known place")
            }
        }
        Ok(())
    }

    /// Returns the outputs of a run as separate tensors and commits the new values of variables.
    /// The caller receives the memory of results, which later returns to the pool.
    pub(crate) fn finish(
        &self,
        cx: &mut Context,
        inputs: &[HostTensor],
        vars: &mut (impl Variables + ?Sized),
        pool: &Arc<ResultPool>,
    ) -> Vec<HostTensor> {
        let foreign = ExternalTensors { inputs, constants: &self.constants, vars: vars.values() };
        if self.results.is_empty() {
            let outputs = self.outputs.iter().map(|(operand, _)| self.host(cx, operand, foreign)).collect();
            self.commit(cx, inputs, vars);
            return outputs;
        }
        let copied = |(i, (operand, _)): (usize, &(TensorOperand, TensorType))| match self.is_result(i, operand) {
            Some(_) => None,
            None => Some(self.host(cx, operand, foreign)),
        };
        let mut outputs: Vec<Option<HostTensor>> = self.outputs.iter().enumerate().map(copied).collect();
        self.commit(cx, inputs, vars);
        for (k, &i) in self.results.iter().enumerate() {
            let memory = std::mem::replace(&mut cx.results[k], NO_MEMORY);
            outputs[i] = Some(HostTensor::lent(self.result(k).0.shape.clone(), memory, pool.clone()));
        }
        outputs.into_iter().map(|o| o.expect("an output is copied or a result")).collect()
    }

    /// Writes the outputs of a run into tensors returned by an earlier call, and commits variables.
    ///
    /// Results are swapped with these tensors, so that the next run reuses their memory. Other
    /// outputs are copied. Tensors of another type are replaced.
    pub(crate) fn finish_into(
        &self,
        cx: &mut Context,
        inputs: &[HostTensor],
        vars: &mut (impl Variables + ?Sized),
        pool: &Arc<ResultPool>,
        to: &mut [impl BorrowMut<HostTensor>],
    ) {
        let foreign = ExternalTensors { inputs, constants: &self.constants, vars: vars.values() };
        assert_eq!(to.len(), self.outputs.len(), "there is a tensor for each output");
        for (i, ((operand, _), to)) in self.outputs.iter().zip(&mut *to).enumerate() {
            let to: &mut HostTensor = to.borrow_mut();
            match operand {
                _ if self.is_result(i, operand).is_some() => {}
                TensorOperand::View(v) if to.dtype() == v.dtype && to.shape() == v.shape && v.size() == 0 => {}
                TensorOperand::View(v) if to.dtype() == v.dtype && to.shape() == v.shape && v.is_contiguous() => {
                    let size = v.dtype.size();
                    let bytes = &cx.sources(self, foreign).bytes(v.base)[v.offset * size..][..v.n_bytes()];
                    write_buffer(to.buffer_mut(), bytes);
                }
                _ => *to = self.host(cx, operand, foreign),
            }
        }
        self.commit(cx, inputs, vars);
        for (k, &i) in self.results.iter().enumerate() {
            let (view, to): (&View, &mut HostTensor) = (self.result(k).0, to[i].borrow_mut());
            let fits = to.dtype() == view.dtype && to.shape() == view.shape;
            match to.own_buffer_mut().filter(|_| fits) {
                Some(buffer) => std::mem::swap(buffer, &mut cx.results[k]),
                None => {
                    let memory = std::mem::replace(&mut cx.results[k], NO_MEMORY);
                    *to = HostTensor::lent(view.shape.clone(), memory, pool.clone());
                }
            }
        }
    }

    /// Returns the index of the result that an output is, if it was computed in the caller's
    /// memory.
    fn is_result(&self, output: usize, operand: &TensorOperand) -> Option<usize> {
        let TensorOperand::View(View { base: Base::Buffer(b), .. }) = operand else { return None };
        match self.regions[b.index()] {
            BufferLocation::Result(k) if self.results[k as usize] == output => Some(k as usize),
            _ => None,
        }
    }

    /// Commits the new values of variables.
    fn commit(&self, cx: &mut Context, inputs: &[HostTensor], vars: &mut (impl Variables + ?Sized)) {
        let assigns = !(self.updates.is_empty() && self.assigns.is_empty() && self.additions.is_empty());
        if assigns {
            vars.commit(|vars| self.write_vars(cx, inputs, vars));
        }
    }

    fn write_vars(&self, cx: &mut Context, inputs: &[HostTensor], mut vars: VarsMut<'_>) {
        for (i, update) in self.updates.iter().enumerate() {
            let begin = cx.now();
            // Variables that are being written are swapped with placeholders.
            for (spare, &var) in cx.spare.iter_mut().zip(&update.vars) {
                std::mem::swap(spare, vars.tensor_mut(var));
            }
            let mut spare = std::mem::take(&mut cx.spare);
            let foreign = ExternalTensors { inputs, constants: &self.constants, vars: vars.shared() };
            let outs = spare.iter_mut().take(update.vars.len()).map(|t| bytes_of_mut(unshared(t)));
            // A function of another crate may panic. The variables must not stay placeholders then.
            let run = || update.map.run(&update.operands, outs, &cx.sources(self, foreign));
            let outcome = catch_unwind(AssertUnwindSafe(run));
            cx.spare = spare;
            for (spare, &var) in cx.spare.iter_mut().zip(&update.vars) {
                std::mem::swap(spare, vars.tensor_mut(var));
            }
            outcome
                .unwrap_or_else(|panic| resume_unwind(panic))
                .unwrap_or_else(|kernels::KernelFailed| panic!("an update of variables cannot fail"));
            cx.note(PlanWork::Update(i), begin);
        }
        let foreign = ExternalTensors { inputs, constants: &self.constants, vars: Vars::Tensors(&[]) };
        for assign in &self.assigns {
            let begin = cx.now();
            let tensor = vars.tensor_mut(assign.var);
            match &assign.value {
                TensorOperand::View(v) if v.is_contiguous() => {
                    let size = v.dtype.size();
                    let bytes = &cx.sources(self, foreign).bytes(v.base)[v.offset * size..][..v.n_bytes()];
                    match tensor.own_buffer_mut() {
                        Some(buffer) => write_buffer(buffer, bytes),
                        // Somebody holds the old value.
                        None => {
                            *tensor = HostTensor::from_buffer(tensor.shape().to_vec(), to_buffer(v.dtype, bytes));
                        }
                    }
                }
                other => {
                    let new = self.host(cx, other, foreign);
                    *tensor = match new.dtype().is_plain() {
                        true => {
                            let buffer = to_buffer(new.dtype(), bytes_of(new.buffer()));
                            HostTensor::from_buffer(tensor.shape().to_vec(), buffer)
                        }
                        false => new.reshaped(tensor.shape()),
                    };
                }
            }
            cx.note(PlanWork::Assign, begin);
        }
        for &id in &self.additions {
            let begin = cx.now();
            let op = &self.tensor_ops[id.index()];
            let Kernel::AddAtEnd(places) = &op.kernel else { panic!("{id:?} is not an addition at the end of a step") };
            let Base::Var(var) = op.operands[0].view().base else { panic!("{id:?} adds to no variable") };
            let table = bytes_of_mut(unshared(vars.tensor_mut(var as usize)));
            let added = index::scatter_add(places, &op.operands, table, &cx.sources(self, foreign));
            added.unwrap_or_else(|kernels::KernelFailed| panic!("the places were checked"));
            cx.note(PlanWork::Addition(id), begin);
        }
    }
}

/// Returns the elements of a variable, to change them. If somebody holds the old value, such as a
/// checkpoint that is being written, they are copied by all threads.
fn unshared(tensor: &mut HostTensor) -> &mut Buffer {
    if tensor.own_buffer_mut().is_none() {
        let copy = to_buffer(tensor.dtype(), bytes_of(tensor.buffer()));
        *tensor = HostTensor::from_buffer(tensor.shape().to_vec(), copy);
    }
    tensor.buffer_mut()
}

pub(super) fn slot(cx: &Context, s: SlotId) -> &HostTensor {
    cx.slots[s.index()].as_ref().unwrap_or_else(|| panic!("{s:?} is read before it is written"))
}

/// Fails if a result does not have the inferred shape.
fn fits(op: &TensorOp, tensor: &HostTensor, shape: &[usize]) -> Result<()> {
    if tensor.shape() == shape {
        return Ok(());
    }
    let expected = TensorType::new(tensor.dtype(), shape);
    let message = format!("{}: the result is {}, not {expected}", op.name, tensor.ty());
    Err(Diagnostic::new(message)
        .at(op.loc, format!("expected {expected}"))
        .help("`infer` and `eval` of an operation must agree on the shape"))
}

/// Returns an empty list for a list type, or `None` for a stack.
fn list_of(ty: &Type) -> Option<ListStorage> {
    if let Type::List(element) = ty { Some(ListStorage::new(element)) } else { None }
}

fn move_list(lists: &mut [Option<ListStorage>], dst: StackId, src: StackId, take: bool) -> Result<(), OutOfMemory> {
    let Ok([dst, src]) = lists.get_disjoint_mut([dst.index(), src.index()]) else {
        return Ok(());
    };
    if take {
        std::mem::swap(dst, src);
    } else if let (Some(dst), Some(src)) = (dst, src) {
        dst.copy_from(src)?;
    }
    Ok(())
}

/// Returns the error of a list of a program whose copy does not fit into memory.
pub(crate) fn no_memory_for_list(program: &str, missing: OutOfMemory) -> Diagnostic {
    Diagnostic::new(format!("out of memory: `{program}` needs {} bytes to copy a list", missing.bytes))
        .of_kind(ErrorKind::ResourceExhausted)
        .help("a list is copied when it is modified while its old value is still used")
}

fn move_stack(stacks: &mut [StackStorage], dst: StackId, src: StackId, take: bool) -> Result<(), NoMemory> {
    let Ok([dst, src]) = stacks.get_disjoint_mut([dst.index(), src.index()]) else {
        return Ok(());
    };
    if !take {
        return dst.copy_from(src);
    }
    std::mem::swap(dst, src);
    Ok(())
}
