//! Element types.

use crate::array::Buffer;
use crate::{Bytes, halves};
use half::{bf16, f16};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 32-bit IEEE 754 floating point.
    F32,
    /// 64-bit IEEE 754 floating point.
    F64,
    /// 16-bit IEEE 754 floating point: 11 bits of precision, up to 65,504. See [`halves`].
    F16,
    /// The upper half of an `f32`: 8 bits of precision, and its range. See [`halves`].
    BF16,
    /// A 32-bit signed integer.
    I32,
    /// A 64-bit signed integer.
    I64,
    /// A 32-bit unsigned integer.
    U32,
    /// An 8-bit unsigned integer.
    U8,
    /// A boolean.
    Bool,
    /// A string of bytes of any length. See [`Bytes`].
    Bytes,
}

impl DType {
    /// All element types, in the order of the enum.
    pub const ALL: [DType; 10] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I32,
        DType::I64,
        DType::U32,
        DType::U8,
        DType::Bool,
        DType::Bytes,
    ];

    /// The element types that are [plain](DType::is_plain): all but `bytes`.
    pub const PLAIN: [DType; 9] =
        [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U32, DType::U8, DType::Bool];

    /// Returns the name in the text form: `f32`, `i64`, `bool`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U32 => "u32",
            DType::U8 => "u8",
            DType::Bool => "bool",
            DType::Bytes => "bytes",
        }
    }

    /// Returns the element type with the given name.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Returns the size of an element in bytes; of a string, that of its handle.
    pub fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 | DType::Bool => 1,
            DType::Bytes => size_of::<Bytes>(),
        }
    }

    /// Returns whether this is `f32`, `f64`, `f16` or `bf16`: the types that have gradients.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }

    /// Returns whether this is `f16` or `bf16`: the types stored in 16 bits and computed in `f32`.
    ///
    /// See [`halves`].
    pub fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// Returns whether this is an integer type. `bool` is not.
    pub fn is_int(self) -> bool {
        matches!(self, DType::I32 | DType::I64 | DType::U32 | DType::U8)
    }

    /// Returns whether the type has arithmetic: all types except `bool` and `bytes`.
    pub fn is_numeric(self) -> bool {
        !matches!(self, DType::Bool | DType::Bytes)
    }

    /// Returns whether an element is a few plain bytes in memory: all types except `bytes`.
    ///
    /// Only such tensors are stored by GPUs, in the arenas of plans and in files of numbers.
    pub fn is_plain(self) -> bool {
        self != DType::Bytes
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that can be the element type of a tensor. Sealed: the set is that of [`DType`].
pub trait Element:
    Clone + PartialEq + PartialOrd + std::fmt::Debug + std::fmt::Display + Default + Send + Sync + 'static + sealed::Sealed
{
    /// The element type as a value.
    const DTYPE: DType;
    /// Wraps elements in a buffer of their type.
    fn into_buffer(data: Vec<Self>) -> Buffer;
    /// Returns the elements of a buffer, if it has this type.
    fn from_buffer(buffer: &Buffer) -> Option<&[Self]>;
    /// Returns the elements of a buffer for writing, if it has this type.
    fn from_buffer_mut(buffer: &mut Buffer) -> Option<&mut [Self]>;
}

/// Elements that are numbers or `bool`, of a fixed size: all types except [`Bytes`].
#[diagnostic::on_unimplemented(
    message = "a `Tensor<{Self}>` is not cast",
    label = "strings are not cast",
    note = "read numbers in strings with `.parse::<f32>()`, and write numbers as strings with `.format()`"
)]
pub trait Plain: Element + Copy {}

/// Elements with an order: all types except `bool`. Strings are ordered by their bytes.
#[diagnostic::on_unimplemented(message = "`{Self}` has no order", label = "expected numbers or strings")]
pub trait Orderable: Element {}

/// Elements with arithmetic: all types except `bool` and [`Bytes`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a number",
    label = "expected an element type with arithmetic",
    note = "strings are joined by `a.join(b)` and read as numbers by `.parse::<f32>()`; `bool` becomes numbers by \
            `.cast::<f32>()`"
)]
pub trait Numeric: Plain + Orderable {}
/// Elements with gradients: `f32`, `f64`, `f16` and `bf16`.
pub trait Float: Numeric {
    /// Returns the nearest value of this type.
    fn from_f64(x: f64) -> Self;
}
/// Integer elements: valid as indices.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an integer element type",
    label = "expected integers",
    note = "counts and indices are `i32`, `i64`, `u32` or `u8`; convert a tensor with `.cast::<i32>()`, and a `usize` `n` \
            with `n as i32`"
)]
pub trait Integer: Numeric {
    /// The number 1.
    const ONE: Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($t:ty => $v:ident),*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$v;
            fn into_buffer(data: Vec<Self>) -> Buffer { Buffer::$v(data) }
            fn from_buffer(buffer: &Buffer) -> Option<&[Self]> {
                if let Buffer::$v(d) = buffer { Some(d) } else { None }
            }
            fn from_buffer_mut(buffer: &mut Buffer) -> Option<&mut [Self]> {
                if let Buffer::$v(d) = buffer { Some(d) } else { None }
            }
        }
    )*};
}
elements!(f32 => F32, f64 => F64, f16 => F16, bf16 => BF16, i32 => I32, i64 => I64, u32 => U32, u8 => U8, bool => Bool, Bytes => Bytes);

macro_rules! marks {
    ($($mark:ident: $($t:ty)*;)*) => {$($(impl $mark for $t {})*)*};
}
marks! {
    Plain: f32 f64 f16 bf16 i32 i64 u32 u8 bool;
    Orderable: f32 f64 f16 bf16 i32 i64 u32 u8 Bytes;
    Numeric: f32 f64 f16 bf16 i32 i64 u32 u8;
}

impl Float for f32 {
    fn from_f64(x: f64) -> Self {
        x as f32
    }
}
impl Float for f64 {
    fn from_f64(x: f64) -> Self {
        x
    }
}
impl Float for f16 {
    fn from_f64(x: f64) -> Self {
        f16::from_f32(halves::round_to_odd_f32(x))
    }
}
impl Float for bf16 {
    fn from_f64(x: f64) -> Self {
        bf16::from_f32(halves::round_to_odd_f32(x))
    }
}
impl Integer for i32 {
    const ONE: i32 = 1;
}
impl Integer for i64 {
    const ONE: i64 = 1;
}
impl Integer for u32 {
    const ONE: u32 = 1;
}
impl Integer for u8 {
    const ONE: u8 = 1;
}
