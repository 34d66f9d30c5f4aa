//! Scalar functions in native code, derived from their recorded form.
//!
//! The nodes of the form have the same operations in the same order as the functions that rustc
//! compiles, so results are bitwise identical. Functions are inlined: a call would have to save and
//! restore all vector registers of the loop.

use super::steps::{Decision, MachineType, NativeBlockId, NativeStep, NativeSteps, NativeValue, NumberType};
use anabranch_dsl::DType;
use anabranch_dsl::scalars::{BinaryOp, ExprNode, ScalarExpr, TernaryOp, UnaryOp};

/// A number, or a truth value that is not computed yet.
#[derive(Clone, Copy, Debug)]
pub(super) enum NumberOrTruth {
    Value(NativeValue),
    Decision { decision: Decision, is_negated: bool },
}

/// A function in steps.
pub(super) struct LoweredFunction {
    pub(super) result: NumberOrTruth,
    /// Whether the function does not hold for its argument.
    pub(super) far: Option<NumberOrTruth>,
}

/// Adds the steps of a function to a block. Returns `None`, and adds nothing, if one of its
/// primitives has no step.
pub(super) fn lower(
    steps: &mut NativeSteps,
    block: NativeBlockId,
    expr: &ScalarExpr,
    arguments: &[NativeValue],
) -> Option<LoweredFunction> {
    let has_steps = |(node, dtype): (ExprNode, DType)| match node {
        ExprNode::Unary(UnaryOp::Convert, x) => has_conversion(expr.dtype(x), dtype),
        ExprNode::Binary(BinaryOp::Rem, x, _) => !expr.dtype(x).is_float(),
        _ => true,
    };
    if !expr.nodes().all(has_steps) {
        return None;
    }
    let mut outcomes: Vec<NumberOrTruth> = Vec::with_capacity(expr.nodes().len());
    for (node, dtype) in expr.nodes() {
        let ty = MachineType::of(dtype);
        let outcome = match node {
            ExprNode::Argument(i) => NumberOrTruth::Value(arguments[usize::from(i)]),
            ExprNode::Constant(bits) => NumberOrTruth::Value(steps.constant(bits, ty)),
            ExprNode::Unary(UnaryOp::Not, x) if dtype == DType::Bool => match outcomes[x.index()] {
                NumberOrTruth::Decision { decision, is_negated } => {
                    NumberOrTruth::Decision { decision, is_negated: !is_negated }
                }
                NumberOrTruth::Value(x) => NumberOrTruth::Decision { decision: Decision::NotZero(x), is_negated: true },
            },
            ExprNode::Unary(op, x) => {
                let from = expr.dtype(x);
                let x = value_of(steps, block, outcomes[x.index()]);
                let dst = steps.value(ty);
                let step = match op {
                    UnaryOp::Convert => NativeStep::Convert { from, to: dtype, dst, x },
                    _ => NativeStep::Unary { op, result: dtype, dst, x },
                };
                add(steps, block, step);
                NumberOrTruth::Value(dst)
            }
            ExprNode::Binary(op, x, y) => {
                let of = NumberType::of(expr.dtype(x));
                let operands = [x, y].map(|id| outcomes[id.index()]).map(|outcome| value_of(steps, block, outcome));
                if let BinaryOp::Equal | BinaryOp::Less | BinaryOp::AtMost = op {
                    NumberOrTruth::Decision { decision: Decision::Compare { op, of, operands }, is_negated: false }
                } else {
                    let dst = steps.value(ty);
                    add(steps, block, NativeStep::Binary { op, of, dst, operands });
                    NumberOrTruth::Value(dst)
                }
            }
            ExprNode::Ternary(op, x, y, z) => {
                let [x, y, z] = [x, y, z].map(|id| outcomes[id.index()]);
                let [y, z] = [y, z].map(|outcome| value_of(steps, block, outcome));
                let dst = steps.value(ty);
                let step = match (op, x) {
                    (TernaryOp::MulAdd, x) => {
                        let x = value_of(steps, block, x);
                        NativeStep::MulAdd { dst, operands: [x, y, z] }
                    }
                    (TernaryOp::Select, NumberOrTruth::Value(x)) => {
                        NativeStep::Choose { dst, decision: Decision::NotZero(x), values: [y, z] }
                    }
                    (TernaryOp::Select, NumberOrTruth::Decision { decision, is_negated }) => {
                        NativeStep::Choose { dst, decision, values: if is_negated { [z, y] } else { [y, z] } }
                    }
                };
                add(steps, block, step);
                NumberOrTruth::Value(dst)
            }
        };
        outcomes.push(outcome);
    }
    let far = expr.far().map(|far| outcomes[far.index()]);
    Some(LoweredFunction { result: outcomes[expr.result().index()], far })
}

fn add(steps: &mut NativeSteps, block: NativeBlockId, step: NativeStep) {
    steps.blocks[block.index()].steps.push(step);
}

/// Returns the value of an outcome. The steps of a truth value are added to a block.
pub(super) fn value_of(steps: &mut NativeSteps, block: NativeBlockId, outcome: NumberOrTruth) -> NativeValue {
    let NumberOrTruth::Decision { decision, is_negated } = outcome else {
        let NumberOrTruth::Value(value) = outcome else { unreachable!("it is no decision") };
        return value;
    };
    let dst = steps.value(MachineType::I8);
    let step = match decision {
        Decision::Compare { op, of, operands } => NativeStep::Binary { op, of, dst, operands },
        Decision::NotZero(x) => NativeStep::Cast { dst, x },
        Decision::ByteIsZero(_) => panic!("no function reads memory"),
    };
    add(steps, block, step);
    if !is_negated {
        return dst;
    }
    let opposite = steps.value(MachineType::I8);
    add(steps, block, NativeStep::Unary { op: UnaryOp::Not, result: DType::Bool, dst: opposite, x: dst });
    opposite
}

/// Returns whether there are instructions for a conversion.
fn has_conversion(from: DType, to: DType) -> bool {
    let to_small = from.is_float() && !to.is_float() && !matches!(to, DType::I32 | DType::I64 | DType::U32);
    !from.is_half() && !to.is_half() && to != DType::Bool && !to_small
}
