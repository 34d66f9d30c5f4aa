//! Cumulative sums, argmax, argmin and argsort along one axis of a dense tensor.

use crate::cpu::element::CpuElement;
use crate::cpu::memory::Sources;
use crate::cpu::memory::View;
use crate::threads;
use anabranch_dsl::DType;

/// The operation along the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AxisOp {
    CumSum { reverse: bool },
    ArgMax,
    ArgMin,
    ArgSort { descending: bool },
}

/// A kernel along one axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AxisKernel {
    along: AxisOp,
    /// The extent of the axis.
    n: usize,
    /// The product of the extents after the axis, which is the stride along it.
    inner: usize,
}

/// Minimum number of elements for several threads. `PART` is about the number of elements of one
/// task.
const PARALLEL: usize = 1 << 15;
const PART: usize = 1 << 13;

/// Calls `f` with each block of `x` and `y`. A block contains all elements of one index of the
/// leading axes; `lengths` are the block sizes.
pub(super) fn blocks<T: Sync, R: Send>(x: &[T], y: &mut [R], lengths: [usize; 2], f: impl Fn(&[T], &mut [R]) + Sync) {
    let [from, to] = lengths;
    if y.is_empty() {
        return;
    }
    let run = |first: usize, y: &mut [R]| {
        for (i, y) in y.chunks_exact_mut(to).enumerate() {
            f(&x[(first + i) * from..][..from], y);
        }
    };
    let n_blocks = y.len() / to;
    if x.len() < PARALLEL || n_blocks < 2 {
        return run(0, y);
    }
    let of_part = (PART / from.max(1)).max(1);
    threads::chunks(y, of_part * to, |(i, y)| run(i * of_part, y));
}

impl AxisKernel {
    /// Creates the kernel for a dense operand of this shape.
    pub(crate) fn new(along: AxisOp, shape: &[usize], axis: usize) -> AxisKernel {
        AxisKernel { along, n: shape[axis], inner: shape[axis + 1..].iter().product() }
    }

    pub(crate) fn run(&self, view: &View, out: &mut [u8], sources: &Sources<'_>) {
        macro_rules! run {
            ($t:ty, $add:expr) => {
                self.run_as::<$t>(sources.contiguous::<$t>(view), out, $add)
            };
        }
        match view.dtype {
            DType::F32 => run!(f32, |a, b| a + b),
            DType::F64 => run!(f64, |a, b| a + b),
            DType::I32 => run!(i32, i32::wrapping_add),
            DType::I64 => run!(i64, i64::wrapping_add),
            DType::U32 => run!(u32, u32::wrapping_add),
            DType::U8 => run!(u8, u8::wrapping_add),
            DType::F16 | DType::BF16 | DType::Bool | DType::Bytes => panic!("{:?} of {}", self.along, view.dtype),
        }
    }

    fn run_as<T: CpuElement<Mem = T> + bytemuck::Pod>(&self, x: &[T], out: &mut [u8], add: impl Fn(T, T) -> T + Sync) {
        let whole = self.n * self.inner;
        let lanes = 0..self.inner;
        match self.along {
            AxisOp::CumSum { reverse } => {
                blocks(x, bytemuck::cast_slice_mut::<u8, T>(out), [whole, whole], |x, y| {
                    lanes.clone().for_each(|at| self.cumsum(x, y, at, reverse, &add));
                });
            }
            AxisOp::ArgSort { descending } => {
                blocks(x, bytemuck::cast_slice_mut::<u8, i32>(out), [whole, whole], |x, y| {
                    let mut keyed = Vec::with_capacity(self.n);
                    lanes.clone().for_each(|at| self.argsort(x, y, at, descending, &mut keyed));
                });
            }
            AxisOp::ArgMax | AxisOp::ArgMin => {
                let largest = self.along == AxisOp::ArgMax;
                blocks(x, bytemuck::cast_slice_mut::<u8, i32>(out), [whole, self.inner], |x, y| {
                    lanes.clone().for_each(|at| {
                        y[at] = self.first(x, at, |a, b| if largest { a > b } else { a < b });
                    });
                });
            }
        }
    }

    fn cumsum<T: Copy + Default>(&self, x: &[T], y: &mut [T], at: usize, reverse: bool, add: impl Fn(T, T) -> T) {
        let mut sum = T::default();
        for i in 0..self.n {
            let at = at + self.inner * if reverse { self.n - 1 - i } else { i };
            sum = add(sum, x[at]);
            y[at] = sum;
        }
    }

    /// Writes the indices of the elements in their order. `keyed` is memory that lanes share.
    fn argsort<T: CpuElement<Mem = T>>(
        &self,
        x: &[T],
        y: &mut [i32],
        at: usize,
        descending: bool,
        keyed: &mut Vec<(T, i32)>,
    ) {
        let is_nan = |x: T| x.partial_cmp(&x).is_none();
        let compare = |a: T, b: T| a.partial_cmp(&b).unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)));
        keyed.clear();
        keyed.extend((0..self.n).map(|i| (x[at + i * self.inner], i as i32)));
        // The indices decide between equal elements, so an unstable sort has one result.
        match descending {
            false => keyed.sort_unstable_by(|&(a, i), &(b, j)| compare(a, b).then(i.cmp(&j))),
            true => keyed.sort_unstable_by(|&(a, i), &(b, j)| compare(b, a).then(i.cmp(&j))),
        }
        for (i, &(_, index)) in keyed.iter().enumerate() {
            y[at + i * self.inner] = index;
        }
    }

    /// Returns the index of the first best element, or of the first NaN if there is one.
    fn first<T: CpuElement<Mem = T>>(&self, x: &[T], at: usize, beats: impl Fn(T, T) -> bool) -> i32 {
        let mut best = 0;
        let mut value = x[at];
        for i in 1..self.n {
            let x = x[at + i * self.inner];
            let is_nan = |x: T| x.partial_cmp(&x).is_none();
            if !is_nan(value) && (is_nan(x) || beats(x, value)) {
                (best, value) = (i, x);
            }
        }
        best as i32
    }
}
