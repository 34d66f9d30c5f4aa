//! Rows of elements, one for each lane.

use crate::cpu::multiversion::wide;
use anabranch_dsl::DType;
use bytemuck::{Pod, Zeroable};

/// Memory as wide as the widest vector.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct VectorBytes([u8; 64]);

/// Runs code for the unsigned integer type `$t` with elements of a size.
macro_rules! by_size {
    ($size:expr, $t:ident => $body:expr) => {
        match $size {
            1 => {
                type $t = u8;
                $body
            }
            2 => {
                type $t = u16;
                $body
            }
            4 => {
                type $t = u32;
                $body
            }
            _ => {
                type $t = u64;
                $body
            }
        }
    };
}

pub(super) use by_size;

pub(super) fn bytes(row: &[VectorBytes]) -> &[u8] {
    bytemuck::cast_slice(row)
}

pub(super) fn bytes_mut(row: &mut [VectorBytes]) -> &mut [u8] {
    bytemuck::cast_slice_mut(row)
}

/// Returns the element at a place of a row as a register.
pub(super) fn register(row: &[u8], size: usize, i: usize) -> u64 {
    let mut word = [0; 8];
    word[..size].copy_from_slice(&row[i * size..][..size]);
    u64::from_ne_bytes(word)
}

/// Sets the elements of a row to the bits of a register.
pub(super) fn fill(row: &mut [u8], size: usize, bits: u64) {
    by_size!(size, T => bytemuck::cast_slice_mut::<u8, T>(row).fill(bits as T));
}

/// Replaces the elements whose lanes are active.
pub(super) fn blend(to: &mut [u8], from: &[u8], active: &[u8], size: usize) {
    by_size!(size, T => {
        let (to, from): (&mut [T], &[T]) = (bytemuck::cast_slice_mut(to), bytemuck::cast_slice(from));
        wide(
            #[inline(always)]
            || {
                for ((to, &from), &active) in to.iter_mut().zip(from).zip(active) {
                    let mask = T::from(active).wrapping_neg();
                    *to = (from & mask) | (*to & !mask);
                }
            },
        );
    });
}

/// Returns the smallest and the largest depth of active lanes.
pub(super) fn bounds(depths: &[u32], active: &[u8]) -> (u32, u32) {
    wide(
        #[inline(always)]
        || {
            let next = |(least, most): (u32, u32), (&depth, &active): (&u32, &u8)| {
                let mask = u32::from(active).wrapping_neg();
                (least.min(depth | !mask), most.max(depth & mask))
            };
            depths.iter().zip(active).fold((u32::MAX, 0), next)
        },
    )
}

/// Divides integers by two to the power of `shift`, towards zero.
pub(super) fn divide_by_power(out: &mut [u8], a: &[u8], dtype: DType, shift: u32, wants_remainder: bool) {
    macro_rules! divide {
        ($t:ty) => {{
            let (out, a): (&mut [$t], &[$t]) = (bytemuck::cast_slice_mut(out), bytemuck::cast_slice(a));
            let below = ((1 as $t) << shift) - 1;
            // Negative numbers are rounded up.
            let quotient = |x: $t| x.wrapping_add(if x < <$t>::default() { below } else { 0 }) >> shift;
            let divide = |x: $t| if wants_remainder { x.wrapping_sub(quotient(x) << shift) } else { quotient(x) };
            wide(
                #[inline(always)]
                || out.iter_mut().zip(a).for_each(|(out, &x)| *out = divide(x)),
            );
        }};
    }
    match dtype {
        DType::I32 => divide!(i32),
        DType::I64 => divide!(i64),
        DType::U32 => divide!(u32),
        DType::U8 => divide!(u8),
        other => panic!("{other} is no integer"),
    }
}
