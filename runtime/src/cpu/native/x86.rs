//! Machine code of steps for x86-64 with AVX2, FMA and BMI2.
//!
//! Functions follow the calling convention of System V on all systems, as do the functions of the
//! [host](super::host) that they call. Integers are in general-purpose registers, extended with
//! zeros, and floats in vector registers. What has no register is in the stack frame:
//!
//! ```text
//! rsp + 0      arguments of calls
//!     + 32     registers that calls may change
//!     + 184    slots, which begin at 0 if there are no calls
//! ```

mod floats;
mod integers;

use super::allocate::{FIRST_POSITION, NativeAllocation, NativePlace, NativeRegisters, allocate};
use super::code::LoopCode;
use super::steps::{
    Decision, MachineType, NativeAddress, NativeBlockId, NativeEnd, NativeStep, NativeSteps, NativeValue, NumberType,
};
use crate::cpu::x86::encode::{Address, Encoder, Label, MachineOperand};
use crate::cpu::x86::general::{Gpr, IntegerOp, JumpCondition};
use crate::cpu::x86::scalar::{self as float, FloatOp};
use anabranch_dsl::DType;
use anabranch_dsl::scalars::{BinaryOp, UnaryOp};
use rustc_hash::FxHashMap;

/// Registers for what has none: operands, results, products and quotients.
const A: Gpr = Gpr::RAX;
const C: Gpr = Gpr::RCX;
const D: Gpr = Gpr::RDX;
/// The same for floats.
const FLOATS: [u8; 3] = [13, 14, 15];

/// The registers of values, the preferred ones last: first those that calls change.
const INTEGERS: [Gpr; 12] = [
    Gpr::R15,
    Gpr::R14,
    Gpr::R13,
    Gpr::R12,
    Gpr::RBP,
    Gpr::RBX,
    Gpr::R11,
    Gpr::R10,
    Gpr::R9,
    Gpr::R8,
    Gpr::RSI,
    Gpr::RDI,
];
/// The first of them are those that calls keep.
const N_KEPT: usize = 6;
const FLOAT_REGISTERS: [u8; 13] = [12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0];

const N_SAVED: u32 = (INTEGERS.len() - N_KEPT + FLOAT_REGISTERS.len()) as u32;
const ARGUMENTS: [Gpr; 3] = [Gpr::RDI, Gpr::RSI, Gpr::RDX];
const SAVED_AT: i32 = 32;

/// The memory that the system touches before it notices that a stack is at its end.
const PAGE: u32 = 4096;

/// The largest stack frame in bytes.
const MAX_FRAME: u32 = 1 << 16;

/// Constants of functions: the sign of a float and all other bits, for both sizes, each for a whole
/// register, and what [rounds](UnaryOp::Nearest) numbers.
const SIGN_32: usize = 0;
const SIGN_64: usize = 16;
const OTHERS_32: usize = 32;
const OTHERS_64: usize = 48;
const ROUND_32: usize = 64;
const ROUND_64: usize = 72;
const ROUND_BITS_32: u32 = 0x4b40_0000;
const ROUND_BITS_64: u64 = 0x4338_0000_0000_0000;

/// The most registers of the plan that are variables, counted for each exit: a list of them is
/// made.
pub(super) const MAX_VARIABLES_AT_EXITS: usize = 1 << 20;

/// Returns whether this processor has the instructions.
pub(super) fn is_supported() -> bool {
    std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("fma")
        && std::is_x86_feature_detected!("bmi2")
}

/// The flags that are set if a decision is true.
#[derive(Clone, Copy, Debug)]
enum Flags {
    Condition(JumpCondition),
    /// Floats are equal if the zero flag is set, unless they are unordered.
    EqualFloats,
}

struct LoopEmitter<'a> {
    e: Encoder,
    steps: &'a NativeSteps,
    allocation: NativeAllocation,
    /// The places of constant floats, by their bits.
    constants: FxHashMap<u64, usize>,
    blocks: Vec<Label>,
    leave: Label,
    frame: i32,
    slots_at: i32,
    /// The position of the step that is emitted.
    position: usize,
}

/// Emits the code of a function, with at most so many registers for values of each kind. Returns
/// `None` if it needs a large stack frame.
pub(super) fn emit(steps: &NativeSteps, max_registers: Option<usize>) -> Option<LoopCode> {
    let mut e = Encoder::default();
    let masks = [1u64 << 31 | 1 << 63, 1 << 63, !(1 << 31 | 1 << 63), !(1 << 63)];
    masks.iter().for_each(|mask| (0..2).for_each(|_| e.code.extend(mask.to_le_bytes())));
    e.code.extend([u64::from(ROUND_BITS_32), ROUND_BITS_64].into_iter().flat_map(u64::to_le_bytes));
    let mut constants = FxHashMap::default();
    for info in &steps.values {
        if let (Some(bits), true) = (info.constant, info.ty.is_float()) {
            constants.entry(bits).or_insert_with(|| {
                e.code.extend(bits.to_le_bytes());
                e.code.len() - 8
            });
        }
    }
    let entry = e.code.len().next_multiple_of(16);
    e.code.resize(entry, 0);
    let integers = INTEGERS.map(Gpr::number);
    let unused = |n: usize| max_registers.map_or(0, |most| n.saturating_sub(most));
    let registers = NativeRegisters {
        integers: &integers[unused(integers.len())..],
        floats: &FLOAT_REGISTERS[unused(FLOAT_REGISTERS.len())..],
    };
    let allocation = allocate(steps, &registers);
    let is_call = |step: &NativeStep| matches!(step, NativeStep::Call { .. });
    let has_calls = steps.blocks.iter().any(|block| block.steps.iter().any(is_call));
    let slots_at = if has_calls { SAVED_AT as u32 + 8 * N_SAVED } else { 0 };
    let frame = slots_at + 8 * allocation.n_slots;
    if frame > MAX_FRAME {
        return None;
    }
    let blocks = steps.blocks.iter().map(|_| e.label()).collect();
    let leave = e.label();
    let slots_at = slots_at as i32;
    let mut emitter =
        LoopEmitter { e, steps, allocation, constants, blocks, leave, frame: frame as i32, slots_at, position: 0 };
    emitter.function();
    Some(LoopCode { bytes: emitter.e.finish(), entry })
}

impl LoopEmitter<'_> {
    fn function(&mut self) {
        let used: Vec<Gpr> = INTEGERS[..N_KEPT]
            .iter()
            .copied()
            .filter(|r| {
                let mut places = self.steps.values.iter().zip(&self.allocation.places);
                places.any(|(info, &place)| !info.ty.is_float() && place == NativePlace::Register(r.number()))
            })
            .collect();
        used.iter().for_each(|&r| self.e.push(r));
        // So that calls find the stack pointer at a multiple of 16.
        let pushed = 8 + 8 * used.len() as i32;
        self.frame += (pushed + self.frame) % 16;
        for page in (1..).map(|i| i * PAGE as i32).take_while(|&page| page < self.frame) {
            self.e.store(8, stack(-page), A);
        }
        self.e.add(Gpr::RSP, -self.frame);
        self.parameters();

        // The rare blocks come last.
        let (hot, cold): (Vec<NativeBlockId>, _) =
            self.steps.order.iter().copied().partition(|id| !self.steps.blocks[id.index()].is_cold);
        let order: Vec<NativeBlockId> = hot.into_iter().chain(cold).collect();
        let mut starts = vec![0; self.steps.blocks.len()];
        let mut position = FIRST_POSITION;
        for id in &self.steps.order {
            starts[id.index()] = position;
            position += 2 * (self.steps.blocks[id.index()].steps.len() + 1);
        }
        for (i, &id) in order.iter().enumerate() {
            self.e.bind(self.blocks[id.index()]);
            self.position = starts[id.index()];
            let block = &self.steps.blocks[id.index()];
            for step in &block.steps {
                self.step(step);
                self.position += 2;
            }
            let end = block.end.as_ref().expect("a block has an end");
            self.end(end, order.get(i + 1).copied());
        }

        self.e.bind(self.leave);
        let mut kept = vec![false; self.steps.values.len()];
        for block in &self.steps.blocks {
            if let Some(NativeEnd::Leave { live, .. }) = &block.end {
                live.iter().for_each(|value| kept[value.index()] = true);
            }
        }
        let registers = self.integer_in(NativeValue::REGISTERS, D);
        for &(variable, offset) in self.steps.variables.iter().filter(|(v, _)| kept[v.index()]) {
            let to = Address::Based { base: registers, index: None, displacement: offset };
            let bits = match self.steps.ty(variable) {
                MachineType::F32 => {
                    let x = self.float_in(variable, FLOATS[0]);
                    self.e.float(&float::TO_BITS_32, [x, 0], MachineOperand::Register(C.number()), None);
                    C
                }
                MachineType::F64 => {
                    let x = self.float_in(variable, FLOATS[0]);
                    self.e.float(&float::STORE_F64, [x, 0], MachineOperand::Memory(to), None);
                    continue;
                }
                _ => self.integer_in(variable, C),
            };
            self.e.store(8, to, bits);
        }
        self.e.add(Gpr::RSP, self.frame);
        used.iter().rev().for_each(|&r| self.e.pop(r));
        self.e.leave();
    }

    /// Brings the parameters to their places. Those of the first two may be each other's registers.
    fn parameters(&mut self) {
        self.e.copy(A, Gpr::RDI);
        let from = [
            (NativeValue::STACKS, Gpr::RSI),
            (NativeValue::REGISTERS, A),
            (NativeValue::TENSORS, D),
            (NativeValue::STOP, C),
        ];
        for (value, register) in from {
            match self.place(value) {
                NativePlace::Register(to) => self.e.copy(Gpr::of_number(to), register),
                NativePlace::Slot(slot) => self.e.store(8, self.slot(slot), register),
                NativePlace::Nowhere | NativePlace::Constant => {}
            }
        }
    }

    // Places.

    fn place(&self, value: NativeValue) -> NativePlace {
        self.allocation.places[value.index()]
    }

    fn slot(&self, slot: u32) -> Address {
        stack(self.slots_at + 8 * slot as i32)
    }

    fn is_in(&self, value: NativeValue, register: u8) -> bool {
        self.place(value) == NativePlace::Register(register)
    }

    /// Returns the register of an integer, or another one to which it was loaded.
    fn integer_in(&mut self, value: NativeValue, other: Gpr) -> Gpr {
        match self.place(value) {
            NativePlace::Register(register) => Gpr::of_number(register),
            _ => {
                self.copy_integer(other, value);
                other
            }
        }
    }

    /// Copies an integer. Leaves flags as they are.
    fn copy_integer(&mut self, to: Gpr, value: NativeValue) {
        match self.place(value) {
            NativePlace::Register(register) if register == to.number() => {}
            NativePlace::Register(register) => self.e.copy(to, Gpr::of_number(register)),
            NativePlace::Slot(slot) => self.e.load(to, self.slot(slot)),
            NativePlace::Constant => {
                let bits = self.steps.constant_of(value).expect("a constant has bits");
                self.e.set_wide(to, bits);
            }
            NativePlace::Nowhere => panic!("{value:?} is read and has no place"),
        }
    }

    /// Returns an integer as an operand, which is another register if it is a constant.
    fn integer_operand(&mut self, value: NativeValue, other: Gpr) -> MachineOperand {
        match self.place(value) {
            NativePlace::Slot(slot) => MachineOperand::Memory(self.slot(slot)),
            _ => MachineOperand::Register(self.integer_in(value, other).number()),
        }
    }

    /// Returns a constant as the immediate operand of an instruction of 64 bits if `w`, else of 32.
    fn immediate(&self, value: NativeValue, w: bool) -> Option<i32> {
        let bits = self.steps.constant_of(value)?;
        if w { i32::try_from(bits.cast_signed()).ok() } else { Some((bits as u32).cast_signed()) }
    }

    /// Returns the register for an integer result.
    fn integer_result(&self, value: NativeValue) -> Gpr {
        match self.place(value) {
            NativePlace::Register(register) => Gpr::of_number(register),
            _ => A,
        }
    }

    /// Brings an integer result from a register to its place.
    fn finish_integer(&mut self, value: NativeValue, from: Gpr) {
        match self.place(value) {
            NativePlace::Register(register) if register == from.number() => {}
            NativePlace::Register(register) => self.e.copy(Gpr::of_number(register), from),
            NativePlace::Slot(slot) => self.e.store(8, self.slot(slot), from),
            NativePlace::Nowhere => {}
            NativePlace::Constant => panic!("a constant is set"),
        }
    }

    /// Returns a float as an operand.
    fn float_operand(&self, value: NativeValue) -> MachineOperand {
        match self.place(value) {
            NativePlace::Register(register) => MachineOperand::Register(register),
            NativePlace::Slot(slot) => MachineOperand::Memory(self.slot(slot)),
            NativePlace::Constant => {
                let bits = self.steps.constant_of(value).expect("a constant has bits");
                MachineOperand::Memory(Address::InCode(self.constants[&bits]))
            }
            NativePlace::Nowhere => panic!("{value:?} is read and has no place"),
        }
    }

    /// Returns the register of a float, or another one to which it was loaded.
    fn float_in(&mut self, value: NativeValue, other: u8) -> u8 {
        match self.float_operand(value) {
            MachineOperand::Register(register) => register,
            _ => {
                self.copy_float(other, value);
                other
            }
        }
    }

    /// Copies a float. Leaves flags as they are.
    fn copy_float(&mut self, to: u8, value: NativeValue) {
        let from = self.float_operand(value);
        let op = match (from, self.steps.ty(value)) {
            (MachineOperand::Register(register), _) if register == to => return,
            (MachineOperand::Register(_), _) => &float::COPY,
            (_, MachineType::F32) => &float::LOAD_F32,
            _ => &float::LOAD_F64,
        };
        self.e.float(op, [to, 0], from, None);
    }

    /// Returns the register for a float result.
    fn float_result(&self, value: NativeValue) -> u8 {
        match self.place(value) {
            NativePlace::Register(register) => register,
            _ => FLOATS[0],
        }
    }

    /// Brings a float result from a register to its place.
    fn finish_float(&mut self, value: NativeValue, from: u8) {
        match self.place(value) {
            NativePlace::Register(register) if register == from => {}
            NativePlace::Register(register) => {
                self.e.float(&float::COPY, [register, 0], MachineOperand::Register(from), None);
            }
            NativePlace::Slot(slot) => {
                let op = if self.steps.ty(value) == MachineType::F32 { &float::STORE_F32 } else { &float::STORE_F64 };
                self.e.float(op, [from, 0], MachineOperand::Memory(self.slot(slot)), None);
            }
            NativePlace::Nowhere => {}
            NativePlace::Constant => panic!("a constant is set"),
        }
    }

    /// Returns an address. Changes `rdx` and `rcx`.
    fn address(&mut self, NativeAddress { base, index, displacement }: NativeAddress) -> Address {
        let base = self.integer_in(base, D);
        let index = index.map(|(index, scale)| (self.integer_in(index, C), scale));
        Address::Based { base, index, displacement }
    }

    // Steps.

    fn step(&mut self, step: &NativeStep) {
        match *step {
            NativeStep::Cast { dst, x } => self.cast(dst, x),
            NativeStep::Unary { op, result, dst, x } => self.unary(op, result, dst, x),
            NativeStep::Convert { from, to, dst, x } => self.convert(from, to, dst, x),
            NativeStep::Binary { op, of, dst, operands } if of.ty.is_float() => {
                self.float_binary(op, of.ty, dst, operands);
            }
            NativeStep::Binary { op, of, dst, operands } => self.integer_binary(op, of, dst, operands),
            NativeStep::MulAdd { dst, operands } => self.multiply_add(dst, operands),
            NativeStep::Choose { dst, decision, values } => self.choose(dst, decision, values),
            NativeStep::Load { dst, from } => {
                let from = MachineOperand::Memory(self.address(from));
                let ty = self.steps.ty(dst);
                if ty.is_float() {
                    let to = self.float_result(dst);
                    self.e.float(by_size(ty, [&float::LOAD_F32, &float::LOAD_F64]), [to, 0], from, None);
                    self.finish_float(dst, to);
                } else {
                    let to = self.integer_result(dst);
                    self.e.copy_unsigned(ty.size(), to, from);
                    self.finish_integer(dst, to);
                }
            }
            NativeStep::Store { value, to } => {
                let to = self.address(to);
                let ty = self.steps.ty(value);
                if ty.is_float() {
                    let from = self.float_in(value, FLOATS[0]);
                    let op = by_size(ty, [&float::STORE_F32, &float::STORE_F64]);
                    self.e.float(op, [from, 0], MachineOperand::Memory(to), None);
                } else {
                    let from = self.integer_in(value, A);
                    self.e.store(ty.size(), to, from);
                }
            }
            NativeStep::Call { function, ref arguments, result } => self.call(function, arguments, result),
        }
    }

    fn cast(&mut self, dst: NativeValue, x: NativeValue) {
        let (from, to) = (self.steps.ty(x), self.steps.ty(dst));
        match (from.is_float(), to.is_float()) {
            (true, true) => {
                assert_eq!(from, to, "a float becomes bits before it becomes another one");
                let register = self.float_result(dst);
                self.copy_float(register, x);
                self.finish_float(dst, register);
            }
            (true, false) => {
                assert!(to.size() >= from.size(), "all bits of a float are kept");
                let (x, register) = (self.float_in(x, FLOATS[0]), self.integer_result(dst));
                let op = by_size(from, [&float::TO_BITS_32, &float::TO_BITS_64]);
                self.e.float(op, [x, 0], MachineOperand::Register(register.number()), None);
                self.finish_integer(dst, register);
            }
            (false, true) => {
                let (x, register) = (self.integer_in(x, A), self.float_result(dst));
                let op = by_size(to, [&float::FROM_BITS_32, &float::FROM_BITS_64]);
                self.e.float(op, [register, 0], MachineOperand::Register(x.number()), None);
                self.finish_float(dst, register);
            }
            (false, false) => {
                let register = self.integer_result(dst);
                if to.size() < from.size() {
                    let x = self.integer_operand(x, A);
                    self.e.copy_unsigned(to.size(), register, x);
                } else {
                    self.copy_integer(register, x);
                }
                self.finish_integer(dst, register);
            }
        }
    }

    fn unary(&mut self, op: UnaryOp, result: DType, dst: NativeValue, x: NativeValue) {
        let ty = self.steps.ty(x);
        if let UnaryOp::Bits | UnaryOp::FromBits = op {
            return self.cast(dst, x);
        }
        if let UnaryOp::FromInt = op {
            return self.float_of_integer(NumberType { ty, is_signed: true }, dst, x);
        }
        if ty.is_float() { self.float_unary(op, dst, x) } else { self.integer_unary(op, result, dst, x) }
    }

    fn convert(&mut self, from: DType, to: DType, dst: NativeValue, x: NativeValue) {
        let (of, ty) = (NumberType::of(from), MachineType::of(to));
        match (from.is_float(), to.is_float()) {
            (true, true) if of.ty == ty => self.cast(dst, x),
            (true, true) => {
                let (source, register) = (self.float_in(x, FLOATS[0]), self.float_result(dst));
                let op = by_size(of.ty, [&float::F32_TO_F64, &float::F64_TO_F32]);
                self.e.float(op, [register, source], MachineOperand::Register(source), None);
                self.finish_float(dst, register);
            }
            (false, true) => self.float_of_integer(of, dst, x),
            (true, false) => self.truncated(of.ty, to, dst, x),
            (false, false) if of.is_signed && of.ty.size() < ty.size() => {
                let (x, register) = (self.integer_operand(x, A), self.integer_result(dst));
                self.e.copy_signed(register, x);
                self.finish_integer(dst, register);
            }
            (false, false) => self.cast(dst, x),
        }
    }

    /// Chooses one of two values.
    fn choose(&mut self, dst: NativeValue, decision: Decision, [x, y]: [NativeValue; 2]) {
        let ty = self.steps.ty(dst);
        if !ty.is_float() {
            let flags = self.flags(decision);
            let to = self.integer_result(dst);
            let w = ty.size() == 8;
            let at = if self.is_in(x, to.number()) { A } else { to };
            match flags {
                Flags::Condition(condition) => {
                    self.copy_integer(at, y);
                    let x = self.integer_operand(x, C);
                    self.e.copy_if(condition, w, at, x);
                    self.finish_integer(dst, at);
                }
                Flags::EqualFloats => {
                    self.copy_integer(A, x);
                    let y = self.integer_operand(y, C);
                    self.e.copy_if(JumpCondition::Unordered, w, A, y);
                    self.e.copy_if(JumpCondition::NotZero, w, A, y);
                    self.finish_integer(dst, A);
                }
            }
            return;
        }
        let to = self.float_result(dst);
        if let Decision::Compare { op, of, operands: [a, b] } = decision
            && of.ty == ty
        {
            let (first, second) = (self.float_in(a, FLOATS[0]), self.float_operand(b));
            let mask = FLOATS[2];
            let compare = by_size(ty, [&float::COMPARE_F32, &float::COMPARE_F64]);
            self.e.float(compare, [mask, first], second, Some(floats::comparison(op)));
            let values = [self.float_in(x, FLOATS[0]), self.float_in(y, FLOATS[1])];
            self.blend(ty, to, values, mask);
            return self.finish_float(dst, to);
        }
        let flags = self.flags(decision);
        let at = if self.is_in(x, to) { FLOATS[2] } else { to };
        let over = self.e.label();
        self.copy_float(at, y);
        match flags {
            Flags::Condition(condition) => self.e.jump_if(condition.negated(), over),
            Flags::EqualFloats => {
                self.e.jump_if(JumpCondition::Unordered, over);
                self.e.jump_if(JumpCondition::NotZero, over);
            }
        }
        self.copy_float(at, x);
        self.e.bind(over);
        self.finish_float(dst, at);
    }

    /// Sets flags. Returns those that are set if the decision is true.
    fn flags(&mut self, decision: Decision) -> Flags {
        match decision {
            Decision::NotZero(x) => {
                let x = self.integer_in(x, A);
                self.e.test(x);
                Flags::Condition(JumpCondition::NotZero)
            }
            Decision::Compare { op, of, operands } => self.compare(op, of, operands),
            Decision::ByteIsZero(at) => {
                let at = self.address(at);
                self.e.compare_byte(at, 0);
                Flags::Condition(JumpCondition::Zero)
            }
        }
    }

    /// Compares two numbers. Returns the flags that are set if the comparison holds.
    fn compare(&mut self, op: BinaryOp, of: NumberType, [x, y]: [NativeValue; 2]) -> Flags {
        if of.ty.is_float() {
            // Of the flags, those for "above" are clear if a number is NaN.
            let [x, y] = if op == BinaryOp::Equal { [x, y] } else { [y, x] };
            let (first, second) = (self.float_in(x, FLOATS[0]), self.float_operand(y));
            self.e.float(by_size(of.ty, [&float::ORDER_F32, &float::ORDER_F64]), [first, 0], second, None);
            return match op {
                BinaryOp::Equal => Flags::EqualFloats,
                BinaryOp::Less => Flags::Condition(JumpCondition::Above),
                _ => Flags::Condition(JumpCondition::AtLeast),
            };
        }
        let w = of.ty.size() == 8;
        let first = self.integer_in(x, A);
        match self.immediate(y, w) {
            Some(immediate) => self.e.integer_with(IntegerOp::Compare, w, first, immediate),
            None => {
                let second = self.integer_operand(y, C);
                self.e.integer(IntegerOp::Compare, w, first, second);
            }
        }
        Flags::Condition(match (op, of.is_signed) {
            (BinaryOp::Equal, _) => JumpCondition::Zero,
            (BinaryOp::Less, true) => JumpCondition::Less,
            (BinaryOp::Less, false) => JumpCondition::Below,
            (_, true) => JumpCondition::LessOrEqual,
            (_, false) => JumpCondition::AtMost,
        })
    }

    /// Calls a function. Saves the registers that it may change.
    fn call(&mut self, function: *const (), arguments: &[NativeValue], result: Option<NativeValue>) {
        let integers = INTEGERS[N_KEPT..].iter().map(|register| (register.number(), false));
        let floats = FLOAT_REGISTERS.iter().map(|&register| (register, true));
        let places = (0..).map(|i| stack(SAVED_AT + 8 * i));
        let is_live = |&((register, is_float), _): &((u8, bool), Address)| {
            self.allocation.is_live_across(register, is_float, self.position)
        };
        let saved: Vec<_> = integers.chain(floats).zip(places).filter(is_live).collect();
        let each = |t: &mut Self, stores: bool| {
            for &((register, is_float), at) in &saved {
                match (is_float, stores) {
                    (true, true) => t.e.float(&float::STORE_F64, [register, 0], MachineOperand::Memory(at), None),
                    (true, false) => t.e.float(&float::LOAD_F64, [register, 0], MachineOperand::Memory(at), None),
                    (false, true) => t.e.store(8, at, Gpr::of_number(register)),
                    (false, false) => t.e.load(Gpr::of_number(register), at),
                }
            }
        };
        each(self, true);
        // Arguments may be in the registers of others.
        for (i, &argument) in arguments.iter().enumerate() {
            let register = self.integer_in(argument, A);
            self.e.store(8, stack(8 * i as i32), register);
        }
        for (i, &register) in ARGUMENTS.iter().enumerate().take(arguments.len()) {
            self.e.load(register, stack(8 * i as i32));
        }
        self.e.set_wide(A, function as u64);
        self.e.call(A);
        each(self, false);
        result.into_iter().for_each(|result| self.finish_integer(result, A));
    }

    // Ends of blocks.

    fn end(&mut self, end: &NativeEnd, next: Option<NativeBlockId>) {
        match *end {
            NativeEnd::Jump(to) => self.jump(to, next),
            NativeEnd::Leave { next: at, .. } => {
                self.e.set(A, at);
                self.e.jump(self.leave);
            }
            NativeEnd::Branch { decision, to: [yes, no] } => {
                let flags = self.flags(decision);
                let [to_yes, to_no] = [yes, no].map(|id| self.blocks[id.index()]);
                let condition = match flags {
                    Flags::Condition(condition) => condition,
                    Flags::EqualFloats => {
                        self.e.jump_if(JumpCondition::Unordered, to_no);
                        JumpCondition::Zero
                    }
                };
                if next == Some(yes) {
                    self.e.jump_if(condition.negated(), to_no);
                } else {
                    self.e.jump_if(condition, to_yes);
                    self.jump(no, next);
                }
            }
        }
    }

    fn jump(&mut self, to: NativeBlockId, next: Option<NativeBlockId>) {
        if next != Some(to) {
            self.e.jump(self.blocks[to.index()]);
        }
    }
}

/// Returns an address in the stack frame.
fn stack(displacement: i32) -> Address {
    Address::Based { base: Gpr::RSP, index: None, displacement }
}

/// Returns the instruction for floats of a type.
fn by_size(ty: MachineType, [of_f32, of_f64]: [&'static FloatOp; 2]) -> &'static FloatOp {
    if ty == MachineType::F32 { of_f32 } else { of_f64 }
}
