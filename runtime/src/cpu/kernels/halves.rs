//! Conversions from and to half-precision floats, the only functions on them.
//!
//! All arithmetic is in `f32`, between conversions that [`widen`](anabranch_dsl::passes::widen)
//! inserts into the graph.
//!
//! `f16` uses the conversions of the crate `half`, which use hardware instructions where available
//! (F16C, NEON). `bf16` is the upper half of an `f32`, so loops that shift and round bits suffice.

use super::functions::{ElementFunction, ScalarFn, as_is, unary};
use crate::cpu::element::CpuElement;
use crate::cpu::multiversion::wide;
use anabranch_dsl::halves::odd_f64;
use anabranch_dsl::{DType, Float, bf16, f16};
use half::slice::HalfFloatSliceExt;

/// A function whose block form is an expression on bits.
macro_rules! unary_bits {
    ($A:ty => $R:ty, |$x:ident| $e:expr, $function:expr) => {
        ElementFunction {
            block: |out, [x, _, _]| {
                let (out, x): (&mut [$R], &[$A]) = (bytemuck::cast_slice_mut(out), bytemuck::cast_slice(x));
                wide(
                    #[inline(always)]
                    || out.iter_mut().zip(x).for_each(|(out, &$x)| *out = $e),
                );
            },
            ..$function
        }
    };
}

/// Returns a conversion from or to a half-precision type.
pub(super) fn cast(from: DType, to: DType) -> Option<ElementFunction> {
    macro_rules! from_half {
        ($A:ty) => {
            match to {
                DType::F32 => unary!(as_is, as_is, $A => f32, |x| x.to_f32()),
                DType::F64 => unary!(as_is, as_is, $A => f64, |x| x.to_f32().into()),
                DType::I32 => unary!(as_is, as_is, $A => i32, |x| x.to_f32() as i32),
                DType::I64 => unary!(as_is, as_is, $A => i64, |x| x.to_f32() as i64),
                DType::U32 => unary!(as_is, as_is, $A => u32, |x| x.to_f32() as u32),
                DType::U8 => unary!(as_is, as_is, $A => u8, |x| x.to_f32() as u8),
                DType::Bool => unary!(as_is, as_is, $A => bool, |x| x.to_f32() != 0.0),
                DType::F16 => unary!(as_is, as_is, $A => f16, |x| f16::from_f32(x.to_f32())),
                DType::BF16 => unary!(as_is, as_is, $A => bf16, |x| bf16::from_f32(x.to_f32())),
                DType::Bytes => return None,
            }
        };
    }
    macro_rules! to_half {
        ($R:ty) => {
            match from {
                DType::F32 => unary!(as_is, as_is, f32 => $R, |x| <$R>::from_f32(x)),
                DType::F64 => unary!(as_is, as_is, f64 => $R, |x| <$R as Float>::from_f64(x)),
                DType::I32 => unary!(as_is, as_is, i32 => $R, |x| <$R as Float>::from_f64(x.into())),
                DType::I64 => unary!(as_is, as_is, i64 => $R, |x| <$R as Float>::from_f64(odd_f64(x))),
                DType::U32 => unary!(as_is, as_is, u32 => $R, |x| <$R as Float>::from_f64(x.into())),
                DType::U8 => unary!(as_is, as_is, u8 => $R, |x| <$R as Float>::from_f64(x.into())),
                DType::Bool => unary!(as_is, as_is, bool => $R, |x| <$R as Float>::from_f64(u8::from(x).into())),
                DType::F16 | DType::BF16 | DType::Bytes => return None,
            }
        };
    }
    let function = match (from, to) {
        (DType::F16, _) => from_half!(f16),
        (DType::BF16, _) => from_half!(bf16),
        (_, DType::F16) => to_half!(f16),
        (_, DType::BF16) => to_half!(bf16),
        _ => return None,
    };
    Some(match (from, to) {
        (DType::F16, DType::F32) => ElementFunction {
            block: |out, [x, _, _]| {
                bytemuck::cast_slice::<u8, f16>(x).convert_to_f32_slice(bytemuck::cast_slice_mut(out))
            },
            ..function
        },
        (DType::F32, DType::F16) => ElementFunction {
            block: |out, [x, _, _]| {
                bytemuck::cast_slice_mut::<u8, f16>(out).convert_from_f32_slice(bytemuck::cast_slice(x));
            },
            ..function
        },
        (DType::BF16, DType::F32) => unary_bits!(u16 => u32, |x| u32::from(x) << 16, function),
        (DType::F32, DType::BF16) => unary_bits!(u32 => u16, |x| upper(x), function),
        _ => function,
    })
}

/// Returns the bits of the nearest `bf16`, with ties to even.
#[inline(always)]
fn upper(bits: u32) -> u16 {
    // Add just under half a unit in the last place, or exactly half if the last bit is 1, so ties
    // round to even.
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    (if is_nan { bits >> 16 | 0x40 } else { nearest >> 16 }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Converts all values, and values between them, one by one and in blocks.
    #[test]
    fn blocks_convert_as_elements_do() {
        for dtype in [DType::F16, DType::BF16] {
            let widen = cast(dtype, DType::F32).expect("there is one");
            let narrow = cast(DType::F32, dtype).expect("there is one");
            let (ScalarFn::Unary(widen_one), ScalarFn::Unary(narrow_one)) = (widen.scalar, narrow.scalar) else {
                panic!("a cast has one operand")
            };
            let all: Vec<u16> = (0..=u16::MAX).collect();
            let mut values = vec![0.0f32; all.len()];
            (widen.block)(bytemuck::cast_slice_mut(&mut values), [bytemuck::cast_slice(&all), &[], &[]]);
            for (&bits, value) in all.iter().zip(&values) {
                let one = f32::from_reg(widen_one(bits.into()));
                assert_eq!(value.to_bits() | 0x40_0000, one.to_bits() | 0x40_0000, "{dtype} {bits:#x}");
                assert!(value.to_bits() == one.to_bits() || one.is_nan(), "{dtype} {bits:#x}");
            }
            // Each value, the midpoint to the next value, and the neighbors of both.
            let between = values.iter().flat_map(|x| {
                let ulp = if dtype == DType::F16 { 1 << 12 } else { 1 << 15 };
                let at = |offset: u32| f32::from_bits(x.to_bits().wrapping_add(offset));
                [at(0), at(1), at(ulp - 1), at(ulp), at(ulp + 1), at(u32::MAX)]
            });
            // Midpoints between subnormal numbers of f16 are elsewhere.
            let subnormal = (0..4096).flat_map(|i| {
                let x = i as f32 * 2.0f32.powi(-26);
                [x, f32::from_bits(x.to_bits() + 1), f32::from_bits(x.to_bits().saturating_sub(1)), -x]
            });
            let numbers: Vec<f32> = between.chain(subnormal).chain([f32::MAX, f32::MIN, f32::from_bits(1)]).collect();
            let mut narrowed = vec![0u16; numbers.len()];
            (narrow.block)(bytemuck::cast_slice_mut(&mut narrowed), [bytemuck::cast_slice(&numbers), &[], &[]]);
            for (x, &bits) in numbers.iter().zip(&narrowed) {
                assert_eq!(u64::from(bits), narrow_one(x.to_reg()), "{dtype} {x:e} {:#x}", x.to_bits());
            }
        }
    }
}
