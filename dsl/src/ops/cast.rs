//! Conversion between element types, and the identity that stops gradients.

use super::infer::{Class, like_operand};
use super::*;
use crate::halves::odd_f64;
use crate::{Buffer, DType, Element, Float, HostTensor, Plain, Tensor, bf16, f16};

family!(CAST, STOP_GRADIENT);

/// The elements of a buffer by index, as numbers of a type that holds those of the buffer's type.
enum WideNumbers<'a> {
    Floats(Box<dyn Fn(usize) -> f64 + 'a>),
    Ints(Box<dyn Fn(usize) -> i64 + 'a>),
}

impl WideNumbers<'_> {
    fn of(from: &Buffer) -> WideNumbers<'_> {
        use WideNumbers::{Floats, Ints};
        match from {
            Buffer::F32(d) => Floats(Box::new(|i| d[i].into())),
            Buffer::F64(d) => Floats(Box::new(|i| d[i])),
            Buffer::F16(d) => Floats(Box::new(|i| d[i].to_f64())),
            Buffer::BF16(d) => Floats(Box::new(|i| d[i].to_f64())),
            Buffer::I32(d) => Ints(Box::new(|i| d[i].into())),
            Buffer::I64(d) => Ints(Box::new(|i| d[i])),
            Buffer::U32(d) => Ints(Box::new(|i| d[i].into())),
            Buffer::U8(d) => Ints(Box::new(|i| d[i].into())),
            Buffer::Bool(d) => Ints(Box::new(|i| d[i].into())),
            Buffer::Bytes(_) => panic!("strings are not cast"),
        }
    }

    fn convert<T>(&self, n: usize, float: fn(f64) -> T, int: fn(i64) -> T) -> Vec<T> {
        match self {
            WideNumbers::Floats(at) => (0..n).map(|i| float(at(i))).collect(),
            WideNumbers::Ints(at) => (0..n).map(|i| int(at(i))).collect(),
        }
    }
}

/// Conversion between element types with the semantics of `as`, rounded once. A number converts to
/// `bool` as whether it is nonzero.
trait Convert: Element {
    fn of_float(x: f64) -> Self;
    fn of_int(x: i64) -> Self;
}
macro_rules! convert {
    ($($t:ident)*) => {$(
        impl Convert for $t {
            fn of_float(x: f64) -> $t {
                x as $t
            }
            fn of_int(x: i64) -> $t {
                x as $t
            }
        }
    )*};
}
convert!(f32 f64 i32 i64 u32 u8);
macro_rules! convert_half {
    ($($t:ident)*) => {$(
        impl Convert for $t {
            fn of_float(x: f64) -> $t {
                <$t as Float>::from_f64(x)
            }
            fn of_int(x: i64) -> $t {
                <$t as Float>::from_f64(odd_f64(x))
            }
        }
    )*};
}
convert_half!(f16 bf16);
impl Convert for bool {
    fn of_float(x: f64) -> bool {
        x != 0.0
    }
    fn of_int(x: i64) -> bool {
        x != 0
    }
}

/// Returns a tensor with its elements converted.
pub(crate) fn converted(x: &HostTensor, to: DType) -> HostTensor {
    if x.dtype() == to {
        return x.clone();
    }
    let (n, numbers) = (x.buffer().len(), WideNumbers::of(x.buffer()));
    fn all<T: Convert>(numbers: &WideNumbers<'_>, n: usize) -> Buffer {
        T::into_buffer(numbers.convert(n, T::of_float, T::of_int))
    }
    let buffer = match to {
        DType::F32 => all::<f32>(&numbers, n),
        DType::F64 => all::<f64>(&numbers, n),
        DType::F16 => all::<f16>(&numbers, n),
        DType::BF16 => all::<bf16>(&numbers, n),
        DType::I32 => all::<i32>(&numbers, n),
        DType::I64 => all::<i64>(&numbers, n),
        DType::U32 => all::<u32>(&numbers, n),
        DType::U8 => all::<u8>(&numbers, n),
        DType::Bool => all::<bool>(&numbers, n),
        DType::Bytes => panic!("numbers are not cast to strings"),
    };
    HostTensor::from_buffer(x.shape().to_vec(), buffer)
}

/// Returns a scalar of a type, converted from a number.
pub(super) fn scalar_of(dtype: DType, x: f64) -> HostTensor {
    converted(&HostTensor::scalar(x), dtype)
}

/// Conversion to another element type with the semantics of `as`.
static CAST: OpDef = OpDef {
    name: "cast",
    arity: Arity::Exactly(1),
    attrs: Cast::DECLARED,
    infer: |cx| {
        let (ty, dtype) = (cx.tensor(0)?, Cast::of(cx.attrs).dtype);
        Class::Plain.check(ty)?;
        if dtype.is_plain() {
            return Ok(Type::tensor(dtype, &ty.shape));
        }
        let error = OpError::new(format!("makes numbers or bool, not {dtype}")).label(ty.to_string());
        Err(error.help("write numbers as strings with `.format()`"))
    },
    eval: |cx| Ok(converted(cx.operands[0], Cast::of(cx.attrs).dtype)),
    grad: Grad::Rule(|n| vec![n.ty(0).dtype.is_float().then(|| n.dy().cast(n.ty(0).dtype))]),
    exactness: Exactness::Exact,
    class: OpClass::Scalar(ScalarForm::Conversion),
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// The operand, which gradients treat as a constant.
static STOP_GRADIENT: OpDef = OpDef {
    name: "stop_gradient",
    arity: Arity::Exactly(1),
    attrs: &[],
    infer: |cx| like_operand(cx, Class::Every),
    eval: |cx| Ok(cx.operands[0].clone()),
    grad: Grad::Zero("it stops gradients by definition"),
    exactness: Exactness::Exact,
    class: OpClass::Scalar(ScalarForm::Identity),
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

impl<C: ValueCx> AnyValue<C> {
    /// See [`Tensor::cast`]. Returns the tensor itself if it already has the type.
    #[track_caller]
    pub fn cast(self, dtype: DType) -> AnyValue<C> {
        if self.dtype() == dtype {
            return self;
        }
        emit(prim::CAST, &[self], Cast { dtype }.into())
    }

    /// See [`Tensor::stop_gradient`].
    #[track_caller]
    pub fn stop_gradient(self) -> AnyValue<C> {
        emit(prim::STOP_GRADIENT, &[self], Attrs::none())
    }
}

impl<T: Plain> Tensor<T> {
    /// Converts the elements to another type with the semantics of `as`.
    ///
    /// A float is truncated towards zero and saturates at the range of an integer type; `NaN`
    /// becomes 0. Integers wrap. `true` is 1, and a number is `true` if it is nonzero. Conversion
    /// to [`struct@f16`] and [`bf16`] rounds to the nearest value, see [`halves`](crate::halves).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([2.7f32, -1.0, 300.0]).cast::<u8>())?.as_slice(), [2, 0, 255]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn cast<U: Plain>(self) -> Tensor<U> {
        Tensor::from_any(self.untyped().cast(U::DTYPE))
    }
}

impl<T: Float> Tensor<T> {
    /// Returns the same values, which gradients treat as constants.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let dx = eval(|| {
    ///     let x = scalar(3.0f32);
    ///     gradients(x * x.stop_gradient(), x)
    /// })?;
    /// assert_eq!(dx, 3.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn stop_gradient(self) -> Tensor<T> {
        Tensor::from_any(self.untyped().stop_gradient())
    }
}
