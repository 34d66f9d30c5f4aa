//! Selection of the instruction set for loops that rustc vectorizes.

use anabranch_dsl::Element;

/// Runs `f` with the widest vectors of this processor. Results are bitwise identical.
///
/// Mark a closure `#[inline(always)]`: one compiled as a separate function uses only the baseline
/// vectors. The closure is compiled three times on x86-64.
#[inline(always)]
pub(crate) fn wide<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
        fn with_avx512<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        if super::vector::has_avx512f()
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512dq")
            && std::is_x86_feature_detected!("avx512vl")
        {
            // SAFETY: the processor supports all features of `with_avx512`.
            return unsafe { with_avx512(f) };
        }
    }
    up_to_avx2(f)
}

/// Like [`wide`], without code for AVX-512.
#[inline(always)]
pub(crate) fn up_to_avx2<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn with_avx2<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
            // SAFETY: the processor supports both features of `with_avx2`.
            return unsafe { with_avx2(f) };
        }
    }
    f()
}

/// Runs code on elements of type `T`: that of floats like [`wide`], and that of other types, which
/// is rarely the bottleneck, [without AVX-512](up_to_avx2).
#[inline(always)]
pub(crate) fn wide_for<T: Element, R>(f: impl FnOnce() -> R) -> R {
    if const { T::DTYPE.is_float() } { wide(f) } else { up_to_avx2(f) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_dsl::scalars::{exp, tanh};

    #[test]
    fn wide_loops_give_the_same_bits() {
        let x: Vec<f32> = (0..1000).map(|i| i as f32 / 37.0 - 13.0).collect();
        let mut y = vec![0.0f32; 1000];
        wide(|| y.iter_mut().zip(&x).for_each(|(y, &x)| *y = exp(tanh(x))));
        assert!(x.iter().zip(&y).all(|(&x, y)| exp(tanh(x)).to_bits() == y.to_bits()));
    }
}
