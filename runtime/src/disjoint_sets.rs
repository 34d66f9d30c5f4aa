//! Disjoint sets of numbers that can be joined (union-find).

/// The numbers below a bound, each in one set.
///
/// A set is named by its smallest number, its *root*, so that names do not depend on the order of
/// joins.
#[derive(Clone, Debug)]
pub(crate) struct DisjointSets {
    /// For each number a member of its set that is nearer to the root. A root has itself.
    parents: Vec<usize>,
}

impl DisjointSets {
    /// Creates the sets of the first `n` numbers, each of one number.
    pub(crate) fn new(n: usize) -> DisjointSets {
        DisjointSets { parents: (0..n).collect() }
    }

    /// Returns the root of the set of `x`. Halves the path to it, so that the next search is
    /// shorter.
    pub(crate) fn root(&mut self, mut x: usize) -> usize {
        while self.parents[x] != x {
            self.parents[x] = self.parents[self.parents[x]];
            x = self.parents[x];
        }
        x
    }

    /// Joins the sets of `a` and `b`.
    pub(crate) fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.parents[a.max(b)] = a.min(b);
    }
}

#[cfg(test)]
mod tests {
    use super::DisjointSets;

    #[test]
    fn joined_numbers_share_the_smallest_as_root() {
        let mut sets = DisjointSets::new(7);
        let roots = |sets: &mut DisjointSets| (0..7).map(|x| sets.root(x)).collect::<Vec<_>>();
        assert_eq!(roots(&mut sets), [0, 1, 2, 3, 4, 5, 6]);
        sets.join(6, 4);
        sets.join(5, 3);
        sets.join(2, 2);
        assert_eq!(roots(&mut sets), [0, 1, 2, 3, 4, 3, 4]);
        // Join through members that are not roots, in either order, and repeat a join.
        sets.join(6, 5);
        sets.join(1, 6);
        sets.join(4, 3);
        assert_eq!(roots(&mut sets), [0, 1, 2, 1, 1, 1, 1]);
    }
}
