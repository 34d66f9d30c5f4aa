//! A partitioned graph with variables, as the process that calls it sees it.

use super::SubgraphId;
use super::driver::Driver;
use super::remote::{Mailbox, OtherProcesses};
use super::step_run::StepInputs;
use crate::device::timeline::Timeline;
use crate::device::variables::VarSet;
use crate::device::{Crossing, DeviceBuffer, Executable, PrintTo, StepCx};
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::ir::VarId;
use anabranch_dsl::{Diagnostic, ErrorKind, Graph, HostTensor, Result};
use std::sync::Arc;

/// A partitioned graph. Its steps are transactions on the variables of a session.
#[derive(Debug)]
pub(crate) struct DistributedGraph {
    driver: Driver,
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
        DistributedGraph { driver, others }
    }

    /// Runs a step with these values of variables.
    pub(crate) fn run(
        &self,
        inputs: &[HostTensor],
        vars: &[DeviceBuffer],
        print: PrintTo,
        stop: Arc<StopFlag>,
        timeline: Option<&mut Timeline>,
    ) -> Result<CompletedStep> {
        let step_inputs = StepInputs { inputs, var: &|var| vars[var.index()].clone() };
        let begin = self.others.as_ref().map(|others| |mailbox: &Arc<Mailbox>| others.begin(inputs, vars, mailbox));
        let begin = begin.as_ref().map(|begin| begin as _);
        let results = self.driver.run(step_inputs, print, stop, begin, timeline).map_err(|f| f.error)?;
        let outputs: Option<Vec<HostTensor>> = results.outputs.into_iter().collect();
        let outputs = outputs.ok_or_else(|| {
            assert!(self.others.is_some(), "the subgraphs compute all outputs");
            Diagnostic::new("a peer ended a step without one of its outputs").of_kind(ErrorKind::Internal)
        })?;
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
        let values = vars.snapshot(DeviceBuffer::clone);
        let CompletedStep { outputs, assigned } = self.run(inputs, &values, cx.print.clone(), stop, timeline)?;
        vars.commit(assigned.into_iter().map(|(var, value)| (var.index(), value)));
        Ok(outputs)
    }
}

impl Executable for DistributedGraph {
    fn graph(&self) -> &Graph {
        &self.driver.graph
    }

    fn may_split(&self) -> bool {
        true
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
        self.driver.partition.explain(&self.driver.graph, &names)
    }
}
