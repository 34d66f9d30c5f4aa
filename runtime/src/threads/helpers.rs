//! Threads that help others to compute parts.
//!
//! ```text
//! caller: open ─▶ compute parts from the first on ─▶ close: wait for helpers
//! helper: find an open job ─▶ compute parts from the last on ─▶ look for more, or sleep
//! ```
//!
//! A [`Job`] is on the stack of its caller. Invariants:
//!
//! - H1: a job that is in the list of open jobs, or has helpers, lives. The caller takes it out of
//!   the list and waits for its helpers before it returns, also if it panics ([`OpenJob`]).
//! - H2: a helper is added to a job while the list is locked and has the job. Once a helper has
//!   been taken away, it accesses the job no more.
//! - H3: each block of parts is claimed once.
//! - H4: no helper stays asleep while there is a block that nobody has claimed and the limits allow
//!   a helper for it. Whoever adds such a block or leaves a limit wakes helpers: [`Helpers::open`]
//!   and [`wake_for_freed_place`].

use super::cores::{self, ThreadOnCores};
use super::limit::{AtWork, ThreadLimit, n_threads};
use super::stop::KernelStop;
use anabranch_dsl::memory::{self, ByteGauge};
use std::any::Any;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a helper looks for more work before it sleeps, unless the environment variable
/// `ANABRANCH_SPIN` gives another number of microseconds. A thread takes tens of microseconds to
/// wake, more than many kernels take.
const SPIN: Duration = Duration::from_millis(1);

/// How long a thread looks without letting others run.
const BUSY: Duration = Duration::from_micros(10);

/// How long others run, when a thread lets them, from which on its core is taken to be shared. Then
/// the thread sleeps, and leaves the core to them.
const SHARED: Duration = Duration::from_micros(50);

/// The most blocks for each thread. The last blocks even out the threads' shares.
const BLOCKS_OF_THREAD: usize = 16;

/// Calls `part(0)` to `part(n - 1)` in any order.
pub(super) fn run(n: usize, part: &(dyn Fn(usize) + Sync)) {
    let n_threads = if n < 2 { 1 } else { n_threads() };
    if n_threads < 2 || HELPERS.n == 0 {
        return (0..n).for_each(part);
    }
    let at_work = AtWork::caller(&HELPERS.all);
    let of_block = n.div_ceil(BLOCKS_OF_THREAD * n_threads);
    let job = Job {
        part,
        n,
        of_block,
        left: AtomicU64::new(range(0, n.div_ceil(of_block) as u64)),
        n_helpers: AtomicUsize::new(0),
        limit: at_work.limit().clone(),
        stop: KernelStop::of_this_thread(),
        budget: memory::budget(),
        panic: Mutex::new(None),
    };
    {
        HELPERS.open(&job);
        let _open = OpenJob(&job);
        job.compute(ClaimEnd::First);
    }
    let panic = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

/// The parts of one kernel.
struct Job<'a> {
    part: &'a (dyn Fn(usize) + Sync),
    /// The number of parts.
    n: usize,
    of_block: usize,
    /// The [`range`] of the blocks that nobody has claimed.
    left: AtomicU64,
    n_helpers: AtomicUsize,
    limit: Option<Arc<ThreadLimit>>,
    stop: KernelStop,
    budget: Option<Arc<ByteGauge>>,
    /// The first panic of a part.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Returns a range in one number. A range of blocks is short: there are a few for each thread.
fn range(first: u64, end: u64) -> u64 {
    first << 32 | end
}

/// Returns the first element and the end of a range.
fn ends(range: u64) -> (u64, u64) {
    (range >> 32, range & u64::from(u32::MAX))
}

/// The end of the range at which a thread claims blocks. The caller and its helpers begin at
/// different ends, so that each computes, in kernel after kernel, much the same elements, which
/// are in the cache of its core.
#[derive(Clone, Copy)]
enum ClaimEnd {
    First,
    Last,
}

impl Job<'_> {
    /// Claims a block, and returns its number.
    fn claim(&self, end: ClaimEnd) -> Option<usize> {
        let less = |left| {
            let (first, past) = ends(left);
            (first < past).then(|| match end {
                ClaimEnd::First => range(first + 1, past),
                ClaimEnd::Last => range(first, past - 1),
            })
        };
        let (first, past) = ends(self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?);
        if first + 1 == past {
            HELPERS.n_open.fetch_sub(1, Ordering::Relaxed);
        }
        Some(match end {
            ClaimEnd::First => first as usize,
            ClaimEnd::Last => past as usize - 1,
        })
    }

    /// Computes parts as long as there are any. A panic is kept for the caller.
    fn compute(&self, end: ClaimEnd) {
        while let Some(block) = self.claim(end) {
            let first = block * self.of_block;
            let parts = first..self.n.min(first + self.of_block);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| parts.for_each(self.part))) {
                let mut kept = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
                match *kept {
                    None => *kept = Some(panic),
                    // Its destructor may panic, too.
                    Some(_) => std::mem::forget(panic),
                }
                drop(kept);
                self.skip_rest();
            }
        }
    }

    /// Claims all blocks that are left, which need not be computed.
    fn skip_rest(&self) {
        let (first, past) = ends(self.left.swap(range(0, 0), Ordering::Relaxed));
        if first < past {
            HELPERS.n_open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A job in the list of open jobs, which is closed when this is dropped.
struct OpenJob<'a>(&'a Job<'a>);

impl Drop for OpenJob<'_> {
    fn drop(&mut self) {
        self.0.skip_rest();
        HELPERS.close(self.0);
    }
}

/// The place of a job on the stack of its caller.
#[derive(Clone, Copy, PartialEq)]
struct JobPtr(*const Job<'static>);

// SAFETY: it stands for a `&Job`, and a job is `Sync`: its parts are, and the rest are atomics, a
// mutex and constants.
unsafe impl Send for JobPtr {}

/// The threads of the process that help.
struct Helpers {
    /// The number of threads.
    n: usize,
    /// Counts all threads at work. There are no more of them than cores, but for callers.
    all: ThreadLimit,
    spin: Duration,
    list: Mutex<JobList>,
    /// The number of jobs with blocks that nobody has claimed.
    n_open: AtomicUsize,
    /// The core that helpers are kept off, or [`ANY_CORE`].
    kept_off: AtomicUsize,
    /// Helpers sleep here.
    work: Condvar,
    /// Callers wait here for helpers that take long.
    done: Condvar,
}

#[derive(Default)]
struct JobList {
    /// Open jobs, the oldest first.
    open: Vec<JobPtr>,
    n_asleep: usize,
    n_waiting: usize,
    /// The helpers that have started, if there are so few cores that it matters on which they are.
    placed: Vec<ThreadOnCores>,
}

/// The number of cores from which on the system is trusted to find an idle one.
const MANY_CORES: usize = 8;

/// No core.
const ANY_CORE: usize = usize::MAX;

static HELPERS: LazyLock<Helpers> = LazyLock::new(Helpers::start);

/// Returns the number of threads that compute kernels at once: one for each core, unless the
/// environment variable `RAYON_NUM_THREADS` says otherwise.
pub(super) fn n_cores() -> usize {
    static N: LazyLock<usize> = LazyLock::new(|| {
        let wanted = std::env::var("RAYON_NUM_THREADS").ok().and_then(|n| n.parse().ok()).filter(|&n| n > 0);
        wanted.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
    });
    *N
}

impl Helpers {
    fn start() -> Helpers {
        let start = |i| {
            let name = format!("kernel thread {i}");
            // The new thread waits until this function has returned.
            thread::Builder::new().name(name).spawn(|| HELPERS.help()).is_ok()
        };
        let spin = std::env::var("ANABRANCH_SPIN").ok().and_then(|n| n.parse().ok()).map(Duration::from_micros);
        Helpers {
            n: (1..n_cores()).take_while(|&i| start(i)).count(),
            all: ThreadLimit::new(n_cores()),
            spin: spin.unwrap_or(SPIN),
            list: Mutex::default(),
            n_open: AtomicUsize::new(0),
            kept_off: AtomicUsize::new(ANY_CORE),
            work: Condvar::new(),
            done: Condvar::new(),
        }
    }

    fn list(&self) -> MutexGuard<'_, JobList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers a job to helpers.
    fn open(&self, job: &Job<'_>) {
        let mut list = self.list();
        list.open.push(JobPtr(std::ptr::from_ref(job).cast()));
        // See `wake_for_freed_place`.
        self.n_open.fetch_add(1, Ordering::SeqCst);
        let n_asleep = list.n_asleep;
        if n_asleep > 0 {
            self.keep_off_this_core(&list);
        }
        drop(list);
        match (job.n - 1).min(n_asleep) {
            0 => {}
            1 => self.work.notify_one(),
            _ => self.work.notify_all(),
        }
    }

    /// Keeps helpers off the core of the calling thread.
    fn keep_off_this_core(&self, list: &JobList) {
        if let Some(core) = cores::current()
            && self.kept_off.swap(core, Ordering::Relaxed) != core
        {
            list.placed.iter().for_each(|helper| helper.keep_off(core));
        }
    }

    /// Waits until no helper accesses a job any more.
    fn close(&self, job: &Job<'_>) {
        let mut list = self.list();
        let this = JobPtr(std::ptr::from_ref(job).cast());
        let at = list.open.iter().position(|&other| other == this).expect("it was opened");
        list.open.remove(at);
        drop(list);
        let is_done = || job.n_helpers.load(Ordering::Acquire) == 0;
        if look(self.spin, is_done) {
            return;
        }
        let mut list = self.list();
        list.n_waiting += 1;
        while !is_done() {
            list = self.done.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
        list.n_waiting -= 1;
    }

    /// Becomes a helper of the oldest job that has blocks left and whose limits allow it.
    fn join(&self, list: &JobList) -> Option<(JobPtr, AtWork)> {
        list.open.iter().find_map(|&ptr| {
            // SAFETY: by H1 the job lives, since it is in the list, which is locked.
            let job = unsafe { &*ptr.0 };
            let (first, past) = ends(job.left.load(Ordering::Relaxed));
            let at_work = (first < past).then(|| AtWork::helper(&HELPERS.all, &job.limit)).flatten()?;
            job.n_helpers.fetch_add(1, Ordering::Relaxed);
            Some((ptr, at_work))
        })
    }

    /// Computes parts of a job that has this helper.
    fn help_with(&self, job: JobPtr, at_work: AtWork) {
        // SAFETY: by H1 the job lives as long as it has this helper, and so does the flag, within
        // whose borrow the caller runs.
        unsafe {
            let job = &*job.0;
            job.stop.within(|| memory::within(job.budget.clone(), || job.compute(ClaimEnd::Last)));
        }
        drop(at_work);
        let list = self.list();
        // SAFETY: as above. This is the last access.
        unsafe { &*job.0 }.n_helpers.fetch_sub(1, Ordering::Release);
        if list.n_waiting > 0 {
            self.done.notify_all();
        }
    }

    /// Helps forever.
    fn help(&self) {
        if n_cores() < MANY_CORES {
            self.list().placed.extend(ThreadOnCores::this());
            self.kept_off.store(ANY_CORE, Ordering::Relaxed);
        }
        loop {
            let mut found = None;
            look(self.spin, || {
                if self.n_open.load(Ordering::Relaxed) > 0 {
                    found = self.join(&self.list());
                }
                found.is_some()
            });
            if found.is_none() {
                let mut list = self.list();
                found = self.join(&list);
                if found.is_none() {
                    list.n_asleep += 1;
                    list = self.work.wait(list).unwrap_or_else(PoisonError::into_inner);
                    list.n_asleep -= 1;
                }
            }
            if let Some((job, at_work)) = found {
                self.help_with(job, at_work);
            }
        }
    }
}

/// Wakes a helper after a thread at work has ended: there may be work for which there were enough
/// threads before.
///
/// The operations on `n_open` and on the number of threads at work are sequentially consistent. A
/// helper that goes to sleep has seen an open job and then enough threads at work. The caller of
/// this function has counted one thread less before it reads `n_open`. So either the helper has
/// seen this count, or the caller sees the open job.
pub(super) fn wake_for_freed_place() {
    if HELPERS.n_open.load(Ordering::SeqCst) == 0 {
        return;
    }
    let n_asleep = HELPERS.list().n_asleep;
    if n_asleep > 0 {
        HELPERS.work.notify_one();
    }
}

/// Returns whether all helpers sleep.
#[cfg(test)]
pub(super) fn all_sleep() -> bool {
    HELPERS.list().n_asleep == HELPERS.n
}

/// Looks for something until it is found or the time has passed. Returns whether it was found.
fn look(time: Duration, mut found: impl FnMut() -> bool) -> bool {
    if found() {
        return true;
    }
    let begin = Instant::now();
    loop {
        for _ in 0..16 {
            spin_loop();
        }
        if found() {
            return true;
        }
        let elapsed = begin.elapsed();
        if elapsed >= time {
            return false;
        }
        if elapsed >= BUSY {
            thread::yield_now();
            if begin.elapsed() - elapsed >= SHARED {
                return found();
            }
        }
    }
}
