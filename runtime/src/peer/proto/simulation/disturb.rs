//! What goes wrong in a cluster.

use super::cluster::{ClusterEvent, ClusterModel, Connection, ms};
use crate::peer::proto::Time;
use crate::peer::proto::caller::LinkLoss;
use crate::peer::proto::host::HostInput;

impl ClusterModel {
    /// Returns after how long a side of a connection learns that it is lost: at once, or after
    /// about half of the failure timeout, as links are lost by silence.
    fn notice(&mut self) -> usize {
        [self.rng.below(50), self.rng.below(600)][self.rng.below(2)]
    }

    /// Cuts a connection. Each side learns it on its own.
    pub(super) fn cut(&mut self, connection: usize) {
        if std::mem::replace(&mut self.connections[connection].is_cut, true) {
            return;
        }
        for side in 0..2 {
            let delay = self.notice();
            self.after(delay, ClusterEvent::Lost { connection, side, loss: LinkLoss::TimedOut });
        }
    }

    /// Starts a process again, with nothing in its memory.
    fn restart(&mut self, node: usize) {
        let links: Vec<(usize, usize)> = std::mem::take(&mut self.nodes[node].links).into_values().collect();
        for (connection, side) in links {
            self.connections[connection].is_cut = true;
            self.connections[connection].sides[side].is_lost = true;
            let delay = self.notice();
            let loss = if delay < 50 { LinkLoss::Refused } else { LinkLoss::TimedOut };
            self.after(delay, ClusterEvent::Lost { connection, side: 1 - side, loss });
        }
        let incarnation = self.nodes[node].incarnation + 1;
        let host = self.new_host(node, self.nodes[node].key, incarnation);
        let state = &mut self.nodes[node];
        state.incarnation = incarnation;
        state.host = host;
        state.runs.clear();
        state.values.clear();
        state.shared.clear();
        state.counters.clear();
        state.wrong_cuts.clear();
        state.frozen_until = Time::ZERO;
        state.leaves = false;
        state.tick_at = None;
        // A user does not come back: its session dies with it.
        if let Some(user) = &mut state.user {
            user.is_dead = true;
        }
    }

    pub(super) fn disturb(&mut self) {
        if self.disturbances == 0 {
            return;
        }
        self.disturbances -= 1;
        let node = self.rng.below(self.nodes.len());
        let what = self.rng.below(6);
        self.note(|| format!("disturbance {what} of node{node}"));
        self.seen.disturbances += 1;
        let mut over = self.now;
        match what {
            0 | 1 if !self.connections.is_empty() => {
                let connection = self.rng.below(self.connections.len());
                self.cut(connection);
            }
            2 => {
                let other = self.rng.below(self.nodes.len());
                let pair = (node.min(other), node.max(other));
                let until = self.now + ms(self.rng.below(3_000));
                self.blocked.insert(pair, until);
                over = until;
                let between = |connection: &Connection| {
                    let nodes = [connection.sides[0].node, connection.sides[1].node];
                    nodes.contains(&node) && nodes.contains(&other) && node != other
                };
                let cut: Vec<usize> =
                    (0..self.connections.len()).filter(|&index| between(&self.connections[index])).collect();
                cut.into_iter().for_each(|connection| self.cut(connection));
            }
            3 => self.restart(node),
            // An owner that is frozen cannot keep its own bounds.
            4 if self.nodes[node].user.is_none() => {
                let span = [self.rng.below(300), self.rng.below(4_000)][self.rng.below(2)];
                let until = &mut self.nodes[node].frozen_until;
                *until = (*until).max(self.now + ms(span));
                // Until then an owner may take it for lost, since it was silent for so long.
                over = *until + ms(1_000);
            }
            5 if self.nodes[node].user.is_none() && self.rng.below(3) == 0 => {
                self.nodes[node].leaves = true;
                self.inform_host(node, HostInput::Leave { reason: "maintenance".to_owned() });
            }
            _ => {}
        }
        self.disturbed_until(over);
        let delay = self.rng.below(3_000);
        self.after(delay, ClusterEvent::Disturb);
    }

    /// Notes that something goes wrong until some time.
    pub(super) fn disturbed_until(&mut self, over: Time) {
        self.calm_from = self.calm_from.max(over);
        for user in self.nodes.iter_mut().filter_map(|node| node.user.as_mut()) {
            user.calm_opening = None;
        }
    }
}
