//! Epochs whose end is found only when the next batch is asked for, because their length is not
//! known, and what is compared when a run is continued.

use crate::program::log_lines;
use crate::support::TestFolder;
use anabranch::checkpoints::Goal;
use anabranch::data::Dataset;
use anabranch::train::{
    BestStep, EarlyStopping, Evaluation, Every, FitEnd, FitOutcome, Resume, ShowProgress, StepMetrics, Trainer,
};
use anabranch::{Diagnostic, ObjectFolder, Session};
use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// Six elements in each epoch, which the dataset does not know.
fn six() -> Dataset<i64> {
    Dataset::range(0..6).filter(|_| true)
}

fn quiet(session: &Session) -> Trainer<'_> {
    Trainer::new(session).progress(ShowProgress::Hidden)
}

/// Makes steps whose loss is `10 - step`, up to the end.
fn fit(trainer: Trainer<'_>, data: &Dataset<i64>) -> Result<FitOutcome, Diagnostic> {
    trainer.fit(data, |at, _| Ok(10.0 - at.step() as f64))
}

/// An evaluation whose values are given, one by one.
fn values<'a>(data: &'a Dataset<i64>, values: &'a [f64], n: &'a Cell<usize>) -> Evaluation<'a> {
    Evaluation::new(data, |_| Ok(values[n.replace(n.get() + 1)]))
}

#[test]
fn a_run_that_ended_with_an_epoch_goes_on_as_a_whole_one() -> Result<(), Diagnostic> {
    let data = six();
    for log_every in [3, 4, 100] {
        let (whole, parts) = (TestFolder::new("late_whole"), TestFolder::new("late_parts"));
        let run = |folder: &TestFolder, steps| {
            let session = Session::new()?;
            let trainer = quiet(&session).folder(folder.path("")).log_every(log_every);
            fit(trainer.monitor("loss", Goal::Min).steps(steps), &data)
        };
        let expected = run(&whole, 12)?;
        assert_eq!(run(&parts, 6)?.metrics.len(), 1);
        assert_eq!(run(&parts, 12)?, expected, "logs after each {log_every} steps");
        assert_eq!(run(&parts, 12)?, expected, "started again");
        assert_eq!(log_lines(&parts.path("")), log_lines(&whole.path("")), "logs after each {log_every} steps");
    }
    Ok(())
}

#[test]
fn an_evaluation_after_the_last_step_of_an_epoch_runs_once() -> Result<(), Diagnostic> {
    let (session, folder, one) = (Session::new()?, TestFolder::new("late_once"), Dataset::range(0..1));
    // The end of an epoch is behind an element that cannot be made.
    let data = Dataset::range(0..4).try_map(|i| if i < 3 { Ok(i) } else { Err(Diagnostic::new("broken")) });
    let n = Cell::new(0);
    let evaluation = values(&one, &[1.0, 2.0, 3.0], &n);
    let trainer = quiet(&session).folder(folder.path("")).validate(Every::Steps(3), evaluation);
    let trainer = trainer.monitor("val/loss", Goal::Min).stop_early(EarlyStopping::new().patience(2)).epochs(3);
    let mut run = trainer.log_every(3).start(&data)?;
    loop {
        match run.next_batch() {
            Ok(Some(i)) => run.finish_step(i as f64)?,
            Ok(None) => break,
            Err(error) => assert_eq!(error.message, "broken"),
        }
    }
    let outcome = run.finish()?;
    assert_eq!((n.get(), outcome.end, outcome.step), (3, FitEnd::EarlyStopped, 9));
    assert_eq!(log_lines(&folder.path("")).len(), 3, "{:?}", log_lines(&folder.path("")));
    assert_eq!(outcome.metrics, [("loss".to_owned(), 1.0), ("val/loss".to_owned(), 3.0)]);
    Ok(())
}

#[test]
fn the_best_checkpoint_is_kept_if_it_was_saved_before_its_comparison() -> Result<(), Diagnostic> {
    let (folder, data, one) = (TestFolder::new("late_best"), six(), Dataset::range(0..1));
    let (losses, n) = ([1.0, 2.0, 3.0, 4.0], Cell::new(0));
    let mut last = None;
    for steps in [6, 24] {
        let session = Session::new()?;
        let trainer = quiet(&session).folder(folder.path("")).validate(Every::Epochs(1), values(&one, &losses, &n));
        last = Some(fit(trainer.monitor("val/loss", Goal::Min).keep_latest(1).restore_best().steps(steps), &data)?);
    }
    // The run of 24 steps ends without the end of its last epoch.
    assert_eq!((n.get(), last.and_then(|last| last.best)), (3, Some(BestStep { step: 6, value: 1.0 })));
    Ok(())
}

#[test]
fn values_of_another_metric_are_not_compared() -> Result<(), Diagnostic> {
    let (folder, data) = (TestFolder::new("late_metric"), Dataset::range(0..6));
    let run = |metric: &str, goal, epochs| {
        let session = Session::new()?;
        let trainer = quiet(&session).folder(folder.path("")).monitor(metric, goal).restore_best();
        let trainer = trainer.stop_early(EarlyStopping::new().patience(1)).epochs(epochs);
        trainer.fit(&data, |at, _| Ok(StepMetrics::new().with("loss", 2.5).with("accuracy", at.epoch() as f64 / 8.0)))
    };
    assert_eq!(run("loss", Goal::Min, 1)?.best, Some(BestStep { step: 6, value: 2.5 }));
    let outcome = run("accuracy", Goal::Max, 4)?;
    assert_eq!((outcome.end, outcome.step), (FitEnd::Completed, 24));
    assert_eq!(outcome.best, Some(BestStep { step: 24, value: 0.375 }));
    // The same metric goes on.
    assert_eq!(run("accuracy", Goal::Max, 5)?.best, Some(BestStep { step: 30, value: 0.5 }));
    Ok(())
}

#[test]
fn a_run_begins_with_another_in_the_storage_of_its_settings() -> Result<(), Diagnostic> {
    // Paths in a store are relative. The logs are there, too, but on the disk.
    let folder = PathBuf::from(format!("target/late_storage-{}", std::process::id()));
    let store = Arc::new(ObjectFolder::open("memory:///runs")?);
    let (session, data) = (Session::new()?, Dataset::range(0..20));
    let run = |name: &str| quiet(&session).folder(folder.join(name)).checkpoints(|c| c.storage(store.clone()));
    fit(run("first").steps(4), &data.filter(|_| true))?;
    let mut begun = Vec::new();
    run("second").resume(Resume::From(folder.join("first"))).steps(6).fit(&data.filter(|_| true), |at, _| {
        begun.push(at.step());
        Ok(())
    })?;
    assert_eq!(begun, [4, 5]);
    fs::remove_dir_all(folder).expect("the logs are there");
    Ok(())
}

#[test]
fn a_step_of_no_weight_may_have_any_loss() -> Result<(), Diagnostic> {
    let (session, data) = (Session::new()?, Dataset::range(0..2));
    let fit = |weight: f64| {
        quiet(&session).fit(&data, |at, _| match at.step() {
            0 => Ok(StepMetrics::new().with("loss", f64::NAN).weight(weight)),
            _ => Ok(StepMetrics::new().with("loss", 0.5)),
        })
    };
    assert_eq!(fit(0.0)?.metrics, [("loss".to_owned(), 0.5)]);
    assert_eq!(fit(1.0).unwrap_err().message, "the loss of step 1 is NaN");
    Ok(())
}

#[test]
fn a_metric_of_the_steps_and_the_evaluation_is_an_error() -> Result<(), Diagnostic> {
    let (session, data, one) = (Session::new()?, Dataset::range(0..2), Dataset::range(0..1));
    let n = Cell::new(0);
    let trainer = quiet(&session).validate(Every::Epochs(1), values(&one, &[1.0], &n));
    let error = trainer.fit(&data, |_, _| Ok(StepMetrics::new().with("val/loss", 1.0))).unwrap_err();
    assert_eq!(error.message, "the steps and the evaluation both have a metric `val/loss`");
    Ok(())
}
