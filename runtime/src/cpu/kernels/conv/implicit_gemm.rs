//! Convolution and transposed convolution as products of filters and gathered windows.
//!
//! Both compute, for rows `r` and positions `p`, the sum over channels `c` and window elements `t`
//! of `filters[r, c, t] * source[c, p * step + tap[t]]`. In a convolution, the rows are filters,
//! and there is one grid of positions. In a transposed convolution with stride `s`, the rows are
//! channels, and the result is divided into one *phase* per remainder of positions modulo `s`. The
//! positions of a phase use the same window elements, and form a grid with step 1 in the source.
//!
//! Columns are the positions of several concatenated images. A *panel* holds the window elements of
//! some columns for a block of channels. The panel is multiplied with all rows, in *tiles* of a few
//! rows by a few vectors of columns whose sums stay in registers.

use super::phase::Phase;
use super::{Geometry, LineSegment, LineSegments, PARALLEL, PARTS, Panel, divisor, inside};
use crate::cpu::kernels::epilogue::Epilogue;
use crate::cpu::memory::Sources;
use crate::cpu::memory::TensorOperand;
use crate::cpu::vector::{InstructionSet, Lane, Task, Vector};
use crate::threads;
use anabranch_dsl::DType;

/// A convolution or transposed convolution of row-major tensors.
#[derive(Clone, Debug)]
pub(crate) struct ImplicitGemm {
    groups: usize,
    /// Number of result channels per group.
    rows: usize,
    /// Number of source channels per group.
    channels: usize,
    source: [usize; 3],
    result: [usize; 3],
    /// Number of elements per row of the filter matrix.
    row_stride: usize,
    phases: Vec<Phase>,
    /// Number of images per task. `row_parts` is the number of tasks that share the rows.
    images: usize,
    row_parts: usize,
    /// Total number of multiplications.
    work: usize,
    epilogue: Option<Epilogue>,
}

/// Number of elements of a panel, which is reused from the L2 cache.
const PANEL: usize = 24576;
/// Number of columns of a panel, a multiple of all tile widths.
const WIDTH: usize = 96;
/// Maximum products per result element that are computed without a panel.
const DIRECT: usize = 32;

impl ImplicitGemm {
    /// Creates the convolution of `x` with filters `[groups * filters, channels, ..]`.
    pub(crate) fn conv(g: &Geometry) -> ImplicitGemm {
        ImplicitGemm::new(g, g.filters, g.channels, g.x, g.y, Phase::of_conv(g))
    }

    /// Creates the transpose, applied to `y` with filters `[groups * channels, filters, ..]`: the
    /// channels and filters of each group are exchanged.
    pub(crate) fn transpose(g: &Geometry) -> ImplicitGemm {
        ImplicitGemm::new(g, g.channels, g.filters, g.y, g.x, Phase::of_transpose(g))
    }

    fn new(
        g: &Geometry,
        rows: usize,
        channels: usize,
        source: [usize; 3],
        result: [usize; 3],
        phases: Vec<Phase>,
    ) -> ImplicitGemm {
        let products: usize = phases.iter().map(|p| p.grid.iter().product::<usize>() * p.places.len()).sum();
        let row_stride = channels * g.window();
        assert!(phases.iter().flat_map(|p| &p.places).all(|&p| p < row_stride), "a place outside a row of filters");
        let columns = phases.iter().map(|p| p.grid.iter().product::<usize>()).max().unwrap_or(1).max(1);
        // Small images share a panel if that leaves less of it empty. If there are few images, rows
        // are divided.
        let (mut images, mut row_parts) = (1, 1);
        if g.batch * g.groups < PARTS {
            let least = rows.div_ceil(8).max(1);
            row_parts = divisor(rows, PARTS.div_ceil((g.batch * g.groups).max(1)).min(least));
        } else if g.groups == 1 {
            let used = |images: usize| (images * columns).div_ceil(16) as f64 * 16.0 / (images * columns) as f64;
            for more in 2..=16 {
                if g.batch.div_ceil(more) >= PARTS && used(more) < used(images) - 0.03 {
                    images = more;
                }
            }
        }
        ImplicitGemm {
            groups: g.groups,
            rows,
            channels,
            source,
            result,
            row_stride,
            phases,
            images,
            row_parts,
            work: g.batch * g.groups * rows * products,
            epilogue: None,
        }
    }

    /// Adds an epilogue, whose operands other than the result follow those of the convolution.
    pub(crate) fn with_epilogue(self, epilogue: Epilogue) -> ImplicitGemm {
        ImplicitGemm { epilogue: Some(epilogue), ..self }
    }

    /// Returns the names of the operations of the epilogue.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.epilogue.iter().flat_map(Epilogue::names)
    }

    /// Runs the kernel. The operands are the source and the filter matrix, both dense, and those of
    /// the epilogue.
    pub(crate) fn run(&self, operands: &[TensorOperand], out: &mut [u8], sources: &Sources<'_>) {
        let (source, filters) = (operands[0].view(), operands[1].view());
        let level = InstructionSet::best();
        let finish = |first: usize, part: &mut [u8]| {
            if let Some(epilogue) = &self.epilogue {
                epilogue.run(&operands[1..], first, part, sources);
            }
        };
        match source.dtype {
            DType::F32 => {
                let [source, filters] = [source, filters].map(|v| sources.contiguous::<f32>(v));
                self.run_at(level, source, filters, bytemuck::cast_slice_mut(out), &finish);
            }
            DType::F64 => {
                let [source, filters] = [source, filters].map(|v| sources.contiguous::<f64>(v));
                self.run_at(level, source, filters, bytemuck::cast_slice_mut(out), &finish);
            }
            other => panic!("a convolution of {other}"),
        }
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
        let plane = size(self.result);
        let part = self.images * self.rows / self.row_parts * plane;
        if out.is_empty() {
            return;
        }
        if self.channels == 0 {
            out.fill(T::default());
            return finish(0, bytemuck::cast_slice_mut(out));
        }
        let run = |(i, out): (usize, &mut [T])| {
            // A task with several images has a single group and undivided rows.
            let (unit, rows) = (i * self.images, self.rows / self.row_parts);
            let (group_of_all, row) = (unit / self.row_parts, unit % self.row_parts * rows);
            let (image, group) = (group_of_all / self.groups, group_of_all % self.groups);
            let images = out.len() / (rows * plane);
            level.run(RowChunk {
                all: self,
                source,
                filters,
                out: &mut *out,
                image,
                images,
                group,
                first_row: row,
                rows,
            });
            finish(i * part, bytemuck::cast_slice_mut(out));
        };
        if self.work < PARALLEL {
            out.chunks_mut(part).enumerate().for_each(run);
        } else {
            threads::chunks_until_stop(out, part, run);
        }
    }
}

fn size(grid: [usize; 3]) -> usize {
    grid[0] * grid[1] * grid[2]
}

/// Some rows of some images of the result.
struct RowChunk<'a, T> {
    all: &'a ImplicitGemm,
    source: &'a [T],
    filters: &'a [T],
    /// `[images, rows, ..]`.
    out: &'a mut [T],
    image: usize,
    images: usize,
    group: usize,
    first_row: usize,
    rows: usize,
}

impl<T: Lane> Task<T> for RowChunk<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T = T>, const ROWS: usize, const VECTORS: usize>(mut self) {
        if self.all.phases.iter().any(|p| p.taps.is_empty()) {
            self.out.fill(T::default());
        }
        let mut panel = None;
        for phase in &self.all.phases {
            if phase.taps.is_empty() || size(phase.grid) == 0 {
                continue;
            }
            if self.rows <= 2 && phase.places.len() <= DIRECT {
                // SAFETY: the caller guarantees that the processor supports the instructions of
                // `V`.
                unsafe { self.direct::<V>(phase) };
            } else {
                let panel = panel.get_or_insert_with(|| Panel([T::default(); PANEL]));
                // SAFETY: as above.
                unsafe { self.product::<V, ROWS, VECTORS>(phase, &mut panel.0) };
            }
        }
    }
}

/// The columns of a panel within the task.
struct PanelColumns {
    pieces: [LineSegment; WIDTH],
    n_pieces: usize,
    n: usize,
    /// The index of each column in the result, for the first row.
    to: [usize; WIDTH],
    /// The row stride of the panel: one vector more than the columns.
    stride: usize,
}

/// A tile of rows of the result and columns of a panel.
struct PanelTile<'a> {
    row: usize,
    /// The first column.
    column: usize,
    places: &'a [usize],
    columns: &'a PanelColumns,
    /// Whether this is the first contribution to the result.
    is_first: bool,
}

impl<T: Lane> RowChunk<'_, T> {
    /// Returns the index in the source of the first element of an image of the task and a channel
    /// of the group.
    #[inline(always)]
    fn channel(&self, image: usize, channel: usize) -> usize {
        let all = self.all;
        (((self.image + image) * all.groups + self.group) * all.channels + channel) * size(all.source)
    }

    /// Returns the filters of a row of the task.
    #[inline(always)]
    fn filters(&self, row: usize) -> &[T] {
        let all = self.all;
        let start = (self.group * all.rows + self.first_row + row) * all.row_stride;
        &self.filters[start..start + all.row_stride]
    }

    /// Returns the index in the result of a position, for the first row of an image of the task.
    #[inline(always)]
    fn place(&self, phase: &Phase, image: usize, g: [usize; 3]) -> usize {
        let [a, b, c]: [usize; 3] = std::array::from_fn(|i| phase.first[i] + g[i] * phase.apart[i]);
        let result = self.all.result;
        image * self.rows * size(result) + (a * result[1] + b) * result[2] + c
    }

    /// Computes a phase of the task as a matrix product.
    ///
    /// # Safety
    /// The processor must support the instructions of `V`.
    #[inline(always)]
    unsafe fn product<V: Vector<T = T>, const ROWS: usize, const VECTORS: usize>(
        &mut self,
        phase: &Phase,
        panel: &mut [T; PANEL],
    ) {
        let n_columns = self.images * size(phase.grid);
        let depth = phase.places.len();
        // Blocks of about equal depth, with whole channels if any fit in a panel.
        let most = PANEL / (WIDTH + V::N);
        let fitting = most - most % phase.taps.len();
        let block = match fitting {
            0 => most,
            _ => depth.div_ceil(depth.div_ceil(fitting)).next_multiple_of(phase.taps.len()),
        };
        for from in (0..n_columns).step_by(WIDTH) {
            let columns = self.columns(phase, from, n_columns.min(from + WIDTH), WIDTH + V::N);
            for k in (0..depth).step_by(block) {
                if threads::stop::is_set() {
                    return;
                }
                let end = depth.min(k + block);
                // SAFETY: the caller guarantees that the processor supports the instructions of
                // `V`.
                unsafe { self.pack::<V>(phase, &columns, k, end, panel) };
                let mut tile =
                    PanelTile { row: 0, column: 0, places: &phase.places[k..end], columns: &columns, is_first: k == 0 };
                while tile.row < self.rows {
                    // SAFETY: as above.
                    tile.row += unsafe {
                        match self.rows - tile.row {
                            n if n >= ROWS => self.rows_of::<V, ROWS, VECTORS>(&mut tile, panel),
                            n if const { ROWS > 4 } && n >= 4 => self.rows_of::<V, 4, VECTORS>(&mut tile, panel),
                            n if const { ROWS > 2 } && n >= 2 => self.rows_of::<V, 2, VECTORS>(&mut tile, panel),
                            _ => self.rows_of::<V, 1, VECTORS>(&mut tile, panel),
                        }
                    };
                }
            }
        }
    }

    #[inline(always)]
    fn columns(&self, phase: &Phase, from: usize, to: usize, stride: usize) -> PanelColumns {
        let mut c =
            PanelColumns { pieces: [LineSegment::default(); WIDTH], n_pieces: 0, n: to - from, to: [0; WIDTH], stride };
        for piece in LineSegments::new(phase.grid, from, to) {
            c.pieces[c.n_pieces] = piece;
            c.n_pieces += 1;
            let first = self.place(phase, piece.image, piece.g);
            for i in 0..piece.len {
                c.to[piece.column + i] = first + i * phase.apart[2];
            }
        }
        c
    }

    /// Fills a panel with the window elements of its columns: one row per channel and tap of
    /// `from..to`.
    ///
    /// # Safety
    /// The processor must support the instructions of `V`.
    #[inline(always)]
    unsafe fn pack<V: Vector<T = T>>(
        &self,
        phase: &Phase,
        columns: &PanelColumns,
        from: usize,
        to: usize,
        panel: &mut [T; PANEL],
    ) {
        let n_taps = phase.taps.len();
        let extents = self.all.source;
        let plane = size(extents);
        for (t, tap) in phase.taps.iter().enumerate() {
            // Channels `c` with `from <= c * n_taps + t < to`.
            let first = (from.saturating_sub(t)).div_ceil(n_taps);
            let end = (to.saturating_sub(t)).div_ceil(n_taps);
            if first >= end {
                continue;
            }
            for piece in &columns.pieces[..columns.n_pieces] {
                let at: [isize; 3] = std::array::from_fn(|i| (piece.g[i] * phase.step[i]) as isize + tap[i]);
                let is_inside = |i: usize| at[i] >= 0 && (at[i] as usize) < extents[i];
                let (lo, hi) = match is_inside(0) && is_inside(1) {
                    true => inside(at[2], phase.step[2], piece.len, extents[2]),
                    false => (0, 0),
                };
                let line = if hi > 0 { (at[0] as usize * extents[1] + at[1] as usize) * extents[2] } else { 0 };
                let start = (self.channel(piece.image, first) + line) as isize + at[2];
                let row = (first * n_taps + t - from) * columns.stride + piece.column;
                let lines = Lines { start, step: phase.step[2], apart: plane, n: end - first, lo, hi, len: piece.len };
                // SAFETY: segments are in the order of their columns, so elements written after a
                // segment are overwritten by the next segment, or are in the last vector of the
                // row, after all columns. The elements `lo..hi` are in the source.
                unsafe { copy::<V>(self.source, &lines, &mut panel[row..], n_taps * columns.stride) };
            }
        }
    }

    /// Multiplies `R` rows of filters with a panel. Returns `R`.
    ///
    /// # Safety
    /// The processor must support the instructions of `V`.
    #[inline(always)]
    unsafe fn rows_of<V: Vector<T = T>, const R: usize, const VECTORS: usize>(
        &mut self,
        tile: &mut PanelTile<'_>,
        panel: &[T; PANEL],
    ) -> usize {
        tile.column = 0;
        while tile.column < tile.columns.n {
            let left = (tile.columns.n - tile.column).div_ceil(V::N);
            // If one vector too many is left, split the columns into two tiles.
            let vectors = if left == VECTORS + 1 { left.div_ceil(2) } else { left.min(VECTORS) };
            // SAFETY: the caller guarantees that the processor supports the instructions.
            unsafe {
                match vectors {
                    3 if const { VECTORS >= 3 } => self.tile::<V, R, 3>(tile, panel),
                    2 if const { VECTORS >= 2 } => self.tile::<V, R, 2>(tile, panel),
                    _ => self.tile::<V, R, 1>(tile, panel),
                }
            }
            tile.column += vectors * V::N;
        }
        R
    }

    /// Computes one tile.
    ///
    /// # Safety
    /// The processor must support the instructions of `V`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "registers are named by constant indices into several arrays")]
    unsafe fn tile<V: Vector<T = T>, const R: usize, const C: usize>(
        &mut self,
        tile: &PanelTile<'_>,
        panel: &[T; PANEL],
    ) {
        let plane = size(self.all.result);
        let stride = tile.columns.stride;
        assert!(tile.places.len() * stride <= PANEL && tile.column + C * V::N <= stride);
        let filters: [*const T; R] = std::array::from_fn(|r| self.filters(tile.row + r).as_ptr());
        let to = &tile.columns.to[tile.column..tile.columns.n.min(tile.column + C * V::N)];
        // Indices increase with the columns, so the first and the last index suffice.
        let is_dense = to.len() == C * V::N && to[to.len() - 1] - to[0] == to.len() - 1;
        // SAFETY: places are inside rows of filters, as checked when the phase was created. The
        // panel has one row per place, and the `C` vectors stay within it. Writes are inside a
        // slice.
        unsafe {
            let mut sums = [[V::splat(T::default()); C]; R];
            let mut from = panel.as_ptr().add(tile.column);
            for &place in tile.places {
                let mut x = [V::splat(T::default()); C];
                for c in 0..C {
                    x[c] = V::load(from.add(c * V::N));
                }
                for r in 0..R {
                    let w = V::splat(*filters[r].add(place));
                    for c in 0..C {
                        sums[r][c] = w.mul_add(x[c], sums[r][c]);
                    }
                }
                from = from.add(stride);
            }
            for (r, sums) in sums.into_iter().enumerate() {
                let out = &mut self.out[(tile.row + r) * plane..];
                if is_dense {
                    let out = &mut out[to[0]..][..C * V::N];
                    for (sum, out) in sums.into_iter().zip(out.chunks_exact_mut(V::N)) {
                        let sum = if tile.is_first { sum } else { V::load(out.as_ptr()).add(sum) };
                        sum.store(out.as_mut_ptr());
                    }
                } else {
                    let mut lanes = [T::default(); WIDTH];
                    for (sum, lanes) in sums.into_iter().zip(lanes.chunks_exact_mut(V::N)) {
                        sum.store(lanes.as_mut_ptr());
                    }
                    for (&to, &sum) in to.iter().zip(&lanes) {
                        out[to] = if tile.is_first { sum } else { out[to] + sum };
                    }
                }
            }
        }
    }

    /// Computes a phase without a panel, line by line, for few rows and small windows.
    ///
    /// # Safety
    /// The processor must support the instructions of `V`.
    #[inline(always)]
    unsafe fn direct<V: Vector<T = T>>(&mut self, phase: &Phase) {
        let n_taps = phase.taps.len();
        let (extents, plane) = (self.all.source, size(self.all.result));
        let (step, apart) = (phase.step[2], phase.apart[2]);
        let columns = self.images * size(phase.grid);
        // The taps that contribute to a line: weight, index of the first element, and range inside
        // the source.
        let mut met = [(T::default(), 0isize, 0, 0); DIRECT];
        for row in 0..self.rows {
            for piece in LineSegments::new(phase.grid, 0, columns) {
                let mut n = 0;
                let (mut all_from, mut all_to) = (0, piece.len);
                for (k, &place) in phase.places.iter().enumerate() {
                    let tap = phase.taps[k % n_taps];
                    let at: [isize; 3] = std::array::from_fn(|i| (piece.g[i] * phase.step[i]) as isize + tap[i]);
                    let is_inside = |i: usize| at[i] >= 0 && (at[i] as usize) < extents[i];
                    if !(is_inside(0) && is_inside(1)) {
                        continue;
                    }
                    let (lo, hi) = inside(at[2], step, piece.len, extents[2]);
                    let line = (at[0] as usize * extents[1] + at[1] as usize) * extents[2];
                    let start = (self.channel(piece.image, k / n_taps) + line) as isize + at[2];
                    met[n] = (self.filters(row)[place], start, lo, hi);
                    n += 1;
                    (all_from, all_to) = (all_from.max(lo), all_to.min(hi));
                }
                let met = &met[..n];
                let source = self.source;
                let one = |i: usize| {
                    met.iter().fold(T::default(), |sum, &(w, start, lo, hi)| match (lo..hi).contains(&i) {
                        true => sum + w * source[(start + (i * step) as isize) as usize],
                        false => sum,
                    })
                };
                let first = row * plane + self.place(phase, piece.image, piece.g);
                let mut i = 0;
                while i < piece.len {
                    if step == 1 && apart == 1 && i >= all_from && i < all_to && all_from + V::N <= all_to {
                        // The last vector may overlap the previous vector.
                        i = i.min(all_to - V::N);
                        let out = &mut self.out[first + i..][..V::N];
                        // SAFETY: the range `i..i + V::N` is inside for each tap, so these elements
                        // are in the source. The slice is as long as the vector.
                        unsafe {
                            let mut sum = V::splat(T::default());
                            for &(w, start, ..) in met {
                                let x = V::load(source.as_ptr().offset(start + i as isize));
                                sum = V::splat(w).mul_add(x, sum);
                            }
                            sum.store(out.as_mut_ptr());
                        }
                        i += V::N;
                    } else {
                        self.out[first + i * apart] = one(i);
                        i += 1;
                    }
                }
            }
        }
    }
}

/// The same range of several lines of a source.
pub(super) struct Lines {
    /// The index of the first element of the first line, which may be outside.
    pub(super) start: isize,
    /// The stride between elements.
    pub(super) step: usize,
    /// Number of lines. `apart` is the stride between them.
    pub(super) n: usize,
    pub(super) apart: usize,
    /// Elements `lo..hi` of `len` are inside. The others are zeros.
    pub(super) lo: usize,
    pub(super) hi: usize,
    pub(super) len: usize,
}

/// Writes lines with stride `apart`. Overwrites up to one vector after each.
///
/// # Safety
/// The elements `lo..hi` of each line must be in the source. The processor must support the
/// instructions of `V`.
#[inline(always)]
pub(super) unsafe fn copy<V: Vector>(source: &[V::T], lines: &Lines, to: &mut [V::T], apart: usize) {
    let &Lines { start, step, n, apart: from_apart, lo, hi, len } = lines;
    assert!(n > 0 && to.len() >= (n - 1) * apart + len + V::N && lo <= hi && hi <= len);
    let mut to = to.as_mut_ptr();
    // The first element inside, if there is one, and the end of the last vector to be read.
    let first = (start + (lo * step) as isize) as usize;
    let fits = || first + (n - 1) * from_apart + (hi - lo).next_multiple_of(V::N) <= source.len();
    // SAFETY: a vector that starts before `len` ends before `len + V::N`, within `to`. The caller
    // guarantees the elements of the source. Where whole vectors are read, `fits` checked the
    // elements that fill the last vector.
    unsafe {
        if step == 1 && lo < hi && fits() {
            let mut from = source.as_ptr().add(first);
            for _ in 0..n {
                zeros::<V>(to, 0, lo);
                let mut i = 0;
                while i < hi - lo {
                    V::load(from.add(i)).store(to.add(lo + i));
                    i += V::N;
                }
                zeros::<V>(to, hi, len);
                from = from.wrapping_add(from_apart);
                to = to.wrapping_add(apart);
            }
            return;
        }
        for line in 0..n {
            zeros::<V>(to, 0, lo);
            for i in lo..hi {
                *to.add(i) = source[(start + (line * from_apart + i * step) as isize) as usize];
            }
            zeros::<V>(to, hi, len);
            to = to.wrapping_add(apart);
        }
    }
}

/// Writes zeros from `from` to `end`, and up to one vector more.
///
/// # Safety
/// `end + V::N` elements of `to` must be writable. The processor must support the instructions of
/// `V`.
#[inline(always)]
unsafe fn zeros<V: Vector>(to: *mut V::T, from: usize, end: usize) {
    let mut i = from;
    while i < end {
        // SAFETY: the vector starts before `end`.
        unsafe { V::splat(V::T::default()).store(to.add(i)) };
        i += V::N;
    }
}
