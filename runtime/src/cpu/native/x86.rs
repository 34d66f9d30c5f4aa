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

use super::allocate::{FIRST_POSITION, NativeAllocation, NativePlace, NativeRegisters, allocate};
use super::code::LoopCode;
use super::divide::{factor_of_unsigned, signed_division};
use super::steps::{
    Decision, MachineType, NativeAddress, NativeBlockId, NativeEnd, NativeStep, NativeSteps, NativeValue, NumberType,
};
use crate::cpu::x86::encode::{Address, Encoder, Label, MachineOperand};
use crate::cpu::x86::general::{Gpr, IntegerOp, JumpCondition, RegisterOp, ShiftOp};
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

/// Comparisons of floats, false for NaN.
const EQUAL: u8 = 0x00;
const LESS: u8 = 0x11;
const AT_MOST: u8 = 0x12;
const UNORDERED: u8 = 0x03;

/// The most registers of the plan that are variables, counted for each exit: a list of them is
/// made.
pub(super) const MAX_VARIABLES_AT_EXITS: usize = 1 << 20;

/// Returns whether this processor has the instructions.
pub(super) fn is_supported() -> bool {
    std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("fma")
        && std::is_x86_feature_detected!("bmi2")
}

/// What holds after instructions that set flags.
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

    /// Extends a result of less than 32 bits with zeros again.
    fn narrow(&mut self, ty: MachineType, register: Gpr) {
        if ty.size() < 4 {
            self.e.copy_unsigned(ty.size(), register, MachineOperand::Register(register.number()));
        }
    }

    fn unary(&mut self, op: UnaryOp, result: DType, dst: NativeValue, x: NativeValue) {
        let ty = self.steps.ty(x);
        let w = ty.size() == 8;
        if let UnaryOp::Bits | UnaryOp::FromBits = op {
            return self.cast(dst, x);
        }
        if let UnaryOp::FromInt = op {
            return self.float_of_integer(NumberType { ty, is_signed: true }, dst, x);
        }
        if ty.is_float() {
            let source = self.float_in(x, FLOATS[0]);
            let to = if result.is_float() { self.float_result(dst) } else { FLOATS[1] };
            let by_mask = |t: &mut Self, op: &FloatOp, masks: [usize; 2]| {
                let mask = MachineOperand::Memory(Address::InCode(masks[usize::from(w)]));
                t.e.float(op, [to, source], mask, None);
            };
            let itself = MachineOperand::Register(source);
            match op {
                UnaryOp::Neg => by_mask(self, &float::XOR, [SIGN_32, SIGN_64]),
                UnaryOp::Abs => by_mask(self, &float::AND, [OTHERS_32, OTHERS_64]),
                UnaryOp::Sqrt => {
                    self.e.float(by_size(ty, [&float::SQRT_F32, &float::SQRT_F64]), [to, source], itself, None);
                }
                UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round => {
                    let direction = match op {
                        UnaryOp::Floor => 9,
                        UnaryOp::Ceil => 10,
                        _ => 8,
                    };
                    let op = by_size(ty, [&float::ROUND_F32, &float::ROUND_F64]);
                    self.e.float(op, [to, source], itself, Some(direction));
                }
                UnaryOp::Nearest | UnaryOp::NearestInt => {
                    // As on the host: adding 1.5 * 2^mantissa rounds to an integer, which is then
                    // in the low bits.
                    by_mask(self, by_size(ty, [&float::ADD_F32, &float::ADD_F64]), [ROUND_32, ROUND_64]);
                    if op == UnaryOp::NearestInt {
                        let bits = by_size(ty, [&float::TO_BITS_32, &float::TO_BITS_64]);
                        self.e.float(bits, [to, 0], MachineOperand::Register(A.number()), None);
                        if w {
                            self.e.set_wide(C, ROUND_BITS_64);
                            self.e.integer(IntegerOp::Sub, true, A, MachineOperand::Register(C.number()));
                        } else {
                            self.e.integer_with(IntegerOp::Sub, false, A, ROUND_BITS_32.cast_signed());
                        }
                        return self.finish_integer(dst, A);
                    }
                    let round = MachineOperand::Memory(Address::InCode([ROUND_32, ROUND_64][usize::from(w)]));
                    self.e.float(by_size(ty, [&float::SUB_F32, &float::SUB_F64]), [to, to], round, None);
                }
                _ => panic!("{op:?} of a float"),
            }
            return self.finish_float(dst, to);
        }
        let to = self.integer_result(dst);
        match op {
            UnaryOp::Neg => {
                self.copy_integer(to, x);
                self.e.register(RegisterOp::Neg, w, to);
                self.narrow(ty, to);
            }
            UnaryOp::Abs => {
                let x = self.integer_in(x, C);
                self.e.copy(A, x);
                self.e.register(RegisterOp::Neg, w, A);
                self.e.copy_if(JumpCondition::Sign, w, A, MachineOperand::Register(x.number()));
                return self.finish_integer(dst, A);
            }
            UnaryOp::Not if result == DType::Bool => {
                self.copy_integer(to, x);
                self.e.integer_with(IntegerOp::Xor, false, to, 1);
            }
            UnaryOp::Not => {
                self.copy_integer(to, x);
                self.e.register(RegisterOp::Not, w, to);
                self.narrow(ty, to);
            }
            _ => panic!("{op:?} of an integer"),
        }
        self.finish_integer(dst, to);
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

    /// Converts integers to floats. Those without a sign fit in 64 signed bits.
    fn float_of_integer(&mut self, of: NumberType, dst: NativeValue, x: NativeValue) {
        let (ty, w) = (self.steps.ty(dst), of.ty.size() == 8 || !of.is_signed);
        let op = match (ty, w) {
            (MachineType::F32, false) => &float::I32_TO_F32,
            (MachineType::F32, true) => &float::I64_TO_F32,
            (_, false) => &float::I32_TO_F64,
            (_, true) => &float::I64_TO_F64,
        };
        let (x, to) = (self.integer_operand(x, A), self.float_result(dst));
        // So that the result does not wait for earlier ones.
        self.e.float(&float::XOR, [to, to], MachineOperand::Register(to), None);
        self.e.float(op, [to, to], x, None);
        self.finish_float(dst, to);
    }

    /// Rounds a float towards zero, to the nearest integer that the type has. NaN becomes 0.
    fn truncated(&mut self, ty: MachineType, to: DType, dst: NativeValue, x: NativeValue) {
        let x = self.float_in(x, FLOATS[0]);
        let op = match (ty, to) {
            (MachineType::F32, DType::I32) => &float::F32_TO_I32,
            (MachineType::F32, _) => &float::F32_TO_I64,
            (_, DType::I32) => &float::F64_TO_I32,
            _ => &float::F64_TO_I64,
        };
        let [nan, done] = [(); 2].map(|()| self.e.label());
        self.e.float(op, [A.number(), 0], MachineOperand::Register(x), None);
        // Numbers out of range and NaN become the smallest number.
        let (smallest, largest) = match to {
            DType::I32 => (1 << 31, i32::MAX as u64),
            DType::I64 => (1 << 63, i64::MAX as u64),
            _ => (u64::from(u32::MAX), u64::from(u32::MAX)),
        };
        self.e.set_wide(C, smallest);
        self.e.integer(IntegerOp::Compare, to != DType::I32, A, MachineOperand::Register(C.number()));
        let is_in_range = if to == DType::U32 { JumpCondition::AtMost } else { JumpCondition::NotZero };
        self.e.jump_if(is_in_range, done);
        let zero = FLOATS[2];
        self.e.float(&float::XOR, [zero, zero], MachineOperand::Register(zero), None);
        let order = by_size(ty, [&float::ORDER_F32, &float::ORDER_F64]);
        self.e.float(order, [x, 0], MachineOperand::Register(zero), None);
        if to == DType::U32 {
            // NaN and negative numbers become 0.
            self.e.set(A, 0);
            self.e.jump_if(JumpCondition::AtMost, done);
            self.e.set_wide(A, largest);
        } else {
            self.e.jump_if(JumpCondition::Unordered, nan);
            self.e.jump_if(JumpCondition::AtMost, done);
            self.e.set_wide(A, largest);
            self.e.jump(done);
        }
        self.e.bind(nan);
        if to != DType::U32 {
            self.e.set(A, 0);
        }
        self.e.bind(done);
        self.finish_integer(dst, A);
    }

    fn float_binary(&mut self, op: BinaryOp, ty: MachineType, dst: NativeValue, [x, y]: [NativeValue; 2]) {
        let is_truth = matches!(op, BinaryOp::Equal | BinaryOp::Less | BinaryOp::AtMost);
        let first = self.float_in(x, FLOATS[0]);
        let second = self.float_operand(y);
        let to = if is_truth { FLOATS[2] } else { self.float_result(dst) };
        let arithmetic = match op {
            BinaryOp::Add => [&float::ADD_F32, &float::ADD_F64],
            BinaryOp::Sub => [&float::SUB_F32, &float::SUB_F64],
            BinaryOp::Mul => [&float::MUL_F32, &float::MUL_F64],
            BinaryOp::Div => [&float::DIV_F32, &float::DIV_F64],
            BinaryOp::Larger | BinaryOp::Smaller => {
                // The instruction takes the second one of NaN and a number, and the definition a
                // NaN.
                let ops = match op {
                    BinaryOp::Larger => [&float::MAX_F32, &float::MAX_F64],
                    _ => [&float::MIN_F32, &float::MIN_F64],
                };
                let [extreme, is_nan] = [FLOATS[2], FLOATS[1]];
                self.e.float(by_size(ty, ops), [extreme, first], second, None);
                let compare = by_size(ty, [&float::COMPARE_F32, &float::COMPARE_F64]);
                self.e.float(compare, [is_nan, first], MachineOperand::Register(first), Some(UNORDERED));
                self.blend(ty, to, [first, extreme], is_nan);
                return self.finish_float(dst, to);
            }
            BinaryOp::CopySign => {
                let second = self.float_in(y, FLOATS[1]);
                let w = usize::from(ty == MachineType::F64);
                let mask = |masks: [usize; 2]| MachineOperand::Memory(Address::InCode(masks[w]));
                self.e.float(&float::AND, [FLOATS[1], second], mask([SIGN_32, SIGN_64]), None);
                self.e.float(&float::AND, [FLOATS[2], first], mask([OTHERS_32, OTHERS_64]), None);
                self.e.float(&float::OR, [to, FLOATS[2]], MachineOperand::Register(FLOATS[1]), None);
                return self.finish_float(dst, to);
            }
            _ if is_truth => {
                let compare = by_size(ty, [&float::COMPARE_F32, &float::COMPARE_F64]);
                self.e.float(compare, [to, first], second, Some(comparison(op)));
                let register = self.integer_result(dst);
                self.e.float(&float::TO_BITS_32, [to, 0], MachineOperand::Register(register.number()), None);
                self.e.integer_with(IntegerOp::And, false, register, 1);
                return self.finish_integer(dst, register);
            }
            _ => panic!("{op:?} of floats"),
        };
        self.e.float(by_size(ty, arithmetic), [to, first], second, None);
        self.finish_float(dst, to);
    }

    /// Chooses the first of two floats where a mask is set, else the second.
    fn blend(&mut self, ty: MachineType, to: u8, [x, y]: [u8; 2], mask: u8) {
        let op = by_size(ty, [&float::BLEND_F32, &float::BLEND_F64]);
        self.e.float(op, [to, y], MachineOperand::Register(x), Some(mask << 4));
    }

    fn multiply_add(&mut self, dst: NativeValue, [x, y, z]: [NativeValue; 3]) {
        let ty = self.steps.ty(dst);
        let to = self.float_result(dst);
        // The result replaces a factor, or what is added.
        let factor = [(x, y), (y, x)].into_iter().find(|&(replaced, _)| self.is_in(replaced, to));
        match factor {
            Some((_, other)) => {
                let other = self.float_in(other, FLOATS[1]);
                let added = self.float_operand(z);
                self.e.float(by_size(ty, [&float::MUL_ADD_213_F32, &float::MUL_ADD_213_F64]), [to, other], added, None);
            }
            None => {
                let x = self.float_in(x, FLOATS[1]);
                self.copy_float(to, z);
                let y = self.float_operand(y);
                self.e.float(by_size(ty, [&float::MUL_ADD_231_F32, &float::MUL_ADD_231_F64]), [to, x], y, None);
            }
        }
        self.finish_float(dst, to);
    }

    fn integer_binary(&mut self, op: BinaryOp, of: NumberType, dst: NativeValue, [x, y]: [NativeValue; 2]) {
        let (ty, w) = (of.ty, of.ty.size() == 8);
        let to = self.integer_result(dst);
        let simple = match op {
            BinaryOp::Add => Some(IntegerOp::Add),
            BinaryOp::Sub => Some(IntegerOp::Sub),
            BinaryOp::And => Some(IntegerOp::And),
            BinaryOp::Or => Some(IntegerOp::Or),
            BinaryOp::Xor => Some(IntegerOp::Xor),
            BinaryOp::Mul => None,
            BinaryOp::Larger | BinaryOp::Smaller => {
                self.copy_integer(A, x);
                let y = self.integer_operand(y, C);
                self.e.integer(IntegerOp::Compare, w, A, y);
                let takes_second = match (op, of.is_signed) {
                    (BinaryOp::Larger, true) => JumpCondition::Less,
                    (BinaryOp::Larger, false) => JumpCondition::Below,
                    (_, true) => JumpCondition::Greater,
                    (_, false) => JumpCondition::Above,
                };
                self.e.copy_if(takes_second, w, A, y);
                return self.finish_integer(dst, A);
            }
            BinaryOp::Div | BinaryOp::Rem => {
                let result = self.divided(op == BinaryOp::Rem, of, [x, y]);
                return self.finish_integer(dst, result);
            }
            BinaryOp::Equal | BinaryOp::Less | BinaryOp::AtMost => {
                let Flags::Condition(condition) = self.compare(op, of, [x, y]) else {
                    panic!("integers have an order")
                };
                self.e.set_if(condition, A);
                self.e.copy_unsigned(1, to, MachineOperand::Register(A.number()));
                return self.finish_integer(dst, to);
            }
            BinaryOp::ShiftLeft | BinaryOp::ShiftRight => return self.shifted(op, of, dst, [x, y]),
            BinaryOp::CopySign => panic!("integers have no sign bit"),
        };
        let is_commutative = op != BinaryOp::Sub;
        let swaps = is_commutative && (self.is_in(y, to.number()) || self.steps.constant_of(x).is_some());
        let [x, y] = if swaps { [y, x] } else { [x, y] };
        let immediate = self.immediate(y, w);
        match (simple, immediate) {
            (None, Some(factor)) => {
                let x = self.integer_operand(x, A);
                self.e.multiply_with(w, to, x, factor);
            }
            (Some(IntegerOp::Add), Some(displacement)) if !self.is_in(x, to.number()) => {
                let base = self.integer_in(x, A);
                self.e.address(w, to, Address::Based { base, index: None, displacement });
            }
            (Some(op), Some(immediate)) => {
                self.copy_integer(to, x);
                self.e.integer_with(op, w, to, immediate);
            }
            (op, None) => {
                let second = self.integer_operand(y, C);
                // The first operand must not replace the second one.
                let at = if self.is_in(y, to.number()) && !self.is_in(x, to.number()) { A } else { to };
                self.copy_integer(at, x);
                match op {
                    Some(op) => self.e.integer(op, w, at, second),
                    None => self.e.multiply(w, at, second),
                }
                if at != to {
                    self.e.copy(to, at);
                }
            }
        }
        self.narrow(ty, to);
        self.finish_integer(dst, to);
    }

    fn shifted(&mut self, op: BinaryOp, of: NumberType, dst: NativeValue, [x, y]: [NativeValue; 2]) {
        let (ty, w) = (of.ty, of.ty.size() == 8);
        let to = self.integer_result(dst);
        let shift = match (op, of.is_signed) {
            (BinaryOp::ShiftLeft, _) => ShiftOp::Left,
            (_, true) => ShiftOp::RightSigned,
            (_, false) => ShiftOp::RightUnsigned,
        };
        // Counts are taken modulo the number of bits.
        let largest = 8 * ty.size() as u64 - 1;
        if let Some(count) = self.steps.constant_of(y) {
            self.copy_integer(to, x);
            self.e.shift_by(shift, w, to, (count & largest) as u8);
        } else {
            let count = if ty.size() < 4 {
                self.copy_integer(C, y);
                self.e.integer_with(IntegerOp::And, false, C, largest as i32);
                C
            } else {
                self.integer_in(y, C)
            };
            let x = self.integer_operand(x, A);
            self.e.shift(shift, w, to, x, count);
        }
        self.narrow(ty, to);
        self.finish_integer(dst, to);
    }

    /// Divides integers. Returns the register of the quotient or the remainder. Changes `rax`,
    /// `rcx` and `rdx`.
    fn divided(&mut self, wants_remainder: bool, of: NumberType, [x, y]: [NativeValue; 2]) -> Gpr {
        let w = of.ty.size() == 8;
        let divisor = self.steps.constant_of(y).and_then(|bits| match (of.is_signed, w) {
            (true, true) => Some(bits.cast_signed()),
            (true, false) => Some(i64::from((bits as u32).cast_signed())),
            (false, false) => Some(bits as i64),
            (false, true) => None,
        });
        if let Some(divisor) = divisor
            && divisor.unsigned_abs() >= 2
            && divisor != if w { i64::MIN } else { i64::from(i32::MIN) }
        {
            return self.divided_by(divisor, wants_remainder, of, x);
        }
        let y = self.integer_in(y, C);
        if !of.is_signed {
            self.copy_integer(A, x);
            self.e.set(D, 0);
            self.e.register(RegisterOp::DivUnsigned, w, y);
            return if wants_remainder { D } else { A };
        }
        // Dividing the smallest number by -1 would trap.
        let [negated, done] = [(); 2].map(|()| self.e.label());
        self.copy_integer(A, x);
        self.e.integer_with(IntegerOp::Compare, w, y, -1);
        self.e.jump_if(JumpCondition::Zero, negated);
        self.e.extend_to_rdx(w);
        self.e.register(RegisterOp::DivSigned, w, y);
        self.e.jump(done);
        self.e.bind(negated);
        self.e.register(RegisterOp::Neg, w, A);
        self.e.set(D, 0);
        self.e.bind(done);
        if wants_remainder { D } else { A }
    }

    /// Divides integers by a constant whose absolute value is at least 2.
    fn divided_by(&mut self, divisor: i64, wants_remainder: bool, of: NumberType, x: NativeValue) -> Gpr {
        let w = of.ty.size() == 8;
        let bits = if w { 64 } else { 32 };
        let x = self.integer_in(x, C);
        let number = MachineOperand::Register(x.number());
        let magnitude = divisor.unsigned_abs();
        // The quotient in `rdx`.
        let d = MachineOperand::Register(D.number());
        if magnitude.is_power_of_two() {
            let shift = magnitude.trailing_zeros() as u8;
            self.e.copy(D, x);
            if of.is_signed {
                // Negative numbers are rounded up: the divisor less 1 is added to them.
                self.e.shift_by(ShiftOp::RightSigned, w, D, bits - 1);
                self.e.shift_by(ShiftOp::RightUnsigned, w, D, bits - shift);
                self.e.integer(IntegerOp::Add, w, D, number);
                self.e.shift_by(ShiftOp::RightSigned, w, D, shift);
            } else {
                self.e.shift_by(ShiftOp::RightUnsigned, w, D, shift);
            }
        } else if !of.is_signed {
            let factor = factor_of_unsigned(u32::try_from(magnitude).expect("unsigned numbers have 32 bits"));
            self.e.set_wide(A, factor);
            self.e.register(RegisterOp::MulUnsigned, true, x);
        } else {
            let division = signed_division(magnitude, u32::from(bits));
            if w {
                self.e.set_wide(A, division.factor.cast_unsigned());
                self.e.register(RegisterOp::MulSigned, true, x);
            } else {
                self.e.copy_signed(D, number);
                self.e.multiply_with(true, D, d, division.factor as i32);
                self.e.shift_by(ShiftOp::RightSigned, true, D, 32);
            }
            if division.factor < 0 {
                self.e.integer(IntegerOp::Add, w, D, number);
            }
            if division.shift > 0 {
                self.e.shift_by(ShiftOp::RightSigned, w, D, division.shift);
            }
            self.e.copy(A, x);
            self.e.shift_by(ShiftOp::RightUnsigned, w, A, bits - 1);
            self.e.integer(IntegerOp::Add, w, D, MachineOperand::Register(A.number()));
        }
        if divisor < 0 && of.is_signed {
            self.e.register(RegisterOp::Neg, w, D);
        }
        if !wants_remainder {
            return D;
        }
        match i32::try_from(divisor) {
            Ok(divisor) => self.e.multiply_with(w, D, d, divisor),
            Err(_) if w => {
                self.e.set_wide(A, divisor.cast_unsigned());
                self.e.multiply(true, D, MachineOperand::Register(A.number()));
            }
            Err(_) => self.e.multiply_with(false, D, d, (divisor as u32).cast_signed()),
        }
        self.e.copy(A, x);
        self.e.integer(IntegerOp::Sub, w, A, d);
        A
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
            self.e.float(compare, [mask, first], second, Some(comparison(op)));
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

fn comparison(op: BinaryOp) -> u8 {
    match op {
        BinaryOp::Equal => EQUAL,
        BinaryOp::Less => LESS,
        BinaryOp::AtMost => AT_MOST,
        _ => panic!("{op:?} is no comparison"),
    }
}
