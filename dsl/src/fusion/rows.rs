//! Joining kernels that compute the same rows.
//!
//! A layer norm, for example, consists of two reductions, two kernels of reduced values, and a
//! kernel of all elements; its gradient also has sums of columns. Joined, each tensor is read once,
//! and the values between them need no memory of their own.
//!
//! The index space of a joined kernel has row axes and column axes. A *row* is the set of elements
//! with the same index along the row axes. A part of the kernel is
//!
//! - elementwise, for all elements or for one element of each row;
//! - a reduction or softmax of each row;
//! - a reduction over the rows, which yields columns.
//!
//! Parts read values of other parts at their own index. Nothing in the kernel reads columns, which
//! are complete only at its end. Axes of extent 1 do not count.
//!
//! A joined kernel runs where its last part was. So no node between the parts reads their values,
//! except for views: those that are used elsewhere are computed after the kernel. A joined kernel
//! pays off if a tensor with all elements that one of its parts reads is read or computed by
//! another part.
//!
//! An elementwise kernel that computes the new value of a variable is no part. Such a value is
//! computed at the end of the step, in place.

use super::access::through_views;
use super::{
    AxisSet, Coord, FusedKernel, Fusion, FusionTarget, KernelId, KernelInput, KernelStage, NodeRole, StageSource,
    StageWork, reduced_axes,
};
use crate::ir::{Graph, Node, NodeData, Op, Region, Value};
use crate::ops::OpClass;
use crate::ops::attributes::Along;
use rustc_hash::{FxHashMap, FxHashSet};

/// The limits of kernels of rows on a device.
#[derive(Clone, Copy, Debug)]
pub struct RowLimits {
    /// The largest number of elements of a row.
    pub width: usize,
    /// The largest number of parts.
    pub parts: usize,
    /// The largest number of inputs of all parts together.
    pub inputs: usize,
    /// The largest number of outputs.
    pub outputs: usize,
    /// The number of outputs as which the sums of columns count.
    pub columns: usize,
}

impl RowLimits {
    /// The limits of a device of which a workgroup computes a row. It reads the tensors again after
    /// each reduction, from a cache if the row is not long.
    pub const OF_WORKGROUPS: RowLimits = RowLimits { width: 8192, parts: 32, inputs: 32, outputs: 8, columns: 1 };
}

/// A part of a kernel of rows, which a device that does not compute the whole kernel runs by
/// itself.
#[derive(Clone, Debug)]
pub enum RowPart {
    /// A kernel.
    Kernel(FusedKernel),
    /// A node, or a view of the value of another part.
    Node(Node),
}

/// The parts of a kernel of rows.
#[derive(Clone, Debug)]
pub(super) struct RowParts {
    /// The parts and the views between them, in the order of the graph.
    pub(super) parts: Vec<RowPart>,
    /// The views of their values that other nodes use.
    pub(super) views: Vec<Node>,
}

/// Returns the row axes of a reduction over the first or last axes of a shape: those that it keeps,
/// or those that it reduces.
pub fn row_axes(shape: &[usize], over: AxisSet) -> Option<AxisSet> {
    let long: AxisSet = (0..shape.len()).filter(|&axis| shape[axis] != 1).collect();
    let kept = long.without(over);
    let reduced = long.without(kept);
    let ends = |set: AxisSet| Some((set.iter().next()?, set.iter().last()?));
    let (Some((first, last)), Some((first_kept, last_kept))) = (ends(reduced), ends(kept)) else { return Some(kept) };
    if last_kept < first {
        return Some(kept);
    }
    (last < first_kept).then_some(reduced)
}

/// Returns the row axes of a reduction for a device of which a workgroup computes a row. Sums of
/// columns are kernels of their own, since each thread would wait for all rows.
pub fn row_axes_of_workgroups(shape: &[usize], over: AxisSet) -> Option<AxisSet> {
    row_axes(shape, over).filter(|rows| rows.is_empty() || !rows.is_subset(over))
}

/// Joins the kernels of a fusion that compute the same rows.
pub(super) fn join(graph: &Graph, target: &dyn FusionTarget, limits: RowLimits, fusion: Fusion) -> Fusion {
    let mut finder = RowFinder {
        graph,
        target,
        limits,
        readers: ValueReaders::of(graph, &fusion),
        is_update: vec![false; fusion.kernels.len()],
        found: Vec::new(),
        last_kernel: 0,
        fusion: &fusion,
        group: Group::default(),
    };
    finder.find_updates();
    finder.region(graph.root());
    let mut found = finder.found;
    found.sort_by_key(|joined| joined.order);
    let mut joined = Fusion { roles: fusion.roles.clone(), ..Fusion::default() };
    for FoundKernel { node, kernel, inside, parts, .. } in found {
        let id = KernelId(joined.kernels.len() as u32);
        inside.into_iter().for_each(|node| joined.roles[node.index()] = NodeRole::Inside);
        joined.roles[node.index()] = NodeRole::Kernel(id);
        joined.kernels.push(kernel);
        joined.rows.extend(parts.map(|parts| (id, parts)));
    }
    joined
}

/// The nodes that use each value, those that run a kernel for what it reads, and whether a region
/// yields it.
struct ValueReaders {
    nodes: Vec<Vec<Node>>,
    yielded: Vec<bool>,
}

impl ValueReaders {
    fn of(graph: &Graph, fusion: &Fusion) -> ValueReaders {
        let mut readers =
            ValueReaders { nodes: vec![Vec::new(); graph.n_values()], yielded: vec![false; graph.n_values()] };
        let mut regions = vec![graph.root()];
        while let Some(region) = regions.pop() {
            let data = graph.region(region);
            for &node in &data.nodes {
                match fusion.role(node) {
                    NodeRole::Alone => graph.node(node).operands.iter().for_each(|&v| readers.add(v, node)),
                    NodeRole::Inside | NodeRole::Check => {}
                    NodeRole::Kernel(id) => read_by(graph, fusion.kernel(id)).for_each(|v| readers.add(v, node)),
                }
                regions.extend(&graph.node(node).regions);
            }
            data.yields.iter().for_each(|v| readers.yielded[v.index()] = true);
        }
        readers
    }

    fn add(&mut self, value: Value, node: Node) {
        self.nodes[value.index()].push(node);
    }
}

/// Returns the values that a kernel reads, and those that give a reduction only their shape.
fn read_by<'a>(graph: &'a Graph, kernel: &'a FusedKernel) -> impl Iterator<Item = Value> + 'a {
    let reductions = kernel.stages.iter().filter(|stage| matches!(stage.work, StageWork::Reduce { .. }));
    let shapes = reductions.flat_map(|stage| &graph.node(stage.node).operands[1..]);
    kernel.inputs.iter().map(|input| input.value).chain(shapes.copied())
}

/// The way in which a part computes rows. The sets are row axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartRole {
    /// Each element by itself.
    Elements,
    /// An element or all elements of each row.
    PerRow(AxisSet),
    /// A reduction over the rows.
    Columns(AxisSet),
}

impl PartRole {
    fn rows(self) -> Option<AxisSet> {
        match self {
            PartRole::Elements => None,
            PartRole::PerRow(rows) | PartRole::Columns(rows) => Some(rows),
        }
    }
}

/// A kernel or node that may be a part.
#[derive(Clone, Debug)]
struct PartKernel {
    /// The node where it runs.
    node: Node,
    /// Its index among the kernels without joined ones, unless it is a node in no kernel.
    id: Option<usize>,
    kernel: FusedKernel,
    role: PartRole,
    /// The axis of the joined kernel of each axis, unless that has extent 1.
    axes: Vec<Option<usize>>,
    /// The elements that it reads of other parts: for each input the part, if it is one.
    reads: Vec<Option<usize>>,
}

/// A kernel of the result.
struct FoundKernel {
    /// A number that orders the kernels.
    order: (usize, usize),
    node: Node,
    kernel: FusedKernel,
    /// The nodes that are computed inside.
    inside: Vec<Node>,
    parts: Option<RowParts>,
}

/// The kernels to be joined.
#[derive(Default)]
struct Group {
    members: Vec<PartKernel>,
    /// The views of their values, each with the number of members before it.
    views: Vec<(usize, Node)>,
    /// The extents of the axes.
    space: Vec<usize>,
    /// The row axes, once a reduction determines them.
    rows: Option<AxisSet>,
    /// The members that compute values.
    written: FxHashMap<Value, usize>,
    /// These values and their views.
    touched: FxHashSet<Value>,
    /// The tensors of which members read all elements in order, from an element.
    full: FxHashSet<(Value, usize)>,
    n_inputs: usize,
    /// Whether members share such a tensor.
    shares: bool,
}

struct RowFinder<'a> {
    graph: &'a Graph,
    target: &'a dyn FusionTarget,
    limits: RowLimits,
    readers: ValueReaders,
    fusion: &'a Fusion,
    /// Whether a kernel computes the new value of a variable, and nothing else needs it earlier.
    is_update: Vec<bool>,
    found: Vec<FoundKernel>,
    last_kernel: usize,
    group: Group,
}

impl RowFinder<'_> {
    fn shape(&self, value: Value) -> Option<Vec<usize>> {
        self.graph.ty(value).element().shape.known()
    }

    fn is_view(&self, node: Node) -> bool {
        let data = self.graph.node(node);
        let Op::Prim(op, _) = data.op else { return false };
        matches!(op.class, OpClass::View(_)) && data.operands.iter().chain(&data.results).all(|&v| self.fits(v))
    }

    fn fits(&self, value: Value) -> bool {
        let ty = self.graph.ty(value).element();
        ty.dtype.is_plain() && ty.shape.size().is_some() && ty.shape.rank() <= AxisSet::MAX_AXES
    }

    /// Finds the kernels whose results variables are assigned and that only such kernels read.
    fn find_updates(&mut self) {
        let graph = self.graph;
        let nodes = &graph.region(graph.root()).nodes;
        if !nodes.iter().any(|&node| matches!(graph.node(node).op, Op::Assign(_))) {
            return;
        }
        for &node in nodes.iter().rev() {
            let NodeRole::Kernel(KernelId(k)) = self.fusion.role(node) else { continue };
            let kernel = self.fusion.kernel(KernelId(k));
            let is_map = |stage: &KernelStage| matches!(stage.work, StageWork::Map | StageWork::Draw);
            if !kernel.stages.iter().all(is_map) || self.can_fail(kernel) {
                continue;
            }
            let mut values = vec![graph.node(node).results[0]];
            let (mut is_assigned, mut only_updates) = (false, true);
            while let Some(value) = values.pop() {
                only_updates &= !self.readers.yielded[value.index()];
                for &user in &self.readers.nodes[value.index()] {
                    match (&graph.node(user).op, self.fusion.role(user)) {
                        (Op::Assign(_), _) => is_assigned = true,
                        (_, NodeRole::Kernel(KernelId(k))) => only_updates &= self.is_update[k as usize],
                        _ if self.is_view(user) => values.push(graph.node(user).results[0]),
                        _ => only_updates = false,
                    }
                }
            }
            self.is_update[k as usize] = is_assigned && only_updates;
        }
    }

    fn can_fail(&self, kernel: &FusedKernel) -> bool {
        kernel.stages.iter().any(|stage| {
            let data = self.graph.node(stage.node);
            let Op::Prim(op, _) = data.op else { return true };
            stage.work == StageWork::Map && op.can_fail(self.graph.ty(data.results[0]).element().dtype)
        })
    }

    fn region(&mut self, region: Region) {
        let graph = self.graph;
        let around = std::mem::take(&mut self.group);
        for &node in &graph.region(region).nodes {
            let data = graph.node(node);
            match self.fusion.role(node) {
                NodeRole::Inside | NodeRole::Check => continue,
                NodeRole::Kernel(KernelId(k)) => {
                    self.last_kernel = k as usize;
                    let kernel = self.fusion.kernel(KernelId(k));
                    match self.kernel_member(node, k as usize, kernel) {
                        Some(member) => self.add(member),
                        None => {
                            if self.group.is_read_by(graph, kernel) {
                                self.close();
                            }
                            self.alone(node, Some(k as usize), kernel.clone());
                        }
                    }
                }
                NodeRole::Alone if !data.regions.is_empty() => {
                    self.close();
                    graph.running_regions(node).for_each(|region| self.region(region));
                }
                NodeRole::Alone => match self.node_member(node, data) {
                    Some(member) => self.add(member),
                    None if !data.operands.iter().any(|v| self.group.touched.contains(v)) => {}
                    None if self.is_view(node) => {
                        self.group.touched.extend(&data.results);
                        self.group.views.push((self.group.members.len(), node));
                    }
                    None => self.close(),
                },
            }
        }
        self.close();
        self.group = around;
    }

    fn kernel_member(&self, node: Node, k: usize, kernel: &FusedKernel) -> Option<PartKernel> {
        if self.is_update[k] || kernel.product().is_some() || self.can_fail(kernel) {
            return None;
        }
        let last = kernel.stages[kernel.stages.len() - 1].work;
        let role = match last {
            StageWork::Map | StageWork::Draw => PartRole::Elements,
            StageWork::Reduce { over, .. } => self.reduction(&kernel.axes, over)?,
            StageWork::Product | StageWork::Rowwise { .. } => return None,
        };
        self.member(node, Some(k), kernel.clone(), role)
    }

    /// Returns a node in no kernel as a part.
    fn node_member(&self, node: Node, data: &NodeData) -> Option<PartKernel> {
        let Op::Prim(op, attrs) = &data.op else { return None };
        let is_row = match op.class {
            // A user's operation may have other operands and attributes.
            OpClass::Reduce(_) | OpClass::Rowwise(_) => !op.is_registered(),
            _ => false,
        };
        if !is_row || !data.operands.iter().chain(&data.results).all(|&v| self.fits(v)) {
            return None;
        }
        if !self.target.computes(self.graph, node) {
            return None;
        }
        let shape = self.shape(data.operands[0])?;
        let all = AxisSet::first(shape.len());
        let (role, work, along) = match op.class {
            OpClass::Reduce(by) => {
                let over: AxisSet = reduced_axes(self.graph, data)?.into_iter().collect();
                (self.reduction(&shape, over)?, StageWork::Reduce { over, by }, all.without(over))
            }
            _ => {
                let axis = Along::of(attrs).axis;
                let over: AxisSet = [axis].into_iter().collect();
                let is_last = shape[axis + 1..].iter().all(|&n| n == 1);
                let is_reduced =
                    self.shape(data.results[0])?.iter().product::<usize>() != shape.iter().product::<usize>();
                let along = if is_reduced { all.without(over) } else { all };
                let role = is_last.then_some(PartRole::PerRow(all.without(over)))?;
                (role, StageWork::Rowwise { over }, along)
            }
        };
        let mut kernel = FusedKernel { axes: shape, ..FusedKernel::default() };
        let map = (0..kernel.axes.len()).map(Coord::axis).collect();
        let (value, map) = through_views(self.graph, data.operands[0], map);
        kernel.inputs.push(KernelInput::at(value, map));
        kernel.stages.push(KernelStage { node, work, sources: vec![StageSource::Input(0)], along });
        kernel.outputs.push(0);
        self.member(node, None, kernel, role)
    }

    fn reduction(&self, shape: &[usize], over: AxisSet) -> Option<PartRole> {
        let rows = self.target.row_axes(shape, over)?;
        let is_columns = !rows.is_empty() && rows.is_subset(over);
        Some(if is_columns { PartRole::Columns(rows) } else { PartRole::PerRow(rows) })
    }

    fn member(&self, node: Node, id: Option<usize>, kernel: FusedKernel, role: PartRole) -> Option<PartKernel> {
        let extent = |axes: AxisSet| axes.iter().map(|axis| kernel.axes[axis]).product::<usize>();
        let all = AxisSet::first(kernel.axes.len());
        let is_tensor = self.graph.ty(self.graph.node(node).results[0]).element().rank() > 0;
        let fits = match role.rows() {
            None => extent(all) > 1,
            Some(rows) => extent(rows) > 0 && (2..=self.limits.width).contains(&extent(all.without(rows))),
        };
        let reads = vec![None; kernel.inputs.len()];
        (fits && is_tensor).then_some(PartKernel { node, id, kernel, role, axes: Vec::new(), reads })
    }

    /// Adds a member to the group, or ends the group and begins another one.
    fn add(&mut self, member: PartKernel) {
        let Some(member) = self.group.add(self.graph, &self.limits, member) else { return };
        if self.group.is_read_by(self.graph, &member.kernel) || self.group.rows.is_none() {
            self.close();
            let left = self.group.add(self.graph, &self.limits, member);
            debug_assert!(left.is_none(), "the first one fits");
        } else {
            self.leave(member);
        }
    }

    /// Keeps a member as it was.
    fn leave(&mut self, member: PartKernel) {
        if member.id.is_some() {
            self.alone(member.node, member.id, member.kernel);
        }
    }

    fn alone(&mut self, node: Node, id: Option<usize>, kernel: FusedKernel) {
        let order = (id.unwrap_or(self.last_kernel), 0);
        self.found.push(FoundKernel { order, node, kernel, inside: Vec::new(), parts: None });
    }

    /// Ends the group and joins its kernels if that pays off.
    fn close(&mut self) {
        let mut group = std::mem::take(&mut self.group);
        let mut left = Vec::new();
        while group.rows.is_some() && group.shares && group.members.len() > 1 {
            let (kernel, columns) = group.kernel(self.graph, &self.readers);
            let n_outputs = kernel.outputs.len() + columns * (self.limits.columns - 1);
            if n_outputs <= self.limits.outputs && self.target.accepts(self.graph, &kernel) {
                let kernel = self.joined(group, kernel);
                self.found.push(kernel);
                left.reverse();
                left.into_iter().for_each(|member| self.leave(member));
                return;
            }
            // Parts at the end may stay separate.
            left.extend(group.members.pop());
        }
        left.reverse();
        group.members.into_iter().chain(left).for_each(|member| self.leave(member));
    }

    fn joined(&self, group: Group, kernel: FusedKernel) -> FoundKernel {
        let n_members = group.members.len();
        let node = group.members[n_members - 1].node;
        let of_last = group.members.iter().rev().find_map(|member| member.id);
        let order = (of_last.unwrap_or(self.last_kernel), self.found.len() + 1);
        let between: Vec<(usize, Node)> = group.between().collect();
        let is_needed =
            |view: &Node| group.is_used_elsewhere(self.graph, &self.readers, self.graph.node(*view).results[0]);
        let views = between.iter().map(|&(_, view)| view).filter(is_needed).collect();
        let mut inside: Vec<Node> = between.iter().map(|&(_, view)| view).collect();
        let mut parts = Vec::with_capacity(n_members + between.len());
        let mut between = between.into_iter().peekable();
        for (i, member) in group.members.into_iter().enumerate() {
            while let Some((_, view)) = between.next_if(|&(at, _)| at == i) {
                parts.push(RowPart::Node(view));
            }
            inside.push(member.node);
            parts.push(match member.id {
                Some(_) => RowPart::Kernel(member.kernel),
                None => RowPart::Node(member.node),
            });
        }
        FoundKernel { order, node, kernel, inside, parts: Some(RowParts { parts, views }) }
    }
}

/// Returns the axes whose extent is not 1.
fn long_axes(shape: &[usize]) -> impl Iterator<Item = usize> {
    (0..shape.len()).filter(|&axis| shape[axis] != 1)
}

fn long_extents(shape: &[usize]) -> Vec<usize> {
    long_axes(shape).map(|axis| shape[axis]).collect()
}

/// Returns the same set of the axes of a joined kernel.
fn joined_axes(axes: &[Option<usize>], set: AxisSet) -> AxisSet {
    set.iter().filter_map(|axis| axes[axis]).collect()
}

/// Returns the operand of a reshape.
fn reshaped(graph: &Graph, value: Value) -> Option<Value> {
    let data = graph.node(graph.producer(value)?);
    let Op::Prim(op, _) = data.op else { return None };
    matches!(op.class, OpClass::View(view) if view.map.is_none()).then(|| data.operands[0])
}

impl Group {
    fn all(&self) -> AxisSet {
        AxisSet::first(self.space.len())
    }

    /// Returns whether a kernel uses a value of the group or a view of one.
    fn is_read_by(&self, graph: &Graph, kernel: &FusedKernel) -> bool {
        !self.touched.is_empty() && read_by(graph, kernel).any(|v| self.touched.contains(&v))
    }

    /// Returns the axes of the joined kernel along which the value of a member varies.
    fn along(&self, member: &PartKernel) -> AxisSet {
        joined_axes(&member.axes, member.kernel.stages[member.kernel.stages.len() - 1].along)
    }

    /// Returns the axes of the joined kernel for the axes of another member, or `None` if it does
    /// not fit.
    fn axes_of(&self, member: &PartKernel) -> Option<Vec<Option<usize>>> {
        let shape = &member.kernel.axes;
        let extents = long_extents(shape);
        let onto = |set: AxisSet| {
            let mut joined = set.iter();
            shape.iter().map(|&n| if n == 1 { None } else { joined.next() }).collect::<Vec<Option<usize>>>()
        };
        if self.members.is_empty() || extents == self.space {
            let axes = onto(AxisSet::first(extents.len()));
            let rows = member.role.rows().map(|rows| joined_axes(&axes, rows));
            return (self.rows.is_none() || rows.is_none() || rows == self.rows).then_some(axes);
        }
        let rows = self.rows.filter(|_| member.role == PartRole::Elements)?;
        let of_rows: Vec<usize> = rows.iter().map(|axis| self.space[axis]).collect();
        (extents == of_rows).then(|| onto(rows))
    }

    /// Returns whether a member may read an input, the member that computes the input, and whether
    /// the input is a tensor of all elements that other members read or compute.
    fn may_read(&self, graph: &Graph, member: &PartKernel, input: &KernelInput) -> (bool, Option<usize>, bool) {
        let is_touched = self.touched.contains(&input.value);
        let Some(map) = &input.map else { return (!is_touched, None, false) };
        if !is_touched {
            let shares = whole(graph, &member.kernel.axes, input.value, map).is_some_and(|t| self.full.contains(&t));
            return (true, None, shares);
        }
        let (mut value, mut map) = (input.value, map.clone());
        let shape = |v: Value| graph.ty(v).element().shape.known();
        while !self.written.contains_key(&value) {
            let refused = (false, None, false);
            let Some(operand) = reshaped(graph, value) else { return refused };
            let (Some(to), Some(from)) = (shape(value), shape(operand)) else { return refused };
            if long_extents(&to) != long_extents(&from) {
                return refused;
            }
            let mut coords = long_axes(&to).map(|axis| map[axis]);
            let of_operand = from.iter().map(|&n| if n == 1 { Coord::ZERO } else { coords.next().expect("as long") });
            (value, map) = through_views(graph, operand, of_operand.collect());
        }
        let writer = &self.members[self.written[&value]];
        let along = self.along(writer);
        let shape = shape(value).expect("the shapes are known");
        let is_same = long_axes(&shape).zip(along.iter()).all(|(axis, joined)| {
            let Coord { offset, term } = map[axis];
            offset == 0 && term.is_some_and(|(axis, scale)| scale == 1 && member.axes[axis] == Some(joined))
        });
        let may = is_same && !matches!(writer.role, PartRole::Columns(_));
        (may, Some(self.written[&value]), along == self.all())
    }

    /// Adds a member. Returns it if it does not belong to the group.
    fn add(&mut self, graph: &Graph, limits: &RowLimits, mut member: PartKernel) -> Option<PartKernel> {
        let Some(axes) = self.axes_of(&member) else { return Some(member) };
        member.axes = axes;
        let reads: Vec<(bool, Option<usize>, bool)> =
            member.kernel.inputs.iter().map(|input| self.may_read(graph, &member, input)).collect();
        let shares = reads.iter().any(|&(_, _, shares)| shares);
        let uses = reads.iter().any(|&(_, writer, _)| writer.is_some());
        let is_reduction = member.role != PartRole::Elements;
        let n_inputs = self.n_inputs + member.kernel.inputs.len();
        let has_room = self.members.len() < limits.parts && n_inputs <= limits.inputs;
        let belongs = self.members.is_empty() || uses || shares || is_reduction;
        if !has_room || !belongs || !reads.iter().all(|&(may, ..)| may) {
            return Some(member);
        }
        member.reads = reads.into_iter().map(|(_, writer, _)| writer).collect();
        if self.members.is_empty() {
            self.space = long_extents(&member.kernel.axes);
        }
        self.rows = self.rows.or(member.role.rows().map(|rows| joined_axes(&member.axes, rows)));
        self.shares |= shares;
        self.n_inputs = n_inputs;
        if long_extents(&member.kernel.axes) == self.space {
            for (input, _) in member.kernel.inputs.iter().zip(&member.reads).filter(|(_, writer)| writer.is_none()) {
                let map = input.map.as_ref();
                self.full.extend(map.and_then(|map| whole(graph, &member.kernel.axes, input.value, map)));
            }
        }
        let value = graph.node(member.node).results[0];
        self.written.insert(value, self.members.len());
        self.touched.insert(value);
        self.members.push(member);
        None
    }

    /// Returns the joined kernel, and the number of its outputs that are columns.
    fn kernel(&self, graph: &Graph, readers: &ValueReaders) -> (FusedKernel, usize) {
        let mut kernel = FusedKernel { axes: self.space.clone(), ..FusedKernel::default() };
        // The last stage of each member.
        let mut last: Vec<usize> = Vec::with_capacity(self.members.len());
        for member in &self.members {
            let inputs: Vec<StageSource> = member
                .kernel
                .inputs
                .iter()
                .zip(&member.reads)
                .map(|(input, writer)| match writer {
                    Some(writer) => StageSource::Stage(last[*writer]),
                    None => {
                        let joined = |coord: &Coord| {
                            let term = coord.term.and_then(|(axis, scale)| Some((member.axes[axis]?, scale)));
                            Coord { term, ..*coord }
                        };
                        let map = input.map.as_ref().map(|map| map.iter().map(joined).collect());
                        kernel.add_input(KernelInput { map, ..input.clone() })
                    }
                })
                .collect();
            let mut stages: Vec<usize> = Vec::with_capacity(member.kernel.stages.len());
            for stage in &member.kernel.stages {
                let known = kernel.stages.iter().position(|other| other.node == stage.node);
                stages.push(known.unwrap_or_else(|| {
                    let source = |source: &StageSource| match *source {
                        StageSource::Input(i) => inputs[i],
                        StageSource::Stage(i) => StageSource::Stage(stages[i]),
                    };
                    let joined = |set: AxisSet| joined_axes(&member.axes, set);
                    let work = match stage.work {
                        StageWork::Reduce { over, by } => StageWork::Reduce { over: joined(over), by },
                        StageWork::Rowwise { over } => StageWork::Rowwise { over: joined(over) },
                        work => work,
                    };
                    kernel.stages.push(KernelStage {
                        node: stage.node,
                        work,
                        sources: stage.sources.iter().map(source).collect(),
                        along: joined(stage.along),
                    });
                    kernel.stages.len() - 1
                }));
            }
            last.push(stages[stages.len() - 1]);
        }
        let is_read = |stage: usize| kernel.stages.iter().any(|s| s.sources.contains(&StageSource::Stage(stage)));
        let mut columns = 0;
        for (member, &stage) in self.members.iter().zip(&last) {
            if self.is_used_elsewhere(graph, readers, graph.node(member.node).results[0]) || !is_read(stage) {
                kernel.outputs.push(stage);
                columns += usize::from(matches!(member.role, PartRole::Columns(_)));
            }
        }
        (kernel, columns)
    }

    /// Returns the views between the members.
    fn between(&self) -> impl DoubleEndedIterator<Item = (usize, Node)> {
        // Views that come after the last member run by themselves.
        self.views.iter().copied().filter(|&(at, _)| at < self.members.len())
    }

    /// Returns whether a node outside of the joined kernel uses a value or a view of it.
    fn is_used_elsewhere(&self, graph: &Graph, readers: &ValueReaders, value: Value) -> bool {
        let is_inside = |&user: &Node| {
            let is_view = self.between().any(|(_, view)| view == user);
            self.members.iter().any(|member| member.node == user)
                || is_view && !self.is_used_elsewhere(graph, readers, graph.node(user).results[0])
        };
        readers.yielded[value.index()] || !readers.nodes[value.index()].iter().all(is_inside)
    }
}

/// Returns the tensor of which all elements of an index space are read in order, and the first
/// element that is read, if that is so.
fn whole(graph: &Graph, axes: &[usize], mut value: Value, map: &[Coord]) -> Option<(Value, usize)> {
    let shape = graph.ty(value).element().shape.known()?;
    let mut strides = vec![0; axes.len()];
    let (mut first, mut stride) = (0, 1);
    for (coord, &n) in map.iter().zip(&shape).rev() {
        first += stride * coord.offset;
        if let Some((axis, scale)) = coord.term {
            strides[axis] += scale * stride as isize;
        }
        stride *= n;
    }
    let mut expected = 1;
    for (&n, &stride) in axes.iter().zip(&strides).rev().filter(|(n, _)| **n != 1) {
        if stride != expected {
            return None;
        }
        expected *= n as isize;
    }
    while let Some(operand) = reshaped(graph, value) {
        value = operand;
    }
    Some((value, first))
}
