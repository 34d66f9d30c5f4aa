//! Normalization and dropout layers.

use super::{Mode, module};
use crate::ops::random::Key;
use crate::var::VarPath;
use crate::{AnyValue, AnyVar, Array, DType, Dim, Float, Loc, Module, Tensor, Var, trace};

/// Layer normalization over the last axis (Ba, Kiros and Hinton 2016).
#[derive(Debug)]
pub struct LayerNorm {
    /// The factor, `[size]`, initially 1.
    pub scale: Var,
    /// The offset, `[size]`, initially 0.
    pub bias: Var,
    /// A small number added to the variance.
    pub epsilon: f32,
}
module!(LayerNorm: scale, bias);

impl LayerNorm {
    /// Creates a normalization of vectors of `size` elements.
    pub fn new(size: usize) -> LayerNorm {
        let constant = |x: f32| Array::new([size], vec![x; size]);
        LayerNorm { scale: Var::new("scale", constant(1.0)), bias: Var::new("bias", constant(0.0)), epsilon: 1e-5 }
    }

    /// Normalizes the last axis, `[.., size]`. 16-bit floats are computed in `f32`.
    ///
    /// # Errors
    /// Aborts the trace if the last axis has another extent than `size`.
    #[track_caller]
    pub fn forward<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        let here = Loc::caller();
        trace::called_at(here, || {
            of_last_axis(x, [&self.scale, &self.bias], here, "LayerNorm", |x, [scale, bias]| {
                x.layer_norm(scale, bias, self.epsilon.into())
            })
        })
    }
}

/// Normalization by the root mean square of the last axis (Zhang and Sennrich 2019).
#[derive(Debug)]
pub struct RmsNorm {
    /// The factor, `[size]`, initially 1.
    pub scale: Var,
    /// A small number added to the mean square.
    pub epsilon: f32,
}
module!(RmsNorm: scale);

impl RmsNorm {
    /// Creates a normalization of vectors of `size` elements.
    pub fn new(size: usize) -> RmsNorm {
        RmsNorm { scale: Var::new("scale", Array::new([size], vec![1.0f32; size])), epsilon: 1e-5 }
    }

    /// Normalizes the last axis, `[.., size]`. 16-bit floats are computed in `f32`.
    ///
    /// # Errors
    /// Aborts the trace if the last axis has another extent than `size`.
    #[track_caller]
    pub fn forward<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        let here = Loc::caller();
        trace::called_at(here, || {
            of_last_axis(x, [&self.scale], here, "RmsNorm", |x, [scale]| x.rms_norm(scale, self.epsilon.into()))
        })
    }
}

/// Group normalization (Wu and He 2018).
///
/// The channels of each example are divided into groups of neighbors, and each group is normalized
/// to mean 0 and variance 1 over its channels and all axes after them, then each channel is scaled
/// and shifted by parameters. With as many groups as channels this is instance normalization.
/// Everything is computed in `f32`.
#[derive(Debug)]
pub struct GroupNorm {
    /// The factor, `[channels]`, initially 1.
    pub scale: Var,
    /// The offset, `[channels]`, initially 0.
    pub bias: Var,
    /// A small number added to the variance.
    pub epsilon: f32,
    groups: usize,
}
module!(GroupNorm: scale, bias);

impl GroupNorm {
    /// Creates a normalization of `channels` channels in `groups` groups.
    ///
    /// # Panics
    /// Panics if `groups` does not divide `channels`.
    pub fn new(groups: usize, channels: usize) -> GroupNorm {
        assert!(
            groups > 0 && channels.is_multiple_of(groups),
            "{channels} channels cannot be divided into {groups} groups"
        );
        let constant = |x: f32| Array::new([channels], vec![x; channels]);
        GroupNorm {
            scale: Var::new("scale", constant(1.0)),
            bias: Var::new("bias", constant(0.0)),
            epsilon: 1e-5,
            groups,
        }
    }

    /// Normalizes `[batch, channels, ..]`.
    ///
    /// # Errors
    /// Aborts the trace if there are fewer than two axes, if the number of channels is another than
    /// that of the layer, or if an extent after the channels is unknown.
    ///
    /// ```
    /// # use anabranch::{nn::GroupNorm, prelude::*};
    /// let norm = GroupNorm::new(2, 4);
    /// let y = eval(|| norm.forward(tensor([[1.0f32, 3.0, 5.0, 5.0]])))?;
    /// assert!((y.as_slice()[1] - 1.0).abs() < 1e-5);
    /// assert_eq!(y.as_slice()[2..], [0.0, 0.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn forward<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        let here = Loc::caller();
        trace::called_at(here, || {
            let x: Tensor = x.cast();
            check_channels(x, self.scale.any().init().len(), here, "GroupNorm");
            let channels = x.dim(1);
            let after: Vec<isize> = (2..x.rank() as isize).map(|axis| x.dim(axis) as isize).collect();
            let of_group = after.iter().product::<isize>() * (channels / self.groups) as isize;
            if of_group == 0 {
                return x.cast();
            }
            let rows = x.reshape([-1, of_group]).untyped();
            let difference = rows - rows.mean_keepdim(-1);
            let deviation = (difference.square().mean_keepdim(-1) + f64::from(self.epsilon)).rsqrt();
            let shape = [&[-1, channels as isize][..], &after].concat();
            let normalized = Tensor::from_any(difference * deviation).reshape(shape);
            let [scale, bias] = [&self.scale, &self.bias].map(|v| per_channel(v.get(), x.rank()));
            (normalized * scale + bias).cast()
        })
    }
}

/// Batch normalization (Ioffe and Szegedy 2015).
///
/// Each channel is normalized to mean 0 and variance 1 over the batch and all axes after the
/// channels, then scaled and shifted by parameters. Everything is computed in `f32`.
///
/// In training it updates running means and variances for evaluation. The running values are
/// variables that optimizers ignore.
#[derive(Debug)]
pub struct BatchNorm {
    /// The factor, `[channels]`, initially 1.
    pub scale: Var,
    /// The offset, `[channels]`, initially 0.
    pub bias: Var,
    /// The running mean, `[channels]`, initially 0.
    pub running_mean: Var,
    /// The running unbiased variance (divided by `n - 1`), `[channels]`, initially 1.
    pub running_variance: Var,
    /// The weight of the current batch in the running mean and variance.
    pub momentum: f32,
    /// A small number added to the variance.
    pub epsilon: f32,
}
module!(BatchNorm: scale, bias, running_mean, running_variance);

impl BatchNorm {
    /// Creates a normalization of `channels` channels.
    pub fn new(channels: usize) -> BatchNorm {
        let constant = |x: f32| Array::new([channels], vec![x; channels]);
        BatchNorm {
            scale: Var::new("scale", constant(1.0)),
            bias: Var::new("bias", constant(0.0)),
            running_mean: Var::untrained("running_mean", constant(0.0)),
            running_variance: Var::untrained("running_variance", constant(1.0)),
            momentum: 0.1,
            epsilon: 1e-5,
        }
    }

    /// Normalizes `[batch, channels, ..]`: in training by the mean and variance of `x`, in
    /// evaluation by the running mean and variance.
    ///
    /// # Errors
    /// Aborts the trace if there are fewer than two axes, if the number of channels is another than
    /// that of the layer, or, in training, if extents are unknown or a channel has fewer than two
    /// elements.
    ///
    /// ```
    /// # use anabranch::{nn::{BatchNorm, Mode}, prelude::*};
    /// let norm = BatchNorm::new(1);
    /// let x = || tensor([[1.0f32], [3.0]]);
    /// let y = eval(|| norm.forward(x(), Mode::Training).named("y"))?;
    /// assert!((y.as_slice()[1] - 1.0).abs() < 1e-5);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn forward<T: Float>(&self, x: Tensor<T>, mode: Mode) -> Tensor<T> {
        let here = Loc::caller();
        trace::called_at(here, || {
            let x: Tensor = x.cast();
            check_channels(x, self.scale.any().init().len(), here, "BatchNorm");
            let wide = |v: Tensor| per_channel(v, x.rank());
            let (mean, variance) = match mode {
                Mode::Evaluation => (wide(self.running_mean.get()), wide(self.running_variance.get())),
                Mode::Training => self.statistics(x, here),
            };
            let deviation = (variance + self.epsilon).rsqrt();
            ((x - mean) * (deviation * wide(self.scale.get())) + wide(self.bias.get())).cast()
        })
    }

    /// Returns the mean and variance of each channel, and updates the running values.
    fn statistics(&self, x: Tensor, here: Loc) -> (Tensor, Tensor) {
        let axes: Vec<usize> = (0..x.rank()).filter(|&a| a != 1).collect();
        let n: usize = axes.iter().map(|&a| x.dim(a as isize)).product();
        if n < 2 {
            let label = x.untyped().tensor_type().to_string();
            trace::fail(
                crate::Diagnostic::new(format!(
                    "BatchNorm: training needs at least 2 elements in a channel, but there are {n}"
                ))
                .at(here, label)
                .help("pass a larger batch, or `Mode::Evaluation`"),
            );
        }
        let any = x.untyped();
        let mean = Tensor::from_any(any.mean_keepdim(&axes[..]));
        let variance = Tensor::from_any((any - mean.untyped()).square().mean_keepdim(&axes[..]));
        let follow = |running: &Var, value: Tensor| {
            let (now, value) = (running.get(), value.stop_gradient().reshape([-1]));
            running.set(now + (value - now) * self.momentum);
        };
        follow(&self.running_mean, mean);
        follow(&self.running_variance, variance * (n as f32 / (n - 1) as f32));
        (mean, variance)
    }
}

/// Normalizes the last axis by a function of the input and the parameters, which have as many
/// elements. 16-bit floats are computed in `f32`.
fn of_last_axis<T: Float, const N: usize>(
    x: Tensor<T>,
    vars: [&Var; N],
    here: Loc,
    layer: &str,
    normalize: impl FnOnce(AnyValue, [AnyValue; N]) -> AnyValue,
) -> Tensor<T> {
    let (last, size) = (x.rank().wrapping_sub(1), vars[0].any().init().len());
    check_extent(x.untyped(), last, size, here, layer, "elements", "[.., size]");
    let dtype = if T::DTYPE.is_half() { DType::F32 } else { T::DTYPE };
    let y = normalize(x.untyped().cast(dtype), vars.map(|var| var.get().untyped().cast(dtype)));
    Tensor::from_any(y.cast(T::DTYPE))
}

/// Returns a value for each channel as a tensor of `rank` axes, to be broadcast.
fn per_channel(v: Tensor, rank: usize) -> Tensor {
    let mut shape = vec![1; rank];
    shape[1] = -1;
    v.reshape(shape)
}

/// Aborts the trace if the input of a layer is not `[batch, channels, ..]` with so many channels.
fn check_channels(x: Tensor, channels: usize, here: Loc, layer: &str) {
    if x.rank() < 2 {
        let label = x.untyped().tensor_type().to_string();
        trace::fail(
            crate::Diagnostic::new(format!("{layer}: the input has no channel axis after the batch axis"))
                .at(here, label)
                .help("pass a tensor of shape [batch, channels, ..]"),
        );
    }
    check_extent(x.untyped(), 1, channels, here, layer, "channels", "[batch, channels, ..]");
}

/// Aborts the trace if an axis of the input of a layer has another extent than the parameters.
/// Arithmetic would broadcast an extent of 1.
fn check_extent(x: AnyValue, axis: usize, n: usize, here: Loc, layer: &str, what: &str, shape: &str) {
    if let Some(found) = x.tensor_type().shape.dims().get(axis).and_then(Dim::known).filter(|&found| found != n) {
        trace::fail(
            crate::Diagnostic::new(format!(
                "{layer}: the layer has {n} {what}, but the input has {found} at axis {axis}"
            ))
            .at(here, x.tensor_type().to_string())
            .help(format!("pass a tensor of shape {shape}, or make the layer with {found}")),
        );
    }
}

/// Dropout in training, see [`Tensor::dropout`]. In evaluation it does nothing.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// The probability of dropping an element, less than 1.
    pub rate: f64,
}

impl Module for Dropout {
    fn visit(&self, _: &mut VarPath, _: &mut dyn FnMut(&str, &AnyVar)) {}
}

impl Dropout {
    /// Creates dropout with a probability.
    pub fn new(rate: f64) -> Dropout {
        Dropout { rate }
    }

    /// Applies dropout. Use a different key for each layer and step: `key.fold_in(number)`.
    ///
    /// ```
    /// # use anabranch::{nn::{Dropout, Mode}, prelude::*, random::Key};
    /// let y =
    ///     eval(|| Dropout::new(0.5).forward(tensor([1.0, 2.0]), Mode::Evaluation, Key::new(1)))?;
    /// assert_eq!(y.as_slice(), [1.0, 2.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn forward<T: Float>(&self, x: Tensor<T>, mode: Mode, key: Key) -> Tensor<T> {
        match mode {
            Mode::Training => x.dropout(self.rate, key),
            Mode::Evaluation => x,
        }
    }
}
