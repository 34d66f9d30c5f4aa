//! Elements of tensors in the memory of shaders.

use super::{AxisSet, Coord, FusedKernel, KernelInput};
use crate::DType;
use crate::ir::{Graph, Value};
use rustc_hash::FxHashMap;

/// The tensors of a shader that has them in one array of words, and some in bindings of their own.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryPlaces(FxHashMap<Value, MemoryPlace>);

/// The place of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryPlace {
    /// The array of words, from this one on.
    Words(usize),
    /// The binding with this number.
    Binding(usize),
}

impl MemoryPlace {
    /// Returns an element as an expression of its type, or of `u32` for a `bool`.
    pub(super) fn element(self, index: &str, dtype: DType) -> String {
        match (self, dtype) {
            (MemoryPlace::Binding(i), _) => format!("m{i}[{index}]"),
            (MemoryPlace::Words(_), DType::F32 | DType::I32) => format!("bitcast<{dtype}>({})", self.word(index)),
            (MemoryPlace::Words(_), _) => self.word(index),
        }
    }

    /// Returns the word of an element.
    pub(super) fn word(self, index: &str) -> String {
        match self {
            MemoryPlace::Words(0) => format!("words[{index}]"),
            MemoryPlace::Words(first) => format!("words[{first}u + {index}]"),
            MemoryPlace::Binding(i) => panic!("binding {i} is not an array of words"),
        }
    }
}

impl MemoryPlaces {
    /// Returns the places of the tensors of a kernel, if only its text matters.
    pub(super) fn of_kernel(graph: &Graph, kernel: &FusedKernel) -> MemoryPlaces {
        let outputs = (0..kernel.outputs.len()).map(|o| kernel.output(graph, o));
        let values = kernel.inputs.iter().map(|input| input.value).chain(outputs);
        MemoryPlaces(values.map(|value| (value, MemoryPlace::Words(0))).collect())
    }

    pub(super) fn insert(&mut self, value: Value, place: MemoryPlace) {
        self.0.insert(value, place);
    }

    pub(super) fn get(&self, value: Value) -> Option<MemoryPlace> {
        self.0.get(&value).copied()
    }
}

/// Returns the row-major index of an element of a tensor, whose coordinates are those of variables
/// for axes. Differences of `u32` wrap, and the index itself is never negative.
pub(super) fn element_index(map: &[Coord], extents: &[usize], axes: &[usize]) -> String {
    let (mut first, mut stride) = (0, 1);
    for (coord, &extent) in map.iter().zip(extents).rev() {
        first += stride * coord.offset;
        stride *= extent;
    }
    let strides = strides(map, extents, axes.len());
    let strides: Vec<isize> =
        strides.into_iter().zip(axes).map(|(n, &extent)| if extent == 1 { 0 } else { n }).collect();
    let term = |(axis, &stride): (usize, &isize)| match stride.unsigned_abs() {
        1 => format!("a{axis}"),
        stride => format!("a{axis} * {stride}u"),
    };
    let terms = |sign: isize| strides.iter().enumerate().filter(move |(_, stride)| stride.signum() == sign);
    let mut sum: Vec<String> = terms(1).map(term).collect();
    if first > 0 || sum.is_empty() {
        sum.push(format!("{first}u"));
    }
    terms(-1).map(term).fold(sum.join(" + "), |sum, term| format!("{sum} - {term}"))
}

/// Four elements of a tensor, at adjacent indices of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FourElements {
    /// They are one vector in memory.
    Vector,
    /// They are the same element.
    Same,
}

/// Returns where the elements are that a kernel reads of a tensor at four indices of an axis, the
/// first of which is a multiple of four, if they are one vector or the same element.
pub(super) fn four_elements(map: &[Coord], extents: &[usize], axes: &[usize], axis: usize) -> Option<FourElements> {
    let strides = strides(map, extents, axes.len());
    if strides[axis] == 0 {
        return Some(FourElements::Same);
    }
    let (mut first, mut stride) = (0, 1);
    for (coord, &extent) in map.iter().zip(extents).rev() {
        first += stride * coord.offset;
        stride *= extent;
    }
    let others = (0..axes.len()).filter(|&other| other != axis && axes[other] != 1);
    let mut starts = others.map(|other| strides[other]).chain([first as isize, stride as isize]);
    (strides[axis] == 1 && starts.all(|start| start % 4 == 0)).then_some(FourElements::Vector)
}

/// Returns the distance in memory between the elements of a tensor at two adjacent indices of each
/// axis.
fn strides(map: &[Coord], extents: &[usize], n_axes: usize) -> Vec<isize> {
    let mut strides = vec![0; n_axes];
    let mut stride = 1;
    for (coord, &extent) in map.iter().zip(extents).rev() {
        if let Some((axis, scale)) = coord.term {
            strides[axis] += stride as isize * scale;
        }
        stride *= extent;
    }
    strides
}

/// Returns the extents of the axes of a kernel. If two axes are contiguous in all tensors, as in
/// elementwise operations on one shape, the second one has the indices of both, and the first one
/// the extent 1, so that fewer indices are computed.
pub(super) fn joined_axes(graph: &Graph, kernel: &FusedKernel) -> Vec<usize> {
    let mut axes = kernel.axes.clone();
    if axes.contains(&0) {
        return axes;
    }
    let of_input = |input: &KernelInput| {
        let shape = graph.ty(input.value).element().shape.known().expect("the shapes are known");
        Some(strides(input.map.as_ref()?, &shape, axes.len()))
    };
    let strides: Vec<Vec<isize>> = kernel.inputs.iter().filter_map(of_input).collect();
    let sets = kernel.stages.iter().flat_map(|stage| [stage.along, stage.work.over()]);
    // The depth of a matmul is along no stage.
    let depth =
        kernel.axes.len() - usize::from(kernel.product().is_some_and(|product| product.along.len() < axes.len()));
    let sets: Vec<AxisSet> = sets.chain([AxisSet::first(depth)]).collect();
    let mut second = None;
    for first in (0..axes.len()).rev().filter(|&axis| kernel.axes[axis] != 1) {
        if let Some(second) = second
            && strides.iter().all(|strides| strides[first] == strides[second] * axes[second] as isize)
            && sets.iter().all(|set| set.contains(first) == set.contains(second))
        {
            axes[second] *= axes[first];
            axes[first] = 1;
        } else {
            second = Some(first);
        }
    }
    axes
}
