//! Layers: structs of variables with functions over tensors.
//!
//! A layer is ordinary code: what it does to a tensor is traced like anything else, and a user's own layer is a struct with
//! `#[derive(Module)]`.
//!
//! Parameters are `f32`, and a layer takes tensors of any float type: it converts its parameters to the type of what it is applied to,
//! which is nothing for `f32`, and gives a result of that type. So a model goes through its layers in `bf16` from where a tensor is
//! cast to it, and gradients and optimizers keep the exactness of `f32`; see [`halves`](crate::halves).

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
pub use norm::{BatchNorm, Dropout, LayerNorm};
pub use recurrent::{Gru, Lstm, LstmState, Rnn};

/// What a layer is called for, if that makes a difference to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// To be trained.
    Training,
    /// To be used.
    Evaluation,
}

/// Implements `Module` for a struct of this crate, field by field.
macro_rules! module {
    ($name:ident: $($field:ident),*) => {
        impl $crate::Module for $name {
            fn visit(&self, path: &mut $crate::var::Path, visit: &mut dyn FnMut(&str, &$crate::AnyVar)) {
                $(path.with(stringify!($field), |p| self.$field.visit(p, visit));)*
            }
        }
    };
}
pub(crate) use module;
