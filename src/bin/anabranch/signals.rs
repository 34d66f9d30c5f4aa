//! Requests to end: signals of the system, and the end of standard input.

use anabranch::Diagnostic;
use std::io::Read;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A request that the program ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum EndRequest {
    /// Ctrl-C, which a terminal sends to all programs in its foreground.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// The process that holds the other end of standard input has ended.
    StdinClosed,
}

/// Returns the requests that arrive from now on.
pub(crate) fn end_requests(until_stdin_closes: bool) -> Result<Receiver<EndRequest>, Diagnostic> {
    let (to, requests) = channel();
    if until_stdin_closes {
        let to = to.clone();
        spawn("stdin", move || {
            let mut buffer = [0; 256];
            let mut input = std::io::stdin().lock();
            while input.read(&mut buffer).is_ok_and(|n| n > 0) {}
            let _ = to.send(EndRequest::StdinClosed);
        })?;
    }
    let fail = |error: std::io::Error| Diagnostic::new(format!("cannot receive signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(fail)?;
    let listening = {
        let _in_runtime = runtime.enter();
        Signals::new().map_err(fail)?
    };
    spawn("signals", move || runtime.block_on(listening.pass_on(to)))?;
    Ok(requests)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Diagnostic> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    started.map(|_| ()).map_err(|error| Diagnostic::new(format!("cannot start a thread: {error}")))
}

/// The signals that end a program. They do nothing else once this exists.
#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn pass_on(mut self, to: Sender<EndRequest>) {
        use std::future::poll_fn;
        use std::task::Poll;
        loop {
            let request = poll_fn(|context| match self.terminate.poll_recv(context) {
                Poll::Ready(_) => Poll::Ready(EndRequest::Terminate),
                Poll::Pending => self.interrupt.poll_recv(context).map(|_| EndRequest::Interrupt),
            });
            if to.send(request.await).is_err() {
                return;
            }
        }
    }
}

/// The signals that end a program.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals)
    }

    async fn pass_on(self, to: Sender<EndRequest>) {
        while tokio::signal::ctrl_c().await.is_ok() && to.send(EndRequest::Interrupt).is_ok() {}
    }
}
