//! The content of one queue, and who waits for it: a state machine without threads and clocks.
//!
//! Invariants:
//!
//! - Q1. An element is at one place: in the queue, with a consumer that waits for more, or with a
//!   step that has removed it. So it is lost only with the queue, and no two steps have it. The
//!   queue remembers those that steps have, until they are committed, since they are a part of its
//!   [content](QueueState::content).
//! - Q2. A number is given to each element when it is added. An element that returns keeps its
//!   number, so a FIFO queue has it at its old place. A consumer that waits for more has the first
//!   elements, also if some return meanwhile.
//! - Q3. Of those who wait for room only the first is served, and of those who wait for elements
//!   too. So nobody is overtaken, and a large request is not starved by small ones.
//! - Q4. `len + reserved` exceeds the capacity only through elements that returned, those of a
//!   content that was restored, and those of Q5.
//! - Q5. Nobody waits for room in vain. If nothing can leave the queue, because it is empty or its
//!   first consumer needs more than there is, and all steps that have room in it wait themselves,
//!   then the first producer is served even though the queue is full.
//!
//! It must not know sessions, steps and their locks.

use super::saved::QueueContent;
use anabranch_dsl::ir::QueueOp;
use anabranch_dsl::queue::{AnyQueue, QueueOrder};
use anabranch_dsl::{Diagnostic, HostTensor};
use std::collections::{BTreeMap, VecDeque};
use std::task::Poll;

/// An element outside the queue.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct QueuedElement {
    pub(super) number: u64,
    pub(super) tensors: Vec<HostTensor>,
}

/// Someone who waits for room or for elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiter(u64);

/// A request for elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ElementRequest {
    pub(super) n: usize,
    /// Whether fewer elements, but one at least, suffice when the queue is closed.
    pub(super) up_to: bool,
}

impl ElementRequest {
    /// Returns the request of an operation, if it removes elements. `operand` is the number of
    /// elements of an operation that does not name it.
    pub(super) fn of(op: QueueOp, operand: Option<usize>) -> Option<ElementRequest> {
        let (n, up_to) = match op {
            QueueOp::Dequeue => (1, false),
            QueueOp::DequeueMany(n) => (n.or(operand)?, false),
            QueueOp::DequeueUpTo(n) => (n.or(operand)?, true),
            _ => return None,
        };
        (n > 0).then_some(ElementRequest { n, up_to })
    }
}

/// Why a wait ended without success.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum QueueFailure {
    /// The queue is closed, and takes no elements.
    TakesNone,
    /// The queue is closed, and has fewer elements than are requested.
    HasTooFew { n: usize, left: usize },
    /// The producer closed the queue with an error.
    Producer(Box<Diagnostic>),
    /// The elements do not fit in the queue, together with those that the step has added before.
    NeverRoom { n: usize, reserved: usize },
    /// Only the step itself has elements, which appear when it is committed.
    WaitsForItself { reserved: usize },
    /// There are too few elements, and the step itself closes the queue when it is committed.
    ClosesItself,
    /// The session has ended.
    SessionEnded,
}

#[derive(Clone, Debug)]
enum StoredElements {
    /// In the order of priority and number. Without priorities, that is of numbers.
    Ordered(BTreeMap<(i64, u64), Vec<HostTensor>>),
    Shuffled {
        elements: Vec<QueuedElement>,
        min_left: usize,
        random: u64,
    },
}

#[derive(Clone, Debug)]
struct Consumer {
    waiter: Waiter,
    /// The number of elements that it still needs.
    missing: usize,
    /// The elements that it has so far.
    taken: Vec<QueuedElement>,
    /// Whether its step has added elements, so that it fails if those before it wait for these.
    has_added: bool,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct QueueState {
    order: QueueOrder,
    capacity: usize,
    elements: StoredElements,
    /// The elements that were taken and are neither settled nor given back, by their numbers.
    held: BTreeMap<u64, Vec<HostTensor>>,
    next_number: u64,
    /// The room for elements that running steps have added.
    reserved: usize,
    /// The part of this room that belongs to steps which wait, for this queue or another one.
    stalled: usize,
    closed: Option<ClosedState>,
    next_waiter: u64,
    producers: VecDeque<Waiter>,
    consumers: VecDeque<Consumer>,
}

#[derive(Clone, Debug)]
struct ClosedState {
    /// The error of the producer.
    cause: Option<Box<Diagnostic>>,
    /// The first waiter that came after the queue was closed.
    first_after: u64,
    has_session_ended: bool,
}

impl QueueState {
    pub(super) fn new(queue: &AnyQueue) -> QueueState {
        let elements = match queue.order() {
            QueueOrder::Shuffle { min_left, seed } => {
                StoredElements::Shuffled { elements: Vec::new(), min_left, random: seed }
            }
            _ => StoredElements::Ordered(BTreeMap::new()),
        };
        QueueState {
            order: queue.order(),
            capacity: queue.capacity(),
            elements,
            held: BTreeMap::new(),
            next_number: 0,
            reserved: 0,
            stalled: 0,
            closed: None,
            next_waiter: 0,
            producers: VecDeque::new(),
            consumers: VecDeque::new(),
        }
    }

    /// Returns the number of elements.
    pub(super) fn len(&self) -> usize {
        match &self.elements {
            StoredElements::Ordered(elements) => elements.len(),
            StoredElements::Shuffled { elements, .. } => elements.len(),
        }
    }

    /// Returns whether the queue is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Returns whether the session has ended.
    pub(super) fn has_session_ended(&self) -> bool {
        self.closed.as_ref().is_some_and(|closed| closed.has_session_ended)
    }

    fn new_waiter(&mut self) -> Waiter {
        self.next_waiter += 1;
        Waiter(self.next_waiter - 1)
    }

    /// Registers a producer.
    pub(super) fn producer(&mut self) -> Waiter {
        let waiter = self.new_waiter();
        self.producers.push_back(waiter);
        waiter
    }

    /// Registers a consumer.
    pub(super) fn consumer(&mut self) -> Waiter {
        let waiter = self.new_waiter();
        self.consumers.push_back(Consumer { waiter, missing: 1, taken: Vec::new(), has_added: false });
        waiter
    }

    /// Reserves room for `n` elements. `reserved` is what the step has reserved before. When it
    /// succeeds or fails, the producer is no longer registered.
    pub(super) fn reserve(&mut self, producer: Waiter, n: usize, reserved: usize) -> Poll<Result<(), QueueFailure>> {
        let is_refused = |closed: &ClosedState| closed.has_session_ended || producer.0 >= closed.first_after;
        let outcome = match &self.closed {
            Some(closed) if is_refused(closed) => Err(closed.refusal()),
            _ if n.saturating_add(reserved) > self.capacity => Err(QueueFailure::NeverRoom { n, reserved }),
            _ if self.producers.front() != Some(&producer) => return Poll::Pending,
            _ if self.has_room(n) || self.is_stuck() => Ok(()),
            _ => return Poll::Pending,
        };
        self.producers.retain(|other| *other != producer);
        if outcome.is_ok() {
            self.reserved += n;
        }
        Poll::Ready(outcome)
    }

    fn has_room(&self, n: usize) -> bool {
        self.len().saturating_add(self.reserved).saturating_add(n) <= self.capacity
    }

    /// Returns whether nobody will make room before something is added.
    fn is_stuck(&self) -> bool {
        // A step that runs ends: its elements appear or its room is free.
        let runs = self.reserved > self.stalled;
        let leaves = self.consumers.front().map_or(self.len() > 0, |first| self.serves(first.missing));
        !runs && !leaves
    }

    /// Returns whether a consumer that needs `missing` elements can take one now.
    fn serves(&self, missing: usize) -> bool {
        match &self.elements {
            // A batch by priority is taken when all of it is there, so that it is in order.
            StoredElements::Ordered(elements) if self.order == QueueOrder::Priority && !self.is_exhaustible() => {
                elements.len() >= missing
            }
            StoredElements::Ordered(elements) => !elements.is_empty(),
            StoredElements::Shuffled { elements, min_left, .. } => {
                elements.len() > if self.is_closed() { 0 } else { *min_left }
            }
        }
    }

    /// Notes that a step which has reserved room for `n` elements waits, until
    /// [`goes_on`](Self::goes_on).
    pub(super) fn stalls(&mut self, n: usize) {
        self.stalled += n;
    }

    /// Notes that a step which has reserved room for `n` elements no longer waits.
    pub(super) fn goes_on(&mut self, n: usize) {
        self.stalled -= n;
    }

    /// Adds elements for which there is reserved room.
    pub(super) fn add(&mut self, elements: Vec<Vec<HostTensor>>) {
        self.reserved -= elements.len();
        elements.into_iter().for_each(|tensors| self.put_new(tensors));
    }

    fn put_new(&mut self, mut tensors: Vec<HostTensor>) {
        // They may stay for long.
        for tensor in &mut tensors {
            if let Some(compact) = tensor.compacted() {
                *tensor = compact;
            }
        }
        let number = self.next_number;
        self.next_number += 1;
        self.put(QueuedElement { number, tensors });
    }

    /// Gives up the room for `n` elements.
    pub(super) fn free_room(&mut self, n: usize) {
        self.reserved -= n;
    }

    /// Takes elements for a consumer, which settles them or gives them back later. `reserved` is
    /// what its step has added. When it succeeds or fails, the consumer is no longer registered.
    pub(super) fn take(
        &mut self,
        consumer: Waiter,
        request: ElementRequest,
        reserved: usize,
    ) -> Poll<Result<Vec<QueuedElement>, QueueFailure>> {
        if let Some(ClosedState { has_session_ended: true, .. }) = self.closed {
            self.leave(consumer);
            return Poll::Ready(Err(QueueFailure::SessionEnded));
        }
        let ElementRequest { n, up_to } = request;
        if let Some(waiting) = self.consumers.iter_mut().find(|waiting| waiting.waiter == consumer) {
            waiting.missing = n - waiting.taken.len();
            waiting.has_added = reserved > 0;
        }
        if let Some(first) = self.consumers.front()
            && first.waiter != consumer
        {
            // Those before it may wait for what its step has added.
            if reserved > 0 && !self.serves(first.missing) {
                self.leave(consumer);
                return Poll::Ready(Err(QueueFailure::WaitsForItself { reserved }));
            }
            return Poll::Pending;
        }
        let mut taken = std::mem::take(&mut self.consumers[0].taken);
        // An element that has returned is before those that the consumer has.
        if let StoredElements::Ordered(elements) = &self.elements
            && let (Some(last), Some(((_, first), _))) = (taken.last(), elements.first_key_value())
            && *first < last.number
        {
            taken.drain(..).for_each(|element| self.put(element));
        }
        if self.serves(n - taken.len()) {
            while taken.len() < n
                && let Some(element) = self.take_one()
            {
                taken.push(element);
            }
        }
        if taken.len() == n || (up_to && self.is_exhaustible() && !taken.is_empty()) {
            self.consumers.pop_front();
            self.held.extend(taken.iter().map(|element| (element.number, element.tensors.clone())));
            return Poll::Ready(Ok(taken));
        }
        self.consumers[0].missing = n - taken.len();
        self.consumers[0].taken = taken;
        if self.is_exhaustible() {
            self.leave(consumer);
            let closed = self.closed.as_ref().expect("only a closed queue is exhausted");
            let few = QueueFailure::HasTooFew { n, left: self.len() };
            return Poll::Ready(Err(closed.cause.clone().map_or(few, QueueFailure::Producer)));
        }
        if reserved > 0 {
            self.leave(consumer);
            return Poll::Ready(Err(QueueFailure::WaitsForItself { reserved }));
        }
        Poll::Pending
    }

    /// Returns the first waiter that came after the queue was closed, and whether the session has
    /// ended: a change of these may end any wait.
    pub(super) fn end(&self) -> Option<(u64, bool)> {
        self.closed.as_ref().map(|closed| (closed.first_after, closed.has_session_ended))
    }

    /// Returns those for whom any other change may end the wait: the first in each line, and those
    /// who may wait for themselves.
    pub(super) fn may_be_served(&self) -> impl Iterator<Item = Waiter> {
        let consumers = self.consumers.iter().enumerate().filter(|(i, consumer)| *i == 0 || consumer.has_added);
        self.producers.front().copied().into_iter().chain(consumers.map(|(_, consumer)| consumer.waiter))
    }

    /// Returns the number of those who wait for room.
    pub(super) fn n_producers(&self) -> usize {
        self.producers.len()
    }

    /// Returns the number of those who wait for elements.
    pub(super) fn n_consumers(&self) -> usize {
        self.consumers.len()
    }

    /// Returns the first element in the order of the queue, if it has one.
    #[cfg(test)]
    pub(super) fn first_value(&self) -> Option<i64> {
        match &self.elements {
            StoredElements::Ordered(elements) => elements.first_key_value().map(|(_, tensors)| tensors),
            StoredElements::Shuffled { .. } => None,
        }
        .map(|tensors| tensors[0].data::<i64>()[0])
    }

    /// Returns how many producers, or consumers, are before a waiter.
    #[cfg(test)]
    pub(super) fn place_in_line(&self, waiter: Waiter) -> usize {
        let consumers = self.consumers.iter().position(|other| other.waiter == waiter);
        let producers = self.producers.iter().position(|other| *other == waiter);
        consumers.or(producers).expect("it waits")
    }

    /// Returns numbers for all on which later operations depend, but for the identities of those
    /// who wait. Elements are numbers.
    #[cfg(test)]
    pub(super) fn fingerprint(&self) -> Vec<i64> {
        let value = |tensors: &[HostTensor]| tensors[0].data::<i64>()[0];
        let mut all = vec![self.reserved as i64, self.stalled as i64];
        match &self.elements {
            StoredElements::Ordered(elements) => all.extend(elements.values().map(|tensors| value(tensors))),
            StoredElements::Shuffled { elements, random, .. } => {
                all.push(*random as i64);
                all.extend(elements.iter().map(|element| value(&element.tensors)));
            }
        }
        let is_late = |waiter: Waiter| self.closed.as_ref().is_some_and(|closed| waiter.0 >= closed.first_after);
        all.push(-1 - i64::from(self.is_closed()));
        all.extend(self.producers.iter().map(|&waiter| i64::from(is_late(waiter))));
        for Consumer { missing, taken, .. } in &self.consumers {
            all.extend([-3, *missing as i64]);
            all.extend(taken.iter().map(|element| value(&element.tensors)));
        }
        all.push(-4);
        all.extend(self.held.values().map(|tensors| value(tensors)));
        all
    }

    /// Ends the wait of a producer or consumer. What it has taken returns.
    pub(super) fn leave(&mut self, waiter: Waiter) {
        self.producers.retain(|other| *other != waiter);
        if let Some(i) = self.consumers.iter().position(|other| other.waiter == waiter) {
            let consumer = self.consumers.remove(i).expect("the position is of a consumer");
            consumer.taken.into_iter().for_each(|element| self.put(element));
        }
    }

    /// Removes elements that were taken for good.
    pub(super) fn settle(&mut self, elements: &[QueuedElement]) {
        elements.iter().for_each(|element| drop(self.held.remove(&element.number)));
    }

    /// Returns elements that were taken to the queue.
    pub(super) fn give_back(&mut self, elements: impl IntoIterator<Item = QueuedElement>) {
        for element in elements {
            self.held.remove(&element.number);
            self.put(element);
        }
    }

    /// Returns the content: what would be in the queue if all who have taken elements gave them
    /// back now.
    pub(super) fn content(&self) -> QueueContent {
        let taken = self.consumers.iter().flat_map(|consumer| &consumer.taken);
        let taken =
            taken.map(|element| (element.number, &element.tensors)).chain(self.held.iter().map(|(n, t)| (*n, t)));
        let (elements, random) = match &self.elements {
            StoredElements::Ordered(elements) => {
                let stored = elements.iter().map(|(key, tensors)| (*key, tensors));
                let all: BTreeMap<_, _> =
                    stored.chain(taken.map(|(n, tensors)| (self.key(n, tensors), tensors))).collect();
                (all.into_values().cloned().collect(), None)
            }
            StoredElements::Shuffled { elements, random, .. } => {
                let taken: BTreeMap<_, _> = taken.collect();
                let stored = elements.iter().map(|element| &element.tensors);
                (stored.chain(taken.into_values()).cloned().collect(), Some(*random))
            }
        };
        let cause = self.closed.as_ref().and_then(|closed| closed.cause.clone());
        QueueContent { elements, random, is_closed: self.is_closed(), cause }
    }

    /// Returns whether a step, or a consumer that waits for more, has elements of the queue, or
    /// room in it.
    pub(super) fn is_in_use(&self) -> bool {
        self.reserved > 0 || !self.held.is_empty() || self.consumers.iter().any(|consumer| !consumer.taken.is_empty())
    }

    /// Replaces the content of a queue that is not in use, and whose session has not ended.
    pub(super) fn restore(&mut self, content: QueueContent) {
        let QueueContent { elements, random, is_closed, cause } = content;
        match &mut self.elements {
            StoredElements::Ordered(elements) => elements.clear(),
            StoredElements::Shuffled { elements, random: own, .. } => {
                elements.clear();
                *own = random.unwrap_or(*own);
            }
        }
        elements.into_iter().for_each(|tensors| self.put_new(tensors));
        self.closed = None;
        if is_closed {
            self.close(cause.map(|cause| *cause), false);
        }
    }

    /// Closes the queue: it takes no elements from those who come later, nor, if `cancels`, from
    /// those who wait. A second call adds this, and the error of a producer if there is none.
    pub(super) fn close(&mut self, cause: Option<Diagnostic>, cancels: bool) {
        let first_after = if cancels { 0 } else { self.next_waiter };
        let cause = cause.map(Box::new);
        let closed = self.closed.get_or_insert(ClosedState { cause: None, first_after, has_session_ended: false });
        closed.first_after = closed.first_after.min(first_after);
        closed.cause = closed.cause.take().or(cause);
    }

    /// Ends all waits, because the session has ended.
    pub(super) fn end_session(&mut self) {
        self.close(None, true);
        self.closed.as_mut().expect("the queue was closed").has_session_ended = true;
    }

    /// Returns whether the queue is closed and no elements will come.
    fn is_exhaustible(&self) -> bool {
        let Some(closed) = &self.closed else { return false };
        self.reserved == 0 && self.producers.iter().all(|producer| producer.0 >= closed.first_after)
    }

    fn put(&mut self, element: QueuedElement) {
        let QueuedElement { number, tensors } = element;
        let key = self.key(number, &tensors);
        match &mut self.elements {
            StoredElements::Ordered(elements) => drop(elements.insert(key, tensors)),
            StoredElements::Shuffled { elements, .. } => elements.push(QueuedElement { number, tensors }),
        }
    }

    /// Returns the place of an element in a queue with an order.
    fn key(&self, number: u64, tensors: &[HostTensor]) -> (i64, u64) {
        let priority = match self.order {
            QueueOrder::Priority => tensors[0].data::<i64>()[0],
            _ => 0,
        };
        (priority, number)
    }

    fn take_one(&mut self) -> Option<QueuedElement> {
        let is_closed = self.is_closed();
        match &mut self.elements {
            StoredElements::Ordered(elements) => {
                let ((_, number), tensors) = elements.pop_first()?;
                Some(QueuedElement { number, tensors })
            }
            StoredElements::Shuffled { elements, min_left, random } => {
                let least = if is_closed { 0 } else { *min_left };
                if elements.len() <= least {
                    return None;
                }
                Some(elements.swap_remove(below(random, elements.len())))
            }
        }
    }
}

impl ClosedState {
    /// Returns the reason for which nothing is added.
    fn refusal(&self) -> QueueFailure {
        match (self.has_session_ended, &self.cause) {
            (true, _) => QueueFailure::SessionEnded,
            (false, Some(cause)) => QueueFailure::Producer(cause.clone()),
            (false, None) => QueueFailure::TakesNone,
        }
    }
}

/// Returns a random number below `n`, which is not 0.
///
/// The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014), and the range is by multiplication (Lemire, "Fast random integer
/// generation in an interval", 2019), without its rejection: the bias is below `n / 2^64`.
fn below(random: &mut u64, n: usize) -> usize {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *random;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    ((u128::from(z) * n as u128) >> 64) as usize
}
