//! Printing of loops over small tensors as compute shaders, in which one workgroup runs many
//! iterations without the host.
//!
//! A loop has such a shader if an iteration is little work, and if its operations are those below.
//! The threads of the workgroup share the elements of each kernel, and wait for each other before
//! one reads what another has written. Branches and inner loops are part of the shader.
//!
//! | operation | in the shader |
//! |---|---|
//! | kernels of a [`Fusion`] for this target | the templates of `wgsl.rs` for one workgroup |
//! | matmul with its epilogue | a row of the template for each element, reduced along the depth |
//! | views that are needed in memory, `concat`, updates and reads at indices, softmax | a loop of their own |
//!
//! # Steps
//!
//! A run ends after a number of *steps*, as in `scalar_loop.rs`, with the state that the loop then
//! has. A step is an iteration of any loop of a thread, also of one over the elements of a kernel.
//! The run is stuck before an iteration that takes too many steps or fails.
//!
//! # Memory
//!
//! All values are in an array of words, the last binding: the state of the loop, the loop variables
//! and small captures, constants, and then everything that an iteration computes. Each value has
//! words of its own. Large captures have bindings of their own.
//!
//! # Invariants
//!
//! - W1. All threads take the same branches around barriers: a predicate is read by one thread, and
//!   then by all of them with `workgroupUniformLoad`.
//! - W2. A barrier comes between a write and a read of the same words by another thread. Loop
//!   variables change at the end of an iteration, between two barriers.

use super::access::{through_views, viewed};
use super::scalar_loop::{LOOP_STATES, LoopShader};
use super::shader_functions::ShaderFunctions;
use super::shader_memory::{MemoryPlace, MemoryPlaces, element_index};
use super::wgsl::{MAX_BUFFERS, NotPrinted, THREADS, index_end, kernel_of_node};
use super::{
    AxisSet, Coord, FusedKernel, Fusion, FusionTarget, KernelInput, NodeRole, RowLimits, StageSource,
    row_axes_of_workgroups,
};
use crate::ir::{Graph, Node, NodeData, Op, Region, Value};
use crate::ops::attributes::{Along, AlongOrKept, IndexRange, SliceTarget};
use crate::ops::{Combiner, EvalCx, OpClass, Prim, prim};
use crate::scalars::wgsl::{PRELUDE, type_name};
use crate::{DType, HostTensor};
use rustc_hash::FxHashSet;
use std::fmt::{self, Write};

/// The threads of the workgroup.
const N_THREADS: usize = THREADS[1];

/// The steps of an iteration without its inner loops, so that several workgroups would not take
/// much less time.
const MAX_STEPS_OF_ITERATION: usize = 512;

/// The largest number of words of the array.
const MAX_WORDS: usize = 1 << 18;

/// The largest number of words with initial values, which every run uploads.
const MAX_INITIAL: usize = 1 << 14;

/// The largest number of words of a capture that is copied to the array.
const MAX_COPIED: usize = 64;

/// The lanes of a row of a softmax, as many as in the shader for a tensor of any size.
const SOFTMAX_LANES: usize = 64;

/// The kernels of a loop that one workgroup runs.
#[derive(Clone, Copy, Debug)]
struct WorkgroupTarget;

impl FusionTarget for WorkgroupTarget {
    fn computes(&self, graph: &Graph, node: Node) -> bool {
        let Op::Prim(op, _) = graph.node(node).op else { return false };
        matches!(op.class, OpClass::Scalar(_) | OpClass::Reduce(_) | OpClass::Random(_)) || op == prim::MATMUL
    }

    fn max_inputs(&self) -> usize {
        32
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

    fn rows(&self) -> Option<RowLimits> {
        Some(RowLimits::OF_WORKGROUPS)
    }

    fn row_axes(&self, shape: &[usize], over: AxisSet) -> Option<AxisSet> {
        row_axes_of_workgroups(shape, over)
    }

    fn accepts(&self, graph: &Graph, kernel: &FusedKernel) -> bool {
        if kernel.has_indexed() {
            return false;
        }
        let kernel = with_depth(graph, kernel);
        let places = MemoryPlaces::of_kernel(graph, &kernel);
        kernel.axes.contains(&0) || kernel.to_lines(graph, &places, &mut ShaderFunctions::default(), 1).is_ok()
    }
}

/// Returns a kernel with the depth of its matmul, if it has one, as the last axis, along which the
/// operands are read by element.
fn with_depth(graph: &Graph, kernel: &FusedKernel) -> FusedKernel {
    let mut kernel = kernel.clone();
    let Some(product) = kernel.product().filter(|product| is_matmul(graph, product.node)) else { return kernel };
    let depth = kernel.axes.len();
    let inputs: Vec<usize> = product
        .sources
        .iter()
        .map(|source| match *source {
            StageSource::Input(i) => i,
            StageSource::Stage(_) => panic!("K7: a product is the first stage"),
        })
        .collect();
    let values = inputs.iter().map(|&input| kernel.inputs[input].value).collect::<Vec<_>>();
    let shape = graph.ty(values[0]).element().shape.known().expect("the shapes are known");
    kernel.axes.push(*shape.last().expect("a matrix has columns"));
    let (row, column) = (depth - 2, depth - 1);
    for (i, (value, axes)) in values.into_iter().zip([[row, depth], [depth, column]]).enumerate() {
        let map = (0..row).chain(axes).map(Coord::axis).collect();
        let (value, map) = through_views(graph, value, map);
        let operand = KernelInput::at(value, map);
        // Both operands may be one input.
        let input = match i == 1 && inputs[0] == inputs[1] {
            true => {
                kernel.inputs.push(operand);
                kernel.inputs.len() - 1
            }
            false => {
                kernel.inputs[inputs[i]] = operand;
                inputs[i]
            }
        };
        kernel.stages[0].sources[i] = StageSource::Input(input);
    }
    kernel
}

fn is_matmul(graph: &Graph, node: Node) -> bool {
    matches!(graph.node(node).op, Op::Prim(prim::MATMUL, _))
}

/// The kernels of the loops of a graph that workgroups run.
#[derive(Debug)]
pub struct WorkgroupLoops {
    fusion: Fusion,
    max_steps: u32,
}

impl WorkgroupLoops {
    /// Finds the kernels of a graph, for runs of so many steps.
    pub fn new(graph: &Graph, max_steps: u32) -> WorkgroupLoops {
        WorkgroupLoops { fusion: Fusion::find(graph, &WorkgroupTarget), max_steps }
    }

    /// Returns the shader of a `while`.
    ///
    /// # Errors
    /// Returns the reason if the loop has a stack or list, if it is too much work, if WGSL lacks a
    /// type, or if the shader has no place for an operation.
    ///
    /// # Panics
    /// Panics if the node is not a `while`, or if a shape is not known.
    pub fn shader(&self, graph: &Graph, node: Node) -> Result<LoopShader, NotPrinted> {
        let mut printer = WorkgroupPrinter {
            graph,
            loops: self,
            functions: ShaderFunctions::default(),
            places: MemoryPlaces::default(),
            written: FxHashSet::default(),
            constants: Vec::new(),
            n_words: 1,
            n_names: 0,
            n_steps: 0,
            body: String::new(),
            indentation: 1,
        };
        printer.print(node)
    }
}

/// The state of printing one loop.
struct WorkgroupPrinter<'a> {
    graph: &'a Graph,
    loops: &'a WorkgroupLoops,
    functions: ShaderFunctions,
    places: MemoryPlaces,
    /// The first words of the values that were written since the last barrier.
    written: FxHashSet<usize>,
    /// The constants, with their first words.
    constants: Vec<(usize, HostTensor)>,
    n_words: usize,
    /// The number of predicates that have a name.
    n_names: usize,
    /// The steps of what is printed.
    n_steps: usize,
    body: String,
    indentation: usize,
}

impl WorkgroupPrinter<'_> {
    /// Prints the whole shader.
    fn print(&mut self, node: Node) -> Result<LoopShader, NotPrinted> {
        let data = self.graph.node(node);
        let n_vars = self.graph.while_of(node).n_vars();
        // The largest captures have bindings.
        let mut large: Vec<(usize, usize)> = Vec::new();
        for (i, &operand) in data.operands.iter().enumerate() {
            let size = self.size(operand)?;
            if i >= n_vars && size > MAX_COPIED {
                large.push((size, i));
            }
        }
        large.sort_unstable_by(|a, b| b.cmp(a));
        large.truncate(MAX_BUFFERS - 1);
        let mut in_memory: Vec<usize> = large.into_iter().map(|(_, i)| i).collect();
        in_memory.sort_unstable();
        let mut operands = Vec::new();
        let mut declarations = String::new();
        for (i, &operand) in data.operands.iter().enumerate() {
            operands.push(match in_memory.iter().position(|&other| other == i) {
                Some(binding) => {
                    let ty = match self.dtype(operand)? {
                        DType::Bool => "u32",
                        dtype => type_name(dtype).ok_or(NotPrinted::Type(dtype))?,
                    };
                    declarations +=
                        &format!("@group(0) @binding({binding}) var<storage, read> m{binding}: array<{ty}>;\n");
                    MemoryPlace::Binding(binding)
                }
                None => self.allocate(operand)?,
            });
        }
        // Constants come before what an iteration computes, which has no initial values.
        self.place_constants(node)?;
        let n_initial = self.n_words;
        self.outer_loop(node, &operands)?;
        let binding = in_memory.len();
        declarations += &format!("@group(0) @binding({binding}) var<storage, read_write> words: array<u32>;\n");
        let mut words = Vec::new();
        for (place, &operand) in operands.iter().zip(&data.operands) {
            let size = self.size(operand)?;
            words.push(if let MemoryPlace::Words(first) = *place { Some(first..first + size) } else { None });
        }
        Ok(LoopShader {
            code: self.finish(&declarations),
            in_memory,
            operands: words,
            constants: std::mem::take(&mut self.constants),
            n_initial,
            n_words: self.n_words,
        })
    }

    fn finish(&self, declarations: &str) -> String {
        let mut code = format!("{PRELUDE}\n");
        for text in self.functions.texts.values() {
            code += &format!("{text}\n");
        }
        code += declarations;
        code += &format!(
            "
// A word that one thread writes and all read.
var<workgroup> shared_word: u32;
// 1 if the steps end inside of an iteration, and 2 if it fails.
var<workgroup> failure: atomic<u32>;

fn fail() {{
    atomicMax(&failure, 2u);
}}

fn barrier() {{
    storageBarrier();
    workgroupBarrier();
}}

@compute @workgroup_size({N_THREADS})
fn main(@builtin(local_invocation_index) thread: u32) {{
    if thread == 0u {{ atomicStore(&failure, 0u); }}
    workgroupBarrier();
    var steps = 0u;
{}}}
",
            self.body
        );
        code
    }

    /// Prints the loop of the node of the shader.
    fn outer_loop(&mut self, node: Node, variables: &[MemoryPlace]) -> Result<(), NotPrinted> {
        let looped = self.graph.while_of(node);
        let [ends, goes_on, stuck] = LOOP_STATES;
        let max_steps = self.loops.max_steps;
        self.line(format_args!("var state = {goes_on}u;"));
        self.line(format_args!("loop {{"));
        self.indentation += 1;
        self.line(format_args!("let is_first = steps == 0u;"));
        let ((), cond, cond_steps) = self.printed(|printer| printer.region(looped.cond(), variables))?;
        self.body += &cond;
        let goes = self.decision(Some(looped.predicate()))?;
        let (nexts, body, body_steps) = self.printed(|printer| printer.next_values(node, variables))?;
        let n_steps = 1 + cond_steps + body_steps;
        if n_steps > MAX_STEPS_OF_ITERATION {
            return Err(NotPrinted::TooMuchWork);
        }
        // The iteration of an inner loop that has ended a long run begins again in another run.
        let leave_if_failed = |word: &str| {
            format!("if {word} > 1u {{ if {word} / 2u != 1u || is_first {{ state = {stuck}u; }} break; }}")
        };
        self.line(format_args!("{}", leave_if_failed(&goes)));
        self.line(format_args!("if {goes} == 0u {{ state = {ends}u; break; }}"));
        self.line(format_args!("if !is_first && steps + {n_steps}u > {max_steps}u {{ break; }}"));
        self.line(format_args!("steps += {n_steps}u;"));
        self.body += &body;
        let failed = self.decision(None)?;
        self.line(format_args!("{}", leave_if_failed(&failed)));
        self.assign(&nexts, variables)?;
        self.indentation -= 1;
        self.line(format_args!("}}"));
        self.line(format_args!("if thread == 0u {{ words[0] = state; }}"));
        Ok(())
    }

    /// Prints the body of a loop. Returns the places of the next values, with their sizes.
    fn next_values(
        &mut self,
        node: Node,
        operands: &[MemoryPlace],
    ) -> Result<Vec<(MemoryPlace, usize, DType)>, NotPrinted> {
        let looped = self.graph.while_of(node);
        self.region(looped.body(), operands)?;
        let mut nexts = Vec::new();
        for (variable, &next) in looped.nexts().iter().enumerate() {
            let (size, dtype, place) = (self.size(next)?, self.dtype(next)?, self.place(next));
            // Another variable may change before it is read.
            let is_other = (0..looped.n_vars()).any(|i| i != variable && operands[i] == place);
            let place = if is_other { self.copied(place, size, dtype)? } else { place };
            nexts.push((place, size, dtype));
            if place != operands[variable] {
                self.n_steps += size.div_ceil(N_THREADS);
            }
        }
        Ok(nexts)
    }

    /// Prints the end of an iteration, in which loop variables get their next values.
    fn assign(&mut self, nexts: &[(MemoryPlace, usize, DType)], variables: &[MemoryPlace]) -> Result<(), NotPrinted> {
        self.barrier();
        for (&(next, size, dtype), &variable) in nexts.iter().zip(variables) {
            if next != variable {
                self.copy(next, variable, size, dtype);
            }
        }
        self.barrier();
        Ok(())
    }

    /// Prints a loop inside of the body.
    fn inner_loop(&mut self, node: Node) -> Result<(), NotPrinted> {
        let looped = self.graph.while_of(node);
        let (mut operands, n_vars) = (Vec::new(), looped.n_vars());
        for (i, &operand) in self.graph.entry_values(node).iter().enumerate() {
            self.require(operand)?;
            let (size, dtype, place) = (self.size(operand)?, self.dtype(operand)?, self.place(operand));
            operands.push(if i < n_vars { self.copied(place, size, dtype)? } else { place });
            if i < n_vars {
                self.places.insert(looped.var(i).result, operands[i]);
            }
        }
        self.barrier();
        let max_steps = self.loops.max_steps;
        self.line(format_args!("loop {{"));
        self.indentation += 1;
        let ((), cond, cond_steps) = self.printed(|printer| printer.region(looped.cond(), &operands))?;
        self.body += &cond;
        let goes = self.decision(Some(looped.predicate()))?;
        let (nexts, body, body_steps) = self.printed(|printer| printer.next_values(node, &operands))?;
        let n_steps = 1 + cond_steps + body_steps;
        if n_steps > MAX_STEPS_OF_ITERATION {
            return Err(NotPrinted::TooMuchWork);
        }
        self.line(format_args!("if {goes} != 1u {{ break; }}"));
        self.line(format_args!("if steps + {n_steps}u > {max_steps}u {{ atomicMax(&failure, 1u); break; }}"));
        self.line(format_args!("steps += {n_steps}u;"));
        self.body += &body;
        self.assign(&nexts, &operands)?;
        self.indentation -= 1;
        self.line(format_args!("}}"));
        // Steps of its first condition.
        self.n_steps += 1 + cond_steps;
        Ok(())
    }

    /// Prints lines apart. Returns them, and their steps.
    fn printed<T>(
        &mut self,
        lines: impl FnOnce(&mut Self) -> Result<T, NotPrinted>,
    ) -> Result<(T, String, usize), NotPrinted> {
        let (body, n_steps) = (std::mem::take(&mut self.body), std::mem::take(&mut self.n_steps));
        let result = lines(self)?;
        let lines = std::mem::replace(&mut self.body, body);
        Ok((result, lines, std::mem::replace(&mut self.n_steps, n_steps)))
    }

    /// Prints that all threads read a predicate, or true, and whether something has failed. Returns
    /// the name of the result: the predicate in the lowest bit, and the failure in those above.
    fn decision(&mut self, predicate: Option<Value>) -> Result<String, NotPrinted> {
        let name = format!("c{}", self.n_names);
        self.n_names += 1;
        let word = match predicate {
            Some(value) => {
                self.require(value)?;
                self.place(value).element("0", DType::Bool)
            }
            None => "1u".to_owned(),
        };
        self.barrier();
        self.line(format_args!("if thread == 0u {{ shared_word = {word} | (atomicLoad(&failure) << 1u); }}"));
        self.line(format_args!("let {name} = workgroupUniformLoad(&shared_word);"));
        Ok(name)
    }

    fn region(&mut self, region: Region, arguments: &[MemoryPlace]) -> Result<(), NotPrinted> {
        let data = self.graph.region(region);
        for (&param, &place) in data.params.iter().zip(arguments) {
            self.size(param)?;
            self.places.insert(param, place);
        }
        for &node in &data.nodes {
            self.node(node)?;
        }
        data.yields.iter().try_for_each(|&value| self.require(value))
    }

    fn node(&mut self, node: Node) -> Result<(), NotPrinted> {
        let data = self.graph.node(node);
        match self.loops.fusion.role(node) {
            NodeRole::Inside => return Ok(()),
            NodeRole::Kernel(id) => return self.kernel(self.loops.fusion.kernel(id)),
            NodeRole::Check => panic!("no kernel of a loop reads through indices"),
            NodeRole::Alone => {}
        }
        match &data.op {
            // Views are copied where they are needed in memory. Constants have places.
            Op::Prim(op, _) if matches!(op.class, OpClass::View(_)) || *op == prim::IOTA => Ok(()),
            Op::Constant(_) => Ok(()),
            Op::Prim(op, _) => self.primitive(node, *op),
            Op::Assert { .. } => {
                let ok = self.read(data.operands[0])?.element("0", DType::Bool);
                self.line(format_args!("if {ok} == 0u {{ fail(); }}"));
                Ok(())
            }
            Op::Cond => self.cond(node),
            Op::While { .. } => self.inner_loop(node),
            Op::Call(_) => {
                let callee = self.graph.as_call(node).expect("the node is a call").forward();
                data.operands.iter().try_for_each(|&operand| self.require(operand))?;
                let arguments: Vec<MemoryPlace> = data.operands.iter().map(|&operand| self.place(operand)).collect();
                self.region(callee, &arguments)?;
                for (&result, &value) in data.results.iter().zip(&self.graph.region(callee).yields) {
                    self.size(result)?;
                    self.places.insert(result, self.place(value));
                }
                Ok(())
            }
            _ => Err(NotPrinted::NoTensor),
        }
    }

    fn cond(&mut self, node: Node) -> Result<(), NotPrinted> {
        let (data, branches) = (self.graph.node(node), self.graph.cond_of(node).branches());
        let captures = self.graph.entry_values(node);
        captures.iter().try_for_each(|&capture| self.require(capture))?;
        let captures: Vec<MemoryPlace> = captures.iter().map(|&capture| self.place(capture)).collect();
        let mut results = Vec::new();
        for &result in &data.results {
            results.push((self.allocate(result)?, self.size(result)?, self.dtype(result)?));
        }
        let predicate = self.decision(Some(data.operands[0]))?;
        for (branch, head) in
            branches.into_iter().zip([format!("if ({predicate} & 1u) == 1u {{"), "} else {".to_owned()])
        {
            self.line(format_args!("{head}"));
            self.indentation += 1;
            self.region(branch, &captures)?;
            self.barrier_if_written();
            for (&value, &(result, size, dtype)) in self.graph.region(branch).yields.iter().zip(&results) {
                self.copy(self.place(value), result, size, dtype);
            }
            self.barrier();
            self.indentation -= 1;
        }
        self.line(format_args!("}}"));
        Ok(())
    }

    fn kernel(&mut self, kernel: &FusedKernel) -> Result<(), NotPrinted> {
        let kernel = with_depth(self.graph, kernel);
        for o in 0..kernel.outputs.len() {
            self.allocate(kernel.output(self.graph, o))?;
        }
        for input in &kernel.inputs {
            self.read(input.value)?;
        }
        let lines = kernel.to_lines(self.graph, &self.places, &mut self.functions, self.indentation + 1)?;
        self.line(format_args!("{{"));
        self.body += &lines.lines;
        self.line(format_args!("}}"));
        self.n_steps += lines.n_steps;
        for o in 0..kernel.outputs.len() {
            self.write(kernel.output(self.graph, o));
        }
        Ok(())
    }

    fn primitive(&mut self, node: Node, op: Prim) -> Result<(), NotPrinted> {
        let data = self.graph.node(node);
        let result = data.results[0];
        let (size, dtype) = (self.size(result)?, self.dtype(result)?);
        if op.is_registered() {
            return Err(NotPrinted::NoFunction(op, dtype));
        }
        match op {
            _ if matches!(op.class, OpClass::Random(_)) => return self.kernel(&kernel_of_node(self.graph, node)),
            prim::SOFTMAX | prim::LOG_SOFTMAX | prim::LOGSUMEXP => return self.softmax(data, op),
            prim::CONCAT => {
                let axis = Along::of(attrs_of(data)).axis;
                let mut start = 0;
                self.allocate(result)?;
                for &part in &data.operands {
                    self.copy_part(part, result, axis, [start, 1])?;
                    start += self.shape(part)[axis];
                }
            }
            prim::UPDATE_SLICE => {
                let SliceTarget { axis, start, step } = SliceTarget::of(attrs_of(data));
                let whole = self.read(data.operands[0])?;
                let place = self.allocate(result)?;
                self.copy(whole, place, size, dtype);
                self.barrier();
                self.copy_part(data.operands[1], result, axis, [start, step])?;
            }
            prim::DYNAMIC_UPDATE_SLICE => {
                let axis = Along::of(attrs_of(data)).axis;
                let whole = self.read(data.operands[0])?;
                let place = self.allocate(result)?;
                self.copy(whole, place, size, dtype);
                self.barrier();
                let (part, start) = (self.read(data.operands[1])?, self.read(data.operands[2])?);
                let of_start = self.dtype(data.operands[2])?;
                let (extents, extent) = (self.shape(data.operands[1]), self.shape(result)[axis]);
                let inner: usize = extents[axis + 1..].iter().product();
                self.for_each(extents.iter().product(), |printer| {
                    let along = printer.split_index(extents[axis], inner);
                    printer.index_below(&format!("{} + {along}", word_at(start, "0", of_start)), extent);
                    let index = format!("(outer * {extent}u + at) * {inner}u + inner");
                    let value = word_at(part, "i", dtype);
                    printer.line(format_args!("{} = {value};", place.word(&index)));
                });
            }
            prim::TAKE | prim::TAKE_ALONG_AXIS | prim::DYNAMIC_SLICE => {
                let axis = Along::of(attrs_of(data)).axis;
                let (x, ids) = (self.read(data.operands[0])?, self.read(data.operands[1])?);
                let (extents, n_ids) = (self.shape(data.operands[0]), self.size(data.operands[1])?);
                let of_ids = self.dtype(data.operands[1])?;
                let place = self.allocate(result)?;
                let (outer, extent) = (extents[..axis].iter().product::<usize>(), extents[axis]);
                let inner: usize = extents[axis + 1..].iter().product();
                let length = if op == prim::TAKE { n_ids } else { size / (outer * inner) };
                self.for_each(size, |printer| {
                    let along = printer.split_index(length, inner);
                    printer.index_below(
                        &match op {
                            prim::TAKE => word_at(ids, &along, of_ids),
                            prim::TAKE_ALONG_AXIS => word_at(ids, "i", of_ids),
                            _ => format!("{} + {along}", word_at(ids, "0", of_ids)),
                        },
                        extent,
                    );
                    let value = word_at(x, &format!("(outer * {extent}u + at) * {inner}u + inner"), dtype);
                    printer.line(format_args!("{} = {value};", place.word("i")));
                });
            }
            prim::CHECK_INDEX => {
                let below = index_end(IndexRange::of(attrs_of(data)), dtype)?;
                let (ids, place) = (self.read(data.operands[0])?, self.allocate(result)?);
                self.for_each(size, |printer| {
                    let id = word_at(ids, "i", dtype);
                    printer.line(format_args!("if {id} >= {below}u {{ fail(); }}"));
                    printer.line(format_args!("{} = {id};", place.word("i")));
                });
            }
            _ => return Err(NotPrinted::NoFunction(op, dtype)),
        }
        self.write(result);
        Ok(())
    }

    /// Prints a softmax, its logarithm or the logarithm of the sum of exponentials, as in
    /// `softmax.wgsl`.
    fn softmax(&mut self, data: &NodeData, op: Prim) -> Result<(), NotPrinted> {
        let (x, y) = (data.operands[0], data.results[0]);
        if self.dtype(x)? != DType::F32 {
            return Err(NotPrinted::NoFunction(op, self.dtype(x)?));
        }
        let axis = match op {
            prim::LOGSUMEXP => AlongOrKept::of(attrs_of(data)).axis,
            _ => Along::of(attrs_of(data)).axis,
        };
        let shape = self.shape(x);
        let (n, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
        let rows = shape[..axis].iter().product::<usize>() * inner;
        let (from, to) = (self.read(x)?, self.allocate(y)?);
        let mut function = |op: Prim| self.functions.function(op, DType::F32, DType::F32);
        let (largest, add) = (function(Combiner::Max.prim())?, function(Combiner::Sum.prim())?);
        let (exp, log) = (function(prim::EXP)?, function(prim::LOG)?);
        let [tree_of_max, tree_of_sum] =
            [&largest, &add].map(|combine| self.functions.tree_in_workgroup(combine, "f32", SOFTMAX_LANES));
        let at_once = N_THREADS / SOFTMAX_LANES;
        let each = format!("for (var i = lane; i < {n}u; i += {SOFTMAX_LANES}u) {{");
        let element = from.element(&format!("begin + i * {inner}u"), DType::F32);
        self.line(format_args!("for (var first = 0u; first < {rows}u; first += {at_once}u) {{"));
        self.indentation += 1;
        self.line(format_args!("let lane = thread % {SOFTMAX_LANES}u;"));
        self.line(format_args!("let is_row = first + thread / {SOFTMAX_LANES}u < {rows}u;"));
        self.line(format_args!("let row = min(first + thread / {SOFTMAX_LANES}u, {}u);", rows - 1));
        self.line(format_args!("let begin = row / {inner}u * {}u + row % {inner}u;", n * inner));
        self.line(format_args!("var largest = -bitcast<f32>(infinity_bits);"));
        self.line(format_args!("{each} largest = {largest}(largest, {element}); }}"));
        self.line(format_args!("largest = {tree_of_max}(thread, lane, largest);"));
        self.line(format_args!("let is_finite = (bitcast<u32>(largest) & 0x7fffffffu) < 0x7f800000u;"));
        self.line(format_args!("let shift = select(0.0f, largest, is_finite);"));
        self.line(format_args!("var sum = 0.0f;"));
        self.line(format_args!("{each} sum += {exp}({element} - shift); }}"));
        self.line(format_args!("sum = {tree_of_sum}(thread, lane, sum);"));
        let value = match op {
            prim::SOFTMAX => format!("{exp}({element} - shift) / sum"),
            prim::LOG_SOFTMAX => format!("{element} - shift - {log}(sum)"),
            _ => format!("shift + {log}(sum)"),
        };
        match op {
            prim::LOGSUMEXP => {
                let word = to.word("row");
                self.line(format_args!("if is_row && lane == 0u {{ {word} = bitcast<u32>({value}); }}"));
            }
            _ => {
                let word = to.word(&format!("begin + i * {inner}u"));
                self.line(format_args!("if is_row {{ {each} {word} = bitcast<u32>({value}); }} }}"));
            }
        }
        self.indentation -= 1;
        self.line(format_args!("}}"));
        self.n_steps +=
            rows.div_ceil(at_once) * (1 + 3 * n.div_ceil(SOFTMAX_LANES) + 2 * SOFTMAX_LANES.ilog2() as usize);
        self.write(y);
        Ok(())
    }

    /// Prints the copy of a tensor to a part of another one, from an index along an axis and with a
    /// step.
    fn copy_part(&mut self, part: Value, whole: Value, axis: usize, along: [usize; 2]) -> Result<(), NotPrinted> {
        let (base, map) = viewed(self.graph, part);
        let (from, to, dtype) = (self.read(base)?, self.place(whole), self.dtype(part)?);
        let (shape, extents, of_base) = (self.shape(part), self.shape(whole), self.shape(base));
        let [start, step] = along;
        let target = |k: usize| match k == axis {
            true => Coord { term: Some((k, step as isize)), offset: start },
            false => Coord::axis(k),
        };
        let target: Vec<Coord> = (0..shape.len()).map(target).collect();
        self.for_each(shape.iter().product(), |printer| {
            let mut stride = 1;
            for (axis, &extent) in shape.iter().enumerate().rev().filter(|(_, extent)| **extent != 1) {
                printer.line(format_args!("let a{axis} = i / {stride}u % {extent}u;"));
                stride *= extent;
            }
            let value = word_at(from, &element_index(&map, &of_base, &shape), dtype);
            printer.line(format_args!("{} = {value};", to.word(&element_index(&target, &extents, &shape))));
        });
        Ok(())
    }

    /// Prints a loop in which the threads take elements in turns, numbered `i`.
    fn for_each(&mut self, size: usize, lines: impl FnOnce(&mut Self)) {
        if size == 0 {
            return;
        }
        self.line(format_args!("for (var i = thread; i < {size}u; i += {N_THREADS}u) {{"));
        self.indentation += 1;
        lines(self);
        self.indentation -= 1;
        self.line(format_args!("}}"));
        self.n_steps += size.div_ceil(N_THREADS);
    }

    /// Prints the indices `outer` and `inner` of an element `i` of a tensor `[outer, length,
    /// inner]`. Returns the index between them.
    fn split_index(&mut self, length: usize, n_inner: usize) -> String {
        self.line(format_args!("let inner = i % {n_inner}u;"));
        self.line(format_args!("let outer = i / {}u;", length * n_inner));
        format!("(i / {n_inner}u % {length}u)")
    }

    /// Prints the index `at`. If it is not below the extent, it is 0, and the iteration fails.
    fn index_below(&mut self, index: &str, extent: usize) {
        self.line(format_args!("var at = {index};"));
        self.line(format_args!("if at >= {extent}u {{ fail(); at = 0u; }}"));
    }

    /// Prints a copy to words.
    fn copy(&mut self, from: MemoryPlace, to: MemoryPlace, size: usize, dtype: DType) {
        self.for_each(size, |printer| {
            let value = word_at(from, "i", dtype);
            printer.line(format_args!("{} = {value};", to.word("i")));
        });
    }

    /// Prints a copy to new words.
    fn copied(&mut self, from: MemoryPlace, size: usize, dtype: DType) -> Result<MemoryPlace, NotPrinted> {
        self.wait_for(from);
        let to = self.words(size)?;
        self.copy(from, to, size, dtype);
        if let MemoryPlace::Words(first) = to {
            self.written.insert(first);
        }
        Ok(to)
    }

    /// Makes sure that a value has a place: a view is copied, and a reshape shares its words.
    fn require(&mut self, value: Value) -> Result<(), NotPrinted> {
        if self.places.get(value).is_some() {
            return Ok(());
        }
        let node = self.graph.producer(value).expect("parameters have places");
        let data = self.graph.node(node);
        self.size(value)?;
        if matches!(data.op, Op::Prim(prim::RESHAPE | prim::RESHAPE_LIKE | prim::WITH_DYNAMIC, _)) {
            self.require(data.operands[0])?;
            self.places.insert(value, self.place(data.operands[0]));
            return Ok(());
        }
        self.kernel(&kernel_of_node(self.graph, node))
    }

    /// Returns the place of a value that is read next.
    fn read(&mut self, value: Value) -> Result<MemoryPlace, NotPrinted> {
        self.require(value)?;
        let place = self.place(value);
        self.wait_for(place);
        Ok(place)
    }

    /// Prints a barrier if a place was written since the last one.
    fn wait_for(&mut self, place: MemoryPlace) {
        if matches!(place, MemoryPlace::Words(first) if self.written.contains(&first)) {
            self.barrier();
        }
    }

    fn barrier_if_written(&mut self) {
        if !self.written.is_empty() {
            self.barrier();
        }
    }

    fn barrier(&mut self) {
        self.line(format_args!("barrier();"));
        self.written.clear();
    }

    /// Notes that a value was written.
    fn write(&mut self, value: Value) {
        if let MemoryPlace::Words(first) = self.place(value) {
            self.written.insert(first);
        }
    }

    fn place(&self, value: Value) -> MemoryPlace {
        self.places.get(value).expect("a value has a place before it is used")
    }

    /// Returns new words for a value.
    fn allocate(&mut self, value: Value) -> Result<MemoryPlace, NotPrinted> {
        let size = self.size(value)?;
        let place = self.words(size)?;
        self.places.insert(value, place);
        Ok(place)
    }

    fn words(&mut self, size: usize) -> Result<MemoryPlace, NotPrinted> {
        let first = self.n_words;
        self.n_words += size;
        if self.n_words > MAX_WORDS { Err(NotPrinted::TooMuchWork) } else { Ok(MemoryPlace::Words(first)) }
    }

    /// Gives words to the constants of a loop, and to what follows from shapes alone.
    fn place_constants(&mut self, node: Node) -> Result<(), NotPrinted> {
        let graph = self.graph;
        let mut constants = Vec::new();
        for &region in &graph.node(node).regions {
            graph.visit_nodes(region, &mut |inner| constants.push(inner));
        }
        for inner in constants {
            let data = graph.node(inner);
            let tensor = match &data.op {
                Op::Constant(tensor) => tensor.clone(),
                Op::Prim(op @ prim::IOTA, attrs) => {
                    let ty = graph.ty(data.results[0]).element();
                    let evaluated = op.evaluate(&EvalCx { operands: &[], attrs, ty });
                    evaluated.map_err(|_| NotPrinted::NoFunction(*op, ty.dtype))?
                }
                _ => continue,
            };
            let MemoryPlace::Words(first) = self.allocate(data.results[0])? else { panic!("words were allocated") };
            if self.n_words > MAX_INITIAL {
                return Err(NotPrinted::TooMuchWork);
            }
            self.constants.push((first, tensor));
        }
        Ok(())
    }

    fn shape(&self, value: Value) -> Vec<usize> {
        self.graph.ty(value).element().shape.known().expect("the shapes are known")
    }

    fn dtype(&self, value: Value) -> Result<DType, NotPrinted> {
        let ty = self.graph.ty(value).as_tensor().ok_or(NotPrinted::NoTensor)?;
        type_name(ty.dtype).map(|_| ty.dtype).ok_or(NotPrinted::Type(ty.dtype))
    }

    /// Returns the number of words of a tensor.
    fn size(&self, value: Value) -> Result<usize, NotPrinted> {
        self.dtype(value)?;
        match self.graph.ty(value).element().shape.size() {
            Some(0) | None => Err(NotPrinted::NoElements),
            Some(size) => i32::try_from(size).map(|_| size).map_err(|_| NotPrinted::TooLarge),
        }
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        writeln!(self.body, "{:1$}{line}", "", 4 * self.indentation).expect("a string takes all text");
    }
}

/// Returns an element of a place as a word.
fn word_at(place: MemoryPlace, index: &str, dtype: DType) -> String {
    match (place, dtype) {
        (MemoryPlace::Words(_), _) => place.word(index),
        (MemoryPlace::Binding(_), DType::F32 | DType::I32) => format!("bitcast<u32>({})", place.element(index, dtype)),
        (MemoryPlace::Binding(_), _) => place.element(index, dtype),
    }
}

fn attrs_of(data: &NodeData) -> &crate::ir::Attrs {
    let Op::Prim(_, attrs) = &data.op else { panic!("the node is a primitive operation") };
    attrs
}
