//! Words and numbers of the text form. The parser reads back bitwise what the printer writes.
//!
//! Floats are written in the shortest form that reads back bitwise identical. `nan` is the quiet
//! NaN without payload. Any other NaN is written as its bits, for example `nan0xffc00000`.

use crate::halves::Half;
use crate::{Buffer, Bytes, DType, bf16, f16};
use std::convert::identity;
use std::fmt::{self, Write};
use std::str::FromStr;

/// An element type with a text form.
pub(super) trait Literal: Sized {
    fn write(&self, to: &mut impl Write) -> fmt::Result;
    /// Parses an element. Returns `None` if the word is not one of this type.
    fn read(word: &str) -> Option<Self>;
}

/// For each type: its quiet NaN, and how finite numbers are printed and parsed.
macro_rules! float_literal {
    ($($t:ident $quiet_nan:literal $shown:expr, $parsed:expr;)*) => {$(
        impl Literal for $t {
            fn write(&self, to: &mut impl Write) -> fmt::Result {
                match self.to_bits() {
                    $quiet_nan => to.write_str("nan"),
                    bits if self.is_nan() => write!(to, "nan{bits:#x}"),
                    _ => write!(to, "{:?}", $shown(*self)),
                }
            }

            fn read(word: &str) -> Option<$t> {
                match word {
                    "nan" => return Some($t::from_bits($quiet_nan)),
                    "inf" => return Some($t::INFINITY),
                    "-inf" => return Some($t::NEG_INFINITY),
                    _ => {}
                }
                if let Some(hex) = word.strip_prefix("nan0x") {
                    return is_hex(hex).then(|| hex_value(hex).map($t::from_bits)).flatten().filter(|x| x.is_nan());
                }
                let digits = word.strip_prefix('-').unwrap_or(word);
                let is_number = digits.starts_with(|c: char| c.is_ascii_digit());
                is_number.then(|| $parsed(word)).flatten().filter(|x: &$t| x.is_finite())
            }
        }
    )*};
}

float_literal! {
    f32 0x7fc0_0000 identity, parsed;
    f64 0x7ff8_0000_0000_0000 identity, parsed;
    f16 0x7e00 Half::shortest, parsed_half;
    bf16 0x7fc0 Half::shortest, parsed_half;
}

fn parsed<T: FromStr>(word: &str) -> Option<T> {
    word.parse().ok()
}

/// Parses a number and rounds it to the nearest 16-bit float, which is infinite if the number is
/// too large.
fn parsed_half<T: crate::Float>(word: &str) -> Option<T> {
    parsed(word).map(T::from_f64)
}

fn is_hex(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Parses hexadecimal digits, if the target type can hold the value.
fn hex_value<T: TryFrom<u64>>(hex: &str) -> Option<T> {
    u64::from_str_radix(hex, 16).ok().and_then(|bits| bits.try_into().ok())
}

macro_rules! plain_literal {
    ($($t:ident)*) => {$(
        impl Literal for $t {
            fn write(&self, to: &mut impl Write) -> fmt::Result {
                write!(to, "{self}")
            }

            fn read(word: &str) -> Option<$t> {
                word.parse().ok()
            }
        }
    )*};
}
plain_literal!(i32 i64 u32 u8 bool);

/// A string is written like a byte string of Rust: `b"a\n\xff"`.
impl Literal for Bytes {
    fn write(&self, to: &mut impl Write) -> fmt::Result {
        write!(to, "{self:?}")
    }

    fn read(word: &str) -> Option<Bytes> {
        let mut rest = word.strip_prefix("b\"")?.strip_suffix('"')?.bytes();
        let mut bytes = Vec::with_capacity(rest.len());
        while let Some(byte) = rest.next() {
            bytes.push(match byte {
                b'\\' => match rest.next()? {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'0' => 0,
                    b'x' => {
                        let digits = [rest.next()?, rest.next()?];
                        let hex = std::str::from_utf8(&digits).ok().filter(|hex| is_hex(hex))?;
                        hex_value(hex)?
                    }
                    escaped @ (b'\\' | b'"' | b'\'') => escaped,
                    _ => return None,
                },
                b'"' => return None,
                other => other,
            });
        }
        Some(bytes.into())
    }
}

/// Parses words as a buffer of one element type, or returns the first invalid word.
pub(crate) fn read_elements<W: AsRef<str>>(dtype: DType, words: &[W]) -> Result<Buffer, usize> {
    crate::match_dtype!(dtype, T => {
        let mut data = Vec::with_capacity(words.len());
        for (i, word) in words.iter().enumerate() {
            data.push(<T as Literal>::read(word.as_ref()).ok_or(i)?);
        }
        Ok(crate::Element::into_buffer(data))
    })
}

/// Returns whether a character may occur in a word: a name or a number.
pub(super) fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}

/// Returns whether a word is a name that needs no quotes.
pub(super) fn is_plain_name(word: &str) -> bool {
    word.starts_with(|c: char| is_word_char(c) && !c.is_ascii_digit()) && word.chars().all(is_word_char)
}

/// A name in the text form, quoted unless it is plain.
pub(crate) struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_plain_name(self.0) { f.write_str(self.0) } else { write!(f, "{:?}", self.0) }
    }
}

/// A float in the text form.
pub(super) struct FloatLiteral(pub f64);

impl fmt::Display for FloatLiteral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn round_trip(x: f32, text: &str) {
        let mut written = String::new();
        x.write(&mut written).unwrap();
        assert_eq!(written, text);
        assert_eq!(f32::read(text).map(f32::to_bits), Some(x.to_bits()), "{text}");
    }

    #[test]
    fn floats_keep_their_bits() {
        round_trip(1.0, "1.0");
        round_trip(-0.0, "-0.0");
        round_trip(0.1, "0.1");
        round_trip(f32::MIN_POSITIVE / 2.0, "5.877472e-39");
        round_trip(f32::MAX, "3.4028235e38");
        round_trip(f32::INFINITY, "inf");
        round_trip(f32::NEG_INFINITY, "-inf");
        round_trip(f32::from_bits(0x7fc0_0000), "nan");
        round_trip(f32::from_bits(0xffc0_0001), "nan0xffc00001");
    }

    /// All values of both types survive a round trip through the text form.
    #[test]
    fn halves_keep_their_bits() {
        fn check<T: Half + Literal>(from_bits: fn(u16) -> T, to_bits: fn(T) -> u16, longest: usize) {
            for bits in 0..=u16::MAX {
                let mut written = String::new();
                from_bits(bits).write(&mut written).unwrap();
                assert_eq!(T::read(&written).map(to_bits), Some(bits), "{written}");
                let digits = written.split('e').next().unwrap_or_default().trim_start_matches(['-', '0', '.']);
                let n = digits.trim_end_matches(['0', '.']).bytes().filter(u8::is_ascii_digit).count();
                assert!(n <= longest || written.starts_with("nan"), "{written}");
            }
        }
        check(f16::from_bits, f16::to_bits, 5);
        check(bf16::from_bits, bf16::to_bits, 4);
        assert_eq!(f16::read("65504"), Some(f16::MAX));
        assert_eq!(f16::read("65520"), None);
        assert_eq!(f16::from_f32(0.1).shortest().to_string(), "0.1");
    }

    #[test]
    fn words_that_are_no_elements_are_refused() {
        for word in ["", "-", "NaN", "infinity", "nan0x", "nan0x0", "nan0x+7fc00001", "1e999", "1.0.0", ".5"] {
            assert_eq!(f32::read(word), None, "{word}");
        }
        assert_eq!(u8::read("256"), None);
        assert_eq!(bool::read("1"), None);
    }

    #[test]
    fn names_are_quoted_where_needed() {
        assert_eq!(Quoted("layer.0.weight").to_string(), "layer.0.weight");
        assert_eq!(Quoted("0").to_string(), "\"0\"");
        assert_eq!(Quoted("a b\n").to_string(), "\"a b\\n\"");
        assert_eq!(Quoted("").to_string(), "\"\"");
    }
}
