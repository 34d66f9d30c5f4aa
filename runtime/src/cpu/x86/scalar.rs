//! The encoding of instructions on single floats, of AVX and FMA.
//!
//! They set the upper part of the register of their result to zero, or copy it from their first
//! source.

use super::encode::{Encoder, MachineOperand, OperandForm, VectorLength};

/// An instruction on single floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FloatOp {
    name: &'static str,
    form: OperandForm,
    /// The table of the opcode, the mandatory prefix and the opcode.
    code: [u8; 3],
    /// The bit `W`.
    w: bool,
    has_immediate: bool,
}

macro_rules! float_ops {
    ($($id:ident $name:literal $form:ident $map:literal $prefix:literal $w:literal $opcode:literal
        $($immediate:ident)?;)*) => {
        $(pub(crate) const $id: FloatOp = FloatOp {
            name: $name,
            form: OperandForm::$form,
            code: [$map, $prefix, $opcode],
            w: $w == 1,
            has_immediate: false $(|| stringify!($immediate).len() > 0)?,
        };)*

        #[cfg(test)]
        const FLOAT_OPS: &[FloatOp] = &[$($id),*];
    };
}

float_ops! {
    ADD_F32 "vaddss" Rvm 1 2 0 0x58;
    ADD_F64 "vaddsd" Rvm 1 3 0 0x58;
    SUB_F32 "vsubss" Rvm 1 2 0 0x5c;
    SUB_F64 "vsubsd" Rvm 1 3 0 0x5c;
    MUL_F32 "vmulss" Rvm 1 2 0 0x59;
    MUL_F64 "vmulsd" Rvm 1 3 0 0x59;
    DIV_F32 "vdivss" Rvm 1 2 0 0x5e;
    DIV_F64 "vdivsd" Rvm 1 3 0 0x5e;
    MIN_F32 "vminss" Rvm 1 2 0 0x5d;
    MIN_F64 "vminsd" Rvm 1 3 0 0x5d;
    MAX_F32 "vmaxss" Rvm 1 2 0 0x5f;
    MAX_F64 "vmaxsd" Rvm 1 3 0 0x5f;
    SQRT_F32 "vsqrtss" Rvm 1 2 0 0x51;
    SQRT_F64 "vsqrtsd" Rvm 1 3 0 0x51;
    // `reg = reg * vvvv + rm`, and `reg = vvvv * rm + reg`.
    MUL_ADD_213_F32 "vfmadd213ss" Rvm 2 1 0 0xa9;
    MUL_ADD_213_F64 "vfmadd213sd" Rvm 2 1 1 0xa9;
    MUL_ADD_231_F32 "vfmadd231ss" Rvm 2 1 0 0xb9;
    MUL_ADD_231_F64 "vfmadd231sd" Rvm 2 1 1 0xb9;
    ROUND_F32 "vroundss" Rvm 3 1 0 0x0a immediate;
    ROUND_F64 "vroundsd" Rvm 3 1 0 0x0b immediate;
    COMPARE_F32 "vcmpss" Rvm 1 2 0 0xc2 immediate;
    COMPARE_F64 "vcmpsd" Rvm 1 3 0 0xc2 immediate;
    ORDER_F32 "vucomiss" Rm 1 0 0 0x2e;
    ORDER_F64 "vucomisd" Rm 1 1 0 0x2e;
    // Chooses the last source where the highest bit of the register in the immediate is set.
    BLEND_F32 "vblendvps" Rvm 3 1 0 0x4a immediate;
    BLEND_F64 "vblendvpd" Rvm 3 1 0 0x4b immediate;
    AND "vandps" Rvm 1 0 0 0x54;
    OR "vorps" Rvm 1 0 0 0x56;
    XOR "vxorps" Rvm 1 0 0 0x57;

    COPY "vmovaps" Rm 1 0 0 0x28;
    LOAD_F32 "vmovss" Rm 1 2 0 0x10;
    LOAD_F64 "vmovsd" Rm 1 3 0 0x10;
    STORE_F32 "vmovss" Mr 1 2 0 0x11;
    STORE_F64 "vmovsd" Mr 1 3 0 0x11;
    // The other operand is a general-purpose register.
    FROM_BITS_32 "vmovd" Rm 1 1 0 0x6e;
    FROM_BITS_64 "vmovq" Rm 1 1 1 0x6e;
    TO_BITS_32 "vmovd" Mr 1 1 0 0x7e;
    TO_BITS_64 "vmovq" Mr 1 1 1 0x7e;
    I32_TO_F32 "vcvtsi2ss" Rvm 1 2 0 0x2a;
    I64_TO_F32 "vcvtsi2ss" Rvm 1 2 1 0x2a;
    I32_TO_F64 "vcvtsi2sd" Rvm 1 3 0 0x2a;
    I64_TO_F64 "vcvtsi2sd" Rvm 1 3 1 0x2a;
    F32_TO_I32 "vcvttss2si" Rm 1 2 0 0x2c;
    F32_TO_I64 "vcvttss2si" Rm 1 2 1 0x2c;
    F64_TO_I32 "vcvttsd2si" Rm 1 3 0 0x2c;
    F64_TO_I64 "vcvttsd2si" Rm 1 3 1 0x2c;

    F32_TO_F64 "vcvtss2sd" Rvm 1 2 0 0x5a;
    F64_TO_F32 "vcvtsd2ss" Rvm 1 3 0 0x5a;
}

impl Encoder {
    /// Adds an instruction on floats. `registers` are its result and its first source, if it has
    /// two, and `rm` is the other source. If the result may be in memory, `rm` is the result.
    pub(crate) fn float(&mut self, op: &FloatOp, registers: [u8; 2], rm: MachineOperand, immediate: Option<u8>) {
        assert_eq!(op.has_immediate, immediate.is_some(), "{}", op.name);
        let [reg, first] = registers;
        let vvvv = if op.form == OperandForm::Rvm { first } else { 0 };
        self.prefix_of_three(op.code, op.w, VectorLength::L128, [reg, vvvv], Self::extensions(rm));
        self.operands(reg, rm, usize::from(op.has_immediate));
        self.code.extend(immediate);
    }
}

#[cfg(test)]
mod tests;
