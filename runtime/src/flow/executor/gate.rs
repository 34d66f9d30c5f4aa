//! The gate of an executor: which messages of other processes it admits.
//!
//! The executor trusts its messages. Those of another process pass the gate first, so whatever that
//! process sends, the executor neither panics nor holds more than the window of each loop allows.
//!
//! An iteration `k` of a loop can send to a device only after that device has finished iteration
//! `k - window - 1`: the leader begins `k - 1` when all others have finished `k - 1 - window`, and
//! its predicate then begins `k` elsewhere. A value is sent only if the iteration that receives it
//! waits for it, so none arrives for an iteration that has finished.

use super::{BlockState, DeviceMessage, Executor, ExecutorState, InstanceId, ROOT};
use crate::flow::{FrameId, Subgraph, SubgraphId};

/// The state of an iteration that a message names, as far as it is known.
enum NamedIteration {
    /// It runs.
    Running(InstanceId, u64),
    /// It may begin, or it was in a loop that has ended.
    ToCome,
    /// It has finished.
    Over,
}

impl<V: Clone> Executor<V> {
    /// Checks a message of another process against the progress of the step.
    ///
    /// # Errors
    /// Fails if no correct process sends this message now. The error is the predicate of a sentence
    /// about the message.
    pub(crate) fn admit<W>(&self, from: SubgraphId, message: &DeviceMessage<W>) -> Result<(), &'static str> {
        let Executor { part, state } = self;
        match message {
            DeviceMessage::Value { edge, tag, .. } => {
                let node = *part.receivers.get(edge).ok_or("is on an edge that does not end here")?;
                let data = &part.nodes[node.index()];
                let block = data.block;
                let frame = part.blocks[block.index()].frame;
                match state.named(part, frame, tag)? {
                    NamedIteration::Over => Err("is for an iteration that has finished"),
                    NamedIteration::ToCome => {
                        let early = state.early[frame.index()].get(tag);
                        match early.is_some_and(|values| values.iter().any(|(n, _)| *n == node)) {
                            true => Err("was sent before"),
                            false => Ok(()),
                        }
                    }
                    NamedIteration::Running(instance, iteration) => {
                        let running = &state.instances[instance.index()];
                        let iteration = &running.ring[iteration as usize % running.ring.len()];
                        let data_of_frame = &part.frames[frame.index()];
                        let has_come = iteration.inputs[data.inputs.start as usize].is_some()
                            || iteration.needs[(node.0 - data_of_frame.nodes.start) as usize] == 0;
                        if has_come {
                            return Err("was sent before");
                        }
                        match iteration.life[(block.0 - data_of_frame.blocks.start) as usize] {
                            BlockState::Dead => Err("is for a branch that is not taken"),
                            BlockState::Waiting | BlockState::Live => Ok(()),
                        }
                    }
                }
            }
            DeviceMessage::Credit { of, tag, finished } => {
                let frame =
                    part.frame_of.get(of.index()).copied().flatten().ok_or("is about a loop that is not here")?;
                let data = &part.frames[frame.index()];
                if !data.followers.contains(&from) {
                    return Err("is about a loop that its sender does not run");
                }
                let outer = data.parent.expect("a loop is inside a frame");
                // The executor ignores reports on a loop that is not running: the last ones may
                // come after its end, and after that of the loops around it.
                let Ok(NamedIteration::Running(instance, iteration)) = state.named(part, outer, tag) else {
                    return Ok(());
                };
                let running = &state.instances[instance.index()];
                let inner = running.ring[iteration as usize % running.ring.len()].inner[data.position as usize];
                let begun = inner.map_or(u64::MAX, |inner| state.instances[inner.index()].next);
                if *finished > begun { Err("reports iterations that have not begun") } else { Ok(()) }
            }
        }
    }
}

impl<V> ExecutorState<V> {
    /// Returns what is known of the iteration of a frame that a tag names.
    fn named(&self, part: &Subgraph, frame: FrameId, tag: &[u64]) -> Result<NamedIteration, &'static str> {
        let data = &part.frames[frame.index()];
        let Some(parent) = data.parent else {
            return match tag.is_empty() {
                true if self.finished => Ok(NamedIteration::Over),
                true => Ok(NamedIteration::Running(ROOT, 0)),
                false => Err("names more loops than there are around its value"),
            };
        };
        let Some((&iteration, around)) = tag.split_last() else {
            return Err("names fewer loops than there are around its value");
        };
        let begun = match self.named(part, parent, around)? {
            NamedIteration::Over => return Ok(NamedIteration::Over),
            NamedIteration::ToCome => None,
            NamedIteration::Running(outer, outer_iteration) => {
                let running = &self.instances[outer.index()];
                running.ring[outer_iteration as usize % running.ring.len()].inner[data.position as usize]
            }
        };
        let window = u64::from(data.window);
        let Some(instance) = begun else {
            return if iteration <= window {
                Ok(NamedIteration::ToCome)
            } else {
                Err("is for an iteration beyond the window")
            };
        };
        let running = &self.instances[instance.index()];
        if iteration < running.first {
            return Ok(NamedIteration::Over);
        }
        if iteration < running.next {
            return Ok(NamedIteration::Running(instance, iteration));
        }
        match iteration - running.first <= window && !(running.ended) {
            true => Ok(NamedIteration::ToCome),
            false => Err("is for an iteration beyond the window"),
        }
    }
}
