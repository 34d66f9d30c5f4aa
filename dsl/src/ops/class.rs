//! The class of an operation, and the facts that follow from it.
//!
//! Passes, autodiff, placement and devices ask for these facts instead of keeping lists of
//! operations. So a new operation states its class once, in its definition, and is treated like
//! every other operation of that class.

use super::prim::{ADD, AND, MAXIMUM, MINIMUM, MUL, OR};
use super::{Effects, OpDef, Prim, ViewForm};
use crate::ir::{Attrs, Graph, Node, Op};
use crate::scalars::ScalarExpr;
use crate::{DType, Dim, TensorType};

/// The dependence of the elements of a result on the elements of the operands.
#[derive(Clone, Copy, Debug)]
pub enum OpClass {
    /// Elementwise: an element of the result depends only on the operands' elements at the same
    /// index. All operands have the shape of the result.
    Scalar(ScalarForm),
    /// The elements of the first operand at other indices, which types and attributes determine. A
    /// device need not copy them.
    View(ViewForm),
    /// Each element of the result is an element of an operand. Types and attributes determine which
    /// one.
    Move,
    /// The first operand with elements replaced by those of other operands. Types and attributes
    /// determine which ones.
    Update,
    /// Combines the elements of the first operand along some of its axes.
    Reduce(Combiner),
    /// Combines, for each index along an axis, the elements up to it.
    Scan(Combiner),
    /// The index of an element along an axis.
    Search,
    /// Sums of products.
    Contract(Contraction),
    /// Elements of the first operand at indices that are data.
    Gather,
    /// The first operand with elements combined at indices that are data, or replaced if there is
    /// no combiner.
    Scatter(Option<Combiner>),
    /// Combines the elements in each window of the first operand.
    Window(Combiner),
    /// Each row of the result depends on a row of the operand, which is read several times.
    Rowwise(Effort),
    /// Random bits or numbers.
    Random(Effort),
    /// The result depends on types and attributes alone.
    Shape,
    /// Anything else.
    Opaque(Effort),
}

/// The definition of an elementwise operation.
#[derive(Clone, Copy, Debug)]
pub enum ScalarForm {
    /// The result is the operand.
    Identity,
    /// A function, recorded for operands of a type.
    #[doc(hidden)]
    Function(fn(DType) -> Option<ScalarExpr>),
    /// The operand converted to the type of the result, as by `as` of Rust.
    Conversion,
    /// A function that is known only by its reference implementation.
    Estimated(Effort),
}

/// The structure of sums of products, with a function that returns the number of multiplications.
#[derive(Clone, Copy, Debug)]
pub enum Contraction {
    /// Each element of the result is one sum of products of elements of two operands. So a kernel
    /// may begin with a sum of its own, and go on with elementwise operations on the result.
    Product(fn(&CostCx<'_>) -> f64),
    /// Several products, with operations on what they yield in between.
    Composite(fn(&CostCx<'_>) -> f64),
}

impl Contraction {
    /// Returns the number of multiplications.
    pub fn multiplications(self, cx: &CostCx<'_>) -> f64 {
        match self {
            Contraction::Product(multiplications) | Contraction::Composite(multiplications) => multiplications(cx),
        }
    }
}

/// The memory that the result of an operation may share with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aliasing {
    /// None: the result has memory of its own.
    Nothing,
    /// That of the first operand, at any time: the result is a view of it, and neither changes.
    View,
    /// That of the first operand, if nothing else uses the operand: some of its elements are
    /// changed.
    Update,
    /// That of any operand of the same size, if nothing else uses the operand: each element of the
    /// result overwrites the element at its index.
    Elementwise,
}

/// An estimate of the instructions for one element, in units of an addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effort(pub u32);

impl Effort {
    /// No instruction: the value stays the same.
    pub const NONE: Effort = Effort(0);
    /// One instruction that is as fast as an addition.
    pub const SIMPLE: Effort = Effort(1);
    /// A division, a root, an exponential or a logarithm.
    pub const DIVISION: Effort = Effort(8);
    /// The generation of a random number.
    pub const RANDOM: Effort = Effort(16);
    /// A function without an instruction, such as `tanh`.
    pub const FUNCTION: Effort = Effort(24);

    /// Returns whether a few instructions are enough.
    pub fn is_simple(self) -> bool {
        self < Effort::DIVISION
    }
}

/// An associative and commutative operation on two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combiner {
    /// The sum.
    Sum,
    /// The product.
    Product,
    /// The larger element.
    Max,
    /// The smaller element.
    Min,
    /// Logical and.
    And,
    /// Logical or.
    Or,
}

impl Combiner {
    /// Returns the elementwise operation that combines two elements.
    pub fn prim(self) -> Prim {
        match self {
            Combiner::Sum => ADD,
            Combiner::Product => MUL,
            Combiner::Max => MAXIMUM,
            Combiner::Min => MINIMUM,
            Combiner::And => AND,
            Combiner::Or => OR,
        }
    }
}

/// The types for which a cost is estimated.
pub struct CostCx<'a> {
    /// The types of the operands.
    pub operands: &'a [&'a TensorType],
    /// The type of the result.
    pub result: &'a TensorType,
    /// The static arguments.
    pub attrs: &'a Attrs,
    /// The value to assume for an unknown extent.
    pub unknown_extent: usize,
}

impl CostCx<'_> {
    /// Returns an extent as a number.
    pub fn extent(&self, dim: &Dim) -> f64 {
        dim.known().unwrap_or(self.unknown_extent) as f64
    }

    /// Returns the number of elements of a tensor.
    pub fn elements(&self, ty: &TensorType) -> f64 {
        ty.shape.dims().iter().map(|dim| self.extent(dim)).product()
    }

    /// Returns the size of a tensor in bytes.
    pub fn bytes(&self, ty: &TensorType) -> f64 {
        self.elements(ty) * ty.dtype.size() as f64
    }
}

/// An estimate of the work of an operation that runs once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OpCost {
    /// Additions, multiplications and other simple operations on elements.
    pub operations: f64,
    /// Instructions of functions that take several, in units of an addition.
    pub special: f64,
    /// Bytes read from operands.
    pub bytes_read: f64,
    /// Bytes written to the result.
    pub bytes_written: f64,
}

impl OpCost {
    /// Returns whether nothing is computed, read or written.
    pub fn is_free(&self) -> bool {
        *self == OpCost::default()
    }

    /// Returns the instructions, in units of an addition.
    pub fn effort(&self) -> f64 {
        self.operations + self.special
    }
}

/// The extent that estimates assume for an unknown one.
pub const ASSUMED_EXTENT: usize = 64;

impl Graph {
    /// Estimates the cost of running a primitive operation of the graph once, and the number of
    /// elements of its result. Returns `None` for other nodes.
    pub(crate) fn cost_of(&self, node: Node) -> Option<(OpCost, f64)> {
        let data = self.node(node);
        let Op::Prim(op, attrs) = &data.op else { return None };
        let operands: Vec<&TensorType> = data.operands.iter().map(|&v| self.ty(v).element()).collect();
        let result = self.ty(data.results[0]).element();
        let cx = CostCx { operands: &operands, result, attrs, unknown_extent: ASSUMED_EXTENT };
        Some((op.cost(&cx), cx.elements(result)))
    }
}

impl OpDef {
    /// Returns whether the operation is elementwise.
    ///
    /// An element of the result then depends only on the operands' elements at the same index, and
    /// all operands have the shape of the result.
    pub fn is_elementwise(&self) -> bool {
        matches!(self.class, OpClass::Scalar(_))
    }

    /// Returns whether the elementwise operation may fail on elements of a type. Those on floats
    /// have a result for all operands.
    pub fn can_fail(&self, dtype: DType) -> bool {
        self.effects != Effects::Pure && !dtype.is_float()
    }

    /// Returns whether a device need not copy any element: the result is a view of the first
    /// operand or known from types and attributes.
    pub fn is_free(&self) -> bool {
        self.aliasing() == Aliasing::View || matches!(self.class, OpClass::Shape)
    }

    /// Returns the memory that the result may share with an operand.
    pub fn aliasing(&self) -> Aliasing {
        match self.class {
            OpClass::View(_) | OpClass::Scalar(ScalarForm::Identity) => Aliasing::View,
            OpClass::Update | OpClass::Scatter(_) => Aliasing::Update,
            OpClass::Scalar(_) => Aliasing::Elementwise,
            _ => Aliasing::Nothing,
        }
    }

    /// Returns whether each element of the result is an element of some operand, which types and
    /// attributes determine.
    pub fn only_moves(&self) -> bool {
        matches!(self.class, OpClass::View(_) | OpClass::Move | OpClass::Update)
    }

    /// Returns whether the result depends on the elements of an operand, and not on its shape
    /// alone.
    pub fn reads_elements_of(&self, operand: usize) -> bool {
        match self.class {
            OpClass::View(_) | OpClass::Reduce(_) => operand == 0,
            OpClass::Shape => false,
            _ => true,
        }
    }
}

impl Prim {
    /// Returns the combiner of a built-in reduction. A user's operation may have other attributes
    /// and other operands than those.
    pub fn reduces_by(self) -> Option<Combiner> {
        match self.class {
            OpClass::Reduce(combiner) if !self.is_registered() => Some(combiner),
            _ => None,
        }
    }

    /// Estimates the cost of running the operation once.
    pub fn cost(&self, cx: &CostCx<'_>) -> OpCost {
        let read = || cx.operands.iter().map(|ty| cx.bytes(ty)).sum::<f64>();
        let (n, written) = (cx.elements(cx.result), cx.bytes(cx.result));
        let all = |operations, special| OpCost { operations, special, bytes_read: read(), bytes_written: written };
        let by_effort = |effort: Effort, n: f64| match effort.is_simple() {
            true => all(f64::from(effort.0) * n, 0.0),
            false => all(0.0, f64::from(effort.0) * n),
        };
        let parts = || {
            let bytes = cx.operands.iter().skip(1).map(|ty| cx.bytes(ty)).sum();
            OpCost { bytes_read: bytes, bytes_written: bytes, ..OpCost::default() }
        };
        match self.class {
            OpClass::View(_) | OpClass::Shape | OpClass::Scalar(ScalarForm::Identity) => OpCost::default(),
            OpClass::Scalar(_) => by_effort(self.scalar_effort().expect("the operation is elementwise"), n),
            OpClass::Rowwise(effort) | OpClass::Random(effort) | OpClass::Opaque(effort) => by_effort(effort, n),
            OpClass::Move => all(0.0, 0.0),
            OpClass::Reduce(_) | OpClass::Scan(_) | OpClass::Search | OpClass::Window(_) => {
                all(cx.operands.first().map_or(0.0, |x| cx.elements(x)), 0.0)
            }
            OpClass::Contract(contraction) => all(2.0 * contraction.multiplications(cx), 0.0),
            // Only a part of the first operand is read.
            OpClass::Gather => OpCost { bytes_read: written, bytes_written: written, ..OpCost::default() },
            // Made in place.
            OpClass::Update | OpClass::Scatter(_) => parts(),
        }
    }
}
