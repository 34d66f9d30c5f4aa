//! Memory of the host from which tensors are copied to the device.
//!
//! The host writes to a buffer while it is mapped. Once the device has copied it, it is mapped
//! again for the next tensor of its size.

use super::memory::size_class;
use super::queue::Mapped;
use std::collections::VecDeque;
use std::sync::mpsc::{self, TryRecvError};

/// The most bytes of a buffer that is kept.
const MAX_BYTES: u64 = 1 << 20;

/// The most buffers that are kept.
const MAX_KEPT: usize = 64;

/// The buffers that are kept.
#[derive(Default)]
pub(super) struct UploadBuffers {
    /// Those whose copies are recorded.
    recorded: Vec<wgpu::Buffer>,
    /// Those whose copies were submitted, in order, and the message that they are mapped.
    submitted: VecDeque<(wgpu::Buffer, Mapped)>,
    /// Those that are mapped, the oldest first.
    mapped: Vec<wgpu::Buffer>,
}

impl UploadBuffers {
    /// Returns the size of a buffer for so many bytes.
    pub(super) fn size(n_bytes: u64) -> u64 {
        if n_bytes > MAX_BYTES { n_bytes } else { size_class(n_bytes) }
    }

    /// Returns a mapped buffer of a size, if one is kept.
    pub(super) fn take(&mut self, size: u64) -> Option<wgpu::Buffer> {
        while let Some((_, is_mapped)) = self.submitted.front() {
            let outcome = match is_mapped.try_recv() {
                Err(TryRecvError::Empty) => break,
                outcome => outcome,
            };
            let (buffer, _) = self.submitted.pop_front().expect("there is one");
            // A device that is lost maps no buffer.
            if let Ok(Ok(())) = outcome {
                self.mapped.push(buffer);
            }
        }
        let i = self.mapped.iter().position(|buffer| buffer.size() == size)?;
        Some(self.mapped.remove(i))
    }

    /// Takes a buffer whose copy is recorded.
    pub(super) fn copied(&mut self, buffer: wgpu::Buffer) {
        if buffer.size() <= MAX_BYTES {
            self.recorded.push(buffer);
        }
    }

    /// Called when everything that is recorded was submitted.
    pub(super) fn submitted(&mut self) {
        // Those of sizes that are no longer used make room.
        self.recorded.truncate(MAX_KEPT.saturating_sub(self.submitted.len()));
        let n_kept = self.recorded.len() + self.submitted.len() + self.mapped.len();
        self.mapped.drain(..n_kept.saturating_sub(MAX_KEPT));
        for buffer in self.recorded.drain(..) {
            let (mapped, is_mapped) = mpsc::channel();
            buffer.map_async(wgpu::MapMode::Write, .., move |outcome| {
                let _ = mapped.send(outcome);
            });
            self.submitted.push_back((buffer, is_mapped));
        }
    }

    /// Drops the buffers whose copies were submitted.
    pub(super) fn clear(&mut self) {
        self.mapped.clear();
        self.submitted.clear();
    }
}
