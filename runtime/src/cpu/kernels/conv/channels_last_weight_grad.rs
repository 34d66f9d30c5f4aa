//! The filter gradient of a convolution of channels-last tensors.
//!
//! The gradient is the product of windows and `dy` over positions. Places (a channel and a window
//! element) are rows, filters are columns, and positions are summed, from the same boxes and with
//! the same tiles as in [`super::channels_last`].
//!
//! Images are divided among tasks, and if there are few images, places are, too. Each part of the
//! images has a separate result `[places, filters]`. A separate operation adds them.

use super::channels_last::{PanelProduct, ProductTerm, SLAB, WIDEST, is_depthwise};
use super::padded_patches::{POSITIONS, PaddedPatches, PatchWindows, with_room};
use super::phase::Phase;
use super::{Geometry, LANES, PARALLEL, PARTS, Panel};
use crate::cpu::memory::Sources;
use crate::cpu::memory::{MemoryLayout, TensorOperand};
use crate::cpu::vector::{InstructionSet, Lane};
use crate::threads;
use anabranch_dsl::DType;
use std::ops::Range;

/// The filter gradient of a convolution of channels-last tensors.
#[derive(Clone, Debug)]
pub(crate) struct ChannelsLastWeightGrad {
    boxes: PaddedPatches,
    batch: usize,
    grid: [usize; 3],
    filters: usize,
    /// Whether each filter applies only to the channel with its index.
    is_depthwise: bool,
    /// The offset of each place from a position.
    places: Vec<u32>,
    /// The numbers of the places of a task.
    row_numbers: Vec<u32>,
    /// Number of parts into which the images are divided. `rows` is the number of places per task.
    splits: usize,
    rows: usize,
}

/// Maximum number of elements of all partial results.
const PARTIAL: usize = 1 << 21;
/// The number of places per task is a multiple of this.
const GRAIN: usize = 24;

impl ChannelsLastWeightGrad {
    /// Creates the kernel for `x` in the given layout and channels-last `dy`. Returns `None` if the
    /// method of `weight_grad.rs` is faster.
    pub(crate) fn new(g: &Geometry, order: MemoryLayout) -> Option<ChannelsLastWeightGrad> {
        let (channels, filters) = (g.groups * g.channels, g.groups * g.filters);
        if filters < LANES {
            return None;
        }
        // For a depthwise convolution, `x` can be converted to the layout of `dy`.
        let is_depthwise = is_depthwise(g, MemoryLayout::ChannelsLast)?;
        let phase = Phase::of_conv(g).pop()?;
        // A single channel has both layouts.
        let order = if channels == 1 { MemoryLayout::ChannelsLast } else { order };
        let windows =
            PatchWindows { grid: g.y, result: g.y, step: g.stride, taps: &phase.taps, has_rest: is_depthwise };
        let boxes = PaddedPatches::new(windows, channels, g.x, order, g.batch, 1)?;
        let n = phase.taps.len();
        let places: Vec<u32> =
            (0..g.channels * n).map(|place| boxes.offset(phase.taps[place % n], place / n)).collect();
        let splits = PARTS.min(g.batch).min(PARTIAL / (places.len() * filters)).max(1);
        let parts = PARTS.div_ceil(splits);
        let rows = places.len().div_ceil(parts).next_multiple_of(GRAIN).min(places.len());
        Some(ChannelsLastWeightGrad {
            boxes,
            batch: g.batch,
            grid: g.y,
            filters,
            is_depthwise,
            places,
            row_numbers: (0..rows as u32).collect(),
            splits,
            rows,
        })
    }

    fn multiplications(&self) -> usize {
        self.batch * self.grid.iter().product::<usize>() * self.filters * self.places.len()
    }

    /// Returns the number of contiguous partial results that [`run`](Self::run) writes.
    pub(crate) fn splits(&self) -> usize {
        self.splits
    }

    /// Runs the kernel. The operands are `x` and `dy`, both dense.
    pub(crate) fn run(&self, operands: &[TensorOperand], out: &mut [u8], sources: &Sources<'_>) {
        let x = operands[0].view();
        match x.dtype {
            DType::F32 => self.run_as::<f32>(operands, out, sources),
            DType::F64 => self.run_as::<f64>(operands, out, sources),
            other => panic!("a convolution of {other}"),
        }
    }

    fn run_as<T: Lane + crate::cpu::element::CpuElement<Mem = T>>(
        &self,
        operands: &[TensorOperand],
        out: &mut [u8],
        sources: &Sources<'_>,
    ) {
        let [x, dy] = [0, 1].map(|i| sources.contiguous::<T>(operands[i].view()));
        self.run_at(InstructionSet::best(), x, dy, bytemuck::cast_slice_mut(out));
    }

    pub(super) fn run_at<T: Lane>(&self, level: InstructionSet, x: &[T], dy: &[T], out: &mut [T]) {
        let split = self.places.len() * self.filters;
        let run = |s: usize, part: usize, out: &mut [T]| {
            let images = s * self.batch / self.splits..(s + 1) * self.batch / self.splits;
            let places = &self.places[part * self.rows..][..out.len() / self.filters];
            with_room(|room| self.run_part(level, [x, dy], out, images, places, room));
        };
        let of_split = |(s, out): (usize, &mut [T])| {
            threads::chunks_until_stop(out, self.rows * self.filters, |(i, out)| run(s, i, out));
        };
        if self.multiplications() < PARALLEL {
            for (s, out) in out.chunks_mut(split).enumerate() {
                out.chunks_mut(self.rows * self.filters).enumerate().for_each(|(i, out)| run(s, i, out));
            }
        } else {
            threads::chunks_until_stop(out, split, of_split);
        }
    }

    /// Computes the sums of some places over some images: `out` is `[places, filters]`.
    fn run_part<T: Lane>(
        &self,
        level: InstructionSet,
        [x, dy]: [&[T]; 2],
        out: &mut [T],
        images: Range<usize>,
        places: &[u32],
        room: &mut [T],
    ) {
        let filters = self.filters;
        let [_, wide, lanes] = level.tile::<T>();
        let plane: usize = self.grid.iter().product();
        let per_line: usize = plane / self.grid[self.boxes.lines().0];
        let last = places.iter().max().map_or(0, |&p| p as usize);
        let rows = &self.row_numbers[..places.len()];
        assert!(wide <= WIDEST && out.len() == places.len() * filters);
        let mut panel = Panel([T::default(); SLAB * WIDEST]);
        let mut terms = [ProductTerm { left: 0, right: 0 }; POSITIONS];
        let mut is_first = true;
        for image in images.clone().step_by(self.boxes.images()) {
            for n in 0..self.boxes.parts_of_image() {
                if threads::stop::is_set() {
                    return;
                }
                let part = self.boxes.part(image, self.boxes.images().min(images.end - image), n);
                let left = self.boxes.fill(&part, x, room);
                let (mut n, step) = (0, self.boxes.apart());
                self.boxes.for_each_line(&part, self.grid, |_, _, len, offset| {
                    for (i, term) in terms[n..n + len].iter_mut().enumerate() {
                        term.left = (offset + i * step) as u32;
                    }
                    n += len;
                });
                let terms = &mut terms[..n];
                let farthest = terms.iter().map(|t| t.left as usize).max().unwrap_or(0);
                let lanes = if self.is_depthwise { filters.next_multiple_of(lanes) } else { 1 };
                assert!(n == 0 || farthest + last + lanes <= left.len());
                let dy = &dy[(image * plane + part.first * per_line) * filters..][..n * filters];
                let slabs = n.div_ceil(SLAB).max(1);
                let slab = n.div_ceil(slabs).max(1);
                for (terms, dy) in terms.chunks_mut(slab).zip(dy.chunks(slab * filters)) {
                    terms.iter_mut().enumerate().for_each(|(i, term)| term.right = i as u32);
                    for column in (0..filters).step_by(wide) {
                        fill_panel(&mut panel.0, wide, dy, filters, column);
                        let product = PanelProduct {
                            left,
                            from: places,
                            terms,
                            panel: &panel.0,
                            result: &mut *out,
                            to: rows,
                            filters,
                            column,
                            is_packed: false,
                            adds: !is_first,
                            is_depthwise: self.is_depthwise,
                        };
                        // SAFETY: window elements are in the box, as asserted. The panel has a row
                        // for each position, and the result has a row for each place.
                        unsafe { product.run_at(level) };
                    }
                    is_first = false;
                }
            }
        }
        if is_first {
            out.fill(T::default());
        }
    }
}

/// Copies the columns of a panel from the rows of `dy`, and pads them with zeros.
fn fill_panel<T: Lane>(panel: &mut [T], wide: usize, dy: &[T], filters: usize, column: usize) {
    let columns = wide.min(filters - column);
    for (to, from) in panel.chunks_exact_mut(wide).zip(dy.chunks_exact(filters)) {
        let from = &from[column..column + columns];
        if columns == wide {
            // Avoids the overhead of `memcpy` calls.
            let (to, from) = (to.as_chunks_mut::<4>().0, from.as_chunks::<4>().0);
            to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        } else {
            to[..columns].copy_from_slice(from);
            to[columns..].fill(T::default());
        }
    }
}
