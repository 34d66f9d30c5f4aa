//! Operations on lists, the `TensorArray`s of the field.
//!
//! A list is a value: an operation that changes one gives a new list, and the old one stays as it was. Its elements are tensors of one
//! element type and rank; extents that the type of the list leaves open may differ from element to element. How many elements
//! there are is known only when it runs. Each element is written once; one that is not written yet is zeros.
//!
//! The gradient of a list is a list of the same type and length. So the gradients of these operations are such operations
//! again; [`ListOp::Accumulate`], [`ListOp::Add`] and [`ListOp::ZerosLike`] are there for them.

use super::infer::{Broken, broken};
use crate::{DType, Dim, Shape, TensorType, Type};

/// An operation on lists. An index is an `i32[]`, counted from 0; several are an `i32[k]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListOp {
    /// `(n: i32[]) -> list`: `n` elements of a type, none of them written.
    New(TensorType),
    /// `(list, tensor) -> list`: one more element.
    Push,
    /// `(list) -> (list, tensor)`: without its last element; fails on an empty list.
    Pop,
    /// `(list, index) -> tensor`
    Read,
    /// `(list, index, tensor) -> list`: fails if the element is written already.
    Write,
    /// `(list, indices) -> tensor`: elements of one shape, along a new first axis.
    Gather,
    /// `(list, indices, tensor) -> list`: writes the elements that lie along the first axis.
    Scatter,
    /// `(list) -> tensor`: all elements, of one shape, along a new first axis of this extent.
    Stack(Dim),
    /// `(tensor) -> list`: what lies along the first axis.
    Unstack,
    /// `(list) -> tensor`: all elements one behind the other along their first axis; in all it is of this extent.
    Concat(Dim),
    /// `(tensor, extents: i32[k]) -> list`: cut along the first axis into parts of these extents. If all are equal, the extent may
    /// be known.
    Split(Dim),
    /// `(list) -> i32[]`: number of elements.
    Len,
    /// `(list) -> i32[?]`: the first extent of each element.
    Extents,
    /// `(list) -> list`: as many zeros.
    ZerosLike,
    /// `(list, list) -> list`: elementwise sum of lists of one length.
    Add,
    /// `(list, index or indices, tensor) -> list`: adds to elements, as often as they are named. What `read` and `gather` give back.
    Accumulate,
    /// `(list) -> bool[?]`: which elements are written.
    Written,
    /// `(tensor, written: bool[n]) -> list`: what lies along the first axis, but for what is not written. What [`Stack`](ListOp::Stack)
    /// and [`Written`](ListOp::Written) say of a list makes it again.
    Restore,
}

/// What an operation does with its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListForm {
    /// Makes one.
    Make,
    /// Reads one.
    Query,
    /// Changes one.
    Update,
}

impl ListOp {
    /// One of each, with types and extents that say nothing.
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

    /// The name in the text form.
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

    /// What it does with its list.
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

    /// Whether it can fail when its operands are of the right types.
    pub(crate) fn is_fallible(&self) -> bool {
        !matches!(self, ListOp::Unstack | ListOp::Len | ListOp::ZerosLike | ListOp::Written)
    }

    /// Number of operands.
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

    /// The operation with what it says of types and extents seen through `f`.
    pub(crate) fn map_shapes(&self, f: impl Fn(&Shape) -> Shape) -> ListOp {
        let dim = |d: &Dim| f(&Shape(vec![d.clone()])).0.remove(0);
        match self {
            ListOp::New(e) => ListOp::New(TensorType { dtype: e.dtype, shape: f(&e.shape) }),
            ListOp::Stack(d) => ListOp::Stack(dim(d)),
            ListOp::Concat(d) => ListOp::Concat(dim(d)),
            ListOp::Split(d) => ListOp::Split(dim(d)),
            other => other.clone(),
        }
    }

    /// The operation of that name in the text form, with what is written as the type of its result.
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

    /// The types of the results.
    pub(crate) fn result_types(&self, operands: &[&Type]) -> Result<Vec<Type>, Broken> {
        let wrong = |message: String| broken(12, message);
        let list = |i: usize| match operands[i] {
            Type::List(element) => Ok(element),
            other => Err(wrong(format!("operand {} is {other}, not a list", i + 1))),
        };
        let tensor = |i: usize| {
            operands[i].as_tensor().ok_or_else(|| wrong(format!("operand {} is {}, not a tensor", i + 1, operands[i])))
        };
        // The shape of an index (0), of several (1), or of either (2).
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
            TensorType { dtype: element.dtype, shape: Shape(dims.cloned().collect()) }
        };
        let with_first = |ty: &TensorType, first: &Dim| {
            let mut shape = ty.shape.clone();
            shape.0[0] = first.clone();
            TensorType { dtype: ty.dtype, shape }
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
            false => Err(wrong(format!("given {given}, expected {expected}"))),
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
            ListOp::Stack(n) => one(chosen(list(0)?, &Shape(vec![n.clone()]))),
            ListOp::Unstack | ListOp::Restore => {
                let ty = tensor(0)?;
                has_axis(ty, "the tensor is")?;
                if *self == ListOp::Restore {
                    let written = tensor(1)?;
                    if written.dtype != DType::Bool || written.rank() != 1 {
                        return Err(wrong(format!("operand 2 is {written}, not a bool[?]")));
                    }
                }
                let shape = Shape(ty.shape.dims()[1..].to_vec());
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
                one(TensorType { dtype: DType::I32, shape: Shape(vec![Dim::Unknown]) })
            }
            ListOp::Written => {
                list(0)?;
                one(TensorType { dtype: DType::Bool, shape: Shape(vec![Dim::Unknown]) })
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
