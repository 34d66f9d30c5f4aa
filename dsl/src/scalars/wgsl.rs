//! Printing of scalar functions in the shading language of WebGPU.
//!
//! A test validates the printed functions.
//!
//! WGSL lets a compiler reassociate, assume that NaN and infinity do not occur, and fuse
//! multiplications with additions. So a function on a GPU need not yield the bits of a CPU. The
//! printer still avoids the known traps: NaN is found by its bits, and no constant is infinite or
//! NaN, which would be an error of the shader.

use super::expr::argument_name;
use super::{BinaryOp, ExprNode, ExprNodeId, ScalarExpr, TernaryOp, UnaryOp};
use crate::DType;
use std::fmt::Write;

/// Declarations that printed functions use.
pub const PRELUDE: &str = "\
// Bits that no compiler may evaluate, since WGSL has no constants for infinity and NaN.
var<private> infinity_bits: u32 = 0x7f800000u;
var<private> nan_bits: u32 = 0x7fc00000u;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
";

/// The directive with which a shader begins whose memory has 16-bit floats.
pub const ENABLE_HALVES: &str = "enable wgpu_int16;\n";

/// Returns the functions between the bits of a 16-bit float and the same number in `f32`, of which
/// the one to the bits rounds to nearest, ties to even.
///
/// # Panics
/// Panics if the type is no 16-bit float.
pub fn half_to_wgsl(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => {
            "\
fn number_of_f16(bits: u32) -> f32 {
    let exponent = (bits >> 10u) & 31u;
    let fraction = bits & 1023u;
    var x = bitcast<f32>(((exponent + 112u) << 23u) | (fraction << 13u));
    if exponent == 31u { x = bitcast<f32>(0x7f800000u | (fraction << 13u)); }
    // Without numbers that a device may flush to zero.
    if exponent == 0u { x = f32(fraction) * 0x1p-24f; }
    return bitcast<f32>(bitcast<u32>(x) | ((bits & 0x8000u) << 16u));
}

fn f16_of_number(x: f32) -> u32 {
    let magnitude = bitcast<u32>(x) & 0x7fffffffu;
    var bits = ((magnitude + 0xfffu + ((magnitude >> 13u) & 1u)) >> 13u) - 0x1c000u;
    if magnitude < 0x38800000u { bits = u32(round(abs(x) * 0x1p24f)); }
    if magnitude >= 0x47800000u { bits = 0x7c00u; }
    if magnitude > 0x7f800000u { bits = 0x7e00u; }
    return bits | ((bitcast<u32>(x) >> 16u) & 0x8000u);
}
"
        }
        DType::BF16 => {
            "\
fn number_of_bf16(bits: u32) -> f32 {
    return bitcast<f32>(bits << 16u);
}

fn bf16_of_number(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if (bits & 0x7fffffffu) > 0x7f800000u { return 0x7fc0u; }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
"
        }
        _ => panic!("{dtype} has more or fewer bits"),
    }
}

/// Returns the name of a type, if WGSL has it.
pub(crate) fn type_name(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F32 => "f32",
        DType::I32 => "i32",
        DType::U32 => "u32",
        DType::Bool => "bool",
        _ => return None,
    })
}

/// Returns the conversion of a value. WGSL leaves the integer of a float that it does not fit open.
fn convert(x: &str, from: DType, to: DType) -> String {
    let ty = type_name(to).expect("WGSL has the type");
    let [low, high, beyond, last] = match to {
        DType::I32 => ["-2147483648.0f", "2147483520.0f", "2147483648.0f", "2147483647i"],
        _ => ["0.0f", "4294967040.0f", "4294967296.0f", "4294967295u"],
    };
    match (from, to) {
        (DType::F32, DType::I32 | DType::U32) => {
            format!("select(select({ty}(clamp({x}, {low}, {high})), {last}, {x} >= {beyond}), {ty}(0), is_nan({x}))")
        }
        _ => format!("{ty}({x})"),
    }
}

impl ScalarExpr {
    /// Returns a WGSL function, to be used with the [`PRELUDE`].
    ///
    /// For arguments that are [far](super::is_far) it calls `builtin`. Returns `None` if WGSL lacks
    /// one of the types.
    pub fn to_wgsl(&self, name: &str, builtin: &str) -> Option<String> {
        let (mut arguments, mut body) = (Vec::new(), String::new());
        for (i, (node, dtype)) in self.nodes().enumerate() {
            let ty = type_name(dtype)?;
            let value = match node {
                ExprNode::Argument(k) => {
                    arguments.push(format!("{}: {ty}", argument_name(k)));
                    continue;
                }
                ExprNode::Constant(_) => continue,
                ExprNode::Unary(op, x) => self.wgsl_unary(op, x, dtype),
                ExprNode::Binary(op, x, y) => self.wgsl_binary(op, x, y),
                ExprNode::Ternary(op, x, y, z) => {
                    let [x, y, z] = [x, y, z].map(|id| self.wgsl_value(id));
                    match op {
                        TernaryOp::MulAdd => format!("fma({x}, {y}, {z})"),
                        TernaryOp::Select => format!("select({z}, {y}, {x})"),
                    }
                }
            };
            writeln!(body, "    let v{i}: {ty} = {value};").expect("a string has room");
        }
        let result = self.wgsl_value(self.result());
        let result = match self.far() {
            Some(far) => format!("select({result}, {builtin}(x), {})", self.wgsl_value(far)),
            None => result,
        };
        let ty = type_name(self.dtype(self.result()))?;
        Some(format!("fn {name}({}) -> {ty} {{\n{body}    return {result};\n}}\n", arguments.join(", ")))
    }

    /// Returns the expression of an operand.
    fn wgsl_value(&self, id: ExprNodeId) -> String {
        match self.node(id) {
            ExprNode::Argument(i) => argument_name(i).to_owned(),
            ExprNode::Constant(bits) => match self.dtype(id) {
                DType::F32 => {
                    let x = f32::from_bits(bits as u32);
                    let sign = if x.is_sign_negative() { "-" } else { "" };
                    match x.is_finite() {
                        true => format!("{x:?}f"),
                        false => format!("{sign}bitcast<f32>({}_bits)", if x.is_nan() { "nan" } else { "infinity" }),
                    }
                }
                // The smallest integer has no literal.
                DType::I32 => format!("bitcast<i32>({bits}u)"),
                DType::U32 => format!("{bits}u"),
                _ => (bits != 0).to_string(),
            },
            _ => format!("v{}", id.index()),
        }
    }

    fn wgsl_unary(&self, op: UnaryOp, x: ExprNodeId, result: DType) -> String {
        let v = self.wgsl_value(x);
        match op {
            // WGSL has no negative unsigned integers.
            UnaryOp::Neg if result == DType::U32 => format!("0u - {v}"),
            // Two signs would be an operator.
            UnaryOp::Neg if v.starts_with('-') => format!("-({v})"),
            UnaryOp::Neg => format!("-{v}"),
            UnaryOp::Abs => format!("abs({v})"),
            UnaryOp::Sqrt => format!("sqrt({v})"),
            UnaryOp::Floor => format!("floor({v})"),
            UnaryOp::Ceil => format!("ceil({v})"),
            UnaryOp::Round | UnaryOp::Nearest => format!("round({v})"),
            UnaryOp::NearestInt => format!("i32(round({v}))"),
            UnaryOp::Bits => format!("bitcast<i32>({v})"),
            UnaryOp::FromBits => format!("bitcast<f32>({v})"),
            UnaryOp::FromInt => format!("f32({v})"),
            UnaryOp::Convert => convert(&v, self.dtype(x), result),
            UnaryOp::Not if result == DType::Bool => format!("!{v}"),
            UnaryOp::Not => format!("~{v}"),
        }
    }

    fn wgsl_binary(&self, op: BinaryOp, x: ExprNodeId, y: ExprNodeId) -> String {
        let (dtype, a, b) = (self.dtype(x), self.wgsl_value(x), self.wgsl_value(y));
        let is_float = dtype == DType::F32;
        match op {
            BinaryOp::Add => format!("{a} + {b}"),
            BinaryOp::Sub => format!("{a} - {b}"),
            BinaryOp::Mul => format!("{a} * {b}"),
            BinaryOp::Div => format!("{a} / {b}"),
            BinaryOp::Rem => format!("{a} % {b}"),
            BinaryOp::Larger if is_float => format!("select({b}, {a}, is_nan({a}) || {a} > {b})"),
            BinaryOp::Larger => format!("max({a}, {b})"),
            BinaryOp::Smaller if is_float => format!("select({b}, {a}, is_nan({a}) || {a} < {b})"),
            BinaryOp::Smaller => format!("min({a}, {b})"),
            BinaryOp::Equal if is_float && x == y => format!("!is_nan({a})"),
            BinaryOp::Equal => format!("{a} == {b}"),
            BinaryOp::Less => format!("{a} < {b}"),
            BinaryOp::AtMost => format!("{a} <= {b}"),
            BinaryOp::And => format!("{a} & {b}"),
            BinaryOp::Or => format!("{a} | {b}"),
            BinaryOp::Xor if dtype == DType::Bool => format!("{a} != {b}"),
            BinaryOp::Xor => format!("{a} ^ {b}"),
            BinaryOp::ShiftLeft => format!("{a} << (bitcast<u32>({b}) & 31u)"),
            BinaryOp::ShiftRight => format!("{a} >> (bitcast<u32>({b}) & 31u)"),
            BinaryOp::CopySign => {
                format!("bitcast<f32>((bitcast<u32>({a}) & 0x7fffffffu) | (bitcast<u32>({b}) & 0x80000000u))")
            }
        }
    }
}
