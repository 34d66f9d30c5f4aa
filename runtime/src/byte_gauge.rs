//! Bytes that are held somewhere, up to a limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts bytes that are held, up to a limit.
#[derive(Debug)]
pub(crate) struct ByteGauge {
    limit: u64,
    held: AtomicU64,
}

/// Bytes that count until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    gauge: Arc<ByteGauge>,
    bytes: u64,
}

#[cfg_attr(not(feature = "peers"), expect(dead_code, reason = "only what arrives from peers is counted"))]
impl ByteGauge {
    pub(crate) fn new(limit: u64) -> Arc<ByteGauge> {
        Arc::new(ByteGauge { limit, held: AtomicU64::new(0) })
    }

    /// Returns the most bytes that may be held.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the bytes that are held.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Counts bytes, unless there would be more than the limit.
    pub(crate) fn hold(self: &Arc<ByteGauge>, bytes: u64) -> Option<HeldBytes> {
        // The counter publishes no other data, so relaxed ordering suffices.
        let within = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).ok()?;
        Some(HeldBytes { gauge: self.clone(), bytes })
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.gauge.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
