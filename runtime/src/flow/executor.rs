//! The executor of one subgraph: a state machine without threads, clocks or channels.
//!
//! The executor receives events ([`start`](Executor::start), [`on_message`](Executor::on_message),
//! [`loaded`](Executor::loaded), [`on_kernel_done`](Executor::on_kernel_done),
//! [`on_predicate`](Executor::on_predicate)) and returns actions ([`poll`](Executor::poll)). An
//! executor reads no value, since values may be in the memory of a device; the driver reads
//! predicates for it. The actions of an executor depend on the events and not on the timing. In
//! whatever order completions and messages arrive, each node of a live block runs once in each
//! iteration, with the same inputs.
//!
//! A running frame is an *instance* with a ring of iteration states, at most as many as the window
//! of its loop. An iteration counts the unfinished nodes of its live blocks. An iteration ends when
//! no node is left and all earlier iterations have ended. Later runs of the same loop reuse
//! instances and their rings, so a step allocates nothing for them after warm-up.

mod gate;
#[cfg(any(test, all(feature = "peers", feature = "testing")))]
pub(crate) mod hostile;

use super::{
    BlockId, EdgeId, FlowOp, Frame, FrameId, KernelId, LoopId, NodeId, Sink, Source, Subgraph, SubgraphId, Target,
};
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The iteration numbers of all enclosing loops, outermost first. With an edge, it is the
/// rendezvous key.
pub(crate) type Tag = SmallVec<[u64; 4]>;

/// A message from one device's executor to another's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DeviceMessage<V> {
    /// A value.
    Value { edge: EdgeId, tag: Tag, value: V },
    /// The number of iterations of a loop that the sender has finished. `tag` identifies the
    /// iterations around the loop.
    Credit { of: LoopId, tag: Tag, finished: u64 },
}

/// A running node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TaskId(u32);

/// An action requested of the driver.
#[derive(Debug)]
pub(crate) enum Action<V> {
    /// Transfer an initial value of the step to the device, and report its arrival to
    /// [`loaded`](Executor::loaded).
    Load { task: TaskId, source: Source },
    /// Read a predicate and report its value to [`on_predicate`](Executor::on_predicate).
    Read { task: TaskId, predicate: V },
    /// Run a kernel and report its results to [`on_kernel_done`](Executor::on_kernel_done).
    Run { task: TaskId, kernel: KernelId, inputs: Vec<V> },
    /// Send a message to another subgraph.
    Send { to: SubgraphId, message: DeviceMessage<V> },
    /// Store a result of the step.
    Give { sink: Sink, value: V },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockState {
    /// Not known yet.
    Waiting,
    Live,
    Dead,
}

/// The state of one iteration.
#[derive(Debug)]
struct Iteration<V> {
    /// The number of unsatisfied dependencies of each node of the frame.
    needs: Vec<u32>,
    /// Inputs that have arrived and are not consumed yet.
    inputs: Vec<Option<V>>,
    /// The state of each block of the frame.
    life: Vec<BlockState>,
    /// The running instances of nested frames.
    inner: Vec<Option<InstanceId>>,
    /// Number of unfinished nodes in live blocks.
    remaining: u32,
}

/// Index of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InstanceId(u32);

impl InstanceId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// A running frame.
#[derive(Debug)]
struct FrameInstance<V> {
    frame: FrameId,
    /// The parent instance and the iteration in which this instance began.
    parent: Option<(InstanceId, u64)>,
    /// The iterations around this instance.
    tag: Tag,
    ring: Vec<Iteration<V>>,
    /// The oldest unfinished iteration. `next` is one past the last iteration begun.
    first: u64,
    next: u64,
    /// Whether an iteration is waiting for the window.
    wants_next: bool,
    /// Whether the predicate has been false.
    ended: bool,
    /// Inputs of the next iteration, held until it begins.
    for_next: Vec<(Target, V)>,
    constants: Vec<Option<V>>,
    /// Number of iterations that each follower has finished.
    finished: Vec<u64>,
    /// Number of finished iterations reported to the leader.
    reported: u64,
}

impl<V> Iteration<V> {
    fn new(frame: &Frame) -> Iteration<V> {
        Iteration {
            needs: Vec::with_capacity(frame.nodes.len()),
            inputs: (0..frame.n_slots).map(|_| None).collect(),
            life: vec![BlockState::Waiting; frame.blocks.len()],
            inner: vec![None; frame.n_inner as usize],
            remaining: 0,
        }
    }
}

/// Returns the bytes of the state of an iteration, without its values.
fn bytes_of_iteration<V>(frame: &Frame) -> u64 {
    let of_slots = frame.n_slots as usize * size_of::<Option<V>>();
    let of_nodes = frame.nodes.len() * size_of::<u32>();
    let of_blocks = frame.blocks.len() * size_of::<BlockState>();
    let of_inner = frame.n_inner as usize * size_of::<Option<InstanceId>>();
    (size_of::<Iteration<V>>() + of_slots + of_nodes + of_blocks + of_inner) as u64
}

impl<V> FrameInstance<V> {
    /// Resizes the ring to `n` states and keeps the states of running iterations.
    fn grow(&mut self, frame: &Frame, n: usize) {
        let old = self.ring.len() as u64;
        let mut ring: Vec<Iteration<V>> = (0..n).map(|_| Iteration::new(frame)).collect();
        for iteration in self.first..self.next {
            let from = &mut self.ring[(iteration % old) as usize];
            std::mem::swap(from, &mut ring[iteration as usize % n]);
        }
        self.ring = ring;
    }
}

/// A node whose dependencies are all satisfied.
#[derive(Clone, Copy, Debug)]
struct Ready {
    instance: InstanceId,
    iteration: u64,
    node: NodeId,
}

/// The executor of one subgraph. An executor runs one step at a time and is reusable.
#[derive(Debug)]
pub(crate) struct Executor<V> {
    part: Arc<Subgraph>,
    state: ExecutorState<V>,
}

/// The mutable state of an executor. The subgraph itself is shared and immutable.
#[derive(Debug)]
struct ExecutorState<V> {
    instances: Vec<FrameInstance<V>>,
    /// The unused instances of each frame.
    free: Vec<Vec<InstanceId>>,
    ready: VecDeque<Ready>,
    actions: VecDeque<Action<V>>,
    tasks: Vec<Option<Ready>>,
    free_tasks: Vec<u32>,
    /// Values that arrived before their iteration began, by frame and tag.
    early: Vec<HashMap<Tag, Vec<(NodeId, V)>>>,
    /// Empty vectors for the inputs of kernels. Each kernel takes one and gives one back with its
    /// results, so there are at most as many as kernels that ever ran at once.
    spare: Vec<Vec<V>>,
    /// The bytes of the states of iterations.
    state_bytes: u64,
    finished: bool,
}

/// The instance of the step, which is always the first.
const ROOT: InstanceId = InstanceId(0);

impl<V: Clone> Executor<V> {
    /// Returns an idle executor.
    pub(crate) fn new(part: Arc<Subgraph>) -> Executor<V> {
        let state = ExecutorState {
            instances: Vec::new(),
            free: vec![Vec::new(); part.frames.len()],
            ready: VecDeque::new(),
            actions: VecDeque::new(),
            tasks: Vec::new(),
            free_tasks: Vec::new(),
            early: part.frames.iter().map(|_| HashMap::new()).collect(),
            spare: Vec::new(),
            state_bytes: 0,
            finished: false,
        };
        Executor { part, state }
    }

    /// Returns the subgraph that the executor runs.
    #[cfg(test)]
    pub(crate) fn part(&self) -> &Subgraph {
        &self.part
    }

    /// Begins a step.
    ///
    /// # Panics
    ///
    /// Panics if an earlier step is still running.
    pub(crate) fn start(&mut self) {
        let Executor { part, state } = self;
        assert_eq!(state.n_held(), 0, "an earlier step is still running");
        state.finished = false;
        let root = state.instance(part, FrameId(0), None, Tag::new());
        assert_eq!(root, ROOT, "the first instance is the step");
        state.begin_iteration(part, root);
        if part.nodes.is_empty() {
            state.retire(part, root);
        }
    }

    /// Returns whether the step has ended and all of its actions were polled.
    pub(crate) fn is_finished(&self) -> bool {
        self.state.finished && self.state.actions.is_empty()
    }

    /// Returns the number of values, running kernels and running frames. The count is zero after a
    /// step.
    pub(crate) fn n_held(&self) -> usize {
        self.state.n_held()
    }

    /// Returns the bytes of the states of iterations, which stay allocated between steps.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.state.state_bytes
    }

    /// Returns the largest number of iteration states allocated for one loop, which windows bound.
    #[cfg(any(test, all(feature = "peers", feature = "testing")))]
    pub(crate) fn largest_ring(&self) -> usize {
        self.state.instances.iter().map(|i| i.ring.len()).max().unwrap_or(0)
    }

    /// Returns the next action, or `None` if there is none until another event arrives.
    pub(crate) fn poll(&mut self) -> Option<Action<V>> {
        let Executor { part, state } = self;
        loop {
            if let Some(action) = state.actions.pop_front() {
                return Some(action);
            }
            let ready = state.ready.pop_front()?;
            state.fire(part, ready);
        }
    }

    /// Handles a message from another subgraph.
    pub(crate) fn on_message(&mut self, from: SubgraphId, message: DeviceMessage<V>) {
        let Executor { part, state } = self;
        match message {
            DeviceMessage::Value { edge, tag, value } => {
                let node = part.receivers[&edge];
                let frame = part.blocks[part.nodes[node.index()].block.index()].frame;
                match state.find(part, frame, &tag) {
                    Some((instance, iteration)) => {
                        let slot = part.nodes[node.index()].inputs.start;
                        state.deliver(part, instance, iteration, Target { node, slot }, value);
                    }
                    None => state.early[frame.index()].entry(tag).or_default().push((node, value)),
                }
            }
            DeviceMessage::Credit { of, tag, finished } => {
                let frame = part.frame_of[of.index()].expect("the leader of a loop has its frame");
                // The loop may have ended here in the meantime.
                let Some(instance) = state.find_instance(part, frame, &tag) else { return };
                let follower = part.frames[frame.index()].followers.iter().position(|&p| p == from);
                let follower = follower.expect("only followers send credit");
                // Credits may arrive out of order.
                let known = &mut state.instances[instance.index()].finished[follower];
                *known = finished.max(*known);
                state.begin_next(part, instance);
            }
        }
    }

    /// Returns the iterations in which a task runs.
    pub(crate) fn tag_of(&self, task: TaskId) -> Tag {
        let ready = self.state.tasks[task.0 as usize].expect("the kernel runs");
        self.state.tag(ready.instance, ready.iteration)
    }

    /// Handles the value of a predicate.
    pub(crate) fn on_predicate(&mut self, task: TaskId, truth: bool) {
        let Executor { part, state } = self;
        let ready = state.end_task(task);
        state.switch(part, ready, truth);
        state.complete(part, ready);
    }

    /// An input or a variable is on the device.
    pub(crate) fn loaded(&mut self, task: TaskId, value: V) {
        let Executor { part, state } = self;
        let ready = state.end_task(task);
        let users = &part.nodes[ready.node.index()].users[0];
        state.deliver_all(part, ready.instance, ready.iteration, users, value);
        state.complete(part, ready);
    }

    /// A kernel has run, with these results.
    pub(crate) fn on_kernel_done(&mut self, task: TaskId, mut results: Vec<V>) {
        let Executor { part, state } = self;
        let ready = state.end_task(task);
        let node = &part.nodes[ready.node.index()];
        assert_eq!(results.len(), node.users.len(), "a kernel returns all of its results");
        for (users, value) in node.users.iter().zip(results.drain(..)) {
            state.deliver_all(part, ready.instance, ready.iteration, users, value);
        }
        state.spare.push(results);
        state.complete(part, ready);
    }

    /// Discards the step in any state. Running kernels must not be reported afterwards.
    pub(crate) fn abandon(&mut self) {
        *self = Executor::new(self.part.clone());
        self.state.finished = true;
    }
}

impl<V: Clone> ExecutorState<V> {
    fn n_held(&self) -> usize {
        let early: usize = self.early.iter().map(|e| e.values().map(Vec::len).sum::<usize>()).sum();
        let free: usize = self.free.iter().map(Vec::len).sum();
        let states = self.instances.iter().flat_map(|i| &i.ring);
        let slots = states.flat_map(|i| &i.inputs).flatten().count();
        early + slots + (self.instances.len() - free) + (self.tasks.len() - self.free_tasks.len()) + self.ready.len()
    }

    // Nodes.

    fn fire(&mut self, part: &Subgraph, ready: Ready) {
        let Ready { instance, iteration, node: id } = ready;
        let node = &part.nodes[id.index()];
        match node.op {
            FlowOp::Source(source) => {
                let task = self.begin_task(ready);
                self.actions.push_back(Action::Load { task, source });
                return;
            }
            FlowOp::Sink(sink) => {
                let value = self.take(part, ready);
                self.actions.push_back(Action::Give { sink, value });
            }
            FlowOp::Compute(kernel) => {
                let mut inputs = self.spare.pop().unwrap_or_default();
                let state = self.state(instance, iteration);
                let slots = &mut state.inputs[node.inputs.start as usize..node.inputs.end as usize];
                inputs.extend(
                    slots.iter_mut().map(|slot| slot.take().expect("a node runs after its inputs have arrived")),
                );
                let task = self.begin_task(ready);
                self.actions.push_back(Action::Run { task, kernel, inputs });
                return;
            }
            FlowOp::Send { edge, to } => {
                let value = self.take(part, ready);
                let tag = self.tag(instance, iteration);
                self.actions.push_back(Action::Send { to, message: DeviceMessage::Value { edge, tag, value } });
            }
            FlowOp::Recv(_) | FlowOp::Merge | FlowOp::Yield => {
                let value = self.take(part, ready);
                self.deliver_all(part, instance, iteration, &node.users[0], value);
            }
            FlowOp::Switch { .. } | FlowOp::LoopSwitch { .. } => {
                let predicate = self.take(part, ready);
                let task = self.begin_task(ready);
                self.actions.push_back(Action::Read { task, predicate });
                return;
            }
            FlowOp::Loop(frame) => {
                let tag = self.tag(instance, iteration);
                let inner = self.instance(part, frame, Some((instance, iteration)), tag);
                let frame = &part.frames[frame.index()];
                self.state(instance, iteration).inner[frame.position as usize] = Some(inner);
                self.begin_iteration(part, inner);
                for &enter in &frame.enters {
                    self.satisfy_dependency(part, instance, iteration, enter);
                }
                return;
            }
            FlowOp::Enter(frame) => {
                let value = self.take(part, ready);
                let position = part.frames[frame.index()].position as usize;
                let inner = self.state(instance, iteration).inner[position].expect("a loop waits for its variables");
                self.deliver_all(part, inner, 0, &node.users[0], value);
            }
            FlowOp::EnterConstant { frame, constant } => {
                let value = self.take(part, ready);
                let frame = &part.frames[frame.index()];
                // The loop may have ended already, if no node that ran needed the value.
                if let Some(inner) = self.state(instance, iteration).inner[frame.position as usize] {
                    let running = &mut self.instances[inner.index()];
                    running.constants[constant as usize] = Some(value.clone());
                    for iteration in running.first..running.next {
                        let users = &frame.constants[constant as usize];
                        self.deliver_all(part, inner, iteration, users, value.clone());
                    }
                }
            }
            FlowOp::Exit => {
                let value = self.take(part, ready);
                let parent = self.instances[instance.index()].parent;
                let (outer, outer_iteration) = parent.expect("an exit is in a loop");
                self.deliver_all(part, outer, outer_iteration, &node.users[0], value);
            }
            FlowOp::NextIteration => {
                let value = self.take(part, ready);
                let running = &mut self.instances[instance.index()];
                if running.next > iteration + 1 {
                    self.deliver_all(part, instance, iteration + 1, &node.users[0], value);
                } else {
                    running.for_next.extend(node.users[0].iter().map(|&t| (t, value.clone())));
                }
            }
            FlowOp::Order => {}
        }
        self.complete(part, ready);
    }

    /// Registers a node that the driver runs.
    fn begin_task(&mut self, ready: Ready) -> TaskId {
        let task = self.free_tasks.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            self.tasks.len() as u32 - 1
        });
        self.tasks[task as usize] = Some(ready);
        TaskId(task)
    }

    fn end_task(&mut self, task: TaskId) -> Ready {
        self.free_tasks.push(task.0);
        self.tasks[task.0 as usize].take().expect("a task completes only once")
    }

    /// Executes a switch whose predicate is known.
    fn switch(&mut self, part: &Subgraph, Ready { instance, iteration, node }: Ready, truth: bool) {
        let (then, otherwise, is_loop) = match part.nodes[node.index()].op {
            FlowOp::Switch { then, otherwise } => (then, otherwise, false),
            FlowOp::LoopSwitch { body, exits } => (body, exits, true),
            op => panic!("{op:?} has no predicate"),
        };
        let (live, dead) = if truth { (then, otherwise) } else { (otherwise, then) };
        self.kill_block(part, instance, iteration, dead);
        self.activate_block(part, instance, iteration, live);
        if !is_loop {
            return;
        }
        let running = &mut self.instances[instance.index()];
        if truth {
            running.wants_next = true;
            self.begin_next(part, instance);
        } else {
            running.ended = true;
        }
    }

    /// Handles the completion of a node.
    fn complete(&mut self, part: &Subgraph, Ready { instance, iteration, node }: Ready) {
        for &later in &part.nodes[node.index()].before {
            self.satisfy_dependency(part, instance, iteration, later);
        }
        let state = self.state(instance, iteration);
        state.remaining -= 1;
        if state.remaining == 0 {
            self.retire(part, instance);
        }
    }

    /// Returns the only input of a node.
    fn take(&mut self, part: &Subgraph, Ready { instance, iteration, node }: Ready) -> V {
        let slot = part.nodes[node.index()].inputs.start as usize;
        self.state(instance, iteration).inputs[slot].take().expect("a node runs after its inputs have arrived")
    }

    fn deliver_all(&mut self, part: &Subgraph, instance: InstanceId, iteration: u64, users: &[Target], value: V) {
        let Some((&last, others)) = users.split_last() else { return };
        for &user in others {
            self.deliver(part, instance, iteration, user, value.clone());
        }
        self.deliver(part, instance, iteration, last, value);
    }

    fn deliver(&mut self, part: &Subgraph, instance: InstanceId, iteration: u64, to: Target, value: V) {
        let block = part.nodes[to.node.index()].block;
        let frame = &part.frames[part.blocks[block.index()].frame.index()];
        let block = block.0 - frame.blocks.start;
        let state = self.state(instance, iteration);
        if state.life[block as usize] == BlockState::Dead {
            return;
        }
        let before = state.inputs[to.slot as usize].replace(value);
        assert!(before.is_none(), "an input of {:?} arrived twice", to.node);
        self.satisfy_dependency(part, instance, iteration, to.node);
    }

    /// Marks one dependency of a node as satisfied, and queues the node when none is left.
    fn satisfy_dependency(&mut self, part: &Subgraph, instance: InstanceId, iteration: u64, node: NodeId) {
        let first = part.frames[self.instances[instance.index()].frame.index()].nodes.start;
        let needs = &mut self.state(instance, iteration).needs[(node.0 - first) as usize];
        *needs -= 1;
        if *needs == 0 {
            self.ready.push_back(Ready { instance, iteration, node });
        }
    }

    // Blocks.

    fn activate_block(&mut self, part: &Subgraph, instance: InstanceId, iteration: u64, block: BlockId) {
        let nodes = part.blocks[block.index()].nodes.clone();
        let first = part.frames[self.instances[instance.index()].frame.index()].blocks.start;
        let state = self.state(instance, iteration);
        state.life[(block.0 - first) as usize] = BlockState::Live;
        state.remaining += nodes.len() as u32;
        for node in nodes {
            self.satisfy_dependency(part, instance, iteration, NodeId(node));
        }
    }

    fn kill_block(&mut self, part: &Subgraph, instance: InstanceId, iteration: u64, block: BlockId) {
        let first = part.frames[self.instances[instance.index()].frame.index()].blocks.start;
        let state = self.state(instance, iteration);
        let data = &part.blocks[block.index()];
        for &block in std::iter::once(&block).chain(&data.inner) {
            state.life[(block.0 - first) as usize] = BlockState::Dead;
            let slots = &part.blocks[block.index()].slots;
            state.inputs[slots.start as usize..slots.end as usize].fill_with(|| None);
        }
    }

    // Frames.

    fn state(&mut self, instance: InstanceId, iteration: u64) -> &mut Iteration<V> {
        let running = &mut self.instances[instance.index()];
        debug_assert!(running.first <= iteration && iteration < running.next, "the iteration is running");
        let i = iteration as usize % running.ring.len();
        &mut running.ring[i]
    }

    fn tag(&self, instance: InstanceId, iteration: u64) -> Tag {
        let mut tag = self.instances[instance.index()].tag.clone();
        if instance != ROOT {
            tag.push(iteration);
        }
        tag
    }

    /// Returns a new or reused instance of a frame.
    fn instance(&mut self, part: &Subgraph, frame: FrameId, parent: Option<(InstanceId, u64)>, tag: Tag) -> InstanceId {
        let data = &part.frames[frame.index()];
        if let Some(instance) = self.free[frame.index()].pop() {
            let running = &mut self.instances[instance.index()];
            (running.parent, running.tag) = (parent, tag);
            (running.first, running.next, running.reported) = (0, 0, 0);
            (running.wants_next, running.ended) = (false, false);
            running.finished.fill(0);
            return instance;
        }
        self.instances.push(FrameInstance {
            frame,
            parent,
            tag,
            ring: Vec::new(),
            first: 0,
            next: 0,
            wants_next: false,
            ended: false,
            for_next: Vec::new(),
            constants: data.constants.iter().map(|_| None).collect(),
            finished: vec![0; data.followers.len()],
            reported: 0,
        });
        InstanceId(self.instances.len() as u32 - 1)
    }

    fn begin_next(&mut self, part: &Subgraph, instance: InstanceId) {
        let running = &self.instances[instance.index()];
        let window = part.frames[running.frame.index()].window;
        let oldest = running.finished.iter().copied().min().unwrap_or(u64::MAX).min(running.first);
        if running.wants_next && running.next - oldest < u64::from(window) {
            self.instances[instance.index()].wants_next = false;
            self.begin_iteration(part, instance);
        }
    }

    /// Begins the next iteration of an instance.
    fn begin_iteration(&mut self, part: &Subgraph, instance: InstanceId) {
        let running = &mut self.instances[instance.index()];
        let (id, frame) = (running.frame, &part.frames[running.frame.index()]);
        let iteration = running.next;
        // The ring grows to the maximum number of concurrent iterations, which the window bounds.
        let alive = (iteration + 1 - running.first) as usize;
        if alive > running.ring.len() {
            let n = (2 * alive).min(frame.window as usize);
            self.state_bytes += (n - running.ring.len()) as u64 * bytes_of_iteration::<V>(frame);
            running.grow(frame, n);
        }
        running.next += 1;
        let state = self.state(instance, iteration);
        state.needs.clear();
        let nodes = &part.nodes[frame.nodes.start as usize..frame.nodes.end as usize];
        state.needs.extend(nodes.iter().map(|n| n.n_dependencies));
        debug_assert!(
            state.inputs.iter().all(Option::is_none) && state.remaining == 0,
            "an iteration ended with pending values"
        );
        state.life.fill(BlockState::Waiting);
        self.activate_block(part, instance, iteration, BlockId(frame.blocks.start));
        for (i, users) in frame.constants.iter().enumerate() {
            if let Some(value) = self.instances[instance.index()].constants[i].clone() {
                self.deliver_all(part, instance, iteration, users, value);
            }
        }
        let mut for_next = std::mem::take(&mut self.instances[instance.index()].for_next);
        for (target, value) in for_next.drain(..) {
            self.deliver(part, instance, iteration, target, value);
        }
        self.instances[instance.index()].for_next = for_next;
        if !self.early[id.index()].is_empty() {
            let tag = self.tag(instance, iteration);
            for (node, value) in self.early[id.index()].remove(&tag).unwrap_or_default() {
                let slot = part.nodes[node.index()].inputs.start;
                self.deliver(part, instance, iteration, Target { node, slot }, value);
            }
        }
    }

    /// Ends finished iterations, and the frame if the last iteration has ended.
    fn retire(&mut self, part: &Subgraph, instance: InstanceId) {
        let running = &mut self.instances[instance.index()];
        let frame = &part.frames[running.frame.index()];
        let before = running.first;
        while running.first < running.next && running.ring[running.first as usize % running.ring.len()].remaining == 0 {
            running.first += 1;
        }
        if running.first == before {
            return;
        }
        let (id, parent) = (running.frame, running.parent);
        let has_ended = parent.is_none() || (running.ended && running.first == running.next);
        if has_ended {
            running.constants.fill_with(|| None);
            let tag = running.tag.clone();
            self.forget_early(part, id, &tag);
        } else if frame.n_inner > 0 {
            for iteration in before..running.first {
                let tag = self.tag(instance, iteration);
                self.forget_early(part, id, &tag);
            }
        }
        let running = &mut self.instances[instance.index()];
        let Some((outer, outer_iteration)) = parent else {
            self.finished = true;
            self.free[0].push(ROOT);
            return;
        };
        if has_ended {
            self.free[id.index()].push(instance);
            let node = frame.begun_by.expect("a loop is begun by a node");
            self.state(outer, outer_iteration).inner[frame.position as usize] = None;
            return self.complete(part, Ready { instance: outer, iteration: outer_iteration, node });
        }
        if let Some(leader) = frame.leader
            && !running.ended
            && running.first - running.reported >= u64::from((frame.window / 2).max(1))
        {
            running.reported = running.first;
            let of = frame.of.expect("a frame with a leader is a loop");
            let message = DeviceMessage::Credit { of, tag: running.tag.clone(), finished: running.first };
            self.actions.push_back(Action::Send { to: leader, message });
        }
        self.begin_next(part, instance);
    }

    /// Drops the values that arrived for iterations of a frame, or of frames in it, that will never
    /// begin, since `tag` is over. Only another process that lies sends such values.
    fn forget_early(&mut self, part: &Subgraph, frame: FrameId, tag: &[u64]) {
        for (i, early) in self.early.iter_mut().enumerate().skip(frame.index()) {
            if !early.is_empty() && part.is_within(FrameId(i as u32), frame) {
                early.retain(|of, _| !of.starts_with(tag));
            }
        }
    }

    /// Returns the running instance of a frame in the iterations given by `tag`.
    fn find_instance(&self, part: &Subgraph, frame: FrameId, tag: &[u64]) -> Option<InstanceId> {
        let data = &part.frames[frame.index()];
        let Some(parent) = data.parent else {
            return (!self.finished && !self.instances.is_empty()).then_some(ROOT);
        };
        let (outer, iteration) = self.find(part, parent, tag)?;
        let running = &self.instances[outer.index()];
        running.ring[iteration as usize % running.ring.len()].inner[data.position as usize]
    }

    /// Returns the running iteration of a frame given by `tag`.
    fn find(&self, part: &Subgraph, frame: FrameId, tag: &[u64]) -> Option<(InstanceId, u64)> {
        if part.frames[frame.index()].parent.is_none() {
            return self.find_instance(part, frame, tag).map(|root| (root, 0));
        }
        let (&iteration, around) = tag.split_last()?;
        let instance = self.find_instance(part, frame, around)?;
        let running = &self.instances[instance.index()];
        (running.first <= iteration && iteration < running.next).then_some((instance, iteration))
    }
}
