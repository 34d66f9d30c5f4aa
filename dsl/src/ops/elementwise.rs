//! Elementwise arithmetic and logic: one row each.
//!
//! Operands have equal types; the methods of [`Any`] broadcast them first.

use super::*;
use crate::{Buffer, DType};

/// Which element types a row is defined for, and the code that applies a closure to every element.
macro_rules! map {
    ([float] $b:expr, |$x:ident| $e:expr) => {
        match $b {
            Buffer::F32(d) => Buffer::F32(d.iter().map(|&$x: &f32| -> f32 { $e }).collect()),
            Buffer::F64(d) => Buffer::F64(d.iter().map(|&$x: &f64| -> f64 { $e }).collect()),
            _ => unreachable!("inferred to be float"),
        }
    };
    ([bool] $b:expr, |$x:ident| $e:expr) => {
        match $b {
            Buffer::Bool(d) => Buffer::Bool(d.iter().map(|&$x| $e).collect()),
            _ => unreachable!("inferred to be bool"),
        }
    };
    ([float] $a:expr, $b:expr, |$x:ident, $y:ident| $e:expr) => {
        match ($a, $b) {
            (Buffer::F32(a), Buffer::F32(b)) => Buffer::F32(map!(zip f32 a, b, $x, $y, $e)),
            (Buffer::F64(a), Buffer::F64(b)) => Buffer::F64(map!(zip f64 a, b, $x, $y, $e)),
            _ => unreachable!("inferred to be float"),
        }
    };
    ([bool] $a:expr, $b:expr, |$x:ident, $y:ident| $e:expr) => {
        match ($a, $b) {
            (Buffer::Bool(a), Buffer::Bool(b)) => Buffer::Bool(map!(zip bool a, b, $x, $y, $e)),
            _ => unreachable!("inferred to be bool"),
        }
    };
    (zip $t:ty, $a:expr, $b:expr, $x:ident, $y:ident, $e:expr) => {
        $a.iter().zip($b).map(|(&$x, &$y): (&$t, &$t)| -> $t { $e }).collect()
    };
    (zip $t:ident $a:expr, $b:expr, $x:ident, $y:ident, $e:expr) => {
        $a.iter().zip($b).map(|(&$x, &$y): (&$t, &$t)| -> $t { $e }).collect()
    };
}

/// The operations of this file.
pub(super) const OPS: &[&OpDef] = &[&TANH];

fn check(dtypes: &str, ty: &TensorType) -> Result<(), OpError> {
    let ok = match dtypes {
        "float" => ty.dtype.is_float(),
        "numeric" => ty.dtype.is_numeric(),
        "int" => ty.dtype.is_int(),
        "bool" => ty.dtype == DType::Bool,
        _ => true,
    };
    if ok { Ok(()) } else { Err(OpError::new(format!("not defined for elements of type {}", ty.dtype))) }
}

/// `tanh(x)`.
pub static TANH: OpDef = OpDef {
    name: "tanh",
    arity: Arity::Exactly(1),
    attrs: &[],
    infer: |cx| {
        check("float", cx.tensor(0)?)?;
        Ok(cx.operands[0].clone())
    },
    eval: |cx| {
        let x = cx.operands[0];
        Ok(HostTensor::from_buffer(x.shape().to_vec(), map!([float] x.buffer(), |x| x.tanh())))
    },
    grad: Grad::Missing("to be written"),
    exactness: Exactness::Ulps(4),
    effects: Effects::Pure,
};
