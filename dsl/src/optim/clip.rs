//! Limits of gradients.

use crate::trace::{called_at, constant};
use crate::{AnyValue, AnyVar, HostTensor, Loc};

/// Scales all gradients by one factor so that the root of the sum of all their squares is at most
/// `max` (Pascanu et al. 2013).
#[track_caller]
pub fn clip_global_norm(gradients: &mut [(AnyVar, AnyValue)], max: f32) {
    called_at(Loc::caller(), || {
        // Squares of 16-bit floats may overflow or underflow.
        let wide = |g: AnyValue| if g.dtype().is_half() { g.cast(crate::DType::F32) } else { g };
        let squares = gradients.iter().map(|(_, g)| wide(*g).square().sum().cast(crate::DType::F32));
        let Some(total) = squares.reduce(AnyValue::add) else {
            return;
        };
        let max = constant(HostTensor::scalar(max));
        let scale = max.div(total.sqrt().maximum(max));
        for (_, g) in gradients {
            *g = g.mul(scale.cast(g.dtype()));
        }
    });
}
