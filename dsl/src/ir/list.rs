//! Operations on lists, known elsewhere as `TensorArray`s.
//!
//! A list is a value: an operation that updates a list returns a new list, and the old list is
//! unchanged. The elements of a list are tensors of one element type and rank. Extents that the
//! list type leaves unknown may differ between elements. The number of elements is known only at
//! run time. Each element is written once; an element that has not been written is zeros.
//!
//! The cotangent of a list is a list of the same type and length, so gradients of these operations
//! are such operations again. [`ListOp::Accumulate`], [`ListOp::Add`] and [`ListOp::ZerosLike`]
//! exist for gradients.

use super::infer::{Broken, broken};
use crate::{DType, Dim, Shape, TensorType, Type};

/// An operation on lists. An index is an `i32[]`, counted from 0. Several indices are an `i32[k]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListOp {
    /// `(n: i32[]) -> list`: `n` elements of a type, all unwritten.
    New(TensorType),
    /// `(list, tensor) -> list`: appends an element.
    Push,
    /// `(list) -> (list, tensor)`: removes the last element. Fails on an empty list.
    Pop,
    /// `(list, index) -> tensor`
    Read,
    /// `(list, index, tensor) -> list`: fails if the element has been written already.
    Write,
    /// `(list, indices) -> tensor`: stacks elements of equal shape along a new first axis.
    Gather,
    /// `(list, indices, tensor) -> list`: writes the slices of the tensor along its first axis.
    Scatter,
    /// `(list) -> tensor`: stacks all elements, of equal shape, along a new first axis of this
    /// extent.
    Stack(Dim),
    /// `(tensor) -> list`: splits the tensor into its slices along the first axis.
    Unstack,
    /// `(list) -> tensor`: concatenates all elements along their first axis, to this extent in
    /// total.
    Concat(Dim),
    /// `(tensor, extents: i32[k]) -> list`: splits along the first axis into parts of these
    /// extents.
    ///
    /// The extent of the parts is given if all are equal and it is known.
    Split(Dim),
    /// `(list) -> i32[]`: the number of elements.
    Len,
    /// `(list) -> i32[?]`: the first extent of each element.
    Extents,
    /// `(list) -> list`: a list with a zero for each element.
    ZerosLike,
    /// `(list, list) -> list`: elementwise sum of lists of equal length.
    Add,
    /// `(list, index or indices, tensor) -> list`: adds to elements, once for each occurrence of an
    /// index. The gradient of `read` and `gather`.
    Accumulate,
    /// `(list) -> bool[?]`: which elements have been written.
    Written,
    /// `(tensor, written: bool[n]) -> list`: the slices along the first axis, unwritten where
    /// `written` is false. Restores a list from its [`Stack`](ListOp::Stack) and
    /// [`Written`](ListOp::Written).
    Restore,
}

/// The use that an operation makes of its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListForm {
    /// Creates a list.
    Make,
    /// Reads a list.
    Query,
    /// Updates a list.
    Update,
}

impl ListOp {
    /// Returns one operation of each variant, with placeholder types and extents.
    pub(crate) fn all() -> [ListOp; 18] {
        use ListOp::*;
        [
            New(TensorType::new(DType::F32, ())),
            Push,
            Pop,
            Read,
            Write,
            Gather,
            Scatter,
            Stack(Dim::Unknown),
            Unstack,
            Concat(Dim::Unknown),
            Split(Dim::Unknown),
            Len,
            Extents,
            ZerosLike,
            Add,
            Accumulate,
            Written,
            Restore,
        ]
    }

    /// Returns the name in the text form.
    pub fn name(&self) -> &'static str {
        match self {
            ListOp::New(_) => "list_new",
            ListOp::Push => "list_push",
            ListOp::Pop => "list_pop",
            ListOp::Read => "list_read",
            ListOp::Write => "list_write",
            ListOp::Gather => "list_gather",
            ListOp::Scatter => "list_scatter",
            ListOp::Stack(_) => "list_stack",
            ListOp::Unstack => "list_unstack",
            ListOp::Concat(_) => "list_concat",
            ListOp::Split(_) => "list_split",
            ListOp::Len => "list_len",
            ListOp::Extents => "list_extents",
            ListOp::ZerosLike => "list_zeros_like",
            ListOp::Add => "list_add",
            ListOp::Accumulate => "list_accumulate",
            ListOp::Written => "list_written",
            ListOp::Restore => "list_restore",
        }
    }

    /// Returns how the operation uses its list.
    pub fn form(&self) -> ListForm {
        match self {
            ListOp::New(_) | ListOp::Unstack | ListOp::Split(_) | ListOp::ZerosLike | ListOp::Restore => ListForm::Make,
            ListOp::Read
            | ListOp::Gather
            | ListOp::Stack(_)
            | ListOp::Concat(_)
            | ListOp::Len
            | ListOp::Extents
            | ListOp::Written => ListForm::Query,
            ListOp::Push | ListOp::Pop | ListOp::Write | ListOp::Scatter | ListOp::Add | ListOp::Accumulate => {
                ListForm::Update
            }
        }
    }

    /// Returns whether the operation can fail with operands of valid types.
    pub(crate) fn is_fallible(&self) -> bool {
        !matches!(self, ListOp::Unstack | ListOp::Len | ListOp::ZerosLike | ListOp::Written)
    }

    /// Returns the number of operands.
    pub(crate) fn arity(&self) -> usize {
        match self {
            ListOp::New(_)
            | ListOp::Pop
            | ListOp::Stack(_)
            | ListOp::Unstack
            | ListOp::Concat(_)
            | ListOp::Len
            | ListOp::Extents
            | ListOp::ZerosLike
            | ListOp::Written => 1,
            ListOp::Push | ListOp::Read | ListOp::Gather | ListOp::Split(_) | ListOp::Add | ListOp::Restore => 2,
            ListOp::Write | ListOp::Scatter | ListOp::Accumulate => 3,
        }
    }

    /// Returns the operation with `f` applied to its shape and extents.
    pub(crate) fn map_shapes(&self, f: impl Fn(&Shape) -> Shape) -> ListOp {
        let dim = |d: &Dim| f(&[d.clone()].into()).dims()[0].clone();
        match self {
            ListOp::New(e) => ListOp::New(TensorType { dtype: e.dtype, shape: f(&e.shape) }),
            ListOp::Stack(d) => ListOp::Stack(dim(d)),
            ListOp::Concat(d) => ListOp::Concat(dim(d)),
            ListOp::Split(d) => ListOp::Split(dim(d)),
            other => other.clone(),
        }
    }

    /// Returns the operation of the given name in the text form. `types` are the written result
    /// types.
    pub(crate) fn parsed(name: &str, types: Option<&[Type]>) -> Option<ListOp> {
        let op = ListOp::all().into_iter().find(|op| op.name() == name)?;
        let first = |ty: &TensorType| ty.shape.dims().first().cloned().unwrap_or(Dim::Unknown);
        Some(match (op, types) {
            (ListOp::New(_), Some([Type::List(e)])) => ListOp::New(e.clone()),
            (ListOp::Stack(_), Some([Type::Tensor(t)])) => ListOp::Stack(first(t)),
            (ListOp::Concat(_), Some([Type::Tensor(t)])) => ListOp::Concat(first(t)),
            (ListOp::Split(_), Some([Type::List(e)])) => ListOp::Split(first(e)),
            (op, _) => op,
        })
    }

    /// Infers the types of the results.
    pub(crate) fn result_types(&self, operands: &[&Type]) -> Result<Vec<Type>, Broken> {
        let wrong = |message: String| broken(12, message);
        let list = |i: usize| match operands[i] {
            Type::List(element) => Ok(element),
            other => Err(wrong(format!("operand {} is {other}, not a list", i + 1))),
        };
        let tensor = |i: usize| {
            operands[i].as_tensor().ok_or_else(|| wrong(format!("operand {} is {}, not a tensor", i + 1, operands[i])))
        };
        // The rank of an index operand: 0 for one index, 1 for several, 2 for either.
        let index = |i: usize, most: usize| {
            let ty = tensor(i)?;
            let ok = if most == 2 { ty.rank() <= 1 } else { ty.rank() == most };
            if ty.dtype == DType::I32 && ok {
                return Ok(&ty.shape);
            }
            let takes = ["an i32[]", "an i32[?]", "an i32[] or i32[?]"][most];
            Err(wrong(format!("operand {} is {ty}, not {takes}", i + 1)))
        };
        let chosen = |element: &TensorType, of: &Shape| {
            let dims = of.dims().iter().chain(element.shape.dims());
            TensorType { dtype: element.dtype, shape: dims.cloned().collect() }
        };
        let with_first = |ty: &TensorType, first: &Dim| TensorType {
            dtype: ty.dtype,
            shape: ty.shape.with_extent(0, first.clone()),
        };
        let has_axis = |ty: &TensorType, what: &str| match ty.rank() {
            0 => Err(wrong(format!("{what} {ty} and has no axis"))),
            _ => Ok(()),
        };
        let numbers = |ty: &TensorType| match ty.dtype.is_numeric() {
            true => Ok(()),
            false => Err(wrong(format!("{} cannot be added", ty.dtype))),
        };
        let fits = |given: &TensorType, expected: &TensorType| match given.compatible(expected) {
            true => Ok(()),
            false => Err(wrong(format!("expected {expected}, but got {given}"))),
        };
        let one = |ty: TensorType| Ok(vec![Type::Tensor(ty)]);
        match self {
            ListOp::New(element) => {
                index(0, 0)?;
                Ok(vec![Type::List(element.clone())])
            }
            ListOp::Push => {
                fits(tensor(1)?, list(0)?)?;
                Ok(vec![operands[0].clone()])
            }
            ListOp::Pop => Ok(vec![operands[0].clone(), Type::Tensor(list(0)?.clone())]),
            ListOp::Read => one(chosen(list(0)?, index(1, 0)?)),
            ListOp::Gather => one(chosen(list(0)?, index(1, 1)?)),
            ListOp::Write => {
                fits(tensor(2)?, &chosen(list(0)?, index(1, 0)?))?;
                Ok(vec![operands[0].clone()])
            }
            ListOp::Scatter => {
                fits(tensor(2)?, &chosen(list(0)?, index(1, 1)?))?;
                Ok(vec![operands[0].clone()])
            }
            ListOp::Accumulate => {
                numbers(list(0)?)?;
                fits(tensor(2)?, &chosen(list(0)?, index(1, 2)?))?;
                Ok(vec![operands[0].clone()])
            }
            ListOp::Stack(n) => one(chosen(list(0)?, &[n.clone()].into())),
            ListOp::Unstack | ListOp::Restore => {
                let ty = tensor(0)?;
                has_axis(ty, "the tensor is")?;
                if *self == ListOp::Restore {
                    let written = tensor(1)?;
                    if written.dtype != DType::Bool || written.rank() != 1 {
                        return Err(wrong(format!("operand 2 is {written}, not a bool[?]")));
                    }
                }
                let shape = Shape::from(&ty.shape.dims()[1..]);
                Ok(vec![Type::List(TensorType { dtype: ty.dtype, shape })])
            }
            ListOp::Concat(n) => {
                let element = list(0)?;
                has_axis(element, "an element is")?;
                one(with_first(element, n))
            }
            ListOp::Split(n) => {
                let ty = tensor(0)?;
                has_axis(ty, "the tensor is")?;
                index(1, 1)?;
                Ok(vec![Type::List(with_first(ty, n))])
            }
            ListOp::Len => {
                list(0)?;
                one(TensorType::new(DType::I32, ()))
            }
            ListOp::Extents => {
                has_axis(list(0)?, "an element is")?;
                one(TensorType { dtype: DType::I32, shape: [Dim::Unknown].into() })
            }
            ListOp::Written => {
                list(0)?;
                one(TensorType { dtype: DType::Bool, shape: [Dim::Unknown].into() })
            }
            ListOp::ZerosLike => {
                list(0)?;
                Ok(vec![operands[0].clone()])
            }
            ListOp::Add => {
                let (a, b) = (list(0)?, list(1)?);
                numbers(a)?;
                match a.join(b) {
                    Some(element) if a.compatible(b) => Ok(vec![Type::List(element)]),
                    _ => Err(wrong(format!("a list of {a} plus a list of {b}"))),
                }
            }
        }
    }
}
