//! Vectorizable math functions of floats, and the selection of the instruction set.
//!
//! The exponential and logarithm of the standard library call the system library for each element,
//! with results that depend on the system. The functions here consist of additions, multiplications
//! and selections in a fixed order. Loops over them vectorize, and results are bitwise identical on
//! all processors. Errors are below 3 units in the last place for `f32` and 4 for `f64`, as the
//! tests check.

use anabranch_dsl::Element;
use std::f64::consts::LN_2;

/// Runs `f` with the widest vectors of this processor. Results are bitwise identical.
///
/// Mark a closure `#[inline(always)]`: one compiled as a separate function uses only the baseline
/// vectors. The closure is compiled three times on x86-64.
#[inline(always)]
pub(crate) fn wide<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
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
        #[target_feature(enable = "avx2")]
        fn with_avx2<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor supports AVX2, the only feature of `with_avx2`.
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

/// The constants of the functions, for code generated at run time. `f64` represents them exactly.
#[derive(Clone, Copy, Debug)]
#[cfg(feature = "jit")]
pub(crate) struct Constants {
    /// Number of mantissa bits.
    pub(crate) mantissa: u32,
    /// The exponent bias.
    pub(crate) bias: i64,
    pub(crate) log2_e: f64,
    /// The natural logarithm of 2, split into two terms.
    pub(crate) ln2: [f64; 2],
    /// The constant whose addition rounds to an integer, which is then in the low bits.
    pub(crate) round: f64,
    /// Number of terms in the series of the exponential, taken from [`FACTORIALS`].
    pub(crate) exp_terms: usize,
    /// The range in which the exponential is neither zero nor infinite.
    pub(crate) exp_range: [f64; 2],
    /// Twice the number above which the hyperbolic tangent is 1.
    pub(crate) saturation: f64,
}

/// Math functions of floats.
pub(crate) trait Real: Copy {
    #[cfg(feature = "jit")]
    const CONSTANTS: Constants;
    /// Returns the larger number, or NaN if either is NaN.
    fn larger(self, other: Self) -> Self;
    /// Returns the smaller number, or NaN if either is NaN.
    fn smaller(self, other: Self) -> Self;
    /// Returns `e^x`.
    fn fast_exp(self) -> Self;
    /// Returns the natural logarithm.
    fn fast_ln(self) -> Self;
    /// Returns the hyperbolic tangent.
    fn fast_tanh(self) -> Self;
    /// Returns `1 / (1 + e^-x)`.
    fn sigmoid(self) -> Self;
    /// Returns the error function.
    fn erf(self) -> Self;
    /// Returns `x` times the probability that a standard normal variable is below `x`.
    fn gelu(self) -> Self;
}

/// `1 / k!` for `k >= 2`: the series of the exponential without its first two terms.
pub(crate) const FACTORIALS: [f64; 12] = {
    let mut c = [0.0; 12];
    let (mut k, mut factorial) = (0, 1.0);
    while k < 12 {
        factorial *= (k + 2) as f64;
        c[k] = 1.0 / factorial;
        k += 1;
    }
    c
};

/// `2 / k` for odd `k >= 3`: the series of `2 atanh(s) / s` in `s^2` without its first term.
const ODD: [f64; 10] = {
    let mut c = [0.0; 10];
    let mut k = 0;
    while k < 10 {
        c[k] = 2.0 / (2 * k + 3) as f64;
        k += 1;
    }
    c
};

macro_rules! real {
    (
        $t:ident $bits:ident $int:ident,
        mantissa $mantissa:literal, bias $bias:literal, root $root:literal,
        ln2 $ln2_high:expr, $ln2_low:expr,
        terms $exp_terms:literal $ln_terms:literal,
        range $low:literal $high:literal, saturation $saturation:literal, scale $scale:literal,
        $erf:path, $erfc:path
    ) => {
        impl Real for $t {
            #[cfg(feature = "jit")]
            const CONSTANTS: Constants = Constants {
                mantissa: $mantissa,
                bias: $bias,
                log2_e: std::$t::consts::LOG2_E as f64,
                ln2: [($ln2_high as $t) as f64, ($ln2_low as $t) as f64],
                round: 1.5 * ((1 as $bits) << $mantissa) as f64,
                exp_terms: $exp_terms,
                exp_range: [$low, $high],
                saturation: $saturation,
            };

            #[inline(always)]
            fn larger(self, other: $t) -> $t {
                if self.is_nan() || self > other { self } else { other }
            }

            #[inline(always)]
            fn smaller(self, other: $t) -> $t {
                if self.is_nan() || self < other { self } else { other }
            }

            #[inline(always)]
            fn fast_exp(self) -> $t {
                // Beyond these limits the result is infinite or zero. The comparisons pass NaN
                // through.
                let x = if self > $high { $high } else { self };
                let x = if x < $low { $low } else { x };
                let (n, rest) = $t::split(x);
                // Two factors, because 2^n itself may be out of the normal range.
                let half = n >> 1;
                let power = |n: $int| $t::from_bits((n.wrapping_add($bias) as $bits) << $mantissa);
                (1.0 + $t::series(rest)) * power(half) * power(n.wrapping_sub(half))
            }

            #[inline(always)]
            fn fast_ln(self) -> $t {
                const LN2_HIGH: $t = $ln2_high;
                const LN2_LOW: $t = $ln2_low;
                // Scale subnormal numbers up.
                let small = self < $t::MIN_POSITIVE;
                let x = if small { self * ((1 as $bits) << $scale) as $t } else { self };
                // x = 2^n m with m between sqrt(1/2) and sqrt(2).
                let bits = x.to_bits();
                let n = (bits.wrapping_sub($root) as $int) >> $mantissa;
                let m = $t::from_bits(bits.wrapping_sub((n << $mantissa) as $bits));
                let n = (n - if small { $scale } else { 0 }) as $t;
                // ln m = 2 atanh(s) with s = f / (2 + f), expanded around f, which is exact.
                let f = m - 1.0;
                let s = f / (2.0 + f);
                let z = s * s;
                let mut series = ODD[$ln_terms - 1] as $t;
                for k in (0..$ln_terms - 1).rev() {
                    series = series * z + ODD[k] as $t;
                }
                let half_square = 0.5 * f * f;
                let ln = n * LN2_HIGH - ((half_square - (s * (half_square + z * series) + n * LN2_LOW)) - f);
                let ln = if self == $t::INFINITY { self } else { ln };
                let ln = if self == 0.0 { $t::NEG_INFINITY } else { ln };
                if self < 0.0 || self.is_nan() { $t::NAN } else { ln }
            }

            #[inline(always)]
            fn fast_tanh(self) -> $t {
                // (e^2x - 1) / (e^2x + 1), with e^2x - 1 from the series, to preserve the precision
                // of small numbers.
                let y = 2.0 * self.abs();
                let y = if y > $saturation { $saturation } else { y };
                let (n, rest) = $t::split(y);
                let power = $t::from_bits((n.wrapping_add($bias) as $bits) << $mantissa);
                let less_one = power * $t::series(rest) + (power - 1.0);
                (less_one / (less_one + 2.0)).copysign(self)
            }

            #[inline(always)]
            fn sigmoid(self) -> $t {
                // The exponential of a non-positive number does not overflow.
                let e = (-self.abs()).fast_exp();
                if self >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
            }

            fn erf(self) -> $t {
                $erf(self)
            }

            fn gelu(self) -> $t {
                // The complement preserves the digits that 1 + erf loses for negative numbers.
                0.5 * self * $erfc(-self * std::f64::consts::FRAC_1_SQRT_2 as $t)
            }
        }

        impl Split for $t {
            type Int = $int;

            #[inline(always)]
            fn split(self) -> ($int, $t) {
                const LN2_HIGH: $t = $ln2_high;
                const LN2_LOW: $t = $ln2_low;
                // Adding 1.5 * 2^mantissa rounds to an integer, which is then in the low bits.
                const ROUND: $t = 1.5 * ((1 as $bits) << $mantissa) as $t;
                let t = self * std::$t::consts::LOG2_E + ROUND;
                let n = t - ROUND;
                let int = t.to_bits().wrapping_sub(ROUND.to_bits()) as $int;
                (int, (self - n * LN2_HIGH) - n * LN2_LOW)
            }

            #[inline(always)]
            fn series(self) -> $t {
                // Independent pairs shorten the dependency chain, which determines the time of
                // scalar loops.
                let square = self * self;
                let pair = |k: usize| FACTORIALS[k] as $t + FACTORIALS[k + 1] as $t * self;
                let mut sum = pair($exp_terms - 2);
                for k in (0..$exp_terms / 2 - 1).rev() {
                    sum = sum * square + pair(2 * k);
                }
                self + square * sum
            }
        }
    };
}

/// The parts of an exponential.
trait Split: Sized {
    type Int;
    /// Returns `n` and `r` with `x = n ln 2 + r` and `|r| <= ln 2 / 2`.
    fn split(self) -> (Self::Int, Self);
    /// Returns `e^x - 1` for `|x| <= ln 2 / 2`, by its series.
    fn series(self) -> Self;
}

// The logarithm of 2 is split into a term with few digits, whose product with an exponent is exact,
// and the remainder.
real!(f32 u32 i32, mantissa 23, bias 127, root 0x3f35_04f3, ln2 0.693_359_4, (LN_2 - 0.693_359_375) as f32,
    terms 6 5, range -104.0 89.0, saturation 20.0, scale 25, libm::erff, libm::erfcf);
real!(f64 u64 i64, mantissa 52, bias 1023, root 0x3fe6_a09e_667f_3bcd,
    ln2 f64::from_bits(0x3fe6_2e42_fee0_0000), f64::from_bits(0x3dea_39ef_3579_3c76),
    terms 12 10, range -746.0 710.0, saturation 44.0, scale 54, libm::erf, libm::erfc);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns numbers of all magnitudes and both signs within a range.
    fn samples(low: f64, high: f64) -> impl Iterator<Item = f64> {
        let near = (0..40_000).map(move |i| low + (high - low) * f64::from(i) / 40_000.0);
        let small = (0..2_000).flat_map(|i| {
            let x = 2f64.powf(-f64::from(i) / 14.0);
            [x, -x]
        });
        near.chain(small).filter(move |x| (low..=high).contains(x))
    }

    /// Returns the distance of `x` from `exact` in units in the last place of `f32`.
    fn ulps32(x: f32, exact: f64) -> f64 {
        let y = exact as f32;
        if x == y || (x.is_nan() && exact.is_nan()) {
            return 0.0;
        }
        let unit = f64::from(f32::from_bits(y.abs().to_bits() + 1)) - f64::from(y.abs());
        (f64::from(x) - exact).abs() / unit
    }
    fn ulps64(x: f64, exact: f64) -> f64 {
        if x == exact || (x.is_nan() && exact.is_nan()) {
            return 0.0;
        }
        (x - exact).abs() / (f64::from_bits(exact.abs().to_bits() + 1) - exact.abs())
    }

    /// Compares a function of both types with a reference function in `f64`.
    fn check(name: &str, low: f64, high: f64, f32s: fn(f32) -> f32, f64s: fn(f64) -> f64, exact: fn(f64) -> f64) {
        let (mut worst32, mut worst64) = ((0.0, 0.0), (0.0, 0.0));
        for x in samples(low, high) {
            let x32 = x as f32;
            let (a, b) = (ulps32(f32s(x32), exact(f64::from(x32))), ulps64(f64s(x), exact(x)));
            assert!(!a.is_nan() && !b.is_nan(), "{name}({x})");
            worst32 = if a > worst32.0 { (a, x) } else { worst32 };
            worst64 = if b > worst64.0 { (b, x) } else { worst64 };
        }
        assert!(worst32.0 < 3.0, "{name}: {} units off for f32 at {}", worst32.0, worst32.1);
        // The standard library itself may be off by one unit.
        assert!(worst64.0 < 4.0, "{name}: {} units off for f64 at {}", worst64.0, worst64.1);
    }

    #[test]
    fn functions_are_exact_to_few_units_in_the_last_place() {
        check("exp", -103.0, 88.7, f32::fast_exp, f64::fast_exp, f64::exp);
        check("exp", -20.0, 20.0, f32::fast_exp, f64::fast_exp, f64::exp);
        check("ln", 0.0, 1e6, f32::fast_ln, f64::fast_ln, f64::ln);
        check("ln", 0.5, 2.0, f32::fast_ln, f64::fast_ln, f64::ln);
        check("tanh", -25.0, 25.0, f32::fast_tanh, f64::fast_tanh, f64::tanh);
        check("tanh", -1.0, 1.0, f32::fast_tanh, f64::fast_tanh, f64::tanh);
        check("sigmoid", -80.0, 80.0, f32::sigmoid, f64::sigmoid, |x| 1.0 / (1.0 + (-x).exp()));
    }

    #[test]
    fn ends_and_special_numbers() {
        let inf = f32::INFINITY;
        assert_eq!([f32::fast_exp(inf), f32::fast_exp(-inf), f32::fast_exp(0.0)], [inf, 0.0, 1.0]);
        assert_eq!([f32::fast_exp(88.8), f32::fast_exp(-104.5)], [inf, 0.0]);
        assert_eq!(f32::fast_exp(-103.0), 1e-45, "a subnormal number");
        assert_eq!([f64::fast_exp(709.9), f64::fast_exp(-746.0)], [f64::INFINITY, 0.0]);
        assert_eq!(f64::fast_exp(-745.0), 5e-324);
        assert_eq!([f32::fast_ln(inf), f32::fast_ln(0.0), f32::fast_ln(1.0)], [inf, -inf, 0.0]);
        assert!(
            (f32::fast_ln(1e-45) - -103.278_93).abs() < 1e-4
                && (f64::fast_ln(5e-324) + 744.440_071_921_381).abs() < 1e-12
        );
        assert_eq!([f32::fast_tanh(inf), f32::fast_tanh(-inf), f32::fast_tanh(-1e-40)], [1.0, -1.0, -1e-40]);
        assert!(f32::fast_tanh(-0.0).is_sign_negative());
        let nans = [f32::fast_exp(f32::NAN), f32::fast_ln(f32::NAN), f32::fast_tanh(f32::NAN), f32::fast_ln(-1.0)];
        assert!(nans.iter().all(|x| x.is_nan()) && f64::fast_ln(-0.5).is_nan() && f64::fast_exp(f64::NAN).is_nan());
    }

    #[test]
    fn wide_loops_give_the_same_bits() {
        let x: Vec<f32> = (0..1000).map(|i| i as f32 / 37.0 - 13.0).collect();
        let mut y = vec![0.0f32; 1000];
        wide(|| y.iter_mut().zip(&x).for_each(|(y, &x)| *y = x.fast_tanh().fast_exp()));
        assert!(x.iter().zip(&y).all(|(x, y)| x.fast_tanh().fast_exp().to_bits() == y.to_bits()));
    }
}
