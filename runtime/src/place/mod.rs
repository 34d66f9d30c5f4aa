//! Placement: assigns a device to each node of a graph.
//!
//! The input is an optimized graph that still has its structure. Every node gets a device,
//! including those in regions. A branch or loop is on the device that computes its predicate, but
//! its inner nodes may be on others. Inputs of the graph are available everywhere. The partitioner
//! divides the placed graph into programs. This module knows only names, rates and sizes, never
//! devices, threads or clocks.
//!
//! [`place`] has three steps, each a pure function of the graph, so placement is deterministic:
//! find the nodes that must share a device (`groups`), the devices each group may be on
//! (`Feasible`), and choose one of them.

mod choose;
mod estimate;
mod explain;
mod groups;
mod rules;
#[cfg(test)]
mod tests;

pub(crate) use rules::Rules;

use crate::device::cost::Costs;
use crate::device::{DeviceId, Support, Topology};
use anabranch_dsl::Result;
use anabranch_dsl::ir::{Graph, Node, Op, VarId};
use anabranch_dsl::ops::Effects;
use explain::Reasons;
use groups::{Feasible, Groups};

/// The device of each node and each variable of a graph.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Placement {
    nodes: Vec<DeviceId>,
    vars: Vec<DeviceId>,
    /// Whether each node is an ordered effect that was moved to the device of the first ordered
    /// effect.
    moved: Vec<bool>,
    /// The reasons, if the placement was computed.
    reasons: Option<Reasons>,
}

impl Placement {
    /// Moves ordered effects to the device of the first operation on a queue or file, or else of
    /// the first print, which runs all of them. Users thus see them in program order.
    fn new(graph: &Graph, nodes: Vec<DeviceId>, vars: Vec<DeviceId>, reasons: Option<Reasons>) -> Placement {
        let mut placement = Placement { moved: vec![false; nodes.len()], nodes, vars, reasons };
        let effects = ordered_effects(graph);
        let is_of_session = |effect: &&Node| graph.node(**effect).op.is_of_session();
        let is_print = |effect: &&Node| matches!(graph.node(**effect).op, Op::Print { .. });
        if let Some(first) = effects.iter().find(is_of_session).or_else(|| effects.iter().find(is_print)) {
            let device = placement.of(*first);
            for effect in &effects {
                placement.moved[effect.index()] = placement.of(*effect) != device;
                placement.nodes[effect.index()] = device;
            }
        }
        placement
    }

    /// Returns a placement that another process has computed.
    ///
    /// # Errors
    /// Fails if a device does not exist, or if nodes that must share a device do not.
    #[cfg(feature = "peers")]
    pub(crate) fn computed_elsewhere(
        graph: &Graph,
        n_devices: usize,
        nodes: Vec<DeviceId>,
        vars: Vec<DeviceId>,
    ) -> Result<Placement> {
        let wrong = |what: &str| Err(anabranch_dsl::Diagnostic::new(format!("a placement {what}")));
        if nodes.len() != graph.n_nodes() || vars.len() != graph.vars.len() {
            return wrong("is of another graph");
        }
        if nodes.iter().chain(&vars).any(|device| device.index() >= n_devices) {
            return wrong("names a device that does not exist");
        }
        // Ordered effects share a device, whatever groups they are in.
        let effects = ordered_effects(graph);
        let agree = |mut devices: &mut dyn Iterator<Item = DeviceId>| {
            let first = devices.next();
            (&mut devices).all(|device| Some(device) == first)
        };
        let of = |node: &Node| nodes[node.index()];
        let groups = Groups::new(graph);
        let is_whole = (0..).zip(&groups.members).all(|(i, members)| {
            let of_vars =
                (0..vars.len()).filter(|&v| groups.of_var(VarId::from_index(v)).index() == i).map(|v| vars[v]);
            agree(&mut members.iter().filter(|node| !effects.contains(node)).map(of).chain(of_vars))
        });
        if !is_whole || !agree(&mut effects.iter().map(of)) {
            return wrong("separates nodes that share a device");
        }
        Ok(Placement { moved: vec![false; nodes.len()], nodes, vars, reasons: None })
    }

    /// Returns the device of each node and of each variable.
    #[cfg(feature = "peers")]
    pub(crate) fn devices_of_all(&self) -> (&[DeviceId], &[DeviceId]) {
        (&self.nodes, &self.vars)
    }

    /// Returns the device of a node.
    pub(crate) fn of(&self, node: Node) -> DeviceId {
        self.nodes[node.index()]
    }

    /// Returns the device of a variable and of all nodes that read or assign it.
    pub(crate) fn of_var(&self, var: VarId) -> DeviceId {
        self.vars[var.index()]
    }

    /// Returns the devices that have nodes or variables, in order. The result is the first device
    /// if there are none, for example in a graph that returns its inputs.
    pub(crate) fn devices(&self, graph: &Graph) -> Vec<DeviceId> {
        let mut all = self.vars.clone();
        graph.visit_nodes(graph.root(), &mut |node| all.push(self.of(node)));
        all.sort_unstable();
        all.dedup();
        if all.is_empty() {
            all.push(DeviceId::from_index(0));
        }
        all
    }
}

/// Facts about a graph that its nodes do not show. Those about variables are in the order of the
/// graph; variables beyond the end have none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Outside<'a> {
    /// The names of variables to which rules apply. A variable without one has its declared name.
    pub(crate) paths: &'a [Option<String>],
    /// The devices on which earlier functions placed variables.
    pub(crate) homes: &'a [Option<DeviceId>],
    /// Returns whether a device runs a node. Without it, every device runs all nodes.
    pub(crate) supports: Option<&'a dyn Fn(DeviceId, Node) -> Support>,
}

/// Places a graph.
///
/// Constraints of the graph, the rules and the variables hold. Everything else is placed to
/// minimize the estimated time of a step: on the best single device, unless several are faster by
/// at least a tenth.
///
/// A variable that has a home stays there; scopes around its reads and assignments are then only
/// preferences. A node goes to a CPU if a device that it may be on does not run it.
///
/// # Errors
/// Fails if a constraint matches no device, or if the constraints of nodes that share a device have
/// no device in common. The error shows all merged constraints.
pub(crate) fn place(graph: &Graph, topology: &Topology, rules: &Rules, outside: Outside<'_>) -> Result<Placement> {
    let groups = Groups::new(graph);
    let feasible = Feasible::new(graph, &groups, topology, rules, outside)?;
    let costs = Costs::new(graph);
    let choice = choose::choose(graph, &groups, &feasible, topology, &costs);
    let (nodes, devices_of_vars) = groups.spread(&choice.devices);
    let reasons = Some(Reasons::new(graph, &groups, &feasible, &choice, outside));
    Ok(Placement::new(graph, nodes, devices_of_vars, reasons))
}

/// Returns the observable effects in program order, or none if nothing is printed and no queue or
/// file is used. Assertions alone are unordered.
pub(crate) fn ordered_effects(graph: &Graph) -> Vec<Node> {
    let (mut are_ordered, mut effects) = (false, Vec::new());
    graph.visit_nodes(graph.root(), &mut |node| {
        let op = &graph.node(node).op;
        are_ordered |= matches!(op, Op::Print { .. }) || op.is_of_session();
        if op.effects() == Effects::Observable {
            effects.push(node);
        }
    });
    if are_ordered { effects } else { Vec::new() }
}

/// Places everything on one device and ignores constraints.
#[cfg(test)]
pub(crate) fn place_all_on(graph: &Graph, device: DeviceId) -> Placement {
    Placement::new(graph, vec![device; graph.n_nodes()], vec![device; graph.vars.len()], None)
}

/// Places each colocation group on a pseudorandom one of `n_devices` devices and ignores
/// constraints.
#[cfg(test)]
pub(crate) fn place_at_random(graph: &Graph, n_devices: usize, seed: u64) -> Placement {
    place_at_random_where(graph, n_devices, seed, |_, _| true)
}

/// Places each colocation group on a pseudorandom one of `n_devices` devices. If that does not
/// support all of its nodes, the group is on the first device that does, or on the last one.
/// Ignores constraints.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn place_at_random_where(
    graph: &Graph,
    n_devices: usize,
    seed: u64,
    supports: impl Fn(DeviceId, Node) -> bool,
) -> Placement {
    assert!(n_devices > 0, "a session has a device");
    let groups = Groups::new(graph);
    let device = |i: usize| {
        // SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
        // 2014).
        let mut z = seed.wrapping_add((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let drawn = ((z ^ (z >> 31)) % n_devices as u64) as usize;
        let mut devices = [drawn].into_iter().chain(0..n_devices).map(DeviceId::from_index);
        let supported = devices.find(|&device| groups.members[i].iter().all(|&node| supports(device, node)));
        supported.unwrap_or(DeviceId::from_index(n_devices - 1))
    };
    let devices: Vec<DeviceId> = (0..groups.len()).map(device).collect();
    let (nodes, vars) = groups.spread(&devices);
    Placement::new(graph, nodes, vars, None)
}
