//! What may not stand under a condition that is a tensor.
//!
//! A native `break` or `return` in a staged arm would end tracing early, and a macro of unknown meaning would run once while
//! tracing. So `#[graph]` puts a call of one of these functions beside each, for every construct around it; the bounds hold
//! only where the condition is a `bool`.

use super::{Condition, If, Logical, While};

/// A construct with a condition.
pub trait Construct {
    /// The type of the condition.
    type Condition;
}
impl<C: Condition> Construct for If<C> {
    type Condition = C;
}
impl<C: Condition> Construct for While<C> {
    type Condition = C;
}
impl<C: Condition> Construct for Logical<C> {
    type Condition = C;
}

/// Conditions under which `break` may stand.
#[diagnostic::on_unimplemented(
    message = "`break` under a condition that is a tensor is not staged yet",
    label = "the condition around it is a tensor",
    note = "put what it depends on into the condition of the loop: `while more && ..`"
)]
pub trait AllowsBreak {}
impl AllowsBreak for bool {}

/// Checks that `break` may stand in a construct.
#[inline]
pub fn allows_break<K: Construct<Condition: AllowsBreak>>(_construct: &K) {}

/// Conditions under which `continue` may stand.
#[diagnostic::on_unimplemented(
    message = "`continue` under a condition that is a tensor is not staged yet",
    label = "the condition around it is a tensor",
    note = "put the rest of the body into an `if`"
)]
pub trait AllowsContinue {}
impl AllowsContinue for bool {}

/// Checks that `continue` may stand in a construct.
#[inline]
pub fn allows_continue<K: Construct<Condition: AllowsContinue>>(_construct: &K) {}

/// Conditions under which `return` may stand.
#[diagnostic::on_unimplemented(
    message = "`return` under a condition that is a tensor is not staged yet",
    label = "the condition around it is a tensor",
    note = "give the value at the end of the function, with `if` and `else`"
)]
pub trait AllowsReturn {}
impl AllowsReturn for bool {}

/// Checks that `return` may stand in a construct.
#[inline]
pub fn allows_return<K: Construct<Condition: AllowsReturn>>(_construct: &K) {}

/// Conditions under which `?` may stand.
#[diagnostic::on_unimplemented(
    message = "`?` under a condition that is a tensor is not staged yet",
    label = "the condition around it is a tensor",
    note = "take the value out of the `Result` or `Option` before the `if` or `while`"
)]
pub trait AllowsQuestion {}
impl AllowsQuestion for bool {}

/// Checks that `?` may stand in a construct.
#[inline]
pub fn allows_question<K: Construct<Condition: AllowsQuestion>>(_construct: &K) {}

/// Conditions under which `.await` may stand.
#[diagnostic::on_unimplemented(
    message = "`.await` under a condition that is a tensor is not staged yet",
    label = "the condition around it is a tensor",
    note = "wait before the `if` or `while`"
)]
pub trait AllowsAwait {}
impl AllowsAwait for bool {}

/// Checks that `.await` may stand in a construct.
#[inline]
pub fn allows_await<K: Construct<Condition: AllowsAwait>>(_construct: &K) {}

/// Conditions under which a panic may stand.
#[diagnostic::on_unimplemented(
    message = "a panic under a condition that is a tensor is not staged yet",
    label = "the condition around it is a tensor",
    note = "both branches are traced, so it would always happen; use `assert!` on the tensor"
)]
pub trait AllowsPanic {}
impl AllowsPanic for bool {}

/// Checks that a panic may stand in a construct.
#[inline]
pub fn allows_panic<K: Construct<Condition: AllowsPanic>>(_construct: &K) {}

/// Conditions under which this macro may stand.
#[diagnostic::on_unimplemented(
    message = "this macro under a condition that is a tensor is not staged yet",
    label = "the condition around it is a tensor",
    note = "it would run once, while tracing, whatever the tensor holds; call it outside of the `if` or `while`"
)]
pub trait AllowsMacro {}
impl AllowsMacro for bool {}

/// Checks that this macro may stand in a construct.
#[inline]
pub fn allows_macro<K: Construct<Condition: AllowsMacro>>(_construct: &K) {}
