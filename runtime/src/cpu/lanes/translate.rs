//! Translation of the instructions of a loop body to operations on rows.

use super::WhyNotInLanes;
use super::buffers::{LocalBuffer, addition_of};
use super::depths::set_depths;
use super::join::{can_run_again, join_blocks};
use super::places::join_places;
use super::program::{
    AdditionStacks, BasicBlock, BlockEnd, CheckedFunction, ElementIndex, ElementSource, LaneOp, LaneProgram,
    ListUpdate, LoopCounter, LoopStack, RowId, RowInfo, RowStart, StackPart, StackPlace, SumOverLanes, UpdateValue,
};
use super::registers::ElementSizes;
use super::run::MIN_LANES;
use super::share::share_rows;
use crate::cpu::compile::{Instr, ParallelLoop, Plan};
use crate::cpu::element::CpuElement;
use crate::cpu::kernels::Kernel;
use crate::cpu::kernels::functions::{ElementFunction, ScalarFn, function};
use crate::cpu::kernels::{ScalarOp, TensorOp};
use crate::cpu::memory::{Base, BufferId, Out, Reg, StackId, Storage, TensorOperand};
use crate::cpu::native::{ElementAccess, ElementUse, access};
use anabranch_dsl::DType;
use anabranch_dsl::ir::ListOp;
use anabranch_dsl::ir::dependence::LoopVarRole;
use anabranch_dsl::ops::prim;
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::Range;

/// The largest number of instructions of a loop, each of which adds at most three rows and two
/// basic blocks.
const MAX_INSTRS: usize = 1 << 14;

/// The bytes that the rows of a block may take.
const ROWS: usize = 1 << 17;

pub(super) struct Translator<'a> {
    pub(super) plan: &'a Plan,
    pub(super) body: Range<u32>,
    pub(super) parallel: &'a ParallelLoop,
    pub(super) sizes: ElementSizes,
    /// The registers that the body writes.
    pub(super) written: FxHashSet<Reg>,
    /// Those of them whose elements a basic block reads that another one, or an earlier iteration,
    /// wrote.
    pub(super) kept: FxHashSet<Reg>,
    pub(super) rows_of: FxHashMap<(Reg, usize), RowId>,
    /// The buffers that the body writes.
    pub(super) locals: FxHashMap<BufferId, LocalBuffer>,
    /// The tensors to which iterations add, and where what they add is recorded.
    pub(super) added: FxHashMap<BufferId, AdditionStacks>,
    /// The operations of the current basic block.
    pub(super) ops: Vec<LaneOp>,
    pub(super) program: LaneProgram,
}

pub(super) fn translate(
    plan: &Plan,
    code: &Range<u32>,
    parallel: &ParallelLoop,
    lanes: usize,
) -> Result<LaneProgram, WhyNotInLanes> {
    if code.len() > MAX_INSTRS {
        return Err(WhyNotInLanes::Size);
    }
    let before = code.start.checked_sub(1).map(|enter| &plan.code[enter as usize]);
    let Some(&Instr::Jump { to: entry }) = before else { return Err(WhyNotInLanes::Entry) };
    let program = LaneProgram {
        trips: parallel.trips,
        counters: Vec::new(),
        sums: Vec::new(),
        updates: Vec::new(),
        tensors: Vec::new(),
        additions: Vec::new(),
        stacks: Vec::new(),
        rows: Vec::new(),
        blocks: Vec::new(),
        tile: MIN_LANES,
        end: code.end,
        max_lanes: 0,
        min_trips: 0,
        gather_below: 0,
        has_byte_numbers: false,
        code: None,
    };
    let mut t = Translator {
        plan,
        body: code.start..entry,
        parallel,
        sizes: ElementSizes::new(plan.registers.len()),
        written: FxHashSet::default(),
        kept: FxHashSet::default(),
        rows_of: FxHashMap::default(),
        locals: FxHashMap::default(),
        added: FxHashMap::default(),
        ops: Vec::new(),
        program,
    };
    t.added();
    t.buffers();
    t.registers()?;
    t.loop_vars()?;
    t.basic_blocks()?;
    t.program.has_byte_numbers = t.has_byte_numbers();
    // The rows stay in the caches of a core.
    let of_rows: usize = t.program.rows.iter().map(|row| row.size).sum();
    let bytes = of_rows + t.program.tensors.iter().map(|tensor| tensor.n * tensor.size).sum::<usize>();
    t.program.max_lanes = lanes.min((ROWS / bytes.max(1)).next_multiple_of(MIN_LANES));
    // Lanes that have moved push and pop one by one.
    t.program.gather_below = match &t.program.stacks[..] {
        [] => 2,
        stacks if stacks.iter().all(|stack| stack.part != StackPart::Popped) => 6,
        _ => 16,
    };
    Ok(t.program)
}

impl Translator<'_> {
    /// Returns whether an instruction works on numbers of one byte. Moves do not tell them from
    /// bools.
    fn has_byte_numbers(&self) -> bool {
        let is_one = |dtype: DType| dtype == DType::U8;
        self.body.clone().any(|i| {
            let of_numbers = self.plan.scalar_ops[i as usize].is_some_and(|op| is_one(op.operand) || is_one(op.result));
            let op = match self.plan.code[i as usize] {
                Instr::Run(op) | Instr::List { op, .. } | Instr::StackPush { op, .. } | Instr::StackPop { op, .. } => {
                    op
                }
                _ => return of_numbers,
            };
            let op = &self.plan.tensor_ops[op.index()];
            let of_operands = op.operands.iter().any(|operand| match operand {
                TensorOperand::View(view) => is_one(view.dtype),
                TensorOperand::Slot(_) => false,
            });
            let of_result = match &op.out {
                Out::Reg(_, dtype) => is_one(*dtype),
                Out::View(view) => is_one(view.dtype),
                Out::Views(views) => views.iter().any(|view| is_one(view.dtype)),
                Out::Slot(_) | Out::Nothing => false,
            };
            of_numbers || of_operands || of_result
        })
    }

    /// Adds the counters, sums, lists and stacks of the loop.
    fn loop_vars(&mut self) -> Result<(), WhyNotInLanes> {
        // The first instruction stands for the loop.
        let refused = WhyNotInLanes::Instruction(self.body.start);
        for &(role, storage) in &self.parallel.vars {
            match (role, storage) {
                (LoopVarRole::Counter(step), Storage::Reg(reg)) => {
                    self.keep(reg);
                    let size = self.sizes.size(reg);
                    let row = self.row(reg, size);
                    self.program.counters.push(LoopCounter { reg, row, step, size });
                }
                (LoopVarRole::Sum, Storage::Reg(reg)) => {
                    let dtype = self.sum_type(reg).ok_or(refused)?;
                    let add = addition_of(dtype).ok_or(refused)?;
                    let zero = match dtype {
                        DType::F32 => u64::from((-0.0f32).to_bits()),
                        DType::F64 => (-0.0f64).to_bits(),
                        _ => 0,
                    };
                    self.keep(reg);
                    let row = self.row(reg, dtype.size());
                    self.program.sums.push(SumOverLanes { reg, row, add, zero });
                }
                (LoopVarRole::Pushed | LoopVarRole::Popped, Storage::Stack(stack)) => {
                    let size = self.element(stack).ok_or(refused)?.size();
                    let part = if role == LoopVarRole::Pushed { StackPart::Pushed } else { StackPart::Popped };
                    self.program.stacks.push(LoopStack { stack: Some(stack), size, part, depth: 0, is_in_code: false });
                }
                (LoopVarRole::AddedTo, Storage::Buffer(buffer)) if self.added.contains_key(&buffer) => {}
                (LoopVarRole::Written | LoopVarRole::Accumulated, Storage::Stack(_)) => {}
                _ => return Err(refused),
            }
        }
        Ok(())
    }

    fn keep(&mut self, reg: Reg) {
        self.written.insert(reg);
        self.kept.insert(reg);
    }

    /// Returns the type of a sum, by the addition to it.
    fn sum_type(&self, reg: Reg) -> Option<DType> {
        self.body.clone().find_map(|i| match self.plan.code[i as usize] {
            Instr::Binary { a, b, .. } if a == reg || b == reg => {
                self.plan.scalar_ops[i as usize].filter(|op| op.op == prim::ADD).map(|op| op.result)
            }
            _ => None,
        })
    }

    fn basic_blocks(&mut self) -> Result<(), WhyNotInLanes> {
        let starts = self.starts()?;
        let index = |to: u32| starts.binary_search(&to).expect("each target begins a basic block") as u16;
        for (here, range) in starts.windows(2).enumerate() {
            for i in range[0]..range[1] {
                self.op(i)?;
            }
            let (next, plan) = (here as u16 + 1, self.plan);
            let end = match plan.code[range[1] as usize - 1] {
                Instr::Jump { to } => BlockEnd::Jump(index(to)),
                Instr::JumpIf { cond, to } => self.branch(cond, true, index(to), next),
                Instr::JumpUnless { cond, to } => self.branch(cond, false, index(to), next),
                Instr::JumpCompare { a, b, to, when, .. } => {
                    let op = plan.scalar_ops[range[1] as usize - 1].expect("a comparison has a name");
                    let f = function(op.op, op.operand, op.result).expect("it is a function of numbers");
                    let args = [self.row(a, op.operand.size()), self.row(b, op.operand.size())];
                    let dst = self.new_row(op.result.size());
                    self.push_function(f, op, dst, [args[0], args[1], args[0]]);
                    BlockEnd::Branch { cond: dst, when, to: index(to), otherwise: next }
                }
                _ => BlockEnd::Jump(next),
            };
            let ops = std::mem::take(&mut self.ops);
            self.program.blocks.push(BasicBlock { ops, end, begins_loop: false, aligned: None });
        }
        join_places(&mut self.program);
        set_depths(&mut self.program);
        share_rows(&mut self.program.blocks, &mut self.program.rows);
        join_blocks(&mut self.program.blocks);
        for here in 0..self.program.blocks.len() {
            let to = match self.program.blocks[here].end {
                BlockEnd::Jump(to) | BlockEnd::Branch { to, .. } => usize::from(to),
            };
            if to <= here {
                self.program.blocks[to].begins_loop = true;
                let pops = |op: &LaneOp| if let LaneOp::Pop { stack, .. } = *op { Some(stack) } else { None };
                let stack = self.program.blocks[to].ops.iter().find_map(pops);
                if let Some(stack) = stack
                    && self.program.stacks[usize::from(stack)].part == StackPart::Popped
                    && can_run_again(&self.program.blocks[here], &self.program.rows)
                {
                    let depth = self.program.stacks[usize::from(stack)].depth;
                    self.program.blocks[to].aligned = Some((depth, here as u16));
                }
            }
        }
        Ok(())
    }

    fn branch(&mut self, cond: Reg, when: bool, to: u16, otherwise: u16) -> BlockEnd {
        BlockEnd::Branch { cond: self.row(cond, 1), when, to, otherwise }
    }

    /// Adds a row for a value of one basic block.
    pub(super) fn new_row(&mut self, size: usize) -> RowId {
        self.program.rows.push(RowInfo { size, start: RowStart::Nothing, is_kept: false });
        self.program.rows.len() as RowId - 1
    }

    fn push_function(&mut self, f: ElementFunction, op: ScalarOp, dst: RowId, args: [RowId; 3]) {
        let checked = f.check.map(|check| match f.scalar {
            ScalarFn::Binary(scalar) => CheckedFunction { check, scalar },
            _ => panic!("the second operand is checked"),
        });
        self.ops.push(LaneOp::Function { f: f.block, checked, op, dst, args });
    }

    /// Adds the operations of an instruction that does not jump.
    fn op(&mut self, i: u32) -> Result<(), WhyNotInLanes> {
        let plan = self.plan;
        let refused = WhyNotInLanes::Instruction(i);
        let scalar = plan.scalar_ops[i as usize];
        let with_function = |op: Option<ScalarOp>| {
            let op = op.ok_or(refused)?;
            Ok((function(op.op, op.operand, op.result).ok_or(refused)?, op))
        };
        match plan.code[i as usize] {
            Instr::Unary { dst, a, .. } => {
                let (f, op) = with_function(scalar)?;
                let (a, dst) = (self.row(a, op.operand.size()), self.row(dst, op.result.size()));
                self.push_function(f, op, dst, [a; 3]);
            }
            Instr::Binary { dst, a, b, .. } if let Some((dtype, shift, wants_remainder)) = self.power_of_two(i, b) => {
                let (a, dst) = (self.row(a, dtype.size()), self.row(dst, dtype.size()));
                self.ops.push(LaneOp::DividePower { dst, a, dtype, shift, wants_remainder });
            }
            Instr::Binary { dst, a, b, .. } => {
                let (f, op) = with_function(scalar)?;
                let [a, b] = [a, b].map(|r| self.row(r, op.operand.size()));
                let dst = self.row(dst, op.result.size());
                self.push_function(f, op, dst, [a, b, a]);
            }
            Instr::Select { dst, a, b, c } => {
                let (f, op) = with_function(scalar)?;
                let args = [(a, 1), (b, op.operand.size()), (c, op.operand.size())];
                let args = args.map(|(r, size)| self.row(r, size));
                let dst = self.row(dst, op.result.size());
                self.push_function(f, op, dst, args);
            }
            Instr::Move { dst, src } => {
                let size = self.sizes.size(dst);
                let (dst, src) = (self.row(dst, size), self.row(src, size));
                self.ops.push(LaneOp::Move { dst, src });
            }
            Instr::Require { valid, a, op } => {
                if plan.constant(a).is_none_or(|bits| !valid(bits)) {
                    let size = plan.tensor_ops[op.index()].operands[1].view().dtype.size();
                    let a = self.row(a, size);
                    self.ops.push(LaneOp::Require { valid, a });
                }
            }
            Instr::RequireIndex { a, dtype, n, .. } => {
                let a = self.row(a, dtype.size());
                self.ops.push(LaneOp::RequireIndex { a, dtype, n });
            }
            Instr::Assert { cond, .. } => {
                let cond = self.row(cond, 1);
                self.ops.push(LaneOp::Assert { cond });
            }
            Instr::Run(op) => {
                self.tensor_op(&plan.tensor_ops[op.index()]).ok_or(refused)?;
            }
            Instr::List { list, op, .. } => self.list_op(list, op.index()).ok_or(refused)?,
            Instr::StackPush { stack, op } => {
                let src = match self.number(&plan.tensor_ops[op.index()].operands[0]).ok_or(refused)? {
                    Ok((r, size)) => self.row(r, size),
                    Err(row) => row,
                };
                let stack = self.stack(stack, StackPart::Pushed).ok_or(refused)?;
                self.ops.push(LaneOp::Push { stack, at: StackPlace::default(), src });
            }
            Instr::StackPop { stack, op } => {
                let dst = match &plan.tensor_ops[op.index()].out {
                    Out::Reg(r, dtype) => self.row(*r, dtype.size()),
                    Out::View(view) => match self.local(view) {
                        Some(LocalBuffer::Number(row)) => row,
                        _ => return Err(refused),
                    },
                    _ => return Err(refused),
                };
                let stack = self.stack(stack, StackPart::Popped).ok_or(refused)?;
                self.ops.push(LaneOp::Pop { stack, at: StackPlace::default(), dst });
            }
            Instr::StackNew(stack) => {
                let stack = self.stack(stack, StackPart::Own).ok_or(refused)?;
                self.ops.push(LaneOp::Clear { stack });
            }
            Instr::Jump { .. } | Instr::JumpIf { .. } | Instr::JumpUnless { .. } | Instr::JumpCompare { .. } => {}
            _ => return Err(refused),
        }
        Ok(())
    }

    /// Returns the type, the exponent and whether the remainder is wanted, of an instruction that
    /// divides integers by a constant power of two. There is no vector instruction for others.
    fn power_of_two(&self, i: u32, divisor: Reg) -> Option<(DType, u32, bool)> {
        let op = self.plan.scalar_ops[i as usize]?;
        let wants_remainder = match op.op {
            prim::DIV => false,
            prim::REM => true,
            _ => return None,
        };
        let bits = self.plan.constant(divisor)?;
        let divisor = match op.operand {
            DType::I32 => u64::try_from(i32::from_reg(bits)).ok()?,
            DType::I64 => u64::try_from(i64::from_reg(bits)).ok()?,
            DType::U32 | DType::U8 => bits,
            _ => return None,
        };
        divisor.is_power_of_two().then(|| (op.operand, divisor.trailing_zeros(), wants_remainder))
    }

    /// Adds an operation that reads or writes elements of a tensor.
    fn tensor_op(&mut self, op: &TensorOp) -> Option<()> {
        if let Some([from, out]) = self.copied(op) {
            let is_part = self.local(out).is_none();
            let new = match (self.local_around(out)?, from.base) {
                (LocalBuffer::Own(to), Base::Reg(r)) if is_part => {
                    let value = self.row(r, from.dtype.size());
                    LaneOp::WriteElement { to, offset: out.offset, index: None, value, adds: false }
                }
                (LocalBuffer::Number(dst), Base::Reg(r)) => LaneOp::Move { dst, src: self.row(r, from.dtype.size()) },
                (LocalBuffer::Own(to), Base::Reg(r)) => LaneOp::Fill { to, value: self.row(r, from.dtype.size()) },
                (LocalBuffer::Number(dst), base) => {
                    LaneOp::ReadElement { from: ElementSource::Outside(base), offset: from.offset, index: None, dst }
                }
                (LocalBuffer::Own(to), base) => {
                    let places = from.offsets().map(u32::try_from).collect::<Result<_, _>>().ok()?;
                    LaneOp::CopyIn { to, base, places }
                }
                (LocalBuffer::OfList { .. }, _) => return None,
            };
            self.ops.push(new);
            return Some(());
        }
        let ElementAccess { tensor: view, index, kind } = access(op)?;
        let index = index.map(|(axis, r, dtype)| ElementIndex {
            row: self.row(r, dtype.size()),
            dtype,
            n: view.shape[axis],
            stride: view.strides[axis],
        });
        if let (Base::Buffer(b), ElementUse::Add(r)) = (view.base, kind)
            && let Some(&record) = self.added.get(&b)
        {
            let (at, src) = (StackPlace::default(), self.row(r, view.dtype.size()));
            self.ops.push(LaneOp::PushPlace { stack: record.places, at, offset: view.offset, index });
            self.ops.push(LaneOp::Push { stack: record.numbers, at, src });
            return Some(());
        }
        let local = match view.base {
            Base::Buffer(b) if self.locals.contains_key(&b) => Some(match kind {
                ElementUse::Read(_) => self.local_around(view)?,
                ElementUse::Write(_) | ElementUse::Add(_) => self.local(view)?,
            }),
            _ => None,
        };
        let (offset, size) = (view.offset, view.dtype.size());
        let own = |local| if let Some(LocalBuffer::Own(to)) = local { Some(to) } else { None };
        let new = match (kind, local) {
            (ElementUse::Read(dst), Some(LocalBuffer::Number(src))) => {
                if let Some(ElementIndex { row, dtype, n, .. }) = index {
                    self.ops.push(LaneOp::RequireIndex { a: row, dtype, n: n as u64 });
                }
                LaneOp::Move { dst: self.row(dst, size), src }
            }
            (ElementUse::Read(dst), local) => {
                let from = match local {
                    Some(LocalBuffer::OfList { list, index, n }) => ElementSource::OfList { list, index, n },
                    Some(LocalBuffer::Own(i)) => ElementSource::Own(i),
                    _ => ElementSource::Outside(view.base),
                };
                LaneOp::ReadElement { from, offset, index, dst: self.row(dst, size) }
            }
            (ElementUse::Write(r), local) => {
                LaneOp::WriteElement { to: own(local)?, offset, index, value: self.row(r, size), adds: false }
            }
            (ElementUse::Add(r), local) => {
                LaneOp::WriteElement { to: own(local)?, offset, index, value: self.row(r, size), adds: true }
            }
        };
        self.ops.push(new);
        Some(())
    }

    /// Returns the index of a stack that the body uses as a part of the loop or as its own.
    fn stack(&mut self, stack: StackId, part: StackPart) -> Option<u16> {
        let known = self.program.stacks.iter().position(|known| known.stack == Some(stack));
        let i = match known {
            Some(i) => {
                let known = self.program.stacks[i].part;
                (known == part || known == StackPart::Own).then_some(i)?
            }
            None => {
                let size = self.element(stack)?.size();
                self.program.stacks.push(LoopStack {
                    stack: Some(stack),
                    size,
                    part: StackPart::Own,
                    depth: 0,
                    is_in_code: false,
                });
                self.program.stacks.len() - 1
            }
        };
        u16::try_from(i).ok()
    }

    fn list_op(&mut self, list: StackId, op: usize) -> Option<()> {
        let op = &self.plan.tensor_ops[op];
        let Kernel::List(list_op) = &op.kernel else { return None };
        let (dtype, n) = self.elements(list)?;
        let size = dtype.size();
        let index = self.row(Self::register(&op.operands[0])?.0, 4);
        let role =
            self.parallel.vars.iter().find(|&&(_, storage)| storage == Storage::Stack(list)).map(|&(role, _)| role);
        let new = match (list_op, &op.out, role) {
            (ListOp::Read, Out::Reg(r, _), None) => LaneOp::ReadList { list, index, dst: self.row(*r, size) },
            (ListOp::Read, Out::View(view), None) => {
                let Some(LocalBuffer::OfList { index: dst, .. }) = self.local(view) else { return None };
                self.ops.push(LaneOp::CheckList { list, index });
                LaneOp::Move { dst, src: index }
            }
            (ListOp::Write, _, Some(LoopVarRole::Written))
            | (ListOp::Accumulate, _, Some(LoopVarRole::Accumulated)) => {
                let value = match (self.number(&op.operands[1]), &op.operands[1]) {
                    // A number in a register may stand for all elements.
                    (Some(Ok((r, _))), TensorOperand::View(view)) if n == 1 && view.size() == 1 => {
                        UpdateValue::Row(self.row(r, size))
                    }
                    (Some(Err(row)), _) => UpdateValue::Row(row),
                    (None, TensorOperand::View(view)) => match self.local(view)? {
                        LocalBuffer::Own(i) => UpdateValue::Own(i),
                        _ => return None,
                    },
                    _ => return None,
                };
                let update = u16::try_from(self.program.updates.len()).ok()?;
                let bytes = n * size;
                self.program.updates.push(ListUpdate { list, op: list_op.clone(), bytes, loc: op.loc });
                LaneOp::UpdateList { update, index, value }
            }
            _ => return None,
        };
        self.ops.push(new);
        Some(())
    }
}
