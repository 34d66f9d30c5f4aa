//! Graphs that were placed on the devices of a session and compiled.

use crate::device::timeline::Timeline;
use crate::device::variables::VarSet;
use crate::device::{DeviceId, Executable, StepCx};
use crate::flow::distributed::DistributedGraph;
use crate::flow::{self, driver::Driver};
use crate::options::CompileOptions;
use crate::place::{self, Outside, Placement};
use crate::session::devices::Devices;
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::ir::{Node, VarId};
use anabranch_dsl::{Diagnostic, Graph, HostTensor, Loc, Result};

/// A placed and compiled graph.
#[derive(Debug)]
pub(crate) struct PlacedGraph {
    executable: Box<dyn Executable>,
    /// The placement, if there was a choice.
    placement: Option<Placement>,
    /// The only device, if there were others.
    on: Option<DeviceName>,
}

impl PlacedGraph {
    /// Places and compiles a graph whose inputs have known shapes. `paths` are the paths of its
    /// variables `vars` for placement rules, in their order.
    ///
    /// A graph on a single device is compiled by that device. If the device runs no whole graphs,
    /// or if the graph is on several devices, it is partitioned.
    pub(crate) fn new(
        graph: Graph,
        devices: &Devices,
        vars: &VarSet,
        paths: &[Option<String>],
        options: CompileOptions,
    ) -> Result<PlacedGraph> {
        loop {
            let before = vars.homes();
            let (placed, homes) = PlacedGraph::at_homes(&graph, devices, &before, paths, options)?;
            let stay = before.iter().zip(&homes).all(|(before, now)| before.is_none_or(|before| before == *now));
            assert!(stay, "placement leaves variables at home");
            // Another function may have placed a variable elsewhere in the meantime.
            if vars.settle(homes.iter().map(|home| &devices.all[home.index()]))? {
                return Ok(placed);
            }
        }
    }

    /// Places and compiles a graph whose variables have these homes. Returns the homes that all of
    /// its variables have then, or none for the interpreter.
    fn at_homes(
        graph: &Graph,
        devices: &Devices,
        homes: &[Option<DeviceId>],
        paths: &[Option<String>],
        options: CompileOptions,
    ) -> Result<(PlacedGraph, Vec<DeviceId>)> {
        let supports = |device: DeviceId, node: Node| devices.all[device.index()].supports_node(graph, node);
        let outside = Outside { paths, homes, supports: Some(&supports) };
        let place = || place::place(graph, &devices.topology, &devices.rules, outside);
        let nothing_asked = devices.rules.is_empty() && !asks_for_devices(graph);
        let whole = !devices.flow.lower_everything;
        if options.interpreted {
            if !nothing_asked {
                // Checks the device constraints; the interpreter needs no device.
                place()?;
            }
            let executable = devices.host.clone().compile(graph, options)?.expect("the host runs whole graphs");
            return Ok((PlacedGraph { executable, placement: None, on: None }, Vec::new()));
        }
        if let [only] = &devices.all[..]
            && nothing_asked
            && whole
            && let Some(executable) = only.clone().compile(graph, options)?
        {
            let homes = vec![only.id(); graph.vars.len()];
            return Ok((PlacedGraph { executable, placement: None, on: None }, homes));
        }
        let placement = place()?;
        let homes = (0..graph.vars.len()).map(|i| placement.of_var(VarId::from_index(i))).collect();
        if let [id] = placement.devices(graph)[..]
            && whole
            && let Some(executable) = devices.all[id.index()].clone().compile(graph, options)?
        {
            let choice = devices.all.len() > 1;
            let on = choice.then(|| devices.topology.device(id).name);
            return Ok((PlacedGraph { executable, placement: choice.then_some(placement), on }, homes));
        }
        let executable = Box::new(distributed(graph, &placement, devices, options)?);
        Ok((PlacedGraph { executable, placement: Some(placement), on: None }, homes))
    }

    /// Returns the graph that is compiled.
    pub(crate) fn graph(&self) -> &Graph {
        self.executable.graph()
    }

    /// Runs a step. The variables change only if the step succeeds.
    pub(crate) fn step(&self, inputs: &[HostTensor], vars: &VarSet, cx: &StepCx<'_>) -> Result<Vec<HostTensor>> {
        self.executable.step(inputs, vars, cx).map_err(|e| self.error(e))
    }

    /// Runs a step like [`step`](Self::step), and replaces other tensors by its outputs.
    pub(crate) fn step_into(
        &self,
        inputs: &[HostTensor],
        vars: &VarSet,
        cx: &StepCx<'_>,
        outputs: &mut [&mut HostTensor],
    ) -> Result<()> {
        self.executable.step_into(inputs, vars, cx, outputs).map_err(|e| self.error(e))
    }

    /// Runs a step like [`step`](Self::step) and records a timeline.
    pub(crate) fn profile(
        &self,
        inputs: &[HostTensor],
        vars: &VarSet,
        cx: &StepCx<'_>,
    ) -> Result<(Vec<HostTensor>, Timeline)> {
        self.executable.profile(inputs, vars, cx).map_err(|e| self.error(e))
    }

    /// Returns the placement, if there was a choice, and the compiled graph as text.
    pub(crate) fn explain(&self, devices: &Devices) -> String {
        let crossings = self.executable.crossings().into_iter();
        let placed = self.placement.as_ref().map(|p| p.explain(self.graph(), &devices.topology, crossings));
        placed.unwrap_or_default() + &self.executable.explain()
    }

    /// Adds the device to an error.
    fn error(&self, error: Diagnostic) -> Diagnostic {
        match self.on {
            Some(name) => error.at(Loc::UNKNOWN, format!("on {name}")),
            None => error,
        }
    }
}

/// Cuts a placed graph, and compiles it for its devices.
fn distributed(
    graph: &Graph,
    placement: &Placement,
    devices: &Devices,
    options: CompileOptions,
) -> Result<DistributedGraph> {
    #[cfg(feature = "peers")]
    if let Some(remote) = &devices.remote
        && placement.devices(graph).iter().any(|&device| !devices.processes.is_here(device))
    {
        return remote.compile(graph, placement, &devices.all, &devices.processes, devices.flow, options);
    }
    let partition = flow::partition(graph, placement, devices.flow);
    let driver = Driver::new(graph.clone(), partition, &devices.all, devices.processes.clone(), options)?;
    Ok(DistributedGraph::new(driver, None))
}

/// Returns whether a graph has device constraints.
fn asks_for_devices(graph: &Graph) -> bool {
    let mut asks = graph.vars.iter().any(|v| v.on.is_some());
    graph.visit_nodes(graph.root(), &mut |node| asks |= graph.node(node).on.is_some());
    asks
}
