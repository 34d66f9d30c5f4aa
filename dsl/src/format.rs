//! Formatting of values as text: a [`FormatSpec`] is one placeholder of a format string, a
//! [`Template`] is a format string.
//!
//! The semantics are those of `std::fmt`, element by element: `{:.3}` of a tensor prints three
//! digits for each element. Elements are enclosed in nested brackets, with each row on its own
//! line:
//!
//! ```
//! let tensor = anabranch::HostTensor::new(vec![2, 2], vec![1.0f32, 0.5, -2.0, 3.0]);
//! assert_eq!(format!("{tensor:.2}"), "[[1.00, 0.50],\n [-2.00, 3.00]]");
//! ```
//!
//! For a tensor with more than 1000 elements, the first and last three along each long axis are
//! printed. `{:#}` prints all.
//!
//! Invariants:
//!
//! - A template prints as the text it is parsed from.
//! - A template does not depend on its destination: a [`Stream`] is stored next to it.

use crate::halves::Half;
use crate::{Bytes, HostTensor, match_buffer};
use std::fmt::{self, Write};

/// Tensors with more elements are abbreviated.
const MAX_ELEMENTS: usize = 1000;
/// The number of items printed at each end of a long axis.
const EDGE: usize = 3;

/// The maximum width and precision. With more, the standard library panics.
pub(crate) const MAX_WIDTH: usize = u16::MAX as usize;

/// The formatting trait that prints an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FormatTrait {
    /// `{}`
    #[default]
    Display,
    /// `{:?}`
    Debug,
    /// `{:e}`
    LowerExp,
    /// `{:E}`
    UpperExp,
}

/// A placeholder of a format string: how a value is formatted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FormatSpec {
    /// The formatting trait.
    pub kind: FormatTrait,
    /// The padding character. `None` means a space.
    pub fill: Option<char>,
    /// The alignment of an element in its width: `<`, `^` or `>`. By default, numbers are aligned
    /// to the right.
    pub align: Option<char>,
    /// `+`: print the sign of positive numbers, too.
    pub plus: bool,
    /// `#`: do not abbreviate long tensors. In `{:#?}` it requests multiple lines, as in
    /// `std::fmt`.
    pub alternate: bool,
    /// `0`: pad with zeros.
    pub zero: bool,
    /// The minimum number of characters of an element, at most 65,535.
    pub width: Option<usize>,
    /// The number of digits after the decimal point, at most 65,535.
    pub precision: Option<usize>,
}

impl FormatSpec {
    /// Returns the options of the formatter of a `fmt` method.
    pub fn of(f: &fmt::Formatter<'_>, kind: FormatTrait) -> FormatSpec {
        let align = f.align().map(|a| match a {
            fmt::Alignment::Left => '<',
            fmt::Alignment::Center => '^',
            fmt::Alignment::Right => '>',
        });
        FormatSpec {
            kind,
            fill: (f.fill() != ' ' && align.is_some()).then(|| f.fill()),
            align,
            plus: f.sign_plus(),
            alternate: f.alternate(),
            zero: f.sign_aware_zero_pad(),
            width: f.width(),
            precision: f.precision(),
        }
    }

    /// Formats a tensor.
    pub fn show(&self, tensor: &HostTensor) -> String {
        let mut out = String::new();
        let n: usize = tensor.shape().iter().product();
        let whole = n <= MAX_ELEMENTS || (self.alternate && self.kind == FormatTrait::Display);
        let layout = PrintLayout { spec: self, whole, rank: tensor.rank() };
        match_buffer!(tensor.buffer(), d => layout.nested(&mut out, tensor.shape(), d));
        out
    }

    /// Parses the text between the braces, without the colon.
    fn parse(text: &str) -> Option<FormatSpec> {
        let mut spec = FormatSpec::default();
        let mut rest = text;
        let is_align = |c: char| matches!(c, '<' | '^' | '>');
        let mut chars = text.chars();
        match (chars.next(), chars.next()) {
            (Some(fill), Some(align)) if is_align(align) => {
                (spec.fill, spec.align) = ((fill != ' ').then_some(fill), Some(align));
                rest = chars.as_str();
            }
            (Some(align), _) if is_align(align) => {
                spec.align = Some(align);
                rest = &text[1..];
            }
            _ => {}
        }
        let mut flag = |c| match rest.strip_prefix(c) {
            Some(r) => {
                rest = r;
                true
            }
            None => false,
        };
        (spec.plus, spec.alternate, spec.zero) = (flag('+'), flag('#'), flag('0'));
        let number = |rest: &mut &str| -> Option<Option<usize>> {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (digits, after) = rest.split_at(end);
            *rest = after;
            if digits.is_empty() { Some(None) } else { digits.parse().ok().filter(|&n| n <= MAX_WIDTH).map(Some) }
        };
        spec.width = number(&mut rest)?;
        if let Some(r) = rest.strip_prefix('.') {
            rest = r;
            spec.precision = Some(number(&mut rest)??);
        }
        spec.kind = match rest {
            "" => FormatTrait::Display,
            "?" => FormatTrait::Debug,
            "e" => FormatTrait::LowerExp,
            "E" => FormatTrait::UpperExp,
            _ => return None,
        };
        Some(spec)
    }

    /// Pads an element to its width.
    fn pad(&self, out: &mut String, text: &str, number: bool) {
        let missing = self.width.unwrap_or(0).saturating_sub(text.chars().count());
        if self.zero && number {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['-', '+'])));
            out.push_str(sign);
            out.extend(std::iter::repeat_n('0', missing));
            out.push_str(digits);
            return;
        }
        let before = match self.align {
            Some('<') => 0,
            Some('^') => missing / 2,
            Some(_) => missing,
            None => usize::from(number) * missing,
        };
        let fill = self.fill.unwrap_or(' ');
        out.extend(std::iter::repeat_n(fill, before));
        out.push_str(text);
        out.extend(std::iter::repeat_n(fill, missing - before));
    }
}

impl fmt::Display for FormatSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fill.filter(|_| self.align.is_some()).map_or(Ok(()), |c| f.write_char(c))?;
        self.align.map_or(Ok(()), |c| f.write_char(c))?;
        for (set, c) in [(self.plus, '+'), (self.alternate, '#'), (self.zero, '0')] {
            if set {
                f.write_char(c)?;
            }
        }
        self.width.map_or(Ok(()), |n| write!(f, "{n}"))?;
        self.precision.map_or(Ok(()), |n| write!(f, ".{n}"))?;
        f.write_str(match self.kind {
            FormatTrait::Display => "",
            FormatTrait::Debug => "?",
            FormatTrait::LowerExp => "e",
            FormatTrait::UpperExp => "E",
        })
    }
}

/// An element type that can be formatted.
pub(crate) trait Show {
    fn show(&self, spec: &FormatSpec, out: &mut String);
}

macro_rules! show_numbers {
    ($($t:ty)*) => {$(
        impl Show for $t {
            fn show(&self, spec: &FormatSpec, out: &mut String) {
                let text = match (spec.kind, spec.plus, spec.precision) {
                    (FormatTrait::Display, false, None) => format!("{self}"),
                    (FormatTrait::Display, true, None) => format!("{self:+}"),
                    (FormatTrait::Display, false, Some(n)) => format!("{self:.n$}"),
                    (FormatTrait::Display, true, Some(n)) => format!("{self:+.n$}"),
                    (FormatTrait::Debug, false, None) => format!("{self:?}"),
                    (FormatTrait::Debug, true, None) => format!("{self:+?}"),
                    (FormatTrait::Debug, false, Some(n)) => format!("{self:.n$?}"),
                    (FormatTrait::Debug, true, Some(n)) => format!("{self:+.n$?}"),
                    (FormatTrait::LowerExp, false, None) => format!("{self:e}"),
                    (FormatTrait::LowerExp, true, None) => format!("{self:+e}"),
                    (FormatTrait::LowerExp, false, Some(n)) => format!("{self:.n$e}"),
                    (FormatTrait::LowerExp, true, Some(n)) => format!("{self:+.n$e}"),
                    (FormatTrait::UpperExp, false, None) => format!("{self:E}"),
                    (FormatTrait::UpperExp, true, None) => format!("{self:+E}"),
                    (FormatTrait::UpperExp, false, Some(n)) => format!("{self:.n$E}"),
                    (FormatTrait::UpperExp, true, Some(n)) => format!("{self:+.n$E}"),
                };
                spec.pad(out, &text, true);
            }
        }
    )*};
}
show_numbers!(f32 f64 i32 i64 u32 u8);

/// Without a precision, these print the shortest form that reads back as the same value, which is
/// shorter than that of the `f32`.
macro_rules! show_halves {
    ($($t:ident)*) => {$(
        impl Show for crate::$t {
            fn show(&self, spec: &FormatSpec, out: &mut String) {
                let x = if spec.precision.is_none() { self.shortest() } else { self.to_f32() };
                x.show(spec, out);
            }
        }
    )*};
}
show_halves!(f16 bf16);

impl Show for bool {
    fn show(&self, spec: &FormatSpec, out: &mut String) {
        spec.pad(out, if *self { "true" } else { "false" }, false);
    }
}

/// Text is printed as it is, by `{:?}` like a byte string of Rust. The precision is the largest
/// number of characters, as of a `str`.
impl Show for Bytes {
    fn show(&self, spec: &FormatSpec, out: &mut String) {
        let mut text = if spec.kind == FormatTrait::Debug { format!("{self:?}") } else { self.to_string() };
        if let Some((end, _)) = spec.precision.and_then(|n| text.char_indices().nth(n)) {
            text.truncate(end);
        }
        spec.pad(out, &text, false);
    }
}

struct PrintLayout<'a> {
    spec: &'a FormatSpec,
    whole: bool,
    rank: usize,
}

impl PrintLayout<'_> {
    fn nested<T: Show>(&self, out: &mut String, shape: &[usize], data: &[T]) {
        let Some((&n, inner)) = shape.split_first() else {
            return data[0].show(self.spec, out);
        };
        let stride: usize = inner.iter().product();
        // The last axis is printed on one line. Items of other axes are separated by a newline for
        // each inner axis.
        let separator = match inner.len() {
            0 => ", ".to_owned(),
            axes => format!(",{}{}", "\n".repeat(axes), " ".repeat(self.rank - axes)),
        };
        let gap = if self.whole || n <= 2 * EDGE { 0..0 } else { EDGE..n - EDGE };
        out.push('[');
        for i in 0..n {
            if gap.contains(&i) && i != gap.start {
                continue;
            }
            if i > 0 {
                out.push_str(&separator);
            }
            if i == gap.start && !gap.is_empty() {
                out.push_str("...");
            } else {
                self.nested(out, inner, &data[i * stride..(i + 1) * stride]);
            }
        }
        out.push(']');
    }
}

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TemplatePiece {
    /// Literal text.
    Text(String),
    /// A placeholder for the next value.
    Value(FormatSpec),
}

/// A format string: text with placeholders, which are filled in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Template(Vec<TemplatePiece>);

impl Template {
    /// Creates a template from pieces.
    pub fn new(pieces: impl IntoIterator<Item = TemplatePiece>) -> Template {
        let mut template = Template::default();
        for piece in pieces {
            match (template.0.last_mut(), piece) {
                (Some(TemplatePiece::Text(before)), TemplatePiece::Text(text)) => before.push_str(&text),
                (_, TemplatePiece::Text(text)) if text.is_empty() => {}
                (_, piece) => template.0.push(piece),
            }
        }
        template
    }

    /// Returns the text and the placeholders, in order.
    pub fn pieces(&self) -> &[TemplatePiece] {
        &self.0
    }

    /// Returns the number of values that the template formats.
    pub fn n_values(&self) -> usize {
        self.0.iter().filter(|p| matches!(p, TemplatePiece::Value(_))).count()
    }

    /// Parses a format string.
    ///
    /// Placeholders are `{}` or `{:spec}`, for the values in order. The error names an invalid
    /// placeholder.
    ///
    /// ```
    /// use anabranch::{HostTensor, extend::Template};
    ///
    /// let template = Template::parse("loss {:.2} {{at}} {:>4}\n")?;
    /// assert_eq!(template.to_string(), "loss {:.2} {{at}} {:>4}\n");
    /// let (loss, step) = (HostTensor::scalar(0.125f64), HostTensor::scalar(7i32));
    /// assert_eq!(template.render(&[loss, step]), "loss 0.12 {at}    7\n");
    /// # Ok::<(), String>(())
    /// ```
    pub fn parse(text: &str) -> Result<Template, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, after) = rest.split_at(at);
            pieces.push(TemplatePiece::Text(before.to_owned()));
            if let Some(r) = after.strip_prefix("{{").or_else(|| after.strip_prefix("}}")) {
                pieces.push(TemplatePiece::Text(after[..1].to_owned()));
                rest = r;
                continue;
            }
            let inside = after.strip_prefix('{').and_then(|r| r.split_once('}'));
            let Some((inside, r)) = inside else {
                return Err(format!("unmatched `{}`: write it twice to print it", &after[..1]));
            };
            let spec = if inside.is_empty() {
                Some(FormatSpec::default())
            } else {
                inside.strip_prefix(':').and_then(FormatSpec::parse)
            };
            pieces
                .push(TemplatePiece::Value(spec.ok_or_else(|| format!("`{{{inside}}}` is not a valid placeholder"))?));
            rest = r;
        }
        pieces.push(TemplatePiece::Text(rest.to_owned()));
        Ok(Template::new(pieces))
    }

    /// Formats the text with the given values.
    ///
    /// # Panics
    /// Panics if there are fewer values than placeholders.
    pub fn render(&self, values: &[HostTensor]) -> String {
        let mut values = values.iter();
        let mut out = String::new();
        for piece in &self.0 {
            match piece {
                TemplatePiece::Text(text) => out.push_str(text),
                TemplatePiece::Value(spec) => {
                    out.push_str(&spec.show(values.next().expect("there is a value for each placeholder")))
                }
            }
        }
        out
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in &self.0 {
            match piece {
                TemplatePiece::Text(text) => f.write_str(&text.replace('{', "{{").replace('}', "}}"))?,
                TemplatePiece::Value(spec) if *spec == FormatSpec::default() => f.write_str("{}")?,
                TemplatePiece::Value(spec) => write!(f, "{{:{spec}}}")?,
            }
        }
        Ok(())
    }
}

/// The destination of printed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// The standard output.
    Stdout,
    /// The standard error.
    Stderr,
}

impl Stream {
    /// Returns the name in the text form of graphs.
    pub fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }

    /// Returns the stream with the given name.
    pub fn by_name(name: &str) -> Option<Stream> {
        [Stream::Stdout, Stream::Stderr].into_iter().find(|s| s.name() == name)
    }

    /// Writes text to the stream of this process.
    pub fn write(self, text: &str) {
        match self {
            Stream::Stdout => print!("{text}"),
            Stream::Stderr => eprint!("{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scalar_is_written_as_the_standard_library_writes_it() {
        macro_rules! same {
            ($($spec:literal)*) => {$(
                for x in [1.5f32, -0.25, 100.0, f32::NAN, f32::INFINITY] {
                    let template = Template::parse($spec).unwrap();
                    assert_eq!(template.to_string(), $spec);
                    assert_eq!(template.render(&[HostTensor::scalar(x)]), format!($spec, x), "{x} in {}", $spec);
                    assert_eq!(format!($spec, HostTensor::scalar(x)), format!($spec, x), "{x} in {}", $spec);
                }
            )*};
        }
        same!("{}" "{:.2}" "{:8.3}" "{:<8}|" "{:^9.1}" "{:*>9}" "{:+}" "{:08.2}" "{:+08.2}" "{:-^12}");
        let show = |spec: &str, t| Template::parse(spec).unwrap().render(&[t]);
        assert_eq!(show("{:?} {{}}", HostTensor::scalar(1.0f32)), format!("{:?} {{}}", 1.0f32));
        assert_eq!(show("{:.3e}", HostTensor::scalar(12345.0f64)), format!("{:.3e}", 12345.0f64));
        assert_eq!(show("{:E}", HostTensor::scalar(12345i32)), format!("{:E}", 12345i32));
        assert_eq!(show("{:>6}|{{", HostTensor::scalar(true)), format!("{:>6}|{{", true));
        assert_eq!(show("{:6}|", HostTensor::scalar(true)), format!("{:6}|", true));
    }

    #[test]
    fn tensors_have_nested_brackets() {
        let numbers = |shape: &[usize]| {
            let n: usize = shape.iter().product();
            HostTensor::new(shape.to_vec(), (0..n as i32).collect::<Vec<_>>())
        };
        assert_eq!(numbers(&[3]).to_string(), "[0, 1, 2]");
        assert_eq!(format!("{:>2}", numbers(&[2, 2])), "[[ 0,  1],\n [ 2,  3]]");
        assert_eq!(numbers(&[2, 1, 2]).to_string(), "[[[0, 1]],\n\n [[2, 3]]]");
        assert_eq!(numbers(&[0]).to_string(), "[]");
        assert_eq!(numbers(&[2, 0]).to_string(), "[[],\n []]");
    }

    #[test]
    fn long_tensors_are_abbreviated_unless_all_is_asked_for() {
        let long = HostTensor::new(vec![1001], (0..1001).collect::<Vec<i32>>());
        assert_eq!(long.to_string(), "[0, 1, 2, ..., 998, 999, 1000]");
        assert_eq!(format!("{long:#}").matches(',').count(), 1000);
        let rows = HostTensor::new(vec![600, 2], (0..1200).collect::<Vec<i32>>());
        let text = rows.to_string();
        assert!(text.starts_with("[[0, 1],\n [2, 3],\n [4, 5],\n ...,\n [1194, 1195],"), "{text}");
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for text in ["{", "}", "a } b", "{x}", "{:x}", "{:.}", "{0}", "{:65536}", "{:.65536}"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
    }
}
