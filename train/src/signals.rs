//! Ctrl-C and SIGTERM, for runs that asked for them.
//!
//! The handlers are installed once per process and stay, since the system has no way to remove one
//! safely. While no run watches, they do what the system would have done.

use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A signal that ended a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// Ctrl-C: `SIGINT`.
    Interrupt,
    /// `SIGTERM`, which schedulers and containers send before they kill a process.
    Terminate,
}

impl StopSignal {
    /// Returns the status with which a program that the signal ended exits by convention: 128 and
    /// the number of the signal.
    pub fn exit_code(self) -> i32 {
        128 + match self {
            StopSignal::Interrupt => SIGINT,
            StopSignal::Terminate => SIGTERM,
        }
    }
}

/// The state that the handlers of this process share with runs.
struct SignalState {
    /// Whether no run watches.
    idle: Arc<AtomicBool>,
    /// Whether a signal has arrived since the first run began to watch.
    stop: Arc<AtomicBool>,
    /// The number of the signal.
    number: Arc<AtomicUsize>,
    n_watches: Mutex<usize>,
}

impl SignalState {
    /// Installs the handlers. Actions run in the order of their registration.
    fn install() -> io::Result<SignalState> {
        let state = SignalState {
            idle: Arc::new(AtomicBool::new(true)),
            stop: Arc::default(),
            number: Arc::default(),
            n_watches: Mutex::default(),
        };
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_default(signal, state.idle.clone())?;
            // The second signal exits.
            flag::register_conditional_shutdown(signal, 128 + signal, state.stop.clone())?;
            flag::register_usize(signal, state.number.clone(), signal.unsigned_abs() as usize)?;
            flag::register(signal, state.stop.clone())?;
        }
        Ok(state)
    }
}

/// A run that watches for signals, until it is dropped.
pub(crate) struct SignalWatch(&'static SignalState);

impl SignalWatch {
    pub fn start() -> Result<SignalWatch> {
        static STATE: OnceLock<Result<SignalState, String>> = OnceLock::new();
        let state = STATE.get_or_init(|| SignalState::install().map_err(|error| error.to_string()));
        let state = state.as_ref().map_err(|why| {
            Diagnostic::new(format!("could not install handlers of signals: {why}"))
                .of_kind(ErrorKind::ResourceExhausted)
        })?;
        let mut n_watches = state.n_watches.lock().unwrap_or_else(PoisonError::into_inner);
        if *n_watches == 0 {
            state.stop.store(false, Ordering::SeqCst);
            state.idle.store(false, Ordering::SeqCst);
        }
        *n_watches += 1;
        Ok(SignalWatch(state))
    }

    /// Returns the signal that asks for an end, if one has arrived.
    pub fn caught(&self) -> Option<StopSignal> {
        if !self.0.stop.load(Ordering::SeqCst) {
            return None;
        }
        let is_interrupt = self.0.number.load(Ordering::SeqCst) == SIGINT.unsigned_abs() as usize;
        Some(if is_interrupt { StopSignal::Interrupt } else { StopSignal::Terminate })
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        let mut n_watches = self.0.n_watches.lock().unwrap_or_else(PoisonError::into_inner);
        *n_watches -= 1;
        if *n_watches == 0 {
            self.0.idle.store(true, Ordering::SeqCst);
        }
    }
}
