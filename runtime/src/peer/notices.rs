//! Notices of a peer to its operator, who cannot make it wait.
//!
//! Strangers cause notices: each connection that is refused is one. So the net only queues them. A
//! thread of its own passes them to the operator, at most [`PER_SECOND`] each second. What finds
//! the queue full is counted, and the next notice says how many were left out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// The notices that may wait.
const MAX_WAITING: usize = 64;

/// The most notices that are passed on in a second.
const PER_SECOND: u32 = 50;

type Receive = Box<dyn Fn(&str) + Send + Sync>;

/// The notices of a peer. Their thread ends when this is dropped.
pub(super) struct Notices {
    receive: Arc<Receive>,
    queue: OnceLock<SyncSender<String>>,
    left_out: Arc<AtomicU64>,
}

impl Notices {
    pub(super) fn new(receive: Receive) -> Notices {
        Notices { receive: Arc::new(receive), queue: OnceLock::new(), left_out: Arc::default() }
    }

    /// Passes a notice on, or counts it as left out. Never waits.
    pub(super) fn send(&self, notice: String) {
        let queue = self.queue.get_or_init(|| {
            let (queue, waiting) = sync_channel(MAX_WAITING);
            let (receive, left_out) = (self.receive.clone(), self.left_out.clone());
            // Without the thread, all notices are left out.
            let pass_on = move || pass_on(&waiting, &receive, &left_out);
            let _ = thread::Builder::new().name("anabranch-notices".to_owned()).spawn(pass_on);
            queue
        });
        if queue.try_send(notice).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn pass_on(waiting: &Receiver<String>, receive: &Receive, left_out: &AtomicU64) {
    for notice in waiting {
        match left_out.swap(0, Ordering::Relaxed) {
            0 => {}
            n => receive(&format!("{n} events were left out")),
        }
        receive(&notice);
        thread::sleep(Duration::from_secs(1) / PER_SECOND);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    #[test]
    fn a_receiver_that_waits_makes_nobody_wait_and_hears_how_many_were_left_out() {
        let (seen, notices) = channel();
        let (release, released) = channel::<()>();
        let released = Mutex::new(released);
        let receive = move |notice: &str| {
            seen.send(notice.to_owned()).expect("the test waits");
            let _ = released.lock().expect("no other thread has it").recv();
        };
        let sender = Notices::new(Box::new(receive));
        sender.send("first".to_owned());
        assert_eq!(notices.recv().as_deref(), Ok("first"));
        // The receiver has not returned, so the queue fills.
        (0..MAX_WAITING + 3).for_each(|i| sender.send(i.to_string()));
        drop(release);
        assert_eq!(notices.recv().as_deref(), Ok("3 events were left out"));
        (0..MAX_WAITING).for_each(|i| assert_eq!(notices.recv(), Ok(i.to_string())));
    }
}
