//! Checks for code that cannot be under a tensor condition.
//!
//! Some things are possible only while tracing. For example, a macro of unknown semantics would run
//! once, whatever value the tensor has. So for each construct around such code, `#[graph]` emits a
//! call of one of these methods. Their bounds hold only if the condition is a `bool`.

use super::{Condition, If, Logical, While};

/// Conditions under which a jump may be inside a larger expression.
#[diagnostic::on_unimplemented(
    message = "a jump under a tensor condition cannot be part of a larger expression",
    label = "the enclosing condition is a tensor",
    note = "make the enclosing `if` or `match` a statement of its own: `let value = if .. {{ .. }} else {{ .. }};`",
    note = "instead of a `while` with a jump in its condition, write a `loop` that starts with the jump"
)]
pub trait AllowsNestedJump {}
#[diagnostic::do_not_recommend]
impl AllowsNestedJump for bool {}

/// Conditions under which `.await` may be used.
#[diagnostic::on_unimplemented(
    message = "`.await` cannot be used under a tensor condition",
    label = "the enclosing condition is a tensor",
    note = "await the value before the `if` or `while`"
)]
pub trait AllowsAwait {}
#[diagnostic::do_not_recommend]
impl AllowsAwait for bool {}

/// Conditions under which an unknown macro may be used.
#[diagnostic::on_unimplemented(
    message = "this macro cannot be used under a tensor condition",
    label = "the enclosing condition is a tensor",
    note = "it would run once, while tracing, regardless of the condition: call it outside the `if` or `while`, or \
            write its expansion by hand",
    note = "`assert!`, `assert_eq!`, `assert_ne!`, `println!` and `dbg!` are staged"
)]
pub trait AllowsMacro {}
#[diagnostic::do_not_recommend]
impl AllowsMacro for bool {}

macro_rules! checks {
    ($($construct:ident)*) => {$(
        impl<C: Condition> $construct<C> {
            /// Checks that a jump inside a larger expression may be used here.
            #[inline]
            pub fn allows_nested_jump(&self)
            where
                C: AllowsNestedJump,
            {
            }
            /// Checks that `.await` may be used here.
            #[inline]
            pub fn allows_await(&self)
            where
                C: AllowsAwait,
            {
            }
            /// Checks that an unknown macro may be used here.
            #[inline]
            pub fn allows_macro(&self)
            where
                C: AllowsMacro,
            {
            }
        }
    )*};
}
checks!(If While Logical);
