//! The loop: its ends, its errors, and what it tells.

use crate::program::log_lines;
use crate::support::TestFolder;
use anabranch::checkpoints::{Checkpoints, Goal};
use anabranch::data::Dataset;
use anabranch::prelude::*;
use anabranch::train::{EarlyStopping, Evaluation, Every, FitEnd, ShowProgress, StepContext, StepMetrics, Trainer};
use anabranch::{Diagnostic, ErrorKind, Session};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn quiet(session: &Session) -> Trainer<'_> {
    Trainer::new(session).progress(ShowProgress::Hidden)
}

#[test]
fn a_run_ends_after_epochs_or_steps_whichever_is_first() -> Result<(), Diagnostic> {
    let (session, data) = (Session::new()?, Dataset::range(0..10).batch(4));
    let ends = |trainer: Trainer<'_>| {
        let mut batches = Vec::new();
        let outcome = trainer.fit(&data, |at, batch: Array<i64>| {
            batches.push((at.step(), at.epoch(), batch.len()));
            Ok(())
        });
        outcome.map(|outcome| (outcome.end, outcome.step, outcome.epochs, batches))
    };
    let one = vec![(0, 0, 4), (1, 0, 4), (2, 0, 2)];
    assert_eq!(ends(quiet(&session))?, (FitEnd::Completed, 3, 1, one.clone()));
    assert_eq!(ends(quiet(&session).steps(4))?.1, 4);
    assert_eq!(ends(quiet(&session).epochs(2).steps(4))?.2, 1);
    assert_eq!(ends(quiet(&session).epochs(2).steps(40))?.1, 6);
    assert_eq!(ends(quiet(&session).epochs(0))?.1, 0);
    assert_eq!(ends(quiet(&session).epochs(2))?.3[..3], one);
    Ok(())
}

/// Returns a source of the numbers from 0 on, `n` in each pass, and how many were taken from it.
fn counted(n: usize) -> (Dataset<usize>, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let count = taken.clone();
    let (next, end) = (AtomicUsize::new(0), n);
    let receive = move || {
        let i = next.fetch_add(1, Ordering::Relaxed);
        let is_end = i % (end + 1) == end;
        count.fetch_add(usize::from(!is_end), Ordering::Relaxed);
        Ok((!is_end).then_some(i - i / (end + 1)))
    };
    (Dataset::from_channel("numbers", receive), taken)
}

#[test]
fn a_run_that_ends_takes_nothing_more() -> Result<(), Diagnostic> {
    let session = Session::new()?;
    let train = |trainer: Trainer<'_>, data: &Dataset<usize>| {
        let mut seen = Vec::new();
        let outcome = trainer.fit(data, |_, i| {
            seen.push(i);
            Ok(StepMetrics::default())
        })?;
        Ok::<_, Diagnostic>((seen, outcome.epochs))
    };
    let (data, taken) = counted(5);
    assert_eq!(train(quiet(&session).epochs(1), &data.prefetch(1, 1))?, (vec![0, 1, 2, 3, 4], 1));
    assert_eq!(taken.load(Ordering::Relaxed), 5);
    let (data, taken) = counted(5);
    assert_eq!(train(quiet(&session).steps(7), &data)?, (vec![0, 1, 2, 3, 4, 5, 6], 1));
    assert_eq!(taken.load(Ordering::Relaxed), 7);
    Ok(())
}

#[test]
fn a_step_ends_once_for_each_batch() -> Result<(), Diagnostic> {
    let (session, data) = (Session::new()?, Dataset::range(0..6));
    let mut run = quiet(&session).start(&data)?;
    let error = run.finish_step(()).unwrap_err();
    assert!(error.message.contains("a step ends without a batch"), "{error}");
    let mut run = quiet(&session).start(&data)?;
    run.next_batch()?;
    run.finish_step(())?;
    let error = run.finish_step(()).unwrap_err();
    assert!(error.message.contains("a step ends without a batch"), "{error}");
    assert_eq!(error.loc().map(|loc| loc.line), Some(line!() - 2));
    Ok(())
}

#[test]
fn an_epoch_ends_behind_a_broken_element() -> Result<(), Diagnostic> {
    let session = Session::new()?;
    let data = Dataset::range(0..4).try_map(|i| if i < 2 { Ok(i) } else { Err(Diagnostic::new("broken")) });
    let folder = TestFolder::new("broken_last");
    let evaluated = Cell::new(0);
    let held_out = Dataset::range(0..1);
    let evaluation = Evaluation::new(&held_out, |_| {
        evaluated.set(evaluated.get() + 1);
        Ok(1.0)
    });
    let mut seen = Vec::new();
    let trainer = quiet(&session).folder(folder.path("")).epochs(2).validate(Every::Epochs(1), evaluation);
    let mut run = trainer.start(&data)?;
    loop {
        match run.next_batch() {
            Ok(Some(i)) => {
                seen.push(i.to_string());
                run.finish_step(())?;
            }
            Ok(None) => break,
            Err(error) => seen.push(error.message),
        }
    }
    let outcome = run.finish()?;
    assert_eq!(seen, ["0", "1", "broken", "broken", "0", "1", "broken", "broken"]);
    assert_eq!((outcome.end, outcome.step, outcome.epochs, evaluated.get()), (FitEnd::Completed, 4, 2, 2));
    Ok(())
}

#[test]
fn errors_end_the_run_at_the_line_that_trains() -> Result<(), Diagnostic> {
    let session = Session::new()?;
    let empty = Dataset::new(Vec::<f32>::new()).batch(2);
    let error = quiet(&session).fit(&empty, |_, _| Ok(())).unwrap_err();
    assert_eq!(error.message, "the dataset has no elements in epoch 0");

    let broken = Dataset::range(0..6).try_map(|i| if i == 3 { Err(Diagnostic::new("a broken record")) } else { Ok(i) });
    let mut seen = Vec::new();
    let mut run = quiet(&session).start(&broken)?;
    loop {
        match run.next_batch() {
            Ok(Some(i)) => seen.push(i),
            Ok(None) => break,
            // A loop of its own may go on.
            Err(error) => {
                assert_eq!(error.message, "a broken record");
                continue;
            }
        }
        run.finish_step(())?;
    }
    assert_eq!((seen, run.finish()?.step), (vec![0, 1, 2, 4, 5], 5));
    let line = line!() + 1;
    let error = quiet(&session).fit(&broken, |_, _| Ok(())).unwrap_err();
    assert_eq!(error.message, "a broken record");
    assert!(error.loc().is_some_and(|loc| loc.file.ends_with("fits.rs") && loc.line == line), "{error}");

    let data = Dataset::range(0..6);
    let line = line!() + 1;
    let error = quiet(&session).fit(&data, |at, _| Ok(if at.step() == 2 { f32::NAN } else { 1.0 })).unwrap_err();
    assert_eq!((error.message.as_str(), error.kind), ("the loss of step 3 is NaN", ErrorKind::AssertionFailed));
    assert!(error.loc().is_some_and(|loc| loc.file.ends_with("fits.rs") && loc.line == line), "{error}");
    let outcome = quiet(&session).allow_non_finite().fit(&data, |_, _| Ok(f32::INFINITY))?;
    assert_eq!(outcome.step, 6);

    let error = quiet(&session).monitor("val/loss", Goal::Min).fit(&data, |_, _| Ok(1.0)).unwrap_err();
    assert_eq!(error.message, "step 6 has no metric `val/loss`, which is monitored");
    assert_eq!(error.help.as_deref(), Some("there are `loss`"));
    let error = quiet(&session).stop_early(EarlyStopping::new()).fit(&data, |_, _| Ok(())).unwrap_err();
    assert_eq!(error.message, "`stop_early` needs `monitor`");
    let error = quiet(&session).monitor("loss", Goal::Min).keep_best(1).fit(&data, |_, _| Ok(())).unwrap_err();
    assert_eq!(error.message, "`keep_best` needs `folder`");
    let error = quiet(&session).monitor("loss", Goal::Min).restore_best().fit(&data, |_, _| Ok(1.0)).unwrap_err();
    assert_eq!(error.message, "`restore_best` needs `folder`");
    Ok(())
}

#[test]
fn elements_left_out_because_of_errors_are_counted() -> Result<(), Diagnostic> {
    let (whole, resumed) = (TestFolder::new("skipped_whole"), TestFolder::new("skipped_resumed"));
    let broken = |i: i64| if i % 5 == 3 { Err(Diagnostic::new("a broken record")) } else { Ok(i as f32) };
    // Four elements are broken, one of them behind the last batch.
    let data = Dataset::range(0..19).try_map(broken).skip_errors().batch(3);
    let held_out = Dataset::range(0..10).try_map(broken).skip_errors();
    let fit = |folder: &TestFolder, steps| {
        let session = Session::new()?;
        let evaluation = Evaluation::new(&held_out, |_| Ok(1.0));
        let trainer = quiet(&session).folder(folder.path("")).log_every(1).validate(Every::Epochs(1), evaluation);
        trainer.epochs(2).steps(steps).fit(&data, |_, _| Ok(0.5))
    };
    let outcome = fit(&whole, 100)?;
    assert_eq!((outcome.step, outcome.skipped), (10, 8));
    let lines = log_lines(&whole.path(""));
    let skipped = |line: &String| {
        let line: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
        ["skipped", "val/skipped"].map(|name| line[name].as_f64())
    };
    let train: Vec<Option<f64>> = lines.iter().map(|line| skipped(line)[0]).collect();
    let expected =
        [None, Some(1.0), Some(2.0), Some(3.0), Some(4.0), Some(4.0), Some(5.0), Some(6.0), Some(7.0), Some(8.0)];
    assert_eq!(train, expected);
    assert_eq!(lines.iter().filter_map(|line| skipped(line)[1]).collect::<Vec<_>>(), [2.0, 2.0]);
    let events = std::fs::read(whole.path("tensorboard/events.out.tfevents.anabranch")).expect("it was written");
    assert!(events.windows(7).any(|bytes| bytes == b"skipped"));

    // In the middle of the second epoch.
    assert_eq!(fit(&resumed, 7)?.skipped, 5);
    assert_eq!(fit(&resumed, 100)?.skipped, 8);
    assert_eq!(log_lines(&resumed.path("")), lines);

    // A metric of this name stays that of the program.
    let metrics = |_: &mut StepContext, _| Ok(StepMetrics::new().with("skipped", 0.25));
    let (session, folder) = (Session::new()?, TestFolder::new("skipped_metric"));
    quiet(&session).folder(folder.path("")).fit(&data, metrics)?;
    assert!(log_lines(&folder.path("")).iter().all(|line| line.ends_with(",\"skipped\":0.25}")));
    Ok(())
}

#[test]
fn nothing_is_saved_after_a_loss_that_is_not_finite() -> Result<(), Diagnostic> {
    let (session, folder, data) = (Session::new()?, TestFolder::new("not_finite"), Dataset::range(0..100));
    let trainer = quiet(&session).folder(folder.path("")).save_every(Every::Steps(3));
    let error = trainer.fit(&data, |at, _| Ok(if at.step() < 7 { 1.0 } else { f64::NAN })).unwrap_err();
    assert!(
        error.help.as_ref().is_some_and(|help| help.ends_with("The last checkpoint is that of step 6.")),
        "{error}"
    );
    assert_eq!(Checkpoints::new(folder.path("checkpoints")).open()?.steps(), [3, 6]);

    // Nor by a loop that goes on.
    let mut run = quiet(&session).folder(folder.path("")).start(&data)?;
    while run.next_batch()?.is_some() {
        let _ = run.finish_step(f32::NAN);
    }
    assert_eq!(run.finish()?.step, 7);
    assert_eq!(Checkpoints::new(folder.path("checkpoints")).open()?.steps(), [3, 6]);
    Ok(())
}

#[test]
fn a_metric_that_does_not_improve_ends_the_run() -> Result<(), Diagnostic> {
    let (session, data) = (Session::new()?, Dataset::range(0..10));
    let losses = [5.0, 4.0, 4.5, 4.0, 3.0, 3.5, 3.0, 9.0];
    let evaluations = Cell::new(0);
    let held_out = Dataset::range(0..1);
    let evaluation = Evaluation::new(&held_out, |_| {
        evaluations.set(evaluations.get() + 1);
        Ok(losses[evaluations.get() - 1])
    });
    let trainer = quiet(&session).epochs(100).validate(Every::Steps(4), evaluation).monitor("val/loss", Goal::Min);
    let outcome = trainer.stop_early(EarlyStopping::new().patience(3)).fit(&data, |_, _| Ok(()))?;
    assert_eq!((outcome.end, outcome.step), (FitEnd::EarlyStopped, 32));
    // The later of two equal values is the best.
    let best = outcome.best.expect("there is one");
    assert_eq!((best.step, best.value), (28, 3.0));
    assert_eq!(outcome.metrics, [("val/loss".to_owned(), 9.0)]);
    Ok(())
}

#[test]
fn means_of_logs_have_the_weights_of_the_steps() -> Result<(), Diagnostic> {
    let (session, folder) = (Session::new()?, TestFolder::new("logged"));
    let data = Dataset::range(0..5).map(|i| i as f32).batch(2);
    let trainer = quiet(&session).folder(folder.path("")).epochs(2).log_every(2);
    trainer.fit(&data, |_, batch: Array<f32>| {
        let mean = batch.iter().sum::<f32>() / batch.len() as f32;
        Ok(StepMetrics::new().with("loss", mean).weight(batch.len() as f64))
    })?;
    let text = std::fs::read_to_string(folder.path("metrics.jsonl")).expect("there is a log");
    let lines: Vec<_> = text.lines().map(step_epoch_loss).collect();
    // After 2 steps, at the end of the epoch, after 4 steps, and at the end.
    assert_eq!(lines, [(2, 0, 1.5), (3, 0, 4.0), (4, 1, 0.5), (6, 1, 3.0)]);
    Ok(())
}

/// Returns the step, the epoch and the loss in a line of the log.
fn step_epoch_loss(line: &str) -> (u64, u64, f64) {
    let number = |name: &str| -> f64 {
        let (_, rest) = line.split_once(&format!("\"{name}\":")).expect("it is there");
        rest.split([',', '}']).next().and_then(|text| text.parse().ok()).expect("it is a number")
    };
    (number("step") as u64, number("epoch") as u64, number("loss"))
}

#[test]
fn values_of_the_program_are_in_checkpoints() -> Result<(), Diagnostic> {
    let (session, folder, data) = (Session::new()?, TestFolder::new("values"), Dataset::range(0..10));
    let seen = Cell::new(0_i64);
    let mut run =
        quiet(&session).folder(folder.path("")).values(|record| record.value("seen", &seen.get())).start(&data)?;
    assert!(run.resumed().is_none());
    for _ in 0..4 {
        seen.set(seen.get() + run.next_batch()?.expect("there are ten"));
        run.finish_step(())?;
    }
    assert_eq!(run.finish()?.end, FitEnd::Left);
    let mut run = quiet(&session).folder(folder.path("")).start(&data)?;
    assert_eq!(run.resumed().expect("there is a checkpoint").value::<i64>("seen")?, 6);
    assert_eq!((run.context().step(), run.next_batch()?), (4, Some(4)));
    let trainer = quiet(&session).folder(TestFolder::new("values_named").path(""));
    let error = trainer.values(|record| record.value("trainer", &1)).start(&data).map(drop).unwrap_err();
    assert_eq!(error.message, "a value of the program is called `trainer`, as the trainer's own");
    Ok(())
}
