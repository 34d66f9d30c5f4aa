//! Strings from and to other values: numbers, hash buckets and base64.
//!
//! Sources: base64 is the URL-safe alphabet of RFC 4648, §5. Hashes are `Fingerprint64` of FarmHash
//! 1.1 (`farmhash::Fingerprint64`, by Geoff Pike), the one of `tf.strings.to_hash_bucket_fast`.

use super::infer::{Class, common};
use super::strings::{StringsBuilder, from_strings, of_strings, place, row, shown, trimmed};
use super::*;
use crate::format::{FormatSpec, Show};
use crate::ir::Attrs;
use crate::{Buffer, Bytes, DType, Element, Float, HostTensor, Numeric, Plain, Tensor, bf16, f16};
use std::str::FromStr;

family!(PARSE, FORMAT, HASH_BUCKET, ENCODE_BASE64, DECODE_BASE64);

/// The numbers that the strings contain.
static PARSE: OpDef = OpDef {
    attrs: Cast::DECLARED,
    effects: Effects::Fallible,
    ..row(
        "parse",
        |cx| {
            let dtype = Cast::of(cx.attrs).dtype;
            if !dtype.is_numeric() {
                return Err(OpError::new(format!("reads numbers, not {dtype}")).help("parse integers or floats"));
            }
            from_strings(cx, dtype)
        },
        |cx| match cx.ty.dtype {
            DType::F32 => parsed(cx, f32::from_str),
            DType::F64 => parsed(cx, f64::from_str),
            DType::F16 => parsed(cx, |s| f64::from_str(s).map(f16::from_f64)),
            DType::BF16 => parsed(cx, |s| f64::from_str(s).map(<bf16 as Float>::from_f64)),
            DType::I32 => parsed(cx, i32::from_str),
            DType::I64 => parsed(cx, i64::from_str),
            DType::U32 => parsed(cx, u32::from_str),
            DType::U8 => parsed(cx, u8::from_str),
            DType::Bool | DType::Bytes => unreachable!("inference does not let {} through", cx.ty.dtype),
        },
    )
};

fn parsed<T: Element, E>(cx: &EvalCx<'_>, read: fn(&str) -> Result<T, E>) -> Result<HostTensor, OpError> {
    let number = |(i, s): (usize, &Bytes)| {
        let text = std::str::from_utf8(trimmed(s)).ok();
        text.and_then(|text| read(text).ok()).ok_or_else(|| {
            let error = OpError::new(format!("{}{} is no {}", shown(s), place(cx, i), T::DTYPE));
            error.help("numbers are decimal, and integers are within the range of their type")
        })
    };
    let numbers = cx.operands[0].data::<Bytes>().iter().enumerate().map(number);
    Ok(cx.result(numbers.collect::<Result<Vec<_>, _>>()?))
}

/// The elements as text.
static FORMAT: OpDef = row(
    "format",
    |cx| Ok(Type::tensor(DType::Bytes, common(cx, Class::Plain)?.shape)),
    |cx| {
        fn texts<T: Show>(cx: &EvalCx<'_>, elements: &[T]) -> HostTensor {
            let (mut made, mut text) = (StringsBuilder::default(), String::new());
            for element in elements {
                text.clear();
                element.show(&FormatSpec::default(), &mut text);
                made.add(|to| to.extend_from_slice(text.as_bytes()));
            }
            made.finish(cx)
        }
        Ok(match cx.operands[0].buffer() {
            Buffer::F32(d) => texts(cx, d),
            Buffer::F64(d) => texts(cx, d),
            Buffer::F16(d) => texts(cx, d),
            Buffer::BF16(d) => texts(cx, d),
            Buffer::I32(d) => texts(cx, d),
            Buffer::I64(d) => texts(cx, d),
            Buffer::U32(d) => texts(cx, d),
            Buffer::U8(d) => texts(cx, d),
            Buffer::Bool(d) => texts(cx, d),
            Buffer::Bytes(_) => unreachable!("inference does not let strings through"),
        })
    },
);

/// A number below `n` for each string, the same for equal strings.
static HASH_BUCKET: OpDef =
    OpDef {
        attrs: Count::DECLARED,
        ..row(
            "hash_bucket",
            |cx| match Count::of(cx.attrs).n {
                0 => Err(OpError::new("there are 0 buckets").help("use at least one")),
                // Larger numbers are this one, as an attribute.
                n if n >= i64::MAX as usize => Err(OpError::new("the number of a bucket would not fit in `i64`")
                    .help("use fewer than 2^63 - 1 buckets")),
                _ => from_strings(cx, DType::I64),
            },
            |cx| {
                let n = Count::of(cx.attrs).n as u64;
                Ok(cx.result(cx.operands[0].data::<Bytes>().iter().map(|s| (fingerprint(s) % n) as i64).collect()))
            },
        )
    };

/// `Fingerprint64` of FarmHash.
fn fingerprint(s: &[u8]) -> u64 {
    const K0: u64 = 0xc3a5_c85c_97cb_3127;
    const K1: u64 = 0xb492_b66f_be98_f273;
    const K2: u64 = 0x9ae1_6a3b_2f90_404f;
    let at = |i: usize| u64::from_le_bytes(s[i..i + 8].try_into().expect("there are 8 bytes"));
    let at32 = |i: usize| u64::from(u32::from_le_bytes(s[i..i + 4].try_into().expect("there are 4 bytes")));
    let shift_mix = |x: u64| x ^ (x >> 47);
    let mix = |u: u64, v: u64, mul: u64| {
        let a = shift_mix((u ^ v).wrapping_mul(mul));
        shift_mix((v ^ a).wrapping_mul(mul)).wrapping_mul(mul)
    };
    /// Mixes 32 bytes into two numbers.
    fn weak(words: [u64; 4], a: u64, b: u64) -> (u64, u64) {
        let [w, x, y, z] = words;
        let a = a.wrapping_add(w);
        let b = b.wrapping_add(a).wrapping_add(z).rotate_right(21);
        let sum = a.wrapping_add(x).wrapping_add(y);
        (sum.wrapping_add(z), b.wrapping_add(sum.rotate_right(44)).wrapping_add(a))
    }
    let words = |i: usize| [at(i), at(i + 8), at(i + 16), at(i + 24)];
    let n = s.len();
    let mul = K2.wrapping_add(2 * n as u64);
    match n {
        0 => K2,
        1..4 => {
            let y = u64::from(s[0]) + (u64::from(s[n >> 1]) << 8);
            let z = n as u64 + (u64::from(s[n - 1]) << 2);
            shift_mix(y.wrapping_mul(K2) ^ z.wrapping_mul(K0)).wrapping_mul(K2)
        }
        4..8 => mix(n as u64 + (at32(0) << 3), at32(n - 4), mul),
        8..=16 => {
            let (a, b) = (at(0).wrapping_add(K2), at(n - 8));
            let c = b.rotate_right(37).wrapping_mul(mul).wrapping_add(a);
            let d = a.rotate_right(25).wrapping_add(b).wrapping_mul(mul);
            mix(c, d, mul)
        }
        17..=32 => {
            let (a, b) = (at(0).wrapping_mul(K1), at(8));
            let (c, d) = (at(n - 8).wrapping_mul(mul), at(n - 16).wrapping_mul(K2));
            let first = a.wrapping_add(b).rotate_right(43).wrapping_add(c.rotate_right(30)).wrapping_add(d);
            mix(first, a.wrapping_add(b.wrapping_add(K2).rotate_right(18)).wrapping_add(c), mul)
        }
        33..=64 => {
            let (a, b) = (at(0).wrapping_mul(K2), at(8));
            let (c, d) = (at(n - 8).wrapping_mul(mul), at(n - 16).wrapping_mul(K2));
            let y = a.wrapping_add(b).rotate_right(43).wrapping_add(c.rotate_right(30)).wrapping_add(d);
            let z = mix(y, a.wrapping_add(b.wrapping_add(K2).rotate_right(18)).wrapping_add(c), mul);
            let (e, f) = (at(16).wrapping_mul(mul), at(24));
            let g = y.wrapping_add(at(n - 32)).wrapping_mul(mul);
            let h = z.wrapping_add(at(n - 24)).wrapping_mul(mul);
            let first = e.wrapping_add(f).rotate_right(43).wrapping_add(g.rotate_right(30)).wrapping_add(h);
            mix(first, e.wrapping_add(f.wrapping_add(a).rotate_right(18)).wrapping_add(g), mul)
        }
        _ => {
            const SEED: u64 = 81;
            let mut x = SEED.wrapping_mul(K2).wrapping_add(at(0));
            let mut y = SEED.wrapping_mul(K1).wrapping_add(113);
            let mut z = shift_mix(y.wrapping_mul(K2).wrapping_add(113)).wrapping_mul(K2);
            let (mut v, mut w) = ((0u64, 0u64), (0u64, 0u64));
            let mut block = |i: usize, mul: u64, weight: u64, v: &mut (u64, u64), w: &mut (u64, u64)| {
                let sum = x.wrapping_add(y).wrapping_add(v.0).wrapping_add(at(i + 8));
                x = sum.rotate_right(37).wrapping_mul(mul) ^ w.1.wrapping_mul(weight);
                let sum = y.wrapping_add(v.1).wrapping_add(at(i + 48));
                y = sum.rotate_right(42).wrapping_mul(mul);
                y = y.wrapping_add(v.0.wrapping_mul(weight)).wrapping_add(at(i + 40));
                z = z.wrapping_add(w.0).rotate_right(33).wrapping_mul(mul);
                *v = weak(words(i), v.1.wrapping_mul(mul), x.wrapping_add(w.0));
                *w = weak(words(i + 32), z.wrapping_add(w.1), y.wrapping_add(at(i + 16)));
                std::mem::swap(&mut z, &mut x);
                [x, y, z]
            };
            // The blocks of 64 bytes, without the last one, then the last 64 bytes.
            let mut z_before = 0;
            for i in (0..(n - 1) / 64 * 64).step_by(64) {
                [_, _, z_before] = block(i, K1, 1, &mut v, &mut w);
            }
            let mul = K1.wrapping_add((z_before & 0xff) << 1);
            w.0 = w.0.wrapping_add((n as u64 - 1) & 63);
            v.0 = v.0.wrapping_add(w.0);
            w.0 = w.0.wrapping_add(v.0);
            let [x, y, z] = block(n - 64, mul, 9, &mut v, &mut w);
            let first = mix(v.0, w.0, mul).wrapping_add(shift_mix(y).wrapping_mul(K0)).wrapping_add(z);
            mix(first, mix(v.1, w.1, mul).wrapping_add(x), mul)
        }
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The strings in base64.
static ENCODE_BASE64: OpDef = OpDef {
    attrs: Padded::DECLARED,
    ..row("encode_base64", of_strings, |cx| {
        let (pad, mut made) = (Padded::of(cx.attrs).pad, StringsBuilder::default());
        for s in cx.operands[0].data::<Bytes>() {
            made.add(|to| encode(s, pad, to));
        }
        Ok(made.finish(cx))
    })
};

/// Three bytes are four digits of 6 bits; one or two bytes at the end are two or three digits.
fn encode(bytes: &[u8], pad: bool, to: &mut Vec<u8>) {
    for group in bytes.chunks(3) {
        let word = group.iter().enumerate().fold(0u32, |word, (i, &byte)| word | u32::from(byte) << (16 - 8 * i));
        let n = group.len() + 1;
        to.extend((0..n).map(|i| ALPHABET[(word >> (18 - 6 * i)) as usize & 63]));
        to.extend(std::iter::repeat_n(b'=', if pad { 4 - n } else { 0 }));
    }
}

/// The strings of which the operand has the base64.
static DECODE_BASE64: OpDef = OpDef {
    effects: Effects::Fallible,
    ..row("decode_base64", of_strings, |cx| {
        let mut made = StringsBuilder::default();
        for (i, s) in cx.operands[0].data::<Bytes>().iter().enumerate() {
            let mut outcome = Ok(());
            made.add(|to| outcome = decode(s, to));
            outcome.map_err(|why| {
                let error = OpError::new(format!("{}{} is no base64: {why}", shown(s), place(cx, i)));
                error.help("the alphabet is the URL-safe one, with `-` and `_`; padding is whole or absent")
            })?;
        }
        Ok(made.finish(cx))
    })
};

fn decode(text: &[u8], to: &mut Vec<u8>) -> Result<(), String> {
    let padding = text.iter().rev().take_while(|&&c| c == b'=').count();
    let digits = &text[..text.len() - padding];
    if digits.len() % 4 == 1 {
        return Err(format!("it has {} digits, 1 more than groups of 4", digits.len()));
    }
    if padding > 0 && padding != (4 - digits.len() % 4) % 4 {
        return Err(format!("{padding} `=` after {} digits", digits.len()));
    }
    for group in digits.chunks(4) {
        let mut word = 0;
        for (i, &c) in group.iter().enumerate() {
            let digit = ALPHABET.iter().position(|&digit| digit == c);
            word |= (digit.ok_or_else(|| format!("{:?} is no digit", Bytes::from(&[c])))? as u32) << (18 - 6 * i);
        }
        to.extend((0..group.len() - 1).map(|i| (word >> (16 - 8 * i)) as u8));
    }
    Ok(())
}

impl Tensor<Bytes> {
    /// Reads each string as a number: decimal digits, for floats with a fraction and an exponent,
    /// or `inf` and `nan`. Blanks around it are ignored.
    ///
    /// A string that is no number, or an integer that is out of range, is an error of the step,
    /// which says which element it is. A float that is too large is infinite.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([" 1.5", "-2e3"]).parse::<f32>())?.as_slice(), [1.5, -2000.0]);
    /// let error = eval(|| tensor(["1", "2.9"]).parse::<i32>()).unwrap_err();
    /// assert_eq!(error.message, "parse: b\"2.9\" at [1] is no i32");
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn parse<T: Numeric>(self) -> Tensor<T> {
        Tensor::from_any(emit(prim::PARSE, &[self.untyped()], Cast { dtype: T::DTYPE }.into()))
    }

    /// Returns for each string a number from 0 to `n - 1`, which depends on the string alone: it is
    /// the same in every program and on every system.
    ///
    /// It is the `Fingerprint64` of FarmHash modulo `n`, as of `tf.strings.to_hash_bucket_fast`.
    /// Others can choose strings that fall into one bucket.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let bucket = eval(|| tensor(["Hello", "TensorFlow", "2.x"]).hash_bucket(3))?;
    /// assert_eq!(bucket.as_slice(), [0, 2, 2]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn hash_bucket(self, n: usize) -> Tensor<i64> {
        Tensor::from_any(emit(prim::HASH_BUCKET, &[self.untyped()], Count { n }.into()))
    }

    /// Writes the bytes of each string in base64, with the URL-safe alphabet and without padding.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor(["foo", "f"]).encode_base64())?.as_slice(), ["Zm9v", "Zg"]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn encode_base64(self) -> Tensor<Bytes> {
        Tensor::from_any(emit(prim::ENCODE_BASE64, &[self.untyped()], Padded { pad: false }.into()))
    }

    /// Writes the bytes of each string in base64 like [`encode_base64`](Self::encode_base64),
    /// padded with `=` to groups of four.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor(["a"]).encode_base64_padded())?.as_slice(), ["YQ=="]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn encode_base64_padded(self) -> Tensor<Bytes> {
        Tensor::from_any(emit(prim::ENCODE_BASE64, &[self.untyped()], Padded { pad: true }.into()))
    }

    /// Reads base64 with the URL-safe alphabet, with or without padding. A string that is none is
    /// an error of the step, which says which element it is.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor(["YQ", "YQ=="]).decode_base64())?.as_slice(), ["a", "a"]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn decode_base64(self) -> Tensor<Bytes> {
        Tensor::from_any(emit(prim::DECODE_BASE64, &[self.untyped()], Attrs::none()))
    }
}

impl<T: Plain> Tensor<T> {
    /// Writes the elements as text, as `{}` does in Rust: a float in the fewest digits that read
    /// back as the same number.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([0.1f32, 2.0]).format())?.as_slice(), ["0.1", "2"]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn format(self) -> Tensor<Bytes> {
        Tensor::from_any(emit(prim::FORMAT, &[self.untyped()], Attrs::none()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of FarmHash: written by `fingerprints.py` there.
    const FINGERPRINTS: &str = include_str!("../../../tests/fixtures/fingerprints.txt");

    #[test]
    fn fingerprints_are_those_of_farmhash() {
        let mut n = 0;
        for line in FINGERPRINTS.lines().filter(|line| !line.starts_with('#')) {
            let (len, expected) = line.split_once(' ').expect("a length and a number");
            let len: usize = len.parse().expect("a length");
            let text: Vec<u8> = (0..len).map(|i| (i * i * 7 + i + len) as u8).collect();
            assert_eq!(fingerprint(&text).to_string(), expected, "{len} bytes");
            n += 1;
        }
        assert!(n > 200, "{n} lengths");
    }
}
