//! Scalar functions as vector instructions, derived from their recorded form.
//!
//! Each primitive of the form becomes the instructions that compute the same bits, in the same
//! order, so results are bitwise identical, except for the sign and payload of a NaN. A function
//! with a primitive for which there are no instructions has no code.

use super::LaneCount;
use super::steps::{CodeStep, CodeSteps, Lifetime, RegisterGroup, ValueId};
use crate::cpu::x86::encode::{self as x86, MaskOp, VectorOp};
use crate::cpu::x86::immediates::{self, AT_LEAST, DOWN, NEAREST, UNORDERED, UP};
use anabranch_dsl::DType;
use anabranch_dsl::scalars::{BinaryOp, ExprNode, ScalarExpr, TernaryOp, UnaryOp};
use rustc_hash::FxHashMap;

/// Comparisons by the immediate operand of instructions: of floats without a signal for NaN, and of
/// integers.
const EQUAL: [u8; 2] = [immediates::EQUAL, 0];
pub(super) const LESS: [u8; 2] = [immediates::LESS, 1];
const AT_MOST: [u8; 2] = [immediates::AT_MOST, 2];
const NOT_EQUAL: [u8; 2] = [immediates::NOT_EQUAL, 4];

/// Returns whether vectors can have elements of a type, or masks for bools.
pub(super) fn is_supported(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::U32 | DType::Bool)
}

/// Returns whether a function has a value of 8 bytes on the way.
pub(super) fn has_eight_bytes(expr: &ScalarExpr) -> bool {
    expr.nodes().any(|(_, dtype)| dtype.size() == 8)
}

/// Adds steps for functions.
pub(super) struct Functions {
    pub(super) steps: CodeSteps,
    pub(super) lanes: LaneCount,
    constants: FxHashMap<(u64, usize), ValueId>,
}

impl Functions {
    pub(super) fn new(lanes: LaneCount) -> Functions {
        Functions { steps: CodeSteps::new(), lanes, constants: FxHashMap::default() }
    }

    /// Returns an element of a size for all lanes, or a mask for the size of a bool.
    pub(super) fn constant(&mut self, bits: u64, size: usize) -> ValueId {
        let steps = &mut self.steps;
        *self.constants.entry((bits, size)).or_insert_with(|| {
            let group = if size == 1 { RegisterGroup::Masks } else { RegisterGroup::Vectors };
            steps.value(group, Lifetime::Constant { bits, size })
        })
    }

    fn float(&mut self, x: f64, dtype: DType) -> ValueId {
        let bits = if dtype == DType::F32 { u64::from((x as f32).to_bits()) } else { x.to_bits() };
        self.constant(bits, dtype.size())
    }

    /// Adds an instruction on elements of a size.
    fn of(&mut self, op: &'static VectorOp, size: usize, sources: &[ValueId]) -> ValueId {
        let length = self.lanes.length(size);
        self.steps.vector(op, length, sources, None)
    }

    /// Adds one of two instructions for elements of 4 and 8 bytes.
    fn by_size(&mut self, ops: [&'static VectorOp; 2], size: usize, sources: &[ValueId]) -> ValueId {
        self.of(ops[usize::from(size == 8)], size, sources)
    }

    fn with(&mut self, op: &'static VectorOp, size: usize, sources: &[ValueId], immediate: u8) -> ValueId {
        let length = self.lanes.length(size);
        self.steps.vector(op, length, sources, Some(immediate))
    }

    /// Replaces the elements of a vector where a mask is true.
    pub(super) fn replaced(&mut self, before: ValueId, new: ValueId, mask: ValueId, size: usize) -> ValueId {
        let op = if size == 8 { &x86::COPY_64 } else { &x86::COPY_32 };
        self.steps.onto(op, self.lanes.length(size), before, &[new], Some(mask))
    }

    fn not(&mut self, src: ValueId) -> ValueId {
        let dst = self.steps.value(RegisterGroup::Masks, Lifetime::Brief);
        self.steps.push(CodeStep::MaskNot { dst, src });
        dst
    }

    /// Adds the steps of a function. Returns `None` if one of its primitives has no instructions.
    pub(super) fn function(&mut self, expr: &ScalarExpr, arguments: &[ValueId]) -> Option<ValueId> {
        if expr.far().is_some() {
            return None;
        }
        let mut values: Vec<ValueId> = Vec::with_capacity(expr.nodes().len());
        for (node, dtype) in expr.nodes() {
            if !is_supported(dtype) {
                return None;
            }
            let value = match node {
                ExprNode::Argument(i) => arguments[usize::from(i)],
                ExprNode::Constant(bits) => self.constant(bits, dtype.size()),
                ExprNode::Unary(UnaryOp::Convert, x) => self.convert(values[x.index()], expr.dtype(x), dtype),
                ExprNode::Unary(op, x) => self.unary(op, values[x.index()], dtype),
                ExprNode::Binary(op @ (BinaryOp::ShiftLeft | BinaryOp::ShiftRight), x, y)
                    if let ExprNode::Constant(count) = expr.node(y) =>
                {
                    self.shift_by(op, values[x.index()], count, dtype)
                }
                ExprNode::Binary(op, x, y) => self.binary(op, [x, y].map(|id| values[id.index()]), expr.dtype(x))?,
                ExprNode::Ternary(TernaryOp::MulAdd, x, y, z) => {
                    let [x, y, z] = [x, y, z].map(|id| values[id.index()]);
                    let op = if dtype == DType::F64 { &x86::MUL_ADD_F64 } else { &x86::MUL_ADD_F32 };
                    self.steps.onto(op, self.lanes.length(dtype.size()), z, &[x, y], None)
                }
                ExprNode::Ternary(TernaryOp::Select, mask, x, y) => {
                    let [mask, x, y] = [mask, x, y].map(|id| values[id.index()]);
                    self.select(mask, x, y, dtype.size())
                }
            };
            values.push(value);
        }
        Some(values[expr.result().index()])
    }

    /// Chooses between two values by a mask.
    pub(super) fn select(&mut self, mask: ValueId, x: ValueId, y: ValueId, size: usize) -> ValueId {
        if size == 1 {
            let first = self.steps.mask(MaskOp::And, mask, x);
            let second = self.steps.mask(MaskOp::AndNot, mask, y);
            return self.steps.mask(MaskOp::Or, first, second);
        }
        let op = if size == 8 { &x86::BLEND_64 } else { &x86::BLEND_32 };
        // The instruction takes its second source where the mask is true.
        self.steps.choose(op, self.lanes.length(size), mask, &[y, x])
    }

    fn unary(&mut self, op: UnaryOp, x: ValueId, dtype: DType) -> ValueId {
        let size = dtype.size();
        let sign = 1 << (8 * size - 1);
        let xor = [&x86::XOR_32, &x86::XOR_64];
        match op {
            UnaryOp::Neg if dtype.is_float() => {
                let sign = self.constant(sign, size);
                self.by_size(xor, size, &[x, sign])
            }
            UnaryOp::Neg => {
                let zero = self.constant(0, size);
                self.by_size([&x86::SUB_I32, &x86::SUB_I64], size, &[zero, x])
            }
            UnaryOp::Abs if dtype.is_float() => {
                let others = self.constant(sign - 1, size);
                self.by_size([&x86::AND_32, &x86::AND_64], size, &[x, others])
            }
            UnaryOp::Abs if dtype == DType::U32 => x,
            UnaryOp::Abs => self.by_size([&x86::ABS_I32, &x86::ABS_I64], size, &[x]),
            UnaryOp::Sqrt => self.by_size([&x86::SQRT_F32, &x86::SQRT_F64], size, &[x]),
            UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round => {
                let direction = match op {
                    UnaryOp::Floor => DOWN,
                    UnaryOp::Ceil => UP,
                    _ => NEAREST,
                };
                let op = if size == 8 { &x86::ROUND_F64 } else { &x86::ROUND_F32 };
                self.with(op, size, &[x], direction)
            }
            UnaryOp::Nearest | UnaryOp::NearestInt => {
                // As on the host: adding 1.5 * 2^mantissa rounds to an integer, which is then in
                // the low bits.
                let shift = if size == 4 { 0x4b40_0000 } else { 0x4338_0000_0000_0000 };
                let shift = self.constant(shift, size);
                let shifted = self.by_size([&x86::ADD_F32, &x86::ADD_F64], size, &[x, shift]);
                let back = match op {
                    UnaryOp::Nearest => [&x86::SUB_F32, &x86::SUB_F64],
                    _ => [&x86::SUB_I32, &x86::SUB_I64],
                };
                self.by_size(back, size, &[shifted, shift])
            }
            UnaryOp::Bits | UnaryOp::FromBits => x,
            UnaryOp::FromInt => self.by_size([&x86::I32_TO_F32, &x86::I64_TO_F64], size, &[x]),
            UnaryOp::Convert => panic!("a conversion depends on the type of its operand"),
            UnaryOp::Not if dtype == DType::Bool => self.not(x),
            UnaryOp::Not => {
                let ones = self.constant(u64::MAX >> (64 - 8 * size), size);
                self.by_size(xor, size, &[x, ones])
            }
        }
    }

    /// Converts numbers, as `as` of Rust does.
    fn convert(&mut self, x: ValueId, from: DType, to: DType) -> ValueId {
        use DType::{Bool, F32, F64, I32, I64, U32};
        // Instructions between elements of 4 and 8 bytes have the length of the latter.
        let op = match (from, to) {
            (Bool, Bool) => return x,
            (Bool, _) => {
                let one = match to {
                    F32 | F64 => self.float(1.0, to),
                    _ => self.constant(1, to.size()),
                };
                let op = if to.size() == 8 { &x86::COPY_64 } else { &x86::COPY_32 };
                return self.steps.choose(op, self.lanes.length(to.size()), x, &[one]);
            }
            (_, Bool) => {
                let zero = self.constant(0, from.size());
                return self.compared(x, zero, from, NOT_EQUAL);
            }
            (I32, U32) | (U32, I32) => return x,
            (I32, I64) => &x86::EXTEND_I32,
            (U32, I64) => &x86::EXTEND_U32,
            (I64, I32 | U32) => &x86::NARROW_64,
            (I32, F32) => &x86::I32_TO_F32,
            (U32, F32) => &x86::U32_TO_F32,
            (I64, F32) => &x86::I64_TO_F32,
            (I32, F64) => &x86::I32_TO_F64,
            (U32, F64) => &x86::U32_TO_F64,
            (I64, F64) => &x86::I64_TO_F64,
            (F32, F64) => &x86::F32_TO_F64,
            (F64, F32) => &x86::F64_TO_F32,
            (F32 | F64, I32 | I64 | U32) => return self.truncated(x, from, to),
            _ if from == to => return x,
            _ => panic!("vectors have no {from} or {to}"),
        };
        self.of(op, from.size().max(to.size()), &[x])
    }

    /// Rounds floats towards zero, to the nearest integer that the type has. NaN becomes 0.
    fn truncated(&mut self, x: ValueId, from: DType, to: DType) -> ValueId {
        let size = from.size().max(to.size());
        let op = match (from, to) {
            (DType::F32, DType::I32) => &x86::F32_TO_I32,
            (DType::F32, DType::I64) => &x86::F32_TO_I64,
            (DType::F32, _) => &x86::F32_TO_U32,
            (_, DType::I32) => &x86::F64_TO_I32,
            (_, DType::I64) => &x86::F64_TO_I64,
            _ => &x86::F64_TO_U32,
        };
        if to == DType::U32 {
            // Of NaN and 0 it takes 0. The largest number is that for floats out of range.
            let zero = self.constant(0, from.size());
            let positive = self.by_size([&x86::MAX_F32, &x86::MAX_F64], from.size(), &[x, zero]);
            return self.of(op, size, &[positive]);
        }
        // Floats out of range become the smallest number.
        let integer = self.of(op, size, &[x]);
        let (bound, largest) =
            if to == DType::I32 { (2f64.powi(31), i32::MAX as u64) } else { (2f64.powi(63), i64::MAX as u64) };
        let bound = self.float(bound, from);
        let compare = if from == DType::F64 { &x86::COMPARE_F64 } else { &x86::COMPARE_F32 };
        let is_above = self.with(compare, from.size(), &[x, bound], AT_LEAST);
        let largest = self.constant(largest, to.size());
        let integer = self.replaced(integer, largest, is_above, to.size());
        let is_nan = self.with(compare, from.size(), &[x, x], UNORDERED);
        let zero = self.constant(0, to.size());
        self.replaced(integer, zero, is_nan, to.size())
    }

    fn compared(&mut self, x: ValueId, y: ValueId, dtype: DType, [of_floats, of_integers]: [u8; 2]) -> ValueId {
        let (op, comparison) = match dtype {
            DType::F32 => (&x86::COMPARE_F32, of_floats),
            DType::F64 => (&x86::COMPARE_F64, of_floats),
            DType::U32 => (&x86::COMPARE_U32, of_integers),
            DType::I64 => (&x86::COMPARE_I64, of_integers),
            _ => (&x86::COMPARE_I32, of_integers),
        };
        self.with(op, dtype.size(), &[x, y], comparison)
    }

    /// Returns where indices of a type are below a number.
    pub(super) fn are_below(&mut self, x: ValueId, dtype: DType, n: u64) -> Option<ValueId> {
        let op = match dtype {
            DType::I32 | DType::U32 => &x86::COMPARE_U32,
            DType::I64 => &x86::COMPARE_U64,
            _ => return None,
        };
        let n = if dtype == DType::I64 { n } else { n.min(u64::from(u32::MAX)) };
        // An index is at most the largest signed number.
        let n = if dtype == DType::I32 { n.min(i32::MAX as u64 + 1) } else { n };
        let n = self.constant(n, dtype.size());
        Some(self.with(op, dtype.size(), &[x, n], LESS[1]))
    }

    /// Returns `x * factor + added` of numbers of 4 bytes.
    pub(super) fn place(&mut self, x: ValueId, factor: i32, added: Option<ValueId>) -> ValueId {
        let product = match factor {
            1 => x,
            factor => {
                let factor = self.constant(u64::from(factor.cast_unsigned()), 4);
                self.of(&x86::MUL_I32, 4, &[x, factor])
            }
        };
        added.map_or(product, |added| self.of(&x86::ADD_I32, 4, &[product, added]))
    }

    /// Returns the lower halves of numbers of 8 bytes.
    pub(super) fn lower_halves(&mut self, x: ValueId) -> ValueId {
        self.of(&x86::NARROW_64, 8, &[x])
    }

    /// Shifts by a constant, modulo the number of bits.
    fn shift_by(&mut self, op: BinaryOp, x: ValueId, count: u64, dtype: DType) -> ValueId {
        let size = dtype.size();
        let count = count & (8 * size as u64 - 1);
        let op = match (op, dtype) {
            (BinaryOp::ShiftLeft, _) if size == 8 => &x86::SHIFT_LEFT_BY_64,
            (BinaryOp::ShiftLeft, _) => &x86::SHIFT_LEFT_BY_32,
            (_, DType::I64) => &x86::SHIFT_RIGHT_BY_I64,
            (_, DType::I32) => &x86::SHIFT_RIGHT_BY_I32,
            _ => &x86::SHIFT_RIGHT_BY_U32,
        };
        self.with(op, size, &[x], count as u8)
    }

    fn binary(&mut self, op: BinaryOp, [x, y]: [ValueId; 2], dtype: DType) -> Option<ValueId> {
        let (size, is_float) = (dtype.size(), dtype.is_float());
        if dtype == DType::Bool {
            let op = match op {
                BinaryOp::And => MaskOp::And,
                BinaryOp::Or => MaskOp::Or,
                BinaryOp::Xor => MaskOp::Xor,
                BinaryOp::Equal => MaskOp::Equal,
                _ => return None,
            };
            return Some(self.steps.mask(op, x, y));
        }
        let ops = match (op, is_float) {
            (BinaryOp::Add, true) => [&x86::ADD_F32, &x86::ADD_F64],
            (BinaryOp::Sub, true) => [&x86::SUB_F32, &x86::SUB_F64],
            (BinaryOp::Mul, true) => [&x86::MUL_F32, &x86::MUL_F64],
            (BinaryOp::Div, true) => [&x86::DIV_F32, &x86::DIV_F64],
            (BinaryOp::Add, false) => [&x86::ADD_I32, &x86::ADD_I64],
            (BinaryOp::Sub, false) => [&x86::SUB_I32, &x86::SUB_I64],
            (BinaryOp::Mul, false) => [&x86::MUL_I32, &x86::MUL_I64],
            // There are none for quotients of integers, and none for remainders of floats.
            (BinaryOp::Div | BinaryOp::Rem, _) => return None,
            (BinaryOp::Larger, true) => return Some(self.extreme([&x86::MAX_F32, &x86::MAX_F64], x, y, dtype)),
            (BinaryOp::Smaller, true) => return Some(self.extreme([&x86::MIN_F32, &x86::MIN_F64], x, y, dtype)),
            (BinaryOp::Larger, false) if dtype == DType::U32 => [&x86::MAX_U32; 2],
            (BinaryOp::Larger, false) => [&x86::MAX_I32, &x86::MAX_I64],
            (BinaryOp::Smaller, false) if dtype == DType::U32 => [&x86::MIN_U32; 2],
            (BinaryOp::Smaller, false) => [&x86::MIN_I32, &x86::MIN_I64],
            (BinaryOp::Equal, _) => return Some(self.compared(x, y, dtype, EQUAL)),
            (BinaryOp::Less, _) => return Some(self.compared(x, y, dtype, LESS)),
            (BinaryOp::AtMost, _) => return Some(self.compared(x, y, dtype, AT_MOST)),
            (BinaryOp::And, _) => [&x86::AND_32, &x86::AND_64],
            (BinaryOp::Or, _) => [&x86::OR_32, &x86::OR_64],
            (BinaryOp::Xor, _) => [&x86::XOR_32, &x86::XOR_64],
            (BinaryOp::ShiftLeft | BinaryOp::ShiftRight, _) => {
                // Counts that are not below the number of bits would shift all of them out.
                let largest = self.constant(8 * size as u64 - 1, size);
                let count = self.by_size([&x86::AND_32, &x86::AND_64], size, &[y, largest]);
                let ops = match (op, dtype) {
                    (BinaryOp::ShiftLeft, _) => [&x86::SHIFT_LEFT_32, &x86::SHIFT_LEFT_64],
                    (_, DType::U32) => [&x86::SHIFT_RIGHT_U32; 2],
                    _ => [&x86::SHIFT_RIGHT_I32, &x86::SHIFT_RIGHT_I64],
                };
                return Some(self.by_size(ops, size, &[x, count]));
            }
            (BinaryOp::CopySign, _) => {
                let sign = 1 << (8 * size - 1);
                let and = [&x86::AND_32, &x86::AND_64];
                let (others, sign) = (self.constant(sign - 1, size), self.constant(sign, size));
                let (magnitude, sign) = (self.by_size(and, size, &[x, others]), self.by_size(and, size, &[y, sign]));
                return Some(self.by_size([&x86::OR_32, &x86::OR_64], size, &[magnitude, sign]));
            }
        };
        Some(self.by_size(ops, size, &[x, y]))
    }

    /// Returns the larger or smaller number. The instruction takes the second one of NaN and a
    /// number, and the definition a NaN.
    fn extreme(&mut self, ops: [&'static VectorOp; 2], x: ValueId, y: ValueId, dtype: DType) -> ValueId {
        let extreme = self.by_size(ops, dtype.size(), &[x, y]);
        let compare = if dtype == DType::F64 { &x86::COMPARE_F64 } else { &x86::COMPARE_F32 };
        let is_nan = self.with(compare, dtype.size(), &[x, x], UNORDERED);
        self.replaced(extreme, x, is_nan, dtype.size())
    }

    /// Divides integers by two to the power of `shift`, towards zero.
    pub(super) fn divided_by_power(
        &mut self,
        x: ValueId,
        dtype: DType,
        shift: u32,
        wants_remainder: bool,
    ) -> Option<ValueId> {
        let size = dtype.size();
        let shift = shift as u8;
        let below = (1u64 << shift) - 1;
        let right = match dtype {
            DType::I32 => &x86::SHIFT_RIGHT_BY_I32,
            DType::I64 => &x86::SHIFT_RIGHT_BY_I64,
            DType::U32 => &x86::SHIFT_RIGHT_BY_U32,
            _ => return None,
        };
        if dtype == DType::U32 && wants_remainder {
            let below = self.constant(below, size);
            return Some(self.of(&x86::AND_32, size, &[x, below]));
        }
        if shift == 0 {
            return Some(if wants_remainder { self.constant(0, size) } else { x });
        }
        let rounded = if dtype == DType::U32 {
            x
        } else {
            // Negative numbers are rounded up: `below` is added to them, which is the sign shifted
            // down. For 1 it is the highest bit.
            let bits = 8 * size as u8;
            let sign = if shift == 1 { x } else { self.with(right, size, &[x], bits - 1) };
            let down = if size == 8 { &x86::SHIFT_RIGHT_BY_U64 } else { &x86::SHIFT_RIGHT_BY_U32 };
            let added = self.with(down, size, &[sign], bits - shift);
            self.by_size([&x86::ADD_I32, &x86::ADD_I64], size, &[x, added])
        };
        Some(if wants_remainder {
            let others = self.constant(!below & (u64::MAX >> (64 - 8 * size)), size);
            let product = self.by_size([&x86::AND_32, &x86::AND_64], size, &[rounded, others]);
            self.by_size([&x86::SUB_I32, &x86::SUB_I64], size, &[x, product])
        } else {
            self.with(right, size, &[rounded], shift)
        })
    }
}
