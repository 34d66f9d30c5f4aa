//! Translation of the instructions of a loop to the IR of Cranelift.
//!
//! Each plan register used by the loop becomes a variable. If all instructions of the loop use the
//! register with one type, the variable has that type. Otherwise it has 64 bits, which are
//! converted at each use. A move has no type, and a register may hold an `f64` in one place and an
//! `i32` in another, so a moved variable has 64 bits. Registers are loaded on entry and stored on
//! exit.
//!
//! Each exit passes all written registers to the end of the function. If that is too much,
//! registers stay in memory and are loaded and stored at each use. An example is the gradient of a
//! long loop body with many stacks, whose compile time would otherwise be quadratic.

use super::functions::{self, EmittedFunction};
use super::host;
use super::region::{ElementAccess, ElementUse, NativeLoop, access, popped, pushed};
use crate::cpu::compile::{Instr, Plan, Reg, ScalarOp, StackId, TensorOpId};
use crate::cpu::element::strings_in_memory;
use crate::cpu::memory::stack::StackStorage;
use anabranch_dsl::DType;
use anabranch_dsl::ops::{OpClass, ScalarForm};
use cranelift_codegen::Context;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    AbiParam, Block, BlockArg, InstBuilder, MemFlagsData, SigRef, Signature, Type, Value, types,
};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use rustc_hash::{FxHashMap, FxHashSet};

/// The state of the translation of one loop.
struct Translation<'a> {
    plan: &'a Plan,
    region: &'a NativeLoop,
    b: FunctionBuilder<'a>,
    /// The type of each register that the loop uses.
    types: FxHashMap<Reg, Type>,
    /// The variable of each register, or `None` if registers stay in memory.
    vars: Option<FxHashMap<Reg, Variable>>,
    /// The blocks of instructions that are jump targets.
    blocks: FxHashMap<u32, Block>,
    /// The block that stores the registers and returns its parameter.
    exit: Block,
    regs: Value,
    stacks: Value,
    /// The addresses of the tensors whose elements the loop accesses, as in
    /// [`NativeLoop::bases`].
    tensors: Vec<Value>,
    stop: Value,
}

/// Maximum number of registers passed to the end of the function, summed over all exits.
const MAX_HANDED: usize = 1 << 12;

/// Returns whether the loop may be left at an instruction.
fn may_leave(instr: &Instr) -> bool {
    use Instr::{Assert, Jump, Require, RequireIndex, Run, StackMove, StackPop, StackPush};
    matches!(
        instr,
        Jump { .. }
            | Require { .. }
            | RequireIndex { .. }
            | Assert { .. }
            | Run(_)
            | StackPush { .. }
            | StackPop { .. }
            | StackMove { .. }
    )
}

/// Generates the function of a region in `context`.
pub(super) fn translate(
    plan: &Plan,
    region: &NativeLoop,
    target: &dyn TargetIsa,
    context: &mut Context,
    builder_context: &mut FunctionBuilderContext,
) {
    let pointer = types::I64;
    context.func.signature = Signature::new(target.default_call_conv());
    context.func.signature.params.extend([AbiParam::new(pointer); 4]);
    context.func.signature.returns.push(AbiParam::new(types::I32));

    let mut b = FunctionBuilder::new(&mut context.func, builder_context);
    let first = b.create_block();
    b.append_block_params_for_function_params(first);
    b.switch_to_block(first);
    let [regs, stacks, tensors, stop] = b.block_params(first)[..] else { panic!("a function has four parameters") };
    let address = |i: usize| b.ins().load(types::I64, MemFlagsData::trusted(), tensors, place_of(Reg(i as u32)));
    let tensors = (0..region.bases.len()).map(address).collect();
    let exit = b.create_block();
    b.append_block_param(exit, types::I32);
    let types = register_types(plan, region);
    let mut t = Translation {
        plan,
        region,
        b,
        types,
        vars: None,
        blocks: FxHashMap::default(),
        exit,
        regs,
        stacks,
        tensors,
        stop,
    };
    let exits = region.code.clone().filter(|&i| may_leave(&plan.code[i as usize])).count();
    if exits * t.written().len() <= MAX_HANDED {
        t.vars = Some(FxHashMap::default());
    }

    t.enter();
    for i in region.code.clone() {
        t.instr(i);
    }
    t.leave();
    t.b.seal_all_blocks();
    t.b.finalize(target.frontend_config());
}

/// Returns the byte offset of a register.
fn place_of(r: Reg) -> i32 {
    i32::try_from(8 * r.index()).expect("there are fewer than 2^28 registers")
}

/// Returns the machine type of an element.
pub(super) fn machine_type(dtype: DType) -> Type {
    match dtype {
        DType::F32 => types::F32,
        DType::F64 => types::F64,
        DType::I32 | DType::U32 => types::I32,
        // Half-precision elements are only moved and cast, by calls.
        DType::F16 | DType::BF16 => types::I16,
        DType::I64 => types::I64,
        DType::U8 | DType::Bool => types::I8,
        DType::Bytes => strings_in_memory(),
    }
}

/// Equivalence classes of registers that are moved to each other.
struct Classes<'a> {
    plan: &'a Plan,
    parent: FxHashMap<Reg, Reg>,
    /// The types with which instructions use each class.
    asked: FxHashMap<Reg, Vec<Type>>,
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

    fn ask(&mut self, r: Reg, ty: Type) {
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

    fn type_of(&mut self, r: Reg) -> Type {
        let root = self.of(r);
        match self.asked.get(&root).map(Vec::as_slice) {
            Some([ty]) if ty.bits() == 64 || !self.moved.contains(&root) => *ty,
            _ => types::I64,
        }
    }
}

/// Returns the type of each register that a region uses: its element type if all instructions
/// agree, else 64 bits.
fn register_types(plan: &Plan, region: &NativeLoop) -> FxHashMap<Reg, Type> {
    let mut classes =
        Classes { plan, parent: FxHashMap::default(), asked: FxHashMap::default(), moved: FxHashSet::default() };
    let op = |i: u32| plan.scalar_ops[i as usize].map(|op| (machine_type(op.operand), machine_type(op.result)));
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
                classes.ask(a, types::I8);
                classes.join(dst, b);
                classes.join(dst, c);
            }
            Instr::Move { dst, src } => classes.join(dst, src),
            Instr::Require { a, op, .. } => {
                classes.ask(a, machine_type(plan.tensor_ops[op.index()].operands[1].view().dtype));
            }
            Instr::RequireIndex { a, dtype, .. } => classes.ask(a, machine_type(dtype)),
            Instr::JumpIf { cond, .. } | Instr::JumpUnless { cond, .. } | Instr::Assert { cond, .. } => {
                classes.ask(cond, types::I8);
            }
            Instr::Run(op) => {
                let ElementAccess { tensor, index, kind } = native_access(plan, op);
                let (ElementUse::Read(r) | ElementUse::Write(r) | ElementUse::Add(r)) = kind;
                classes.ask(r, machine_type(tensor.dtype));
                if let Some((_, r, dtype)) = index {
                    classes.ask(r, machine_type(dtype));
                }
            }
            Instr::StackPush { op, .. } => {
                let (r, dtype) = pushed(plan, op).expect("a native push has a scalar operand");
                classes.ask(r, machine_type(dtype));
            }
            Instr::StackPop { op, .. } => {
                let (r, dtype) = popped(plan, op).expect("a native pop has a scalar result");
                classes.ask(r, machine_type(dtype));
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

impl Translation<'_> {
    /// Loads the registers and jumps to the first instruction.
    fn enter(&mut self) {
        if self.vars.is_some() {
            let mut used: Vec<Reg> = self.types.keys().copied().collect();
            used.sort_unstable();
            let read = |r: Reg| {
                let (bits, ty) = (self.load(r), self.types[&r]);
                let value = self.element_of(bits, ty);
                let var = self.b.declare_var(ty);
                self.b.def_var(var, value);
                (r, var)
            };
            self.vars = Some(used.into_iter().map(read).collect());
        }
        let code = self.region.code.clone();
        let targets = code.clone().filter_map(|i| match self.plan.code[i as usize] {
            Instr::Jump { to }
            | Instr::JumpIf { to, .. }
            | Instr::JumpUnless { to, .. }
            | Instr::JumpCompare { to, .. } => Some(to),
            _ => None,
        });
        let targets: Vec<u32> = targets.filter(|to| code.contains(to)).chain([self.region.entry]).collect();
        for to in targets {
            let b = &mut self.b;
            self.blocks.entry(to).or_insert_with(|| b.create_block());
        }
        let entry = self.blocks[&self.region.entry];
        self.b.ins().jump(entry, &[]);
    }

    /// Stores the registers and returns.
    fn leave(&mut self) {
        if !self.is_filled() {
            let end = self.region.code.end;
            self.exit_at(end);
        }
        self.b.switch_to_block(self.exit);
        let next = self.b.block_params(self.exit)[0];
        if let Some(vars) = self.vars.take() {
            for r in self.written() {
                let value = self.b.use_var(vars[&r]);
                self.store(r, value);
            }
        }
        self.b.ins().return_(&[next]);
    }

    /// Returns the registers that the loop writes, in order.
    fn written(&self) -> Vec<Reg> {
        let mut written: Vec<Reg> = self.region.code.clone().filter_map(|i| self.written_by(i)).collect();
        written.sort_unstable();
        written.dedup();
        written
    }

    /// Loads the 64 bits of a register.
    fn load(&mut self, r: Reg) -> Value {
        self.b.ins().load(types::I64, MemFlagsData::trusted(), self.regs, place_of(r))
    }

    /// Stores an element to a register.
    fn store(&mut self, r: Reg, value: Value) {
        let bits = self.bits_of(value);
        self.b.ins().store(MemFlagsData::trusted(), bits, self.regs, place_of(r));
    }

    fn written_by(&self, i: u32) -> Option<Reg> {
        match self.plan.code[i as usize] {
            Instr::Unary { dst, .. }
            | Instr::Binary { dst, .. }
            | Instr::Select { dst, .. }
            | Instr::Move { dst, .. } => Some(dst),
            Instr::StackPop { op, .. } => popped(self.plan, op).map(|(r, _)| r),
            Instr::Run(op) => match native_access(self.plan, op).kind {
                ElementUse::Read(r) => Some(r),
                ElementUse::Write(_) | ElementUse::Add(_) => None,
            },
            _ => None,
        }
    }

    fn is_filled(&self) -> bool {
        self.b.current_block().is_none_or(|block| {
            self.b.func.layout.last_inst(block).is_some_and(|i| self.b.func.dfg.insts[i].opcode().is_terminator())
        })
    }

    /// Leaves the function and continues at instruction `next`.
    fn exit_at(&mut self, next: u32) {
        let next = self.b.ins().iconst(types::I32, i64::from(next));
        self.b.ins().jump(self.exit, &[BlockArg::Value(next)]);
    }

    // Elements.

    /// Extracts an element from the 64 bits of a register.
    fn element_of(&mut self, bits: Value, ty: Type) -> Value {
        match ty {
            types::I64 => bits,
            types::F64 => self.b.ins().bitcast(types::F64, MemFlagsData::new(), bits),
            types::F32 => {
                let word = self.b.ins().ireduce(types::I32, bits);
                self.b.ins().bitcast(types::F32, MemFlagsData::new(), word)
            }
            _ => self.b.ins().ireduce(ty, bits),
        }
    }

    /// Extends an element to the 64 bits of a register.
    fn bits_of(&mut self, value: Value) -> Value {
        match self.b.func.dfg.value_type(value) {
            types::I64 => value,
            types::F64 => self.b.ins().bitcast(types::I64, MemFlagsData::new(), value),
            types::F32 => {
                let word = self.b.ins().bitcast(types::I32, MemFlagsData::new(), value);
                self.b.ins().uextend(types::I64, word)
            }
            _ => self.b.ins().uextend(types::I64, value),
        }
    }

    fn get(&mut self, r: Reg, ty: Type) -> Value {
        if let Some(bits) = self.plan.constant(r) {
            return functions::constant(&mut self.b, bits, ty);
        }
        let bits = match self.vars.as_ref().map(|vars| vars[&r]) {
            Some(var) => {
                let value = self.b.use_var(var);
                if self.types[&r] == ty {
                    return value;
                }
                self.bits_of(value)
            }
            None => self.load(r),
        };
        self.element_of(bits, ty)
    }

    fn set(&mut self, r: Reg, value: Value) {
        let Some(var) = self.vars.as_ref().map(|vars| vars[&r]) else { return self.store(r, value) };
        let ty = self.types[&r];
        let value = if self.b.func.dfg.value_type(value) == ty {
            value
        } else {
            let bits = self.bits_of(value);
            self.element_of(bits, ty)
        };
        self.b.def_var(var, value);
    }

    // Instructions.

    fn instr(&mut self, i: u32) {
        if let Some(&block) = self.blocks.get(&i) {
            if !self.is_filled() {
                self.b.ins().jump(block, &[]);
            }
            self.b.switch_to_block(block);
        } else if self.is_filled() {
            // Unreachable code.
            return;
        }
        let op = self.plan.scalar_ops[i as usize];
        match self.plan.code[i as usize] {
            Instr::Unary { f, dst, a } => {
                let op = op.expect("a scalar operation has a name");
                let x = self.get(a, machine_type(op.operand));
                let value = self.unary(op, f, x);
                self.set(dst, value);
            }
            Instr::Binary { f, dst, a, b } => {
                let op = op.expect("a scalar operation has a name");
                let value = self.binary(op, f, a, b);
                self.set(dst, value);
            }
            Instr::Select { dst, a, b, c } => {
                let ty = self.types[&dst];
                let (cond, b, c) = (self.get(a, types::I8), self.get(b, ty), self.get(c, ty));
                let value = self.b.ins().select(cond, b, c);
                self.set(dst, value);
            }
            Instr::Move { dst, src } => {
                let value = self.get(src, self.types[&dst]);
                self.set(dst, value);
            }
            Instr::Require { a, op, .. } => {
                // The only requirement on a number is that it is not zero.
                let value = self.get(a, machine_type(self.plan.tensor_ops[op.index()].operands[1].view().dtype));
                self.unless_exit(value, i);
            }
            Instr::RequireIndex { a, dtype, n, .. } => {
                let index = self.index(a, dtype);
                let is_valid = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, index, n.cast_signed());
                self.unless_exit(is_valid, i);
            }
            Instr::Run(op) => self.element(native_access(self.plan, op), i),
            Instr::Assert { cond, .. } => {
                let cond = self.get(cond, types::I8);
                self.unless_exit(cond, i);
            }
            Instr::Jump { to } => self.jump(to),
            Instr::JumpIf { cond, to } => {
                let cond = self.get(cond, types::I8);
                self.jump_if(cond, true, to, i);
            }
            Instr::JumpUnless { cond, to } => {
                let cond = self.get(cond, types::I8);
                self.jump_if(cond, false, to, i);
            }
            Instr::JumpCompare { f, a, b, to, when } => {
                let cond = self.binary(op.expect("a comparison has a name"), f, a, b);
                self.jump_if(cond, when, to, i);
            }
            Instr::StackNew(s) => self.call_stack(host::clear as *const (), &[s], &[]),
            Instr::StackZeros(s) => self.call_stack(host::zeros as *const (), &[s], &[]),
            Instr::StackMove { dst, src, .. } if dst == src => {}
            Instr::StackMove { dst, src, take } => {
                let take = self.b.ins().iconst(types::I8, i64::from(take));
                let args = [self.stack(dst), self.stack(src), take];
                let done = self.call_with(host::move_stack as *const (), &args, Some(types::I8));
                self.unless_exit(done.expect("the function returns whether there was memory"), i);
            }
            Instr::StackPush { stack, op } => {
                let (r, dtype) = pushed(self.plan, op).expect("a native push has a scalar operand");
                let value = self.get(r, machine_type(dtype));
                self.push(stack, value, dtype, i);
            }
            Instr::StackPop { stack, op } => {
                let (r, dtype) = popped(self.plan, op).expect("a native pop has a scalar result");
                let value = self.pop(stack, r, dtype, i);
                self.set(r, value);
            }
            ref other => unreachable!("{other:?} is not native"),
        }
    }

    /// Returns the index in a register as 64 bits. A negative number is a large index.
    fn index(&mut self, r: Reg, dtype: DType) -> Value {
        let value = self.get(r, machine_type(dtype));
        match dtype {
            DType::I64 => value,
            DType::I32 => self.b.ins().sextend(types::I64, value),
            _ => self.b.ins().uextend(types::I64, value),
        }
    }

    fn jump(&mut self, to: u32) {
        match self.blocks.get(&to) {
            Some(&block) => {
                self.b.ins().jump(block, &[]);
            }
            None => self.exit_at(to),
        }
    }

    /// Jumps if a condition is `when`. Backward jumps check the stop flag.
    fn jump_if(&mut self, cond: Value, when: bool, to: u32, i: u32) {
        let (taken, next) = (self.b.create_block(), self.b.create_block());
        let (yes, no) = if when { (taken, next) } else { (next, taken) };
        self.b.ins().brif(cond, yes, &[], no, &[]);
        self.b.switch_to_block(taken);
        if to <= i {
            let stop = self.b.ins().load(types::I8, MemFlagsData::new(), self.stop, 0);
            let zero = self.b.ins().icmp_imm_s(IntCC::Equal, stop, 0);
            self.unless_exit(zero, i);
        }
        self.jump(to);
        self.b.switch_to_block(next);
    }

    /// Continues if a condition holds, otherwise leaves the function before instruction `i`.
    fn unless_exit(&mut self, cond: Value, i: u32) {
        let (next, leave) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(cond, next, &[], leave, &[]);
        self.b.set_cold_block(leave);
        self.b.switch_to_block(leave);
        self.exit_at(i);
        self.b.switch_to_block(next);
    }

    // Tensors.

    /// Accesses an element. If the index is out of bounds, leaves at instruction `i`.
    fn element(&mut self, access: ElementAccess<'_>, i: u32) {
        let ElementAccess { tensor, index, kind } = access;
        let (size, ty) = (tensor.dtype.size() as i64, machine_type(tensor.dtype));
        let of_tensor = self.region.bases.iter().position(|base| *base == tensor.base);
        let mut at = self.tensors[of_tensor.expect("the loop lists its tensors")];
        if let Some((axis, r, dtype)) = index {
            let index = self.index(r, dtype);
            let n = tensor.shape[axis] as i64;
            let is_valid = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, index, n);
            self.unless_exit(is_valid, i);
            let bytes = self.b.ins().imul_imm_s(index, size * tensor.strides[axis] as i64);
            at = self.b.ins().iadd(at, bytes);
        }
        let at = self.b.ins().iadd_imm_s(at, size * tensor.offset as i64);
        let flags = MemFlagsData::trusted();
        match kind {
            ElementUse::Read(r) => {
                let value = self.b.ins().load(ty, flags, at, 0);
                self.set(r, value);
            }
            ElementUse::Write(r) => {
                let value = self.get(r, ty);
                self.b.ins().store(flags, value, at, 0);
            }
            ElementUse::Add(r) => {
                let (before, value) = (self.b.ins().load(ty, flags, at, 0), self.get(r, ty));
                let sum = match tensor.dtype.is_float() {
                    true => self.b.ins().fadd(before, value),
                    false => self.b.ins().iadd(before, value),
                };
                self.b.ins().store(flags, sum, at, 0);
            }
        }
    }

    // Stacks.

    /// Returns the value and the offset of a field of a stack.
    fn field(&mut self, stack: Value, offset: usize) -> (Value, i32) {
        let offset = i32::try_from(offset).expect("a stack is small");
        (self.b.ins().load(types::I64, MemFlagsData::trusted(), stack, offset), offset)
    }

    /// Returns the address of element `i` of a stack.
    fn element_at(&mut self, stack: Value, i: Value, dtype: DType) -> Value {
        let (address, _) = self.field(stack, StackStorage::ADDRESS);
        let offset = self.b.ins().imul_imm_s(i, dtype.size() as i64);
        self.b.ins().iadd(address, offset)
    }

    /// Pushes a number, inline if capacity suffices, otherwise by a call. If memory is
    /// insufficient, leaves at instruction `i`.
    fn push(&mut self, stack: StackId, value: Value, dtype: DType, i: u32) {
        let stack = self.stack(stack);
        let (fast, slow, next) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let (len, len_at) = self.field(stack, StackStorage::LEN);
        let (capacity, _) = self.field(stack, StackStorage::CAPACITY);
        let has_room = self.b.ins().icmp(IntCC::UnsignedLessThan, len, capacity);
        self.b.ins().brif(has_room, fast, &[], slow, &[]);

        self.b.set_cold_block(slow);
        self.b.switch_to_block(slow);
        let bits = self.bits_of(value);
        let done = self.call_with(host::push as *const (), &[stack, bits], Some(types::I8));
        self.unless_exit(done.expect("the function returns whether there was memory"), i);
        self.b.ins().jump(next, &[]);

        self.b.switch_to_block(fast);
        let to = self.element_at(stack, len, dtype);
        self.b.ins().store(MemFlagsData::trusted(), value, to, 0);
        let more = self.b.ins().iadd_imm_s(len, 1);
        self.b.ins().store(MemFlagsData::trusted(), more, stack, len_at);
        self.b.ins().jump(next, &[]);
        self.b.switch_to_block(next);
    }

    /// Pops a number, inline if there is one. Otherwise a call handles shared elements and zeros
    /// below, or leaves at instruction `i` if the stack is empty.
    fn pop(&mut self, stack: StackId, r: Reg, dtype: DType, i: u32) -> Value {
        let (stack, ty) = (self.stack(stack), machine_type(dtype));
        let (fast, slow, next) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let result = self.b.append_block_param(next, ty);
        let (len, len_at) = self.field(stack, StackStorage::LEN);
        self.b.ins().brif(len, fast, &[], slow, &[]);

        self.b.set_cold_block(slow);
        self.b.switch_to_block(slow);
        // The call stores the number in the register in memory, from which it is loaded.
        let at = i64::try_from(8 * r.index()).expect("a register has an address");
        let to = self.b.ins().iadd_imm_s(self.regs, at);
        let found = self.call_with(host::pop as *const (), &[stack, to], Some(types::I8));
        self.unless_exit(found.expect("the function returns whether there was an element"), i);
        let bits = self.b.ins().load(types::I64, MemFlagsData::trusted(), to, 0);
        let value = self.element_of(bits, ty);
        self.b.ins().jump(next, &[BlockArg::Value(value)]);

        self.b.switch_to_block(fast);
        let fewer = self.b.ins().iadd_imm_s(len, -1);
        self.b.ins().store(MemFlagsData::trusted(), fewer, stack, len_at);
        let from = self.element_at(stack, fewer, dtype);
        let value = self.b.ins().load(ty, MemFlagsData::trusted(), from, 0);
        self.b.ins().jump(next, &[BlockArg::Value(value)]);
        self.b.switch_to_block(next);
        result
    }

    // Calls.

    fn stack(&mut self, s: StackId) -> Value {
        let at = i64::try_from(size_of::<StackStorage>() * s.index()).expect("a stack has an address");
        self.b.ins().iadd_imm_s(self.stacks, at)
    }

    fn call_stack(&mut self, function: *const (), stacks: &[StackId], more: &[(Type, i64)]) {
        let mut args: Vec<Value> = stacks.iter().map(|&s| self.stack(s)).collect();
        args.extend(more.iter().map(|&(ty, x)| self.b.ins().iconst(ty, x)));
        self.call_with(function, &args, None);
    }

    /// Calls a function on constants and the bits of registers. The result is an element.
    fn call(&mut self, function: *const (), constants: &[i64], bits: &[Value], result: DType) -> Value {
        let mut args: Vec<Value> = constants.iter().map(|&c| self.b.ins().iconst(types::I64, c)).collect();
        args.extend(bits);
        let bits = self.call_with(function, &args, Some(types::I64)).expect("the function has a result");
        self.element_of(bits, machine_type(result))
    }

    fn call_with(&mut self, function: *const (), args: &[Value], result: Option<Type>) -> Option<Value> {
        let signature = self.signature(args, result);
        let callee = self.b.ins().iconst(types::I64, function as i64);
        let call = self.b.ins().call_indirect(signature, callee, args);
        self.b.inst_results(call).first().copied()
    }

    fn signature(&mut self, args: &[Value], result: Option<Type>) -> SigRef {
        let mut signature = self.b.func.signature.clone();
        signature.params = args.iter().map(|&a| AbiParam::new(self.b.func.dfg.value_type(a))).collect();
        signature.returns = result.into_iter().map(AbiParam::new).collect();
        self.b.import_signature(signature)
    }

    // Operations. Those without instructions are called.

    fn unary(&mut self, op: ScalarOp, f: fn(u64) -> u64, x: Value) -> Value {
        if matches!(op.op.class, OpClass::Scalar(ScalarForm::Identity)) {
            return x;
        }
        let form = op.op.scalar_form_to(op.operand, op.result);
        let emitted = form.and_then(|form| functions::emit(&mut self.b, &form, &[x]));
        let call = |t: &mut Self| {
            let bits = t.bits_of(x);
            t.call(host::unary as *const (), &[f as *const () as i64], &[bits], op.result)
        };
        match emitted {
            Some(EmittedFunction { result, far: None }) => result,
            Some(EmittedFunction { result, far: Some(far) }) => {
                let (beyond, next) = (self.b.create_block(), self.b.create_block());
                let value = self.b.append_block_param(next, machine_type(op.result));
                self.b.ins().brif(far, beyond, &[], next, &[BlockArg::Value(result)]);
                self.b.set_cold_block(beyond);
                self.b.switch_to_block(beyond);
                let called = call(self);
                self.b.ins().jump(next, &[BlockArg::Value(called)]);
                self.b.switch_to_block(next);
                value
            }
            None => call(self),
        }
    }

    fn binary(&mut self, op: ScalarOp, f: fn(u64, u64) -> u64, x: Reg, y: Reg) -> Value {
        let ty = machine_type(op.operand);
        let (x, y) = (self.get(x, ty), self.get(y, ty));
        let form = op.op.scalar_form_to(op.operand, op.result);
        let emitted = form.and_then(|form| functions::emit(&mut self.b, &form, &[x, y]));
        emitted.map(|emitted| emitted.result).unwrap_or_else(|| {
            let bits = [self.bits_of(x), self.bits_of(y)];
            self.call(host::binary as *const (), &[f as *const () as i64], &bits, op.result)
        })
    }
}
