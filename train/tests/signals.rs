//! Runs that end on Ctrl-C and SIGTERM, in processes of their own.

use crate::program::{check_equal, results, train};
use crate::support::TestFolder;
use crate::victims::{FOLDER, MARK, Victim};
use anabranch::Diagnostic;
use anabranch::train::{FitEnd, StopSignal};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The test that is the program.
const PROGRAM: &str = "signals::trains_until_a_signal_comes";

#[test]
#[ignore = "not a test: the program that other tests send signals to"]
fn trains_until_a_signal_comes() -> Result<(), Diagnostic> {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return Ok(()) };
    // Waits in a step, and then behind the run, until the test writes to the input, and if it says
    // so until a signal has arrived: the system may deliver it later than the input.
    let arrived = Arc::new(AtomicBool::new(false));
    let wait = || {
        println!("{MARK}waiting");
        let mut input = [0];
        let is_open = std::io::stdin().read_exact(&mut input).is_ok();
        while is_open && input == SIGNALED && !arrived.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    };
    let outcome = train(
        &folder,
        |trainer| trainer.stop_on_signals(),
        |at| {
            if at.step() == 9 {
                // Behind the handlers of the run, so that these have run when this one has.
                for signal in [SIGINT, SIGTERM] {
                    signal_hook::flag::register(signal, arrived.clone()).expect("a handler can be installed");
                }
                wait();
            }
            Ok(())
        },
    )?;
    println!("{MARK}{:?} after {}", outcome.end, outcome.step);
    wait();
    if let FitEnd::Signal(signal) = outcome.end {
        std::process::exit(signal.exit_code());
    }
    Ok(())
}

/// What the test writes for the program to go on, at once and when a signal has arrived.
const GO: [u8; 1] = *b"g";
const SIGNALED: [u8; 1] = *b"s";

fn send(signal: &str, victim: &Victim) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {}", victim.process.id())]).status();
    assert!(sent.is_ok_and(|status| status.success()), "the signal can be sent");
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

/// Starts the program, and waits until it is in its tenth step.
fn started(folder: &TestFolder) -> Victim {
    let mut victim = Victim::start(PROGRAM, &folder.path(""));
    assert_eq!(victim.read(1).len(), 1, "it waits in a step");
    victim
}

#[test]
fn a_signal_finishes_the_step_and_saves() -> Result<(), Diagnostic> {
    let whole = TestFolder::new("no_signal");
    train(&whole.path(""), |trainer| trainer, |_| Ok(()))?;
    for (signal, stop) in [("INT", StopSignal::Interrupt), ("TERM", StopSignal::Terminate)] {
        let folder = TestFolder::new("signal");
        let mut victim = started(&folder);
        send(signal, &victim);
        release(&mut victim, SIGNALED);
        let lines = victim.read(2);
        assert!(lines[0].ends_with(&format!("Signal({stop:?}) after 10")), "{lines:?}");
        release(&mut victim, GO);
        assert_eq!(end_of(&mut victim).code(), Some(stop.exit_code()));
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
fn a_second_signal_exits_at_once() {
    let folder = TestFolder::new("second_signal");
    let mut victim = started(&folder);
    // Two equal signals may arrive as one.
    send("INT", &victim);
    send("TERM", &victim);
    let codes = [StopSignal::Interrupt, StopSignal::Terminate].map(StopSignal::exit_code);
    assert!(end_of(&mut victim).code().is_some_and(|code| codes.contains(&code)));
}

#[test]
fn after_the_run_a_signal_does_what_it_does_without_one() {
    let folder = TestFolder::new("late_signal");
    let mut victim = started(&folder);
    release(&mut victim, GO);
    let lines = victim.read(2);
    assert!(lines[0].ends_with("Completed after 18"), "{lines:?}");
    send("TERM", &victim);
    // The number of the signal.
    assert_eq!(end_of(&mut victim).signal(), Some(15));
}
