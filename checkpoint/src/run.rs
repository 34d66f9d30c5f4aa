//! What a checkpoint holds, as a program lists it.

use crate::error::shown;
use crate::manifest::Metric;
use anabranch_dsl::queue::{AnyQueue, Queue, QueueElement};
use anabranch_dsl::safetensors::METADATA;
use anabranch_dsl::{AnyVar, Diagnostic, Module, Result};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::PathBuf;

/// The parts of a run that outlive it: modules, queues and log files. The same parts are saved and
/// resumed.
///
/// The paths of variables are those in their module below its name: `model.0.weight`. A variable of
/// several modules is stored once, under its first path. The state of an optimizer is a module.
#[derive(Clone, Default)]
#[must_use]
pub struct RunParts<'a> {
    modules: Vec<(String, &'a dyn Module)>,
    queues: Vec<(String, AnyQueue)>,
    pub(crate) logs: BTreeMap<String, PathBuf>,
}

impl fmt::Debug for RunParts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modules: Vec<&String> = self.modules.iter().map(|(name, _)| name).collect();
        let queues: Vec<&String> = self.queues.iter().map(|(name, _)| name).collect();
        f.debug_struct("RunParts")
            .field("modules", &modules)
            .field("queues", &queues)
            .field("logs", &self.logs)
            .finish()
    }
}

impl<'a> RunParts<'a> {
    /// Returns no parts.
    pub fn new() -> RunParts<'a> {
        RunParts::default()
    }

    /// Adds the variables of a module. Those that it has at the time of each save are saved.
    pub fn module(mut self, name: impl Into<String>, module: &'a impl Module) -> RunParts<'a> {
        self.modules.push((name.into(), module));
        self
    }

    /// Adds the content of a queue: its elements in their order, whether it is closed, and with
    /// which error. What a resumed run removes is what the other one would have removed, also from
    /// a shuffle queue of which no call had removed elements at the save.
    ///
    /// Variables and queues are saved as they are at one moment between two calls. A call that runs
    /// then has not happened: what it has removed is saved as an element of its queue, and what it
    /// has added is not saved. So a function that advances a variable and adds an element continues
    /// with the next element. The queue of a program that resumes has the same order, capacity and
    /// elements, or that is an error.
    ///
    /// ```
    /// use anabranch::checkpoints::{Checkpoints, RunParts, StepRecord};
    /// use anabranch::prelude::*;
    /// use anabranch::{DType, Queue, TensorType};
    ///
    /// # let folder = std::env::temp_dir().join(format!("anabranch-queue-{}", std::process::id()));
    /// let numbers = Queue::<Tensor>::fifo("numbers", 10, &[TensorType::new(DType::F32, [])])?;
    /// let parts = RunParts::new().queue("numbers", &numbers);
    /// let mut checkpoints = Checkpoints::new(&folder).open()?;
    ///
    /// let session = Session::new()?;
    /// let host = session.queue(&numbers)?;
    /// host.push(1.0)?;
    /// host.push(2.0)?;
    /// checkpoints.save(&session, &parts, StepRecord::new(1))?;
    /// assert_eq!(host.pop()?.expect("the queue is open"), 1.0);
    ///
    /// let other = Session::new()?;
    /// checkpoints.resume(&other, &parts)?;
    /// assert_eq!(other.queue(&numbers)?.pop()?.expect("the queue is open"), 1.0);
    /// # drop(checkpoints);
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn queue<T: QueueElement>(mut self, name: impl Into<String>, queue: &Queue<T>) -> RunParts<'a> {
        self.queues.push((name.into(), queue.any().clone()));
        self
    }

    /// Adds a log file, to which the run appends. A checkpoint holds its length; when the run
    /// resumes, the file is cut to it, so that what the killed run has written since is not there
    /// twice. What was written must have reached the file (`flush`) before a save. The file must
    /// exist then, in the [storage](crate::CheckpointsBuilder::storage) of the checkpoints, which
    /// says how long it is, makes it durable and cuts it. If that is an object store, log files are
    /// in the local file system.
    pub fn log(mut self, name: impl Into<String>, path: impl Into<PathBuf>) -> RunParts<'a> {
        self.logs.insert(name.into(), path.into());
        self
    }

    /// Returns the variables and queues that there are now.
    pub(crate) fn state(&self) -> RunState {
        RunState { vars: self.vars(), queues: self.queues.clone() }
    }

    /// Returns all variables with their paths, each once.
    fn vars(&self) -> Vec<(String, AnyVar)> {
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        for (name, module) in &self.modules {
            for (path, var) in module.vars().into_iter().filter(|(_, var)| seen.insert(var.id())) {
                all.push((if path.is_empty() { name.clone() } else { format!("{name}.{path}") }, var));
            }
        }
        all
    }
}

/// The variables by path, each once, and the queues by name, of a program.
#[derive(Debug, Default)]
pub(crate) struct RunState {
    pub vars: Vec<(String, AnyVar)>,
    pub queues: Vec<(String, AnyQueue)>,
}

/// The entries that a program adds to one checkpoint: the number of the step, metrics and its own
/// values.
///
/// ```
/// use anabranch::checkpoints::StepRecord;
///
/// let position = (3, "shard-00003.csv".to_owned());
/// let record = StepRecord::new(1200).value("position", &position).metric("accuracy", 0.97);
/// # drop(record);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct StepRecord {
    pub(crate) step: u64,
    /// The values, as CBOR.
    values: BTreeMap<String, Result<Vec<u8>, String>>,
    pub(crate) metrics: BTreeMap<String, Metric>,
}

impl StepRecord {
    /// Returns the record of a step without values: how many steps are done.
    pub fn new(step: u64) -> StepRecord {
        StepRecord { step, values: BTreeMap::new(), metrics: BTreeMap::new() }
    }

    /// Adds a value of the program, which [`Resumed::value`](crate::Resumed::value) returns: a
    /// position in the data, the best result so far, the state of a generator of random numbers.
    /// The bits of numbers are kept, also of infinities and NaNs. If the value cannot be encoded,
    /// the save fails.
    pub fn value<T: Serialize + ?Sized>(mut self, name: impl Into<String>, value: &T) -> StepRecord {
        let mut bytes = Vec::new();
        let encoded = ciborium::into_writer(value, &mut bytes).map_err(|error| error.to_string());
        self.values.insert(name.into(), encoded.map(|()| bytes));
        self
    }

    /// Adds a number by which [the best checkpoints](crate::CheckpointsBuilder::keep_best) are
    /// kept.
    pub fn metric(mut self, name: impl Into<String>, value: f64) -> StepRecord {
        self.metrics.insert(name.into(), Metric(value));
        self
    }

    /// Returns the names of the values.
    pub fn value_names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Returns the encoded values.
    pub(crate) fn values(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        let values = self.values.iter().map(|(name, value)| match value {
            _ if name == METADATA => {
                let message = format!("a value is called `{METADATA}`, which files do not allow");
                Err(Diagnostic::new(message).help("give it another name"))
            }
            Ok(bytes) => Ok((name.clone(), bytes.clone())),
            Err(why) => Err(Diagnostic::new(format!("the value {} cannot be encoded: {why}", shown(name)))),
        });
        values.collect()
    }
}
