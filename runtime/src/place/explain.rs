//! Textual representation of a placement: the device of each node and the reason, estimates, and
//! transfers.

use super::choose::{Choice, PlacementReason};
use super::groups::{Feasible, Groups};
use super::{Outside, Placement};
use crate::device::cost::Costs;
use crate::device::{Crossing, DeviceId, Topology};
use anabranch_dsl::ir::{Graph, Node, Op, Region, Value};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The reasons for a placement, and the estimates it is based on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reasons {
    /// The reason of each group.
    why: Vec<String>,
    /// The group of each node.
    groups: Vec<Option<usize>>,
    /// Whether each variable had a home before.
    homes: Vec<bool>,
    pub(super) seconds: f64,
    pub(super) single: Option<(DeviceId, f64)>,
}

impl Reasons {
    pub(super) fn new(
        graph: &Graph,
        groups: &Groups,
        feasible: &Feasible,
        choice: &Choice,
        outside: Outside<'_>,
    ) -> Reasons {
        let asked = |g: usize| feasible.causes[g].iter().map(|c| c.brief(graph)).collect::<Vec<_>>().join("; ");
        let why = choice.why.iter().enumerate().map(|(g, why)| match why {
            PlacementReason::Asked => asked(g),
            PlacementReason::With(other) => format!("with {}", asked(other.index())),
            PlacementReason::Single => "the best single device".to_owned(),
            PlacementReason::Spread => "shares the work".to_owned(),
        });
        Reasons {
            why: why.collect(),
            groups: (0..graph.n_nodes()).map(|n| groups.of(Node::from_index(n)).map(|g| g.index())).collect(),
            homes: (0..graph.vars.len()).map(|i| outside.homes.get(i).is_some_and(Option::is_some)).collect(),
            seconds: choice.estimate.seconds,
            single: choice.single.map(|(d, e)| (d, e.seconds)),
        }
    }
}

impl Placement {
    /// Returns a table of nodes with device, estimated seconds per step and reason, followed by the
    /// values and bytes that a step transfers between each pair of devices, according to the
    /// partition.
    ///
    /// Costs of constructs exclude their regions.
    pub(crate) fn explain(
        &self,
        graph: &Graph,
        topology: &Topology,
        crossings: impl Iterator<Item = Crossing>,
    ) -> String {
        let costs = Costs::new(graph);
        let mut rows = vec![["node", "device", "cost", "why"].map(str::to_owned)];
        for (i, var) in graph.vars.iter().enumerate() {
            let device = topology.device(self.vars[i]).name.to_string();
            let bytes = var.ty.shape.size().unwrap_or(0) * var.ty.dtype.size();
            let had_home = self.reasons.as_ref().is_some_and(|reasons| reasons.homes[i]);
            let why = if had_home { "its home since an earlier function" } else { "" };
            rows.push([format!("@{}", var.name), device, size(bytes as f64), why.to_owned()]);
        }
        self.rows(graph, topology, &costs, graph.root(), 0, &mut rows);
        let mut text = format!("placement of `{}` on {}\n", graph.name, topology.names());
        for d in &topology.devices {
            let rates = [rate(d.flops, "FLOP/s"), rate(d.bandwidth, "B/s")];
            let _ = writeln!(text, "  {}: {}, {}, {} an operation", d.name, rates[0], rates[1], time(d.launch));
        }
        let width = |c: usize| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2)];
        for [node, device, cost, why] in &rows {
            let line = format!(
                "  {node:w0$}  {device:w1$}  {cost:>w2$}  {why}",
                w0 = widths[0],
                w1 = widths[1],
                w2 = widths[2]
            );
            text.push_str(line.trim_end());
            text.push('\n');
        }
        // Sum over all regions in which a value is sent.
        let mut sent: BTreeMap<(DeviceId, DeviceId), BTreeMap<Value, f64>> = BTreeMap::new();
        for Crossing { from, to, value, sent_in } in crossings {
            *sent.entry((from, to)).or_default().entry(value).or_default() += costs.runs[sent_in.index()];
        }
        for ((from, to), values) in sent {
            let bytes: f64 = values.iter().map(|(v, times)| costs.bytes[v.index()] * times).sum();
            let [from, to] = [from, to].map(|d| topology.device(d).name);
            let _ = writeln!(text, "{from} -> {to}: {} a step in {}", size(bytes), count(values.len(), "value"));
            for (value, times) in values {
                let name = match costs.makers[value.index()] {
                    Some(maker) => label(graph, maker),
                    None => graph.value(value).name.map_or_else(|| value.to_string(), |name| format!("%{name}")),
                };
                let times = if times == 1.0 { String::new() } else { format!(", {} times", digits(times)) };
                let _ = writeln!(text, "  {name}: {}{times}", size(costs.bytes[value.index()]));
            }
        }
        if let Some(reasons) = &self.reasons {
            let _ = write!(text, "estimate of a step: {}", time(reasons.seconds));
            match reasons.single {
                Some((d, seconds)) if self.devices(graph).len() > 1 => {
                    let _ = write!(text, "; {} on {} alone", time(seconds), topology.device(d).name);
                }
                _ => {}
            }
            text.push('\n');
        }
        text
    }

    fn rows(
        &self,
        graph: &Graph,
        topology: &Topology,
        costs: &Costs,
        region: Region,
        depth: usize,
        rows: &mut Vec<[String; 4]>,
    ) {
        for &node in &graph.region(region).nodes {
            let data = graph.node(node);
            let device = self.of(node);
            let seconds = costs.work[node.index()].seconds(topology.device(device)) * costs.runs[region.index()];
            let why = self.reasons.as_ref().and_then(|r| Some(r.why[r.groups[node.index()]?].clone()));
            let why = if self.moved[node.index()] {
                Some("with the first print, to keep their order".to_owned())
            } else {
                why
            };
            rows.push([
                format!("{:1$}{2}", "", 2 * depth, label(graph, node)),
                topology.device(device).name.to_string(),
                if data.regions.is_empty() && seconds > 0.0 { time(seconds) } else { String::new() },
                why.unwrap_or_default(),
            ]);
            for &inner in &data.regions {
                self.rows(graph, topology, costs, inner, depth + 1, rows);
            }
        }
    }
}

/// Returns `%loss = sum at model.rs:12:5`, as far as the name and location are known.
fn label(graph: &Graph, node: Node) -> String {
    let data = graph.node(node);
    let name = data.results.first().and_then(|&r| graph.value(r).name);
    let mut label = name.map_or_else(String::new, |name| format!("%{name} = "));
    label.push_str(data.op.name());
    if let Op::Read(var) | Op::Assign(var) = data.op {
        let _ = write!(label, " @{}", graph.vars[var.index()].name);
    }
    if data.loc.is_known() {
        let _ = write!(label, " at {}", data.loc);
    }
    label
}

fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Formats seconds with three digits.
fn time(seconds: f64) -> String {
    let (x, unit) = match seconds {
        s if s < 1e-6 => (s * 1e9, "ns"),
        s if s < 1e-3 => (s * 1e6, "µs"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    format!("{} {unit}", digits(x))
}

/// Formats bytes with three digits.
fn size(bytes: f64) -> String {
    let (x, unit) = match bytes {
        b if b < 1e3 => (b, "B"),
        b if b < 1e6 => (b / 1e3, "kB"),
        b if b < 1e9 => (b / 1e6, "MB"),
        b => (b / 1e9, "GB"),
    };
    format!("{} {unit}", digits(x))
}

/// Formats a rate with three digits.
fn rate(x: f64, unit: &str) -> String {
    let (x, prefix) = match x {
        x if x < 1e9 => (x / 1e6, "M"),
        x if x < 1e12 => (x / 1e9, "G"),
        x => (x / 1e12, "T"),
    };
    format!("{} {prefix}{unit}", digits(x))
}

fn digits(x: f64) -> String {
    if x >= 1e6 {
        return format!("{x:.2e}");
    }
    let decimals = if x == x.trunc() || x >= 100.0 {
        0
    } else if x >= 10.0 {
        1
    } else {
        2
    };
    format!("{x:.decimals$}")
}
