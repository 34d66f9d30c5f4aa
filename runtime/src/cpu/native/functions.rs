//! Scalar functions in native code, derived from their recorded form.
//!
//! The nodes of the form have the same operations in the same order as the functions that rustc
//! compiles, so results are bitwise identical. Functions are inlined: a call would have to save and
//! restore all vector registers of the loop.

use super::translate::machine_type;
use anabranch_dsl::DType;
use anabranch_dsl::scalars::{BinaryOp, ExprNode, ScalarExpr, TernaryOp, UnaryOp};
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Type, Value, types};
use cranelift_frontend::FunctionBuilder;

/// The values of a function in native code.
pub(super) struct EmittedFunction {
    /// The value of the function.
    pub(super) result: Value,
    /// A value that is true if the function does not hold for its argument.
    pub(super) far: Option<Value>,
}

/// Emits a function. Returns `None` if one of its primitives has no instruction.
pub(super) fn emit(b: &mut FunctionBuilder<'_>, expr: &ScalarExpr, arguments: &[Value]) -> Option<EmittedFunction> {
    let mut values: Vec<Value> = Vec::with_capacity(expr.nodes().len());
    for (node, dtype) in expr.nodes() {
        let value = match node {
            ExprNode::Argument(i) => arguments[usize::from(i)],
            ExprNode::Constant(bits) => constant(b, bits, machine_type(dtype)),
            ExprNode::Unary(UnaryOp::Convert, x) => convert(b, values[x.index()], expr.dtype(x), dtype)?,
            ExprNode::Unary(op, x) => unary(b, op, values[x.index()], dtype),
            ExprNode::Binary(op, x, y) => binary(b, op, [x, y].map(|id| values[id.index()]), expr.dtype(x))?,
            ExprNode::Ternary(op, x, y, z) => {
                let [x, y, z] = [x, y, z].map(|id| values[id.index()]);
                match op {
                    TernaryOp::MulAdd => b.ins().fma(x, y, z),
                    TernaryOp::Select => b.ins().select(x, y, z),
                }
            }
        };
        values.push(value);
    }
    let far = expr.far().map(|far| values[far.index()]);
    Some(EmittedFunction { result: values[expr.result().index()], far })
}

/// Emits a constant, given by the bits of a register.
pub(super) fn constant(b: &mut FunctionBuilder<'_>, bits: u64, ty: Type) -> Value {
    match ty {
        types::F64 => b.ins().f64const(f64::from_bits(bits)),
        types::F32 => b.ins().f32const(f32::from_bits(bits as u32)),
        _ => b.ins().iconst(ty, bits.cast_signed() & (u64::MAX >> (64 - ty.bits())).cast_signed()),
    }
}

/// Emits a primitive of a value, with a result of type `result`.
fn unary(b: &mut FunctionBuilder<'_>, op: UnaryOp, x: Value, result: DType) -> Value {
    let (from, to) = (b.func.dfg.value_type(x), machine_type(result));
    match op {
        UnaryOp::Neg if result.is_float() => b.ins().fneg(x),
        UnaryOp::Neg => b.ins().ineg(x),
        UnaryOp::Abs if result.is_float() => b.ins().fabs(x),
        UnaryOp::Abs => b.ins().iabs(x),
        UnaryOp::Sqrt => b.ins().sqrt(x),
        UnaryOp::Floor => b.ins().floor(x),
        UnaryOp::Ceil => b.ins().ceil(x),
        UnaryOp::Round => b.ins().nearest(x),
        UnaryOp::Nearest | UnaryOp::NearestInt => {
            // As on the host: adding 1.5 * 2^mantissa rounds to an integer, which is then in the
            // low bits.
            let shift = if from == types::F32 { u64::from(0x4b40_0000u32) } else { 0x4338_0000_0000_0000 };
            let shift_float = constant(b, shift, from);
            let shifted = b.ins().fadd(x, shift_float);
            if op == UnaryOp::Nearest {
                return b.ins().fsub(shifted, shift_float);
            }
            let bits = b.ins().bitcast(to, MemFlagsData::new(), shifted);
            let shift = constant(b, shift, to);
            b.ins().isub(bits, shift)
        }
        UnaryOp::Bits | UnaryOp::FromBits => b.ins().bitcast(to, MemFlagsData::new(), x),
        UnaryOp::FromInt => b.ins().fcvt_from_sint(to, x),
        UnaryOp::Convert => panic!("a conversion depends on the type of its operand"),
        UnaryOp::Not if result == DType::Bool => b.ins().bxor_imm_u(x, 1),
        UnaryOp::Not => b.ins().bnot(x),
    }
}

/// Emits the conversion of a value, if there are instructions for it.
fn convert(b: &mut FunctionBuilder<'_>, x: Value, from: DType, to: DType) -> Option<Value> {
    let (a, r) = (machine_type(from), machine_type(to));
    let unsigned = |d: DType| matches!(d, DType::U32 | DType::U8 | DType::Bool);
    if from.is_half() || to.is_half() {
        return None;
    }
    Some(match (from.is_float(), to.is_float()) {
        (true, true) if r == types::F64 => b.ins().fpromote(r, x),
        (true, true) => b.ins().fdemote(r, x),
        (_, false) if to == DType::Bool => return None,
        (false, false) if a == r => x,
        (false, false) if a.bits() > r.bits() => b.ins().ireduce(r, x),
        (false, false) if unsigned(from) => b.ins().uextend(r, x),
        (false, false) => b.ins().sextend(r, x),
        (false, true) => {
            // All narrower integers fit in 64 signed bits.
            let wide = match (a, unsigned(from)) {
                (types::I64, _) => x,
                (_, true) => b.ins().uextend(types::I64, x),
                (_, false) => b.ins().sextend(types::I64, x),
            };
            b.ins().fcvt_from_sint(r, wide)
        }
        (true, false) if to == DType::I32 || to == DType::I64 => b.ins().fcvt_to_sint_sat(r, x),
        (true, false) if to == DType::U32 => b.ins().fcvt_to_uint_sat(r, x),
        (true, false) => return None,
    })
}

/// Emits a primitive of two values of type `operand`.
fn binary(b: &mut FunctionBuilder<'_>, op: BinaryOp, [x, y]: [Value; 2], operand: DType) -> Option<Value> {
    let signed = matches!(operand, DType::I32 | DType::I64);
    let compare = |b: &mut FunctionBuilder<'_>, float: FloatCC, ints: [IntCC; 2]| match operand.is_float() {
        true => b.ins().fcmp(float, x, y),
        false => b.ins().icmp(ints[usize::from(signed)], x, y),
    };
    Some(match (op, operand.is_float()) {
        (BinaryOp::Add, true) => b.ins().fadd(x, y),
        (BinaryOp::Sub, true) => b.ins().fsub(x, y),
        (BinaryOp::Mul, true) => b.ins().fmul(x, y),
        (BinaryOp::Div, true) => b.ins().fdiv(x, y),
        // No instruction: the caller calls the function of the host.
        (BinaryOp::Rem, true) => return None,
        (BinaryOp::CopySign, _) => b.ins().fcopysign(x, y),
        (BinaryOp::Larger | BinaryOp::Smaller, true) => {
            let beyond = if op == BinaryOp::Larger { FloatCC::GreaterThan } else { FloatCC::LessThan };
            let (nan, beyond) = (b.ins().fcmp(FloatCC::Unordered, x, x), b.ins().fcmp(beyond, x, y));
            let first = b.ins().bor(nan, beyond);
            b.ins().select(first, x, y)
        }
        (BinaryOp::Add, false) => b.ins().iadd(x, y),
        (BinaryOp::Sub, false) => b.ins().isub(x, y),
        (BinaryOp::Mul, false) => b.ins().imul(x, y),
        (BinaryOp::Larger, false) if signed => b.ins().smax(x, y),
        (BinaryOp::Larger, false) => b.ins().umax(x, y),
        (BinaryOp::Smaller, false) if signed => b.ins().smin(x, y),
        (BinaryOp::Smaller, false) => b.ins().umin(x, y),
        // The divisor was checked to be nonzero.
        (BinaryOp::Div, false) if !signed => b.ins().udiv(x, y),
        (BinaryOp::Rem, false) if !signed => b.ins().urem(x, y),
        (BinaryOp::Div | BinaryOp::Rem, false) => {
            // Dividing the smallest number by -1 would trap, so handle -1 separately.
            let minus_one = b.ins().icmp_imm_s(IntCC::Equal, y, -1);
            let one = b.ins().iconst(machine_type(operand), 1);
            let divisor = b.ins().select(minus_one, one, y);
            if op == BinaryOp::Div {
                let quotient = b.ins().sdiv(x, divisor);
                let negated = b.ins().ineg(x);
                b.ins().select(minus_one, negated, quotient)
            } else {
                // The remainder of a division by 1 is 0, as for -1.
                b.ins().srem(x, divisor)
            }
        }
        (BinaryOp::Equal, _) => compare(b, FloatCC::Equal, [IntCC::Equal; 2]),
        (BinaryOp::Less, _) => compare(b, FloatCC::LessThan, [IntCC::UnsignedLessThan, IntCC::SignedLessThan]),
        (BinaryOp::AtMost, _) => {
            compare(b, FloatCC::LessThanOrEqual, [IntCC::UnsignedLessThanOrEqual, IntCC::SignedLessThanOrEqual])
        }
        (BinaryOp::And, _) => b.ins().band(x, y),
        (BinaryOp::Or, _) => b.ins().bor(x, y),
        (BinaryOp::Xor, _) => b.ins().bxor(x, y),
        // The machine takes the count modulo the number of bits as well.
        (BinaryOp::ShiftLeft, _) => b.ins().ishl(x, y),
        (BinaryOp::ShiftRight, _) if signed => b.ins().sshr(x, y),
        (BinaryOp::ShiftRight, _) => b.ins().ushr(x, y),
    })
}
