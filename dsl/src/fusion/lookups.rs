//! Lookups that kernels compute while reading: rows or elements of a table at indices that are
//! data.
//!
//! A lookup whose result one kernel reads, by element and once, needs no memory for it. The kernel
//! reads the table through the indices instead. The lookup stays in the graph to check the indices
//! ([`NodeRole::Check`]), so an error is the one that it would raise, and comes in the same order
//! with other effects.
//!
//! The result of a lookup stays in memory if
//!
//! - anything else uses it, or the kernel reads it at several maps;
//! - the kernel reads its elements repeatedly, since it varies along fewer axes;
//! - the operation that uses it can fail, since its error needs the operands;
//! - a node between the lookup and the kernel may change the table or the indices in place, which
//!   it could not if the kernel still read them;
//! - the table is a view that the map cannot follow;
//! - the device does not accept the kernel, or a part of a kernel of rows.
//!
//! Views of the result that only the kernel reads are part of its map.

use super::access::{through_indexed_views, through_views};
use super::find::FusionTarget;
use super::{
    AxisSet, Coord, FusedKernel, Fusion, IndexedCoord, KernelId, KernelInput, NodeRole, RowPart, StageSource,
    StageWork, view_map,
};
use crate::ir::{Graph, Node, Op, Value};
use crate::ops::attributes::Along;
use crate::ops::{Aliasing, prim};
use rustc_hash::FxHashMap;

/// Lets the kernels of a fusion read the results of lookups through the indices.
pub(super) fn fold(graph: &Graph, target: &dyn FusionTarget, fusion: &mut Fusion) {
    let mut nodes = Vec::new();
    graph.visit_nodes(graph.root(), &mut |node| nodes.push(node));
    let lookups: Vec<Lookup> =
        nodes.iter().filter(|&&n| fusion.role(n) == NodeRole::Alone).filter_map(|&n| Lookup::of(graph, n)).collect();
    if lookups.is_empty() {
        return;
    }
    let needed = needed_in_memory(graph, fusion, &nodes);
    let mut readers: FxHashMap<Value, Vec<usize>> = FxHashMap::default();
    for (k, kernel) in fusion.kernels.iter().enumerate() {
        for input in &kernel.inputs {
            readers.entry(input.value).or_default().push(k);
        }
    }
    let changes = InPlaceChanges::of(graph, fusion, &nodes);
    // Whether a value is the result of a lookup that a kernel reads through, or a view of one.
    let mut is_folded = vec![false; graph.n_values()];
    for lookup in lookups {
        let Some(&[k]) = readers.get(&lookup.result).map(|of| &of[..]) else { continue };
        let kernel = &fusion.kernels[k];
        if needed[lookup.result.index()] || can_fail(graph, kernel) || changes.between(graph, &lookup, k) {
            continue;
        }
        let Some(kernel) = lookup.read_in(graph, kernel) else { continue };
        if kernel.inputs.len() > limit_of_inputs(target, fusion, k) || !target.accepts(graph, &kernel) {
            continue;
        }
        let Some(parts) = parts_that_read(graph, target, fusion, k, &lookup) else { continue };
        fusion.kernels[k] = kernel;
        for (p, part) in parts {
            let rows = fusion.rows.get_mut(&KernelId(k as u32)).expect("the kernel has parts");
            rows.parts[p] = RowPart::Kernel(part);
        }
        fusion.roles[lookup.node.index()] = NodeRole::Check;
        is_folded[lookup.result.index()] = true;
    }
    for node in nodes {
        let data = graph.node(node);
        if fusion.role(node) == NodeRole::Alone
            && data.operands.first().is_some_and(|v| is_folded[v.index()])
            && view_map(graph, data).is_some()
        {
            fusion.roles[node.index()] = NodeRole::Inside;
            is_folded[data.results[0].index()] = true;
        }
    }
}

/// Returns the parts of a kernel of rows that read the table instead of the result of a lookup,
/// with their positions, or `None` if one cannot.
fn parts_that_read(
    graph: &Graph,
    target: &dyn FusionTarget,
    fusion: &Fusion,
    k: usize,
    lookup: &Lookup,
) -> Option<Vec<(usize, FusedKernel)>> {
    let mut reading = Vec::new();
    for (p, part) in fusion.rows.get(&KernelId(k as u32)).into_iter().flat_map(|rows| &rows.parts).enumerate() {
        if let RowPart::Kernel(part) = part
            && part.inputs.iter().any(|input| input.value == lookup.result)
        {
            let is_accepted =
                |part: &FusedKernel| part.inputs.len() <= target.max_inputs() && target.accepts(graph, part);
            let part = lookup.read_in(graph, part).filter(is_accepted)?;
            reading.push((p, part));
        }
    }
    Some(reading)
}

/// The nodes that may change tensors in place.
struct InPlaceChanges {
    /// The places of all nodes in the order of the graph.
    places: FxHashMap<Node, usize>,
    /// The place of the node where each kernel runs.
    kernels: Vec<usize>,
    /// The places of the nodes that may change a tensor, which is no view.
    of: FxHashMap<Value, Vec<usize>>,
}

impl InPlaceChanges {
    fn of(graph: &Graph, fusion: &Fusion, nodes: &[Node]) -> InPlaceChanges {
        let places = nodes.iter().enumerate().map(|(place, &node)| (node, place)).collect();
        let mut changes = InPlaceChanges { places, kernels: vec![0; fusion.kernels.len()], of: FxHashMap::default() };
        for (place, &node) in nodes.iter().enumerate() {
            if let NodeRole::Kernel(KernelId(k)) = fusion.role(node) {
                changes.kernels[k as usize] = place;
            }
            let data = graph.node(node);
            let changed = match &data.op {
                Op::Prim(op, _) if op.aliasing() == Aliasing::Update => &data.operands[..1],
                // The variables of a loop begin with its operands.
                _ if !data.regions.is_empty() => &data.operands[..],
                _ => &[],
            };
            changed.iter().for_each(|&v| changes.of.entry(viewed(graph, v)).or_default().push(place));
        }
        changes
    }

    /// Returns whether a node between a lookup and a kernel may change the table or the indices.
    fn between(&self, graph: &Graph, lookup: &Lookup, k: usize) -> bool {
        let between = self.places[&lookup.node] + 1..self.kernels[k];
        [lookup.table, lookup.indices].into_iter().any(|v| {
            self.of.get(&viewed(graph, v)).is_some_and(|places| places.iter().any(|place| between.contains(place)))
        })
    }
}

/// Returns the tensor in whose memory a view is.
fn viewed(graph: &Graph, mut value: Value) -> Value {
    while let Some(node) = graph.producer(value)
        && let Op::Prim(op, _) = &graph.node(node).op
        && op.aliasing() == Aliasing::View
    {
        value = graph.node(node).operands[0];
    }
    value
}

fn can_fail(graph: &Graph, kernel: &FusedKernel) -> bool {
    kernel.stages.iter().any(|stage| {
        let data = graph.node(stage.node);
        let Op::Prim(op, _) = data.op else { panic!("a stage is a primitive operation") };
        stage.work == StageWork::Map && op.can_fail(graph.ty(data.results[0]).element().dtype)
    })
}

/// Returns the largest number of inputs of a kernel. The operands of a product count as well.
fn limit_of_inputs(target: &dyn FusionTarget, fusion: &Fusion, k: usize) -> usize {
    match fusion.rows.contains_key(&KernelId(k as u32)) {
        true => target.rows().map_or(0, |limits| limits.inputs),
        false => target.max_inputs(),
    }
}

/// Returns for each value whether something other than the maps of kernels reads it. Views that
/// nothing else needs do not count.
fn needed_in_memory(graph: &Graph, fusion: &Fusion, nodes: &[Node]) -> Vec<bool> {
    let mut needed = vec![false; graph.n_values()];
    let mut need = |v: Value| needed[v.index()] = true;
    for kernel in &fusion.kernels {
        // A map that begins at a view could not follow it.
        let is_view = |v: Value| graph.producer(v).is_some_and(|node| view_map(graph, graph.node(node)).is_some());
        let read = kernel.inputs.iter().filter(|input| input.map.is_none() || is_view(input.value));
        read.for_each(|input| need(input.value));
        // Some reductions have an operand of which only the shape matters.
        kernel.stages.iter().filter(|s| !s.work.over().is_empty()).for_each(|stage| {
            graph.node(stage.node).operands[1..].iter().for_each(|&v| need(v));
        });
    }
    for part in fusion.rows.values().flat_map(|rows| &rows.parts) {
        if let RowPart::Node(node) = part {
            graph.node(*node).operands.iter().for_each(|&v| need(v));
        }
    }
    graph.region(graph.root()).yields.iter().for_each(|&v| need(v));
    for &node in nodes {
        graph.node(node).regions.iter().flat_map(|&r| &graph.region(r).yields).for_each(|&v| need(v));
    }
    // Users come after the nodes that they use.
    for &node in nodes.iter().rev().filter(|&&node| fusion.role(node) == NodeRole::Alone) {
        let data = graph.node(node);
        let is_unneeded_view = data.results.iter().all(|v| !needed[v.index()]) && view_map(graph, data).is_some();
        let read = if is_unneeded_view { &data.operands[1..] } else { &data.operands[..] };
        read.iter().for_each(|v| needed[v.index()] = true);
    }
    needed
}

/// A lookup of known shapes.
#[derive(Clone, Copy, Debug)]
struct Lookup {
    node: Node,
    table: Value,
    indices: Value,
    result: Value,
    axis: usize,
    /// The axes of the result that the indices have, from the axis on, or `None` if they have all.
    rank: Option<usize>,
    extent: usize,
}

impl Lookup {
    fn of(graph: &Graph, node: Node) -> Option<Lookup> {
        let data = graph.node(node);
        let Op::Prim(op @ (prim::TAKE | prim::TAKE_ALONG_AXIS), attrs) = &data.op else { return None };
        let [table, indices] = data.operands[..] else { return None };
        let result = data.results[0];
        let fits = |v: Value| {
            let ty = graph.ty(v).element();
            let shape = ty.shape.known()?;
            (ty.dtype.is_plain() && !shape.contains(&0) && shape.len() <= AxisSet::MAX_AXES).then_some(shape)
        };
        let (of_table, of_indices, _) = (fits(table)?, fits(indices)?, fits(result)?);
        let axis = Along::of(attrs).axis;
        let rank = (*op == prim::TAKE).then_some(of_indices.len());
        Some(Lookup { node, table, indices, result, axis, rank, extent: of_table[axis] })
    }

    /// Returns a kernel that reads the table through the indices, if it reads the result by
    /// element, and at only one index of its own.
    fn read_in(&self, graph: &Graph, kernel: &FusedKernel) -> Option<FusedKernel> {
        let mut of_result = (0..kernel.inputs.len()).filter(|&i| kernel.inputs[i].value == self.result);
        let (Some(input), None) = (of_result.next(), of_result.next()) else { return None };
        let KernelInput { map: Some(map), indexed: None, .. } = &kernel.inputs[input] else { return None };
        let varies = kernel.input_along(input);
        let is_read_once = (0..kernel.axes.len()).all(|axis| kernel.axes[axis] == 1 || varies.contains(axis));
        let is_row = |index: usize| {
            kernel.inputs.iter().any(|other| other.indexed.is_some_and(|indexed| indexed.indices == index))
        };
        if !is_read_once || is_row(input) {
            return None;
        }
        let (before, after) = (&map[..self.axis], &map[self.axis..]);
        let (of_indices, after) = match self.rank {
            Some(rank) => (after[..rank].to_vec(), &after[rank..]),
            None => (map.clone(), &after[1..]),
        };
        let of_table = [before, &[Coord::ZERO], after].concat();
        let mut reading = kernel.clone();
        let (indices, of_indices) = through_views(graph, self.indices, of_indices);
        let StageSource::Input(indices) = reading.add_input(KernelInput::at(indices, of_indices)) else {
            panic!("an input is added")
        };
        let (value, map, (axis, scale)) = through_indexed_views(graph, self.table, of_table, (self.axis, 1))?;
        let indexed = Some(IndexedCoord { axis, scale, indices, extent: self.extent });
        reading.inputs[input] = KernelInput { value, map: Some(map), indexed };
        Some(reading)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FuseEverything, FuseUnless};
    use super::*;

    /// Returns the inputs that kernels read at indices, and how lookups are computed.
    fn found(text: &str, target: &dyn FusionTarget) -> (usize, Vec<NodeRole>) {
        let graph = Graph::parse(text, "f.ir").unwrap_or_else(|errors| panic!("{}", errors[0]));
        let fusion = Fusion::find(&graph, target);
        let mut n = 0;
        for kernel in fusion.kernels() {
            assert_eq!(kernel.verify(&graph), Ok(()));
            n += kernel.inputs.iter().filter(|input| input.indexed.is_some()).count();
        }
        let mut roles = Vec::new();
        graph.visit_nodes(graph.root(), &mut |node| {
            if Lookup::of(&graph, node).is_some() {
                roles.push(fusion.role(node));
            }
        });
        (n, roles)
    }

    /// Returns a graph that computes `%y` of type `f32[6, 4]` with the rows of a table.
    fn of_rows(nodes: &str, results: &str) -> String {
        let types = vec!["f32[6, 4]"; results.split(',').count()].join(", ");
        format!(
            "graph @f(%t: f32[9, 4], %ids: i32[6], %x: f32[6, 4]) -> ({types}) {{
                %rows = take %t, %ids {{axis=0}}
                {nodes}
                return {results}
            }}"
        )
    }

    const FOLDED: (usize, [NodeRole; 1]) = (1, [NodeRole::Check]);
    const KEPT: (usize, [NodeRole; 1]) = (0, [NodeRole::Alone]);

    fn is_of(nodes: &str, results: &str, expected: (usize, [NodeRole; 1])) {
        let (n, roles) = found(&of_rows(nodes, results), &FuseEverything);
        assert_eq!((n, &roles[..]), (expected.0, &expected.1[..]), "{nodes}");
    }

    #[test]
    fn the_only_kernel_that_reads_a_lookup_reads_the_table() {
        is_of("%y = mul %rows, %x", "%y", FOLDED);
        is_of("%y = mul %rows, %rows", "%y", FOLDED);
        is_of("%v = flip %rows {axes=[0]}  %y = mul %v, %x", "%y", FOLDED);
        // A layer norm reads the rows several times, in one kernel.
        let norm = "%s = sum %rows {axes=[1], keepdim=true}  %b = broadcast_to %s {shape=[6, 4]}  %y = sub %rows, %b";
        is_of(norm, "%y", FOLDED);
    }

    #[test]
    fn a_result_that_is_needed_in_memory_stays_there() {
        is_of("%y = mul %rows, %x", "%y, %rows", KEPT);
        is_of("%y = mul %rows, %x  %f = reshape %rows {shape=[6, 4]}", "%y, %f", KEPT);
        is_of("%v = flip %rows {axes=[0]}  %y = mul %v, %x", "%y, %v", KEPT);
        // Two maps of one kernel, and two kernels.
        is_of("%v = flip %rows {axes=[0]}  %y = mul %v, %rows", "%y", KEPT);
        is_of("%y = mul %rows, %x  %r = reshape %y {shape=[6, 4]}  %z = add %r, %rows", "%z", KEPT);
    }

    #[test]
    fn rows_that_a_kernel_reads_repeatedly_stay_in_memory() {
        let text = "graph @f(%t: f32[9, 4], %ids: i32[1], %x: f32[6, 4]) -> f32[6, 4] {
            %row = take %t, %ids {axis=0}
            %b = broadcast_to %row {shape=[6, 4]}
            %y = mul %b, %x
            return %y
        }";
        assert_eq!(found(text, &FuseEverything), (0, vec![NodeRole::Alone]));
    }

    #[test]
    fn a_kernel_that_is_not_accepted_reads_the_result_of_the_lookup() {
        let text = of_rows("%y = mul %rows, %x  %z = neg %y", "%z");
        assert_eq!(found(&text, &FuseUnless(FusedKernel::has_indexed)), (0, vec![NodeRole::Alone]));
        assert_eq!(found(&text, &FuseEverything), (1, vec![NodeRole::Check]));
    }

    #[test]
    fn an_operation_that_can_fail_has_its_operands_in_memory() {
        let text = of_rows("%y = div %rows, %x", "%y").replace("f32", "i32");
        assert_eq!(found(&text, &FuseEverything), (0, vec![NodeRole::Alone]));
    }

    #[test]
    fn lookups_without_elements_stay_alone() {
        let text = "graph @f(%t: f32[9, 0], %ids: i32[6], %x: f32[6, 0]) -> f32[6, 0] {
            %rows = take %t, %ids {axis=0}
            %y = mul %rows, %x
            return %y
        }";
        assert_eq!(found(text, &FuseEverything), (0, vec![]));
    }

    #[test]
    fn an_empty_view_that_another_kernel_reads_has_its_operand_in_memory() {
        let text = "graph @f(%t: f32[9, 4], %ids: i32[6], %x: f32[6, 4]) -> (f32[6], f32[0, 4]) {
            %rows = take %t, %ids {axis=0}
            %y = mul %rows, %x
            %s = sum %y {axes=[1], keepdim=false}
            %e = slice %rows {axis=0, start=6, end=6, step=1}
            %z = exp %e
            return %s, %z
        }";
        assert_eq!(found(text, &FuseEverything), (0, vec![NodeRole::Alone]));
    }

    #[test]
    fn what_is_changed_in_place_before_the_kernel_is_looked_up_before() {
        let text = "graph @f(%t: f32[9, 4], %ids: i32[6], %x: f32[6, 4]) -> (f32[4], f32[9, 4]) {
            %a = exp %t
            %rows = take %a, %ids {axis=0}
            LATER
            %y = mul %rows, %x
            %s = sum %y {axes=[0], keepdim=false}
            EARLIER
            return %s, %b
        }";
        let update = "%b = scatter_add %a, %ids, %x {axis=0}";
        let [before, after] = [[update, ""], ["", update]]
            .map(|[later, earlier]| found(&text.replace("LATER", later).replace("EARLIER", earlier), &FuseEverything));
        assert_eq!((before, after), ((0, vec![NodeRole::Alone]), (1, vec![NodeRole::Check])));
    }

    #[test]
    fn a_table_that_a_view_repeats_along_the_axis_is_looked_up_alone() {
        let text = "graph @f(%c: f32[1, 4], %ids: i32[4], %b: f32[4, 4]) -> f32[4, 4] {
            %v = broadcast_to %c {shape=[4, 4]}
            %p = matmul %v, %b
            %rows = take %v, %ids {axis=0}
            %y = add %p, %rows
            return %y
        }";
        assert_eq!(found(text, &FuseEverything), (0, vec![NodeRole::Alone]));
    }
}
