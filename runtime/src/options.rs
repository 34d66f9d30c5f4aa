//! The options with which every engine compiles graphs.

use anabranch_dsl::Result;
use anabranch_dsl::passes::HoistMatmuls;

/// Options of compilation and runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompileOptions {
    /// Whether a run fails at the first operation that makes a value which is not finite from
    /// finite operands.
    pub(crate) check_finite: bool,
    /// Whether the interpreter runs the graph.
    pub(crate) interpreted: bool,
    /// Whether several operations are fused into one pass over memory.
    pub(crate) fuse: bool,
    /// The precision of matmuls of `f32`.
    pub(crate) matmul_precision: MatmulPrecision,
    /// Whether matmuls in loops are merged and hoisted.
    pub(crate) hoist: bool,
    /// Maximum size of a matrix that hoisting stores over all iterations of a loop.
    pub(crate) max_hoisted_bytes: usize,
    /// Whether the interpreter runs graphs that the compiler fails at.
    pub(crate) fallback: bool,
    /// Whether the graph is of another process. Then little is computed before the runs and kept
    /// between them, as nobody counts that memory.
    pub(crate) is_of_guest: bool,
    /// The options of the CPU engine, which others ignore.
    pub(crate) cpu: CpuOptions,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions {
            check_finite: false,
            interpreted: false,
            fuse: true,
            matmul_precision: MatmulPrecision::Full,
            hoist: true,
            max_hoisted_bytes: HoistMatmuls::default().max_bytes,
            fallback: false,
            is_of_guest: false,
            cpu: CpuOptions::default(),
        }
    }
}

impl CompileOptions {
    /// Sets whether there is native code.
    #[cfg(any(test, feature = "testing", feature = "peers"))]
    pub(crate) fn with_native(self, native: bool) -> CompileOptions {
        let lane_code = if native { CodeVectors::Widest } else { CodeVectors::None };
        CompileOptions { cpu: CpuOptions { native, lane_code, ..self.cpu }, ..self }
    }
}

/// The precision of matmuls of `f32`.
///
/// See [`SessionBuilder::matmul_precision`](crate::SessionBuilder::matmul_precision).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MatmulPrecision {
    /// Operands are used as they are.
    #[default]
    Full,
    /// Operands may be rounded to the nearest [`bf16`](anabranch_dsl::bf16), which keeps 8 of the
    /// 24 bits of each number. Products and sums are in `f32`. Subnormal numbers may count as
    /// zeros, and numbers above 3.39e38 as infinite.
    Bf16,
}

/// Options of the CPU engine. Results do not depend on them, but for those of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuOptions {
    /// Whether loops over numbers become native code.
    pub(crate) native: bool,
    pub(crate) native_limits: NativeLimits,
    /// Largest number of iterations of a parallel loop that run side by side, or 0 for one by one.
    pub(crate) lanes: usize,
    /// The vectors of native code of what iterations side by side do.
    pub(crate) lane_code: CodeVectors,
    /// Whether plain loops stand in for the unit that multiplies tiles, for tests on processors
    /// without one.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) emulates_tiles: bool,
}

impl Default for CpuOptions {
    fn default() -> CpuOptions {
        CpuOptions {
            native: true,
            native_limits: NativeLimits::default(),
            lanes: MAX_LANES,
            lane_code: CodeVectors::Widest,
            #[cfg(any(test, feature = "testing"))]
            emulates_tiles: false,
        }
    }
}

/// Limits of native code other than the usual ones, for tests of what exceeds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NativeLimits {
    /// The most registers of the processor for numbers of each kind.
    pub(crate) registers: Option<usize>,
    /// The most registers of the plan that are variables, counted for each exit of a loop. If there
    /// are more, all stay in memory.
    pub(crate) variables_at_exits: Option<usize>,
}

/// The largest number of iterations in a block.
pub(crate) const MAX_LANES: usize = 1024;

/// The vectors of native code of what iterations side by side do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(any(test, feature = "testing")), allow(dead_code, reason = "tests limit the vectors"))]
pub(crate) enum CodeVectors {
    /// There is no native code.
    None,
    /// At most 256 bits, with AVX2.
    UpTo256,
    /// As wide as those of the processor.
    Widest,
}

/// A question that a compilation asks between its stages: whether to go on, or the error with which
/// to end.
pub(crate) type StopCheck<'a> = &'a dyn Fn() -> Result<()>;
