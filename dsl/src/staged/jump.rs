//! Checks for code that cannot be under a tensor condition.
//!
//! Some things are possible only while tracing. For example, a macro of unknown semantics would run
//! once, whatever value the tensor has. So for each construct around such code, `#[graph]` emits a
//! call of one of these methods. Their bounds hold only if the condition is a `bool`.

use super::{Condition, If, Logical, While};

/// Conditions under which a jump may be inside of a larger expression.
#[diagnostic::on_unimplemented(
    message = "a jump under a condition that is a tensor cannot stand inside of a larger expression",
    label = "the condition around it is a tensor",
    note = "give the `if` or `match` around it a statement of its own: `let value = if .. {{ .. }} else {{ .. }};`",
    note = "in place of a `while` with a jump in its condition, write a `loop` that begins with the jump"
)]
pub trait AllowsNestedJump {}
#[diagnostic::do_not_recommend]
impl AllowsNestedJump for bool {}

/// Conditions under which `.await` may be used.
#[diagnostic::on_unimplemented(
    message = "`.await` under a condition that is a tensor cannot be staged",
    label = "the condition around it is a tensor",
    note = "wait before the `if` or `while`"
)]
pub trait AllowsAwait {}
#[diagnostic::do_not_recommend]
impl AllowsAwait for bool {}

/// Conditions under which an unknown macro may be used.
#[diagnostic::on_unimplemented(
    message = "this macro cannot stand under a condition that is a tensor",
    label = "the condition around it is a tensor",
    note = "it would run once, while tracing, whatever the tensor holds: call it outside of the `if` or `while`, or write out what it does",
    note = "`assert!`, `assert_eq!`, `assert_ne!`, `println!` and `dbg!` are staged"
)]
pub trait AllowsMacro {}
#[diagnostic::do_not_recommend]
impl AllowsMacro for bool {}

macro_rules! checks {
    ($($construct:ident)*) => {$(
        impl<C: Condition> $construct<C> {
            /// Checks that a jump inside of a larger expression may be used here.
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
