//! Gradient rules.

use super::value::{GradValue, InGraph};
use crate::TensorType;
use crate::ir::{Attrs, GraphBuilder, Value};
use std::cell::RefCell;

/// The gradient rule of an operation.
#[derive(Clone, Copy)]
pub enum Grad {
    /// Returns the cotangent of each operand, or `None` for an operand without one.
    Rule(GradRule),
    /// The derivative is zero almost everywhere, or the operands have no gradients, for this
    /// reason.
    Zero(&'static str),
    /// There is no rule, for this reason. Taking a gradient is an error.
    Missing(&'static str),
}

/// The type of [`Grad::Rule`].
pub type GradRule = for<'g> fn(&GradNode<'g>) -> Vec<Option<GradValue<'g>>>;

/// The node for which a gradient rule is evaluated.
pub struct GradNode<'g> {
    pub(crate) forward: &'g dyn ForwardNode,
    pub(crate) attrs: &'g Attrs,
    pub(crate) types: Vec<TensorType>,
    pub(crate) result_type: TensorType,
    pub(crate) dy: Value,
}

/// What a gradient rule may ask of the forward node. The backward pass implements it.
pub(crate) trait ForwardNode {
    /// Returns the builder of the graph.
    fn builder(&self) -> &RefCell<GraphBuilder>;
    /// Returns an operand as seen by the backward pass.
    fn operand(&self, i: usize) -> Value;
    /// Returns a tensor of the shape of an operand.
    fn like(&self, i: usize) -> Value;
    /// Returns the result as seen by the backward pass.
    fn result(&self) -> Value;
    /// Returns whether the cotangent of an operand is needed.
    fn needs(&self, i: usize) -> bool;
    /// Returns the cotangent that the rule continues.
    fn cotangent_so_far(&self, i: usize) -> Option<Value>;
}

impl<'g> GradNode<'g> {
    fn value(&self, value: Value) -> GradValue<'g> {
        InGraph { builder: self.forward.builder() }.value(value)
    }

    /// Returns the cotangent of the result.
    pub fn dy(&self) -> GradValue<'g> {
        self.value(self.dy)
    }

    /// Returns operand `i`, for use in the gradient.
    ///
    /// If the node is in a loop, this makes the loop save the operand, so request only what is
    /// needed.
    pub fn x(&self, i: usize) -> GradValue<'g> {
        self.value(self.forward.operand(i))
    }

    /// Returns a tensor of the shape of operand `i`, whose elements must not be used.
    ///
    /// A loop saves at most its extents.
    pub fn like(&self, i: usize) -> GradValue<'g> {
        self.value(self.forward.like(i))
    }

    /// Returns the result, for use in the gradient. The result is saved like an operand.
    pub fn y(&self) -> GradValue<'g> {
        self.value(self.forward.result())
    }

    /// Returns the type of operand `i`.
    pub fn ty(&self, i: usize) -> &TensorType {
        &self.types[i]
    }

    /// Returns the type of the result.
    pub fn result_ty(&self) -> &TensorType {
        &self.result_type
    }

    /// Returns the number of operands.
    pub fn n_operands(&self) -> usize {
        self.types.len()
    }

    /// Returns the static arguments of the operation.
    pub fn attrs(&self) -> &Attrs {
        self.attrs
    }

    /// Returns whether the cotangent of operand `i` is needed.
    ///
    /// A rule may return `None` for it otherwise.
    pub fn needs(&self, i: usize) -> bool {
        self.forward.needs(i)
    }

    /// Returns the cotangent of operand `i` that uses of it have contributed so far, if there is
    /// one, the node is in a loop or branch, and it reads a part of the operand: at indices, or a
    /// small slice.
    ///
    /// The rule then adds to it, and what it returns for this operand replaces it. So an operation
    /// that reads a few elements adds to these alone, in place. At most one operand of a node may
    /// be continued.
    pub fn cotangent_so_far(&self, i: usize) -> Option<GradValue<'g>> {
        self.forward.cotangent_so_far(i).map(|value| self.value(value))
    }
}
