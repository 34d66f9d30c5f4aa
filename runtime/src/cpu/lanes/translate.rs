//! Translation of the instructions of a loop body to operations on rows.
//!
//! Registers that are moved to each other hold elements of one size, which the operations on them
//! determine, so each register has one row. A constant may stand for elements of several sizes, and
//! has a row for each.

use super::WhyNotInLanes;
use super::join::{can_run_again, join_blocks};
use super::program::{
    AddedTensor, BasicBlock, BlockEnd, CheckedFunction, ElementIndex, ElementSource, LaneOp, LaneProgram, ListUpdate,
    LoopCounter, LoopStack, OwnTensor, RowId, RowInfo, RowStart, StackPart, SumOverLanes, UpdateValue,
};
use super::run::MIN_LANES;
use super::share::share_rows;
use crate::cpu::compile::{
    Base, BufferId, Instr, LoopSpan, Out, ParallelLoop, Plan, Reg, StackId, Storage, TensorOp, TensorOperand, View,
};
use crate::cpu::element::CpuElement;
use crate::cpu::kernels::Kernel;
use crate::cpu::kernels::functions::{ElementFunction, ScalarFn, function};
use crate::cpu::native::{ElementAccess, ElementUse, access};
use crate::disjoint_sets::DisjointSets;
use anabranch_dsl::DType;
use anabranch_dsl::ir::ListOp;
use anabranch_dsl::ir::dependence::LoopVarRole;
use anabranch_dsl::ops::prim;
use anabranch_dsl::passes;
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::Range;

/// A buffer that the body writes.
#[derive(Clone, Copy, Debug)]
enum LocalBuffer {
    /// One number, in a row.
    Number(RowId),
    /// An element of a list, whose index is in a row.
    OfList { list: StackId, index: RowId, n: usize },
    /// A tensor of each iteration, by its index in the program.
    Own(u16),
}

/// The largest number of instructions of a loop, each of which adds at most three rows and two
/// basic blocks.
const MAX_INSTRS: usize = 1 << 14;

/// The bytes that the rows of a block may take.
const ROWS: usize = 1 << 17;

/// The largest number of elements of a tensor that each lane has for itself.
const MAX_OWN: usize = 1 << 10;

/// Translates the outermost loops of a plan that can run in lanes. The others get the reason why
/// they cannot. Returns each program with its loop.
pub(crate) fn programs(plan: &mut Plan, lanes: usize) -> Vec<(usize, LaneProgram)> {
    let mut loops: Vec<usize> = (0..plan.loops.len()).collect();
    loops.sort_by_key(|&l| (plan.loops[l].code.start, std::cmp::Reverse(plan.loops[l].code.end)));
    let mut found: Vec<(usize, LaneProgram)> = Vec::new();
    for l in loops {
        let code = plan.loops[l].code.clone();
        let Some(parallel) = &plan.loops[l].parallel else { continue };
        if found.last().is_some_and(|&(around, _)| code.start < plan.loops[around].code.end) {
            plan.loops[l].not_in_lanes = None;
            continue;
        }
        let program = translate(plan, &code, parallel, lanes);
        plan.loops[l].not_in_lanes = program.as_ref().err().copied();
        found.extend(program.ok().map(|program| (l, program)));
    }
    found
}

/// Returns the trip count from which on a loop is worth lanes, or `None` if none is. If there is
/// native code, its iterations take little more than their operations, and without loops inside
/// less than the addition of sums afterwards.
fn min_trips(program: &LaneProgram, is_native: bool, has_native_loops: bool) -> Option<usize> {
    let has_loops = program.blocks.iter().any(|block| block.begins_loop);
    match (is_native, has_loops) {
        // Tests have blocks of few lanes.
        _ if program.max_lanes < MIN_LANES => Some(program.max_lanes),
        (false, _) if has_native_loops => Some(128),
        (false, _) => Some(passes::MIN_TRIPS as usize),
        (true, true) => Some(256),
        (true, false) => None,
    }
}

/// Lets loops run in lanes: puts an [`Instr::Lanes`] at the entry of each.
pub(crate) fn install(plan: &mut Plan, programs: Vec<(usize, LaneProgram)>) {
    for (l, mut program) in programs {
        let code = plan.loops[l].code.clone();
        let mut around =
            plan.loops.iter().filter(|around| around.code.start < code.start && code.end <= around.code.end);
        // Native code of a loop around it never comes here.
        if around.any(|around| matches!(plan.code[around.code.start as usize - 1], Instr::Native { .. })) {
            continue;
        }
        let enter = code.start as usize - 1;
        let (entry, native) = match plan.code[enter] {
            Instr::Jump { to } => (to, None),
            Instr::Native { function, entry } => (entry, Some(function)),
            _ => panic!("a loop that was translated is entered by a jump"),
        };
        let is_inside = |other: &&LoopSpan| code.start < other.code.start && other.code.end <= code.end;
        let mut inside = plan.loops.iter().filter(is_inside);
        let is_native = |at: u32| matches!(plan.code[at as usize - 1], Instr::Native { .. });
        let has_native_loops = inside.any(|inner| is_native(inner.code.start));
        let Some(trips) = min_trips(&program, native.is_some(), has_native_loops) else {
            plan.loops[l].not_in_lanes = Some(WhyNotInLanes::Native);
            continue;
        };
        program.min_trips = trips;
        plan.code[enter] = Instr::Lanes { program: plan.lanes.len() as u32, entry, native };
        plan.lanes.push(program);
    }
}

/// Classes of registers that are moved to each other, with the size of their elements.
struct ElementSizes {
    classes: DisjointSets,
    /// The size of the elements of each register, or 0 if it has several.
    sizes: FxHashMap<usize, usize>,
}

impl ElementSizes {
    fn new(n_registers: usize) -> ElementSizes {
        ElementSizes { classes: DisjointSets::new(n_registers), sizes: FxHashMap::default() }
    }

    fn ask(&mut self, r: Reg, size: usize) {
        let root = self.classes.root(r.index());
        let known = self.sizes.entry(root).or_insert(size);
        *known = if *known == size { size } else { 0 };
    }

    fn join(&mut self, a: Reg, b: Reg) {
        let sizes = [a, b].map(|r| self.sizes.remove(&self.classes.root(r.index())));
        self.classes.join(a.index(), b.index());
        sizes.into_iter().flatten().for_each(|size| self.ask(a, size));
    }

    /// Returns the size of the elements of a register, or 0 if it has several.
    fn size(&mut self, r: Reg) -> usize {
        self.sizes.get(&self.classes.root(r.index())).copied().unwrap_or(8)
    }
}

struct Translator<'a> {
    plan: &'a Plan,
    body: Range<u32>,
    parallel: &'a ParallelLoop,
    sizes: ElementSizes,
    /// The registers that the body writes.
    written: FxHashSet<Reg>,
    /// Those of them whose elements a basic block reads that another one, or an earlier iteration,
    /// wrote.
    kept: FxHashSet<Reg>,
    rows_of: FxHashMap<(Reg, usize), RowId>,
    /// The buffers that the body writes.
    locals: FxHashMap<BufferId, LocalBuffer>,
    /// The tensors to which iterations add, by their index in the program.
    added: FxHashMap<BufferId, u16>,
    /// The operations of the current basic block.
    ops: Vec<LaneOp>,
    program: LaneProgram,
}

/// A register that an instruction uses, with the size of the element.
#[derive(Clone, Copy)]
enum RegisterUse {
    Read(Reg, usize),
    Write(Reg, usize),
    /// A move, of elements of any size.
    Move {
        dst: Reg,
        src: Reg,
    },
}

fn translate(
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
        end: code.end,
        max_lanes: 0,
        min_trips: 0,
        gather_below: 0,
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

/// Returns the addition of two numbers of a type as registers.
fn addition_of(dtype: DType) -> Option<fn(u64, u64) -> u64> {
    match function(prim::ADD, dtype, dtype)?.scalar {
        ScalarFn::Binary(add) => Some(add),
        _ => None,
    }
}

/// Returns whether an access adds to an element of a tensor in a buffer.
fn adds_to(access: &ElementAccess<'_>, buffer: BufferId) -> bool {
    matches!(access.kind, ElementUse::Add(_)) && access.tensor.base == Base::Buffer(buffer)
}

/// Returns the target of an instruction that jumps.
fn target(instr: &Instr) -> Option<u32> {
    match *instr {
        Instr::Jump { to }
        | Instr::JumpIf { to, .. }
        | Instr::JumpUnless { to, .. }
        | Instr::JumpCompare { to, .. } => Some(to),
        _ => None,
    }
}

impl Translator<'_> {
    fn register(operand: &TensorOperand) -> Option<(Reg, DType)> {
        match operand {
            TensorOperand::View(v) => match v.base {
                Base::Reg(r) => Some((r, v.dtype)),
                _ => None,
            },
            TensorOperand::Slot(_) => None,
        }
    }

    /// Returns the element type of a stack or list of numbers.
    fn element(&self, stack: StackId) -> Option<DType> {
        self.elements(stack).filter(|&(_, n)| n == 1).map(|(dtype, _)| dtype)
    }

    /// Returns the type and the number of numbers of an element of a stack or list.
    fn elements(&self, stack: StackId) -> Option<(DType, usize)> {
        let element = self.plan.stacks[stack.index()].element();
        let shape = element.shape.known().filter(|_| element.dtype.is_plain())?;
        Some((element.dtype, shape.iter().product()))
    }

    /// Returns the local buffer that a view covers.
    fn local(&self, view: &View) -> Option<LocalBuffer> {
        let Base::Buffer(b) = view.base else { return None };
        let local = self.locals.get(&b).copied()?;
        let n = match local {
            LocalBuffer::Number(_) => 1,
            LocalBuffer::OfList { n, .. } => n,
            LocalBuffer::Own(i) => self.program.tensors[usize::from(i)].n,
        };
        (view.offset == 0 && view.is_contiguous() && view.size() == n).then_some(local)
    }

    /// Returns the local buffer of which a view covers one or more elements.
    fn local_around(&self, view: &View) -> Option<LocalBuffer> {
        if let Some(local) = self.local(view) {
            return Some(local);
        }
        let Base::Buffer(b) = view.base else { return None };
        let local = self.locals.get(&b).copied()?;
        let (n, size) = match local {
            LocalBuffer::Number(_) => return None,
            LocalBuffer::OfList { list, n, .. } => (n, self.elements(list)?.0.size()),
            LocalBuffer::Own(i) => {
                let OwnTensor { n, size, .. } = self.program.tensors[usize::from(i)];
                (n, size)
            }
        };
        (view.dtype.size() == size && view.offsets().all(|place| place < n)).then_some(local)
    }

    /// Returns the register or the row that holds the only number of an operand.
    fn number(&self, operand: &TensorOperand) -> Option<Result<(Reg, usize), RowId>> {
        let TensorOperand::View(view) = operand else { return None };
        match (view.base, self.local(view)) {
            (Base::Reg(r), _) => Some(Ok((r, view.dtype.size()))),
            (_, Some(LocalBuffer::Number(row))) => Some(Err(row)),
            _ => None,
        }
    }

    /// Finds the tensors to which iterations add.
    fn added(&mut self) {
        let plan = self.plan;
        for &(role, storage) in &self.parallel.vars {
            let (LoopVarRole::AddedTo, Storage::Buffer(buffer)) = (role, storage) else { continue };
            let addition = self.body.clone().find_map(|i| match plan.code[i as usize] {
                Instr::Run(op) => access(&plan.tensor_ops[op.index()]).filter(|access| adds_to(access, buffer)),
                _ => None,
            });
            // Without an addition nothing needs the tensor.
            let Some(ElementAccess { tensor, .. }) = addition else { continue };
            let Some(add) = addition_of(tensor.dtype) else { continue };
            self.added.insert(buffer, self.program.additions.len() as u16);
            self.program.additions.push(AddedTensor { buffer, dtype: tensor.dtype, add });
        }
    }

    /// Returns whether an operation uses a tensor to which iterations add otherwise than to add to
    /// it.
    fn misuses_added(&self, op: &TensorOp) -> bool {
        let is_added = |view: &View| matches!(view.base, Base::Buffer(b) if self.added.contains_key(&b));
        let reads = op.operands.iter().any(|operand| match operand {
            TensorOperand::View(view) => is_added(view),
            TensorOperand::Slot(_) => false,
        });
        let is_used = reads || matches!(&op.out, Out::View(view) if is_added(view));
        is_used && !access(op).is_some_and(|access| self.added.keys().any(|&b| adds_to(&access, b)))
    }

    /// Finds the buffers that the body writes. Instructions that use them in other ways than those
    /// of their kind are refused later.
    fn buffers(&mut self) {
        let plan = self.plan;
        // The lists whose elements buffers hold, or `None` for buffers that are written otherwise.
        let mut written: Vec<(BufferId, Option<StackId>, &View)> = Vec::new();
        for i in self.body.clone() {
            let (from, op) = match plan.code[i as usize] {
                Instr::Run(op) | Instr::StackPop { op, .. } => (None, op),
                Instr::List { list, op, .. } => (Some(list), op),
                _ => continue,
            };
            if let Out::View(view) = &plan.tensor_ops[op.index()].out
                && let Base::Buffer(b) = view.base
                && !self.added.contains_key(&b)
            {
                written.push((b, from, view));
            }
        }
        // The number of writes, and of elements up to the last one that is written.
        let mut extents: FxHashMap<BufferId, (usize, usize)> = FxHashMap::default();
        for &(b, _, view) in &written {
            let (n_writes, n) = extents.entry(b).or_default();
            *n_writes += 1;
            *n = view.offsets().map(|place| place + 1).max().unwrap_or(0).max(*n);
        }
        for &(b, from, view) in &written {
            if self.locals.contains_key(&b) {
                continue;
            }
            let (n_writes, n) = extents[&b];
            let local = match from {
                Some(list) if n_writes == 1 => LocalBuffer::OfList { list, index: self.kept_row(4), n },
                _ if n == 1 => LocalBuffer::Number(self.kept_row(view.dtype.size())),
                _ => {
                    let Some(add) = addition_of(view.dtype) else { continue };
                    if n > MAX_OWN {
                        continue;
                    }
                    self.program.tensors.push(OwnTensor { n, size: view.dtype.size(), add });
                    LocalBuffer::Own(self.program.tensors.len() as u16 - 1)
                }
            };
            self.locals.insert(b, local);
        }
    }

    /// Adds a row that basic blocks pass on to each other.
    fn kept_row(&mut self, size: usize) -> RowId {
        self.program.rows.push(RowInfo { size, start: RowStart::Nothing, is_kept: true });
        self.program.rows.len() as RowId - 1
    }

    /// Returns the source and the destination of an operation that copies a tensor from outside of
    /// the body, fills one with a number or sets one element.
    fn copied<'a>(&self, op: &'a TensorOp) -> Option<[&'a View; 2]> {
        let (Kernel::Copy(_), Out::View(out), [TensorOperand::View(from)]) = (&op.kernel, &op.out, &op.operands[..])
        else {
            return None;
        };
        let is_inside = matches!(from.base, Base::Buffer(b) if self.locals.contains_key(&b));
        let is_element = matches!(from.base, Base::Reg(_)) && out.size() == 1 && self.local_around(out).is_some();
        (!is_inside && (is_element || self.local(out).is_some())).then_some([from, out])
    }

    /// Returns the registers that an instruction of the body uses, in order, or `None` if the
    /// instruction cannot run in lanes.
    fn uses(&self, i: u32) -> Option<Vec<RegisterUse>> {
        use RegisterUse::{Move, Read, Write};
        let plan = self.plan;
        let scalar = || plan.scalar_ops[i as usize].map(|op| (op.operand.size(), op.result.size()));
        Some(match plan.code[i as usize] {
            Instr::Unary { dst, a, .. } => {
                let (operand, result) = scalar()?;
                vec![Read(a, operand), Write(dst, result)]
            }
            Instr::Binary { dst, a, b, .. } => {
                let (operand, result) = scalar()?;
                vec![Read(a, operand), Read(b, operand), Write(dst, result)]
            }
            Instr::Select { dst, a, b, c } => {
                let (operand, result) = scalar()?;
                vec![Read(a, 1), Read(b, operand), Read(c, operand), Write(dst, result)]
            }
            Instr::Move { dst, src } => vec![Move { dst, src }],
            Instr::Require { a, op, .. } => {
                vec![Read(a, plan.tensor_ops[op.index()].operands[1].view().dtype.size())]
            }
            Instr::RequireIndex { a, dtype, .. } => vec![Read(a, dtype.size())],
            Instr::Assert { cond, .. } | Instr::JumpIf { cond, .. } | Instr::JumpUnless { cond, .. } => {
                vec![Read(cond, 1)]
            }
            Instr::JumpCompare { a, b, .. } => {
                let (operand, _) = scalar()?;
                vec![Read(a, operand), Read(b, operand)]
            }
            Instr::Jump { .. } => vec![],
            Instr::Run(op) => {
                let op = &plan.tensor_ops[op.index()];
                if self.misuses_added(op) {
                    return None;
                }
                if let Some([from, _]) = self.copied(op) {
                    return Some(match from.base {
                        Base::Reg(r) => vec![Read(r, from.dtype.size())],
                        _ => vec![],
                    });
                }
                let ElementAccess { tensor, index, kind } = access(op)?;
                let index = index.map(|(_, r, dtype)| Read(r, dtype.size()));
                let size = tensor.dtype.size();
                let number = match kind {
                    ElementUse::Read(dst) => Write(dst, size),
                    ElementUse::Write(r) | ElementUse::Add(r) => Read(r, size),
                };
                index.into_iter().chain([number]).collect()
            }
            Instr::List { list, other: None, op } => {
                let op = &plan.tensor_ops[op.index()];
                let size = self.elements(list)?.0.size();
                let Kernel::List(list_op) = &op.kernel else { return None };
                let (index, _) = Self::register(op.operands.first()?)?;
                match (list_op, &op.out) {
                    (ListOp::Read, Out::Reg(r, _)) => vec![Read(index, 4), Write(*r, size)],
                    (ListOp::Read, Out::View(view)) => {
                        self.local(view)?;
                        vec![Read(index, 4)]
                    }
                    (ListOp::Write | ListOp::Accumulate, _) => match Self::register(&op.operands[1]) {
                        Some((value, _)) => vec![Read(index, 4), Read(value, size)],
                        None => vec![Read(index, 4)],
                    },
                    _ => return None,
                }
            }
            Instr::StackPush { stack, op } => {
                self.element(stack)?;
                match self.number(plan.tensor_ops[op.index()].operands.first()?)? {
                    Ok((r, size)) => vec![Read(r, size)],
                    Err(_) => vec![],
                }
            }
            Instr::StackPop { stack, op } => {
                self.element(stack)?;
                match &plan.tensor_ops[op.index()].out {
                    Out::Reg(r, dtype) => vec![Write(*r, dtype.size())],
                    Out::View(view) => {
                        self.local(view)?;
                        vec![]
                    }
                    _ => return None,
                }
            }
            Instr::StackNew(stack) => {
                self.element(stack)?;
                vec![]
            }
            _ => return None,
        })
    }

    /// Finds the sizes of registers, and which are written and kept.
    fn registers(&mut self) -> Result<(), WhyNotInLanes> {
        let starts = self.starts()?;
        let mut written_here: FxHashSet<Reg> = FxHashSet::default();
        let mut read_first: FxHashSet<Reg> = FxHashSet::default();
        for i in self.body.clone() {
            if starts.binary_search(&i).is_ok() {
                written_here.clear();
            }
            let uses = self.uses(i).ok_or(WhyNotInLanes::Instruction(i))?;
            let is_constant = |r: Reg| self.plan.constant(r).is_some();
            for used in uses {
                let (read, write) = match used {
                    RegisterUse::Read(r, size) => {
                        if !is_constant(r) {
                            self.sizes.ask(r, size);
                        }
                        (Some(r), None)
                    }
                    RegisterUse::Write(r, size) => {
                        self.sizes.ask(r, size);
                        (None, Some(r))
                    }
                    RegisterUse::Move { dst, src } => {
                        if !is_constant(src) {
                            self.sizes.join(dst, src);
                        }
                        (Some(src), Some(dst))
                    }
                };
                if let Some(r) = read
                    && !written_here.contains(&r)
                {
                    read_first.insert(r);
                }
                if let Some(r) = write {
                    written_here.insert(r);
                    self.written.insert(r);
                }
            }
        }
        self.kept = self.written.intersection(&read_first).copied().collect();
        match self.body.clone().find(|&i| self.has_mixed_sizes(i)) {
            Some(i) => Err(WhyNotInLanes::Instruction(i)),
            None => Ok(()),
        }
    }

    fn has_mixed_sizes(&mut self, i: u32) -> bool {
        let uses = self.uses(i).expect("the instruction was checked");
        uses.into_iter().any(|used| match used {
            RegisterUse::Read(r, _) | RegisterUse::Write(r, _) | RegisterUse::Move { dst: r, .. } => {
                self.plan.constant(r).is_none() && self.sizes.size(r) == 0
            }
        })
    }

    /// Returns the first instructions of the basic blocks, in order, and the end of the body.
    fn starts(&self) -> Result<Vec<u32>, WhyNotInLanes> {
        let mut starts = vec![self.body.start, self.body.end];
        for i in self.body.clone() {
            if let Some(to) = target(&self.plan.code[i as usize]) {
                if !(self.body.start..=self.body.end).contains(&to) {
                    return Err(WhyNotInLanes::Instruction(i));
                }
                starts.extend([to, i + 1]);
            }
        }
        starts.sort_unstable();
        starts.dedup();
        Ok(starts)
    }

    /// Returns the row of a register.
    fn row(&mut self, r: Reg, size: usize) -> RowId {
        let start = match self.plan.constant(r) {
            Some(bits) => RowStart::Constant(bits),
            None if self.written.contains(&r) => RowStart::Nothing,
            None => RowStart::Register(r),
        };
        let is_kept = self.kept.contains(&r);
        let rows = &mut self.program.rows;
        *self.rows_of.entry((r, size)).or_insert_with(|| {
            rows.push(RowInfo { size, start, is_kept });
            rows.len() as RowId - 1
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
                    self.program.stacks.push(LoopStack { stack, size, part });
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
                    self.push_function(f, dst, [args[0], args[1], args[0]]);
                    BlockEnd::Branch { cond: dst, when, to: index(to), otherwise: next }
                }
                _ => BlockEnd::Jump(next),
            };
            let ops = std::mem::take(&mut self.ops);
            self.program.blocks.push(BasicBlock { ops, end, begins_loop: false, aligned: None });
        }
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
                    self.program.blocks[to].aligned = Some((stack, here as u16));
                }
            }
        }
        Ok(())
    }

    fn branch(&mut self, cond: Reg, when: bool, to: u16, otherwise: u16) -> BlockEnd {
        BlockEnd::Branch { cond: self.row(cond, 1), when, to, otherwise }
    }

    /// Adds a row for a value of one basic block.
    fn new_row(&mut self, size: usize) -> RowId {
        self.program.rows.push(RowInfo { size, start: RowStart::Nothing, is_kept: false });
        self.program.rows.len() as RowId - 1
    }

    fn push_function(&mut self, f: ElementFunction, dst: RowId, args: [RowId; 3]) {
        let checked = f.check.map(|check| match f.scalar {
            ScalarFn::Binary(scalar) => CheckedFunction { check, scalar },
            _ => panic!("the second operand is checked"),
        });
        self.ops.push(LaneOp::Function { f: f.block, checked, dst, args });
    }

    /// Adds the operations of an instruction that does not jump.
    fn op(&mut self, i: u32) -> Result<(), WhyNotInLanes> {
        let plan = self.plan;
        let refused = WhyNotInLanes::Instruction(i);
        let scalar = plan.scalar_ops[i as usize];
        let with_function = |op: Option<crate::cpu::compile::ScalarOp>| {
            let op = op.ok_or(refused)?;
            Ok((function(op.op, op.operand, op.result).ok_or(refused)?, op.operand.size(), op.result.size()))
        };
        match plan.code[i as usize] {
            Instr::Unary { dst, a, .. } => {
                let (f, operand, result) = with_function(scalar)?;
                let (a, dst) = (self.row(a, operand), self.row(dst, result));
                self.push_function(f, dst, [a; 3]);
            }
            Instr::Binary { dst, a, b, .. } if let Some((dtype, shift, wants_remainder)) = self.power_of_two(i, b) => {
                let (a, dst) = (self.row(a, dtype.size()), self.row(dst, dtype.size()));
                self.ops.push(LaneOp::DividePower { dst, a, dtype, shift, wants_remainder });
            }
            Instr::Binary { dst, a, b, .. } => {
                let (f, operand, result) = with_function(scalar)?;
                let (a, b, dst) = (self.row(a, operand), self.row(b, operand), self.row(dst, result));
                self.push_function(f, dst, [a, b, a]);
            }
            Instr::Select { dst, a, b, c } => {
                let (f, operand, result) = with_function(scalar)?;
                let args = [self.row(a, 1), self.row(b, operand), self.row(c, operand)];
                let dst = self.row(dst, result);
                self.push_function(f, dst, args);
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
                self.ops.push(LaneOp::Push { stack, src });
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
                self.ops.push(LaneOp::Pop { stack, dst });
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
            && let Some(&to) = self.added.get(&b)
        {
            let value = self.row(r, view.dtype.size());
            self.ops.push(LaneOp::AddLater { to, offset: view.offset, index, value });
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
        let known = self.program.stacks.iter().position(|known| known.stack == stack);
        let i = match known {
            Some(i) => {
                let known = self.program.stacks[i].part;
                (known == part || known == StackPart::Own).then_some(i)?
            }
            None => {
                let size = self.element(stack)?.size();
                self.program.stacks.push(LoopStack { stack, size, part: StackPart::Own });
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
