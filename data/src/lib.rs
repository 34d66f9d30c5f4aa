#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod collate;
mod dataset;
mod order;
mod position;
mod sources;
mod stage;
mod stages;

pub use collate::{Collate, PadTo, Padding};
pub use dataset::{Dataset, DatasetIter};
pub use order::ElementRng;
pub use position::Position;
#[cfg(feature = "images")]
pub use sources::files::images;
pub use sources::files::{csv, example, files_in, idx, npy, text, tfrecord};
pub use sources::memory::Rows;
