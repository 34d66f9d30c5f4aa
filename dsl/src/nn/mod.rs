//! Layers: structs of variables with methods over tensors.
//!
//! A layer is ordinary code: its operations on tensors are traced like any others. A user's own
//! layer is a struct with `#[derive(Module)]`.
//!
//! Parameters are `f32`, and a layer accepts tensors of any float type. A layer converts its
//! parameters to the element type of its input, which is a no-op for `f32`, and returns a result of
//! that type. So a model computes in `bf16` from where a tensor is cast to it, while gradients and
//! optimizers keep the precision of `f32`; see [`halves`](crate::halves).

mod attention;
mod conv;
mod embedding;
mod init;
mod linear;
mod norm;
mod recurrent;

pub use attention::MultiHeadAttention;
pub use conv::{Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d};
pub use embedding::Embedding;
pub use init::Init;
pub use linear::Linear;
pub use norm::{BatchNorm, Dropout, GroupNorm, LayerNorm, RmsNorm};
pub use recurrent::{Gru, Lstm, LstmState, Rnn};

/// The mode of layers that behave differently in training and in evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Training of the parameters.
    Training,
    /// Use of the trained parameters.
    Evaluation,
}

/// Implements `Module` for a struct of this crate, field by field.
macro_rules! module {
    ($name:ident: $($field:ident),*) => {
        impl $crate::Module for $name {
            fn visit(&self, path: &mut $crate::var::VarPath, visit: &mut dyn FnMut(&str, &$crate::AnyVar)) {
                $(path.with(stringify!($field), |p| self.$field.visit(p, visit));)*
            }
        }
    };
}
pub(crate) use module;
