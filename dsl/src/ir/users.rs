//! The users of each value.

use super::{Graph, Node};

/// The users of a value. A region that yields the value counts as a user, but not as a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// Nothing uses the value.
    None,
    /// One node uses it, once or several times.
    Only(Node),
    /// Several nodes use it, or a region yields it.
    Several,
}

/// Returns the users of each value of a graph, by index.
pub fn users(graph: &Graph) -> Vec<Users> {
    let mut users = vec![Users::None; graph.n_values()];
    let mut regions = vec![graph.root()];
    while let Some(region) = regions.pop() {
        let data = graph.region(region);
        for &node in &data.nodes {
            for v in &graph.node(node).operands {
                let user = &mut users[v.index()];
                *user = match *user {
                    Users::None => Users::Only(node),
                    Users::Only(other) if other == node => Users::Only(node),
                    _ => Users::Several,
                };
            }
            regions.extend(&graph.node(node).regions);
        }
        data.yields.iter().for_each(|v| users[v.index()] = Users::Several);
    }
    users
}
