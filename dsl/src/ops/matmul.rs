//! Matrix multiplication.
//!
//! The operation multiplies matrices in the last two axes. The leading axes of both operands are
//! equal. The method does the rest: it turns vectors into matrices, broadcasts leading axes, and
//! multiplies a batch by a single matrix as one large matmul.

use super::infer::Class;
use super::number::{Number, match_numeric};
use super::*;
use crate::{Dim, Numeric, Shape, Tensor};

family!(MATMUL);

/// Matmuls in the last two axes, `[.., m, k]` by `[.., k, n]`, with equal leading axes.
static MATMUL: OpDef = OpDef {
    name: "matmul",
    arity: Arity::Exactly(2),
    attrs: &[],
    infer: |cx| {
        let (a, b) = (cx.tensor(0)?, cx.tensor(1)?);
        if a.rank() < 2 || a.rank() != b.rank() {
            let message = format!("ranks {} and {} must be equal and at least 2", a.rank(), b.rank());
            let help = "the operands are matrices [m, k] and [k, n], or batches of them with equal leading axes";
            return Err(OpError::new(message).label(format!("{a} times {b}")).help(help));
        }
        check_matrices(a, b)?;
        let batch = a.rank() - 2;
        let (da, db) = (a.shape.dims(), b.shape.dims());
        let (ba, bb) = (Shape::from(&da[..batch]), Shape::from(&db[..batch]));
        if !ba.compatible(&bb) {
            let error = OpError::new(format!("batch dimensions differ, {ba} and {bb}"));
            return Err(error.label(format!("{a} times {b}")).help("all axes but the last two have equal extents"));
        }
        let matrix = [da[batch].clone(), db[batch + 1].clone()];
        Ok(Type::tensor(a.dtype, [ba.meet(&bb).dims(), &matrix].concat()))
    },
    eval: |cx| {
        fn product<T: Number>(a: &[T], b: &[T], [batch, m, k, n]: [usize; 4]) -> Vec<T> {
            let mut y = vec![T::ZERO; batch * m * n];
            for i in 0..batch {
                let b = &b[i * k * n..(i + 1) * k * n];
                for row in i * m..(i + 1) * m {
                    let sums = &mut y[row * n..(row + 1) * n];
                    for (j, &x) in a[row * k..(row + 1) * k].iter().enumerate() {
                        for (sum, &w) in sums.iter_mut().zip(&b[j * n..(j + 1) * n]) {
                            *sum = sum.add(x.mul(w));
                        }
                    }
                }
            }
            y
        }
        let (a, b) = (cx.operands[0], cx.operands[1]);
        let batch = a.rank() - 2;
        let extents =
            [a.shape()[..batch].iter().product(), a.shape()[batch], a.shape()[batch + 1], b.shape()[batch + 1]];
        Ok(match_numeric!(a.buffer(), d => cx.result(product(d, b.data(), extents))))
    },
    grad: Grad::Rule(|n| {
        vec![
            n.needs(0).then(|| n.dy().matmul(n.x(1).transpose(-2, -1))),
            n.needs(1).then(|| n.x(0).transpose(-2, -1).matmul(n.dy())),
        ]
    }),
    exactness: Exactness::Sum(1.0),
    class: OpClass::Contract(Contraction::Product(multiplications)),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// Returns the number of multiplications.
fn multiplications(cx: &CostCx<'_>) -> f64 {
    let depth = cx.operands[0].shape.dims().last().map_or(1.0, |dim| cx.extent(dim));
    depth * cx.elements(cx.result)
}

/// Checks that the matrices in the last two axes can be multiplied.
fn check_matrices(a: &TensorType, b: &TensorType) -> Result<(), OpError> {
    Class::Numeric.check(a)?;
    let error = |message: String| OpError::new(message).label(format!("{a} times {b}"));
    if a.dtype != b.dtype {
        let error = error(format!("element types differ, {} and {}", a.dtype, b.dtype));
        return Err(error.help("convert one of them with `.cast()`"));
    }
    let matrix = |ty: &TensorType| [-2, -1].map(|i| ty.shape.dims()[(ty.rank() as isize + i) as usize].clone());
    let ([rows, inner], [meets, columns]) = (matrix(a), matrix(b));
    if inner.compatible(&meets) {
        return Ok(());
    }
    let error = error(format!("inner dimensions differ, {inner} and {meets}"));
    Err(if inner.compatible(&columns) {
        error.help("transpose the second operand with `.t()`")
    } else if rows.compatible(&meets) {
        error.help("transpose the first operand with `.t()`")
    } else {
        error.help("the last axis of the first operand must match the second-to-last axis of the second")
    })
}

impl<C: ValueCx> AnyValue<C> {
    /// See [`Tensor::matmul`].
    #[track_caller]
    pub fn matmul(self, other: AnyValue<C>) -> AnyValue<C> {
        let (ta, tb) = (self.tensor_type(), other.tensor_type());
        if ta.rank() == 0 || tb.rank() == 0 {
            let error =
                OpError::new("an operand is a scalar, not a vector or matrix").label(format!("{ta} times {tb}"));
            refuse::<C>("matmul", error.help("multiply with `*`"));
        }
        let (row, column) = (ta.rank() == 1, tb.rank() == 1);
        let a = if row { self.unsqueeze(0) } else { self };
        let b = if column { other.unsqueeze(-1) } else { other };
        let mut y = matrices(a, b);
        if row {
            y = y.squeeze(-2);
        }
        if column { y.squeeze(-1) } else { y }
    }
}

#[track_caller]
fn matrices<C: ValueCx>(a: AnyValue<C>, b: AnyValue<C>) -> AnyValue<C> {
    let (ta, tb) = (a.tensor_type(), b.tensor_type());
    accept::<C, _>("matmul", check_matrices(&ta, &tb));
    let (sa, sb) = (&ta.shape, &tb.shape);
    if sa.rank() == 2 && sb.rank() == 2 {
        return emit(prim::MATMUL, &[a, b], Attrs::none());
    }
    let rows = &sa.dims()[..sa.rank() - 1];
    let n_unknown = rows.iter().filter(|d| **d == Dim::Unknown).count();
    if sb.rank() == 2 && n_unknown <= 1 {
        // One matrix for the whole batch: the leading axes become rows of one large matrix.
        let all_rows = rows.iter().map(Dim::known).product::<Option<usize>>().map_or(Dim::Unknown, Dim::Known);
        let flat = a.reshape(Shape::from([all_rows, sa.dims()[sa.rank() - 1].clone()]));
        let y = emit(prim::MATMUL, &[flat, b], Attrs::none());
        return y.reshape(Shape::from([rows, &sb.dims()[1..]].concat()));
    }
    let batch = |s: &Shape| Shape::from(&s.dims()[..s.rank() - 2]);
    let (ba, bb) = (batch(sa), batch(sb));
    let Some(common) = ba.broadcast(&bb) else {
        let error = OpError::new(format!("batch dimensions {ba} and {bb} cannot be broadcast together"));
        let help = "each pair of leading extents is equal, or one of them is 1";
        refuse::<C>("matmul", error.label(format!("{ta} times {tb}")).help(help));
    };
    let stretch = |x: AnyValue<C>, own: &Shape, matrix: &Shape, other: AnyValue<C>| {
        if *own == common {
            x
        } else if common.is_definite() {
            let matrix = &matrix.dims()[matrix.rank() - 2..];
            x.broadcast_to([common.dims(), matrix].concat())
        } else {
            // Only the batch axes of the other operand matter: its matrices are reduced to one
            // element.
            x.broadcast_like(other.sum_keepdim([-2, -1]))
        }
    };
    let stretched = || [stretch(a, &ba, sa, b), stretch(b, &bb, sb, a)];
    let loc = Loc::caller();
    let operands = a.context().written_as("matmul", || a.context().called_at(loc, stretched));
    emit(prim::MATMUL, &operands, Attrs::none())
}

impl<T: Numeric> Tensor<T> {
    /// Returns the matrix product: `[.., m, k]` times `[.., k, n]` is `[.., m, n]`.
    ///
    /// Leading axes are broadcast. A vector is a row on the left and a column on the right, and its
    /// axis is not in the result.
    ///
    /// The terms of each sum are in the order of `k`; devices may use a different order.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor([[1, 2], [3, 4]]).matmul(tensor([[0, 1], [1, 0]])))?;
    /// assert_eq!(y.as_slice(), [2, 1, 4, 3]);
    /// assert_eq!(eval(|| tensor([1, 2]).matmul(tensor([3, 4])))?, 11);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn matmul(self, other: Tensor<T>) -> Tensor<T> {
        Tensor::from_any(self.untyped().matmul(other.untyped()))
    }
}
