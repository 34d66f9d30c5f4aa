//! Pooling: the maximum or mean of each window over the last axes, and the operations of its
//! gradients.
//!
//! | forward | gradient |
//! |---|---|
//! | `avg_pool` | `avg_pool_grad` |
//! | `max_pool`, `max_pool_pick` | `max_pool_grad` |
//!
//! If a window has several equal maxima, the first maximum is used. A NaN is larger than every
//! number. Padding is never the maximum, and counts as zero in a mean.

use super::infer::Class;
use super::number::{Number, match_float};
use super::window::{Padding, PerAxis, WindowExtent, Windows, check_rank, extents_for_gradient, sides};
use super::*;
use crate::{Dim, Float, Tensor, scalars};

family!(MAX_POOL, MAX_POOL_PICK, MAX_POOL_GRAD, AVG_POOL, AVG_POOL_GRAD);

/// The maximum of each window over the last axes.
static MAX_POOL: OpDef = OpDef {
    name: "max_pool",
    arity: Arity::Exactly(1),
    attrs: Pool::DECLARED,
    infer: |cx| {
        let x = cx.tensor(0)?;
        let (windows, window) = check(cx, x)?;
        Ok(pooled(x, &windows, &window)?.into())
    },
    eval: |cx| {
        let x = cx.operands[0];
        Ok(
            match_float!(x.buffer(), d => cx.result(maxima(cx, d, x.shape(), &cx.shape()).map(|i| value(d, i)).collect())),
        )
    },
    grad: Grad::Rule(|n| vec![Some(n.x(0).max_pool_grad(n.dy(), n.attrs()))]),
    exactness: Exactness::Exact,
    class: OpClass::Window(Combiner::Max),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// The element of the second operand at the position of the maximum of the first, for each window.
static MAX_POOL_PICK: OpDef = OpDef {
    name: "max_pool_pick",
    arity: Arity::Exactly(2),
    attrs: Pool::DECLARED,
    infer: |cx| {
        let x = super::infer::common(cx, Class::Float)?;
        let (windows, window) = check(cx, &x)?;
        Ok(pooled(&x, &windows, &window)?.into())
    },
    eval: |cx| {
        let (x, g) = (cx.operands[0], cx.operands[1]);
        fn elements_or_zero<T: Number>(g: &[T], places: impl Iterator<Item = Option<usize>>) -> Vec<T> {
            places.map(|i| i.map_or(T::ZERO, |i| g[i])).collect()
        }
        Ok(match_float!(x.buffer(), d => {
            let places = maxima(cx, d, x.shape(), &cx.shape());
            cx.result(elements_or_zero(same(d, g), places))
        }))
    },
    grad: Grad::Rule(|n| vec![None, n.needs(1).then(|| n.x(0).max_pool_grad(n.dy(), n.attrs()))]),
    exactness: Exactness::Exact,
    class: OpClass::Opaque(Effort::SIMPLE),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// Zeros of the shape of the first operand, with the second added at the position of the maximum of
/// each window.
static MAX_POOL_GRAD: OpDef = OpDef {
    name: "max_pool_grad",
    arity: Arity::Exactly(2),
    attrs: Pool::DECLARED,
    infer: |cx| {
        let (x, dy) = (cx.tensor(0)?, cx.tensor(1)?);
        let (windows, window) = check(cx, x)?;
        check_pooled(&pooled(x, &windows, &window)?, dy)?;
        Ok(x.clone().into())
    },
    eval: |cx| {
        let (x, dy) = (cx.operands[0], cx.operands[1]);
        fn add<T: Number>(dx: &mut [T], dy: &[T], places: impl Iterator<Item = Option<usize>>) {
            for (i, &dy) in places.zip(dy) {
                if let Some(i) = i {
                    dx[i] = dx[i].add(dy);
                }
            }
        }
        Ok(match_float!(x.buffer(), d => {
            let mut dx = zeros_like(d);
            add(&mut dx, dy.data(), maxima(cx, d, x.shape(), dy.shape()));
            cx.result(dx)
        }))
    },
    grad: Grad::Rule(|n| vec![None, n.needs(1).then(|| n.x(0).max_pool_pick(n.dy(), n.attrs()))]),
    exactness: Exactness::Sum(1.0),
    class: OpClass::Opaque(Effort::SIMPLE),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// The mean of each window over the last axes.
static AVG_POOL: OpDef = OpDef {
    name: "avg_pool",
    arity: Arity::Exactly(1),
    attrs: MeanPool::DECLARED,
    infer: |cx| {
        let x = cx.tensor(0)?;
        let (windows, window) = check(cx, x)?;
        Ok(pooled(x, &windows, &window)?.into())
    },
    eval: |cx| {
        let (x, y) = (cx.operands[0], cx.shape());
        Ok(match_float!(x.buffer(), d => {
            let mut sums = vec![Number::ZERO; y.iter().product()];
            let mut counts = vec![Number::ZERO; sums.len()];
            for_each(cx, &y, x.shape(), &mut |to, from| {
                sums[to] = scalars::Arithmetic::add(sums[to], d[from]);
                counts[to] = scalars::Arithmetic::add(counts[to], Number::ONE);
            });
            sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum = mean(cx, *sum, n));
            cx.result(sums)
        }))
    },
    grad: Grad::Rule(|n| {
        let first = n.ty(0).rank() - Pool::of(n.attrs()).window.len();
        let extents = extents_for_gradient("avg_pool", n.ty(0), first);
        vec![Some(emit(prim::AVG_POOL_GRAD, &[n.dy()], MeanPool::of(n.attrs()).grad(extents).into()))]
    }),
    exactness: Exactness::Sum(1.0),
    class: OpClass::Window(Combiner::Sum),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// The transpose of [`AVG_POOL`], from `y` to `x`. `extents` are those of the last axes of `x`.
static AVG_POOL_GRAD: OpDef = OpDef {
    name: "avg_pool_grad",
    arity: Arity::Exactly(1),
    attrs: MeanPoolGrad::DECLARED,
    infer: |cx| {
        let dy = cx.tensor(0)?;
        let (windows, window) = check(cx, dy)?;
        let MeanPoolGrad { extents, .. } = MeanPoolGrad::of(cx.attrs);
        if extents.rank() != windows.rank() {
            let error = OpError::new(format!("extents {extents} do not match windows of rank {}", windows.rank()));
            return Err(error.help("give one extent for each axis of the windows"));
        }
        let before = &dy.shape.dims()[..dy.rank() - windows.rank()];
        let shape = before.iter().chain(extents.dims()).cloned().collect();
        let x = TensorType { dtype: dy.dtype, shape };
        check_pooled(&pooled(&x, &windows, &window)?, dy)?;
        Ok(x.into())
    },
    eval: |cx| {
        let (dy, x) = (cx.operands[0], cx.shape());
        Ok(match_float!(dy.buffer(), d => {
            let mut counts = zeros_like(d);
            for_each(cx, dy.shape(), &x, &mut |of, _| counts[of] = scalars::Arithmetic::add(counts[of], Number::ONE));
            let shares: Vec<_> = d.iter().zip(counts).map(|(&dy, n)| mean(cx, dy, n)).collect();
            let mut dx = vec![Number::ZERO; x.iter().product()];
            for_each(cx, dy.shape(), &x, &mut |from, to| dx[to] = scalars::Arithmetic::add(dx[to], shares[from]));
            cx.result(dx)
        }))
    },
    grad: Grad::Rule(|n| vec![Some(emit(prim::AVG_POOL, &[n.dy()], MeanPool::of(n.attrs()).into()))]),
    exactness: Exactness::Sum(1.0),
    class: OpClass::Opaque(Effort::SIMPLE),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// Returns the windows of the attributes, if these are valid and each window contains an element.
fn check(cx: &InferCx<'_>, x: &TensorType) -> Result<(Windows, Vec<Dim>), OpError> {
    Class::Float.check(x)?;
    let Pool { window, strides, padding } = Pool::of(cx.attrs);
    let dilation = vec![1; strides.len()];
    let windows = Windows::checked(strides, &padding, dilation)?;
    if window.len() != windows.rank() {
        let (window, strides) = (window.len(), windows.rank());
        let error = OpError::new(format!("the window has rank {window}, but the strides have rank {strides}"));
        return Err(error.help("give a stride for each axis of the window"));
    }
    check_rank(x, &windows, "")?;
    for (&extent, &(low, high)) in window.iter().zip(&windows.padding) {
        if extent < 1 {
            let error = OpError::new(format!("window {window:?} has an extent less than 1"));
            return Err(error.label(x.to_string()).help("an extent of 1 leaves an axis unchanged"));
        }
        if low.max(high) >= extent {
            let error = OpError::new(format!("padding {} is too large for a window of extent {extent}", low.max(high)));
            return Err(error.label(x.to_string()).help(
                "padding must be less than the extent of the window, because a window of only padding has no maximum \
                 or mean",
            ));
        }
    }
    Ok((windows, window.iter().map(|&n| Dim::Known(n)).collect()))
}

fn pooled(x: &TensorType, windows: &Windows, window: &[Dim]) -> Result<TensorType, OpError> {
    let (before, last) = x.shape.dims().split_at(x.rank() - windows.rank());
    let counts = windows.counts(last, window, x)?;
    Ok(TensorType { dtype: x.dtype, shape: before.iter().cloned().chain(counts).collect() })
}

fn check_pooled(pooled: &TensorType, given: &TensorType) -> Result<(), OpError> {
    if pooled.compatible(given) {
        return Ok(());
    }
    let error = OpError::new(format!("the result of pooling is {pooled}, not {given}")).label(given.to_string());
    Err(error.help("extents, window, strides and padding are those of the pooling whose gradient this is"))
}

/// Calls `f(position, element)` with the offsets in the pooled and the other tensor, for each
/// element of each window.
fn for_each(cx: &EvalCx<'_>, pooled: &[usize], x: &[usize], f: &mut impl FnMut(usize, usize)) {
    let windows = Windows::of_pool(cx.attrs);
    let first = x.len() - windows.rank();
    let before: usize = x[..first].iter().product();
    let [x_plane, y_plane] = [x, pooled].map(|s| s[first..].iter().product::<usize>());
    let window = Pool::of(cx.attrs).window;
    for i in 0..before {
        windows.for_each(&pooled[first..], &window, &x[first..], &mut |to, _, from| {
            f(i * y_plane + to, i * x_plane + from);
        });
    }
}

/// Returns the offsets of the maxima, in the order of the windows.
fn maxima<T: Number>(cx: &EvalCx<'_>, x: &[T], shape: &[usize], pooled: &[usize]) -> std::vec::IntoIter<Option<usize>> {
    let mut best: Vec<Option<usize>> = vec![None; pooled.iter().product()];
    for_each(cx, pooled, shape, &mut |to, from| {
        let better = |b: usize| x[from] > x[b] || x[from].is_nan() && !x[b].is_nan();
        if best[to].is_none_or(better) {
            best[to] = Some(from);
        }
    });
    best.into_iter()
}

fn zeros_like<T: Number>(x: &[T]) -> Vec<T> {
    vec![T::ZERO; x.len()]
}

/// Returns the elements of a tensor, with the type of other elements.
fn same<'a, T: Number>(_: &[T], tensor: &'a HostTensor) -> &'a [T] {
    tensor.data()
}

fn value<T: Number>(x: &[T], i: Option<usize>) -> T {
    i.map_or(T::LOWEST, |i| x[i])
}

/// Returns `sum` divided by the size of a window, or by the number `n` of elements in it.
fn mean<T: Number>(cx: &EvalCx<'_>, sum: T, n: T) -> T {
    let MeanPool { window, count_padding, .. } = MeanPool::of(cx.attrs);
    let size = window.iter().product();
    let size = (0..size).fold(T::ZERO, |n, _| n.add(T::ONE));
    sum.div(if count_padding { size } else { n })
}

/// Options of pooling over `D` axes. By default windows are adjacent, without padding.
///
/// ```
/// # use anabranch::PoolOptions;
/// let options = PoolOptions::new(3).stride(2);
/// assert_eq!(options, PoolOptions::new([3, 3]).stride([2, 2]).padding(0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions<const D: usize> {
    window: [usize; D],
    stride: [usize; D],
    padding: Padding<D>,
    count_padding: bool,
}

impl<const D: usize> PoolOptions<D> {
    /// Creates options for adjacent windows of this extent: `3` is a window over the last two axes,
    /// `[3]` and `[3, 3, 3]` are windows over one and three.
    pub fn new(window: impl WindowExtent<D>) -> Self {
        let window = window.extents();
        PoolOptions { window, stride: window, padding: Padding::Sides([(0, 0); D]), count_padding: true }
    }

    /// Sets the distance between the starts of windows.
    #[must_use]
    pub fn stride(self, stride: impl PerAxis<D>) -> Self {
        PoolOptions { stride: stride.per_axis(), ..self }
    }

    /// Sets the padding on both sides of each axis, which must be less than the window.
    #[must_use]
    pub fn padding(self, padding: impl PerAxis<D>) -> Self {
        PoolOptions { padding: Padding::symmetric(padding), ..self }
    }

    /// Sets the padding at the start and the end of each axis.
    #[must_use]
    pub fn padding_sides(self, padding: [(usize, usize); D]) -> Self {
        PoolOptions { padding: Padding::Sides(padding), ..self }
    }

    /// Sets the padding so that there is a window for every `stride` elements.
    #[must_use]
    pub fn same(self) -> Self {
        PoolOptions { padding: Padding::Same, ..self }
    }

    /// Sets whether a mean counts the padding as zeros. The default is true. Otherwise it is the
    /// mean of the elements that are not padding.
    #[must_use]
    pub fn count_padding(self, count: bool) -> Self {
        PoolOptions { count_padding: count, ..self }
    }

    #[track_caller]
    fn attrs<C: ValueCx>(&self, op: &str, x: &TensorType) -> Pool {
        let window = self.window.map(Dim::Known);
        let padding = self.padding.of::<C>(op, x, &window, self.stride, [1; D]);
        Pool { window: self.window.to_vec(), strides: self.stride.to_vec(), padding: sides(padding) }
    }
}

impl<C: ValueCx> AnyValue<C> {
    /// See [`Tensor::max_pool`].
    #[track_caller]
    pub fn max_pool<const D: usize>(self, options: &PoolOptions<D>) -> AnyValue<C> {
        emit(prim::MAX_POOL, &[self], options.attrs::<C>("max_pool", &self.tensor_type()).into())
    }

    /// See [`Tensor::avg_pool`].
    #[track_caller]
    pub fn avg_pool<const D: usize>(self, options: &PoolOptions<D>) -> AnyValue<C> {
        let Pool { window, strides, padding } = options.attrs::<C>("avg_pool", &self.tensor_type());
        let attrs = MeanPool { window, strides, padding, count_padding: options.count_padding };
        emit(prim::AVG_POOL, &[self], attrs.into())
    }

    /// See [`Tensor::global_max_pool`].
    #[track_caller]
    pub fn global_max_pool(self) -> AnyValue<C> {
        self.max_axis(&self.axes_behind_channels("global_max_pool")[..])
    }

    /// See [`Tensor::global_avg_pool`].
    #[track_caller]
    pub fn global_avg_pool(self) -> AnyValue<C> {
        self.mean_axis(&self.axes_behind_channels("global_avg_pool")[..])
    }

    /// Returns the axes after the batch and the channels. Fails if there are none.
    #[track_caller]
    fn axes_behind_channels(self, op: &str) -> Vec<isize> {
        let ty = self.tensor_type();
        if ty.rank() < 3 {
            let error = OpError::new(format!(
                "rank {} is less than 3: expected the batch, the channels and at least one more axis",
                ty.rank()
            ));
            refuse::<C>(op, error.label(ty.to_string()).help("insert missing axes with `.unsqueeze(axis)`"));
        }
        (2..ty.rank() as isize).collect()
    }

    #[track_caller]
    fn max_pool_grad(self, dy: AnyValue<C>, attrs: &Attrs) -> AnyValue<C> {
        emit(prim::MAX_POOL_GRAD, &[self, dy], attrs.clone())
    }

    #[track_caller]
    fn max_pool_pick(self, g: AnyValue<C>, attrs: &Attrs) -> AnyValue<C> {
        emit(prim::MAX_POOL_PICK, &[self, g], attrs.clone())
    }
}

impl<T: Float> Tensor<T> {
    /// Returns the maximum of each window over the last `D` axes, of which there may be 1, 2 or 3.
    ///
    /// The axes before them are unchanged. Along each axis there are
    /// `(extent + padding - window) / stride + 1` positions. The cotangent goes to the first of
    /// equal maxima.
    ///
    /// # Errors
    /// Aborts the trace if a window does not fit, or may be all padding.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// # use anabranch::PoolOptions;
    /// let x = || tensor([[1.0f32, 2.0, 5.0, 6.0], [3.0, 4.0, 7.0, 0.0]]);
    /// assert_eq!(eval(|| x().max_pool(PoolOptions::new(2)))?.as_slice(), [4.0, 7.0]);
    /// assert_eq!(
    ///     eval(|| x().max_pool(PoolOptions::new([3]).stride(1)))?.as_slice(),
    ///     [5.0, 6.0, 7.0, 7.0]
    /// );
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn max_pool<const D: usize>(self, options: PoolOptions<D>) -> Tensor<T> {
        Tensor::from_any(self.untyped().max_pool(&options))
    }

    /// Returns the mean of each window over the last `D` axes; see [`max_pool`](Tensor::max_pool).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// # use anabranch::PoolOptions;
    /// let x = || tensor([[1.0f32, 3.0, 8.0]]);
    /// let options = PoolOptions::new([2]).padding(1);
    /// assert_eq!(eval(|| x().avg_pool(options))?.as_slice(), [0.5, 5.5]);
    /// assert_eq!(eval(|| x().avg_pool(options.count_padding(false)))?.as_slice(), [1.0, 5.5]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn avg_pool<const D: usize>(self, options: PoolOptions<D>) -> Tensor<T> {
        Tensor::from_any(self.untyped().avg_pool(&options))
    }

    /// Returns the maximum over all axes after the batch and the channels: `[batch, channels, ..]`
    /// to `[batch, channels]`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(
    ///     eval(|| tensor([[[1.0f32, 2.0, 5.0, 4.0]]]).global_max_pool())?.as_slice(),
    ///     [5.0]
    /// );
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn global_max_pool(self) -> Tensor<T> {
        Tensor::from_any(self.untyped().global_max_pool())
    }

    /// Returns the mean over all axes after the batch and the channels: `[batch, channels, ..]` to
    /// `[batch, channels]`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(
    ///     eval(|| tensor([[[1.0f32, 2.0, 5.0, 4.0]]]).global_avg_pool())?.as_slice(),
    ///     [3.0]
    /// );
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn global_avg_pool(self) -> Tensor<T> {
        Tensor::from_any(self.untyped().global_avg_pool())
    }
}
