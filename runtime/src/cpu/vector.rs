//! SIMD vectors of floats, and dispatch to the widest vectors that the processor supports.
//!
//! A [`Task`] is generic over the [`Vector`]. [`InstructionSet::run`] compiles it for each
//! instruction set and runs it with one. The order of sums over lanes depends on the vector width,
//! so results may differ between processors.

use anabranch_dsl::scalars::Real;
use bytemuck::Pod;
use std::ops::{Add, Div, Mul, Sub};

/// An element type of vectors.
pub(crate) trait Lane:
    Pod
    + Default
    + Send
    + Sync
    + PartialOrd
    + Real<Mask = bool>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    /// The vector of 512 bits.
    #[cfg(target_arch = "x86_64")]
    type V512: Vector<T = Self>;
    /// The vector of 256 bits.
    #[cfg(target_arch = "x86_64")]
    type V256: Vector<T = Self>;
    /// The vector of 128 bits, in portable Rust.
    type V128: Vector<T = Self>;
}

/// A vector in registers.
///
/// # Safety
/// All functions require that the processor supports the instructions of the vector, which
/// [`InstructionSet::run`] ensures.
pub(crate) trait Vector: Copy {
    /// The element type.
    type T: Lane;
    /// The number of lanes.
    const N: usize;
    /// Returns a vector with the same number in all lanes.
    unsafe fn splat(x: Self::T) -> Self;
    /// Reads `N` elements from `p`, which must be valid for that.
    unsafe fn load(p: *const Self::T) -> Self;
    /// Writes `N` elements to `p`, which must be valid for that.
    unsafe fn store(self, p: *mut Self::T);
    /// Returns `self * b + c`.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// Returns `self + b`.
    unsafe fn add(self, b: Self) -> Self;
    /// Returns `self - b`.
    unsafe fn sub(self, b: Self) -> Self;
    /// Returns `self * b`.
    unsafe fn mul(self, b: Self) -> Self;
    /// Returns `self / b`.
    unsafe fn div(self, b: Self) -> Self;
    /// Returns the square root.
    unsafe fn sqrt(self) -> Self;
    /// Returns the result of [`Arithmetic::larger`](anabranch_dsl::scalars::Arithmetic::larger) for
    /// each lane.
    unsafe fn larger(self, b: Self) -> Self;
    /// Returns the result of [`Arithmetic::smaller`](anabranch_dsl::scalars::Arithmetic::smaller)
    /// for each lane.
    unsafe fn smaller(self, b: Self) -> Self;
    /// Returns the sum of all lanes.
    unsafe fn sum(self) -> Self::T;
    /// Prefetches a cache line, if the processor supports it. `p` may be any address.
    #[inline(always)]
    unsafe fn prefetch(_p: *const Self::T) {}
}

/// The size of a cache line in bytes.
pub(crate) const LINE: usize = 64;

/// Prefetches cache lines to the second cache, at each [`LINE`] of the `len` elements from `p` on,
/// if the processor supports it. `p` may be any address, for example behind the end of a slice.
#[inline(always)]
pub(crate) fn prefetch_for_later<T>(p: *const T, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        for line in 0..(len * size_of::<T>()).div_ceil(LINE) {
            // SAFETY: a prefetch of any address has no observable effect, and all processors of
            // this architecture have it.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(p.wrapping_byte_add(line * LINE).cast()) }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (p, len);
}

/// Code for any vector. `ROWS * VECTORS` sums, `VECTORS` more vectors and a broadcast number fit in
/// registers.
pub(crate) trait Task<T: Lane> {
    /// Runs the code. Mark implementations `#[inline(always)]`.
    ///
    /// # Safety
    /// The processor must support the instructions of `V`.
    unsafe fn run<V: Vector<T = T>, const ROWS: usize, const VECTORS: usize>(self);
}

/// An instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstructionSet {
    /// AVX-512 F.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Instructions available on every processor.
    Portable,
    /// As many and as wide vectors as AVX-512, in portable Rust, for tests on other processors.
    #[cfg(test)]
    Wide,
}

/// The rows of portable tiles. Few x86-64 processors use them, so fewer kinds are compiled for
/// these.
const PORTABLE_ROWS: usize = if cfg!(target_arch = "x86_64") { 2 } else { 4 };

impl InstructionSet {
    /// Returns all instruction sets that this processor supports, best first.
    pub(crate) fn all() -> impl Iterator<Item = InstructionSet> {
        let levels = [
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512,
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2,
            #[cfg(test)]
            InstructionSet::Wide,
            InstructionSet::Portable,
        ];
        levels.into_iter().filter(|level| level.is_supported())
    }

    /// Returns whether this processor supports the instruction set.
    #[inline(always)]
    fn is_supported(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => has_avx512f(),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma"),
            InstructionSet::Portable => true,
            #[cfg(test)]
            InstructionSet::Wide => true,
        }
    }

    /// Returns the best supported instruction set.
    pub(crate) fn best() -> InstructionSet {
        InstructionSet::all().next().expect("the portable instruction set is always supported")
    }

    /// Returns the rows and columns of the tiles of a [`Task`], and the lanes of a vector.
    pub(crate) fn tile<T: Lane>(self) -> [usize; 3] {
        match self {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => [8, 3 * T::V512::N, T::V512::N],
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => [6, 2 * T::V256::N, T::V256::N],
            InstructionSet::Portable => [PORTABLE_ROWS, 2 * T::V128::N, T::V128::N],
            #[cfg(test)]
            InstructionSet::Wide => [8, 48, 16],
        }
    }

    /// Runs a task with this instruction set, which must be supported. Tiles are as in
    /// [`tile`](Self::tile).
    pub(crate) fn run<T: Lane>(self, task: impl Task<T>) {
        assert!(self.is_supported(), "the processor does not support {self:?}");
        #[cfg(test)]
        if self == InstructionSet::Wide {
            // SAFETY: portable Rust needs no special instructions.
            return unsafe { task.run::<PortableVector<T, 16>, 8, 3>() };
        }
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx512f,avx2,fma")]
            unsafe fn avx512<T: Lane>(task: impl Task<T>) {
                // SAFETY: the caller has checked for these instructions.
                unsafe { task.run::<T::V512, 8, 3>() }
            }
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2<T: Lane>(task: impl Task<T>) {
                // SAFETY: the caller has checked for these instructions.
                unsafe { task.run::<T::V256, 6, 2>() }
            }
            if self == InstructionSet::Avx512 {
                // SAFETY: all features of `avx512` are supported, as asserted above.
                return unsafe { avx512(task) };
            }
            if self == InstructionSet::Avx2 {
                // SAFETY: all features of `avx2` are supported, as asserted above.
                return unsafe { avx2(task) };
            }
        }
        // SAFETY: portable Rust needs no special instructions.
        unsafe { task.run::<T::V128, PORTABLE_ROWS, 2>() }
    }
}

/// Returns whether this processor supports AVX-512 F and the features that the compiler implies
/// from it. Virtual machines may hide single features.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn has_avx512f() -> bool {
    std::is_x86_feature_detected!("avx512f")
        && std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("fma")
        && std::is_x86_feature_detected!("f16c")
}

/// Creates a portable vector from an expression for each lane, by a plain loop: it compiles faster
/// than `std::array::from_fn` with a closure.
macro_rules! lanes {
    ($i:ident => $lane:expr) => {{
        let mut lanes = [T::default(); N];
        let mut $i = 0;
        while $i < N {
            lanes[$i] = $lane;
            $i += 1;
        }
        PortableVector(lanes)
    }};
}

/// A vector in portable Rust.
#[derive(Clone, Copy)]
pub(crate) struct PortableVector<T, const N: usize>([T; N]);

impl<T: Lane, const N: usize> Vector for PortableVector<T, N> {
    type T = T;
    const N: usize = N;

    #[inline(always)]
    unsafe fn splat(x: T) -> Self {
        PortableVector([x; N])
    }
    #[inline(always)]
    unsafe fn load(p: *const T) -> Self {
        // SAFETY: the caller guarantees that `N` elements are readable. Their array has the same
        // alignment.
        PortableVector(unsafe { *p.cast::<[T; N]>() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut T) {
        // SAFETY: the caller guarantees that `N` elements are writable. Their array has the same
        // alignment.
        unsafe { *p.cast::<[T; N]>() = self.0 }
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        lanes!(i => self.0[i] * b.0[i] + c.0[i])
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        lanes!(i => self.0[i] + b.0[i])
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        lanes!(i => self.0[i] - b.0[i])
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        lanes!(i => self.0[i] * b.0[i])
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        lanes!(i => self.0[i] / b.0[i])
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        lanes!(i => self.0[i].sqrt())
    }
    #[inline(always)]
    unsafe fn larger(self, b: Self) -> Self {
        lanes!(i => self.0[i].larger(b.0[i]))
    }
    #[inline(always)]
    unsafe fn smaller(self, b: Self) -> Self {
        lanes!(i => self.0[i].smaller(b.0[i]))
    }
    #[inline(always)]
    unsafe fn sum(self) -> T {
        self.0.into_iter().fold(T::default(), |sum, x| sum + x)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    macro_rules! vector {
        (
            $v:ident $t:ident $n:literal: $splat:ident $load:ident $store:ident $fma:ident
            $add:ident $sub:ident $mul:ident $div:ident $sqrt:ident,
            sum $sum:expr, larger $larger:expr, smaller $smaller:expr
        ) => {
            impl Vector for $v {
                type T = $t;
                const N: usize = $n;

                #[inline(always)]
                unsafe fn splat(x: $t) -> Self {
                    // SAFETY: the caller guarantees that the processor supports the instruction.
                    unsafe { $splat(x) }
                }
                #[inline(always)]
                unsafe fn load(p: *const $t) -> Self {
                    // SAFETY: as above, and the caller guarantees that `N` elements are readable.
                    unsafe { $load(p) }
                }
                #[inline(always)]
                unsafe fn store(self, p: *mut $t) {
                    // SAFETY: as above, and the caller guarantees that `N` elements are writable.
                    unsafe { $store(p, self) }
                }
                #[inline(always)]
                unsafe fn mul_add(self, b: Self, c: Self) -> Self {
                    // SAFETY: the caller guarantees that the processor supports the instruction.
                    unsafe { $fma(self, b, c) }
                }
                #[inline(always)]
                unsafe fn add(self, b: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $add(self, b) }
                }
                #[inline(always)]
                unsafe fn sub(self, b: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $sub(self, b) }
                }
                #[inline(always)]
                unsafe fn mul(self, b: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $mul(self, b) }
                }
                #[inline(always)]
                unsafe fn div(self, b: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $div(self, b) }
                }
                #[inline(always)]
                unsafe fn sqrt(self) -> Self {
                    // SAFETY: as above.
                    unsafe { $sqrt(self) }
                }
                #[inline(always)]
                unsafe fn larger(self, b: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $larger(self, b) }
                }
                #[inline(always)]
                unsafe fn smaller(self, b: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $smaller(self, b) }
                }
                #[inline(always)]
                unsafe fn prefetch(p: *const $t) {
                    // SAFETY: a prefetch of any address has no observable effect.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
                }
                #[inline(always)]
                unsafe fn sum(self) -> $t {
                    // SAFETY: as above.
                    unsafe { $sum(self) }
                }
            }
        };
    }
    // The min and max instructions return the second operand if one is NaN, so restore a first
    // operand that is NaN.
    vector!(__m512 f32 16: _mm512_set1_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_fmadd_ps
        _mm512_add_ps _mm512_sub_ps _mm512_mul_ps _mm512_div_ps _mm512_sqrt_ps,
        sum |v| _mm512_reduce_add_ps(v),
        larger |a, b| _mm512_mask_mov_ps(_mm512_max_ps(a, b), _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a), a),
        smaller |a, b| _mm512_mask_mov_ps(_mm512_min_ps(a, b), _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a), a));
    vector!(__m512d f64 8: _mm512_set1_pd _mm512_loadu_pd _mm512_storeu_pd _mm512_fmadd_pd
        _mm512_add_pd _mm512_sub_pd _mm512_mul_pd _mm512_div_pd _mm512_sqrt_pd,
        sum |v| _mm512_reduce_add_pd(v),
        larger |a, b| _mm512_mask_mov_pd(_mm512_max_pd(a, b), _mm512_cmp_pd_mask::<_CMP_UNORD_Q>(a, a), a),
        smaller |a, b| _mm512_mask_mov_pd(_mm512_min_pd(a, b), _mm512_cmp_pd_mask::<_CMP_UNORD_Q>(a, a), a));
    vector!(__m256 f32 8: _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_fmadd_ps
        _mm256_add_ps _mm256_sub_ps _mm256_mul_ps _mm256_div_ps _mm256_sqrt_ps,
        sum |v| {
            let mut lanes = [0.0; 8];
            _mm256_storeu_ps(lanes.as_mut_ptr(), v);
            lanes.into_iter().sum::<f32>()
        },
        larger |a, b| _mm256_blendv_ps(_mm256_max_ps(a, b), a, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a)),
        smaller |a, b| _mm256_blendv_ps(_mm256_min_ps(a, b), a, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a)));
    vector!(__m256d f64 4: _mm256_set1_pd _mm256_loadu_pd _mm256_storeu_pd _mm256_fmadd_pd
        _mm256_add_pd _mm256_sub_pd _mm256_mul_pd _mm256_div_pd _mm256_sqrt_pd,
        sum |v| {
            let mut lanes = [0.0; 4];
            _mm256_storeu_pd(lanes.as_mut_ptr(), v);
            lanes.into_iter().sum::<f64>()
        },
        larger |a, b| _mm256_blendv_pd(_mm256_max_pd(a, b), a, _mm256_cmp_pd::<_CMP_UNORD_Q>(a, a)),
        smaller |a, b| _mm256_blendv_pd(_mm256_min_pd(a, b), a, _mm256_cmp_pd::<_CMP_UNORD_Q>(a, a)));
}

impl Lane for f32 {
    #[cfg(target_arch = "x86_64")]
    type V512 = std::arch::x86_64::__m512;
    #[cfg(target_arch = "x86_64")]
    type V256 = std::arch::x86_64::__m256;
    type V128 = PortableVector<f32, 4>;
}
impl Lane for f64 {
    #[cfg(target_arch = "x86_64")]
    type V512 = std::arch::x86_64::__m512d;
    #[cfg(target_arch = "x86_64")]
    type V256 = std::arch::x86_64::__m256d;
    type V128 = PortableVector<f64, 2>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records the tile sizes with which it runs.
    struct Note<'a>(&'a mut [usize; 3]);
    impl<T: Lane> Task<T> for Note<'_> {
        #[inline(always)]
        unsafe fn run<V: Vector<T = T>, const ROWS: usize, const VECTORS: usize>(self) {
            *self.0 = [ROWS, V::N * VECTORS, V::N];
        }
    }

    fn tiles<T: Lane>() {
        for level in InstructionSet::all() {
            let mut tile = [0; 3];
            level.run::<T>(Note(&mut tile));
            // `--nocapture` shows which vectors a machine was tested with.
            println!("{level:?}: vectors of {} {}", tile[2], std::any::type_name::<T>());
            assert_eq!(tile, level.tile::<T>(), "{level:?}");
        }
    }

    #[test]
    fn tasks_run_with_the_tiles_that_their_level_names() {
        tiles::<f32>();
        tiles::<f64>();
    }
}
