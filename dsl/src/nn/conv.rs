//! Convolution layers.

use super::{Init, module};
use crate::ops::{ConvOptions, PerAxis};
use crate::{Float, Tensor, Var};

macro_rules! convolution {
    (
        $(#[$doc:meta])* $name:ident, $axes:literal, $method:ident, $extents:literal, $shape:literal,
        |$inputs:ident, $outputs:ident, $groups:ident| $filters:expr, $fan:expr
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            #[doc = concat!("`", $shape, "`")]
            pub weight: Var,
            /// The bias `[outputs]`, if there is one.
            pub bias: Option<Var>,
            /// The stride, padding, dilation and groups.
            pub options: ConvOptions<$axes>,
        }
        module!($name: weight, bias);

        impl $name {
            /// Creates a layer with windows of the extents `kernel`.
            ///
            /// Weights and bias are uniform within `1 / sqrt(n)`, where `n` is the second extent of
            /// the weights times those of the windows.
            ///
            /// # Panics
            /// Panics if the groups do not divide the inputs and outputs.
            pub fn new(
                init: &Init,
                $inputs: usize,
                $outputs: usize,
                kernel: impl PerAxis<$axes>,
                options: ConvOptions<$axes>,
            ) -> $name {
                let $groups = options.n_groups();
                let fit = $groups > 0 && $inputs % $groups == 0 && $outputs % $groups == 0;
                assert!(fit, "{} inputs and {} outputs cannot be divided into {} groups", $inputs, $outputs, $groups);
                let kernel = kernel.per_axis();
                let fan_in = $fan * kernel.iter().product::<usize>();
                let shape: Vec<usize> = $filters.into_iter().chain(kernel).collect();
                $name {
                    weight: Var::new("weight", init.fan_in(&shape[..], fan_in)),
                    bias: Some(Var::new("bias", init.fan_in([$outputs], fan_in))),
                    options,
                }
            }

            /// Removes the bias, for a layer before a normalization.
            #[must_use]
            pub fn without_bias(self) -> $name {
                $name { bias: None, ..self }
            }

            #[doc = concat!("`[batch, inputs, ", $extents, "]` to `[batch, outputs, ", $extents, "]`; for the extents see [`Tensor::", stringify!($method), "`].")]
            #[track_caller]
            pub fn forward<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
                let y = x.$method(self.weight.get().cast(), self.options);
                match &self.bias {
                    Some(bias) => {
                        let mut shape = [1; $axes + 1];
                        shape[0] = bias.any().ty().shape.dims()[0].known().expect("the shape of a variable is known");
                        y + bias.get().cast::<T>().reshape(shape)
                    }
                    None => y,
                }
            }
        }
    };
}

convolution! {
    /// A convolution over one axis with a bias per filter.
    Conv1d, 1, conv1d, "length", "[outputs, inputs / groups, k]",
    |inputs, outputs, groups| [outputs, inputs / groups], inputs / groups
}
convolution! {
    /// A convolution over two axes with a bias per filter.
    ///
    /// ```
    /// # use anabranch::{nn::{Conv2d, Init}, prelude::*};
    /// let conv = Conv2d::new(&Init::new(1), 3, 8, 5, ConvOptions::new().padding(2).stride(2));
    /// let y = eval(|| conv.forward(full([1, 3, 32, 32], 0.5)))?;
    /// assert_eq!(y.shape(), [1, 8, 16, 16]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    Conv2d, 2, conv2d, "height, width", "[outputs, inputs / groups, kh, kw]",
    |inputs, outputs, groups| [outputs, inputs / groups], inputs / groups
}
convolution! {
    /// A convolution over three axes with a bias per filter.
    Conv3d, 3, conv3d, "depth, height, width", "[outputs, inputs / groups, kd, kh, kw]",
    |inputs, outputs, groups| [outputs, inputs / groups], inputs / groups
}
convolution! {
    /// A transposed convolution over one axis with a bias per output channel.
    ConvTranspose1d, 1, conv_transpose1d, "length", "[inputs, outputs / groups, k]",
    |inputs, outputs, groups| [inputs, outputs / groups], outputs / groups
}
convolution! {
    /// A transposed convolution over two axes with a bias per output channel.
    ///
    /// ```
    /// # use anabranch::{nn::{ConvTranspose2d, Init}, prelude::*};
    /// let up = ConvTranspose2d::new(&Init::new(1), 8, 3, 2, ConvOptions::new().stride(2));
    /// let y = eval(|| up.forward(full([1, 8, 16, 16], 0.5)))?;
    /// assert_eq!(y.shape(), [1, 3, 32, 32]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ConvTranspose2d, 2, conv_transpose2d, "height, width", "[inputs, outputs / groups, kh, kw]",
    |inputs, outputs, groups| [inputs, outputs / groups], outputs / groups
}
convolution! {
    /// A transposed convolution over three axes with a bias per output channel.
    ConvTranspose3d, 3, conv_transpose3d, "depth, height, width", "[inputs, outputs / groups, kd, kh, kw]",
    |inputs, outputs, groups| [inputs, outputs / groups], outputs / groups
}
