//! Convolutions over one, two or three axes, and their gradients.
//!
//! As usual in machine learning, they are in fact cross-correlations. A convolution is linear in
//! each of its operands, and so are its gradients. The three operations are closed: the gradients
//! of each are the other two.
//!
//! | operation | operands | result |
//! |---|---|---|
//! | `conv` | `x`, `w` | `y` |
//! | `conv_input_grad` | `y`, `w` | `x`: a transposed convolution |
//! | `conv_weight_grad` | `x`, `y` | `w` |
//!
//! Here `x` is `[batch, channels, ..]`, `w` is `[filters, channels / groups, ..]` and `y` is
//! `[batch, filters, ..]`. Each operation sums the same products, for the indices of
//! [`Windows::for_each`]. Padding adds nothing. Devices may add a zero times the filter element
//! there, which differs if that is infinite or `NaN`.

use super::infer::Class;
use super::number::{Number, match_float};
use super::window::{Padding, PerAxis, Windows, check_rank, extents_for_gradient, sides};
use super::*;
use crate::{Dim, Float, Shape, Tensor};

family!(CONV, CONV_INPUT_GRAD, CONV_WEIGHT_GRAD);

/// Convolution of `[batch, channels, ..]` with filters `[filters, channels / groups, ..]`.
static CONV: OpDef = OpDef {
    name: "conv",
    arity: Arity::Exactly(2),
    attrs: Conv::DECLARED,
    infer: |cx| {
        let (windows, groups) = checked(cx)?;
        let (x, w) = (cx.tensor(0)?, cx.tensor(1)?);
        check_operands(x, w, &windows)?;
        check_rank(w, &windows, FILTERS)?;
        let (dx, dw) = (x.shape.dims(), w.shape.dims());
        check_filters(&dx[1], &dw[0], Some(&dw[1]), groups, &format!("{x} with filters {w}"))?;
        let mut shape = vec![dx[0].clone(), dw[0].clone()];
        shape.extend(windows.counts(&dx[2..], &dw[2..], x)?);
        Ok(Type::tensor(x.dtype, shape))
    },
    eval: |cx| Ok(products(cx, cx.operands[0].shape(), cx.operands[1].shape(), &cx.shape(), [2, 0, 1])),
    grad: Grad::Rule(|n| {
        let (x, w) = (n.ty(0), n.ty(1));
        let to_x = || n.dy().conv_input_grad(n.x(1), n.attrs(), extents_for_gradient("conv", x, 2));
        let to_w = || n.x(0).conv_weight_grad(n.dy(), n.attrs(), extents_for_gradient("conv", w, 2));
        vec![n.needs(0).then(to_x), n.needs(1).then(to_w)]
    }),
    exactness: Exactness::Sum(1.0),
    class: OpClass::Contract(Contraction::Product(|cx| multiplications(cx, cx.result, cx.operands[1]))),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// The transpose of a convolution, from `y` to `x`. `extents` are those of `x` after the channels.
static CONV_INPUT_GRAD: OpDef = OpDef {
    name: "conv_input_grad",
    arity: Arity::Exactly(2),
    attrs: ConvInputGrad::DECLARED,
    infer: |cx| {
        let (windows, groups) = checked(cx)?;
        let (y, w) = (cx.tensor(0)?, cx.tensor(1)?);
        check_operands(y, w, &windows)?;
        check_rank(w, &windows, FILTERS)?;
        let (dy, dw) = (y.shape.dims(), w.shape.dims());
        let label = format!("{y} with filters {w}");
        if !dy[1].compatible(&dw[0]) {
            let error = OpError::new(format!("the input has {} channels, but the filters are for {}", dy[1], dw[0]));
            return Err(error.label(label).help("there is a filter for each channel of the input"));
        }
        let channels = match dw[1].known() {
            Some(n) => Dim::Known(n * groups),
            None => Dim::Unknown,
        };
        check_filters(&channels, &dw[0], None, groups, &label)?;
        let extents = &extents("extents", ConvInputGrad::of(cx.attrs).extents, &windows)?;
        let x = TensorType { dtype: y.dtype, shape: with_axes(&dy[0], &channels, extents) };
        check_positions(&windows, &x, dw, y)?;
        Ok(x.into())
    },
    eval: |cx| Ok(products(cx, &cx.shape(), cx.operands[1].shape(), cx.operands[0].shape(), [0, 2, 1])),
    grad: Grad::Rule(|n| {
        let to_y = || n.dy().conv_with(n.x(1), n.attrs());
        let to_w = || n.dy().conv_weight_grad(n.x(0), n.attrs(), extents_for_gradient("conv_transpose", n.ty(1), 2));
        vec![n.needs(0).then(to_y), n.needs(1).then(to_w)]
    }),
    exactness: Exactness::Sum(1.0),
    class: OpClass::Contract(Contraction::Product(|cx| multiplications(cx, cx.operands[0], cx.operands[1]))),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// The gradient of a convolution with respect to its filters, from `x` and the cotangent of `y`.
/// `kernel` are the extents of the filters.
static CONV_WEIGHT_GRAD: OpDef = OpDef {
    name: "conv_weight_grad",
    arity: Arity::Exactly(2),
    attrs: ConvWeightGrad::DECLARED,
    infer: |cx| {
        let (windows, groups) = checked(cx)?;
        let (x, y) = (cx.tensor(0)?, cx.tensor(1)?);
        check_operands(x, y, &windows)?;
        check_rank(y, &windows, IMAGES)?;
        let (dx, dy) = (x.shape.dims(), y.shape.dims());
        let label = format!("{x} with {y}");
        if !dx[0].compatible(&dy[0]) {
            let error = OpError::new(format!("batch extents differ, {} and {}", dx[0], dy[0]));
            return Err(error.label(label).help("both operands need equal extents of axis 0"));
        }
        check_filters(&dx[1], &dy[1], None, groups, &label)?;
        let channels = match dx[1].known() {
            Some(n) => Dim::Known(n / groups),
            None => Dim::Unknown,
        };
        let w = with_axes(&dy[1], &channels, &extents("kernel", ConvWeightGrad::of(cx.attrs).kernel, &windows)?);
        check_positions(&windows, x, w.dims(), y)?;
        Ok(Type::tensor(x.dtype, w))
    },
    eval: |cx| Ok(products(cx, cx.operands[0].shape(), &cx.shape(), cx.operands[1].shape(), [1, 0, 2])),
    grad: Grad::Rule(|n| {
        let to_x = || n.x(1).conv_input_grad(n.dy(), n.attrs(), extents_for_gradient("conv_weight_grad", n.ty(0), 2));
        let to_y = || n.x(0).conv_with(n.dy(), n.attrs());
        vec![n.needs(0).then(to_x), n.needs(1).then(to_y)]
    }),
    exactness: Exactness::Sum(1.0),
    class: OpClass::Contract(Contraction::Product(|cx| multiplications(cx, cx.operands[1], cx.result))),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// Returns the number of multiplications of a convolution and of either of its gradients: for each
/// element of `y`, those of one of the filters `w`.
fn multiplications(cx: &CostCx<'_>, y: &TensorType, w: &TensorType) -> f64 {
    let filters = w.shape.dims().first().map_or(1.0, |dim| cx.extent(dim)).max(1.0);
    cx.elements(y) * cx.elements(w) / filters
}

const IMAGES: &str = "the batch, the channels";
const FILTERS: &str = "the filters, the channels";

/// Adds the product of an element of one operand and one of the other to the corresponding element
/// of the result. `roles` are the indices of the result, the first and the second factor among `x`,
/// `w` and `y`.
fn products(cx: &EvalCx<'_>, x: &[usize], w: &[usize], y: &[usize], roles: [usize; 3]) -> HostTensor {
    fn add<T: Number>(result: &mut [T], a: &[T], b: &[T], for_each: impl Fn(&mut dyn FnMut([usize; 3]))) {
        for_each(&mut |[r, i, j]| result[r] = result[r].add(a[i].mul(b[j])));
    }
    let windows = Windows::of_conv(cx.attrs);
    let groups = Conv::of(cx.attrs).groups;
    let [x_plane, w_plane, y_plane] = [x, w, y].map(|s| s[2..].iter().product::<usize>());
    let (filters, channels) = (w[0] / groups, w[1]);
    let for_each = |f: &mut dyn FnMut([usize; 3])| {
        for n in 0..x[0] {
            for o in 0..w[0] {
                for c in 0..channels {
                    let x_start = (n * x[1] + o / filters * channels + c) * x_plane;
                    let (y_start, w_start) = ((n * y[1] + o) * y_plane, (o * channels + c) * w_plane);
                    windows.for_each(&y[2..], &w[2..], &x[2..], &mut |position, element, meets| {
                        let at = [x_start + meets, w_start + element, y_start + position];
                        f(roles.map(|role| at[role]));
                    });
                }
            }
        }
    };
    match_float!(cx.operands[0].buffer(), a => {
        let mut result = vec![Number::ZERO; cx.shape().iter().product()];
        add(&mut result, a, cx.operands[1].data(), for_each);
        cx.result(result)
    })
}

/// Returns the windows and the number of groups, if the attributes are valid.
fn checked(cx: &InferCx<'_>) -> Result<(Windows, usize), OpError> {
    let Conv { strides, padding, dilation, groups } = Conv::of(cx.attrs);
    let windows = Windows::checked(strides, &padding, dilation)?;
    if groups == 0 {
        let error = OpError::new("`groups` is 0, but must be at least 1");
        return Err(error.help("use 1 group to connect all channels with all filters"));
    }
    Ok((windows, groups))
}

fn check_operands(a: &TensorType, b: &TensorType, windows: &Windows) -> Result<(), OpError> {
    Class::Float.check(a)?;
    if a.dtype != b.dtype {
        let error = OpError::new(format!("element types differ, {} and {}", a.dtype, b.dtype));
        return Err(error.label(format!("{a} with {b}")).help("convert one of them with `.cast()`"));
    }
    check_rank(a, windows, IMAGES)
}

/// Checks that channels and filters can be divided into groups, and that each filter has the
/// channels of its group.
fn check_filters(channels: &Dim, filters: &Dim, seen: Option<&Dim>, groups: usize, label: &str) -> Result<(), OpError> {
    for (n, what) in [(channels, "channels"), (filters, "filters")] {
        if let Some(n) = n.known()
            && n % groups != 0
        {
            let error = OpError::new(format!("{n} {what} cannot be divided into {groups} groups")).label(label);
            return Err(error.help("the number of groups divides both channels and filters"));
        }
    }
    if let (Some(n), Some(seen)) = (channels.known(), seen.and_then(Dim::known))
        && n / groups != seen
    {
        let message = match groups {
            1 => format!("the input has {n} channels, but the filters expect {seen}"),
            _ => format!("the input has {n} channels in {groups} groups, but the filters expect {seen} in each"),
        };
        let help = "filters have shape [filters, channels / groups, ..]";
        return Err(OpError::new(message).label(label).help(help));
    }
    Ok(())
}

/// Returns extents, if there is one for each axis of the windows.
fn extents(name: &str, extents: Shape, windows: &Windows) -> Result<Vec<Dim>, OpError> {
    if extents.rank() == windows.rank() {
        return Ok(extents.dims().to_vec());
    }
    let error = OpError::new(format!("{name} {extents} do not match windows of rank {}", windows.rank()));
    Err(error.help("give one extent for each axis of the windows"))
}

fn with_axes(first: &Dim, second: &Dim, more: &[Dim]) -> Shape {
    [first.clone(), second.clone()].into_iter().chain(more.iter().cloned()).collect()
}

/// Checks that `y` has an element for each window over `x`.
fn check_positions(windows: &Windows, x: &TensorType, w: &[Dim], y: &TensorType) -> Result<(), OpError> {
    let counts = Shape::from(windows.counts(&x.shape.dims()[2..], &w[2..], x)?);
    let given = Shape::from(&y.shape.dims()[2..]);
    if counts.compatible(&given) {
        return Ok(());
    }
    let error = OpError::new(format!("a convolution of {x} has output extents {counts}, not {given}"));
    let help = "extents, strides, padding and dilation are those of the convolution whose gradient this is";
    Err(error.label(y.to_string()).help(help))
}

/// Options of a convolution over `D` axes. By default stride and dilation are 1, without padding,
/// in one group.
///
/// ```
/// # use anabranch::ConvOptions;
/// let options = ConvOptions::<2>::new().stride(2).padding([1, 0]);
/// assert_eq!(options, ConvOptions::new().stride([2, 2]).padding_sides([(1, 1), (0, 0)]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions<const D: usize> {
    stride: [usize; D],
    padding: Padding<D>,
    dilation: [usize; D],
    groups: usize,
    output_padding: [usize; D],
}

impl<const D: usize> Default for ConvOptions<D> {
    fn default() -> Self {
        ConvOptions {
            stride: [1; D],
            padding: Padding::Sides([(0, 0); D]),
            dilation: [1; D],
            groups: 1,
            output_padding: [0; D],
        }
    }
}

impl<const D: usize> ConvOptions<D> {
    /// Creates options with stride and dilation 1, no padding (also known as "valid"), and one
    /// group.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the distance between the starts of windows.
    #[must_use]
    pub fn stride(self, stride: impl PerAxis<D>) -> Self {
        ConvOptions { stride: stride.per_axis(), ..self }
    }

    /// Sets the number of zeros on both sides of each axis.
    #[must_use]
    pub fn padding(self, padding: impl PerAxis<D>) -> Self {
        ConvOptions { padding: Padding::symmetric(padding), ..self }
    }

    /// Sets the number of zeros before and after each axis.
    #[must_use]
    pub fn padding_sides(self, padding: [(usize, usize); D]) -> Self {
        ConvOptions { padding: Padding::Sides(padding), ..self }
    }

    /// Sets the padding so that the result has an element for every `stride` elements of the
    /// operand. With stride 1 both have the same extents. If the number of zeros is odd, the
    /// additional zero is at the end.
    #[must_use]
    pub fn same(self) -> Self {
        ConvOptions { padding: Padding::Same, ..self }
    }

    /// Sets the distance between the elements of a window.
    #[must_use]
    pub fn dilation(self, dilation: impl PerAxis<D>) -> Self {
        ConvOptions { dilation: dilation.per_axis(), ..self }
    }

    /// Sets the number of groups of channels and filters. A filter has the channels of its group.
    /// With one group for each channel, the convolution is depthwise.
    #[must_use]
    pub fn groups(self, groups: usize) -> Self {
        ConvOptions { groups, ..self }
    }

    /// Sets the difference between the extents of a transposed convolution's result and the
    /// smallest possible extents. The difference must be less than the stride. Several extents of
    /// an operand result in the same extent of a convolution.
    #[must_use]
    pub fn output_padding(self, output_padding: impl PerAxis<D>) -> Self {
        ConvOptions { output_padding: output_padding.per_axis(), ..self }
    }

    /// Returns the number of groups.
    pub(crate) fn n_groups(&self) -> usize {
        self.groups
    }

    fn attrs(&self, padding: [(usize, usize); D]) -> Conv {
        let ConvOptions { stride, dilation, groups, .. } = *self;
        Conv { strides: stride.to_vec(), padding: sides(padding), dilation: dilation.to_vec(), groups }
    }
}

impl<C: ValueCx> AnyValue<C> {
    /// See [`Tensor::conv2d`].
    #[track_caller]
    pub fn conv<const D: usize>(self, w: AnyValue<C>, options: &ConvOptions<D>) -> AnyValue<C> {
        if options.output_padding != [0; D] {
            let error = OpError::new("only transposed convolutions have output padding");
            refuse::<C>("conv", error.help("use `padding` to pad the input"));
        }
        let (x, filters) = (self.tensor_type(), w.tensor_type());
        let window = filters.shape.dims().get(2..).unwrap_or_default();
        let padding = options.padding.of::<C>("conv", &x, window, options.stride, options.dilation);
        emit(prim::CONV, &[self, w], options.attrs(padding).into())
    }

    /// See [`Tensor::conv_transpose2d`].
    #[track_caller]
    pub fn conv_transpose<const D: usize>(self, w: AnyValue<C>, options: &ConvOptions<D>) -> AnyValue<C> {
        let op = "conv_transpose";
        let (y, filters) = (self.tensor_type(), w.tensor_type());
        let Padding::Sides(padding) = options.padding else {
            refuse::<C>(
                op,
                OpError::new("`same` padding is not supported here").help("specify the padding of each side"),
            );
        };
        if y.rank() != D + 2 || filters.rank() != D + 2 {
            let error = OpError::new(format!("the ranks are {} and {}, not {}", y.rank(), filters.rank(), D + 2));
            let help =
                "the shapes are [batch, channels, ..] for the input and [channels, filters / groups, ..] for filters";
            refuse::<C>(op, error.label(format!("{y} with filters {filters}")).help(help));
        }
        let extent = |i: usize| {
            let (Some(n), Some(k)) = (y.shape.dims()[2 + i].known(), filters.shape.dims()[2 + i].known()) else {
                let error = OpError::new(format!("the extents of axis {} must be known", 2 + i));
                let label = format!("{y} with filters {filters}");
                refuse::<C>(op, error.label(label).help("give the function a concrete signature"));
            };
            let (stride, more) = (options.stride[i], options.output_padding[i]);
            if more >= stride.max(1) {
                let error = OpError::new(format!("output padding {more} is not less than the stride {stride}"));
                let help = "output padding selects one of `stride` possible extents of the result";
                refuse::<C>(op, error.label(format!("axis {}", 2 + i)).help(help));
            }
            let (steps, reach) = (n.saturating_sub(1), options.dilation[i].saturating_mul(k.saturating_sub(1)));
            let full = stride.saturating_mul(steps).saturating_add(reach).saturating_add(1 + more);
            let Some(extent) = full.checked_sub(padding[i].0.saturating_add(padding[i].1)) else {
                let error = OpError::new(format!("padding {:?} exceeds the {full} elements", padding[i]));
                let help = "the padding of a transposed convolution is removed from its result";
                refuse::<C>(op, error.label(format!("axis {} of {y}", 2 + i)).help(help));
            };
            Dim::Known(extent)
        };
        let extents = (0..D).map(extent).collect();
        emit(prim::CONV_INPUT_GRAD, &[self, w], options.attrs(padding).input_grad(extents).into())
    }

    #[track_caller]
    fn conv_with(self, w: AnyValue<C>, attrs: &Attrs) -> AnyValue<C> {
        emit(prim::CONV, &[self, w], Conv::of(attrs).into())
    }

    #[track_caller]
    fn conv_input_grad(self, w: AnyValue<C>, attrs: &Attrs, extents: Shape) -> AnyValue<C> {
        emit(prim::CONV_INPUT_GRAD, &[self, w], Conv::of(attrs).input_grad(extents).into())
    }

    #[track_caller]
    fn conv_weight_grad(self, dy: AnyValue<C>, attrs: &Attrs, kernel: Shape) -> AnyValue<C> {
        emit(prim::CONV_WEIGHT_GRAD, &[self, dy], Conv::of(attrs).weight_grad(kernel).into())
    }
}

impl<T: Float> Tensor<T> {
    /// Convolves over one axis: `[batch, channels, length]` with filters
    /// `[filters, channels / groups, k]` yields `[batch, filters, positions]`. See
    /// [`conv2d`](Tensor::conv2d).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// # use anabranch::ConvOptions;
    /// let y = eval(|| {
    ///     tensor([[[1.0f32, 2.0, 4.0, 8.0]]]).conv1d(tensor([[[1.0, -1.0]]]), ConvOptions::new())
    /// })?;
    /// assert_eq!(y.as_slice(), [-1.0, -2.0, -4.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn conv1d(self, filters: Tensor<T>, options: ConvOptions<1>) -> Tensor<T> {
        Tensor::from_any(self.untyped().conv(filters.untyped(), &options))
    }

    /// Convolves over two axes: `[batch, channels, height, width]` with filters
    /// `[filters, channels / groups, kh, kw]` yields `[batch, filters, rows, columns]`.
    ///
    /// Element `[n, o, i, j]` is the sum over the channels `c` of the group of `o`, over `a` and
    /// over `b` of `x[n, c, i * stride + a * dilation - padding, j * stride + b * dilation -
    /// padding] * filters[o, c, a, b]`. The filters are not flipped. Along each axis there are
    /// `(extent + padding - dilation * (k - 1) - 1) / stride + 1` positions.
    ///
    /// # Errors
    /// Aborts the trace if ranks, element types, or channels and groups do not match, or if a
    /// window is larger than the padded axis.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// # use anabranch::ConvOptions;
    /// let x = || tensor([1.0f32, 2.0, 3.0, 4.0]).reshape([1, 1, 2, 2]);
    /// let filter = || full([1, 1, 3, 3], 1.0f32);
    /// let y = eval(|| x().conv2d(filter(), ConvOptions::new().padding(1)))?;
    /// assert_eq!(y.as_slice(), [10.0; 4]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn conv2d(self, filters: Tensor<T>, options: ConvOptions<2>) -> Tensor<T> {
        Tensor::from_any(self.untyped().conv(filters.untyped(), &options))
    }

    /// Convolves over three axes: `[batch, channels, depth, height, width]` with filters
    /// `[filters, channels / groups, kd, kh, kw]`. See [`conv2d`](Tensor::conv2d).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// # use anabranch::ConvOptions;
    /// let (x, filter) = (|| full([1, 2, 2, 2, 2], 1.0f32), || full([1, 2, 2, 2, 2], 0.5f32));
    /// assert_eq!(eval(|| x().conv3d(filter(), ConvOptions::new()))?.as_slice(), [8.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn conv3d(self, filters: Tensor<T>, options: ConvOptions<3>) -> Tensor<T> {
        Tensor::from_any(self.untyped().conv(filters.untyped(), &options))
    }

    /// Computes a transposed convolution over one axis: `[batch, channels, positions]` with filters
    /// `[channels, filters / groups, k]` yields `[batch, filters, length]`. See
    /// [`conv_transpose2d`](Tensor::conv_transpose2d).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// # use anabranch::ConvOptions;
    /// let y = eval(|| {
    ///     tensor([[[1.0f32, 2.0]]])
    ///         .conv_transpose1d(tensor([[[1.0, 10.0]]]), ConvOptions::new().stride(2))
    /// })?;
    /// assert_eq!(y.as_slice(), [1.0, 10.0, 2.0, 20.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn conv_transpose1d(self, filters: Tensor<T>, options: ConvOptions<1>) -> Tensor<T> {
        Tensor::from_any(self.untyped().conv_transpose(filters.untyped(), &options))
    }

    /// Computes a transposed convolution over two axes: `[batch, channels, rows, columns]` with
    /// filters `[channels, filters / groups, kh, kw]` yields `[batch, filters, height, width]`.
    ///
    /// The operation is the transpose of [`conv2d`](Tensor::conv2d) with the same filters and
    /// options, as a linear map, and so its gradient. Along each axis there are `(positions - 1) *
    /// stride + dilation * (k - 1) + 1 - padding + output_padding` elements.
    ///
    /// # Errors
    /// Aborts the trace with the errors of `conv2d`, and if extents are unknown, padding is `same`,
    /// or the padding removes all elements.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// # use anabranch::ConvOptions;
    /// let x = || tensor([1.0f32, 2.0]).reshape([1, 1, 1, 2]);
    /// let filter = || full([1, 1, 2, 2], 1.0f32);
    /// let y = eval(|| x().conv_transpose2d(filter(), ConvOptions::new()))?;
    /// assert_eq!(y.as_slice(), [1.0, 3.0, 2.0, 1.0, 3.0, 2.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn conv_transpose2d(self, filters: Tensor<T>, options: ConvOptions<2>) -> Tensor<T> {
        Tensor::from_any(self.untyped().conv_transpose(filters.untyped(), &options))
    }

    /// Computes a transposed convolution over three axes. See
    /// [`conv_transpose2d`](Tensor::conv_transpose2d).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// # use anabranch::ConvOptions;
    /// let (x, filter) = (|| full([1, 1, 1, 1, 1], 3.0f32), || full([1, 1, 2, 1, 1], 2.0f32));
    /// let y = eval(|| x().conv_transpose3d(filter(), ConvOptions::new()))?;
    /// assert_eq!(y.as_slice(), [6.0, 6.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn conv_transpose3d(self, filters: Tensor<T>, options: ConvOptions<3>) -> Tensor<T> {
        Tensor::from_any(self.untyped().conv_transpose(filters.untyped(), &options))
    }
}
