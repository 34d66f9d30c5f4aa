//! The meaning of a kernel: its stages one after another, over whole tensors.

use super::{AxisSet, Coord, FusedKernel, KernelInput, StageSource, StageWork};
use crate::ir::{Attrs, Graph, Op, Value};
use crate::ops::attributes::Reduced;
use crate::ops::{EvalCx, Prim, converted, has_memory, prim};
use crate::{DType, Element, HostTensor, Result, TensorType, match_buffer};

/// Runs a kernel by the reference implementations of its operations, and returns its outputs.
///
/// # Errors
/// Returns the error of an operation, at its location in the source.
pub fn run_kernel<'t>(
    graph: &Graph,
    kernel: &FusedKernel,
    tensor: &dyn Fn(Value) -> &'t HostTensor,
) -> Result<Vec<HostTensor>> {
    let mut values: Vec<HostTensor> = Vec::with_capacity(kernel.stages.len());
    for stage in &kernel.stages {
        let data = graph.node(stage.node);
        let Op::Prim(op, attrs) = &data.op else { panic!("a stage is a primitive operation") };
        let ty = graph.ty(data.results[0]).element();
        let reduced = stage.work.over();
        let along = stage.along.union(reduced);
        let operand = |source: &StageSource| match *source {
            StageSource::Input(i) => read_input(kernel, i, tensor, along),
            StageSource::Stage(i) => {
                let from = kernel.stages[i].along;
                let map: Vec<Coord> = from.iter().map(Coord::axis).collect();
                let extents: Vec<usize> = from.iter().map(|axis| kernel.axes[axis]).collect();
                read(kernel, &values[i].reshaped(extents), &map, along, None)
            }
        };
        // An operand may be a broadcast tensor with far more elements than the tensor that it
        // reads.
        let extents: Vec<usize> = along.iter().map(|axis| kernel.axes[axis]).collect();
        let read = TensorType::new(graph.ty(data.operands[0]).element().dtype, extents.clone());
        has_memory(&read).map_err(|e| e.at(data.name_in_errors(), data.loc))?;
        let mut operands: Vec<HostTensor> = stage.sources.iter().map(operand).collect();
        if let StageWork::Rowwise { .. } = stage.work {
            let shape = graph.ty(data.operands[0]).element().shape.known();
            operands[0] = operands[0].reshaped(shape.expect("the shapes of a kernel are known"));
        }
        let operands: Vec<&HostTensor> = operands.iter().collect();
        let evaluate = |op: Prim, attrs: &Attrs, ty: &TensorType| {
            op.evaluate(&EvalCx { operands: &operands, attrs, ty }).map_err(|e| e.at(data.name_in_errors(), data.loc))
        };
        let value = match stage.work {
            StageWork::Reduce { .. } => {
                let axes = along.iter().enumerate().filter(|(_, axis)| reduced.contains(*axis)).map(|(i, _)| i);
                let attrs = Attrs::from(Reduced { axes: axes.collect(), keepdim: false });
                let extents: Vec<usize> = stage.along.iter().map(|axis| kernel.axes[axis]).collect();
                let op = if *op == prim::SUM_LIKE { prim::SUM } else { *op };
                evaluate(op, &attrs, &TensorType::new(ty.dtype, extents))?
            }
            // Axes of extent 1 may be missing in the kernel.
            StageWork::Map => evaluate(*op, attrs, &TensorType::new(ty.dtype, extents))?,
            StageWork::Product | StageWork::Draw | StageWork::Rowwise { .. } => evaluate(*op, attrs, ty)?,
        };
        values.push(value.reshaped(ty.shape.known().expect("the shapes of a kernel are known")));
    }
    Ok(kernel.outputs.iter().map(|&stage| values[stage].clone()).collect())
}

/// Returns the elements that a kernel reads of an input, along some axes.
fn read_input<'t>(
    kernel: &FusedKernel,
    input: usize,
    tensor: &dyn Fn(Value) -> &'t HostTensor,
    along: AxisSet,
) -> HostTensor {
    let KernelInput { value, map, indexed } = &kernel.inputs[input];
    let Some(map) = map else { return tensor(*value).clone() };
    let x = tensor(*value);
    let shifts = indexed.map(|indexed| {
        let indices = converted(&read_input(kernel, indexed.indices, tensor, along), DType::I64);
        let stride: usize = x.shape()[indexed.axis + 1..].iter().product();
        let shift = |&index: &i64| index as isize * indexed.scale * stride as isize;
        indices.data().iter().map(shift).collect::<Vec<isize>>()
    });
    read(kernel, x, map, along, shifts.as_deref())
}

/// Returns the elements that a kernel reads of a tensor, along some axes. `shifts` are added to the
/// row-major indices of the elements.
fn read(kernel: &FusedKernel, x: &HostTensor, map: &[Coord], along: AxisSet, shifts: Option<&[isize]>) -> HostTensor {
    fn elements<T: Element>(
        x: &[T],
        extents: &[usize],
        strides: &[isize],
        first: isize,
        shifts: Option<&[isize]>,
    ) -> Vec<T> {
        let n: usize = extents.iter().product();
        let at = |mut i: usize| {
            let mut offset = first + shifts.map_or(0, |shifts| shifts[i]);
            for (&n, &stride) in extents.iter().zip(strides).rev() {
                offset += stride * (i % n) as isize;
                i /= n;
            }
            x[offset as usize].clone()
        };
        (0..n).map(at).collect()
    }
    let extents: Vec<usize> = along.iter().map(|axis| kernel.axes[axis]).collect();
    let mut strides = vec![0; kernel.axes.len()];
    let (mut first, mut stride) = (0, 1);
    for (coord, &n) in map.iter().zip(x.shape()).rev() {
        first += stride * coord.offset as isize;
        if let Some((axis, scale)) = coord.term {
            strides[axis] += stride * scale;
        }
        stride *= n as isize;
    }
    let strides: Vec<isize> = along.iter().map(|axis| strides[axis]).collect();
    match_buffer!(x.buffer(), d => HostTensor::new(extents.clone(), elements(d, &extents, &strides, first, shifts)))
}
