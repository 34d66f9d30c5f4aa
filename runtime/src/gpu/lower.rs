//! Lowering of a graph to a program: a list of shaders and transfers for each region.
//!
//! Fused kernels become one shader each. Views that no kernel reads through are copied where they
//! are needed in memory; reshapes share it.

use super::handwritten::{self, CHECK, CHECK_INDEX, CHECK_INDICES, CUMSUM, FIRST_OCCURRENCES, Indices, SEARCH};
use super::list::ListProgram;
use super::product::{BatchedProduct, ConvProduct, MatrixBatch, ProductDispatch, ProductShader, along_three_axes};
use super::program::{
    CondProgram, Dispatch, GpuOp, GpuProgram, LoopProgram, RegionProgram, ShaderCheck, StackSum, Transfer,
};
use super::queue::{GpuQueue, Shared};
use super::shader_loop::{Assumption, LoopOnDevice, ParallelLoopProgram, words_of};
use crate::options::CompileOptions;
use anabranch_dsl::fusion::{
    AxisSet, FusedKernel, Fusion, FusionTarget, KernelShader, KernelStage, LoopShader, MAX_LOOP_STEPS, MAX_WORKGROUPS,
    NodeRole, ParallelLoopShader, RowLimits, StageSource, WorkgroupLoops,
};
use anabranch_dsl::fusion::{index_end, node_to_wgsl, row_axes_of_workgroups, viewed};
use anabranch_dsl::ir::dependence::LoopVarRole;
use anabranch_dsl::ir::{Graph, Node, NodeData, Op, Region, StackOp, Value};
use anabranch_dsl::ops::attributes::{Along, AlongOrKept, Conv, IndexRange, MeanPool, Pool, RunningSum, SliceTarget};
use anabranch_dsl::ops::{Effects, EvalCx, OpClass, Prim, prim};
use anabranch_dsl::passes;
use anabranch_dsl::{Diagnostic, ErrorKind, Result, TensorType};
use rustc_hash::FxHashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// The threads of a workgroup whose threads compute one element or row each.
pub(super) const THREADS: usize = 64;

/// The steps of a run of a loop that a workgroup runs: on a GPU, where a dispatch must not take
/// seconds, and on a driver that computes on a CPU, which ends the loops of a thread early.
const MAX_WORKGROUP_STEPS: [u32; 2] = [1 << 18, MAX_LOOP_STEPS];

/// The kernels of a GPU: elementwise operations with the reductions that read them or that they
/// read, products with the operations on their elements, or each operation alone.
struct GpuTarget {
    fuses: bool,
}

impl FusionTarget for GpuTarget {
    fn computes(&self, graph: &Graph, node: Node) -> bool {
        let Op::Prim(op, _) = graph.node(node).op else { return false };
        match op.class {
            OpClass::Scalar(_) | OpClass::Reduce(_) | OpClass::Random(_) => true,
            _ => op.is_product(),
        }
    }

    fn fuses(&self) -> bool {
        self.fuses
    }

    /// A shader has eight bindings: these, and the results.
    fn max_inputs(&self) -> usize {
        6
    }

    fn max_operations(&self) -> usize {
        64
    }

    fn reduces(&self, _shape: &[usize], _over: AxisSet) -> bool {
        true
    }

    fn fuses_epilogue(&self, _graph: &Graph, _kernel: &FusedKernel, _is_in_loop: bool) -> bool {
        true
    }

    fn sums_batches(&self) -> bool {
        false
    }

    fn converts_operands(&self) -> bool {
        true
    }

    fn rows(&self) -> Option<RowLimits> {
        Some(RowLimits::OF_WORKGROUPS)
    }

    fn row_axes(&self, shape: &[usize], over: AxisSet) -> Option<AxisSet> {
        row_axes_of_workgroups(shape, over)
    }

    fn accepts(&self, graph: &Graph, kernel: &FusedKernel) -> bool {
        has_shader(graph, kernel)
    }
}

/// Returns whether the device computes a kernel in one shader, or without one.
fn has_shader(graph: &Graph, kernel: &FusedKernel) -> bool {
    let has_shader = || match kernel.product() {
        Some(_) => kernel.product_to_wgsl(graph).is_ok(),
        None => kernel.to_wgsl(graph).is_ok(),
    };
    kernel.axes.contains(&0) || has_shader()
}

/// Lowers a graph whose operations the device supports.
pub(super) fn lower(mut graph: Graph, options: CompileOptions, queue: &GpuQueue) -> Result<GpuProgram> {
    if let Some(wide) = passes::widen(&graph) {
        graph = wide;
    }
    if !options.check_finite
        && let Some(apart) = in_numbers(&graph, queue.shared())
    {
        graph = apart;
    }
    if let Some(expanded) = passes::expand_attention(&graph) {
        graph = expanded;
    }
    // A workgroup reduces a row.
    if let Some(split) = passes::split_reductions(&graph) {
        graph = split;
    }
    // A check of finite values looks at the result of each operation.
    let fusion = Fusion::find(&graph, &GpuTarget { fuses: options.fuse && !options.check_finite });
    let root = {
        let shared = queue.shared();
        let mut lower = GpuLowering {
            graph: &graph,
            fusion: &fusion,
            queue,
            shared,
            options,
            node: None,
            workgroup_loops: None,
            is_in_workgroup_loop: false,
        };
        lower.region(graph.root())?
    };
    GpuProgram::from_parts(graph, root, queue)
}

/// Returns the graph with small tensors in loops as numbers, if more loops then have a shader and
/// all others stay as they are.
fn in_numbers(graph: &Graph, shared: &Shared) -> Option<Graph> {
    // The number of outermost loops that a shader runs, and of the operations elsewhere. To take
    // tensors apart and to join them only moves elements.
    let loops = |graph: &Graph| {
        let (mut n_shaders, mut n_nodes) = (0, 0);
        let mut regions = vec![graph.root()];
        while let Some(region) = regions.pop() {
            for &node in &graph.region(region).nodes {
                let has_shader = graph.as_while(node).is_some()
                    && (LoopShader::new(graph, node).is_ok()
                        || ParallelLoopShader::new(graph, node, shared.max_bindings).is_ok());
                if has_shader {
                    n_shaders += 1;
                } else {
                    let only_moves = matches!(&graph.node(node).op, Op::Prim(op, _) if op.only_moves());
                    n_nodes += usize::from(!only_moves);
                    regions.extend(&graph.node(node).regions);
                }
            }
        }
        (n_shaders, n_nodes)
    };
    let apart = passes::scalars(graph)?;
    let ((before, nodes_before), (after, nodes_after)) = (loops(graph), loops(&apart));
    (after > before && nodes_after <= nodes_before).then_some(apart)
}

struct GpuLowering<'a> {
    graph: &'a Graph,
    fusion: &'a Fusion,
    queue: &'a GpuQueue,
    shared: &'a Arc<Shared>,
    options: CompileOptions,
    /// The node that is lowered.
    node: Option<Node>,
    /// The kernels of loops that workgroups run, if a loop has asked for them.
    workgroup_loops: Option<WorkgroupLoops>,
    /// Whether the node is inside of a loop that a workgroup runs.
    is_in_workgroup_loop: bool,
}

/// A region while it is lowered.
#[derive(Default)]
struct OpenRegion {
    ops: Vec<GpuOp>,
    /// The node that each operation belongs to.
    origins: Vec<Node>,
    /// The values in memory.
    in_memory: FxHashSet<Value>,
}

/// The text of a shader.
struct ShaderCode {
    text: String,
    /// Whether the shader reports errors.
    can_fail: bool,
}

impl ShaderCode {
    fn failing(text: impl Into<String>) -> ShaderCode {
        ShaderCode { text: text.into(), can_fail: true }
    }
}

impl From<String> for ShaderCode {
    fn from(text: String) -> ShaderCode {
        ShaderCode { text, can_fail: false }
    }
}

impl GpuLowering<'_> {
    fn region(&mut self, region: Region) -> Result<RegionProgram> {
        let data = self.graph.region(region);
        let mut open = OpenRegion::default();
        open.in_memory.extend(data.params.iter().copied());
        for &node in &data.nodes {
            self.node(&mut open, node).map_err(|error| self.located(error, node))?;
            open.origins.resize(open.ops.len(), node);
        }
        for &value in &data.yields {
            self.require(&mut open, value)?;
            if let Some(node) = self.graph.producer(value) {
                open.origins.resize(open.ops.len(), node);
            }
        }
        Ok(RegionProgram::new(data.params.clone(), open.ops, open.origins, data.yields.clone()))
    }

    /// Places an error of the device at a node.
    fn located(&self, error: Diagnostic, node: Node) -> Diagnostic {
        let data = self.graph.node(node);
        if error.loc().is_some() { error } else { error.at(data.loc, format!("in `{}`", data.name_in_errors())) }
    }

    fn ty(&self, value: Value) -> &TensorType {
        self.graph.ty(value).element()
    }

    fn shape(&self, value: Value) -> Vec<usize> {
        self.ty(value).shape.known().expect("the device runs operations of known shapes only")
    }

    fn size(&self, value: Value) -> usize {
        self.shape(value).iter().product()
    }

    /// Makes sure that a value is in memory: a view is copied, and a reshape shares its memory.
    fn require(&mut self, open: &mut OpenRegion, value: Value) -> Result<()> {
        if open.in_memory.contains(&value) {
            return Ok(());
        }
        let node = self.graph.producer(value).expect("parameters are in memory");
        let data = self.graph.node(node);
        let Op::Prim(op, _) = data.op else { panic!("{node} has put its results into memory") };
        assert!(matches!(op.class, OpClass::View(_)), "`{op}` has put its result into memory");
        if matches!(op, prim::RESHAPE | prim::RESHAPE_LIKE | prim::WITH_DYNAMIC) {
            self.require(open, data.operands[0])?;
            open.ops.push(GpuOp::Transfer(Transfer::Share { from: data.operands[0], to: value }));
            open.in_memory.insert(value);
            return Ok(());
        }
        if self.shape(value).contains(&0) {
            self.allocate(open, value);
            return Ok(());
        }
        let shader = node_to_wgsl(self.graph, node).map_err(|reason| self.no_shader(data, &reason))?;
        self.shader(open, shader, 1)
    }

    fn allocate(&mut self, open: &mut OpenRegion, value: Value) {
        open.ops.push(GpuOp::Transfer(Transfer::Zeros { to: value }));
        open.in_memory.insert(value);
    }

    fn no_shader(&self, data: &NodeData, reason: &dyn std::fmt::Display) -> Diagnostic {
        let message = format!("`{}` has no shader: {reason}", data.op.name());
        Diagnostic::new(message).of_kind(ErrorKind::Internal).at(data.loc, "this operation")
    }

    /// Adds a printed shader.
    fn shader(&mut self, open: &mut OpenRegion, shader: KernelShader, n_outputs: usize) -> Result<()> {
        let n_inputs = shader.bindings.len() - n_outputs;
        let [x, y] = shader.workgroups.map(|n| n as u32);
        let (inputs, outputs) = shader.bindings.split_at(n_inputs);
        let code = ShaderCode { text: shader.code, can_fail: shader.can_fail };
        self.dispatch(open, code, inputs, outputs, [x, y, 1], Vec::new())
    }

    /// Adds a shader, which gets the number of its check as last parameter if it can fail.
    fn dispatch(
        &mut self,
        open: &mut OpenRegion,
        code: impl Into<ShaderCode>,
        inputs: &[Value],
        outputs: &[Value],
        workgroups: [u32; 3],
        parameters: Vec<u32>,
    ) -> Result<()> {
        for &input in inputs {
            self.require(open, input)?;
        }
        let ShaderCode { text, can_fail } = code.into();
        let check = can_fail.then(|| self.check());
        for &operand in check.iter().flat_map(|check| &check.operands) {
            self.require(open, operand)?;
        }
        let n_outputs = outputs.len() + usize::from(can_fail);
        let shader = self.shared.shaders.get(&self.shared.device, text, [inputs.len(), n_outputs])?;
        open.in_memory.extend(outputs.iter().copied());
        let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
        // Memory that is written in part has any values.
        let computes = |n: &Node| !matches!(&self.graph.node(*n).op, Op::Prim(op, _) if op.only_moves());
        let checked = self.node.filter(|n| self.options.check_finite && computes(n));
        open.ops.push(GpuOp::Dispatch(Dispatch {
            shader,
            inputs,
            outputs,
            workgroups,
            parameters,
            n_operations: 1,
            checked,
            check,
            #[cfg(feature = "testing")]
            product: None,
        }));
        Ok(())
    }

    /// Returns the check of the node that is lowered.
    fn check(&self) -> ShaderCheck {
        let node = self.node.expect("a shader that can fail belongs to a node");
        let data = self.graph.node(node);
        let operands = match &data.op {
            Op::Assert { .. } | Op::Prim(prim::DIV | prim::REM | prim::CHECK_INDEX, _) => 0..data.operands.len(),
            // Only the indices decide.
            Op::Prim(prim::TAKE | prim::TAKE_ALONG_AXIS | prim::DYNAMIC_SLICE, _) => 1..2,
            Op::Prim(prim::SCATTER_ADD | prim::SCATTER_ADD_ALONG_AXIS, _) => 1..2,
            Op::Prim(prim::DYNAMIC_UPDATE_SLICE, _) => 2..3,
            op => panic!("`{}` makes no check", op.name()),
        };
        ShaderCheck { node, first: operands.start, operands: data.operands[operands].into() }
    }

    fn node(&mut self, open: &mut OpenRegion, node: Node) -> Result<()> {
        let data = self.graph.node(node);
        self.node = Some(node);
        match self.fusion.role(node) {
            NodeRole::Inside => return Ok(()),
            NodeRole::Kernel(id) => return self.kernel(open, data, self.fusion.kernel(id)),
            NodeRole::Check => return self.check_lookup(open, data),
            NodeRole::Alone => {}
        }
        match &data.op {
            Op::Prim(op, _) => return self.primitive(open, node, data, *op),
            Op::Constant(tensor) => {
                let tensor = tensor.clone();
                let stored = self.queue.call(async move |recorder| recorder.upload(&tensor))?;
                open.ops.push(GpuOp::Transfer(Transfer::Constant { tensor: stored, to: data.results[0] }));
            }
            Op::Stack(StackOp::Add) => {
                let element = self.ty(data.results[0]).dtype;
                let shader = self.shared.shaders.get(&self.shared.device, handwritten::add(element), [2, 1])?;
                let size: usize = self.shape(data.results[0]).iter().product();
                let workgroups = groups(size.div_ceil(THREADS));
                open.ops.push(GpuOp::AddStacks(node, StackSum { shader, workgroups, size: size as u32 }));
            }
            Op::Stack(op) => {
                data.operands.iter().try_for_each(|&v| self.require(open, v))?;
                open.ops.push(GpuOp::Stack(op.clone(), node));
            }
            Op::List(_) => {
                data.operands.iter().try_for_each(|&v| self.require(open, v))?;
                open.ops.push(GpuOp::List(ListProgram::new(self.graph, node, self.shared)?));
            }
            op if op.is_construct() => {
                data.operands.iter().try_for_each(|&v| self.require(open, v))?;
                open.ops.push(if let Some(construct) = self.graph.as_while(node) {
                    let (cond, body) = (construct.cond(), construct.body());
                    // A condition that is not pure runs each time.
                    let mut counts = true;
                    self.graph.visit_nodes(cond, &mut |n| counts &= self.graph.node(n).op.effects() == Effects::Pure);
                    let counted = passes::count(self.graph, node).filter(|_| counts);
                    let mut on_device = self.scalar_loop(node)?;
                    let parallel = self.parallel_loop(node)?;
                    let was_in_workgroup_loop = self.is_in_workgroup_loop;
                    if on_device.is_none() && parallel.is_none() && !was_in_workgroup_loop {
                        on_device = self.workgroup_loop(node)?;
                        self.is_in_workgroup_loop = on_device.is_some();
                    }
                    let (cond, body) = (self.region(cond)?, self.region(body)?);
                    self.is_in_workgroup_loop = was_in_workgroup_loop;
                    let advances = counted.and_then(|counted| body.advances(self.graph, counted.variable));
                    GpuOp::While(Box::new(LoopProgram {
                        node,
                        cond,
                        body,
                        counted,
                        advances,
                        on_device,
                        parallel,
                        ahead: false,
                        expected: AtomicU32::new(0),
                    }))
                } else if let Some(construct) = self.graph.as_cond(node) {
                    let [then, otherwise] = construct.branches();
                    let branches = [self.region(then)?, self.region(otherwise)?];
                    GpuOp::Cond(CondProgram { node, branches, ahead: false })
                } else {
                    let call = self.graph.as_call(node).expect("the other constructs are calls");
                    GpuOp::Call(node, self.region(call.forward())?)
                });
            }
            Op::Assert { .. } => {
                let code = ShaderCode::failing(CHECK);
                return self.dispatch(open, code, &data.operands[..1], &[], [1; 3], Vec::new());
            }
            op => panic!("placement puts no `{}` on a GPU", op.name()),
        }
        open.in_memory.extend(data.results.iter().copied());
        Ok(())
    }

    /// Returns the shader of a loop over scalars.
    fn scalar_loop(&self, node: Node) -> Result<Option<LoopOnDevice>> {
        // Its operations are not checked one by one.
        let shader = LoopShader::new(self.graph, node).ok().filter(|_| !self.options.check_finite);
        shader.map(|shader| self.loop_on_device(shader, false)).transpose()
    }

    /// Returns the shader of a loop over small tensors.
    fn workgroup_loop(&mut self, node: Node) -> Result<Option<LoopOnDevice>> {
        if self.options.check_finite || !self.options.fuse || !self.shared.has_workgroup_loops {
            return Ok(None);
        }
        let max_steps = MAX_WORKGROUP_STEPS[usize::from(self.shared.is_software)];
        let loops = self.workgroup_loops.get_or_insert_with(|| WorkgroupLoops::new(self.graph, max_steps));
        let shader = loops.shader(self.graph, node).ok();
        shader.map(|shader| self.loop_on_device(shader, true)).transpose()
    }

    fn loop_on_device(&self, shader: LoopShader, is_of_workgroup: bool) -> Result<LoopOnDevice> {
        let LoopShader { code, in_memory, operands, constants, n_initial, n_words } = shader;
        let (shaders, device) = (&self.shared.shaders, &self.shared.device);
        let shader = shaders.get(device, code, [in_memory.len(), 1])?;
        let has_ended = shaders.get(device, CHECK.to_owned(), [1, 1])?;
        let mut initial = vec![0; n_initial];
        for (first, constant) in constants {
            initial[first..first + constant.len()].copy_from_slice(&words_of(&constant));
        }
        let assumption = Assumption::default();
        Ok(LoopOnDevice { shader, is_of_workgroup, has_ended, in_memory, operands, initial, n_words, assumption })
    }

    /// Returns the shader of a loop whose iterations are independent.
    fn parallel_loop(&self, node: Node) -> Result<Option<ParallelLoopProgram>> {
        let Some(counted) = passes::count(self.graph, node).filter(|_| !self.options.check_finite) else {
            return Ok(None);
        };
        let max_buffers = self.shared.max_bindings;
        let Ok(shader) = ParallelLoopShader::new(self.graph, node, max_buffers) else { return Ok(None) };
        let ParallelLoopShader { code, in_memory, roles, groups, claimed, n_bindings } = shader;
        let (shaders, device) = (&self.shared.shaders, &self.shared.device);
        let n_pushed = roles.iter().filter(|&&role| role == LoopVarRole::Pushed).count();
        let mut variables = Vec::new();
        for (role, &operand) in roles.into_iter().zip(&self.graph.node(node).operands) {
            let sum = (role == LoopVarRole::Sum).then(|| handwritten::sum_terms(self.ty(operand).dtype));
            variables.push((role, sum.map(|text| shaders.get(device, text, [2, 1])).transpose()?));
        }
        let shader = shaders.get(device, code, n_bindings)?;
        let (trips, assumption) = (passes::trips(self.graph, node), Assumption::new(n_pushed));
        Ok(Some(ParallelLoopProgram { shader, in_memory, variables, groups, claimed, counted, trips, assumption }))
    }

    fn kernel(&mut self, open: &mut OpenRegion, data: &NodeData, kernel: &FusedKernel) -> Result<()> {
        let outputs: Vec<Value> = (0..kernel.outputs.len()).map(|o| kernel.output(self.graph, o)).collect();
        if outputs.iter().all(|&v| self.shape(v).contains(&0)) {
            outputs.into_iter().for_each(|v| self.allocate(open, v));
            return Ok(());
        }
        if let Some(product) = kernel.product() {
            self.product(open, kernel, product)?;
        } else {
            let shader = kernel.to_wgsl(self.graph).map_err(|reason| self.no_shader(data, &reason))?;
            self.shader(open, shader, kernel.outputs.len())?;
        }
        if let Some(GpuOp::Dispatch(dispatch)) = open.ops.last_mut() {
            dispatch.n_operations = kernel.stages.len();
        }
        Ok(())
    }

    fn primitive(&mut self, open: &mut OpenRegion, node: Node, data: &NodeData, op: Prim) -> Result<()> {
        let result = data.results[0];
        let shape = self.shape(result);
        if matches!(op.class, OpClass::View(_)) {
            // Copied where it is needed in memory.
            return Ok(());
        }
        if shape.contains(&0) {
            self.allocate(open, result);
            return Ok(());
        }
        match op.class {
            OpClass::Random(_) => {
                let shader = node_to_wgsl(self.graph, node).map_err(|reason| self.no_shader(data, &reason))?;
                return self.shader(open, shader, 1);
            }
            OpClass::Rowwise(_) => return self.softmax(open, data, op),
            OpClass::Scan(_) => {
                let RunningSum { axis, reverse } = RunningSum::of(attrs_of(data));
                return self.rows(open, data, CUMSUM, axis, u32::from(reverse));
            }
            OpClass::Search => {
                let axis = Along::of(attrs_of(data)).axis;
                return self.rows(open, data, SEARCH, axis, u32::from(op == prim::ARGMIN));
            }
            _ => {}
        }
        match op {
            prim::MAX_POOL | prim::MAX_POOL_PICK | prim::MAX_POOL_GRAD | prim::AVG_POOL | prim::AVG_POOL_GRAD => {
                self.pooling(open, data, op)
            }
            prim::CONCAT => {
                let axis = Along::of(attrs_of(data)).axis;
                self.allocate_uninitialized(open, result);
                let mut start = 0;
                for &part in &data.operands {
                    self.copy_part(open, part, result, axis, [start, 1])?;
                    start += self.shape(part)[axis];
                }
                Ok(())
            }
            prim::UPDATE_SLICE => {
                let SliceTarget { axis, start, step } = SliceTarget::of(attrs_of(data));
                self.require(open, data.operands[0])?;
                open.ops.push(GpuOp::Transfer(Transfer::Copy { from: data.operands[0], to: result }));
                open.in_memory.insert(result);
                self.copy_part(open, data.operands[1], result, axis, [start, step])
            }
            prim::TAKE | prim::TAKE_ALONG_AXIS | prim::DYNAMIC_SLICE => self.gather(open, data, op),
            prim::CHECK_INDEX => {
                let size = self.size(result);
                let end = index_end(IndexRange::of(attrs_of(data)), self.ty(result).dtype);
                let end = end.map_err(|reason| self.no_shader(data, &reason))?;
                let parameters = vec![size as u32, end];
                let code = ShaderCode::failing(CHECK_INDEX);
                let workgroups = groups(size.div_ceil(THREADS));
                // The others say only which operation has failed.
                self.dispatch(open, code, &data.operands[..1], &data.results, workgroups, parameters)
            }
            prim::FIRST_OCCURRENCES => {
                let (code, size) = (FIRST_OCCURRENCES.to_owned(), self.size(result));
                let workgroups = groups(size.div_ceil(THREADS));
                self.dispatch(open, code, &data.operands, &data.results, workgroups, vec![size as u32])
            }
            prim::SCATTER_ADD | prim::SCATTER_ADD_ALONG_AXIS | prim::DYNAMIC_UPDATE_SLICE => {
                self.scatter(open, data, op)
            }
            prim::IOTA => {
                let cx = EvalCx { operands: &[], attrs: attrs_of(data), ty: self.ty(result) };
                let tensor = op.evaluate(&cx).map_err(|e| e.at(data.name_in_errors(), data.loc))?;
                let stored = self.queue.call(async move |recorder| recorder.upload(&tensor))?;
                open.ops.push(GpuOp::Transfer(Transfer::Constant { tensor: stored, to: result }));
                open.in_memory.insert(result);
                Ok(())
            }
            _ => panic!("placement puts no `{op}` on a GPU"),
        }
    }

    /// Checks the indices of a lookup, through which a later kernel reads.
    fn check_lookup(&mut self, open: &mut OpenRegion, data: &NodeData) -> Result<()> {
        let (x, ids) = (data.operands[0], data.operands[1]);
        let (size, extent) = (self.size(ids), self.shape(x)[Along::of(attrs_of(data)).axis]);
        let code = ShaderCode::failing(CHECK_INDICES);
        self.dispatch(open, code, &[ids], &[], groups(size.div_ceil(THREADS)), vec![size as u32, extent as u32])
    }

    /// Reads elements at indices.
    fn gather(&mut self, open: &mut OpenRegion, data: &NodeData, op: Prim) -> Result<()> {
        let (x, ids) = (data.operands[0], data.operands[1]);
        let axis = Along::of(attrs_of(data)).axis;
        let (extents, n_ids, size) = (self.shape(x), self.size(ids), self.size(data.results[0]));
        let inner: usize = extents[axis + 1..].iter().product();
        let outer: usize = extents[..axis].iter().product();
        let (indices, length) = match op {
            prim::TAKE => (Indices::OneForAllRows, n_ids),
            prim::TAKE_ALONG_AXIS => (Indices::OneForEachElement, size / outer / inner),
            _ => (Indices::FromStart, size / outer / inner),
        };
        let parameters = [size, length, inner, extents[axis], 1].map(|n| n as u32).to_vec();
        let code = ShaderCode::failing(handwritten::gather(indices, self.ty(x).dtype));
        self.dispatch(open, code, &[ids, x], &data.results, groups(size.div_ceil(THREADS)), parameters)
    }

    /// Adds elements at indices to a copy of the first operand, or writes them there.
    fn scatter(&mut self, open: &mut OpenRegion, data: &NodeData, op: Prim) -> Result<()> {
        let (x, y, axis) = (data.operands[0], data.results[0], Along::of(attrs_of(data)).axis);
        self.require(open, x)?;
        open.ops.push(GpuOp::Transfer(Transfer::Copy { from: x, to: y }));
        open.in_memory.insert(y);
        let (adds, [ids, updates]) = match op {
            prim::DYNAMIC_UPDATE_SLICE => (false, [data.operands[2], data.operands[1]]),
            _ => (true, [data.operands[1], data.operands[2]]),
        };
        let extents = self.shape(x);
        let inner: usize = extents[axis + 1..].iter().product();
        let columns = extents[..axis].iter().product::<usize>() * inner;
        let length = self.size(updates) / columns;
        // Enough parts of columns for many threads.
        let parts = if adds { (4096 / columns).clamp(1, extents[axis].min(64)) } else { 1 };
        let (code, size) = match op {
            prim::DYNAMIC_UPDATE_SLICE => {
                (handwritten::update(Indices::FromStart, self.ty(x).dtype), self.size(updates))
            }
            prim::SCATTER_ADD => (handwritten::scatter(Indices::OneForAllRows, self.ty(x).dtype), columns * parts),
            _ => (handwritten::scatter(Indices::OneForEachElement, self.ty(x).dtype), columns * parts),
        };
        let parameters = [size, length, inner, extents[axis], parts].map(|n| n as u32).to_vec();
        let code = ShaderCode::failing(code);
        self.dispatch(open, code, &[ids, updates], &[y], groups(size.div_ceil(THREADS)), parameters)
    }

    fn allocate_uninitialized(&mut self, open: &mut OpenRegion, value: Value) {
        open.ops.push(GpuOp::Transfer(Transfer::Uninitialized { to: value }));
        open.in_memory.insert(value);
    }

    /// Writes a tensor to a part of another one, from an index along an axis and with a step.
    fn copy_part(
        &mut self,
        open: &mut OpenRegion,
        part: Value,
        whole: Value,
        axis: usize,
        [start, step]: [usize; 2],
    ) -> Result<()> {
        let (shape, extent) = (self.shape(part), self.shape(whole)[axis]);
        let size: usize = shape.iter().product();
        if size == 0 {
            return Ok(());
        }
        let inner: usize = shape[axis + 1..].iter().product();
        let parameters = [size, shape[axis], inner, extent, start, step].map(|n| n as u32).to_vec();
        let code = handwritten::copy_part(self.ty(part).dtype);
        self.dispatch(open, code, &[part], &[whole], groups(size.div_ceil(THREADS)), parameters)
    }

    /// Adds a shader in which each thread takes a row of the operand along an axis.
    fn rows(&mut self, open: &mut OpenRegion, data: &NodeData, code: &str, axis: usize, how: u32) -> Result<()> {
        let x = data.operands[0];
        let shape = self.shape(x);
        let inner: usize = shape[axis + 1..].iter().product();
        let rows = shape[..axis].iter().product::<usize>() * inner;
        let code = handwritten::rows(code, self.ty(x).dtype);
        let parameters = vec![rows as u32, shape[axis] as u32, inner as u32, how];
        self.dispatch(open, code, &[x], &data.results, groups(rows.div_ceil(THREADS)), parameters)
    }

    fn softmax(&mut self, open: &mut OpenRegion, data: &NodeData, op: Prim) -> Result<()> {
        let (x, y) = (data.operands[0], data.results[0]);
        let (axis, result) = match op {
            prim::SOFTMAX => (Along::of(attrs_of(data)).axis, 0),
            prim::LOG_SOFTMAX => (Along::of(attrs_of(data)).axis, 1),
            prim::LOGSUMEXP => (AlongOrKept::of(attrs_of(data)).axis, 2),
            _ => panic!("`{op}` is a softmax"),
        };
        let shape = self.shape(x);
        let inner: usize = shape[axis + 1..].iter().product();
        let rows = shape[..axis].iter().product::<usize>() * inner;
        let parameters = [rows, shape[axis], inner, result].map(|n| n as u32).to_vec();
        self.dispatch(open, handwritten::softmax(), &[x], &[y], groups(rows), parameters)
    }

    fn pooling(&mut self, open: &mut OpenRegion, data: &NodeData, op: Prim) -> Result<()> {
        let Pool { window, strides, padding } = Pool::of(attrs_of(data));
        let (operand, result) = (data.operands[0], data.results[0]);
        let (role, x, y) = match op {
            prim::MAX_POOL => (0, operand, result),
            prim::MAX_POOL_PICK => (1, operand, result),
            prim::MAX_POOL_GRAD => (2, operand, data.operands[1]),
            prim::AVG_POOL => (3, operand, result),
            _ => (4, result, operand),
        };
        let is_mean = matches!(op, prim::AVG_POOL | prim::AVG_POOL_GRAD);
        let counts_padding = is_mean && MeanPool::of(attrs_of(data)).count_padding;
        let size: usize = self.shape(result).iter().product();
        let [x, y] = [x, y].map(|value| self.shape(value));
        let first = x.len() - window.len();
        let mut parameters = vec![size, usize::from(counts_padding)];
        for extents in [&x[first..], &window, &y[first..], &strides] {
            parameters.extend(along_three_axes(extents, 1));
        }
        let before: Vec<usize> = padding.into_iter().step_by(2).collect();
        parameters.extend(along_three_axes(&before, 0));
        // A single operand is bound twice.
        let inputs = [operand, *data.operands.last().expect("a pooling has an operand")];
        let parameters = parameters.into_iter().map(|n| n as u32).collect();
        let code = handwritten::pooling(role);
        self.dispatch(open, code, &inputs, &data.results, groups(size.div_ceil(THREADS)), parameters)
    }

    /// Adds the shader of a product and of what is computed from its elements.
    fn product(&mut self, open: &mut OpenRegion, kernel: &FusedKernel, stage: &KernelStage) -> Result<()> {
        let product = self.graph.node(stage.node);
        let Op::Prim(op, _) = product.op else { panic!("a product is a primitive operation") };
        let text = kernel.product_to_wgsl(self.graph).map_err(|reason| self.no_shader(product, &reason))?;
        let operand = |k: usize| match stage.sources[k] {
            StageSource::Input(i) => kernel.inputs[i].value,
            StageSource::Stage(_) => panic!("K7: a product is the first stage"),
        };
        let (operands, result) = ([operand(0), operand(1)], self.shape(product.results[0]));
        let mut bindings = text.bindings;
        let ProductDispatch { code, workgroups, parameters } = match op {
            prim::MATMUL => {
                let batch = result.len() - 2;
                let (m, n) = (result[batch], result[batch + 1]);
                let k = self.shape(operands[0])[batch + 1];
                let [a, b] = operands.map(|operand| self.matrices(operand, batch));
                for (operand, matrices) in operands.into_iter().zip([a, b]) {
                    bindings.iter_mut().filter(|v| **v == operand).for_each(|v| *v = matrices.tensor);
                }
                let product = BatchedProduct { batch: result[..batch].iter().product(), m, n, k, a, b };
                product.dispatch(ProductShader::choose([m, n, k], self.shared.is_software), &text.code)
            }
            _ => {
                let [a, b] = operands.map(|operand| self.shape(operand));
                let (x, w, y) = match op {
                    prim::CONV => (a, b, result),
                    prim::CONV_INPUT_GRAD => (result, b, a),
                    _ => (a, result, b),
                };
                let product = ConvProduct { op, how: Conv::of(attrs_of(product)), x, w, y };
                let shader = ProductShader::choose_for_windows(product.sizes(), self.shared.is_software);
                product.dispatch(shader, &text.code)
            }
        };
        let (result, inputs) = bindings.split_last().expect("a product has a result");
        self.dispatch(open, code, inputs, &[*result], workgroups, parameters)?;
        #[cfg(feature = "testing")]
        if let Some(GpuOp::Dispatch(dispatch)) = open.ops.last_mut() {
            dispatch.product = Some(stage.node);
        }
        Ok(())
    }

    /// Returns where a product reads an operand. A view is read through if one stride is enough for
    /// the batch; otherwise it is copied.
    fn matrices(&self, operand: Value, batch: usize) -> MatrixBatch {
        let shape = self.shape(operand);
        let (base, map) = viewed(self.graph, operand);
        let extents = self.shape(base);
        let mut strides = vec![0isize; shape.len()];
        let (mut offset, mut stride) = (0, 1);
        for (coord, &extent) in map.iter().zip(&extents).rev() {
            offset += stride * coord.offset;
            if let Some((axis, scale)) = coord.term {
                strides[axis] += stride as isize * scale;
            }
            stride *= extent;
        }
        let axes: Vec<usize> = (0..batch).filter(|&axis| shape[axis] != 1).collect();
        let is_one_axis = axes.windows(2).all(|pair| strides[pair[0]] == strides[pair[1]] * shape[pair[1]] as isize);
        let of_batch = axes.last().map_or(0, |&axis| strides[axis]);
        let all = [of_batch, strides[batch], strides[batch + 1]];
        if is_one_axis && all.iter().all(|&stride| stride >= 0) {
            return MatrixBatch { tensor: base, offset: offset as u32, strides: all.map(|stride| stride as u32) };
        }
        let [rows, columns] = [shape[batch], shape[batch + 1]].map(|n| n as u32);
        MatrixBatch { tensor: operand, offset: 0, strides: [rows * columns, columns, 1] }
    }
}

fn attrs_of(data: &NodeData) -> &anabranch_dsl::ir::Attrs {
    let Op::Prim(_, attrs) = &data.op else { panic!("the node is a primitive operation") };
    attrs
}

/// Returns workgroups along two axes.
pub(super) fn groups(n: usize) -> [u32; 3] {
    [n.min(MAX_WORKGROUPS) as u32, n.div_ceil(MAX_WORKGROUPS) as u32, 1]
}
