//! Matrix products in loops over sequences.

use super::build::{self, At, columns, first_axis, matrix, shape, transposed};
use super::trips::trips;
use super::{Pass, captured, has_product, made_by};
use crate::ir::{Attrs, ListOp, Node, Op, Origin, Region, Replacements, Value, ValueDef};
use crate::ops::{Prim, prim};
use crate::{Graph, HostTensor, TensorType};
use std::collections::HashMap;

/// Computes products of many iterations at once, since one large product is faster than many small ones.
///
/// Of loops whose trips the graph says:
/// - A product of `x[i]` and what is the same in all iterations, where `x` comes from outside: of all of `x`, before the loop. The
///   iteration takes its rows.
/// - A sum of products, `sum += a b` with a result that nothing else in the loop reads: the iterations put `a` and `b` into two
///   matrices, and after the loop there is one product. This is how the gradients of weights come about. Of several sums with one `a`,
///   whose `b` are put beside each other in the loop anyway, as [`MergeProducts`](super::MergeProducts) does it, it is one product.
///
/// Both are about products of few rows. What has to be kept for one product is at most 256 MiB.
///
/// Before: verified. After: verified; a sum of products may be rounded in another way than before. A product cannot fail, so nothing
/// else is seen of its running where it did not. The products before stay, unused, for the pass that removes such.
#[derive(Clone, Copy, Debug)]
pub struct Products;

/// What is kept of all iterations of a loop for one product is at most this.
const MAX_BYTES: usize = 1 << 28;

/// Products of more rows are large enough by themselves.
const MAX_ROWS: usize = 256;

impl Pass for Products {
    fn name(&self) -> &'static str {
        "products"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        let mut loops = Vec::new();
        graph.visit_nodes(graph.root(), &mut |node| {
            if matches!(graph.node(node).op, Op::While { .. }) {
                loops.push(node);
            }
        });
        let mut changed = false;
        // Inner loops first: what comes out of them is then in the body of the outer one.
        for node in loops.into_iter().rev() {
            if !has_product(graph, node) {
                continue;
            }
            let Some(trips) = trips(graph, node).and_then(|n| usize::try_from(n).ok()).filter(|&n| n >= 2) else {
                continue;
            };
            let uses = graph.use_counts();
            let replaced = Replacements::new(graph);
            let first_new = graph.n_nodes();
            let mut sequence = Sequence { graph, node, trips, uses, first_new, replaced, changed: false };
            sequence.hoist();
            sequence.sum_up();
            changed |= sequence.finish();
        }
        changed
    }
}

/// A loop whose trips are known.
struct Sequence<'g> {
    graph: &'g mut Graph,
    node: Node,
    trips: usize,
    /// How often each value was used before.
    uses: Vec<u32>,
    /// Nodes from this index on are new.
    first_new: usize,
    replaced: Replacements,
    changed: bool,
}

impl Sequence<'_> {
    fn body(&self) -> Region {
        self.graph.node(self.node).regions[1]
    }

    /// Adds an operation of the table; gives its result.
    fn add(&mut self, at: At, op: Prim, operands: &[Value], attrs: Attrs, origin: Origin) -> Value {
        build::add(self.graph, at, op, operands, attrs, origin)
    }

    fn add_constant(&mut self, at: At, tensor: HostTensor, origin: Origin) -> Value {
        build::add_node(self.graph, at, Op::Constant(tensor), &[], origin)
    }

    /// What a value of the body is outside of the loop, if it is a capture.
    fn outside(&self, v: Value) -> Option<Value> {
        match self.graph.value(v).def {
            ValueDef::Param(region, i) if region == self.body() => captured(self.graph, region, i as usize),
            _ => None,
        }
    }

    /// Products of rows of a sequence with one matrix, before the loop.
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
            let w = if is_transposed { made_by(self.graph, w).expect("it is one").1[0] } else { w };
            let slice = match made_by(self.graph, x) {
                Some((prim::RESHAPE, &[slice])) => slice,
                _ => x,
            };
            let (Some(w), Some((all, index))) = (self.outside(w), self.element_of(slice)) else { continue };
            let n = self.graph.ty(all).element().shape.known().map_or(0, |extents| extents[0]);
            let bytes = n * rows * columns * self.graph.ty(w).element().dtype.size();
            if rows > MAX_ROWS || bytes > MAX_BYTES || 2 * self.trips < n {
                continue;
            }
            let before = At::Before(self.node);
            let w = if is_transposed { self.add(before, prim::PERMUTE, &[w], transposed(), origin) } else { w };
            let all = self.add(before, prim::RESHAPE, &[all], shape(&[n * rows, depth]), origin);
            let products = self.add(before, prim::MATMUL, &[all, w], Attrs::none(), origin);
            let products = self.add(before, prim::RESHAPE, &[products], shape(&[n, rows, columns]), origin);
            let products = self.graph.add_capture(self.node, products);
            let at = At::Before(product);
            let own = self.add(at, prim::DYNAMIC_SLICE, &[products, index], first_axis(Some(1)), origin);
            let own = self.add(at, prim::RESHAPE, &[own], shape(&[rows, columns]), origin);
            self.replaced.replace(result, own);
            self.changed = true;
        }
    }

    /// The sequence outside of the loop and the index, if a value is one element along its first axis.
    fn element_of(&self, element: Value) -> Option<(Value, Value)> {
        let data = self.graph.node(self.graph.producer(element)?);
        let &[all, index] = &data.operands[..] else { return None };
        let all = self.outside(all)?;
        match &data.op {
            Op::Prim(def, attrs) if def == prim::DYNAMIC_SLICE => {
                (attrs.index("axis") == 0 && attrs.index("size") == 1).then_some((all, index))
            }
            Op::List(ListOp::Read) => {
                let list = self.graph.node(self.graph.producer(all)?);
                matches!(list.op, Op::List(ListOp::Unstack)).then(|| (list.operands[0], index))
            }
            _ => None,
        }
    }

    /// Sums of products, after the loop.
    fn sum_up(&mut self) {
        let sums: Vec<Sum> = (0..self.graph.n_carried(self.node)).filter_map(|i| self.sum(i)).collect();
        let joined = self.joined_columns();
        let mut kept = Kept::default();
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
            if depth > MAX_ROWS || self.trips * depth * rows.max(width) * size > MAX_BYTES {
                continue;
            }
            let origin = self.graph.node(group[0].product).origin();
            let end = At::End(self.body());
            // The rows of both that belong together lie along the first axis.
            let left = match made_by(self.graph, left) {
                Some((prim::PERMUTE, &[rows])) => rows,
                _ => self.add(end, prim::PERMUTE, &[left], transposed(), origin),
            };
            let left = self.keep(&mut kept, left, origin);
            let right = self.keep(&mut kept, right, origin);
            let after = self.after();
            let left = self.add(after, prim::PERMUTE, &[left], transposed(), origin);
            let all = self.add(after, prim::MATMUL, &[left, right], Attrs::none(), origin);
            let mut start = 0;
            for Sum { i, right, .. } in &group {
                let n = matrix(self.graph.ty(*right)).expect("it is one")[1];
                let mut sum = match group.len() {
                    1 => all,
                    _ => self.add(after, prim::SLICE, &[all], columns(start, n), origin),
                };
                start += n;
                let first = self.graph.node(self.node).operands[*i];
                if !super::is_zero(self.graph, first) {
                    sum = self.add(after, prim::ADD, &[first, sum], Attrs::none(), origin);
                }
                let (result, body) = (self.graph.node(self.node).results[*i], self.body());
                self.replaced.replace(result, sum);
                self.graph.region_mut(body).yields[*i] = self.graph.region(body).params[*i];
            }
            self.changed = true;
        }
    }

    /// Of each value of the body that one `concat` puts beside others: the result, and which of how many it is there.
    fn joined_columns(&self) -> HashMap<Value, (Value, usize, usize)> {
        let mut joined = HashMap::new();
        for &node in &self.graph.region(self.body()).nodes {
            let data = self.graph.node(node);
            let Op::Prim(def, attrs) = &data.op else { continue };
            let all = data.results[0];
            let is_used = self.uses.get(all.index()).is_some_and(|&n| n > 0);
            if def == prim::CONCAT && attrs.index("axis") == 1 && is_used && matrix(self.graph.ty(all)).is_some() {
                for (i, &v) in data.operands.iter().enumerate() {
                    joined.entry(v).or_insert((all, i, data.operands.len()));
                }
            }
        }
        joined
    }

    /// The sum of products that a loop variable is, if it is one, and nothing in the loop reads it.
    fn sum(&self, i: usize) -> Option<Sum> {
        let data = self.graph.node(self.node);
        let [cond, body] = data.regions[..] else { panic!("a loop has two regions") };
        let uses = |v: Value| self.uses.get(v.index()).copied().unwrap_or(0);
        let (param, next) = (self.graph.region(body).params[i], self.graph.region(body).yields[i]);
        let (prim::ADD, &[a, b]) = made_by(self.graph, next)? else { return None };
        let product = match (a == param, b == param) {
            (true, false) => b,
            (false, true) => a,
            _ => return None,
        };
        let (prim::MATMUL, &[left, right]) = made_by(self.graph, product)? else { return None };
        let is_read = uses(self.graph.region(cond).params[i]) > 0;
        let alone = uses(param) == 1 && uses(next) == 1 && uses(product) == 1 && uses(data.results[i]) > 0;
        let product = self.graph.producer(product)?;
        (!is_read && alone).then_some(Sum { i, left, right, product })
    }

    /// A matrix of the rows that a value of the body has in all iterations.
    fn keep(&mut self, kept: &mut Kept, rows: Value, origin: Origin) -> Value {
        if let Some(&all) = kept.matrices.get(&rows) {
            return all;
        }
        let TensorType { dtype, shape: extents } = self.graph.ty(rows).element().clone();
        let [depth, columns] = extents.known().expect("they are known")[..] else { panic!("it is a matrix") };
        let (before, end) = (At::Before(self.node), At::End(self.body()));
        let start = match kept.iteration {
            Some(iteration) => iteration,
            None => {
                let zero = self.add_constant(before, HostTensor::scalar(0i32), origin);
                let (iteration, _) = self.graph.add_loop_variable(self.node, zero);
                let one = self.add_constant(end, HostTensor::scalar(1i32), origin);
                let next = self.add(end, prim::ADD, &[iteration, one], Attrs::none(), origin);
                self.yield_also(next);
                *kept.iteration.insert(iteration)
            }
        };
        let by = self.add_constant(end, HostTensor::scalar(depth as i32), origin);
        let start = self.add(end, prim::MUL, &[start, by], Attrs::none(), origin);
        let zero = self.add_constant(before, HostTensor::zeros(dtype, []), origin);
        let zeros = self.add(before, prim::BROADCAST_TO, &[zero], shape(&[self.trips * depth, columns]), origin);
        let (all, result) = self.graph.add_loop_variable(self.node, zeros);
        let next = self.add(end, prim::DYNAMIC_UPDATE_SLICE, &[all, rows, start], first_axis(None), origin);
        self.yield_also(next);
        kept.matrices.insert(rows, result);
        result
    }

    fn yield_also(&mut self, v: Value) {
        let body = self.body();
        self.graph.region_mut(body).yields.push(v);
    }

    /// Behind the loop, and behind what was put there before.
    fn after(&self) -> At {
        let region = self.graph.node(self.node).region;
        let nodes = &self.graph.region(region).nodes;
        let at = nodes.iter().position(|&n| n == self.node).expect("the loop is in its region");
        match nodes[at + 1..].iter().find(|&&n| n.index() < self.first_new) {
            Some(&next) => At::Before(next),
            None => At::End(region),
        }
    }

    /// Writes the replacements into the graph; gives whether there were any.
    fn finish(self) -> bool {
        let Sequence { graph, replaced, changed, .. } = self;
        if changed {
            let mut regions = vec![graph.root()];
            while let Some(region) = regions.pop() {
                for node in graph.region(region).nodes.clone() {
                    replaced.apply(&mut graph.node_mut(node).operands);
                    regions.extend(&graph.node(node).regions);
                }
                replaced.apply(&mut graph.region_mut(region).yields);
            }
        }
        changed
    }
}

/// Sums of products, those together whose right operands are all that one `concat` puts together, in its order.
fn grouped(sums: Vec<Sum>, joined: &HashMap<Value, (Value, usize, usize)>) -> Vec<Vec<Sum>> {
    let mut groups: Vec<Vec<Sum>> = Vec::new();
    let mut found: HashMap<(Value, Value), usize> = HashMap::new();
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
        let place = |sum: &Sum| joined.get(&sum.right).map(|&(_, i, n)| (i, n));
        group.sort_by_key(place);
        let is_all = group.iter().enumerate().all(|(i, sum)| place(sum) == Some((i, group.len())));
        match is_all {
            true => complete.push(group),
            false => complete.extend(group.into_iter().map(|sum| vec![sum])),
        }
    }
    complete
}

/// `left right`, of which a loop variable is the sum.
struct Sum {
    /// The loop variable.
    i: usize,
    left: Value,
    right: Value,
    product: Node,
}

/// What the iterations of a loop keep.
#[derive(Default)]
struct Kept {
    /// The number of the iteration.
    iteration: Option<Value>,
    /// The matrices after the loop, by what they are made of.
    matrices: HashMap<Value, Value>,
}
