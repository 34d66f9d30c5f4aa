//! Products that share an operand, as those of the gates of a recurrent cell.

use super::build::{At, add, along, columns, matrix, transposed};
use super::trips::trips;
use super::{Pass, captured, has_product, made_by};
use crate::ir::{Attrs, Node, Op, Origin, Region, Replacements, Value, ValueDef};
use crate::ops::prim;
use crate::{DType, Graph, On};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Makes one product of several in the body of a loop whose right operands are captured:
///
/// - `x a`, `x b`, .. with one left operand: the columns of `x [a b ..]`.
/// - `x a + y b + ..`, with terms of other kinds between them, where `a`, `b`, .. are put together for the first form anyway: `[x y ..]`
///   times `a`, `b`, .. one below the other. This is the gradient of the first with respect to its left operand. Other sums stay:
///   of `x a + h b` one product often leaves the loop.
///
/// Products with transposed matrices take part if these are put together anyway: `z a^T` and `z b^T` are mostly the gradients of `x a + h b`, of
/// which one belongs to the step before and the other one to the layer before, that need not wait for both.
///
/// The captured matrices are put together before the loop, once for both forms, so a loop whose trips are known has to run at least
/// 8 times. Products of more than 256 rows stay, since one of them keeps the processor busy; so do those that are to be on
/// different devices, or whose matrices are variables of different devices. What is put together is at most 256 MiB.
///
/// Nothing is known of cells here: whoever writes gates in matrices of their own gets the products of a cell that has them in one.
///
/// Before: verified; captures of one value are one. After: verified; no two such products have one left operand. A column of a product is
/// summed up as before, a sum of products in another order. Neither a product nor a `concat` of known extents can fail. The products
/// before stay, unused, for the pass that removes such.
#[derive(Clone, Copy, Debug)]
pub struct MergeProducts;

/// What is put together is at most this.
const MAX_BYTES: usize = 1 << 28;

/// Products of more rows are large enough by themselves.
const MAX_ROWS: usize = 256;

/// In fewer iterations a copy of the captured matrices does not pay.
const MIN_TRIPS: i64 = 8;

impl Pass for MergeProducts {
    fn name(&self) -> &'static str {
        "merge_products"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        let mut loops = Vec::new();
        graph.visit_nodes(graph.root(), &mut |node| {
            if matches!(graph.node(node).op, Op::While { .. }) {
                loops.push(node);
            }
        });
        let (mut changed, mut families) = (false, Families::of(graph));
        for node in loops {
            if !has_product(graph, node) || trips(graph, node).is_some_and(|n| n < MIN_TRIPS) {
                continue;
            }
            let (uses, replaced) = (graph.use_counts(), Replacements::new(graph));
            let mut merge = Merge {
                graph,
                node,
                uses,
                replaced,
                families,
                joined: HashMap::new(),
                taken: HashSet::new(),
                changed: false,
            };
            merge.shared_operands();
            merge.sums();
            families = std::mem::take(&mut merge.families);
            changed |= merge.finish();
        }
        changed
    }
}

/// A loop, and what was merged in it.
struct Merge<'g> {
    graph: &'g mut Graph,
    node: Node,
    /// How often each value was used before.
    uses: Vec<u32>,
    replaced: Replacements,
    families: Families,
    /// The captures of matrices from before the loop that were put together along an axis.
    joined: HashMap<(Vec<Value>, usize, Option<On>), Value>,
    /// Products that became part of another one.
    taken: HashSet<Node>,
    changed: bool,
}

/// A product of a matrix of the body and a captured one.
#[derive(Clone, Copy)]
struct Product {
    node: Node,
    left: Value,
    /// The captured matrix, before the loop.
    right: Value,
    is_transposed: bool,
    columns: usize,
    origin: Origin,
}

/// What products that become one have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    is_transposed: bool,
    dtype: DType,
    /// Where the product is to be, and the variable that the matrix is.
    on: [Option<On>; 2],
}

/// Matrices that one `concat` puts together, by what they are outside of all loops.
#[derive(Default)]
struct Families {
    of: HashMap<Value, usize>,
    n: usize,
}

impl Families {
    /// Those that a graph puts together.
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

/// What a value is outside of all regions that capture it.
fn outermost(graph: &Graph, mut v: Value) -> Value {
    while let ValueDef::Param(region, i) = graph.value(v).def
        && let Some(outer) = captured(graph, region, i as usize)
    {
        v = outer;
    }
    v
}

/// Products by what they have in common, in the order of the first ones.
struct Groups<K> {
    index: HashMap<K, usize>,
    products: Vec<Vec<Product>>,
}

impl<K> Default for Groups<K> {
    fn default() -> Self {
        Groups { index: HashMap::new(), products: Vec::new() }
    }
}

impl<K: Eq + Hash> Groups<K> {
    fn add(&mut self, key: K, product: Product) {
        let n = self.products.len();
        let i = *self.index.entry(key).or_insert(n);
        if i == n {
            self.products.push(Vec::new());
        }
        self.products[i].push(product);
    }
}

impl Merge<'_> {
    fn body(&self) -> Region {
        self.graph.node(self.node).regions[1]
    }

    fn is_used(&self, v: Value) -> bool {
        self.uses.get(v.index()).is_some_and(|&n| n > 0)
    }

    /// A node as such a product.
    fn product(&self, node: Node) -> Option<Product> {
        let data = self.graph.node(node);
        let (Op::Prim(def, _), &[left, right]) = (&data.op, &data.operands[..]) else { return None };
        let [rows, columns] = matrix(self.graph.ty(*data.results.first()?))?;
        if def != prim::MATMUL || rows > MAX_ROWS || self.taken.contains(&node) {
            return None;
        }
        let is_transposed = matches!(made_by(self.graph, right), Some((prim::PERMUTE, _)));
        let right = if is_transposed { made_by(self.graph, right)?.1[0] } else { right };
        let right = match self.graph.value(right).def {
            ValueDef::Param(region, i) if region == self.body() => captured(self.graph, region, i as usize)?,
            _ => return None,
        };
        Some(Product { node, left, right, is_transposed, columns, origin: data.origin() })
    }

    fn kind(&self, product: &Product) -> Kind {
        let dtype = self.graph.ty(product.left).element().dtype;
        let maker = self.graph.producer(outermost(self.graph, product.right));
        let of_variable = match maker.map(|node| &self.graph.node(node).op) {
            Some(Op::Read(var)) => self.graph.vars[var.index()].on,
            _ => None,
        };
        Kind { is_transposed: product.is_transposed, dtype, on: [product.origin.on, of_variable] }
    }

    /// Whether the right matrices of products are several, and small enough together; puts products into the order of these.
    fn fit(&self, products: &mut Vec<Product>) -> bool {
        products.sort_by_key(|p| p.right);
        products.dedup_by_key(|p| p.right);
        let bytes = |p: &Product| {
            let ty = self.graph.ty(p.right).element();
            ty.shape.size().unwrap_or(usize::MAX).saturating_mul(ty.dtype.size())
        };
        products.len() >= 2 && products.iter().map(bytes).fold(0, usize::saturating_add) <= MAX_BYTES
    }

    /// The right operand of several products as one matrix: side by side, or one below the other.
    fn join(&mut self, products: &[Product], axis: usize, at: At) -> Value {
        let Product { is_transposed, origin, .. } = products[0];
        let axis = if is_transposed { 1 - axis } else { axis };
        let rights: Vec<Value> = products.iter().map(|p| p.right).collect();
        let key = (rights, axis, origin.on);
        let captured = match self.joined.get(&key) {
            Some(&captured) => captured,
            None => {
                self.families.add(self.graph, &key.0);
                let all = add(self.graph, At::Before(self.node), prim::CONCAT, &key.0, along(axis), origin);
                let captured = self.graph.add_capture(self.node, all);
                *self.joined.entry(key).or_insert(captured)
            }
        };
        if is_transposed { add(self.graph, at, prim::PERMUTE, &[captured], transposed(), origin) } else { captured }
    }

    /// Products with one left operand.
    fn shared_operands(&mut self) {
        let mut groups = Groups::default();
        for &node in &self.graph.region(self.body()).nodes {
            let product = self.product(node).filter(|p| self.is_used(self.graph.node(p.node).results[0]));
            let Some(product) = product else { continue };
            let family = self.families.find(self.graph, product.right).filter(|_| product.is_transposed);
            if family.is_some() || !product.is_transposed {
                groups.add((product.left, family, self.kind(&product)), product);
            }
        }
        for mut products in groups.products {
            // The first one that is computed: all others are used behind it.
            let Product { node: first, left, origin, .. } = products[0];
            if !self.fit(&mut products) {
                continue;
            }
            let at = At::Before(first);
            let right = self.join(&products, 1, at);
            let all = add(self.graph, at, prim::MATMUL, &[left, right], Attrs::none(), origin);
            let mut start = 0;
            for Product { node, columns: n, origin, .. } in products {
                let own = add(self.graph, at, prim::SLICE, &[all], columns(start, n), origin);
                start += n;
                let result = self.graph.node(node).results[0];
                self.replaced.replace(result, own);
                self.taken.insert(node);
            }
            self.changed = true;
        }
    }

    /// Sums of products.
    fn sums(&mut self) {
        let is_add = |g: &Graph, v: Value| matches!(made_by(g, v), Some((prim::ADD, _)));
        let nodes = self.graph.region(self.body()).nodes.clone();
        let results: Vec<Value> = nodes.iter().flat_map(|&n| self.graph.node(n).results.clone()).collect();
        let mut inner = HashSet::new();
        for &v in results.iter().filter(|&&v| is_add(self.graph, v)) {
            let (_, operands) = made_by(self.graph, v).expect("it is a sum");
            let once = |w: &&Value| self.uses.get(w.index()) == Some(&1) && is_add(self.graph, **w);
            inner.extend(operands.iter().filter(once).copied());
        }
        for sum in results {
            if is_add(self.graph, sum) && !inner.contains(&sum) && self.is_used(sum) {
                self.sum(sum, &inner);
            }
        }
    }

    /// A sum with all its terms; `inner` are the sums that are a term of another one alone.
    fn sum(&mut self, sum: Value, inner: &HashSet<Value>) {
        let mut groups = Groups::default();
        let (mut others, mut left) = (Vec::new(), vec![sum]);
        while let Some(v) = left.pop() {
            if v == sum || inner.contains(&v) {
                let (_, operands) = made_by(self.graph, v).expect("it is a sum");
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
        let result_of = |g: &Graph, p: &Product| g.node(p.node).results[0];
        let last = self.graph.producer(sum).expect("it is a sum");
        let (at, origin) = (At::Before(last), self.graph.node(last).origin());
        let (mut merged, mut changed) = (Vec::new(), false);
        for mut products in groups.products {
            let all = products.clone();
            if !self.fit(&mut products) || products.len() < all.len() {
                others.extend(all.iter().map(|p| result_of(self.graph, p)));
                continue;
            }
            let origin = products[0].origin;
            let lefts: Vec<Value> = products.iter().map(|p| p.left).collect();
            let left = add(self.graph, at, prim::CONCAT, &lefts, along(1), origin);
            let right = self.join(&products, 0, at);
            merged.push(add(self.graph, at, prim::MATMUL, &[left, right], Attrs::none(), origin));
            self.taken.extend(products.iter().map(|p| p.node));
            changed = true;
        }
        if !changed {
            return;
        }
        // The products last: one of them may be added to what is there.
        let mut terms = others.into_iter().chain(merged);
        let first = terms.next().expect("a sum has terms");
        let new = terms.fold(first, |sum, term| add(self.graph, at, prim::ADD, &[sum, term], Attrs::none(), origin));
        self.replaced.replace(sum, new);
        self.changed = true;
    }

    /// Writes the replacements into the graph; gives whether there were any.
    fn finish(self) -> bool {
        let Merge { graph, node, replaced, changed, .. } = self;
        if changed {
            // What is replaced is of the body, which is closed.
            let body = graph.node(node).regions[1];
            for inner in graph.region(body).nodes.clone() {
                replaced.apply(&mut graph.node_mut(inner).operands);
            }
            replaced.apply(&mut graph.region_mut(body).yields);
        }
        changed
    }
}
