//! The encoding of instructions on general-purpose registers, and of jumps.

use super::encode::{Address, Encoder, Label, MachineOperand, VectorLength};

/// A general-purpose register, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gpr(u8);

impl Gpr {
    pub(crate) const RAX: Gpr = Gpr(0);
    pub(crate) const RCX: Gpr = Gpr(1);
    pub(crate) const RDX: Gpr = Gpr(2);
    pub(crate) const RBX: Gpr = Gpr(3);
    pub(crate) const RSP: Gpr = Gpr(4);
    pub(crate) const RBP: Gpr = Gpr(5);
    pub(crate) const RSI: Gpr = Gpr(6);
    pub(crate) const RDI: Gpr = Gpr(7);
    pub(crate) const R8: Gpr = Gpr(8);
    pub(crate) const R9: Gpr = Gpr(9);
    pub(crate) const R10: Gpr = Gpr(10);
    pub(crate) const R11: Gpr = Gpr(11);
    pub(crate) const R12: Gpr = Gpr(12);
    pub(crate) const R13: Gpr = Gpr(13);
    pub(crate) const R14: Gpr = Gpr(14);
    pub(crate) const R15: Gpr = Gpr(15);

    pub(crate) fn number(self) -> u8 {
        self.0
    }

    /// Returns the register with a number below 16.
    pub(crate) fn of_number(number: u8) -> Gpr {
        assert!(number < 16, "there are 16 registers");
        Gpr(number)
    }
}

/// The condition of a jump or a copy, by its number: comparisons of unsigned and of signed numbers,
/// and single flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum JumpCondition {
    Below = 2,
    AtLeast = 3,
    Zero = 4,
    NotZero = 5,
    AtMost = 6,
    Above = 7,
    Sign = 8,
    /// Of floats: one of them is NaN.
    Unordered = 10,
    Less = 12,
    GreaterOrEqual = 13,
    LessOrEqual = 14,
    Greater = 15,
}

impl JumpCondition {
    /// Returns the opposite, if there is a name for it.
    pub(crate) fn negated(self) -> JumpCondition {
        use JumpCondition::*;
        match self {
            Below => AtLeast,
            AtLeast => Below,
            Zero => NotZero,
            NotZero => Zero,
            AtMost => Above,
            Above => AtMost,
            Less => GreaterOrEqual,
            GreaterOrEqual => Less,
            LessOrEqual => Greater,
            Greater => LessOrEqual,
            Sign | Unordered => panic!("the opposite of {self:?} is not used"),
        }
    }
}

/// An operation on two integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntegerOp {
    Add = 0,
    Or = 1,
    And = 4,
    Sub = 5,
    Xor = 6,
    /// Sets flags alone.
    Compare = 7,
}

/// An operation on one register, or on it and on `rdx:rax`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegisterOp {
    Not = 2,
    Neg = 3,
    /// `rdx:rax = rax * x`, unsigned.
    MulUnsigned = 4,
    /// `rdx:rax = rax * x`, signed.
    MulSigned = 5,
    /// `rax = rdx:rax / x`, and `rdx` is the remainder, unsigned.
    DivUnsigned = 6,
    /// The same, signed.
    DivSigned = 7,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShiftOp {
    Left = 4,
    RightUnsigned = 5,
    RightSigned = 7,
}

impl Encoder {
    /// Adds an instruction of 64 bits if `w`. `opcode` is what comes before the operands, except
    /// for the prefix of the registers.
    fn general(&mut self, w: bool, opcode: &[u8], reg: u8, rm: MachineOperand, immediate: &[u8]) {
        self.general_of_bytes(w, false, opcode, reg, rm, immediate);
    }

    /// Adds an instruction like [`general`](Self::general). If an operand `is_byte`, registers 4 to
    /// 7 need a prefix, as they would mean others without.
    fn general_of_bytes(
        &mut self,
        w: bool,
        is_byte: bool,
        opcode: &[u8],
        reg: u8,
        rm: MachineOperand,
        immediate: &[u8],
    ) {
        let [b, x] = Self::extensions(rm);
        let rex = 0x40 | u8::from(w) << 3 | u8::from(reg & 8 != 0) << 2 | u8::from(x) << 1 | u8::from(b);
        // A mandatory prefix comes first.
        let n_prefix = usize::from(matches!(opcode[0], 0x66 | 0xf3));
        self.code.extend(&opcode[..n_prefix]);
        if rex != 0x40 || is_byte {
            self.code.push(rex);
        }
        self.code.extend(&opcode[n_prefix..]);
        self.operands(reg, rm, immediate.len());
        self.code.extend(immediate);
    }

    /// Loads 64 bits.
    pub(crate) fn load(&mut self, dst: Gpr, from: Address) {
        self.general(true, &[0x8b], dst.0, MachineOperand::Memory(from), &[]);
    }

    /// Copies 64 bits.
    pub(crate) fn copy(&mut self, dst: Gpr, src: Gpr) {
        self.general(true, &[0x8b], dst.0, MachineOperand::Register(src.0), &[]);
    }

    /// Copies an integer of 1, 2, 4 or 8 bytes, and sets the upper bits to zero.
    pub(crate) fn copy_unsigned(&mut self, size: usize, dst: Gpr, src: MachineOperand) {
        match size {
            1 => self.general_of_bytes(false, true, &[0x0f, 0xb6], dst.0, src, &[]),
            2 => self.general(false, &[0x0f, 0xb7], dst.0, src, &[]),
            4 => self.general(false, &[0x8b], dst.0, src, &[]),
            8 => self.general(true, &[0x8b], dst.0, src, &[]),
            _ => panic!("no integer has {size} bytes"),
        }
    }

    /// Extends an integer of 32 bits to 64 by its sign.
    pub(crate) fn copy_signed(&mut self, dst: Gpr, src: MachineOperand) {
        self.general(true, &[0x63], dst.0, src, &[]);
    }

    /// Stores the lower 1, 2, 4 or 8 bytes.
    pub(crate) fn store(&mut self, size: usize, to: Address, src: Gpr) {
        let to = MachineOperand::Memory(to);
        match size {
            1 => self.general_of_bytes(false, true, &[0x88], src.0, to, &[]),
            2 => self.general(false, &[0x66, 0x89], src.0, to, &[]),
            4 => self.general(false, &[0x89], src.0, to, &[]),
            8 => self.general(true, &[0x89], src.0, to, &[]),
            _ => panic!("no integer has {size} bytes"),
        }
    }

    /// Sets 32 bits, and the upper ones to zero.
    pub(crate) fn set(&mut self, dst: Gpr, x: u32) {
        self.general(false, &[0xc7], 0, MachineOperand::Register(dst.0), &x.to_le_bytes());
    }

    /// Sets 64 bits. Leaves flags as they are.
    pub(crate) fn set_wide(&mut self, dst: Gpr, x: u64) {
        if let Ok(x) = u32::try_from(x) {
            return self.set(dst, x);
        }
        self.code.extend([0x48 | dst.0 >> 3, 0xb8 | dst.0 & 7]);
        self.code.extend(x.to_le_bytes());
    }

    /// Adds to 64 bits.
    pub(crate) fn add(&mut self, dst: Gpr, x: i32) {
        self.integer_with(IntegerOp::Add, true, dst, x);
    }

    /// Sets the register to the address, or to its lower 32 bits.
    pub(crate) fn address(&mut self, w: bool, dst: Gpr, address: Address) {
        self.general(w, &[0x8d], dst.0, MachineOperand::Memory(address), &[]);
    }

    /// `dst = op(dst, src)`, of 64 bits if `w`, else of 32, with the upper ones set to zero.
    pub(crate) fn integer(&mut self, op: IntegerOp, w: bool, dst: Gpr, src: MachineOperand) {
        self.general(w, &[(op as u8) << 3 | 3], dst.0, src, &[]);
    }

    /// `dst = op(dst, x)`
    pub(crate) fn integer_with(&mut self, op: IntegerOp, w: bool, dst: Gpr, x: i32) {
        self.general(w, &[0x81], op as u8, MachineOperand::Register(dst.0), &x.to_le_bytes());
    }

    /// Compares 64 bits.
    pub(crate) fn compare(&mut self, a: Gpr, b: Gpr) {
        self.integer(IntegerOp::Compare, true, a, MachineOperand::Register(b.0));
    }

    /// Compares 32 bits with a number.
    pub(crate) fn compare_with(&mut self, a: Gpr, x: i32) {
        self.integer_with(IntegerOp::Compare, false, a, x);
    }

    /// Compares a byte with a number.
    pub(crate) fn compare_byte(&mut self, a: Address, x: i8) {
        self.general(false, &[0x80], 7, MachineOperand::Memory(a), &[x.cast_unsigned()]);
    }

    /// Compares 64 bits with zero.
    pub(crate) fn test(&mut self, a: Gpr) {
        self.general(true, &[0x85], a.0, MachineOperand::Register(a.0), &[]);
    }

    /// `dst = dst * src`
    pub(crate) fn multiply(&mut self, w: bool, dst: Gpr, src: MachineOperand) {
        self.general(w, &[0x0f, 0xaf], dst.0, src, &[]);
    }

    /// `dst = src * x`
    pub(crate) fn multiply_with(&mut self, w: bool, dst: Gpr, src: MachineOperand, x: i32) {
        self.general(w, &[0x69], dst.0, src, &x.to_le_bytes());
    }

    pub(crate) fn register(&mut self, op: RegisterOp, w: bool, register: Gpr) {
        self.general(w, &[0xf7], op as u8, MachineOperand::Register(register.0), &[]);
    }

    /// Sets all bits of `rdx` to the sign of `rax`, or those of their lower halves.
    pub(crate) fn extend_to_rdx(&mut self, w: bool) {
        self.code.extend(w.then_some(0x48));
        self.code.push(0x99);
    }

    /// `dst = op(dst, n)`
    pub(crate) fn shift_by(&mut self, op: ShiftOp, w: bool, dst: Gpr, n: u8) {
        self.general(w, &[0xc1], op as u8, MachineOperand::Register(dst.0), &[n]);
    }

    /// `dst = op(src, count)`, by the lower bits of the count. An instruction of BMI2.
    pub(crate) fn shift(&mut self, op: ShiftOp, w: bool, dst: Gpr, src: MachineOperand, count: Gpr) {
        let prefix = match op {
            ShiftOp::Left => 1,
            ShiftOp::RightSigned => 2,
            ShiftOp::RightUnsigned => 3,
        };
        let registers = [dst.0, count.0];
        self.prefix_of_three([2, prefix, 0xf7], w, VectorLength::L128, registers, Self::extensions(src));
        self.operands(dst.0, src, 0);
    }

    /// Sets the lowest byte to 1 if the condition holds, else to 0.
    pub(crate) fn set_if(&mut self, condition: JumpCondition, dst: Gpr) {
        let rm = MachineOperand::Register(dst.0);
        self.general_of_bytes(false, true, &[0x0f, 0x90 | condition as u8], 0, rm, &[]);
    }

    /// Copies if the condition holds. Sets the upper bits of numbers of 32 bits to zero in any
    /// case.
    pub(crate) fn copy_if(&mut self, condition: JumpCondition, w: bool, dst: Gpr, src: MachineOperand) {
        self.general(w, &[0x0f, 0x40 | condition as u8], dst.0, src, &[]);
    }

    /// Counts the bits that are set.
    pub(crate) fn count_bits(&mut self, dst: Gpr, src: Gpr) {
        self.general(false, &[0xf3, 0x0f, 0xb8], dst.0, MachineOperand::Register(src.0), &[]);
    }

    /// Counts the zeros below the lowest bit that is set. An instruction of BMI1.
    pub(crate) fn trailing_zeros(&mut self, dst: Gpr, src: Gpr) {
        self.general(false, &[0xf3, 0x0f, 0xbc], dst.0, MachineOperand::Register(src.0), &[]);
    }

    pub(crate) fn push(&mut self, register: Gpr) {
        self.code.extend((register.0 >= 8).then_some(0x41));
        self.code.push(0x50 | register.0 & 7);
    }

    pub(crate) fn pop(&mut self, register: Gpr) {
        self.code.extend((register.0 >= 8).then_some(0x41));
        self.code.push(0x58 | register.0 & 7);
    }

    /// Calls the function at the address in a register.
    pub(crate) fn call(&mut self, function: Gpr) {
        self.general(false, &[0xff], 2, MachineOperand::Register(function.0), &[]);
    }

    pub(crate) fn jump(&mut self, to: Label) {
        self.code.push(0xe9);
        self.four_bytes(0);
        self.jumps.push((self.code.len(), to));
    }

    pub(crate) fn jump_if(&mut self, condition: JumpCondition, to: Label) {
        self.code.extend([0x0f, 0x80 | condition as u8]);
        self.four_bytes(0);
        self.jumps.push((self.code.len(), to));
    }

    /// Returns to the caller.
    pub(crate) fn leave(&mut self) {
        self.code.push(0xc3);
    }

    /// Zeroes the upper parts of vector registers, so that instructions of SSE are fast, and
    /// returns to the caller.
    pub(crate) fn return_to_caller(&mut self) {
        self.code.extend([0xc5, 0xf8, 0x77]);
        self.leave();
    }
}

#[cfg(test)]
mod tests;
