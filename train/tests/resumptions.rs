//! A run that ends at any step and is started again is the run that did not end.

use crate::program::{STEPS, check_equal, results, train};
use crate::support::TestFolder;
use anabranch::Diagnostic;
use anabranch::checkpoints::{Checkpoints, CheckpointsBuilder, Goal, WeightFile, WhenBusy};
use anabranch::train::{BestStep, Every, FitEnd, Resume, StepContext, Trainer};
use std::fs;

/// Returns a function that ends a program before the step that comes after `n`.
fn end_before(n: u64) -> impl FnMut(&mut StepContext) -> Result<(), Diagnostic> {
    move |at| if at.step() == n { Err(Diagnostic::new("ended by the test")) } else { Ok(()) }
}

#[test]
fn a_run_that_ends_at_any_step_and_is_resumed_has_the_bits_of_a_whole_one() -> Result<(), Diagnostic> {
    let whole = TestFolder::new("whole");
    let outcome = train(&whole.path(""), |trainer| trainer, |_| Ok(()))?;
    assert_eq!((outcome.end, outcome.step, outcome.epochs), (FitEnd::Completed, STEPS, 3));
    let expected = results(&whole.path(""))?;
    // There were four updates, and the rate has fallen.
    let last = WeightFile::new(whole.path("final.safetensors"));
    assert_eq!(last.tensor::<i64>("average.count")?, 4);
    assert!(last.tensor::<f32>("rate.rate")?.item() < 0.05 && last.tensor::<f32>("replayed")?.item() > 0.0);
    // Lines after 5, 6, 10, 12, 15 and 18 steps; at the ends of epochs with the evaluation.
    assert_eq!(expected.lines.len(), 6, "{:?}", expected.lines);
    assert!(expected.lines[1].starts_with("{\"step\":6,\"epoch\":0,\"loss\":"), "{}", expected.lines[1]);
    assert_eq!(expected.lines.iter().filter(|line| line.contains("\"val/accuracy\":")).count(), 3);
    assert!(expected.events.len() > 20);

    for n in 0..STEPS {
        let folder = TestFolder::new("ended");
        let error = train(&folder.path(""), |trainer| trainer, end_before(n)).unwrap_err();
        assert_eq!(error.message, "ended by the test");
        // The latest checkpoint is one of every four steps, or of the end of an epoch.
        let resumed = train(&folder.path(""), |trainer| trainer, |_| Ok(()))?;
        assert_eq!(resumed, outcome);
        check_equal(&results(&folder.path(""))?, &expected, &format!("ended after {n} steps"));
    }
    Ok(())
}

#[test]
fn how_often_checkpoints_are_saved_does_not_matter() -> Result<(), Diagnostic> {
    let whole = TestFolder::new("whole_often");
    train(&whole.path(""), |trainer| trainer, |_| Ok(()))?;
    let folder = TestFolder::new("often");
    for n in [3, 3, 6, 11, 12, 17] {
        let often = train(&folder.path(""), |trainer| trainer.save_every(Every::Steps(1)), end_before(n));
        assert!(often.is_err(), "it ends before step {n}");
    }
    let skipping = |checkpoints: CheckpointsBuilder| checkpoints.when_busy(WhenBusy::Skip);
    train(&folder.path(""), |trainer| trainer.save_every(Every::Steps(1)).checkpoints(skipping), |_| Ok(()))?;
    check_equal(&results(&folder.path(""))?, &results(&whole.path(""))?, "saved after each step");
    Ok(())
}

#[test]
fn a_run_that_is_complete_does_nothing_when_it_is_started_again() -> Result<(), Diagnostic> {
    let folder = TestFolder::new("complete");
    let first = train(&folder.path(""), |trainer| trainer, |_| Ok(()))?;
    let again = train(&folder.path(""), |trainer| trainer, |_| panic!("no step is left"))?;
    assert_eq!(again, first);
    // With more epochs it goes on.
    let more = train(&folder.path(""), |trainer| trainer.epochs(4), |_| Ok(()))?;
    assert_eq!((more.step, more.epochs), (24, 4));
    Ok(())
}

#[test]
fn the_best_step_is_kept_and_restored() -> Result<(), Diagnostic> {
    let folder = TestFolder::new("best");
    // The largest loss is that of the first epoch.
    let outcome = train(&folder.path(""), |trainer| trainer.monitor("val/loss", Goal::Max).restore_best(), |_| Ok(()))?;
    let BestStep { step, value } = outcome.best.expect("there is a monitored metric");
    let logged = results(&folder.path(""))?.lines;
    let of_best = logged.iter().find(|line| line.starts_with(&format!("{{\"step\":{step},"))).expect("it is logged");
    assert!(of_best.contains(&format!("\"val/loss\":{value}")), "{of_best}");
    let largest =
        logged.iter().filter_map(|line| line.split_once("\"val/loss\":")?.1.split([',', '}']).next()?.parse().ok());
    assert_eq!(largest.fold(f64::MIN, f64::max), value);
    assert!(step < STEPS, "training lowers the loss");
    let steps = Checkpoints::new(folder.path("checkpoints")).open()?.steps();
    assert!(steps.contains(&step) && steps.contains(&STEPS), "{steps:?}");
    // The variables are those of the best step, not of the last.
    let whole = TestFolder::new("not_restored");
    train(&whole.path(""), |trainer| trainer.monitor("val/loss", Goal::Max), |_| Ok(()))?;
    let read = |folder: &TestFolder| fs::read(folder.path("final.safetensors")).expect("the program has ended");
    assert!(read(&folder) != read(&whole));
    Ok(())
}

#[test]
fn a_folder_with_another_run_is_refused() -> Result<(), Diagnostic> {
    let folder = TestFolder::new("refused");
    let path = folder.path("run");
    train(&path, |trainer| trainer, |_| Ok(()))?;
    let message = |change: for<'a> fn(Trainer<'a>) -> Trainer<'a>| {
        train(&path, change, |_| panic!("no step is made")).unwrap_err()
    };
    let error = message(|trainer| trainer.resume(Resume::Never));
    assert!(error.message.starts_with("there is a run in ") && error.loc().is_some(), "{error}");
    let error = message(|trainer| trainer.settings(&("Adam", 0.5)));
    assert!(error.to_string().contains("[\"Adam\",0.02] there, [\"Adam\",0.5] here"), "{error}");

    // Another process has it, or here: another run of this process.
    let held = Checkpoints::new(path.join("checkpoints")).open()?;
    let error = message(|trainer| trainer);
    assert!(error.message.starts_with("another writer has the checkpoints"), "{error}");
    // At the line that trains, not at one of the library.
    assert!(error.loc().is_some_and(|loc| loc.file.ends_with("tests/program.rs")), "{error}");
    drop(held);

    fs::remove_dir_all(path.join("checkpoints")).expect("they are there");
    let error = message(|trainer| trainer);
    assert!(error.message.ends_with("has logs of a run without checkpoints"), "{error}");
    Ok(())
}

#[test]
fn a_run_can_begin_with_the_checkpoint_of_another() -> Result<(), Diagnostic> {
    let (first, second) = (TestFolder::new("begun_first"), TestFolder::new("begun_second"));
    train(&first.path(""), |trainer| trainer.steps(8), |_| Ok(()))?;
    let before = results(&first.path(""))?;
    let from = first.path("");
    let mut steps = Vec::new();
    let begin = |folder: &TestFolder, n: u64, steps: &mut Vec<u64>| {
        let from = from.clone();
        train(
            &folder.path(""),
            |trainer| trainer.resume(Resume::From(from)),
            |at| {
                steps.push(at.step());
                if at.step() == n { Err(Diagnostic::new("ended by the test")) } else { Ok(()) }
            },
        )
    };
    begin(&second, 13, &mut steps).unwrap_err();
    // Started again, it continues its own run.
    begin(&second, STEPS, &mut steps)?;
    let expected: Vec<u64> = (8..=13).chain(12..STEPS).collect();
    assert_eq!(steps, expected);
    check_equal(&results(&first.path(""))?, &before, "the other run stays as it is");
    let whole = TestFolder::new("begun_whole");
    train(&whole.path(""), |trainer| trainer, |_| Ok(()))?;
    let read = |folder: &TestFolder| fs::read(folder.path("final.safetensors")).expect("the program has ended");
    assert!(read(&second) == read(&whole), "the weights are those of one run");
    Ok(())
}
