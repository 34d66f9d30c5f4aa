//! Native code before it has registers: basic blocks of steps on values.
//!
//! A value has one machine type. It may be set by several steps. Integers and truth values of fewer
//! than 64 bits are extended with zeros.

use crate::cpu::element::strings_in_memory;
use anabranch_dsl::DType;
use anabranch_dsl::scalars::{BinaryOp, UnaryOp};

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MachineType {
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
}

impl MachineType {
    /// Returns the type of an element.
    pub(super) fn of(dtype: DType) -> MachineType {
        match dtype {
            DType::F32 => MachineType::F32,
            DType::F64 => MachineType::F64,
            DType::I32 | DType::U32 => MachineType::I32,
            // Half-precision elements are only moved and cast, by calls.
            DType::F16 | DType::BF16 => MachineType::I16,
            DType::I64 => MachineType::I64,
            DType::U8 | DType::Bool => MachineType::I8,
            DType::Bytes => strings_in_memory(),
        }
    }

    /// Returns the size in bytes.
    pub(super) fn size(self) -> usize {
        match self {
            MachineType::I8 => 1,
            MachineType::I16 => 2,
            MachineType::I32 | MachineType::F32 => 4,
            MachineType::I64 | MachineType::F64 => 8,
        }
    }

    pub(super) fn is_float(self) -> bool {
        matches!(self, MachineType::F32 | MachineType::F64)
    }
}

/// The type of the operands of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NumberType {
    pub(super) ty: MachineType,
    pub(super) is_signed: bool,
}

impl NumberType {
    /// An index or an address.
    pub(super) const UNSIGNED: NumberType = NumberType { ty: MachineType::I64, is_signed: false };

    /// Returns the type of an element.
    pub(super) fn of(dtype: DType) -> NumberType {
        NumberType { ty: MachineType::of(dtype), is_signed: matches!(dtype, DType::I32 | DType::I64) }
    }
}

/// The index of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NativeValue(u32);

impl NativeValue {
    /// The parameters of a function: the addresses of the registers, the stacks, the addresses of
    /// tensors, and the byte of the stop flag.
    pub(super) const PARAMETERS: [NativeValue; 4] = [NativeValue(0), NativeValue(1), NativeValue(2), NativeValue(3)];
    pub(super) const REGISTERS: NativeValue = NativeValue(0);
    pub(super) const STACKS: NativeValue = NativeValue(1);
    pub(super) const TENSORS: NativeValue = NativeValue(2);
    pub(super) const STOP: NativeValue = NativeValue(3);

    pub(super) fn index(self) -> usize {
        self.0 as usize
    }

    #[cfg(all(target_arch = "x86_64", not(anabranch_cranelift)))]
    pub(super) fn of_index(index: usize) -> NativeValue {
        NativeValue(index as u32)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct NativeValueInfo {
    pub(super) ty: MachineType,
    /// The bits of a constant, extended with zeros. No step sets it.
    pub(super) constant: Option<u64>,
}

/// The index of a basic block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NativeBlockId(u32);

impl NativeBlockId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// An address: that in a value plus the product of an index, which is not negative, with 1, 2, 4 or
/// 8, plus a displacement.
#[derive(Clone, Copy, Debug)]
pub(super) struct NativeAddress {
    pub(super) base: NativeValue,
    pub(super) index: Option<(NativeValue, u8)>,
    pub(super) displacement: i32,
}

/// The truth value that decides a branch or a choice.
#[derive(Clone, Copy, Debug)]
pub(super) enum Decision {
    /// An integer is not 0.
    NotZero(NativeValue),
    /// One of [`BinaryOp::Equal`], [`BinaryOp::Less`] and [`BinaryOp::AtMost`] holds.
    Compare { op: BinaryOp, of: NumberType, operands: [NativeValue; 2] },
    /// The byte at an address, which other threads may change, is 0.
    ByteIsZero(NativeAddress),
}

#[derive(Clone, Debug)]
pub(super) enum NativeStep {
    /// The low bits of an integer as another type, or extended with zeros, or all bits of a float.
    Cast {
        dst: NativeValue,
        x: NativeValue,
    },
    /// A primitive, except for conversions.
    Unary {
        op: UnaryOp,
        result: DType,
        dst: NativeValue,
        x: NativeValue,
    },
    Convert {
        from: DType,
        to: DType,
        dst: NativeValue,
        x: NativeValue,
    },
    /// A primitive, except for the remainder of floats. An integer divisor is not 0.
    Binary {
        op: BinaryOp,
        of: NumberType,
        dst: NativeValue,
        operands: [NativeValue; 2],
    },
    /// `x * y + z` of floats, rounded once.
    MulAdd {
        dst: NativeValue,
        operands: [NativeValue; 3],
    },
    /// The first value if the decision is true, else the second.
    Choose {
        dst: NativeValue,
        decision: Decision,
        values: [NativeValue; 2],
    },
    Load {
        dst: NativeValue,
        from: NativeAddress,
    },
    Store {
        value: NativeValue,
        to: NativeAddress,
    },
    /// Calls a function on integers. Other values stay as they are.
    Call {
        function: *const (),
        arguments: Vec<NativeValue>,
        result: Option<NativeValue>,
    },
}

/// The end of a basic block.
#[derive(Clone, Debug)]
pub(super) enum NativeEnd {
    Jump(NativeBlockId),
    Branch {
        decision: Decision,
        /// The blocks that follow if it is true, and otherwise.
        to: [NativeBlockId; 2],
    },
    /// Leaves the function to continue at an instruction, for which registers of the plan must have
    /// the values of these variables.
    Leave {
        next: u32,
        live: Vec<NativeValue>,
    },
}

#[derive(Debug)]
pub(super) struct NativeBlock {
    pub(super) steps: Vec<NativeStep>,
    pub(super) end: Option<NativeEnd>,
    /// The number of loops around it.
    pub(super) depth: u32,
    /// Whether it rarely runs.
    pub(super) is_cold: bool,
}

/// The steps of a function.
#[derive(Debug)]
pub(super) struct NativeSteps {
    pub(super) values: Vec<NativeValueInfo>,
    pub(super) blocks: Vec<NativeBlock>,
    /// The blocks in the order of the plan. The function begins with the first one.
    pub(super) order: Vec<NativeBlockId>,
    /// The variables that may differ from registers of the plan when the function is left, with the
    /// offsets of those in bytes.
    pub(super) variables: Vec<(NativeValue, i32)>,
}

impl NativeSteps {
    /// Returns a function that has its parameters alone.
    pub(super) fn new() -> NativeSteps {
        let address = NativeValueInfo { ty: MachineType::I64, constant: None };
        NativeSteps {
            values: vec![address; NativeValue::PARAMETERS.len()],
            blocks: Vec::new(),
            order: Vec::new(),
            variables: Vec::new(),
        }
    }

    pub(super) fn value(&mut self, ty: MachineType) -> NativeValue {
        self.new_value(NativeValueInfo { ty, constant: None })
    }

    /// Returns a constant, given by bits of which those of the type count.
    pub(super) fn constant(&mut self, bits: u64, ty: MachineType) -> NativeValue {
        let bits = bits & (u64::MAX >> (64 - 8 * ty.size()));
        self.new_value(NativeValueInfo { ty, constant: Some(bits) })
    }

    fn new_value(&mut self, info: NativeValueInfo) -> NativeValue {
        self.values.push(info);
        NativeValue(self.values.len() as u32 - 1)
    }

    pub(super) fn ty(&self, value: NativeValue) -> MachineType {
        self.values[value.index()].ty
    }

    pub(super) fn constant_of(&self, value: NativeValue) -> Option<u64> {
        self.values[value.index()].constant
    }

    pub(super) fn block(&mut self, depth: u32, is_cold: bool) -> NativeBlockId {
        self.blocks.push(NativeBlock { steps: Vec::new(), end: None, depth, is_cold });
        NativeBlockId(self.blocks.len() as u32 - 1)
    }
}

impl NativeAddress {
    /// Returns the address in a value plus a displacement.
    pub(super) fn at(base: NativeValue, displacement: i32) -> NativeAddress {
        NativeAddress { base, index: None, displacement }
    }

    fn values(self) -> impl Iterator<Item = NativeValue> {
        std::iter::once(self.base).chain(self.index.map(|(index, _)| index))
    }
}

impl Decision {
    fn visit(&self, f: &mut dyn FnMut(NativeValue)) {
        match self {
            Decision::NotZero(x) => f(*x),
            Decision::Compare { operands, .. } => operands.iter().copied().for_each(f),
            Decision::ByteIsZero(at) => at.values().for_each(f),
        }
    }
}

impl NativeStep {
    /// Calls `f` for the values that the step reads.
    pub(super) fn visit_read(&self, f: &mut dyn FnMut(NativeValue)) {
        match self {
            NativeStep::Cast { x, .. } | NativeStep::Unary { x, .. } | NativeStep::Convert { x, .. } => f(*x),
            NativeStep::Binary { operands, .. } => operands.iter().copied().for_each(f),
            NativeStep::MulAdd { operands, .. } => operands.iter().copied().for_each(f),
            NativeStep::Choose { decision, values, .. } => {
                decision.visit(f);
                values.iter().copied().for_each(f);
            }
            NativeStep::Load { from, .. } => from.values().for_each(f),
            NativeStep::Store { value, to } => {
                f(*value);
                to.values().for_each(f);
            }
            NativeStep::Call { arguments, .. } => arguments.iter().copied().for_each(f),
        }
    }

    /// Returns the value that the step sets.
    pub(super) fn result(&self) -> Option<NativeValue> {
        match *self {
            NativeStep::Cast { dst, .. }
            | NativeStep::Unary { dst, .. }
            | NativeStep::Convert { dst, .. }
            | NativeStep::Binary { dst, .. }
            | NativeStep::MulAdd { dst, .. }
            | NativeStep::Choose { dst, .. }
            | NativeStep::Load { dst, .. } => Some(dst),
            NativeStep::Call { result, .. } => result,
            NativeStep::Store { .. } => None,
        }
    }

    /// Replaces the value that the step sets.
    pub(super) fn set_result(&mut self, new: NativeValue) {
        match self {
            NativeStep::Cast { dst, .. }
            | NativeStep::Unary { dst, .. }
            | NativeStep::Convert { dst, .. }
            | NativeStep::Binary { dst, .. }
            | NativeStep::MulAdd { dst, .. }
            | NativeStep::Choose { dst, .. }
            | NativeStep::Load { dst, .. } => *dst = new,
            NativeStep::Call { result, .. } => *result = Some(new),
            NativeStep::Store { .. } => panic!("a store has no result"),
        }
    }
}

impl NativeEnd {
    /// Calls `f` for the values that are read.
    pub(super) fn visit_read(&self, f: &mut dyn FnMut(NativeValue)) {
        match self {
            NativeEnd::Jump(_) => {}
            NativeEnd::Branch { decision, .. } => decision.visit(f),
            // They are stored to the registers of the plan.
            NativeEnd::Leave { live, .. } => live.iter().copied().chain([NativeValue::REGISTERS]).for_each(f),
        }
    }

    /// Returns the blocks that may follow.
    pub(super) fn targets(&self) -> &[NativeBlockId] {
        match self {
            NativeEnd::Jump(to) => std::slice::from_ref(to),
            NativeEnd::Branch { to, .. } => to,
            NativeEnd::Leave { .. } => &[],
        }
    }
}
