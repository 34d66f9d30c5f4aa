//! Types of the values of a graph.

use crate::{DType, Shape};
use std::fmt;

/// The element type and shape of a tensor, printed as `f32[4, n]`. A scalar is `f32[]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// The extents.
    pub shape: Shape,
}

impl TensorType {
    /// Creates a tensor type.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> TensorType {
        TensorType { dtype, shape: shape.into() }
    }

    /// Returns the rank: the number of axes.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// The bytes of the elements, if all extents are known; of more than `usize` counts, a number
    /// that no memory has.
    pub fn n_bytes(&self) -> Option<u128> {
        Some(self.shape.size()? as u128 * self.dtype.size() as u128)
    }

    /// Whether a value of the first type may be a value of the second.
    pub fn compatible(&self, other: &TensorType) -> bool {
        self.dtype == other.dtype && self.shape.compatible(&other.shape)
    }

    /// Returns whether every value of this type is a value of `general`, which is equal or has
    /// unknown extents.
    pub fn fits(&self, general: &TensorType) -> bool {
        self.dtype == general.dtype && self.shape.fits(&general.shape)
    }

    /// Returns the most precise type that both fit, if there is one.
    pub fn join(&self, other: &TensorType) -> Option<TensorType> {
        let shape = self.shape.join(&other.shape)?;
        (self.dtype == other.dtype).then_some(TensorType { dtype: self.dtype, shape })
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// A tensor.
    Tensor(TensorType),
    /// A stack of tensors of one type, printed as `stack<f32[4]>`. Loops save values for gradients
    /// on stacks.
    Stack(TensorType),
    /// A list of tensors of one type, printed as `list<f32[4]>`. Unknown extents may differ between
    /// elements.
    List(TensorType),
}

impl Type {
    /// Creates a tensor type.
    pub fn tensor(dtype: DType, shape: impl Into<Shape>) -> Type {
        Type::Tensor(TensorType::new(dtype, shape))
    }

    /// Returns the tensor type, if the value is a tensor.
    pub fn as_tensor(&self) -> Option<&TensorType> {
        match self {
            Type::Tensor(t) => Some(t),
            Type::Stack(_) | Type::List(_) => None,
        }
    }

    /// Returns the type of the tensor, or of the elements of the stack or list.
    pub fn element(&self) -> &TensorType {
        match self {
            Type::Tensor(t) | Type::Stack(t) | Type::List(t) => t,
        }
    }

    /// Returns whether a value of one type may be a value of another.
    pub fn compatible(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Tensor(a), Type::Tensor(b)) | (Type::Stack(a), Type::Stack(b)) | (Type::List(a), Type::List(b)) => {
                a.compatible(b)
            }
            _ => false,
        }
    }

    /// Returns whether every value of this type is a value of `general`, which is equal or has
    /// unknown extents.
    pub fn fits(&self, general: &Type) -> bool {
        match (self, general) {
            (Type::Tensor(a), Type::Tensor(b)) | (Type::Stack(a), Type::Stack(b)) | (Type::List(a), Type::List(b)) => {
                a.fits(b)
            }
            _ => false,
        }
    }

    /// Returns the most precise type that both fit, if there is one.
    pub fn join(&self, other: &Type) -> Option<Type> {
        match (self, other) {
            (Type::Tensor(a), Type::Tensor(b)) => a.join(b).map(Type::Tensor),
            (Type::Stack(a), Type::Stack(b)) => a.join(b).map(Type::Stack),
            (Type::List(a), Type::List(b)) => a.join(b).map(Type::List),
            _ => None,
        }
    }

    /// Returns `a tensor`, `a stack` or `a list`, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Type::Tensor(_) => "a tensor",
            Type::Stack(_) => "a stack",
            Type::List(_) => "a list",
        }
    }

    /// Returns whether values of this type have gradients.
    pub fn is_differentiable(&self) -> bool {
        self.element().dtype.is_float()
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Tensor(t) => write!(f, "{t}"),
            Type::Stack(t) => write!(f, "stack<{t}>"),
            Type::List(t) => write!(f, "list<{t}>"),
        }
    }
}

impl From<TensorType> for Type {
    fn from(t: TensorType) -> Type {
        Type::Tensor(t)
    }
}
