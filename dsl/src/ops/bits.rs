//! Elementwise operations on the bits of integers: `&`, `|`, `^`, `!`, `<<`, `>>`.
//!
//! Like all integer arithmetic, shifts wrap: the count is taken modulo the number of bits, as in
//! `wrapping_shl`. So a shift never fails, and a negative count is equivalent to a positive one.
//! `>>` keeps the sign of a signed integer.

use super::elementwise_binary::broadcast_pair;
use super::infer::{Class, common};
use super::number::match_types;
use super::*;
use crate::ir::Attrs;
use crate::{HostTensor, Integer};

family!(BIT_AND, BIT_OR, BIT_XOR, BIT_NOT, SHIFT_LEFT, SHIFT_RIGHT);

macro_rules! match_int {
    ($buffer:expr, $data:ident => $body:expr) => {
        match_types!($buffer, $data: I32 I64 U32 U8 => $body)
    };
}

/// An integer as a sequence of bits.
trait Bits: Integer {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn inverted(self) -> Self;
    fn shifted_left(self, count: Self) -> Self;
    fn shifted_right(self, count: Self) -> Self;
}

macro_rules! bits {
    ($($t:ident)*) => {$(
        impl Bits for $t {
            fn and(self, other: Self) -> Self { self & other }
            fn or(self, other: Self) -> Self { self | other }
            fn xor(self, other: Self) -> Self { self ^ other }
            fn inverted(self) -> Self { !self }
            fn shifted_left(self, count: Self) -> Self { self.wrapping_shl(count as u32) }
            fn shifted_right(self, count: Self) -> Self { self.wrapping_shr(count as u32) }
        }
    )*};
}
bits!(i32 i64 u32 u8);

fn zip<T: Bits>(cx: &EvalCx<'_>, a: &[T], f: fn(T, T) -> T) -> HostTensor {
    cx.result(elements::zip(a, cx.operands[1].data(), f))
}

/// Returns the definition of an operation on two tensors of integers.
const fn row(name: &'static str, eval: Eval) -> OpDef {
    OpDef {
        name,
        arity: Arity::Exactly(2),
        attrs: &[],
        infer: |cx| Ok(common(cx, Class::Int)?.into()),
        eval,
        grad: Grad::Zero("the bits of integers have no derivative"),
        exactness: Exactness::Exact,
        class: OpClass::Scalar(Effort::SIMPLE),
        halves: Halves::Widened,
        effects: Effects::Pure,
        laws: Laws::NONE,
    }
}

/// `a & b`
static BIT_AND: OpDef = OpDef {
    laws: Laws {
        commutative: true,
        idempotent: true,
        identity: Some(laws::is_all_bits),
        absorbing: Some(laws::is_whole_zero),
        ..Laws::NONE
    },
    ..row("bit_and", |cx| Ok(match_int!(cx.operands[0].buffer(), a => zip(cx, a, Bits::and))))
};
/// `a | b`
static BIT_OR: OpDef = OpDef {
    laws: Laws {
        commutative: true,
        idempotent: true,
        identity: Some(laws::is_whole_zero),
        absorbing: Some(laws::is_all_bits),
        ..Laws::NONE
    },
    ..row("bit_or", |cx| Ok(match_int!(cx.operands[0].buffer(), a => zip(cx, a, Bits::or))))
};
/// `a ^ b`
static BIT_XOR: OpDef = OpDef {
    laws: Laws { commutative: true, identity: Some(laws::is_whole_zero), ..Laws::NONE },
    ..row("bit_xor", |cx| Ok(match_int!(cx.operands[0].buffer(), a => zip(cx, a, Bits::xor))))
};
/// `!a`
static BIT_NOT: OpDef = OpDef {
    laws: Laws { involution: true, ..Laws::NONE },
    arity: Arity::Exactly(1),
    ..row("bit_not", |cx| Ok(match_int!(cx.operands[0].buffer(), a => cx.result(elements::map(a, Bits::inverted)))))
};
/// `a << b`
static SHIFT_LEFT: OpDef = OpDef {
    laws: Laws { identity: Some(laws::is_whole_zero), ..Laws::NONE },
    ..row("shift_left", |cx| Ok(match_int!(cx.operands[0].buffer(), a => zip(cx, a, Bits::shifted_left))))
};
/// `a >> b`
static SHIFT_RIGHT: OpDef = OpDef {
    laws: Laws { identity: Some(laws::is_whole_zero), ..Laws::NONE },
    ..row("shift_right", |cx| Ok(match_int!(cx.operands[0].buffer(), a => zip(cx, a, Bits::shifted_right))))
};

macro_rules! any_methods {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {
        impl AnyValue {
            $(
                $(#[$doc])*
                #[track_caller]
                pub fn $name(self, other: AnyValue) -> AnyValue {
                    let (a, b) = broadcast_pair(stringify!($name), self, other);
                    trace::emit(prim::$op, &[a, b], Attrs::none())
                }
            )*
        }
    };
}
any_methods! {
    /// Computes `a & b` of integers, broadcast to their common shape.
    bit_and BIT_AND;
    /// Computes `a | b` of integers, broadcast to their common shape.
    bit_or BIT_OR;
    /// Computes `a ^ b` of integers, broadcast to their common shape.
    bit_xor BIT_XOR;
    /// Computes `a << b` of integers, broadcast to their common shape. The count is taken modulo
    /// the number of bits.
    shift_left SHIFT_LEFT;
    /// Computes `a >> b` of integers, broadcast to their common shape. The count is taken modulo
    /// the number of bits.
    shift_right SHIFT_RIGHT;
}

impl AnyValue {
    /// Computes `!a` of integers.
    #[track_caller]
    pub fn bit_not(self) -> AnyValue {
        trace::emit(prim::BIT_NOT, &[self], Attrs::none())
    }
}
