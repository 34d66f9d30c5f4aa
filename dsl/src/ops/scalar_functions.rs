//! Definition of elementwise operations by functions of the [scalar language](crate::scalars).
//!
//! A row of [`functions!`] is the only place where an elementwise operation gets its semantics. The
//! reference implementation and the recorded form are generated from it, and a macro that passes
//! the rows on to engines, which compile the function for blocks of elements.

use super::{Effort, Eval, Prim};
use crate::DType;
use crate::ir::{Graph, NodeData};
use crate::ops::class::{OpClass, ScalarForm};
use crate::scalars::ScalarExpr;
use std::sync::atomic::{AtomicU32, Ordering};

/// The semantics of an elementwise operation.
pub(super) struct ScalarSemantics {
    /// The reference implementation.
    pub(super) eval: Eval,
    /// The recorded form for operands of a type.
    pub(super) form: fn(DType) -> Option<ScalarExpr>,
}

impl ScalarSemantics {
    /// Returns the class of the operation.
    pub(super) const fn class(&self) -> OpClass {
        OpClass::Scalar(ScalarForm::Function(self.form))
    }
}

/// Defines a module `semantics` with a [`ScalarSemantics`] for each row, and a macro `$list` that
/// passes the rows to a macro.
///
/// The signature of a row determines the types of its operands and of its result:
///
/// | signature | operands | result |
/// |---|---|---|
/// | `Float` | one or two floats | float |
/// | `FloatTest` | a float | bool |
/// | `Numeric` | one or two numbers | number |
/// | `Quotient` | two numbers, the second of which is not zero if it is an integer | number |
/// | `Comparison` | two numbers or strings | bool |
/// | `Equality` | two numbers, bools or strings | bool |
/// | `Logic` | one or two bools | bool |
/// | `Bits` | one or two integers | integer |
///
/// A function that ends in `=> far` does not hold for angles [beyond](crate::scalars::Beyond) its
/// domain, for which the method `far` is called.
macro_rules! functions {
    (($d:tt) $list:ident: $($op:ident $signature:ident |$($x:ident),+| $e:expr $(=> $far:ident)?;)*) => {
        mod semantics {
            use super::*;
            #[allow(unused_imports, reason = "not all files use all parts of the language")]
            use crate::{
                ops::{number::{match_float, match_numeric}, scalar_functions::{ScalarSemantics, forms, evals}},
                scalars::{self, Beyond, Bitwise, Mask, Arithmetic, Real, Comparable},
            };
            $(
                pub(super) const $op: ScalarSemantics = ScalarSemantics {
                    eval: evals!($signature |$($x),+| $e $(=> $far)?),
                    form: forms!($signature |$($x),+| $e $(=> $far)?),
                };
            )*
        }

        /// Passes the rows of this file to a macro.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! $list {
            ($d with:ident) => {
                $d with! { $($op $signature |$($x),+| $e $(=> $far)?;)* }
            };
        }
    };
}

/// The reference implementation of a row.
macro_rules! evals {
    (Float |$x:ident| $e:expr) => {
        |cx| Ok(match_float!(cx.operands[0].buffer(), d => cx.result(elements::map(d, |$x| $e))))
    };
    (Float |$x:ident| $e:expr => $far:ident) => {
        evals!(Float |$x| if scalars::is_far($x) { $x.$far() } else { $e })
    };
    (FloatTest |$x:ident| $e:expr) => {
        evals!(Float |$x| $e)
    };
    (Float |$x:ident, $y:ident| $e:expr) => {
        |cx| Ok(match_float!(cx.operands[0].buffer(), a => zip(cx, a, |$x, $y| $e)))
    };
    (Numeric |$x:ident| $e:expr) => {
        |cx| Ok(match_numeric!(cx.operands[0].buffer(), d => cx.result(elements::map(d, |$x| $e))))
    };
    (Numeric |$x:ident, $y:ident| $e:expr) => {
        |cx| Ok(match_numeric!(cx.operands[0].buffer(), a => zip(cx, a, |$x, $y| $e)))
    };
    (Quotient |$x:ident, $y:ident| $e:expr) => {
        |cx| match_numeric!(cx.operands[0].buffer(), a => divide(cx, a, |$x, $y| $e))
    };
    (Comparison |$x:ident, $y:ident| $e:expr) => {
        |cx| Ok(match cx.operands[0].buffer() {
            crate::Buffer::Bytes(a) => zip_strings(cx, a, |$x, $y| $e),
            numbers => match_numeric!(numbers, a => zip(cx, a, |$x, $y| $e)),
        })
    };
    (Equality |$x:ident, $y:ident| $e:expr) => {
        |cx| Ok(match cx.operands[0].buffer() {
            crate::Buffer::Bytes(a) => zip_strings(cx, a, |$x, $y| $e),
            plain => match_types!(plain, a: F32 F64 I32 I64 U32 U8 Bool => zip(cx, a, |$x, $y| $e)),
        })
    };
    (Logic |$x:ident| $e:expr) => {
        |cx| Ok(cx.result(elements::map(cx.operands[0].data::<bool>(), |$x| $e)))
    };
    (Logic |$x:ident, $y:ident| $e:expr) => {
        |cx| Ok(zip(cx, cx.operands[0].data::<bool>(), |$x, $y| $e))
    };
    (Bits |$x:ident| $e:expr) => {
        |cx| Ok(match_types!(cx.operands[0].buffer(), d: I32 I64 U32 U8 => cx.result(elements::map(d, |$x| $e))))
    };
    (Bits |$x:ident, $y:ident| $e:expr) => {
        |cx| Ok(match_types!(cx.operands[0].buffer(), a: I32 I64 U32 U8 => zip(cx, a, |$x, $y| $e)))
    };
}

/// The recorded form of a row.
macro_rules! forms {
    (Float |$($x:ident),+| $e:expr) => { forms!(F32 f32, F64 f64: |$($x),+| $e) };
    (FloatTest |$($x:ident),+| $e:expr) => { forms!(F32 f32, F64 f64: |$($x),+| $e) };
    (Numeric |$($x:ident),+| $e:expr) => {
        forms!(F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8: |$($x),+| $e)
    };
    (Quotient |$($x:ident),+| $e:expr) => { forms!(Numeric |$($x),+| $e) };
    (Comparison |$($x:ident),+| $e:expr) => { forms!(Numeric |$($x),+| $e) };
    (Equality |$($x:ident),+| $e:expr) => {
        forms!(F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8, Bool bool: |$($x),+| $e)
    };
    (Logic |$($x:ident),+| $e:expr) => { forms!(Bool bool: |$($x),+| $e) };
    (Bits |$($x:ident),+| $e:expr) => { forms!(I32 i32, I64 i64, U32 u32, U8 u8: |$($x),+| $e) };
    (Float |$x:ident| $e:expr => $far:ident) => {
        |dtype| match dtype {
            crate::DType::F32 => Some(scalars::Recorder::near::<f32>(|$x| $e)),
            crate::DType::F64 => Some(scalars::Recorder::near::<f64>(|$x| $e)),
            _ => None,
        }
    };
    ($($variant:ident $t:ident),+: |$x:ident| $e:expr) => {
        |dtype| match dtype {
            $(crate::DType::$variant => Some(scalars::Recorder::unary::<$t, _>(|$x| $e)),)+
            _ => None,
        }
    };
    ($($variant:ident $t:ident),+: |$x:ident, $y:ident| $e:expr) => {
        |dtype| match dtype {
            $(crate::DType::$variant => Some(scalars::Recorder::binary::<$t, _>(|$x, $y| $e)),)+
            _ => None,
        }
    };
}

pub(super) use {evals, forms, functions};

/// Returns the type for which the function of an elementwise node is chosen, that of its last
/// operand: the first one of `select` is a condition.
pub fn function_dtype(graph: &Graph, node: &NodeData) -> DType {
    let last = node.operands.last().or(node.results.first());
    graph.ty(*last.expect("an operation has operands or results")).element().dtype
}

impl Prim {
    /// Returns the recorded form of an elementwise operation whose last operand has a type, if that
    /// alone determines it.
    #[doc(hidden)]
    pub fn scalar_form(self, operand: DType) -> Option<ScalarExpr> {
        match self.class {
            OpClass::Scalar(ScalarForm::Function(record)) => record(operand),
            _ => None,
        }
    }

    /// Returns the recorded form of an elementwise operation whose last operand and whose result
    /// have these types.
    #[doc(hidden)]
    pub fn scalar_form_to(self, operand: DType, result: DType) -> Option<ScalarExpr> {
        match self.class {
            OpClass::Scalar(ScalarForm::Conversion) => Some(ScalarExpr::conversion(operand, result)),
            _ => self.scalar_form(operand),
        }
    }

    /// Returns whether the operation is elementwise and takes few instructions.
    pub fn is_simple(self) -> bool {
        self.scalar_effort().is_some_and(Effort::is_simple)
    }

    /// Returns the effort of an elementwise operation for each element, from its recorded form.
    pub fn scalar_effort(self) -> Option<Effort> {
        /// The efforts of the operations of the table, plus 1.
        static KNOWN: [AtomicU32; Prim::BUILT_IN] = [const { AtomicU32::new(0) }; Prim::BUILT_IN];
        let OpClass::Scalar(form) = self.class else { return None };
        let compute = || match form {
            ScalarForm::Identity => Effort::NONE,
            ScalarForm::Conversion => Effort::SIMPLE,
            ScalarForm::Estimated(effort) => effort,
            ScalarForm::Function(record) => {
                let expr = [DType::F32, DType::I32, DType::Bool].into_iter().find_map(record);
                Effort(expr.expect("every function is defined for floats, integers or bools").effort())
            }
        };
        let Some(known) = KNOWN.get(self.index()) else { return Some(compute()) };
        Some(match known.load(Ordering::Relaxed) {
            0 => {
                let effort = compute();
                known.store(effort.0 + 1, Ordering::Relaxed);
                effort
            }
            plus_one => Effort(plus_one - 1),
        })
    }
}
