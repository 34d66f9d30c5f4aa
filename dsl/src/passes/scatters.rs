//! Sums with sparse terms.

use super::{Pass, broadcast_number, is_zero, made_by};
use crate::Graph;
use crate::ir::{Attrs, GraphBuilder, InsertPoint, Node, Region, Value};
use crate::ops::attributes::Shaped;
use crate::ops::{Prim, prim};

/// Adds only the rows of a sparse term to a sum, not the whole table.
///
/// The rewrite makes the update of an embedding table cost in proportion to the rows that were
/// read, not to the size of the table.
///
/// A *sparse* value is zero except where rows were added to zeros. Operations that produce a sparse
/// value:
///
/// - `scatter_add` or `scatter_add_along_axis` into zeros or into a sparse value
/// - the negation of a sparse value, its product with a scalar, or its quotient by a scalar (floats
///   only)
/// - a sum or difference of two sparse values
///
/// In `x + s`, `s + x` and `x - s` with a sparse `s` and any other `x`, the rows of `s` are
/// negated, multiplied and divided as `s` was, and are then added to `x` in the order of the terms.
/// So `table - rate * gradient` becomes one `scatter_add` into the table for each read of it, and
/// the plan updates the table in place.
///
/// A sum stays as it is if its rows have to be scaled or negated and have more elements than the
/// sum.
///
/// Before: verified. After: verified. Float sums may be rounded differently. A row of `x` that is
/// not among the rows of `s` is left bitwise unchanged, although zero times infinity or a sum with
/// a negative zero would have changed it. A row index that is out of range fails at the sum, not
/// before. The operations that computed `s` are left unused, for `Dce` to remove.
#[derive(Clone, Copy, Debug)]
pub struct Scatters;

impl Pass for Scatters {
    fn name(&self) -> &'static str {
        "scatters"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        let is_sparse = vec![false; graph.n_values()];
        // A term shared by several sums is changed and added for each of them. The budget limits
        // this duplication.
        let budget = 64 + graph.n_nodes();
        GraphBuilder::edit(graph, |graph| {
            let mut pass = Sums { graph, is_sparse, budget, changed: false };
            pass.region(pass.graph.root());
            pass.changed
        })
    }
}

struct Sums<'g> {
    graph: &'g mut GraphBuilder,
    is_sparse: Vec<bool>,
    /// The number of terms, and of changes to them, that may still be added.
    budget: usize,
    changed: bool,
}

/// A change to the rows of a term before they are added.
#[derive(Clone, Copy)]
enum RowChange {
    Negate,
    /// Multiplication or division by a scalar, depending on the operation.
    Scale(Prim, Value),
}

/// A `scatter_add` of rows, with the changes to the rows, last change first.
struct ScatterTerm {
    scatter: Node,
    changes: Vec<RowChange>,
}

/// Returns what a term with these changes takes of the budget.
fn cost(changes: &[RowChange]) -> usize {
    1 + changes.len()
}

impl Sums<'_> {
    fn region(&mut self, region: Region) {
        for node in self.graph.region(region).nodes.clone() {
            self.graph.update_operands(node);
            self.node(node);
            for inner in self.graph.node(node).regions.clone() {
                self.region(inner);
            }
        }
        self.graph.update_yields(region);
    }

    fn is_sparse(&self, v: Value) -> bool {
        self.is_sparse.get(v.index()).copied().unwrap_or(false)
    }

    fn node(&mut self, node: Node) {
        let &[result] = &self.graph.node(node).results[..] else { return };
        let Some((name, operands)) = made_by(self.graph, result) else { return };
        match (name, operands) {
            (prim::SCATTER_ADD | prim::SCATTER_ADD_ALONG_AXIS, &[into, ..]) => {
                self.is_sparse[result.index()] = self.is_sparse(into) || is_zero(self.graph, into);
            }
            (prim::NEG, &[x]) => self.is_sparse[result.index()] = self.is_sparse(x),
            (prim::MUL | prim::DIV, &[a, b]) => self.is_sparse[result.index()] = self.scaled(name, a, b).is_some(),
            (prim::ADD | prim::SUB, &[a, b]) => match (self.is_sparse(a), self.is_sparse(b)) {
                (true, true) => self.is_sparse[result.index()] = true,
                (false, true) => self.add(node, a, b, (name == prim::SUB).then_some(RowChange::Negate)),
                (true, false) if name == prim::ADD => self.add(node, b, a, None),
                _ => {}
            },
            _ => {}
        }
    }

    /// Returns the sparse operand of a product or quotient, and its scalar factor or divisor.
    fn scaled(&self, op: Prim, a: Value, b: Value) -> Option<(Value, Value)> {
        // The quotient of an integer sum is not the sum of the quotients.
        if op == prim::DIV && !self.graph.ty(a).element().dtype.is_float() {
            return None;
        }
        match (self.is_sparse(a), self.is_sparse(b)) {
            (true, false) => Some((a, broadcast_number(self.graph, b)?)),
            (false, true) if op == prim::MUL => Some((b, broadcast_number(self.graph, a)?)),
            _ => None,
        }
    }

    /// Replaces the sum `x + sparse`, the result of `node`, by scatters of the rows into `x`.
    fn add(&mut self, node: Node, x: Value, sparse: Value, change: Option<RowChange>) {
        let terms = self.terms(sparse, change.into_iter().collect());
        let Some(terms) = terms.filter(|terms| self.pays(x, terms)) else { return };
        self.budget -= terms.iter().map(|term| cost(&term.changes)).sum::<usize>();
        let mut sum = x;
        for ScatterTerm { scatter, changes } in terms {
            let data = self.graph.node(scatter);
            let (op, ids, mut rows) = (data.op.clone(), data.operands[1], data.operands[2]);
            let origin = data.origin();
            let graph = self.graph.at(InsertPoint::Before(node), origin);
            for change in changes.into_iter().rev() {
                rows = match change {
                    RowChange::Negate => graph.prim(prim::NEG, &[rows], Attrs::none()),
                    RowChange::Scale(name, by) => {
                        let shape = graph.ty(rows).element().shape.clone();
                        let by = graph.prim(prim::BROADCAST_TO, &[by], Shaped { shape });
                        graph.prim(name, &[rows, by], Attrs::none())
                    }
                };
            }
            sum = graph.emit(op, &[sum, ids, rows]);
        }
        let result = self.graph.node(node).results[0];
        self.graph.replace(result, sum);
        self.changed = true;
    }

    /// Returns the terms of a sparse value in the order of the sum, or `None` if they take more
    /// than the budget.
    ///
    /// `changes` apply after the changes of each term.
    fn terms(&self, sparse: Value, changes: Vec<RowChange>) -> Option<Vec<ScatterTerm>> {
        let mut terms = Vec::new();
        // Terms are collected last to first. Terms in `todo` are paid for, too.
        let mut left = self.budget.checked_sub(cost(&changes))?;
        let mut todo = vec![(sparse, changes)];
        while let Some((v, mut changes)) = todo.pop() {
            match made_by(self.graph, v).expect("a sparse value is the result of an operation of the table") {
                (prim::NEG, &[x]) => {
                    left = left.checked_sub(1)?;
                    changes.push(RowChange::Negate);
                    todo.push((x, changes));
                }
                (name @ (prim::MUL | prim::DIV), &[a, b]) => {
                    let (x, by) = self.scaled(name, a, b).expect("the value was checked before");
                    left = left.checked_sub(1)?;
                    changes.push(RowChange::Scale(name, by));
                    todo.push((x, changes));
                }
                (name @ (prim::ADD | prim::SUB), &[a, b]) => {
                    left = left.checked_sub(cost(&changes))?;
                    todo.push((a, changes.clone()));
                    if name == prim::SUB {
                        left = left.checked_sub(1)?;
                        changes.push(RowChange::Negate);
                    }
                    todo.push((b, changes));
                }
                (_, &[into, ..]) => {
                    if self.is_sparse(into) {
                        left = left.checked_sub(cost(&changes))?;
                        todo.push((into, changes.clone()));
                    }
                    terms.push(ScatterTerm {
                        scatter: self.graph.producer(v).expect("the value is the result of a node"),
                        changes,
                    });
                }
                (name, _) => panic!("`{name}` has no sparse result"),
            }
        }
        terms.reverse();
        Some(terms)
    }

    /// Returns whether changing the rows is no more work than computing the sum.
    fn pays(&self, sum: Value, terms: &[ScatterTerm]) -> bool {
        let size = |v: Value| self.graph.ty(v).element().shape.known().map(|extents| extents.iter().product::<usize>());
        let changed = terms.iter().filter(|term| !term.changes.is_empty());
        let rows: Option<usize> = changed.map(|term| size(self.graph.node(term.scatter).operands[2])).sum();
        matches!((rows, size(sum)), (Some(rows), Some(sum)) if rows <= sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_changed_many_times_add_nodes_in_proportion() {
        let n = 200;
        let sums: String =
            (0..n).map(|i| format!("%s{} = neg %s{i} %y{} = add %y{i}, %s{} ", i + 1, i + 1, i + 1)).collect();
        let text = format!(
            "graph @f(%y0: f32[800], %ids: i32[2], %rows: f32[2]) -> f32[800] {{
                %zero = constant 0.0 : f32[]
                %zeros = broadcast_to %zero {{shape=[800]}}
                %s0 = scatter_add %zeros, %ids, %rows {{axis=0}}
                {sums}
                return %y{n}
            }}"
        );
        let mut graph = Graph::parse(&text, "f.ir").unwrap_or_else(|e| panic!("{}", e[0]));
        let before = graph.n_nodes();
        assert!(Scatters.run(&mut graph));
        crate::ir::verify(&graph).unwrap_or_else(|errors| panic!("{}", errors[0]));
        assert!(graph.n_nodes() < 3 * before, "{before} nodes become {}", graph.n_nodes());
    }
}
