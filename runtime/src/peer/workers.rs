//! Threads that run work of other processes.

use crate::spin::spin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};

type Job = Box<dyn FnOnce() + Send>;

/// Threads for work that may wait. There are as many as ever worked at once; idle threads wait for
/// the next job.
#[derive(Default)]
pub(super) struct Workers {
    idle: Mutex<Vec<Sender<Job>>>,
}

impl Workers {
    /// Runs a job on an idle thread, or on a new one.
    ///
    /// # Errors
    /// Fails if there is no idle thread and no thread can be created.
    pub(super) fn run(self: &Arc<Workers>, job: Job) -> std::io::Result<()> {
        let mut job = job;
        loop {
            let Some(worker) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() else { break };
            match worker.send(job) {
                Ok(()) => return Ok(()),
                Err(unsent) => job = unsent.0,
            }
        }
        let this = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("anabranch-peer".to_owned());
        thread.spawn(move || work(&this, job)).map(|_| ())
    }
}

/// Runs jobs until the workers are dropped.
fn work(workers: &Weak<Workers>, first: Job) {
    let mut job = first;
    loop {
        job();
        // Each wait has a channel of its own, whose only sender is in the list of idle threads. So
        // the wait ends when the list is dropped.
        let (sender, next) = channel();
        let Some(workers) = workers.upgrade() else { return };
        workers.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        drop(workers);
        match spin(|| next.try_recv().ok()).map_or_else(|| next.recv(), Ok) {
            Ok(received) => job = received,
            Err(_) => return,
        }
    }
}
