//! Fused kernels: parts of a graph that a device computes in one pass over its elements.
//!
//! [`Fusion::find`] groups the nodes of a graph into kernels, for one device at a time. The graph
//! stays as it is; a [`Fusion`] says for each node whether it is computed by itself, inside a
//! kernel, or is the last node of a kernel, where the kernel runs. A device compiles each
//! [`FusedKernel`] from this one description: the CPU chooses loops and tiles, a device with
//! shaders prints one, and the interpreter runs it stage by stage ([`run_kernel`]).
//!
//! The index space of a kernel is a set of axes **without a memory order**. The value of a stage
//! varies along a subset of them: per element, per row, per column, or not at all. A broadcast is a
//! value that does not vary along an axis, and a reduction is a stage that removes axes.
//!
//! ```text
//! kernel [64, 32]
//!   in x f32[64, 32] at [a0, a1]
//!   in g f32[32] at [a1]
//!   y f32 [a0, a1] = mul x, g
//!   out s f32 [a0] = sum of y over a1
//! ```
//!
//! Only inputs have access maps ([`Coord`]): broadcasts, slices, flips, permutations and parts of a
//! `concat` become coordinates of the tensor that they read. Maps contain no division, so a
//! reshape, which is free in memory, ends a kernel.
//!
//! One coordinate of an input may depend on an element of another input ([`IndexedCoord`]): an
//! index, as of rows in a table. Such an input is what a lookup in the graph would yield
//! (`lookups.rs`). Its indices are checked where the lookup is, so errors come from there, in the
//! order of the graph.
//!
//! # Invariants
//!
//! [`FusedKernel::verify`] checks that
//!
//! - **K1** A stage reads values that vary along a subset of its axes, at its own index. Those that
//!   it reduces count as its axes.
//! - **K2** The value of a reduction varies along the axes of its operand without those that it
//!   reduces.
//! - **K3** All coordinates are within the extents of the tensor.
//! - **K4** A stage that can fail is the only stage of its kernel, so that its error names the
//!   operation, and reads no input at indices.
//! - **K5** A stage reads earlier stages only. Every stage is read by a later one or is an output.
//! - **K6** No two outputs are the same value.
//! - **K7** A product is the first stage, and there is at most one.
//! - **K8** Indices are integers, which are read by element and not at indices themselves.
//!
//! # Kernels of rows
//!
//! Kernels that compute the same rows are joined (`rows.rs`). A stage may then read reductions of
//! earlier stages, and there may be several outputs. Such a kernel has parts, which a device can
//! compute instead ([`Fusion::parts`]).
//!
//! # Limits
//!
//! A description knows operations, types and extents. It must never know devices, memory layouts,
//! strides, tiles or threads: what a device can and should fuse is the answer of its
//! [`FusionTarget`], which may also decline a kernel that was found. It is then split.

mod access;
mod find;
mod lookups;
mod loop_body;
mod parallel_loop;
mod print;
mod rows;
mod run;
mod scalar_loop;
mod shader_functions;
mod shader_memory;
mod verify;
mod wgsl;
mod workgroup_loop;

pub use crate::ops::Coord;
pub use access::{view_map, viewed};
pub use find::{FuseEverything, FuseNothing, FuseUnless, FusionTarget, reduced_axes};
pub use parallel_loop::{PARALLEL_LOOP_THREADS, ParallelLoopShader};
pub use print::KernelText;
pub use rows::{RowLimits, RowPart, row_axes, row_axes_of_workgroups};
pub use run::run_kernel;
pub use scalar_loop::{LOOP_STATES, LoopShader, MAX_LOOP_STEPS};
pub use wgsl::{
    KernelShader, MAX_WORKGROUPS, NotPrinted, ProductText, functions_to_wgsl, index_end, node_to_wgsl, stage_to_wgsl,
};
pub use workgroup_loop::WorkgroupLoops;

use crate::ir::{Graph, Node, Value};
use crate::ops::Combiner;
use rustc_hash::FxHashMap;

/// A set of axes of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AxisSet(u32);

impl AxisSet {
    /// The largest number of axes of a kernel.
    pub const MAX_AXES: usize = 32;

    /// Returns the first `n` axes.
    ///
    /// # Panics
    /// Panics if `n` exceeds [`AxisSet::MAX_AXES`].
    pub fn first(n: usize) -> AxisSet {
        assert!(n <= AxisSet::MAX_AXES, "a kernel has at most {} axes", AxisSet::MAX_AXES);
        AxisSet(u32::MAX.checked_shr((AxisSet::MAX_AXES - n) as u32).unwrap_or(0))
    }

    /// Returns whether the set contains an axis.
    pub fn contains(self, axis: usize) -> bool {
        axis < AxisSet::MAX_AXES && self.0 >> axis & 1 == 1
    }

    /// Returns whether all axes are in the other set.
    pub fn is_subset(self, of: AxisSet) -> bool {
        self.0 & !of.0 == 0
    }

    /// Returns the axes of both sets.
    #[must_use]
    pub fn union(self, other: AxisSet) -> AxisSet {
        AxisSet(self.0 | other.0)
    }

    /// Returns the axes that are not in the other set.
    #[must_use]
    pub fn without(self, other: AxisSet) -> AxisSet {
        AxisSet(self.0 & !other.0)
    }

    /// Returns whether there is no axis.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the number of axes.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns the axes, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..AxisSet::MAX_AXES).filter(move |&axis| self.contains(axis))
    }
}

impl FromIterator<usize> for AxisSet {
    /// # Panics
    /// Panics if an axis exceeds [`AxisSet::MAX_AXES`].
    fn from_iter<I: IntoIterator<Item = usize>>(axes: I) -> AxisSet {
        axes.into_iter().fold(AxisSet::default(), |set, axis| {
            assert!(axis < AxisSet::MAX_AXES, "a kernel has at most {} axes", AxisSet::MAX_AXES);
            AxisSet(set.0 | 1 << axis)
        })
    }
}

/// A tensor that a kernel reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInput {
    /// The tensor, a value of the graph.
    pub value: Value,
    /// The elements that are read, or `None` if a stage reads the whole tensor in an order of its
    /// own: the operand of a product, or the key of random numbers.
    pub map: Option<Vec<Coord>>,
    /// The coordinate that depends on an element of another input, if there is one.
    pub indexed: Option<IndexedCoord>,
}

impl KernelInput {
    /// Returns an input that is read by element.
    pub fn at(value: Value, map: Vec<Coord>) -> KernelInput {
        KernelInput { value, map: Some(map), indexed: None }
    }

    /// Returns an input that is read whole.
    pub fn whole(value: Value) -> KernelInput {
        KernelInput { value, map: None, indexed: None }
    }
}

/// A coordinate that depends on an index in another tensor: `scale * index` is added to the
/// coordinate of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexedCoord {
    /// The axis of the coordinate.
    pub axis: usize,
    /// The distance between the elements at two adjacent indices.
    pub scale: isize,
    /// The input with the indices, which are read at the index of the stage.
    pub indices: usize,
    /// The indices are below this extent. Their lookup has checked that.
    pub extent: usize,
}

/// The origin of an operand of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StageSource {
    /// An input of the kernel, at the index of the stage.
    Input(usize),
    /// The value of an earlier stage.
    Stage(usize),
}

/// How a stage computes its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageWork {
    /// The elementwise operation of the node.
    Map,
    /// Combines the elements of its operand along some axes.
    Reduce {
        /// The axes that are reduced.
        over: AxisSet,
        /// The function that combines two elements.
        by: Combiner,
    },
    /// The matmul or convolution of the node, whose operands are read whole, and converted to the
    /// element type of its result.
    Product,
    /// An operation of the node on each row of its operand, such as a softmax.
    Rowwise {
        /// The axes of a row.
        over: AxisSet,
    },
    /// The random numbers of the node, numbered by the row-major index in the shape of its result.
    /// The key is read whole.
    Draw,
}

impl StageWork {
    /// Returns the axes of which the work reads all elements at once.
    pub fn over(self) -> AxisSet {
        match self {
            StageWork::Reduce { over, .. } | StageWork::Rowwise { over } => over,
            StageWork::Map | StageWork::Product | StageWork::Draw => AxisSet::default(),
        }
    }
}

/// A stage of a kernel: one operation of the graph.
#[derive(Clone, Debug)]
pub struct KernelStage {
    /// The node that the stage computes. Its operation, attributes and location are those of the
    /// stage.
    pub node: Node,
    /// How the stage computes its value.
    pub work: StageWork,
    /// The operands, in the order of the operation.
    pub sources: Vec<StageSource>,
    /// The axes along which the value varies. Their extents, in order, are those of the node's
    /// result, in which a reduction may keep axes of extent 1.
    pub along: AxisSet,
}

/// A fused kernel; see the [module](self).
#[derive(Clone, Debug, Default)]
pub struct FusedKernel {
    /// The extents of the axes.
    pub axes: Vec<usize>,
    /// The tensors that the kernel reads.
    pub inputs: Vec<KernelInput>,
    /// The stages, in an order in which they can be computed.
    pub stages: Vec<KernelStage>,
    /// The stages whose values the kernel writes.
    pub outputs: Vec<usize>,
}

impl FusedKernel {
    /// Returns the axes along which the elements vary that are read of an input.
    pub fn input_along(&self, input: usize) -> AxisSet {
        let of_map = |input: &KernelInput| input.map.as_deref().map(access::varies_along).unwrap_or_default();
        let read = &self.inputs[input];
        let indices = read.indexed.and_then(|indexed| self.inputs.get(indexed.indices));
        of_map(read).union(indices.map(of_map).unwrap_or_default())
    }

    /// Returns whether an input is read at indices that are data.
    pub fn has_indexed(&self) -> bool {
        self.inputs.iter().any(|input| input.indexed.is_some())
    }

    /// Returns the graph value that an output is.
    pub fn output(&self, graph: &Graph, output: usize) -> Value {
        graph.node(self.stages[self.outputs[output]].node).results[0]
    }

    /// Returns the stage of a product, if the kernel has one.
    pub fn product(&self) -> Option<&KernelStage> {
        self.stages.first().filter(|stage| stage.work == StageWork::Product)
    }

    /// Returns whether a stage draws random numbers.
    pub fn draws(&self) -> bool {
        self.stages.iter().any(|stage| stage.work == StageWork::Draw)
    }
}

/// An index into the kernels of a [`Fusion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelId(u32);

/// How a node of a graph with kernels is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRole {
    /// The node runs by itself.
    Alone,
    /// Only kernels compute the node, each of them anew.
    Inside,
    /// The node is the last one of a kernel, which runs here.
    Kernel(KernelId),
    /// The node looks up elements, and the kernel that uses them reads them through the indices.
    /// Only the indices are checked here.
    Check,
}

/// The kernels of a graph; see the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Fusion {
    kernels: Vec<FusedKernel>,
    roles: Vec<NodeRole>,
    /// The parts of each kernel of rows.
    rows: FxHashMap<KernelId, rows::RowParts>,
}

impl Fusion {
    /// Returns how a node is computed.
    pub fn role(&self, node: Node) -> NodeRole {
        self.roles[node.index()]
    }

    /// Returns a kernel.
    pub fn kernel(&self, id: KernelId) -> &FusedKernel {
        &self.kernels[id.0 as usize]
    }

    /// Returns the parts of a kernel of rows, or `None` for any other kernel.
    ///
    /// A device can compute the parts instead of the kernel, in their order.
    pub fn parts(&self, id: KernelId) -> Option<&[RowPart]> {
        self.rows.get(&id).map(|rows| &rows.parts[..])
    }

    /// Returns the views of a kernel's values that other nodes use, although they come before the
    /// node of the kernel. A device that computes the whole kernel computes them after it.
    pub fn views_after(&self, id: KernelId) -> &[Node] {
        self.rows.get(&id).map_or(&[], |rows| &rows.views)
    }

    /// Returns all kernels.
    pub fn kernels(&self) -> &[FusedKernel] {
        &self.kernels
    }
}
