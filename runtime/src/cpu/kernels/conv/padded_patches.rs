//! Boxes: padded parts of tensors in channels-last layout, from which windows are read without
//! bounds checks.
//!
//! A channels-last product over windows reads, at each position and for each *term* (a channel and
//! a window element), the element at `offset(position) + offset(term)`. This requires that elements
//! beyond the edges exist. Each thread therefore copies the part of the source that the windows of
//! a task cover into its own memory and pads it with zeros. Row-major tensors are converted to
//! channels-last layout on the way. A channels-last tensor without padding is read in place.

use super::inside;
use crate::cpu::memory::MemoryLayout;
use crate::cpu::vector::Lane;
use std::cell::RefCell;

/// Number of elements of a thread's memory for boxes.
const ROOM: usize = 1 << 16;
/// Number of elements after a box that may be read as the rest of a vector.
const REST: usize = 64;
/// Preferred maximum number of elements of a box, so that it fits in the L2 cache with the other
/// operands. Longer lines exceed it.
const WANTED: usize = 1 << 15;
/// Maximum number of positions per part.
pub(super) const POSITIONS: usize = 2048;

/// The access of windows at a grid of positions to a tensor, and the division of the grid into
/// parts.
#[derive(Clone, Debug)]
pub(super) struct PaddedPatches {
    channels: usize,
    source: [usize; 3],
    order: MemoryLayout,
    grid: [usize; 3],
    /// The stride of positions in the source.
    step: [usize; 3],
    /// The offset of the first window. `reach` is the extent of windows minus 1.
    low: [isize; 3],
    reach: [usize; 3],
    /// The axis along which images are divided: the first axis longer than 1 in the result.
    axis: usize,
    /// Number of positions of that axis per part. `images` is the number of images per part, which
    /// is 1 if they are divided.
    lines: usize,
    images: usize,
    /// The strides of the axes of a box.
    strides: [usize; 3],
    /// Number of elements of the box of an image.
    size: usize,
    /// Whether the source is read in place.
    is_direct: bool,
}

/// A part of the grid: a range of the divided axis, for some images.
#[derive(Clone, Copy, Debug)]
pub(super) struct GridChunk {
    pub(super) image: usize,
    pub(super) images: usize,
    pub(super) first: usize,
    pub(super) lines: usize,
}

/// The windows at a grid of positions with stride `step`, with elements at the offsets `taps`.
pub(super) struct PatchWindows<'a> {
    pub(super) grid: [usize; 3],
    /// The extents of the result, which contains these positions and possibly others between them.
    pub(super) result: [usize; 3],
    pub(super) step: [usize; 3],
    pub(super) taps: &'a [[isize; 3]],
    /// Whether channels are read as vectors, so that the last vector may extend beyond the box.
    pub(super) has_rest: bool,
}

impl PaddedPatches {
    /// Creates the boxes for a source in layout `order`. Returns `None` if a part would not fit in
    /// a thread's memory.
    pub(super) fn new(
        windows: PatchWindows<'_>,
        channels: usize,
        source: [usize; 3],
        order: MemoryLayout,
        batch: usize,
        least_parts: usize,
    ) -> Option<PaddedPatches> {
        let PatchWindows { grid, result, step, taps, has_rest } = windows;
        if taps.is_empty() || channels == 0 || batch == 0 || grid.contains(&0) {
            return None;
        }
        let bound = |i: usize| {
            let all = || taps.iter().map(|tap| tap[i]);
            (all().min().expect("there is a tap"), all().max().expect("there is a tap"))
        };
        let bounds: [(isize, isize); 3] = std::array::from_fn(bound);
        let (low, reach) = (bounds.map(|b| b.0), bounds.map(|(low, high)| (high - low) as usize));
        let axis = (0..3).find(|&i| result[i] > 1).unwrap_or(2);
        let has_no_edges = (0..3).all(|i| {
            let end = ((grid[i] - 1) * step[i] + reach[i]) as isize + low[i];
            low[i] >= 0 && end < source[i] as isize
        });
        let is_direct = order == MemoryLayout::ChannelsLast && has_no_edges && !has_rest;
        let extents = |lines: usize| -> [usize; 3] {
            std::array::from_fn(|i| (if i == axis { lines } else { grid[i] } - 1) * step[i] + reach[i] + 1)
        };
        let size = |lines: usize| extents(lines).iter().fold(channels, |n, &extent| n.saturating_mul(extent));
        let per_line: usize = (0..3).filter(|&i| i != axis).map(|i| grid[i]).product();
        let fits = |lines: usize, room: usize| (is_direct || size(lines) <= room) && lines * per_line <= POSITIONS;
        if !fits(1, ROOM - REST) {
            return None;
        }
        let parts_of_image = least_parts.div_ceil(batch);
        let most = grid[axis].div_ceil(parts_of_image).clamp(1, POSITIONS);
        let lines = (1..=most).rev().find(|&n| fits(n, WANTED)).unwrap_or(1);
        // Balance the sizes of the parts.
        let lines = grid[axis].div_ceil(grid[axis].div_ceil(lines));
        let images = match lines == grid[axis] {
            true => (batch / least_parts).min(POSITIONS / (lines * per_line)).min(WANTED / size(lines)).max(1),
            false => 1,
        };
        let extents = if is_direct { source } else { extents(lines) };
        let strides = [extents[1] * extents[2] * channels, extents[2] * channels, channels];
        let size = extents[0] * strides[0];
        u32::try_from(images.checked_mul(size)?).ok()?;
        Some(PaddedPatches {
            channels,
            source,
            order,
            grid,
            step,
            low,
            reach,
            axis,
            lines,
            images,
            strides,
            size,
            is_direct,
        })
    }

    /// Returns the offset of a window element relative to the position.
    pub(super) fn offset(&self, tap: [isize; 3], channel: usize) -> u32 {
        let far = (0..3).map(|i| (tap[i] - self.low[i]) as usize * self.strides[i]).sum::<usize>();
        (far + channel) as u32
    }

    /// Returns the number of parts into which an image is divided.
    pub(super) fn parts_of_image(&self) -> usize {
        self.grid[self.axis].div_ceil(self.lines)
    }

    /// Returns the number of images per part.
    pub(super) fn images(&self) -> usize {
        self.images
    }

    /// Returns the axis along which images are divided, and the number of its positions per part.
    pub(super) fn lines(&self) -> (usize, usize) {
        (self.axis, self.lines)
    }

    /// Returns the `n`th part of some images.
    pub(super) fn part(&self, image: usize, images: usize, n: usize) -> GridChunk {
        let first = n * self.lines;
        GridChunk { image, images, first, lines: self.lines.min(self.grid[self.axis] - first) }
    }

    /// Calls `f(image in the part, first position, number of positions, offset)` for each line of a
    /// part.
    ///
    /// `grid` may be slightly smaller than the grid of the boxes.
    #[inline(always)]
    pub(super) fn for_each_line(
        &self,
        part: &GridChunk,
        grid: [usize; 3],
        mut f: impl FnMut(usize, [usize; 3], usize, usize),
    ) {
        let mut from = [0; 3];
        let mut to = grid;
        from[self.axis] = part.first;
        to[self.axis] = (part.first + part.lines).min(grid[self.axis]);
        if from[self.axis] >= to[self.axis] {
            return;
        }
        let far = |i: usize, g: usize| (g - from[i]) * self.step[i] * self.strides[i];
        for image in 0..part.images {
            for a in from[0]..to[0] {
                for b in from[1]..to[1] {
                    f(image, [a, b, from[2]], to[2] - from[2], image * self.size + far(0, a) + far(1, b));
                }
            }
        }
    }

    /// Returns the stride between positions of a line.
    pub(super) fn apart(&self) -> usize {
        self.step[2] * self.strides[2]
    }

    /// Returns the source elements that the positions and terms of a chunk refer to, from the first
    /// position on: copied to `room`, or in place.
    #[inline(always)]
    pub(super) fn fill<'a, T: Lane>(&self, part: &GridChunk, source: &'a [T], room: &'a mut [T]) -> &'a [T] {
        let origin: [isize; 3] = std::array::from_fn(|i| {
            let first = if i == self.axis { part.first } else { 0 };
            (first * self.step[i]) as isize + self.low[i]
        });
        if self.is_direct {
            let far = (0..3).map(|i| origin[i] as usize * self.strides[i]).sum::<usize>();
            return &source[part.image * self.size + far..];
        }
        let extents: [usize; 3] = std::array::from_fn(|i| {
            let n = if i == self.axis { part.lines } else { self.grid[i] };
            (n - 1) * self.step[i] + self.reach[i] + 1
        });
        let plane: usize = self.source.iter().product();
        let (lo, hi) = inside(origin[2], 1, extents[2], self.source[2]);
        for image in 0..part.images {
            let from = (part.image + image) * plane * self.channels;
            for a in 0..extents[0] {
                for b in 0..extents[1] {
                    let start = image * self.size + a * self.strides[0] + b * self.strides[1];
                    let line = &mut room[start..start + extents[2] * self.channels];
                    let at = [origin[0] + a as isize, origin[1] + b as isize];
                    if (0..2).any(|i| at[i] < 0 || at[i] as usize >= self.source[i]) || lo == hi {
                        line.fill(T::default());
                        continue;
                    }
                    line[..lo * self.channels].fill(T::default());
                    line[hi * self.channels..].fill(T::default());
                    let line = &mut line[lo * self.channels..hi * self.channels];
                    let first = (at[0] as usize * self.source[1] + at[1] as usize) * self.source[2];
                    let first = first + (origin[2] + lo as isize) as usize;
                    match self.order {
                        MemoryLayout::ChannelsLast => {
                            line.copy_from_slice(&source[from + first * self.channels..][..line.len()]);
                        }
                        MemoryLayout::RowMajor => interleave(&source[from + first..], plane, self.channels, line),
                    }
                }
            }
        }
        room
    }
}

/// Interleaves one line per channel, with stride `apart`, so that channels are contiguous.
#[inline(always)]
fn interleave<T: Copy>(from: &[T], apart: usize, channels: usize, to: &mut [T]) {
    const SOME: usize = 8;
    let n = to.len() / channels;
    let mut c = 0;
    while c + SOME <= channels {
        let lines: [&[T]; SOME] = std::array::from_fn(|i| &from[(c + i) * apart..][..n]);
        for (i, to) in to.chunks_exact_mut(channels).enumerate() {
            let to = &mut to[c..c + SOME];
            (0..SOME).for_each(|k| to[k] = lines[k][i]);
        }
        c += SOME;
    }
    for c in c..channels {
        let line = &from[c * apart..][..n];
        to[c..].iter_mut().step_by(channels).zip(line).for_each(|(to, &x)| *to = x);
    }
}

/// Calls `f` with this thread's memory for boxes.
pub(super) fn with_room<T: Lane>(f: impl FnOnce(&mut [T])) {
    thread_local! {
        static MEMORY: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }
    MEMORY.with_borrow_mut(|memory| {
        if memory.is_empty() {
            memory.resize(ROOM, 0);
        }
        f(&mut bytemuck::cast_slice_mut(memory)[..ROOM]);
    });
}
