//! Where the nodes of a program come from, for the errors of peers.
//!
//! A peer knows a node by its number and its operation. Only this process has the user's source
//! locations and knows the operations that the user wrote.

use super::proto::frame::StepFault;
use crate::flow::remote::StepFailure;
use anabranch_dsl::Loc;
use anabranch_dsl::ir::{Graph, Node};

/// The origin of each node of a graph.
#[derive(Debug)]
pub(super) struct Origins(Vec<NodeOrigin>);

#[derive(Debug)]
struct NodeOrigin {
    loc: Loc,
    /// The operation of the node, and the one that the user wrote, of which it is a part.
    written: Option<(&'static str, &'static str)>,
}

impl Origins {
    pub(super) fn of(graph: &Graph) -> Origins {
        let origin = |i| {
            let node = graph.node(Node::from_index(i));
            NodeOrigin { loc: node.loc, written: node.written.map(|written| (node.op.name(), written)) }
        };
        Origins((0..graph.n_nodes()).map(origin).collect())
    }

    /// Returns the source location of a node.
    pub(super) fn loc(&self, node: u32) -> Loc {
        self.0.get(node as usize).map_or(Loc::UNKNOWN, |origin| origin.loc)
    }

    /// Converts a failure of a peer.
    pub(super) fn failure(&self, mut fault: StepFault) -> StepFailure {
        // The first label with a node is about the operation that failed, which begins the message.
        let failed = fault.error.labels.iter().find_map(|(node, _)| self.0.get((*node)? as usize));
        if let Some((operation, written)) = failed.and_then(|origin| origin.written)
            && let Some(rest) = fault.error.message.strip_prefix(operation)
            && rest.starts_with(": ")
        {
            fault.error.message = format!("{written}{rest}");
        }
        let error = fault.error.into_diagnostic(|node| self.loc(node));
        StepFailure { position: fault.position.map(Vec::into_boxed_slice), error }
    }
}
