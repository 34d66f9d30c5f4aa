//! Colocation: the groups of nodes that share a device, and the devices that constraints leave to
//! each group.
//!
//! Nodes always share a device if
//! - they read or assign the same variable, because the variable has one device;
//! - one is a branch or loop and the other computes its predicate;
//! - one is a call of a function with a custom gradient and the other is inside, because such a
//!   call is not divided;
//! - they access the same stack or list, through all branches and loops that carry it, because
//!   these are modified in place.
//!
//! Device constraints come from variables (`Var::on`, a rule) and from nodes (`on`). Constraints of
//! variables and ordinary nodes are mandatory. If they conflict, the error shows all merged
//! constraints. Constraints of branches, loops and operations on stacks and lists are preferences,
//! which yield to mandatory ones: the scope around a loop does not determine where its condition is
//! computed, and a list does not move because an element is read elsewhere.
//!
//! Constraints are made absolute before they are merged ([`Topology::absolute`]): `/cpu:0` of this
//! process and `/peer:0` contradict each other, and are not `/peer:0/cpu:0`. Messages show
//! constraints as they were written.

use super::Outside;
use super::rules::Rules;
use crate::device::{DeviceId, Support, Topology};
use crate::disjoint_sets::DisjointSets;
use crate::id::id;
use anabranch_dsl::device::{DeviceConstraint, DeviceName, DevicePattern};
use anabranch_dsl::ir::{CallKind, Graph, ListOp, Node, Op, StackOp, Value, VarId};
use anabranch_dsl::{Diagnostic, Loc, Result, Type};
use std::collections::HashMap;

id! {
    /// Index of a group of a graph.
    GroupId, "group"
}

/// All groups of a graph, in the order of their first nodes. Groups of unused variables come last.
#[derive(Debug)]
pub(super) struct Groups {
    /// The group of each node, or `None` for nodes in no region.
    of: Vec<Option<GroupId>>,
    of_vars: Vec<GroupId>,
    /// The nodes of each group in program order.
    pub(super) members: Vec<Vec<Node>>,
}

impl Groups {
    /// Computes the groups of a graph.
    pub(super) fn new(graph: &Graph) -> Groups {
        let (n_nodes, n_values) = (graph.n_nodes(), graph.n_values());
        let mut sets = DisjointSets::new(n_nodes + n_values + graph.vars.len());
        let of_value = |v: Value| n_nodes + v.index();
        let of_var = |v: VarId| n_nodes + n_values + v.index();
        let is_container = |v: &Value| !matches!(graph.ty(*v), Type::Tensor(_));
        let mut order = Vec::new();
        graph.visit_nodes(graph.root(), &mut |node| {
            order.push(node);
            let data = graph.node(node);
            match data.op {
                Op::Read(var) | Op::Assign(var) => sets.join(node.index(), of_var(var)),
                _ => {
                    if let Some(maker) = graph.predicate(node).and_then(|predicate| graph.producer(predicate)) {
                        sets.join(node.index(), maker.index());
                    }
                }
            }
            let mut same = |a: Value, b: Value| {
                if is_container(&a) {
                    sets.join(of_value(a), of_value(b));
                }
            };
            for &region in &data.regions {
                graph.entry(region).for_each(|(param, outer)| same(outer, param));
            }
            for &region in graph.result_regions(node) {
                data.results.iter().zip(&graph.region(region).yields).for_each(|(&r, &y)| same(r, y));
            }
            if let Some(construct) = graph.as_while(node) {
                construct.vars().for_each(|var| same(var.body_param, var.next));
            }
            if let Op::Call(CallKind::CustomGradient { .. }) = data.op {
                let forward = graph.call_of(node).forward();
                graph.visit_nodes(forward, &mut |inner| sets.join(node.index(), inner.index()));
            }
            if data.regions.is_empty() {
                for v in data.operands.iter().chain(&data.results).filter(|v| is_container(v)) {
                    sets.join(node.index(), of_value(*v));
                }
            }
        });
        let mut ids: HashMap<usize, GroupId> = HashMap::new();
        let mut groups = Groups { of: vec![None; n_nodes], of_vars: Vec::new(), members: Vec::new() };
        for node in order {
            let id = groups.id(&mut ids, sets.root(node.index()));
            groups.of[node.index()] = Some(id);
            groups.members[id.index()].push(node);
        }
        for i in 0..graph.vars.len() {
            let id = groups.id(&mut ids, sets.root(of_var(VarId::from_index(i))));
            groups.of_vars.push(id);
        }
        groups
    }

    fn id(&mut self, ids: &mut HashMap<usize, GroupId>, root: usize) -> GroupId {
        *ids.entry(root).or_insert_with(|| {
            self.members.push(Vec::new());
            GroupId(self.members.len() as u32 - 1)
        })
    }

    /// Returns all groups, in order.
    pub(super) fn ids(&self) -> impl Iterator<Item = GroupId> + use<> {
        (0..self.members.len() as u32).map(GroupId)
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns the group of a node, or `None` if the node is in no region.
    pub(super) fn of(&self, node: Node) -> Option<GroupId> {
        self.of[node.index()]
    }

    pub(super) fn of_var(&self, var: VarId) -> GroupId {
        self.of_vars[var.index()]
    }

    /// Returns the device of each node and each variable, given that of each group. Nodes in no
    /// region get the first device.
    pub(super) fn spread(&self, devices: &[DeviceId]) -> (Vec<DeviceId>, Vec<DeviceId>) {
        let first = DeviceId::from_index(0);
        let nodes = self.of.iter().map(|g| g.map_or(first, |g| devices[g.index()])).collect();
        (nodes, self.of_vars.iter().map(|g| devices[g.index()]).collect())
    }
}

/// The origin of a device constraint.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ConstraintSource {
    /// An `on` scope around a node.
    Scope(Node, DeviceConstraint),
    /// `Var::on`, or the scope in which the variable was created.
    Var(VarId, DeviceConstraint),
    /// A rule of the session, with its text.
    Rule(VarId, String, DevicePattern),
    /// The session, for everything that is not constrained otherwise.
    Default(DevicePattern),
    /// An earlier function, which placed the variable.
    Home(VarId, DevicePattern),
    /// A device that does not run the node, with the reason.
    Unsupported { node: Node, device: DeviceName, reason: String, instead: DevicePattern },
}

impl ConstraintSource {
    fn devices(&self) -> DevicePattern {
        match self {
            ConstraintSource::Scope(_, on) | ConstraintSource::Var(_, on) => on.devices(),
            ConstraintSource::Rule(_, _, devices)
            | ConstraintSource::Home(_, devices)
            | ConstraintSource::Default(devices) => *devices,
            ConstraintSource::Unsupported { instead, .. } => *instead,
        }
    }

    /// Returns the location of the constraint and a label for it.
    fn shown(&self, graph: &Graph) -> (Loc, String) {
        let devices = self.devices();
        let name = |var: &VarId| &graph.vars[var.index()].name;
        match self {
            ConstraintSource::Scope(node, on) => {
                let data = graph.node(*node);
                let at = if data.loc.is_known() { format!(" at {}", data.loc) } else { String::new() };
                let place = match data.op {
                    Op::Read(var) | Op::Assign(var) => format!(", which is where the variable `{}` is", name(&var)),
                    _ => String::new(),
                };
                (on.loc(), format!("{devices} for `{}`{at}{place}", data.op.name()))
            }
            ConstraintSource::Var(var, on) => (on.loc(), format!("{devices} for the variable `{}`", name(var))),
            ConstraintSource::Rule(var, rule, _) => {
                (Loc::UNKNOWN, format!("{devices} for the variable `{}` by {rule}", name(var)))
            }
            ConstraintSource::Default(_) => (Loc::UNKNOWN, format!("{devices}, the device of the session")),
            ConstraintSource::Home(var, _) => {
                (Loc::UNKNOWN, format!("{devices} for the variable `{}`, which an earlier function placed", name(var)))
            }
            ConstraintSource::Unsupported { node, .. } => {
                let brief = self.brief(graph);
                (graph.node(*node).loc, format!("{devices} for `{}`: {brief}", graph.node(*node).op.name()))
            }
        }
    }

    /// Returns a short description of the constraint.
    pub(super) fn brief(&self, graph: &Graph) -> String {
        let name = |var: &VarId| &graph.vars[var.index()].name;
        match self {
            ConstraintSource::Scope(_, on) => format!("on {} at {}", on.devices(), on.loc()),
            ConstraintSource::Var(var, on) => format!("`{}` on {} at {}", name(var), on.devices(), on.loc()),
            ConstraintSource::Rule(var, rule, _) => format!("`{}` by {rule}", name(var)),
            ConstraintSource::Default(_) => "the device of the session".to_owned(),
            ConstraintSource::Home(var, _) => format!("the home of `{}`", name(var)),
            ConstraintSource::Unsupported { device, reason, .. } => format!("{device} {reason}"),
        }
    }
}

/// The merged constraints of all groups, and the devices that satisfy them.
#[derive(Debug)]
pub(super) struct Feasible {
    /// The merged constraints of each group, in order.
    pub(super) causes: Vec<Vec<ConstraintSource>>,
    patterns: Vec<DevicePattern>,
    /// The devices that match each pattern in use.
    devices: HashMap<DevicePattern, Vec<DeviceId>>,
}

impl Feasible {
    /// Merges all constraints.
    ///
    /// # Errors
    /// Fails if a constraint matches no device, or if the mandatory constraints of a group have no
    /// device in common.
    pub(super) fn new(
        graph: &Graph,
        groups: &Groups,
        topology: &Topology,
        rules: &Rules,
        outside: Outside<'_>,
    ) -> Result<Feasible> {
        rules.check(topology)?;
        let mut all = Feasible {
            causes: vec![Vec::new(); groups.len()],
            patterns: vec![DevicePattern::ANY; groups.len()],
            devices: HashMap::from([(DevicePattern::ANY, topology.ids().collect())]),
        };
        for (i, decl) in graph.vars.iter().enumerate() {
            let var = VarId::from_index(i);
            let group = groups.of_var(var);
            let home = outside.homes.get(i).copied().flatten();
            let home = home.map(|home| ConstraintSource::Home(var, pattern_of(topology, home)));
            let path = outside.paths.get(i).and_then(|path| path.as_deref()).unwrap_or(&decl.name);
            let rule = rules.of(path)?.map(|(devices, rule)| ConstraintSource::Rule(var, rule, devices));
            let asked = decl.on.map(|on| ConstraintSource::Var(var, on));
            for cause in home.into_iter().chain(asked).chain(rule) {
                all.add(group, cause, Strength::Holds, graph, topology)?;
            }
        }
        let mut wishes: [Vec<(GroupId, ConstraintSource)>; 2] = Default::default();
        for members in &groups.members {
            for &node in members {
                let data = graph.node(node);
                let (Some(on), Some(group)) = (data.on, groups.of(node)) else { continue };
                let cause = ConstraintSource::Scope(node, on);
                let is_at_home = |var: VarId| outside.homes.get(var.index()).is_some_and(Option::is_some);
                let rank = match data.op {
                    Op::Read(var) | Op::Assign(var) if is_at_home(var) => Some(1),
                    ref op => rank(op),
                };
                match rank {
                    None => all.add(group, cause, Strength::Holds, graph, topology)?,
                    Some(rank) => wishes[rank].push((group, cause)),
                }
            }
        }
        for (group, cause) in wishes.into_iter().flatten() {
            all.add(group, cause, Strength::Wish, graph, topology)?;
        }
        if let Some(default) = rules.default_device() {
            for group in groups.ids().filter(|group| all.causes[group.index()].is_empty()).collect::<Vec<_>>() {
                all.add(group, ConstraintSource::Default(default), Strength::Wish, graph, topology)?;
            }
        }
        if let Some(supports) = outside.supports {
            for group in groups.ids() {
                all.exclude(group, &groups.members[group.index()], topology, supports, graph)?;
            }
        }
        Ok(all)
    }

    /// Restricts a group to devices that run all of its nodes: if some device that constraints
    /// allow does not, to the CPUs, also against the constraints.
    fn exclude(
        &mut self,
        group: GroupId,
        members: &[Node],
        topology: &Topology,
        supports: &dyn Fn(DeviceId, Node) -> Support,
        graph: &Graph,
    ) -> Result<()> {
        let unsupported = |device: DeviceId| {
            members.iter().find_map(|&node| match supports(device, node) {
                Support::Yes => None,
                Support::No(reason) => Some((node, device, reason)),
            })
        };
        let Some((node, device, reason)) = self.of(group).iter().find_map(|&device| unsupported(device)) else {
            return Ok(());
        };
        let i = group.index();
        let runs = |pattern: &DevicePattern| {
            let devices = topology.matching(pattern);
            !devices.is_empty() && devices.into_iter().all(|device| unsupported(device).is_none())
        };
        let cpus: DevicePattern = "/cpu".parse().expect("a pattern");
        let allowed = self.patterns[i].merge(&cpus).into_iter();
        let exact = self.of(group).iter().map(|&device| topology.absolute(pattern_of(topology, device)));
        let Some(instead) = allowed.chain(exact).chain([cpus]).find(|pattern| runs(pattern)) else {
            let data = graph.node(node);
            let name = topology.device(device).name;
            let message = format!("no device runs `{}`: {name} {reason}", data.op.name());
            let error = Diagnostic::new(message).at(data.loc, "this operation");
            return Err(error.help(format!("available: {}", topology.names())));
        };
        self.devices.entry(instead).or_insert_with(|| topology.matching(&instead));
        self.patterns[i] = instead;
        let device = topology.device(device).name;
        self.causes[i].push(ConstraintSource::Unsupported { node, device, reason, instead });
        Ok(())
    }

    /// Returns the merged constraint of a group.
    pub(super) fn pattern(&self, group: GroupId) -> DevicePattern {
        self.patterns[group.index()]
    }

    /// Returns the devices that a group may be on, in order. There is at least one.
    pub(super) fn of(&self, group: GroupId) -> &[DeviceId] {
        &self.devices[&self.patterns[group.index()]]
    }

    fn add(
        &mut self,
        group: GroupId,
        cause: ConstraintSource,
        strength: Strength,
        graph: &Graph,
        topology: &Topology,
    ) -> Result<()> {
        let asked = topology.absolute(cause.devices());
        let mut exist = |pattern: DevicePattern| {
            !self.devices.entry(pattern).or_insert_with(|| topology.matching(&pattern)).is_empty()
        };
        let help = |causes: &mut dyn Iterator<Item = &ConstraintSource>| {
            let implied = causes.map(ConstraintSource::devices).find(|&asked| topology.absolute(asked) != asked);
            let implied = implied.map(|asked| format!("; without a peer, `{asked}` is a device of this process"));
            format!("available: {}{}", topology.names(), implied.unwrap_or_default())
        };
        if !exist(asked) {
            let (loc, label) = cause.shown(graph);
            let error = Diagnostic::new(format!("there is no device {}", cause.devices())).at(loc, label);
            return Err(error.help(help(&mut [&cause].into_iter())));
        }
        let i = group.index();
        match self.patterns[i].merge(&asked).filter(|&merged| exist(merged)) {
            Some(merged) => {
                self.patterns[i] = merged;
                if !self.causes[i].iter().any(|c| topology.absolute(c.devices()) == asked) {
                    self.causes[i].push(cause);
                }
                Ok(())
            }
            None if strength == Strength::Wish => Ok(()),
            None => {
                let before = &self.causes[i];
                let asked = cause.devices();
                let patterns: Vec<_> = before.iter().map(|c| c.devices().to_string()).collect();
                let message =
                    format!("conflicting device constraints: no device matches {} and {asked}", patterns.join(" and "));
                let labels = [&cause].into_iter().chain(before.iter().rev()).map(|c| c.shown(graph));
                let error = labels.fold(Diagnostic::new(message), |e, (loc, label)| e.at(loc, label));
                Err(error.help(help(&mut before.iter().chain([&cause]))))
            }
        }
    }
}

/// Returns the pattern that matches one device, as its name is written.
fn pattern_of(topology: &Topology, device: DeviceId) -> DevicePattern {
    topology.device(device).name.to_string().parse().expect("a name is a pattern")
}

/// The treatment of a constraint that conflicts with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strength {
    /// Report an error.
    Holds,
    /// Ignore the constraint.
    Wish,
}

/// Returns the priority class of a preference, or `None` for a mandatory constraint. Creation of a
/// stack or list has priority over its use.
fn rank(op: &Op) -> Option<usize> {
    match op {
        Op::Stack(StackOp::New(_) | StackOp::Zeros(_)) => Some(0),
        Op::List(ListOp::New(_) | ListOp::Unstack | ListOp::Split(_) | ListOp::Restore) => Some(0),
        Op::Stack(_) | Op::List(_) => Some(1),
        op if op.is_construct() => Some(1),
        _ => None,
    }
}
