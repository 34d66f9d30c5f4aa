//! Elementwise operations on the bits of integers: `&`, `|`, `^`, `!`, `<<`, `>>`.
//!
//! Like all integer arithmetic, shifts wrap: the count is taken modulo the number of bits, as in
//! `wrapping_shl`. So a shift never fails, and a negative count is equivalent to a positive one.
//! `>>` keeps the sign of a signed integer.

use super::elementwise_binary::broadcast_pair;
use super::infer::{Class, common};
use super::number::match_types;
use super::scalar_functions::{ScalarSemantics, functions};
use super::*;
use crate::ir::Attrs;
use crate::{Element, HostTensor};

family!(BIT_AND, BIT_OR, BIT_XOR, BIT_NOT, SHIFT_LEFT, SHIFT_RIGHT);

functions! { ($) bit_functions:
    BIT_AND Bits |x, y| x.bit_and(y);
    BIT_OR Bits |x, y| x.bit_or(y);
    BIT_XOR Bits |x, y| x.bit_xor(y);
    BIT_NOT Bits |x| x.bit_not();
    SHIFT_LEFT Bits |x, y| x.shift_left(y);
    SHIFT_RIGHT Bits |x, y| x.shift_right(y);
}

fn zip<T: Element + Copy>(cx: &EvalCx<'_>, a: &[T], f: fn(T, T) -> T) -> HostTensor {
    cx.result(elements::zip(a, cx.operands[1].data(), f))
}

/// Returns the definition of an operation on two tensors of integers.
const fn row(name: &'static str, semantics: &ScalarSemantics) -> OpDef {
    OpDef {
        name,
        arity: Arity::Exactly(2),
        attrs: &[],
        infer: |cx| Ok(common(cx, Class::Int)?.into()),
        eval: semantics.eval,
        grad: Grad::Zero("the bits of integers have no derivative"),
        exactness: Exactness::Exact,
        class: semantics.class(),
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
    ..row("bit_and", &semantics::BIT_AND)
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
    ..row("bit_or", &semantics::BIT_OR)
};
/// `a ^ b`
static BIT_XOR: OpDef = OpDef {
    laws: Laws { commutative: true, identity: Some(laws::is_whole_zero), ..Laws::NONE },
    ..row("bit_xor", &semantics::BIT_XOR)
};
/// `!a`
static BIT_NOT: OpDef = OpDef {
    laws: Laws { involution: true, ..Laws::NONE },
    arity: Arity::Exactly(1),
    ..row("bit_not", &semantics::BIT_NOT)
};
/// `a << b`
static SHIFT_LEFT: OpDef = OpDef {
    laws: Laws { identity: Some(laws::is_whole_zero), ..Laws::NONE },
    ..row("shift_left", &semantics::SHIFT_LEFT)
};
/// `a >> b`
static SHIFT_RIGHT: OpDef = OpDef {
    laws: Laws { identity: Some(laws::is_whole_zero), ..Laws::NONE },
    ..row("shift_right", &semantics::SHIFT_RIGHT)
};

macro_rules! any_methods {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {
        impl<C: ValueCx> AnyValue<C> {
            $(
                $(#[$doc])*
                #[track_caller]
                pub fn $name(self, other: AnyValue<C>) -> AnyValue<C> {
                    let (a, b) = broadcast_pair(stringify!($name), self, other);
                    emit(prim::$op, &[a, b], Attrs::none())
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

impl<C: ValueCx> AnyValue<C> {
    /// Computes `!a` of integers.
    #[track_caller]
    pub fn bit_not(self) -> AnyValue<C> {
        emit(prim::BIT_NOT, &[self], Attrs::none())
    }
}
