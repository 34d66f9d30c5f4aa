//! Placement of graphs on the devices of a session, which compile them.

use crate::device::variables::VarSet;
use crate::device::{DeviceId, Executable};
use crate::flow::distributed::DistributedGraph;
use crate::flow::{self, driver::Driver};
use crate::options::CompileOptions;
use crate::place::{self, Outside, Placement};
use crate::session::devices::Devices;
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::ir::{Node, VarId};
use anabranch_dsl::{Graph, Result};

/// A compiled graph, its placement if there was a choice, and its only device if there were others.
pub(super) type PlacedExecutable = (Box<dyn Executable>, Option<Placement>, Option<DeviceName>);

/// Places and compiles a graph whose inputs have known shapes. `paths` are the paths of its
/// variables `vars` for placement rules, in their order.
///
/// A graph on a single device is compiled by that device. If the device runs no whole graphs, or if
/// the graph is on several devices, it is partitioned.
pub(super) fn compile(
    graph: &Graph,
    devices: &Devices,
    vars: &VarSet,
    paths: &[Option<String>],
    options: CompileOptions,
) -> Result<PlacedExecutable> {
    loop {
        let before = vars.homes();
        let (placed, homes) = compile_at_homes(graph, devices, &before, paths, options)?;
        let stay = before.iter().zip(&homes).all(|(before, now)| before.is_none_or(|before| before == *now));
        assert!(stay, "placement leaves variables at home");
        // Another function may have placed a variable elsewhere in the meantime.
        if vars.settle(homes.iter().map(|home| &devices.all[home.index()]))? {
            return Ok(placed);
        }
    }
}

/// Places and compiles a graph whose variables have these homes. Returns the homes that all of its
/// variables have then, or none for the interpreter.
fn compile_at_homes(
    graph: &Graph,
    devices: &Devices,
    homes: &[Option<DeviceId>],
    paths: &[Option<String>],
    options: CompileOptions,
) -> Result<(PlacedExecutable, Vec<DeviceId>)> {
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
        return Ok(((executable, None, None), Vec::new()));
    }
    if let [only] = &devices.all[..]
        && nothing_asked
        && whole
        && let Some(executable) = only.clone().compile(graph, options)?
    {
        let homes = vec![only.id(); graph.vars.len()];
        return Ok(((executable, None, None), homes));
    }
    let placement = place()?;
    let homes = (0..graph.vars.len()).map(|i| placement.of_var(VarId::from_index(i))).collect();
    if let [id] = placement.devices(graph)[..]
        && whole
        && let Some(executable) = devices.all[id.index()].clone().compile(graph, options)?
    {
        let choice = devices.all.len() > 1;
        let on = choice.then(|| devices.topology.device(id).name);
        return Ok(((executable, choice.then_some(placement), on), homes));
    }
    let executable = Box::new(distributed(graph, &placement, devices, options)?);
    Ok(((executable, Some(placement), None), homes))
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
