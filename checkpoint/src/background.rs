//! A save on a thread of its own, and its outcome.

use crate::folder::{CheckpointFolder, PendingSave};
use crate::pace::{Pace, SaveControl};
use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Thread;
use std::time::Duration;

/// A folder of checkpoints that this process may write, as long as somebody has it.
#[derive(Debug)]
pub(crate) struct LockedFolder {
    pub folder: CheckpointFolder,
    #[expect(dead_code, reason = "a lock is only dropped")]
    lock: Box<dyn Any + Send + Sync>,
}

impl LockedFolder {
    /// Creates the folder if there is none, and locks it.
    pub fn new(mut folder: CheckpointFolder) -> Result<LockedFolder> {
        Ok(LockedFolder { lock: folder.lock()?, folder })
    }
}

/// The outcome of a save that has finished.
pub(crate) struct Finished {
    /// The old checkpoints that nobody finds any more.
    pub deleted: Vec<u64>,
    /// The first error of deleting them and others.
    pub not_deleted: Option<Diagnostic>,
}

/// A save that is being written.
pub(crate) struct SaveInFlight {
    pub step: u64,
    outcome: Receiver<Result<Finished>>,
    control: Arc<SaveControl>,
    thread: Thread,
}

/// How long to wait for a save.
#[derive(Clone, Copy)]
pub(crate) enum Patience {
    None,
    For(Duration),
    Endless,
}

impl SaveInFlight {
    /// Starts a save, whose thread works for a share of the time until somebody waits for it or it
    /// has rested for `allowed`. After it, the checkpoints that `delete` returns are deleted.
    pub fn start(
        to: Arc<LockedFolder>,
        save: PendingSave,
        (share, allowed): (f64, Duration),
        delete: impl FnOnce() -> Vec<u64> + Send + 'static,
    ) -> Result<SaveInFlight> {
        let (sender, outcome): (SyncSender<Result<Finished>>, _) = sync_channel(1);
        let (step, control) = (save.step, Arc::<SaveControl>::default());
        let pace = Pace::new(control.clone(), share, allowed);
        let work = move || {
            let finished = to.folder.write(save, &pace).map(|()| {
                let mut finished = Finished { deleted: Vec::new(), not_deleted: None };
                for step in delete() {
                    match to.folder.delete(step) {
                        Ok(()) => finished.deleted.push(step),
                        Err(error) => {
                            finished.not_deleted.get_or_insert(error);
                        }
                    }
                }
                // Also what earlier saves could not remove.
                if !finished.deleted.is_empty()
                    && let Err(error) = to.folder.sweep().and_then(|swept| swept)
                {
                    finished.not_deleted.get_or_insert(error);
                }
                finished
            });
            // Who hears of the end may drop `Checkpoints` and open the folder again at once.
            drop(to);
            let _ = sender.send(finished);
        };
        let thread = std::thread::Builder::new().name("anabranch-save".to_owned()).spawn(work);
        let thread = thread.map_err(|error| {
            Diagnostic::new(format!("could not start a thread that saves: {error}"))
                .of_kind(ErrorKind::ResourceExhausted)
        })?;
        Ok(SaveInFlight { step, outcome, control, thread: thread.thread().clone() })
    }

    /// Returns the outcome, or the save if it has not ended. It rests no more if somebody waits.
    pub fn outcome(self, patience: Patience) -> Result<Result<Finished>, SaveInFlight> {
        let lost = || {
            let message = format!("the thread that saved step {} panicked", self.step);
            Err(Diagnostic::new(message).of_kind(ErrorKind::Internal))
        };
        if !matches!(patience, Patience::None) {
            self.hurry();
        }
        let received = match patience {
            Patience::None => self.outcome.recv_timeout(Duration::ZERO),
            Patience::For(time) => self.outcome.recv_timeout(time),
            Patience::Endless => self.outcome.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(outcome) => Ok(outcome),
            Err(RecvTimeoutError::Disconnected) => Ok(lost()),
            Err(RecvTimeoutError::Timeout) => Err(self),
        }
    }

    /// Ends the save as soon as possible, without a checkpoint unless it is almost written.
    pub fn abandon(&self) {
        self.control.abandon();
        self.thread.unpark();
    }

    /// Ends the rests between pieces.
    pub fn hurry(&self) {
        self.control.hurry();
        self.thread.unpark();
    }
}
