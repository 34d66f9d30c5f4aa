//! Sequentialization of parallel moves.
//!
//! A move may execute when no pending move still has to read its destination. If all remaining
//! moves form cycles, as in `(a, b) = (b, a)`, one source is saved first.

use rustc_hash::FxHashMap;
use std::hash::Hash;

/// An action of the sequence, by index of the move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ordered {
    /// Saves the source of the move, which later reads the saved value.
    Save(usize),
    /// Executes the move.
    Do(usize),
}

/// Returns a sequence for moves given as pairs of destination and source.
///
/// `None` is a source that no move overwrites. Destinations are distinct. A source equal to its
/// destination is read while it is overwritten, so it is saved.
pub(crate) fn in_order<S: Copy + Eq + Hash>(moves: &[(S, Option<S>)]) -> Vec<Ordered> {
    let by_destination: FxHashMap<S, usize> = moves.iter().enumerate().map(|(i, m)| (m.0, i)).collect();
    // For each pending move with an unsaved source: the move that overwrites its source.
    let mut waits: Vec<Option<usize>> =
        moves.iter().map(|m| m.1.and_then(|src| by_destination.get(&src).copied())).collect();
    let mut readers = vec![0; moves.len()];
    waits.iter().flatten().for_each(|&t| readers[t] += 1);
    let mut order = Vec::with_capacity(moves.len());
    let mut done = vec![false; moves.len()];
    let mut ready: Vec<usize> = (0..moves.len()).rev().filter(|&i| readers[i] == 0).collect();
    let mut next = 0;
    while next < moves.len() {
        let read = match ready.pop() {
            Some(i) => {
                order.push(Ordered::Do(i));
                done[i] = true;
                waits[i].take()
            }
            None if done[next] => {
                next += 1;
                None
            }
            // All remaining moves are in cycles. Saving this source unblocks the move that
            // overwrites it.
            None => {
                order.push(Ordered::Save(next));
                waits[next].take()
            }
        };
        if let Some(t) = read {
            readers[t] -= 1;
            if readers[t] == 0 {
                ready.push(t);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares sequential with parallel execution.
    fn check(moves: &[(usize, usize)]) {
        let start: Vec<usize> = (0..8).collect();
        let mut expected = start.clone();
        moves.iter().for_each(|&(d, s)| expected[d] = start[s]);

        let pairs: Vec<_> = moves.iter().map(|&(d, s)| (d, Some(s))).collect();
        let mut state = start.clone();
        let mut saved = vec![None; moves.len()];
        for o in in_order(&pairs) {
            match o {
                Ordered::Save(i) => saved[i] = Some(state[moves[i].1]),
                Ordered::Do(i) => state[moves[i].0] = saved[i].unwrap_or(state[moves[i].1]),
            }
        }
        assert_eq!(state, expected, "{moves:?}");
    }

    #[test]
    fn swaps_cycles_and_chains_keep_their_values() {
        check(&[(0, 1), (1, 0)]);
        check(&[(0, 1), (1, 2), (2, 0), (3, 0)]);
        check(&[(0, 1), (1, 0), (2, 3), (3, 2), (4, 4)]);
        check(&[(1, 0), (2, 1), (3, 2)]);
        check(&[(0, 5), (1, 5), (5, 0)]);
    }

    #[test]
    fn all_moves_between_four_places() {
        for code in 0..256 {
            let moves: Vec<(usize, usize)> = (0..4).map(|i| (i, code >> (2 * i) & 3)).collect();
            check(&moves);
        }
    }

    #[test]
    fn a_chain_needs_no_saving() {
        let order = in_order(&[(1, Some(0)), (2, Some(1)), (3, Some(2))]);
        assert_eq!(order, [Ordered::Do(2), Ordered::Do(1), Ordered::Do(0)]);
    }
}
