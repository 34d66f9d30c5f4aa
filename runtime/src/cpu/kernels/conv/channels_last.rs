//! Convolutions to channels-last results, as products of windows and filters.
//!
//! The kernels compute the sums of [`super::implicit_gemm`], but with positions as rows and filters
//! as columns: a *tile* is a few positions by a few vectors of filters. Windows are read from
//! [`PaddedPatches`], element by element. The filter matrix is packed as for
//! [matmuls](crate::cpu::kernels::matmul). The cost of a tile does not depend on the extents or
//! stride of an image, so small images and strides are efficient. In depthwise convolutions, a
//! filter and its channel share a vector lane.

use super::padded_patches::{GridChunk, POSITIONS, PaddedPatches, PatchWindows, with_room};
use super::phase::Phase;
use super::{Geometry, LANES, PARALLEL, PARTS};
use crate::cpu::kernels::epilogue::Epilogue;
use crate::cpu::kernels::matmul::Pack;
use crate::cpu::memory::Sources;
use crate::cpu::memory::{MemoryLayout, TensorOperand};
use crate::cpu::vector::{InstructionSet, Lane, Task, Vector};
use crate::threads;
use anabranch_dsl::DType;

/// A convolution or transposed convolution to a channels-last result.
#[derive(Clone, Debug)]
pub(crate) struct ChannelsLast {
    boxes: PaddedPatches,
    batch: usize,
    /// Number of result channels.
    filters: usize,
    result: [usize; 3],
    /// Number of rows of the packed filter matrix.
    inner: usize,
    /// Whether each filter applies only to the channel with its index.
    is_depthwise: bool,
    phases: Vec<Terms>,
    /// Whether some result positions have no window.
    has_gaps: bool,
    work: usize,
    level: InstructionSet,
    epilogue: Option<Epilogue>,
}

/// The positions of a phase, and the terms of their sums.
#[derive(Clone, Debug)]
struct Terms {
    grid: [usize; 3],
    first: [usize; 3],
    apart: [usize; 3],
    terms: Vec<ProductTerm>,
}

/// Returns whether the convolution is depthwise, or `None` for other groups, which are not
/// supported. Depthwise convolutions require a channels-last source.
pub(super) fn is_depthwise(g: &Geometry, order: MemoryLayout) -> Option<bool> {
    match (g.groups, g.channels, g.filters) {
        (1, ..) => Some(false),
        (_, 1, 1) if order == MemoryLayout::ChannelsLast => Some(true),
        _ => None,
    }
}

/// A term of a sum: the offset of the left factor in a box, relative to the position, and the row
/// of the right matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProductTerm {
    pub(super) left: u32,
    pub(super) right: u32,
}

/// Maximum number of terms per tile, whose rows of the right matrix fit in the L1 cache.
pub(super) const SLAB: usize = 256;

impl ChannelsLast {
    /// Creates the convolution of `x`, in the given layout, with filters `[filters, channels, ..]`.
    /// Returns `None` if the other method suits better.
    pub(crate) fn conv(g: &Geometry, order: MemoryLayout) -> Option<ChannelsLast> {
        Self::new(g, Phase::of_conv(g), g.channels, g.filters, [g.x, g.y], order)
    }

    /// Creates the transpose, applied to `y` with filters `[channels, filters, ..]`.
    pub(crate) fn transpose(g: &Geometry, order: MemoryLayout) -> Option<ChannelsLast> {
        Self::new(g, Phase::of_transpose(g), g.filters, g.channels, [g.y, g.x], order)
    }

    fn new(
        g: &Geometry,
        phases: Vec<Phase>,
        channels: usize,
        filters: usize,
        [source, result]: [[usize; 3]; 2],
        order: MemoryLayout,
    ) -> Option<ChannelsLast> {
        let first = phases.first()?;
        let is_depthwise = is_depthwise(g, order)?;
        let (inner, groups) = (channels * g.window(), g.groups);
        let [channels, filters] = [channels, filters].map(|n| n * groups);
        // A single channel has both layouts.
        let order = if channels == 1 { MemoryLayout::ChannelsLast } else { order };
        if filters < LANES {
            return None;
        }
        let taps: Vec<[isize; 3]> = phases.iter().flat_map(|p| &p.taps).copied().collect();
        let windows = PatchWindows { grid: first.grid, result, step: first.step, taps: &taps, has_rest: is_depthwise };
        let boxes = PaddedPatches::new(windows, channels, source, order, g.batch, PARTS)?;
        // Indices in a part are 32-bit.
        u32::try_from(result.iter().product::<usize>().checked_mul(boxes.images())?).ok()?;
        let products: usize = phases.iter().map(|p| p.grid.iter().product::<usize>() * p.places.len()).sum();
        assert!(phases.iter().flat_map(|p| &p.places).all(|&p| p < inner), "a place outside a row of filters");
        let has_gaps = phases.iter().any(|p| p.taps.is_empty());
        let phases = phases.into_iter().filter(|p| !p.taps.is_empty());
        let phases = phases.map(|p| {
            let n = p.taps.len();
            let left = |i: usize| boxes.offset(p.taps[i % n], i / n);
            let terms =
                p.places.iter().enumerate().map(|(i, &place)| ProductTerm { left: left(i), right: place as u32 });
            Terms { grid: p.grid, first: p.first, apart: p.apart, terms: terms.collect() }
        });
        Some(ChannelsLast {
            phases: phases.collect(),
            boxes,
            batch: g.batch,
            filters,
            result,
            inner,
            is_depthwise,
            has_gaps,
            work: g.batch * filters * products,
            level: InstructionSet::best(),
            epilogue: None,
        })
    }

    /// Adds an epilogue, whose operands other than the result follow those of the convolution.
    pub(crate) fn with_epilogue(self, epilogue: Epilogue) -> ChannelsLast {
        ChannelsLast { epilogue: Some(epilogue), ..self }
    }

    /// Returns the packing of the filters, a row-major matrix with one row per result channel.
    pub(crate) fn pack(&self, dtype: DType) -> Pack {
        Pack::transposed(self.filters, self.inner, dtype)
    }

    /// Returns the names of the operations of the epilogue.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.epilogue.iter().flat_map(Epilogue::names)
    }

    /// Runs the kernel. The operands are the source and the packed filters, both dense, and those
    /// of the epilogue.
    pub(crate) fn run(&self, operands: &[TensorOperand], out: &mut [u8], sources: &Sources<'_>) {
        let source = operands[0].view();
        match source.dtype {
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
        let finish = |first: usize, part: &mut [u8]| {
            if let Some(epilogue) = &self.epilogue {
                epilogue.run(&operands[1..], first, part, sources);
            }
        };
        let [source, filters] = [0, 1].map(|i| sources.contiguous::<T>(operands[i].view()));
        self.run_at(self.level, source, filters, bytemuck::cast_slice_mut(out), &finish);
    }

    /// Calls `finish` with each completed part of the result and the index of its first element.
    pub(super) fn run_at<T: Lane>(
        &self,
        level: InstructionSet,
        source: &[T],
        filters: &[T],
        out: &mut [T],
        finish: &(impl Fn(usize, &mut [u8]) + Sync),
    ) {
        let (axis, lines) = self.boxes.lines();
        // Number of result elements per position of the axis along which images are divided.
        let line = self.result[axis + 1..].iter().product::<usize>() * self.filters;
        let image = self.result[axis] * line;
        // Images per task (several only if they are not divided), and a part of them. Axes before
        // the divided axis have one position each.
        let images = self.boxes.images();
        let unit = images * image;
        let part = match self.boxes.parts_of_image() {
            1 => unit,
            _ => lines * self.phases.first().map_or(1, |p| p.apart[axis]) * line,
        };
        let run = |i: usize, k: usize, out: &mut [T]| {
            let first = i * images;
            let of_grid = self.boxes.part(first, images.min(self.batch - first), k);
            with_room(|room| self.run_part(level, source, filters, out, &of_grid, room));
            finish(i * unit + k * part, bytemuck::cast_slice_mut(out));
        };
        if self.work < PARALLEL {
            for (i, out) in out.chunks_mut(unit).enumerate() {
                out.chunks_mut(part).enumerate().for_each(|(k, out)| run(i, k, out));
            }
        } else {
            threads::chunks_until_stop(out, unit, |(i, out)| {
                threads::chunks_until_stop(out, part, |(k, out)| run(i, k, out));
            });
        }
    }

    /// Computes a part of the result.
    fn run_part<T: Lane>(
        &self,
        level: InstructionSet,
        source: &[T],
        filters: &[T],
        out: &mut [T],
        part: &GridChunk,
        room: &mut [T],
    ) {
        if self.has_gaps {
            out.fill(T::default());
        }
        let left = self.boxes.fill(part, source, room);
        let (axis, _) = self.boxes.lines();
        let [_, wide, lanes] = level.tile::<T>();
        let packed = self.filters / wide * wide + (self.filters % wide).next_multiple_of(lanes);
        assert!(self.inner * packed <= filters.len(), "filters are packed for other tiles");
        let (mut from, mut to) = ([0u32; POSITIONS], [0u32; POSITIONS]);
        for phase in &self.phases {
            // Offsets of positions in the box and in the part of the result.
            let mut n = 0;
            let line = |g: [usize; 3], i: usize| {
                let first = if i == axis { part.first * phase.apart[i] } else { 0 };
                phase.first[i] + g[i] * phase.apart[i] - first
            };
            let image_len = self.result.iter().product::<usize>();
            let (apart, step) = (phase.apart[2], self.boxes.apart());
            self.boxes.for_each_line(part, phase.grid, |image, g, len, offset| {
                let at = (line(g, 0) * self.result[1] + line(g, 1)) * self.result[2] + line(g, 2) + image * image_len;
                let places = from[n..n + len].iter_mut().zip(&mut to[n..n + len]);
                for (i, (from, to)) in places.enumerate() {
                    *from = (offset + i * step) as u32;
                    *to = (at + i * apart) as u32;
                }
                n += len;
            });
            let (from, to) = (&from[..n], &to[..n]);
            let last = phase.terms.iter().map(|t| t.left as usize).max().unwrap_or(0);
            let farthest = from.iter().max().map_or(0, |&f| f as usize);
            let rows_of_result = to.iter().max().map_or(0, |&t| t as usize + 1);
            let lanes = if self.is_depthwise { self.filters.next_multiple_of(lanes) } else { 1 };
            assert!(n == 0 || farthest + last + lanes <= left.len() && rows_of_result * self.filters <= out.len());
            let slabs = phase.terms.len().div_ceil(SLAB);
            for (s, terms) in phase.terms.chunks(phase.terms.len().div_ceil(slabs)).enumerate() {
                if threads::stop::is_set() {
                    return;
                }
                for column in (0..self.filters).step_by(wide) {
                    let product = PanelProduct {
                        left,
                        from,
                        terms,
                        panel: &filters[column * self.inner..],
                        result: &mut *out,
                        to,
                        filters: self.filters,
                        column,
                        is_packed: true,
                        adds: s > 0,
                        is_depthwise: self.is_depthwise,
                    };
                    // SAFETY: window elements are in the box, rows of the result are in the part,
                    // and the packed matrix is complete, as asserted. Terms were checked against
                    // its rows when they were created.
                    unsafe { product.run_at(level) };
                }
            }
        }
    }
}

/// The product of a left matrix with a panel of the right one, in tiles.
pub(super) struct PanelProduct<'a, T> {
    pub(super) left: &'a [T],
    /// The offset of each row of the left matrix.
    pub(super) from: &'a [u32],
    pub(super) terms: &'a [ProductTerm],
    /// Rows of the right matrix, with the columns from `column` on.
    pub(super) panel: &'a [T],
    /// Rows of `filters` elements each, and the row for each row of the left matrix.
    pub(super) result: &'a mut [T],
    pub(super) to: &'a [u32],
    pub(super) filters: usize,
    pub(super) column: usize,
    /// Whether the rows of an incomplete panel end with its last vector. Otherwise all panels are
    /// as wide as a tile.
    pub(super) is_packed: bool,
    /// Whether the product is added to the result.
    pub(super) adds: bool,
    /// Whether each column reads its own element of the left matrix, next to that of the previous
    /// column. Otherwise all columns read the same.
    pub(super) is_depthwise: bool,
}

impl<T: Lane> PanelProduct<'_, T> {
    /// Adds the product to the result, or stores it.
    ///
    /// # Safety
    /// Rows and terms must refer to elements of the left matrix, or if it is depthwise, to vectors
    /// for all columns. Terms must refer to rows of the panel, and `to` to rows of the result.
    pub(super) unsafe fn run_at(self, level: InstructionSet) {
        level.run(self);
    }

    /// # Safety
    /// As for [`run_at`](Self::run_at). The processor must support the instructions of `V`.
    #[inline(always)]
    unsafe fn rows<V: Vector<T = T>, const ROWS: usize, const VECTORS: usize, const EACH: bool>(&mut self) {
        let mut row = 0;
        // SAFETY: guaranteed by the caller.
        unsafe {
            while row < self.from.len() {
                row += match self.from.len() - row {
                    n if n >= ROWS => self.columns::<V, ROWS, VECTORS, EACH>(row),
                    n if const { ROWS > 4 } && n >= 4 => self.columns::<V, 4, VECTORS, EACH>(row),
                    n if const { ROWS > 2 } && n >= 2 => self.columns::<V, 2, VECTORS, EACH>(row),
                    _ => self.columns::<V, 1, VECTORS, EACH>(row),
                }
            }
        }
    }

    /// Computes `R` rows. Returns `R`.
    ///
    /// # Safety
    /// As for [`rows`](Self::rows).
    #[inline(always)]
    unsafe fn columns<V: Vector<T = T>, const R: usize, const VECTORS: usize, const EACH: bool>(
        &mut self,
        row: usize,
    ) -> usize {
        let columns = (V::N * VECTORS).min(self.filters - self.column);
        let step = if self.is_packed { columns.next_multiple_of(V::N) } else { V::N * VECTORS };
        // SAFETY: guaranteed by the caller.
        unsafe {
            if columns > V::N * (VECTORS - 1) {
                self.tile::<V, R, VECTORS, EACH>(row, columns, step);
            } else if const { VECTORS > 2 } && columns > V::N {
                self.tile::<V, R, 2, EACH>(row, columns, step);
            } else {
                self.tile::<V, R, 1, EACH>(row, columns, step);
            }
        }
        R
    }

    /// Computes `R` rows of `columns` columns. The rows of the panel have stride `step`.
    ///
    /// # Safety
    /// As for [`rows`](Self::rows).
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "registers are named by constant indices into several arrays")]
    unsafe fn tile<V: Vector<T = T>, const R: usize, const C: usize, const EACH: bool>(
        &mut self,
        row: usize,
        columns: usize,
        step: usize,
    ) {
        let (from, to) = (&self.from[row..row + R], &self.to[row..row + R]);
        let adds = self.adds;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let left = self.left.as_ptr().add(if EACH { self.column } else { 0 });
            let result = self.result.as_mut_ptr().add(self.column);
            let rows: [*const T; R] = std::array::from_fn(|r| left.add(from[r] as usize));
            let to: [*mut T; R] = std::array::from_fn(|r| result.add(to[r] as usize * self.filters));
            let panel = self.panel.as_ptr();
            let mut sums = [[V::splat(T::default()); C]; R];
            for term in self.terms {
                let from = panel.add(term.right as usize * step);
                let mut w = [V::splat(T::default()); C];
                for c in 0..C {
                    w[c] = V::load(from.add(c * V::N));
                }
                for r in 0..R {
                    let at = rows[r].add(term.left as usize);
                    for c in 0..C {
                        let x = if EACH { V::load(at.add(c * V::N)) } else { V::splat(*at) };
                        sums[r][c] = x.mul_add(w[c], sums[r][c]);
                    }
                }
            }
            if columns == C * V::N {
                for r in 0..R {
                    for c in 0..C {
                        let to = to[r].add(c * V::N);
                        if adds { V::load(to).add(sums[r][c]).store(to) } else { sums[r][c].store(to) }
                    }
                }
                return;
            }
            for r in 0..R {
                let mut lanes = [T::default(); WIDEST];
                for c in 0..C {
                    sums[r][c].store(lanes.as_mut_ptr().add(c * V::N));
                }
                for (i, &sum) in lanes[..columns].iter().enumerate() {
                    let to = to[r].add(i);
                    *to = if adds { *to + sum } else { sum };
                }
            }
        }
    }
}

impl<T: Lane> Task<T> for PanelProduct<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T = T>, const ROWS: usize, const VECTORS: usize>(mut self) {
        // SAFETY: as for `run_at`. The processor supports the instructions of `V`.
        unsafe {
            if self.is_depthwise {
                self.rows::<V, ROWS, VECTORS, true>();
            } else {
                self.rows::<V, ROWS, VECTORS, false>();
            }
        }
    }
}

/// Number of columns of the widest tile of all instruction sets.
pub(super) const WIDEST: usize = 64;
