//! Translation of the instructions of a loop to steps.
//!
//! Each plan register that the loop uses becomes a variable. If all instructions of the loop use
//! the register with one type, the variable has that type. Otherwise it has 64 bits, which are
//! converted at each use. A move has no type, and a register may hold an `f64` in one place and an
//! `i32` in another, so a moved variable has 64 bits. Registers are loaded on entry, and those that
//! the loop has changed and that are read later are stored on exit. In loops with very many of them
//! registers stay in memory, and are loaded and stored at each use.

use super::functions::{self, LoweredFunction, NumberOrTruth};
use super::host;
use super::live_registers::LiveRegisters;
use super::region::{ElementAccess, ElementUse, NativeLoop, access, popped, pushed};
use super::steps::{
    Decision, MachineType, NativeAddress, NativeBlockId, NativeEnd, NativeStep, NativeSteps, NativeValue, NumberType,
};
use crate::cpu::compile::{Instr, Plan, TensorOpId};
use crate::cpu::kernels::ScalarOp;
use crate::cpu::memory::stack::StackStorage;
use crate::cpu::memory::{Reg, StackId};
use anabranch_dsl::DType;
use anabranch_dsl::ops::{OpClass, ScalarForm};
use anabranch_dsl::scalars::BinaryOp;
use rustc_hash::{FxHashMap, FxHashSet};

/// The state of the translation of one loop.
struct LoopLowering<'a> {
    plan: &'a Plan,
    region: &'a NativeLoop,
    live: Option<&'a LiveRegisters>,
    steps: NativeSteps,
    /// The block to which steps are added, if the place can be reached.
    current: Option<NativeBlockId>,
    /// The number of loops around the instruction.
    depth: u32,
    /// The type of each register that the loop uses.
    types: FxHashMap<Reg, MachineType>,
    /// The variable of each register, or `None` if registers stay in memory.
    variables: Option<FxHashMap<Reg, NativeValue>>,
    /// The blocks of instructions that are jump targets.
    blocks: FxHashMap<u32, NativeBlockId>,
    /// The addresses of the tensors whose elements the loop accesses, as in [`NativeLoop::bases`].
    tensors: Vec<NativeValue>,
    /// The number of values that are no intermediate ones of instructions.
    n_before_values: usize,
}

/// Translates a region to the steps of a function. Without what is known of live registers, all
/// stay in memory.
pub(super) fn lower(plan: &Plan, region: &NativeLoop, live: Option<&LiveRegisters>) -> NativeSteps {
    let mut steps = NativeSteps::new();
    let entry = steps.block(0, false);
    steps.order.push(entry);
    let mut lowering = LoopLowering {
        plan,
        region,
        live,
        steps,
        current: Some(entry),
        depth: 0,
        types: register_types(plan, region),
        variables: None,
        blocks: FxHashMap::default(),
        tensors: Vec::new(),
        n_before_values: 0,
    };
    lowering.enter();
    for i in region.code.clone() {
        lowering.instr(i);
    }
    if lowering.current.is_some() {
        lowering.leave(region.code.end);
    }
    lowering.steps
}

/// Returns the byte offset of a register.
fn place_of(r: Reg) -> i32 {
    i32::try_from(8 * r.index()).expect("there are fewer than 2^28 registers")
}

/// Equivalence classes of registers that are moved to each other.
struct Classes<'a> {
    plan: &'a Plan,
    parent: FxHashMap<Reg, Reg>,
    /// The types with which instructions use each class.
    asked: FxHashMap<Reg, Vec<MachineType>>,
    /// The classes with moves.
    moved: FxHashSet<Reg>,
}

impl Classes<'_> {
    fn of(&mut self, r: Reg) -> Reg {
        let parent = *self.parent.entry(r).or_insert(r);
        if parent == r {
            return r;
        }
        let root = self.of(parent);
        self.parent.insert(r, root);
        root
    }

    fn ask(&mut self, r: Reg, ty: MachineType) {
        if self.plan.constant(r).is_some() {
            return;
        }
        let root = self.of(r);
        let asked = self.asked.entry(root).or_default();
        if !asked.contains(&ty) {
            asked.push(ty);
        }
    }

    /// Records a move between two registers.
    fn join(&mut self, a: Reg, b: Reg) {
        let variables: Vec<Reg> = [a, b].into_iter().filter(|&r| self.plan.constant(r).is_none()).collect();
        let [a, b] = match variables[..] {
            [a, b] => [a, b],
            [a] => [a, a],
            _ => return,
        };
        let (a, b) = (self.of(a), self.of(b));
        self.moved.insert(b);
        if a != b {
            self.parent.insert(a, b);
            for ty in self.asked.remove(&a).unwrap_or_default() {
                self.ask(b, ty);
            }
        }
    }

    fn type_of(&mut self, r: Reg) -> MachineType {
        let root = self.of(r);
        match self.asked.get(&root).map(Vec::as_slice) {
            Some([ty]) if ty.size() == 8 || !self.moved.contains(&root) => *ty,
            _ => MachineType::I64,
        }
    }
}

/// Returns the type of each register that a region uses: its element type if all instructions
/// agree, else 64 bits.
fn register_types(plan: &Plan, region: &NativeLoop) -> FxHashMap<Reg, MachineType> {
    let mut classes =
        Classes { plan, parent: FxHashMap::default(), asked: FxHashMap::default(), moved: FxHashSet::default() };
    let op = |i: u32| plan.scalar_ops[i as usize].map(|op| (MachineType::of(op.operand), MachineType::of(op.result)));
    for i in region.code.clone() {
        match plan.code[i as usize] {
            Instr::Unary { dst, a, .. } => {
                let (operand, result) = op(i).expect("a scalar operation has a name");
                classes.ask(a, operand);
                classes.ask(dst, result);
            }
            Instr::Binary { dst, a, b, .. } => {
                let (operand, result) = op(i).expect("a scalar operation has a name");
                classes.ask(a, operand);
                classes.ask(b, operand);
                classes.ask(dst, result);
            }
            Instr::JumpCompare { a, b, .. } => {
                let (operand, _) = op(i).expect("a comparison has a name");
                classes.ask(a, operand);
                classes.ask(b, operand);
            }
            Instr::Select { dst, a, b, c } => {
                classes.ask(a, MachineType::I8);
                classes.join(dst, b);
                classes.join(dst, c);
            }
            Instr::Move { dst, src } => classes.join(dst, src),
            Instr::Require { a, op, .. } => {
                classes.ask(a, MachineType::of(plan.tensor_ops[op.index()].operands[1].view().dtype));
            }
            Instr::RequireIndex { a, dtype, .. } => classes.ask(a, MachineType::of(dtype)),
            Instr::JumpIf { cond, .. } | Instr::JumpUnless { cond, .. } | Instr::Assert { cond, .. } => {
                classes.ask(cond, MachineType::I8);
            }
            Instr::Run(op) => {
                let ElementAccess { tensor, index, kind } = native_access(plan, op);
                let (ElementUse::Read(r) | ElementUse::Write(r) | ElementUse::Add(r)) = kind;
                classes.ask(r, MachineType::of(tensor.dtype));
                if let Some((_, r, dtype)) = index {
                    classes.ask(r, MachineType::of(dtype));
                }
            }
            Instr::StackPush { op, .. } => {
                let (r, dtype) = pushed(plan, op).expect("a native push has a scalar operand");
                classes.ask(r, MachineType::of(dtype));
            }
            Instr::StackPop { op, .. } => {
                let (r, dtype) = popped(plan, op).expect("a native pop has a scalar result");
                classes.ask(r, MachineType::of(dtype));
            }
            _ => {}
        }
    }
    let used: Vec<Reg> = classes.parent.keys().copied().collect();
    used.into_iter().map(|r| (r, classes.type_of(r))).collect()
}

/// Returns the access to an element of an operation in a native loop.
fn native_access(plan: &Plan, op: TensorOpId) -> ElementAccess<'_> {
    access(&plan.tensor_ops[op.index()]).expect("a native operation accesses an element")
}

impl LoopLowering<'_> {
    /// Loads the registers and jumps to the first instruction.
    fn enter(&mut self) {
        self.tensors = (0..self.region.bases.len())
            .map(|i| self.load(MachineType::I64, NativeAddress::at(NativeValue::TENSORS, 8 * i as i32)))
            .collect();
        if let Some(of_loop) = self.live {
            let mut used: Vec<(Reg, MachineType)> = self.types.iter().map(|(&r, &ty)| (r, ty)).collect();
            used.sort_unstable_by_key(|&(r, _)| r);
            let written: FxHashSet<Reg> = of_loop.written.iter().copied().collect();
            let live: FxHashSet<Reg> = of_loop.before(self.region.entry).collect();
            let mut variables = FxHashMap::default();
            for (r, ty) in used {
                let variable = if live.contains(&r) || !written.contains(&r) {
                    self.load_register(r, ty)
                } else {
                    self.steps.value(ty)
                };
                variables.insert(r, variable);
            }
            self.steps.variables = of_loop.written.iter().map(|r| (variables[r], place_of(*r))).collect();
            self.variables = Some(variables);
        }
        self.n_before_values = self.steps.values.len();
        let code = self.region.code.clone();
        let targets = code.clone().filter_map(|i| self.plan.code[i as usize].target());
        let targets: Vec<u32> = targets.filter(|to| code.contains(to)).chain([self.region.entry]).collect();
        for to in targets {
            let depth = self.depth_of(to);
            let steps = &mut self.steps;
            self.blocks.entry(to).or_insert_with(|| steps.block(depth, false));
        }
        let entry = self.blocks[&self.region.entry];
        self.end(NativeEnd::Jump(entry));
    }

    /// Returns the number of loops around an instruction.
    fn depth_of(&self, i: u32) -> u32 {
        self.plan.loops.iter().filter(|l| l.code.contains(&i)).count() as u32
    }

    /// Adds a step. It is dropped in a place that cannot be reached.
    fn add(&mut self, step: NativeStep) {
        if let Some(block) = self.current {
            self.steps.blocks[block.index()].steps.push(step);
        }
    }

    /// Ends the block.
    fn end(&mut self, end: NativeEnd) {
        if let Some(block) = self.current.take() {
            self.steps.blocks[block.index()].end = Some(end);
        }
    }

    fn begin(&mut self, block: NativeBlockId) {
        self.steps.order.push(block);
        self.current = Some(block);
    }

    fn branch(&mut self, decision: Decision, to: [NativeBlockId; 2]) {
        self.end(NativeEnd::Branch { decision, to });
    }

    fn block(&mut self) -> NativeBlockId {
        self.steps.block(self.depth, false)
    }

    fn cold_block(&mut self) -> NativeBlockId {
        self.steps.block(self.depth, true)
    }

    /// Leaves the function and continues at instruction `next`.
    fn leave(&mut self, next: u32) {
        let live = match (self.live, &self.variables) {
            (Some(live), Some(variables)) => live.before(next).map(|r| variables[&r]).collect(),
            _ => Vec::new(),
        };
        self.end(NativeEnd::Leave { next, live });
    }

    // Elements.

    fn load(&mut self, ty: MachineType, from: NativeAddress) -> NativeValue {
        let dst = self.steps.value(ty);
        self.add(NativeStep::Load { dst, from });
        dst
    }

    /// Loads a register of the plan.
    fn load_register(&mut self, r: Reg, ty: MachineType) -> NativeValue {
        self.load(ty, NativeAddress::at(NativeValue::REGISTERS, place_of(r)))
    }

    fn constant(&mut self, bits: u64, ty: MachineType) -> NativeValue {
        self.steps.constant(bits, ty)
    }

    /// Returns the low bits of a value as another type.
    fn cast(&mut self, x: NativeValue, ty: MachineType) -> NativeValue {
        if self.steps.ty(x) == ty {
            return x;
        }
        let dst = self.steps.value(ty);
        self.add(NativeStep::Cast { dst, x });
        dst
    }

    fn get(&mut self, r: Reg, ty: MachineType) -> NativeValue {
        if let Some(bits) = self.plan.constant(r) {
            return self.constant(bits, ty);
        }
        match self.variables.as_ref().map(|variables| variables[&r]) {
            Some(variable) => self.cast(variable, ty),
            None => self.load_register(r, ty),
        }
    }

    fn set(&mut self, r: Reg, value: NativeValue) {
        let Some(dst) = self.variables.as_ref().map(|variables| variables[&r]) else {
            let value = self.cast(value, MachineType::I64);
            return self.add(NativeStep::Store { value, to: NativeAddress::at(NativeValue::REGISTERS, place_of(r)) });
        };
        // The step that has just computed the value sets the variable instead.
        let is_variable = value.index() < self.n_before_values;
        if !is_variable
            && self.steps.ty(value) == self.steps.ty(dst)
            && let Some(block) = self.current
            && let Some(last) = self.steps.blocks[block.index()].steps.last_mut()
            && last.result() == Some(value)
        {
            return last.set_result(dst);
        }
        self.add(NativeStep::Cast { dst, x: value });
    }

    fn binary(&mut self, op: BinaryOp, of: NumberType, operands: [NativeValue; 2]) -> NativeValue {
        let dst = self.steps.value(of.ty);
        self.add(NativeStep::Binary { op, of, dst, operands });
        dst
    }

    // Instructions.

    fn instr(&mut self, i: u32) {
        self.depth = self.depth_of(i);
        if let Some(&block) = self.blocks.get(&i) {
            self.end(NativeEnd::Jump(block));
            self.begin(block);
        } else if self.current.is_none() {
            // Unreachable code.
            return;
        }
        let op = self.plan.scalar_ops[i as usize];
        match self.plan.code[i as usize] {
            Instr::Unary { f, dst, a } => {
                let op = op.expect("a scalar operation has a name");
                let x = self.get(a, MachineType::of(op.operand));
                let value = self.unary(op, f, x);
                self.set(dst, value);
            }
            Instr::Binary { f, dst, a, b } => {
                let op = op.expect("a scalar operation has a name");
                let outcome = self.function_of_two(op, f, a, b);
                let value = self.value_of(outcome);
                self.set(dst, value);
            }
            Instr::Select { dst, a, b, c } => {
                let ty = self.types[&dst];
                let (cond, values) = (self.get(a, MachineType::I8), [self.get(b, ty), self.get(c, ty)]);
                let chosen = self.steps.value(ty);
                self.add(NativeStep::Choose { dst: chosen, decision: Decision::NotZero(cond), values });
                self.set(dst, chosen);
            }
            Instr::Move { dst, src } => {
                let value = self.get(src, self.types[&dst]);
                self.set(dst, value);
            }
            Instr::Require { a, op, .. } => {
                // The only requirement on a number is that it is not zero.
                let ty = MachineType::of(self.plan.tensor_ops[op.index()].operands[1].view().dtype);
                let value = self.get(a, ty);
                self.unless_leave(Decision::NotZero(value), i);
            }
            Instr::RequireIndex { a, dtype, n, .. } => {
                self.index(a, dtype, n, i);
            }
            Instr::Run(op) => self.element(native_access(self.plan, op), i),
            Instr::Assert { cond, .. } => {
                let cond = self.get(cond, MachineType::I8);
                self.unless_leave(Decision::NotZero(cond), i);
            }
            Instr::Jump { to } => self.jump(to),
            Instr::JumpIf { cond, to } => {
                let cond = self.get(cond, MachineType::I8);
                self.jump_if(Decision::NotZero(cond), true, to, i);
            }
            Instr::JumpUnless { cond, to } => {
                let cond = self.get(cond, MachineType::I8);
                self.jump_if(Decision::NotZero(cond), false, to, i);
            }
            Instr::JumpCompare { f, a, b, to, when } => {
                let op = op.expect("a comparison has a name");
                let (decision, holds) = match self.function_of_two(op, f, a, b) {
                    NumberOrTruth::Value(value) => (Decision::NotZero(value), true),
                    NumberOrTruth::Decision { decision, is_negated } => (decision, !is_negated),
                };
                self.jump_if(decision, when == holds, to, i);
            }
            Instr::StackNew(s) => self.call_stack(host::clear as *const (), s),
            Instr::StackZeros(s) => self.call_stack(host::zeros as *const (), s),
            Instr::StackMove { dst, src, .. } if dst == src => {}
            Instr::StackMove { dst, src, take } => {
                let take = self.constant(u64::from(take), MachineType::I64);
                let arguments = vec![self.stack(dst), self.stack(src), take];
                let done = self.call(host::move_stack as *const (), arguments);
                self.unless_leave(Decision::NotZero(done), i);
            }
            Instr::StackPush { stack, op } => {
                let (r, dtype) = pushed(self.plan, op).expect("a native push has a scalar operand");
                let value = self.get(r, MachineType::of(dtype));
                self.push(stack, value, i);
            }
            Instr::StackPop { stack, op } => {
                let (r, dtype) = popped(self.plan, op).expect("a native pop has a scalar result");
                let value = self.pop(stack, r, MachineType::of(dtype), i);
                self.set(r, value);
            }
            ref other => unreachable!("{other:?} is not native"),
        }
    }

    /// Returns the index in a register, extended with zeros. Unless it is below `n`, leaves at
    /// instruction `i`.
    fn index(&mut self, r: Reg, dtype: DType, n: u64, i: u32) -> NativeValue {
        let ty = MachineType::of(dtype);
        let index = self.get(r, ty);
        // A negative number is a large one without its sign, and no valid index has that bit.
        let of = NumberType { ty, is_signed: false };
        let n_signed = if dtype == DType::I32 { n.min(1 << 31) } else { n };
        if ty.size() == 8 || n_signed <= u64::MAX >> (64 - 8 * ty.size()) {
            let n = self.constant(n_signed, ty);
            self.unless_leave(Decision::Compare { op: BinaryOp::Less, of, operands: [index, n] }, i);
        }
        index
    }

    fn jump(&mut self, to: u32) {
        match self.blocks.get(&to) {
            Some(&block) => self.end(NativeEnd::Jump(block)),
            None => self.leave(to),
        }
    }

    /// Jumps if a decision is `when`. Backward jumps check the stop flag.
    fn jump_if(&mut self, decision: Decision, when: bool, to: u32, i: u32) {
        let in_order = |taken: NativeBlockId, next: NativeBlockId| if when { [taken, next] } else { [next, taken] };
        let next = self.block();
        match self.blocks.get(&to) {
            Some(&taken) if to > i => self.branch(decision, in_order(taken, next)),
            _ => {
                let taken = self.block();
                self.branch(decision, in_order(taken, next));
                self.begin(taken);
                if to <= i {
                    self.unless_leave(Decision::ByteIsZero(NativeAddress::at(NativeValue::STOP, 0)), i);
                }
                self.jump(to);
            }
        }
        self.begin(next);
    }

    /// Continues if a decision is true, otherwise leaves the function before instruction `i`.
    fn unless_leave(&mut self, decision: Decision, i: u32) {
        let (next, leave) = (self.block(), self.cold_block());
        self.branch(decision, [next, leave]);
        self.begin(leave);
        self.leave(i);
        self.begin(next);
    }

    // Tensors.

    /// Accesses an element. If the index is out of bounds, leaves at instruction `i`.
    fn element(&mut self, access: ElementAccess<'_>, i: u32) {
        let ElementAccess { tensor, index, kind } = access;
        let (size, ty) = (tensor.dtype.size() as u64, MachineType::of(tensor.dtype));
        let of_tensor = self.region.bases.iter().position(|base| *base == tensor.base);
        let mut base = self.tensors[of_tensor.expect("the loop lists its tensors")];
        let mut scaled = None;
        if let Some((axis, r, dtype)) = index {
            let index = self.index(r, dtype, tensor.shape[axis] as u64, i);
            let bytes = size.cast_signed() * tensor.strides[axis] as i64;
            if let 1 | 2 | 4 | 8 = bytes {
                scaled = Some((index, bytes as u8));
            } else {
                let index = self.cast(index, MachineType::I64);
                let bytes = self.constant(bytes.cast_unsigned(), MachineType::I64);
                let distance = self.binary(BinaryOp::Mul, NumberType::UNSIGNED, [index, bytes]);
                base = self.binary(BinaryOp::Add, NumberType::UNSIGNED, [base, distance]);
            }
        }
        let offset = size * tensor.offset as u64;
        let displacement = i32::try_from(offset).unwrap_or_else(|_| {
            let offset = self.constant(offset, MachineType::I64);
            base = self.binary(BinaryOp::Add, NumberType::UNSIGNED, [base, offset]);
            0
        });
        let at = NativeAddress { base, index: scaled, displacement };
        match kind {
            ElementUse::Read(r) => {
                let value = self.load(ty, at);
                self.set(r, value);
            }
            ElementUse::Write(r) => {
                let value = self.get(r, ty);
                self.add(NativeStep::Store { value, to: at });
            }
            ElementUse::Add(r) => {
                let (before, value) = (self.load(ty, at), self.get(r, ty));
                let value = self.binary(BinaryOp::Add, NumberType::of(tensor.dtype), [before, value]);
                self.add(NativeStep::Store { value, to: at });
            }
        }
    }

    // Stacks.

    /// Returns the address of a field of a stack.
    fn field(stack: StackId, offset: usize) -> NativeAddress {
        let at = size_of::<StackStorage>() * stack.index() + offset;
        NativeAddress::at(NativeValue::STACKS, i32::try_from(at).expect("a stack has an address"))
    }

    /// Returns the address of element `i` of a stack.
    fn element_at(&mut self, stack: StackId, i: NativeValue, ty: MachineType) -> NativeAddress {
        let base = self.load(MachineType::I64, Self::field(stack, StackStorage::ADDRESS));
        NativeAddress { base, index: Some((i, ty.size() as u8)), displacement: 0 }
    }

    /// Pushes a number, inline if capacity suffices, otherwise by a call. If memory is
    /// insufficient, leaves at instruction `i`.
    fn push(&mut self, stack: StackId, value: NativeValue, i: u32) {
        let (fast, slow, next) = (self.block(), self.cold_block(), self.block());
        let len = self.load(MachineType::I64, Self::field(stack, StackStorage::LEN));
        let capacity = self.load(MachineType::I64, Self::field(stack, StackStorage::CAPACITY));
        let operands = [len, capacity];
        self.branch(Decision::Compare { op: BinaryOp::Less, of: NumberType::UNSIGNED, operands }, [fast, slow]);

        self.begin(slow);
        let arguments = vec![self.stack(stack), self.cast(value, MachineType::I64)];
        let done = self.call(host::push as *const (), arguments);
        self.unless_leave(Decision::NotZero(done), i);
        self.end(NativeEnd::Jump(next));

        self.begin(fast);
        let to = self.element_at(stack, len, self.steps.ty(value));
        self.add(NativeStep::Store { value, to });
        let one = self.constant(1, MachineType::I64);
        let value = self.binary(BinaryOp::Add, NumberType::UNSIGNED, [len, one]);
        self.add(NativeStep::Store { value, to: Self::field(stack, StackStorage::LEN) });
        self.end(NativeEnd::Jump(next));
        self.begin(next);
    }

    /// Pops a number, inline if there is one. Otherwise a call handles shared elements and zeros
    /// below, or leaves at instruction `i` if the stack is empty.
    fn pop(&mut self, stack: StackId, r: Reg, ty: MachineType, i: u32) -> NativeValue {
        let (fast, slow, next) = (self.block(), self.cold_block(), self.block());
        let result = self.steps.value(ty);
        let len = self.load(MachineType::I64, Self::field(stack, StackStorage::LEN));
        self.branch(Decision::NotZero(len), [fast, slow]);

        self.begin(slow);
        // The call stores the number in the register in memory, from which it is loaded.
        let at = self.constant(place_of(r) as u64, MachineType::I64);
        let to = self.binary(BinaryOp::Add, NumberType::UNSIGNED, [NativeValue::REGISTERS, at]);
        let arguments = vec![self.stack(stack), to];
        let found = self.call(host::pop as *const (), arguments);
        self.unless_leave(Decision::NotZero(found), i);
        self.add(NativeStep::Load { dst: result, from: NativeAddress::at(NativeValue::REGISTERS, place_of(r)) });
        self.end(NativeEnd::Jump(next));

        self.begin(fast);
        let one = self.constant(1, MachineType::I64);
        let fewer = self.binary(BinaryOp::Sub, NumberType::UNSIGNED, [len, one]);
        self.add(NativeStep::Store { value: fewer, to: Self::field(stack, StackStorage::LEN) });
        let from = self.element_at(stack, fewer, ty);
        self.add(NativeStep::Load { dst: result, from });
        self.end(NativeEnd::Jump(next));
        self.begin(next);
        result
    }

    // Calls.

    fn stack(&mut self, s: StackId) -> NativeValue {
        let at = self.constant((size_of::<StackStorage>() * s.index()) as u64, MachineType::I64);
        self.binary(BinaryOp::Add, NumberType::UNSIGNED, [NativeValue::STACKS, at])
    }

    fn call_stack(&mut self, function: *const (), stack: StackId) {
        let arguments = vec![self.stack(stack)];
        self.add(NativeStep::Call { function, arguments, result: None });
    }

    /// Calls a function that returns 64 bits.
    fn call(&mut self, function: *const (), arguments: Vec<NativeValue>) -> NativeValue {
        let result = self.steps.value(MachineType::I64);
        self.add(NativeStep::Call { function, arguments, result: Some(result) });
        result
    }

    /// Calls a function of the interpreter by one of the host, on the bits of values.
    fn call_on(&mut self, host: *const (), f: *const (), values: &[NativeValue], result: DType) -> NativeValue {
        let mut arguments = vec![self.constant(f as u64, MachineType::I64)];
        arguments.extend(values.iter().map(|&x| self.cast(x, MachineType::I64)));
        let bits = self.call(host, arguments);
        self.cast(bits, MachineType::of(result))
    }

    // Operations. Those without instructions are called.

    /// Returns the value of an outcome.
    fn value_of(&mut self, outcome: NumberOrTruth) -> NativeValue {
        let Some(block) = self.current else { return self.steps.value(MachineType::I8) };
        functions::value_of(&mut self.steps, block, outcome)
    }

    /// Adds the steps of a function. Returns `None` if one of its primitives has no step.
    fn function(&mut self, op: ScalarOp, arguments: &[NativeValue]) -> Option<LoweredFunction> {
        let form = op.op.scalar_form_to(op.operand, op.result)?;
        functions::lower(&mut self.steps, self.current?, &form, arguments)
    }

    fn unary(&mut self, op: ScalarOp, f: fn(u64) -> u64, x: NativeValue) -> NativeValue {
        if matches!(op.op.class, OpClass::Scalar(ScalarForm::Identity)) {
            return x;
        }
        let call = |t: &mut Self| t.call_on(host::unary as *const (), f as *const (), &[x], op.result);
        let Some(LoweredFunction { result, far }) = self.function(op, &[x]) else { return call(self) };
        let result = self.value_of(result);
        let Some(far) = far else { return result };
        let (beyond, next) = (self.cold_block(), self.block());
        let value = self.steps.value(MachineType::of(op.result));
        self.add(NativeStep::Cast { dst: value, x: result });
        let to = [beyond, next];
        match far {
            NumberOrTruth::Value(far) => self.branch(Decision::NotZero(far), to),
            NumberOrTruth::Decision { decision, is_negated: false } => self.branch(decision, to),
            NumberOrTruth::Decision { decision, is_negated: true } => self.branch(decision, [next, beyond]),
        }
        self.begin(beyond);
        let called = call(self);
        self.add(NativeStep::Cast { dst: value, x: called });
        self.end(NativeEnd::Jump(next));
        self.begin(next);
        value
    }

    fn function_of_two(&mut self, op: ScalarOp, f: fn(u64, u64) -> u64, x: Reg, y: Reg) -> NumberOrTruth {
        let ty = MachineType::of(op.operand);
        let values = [self.get(x, ty), self.get(y, ty)];
        match self.function(op, &values) {
            Some(LoweredFunction { result, .. }) => result,
            None => NumberOrTruth::Value(self.call_on(host::binary as *const (), f as *const (), &values, op.result)),
        }
    }
}
