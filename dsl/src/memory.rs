//! The memory that values take: whether the system has it, and how much of it a run may take.
//!
//! [`check`] comes before a large allocation. Without it, Rust's collections abort the process if
//! there is too little memory. It tests whether the system would reserve this amount. Like the
//! allocator of a plan, it ignores memory that other processes may allocate later. So a system that
//! overcommits memory may still end the process.
//!
//! A thread that computes for others does so [`within`] a budget, a [`ByteGauge`]. Then each tensor
//! that it makes counts until the last handle is dropped, and so do the parts of stacks and lists.
//! A value is counted when it exists, so a thread may exceed the budget by the result of one
//! operation: the next [`check`] fails. Without a budget nothing is counted.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The minimum size in bytes for asking the system. The allocator has room for less, and to ask
/// takes time.
const LARGE: u128 = 1 << 26;

/// The help of errors about values that do not fit in memory.
pub const SMALLER: &str = "use smaller tensors, for example a smaller batch";

/// The error that there is no memory for this many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The number of bytes.
    pub bytes: u128,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory: {} bytes are needed", self.bytes)
    }
}

/// Counts bytes that are held, up to a limit.
#[derive(Debug)]
#[doc(hidden)]
pub struct ByteGauge {
    limit: u64,
    // The counters publish no other data, so relaxed ordering suffices.
    held: AtomicU64,
    /// One more than what was held when bytes were refused, or 0.
    refused_at: AtomicU64,
}

/// Bytes that count until this is dropped.
#[derive(Debug)]
#[doc(hidden)]
pub struct HeldBytes {
    gauge: Arc<ByteGauge>,
    bytes: AtomicU64,
}

impl ByteGauge {
    /// Creates a gauge that holds nothing.
    pub fn new(limit: u64) -> Arc<ByteGauge> {
        Arc::new(ByteGauge { limit, held: AtomicU64::new(0), refused_at: AtomicU64::new(0) })
    }

    /// Returns the most bytes that may be held.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the bytes that are held.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Counts bytes, unless there would be more than the limit.
    pub fn hold(self: &Arc<ByteGauge>, bytes: u64) -> Option<HeldBytes> {
        let within = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= self.limit);
        match self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within) {
            Ok(_) => Some(HeldBytes { gauge: self.clone(), bytes: bytes.into() }),
            Err(held) => {
                self.refuse(held);
                None
            }
        }
    }

    fn refuse(&self, held: u64) {
        self.refused_at.store(held.saturating_add(1), Ordering::Relaxed);
    }

    /// Returns the bytes that were held when bytes were refused since the last call, if any were.
    pub fn take_refusal(&self) -> Option<u64> {
        self.refused_at.swap(0, Ordering::Relaxed).checked_sub(1)
    }

    /// Returns whether bytes more would be within the limit.
    fn has_room(&self, bytes: u128) -> bool {
        let held = self.held();
        let has_room = u128::from(held).saturating_add(bytes) <= u128::from(self.limit);
        if !has_room {
            self.refuse(held);
        }
        has_room
    }
}

impl HeldBytes {
    /// Returns whether bytes are counted.
    pub(crate) fn is_counted(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > 0
    }

    /// Counts other bytes of the same budget together with these. Returns them if they are of
    /// another budget.
    pub fn join(&self, other: HeldBytes) -> Option<HeldBytes> {
        if !Arc::ptr_eq(&self.gauge, &other.gauge) {
            return Some(other);
        }
        self.bytes.fetch_add(other.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        None
    }

    /// Counts the bytes no more.
    pub(crate) fn release(&self) {
        self.gauge.held.fetch_sub(self.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.release();
    }
}

thread_local! {
    /// The budget of the run on this thread.
    static BUDGET: RefCell<Option<Arc<ByteGauge>>> = const { RefCell::new(None) };
}

/// Returns the budget of the run on this thread, if it has one.
#[doc(hidden)]
pub fn budget() -> Option<Arc<ByteGauge>> {
    BUDGET.with_borrow(Option::clone)
}

/// Runs `f`, whose tensors count in a budget, or in none.
///
/// ```
/// use anabranch::dsl::memory::{self, ByteGauge};
/// use anabranch::{DType, HostTensor};
///
/// let budget = ByteGauge::new(1 << 20);
/// let tensor = memory::within(Some(budget.clone()), || {
///     assert!(memory::check(1 << 20).is_ok());
///     let tensor = HostTensor::zeros(DType::F32, [1 << 16]);
///     assert!(memory::check(1 << 20).is_err());
///     tensor
/// });
/// assert_eq!(budget.held(), 1 << 18);
/// drop(tensor);
/// assert_eq!(budget.held(), 0);
/// assert!(memory::check(1 << 21).is_ok());
/// ```
#[doc(hidden)]
pub fn within<R>(budget: Option<Arc<ByteGauge>>, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Arc<ByteGauge>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            BUDGET.set(self.0.take());
        }
    }
    let _restore = Restore(BUDGET.replace(budget));
    f()
}

/// Checks that the system and the budget of the run have memory for this many bytes.
///
/// ```
/// use anabranch::dsl::memory;
///
/// assert!(memory::check(1 << 10).is_ok());
/// let error = memory::check(1 << 80).unwrap_err();
/// assert_eq!(error.to_string(), "out of memory: 1208925819614629174706176 bytes are needed");
/// ```
pub fn check(bytes: u128) -> Result<(), OutOfMemory> {
    // The system first, as its answer is the same for every run.
    check_system(bytes)?;
    check_budget(|| bytes)
}

/// Checks that the budget of the run, if there is one, has room for bytes.
pub(crate) fn check_budget(bytes: impl FnOnce() -> u128) -> Result<(), OutOfMemory> {
    BUDGET.with_borrow(|budget| {
        let Some(budget) = budget else { return Ok(()) };
        let bytes = bytes();
        if budget.has_room(bytes) { Ok(()) } else { Err(OutOfMemory { bytes }) }
    })
}

/// Checks that the system has memory for this many bytes, whatever the budget of the run is.
#[doc(hidden)]
pub fn check_system(bytes: u128) -> Result<(), OutOfMemory> {
    let reserve = |n: usize| Vec::<u8>::new().try_reserve_exact(n).is_ok();
    match usize::try_from(bytes) {
        _ if bytes < LARGE => Ok(()),
        Ok(n) if reserve(n) => Ok(()),
        _ => Err(OutOfMemory { bytes }),
    }
}

/// Counts bytes in the budget of the run, if there is one, before they are taken.
///
/// # Errors
/// Fails if there would be more than the budget allows.
#[doc(hidden)]
pub fn try_hold(bytes: usize) -> Result<Option<HeldBytes>, OutOfMemory> {
    BUDGET.with_borrow(|budget| {
        let Some(budget) = budget else { return Ok(None) };
        budget.hold(bytes as u64).map(Some).ok_or(OutOfMemory { bytes: bytes as u128 })
    })
}

/// Counts bytes that exist by now in the budget of the run, if there is one.
pub(crate) fn hold(bytes: impl FnOnce() -> usize) -> Option<HeldBytes> {
    BUDGET.with_borrow(|budget| {
        let gauge = budget.clone()?;
        let bytes = bytes() as u64;
        gauge.held.fetch_add(bytes, Ordering::Relaxed);
        Some(HeldBytes { gauge, bytes: bytes.into() })
    })
}

/// Returns whether bytes count in the budget of the run.
pub(crate) fn is_of_run(held: &HeldBytes) -> bool {
    BUDGET.with_borrow(|budget| budget.as_ref().is_some_and(|budget| Arc::ptr_eq(budget, &held.gauge)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp::Stack;
    use crate::{Bytes, HostTensor};

    #[test]
    fn bytes_count_as_long_as_they_are_held_in_the_budget_of_their_run() {
        let budget = ByteGauge::new(100);
        within(Some(budget.clone()), || {
            let held = try_hold(50).expect("there is room").expect("there is a budget");
            let more = try_hold(10).expect("there is room").expect("there is a budget");
            assert!(held.join(more).is_none(), "they are of one budget");
            assert_eq!((budget.held(), try_hold(41).map(drop)), (60, Err(OutOfMemory { bytes: 41 })));
            within(None, || assert!(matches!(try_hold(1 << 40), Ok(None)), "it is no part of the run"));
            assert_eq!((check(41), check(40)), (Err(OutOfMemory { bytes: 41 }), Ok(())));
            drop(held);
            assert_eq!(budget.held(), 0);
        });
        assert!(matches!(try_hold(1 << 40), Ok(None)));
    }

    #[test]
    fn tensors_count_until_their_last_handle_is_dropped_or_they_are_released() {
        let budget = ByteGauge::new(100);
        let (a, b) = within(Some(budget.clone()), || {
            let a = HostTensor::new([20], vec![0.0f32; 20]);
            let mut b = a.clone();
            assert_eq!(budget.held(), 80, "handles share the elements");
            b.buffer_mut();
            assert_eq!((budget.held(), check(0)), (160, Err(OutOfMemory { bytes: 0 })), "there are two by now");
            (a, b)
        });
        b.stop_counting();
        b.stop_counting();
        assert_eq!(budget.held(), 80);
        drop((a, b));
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn what_stacks_share_counts_once_in_each_budget() {
        let tensor = HostTensor::new([100], vec![0u8; 100]);
        let element = tensor.ty();
        let stack = || Stack::new(element.clone(), vec![tensor.clone(); 3]);
        let [a, b] = [(); 2].map(|()| ByteGauge::new(10_000));
        let in_a = within(Some(a.clone()), || [stack(), stack()]);
        let in_b = within(Some(b.clone()), stack);
        assert_eq!((a.held(), b.held()), (100 + 6 * 128, 100 + 3 * 128));
        drop(in_a);
        assert_eq!((a.held(), b.held()), (0, 100 + 3 * 128));
        drop(in_b);
        assert_eq!(b.held(), 0);
    }

    #[test]
    fn strings_count_with_all_that_they_keep() {
        let budget = ByteGauge::new(1 << 20);
        let whole = Bytes::from(vec![b'x'; 100_000]);
        let part = within(Some(budget.clone()), || HostTensor::scalar(whole.slice(..10)));
        assert!(budget.held() < 100, "it has a block of its own: {}", budget.held());
        let all = within(Some(budget.clone()), || HostTensor::scalar(whole.clone()));
        assert!((100_000..101_000).contains(&budget.held()));
        assert_eq!((&part.data::<Bytes>()[0][..], &all.data::<Bytes>()[0]), (&whole[..10], &whole));
    }
}
