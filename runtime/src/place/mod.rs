//! Placement: which device runs each node of a graph.
//!
//! The graph that is placed has gone through the passes and still has its structure; every node gets a device, also those in regions.
//! A node with regions is on the device that decides: of a branch or loop the one that computes its predicate. Its inner nodes may
//! be on others. Inputs of the graph are available everywhere. What is placed here is cut into programs elsewhere; this module knows
//! names, rates and sizes, and never a device, a thread or a clock.
//!
//! [`place`] works in three steps, each a function of the graph and of nothing else, so the same graph is placed the same way every
//! time: what must share a device (`groups`), which devices each such group may be on (`Feasible`), and which of them it gets.

mod choose;
mod cost;
mod estimate;
mod explain;
mod groups;
mod rules;
#[cfg(test)]
mod tests;
pub(crate) mod topology;

pub(crate) use cost::kernel_seconds;
pub(crate) use explain::Crossing;
pub(crate) use rules::Rules;
pub(crate) use topology::{DeviceId, DeviceInfo, Link, Topology};

use anabranch_dsl::Result;
#[cfg(test)]
use anabranch_dsl::ir::VarId;
use anabranch_dsl::ir::{Graph, Node, Op};
use anabranch_dsl::ops::Effects;
use cost::Costs;
use explain::Reasons;
use groups::{Feasible, Groups};

/// The device of each node and each variable of a graph.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Placement {
    nodes: Vec<DeviceId>,
    vars: Vec<DeviceId>,
    /// By node: whether it is an effect that was brought to where the first one is.
    moved: Vec<bool>,
    /// Why, if it was chosen.
    reasons: Option<Reasons>,
}

impl Placement {
    /// Brings prints, and the assertions beside them, to the device of the first: what the user sees comes in the order of the program.
    fn new(graph: &Graph, nodes: Vec<DeviceId>, vars: Vec<DeviceId>, reasons: Option<Reasons>) -> Placement {
        let mut placement = Placement { moved: vec![false; nodes.len()], nodes, vars, reasons };
        let effects = ordered_effects(graph);
        if let Some(first) = effects.first() {
            let device = placement.of(*first);
            for effect in &effects {
                placement.moved[effect.index()] = placement.of(*effect) != device;
                placement.nodes[effect.index()] = device;
            }
        }
        placement
    }

    /// The device of a node.
    pub(crate) fn of(&self, node: Node) -> DeviceId {
        self.nodes[node.index()]
    }

    /// The device of a variable, and of all that reads and assigns it.
    #[cfg(test)]
    pub(crate) fn of_var(&self, var: VarId) -> DeviceId {
        self.vars[var.index()]
    }

    /// The devices that have nodes or variables, in order; the first one if none has, as of a graph that gives back its inputs.
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

/// Places a graph: what the graph, the rules and the variables ask for is kept, what they leave
/// open is where a step is estimated to take least time: on the best single device, unless several are faster by a tenth.
///
/// `paths` are the names that rules are about, of the graph's variables in their order; there may be fewer. One without is named as it was declared.
///
/// # Errors
/// If a constraint stands for no device, or those of nodes that share a device have none in common; all that was merged is shown.
pub(crate) fn place(graph: &Graph, topology: &Topology, rules: &Rules, paths: &[Option<String>]) -> Result<Placement> {
    let groups = Groups::new(graph);
    let feasible = Feasible::new(graph, &groups, topology, rules, paths)?;
    let costs = Costs::new(graph);
    let choice = choose::choose(graph, &groups, &feasible, topology, &costs);
    let (nodes, vars) = groups.spread(&choice.devices);
    let reasons = Some(Reasons::new(graph, &groups, &feasible, &choice));
    Ok(Placement::new(graph, nodes, vars, reasons))
}

/// The effects that the user sees, in the order of the program; none if nothing is printed, as assertions alone have no order.
pub(crate) fn ordered_effects(graph: &Graph) -> Vec<Node> {
    let (mut prints, mut effects) = (false, Vec::new());
    graph.visit_nodes(graph.root(), &mut |node| {
        let op = &graph.node(node).op;
        prints |= matches!(op, Op::Print { .. });
        if op.effects() == Effects::Observable {
            effects.push(node);
        }
    });
    if prints { effects } else { Vec::new() }
}

/// Everything on one device, whatever the graph asks for.
#[cfg(test)]
pub(crate) fn place_all_on(graph: &Graph, device: DeviceId) -> Placement {
    Placement::new(graph, vec![device; graph.n_nodes()], vec![device; graph.vars.len()], None)
}

/// Each group of nodes that must share a device on one of the first `n_devices`, as the seed decides, whatever the graph asks for.
pub(crate) fn place_at_random(graph: &Graph, n_devices: usize, seed: u64) -> Placement {
    assert!(n_devices > 0, "a session has a device");
    let groups = Groups::new(graph);
    let device = |i: usize| {
        // SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
        let mut z = seed.wrapping_add((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        DeviceId::from_index(((z ^ (z >> 31)) % n_devices as u64) as usize)
    };
    let devices: Vec<DeviceId> = (0..groups.len()).map(device).collect();
    let (nodes, vars) = groups.spread(&devices);
    Placement::new(graph, nodes, vars, None)
}
