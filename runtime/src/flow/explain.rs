//! Textual representation of a partition.

use super::{FlowOp, Frame, Partition, Subgraph, SubgraphId};
use crate::device::{Crossing, LoadedKernel};
use anabranch_dsl::Graph;
use std::fmt::Write;

impl Partition {
    /// Returns the transfers between devices.
    pub(crate) fn crossings(&self) -> impl Iterator<Item = Crossing> {
        let device = |part: SubgraphId| self.parts[part.index()].device;
        self.edges.iter().map(move |edge| Crossing {
            from: device(edge.from),
            to: device(edge.to),
            value: edge.value,
            sent_in: edge.sent_in,
        })
    }

    /// Returns all of the partition as text, for the comparison of partitions of one graph.
    #[cfg(feature = "peers")]
    pub(crate) fn description(&self) -> String {
        let mut text = format!("{:?}\n{:?}\n", self.edges, self.loops);
        for Subgraph { device, nodes, blocks, frames, frame_of, kernels, receivers: _ } in
            self.parts.iter().map(|p| &**p)
        {
            // The receivers are also among the nodes.
            let members: Vec<_> = kernels.iter().map(|kernel| &kernel.members).collect();
            let _ = writeln!(text, "{device:?}\n{nodes:?}\n{blocks:?}\n{frames:?}\n{frame_of:?}\n{members:?}");
        }
        text
    }

    /// Lists the kernels, transfers and loops of each subgraph. `devices` are the names of their
    /// devices, and `kernels` their compiled kernels, none for other processes.
    pub(super) fn explain(&self, graph: &Graph, devices: &[String], kernels: &[Vec<Box<dyn LoadedKernel>>]) -> String {
        let mut text = String::new();
        for (p, part) in self.parts.iter().enumerate() {
            let name = &devices[p];
            let _ = writeln!(text, "part {p} on {name}: {} nodes, {} kernels", part.nodes.len(), part.kernels.len());
            self.nodes(graph, part, &kernels[p], &mut text);
        }
        for (i, info) in self.loops.iter().enumerate() {
            let members = self.parts.iter().enumerate().filter(|(_, p)| p.frame_of[i].is_some());
            let names: Vec<String> = members.map(|(p, _)| format!("part {p} ({})", devices[p])).collect();
            let loc = graph.node(info.node).loc;
            let window =
                self.parts[info.leader.index()].frame_of[i].map(|f| &self.parts[info.leader.index()].frames[f.index()]);
            let window = window.map_or(1, |frame: &Frame| frame.window);
            let _ = writeln!(
                text,
                "loop at {loc}: {}; part {} computes its predicate, {window} iterations at once",
                names.join(", "),
                info.leader.0
            );
        }
        text
    }

    fn nodes(&self, graph: &Graph, part: &Subgraph, kernels: &[Box<dyn LoadedKernel>], text: &mut String) {
        for node in &part.nodes {
            let block = &part.blocks[node.block.index()];
            let mut depth = 0;
            let mut frame = &part.frames[block.frame.index()];
            while let Some(parent) = frame.parent {
                (frame, depth) = (&part.frames[parent.index()], depth + 1);
            }
            let indent = "  ".repeat(depth + 1);
            let _ = match node.op {
                FlowOp::Compute(kernel) => {
                    let members = &part.kernels[kernel.index()].members;
                    let names: Vec<&str> = members.iter().map(|&n| graph.node(n).op.name()).collect();
                    let _ = writeln!(text, "{indent}compute {}", names.join(" "));
                    let compiled = kernels.get(kernel.index()).and_then(|kernel| kernel.explain());
                    compiled
                        .iter()
                        .flat_map(|text| text.lines())
                        .try_for_each(|line| writeln!(text, "{indent}  {line}"))
                }
                FlowOp::Send { edge, to } => {
                    let edge = &self.edges[edge.index()];
                    writeln!(text, "{indent}send {} {} to part {}", edge.value, edge.ty, to.0)
                }
                FlowOp::Recv(edge) => {
                    let edge = &self.edges[edge.index()];
                    writeln!(text, "{indent}receive {} from part {}", edge.value, edge.from.0)
                }
                FlowOp::Loop(_) => {
                    let loc = node.origin.map(|n| graph.node(n).loc.to_string()).unwrap_or_default();
                    writeln!(text, "{indent}loop at {loc}")
                }
                _ => Ok(()),
            };
        }
    }
}
