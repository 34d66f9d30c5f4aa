//! Long rows of reductions in parts.

use super::{Dce, Pass};
use crate::fusion::AxisSet;
use crate::ir::{Attrs, GraphBuilder, InsertPoint, NodeData, Op, Origin, Region, Users, Value, users};
use crate::ops::attributes::{Reduced, Shaped};
use crate::ops::{Effects, OpClass, Prim, prim};
use crate::{Graph, TensorType};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Returns the graph with each reduction of a few long rows as a reduction of many parts of rows,
/// and one of their results. Returns `None` if there is none.
///
/// It is for devices that reduce a row in one place, as a GPU does in a workgroup. Elementwise
/// operations whose result only the reduction reads are computed in the parts. Sums are rounded in
/// another order.
#[must_use]
pub fn split_reductions(graph: &Graph) -> Option<Graph> {
    let mut is_found = false;
    graph.visit_nodes(graph.root(), &mut |node| is_found |= SplitReduction::of(graph, graph.node(node)).is_some());
    if !is_found {
        return None;
    }
    let mut splitter = Splitter { builder: GraphBuilder::new(graph.clone()), users: users(graph) };
    splitter.region(graph.root());
    let mut split = splitter.builder.into_graph();
    Dce.run(&mut split);
    Some(split.compact())
}

/// Returns the number of parts of which [`split_reductions`] reduces each row of an operand of an
/// operation: 1 if it does not split them.
pub fn parts_of_rows(op: Prim, attrs: &Attrs, operand: &TensorType) -> usize {
    SplitReduction::of_type(op, attrs, operand).map_or(1, |split| split.extents[split.axis])
}

/// The most rows of a reduction that is split. More rows keep a device busy.
const MAX_ROWS: usize = 128;

/// The number of parts of all rows, as far as their extents allow.
const PARTS: usize = 1024;

/// The fewest elements of a part.
const MIN_PART: usize = 1024;

/// The fewest parts of a row.
const MIN_PARTS: usize = 8;

/// The most operations, one after another, that are computed in the parts.
const MAX_DEPTH: usize = 32;

/// The extents of a reduction whose rows are split.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SplitReduction {
    /// Those of the operand, in which the first reduced axis, or all of them together if they
    /// divide better, are two: the parts of a row, and what is in a part.
    extents: Vec<usize>,
    /// The axis of the parts.
    axis: usize,
    /// The number of axes of a part.
    n_axes: usize,
}

impl SplitReduction {
    /// Returns how the rows of a node are split, if it is a reduction with few long rows.
    fn of(graph: &Graph, data: &NodeData) -> Option<SplitReduction> {
        let Op::Prim(op, attrs) = &data.op else { return None };
        SplitReduction::of_type(*op, attrs, graph.ty(data.operands.first().copied()?).as_tensor()?)
    }

    /// Returns how the rows of an operation on a type are split.
    fn of_type(op: Prim, attrs: &Attrs, ty: &TensorType) -> Option<SplitReduction> {
        // The sum of 16-bit floats is not rounded before its end.
        if op.reduces_by().is_none() || op == prim::SUM_LIKE || ty.dtype.is_half() {
            return None;
        }
        let (shape, mut axes) = (ty.shape.known()?, Reduced::of(attrs).axes);
        axes.sort_unstable();
        if shape.len() == AxisSet::MAX_AXES {
            return None;
        }
        let (first, end) = (*axes.first()?, *axes.last()? + 1);
        let n: usize = shape[first..end].iter().product();
        let n_rows = shape[..first].iter().chain(&shape[end..]).product::<usize>();
        if end - first != axes.len() || n_rows == 0 || n_rows > MAX_ROWS {
            return None;
        }
        let most = (PARTS / n_rows).min(n / MIN_PART);
        let divisor = |n: usize| (MIN_PARTS..=most).rev().find(|&parts| n.is_multiple_of(parts));
        let (parts, n_axes) = match divisor(shape[first]) {
            Some(parts) => (parts, axes.len()),
            None => (divisor(n)?, 1),
        };
        // The first axes of a part: what is left of the first reduced one, or all together.
        let rest = if n_axes == 1 { end } else { first + 1 };
        let in_part = shape[first..rest].iter().product::<usize>() / parts;
        let extents = [&shape[..first], &[parts, in_part], &shape[rest..]].concat();
        Some(SplitReduction { extents, axis: first, n_axes })
    }

    /// Returns the extents of the operand of a broadcast, such that the broadcast of them yields
    /// those of the operand of the reduction. Returns `None` if axes have become one, along some of
    /// which it is broadcast.
    fn of_broadcast(&self, graph: &Graph, data: &NodeData) -> Option<Vec<usize>> {
        let [from, to] = [data.operands[0], data.results[0]].map(|v| graph.ty(v).element().shape.known());
        let (from, to) = (from?, to?);
        let mut aligned = vec![1; to.len() - from.len()];
        aligned.extend(from);
        let [parts, in_part] = [self.extents[self.axis], self.extents[self.axis + 1]];
        if self.extents.len() != to.len() + 1 || to[self.axis] != parts * in_part {
            return None;
        }
        let split = if aligned[self.axis] == 1 { [1, 1] } else { [parts, in_part] };
        Some([&aligned[..self.axis], &split, &aligned[self.axis + 1..]].concat())
    }
}

/// The values of which a reduction is split.
struct ReshapedValues<'a> {
    split: &'a SplitReduction,
    /// Values with these extents, by the value with its own.
    done: FxHashMap<Value, Value>,
}

struct Splitter {
    builder: GraphBuilder,
    /// The users of each value of the graph.
    users: Vec<Users>,
}

impl Splitter {
    fn region(&mut self, region: Region) {
        for node in self.builder.take_nodes(region) {
            self.builder.update_operands(node);
            let data = self.builder.node(node).clone();
            data.regions.iter().for_each(|&inner| self.region(inner));
            let Some(split) = SplitReduction::of(&self.builder, &data) else {
                self.builder.append(node);
                continue;
            };
            let Op::Prim(op, _) = data.op else { panic!("a reduction is an operation") };
            self.builder.at(InsertPoint::End(region), data.origin());
            let mut parts = ReshapedValues { split: &split, done: FxHashMap::default() };
            let x = self.with_extents(data.operands[0], &mut parts, data.origin(), MAX_DEPTH);
            self.builder.at(InsertPoint::End(region), data.origin());
            let over = |axes: Range<usize>| Op::Prim(op, Reduced { axes: axes.collect(), keepdim: false }.into());
            let of_parts = self.builder.emit(over(split.axis + 1..split.axis + 1 + split.n_axes), &[x]);
            let of_rows = self.builder.emit(over(split.axis..split.axis + 1), &[of_parts]);
            let [found, shape] = [of_rows, data.results[0]].map(|v| self.builder.ty(v).element().shape.clone());
            let result = match found == shape {
                true => of_rows,
                false => self.builder.emit(Op::Prim(prim::RESHAPE, Shaped { shape }.into()), &[of_rows]),
            };
            self.builder.replace(data.results[0], result);
        }
        self.builder.update_yields(region);
    }

    /// Returns the elements of a value with other extents. What computes them elementwise, for
    /// nothing else, computes them so, up to a depth. `origin` is that of the node that reads them.
    fn with_extents(&mut self, v: Value, parts: &mut ReshapedValues<'_>, origin: Origin, depth: usize) -> Value {
        if let Some(&known) = parts.done.get(&v) {
            return known;
        }
        let shaped = |parts: &ReshapedValues<'_>| Shaped { shape: parts.split.extents[..].into() }.into();
        let has_one_user = matches!(self.users.get(v.index()), Some(Users::Only(_)));
        let producer = self.builder.producer(v).filter(|_| has_one_user && depth > 0);
        let data = producer.map(|node| self.builder.node(node).clone());
        let (op, operands, origin) = match data.as_ref().map(|data| (data, &data.op)) {
            Some((data, Op::Prim(prim::BROADCAST_TO, _)))
                if self.builder.ty(data.operands[0]).element().rank() == 0 =>
            {
                (Op::Prim(prim::BROADCAST_TO, shaped(parts)), data.operands.to_vec(), data.origin())
            }
            Some((data, Op::Prim(prim::BROADCAST_TO, _)))
                if parts.split.of_broadcast(&self.builder, data).is_some() =>
            {
                let shape = parts.split.of_broadcast(&self.builder, data).expect("it is some");
                let reshape = Op::Prim(prim::RESHAPE, Shaped { shape: shape[..].into() }.into());
                let point = self.builder.point();
                let small = self.builder.at(point, data.origin()).emit(reshape, &[data.operands[0]]);
                (Op::Prim(prim::BROADCAST_TO, shaped(parts)), vec![small], data.origin())
            }
            Some((data, Op::Prim(op, attrs))) if is_elementwise(*op) => {
                let operand = |&x| self.with_extents(x, parts, data.origin(), depth - 1);
                (Op::Prim(*op, attrs.clone()), data.operands.iter().map(operand).collect(), data.origin())
            }
            _ => (Op::Prim(prim::RESHAPE, shaped(parts)), vec![v], origin),
        };
        let point = self.builder.point();
        let result = self.builder.at(point, origin).emit(op, &operands);
        parts.done.insert(v, result);
        result
    }
}

/// Returns whether an operation computes each element by a function that cannot fail.
fn is_elementwise(op: Prim) -> bool {
    matches!(op.class, OpClass::Scalar(_)) && op.effects == Effects::Pure
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp::{InterpOptions, run};
    use crate::{HostTensor, Type};

    fn parsed(text: &str) -> Graph {
        Graph::parse(text, "split.ir").unwrap_or_else(|e| panic!("{}\n{text}", e[0]))
    }

    /// Returns small whole numbers, whose sums are exact in any order, or truths.
    fn argument(ty: &Type) -> HostTensor {
        let shape = ty.element().shape.known().expect("it is known");
        let n: usize = shape.iter().product();
        match ty.element().dtype {
            crate::DType::F32 => HostTensor::new(shape, (0..n).map(|i| (i * 7 % 11) as f32 - 5.0).collect::<Vec<_>>()),
            crate::DType::I32 => HostTensor::new(shape, (0..n).map(|i| (i * 7 % 11) as i32 - 5).collect::<Vec<_>>()),
            crate::DType::Bool => HostTensor::new(shape, (0..n).map(|i| i != n / 2).collect::<Vec<_>>()),
            other => panic!("no arguments of {other}"),
        }
    }

    #[test]
    fn long_rows_are_reduced_in_parts() {
        let cases = [
            ("%x: f32[32768]", "f32[]", "%y = sum %x {axes=[0], keepdim=false}"),
            ("%x: f32[4, 64, 512]", "f32[4, 1, 1]", "%y = max %x {axes=[1, 2], keepdim=true}"),
            ("%x: i32[128, 256, 3]", "i32[3]", "%y = sum %x {axes=[0, 1], keepdim=false}"),
            ("%x: i32[2, 9216, 3]", "i32[2, 3]", "%y = min %x {axes=[1], keepdim=false}"),
            ("%x: bool[10000]", "bool[]", "%y = all %x {axes=[0], keepdim=false}"),
            // Operations for the reduction alone are computed in the parts.
            (
                "%x: f32[200, 100], %c: f32[]",
                "f32[]",
                "%d = broadcast_to %c {shape=[200, 100]}
                 %m = mul %x, %d
                 %q = mul %m, %m
                 %y = sum %q {axes=[0, 1], keepdim=false}",
            ),
        ];
        let cases = cases.into_iter().chain([
            // Broadcasts stay, with a reshape of what is small.
            (
                "%m: f32[512, 1], %x: f32[512, 96]",
                "f32[]",
                "%d = broadcast_to %m {shape=[512, 96]}
                 %s = sub %x, %d
                 %y = sum %s {axes=[1, 0], keepdim=false}",
            ),
            (
                "%m: f32[96], %x: f32[512, 96]",
                "f32[]",
                "%d = broadcast_to %m {shape=[512, 96]}
                 %s = sub %x, %d
                 %y = max %s {axes=[0, 1], keepdim=false}",
            ),
        ]);
        for (params, result, body) in cases {
            let graph = parsed(&format!("graph @f({params}) -> {result} {{\n{body}\nreturn %y\n}}\n"));
            let split = split_reductions(&graph).unwrap_or_else(|| panic!("it is split:\n{graph}"));
            let n_reductions = split.to_string().matches("keepdim=false").count();
            assert_eq!(n_reductions, 2, "{split}");
            let arguments: Vec<_> = graph.inputs().iter().map(|&v| argument(graph.ty(v))).collect();
            let results =
                [&graph, &split].map(|g| run(g, &arguments, &mut Vec::new(), InterpOptions::default()).unwrap());
            assert_eq!(results[0], results[1], "{split}");
            // Nothing but arguments is reshaped, and a result with kept axes.
            let n_reshapes = split.to_string().matches("reshape").count();
            let of_arguments: usize =
                ["reshape %x", "reshape %m "].iter().map(|text| split.to_string().matches(text).count()).sum();
            assert_eq!(n_reshapes - of_arguments, usize::from(body.contains("keepdim=true")), "{split}");
        }
    }

    #[test]
    fn other_reductions_stay() {
        for (x, axes) in [
            ("f32[8191]", "0"),
            ("f32[4000]", "0"),
            ("f32[256, 65536]", "1"),
            ("f32[64, 4, 64]", "0, 2"),
            ("bf16[65536]", "0"),
            ("f32[?]", "0"),
            (&format!("f32[8192{}]", ", 1".repeat(AxisSet::MAX_AXES - 1)), "0"),
        ] {
            let text = format!("graph @f(%x: {x}) {{\n%y = sum %x {{axes=[{axes}], keepdim=true}}\nreturn\n}}\n");
            assert!(split_reductions(&parsed(&text)).is_none(), "{x}");
        }
    }
}
