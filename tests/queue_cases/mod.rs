//! The cases of TensorFlow's tests of queues, on every engine.
//!
//! They are those of `fifo_queue_test.py`, `padding_fifo_queue_test.py`, `priority_queue_test.py`
//! and `random_shuffle_queue_test.py`. Cases of one queue of numbers are scripts in the table
//! below, each for all orders for which it holds. [`elements`] has those of types and shapes, and
//! [`threads`] those of many threads.
//!
//! Outcomes that differ from TensorFlow's:
//!
//! - A batch that exceeds the capacity is an error (`testEnqueueManyLargerThanCapacityWith..`): it
//!   is added at once, since no step is committed in parts. A batch that is removed may exceed it.
//! - Closing twice is no error, and closing does not wait for those who wait for room: they add
//!   later, and whoever removes waits for them.
//! - A canceled `dequeue_many`, and a step that fails, lose no element.
//! - Equal priorities are first in, first out. A batch by priority may exceed the capacity, too.
//! - `close` takes no flag: [`close_and_cancel`](anabranch::HostQueue::close_and_cancel) is of the
//!   host.
//!
//! Cases that do not apply:
//!
//! - `testConstructor*`, `testDeviceColocation`, `testSharedQueue*`,
//!   `testIncompatibleSharedQueue*`, `QueueContainerTest`, `testNames`: there are no graph
//!   definitions, `shared_name`s and containers; a queue is a value, and its handles are copies of
//!   it.
//! - `testEnqueueDict*`, `FIFOQueueDictTest`: an element is a Rust type, so a struct has names.
//! - `testMultiEnqueueWrong*`, `testEnqueueWrongTypes`: such programs are not Rust.
//! - `testNoShapes` and unknown ranks: an element has a rank.
//! - `testSelectQueueOutOfRange`: queues are chosen by branches of the graph, which are exhaustive.
//! - `testResetOfBlockingOperation`: in `tests/queues.rs`, as the end of the queues of a session.
//! - `benchmark*`: in `benches/`.

mod elements;
mod script;
mod threads;

use anabranch::ErrorKind::{AssertionFailed, Closed, Invalid};
use anabranch::dsl::queue::QueueOrder;
use script::Act::{
    Close, CloseAndCancel, Dequeue, DequeueAndFail, DequeueEach, DequeueMany, DequeueUpTo, Enqueue, EnqueueMany,
    HostClose, Pop, Push,
};
use script::Gives::{Fails, Got};
use script::Line::{Cancel, Canceled, Ends, Len, Now, Waits};
use script::{Case, play_all};

const SHUFFLE: QueueOrder = QueueOrder::Shuffle { min_left: 0, seed: 7 };
const MIXED: QueueOrder = QueueOrder::Shuffle { min_left: 2, seed: 7 };

/// All orders. Those who wait take elements one by one, except by priority.
const ALL: &[QueueOrder] = &[QueueOrder::Fifo, QueueOrder::Padding, QueueOrder::Priority, SHUFFLE];
const PIECEWISE: &[QueueOrder] = &[QueueOrder::Fifo, QueueOrder::Padding, SHUFFLE];

const CLOSED: script::Gives = Fails(Closed, "the queue `q` is closed");
const DONE: script::Gives = Got(&[]);

/// Numbers are added in ascending order, so that these scripts hold for priorities, too.
const OPEN: &[Case] = &[
    Case {
        name: "one by one: testEnqueue, testDequeue",
        orders: ALL,
        capacity: 10,
        lines: &[
            Now(Enqueue(10), DONE),
            Now(Push(20), DONE),
            Now(Enqueue(30), DONE),
            Now(Dequeue, Got(&[10])),
            Now(Pop, Got(&[20])),
            Now(Dequeue, Got(&[30])),
        ],
    },
    Case {
        name: "the length: testQueueSizeEmpty, testQueueSizeAfterEnqueueAndDequeue",
        orders: ALL,
        capacity: 10,
        lines: &[Len(0), Now(Enqueue(42), DONE), Len(1), Now(Dequeue, Got(&[42])), Len(0)],
    },
    Case {
        name: "several removals of one step: testMultipleDequeues",
        orders: ALL,
        capacity: 10,
        lines: &[Now(EnqueueMany(&[1, 2, 3]), DONE), Now(DequeueEach(3), Got(&[1, 2, 3])), Len(0)],
    },
    Case {
        name: "batches in: testEnqueueMany",
        orders: ALL,
        capacity: 10,
        lines: &[
            Now(EnqueueMany(&[10, 20, 30, 40]), DONE),
            Now(EnqueueMany(&[50, 60, 70, 80]), DONE),
            Now(DequeueEach(7), Got(&[10, 20, 30, 40, 50, 60, 70])),
            Now(Dequeue, Got(&[80])),
        ],
    },
    Case {
        name: "batches out: testDequeueMany, testDequeueUpToNoBlocking",
        orders: ALL,
        capacity: 10,
        lines: &[
            Now(EnqueueMany(&[10, 20, 30, 40, 50, 60, 70, 80]), DONE),
            Now(DequeueMany(4), Got(&[10, 20, 30, 40])),
            Now(DequeueUpTo(3), Got(&[50, 60, 70])),
            Now(DequeueMany(1), Got(&[80])),
        ],
    },
    Case {
        name: "empty batches: testEmptyEnqueueMany, testEmptyDequeueMany, testEmptyDequeueUpTo",
        orders: ALL,
        capacity: 2,
        lines: &[
            Now(EnqueueMany(&[]), DONE),
            Len(0),
            Now(DequeueMany(0), DONE),
            Now(DequeueUpTo(0), DONE),
            Now(Enqueue(1), DONE),
            Now(DequeueMany(0), DONE),
            Now(DequeueUpTo(0), DONE),
            Now(Enqueue(2), DONE),
            // Nobody waits for room for nothing.
            Now(EnqueueMany(&[]), DONE),
            Len(2),
            Now(Close, DONE),
            Now(EnqueueMany(&[]), DONE),
            Now(DequeueMany(0), DONE),
            Now(DequeueUpTo(0), DONE),
            Len(2),
        ],
    },
    Case {
        name: "who removes waits: testEnqueueAndBlockingDequeue",
        orders: ALL,
        capacity: 3,
        lines: &[
            Waits(Dequeue),
            Now(Enqueue(10), DONE),
            Ends(0, Got(&[10])),
            Waits(Pop),
            Now(Push(20), DONE),
            Ends(3, Got(&[20])),
            Waits(DequeueUpTo(2)),
            Now(Enqueue(30), DONE),
            Now(Enqueue(40), DONE),
            Ends(6, Got(&[30, 40])),
        ],
    },
    Case {
        name: "who adds waits: testBlockingEnqueueToFullQueue",
        orders: ALL,
        capacity: 4,
        lines: &[
            Now(EnqueueMany(&[10, 20, 30, 40]), DONE),
            Waits(Enqueue(50)),
            Now(Dequeue, Got(&[10])),
            Ends(1, DONE),
            Waits(Push(60)),
            Now(Pop, Got(&[20])),
            Ends(4, DONE),
            Len(4),
            Now(DequeueMany(4), Got(&[30, 40, 50, 60])),
        ],
    },
    Case {
        name: "a batch waits for room for all of it: testBlockingEnqueueManyToFullQueue",
        orders: ALL,
        capacity: 4,
        lines: &[
            Now(EnqueueMany(&[10, 20, 30, 40]), DONE),
            Waits(EnqueueMany(&[50, 60])),
            Now(Dequeue, Got(&[10])),
            Len(3),
            Now(Dequeue, Got(&[20])),
            Ends(1, DONE),
            Len(4),
            Now(DequeueMany(4), Got(&[30, 40, 50, 60])),
        ],
    },
    Case {
        name: "a batch that never fits is refused: testEnqueueManyLargerThanCapacity..",
        orders: ALL,
        capacity: 4,
        lines: &[
            Now(EnqueueMany(&[1, 2, 3, 4, 5]), Fails(Invalid, "5 elements never fit")),
            Len(0),
            Now(EnqueueMany(&[1, 2, 3, 4]), DONE),
        ],
    },
    Case {
        name: "a batch out exceeds the capacity: testEnqueueManyLargerThanCapacityWithConcurrentDequeueMany",
        orders: PIECEWISE,
        capacity: 2,
        lines: &[
            Waits(DequeueMany(4)),
            Now(Enqueue(10), DONE),
            Now(Enqueue(20), DONE),
            Now(Enqueue(30), DONE),
            Len(0),
            Now(Enqueue(40), DONE),
            Ends(0, Got(&[10, 20, 30, 40])),
            Len(0),
        ],
    },
    Case {
        name: "a batch in larger than the room that a batch out makes: testBlockingEnqueueManyToFullQueue",
        orders: ALL,
        capacity: 4,
        lines: &[
            Now(EnqueueMany(&[1, 2, 3]), DONE),
            Waits(EnqueueMany(&[4, 5])),
            Now(DequeueMany(5), Got(&[1, 2, 3, 4, 5])),
            Ends(1, DONE),
        ],
    },
    Case {
        name: "elements that return keep their places: _testDequeueOfFailedStep",
        orders: ALL,
        capacity: 4,
        lines: &[
            Now(EnqueueMany(&[1, 2, 3]), DONE),
            Now(DequeueAndFail(2), Fails(AssertionFailed, "the step fails")),
            Len(3),
            Now(Enqueue(4), DONE),
            Now(DequeueAndFail(4), Fails(AssertionFailed, "the step fails")),
            Now(DequeueMany(4), Got(&[1, 2, 3, 4])),
        ],
    },
    Case {
        name: "canceled waits have no effect: testReusableAfterTimeout",
        orders: ALL,
        capacity: 2,
        lines: &[
            Canceled(Dequeue),
            Canceled(DequeueMany(2)),
            Canceled(DequeueUpTo(2)),
            Now(Enqueue(37), DONE),
            Canceled(DequeueMany(2)),
            Canceled(DequeueUpTo(2)),
            Canceled(EnqueueMany(&[1, 2])),
            Len(1),
            Now(Enqueue(38), DONE),
            Canceled(Enqueue(1)),
            Now(Dequeue, Got(&[37])),
            Now(Dequeue, Got(&[38])),
        ],
    },
    Case {
        name: "a canceled batch returns what it had, before later elements",
        orders: PIECEWISE,
        capacity: 4,
        lines: &[
            Now(EnqueueMany(&[1, 2]), DONE),
            Waits(DequeueMany(5)),
            Len(0),
            Now(Enqueue(3), DONE),
            Len(0),
            Cancel(1),
            Len(3),
            Now(Enqueue(4), DONE),
            Now(DequeueMany(4), Got(&[1, 2, 3, 4])),
        ],
    },
    Case {
        name: "who came first is served first",
        orders: &[QueueOrder::Fifo, QueueOrder::Padding],
        capacity: 4,
        lines: &[
            Waits(DequeueMany(3)),
            Waits(Dequeue),
            Waits(DequeueUpTo(2)),
            Now(EnqueueMany(&[1, 2]), DONE),
            Now(EnqueueMany(&[3, 4]), DONE),
            Ends(0, Got(&[1, 2, 3])),
            Ends(1, Got(&[4])),
            Now(EnqueueMany(&[5, 6]), DONE),
            Ends(2, Got(&[5, 6])),
            Now(EnqueueMany(&[1, 2, 3]), DONE),
            Waits(EnqueueMany(&[4, 5, 6])),
            Waits(Enqueue(7)),
            // There was room for the single element before.
            Now(DequeueMany(2), Got(&[1, 2])),
            Ends(10, DONE),
            Now(Dequeue, Got(&[3])),
            Ends(11, DONE),
            Now(DequeueMany(4), Got(&[4, 5, 6, 7])),
        ],
    },
];

const AFTER_CLOSE: &[Case] = &[
    Case {
        name: "one by one: testDequeueFromClosedQueue",
        orders: ALL,
        capacity: 10,
        lines: &[
            Now(EnqueueMany(&[10, 20, 30, 40]), DONE),
            Now(Close, DONE),
            Now(DequeueEach(2), Got(&[10, 20])),
            Now(Dequeue, Got(&[30])),
            Now(Pop, Got(&[40])),
            Now(Dequeue, Fails(Closed, "is closed and has 0 of 1 elements")),
            Now(Pop, DONE),
            Now(DequeueUpTo(2), Fails(Closed, "is closed and has 0 of 2 elements")),
        ],
    },
    Case {
        name: "a batch that is too large stays: testBlockingDequeueManyFromClosedQueueWithElementsRemaining",
        orders: ALL,
        capacity: 4,
        lines: &[
            Now(EnqueueMany(&[10, 20, 30, 40]), DONE),
            Now(HostClose, DONE),
            Now(DequeueMany(3), Got(&[10, 20, 30])),
            Now(DequeueMany(3), Fails(Closed, "has 1 of 3 elements")),
            Len(1),
            Now(Dequeue, Got(&[40])),
        ],
    },
    Case {
        name: "the rest: testDequeueUpToFromClosedQueueReturnsRemainder",
        orders: ALL,
        capacity: 4,
        lines: &[
            Now(EnqueueMany(&[10, 20, 30, 40]), DONE),
            Now(Close, DONE),
            Now(DequeueUpTo(3), Got(&[10, 20, 30])),
            Now(DequeueUpTo(3), Got(&[40])),
            Now(DequeueUpTo(3), Fails(Closed, "has 0 of 3 elements")),
        ],
    },
    Case {
        name: "nothing is added: testEnqueueToClosedQueue, testEnqueueManyToClosedQueue",
        orders: ALL,
        capacity: 10,
        lines: &[
            Now(Enqueue(1), DONE),
            Now(Close, DONE),
            Now(Enqueue(2), CLOSED),
            Now(EnqueueMany(&[3, 4]), CLOSED),
            Now(Push(5), CLOSED),
            Now(Close, DONE),
            Now(HostClose, DONE),
            Now(CloseAndCancel, DONE),
            Len(1),
        ],
    },
    Case {
        name: "a step that fails returns elements to a closed queue",
        orders: ALL,
        capacity: 4,
        lines: &[
            Now(EnqueueMany(&[1, 2, 3]), DONE),
            Now(Close, DONE),
            Now(DequeueAndFail(3), Fails(AssertionFailed, "the step fails")),
            Now(DequeueMany(3), Got(&[1, 2, 3])),
        ],
    },
];

const CLOSED_DURING_WAITS: &[Case] = &[
    Case {
        name: "nothing there: testBlockingDequeueFromClosedEmptyQueue, ..ManyFromClosedEmptyQueue, ..UpTo..",
        orders: ALL,
        capacity: 10,
        lines: &[
            Waits(Dequeue),
            Waits(DequeueMany(4)),
            Waits(DequeueUpTo(4)),
            Waits(Pop),
            Now(Close, DONE),
            Ends(0, Fails(Closed, "has 0 of 1 elements")),
            Ends(1, Fails(Closed, "has 0 of 4 elements")),
            Ends(2, Fails(Closed, "has 0 of 4 elements")),
            Ends(3, DONE),
        ],
    },
    Case {
        name: "all was removed before: testBlockingDequeueFromClosedQueue",
        orders: ALL,
        capacity: 10,
        lines: &[
            Now(EnqueueMany(&[10, 20]), DONE),
            Now(DequeueEach(2), Got(&[10, 20])),
            Waits(Dequeue),
            Now(HostClose, DONE),
            Ends(2, Fails(Closed, "has 0 of 1 elements")),
        ],
    },
    Case {
        name: "a batch in part: testBlockingDequeueManyButNotAllFromClosedQueue, testClosedBlockingDequeue\
               ManyRestoresPartialBatch",
        orders: ALL,
        capacity: 4,
        lines: &[
            Now(EnqueueMany(&[10, 20, 30]), DONE),
            Waits(DequeueMany(4)),
            Now(Close, DONE),
            Ends(1, Fails(Closed, "has 3 of 4 elements")),
            Len(3),
            Now(DequeueEach(3), Got(&[10, 20, 30])),
        ],
    },
    Case {
        name: "a batch of at most as many: testBlockingDequeueUpToFromClosedQueueReturnsRemainder",
        orders: ALL,
        capacity: 4,
        lines: &[
            Now(EnqueueMany(&[10, 20, 30]), DONE),
            Waits(DequeueUpTo(4)),
            Now(Close, DONE),
            Ends(1, Got(&[10, 20, 30])),
        ],
    },
    Case {
        name: "who waits for room adds: testBlockingEnqueueBeforeClose",
        orders: ALL,
        capacity: 4,
        lines: &[
            Now(EnqueueMany(&[10, 20, 30, 40]), DONE),
            Waits(Enqueue(50)),
            Now(Close, DONE),
            Now(Enqueue(60), CLOSED),
            Now(Dequeue, Got(&[10])),
            Ends(1, DONE),
            Now(DequeueEach(4), Got(&[20, 30, 40, 50])),
            Now(Dequeue, CLOSED),
            Len(0),
        ],
    },
    Case {
        name: "a batch that waits for room is added: testBlockingEnqueueManyBeforeClose",
        orders: ALL,
        capacity: 4,
        lines: &[
            Now(EnqueueMany(&[10, 20, 30]), DONE),
            Waits(EnqueueMany(&[50, 60])),
            Now(HostClose, DONE),
            Now(Dequeue, Got(&[10])),
            Ends(1, DONE),
            Now(DequeueUpTo(5), Got(&[20, 30, 50, 60])),
            Len(0),
        ],
    },
    Case {
        name: "a batch of the rest waits for those who wait for room: testBlockingDequeueUpTo..BeforeClose",
        orders: ALL,
        capacity: 2,
        lines: &[
            Now(EnqueueMany(&[1, 2]), DONE),
            Waits(EnqueueMany(&[3, 4])),
            Now(Close, DONE),
            Now(DequeueUpTo(9), Got(&[1, 2, 3, 4])),
            Ends(1, DONE),
        ],
    },
    Case {
        name: "who waits for room is ended: close(cancel_pending_enqueues=True)",
        orders: ALL,
        capacity: 4,
        lines: &[
            Now(EnqueueMany(&[10, 20, 30, 40]), DONE),
            Waits(Enqueue(50)),
            Waits(EnqueueMany(&[50, 60])),
            Waits(Push(70)),
            Now(CloseAndCancel, DONE),
            Ends(1, CLOSED),
            Ends(2, CLOSED),
            Ends(3, CLOSED),
            Now(DequeueUpTo(9), Got(&[10, 20, 30, 40])),
        ],
    },
    Case {
        name: "who still waited after the first close is ended by the second",
        orders: ALL,
        capacity: 1,
        lines: &[
            Now(Enqueue(1), DONE),
            Waits(Enqueue(2)),
            Now(Close, DONE),
            Now(CloseAndCancel, DONE),
            Ends(1, CLOSED),
            Now(Dequeue, Got(&[1])),
            Now(Dequeue, CLOSED),
        ],
    },
];

const SHUFFLED: &[Case] = &[
    Case {
        name: "a queue keeps its minimum: testBlockingDequeueFromClosedQueue",
        orders: &[MIXED],
        capacity: 10,
        lines: &[
            Now(EnqueueMany(&[10, 20, 30, 40]), DONE),
            Now(DequeueEach(2), Got(&[0; 2])),
            Waits(Dequeue),
            Len(2),
            Now(Close, DONE),
            Ends(2, Got(&[0])),
            Now(Dequeue, Got(&[0])),
            Now(Dequeue, CLOSED),
        ],
    },
    Case {
        name: "the rest, too: testDequeueUpToFromClosedQueueReturnsRemainder",
        orders: &[MIXED],
        capacity: 10,
        lines: &[
            Now(EnqueueMany(&[10, 20, 30, 40]), DONE),
            Waits(DequeueUpTo(3)),
            Len(2),
            Now(Close, DONE),
            Ends(1, Got(&[0; 3])),
            Now(DequeueUpTo(3), Got(&[0])),
        ],
    },
    Case {
        name: "batches count the minimum: testDequeueMany",
        orders: &[MIXED],
        capacity: 10,
        lines: &[
            Now(EnqueueMany(&[1, 2, 3, 4, 5]), DONE),
            Now(DequeueMany(3), Got(&[0; 3])),
            Canceled(Dequeue),
            Canceled(DequeueMany(3)),
            Canceled(DequeueUpTo(1)),
            Len(2),
            Waits(DequeueMany(2)),
            Now(EnqueueMany(&[6, 7]), DONE),
            Ends(6, Got(&[0; 2])),
            Len(2),
        ],
    },
    Case {
        name: "a closed queue has fewer than its minimum: testBlockingDequeueManyFromClosedQueueWith\
               ElementsRemaining",
        orders: &[MIXED],
        capacity: 10,
        lines: &[
            Now(EnqueueMany(&[1, 2, 3, 4]), DONE),
            Now(DequeueMany(2), Got(&[0; 2])),
            Waits(DequeueMany(3)),
            Now(Close, DONE),
            Ends(2, Fails(Closed, "has 2 of 3 elements")),
            Now(DequeueMany(2), Got(&[0; 2])),
        ],
    },
    Case {
        name: "a batch enters beyond the capacity if the minimum would keep it out for good",
        orders: &[MIXED],
        capacity: 3,
        lines: &[
            Now(EnqueueMany(&[1, 2]), DONE),
            Waits(EnqueueMany(&[3, 4])),
            Now(Dequeue, Got(&[0])),
            Ends(1, DONE),
            Len(3),
            Canceled(Enqueue(5)),
        ],
    },
    Case {
        name: "a failure returns elements to the minimum",
        orders: &[MIXED],
        capacity: 10,
        lines: &[
            Now(EnqueueMany(&[1, 2, 3, 4]), DONE),
            Now(DequeueAndFail(2), Fails(AssertionFailed, "the step fails")),
            Len(4),
            Now(DequeueMany(2), Got(&[0; 2])),
            Canceled(Dequeue),
        ],
    },
];

const BY_PRIORITY: &[Case] = &[
    Case {
        name: "the smallest first: testRoundTripInsertReadOnceSorts, testRoundTripInsertOnceReadManySorts",
        orders: &[QueueOrder::Priority],
        capacity: 10,
        lines: &[
            Now(EnqueueMany(&[5, -3, i64::MAX, 0]), DONE),
            Now(Enqueue(i64::MIN), DONE),
            Now(Enqueue(4), DONE),
            Now(DequeueMany(2), Got(&[i64::MIN, -3])),
            Now(Enqueue(-9), DONE),
            Now(DequeueUpTo(3), Got(&[-9, 0, 4])),
            Now(DequeueEach(2), Got(&[5, i64::MAX])),
        ],
    },
    Case {
        name: "a batch is in order whenever its elements came: testRoundTripInsertManyMultiThreadedReadOnceSorts",
        orders: &[QueueOrder::Priority],
        capacity: 10,
        lines: &[
            Now(EnqueueMany(&[5, 3]), DONE),
            Waits(DequeueMany(4)),
            Len(2),
            Now(Enqueue(4), DONE),
            Len(3),
            Now(EnqueueMany(&[1, 9]), DONE),
            Ends(1, Got(&[1, 3, 4, 5])),
            Len(1),
        ],
    },
    Case {
        name: "a batch out exceeds the capacity, and its elements come in portions",
        orders: &[QueueOrder::Priority],
        capacity: 2,
        lines: &[
            Waits(DequeueMany(5)),
            Now(EnqueueMany(&[5, 4]), DONE),
            Len(2),
            Now(Push(3), DONE),
            Now(EnqueueMany(&[2, 1]), DONE),
            Ends(0, Got(&[1, 2, 3, 4, 5])),
            Now(EnqueueMany(&[6, 7]), DONE),
            Canceled(Enqueue(8)),
        ],
    },
    Case {
        name: "elements that return are in order",
        orders: &[QueueOrder::Priority],
        capacity: 10,
        lines: &[
            Now(EnqueueMany(&[5, 3, 4]), DONE),
            Now(DequeueAndFail(2), Fails(AssertionFailed, "the step fails")),
            Now(Enqueue(2), DONE),
            Now(DequeueMany(4), Got(&[2, 3, 4, 5])),
        ],
    },
];

#[test]
fn open_queues() {
    play_all(OPEN);
}

#[test]
fn closed_queues() {
    play_all(AFTER_CLOSE);
}

#[test]
fn queues_that_are_closed_during_waits() {
    play_all(CLOSED_DURING_WAITS);
}

#[test]
fn shuffling_queues() {
    play_all(SHUFFLED);
}

#[test]
fn queues_with_priorities() {
    play_all(BY_PRIORITY);
}
