//! `println!`, `print!`, `eprintln!`, `eprint!` and `dbg!`.
//!
//! The expansion passes the arguments as `format_args!`. So the format string, its captured names
//! and its options have their usual semantics, and host values are formatted immediately. A tensor
//! in them, at any depth of a `Vec`, an `Option` or a struct with `#[derive(Debug)]`, records
//! itself and its options here and leaves a mark in the text ([`show`]). The text between the marks
//! and the options form the template of the print.
//!
//! Without a tensor and outside staged constructs, the text is printed immediately, while
//! tracing. Inside a construct it is always part of the graph, so that it appears each time that
//! part runs.
//!
//! This module does not know the syntax of format strings, which is the compiler's.

use crate::format::{FormatSpec, FormatTrait, Stream, Template, TemplatePiece};
use crate::ops::AnyValue;
use crate::trace;
use crate::{Diagnostic, Element, Loc, Tensor};
use std::cell::RefCell;
use std::fmt;

/// The start and end of a tensor's mark: characters that Unicode reserves for internal use.
const MARKS: [char; 2] = ['\u{FDD0}', '\u{FDD1}'];

thread_local! {
    /// The tensors of the texts being formatted. Texts can be nested.
    static SHOWN: RefCell<Vec<Vec<(AnyValue, FormatSpec)>>> = const { RefCell::new(Vec::new()) };
}

/// Ends a text, even if a `fmt` method of the user panics.
struct Making;

impl Making {
    fn begin() -> Making {
        SHOWN.with_borrow_mut(|s| s.push(Vec::new()));
        Making
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        SHOWN.with_borrow_mut(Vec::pop);
    }
}

/// Returns whether the text of a graph's print is being formatted.
pub(crate) fn is_making_text() -> bool {
    SHOWN.with_borrow(|s| !s.is_empty())
}

/// Writes a mark for a tensor. Returns whether there is a text to write it to.
fn show(tensor: AnyValue, kind: FormatTrait, f: &mut fmt::Formatter<'_>) -> Result<bool, fmt::Error> {
    let index = SHOWN.with_borrow_mut(|s| {
        let shown = s.last_mut()?;
        shown.push((tensor, FormatSpec::of(f, kind)));
        Some(shown.len() - 1)
    });
    let Some(index) = index else {
        return Ok(false);
    };
    write!(f, "{}{index}{}", MARKS[0], MARKS[1])?;
    Ok(true)
}

/// In `println!` and `dbg!` of a graph function, formats the values at run time. Elsewhere, formats
/// the number and type of the symbol.
impl<T: Element> fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if show(self.untyped(), FormatTrait::Debug, f)? {
            return Ok(());
        }
        write!(f, "{}: ", self.untyped().value())?;
        if trace::is_tracing() { write!(f, "{}", self.untyped().ty()) } else { write!(f, "{}", T::DTYPE) }
    }
}

macro_rules! show_values {
    ($($kind:ident)*) => {$(
        /// In `println!` of a graph function, formats the values at run time. Elsewhere it is an
        /// error, since there are no values.
        impl<T: Element> fmt::$kind for Tensor<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                if show(self.untyped(), FormatTrait::$kind, f)? { Ok(()) } else { fail_without_value() }
            }
        }
    )*};
}
show_values!(Display LowerExp UpperExp);

/// Fails because a tensor is formatted while tracing.
fn fail_without_value() -> ! {
    let error = Diagnostic::new("a tensor cannot be formatted while it has no value")
        .at(Loc::UNKNOWN, "a `Tensor` is a symbol while its function is traced")
        .help("print it with `println!` or `dbg!` in a `#[graph]` function, or return it and format the result");
    trace::fail(error)
}

/// Returns the text of the arguments as a template, and the tensors of its placeholders.
fn template(arguments: fmt::Arguments<'_>, end: &str) -> (Template, Vec<AnyValue>) {
    let making = Making::begin();
    let text = arguments.to_string();
    let shown = SHOWN.with_borrow_mut(|s| std::mem::take(s.last_mut().expect("a message is being formatted")));
    drop(making);
    let mut pieces = Vec::new();
    let mut values = Vec::new();
    let mut rest = &text[..];
    while let Some((before, after)) = rest.split_once(MARKS[0]) {
        pieces.push(TemplatePiece::Text(before.to_owned()));
        let mark = after.split_once(MARKS[1]).and_then(|(index, after)| {
            let index: usize = index.parse().ok()?;
            Some((shown.get(index)?, after))
        });
        match mark {
            Some((&(value, spec), after)) => {
                pieces.push(TemplatePiece::Value(spec));
                values.push(value);
                rest = after;
            }
            // The user's text contained the character.
            None => {
                pieces.push(TemplatePiece::Text(MARKS[0].to_string()));
                rest = after;
            }
        }
    }
    pieces.extend([rest, end].map(|text| TemplatePiece::Text(text.to_owned())));
    (Template::new(pieces), values)
}

/// Prints arguments followed by `end`, immediately or as part of the graph.
#[track_caller]
pub fn print(stream: Stream, arguments: fmt::Arguments<'_>, end: &str) {
    let (template, values) = template(arguments, end);
    if values.is_empty() && !trace::in_construct() {
        stream.write(&template.render(&[]));
    } else {
        trace::print(stream, template, &values);
    }
}

/// The message of an assertion or a panic. In the graph it may show tensors.
#[derive(Clone, Debug, Default)]
pub struct Message {
    template: Template,
    values: Vec<AnyValue>,
}

impl From<&str> for Message {
    fn from(text: &str) -> Message {
        Message { template: Template::new([TemplatePiece::Text(text.to_owned())]), values: Vec::new() }
    }
}

impl Message {
    /// Appends another message.
    #[must_use]
    pub fn then(self, other: Message) -> Message {
        let pieces = [self.template, other.template].map(|t| t.pieces().to_vec());
        Message { template: Template::new(pieces.concat()), values: [self.values, other.values].concat() }
    }

    /// Returns the text, for a failure on the host.
    ///
    /// # Errors
    /// Aborts the trace if it contains a tensor.
    #[track_caller]
    pub(super) fn text(&self) -> String {
        if !self.values.is_empty() {
            let error = Diagnostic::new("a message under a host condition cannot show a tensor")
                .at(Loc::caller(), "fails while tracing, when a tensor has no value yet")
                .help("use a tensor condition, or leave the tensor out of the message");
            trace::fail(error)
        }
        self.template.render(&[])
    }

    /// Records an assertion with this message.
    #[track_caller]
    pub(super) fn unless(self, holds: AnyValue) {
        trace::assert_showing(holds, self.template, &self.values);
    }
}

/// Returns the message of an assertion or a panic.
pub fn message(arguments: fmt::Arguments<'_>) -> Message {
    let (template, values) = template(arguments, "");
    Message { template, values }
}

/// Implements `dbg!(value)`: prints the location, the source text and the value.
#[track_caller]
pub fn dbg(written: &str, value: &dyn fmt::Debug) {
    print(Stream::Stderr, format_args!("[{}] {written} = {value:#?}", Loc::caller()), "\n");
}

/// Implements `dbg!()`: prints the location.
#[track_caller]
pub fn dbg_here() {
    print(Stream::Stderr, format_args!("[{}]", Loc::caller()), "\n");
}
