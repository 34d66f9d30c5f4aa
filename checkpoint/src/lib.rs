//! Weights in files, and checkpoints: the state of a run in folders that survive crashes.
//!
//! - [`WeightFile`] writes the variables of a module to one safetensors file and reads them back,
//!   also from files of other frameworks.
//! - [`Checkpoints`] keeps the state of a run: variables of models and optimizers by path, the
//!   contents of queues, the number of the step, values of the program and the lengths of its log
//!   files. A save takes a
//!   snapshot between two steps and is written beside the training. A run that was killed and
//!   resumed computes the same bits as one that was not, if the program is the same and the devices
//!   are: random numbers of anabranch are functions of their keys, so their whole state is in
//!   variables and values, and sums do not depend on the number of threads.
//! - [`Restore`] says what to do if the variables of the program are not those of the file. By
//!   default this is an error that lists them all.
//! - [`save_tensors`] and [`restore_tensor`] write and read files inside of functions, whose
//!   session has [`SafetensorFiles`].
//! - [`FileStorage`] is where checkpoints are. The default is the local file system.
//!
//! ```
//! use anabranch::checkpoints::{Checkpoints, RunParts, StepRecord};
//! use anabranch::optim::{Adam, Optimizer};
//! use anabranch::prelude::*;
//!
//! # let folder = std::env::temp_dir().join(format!("anabranch-doc-{}", std::process::id()));
//! let (session, w, adam) = (Session::new()?, Var::<f32>::new("w", [1.0, 2.0]), Adam::new(0.1));
//! let train = session.function(|| adam.minimize((w.get() * w.get()).sum(), &w))?;
//! adam.prepare(&w);
//!
//! let mut checkpoints = Checkpoints::new(&folder).keep_latest(2).open()?;
//! let parts = RunParts::new().module("w", &w).module("adam", &adam);
//! let first = checkpoints.resume(&session, &parts)?.map_or(0, |resumed| resumed.step());
//! for step in first + 1..=20 {
//!     train.call(())?;
//!     if step % 5 == 0 {
//!         checkpoints.save(&session, &parts, StepRecord::new(step))?;
//!     }
//! }
//! checkpoints.wait()?;
//! assert_eq!(checkpoints.steps(), [15, 20]);
//! # drop(checkpoints);
//! # std::fs::remove_dir_all(folder).unwrap();
//! # Ok::<(), anabranch::Diagnostic>(())
//! ```
#![forbid(unsafe_code)]

mod background;
mod checkpoints;
mod error;
mod folder;
mod manifest;
mod objects;
mod pace;
mod queues;
mod restore;
mod resume;
mod run;
mod safetensors;
mod storage;
mod strings;
mod tensor_files;
mod weights;

// Also for `anabranch-train`.
#[doc(hidden)]
pub use error::{called_at, failed};

pub use checkpoints::{Checkpoints, CheckpointsBuilder, Goal, SaveCounts, SaveOutcome, WhenBusy};
pub use restore::{Restore, RestoreReport};
pub use resume::{Resumed, restore_latest};
pub use run::{RunParts, StepRecord};
pub use storage::{FileStorage, LocalFiles, StorageKind, StorageReader, StorageWriter};
pub use tensor_files::SafetensorFiles;
pub use weights::WeightFile;

#[doc(inline)]
pub use anabranch_dsl::files::{restore_tensor, save_tensors};
