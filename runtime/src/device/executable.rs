//! Compiled graphs with variables, whose runs are the steps of a session.
//!
//! An [`Executable`] is the only form in which sessions run graphs: a whole graph that one device
//! has compiled, or subgraphs on several devices. Invariants:
//!
//! - E1. A step takes one snapshot of its variables, and commits new values only when all of its
//!   work has succeeded.
//! - E2. A step that fails changes neither variables nor the tensors that its outputs replace.
//! - E3. A step returns when none of its work runs any more.
//! - E4. Several steps may run at the same time. An executable takes no lock for the duration of a
//!   step.
//!
//! An executable must not know functions and their signatures, the Rust types of inputs and
//! outputs, or which steps exclude each other.

use super::timeline::Timeline;
use super::variables::VarSet;
use super::{DeviceId, HostSide};
use anabranch_dsl::interp::{RunContext, StopFlag};
use anabranch_dsl::ir::{Region, Value};
use anabranch_dsl::{Graph, HostTensor, Result};
use std::fmt::Debug;
use std::sync::Arc;

/// The host side of a step.
pub(crate) struct StepCx<'a> {
    pub(crate) host: &'a HostSide,
    /// The flag that ends the step, or `None` if only the step itself ends it.
    pub(crate) stop: Option<&'a Arc<StopFlag>>,
}

/// The flag of steps that only end by themselves.
static NEVER: StopFlag = StopFlag::new();

impl StepCx<'_> {
    /// Returns the host side of a run on the calling thread.
    pub(crate) fn run_context(&self) -> RunContext<'_> {
        let HostSide { print, queues, files, .. } = self.host;
        let stop = self.stop.map_or(&NEVER, |stop| &**stop);
        RunContext { print: &**print, queues: &**queues, files: &**files, stop, fusion: None }
    }
}

/// A transfer of a value between devices, on each execution of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crossing {
    pub(crate) from: DeviceId,
    pub(crate) to: DeviceId,
    pub(crate) value: Value,
    pub(crate) sent_in: Region,
}

/// A compiled graph with variables.
pub(crate) trait Executable: Debug + Send + Sync {
    /// Returns the graph that is compiled.
    fn graph(&self) -> &Graph;

    /// Runs a step on the calling thread.
    fn step(&self, inputs: &[HostTensor], vars: &VarSet, cx: &StepCx<'_>) -> Result<Vec<HostTensor>>;

    /// Runs a step like [`step`](Self::step), and replaces other tensors by its outputs.
    fn step_into(
        &self,
        inputs: &[HostTensor],
        vars: &VarSet,
        cx: &StepCx<'_>,
        outputs: &mut [&mut HostTensor],
    ) -> Result<()> {
        let new = self.step(inputs, vars, cx)?;
        outputs.iter_mut().zip(new).for_each(|(to, new)| **to = new);
        Ok(())
    }

    /// Runs a step like [`step`](Self::step) and records a timeline.
    fn profile(&self, inputs: &[HostTensor], vars: &VarSet, cx: &StepCx<'_>) -> Result<(Vec<HostTensor>, Timeline)>;

    /// Returns the transfers between devices.
    fn crossings(&self) -> Vec<Crossing> {
        Vec::new()
    }

    /// Returns the compiled graph as text.
    fn explain(&self) -> String;
}
