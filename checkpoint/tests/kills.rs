//! A training program that is killed and resumed has the very weights and the log of one that was
//! not.
//!
//! The program is this test program again: [`trains_until_it_is_killed`]. It also prints a line
//! after each step.

use crate::support::{Random, TestFolder, is_slow};
use crate::victims::{FOLDER, MARK, PrintingFiles, Victim};
use anabranch::checkpoints::{Checkpoints, Goal, Restore, RunParts, StepRecord, WeightFile, WhenBusy, restore_latest};
use anabranch::nn::{Init, Linear};
use anabranch::optim::{Adam, Optimizer};
use anabranch::prelude::*;
use anabranch::random::Key;
use anabranch::{Diagnostic, Session};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The test that is the program.
const PROGRAM: &str = "kills::trains_until_it_is_killed";

const STEPS: i32 = 60;

/// A model with its optimizer.
struct Training {
    session: Session,
    model: [Linear; 2],
    adam: Adam,
    /// How many steps are done. Random numbers of a step come from it.
    done: Var<i32>,
}

impl Training {
    fn new() -> Result<Training, Diagnostic> {
        let (session, init) = (Session::new()?, Init::new(5));
        let (model, adam) = ([Linear::new(&init, 8, 16), Linear::new(&init, 16, 1)], Adam::new(0.02));
        adam.prepare(&model);
        Ok(Training { session, model, adam, done: Var::untrained("done", 0) })
    }

    fn parts(&self, folder: &Path) -> RunParts<'_> {
        let parts = RunParts::new().module("model", &self.model).module("adam", &self.adam);
        parts.module("done", &self.done).log("losses", folder.join("losses.txt"))
    }

    /// A step on new data, with dropout. Returns the loss.
    fn step(&self) -> Tensor {
        let done = self.done.get();
        let key = Key::new(9).fold_in(done);
        let [of_data, of_dropout] = [0, 1].map(|i| key.fold_in(i));
        let x = of_data.normal::<f32>([32, 8]);
        let target = x.sin().sum_keepdim(1);
        let hidden = self.model[0].forward(x).tanh().dropout(0.3, of_dropout);
        let loss = (self.model[1].forward(hidden) - target).square().mean();
        self.adam.minimize(loss, &self.model);
        self.done.set(done + 1);
        loss
    }
}

fn train(folder: &Path) -> Result<(), Diagnostic> {
    let training = Training::new()?;
    let Training { session, .. } = &training;
    let parts = training.parts(folder);
    let checkpoints = Checkpoints::new(folder.join("checkpoints")).storage(Arc::new(PrintingFiles));
    let checkpoints = checkpoints.keep_latest(2).keep_best(1, "loss", Goal::Min).when_busy(WhenBusy::Skip);
    let mut checkpoints = checkpoints.shard_size(700).open()?;
    let log = OpenOptions::new().append(true).create(true).open(folder.join("losses.txt"));
    let mut log = log.expect("the log can be opened");
    let mut best = f32::INFINITY;
    let first = match checkpoints.resume(session, &parts)? {
        Some(resumed) => {
            assert_eq!(resumed.notes, [""; 0]);
            best = resumed.value("best")?;
            resumed.step() as i32
        }
        None => {
            checkpoints.save(session, &parts, StepRecord::new(0).value("best", &best))?;
            checkpoints.wait()?;
            0
        }
    };
    let step = session.function(|| training.step())?;
    for done in first + 1..=STEPS {
        let loss = step.call(())?.item();
        best = best.min(loss);
        writeln!(log, "{done} {:08x} {:08x}", loss.to_bits(), best.to_bits()).expect("the log can be written");
        println!("{MARK}step {done}");
        let record = StepRecord::new(done as u64).value("best", &best).metric("loss", loss.into());
        checkpoints.save(session, &parts, record)?;
    }
    checkpoints.wait()?;
    WeightFile::new(folder.join("final.safetensors")).save(session, &(&training.model, &training.adam))?;
    println!("{MARK}end");
    Ok(())
}

#[test]
#[ignore = "not a test: the program that another test kills"]
fn trains_until_it_is_killed() -> Result<(), Diagnostic> {
    let Some(folder) = std::env::var_os(FOLDER) else { return Ok(()) };
    train(&PathBuf::from(folder))
}

/// Returns the bytes of the final weights and of the log.
fn results(folder: &Path) -> (Vec<u8>, Vec<u8>) {
    let read = |name: &str| fs::read(folder.join(name)).expect("the program has ended");
    (read("final.safetensors"), read("losses.txt"))
}

#[test]
fn a_run_that_is_killed_and_resumed_has_the_bits_of_one_that_is_not() -> Result<(), Diagnostic> {
    let whole = TestFolder::new("not_killed");
    let lines = Victim::start(PROGRAM, &whole.path("")).read(usize::MAX);
    assert!(lines.last().is_some_and(|last| last.ends_with("end")), "{lines:?}");
    let expected = results(&whole.path(""));

    let mut random = Random::new(6);
    let mut kills = 0;
    let n = if is_slow() { 200 } else { 8 };
    let training = Training::new()?;
    while kills < n {
        let killed = TestFolder::new("killed");
        let folder = killed.path("");
        // The last process is not killed.
        for _ in 0..20.min(n - kills) {
            let mut victim = Victim::start(PROGRAM, &folder);
            let at = 1 + random.below(lines.len() as u64 / 4) as usize;
            let ended = victim.read(at).iter().any(|line| line.ends_with("end"));
            drop(victim);
            kills += 1;
            // There is a checkpoint that opens, unless the first one was not complete.
            let read = restore_latest(
                folder.join("checkpoints"),
                &training.session,
                &training.parts(&folder),
                &Restore::strict(),
            )?;
            if let Some(read) = read {
                assert!(read.notes.iter().all(|note| !note.contains("passed over")), "{read}");
            }
            if ended {
                break;
            }
        }
        let rest = Victim::start(PROGRAM, &folder).read(usize::MAX);
        assert!(rest.last().is_some_and(|last| last.ends_with("end")), "{rest:?}");
        assert!(results(&folder) == expected, "after {kills} kills");
    }
    Ok(())
}
