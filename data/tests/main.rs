//! Tests of datasets.

mod acceptance;
mod bounds;
mod files;
mod fuzz;
mod order;
mod parquet;
mod positions;
mod safetensors;

use anabranch::Result;
use anabranch::data::{Dataset, DatasetPosition};

/// Returns all elements of an epoch, with errors as their messages.
fn all<T: Send + 'static>(data: &Dataset<T>, epoch: u64) -> Vec<Result<T, String>> {
    messages(data.epoch(epoch))
}

fn messages<T>(elements: impl Iterator<Item = Result<T>>) -> Vec<Result<T, String>> {
    elements.map(|element| element.map_err(|error| error.message)).collect()
}

/// Returns the elements of an epoch that has no errors.
fn values<T: Send + 'static>(data: &Dataset<T>, epoch: u64) -> Vec<T> {
    data.epoch(epoch).map(|element| element.unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// Returns a position that was stored and loaded.
fn stored(position: &DatasetPosition) -> DatasetPosition {
    let text = serde_json::to_string(position).expect("a position can be stored");
    serde_json::from_str(&text).expect("a stored position can be loaded")
}
