//! Shape operations: broadcasting, reshaping, permuting, flipping and counting.

use super::infer::{axes_attr, axis_attr, reduced};
use super::layout::{broadcast_strides, offsets};
use super::number::{Number, match_numeric};
use super::*;
use crate::{DType, Dim, Element, ErrorKind, HostTensor, Numeric, Shape, Tensor, memory, scalars};

family!(
    BROADCAST_TO,
    BROADCAST_LIKE,
    SUM_LIKE,
    RESHAPE,
    RESHAPE_LIKE,
    PERMUTE,
    FLIP,
    WITH_DYNAMIC,
    EXTENTS,
    ZEROS_OF,
    IOTA
);

/// Elements along axes of extent 1 and new leading axes are repeated.
const BROADCAST: ViewForm = ViewForm::whole(|cx| {
    let missing = cx.result.rank() - cx.operands[0].rank();
    let coord = |axis: usize| {
        let repeats = cx.operands[0].dims()[axis] != cx.result.dims()[axis + missing];
        if repeats { Coord::ZERO } else { Coord::axis(axis + missing) }
    };
    Some((0..cx.operands[0].rank()).map(coord).collect())
});
const PERMUTED: ViewForm = ViewForm::whole(|cx| {
    let mut map = cx.identity();
    Axes::of(cx.attrs).axes.into_iter().enumerate().for_each(|(i, axis)| map[axis] = Coord::axis(i));
    Some(map)
});
const FLIPPED: ViewForm = ViewForm::whole(|cx| {
    let mut map = cx.identity();
    for axis in Axes::of(cx.attrs).axes {
        map[axis] = Coord { offset: cx.extent(0, axis)?.saturating_sub(1), term: Some((axis, -1)) };
    }
    Some(map)
});

/// Repeats elements along axes of extent 1 and new leading axes, to the shape of an attribute.
static BROADCAST_TO: OpDef = OpDef {
    name: "broadcast_to",
    arity: Arity::Exactly(1),
    attrs: Shaped::DECLARED,
    infer: |cx| {
        let (x, to) = (cx.tensor(0)?, &Shaped::of(cx.attrs).shape);
        if !x.shape.broadcasts_to(to) {
            let error = OpError::new(format!("{} cannot be broadcast to {to}", x.shape)).label(format!("{x} to {to}"));
            return Err(error.help("shapes are aligned at their last axis; only an extent of 1 is broadcast"));
        }
        if !to.is_definite() {
            return Err(OpError::new(format!("the target {to} has an unknown extent")).help("use `broadcast_like`"));
        }
        Ok(Type::tensor(x.dtype, to))
    },
    eval: |cx| view::eval(cx, BROADCAST),
    grad: Grad::Rule(|n| vec![Some(gather_stretched(n))]),
    exactness: Exactness::Exact,
    class: OpClass::View(BROADCAST),
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// Broadcasts the first operand to the common shape of both. The elements of the second are not
/// used.
static BROADCAST_LIKE: OpDef = OpDef {
    name: "broadcast_like",
    arity: Arity::Exactly(2),
    attrs: &[],
    infer: |cx| {
        let (x, like) = (cx.tensor(0)?, cx.tensor(1)?);
        match x.shape.broadcast(&like.shape) {
            Some(shape) => Ok(Type::tensor(x.dtype, shape)),
            None => Err(super::infer::shapes_differ(x, like)),
        }
    },
    eval: |cx| view::eval(cx, BROADCAST),
    grad: Grad::Rule(|n| vec![Some(gather_stretched(n)), None]),
    exactness: Exactness::Exact,
    class: OpClass::View(BROADCAST),
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// Implements the gradient rule of broadcasting: sums over the copies of every element.
fn gather_stretched<'g>(n: &GradNode<'g>) -> GradValue<'g> {
    let (from, to) = (&n.ty(0).shape, &n.result_ty().shape);
    let missing = to.rank() - from.rank();
    let pairs = || from.dims().iter().zip(&to.dims()[missing..]);
    // An extent that turns out to be 1 at run time may have been broadcast. Unknown extents are
    // never known to be equal.
    if pairs().any(|(a, b)| a.known().is_none() && (a != b || *a == Dim::Unknown)) {
        return n.dy().sum_like(n.like(0));
    }
    let leading: Vec<usize> = (0..missing).collect();
    let stretched: Vec<usize> = pairs().enumerate().filter(|(_, (a, b))| a != b).map(|(i, _)| i).collect();
    let dy = if leading.is_empty() { n.dy() } else { n.dy().sum_axis(leading) };
    if stretched.is_empty() { dy } else { dy.sum_keepdim(stretched) }
}

/// The adjoint of broadcasting: sums to the shape of the second operand, whose elements are not
/// used.
static SUM_LIKE: OpDef = OpDef {
    name: "sum_like",
    arity: Arity::Exactly(2),
    attrs: &[],
    infer: |cx| {
        let (x, like) = (cx.tensor(0)?, cx.tensor(1)?);
        super::infer::Class::Numeric.check(x)?;
        if !like.shape.broadcasts_to(&x.shape) {
            let label = format!("{x} to the shape of {like}");
            let error = OpError::new(format!("{} cannot be broadcast to {}", like.shape, x.shape)).label(label);
            return Err(error.help("shapes are aligned at their last axis; only an extent of 1 is broadcast"));
        }
        Ok(Type::tensor(x.dtype, &like.shape))
    },
    eval: |cx| {
        let x = cx.operands[0];
        if x.shape() == cx.shape() {
            return Ok(x.clone());
        }
        let to = broadcast_strides(&cx.shape(), x.shape());
        Ok(match_numeric!(x.buffer(), d => {
            cx.result(super::reduce::fold(x.shape(), to, vec![Number::ZERO; cx.ty.shape.size().unwrap_or(0)], d, scalars::Arithmetic::add))
        }))
    },
    grad: Grad::Rule(|n| {
        let dx = if n.ty(0).shape.is_definite() {
            n.dy().broadcast_to(&n.ty(0).shape)
        } else {
            n.dy().broadcast_like(n.like(0))
        };
        vec![Some(dx), None]
    }),
    exactness: Exactness::Sum(1.0),
    class: OpClass::Reduce(Combiner::Sum),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// The same elements in row-major order with another shape. One extent may be unknown and is
/// inferred.
static RESHAPE: OpDef = OpDef {
    name: "reshape",
    arity: Arity::Exactly(1),
    attrs: Shaped::DECLARED,
    infer: |cx| {
        let x = cx.tensor(0)?;
        let shape = reshaped(&x.shape, &Shaped::of(cx.attrs).shape).map_err(|e| e.label(x.to_string()))?;
        Ok(Type::tensor(x.dtype, shape))
    },
    eval: |cx| view::eval(cx, ViewForm::RESHAPED),
    grad: Grad::Rule(|n| {
        let from = &n.ty(0).shape;
        let unknown = from.dims().iter().filter(|d| **d == Dim::Unknown).count();
        vec![Some(if unknown <= 1 { n.dy().reshape(from) } else { n.dy().reshape_like(n.like(0)) })]
    }),
    exactness: Exactness::Exact,
    class: OpClass::View(ViewForm::RESHAPED),
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// Returns the product of the known extents and the names of the other extents, sorted.
fn factors(shape: &Shape) -> (usize, Vec<&Dim>) {
    let known = shape.dims().iter().filter_map(Dim::known).fold(1, usize::saturating_mul);
    let mut others: Vec<&Dim> = shape.dims().iter().filter(|d| d.known().is_none()).collect();
    others.sort();
    (known, others)
}

/// Returns the shape `to` with its unknown extent inferred from the size of `from`.
fn reshaped(from: &Shape, to: &Shape) -> Result<Shape, OpError> {
    let n_unknown = to.dims().iter().filter(|d| **d == Dim::Unknown).count();
    if n_unknown > 1 {
        let error = OpError::new(format!("{n_unknown} unknown extents in the new shape {to}"));
        return Err(error.help("at most one extent can be inferred from the others"));
    }
    let differ = || {
        let error = OpError::new(format!("cannot reshape {from} to {to}: the element counts differ"));
        error.help("the products of the extents must be equal; an extent of -1 is inferred from the others")
    };
    let ((known, others), (to_known, to_others)) = (factors(from), factors(to));
    if n_unknown == 0 {
        // Sizes that may be equal are checked at run time.
        return if others == to_others && known != to_known { Err(differ()) } else { Ok(to.clone()) };
    }
    let mut left = others.clone();
    for dim in to_others.iter().filter(|d| ***d != Dim::Unknown) {
        match left.iter().position(|d| d == dim) {
            Some(i) => drop(left.remove(i)),
            None => return Ok(to.clone()),
        }
    }
    let rest = match left[..] {
        [] if to_known == 0 || known % to_known != 0 => return Err(differ()),
        [] => Dim::Known(known / to_known),
        [dim] if known == to_known => dim.clone(),
        _ => Dim::Unknown,
    };
    let resolve = |d: &Dim| {
        if *d == Dim::Unknown { rest.clone() } else { d.clone() }
    };
    Ok(to.dims().iter().map(resolve).collect())
}

/// The elements of the first operand with the shape of the second.
static RESHAPE_LIKE: OpDef = OpDef {
    name: "reshape_like",
    arity: Arity::Exactly(2),
    attrs: &[],
    infer: |cx| {
        let (x, like) = (cx.tensor(0)?, cx.tensor(1)?);
        if let (Some(a), Some(b)) = (x.shape.size(), like.shape.size())
            && a != b
        {
            let error =
                OpError::new(format!("cannot reshape {} to {}: the element counts differ", x.shape, like.shape));
            let help = "the products of the extents must be equal";
            return Err(error.label(format!("{x} to the shape of {like}")).help(help));
        }
        Ok(Type::tensor(x.dtype, &like.shape))
    },
    eval: |cx| view::eval(cx, ViewForm::RESHAPED),
    grad: Grad::Rule(|n| vec![Some(n.dy().reshape_like(n.like(0))), None]),
    exactness: Exactness::Exact,
    class: OpClass::View(ViewForm::RESHAPED),
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// Axis `i` of the result is axis `axes[i]` of the operand.
static PERMUTE: OpDef = OpDef {
    name: "permute",
    arity: Arity::Exactly(1),
    attrs: Axes::DECLARED,
    infer: |cx| {
        let x = cx.tensor(0)?;
        let axes = Axes::of(cx.attrs).axes;
        let mut sorted = axes.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..x.rank()) {
            let error = OpError::new(format!("{axes:?} is not a permutation of the {} axes", x.rank()));
            return Err(error.label(x.to_string()).help("list each axis exactly once"));
        }
        Ok(Type::Tensor(TensorType {
            dtype: x.dtype,
            shape: axes.iter().map(|&a| x.shape.dims()[a].clone()).collect(),
        }))
    },
    eval: |cx| view::eval(cx, PERMUTED),
    grad: Grad::Rule(|n| {
        let axes = Axes::of(n.attrs()).axes;
        let mut inverse = vec![0; axes.len()];
        for (i, &a) in axes.iter().enumerate() {
            inverse[a] = i;
        }
        vec![Some(n.dy().permute(inverse))]
    }),
    exactness: Exactness::Exact,
    class: OpClass::View(PERMUTED),
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// Reverses the order of elements along axes.
static FLIP: OpDef = OpDef {
    name: "flip",
    arity: Arity::Exactly(1),
    attrs: Axes::DECLARED,
    infer: |cx| {
        let x = cx.tensor(0)?;
        axes_attr(cx, x)?;
        Ok(x.clone().into())
    },
    eval: |cx| view::eval(cx, FLIPPED),
    grad: Grad::Rule(|n| vec![Some(n.dy().flip(Axes::of(n.attrs()).axes))]),
    exactness: Exactness::Exact,
    class: OpClass::View(FLIPPED),
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// The same tensor, with the extents along axes unknown in its type, so that a loop may change
/// them.
static WITH_DYNAMIC: OpDef = OpDef {
    name: "with_dynamic",
    arity: Arity::Exactly(1),
    attrs: Axes::DECLARED,
    infer: |cx| {
        let x = cx.tensor(0)?;
        axes_attr(cx, x)?;
        let axes = Axes::of(cx.attrs).axes;
        let dims = x.shape.dims().iter().enumerate();
        let shape: Shape = dims.map(|(i, d)| if axes.contains(&i) { Dim::Unknown } else { d.clone() }).collect();
        Ok(Type::tensor(x.dtype, shape))
    },
    // The type of the result has no concrete extents.
    eval: |cx| Ok(cx.operands[0].clone()),
    grad: Grad::Rule(|n| {
        let from = &n.ty(0).shape;
        vec![Some(if from.is_definite() { n.dy().reshape(from) } else { n.dy().reshape_like(n.like(0)) })]
    }),
    exactness: Exactness::Exact,
    class: OpClass::View(ViewForm::RESHAPED),
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// The extents of a tensor as a vector. Gradients save it instead of the tensor if they need no
/// elements.
static EXTENTS: OpDef = OpDef {
    name: "extents",
    arity: Arity::Exactly(1),
    attrs: &[],
    infer: |cx| Ok(Type::tensor(DType::I64, [cx.tensor(0)?.rank()])),
    eval: |cx| Ok(cx.result(cx.operands[0].shape().iter().map(|&n| n as i64).collect())),
    grad: Grad::Zero("extents do not depend on the elements"),
    exactness: Exactness::Exact,
    class: OpClass::Shape,
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// Zeros of extents given as a vector. The shape attribute contains the known extents.
static ZEROS_OF: OpDef = OpDef {
    name: "zeros_of",
    arity: Arity::Exactly(1),
    attrs: Typed::DECLARED,
    infer: |cx| {
        let (extents, Typed { shape, dtype }) = (cx.tensor(0)?, Typed::of(cx.attrs));
        if !extents.compatible(&TensorType::new(DType::I64, [shape.rank()])) {
            let error = OpError::new(format!("the extents of {shape} must be i64[{}], not {extents}", shape.rank()));
            return Err(error.help("pass one extent for each axis, as `extents` returns them"));
        }
        Ok(Type::tensor(dtype, shape))
    },
    eval: |cx| {
        let extents = cx.operands[0].data::<i64>();
        let shape: Option<Vec<usize>> = extents.iter().map(|&n| usize::try_from(n).ok()).collect();
        match shape.filter(|s| cx.ty.shape.compatible(&Shape::from(s.as_slice()))) {
            // The type of the result, whose extents may be unknown, does not say how large it is.
            Some(shape) => HostTensor::try_zeros(cx.ty.dtype, shape).map_err(|missing| OpError {
                kind: ErrorKind::ResourceExhausted,
                ..OpError::new(format!("out of memory: the extents {extents:?} need {} bytes", missing.bytes))
                    .help(memory::SMALLER)
            }),
            None => Err(OpError::new(format!("{extents:?} are not valid extents of {}", cx.ty))
                .help("no extent may be negative or differ from a known one")),
        }
    },
    grad: Grad::Zero("zeros do not depend on their extents"),
    exactness: Exactness::Exact,
    class: OpClass::Shape,
    halves: Halves::Direct,
    effects: Effects::Fallible,
    laws: Laws::NONE,
};

/// Counts from 0 along one axis.
static IOTA: OpDef = OpDef {
    name: "iota",
    arity: Arity::Exactly(0),
    attrs: Iota::DECLARED,
    infer: |cx| {
        let Iota { shape, dtype, .. } = Iota::of(cx.attrs);
        super::infer::check_definite("positions in", &shape)?;
        let ty = TensorType::new(dtype, shape);
        super::infer::Class::Numeric.check(&ty)?;
        axis_attr(cx, &ty)?;
        Ok(ty.into())
    },
    eval: |cx| {
        let (shape, Iota { axis, dtype, .. }) = (cx.shape(), Iota::of(cx.attrs));
        let mut only = vec![0; shape.len()];
        only[axis] = 1;
        let numbers = HostTensor::new(shape.clone(), offsets(&shape, only).map(|i| i as i64).collect());
        Ok(super::cast::converted(&numbers, dtype))
    },
    grad: Grad::Zero("it has no operands"),
    exactness: Exactness::Exact,
    class: OpClass::Shape,
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

impl<C: ValueCx> AnyValue<C> {
    /// See [`Tensor::broadcast_to`].
    #[track_caller]
    pub fn broadcast_to(self, shape: impl Into<Shape>) -> AnyValue<C> {
        let shape = shape.into();
        if self.shape() == shape && shape.is_definite() {
            return self;
        }
        emit(prim::BROADCAST_TO, &[self], Shaped { shape }.into())
    }

    /// Broadcasts to the common shape of this tensor and another tensor, whose elements are not
    /// used.
    #[track_caller]
    pub fn broadcast_like(self, like: AnyValue<C>) -> AnyValue<C> {
        let (own, other) = (self.shape(), like.shape());
        if own == other && own.is_definite() {
            return self;
        }
        match own.broadcast(&other) {
            Some(shape) if shape.is_definite() => self.broadcast_to(shape),
            _ => emit(prim::BROADCAST_LIKE, &[self, like], Attrs::none()),
        }
    }

    /// Sums over the axes along which a tensor of the shape of `like` broadcasts to this tensor.
    #[track_caller]
    pub fn sum_like(self, like: AnyValue<C>) -> AnyValue<C> {
        emit(prim::SUM_LIKE, &[self, like], Attrs::none())
    }

    /// See [`Tensor::reshape`]. An unknown extent of the shape is inferred.
    #[track_caller]
    pub fn reshape(self, shape: impl IntoExtents) -> AnyValue<C> {
        let shape = shape.to_shape();
        if self.shape() == shape && shape.is_definite() {
            return self;
        }
        // The inferred extent is recorded if it is known already.
        let shape = reshaped(&self.shape(), &shape).unwrap_or(shape);
        emit(prim::RESHAPE, &[self], Shaped { shape }.into())
    }

    /// See [`Tensor::with_dynamic`].
    #[track_caller]
    pub fn with_dynamic(self, axes: impl IntoAxes) -> AnyValue<C> {
        let axes = self.axes("with_dynamic", axes);
        emit(prim::WITH_DYNAMIC, &[self], Axes { axes }.into())
    }

    /// Returns zeros of a type, with this vector as extents.
    #[track_caller]
    pub(crate) fn zeros_of(self, ty: &TensorType) -> AnyValue<C> {
        let attrs = Typed { shape: ty.shape.clone(), dtype: ty.dtype }.into();
        emit(prim::ZEROS_OF, &[self], attrs)
    }

    /// Returns the elements with the shape of another tensor of the same size.
    #[track_caller]
    pub fn reshape_like(self, like: AnyValue<C>) -> AnyValue<C> {
        emit(prim::RESHAPE_LIKE, &[self, like], Attrs::none())
    }

    /// See [`Tensor::permute`].
    #[track_caller]
    pub fn permute(self, axes: impl IntoAxes) -> AnyValue<C> {
        let rank = self.rank();
        let counted: Result<Vec<usize>, OpError> =
            axes.to_axes().into_iter().map(|a| super::axes::axis(a, rank)).collect();
        let counted = accept::<C, _>("permute", counted.map_err(|e| e.label(self.ty().to_string())));
        emit(prim::PERMUTE, &[self], Axes { axes: counted }.into())
    }

    /// See [`Tensor::transpose`].
    #[track_caller]
    pub fn transpose(self, a: isize, b: isize) -> AnyValue<C> {
        let mut order: Vec<usize> = (0..self.rank()).collect();
        let (a, b) = (self.axis("transpose", a), self.axis("transpose", b));
        order.swap(a, b);
        if a == b { self } else { self.permute(order) }
    }

    /// See [`Tensor::flip`].
    #[track_caller]
    pub fn flip(self, axes: impl IntoAxes) -> AnyValue<C> {
        let axes = self.axes("flip", axes);
        emit(prim::FLIP, &[self], Axes { axes }.into())
    }

    /// See [`Tensor::unsqueeze`].
    #[track_caller]
    pub fn unsqueeze(self, axis: isize) -> AnyValue<C> {
        let mut dims = self.shape().dims().to_vec();
        let at = super::axes::axis(axis, dims.len() + 1);
        let at = accept::<C, _>("unsqueeze", at.map_err(|e| e.label(self.ty().to_string())));
        dims.insert(at, Dim::Known(1));
        self.reshape(Shape::from(dims))
    }

    /// See [`Tensor::squeeze`].
    #[track_caller]
    pub fn squeeze(self, axis: isize) -> AnyValue<C> {
        let shape = self.shape();
        let at = self.axis("squeeze", axis);
        if !shape.dims()[at].compatible(&Dim::Known(1)) {
            let error = OpError::new(format!("the extent of axis {at} is {}, not 1", shape.dims()[at]));
            refuse::<C>(
                "squeeze",
                error.label(self.ty().to_string()).help("select one element with `.index(i, axis)`"),
            );
        }
        self.reshape(reduced(&shape, &[at], false))
    }

    /// See [`Tensor::dim`].
    #[track_caller]
    pub fn dim(self, axis: isize) -> usize {
        let shape = self.shape();
        let at = self.axis("dim", axis);
        let extent = shape.dims()[at].known().ok_or_else(|| {
            let error = OpError::new(format!("the extent of axis {at} is not known while tracing"));
            error
                .label(self.ty().to_string())
                .help("`x.extent(axis)` is a tensor, which has a value when the graph runs")
        });
        accept::<C, _>("dim", extent)
    }

    /// See [`Tensor::extent`].
    #[track_caller]
    pub fn extent(self, axis: isize) -> AnyValue<C> {
        let at = self.axis("extent", axis);
        emit(prim::EXTENTS, &[self], Attrs::none()).slice(0, at, at + 1).reshape(Shape::scalar()).cast(DType::I32)
    }

    /// Returns an axis counted from the front. The error names `op`.
    #[track_caller]
    pub(super) fn axis(self, op: &str, axis: isize) -> usize {
        let axis = super::axes::axis(axis, self.rank());
        accept::<C, _>(op, axis.map_err(|e| e.label(self.ty().to_string())))
    }

    /// Returns axes counted from the front. The error names `op`.
    #[track_caller]
    pub(super) fn axes(self, op: &str, axes: impl IntoAxes) -> Vec<usize> {
        let axes = super::axes::axes(&axes.to_axes(), self.rank());
        accept::<C, _>(op, axes.map_err(|e| e.label(self.ty().to_string())))
    }
}

impl<T: Element> Tensor<T> {
    /// Returns the extent of an axis as a scalar tensor, also if it is known only when the graph
    /// runs: that of a stacked list, or of [`with_dynamic`](Self::with_dynamic). An extent that is
    /// known while tracing is a number of the host: [`dim`](Self::dim).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// #[graph]
    /// fn multiples(k: Tensor<i32>, limit: Tensor<i32>) -> (Tensor<i32>, Tensor<i32>) {
    ///     let (mut list, mut n) = (List::new(()), k);
    ///     while n <= limit {
    ///         list.push(n);
    ///         n += k;
    ///     }
    ///     let all = list.stack();
    ///     (all, all.extent(0))
    /// }
    /// assert_eq!(eval_with(multiples, (3, 10))?.1, 3);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// # Errors
    /// Aborts the trace if there is no such axis.
    #[track_caller]
    #[must_use]
    pub fn extent(self, axis: isize) -> Tensor<i32> {
        Tensor::from_any(self.untyped().extent(axis))
    }

    /// Repeats elements along axes of extent 1 and along new leading axes.
    ///
    /// Operators broadcast by themselves, even if an extent turns out to be 1 only at run time. The
    /// exception are two extents that are unknown while tracing, which are assumed to be equal.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor([1, 2]).broadcast_to([2, 2]))?;
    /// assert_eq!(y.as_slice(), [1, 2, 1, 2]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn broadcast_to(self, shape: impl Into<Shape>) -> Tensor<T> {
        Tensor::from_any(self.untyped().broadcast_to(shape))
    }

    /// Broadcasts, like [`broadcast_to`](Tensor::broadcast_to), to the common shape of this tensor
    /// and another tensor, whose elements are not used. Extents of both may be unknown while
    /// tracing.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let like = || tensor([[0.0f32; 3]; 2]).with_dynamic([0, 1]);
    /// let y = eval(|| tensor([1, 2, 3]).with_dynamic(0).broadcast_like(like()))?;
    /// assert_eq!(y.as_slice(), [1, 2, 3, 1, 2, 3]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn broadcast_like<U: Element>(self, like: Tensor<U>) -> Tensor<T> {
        Tensor::from_any(self.untyped().broadcast_like(like.untyped()))
    }

    /// Returns the same elements in row-major order with another shape. One extent may be -1 and is
    /// inferred.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor([1, 2, 3, 4, 5, 6]).reshape([2, -1]))?;
    /// assert_eq!(y.shape(), [2, 3]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn reshape(self, shape: impl IntoExtents) -> Tensor<T> {
        Tensor::from_any(self.untyped().reshape(shape))
    }

    /// Returns the same tensor with unknown extents along some axes of its type.
    ///
    /// A loop may then change these extents, for example with `concat`. The element type and the
    /// rank stay.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let x =
    ///     eval(|| tensor([1, 2]).with_dynamic(0).shape().to_string().len() as i32 + tensor([0]))?;
    /// // The shape is `[?]` while tracing.
    /// assert_eq!(x.as_slice(), [3]);
    /// assert_eq!(eval(|| tensor([1, 2]).with_dynamic(0))?.as_slice(), [1, 2]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn with_dynamic(self, axes: impl IntoAxes) -> Tensor<T> {
        Tensor::from_any(self.untyped().with_dynamic(axes))
    }

    /// Flattens all elements into one axis.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 2], [3, 4]]).flatten())?.as_slice(), [1, 2, 3, 4]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn flatten(self) -> Tensor<T> {
        self.reshape([-1])
    }

    /// Permutes the axes: axis `i` of the result is axis `axes[i]` of this tensor.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| zeros::<f32>([2, 3, 4]).permute([2, 0, 1]))?;
    /// assert_eq!(y.shape(), [4, 2, 3]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn permute(self, axes: impl IntoAxes) -> Tensor<T> {
        Tensor::from_any(self.untyped().permute(axes))
    }

    /// Swaps two axes.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor([[1, 2], [3, 4]]).transpose(0, 1))?;
    /// assert_eq!(y.as_slice(), [1, 3, 2, 4]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn transpose(self, a: isize, b: isize) -> Tensor<T> {
        Tensor::from_any(self.untyped().transpose(a, b))
    }

    /// Swaps the last two axes, which transposes matrices.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 2, 3]]).t())?.shape(), [3, 1]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn t(self) -> Tensor<T> {
        self.transpose(-2, -1)
    }

    /// Reverses the order of elements along axes.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1, 2, 3]).flip(0))?.as_slice(), [3, 2, 1]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn flip(self, axes: impl IntoAxes) -> Tensor<T> {
        Tensor::from_any(self.untyped().flip(axes))
    }

    /// Inserts an axis of extent 1. With -1 it becomes the last axis.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([1, 2]).unsqueeze(-1))?.shape(), [2, 1]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn unsqueeze(self, axis: isize) -> Tensor<T> {
        Tensor::from_any(self.untyped().unsqueeze(axis))
    }

    /// Removes an axis of extent 1.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([[1, 2]]).squeeze(0))?.shape(), [2]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn squeeze(self, axis: isize) -> Tensor<T> {
        Tensor::from_any(self.untyped().squeeze(axis))
    }
}

impl<T: Numeric> Tensor<T> {
    /// Counts along one axis of a shape: 0, 1, 2, ...
    ///
    /// ```
    /// # use anabranch::{Tensor, prelude::*};
    /// assert_eq!(eval(|| Tensor::<i32>::iota([2, 2], 0))?.as_slice(), [0, 0, 1, 1]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn iota(shape: impl Into<Shape>, axis: isize) -> Tensor<T> {
        let shape = shape.into();
        let axis = accept::<InTrace, _>("iota", super::axes::axis(axis, shape.rank()));
        Tensor::from_any(positions(InTrace::current(), shape, axis, T::DTYPE))
    }
}

/// Counts along an axis of a shape.
#[track_caller]
pub(super) fn positions<C: ValueCx>(context: C, shape: Shape, axis: usize, dtype: DType) -> AnyValue<C> {
    context.emit(prim::IOTA, &[], Iota { shape, axis, dtype }.into())
}

/// Returns the numbers 0 to `n - 1`.
///
/// ```
/// # use anabranch::prelude::*;
/// assert_eq!(eval(|| iota::<i64>(3))?.as_slice(), [0, 1, 2]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn iota<T: Numeric>(n: usize) -> Tensor<T> {
    Tensor::iota([n], 0)
}
