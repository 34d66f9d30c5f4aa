//! Scalar functions as data.

use crate::DType;
use std::fmt;

/// A scalar function as a list of nodes, each of which refers to earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expr {
    pub(super) nodes: Vec<(Node, DType)>,
    pub(super) result: Id,
    pub(super) far: Option<Id>,
}

/// The index of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub(super) u16);

impl Id {
    /// Returns the index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A node of an [`Expr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// An argument of the function.
    Argument(u8),
    /// A constant: the bits of the element, extended with zeros.
    Constant(u64),
    /// A function of one value.
    Unary(UnaryOp, Id),
    /// A function of two values.
    Binary(BinaryOp, Id, Id),
    /// A function of three values.
    Ternary(TernaryOp, Id, Id, Id),
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

impl Expr {
    /// Returns the function that chooses the second or the third argument, of a type, by the first.
    pub fn select(dtype: DType) -> Expr {
        let arguments = [(0, DType::Bool), (1, dtype), (2, dtype)].map(|(i, dtype)| (Node::Argument(i), dtype));
        let select = (Node::Ternary(TernaryOp::Select, Id(0), Id(1), Id(2)), dtype);
        Expr { nodes: arguments.into_iter().chain([select]).collect(), result: Id(3), far: None }
    }

    /// Returns the nodes with their types, in order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (Node, DType)> {
        self.nodes.iter().copied()
    }

    /// Returns a node.
    pub fn node(&self, id: Id) -> Node {
        self.nodes[id.index()].0
    }

    /// Returns the type of a node.
    pub fn dtype(&self, id: Id) -> DType {
        self.nodes[id.index()].1
    }

    /// Returns the node with the value of the function.
    pub fn result(&self) -> Id {
        self.result
    }

    /// Returns the node that is true for arguments [beyond](super::Beyond) the function's domain.
    pub fn far(&self) -> Option<Id> {
        self.far
    }

    /// Returns an estimate of the instructions that the function takes, in units of an addition.
    pub fn effort(&self) -> u32 {
        let of = |node: &(Node, DType)| match node.0 {
            Node::Argument(_) | Node::Constant(_) | Node::Unary(UnaryOp::Bits | UnaryOp::FromBits, _) => 0,
            Node::Unary(UnaryOp::Sqrt, _) | Node::Binary(BinaryOp::Div | BinaryOp::Rem, ..) => 8,
            Node::Unary(..) | Node::Binary(..) | Node::Ternary(..) => 1,
        };
        self.nodes.iter().map(of).sum()
    }
}

/// One line for each node that is not an argument or a constant.
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operand = |id: Id| match self.node(id) {
            Node::Argument(i) => argument_name(i).to_owned(),
            Node::Constant(bits) => match self.dtype(id) {
                DType::F32 => format!("{:?}", f32::from_bits(bits as u32)),
                DType::F64 => format!("{:?}", f64::from_bits(bits)),
                DType::I32 => (bits as u32).cast_signed().to_string(),
                DType::I64 => bits.cast_signed().to_string(),
                _ => bits.to_string(),
            },
            _ => format!("%{}", id.0),
        };
        for (i, (node, dtype)) in self.nodes.iter().enumerate() {
            let (name, operands) = match *node {
                Node::Argument(_) | Node::Constant(_) => continue,
                Node::Unary(op, a) => (format!("{op:?}"), vec![a]),
                Node::Binary(op, a, b) => (format!("{op:?}"), vec![a, b]),
                Node::Ternary(op, a, b, c) => (format!("{op:?}"), vec![a, b, c]),
            };
            let operands: Vec<String> = operands.into_iter().map(operand).collect();
            writeln!(f, "%{i}: {dtype} = {name}({})", operands.join(", "))?;
        }
        writeln!(f, "result {}", operand(self.result))?;
        self.far.map_or(Ok(()), |far| writeln!(f, "far {}", operand(far)))
    }
}

/// Returns the name of an argument in text.
pub(super) fn argument_name(i: u8) -> &'static str {
    ["x", "y", "z"][usize::from(i)]
}
