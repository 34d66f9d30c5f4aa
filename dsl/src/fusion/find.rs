//! Finding the kernels of a graph, in one traversal in program order.
//!
//! An elementwise operation whose only user is an elementwise operation of the same shape, or a
//! reduction, waits in a kernel that its user continues. A cheap operation with several such users
//! is computed by each of them. A kernel ends at a reduction, at an operation that can fail, and
//! where a value is needed in memory: at operations that are not stages, regions, yields and
//! reshapes.
//!
//! A product whose only user is elementwise waits, too, so that the operations become its epilogue.
//! Products that contribute to the new value of a variable do not wait: that value is computed at
//! the end of the step, in place, and an elementwise kernel can do that. Operands are never
//! computed inside a product. A separate pass over an operand is cheap relative to the `2 n`
//! operations per element of the product, and gradients usually read the operand again. The only
//! exceptions are conversions of 16-bit floats, if the device wants them.
//!
//! Random numbers are drawn inside the kernel that is their only user.
//!
//! The device is shown each kernel that is found, and one that it does not accept is split.
//!
//! Afterwards [`rows`] joins kernels that compute the same rows, and [`lookups`] lets kernels read
//! tables through indices.

use super::access::{through_views, varies_along};
use super::{
    AxisSet, Coord, FusedKernel, Fusion, KernelId, KernelInput, KernelStage, NodeRole, RowLimits, StageSource,
    StageWork, lookups, row_axes, rows,
};
use crate::ir::{Graph, Node, NodeData, Op, Region, Users, Value, users};
use crate::ops::{OpClass, Prim, attributes, prim};
use crate::{DType, TensorType};
use rustc_hash::FxHashMap;

/// The answers of a device to what it computes and fuses.
pub trait FusionTarget {
    /// Returns whether the device computes a node, whose shapes are known, as a stage of a kernel.
    fn computes(&self, graph: &Graph, node: Node) -> bool;

    /// Returns whether kernels may have several stages.
    fn fuses(&self) -> bool {
        true
    }

    /// Returns the largest number of tensors that the elementwise stages of a kernel read. The
    /// result of a product counts as one.
    fn max_inputs(&self) -> usize;

    /// Returns the largest number of elementwise stages of a kernel.
    fn max_operations(&self) -> usize;

    /// Returns whether a reduction over axes of a shape can be a stage.
    fn reduces(&self, shape: &[usize], over: AxisSet) -> bool;

    /// Returns whether the stages of a kernel after its product should be the epilogue of the
    /// product.
    fn fuses_epilogue(&self, graph: &Graph, kernel: &FusedKernel, is_in_loop: bool) -> bool;

    /// Returns whether the sum of a batch of matmuls over that batch can be one kernel.
    fn sums_batches(&self) -> bool;

    /// Returns whether products read operands of 16-bit floats, and convert them to `f32`.
    fn converts_operands(&self) -> bool {
        false
    }

    /// Returns whether the device computes a kernel of several stages, or one that reads at
    /// indices that are data, as it is.
    ///
    /// A kernel that is not accepted is split: its last stage reads in memory what it needs of the
    /// others. Of a kernel of rows, the last part is left out. The device is asked again for what
    /// remains, unless that is one stage. Instead of reading at indices, a kernel reads the result
    /// of the lookup in memory.
    fn accepts(&self, _graph: &Graph, _kernel: &FusedKernel) -> bool {
        true
    }

    /// Returns the limits of kernels of rows, or `None` if the device has none.
    fn rows(&self) -> Option<RowLimits> {
        None
    }

    /// Returns the row axes of a reduction in a kernel of rows: either those that it keeps, or
    /// those that it reduces.
    fn row_axes(&self, shape: &[usize], over: AxisSet) -> Option<AxisSet> {
        row_axes(shape, over)
    }
}

/// The target for which each kernel is one elementwise operation.
#[derive(Clone, Copy, Debug)]
pub struct FuseNothing;

impl FusionTarget for FuseNothing {
    fn computes(&self, graph: &Graph, node: Node) -> bool {
        matches!(&graph.node(node).op, Op::Prim(op, _) if op.is_elementwise())
    }

    fn fuses(&self) -> bool {
        false
    }

    fn max_inputs(&self) -> usize {
        usize::MAX
    }

    fn max_operations(&self) -> usize {
        1
    }

    fn reduces(&self, _shape: &[usize], _over: AxisSet) -> bool {
        false
    }

    fn fuses_epilogue(&self, _graph: &Graph, _kernel: &FusedKernel, _is_in_loop: bool) -> bool {
        false
    }

    fn sums_batches(&self) -> bool {
        false
    }
}

/// The target that computes every stage and never declines a fusion.
#[derive(Clone, Copy, Debug)]
pub struct FuseEverything;

impl FusionTarget for FuseEverything {
    fn computes(&self, graph: &Graph, node: Node) -> bool {
        let Op::Prim(op, _) = graph.node(node).op else { return false };
        let is_stage =
            |class| matches!(class, OpClass::Scalar(_) | OpClass::Reduce(_) | OpClass::Random(_) | OpClass::Rowwise(_));
        op.is_product() || is_stage(op.class)
    }

    fn converts_operands(&self) -> bool {
        true
    }

    fn rows(&self) -> Option<RowLimits> {
        let all = usize::MAX;
        Some(RowLimits { width: all, parts: all, inputs: all, outputs: all, columns: 1 })
    }

    fn max_inputs(&self) -> usize {
        usize::MAX
    }

    fn max_operations(&self) -> usize {
        usize::MAX
    }

    fn reduces(&self, _shape: &[usize], _over: AxisSet) -> bool {
        true
    }

    fn fuses_epilogue(&self, _graph: &Graph, _kernel: &FusedKernel, _is_in_loop: bool) -> bool {
        true
    }

    fn sums_batches(&self) -> bool {
        true
    }
}

/// The target that computes every stage, and declines the kernels that a function selects, of those
/// that [`FusionTarget::accepts`] is asked about.
#[derive(Clone, Copy, Debug)]
pub struct FuseUnless<F>(pub F);

impl<F: Fn(&FusedKernel) -> bool> FusionTarget for FuseUnless<F> {
    fn computes(&self, graph: &Graph, node: Node) -> bool {
        FuseEverything.computes(graph, node)
    }

    fn max_inputs(&self) -> usize {
        FuseEverything.max_inputs()
    }

    fn max_operations(&self) -> usize {
        FuseEverything.max_operations()
    }

    fn reduces(&self, shape: &[usize], over: AxisSet) -> bool {
        FuseEverything.reduces(shape, over)
    }

    fn fuses_epilogue(&self, graph: &Graph, kernel: &FusedKernel, is_in_loop: bool) -> bool {
        FuseEverything.fuses_epilogue(graph, kernel, is_in_loop)
    }

    fn sums_batches(&self) -> bool {
        FuseEverything.sums_batches()
    }

    fn converts_operands(&self) -> bool {
        FuseEverything.converts_operands()
    }

    fn rows(&self) -> Option<RowLimits> {
        FuseEverything.rows()
    }

    fn accepts(&self, _graph: &Graph, kernel: &FusedKernel) -> bool {
        !self.0(kernel)
    }
}

impl Fusion {
    /// Groups the nodes of a graph into kernels for a device.
    pub fn find(graph: &Graph, target: &dyn FusionTarget) -> Fusion {
        let mut finder = Finder {
            graph,
            target,
            users: users(graph),
            repeatable: Vec::new(),
            converted: vec![None; graph.n_values()],
            assigned_later: assigned_later(graph),
            waiting: FxHashMap::default(),
            loops: 0,
            fusion: Fusion { roles: vec![NodeRole::Alone; graph.n_nodes()], ..Fusion::default() },
        };
        if target.fuses() {
            finder.repeatable = finder.repeatable();
            if target.converts_operands() {
                finder.converted = finder.converted();
            }
        }
        finder.region(graph.root());
        debug_assert!(
            finder.waiting.keys().all(|v| finder.users[v.index()] == Users::Several),
            "an only user takes the value or ends its kernel"
        );
        if !target.fuses() {
            return finder.fusion;
        }
        let mut fusion = match target.rows() {
            Some(limits) => rows::join(graph, target, limits, finder.fusion),
            None => finder.fusion,
        };
        lookups::fold(graph, target, &mut fusion);
        fusion
    }
}

/// Returns for each value whether a variable is assigned it, or the result of elementwise
/// operations on it.
fn assigned_later(graph: &Graph) -> Vec<bool> {
    let mut assigned = vec![false; graph.n_values()];
    for &node in graph.region(graph.root()).nodes.iter().rev() {
        let data = graph.node(node);
        let is_part = matches!(&data.op, Op::Prim(op, _) if op.is_elementwise() && assigned[data.results[0].index()]);
        if is_part || matches!(data.op, Op::Assign(_)) {
            data.operands.iter().for_each(|v| assigned[v.index()] = true);
        }
    }
    assigned
}

/// Returns the axes that a reduction of a known shape reduces, or `None` for other operations and
/// unknown shapes.
pub fn reduced_axes(graph: &Graph, node: &NodeData) -> Option<Vec<usize>> {
    let Op::Prim(op, attrs) = &node.op else { return None };
    op.reduces_by()?;
    if op != prim::SUM_LIKE {
        return Some(attributes::Reduced::of(attrs).axes);
    }
    let shape = |v: Value| graph.ty(v).element().shape.known();
    let (from, to) = (shape(node.operands[0])?, shape(node.results[0])?);
    let missing = from.len() - to.len();
    Some((0..from.len()).filter(|&a| a < missing || to[a - missing] != from[a]).collect())
}

struct Finder<'a> {
    graph: &'a Graph,
    target: &'a dyn FusionTarget,
    users: Vec<Users>,
    /// Whether a value has several users, all of which can compute it while reading it.
    repeatable: Vec<bool>,
    /// For each conversion to `f32` that only products use, the tensor of 16-bit floats that they
    /// read instead.
    converted: Vec<Option<Value>>,
    /// Whether a variable is assigned the value, or the result of elementwise operations on it.
    assigned_later: Vec<bool>,
    /// The kernels that end in a value and that the users of the value may continue.
    waiting: FxHashMap<Value, FusedKernel>,
    /// The number of loops around the region.
    loops: usize,
    fusion: Fusion,
}

impl Finder<'_> {
    fn shape(&self, value: Value) -> Option<Vec<usize>> {
        self.graph.ty(value).element().shape.known()
    }

    /// Returns the operation of a node that can be a stage. Of a user's operations, only
    /// elementwise ones can be: others may have other operands and attributes than those of
    /// their class.
    fn stage_op(&self, node: Node) -> Option<Prim> {
        let data = self.graph.node(node);
        let Op::Prim(op, _) = data.op else { return None };
        if op.is_registered() && !matches!(op.class, OpClass::Scalar(_)) {
            return None;
        }
        let fits = |&v: &Value| {
            let TensorType { dtype, shape } = self.graph.ty(v).element();
            dtype.is_plain() && shape.size().is_some() && shape.rank() <= AxisSet::MAX_AXES
        };
        let fit = data.operands.iter().chain(&data.results).all(fits);
        (fit && !data.operands.is_empty() && self.target.computes(self.graph, node)).then_some(op)
    }

    /// Returns whether a node can compute an elementwise operand of a shape while reading it.
    fn takes(&self, user: Node, value: Value, shape: &[usize]) -> bool {
        let Some(op) = self.stage_op(user) else { return false };
        let data = self.graph.node(user);
        match op.class {
            OpClass::Scalar(_) => !self.can_fail(data, op) && self.shape(data.results[0]).as_deref() == Some(shape),
            OpClass::Reduce(_) => {
                let over = reduced_axes(self.graph, data).map(|axes| axes.into_iter().collect());
                data.operands[0] == value && over.is_some_and(|over| self.target.reduces(shape, over))
            }
            _ => false,
        }
    }

    fn can_fail(&self, data: &NodeData, op: Prim) -> bool {
        op.can_fail(self.graph.ty(data.results[0]).element().dtype)
    }

    fn repeatable(&self) -> Vec<bool> {
        let graph = self.graph;
        let mut repeatable: Vec<bool> = self.users.iter().map(|u| *u == Users::Several).collect();
        graph.visit_nodes(graph.root(), &mut |node| {
            let data = graph.node(node);
            for &v in &data.operands {
                if repeatable[v.index()] {
                    let is_beside = graph.producer(v).is_some_and(|p| {
                        let producer = graph.node(p);
                        let is_elementwise = matches!(&producer.op, Op::Prim(op, _) if op.is_elementwise());
                        is_elementwise && producer.region == data.region
                    });
                    let shape = if is_beside { self.shape(v) } else { None };
                    repeatable[v.index()] = shape.is_some_and(|shape| self.takes(node, v, &shape));
                }
            }
            for &region in &data.regions {
                graph.region(region).yields.iter().for_each(|v| repeatable[v.index()] = false);
            }
        });
        graph.region(graph.root()).yields.iter().for_each(|v| repeatable[v.index()] = false);
        repeatable
    }

    fn converted(&self) -> Vec<Option<Value>> {
        let graph = self.graph;
        // Whether products use a value, and whether anything else does.
        let [mut by_products, mut otherwise] = [0, 1].map(|_| vec![false; graph.n_values()]);
        graph.visit_nodes(graph.root(), &mut |node| {
            let is_product = self.stage_op(node).is_some_and(Prim::is_product);
            let used = if is_product { &mut by_products } else { &mut otherwise };
            graph.node(node).operands.iter().for_each(|v| used[v.index()] = true);
            for &region in &graph.node(node).regions {
                graph.region(region).yields.iter().for_each(|v| otherwise[v.index()] = true);
            }
        });
        graph.region(graph.root()).yields.iter().for_each(|v| otherwise[v.index()] = true);
        let half = |i: usize| {
            let node = graph.producer(Value::from_index(i)).filter(|_| by_products[i] && !otherwise[i])?;
            let data = graph.node(node);
            let [from, to] = [data.operands.first()?, &data.results[0]].map(|&v| graph.ty(v).element().dtype);
            let is_conversion = self.stage_op(node) == Some(prim::CAST) && from.is_half() && to == DType::F32;
            is_conversion.then(|| data.operands[0])
        };
        (0..graph.n_values()).map(half).collect()
    }

    fn region(&mut self, region: Region) {
        let graph = self.graph;
        graph.region(region).nodes.iter().for_each(|&node| self.node(node));
    }

    fn node(&mut self, node: Node) {
        let data = self.graph.node(node);
        if let Some(op) = self.stage_op(node) {
            match op.class {
                OpClass::Scalar(_) if self.converted[data.results[0].index()].is_some() => {
                    return self.fusion.roles[node.index()] = NodeRole::Inside;
                }
                OpClass::Scalar(_) => return self.elementwise(node, data, op),
                OpClass::Reduce(_) if self.reduction(node, data) => return,
                OpClass::Contract(_) => return self.product(node, data),
                OpClass::Random(_) if self.draw(node, data) => return,
                _ => {}
            }
        }
        data.operands.iter().for_each(|&v| self.end(v));
        let is_loop = self.graph.as_while(node).is_some();
        self.loops += usize::from(is_loop);
        self.graph.running_regions(node).for_each(|region| self.region(region));
        self.loops -= usize::from(is_loop);
    }

    fn elementwise(&mut self, node: Node, data: &NodeData, op: Prim) {
        let value = data.results[0];
        let shape = self.shape(value).expect("the shapes are known");
        let can_fail = self.can_fail(data, op);
        let mut kernel = FusedKernel { axes: shape.clone(), ..FusedKernel::default() };
        let mut sources: Vec<StageSource> = Vec::new();
        for (i, &v) in data.operands.iter().enumerate() {
            if let Some(j) = data.operands[..i].iter().position(|&w| w == v) {
                sources.push(sources[j]);
                continue;
            }
            let left = data.operands.len() - i - 1;
            let fits = |e: &FusedKernel| !can_fail && self.has_room(&kernel, e, left);
            // A kernel has one product, so earlier ones are computed by themselves.
            let product = |v: &Value| self.waiting.get(v).and_then(FusedKernel::product);
            let mut others = data.operands.iter().skip(i + 1).filter(|w| **w != v);
            let is_earlier = product(&v).is_some() && others.any(|w| product(w).is_some());
            let is_product = self.waiting.get(&v).is_some_and(|e| e.stages.len() == 1);
            let source = if self.waiting.get(&v).is_some_and(fits) && !(is_earlier && is_product) {
                let mut before = self.take(v);
                if is_earlier {
                    self.detach_product(&mut before);
                }
                kernel.append(before, &mut sources)
            } else {
                self.read(&mut kernel, v)
            };
            sources.push(source);
        }
        let along = AxisSet::first(shape.len());
        kernel.stages.push(KernelStage { node, work: StageWork::Map, sources, along });
        let waits = match self.users[value.index()] {
            Users::Only(user) => self.takes(user, value, &shape),
            Users::Several => {
                self.repeatable.get(value.index()) == Some(&true)
                    && kernel.product().is_none()
                    && self.is_cheap(&kernel)
            }
            Users::None => false,
        };
        if waits && !can_fail && self.target.fuses() {
            self.waiting.insert(value, kernel);
        } else {
            self.close(kernel);
        }
    }

    /// Returns whether a kernel can compute another one, read `left` more inputs, and compute one
    /// more operation.
    fn has_room(&self, kernel: &FusedKernel, other: &FusedKernel, left: usize) -> bool {
        let [a, b] = [kernel, other].map(FusedKernel::epilogue_sizes);
        a[0] + b[0] + left <= self.target.max_inputs() && a[1] + b[1] < self.target.max_operations()
    }

    /// Returns whether recomputing a kernel costs no more than reading its result: it has a few
    /// cheap operations on one tensor of its size and on small tensors.
    fn is_cheap(&self, kernel: &FusedKernel) -> bool {
        let size: usize = kernel.axes.iter().product();
        let is_large = |input: &&KernelInput| {
            let axes = input.map.as_deref().map(varies_along).unwrap_or_default();
            axes.iter().map(|axis| kernel.axes[axis]).product::<usize>() > size / 8
        };
        let is_simple =
            |stage: &KernelStage| matches!(&self.graph.node(stage.node).op, Op::Prim(op, _) if op.is_simple());
        kernel.stages.len() <= 2
            && kernel.stages.iter().all(is_simple)
            && kernel.inputs.iter().filter(is_large).count() <= 1
    }

    /// Adds a reduction, unless the device has no stage for it.
    fn reduction(&mut self, node: Node, data: &NodeData) -> bool {
        let v = data.operands[0];
        let shape = self.shape(v).expect("the shapes are known");
        let over: AxisSet = reduced_axes(self.graph, data).into_iter().flatten().collect();
        if !self.target.reduces(&shape, over) {
            return false;
        }
        data.operands[1..].iter().for_each(|&v| self.end(v));
        let OpClass::Reduce(by) = self.prim_of(data).class else { panic!("a reduction has a combiner") };
        let mut kernel;
        let source;
        if self.waiting.contains_key(&v) {
            kernel = self.take(v);
            if kernel.product().is_some() {
                let batch = shape.len() - 2;
                let is_sum = kernel.stages.len() == 1
                    && self.prim_of(self.graph.node(kernel.stages[0].node)) == prim::MATMUL
                    && matches!(self.prim_of(data), prim::SUM | prim::SUM_LIKE)
                    && over == AxisSet::first(batch);
                if !(is_sum && self.target.sums_batches()) {
                    self.detach_product(&mut kernel);
                }
            }
            source = kernel.last();
        } else {
            kernel = FusedKernel { axes: shape.clone(), ..FusedKernel::default() };
            source = self.read(&mut kernel, v);
        }
        let along = AxisSet::first(shape.len()).without(over);
        let (work, sources) = (StageWork::Reduce { over, by }, vec![source]);
        kernel.stages.push(KernelStage { node, work, sources, along });
        self.close(kernel);
        true
    }

    fn product(&mut self, node: Node, data: &NodeData) {
        let value = data.results[0];
        let shape = self.shape(value).expect("the shapes are known");
        let mut kernel = FusedKernel { axes: shape.clone(), ..FusedKernel::default() };
        let read = |v: &Value| self.read_whole(&mut kernel, self.converted[v.index()].unwrap_or(*v));
        let sources = data.operands.iter().map(read).collect();
        let along = AxisSet::first(shape.len());
        kernel.stages.push(KernelStage { node, work: StageWork::Product, sources, along });
        let joins = match self.users[value.index()] {
            Users::Only(user) => {
                let is_sum = matches!(self.graph.node(user).op, Op::Prim(prim::SUM | prim::SUM_LIKE, _));
                let is_elementwise = matches!(&self.graph.node(user).op, Op::Prim(op, _) if op.is_elementwise());
                let has_shape = || self.takes(user, value, &shape);
                is_elementwise && has_shape() || is_sum && shape.len() > 2 && self.stage_op(user).is_some()
            }
            _ => false,
        };
        let ty = self.graph.ty(value).element();
        let may_wait = ty.dtype.is_float() && self.target.fuses() && !self.assigned_later[value.index()];
        if joins && may_wait && !shape.contains(&0) {
            self.waiting.insert(value, kernel);
        } else {
            self.close(kernel);
        }
    }

    /// Adds random numbers to the kernel of their only user, unless there is none.
    fn draw(&mut self, node: Node, data: &NodeData) -> bool {
        let value = data.results[0];
        let shape = self.shape(value).expect("the shapes are known");
        let Users::Only(user) = self.users[value.index()] else { return false };
        let is_draw = matches!(self.prim_of(data), prim::RANDOM_BITS | prim::RANDOM_UNIFORM);
        if !is_draw || !self.target.fuses() || shape.is_empty() || !self.takes(user, value, &shape) {
            return false;
        }
        let mut kernel = FusedKernel { axes: shape.clone(), ..FusedKernel::default() };
        let sources = vec![self.read_whole(&mut kernel, data.operands[0])];
        let along = AxisSet::first(shape.len());
        kernel.stages.push(KernelStage { node, work: StageWork::Draw, sources, along });
        self.waiting.insert(value, kernel);
        true
    }

    fn prim_of(&self, data: &NodeData) -> Prim {
        if let Op::Prim(op, _) = data.op { op } else { panic!("a stage is a primitive operation") }
    }

    /// Returns the kernel that ends in a value, to be continued by a user.
    fn take(&mut self, v: Value) -> FusedKernel {
        match self.users[v.index()] {
            Users::Several => self.waiting.get(&v).cloned(),
            _ => self.waiting.remove(&v),
        }
        .expect("the value waits")
    }

    /// Adds an input that is read at the index of the kernel.
    fn read(&mut self, kernel: &mut FusedKernel, v: Value) -> StageSource {
        self.end(v);
        let map = (0..kernel.axes.len()).map(Coord::axis).collect();
        let (value, map) = through_views(self.graph, v, map);
        kernel.add_input(KernelInput::at(value, map))
    }

    /// Adds an input that is read whole.
    fn read_whole(&mut self, kernel: &mut FusedKernel, value: Value) -> StageSource {
        self.end(value);
        kernel.add_input(KernelInput::whole(value))
    }

    /// Ends the kernel of a value if it waits, since the value is needed in memory.
    fn end(&mut self, v: Value) {
        if let Some(kernel) = self.waiting.remove(&v) {
            self.close(kernel);
        }
    }

    /// Ends the kernel, which writes its last stage.
    fn close(&mut self, mut kernel: FusedKernel) {
        let node = kernel.stages[kernel.stages.len() - 1].node;
        if matches!(self.fusion.roles[node.index()], NodeRole::Kernel(_)) {
            // A kernel that was split needed the value in memory before.
            return;
        }
        let is_sum = matches!(kernel.stages.last(), Some(KernelStage { work: StageWork::Reduce { .. }, .. }));
        let has_stages = kernel.product().is_some() && kernel.stages.len() > 1;
        if has_stages && !is_sum && !self.target.fuses_epilogue(self.graph, &kernel, self.loops > 0) {
            self.detach_product(&mut kernel);
        }
        kernel.outputs.push(kernel.stages.len() - 1);
        if kernel.stages.len() > 1 && !self.target.accepts(self.graph, &kernel) {
            self.split(&mut kernel);
        }
        let last = kernel.stages.len() - 1;
        for stage in &kernel.stages[..last] {
            let role = &mut self.fusion.roles[stage.node.index()];
            if *role == NodeRole::Alone {
                *role = NodeRole::Inside;
            }
        }
        let id = KernelId(self.fusion.kernels.len() as u32);
        self.fusion.roles[node.index()] = NodeRole::Kernel(id);
        self.fusion.kernels.push(kernel);
    }

    /// Computes the stages that the last stage of a kernel reads in kernels of their own.
    fn split(&mut self, kernel: &mut FusedKernel) {
        let mut whole = std::mem::take(kernel);
        let mut last = whole.stages.pop().expect("a kernel has stages");
        kernel.axes.clone_from(&whole.axes);
        for source in &mut last.sources {
            *source = match *source {
                StageSource::Input(i) => kernel.add_input(whole.inputs[i].clone()),
                StageSource::Stage(s) => {
                    self.close(whole.up_to(s));
                    // Only the last stage of a kernel that is no kernel of rows removes axes.
                    let map = (0..whole.axes.len()).map(Coord::axis).collect();
                    let value = self.graph.node(whole.stages[s].node).results[0];
                    kernel.add_input(KernelInput::at(value, map))
                }
            };
        }
        kernel.stages.push(last);
        kernel.outputs.push(0);
    }

    /// Computes the product of a kernel in a kernel of its own, whose result the rest reads.
    fn detach_product(&mut self, kernel: &mut FusedKernel) {
        if kernel.product().is_none() {
            return;
        }
        let whole = std::mem::take(kernel);
        kernel.axes.clone_from(&whole.axes);
        let mut stages = whole.stages.into_iter();
        let product = stages.next().expect("the product is the first stage");
        let value = self.graph.node(product.node).results[0];
        let map = (0..whole.axes.len()).map(Coord::axis).collect();
        let result = kernel.add_input(KernelInput::at(value, map));
        let mut alone = FusedKernel { axes: whole.axes, ..FusedKernel::default() };
        let mut stages: Vec<KernelStage> = stages.collect();
        let input = |kernel: &mut FusedKernel, i: usize| kernel.add_input(whole.inputs[i].clone());
        let mut product = product;
        for source in &mut product.sources {
            if let StageSource::Input(i) = *source {
                *source = input(&mut alone, i);
            }
        }
        for source in stages.iter_mut().flat_map(|stage| &mut stage.sources) {
            *source = match *source {
                StageSource::Input(i) => input(kernel, i),
                StageSource::Stage(0) => result,
                StageSource::Stage(i) => StageSource::Stage(i - 1),
            };
        }
        alone.stages.push(product);
        kernel.stages = stages;
        self.close(alone);
    }
}

impl FusedKernel {
    /// Returns the number of inputs and of operations. The result of a product counts as an input,
    /// and its operands do not.
    fn epilogue_sizes(&self) -> [usize; 2] {
        let Some(product) = self.product() else { return [self.inputs.len(), self.stages.len()] };
        let is_operand = |i: &usize| product.sources.contains(&StageSource::Input(*i));
        let of_product = (0..self.inputs.len()).filter(is_operand).count();
        [self.inputs.len() - of_product + 1, self.stages.len() - 1]
    }

    /// Returns a stage as a kernel, with the stages that it needs and without outputs.
    fn up_to(&self, stage: usize) -> FusedKernel {
        let mut needed = vec![false; stage + 1];
        needed[stage] = true;
        for s in (0..=stage).rev() {
            for source in &self.stages[s].sources {
                if let StageSource::Stage(i) = *source {
                    needed[i] |= needed[s];
                }
            }
        }
        let mut kernel = FusedKernel { axes: self.axes.clone(), ..FusedKernel::default() };
        let mut stages = vec![0; stage + 1];
        for s in (0..=stage).filter(|&s| needed[s]) {
            let mut part = self.stages[s].clone();
            for source in &mut part.sources {
                *source = match *source {
                    StageSource::Input(i) => kernel.add_input(self.inputs[i].clone()),
                    StageSource::Stage(i) => StageSource::Stage(stages[i]),
                };
            }
            stages[s] = kernel.stages.len();
            kernel.stages.push(part);
        }
        kernel
    }

    pub(super) fn add_input(&mut self, input: KernelInput) -> StageSource {
        let i = self.inputs.iter().position(|other| *other == input).unwrap_or_else(|| {
            self.inputs.push(input);
            self.inputs.len() - 1
        });
        StageSource::Input(i)
    }

    /// Returns the value of the last stage. A kernel without stages has one input.
    fn last(&self) -> StageSource {
        match self.stages.len() {
            0 => StageSource::Input(0),
            n => StageSource::Stage(n - 1),
        }
    }

    /// Appends a kernel with the same axes, before or after the stages of this one, and returns its
    /// last value. `sources` refer to this kernel and stay valid.
    fn append(&mut self, other: FusedKernel, sources: &mut [StageSource]) -> StageSource {
        debug_assert_eq!(self.axes, other.axes, "only kernels of the same axes are joined");
        if self.stages.is_empty() && self.inputs.is_empty() {
            *self = other;
            return self.last();
        }
        if other.product().is_none() {
            let stages = self.add_kernel(other);
            return *stages.last().expect("a kernel that waits has stages");
        }
        // The product stays the first stage.
        let this = std::mem::replace(self, other);
        let last = self.last();
        let inputs: Vec<StageSource> = this.inputs.iter().map(|input| self.add_input(input.clone())).collect();
        let stages = self.add_kernel(this);
        for source in sources {
            *source = match *source {
                StageSource::Input(i) => inputs[i],
                StageSource::Stage(i) => stages[i],
            };
        }
        last
    }

    /// Adds the stages of another kernel, and returns where each of them is now.
    fn add_kernel(&mut self, other: FusedKernel) -> Vec<StageSource> {
        let inputs: Vec<StageSource> = other.inputs.into_iter().map(|input| self.add_input(input)).collect();
        let mut stages: Vec<StageSource> = Vec::with_capacity(other.stages.len());
        for mut stage in other.stages {
            if let Some(i) = self.stages.iter().position(|s| s.node == stage.node) {
                stages.push(StageSource::Stage(i));
                continue;
            }
            for source in &mut stage.sources {
                *source = match *source {
                    StageSource::Input(i) => inputs[i],
                    StageSource::Stage(i) => stages[i],
                };
            }
            self.stages.push(stage);
            stages.push(StageSource::Stage(self.stages.len() - 1));
        }
        stages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the operations of the stages of each kernel.
    fn kernels(graph: &Graph, target: &dyn FusionTarget) -> Vec<Vec<&'static str>> {
        let fusion = Fusion::find(graph, target);
        let of_kernel = |kernel: &FusedKernel| {
            assert_eq!(kernel.verify(graph), Ok(()));
            kernel.stages.iter().map(|stage| graph.node(stage.node).op.name()).collect()
        };
        fusion.kernels().iter().map(of_kernel).collect()
    }

    #[test]
    fn a_kernel_that_is_not_accepted_is_split_and_others_are_not() {
        let text = "graph @f(%x: f32[6, 4], %y: f32[6, 4], %z: f32[5]) -> (f32[6], f32[5]) {
            %a = add %x, %x
            %b = mul %a, %y
            %c = sub %b, %a
            %s = max %c {axes=[1], keepdim=false}
            %n = neg %z
            %e = exp %n
            return %s, %e
        }";
        let graph = Graph::parse(text, "f.ir").unwrap();
        assert_eq!(kernels(&graph, &FuseEverything), [vec!["add", "mul", "sub", "max"], vec!["neg", "exp"]]);
        let large = FuseUnless(|kernel: &FusedKernel| kernel.stages.len() > 3);
        assert_eq!(kernels(&graph, &large), [vec!["add", "mul", "sub"], vec!["max"], vec!["neg", "exp"]]);
        let larger_than_two = FuseUnless(|kernel: &FusedKernel| kernel.stages.len() > 2);
        // One kernel computes both values that the subtraction reads.
        let split = [vec!["add", "mul"], vec!["sub"], vec!["max"], vec!["neg", "exp"]];
        assert_eq!(kernels(&graph, &larger_than_two), split);
        let all = FuseUnless(|_: &FusedKernel| true);
        let alone = ["add", "mul", "sub", "max", "neg", "exp"].map(|op| vec![op]);
        let mut found = kernels(&graph, &all);
        found.sort_unstable();
        let mut expected = alone.to_vec();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_product_that_is_not_accepted_with_its_epilogue_is_computed_before() {
        let text = "graph @f(%x: f32[6, 4], %w: f32[4, 5], %y: f32[6, 5]) -> f32[6, 5] {
            %p = matmul %x, %w
            %s = add %p, %y
            return %s
        }";
        let graph = Graph::parse(text, "f.ir").unwrap();
        let no_product = FuseUnless(|kernel: &FusedKernel| kernel.product().is_some());
        assert_eq!(kernels(&graph, &no_product), [["matmul"], ["add"]]);
    }

    #[test]
    fn the_last_parts_of_rows_that_are_not_accepted_stay_separate() {
        let text = "graph @f(%x: f32[6, 4]) -> f32[6, 4] {
            %m = max %x {axes=[1], keepdim=true}
            %b = broadcast_to %m {shape=[6, 4]}
            %d = sub %x, %b
            %e = exp %d
            %s = sum %e {axes=[1], keepdim=true}
            %t = broadcast_to %s {shape=[6, 4]}
            %q = div %e, %t
            return %q
        }";
        let graph = Graph::parse(text, "f.ir").unwrap();
        assert_eq!(kernels(&graph, &FuseEverything), [["max", "sub", "exp", "sum", "div"]]);
        let large = FuseUnless(|kernel: &FusedKernel| kernel.stages.len() > 4);
        assert_eq!(kernels(&graph, &large), [vec!["max", "sub", "exp", "sum"], vec!["div"]]);
    }
}
