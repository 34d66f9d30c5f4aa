#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod collate;
mod dataset;
mod file;
mod iter;
mod order;
mod position;
// Also for the event files of `anabranch-train`.
#[doc(hidden)]
pub mod protobuf;
mod sources;
mod stage;
mod stages;

pub use collate::{BatchPadding, Collate, PadTo};
pub use dataset::Dataset;
pub use file::{DataFile, DataStorage};
pub use iter::DatasetIter;
pub use order::ElementRng;
pub use position::DatasetPosition;
#[cfg(feature = "images")]
pub use sources::files::images;
#[cfg(feature = "parquet")]
pub use sources::files::parquet;
pub use sources::files::{csv, example, files_in, idx, npy, npz, safetensors, text, tfrecord};
pub use sources::memory::RowArrays;
