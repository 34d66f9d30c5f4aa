//! Representation of elements in memory and registers.
//!
//! Elements are stored in the arena as their plain bytes, a boolean as a byte 0 or 1. A register is
//! a `u64` whose first bytes in memory are those of the element, so it can be read as a tensor of
//! one element. Strings are not stored so: a tensor of them is in a slot.

use crate::threads;
use anabranch_dsl::{Buffer, DType, Element, HostTensor, bf16, f16};
use bytemuck::Pod;

/// An element type with its representation in memory.
pub(crate) trait CpuElement: Element + Copy {
    /// The representation in memory.
    type Mem: Pod + Send + Sync + PartialEq;
    /// Converts from the representation in memory.
    fn load(mem: Self::Mem) -> Self;
    /// Converts to the representation in memory.
    fn store(self) -> Self::Mem;

    /// Converts from a register.
    #[inline(always)]
    fn from_reg(reg: u64) -> Self {
        let n = size_of::<Self::Mem>();
        Self::load(bytemuck::pod_read_unaligned(&reg.to_ne_bytes()[..n]))
    }

    /// Converts to a register.
    #[inline(always)]
    fn to_reg(self) -> u64 {
        let mut bytes = [0; 8];
        bytes[..size_of::<Self::Mem>()].copy_from_slice(bytemuck::bytes_of(&self.store()));
        u64::from_ne_bytes(bytes)
    }
}

macro_rules! plain_cells {
    ($($t:ty)*) => {$(
        impl CpuElement for $t {
            type Mem = $t;
            #[inline(always)]
            fn load(mem: $t) -> $t { mem }
            #[inline(always)]
            fn store(self) -> $t { self }
        }
    )*};
}
plain_cells!(f32 f64 f16 bf16 i32 i64 u32 u8);

impl CpuElement for bool {
    type Mem = u8;
    #[inline(always)]
    fn load(mem: u8) -> bool {
        mem != 0
    }
    #[inline(always)]
    fn store(self) -> u8 {
        u8::from(self)
    }
}

/// Runs the same code with a type alias `$t` for the Rust type of a [`DType`] that is
/// [plain](DType::is_plain).
macro_rules! match_plain_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::cpu::element::match_plain_dtype!(@ $dtype, $t => $body;
            F32 f32, F64 f64, F16 anabranch_dsl::f16, BF16 anabranch_dsl::bf16,
            I32 i32, I64 i64, U32 u32, U8 u8, Bool bool)
    };
    (@ $dtype:expr, $t:ident => $body:expr; $($variant:ident $element:ty),*) => {
        match $dtype {
            $(anabranch_dsl::DType::$variant => {
                type $t = $element;
                $body
            })*
            anabranch_dsl::DType::Bytes => $crate::cpu::element::strings_in_memory(),
        }
    };
}
pub(crate) use match_plain_dtype;

/// Panics because strings are treated as plain bytes.
#[cold]
pub(crate) fn strings_in_memory() -> ! {
    panic!("a tensor of strings is in a slot")
}

/// Returns the bytes of a host buffer.
///
/// # Panics
/// Panics if the elements are strings.
pub(crate) fn bytes_of(buffer: &Buffer) -> &[u8] {
    match buffer {
        Buffer::F32(d) => bytemuck::cast_slice(d),
        Buffer::F64(d) => bytemuck::cast_slice(d),
        Buffer::F16(d) => bytemuck::cast_slice(d),
        Buffer::BF16(d) => bytemuck::cast_slice(d),
        Buffer::I32(d) => bytemuck::cast_slice(d),
        Buffer::I64(d) => bytemuck::cast_slice(d),
        Buffer::U32(d) => bytemuck::cast_slice(d),
        Buffer::U8(d) => d,
        Buffer::Bool(d) => bytemuck::cast_slice(d),
        Buffer::Bytes(_) => strings_in_memory(),
    }
}

/// Returns the mutable bytes of a host buffer.
///
/// # Panics
/// Panics if the elements are booleans, because not all bytes are valid, or strings.
pub(crate) fn bytes_of_mut(buffer: &mut Buffer) -> &mut [u8] {
    match buffer {
        Buffer::F32(d) => bytemuck::cast_slice_mut(d),
        Buffer::F64(d) => bytemuck::cast_slice_mut(d),
        Buffer::F16(d) => bytemuck::cast_slice_mut(d),
        Buffer::BF16(d) => bytemuck::cast_slice_mut(d),
        Buffer::I32(d) => bytemuck::cast_slice_mut(d),
        Buffer::I64(d) => bytemuck::cast_slice_mut(d),
        Buffer::U32(d) => bytemuck::cast_slice_mut(d),
        Buffer::U8(d) => d,
        Buffer::Bool(_) => panic!("booleans cannot be read as bytes"),
        Buffer::Bytes(_) => strings_in_memory(),
    }
}

/// Creates a host buffer of type `dtype` from the bytes of its elements.
pub(crate) fn to_buffer(dtype: DType, bytes: &[u8]) -> Buffer {
    let mut buffer = Buffer::zeros(dtype, bytes.len() / dtype.size());
    write_buffer(&mut buffer, bytes);
    buffer
}

/// Overwrites a host buffer with the bytes of equally many elements.
pub(crate) fn write_buffer(buffer: &mut Buffer, bytes: &[u8]) {
    match buffer {
        Buffer::Bool(d) => d.iter_mut().zip(bytes).for_each(|(d, &b)| *d = b != 0),
        numbers => copy(bytes_of_mut(numbers), bytes),
    }
}

/// Copies bytes, in parallel if there are many: one core cannot use the whole memory bandwidth.
fn copy(to: &mut [u8], from: &[u8]) {
    const PART: usize = 1 << 18;
    assert_eq!(to.len(), from.len(), "buffers of different sizes");
    if to.len() < 4 * PART {
        return to.copy_from_slice(from);
    }
    threads::chunks(to, PART, |(i, to)| to.copy_from_slice(&from[i * PART..][..to.len()]));
}

/// Converts a scalar host tensor to a register.
pub(crate) fn scalar_to_reg(tensor: &HostTensor) -> u64 {
    match tensor.buffer() {
        Buffer::F32(d) => d[0].to_reg(),
        Buffer::F64(d) => d[0].to_reg(),
        Buffer::F16(d) => d[0].to_reg(),
        Buffer::BF16(d) => d[0].to_reg(),
        Buffer::I32(d) => d[0].to_reg(),
        Buffer::I64(d) => d[0].to_reg(),
        Buffer::U32(d) => d[0].to_reg(),
        Buffer::U8(d) => d[0].to_reg(),
        Buffer::Bool(d) => d[0].to_reg(),
        Buffer::Bytes(_) => strings_in_memory(),
    }
}

/// Converts a register to a scalar host tensor.
pub(crate) fn reg_to_scalar(reg: u64, dtype: DType) -> HostTensor {
    match_plain_dtype!(dtype, T => HostTensor::scalar(T::from_reg(reg)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_reads_as_a_tensor_of_one_element() {
        let reg = (-2.5f32).to_reg();
        let bytes: &[u8] = bytemuck::bytes_of(&reg);
        assert_eq!(bytemuck::pod_read_unaligned::<f32>(&bytes[..4]), -2.5);
        assert_eq!(f32::from_reg(reg), -2.5);
        assert!(bool::from_reg(true.to_reg()));
        assert_eq!(i64::from_reg((-7i64).to_reg()), -7);
    }
}
