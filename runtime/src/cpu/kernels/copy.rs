//! Copies between views: of contiguous, strided and repeated elements.

use super::walk::{Axis, for_each, merged};
use crate::cpu::memory::Sources;
use crate::plan::View;

/// A copy from one strided view to another of the same shape.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    /// Strides of the destination and of the source.
    axes: Vec<Axis<2>>,
    to: usize,
    from: usize,
    size: usize,
}

impl Copy {
    pub(crate) fn new(from: &View, to: &View) -> Copy {
        let axes = merged(&to.shape, [&to.strides, &from.strides]);
        Copy { axes, to: to.offset, from: from.offset, size: to.dtype.size() }
    }

    /// `out` is the whole buffer of the destination.
    pub(crate) fn run(&self, from: &View, out: &mut [u8], sources: &Sources<'_>) {
        self.run_shifted(from, out, sources, [0, 0]);
    }

    /// The same with all places of the destination and of the source moved by so many elements.
    pub(crate) fn run_shifted(&self, from: &View, out: &mut [u8], sources: &Sources<'_>, shift: [isize; 2]) {
        let bytes = sources.bytes(from.base);
        match self.size {
            8 => self.run_as::<u64>(bytes, out, shift),
            4 => self.run_as::<u32>(bytes, out, shift),
            2 => self.run_as::<u16>(bytes, out, shift),
            _ => self.run_as::<u8>(bytes, out, shift),
        }
    }

    fn run_as<M: bytemuck::Pod>(&self, from: &[u8], to: &mut [u8], shift: [isize; 2]) {
        let from: &[M] = bytemuck::cast_slice(from);
        let to: &mut [M] = bytemuck::cast_slice_mut(to);
        let start = [self.to as isize + shift[0], self.from as isize + shift[1]];
        match self.axes.split_last() {
            None => to[start[0] as usize] = from[start[1] as usize],
            Some((Axis { n, strides: [1, 1] }, outer)) => for_each(outer, start, &mut |[t, f]| {
                let (t, f) = (t as usize, f as usize);
                to[t..t + n].copy_from_slice(&from[f..f + n]);
            }),
            Some((Axis { n, strides: [1, 0] }, outer)) if *n > 0 => for_each(outer, start, &mut |[t, f]| {
                to[t as usize..t as usize + n].fill(from[f as usize]);
            }),
            Some(_) => for_each(&self.axes, start, &mut |[t, f]| to[t as usize] = from[f as usize]),
        }
    }
}
