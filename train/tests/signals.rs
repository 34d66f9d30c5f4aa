//! Runs that end on Ctrl-C and SIGTERM, in processes of their own.

use crate::program::{check_equal, log_lines, results, train};
use crate::support::TestFolder;
use crate::victims::{FOLDER, MARK, Victim};
use anabranch::checkpoints::{Checkpoints, Goal, RunParts, StepRecord};
use anabranch::data::Dataset;
use anabranch::prelude::*;
use anabranch::train::{
    Evaluation, Every, FitEnd, FitOutcome, ShowProgress, SignalWatch, StepContext, StopSignal, Trainer,
};
use anabranch::{CallOptions, Diagnostic, ErrorKind, Session, commit_each_iteration};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The tests that are programs: one waits in a step, one in an evaluation, and one in an iteration
/// of a loop that is one call.
const PROGRAM: &str = "signals::trains_until_a_signal_comes";
const EVALUATION: &str = "signals::evaluates_until_a_signal_comes";
const LOOP: &str = "signals::loops_until_a_signal_comes";

/// Waits until the test writes to the input, and if it says so until a signal has arrived: the
/// system may deliver it later than the input.
fn wait(arrived: &AtomicBool) {
    println!("{MARK}waiting");
    let mut input = [0];
    let is_open = std::io::stdin().read_exact(&mut input).is_ok();
    while is_open && input == SIGNALED && !arrived.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

/// Returns a flag that a signal sets, behind the handlers that are there, so that these have run
/// when it is set.
fn signal_flag() -> Arc<AtomicBool> {
    let arrived = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, arrived.clone()).expect("a handler can be installed");
    }
    arrived
}

fn folder_of_program() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// Says how a run ended, and exits as a program does that a signal ended.
fn exit_after(end: FitEnd, what: &str) {
    println!("{MARK}{end:?} after {what}");
    wait(&AtomicBool::new(true));
    if let FitEnd::Signal(signal) = end {
        std::process::exit(signal.exit_code());
    }
}

#[test]
#[ignore = "not a test: the program that other tests send signals to"]
fn trains_until_a_signal_comes() -> Result<(), Diagnostic> {
    let Some(folder) = folder_of_program() else { return Ok(()) };
    let before_step = |at: &mut StepContext| {
        if at.step() == 9 {
            wait(&signal_flag());
        }
        Ok(())
    };
    let outcome = train(&folder, |trainer| trainer.stop_on_signals(), before_step)?;
    exit_after(outcome.end, &outcome.step.to_string());
    Ok(())
}

/// Counts to 12 with an evaluation after each 4 steps, of which that of step 8 is the best.
/// `before_batch` returns the options of the call of the evaluation. Returns the final count.
fn count_and_evaluate(
    folder: &Path,
    mut before_batch: impl FnMut() -> CallOptions,
) -> Result<(FitOutcome, f32), Diagnostic> {
    let (data, held_out) = (Dataset::range(0..12), Dataset::range(0..5).map(|i| i as f32));
    let (session, count) = (Session::new()?, Var::new("count", 0.0_f32));
    let step = session.function(|| {
        count.set(count.get() + 1.0);
        count.get()
    })?;
    let score = session.function(|x: Tensor| (count.get() - 8.0).square() + x)?;
    let evaluation = Evaluation::new(&held_out, |x| score.call_with(&before_batch(), x));
    let trainer = Trainer::new(&session).module("count", &count).folder(folder).progress(ShowProgress::Hidden);
    let trainer = trainer.validate(Every::Steps(4), evaluation).monitor("val/loss", Goal::Min).stop_on_signals();
    let trainer = trainer.save_every(Every::Steps(1)).keep_latest(1).restore_best().log_every(3);
    let outcome = trainer.fit(&data, |_, _| step.call(()))?;
    Ok((outcome, session.get(&count)?.item()))
}

#[test]
#[ignore = "not a test: the program that other tests send signals to"]
fn evaluates_until_a_signal_comes() -> Result<(), Diagnostic> {
    let Some(folder) = folder_of_program() else { return Ok(()) };
    // In the third batch of the first evaluation, and of the second.
    let (mut n_batches, signals) = (0, SignalWatch::start()?);
    let cancel = signals.cancel_handle()?;
    let (outcome, _) = count_and_evaluate(&folder, || {
        n_batches += 1;
        if [3, 8].contains(&n_batches) {
            wait(&signal_flag());
        }
        // A signal cancels the call of the third batch, and ends the pass after the eighth.
        if n_batches != 3 {
            return CallOptions::new();
        }
        while signals.caught().is_some() && !cancel.is_cancelled() {
            std::thread::yield_now();
        }
        CallOptions::new().cancelled_by(&cancel)
    })?;
    exit_after(outcome.end, &format!("{} steps, {n_batches} batches", outcome.step));
    Ok(())
}

#[graph]
fn count_on(done: Var<i64>, twice: Var<i64>, steps: Tensor<i64>) {
    while done.get() < steps {
        commit_each_iteration();
        done.set(done.get() + 1);
        println!("{}", done.get());
        twice.set(twice.get() + 2);
    }
}

/// Counts in one call, whose iterations are steps, from the latest checkpoint to `steps`. Returns
/// how many were done before and after, and by which signal it ended.
fn count_in_one_call(
    folder: &Path,
    steps: i64,
    on_print: impl Fn(&str) + Send + Sync + 'static,
) -> Result<(u64, i64, Option<StopSignal>), Diagnostic> {
    let session = Session::builder().print_to(move |_, text| on_print(text)).build()?;
    let (done, twice) = (Var::untrained("done", 0_i64), Var::untrained("twice", 0_i64));
    let parts = RunParts::new().module("done", &done).module("twice", &twice);
    let mut checkpoints = Checkpoints::new(folder).open()?;
    let before = checkpoints.resume(&session, &parts)?.map_or(0, |resumed| resumed.step());

    let signals = SignalWatch::start()?;
    let options = CallOptions::new().cancelled_by(&signals.cancel_handle()?);
    let count = session.function(|steps: Tensor<i64>| count_on(done.clone(), twice.clone(), steps))?;
    match count.call_with(&options, steps) {
        Err(error) if error.kind == ErrorKind::Cancelled && signals.caught().is_some() => {}
        outcome => outcome?,
    }
    let after = session.get(&done)?.item();
    assert_eq!(session.get(&twice)?.item(), 2 * after, "an iteration is done whole or not at all");
    checkpoints.save(&session, &parts, StepRecord::new(after.unsigned_abs()))?;
    checkpoints.wait()?;
    Ok((before, after, signals.caught()))
}

#[test]
#[ignore = "not a test: the program that other tests send signals to"]
fn loops_until_a_signal_comes() -> Result<(), Diagnostic> {
    let Some(folder) = folder_of_program() else { return Ok(()) };
    let (_, done, signal) = count_in_one_call(&folder, i64::MAX, |text| {
        if text.trim() == "10" {
            wait(&signal_flag());
        }
    })?;
    exit_after(signal.map_or(FitEnd::Completed, FitEnd::Signal), &done.to_string());
    Ok(())
}

/// What the test writes for the program to go on, at once and when a signal has arrived.
const GO: [u8; 1] = *b"g";
const SIGNALED: [u8; 1] = *b"s";

/// Sends signals one right after the other.
fn send<const N: usize>(signals: [&str; N], victim: &Victim) {
    let commands = signals.map(|signal| format!("kill -{signal} {}", victim.process.id()));
    let sent = Command::new("sh").args(["-c", &commands.join(" && ")]).status();
    assert!(sent.is_ok_and(|status| status.success()), "signals can be sent");
}

/// Lets the program go on.
fn release(victim: &mut Victim, input: [u8; 1]) {
    let stdin = victim.process.stdin.as_mut().expect("it is open");
    stdin.write_all(&input).expect("the program reads");
}

/// Waits for the end of the program, without closing its input.
fn end_of(victim: &mut Victim) -> ExitStatus {
    let _input = victim.process.stdin.take();
    victim.process.wait().expect("it is a child of this process")
}

/// Starts a program, and waits until it waits.
fn started(program: &str, folder: &TestFolder) -> Victim {
    let mut victim = Victim::start(program, &folder.path(""));
    assert_eq!(victim.read(1).len(), 1, "it waits");
    victim
}

/// Ends a program by a signal when it waits, after it has waited `n_before` times without one.
/// Returns the line that says how it ended.
fn ended_by(signal: &str, stop: StopSignal, program: &str, folder: &TestFolder, n_before: usize) -> String {
    let mut victim = started(program, folder);
    for _ in 0..n_before {
        release(&mut victim, GO);
        assert_eq!(victim.read(1).len(), 1, "it waits again");
    }
    send([signal], &victim);
    release(&mut victim, SIGNALED);
    let lines = victim.read(2);
    assert!(lines[0].contains(&format!("Signal({stop:?}) after ")), "{lines:?}");
    release(&mut victim, GO);
    assert_eq!(end_of(&mut victim).code(), Some(stop.exit_code()));
    lines[0].split_once(" after ").expect("it says after what").1.to_owned()
}

const SIGNALS: [(&str, StopSignal); 2] = [("INT", StopSignal::Interrupt), ("TERM", StopSignal::Terminate)];

#[test]
fn a_signal_finishes_the_step_and_saves() -> Result<(), Diagnostic> {
    let whole = TestFolder::new("no_signal");
    train(&whole.path(""), |trainer| trainer, |_| Ok(()))?;
    for (signal, stop) in SIGNALS {
        let folder = TestFolder::new("signal");
        assert_eq!(ended_by(signal, stop, PROGRAM, &folder, 0), "10");
        // It goes on behind the tenth step.
        train(
            &folder.path(""),
            |trainer| trainer,
            |at| {
                assert!(at.step() >= 10);
                Ok(())
            },
        )?;
        check_equal(&results(&folder.path(""))?, &results(&whole.path(""))?, signal);
    }
    Ok(())
}

#[test]
fn a_signal_ends_an_evaluation_which_is_done_again() -> Result<(), Diagnostic> {
    let whole = TestFolder::new("no_signal_in_evaluation");
    let (expected, count) = count_and_evaluate(&whole.path(""), CallOptions::new)?;
    assert_eq!((expected.end, expected.step, count), (FitEnd::Completed, 12, 8.0));
    for (signal, stop) in SIGNALS {
        let folder = TestFolder::new("signal_in_evaluation");
        // In the evaluations of all steps, each of which is done again by the next process.
        let ends = [(0, "4 steps, 3 batches", 1), (1, "8 steps, 8 batches", 3), (1, "12 steps, 8 batches", 5)];
        for (n_before, end, n_lines) in ends {
            assert_eq!(ended_by(signal, stop, EVALUATION, &folder, n_before), end);
            let (lines, expected) = (log_lines(&folder.path("")), log_lines(&whole.path("")));
            assert_eq!(lines, expected[..n_lines], "nothing of it is logged");
        }
        let mut n_batches = 0;
        let (outcome, count) = count_and_evaluate(&folder.path(""), || {
            n_batches += 1;
            CallOptions::new()
        })?;
        assert_eq!(n_batches, 5, "only the last evaluation is left");
        assert_eq!(log_lines(&folder.path("")), log_lines(&whole.path("")));
        // The checkpoint of the best step was kept, though it was saved before its evaluation.
        assert_eq!((outcome, count), (expected.clone(), 8.0));
    }
    Ok(())
}

#[test]
fn a_signal_ends_a_loop_in_one_call_between_two_iterations() -> Result<(), Diagnostic> {
    for (signal, stop) in SIGNALS {
        let folder = TestFolder::new("signal_in_loop");
        let done: i64 = ended_by(signal, stop, LOOP, &folder, 0).parse().expect("a number");
        assert!(done >= 9, "{done}");
        let (before, after, signal) = count_in_one_call(&folder.path(""), done + 5, |_| ())?;
        assert_eq!((before as i64, after, signal), (done, done + 5, None));
    }
    Ok(())
}

#[test]
fn a_second_signal_exits_at_once() {
    for program in [PROGRAM, EVALUATION, LOOP] {
        let folder = TestFolder::new("second_signal");
        let mut victim = started(program, &folder);
        // Two equal signals may arrive as one.
        send(["INT", "TERM"], &victim);
        let codes = [StopSignal::Interrupt, StopSignal::Terminate].map(StopSignal::exit_code);
        assert!(end_of(&mut victim).code().is_some_and(|code| codes.contains(&code)), "{program}");
    }
}

#[test]
fn a_watch_without_a_signal_cancels_nothing() -> Result<(), Diagnostic> {
    let first = SignalWatch::start()?;
    let handle = first.cancel_handle()?;
    let second = SignalWatch::start()?;
    assert_eq!((first.caught(), second.caught()), (None, None));
    drop(first);
    assert!(!handle.is_cancelled());
    let session = Session::new()?;
    let double = session.function(|x: Tensor| x * 2.0)?;
    assert_eq!(double.call_with(&CallOptions::new().cancelled_by(&second.cancel_handle()?), 3.0)?, 6.0);
    Ok(())
}

#[test]
fn after_the_run_a_signal_does_what_it_does_without_one() {
    let folder = TestFolder::new("late_signal");
    let mut victim = started(PROGRAM, &folder);
    release(&mut victim, GO);
    let lines = victim.read(2);
    assert!(lines[0].ends_with("Completed after 18"), "{lines:?}");
    send(["TERM"], &victim);
    // The number of the signal.
    assert_eq!(end_of(&mut victim).signal(), Some(15));
}
