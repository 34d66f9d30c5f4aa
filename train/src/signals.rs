//! Ctrl-C and SIGTERM, for programs that asked for them.
//!
//! The handlers are installed once per process and stay, since the system has no way to remove one
//! safely. While nothing watches, they do what the system does by default, whatever the program did
//! before the first watch.
//!
//! A handler may neither lock nor allocate: it sets flags. So a thread looks at the flags for those
//! who want calls to be cancelled.

use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use anabranch_runtime::CancelHandle;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

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

/// The state that the handlers of this process share with watches.
struct SignalState {
    /// Whether nothing watches.
    idle: Arc<AtomicBool>,
    arrived: ArrivedSignals,
    n_watches: Mutex<usize>,
}

/// Whether each signal has arrived since the first watch began.
#[derive(Clone, Default)]
struct ArrivedSignals {
    interrupt: Arc<AtomicBool>,
    terminate: Arc<AtomicBool>,
}

impl ArrivedSignals {
    fn clear(&self) {
        self.interrupt.store(false, Ordering::SeqCst);
        self.terminate.store(false, Ordering::SeqCst);
    }

    /// Returns the signal that has arrived. It is one alone, as the second ends the program.
    fn first(&self) -> Option<StopSignal> {
        let signals = [(&self.interrupt, StopSignal::Interrupt), (&self.terminate, StopSignal::Terminate)];
        signals.into_iter().find(|(arrived, _)| arrived.load(Ordering::SeqCst)).map(|(_, signal)| signal)
    }
}

impl SignalState {
    /// Installs the handlers. Actions run in the order of their registration.
    ///
    /// The second signal exits. Handlers of different signals can run in two threads at once. So
    /// each of them first says that its signal has arrived and then looks for the other: one of
    /// them sees that both have. Two equal signals whose handlers run at once count as one.
    fn install() -> io::Result<SignalState> {
        let state = SignalState {
            idle: Arc::new(AtomicBool::new(true)),
            arrived: ArrivedSignals::default(),
            n_watches: Mutex::default(),
        };
        let ArrivedSignals { interrupt, terminate } = &state.arrived;
        for (signal, this, other) in [(SIGINT, interrupt, terminate), (SIGTERM, terminate, interrupt)] {
            flag::register_conditional_default(signal, state.idle.clone())?;
            flag::register_conditional_shutdown(signal, 128 + signal, this.clone())?;
            flag::register(signal, this.clone())?;
            flag::register_conditional_shutdown(signal, 128 + signal, other.clone())?;
        }
        Ok(state)
    }
}

/// The time between two looks of the thread that cancels calls.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// A watch for Ctrl-C and SIGTERM, for a loop of your own. [`Trainer::stop_on_signals`] has one
/// itself.
///
/// While there is a watch, the first signal does not end the program but is [noted](Self::caught),
/// and [cancels calls](Self::cancel_handle) that were prepared for it. A second signal ends the
/// program at once, with the [exit code](StopSignal::exit_code) of the signal. After the last watch
/// was dropped, signals end the program, as the system does by default, also if it ignored them
/// before. If there are several watches, all of them see the same signal.
///
/// This loop takes its steps in one call, whose iterations are committed one by one. A signal ends
/// it between two of them, and the checkpoint has all that are complete:
///
/// ```
/// use anabranch::checkpoints::{Checkpoints, RunParts, StepRecord};
/// use anabranch::prelude::*;
/// use anabranch::train::SignalWatch;
/// use anabranch::{CallOptions, ErrorKind, commit_each_iteration};
///
/// #[graph]
/// fn train(done: Var<i64>, w: Var<f32>, steps: Tensor<i64>) {
///     while done.get() < steps {
///         commit_each_iteration();
///         w.set(w.get() * 0.99);
///         done.set(done.get() + 1);
///     }
/// }
///
/// # fn main() -> anabranch::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("anabranch-watch-{}", std::process::id()));
/// let (done, w) = (Var::untrained("done", 0_i64), Var::new("w", 1.0_f32));
/// let session = Session::new()?;
/// let parts = RunParts::new().module("done", &done).module("w", &w);
/// let mut checkpoints = Checkpoints::new(&folder).open()?;
/// let first = checkpoints.resume(&session, &parts)?.map_or(0, |resumed| resumed.step());
///
/// let signals = SignalWatch::start()?;
/// let options = CallOptions::new().cancelled_by(&signals.cancel_handle()?);
/// let train = session.function(|steps: Tensor<i64>| train(done.clone(), w.clone(), steps))?;
/// match train.call_with(&options, 100) {
///     // Cancelled: what its iterations have committed is there.
///     Err(error) if error.kind == ErrorKind::Cancelled && signals.caught().is_some() => {}
///     outcome => outcome?,
/// }
/// let step = session.get(&done)?.item() as u64;
/// if step > first {
///     checkpoints.save(&session, &parts, StepRecord::new(step))?;
///     checkpoints.wait()?;
/// }
/// if let Some(signal) = signals.caught() {
///     std::process::exit(signal.exit_code());
/// }
/// # assert_eq!(checkpoints.steps(), [100]);
/// # drop(checkpoints);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok(())
/// # }
/// ```
///
/// [`Trainer::stop_on_signals`]: crate::Trainer::stop_on_signals
#[must_use]
pub struct SignalWatch {
    state: &'static SignalState,
    canceller: Mutex<Option<Canceller>>,
}

impl std::fmt::Debug for SignalWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignalWatch").field("caught", &self.caught()).finish_non_exhaustive()
    }
}

impl SignalWatch {
    /// Begins to watch. The first watch of a process installs handlers. A signal that an earlier
    /// watch has seen is forgotten, unless that is still there.
    ///
    /// # Errors
    /// Fails if the system does not install the handlers.
    pub fn start() -> Result<SignalWatch> {
        static STATE: OnceLock<Result<SignalState, String>> = OnceLock::new();
        let state = STATE.get_or_init(|| SignalState::install().map_err(|error| error.to_string()));
        let state = state.as_ref().map_err(|why| {
            Diagnostic::new(format!("could not install handlers of signals: {why}"))
                .of_kind(ErrorKind::ResourceExhausted)
        })?;
        let mut n_watches = lock(&state.n_watches);
        if *n_watches == 0 {
            state.arrived.clear();
            state.idle.store(false, Ordering::SeqCst);
        }
        *n_watches += 1;
        Ok(SignalWatch { state, canceller: Mutex::default() })
    }

    /// Returns a handle that cancels the calls that have it when a signal arrives, and those that
    /// come later: [`CallOptions::cancelled_by`](anabranch_runtime::CallOptions::cancelled_by). All
    /// handles of a watch are one.
    ///
    /// # Errors
    /// Fails if the thread that watches cannot be started.
    pub fn cancel_handle(&self) -> Result<CancelHandle> {
        let mut canceller = lock(&self.canceller);
        if canceller.is_none() {
            *canceller = Some(Canceller::start(self.state.arrived.clone())?);
        }
        Ok(canceller.as_ref().expect("it was just started").handle.clone())
    }

    /// Returns the signal that asks for an end, if one has arrived.
    pub fn caught(&self) -> Option<StopSignal> {
        self.state.arrived.first()
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        drop(lock(&self.canceller).take());
        let mut n_watches = lock(&self.state.n_watches);
        *n_watches -= 1;
        if *n_watches == 0 {
            self.state.idle.store(true, Ordering::SeqCst);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that cancels calls when a signal arrives, until it is dropped.
struct Canceller {
    handle: CancelHandle,
    has_ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Canceller {
    fn start(arrived: ArrivedSignals) -> Result<Canceller> {
        let (handle, has_ended) = (CancelHandle::new(), Arc::new(AtomicBool::new(false)));
        let (cancel, ended) = (handle.clone(), has_ended.clone());
        let watch = move || {
            while !ended.load(Ordering::SeqCst) {
                if arrived.first().is_some() {
                    return cancel.cancel();
                }
                thread::park_timeout(BETWEEN_LOOKS);
            }
        };
        let thread = thread::Builder::new().name("anabranch-signals".to_owned()).spawn(watch).map_err(|error| {
            let message = format!("could not start the thread that watches signals: {error}");
            Diagnostic::new(message).of_kind(ErrorKind::ResourceExhausted)
        })?;
        Ok(Canceller { handle, has_ended, thread: Some(thread) })
    }
}

impl Drop for Canceller {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
