//! The pool for the memory of results.
//!
//! Instructions write a result into memory that belongs to the tensor which the call returns. Large
//! allocations are slow, because the system clears each page when it is first touched. So when the
//! caller drops the tensor, its memory returns to this pool for a later result of the same type and
//! size.
//!
//! Invariants:
//!
//! - A buffer in the pool belongs to nobody else: it came from a tensor whose last handle was
//!   dropped.
//! - At most [`MAX_BUFFERS`] buffers and [`MAX_BYTES`] bytes are kept; the oldest are freed first.
//!   Small buffers are left to the allocator, which keeps them itself. For programs of other
//!   processes there is a limit for all pools together.

use crate::guests::KeptMemory;
use anabranch_dsl::{Buffer, DType, Reclaim, memory};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// The limits of the pool.
const MAX_BUFFERS: usize = 64;
const MAX_BYTES: usize = 1 << 30;
/// The number of bytes from which buffers are kept.
const LARGE: usize = 1 << 16;

/// Memory of results that were dropped.
#[derive(Debug)]
pub(crate) struct ResultPool {
    kept: Mutex<PooledBuffers>,
    memory: KeptMemory,
}

#[derive(Debug, Default)]
struct PooledBuffers {
    /// Oldest first.
    buffers: VecDeque<Buffer>,
    bytes: usize,
}

impl Default for ResultPool {
    fn default() -> ResultPool {
        ResultPool::new(false)
    }
}

impl ResultPool {
    /// Creates an empty pool: for a program of this process, or of another one.
    pub(crate) fn new(is_of_guest: bool) -> ResultPool {
        ResultPool { kept: Mutex::default(), memory: KeptMemory::new(is_of_guest) }
    }

    /// Returns memory for `n` elements with unspecified values, or `None` if the system has too
    /// little.
    pub(crate) fn take(&self, dtype: DType, n: usize) -> Option<Buffer> {
        let bytes = n.checked_mul(dtype.size())?;
        if bytes >= LARGE {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = |b: &Buffer| b.dtype() == dtype && b.len() == n;
            // Prefer the most recently returned buffer: it is the most likely to be in cache.
            if let Some(i) = kept.buffers.iter().rposition(fits) {
                kept.bytes -= bytes;
                self.memory.release(bytes as u64);
                return kept.buffers.remove(i);
            }
        }
        // The system provides zeroed memory without touching it. Check whether there is enough,
        // because allocating zeros cannot fail. Small buffers come from the allocator.
        if bytes >= LARGE {
            memory::check_system(bytes as u128).ok()?;
        }
        Some(Buffer::zeros(dtype, n))
    }
}

impl Reclaim for ResultPool {
    fn reclaim(&self, memory: Buffer) {
        let bytes = n_bytes(&memory);
        if !(LARGE..=MAX_BYTES).contains(&bytes) || !self.memory.keep(bytes as u64) {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += bytes;
        kept.buffers.push_back(memory);
        while kept.bytes > MAX_BYTES || kept.buffers.len() > MAX_BUFFERS {
            let Some(oldest) = kept.buffers.pop_front() else { break };
            kept.bytes -= n_bytes(&oldest);
            self.memory.release(n_bytes(&oldest) as u64);
        }
    }
}

impl Drop for ResultPool {
    fn drop(&mut self) {
        let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.memory.release(kept.bytes as u64);
    }
}

fn n_bytes(buffer: &Buffer) -> usize {
    buffer.len() * buffer.dtype().size()
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_dsl::HostTensor;
    use std::sync::Arc;

    #[test]
    fn memory_comes_back_when_the_last_handle_is_dropped() {
        let results = Arc::new(ResultPool::default());
        let n = LARGE / 4;
        let memory = results.take(DType::F32, n).expect("there is a little memory");
        let tensor = HostTensor::lent(vec![n], memory, results.clone());
        let (address, other) = (tensor.data::<f32>().as_ptr(), tensor.clone());
        drop(tensor);
        assert_eq!(results.kept.lock().unwrap().bytes, 0, "a handle is left");
        drop(other);
        let Some(Buffer::F32(again)) = results.take(DType::F32, n) else { panic!("there is memory") };
        assert_eq!(again.as_ptr(), address);
        let Some(Buffer::F32(fresh)) = results.take(DType::F32, n) else { panic!("there is memory") };
        assert_ne!(fresh.as_ptr(), address);
    }

    #[test]
    fn a_changed_copy_is_the_callers_alone() {
        let results = Arc::new(ResultPool::default());
        let memory = results.take(DType::I32, LARGE).expect("there is a little memory");
        let tensor = HostTensor::lent(vec![LARGE], memory, results.clone());
        let mut copy = tensor.clone();
        copy.buffer_mut();
        drop(copy);
        assert_eq!(results.kept.lock().unwrap().buffers.len(), 0);
        drop(tensor);
        assert_eq!(results.kept.lock().unwrap().buffers.len(), 1);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let results = ResultPool::default();
        for _ in 0..2 * MAX_BUFFERS {
            results.reclaim(Buffer::zeros(DType::U8, LARGE));
        }
        results.reclaim(Buffer::zeros(DType::U8, LARGE - 1));
        let kept = results.kept.lock().unwrap();
        assert_eq!((kept.buffers.len(), kept.bytes), (MAX_BUFFERS, MAX_BUFFERS * LARGE));
    }

    #[test]
    fn pools_of_other_processes_share_a_limit() {
        let kept = || {
            let pools: Vec<ResultPool> = (0..8).map(|_| ResultPool::new(true)).collect();
            pools.iter().for_each(|pool| pool.reclaim(Buffer::zeros(DType::U8, 100 << 20)));
            pools.iter().map(|pool| pool.kept.lock().unwrap().bytes).sum::<usize>()
        };
        // Programs of other tests keep little.
        assert_eq!(kept(), 200 << 20);
        assert_eq!(kept(), 200 << 20, "a pool that is dropped keeps nothing");
    }
}
