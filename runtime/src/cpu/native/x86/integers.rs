//! Machine code of steps on integers.

use super::{A, C, D, Flags, LoopEmitter};
use crate::cpu::native::divide::{factor_of_unsigned, signed_division};
use crate::cpu::native::steps::{MachineType, NativeValue, NumberType};
use crate::cpu::x86::encode::{Address, MachineOperand};
use crate::cpu::x86::general::{Gpr, IntegerOp, JumpCondition, RegisterOp, ShiftOp};
use anabranch_dsl::DType;
use anabranch_dsl::scalars::{BinaryOp, UnaryOp};

impl LoopEmitter<'_> {
    /// Extends a result of less than 32 bits with zeros again.
    fn narrow(&mut self, ty: MachineType, register: Gpr) {
        if ty.size() < 4 {
            self.e.copy_unsigned(ty.size(), register, MachineOperand::Register(register.number()));
        }
    }

    pub(super) fn integer_unary(&mut self, op: UnaryOp, result: DType, dst: NativeValue, x: NativeValue) {
        let ty = self.steps.ty(x);
        let w = ty.size() == 8;
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

    pub(super) fn integer_binary(&mut self, op: BinaryOp, of: NumberType, dst: NativeValue, [x, y]: [NativeValue; 2]) {
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
}
