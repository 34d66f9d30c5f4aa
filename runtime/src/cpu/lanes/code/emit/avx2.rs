//! What differs without AVX-512: masks are vectors with all bits of the elements of their lanes
//! set, as large as the largest elements, and instructions have no predicates.

use super::*;
use crate::cpu::x86::encode::OperandForm;

impl Emitter<'_> {
    fn avx2_three(&mut self, op: &VectorOp, dst: u8, a: u8, b: u8) {
        self.e.avx2(op, VectorLength::L256, [dst, a], MachineOperand::Register(b), None);
    }

    /// Sets [`OTHER`] to a bit for each lane of a mask.
    pub(super) fn avx2_signs(&mut self, mask: u8) {
        let op = if self.lanes == LaneCount::Four { &encode::AVX2_SIGNS_64 } else { &encode::AVX2_SIGNS_32 };
        self.e.avx2(op, VectorLength::L256, [OTHER.number(), 0], MachineOperand::Register(mask), None);
    }

    pub(super) fn avx2_load_bytes(&mut self, from: Address, mask: u8) {
        let (extend, subtract) = match self.lanes {
            LaneCount::Four => (&encode::AVX2_BYTES_TO_64, &encode::SUB_I64),
            _ => (&encode::AVX2_BYTES_TO_32, &encode::SUB_I32),
        };
        self.e.avx2(extend, VectorLength::L256, [mask, 0], MachineOperand::Memory(from), None);
        // True is -1, and was 1.
        let zero = self.registers.scratch[0];
        self.avx2_three(&encode::AVX2_XOR, zero, zero, zero);
        self.avx2_three(subtract, mask, zero, mask);
    }

    /// Halves the elements of a mask for lanes of 8 bytes.
    fn avx2_halve(&mut self, dst: u8, mask: u8, scratch: u8) {
        let upper = MachineOperand::Register(scratch);
        self.e.avx2(&encode::AVX2_UPPER_HALF, VectorLength::L256, [mask, 0], upper, Some(1));
        // The even elements of both.
        self.e.avx2(&encode::AVX2_SHUFFLE, VectorLength::L128, [dst, mask], upper, Some(0x88));
    }

    pub(super) fn avx2_mask_to_bytes(&mut self, bytes: u8, mask: u8) {
        let scratch = self.registers.scratch[1];
        let upper = MachineOperand::Register(scratch);
        if self.lanes == LaneCount::Four {
            self.avx2_halve(bytes, mask, scratch);
            let itself = MachineOperand::Register(bytes);
            self.e.avx2(&encode::AVX2_PACK_32, VectorLength::L128, [bytes, bytes], itself, None);
        } else {
            self.e.avx2(&encode::AVX2_UPPER_HALF, VectorLength::L256, [mask, 0], upper, Some(1));
            self.e.avx2(&encode::AVX2_PACK_32, VectorLength::L128, [bytes, mask], upper, None);
        }
        let itself = MachineOperand::Register(bytes);
        self.e.avx2(&encode::AVX2_PACK_16, VectorLength::L128, [bytes, bytes], itself, None);
    }

    /// Returns a register with a mask for elements of a size.
    pub(super) fn avx2_mask_of(&mut self, mask: ValueId, size: usize) -> u8 {
        let [scratch, own] = self.registers.scratch_masks;
        let mask = self.mask_in(mask, own);
        if size == 8 || self.lanes != LaneCount::Four {
            return mask;
        }
        self.avx2_halve(own, mask, scratch);
        own
    }

    /// Compares two vectors, and changes the scratch registers of sources.
    pub(super) fn avx2_compare(&mut self, op: &VectorOp, dst: u8, [x, y]: [u8; 2], comparison: u8) {
        let size = if op.w { 8 } else { 4 };
        let length = self.lanes.length(size);
        let result = self.registers.scratch[2];
        let (equal, greater) = match size {
            8 => (&encode::AVX2_EQUAL_64, &encode::AVX2_GREATER_64),
            _ => (&encode::AVX2_EQUAL_32, &encode::AVX2_GREATER_32),
        };
        let is_opposite = if op.of_avx2().is_some() {
            self.e.avx2(op, length, [result, x], MachineOperand::Register(y), Some(comparison));
            false
        } else {
            let is_unsigned = *op == encode::COMPARE_U32;
            let [x, y] = if *op == encode::COMPARE_U64 { self.avx2_without_sign([x, y]) } else { [x, y] };
            match comparison {
                0 | 4 => self.avx2_three(equal, result, x, y),
                // The larger one is the first, or the smaller one is.
                1 | 2 if is_unsigned => {
                    let extreme = if comparison == 1 { &encode::MAX_U32 } else { &encode::MIN_U32 };
                    self.avx2_three(extreme, result, x, y);
                    self.avx2_three(equal, result, result, x);
                }
                1 => self.avx2_three(greater, result, y, x),
                2 => self.avx2_three(greater, result, x, y),
                other => panic!("{other} is no comparison"),
            }
            matches!((comparison, is_unsigned), (4, _) | (2, false) | (1, true))
        };
        if is_opposite {
            let ones = self.registers.scratch[0];
            self.avx2_three(&encode::AVX2_EQUAL_32, ones, ones, ones);
            self.avx2_three(&encode::AVX2_XOR, result, result, ones);
        }
        let result = MachineOperand::Register(result);
        let op = if length == VectorLength::L128 { &encode::EXTEND_I32 } else { &encode::AVX2_COPY };
        self.e.avx2(op, VectorLength::L256, [dst, 0], result, None);
    }

    /// Flips the highest bits of numbers of 8 bytes, whose order is then that of numbers with a
    /// sign.
    fn avx2_without_sign(&mut self, [x, y]: [u8; 2]) -> [u8; 2] {
        let [first, second, _] = self.registers.scratch;
        let sign = self.registers.scratch_masks[1];
        self.avx2_three(&encode::AVX2_EQUAL_32, sign, sign, sign);
        self.avx2_shift(&encode::SHIFT_LEFT_BY_64, sign, sign, 63);
        self.avx2_three(&encode::AVX2_XOR, first, x, sign);
        self.avx2_three(&encode::AVX2_XOR, second, y, sign);
        [first, second]
    }

    fn avx2_shift(&mut self, op: &VectorOp, dst: u8, x: u8, count: u8) {
        self.e.avx2(op, VectorLength::L256, [dst, 0], MachineOperand::Register(x), Some(count));
    }

    /// Computes what takes several instructions. Returns whether it does.
    fn avx2_several(&mut self, step: &VectorStep, to: u8) -> bool {
        let [first, second, _] = self.registers.scratch;
        let [t, u] = self.registers.scratch_masks;
        match (*step.op, step.sources) {
            (encode::SHIFT_RIGHT_BY_I64, [Some(x), None]) => {
                let x = self.vector_in(x, first);
                let count = step.immediate.expect("it is a shift by a number");
                // The bits that come from the left are those of the sign.
                self.avx2_three(&encode::AVX2_XOR, second, second, second);
                self.avx2_three(&encode::AVX2_GREATER_64, second, second, x);
                self.avx2_shift(&encode::SHIFT_LEFT_BY_64, second, second, 64 - count);
                self.avx2_shift(&encode::SHIFT_RIGHT_BY_U64, to, x, count);
                self.avx2_three(&encode::AVX2_OR, to, to, second);
            }
            (encode::MUL_I64, [Some(x), Some(y)]) => {
                let (x, y) = (self.vector_in(x, first), self.vector_in(y, second));
                // The products of the lower half of one and the upper half of the other.
                self.avx2_shift(&encode::SHIFT_RIGHT_BY_U64, t, x, 32);
                self.avx2_three(&encode::AVX2_MUL_U32, t, t, y);
                self.avx2_shift(&encode::SHIFT_RIGHT_BY_U64, u, y, 32);
                self.avx2_three(&encode::AVX2_MUL_U32, u, u, x);
                self.avx2_three(&encode::ADD_I64, t, t, u);
                self.avx2_shift(&encode::SHIFT_LEFT_BY_64, t, t, 32);
                self.avx2_three(&encode::AVX2_MUL_U32, to, x, y);
                self.avx2_three(&encode::ADD_I64, to, to, t);
            }
            (encode::NARROW_64, [Some(x), None]) => {
                let x = self.vector_in(x, first);
                self.avx2_halve(to, x, second);
            }
            _ => return false,
        }
        true
    }

    pub(super) fn avx2_vector(&mut self, step: &VectorStep) {
        let [first, second, last] = self.registers.scratch;
        let dst = self.result(step.dst);
        match step.sources {
            [Some(x), Some(y)] if step.op.widths == encode::Widths::MaskResult => {
                let operands = [self.vector_in(x, first), self.vector_in(y, second)];
                let comparison = step.immediate.expect("it says what is compared");
                self.avx2_compare(step.op, dst, operands, comparison);
                self.finish_result(step.dst);
                return;
            }
            // The second source where the mask is true.
            [Some(x), Some(y)] if step.mask.is_some() && step.before.is_none() && !step.zeroing => {
                let (x, y) = (self.vector_in(x, first), self.vector_in(y, second));
                self.avx2_blend(step, dst, x, y);
                return;
            }
            _ => {}
        }
        let to = if step.mask.is_some() { last } else { dst };
        if let (Some(before), None) = (step.before, step.mask) {
            match self.place(before) {
                ValuePlace::Register(register) if register == to => {}
                ValuePlace::Register(register) => {
                    self.plain(&encode::COPY, VectorLength::L256, to, MachineOperand::Register(register));
                }
                _ => _ = self.vector_in(before, to),
            }
        }
        if !self.avx2_several(step, to) {
            self.avx2_one(step, to);
        }
        match (step.mask, step.before) {
            (None, _) => self.finish_result(step.dst),
            (Some(_), Some(before)) => {
                let before = self.vector_in(before, first);
                self.avx2_blend(step, dst, before, to);
            }
            (Some(mask), None) => {
                let mask = self.avx2_mask_of(mask, step.op.result_size());
                self.avx2_three(&encode::AVX2_AND, dst, to, mask);
                self.finish_result(step.dst);
            }
        }
    }

    /// Computes what takes one instruction.
    fn avx2_one(&mut self, step: &VectorStep, to: u8) {
        let [first, second, _] = self.registers.scratch;
        let (registers, rm) = match step.sources {
            [Some(a), Some(b)] => {
                let a = self.vector_in(a, first);
                ([to, a], self.operand(step, b, second))
            }
            // Shifts have no operand in memory.
            [Some(a), None] if matches!(step.op.form, OperandForm::Vm(_)) => {
                ([to, 0], MachineOperand::Register(self.vector_in(a, first)))
            }
            [Some(a), None] => ([to, 0], self.operand(step, a, first)),
            [None, _] => panic!("an instruction has a source"),
        };
        self.three(step.op, step.length, registers, rm, step.immediate);
    }

    /// Takes elements of the second register where the mask is true.
    fn avx2_blend(&mut self, step: &VectorStep, dst: u8, x: u8, y: u8) {
        let mask = self.avx2_mask_of(step.mask.expect("it has a mask"), step.op.result_size());
        let y = MachineOperand::Register(y);
        self.e.avx2(&encode::AVX2_BLEND, VectorLength::L256, [dst, x], y, Some(mask << 4));
        self.finish_result(step.dst);
    }
}
