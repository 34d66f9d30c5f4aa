//! A trainer: the loop around a training step.
//!
//! - [`Trainer`] takes batches from a dataset and calls a step function. Between steps it logs,
//!   evaluates, saves checkpoints and ends the run; it continues one that was killed, with the very
//!   bits. [`TrainingRun`] is the same for programs with a loop of their own.
//! - [`Evaluation`] computes metrics of a whole dataset; [`EarlyStopping`] ends a run.
//! - [`SignalWatch`] is for Ctrl-C and SIGTERM in loops of your own.
//! - [`EventFile`] is for TensorBoard, [`JsonLines`] for programs, and [`FitProgress`] for the
//!   person in front of the terminal. They are also there without a trainer.
//!
//! The book has a chapter on it.
#![forbid(unsafe_code)]

mod early_stopping;
mod evaluation;
mod log;
mod metrics;
mod progress;
mod run;
mod run_folder;
mod signals;
mod trainer;

pub use early_stopping::EarlyStopping;
pub use evaluation::Evaluation;
pub use log::{EventFile, JsonLines};
pub use metrics::{IntoMetrics, MetricValue, StepMetrics};
pub use progress::{FitProgress, ShowProgress};
pub use run::{BestStep, FitEnd, FitOutcome, StepContext, TrainingRun};
pub use signals::{SignalWatch, StopSignal};
pub use trainer::{Every, Resume, Trainer};
