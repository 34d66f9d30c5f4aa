//! Scalar functions as data.

use crate::DType;

/// A scalar function as a list of nodes, each of which refers to earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalarExpr {
    pub(super) nodes: Vec<(ExprNode, DType)>,
    pub(super) result: ExprNodeId,
    pub(super) far: Option<ExprNodeId>,
}

/// The index of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExprNodeId(pub(super) u16);

impl ExprNodeId {
    /// Returns the position in the list of nodes.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A node of an [`ScalarExpr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExprNode {
    /// An argument of the function.
    Argument(u8),
    /// A constant: the bits of the element, extended with zeros.
    Constant(u64),
    /// A function of one value.
    Unary(UnaryOp, ExprNodeId),
    /// A function of two values.
    Binary(BinaryOp, ExprNodeId, ExprNodeId),
    /// A function of three values.
    Ternary(TernaryOp, ExprNodeId, ExprNodeId, ExprNodeId),
}

/// A primitive with one operand. The traits of the [module](super) define the semantics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// The number with the opposite sign.
    Neg,
    /// The absolute value.
    Abs,
    /// The square root.
    Sqrt,
    /// Rounds down.
    Floor,
    /// Rounds up.
    Ceil,
    /// Rounds to the nearest integer, half to even.
    Round,
    /// The nearest integer of a small number, as a float.
    Nearest,
    /// The nearest integer of a small number, as an integer.
    NearestInt,
    /// The bits of a float as an integer.
    Bits,
    /// The float with the given bits.
    FromBits,
    /// Conversion of an integer to the float of the same size.
    FromInt,
    /// Conversion to another type, as by `as` of Rust: from floats to integers with saturation.
    Convert,
    /// The opposite of a truth value, or the inverted bits of an integer.
    Not,
}

/// A primitive with two operands of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// The sum.
    Add,
    /// The difference.
    Sub,
    /// The product.
    Mul,
    /// The quotient.
    Div,
    /// The remainder.
    Rem,
    /// The first operand if it is NaN or larger, else the second.
    Larger,
    /// The first operand if it is NaN or smaller, else the second.
    Smaller,
    /// Whether both are equal.
    Equal,
    /// Whether the first is less.
    Less,
    /// Whether the first is less or equal.
    AtMost,
    /// Logical and, or that of bits.
    And,
    /// Logical or, or that of bits.
    Or,
    /// Exclusive or, or that of bits.
    Xor,
    /// The first operand shifted left.
    ShiftLeft,
    /// The first operand shifted right.
    ShiftRight,
    /// The first operand with the sign of the second.
    CopySign,
}

/// A primitive with three operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TernaryOp {
    /// The product of the first two plus the third, rounded once.
    MulAdd,
    /// The second if the first is true, else the third.
    Select,
}

impl ScalarExpr {
    /// Returns the function that chooses the second or the third argument, of a type, by the first.
    pub fn select(dtype: DType) -> ScalarExpr {
        let arguments = [(0, DType::Bool), (1, dtype), (2, dtype)].map(|(i, dtype)| (ExprNode::Argument(i), dtype));
        let select = (ExprNode::Ternary(TernaryOp::Select, ExprNodeId(0), ExprNodeId(1), ExprNodeId(2)), dtype);
        ScalarExpr { nodes: arguments.into_iter().chain([select]).collect(), result: ExprNodeId(3), far: None }
    }

    /// Returns the function that converts its argument to another type.
    pub fn conversion(from: DType, to: DType) -> ScalarExpr {
        let argument = (ExprNode::Argument(0), from);
        if from == to {
            return ScalarExpr { nodes: vec![argument], result: ExprNodeId(0), far: None };
        }
        let convert = (ExprNode::Unary(UnaryOp::Convert, ExprNodeId(0)), to);
        ScalarExpr { nodes: vec![argument, convert], result: ExprNodeId(1), far: None }
    }

    /// Returns the nodes with their types, in order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (ExprNode, DType)> {
        self.nodes.iter().copied()
    }

    /// Returns the node with the given number.
    pub fn node(&self, id: ExprNodeId) -> ExprNode {
        self.nodes[id.index()].0
    }

    /// Returns the type of a node.
    pub fn dtype(&self, id: ExprNodeId) -> DType {
        self.nodes[id.index()].1
    }

    /// Returns the node with the value of the function.
    pub fn result(&self) -> ExprNodeId {
        self.result
    }

    /// Returns the node that is true for arguments [beyond](super::Beyond) the function's domain.
    pub fn far(&self) -> Option<ExprNodeId> {
        self.far
    }

    /// Returns an estimate of the instructions that the function takes, in units of an addition.
    pub fn effort(&self) -> u32 {
        let of = |node: &(ExprNode, DType)| match node.0 {
            ExprNode::Argument(_) | ExprNode::Constant(_) | ExprNode::Unary(UnaryOp::Bits | UnaryOp::FromBits, _) => 0,
            ExprNode::Unary(UnaryOp::Sqrt, _) | ExprNode::Binary(BinaryOp::Div | BinaryOp::Rem, ..) => 8,
            ExprNode::Unary(..) | ExprNode::Binary(..) | ExprNode::Ternary(..) => 1,
        };
        self.nodes.iter().map(of).sum()
    }
}

/// Returns the name of an argument in text.
pub(super) fn argument_name(i: u8) -> &'static str {
    ["x", "y", "z"][usize::from(i)]
}
