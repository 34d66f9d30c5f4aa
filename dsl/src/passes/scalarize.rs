//! Scalarization of small tensors in loops.

use super::tables::{Window, table_operations, tables};
use super::trips::{Limit, count};
use super::{Cse, Dce, Fold, Pass};
use crate::ir::dependence::{MIN_PARALLEL_TRIPS, integer, roles};
use crate::ir::{Attrs, GraphBuilder, InsertPoint, ListOp, Node, Op, Origin, Region, StackOp, Value, ValueData};
use crate::ops::attributes::{Along, Reduced, Shaped, Slice};
use crate::ops::{Combiner, EvalCx, Prim, prim};
use crate::{DType, Graph, HostTensor, Shape, TensorType, Type, match_buffer};
use rustc_hash::{FxHashMap, FxHashSet};

/// Splits the tensors of loops that only use small tensors into their elements.
///
/// Such a loop then computes with scalars only, which an engine keeps in registers. Examples are
/// the state of a differential equation, a quaternion, or a filter of a few dimensions. Stacks of
/// such tensors, which gradients save, are split too.
///
/// A loop is scalarized if every tensor in it has between 1 and 16 elements, and every operation is
/// elementwise, only moves elements, is a reduction or is a matmul. The scalarized loop may have at
/// most 4,096 operations. Operations that may fail are allowed only if all their operands are
/// scalars already. Tensors are split before the loop and joined after it where they are used
/// whole.
///
/// Tensors of any size are allowed if the loop only reads and writes parts of them that have at
/// most 16 elements, at one index that is data. They stay whole.
///
/// Lists stay whole, too. Only counted loops whose iterations can run in any order, and that have
/// at least [`MIN_PARALLEL_TRIPS`] of them, may read and write their elements: an engine may run
/// such iterations side by side if they compute with scalars only.
///
/// Elements are added to zero in the same order as in the [reference
/// implementation](crate::ops::OpDef::eval), so results are bitwise identical.
///
/// Before: verified. After: verified, and the graph has been through [`Fold`], [`Cse`] and [`Dce`].
#[derive(Clone, Copy, Debug)]
pub struct Scalarize;

/// Maximum elements of a tensor that is split: those of a 4x4 matrix.
const MAX_ELEMENTS: usize = 16;

/// Maximum operations of a scalarized loop.
const MAX_OPERATIONS: usize = 4096;

impl Pass for Scalarize {
    fn name(&self) -> &'static str {
        "scalarize"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        scalars(graph).map(|apart| *graph = apart).is_some()
    }
}

/// Returns the graph with loops scalarized, or `None` if there are no such loops; see
/// [`Scalarize`].
pub fn scalars(graph: &Graph) -> Option<Graph> {
    let Chosen { loops, whole_stacks, tables } = choose(graph);
    if loops.is_empty() {
        return None;
    }
    let mut out = GraphBuilder::new(Graph::new(graph.name.clone()));
    out.vars.clone_from(&graph.vars);
    out.queues.clone_from(&graph.queues);
    let (whole, parts) = (FxHashMap::default(), FxHashMap::default());
    let windows = FxHashMap::default();
    let mut rewrite = ScalarizedCopy { from: graph, out, loops, whole_stacks, tables, whole, parts, windows };
    let root = rewrite.out.root();
    rewrite.region(graph.root(), root);
    let mut out = rewrite.out.into_graph();
    Fold.run(&mut out);
    Cse.run(&mut out);
    Dce.run(&mut out);
    Some(out.compact())
}

/// Returns the shape of a small tensor, or of the elements of a stack. The list is empty for a
/// scalar. Strings are in no register, and so never small.
pub(super) fn small(ty: &Type) -> Option<Vec<usize>> {
    let shape = match ty {
        Type::Tensor(ty) | Type::Stack(ty) => ty.shape.known()?,
        Type::List(_) => return None,
    };
    let is_small = (1..=MAX_ELEMENTS).contains(&shape.iter().product());
    (is_small && ty.element().dtype.is_plain()).then_some(shape)
}

/// Returns whether a value is split: a small tensor that is not a scalar, or a stack of such
/// tensors.
fn is_apart(ty: &Type) -> bool {
    small(ty).is_some_and(|shape| !shape.is_empty())
}

fn is_list(g: &Graph, v: Value) -> bool {
    matches!(g.ty(v), Type::List(_))
}

/// Returns the type of an element, or of a stack of elements.
fn of_element(ty: &Type) -> Type {
    let element = TensorType::new(ty.element().dtype, [0; 0]);
    match ty {
        Type::Stack(_) => Type::Stack(element),
        _ => Type::Tensor(element),
    }
}

/// The loops and stacks to scalarize.
struct Chosen {
    /// The outermost loops to scalarize.
    loops: FxHashSet<Node>,
    /// The stacks of small tensors that stay whole.
    whole_stacks: FxHashSet<Value>,
    /// The tensors in those loops that stay whole.
    tables: FxHashSet<Value>,
}

fn choose(g: &Graph) -> Chosen {
    let none = FxHashSet::default;
    let mut chosen = Chosen { loops: FxHashSet::default(), whole_stacks: none(), tables: none() };
    candidates(g, g.root(), &mut chosen);
    // A stack is split everywhere or nowhere. A loop stays as it is if one of its stacks is also
    // used where it cannot be split.
    while !chosen.loops.is_empty() && chosen.restrict(g, g.root()) {}
    chosen
}

fn candidates(g: &Graph, region: Region, found: &mut Chosen) {
    for &node in &g.region(region).nodes {
        let data = g.node(node);
        if g.as_while(node).is_some() {
            let uses_lists = may_run_side_by_side(g, node);
            let mut cost = ScalarizeCost { operations: 0, is_apart: false, tables: tables(g, node), uses_lists };
            if cost.add(g, node).is_some() && cost.is_apart && cost.operations <= MAX_OPERATIONS {
                found.loops.insert(node);
                found.tables.extend(cost.tables);
                continue;
            }
        }
        data.regions.iter().for_each(|&inner| candidates(g, inner, found));
    }
}

/// Returns whether the iterations of a counted loop can run in any order, and may be so many.
fn may_run_side_by_side(g: &Graph, node: Node) -> bool {
    let Some(counted) = count(g, node) else { return false };
    let first = integer(g, g.while_of(node).var(counted.variable).init);
    let limit = match counted.limit {
        Limit::Number(limit) => Some(limit),
        Limit::Before(limit) => integer(g, limit),
    };
    let trips = first.zip(limit).and_then(|(first, limit)| counted.trips(first, limit));
    trips.is_none_or(|trips| trips >= MIN_PARALLEL_TRIPS) && roles(g, node).is_some()
}

impl Chosen {
    /// Finds stacks that must stay whole, and removes the loops that use them. Returns whether any
    /// were found.
    fn restrict(&mut self, g: &Graph, region: Region) -> bool {
        let is_stack = |v: &&Value| matches!(g.ty(**v), Type::Stack(_)) && is_apart(g.ty(**v));
        let data = g.region(region);
        let mut is_new = false;
        data.params.iter().chain(&data.yields).filter(is_stack).for_each(|&v| is_new |= self.whole_stacks.insert(v));
        for &node in &data.nodes {
            let data = g.node(node);
            let stacks = || data.operands.iter().chain(&data.results).filter(is_stack);
            let may_be_apart = matches!(data.op, Op::Stack(_)) || self.loops.contains(&node);
            if may_be_apart && !stacks().any(|v| self.whole_stacks.contains(v)) {
                continue;
            }
            stacks().for_each(|&v| is_new |= self.whole_stacks.insert(v));
            is_new |= self.loops.remove(&node);
            for &inner in &data.regions {
                is_new |= self.restrict(g, inner);
            }
        }
        is_new
    }
}

/// The cost of a loop after scalarization.
struct ScalarizeCost {
    operations: usize,
    /// Whether any tensor would be split.
    is_apart: bool,
    /// The tensors in the loop that stay whole.
    tables: FxHashSet<Value>,
    /// Whether the loop may read and write lists.
    uses_lists: bool,
}

impl ScalarizeCost {
    fn stays_whole(&self, g: &Graph, v: Value) -> bool {
        self.tables.contains(&v) || (self.uses_lists && is_list(g, v))
    }

    /// Adds the cost of a node. Returns `None` if the node cannot be scalarized.
    fn add(&mut self, g: &Graph, node: Node) -> Option<()> {
        let data = g.node(node);
        if let Some(operations) = table_operations(g, data, &self.tables) {
            self.operations += operations;
            self.is_apart |= data.results.iter().any(|&v| is_apart(g.ty(v)));
            return (self.operations <= MAX_OPERATIONS).then_some(());
        }
        // A construct only passes tables on.
        let values: Vec<Value> = if data.regions.is_empty() {
            data.operands.iter().chain(&data.results).copied().collect()
        } else {
            data.results.iter().filter(|&&v| !self.stays_whole(g, v)).copied().collect()
        };
        let is_list_op = matches!(data.op, Op::List(_));
        for v in values {
            if is_list_op && self.stays_whole(g, v) {
                continue;
            }
            self.is_apart |= !small(g.ty(v)).filter(|_| !self.tables.contains(&v))?.is_empty();
        }
        self.operations += match &data.op {
            Op::Prim(def, _) => operations(g, data.operands.as_slice(), data.results[0], *def)?,
            Op::Constant(_) => 0,
            op if op.is_construct() && g.as_call(node).is_none() => 0,
            Op::Stack(_) => data.results.iter().map(|&v| n_elements(g.ty(v))).sum(),
            Op::List(ListOp::Read) => data.results.iter().map(|&v| n_elements(g.ty(v))).sum(),
            Op::List(ListOp::Write | ListOp::Accumulate) => data.operands.iter().map(|&v| n_elements(g.ty(v))).sum(),
            Op::Assert { .. } if data.operands.iter().all(|&v| !is_apart(g.ty(v))) => 1,
            _ => return None,
        };
        if self.operations > MAX_OPERATIONS {
            return None;
        }
        for &region in &data.regions {
            for &v in &g.region(region).params {
                if !self.stays_whole(g, v) {
                    self.is_apart |= !small(g.ty(v))?.is_empty();
                }
            }
            g.region(region).nodes.iter().try_for_each(|&inner| self.add(g, inner))?;
        }
        Some(())
    }
}

pub(super) fn n_elements(ty: &Type) -> usize {
    small(ty).map_or(0, |shape| shape.iter().product())
}

/// Returns the number of scalar operations that an operation becomes, if it can be scalarized.
fn operations(g: &Graph, operands: &[Value], result: Value, def: Prim) -> Option<usize> {
    let n = n_elements(g.ty(result));
    if def.is_elementwise() {
        let is_one = operands.iter().chain([&result]).all(|&v| !is_apart(g.ty(v)));
        return (is_one || !def.can_fail(g.ty(operands[0]).element().dtype)).then_some(n);
    }
    if def.only_moves() || def == prim::IOTA {
        return Some(0);
    }
    if def.reduces_by().is_some() {
        return Some(n_elements(g.ty(operands[0])));
    }
    let inner = small(g.ty(operands[0])).filter(|_| def == prim::MATMUL)?;
    Some(2 * n * inner.last()?)
}

/// A copy of the graph in progress, with loops scalarized.
pub(super) struct ScalarizedCopy<'g> {
    pub(super) from: &'g Graph,
    pub(super) out: GraphBuilder,
    loops: FxHashSet<Node>,
    whole_stacks: FxHashSet<Value>,
    pub(super) tables: FxHashSet<Value>,
    /// The copies of whole values, and of their elements in row-major order. A value may have both.
    whole: FxHashMap<Value, Value>,
    parts: FxHashMap<Value, Vec<Value>>,
    /// The rows that were read from tables.
    pub(super) windows: FxHashMap<Value, Window>,
}

impl ScalarizedCopy<'_> {
    /// Copies a region outside the scalarized loops.
    fn region(&mut self, from: Region, to: Region) {
        let g = self.from;
        for &p in &g.region(from).params {
            let ValueData { ty, name, .. } = g.value(p);
            let copy = self.out.add_param(to, ty.clone(), *name);
            self.whole.insert(p, copy);
        }
        for &node in &g.region(from).nodes {
            let data = g.node(node);
            let has_parts = matches!(data.op, Op::Stack(_))
                && data.operands.iter().chain(&data.results).any(|v| {
                    matches!(g.ty(*v), Type::Stack(_)) && is_apart(g.ty(*v)) && !self.whole_stacks.contains(v)
                });
            if self.loops.contains(&node) || has_parts {
                self.take_apart(node, to);
                continue;
            }
            let operands = data.operands.iter().map(|&v| self.whole(v, to)).collect();
            let copy = self.out.copy(Some(g), node, operands, to);
            self.whole.extend(data.results.iter().copied().zip(self.out.node(copy).results.iter().copied()));
            let copies: Vec<Region> = data.regions.iter().map(|_| self.out.add_region()).collect();
            for (&inner, &copy) in data.regions.iter().zip(&copies) {
                self.region(inner, copy);
            }
            self.out.set_regions(copy, copies);
        }
        let yields = g.region(from).yields.iter().map(|&v| self.whole(v, to)).collect();
        self.out.region_mut(to).yields = yields;
    }

    /// Copies a region of a scalarized loop.
    fn region_apart(&mut self, from: Region, to: Region) {
        let g = self.from;
        for &p in &g.region(from).params {
            let types = self.part_types(p);
            let parts = types.into_iter().map(|ty| self.out.add_param(to, ty, None)).collect();
            self.keep(p, parts);
        }
        for &node in &g.region(from).nodes {
            self.take_apart(node, to);
        }
        let yields = g.region(from).yields.iter().flat_map(|v| self.parts[v].clone()).collect();
        self.out.region_mut(to).yields = yields;
    }

    /// Returns whether a value is not split in a scalarized loop: a table or a list.
    fn stays_whole(&self, v: Value) -> bool {
        self.tables.contains(&v) || is_list(self.from, v)
    }

    /// Returns the types of the parts of a value in a scalarized loop: its elements, or itself.
    fn part_types(&self, v: Value) -> Vec<Type> {
        let ty = self.from.ty(v);
        if self.stays_whole(v) { vec![ty.clone()] } else { vec![of_element(ty); n_elements(ty)] }
    }

    /// Records the elements of a value.
    fn keep(&mut self, v: Value, parts: Vec<Value>) {
        let is_whole = self.stays_whole(v) || !is_apart(self.from.ty(v));
        if let ([one], true) = (&parts[..], is_whole) {
            self.out.value_mut(*one).name = self.from.value(v).name;
            self.whole.insert(v, *one);
        }
        self.parts.insert(v, parts);
    }

    /// Continues at the end of a region.
    fn at(&mut self, to: Region, origin: Origin) -> &mut GraphBuilder {
        self.out.at(InsertPoint::End(to), origin)
    }

    /// Returns the copy of a whole value, joined from its elements if necessary.
    fn whole(&mut self, v: Value, to: Region) -> Value {
        if let Some(&copy) = self.whole.get(&v) {
            return copy;
        }
        let (ty, origin) = (self.from.ty(v).element().clone(), self.from.origin(v));
        let out = self.out.at(InsertPoint::End(to), origin);
        let rows: Vec<Value> = self.parts[&v].iter().map(|&part| reshape(out, part, &[1].into())).collect();
        let joined = out.prim(prim::CONCAT, &rows, Along { axis: 0 });
        let whole = reshape(out, joined, &ty.shape);
        self.whole.insert(v, whole);
        whole
    }

    /// Returns the elements of a value, split if necessary.
    fn parts(&mut self, v: Value, to: Region) -> Vec<Value> {
        if let Some(parts) = self.parts.get(&v) {
            return parts.clone();
        }
        let g = self.from;
        let (n, origin) = (n_elements(g.ty(v)), g.origin(v));
        let op = g.producer(v).map(|node| (&g.node(node).op, &g.node(node).operands));
        let parts = match op {
            _ if !is_apart(g.ty(v)) => vec![self.whole[&v]],
            Some((Op::Constant(tensor), _)) => self.constants(to, tensor, origin),
            Some((Op::Prim(def, _), operands))
                if def == prim::BROADCAST_TO && g.ty(operands[0]).element().rank() == 0 =>
            {
                vec![self.whole[&operands[0]]; n]
            }
            _ => {
                let out = self.out.at(InsertPoint::End(to), origin);
                let all = reshape(out, self.whole[&v], &[n].into());
                let element = |i: usize| {
                    let one = out.prim(prim::SLICE, &[all], Slice { axis: 0, start: i, end: i + 1, step: 1 });
                    reshape(out, one, &[0; 0].into())
                };
                (0..n).map(element).collect()
            }
        };
        self.parts.insert(v, parts.clone());
        parts
    }

    /// Adds a constant for each element of a tensor.
    fn constants(&mut self, to: Region, tensor: &HostTensor, origin: Origin) -> Vec<Value> {
        let elements: Vec<HostTensor> =
            match_buffer!(tensor.buffer(), d => d.iter().cloned().map(HostTensor::scalar).collect());
        let out = self.at(to, origin);
        elements.into_iter().map(|x| out.constant(x)).collect()
    }

    /// Copies a node with its operands and results split.
    fn take_apart(&mut self, node: Node, to: Region) {
        let g = self.from;
        let data = g.node(node);
        let origin = data.origin();
        let operands: Vec<Vec<Value>> = match data.regions.last() {
            None => data.operands.iter().map(|&v| self.parts(v, to)).collect(),
            Some(&region) => {
                let predicate = g.as_cond(node).map(|cond| self.parts(cond.predicate(), to));
                let entry = g.entry(region).map(|(param, v)| match self.stays_whole(param) {
                    true => vec![self.whole(v, to)],
                    false => self.parts(v, to),
                });
                predicate.into_iter().chain(entry).collect()
            }
        };
        if let Some(parts) = self.table_apart(to, node, &operands) {
            return self.keep(data.results[0], parts);
        }
        match &data.op {
            Op::Prim(def, attrs) => {
                let parts = self.prim_apart(to, node, *def, attrs, &operands);
                self.keep(data.results[0], parts);
            }
            Op::Constant(tensor) => {
                let parts = self.constants(to, tensor, origin);
                self.keep(data.results[0], parts);
            }
            Op::Stack(op) => {
                let op = match op {
                    StackOp::New(ty) => StackOp::New(TensorType::new(ty.dtype, [0; 0])),
                    StackOp::Zeros(ty) => StackOp::Zeros(TensorType::new(ty.dtype, [0; 0])),
                    other => other.clone(),
                };
                let types: Vec<Type> = data.results.iter().map(|&r| of_element(g.ty(r))).collect();
                let mut results = vec![Vec::new(); data.results.len()];
                for i in 0..n_elements(g.ty(data.results[0])) {
                    let operands = operands.iter().map(|parts| parts[i]).collect();
                    let copy = self.at(to, origin).insert(Op::Stack(op.clone()), operands, types.clone());
                    results.iter_mut().zip(&self.out.node(copy).results).for_each(|(all, &r)| all.push(r));
                }
                data.results.iter().zip(results).for_each(|(&r, parts)| self.keep(r, parts));
            }
            Op::List(_) => {
                let operands = data.operands.iter().map(|&v| self.whole(v, to)).collect();
                let copy = self.out.copy(Some(g), node, operands, to);
                let results = self.out.node(copy).results.clone();
                for (&r, copy) in data.results.iter().zip(results) {
                    self.whole.insert(r, copy);
                    match self.stays_whole(r) {
                        true => drop(self.parts.insert(r, vec![copy])),
                        false => drop(self.parts(r, to)),
                    }
                }
            }
            op => {
                let all: Vec<Vec<Type>> = data.results.iter().map(|&r| self.part_types(r)).collect();
                let counts: Vec<usize> = all.iter().map(Vec::len).collect();
                let types = all.into_iter().flatten();
                let copy = self.at(to, origin).insert(op.clone(), operands.concat(), types);
                let copies: Vec<Region> = data.regions.iter().map(|_| self.out.add_region()).collect();
                for (&inner, &copy) in data.regions.iter().zip(&copies) {
                    self.region_apart(inner, copy);
                }
                self.out.set_regions(copy, copies);
                let mut results = self.out.node(copy).results.clone().into_iter();
                for (&r, n) in data.results.iter().zip(counts) {
                    let parts = results.by_ref().take(n).collect();
                    self.keep(r, parts);
                }
            }
        }
    }

    /// Computes the elements of the result of a primitive operation.
    fn prim_apart(&mut self, to: Region, node: Node, def: Prim, attrs: &Attrs, operands: &[Vec<Value>]) -> Vec<Value> {
        let data = self.from.node(node);
        let (origin, ty) = (data.origin(), self.from.ty(data.results[0]).element());
        let shapes: Vec<Vec<usize>> =
            data.operands.iter().map(|&v| small(self.from.ty(v)).expect("the type was checked before")).collect();
        let n = n_elements(self.from.ty(data.results[0]));
        let out = self.at(to, origin);
        if def.is_elementwise() {
            let one = |i: usize| {
                let operands: Vec<Value> = operands.iter().map(|parts| parts[i]).collect();
                out.prim(def, &operands, attrs.clone())
            };
            return (0..n).map(one).collect();
        }
        let zero = HostTensor::zeros(ty.dtype, []);
        if let Some(combine) = def.reduces_by().map(Combiner::prim) {
            // A sum starts with zero, which turns `-0.0` into `0.0`, also if it has a single term.
            let is_sum = match def {
                prim::SUM_LIKE => shapes[0] != shapes[1],
                _ => combine == prim::ADD && !Reduced::of(attrs).axes.is_empty(),
            };
            let start = is_sum.then(|| out.constant(zero));
            let mut results: Vec<Option<Value>> = vec![start; n];
            for (&x, i) in operands[0].iter().zip(reduced_to(def, attrs, &shapes, ty)) {
                results[i] = Some(match results[i] {
                    None => x,
                    Some(so_far) => out.prim(combine, &[so_far, x], Attrs::none()),
                });
            }
            return results.into_iter().map(|r| r.expect("each result has elements")).collect();
        }
        if def == prim::MATMUL {
            let rank = shapes[0].len();
            let [m, k, n] = [shapes[0][rank - 2], shapes[0][rank - 1], shapes[1][rank - 1]];
            let mut results = Vec::new();
            for (row, column) in (0..operands[0].len() / k).flat_map(|row| (0..n).map(move |column| (row, column))) {
                let products = (0..k).map(|j| (operands[0][row * k + j], operands[1][(row / m * k + j) * n + column]));
                let zero = out.constant(zero.clone());
                results.push(products.fold(zero, |sum, (a, b)| {
                    let product = out.prim(prim::MUL, &[a, b], Attrs::none());
                    out.prim(prim::ADD, &[sum, product], Attrs::none())
                }));
            }
            return results;
        }
        // An operation that only moves elements is evaluated on their indices.
        let ends = operands.iter().scan(0, |end, parts| {
            *end += parts.len();
            Some(*end)
        });
        let numbered = |(end, shape): (usize, &Vec<usize>)| {
            let n: usize = shape.iter().product();
            HostTensor::new(shape.clone(), (end - n..end).map(|i| i as i32).collect::<Vec<_>>())
        };
        let numbers: Vec<HostTensor> = ends.zip(&shapes).map(numbered).collect();
        if numbers.is_empty() {
            let made = evaluated(def, attrs, &[], ty);
            return self.constants(to, &made, origin);
        }
        let moved = evaluated(def, attrs, &numbers, &TensorType { dtype: DType::I32, shape: ty.shape.clone() });
        let all = operands.concat();
        moved.data::<i32>().iter().map(|&i| all[i as usize]).collect()
    }
}

/// Adds a reshape of a tensor, unless the tensor has the shape.
pub(super) fn reshape(out: &mut GraphBuilder, v: Value, shape: &Shape) -> Value {
    if out.ty(v).element().shape == *shape {
        return v;
    }
    out.prim(prim::RESHAPE, &[v], Shaped { shape: shape.clone() })
}

/// Evaluates an operation that cannot fail.
fn evaluated(def: Prim, attrs: &Attrs, operands: &[HostTensor], ty: &TensorType) -> HostTensor {
    let operands: Vec<&HostTensor> = operands.iter().collect();
    def.evaluate(&EvalCx { operands: &operands, attrs, ty }).unwrap_or_else(|e| panic!("{}: {}", def.name, e.message))
}

/// Returns for each operand element of a reduction the index of the result element it goes into.
fn reduced_to(def: Prim, attrs: &Attrs, shapes: &[Vec<usize>], ty: &TensorType) -> Vec<usize> {
    let from = &shapes[0];
    // The extents of the result, with 1 for reduced axes.
    let kept: Vec<usize> = if def == prim::SUM_LIKE {
        let missing = from.len() - shapes[1].len();
        std::iter::repeat_n(1, missing).chain(shapes[1].iter().copied()).collect()
    } else {
        let axes = Reduced::of(attrs).axes;
        from.iter().enumerate().map(|(i, &n)| if axes.contains(&i) { 1 } else { n }).collect()
    };
    debug_assert_eq!(Some(kept.iter().product()), ty.shape.size(), "the axes that are left are those of the result");
    let n: usize = kept.iter().product();
    let places = HostTensor::new(kept, (0..n as i32).collect::<Vec<_>>());
    let spread = prim::BROADCAST_TO;
    let ty = TensorType::new(DType::I32, from.as_slice());
    let spread = evaluated(spread, &Shaped { shape: from.as_slice().into() }.into(), &[places], &ty);
    spread.data::<i32>().iter().map(|&i| i as usize).collect()
}
