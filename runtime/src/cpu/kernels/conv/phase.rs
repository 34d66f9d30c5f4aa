//! Phases: sets of result positions whose windows have the same elements.
//!
//! A convolution has one phase. A transposed convolution with stride `s` has one phase per
//! remainder of positions modulo `s`.

use super::Geometry;

/// A grid of result positions whose windows have the same elements.
#[derive(Clone, Debug)]
pub(super) struct Phase {
    pub(super) grid: [usize; 3],
    /// The stride of positions in the source.
    pub(super) step: [usize; 3],
    pub(super) taps: Vec<[isize; 3]>,
    /// The index of each channel and tap in a row of the filter matrix.
    pub(super) places: Vec<usize>,
    /// The first position in the result. `apart` is the stride of positions there.
    pub(super) first: [usize; 3],
    pub(super) apart: [usize; 3],
}

impl Phase {
    /// Returns the phase of a convolution of `x` with filters `[groups * filters, channels, ..]`.
    pub(super) fn of_conv(g: &Geometry) -> Vec<Phase> {
        vec![Phase {
            grid: g.y,
            step: g.stride,
            taps: g.taps(),
            places: (0..g.channels * g.window()).collect(),
            first: [0; 3],
            apart: [1; 3],
        }]
    }

    /// Returns the phases of the transpose, applied to `y` with filters
    /// `[groups * channels, filters, ..]`. The first has the largest grid.
    pub(super) fn of_transpose(g: &Geometry) -> Vec<Phase> {
        let mut phases = Vec::new();
        for a in 0..g.stride[0].min(g.x[0]) {
            for b in 0..g.stride[1].min(g.x[1]) {
                for c in 0..g.stride[2].min(g.x[2]) {
                    phases.push(Self::of(g, [a, b, c]));
                }
            }
        }
        phases
    }

    /// Returns the phase of the positions `first + i * stride` of `x`.
    ///
    /// A tap contributes if `(first - tap) / stride` is integral: it then connects them to
    /// positions `i + (first - tap) / stride` of `y`.
    fn of(g: &Geometry, first: [usize; 3]) -> Phase {
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
}
