//! Logs of runs: files that a run only appends to. They know their lengths, so that a run that
//! resumes from a checkpoint cuts them to what they were then.

mod append;
mod events;
mod graph_def;
mod histogram;
mod json;
mod png;

pub use events::EventFile;
pub use json::JsonLines;

use std::time::SystemTime;

/// Returns the seconds since 1970 in UTC.
fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
