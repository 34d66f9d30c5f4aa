//! Autodiff.

use crate::ir::{Attrs, Value};
use crate::{Any, TensorType};

/// What a gradient rule sees of its node.
#[derive(Debug)]
pub struct GradNode<'a> {
    dy: Any,
    attrs: &'a Attrs,
    operand_types: &'a [TensorType],
    result_type: &'a TensorType,
}

#[derive(Default)]
pub(crate) struct Augmented {}

impl<'a> GradNode<'a> {
    /// The gradient of the result.
    pub fn dy(&self) -> Any {
        self.dy
    }
}
#[expect(dead_code)]
type V = Value;
