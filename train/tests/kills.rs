//! A training program that is killed and resumed has the very weights and logs of one that was not.

use crate::program::{check_equal, results, train};
use crate::support::{Random, TestFolder, is_slow};
use crate::victims::{FOLDER, MARK, PrintingFiles, Victim};
use anabranch::checkpoints::{Restore, RunParts, WhenBusy, restore_latest};
use anabranch::train::Every;
use anabranch::{Diagnostic, Session};
use std::path::PathBuf;
use std::sync::Arc;

/// The test that is the program.
const PROGRAM: &str = "kills::trains_until_it_is_killed";

#[test]
#[ignore = "not a test: the program that another test kills"]
fn trains_until_it_is_killed() -> Result<(), Diagnostic> {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return Ok(()) };
    train(
        &folder,
        |trainer| {
            trainer.save_every(Every::Steps(1)).checkpoints(|checkpoints| {
                checkpoints.storage(Arc::new(PrintingFiles)).when_busy(WhenBusy::Skip).shard_size(300)
            })
        },
        |at| {
            println!("{MARK}step {}", at.step());
            Ok(())
        },
    )?;
    println!("{MARK}end");
    Ok(())
}

#[test]
fn a_trainer_that_is_killed_and_started_again_has_the_bits_of_one_that_is_not() -> Result<(), Diagnostic> {
    let whole = TestFolder::new("not_killed");
    let lines = Victim::start(PROGRAM, &whole.path("")).read(usize::MAX);
    assert!(lines.last().is_some_and(|last| last.ends_with("end")), "{lines:?}");
    let expected = results(&whole.path(""))?;

    let (session, state) = (Session::new()?, crate::program::TrainState::new());
    let parts = RunParts::new().module("state", &state).queue("losses", &crate::program::TrainState::losses());
    let mut random = Random::new(7);
    let (mut kills, mut ends) = (0, 0);
    let n = if is_slow() { 200 } else { 8 };
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
            let read = restore_latest(folder.join("checkpoints"), &session, &parts, &Restore::strict())?;
            if let Some(read) = read {
                assert!(read.notes.iter().all(|note| !note.contains("passed over")), "{read}");
            }
            if ended {
                break;
            }
        }
        let rest = Victim::start(PROGRAM, &folder).read(usize::MAX);
        assert!(rest.last().is_some_and(|last| last.ends_with("end")), "{rest:?}");
        check_equal(&results(&folder)?, &expected, &format!("after {kills} kills"));
        ends += 1;
    }
    assert!(ends > 0);
    Ok(())
}
