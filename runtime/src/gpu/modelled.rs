//! Modelled times of a step on a device with separate queues for computation and for copies.
//!
//! wgpu has one queue for a device, so copies of saved values (`swap.rs`) do not overlap with
//! shaders. For a device that can do both at a time, this module tells what the same commands would
//! take. It records each shader and each copy with the buffers that it uses, and runs them on a
//! simulated clock: three queues work in parallel, each in order, and a command waits until earlier
//! commands of other queues have ended that use one of its buffers (EuroSys'18, section 5.3 and
//! figure 13).
//!
//! The time of a shader is a launch and the larger one of two times: that of the operations of its
//! product, if it computes one, and that of the bytes that are bound to it. The time of a copy is a
//! latency and that of its bytes. The time of the host is left out.

use crate::SimulatedDevice;
use crate::device::cost::Costs;
use anabranch_dsl::ir::Graph;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::hash::{BuildHasher, BuildHasherDefault};
use std::time::Duration;

/// A queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelledQueue {
    /// Shaders, and copies within the device.
    Compute,
    /// Copies to the host.
    ToHost,
    /// Copies to the device.
    ToDevice,
}

/// A command that was recorded.
#[derive(Clone, Debug)]
struct ModelledCommand {
    queue: ModelledQueue,
    flops: f64,
    bytes: u64,
    /// Hashes of the buffers that it uses.
    buffers: SmallVec<[u64; 6]>,
}

/// The commands of the devices of an adapter.
#[derive(Debug, Default)]
pub(super) struct CommandTrace {
    /// Whether commands are recorded.
    pub(super) is_on: bool,
    /// The operations of the next shader.
    flops: f64,
    commands: Vec<ModelledCommand>,
}

/// Returns the floating-point operations of each node of a graph.
pub(super) fn flops(graph: &Graph) -> Vec<f64> {
    Costs::new(graph).work.iter().map(|cost| cost.flops).collect()
}

impl CommandTrace {
    /// Notes the operations of the next shader.
    pub(super) fn begin(&mut self, flops: f64) {
        self.flops = flops;
    }

    /// Records a command.
    pub(super) fn push<'a>(
        &mut self,
        queue: ModelledQueue,
        bytes: u64,
        buffers: impl IntoIterator<Item = &'a wgpu::Buffer>,
    ) {
        if self.is_on {
            let hasher = BuildHasherDefault::<rustc_hash::FxHasher>::default();
            let buffers = buffers.into_iter().map(|buffer| hasher.hash_one(buffer)).collect();
            let flops = std::mem::take(&mut self.flops);
            self.commands.push(ModelledCommand { queue, flops, bytes, buffers });
        }
    }

    /// Starts recording anew.
    pub(super) fn start(&mut self) {
        *self = CommandTrace { is_on: true, ..CommandTrace::default() };
    }

    /// Stops recording. Returns the times of what was recorded.
    pub(super) fn stop(&mut self, device: &SimulatedDevice) -> ModelledTimes {
        ModelledTimes::new(&std::mem::take(self).commands, device)
    }
}

/// The times of commands on a modelled device.
#[derive(Clone, Debug, PartialEq)]
#[doc(hidden)]
pub struct ModelledTimes {
    /// The time of all commands one after another, in one queue.
    pub in_one_queue: Duration,
    /// The time of all commands in three queues.
    pub in_three_queues: Duration,
    /// The time for which each of the queues has worked: of computation, of copies to the host, and
    /// of copies to the device.
    pub busy: [Duration; 3],
    /// The queue of each command in the three queues, its start and its end.
    pub spans: Vec<(ModelledQueue, Duration, Duration)>,
}

impl ModelledTimes {
    fn new(commands: &[ModelledCommand], device: &SimulatedDevice) -> ModelledTimes {
        let [launch, latency] = [device.launch, device.link_latency].map(|time| time.as_secs_f64());
        let mut ends = [0.0; 3];
        let mut busy = [0.0; 3];
        // The ends of the last uses of a buffer by each queue.
        let mut uses: FxHashMap<u64, [f64; 3]> = FxHashMap::default();
        let mut spans = Vec::new();
        for command in commands {
            let of = command.queue as usize;
            let seconds = match command.queue {
                ModelledQueue::Compute => {
                    launch + (command.flops / device.flops).max(command.bytes as f64 / device.bandwidth)
                }
                ModelledQueue::ToHost | ModelledQueue::ToDevice => {
                    latency + command.bytes as f64 / device.link_bandwidth
                }
            };
            let waits = command.buffers.iter().filter_map(|buffer| uses.get(buffer)).flatten();
            let begin = waits.fold(ends[of], |begin: f64, &end| begin.max(end));
            let end = begin + seconds;
            ends[of] = end;
            busy[of] += seconds;
            for &buffer in &command.buffers {
                uses.entry(buffer).or_default()[of] = end;
            }
            spans.push((command.queue, Duration::from_secs_f64(begin), Duration::from_secs_f64(end)));
        }
        ModelledTimes {
            in_one_queue: Duration::from_secs_f64(busy.iter().sum()),
            in_three_queues: Duration::from_secs_f64(ends.into_iter().fold(0.0, f64::max)),
            busy: busy.map(Duration::from_secs_f64),
            spans,
        }
    }

    /// Draws the queues between two times: a row of characters for each, `#` where it works for
    /// most of the time of the character, and `-` where it works for a part of it.
    pub fn draw(&self, [first, last]: [Duration; 2], width: usize) -> String {
        let step = (last - first).as_secs_f64() / width as f64;
        let row = |queue: ModelledQueue| -> String {
            let mut worked = vec![0.0; width];
            for (_, begin, end) in self.spans.iter().filter(|(of, ..)| *of == queue) {
                let [begin, end] = [begin, end].map(|t| (t.as_secs_f64() - first.as_secs_f64()) / step);
                for (i, worked) in worked.iter_mut().enumerate() {
                    *worked += (end.min(i as f64 + 1.0) - begin.max(i as f64)).max(0.0);
                }
            }
            worked
                .iter()
                .map(|&worked| {
                    if worked > 0.5 {
                        '#'
                    } else if worked > 0.05 {
                        '-'
                    } else {
                        ' '
                    }
                })
                .collect()
        };
        let rows = [
            ("compute", ModelledQueue::Compute),
            ("to the host", ModelledQueue::ToHost),
            ("to the device", ModelledQueue::ToDevice),
        ];
        rows.map(|(name, queue)| format!("{name:>13} |{}|\n", row(queue))).concat()
    }
}
