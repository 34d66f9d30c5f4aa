//! Printing of kernels as compute shaders in the shading language of WebGPU.
//!
//! There are two templates:
//!
//! | template | kernels | threads |
//! |---|---|---|
//! | *flat* | without reductions | one for each element |
//! | *rows* | with reductions over the same axes | a workgroup for each index of the other axes |
//!
//! If a flat kernel has many elements, a thread reads and writes four of them at once where they
//! are one vector in memory.
//!
//! A *row* is the set of elements with the same index along the axes that are kept. The threads of
//! its workgroup take its elements in turns, and combine what each of them has reduced in a tree of
//! fixed order in workgroup memory. Then all threads have the result. Stages that read it run in a
//! second loop over the row, which computes earlier stages again instead of storing them.
//!
//! A kernel inside of a loop that one workgroup runs (`workgroup_loop.rs`) has the same templates,
//! whose threads take all elements in turns, or compute several rows at once.
//!
//! A kernel with a product has no template here: shaders for products are written by hand, and call
//! functions that read elements of the operands, and that compute an element of the result from
//! that of the product, the *epilogue* ([`ProductText`]).
//!
//! # Memory
//!
//! Tensors are contiguous and row-major. A `bool` is a `u32` in memory, 0 or 1, since WGSL has no
//! smaller type there. A 16-bit float is a `u16` with its bits in memory, for devices that have
//! such integers, and a number in `f32` in variables. An index has at most 31 bits, so that a loop
//! over indices ends.
//!
//! # Errors
//!
//! A shader cannot fail. Where an integer is divided by zero, it writes the number of the check to
//! the word `failure` unless an earlier check has failed: [`KernelShader::can_fail`].

use super::access::viewed;
use super::shader_functions::{FOLDED, RANDOM, ShaderFunctions};
use super::shader_memory::{FourElements, MemoryPlaces, element_index, four_elements, joined_axes};
use super::{AxisSet, Coord, FusedKernel, IndexedCoord, KernelInput, KernelStage, StageSource, StageWork};
use crate::ir::{Graph, Node, Op, Value};
use crate::ops::attributes::IndexRange;
use crate::ops::{Combiner, OpClass, Prim, ScalarForm, function_dtype, prim};
use crate::scalars::wgsl::{ENABLE_HALVES, PRELUDE, type_name};
use crate::{Buffer, DType};
use std::fmt::{self, Display, Write};

/// The threads of a workgroup of the flat template, and the most of a workgroup of the other one.
pub(super) const THREADS: [usize; 2] = [64, 256];

/// The number of elements from which on a workgroup computes [`OF_WORKGROUP`] of them. To begin a
/// workgroup takes as long as to compute some elements, above all on a CPU.
const MANY_ELEMENTS: usize = 1 << 16;

/// The elements of a workgroup if there are many.
const OF_WORKGROUP: usize = 2048;

/// The largest number of operations of a kernel that reads and writes four elements at once, and
/// repeats the operations for each of them.
const MAX_OPERATIONS_OF_FOUR: usize = 16;

/// The number of workgroups along one axis that every device supports.
///
/// Workgroups are numbered along the first axis, which has this extent if there is more than one
/// along the second. Shaders do not ask for the number of workgroups: DX12 has none for indirect
/// dispatches.
pub const MAX_WORKGROUPS: usize = 65_535;

/// The number of storage buffers that every device supports.
pub(super) const MAX_BUFFERS: usize = 8;

/// Returns the name of the type of an element in memory, if WGSL has one.
fn memory_type(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::Bool => Some("u32"),
        DType::F16 | DType::BF16 => Some("u16"),
        _ => type_name(dtype),
    }
}

/// Returns the type of the variable for an element, which has all its values.
fn type_of_variable(dtype: DType) -> DType {
    if dtype.is_half() { DType::F32 } else { dtype }
}

/// A kernel as a shader with the entry point `main`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelShader {
    /// The text.
    pub code: String,
    /// The tensors of the bindings of group 0, in order: the inputs, then the outputs.
    pub bindings: Vec<Value>,
    /// The number of workgroups along the first two axes.
    pub workgroups: [usize; 2],
    /// Whether the shader reports errors. It then has one more binding, a word that is 0 at first,
    /// and an immediate word, the number of the check. An error raises the word to that number.
    pub can_fail: bool,
}

/// The part of the shader of a kernel with a product that depends on its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProductText {
    /// The bindings of all tensors, and functions on row-major indices: `operand0(i: u32) -> f32`
    /// and `operand1` read an element of an operand of the product, and `finish(i: u32, s0: f32)`
    /// computes and writes an element of the result from that of the product.
    pub code: String,
    /// The tensors of the bindings of group 0, in order: the inputs, then the result.
    pub bindings: Vec<Value>,
}

/// A kernel as lines of a shader whose workgroup runs several kernels.
pub(super) struct LinesOfKernel {
    pub(super) lines: String,
    /// The iterations of loops of a thread.
    pub(super) n_steps: usize,
}

/// The reason why a kernel is not printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotPrinted {
    /// A product has no template here, and a reduction of its elements is no epilogue.
    Product(Prim),
    /// WGSL lacks the element type.
    Type(DType),
    /// A shader cannot report the error of an operation.
    CanFail(Prim),
    /// The operation has no recorded form for the type.
    NoFunction(Prim, DType),
    /// The reductions are over different axes.
    SeveralReductions,
    /// An index does not fit into 31 bits.
    TooLarge,
    /// So many buffers are more than a shader may have.
    Buffers(usize),
    /// There is nothing to compute.
    NoElements,
    /// A loop does not work on numbers alone.
    SeveralElements,
    /// The iterations of a loop depend on each other.
    DependentIterations,
    /// A workgroup keeps no stacks and lists.
    NoTensor,
    /// An iteration is too much for one workgroup.
    TooMuchWork,
}

impl Display for NotPrinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotPrinted::Product(op) => write!(f, "no shader has `{op}` and what follows it"),
            NotPrinted::Type(dtype) => write!(f, "WGSL has no {dtype}"),
            NotPrinted::CanFail(op) => write!(f, "a shader cannot report the error of `{op}`"),
            NotPrinted::NoFunction(op, dtype) => write!(f, "`{op}` has no recorded form for {dtype}"),
            NotPrinted::SeveralReductions => write!(f, "its reductions are over different axes"),
            NotPrinted::TooLarge => write!(f, "its indices do not fit into 31 bits"),
            NotPrinted::Buffers(n) => write!(f, "it needs {n} buffers, more than a shader may have"),
            NotPrinted::NoElements => write!(f, "it has no elements"),
            NotPrinted::SeveralElements => write!(f, "it does not work on numbers alone"),
            NotPrinted::DependentIterations => write!(f, "its iterations depend on each other"),
            NotPrinted::NoTensor => write!(f, "it works on a stack or list"),
            NotPrinted::TooMuchWork => write!(f, "it is too much for one workgroup"),
        }
    }
}

impl std::error::Error for NotPrinted {}

impl FusedKernel {
    /// Returns the kernel as a compute shader.
    ///
    /// # Errors
    /// Returns the reason if no template fits or if WGSL lacks a type.
    pub fn to_wgsl(&self, graph: &Graph) -> Result<KernelShader, NotPrinted> {
        if let Some(product) = self.product() {
            return Err(NotPrinted::Product(op_of(graph, product)));
        }
        let printer = ShaderPrinter::new(graph, self, None)?;
        if printer.has_rows() { printer.rows() } else { printer.flat() }
    }

    /// Returns the kernel as lines of a shader that has its tensors at some places. The operands of
    /// a matmul are read by element, and its depth is the last axis.
    ///
    /// # Errors
    /// Returns the reason if no template fits or if WGSL lacks a type.
    pub(super) fn to_lines(
        &self,
        graph: &Graph,
        places: &MemoryPlaces,
        functions: &mut ShaderFunctions,
        indentation: usize,
    ) -> Result<LinesOfKernel, NotPrinted> {
        let mut printer = ShaderPrinter::new(graph, self, Some(places))?;
        printer.indentation = indentation;
        std::mem::swap(&mut printer.functions, functions);
        let printed = if printer.has_rows() { printer.print_rows() } else { printer.print_flat() };
        std::mem::swap(&mut printer.functions, functions);
        printed.map(|_| LinesOfKernel { lines: printer.body, n_steps: printer.n_steps })
    }

    /// Returns how the elements of the operands of the kernel's product are read, and what is
    /// computed from those of the product.
    ///
    /// # Errors
    /// Returns the reason if the elements are no `f32`, if the kernel reduces them, or if WGSL
    /// lacks a type.
    ///
    /// # Panics
    /// Panics if the kernel has no product.
    pub fn product_to_wgsl(&self, graph: &Graph) -> Result<ProductText, NotPrinted> {
        ShaderPrinter::new(graph, self, None)?.product()
    }
}

/// Returns a node that is in no kernel as a compute shader: a view, which the shader copies, or
/// random numbers.
///
/// # Errors
/// Returns the reason if WGSL lacks a type, or if the tensor is too large.
///
/// # Panics
/// Panics if the node is another operation, or if a shape is not known.
pub fn node_to_wgsl(graph: &Graph, node: Node) -> Result<KernelShader, NotPrinted> {
    ShaderPrinter::new(graph, &kernel_of_node(graph, node), None)?.flat()
}

/// Returns the kernel of a view, which copies it, or of random numbers.
///
/// # Panics
/// Panics if the node is another operation, or if a shape is not known.
pub(super) fn kernel_of_node(graph: &Graph, node: Node) -> FusedKernel {
    let data = graph.node(node);
    let Op::Prim(op, _) = data.op else { panic!("{node} is a primitive operation") };
    let axes = graph.ty(data.results[0]).element().shape.known().expect("the shape is known");
    let along = AxisSet::first(axes.len());
    let (inputs, work) = match op.class {
        OpClass::View(_) => {
            let (value, map) = viewed(graph, data.results[0]);
            (vec![KernelInput::at(value, map)], StageWork::Map)
        }
        OpClass::Random(_) => (data.operands.iter().copied().map(KernelInput::whole).collect(), StageWork::Draw),
        _ => panic!("`{op}` is neither a view nor random numbers"),
    };
    let sources = (0..inputs.len()).map(StageSource::Input).collect();
    let stage = KernelStage { node, work, sources, along };
    FusedKernel { axes, inputs, stages: vec![stage], outputs: vec![0] }
}

/// Returns shader functions for elementwise operations on `f32`, each named for its operation as in
/// `exp_f32`, with the functions and variables that they use.
///
/// # Panics
/// Panics if an operation has no recorded form.
pub fn functions_to_wgsl(ops: &[Prim]) -> String {
    ops.iter().fold(PRELUDE.to_owned(), |text, op| {
        let form = op.scalar_form(DType::F32).expect("the operation has a recorded form");
        let function = form.to_wgsl(&format!("{}_f32", op.name), op.name);
        text + "\n" + &function.expect("WGSL has f32")
    })
}

/// Returns whether a stage of an operation, whose last operand has the type `operand`, can be
/// printed.
///
/// # Errors
/// Returns the reason if WGSL lacks a type, or a shader cannot report the error of the operation.
pub fn stage_to_wgsl(op: Prim, operand: DType, result: DType) -> Result<(), NotPrinted> {
    let is_conversion = matches!(op.class, OpClass::Scalar(ScalarForm::Conversion));
    if is_conversion && result == DType::BF16 && operand.is_int() {
        // It would be rounded twice.
        return Err(NotPrinted::NoFunction(op, operand));
    }
    if matches!(op.class, OpClass::Reduce(_) | OpClass::Random(_)) && result.is_half() {
        return Err(NotPrinted::NoFunction(op, result));
    }
    let [operand, result] = [operand, result].map(type_of_variable);
    for dtype in [operand, result] {
        type_name(dtype).ok_or(NotPrinted::Type(dtype))?;
    }
    match op.class {
        OpClass::Scalar(_) if is_conversion && operand == result => Ok(()),
        OpClass::Reduce(by) => identity(by, operand).map(|_| ()).ok_or(NotPrinted::NoFunction(op, operand)),
        OpClass::Scalar(_) if op.can_fail(operand) && !is_quotient(op) => Err(NotPrinted::CanFail(op)),
        OpClass::Scalar(ScalarForm::Identity) => Ok(()),
        OpClass::Scalar(_) => {
            let form = op.scalar_form_to(operand, result).ok_or(NotPrinted::NoFunction(op, operand))?;
            form.to_wgsl("f", op.name).map(|_| ()).ok_or(NotPrinted::Type(operand))
        }
        OpClass::View(_) => Ok(()),
        OpClass::Random(_) if matches!(op, prim::RANDOM_BITS | prim::RANDOM_UNIFORM) => Ok(()),
        _ => Err(NotPrinted::NoFunction(op, operand)),
    }
}

/// Returns the number that the indices of a `check_index` must be less than, as words without a
/// sign, given its attributes and their type.
///
/// # Errors
/// Returns a reason if no word is that number.
pub fn index_end(IndexRange { extent, size, .. }: IndexRange, dtype: DType) -> Result<u32, NotPrinted> {
    // No index is in range if the part is larger than the axis.
    let end = (extent + 1).saturating_sub(size);
    match dtype {
        DType::I32 => Ok(u32::try_from(end).map_or(1 << 31, |end| end.min(1 << 31))),
        _ => u32::try_from(end).map_err(|_| NotPrinted::TooLarge),
    }
}

/// The state of printing one kernel.
struct ShaderPrinter<'a> {
    graph: &'a Graph,
    kernel: &'a FusedKernel,
    /// The tensors of the bindings. Inputs with the same tensor share one.
    bindings: Vec<Value>,
    /// The places of the tensors, unless they have bindings.
    places: Option<&'a MemoryPlaces>,
    /// The extents of the axes, of which some are joined with the next one.
    axes: Vec<usize>,
    /// The axes that reductions reduce.
    reduced: AxisSet,
    /// For each stage the number of reductions, one after another, that its value depends on.
    levels: Vec<usize>,
    functions: ShaderFunctions,
    can_fail: bool,
    /// The tensors that are arrays of vectors of four elements.
    vectors: Vec<Value>,
    /// The lines of the entry point.
    body: String,
    indentation: usize,
    /// The iterations of loops of a thread.
    n_steps: usize,
}

impl<'a> ShaderPrinter<'a> {
    fn new(
        graph: &'a Graph,
        kernel: &'a FusedKernel,
        places: Option<&'a MemoryPlaces>,
    ) -> Result<ShaderPrinter<'a>, NotPrinted> {
        let mut reduced = None;
        let mut levels: Vec<usize> = Vec::new();
        for stage in &kernel.stages {
            let level = |source: &StageSource| if let StageSource::Stage(i) = source { levels[*i] } else { 0 };
            let level = stage.sources.iter().map(level).max().unwrap_or(0);
            levels.push(match stage.work {
                StageWork::Product if places.is_some() => {
                    let depth = kernel.axes.len() - 1;
                    if op_of(graph, stage) != prim::MATMUL {
                        return Err(NotPrinted::Product(op_of(graph, stage)));
                    }
                    reduced = Some([depth].into_iter().collect());
                    1
                }
                StageWork::Product => 0,
                StageWork::Rowwise { .. } => {
                    let dtype = graph.ty(graph.node(stage.node).results[0]).element().dtype;
                    return Err(NotPrinted::NoFunction(op_of(graph, stage), dtype));
                }
                StageWork::Map | StageWork::Draw => level,
                StageWork::Reduce { over, .. } => {
                    if reduced.is_some_and(|others| others != over) {
                        return Err(NotPrinted::SeveralReductions);
                    }
                    reduced = Some(over);
                    level + 1
                }
            });
        }
        let mut bindings: Vec<Value> = Vec::new();
        for input in &kernel.inputs {
            if !bindings.contains(&input.value) {
                bindings.push(input.value);
            }
        }
        bindings.extend((0..kernel.outputs.len()).map(|o| kernel.output(graph, o)));
        if places.is_none() && bindings.len() > MAX_BUFFERS {
            return Err(NotPrinted::Buffers(bindings.len()));
        }
        let sizes = bindings.iter().map(|&v| graph.ty(v).element().shape.size().expect("the shapes are known"));
        let size = kernel.axes.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent));
        if sizes.chain([size.unwrap_or(usize::MAX)]).any(|n| i32::try_from(n).is_err()) {
            return Err(NotPrinted::TooLarge);
        }
        let reduced = reduced.unwrap_or_default();
        Ok(ShaderPrinter {
            graph,
            kernel,
            bindings,
            places,
            axes: joined_axes(graph, kernel),
            reduced,
            levels,
            functions: ShaderFunctions::default(),
            can_fail: false,
            vectors: Vec::new(),
            body: String::new(),
            indentation: 1,
            n_steps: 0,
        })
    }

    /// Returns whether the template of rows fits.
    fn has_rows(&self) -> bool {
        !self.reduced.is_empty() || self.levels.iter().any(|&level| level > 0)
    }

    fn flat(mut self) -> Result<KernelShader, NotPrinted> {
        let [n_groups, threads] = self.print_flat()?;
        self.finish(n_groups, threads)
    }

    /// Prints one thread for each element, or for a few of them if there are many. Returns the
    /// number of workgroups, and of threads of each.
    fn print_flat(&mut self) -> Result<[usize; 2], NotPrinted> {
        let all = AxisSet::first(self.kernel.axes.len());
        let n = self.extent(all);
        if n == 0 {
            return Err(NotPrinted::NoElements);
        }
        if let Some(inputs) = self.inputs_in_fours() {
            return self.print_fours(&inputs);
        }
        let (threads, at_once) = match self.places {
            Some(_) => (THREADS[1], n.max(THREADS[1] + 1)),
            None if n < MANY_ELEMENTS => (THREADS[0], THREADS[0]),
            None => (THREADS[1], OF_WORKGROUP),
        };
        if self.places.is_some() {
            self.line(format_args!("for (var i = thread; i < {n}u; i += {threads}u) {{"));
            self.indentation += 1;
            self.n_steps = n.div_ceil(threads);
        } else if at_once == threads {
            self.line(format_args!("let i = (group.x + group.y * {MAX_WORKGROUPS}u) * {threads}u + thread;"));
            self.line(format_args!("if i >= {n}u {{ return; }}"));
        } else {
            self.line(format_args!("let first = (group.x + group.y * {MAX_WORKGROUPS}u) * {at_once}u;"));
            self.line(format_args!("let end = min(first + {at_once}u, {n}u);"));
            self.line(format_args!("for (var i = first + thread; i < end; i += {threads}u) {{"));
            self.indentation += 1;
        }
        self.unravel("i", all);
        for i in self.inputs_of(0..self.kernel.stages.len()) {
            self.load(i);
        }
        for s in 0..self.kernel.stages.len() {
            self.stage(s)?;
        }
        for o in 0..self.kernel.outputs.len() {
            self.store(o, all, None);
        }
        if at_once > threads {
            self.indentation -= 1;
            self.line(format_args!("}}"));
        }
        Ok([n.div_ceil(at_once), threads])
    }

    /// Returns how a flat kernel of many elements reads each input at four indices of the last
    /// axis, if all tensors can be read and written so.
    fn inputs_in_fours(&self) -> Option<Vec<FourElements>> {
        let (graph, kernel) = (self.graph, self.kernel);
        let all = AxisSet::first(kernel.axes.len());
        let axis = (0..self.axes.len()).rev().find(|&axis| self.axes[axis] != 1)?;
        let is_large = self.extent(all) >= MANY_ELEMENTS && self.axes[axis].is_multiple_of(4);
        if self.places.is_some() || !is_large || kernel.stages.len() > MAX_OPERATIONS_OF_FOUR {
            return None;
        }
        let is_word = |value: Value| !graph.ty(value).element().dtype.is_half();
        let can_repeat = |stage: &KernelStage| {
            stage.work == StageWork::Map && !op_of(graph, stage).can_fail(function_dtype(graph, graph.node(stage.node)))
        };
        let has_all_axes = |&stage: &usize| {
            let mut missing = all.without(kernel.stages[stage].along).iter();
            missing.all(|axis| self.axes[axis] == 1)
        };
        if !self.bindings.iter().all(|&v| is_word(v))
            || !kernel.stages.iter().all(can_repeat)
            || !kernel.outputs.iter().all(has_all_axes)
        {
            return None;
        }
        if kernel.has_indexed() {
            return None;
        }
        let read = |input: &KernelInput| {
            let shape = graph.ty(input.value).element().shape.known().expect("the shapes are known");
            four_elements(input.map.as_ref()?, &shape, &self.axes, axis)
        };
        let inputs: Vec<FourElements> = kernel.inputs.iter().map(read).collect::<Option<_>>()?;
        // A binding has one type.
        let is_vector = |value: Value| {
            let mut of_value = kernel.inputs.iter().zip(&inputs).filter(move |(input, _)| input.value == value);
            let first = of_value.next().map(|(_, read)| *read);
            of_value.all(|(_, read)| Some(*read) == first)
        };
        kernel.inputs.iter().all(|input| is_vector(input.value)).then_some(inputs)
    }

    /// Prints a thread for each four elements. Returns the number of workgroups, and of threads of
    /// each.
    fn print_fours(&mut self, inputs: &[FourElements]) -> Result<[usize; 2], NotPrinted> {
        let kernel = self.kernel;
        let all = AxisSet::first(kernel.axes.len());
        let (n, threads) = (self.extent(all), THREADS[1]);
        let at_once = OF_WORKGROUP / 4;
        self.line(format_args!("let first = (group.x + group.y * {MAX_WORKGROUPS}u) * {at_once}u;"));
        self.line(format_args!("let end = min(first + {at_once}u, {}u);", n / 4));
        self.line(format_args!("for (var four = first + thread; four < end; four += {threads}u) {{"));
        self.indentation += 1;
        self.line(format_args!("let i = four * 4u;"));
        self.unravel("i", all);
        for (i, read) in inputs.iter().enumerate() {
            match read {
                FourElements::Same => self.load(i),
                FourElements::Vector => {
                    let input = &kernel.inputs[i];
                    let map = input.map.as_ref().expect("a vector is read by element");
                    let extents = self.graph.ty(input.value).element().shape.known().expect("the shapes are known");
                    let index = element_index(map, &extents, &self.axes);
                    self.line(format_args!("let v{i} = t{}[({index}) / 4u];", self.binding(input.value)));
                    self.vectors.push(input.value);
                }
            }
        }
        for o in 0..kernel.outputs.len() {
            let value = kernel.output(self.graph, o);
            let dtype = self.graph.ty(value).element().dtype;
            let ty = memory_type(dtype).ok_or(NotPrinted::Type(dtype))?;
            self.line(format_args!("var w{o} = vec4<{ty}>();"));
            self.vectors.push(value);
        }
        for component in ["x", "y", "z", "w"] {
            self.line(format_args!("{{"));
            self.indentation += 1;
            for (i, read) in inputs.iter().enumerate() {
                if *read == FourElements::Vector {
                    let dtype = self.graph.ty(kernel.inputs[i].value).element().dtype;
                    let value = self.loaded(format!("v{i}.{component}"), dtype);
                    self.line(format_args!("let x{i} = {value};"));
                }
            }
            for s in 0..kernel.stages.len() {
                self.stage(s)?;
            }
            for (o, &stage) in kernel.outputs.iter().enumerate() {
                let value = self.in_memory(stage);
                self.line(format_args!("w{o}.{component} = {value};"));
            }
            self.indentation -= 1;
            self.line(format_args!("}}"));
        }
        for (o, &stage) in kernel.outputs.iter().enumerate() {
            let index = self.index_along(kernel.stages[stage].along);
            let binding = self.binding(kernel.output(self.graph, o));
            self.line(format_args!("t{binding}[({index}) / 4u] = w{o};"));
        }
        self.indentation -= 1;
        self.line(format_args!("}}"));
        Ok([n.div_ceil(OF_WORKGROUP), threads])
    }

    /// Prints functions of the elements of a product.
    fn product(mut self) -> Result<ProductText, NotPrinted> {
        let product = self.kernel.product().expect("the kernel has a product");
        if self.levels.iter().any(|&level| level > 0) {
            return Err(NotPrinted::Product(op_of(self.graph, product)));
        }
        if self.dtype(0) != DType::F32 {
            return Err(NotPrinted::Type(self.dtype(0)));
        }
        let mut operands = String::new();
        for (k, source) in product.sources.iter().enumerate() {
            let StageSource::Input(i) = *source else { panic!("K7: the operands of a product are inputs") };
            let value = self.kernel.inputs[i].value;
            let element = format!("t{}[i]", self.binding(value));
            let element = self.loaded(element, self.graph.ty(value).element().dtype);
            operands += &format!("fn operand{k}(i: u32) -> f32 {{ return {element}; }}\n");
        }
        self.unravel("i", AxisSet::first(self.kernel.axes.len()));
        let stages = 1..self.kernel.stages.len();
        for i in self.inputs_of(stages.clone()) {
            self.load(i);
        }
        for s in stages {
            self.stage(s)?;
        }
        let result = self.in_memory(self.kernel.outputs[0]);
        self.line(format_args!("t{}[i] = {result};", self.bindings.len() - 1));
        let code = format!("{}\n{operands}fn finish(i: u32, s0: f32) {{\n{}}}\n", self.head()?, self.body);
        Ok(ProductText { code, bindings: self.bindings })
    }

    fn rows(mut self) -> Result<KernelShader, NotPrinted> {
        let [n_groups, threads] = self.print_rows()?;
        self.finish(n_groups, threads)
    }

    /// Prints one workgroup for each row, or a workgroup for all of them. Returns the number of
    /// workgroups, and the threads of a row.
    fn print_rows(&mut self) -> Result<[usize; 2], NotPrinted> {
        let kept = AxisSet::first(self.kernel.axes.len()).without(self.reduced);
        let (n_rows, n) = (self.extent(kept), self.extent(self.reduced));
        if n_rows == 0 {
            return Err(NotPrinted::NoElements);
        }
        let mut threads = n.next_power_of_two().clamp(1, THREADS[1]);
        if self.places.is_some() && self.kernel.product().is_some() {
            // Few threads add for long, and wait for each other less.
            threads = threads.min((THREADS[1] / n_rows.min(THREADS[1]).next_power_of_two()).max(1));
        }
        let at_once = THREADS[1] / threads;
        if self.places.is_some() {
            self.line(format_args!("for (var first = 0u; first < {n_rows}u; first += {at_once}u) {{"));
            self.indentation += 1;
            self.line(format_args!("let lane = thread % {threads}u;"));
            self.line(format_args!("let is_row = first + thread / {threads}u < {n_rows}u;"));
            self.line(format_args!("let row = min(first + thread / {threads}u, {}u);", n_rows - 1));
        } else {
            self.line(format_args!("let row = group.x + group.y * {MAX_WORKGROUPS}u;"));
            self.line(format_args!("if row >= {n_rows}u {{ return; }}"));
        }
        self.unravel("row", kept);
        for i in self.inputs_of(0..self.kernel.stages.len()) {
            if self.is_of_row(StageSource::Input(i)) {
                self.load(i);
            }
        }
        for level in 0..=self.levels.iter().copied().max().unwrap_or(0) {
            self.level(level, kept, n, threads)?;
        }
        for o in 0..self.kernel.outputs.len() {
            if self.is_of_row(StageSource::Stage(self.kernel.outputs[o])) {
                self.store(o, kept, Some(if self.places.is_some() { "is_row && lane == 0u" } else { "thread == 0u" }));
            }
        }
        if self.places.is_some() {
            self.indentation -= 1;
            self.line(format_args!("}}"));
            self.n_steps = (1 + self.n_steps) * n_rows.div_ceil(at_once);
        }
        Ok([n_rows, threads])
    }

    /// The number of a thread among those of its row.
    fn lane(&self) -> &'static str {
        if self.places.is_some() { "lane" } else { "thread" }
    }

    /// Prints what depends on `level` reductions: the stages of the row, then a loop over its
    /// elements, and then the reductions that the loop has begun.
    fn level(&mut self, level: usize, kept: AxisSet, n: usize, threads: usize) -> Result<(), NotPrinted> {
        let kernel = self.kernel;
        for s in 0..kernel.stages.len() {
            let is_reduction = matches!(kernel.stages[s].work, StageWork::Reduce { .. } | StageWork::Product);
            if self.levels[s] == level && !is_reduction && self.is_of_row(StageSource::Stage(s)) {
                self.stage(s)?;
            }
        }
        let mut reductions = Vec::new();
        for (s, stage) in kernel.stages.iter().enumerate() {
            let by = match stage.work {
                StageWork::Reduce { by, .. } if self.levels[s] == level + 1 => by,
                StageWork::Product if level == 0 => Combiner::Sum,
                _ => continue,
            };
            let dtype = self.dtype(s);
            let combine = self.functions.function(by.prim(), dtype, dtype)?;
            let identity = identity(by, dtype).ok_or(NotPrinted::NoFunction(by.prim(), dtype))?;
            self.line(format_args!("var r{s}: {} = {identity};", self.type_of(s)?));
            reductions.push((s, combine));
        }
        let outputs: Vec<usize> = (0..kernel.outputs.len())
            .filter(|&o| {
                let s = kernel.outputs[o];
                self.levels[s] == level && !self.is_of_row(StageSource::Stage(s))
            })
            .collect();
        if reductions.is_empty() && outputs.is_empty() {
            return Ok(());
        }
        self.line(format_args!("for (var i = {}; i < {n}u; i += {threads}u) {{", self.lane()));
        self.indentation += 1;
        self.n_steps += n.div_ceil(threads) + reductions.len() * threads.ilog2() as usize;
        self.unravel("i", self.reduced);
        let targets = reductions.iter().map(|&(s, _)| s).chain(outputs.iter().map(|&o| kernel.outputs[o]));
        let needed = self.needed(targets.collect());
        for i in self.inputs_of(needed.iter().copied()) {
            if !self.is_of_row(StageSource::Input(i)) {
                self.load(i);
            }
        }
        for &s in &needed {
            match reductions.iter().find(|(r, _)| *r == s) {
                Some((_, combine)) => {
                    let operands: Vec<String> = kernel.stages[s].sources.iter().map(|&x| self.source(x)).collect();
                    self.line(format_args!("r{s} = {combine}(r{s}, {});", operands.join(" * ")));
                }
                None => self.stage(s)?,
            }
        }
        for o in outputs {
            self.store(o, kept.union(self.reduced), self.places.map(|_| "is_row"));
        }
        self.indentation -= 1;
        self.line(format_args!("}}"));
        for (s, combine) in reductions {
            let ty = self.type_of(s)?;
            let whole = match self.places {
                Some(_) if threads == 1 => format!("r{s}"),
                Some(_) => {
                    format!("{}(thread, lane, r{s})", self.functions.tree_in_workgroup(&combine, ty, threads))
                }
                None => format!("{}(thread, r{s})", self.functions.tree(&combine, ty, threads)),
            };
            self.line(format_args!("let s{s} = {whole};"));
        }
        Ok(())
    }

    /// Returns the stages that a loop over a row computes for some stages, in order: those, and the
    /// stages of elements that they read.
    fn needed(&self, mut targets: Vec<usize>) -> Vec<usize> {
        let mut needed = vec![false; self.kernel.stages.len()];
        while let Some(s) = targets.pop() {
            if needed[s] {
                continue;
            }
            needed[s] = true;
            for source in &self.kernel.stages[s].sources {
                if let StageSource::Stage(i) = *source
                    && !self.is_of_row(*source)
                {
                    targets.push(i);
                }
            }
        }
        (0..needed.len()).filter(|&s| needed[s]).collect()
    }

    /// Returns the inputs that stages read by element, in order.
    fn inputs_of(&self, stages: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let sources = stages.into_iter().flat_map(|s| &self.kernel.stages[s].sources);
        let mut inputs: Vec<usize> = sources
            .filter_map(|source| if let StageSource::Input(i) = *source { Some(i) } else { None })
            .filter(|&i| self.kernel.inputs[i].map.is_some())
            .collect();
        inputs.sort_unstable();
        inputs.dedup();
        inputs
    }

    /// Returns whether a value is the same for all elements of a row.
    fn is_of_row(&self, source: StageSource) -> bool {
        let along = match source {
            StageSource::Input(i) => self.kernel.input_along(i),
            StageSource::Stage(s) => self.kernel.stages[s].along,
        };
        along.without(self.reduced) == along
    }

    /// Returns the number of indices along some axes.
    fn extent(&self, axes: AxisSet) -> usize {
        axes.iter().map(|axis| self.kernel.axes[axis]).product()
    }

    fn dtype(&self, stage: usize) -> DType {
        let result = self.graph.node(self.kernel.stages[stage].node).results[0];
        self.graph.ty(result).element().dtype
    }

    fn type_of(&self, stage: usize) -> Result<&'static str, NotPrinted> {
        let dtype = type_of_variable(self.dtype(stage));
        type_name(dtype).ok_or(NotPrinted::Type(dtype))
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        writeln!(self.body, "{:1$}{line}", "", 4 * self.indentation).expect("a string takes all text");
    }

    /// Prints the indices along some axes, as variables, from their row-major index. An axis of
    /// extent 1 has no variable.
    fn unravel(&mut self, from: &str, axes: AxisSet) {
        let mut axes: Vec<usize> = axes.iter().filter(|&axis| self.axes[axis] != 1).collect();
        let mut stride = 1;
        axes.reverse();
        for (i, &axis) in axes.iter().enumerate() {
            let extent = self.axes[axis].max(1);
            let rest = if stride == 1 { from.to_owned() } else { format!("{from} / {stride}u") };
            match i + 1 == axes.len() {
                true => self.line(format_args!("let a{axis} = {rest};")),
                false => self.line(format_args!("let a{axis} = {rest} % {extent}u;")),
            }
            stride *= extent;
        }
    }

    /// Returns the index of an element of a value that varies along some axes.
    fn index_along(&self, along: AxisSet) -> String {
        let (map, extents): (Vec<Coord>, Vec<usize>) =
            along.iter().map(|axis| (Coord::axis(axis), self.kernel.axes[axis])).unzip();
        element_index(&map, &extents, &self.axes)
    }

    fn binding(&self, value: Value) -> usize {
        self.bindings.iter().position(|&v| v == value).expect("every tensor has a binding")
    }

    /// Prints the read of an input.
    fn load(&mut self, input: usize) {
        let input_of = &self.kernel.inputs[input];
        let map = input_of.map.as_ref().expect("an input that is read by element has a map");
        let ty = self.graph.ty(input_of.value).element();
        let extents = ty.shape.known().expect("the shapes are known");
        let mut index = element_index(map, &extents, &self.axes);
        if let Some(indexed) = input_of.indexed {
            let stride = indexed.scale.unsigned_abs() * extents[indexed.axis + 1..].iter().product::<usize>();
            let sign = if indexed.scale < 0 { '-' } else { '+' };
            let row = self.row_index(indexed);
            self.line(format_args!("let i{input} = {row};"));
            index = format!("{index} {sign} i{input} * {stride}u");
        }
        let element = self.element(input_of.value, &index);
        let value = self.loaded(element, ty.dtype);
        self.line(format_args!("let x{input} = {value};"));
    }

    /// Returns an index that the lookup has checked. After a failed check, it may be any number.
    fn row_index(&self, indexed: IndexedCoord) -> String {
        let KernelInput { value, ref map, .. } = self.kernel.inputs[indexed.indices];
        let map = map.as_ref().expect("K8: indices are read by element");
        let extents = self.graph.ty(value).element().shape.known().expect("the shapes are known");
        let element = self.element(value, &element_index(map, &extents, &self.axes));
        format!("min(u32({element}), {}u)", indexed.extent - 1)
    }

    /// Returns an element in memory.
    fn element(&self, value: Value, index: &str) -> String {
        match self.places {
            Some(places) => {
                let place = places.get(value).expect("every tensor has a place");
                place.element(index, self.graph.ty(value).element().dtype)
            }
            None => format!("t{}[{index}]", self.binding(value)),
        }
    }

    /// Returns the value of an element in memory.
    fn loaded(&mut self, element: String, dtype: DType) -> String {
        match dtype {
            DType::Bool => format!("{element} != 0u"),
            _ if dtype.is_half() => {
                self.functions.add_half(dtype);
                format!("number_of_{dtype}(u32({element}))")
            }
            _ => element,
        }
    }

    /// Prints the write of an output. `axes` are those with an index here. One of the threads that
    /// have the same element writes it.
    fn store(&mut self, output: usize, axes: AxisSet, condition: Option<&str>) {
        let stage = self.kernel.outputs[output];
        let along = self.kernel.stages[stage].along;
        let repeated = axes.without(along).iter().filter(|&axis| self.axes[axis] != 1);
        let conditions: Vec<String> =
            condition.map(str::to_owned).into_iter().chain(repeated.map(|axis| format!("a{axis} == 0u"))).collect();
        let target = self.kernel.output(self.graph, output);
        let (value, index) = (self.in_memory(stage), self.index_along(along));
        let write = match self.places.map(|places| places.get(target).expect("every tensor has a place")) {
            Some(place) => format!("{} = {value};", place.word(&index)),
            None => format!("t{}[{index}] = {value};", self.binding(target)),
        };
        match conditions.is_empty() {
            true => self.line(format_args!("{write}")),
            false => self.line(format_args!("if {} {{ {write} }}", conditions.join(" && "))),
        }
    }

    /// Returns the value of a stage as it is stored.
    fn in_memory(&mut self, stage: usize) -> String {
        match self.dtype(stage) {
            DType::Bool => format!("u32(s{stage})"),
            DType::F32 | DType::I32 if self.places.is_some() => format!("bitcast<u32>(s{stage})"),
            dtype if dtype.is_half() => {
                self.functions.add_half(dtype);
                format!("u16({dtype}_of_number(s{stage}))")
            }
            _ => format!("s{stage}"),
        }
    }

    fn source(&self, source: StageSource) -> String {
        match source {
            StageSource::Input(i) => format!("x{i}"),
            StageSource::Stage(s) => format!("s{s}"),
        }
    }

    /// Prints a stage that is no reduction.
    fn stage(&mut self, s: usize) -> Result<(), NotPrinted> {
        let stage = &self.kernel.stages[s];
        let (ty, data) = (self.type_of(s)?, self.graph.node(stage.node));
        let op = op_of(self.graph, stage);
        let value = if stage.work == StageWork::Draw {
            self.functions.texts.insert("random_word".to_owned(), RANDOM.to_owned());
            let index = self.index_along(stage.along);
            let [first, second] = ["0", "1"].map(|i| self.element(data.operands[0], i));
            let key = format!("vec2<u32>({first}, {second})");
            match op {
                prim::RANDOM_BITS => format!("random_word({key}, {index})"),
                prim::RANDOM_UNIFORM => format!("f32(random_word({key}, {index}) >> 8u) * 0x1p-24f"),
                _ => {
                    self.functions.texts.insert("folded_word".to_owned(), FOLDED.to_owned());
                    format!("folded_word({key}, {}, {index})", self.words(data.operands[1])?)
                }
            }
        } else {
            let operand = function_dtype(self.graph, data);
            stage_to_wgsl(op, operand, self.dtype(s))?;
            let sources: Vec<String> = stage.sources.iter().map(|&source| self.source(source)).collect();
            match op.class {
                OpClass::Scalar(ScalarForm::Identity) | OpClass::View(_) => sources[0].clone(),
                OpClass::Scalar(ScalarForm::Conversion) => {
                    self.conversion(op, &sources[0], [operand, self.dtype(s)])?
                }
                _ if op.can_fail(operand) && !is_quotient(op) => return Err(NotPrinted::CanFail(op)),
                _ => {
                    if op.can_fail(operand) && !is_nonzero(self.graph, data.operands[1]) {
                        self.can_fail = true;
                        let report = if self.places.is_some() { "fail()" } else { "atomicMax(&failure, check)" };
                        self.line(format_args!("if {} == 0 {{ {report}; }}", sources[1]));
                    }
                    let result = self.dtype(s);
                    let function = self.functions.function(op, type_of_variable(operand), type_of_variable(result))?;
                    let value = format!("{function}({})", sources.join(", "));
                    if result.is_half() && op.widens() { self.rounded(&value, result) } else { value }
                }
            }
        };
        self.line(format_args!("let s{s}: {ty} = {value};"));
        Ok(())
    }

    /// Returns a number converted to another type.
    fn conversion(&mut self, op: Prim, x: &str, [from, to]: [DType; 2]) -> Result<String, NotPrinted> {
        let [of_from, of_to] = [from, to].map(type_of_variable);
        let converted = match of_from == of_to {
            true => x.to_owned(),
            false => format!("{}({x})", self.functions.function(op, of_from, of_to)?),
        };
        Ok(if to.is_half() && from != to { self.rounded(&converted, to) } else { converted })
    }

    /// Returns a number rounded to a 16-bit float.
    fn rounded(&mut self, x: &str, to: DType) -> String {
        self.functions.add_half(to);
        format!("number_of_{to}({to}_of_number({x}))")
    }

    /// Returns an integer as the two words of 64 bits, the lower one first.
    fn words(&self, integer: Value) -> Result<String, NotPrinted> {
        let word = self.element(integer, "0");
        match self.graph.ty(integer).element().dtype {
            DType::U32 => Ok(format!("vec2<u32>({word}, 0u)")),
            DType::I32 => Ok(format!("vec2<u32>(u32({word}), u32({word} >> 31u))")),
            dtype => Err(NotPrinted::Type(dtype)),
        }
    }

    /// Returns what comes before the function of the lines printed so far.
    fn head(&self) -> Result<String, NotPrinted> {
        let has_halves = self.bindings.iter().any(|&v| self.graph.ty(v).element().dtype.is_half());
        let mut code = if has_halves { ENABLE_HALVES.to_owned() } else { String::new() };
        for line in self.kernel.text(self.graph).to_string().lines() {
            code += &format!("// {line}\n");
        }
        code += &format!("\n{PRELUDE}\n");
        for text in self.functions.texts.values() {
            code += &format!("{text}\n");
        }
        let n_inputs = self.bindings.len() - self.kernel.outputs.len();
        for (i, &value) in self.bindings.iter().enumerate() {
            let dtype = self.graph.ty(value).element().dtype;
            let ty = memory_type(dtype).ok_or(NotPrinted::Type(dtype))?;
            let ty = if self.vectors.contains(&value) { format!("vec4<{ty}>") } else { ty.to_owned() };
            let access = if i < n_inputs { "read" } else { "read_write" };
            code += &format!("@group(0) @binding({i}) var<storage, {access}> t{i}: array<{ty}>;\n");
        }
        Ok(code)
    }

    /// Returns the shader of the lines printed so far.
    fn finish(self, n_groups: usize, threads: usize) -> Result<KernelShader, NotPrinted> {
        let mut code = self.head()?;
        if self.can_fail {
            let binding = self.bindings.len();
            code += &format!("@group(0) @binding({binding}) var<storage, read_write> failure: atomic<u32>;\n");
            code += "var<immediate> check: u32;\n";
        }
        code += &format!(
            "
@compute @workgroup_size({threads})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {{
{}}}
",
            self.body
        );
        let workgroups = [n_groups.min(MAX_WORKGROUPS), n_groups.div_ceil(MAX_WORKGROUPS)];
        Ok(KernelShader { code, bindings: self.bindings, workgroups, can_fail: self.can_fail })
    }
}

/// Returns whether an operation fails for a second operand of zero, if that is an integer.
pub(super) fn is_quotient(op: Prim) -> bool {
    matches!(op, prim::DIV | prim::REM)
}

/// Returns whether a value consists of constant integers that are not zero.
pub(super) fn is_nonzero(graph: &Graph, value: Value) -> bool {
    let mut next = Some(value);
    while let Some(value) = next {
        let (base, _) = viewed(graph, value);
        if let Some(node) = graph.producer(base) {
            let Op::Constant(tensor) = &graph.node(node).op else { return false };
            return match tensor.buffer() {
                Buffer::I32(x) => !x.contains(&0),
                Buffer::U32(x) => !x.contains(&0),
                _ => false,
            };
        }
        next = graph.captured_by(base);
    }
    false
}

fn op_of(graph: &Graph, stage: &KernelStage) -> Prim {
    let Op::Prim(op, _) = graph.node(stage.node).op else { panic!("a stage is a primitive operation") };
    op
}

/// Returns the value that a reduction starts with, if it is defined for the type.
fn identity(by: Combiner, dtype: DType) -> Option<&'static str> {
    Some(match (by, dtype) {
        (Combiner::Sum, DType::F32) => "0.0f",
        (Combiner::Sum, DType::I32) => "0i",
        (Combiner::Sum | Combiner::Max, DType::U32) => "0u",
        (Combiner::Product, DType::F32) => "1.0f",
        (Combiner::Product, DType::I32) => "1i",
        (Combiner::Product, DType::U32) => "1u",
        (Combiner::Max, DType::F32) => "-bitcast<f32>(infinity_bits)",
        (Combiner::Max, DType::I32) => "bitcast<i32>(0x80000000u)",
        (Combiner::Min, DType::F32) => "bitcast<f32>(infinity_bits)",
        (Combiner::Min, DType::I32) => "2147483647i",
        (Combiner::Min, DType::U32) => "4294967295u",
        (Combiner::And, DType::Bool) => "true",
        (Combiner::Or, DType::Bool) => "false",
        _ => return None,
    })
}
