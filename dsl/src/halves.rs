//! 16-bit floats (half precision): their purpose and the semantics of their arithmetic.
//!
//! A tensor of [`struct@f16`] or [`bf16`] takes half the memory of one of `f32`. The types are for
//! storage: **an operation on them is the operation on `f32`, rounded once**. Its operands are
//! widened, which is exact. The operation computes as it does with `f32`, so a sum or a matmul
//! accumulates in `f32`. Its result is rounded to nearest, ties to even. Each operation rounds,
//! even if an engine fuses several. Operations that only move elements preserve their bits.
//!
//! | type | precision | largest | smallest normal | smallest |
//! |---|---|---|---|---|
//! | `f16` | 11 bits, about 3 digits | 65,504 | 6.1e-5 | 6.0e-8 |
//! | `bf16` | 8 bits, about 2 digits | 3.4e38 | 1.2e-38 | 9.2e-41 |
//!
//! So `bf16` has the range of `f32`, and its gradients need no scaling. In a model keep the
//! parameters, the optimizer and the loss in `f32`, and cast the values that pass through the
//! layers (Micikevicius et al. 2018, "Mixed precision training"):
//!
//! ```
//! use anabranch::{nn::{Init, Linear}, prelude::*};
//!
//! let layer = Linear::new(&Init::new(1), 4, 2);
//! let (y, slope) = eval(|| {
//!     let x = full([3, 4], 0.5f32);
//!     let y = layer.forward(x.cast::<bf16>()).tanh(); // a matmul of bf16; the parameters stay f32
//!     let loss = y.cast::<f32>().square().mean();
//!     (y, gradients(loss, layer.weight.get())) // of the type of the parameter
//! })?;
//! assert_eq!((y.shape(), slope.shape()), (&[3, 2][..], &[4, 2][..]));
//! # Ok::<(), anabranch::Diagnostic>(())
//! ```
//!
//! A cast to one of these types rounds once, from any type; numbers that are too large become
//! infinite. A cast from one of them equals the cast from the same number as `f32`.

use crate::Element;
#[doc(inline)]
pub use half::{bf16, f16};

/// A 16-bit float: [`struct@f16`] or [`bf16`].
pub trait Half: Element + Copy {
    /// Returns the same number as `f32`.
    fn widened(self) -> f32;
    /// Rounds to nearest, ties to even. `NaN` becomes a quiet `NaN`.
    fn rounded(x: f32) -> Self;

    /// Returns the number with the fewest digits that rounds to this number, for printing. The
    /// result is finite if this number is.
    fn shortest(self) -> f32 {
        let x = self.widened();
        let digits = |n: usize| format!("{x:.n$e}").parse::<f32>().unwrap_or(x);
        (0..6).map(digits).find(|&y| Self::rounded(y) == self && y.is_finite()).unwrap_or(x)
    }
}

macro_rules! halves {
    ($($t:ident)*) => {$(
        impl Half for $t {
            fn widened(self) -> f32 {
                self.to_f32()
            }
            fn rounded(x: f32) -> $t {
                $t::from_f32(x)
            }
        }
    )*};
}
halves!(f16 bf16);

/// Rounds a number to `f32` with rounding to odd: an inexact result is the neighbor whose last bit
/// is set.
///
/// Rounding the result again to at most 22 bits then equals rounding once (Boldo and Melquiond
/// 2008).
pub(crate) fn round_to_odd_f32(x: f64) -> f32 {
    let y = x as f32;
    if f64::from(y) == x || !y.is_finite() {
        return y;
    }
    let towards_zero = if f64::from(y).abs() > x.abs() { y.to_bits() - 1 } else { y.to_bits() };
    f32::from_bits(towards_zero | 1)
}

/// Rounds an integer to `f64` with rounding to odd, like `round_to_odd_f32`.
pub fn odd_f64(x: i64) -> f64 {
    const LOW: i64 = 0x7ff;
    if x.unsigned_abs() >> 53 == 0 || x & LOW == 0 {
        return x as f64;
    }
    // Clear the low bits and set the bit above them, which stands for all dropped bits.
    (x & !LOW | (LOW + 1)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Float;

    /// Checks rounding to each finite value of a type and to infinity, at the limits of its
    /// rounding interval.
    fn check<T: Half + Float>(from_bits: fn(u16) -> T, to_bits: fn(T) -> u16, infinity: u16) {
        let value = |bits: u16| f64::from(from_bits(bits).widened());
        for bits in 0..infinity {
            let (x, last) = (value(bits), bits + 1 == infinity);
            // The next value after the largest would be as far away as the one before it.
            let next = if last { 2.0 * x - value(bits - 1) } else { value(bits + 1) };
            let middle = (x + next) / 2.0;
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            let (below, above) = (f64::from_bits(middle.to_bits() - 1), f64::from_bits(middle.to_bits() + 1));
            for (number, expected) in [(x, bits), (below, bits), (middle, even), (above, bits + 1)] {
                assert_eq!(to_bits(T::from_f64(number)), expected, "{number:e}");
                assert_eq!(to_bits(T::from_f64(-number)), expected | 0x8000, "{number:e}");
                let narrow = number as f32;
                if f64::from(narrow) == number {
                    assert_eq!(to_bits(T::rounded(narrow)), expected, "{number:e}");
                }
            }
        }
        for bits in infinity..=0x7fff {
            let x = from_bits(bits).widened();
            assert_eq!(x.is_nan(), bits != infinity);
            assert_eq!(to_bits(T::rounded(x)) & infinity, infinity);
            assert_eq!(T::rounded(x).widened().is_nan(), x.is_nan());
            assert_eq!(T::from_f64(x.into()).widened().is_nan(), x.is_nan());
        }
    }

    #[test]
    fn every_value_and_every_middle_of_two_is_rounded_to_the_nearest() {
        check(f16::from_bits, f16::to_bits, 0x7c00);
        check(bf16::from_bits, bf16::to_bits, 0x7f80);
    }

    #[test]
    fn integers_are_rounded_once() {
        // The conversion of `half` itself rounds twice.
        let nearest = <bf16 as Float>::from_f64;
        // A bit above the midpoint of two `bf16` values, which an `f64` cannot represent.
        let x = (1 << 60) + (1 << 52) + 1;
        assert_eq!(nearest(odd_f64(x)).to_f32(), (2.0f32).powi(60) + (2.0f32).powi(53));
        assert_eq!(nearest(odd_f64(-x)).to_f32(), -((2.0f32).powi(60) + (2.0f32).powi(53)));
        assert_eq!(nearest(odd_f64(x - 1)).to_f32(), (2.0f32).powi(60));
        assert_eq!(odd_f64(i64::MIN), -(2.0f64).powi(63));
        assert_eq!(odd_f64(i64::MAX), (2.0f64).powi(63) - 2048.0);
        assert_eq!(odd_f64(-3), -3.0);
    }
}
