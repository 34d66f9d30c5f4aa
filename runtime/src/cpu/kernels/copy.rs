//! Copies between views: contiguous, strided and broadcast.
//!
//! If the innermost axis of the destination is strided in the source, and another axis is
//! contiguous there, both are traversed in tiles, so that whole cache lines are read and written.
//! Large copies are divided among threads along the outermost axis, if its indices write disjoint
//! ranges.

use super::walk::{Axis, for_each, merged};
use crate::cpu::memory::Sources;
use crate::cpu::memory::View;
use crate::threads;

/// A copy from one strided view to another of the same shape.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    /// The merged axes with the strides of the destination and the source.
    axes: Vec<Axis<2>>,
    to: usize,
    from: usize,
    size: usize,
    /// The number of destination elements per index of the outermost axis, if threads share the
    /// work.
    part: Option<usize>,
}

/// Minimum number of elements for several threads.
const PARALLEL: usize = 1 << 17;
/// Number of contiguous source elements copied together.
const SOME: usize = 16;

impl Copy {
    pub(crate) fn new(from: &View, to: &View) -> Copy {
        let mut axes = merged(&to.shape, [&to.strides, &from.strides]);
        // Move the contiguous axis of the source before the contiguous axis of the destination.
        if let [outer @ .., Axis { strides: [1, apart], .. }] = &axes[..]
            && *apart > 1
            && let Some(at) = outer.iter().position(|axis| axis.strides[1] == 1)
        {
            let axis = axes.remove(at);
            axes.insert(axes.len() - 1, axis);
        }
        let n: usize = axes.iter().map(|axis| axis.n).product();
        let part = axes.split_first().filter(|_| n >= PARALLEL).and_then(|(outer, inner)| {
            let reach: isize = inner.iter().map(|axis| (axis.n as isize - 1) * axis.strides[0].abs()).sum();
            let is_forward = inner.iter().all(|axis| axis.strides[0] >= 0);
            (is_forward && outer.strides[0] > reach).then_some(outer.strides[0] as usize)
        });
        Copy { axes, to: to.offset, from: from.offset, size: to.dtype.size(), part }
    }

    /// Runs the copy. `out` is the whole destination buffer.
    pub(crate) fn run(&self, from: &View, out: &mut [u8], sources: &Sources<'_>) {
        self.run_shifted(from, out, sources, [0, 0]);
    }

    /// Runs the copy with destination and source offsets shifted by `shift` elements.
    pub(crate) fn run_shifted(&self, from: &View, out: &mut [u8], sources: &Sources<'_>, shift: [isize; 2]) {
        let bytes = sources.bytes(from.base);
        match self.size {
            8 => self.run_as::<u64>(bytes, out, shift),
            4 => self.run_as::<u32>(bytes, out, shift),
            2 => self.run_as::<u16>(bytes, out, shift),
            _ => self.run_as::<u8>(bytes, out, shift),
        }
    }

    fn run_as<M: bytemuck::Pod + Send + Sync>(&self, from: &[u8], to: &mut [u8], shift: [isize; 2]) {
        let from: &[M] = bytemuck::cast_slice(from);
        let to: &mut [M] = bytemuck::cast_slice_mut(to);
        let start = [self.to as isize + shift[0], self.from as isize + shift[1]];
        match (self.part, self.axes.split_first()) {
            (Some(part), Some((outer, inner))) => {
                let some = if inner.len() == 1 { SOME } else { 1 };
                let to = &mut to[start[0] as usize..];
                let n = to.len().min(part * some * outer.n.div_ceil(some));
                threads::chunks(&mut to[..n], part * some, |(i, to)| {
                    let first = i * some;
                    let start = [0, start[1] + first as isize * outer.strides[1]];
                    match inner {
                        [inner] => {
                            copy(&[Axis { n: some.min(outer.n - first), ..*outer }, inner.clone()], from, to, start)
                        }
                        _ => copy(inner, from, to, start),
                    }
                });
            }
            _ => copy(&self.axes, from, to, start),
        }
    }
}

/// Copies along all axes, beginning at `start`.
fn copy<M: bytemuck::Pod>(axes: &[Axis<2>], from: &[M], to: &mut [M], start: [isize; 2]) {
    match axes {
        [] => to[start[0] as usize] = from[start[1] as usize],
        [outer @ .., Axis { n, strides: [1, 1] }] => for_each(outer, start, &mut |[t, f]| {
            let (t, f) = (t as usize, f as usize);
            to[t..t + n].copy_from_slice(&from[f..f + n]);
        }),
        [outer @ .., Axis { n, strides: [1, 0] }] if *n > 0 => for_each(outer, start, &mut |[t, f]| {
            to[t as usize..t as usize + n].fill(from[f as usize]);
        }),
        [outer @ .., rows @ Axis { strides: [down, 1], .. }, columns @ Axis { strides: [1, apart], .. }]
            if *down > 0 && *apart > 0 =>
        {
            for_each(outer, start, &mut |[t, f]| {
                transpose(
                    rows.n,
                    columns.n,
                    &mut to[t as usize..],
                    *down as usize,
                    &from[f as usize..],
                    *apart as usize,
                );
            });
        }
        _ => for_each(axes, start, &mut |[t, f]| to[t as usize] = from[f as usize]),
    }
}

/// Copies columns, which are contiguous with stride `apart`, to rows with stride `down`.
fn transpose<M: bytemuck::Pod>(rows: usize, columns: usize, to: &mut [M], down: usize, from: &[M], apart: usize) {
    for first in (0..rows).step_by(SOME) {
        let n = SOME.min(rows - first);
        for j in 0..columns {
            let column = &from[j * apart + first..][..n];
            for (i, &x) in column.iter().enumerate() {
                to[(first + i) * down + j] = x;
            }
        }
    }
}
