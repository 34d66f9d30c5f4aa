//! Reads and writes of elements selected by indices.

use super::KernelFailed;
use super::copy::Copy;
use crate::cpu::element::{CpuElement, match_plain_dtype};
use crate::cpu::memory::Sources;
use crate::cpu::memory::{Base, TensorOperand, View};
use crate::threads;
use anabranch_dsl::DType;

/// Calls a macro with the type of elements and the function that adds two of them.
macro_rules! match_addable {
    ($dtype:expr, $add:ident) => {
        match $dtype {
            DType::F32 => $add!(f32, std::ops::Add::add),
            DType::F64 => $add!(f64, std::ops::Add::add),
            DType::I32 => $add!(i32, i32::wrapping_add),
            DType::I64 => $add!(i64, i64::wrapping_add),
            DType::U32 => $add!(u32, u32::wrapping_add),
            DType::U8 => $add!(u8, u8::wrapping_add),
            other @ (DType::F16 | DType::BF16 | DType::Bool | DType::Bytes) => panic!("a sum of {other}"),
        }
    };
}

/// The pattern of elements that indices select.
#[derive(Clone, Debug)]
pub(crate) enum IndexPattern {
    /// Slices along an axis: for each index of the axes before and each selected index, `inner`
    /// elements.
    Slices { outer: usize, extent: usize, inner: usize },
    /// One element per index. `strides` are those of the tensor along the axes of the indices, 0
    /// along the indexed axis.
    Elements { shape: Vec<usize>, strides: Vec<usize>, extent: usize, stride: usize },
}

impl IndexPattern {
    /// Returns the pattern of slices of a dense tensor.
    pub(crate) fn slices(shape: &[usize], axis: usize) -> IndexPattern {
        IndexPattern::Slices {
            outer: shape[..axis].iter().product(),
            extent: shape[axis],
            inner: shape[axis + 1..].iter().product(),
        }
    }

    /// Returns the pattern of elements of a dense tensor for indices of shape `ids`.
    pub(crate) fn elements(shape: &[usize], ids: &[usize], axis: usize) -> IndexPattern {
        let mut strides: Vec<usize> = crate::cpu::memory::row_major(shape).into_iter().map(|s| s as usize).collect();
        let stride = std::mem::replace(&mut strides[axis], 0);
        IndexPattern::Elements { shape: ids.to_vec(), strides, extent: shape[axis], stride }
    }

    pub(crate) fn extent(&self) -> usize {
        match self {
            IndexPattern::Slices { extent, .. } | IndexPattern::Elements { extent, .. } => *extent,
        }
    }

    /// Calls `f(offset in the tensor, offset in the selected elements, length)` for every run of
    /// elements.
    fn for_each(&self, ids: &Ids<'_>, f: &mut impl FnMut(usize, usize, usize)) {
        match self {
            IndexPattern::Slices { outer, extent, inner } => {
                let mut at = 0;
                for o in 0..*outer {
                    for i in 0..ids.len() {
                        f((o * extent + ids.get(i)) * inner, at, *inner);
                        at += inner;
                    }
                }
            }
            IndexPattern::Elements { shape, strides, stride, .. } => {
                // Iterates over the indices in order, with the offset along all other axes.
                let mut at = 0;
                walk(shape, strides, 0, &mut |offset| {
                    f(offset + ids.get(at) * stride, at, 1);
                    at += 1;
                });
            }
        }
    }
}

fn walk(shape: &[usize], strides: &[usize], start: usize, f: &mut impl FnMut(usize)) {
    match shape {
        [] => f(start),
        [n, rest @ ..] => (0..*n).for_each(|i| walk(rest, &strides[1..], start + i * strides[0], f)),
    }
}

/// Valid indices of any integer type.
enum Ids<'a> {
    I32(&'a [i32]),
    I64(&'a [i64]),
    U32(&'a [u32]),
    U8(&'a [u8]),
}

impl<'a> Ids<'a> {
    fn new(view: &View, sources: &Sources<'a>, extent: usize) -> Result<Ids<'a>, KernelFailed> {
        let ids = match view.dtype {
            DType::I32 => Ids::I32(sources.contiguous::<i32>(view)),
            DType::I64 => Ids::I64(sources.contiguous::<i64>(view)),
            DType::U32 => Ids::U32(sources.contiguous::<u32>(view)),
            DType::U8 => Ids::U8(sources.contiguous::<u8>(view)),
            other => panic!("indices of type {other}"),
        };
        let valid = match &ids {
            Ids::I32(d) => d.iter().all(|&i| i >= 0 && (i as usize) < extent),
            Ids::I64(d) => d.iter().all(|&i| i >= 0 && (i as u64) < extent as u64),
            Ids::U32(d) => d.iter().all(|&i| (i as usize) < extent),
            Ids::U8(d) => d.iter().all(|&i| usize::from(i) < extent),
        };
        if valid { Ok(ids) } else { Err(KernelFailed) }
    }

    fn len(&self) -> usize {
        match self {
            Ids::I32(d) => d.len(),
            Ids::I64(d) => d.len(),
            Ids::U32(d) => d.len(),
            Ids::U8(d) => d.len(),
        }
    }

    fn get(&self, i: usize) -> usize {
        match self {
            Ids::I32(d) => d[i] as usize,
            Ids::I64(d) => d[i] as usize,
            Ids::U32(d) => d[i] as usize,
            Ids::U8(d) => d[i].into(),
        }
    }
}

/// Minimum number of elements for several threads.
const PARALLEL: usize = 1 << 15;

/// Gathers the elements of the first operand that the second selects. Both are dense.
pub(crate) fn take(
    places: &IndexPattern,
    operands: &[TensorOperand],
    out: &mut [u8],
    sources: &Sources<'_>,
) -> Result<(), KernelFailed> {
    let (x, ids) = (operands[0].view(), operands[1].view());
    let ids = Ids::new(ids, sources, places.extent())?;
    match_plain_dtype!(x.dtype, T => {
        let x = sources.contiguous::<T>(x);
        let y: &mut [<T as CpuElement>::Mem] = bytemuck::cast_slice_mut(out);
        match *places {
            IndexPattern::Slices { extent, inner, .. } if inner > 1 && y.len() >= PARALLEL => {
                let slices = y.len() / inner;
                let of_part = slices.div_ceil(4 * threads::n_threads());
                threads::chunks(y, of_part * inner, |(part, y)| {
                    for (i, y) in (part * of_part..).zip(y.chunks_exact_mut(inner)) {
                        let from = (i / ids.len() * extent + ids.get(i % ids.len())) * inner;
                        y.copy_from_slice(&x[from..from + inner]);
                    }
                });
            }
            _ => places.for_each(&ids, &mut |from, to, n| match n {
                1 => y[to] = x[from],
                _ => y[to..to + n].copy_from_slice(&x[from..from + n]),
            }),
        }
    });
    Ok(())
}

/// Fails if an index is not below an extent.
pub(crate) fn check(ids: &View, extent: usize, sources: &Sources<'_>) -> Result<(), KernelFailed> {
    Ids::new(ids, sources, extent).map(|_| ())
}

/// Returns the index in a register. A negative number is a large index.
pub(crate) fn index_of(bits: u64, dtype: DType) -> u64 {
    match dtype {
        DType::I32 => i64::from(i32::from_reg(bits)).cast_unsigned(),
        DType::I64 => bits,
        DType::U32 => u32::from_reg(bits).into(),
        DType::U8 => u8::from_reg(bits).into(),
        other => panic!("an index of type {other}"),
    }
}

/// Adds the third operand to the elements of `out` that the indices in the second operand select,
/// in the order of the indices.
///
/// Threads divide the elements, not the indices, so the order does not depend on their number.
pub(crate) fn scatter_add(
    places: &IndexPattern,
    operands: &[TensorOperand],
    out: &mut [u8],
    sources: &Sources<'_>,
) -> Result<(), KernelFailed> {
    let (ids, updates) = (operands[1].view(), operands[2].view());
    let ids = Ids::new(ids, sources, places.extent())?;
    macro_rules! add {
        ($t:ty, $add:expr) => {{
            let x = sources.contiguous::<$t>(updates);
            let y: &mut [$t] = bytemuck::cast_slice_mut(out);
            let add = |y: &mut [$t], x: &[$t]| y.iter_mut().zip(x).for_each(|(y, &x)| *y = $add(*y, x));
            match *places {
                IndexPattern::Slices { outer: 1, extent, inner } if x.len() >= PARALLEL && extent > 1 && inner > 1 => {
                    let of_part = extent.div_ceil(threads::n_threads());
                    threads::chunks(y, of_part * inner, |(part, y)| {
                        let (first, n) = (part * of_part, y.len() / inner);
                        for (i, x) in x.chunks_exact(inner).enumerate() {
                            let id = ids.get(i).wrapping_sub(first);
                            if id < n {
                                add(&mut y[id * inner..][..inner], x);
                            }
                        }
                    });
                }
                _ => places.for_each(&ids, &mut |to, from, n| add(&mut y[to..to + n], &x[from..from + n])),
            }
        }};
    }
    match_addable!(updates.dtype, add);
    Ok(())
}

/// Returns the position of the element of `x` at an index in a register along an axis. The extents
/// of other axes are 1.
fn element_at(x: &View, axis: usize, index: &View, sources: &Sources<'_>) -> Result<usize, KernelFailed> {
    let Base::Reg(r) = index.base else { panic!("the index of an element is in a register") };
    match usize::try_from(index_of(sources.reg(r), index.dtype)) {
        Ok(i) if i < x.shape[axis] => Ok((x.offset as isize + i as isize * x.strides[axis]) as usize),
        _ => Err(KernelFailed),
    }
}

/// Reads the element of the first operand at the index in the second.
pub(crate) fn read_element(
    axis: usize,
    operands: &[TensorOperand],
    out: &mut [u8],
    sources: &Sources<'_>,
) -> Result<(), KernelFailed> {
    let x = operands[0].view();
    let at = element_at(x, axis, operands[1].view(), sources)? * x.dtype.size();
    out.copy_from_slice(&sources.bytes(x.base)[at..][..x.dtype.size()]);
    Ok(())
}

/// Writes the number in the second operand to the element of `out`, the memory of the first
/// operand, at the index in the third.
pub(crate) fn write_element(
    axis: usize,
    operands: &[TensorOperand],
    out: &mut [u8],
    sources: &Sources<'_>,
) -> Result<(), KernelFailed> {
    let (x, element) = (operands[0].view(), operands[1].view());
    let size = x.dtype.size();
    let at = element_at(x, axis, operands[2].view(), sources)? * size;
    out[at..][..size].copy_from_slice(&sources.bytes(element.base)[..size]);
    Ok(())
}

/// Adds the number in the third operand to the element of `out`, the memory of the first operand,
/// at the index in the second.
pub(crate) fn add_element(
    axis: usize,
    operands: &[TensorOperand],
    out: &mut [u8],
    sources: &Sources<'_>,
) -> Result<(), KernelFailed> {
    let (x, element) = (operands[0].view(), operands[2].view());
    let at = element_at(x, axis, operands[1].view(), sources)?;
    let Base::Reg(r) = element.base else { panic!("a number that is added is in a register") };
    macro_rules! add {
        ($t:ty, $add:expr) => {{
            let y: &mut [$t] = bytemuck::cast_slice_mut(out);
            y[at] = $add(y[at], <$t>::from_reg(sources.reg(r)));
        }};
    }
    match_addable!(x.dtype, add);
    Ok(())
}

/// A copy from or to a slice of a tensor whose start along an axis is in a register.
#[derive(Clone, Debug)]
pub(crate) struct DynamicSliceCopy {
    copy: Copy,
    /// The stride of the axis.
    stride: isize,
    /// The maximum start.
    last: usize,
}

impl DynamicSliceCopy {
    /// Creates the kernel from a `copy` of the slice that starts at 0. `whole` is the tensor with
    /// the axis, and `size` the extent of the slice.
    pub(crate) fn new(copy: Copy, whole: &View, axis: usize, size: usize) -> DynamicSliceCopy {
        DynamicSliceCopy { copy, stride: whole.strides[axis], last: whole.shape[axis] - size }
    }

    fn start(&self, start: &View, sources: &Sources<'_>) -> Result<isize, KernelFailed> {
        let Base::Reg(r) = start.base else { panic!("the start of a part is in a register") };
        match usize::try_from(index_of(sources.reg(r), start.dtype)) {
            Ok(s) if s <= self.last => Ok(s as isize * self.stride),
            _ => Err(KernelFailed),
        }
    }

    /// Reads the slice of the first operand that starts at the second.
    pub(crate) fn read(
        &self,
        operands: &[TensorOperand],
        out: &mut [u8],
        sources: &Sources<'_>,
    ) -> Result<(), KernelFailed> {
        let shift = self.start(operands[1].view(), sources)?;
        self.copy.run_shifted(operands[0].view(), out, sources, [0, shift]);
        Ok(())
    }

    /// Writes the second operand to the slice of `out` that starts at the third.
    pub(crate) fn write(
        &self,
        operands: &[TensorOperand],
        out: &mut [u8],
        sources: &Sources<'_>,
    ) -> Result<(), KernelFailed> {
        let shift = self.start(operands[2].view(), sources)?;
        self.copy.run_shifted(operands[1].view(), out, sources, [shift, 0]);
        Ok(())
    }
}
