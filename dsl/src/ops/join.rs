//! Concatenation, stacking and padding.

use super::*;
use crate::{Dim, Element, HostTensor, Operand, Tensor, match_buffer};

family!(CONCAT, CONCAT_PART);

/// Concatenates tensors along an axis.
static CONCAT: OpDef = OpDef {
    name: "concat",
    arity: Arity::AtLeast(1),
    attrs: Along::DECLARED,
    infer: |cx| {
        let first = cx.tensor(0)?;
        let axis = super::infer::axis_attr(cx, first)?;
        let (mut common, mut extent) = (first.clone(), Some(0));
        for i in 0..cx.operands.len() {
            let part = cx.tensor(i)?;
            let label = || format!("{first} and {part}");
            if part.dtype != first.dtype {
                let error = OpError::new(format!("element types differ, {} and {}", first.dtype, part.dtype));
                return Err(error.label(label()).help("convert them to one type with `.cast()`"));
            }
            if part.rank() != first.rank() {
                let error = OpError::new(format!("ranks differ, {} and {}", first.rank(), part.rank()));
                return Err(error.label(label()).help("`stack` joins tensors along a new axis"));
            }
            let aligned = part.shape.with_extent(axis, Dim::Unknown);
            if !aligned.compatible(&common.shape) {
                let message = format!("shapes {} and {} differ in more than axis {axis}", first.shape, part.shape);
                return Err(OpError::new(message).label(label()).help("all other axes need equal extents"));
            }
            common.shape = common.shape.with_extent(axis, Dim::Unknown).meet(&aligned);
            extent = extent.and_then(|n| Some(n + part.shape.dims()[axis].known()?));
        }
        let extent = match (extent, cx.operands.len()) {
            (Some(n), _) => Dim::Known(n),
            (None, 1) => first.shape.dims()[axis].clone(),
            (None, _) => Dim::Unknown,
        };
        Ok(Type::tensor(first.dtype, common.shape.with_extent(axis, extent)))
    },
    eval: |cx| {
        fn joined<T: Element>(cx: &EvalCx<'_>, _: &[T]) -> HostTensor {
            let (shape, axis) = (cx.shape(), Along::of(cx.attrs).axis);
            let outer: usize = shape[..axis].iter().product();
            let mut data = Vec::with_capacity(shape.iter().product());
            for o in 0..outer {
                for part in cx.operands {
                    let block: usize = part.shape()[axis..].iter().product();
                    data.extend_from_slice(&part.data::<T>()[o * block..(o + 1) * block]);
                }
            }
            cx.result(data)
        }
        Ok(match_buffer!(cx.operands[0].buffer(), d => joined(cx, d)))
    },
    grad: Grad::Rule(|n| {
        let axis = Along::of(n.attrs()).axis;
        let extents: Option<Vec<usize>> = (0..n.n_operands()).map(|i| n.ty(i).shape.dims()[axis].known()).collect();
        let mut from = 0;
        (0..n.n_operands())
            .map(|i| {
                let Some(extents) = &extents else {
                    let parts = || (0..n.n_operands()).map(|i| n.like(i)).collect::<Vec<_>>();
                    return n.needs(i).then(|| n.dy().concat_part(&parts(), axis, i));
                };
                from += extents[i];
                n.needs(i).then(|| n.dy().slice(axis as isize, from - extents[i], from))
            })
            .collect()
    }),
    exactness: Exactness::Exact,
    class: OpClass::Move,
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// The elements along an axis after those of the parts before.
const PART: ViewForm = ViewForm::part(|cx| {
    let Part { axis, part } = Part::of(cx.attrs);
    let before = (1..=part).map(|i| cx.extent(i, axis)).sum::<Option<usize>>()?;
    let mut map = cx.identity();
    map[axis] = Coord { offset: before, ..map[axis] };
    Some(map)
});

/// The adjoint of `concat` for unknown extents.
///
/// The first operand has the extent of all others concatenated. The result is the slice of it at
/// the position of the operand with that index. The elements of the other operands are not used.
static CONCAT_PART: OpDef = OpDef {
    name: "concat_part",
    arity: Arity::AtLeast(2),
    attrs: Part::DECLARED,
    infer: |cx| {
        let whole = cx.tensor(0)?;
        let axis = super::infer::axis_attr(cx, whole)?;
        let Part { part, .. } = Part::of(cx.attrs);
        if part + 1 >= cx.operands.len() {
            let error = OpError::new(format!("part {part} is out of bounds for {} parts", cx.operands.len() - 1));
            return Err(error.help("parts count from 0"));
        }
        let mut extent = Some(0);
        for i in 1..cx.operands.len() {
            let part = cx.tensor(i)?;
            if part.rank() != whole.rank() || !part.shape.with_extent(axis, Dim::Unknown).compatible(&whole.shape) {
                return Err(super::infer::shapes_differ(whole, part));
            }
            extent = extent.and_then(|n| Some(n + part.shape.dims()[axis].known()?));
        }
        if let (Some(parts), Some(n)) = (extent, whole.shape.dims()[axis].known())
            && parts != n
        {
            let error = OpError::new(format!("the extents of the parts along axis {axis} sum to {parts}, not {n}"));
            return Err(error.help("pass all parts, which together have the extent of the first operand"));
        }
        Ok(Type::tensor(whole.dtype, &cx.tensor(part + 1)?.shape))
    },
    eval: |cx| view::eval(cx, PART),
    grad: Grad::Rule(|n| {
        let Part { axis, part } = Part::of(n.attrs());
        let piece = |i: usize| {
            let zero = || n.dy().context().constant(HostTensor::zeros(n.ty(0).dtype, vec![])).broadcast_like(n.like(i));
            if i == part + 1 { n.dy() } else { zero() }
        };
        let mut grads = vec![None; n.n_operands()];
        grads[0] =
            n.needs(0).then(|| AnyValue::concat(&(1..n.n_operands()).map(piece).collect::<Vec<_>>(), axis as isize));
        grads
    }),
    exactness: Exactness::Exact,
    class: OpClass::View(PART),
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

impl<C: ValueCx> AnyValue<C> {
    /// See [`concat()`].
    #[track_caller]
    pub fn concat(parts: &[AnyValue<C>], axis: isize) -> AnyValue<C> {
        let Some(first) = parts.first() else {
            refuse::<C>(
                "concat",
                OpError::new("expected at least one tensor").help("use `zeros` for a result without elements"),
            )
        };
        let axis = first.axis("concat", axis);
        emit(prim::CONCAT, parts, Along { axis }.into())
    }

    /// Returns the slice of this tensor at the position that the given part would have in the
    /// concatenation of `parts`.
    #[track_caller]
    pub(crate) fn concat_part(self, parts: &[AnyValue<C>], axis: usize, part: usize) -> AnyValue<C> {
        let operands: Vec<AnyValue<C>> = std::iter::once(self).chain(parts.iter().copied()).collect();
        emit(prim::CONCAT_PART, &operands, Part { axis, part }.into())
    }

    /// See [`stack`].
    #[track_caller]
    pub fn stack(parts: &[AnyValue<C>], axis: isize) -> AnyValue<C> {
        let Some(first) = parts.first() else {
            refuse::<C>(
                "stack",
                OpError::new("expected at least one tensor").help("use `zeros` for a result without elements"),
            )
        };
        let rank = first.rank() + 1;
        let axis = accept::<C, _>("stack", super::axes::axis(axis, rank));
        let unsqueeze = || parts.iter().map(|p| p.unsqueeze(axis as isize)).collect();
        let parts: Vec<AnyValue<C>> = first.context().called_at(Loc::caller(), unsqueeze);
        AnyValue::concat(&parts, axis as isize)
    }

    /// See [`Tensor::pad`].
    #[track_caller]
    pub fn pad(self, axis: isize, before: usize, after: usize, value: AnyValue<C>) -> AnyValue<C> {
        let axis = self.axis("pad", axis);
        let shape = self.shape();
        let filled = |n: usize| shape.with_extent(axis, Dim::Known(n));
        let mut parts = vec![self];
        if before > 0 {
            parts.insert(0, value.broadcast_to(filled(before)));
        }
        if after > 0 {
            parts.push(value.broadcast_to(filled(after)));
        }
        if parts.len() == 1 { self } else { AnyValue::concat(&parts, axis as isize) }
    }
}

/// Concatenates tensors along an axis. Their other extents must be equal.
///
/// ```
/// # use anabranch::prelude::*;
/// let y = eval(|| concat(&[tensor([[1], [2]]), tensor([[3, 4], [5, 6]])], 1))?;
/// assert_eq!(y.as_slice(), [1, 3, 4, 2, 5, 6]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn concat<T: Element>(parts: &[Tensor<T>], axis: isize) -> Tensor<T> {
    let parts: Vec<AnyValue> = parts.iter().map(|p| p.untyped()).collect();
    Tensor::from_any(AnyValue::concat(&parts, axis))
}

/// Stacks tensors of equal shape along a new axis.
///
/// ```
/// # use anabranch::prelude::*;
/// let y = eval(|| stack(&[tensor([1, 2]), tensor([3, 4])], -1))?;
/// assert_eq!(y.as_slice(), [1, 3, 2, 4]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn stack<T: Element>(parts: &[Tensor<T>], axis: isize) -> Tensor<T> {
    let parts: Vec<AnyValue> = parts.iter().map(|p| p.untyped()).collect();
    Tensor::from_any(AnyValue::stack(&parts, axis))
}

impl<T: Element> Tensor<T> {
    /// Pads an axis with `before` and `after` copies of `value`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1, 2]).pad(0, 1, 2, 0))?.as_slice(), [0, 1, 2, 0, 0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn pad(self, axis: isize, before: usize, after: usize, value: impl Operand<T>) -> Tensor<T> {
        Tensor::from_any(self.untyped().pad(axis, before, after, value.into_tensor().untyped()))
    }
}
