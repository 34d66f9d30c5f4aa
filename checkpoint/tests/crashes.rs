//! Crashes and failures of the storage at every operation: the last checkpoint that was completed
//! is found, or one after it.

use crate::simulator::{Crash, Fault, SimulatedDisk};
use crate::support::{Random, Vars, is_slow};
use anabranch::checkpoints::{
    Checkpoints, CheckpointsBuilder, FileStorage, Goal, Restore, Resumed, RunParts, StepRecord, WeightFile,
};
use anabranch::{Diagnostic, HostTensor, Session};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

const LOG: &str = "log";
pub const STEPS: u64 = 5;

/// A run: variables whose values tell the step, and a log file with a line for each step.
struct Run {
    session: Session,
    vars: Vars,
    disk: SimulatedDisk,
}

/// The elements of a variable: more than a sector.
const N: usize = 300;

pub fn values(step: u64) -> [(&'static str, HostTensor); 3] {
    let x = step as f32 + 0.25;
    [
        ("w", HostTensor::new([N], vec![x; N])),
        ("n", HostTensor::scalar(step as i64)),
        ("flags", HostTensor::new([2], vec![step.is_multiple_of(2), true])),
    ]
}

fn log_at(step: u64) -> Vec<u8> {
    (1..=step).flat_map(|step| format!("step {step}\n").into_bytes()).collect()
}

/// Two shards, of which one has one variable, and not all old checkpoints.
fn settings(disk: &SimulatedDisk) -> CheckpointsBuilder {
    let settings = Checkpoints::new("run").storage(Arc::new(disk.clone())).shard_size(1000);
    settings.keep_latest(2).keep_best(1, "loss", Goal::Min)
}

impl Run {
    fn new(disk: &SimulatedDisk) -> Run {
        let session = Session::new().expect("a session of CPUs");
        Run { session, vars: Vars::new(&values(0)), disk: disk.clone() }
    }

    fn parts(&self) -> RunParts<'_> {
        RunParts::new().module("model", &self.vars).log("log", LOG)
    }

    /// Does steps up to the last, with a checkpoint after each, and returns at the first error. A
    /// step whose checkpoint is complete is stored in `completed`.
    fn steps(&self, checkpoints: &mut Checkpoints, from: u64, completed: &mut u64) -> Result<(), Diagnostic> {
        for step in from + 1..=STEPS {
            self.vars.set(&self.session, &values(step));
            append(&self.disk, step).map_err(|error| Diagnostic::new(error.to_string()))?;
            let loss = if step == 2 { 0.0 } else { 10.0 - step as f64 };
            let record = StepRecord::new(step).value("twice", &(2 * step)).metric("loss", loss);
            checkpoints.save(&self.session, &self.parts(), record)?;
            checkpoints.wait()?;
            *completed = step;
        }
        Ok(())
    }

    /// Resumes, if there is a checkpoint, and checks everything that it holds.
    fn resume(&self, checkpoints: &mut Checkpoints) -> Result<Option<Resumed>, Diagnostic> {
        let resumed = checkpoints.resume(&self.session, &self.parts())?;
        if let Some(resumed) = &resumed {
            let step = resumed.step();
            let expected = values(step).map(|(path, value)| (path.to_owned(), value));
            assert_eq!(self.vars.values(&self.session), expected);
            assert_eq!(resumed.value::<u64>("twice")?, 2 * step);
            assert_eq!(self.disk.bytes(Path::new(LOG)), log_at(step), "{resumed}");
        }
        Ok(resumed)
    }
}

/// Adds a line to the log.
fn append(disk: &SimulatedDisk, step: u64) -> io::Result<()> {
    let path = Path::new(LOG);
    if disk.list(Path::new(""))?.iter().all(|name| name != LOG) {
        disk.create(path)?;
    }
    disk.append(path, format!("step {step}\n").as_bytes())
}

/// Opens the folder after a crash, resumes, and ends the run. Returns the step of the checkpoint
/// that was found.
fn recover(disk: &SimulatedDisk) -> Result<u64, Diagnostic> {
    let run = Run::new(disk);
    let mut checkpoints = settings(disk).open()?;
    let found = run.resume(&mut checkpoints)?;
    if let Some(found) = &found {
        assert_eq!(found.notes, [""; 0], "no checkpoint is damaged");
    }
    // Each checkpoint that is there opens, not only the latest.
    let parts = RunParts::new().module("model", &run.vars);
    for step in checkpoints.steps() {
        checkpoints.resume_step(&run.session, &parts, step, &Restore::strict())?;
    }
    let step = found.map_or(0, |found| found.step());
    if step == 0 {
        let _ = disk.remove(Path::new(LOG));
    }
    run.steps(&mut checkpoints, step, &mut { step })?;
    // What the crash left is gone. Old checkpoints are deleted after a save.
    if step < STEPS {
        assert_eq!(checkpoints.steps(), [2, 4, 5]);
    }
    let mut names = disk.list(Path::new("run")).map_err(|error| Diagnostic::new(error.to_string()))?;
    names.retain(|name| name != ".lock");
    let expected: Vec<String> = checkpoints.steps().iter().map(|step| format!("step-{step:08}")).collect();
    assert_eq!(names, expected);
    Ok(step)
}

/// Runs until the disk stops after so many operations. Returns the last completed step, and
/// whether all steps were.
fn run_until(disk: &SimulatedDisk, operations: u64) -> (u64, bool) {
    disk.stop_after(operations);
    let mut completed = 0;
    let ended = settings(disk).open().and_then(|mut checkpoints| {
        let run = Run::new(disk);
        run.steps(&mut checkpoints, 0, &mut completed)
    });
    (completed, ended.is_ok())
}

#[test]
fn a_crash_after_any_operation_loses_no_completed_checkpoint() {
    let mut random = Random::new(3);
    let (mut operations, mut cases, mut later) = (0, 0, 0);
    loop {
        let disk = SimulatedDisk::new();
        let (completed, all) = run_until(&disk, operations);
        for crash in Crash::ALL {
            for _ in 0..if is_slow() { 8 } else { 1 } {
                let after = disk.crash(crash, &mut random);
                let found = recover(&after).unwrap_or_else(|error| panic!("{operations} {crash:?}: {error}"));
                let context = format!("after {operations} operations, {crash:?}: found {found}, completed {completed}");
                assert!(found == completed || found == completed + 1, "{context}");
                later += u64::from(found > completed);
                cases += 1;
            }
        }
        if all {
            break;
        }
        operations += 1;
    }
    assert!(operations > 100 && cases > 500 && later > 0, "{operations} operations, {cases} cases, {later} later");
}

#[test]
fn a_crash_during_recovery_loses_no_completed_checkpoint() {
    let mut random = Random::new(4);
    let total = {
        let disk = SimulatedDisk::new();
        assert!(run_until(&disk, u64::MAX - 1).1);
        disk.operations()
    };
    let n = if is_slow() { 4000 } else { 300 };
    for case in 0..n {
        let disk = SimulatedDisk::new();
        let (completed, _) = run_until(&disk, random.below(total));
        let pick = |random: &mut Random| Crash::ALL[random.below(5) as usize];
        let mut disk = disk.crash(pick(&mut random), &mut random);
        let mut found = completed;
        // Kills of the recovery, each at an operation that comes soon.
        for _ in 0..3 {
            disk.stop_after(random.below(25));
            let run = Run::new(&disk);
            if let Ok(mut checkpoints) = settings(&disk).open()
                && let Ok(resumed) = run.resume(&mut checkpoints)
            {
                let step = resumed.map_or(0, |resumed| resumed.step());
                assert!(step >= found, "case {case}: found {step} after {found}");
                found = step;
            }
            disk = disk.crash(pick(&mut random), &mut random);
        }
        let step = recover(&disk).unwrap_or_else(|error| panic!("case {case}: {error}"));
        assert!(step >= found && step <= completed + 1, "case {case}: {step}, found {found}, completed {completed}");
    }
}

#[test]
fn a_failure_of_any_operation_is_an_error_and_the_last_checkpoint_stays() {
    let total = {
        let disk = SimulatedDisk::new();
        assert!(run_until(&disk, u64::MAX - 1).1);
        disk.operations()
    };
    for error in [ErrorKind::StorageFull, ErrorKind::Other] {
        for lasting in [false, true] {
            let mut errors = 0;
            for at in 1..=total {
                let disk = SimulatedDisk::new();
                disk.fail(Fault { at, until: if lasting { u64::MAX } else { at + 1 }, error });
                let mut completed = 0;
                let run = Run::new(&disk);
                let outcome = settings(&disk).open().and_then(|mut checkpoints| {
                    let outcome = run.steps(&mut checkpoints, 0, &mut completed);
                    if outcome.is_err() && !lasting {
                        // The same process can go on.
                        let step = run.resume(&mut checkpoints)?.map_or(0, |resumed| resumed.step());
                        assert!(step >= completed && step <= completed + 1, "failure at {at}: {step}, {completed}");
                    }
                    outcome
                });
                errors += u64::from(outcome.is_err());
                if let Err(found) = &outcome
                    && error == ErrorKind::StorageFull
                    && !found.labels.is_empty()
                {
                    assert_eq!(found.kind, anabranch::ErrorKind::ResourceExhausted, "{found}");
                    assert!(found.help.as_ref().is_some_and(|help| help.contains("free some space")), "{found}");
                }
                // Without a crash, as after the program has ended.
                disk.fail(Fault { at: 0, until: 0, error });
                let found = recover(&disk).unwrap_or_else(|error| panic!("failure at {at}: {error}"));
                assert!(found >= completed && found <= completed + 1, "failure at {at}: {found}, {completed}");
            }
            // A failure to remove what a failed save has left is not reported, nor some reads.
            assert!(errors * 10 > total * 9, "{errors} errors for {total} failures");
        }
    }
}

#[test]
fn a_crash_while_a_file_of_weights_is_replaced_leaves_the_old_or_the_new_one() {
    let mut random = Random::new(5);
    let session = Session::new().expect("a session of CPUs");
    let vars = Vars::new(&values(0));
    let (mut old, mut new) = (0, 0);
    for operations in 0.. {
        let disk = SimulatedDisk::new();
        let file = WeightFile::new("w.safetensors").storage(Arc::new(disk.clone()));
        vars.set(&session, &values(1));
        file.save(&session, &vars).expect("nothing fails yet");
        disk.stop_after(disk.operations() + operations);
        vars.set(&session, &values(2));
        let saved = file.save(&session, &vars).is_ok();
        for crash in Crash::ALL {
            let after = disk.crash(crash, &mut random);
            let file = WeightFile::new("w.safetensors").storage(Arc::new(after));
            file.load(&session, &vars).unwrap_or_else(|error| panic!("{operations} {crash:?}: {error}"));
            let step = vars.values(&session)[1].1.to_f64();
            assert!(step == Some(2.0) || (step == Some(1.0) && !saved), "{operations} {crash:?}: {step:?}");
            *if step == Some(1.0) { &mut old } else { &mut new } += 1;
        }
        if saved {
            break;
        }
    }
    assert!(old > 20 && new >= 5, "{old} old, {new} new");
}
