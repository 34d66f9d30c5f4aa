//! Batching of matmuls in loops over sequences.

use super::matrix::{columns, matrix, transposed};
use super::trips::trips;
use super::{Pass, has_product, made_by};
use crate::ir::{Attrs, GraphBuilder, InsertPoint, ListOp, LoopVar, Node, Op, Origin, Region, Value};
use crate::ops::attributes::{Along, DynamicSlice, Shaped};
use crate::ops::prim;
use crate::{Graph, HostTensor, TensorType};
use rustc_hash::FxHashMap;

/// Batches the matmuls of many iterations, since one large matmul is faster than many small
/// matmuls.
///
/// In loops with a known trip count:
///
/// - A matmul of `x[i]` and a loop-invariant matrix, where `x` is captured, becomes one matmul of
///   all of `x` before the loop. Each iteration takes its rows.
/// - A sum of matmuls, `sum += a b`, that nothing else in the loop reads becomes one matmul after
///   the loop. The iterations store `a` and `b` in two matrices. Gradients of weights have this
///   form. Several sums with the same `a` become one matmul if the loop concatenates their `b`
///   anyway, as [`MergeProducts`](super::MergeProducts) does.
///
/// Both rewrites apply to matmuls with few rows. A stored operand or result has at most
/// [`max_bytes`](Self::max_bytes).
///
/// Before: verified. After: verified. Sums of matmuls may be rounded differently. A matmul cannot
/// fail, so running one where none ran before is not observable. The original matmuls are left
/// unused, for `Dce` to remove.
#[derive(Clone, Copy, Debug)]
pub struct HoistMatmuls {
    /// Maximum size of a matrix stored over all iterations, by default 256 MiB.
    pub max_bytes: usize,
}

impl Default for HoistMatmuls {
    fn default() -> HoistMatmuls {
        HoistMatmuls { max_bytes: 1 << 28 }
    }
}

/// Matmuls with more rows are large enough by themselves.
const MAX_ROWS: usize = 256;

/// Returns the bytes of a tensor by its extents and the bytes of an element.
fn bytes(factors: [usize; 4]) -> usize {
    factors.into_iter().fold(1, usize::saturating_mul)
}

impl Pass for HoistMatmuls {
    fn name(&self) -> &'static str {
        "hoist_matmuls"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        let mut loops = Vec::new();
        graph.visit_nodes(graph.root(), &mut |node| {
            if graph.as_while(node).is_some() {
                loops.push(node);
            }
        });
        GraphBuilder::edit(graph, |graph| {
            let mut changed = false;
            // Inner loops first, since their hoisted nodes end up in the body of the outer loop.
            for node in loops.into_iter().rev() {
                if !has_product(graph, node) {
                    continue;
                }
                let Some(trips) = trips(graph, node).and_then(|n| usize::try_from(n).ok()).filter(|&n| n >= 2) else {
                    continue;
                };
                let (uses, after) = (graph.use_counts(), InsertPoint::After(node));
                let max_bytes = self.max_bytes;
                let mut sequence = Sequence { graph, node, trips, max_bytes, uses, after, changed: false };
                sequence.hoist();
                sequence.sum_up();
                if sequence.changed {
                    graph.update_region(graph.root());
                    changed = true;
                }
            }
            changed
        })
    }
}

/// A loop with a known trip count.
struct Sequence<'g> {
    graph: &'g mut GraphBuilder,
    node: Node,
    trips: usize,
    max_bytes: usize,
    /// The number of uses of each value before the rewrite.
    uses: Vec<u32>,
    /// The position after the loop and after the nodes already added there.
    after: InsertPoint,
    changed: bool,
}

impl Sequence<'_> {
    fn body(&self) -> Region {
        self.graph.while_of(self.node).body()
    }

    /// Returns the value that a parameter of the body captures, if it is a capture.
    fn outside(&self, v: Value) -> Option<Value> {
        self.graph.captured_by(v).filter(|_| self.graph.region_of(v) == self.body())
    }

    /// Hoists matmuls of the rows of a sequence with one matrix before the loop.
    fn hoist(&mut self) {
        for product in self.graph.region(self.body()).nodes.clone() {
            let data = self.graph.node(product);
            let (Op::Prim(def, _), &[x, w]) = (&data.op, &data.operands[..]) else { continue };
            if def != prim::MATMUL {
                continue;
            }
            let (origin, result) = (data.origin(), data.results[0]);
            let (Some([rows, _]), Some([depth, columns])) = (matrix(self.graph.ty(x)), matrix(self.graph.ty(w))) else {
                continue;
            };
            let is_transposed = matches!(made_by(self.graph, w), Some((prim::PERMUTE, _)));
            let w = if is_transposed { made_by(self.graph, w).expect("the operand is a permutation").1[0] } else { w };
            let slice = match made_by(self.graph, x) {
                Some((prim::RESHAPE, &[slice])) => slice,
                _ => x,
            };
            let (Some(w), Some((read, all, index))) = (self.outside(w), self.element_of(slice)) else { continue };
            let Some(n) = self.graph.ty(all).element().shape.known().map(|extents| extents[0]) else { continue };
            // A list without elements can be read, which fails.
            if n == 0 {
                continue;
            }
            let size = self.graph.ty(w).element().dtype.size();
            if rows > MAX_ROWS || bytes([n, rows, columns, size]) > self.max_bytes || self.trips < n.div_ceil(2) {
                continue;
            }
            let graph = self.graph.at(InsertPoint::Before(self.node), origin);
            let w = if is_transposed { graph.prim(prim::PERMUTE, &[w], transposed()) } else { w };
            let all = graph.prim(prim::RESHAPE, &[all], Shaped { shape: [n * rows, depth].into() });
            let products = graph.prim(prim::MATMUL, &[all, w], Attrs::none());
            let products = graph.prim(prim::RESHAPE, &[products], Shaped { shape: [n, rows, columns].into() });
            let [_, products] = graph.add_capture(self.node, products).params;
            // An index that is out of bounds fails where it did before.
            let data = graph.node(read);
            let of_read = Origin { loc: data.loc, written: Some(data.name_in_errors()), ..origin };
            let graph = graph.at(InsertPoint::Before(read), of_read);
            let own = graph.prim(prim::DYNAMIC_SLICE, &[products, index], DynamicSlice { axis: 0, size: 1 });
            let graph = graph.at(InsertPoint::Before(product), origin);
            let own = graph.prim(prim::RESHAPE, &[own], Shaped { shape: [rows, columns].into() });
            graph.replace(result, own);
            self.changed = true;
        }
    }

    /// Returns the operation that reads a value, the captured sequence, and the index. The value is
    /// one element along the first axis of the sequence, or there is no result.
    fn element_of(&self, element: Value) -> Option<(Node, Value, Value)> {
        let read = self.graph.producer(element)?;
        let data = self.graph.node(read);
        let &[all, index] = &data.operands[..] else { return None };
        let all = self.outside(all)?;
        match &data.op {
            Op::Prim(def, attrs) if def == prim::DYNAMIC_SLICE => {
                (DynamicSlice::of(attrs) == DynamicSlice { axis: 0, size: 1 }).then_some((read, all, index))
            }
            Op::List(ListOp::Read) => {
                let list = self.graph.node(self.graph.producer(all)?);
                matches!(list.op, Op::List(ListOp::Unstack)).then(|| (read, list.operands[0], index))
            }
            _ => None,
        }
    }

    /// Replaces sums of matmuls by matmuls after the loop.
    fn sum_up(&mut self) {
        let sums: Vec<SummedProduct> = self.graph.while_of(self.node).vars().filter_map(|var| self.sum(var)).collect();
        let joined = self.joined_columns();
        let mut kept = StoredValues::default();
        for group in grouped(sums, &joined) {
            let (left, right) = (
                group[0].left,
                match &group[..] {
                    [sum] => sum.right,
                    _ => joined[&group[0].right].0,
                },
            );
            let (Some([rows, depth]), Some([_, width])) = (matrix(self.graph.ty(left)), matrix(self.graph.ty(right)))
            else {
                continue;
            };
            let size = self.graph.ty(left).element().dtype.size();
            if depth > MAX_ROWS || bytes([self.trips, depth, rows.max(width), size]) > self.max_bytes {
                continue;
            }
            let origin = self.graph.node(group[0].product).origin();
            let end = InsertPoint::End(self.body());
            // Corresponding rows of both operands are aligned along the first axis.
            let left = match made_by(self.graph, left) {
                Some((prim::PERMUTE, &[rows])) => rows,
                _ => self.graph.at(end, origin).prim(prim::PERMUTE, &[left], transposed()),
            };
            let left = self.keep(&mut kept, left, origin);
            let right = self.keep(&mut kept, right, origin);
            let graph = self.graph.at(self.after, origin);
            let left = graph.prim(prim::PERMUTE, &[left], transposed());
            let all = graph.prim(prim::MATMUL, &[left, right], Attrs::none());
            let mut start = 0;
            for SummedProduct { var, right, .. } in &group {
                let n = matrix(graph.ty(*right)).expect("the operand is a matrix")[1];
                let mut sum = match group.len() {
                    1 => all,
                    _ => graph.prim(prim::SLICE, &[all], columns(start, n)),
                };
                start += n;
                if !super::is_zero(graph, var.init) {
                    sum = graph.prim(prim::ADD, &[var.init, sum], Attrs::none());
                }
                graph.replace(var.result, sum);
                graph.set_next(*var, var.body_param);
            }
            self.after = graph.point();
            self.changed = true;
        }
    }

    /// Finds the operands that the body concatenates along columns.
    ///
    /// Maps each to the result of the `concat`, its position, and the number of operands.
    fn joined_columns(&self) -> FxHashMap<Value, (Value, usize, usize)> {
        let mut joined = FxHashMap::default();
        for &node in &self.graph.region(self.body()).nodes {
            let data = self.graph.node(node);
            let Op::Prim(def, attrs) = &data.op else { continue };
            let all = data.results[0];
            let is_used = self.uses.get(all.index()).is_some_and(|&n| n > 0);
            if def == prim::CONCAT && Along::of(attrs).axis == 1 && is_used && matrix(self.graph.ty(all)).is_some() {
                for (i, &v) in data.operands.iter().enumerate() {
                    joined.entry(v).or_insert((all, i, data.operands.len()));
                }
            }
        }
        joined
    }

    /// Returns a loop variable as a sum of matmuls, if nothing else in the loop reads it.
    fn sum(&self, var: LoopVar) -> Option<SummedProduct> {
        let uses = |v: Value| self.uses.get(v.index()).copied().unwrap_or(0);
        let (param, next) = (var.body_param, var.next);
        let (prim::ADD, &[a, b]) = made_by(self.graph, next)? else { return None };
        let product = match (a == param, b == param) {
            (true, false) => b,
            (false, true) => a,
            _ => return None,
        };
        let (prim::MATMUL, &[left, right]) = made_by(self.graph, product)? else { return None };
        let is_read = uses(var.cond_param) > 0;
        let alone = uses(param) == 1 && uses(next) == 1 && uses(product) == 1 && uses(var.result) > 0;
        let product = self.graph.producer(product)?;
        (!is_read && alone).then_some(SummedProduct { var, left, right, product })
    }

    /// Stores the rows that a value of the body has in all iterations. Returns the matrix after the
    /// loop.
    fn keep(&mut self, kept: &mut StoredValues, rows: Value, origin: Origin) -> Value {
        if let Some(&all) = kept.matrices.get(&rows) {
            return all;
        }
        let TensorType { dtype, shape: extents } = self.graph.ty(rows).element().clone();
        let [depth, columns] = extents.known().expect("the extents are known")[..] else {
            panic!("the operand is a matrix")
        };
        let (before, end) = (InsertPoint::Before(self.node), InsertPoint::End(self.body()));
        let start = match kept.iteration {
            Some(iteration) => iteration,
            None => {
                let zero = self.graph.at(before, origin).constant(HostTensor::scalar(0i32));
                let (iteration, _) = self.graph.add_loop_var(self.node, zero);
                let one = self.graph.at(end, origin).constant(HostTensor::scalar(1i32));
                let next = self.graph.prim(prim::ADD, &[iteration, one], Attrs::none());
                self.yield_also(next);
                *kept.iteration.insert(iteration)
            }
        };
        let by = self.graph.at(end, origin).constant(HostTensor::scalar(depth as i32));
        let start = self.graph.prim(prim::MUL, &[start, by], Attrs::none());
        let all = [self.trips * depth, columns].into();
        let zeros = self.graph.at(before, origin).fill(HostTensor::zeros(dtype, []), &all);
        let (all, result) = self.graph.add_loop_var(self.node, zeros);
        let rows_at = Along { axis: 0 };
        let next = self.graph.at(end, origin).prim(prim::DYNAMIC_UPDATE_SLICE, &[all, rows, start], rows_at);
        self.yield_also(next);
        kept.matrices.insert(rows, result);
        result
    }

    fn yield_also(&mut self, v: Value) {
        let body = self.body();
        self.graph.region_mut(body).yields.push(v);
    }
}

/// Groups sums whose right operands are all the operands of one `concat`, in its order.
fn grouped(sums: Vec<SummedProduct>, joined: &FxHashMap<Value, (Value, usize, usize)>) -> Vec<Vec<SummedProduct>> {
    let mut groups: Vec<Vec<SummedProduct>> = Vec::new();
    let mut found: FxHashMap<(Value, Value), usize> = FxHashMap::default();
    for sum in sums {
        match joined.get(&sum.right) {
            Some(&(all, ..)) => {
                let at = *found.entry((sum.left, all)).or_insert(groups.len());
                groups.resize_with(groups.len().max(at + 1), Vec::new);
                groups[at].push(sum);
            }
            None => groups.push(vec![sum]),
        }
    }
    let mut complete = Vec::new();
    for mut group in groups {
        let place = |sum: &SummedProduct| joined.get(&sum.right).map(|&(_, i, n)| (i, n));
        group.sort_by_key(place);
        let is_all = group.iter().enumerate().all(|(i, sum)| place(sum) == Some((i, group.len())));
        match is_all {
            true => complete.push(group),
            false => complete.extend(group.into_iter().map(|sum| vec![sum])),
        }
    }
    complete
}

/// A loop variable that sums `left right`.
struct SummedProduct {
    var: LoopVar,
    left: Value,
    right: Value,
    product: Node,
}

/// The values that a loop stores over all iterations.
#[derive(Default)]
struct StoredValues {
    /// The index of the iteration.
    iteration: Option<Value>,
    /// The matrices after the loop, by the value whose rows they hold.
    matrices: FxHashMap<Value, Value>,
}
