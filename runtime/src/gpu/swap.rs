//! Values saved for backward loops, in the memory of the host.
//!
//! The elements of stacks are used again long after they were pushed, in the reverse order. If a
//! tensor would exceed the memory of the device, those that were pushed first move to memory of the
//! host, and come back when they are popped or shortly before (EuroSys'18, section 5.3). Small
//! elements stay, since a copy costs more than their memory is worth, and a tensor that was pushed
//! to several stacks moves once.
//!
//! - **Ahead of need.** If the device has a budget, elements begin to move when a part of it is in
//!   use. So there is memory when a tensor needs it, and the buffers of elements that have moved
//!   are used again, instead of new ones.
//! - **Ahead of use.** When the elements below the top of a stack are on the host, the next few of
//!   them come back together, as far as they fit. They keep their copy on the host until they are
//!   popped: if something else needs the memory, they need not move again.
//!
//! All copies are commands of the queue. It runs commands in order (G1), so memory can be used
//! again as soon as the copy is recorded, and the host waits for nothing. wgpu has one queue for a
//! device: a copy overlaps with the work of the host, but not with that of the device. Since a copy
//! ends a compute pass, some elements move at a time.

use super::memory::{ElementPlace, GpuStack, GpuTensor, SavedElement, StackItem, size_class};
use super::queue::CommandRecorder;
use anabranch_dsl::Result;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// The bytes from which an element moves.
const MIN_BYTES: u64 = 16 << 10;

/// The elements of a stack that come back at a time.
const MAX_AHEAD: usize = 4;

/// Bytes in use that decide about the elements of stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thresholds {
    /// Above it, elements move to the host. Up to it, elements come back ahead of use.
    high: u64,
    /// Elements move until no more bytes than these are in use.
    low: u64,
}

impl Thresholds {
    fn of_budget(budget: u64) -> Thresholds {
        Thresholds { high: budget - budget / 4, low: budget - budget / 4 - budget / 16 }
    }
}

/// The elements of stacks that could move, in the order in which they were pushed.
#[derive(Debug, Default)]
pub(super) struct SwappableElements {
    pushed: VecDeque<Weak<SavedElement>>,
    /// The length at which elements that were dropped are removed.
    next_cleaning: usize,
    /// Those that came back ahead of use and may still be in a stack, in the order in which they
    /// did.
    ahead: VecDeque<Weak<SavedElement>>,
}

impl SwappableElements {
    fn push(&mut self, element: &Arc<SavedElement>) {
        if self.pushed.len() >= self.next_cleaning {
            self.pushed.retain(|element| element.strong_count() > 0);
            self.next_cleaning = (2 * self.pushed.len()).max(1024);
        }
        self.pushed.push_back(Arc::downgrade(element));
    }

    fn push_ahead(&mut self, element: &Arc<SavedElement>) {
        while self.ahead.front().is_some_and(|first| first.strong_count() == 0) {
            self.ahead.pop_front();
        }
        self.ahead.push_back(Arc::downgrade(element));
    }
}

impl CommandRecorder {
    fn thresholds(&self) -> Option<Thresholds> {
        self.shared.memory_budget.map(Thresholds::of_budget)
    }

    /// Makes a tensor an element of stacks. Moves older ones to the host if much memory is in use.
    pub(super) fn stacked(&self, tensor: Arc<GpuTensor>) -> Arc<SavedElement> {
        let n_bytes = tensor.n_bytes();
        let (element, is_new) = SavedElement::of_tensor(tensor);
        if is_new && self.shared.can_swap && n_bytes >= MIN_BYTES {
            self.swappable.borrow_mut().push(&element);
            if let Some(Thresholds { high, low }) = self.thresholds()
                && self.shared.pool.n_in_use() > high
            {
                // If the host has no memory for them, they stay until they must move.
                while self.shared.pool.n_in_use() > low && matches!(self.swap_out(), Ok(true)) {}
            }
        }
        element
    }

    /// Returns the tensor of an element, copied to the device if it was on the host.
    ///
    /// # Errors
    /// Fails if the device has no memory left.
    pub(super) fn unstacked(&self, element: &SavedElement) -> Result<Arc<GpuTensor>> {
        let on_host = match &*element.place() {
            ElementPlace::OnDevice(tensor) | ElementPlace::Both { tensor, .. } => return Ok(tensor.clone()),
            ElementPlace::OnHost(copy) => copy.clone(),
        };
        let tensor = self.tensor(element.n_bytes())?;
        self.copy_to_device(&on_host, &tensor);
        Ok(tensor)
    }

    /// Copies the next elements of a stack to the device, if the first of them is on the host, as
    /// far as they fit.
    pub(super) fn bring_back_ahead(&self, stack: &GpuStack) -> Result<()> {
        let Some(Thresholds { high, .. }) = self.thresholds() else { return Ok(()) };
        for item in stack.items().take(MAX_AHEAD) {
            let StackItem::One(element) = item else { break };
            let on_host = match &*element.place() {
                ElementPlace::OnHost(copy) => copy.clone(),
                _ => break,
            };
            if self.shared.pool.n_in_use() + size_class(element.n_bytes()) > high {
                break;
            }
            let tensor = self.tensor(element.n_bytes())?;
            self.copy_to_device(&on_host, &tensor);
            *element.place() = ElementPlace::Both { tensor, on_host };
            self.swappable.borrow_mut().push_ahead(element);
            self.shared.counters.ahead_bytes.fetch_add(element.n_bytes(), Ordering::Relaxed);
        }
        Ok(())
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
            self.copy_to_host(tensor, &on_host);
            *place = ElementPlace::OnHost(Arc::new(on_host));
            self.shared.counters.swapped_bytes.fetch_add(element.n_bytes(), Ordering::Relaxed);
            moved = true;
            break;
        }
        in_use.into_iter().rev().for_each(|element| swappable.pushed.push_front(element));
        Ok(moved)
    }

    /// Makes memory free that is only needed later. Returns whether there was some.
    pub(super) fn make_room(&self) -> Result<bool> {
        Ok(self.forget_ahead() || self.swap_out()?)
    }

    /// Drops the tensor of the element that came back last and that nothing else uses, whose copy
    /// on the host is kept. Returns whether there was one.
    fn forget_ahead(&self) -> bool {
        let mut swappable = self.swappable.borrow_mut();
        while let Some(last) = swappable.ahead.pop_back() {
            let Some(element) = last.upgrade() else { continue };
            let mut place = element.place();
            if let ElementPlace::Both { tensor, on_host } = &*place
                && Arc::strong_count(tensor) == 1
            {
                *place = ElementPlace::OnHost(on_host.clone());
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::GpuQueue;
    use super::*;
    use crate::gpu::adapter::adapter_for_test;
    use anabranch_dsl::device::{DeviceKind, DeviceName};
    use anabranch_dsl::{DType, HostTensor, TensorType};

    /// The bytes of each element in the test. The budget is that of sixteen, so the thresholds are
    /// twelve and eleven.
    const BYTES: u64 = MIN_BYTES;

    #[test]
    fn elements_move_ahead_of_need_and_come_back_ahead_of_use() {
        let Some(adapter) = adapter_for_test() else { return };
        let adapter = adapter.with_memory_budget(16 * BYTES);
        let queue = GpuQueue::open(DeviceName::local(DeviceKind::Gpu, 0), &adapter).unwrap_or_else(|e| panic!("{e}"));
        let [moved, back] = [0, 1].map(|i| {
            let counters = adapter.counters().clone();
            move || {
                let bytes = if i == 0 { &counters.swapped_bytes } else { &counters.ahead_bytes };
                bytes.load(Ordering::Relaxed) / BYTES
            }
        });
        let done = queue.call(async move |recorder| {
            let mut stack = GpuStack::new([], false);
            for i in 0..16 {
                let element = HostTensor::new([BYTES as usize / 4], vec![i as f32; BYTES as usize / 4]);
                let tensor = recorder.upload(&element)?;
                let element = recorder.stacked(tensor.clone());
                // A tensor is one element, however often it is pushed.
                assert!(Arc::ptr_eq(&element, &recorder.stacked(tensor)));
                stack = stack.push(StackItem::One(element));
            }
            // Each second push from the thirteenth on moves two.
            assert_eq!((moved(), back()), (4, 0));
            for i in (0..16).rev() {
                let (below, item) = stack.pop().expect("an element");
                let StackItem::One(element) = item else { panic!("the item is an element") };
                let tensor = recorder.unstacked(&element)?;
                recorder.bring_back_ahead(&below)?;
                drop(element);
                stack = below;
                let ty = TensorType::new(DType::F32, [BYTES as usize / 4]);
                let found = recorder.download(&[(&tensor, &ty)]).await?;
                assert!(found[0].data::<f32>().iter().all(|&x| x == i as f32), "element {i}");
                // The last four come back when the one above them is popped, and one of them again.
                let expected = match i {
                    5.. => 0,
                    2..=4 => 4,
                    _ => 5,
                };
                assert_eq!(back(), expected, "element {i}");
                if i == 4 {
                    // Eleven others and these five fit. One more takes the place of one of them.
                    let others = (0..12).map(|_| recorder.tensor(BYTES)).collect::<Result<Vec<_>>>()?;
                    let is_on_device = |element: &Arc<SavedElement>| element.bytes_on_device() > 0;
                    assert_eq!(stack.elements().map(is_on_device).collect::<Vec<_>>(), [true, true, true, false]);
                    assert_eq!(moved(), 4);
                    drop(others);
                }
            }
            Ok(())
        });
        done.unwrap_or_else(|e| panic!("{e}"));
    }
}
