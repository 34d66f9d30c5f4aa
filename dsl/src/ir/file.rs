//! Operations on files of tensors.

use super::infer::{Broken, broken};
use crate::ops::Arity;
use crate::{DType, TensorType, Type};
use std::collections::HashSet;

/// An operation on a file of tensors. Its first operand is the path, a `bytes[]`.
///
/// It runs in program order with the other effects of its step. See
/// [`save_tensors`](crate::files::save_tensors) and
/// [`restore_tensor`](crate::files::restore_tensor) for the semantics.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FileOp {
    /// `(path, tensors)`: writes tensors with these names to a file when the step is committed.
    Save(Vec<String>),
    /// `(path) -> tensor`: reads a tensor from a file.
    Restore {
        /// The name in the file.
        name: String,
        /// The type. Unknown extents may be any.
        ty: TensorType,
    },
}

impl FileOp {
    /// The names of all operations in the text form.
    pub(crate) const NAMES: [&str; 2] = ["save", "restore"];

    /// Returns the name in the text form.
    pub fn name(&self) -> &'static str {
        match self {
            FileOp::Save(_) => "save",
            FileOp::Restore { .. } => "restore",
        }
    }

    /// Returns the names of the tensors.
    pub fn tensors(&self) -> &[String] {
        match self {
            FileOp::Save(names) => names,
            FileOp::Restore { name, .. } => std::slice::from_ref(name),
        }
    }

    pub(crate) fn arity(&self) -> Arity {
        match self {
            FileOp::Save(names) => Arity::Exactly(1 + names.len()),
            FileOp::Restore { .. } => Arity::Exactly(1),
        }
    }

    /// Returns the types of the results, or the fault of the operands.
    pub(crate) fn result_types(&self, operands: &[&Type]) -> Result<Vec<Type>, Broken> {
        if *operands[0] != Type::tensor(DType::Bytes, ()) {
            return Err(broken(15, format!("the path is {}, not bytes[]", operands[0])));
        }
        if let Some(i) = operands.iter().position(|ty| ty.as_tensor().is_none()) {
            return Err(broken(15, format!("`{}` is {}, not a tensor", self.tensors()[i - 1], operands[i].kind())));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = self.tensors().iter().find(|name| !seen.insert(*name)) {
            return Err(broken(15, format!("two tensors have the name `{twice}`")));
        }
        match self {
            FileOp::Save(names) if names.is_empty() => Err(broken(15, "there are no tensors to save".to_owned())),
            FileOp::Save(_) => Ok(Vec::new()),
            FileOp::Restore { ty, .. } => Ok(vec![Type::Tensor(ty.clone())]),
        }
    }
}
