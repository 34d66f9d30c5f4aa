//! Products of filters and windows: the convolution and its transpose.
//!
//! Both compute, for rows `r` and positions `p`, the sum over channels `c` and elements `t` of the window of
//! `filters[r, c, t] * source[c, p * step + tap[t]]`. In a convolution the rows are filters, and there is one grid of positions. In
//! its transpose with stride `s` the rows are channels, and the result falls apart into as many *phases* as there are remainders
//! of positions by `s`: the positions of a phase meet the same elements of the window, and form a grid with a step of 1 in the
//! source.
//!
//! Columns are the positions of several images, one behind the other. A *panel* holds, for three vectors of columns and a
//! block of channels, what the windows meet; it is multiplied with all rows, some at a time whose sums stay in registers.

use super::{Geometry, PARALLEL, PARTS, Piece, Pieces, divisor, inside};
use crate::cpu::memory::Sources;
use crate::cpu::vector::{Lane, Level, Task, Vector};
use crate::plan::Operand;
use anabranch_dsl::DType;
use rayon::prelude::*;

/// A convolution or its transpose.
#[derive(Clone, Debug)]
pub(crate) struct Gather {
    groups: usize,
    /// Channels of the result in a group.
    rows: usize,
    /// Channels of the source in a group.
    channels: usize,
    source: [usize; 3],
    result: [usize; 3],
    /// Elements of a row of the matrix of filters.
    row_stride: usize,
    phases: Vec<Phase>,
    /// Images in a part of the work, and parts of the rows.
    images: usize,
    row_parts: usize,
    /// Multiplications in all.
    work: usize,
}

/// Positions whose windows have the same elements.
#[derive(Clone, Debug)]
struct Phase {
    grid: [usize; 3],
    /// How far positions lie apart in the source.
    step: [usize; 3],
    taps: Vec<[isize; 3]>,
    /// For each channel and tap the place in a row of the matrix of filters.
    places: Vec<usize>,
    /// Where the positions lie in the result.
    first: [usize; 3],
    apart: [usize; 3],
}

/// Rows of a panel, and columns with the place beyond them that is overwritten with anything.
const DEPTH: usize = 256;
const WIDTH: usize = 64;
/// Most products of an element of the result that is computed without a panel.
const DIRECT: usize = 32;

impl Gather {
    /// The convolution of `x` with filters `[groups * filters, channels, ..]`.
    pub(crate) fn conv(g: &Geometry) -> Gather {
        let phase = Phase {
            grid: g.y,
            step: g.stride,
            taps: g.taps(),
            places: (0..g.channels * g.window()).collect(),
            first: [0; 3],
            apart: [1; 3],
        };
        Gather::new(g, g.filters, g.channels, g.x, g.y, vec![phase])
    }

    /// The transpose, of `y` with filters `[groups * channels, filters, ..]`: channels and filters of a group have changed places.
    pub(crate) fn transpose(g: &Geometry) -> Gather {
        let mut phases = Vec::new();
        for a in 0..g.stride[0].min(g.x[0]) {
            for b in 0..g.stride[1].min(g.x[1]) {
                for c in 0..g.stride[2].min(g.x[2]) {
                    phases.push(Self::phase(g, [a, b, c]));
                }
            }
        }
        Gather::new(g, g.channels, g.filters, g.y, g.x, phases)
    }

    /// The positions `first + i * stride` of `x`, which position `i + (first - tap) / stride` of `y` has met with `tap`, if that is whole.
    fn phase(g: &Geometry, first: [usize; 3]) -> Phase {
        let (mut taps, mut elements) = (Vec::new(), Vec::new());
        for (t, tap) in g.taps().into_iter().enumerate() {
            let distance: [isize; 3] = std::array::from_fn(|i| first[i] as isize - tap[i]);
            if (0..3).all(|i| distance[i] % g.stride[i] as isize == 0) {
                taps.push(std::array::from_fn(|i| distance[i] / g.stride[i] as isize));
                elements.push(t);
            }
        }
        let window = g.window();
        Phase {
            grid: std::array::from_fn(|i| (g.x[i] - first[i]).div_ceil(g.stride[i])),
            step: [1; 3],
            taps,
            places: (0..g.filters).flat_map(|o| elements.iter().map(move |t| o * window + t)).collect(),
            first,
            apart: g.stride,
        }
    }

    fn new(
        g: &Geometry,
        rows: usize,
        channels: usize,
        source: [usize; 3],
        result: [usize; 3],
        phases: Vec<Phase>,
    ) -> Gather {
        let products: usize = phases.iter().map(|p| p.grid.iter().product::<usize>() * p.places.len()).sum();
        let columns = phases.iter().map(|p| p.grid.iter().product::<usize>()).max().unwrap_or(1).max(1);
        // Several small images share a panel where that leaves less of it empty; rows are divided where images are few.
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
        Gather {
            groups: g.groups,
            rows,
            channels,
            source,
            result,
            row_stride: channels * g.window(),
            phases,
            images,
            row_parts,
            work: g.batch * g.groups * rows * products,
        }
    }

    /// The operands are the source and the matrix of filters, both dense.
    pub(crate) fn run(&self, operands: &[Operand], out: &mut [u8], sources: &Sources<'_>) {
        let (source, filters) = (operands[0].view(), operands[1].view());
        let level = Level::best();
        match source.dtype {
            DType::F32 => {
                let [source, filters] = [source, filters].map(|v| sources.contiguous::<f32>(v));
                self.run_at(level, source, filters, bytemuck::cast_slice_mut(out));
            }
            DType::F64 => {
                let [source, filters] = [source, filters].map(|v| sources.contiguous::<f64>(v));
                self.run_at(level, source, filters, bytemuck::cast_slice_mut(out));
            }
            other => panic!("a convolution of {other}"),
        }
    }

    pub(super) fn run_at<T: Lane>(&self, level: Level, source: &[T], filters: &[T], out: &mut [T]) {
        let plane = size(self.result);
        let part = self.images * self.rows / self.row_parts * plane;
        if out.is_empty() {
            return;
        }
        if self.channels == 0 {
            return out.fill(T::default());
        }
        let run = |(i, out): (usize, &mut [T])| {
            // With several images in a part there is one group, whose rows are not divided.
            let (unit, rows) = (i * self.images, self.rows / self.row_parts);
            let (group_of_all, row) = (unit / self.row_parts, unit % self.row_parts * rows);
            let (image, group) = (group_of_all / self.groups, group_of_all % self.groups);
            let images = out.len() / (rows * plane);
            level.run(Part { all: self, source, filters, out, image, images, group, first_row: row, rows });
        };
        if self.work < PARALLEL {
            out.chunks_mut(part).enumerate().for_each(run);
        } else {
            out.par_chunks_mut(part).enumerate().for_each(run);
        }
    }
}

fn size(grid: [usize; 3]) -> usize {
    grid[0] * grid[1] * grid[2]
}

/// Some rows of some images of the result.
struct Part<'a, T> {
    all: &'a Gather,
    source: &'a [T],
    filters: &'a [T],
    /// `[images, rows, ..]`
    out: &'a mut [T],
    image: usize,
    images: usize,
    group: usize,
    first_row: usize,
    rows: usize,
}

#[repr(align(64))]
struct Panel<T>([T; DEPTH * WIDTH]);

impl<T: Lane> Task<T> for Part<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T = T>, const ROWS: usize>(mut self) {
        if self.all.phases.iter().any(|p| p.taps.is_empty()) {
            self.out.fill(T::default());
        }
        let mut panel = None;
        for phase in &self.all.phases {
            if phase.taps.is_empty() || size(phase.grid) == 0 {
                continue;
            }
            if self.rows <= 2 && phase.places.len() <= DIRECT {
                // SAFETY: the caller says that the processor has the instructions of `V`.
                unsafe { self.direct::<V>(phase) };
            } else {
                let panel = panel.get_or_insert_with(|| Panel([T::default(); DEPTH * WIDTH]));
                // SAFETY: as above.
                unsafe { self.product::<V, ROWS>(phase, &mut panel.0) };
            }
        }
    }
}

/// What a panel is for: its columns among those of the part.
struct Columns {
    pieces: [Piece; WIDTH],
    n_pieces: usize,
    n: usize,
    vectors: usize,
    /// Where each column is in the result, for the first row.
    to: [usize; WIDTH],
    /// Whether they lie one behind the other there, and fill the vectors.
    dense: bool,
}

impl<T: Lane> Part<'_, T> {
    /// The first element in the source of an image of the part and a channel of the group.
    #[inline(always)]
    fn channel(&self, image: usize, channel: usize) -> usize {
        let all = self.all;
        (((self.image + image) * all.groups + self.group) * all.channels + channel) * size(all.source)
    }

    /// The filters of a row of the part.
    #[inline(always)]
    fn filters(&self, row: usize) -> &[T] {
        let all = self.all;
        let start = (self.group * all.rows + self.first_row + row) * all.row_stride;
        &self.filters[start..start + all.row_stride]
    }

    /// Where the element of a position is in the result, for the first row of an image of the part.
    #[inline(always)]
    fn place(&self, phase: &Phase, image: usize, g: [usize; 3]) -> usize {
        let [a, b, c]: [usize; 3] = std::array::from_fn(|i| phase.first[i] + g[i] * phase.apart[i]);
        let result = self.all.result;
        image * self.rows * size(result) + (a * result[1] + b) * result[2] + c
    }

    #[inline(always)]
    unsafe fn product<V: Vector<T = T>, const ROWS: usize>(&mut self, phase: &Phase, panel: &mut [T; DEPTH * WIDTH]) {
        let columns = self.images * size(phase.grid);
        let depth = phase.places.len();
        // Whole channels, if some fit into a panel.
        let block = if phase.taps.len() <= DEPTH { DEPTH - DEPTH % phase.taps.len() } else { DEPTH };
        let mut from = 0;
        while from < columns {
            let left = (columns - from).div_ceil(V::N);
            // The last four vectors are shared by two panels.
            let vectors = if left == 4 { 2 } else { left.min(3) };
            let to = columns.min(from + vectors * V::N);
            let columns = self.columns(phase, from, to, vectors, V::N);
            let mut k = 0;
            while k < depth {
                let end = depth.min(k + block);
                // SAFETY: the processor has the instructions of `V`, says the caller. `WIDTH` is at least `4 * V::N`.
                unsafe { self.pack::<V>(phase, &columns, k, end, panel) };
                let places = &phase.places[k..end];
                let mut row = 0;
                while row < self.rows {
                    // SAFETY: as above; the panel holds as many rows as there are places.
                    row += unsafe {
                        match self.rows - row {
                            n if n >= ROWS => self.rows_of::<V, ROWS>(row, places, panel, &columns, k == 0),
                            n if n >= 4 => self.rows_of::<V, 4>(row, places, panel, &columns, k == 0),
                            n if n >= 2 => self.rows_of::<V, 2>(row, places, panel, &columns, k == 0),
                            _ => self.rows_of::<V, 1>(row, places, panel, &columns, k == 0),
                        }
                    };
                }
                k = end;
            }
            from = to;
        }
    }

    #[inline(always)]
    fn columns(&self, phase: &Phase, from: usize, to: usize, vectors: usize, lanes: usize) -> Columns {
        let mut c = Columns {
            pieces: [Piece::default(); WIDTH],
            n_pieces: 0,
            n: to - from,
            vectors,
            to: [0; WIDTH],
            dense: false,
        };
        for piece in Pieces::new(phase.grid, from, to) {
            c.pieces[c.n_pieces] = piece;
            c.n_pieces += 1;
            let first = self.place(phase, piece.image, piece.g);
            for i in 0..piece.len {
                c.to[piece.column + i] = first + i * phase.apart[2];
            }
        }
        // Places grow with the columns, so the first and the last one tell.
        c.dense = c.n == vectors * lanes && c.to[c.n - 1] - c.to[0] == c.n - 1;
        c
    }

    /// Fills a panel with what the windows of its columns meet: a row of `4 * V::N` for each of the channels and taps `from..to`.
    #[inline(always)]
    unsafe fn pack<V: Vector<T = T>>(
        &self,
        phase: &Phase,
        columns: &Columns,
        from: usize,
        to: usize,
        panel: &mut [T; DEPTH * WIDTH],
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
                let mut start = (self.channel(piece.image, first) + line) as isize + at[2];
                let mut row = (first * n_taps + t - from) * 4 * V::N + piece.column;
                for _ in first..end {
                    // SAFETY: pieces come in the order of their columns, so what is written behind one is overwritten by the next,
                    // or lies in the last vector of the row, behind all columns. The elements `lo..hi` are in the source.
                    unsafe {
                        copy::<V>(self.source, start, phase.step[2], [lo, hi, piece.len], &mut panel[row..]);
                    }
                    start += plane as isize;
                    row += n_taps * 4 * V::N;
                }
            }
        }
    }

    /// Multiplies `R` rows of filters with a panel; gives `R`.
    #[inline(always)]
    unsafe fn rows_of<V: Vector<T = T>, const R: usize>(
        &mut self,
        row: usize,
        places: &[usize],
        panel: &[T; DEPTH * WIDTH],
        columns: &Columns,
        is_first: bool,
    ) -> usize {
        // SAFETY: the caller says that the processor has the instructions.
        unsafe {
            match columns.vectors {
                3 => self.tile::<V, R, 3>(row, places, panel, columns, is_first),
                2 => self.tile::<V, R, 2>(row, places, panel, columns, is_first),
                _ => self.tile::<V, R, 1>(row, places, panel, columns, is_first),
            }
        }
        R
    }

    #[inline(always)]
    unsafe fn tile<V: Vector<T = T>, const R: usize, const C: usize>(
        &mut self,
        row: usize,
        places: &[usize],
        panel: &[T; DEPTH * WIDTH],
        columns: &Columns,
        is_first: bool,
    ) {
        let plane = size(self.all.result);
        assert!(places.len() * 4 * V::N <= DEPTH * WIDTH && places.iter().all(|&p| p < self.all.row_stride));
        let filters: [*const T; R] = std::array::from_fn(|r| self.filters(row + r).as_ptr());
        // SAFETY: places are inside of rows of filters, and the panel has as many rows of `4 * V::N` elements as there are places:
        // both were just checked. What is written is inside of a slice.
        unsafe {
            let mut sums = [[V::splat(T::default()); C]; R];
            let mut from = panel.as_ptr();
            for &place in places {
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
                from = from.add(4 * V::N);
            }
            for (r, sums) in sums.into_iter().enumerate() {
                let out = &mut self.out[(row + r) * plane..];
                if columns.dense {
                    let out = &mut out[columns.to[0]..][..C * V::N];
                    for (sum, out) in sums.into_iter().zip(out.chunks_exact_mut(V::N)) {
                        let sum = if is_first { sum } else { V::load(out.as_ptr()).add(sum) };
                        sum.store(out.as_mut_ptr());
                    }
                } else {
                    let mut lanes = [T::default(); WIDTH];
                    for (sum, lanes) in sums.into_iter().zip(lanes.chunks_exact_mut(V::N)) {
                        sum.store(lanes.as_mut_ptr());
                    }
                    for (&to, &sum) in columns.to[..columns.n].iter().zip(&lanes) {
                        out[to] = if is_first { sum } else { out[to] + sum };
                    }
                }
            }
        }
    }

    /// The same without a panel, line by line: for few rows and small windows.
    #[inline(always)]
    unsafe fn direct<V: Vector<T = T>>(&mut self, phase: &Phase) {
        let n_taps = phase.taps.len();
        let (extents, plane) = (self.all.source, size(self.all.result));
        let (step, apart) = (phase.step[2], phase.apart[2]);
        let columns = self.images * size(phase.grid);
        for row in 0..self.rows {
            for piece in Pieces::new(phase.grid, 0, columns) {
                // What meets something on this line: its weight, the first element, and which part of the line is inside.
                let mut met = [(T::default(), 0isize, 0, 0); DIRECT];
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
                    if step == 1 && apart == 1 && i >= all_from && i + V::N <= all_to {
                        let out = &mut self.out[first + i..][..V::N];
                        // SAFETY: all of `i..i + V::N` is inside for each tap, so those elements are in the source; the slice is as
                        // long as the vector.
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

/// Writes `len` elements: element `i` is that at `start + i * step` of the source for `i` in `lo..hi`, and else zero. Up to a vector
/// behind them is overwritten.
///
/// # Safety
/// The elements are in the source for `lo..hi`. The processor has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn copy<V: Vector>(
    source: &[V::T],
    start: isize,
    step: usize,
    [lo, hi, len]: [usize; 3],
    to: &mut [V::T],
) {
    assert!(to.len() >= len + V::N && lo <= hi && hi <= len);
    let to = to.as_mut_ptr();
    // SAFETY: a vector that starts before `len` ends before `len + V::N`, where `to` ends or goes on. Elements of the source are
    // read one by one, which is checked, or where a whole vector is in it.
    unsafe {
        zeros::<V>(to, 0, lo);
        let mut i = lo;
        if step == 1 {
            while i < hi {
                let from = (start + i as isize) as usize;
                if from + V::N > source.len() {
                    break;
                }
                V::load(source.as_ptr().add(from)).store(to.add(i));
                i += V::N;
            }
        }
        while i < hi {
            *to.add(i) = source[(start + (i * step) as isize) as usize];
            i += 1;
        }
        zeros::<V>(to, hi, len);
    }
}

/// Writes zeros from `from` to `end`, and up to a vector more.
///
/// # Safety
/// Of `to`, `end + V::N` elements can be written. The processor has the instructions of `V`.
#[inline(always)]
unsafe fn zeros<V: Vector>(to: *mut V::T, from: usize, end: usize) {
    let mut i = from;
    while i < end {
        // SAFETY: the vector starts before `end`.
        unsafe { V::splat(V::T::default()).store(to.add(i)) };
        i += V::N;
    }
}
