//! `assert!`.

use super::Condition;
use crate::{Tensor, trace};

/// A condition that can be asserted: a `bool` at once, a `Tensor<bool>` when the graph runs.
pub trait Assertable: Condition {
    /// Whether the message is needed.
    fn needs_message(&self) -> bool;
    /// Fails, or records the assertion.
    fn check(self, message: String);
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
}

impl Assertable for Tensor<bool> {
    fn needs_message(&self) -> bool {
        true
    }
    #[track_caller]
    fn check(self, message: String) {
        trace::assert(self.untyped(), message);
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
}

/// What stands for a panic under a condition that is a tensor: the step fails where it is reached.
#[track_caller]
pub fn fails(message: String) {
    trace::assert(crate::scalar(false).untyped(), message);
}
