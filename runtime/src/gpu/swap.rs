//! Values saved for backward loops, in the memory of the host.
//!
//! The elements of stacks are used again long after they were pushed, in the reverse order. If a
//! tensor would exceed the memory of the device, those that were pushed first move to memory of the
//! host, and come back when they are popped (EuroSys'18, section 5.3). Small elements stay, since a
//! copy costs more than their memory is worth.
//!
//! Both copies are commands of the queue. It runs commands in order (G1), so memory can be used
//! again as soon as the copy is recorded, and the host waits for nothing. wgpu has one queue for a
//! device: a copy overlaps with the work of the host, but not with that of the device.

use super::memory::{ElementPlace, GpuTensor, SavedElement};
use super::queue::CommandRecorder;
use anabranch_dsl::Result;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// The bytes from which an element moves.
const MIN_BYTES: u64 = 16 << 10;

/// The elements of stacks that could move, in the order in which they were pushed.
#[derive(Debug, Default)]
pub(super) struct SwappableElements {
    pushed: VecDeque<Weak<SavedElement>>,
    /// The length at which elements that were dropped are removed.
    next_cleaning: usize,
}

impl SwappableElements {
    fn push(&mut self, element: &Arc<SavedElement>) {
        if self.pushed.len() >= self.next_cleaning {
            self.pushed.retain(|element| element.strong_count() > 0);
            self.next_cleaning = (2 * self.pushed.len()).max(1024);
        }
        self.pushed.push_back(Arc::downgrade(element));
    }
}

impl CommandRecorder {
    /// Makes a tensor an element of stacks.
    pub(super) fn stacked(&self, tensor: Arc<GpuTensor>) -> Arc<SavedElement> {
        let n_bytes = tensor.n_bytes();
        let element = Arc::new(SavedElement::new(tensor));
        if self.shared.can_swap && n_bytes >= MIN_BYTES {
            self.swappable.borrow_mut().push(&element);
        }
        element
    }

    /// Returns the tensor of an element, copied to the device if it was on the host.
    ///
    /// # Errors
    /// Fails if the device has no memory left.
    pub(super) fn unstacked(&self, element: &SavedElement) -> Result<Arc<GpuTensor>> {
        let on_host = match &*element.place() {
            ElementPlace::OnDevice(tensor) => return Ok(tensor.clone()),
            ElementPlace::OnHost(copy) => copy.clone(),
        };
        let tensor = self.tensor(element.n_bytes())?;
        self.copy(&on_host, &tensor);
        Ok(tensor)
    }

    /// Moves the oldest element that nothing else uses to the host. Returns whether there was one.
    pub(super) fn swap_out(&self) -> Result<bool> {
        let mut swappable = self.swappable.borrow_mut();
        let mut in_use = Vec::new();
        let mut moved = false;
        while let Some(oldest) = swappable.pushed.pop_front() {
            let Some(element) = oldest.upgrade() else { continue };
            let mut place = element.place();
            let ElementPlace::OnDevice(tensor) = &*place else { continue };
            if Arc::strong_count(tensor) > 1 {
                in_use.push(oldest);
                continue;
            }
            let on_host = match self.host_memory(element.n_bytes()) {
                Ok(memory) => memory,
                Err(error) => {
                    drop(place);
                    in_use.push(oldest);
                    in_use.into_iter().rev().for_each(|element| swappable.pushed.push_front(element));
                    return Err(error);
                }
            };
            self.copy(tensor, &on_host);
            *place = ElementPlace::OnHost(Arc::new(on_host));
            self.shared.counters.swapped_bytes.fetch_add(element.n_bytes(), Ordering::Relaxed);
            moved = true;
            break;
        }
        in_use.into_iter().rev().for_each(|element| swappable.pushed.push_front(element));
        Ok(moved)
    }
}
