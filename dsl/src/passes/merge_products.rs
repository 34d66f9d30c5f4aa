//! Merging of matmuls that share an operand, for example those of the gates of a recurrent cell.

use super::matrix::{columns, matrix, transposed};
use super::trips::trips;
use super::{Pass, has_product, made_by};
use crate::ir::{Attrs, GraphBuilder, InsertPoint, Node, Op, Origin, Region, Value};
use crate::ops::attributes::Along;
use crate::ops::prim;
use crate::{DType, DeviceConstraint, Graph};
use rustc_hash::{FxHashMap, FxHashSet};
use std::hash::Hash;

/// Merges matmuls in the body of a loop whose right operands are captured:
///
/// - `x a`, `x b`, ... with the same left operand become the columns of `x [a b ...]`.
/// - `x a + y b + ...`, possibly with other terms, becomes `[x y ...]` times the vertical
///   concatenation of `a`, `b`, ..., if these are concatenated for the first form anyway. The
///   gradient of the first form with respect to its left operand looks like this. Other sums stay:
///   in `x a + h b`, one matmul can often be hoisted.
///
/// Matmuls with transposed matrices are merged only if the matrices are concatenated anyway.
/// `z a^T` and `z b^T` are usually the gradients of `x a + h b`. One of them belongs to the
/// previous time step and the other matmul to the previous layer, and neither should wait for both.
///
/// The captured matrices are concatenated before the loop, once for both forms. So a loop with a
/// known trip count has to run at least 8 times. Matmuls with more than 256 rows stay, since one of
/// them keeps the processor busy. So do those with different device constraints, or whose matrices
/// are variables with different device constraints. A concatenated matrix has at most 256 MiB.
///
/// The pass does not depend on any model structure: a cell with one matrix per gate gets the same
/// matmuls as a cell with a single matrix.
///
/// Before: verified, and every value is captured once. After: verified, and no two such matmuls
/// have the same left operand. A column of a matmul is summed in the same order as before, a sum of
/// matmuls in a different order. Neither a matmul nor a `concat` of known extents can fail. The
/// original matmuls are left unused, for `Dce` to remove.
#[derive(Clone, Copy, Debug)]
pub struct MergeProducts;

/// Maximum size of a concatenated matrix.
const MAX_BYTES: usize = 1 << 28;

/// Matmuls with more rows are large enough by themselves.
const MAX_ROWS: usize = 256;

/// With fewer iterations, copying the captured matrices does not pay off.
const MIN_TRIPS: i64 = 8;

impl Pass for MergeProducts {
    fn name(&self) -> &'static str {
        "merge_products"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        let mut loops = Vec::new();
        graph.visit_nodes(graph.root(), &mut |node| {
            if graph.as_while(node).is_some() {
                loops.push(node);
            }
        });
        let (mut changed, mut families) = (false, Families::of(graph));
        GraphBuilder::edit(graph, |graph| {
            for node in loops {
                if !has_product(graph, node) || trips(graph, node).is_some_and(|n| n < MIN_TRIPS) {
                    continue;
                }
                let uses = graph.use_counts();
                let mut merge = MatmulMerger {
                    graph,
                    node,
                    uses,
                    families: &mut families,
                    joined: FxHashMap::default(),
                    taken: FxHashSet::default(),
                    changed: false,
                };
                merge.shared_operands();
                merge.sums();
                if merge.changed {
                    // Replaced values are used in the body only, since regions are closed.
                    let body = merge.body();
                    graph.update_region(body);
                    changed = true;
                }
            }
        });
        changed
    }
}

/// The state of the pass for one loop.
struct MatmulMerger<'g> {
    graph: &'g mut GraphBuilder,
    node: Node,
    /// The number of uses of each value before the rewrite.
    uses: Vec<u32>,
    families: &'g mut Families,
    /// The captures of concatenated matrices, by operands, axis and device constraint.
    joined: FxHashMap<(Vec<Value>, usize, Option<DeviceConstraint>), Value>,
    /// Matmuls that have been merged into another matmul.
    taken: FxHashSet<Node>,
    changed: bool,
}

/// A matmul of a matrix of the body and a captured matrix.
#[derive(Clone, Copy)]
struct CapturedMatmul {
    node: Node,
    left: Value,
    /// The captured matrix, before the loop.
    right: Value,
    is_transposed: bool,
    columns: usize,
    origin: Origin,
}

/// The properties that matmuls must share to be merged.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct MergeKey {
    is_transposed: bool,
    dtype: DType,
    /// The device constraints of the matmul and of the variable that holds the matrix.
    on: [Option<DeviceConstraint>; 2],
}

/// Groups of matrices that one `concat` joins, by their outermost values.
#[derive(Default)]
struct Families {
    of: FxHashMap<Value, usize>,
    n: usize,
}

impl Families {
    /// Collects the groups of a graph.
    fn of(graph: &Graph) -> Families {
        let mut families = Families::default();
        graph.visit_nodes(graph.root(), &mut |node| {
            let data = graph.node(node);
            let is_matrix = |v: &Value| matrix(graph.ty(*v)).is_some();
            if data.op.is(prim::CONCAT) && data.operands.iter().all(is_matrix) {
                families.add(graph, &data.operands);
            }
        });
        families
    }

    fn add(&mut self, graph: &Graph, matrices: &[Value]) {
        self.of.extend(matrices.iter().map(|&v| (outermost(graph, v), self.n)));
        self.n += 1;
    }

    fn find(&self, graph: &Graph, matrix: Value) -> Option<usize> {
        self.of.get(&outermost(graph, matrix)).copied()
    }
}

/// Returns the value that a chain of captures refers to, outside all regions.
fn outermost(graph: &Graph, mut v: Value) -> Value {
    while let Some(outer) = graph.captured_by(v) {
        v = outer;
    }
    v
}

/// Matmuls grouped by key, in the order of their first members.
struct MatmulGroups<K> {
    index: FxHashMap<K, usize>,
    products: Vec<Vec<CapturedMatmul>>,
}

impl<K> Default for MatmulGroups<K> {
    fn default() -> Self {
        MatmulGroups { index: FxHashMap::default(), products: Vec::new() }
    }
}

impl<K: Eq + Hash> MatmulGroups<K> {
    fn add(&mut self, key: K, product: CapturedMatmul) {
        let n = self.products.len();
        let i = *self.index.entry(key).or_insert(n);
        if i == n {
            self.products.push(Vec::new());
        }
        self.products[i].push(product);
    }
}

impl MatmulMerger<'_> {
    fn body(&self) -> Region {
        self.graph.while_of(self.node).body()
    }

    fn is_used(&self, v: Value) -> bool {
        self.uses.get(v.index()).is_some_and(|&n| n > 0)
    }

    /// Returns a node as a matmul that can be merged.
    fn product(&self, node: Node) -> Option<CapturedMatmul> {
        let data = self.graph.node(node);
        let (Op::Prim(def, _), &[left, right]) = (&data.op, &data.operands[..]) else { return None };
        let [rows, columns] = matrix(self.graph.ty(*data.results.first()?))?;
        if def != prim::MATMUL || rows > MAX_ROWS || self.taken.contains(&node) {
            return None;
        }
        let is_transposed = matches!(made_by(self.graph, right), Some((prim::PERMUTE, _)));
        let right = if is_transposed { made_by(self.graph, right)?.1[0] } else { right };
        let right = self.graph.captured_by(right).filter(|_| self.graph.region_of(right) == self.body())?;
        Some(CapturedMatmul { node, left, right, is_transposed, columns, origin: data.origin() })
    }

    fn kind(&self, product: &CapturedMatmul) -> MergeKey {
        let dtype = self.graph.ty(product.left).element().dtype;
        let maker = self.graph.producer(outermost(self.graph, product.right));
        let of_variable = match maker.map(|node| &self.graph.node(node).op) {
            Some(Op::Read(var)) => self.graph.vars[var.index()].on,
            _ => None,
        };
        MergeKey { is_transposed: product.is_transposed, dtype, on: [product.origin.on, of_variable] }
    }

    /// Sorts matmuls by their right operand and removes duplicates.
    ///
    /// Returns whether at least two are left and their matrices are small enough together.
    fn fit(&self, products: &mut Vec<CapturedMatmul>) -> bool {
        products.sort_by_key(|p| p.right);
        products.dedup_by_key(|p| p.right);
        let bytes = |p: &CapturedMatmul| {
            let ty = self.graph.ty(p.right).element();
            ty.shape.size().unwrap_or(usize::MAX).saturating_mul(ty.dtype.size())
        };
        products.len() >= 2 && products.iter().map(bytes).fold(0, usize::saturating_add) <= MAX_BYTES
    }

    /// Concatenates the right operands of matmuls along an axis.
    fn join(&mut self, products: &[CapturedMatmul], axis: usize, at: InsertPoint) -> Value {
        let CapturedMatmul { is_transposed, origin, .. } = products[0];
        let axis = if is_transposed { 1 - axis } else { axis };
        let rights: Vec<Value> = products.iter().map(|p| p.right).collect();
        let key = (rights, axis, origin.on);
        let captured = match self.joined.get(&key) {
            Some(&captured) => captured,
            None => {
                self.families.add(self.graph, &key.0);
                let before = self.graph.at(InsertPoint::Before(self.node), origin);
                let all = before.prim(prim::CONCAT, &key.0, Along { axis });
                let [_, captured] = self.graph.add_capture(self.node, all).params;
                *self.joined.entry(key).or_insert(captured)
            }
        };
        if !is_transposed {
            return captured;
        }
        self.graph.at(at, origin).prim(prim::PERMUTE, &[captured], transposed())
    }

    /// Merges matmuls with the same left operand.
    fn shared_operands(&mut self) {
        let mut groups = MatmulGroups::default();
        for &node in &self.graph.region(self.body()).nodes {
            let product = self.product(node).filter(|p| self.is_used(self.graph.node(p.node).results[0]));
            let Some(product) = product else { continue };
            let family = self.families.find(self.graph, product.right).filter(|_| product.is_transposed);
            if family.is_some() || !product.is_transposed {
                groups.add((product.left, family, self.kind(&product)), product);
            }
        }
        for mut products in groups.products {
            // The first matmul in the order of nodes: all results are used after it.
            let CapturedMatmul { node: first, left, origin, .. } = products[0];
            if !self.fit(&mut products) {
                continue;
            }
            let at = InsertPoint::Before(first);
            let right = self.join(&products, 1, at);
            let all = self.graph.at(at, origin).prim(prim::MATMUL, &[left, right], Attrs::none());
            let mut start = 0;
            for CapturedMatmul { node, columns: n, origin, .. } in products {
                let own = self.graph.at(at, origin).prim(prim::SLICE, &[all], columns(start, n));
                start += n;
                let result = self.graph.node(node).results[0];
                self.graph.replace(result, own);
                self.taken.insert(node);
            }
            self.changed = true;
        }
    }

    /// Merges matmuls that are terms of the same sum.
    fn sums(&mut self) {
        let is_add = |g: &Graph, v: Value| matches!(made_by(g, v), Some((prim::ADD, _)));
        let nodes = self.graph.region(self.body()).nodes.clone();
        let results: Vec<Value> = nodes.iter().flat_map(|&n| self.graph.node(n).results.clone()).collect();
        let mut inner = FxHashSet::default();
        for &v in results.iter().filter(|&&v| is_add(self.graph, v)) {
            let (_, operands) = made_by(self.graph, v).expect("the value is a sum");
            let once = |w: &&Value| self.uses.get(w.index()) == Some(&1) && is_add(self.graph, **w);
            inner.extend(operands.iter().filter(once).copied());
        }
        for sum in results {
            if is_add(self.graph, sum) && !inner.contains(&sum) && self.is_used(sum) {
                self.sum(sum, &inner);
            }
        }
    }

    /// Merges the matmuls of one sum. `inner` holds the sums whose only use is as a term of
    /// another.
    fn sum(&mut self, sum: Value, inner: &FxHashSet<Value>) {
        let mut groups = MatmulGroups::default();
        let (mut others, mut left) = (Vec::new(), vec![sum]);
        while let Some(v) = left.pop() {
            if v == sum || inner.contains(&v) {
                let (_, operands) = made_by(self.graph, v).expect("the value is a sum");
                left.extend(operands.iter().rev());
                continue;
            }
            let is_alone = self.uses.get(v.index()) == Some(&1);
            let product = self.graph.producer(v).filter(|_| is_alone).and_then(|node| self.product(node));
            let family = product.and_then(|p| self.families.find(self.graph, p.right));
            match product.zip(family) {
                Some((product, family)) => groups.add((family, self.kind(&product)), product),
                None => others.push(v),
            }
        }
        let result_of = |g: &Graph, p: &CapturedMatmul| g.node(p.node).results[0];
        let last = self.graph.producer(sum).expect("the value is a sum");
        let (at, origin) = (InsertPoint::Before(last), self.graph.node(last).origin());
        let (mut merged, mut changed) = (Vec::new(), false);
        for mut products in groups.products {
            let all = products.clone();
            if !self.fit(&mut products) || products.len() < all.len() {
                others.extend(all.iter().map(|p| result_of(self.graph, p)));
                continue;
            }
            let origin = products[0].origin;
            let lefts: Vec<Value> = products.iter().map(|p| p.left).collect();
            let left = self.graph.at(at, origin).prim(prim::CONCAT, &lefts, Along { axis: 1 });
            let right = self.join(&products, 0, at);
            merged.push(self.graph.at(at, origin).prim(prim::MATMUL, &[left, right], Attrs::none()));
            self.taken.extend(products.iter().map(|p| p.node));
            changed = true;
        }
        if !changed {
            return;
        }
        // The matmuls come last, so that one of them can accumulate into the other terms.
        let mut terms = others.into_iter().chain(merged);
        let first = terms.next().expect("a sum has terms");
        let graph = self.graph.at(at, origin);
        let new = terms.fold(first, |sum, term| graph.prim(prim::ADD, &[sum, term], Attrs::none()));
        graph.replace(sum, new);
        self.changed = true;
    }
}
