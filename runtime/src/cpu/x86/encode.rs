//! The encoding of instructions of x86-64: operands and labels, and instructions on vectors and
//! masks of AVX-512 and AVX2.
//!
//! A [`VectorOp`] says all that the encoder knows of an instruction. The tests decode each of them,
//! with registers of all groups and each kind of operand in memory, by another implementation.
//!
//! Invariant E1: a displacement has 32 bits or is absent, as one of 8 bits is scaled by the size of
//! the operand.
//!
//! This file must not know which registers hold what.

use super::general::Gpr;

/// The length of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum VectorLength {
    L128,
    L256,
    L512,
}

/// An operand in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A displacement from the address in a register, plus an index times a scale of 1, 2, 4 or 8.
    Based { base: Gpr, index: Option<(Gpr, u8)>, displacement: i32 },
    /// A place in the code.
    InCode(usize),
}

/// The operand that may be in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MachineOperand {
    Register(u8),
    Memory(Address),
    /// One element in memory, for all elements of the vector.
    Broadcast(Address),
}

/// The predicate of an instruction: the elements that it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Predicate {
    /// The number of the mask register, or 0 for all elements.
    pub(crate) mask: u8,
    /// Whether other elements become zero. Otherwise they stay as they are.
    pub(crate) zeroing: bool,
}

impl Predicate {
    pub(crate) const NONE: Predicate = Predicate { mask: 0, zeroing: false };
}

/// Where an instruction has its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperandForm {
    /// The result in `reg`, the first source in `vvvv`, the second in `rm`.
    Rvm,
    /// The result in `reg`, the source in `rm`.
    Rm,
    /// The result in `vvvv`, the source in `rm`, and this number in `reg`.
    Vm(u8),
    /// The source in `reg`, the result in `rm`.
    Mr,
}

/// The registers of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Widths {
    /// All vectors have the same length.
    Same,
    /// The source is half as long as the result, whose length counts.
    HalfSource,
    /// The result is half as long as the source, whose length counts.
    HalfResult,
    /// The result is a mask.
    MaskResult,
    /// The source is a mask.
    MaskSource,
    /// The register is 128 bits long, and 64 bits of it are in memory.
    Quadword,
    /// The elements are anywhere in memory, at indices of 4 bytes.
    Gathered,
    /// The source is in memory, and a quarter or an eighth of the result.
    Eighth,
    /// The result is a general-purpose register.
    ToGeneral,
}

/// An instruction on vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorOp {
    pub(crate) name: &'static str,
    pub(crate) form: OperandForm,
    pub(crate) widths: Widths,
    /// The table of the opcode: 1 for `0F`, 2 for `0F38`, 3 for `0F3A`.
    map: u8,
    /// The mandatory prefix: 0 for none, 1 for `66`, 2 for `F3`, 3 for `F2`.
    prefix: u8,
    /// The bit `W`, which is true for elements of 8 bytes.
    pub(crate) w: bool,
    opcode: u8,
    pub(crate) has_immediate: bool,
    /// Whether the operand in memory may be one element for all.
    pub(crate) may_broadcast: bool,
    /// Whether the previous elements of the result are an operand.
    pub(crate) accumulates: bool,
    /// Whether AVX2 has the instruction.
    in_avx2: bool,
}

macro_rules! vector_ops {
    ($($id:ident $name:literal $form:ident $(/$number:literal)? $widths:ident $map:literal $prefix:literal $w:literal
        $opcode:literal $($flag:ident)*;)*) => {
        $(pub(crate) const $id: VectorOp = VectorOp {
            $($flag: true,)*
            ..vector_op($name, OperandForm::$form $(($number))?, Widths::$widths, [$map, $prefix, $w, $opcode])
        };)*

        #[cfg(test)]
        const VECTOR_OPS: &[VectorOp] = &[$($id),*];
    };
}

const fn vector_op(name: &'static str, form: OperandForm, widths: Widths, code: [u8; 4]) -> VectorOp {
    let [map, prefix, w, opcode] = code;
    VectorOp {
        name,
        form,
        widths,
        map,
        prefix,
        w: w == 1,
        opcode,
        has_immediate: false,
        may_broadcast: false,
        accumulates: false,
        in_avx2: false,
    }
}

vector_ops! {
    ADD_F32 "vaddps" Rvm Same 1 0 0 0x58 may_broadcast in_avx2;
    ADD_F64 "vaddpd" Rvm Same 1 1 1 0x58 may_broadcast in_avx2;
    SUB_F32 "vsubps" Rvm Same 1 0 0 0x5c may_broadcast in_avx2;
    SUB_F64 "vsubpd" Rvm Same 1 1 1 0x5c may_broadcast in_avx2;
    MUL_F32 "vmulps" Rvm Same 1 0 0 0x59 may_broadcast in_avx2;
    MUL_F64 "vmulpd" Rvm Same 1 1 1 0x59 may_broadcast in_avx2;
    DIV_F32 "vdivps" Rvm Same 1 0 0 0x5e may_broadcast in_avx2;
    DIV_F64 "vdivpd" Rvm Same 1 1 1 0x5e may_broadcast in_avx2;
    MIN_F32 "vminps" Rvm Same 1 0 0 0x5d may_broadcast in_avx2;
    MIN_F64 "vminpd" Rvm Same 1 1 1 0x5d may_broadcast in_avx2;
    MAX_F32 "vmaxps" Rvm Same 1 0 0 0x5f may_broadcast in_avx2;
    MAX_F64 "vmaxpd" Rvm Same 1 1 1 0x5f may_broadcast in_avx2;
    SQRT_F32 "vsqrtps" Rm Same 1 0 0 0x51 may_broadcast in_avx2;
    SQRT_F64 "vsqrtpd" Rm Same 1 1 1 0x51 may_broadcast in_avx2;
    MUL_ADD_F32 "vfmadd231ps" Rvm Same 2 1 0 0xb8 may_broadcast accumulates in_avx2;
    MUL_ADD_F64 "vfmadd231pd" Rvm Same 2 1 1 0xb8 may_broadcast accumulates in_avx2;
    ROUND_F32 "vrndscaleps" Rm Same 3 1 0 0x08 may_broadcast has_immediate;
    ROUND_F64 "vrndscalepd" Rm Same 3 1 1 0x09 may_broadcast has_immediate;
    COMPARE_F32 "vcmpps" Rvm MaskResult 1 0 0 0xc2 may_broadcast has_immediate in_avx2;
    COMPARE_F64 "vcmppd" Rvm MaskResult 1 1 1 0xc2 may_broadcast has_immediate in_avx2;

    ADD_I32 "vpaddd" Rvm Same 1 1 0 0xfe may_broadcast in_avx2;
    ADD_I64 "vpaddq" Rvm Same 1 1 1 0xd4 may_broadcast in_avx2;
    SUB_I32 "vpsubd" Rvm Same 1 1 0 0xfa may_broadcast in_avx2;
    SUB_I64 "vpsubq" Rvm Same 1 1 1 0xfb may_broadcast in_avx2;
    MUL_I32 "vpmulld" Rvm Same 2 1 0 0x40 may_broadcast in_avx2;
    MUL_I64 "vpmullq" Rvm Same 2 1 1 0x40 may_broadcast;
    MIN_I32 "vpminsd" Rvm Same 2 1 0 0x39 may_broadcast in_avx2;
    MIN_I64 "vpminsq" Rvm Same 2 1 1 0x39 may_broadcast;
    MIN_U32 "vpminud" Rvm Same 2 1 0 0x3b may_broadcast in_avx2;
    MAX_I32 "vpmaxsd" Rvm Same 2 1 0 0x3d may_broadcast in_avx2;
    MAX_I64 "vpmaxsq" Rvm Same 2 1 1 0x3d may_broadcast;
    MAX_U32 "vpmaxud" Rvm Same 2 1 0 0x3f may_broadcast in_avx2;
    ABS_I32 "vpabsd" Rm Same 2 1 0 0x1e may_broadcast in_avx2;
    ABS_I64 "vpabsq" Rm Same 2 1 1 0x1f may_broadcast;
    AND_32 "vpandd" Rvm Same 1 1 0 0xdb may_broadcast;
    AND_64 "vpandq" Rvm Same 1 1 1 0xdb may_broadcast;
    OR_32 "vpord" Rvm Same 1 1 0 0xeb may_broadcast;
    OR_64 "vporq" Rvm Same 1 1 1 0xeb may_broadcast;
    XOR_32 "vpxord" Rvm Same 1 1 0 0xef may_broadcast;
    XOR_64 "vpxorq" Rvm Same 1 1 1 0xef may_broadcast;
    SHIFT_LEFT_32 "vpsllvd" Rvm Same 2 1 0 0x47 may_broadcast in_avx2;
    SHIFT_LEFT_64 "vpsllvq" Rvm Same 2 1 1 0x47 may_broadcast in_avx2;
    SHIFT_RIGHT_U32 "vpsrlvd" Rvm Same 2 1 0 0x45 may_broadcast in_avx2;
    SHIFT_RIGHT_I32 "vpsravd" Rvm Same 2 1 0 0x46 may_broadcast in_avx2;
    SHIFT_RIGHT_I64 "vpsravq" Rvm Same 2 1 1 0x46 may_broadcast;
    SHIFT_LEFT_BY_32 "vpslld" Vm/6 Same 1 1 0 0x72 may_broadcast has_immediate in_avx2;
    SHIFT_LEFT_BY_64 "vpsllq" Vm/6 Same 1 1 1 0x73 may_broadcast has_immediate in_avx2;
    SHIFT_RIGHT_BY_U32 "vpsrld" Vm/2 Same 1 1 0 0x72 may_broadcast has_immediate in_avx2;
    SHIFT_RIGHT_BY_U64 "vpsrlq" Vm/2 Same 1 1 1 0x73 may_broadcast has_immediate in_avx2;
    SHIFT_RIGHT_BY_I32 "vpsrad" Vm/4 Same 1 1 0 0x72 may_broadcast has_immediate in_avx2;
    SHIFT_RIGHT_BY_I64 "vpsraq" Vm/4 Same 1 1 1 0x72 may_broadcast has_immediate;
    COMPARE_I32 "vpcmpd" Rvm MaskResult 3 1 0 0x1f may_broadcast has_immediate;
    COMPARE_I64 "vpcmpq" Rvm MaskResult 3 1 1 0x1f may_broadcast has_immediate;
    COMPARE_U32 "vpcmpud" Rvm MaskResult 3 1 0 0x1e may_broadcast has_immediate;
    COMPARE_U64 "vpcmpuq" Rvm MaskResult 3 1 1 0x1e may_broadcast has_immediate;
    BLEND_32 "vpblendmd" Rvm Same 2 1 0 0x64 may_broadcast;
    BLEND_64 "vpblendmq" Rvm Same 2 1 1 0x64 may_broadcast;

    I32_TO_F32 "vcvtdq2ps" Rm Same 1 0 0 0x5b may_broadcast in_avx2;
    U32_TO_F32 "vcvtudq2ps" Rm Same 1 3 0 0x7a may_broadcast;
    I32_TO_F64 "vcvtdq2pd" Rm HalfSource 1 2 0 0xe6 may_broadcast in_avx2;
    U32_TO_F64 "vcvtudq2pd" Rm HalfSource 1 2 0 0x7a may_broadcast;
    I64_TO_F32 "vcvtqq2ps" Rm HalfResult 1 0 1 0x5b may_broadcast;
    I64_TO_F64 "vcvtqq2pd" Rm Same 1 2 1 0xe6 may_broadcast;
    F32_TO_F64 "vcvtps2pd" Rm HalfSource 1 0 0 0x5a may_broadcast in_avx2;
    F64_TO_F32 "vcvtpd2ps" Rm HalfResult 1 1 1 0x5a may_broadcast in_avx2;
    F32_TO_I32 "vcvttps2dq" Rm Same 1 2 0 0x5b may_broadcast in_avx2;
    F32_TO_U32 "vcvttps2udq" Rm Same 1 0 0 0x78 may_broadcast;
    F32_TO_I64 "vcvttps2qq" Rm HalfSource 1 1 0 0x7a may_broadcast;
    F64_TO_I32 "vcvttpd2dq" Rm HalfResult 1 1 1 0xe6 may_broadcast in_avx2;
    F64_TO_U32 "vcvttpd2udq" Rm HalfResult 1 0 1 0x78 may_broadcast;
    F64_TO_I64 "vcvttpd2qq" Rm Same 1 1 1 0x7a may_broadcast;
    EXTEND_I32 "vpmovsxdq" Rm HalfSource 2 1 0 0x25 in_avx2;
    EXTEND_U32 "vpmovzxdq" Rm HalfSource 2 1 0 0x35 in_avx2;
    NARROW_64 "vpmovqd" Mr HalfResult 2 2 0 0x35;

    LOAD "vmovups" Rm Same 1 0 0 0x10 in_avx2;
    STORE "vmovups" Mr Same 1 0 0 0x11 in_avx2;
    STORE_64 "vmovupd" Mr Same 1 1 1 0x11 in_avx2;
    STORE_BYTES "vmovdqu8" Mr Same 1 3 0 0x7f;
    COPY "vmovaps" Rm Same 1 0 0 0x28 in_avx2;
    COPY_32 "vmovdqa32" Rm Same 1 1 0 0x6f;
    COPY_64 "vmovdqa64" Rm Same 1 1 1 0x6f;
    BROADCAST_32 "vpbroadcastd" Rm Same 2 1 0 0x58;
    BROADCAST_64 "vpbroadcastq" Rm Same 2 1 1 0x59;
    LOAD_8 "vmovq" Rm Quadword 1 2 1 0x7e;
    STORE_8 "vmovq" Mr Quadword 1 1 1 0xd6 in_avx2;
    GATHER_32 "vgatherdps" Rm Gathered 2 1 0 0x92 in_avx2;
    GATHER_64 "vgatherdpd" Rm Gathered 2 1 1 0x92 in_avx2;

    // Those that AVX-512 has in another form.
    AVX2_AND "vpand" Rvm Same 1 1 0 0xdb in_avx2;
    AVX2_AND_NOT "vpandn" Rvm Same 1 1 0 0xdf in_avx2;
    AVX2_OR "vpor" Rvm Same 1 1 0 0xeb in_avx2;
    AVX2_XOR "vpxor" Rvm Same 1 1 0 0xef in_avx2;
    AVX2_COPY "vmovdqa" Rm Same 1 1 0 0x6f in_avx2;
    AVX2_ROUND_F32 "vroundps" Rm Same 3 1 0 0x08 has_immediate in_avx2;
    AVX2_ROUND_F64 "vroundpd" Rm Same 3 1 0 0x09 has_immediate in_avx2;
    AVX2_BROADCAST_32 "vpbroadcastd" Rm Same 2 1 0 0x58 in_avx2;
    AVX2_BROADCAST_64 "vpbroadcastq" Rm Same 2 1 0 0x59 in_avx2;
    AVX2_EQUAL_32 "vpcmpeqd" Rvm Same 1 1 0 0x76 in_avx2;
    AVX2_EQUAL_64 "vpcmpeqq" Rvm Same 2 1 0 0x29 in_avx2;
    AVX2_GREATER_32 "vpcmpgtd" Rvm Same 1 1 0 0x66 in_avx2;
    AVX2_GREATER_64 "vpcmpgtq" Rvm Same 2 1 0 0x37 in_avx2;
    AVX2_MUL_U32 "vpmuludq" Rvm Same 1 1 0 0xf4 in_avx2;
    AVX2_BLEND "vblendvps" Rvm Same 3 1 0 0x4a has_immediate in_avx2;
    AVX2_TEST "vptest" Rm Same 2 1 0 0x17 in_avx2;
    AVX2_UPPER_HALF "vextracti128" Mr HalfResult 3 1 0 0x39 has_immediate in_avx2;
    AVX2_SHUFFLE "vshufps" Rvm Same 1 0 0 0xc6 has_immediate in_avx2;
    AVX2_PACK_32 "vpackssdw" Rvm Same 1 1 0 0x6b in_avx2;
    AVX2_PACK_16 "vpacksswb" Rvm Same 1 1 0 0x63 in_avx2;
    AVX2_BYTES_TO_32 "vpmovzxbd" Rm Eighth 2 1 0 0x31 in_avx2;
    AVX2_BYTES_TO_64 "vpmovzxbq" Rm Eighth 2 1 0 0x32 in_avx2;
    AVX2_STORE_4 "vmovd" Mr Quadword 1 1 0 0x7e in_avx2;
    AVX2_SIGNS_32 "vmovmskps" Rm ToGeneral 1 0 0 0x50 in_avx2;
    AVX2_SIGNS_64 "vmovmskpd" Rm ToGeneral 1 1 0 0x50 in_avx2;
    TEST_BYTES "vptestmb" Rvm MaskResult 2 1 0 0x26;
    MASK_TO_BYTES "vpmovm2b" Rm MaskSource 2 2 0 0x28;
    ABS_BYTES "vpabsb" Rm Same 2 1 0 0x1c in_avx2;
}

/// An operation on two masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaskOp {
    And,
    /// The second and not the first.
    AndNot,
    Or,
    Xor,
    /// Not the exclusive or.
    Equal,
}

/// A place in code to which jumps lead, before it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// Machine code, and the places that it jumps to.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    pub(crate) code: Vec<u8>,
    labels: Vec<Option<usize>>,
    /// The ends of displacements of jumps.
    pub(super) jumps: Vec<(usize, Label)>,
}

impl Encoder {
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Sets the place of a label.
    pub(crate) fn bind(&mut self, label: Label) {
        let place = self.labels[label.0].replace(self.code.len());
        assert_eq!(place, None, "a label has one place");
    }

    /// Returns the code, with the distances of its jumps.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        for (end, label) in self.jumps {
            let to = self.labels[label.0].expect("each label has a place");
            let distance = i32::try_from(to as i64 - end as i64).expect("the code is small");
            self.code[end - 4..end].copy_from_slice(&distance.to_le_bytes());
        }
        self.code
    }

    pub(super) fn four_bytes(&mut self, x: i32) {
        self.code.extend(x.to_le_bytes());
    }

    /// Adds the bytes that name operands. `n_after` bytes of the instruction come after them.
    pub(super) fn operands(&mut self, reg: u8, rm: MachineOperand, n_after: usize) {
        let reg = (reg & 7) << 3;
        match rm {
            MachineOperand::Register(r) => self.code.push(0xc0 | reg | (r & 7)),
            MachineOperand::Memory(address) | MachineOperand::Broadcast(address) => match address {
                Address::InCode(place) => {
                    self.code.push(reg | 5);
                    let end = self.code.len() + 4 + n_after;
                    self.four_bytes(i32::try_from(place as i64 - end as i64).expect("the code is small"));
                }
                Address::Based { base, index, displacement } => {
                    let base = base.number() & 7;
                    // Without a displacement, 5 would be a place in the code.
                    let mode = if displacement == 0 && base != 5 { 0 } else { 0x80 };
                    match index {
                        None if base != 4 => self.code.push(mode | reg | base),
                        None => self.code.extend([mode | reg | 4, 0x24]),
                        Some((index, scale)) => {
                            let scale = (scale.trailing_zeros() as u8) << 6;
                            self.code.extend([mode | reg | 4, scale | (index.number() & 7) << 3 | base]);
                        }
                    }
                    if mode != 0 {
                        self.four_bytes(displacement);
                    }
                }
            },
        }
    }

    /// Returns the bits that extend the numbers of the base and the index of an operand.
    pub(super) fn extensions(rm: MachineOperand) -> [bool; 2] {
        match rm {
            MachineOperand::Register(r) => [r & 8 != 0, r & 16 != 0],
            MachineOperand::Memory(Address::Based { base, index, .. })
            | MachineOperand::Broadcast(Address::Based { base, index, .. }) => {
                [base.number() & 8 != 0, index.is_some_and(|(index, _)| index.number() & 8 != 0)]
            }
            MachineOperand::Memory(Address::InCode(_)) | MachineOperand::Broadcast(Address::InCode(_)) => {
                [false, false]
            }
        }
    }

    /// Adds an instruction on vectors. `registers` are its result and its first source, if it has
    /// two, and `rm` is the other source. If the result may be in memory, `rm` is the result.
    pub(crate) fn vector(
        &mut self,
        op: &VectorOp,
        length: VectorLength,
        registers: [u8; 2],
        rm: MachineOperand,
        Predicate { mask, zeroing }: Predicate,
        immediate: Option<u8>,
    ) {
        assert_eq!(op.has_immediate, immediate.is_some(), "{}", op.name);
        let (reg, vvvv) = match op.form {
            OperandForm::Rvm => (registers[0], registers[1]),
            OperandForm::Rm | OperandForm::Mr => (registers[0], 0),
            OperandForm::Vm(number) => (number, registers[0]),
        };
        let [b, x] = Self::extensions(rm);
        let bit = |is_set: bool, at: u8| u8::from(is_set) << at;
        let is_broadcast = matches!(rm, MachineOperand::Broadcast(_));
        assert!(!is_broadcast || op.may_broadcast, "{}", op.name);
        self.code.extend([
            0x62,
            bit(reg & 8 == 0, 7) | bit(!x, 6) | bit(!b, 5) | bit(reg & 16 == 0, 4) | op.map,
            bit(op.w, 7) | (!vvvv & 15) << 3 | 4 | op.prefix,
            bit(zeroing, 7) | (length as u8) << 5 | bit(is_broadcast, 4) | bit(vvvv & 16 == 0, 3) | mask,
            op.opcode,
        ]);
        self.operands(reg, rm, usize::from(op.has_immediate));
        self.code.extend(immediate);
    }

    /// Adds an instruction of AVX2, like [`vector`](Self::vector) without a predicate. The
    /// registers are among the first 16.
    pub(crate) fn avx2(
        &mut self,
        op: &VectorOp,
        length: VectorLength,
        registers: [u8; 2],
        rm: MachineOperand,
        immediate: Option<u8>,
    ) {
        assert!(op.in_avx2 && op.has_immediate == immediate.is_some() && length < VectorLength::L512, "{}", op.name);
        let (reg, vvvv) = match op.form {
            OperandForm::Rvm => (registers[0], registers[1]),
            OperandForm::Rm | OperandForm::Mr => (registers[0], 0),
            OperandForm::Vm(number) => (number, registers[0]),
        };
        self.avx2_prefix(op, length, [reg, vvvv], Self::extensions(rm));
        self.operands(reg, rm, usize::from(op.has_immediate));
        self.code.extend(immediate);
    }

    fn avx2_prefix(&mut self, op: &VectorOp, length: VectorLength, registers: [u8; 2], extensions: [bool; 2]) {
        self.prefix_of_three([op.map, op.prefix, op.opcode], op.w, length, registers, extensions);
    }

    /// Adds a prefix of three bytes and the opcode. `code` is the table of the opcode, the
    /// mandatory prefix and the opcode.
    pub(super) fn prefix_of_three(
        &mut self,
        [map, prefix, opcode]: [u8; 3],
        w: bool,
        length: VectorLength,
        [reg, vvvv]: [u8; 2],
        [b, x]: [bool; 2],
    ) {
        self.code.extend([
            0xc4,
            u8::from(reg & 8 == 0) << 7 | u8::from(!x) << 6 | u8::from(!b) << 5 | map,
            u8::from(w) << 7 | (!vvvv & 15) << 3 | (length as u8) << 2 | prefix,
            opcode,
        ]);
    }

    /// Reads elements like [`gather`](Self::gather), where the highest bits of elements of the
    /// mask, a vector, are set. All three registers differ.
    pub(crate) fn avx2_gather(
        &mut self,
        op: &VectorOp,
        length: VectorLength,
        dst: u8,
        (base, indices): (Gpr, u8),
        mask: u8,
    ) {
        assert!(dst != indices && mask != dst && mask != indices && op.widths == Widths::Gathered, "{}", op.name);
        self.avx2_prefix(op, length, [dst, mask], [base.number() & 8 != 0, indices & 8 != 0]);
        let scale = if op.w { 3 } else { 2 };
        assert_ne!(base.number() & 7, 5, "a base without displacement");
        self.code.extend([(dst & 7) << 3 | 4, scale << 6 | (indices & 7) << 3 | base.number() & 7]);
    }

    /// Reads elements of the mask from the address in a register plus indices times their size, and
    /// clears the mask. The registers of the elements and of the indices differ.
    pub(crate) fn gather(
        &mut self,
        op: &VectorOp,
        length: VectorLength,
        dst: u8,
        (base, indices): (Gpr, u8),
        mask: u8,
    ) {
        assert!(dst != indices && mask != 0 && op.widths == Widths::Gathered, "{}", op.name);
        let bit = |is_set: bool, at: u8| u8::from(is_set) << at;
        let has = |number: u8, mask: u8| number & mask == 0;
        let scale = if op.w { 3 } else { 2 };
        self.code.extend([
            0x62,
            bit(has(dst, 8), 7)
                | bit(has(indices, 8), 6)
                | bit(has(base.number(), 8), 5)
                | bit(has(dst, 16), 4)
                | op.map,
            bit(op.w, 7) | 0x78 | 4 | op.prefix,
            (length as u8) << 5 | bit(has(indices, 16), 3) | mask,
            op.opcode,
            // Without a displacement: the number of the base is not 5.
            (dst & 7) << 3 | 4,
            scale << 6 | (indices & 7) << 3 | base.number() & 7,
        ]);
        assert_ne!(base.number() & 7, 5, "a base without displacement");
    }

    /// Adds an instruction with a prefix of three bytes. `code` is the prefix, `W`, `L` and the
    /// opcode, of the first table.
    fn mask_instruction(&mut self, code: [u8; 4], reg: u8, vvvv: u8, rm: MachineOperand) {
        let [prefix, w, l, opcode] = code;
        let length = if l == 1 { VectorLength::L256 } else { VectorLength::L128 };
        self.prefix_of_three([1, prefix, opcode], w == 1, length, [reg, vvvv], Self::extensions(rm));
        self.operands(reg, rm, 0);
    }

    /// `dst = op(a, b)`
    pub(crate) fn mask(&mut self, op: MaskOp, dst: u8, a: u8, b: u8) {
        let opcode = match op {
            MaskOp::And => 0x41,
            MaskOp::AndNot => 0x42,
            MaskOp::Or => 0x45,
            MaskOp::Equal => 0x46,
            MaskOp::Xor => 0x47,
        };
        self.mask_instruction([0, 0, 1, opcode], dst, a, MachineOperand::Register(b));
    }

    /// `dst = !src`
    pub(crate) fn mask_not(&mut self, dst: u8, src: u8) {
        self.mask_instruction([0, 0, 0, 0x44], dst, 0, MachineOperand::Register(src));
    }

    /// Copies a mask, or loads it.
    pub(crate) fn mask_load(&mut self, dst: u8, src: MachineOperand) {
        self.mask_instruction([0, 0, 0, 0x90], dst, 0, src);
    }

    pub(crate) fn mask_store(&mut self, to: Address, src: u8) {
        self.mask_instruction([0, 0, 0, 0x91], src, 0, MachineOperand::Memory(to));
    }

    pub(crate) fn mask_to_gpr(&mut self, dst: Gpr, src: u8) {
        self.mask_instruction([0, 0, 0, 0x93], dst.number(), 0, MachineOperand::Register(src));
    }

    /// Sets the zero flag to whether no bit of a mask is set.
    pub(crate) fn mask_test(&mut self, mask: u8) {
        self.mask_instruction([0, 0, 0, 0x98], mask, 0, MachineOperand::Register(mask));
    }
}

impl VectorOp {
    /// Returns the instruction of AVX2 that computes the same, if there is one without a mask.
    pub(crate) fn of_avx2(&self) -> Option<VectorOp> {
        let others = [
            (AND_32, AVX2_AND),
            (AND_64, AVX2_AND),
            (OR_32, AVX2_OR),
            (OR_64, AVX2_OR),
            (XOR_32, AVX2_XOR),
            (XOR_64, AVX2_XOR),
            (COPY_32, AVX2_COPY),
            (COPY_64, AVX2_COPY),
            (ROUND_F32, AVX2_ROUND_F32),
            (ROUND_F64, AVX2_ROUND_F64),
            (BROADCAST_32, AVX2_BROADCAST_32),
            (BROADCAST_64, AVX2_BROADCAST_64),
        ];
        let other = others.iter().find(|(op, _)| op == self).map(|&(_, other)| other);
        other.or_else(|| self.in_avx2.then_some(*self))
    }

    /// Returns whether AVX2 computes the same, also with several instructions.
    pub(crate) fn is_possible_with_avx2(&self) -> bool {
        let compared = [COMPARE_I32, COMPARE_I64, COMPARE_U32, COMPARE_U64];
        let several = [BLEND_32, BLEND_64, SHIFT_RIGHT_BY_I64, MUL_I64, NARROW_64];
        self.of_avx2().is_some() || compared.contains(self) || several.contains(self)
    }

    /// Returns the size of the elements of the result in bytes.
    pub(crate) fn result_size(&self) -> usize {
        match self.widths {
            Widths::HalfSource => 8,
            Widths::HalfResult => 4,
            _ if self.w => 8,
            _ => 4,
        }
    }

    /// Returns whether the instruction copies its source.
    pub(crate) fn is_copy(&self) -> bool {
        *self == COPY_32 || *self == COPY_64
    }
}

#[cfg(test)]
mod tests;
