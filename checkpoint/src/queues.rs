//! The contents of queues in checkpoints.
//!
//! Tensor `i` of the elements of the queue `q` is two tensors of a file: `q/i` has the values of
//! all elements one after the other, and `q/i/extents` the extents of each, an `i64[elements,
//! rank]`. Strings are stored like those of variables, so their values are `q/i/data` and
//! `q/i/offsets`.

use crate::strings::{joined, names_of, parts};
use anabranch_dsl::queue::{AnyQueue, QueueOrder};
use anabranch_dsl::{Diagnostic, HostTensor, Loc};
use anabranch_runtime::{QueueColumn, QueueContent};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The entry of a queue in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QueueRecord {
    #[serde(flatten)]
    pub ty: QueueType,
    /// The state of the random numbers of a shuffle queue.
    random: Option<u64>,
    is_closed: bool,
    /// The error with which its producer has closed it.
    cause: Option<CauseRecord>,
}

/// The properties that a queue and a saved content must have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QueueType {
    order: String,
    capacity: usize,
    /// The types of the tensors of an element.
    element: Vec<String>,
}

/// An error, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CauseRecord {
    message: String,
    notes: Vec<String>,
    help: Option<String>,
}

impl QueueType {
    pub fn of(queue: &AnyQueue) -> QueueType {
        let order = match queue.order() {
            QueueOrder::Fifo => "fifo".to_owned(),
            QueueOrder::Padding => "padding".to_owned(),
            QueueOrder::Shuffle { min_left, seed } => format!("shuffle, at least {min_left} left, seed {seed}"),
            QueueOrder::Priority => "priority".to_owned(),
        };
        let element = queue.element().iter().map(ToString::to_string).collect();
        QueueType { order, capacity: queue.capacity(), element }
    }
}

/// The order, the capacity and the element: `fifo, capacity 10, of (f32[2], i64[])`.
impl std::fmt::Display for QueueType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let QueueType { order, capacity, element } = self;
        write!(f, "{order}, capacity {capacity}, of ({})", element.join(", "))
    }
}

impl QueueRecord {
    /// Returns the entry of a queue and its tensors in a file.
    ///
    /// # Errors
    /// Fails if there is not enough memory for the tensors.
    pub fn of(
        name: &str,
        queue: &AnyQueue,
        content: &QueueContent,
    ) -> anabranch_dsl::Result<(QueueRecord, Vec<(String, HostTensor)>)> {
        let cause = content.cause.as_ref().map(|cause| CauseRecord {
            message: cause.message.clone(),
            notes: cause.labels.iter().map(|(loc, label)| note(*loc, label)).collect(),
            help: cause.help.clone(),
        });
        let record =
            QueueRecord { ty: QueueType::of(queue), random: content.random, is_closed: content.is_closed, cause };
        let mut tensors = Vec::new();
        for (i, QueueColumn { values, extents }) in content.columns(queue)?.into_iter().enumerate() {
            let path = format!("{name}/{i}");
            tensors.push((format!("{path}/extents"), extents));
            match values.dtype().is_plain() {
                true => tensors.push((path, values)),
                false => tensors.extend(names_of(&path).into_iter().zip(parts(&values))),
            }
        }
        Ok((record, tensors))
    }

    /// Returns the content for a queue of the same type, or what is wrong with the tensors.
    pub fn content(
        &self,
        name: &str,
        queue: &AnyQueue,
        tensors: &BTreeMap<String, HostTensor>,
    ) -> Result<QueueContent, String> {
        let find = |name: &str| tensors.get(name).cloned().ok_or_else(|| format!("there is no tensor `{name}`"));
        let column = |(i, ty): (usize, &anabranch_dsl::TensorType)| {
            let path = format!("{name}/{i}");
            let values = match ty.dtype.is_plain() {
                true => find(&path)?,
                false => {
                    let [data, offsets] = names_of(&path);
                    joined(&find(&data)?, &find(&offsets)?)?
                }
            };
            Ok(QueueColumn { values, extents: find(&format!("{path}/extents"))? })
        };
        let columns: Vec<QueueColumn> =
            queue.element().iter().enumerate().map(column).collect::<Result<_, String>>()?;
        let cause = self.cause.as_ref().map(|cause| {
            let error = Diagnostic::new(cause.message.clone());
            let error = cause.notes.iter().fold(error, |error, note| error.at(Loc::UNKNOWN, note.clone()));
            Box::new(cause.help.iter().fold(error, |error, help| error.help(help.clone())))
        });
        let elements = QueueContent::elements_of(queue, &columns)?;
        Ok(QueueContent { elements, random: self.random, is_closed: self.is_closed, cause })
    }
}

/// Returns a label of an error as text, since locations are of a program.
fn note(loc: Loc, label: &str) -> String {
    match loc == Loc::UNKNOWN {
        true => label.to_owned(),
        false => format!("{loc}: {label}"),
    }
}
