//! `assert!`, `assert_eq!` and `assert_ne!`.

use super::{Condition, Message, message};
use crate::Tensor;
use std::fmt;

/// A condition that can be asserted: a `bool` immediately, a `Tensor<bool>` when the graph runs.
pub trait Assertable: Condition {
    /// Returns whether the message is needed.
    fn needs_message(&self) -> bool;
    /// Fails, or records the assertion.
    fn check(self, message: Message);
    /// Asserts, for the result of a comparison by `==`, that all elements are equal, or that not
    /// all are.
    fn check_equality(self, sides: &Sides<'_>);
}

/// The two sides of an `assert_eq!` or `assert_ne!`.
#[derive(Clone, Copy)]
pub struct Sides<'a> {
    /// Whether they must be equal.
    pub equal: bool,
    /// The source text of the left and right side.
    pub written: [&'a str; 2],
    /// The values.
    pub values: [&'a dyn fmt::Debug; 2],
    /// The user's message.
    pub message: Option<&'a dyn Fn() -> Message>,
}

impl fmt::Debug for Sides<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [left, right] = self.written;
        write!(f, "{left} {} {right}", if self.equal { "==" } else { "!=" })
    }
}

impl Sides<'_> {
    /// Returns the message of a failure.
    fn message(&self) -> Message {
        let [left, right] = self.values;
        let own = self.message.map_or_else(Message::default, |own| Message::from(": ").then(own()));
        let head = Message::from(&*format!("assertion `{self:?}` failed")).then(own);
        head.then(message(format_args!("\n  left: {left:?}\n right: {right:?}")))
    }
}

impl Assertable for bool {
    #[inline]
    fn needs_message(&self) -> bool {
        !*self
    }
    #[track_caller]
    fn check(self, message: Message) {
        assert!(self, "{}", message.text());
    }
    #[track_caller]
    fn check_equality(self, sides: &Sides<'_>) {
        let sides = Sides { written: ["left", "right"], ..*sides };
        assert!(self == sides.equal, "{}", sides.message().text());
    }
}

impl Assertable for Tensor<bool> {
    fn needs_message(&self) -> bool {
        true
    }
    #[track_caller]
    fn check(self, message: Message) {
        message.unless(self.untyped());
    }
    #[track_caller]
    fn check_equality(self, sides: &Sides<'_>) {
        let all = if self.rank() > 0 { self.all() } else { self };
        sides.message().unless(if sides.equal { all } else { !all }.untyped());
    }
}

/// An `assert!` between its condition and its message.
#[must_use]
#[derive(Debug)]
pub struct Assert<C: Assertable>(C);

impl<C: Assertable> Assert<C> {
    /// Creates the assertion after its condition.
    #[inline]
    pub fn new(condition: C) -> Assert<C> {
        Assert(condition)
    }

    /// Returns whether the message is needed. Host assertions that hold need none.
    #[inline]
    pub fn needs_message(&self) -> bool {
        self.0.needs_message()
    }

    /// Fails, or records the assertion.
    #[track_caller]
    pub fn check(self, message: Message) {
        self.0.check(message);
    }

    /// Fails, or records the assertion, for the result of a comparison by `==`.
    #[track_caller]
    pub fn check_equality(self, sides: &Sides<'_>) {
        self.0.check_equality(sides);
    }
}

/// Replaces a panic under a tensor condition: the step fails when it is reached.
#[track_caller]
pub fn fails(message: Message) {
    message.unless(crate::scalar(false).untyped());
}
