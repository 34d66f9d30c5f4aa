//! Limits of gradients.
//!
//! Clip the gradients that the optimizer gets: all of them at once, after accumulation, and before
//! weight decay.

use super::computed_in;
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
        for (_, g) in gradients {
            *g = g.maximum(g.number(-max)).minimum(g.number(max));
        }
    });
}

/// Scales each gradient on its own so that the root of the sum of its squares is at most `max`,
/// like `clipnorm` of Keras.
///
/// A gradient with NaN or infinite elements is not made finite. A finite one is limited also where
/// the squares of its elements overflow.
///
/// # Errors
/// Aborts the trace unless `max` is positive.
#[track_caller]
pub fn clip_norm(gradients: &mut [(AnyVar, AnyValue)], max: f32) {
    called_at(positive(max), || {
        for (_, g) in gradients {
            let norm = Norm::of(&[*g], computed_in(g.dtype()));
            *g = scaled(*g, norm.factor(max));
        }
    });
}

/// Scales all gradients by one factor so that the root of the sum of all their squares is at most
/// `max` (Pascanu et al. 2013). Returns the root before that, 0 if there are no gradients.
///
/// PyTorch's `clip_grad_norm_` adds 1e-6 to the root. Gradients with NaN or infinite elements are
/// not made finite. Finite gradients are limited also where their squares overflow; the returned
/// root is infinite only if it is no `f32` itself.
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
        if gradients.is_empty() {
            return Tensor::from_any(constant(HostTensor::scalar(0.0f32)));
        }
        // The norm is an `f64` if one of the gradients is.
        let all: Vec<AnyValue> = gradients.iter().map(|(_, g)| *g).collect();
        let is_wide = all.iter().any(|g| g.dtype() == DType::F64);
        let norm = Norm::of(&all, if is_wide { DType::F64 } else { DType::F32 });
        let factor = norm.factor(max);
        for (_, g) in gradients {
            *g = scaled(*g, factor);
        }
        Tensor::from_any(norm.root.cast(DType::F32))
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

/// The root of a sum of squares.
struct Norm {
    root: AnyValue,
    /// A power of two by which numbers whose squares overflow are multiplied, or 1.
    unit: AnyValue,
    /// The root times the unit, which does not overflow.
    in_units: AnyValue,
}

impl Norm {
    /// Returns the norm of the elements of all tensors, of which there is one at least, computed in
    /// an element type of at least 32 bits.
    fn of(all: &[AnyValue], dtype: DType) -> Norm {
        let sum_of_squares = |unit: Option<f64>| {
            let square = |g: &AnyValue| {
                let g = g.cast(dtype);
                unit.map_or(g, |unit| g * unit).square().sum()
            };
            all.iter().map(square).reduce(AnyValue::add).expect("there is a tensor")
        };
        let small = if dtype == DType::F64 { 2f64.powi(-600) } else { 2f64.powi(-80) };
        let (plain, reduced) = (sum_of_squares(None), sum_of_squares(Some(small)));
        let fits = plain.is_finite();
        let in_units = fits.select(plain, reduced).sqrt();
        let unit = fits.select(plain.number(1.0), plain.number(small));
        Norm { root: in_units / unit, unit, in_units }
    }

    /// Returns the factor that reduces the norm to at most `max`.
    fn factor(&self, max: f32) -> AnyValue {
        let max = self.unit * f64::from(max);
        max.div(self.in_units.maximum(max))
    }
}
