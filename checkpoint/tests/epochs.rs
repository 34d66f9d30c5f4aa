//! A program that trains in one call, whose every iteration is a step, while it is saved beside it.
//! It is killed and resumed, and has the very weights of one that was not.

use crate::support::{Random, TestFolder, is_slow};
use crate::victims::{FOLDER, MARK, PrintingFiles, Victim};
use anabranch::checkpoints::{Checkpoints, Restore, RunParts, StepRecord, WeightFile, restore_latest};
use anabranch::nn::{Init, Linear};
use anabranch::optim::{Adam, Optimizer};
use anabranch::prelude::*;
use anabranch::random::Key;
use anabranch::{
    CallOptions, CancelHandle, DType, Diagnostic, ErrorKind, Queue, Session, TensorType, commit_each_iteration,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::scope;

/// The test that is the program.
const PROGRAM: &str = "epochs::trains_in_one_call_until_it_is_killed";

const STEPS: i64 = 400;

const BATCHES_PER_SAVE: usize = 9;

/// A model, its optimizer and the number of steps, and where its data are.
#[derive(Module)]
struct State {
    model: Linear,
    adam: Adam,
    done: Var<i64>,
    /// The number of batches that were added to the queue.
    position: Var<i64>,
}

impl State {
    fn new() -> State {
        let (model, adam) = (Linear::new(&Init::new(3), 4, 1), Adam::new(0.02));
        adam.prepare(&model);
        let [done, position] = ["done", "position"].map(|name| Var::untrained(name, 0i64));
        State { model, adam, done, position }
    }

    /// Adds the next batch.
    fn produce(&self, batches: &Queue<Tensor>) {
        let position = self.position.get();
        batches.enqueue(Key::new(4).fold_in(position).normal::<f32>([8, 4]));
        self.position.set(position + 1);
    }

    /// Trains with the next batch, with dropout.
    fn step(&self, batches: &Queue<Tensor>) {
        let (x, done) = (batches.dequeue(), self.done.get());
        let y = self.model.forward(x.dropout(0.2, Key::new(5).fold_in(done)));
        let loss = (y - x.sum_keepdim(1)).square().mean();
        self.adam.minimize(loss, &self.model);
        self.done.set(done + 1);
    }
}

#[graph]
fn epoch(state: &State, batches: Queue<Tensor>, steps: Tensor<i64>) {
    for _ in range(0..steps) {
        commit_each_iteration();
        state.step(&batches);
    }
}

/// Cancels calls when it is dropped, also in a panic.
struct CancelAtEnd<'a>(&'a CancelHandle);

impl Drop for CancelAtEnd<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

fn train(folder: &Path) -> Result<(), Diagnostic> {
    let (session, state) = (Session::new()?, State::new());
    let batches = Queue::<Tensor>::fifo("batches", 5, &[TensorType::new(DType::F32, [8, 4])])?;
    let parts = RunParts::new().module("state", &state).queue("batches", &batches);
    let checkpoints = Checkpoints::new(folder.join("checkpoints")).storage(Arc::new(PrintingFiles)).keep_latest(2);
    let mut checkpoints = checkpoints.open()?;
    let mut number = checkpoints.resume(&session, &parts)?.map_or(0, |resumed| resumed.step());
    let produce = session.function(|| state.produce(&batches))?;
    let train = session.function(|steps: Tensor<i64>| epoch(&state, batches.clone(), steps))?;
    let has_ended = CancelHandle::new();
    let until_the_end = CallOptions::new().cancelled_by(&has_ended);
    scope(|scope| {
        let training = scope.spawn(|| {
            let _end = CancelAtEnd(&has_ended);
            train.call(STEPS - session.get(&state.done)?.item())
        });
        // A save is of some moment between two iterations. Which one it is, the variables say.
        let mut save = || -> Result<(), Diagnostic> {
            loop {
                (0..BATCHES_PER_SAVE).try_for_each(|_| produce.call_with(&until_the_end, ()))?;
                number += 1;
                checkpoints.save(&session, &parts, StepRecord::new(number))?;
            }
        };
        let saved = match save() {
            Err(error) if error.kind == ErrorKind::Cancelled => Ok(()),
            outcome => outcome,
        };
        // If a save has failed, the training ends, too.
        session.queue(&batches)?.close()?;
        saved.and(training.join().expect("the training does not panic"))
    })?;
    checkpoints.wait()?;
    WeightFile::new(folder.join("final.safetensors")).save(&session, &(&state.model, &state.adam, &state.done))?;
    println!("{MARK}end");
    Ok(())
}

#[test]
#[ignore = "not a test: the program that another test kills"]
fn trains_in_one_call_until_it_is_killed() -> Result<(), Diagnostic> {
    let Some(folder) = std::env::var_os(FOLDER) else { return Ok(()) };
    train(&PathBuf::from(folder))
}

/// Returns the step at which the latest checkpoint of a folder is.
fn saved_step(folder: &Path) -> Result<Option<i64>, Diagnostic> {
    let (session, state) = (Session::new()?, State::new());
    let restore = Restore::strict().keep_queues();
    let parts = RunParts::new().module("state", &state);
    let resumed = restore_latest(folder.join("checkpoints"), &session, &parts, &restore)?;
    resumed.map(|_| session.get(&state.done).map(|done| done.item())).transpose()
}

#[test]
fn a_training_in_one_call_that_is_killed_and_resumed_has_the_bits_of_one_that_is_not() -> Result<(), Diagnostic> {
    let whole = TestFolder::new("epoch_not_killed");
    let lines = Victim::start(PROGRAM, &whole.path("")).read(usize::MAX);
    assert!(lines.last().is_some_and(|last| last.ends_with("end")), "{lines:?}");
    let weights = |folder: &TestFolder| fs::read(folder.path("final.safetensors")).expect("the program has ended");
    let expected = weights(&whole);

    let mut random = Random::new(8);
    let n = if is_slow() { 200 } else { 8 };
    let (mut kills, mut kills_inside) = (0, 0);
    while kills < n {
        let killed = TestFolder::new("epoch_killed");
        for _ in 0..10.min(n - kills) {
            let mut victim = Victim::start(PROGRAM, &killed.path(""));
            victim.read(1 + random.below(lines.len() as u64 / 3) as usize);
            drop(victim);
            kills += 1;
            kills_inside += usize::from(saved_step(&killed.path(""))?.is_some_and(|done| 0 < done && done < STEPS));
        }
        let rest = Victim::start(PROGRAM, &killed.path("")).read(usize::MAX);
        assert!(rest.last().is_some_and(|last| last.ends_with("end")), "{rest:?}");
        assert!(weights(&killed) == expected, "after {kills} kills");
    }
    assert!(kills_inside > 0, "no checkpoint is from inside of the call");
    Ok(())
}
