//! `assert!`, `assert_eq!` and `assert_ne!`.

use super::Condition;
use crate::{Tensor, trace};
use std::fmt;

/// A condition that can be asserted: a `bool` at once, a `Tensor<bool>` when the graph runs.
pub trait Assertable: Condition {
    /// Whether the message is needed.
    fn needs_message(&self) -> bool;
    /// Fails, or records the assertion.
    fn check(self, message: String);
    /// Of the comparison of two values by `==`: asserts that all of them are equal, or that not all are.
    fn check_equality(self, sides: &Sides<'_>);
}

/// The two sides of an `assert_eq!` or `assert_ne!`.
#[derive(Clone, Copy)]
pub struct Sides<'a> {
    /// Whether they are to be equal.
    pub equal: bool,
    /// What was written on the left and on the right.
    pub written: [&'a str; 2],
    /// The values.
    pub values: [&'a dyn fmt::Debug; 2],
    /// The message of the user.
    pub message: Option<&'a dyn Fn() -> String>,
}

impl fmt::Debug for Sides<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.head(self.written))
    }
}

impl Sides<'_> {
    fn head(&self, [left, right]: [&str; 2]) -> String {
        let operator = if self.equal { "==" } else { "!=" };
        let message = self.message.map_or_else(String::new, |message| format!(": {}", message()));
        format!("assertion `{left} {operator} {right}` failed{message}")
    }
}

impl Assertable for bool {
    #[inline]
    fn needs_message(&self) -> bool {
        !*self
    }
    #[track_caller]
    fn check(self, message: String) {
        assert!(self, "{message}");
    }
    #[track_caller]
    fn check_equality(self, sides: &Sides<'_>) {
        let [left, right] = sides.values;
        assert!(self == sides.equal, "{}\n  left: {left:?}\n right: {right:?}", sides.head(["left", "right"]));
    }
}

impl Assertable for Tensor<bool> {
    fn needs_message(&self) -> bool {
        true
    }
    #[track_caller]
    fn check(self, message: String) {
        trace::assert(self.untyped(), message);
    }
    #[track_caller]
    fn check_equality(self, sides: &Sides<'_>) {
        let all = if self.rank() > 0 { self.all() } else { self };
        let holds = if sides.equal { all } else { !all };
        trace::assert(holds.untyped(), sides.head(sides.written));
    }
}

/// An `assert!` between its condition and its message.
#[must_use]
#[derive(Debug)]
pub struct Assert<C: Assertable>(C);

impl<C: Assertable> Assert<C> {
    /// After the condition.
    #[inline]
    pub fn new(condition: C) -> Assert<C> {
        Assert(condition)
    }

    /// Whether the message is needed: host assertions that hold need none.
    #[inline]
    pub fn needs_message(&self) -> bool {
        self.0.needs_message()
    }

    /// Fails, or records the assertion.
    #[track_caller]
    pub fn check(self, message: String) {
        self.0.check(message);
    }

    /// Of the comparison of two values by `==`: fails, or records the assertion.
    #[track_caller]
    pub fn check_equality(self, sides: &Sides<'_>) {
        self.0.check_equality(sides);
    }
}

/// What stands for a panic under a condition that is a tensor: the step fails where it is reached.
#[track_caller]
pub fn fails(message: String) {
    trace::assert(crate::scalar(false).untyped(), message);
}
