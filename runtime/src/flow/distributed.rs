//! A partitioned graph with variables, as the process that calls it sees it.

use super::SubgraphId;
use super::driver::Driver;
use super::remote::{Mailbox, OtherProcesses};
use super::step_run::StepInputs;
use crate::device::timeline::Timeline;
use crate::device::variables::VarSet;
use crate::device::{Crossing, DeviceBuffer, Executable, HostSide, StepCx};
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::ir::VarId;
use anabranch_dsl::{Graph, HostTensor, Result};
use std::sync::Arc;

/// A partitioned graph. Its steps are transactions on the variables of a session.
#[derive(Debug)]
pub(crate) struct DistributedGraph {
    driver: Arc<Driver>,
    /// The other processes that run subgraphs, if there are any.
    others: Option<Arc<dyn OtherProcesses>>,
}

/// The results of a step that is not committed yet.
pub(crate) struct CompletedStep {
    pub(crate) outputs: Vec<HostTensor>,
    /// The new values of variables.
    pub(crate) assigned: Vec<(VarId, DeviceBuffer)>,
}

impl DistributedGraph {
    pub(crate) fn new(driver: Driver, others: Option<Arc<dyn OtherProcesses>>) -> DistributedGraph {
        DistributedGraph { driver: Arc::new(driver), others }
    }

    /// Runs a step.
    pub(crate) fn run(
        &self,
        inputs: StepInputs,
        host: HostSide,
        stop: Arc<StopFlag>,
        timeline: Option<&mut Timeline>,
    ) -> Result<CompletedStep> {
        let others = self.others.as_ref();
        let begin = others.map(|others| |inputs: &StepInputs, mailbox: &Arc<Mailbox>| others.begin(inputs, mailbox));
        let begin = begin.as_ref().map(|begin| begin as _);
        let run = self.driver.begin(inputs, host, stop, begin, timeline.is_some())?;
        let results = run.run(timeline).map_err(|failure| failure.error)?;
        let outputs = results.outputs.into_iter();
        let outputs = outputs.map(|output| output.expect("a step that has ended has all outputs")).collect();
        Ok(CompletedStep { outputs, assigned: results.assigned })
    }

    /// Runs a step and commits it.
    fn step_in(
        &self,
        inputs: &[HostTensor],
        vars: &VarSet,
        cx: &StepCx<'_>,
        timeline: Option<&mut Timeline>,
    ) -> Result<Vec<HostTensor>> {
        let stop = cx.stop.cloned().unwrap_or_default();
        let inputs = inputs.iter().cloned().map(Some).collect();
        let vars_read = vars.snapshot(|value| Some(value.clone())).into_vec();
        let inputs = StepInputs { inputs, vars: vars_read };
        let CompletedStep { outputs, assigned } = self.run(inputs, cx.host.clone(), stop, timeline)?;
        vars.commit(assigned.into_iter().map(|(var, value)| (var.index(), value)));
        Ok(outputs)
    }
}

impl Executable for DistributedGraph {
    fn graph(&self) -> &Graph {
        &self.driver.graph
    }

    fn step(&self, inputs: &[HostTensor], vars: &VarSet, cx: &StepCx<'_>) -> Result<Vec<HostTensor>> {
        self.step_in(inputs, vars, cx, None)
    }

    fn profile(&self, inputs: &[HostTensor], vars: &VarSet, cx: &StepCx<'_>) -> Result<(Vec<HostTensor>, Timeline)> {
        let mut timeline = Timeline::default();
        let outputs = self.step_in(inputs, vars, cx, Some(&mut timeline))?;
        Ok((outputs, timeline))
    }

    fn crossings(&self) -> Vec<Crossing> {
        self.driver.partition.crossings().collect()
    }

    fn explain(&self) -> String {
        let parts = (0..self.driver.partition.parts.len() as u32).map(SubgraphId);
        let names: Vec<String> = parts.map(|part| self.driver.name(part)).collect();
        self.driver.partition.explain(&self.driver.graph, &names, &self.driver.kernels)
    }
}
