//! Machine code of steps on floats.

use super::{
    A, C, FLOATS, LoopEmitter, OTHERS_32, OTHERS_64, ROUND_32, ROUND_64, ROUND_BITS_32, ROUND_BITS_64, SIGN_32,
    SIGN_64, by_size,
};
use crate::cpu::native::steps::{MachineType, NativeValue, NumberType};
use crate::cpu::x86::encode::{Address, MachineOperand};
use crate::cpu::x86::general::{IntegerOp, JumpCondition};
use crate::cpu::x86::immediates;
use crate::cpu::x86::scalar::{self as float, FloatOp};
use anabranch_dsl::DType;
use anabranch_dsl::scalars::{BinaryOp, UnaryOp};

impl LoopEmitter<'_> {
    pub(super) fn float_unary(&mut self, op: UnaryOp, dst: NativeValue, x: NativeValue) {
        let ty = self.steps.ty(x);
        let w = ty.size() == 8;
        let source = self.float_in(x, FLOATS[0]);
        let to = if op != UnaryOp::NearestInt { self.float_result(dst) } else { FLOATS[1] };
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
                    UnaryOp::Floor => immediates::DOWN,
                    UnaryOp::Ceil => immediates::UP,
                    _ => immediates::NEAREST,
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
        self.finish_float(dst, to);
    }

    /// Converts integers to floats. Those without a sign fit in 64 signed bits.
    pub(super) fn float_of_integer(&mut self, of: NumberType, dst: NativeValue, x: NativeValue) {
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
    pub(super) fn truncated(&mut self, ty: MachineType, to: DType, dst: NativeValue, x: NativeValue) {
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

    pub(super) fn float_binary(&mut self, op: BinaryOp, ty: MachineType, dst: NativeValue, [x, y]: [NativeValue; 2]) {
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
                self.e.float(compare, [is_nan, first], MachineOperand::Register(first), Some(immediates::UNORDERED));
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
    pub(super) fn blend(&mut self, ty: MachineType, to: u8, [x, y]: [u8; 2], mask: u8) {
        let op = by_size(ty, [&float::BLEND_F32, &float::BLEND_F64]);
        self.e.float(op, [to, y], MachineOperand::Register(x), Some(mask << 4));
    }

    pub(super) fn multiply_add(&mut self, dst: NativeValue, [x, y, z]: [NativeValue; 3]) {
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
}

/// Returns the immediate operand of a comparison.
pub(super) fn comparison(op: BinaryOp) -> u8 {
    match op {
        BinaryOp::Equal => immediates::EQUAL,
        BinaryOp::Less => immediates::LESS,
        BinaryOp::AtMost => immediates::AT_MOST,
        _ => panic!("{op:?} is no comparison"),
    }
}
