//! The tile unit of Intel's processors since Sapphire Rapids, AMX.
//!
//! rustc has no stable intrinsics for it, so its instructions are written as assembly.

use super::{DEPTH, LINES, TILE, TileSums};
use crate::cpu::kernels::gemm::Strides;
use crate::cpu::kernels::matmul::ProductSide;
use crate::cpu::vector::{LINE, has_avx512f};
use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Returns whether the processor has the unit and the system lets this process use it. The first
/// call asks the system.
pub(super) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let is_supported = has_avx512f()
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512vl")
            && std::is_x86_feature_detected!("avx512dq")
            && has_tiles();
        is_supported && is_permitted()
    })
}

/// Returns whether the processor reports tiles and products of `bf16`, and whether the system saves
/// tiles when it switches threads.
fn has_tiles() -> bool {
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    /// Configuration and data of tiles.
    const STATE: u64 = 0b11 << 17;
    #[target_feature(enable = "xsave")]
    fn enabled_state() -> u64 {
        // SAFETY: the system has enabled `xsave`, as the caller checks.
        unsafe { _xgetbv(0) }
    }
    // `__cpuid_count` is not an `unsafe` function in all versions of Rust that are supported.
    #[allow(unused_unsafe, reason = "depends on the version of Rust")]
    // SAFETY: all processors of this architecture have `cpuid`, and those with AVX-512 this leaf.
    let features = unsafe { __cpuid_count(7, 0) }.edx;
    features & (BF16 | TILES) == BF16 | TILES
        && std::is_x86_feature_detected!("xsave")
        // SAFETY: the processor supports `xsave`.
        && unsafe { enabled_state() } & STATE == STATE
}

/// Asks Linux for the permission to use tiles: threads then need more room for their state.
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call has two numbers as arguments and changes no memory of this process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// The configuration of all eight tiles of this thread with 16 lines of 64 bytes. Without it, the
/// thread has no tiles that the system would have to save.
pub(super) struct Configuration(());

impl Configuration {
    /// Loads the configuration. The unit must be available.
    pub(super) fn load() -> Configuration {
        /// The palette, and for each tile the bytes of a line and the number of lines.
        #[repr(C, align(64))]
        struct Layout {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            bytes: [u16; 16],
            lines: [u8; 16],
        }
        static LAYOUT: Layout = Layout {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
            lines: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
        };
        assert!(is_available(), "the processor has no tiles");
        // SAFETY: the process may use tiles, and the instruction reads the 64 bytes of the layout.
        unsafe {
            asm!(
                "ldtilecfg [{}]",
                in(reg) &raw const LAYOUT,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
        Configuration(())
    }
}

impl Drop for Configuration {
    fn drop(&mut self) {
        // SAFETY: the processor has tiles, since a configuration was loaded.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem),
            );
        }
    }
}

/// The numbers of a cache line, and how many lines of a row are read between prefetch and read.
/// Columns are prefetched for the next tile: the processor foresees neither.
const LINE_OF_NUMBERS: usize = LINE / size_of::<f32>();
const LINES_AHEAD: usize = 8;

/// Packs the tile at the start of `from`.
pub(super) fn pack(side: ProductSide, from: &[f32], at: Strides, [depth, lines]: [usize; 2], to: &mut [u16; TILE]) {
    assert!(depth <= DEPTH && lines <= LINES && is_available(), "a tile is too large, or there are none");
    let last = (depth - 1) * at.down + (lines - 1) * at.right;
    assert!(last < from.len(), "a tile extends beyond its matrix");
    // SAFETY: the features are those that `is_available` asks for. The numbers of the tile are in
    // `from`, since the last one is.
    unsafe { pack_with_avx512(side, from.as_ptr(), at, [depth, lines], to) }
}

/// Packs a tile.
///
/// # Safety
/// The numbers of the tile must be readable.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn pack_with_avx512(
    side: ProductSide,
    from: *const f32,
    at: Strides,
    [depth, lines]: [usize; 2],
    to: &mut [u16; TILE],
) {
    // Sixteen vectors of sixteen pairs: a vector for each line, or for each pair of a line.
    let mut vectors = [_mm512_setzero_si512(); 16];
    let is_along = at.down == 1;
    if is_along {
        let masks = [0, 16].map(|start| mask(depth, start));
        for (line, pairs) in vectors.iter_mut().take(lines).enumerate() {
            let row = from.wrapping_add(line * at.right);
            prefetch(row.wrapping_add(LINES_AHEAD * LINE_OF_NUMBERS));
            prefetch(row.wrapping_add((LINES_AHEAD + 1) * LINE_OF_NUMBERS));
            // SAFETY: the numbers of each mask are readable, and others are not read.
            let [first, second] = unsafe {
                [_mm512_maskz_loadu_ps(masks[0], row), _mm512_maskz_loadu_ps(masks[1], row.wrapping_add(16))]
            };
            let halves = [first, second].map(|x| _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(nearest(x))));
            *pairs = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(halves[0]), halves[1]);
        }
    } else {
        let mask = mask(lines, 0);
        for (pair, pairs) in vectors.iter_mut().enumerate().take(depth.div_ceil(2)) {
            let row = |number: usize| {
                let mask = if number < depth { mask } else { 0 };
                prefetch(from.wrapping_add((number + DEPTH) * at.down));
                // SAFETY: as above.
                nearest(unsafe { _mm512_maskz_loadu_ps(mask, from.wrapping_add(number * at.down)) })
            };
            let (first, second) = (_mm512_srli_epi32::<16>(row(2 * pair)), row(2 * pair + 1));
            *pairs = _mm512_or_si512(first, _mm512_and_si512(second, _mm512_set1_epi32(0xffff << 16)));
        }
    }
    if is_along != (side == ProductSide::Left) {
        vectors = transposed(vectors);
    }
    for (to, pairs) in to.as_chunks_mut::<DEPTH>().0.iter_mut().zip(vectors) {
        // SAFETY: the chunk has the 64 bytes of a vector.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs) }
    }
}

/// Prefetches a cache line. `p` may be any address.
#[inline(always)]
fn prefetch(p: *const f32) {
    // SAFETY: a prefetch of any address has no observable effect, and all processors of this
    // architecture have it.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
}

/// Returns the mask of the numbers of a vector from `start` on that are below `n`.
fn mask(n: usize, start: usize) -> u16 {
    ((1u32 << n.saturating_sub(start).min(16)) - 1) as u16
}

/// Returns the nearest `bf16` of each number, with ties to even, in the upper half of its bits. The
/// lower half is arbitrary.
#[target_feature(enable = "avx512f")]
fn nearest(x: __m512) -> __m512i {
    let bits = _mm512_castps_si512(x);
    let is_odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let nearest = _mm512_add_epi32(bits, _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7fff)));
    let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    _mm512_mask_or_epi32(nearest, is_nan, bits, _mm512_set1_epi32(0x40_0000))
}

/// Returns the transposed matrix of 16 rows of 16 pairs.
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512i; 16]) -> [__m512i; 16] {
    // Squares of two, then of four within each quarter of the vectors.
    let mut pairs = rows;
    for i in (0..16).step_by(2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    let mut fours = pairs;
    for i in (0..16).step_by(4) {
        fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    // Then the quarters of four vectors that are four apart.
    let mut eights = fours;
    for i in 0..4 {
        for half in [0, 8] {
            let (a, b) = (fours[half + i], fours[half + 4 + i]);
            eights[half + i] = _mm512_shuffle_i32x4::<0x88>(a, b);
            eights[half + 4 + i] = _mm512_shuffle_i32x4::<0xdd>(a, b);
        }
    }
    let mut columns = eights;
    for i in 0..8 {
        columns[i] = _mm512_shuffle_i32x4::<0x88>(eights[i], eights[8 + i]);
        columns[8 + i] = _mm512_shuffle_i32x4::<0xdd>(eights[i], eights[8 + i]);
    }
    columns
}

/// Adds products of tiles.
///
/// # Safety
/// See [`TileBlock::run`](super::TileBlock::run). This thread must have a [`Configuration`].
pub(super) unsafe fn add_products(sums: TileSums) {
    let TileSums { steps, left, right, result, apart, adds, has_second } = sums;
    assert!(steps > 0, "there is nothing to multiply");
    let second_right = right.wrapping_add(steps * TILE);
    // The tiles 0 to 3 hold sums, 4 and 5 are of the left matrix, and 6 and 7 of the right one.
    if has_second {
        // SAFETY: the caller guarantees that the tiles are configured, that `steps` tiles of 1,024
        // bytes are readable from each of the four addresses on, and that the 32 x 32 numbers of
        // the result are readable and writable.
        unsafe {
            asm!(
                "test {adds}, {adds}",
                "jz 2f",
                "tileloadd tmm0, [{result} + {apart}]",
                "tileloadd tmm1, [{result} + {apart} + 64]",
                "tileloadd tmm2, [{second_result} + {apart}]",
                "tileloadd tmm3, [{second_result} + {apart} + 64]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "tileloadd tmm4, [{left} + {line}]",
                "tileloadd tmm6, [{right} + {line}]",
                "tileloadd tmm7, [{second_right} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{second_left} + {line}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "add {left}, 1024",
                "add {right}, 1024",
                "add {second_left}, 1024",
                "add {second_right}, 1024",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {steps}",
                "jnz 3b",
                "tilestored [{result} + {apart}], tmm0",
                "tilestored [{result} + {apart} + 64], tmm1",
                "tilestored [{second_result} + {apart}], tmm2",
                "tilestored [{second_result} + {apart} + 64], tmm3",
                adds = in(reg) usize::from(adds),
                steps = inout(reg) steps => _,
                left = inout(reg) left => _,
                second_left = inout(reg) left.wrapping_add(steps * TILE) => _,
                right = inout(reg) right => _,
                second_right = inout(reg) second_right => _,
                line = in(reg) 64usize,
                result = in(reg) result,
                second_result = in(reg) result.wrapping_add(LINES * apart),
                apart = in(reg) apart * size_of::<f32>(),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
        return;
    }
    // SAFETY: as above, with one tile of rows.
    unsafe {
        asm!(
            "test {adds}, {adds}",
            "jz 2f",
            "tileloadd tmm0, [{result} + {apart}]",
            "tileloadd tmm1, [{result} + {apart} + 64]",
            "jmp 3f",
            "2:",
            "tilezero tmm0",
            "tilezero tmm1",
            "3:",
            "tileloadd tmm4, [{left} + {line}]",
            "tileloadd tmm6, [{right} + {line}]",
            "tileloadd tmm7, [{second_right} + {line}]",
            "add {left}, 1024",
            "add {right}, 1024",
            "add {second_right}, 1024",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "dec {steps}",
            "jnz 3b",
            "tilestored [{result} + {apart}], tmm0",
            "tilestored [{result} + {apart} + 64], tmm1",
            adds = in(reg) usize::from(adds),
            steps = inout(reg) steps => _,
            left = inout(reg) left => _,
            right = inout(reg) right => _,
            second_right = inout(reg) second_right => _,
            line = in(reg) 64usize,
            result = in(reg) result,
            apart = in(reg) apart * size_of::<f32>(),
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
