//! Files of tensors, in graph functions: [`save_tensors`] and [`restore_tensor`].
//!
//! The language knows a file only by the operations of a graph on it ([`FileOp`]). Engines run
//! these through [`StepFiles`], which belongs to the session. What a file looks like, and where it
//! is, is the matter of whoever gives files to the session.

use crate::ir::FileOp;
use crate::{AnyValue, Bytes, Diagnostic, Dim, Element, HostTensor, Loc, Operand, Result, Shape, Tensor, TensorType};
use crate::{Type, trace};

/// Writes tensors to a file, in a graph function, in program order with its other effects and also
/// inside `if` and `while`.
///
/// `path` is the path of the file, a scalar of UTF-8 text, and `tensors` has the tensors by their
/// names in the file. The file is written and made durable when the operation runs, under a
/// temporary name; an object of a store may be sent only when the call has succeeded. It gets its
/// own name, and replaces an older file, when the call has succeeded; in a loop that
/// [commits each iteration](crate::commit_each_iteration), when the iteration has. So there is
/// always the old file or the whole new one, and a call that fails or is cancelled leaves no new
/// file. If a call saves twice to a path, the last time counts. A process that is killed may leave
/// a temporary file.
///
/// Files are written by a CPU of the process that has the session, whatever devices compute the
/// tensors.
///
/// # Errors
/// The call fails if the session has no files (`SessionBuilder::tensor_files`), if the path is no
/// text, or if the file cannot be written. If only the last part fails, to give the file its name,
/// the error says so: variables and queues have changed then.
///
/// ```
/// use anabranch::checkpoints::{SafetensorFiles, restore_tensor, save_tensors};
/// use anabranch::prelude::*;
///
/// # let folder = std::env::temp_dir().join(format!("anabranch-save-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// let session = Session::builder().tensor_files(SafetensorFiles::new()).build()?;
/// let w = Var::<f32>::new("w", [1.0, 2.0]);
/// let train = session.function(|path: Tensor<Bytes>| {
///     w.set(w.get() * 2.0);
///     save_tensors(path, &[("w", w.get().untyped())]);
/// })?;
/// let restore = session.function(|path: Tensor<Bytes>| {
///     w.set(restore_tensor::<f32>(path, "w", [2]));
/// })?;
/// let path = folder.join("w.safetensors").display().to_string();
/// train.call(path.as_str())?;
/// session.set(&w, [0.0, 0.0])?;
/// restore.call(path.as_str())?;
/// assert_eq!(session.get(&w)?.as_slice(), [2.0, 4.0]);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn save_tensors(path: impl Operand<Bytes>, tensors: &[(&str, AnyValue)]) {
    let path = path.into_tensor().untyped();
    let names = tensors.iter().map(|(name, _)| (*name).to_owned()).collect();
    let operands: Vec<AnyValue> = std::iter::once(path).chain(tensors.iter().map(|(_, value)| *value)).collect();
    trace::file_op(FileOp::Save(names), &operands);
}

/// Reads a tensor from a file, in a graph function, in program order with its other effects and
/// also inside `if` and `while`.
///
/// `path` is the path of the file, a scalar of UTF-8 text, and `name` the name of the tensor in it.
/// An extent of the shape that is unknown may be any. If the call itself has
/// [saved](save_tensors) to the path, the tensor is what it has saved. It has no gradient.
///
/// # Errors
/// The call fails if the session has no files, if the file cannot be read, or if the tensor in it
/// is missing or of another type. [`save_tensors`] has an example.
#[track_caller]
pub fn restore_tensor<T: Element>(path: impl Operand<Bytes>, name: &str, shape: impl Into<Shape>) -> Tensor<T> {
    let path = path.into_tensor().untyped();
    let ty = TensorType { dtype: T::DTYPE, shape: shape.into() };
    let is_named = |dim: &Dim| matches!(dim, Dim::Named(_));
    if ty.shape.dims().iter().any(is_named) {
        let error = Diagnostic::new(format!("restore: `{name}` is {ty}")).at(Loc::caller(), "restored here");
        trace::fail(error.help("an extent of a tensor in a file is a number or unknown"));
    }
    let restored = trace::file_op(FileOp::Restore { name: name.to_owned(), ty }, &[path]);
    Tensor::from_any(restored[0])
}

/// The files of a running step, as an engine sees them. The session provides them.
pub trait StepFiles: Send + Sync {
    /// Runs an operation, and returns its results.
    ///
    /// # Errors
    /// Fails if the file cannot be read or written, or if its tensor is not of the type of the
    /// operation.
    fn run(&self, op: &FileOp, operands: Vec<HostTensor>, loc: Loc) -> Result<Vec<HostTensor>>;
}

/// The files of a run without a session, or of a session without files.
#[derive(Debug)]
pub struct NoFiles;

impl StepFiles for NoFiles {
    fn run(&self, op: &FileOp, _: Vec<HostTensor>, loc: Loc) -> Result<Vec<HostTensor>> {
        Err(no_files(op, loc))
    }
}

/// Returns the error of an operation in a session without files.
#[doc(hidden)]
pub fn no_files(op: &FileOp, loc: Loc) -> Diagnostic {
    Diagnostic::new(format!("{}: the session has no files", op.name()))
        .at(loc, "used here")
        .help("create it with `Session::builder().tensor_files(SafetensorFiles::new())`, of `anabranch::checkpoints`")
}

/// Returns whether a tensor is of the type that an operation restores.
#[doc(hidden)]
pub fn is_restored(ty: &TensorType, tensor: &HostTensor) -> bool {
    Type::Tensor(ty.clone()).compatible(&Type::Tensor(tensor.ty()))
}
