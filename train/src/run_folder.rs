//! The folder of a run: its checkpoints and its logs.

use crate::log::{EventFile, JsonLines};
use crate::run::LoopState;
use crate::trainer::{Resume, Trainer};
use anabranch_checkpoint::{Checkpoints, Restore, Resumed, RunParts, failed};
use anabranch_dsl::{Diagnostic, Loc, Result};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The name of the state of the loop among the values of a checkpoint.
pub(crate) const STATE: &str = "trainer";

/// The open files of a run.
pub(crate) struct RunFolder {
    pub checkpoints: Checkpoints,
    pub json: JsonLines,
}

/// The folder of a run that was opened, if it has one, and what was found in it.
pub(crate) struct OpenedFolder<'a> {
    pub folder: Option<RunFolder>,
    pub events: Option<EventFile>,
    /// The modules and logs of the run.
    pub parts: RunParts<'a>,
    pub resumed: Option<(Resumed, LoopState)>,
    /// Whether the folder has no checkpoint yet.
    pub is_new: bool,
}

fn checkpoints_in(folder: &Path) -> PathBuf {
    folder.join("checkpoints")
}

impl<'a> OpenedFolder<'a> {
    /// Returns that there is no folder.
    pub fn none(parts: RunParts<'a>) -> OpenedFolder<'a> {
        OpenedFolder { folder: None, events: None, parts, resumed: None, is_new: false }
    }

    /// Opens the folder of a run, and continues the run in it if there is one.
    #[track_caller]
    pub fn open(trainer: &mut Trainer<'a>, path: &Path) -> Result<OpenedFolder<'a>> {
        let mut builder = Checkpoints::new(checkpoints_in(path)).keep_latest(trainer.keep_latest);
        if let Some((metric, goal)) = &trainer.monitor
            && trainer.keep_best > 0
        {
            builder = builder.keep_best(trainer.keep_best, metric, *goal);
        }
        if let Some(configure) = trainer.configure.take() {
            builder = configure(builder);
        }
        // From here on no other process has a run in this folder.
        let mut checkpoints = builder.clone().open()?;
        let has_checkpoints = !checkpoints.steps().is_empty();
        let (json, events) = (path.join("metrics.jsonl"), path.join("tensorboard"));
        let parts = trainer.parts.clone().log("metrics", &json).log("events", EventFile::path_in(&events));
        let has_logs = [&json, &EventFile::path_in(&events)]
            .into_iter()
            .any(|log| fs::metadata(log).is_ok_and(|log| log.len() > 0));

        if trainer.resume == Resume::Never && (has_checkpoints || has_logs) {
            let message = format!("there is a run in {} already", path.display());
            return Err(Diagnostic::new(message).help("use another folder, or `Resume::Auto` to continue the run"));
        }
        let settings = match trainer.settings.take() {
            None => None,
            Some(Ok(settings)) => Some(settings),
            Some(Err(why)) => return Err(Diagnostic::new(format!("the settings cannot be stored: {why}"))),
        };
        let settings_path = path.join("settings.json");
        if has_checkpoints {
            check_settings(&settings_path, settings.as_ref())?;
        }
        let resumed = checkpoints.resume(trainer.session, &parts)?;
        let is_new = resumed.is_none();
        if is_new && has_logs {
            let message = format!("{} has logs of a run without checkpoints", path.display());
            return Err(Diagnostic::new(message)
                .help("the first checkpoint comes before any log: its checkpoints were removed. Use another folder"));
        }
        if is_new && let Some(settings) = &settings {
            write_settings(&settings_path, settings).map_err(|error| failed("write", &settings_path, &error))?;
        }
        let resumed = match (&trainer.resume, resumed) {
            (Resume::From(other), None) => {
                let from = checkpoints_in(other);
                let others = builder.folder(&from);
                let resumed = others.restore_latest(trainer.session, &trainer.parts, &Restore::strict())?;
                let message = || Diagnostic::new(format!("{} has no checkpoint to begin with", from.display()));
                Some(resumed.ok_or_else(message)?)
            }
            (_, resumed) => resumed,
        };
        let resumed = match resumed {
            None => None,
            Some(mut resumed) => {
                let state: LoopState = resumed.value(STATE)?;
                // The best step of another run has no checkpoint here, and values of another metric
                // are not comparable.
                let is_other = state.monitors_other_than(trainer.monitor.as_ref());
                if is_other && !is_new {
                    resumed.notes.push("another metric is monitored now: the comparisons begin anew".to_owned());
                }
                let state = if is_new || is_other { state.without_comparisons() } else { state };
                Some((resumed, state))
            }
        };
        let (json, events) = (JsonLines::open(json)?, EventFile::open(events)?);
        let folder = RunFolder { checkpoints, json };
        Ok(OpenedFolder { folder: Some(folder), events: Some(events), parts, resumed, is_new })
    }
}

/// Writes the settings durably. The first checkpoint makes the folder durable.
fn write_settings(path: &Path, settings: &serde_json::Value) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(format!("{settings:#}\n").as_bytes())?;
    file.sync_all()
}

/// Fails if the settings of the run in a folder are others.
fn check_settings(path: &Path, settings: Option<&serde_json::Value>) -> Result<()> {
    let Some(settings) = settings else { return Ok(()) };
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let message = format!("the run in {} has no settings, and this one has", path.display());
            return Err(Diagnostic::new(message).help("use another folder for this run"));
        }
        text => text.map_err(|error| failed("read", path, &error))?,
    };
    let stored: serde_json::Value = serde_json::from_slice(&text)
        .map_err(|error| Diagnostic::new(format!("{} is damaged: {error}", path.display())))?;
    if stored == *settings {
        return Ok(());
    }
    let error = Diagnostic::new(format!("the run in {} has other settings", path.display()));
    let error = differences(&stored, settings).into_iter().fold(error, |error, line| error.at(Loc::UNKNOWN, line));
    Err(error.help("use another folder for this run, or the settings of the run that is there"))
}

/// Returns a line for each field that is not the same.
fn differences(stored: &serde_json::Value, settings: &serde_json::Value) -> Vec<String> {
    let (Some(old), Some(new)) = (stored.as_object(), settings.as_object()) else {
        return vec![format!("{stored} there, {settings} here")];
    };
    let mut names: Vec<&String> = old.keys().chain(new.keys().filter(|name| !old.contains_key(*name))).collect();
    names.retain(|name| old.get(*name) != new.get(*name));
    let shown = |value: Option<&serde_json::Value>| value.map_or("nothing".to_owned(), ToString::to_string);
    names
        .iter()
        .map(|name| format!("{name}: {} there, {} here", shown(old.get(*name)), shown(new.get(*name))))
        .collect()
}
