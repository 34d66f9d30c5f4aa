//! Limits of gradients.
//!
//! Clip the gradients that the optimizer gets: all of them at once, after accumulation, and before
//! weight decay. The gradient of a variable is clipped on the device of the variable.

use super::{computed_in, on_device_of};
use crate::trace::{called_at, constant, fail};
use crate::{AnyValue, AnyVar, DType, Diagnostic, HostTensor, Loc, Tensor};

/// Limits each element of all gradients to the range from `-max` to `max`, like PyTorch's
/// `clip_grad_value_`.
///
/// ```
/// use anabranch::optim::{clip_value, model_gradients};
/// use anabranch::prelude::*;
///
/// let w = Var::<f32>::new("w", [3.0, -0.5]);
/// let clipped = eval(|| {
///     let mut gradients = model_gradients((w.get() * w.get()).sum(), &w);
///     clip_value(&mut gradients, 2.0);
///     Tensor::<f32>::from_any(gradients[0].1)
/// })?;
/// assert_eq!(clipped.as_slice(), [2.0, -1.0]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// Aborts the trace unless `max` is positive.
#[track_caller]
pub fn clip_value(gradients: &mut [(AnyVar, AnyValue)], max: f32) {
    called_at(positive(max), || {
        let max = f64::from(max);
        for (var, g) in gradients {
            let _scope = on_device_of(var);
            *g = g.maximum(g.number(-max)).minimum(g.number(max));
        }
    });
}

/// Scales each gradient on its own so that the root of the sum of its squares is at most `max`,
/// like `clipnorm` of Keras.
///
/// A gradient with NaN or infinite elements is not made finite. One whose squares overflow its
/// type, or `f32` if it has 16 bits, becomes zero.
///
/// # Errors
/// Aborts the trace unless `max` is positive.
#[track_caller]
pub fn clip_norm(gradients: &mut [(AnyVar, AnyValue)], max: f32) {
    called_at(positive(max), || {
        for (var, g) in gradients {
            let _scope = on_device_of(var);
            *g = scaled(*g, factor(sum_of_squares(*g).sqrt(), max));
        }
    });
}

/// Scales all gradients by one factor so that the root of the sum of all their squares is at most
/// `max` (Pascanu et al. 2013). Returns the root before that, 0 if there are no gradients.
///
/// PyTorch's `clip_grad_norm_` adds 1e-6 to the root. Gradients with NaN or infinite elements are
/// not made finite. If the sum of the squares overflows, the root is infinite and the gradients
/// become zero, as in PyTorch.
///
/// ```
/// use anabranch::optim::{Sgd, Optimizer, clip_global_norm, model_gradients};
/// use anabranch::prelude::*;
///
/// let model = [Var::<f32>::new("a", 3.0), Var::<f32>::new("b", 4.0)];
/// let session = Session::new()?;
/// let step = session.function(|| {
///     let loss = (model[0].get().square() + model[1].get().square()) * 0.5;
///     let mut gradients = model_gradients(loss, &model);
///     let norm = clip_global_norm(&mut gradients, 1.0);
///     Sgd::new(1.0).apply(1.0, &gradients);
///     norm
/// })?;
/// assert_eq!(step.call(())?, 5.0);
/// assert!((session.get(&model[0])?.item() - 2.4).abs() < 1e-6);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// Aborts the trace unless `max` is positive.
#[track_caller]
pub fn clip_global_norm(gradients: &mut [(AnyVar, AnyValue)], max: f32) -> Tensor {
    called_at(positive(max), || {
        // The norm is an `f64` if one of the gradients is.
        let dtype = gradients.iter().map(|(_, g)| g.dtype()).find(|&dtype| dtype == DType::F64);
        let squares = gradients.iter().map(|(var, g)| {
            let _scope = on_device_of(var);
            sum_of_squares(*g).cast(dtype.unwrap_or(DType::F32))
        });
        let Some(total) = squares.reduce(AnyValue::add) else {
            return Tensor::from_any(constant(HostTensor::scalar(0.0f32)));
        };
        let norm = total.sqrt();
        let factor = factor(norm, max);
        for (var, g) in gradients {
            let _scope = on_device_of(var);
            *g = scaled(*g, factor);
        }
        Tensor::from_any(norm.cast(DType::F32))
    })
}

/// Checks a limit. Returns the location of the caller.
#[track_caller]
fn positive(max: f32) -> Loc {
    let loc = Loc::caller();
    if max.is_nan() || max <= 0.0 {
        let error = Diagnostic::new(format!("the limit of gradients is {max}")).at(loc, "clipped here");
        fail(error.help("use a positive number"));
    }
    loc
}

/// Returns the product of a gradient and a factor, rounded once.
fn scaled(g: AnyValue, factor: AnyValue) -> AnyValue {
    let dtype = computed_in(g.dtype());
    g.cast(dtype).mul(factor.cast(dtype)).cast(g.dtype())
}

/// Returns the sum of the squares. Those of 16-bit floats may overflow or underflow, so they are
/// computed in `f32`.
fn sum_of_squares(g: AnyValue) -> AnyValue {
    g.cast(computed_in(g.dtype())).square().sum()
}

/// Returns the factor that reduces a norm to at most `max`.
fn factor(norm: AnyValue, max: f32) -> AnyValue {
    let max = norm.number(max.into());
    max.div(norm.maximum(max))
}
