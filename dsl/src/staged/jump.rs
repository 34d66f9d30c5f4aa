//! What may not stand under a condition that is a tensor.
//!
//! A native `break` or `return` in a staged arm would end tracing early, and a macro of unknown meaning would run once while
//! tracing. So `#[graph]` puts a call of one of these methods beside each, for every construct around it; their bounds hold
//! only where the condition is a `bool`.

use super::{Condition, If, Logical, While};

/// Conditions under which `break` may stand.
#[diagnostic::on_unimplemented(
    message = "`break` under a condition that is a tensor is not staged yet",
    label = "the condition around it is a tensor",
    note = "put what it depends on into the condition of the loop: `while more && ..`"
)]
pub trait AllowsBreak {}
#[diagnostic::do_not_recommend]
impl AllowsBreak for bool {}

/// Conditions under which `continue` may stand.
#[diagnostic::on_unimplemented(
    message = "`continue` under a condition that is a tensor is not staged yet",
    label = "the condition around it is a tensor",
    note = "put the rest of the body into an `if`"
)]
pub trait AllowsContinue {}
#[diagnostic::do_not_recommend]
impl AllowsContinue for bool {}

/// Conditions under which `return` may stand.
#[diagnostic::on_unimplemented(
    message = "`return` under a condition that is a tensor is not staged yet",
    label = "the condition around it is a tensor",
    note = "give the value at the end of the function, with `if` and `else`"
)]
pub trait AllowsReturn {}
#[diagnostic::do_not_recommend]
impl AllowsReturn for bool {}

/// Conditions under which `?` may stand.
#[diagnostic::on_unimplemented(
    message = "`?` under a condition that is a tensor is not staged yet",
    label = "the condition around it is a tensor",
    note = "take the value out of the `Result` or `Option` before the `if` or `while`"
)]
pub trait AllowsQuestion {}
#[diagnostic::do_not_recommend]
impl AllowsQuestion for bool {}

/// Conditions under which `.await` may stand.
#[diagnostic::on_unimplemented(
    message = "`.await` under a condition that is a tensor is not staged yet",
    label = "the condition around it is a tensor",
    note = "wait before the `if` or `while`"
)]
pub trait AllowsAwait {}
#[diagnostic::do_not_recommend]
impl AllowsAwait for bool {}

/// Conditions under which a panic may stand.
#[diagnostic::on_unimplemented(
    message = "a panic under a condition that is a tensor is not staged yet",
    label = "the condition around it is a tensor",
    note = "both branches are traced, so it would always happen; use `assert!` on the tensor"
)]
pub trait AllowsPanic {}
#[diagnostic::do_not_recommend]
impl AllowsPanic for bool {}

/// Conditions under which this macro may stand.
#[diagnostic::on_unimplemented(
    message = "this macro under a condition that is a tensor is not staged yet",
    label = "the condition around it is a tensor",
    note = "it would run once, while tracing, whatever the tensor holds; call it outside of the `if` or `while`"
)]
pub trait AllowsMacro {}
#[diagnostic::do_not_recommend]
impl AllowsMacro for bool {}

macro_rules! checks {
    ($($construct:ident)*) => {$(
        impl<C: Condition> $construct<C> {
            /// Checks that `break` may stand here.
            #[inline]
            pub fn allows_break(&self)
            where
                C: AllowsBreak,
            {
            }
            /// Checks that `continue` may stand here.
            #[inline]
            pub fn allows_continue(&self)
            where
                C: AllowsContinue,
            {
            }
            /// Checks that `return` may stand here.
            #[inline]
            pub fn allows_return(&self)
            where
                C: AllowsReturn,
            {
            }
            /// Checks that `?` may stand here.
            #[inline]
            pub fn allows_question(&self)
            where
                C: AllowsQuestion,
            {
            }
            /// Checks that `.await` may stand here.
            #[inline]
            pub fn allows_await(&self)
            where
                C: AllowsAwait,
            {
            }
            /// Checks that a panic may stand here.
            #[inline]
            pub fn allows_panic(&self)
            where
                C: AllowsPanic,
            {
            }
            /// Checks that this macro may stand here.
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
